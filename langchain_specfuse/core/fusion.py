"""Fused answers: every member answers alone, then the lead reads all answers and writes the final
one.

The answers are round 0. The rounds after it are those of ``core.rounds`` for a longer question, so
checks, budgets, tools, constraints and the reserve work as in any other answer. Members that fail
leave; refusals and empty answers are left out. If the lead refuses to write the final answer,
another member writes it, unless one refusal is enough (``refusals="any"``). A single answer is
fused too: the lead may still correct it, and the final answer is streamed and checked in the same
way however many members have answered. If there is no answer to read, the lead answers the question
itself.

Paper: it does not merge answers. Mixture-of-Agents (Wang et al., 2024) merges them in this way.
With several samples of one member, this is called self-fusion.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import replace

from ..errors import EnsembleError, advised
from . import prompts
from .answer import Answer, legal_part
from .checking import Checking
from .consensus import job_of, sample_name, whole_answers
from .options import Settings
from .panel import Panel
from .referee import FREE, Referee
from .results import FUSE
from .round import Round
from .rounds import (
    Budget,
    Clock,
    Loop,
    is_refused,
    no_member_left,
    refused_round,
    rounds,
    without_failed,
)
from .values import BUDGET, Ask, Draft, DraftJob, Failure, Query, Replies, Reply, Segment, Turn

SHORTER_ANSWERS = (
    "the writer reads all answers: use fewer members, fewer samples or a smaller max_tokens"
)


def is_fused(settings: Settings) -> bool:
    """Whether answers are merged."""
    return settings.segment == "answer" and settings.result == FUSE


def fused(query: Query, settings: Settings, panel: Panel, referee: Referee = FREE) -> Loop:
    """Like :func:`.rounds`: round 0 with the members' own answers, then the rounds of the final
    answer."""
    answer = Answer(
        stop=settings.stop_strings, budget=settings.max_tokens, referee=referee
    ).started()
    budget = Budget(settings.max_calls, settings.max_cost)
    checking = Checking(settings)
    checking.begin_round()
    clock = Clock(budget)
    before = panel
    names = panel.drafters
    drafts: dict[str, Draft] = {}
    samples: dict[str, str] = {}
    # 1. Every member answers alone: all in parallel, then all a second time, and so on.
    for sample in range(settings.samples):
        can_pay = not budget.is_spent
        jobs = {name: job_of(query, settings, answer, sample, can_pay) for name in panel.drafters}
        if not jobs:
            break
        has_free = any(_is_free(draft) for draft in drafts.values())
        replies = yield from _own_answers(jobs, answer, panel, budget, has_free=has_free)
        clock.lap("draft", replies)
        staying = _unpaid(replies, {samples.get(name, name) for name in drafts})
        failing = {name: job for name, job in jobs.items() if name not in staying}
        panel = without_failed(panel, failing, replies, answer, 0, needed=False)
        for name, reply in replies.items():
            if not isinstance(reply, Draft):
                continue
            draft_name = sample_name(name, sample, names)
            drafts[draft_name] = _whole(legal_part(reply, answer), answer)
            if sample:
                samples[draft_name] = name
        if settings.refusals == "any" and clock.refusals:
            break
    writers = _writers(panel, {samples.get(name, name) for name in drafts})
    thoughts = yield from checking.thoughts(drafts, answer)
    clock.lap_checks(checking)
    yield Round(
        number=0,
        text="",
        segment=Segment(""),
        winner="",
        drafts=drafts,
        scores={},
        votes={},
        totals={},
        rewards={},
        weights_before=before.weights,
        weights=panel.weights,
        thoughts=thoughts,
        lead=writers[0] if writers else "",
        refusals=clock.refusals,
        left=panel.left,
        samples=samples,
        checks=checking.counts,
        efforts=clock.efforts,
        seconds=clock.seconds,
        began=clock.began,
    )
    if not panel.drafters:
        raise no_member_left(panel, answer, 1)
    if is_refused(settings, clock, drafts):
        checking.begin_round()
        last = Clock(budget)
        last.refusals = yield from checking.refusals(clock.refusals, answer)
        yield refused_round(1, panel, panel, answer, {}, last, checking, answer.text)
        return
    # 2. The lead reads the answers and writes the final one. The others are in reserve.
    question = _question(query, [draft.text for draft in drafts.values()])
    try:
        yield from rounds(question, _final(settings), _led(panel, writers), referee, budget=budget)
    except EnsembleError as error:
        is_longer = question.turns != query.turns
        if is_longer and any(gone.kind == "overflow" for gone in error.failures if gone.round):
            advised(error, SHORTER_ANSWERS)
        raise


def _own_answers(
    jobs: Mapping[str, DraftJob],
    answer: Answer,
    panel: Panel,
    budget: Budget,
    *,
    has_free: bool,
) -> Generator[Ask, Replies, Replies]:
    """The replies to these jobs. One of the requests that ``max_calls`` allows is kept for the
    final answer, unless a member that sends none has answered (``has_free``: one has before) and
    can write it. So if there are too few requests, the last members are not asked.

    Only the replies show which members send requests. Those that may not send one are asked all the
    same, and asked again if there are requests left.
    """
    allowed = budget.calls_left
    order = sorted(jobs, key=lambda name: name != panel.lead)
    paying = order if len(order) < allowed else order[: max(0, int(allowed) - 1)]
    asked = {
        name: replace(job, new_requests=job.new_requests and name in paying)
        for name, job in jobs.items()
    }
    replies = dict((yield from whole_answers(asked, answer, replaceable=len(jobs) > 1)))
    denied = [name for name in order if name not in paying]
    while denied := [name for name in denied if _is_unpaid(replies[name])]:
        has_free = has_free or any(map(_is_free, replies.values()))
        used = sum(reply.effort.requests for reply in replies.values())
        left = int(allowed) - used - (not has_free)
        if left <= 0 or budget.is_spent:
            break
        again = {name: jobs[name] for name in denied[:left]}
        denied = denied[left:]
        replies |= yield from whole_answers(again, answer, replaceable=len(jobs) > 1)
    return replies


def _is_free(reply: Reply) -> bool:
    """Whether this is the draft of a member that sends no requests which count."""
    return isinstance(reply, Draft) and not reply.effort.requests


def _is_unpaid(reply: Reply) -> bool:
    """Whether the member would have needed a request that it may not send."""
    return isinstance(reply, Failure) and reply.kind == BUDGET


def _unpaid(replies: Replies, answered: Collection[str]) -> set[str]:
    """The members that could not be asked, and stay because they may write the final answer: those
    that have ``answered`` before or, if nobody has answered, all."""
    unpaid = {name for name, reply in replies.items() if _is_unpaid(reply)}
    drafted = any(isinstance(reply, Draft) for reply in replies.values())
    return unpaid & set(answered) if answered or drafted else unpaid


def _writers(panel: Panel, answered: Collection[str]) -> list[str]:
    """The member that writes the final answer, then those that may take its place: members that
    have answered come before those that refused, the lead before the others, and more weight before
    less. Empty if no member is left."""

    def rank(name: str) -> tuple[bool, bool, float]:
        return name not in answered, name != panel.lead, -round(panel.weights[name], 12)

    return sorted(panel.drafters, key=rank)


def _led(panel: Panel, writers: Sequence[str]) -> Panel:
    """The panel in which the first of these members writes alone and the others are in reserve."""
    writer, *reserve = writers
    (lead,) = [member for member in panel.members if member.name == writer]
    return replace(
        panel, members=(lead,), weights={writer: 1.0}, lead=writer, reserve=tuple(reserve)
    )


def _final(settings: Settings) -> Settings:
    """The settings of the final answer: one member writes alone. If it refuses although others have
    answered, one of them writes instead."""
    alone = settings.method.model_copy(update={"margin": math.inf})
    refusals = "any" if settings.refusals == "any" else "ignore"
    return settings.model_copy(update={"method": alone, "refusals": refusals})


def _whole(draft: Draft, answer: Answer) -> Draft:
    """A member's own answer from its first character, without a stop string and the text after
    it."""
    whole = answer.plus(Segment(draft.text, draft.ended))
    is_complete = whole.finish in ("stop", "stop_string")
    return Draft(whole.text, is_complete, draft.tokens, effort=draft.effort, thought=draft.thought)


def _question(query: Query, texts: Sequence[str]) -> Query:
    """The query whose last message is followed by these answers, without those that are empty. If
    that message is not the user's, they form a new user message: the system's text, an assistant's
    text and a tool's result stay as they are.

    Its id is new, because members keep their caches and scripts by the id.
    """
    read = [text for text in texts if text.strip()]
    turns = query.turns
    if read:
        if turns[-1].role != "user":
            turns = (*turns, Turn("user", ""))
        last = turns[-1]
        turns = (*turns[:-1], replace(last, text=prompts.fusion(last.text, read)))
    return replace(query, id=f"{query.id}-fused", turns=turns)
