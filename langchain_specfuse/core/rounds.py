"""THE LOOP. Read this first: several members write one answer, segment by segment.

It is one generator and does no work itself: it yields an :class:`.Ask` (who should do what), is sent the replies, and
yields a frozen :class:`.Round` when a segment is agreed. So the same code serves threads, asyncio and tests, and knows
nothing of torch, devices, time-outs or LangChain. ``engine.drive`` pumps it.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TypeAlias

from ..errors import EnsembleError, MemberError, advised
from .answer import Answer, lawful
from .ballot import Ballot
from .casting import Casting, hints, in_turn
from .panel import Panel, dismissed, hedged, learning_rate, observed
from .referee import FREE, Referee
from .umpire import Dispute, without_question
from .values import (
    LATE,
    Ask,
    Departure,
    Draft,
    DraftJob,
    Effort,
    Failure,
    Query,
    Replies,
    Reply,
    Round,
    Scored,
    ScoreJob,
    Settings,
)

Loop: TypeAlias = "Generator[Ask | Round, Replies | None, None]"

_ADVICE = {
    "overflow": "shorten the conversation, or use members with a longer context",
    "other": "what each member raised is in .failures, with its cause; try them one by one",
}
EVERYBODY = Casting()
"""Nobody has won yet, so everybody drafts."""
ROUNDING = 1e-3
"""A log-probability may be this far above 0: low precision."""


def rounds(query: Query, settings: Settings, panel: Panel, referee: Referee = FREE) -> Loop:
    """All rounds of one answer. Send it the replies to each ``Ask``; after a ``Round``, ask for the next item."""
    answer = Answer(stop=settings.stop, budget=settings.max_tokens, referee=referee).started()
    casting = EVERYBODY
    for number in range(1, (settings.max_rounds or settings.max_tokens) + 1):
        before, clock = panel, Clock()  # ``before`` came in, ``voted`` decides, ``panel`` goes on
        # 1. Draft. Everyone proposes how to go on (or who has won so far; in doubt, everyone).
        panel, drafts = yield from call_for_drafts(panel, query, settings, answer, number, clock, casting)
        # 2. Verify. Everyone scores everyone's draft.
        ballot = Ballot(settings, drafts, answer.text, referee)
        panel, scores = yield from call_for_scores(panel, query, answer, ballot, number, clock)
        # 3. Select. The best draft, by weighted vote, becomes part of the answer.
        panel, scores, ruling = yield from call_for_umpire(
            panel, query, settings, answer, ballot, scores, number, clock
        )
        vote = ballot.counted(scores, panel.weights, ruling)
        answer = answer.plus(vote.segment, last=number == settings.max_rounds)
        voted, casting = panel, casting.after(drafts, vote)
        # 4. Feedback. Members whose drafts were well received gain weight.
        eta = learning_rate(settings.feedback, settings.learning_rate, number, len(panel.drafters))
        panel = hedged(panel, vote.rewards, eta)
        # 5. Exit. Members that keep losing leave for the rest of this answer.
        if vote.disputed and drafts.keys() >= set(panel.drafters):
            panel = observed(panel, vote.totals, vote.winner)
            panel = dismissed(settings.exit, panel, settings.min_members, number, vote.assured)
        yield Round(
            number=number,
            text=answer.released,
            segment=vote.segment,
            winner=vote.winner,
            authors=vote.authors,
            drafts=drafts,
            scores=vote.scores,
            votes=vote.votes,
            totals=vote.totals,
            rewards=vote.rewards,
            weights_before=voted.weights,
            weights=panel.weights,
            forced=answer.forced,
            closed=answer.closed,
            thoughts={name: draft.thought for name, draft in drafts.items() if draft.thought},
            looped=ballot.looped,
            umpire=ruling[0].umpire if ruling else "",
            late=clock.late,
            left=panel.left[len(before.left) :],
            finish=answer.finish,
            efforts=clock.efforts,
            seconds=clock.seconds,
            began=clock.began,
        )
        if answer.finish:
            return


def call_for_drafts(
    panel: Panel,
    query: Query,
    settings: Settings,
    answer: Answer,
    number: int,
    clock: Clock,
    casting: Casting = EVERYBODY,
) -> Generator[Ask, Replies, tuple[Panel, dict[str, Draft]]]:
    """What those who are cast propose, and in doubt the rest. Who failed has left the panel, who is late has not."""
    job = DraftJob(
        query,
        answer.segments,
        segment_tokens=settings.segment_tokens,
        max_tokens=answer.tokens_left,
        sampling=settings.sampling,
        stop=settings.stop,
    )
    replies = yield from _asked(casting.cast(panel, settings.drafters), panel, job, settings, answer, number, clock)
    rest = [name for name in panel.drafters if name not in replies]
    sound = [name for name in replies if rest and not failure_of(job, replies[name])]
    if rest and casting.doubts(panel, _drafts(sound, replies, answer), answer.text, settings.loop_guard):
        again = [name for name in panel.drafters if name in rest or is_late(replies[name])]
        replies = yield from _asked(again, panel, job, settings, answer, number, clock, replies)
    if number > 1 and all(isinstance(r, Failure) and r.kind == "overflow" for r in replies.values()):
        # Everybody's context is full: nobody leaves, and nobody has more to say. The answer ends here.
        return panel, {name: Draft("") for name in panel.drafters}
    asked = [name for name in panel.drafters if name in replies]
    panel = _without_failed(panel, dict.fromkeys(asked, job), replies, answer, number)
    return panel, _drafts([name for name in panel.drafters if name in replies], replies, answer)


def _asked(
    names: Sequence[str],
    panel: Panel,
    job: DraftJob,
    settings: Settings,
    answer: Answer,
    number: int,
    clock: Clock,
    replies: Replies = MappingProxyType({}),
) -> Generator[Ask, Replies, dict[str, Reply]]:
    """These members' replies, and those that were there. Who speculates is told what has been drafted so far."""
    new, replies = [name for name in names if name not in replies], dict(replies)
    others = set(panel.drafters) - {*names, *replies}
    # Who was late once is not waited for again: it is asked with those who wait.
    *first, _ = in_turn(panel.seats, new, settings.speculate)
    smaller = {name for part in first for name in part}
    for part in [*first, [name for name in names if name not in smaller]]:
        if settings.speculate:
            sound = [name for name in replies if not failure_of(job, replies[name])]
            job = replace(job, hints=hints(_drafts(sound, replies, answer)))
        here = any(name in replies and not failure_of(job, replies[name]) for name in names)
        told = yield Ask(dict.fromkeys(part, job), number, spare=bool(others) or here or part in first)
        clock.lap("draft", told)
        replies |= {name: told[name] for name in part}
    return replies


def _drafts(names: Sequence[str], replies: Replies, answer: Answer) -> dict[str, Draft]:
    """What these members drafted, as it may stand."""
    told = {name: draft for name in names if isinstance(draft := replies[name], Draft)}
    return {name: lawful(draft, answer) for name, draft in told.items()}


def call_for_scores(
    panel: Panel, query: Query, answer: Answer, ballot: Ballot, number: int, clock: Clock
) -> Generator[Ask, Replies, tuple[Panel, dict[str, list[float]]]]:
    """verifier -> its score of each eligible draft. Nobody is asked when there is nothing to choose."""
    if len(ballot.eligible) < 2 or not panel.verifiers:
        return panel, {}
    writers = set(panel.drafters)
    jobs = {
        name: ScoreJob(query, answer.segments, ballot.unknown_to(name), thinks=name in writers)
        for name in panel.verifiers
    }
    replies = yield Ask(jobs, number)
    clock.lap("verify", replies)
    panel = _without_failed(panel, jobs, replies, answer, number)
    told = {name: reply for name in panel.verifiers if isinstance(reply := replies[name], Scored)}
    return panel, {name: ballot.scores_of(name, scored) for name, scored in told.items()}


def call_for_umpire(
    panel: Panel,
    query: Query,
    settings: Settings,
    answer: Answer,
    ballot: Ballot,
    scores: dict[str, list[float]],
    number: int,
    clock: Clock,
) -> Generator[Ask, Replies, tuple[Panel, dict[str, list[float]], tuple[Dispute, int] | None]]:
    """Where several members are sure of different beginnings: which of these the question calls for, as one sees it
    that is no party.

    Later, what was agreed before says more about a draft than the question does. Who is late here is not waited for,
    who fails has left the panel, and both rule nothing.
    """
    between = ballot.dispute(scores) if settings.umpire and number == 1 else None
    unasked = without_question(query) if between else None
    if between is None or unasked is None:
        return panel, scores, None
    job = ScoreJob(unasked, answer.segments, tuple(ballot.eligible[i] for i in between.drafts), thinks=False)
    replies = yield Ask({between.umpire: job}, number, spare=True)
    clock.lap("verify", replies)
    reply = replies[between.umpire]
    if is_late(reply):
        return panel, scores, None
    panel = _without_failed(panel, {between.umpire: job}, replies, answer, number)
    if failure_of(job, reply) or not isinstance(reply, Scored):
        return panel, {name: row for name, row in scores.items() if name != between.umpire}, None
    return panel, scores, (between, ballot.called_for(between, scores, reply))


def _without_failed(
    panel: Panel, jobs: Mapping[str, DraftJob | ScoreJob], replies: Replies, answer: Answer, number: int
) -> Panel:
    """The panel without the members that failed or returned nonsense. Nobody left: the answer cannot be finished."""
    failures = {name: failure for name, job in jobs.items() if (failure := failure_of(job, replies[name]))}
    if len(failures) < len(jobs):  # where somebody has answered, who is late is out of this round only
        failures = {name: failure for name, failure in failures.items() if failure.kind != LATE}
    panel = panel.without([Departure(name, f.kind, f.message, number, f.cause) for name, f in failures.items()])
    if panel.drafters:
        return panel
    told = "; ".join(f"{d.member} ({d.kind}): {d.reason}" for d in panel.left)
    errors = tuple(member_error(gone) for gone in panel.left if gone.kind != "exit")
    error = EnsembleError(f"no member is left to go on in round {number}: {told}", text=answer.text, failures=errors)
    raise advised(error, _ADVICE["overflow" if {e.kind for e in errors} == {"overflow"} else "other"])


def failure_of(job: DraftJob | ScoreJob, reply: Reply) -> Failure | None:
    """Why this is not a reply to this job, if it is not: a member's nonsense must not hurt the others."""
    if isinstance(reply, Failure):
        return reply
    try:
        return _nonsense(job, reply)
    except (TypeError, ValueError, AttributeError) as error:
        return Failure("error", f"replied with nonsense: {type(error).__name__}: {error}", error)


def is_late(reply: Reply) -> bool:
    """Whether this is no reply yet, and no failure either."""
    return isinstance(reply, Failure) and reply.kind == LATE


def _nonsense(job: DraftJob | ScoreJob, reply: Reply) -> Failure | None:
    wanted = Draft if isinstance(job, DraftJob) else Scored
    if not isinstance(reply, wanted):
        return Failure("error", f"replied with {type(reply).__name__} (wanted {wanted.__name__})")
    rows: Sequence[Sequence[float]] = reply.logprobs if isinstance(reply, Scored) else (reply.logprobs or (),)
    if isinstance(job, ScoreJob) and len(rows) != len(job.candidates):
        return Failure("error", f"scored {len(rows)} candidates (wanted {len(job.candidates)})")
    if isinstance(reply, Scored) and reply.ends is not None and len(reply.ends) != len(rows):
        return Failure("error", f"told {len(reply.ends)} rows of ends for {len(rows)} candidates")
    if isinstance(reply, Draft):
        reply.text.encode()  # half a surrogate pair is no text
    # max alone may overlook a NaN, the sum never does.
    suspect = [row for row in rows if row and not (max(row) <= ROUNDING and sum(row) <= ROUNDING)]
    bad = [value for row in suspect for value in row if not value <= ROUNDING]
    return Failure("nan", f"returned {bad[0]} as a log-probability (wanted a number of at most 0)") if bad else None


def member_error(gone: Departure) -> MemberError:
    error = MemberError(gone.reason, member=gone.member, round=gone.round, kind=gone.kind)
    error.__cause__ = gone.cause
    return error


class Clock:
    """Wall-clock time and effort of one round, by phase, and who was late."""

    def __init__(self) -> None:
        self.late: dict[str, tuple[str, ...]] = {}
        self.seconds: dict[str, float] = {}
        self.efforts: dict[str, dict[str, Effort]] = {}
        self.began: dict[str, float] = {}
        self._since = time.perf_counter()

    def lap(self, phase: str, replies: Replies) -> None:
        now = time.perf_counter()
        spent, self._since = now - self._since, now
        self.began.setdefault(phase, time.time() - spent)
        self.seconds[phase] = self.seconds.get(phase, 0.0) + spent
        efforts = {n: r.effort for n, r in replies.items() if isinstance(r, Draft | Scored)}
        known = self.efforts.get(phase, {})
        self.efforts[phase] = known | {n: known[n] + effort if n in known else effort for n, effort in efforts.items()}
        before = [name for name in self.late.pop(phase, ()) if name not in replies]
        if late := (*before, *(name for name, reply in replies.items() if is_late(reply))):
            self.late[phase] = late
