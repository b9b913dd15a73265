"""``decide``: which of these labels do the members vote for, and how much do they agree? Nothing is written."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from langchain_core.messages import convert_to_messages

from ..core.values import Query, Turn
from ..core.verdict import Verdict
from ..engine.drive import Schedule
from ..engine.ensemble import Ensemble
from ..errors import UsageError, advised
from . import options as _options
from .errors import langchain_errors, loading_errors
from .members import ensemble_for
from .messages import turns_of

OPTIONS = ("members", "verifiers", "prior", "timeout", "member_timeout")


def decide(
    question: Any,
    labels: Sequence[str],
    *,
    members: Sequence[Any],
    verifiers: Sequence[Any] = (),
    prior: Mapping[str, float] | None = None,
    list_labels: bool = True,
    timeout: float | None = None,
    member_timeout: float | None = None,
) -> Verdict:
    """The members' weighted vote on ``labels`` as the whole answer to ``question``; nothing is written.

    >>> from langchain_specfuse import ScriptedMember, decide
    >>> members = [ScriptedMember(text, name=name) for text, name in [("yes", "ann"), ("no", "bob"), ("yes", "cyd")]]
    >>> verdict = decide("Is the sky blue?", ["yes", "no"], members=members)
    >>> verdict.label, round(verdict.confidence, 2)
    ('yes', 0.65)

    ``question`` is a text or messages. Each member reads it once and scores every label, with the end of the answer
    behind it, in one pass; its probabilities of the labels are mixed by the members' weights (``prior``, else equal).
    Labels are compared as they are written: give them as the answer would say them. ``list_labels`` adds a line to the
    question that lists them. ``members`` are given as to ``SpecFuseChatModel`` and shared with it.
    """
    query = label_query(question, labels, list_labels=list_labels)
    ensemble, options = _checked(members, verifiers, prior, timeout=timeout, member_timeout=member_timeout)
    with langchain_errors():
        with loading_errors():
            ensemble.loaded().result()
        return ensemble.verdict(query, labels, **options)


async def adecide(
    question: Any,
    labels: Sequence[str],
    *,
    members: Sequence[Any],
    verifiers: Sequence[Any] = (),
    prior: Mapping[str, float] | None = None,
    list_labels: bool = True,
    timeout: float | None = None,
    member_timeout: float | None = None,
) -> Verdict:
    """``decide`` for asyncio."""
    query = label_query(question, labels, list_labels=list_labels)
    ensemble, options = _checked(members, verifiers, prior, timeout=timeout, member_timeout=member_timeout)
    with langchain_errors():
        with loading_errors():
            await asyncio.wrap_future(ensemble.loaded())
        return await ensemble.averdict(query, labels, **options)


def _checked(members: Any, verifiers: Any, prior: Any, **limits: Any) -> tuple[Ensemble, dict[str, Any]]:
    """The ensemble, and how to ask it."""
    chosen = _options.checked({"members": members, "verifiers": verifiers, "prior": prior, **limits}, OPTIONS)
    _options.check_names(chosen)
    schedule = Schedule(timeout=chosen.get("timeout"), member_timeout=chosen.get("member_timeout"))
    ensemble = ensemble_for(chosen["members"], chosen.get("verifiers", ()))
    return ensemble, {"prior": chosen.get("prior"), "schedule": schedule}


def label_query(question: Any, labels: Sequence[str], *, list_labels: bool = True) -> Query:
    """The query that members get."""
    _check_labels(labels)
    turns: Sequence[Turn] = turns_of(convert_to_messages([question] if isinstance(question, str) else question))
    if list_labels:
        plain = not any("," in label or "\n" in label for label in labels)
        listed = " " + ", ".join(labels) if plain else "".join(f"\n- {label}" for label in labels)
        line = f"Answer with one of these and nothing else:{listed}"
        if turns[-1].role == "user":
            turns = (*turns[:-1], replace(turns[-1], text=f"{turns[-1].text}\n\n{line}"))
        else:
            turns = (*turns, Turn("user", line))
    return Query(uuid.uuid4().hex, tuple(turns))


def _check_labels(labels: Any) -> None:
    listed = isinstance(labels, Sequence) and not isinstance(labels, str) and len(labels) > 0
    if not listed or not all(isinstance(label, str) and label.strip() for label in labels):
        error = UsageError(f"labels must be a list of texts, at least one, none of them empty, got {labels!r:.200}")
        raise advised(error, "for example ['yes', 'no']")
    for label in labels:
        _options.refuse_broken(label)
    if len(set(labels)) < len(labels):
        error = UsageError(f"labels must differ, got {labels!r:.200}")
        raise advised(error, "leave one out: a label's probability counts once")
