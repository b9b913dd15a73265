"""Whole answers instead of segments: members answer alone, and the result with the most voting
weight wins.

For questions with a short result (a number, a choice, an object), and for members that cannot
continue a text. Nothing can be streamed before the answers agree. Members, or further samples of
them, are asked only until no other result can win any more.

Paper: it agrees segment by segment only. Taking the most frequent of several sampled results is
self-consistency (Wang et al., 2023).
"""

from __future__ import annotations

import math
from collections.abc import Generator, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..errors import UsageError, advised
from .answer import Answer, legal_part
from .options import Settings
from .panel import Panel
from .referee import FREE, Referee
from .results import RESULTS, Result
from .round import Round
from .rounds import (
    Budget,
    Clock,
    Loop,
    is_refused,
    refused_round,
    without_failed,
)
from .values import Ask, Draft, DraftJob, Query, Replies, Segment

SAMPLED = 0.7
"""The least temperature of a member's second and further samples: without one they would all be the
same."""


@dataclass(frozen=True, slots=True)
class Voter:
    """A sample of a member."""

    member: str
    sample: int
    weight: float
    name: str
    """Unique in this answer: the member's name, or the name of an additional sample of it."""


@dataclass(slots=True)
class Tally:
    """The answers so far, by result."""

    waiting: list[Voter]
    """Voters that have not been asked, in order."""
    groups: dict[Hashable, list[Voter]] = field(default_factory=dict)
    """result -> the voters whose answers have it."""
    silent: list[Voter] = field(default_factory=list)
    """Voters whose answers contain no result."""

    def weight(self, result: Hashable) -> float:
        return math.fsum(voter.weight for voter in self.groups[result])

    def ranked(self) -> list[Hashable]:
        """The results, the one with most weight first; among equals the one that was found first,
        which is the lead's if it has one."""
        return sorted(self.groups, key=lambda result: -round(self.weight(result), 12))

    def decided(self, more: int = 0) -> bool:
        """Whether no waiting voter can change the winner, if the next ``more`` voters all find the
        same result."""
        if not self.waiting:
            return True
        weights = [self.weight(result) for result in self.ranked()] + [0.0, 0.0]
        best = weights[0] + math.fsum(voter.weight for voter in self.waiting[:more])
        rest = math.fsum(voter.weight for voter in self.waiting[more:])
        return best > weights[1] + rest + 1e-9

    def next(self) -> list[Voter]:
        """The fewest voters that could decide, at most one of each member."""
        enough = next(
            (n for n in range(1, len(self.waiting)) if self.decided(n)), len(self.waiting)
        )
        chosen: dict[str, Voter] = {}
        for voter in self.waiting[:enough]:
            chosen.setdefault(voter.member, voter)
        return list(chosen.values())


def answers(query: Query, settings: Settings, panel: Panel, referee: Referee = FREE) -> Loop:
    """As :func:`.rounds`: one round, in which a whole answer is agreed."""
    result_of = RESULTS[settings.result] if isinstance(settings.result, str) else settings.result
    assert result_of is not None
    answer = Answer(
        stop=settings.stop_strings, budget=settings.max_tokens, referee=referee
    ).started()
    before, clock, drafts = (
        panel,
        Clock(Budget(settings.max_calls, settings.max_cost)),
        dict[str, Draft](),
    )
    tally = Tally(voters(panel, settings.samples))
    while not tally.decided():
        asked = tally.next()
        affordable = not clock.budget.is_spent
        jobs = {
            voter.member: job_of(query, settings, answer, voter.sample, affordable)
            for voter in asked
        }
        replies = yield from _whole_answers(jobs, answer)
        clock.lap("draft", replies)
        if settings.refusals == "any" and clock.refusals:
            break
        panel = without_failed(panel, jobs, replies, answer, 1, needed=not drafts)
        tally.waiting = [
            voter for voter in tally.waiting if voter not in asked and voter.member in panel.weights
        ]
        for voter in asked:
            if isinstance(reply := replies[voter.member], Draft) and voter.member in panel.weights:
                draft = drafts[voter.name] = legal_part(reply, answer)
                result = _result(result_of, answer.text + draft.text)
                (tally.silent if result is None else tally.groups.setdefault(result, [])).append(
                    voter
                )
    if is_refused(settings, clock, drafts):
        yield refused_round(1, panel, before, answer, drafts, clock)
        return
    best = tally.ranked()
    agreed = tally.groups[best[0]] if best else tally.silent[:1]
    yield _round(panel, before, answer, drafts, tally, agreed, clock)


def _whole_answers(
    jobs: Mapping[str, DraftJob], answer: Answer
) -> Generator[Ask, Replies, Replies]:
    """The replies to these jobs, continued where a draft stopped before text that the constraint
    forces."""
    replies = yield Ask(jobs, 1)
    found, begun = dict(replies), dict.fromkeys(jobs, answer)
    waiting = {
        name: reply for name, reply in found.items() if jobs[name].query.constraint is not None
    }
    while waiting:
        asked = {}
        for name, reply in waiting.items():
            so_far, whole = begun[name], found[name]
            if not isinstance(reply, Draft):
                found[name] = reply
                continue
            draft = legal_part(reply, so_far)
            said = so_far.text + draft.text
            begun[name] = so_far = so_far.plus(
                Segment(draft.text, draft.ended, {name: draft.tokens})
            )
            if draft.text and so_far.finish is None:
                left = so_far.tokens_left
                asked[name] = replace(
                    jobs[name], answer=so_far.segments, segment_tokens=left, max_tokens=left
                )
            # the stop string is found once more
            said = said if so_far.finish == "stop_string" else so_far.text
            if whole is reply and said == answer.text + draft.text:
                found[name] = draft  # with its tokens and log-probabilities
                continue
            earlier = whole if isinstance(whole, Draft) and whole is not reply else Draft("")
            found[name] = Draft(
                said[len(answer.text) :],
                so_far.finish == "stop" or (so_far.finish == "stop_string" and draft.ended),
                (*earlier.tokens, *draft.tokens),
                effort=earlier.effort + draft.effort if whole is not reply else draft.effort,
                thought=earlier.thought or draft.thought,
            )
        waiting = dict((yield Ask(asked, 1))) if asked else {}
    return found


def _result(result_of: Result, text: str) -> Hashable:
    """The result in this answer. If the user's function raises, the error says so."""
    try:
        found = result_of(text)
        hash(found)
    except Exception as error:
        wrong = UsageError(
            f"the function given as result failed on an answer: {type(error).__name__}: {error}"
        )
        raise advised(
            wrong,
            "it takes a text and returns a hashable value, such as a number or a text, or None",
        ) from error
    return found


def voters(panel: Panel, samples: int) -> list[Voter]:
    """Everybody's first sample, the lead's first and then by weight; then everybody's second, and
    so on."""
    order = sorted(
        panel.drafters, key=lambda name: (name != panel.lead, -round(panel.weights[name], 12))
    )
    return [
        Voter(name, sample, panel.weights[name], _sample_name(name, sample, order))
        for sample in range(samples)
        for name in order
    ]


def _sample_name(member: str, sample: int, members: Sequence[str]) -> str:
    """A name for this sample that no member has: a second member with the same model is named in
    the same way.

    >>> _sample_name("a", 0, ["a"]), _sample_name("a", 1, ["a"]), _sample_name("a", 1, ["a", "a#2"])
    ('a', 'a#2', "a#2'")
    """
    if sample == 0:
        return member
    name = f"{member}#{sample + 1}"
    while name in members:
        name += "'"
    return name


def job_of(
    query: Query, settings: Settings, answer: Answer, sample: int, affordable: bool = True
) -> DraftJob:
    """A whole answer. One that was begun may be finished, whatever that costs."""
    how = settings.sampling
    if sample:
        how = replace(how, temperature=max(how.temperature, SAMPLED), seed=how.seed + sample)
    tokens = answer.tokens_left
    return DraftJob(
        query,
        answer.segments,
        tokens,
        tokens,
        how,
        stop=settings.stop_strings,
        new_requests=affordable,
    )


def _round(
    panel: Panel,
    before: Panel,
    answer: Answer,
    drafts: Mapping[str, Draft],
    tally: Tally,
    agreed: Sequence[Voter],
    clock: Clock,
) -> Round:
    """The round of this agreement."""
    winner, draft = agreed[0], drafts[agreed[0].name]
    groups = [*tally.groups.values(), *([one] for one in tally.silent)]
    whole = math.fsum(voter.weight for group in groups for voter in group)
    totals = {
        v.name: math.fsum(one.weight for one in group) / whole for group in groups for v in group
    }
    segment = Segment(
        draft.text, draft.ended, {winner.member: draft.tokens} if draft.tokens else {}
    )
    answer = answer.plus(segment)
    return Round(
        number=1,
        text=answer.text,
        segment=segment,
        winner=winner.name,
        authors=tuple(voter.name for voter in agreed),
        drafts=drafts,
        scores={},
        votes={
            v.name: {one.name: 1.0 / len(group) for one in group} for group in groups for v in group
        },
        totals={name: totals[name] for name in drafts},
        rewards={},
        weights_before=before.weights,
        weights=panel.weights,
        forced=answer.forced,
        thoughts={name: one.thought for name, one in drafts.items() if one.thought},
        lead=panel.lead or "",
        refusals=clock.refusals,
        left=panel.left[len(before.left) :],
        samples={v.name: v.member for group in groups for v in group if v.sample},
        finish=answer.finish or "length",
        stalled=answer.stalled or answer.finish is None,
        efforts=clock.efforts,
        seconds=clock.seconds,
        began=clock.began,
    )
