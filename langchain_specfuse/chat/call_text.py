"""Tool calls in the text of an answer, for LangChain's chunks: with ids, and so that no broken one
is executed."""

from __future__ import annotations

import json
import logging
import math
import re
import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from ..constraints import CallReader, scanned
from ..core.values import Call, CallFormat
from ..secret_values import masked

log = logging.getLogger("langchain_specfuse")


def marked(reason: str) -> str:
    """The text that makes a call invalid when it is appended to its arguments; it has the reason.

    LangChain completes truncated JSON, and an agent would then execute the call. It cannot complete
    this text: wherever the arguments break off (in a string, after a backslash, or outside), a
    bracket of one kind is closed by one of the other kind.

    >>> marked("cut off by max_tokens")
    '" {cut off by max_tokens]" {]'
    """
    plain = " ".join(reason.replace('"', "'").split())
    return f'" {{{plain}]" {{]'


_MARKED = re.compile(r'" \{([^"]*)\]" \{\]\Z')
CUT_OFF = "cut off by max_tokens"
STALLED = "unfinished: no member could continue it as its schema allows"
REFUSED = "unfinished: the members refused to continue"
"""Why a call is incomplete."""
UNREADABLE = "a number in it is too large for a float"
"""JSON allows ``1e999``, which LangChain would read as infinity."""


def reason_of(arguments: str) -> str | None:
    """The reason for which :func:`marked` made this call invalid; None if it did not.

    >>> reason_of('{"a": ' + marked(CUT_OFF))
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


class LoneCall:
    """Reads an answer that consists of a single call, written as plain JSON or in a code fence.

    Many models that were trained on code write calls like this, whatever the prompt says. Text that
    may become such a call is held back; it is released as soon as it no longer can.

    >>> reader = LoneCall(["add"])
    >>> reader.feed('```json\\n{"name": "ad'), reader.feed('d", "arguments": {"a": 1}}\\n```')
    ('', '')
    >>> reader.finish()
    ('', Call(name='add', arguments='{"a": 1}', id=''))
    >>> LoneCall(["add"]).feed('{"name": "Ann"}')
    '{"name": "Ann"}'
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = [json.dumps(name, ensure_ascii=False) for name in names]
        self._held = ""
        self._possible = True
        self._begin: int | None = None
        """Where the JSON object begins, once it may be a call."""
        self._scan = (0, 0, False, False)
        """How far the object has been read: see ``scanned``."""

    def feed(self, text: str) -> str:
        """Read more text. Returns the text that is certainly not a call."""
        if not self._possible:
            return text
        self._held += text
        self._possible = self._may_be_call()
        return "" if self._possible else self.release()

    def release(self) -> str:
        """Return the text that was held back: it is not a call."""
        held, self._held, self._possible = self._held, "", False
        return held

    def finish(self) -> tuple[str, Call | None]:
        """End the answer. Returns what was held back, either as text or as a call."""
        call = self._call() if self._possible else None
        return ("", call) if call else (self.release(), None)

    def _may_be_call(self) -> bool:
        if self._begin is None:
            body = _unfenced(self._held)
            if body is None or not self._may_begin(body):
                return False
            if not body:
                return True
            self._begin = len(self._held) - len(body)
            self._scan = (self._begin, 0, False, False)
        if not self._may_begin(self._held[self._begin : self._begin + 400]):
            return False
        if not self._scan[3]:
            self._scan = scanned(self._held, *self._scan[:3])
        return not self._scan[3] or self._held[self._scan[0] :].strip() in ("", "`", "``", "```")

    def _may_begin(self, body: str) -> bool:
        """Whether a call may begin like this: with one of its keys, and a tool's name."""
        if not body:
            return True
        if body[0] != "{":
            return False
        rest = body[1:].lstrip()
        for key in _KEYS:
            if key.startswith(rest):
                return True
            if rest.startswith(key):
                value = rest[len(key) :].lstrip().removeprefix(":").lstrip()
                if key != _KEYS[0]:
                    return value[:1] in ("", "{")
                return any(name.startswith(value) or value.startswith(name) for name in self._names)
        return False

    def _call(self) -> Call | None:
        if self._begin is None or not self._scan[3]:
            return None
        try:
            found = read_json(self._held[self._begin : self._scan[0]])
        except (ValueError, RecursionError):
            return None
        arguments = found.get("arguments", found.get("parameters"))
        name = json.dumps(found.get("name"), ensure_ascii=False)
        if len(found) != 2 or name not in self._names or not isinstance(arguments, dict):
            return None
        return Call(found["name"], json.dumps(arguments, ensure_ascii=False))


_KEYS = ('"name"', '"arguments"', '"parameters"')


def _unfenced(text: str) -> str | None:
    """The text after an opening JSON code fence, if there is one; None after any other fence.

    >>> _unfenced(" {"), _unfenced("``"), _unfenced("```json\\n {"), _unfenced("```a b\\n")
    ('{', '', '{', None)
    """
    text = text.lstrip()
    if not text.startswith("`"):
        return text
    if "```".startswith(text):
        return ""
    if not text.startswith("```"):
        return None
    language, newline, body = text[3:].partition("\n")
    if language.strip() and not language.strip().isalnum():
        return None
    return body.lstrip() if newline else ""


class Splitter:
    """Splits the text of one answer, as it grows, into words and calls.

    ``anywhere``: a call may follow words; otherwise a call can only begin the answer (JSON text may
    contain the marker of a call). ``fault``: a function that says what is wrong with a call of this
    tool with these arguments; its third argument says whether a grammar enforced the schema.
    ``lone``: the tools that an answer in plain JSON may call.
    """

    def __init__(
        self,
        format: CallFormat,
        *,
        anywhere: bool,
        fault: Callable[[str, Any, bool], str] | None = None,
        lone: Collection[str] = (),
    ) -> None:
        self._reader = CallReader(format, anywhere=anywhere)
        self._fault = fault
        self._lone = LoneCall(lone) if lone else None
        self._lone_calls = 0

    @property
    def calls(self) -> int:
        """How many calls are whole."""
        return len(self._reader.calls) + self._lone_calls

    def feed(self, text: str, last: bool = False, *, cut: str = "") -> tuple[str, list[Piece]]:
        """The new words and pieces of calls. ``last``: nothing follows; ``cut``: why the answer
        is incomplete, if it is."""
        reader, whole = self._reader, len(self._reader.calls)
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
            if mark := self._mark(call, ruled=True):
                pieces.setdefault(index, Piece(index)).arguments += mark
        if cut and reader.is_open:
            pieces.setdefault(self.calls, Piece(self.calls)).arguments += marked(cut)
        if self._lone:
            said = self._lone.feed(said)
            if pieces or cut:
                said += self._lone.release()
            elif last:
                rest, lone = self._lone.finish()
                said += rest
                if lone:
                    self._lone_calls = 1
                    arguments = lone.arguments + self._mark(lone, ruled=False)
                    pieces[0] = Piece(0, _new_id(), lone.name, arguments)
        return said, list(pieces.values())

    def _mark(self, call: Call, *, ruled: bool) -> str:
        """What makes a finished call invalid; empty if it is valid."""
        try:
            arguments = read_json(call.arguments)
            fault = self._fault(call.name, arguments, ruled) if self._fault else ""
        except (ValueError, RecursionError):
            fault = UNREADABLE
        if not fault:
            return ""
        log.warning("a call of the tool %r is not valid: %s", call.name, masked(fault))
        return marked(fault)


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
        raise ValueError(f"{text:.40} is too large for a float")
    return value
