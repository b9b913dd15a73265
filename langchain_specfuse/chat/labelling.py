"""Asks members which label fits a text, and turns their scores into probabilities.

A :class:`LabelQuestion` becomes a prompt that lists its labels, and every label is scored as a
whole answer to it, in words. All labels share the prompt: one scoring pass per member. The prompt
ends with the text, so that the members read everything before it once.

The labels are listed alphabetically, so the order in which they are given changes nothing. A
calibration for the question corrects what a member prefers whatever the text says.
"""

from __future__ import annotations

import hashlib
import json
import math
import uuid
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ..core.labels import Probabilities, Scale, averaged, softmax
from ..core.member import Probe
from ..core.options import Settings
from ..core.rounds import OVERFLOW
from ..core.values import Candidate, Effort, Failure, Query, Replies, Scored, ScoreJob, Turn
from ..engine.ensemble import Ensemble
from ..engine.scoring import Scorers
from ..errors import EnsembleError, MemberError, UsageError, advised, notes_in

Kind = Literal["choice", "noul", "score"]
"""Choose a label; yes or no; a level of an ordered scale."""
INSTRUCTIONS = "Which of the options fits the text?"
IMPOSSIBLE = -100.0
"""The log-probability of a token that a member holds to be impossible (minus infinity), so that
every label has a finite score."""
YES, NO = "yes", "no"
LEAVE_OUT = "leave the member out: a calibration is for exactly the members that it was fitted to"


@dataclass(frozen=True)
class LabelQuestion:
    """A question with a fixed set of labels. Use :meth:`choice`, :meth:`yes_or_no` or
    :meth:`levels` to make one."""

    kind: Kind
    instructions: str
    labels: tuple[str, ...]
    """The labels in the order in which they are listed."""
    descriptions: tuple[str, ...]
    """One for each label; empty: none."""
    texts: tuple[str, ...]
    """What members answer for each label."""

    @classmethod
    def choice(cls, labels: Mapping[str, str], instructions: str = INSTRUCTIONS) -> LabelQuestion:
        """Choose one of these labels. The values are their descriptions, which may be empty.

        >>> LabelQuestion.choice({"credit_cards": "", "banking": ""}).texts
        ('banking', 'credit cards')
        """
        names = tuple(sorted(labels))
        texts = tuple(" ".join(name.replace("_", " ").split()) for name in names)
        if len(set(texts)) < len(names) or not all(texts):
            texts = names
        return cls("choice", instructions, names, tuple(labels[name] for name in names), texts)

    @classmethod
    def yes_or_no(cls, instructions: str, yes: str = "", no: str = "") -> LabelQuestion:
        """Answer yes or no, with a description of each if they need one."""
        return cls("noul", instructions, (NO, YES), (no, yes), ("No", "Yes"))

    @classmethod
    def levels(cls, levels: Sequence[str], instructions: str = INSTRUCTIONS) -> LabelQuestion:
        """Choose a level of an ordered scale. The labels are the numbers of the levels, from 0."""
        numbers = tuple(map(str, range(len(levels))))
        return cls("score", instructions, numbers, ("",) * len(levels), tuple(levels))

    @property
    def digest(self) -> str:
        """What tells questions with the same labels apart, without repeating their words. It is
        empty for a choice, whose labels say what it is about.

        >>> LabelQuestion.yes_or_no("Is it urgent?").digest
        '3f66544ca397cfc5'
        """
        if self.kind == "choice":
            return ""
        content = [self.kind, self.instructions, *(self.texts if self.kind == "score" else ())]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]

    def prompt(self, text: str) -> str:
        """What members are asked about this text."""
        options = [
            f"- {name}: {description}" if description else f"- {name}"
            for name, description in zip(self.texts, self.descriptions, strict=True)
        ]
        listed = "\n".join(options)
        return (
            f"{self.instructions}\n\nOptions:\n{listed}\n\n"
            f"Answer with one of the options and nothing else.\n\nText: {text}"
        )

    def job(self, text: str) -> ScoreJob:
        """The job of a member that scores all labels."""
        query = Query(uuid.uuid4().hex, (Turn("user", self.prompt(text)),))
        candidates = tuple(Candidate(label, True, ()) for label in self.texts)
        return ScoreJob(query, (), candidates, thinks=False)


def scores_of(reply: Scored) -> tuple[float, ...]:
    """The score of each label: the sum of its tokens' log-probabilities. The token that ends the
    answer counts too, unless the member has none.

    >>> scores_of(Scored(((-1.0, -math.inf), (-3.0, -math.inf))))
    (-1.0, -3.0)
    >>> scores_of(Scored(((-1.0, -0.5), (-math.inf, -0.5))))
    (-1.5, -100.5)
    """
    rows = reply.logprobs
    if all(row[-1:] == (-math.inf,) for row in map(tuple, rows)):
        rows = tuple(row[:-1] for row in rows)
    return tuple(math.fsum(max(value, IMPOSSIBLE) for value in row) for row in rows)


@dataclass(frozen=True)
class LabelCalibration:
    """How members' scores of a question's labels become probabilities, as fitted to examples."""

    labels: tuple[str, ...]
    scales: Mapping[str, Scale]
    """member -> its temperature, and a bias for each label."""
    best: str
    """The member with the lowest log loss, which decides."""
    examples: int = 0
    """How many examples it was fitted to."""
    kind: Kind = "choice"
    digest: str = ""
    """That of its question (see :attr:`LabelQuestion.digest`)."""

    def fits(self, question: LabelQuestion) -> bool:
        """Whether it is for this question. Choices of the same labels count as one question. All
        yes-or-no questions, and many scales, have the same labels, so their digest counts too."""
        same = (self.kind, self.digest) == (question.kind, question.digest)
        return same and set(self.labels) == set(question.labels)

    def probabilities(
        self, question: LabelQuestion, scores: Mapping[str, Sequence[float]]
    ) -> Probabilities:
        """The probability of each label of the question, from the scores of each member: those of
        the best one, or the average of the others if it has none."""
        places = [self.labels.index(label) for label in question.labels]
        rows = {}
        for name, own in scores.items():
            scale = self.scales[name]
            bias = tuple(scale.bias[place] for place in places)
            rows[name] = Scale(scale.temperature, bias)(own)
        return averaged(rows, {self.best: 1.0})


@dataclass(frozen=True)
class Decision:
    """How probable each label of a question is."""

    question: LabelQuestion
    probabilities: Mapping[str, float]
    """label -> its probability."""
    efforts: Sequence[Effort]
    """What it has cost each member."""

    @property
    def label(self) -> str:
        """The most probable label."""
        return max(self.probabilities, key=lambda label: self.probabilities[label])


Item = tuple[LabelQuestion, str]
"""A question and the text that it is about."""


@dataclass(frozen=True)
class Measured:
    """The members' scores of one item."""

    scores: Mapping[str, tuple[float, ...]]
    """member -> its score of each label."""
    failures: Mapping[str, Failure]
    """The members without scores, and why."""


class Decider:
    """Members that decide together."""

    def __init__(self, ensemble: Ensemble) -> None:
        self._scorers = Scorers(ensemble)

    def decide(
        self,
        items: Sequence[Item],
        calibrations: Sequence[LabelCalibration] = (),
        settings: Settings | None = None,
    ) -> list[Decision]:
        """The decision about each item. All items are sent together."""
        plan = _Plan(items, calibrations, self._scorers.probes())
        return plan.decisions(self._scorers.scored(plan.requests, settings or Settings()))

    async def adecide(
        self,
        items: Sequence[Item],
        calibrations: Sequence[LabelCalibration] = (),
        settings: Settings | None = None,
    ) -> list[Decision]:
        """``decide`` for asyncio."""
        plan = _Plan(items, calibrations, await self._scorers.aprobes())
        return plan.decisions(await self._scorers.ascored(plan.requests, settings or Settings()))

    def scores(self, items: Sequence[Item], settings: Settings | None = None) -> list[Measured]:
        """Each member's scores of every item, as measured. A member that votes by ballots, as chat
        models do, is refused before any request; one that does not load is an error."""
        probes = self._scorers.probes()
        members = _able(probes)
        _refuse_ballots(probes)
        missing = {name: probe for name, probe in probes.items() if isinstance(probe, Failure)}
        if missing:
            raise advised(failing("not all members could be loaded", missing), LEAVE_OUT)
        requests = _requests(items, members)
        return list(map(_measured, self._scorers.scored(requests, settings or Settings())))


class _Plan:
    """The requests for some items, and how the replies become decisions."""

    def __init__(
        self,
        items: Sequence[Item],
        calibrations: Sequence[LabelCalibration],
        probes: Mapping[str, Probe | Failure],
    ) -> None:
        self._items = items
        self._probes = probes
        self._members = _able(probes)
        questions = dict.fromkeys(question for question, _ in items)
        self._calibrations = {
            question: _calibration_for(question, calibrations) for question in questions
        }
        self.requests = _requests(items, self._members)

    def decisions(self, replies: Sequence[Replies]) -> list[Decision]:
        failed = {name: probe for name, probe in self._probes.items() if isinstance(probe, Failure)}
        working = _working(self._members, replies, failed)
        return [
            self._decision(question, received, _scores(received, working))
            for (question, _), received in zip(self._items, replies, strict=True)
        ]

    def _decision(
        self,
        question: LabelQuestion,
        replies: Replies,
        scores: Mapping[str, tuple[float, ...]],
    ) -> Decision:
        calibration = self._calibrations[question]
        if calibration is None:
            rows = {name: softmax(own) for name, own in scores.items()}
            chances = averaged(rows, self._sizes(scores))
        else:
            chances = calibration.probabilities(question, scores)
        efforts = [reply.effort for reply in replies.values()]
        return Decision(question, dict(zip(question.labels, chances, strict=True)), efforts)

    def _sizes(self, names: Iterable[str]) -> dict[str, float]:
        """The weights without a calibration: the numbers of parameters, or equal weights if one
        is unknown."""
        sizes = {name: float(getattr(self._probes[name], "size", 0)) for name in names}
        return sizes if all(sizes.values()) else dict.fromkeys(sizes, 1.0)


def _requests(items: Sequence[Item], members: Sequence[str]) -> list[dict[str, ScoreJob]]:
    return [dict.fromkeys(members, question.job(text)) for question, text in items]


def _measured(replies: Replies) -> Measured:
    failures = {name: reply for name, reply in replies.items() if isinstance(reply, Failure)}
    return Measured(_scores(replies, [name for name in replies if name not in failures]), failures)


def _scores(replies: Replies, members: Sequence[str]) -> dict[str, tuple[float, ...]]:
    """Each member's scores of the labels."""
    scores = {}
    for name in members:
        reply = replies[name]
        assert isinstance(reply, Scored)
        scores[name] = scores_of(reply)
    return scores


def _able(probes: Mapping[str, Probe | Failure]) -> list[str]:
    """The members that loaded. Raises if there is none, if a member cannot score, or if one did not
    load because of a mistake of the caller."""
    able = []
    for name, probe in probes.items():
        if isinstance(probe, Failure):
            if isinstance(probe.cause, UsageError):
                raise probe.cause
            continue
        if not probe.scores:
            error = UsageError(f"{name} cannot decide, because it cannot score texts")
            advice = "leave it out; members in this process and on a vLLM or llama.cpp server can"
            raise advised(error, advice)
        able.append(name)
    if not able:
        raise _none_left({n: p for n, p in probes.items() if isinstance(p, Failure)})
    return able


def _refuse_ballots(probes: Mapping[str, Probe | Failure]) -> None:
    """Refuse members that vote by ballots: the numbers are too coarse for a fit, and each would
    cost two requests."""
    names = [name for name, probe in probes.items() if isinstance(probe, Probe) and probe.ballots]
    if names:
        error = UsageError(
            f"cannot fit decisions to {', '.join(names)}: chat models give no scores"
        )
        advice = (
            "they vote by two paid requests for each question; fit members in this process or on a "
            "vLLM or llama.cpp server, or decide without a calibration"
        )
        raise advised(error, advice)


def _working(
    members: Sequence[str], replies: Sequence[Replies], failed: Mapping[str, Failure]
) -> list[str]:
    """The members that replied to every request. Warns about each of the others, and raises if none
    is left. ``failed``: the members that did not load."""
    failures = dict(failed)
    for received in replies:
        for name, reply in received.items():
            if isinstance(reply, Failure):
                failures.setdefault(name, reply)
    working = [name for name in members if name not in failures]
    if not working:
        raise _none_left(failures)
    for name, failure in failures.items():
        warnings.warn(
            f"{name} takes no part in a decision ({failure.kind}): {failure.message}",
            stacklevel=2,
        )
    return working


def _none_left(failures: Mapping[str, Failure]) -> EnsembleError:
    wrong = failing("no member is left to decide", failures)
    if {failure.kind for failure in failures.values()} == {"overflow"}:
        return advised(wrong, OVERFLOW)
    return wrong


def failing(what: str, failures: Mapping[str, Failure]) -> EnsembleError:
    """The error that these members' failures cause. ``what``: the beginning of its text."""
    errors = []
    for name, failure in failures.items():
        error = MemberError(failure.message, member=name, kind=failure.kind)
        error.__cause__ = failure.cause
        errors.append(error)
    reasons = "; ".join(f"{error.member} ({error.kind}): {error.message}" for error in errors)
    wrong = EnsembleError(f"{what}: {reasons}", failures=tuple(errors))
    for note in notes_in(*(error.__cause__ for error in errors)):
        wrong.add_note(note)
    return wrong


def _calibration_for(
    question: LabelQuestion, calibrations: Sequence[LabelCalibration]
) -> LabelCalibration | None:
    for calibration in calibrations:
        if calibration.fits(question):
            return calibration
    if calibrations:
        wanted = {
            "choice": f"the labels {', '.join(question.labels)}",
            "noul": "a yes-or-no question with these instructions",
            "score": "a scale with these instructions and criteria",
        }
        warnings.warn(
            f"the calibration has no entry for {wanted[question.kind]}: the question is answered "
            "without it",
            stacklevel=2,
        )
    return None
