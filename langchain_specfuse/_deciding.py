"""``decide``: which of these labels do the members think right, and are they of one mind? Works on every version.

Turns a question in LangChain's forms into a query and asks the ensemble for its verdict. Writes no text.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from langchain_core.messages import convert_to_messages
from langchain_core.prompt_values import PromptValue

from . import _options, _registry
from ._errors import langchain_errors, loading_errors
from ._fields import members_list
from ._messages import turns_of
from .core.values import Query, Turn
from .core.verdict import Verdict
from .engine.ensemble import Ensemble
from .errors import UsageError, advised


def decide(
    question: Any,
    labels: Sequence[str],
    *,
    members: Sequence[Any],
    verifiers: Sequence[Any] = (),
    prior: Mapping[str, float] | None = None,
    told: bool = True,
    timeout: float | None = None,
    member_timeout: float | None = None,
) -> Verdict:
    """The members' weighted vote on ``labels`` as the whole answer to ``question``; nothing is written.

    >>> from langchain_specfuse import ScriptedMember, decide
    >>> members = [ScriptedMember(text, name=name) for text, name in [("yes", "ann"), ("no", "bob"), ("yes", "cyd")]]
    >>> verdict = decide("Is the sky blue?", ["yes", "no"], members=members)
    >>> verdict.label, round(verdict.confidence, 2), round(verdict.dissent, 2)
    ('yes', 0.65, 0.64)

    ``question`` is a text or messages. Each member reads it once and scores every label with the end behind it in one
    pass; its probabilities of the labels are mixed with the members' weights (``prior``, else equal). Labels are
    compared as they are written: give them as the answer would say them. ``told`` adds a line to the question that
    names them; False asks exactly what you wrote. ``members`` are given as to ``SpecFuseChatModel`` and shared with it.
    """
    asked = Asked.of(members, prior, timeout, member_timeout, verifiers=verifiers)
    return asked.verdict(turns_of(_messages(question)), labels, told=told)


async def adecide(
    question: Any,
    labels: Sequence[str],
    *,
    members: Sequence[Any],
    verifiers: Sequence[Any] = (),
    prior: Mapping[str, float] | None = None,
    told: bool = True,
    timeout: float | None = None,
    member_timeout: float | None = None,
) -> Verdict:
    """``decide`` for asyncio."""
    asked = Asked.of(members, prior, timeout, member_timeout, verifiers=verifiers)
    return await asked.averdict(turns_of(_messages(question)), labels, told=told)


@dataclass(frozen=True, slots=True)
class Asked:
    """Who is asked, and with what weights and limits."""

    ensemble: Ensemble
    limits: Mapping[str, Any]

    @classmethod
    def of(
        cls,
        members: Any,
        prior: Mapping[str, float] | None,
        timeout: float | None,
        member_timeout: float | None,
        *,
        verifiers: Any = (),
    ) -> Asked:
        """Checks everything that was given; loads nothing."""
        given = members_list(members, "members"), members_list(verifiers, "verifiers")
        names = _registry.names_of([*given[0], *given[1]])
        prior = prior and _options.checked_prior(prior, names)
        chosen = _options.checked({"timeout": timeout, "member_timeout": member_timeout}, ("timeout", "member_timeout"))
        return cls(_registry.ensemble_for(*given), {"prior": prior, **chosen})

    def verdict(self, turns: Sequence[Turn], labels: Sequence[str], *, told: bool = True) -> Verdict:
        query = query_of(turns, labels, told=told)
        with langchain_errors():
            with loading_errors():
                self.ensemble.loaded().result()
            return self.ensemble.verdict(query, labels, **self.limits)

    async def averdict(self, turns: Sequence[Turn], labels: Sequence[str], *, told: bool = True) -> Verdict:
        query = query_of(turns, labels, told=told)
        with langchain_errors():
            with loading_errors():
                await asyncio.wrap_future(self.ensemble.loaded())
            return await self.ensemble.averdict(query, labels, **self.limits)


def query_of(turns: Sequence[Turn], labels: Sequence[str], *, told: bool) -> Query:
    """The question as members get it."""
    checked_labels(labels)
    if told and turns[-1].role == "user":
        turns = (*turns[:-1], replace(turns[-1], text=f"{turns[-1].text}\n\n{label_list(labels)}"))
    elif told:
        turns = (*turns, Turn("user", label_list(labels)))
    return Query(uuid.uuid4().hex, tuple(turns))


def label_list(labels: Sequence[str]) -> str:
    """The line that tells members what they may answer.

    >>> label_list(["yes", "no"])
    'Answer with one of these and nothing else: yes, no'
    """
    plain = not any("," in label or "\n" in label for label in labels)
    listed = " " + ", ".join(labels) if plain else "".join(f"\n- {label}" for label in labels)
    return f"Answer with one of these and nothing else:{listed}"


def checked_labels(labels: Any) -> None:
    """Labels are texts, not empty, each given once."""
    wanted = "labels must be a list of texts, at least one, none of them empty"
    if isinstance(labels, str) or not isinstance(labels, Sequence) or not labels:
        raise advised(UsageError(f"{wanted}, got {labels!r:.200}"), "for example ['yes', 'no']")
    for place, label in enumerate(labels):
        if not isinstance(label, str) or not label.strip():
            raise advised(UsageError(f"{wanted}, got {label!r:.200} at place {place}"), "for example ['yes', 'no']")
        _options.refuse_broken(label)
        if label in labels[:place]:
            error = UsageError(f"labels must differ, got {label!r:.200} twice")
            raise advised(error, "leave one out: a label's probability counts once")


def _messages(question: Any) -> Any:
    if isinstance(question, PromptValue):
        return question.to_messages()
    return convert_to_messages([question] if isinstance(question, str) else question)
