"""Tool calls in text: telling them from prose, following one while it is written, comparing them."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from ..core.values import Call, CallFormat, Constraint

_DECODER = json.JSONDecoder()


class Parsed(NamedTuple):
    """An answer, maybe unfinished, in its parts."""

    prose: str
    calls: list[Call]
    """Those that are finished."""
    rest: str
    """The unfinished call at the end, with what begins it; also what may still become the beginning of one."""


def calls_of(constraint: Constraint | CallFormat | None, text: str) -> Parsed:
    """The prose, the finished calls and the unfinished rest of a text that is legal so far. Never raises.

    >>> calls_of(CallFormat(), 'Well. <tool_call>\\n{"name": "add", "arguments": {"a": 1}}\\n</tool_call>').calls
    [Call(name='add', arguments='{"a": 1}', id='')]
    """
    form = constraint if isinstance(constraint, CallFormat) else format_of(constraint)
    if form is None:
        return Parsed(text, [], "")
    at = _beginning(text, trigger(form), anywhere=isinstance(constraint, CallFormat) or _has_prose(constraint))
    prose, calls = text[:at], []
    while at < len(text) and (found := _call(text, at, form)):
        call, at = found
        calls.append(call)
        if text.startswith(form.between + form.begin, at) and at + len(form.between) < len(text):
            at += len(form.between)
        else:
            break
    return Parsed(prose, calls, text[at:])


def canonical(call: Call) -> str:
    """The same for calls that mean the same.

    >>> canonical(Call("f", '{"b": 1.0, "a": "é"}')) == canonical(Call("f", '{"a":"\\\\u00e9","b":1}'))
    True
    """
    try:
        arguments = json.dumps(_whole(json.loads(call.arguments)), sort_keys=True, ensure_ascii=False)
    except (ValueError, RecursionError):
        arguments = call.arguments
    return f"{call.name}\n{arguments}"


def trigger(form: CallFormat) -> str:
    """What tells a call from prose: what begins it, or its first key where nothing does."""
    return form.begin or "{" + json.dumps(form.name_key, ensure_ascii=False) + ': "'


def format_of(constraint: Constraint | None) -> CallFormat | None:
    """How calls are written under this constraint; None if it knows none."""
    try:
        return _format_of(constraint)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def format_in(body: Any) -> CallFormat:
    """The format that the body of a ``calls`` constraint tells."""
    told = {key: body[key] for key in ("begin", "end", "between", "name_key", "arguments_key") if key in body}
    return CallFormat(**told)


def _format_of(constraint: Constraint | None) -> CallFormat | None:
    if constraint is None:
        return None
    if constraint.kind == "calls":
        return format_in(json.loads(constraint.body))
    if constraint.kind == "any_of":
        parts = (_format_of(Constraint(*part)) for part in json.loads(constraint.body))
        return next((form for form in parts if form), None)
    return None


def _has_prose(constraint: Constraint | None) -> bool:
    if constraint is None or constraint.kind != "any_of":
        return constraint is not None and constraint.kind == "prose"
    return any(_has_prose(Constraint(*part)) for part in json.loads(constraint.body))


def _beginning(text: str, begin: str, *, anywhere: bool) -> int:
    """Where the first call begins, or may begin; the length of the text if nowhere."""
    if not anywhere:
        return 0 if text.startswith(begin) or begin.startswith(text) else len(text)
    at = text.find(begin)
    if at >= 0:
        return at
    for size in range(min(len(begin) - 1, len(text)), 0, -1):
        if text.endswith(begin[:size]):
            return len(text) - size
    return len(text)


def _call(text: str, at: int, form: CallFormat) -> tuple[Call, int] | None:
    """The finished call that begins here, and where it ends."""
    if not text.startswith(form.begin, at):
        return None
    start = at + len(form.begin)
    try:
        body, end = _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError):
        return None
    if not isinstance(body, dict) or set(body) != {form.name_key, form.arguments_key}:
        return None
    name = body[form.name_key]
    if not isinstance(name, str) or not text.startswith(form.end, end):
        return None
    head = f"{{{_text(form.name_key)}: {_text(name)}, {_text(form.arguments_key)}: "
    written = text[start:end]
    arguments = written[len(head) : -1] if written.startswith(head) else _text(body[form.arguments_key])
    return Call(name, arguments), end + len(form.end)


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _whole(value: Any) -> Any:
    """The value with 3 for 3.0."""
    if isinstance(value, dict):
        return {key: _whole(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_whole(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


class Position:
    """Where a text stands among its calls, byte by byte. Only ever given legal text."""

    __slots__ = ("_again", "_begin", "_between", "_depth", "_end", "_left", "_place", "_quoted", "_slash")

    def __init__(self, form: CallFormat) -> None:
        self._begin, self._end, self._between = (len(t.encode()) for t in (form.begin, form.end, form.between))
        self._place, self._left = "begin", self._begin
        self._depth, self._quoted, self._slash = 0, False, False
        self._again = False

    def fork(self) -> Position:
        other = Position.__new__(Position)
        for name in Position.__slots__:
            setattr(other, name, getattr(self, name))
        return other

    @property
    def inside(self) -> bool:
        """In a call: what begins it is written, what ends it is not. What follows a call can only be another."""
        if self._place == "begin":
            return self._again
        return self._place in ("body", "end") and not (self._place == "end" and not self._left)

    def move(self, data: bytes) -> None:
        for byte in data:
            self._settle()
            if self._place == "body":
                self._body(byte)
            else:
                self._left -= 1
        self._settle(written=True)

    def _settle(self, written: bool = False) -> None:
        """On to the next place, where this one is full. A finished call is left only when more follows."""
        if self._place == "begin" and not self._left:
            self._place = "body"
        elif self._place == "end" and not self._left and not written:
            self._place, self._left, self._again = "begin", self._between + self._begin, True
            self._settle()

    def _body(self, byte: int) -> None:
        if self._quoted:
            if self._slash:
                self._slash = False
            elif byte == 0x5C:
                self._slash = True
            elif byte == 0x22:
                self._quoted = False
        elif byte == 0x22:
            self._quoted = True
        elif byte in b"{[":
            self._depth += 1
        elif byte in b"}]":
            self._depth -= 1
            if not self._depth:
                self._place, self._left = "end", self._end
