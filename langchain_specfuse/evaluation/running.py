"""Asks every system every question, many at once, and keeps each result as soon as it is there.

All questions of a system are under way together (up to ``at_once``), so the desks make batches of them by themselves.
Systems take turns, or one would slow the other's clock. Knows ensembles and rounds; nothing of what results mean.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from dataclasses import dataclass, fields, replace
from typing import Any

from .._version import __version__
from ..core.member import Member
from ..core.values import Query, Round, Settings
from ..engine import desk, task
from ..engine.ensemble import Ensemble
from ..errors import SpecFuseError, UsageError
from .results import Result, Results
from .systems import System
from .tasks import Grade, Question, Task, digest

AT_ONCE = 16
Seen = Callable[[System, int, int], None]
"""Told after every result: which system, how many are done, of how many."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that is to be known: systems x questions x seeds."""

    task: Task
    systems: tuple[System, ...]
    members: Mapping[str, Member]
    seeds: tuple[int, ...] = (0,)
    at_once: int = AT_ONCE
    timeout: float | None = None
    """Seconds for one answer; what takes longer counts as failed."""

    def key(self, system: System, question: Question, seed: int) -> str:
        return digest([self.mark(system), self.task.fingerprint(question), seed])

    def mark(self, system: System) -> str:
        identities = {name: identity(member) for name, member in self.members.items()}
        return digest([__version__, system.name, system.fingerprint(identities)])

    def keys(self, system: System) -> list[tuple[str, Question, int]]:
        mark = self.mark(system)
        return [
            (digest([mark, self.task.fingerprint(question), seed]), question, seed)
            for seed in self.seeds
            for question in self.task.questions
        ]

    def results(self, results: Results) -> list[Result]:
        """What is there of this plan; results of other plans in the same file are left out."""
        return results.found(key for system in self.systems for key, _, _ in self.keys(system))


def identity(member: Member) -> Any:
    """What tells this member's answers from another's, as plain data."""
    spec = getattr(member, "spec", None)
    return [member.name, dict(spec) if isinstance(spec, Mapping) else type(member).__name__]


def run(plan: Plan, results: Results, *, seen: Seen | None = None, again: bool = False) -> list[Result]:
    """Ask what has not been asked, and return all results of the plan. ``again``: failed ones are asked again.

    Answers on which the checker raised are graded anew in any case.
    """
    return asyncio.run(_run(plan, results, seen, again))


async def _run(plan: Plan, results: Results, seen: Seen | None, again: bool) -> list[Result]:
    await _graded_anew(plan, results)
    for system in plan.systems:
        failed = {result.key for result in plan.results(results) if result.error} if again else set()
        asked = plan.keys(system)
        open = [one for one in asked if one[0] not in results or one[0] in failed]
        done = len(asked) - len(open)
        if seen:
            seen(system, done, len(asked))
        if not open:
            continue
        ensemble = Ensemble(
            [plan.members[name] for name in system.members], [plan.members[name] for name in system.verifiers]
        )
        await asyncio.wrap_future(ensemble.loaded())
        await _forgotten(ensemble)
        async with aclosing(_each(_answers(plan, system, ensemble, open))) as answers:
            async for result in answers:
                results.add(result)
                done += 1
                if seen:
                    seen(system, done, len(asked))
    return plan.results(results)


async def _graded_anew(plan: Plan, results: Results) -> None:
    """What the checker raised on: a judge that was away for a while may be back. Nobody is asked for the answer."""
    asked = {key: question for system in plan.systems for key, question, _ in plan.keys(system)}
    open = [result for result in results.found(asked) if result.unchecked]
    room = asyncio.Semaphore(plan.at_once)

    async def one(result: Result) -> Result:
        async with room:
            grade = await asyncio.to_thread(_grade, plan.task, asked[result.key], result.answer)
            return replace(result, **_told(grade))

    async with aclosing(_each([asyncio.ensure_future(one(result)) for result in open])) as graded:
        async for result in graded:
            results.add(result)


async def _each(tasks: Sequence[asyncio.Task[Result]]) -> AsyncGenerator[Result, None]:
    """The results as they come. After a mistake of the caller's the others are stopped: nobody would look at them."""
    try:
        for finished in asyncio.as_completed(tasks):
            yield await finished
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _forgotten(ensemble: Ensemble) -> None:
    """No member knows what it read for another system: that would make this one's clock run slower."""
    for member in ensemble.members.values():
        if drop := getattr(member, "drop_prefixes", None):
            done: Future[Any] = Future()
            done.set_running_or_notify_cancel()
            desk.desk_for(member.device).put(task.Task(member, "call", drop, done.set_result))
            await asyncio.wrap_future(done)


def _answers(
    plan: Plan, system: System, ensemble: Ensemble, asked: Iterable[tuple[str, Question, int]]
) -> Sequence[asyncio.Task[Result]]:
    room = asyncio.Semaphore(plan.at_once)

    async def one(key: str, question: Question, seed: int) -> Result:
        async with room:
            return await _result(plan, system, ensemble, question, seed, key)

    return [asyncio.ensure_future(one(*told)) for told in asked]


async def _result(plan: Plan, system: System, ensemble: Ensemble, question: Question, seed: int, key: str) -> Result:
    settings = _seeded(system.settings, seed)
    query = Query(f"eval-{uuid.uuid4().hex}", question.turns)
    began, since, first = time.time(), time.perf_counter(), None
    rounds: list[Round] = []
    error = ""
    try:
        told = ensemble.arounds(query, settings, prior=system.prior, timeout=plan.timeout)
        async with aclosing(told) as agreed:  # type: ignore[type-var]
            async for round in agreed:
                rounds.append(round)
                if first is None and round.text:
                    first = time.perf_counter() - since
    except (SpecFuseError, TimeoutError) as wrong:
        if isinstance(wrong, UsageError):
            raise
        error = f"{type(wrong).__name__}: {wrong}"
    seconds = time.perf_counter() - since
    answer = "".join(round.text for round in rounds)
    grade = Grade(0.0, note="failed") if error else await asyncio.to_thread(_grade, plan.task, question, answer)
    return Result(
        key=key,
        system=system.name,
        question=question.id,
        seed=seed,
        answer=answer,
        **_told(grade),
        error=error,
        began=began,
        seconds=seconds,
        first_s=first,
        **counted(rounds),
    )


def _told(grade: Grade) -> dict[str, Any]:
    """A grade in the fields of a result."""
    return {field.name: getattr(grade, field.name) for field in fields(Grade)}


def _seeded(settings: Settings, seed: int) -> Settings:
    return replace(settings, sampling=replace(settings.sampling, seed=settings.sampling.seed + seed))


def _grade(task: Task, question: Question, answer: str) -> Grade:
    try:
        return task.grade(question, answer)
    except UsageError:
        raise
    except Exception as error:  # the user's checker, or an answer that it did not expect
        return Grade(0.0, unchecked=f"{type(error).__name__}: {error}")


def counted(rounds: Sequence[Round]) -> dict[str, Any]:
    """What a run's rounds come to, in the fields of a result."""
    by_member: dict[str, dict[str, float]] = {}
    for round in rounds:
        for name in round.members:
            one = by_member.setdefault(name, {"wins": 0, "judged": 0, "reward": 0.0, "left": 0})
            one["wins"] += name == round.winner
            if round.scores and name in round.rewards:
                one["judged"] += 1
                one["reward"] += round.rewards[name]
        for gone in round.left:
            by_member.setdefault(gone.member, {"wins": 0, "judged": 0, "reward": 0.0, "left": 0})["left"] = 1
    several = [round for round in rounds if len(round.drafts) > 1]
    return {
        "finish": (rounds[-1].finish or "") if rounds else "",
        "tokens": sum(len(round.drafts[round.winner].tokens) for round in rounds),
        "rounds": len(rounds),
        "drafting": sum(len(round.drafts) for round in rounds),
        "shared": sum(len({(d.text, d.ended) for d in round.drafts.values()}) == 1 for round in several),
        "open": len(several),
        "looped": sum(bool(round.looped) for round in rounds),
        "members": by_member,
    }
