"""Shared code of benchmarks and studies: questions, processes, and results that can be repeated."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from statistics import median, quantiles
from typing import Any, TypeVar

from langchain_specfuse import LlamaCppMember, __version__
from langchain_specfuse.core.options import Settings
from langchain_specfuse.core.round import Round
from langchain_specfuse.core.values import Query, Turn
from langchain_specfuse.demo import ENSEMBLES, DemoFile, file_of
from langchain_specfuse.engine import Ensemble
from langchain_specfuse.evaluation.running import on_worker
from langchain_specfuse.members.llamacpp.binding import thread_count

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))  # for tests.members
Found = TypeVar("Found")
Turns = tuple[Turn, ...]

# --- asking ---------------------------------------------------------------------------------------


def demo(size: str, **changes: Any) -> list[LlamaCppMember]:
    """The members of a demo ensemble, with some arguments changed."""
    return [
        LlamaCppMember(file_of(file), name=file.name, **{**file.options, **changes})
        for file in ENSEMBLES[size]
    ]


def question(text: str) -> Turns:
    return (Turn("user", text),)


def query(turns: Turns, **more: Any) -> Query:
    """A query that no member knows yet."""
    return Query(f"benchmark-{time.perf_counter_ns()}", turns, **more)


def answered(ensemble: Ensemble, turns: Turns, settings: Settings) -> list[Round]:
    return list(ensemble.rounds(query(turns), settings))


def text_of(rounds: Sequence[Round]) -> str:
    return "".join(item.text for item in rounds)


def on_workers(ensemble: Ensemble, call: Callable[[Any], Any]) -> None:
    """Call a function for every member, in the thread of its worker, after all queued jobs."""
    for member in ensemble.members.values():
        on_worker(member, lambda member=member: call(member)).result()


def together(work: Callable[[int], Any], count: int) -> list[Any]:
    """The results of ``work(0)`` to ``work(count - 1)``, each in a thread of its own."""
    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(work, range(count)))


# --- processes ------------------------------------------------------------------------------------


def apart(work: Callable[..., Found], *given: Any) -> Found:
    """The result of a call in a process of its own, because the idle threads of one engine would
    slow another down."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        return process.submit(work, *given).result()


@contextmanager
def llama_server(weights: DemoFile, use: int) -> Iterator[str]:
    """The address of a llama-server with these weights and this many threads."""
    import httpx2

    program = ROOT / "tests" / "members" / "llama_server.py"
    command = [sys.executable, str(program), str(file_of(weights)), "0", weights.name]
    env = os.environ | {"OMP_NUM_THREADS": str(use)}
    with subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            while httpx2.get(f"{url}/health").status_code != 200:
                time.sleep(0.1)
            yield url
        finally:
            process.terminate()


# --- results --------------------------------------------------------------------------------------


def percentile(values: Sequence[float], at: int) -> float:
    """The value below which this many percent of the values lie, interpolated between two of them.

    >>> percentile(range(101), 95), percentile([1.0, 2.0], 50)
    (95.0, 1.5)
    """
    return quantiles(values, n=100, method="inclusive")[at - 1]


def medians(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {key: round(median(run[key] for run in runs), 3) for key in runs[0]}


def arguments(
    script: str, doc: str | None, *, tiny: Mapping[str, int] | None = None, **numbers: int
) -> argparse.ArgumentParser:
    """A parser with ``--out``, with an option for each of these numbers and, if ``tiny`` is given,
    with ``--tiny``."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    small = tiny is not None and "--tiny" in sys.argv
    out = Path(os.devnull) if small else Path(script).with_suffix(".json")
    parser.add_argument("--out", type=Path, default=out, help="where the results go")
    for name, default in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    if tiny is not None:
        parser.add_argument(
            "--tiny",
            action="store_true",
            help="only test whether the script works; its figures mean nothing",
        )
        parser.set_defaults(**tiny if small else {})
    return parser


def chip() -> str:
    """The name of the GPU, or of the processor."""
    torch = sys.modules.get("torch")
    if torch and torch.cuda.is_available():
        return str(torch.cuda.get_device_name())
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "CPU"


def machine() -> str:
    torch = sys.modules.get("torch")
    count = torch.get_num_threads() if torch else thread_count()
    return f"{chip()}, {platform.machine()}, {count} thread{'s' * (count != 1)}"


def about(given: argparse.Namespace) -> dict[str, Any]:
    """Everything that is needed to repeat a measurement."""
    chosen = {name: value for name, value in vars(given).items() if name != "out"}
    for name, value in chosen.items():
        if isinstance(value, Path):
            chosen[name] = str(value)
    return {
        "version": __version__,
        "commit": commit(),
        "date": datetime.now(UTC).date().isoformat(),
        "arguments": chosen,
        "machine": machine(),
        "packages": {
            name: metadata.version(name)
            for name in ("xllamacpp", "transformers", "torch", "langchain-core")
        },
    }


def commit() -> str:
    """The commit of the package, with a ``+`` if files differ from it; empty outside a checkout."""
    name = _git("rev-parse", "--short", "HEAD")
    changed = _git("status", "--porcelain", "langchain_specfuse", "benchmarks/*.py")
    return f"{name}+" if changed else name


def _git(*words: str) -> str:
    command = ["git", "-C", str(ROOT), *words]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def report(
    script: str, given: argparse.Namespace, measures: Sequence[str], found: Mapping[str, Any]
) -> None:
    """Print and save the results of a benchmark.

    ``measures`` names the files and folders of the package that determine the figures. The site
    counts the commits that have changed them since.
    """
    results = {"about": about(given) | {"measures": list(measures)}, **found}
    print(json.dumps(found, indent=1, ensure_ascii=False))
    save(given.out, results)


def save(path: Path, results: Any) -> None:
    path.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")


# --- texts ----------------------------------------------------------------------------------------

STORY = """The lighthouse stood on a rock a mile from the village, and every evening the keeper rowed out to light it. \
The lamp was old and burned whale oil, so he trimmed the wick at midnight and again at three. One night in November a \
fog came in from the sea, the oil ran out, and he heard the bell of a ship that was close to the rocks. Tell the story \
to its end."""
"""A question of about a hundred tokens whose answer is long."""
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
    "Summarize in one sentence: The meeting was moved from Monday to Wednesday because two people "
    "were ill.",
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
