"""Measure what answers cost: every token that members compute, whether it is shown or discarded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from langchain_specfuse.core.member import Probe
from langchain_specfuse.core.values import Draft, DraftJob, Failure, Scored, ScoreJob


@dataclass
class Usage:
    """What one question has cost so far."""

    passes: int = 0
    """Forward passes: one per drafted token, one per scoring."""
    read: int = 0
    """Tokens that went through a model, including those of prompts."""
    prompts: int = 0
    """How many of these were tokens of prompts."""
    requests: int = 0
    """Requests to a chat model."""

    def since(self, before: Usage) -> Usage:
        return Usage(
            self.passes - before.passes,
            self.read - before.read,
            self.prompts - before.prompts,
            self.requests - before.requests,
        )


class Meter:
    """The usage of every question, by the conversation's first message of the user. Only the
    workers' threads write to it, and each question is asked by one caller at a time."""

    def __init__(self) -> None:
        self._by_text: dict[str, Usage] = defaultdict(Usage)
        self._begun: set[tuple[str, str]] = set()

    def of(self, text: str) -> Usage:
        """A copy of the usage so far."""
        return replace(self._by_text[text])

    def request(self, text: str) -> None:
        """Count a request to a chat model."""
        self._by_text[text].requests += 1

    def count(self, name: str, job: DraftJob | ScoreJob, reply: Any) -> None:
        """Count one reply of this member."""
        usage = self._by_text[next(turn.text for turn in job.query.turns if turn.role == "user")]
        effort = getattr(reply, "effort", None)
        if effort is not None:
            usage.read += effort.read
            first = (name, job.query.id)
            if first not in self._begun and effort.prompt:
                self._begun.add(first)
                usage.prompts += max(min(effort.prompt - effort.reused, effort.read), 0)
        if isinstance(reply, Draft):
            usage.passes += max(len(reply.tokens), 1)
        elif isinstance(reply, Scored):
            usage.passes += 1


class Metered:
    """A member whose replies are counted."""

    def __init__(self, member: Any, meter: Meter) -> None:
        self._member, self._meter = member, meter

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._member, name)

    @property
    def name(self) -> str:
        return str(self._member.name)

    @property
    def device(self) -> str:
        return str(self._member.device)

    def probe(self) -> Probe:
        probe: Probe = self._member.probe()
        return probe

    def forget(self, query_id: str) -> None:
        self._member.forget(query_id)

    def draft(self, jobs: Sequence[DraftJob]) -> Sequence[Draft | Failure]:
        return self._counted(jobs, self._member.draft(jobs))

    def score(self, jobs: Sequence[ScoreJob]) -> Sequence[Scored | Failure]:
        return self._counted(jobs, self._member.score(jobs))

    def _counted(self, jobs: Sequence[Any], replies: Sequence[Any]) -> Sequence[Any]:
        for job, reply in zip(jobs, replies, strict=True):
            self._meter.count(self.name, job, reply)
        return replies
