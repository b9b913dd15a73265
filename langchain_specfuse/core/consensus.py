"""Whole answers instead of segments: members answer alone, and the result with the most voting
weight wins.

This is for questions with a short result (a number, a choice, an object), and for members that
cannot continue a text. Nothing can be streamed before the answers agree. Members, or further
samples of them, are asked only until no other result can win any more. With checks and without a
result to agree on, they are asked one after the other, the cheapest first, until an answer passes.

Paper: it agrees segment by segment only. Taking the most frequent of several sampled results is
self-consistency (Wang et al., 2023).
"""

from __future__ import annotations

import math
from collections.abc import Generator, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..errors import UsageError, advised
from .answer import Answer, legal_part
from .checking import Checking
from .options import Settings
from .panel import Panel
from .redacting import Redacting
from .referee import FREE, Referee
from .results import RESULTS, Result, calls_key
from .round import Round
from .rounds import (
    Clock,
    Loop,
    is_refused,
    last_round,
    refuse_as_providers,
    without_failed,
)
from .values import Ask, Budget, Draft, DraftJob, Query, Replies, Reply

SAMPLED = 0.7
"""The least temperature of a member's second and further samples. At temperature 0 they would all
be the same."""


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
    samples: int = 1
    """How many samples of each member may be asked."""
    first_wins: bool = False
    """The first answer that passes all checks is the winner."""

    def weight(self, result: Hashable) -> float:
        return math.fsum(voter.weight for voter in self.groups[result])

    def ranked(self) -> list[Hashable]:
        """The results, the one with the most weight first. Among equal weights, the one that was
        found first comes first; this is the lead's, if it has one."""
        return sorted(self.groups, key=lambda result: -round(self.weight(result), 12))

    def winners(self) -> list[Voter]:
        """The voters with the result that has won; without any result, the first voter whose answer
        passed the checks."""
        ranked = self.ranked()
        return self.groups[ranked[0]] if ranked else self.silent[:1]

    def is_decided(self, more: int = 0) -> bool:
        """Whether no waiting voter can change the winner, provided that the next ``more`` voters
        all return the winner's result."""
        if not self.waiting:
            return True
        if self.first_wins:
            return bool(self.groups or self.silent)
        weights = [self.weight(result) for result in self.ranked()] + [0.0, 0.0]
        best = weights[0] + math.fsum(voter.weight for voter in self.waiting[:more])
        rest = math.fsum(voter.weight for voter in self.waiting[more:])
        return best > weights[1] + rest + 1e-9

    def next(self) -> list[Voter]:
        """The fewest voters that could decide, at most one of each member."""
        if self.first_wins:
            return self.waiting[:1]
        enough = 1
        while enough < len(self.waiting) and not self.is_decided(enough):
            enough += 1
        chosen: dict[str, Voter] = {}
        for voter in self.waiting[:enough]:
            chosen.setdefault(voter.member, voter)
        return list(chosen.values())

    def count(self, voter: Voter, result: Hashable) -> None:
        """Count the result of a voter; None if its answer contains none."""
        if result is None:
            self.silent.append(voter)
        else:
            self.groups.setdefault(result, []).append(voter)


def answers(query: Query, settings: Settings, panel: Panel, referee: Referee = FREE) -> Loop:
    """As :func:`.rounds`: one round, in which a whole answer is agreed."""
    first_wins = settings.method.result is None
    result_of = _result_function(settings.method.result)
    free = Answer(stop=settings.stop_strings, budget=settings.budget())
    judged = replace(free, referee=referee).started()
    before = panel

    def answer_of(member: str) -> Answer:
        """The answer that this member begins."""
        return free if before.is_native(member) else judged

    clock = Clock(Budget.of(settings.max_calls, settings.max_cost))
    checking = Checking(settings)
    redacting = Redacting(settings.checks, query.rewrite)
    checking.begin_round()
    drafts: dict[str, Draft] = {}
    waiting = voters(panel, settings.method.samples, cheapest_first=first_wins)
    tally = Tally(waiting, samples=settings.method.samples, first_wins=first_wins)
    while not tally.is_decided():
        asked = tally.next()
        written = {voter.member: answer_of(voter.member) for voter in asked}
        jobs = {}
        for voter in asked:
            start = written[voter.member]
            job = job_of(query, settings, start, voter.sample, clock.budget)
            jobs[voter.member] = checking.told(job, voter.member, panel)
        replies = yield from whole_answers(jobs, written, redacting)
        clock.lap("draft", replies)
        if settings.method.refusals == "any" and clock.refusals:
            break
        panel = without_failed(panel, jobs, replies, judged, 1, needed=not drafts)
        staying = panel.weights
        tally.waiting = [v for v in tally.waiting if v not in asked and v.member in staying]
        new: dict[str, Draft] = {}
        for voter in asked:
            reply = replies[voter.member]
            if isinstance(reply, Draft) and voter.member in staying:
                new[voter.name] = legal_part(reply, written[voter.member])
        drafts |= new
        begun = {v.name: (written[v.member], new[v.name]) for v in asked if v.name in new}
        passing = yield from checking.passing(begun)
        clock.lap_checks(checking)
        for voter in asked:
            if voter.name in passing:
                start, draft = begun[voter.name]
                result = calls_key(draft.calls) or _result(result_of, start.text + draft.text)
                tally.count(voter, result)
    if is_refused(settings, clock, drafts):
        refuse_as_providers(clock, judged, 1)
        clock.refusals = yield from checking.refusals(clock.refusals, judged)
        refused = judged.refused(shows_rest=False)
        yield last_round(1, panel, before, refused, drafts, clock, checking, redacting, "")
        return
    agreed = tally.winners()
    if not agreed and settings.on_failure == "raise":
        raise checking.none_passed(judged, len(drafts))
    if not agreed and settings.on_failure == "end":
        ended = replace(judged, finish="check")
        yield last_round(1, panel, before, ended, drafts, clock, checking, redacting, "")
        return
    if not agreed:
        kept = _greedy(before, drafts, settings.method.samples)
        if _has_calls(answer_of(kept.member), drafts[kept.name]):  # an agent would run them
            raise checking.none_passed(judged, len(drafts))
        agreed = [kept]
        checking.keep(kept.name)
    agreed_drafts = {voter.name: drafts[voter.name] for voter in agreed}
    answer = answer_of(agreed[0].member)
    thoughts = yield from checking.thoughts(agreed_drafts, answer)
    yield _round(panel, before, answer, drafts, tally, agreed, clock, checking, redacting, thoughts)


def _result_function(result: str | Result | None) -> Result:
    """The function that finds an answer's result. If none is set, the whole text is the result."""
    if result is None:
        return lambda text: text
    return RESULTS[result] if isinstance(result, str) else result


def _greedy(panel: Panel, drafts: Mapping[str, Draft], samples: int) -> Voter:
    """The lead's own answer, or that of the first member that gave one; a further sample only if
    no member gave a first one."""
    return next(voter for voter in voters(panel, samples) if voter.name in drafts)


def _has_calls(answer: Answer, draft: Draft) -> bool:
    """Whether this draft, which begins the answer, contains tool calls."""
    return bool(draft.calls) or bool(answer.referee.calls(answer.text + draft.text))


def whole_answers(
    jobs: Mapping[str, DraftJob], answers: Mapping[str, Answer], redacting: Redacting
) -> Generator[Ask, Replies, Replies]:
    """The replies to these jobs, each of which continues its member's answer. A draft that stopped
    before text that the constraint forces is continued after that text."""
    asked = yield Ask(jobs, 1)
    whole = {name: redacting.whole(reply) for name, reply in asked.items()}
    written = dict(answers)
    new: Replies = {
        name: reply for name, reply in whole.items() if answers[name].referee is not FREE
    }
    while new:
        continued: dict[str, DraftJob] = {}
        for name, reply in new.items():
            if not isinstance(reply, Draft):
                whole[name] = reply
                continue
            before = written[name]
            draft = legal_part(reply, before)
            tokens = {name: draft.tokens} if draft.tokens else {}
            segment = draft.segment(tokens)
            after = written[name] = before.plus(segment)
            if draft.text and after.finish is None:
                left = after.tokens_left
                continued[name] = replace(
                    jobs[name], answer=after.segments, segment_tokens=left, max_tokens=left
                )
            earlier = whole[name] if whole[name] is not reply else None
            whole[name] = _joined(earlier, draft, answers[name], before, after)
        asked = (yield Ask(continued, 1)) if continued else {}
        new = {name: redacting.whole(reply) for name, reply in asked.items()}
    return whole


def _joined(
    earlier: Reply | None, draft: Draft, answer: Answer, before: Answer, after: Answer
) -> Draft:
    """The whole answer of a member as one draft: ``earlier``, which is its answer ``before``, and
    this draft, after which its answer is ``after``."""
    text = after.text
    if after.finish == "stop_string":
        # `Answer` looks for the stop string once more when the draft is agreed.
        text = before.text + draft.text
    if earlier is None and text == answer.text + draft.text:
        return draft  # with its tokens and log-probabilities
    first = earlier if isinstance(earlier, Draft) else Draft("")
    return Draft(
        text[len(answer.text) :],
        after.finish == "stop" or (after.finish == "stop_string" and draft.ended),
        (*first.tokens, *draft.tokens),
        effort=draft.effort if earlier is None else first.effort + draft.effort,
        thought=first.thought or draft.thought,
    )


def _result(result_of: Result, text: str) -> Hashable:
    """The result in this answer. If the user's function raises, the error says so."""
    try:
        result = result_of(text)
        hash(result)
    except Exception as error:
        wrong = UsageError(
            f"the function given as result failed on an answer: {type(error).__name__}: {error}"
        )
        advice = "it takes a text and returns a hashable value, such as a number or a text, or None"
        raise advised(wrong, advice) from error
    return result


def voters(panel: Panel, samples: int, *, cheapest_first: bool = False) -> list[Voter]:
    """The first samples of all members, then all second samples, and so on. Members are ordered by
    weight, the lead first, or by size, the smallest first."""
    sizes = {member.name: member.size or math.inf for member in panel.members}

    def rank(name: str) -> tuple[float, float]:
        if cheapest_first:
            return sizes[name], 0.0
        return name != panel.lead, -round(panel.weights[name], 12)

    order = sorted(panel.drafters, key=rank)
    return [
        Voter(name, sample, panel.weights[name], sample_name(name, sample, order))
        for sample in range(samples)
        for name in order
    ]


def sample_name(member: str, sample: int, members: Sequence[str]) -> str:
    """A name for this sample that no member has. Members with the same model are named in the same
    way.

    >>> sample_name("a", 0, ["a"]), sample_name("a", 1, ["a"]), sample_name("a", 1, ["a", "a#2"])
    ('a', 'a#2', "a#2'")
    """
    if sample == 0:
        return member
    name = f"{member}#{sample + 1}"
    while name in members:
        name += "'"
    return name


def job_of(
    query: Query, settings: Settings, answer: Answer, sample: int, budget: Budget
) -> DraftJob:
    """The job of writing a whole answer. Its continuations copy the budget, so that an answer
    that was begun may be finished, whatever that costs."""
    sampling = settings.sampling
    if sample:
        temperature = max(sampling.temperature, SAMPLED)
        sampling = replace(sampling, temperature=temperature, seed=sampling.seed + sample)
    tokens = answer.tokens_left
    return DraftJob(
        query,
        answer.segments,
        tokens,
        tokens,
        sampling,
        stop=settings.stop_strings,
        budget=budget,
    )


def _round(
    panel: Panel,
    before: Panel,
    answer: Answer,
    drafts: Mapping[str, Draft],
    tally: Tally,
    agreed: Sequence[Voter],
    clock: Clock,
    checking: Checking,
    redacting: Redacting,
    thoughts: Mapping[str, str],
) -> Round:
    """The round in which these voters agreed."""
    winner = agreed[0]
    draft = drafts[winner.name]
    groups = [*tally.groups.values(), *([voter] for voter in tally.silent)]
    whole = math.fsum(voter.weight for group in groups for voter in group)
    totals = dict.fromkeys(drafts, 0.0)
    votes: dict[str, dict[str, float]] = {}
    samples: dict[str, str] = {}
    for group in groups:
        share = math.fsum(voter.weight for voter in group) / whole
        for voter in group:
            totals[voter.name] = share
            votes[voter.name] = {author.name: 1.0 / len(group) for author in group}
    for voter in voters(before, tally.samples):
        if voter.sample and voter.name in drafts:
            samples[voter.name] = voter.member
    tokens = {winner.member: draft.tokens} if draft.tokens else {}
    segment = draft.segment(tokens)
    answer = answer.plus(segment)
    return Round(
        number=1,
        text=answer.text,
        segment=segment,
        winner=winner.name,
        authors=tuple(voter.name for voter in agreed),
        drafts=drafts,
        scores={},
        votes=votes,
        totals=totals,
        rewards={},
        weights_before=before.weights,
        weights=panel.weights,
        forced=answer.forced,
        thoughts=thoughts,
        lead=panel.lead or "",
        refusals=clock.refusals,
        left=panel.left[len(before.left) :],
        samples=samples,
        rejected=tuple(checking.rejected),
        checks={**checking.counts, **redacting.counts()},
        finish=answer.finish or "length",
        stalled=answer.stalled or answer.finish is None,
        efforts=clock.efforts,
        seconds=clock.seconds,
    )
