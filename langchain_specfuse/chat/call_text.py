"""Find the tool calls in the text of an answer, give them ids, and make sure that no broken call is
executed."""

from __future__ import annotations

import json
import logging
import re
import uuid
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from ..constraints import CallPiece, CallReader, scanned
from ..core.values import CallFormat, ToolCall
from .messages import read_json

log = logging.getLogger("langchain_specfuse")

CUT_OFF = "cut off by max_tokens"
STALLED = "unfinished: no member could continue it as its schema allows"
REFUSED = "unfinished: the members refused to continue"
UNCHECKED = "unfinished: it did not pass a check"
"""Why a call is incomplete."""
UNREADABLE = "a number in it is too large for a float"
"""JSON allows ``1e999``, which LangChain would read as infinity."""


def marked(reason: str) -> str:
    """The text that makes a call invalid when it is appended to its arguments. It states the
    reason.

    LangChain completes truncated JSON, and an agent would then execute the call. It cannot complete
    JSON with this text, wherever the arguments break off: in a string, after a backslash or
    outside, a bracket of one kind is closed by one of the other kind.

    >>> marked("cut off by max_tokens")
    '" {cut off by max_tokens]" {]'
    """
    plain = " ".join(reason.replace('"', "'").split())
    return f'" {{{plain}]" {{]'


_MARK = re.compile(r'" \{([^"]*)\]" \{\]\Z')


def reason_of(arguments: str) -> str | None:
    """The reason that :func:`marked` appended to these arguments; None if there is none.

    >>> reason_of('{"a": ' + marked(CUT_OFF))
    'cut off by max_tokens'
    """
    match = _MARK.search(arguments)
    return match[1] if match else None


class LoneCall:
    """Reads an answer that consists of a single call, written as plain JSON or in a code fence.

    Many models that were trained on code write calls like this, whatever the prompt says. Text is
    held back while it may become such a call.

    >>> reader = LoneCall(["add"])
    >>> reader.feed('```json\\n{"name": "ad'), reader.feed('d", "arguments": {"a": 1}}\\n```')
    ('', '')
    >>> reader.finish()
    ('', ToolCall(name='add', arguments='{"a": 1}', id=''))
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

    def finish(self) -> tuple[str, ToolCall | None]:
        """End the answer. Returns what was held back, either as text or as a call."""
        call = self._call() if self._possible else None
        return ("", call) if call else (self.release(), None)

    def _may_be_call(self) -> bool:
        """Whether the text so far may become a call."""
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
        end, _, _, is_whole = self._scan
        return not is_whole or self._held[end:].strip() in ("", "`", "``", "```")

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
            if not rest.startswith(key):
                continue
            value = rest[len(key) :].lstrip().removeprefix(":").lstrip()
            if key != _KEYS[0]:
                return value[:1] in ("", "{")
            return any(name.startswith(value) or value.startswith(name) for name in self._names)
        return False

    def _call(self) -> ToolCall | None:
        """The call, if the text is one."""
        end, _, _, is_whole = self._scan
        if self._begin is None or not is_whole:
            return None
        try:
            data = read_json(self._held[self._begin : end])
        except (ValueError, RecursionError):
            return None
        arguments = data.get("arguments", data.get("parameters"))
        name = json.dumps(data.get("name"), ensure_ascii=False)
        if len(data) != 2 or name not in self._names or not isinstance(arguments, dict):
            return None
        return ToolCall(data["name"], json.dumps(arguments, ensure_ascii=False))


def lone_call(names: Collection[str], text: str) -> ToolCall | None:
    """The call that makes up all of this text, if the text is a call and nothing else.

    >>> lone_call(["add"], '{"name": "add", "arguments": {"a": 1}}')
    ToolCall(name='add', arguments='{"a": 1}', id='')
    """
    reader = LoneCall(names)
    if reader.feed(text):
        return None
    return reader.finish()[1]


def arguments_of(call: ToolCall) -> Any:
    """The parsed arguments of a call, or their text if it cannot be parsed."""
    try:
        return read_json(call.arguments)
    except (ValueError, RecursionError):
        return call.arguments


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
    """Splits the text of one answer, as it grows, into prose and calls.

    ``anywhere`` says that a call may follow prose. Otherwise a call can only begin the answer,
    because JSON text may contain the marker of a call. ``fault`` is a function that returns what is
    wrong with a call of this tool with these arguments. ``lone`` are the tools that an answer in
    plain JSON may call.
    """

    def __init__(
        self,
        format: CallFormat,
        *,
        anywhere: bool,
        fault: Callable[[str, Any], str] | None = None,
        lone: Collection[str] = (),
    ) -> None:
        self._reader = CallReader(format, anywhere=anywhere)
        self._fault = fault
        self._lone = LoneCall(lone) if lone else None
        self._lone_calls = 0

    @property
    def calls(self) -> int:
        """How many calls are complete."""
        return len(self._reader.calls) + self._lone_calls

    def feed(self, text: str, last: bool = False, *, cut: str = "") -> tuple[str, list[CallPiece]]:
        """The new prose, and a piece of each call that the text continues or begins.

        ``last`` says that no text follows. ``cut`` says why the answer is incomplete, if it is.
        """
        prose, pieces = self._read(text, cut)
        # The end of the answer may look like the beginning of a call. It is prose, unless the
        # answer was cut off there. Then it is dropped.
        if last and not cut:
            prose += self._reader.finish()
        if self._lone:
            prose = self._lone.feed(prose)
            if pieces or cut:
                prose += self._lone.release()
            elif last:
                rest, call = self._lone.finish()
                prose += rest
                if call:
                    pieces[0] = self._lone_piece(call)
        return prose, list(pieces.values())

    def _read(self, text: str, cut: str) -> tuple[str, dict[int, CallPiece]]:
        """The new prose, and a piece of each call that the text continues or begins. There is only
        one piece of each call, because LangChain joins pieces of different chunks, but not those
        within a chunk."""
        finished = len(self._reader.calls)
        prose, new = self._reader.feed(text)
        pieces: dict[int, CallPiece] = {}
        for piece in new:
            pieces[piece.index] = replace(piece, id=_new_id()) if piece.name else piece
        for index, call in enumerate(self._reader.calls[finished:], finished):
            _extend(pieces, index, self._mark(call))
        if cut:
            self._cut_off(pieces, cut)
        return prose, pieces

    def _cut_off(self, pieces: dict[int, CallPiece], cut: str) -> None:
        """If the answer ends inside a call, make the call invalid and log it: an agent ends there
        without an error, and often without a word."""
        advice = "" if cut == STALLED else "; raise max_tokens"
        if self._reader.is_open:
            log.warning(
                "a call of the tool %r is not executed: %s%s", self._reader.name, cut, advice
            )
            _extend(pieces, self.calls, marked(cut))
        elif self._reader.rest and not self.calls:
            log.warning("the answer broke off where a tool call may have begun: %s%s", cut, advice)

    def _lone_piece(self, call: ToolCall) -> CallPiece:
        self._lone_calls = 1
        arguments = call.arguments + self._mark(call)
        return CallPiece(0, call.name, arguments, _new_id())

    def _mark(self, call: ToolCall) -> str:
        """The text that makes a finished call invalid; empty if the call is valid."""
        try:
            arguments = read_json(call.arguments)
            fault = self._fault(call.name, arguments) if self._fault else ""
        except (ValueError, RecursionError):
            fault = UNREADABLE
        if not fault:
            return ""
        log.warning("a call of the tool %r is not valid: %s", call.name, fault)
        return marked(fault)


def _extend(pieces: dict[int, CallPiece], index: int, arguments: str) -> None:
    """Append text to the arguments in a call's piece. Adds a piece if there is none."""
    if arguments:
        piece = pieces.get(index) or CallPiece(index, None, "")
        pieces[index] = replace(piece, arguments=piece.arguments + arguments)


def _new_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"
