"""Health checks of one member: whether it loads, and whether its chat template, scores and
continuations are right.

All checks but that of the template use the member's protocol alone, so they work for every engine.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..core.member import Member, Probe
from ..core.values import (
    Candidate,
    Draft,
    DraftJob,
    Failure,
    Query,
    Sampling,
    ScoreJob,
    Segment,
    Turn,
)
from ..engine.ensemble import Ensemble
from ..errors import message_of
from .running import on_worker

GOOD, WATCH, BAD = "good", "watch", "bad"
CLOSE = 0.01
"""How much log-probabilities of drafts and scores may differ on average because of rounding in
float32."""
COARSE = 0.25
"""How much they may differ in low precision. If they differ more, the scores belong to another
model or to other positions."""
QUESTIONS = ("Why is the sky blue?", "Name two fruits.", "Say hello in one sentence.")
FOREIGN = (" and then", "\n\n- one, two", " “naïve” 日本語 🎉", "tion")
"""Texts that another member may have written: words, lists, other scripts, half a word."""
_MARK = "specfuse-system-mark"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check of one member."""

    member: str
    check: str
    verdict: str
    """``good``, ``watch`` (it works, with a limitation) or ``bad`` (fix it, or leave the member
    out)."""
    text: str


Verdicts = Iterator[tuple[str, str]]
"""(verdict, text) of a check."""


def load(member: Member) -> tuple[Probe | None, Finding]:
    """Load a member. Returns its probe, or None and the reason why it does not load."""
    since = time.perf_counter()
    try:
        probe = Ensemble([member]).loaded().result()[member.name]
    except Exception as error:
        text = f"does not load: {type(error).__name__}: {message_of(error)}"
        return None, Finding(member.name, "loading", BAD, text)
    details = probe.detail or "no details"
    if probe.max_context:
        details += f", context of {probe.max_context} tokens"
    text = f"loaded in {time.perf_counter() - since:.1f} s ({details})"
    return probe, Finding(member.name, "loading", GOOD, text)


def examine(member: Member, probe: Probe) -> list[Finding]:
    """All checks of a loaded member."""
    checks: dict[str, Callable[[], Verdicts]] = {
        "template": lambda: _template(member),
        "scores": lambda: _scores(member, probe),
        "seams": lambda: _seams(member),
    }
    findings: list[Finding] = []
    for name, check in checks.items():
        try:
            findings += [Finding(member.name, name, verdict, text) for verdict, text in check()]
        except Exception as error:
            text = f"the check failed: {type(error).__name__}: {message_of(error)}"
            findings.append(Finding(member.name, name, BAD, text))
    return findings


def _template(member: Any) -> Verdicts:
    """Whether the chat template of a member in this process passes on system messages."""
    template = getattr(member, "template", None)
    if template is None:
        return
    if _MARK not in template.prompt([Turn("system", _MARK), Turn("user", "x")]):
        yield BAD, "a system message does not reach it"
    elif not template.plain:
        yield GOOD, "chat template, with system messages"
    elif getattr(member, "chat_template", None) == "plain":
        yield GOOD, "no chat template: it is asked in a plain form, as chosen"
    else:
        yield (
            WATCH,
            "no chat template: a plain form is used; right for a base model, else give "
            "chat_template=...",
        )


def _query(text: str) -> Query:
    return Query(f"doctor-{uuid.uuid4().hex}", (Turn("user", text),))


def _draft(
    member: Member, query: Query, answer: tuple[Segment, ...] = (), tokens: int = 8
) -> Draft:
    draft = member.draft([DraftJob(query, answer, tokens, 64, Sampling())])[0]
    if isinstance(draft, Failure):
        raise RuntimeError(f"drafting failed: {draft.message}")
    return draft


# --- scores ---------------------------------------------------------------------------------------


def _scores(member: Member, probe: Probe) -> Verdicts:
    """Whether its scores agree with the log-probabilities of its own drafts."""
    if not probe.scores:
        yield WATCH, "cannot score: it drafts, but has no vote"
        return
    distances = []
    for text in QUESTIONS:
        distance = on_worker(member, partial(_distance, member, _query(text))).result()
        if distance is not None:
            distances.append(distance)
    if not distances:
        yield (
            WATCH,
            "its drafts have no log-probabilities, or other tokens: there is nothing to compare "
            "scores with",
        )
        return
    largest = max(distances)
    if largest <= CLOSE:
        verdict = GOOD
    elif largest <= COARSE:
        verdict = WATCH
    else:
        verdict = BAD
    yield (
        verdict,
        f"its scores differ from its drafts' own log-probabilities by {largest:.2g} per token",
    )


def _distance(member: Member, query: Query) -> float | None:
    """The mean difference between a draft's log-probabilities and the scores of the same tokens;
    None if the tokens are not the same."""
    try:
        draft = _draft(member, query)
        candidate = Candidate(draft.text, draft.ended, ("doctor",))
        scored = member.score([ScoreJob(query, (), (candidate,))])[0]
        if isinstance(scored, Failure):
            raise RuntimeError(f"scoring failed: {scored.message}")
        scores = scored.logprobs[0]
        if not draft.logprobs or len(draft.logprobs) != len(scores):
            return None
        return _mean_difference(draft.logprobs, scores)
    finally:
        member.forget(query.id)


def _mean_difference(values: Sequence[float], others: Sequence[float]) -> float:
    return sum(abs(a - b) for a, b in zip(values, others, strict=True)) / len(values)


# --- seams ----------------------------------------------------------------------------------------


def _seams(member: Member) -> Verdicts:
    """Whether it continues after another member's text in the same way with and without its
    caches."""
    for foreign in FOREIGN:
        problem = on_worker(member, partial(_seam, member, foreign)).result()
        if problem:
            yield BAD, problem
            return
    yield (
        GOOD,
        "continues after others' text as if it had read everything again "
        f"({len(FOREIGN)} kinds of text)",
    )


def _seam(member: Member, foreign: str) -> str:
    """What is wrong at a seam with this text; empty if nothing is."""
    query = _query(QUESTIONS[0])
    try:
        first = _draft(member, query, tokens=4)
        answer = (Segment(first.text, tokens={member.name: first.tokens}), Segment(foreign))
        cached = _draft(member, query, answer)
        member.forget(query.id)
        drop_prefixes = getattr(member, "drop_prefixes", None)
        if drop_prefixes is not None:  # the caches include this query
            drop_prefixes()
        fresh = _draft(member, query, answer)
    finally:
        member.forget(query.id)
    if not _differ(cached, fresh):
        return ""
    return (
        f"after {foreign!r} it continues with {cached.text!r}, but with {fresh.text!r} when it "
        "reads everything again"
    )


def _differ(cached: Draft, fresh: Draft) -> bool:
    """Whether two drafts of one job come from different contexts.

    In low precision a near-tie may be decided either way, so log-probabilities are compared up to
    the first token that differs.
    """
    if not cached.logprobs or not fresh.logprobs:
        return cached.text != fresh.text
    shared = min(len(cached.tokens), len(fresh.tokens))
    for position in range(shared):
        if cached.tokens[position] != fresh.tokens[position]:
            shared = position
            break
    count = min(max(shared, 1), len(cached.logprobs), len(fresh.logprobs))
    return _mean_difference(cached.logprobs[:count], fresh.logprobs[:count]) > COARSE
