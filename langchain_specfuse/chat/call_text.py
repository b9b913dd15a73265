"""Tool calls in the text of an answer, for LangChain's chunks: with ids, and so that no broken one
is executed."""

from __future__ import annotations

import json
import math
import uuid
from dataclasses import dataclass
from typing import Any

from ..constraints import CallReader
from ..core.values import CallFormat

CUT_OFF = '" {cut off by max_tokens]" {]'
"""Appended to the arguments of a call that is cut off. LangChain completes JSON that breaks off,
and an agent would execute the call. It cannot complete this: wherever the text breaks off, in a
string, after a backslash or outside, a bracket of one kind is closed by one of the other. So the
call is an invalid one."""
UNREADABLE = '" {a number in it is more than a float holds]" {]'
"""The same for arguments in which LangChain would read an infinity: JSON's grammar allows
``1e999``."""


@dataclass(slots=True)
class Piece:
    """A piece of a call: its name and id where it begins, its arguments as they come."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


class Splitter:
    """Parts the text of one answer, as it grows, into words and calls.

    ``anywhere``: a call may follow words; otherwise it begins the answer, or there is none (JSON
    text may hold whatever a call begins with).
    """

    def __init__(self, format: CallFormat, *, anywhere: bool) -> None:
        self._reader = CallReader(format, anywhere=anywhere)

    @property
    def calls(self) -> int:
        """How many calls are whole."""
        return len(self._reader.calls)

    def feed(self, text: str, last: bool = False, *, cut: bool = False) -> tuple[str, list[Piece]]:
        """The new words and pieces of calls. ``last``: nothing follows; ``cut``: the answer was cut
        off here."""
        reader, whole = self._reader, self.calls
        said, new = reader.feed(text)
        # What may begin a call is said after all if the answer ends with it, and dropped if it was
        # cut off there.
        said += reader.finish() if last and not cut else ""
        # LangChain joins pieces of different chunks only, so that each call has at most one here.
        pieces = {
            one.index: Piece(one.index, one.name and _new_id(), one.name, one.arguments)
            for one in new
        }
        for index, call in enumerate(reader.calls[whole:], whole):
            try:
                read_json(call.arguments)
            except (ValueError, RecursionError):
                pieces.setdefault(index, Piece(index)).arguments += UNREADABLE
        if cut and reader.is_open:
            pieces.setdefault(self.calls, Piece(self.calls)).arguments += CUT_OFF
        return said, list(pieces.values())


def _new_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"


def read_json(text: str | bytes) -> Any:
    """What this JSON says. ``ValueError`` for ``1e999`` too: it would be read as an infinity, which
    no JSON can say.

    >>> read_json('{"a": 1e3}')
    {'a': 1000.0}
    """
    return json.loads(text, parse_float=_finite, parse_constant=_finite)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text:.40} is more than a float holds")
    return value
