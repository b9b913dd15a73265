"""Finds out whether members are good together: checks the health of each, determines which one
leads, and compares each way to use the others with the lead alone.

Every conclusion states its uncertainty, and "cannot tell" is a possible conclusion.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..chat.calibration import ROUTER, Calibration, Tried
from ..chat.members import ensemble_for
from ..chat.references import members_list
from ..core.member import Member
from ..core.options import Settings
from ..core.routing import Router, features_of
from ..errors import UsageError, advised, amount
from .comparison import GAP, Comparison, by_system, mean, scores_of, upper_bound
from .gate import tried, weights
from .graders import Question
from .health import BAD, GOOD, WATCH, Finding, examine, load
from .report import Report, plain, summary
from .results import Graded, Results
from .routing import fitted, left_out
from .running import AT_ONCE, ENSEMBLE, Plan, System, Watch, run
from .tasks import Task, jsonl

FEWEST = 20
"""Questions."""
VOTE, CONSENSUS = "vote", "consensus"
CONSULTING = 0.5
"""The margin beyond which the others correct the lead, unless the user chose a finite one."""
QUESTIONS = Path(__file__).with_name("doctor.jsonl")


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What choosing among the members can gain: where the best one is wrong and another is right.
    It holds for a router and for a choice among whole answers (https://arxiv.org/abs/2606.27288),
    not for votes by segment, which write new text."""

    count: int
    """The questions on which another member has a better score than the best one."""
    questions: int
    share: float
    """The exact upper bound of their share, with 95% confidence (Clopper and Pearson). It holds
    whichever member is the best one, because that was found on the same questions."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What the doctor measured, and its advice."""

    findings: tuple[Finding, ...]
    report: Report | None
    """None: no member could be loaded."""
    verdict: str
    """``ensemble``, ``alone``, ``cannot tell``, or ``none``: fewer than two members work, or no
    member answers."""
    advice: tuple[str, ...]
    results: tuple[Graded, ...] = ()
    calibration: Calibration | None = None
    """The calibration for a chat model."""
    ceiling: Ceiling | None = None
    """What choosing among the members can gain; None if there is nothing to compare."""

    def __repr__(self) -> str:
        members = len({finding.member for finding in self.findings})
        return (
            f"<diagnosis of {amount(members, 'member')}: the verdict is {self.verdict!r}; "
            ".advice says what to do, and .findings, .report, .results and .calibration have the "
            "details>"
        )

    def as_dict(self) -> dict[str, Any]:
        """The diagnosis as plain JSON."""
        content: dict[str, Any] = plain(
            {
                "verdict": self.verdict,
                "advice": self.advice,
                "findings": [asdict(finding) for finding in self.findings],
                "report": self.report.as_dict() if self.report else None,
                "calibration": self.calibration.as_dict() if self.calibration else None,
                "ceiling": asdict(self.ceiling) if self.ceiling else None,
            }
        )
        return content


def own_task() -> Task:
    """The doctor's own questions: short questions of many kinds, whose answers a rule can check."""
    return replace(jsonl(QUESTIONS), max_tokens=48)


def refuse_few(task: Task) -> None:
    """Refuse a task with too few questions for any conclusion."""
    if len(task.questions) < FEWEST:
        error = UsageError(f"the doctor needs at least {FEWEST} prompts, got {len(task.questions)}")
        raise advised(error, "more prompts give more certainty; or use the built-in ones")


def refuse_names(members: Iterable[str]) -> None:
    """Refuse a member that has the name of a way to use members: answers are told apart by these
    names."""
    for name in members:
        if name in WAYS:
            error = UsageError(f"the doctor takes no member that is called {name!r}")
            raise advised(error, "a way to use members has that name: rename the member with name=")


def diagnosed(
    task: Task,
    members: Mapping[str, Member] | Sequence[Any],
    settings: Settings,
    results: Results,
    *,
    watch: Watch | None = None,
    progress: Callable[[str], object] | None = None,
    at_once: int = AT_ONCE,
) -> Diagnosis:
    """Check, measure and advise. ``members``: as for SpecFuseChatModel, or by name.
    ``results`` stores the answers, so that an interrupted run continues. ``progress`` is told which
    member is being loaded and checked; ``watch`` follows the answers."""
    refuse_few(task)
    if not isinstance(members, Mapping):
        members = ensemble_for(members_list(members, "members")).members
    refuse_names(members)
    findings, healthy = _examined(members, progress or _ignore)
    if not healthy:
        return Diagnosis(tuple(findings), None, "none", ("No member could be loaded.",))

    def asked(systems: Sequence[System]) -> list[Graded]:
        return run(Plan(task, tuple(systems), healthy, at_once=at_once), results, watch=watch)

    singles = [System(name, (name,), settings) for name in healthy]
    answers = asked(singles)
    if any(graded.error for graded in answers):
        answers = asked(singles)  # a temporary error must not decide who leads
    alone = by_system(answers)
    answered = any(not graded.error for graded in answers)
    findings += [_endings(name, alone[name]) for name in healthy]
    lead = max(healthy, key=lambda name: _rank(alone[name]))
    ways: list[System] = []
    router = ceiling = None
    if len(healthy) > 1 and answered:
        ceiling = ceiling_of(alone, lead)
        (progress or _ignore)(_about_ceiling(ceiling, lead))  # before the ways are paid for
        ways = ways_of(list(healthy), lead, settings, task, alone)
        answers += asked(ways)
        router, routed = with_router(task.questions, alone)
        ways.append(System(ROUTER, tuple(healthy), settings))
        answers += routed
    plan = Plan(task, (*singles, *ways), healthy, at_once=at_once)
    report = summary(plan, answers)
    comparisons = [item for item in report.comparisons if item.other == lead]
    calibration = None
    if ways:
        attempts = [tried(item, len(ways)) for item in comparisons]
        scores = {name: mean(scores_of(alone[name]).values()) for name in healthy}
        calibration = calibrated(ways, attempts, lead, scores, len(task.questions), router)
    verdict, advice = advise(calibration, comparisons)
    if ceiling is not None:
        advice.insert(1, _about_ceiling(ceiling, lead))
    if not answered:
        advice = ["No member answered any prompt: there is nothing to compare."]
    bad = sorted({finding.member for finding in findings if finding.verdict == BAD})
    fixes = [f"Fix {name} first, or leave it out: a check failed." for name in bad]
    advice = [*fixes, *_about_errors(alone, results.path), *advice]
    return Diagnosis(
        tuple(findings), report, verdict, tuple(advice), tuple(answers), calibration, ceiling
    )


def _ignore(text: str) -> None:
    return


def _examined(
    members: Mapping[str, Member], progress: Callable[[str], object]
) -> tuple[list[Finding], dict[str, Member]]:
    """The findings about all members, and the members that load."""
    findings: list[Finding] = []
    loaded: dict[str, Member] = {}
    for name, member in members.items():
        progress(f"loading {name} ...")
        probe, finding = load(member)
        findings.append(finding)
        if probe is not None:
            loaded[name] = member
            progress(f"checking {name}: template, scores, seams ...")
            findings += examine(member, probe)
    return findings, loaded


def _endings(name: str, answers: Sequence[Graded]) -> Finding:
    """Whether this member ends its answers when it answers alone."""
    complete = [graded for graded in answers if not graded.error]
    if not complete:
        return Finding(name, "answers", BAD, "no answer without an error")
    ended = sum(graded.finish != "length" for graded in complete)
    empty = sum(not graded.answer.strip() for graded in complete)
    text = f"ended {ended} of {amount(len(complete), 'answer')} by itself"
    if empty:
        text += f", {empty} empty"
    doubtful = 2 * ended < len(complete) or 10 * empty > len(complete)
    return Finding(name, "answers", WATCH if doubtful else GOOD, text)


def _rank(answers: Sequence[Graded]) -> tuple[float, int, float]:
    """The lead: the member with the best score alone and, among equals, the one that failed least
    often, then the fastest."""
    failed, seconds = _burden(answers)
    return round(mean(scores_of(answers).values()), 9), -failed, -seconds


def _burden(answers: Sequence[Graded]) -> tuple[int, float]:
    """How many answers ended in an error, and the computing time of all."""
    failed = sum(bool(graded.error) for graded in answers)
    return failed, math.fsum(graded.seconds for graded in answers)


def ceiling_of(alone: Mapping[str, Sequence[Graded]], lead: str) -> Ceiling:
    """What choosing among these members can gain, where ``lead`` is the best one.

    The best one is chosen on the same questions, which makes the share look smaller: with five
    equal members, a bound at 95% held in 78% of simulations. So the 5% are divided among all.
    """
    scores = {name: scores_of(answers) for name, answers in alone.items()}
    best = scores.pop(lead)
    asked = [question for question in best if all(question in other for other in scores.values())]
    count = sum(
        any(other[question] > best[question] for other in scores.values()) for question in asked
    )
    return Ceiling(count, len(asked), upper_bound(count, len(asked), 0.05 / len(alone)))


def ways_of(
    members: Sequence[str],
    lead: str,
    settings: Settings,
    task: Task,
    alone: Mapping[str, Sequence[Graded]],
) -> list[System]:
    """The ways to use the other members: to correct the lead, as equals, and for whole answers if
    the grader says what their result is."""
    names = tuple(members)
    led = settings.model_copy(update={"lead": lead})
    ways = []
    margin = settings.method.margin
    if margin is not None:
        if margin == math.inf:
            margin = CONSULTING
        method = settings.method.model_copy(update={"margin": margin})
        ways.append(System(ENSEMBLE, names, led.model_copy(update={"method": method})))
    equals = settings.model_copy(update={"lead": None})
    ways.append(System(VOTE, names, equals))
    if task.result:
        prior = weights(alone, task.result)
        whole = {"segment": "answer", "result": task.result, "prior": prior}
        method = settings.method.model_copy(update=whole)
        ways.append(System(CONSENSUS, names, led.model_copy(update={"method": method})))
    return ways


def with_router(
    questions: Sequence[Question], alone: Mapping[str, Sequence[Graded]]
) -> tuple[Router, list[Graded]]:
    """A router made from all questions that every member was asked, and its answers. For each
    question, a router made from all other questions chooses the member whose answer counts."""
    # Among members with equal shares, the first leads, as in _rank.
    names = sorted(alone, key=lambda name: _burden(alone[name]))
    by_question = {name: scores_of(alone[name]) for name in names}
    asked = [
        question
        for question in questions
        if all(question.id in by_question[name] for name in names)
    ]
    scores = {name: [by_question[name][item.id] for item in asked] for name in names}
    features = [features_of(question.turns) for question in asked]
    leads = left_out(features, scores)
    chosen = {question.id: lead for question, lead in zip(asked, leads, strict=True)}
    answers = [
        replace(graded, system=ROUTER)
        for name in names
        for graded in alone[name]
        if chosen.get(graded.question) == name
    ]
    return fitted(features, scores), answers


def calibrated(
    ways: Sequence[System],
    attempts: Sequence[Tried],
    lead: str,
    members: Mapping[str, float],
    questions: int,
    router: Router | None = None,
) -> Calibration:
    """The lead, and among the ways that were opened the one with the smallest p."""
    opened = [
        (attempt.p, attempt.passes, position)
        for position, attempt in enumerate(attempts)
        if attempt.opened
    ]
    calibration = Calibration(lead, members, questions, tuple(attempts))
    if not opened:
        return calibration
    _, _, position = min(opened)
    way = ways[position]
    if way.name == ROUTER:
        return replace(calibration, use=ROUTER, router=router)
    method = way.settings.method
    return replace(
        calibration,
        use=way.name,
        method=method.rules,
        result=method.result if isinstance(method.result, str) else None,
        prior=method.prior,
        leads=way.settings.lead is not None,
    )


def phases(members: Sequence[str], settings: Settings, task: Task) -> list[str]:
    """The names of the systems that are asked all questions, in this order, if every member loads
    and answers:
    each member alone, then each way to use the others."""
    if len(members) < 2:
        return list(members)
    # Answers decide who leads, but not how many ways there are, nor their names.
    unasked: dict[str, list[Graded]] = {name: [] for name in members}
    ways = ways_of(members, members[0], settings, task, unasked)
    return [*members, *(way.name for way in ways)]


# --- advice ---------------------------------------------------------------------------------------

MEANINGS = {
    "ensemble": "A way of using several members was shown to help.",
    "alone": "No way was shown to help, and none is likely to gain more than 5 points.",
    "cannot tell": "These prompts show neither that several members help nor that they do not.",
    "none": "There is nothing to compare.",
}
"""What each verdict says, in one sentence."""
WAYS = {
    ENSEMBLE: "{lead} corrected by the others where it is unsure",
    VOTE: "all members voting as equals",
    CONSENSUS: "whole answers, agreed by their results",
    ROUTER: "each question to the member that was right on similar ones",
}


def advise(
    calibration: Calibration | None, comparisons: Sequence[Comparison]
) -> tuple[str, list[str]]:
    """The verdict and its reasons, one sentence each. ``comparisons`` compares each way with the
    lead alone."""
    if calibration is None:
        return "none", [
            "There is nothing to compare: name at least two members that load and answer."
        ]
    lead = calibration.lead
    lines = [_about_lead(calibration)]
    for comparison, attempt in zip(comparisons, calibration.tried, strict=True):
        lines.append(_about_way(comparison, attempt, lead))
    if calibration.use != "alone":
        lines.append(f"Use {calibration.use}: {WAYS[calibration.use].format(lead=lead)}.")
        return "ensemble", lines
    hopeful = [item.system for item in comparisons if item.difference.high > GAP]
    if not hopeful:
        lines.append(f"Use {lead} alone: no way of using several members was shown to help.")
        return "alone", lines
    needed = max(item.needed for item in comparisons)
    if needed > calibration.questions:
        more = f"about {needed} prompts can show a difference of 5 points"
    else:
        more = "more prompts could show it"
    lines.append(
        f"Use {lead} alone for now: no way of using several members was shown to help. "
        f"Still possible: {', '.join(hopeful)}; {more}."
    )
    return "cannot tell", lines


def _about_errors(alone: Mapping[str, Sequence[Graded]], stored: Path) -> list[str]:
    """How often each member failed alone, although it was asked again."""
    lines = []
    for name, answers in alone.items():
        failed, _ = _burden(answers)
        if failed:
            prompts = amount(failed, "prompt")
            lines.append(f"{name} failed on {prompts}, counted as wrong: see {stored}.")
    return lines


def _about_lead(calibration: Calibration) -> str:
    lead = calibration.lead
    shares = {name: f"{100 * score:.0f}%" for name, score in calibration.members.items()}
    others = ", ".join(f"{name} {share}" for name, share in shares.items() if name != lead)
    prompts = amount(calibration.questions, "prompt")
    return f"{lead} leads: alone it is right on {shares[lead]} of {prompts} ({others})."


def _about_ceiling(ceiling: Ceiling, lead: str) -> str:
    return (
        f"Choosing among these members can gain at most {100 * ceiling.share:.1f} points (with 95% "
        f"confidence): {lead} is wrong and another is right on {ceiling.count} of "
        f"{amount(ceiling.questions, 'prompt')}. This holds for a router and for choosing among "
        "whole answers, not for votes by segment, which write new text."
    )


def _about_way(comparison: Comparison, attempt: Tried, lead: str) -> str:
    way = comparison.system
    opened = "opened" if attempt.opened else "not opened"
    return (
        f"{way.capitalize()} ({WAYS[way].format(lead=lead)}): {attempt.wins} won, "
        f"{attempt.losses} lost against {lead} alone, {comparison.difference.points()}, "
        f"p = {attempt.p:.2g}; {attempt.passes:.1f} times its passes, {attempt.seconds:.1f} times "
        f"its computing time: {opened}."
    )
