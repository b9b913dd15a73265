"""What does a round cost a member on a server? Real engines on this machine, with the demo's SmolLM2.

A draft of ten tokens and a vote on three drafts, behind a short and a long prompt, each the median of several: in
all, and how much of that was not the engine's own work on the model (tokens and text, and what HTTP takes is measured
by an empty question). With the tokenizer here, and with the server's.

    SPECFUSE_LLAMA_SERVER=... SPECFUSE_VLLM_PYTHON=... python benchmarks/serving.py [--repeats 5]

An engine that cannot be had is left out, with a line that says so; without any, the results are left as they are.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from latency import NOTES, machine  # noqa: E402

from langchain_specfuse.core.values import Candidate, Draft, DraftJob, Failure, Query, Sampling, ScoreJob, Segment, Turn  # noqa: E402
from langchain_specfuse.members.server import ServerMember  # noqa: E402
from tests.members import engines  # noqa: E402

DRAFTS = (
    " The light could be seen from thirty kilometres away.",
    " It had no keeper.",
    " A Frenchman ground lenses out of rings of glass.",
)
LENGTHS = (300, 1500)


def question(words: int) -> str:
    """About so many words of notes, and what to do with them."""
    return " ".join((NOTES.split() * 20)[:words]) + "\n\nTell the story of these lighthouses."


class Watched:
    """Counts questions and the time that they take, without the tokenizer's."""

    def __init__(self, member: ServerMember) -> None:
        self.asked: dict[str, int] = {}
        self.engine_s = 0.0
        wire = member._wire
        assert wire is not None
        self._post = wire.post
        wire.post = self.post  # type: ignore[method-assign]

    def post(self, path: str, body: Any, final: Any = ()) -> Any:
        since = time.perf_counter()
        told = self._post(path, body, final)
        self.asked[path] = self.asked.get(path, 0) + 1
        if "complet" in path or "generate" in path:
            self.engine_s += time.perf_counter() - since
        return told


def measured(work: Callable[[int], Any], watched: Watched, repeats: int) -> dict[str, Any]:
    """Medians in milliseconds, and questions a call."""
    whole, inside, tokens = [], [], []
    watched.asked.clear()
    for turn in range(repeats):
        watched.engine_s = 0.0
        since = time.perf_counter()
        (reply,) = work(turn)
        whole.append(1000 * (time.perf_counter() - since))
        inside.append(1000 * watched.engine_s)
        assert not isinstance(reply, Failure), reply
        tokens.append(len(reply.tokens) if isinstance(reply, Draft) else sum(map(len, reply.logprobs)))
    beside = [all_ - engine for all_, engine in zip(whole, inside, strict=True)]
    return {
        "tokens": round(statistics.mean(tokens), 1),
        "ms": round(statistics.median(whole), 1),
        "beside_ms": round(statistics.median(beside), 1),
        "questions": {path: round(count / repeats, 1) for path, count in watched.asked.items()},
    }


def of(member: ServerMember, length: int, repeats: int) -> dict[str, Any]:
    """A draft and a vote behind a prompt of about this many tokens, which a warm cache holds."""
    member.probe()
    watched = Watched(member)
    query = Query(f"q{length}", (Turn("user", question(int(length / 1.35))),))
    answers = [(Segment(f"Long ago, in the year {turn + 200}, the first of these"),) for turn in range(repeats)]

    def draft(turn: int) -> Any:
        return member.draft([DraftJob(query, answers[turn], 10, 10, Sampling())])

    def vote(turn: int) -> Any:
        candidates = tuple(Candidate(text, False, ("x",)) for text in DRAFTS)
        return member.score([ScoreJob(query, answers[turn], candidates)])

    draft(0)
    vote(0)
    empty = []
    for _ in range(20):
        since = time.perf_counter()
        member._wire.get("/v1/models")  # type: ignore[union-attr]
        empty.append(1000 * (time.perf_counter() - since))
    told = {"draft": measured(draft, watched, repeats), "vote": measured(vote, watched, repeats)}
    return {"prompt": member.token_count(query.turns), "http_ms": round(statistics.median(empty), 2), **told}


def results(repeats: int) -> list[dict[str, Any]]:
    found = []
    for engine, program in engines.FOUND.items():
        if program() is None:
            print(f"{engine} is left out: {engines.MISSING[engine]}")
            continue
        with tempfile.TemporaryDirectory() as logs, engines.running(engine, Path(logs) / "log") as one:
            for tokenizer in ("local", "server"):
                for length in LENGTHS:
                    own = engines.folder() if tokenizer == "local" else None
                    member = ServerMember(one.url, engines.MODEL, tokenizer=own)
                    told = of(member, length, repeats)
                    member.unload()
                    found.append({"engine": engine, "tokenizer": tokenizer, "machine": machine(), **told})
                    print(json.dumps(found[-1]))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--repeats", type=int, default=5)
    told = results(parser.parse_args().repeats)
    if told:
        Path(__file__).with_suffix(".json").write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
