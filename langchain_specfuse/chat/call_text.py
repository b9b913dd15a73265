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

from ..constraints import CallPiece, CallReader
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


_KEYS = ('"name"', '"arguments"', '"parameters"')
_LONE = re.compile(r"\s*(?:```[^\S\n]*\w*\s*)?(\{.*\})\s*`{0,3}\s*", re.DOTALL)
_HEAD = 400
"""How many characters may be needed to see that a text is no call."""


def lone_call(names: Collection[str], text: str) -> ToolCall | None:
    """The call that makes up all of this text, written as plain JSON or in a code fence; None if
    the text is anything else. Many models that were trained on code write calls like this, whatever
    the prompt says.

    >>> lone_call(["add"], '```json\\n{"name": "add", "arguments": {"a": 1}}\\n```')
    ToolCall(name='add', arguments='{"a": 1}', id='')
    """
    match = _LONE.fullmatch(text)
    if match is None:
        return None
    try:
        data = read_json(match[1])
    except (ValueError, RecursionError):
        return None
    arguments = data.get("arguments", data.get("parameters"))
    name = data.get("name")
    if len(data) != 2 or name not in names or not isinstance(arguments, dict):
        return None
    return ToolCall(name, json.dumps(arguments, ensure_ascii=False))


def may_become_call(names: Collection[str], text: str) -> bool:
    """Whether a :func:`lone_call` may begin like this: with one of its keys, and a tool's name.

    >>> [may_become_call(["add"], text) for text in ("```js", '{"na', '{"name": "Ann"}')]
    [True, True, False]
    """
    body = _unfenced(text[:_HEAD])
    if not body:
        return body is not None
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
        quoted = [json.dumps(name, ensure_ascii=False) for name in names]
        return any(name.startswith(value) or value.startswith(name) for name in quoted)
    return False


def arguments_of(call: ToolCall) -> Any:
    """The parsed arguments of a call, or their text if it cannot be parsed."""
    try:
        return read_json(call.arguments)
    except (ValueError, RecursionError):
        return call.arguments


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
        self._lone = lone
        self._held: str | None = "" if lone else None
        """The whole prose while it may become a call in plain JSON; None if it cannot."""
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
        if self._held is not None:
            self._held += prose
            call = None
            if last and not pieces and not cut:
                call = lone_call(self._lone, self._held)
            if call is not None:
                pieces[0] = self._lone_piece(call)
                prose = ""
            elif last or pieces or cut or not may_become_call(self._lone, self._held):
                prose, self._held = self._held, None
            else:
                prose = ""
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
