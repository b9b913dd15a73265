"""Are these members good together? Checks each, measures each alone and together, and says what follows.

Every conclusion carries its uncertainty, and "cannot tell" is one of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..core.member import Member
from ..core.method import Settings
from ..errors import UsageError, advised, amount
from .checks import BAD, Finding, examine, load
from .report import points_range
from .results import Result, Results
from .running import AT_ONCE, Plan, Seen, run
from .statistics import Interval
from .summary import Comparison, Report, summary
from .systems import ENSEMBLE, System, singles
from .tasks import Task, jsonl

FEWEST = 20
ALIKE = 0.05
"""A difference that is certainly smaller than this does not matter."""
WITHOUT = "without "
QUESTIONS = Path(__file__).with_name("doctor.jsonl")


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What the doctor found, measured and advises."""

    findings: tuple[Finding, ...]
    report: Report | None
    """None: no member could be loaded."""
    verdict: str
    """``ensemble``, ``alone``, ``cannot tell``, or ``none``: there is no ensemble to advise about."""
    advice: tuple[str, ...]
    results: tuple[Result, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The diagnosis as plain JSON."""
        return {
            "verdict": self.verdict,
            "advice": list(self.advice),
            "findings": [asdict(finding) for finding in self.findings],
            "report": self.report.as_dict() if self.report else None,
        }


def own_task() -> Task:
    """The doctor's own questions: short ones of many kinds, whose answers can be checked by rule."""
    return replace(jsonl(QUESTIONS), max_tokens=48)


def systems_of(members: Sequence[str], settings: Settings) -> list[System]:
    """Each member alone, all together, and of three and more all but one."""
    if len(members) < 2:
        return singles(members, settings)
    whole = System(ENSEMBLE, tuple(members), settings)
    fewer = [replace(whole, name=WITHOUT + name, members=tuple(m for m in members if m != name)) for name in members]
    return [*singles(members, settings), whole, *(fewer if len(members) > 2 else [])]


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
    """Check, measure and advise. ``results`` keeps what was measured, so that a stopped run continues."""
    if len(task.questions) < FEWEST:
        error = UsageError(f"the doctor needs at least {FEWEST} prompts, got {len(task.questions)}")
        raise advised(error, "more prompts give more certainty; or use the built-in ones")
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
    plan = Plan(task, tuple(systems_of(list(fit), settings)), fit, at_once=at_once, timeout=timeout)
    found = run(plan, results, seen=seen)
    findings += [_endings(name, found) for name in fit]
    report = summary(plan, found)
    verdict, advice = advise(report, list(fit))
    bad = sorted({finding.member for finding in findings if finding.verdict == BAD})
    mend = [f"Mend {name} first, or leave it out: a check failed." for name in bad]
    return Diagnosis(tuple(findings), report, verdict, (*mend, *advice), tuple(found))


def _endings(name: str, found: Sequence[Result]) -> Finding:
    """Whether this member, alone, ends its answers."""
    own = [result for result in found if result.system == name and not result.error]
    if not own:
        return Finding(name, "answers", BAD, "no answer without an error")
    ended = sum(result.finish != "length" for result in own)
    empty = sum(not result.answer.strip() for result in own)
    text = f"ended {ended} of {amount(len(own), 'answer')} by itself" + (f", {empty} empty" if empty else "")
    return Finding(name, "answers", "watch" if 2 * ended < len(own) or 10 * empty > len(own) else "good", text)


# --- advice -----------------------------------------------------------------------------------------------------


def advise(report: Report, members: Sequence[str]) -> tuple[str, list[str]]:
    """The verdict and its reasons, a sentence each."""
    if len(members) < 2:
        return "none", ["One member is no ensemble: there is nothing to compare."]
    unchecked = [row for row in report.rows if row.unchecked]
    if unchecked:
        count = amount(sum(row.unchecked for row in unchecked), "answer")
        reason = f"Cannot tell: the checker raised on {count} ({unchecked[0].raised}). Mend it and run this again."
        return "cannot tell", [reason]
    verdict, reason = _whether(report)
    against_whole = {one.system: one for one in report.comparisons if one.other == ENSEMBLE}
    lines = [_helps(name, against_whole.get(WITHOUT + name)) for name in members if len(members) > 2]
    return verdict, [reason, *lines]


def _whether(report: Report) -> tuple[str, str]:
    one = report.best[ENSEMBLE]
    best, apart = one.best, points_range(one.apart)
    if one.verdict == "better":
        return "ensemble", (
            f"Use the ensemble: it is better than its best member, {best}, alone: {apart}, p = {one.p_better:.3g}."
        )
    if one.verdict == "worse":
        return "alone", (
            f"Do not use this ensemble: {best} alone is better. The ensemble: {apart} against it, "
            f"p = {one.p_worse:.3g}."
        )
    if one.apart.low > -ALIKE and one.apart.high < ALIKE:
        return "alone", f"Use {best} alone: the ensemble is neither better nor worse by 5 points ({apart})."
    more = f" About {report.needed} prompts would show a difference of 5 points." if report.needed else ""
    return "cannot tell", (
        f"Cannot tell with {amount(report.questions, 'prompt')} whether the ensemble helps: {apart} against {best} "
        f"alone.{more} Until you have them, {best} alone is the cheaper choice."
    )


def _helps(name: str, without: Comparison | None) -> str:
    """Whether a member helps, from the ensemble without it."""
    if without is None:
        return f"{name}: not measured."
    apart = without.apart
    range = f"with it {points_range(Interval(-apart.mean, -apart.high, -apart.low))}"
    if apart.high < 0:
        return f"{name} helps: {range}."
    if apart.low > 0:
        return f"{name} hurts: leave it out, or make it a verifier ({range})."
    return f"{name}: cannot tell whether it helps ({range})."
