"""From results to a report: a row per system, and comparisons with the best member and the
ensemble."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from .._version import __version__
from .results import Result
from .running import Plan
from .statistics import (
    LEVEL,
    AgainstBest,
    Interval,
    against_best,
    counted,
    difference,
    interval,
    mcnemar,
    needed,
)
from .systems import ENSEMBLE, ORACLE, ROUTER, System

Scores = Mapping[str, float]
"""question -> score."""


@dataclass(frozen=True, slots=True)
class Row:
    """One system's numbers."""

    system: str
    questions: int
    score: Interval
    failed: int = 0
    empty: int = 0
    tokens_per_second: float | None = None
    first_s: float | None = None
    seconds: float = 0.0
    """During which at least one question was under way."""
    rounds: float | None = None
    tokens: float | None = None
    passes: float | None = None
    """Forward passes of all members, per answer."""
    work_s: float | None = None
    """Seconds that the members computed, per answer."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One system against another on the same questions.

    Where several are compared with the ensemble, the intervals together hold at the level of
    confidence; ``p`` is that of this pair alone.
    """

    system: str
    other: str
    apart: Interval
    p: float


@dataclass(frozen=True, slots=True)
class Report:
    """What a plan's results say: a row per system, and which is better."""

    task: str
    measure: str
    questions: int
    rows: tuple[Row, ...]
    best: Mapping[str, AgainstBest]
    """system -> against the best single member."""
    comparisons: tuple[Comparison, ...]
    needed: int | None
    """About this many questions would show a difference of five points between ensemble and best
    single member."""
    seeds: tuple[int, ...]
    about: Mapping[str, Any] = field(default_factory=dict)
    """Version, settings, members: what is needed to repeat it."""

    def row(self, system: str) -> Row | None:
        return next((row for row in self.rows if row.system == system), None)

    def as_dict(self) -> dict[str, Any]:
        """The report as plain JSON."""
        return asdict(self) | {"verdicts": {name: one.verdict for name, one in self.best.items()}}


def summary(plan: Plan, results: Sequence[Result]) -> Report:
    """The report of a plan, from the results that exist."""
    by_system = grouped(results)
    systems = [system for system in plan.systems if by_system[system.name]]
    scores = {system.name: scores_of(by_system[system.name]) for system in systems}
    rows = [_row(system, by_system[system.name], scores[system.name]) for system in systems]
    single = {s.name: scores[s.name] for s in systems if s.alone and s.name in s.members}
    others = [s.name for s in systems if s.name not in single]
    comparisons: list[Comparison] = []
    if len(single) > 1:
        best_of = [max(scored) for scored in zip(*common(*single.values()), strict=True)]
        rows.append(Row(ORACLE, len(best_of), interval(best_of)))
        if routed := _router(
            single, {question.id: question.facts.get("kind") for question in plan.task.questions}
        ):
            rows.append(Row(ROUTER, len(routed), interval(routed)))
    if ENSEMBLE in others:
        rest = [name for name in others if name != ENSEMBLE]
        level = 1 - (1 - LEVEL) / max(len(rest), 1)
        comparisons += [
            _compared(name, scores[name], ENSEMBLE, scores[ENSEMBLE], level) for name in rest
        ]
    best = {
        name: found
        for name in others
        if (found := _against_singles(scores[name], single, len(others)))
    }
    return Report(
        task=plan.task.name,
        measure=plan.task.measure,
        questions=len(plan.task.questions),
        rows=tuple(rows),
        best=best,
        comparisons=tuple(comparisons),
        needed=needed(differences(scores[ENSEMBLE], single[best[ENSEMBLE].best]))
        if ENSEMBLE in best
        else None,
        seeds=plan.seeds,
        about=_about(plan),
    )


def grouped(results: Sequence[Result]) -> Mapping[str, list[Result]]:
    """system -> its results."""
    by_system: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        by_system[result.system].append(result)
    return by_system


def scores_of(results: Sequence[Result]) -> dict[str, float]:
    """question -> score, the mean over seeds."""
    by_question: dict[str, list[float]] = defaultdict(list)
    for result in results:
        by_question[result.question].append(result.score)
    return {question: math.fsum(scores) / len(scores) for question, scores in by_question.items()}


def common(*scores: Scores) -> list[list[float]]:
    """The scores on the questions that all have answered."""
    questions = [question for question in scores[0] if all(question in one for one in scores[1:])]
    return [[one[question] for question in questions] for one in scores]


def _compared(name: str, mine: Scores, other: str, theirs: Scores, level: float) -> Comparison:
    first, second = common(mine, theirs)
    return Comparison(
        name, other, difference(first, second, level=level), mcnemar(*counted(first, second))
    )


def _router(single: Mapping[str, Scores], kinds: Mapping[str, Any]) -> list[float]:
    """Each question's score by the member that is best on the *other* questions of its kind; empty
    without kinds."""
    known = [
        one
        for one in kinds
        if kinds[one] is not None and all(one in scores for scores in single.values())
    ]
    routed = []
    for question in known:
        others = [one for one in known if kinds[one] == kinds[question] and one != question]
        best = max(single, key=lambda name: math.fsum(single[name][one] for one in others))
        routed.append(single[best][question])
    return routed


def _against_singles(
    scores: Scores, single: Mapping[str, Scores], systems: int
) -> AgainstBest | None:
    if not single:
        return None
    mine, *theirs = common(scores, *single.values())
    return against_best(mine, dict(zip(single, theirs, strict=True)), systems) if mine else None


def differences(scores: Scores, others: Scores) -> list[float]:
    """``scores`` minus ``others``, for each question that both have answered."""
    return [a - b for a, b in zip(*common(scores, others), strict=True)]


def _row(system: System, results: Sequence[Result], scores: Scores) -> Row:
    seconds = _busy_s(results)
    firsts = sorted(result.first_s for result in results if result.first_s is not None)
    tokens = sum(result.tokens for result in results)
    return Row(
        system.name,
        len(scores),
        interval(list(scores.values())),
        failed=sum(bool(result.error) for result in results),
        empty=sum(not result.error and not result.answer.strip() for result in results),
        tokens_per_second=tokens / seconds if seconds > 0 else None,
        first_s=firsts[len(firsts) // 2] if firsts else None,
        seconds=seconds,
        rounds=sum(r.rounds for r in results) / len(results),
        tokens=tokens / len(results),
        passes=sum(r.passes for r in results) / len(results),
        work_s=math.fsum(r.work_s for r in results) / len(results),
    )


def _busy_s(results: Sequence[Result]) -> float:
    """Seconds in which at least one answer was under way, also where a run was stopped and
    continued."""
    whole, until = 0.0, -math.inf
    for began, ended in sorted((r.began, r.began + r.seconds) for r in results):
        whole += max(0.0, ended - max(began, until))
        until = max(until, ended)
    return whole


def _about(plan: Plan) -> dict[str, Any]:
    systems = {}
    for system in plan.systems:
        settings = system.settings.model_dump()
        prior = dict(system.prior) if system.prior else None
        systems[system.name] = {**asdict(system), "settings": settings, "prior": prior}
        method = settings["method"]
        # JSON has no infinity
        method["margin"] = "inf" if method["margin"] == math.inf else method["margin"]
    return {
        "version": __version__,
        "at_once": plan.at_once,
        "members": {
            name: dict(getattr(member, "spec", {})) for name, member in plan.members.items()
        },
        "systems": systems,
    }
