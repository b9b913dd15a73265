"""What the verifiers said of every draft, and whom other rules would have chosen: the same drafts, counted again.

A choice is one round with more than one draft. Whether a draft is right is told by the task's checker, on the answer so
far with the draft behind it. A rule gives every draft of a choice a number; the highest is chosen.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from langchain_specfuse.core.rounds import Loop
from langchain_specfuse.core.values import Ask, Candidate, Draft, Query, Round, Scored, ScoreJob, Turn
from langchain_specfuse.core.voting import assurances, totals, voices
from langchain_specfuse.engine import Ensemble
from langchain_specfuse.evaluation import Question, Task

NEUTRAL = "Say something."
"""A question that asks for nothing in particular."""


@dataclass(frozen=True)
class Numbers:
    """What one verifier said of one draft: its tokens, the sums of their log-probabilities and probabilities."""

    tokens: int
    logprob: float
    prob: float
    neutral: float | None = None
    """The sum of log-probabilities of the same draft behind a question that asks for nothing in particular."""

    @classmethod
    def of(cls, logprobs: Sequence[float]) -> Numbers:
        return cls(len(logprobs), round(math.fsum(logprobs), 3), round(math.fsum(map(math.exp, logprobs)), 3))

    @property
    def mean(self) -> float:
        return self.logprob / max(self.tokens, 1)


@dataclass(frozen=True)
class Judged:
    """One draft of a choice."""

    authors: tuple[str, ...]
    size: int
    """Bytes of its text."""
    ended: bool
    right: float
    numbers: Mapping[str, Numbers]
    """verifier -> what it said."""
    text: str = field(default="", compare=False)


@dataclass(frozen=True)
class Choice:
    """One round in which something was to be chosen."""

    question: str
    round: int
    winner: str
    drafts: tuple[Judged, ...]

    def as_dict(self) -> dict[str, Any]:
        told = asdict(self)
        for draft in told["drafts"]:
            del draft["text"]
            draft["numbers"] = {
                judge: [one[key] for key in ("tokens", "logprob", "prob", "neutral")]
                for judge, one in draft["numbers"].items()
            }
        return told

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> Choice:
        """The choice that ``as_dict`` told."""
        drafts = tuple(
            Judged(
                tuple(draft["authors"]),
                draft["size"],
                draft["ended"],
                draft["right"],
                {judge: Numbers(*one) for judge, one in draft["numbers"].items()},
            )
            for draft in told["drafts"]
        )
        return cls(told["question"], told["round"], told["winner"], drafts)


# --- listening ----------------------------------------------------------------------------------------------------


def overheard(loop: Loop, heard: list[Any]) -> Loop:
    """The same loop; every ask and its replies are also written down."""
    return _overheard(loop, heard)


def _overheard(loop: Loop, heard: list[Any]) -> Generator[Any, Any, None]:
    for item in loop:
        while isinstance(item, Ask):
            replies = yield item
            heard.append((item, replies))
            item = loop.send(replies)
        yield item


def choices_of(task: Task, question: Question, rounds: Sequence[Round], heard: Sequence[Any]) -> list[Choice]:
    """The rounds of one answer in which drafts differed and were scored."""
    found, answer = [], ""
    for round in rounds:
        asks = [(ask, replies) for ask, replies in heard if ask.round == round.number]
        numbers = _numbers(round, asks)
        if len(numbers) > 1:
            drafts = tuple(
                Judged(
                    tuple(name for name, draft in round.drafts.items() if (draft.text, draft.ended) == said),
                    len(said[0].encode()),
                    said[1],
                    task.grade(question, answer + said[0]).score,
                    by_judge,
                    said[0],
                )
                for said, by_judge in numbers.items()
            )
            found.append(Choice(question.id, round.number, round.winner, drafts))
        answer += round.segment.text
    return found


def _numbers(round: Round, asks: Sequence[Any]) -> dict[tuple[str, bool], dict[str, Numbers]]:
    """(text, ended) -> verifier -> its numbers; what came with a draft of one's own too."""
    told: dict[tuple[str, bool], dict[str, Numbers]] = {}
    for ask, replies in asks:
        for judge, reply in replies.items():
            if isinstance(reply, Scored):
                for candidate, row in zip(ask.jobs[judge].candidates, reply.logprobs, strict=True):
                    told.setdefault((candidate.text, candidate.ended), {})[judge] = Numbers.of(row)
    for name, draft in round.drafts.items():
        if isinstance(draft, Draft) and draft.logprobs is not None and (draft.text, draft.ended) in told:
            told[draft.text, draft.ended][name] = Numbers.of(draft.logprobs)
    return told


def contrasted(choices: Sequence[Choice], ensemble: Ensemble) -> list[Choice]:
    """The same choices, the drafts also scored as answers to a question that asks for nothing in particular."""
    told = list(choices)
    for name, member in ensemble.members.items():
        jobs = [
            ScoreJob(
                Query(f"neutral-{at}", (Turn("user", NEUTRAL),)),
                (),
                tuple(Candidate(draft.text, draft.ended, draft.authors) for draft in choice.drafts),
            )
            for at, choice in enumerate(told)
        ]
        for at in range(0, len(jobs), 16):
            for offset, reply in enumerate(member.score(jobs[at : at + 16])):
                if isinstance(reply, Scored):
                    told[at + offset] = _with_neutral(told[at + offset], name, reply)
            for job in jobs[at : at + 16]:
                member.forget(job.query.id)
    return told


def _with_neutral(choice: Choice, judge: str, reply: Scored) -> Choice:
    def one(draft: Judged, row: Sequence[float]) -> Judged:
        numbers = replace(draft.numbers[judge], neutral=round(math.fsum(row), 3))
        return replace(draft, numbers={**draft.numbers, judge: numbers})

    return replace(
        choice, drafts=tuple(one(draft, row) for draft, row in zip(choice.drafts, reply.logprobs, strict=True))
    )


# --- rules --------------------------------------------------------------------------------------------------------

Rule = Callable[[Choice], list[float]]


def softmax(row: Sequence[float]) -> list[float]:
    shares = [math.exp(value - max(row)) for value in row]
    return [share / sum(shares) for share in shares]


def judges(choice: Choice) -> list[str]:
    """Who said something of every draft."""
    names = list(choice.drafts[0].numbers)
    return [name for name in names if all(name in draft.numbers for draft in choice.drafts)]


def voted(number: Callable[[Numbers, Judged], float], *, share: bool = False, double: str = "") -> Rule:
    """Every verifier's numbers made into votes, and summed; one of them may count double."""

    def rule(choice: Choice) -> list[float]:
        names = judges(choice)
        rows = [[number(draft.numbers[judge], draft) for draft in choice.drafts] for judge in names]
        cast = [[value / (sum(row) or 1.0) for value in row] if share else softmax(row) for row in rows]
        loud = [2 if name == double else 1 for name in names]
        columns = zip(*cast, strict=True)
        return [math.fsum(times * vote for times, vote in zip(loud, column, strict=True)) for column in columns]

    return rule


def assured(choice: Choice) -> list[float]:
    """The default's first round: votes as loud as the core's voices, at equal weights."""
    scores = {j: [draft.numbers[j].mean for draft in choice.drafts] for j in judges(choice)}
    spoken = voices(assurances("assured", "mean_logprob", scores), dict.fromkeys(scores, 1.0))
    return totals({judge: softmax(row) for judge, row in scores.items()}, spoken, len(choice.drafts))


def alone(member: str) -> Rule:
    """One verifier decides."""
    return lambda choice: [draft.numbers[member].mean for draft in choice.drafts]


def by(member: str) -> Rule:
    """One member's draft, always."""
    return lambda choice: [float(member in draft.authors) for draft in choice.drafts]


def own(choice: Choice) -> list[float]:
    """How sure the writer is."""
    return [max(draft.numbers[name].mean for name in draft.authors if name in draft.numbers) for draft in choice.drafts]


def others(choice: Choice) -> list[float]:
    """What those say who did not write it."""
    return [
        statistics.fmean([one.mean for judge, one in draft.numbers.items() if judge not in draft.authors] or [0.0])
        for draft in choice.drafts
    ]


def contrast(choice: Choice) -> list[float]:
    """How much more probable the question makes a draft, per token, in everybody's mean."""
    return [
        statistics.fmean(
            (one.logprob - (one.neutral or 0.0)) / max(one.tokens, 1)
            for judge, one in draft.numbers.items()
            if judge in judges(choice)
        )
        for draft in choice.drafts
    ]


def rules(members: Sequence[str], *, neutral: bool = True) -> dict[str, Rule]:
    """Every rule by what it is called on the page. Not ``neutral``: without the one that needs a neutral question."""
    return {
        "votes by mean log-probability, who is sure is louder (the default)": assured,
        "votes by mean log-probability, all equally loud (as published)": voted(lambda one, draft: one.mean),
        "votes by mean probability": voted(lambda one, draft: one.prob / max(one.tokens, 1), share=True),
        "votes by log-probability per byte": voted(lambda one, draft: one.logprob / max(draft.size, 1)),
        "votes by the whole log-probability, not divided": voted(lambda one, draft: one.logprob),
        "the writer who is surest of its own": own,
        "each draft as those judge it who did not write it": others,
        **({"what the question adds (against a neutral one)": contrast} if neutral else {}),
        **{f"votes, {name}'s counts double": voted(lambda one, draft: one.mean, double=name) for name in members},
        **{f"{name} decides": alone(name) for name in members},
        **{f"always {name}'s": by(name) for name in members},
        "the shorter one": lambda choice: [-float(draft.size) for draft in choice.drafts],
    }


def decided(choices: Sequence[Choice], rule: Rule) -> list[bool]:
    """Of the choices between better and worse drafts: whether the rule takes one of the best. Ties go to the first."""
    told = []
    for choice in choices:
        rights = [draft.right for draft in choice.drafts]
        if max(rights) > min(rights):
            numbers = rule(choice)
            told.append(rights[numbers.index(max(numbers))] == max(rights))
    return told


def gaps(choices: Sequence[Choice], member: str) -> list[float]:
    """How far a verifier puts its own draft over the best other one, in mean log-probability: how loud its vote is."""
    told = []
    for choice in choices:
        mine = [d.numbers[member].mean for d in choice.drafts if member in d.authors and member in d.numbers]
        rest = [d.numbers[member].mean for d in choice.drafts if member not in d.authors and member in d.numbers]
        if mine and rest:
            told.append(max(mine) - max(rest))
    return told


def said_of(choices: Sequence[Choice], judge: str, author: str) -> list[float]:
    """A verifier's mean log-probabilities of the drafts that only this other member wrote."""
    drafts = [draft for choice in choices for draft in choice.drafts if draft.authors == (author,)]
    return [draft.numbers[judge].mean for draft in drafts if judge in draft.numbers]
