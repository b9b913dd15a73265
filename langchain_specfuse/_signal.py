"""Disagreement as a signal: how sure the vote was of each segment, and of each field of a JSON answer.

Knows rounds, texts and what a constraint says of their form. Nothing here changes an answer.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from ._places import Field, fields_at, fields_of, value_at
from .core.referee import FREE, Referee
from .core.values import CallFormat, Constraint, Round

MOST_FIELDS = 100
"""No more fields than this are told of one answer: the least sure ones."""
MOST_PATH = 200
"""A field whose path is longer (keys may be anything) is not told."""

How = Literal["voted", "unvoted", "forced", "closed", "unfinished"]


# --- one segment ------------------------------------------------------------------------------------------------


def confidence(round: Round) -> float | None:
    """How much of the vote went to what won: its total, Σ_j w_j s_j(winner), from 0 to 1.

    1.0 when everybody drafted the same: there was nothing to vote on. With k different drafts, 1/k is the value at
    which nobody preferred any. None when nobody could disagree (one member drafted) or nobody voted (no member that is
    left can score; all drafts but one were empty or loops). Draft-only members have no vote here either. It says how
    much of one mind the members are, not how often they are right.
    """
    if len(round.drafts) < 2:
        return None
    if set(round.authors or (round.winner,)) >= set(round.drafts):
        return 1.0
    return min(1.0, round.totals[round.winner]) if round.votes else None


def annotation(round: Round, start: int, end: int, *, runners_up: bool = False) -> dict[str, Any]:
    """Who wrote the characters ``start`` to ``end`` of the answer, and how sure the others were: plain JSON."""
    return {**provenance(round, runners_up=runners_up), "start": start, "end": end}


def provenance(round: Round, *, runners_up: bool = False) -> dict[str, Any]:
    """Who wrote what this round added, and how sure the others were: plain JSON."""
    sure = confidence(round)
    value: dict[str, Any] = {
        "member": round.winner,
        "round": round.number,
        "margin": round.margin,
        "confidence": sure,
        # Where nobody voted, equal totals would look like a quarrel.
        "dissent": None if sure is None else round.dissent,
    }
    if runners_up:
        value["runner_up"] = runner_up(round)
    return value


def runner_up(round: Round) -> dict[str, Any] | None:
    """The best draft that says something else; None when nobody wrote one."""
    name = round.runner_up
    if name is None:
        return None
    draft = round.drafts[name]
    return {"member": name, "text": draft.text, "ended": draft.ended, "total": round.totals.get(name, 0.0)}


# --- one field --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of the answer with one origin."""

    start: int
    how: How
    confidence: float | None = None


class Ledger:
    """Which round wrote which characters of one answer. Tell it every round; at the end it knows the fields.

    It does nothing where answers have no fields: without a constraint, or under one that is not JSON and no call.
    ``referee`` is asked for with the first round, when its grammar has been compiled.
    """

    def __init__(self, constraint: Constraint | None, referee: Callable[[], Referee] = lambda: FREE) -> None:
        self._constraint = constraint if constraint is not None and _has_fields(constraint) else None
        self._asked = referee
        self._referee: Referee = FREE
        self._text = ""
        """What was released: what the reader has."""
        self._agreed = ""
        self._pieces: list[Piece] = []
        self._sound: int | None = None
        """From where on the text was put by hand."""

    def note(self, round: Round) -> None:
        """One more round, in order."""
        if self._constraint is None:
            return
        if not self._text and not self._pieces:
            self._referee = self._asked()
        self._text += round.text
        before = "" if self._agreed else self._referee.forced("")
        self._put(before, "forced")
        self._write(round.segment.text, confidence(round))
        self._put(round.forced.removeprefix(before), "forced")
        if round.closed:
            # A stop string may have cut off what was agreed before it.
            self._agreed = self._text[: len(self._text) - len(round.closed)]
            self._sound = len(self._agreed)
            self._pieces = [piece for piece in self._pieces if piece.start < len(self._agreed)]
            self._put(round.closed, "closed")

    def _write(self, text: str, sure: float | None) -> None:
        """A segment: what its writer had no choice about is forced too."""
        at = 0
        how: How = "unvoted" if sure is None else "voted"
        for start, end in (*self._referee.spans(self._agreed, text), (len(text), len(text))):
            self._put(text[at:start], how, sure)
            self._put(text[start:end], "forced")
            at = end

    def _put(self, text: str, how: How, sure: float | None = None) -> None:
        if text:
            self._pieces.append(Piece(len(self._agreed), how, sure))
            self._agreed += text

    def fields(self) -> dict[str, dict[str, Any]] | None:
        """path -> ``confidence`` and ``how`` (see :func:`how_sure`); None if the answer has no fields."""
        every = fields_in(self._text, self._constraint, self._sound)
        found = {f.path: f for f in every if len(f.path) <= MOST_PATH}
        if not found:
            return None
        told = {path: self._told(one) for path, one in found.items()}
        if len(told) > MOST_FIELDS:
            kept = set(sorted(told, key=lambda path: _doubt(*told[path]))[:MOST_FIELDS])
            told = {path: value for path, value in told.items() if path in kept}
        return {path: {"confidence": sure, "how": how} for path, (how, sure) in told.items()}

    def _told(self, one: Field) -> tuple[How, float | None]:
        start, end = decisive(self._text, one)
        return how_sure(list(self._within(start, end)), one.whole)

    def _within(self, start: int, end: int) -> Iterator[Piece]:
        at = max(bisect_right(self._pieces, start, key=lambda piece: piece.start) - 1, 0)
        while at < len(self._pieces) and self._pieces[at].start < end:
            yield self._pieces[at]
            at += 1


def how_sure(pieces: list[Piece], whole: bool) -> tuple[How, float | None]:
    """What is known of a value that these pieces wrote.

    ``voted``: the least of the confidences of the segments that wrote it (forced characters do not count).
    ``unvoted``: members wrote it, and nobody could disagree. ``forced``: the constraint left no choice about any of it.
    ``closed``: the budget ended in it, and some or all of it was put there to make the JSON whole. ``unfinished``: the
    text ends inside it. All but ``voted`` have no confidence: None.
    """
    ways = {piece.how for piece in pieces}
    if "closed" in ways:
        return "closed", None
    if not whole:
        return "unfinished", None
    sure = [piece.confidence for piece in pieces if piece.confidence is not None]
    if sure:
        return "voted", min(sure)
    return ("forced" if ways == {"forced"} else "unvoted"), None


def decisive(text: str, one: Field) -> tuple[int, int]:
    """The characters that say what the value is: not the quote before a text, but the character that ends a number.

    >>> text = '{"a": "x", "b": 12}'
    >>> [text[slice(*decisive(text, one))] for one in fields_at(text)]
    ['x"', '12}']
    """
    first = text[one.start : one.start + 1]
    if first == '"':
        return one.start + 1, one.end
    return one.start, min(one.end + (first in "-0123456789"), len(text))


def _doubt(how: How, sure: float | None) -> float:
    """Sorts what needs a second look first."""
    return {"closed": -2.0, "unfinished": -2.0, "unvoted": -1.0, "forced": 2.0}.get(how, sure or 0.0)


# --- where an answer has fields ---------------------------------------------------------------------------------


def fields_in(text: str, constraint: Constraint | None, sound: int | None = None) -> Iterator[Field]:
    """The fields of an answer of this form.

    Of JSON: ``city``, ``items[2].name``; the path of an answer that is one bare value is "". Of tool calls, as they
    stand in the message: ``tool_calls[0].name``, ``tool_calls[0].args.city``; ``invalid_tool_calls[0].name`` if the
    call ends in what was put by hand, from ``sound`` on.
    """
    if constraint is None:
        return
    if constraint.kind in ("json", "json_schema"):
        yield from fields_at(text)
    elif constraint.kind == "calls":
        yield from _call_fields(text, _call_format(constraint), len(text) if sound is None else sound)
    elif constraint.kind == "any_of":
        parts = sorted(_parts(constraint), key=lambda part: part.kind != "calls")
        for part in parts:
            found = list(fields_in(text, part, sound))
            if found:
                yield from found
                return
            if part.kind == "calls" and any(one.kind == "prose" for one in parts):
                return


def _has_fields(constraint: Constraint) -> bool:
    if constraint.kind == "any_of":
        return any(_has_fields(part) for part in _parts(constraint))
    return constraint.kind in ("json", "json_schema", "calls")


def _parts(constraint: Constraint) -> list[Constraint]:
    return [Constraint(kind, body) for kind, body in json.loads(constraint.body)]


def _call_format(constraint: Constraint) -> CallFormat:
    body = json.loads(constraint.body)
    known = {name: body[name] for name in ("begin", "end", "between", "name_key", "arguments_key") if name in body}
    return CallFormat(**known)


def _call_fields(text: str, form: CallFormat, sound: int) -> Iterator[Field]:
    at = number = 0
    while (begun := text.find(form.begin or "{", at)) >= 0:
        call = value_at(text, begun + len(form.begin))
        if call is None:
            return
        at = max(call.end, begun + 1)
        if form.name_key not in call.children:
            continue
        closed = call.end + len(form.end) > sound and text.startswith(form.end, call.end)
        path = "invalid_tool_calls[0]" if closed else f"tool_calls[{number}]"
        yield from fields_of(call.children[form.name_key], f"{path}.name")
        if form.arguments_key in call.children:
            yield from fields_of(call.children[form.arguments_key], f"{path}.args")
        number += 1
