"""Real engines shared by the members' tests; each is started once."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from . import engines, tiny_gguf


@pytest.fixture(scope="session")
def engine_for(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[str], engines.Engine]]:
    """Return a running engine by its name; skip the test if it is not installed."""
    started: dict[str, engines.Engine] = {}
    with ExitStack() as running:

        def get(name: str) -> engines.Engine:
            if engines.FOUND[name]() is None:
                pytest.skip(engines.MISSING[name])
            if name not in started:
                log = tmp_path_factory.mktemp("engine") / "log"
                started[name] = running.enter_context(engines.running(name, log))
            return started[name]

        yield get


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of a tiny GGUF file that llama.cpp reads like any other."""
    return tiny_gguf.llama(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a folder with a tiny model, as ``save_pretrained`` writes it."""
    from . import tiny  # imports torch, which most tests here do not need

    def saved(arch: str, **made_with: Any) -> Path:
        path = tmp_path_factory.mktemp("models") / arch
        for part in tiny.cached(arch, 1, **made_with):
            part.save_pretrained(path)
        return path

    return saved
