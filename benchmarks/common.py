"""What the benchmarks share: clocks, a long text, questions asked together, and results that say how they were made."""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from langchain_specfuse import __version__
from langchain_specfuse.core.values import Query, Round, Turn
from langchain_specfuse.demo import ENSEMBLES, Weights
from langchain_specfuse.engine import Ensemble

CLOCK = {"name": "wall clock", "read": time.perf_counter}


def clock() -> float:
    """Seconds, of the clock that was chosen."""
    return CLOCK["read"]()  # type: ignore[no-any-return,operator]


def count_processor_seconds() -> None:
    """From now on, time is what this process computes, on one thread: other processes then hardly matter."""
    import torch

    torch.set_num_threads(1)
    CLOCK.update(name="processor seconds, one thread", read=time.process_time)


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds, and what the work returned."""
    since = clock()
    result = work()
    settled()
    return clock() - since, result


def settled() -> None:
    """Wait for a GPU, which works on after a call."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


# --- asking -----------------------------------------------------------------------------------------------------


def demo(dtype: str, *, weights: Sequence[Weights] = ENSEMBLES["small"], **changes: Any) -> list[Any]:
    """The small demo's members (or those with other weights), read by transformers."""
    from langchain_specfuse import TransformersMember

    sys.path.append(str(Path(__file__).resolve().parent.parent))
    from tests.members.engines import folder

    return [
        TransformersMember(folder(one), name=one.name, dtype=dtype, **{**one.options, **changes}) for one in weights
    ]


def question(text: str) -> tuple[Turn, ...]:
    return (Turn("user", text),)


def query(turns: tuple[Turn, ...], **more: Any) -> Query:
    """A query that no member knows yet."""
    return Query(f"benchmark-{time.perf_counter_ns()}", turns, **more)


def answered(ensemble: Ensemble, turns: tuple[Turn, ...], settings: Any) -> list[Round]:
    return list(ensemble.rounds(query(turns), settings))


def text_of(rounds: list[Round]) -> str:
    return "".join(one.text for one in rounds)


def together(work: Callable[[int], Any], count: int) -> list[Any]:
    """The results of ``work(0)`` to ``work(count - 1)``, each in a thread of its own."""
    found: dict[int, Any] = {}
    threads = [threading.Thread(target=lambda n=n: found.update({n: work(n)})) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[n] for n in range(count)]


@contextmanager
def forward_passes() -> Iterator[list[tuple[Any, tuple[int, int]]]]:
    """Every forward pass of a language model inside: the model, and the shape (rows, tokens) of what it read."""
    import torch
    from transformers import PreTrainedModel

    found: list[tuple[Any, tuple[int, int]]] = []

    def ran(module: Any, _: Any, output: Any) -> None:
        if isinstance(module, PreTrainedModel) and hasattr(module, "lm_head"):
            found.append((module, tuple(output.logits.shape[:2])))

    hook = torch.nn.modules.module.register_module_forward_hook(ran)
    try:
        yield found
    finally:
        hook.remove()


@contextmanager
def http_requests() -> Iterator[list[tuple[str, str, float, float]]]:
    """Every HTTP request of this process inside: its path, its API key, begin and end in seconds of ``time.time()``."""
    import httpx2

    found: list[tuple[str, str, float, float]] = []
    send, close = httpx2.Client.send, httpx2.Response.close

    def sent(client: Any, request: Any, **more: Any) -> Any:
        request.extensions["began"] = time.time()
        return send(client, request, **more)

    def closed(response: Any) -> None:
        close(response)
        began = response.request.extensions.pop("began", None)
        if began is not None:
            key = response.request.headers.get("authorization", "").removeprefix("Bearer ")
            found.append((response.request.url.path, key, began, time.time()))

    httpx2.Client.send, httpx2.Response.close = sent, closed  # type: ignore[method-assign]
    try:
        yield found
    finally:
        httpx2.Client.send, httpx2.Response.close = send, close  # type: ignore[method-assign]


def round_trip(url: str) -> float:
    """Seconds of a request without any work, in the median."""
    import httpx2

    with httpx2.Client() as client:
        return median(timed(lambda: client.get(f"{url}/models"))[0] for _ in range(20))


# --- results ----------------------------------------------------------------------------------------------------


def arguments(script: str, doc: str | None, **defaults: Any) -> argparse.ArgumentParser:
    """A parser with ``--out`` and, where there are defaults for them, ``--dtype``, ``--repeats`` and ``--cpu-time``."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(script).with_suffix(".json"), help="where the results go")
    if "dtype" in defaults:
        parser.add_argument("--dtype", nargs="*", default=defaults["dtype"])
        parser.add_argument("--cpu-time", action="store_true", help="processor seconds on one thread, not wall clock")
    if "repeats" in defaults:
        parser.add_argument("--repeats", type=int, default=defaults["repeats"])
    return parser


def machine() -> str:
    import torch

    chip = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    return f"{chip}, {platform.machine()}, {torch.get_num_threads()} threads"


def about(given: argparse.Namespace) -> dict[str, Any]:
    """What is needed to repeat a measurement."""
    import torch

    chosen = {name: str(value) if isinstance(value, Path) else value for name, value in vars(given).items()}
    return {
        "version": __version__,
        "commit": commit(),
        "date": datetime.now(UTC).date().isoformat(),
        "arguments": {name: value for name, value in chosen.items() if name != "out"},
        "machine": machine(),
        "clock": CLOCK["name"],
        "torch": torch.__version__,
    }


def commit() -> str:
    """The commit of the package, with a ``+`` where files differ from it; empty outside a checkout."""
    root = Path(__file__).resolve().parent.parent
    name = subprocess.run(["git", "-C", str(root), "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    changed = subprocess.run(
        ["git", "-C", str(root), "status", "--porcelain", "langchain_specfuse"], capture_output=True, text=True
    )
    return name.stdout.strip() + "+" * bool(changed.stdout.strip())


def reported(given: argparse.Namespace, measured: Callable[[str], dict[str, Any]]) -> None:
    """Measure in each precision, print the results and save them."""
    if given.cpu_time:
        count_processor_seconds()
    results = []
    for dtype in given.dtype:
        results.append({"dtype": dtype, **about(given), **measured(dtype)})
        print(json.dumps(results[-1], indent=2))
    save(given.out, results)


def save(path: Path, results: Any) -> None:
    path.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")


NOTES = """Notes for a talk about lighthouses.

The first lighthouse that we know of stood on the island of Pharos, off Alexandria, and was built about 280
before our era. It was over a hundred metres high, burned wood and oil, and was counted among the wonders of the
world until earthquakes brought it down. For many centuries afterwards most lights on the coasts were small: a
fire in an iron basket on a hill, kept by monks or by a fisherman's widow, who was paid in coal and candles.

Two inventions changed that. In 1782 a Swiss, Argand, made a lamp with a hollow wick, which burned brighter and
without smoke. In 1822 a Frenchman, Fresnel, ground lenses out of rings of glass, so that nearly all the light
of a small lamp left the tower in one flat beam. A ship could now see the light from thirty kilometres away.
Towers were given rhythms of their own, two flashes and a pause, or a long one and a short one, so that a
captain could tell where he was.

Keepers lived on the rock for weeks at a time. They carried oil up the stairs, wound the clockwork that turned
the lens, cleaned the glass each morning and wrote the weather into a book. Storms could cut them off for a
month. Some kept bees, some built ships in bottles, and one in Scotland taught himself nine languages. Families
lived on the larger islands, and daughters often took over from their fathers; Ida Lewis saved at least eighteen
people from the sea at Newport.

Electricity came late to many towers, and with it the end of the trade. A light that needs nobody was first
switched on in Sweden, where Dalen invented a valve that opened when it grew dark; he was given a Nobel prize
for it. Today nearly all lights are automatic, satellites tell ships where they are, and the towers are museums,
hotels, or homes for birds.

What is left of the trade is a language of its own. A light is called fixed, flashing or occulting; its range is
nominal or geographic; and a sector of red glass still tells a captain, as it did two hundred years ago, that
there are rocks between him and the harbour.
"""
"""Prose that does not repeat itself."""
QUESTIONS = (
    "Hello! How are you today?",
    "What is the capital of France?",
    "Why is the sky blue?",
    "How many days are there in a leap year, and why?",
    "Name three fruits that are red.",
    "List five things to pack for a weekend at the beach.",
    "Explain in two sentences what photosynthesis is.",
    "What is the difference between weather and climate?",
    "How do I boil an egg?",
    "Write a Python function that returns the sum of a list of numbers.",
    "What does `for i in range(3): print(i)` print in Python?",
    "Rewrite this politely: Send me the report now.",
    "Write a short letter that thanks my neighbour for watering my plants.",
    "Correct the mistakes in this sentence: He go to school every days.",
    "Give me a synonym and an antonym for 'happy'.",
    "Who wrote Romeo and Juliet, and what is it about?",
    "I have trouble falling asleep. What could I try?",
    "What is 12 + 30? Explain your steps.",
    "Write a four-line poem about the sea.",
    "Summarize in one sentence: The meeting was moved from Monday to Wednesday because two people were ill.",
    "Was ist die Hauptstadt von Deutschland?",
    "写一句关于春天的话。",
    "Count from one to ten.",
    "What is a prime number?",
    "Translate 'good morning' into Spanish.",
    "Give me a recipe for pancakes.",
    "What is 7 times 8?",
    "Name the planets of the solar system.",
    "Why do cats purr?",
    "Write a haiku about autumn.",
)
"""Plain questions of many kinds."""
