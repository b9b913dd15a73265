"""Are these members good together? Examines each, measures each alone and together, and says what follows.

Asks at least 20 prompts; what they cannot tell, it says that they cannot. How it is worded is in ``advice``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..core.member import Member
from ..core.values import Settings
from ..errors import UsageError, advised, amount
from .advice import Advice, advice
from .checks import BAD, Finding, examined, loaded
from .priors import learned
from .results import Result, Results
from .running import Plan, Seen, run
from .summary import Report, summary
from .systems import ENSEMBLE, System, singles
from .tasks import Task

FEWEST = 20
WITH_PRIOR = "ensemble with prior"
WITHOUT = "without "


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What the doctor found, measured and advises."""

    findings: tuple[Finding, ...]
    report: Report | None
    """None: no member could be loaded."""
    advice: Advice
    prior: Mapping[str, float]
    """For the chat model's ``prior=``, 1 being neutral; empty where there is nothing to weigh."""
    results: tuple[Result, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The diagnosis as plain JSON."""
        return {
            "verdict": self.advice.verdict,
            "advice": list(self.advice.lines),
            "prior": dict(self.prior),
            "findings": [
                {"member": f.member, "check": f.check, "verdict": f.verdict, "text": f.text} for f in self.findings
            ],
            "report": self.report.as_dict() if self.report else None,
        }


def checked_task(task: Task) -> Task:
    """The task, if it has prompts enough."""
    if len(task.questions) < FEWEST:
        error = UsageError(f"the doctor needs at least {FEWEST} prompts, got {len(task.questions)}")
        raise advised(error, "more prompts, more certainty: 100 tell more than 20; or take the built-in ones")
    return task


def systems_of(members: Sequence[str], settings: Settings) -> list[System]:
    """Each alone, all together, and of three and more all but one."""
    if len(members) < 2:
        return singles(members, settings)
    whole = System(ENSEMBLE, tuple(members), settings)
    less = [
        replace(whole, name=WITHOUT + name, members=tuple(one for one in members if one != name)) for name in members
    ]
    return [*singles(members, settings), whole, *(less if len(members) > 2 else [])]


def answers_of(members: int, questions: int) -> int:
    """How many answers the whole takes."""
    systems = members if members < 2 else members + 2 + (members if members > 2 else 0)
    return systems * questions


def diagnosed(
    task: Task,
    members: Mapping[str, Member],
    settings: Settings,
    results: Results,
    *,
    seen: Seen | None = None,
    at_once: int = 16,
    timeout: float | None = None,
) -> Diagnosis:
    """Examine, measure and advise. ``results`` keeps what was measured: a run that was stopped goes on."""
    checked_task(task)
    findings: list[Finding] = []
    fit: dict[str, Member] = {}
    for name, member in members.items():
        probe, finding = loaded(member)
        findings.append(finding)
        if probe is not None:
            fit[name] = member
            findings += examined(member, probe)
    if not fit:
        return Diagnosis(tuple(findings), None, Advice("none", ("No member could be loaded.",)), {})
    plan = Plan(task, tuple(systems_of(list(fit), settings)), fit, at_once=at_once, timeout=timeout)
    found = run(plan, results, seen=seen)
    findings += _endings(found, list(fit))
    prior = prior_of(found, list(fit), task)
    if len(fit) > 1 and any(weight != 1.0 for weight in prior.values()):
        found = [*found, *_with_prior(plan, found, results, seen)]
        plan = replace(plan, systems=(*plan.systems, System(WITH_PRIOR, tuple(fit), settings)))
    report = summary(plan, found)
    bad = sorted({finding.member for finding in findings if finding.verdict == BAD})
    return Diagnosis(tuple(findings), report, advice(report, list(fit), bad, task), prior, tuple(found))


def prior_of(found: Sequence[Result], members: Sequence[str], task: Task) -> dict[str, float]:
    """Starting weights from the members' own answers and from the ensemble's votes."""
    if len(members) < 2 or any(result.unchecked for result in found):
        return {}
    right = {name: [result.score for result in found if result.system == name] for name in members}
    judged: dict[str, float] = defaultdict(float)
    reward: dict[str, float] = defaultdict(float)
    for result in found:
        for name, told in result.members.items() if result.system == ENSEMBLE else ():
            judged[name] += told["judged"]
            reward[name] += told["reward"]
    return learned(
        {name: (sum(scores), len(scores)) if task.judges else (0.0, 0) for name, scores in right.items()},
        {name: (reward[name], int(judged[name])) for name in members},
    )


def _with_prior(plan: Plan, found: Sequence[Result], results: Results, seen: Seen | None) -> list[Result]:
    """The ensemble with learned weights, each half of the questions with those learned on the other half: weights that
    are tried on what they were learned from look better than they are."""
    whole = next(system for system in plan.systems if system.name == ENSEMBLE)
    told: list[Result] = []
    for half in (0, 1):
        own = tuple(question for at, question in enumerate(plan.task.questions) if at % 2 == half)
        ids = {question.id for question in own}
        others = [result for result in found if result.question not in ids]
        system = replace(whole, name=WITH_PRIOR, prior=prior_of(others, whole.members, plan.task))
        part = replace(plan, task=replace(plan.task, questions=own), systems=(system,))
        told += run(part, results, seen=seen and _shifted(seen, len(told), len(plan.task.questions)))
    return told


def _shifted(seen: Seen, before: int, count: int) -> Seen:
    return lambda system, done, _: seen(system, before + done, count)


def _endings(found: Sequence[Result], members: Sequence[str]) -> list[Finding]:
    """Whether answers end by themselves, from the answers of each member alone."""
    findings = []
    for name in members:
        own = [result for result in found if result.system == name and not result.error]
        if not own:
            findings.append(Finding(name, "answers", BAD, "no answer without an error"))
            continue
        ended = sum(result.finish != "length" for result in own)
        empty = sum(not result.answer.strip() for result in own)
        end = "ends by itself" if ended == 1 else "end by themselves"
        are = "is" if empty == 1 else "are"
        text = f"{ended} of {amount(len(own), 'answer')} {end}" + (f", {empty} {are} empty" if empty else "")
        verdict = "watch" if 2 * ended < len(own) or 10 * empty > len(own) else "good"
        findings.append(Finding(name, "answers", verdict, text))
    return findings
