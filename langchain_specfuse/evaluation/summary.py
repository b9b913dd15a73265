"""From results to a report: a row per system, comparisons with the best single member and with the oracle.

Knows results and statistics; how a report looks is for ``report`` and ``page``.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from .._version import __version__
from .results import Result
from .running import Plan
from .statistics import LEVEL, AgainstBest, Interval, against_best, difference, interval, needed, paired
from .systems import ENSEMBLE, ORACLE, System
from .tasks import Task


@dataclass(frozen=True, slots=True)
class Row:
    """One system's numbers."""

    system: str
    questions: int
    score: Interval
    alone: bool = False
    failed: int = 0
    empty: int = 0
    unchecked: int = 0
    """Answers on which the checker raised: nobody knows whether they are right; they count as wrong."""
    raised: str = ""
    """What the checker raised on the first of them."""
    followed: float | None = None
    """Share of all parts of all questions that were done (IFEval: instruction level)."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    tokens_per_second: float | None = None
    first_s: float | None = None
    seconds: float = 0.0
    """During which at least one question was under way."""
    rounds: float | None = None
    tokens: float | None = None
    members_per_round: float | None = None
    shared: float | None = None
    """Of the rounds with several members, the share in which their drafts coincided."""
    looped: float | None = None
    wins: Mapping[str, float] = field(default_factory=dict)
    """member -> share of the rounds that it won."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    """member -> mean reward in the rounds with a vote."""
    by_part: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """kind of part -> (done, asked)."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One system against another on the same questions. Where several are compared with the ensemble, each interval
    is as wide as makes all of them together hold at the level of confidence; ``p`` is of this pair alone."""

    system: str
    other: str
    apart: Interval
    p: float


@dataclass(frozen=True, slots=True)
class Report:
    """What a plan's results say: a row per system, and who is better than whom."""

    task: str
    measure: str
    questions: int
    graded: bool
    rows: tuple[Row, ...]
    best: Mapping[str, AgainstBest]
    """system -> against the best single member."""
    comparisons: tuple[Comparison, ...]
    needed: int | None
    """About so many questions would show a difference of five points between ensemble and best single member."""
    seeds: tuple[int, ...]
    about: Mapping[str, Any] = field(default_factory=dict)
    """Version, settings, members: what one must know to make it again."""

    def row(self, system: str) -> Row | None:
        return next((row for row in self.rows if row.system == system), None)

    def as_dict(self) -> dict[str, Any]:
        """The report as plain JSON."""
        return asdict(self) | {"verdicts": {name: told.verdict for name, told in self.best.items()}}


def summary(plan: Plan, results: Sequence[Result]) -> Report:
    """The report of a plan, from what is there of it."""
    by_system: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        by_system[result.system].append(result)
    systems = [system for system in plan.systems if by_system[system.name]]
    scores = {system.name: scores_of(by_system[system.name]) for system in systems}
    rows = [_row(s, by_system[s.name], scores[s.name], plan.task) for s in systems]
    single = {s.name: scores[s.name] for s in systems if s.alone and s.name in s.members}
    others = [s.name for s in systems if s.name not in single]
    if any(result.unchecked for result in results):  # who is better, nobody knows
        single, others = {}, []
    comparisons: list[Comparison] = []
    if len(single) > 1:
        best_of_each = _oracle(single)
        rows.append(Row(ORACLE, len(best_of_each), interval(list(best_of_each.values()), graded=None)))
        comparisons += [_compared(name, scores[name], ORACLE, best_of_each) for name in others]
    if ENSEMBLE in others:
        rest = [name for name in others if name != ENSEMBLE]
        level = 1 - (1 - LEVEL) / max(len(rest), 1)
        comparisons += [_compared(name, scores[name], ENSEMBLE, scores[ENSEMBLE], level) for name in rest]
    best = {name: told for name in others if (told := _against_singles(scores[name], single))}
    return Report(
        task=plan.task.name,
        measure=plan.task.measure,
        questions=len(plan.task.questions),
        graded=plan.task.graded or any(0.0 < one < 1.0 for told in scores.values() for one in told.values()),
        rows=tuple(rows),
        best=best,
        comparisons=tuple(comparisons),
        needed=_needed(scores.get(ENSEMBLE), single, best.get(ENSEMBLE)),
        seeds=plan.seeds,
        about=_about(plan),
    )


def scores_of(results: Sequence[Result]) -> dict[str, float]:
    """question -> score, the mean over seeds."""
    by_question: dict[str, list[float]] = defaultdict(list)
    for result in results:
        by_question[result.question].append(result.score)
    return {question: math.fsum(scores) / len(scores) for question, scores in by_question.items()}


def _oracle(single: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    common = set.intersection(*(set(scores) for scores in single.values()))
    first = next(iter(single.values()))
    return {question: max(scores[question] for scores in single.values()) for question in first if question in common}


def _paired(*told: Mapping[str, float]) -> list[list[float]]:
    """The scores on the questions that all have answered."""
    common = [question for question in told[0] if all(question in one for one in told[1:])]
    return [[one[question] for question in common] for one in told]


def _compared(
    name: str,
    one: Mapping[str, float],
    other: str,
    theirs: Mapping[str, float],
    level: float = LEVEL,
) -> Comparison:
    first, second = _paired(one, theirs)
    apart = difference(first, second, level=level, graded=None)
    return Comparison(name, other, apart, paired(first, second))


def _against_singles(scores: Mapping[str, float], single: Mapping[str, Mapping[str, float]]) -> AgainstBest | None:
    if not single:
        return None
    mine, *theirs = _paired(scores, *single.values())
    return against_best(mine, dict(zip(single, theirs, strict=True)), graded=None) if mine else None


def _needed(
    scores: Mapping[str, float] | None, single: Mapping[str, Mapping[str, float]], best: AgainstBest | None
) -> int | None:
    if scores is None or best is None:
        return None
    mine, theirs = _paired(scores, single[best.best])
    return needed([a - b for a, b in zip(mine, theirs, strict=True)])


def _row(system: System, results: Sequence[Result], scores: Mapping[str, float], task: Task) -> Row:
    parts: Counter[str] = Counter()
    done: Counter[str] = Counter()
    wins: Counter[str] = Counter()
    judged: Counter[str] = Counter()
    reward: dict[str, float] = defaultdict(float)
    for result in results:
        for part, good in result.parts.items():
            parts[part.partition("#")[0]] += 1
            done[part.partition("#")[0]] += good
        for member, told in result.members.items():
            wins[member] += int(told["wins"])
            judged[member] += int(told["judged"])
            reward[member] += told["reward"]
    busy = _busy(results)
    rounds, open = sum(r.rounds for r in results), sum(r.open for r in results)
    firsts = sorted(result.first_s for result in results if result.first_s is not None)
    tokens = sum(result.tokens for result in results)
    return Row(
        system.name,
        len(scores),
        interval(list(scores.values()), graded=None),
        alone=system.alone,
        failed=sum(bool(result.error) for result in results),
        empty=sum(not result.error and not result.answer.strip() for result in results),
        unchecked=sum(bool(result.unchecked) for result in results),
        raised=next((result.unchecked for result in results if result.unchecked), ""),
        followed=sum(done.values()) / sum(parts.values()) if parts else None,
        numbers=_numbers(results) | _corpus(task, results),
        tokens_per_second=tokens / busy if busy > 0 else None,
        first_s=firsts[len(firsts) // 2] if firsts else None,
        seconds=busy,
        rounds=rounds / len(results),
        tokens=tokens / len(results),
        members_per_round=sum(r.drafting for r in results) / rounds if rounds else None,
        shared=sum(r.shared for r in results) / open if open else None,
        looped=sum(r.looped for r in results) / rounds if rounds else None,
        wins={member: count / rounds for member, count in wins.items()} if rounds else {},
        rewards={member: reward[member] / judged[member] for member in wins if judged[member]},
        by_part={part: (done[part], parts[part]) for part in sorted(parts)},
    )


def _numbers(results: Sequence[Result]) -> dict[str, float]:
    """The means of all other measures; a failed answer has none of them: it counts as 0."""
    names = sorted({name for result in results for name in result.numbers})
    return {name: math.fsum(r.numbers.get(name, 0.0) for r in results) / len(results) for name in names}


def _corpus(task: Task, results: Sequence[Result]) -> dict[str, float]:
    by_id = {question.id: question for question in task.questions}
    return dict(task.corpus([(by_id[r.question], r.answer) for r in results])) if task.corpus else {}


def _busy(results: Sequence[Result]) -> float:
    """Seconds in which at least one answer was under way: also right for a run that was stopped and went on."""
    whole, until = 0.0, -math.inf
    for began, ended in sorted((r.began, r.began + r.seconds) for r in results):
        whole += max(0.0, ended - max(began, until))
        until = max(until, ended)
    return whole


def _about(plan: Plan) -> dict[str, Any]:
    return {
        "version": __version__,
        "at_once": plan.at_once,
        "members": {name: dict(getattr(member, "spec", {})) for name, member in plan.members.items()},
        "systems": {
            system.name: {
                "members": list(system.members),
                "verifiers": list(system.verifiers),
                "prior": dict(system.prior) if system.prior else None,
                "settings": asdict(system.settings),
            }
            for system in plan.systems
        },
    }
