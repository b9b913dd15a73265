"""What do rounds cost beside llama.cpp's own work? Ratios, each of two measurements that take
turns.

An answer is compared with the calls of ``llama_decode`` that it makes; one whose lead is never
corrected with the lead alone (the same bytes); late rounds with early ones; eight questions at once
with one after another; a token under a JSON schema of 128 keys with a token without. Then the start
of a process, and its memory.

    python benchmarks/rounds.py [--repeats 3] [--tokens 96] [--tiny]
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from itertools import cycle, islice
from statistics import median
from typing import Any

from common import (
    STORY,
    answered,
    apart,
    arguments,
    demo,
    query,
    question,
    report,
    text_of,
    together,
)

from langchain_specfuse.constraints import referee_for
from langchain_specfuse.core.options import Method, Settings
from langchain_specfuse.core.referee import FREE
from langchain_specfuse.core.round import Round
from langchain_specfuse.core.values import Constraint, Turn
from langchain_specfuse.demo import ENSEMBLES
from langchain_specfuse.engine import Ensemble
from langchain_specfuse.members.text.tools import instructions

MEASURES = (
    "core",
    "engine",
    "members/local",
    "members/llamacpp",
    "members/text/words.py",
    "constraints",
)
"""The parts of the package that decide these figures."""

QUESTIONS = [
    f"Tell a long story about {name}."
    for name in ("Ann", "Bob", "Cid", "Dan", "Eve", "Fay", "Gus", "Hal")
]
KINDS = (
    {"type": "string", "maxLength": 60},
    {"type": "integer", "minimum": 0, "maximum": 9999},
    {"type": "boolean"},
    {"enum": ["low", "medium", "high"]},
    {"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 3},
    {"type": ["number", "null"]},
)
WORDS = ("name", "harbour", "height", "colour", "year", "keeper", "signal", "country")
KEYS = [f"{word}_{number}" for number in range(1, 17) for word in WORDS]
SCHEMA = {
    "type": "object",
    "properties": dict(zip(KEYS, islice(cycle(KINDS), len(KEYS)), strict=True)),
    "required": KEYS,
}


def seconds(work: Callable[[], Any]) -> float:
    since = time.perf_counter()
    work()
    return time.perf_counter() - since


class Bare:
    """Counts the seconds that are spent in llama.cpp's own calls."""

    def __init__(self, lib: Any) -> None:
        self.lib, self.call, self.seconds = lib, lib.llama_decode, 0.0

    def __enter__(self) -> Bare:
        self.lib.llama_decode = self._timed
        return self

    def __exit__(self, *_: Any) -> None:
        self.lib.llama_decode = self.call

    def _timed(self, *given: Any) -> int:
        since = time.perf_counter()
        code: int = self.call(*given)
        self.seconds += time.perf_counter() - since
        return code


def answers(size: str, repeats: int, tokens: int) -> dict[str, float]:
    """An answer to which all members draft."""
    members = demo(size, prefix_cache=False)
    ensemble, settings = (
        Ensemble(members),
        Settings(max_tokens=tokens, lead=None, method=Method(exit="never")),
    )
    answered(ensemble, question(STORY), Settings(max_tokens=8, lead=None))
    assert members[0].cache is not None
    over, late = [], []
    for _ in range(repeats):
        since = time.perf_counter()
        with Bare(members[0].cache.weights.lib) as bare:
            rounds = answered(ensemble, question(STORY), settings)
        over.append((time.perf_counter() - since) / bare.seconds)
        late.append(drafting(rounds[-4:-1]) / drafting(rounds[1:4]))
    return {"over_bare_calls": median(over), "late_over_early": median(late)}


def drafting(rounds: Iterable[Round]) -> float:
    """Seconds per token read while drafting: rounds differ in how many tokens they have."""
    some = list(rounds)
    read = sum(effort.read for one in some for effort in one.efforts["draft"].values())
    return sum(one.seconds["draft"] for one in some) / read


def floor(size: str, repeats: int, tokens: int) -> dict[str, float]:
    """An answer whose lead is never corrected, against the lead alone."""
    members = demo(size, prefix_cache=False)
    ways = {
        "alone": (Ensemble(members[:1]), Settings(max_tokens=tokens)),
        "led": (
            Ensemble(members),
            Settings(max_tokens=tokens, lead=members[0].name, method=Method(margin=math.inf)),
        ),
    }
    for ensemble, settings in ways.values():  # load, and read the question once
        answered(ensemble, question(STORY), settings.model_copy(update={"max_tokens": 8}))
    ratios, texts = [], set()
    for _ in range(repeats):
        took = {}
        for way, (ensemble, settings) in ways.items():
            since = time.perf_counter()
            texts.add(text_of(answered(ensemble, question(STORY), settings)))
            took[way] = time.perf_counter() - since
        ratios.append(took["led"] / took["alone"])
    assert len(texts) == 1, "a lead that is never corrected gives its own answer"
    return {"led_over_alone": median(ratios)}


def crowd(size: str, repeats: int, tokens: int) -> dict[str, float]:
    """Eight questions one after another, and at once."""
    ensemble, settings = (
        Ensemble(demo(size, prefix_cache=False)),
        Settings(max_tokens=tokens // 4, lead=None),
    )
    asks = [lambda text=text: answered(ensemble, question(text), settings) for text in QUESTIONS]
    asks[0]()
    alone = seconds(lambda: [ask() for ask in asks])
    return {"eight_at_once": alone / seconds(lambda: together(lambda at: asks[at](), len(asks)))}


def schema(size: str, repeats: int, tokens: int) -> dict[str, float]:
    """A drafted token with and without a schema, without the first round. The prompt tells the
    schema either way."""
    ensemble = Ensemble(demo(size))
    bound = Constraint("json_schema", json.dumps(SCHEMA))
    told = Turn("system", instructions((), bound, native=False, own=None))
    ask = Turn("user", "Make up a register of lighthouses and describe them.")
    method = Method(exit="never", loop_guard=False)

    def per_token(constraint: Constraint | None, tokens: int = tokens) -> float:
        settings = Settings(max_tokens=tokens, lead=None, method=method)
        asked = query((ask,) if constraint else (told, ask), constraint=constraint)
        times, rounds = [], []
        for one in ensemble.rounds(
            asked, settings, referee=referee_for(constraint) if constraint else FREE
        ):
            times.append(time.perf_counter())
            rounds.append(one)
        drawn = sum(len(draft.tokens) for one in rounds[1:] for draft in one.drafts.values())
        return (times[-1] - times[0]) / drawn

    for constraint in (bound, None):  # read the vocabularies and both prompts, compile the schema
        per_token(constraint, 24)
    ratios = [per_token(bound) / per_token(None) for _ in range(repeats)]
    return {"schema_token_over_free": median(ratios)}


START = """
import sys
from langchain_specfuse import SpecFuseChatModel, demo_members
for chunk in SpecFuseChatModel(members=demo_members(sys.argv[1]), max_tokens=16).stream("Why is the sky blue?"):
    if chunk.text:
        print("first", flush=True)
"""


def start(size: str) -> dict[str, float]:
    """A process of its own, from its start to its first segment, with the files in the system's
    cache."""
    since, asked = time.perf_counter(), [sys.executable, "-c", START, size]
    with subprocess.Popen(asked, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        first = time.perf_counter() - since
        process.stdout.read()
        _, _, used = os.wait4(process.pid, 0)
        process.returncode = 0
    return {"first_segment_s": first, "resident_mb": used.ru_maxrss / 1e3}


PARTS: dict[str, tuple[Callable[[str, int, int], dict[str, float]], ...]] = {
    "small": (answers, floor, crowd, schema),
    "default": (answers, crowd),
}
"""Of the default ensemble, ``engines.py`` measures the lead alone and before the others, in turn."""


def measured(size: str, repeats: int, tokens: int) -> dict[str, float]:
    found: dict[str, float] = {}
    for part in PARTS[size]:
        found |= apart(part, size, repeats, tokens)
        print(size, found, flush=True)
    starts = [start(size) for _ in range(repeats)]
    found |= {key: median(one[key] for one in starts) for key in starts[0]}
    return {key: round(value, 3) for key, value in found.items()}


def main() -> None:
    given = arguments(
        __file__, __doc__, tiny={"repeats": 1, "tokens": 24}, repeats=3, tokens=96
    ).parse_args()
    sizes = ["small"] if given.tiny else list(ENSEMBLES)
    report(
        __file__,
        given,
        MEASURES,
        {"ensembles": {size: measured(size, given.repeats, given.tokens) for size in sizes}},
    )


if __name__ == "__main__":
    main()
