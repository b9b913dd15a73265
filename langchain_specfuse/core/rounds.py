"""The loop. Read this file first: several members write one answer, segment by segment.

The loop is a generator that does no work itself. It yields an :class:`.Ask` (which member should do
what), receives the replies through ``send``, and yields a frozen :class:`.Round` when a segment is
agreed. Therefore the same code serves threads, asyncio and tests, without torch, devices, timeouts
or LangChain. ``engine.drive`` runs it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, TypeAlias

from ..errors import EnsembleError, MemberError, advised, notes_in
from .answer import Answer, continues_loop, legal_part
from .ballot import Ballot, Reading
from .checking import Checking
from .checks import CheckAsk, Verdicts
from .options import NO_LIMIT, Method, Settings
from .panel import Panel, rewarded, with_record, without_losers
from .redacting import Redacting
from .referee import FREE, Referee
from .round import Departure, Round
from .values import (
    BUDGET,
    REFUSAL,
    Ask,
    Budget,
    Draft,
    DraftJob,
    Effort,
    Failure,
    Panelist,
    Query,
    Replies,
    Reply,
    Scored,
    ScoreJob,
    Segment,
    Wake,
)

Loop: TypeAlias = (
    "Generator[Ask | Wake | CheckAsk | Round, Replies | Panelist | Failure | Verdicts | None, None]"
)

CANNOT_CONTINUE = Failure(
    "error", "it cannot continue an object or a call that another member began and that was shown"
)
COSTS_TOO_MUCH = Failure(BUDGET, "the answer's budget (max_cost) is spent")
OVERFLOW = "shorten the conversation, or use members with a longer context"


def rounds(query: Query, settings: Settings, panel: Panel, referee: Referee = FREE) -> Loop:
    """All rounds of one answer. Send the replies to each ``Ask``, and the member or its failure to
    each ``Wake``; after a ``Round``, call ``next``."""
    method = settings.method
    leads, native = panel.has_one_writer(method.margin), panel.is_led_natively
    answer = Answer(
        stop=settings.stop_strings,
        budget=settings.budget(leads=leads, native=native),
        ends_loops=method.loop_guard and leads and not native,
        hold=query.hold,
    )
    clock = Clock(Budget.of(settings.max_calls, settings.max_cost))
    checking = Checking(settings)
    redacting = Redacting(settings.checks, query.rewrite)
    answer = checking.begun(answer)
    for number in count(1):
        before, panel = panel, panel.without_absent()
        clock = Clock(clock.budget)
        agreed = answer.text if number > 1 else ""
        checking.begin_round()
        # 1. Draft. Members propose how the answer continues: a lead that is sure drafts alone. If
        #    the lead cannot continue, a member in reserve takes its place. A draft that a check
        #    refuses cannot win. If none is left, members draft again.
        eligible: dict[str, Draft] = {}
        while not eligible:
            try:
                panel, answer, drafts = yield from call_for_drafts(
                    panel, query, settings, answer, referee, number, clock, checking, redacting
                )
            except EnsembleError as error:
                if not checking.is_redrafting:
                    raise
                drafts = {name: Draft("") for name in panel.drafters}  # no member leaves
                checked = yield from checking.without_writers(answer, error)
            else:
                if is_refused(settings, clock, drafts):
                    refuse_as_providers(clock, answer, number)
                    clock.refusals = yield from checking.refusals(clock.refusals, answer)
                    answer = answer.refused(shows_rest=number > 1 and checking.is_idle)
                    yield last_round(
                        number, panel, before, answer, drafts, clock, checking, redacting, agreed
                    )
                    return
                checked = yield from checking.judged(answer, drafts, panel)
            clock.lap_checks(checking)
            answer, eligible = checked.answer, checked.eligible
            if checked.is_over:
                yield last_round(
                    number, panel, before, answer, drafts, clock, checking, redacting, agreed
                )
                return
        # 2. Verify. Members score every draft.
        ballot = Ballot(method, eligible, answer.text, answer.referee)
        panel, readings = yield from call_for_scores(panel, query, answer, ballot, number, clock)
        # 3. Select. The best draft by weighted vote becomes part of the answer. The draft of a lead
        #    is replaced only if there is evidence for another one.
        vote = ballot.count(readings, panel.weights, panel.lead)
        withdrawn = agreed[len(answer.text) :]
        draft = eligible[vote.winner]
        answer = checking.agreed(answer, answer.plus(vote.segment), draft, vote.winner)
        voted = panel
        # 4. Feedback. Members whose drafts were preferred gain weight; a refused draft earns
        #    nothing.
        losers = {name: 0.0 for name in panel.drafters if name in checking.refused}
        rewards = {**vote.rewards, **losers}
        panel = rewarded(panel, rewards, eta=method.learning_rate / number)
        # 5. Exit. Members that keep losing leave for the rest of this answer.
        drafts = {**drafts, **eligible}
        totals = {**dict.fromkeys(drafts, 0.0), **vote.totals}
        disputed = vote.disputed or (bool(losers) and not checked.is_repaired)
        if method.exit == "studentized" and disputed and drafts.keys() >= set(panel.drafters):
            panel = with_record(panel, totals, vote.winner)
            panel = without_losers(panel, method.min_members, number)
        thoughts = yield from checking.thoughts(drafts, answer)
        clock.lap_checks(checking)
        yield Round(
            number=number,
            text=answer.released,
            segment=vote.segment,
            winner=vote.winner,
            authors=vote.authors,
            drafts=drafts,
            scores=vote.scores,
            votes=vote.votes,
            totals=totals,
            rewards=rewards,
            weights_before=voted.weights,
            weights=panel.weights,
            forced=answer.forced,
            thoughts=thoughts,
            looped=(vote.winner,) if answer.stalled and answer.is_loop else ballot.looped,
            lead=voted.lead or "",
            evidence=vote.evidence,
            refusals=clock.refusals,
            left=panel.left[len(before.left) :],
            rejected=tuple(checking.rejected),
            withdrawn=withdrawn,
            checks={**checking.counts, **redacting.counts()},
            finish=answer.finish,
            stalled=answer.stalled,
            efforts=clock.efforts,
            seconds=clock.seconds,
        )
        if answer.finish:
            return


def call_for_drafts(
    panel: Panel,
    query: Query,
    settings: Settings,
    answer: Answer,
    referee: Referee,
    number: int,
    clock: Clock,
    checking: Checking,
    redacting: Redacting,
) -> Generator[Ask | Wake, Any, tuple[Panel, Answer, dict[str, Draft]]]:
    """The panel, the answer as its writers go on with it (``referee`` judges those that are not
    native), and the drafts of all members, or of the lead alone if its draft is agreed without a
    vote. With an infinite margin, the lead always drafts alone; if it cannot, the others are asked
    one after the other until one can take its place. After a failed check, only the members that
    redraft are asked, and the others only if none of these can. Failed members leave the panel."""
    led = panel.lead is not None and settings.method.margin == math.inf
    leads = panel.has_one_writer(settings.method.margin)
    job = DraftJob(
        query,
        answer.segments,
        segment_tokens=settings.method.segment_tokens,
        max_tokens=answer.tokens_left,
        sampling=settings.sampling,
        # A draft that ends early at a stop string has another score, so a draft may end there only
        # if it is not put to a vote.
        stop=answer.stop if leads else (),
        budget=clock.budget,
        leads=leads,
        replaceable=bool(panel.reserve),
        logprobs=settings.logprobs,
    )
    if checking.wants_reserve(panel):
        panel, failures = yield from woken(panel, number)
        jobs = dict.fromkeys(failures, job)
        panel = without_failed(panel, jobs, failures, answer, number, needed=False)
    redrafting = checking.writers(panel)
    first = redrafting or ((panel.lead,) if panel.lead else panel.drafters)
    replies: Replies = dict.fromkeys(first, CANNOT_CONTINUE)
    continued: Answer | None = answer
    if referee is not FREE or redrafting or number == 1:
        continued = continued_by(answer, first[0], panel, settings, referee, leads=leads)
    if continued is not None:
        if continued is not answer:
            answer, job = checking.continued(answer, continued, job)
        jobs = {name: checking.job(job, name, panel, answer) for name in first}
        unpaid = too_dear(first, panel, clock.budget)
        for name in unpaid:
            del jobs[name]
        ask = Ask(jobs, number, bool(panel.reserve))
        replies = {**(yield from redacting.asked(ask, answer.stop)), **unpaid} if jobs else unpaid
        clock.lap("draft", replies)
    others = [name for name in panel.drafters if name not in replies]
    while led and (others or panel.reserve) and needs_successor(settings, clock, replies):
        successor = [*others, *panel.reserve][0]
        if others:
            others.pop(0)
        else:
            panel, failures = yield from woken(panel, number)
            if failures:
                replies = {**replies, **failures}
                continue
        continued = continued_by(answer, successor, panel, settings, referee)
        if continued is None:
            replies = {**replies, successor: CANNOT_CONTINUE}
            continue
        answer, job = checking.continued(answer, continued, job)
        job = replace(job, budget=clock.budget, replaceable=bool(panel.reserve))
        jobs = {successor: checking.job(job, successor, panel, answer)}
        ask = Ask(jobs, number, bool(panel.reserve))
        more = yield from redacting.asked(ask, answer.stop)
        clock.lap("draft", more)
        replies = {**replies, **more}
    has_redraft = bool(redrafting) and has_draft(replies)
    if led or has_redraft or (settings.method.refusals == "any" and clock.refusals):
        others = []
    if others and not is_agreed_alone(panel, settings.method, replies[first[0]], answer):
        job = replace(job, stop=(), budget=clock.budget, leads=False)
        more_jobs = {name: checking.job(job, name, panel, answer) for name in others}
        more = yield from redacting.asked(Ask(more_jobs, number), answer.stop)
        clock.lap("draft", more)
        replies = {**replies, **more}
    if number > 1 and not has_draft(replies) and not checking.is_redrafting:
        # A lead at its limits ends the answer, even if its reserve has failed.
        limiting = {first[0]: replies[first[0]]} if led else replies
        if is_at_limits(limiting):
            # The answer ends here, and no member leaves.
            return panel, answer, {name: Draft("") for name in panel.drafters}
    asked = [name for name in panel.drafters if name in replies]
    panel = without_failed(panel, dict.fromkeys(asked, job), replies, answer, number)
    drafts: dict[str, Draft] = {}
    for name in panel.drafters:
        reply = replies.get(name)
        if isinstance(reply, Draft):
            drafts[name] = legal_part(reply, answer)
    is_replaced = panel.lead is None or panel.lead in clock.refusals or checking.is_handed_over
    if led and drafts and is_replaced:
        panel = replace(panel, lead=next(iter(drafts)))
    return panel, answer, drafts


def continued_by(
    answer: Answer,
    name: str,
    panel: Panel,
    settings: Settings,
    referee: Referee,
    *,
    leads: bool = True,
) -> Answer | None:
    """The answer as this member continues it; None if it cannot. A provider enforces
    ``max_tokens`` itself, in its own tokens, and ends loops itself; other members write what is
    left of ``max_tokens``."""
    native = panel.is_native(name)
    continued = answer.written_by(native=native, referee=referee)
    if continued is None or not leads:
        return continued
    own = settings.max_tokens or min(answer.budget, settings.budget(leads=True))
    budget = NO_LIMIT if native else own
    is_guarded = answer.ends_loops or (settings.method.loop_guard and answer.budget == NO_LIMIT)
    return continued.limited_to(budget, ends_loops=is_guarded and not native)


def too_dear(names: Sequence[str], panel: Panel, budget: Budget) -> dict[str, Failure]:
    """The failures of the members whose open streams are read no further, because the answer has
    cost ``max_cost``."""
    if budget.dollars > 0:
        return {}
    return {name: COSTS_TOO_MUCH for name in names if panel.is_native(name)}


def woken(panel: Panel, number: int) -> Generator[Wake, Any, tuple[Panel, dict[str, Failure]]]:
    """The panel after the next member in reserve has joined, and its failure if it cannot take
    part."""
    name = panel.reserve[0]
    reply = yield Wake(name, number)
    if isinstance(reply, Failure):
        return panel.joined_by(Panelist(name, scores=False)), {name: reply}
    return panel.joined_by(reply), {}


def has_draft(replies: Mapping[str, Any]) -> bool:
    """Whether a member has drafted."""
    return any(isinstance(reply, Draft) for reply in replies.values())


def needs_successor(settings: Settings, clock: Clock, replies: Replies) -> bool:
    """Whether no member that was asked can continue. A refusal is an answer, unless the settings
    say otherwise."""
    if has_draft(replies):
        return False
    return not clock.refusals or settings.method.refusals == "ignore"


def is_agreed_alone(panel: Panel, method: Method, reply: Reply, answer: Answer) -> bool:
    """Whether the lead's draft is agreed without asking any other member, because the lead is sure
    of it."""
    if panel.lead is None or not isinstance(reply, Draft):
        return False
    draft = legal_part(reply, answer)
    if not (draft.text or draft.ended):
        return False
    if method.loop_guard and continues_loop(answer.text, draft.text):
        return False
    ballot = Ballot(method, {panel.lead: draft}, answer.text, answer.referee)
    return ballot.is_sure(panel.lead)


def is_at_limits(replies: Replies) -> bool:
    """Whether these failures say that contexts are full or the budget is spent. Members that
    refused may be among them."""
    kinds = {reply.kind for reply in replies.values() if isinstance(reply, Failure)}
    limits = {"overflow", BUDGET}
    return bool(kinds & limits) and kinds <= {*limits, REFUSAL}


def is_refused(settings: Settings, clock: Clock, replies: Mapping[str, Any]) -> bool:
    """Whether the answer is a refusal: no member has drafted, or one refusal is enough."""
    return bool(clock.refusals) and (settings.method.refusals == "any" or not has_draft(replies))


def last_round(
    number: int,
    panel: Panel,
    before: Panel,
    answer: Answer,
    drafts: Mapping[str, Draft],
    clock: Clock,
    checking: Checking,
    redacting: Redacting,
    agreed: str,
) -> Round:
    """The round of an answer that has ended without another segment: in a refusal (the lead's, or
    that of the member with the most weight), or before text that did not pass a check."""
    weights, is_refusal = panel.weights, answer.finish == "refusal"

    def rank(name: str) -> tuple[bool, float]:
        return name != panel.lead, -round(weights.get(name, 0.0), 12)

    if is_refusal:
        authors = sorted(clock.refusals, key=rank)
    else:
        authors = sorted(drafts, key=lambda name: name != panel.lead)[:1]
    drafts = {**drafts, **{name: clock.refused.get(name, Draft("")) for name in authors}}
    total = 1.0 / len(authors) if is_refusal else 0.0
    return Round(
        number=number,
        text=answer.released,
        segment=Segment(""),
        winner=authors[0],
        authors=tuple(authors),
        drafts=drafts,
        scores={},
        votes={},
        totals={name: total if name in authors else 0.0 for name in drafts},
        rewards={},
        weights_before=before.weights,
        weights=weights,
        lead=panel.lead or "",
        refusals=clock.refusals,
        left=panel.left[len(before.left) :],
        rejected=tuple(checking.rejected),
        withdrawn=agreed[len(answer.text) :],
        checks={**checking.counts, **redacting.counts()},
        finish=answer.finish,
        efforts=clock.efforts,
        seconds=clock.seconds,
    )


def call_for_scores(
    panel: Panel, query: Query, answer: Answer, ballot: Ballot, number: int, clock: Clock
) -> Generator[Ask, Replies, tuple[Panel, dict[str, list[Reading]]]]:
    """verifier -> how it reads each eligible draft. Empty if there is nothing to choose between."""
    if len(ballot.eligible) < 2 or not panel.verifiers:
        return panel, {}
    drafters = set(panel.drafters)
    jobs = {
        name: ScoreJob(
            query,
            answer.segments,
            ballot.to_score(name),
            thinks=name in drafters,
            budget=clock.budget,
        )
        for name in panel.verifiers
    }
    replies = yield Ask(jobs, number)
    clock.lap("verify", replies)
    panel = without_failed(panel, jobs, replies, answer, number)
    readings: dict[str, list[Reading]] = {}
    for name in panel.verifiers:
        reply = replies[name]
        if isinstance(reply, Scored):
            row = ballot.readings_of(name, reply)
            if row:  # otherwise it abstains
                readings[name] = row
    return panel, readings


def without_failed(
    panel: Panel,
    jobs: Mapping[str, DraftJob | ScoreJob],
    replies: Replies,
    answer: Answer,
    number: int,
    *,
    needed: bool = True,
) -> Panel:
    """The panel without the members that failed; an error if a drafting member is ``needed`` and
    none is left."""
    departures = []
    for name, job in jobs.items():
        reply = replies[name]
        if not isinstance(reply, Failure) or reply.kind == REFUSAL:
            continue
        # A member that may send no ballot stays if it drafts: its stream may be open.
        is_ballot = isinstance(job, ScoreJob)
        if reply.kind == BUDGET and is_ballot and name in panel.drafters:
            continue
        departures.append(Departure(name, reply.kind, reply.message, number, reply.cause))
    panel = panel.without(departures)
    if needed and not panel.drafters:
        raise no_member_left(panel, answer, number)
    return panel


def no_member_left(panel: Panel, answer: Answer, number: int) -> EnsembleError:
    """The error of an answer that no member can continue, with the advice of each failure."""
    reasons = "; ".join(f"{gone.member} ({gone.kind}): {gone.reason}" for gone in panel.left)
    failures = tuple(member_error(gone) for gone in panel.left if gone.kind != "exit")
    error = EnsembleError(
        f"no member is left to continue in round {number}: {reasons}",
        text=answer.text[: answer.verified],
        failures=failures,
    )
    for note in notes_in(*(failure.__cause__ for failure in failures)):
        error.add_note(note)
    if {failure.kind for failure in failures} == {"overflow"}:
        return advised(error, OVERFLOW)
    return error


def refuse_as_providers(clock: Clock, answer: Answer, number: int) -> None:
    """Raise if all refusals are errors of providers, as the chat models themselves would."""
    if clock.denied.keys() < clock.refusals.keys():
        return
    gone = [
        Departure(name, reply.kind, reply.message, number, reply.cause)
        for name, reply in clock.denied.items()
    ]
    reasons = "; ".join(f"{refused.member}: {refused.reason}" for refused in gone)
    raise EnsembleError(
        f"the question was refused in round {number}: {reasons}",
        text=answer.text[: answer.verified],
        failures=tuple(map(member_error, gone)),
    )


def member_error(gone: Departure) -> MemberError:
    """The departure of a failed member as an exception."""
    error = MemberError(gone.reason, member=gone.member, round=gone.round, kind=gone.kind)
    error.__cause__ = gone.cause
    return error


class Clock:
    """Wall-clock time, effort and refusals of one round, by phase. Charges costs to the budget."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.refusals: dict[str, str] = {}
        """member -> its refusal to draft."""
        self.refused: dict[str, Draft] = {}
        """member -> an empty draft with the parts of its refusal."""
        self.denied: dict[str, Failure] = {}
        """member -> its refusal, if its provider has sent that as an error."""
        self.seconds: dict[str, float] = {}
        self.efforts: dict[str, dict[str, Effort]] = {}
        self._since = time.perf_counter()

    def lap(self, phase: str, replies: Replies) -> None:
        """Add these replies. The time since the last lap belongs to this phase."""
        now = time.perf_counter()
        spent = now - self._since
        self._since = now
        self.seconds[phase] = self.seconds.get(phase, 0.0) + spent
        efforts = self.efforts.setdefault(phase, {})
        for name, reply in replies.items():
            if isinstance(reply, Failure):
                if phase == "draft" and reply.kind == REFUSAL:
                    self.refusals[name] = reply.message
                    self.refused[name] = Draft("", parts=reply.parts)
                    if reply.cause is not None:
                        self.denied[name] = reply
                if reply.effort == Effort():
                    continue
            efforts[name] = efforts[name] + reply.effort if name in efforts else reply.effort
            self.budget = self.budget.after(reply.effort)

    def lap_checks(self, checking: Checking) -> None:
        """Count the time since the last lap as time of the user's checks, if there are any."""
        if not checking.is_idle:
            self.lap("check", {})
