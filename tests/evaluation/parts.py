"""Members with known strengths, and a task of sums."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from langchain_specfuse.core.options import Settings
from langchain_specfuse.core.values import Draft, DraftJob, Failure, Query, Scored, ScoreJob
from langchain_specfuse.evaluation import Plan, Task, alone_and_together, jsonl
from langchain_specfuse.members.scripted import ScriptedMember


class Known(ScriptedMember):
    """A scripted member that is identified by its name, so that a new process finds its results
    again."""

    @property
    def spec(self) -> dict[str, Any]:
        return {"known": self.name}


def sum_of(query: Query) -> int:
    """The sum that is asked for; 0 where something else is asked."""
    words = query.turns[-1].text.split("?")[0].split()
    return int(words[0]) + int(words[2]) if len(words) == 3 and words[1] == "+" else 0


def knows(name: str, right: Callable[[int], bool], confidence: float = 1.0) -> Known:
    """A member that is right about the sums for which this holds."""

    def answer(query: Query) -> str:
        number = sum_of(query)
        return f"The sum is {number if right(number) else number + 1}."

    return Known(answer, name=name, confidence=confidence)


def sums(folder: Path, count: int = 30) -> Task:
    path = folder / "sums.jsonl"
    lines = [
        {"input": f"{first} + {first + 1}?", "reference": str(2 * first + 1)}
        for first in range(count)
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    return jsonl(path, "number")


def plan(task: Task, members: Sequence[Any], **more: Any) -> Plan:
    """Each member alone and all together."""
    by_name = {member.name: member for member in members}
    return Plan(task, alone_and_together(by_name, Settings(max_tokens=64)), by_name, **more)


class Confident(Known):
    """Its log-probabilities are near 0 where it knows the answer; where it does not, it agrees with
    everybody."""

    def __init__(self, name: str, right: Callable[[int], bool]) -> None:
        super().__init__(knows(name, right).answer, name=name)
        self.right = right

    def draft(self, jobs: Sequence[DraftJob]) -> list[Draft | Failure]:
        return [reply for job in jobs for reply in super(Confident, self._at(job)).draft([job])]

    def score(self, jobs: Sequence[ScoreJob]) -> list[Scored | Failure]:
        return [reply for job in jobs for reply in super(Confident, self._at(job)).score([job])]

    def _at(self, job: DraftJob | ScoreJob) -> Confident:
        self.confidence = 3.0 if self.right(sum_of(job.query)) else 0.001
        return self


class Shifted(Known):
    """Returns the scores of another text, like a server that ignores its input."""

    def score(self, jobs: Sequence[ScoreJob]) -> list[Scored | Failure]:
        return [
            Scored(tuple((-2.5,) * max(len(row), 1) for row in reply.logprobs))
            for reply in super().score(jobs)
        ]


class Forgetful(Known):
    """Continues wrongly where it has a cache."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.seen: set[str] = set()

    def draft(self, jobs: Sequence[DraftJob]) -> list[Draft | Failure]:
        replies = [
            Draft(" nonsense", False, (1,), (-9.0,)) if job.query.id in self.seen else draft
            for job, draft in zip(jobs, super().draft(jobs), strict=True)
        ]
        self.seen |= {job.query.id for job in jobs}
        return replies

    def forget(self, query_id: str) -> None:
        self.seen.discard(query_id)
        super().forget(query_id)


class Missing(Known):
    """Cannot be loaded."""

    def probe(self) -> Any:
        raise OSError("no such file")
