"""Read tool calls from the text of an answer, and decide when two calls are the same.

:class:`CallFormat` describes how calls are written; the grammar decides which calls are allowed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import Any, AnyStr

from ..core.results import alike
from ..core.values import CallFormat, ToolCall

_OUTSIDE, _IN_STRING = re.compile(r'["{}\[\]]'), re.compile(r'["\\]')


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A new part of a call. The first part has the call's name, every part some of its
    arguments."""

    index: int
    name: str | None
    arguments: str
    id: str | None = field(default=None, repr=False)
    """An id for the call, where it begins. LangChain's chunks have ids, members' texts none."""


class CallReader:
    """Reads an answer piece by piece: free text first, then calls, one after the other.

    ``anywhere``: a call may follow free text; otherwise the answer begins with a call or contains
    none.

    >>> reader = CallReader(CallFormat(begin="<call>", end="</call>"), anywhere=True)
    >>> reader.feed("So: <ca")
    ('So: ', [])
    >>> reader.feed('ll>{"name": "add", "arguments": {"a": 1}}</call>')
    ('', [CallPiece(index=0, name='add', arguments='{"a": 1}')])
    >>> reader.calls
    (ToolCall(name='add', arguments='{"a": 1}', id=''),)
    """

    def __init__(self, form: CallFormat, *, anywhere: bool) -> None:
        self._format = form
        self._trigger = trigger(form)
        name, arguments = re.escape(dumped(form.name_key)), re.escape(dumped(form.arguments_key))
        self._head = re.compile(rf'\{{{name}: ("(?:[^"\\]|\\.)*"), {arguments}: ')
        self._place = "prose" if anywhere else "start"
        self.prose = 0
        """How many characters of free text the answer begins with."""
        self.calls: tuple[ToolCall, ...] = ()
        """The finished calls."""
        self.ends: tuple[int, ...] = ()
        """Where in the text each of them ends."""
        self.rest = ""
        """The text after the prose and the finished calls: an unfinished call, or what may become
        the next one."""
        self._at = 0
        """Where ``rest`` begins in the text."""
        self._enter_call()

    def _enter_call(self) -> None:
        self._scanned = len(self._format.begin)
        self._depth, self._in_string = 0, False
        self._name: str | None = None
        self._arguments = self._sent = 0

    def fork(self) -> CallReader:
        return copy(self)

    @property
    def inside(self) -> bool:
        """Whether a call has begun and is not complete. Only another call may follow a call."""
        return self._place in ("body", "end") or (self._place == "after" and self.rest != "")

    @property
    def undecided(self) -> bool:
        """Whether ``rest`` may still be free text, because it is not certain that a call has
        begun."""
        return self._place in ("start", "prose")

    @property
    def is_open(self) -> bool:
        """Whether the name of an unfinished call has been read."""
        return self._place in ("body", "end") and self._name is not None

    @property
    def name(self) -> str | None:
        """The tool of the unfinished call, once it has been read."""
        return self._name

    def feed(self, text: str) -> tuple[str, list[CallPiece]]:
        """Read on. Returns the new free text and the new pieces of calls."""
        self.rest += text
        prose = self._free_text() if self._place in ("start", "prose", "text") else ""
        pieces: list[CallPiece] = []
        while self._in_calls(pieces):
            pass
        return prose, pieces

    def finish(self) -> str:
        """End the text. Returns what was held back because it might have begun a call."""
        return self._cut(len(self.rest)) if self.undecided else ""

    def _cut(self, size: int) -> str:
        cut, self.rest = self.rest[:size], self.rest[size:]
        self._at += size
        return cut

    def _free_text(self) -> str:
        if self._place == "start" and not self.rest.startswith(self._trigger):
            if self._trigger.startswith(self.rest):
                return ""
            self._place = "text"
        start: int | None = None
        partial = 0
        if self._place == "prose":
            start, partial = search(self.rest, self._trigger)
        elif self._place == "start":
            start = 0
        if start is None:
            prose = self._cut(len(self.rest) - partial)
        else:
            self._place = "body"
            prose = self._cut(start)
        self.prose = self._at
        return prose

    def _in_calls(self, pieces: list[CallPiece]) -> bool:
        """Read the next part of a call. Returns False if it has not arrived yet."""
        form = self._format
        if self._place == "body":
            complete = self._scan()
            self._send(pieces, complete)
            if complete:
                self._place = "end"
            return complete
        if (
            self._place == "end"
            and self._name is not None
            and self.rest.startswith(form.end, self._scanned)
        ):
            self.calls += (ToolCall(self._name, self.rest[self._arguments : self._scanned - 1]),)
            self._cut(self._scanned + len(form.end))
            self.ends += (self._at,)
            self._place = "after"
            return True
        between = form.between
        if (
            self._place == "after"
            and len(self.rest) > len(between)
            and self.rest.startswith(between + form.begin)
        ):
            self._cut(len(between))
            self._enter_call()
            self._place = "body"
            return True
        return False

    def _scan(self) -> bool:
        """Scan the JSON of a call as far as it has arrived. Returns whether it is complete."""
        self._scanned, self._depth, self._in_string, complete = scanned(
            self.rest, self._scanned, self._depth, self._in_string
        )
        return complete

    def _send(self, pieces: list[CallPiece], complete: bool) -> None:
        """Add the new part of the call: the name once the whole head has arrived, then the
        arguments."""
        name = None
        if self._name is None:
            head = self._head.match(self.rest, len(self._format.begin))
            if not head:
                return
            name = self._name = _loaded_name(head[1])
            self._arguments = self._sent = head.end()
        end = self._scanned - 1 if complete else len(self.rest)
        arguments = self.rest[self._sent : end]
        self._sent = end
        if name is not None or arguments:
            pieces.append(CallPiece(len(self.calls), name, arguments))


def scanned(text: str, at: int, depth: int, in_string: bool) -> tuple[int, int, bool, bool]:
    """Scan JSON from this position. Returns the position to continue from, the depth, whether it is
    inside a string, and whether the JSON is complete.

    >>> scanned('{"a": "}"} and', 0, 0, False), scanned('{"a": "\\\\', 0, 0, False)
    ((10, 0, False, True), (7, 1, True, False))
    """
    while match := (_IN_STRING if in_string else _OUTSIDE).search(text, at):
        mark = match[0]
        if mark == "\\" and match.end() == len(text):  # the escaped character comes later
            return match.start(), depth, in_string, False
        at = match.end() + (mark == "\\")
        if mark == '"':
            in_string = not in_string
        elif mark in "{[":
            depth += 1
        elif mark in "}]":
            depth -= 1
            if not depth:
                return at, depth, in_string, True
    return len(text), depth, in_string, False


def search(text: AnyStr, begin: AnyStr) -> tuple[int | None, int]:
    """Find ``begin`` in the text. Returns its position, or None and how many of its characters the
    text ends with.

    >>> search("a <b", "<b>"), search("a <b>", "<b>")
    ((None, 2), (2, 0))
    """
    at = text.find(begin)
    if at >= 0:
        return at, 0
    longest = min(len(begin) - 1, len(text))
    for size in range(longest, 0, -1):
        if text.endswith(begin[:size]):
            return None, size
    return None, 0


def canonical(call: ToolCall) -> str:
    """A text that is the same for equivalent calls.

    >>> canonical(ToolCall("f", '{"b": 1.0, "a": "é"}')) == canonical(
    ...     ToolCall("f", '{"a":"\\\\u00e9","b":1}')
    ... )
    True
    """
    try:
        arguments = json.dumps(
            alike(json.loads(call.arguments)), sort_keys=True, ensure_ascii=False
        )
    except (ValueError, RecursionError):
        arguments = call.arguments
    return f"{call.name}\n{arguments}"


def trigger(form: CallFormat) -> str:
    """The text that marks a call: its opening marker or, without one, its first key."""
    return form.begin or "{" + dumped(form.name_key) + ': "'


def format_in(body: Mapping[str, Any]) -> CallFormat:
    """The format in the body of a ``calls`` constraint."""
    return CallFormat(**{key: body[key] for key in CallFormat.__dataclass_fields__ if key in body})


def dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _loaded_name(literal: str) -> str:
    try:
        return str(json.loads(literal, strict=False))
    except ValueError:
        return literal[1:-1]
