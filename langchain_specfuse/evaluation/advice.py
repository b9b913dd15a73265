"""What a doctor's report means, in plain words: which member helps, which to leave out, whether to use an ensemble.

Every sentence carries how sure it is. "Cannot tell" is an answer. Knows reports; measures nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import amount
from .report import points
from .summary import Comparison, Report
from .systems import ENSEMBLE
from .tasks import Task

ALIKE = 0.05
"""A difference that is surely smaller than this matters to nobody."""


@dataclass(frozen=True, slots=True)
class Advice:
    """Whether to use an ensemble, and why."""

    verdict: str
    """``ensemble``, ``alone``, ``cannot tell``, or ``none``: nobody to advise about."""
    lines: tuple[str, ...]


def advice(report: Report, members: Sequence[str], bad: Sequence[str], task: Task) -> Advice:
    """The verdict and its reasons."""
    mend = [f"Mend {name} first, or leave it out: a check failed." for name in bad]
    if len(members) < 2:
        return Advice("none", (*mend, "One member is no ensemble: nothing to compare."))
    if not task.judges:
        told = "Nobody can tell who is right: no prompt has a reference or a checker. The prior is from votes alone."
        return Advice("cannot tell", (*mend, told))
    unchecked = [row for row in report.rows if row.unchecked]
    if unchecked:
        count = amount(sum(row.unchecked for row in unchecked), "answer")
        told = f"Cannot tell: the checker raised on {count} ({unchecked[0].raised}). Mend it and run this again."
        return Advice("cannot tell", (*mend, told))
    verdict, reason = _whether(report)
    lines = [*mend, reason, *(_helps(report, name) for name in members if len(members) > 2)]
    lines += [_prior(one) for one in report.comparisons if one.other == ENSEMBLE and "prior" in one.system]
    return Advice(verdict, tuple(lines))


def _whether(report: Report) -> tuple[str, str]:
    one = report.best[ENSEMBLE]
    range = f"{points(one.apart.mean)} points [{points(one.apart.low)}, {points(one.apart.high)}]"
    best, price = one.best, _price(report, one.best)
    if one.verdict == "better":
        return "ensemble", (
            f"Use the ensemble: it is better than its best member, {best}, alone: {range}, "
            f"p = {one.p_better:.3g}.{price}"
        )
    if one.verdict == "worse":
        return "alone", (
            f"Do not use this ensemble: {best} alone is better. The ensemble lies {range} against it, "
            f"p = {one.p_worse:.3g}."
        )
    if one.apart.low > -ALIKE and one.apart.high < ALIKE:
        return "alone", f"Take {best} alone: the ensemble is neither better nor worse by 5 points ({range}).{price}"
    more = f" About {report.needed} prompts would show a difference of 5 points." if report.needed else ""
    return "cannot tell", (
        f"Cannot tell with {amount(report.questions, 'prompt')} whether the ensemble helps: "
        f"{range} against {best} alone.{more} Until you have them, {best} alone is the cheaper choice.{price}"
    )


def _price(report: Report, best: str) -> str:
    whole, alone = report.row(ENSEMBLE), report.row(best)
    if not whole or not alone or not whole.tokens_per_second or not alone.tokens_per_second:
        return ""
    times = alone.tokens_per_second / whole.tokens_per_second
    return f" Here it writes {_times(times)} {best}."


def _times(times: float) -> str:
    return f"{times:.1f} times as slowly as" if times >= 1.05 else "about as fast as"


def _helps(report: Report, name: str) -> str:
    """From the ensemble without it."""
    whole, less = report.row(ENSEMBLE), report.row(f"without {name}")
    told = next((one for one in report.comparisons if one.system == f"without {name}" and one.other == ENSEMBLE), None)
    if whole is None or less is None or told is None:
        return f"{name}: not measured."
    apart = told.apart
    range = f"with it {points(-apart.mean)} points [{points(-apart.high)}, {points(-apart.low)}]"
    if apart.high < 0:
        return f"{name} helps: {range}."
    if apart.low > 0:
        return f"{name} hurts: leave it out, or make it a verifier ({range})."
    return f"{name}: cannot tell whether it helps ({range})."


def _prior(one: Comparison) -> str:
    range = f"{points(one.apart.mean)} points [{points(one.apart.low)}, {points(one.apart.high)}]"
    if one.apart.low > 0:
        return f"Give the prior: it helps ({range}, each half of the prompts with weights learned on the other)."
    if one.apart.high < 0:
        return f"Do not give the prior: it hurts ({range}, each half with weights learned on the other)."
    return f"Cannot tell whether the prior helps ({range}, each half with weights learned on the other)."
