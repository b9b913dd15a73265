"""The text of an answer as it grows, parted into what is said and the tool calls that are made.

Knows how a call is written (:class:`CallFormat`) and that a referee has checked it; nothing of rounds or messages.
"""

from __future__ import annotations

import json
import re
import uuid
from dataclasses import dataclass, field

from ._numbers import beyond
from .core.values import CallFormat

CLOSED = " {closed: the budget ended in this call]"
"""Follows the arguments of a call that was closed by hand. LangChain completes JSON that is cut off; this it cannot
complete (one bracket opens, another closes), so the call is an invalid one, and nobody executes it."""
BEYOND = " {refused: a number in this call is more than a float holds]"
"""The same behind arguments that LangChain would read with an infinity in them."""


@dataclass(slots=True)
class Piece:
    """A piece of a call: its name and id where it begins, its arguments as they come."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass(slots=True)
class Parted:
    """What a new piece of text adds."""

    said: str = ""
    pieces: list[Piece] = field(default_factory=list)


class Splitter:
    """Fed with the text of one answer, piece by piece.

    ``anywhere``: a call may follow words; otherwise it begins the answer, or there is none (JSON text may hold
    whatever a call begins with). An answer that its budget cuts has been closed: its last call is whole too, with
    ``CLOSED`` behind its arguments.

    >>> splitter = Splitter(CallFormat(begin="<call>", end="</call>"), anywhere=True)
    >>> splitter.feed("So: <ca").said, splitter.feed('ll>{"name": "add", "arguments": {"a": 1}}</call>').pieces[0].name
    ('So: ', 'add')
    """

    def __init__(self, format: CallFormat, *, anywhere: bool) -> None:
        self.begin, self.end, self.between = format.begin, "}" + format.end, format.between
        name, arguments = re.escape(json.dumps(format.name_key)), re.escape(json.dumps(format.arguments_key))
        self._argued = f", {json.dumps(format.arguments_key)}: "
        self._looked = 0
        """In so much of the rest a head does not end."""
        self._head = re.compile(rf'\s*\{{\s*{name}: ("(?:[^"\\]|\\.)*"), {arguments}: ')
        self._anywhere = anywhere
        self._state = self._opening
        self._rest = ""
        self._fed = self._sound = 0
        """How much text there was, and how much of it members wrote."""
        self._cut = False
        self._done = 0
        self._arguments = Arguments()
        self._told: list[str] = []
        """The arguments of the call that is under way."""

    @property
    def calls(self) -> int:
        """How many calls are whole."""
        return self._done

    def feed(self, text: str, last: bool = False, *, cut: bool = False, closed: str = "") -> Parted:
        """What is new. ``last``: nothing follows; ``cut``: more might have; ``closed``: what was put there by hand."""
        self._rest += text
        self._fed += len(text)
        self._sound, self._cut = self._fed - len(closed), cut
        parted = Parted()
        while self._state(parted, last):
            pass
        if cut and self._state in (self._arguing, self._ending):  # nobody found a way to close it
            self._write(parted, self._arguments.missing + CLOSED)
        return parted

    # Each state reads from the rest what it can, and says whether another one may go on.

    def _opening(self, parted: Parted, last: bool) -> bool:
        if self._rest.startswith(self.begin):
            return self._enter()
        if not last and self.begin.startswith(self._rest):
            return False
        self._state = self._speaking
        return True

    def _speaking(self, parted: Parted, last: bool) -> bool:
        at = self._rest.find(self.begin) if self._anywhere else -1
        if at >= 0:
            parted.said, self._rest = parted.said + self._rest[:at], self._rest[at:]
            return self._enter()
        # What may begin a call is told if the answer ends with it, and dropped if it was cut off there.
        held = _overlap(self._rest, self.begin) if self._anywhere and (self._cut or not last) else 0
        shown = len(self._rest) - held
        parted.said, self._rest = parted.said + self._rest[:shown], self._rest[shown:]
        return False

    def _enter(self) -> bool:
        self._take(len(self.begin))
        self._state, self._looked = self._naming, 0
        return True

    def _naming(self, parted: Parted, last: bool) -> bool:
        # Text comes in pieces: a head is read once it can be whole, and nothing twice.
        ends = self._rest.find(self._argued, self._looked)
        self._looked = max(len(self._rest) - len(self._argued), 0)
        head = self._head.match(self._rest) if ends >= 0 else None
        if not head:
            return False
        self._take(head.end())
        parted.pieces.append(Piece(self._done, f"call_{uuid.uuid4().hex[:24]}", _name(head[1])))
        self._arguments, self._told = Arguments(), []
        self._state = self._arguing
        return True

    def _arguing(self, parted: Parted, last: bool) -> bool:
        taken = self._take(self._arguments.length(self._rest))
        self._told.append(taken)
        self._write(parted, taken)
        if self._arguments.whole:
            self._state = self._ending
        return self._arguments.whole

    def _ending(self, parted: Parted, last: bool) -> bool:
        if not self._rest.startswith(self.end):
            return False
        self._take(len(self.end))
        if self._fed - len(self._rest) > self._sound:
            self._write(parted, CLOSED)
        elif beyond("".join(self._told)):
            self._write(parted, BEYOND)
        self._done += 1
        self._state = self._closed
        return True

    def _closed(self, parted: Parted, last: bool) -> bool:
        following = self.between + self.begin
        if self._rest.startswith(following):
            self._take(len(self.between))
            return self._enter()
        return False

    def _write(self, parted: Parted, arguments: str) -> None:
        if parted.pieces and parted.pieces[-1].index == self._done:
            parted.pieces[-1].arguments += arguments
        elif arguments:
            parted.pieces.append(Piece(self._done, arguments=arguments))

    def _take(self, length: int) -> str:
        taken, self._rest = self._rest[:length], self._rest[length:]
        return taken


class Arguments:
    """Where a JSON object ends that comes in pieces."""

    def __init__(self) -> None:
        self.whole = False
        self._depth = 0
        self._in_text = self._escaped = False

    def length(self, text: str) -> int:
        """How much of the text belongs to the object."""
        for place, char in enumerate(text):
            self._read(char)
            if self.whole:
                return place + 1
        return len(text)

    @property
    def missing(self) -> str:
        """What ends the text in quotes that it breaks off in, if it does."""
        return ("\\" if self._escaped else "") + '"' if self._in_text else ""

    def _read(self, char: str) -> None:
        if self._in_text:
            self._in_text = char != '"' or self._escaped
            self._escaped = char == "\\" and not self._escaped
        elif char == '"':
            self._in_text = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
            self.whole = self._depth == 0


def _name(literal: str) -> str:
    """A name in quotes; where it is not written as JSON wants it, as it stands there."""
    try:
        return str(json.loads(literal, strict=False))
    except ValueError:
        return literal[1:-1]


def _overlap(text: str, begin: str) -> int:
    """How many of the last characters may be the beginning of a call."""
    sizes = range(min(len(begin) - 1, len(text)), 0, -1)
    return next((size for size in sizes if text.endswith(begin[:size])), 0)
