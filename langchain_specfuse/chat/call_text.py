"""Tool calls in the text of an answer, for LangChain's chunks: with ids, and so that no broken one
is executed."""

from __future__ import annotations

import json
import math
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..constraints import CallReader
from ..core.values import Call, CallFormat


def marked(reason: str) -> str:
    """What makes a call an invalid one, appended to its arguments, with the reason.

    LangChain completes JSON that breaks off, and an agent would execute the call. It cannot
    complete this: wherever the text breaks off, in a string, after a backslash or outside, a
    bracket of one kind is closed by one of the other.

    >>> marked("cut off by max_tokens")
    '" {cut off by max_tokens]" {]'
    """
    plain = " ".join(reason.replace('"', "'").split())
    return f'" {{{plain}]" {{]'


_MARKED = re.compile(r'" \{([^"]*)\]" \{\]\Z')
CUT_OFF = marked("cut off by max_tokens")
UNREADABLE = marked("a number in it is more than a float holds")
"""JSON's grammar allows ``1e999``, which LangChain would read as an infinity."""


def reason_of(arguments: str) -> str | None:
    """Why this call is an invalid one, as its arguments say; None if they do not.

    >>> reason_of('{"a": ' + CUT_OFF)
    'cut off by max_tokens'
    """
    found = _MARKED.search(arguments)
    return found[1] if found else None


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
    text may hold whatever a call begins with). ``fault``: what is wrong with a finished call.
    """

    def __init__(
        self, format: CallFormat, *, anywhere: bool, fault: Callable[[str, Any], str] | None = None
    ) -> None:
        self._reader = CallReader(format, anywhere=anywhere)
        self._fault = fault

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
            if mark := self._mark(call):
                pieces.setdefault(index, Piece(index)).arguments += mark
        if cut and reader.is_open:
            pieces.setdefault(self.calls, Piece(self.calls)).arguments += CUT_OFF
        return said, list(pieces.values())

    def _mark(self, call: Call) -> str:
        """What makes a finished call invalid; empty if it is valid."""
        try:
            arguments = read_json(call.arguments)
        except (ValueError, RecursionError):
            return UNREADABLE
        fault = self._fault(call.name, arguments) if self._fault else ""
        return marked(fault) if fault else ""


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
