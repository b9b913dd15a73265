"""What does a member behind a Ray actor cost more than one in this process? A real cluster of two nodes, here.

The hosted member notes how long each call took in its own process; the rest of what the caller waited for is Ray: the
jobs packed, sent, unpacked, and the replies the same way back. A member that does nothing (a scripted one) and
SmolLM2 with its real work, on the caller's node and on the other one, one job a call and twenty with a long answer
behind them; in turn with the same call in this process, whose replies they are compared with. Restarts: from the death
of a process to the reply of the one in its place.

    python benchmarks/ray_calls.py [--calls 200] [--slow-calls 20]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from latency import NOTES, machine  # noqa: E402

from langchain_specfuse import RayMember, ScriptedMember, demo_members  # noqa: E402
from langchain_specfuse.core.values import Draft, DraftJob, Query, Sampling, Segment, Turn  # noqa: E402
from langchain_specfuse.members.transformers import TransformersMember  # noqa: E402
from tests.members import clusters  # noqa: E402

MOST_MS = 3.0
"""What a call may cost more than a local one."""
NODES = {"caller's": {"node:" + clusters.HEAD: 0.01}, "other": {"other": 0.01}}
SHAPES = ((1, 0, 20), (1, 30, 300), (20, 30, 300))
"""Jobs a call, segments that are agreed, words of the question."""
WORDS = " ".join(f"word{k}" for k in range(1000))


class Timed:
    """A member that notes how long its last call took."""

    def __init__(self, member: Any) -> None:
        self._member = member
        self.name, self.device = member.name, "timed"
        self._seconds = 0.0

    def probe(self) -> Any:
        return self._member.probe()

    def draft(self, jobs: Sequence[DraftJob]) -> Any:
        since = time.perf_counter()
        replies = self._member.draft(jobs)
        self._seconds = time.perf_counter() - since
        return replies

    score = draft

    def forget(self, query_id: str) -> None:
        self._member.forget(query_id)

    def token_count(self) -> float:
        """Asked through the one door that leads to a member's other methods."""
        return self._seconds


def jobs_of(count: int, segments: int, words: int, number: int) -> list[DraftJob]:
    """Jobs of ``count`` queries, each with a question of so many words and an answer of so many segments."""
    answer = tuple(Segment(f" {WORDS.split()[k]} and so on", tokens={"ann": tuple(range(10))}) for k in range(segments))
    turns = (Turn("user", " ".join((NOTES.split() * 20)[:words]) + "\n\nTell the story."),)
    return [DraftJob(Query(f"q{number}-{k}", turns), answer, 10, 512, Sampling()) for k in range(count)]


def waited(call: Callable[[], Any]) -> tuple[float, Any]:
    since = time.perf_counter()
    told = call()
    return time.perf_counter() - since, told


def measured(there: RayMember, here: Any, shape: tuple[int, int, int], calls: int) -> dict[str, Any]:
    """Calls of this shape, in turn in both places; the first two warm up."""
    beside, whole, local = [], [], []
    for number in range(calls + 2):
        jobs = jobs_of(*shape, number)
        spent, told = waited(lambda: there.draft(jobs))  # noqa: B023
        inside = there.token_count()
        own_s, own = waited(lambda: here.draft(jobs))  # noqa: B023
        assert [plain(one) for one in told] == [plain(one) for one in own], "Ray changed a reply"
        whole, local, beside = [*whole, spent], [*local, own_s], [*beside, spent - inside]
        for job in jobs:
            there.forget(job.query.id)
            here.forget(job.query.id)
        time.sleep(0.002)  # forgetting is no part of the next call
    return {
        "jobs": shape[0],
        "segments": shape[1],
        "words": shape[2],
        "calls": calls,
        "ms": _ms(whole[2:]),
        "local_ms": _ms(local[2:]),
        "more_ms": _ms(beside[2:]),
        "more_ms_p25": round(1e3 * sorted(beside[2:])[int(0.25 * calls)], 3),
        "more_ms_p95": round(1e3 * sorted(beside[2:])[int(0.95 * calls)], 3),
    }


def plain(reply: Any) -> tuple[str, bool]:
    assert isinstance(reply, Draft), reply
    return reply.text, reply.ended


def _ms(seconds: Sequence[float]) -> float:
    return round(1e3 * statistics.median(seconds), 3)


def restarts(member: RayMember, count: int) -> list[float]:
    """Seconds from a death in the middle of nothing to the reply of the process that took over, loading and all."""
    found = []
    for number in range(count):
        (job,) = jobs_of(1, 2, 20, number)
        os.kill(member.places[0][1], signal.SIGKILL)
        spent, (told,) = waited(lambda: member.draft([job]))  # noqa: B023
        assert isinstance(told, Draft)
        found.append(round(spent, 2))
    return found


def run(calls: int, slow_calls: int) -> list[dict[str, Any]]:
    smol = demo_members()[0].source.model
    scripted = lambda: ScriptedMember(WORDS, name="ann")
    hosted = lambda: TransformersMember(smol, name="ann", dtype="float32")
    found = []
    with clusters.running() as cluster:
        for name, make, node, shapes, count in (
            ("nothing", scripted, "caller's", SHAPES, calls),
            ("nothing", scripted, "other", SHAPES, calls),
            ("SmolLM2", hosted, "other", SHAPES[:1], slow_calls),
        ):
            there = RayMember(Timed(make()), cluster=cluster.address, resources=NODES[node])
            there.probe()
            here = make()
            here.probe()
            about = {"member": name, "node": node}
            rows = [about | measured(there, here, shape, count) for shape in shapes]
            found += [*rows, about | {"restart_s": restarts(there, 3)}]
            there.unload()
            print(*found[-len(rows) - 1 :], sep="\n", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--slow-calls", type=int, default=8)
    told = parser.parse_args()
    if not clusters.installed():
        print(clusters.MISSING)
        return
    about = {"machine": machine(), "ray": metadata.version("ray"), "most_ms": MOST_MS}
    results = [
        about | one | ({"kept": one["more_ms"] <= MOST_MS} if "more_ms" in one else {})
        for one in run(told.calls, told.slow_calls)
    ]
    Path(__file__).with_suffix(".json").write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
