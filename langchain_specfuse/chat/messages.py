"""LangChain's messages to plain turns.

Knows both languages and nothing of who answers, how, or when.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)

from ._numbers import read_json
from ._options import refuse_broken
from .core.values import Call, Turn
from .errors import UsageError, advised

PROVIDER = "specfuse"

_ROLES = {"human": "user", "user": "user", "ai": "assistant", "assistant": "assistant", "tool": "tool"} | dict.fromkeys(
    ("system", "developer"), "system"
)
_CALLS = frozenset({"tool_use", "tool_call"})
_SILENT = frozenset(
    {"reasoning", "thinking", "redacted_thinking", "tool_call_chunk", "invalid_tool_call", "input_json_delta"}
)
"""Blocks of an AI message that say nothing to the reader: thoughts, and what is told as calls."""


def turns_of(messages: Sequence[BaseMessage]) -> tuple[Turn, ...]:
    """The conversation as plain turns.

    System messages go first, joined, wherever they stood: most chat templates know no other place. Neighbours of one
    role become one turn, with a blank line between, unless they call tools or tell what a tool answered. A human's
    ``name`` is written before the text ("ann: hello"). Thoughts of earlier turns are left out. A conversation that
    ends with an AI message is answered with one more assistant turn; it is not continued in mid-sentence.
    """
    if not messages:
        error = UsageError("there is nothing to answer: got no messages, wanted at least one")
        raise advised(error, "pass a text, or a list such as [('human', 'Why is the sky blue?')]")
    turns = list(_named([_turn(message, place) for place, message in enumerate(messages)]))
    for turn in turns:
        for text in (turn.text, turn.name, *(part for call in turn.calls for part in (call.name, call.arguments))):
            refuse_broken(text)
    system = [turn for turn in turns if turn.role == "system"]
    return _merged([*system, *(turn for turn in turns if turn.role != "system")])


def _merged(turns: Sequence[Turn]) -> tuple[Turn, ...]:
    merged: list[Turn] = []
    for turn in turns:
        if merged and merged[-1].role == turn.role != "tool" and not merged[-1].calls and not turn.calls:
            turn = Turn(turn.role, "\n\n".join(text for text in (merged.pop().text, turn.text) if text))
        merged.append(turn)
    return tuple(merged)


def _named(turns: Sequence[Turn]) -> Iterator[Turn]:
    """A tool's turn that does not say which tool it is of has the name of the call that it answers."""
    names: dict[str, str] = {}
    for turn in turns:
        names |= {call.id: call.name for call in turn.calls if call.id}
        if turn.role == "tool" and not turn.name:
            turn = Turn("tool", turn.text, name=names.get(turn.call_id, ""), call_id=turn.call_id)
        yield turn


def _turn(message: BaseMessage, place: int) -> Turn:
    text = _text(message, place)
    if isinstance(message, SystemMessage):
        return Turn("system", text)
    if isinstance(message, HumanMessage):
        return Turn("user", f"{message.name}: {text}" if message.name else text)
    if isinstance(message, AIMessage):
        return Turn("assistant", text, calls=tuple(_calls(message)))
    if isinstance(message, ToolMessage):
        failed = message.status == "error" and not text.lower().startswith("error")
        told = f"Error: {text}" if failed else text
        return Turn("tool", told, name=message.name or "", call_id=message.tool_call_id)
    if isinstance(message, FunctionMessage):
        return Turn("tool", text, name=message.name)
    if isinstance(message, ChatMessage) and message.role in _ROLES:
        return Turn(_ROLES[message.role], text)
    role = getattr(message, "role", message.type)
    error = UsageError(f"message {place} has the role {role!r:.80}, wanted one of {', '.join(sorted(_ROLES))}")
    raise advised(error, "leave it out, or say it as a human")


# --- calls ------------------------------------------------------------------------------------------------------


def _calls(message: AIMessage) -> Iterator[Call]:
    """All that the message calls, wherever it says so, each once: first its right calls, then its broken ones."""
    told = [Call(one["name"], _json(one["args"]), one["id"] or "") for one in message.tool_calls]
    yield from told
    known = {call.id for call in told if call.id} | {(call.name, call.arguments) for call in told}
    for block in message.content if isinstance(message.content, list) else ():
        if isinstance(block, Mapping) and _kind(block) in _CALLS:
            call = _block_call(block)
            if call.id not in known and (call.name, call.arguments) not in known:
                yield call
    for broken in message.invalid_tool_calls:
        yield Call(broken["name"] or "unknown", _object(broken["args"]), broken["id"] or "")


def _block_call(block: Mapping[str, Any]) -> Call:
    arguments = block.get("input", block.get("args"))
    text = _object(arguments) if isinstance(arguments, str) else _json(arguments or {})
    name = block.get("name")
    return Call("unknown" if name is None else str(name), text, str(block.get("id") or ""))


def _json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except (TypeError, ValueError, RecursionError) as error:
        unsaid = UsageError(f"arguments of a call, or a result, cannot be written as JSON: {error!s:.200}")
        raise advised(unsaid, "give what JSON has: keys that are texts, no circles, no hundreds of levels") from error


def _object(text: str | None) -> str:
    """Arguments that were told as text: as they are if they are an object, else as what somebody wrote."""
    try:
        arguments = read_json(text or "{}")
    except (ValueError, RecursionError):
        arguments = None
    return _json(arguments if isinstance(arguments, dict) else {"invalid": text})


# --- text -------------------------------------------------------------------------------------------------------


def _text(message: BaseMessage, place: int) -> str:
    if isinstance(message.content, str):
        return message.content
    blocks = enumerate(message.content)
    return "".join(_block_text(block, message, place, index) for index, block in blocks)


def _kind(block: Any) -> str | None:
    """The type of a block. It may say anything there, also what no set takes."""
    kind = block.get("type") if isinstance(block, Mapping) else type(block).__name__
    return kind if kind is None or isinstance(kind, str) else repr(kind)


def _block_text(block: Any, message: BaseMessage, place: int, index: int) -> str:
    if isinstance(block, str):
        return block
    kind = _kind(block)
    if isinstance(block, Mapping) and kind in ("text", "text-plain") and isinstance(block.get("text"), str):
        return str(block["text"])
    if isinstance(message, AIMessage) and kind in _SILENT | _CALLS:
        return ""
    if isinstance(message, ToolMessage) and isinstance(block, Mapping) and (kind is None or kind == "json"):
        return _json(block.get("json", dict(block)))
    where = f"block {index} of message {place} ({message.type})"
    error = UsageError(f"{where} is of type {kind!r:.80}, wanted 'text': members read text only")
    raise advised(error, "leave the block out, or put what it says into words")
