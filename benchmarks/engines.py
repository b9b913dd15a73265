"""GGUF files read by llama.cpp, and the same weights in float32 read by transformers, in turn.

Both engines get the same questions, of about 100 and 512 tokens, and write 128 tokens at most: ensembles, and members
alone. Each measurement has a process of its own, because the idle threads of one engine slow the other down. llama.cpp
is also compared with itself: with the bare calls of ``llama_decode`` that an answer needs, with a plain loop around
them, with whole answers instead of segments, and eight questions at once with one after another.

    python benchmarks/engines.py [--repeats 3] [--large] [--itself]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from statistics import median
from typing import Any

from common import about, arguments, demo, query, question, save, together

from langchain_specfuse import LlamaCppMember
from langchain_specfuse.core.method import Method, Settings
from langchain_specfuse.demo import ENSEMBLES, QWEN, SMOLLM2, file_of
from langchain_specfuse.engine import Ensemble

SENTENCE = (
    "The lighthouse stood on a rock a mile from the village, and every evening the keeper rowed out to light it. "
)
TEXTS = {100: SENTENCE * 3 + "Tell the story to its end.", 512: SENTENCE * 19 + "Tell the story to its end."}
EIGHT = [f"{SENTENCE} Tell the story of {name}." for name in ["Ann", "Bob", "Cid", "Dan", "Eve", "Fay", "Gus", "Hal"]]
TOKENS = 128


def members_of(engine: str, size: str) -> list[Any]:
    if engine == "llama.cpp":  # without what was kept of the same prompt
        return [
            LlamaCppMember(file_of(one), name=one.name, prefix_cache=False, **one.options) for one in ENSEMBLES[size]
        ]
    if size == "small":
        return demo("float32", prefix_cache=False)
    return demo("float32", weights=(QWEN, SMOLLM2), prefix_cache=False)


def written(members: list[Any], text: str, segment_tokens: int = 10) -> dict[str, float]:
    since, first, tokens = time.perf_counter(), 0.0, 0
    settings = Settings(max_tokens=TOKENS, segment_tokens=segment_tokens)
    for one in Ensemble(members).rounds(query(question(text)), settings):
        first = first or time.perf_counter() - since
        tokens += len(one.drafts[one.winner].tokens)
    seconds = time.perf_counter() - since
    return {"tokens_per_second": tokens / seconds, "first": first, "seconds": seconds, "tokens": tokens}


def against_transformers(engine: str, size: str) -> list[dict[str, Any]]:
    members = members_of(engine, size)
    written(members, "Hi!")
    some = {"all": members} | ({one.name: [one] for one in members} if size == "small" else {})
    return [
        {"prompt": tokens, "members": name, **written(ones, text)}
        for tokens, text in TEXTS.items()
        for name, ones in some.items()
    ]


# --- llama.cpp and itself ---------------------------------------------------------------------------------------


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


def plain_loop(member: Any, text: str, tokens: int) -> float:
    """Seconds for a prompt and the likeliest token after it, again and again."""
    import numpy as np

    from langchain_specfuse.members.llamacpp.binding import Batch

    weights, lib = member.loaded.weights, member.loaded.weights.lib
    params = lib.llama_context_default_params()
    params.n_ctx, params.n_threads, params.n_threads_batch = 2048, weights.threads, weights.threads
    context = lib.llama_init_from_model(weights.handle, params)
    ids = member.loaded.prompt_ids(question(text))
    since, position, row = time.perf_counter(), 0, ids
    for _ in range(tokens):
        last = [False] * (len(row) - 1) + [True]
        lib.llama_decode(context, Batch.of(row, list(range(position, position + len(row))), [0] * len(row), last))
        position += len(row)
        row = [int(np.ctypeslib.as_array(lib.llama_get_logits(context), (weights.vocabulary_size,)).argmax())]
    seconds = time.perf_counter() - since
    lib.llama_free(context)
    return seconds


def over_plain_loop(member: Any) -> float:
    """As many tokens from both, in turn, five times: the median of the ratios."""
    ratios = []
    for at in range(5):
        text = TEXTS[100] + "   " + " " * at
        alone = written([member], text)
        ratios.append(plain_loop(member, text, int(alone["tokens"])) / alone["seconds"])
    return median(ratios)


def floor(size: str) -> dict[str, Any]:
    """An answer of all members with an infinite margin, over that of the lead alone, in turn, seven times."""
    members = members_of("llama.cpp", size)
    alone, all_of_them, ratios = Ensemble(members[:1]), Ensemble(members), []
    led = Settings(max_tokens=64, lead=members[0].name, method=Method(margin=math.inf))
    for at in range(8):
        seconds, texts = [], []
        for ensemble, settings in ((alone, Settings(max_tokens=64)), (all_of_them, led)):
            asked = query(question(TEXTS[100] + " Now?" + " " * at))
            since = time.perf_counter()
            texts.append("".join(round.text for round in ensemble.rounds(asked, settings)))
            seconds.append(time.perf_counter() - since)
        assert texts[0] == texts[1], "the floor is the lead's own answer"
        ratios += [seconds[1] / seconds[0]] if at else []  # the first one loads
    return {"over_lead_alone": round(median(ratios), 3)}


def against_itself(size: str) -> dict[str, Any]:
    members = members_of("llama.cpp", size)
    written(members, "Hi!")
    with Bare(members[0].loaded.weights.lib) as bare:
        answer = written(members, TEXTS[100] + " ")
    found = {"over_bare_calls": answer["seconds"] / bare.seconds}
    found["first_over_whole_answers"] = answer["first"] / written(members, TEXTS[100] + "  ", TOKENS)["first"]
    for one in members:
        found[f"over_plain_loop {one.name}"] = over_plain_loop(one)
    settings, ensemble = Settings(max_tokens=48), Ensemble(members)
    since = time.perf_counter()
    for text in EIGHT:
        list(ensemble.rounds(query(question(text + " Alone.")), settings))
    alone_seconds = time.perf_counter() - since
    with Bare(members[0].loaded.weights.lib) as bare:
        since = time.perf_counter()
        together(lambda k: list(ensemble.rounds(query(question(EIGHT[k])), settings)), len(EIGHT))
        seconds = time.perf_counter() - since
    return found | {"eight_at_once": alone_seconds / seconds, "eight_at_once_bare": alone_seconds / bare.seconds}


START = """
import sys
from langchain_specfuse import SpecFuseChatModel, demo_members
for chunk in SpecFuseChatModel(members=demo_members(sys.argv[1]), max_tokens=64).stream("Why is the sky blue?"):
    if chunk.text:
        print("first", flush=True)
"""


def start(size: str) -> dict[str, float]:
    """A process of its own, from its start to its first segment, with the files in the system's cache."""
    since, asked = time.perf_counter(), [sys.executable, "-c", START, size]
    with subprocess.Popen(asked, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        first = time.perf_counter() - since
        process.stdout.read()
        _, _, used = os.wait4(process.pid, 0)
        process.returncode = 0
    return {"first_segment_s": first, "resident_mb": used.ru_maxrss / 1e3}


# --- the call ---------------------------------------------------------------------------------------------------


def apart(*given: str) -> Any:
    """One measurement in a process of its own."""
    command = [sys.executable, __file__, "--only", *given]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def middle(runs: list[dict[str, Any]]) -> dict[str, float]:
    return {key: round(median(run[key] for run in runs), 3) for key in runs[0]}


def main() -> None:
    parser = arguments(__file__, __doc__, repeats=3)
    parser.add_argument("--only", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--large", action="store_true", help="also the 1.5B in transformers: 10 GB, some minutes")
    parser.add_argument("--itself", action="store_true", help="measure again only what compares llama.cpp with itself")
    given = parser.parse_args()
    if given.only:
        what, *more = given.only
        print(
            json.dumps(
                {"engine": against_transformers, "itself": against_itself, "start": start, "floor": floor}[what](*more)
            )
        )
        return
    engines = json.loads(given.out.read_text())[0] if given.itself else about(given) | {"rows": between_engines(given)}
    itself = {size: middle([apart("itself", size) for _ in range(given.repeats)]) for size in ENSEMBLES}
    starts = {size: middle([start(size) for _ in range(given.repeats)]) for size in ENSEMBLES}
    print(itself, starts)
    save(given.out, [engines, about(given) | {"itself": itself, "start": starts}])


def between_engines(given: argparse.Namespace) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for size in ("small", *(["default"] if given.large else [])):
        repeats = given.repeats if size == "small" else 1
        engines = ("llama.cpp", "transformers")
        runs = [{engine: apart("engine", engine, size) for engine in engines} for _ in range(repeats)]
        for at, first in enumerate(runs[0]["llama.cpp"]):
            row: dict[str, Any] = {"ensemble": size, "prompt": first["prompt"], "members": first["members"]}
            for key in ("tokens_per_second", "first"):
                row[key] = {engine: round(median(run[engine][at][key] for run in runs), 3) for engine in engines}
            rows.append(row)
            print(row, flush=True)
    return rows


if __name__ == "__main__":
    main()
