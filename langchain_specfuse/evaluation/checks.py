"""Checks of one loaded member: does it load, and are its chat template, scores and continuations
right?

All but the template is checked through the member's protocol alone, so it holds for every engine.
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
from .running import on_worker

GOOD, WATCH, BAD = "good", "watch", "bad"
CLOSE = 0.01
"""The log-probabilities of drafts and scores may differ by this much on average: rounding in
float32."""
COARSE = 0.25
"""And by this much in low precision. More means another model, or a shifted reading."""
QUESTIONS = ("Why is the sky blue?", "Name two fruits.", "Say hello in one sentence.")
FOREIGN = (" and then", "\n\n- one, two", " “naïve” 日本語 🎉", "tion")
"""Texts that another member may have written: words, lists, other scripts, half a word."""
_MARK = "specfuse-system-mark"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check of one member showed."""

    member: str
    check: str
    verdict: str
    """``good``, ``watch`` (it works, with a limitation) or ``bad`` (fix it, or leave the member
    out)."""
    text: str


Verdicts = Iterator[tuple[str, str]]
"""(verdict, text) of a check."""


def load(member: Member) -> tuple[Probe | None, Finding]:
    """Load a member: what it can do, or None and why it does not load."""
    since = time.perf_counter()
    try:
        probe = Ensemble([member]).loaded().result()[member.name]
    except Exception as error:
        return None, Finding(
            member.name, "loading", BAD, f"does not load: {type(error).__name__}: {error}"
        )
    context = f", context of {probe.max_context} tokens" if probe.max_context else ""
    detail = (
        f"loaded in {time.perf_counter() - since:.1f} s ({probe.detail or 'no details'}{context})"
    )
    return probe, Finding(member.name, "loading", GOOD, detail)


def examine(member: Member, probe: Probe) -> list[Finding]:
    """All checks of a loaded member."""
    checks: dict[str, Callable[[], Verdicts]] = {
        "template": lambda: _template(member),
        "scores": lambda: _scores(member, probe),
        "seams": lambda: _seams(member),
    }
    found: list[Finding] = []
    for name, check in checks.items():
        try:
            found += [Finding(member.name, name, verdict, text) for verdict, text in check()]
        except Exception as error:
            found.append(
                Finding(
                    member.name, name, BAD, f"the check failed: {type(error).__name__}: {error}"
                )
            )
    return found


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


# --- scores and seams -----------------------------------------------------------------------------


def _query(text: str) -> Query:
    return Query(f"doctor-{uuid.uuid4().hex}", (Turn("user", text),))


def _draft(
    member: Member, query: Query, answer: tuple[Segment, ...] = (), tokens: int = 8
) -> Draft:
    draft = member.draft([DraftJob(query, answer, tokens, 64, Sampling())])[0]
    if isinstance(draft, Failure):
        raise RuntimeError(f"drafting failed: {draft.message}")
    return draft


def _scores(member: Member, probe: Probe) -> Verdicts:
    """Whether its scores agree with the log-probabilities of its own drafts."""
    if not probe.scores:
        yield WATCH, "cannot score: it drafts, but has no vote"
        return
    found = [
        on_worker(member, partial(_distance, member, _query(text))).result() for text in QUESTIONS
    ]
    distances = [one for one in found if one is not None]
    if not distances:
        yield (
            WATCH,
            "its drafts have no log-probabilities, or other tokens: there is nothing to compare "
            "scores with",
        )
    else:
        verdict = GOOD if max(distances) <= CLOSE else WATCH if max(distances) <= COARSE else BAD
        yield (
            verdict,
            f"its scores differ from its drafts' own log-probabilities by {max(distances):.2g} per "
            "token",
        )


def _distance(member: Member, query: Query) -> float | None:
    """How far a draft's log-probabilities are from the scores of the same tokens."""
    try:
        draft = _draft(member, query)
        scored = member.score(
            [ScoreJob(query, (), (Candidate(draft.text, draft.ended, ("doctor",)),))]
        )[0]
        if isinstance(scored, Failure):
            raise RuntimeError(f"scoring failed: {scored.message}")
        comparable = draft.logprobs and len(draft.logprobs) == len(scored.logprobs[0])
        return _apart(draft.logprobs or (), scored.logprobs[0]) if comparable else None
    finally:
        member.forget(query.id)


def _apart(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(abs(a - b) for a, b in zip(one, other, strict=True)) / len(one)


def _seams(member: Member) -> Verdicts:
    """Whether it continues after another member's text in the same way with its caches and
    without."""
    found = [on_worker(member, partial(_seam, member, text)).result() for text in FOREIGN]
    wrong = next(filter(None, found), "")
    good = (
        f"continues after others' text as if it had read everything again ({len(FOREIGN)} kinds "
        "of text)"
    )
    yield (BAD, wrong) if wrong else (GOOD, good)


def _seam(member: Member, foreign: str) -> str:
    """What is wrong at a seam with this text; empty: nothing."""
    query = _query(QUESTIONS[0])
    try:
        first = _draft(member, query, tokens=4)
        answer = (Segment(first.text, tokens={member.name: first.tokens}), Segment(foreign))
        cached = _draft(member, query, answer)
        member.forget(query.id)
        getattr(member, "drop_prefixes", lambda: None)()  # it would hold this very query
        fresh = _draft(member, query, answer)
    finally:
        member.forget(query.id)
    if _unlike(cached, fresh):
        return (
            f"after {foreign!r} it says {cached.text!r}, but {fresh.text!r} when it reads "
            "everything again"
        )
    return ""


def _unlike(one: Draft, other: Draft) -> bool:
    """Whether two drafts of one job come from different readings. In low precision a near-tie may
    fall either way, so log-probabilities are compared up to where the drafts part."""
    if not one.logprobs or not other.logprobs:
        return one.text != other.text
    pairs = zip(one.tokens, other.tokens, strict=False)
    same = next(
        (at for at, (a, b) in enumerate(pairs) if a != b), min(len(one.tokens), len(other.tokens))
    )
    count = min(max(same, 1), len(one.logprobs), len(other.logprobs))
    return _apart(one.logprobs[:count], other.logprobs[:count]) > COARSE
