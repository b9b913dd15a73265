"""What does a round cost a member on a server? Real engines on this machine, with the demo's SmolLM2.

A draft of ten tokens and a vote on three drafts, behind a short and a long prompt, each the median of several: in all,
and how much of that was not the engine's own work on the model (tokens, text and HTTP; what HTTP alone takes is
measured with an empty request). With the tokenizer here, and with the server's.

    SPECFUSE_LLAMA_SERVER=... SPECFUSE_VLLM_PYTHON=... python benchmarks/serving.py [--repeats 5]

An engine that is not installed is left out, with a line that says so; without any, the results stay as they are.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import mean, median
from typing import Any

from common import NOTES, about, arguments, http_requests, query, question, round_trip, save

from langchain_specfuse import ServerMember
from langchain_specfuse.core.values import Candidate, Draft, DraftJob, Failure, Sampling, ScoreJob, Segment

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.members import engines

DRAFTS = (
    " The light could be seen from thirty kilometres away.",
    " It had no keeper.",
    " A Frenchman ground lenses out of rings of glass.",
)
CANDIDATES = tuple(Candidate(text, False, ("x",)) for text in DRAFTS)
LENGTHS = (300, 1500)


def measured(work: Callable[[int], Any], repeats: int) -> dict[str, Any]:
    """Medians in milliseconds, and requests per call."""
    whole, beside, tokens = [], [], []
    with http_requests() as requests:
        for turn in range(repeats):
            before, since = len(requests), time.perf_counter()
            (reply,) = work(turn)
            whole.append(1000 * (time.perf_counter() - since))
            assert not isinstance(reply, Failure), reply
            mine = [one for one in requests[before:] if "complet" in one[0] or "generate" in one[0]]
            beside.append(whole[-1] - 1000 * sum(end - began for _, _, began, end in mine))
            tokens.append(len(reply.tokens) if isinstance(reply, Draft) else sum(map(len, reply.logprobs)))
    paths = [path for path, *_ in requests]
    return {
        "tokens": round(mean(tokens), 1),
        "ms": round(median(whole), 1),
        "beside_ms": round(median(beside), 1),
        "questions": {path: round(paths.count(path) / repeats, 1) for path in dict.fromkeys(paths)},
    }


def of(member: ServerMember, url: str, length: int, repeats: int) -> dict[str, Any]:
    """A draft and a vote behind a prompt of about this many tokens, which a warm cache holds."""
    member.probe()
    words = (NOTES.split() * 20)[: int(length / 1.35)]
    asked = query(question(" ".join(words) + "\n\nTell the story of these lighthouses."))
    answers = [(Segment(f"Long ago, in the year {turn + 200}, the first of these"),) for turn in range(repeats)]

    def draft(turn: int) -> Any:
        return member.draft([DraftJob(asked, answers[turn], 10, 10, Sampling())])

    def vote(turn: int) -> Any:
        return member.score([ScoreJob(asked, answers[turn], CANDIDATES)])

    draft(0)
    vote(0)
    found = {"draft": measured(draft, repeats), "vote": measured(vote, repeats)}
    return {"prompt": member.token_count(asked.turns), "http_ms": round(1000 * round_trip(url), 2), **found}


def main() -> None:
    given = arguments(__file__, __doc__, repeats=5).parse_args()
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
                    found.append({"engine": engine, "tokenizer": tokenizer, **about(given)})
                    found[-1] |= of(member, one.url, length, given.repeats)
                    member.unload()
                    print(json.dumps(found[-1]), flush=True)
    if found:
        save(given.out, found)


if __name__ == "__main__":
    main()
