"""What members' tests share: real engines, started once."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from . import engines, tiny_gguf


@pytest.fixture(scope="session")
def engine_for(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[str], engines.Engine]]:
    """A real engine by its name, running; skips where there is none."""
    found: dict[str, engines.Engine] = {}
    with ExitStack() as running:

        def get(name: str) -> engines.Engine:
            if engines.FOUND[name]() is None:
                pytest.skip(engines.MISSING[name])
            if name not in found:
                log = tmp_path_factory.mktemp("engine") / "log"
                found[name] = running.enter_context(engines.running(name, log))
            return found[name]

        yield get


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny GGUF file that llama.cpp reads like any other."""
    return tiny_gguf.llama(tmp_path_factory.mktemp("gguf") / "tiny.gguf")
