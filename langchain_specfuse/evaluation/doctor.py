"""Are these members good together? Checks each, measures each alone, finds out who leads and
whether the others help.

Every conclusion carries its uncertainty, and "cannot tell" is one of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..chat.calibration import Calibration, Tried
from ..core.member import Member
from ..core.options import Settings
from ..errors import UsageError, advised, amount
from .checks import BAD, Finding, examine, load
from .gate import tried, weights
from .report import points_range
from .results import Result, Results
from .running import AT_ONCE, Plan, Seen, run
from .statistics import difference, needed
from .summary import Report, common, differences, grouped, scores_of, summary
from .systems import ENSEMBLE, System, singles
from .tasks import Task, jsonl

FEWEST = 20
ALIKE = 0.05
"""A gain that is certainly smaller than this does not matter."""
VOTE, CONSENSUS = "vote", "consensus"
QUESTIONS = Path(__file__).with_name("doctor.jsonl")


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What the doctor found, measured and advises."""

    findings: tuple[Finding, ...]
    report: Report | None
    """None: no member could be loaded."""
    verdict: str
    """``ensemble``, ``alone``, ``cannot tell``, or ``none``: there is no ensemble to advise
    about."""
    advice: tuple[str, ...]
    results: tuple[Result, ...] = ()
    calibration: Calibration | None = None
    """What a chat model needs of it."""

    def as_dict(self) -> dict[str, Any]:
        """The diagnosis as plain JSON."""
        return {
            "verdict": self.verdict,
            "advice": list(self.advice),
            "findings": [asdict(finding) for finding in self.findings],
            "report": self.report.as_dict() if self.report else None,
            "calibration": self.calibration.as_dict() if self.calibration else None,
        }


def own_task() -> Task:
    """The doctor's own questions: short ones of many kinds, whose answers can be checked by
    rule."""
    return replace(jsonl(QUESTIONS), max_tokens=48)


def refuse_few(task: Task) -> None:
    """Refuse questions too few to conclude anything from."""
    if len(task.questions) < FEWEST:
        error = UsageError(f"the doctor needs at least {FEWEST} prompts, got {len(task.questions)}")
        raise advised(error, "more prompts give more certainty; or use the built-in ones")


def ways_of(
    members: Sequence[str],
    lead: str,
    settings: Settings,
    task: Task,
    alone: Mapping[str, Sequence[Result]],
) -> list[System]:
    """The ways to use the other members: as the lead's correctors, as equals, and for whole
    answers."""
    led = settings.model_copy(update={"lead": lead})
    whole = System(ENSEMBLE, tuple(members), led)
    ways = [whole] if settings.method.margin is not None else []
    ways.append(System(VOTE, tuple(members), settings.model_copy(update={"lead": None})))
    if task.result:
        agreed = led.model_copy(update={"segment": "answer", "result": task.result})
        ways.append(System(CONSENSUS, tuple(members), agreed, weights(alone, task.result)))
    return ways


def diagnosed(
    task: Task,
    members: Mapping[str, Member],
    settings: Settings,
    results: Results,
    *,
    seen: Seen | None = None,
    at_once: int = AT_ONCE,
    timeout: float | None = None,
) -> Diagnosis:
    """Check, measure and advise. ``results`` keeps what was measured, so that a stopped run
    continues."""
    refuse_few(task)
    findings: list[Finding] = []
    fit: dict[str, Member] = {}
    for name, member in members.items():
        probe, finding = load(member)
        findings.append(finding)
        if probe is not None:
            fit[name] = member
            findings += examine(member, probe)
    if not fit:
        return Diagnosis(tuple(findings), None, "none", ("No member could be loaded.",))
    alone = singles(list(fit), settings)
    bounds: dict[str, Any] = {"at_once": at_once, "timeout": timeout}
    found = run(Plan(task, tuple(alone), fit, **bounds), results, seen=seen)
    own = grouped(found)
    findings += [_endings(name, own[name]) for name in fit]
    lead = max(fit, key=lambda name: _rank(own[name]))
    ways = ways_of(list(fit), lead, settings, task, own) if len(fit) > 1 else []
    plan = Plan(task, (*alone, *ways), fit, **bounds)
    found = run(plan, results, seen=seen)
    report = summary(plan, found)
    by_system = grouped(found)
    attempts = [tried(way.name, by_system[way.name], by_system[lead], len(ways)) for way in ways]
    scores = {name: mean_of(by_system[name]) for name in fit}
    calibration = calibrated(ways, attempts, lead, scores, len(task.questions)) if ways else None
    verdict, advice = advise(calibration, by_system)
    bad = sorted({finding.member for finding in findings if finding.verdict == BAD})
    fix = [f"Fix {name} first, or leave it out: a check failed." for name in bad]
    return Diagnosis(tuple(findings), report, verdict, (*fix, *advice), tuple(found), calibration)


def _rank(own: Sequence[Result]) -> tuple[float, float]:
    """The key by which the lead is chosen: its score alone, then its speed."""
    return round(mean_of(own), 9), -math.fsum(one.work_s for one in own)


def mean_of(results: Sequence[Result]) -> float:
    """The mean score."""
    scores = scores_of(results).values()
    return math.fsum(scores) / len(scores) if scores else 0.0


def calibrated(
    ways: Sequence[System],
    attempts: Sequence[Tried],
    lead: str,
    members: Mapping[str, float],
    questions: int,
) -> Calibration:
    """Who leads, and the way that was opened with the smallest p, if any."""
    opened = [(one.p, one.passes, at) for at, one in enumerate(attempts) if one.opened]
    shared: dict[str, Any] = {
        "lead": lead,
        "members": members,
        "questions": questions,
        "tried": tuple(attempts),
    }
    if not opened:
        return Calibration(**shared, method={"margin": math.inf})
    way = ways[min(opened)[2]]
    how = way.settings
    result = how.result if isinstance(how.result, str) else None
    return Calibration(
        **shared,
        use=way.name,
        method=how.method.changes,
        result=result,
        prior=dict(way.prior) if way.prior else None,
        leads=how.lead is not None,
    )


def _endings(name: str, found: Sequence[Result]) -> Finding:
    """Whether this member, alone, ends its answers."""
    own = [result for result in found if not result.error]
    if not own:
        return Finding(name, "answers", BAD, "no answer without an error")
    ended = sum(result.finish != "length" for result in own)
    empty = sum(not result.answer.strip() for result in own)
    text = f"ended {ended} of {amount(len(own), 'answer')} by itself" + (
        f", {empty} empty" if empty else ""
    )
    return Finding(
        name, "answers", "watch" if 2 * ended < len(own) or 10 * empty > len(own) else "good", text
    )


# --- advice ---------------------------------------------------------------------------------------

WAYS = {
    ENSEMBLE: "{lead} corrected by the others where it is unsure",
    VOTE: "all members voting as equals",
    CONSENSUS: "whole answers, agreed by their results",
}


def advise(
    calibration: Calibration | None, by_system: Mapping[str, Sequence[Result]]
) -> tuple[str, list[str]]:
    """The verdict and its reasons, a sentence each."""
    if calibration is None:
        return "none", ["One member is no ensemble: there is nothing to compare."]
    lead, questions = calibration.lead, amount(calibration.questions, "prompt")
    others = ", ".join(
        f"{name} {_percent(one)}" for name, one in calibration.members.items() if name != lead
    )
    lines = [
        f"{lead} leads: alone it is right on {_percent(calibration.members[lead])} of {questions} "
        f"({others})."
    ]
    own = scores_of(by_system[lead])
    hopeful, more = [], 0
    for one in calibration.tried:
        mine = scores_of(by_system[one.name])
        apart = difference(*common(mine, own))
        hopeful += [one.name] if apart.high > ALIKE else []
        more = max(more, needed(differences(mine, own)))
        lines.append(
            f"{one.name.capitalize()} ({WAYS[one.name].format(lead=lead)}): {one.wins} won, "
            f"{one.losses} lost against "
            f"{lead} alone, {points_range(apart)}, p = {one.p:.2g}; {one.passes:.1f} times its "
            "passes, "
            f"{one.seconds:.1f} times its computing time: "
            f"{'opened' if one.opened else 'not opened'}."
        )
    if calibration.use != "alone":
        return "ensemble", [
            *lines,
            f"Use {calibration.use}: {WAYS[calibration.use].format(lead=lead)}.",
        ]
    lines.append(f"Use {lead} alone: no way to use the others was shown to help.")
    if not hopeful:
        return "alone", lines
    count = f"About {more} prompts would show a difference of 5 points."
    return "cannot tell", [
        *lines,
        f"It is not clear yet whether {' or '.join(hopeful)} would help. {count}",
    ]


def _percent(share: float) -> str:
    return f"{100 * share:.0f}%"
