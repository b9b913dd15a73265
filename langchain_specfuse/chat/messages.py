"""Convert LangChain's messages to plain turns, and count their tokens."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    is_data_content_block,
)

from ..core.values import Attachment, Call, Tool, Turn
from ..errors import UsageError, advised
from ..members.chat_model.member import INPUTS
from ..members.chat_model.refusals import refusal_block

PROVIDER = "specfuse"

_ROLES = {
    "human": "user",
    "user": "user",
    "ai": "assistant",
    "assistant": "assistant",
    "tool": "tool",
} | dict.fromkeys(("system", "developer"), "system")
_CALLS = frozenset({"tool_use", "tool_call"})
_NO_TEXT = frozenset(
    {
        "reasoning",
        "thinking",
        "redacted_thinking",
        "tool_call_chunk",
        "invalid_tool_call",
        "input_json_delta",
    }
)
"""Blocks of an AI message that hold no text for members: reasoning, and calls, which are read from
``tool_calls``."""
BYTES_PER_TOKEN = 4
"""Assumed where no member can count."""


def refuse_broken(text: str) -> None:
    """Refuse lone surrogates, which no tokenizer accepts: bytes that are not UTF-8 arrive so."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        broken = UsageError(
            f"the text is not valid UTF-8 at character {error.start + 1}: {text[:80]!r}"
        )
        raise advised(broken, "convert it to UTF-8") from error


def turns_of(messages: Sequence[BaseMessage]) -> tuple[Turn, ...]:
    """The conversation as plain turns.

    System messages are joined and go first, because most chat templates allow no other place.
    Neighbours of one role become one turn, with a blank line between, unless they are tool calls or
    results. A human's ``name`` is written before the text ("ann: hello"), and images, files, audio
    and videos of a human message are its turn's attachments. Refusals become text of the assistant,
    and so do calls of tools on a provider's servers and their results. Reasoning of earlier turns
    is left out. If the last message is an AI message, the answer is a new assistant turn; the
    message is not continued.
    """
    if not messages:
        error = UsageError("there is nothing to answer: expected at least one message, got none")
        raise advised(error, "pass a text, or a list such as [('human', 'Why is the sky blue?')]")
    turns = list(_named([_turn(message, place) for place, message in enumerate(messages)]))
    for turn in turns:
        calls = (part for call in turn.calls for part in (call.name, call.arguments))
        for text in (turn.text, turn.name, *calls, *(one.body for one in turn.attachments)):
            refuse_broken(text)
    system = [turn for turn in turns if turn.role == "system"]
    return _merged([*system, *(turn for turn in turns if turn.role != "system")])


def _merged(turns: Sequence[Turn]) -> tuple[Turn, ...]:
    merged: list[Turn] = []
    for turn in turns:
        if (
            merged
            and merged[-1].role == turn.role != "tool"
            and not merged[-1].calls
            and not turn.calls
        ):
            before = merged.pop()
            text = "\n\n".join(text for text in (before.text, turn.text) if text)
            turn = Turn(turn.role, text, attachments=before.attachments + turn.attachments)
        merged.append(turn)
    return tuple(merged)


def _named(turns: Sequence[Turn]) -> Iterator[Turn]:
    """A tool's turn without a name gets the name of the call that it answers."""
    names: dict[str, str] = {}
    for turn in turns:
        names |= {call.id: call.name for call in turn.calls if call.id}
        if turn.role == "tool" and not turn.name:
            turn = Turn("tool", turn.text, name=names.get(turn.call_id, ""), call_id=turn.call_id)
        yield turn


def _turn(message: BaseMessage, place: int) -> Turn:
    text, attachments = _contents(message, place)
    if isinstance(message, SystemMessage):
        return Turn("system", text)
    if isinstance(message, HumanMessage):
        return Turn(
            "user", f"{message.name}: {text}" if message.name else text, attachments=attachments
        )
    if isinstance(message, AIMessage):
        # Many providers' packages store a refusal outside the content, and some of them in it too.
        refusal = message.additional_kwargs.get("refusal")
        if isinstance(refusal, str) and refusal not in text:
            text = "\n\n".join(filter(None, (text, refusal)))
        return Turn("assistant", text, calls=tuple(_calls(message)))
    if isinstance(message, ToolMessage):
        failed = message.status == "error" and not text.lower().startswith("error")
        return Turn(
            "tool",
            f"Error: {text}" if failed else text,
            name=message.name or "",
            call_id=message.tool_call_id,
        )
    if isinstance(message, FunctionMessage):
        return Turn("tool", text, name=message.name)
    if isinstance(message, ChatMessage) and message.role in _ROLES:
        return Turn(_ROLES[message.role], text)
    role = getattr(message, "role", message.type)
    error = UsageError(
        f"message {place} has the role {role!r:.80}, expected one of {', '.join(sorted(_ROLES))}"
    )
    raise advised(error, "leave it out, or make it a human message")


def _calls(message: AIMessage) -> Iterator[Call]:
    """All calls of the message, from its fields and its blocks, each once: valid ones first."""
    calls = [Call(one["name"], _json(one["args"]), one["id"] or "") for one in message.tool_calls]
    yield from calls
    known = {call.id for call in calls if call.id} | {(call.name, call.arguments) for call in calls}
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
        wrong = UsageError(
            f"arguments of a call, or a result, cannot be written as JSON: {error!s:.200}"
        )
        raise advised(
            wrong, "use strings as keys, no circular references, and fewer levels"
        ) from error


def _object(text: str | None) -> str:
    """Arguments given as text: an object stays as it is, other text becomes ``{"invalid":
    text}``."""
    try:
        arguments = read_json(text or "{}")
    except (ValueError, RecursionError):
        arguments = None
    return _json(arguments if isinstance(arguments, dict) else {"invalid": text})


def _contents(message: BaseMessage, place: int) -> tuple[str, tuple[Attachment, ...]]:
    """The text of a message, and what a human message holds besides."""
    if isinstance(message.content, str):
        return message.content, ()
    text, attachments = "", []
    for index, block in enumerate(message.content):
        if isinstance(message, HumanMessage) and (found := _attachment(block)):
            attachments.append(found)
        else:
            said = _block_text(block, message, place, index)
            text += f"\n\n{said}" if text and refusal_block(block) else said
    return text, tuple(attachments)


def _kind(block: Any) -> str | None:
    """The type of a block. It may be anything, also unhashable."""
    kind = block.get("type") if isinstance(block, Mapping) else type(block).__name__
    return kind if kind is None or isinstance(kind, str) else repr(kind)


def _foreign_text(block: Any, message: AIMessage) -> str | None:
    """The text for a provider's block in an AI message: the text of a refusal, or the call or
    result of a tool on the provider's servers. None for other blocks.

    LangChain converts the blocks of the providers that it supports to a common format.
    """
    own = message.response_metadata.get("model_provider")
    for provider in [own] if own else ["openai", "anthropic", "google_genai"]:
        about = {"model_provider": provider}
        try:
            found = AIMessage([block], response_metadata=about).content_blocks
        except (AttributeError, LookupError, TypeError, ValueError):
            continue
        texts = [_standard_text(one) for one in found]
        if texts and None not in texts:
            return "".join(filter(None, texts))
    return None


def _standard_text(block: Mapping[str, Any]) -> str | None:
    """The text for a standard block, see :func:`_foreign_text`."""
    if (refusal := refusal_block(block)) is not None:
        return refusal
    kind = block["type"]
    if kind == "server_tool_call":
        return f"[{block.get('name')}: {_json(block.get('args'))}]\n"
    if kind == "server_tool_result":
        output = _readable(block.get("output"))
        shown = output if isinstance(output, str) else _json(output)
        return f"[result: {shown}]\n" if output else ""
    return "" if kind in _NO_TEXT | {"server_tool_call_chunk"} else None


def _readable(value: Any) -> Any:
    """The result of a provider's tool without the parts that only the provider can read."""
    if isinstance(value, Mapping):
        return {
            key: _readable(one)
            for key, one in value.items()
            if not str(key).startswith("encrypted")
        }
    return [_readable(one) for one in value] if isinstance(value, list) else value


def _block_text(block: Any, message: BaseMessage, place: int, index: int) -> str:
    if isinstance(block, str):
        return block
    kind = _kind(block)
    if (
        isinstance(block, Mapping)
        and kind in ("text", "text-plain")
        and isinstance(block.get("text"), str)
    ):
        return str(block["text"])
    if isinstance(message, AIMessage):
        if kind in _NO_TEXT | _CALLS:
            return ""
        if isinstance(block, Mapping) and (said := _foreign_text(block, message)) is not None:
            return said
    if (
        isinstance(message, ToolMessage)
        and isinstance(block, Mapping)
        and (kind is None or kind == "json")
    ):
        return _json(block.get("json", dict(block)))
    where = f"block {index} of message {place} ({message.type})"
    error = UsageError(f"{where} is of type {kind!r:.80}, expected 'text'")
    more = "; images, files and audio can be in a human message: {'type': 'image', 'url': ...}"
    raise advised(error, f"leave the block out, or describe it in words{more}")


def _attachment(block: Any) -> Attachment | None:
    """What this block of a human message holds besides text, in LangChain's standard form; None if
    unknown.

    LangChain gives some blocks a random id. It is left out, because answers do not depend on it.
    """
    try:
        # reads the forms of OpenAI, Anthropic and others too
        (found,) = HumanMessage([block]).content_blocks
        if found["type"] in INPUTS and is_data_content_block(dict(found)):
            return Attachment(
                found["type"], _json({key: one for key, one in found.items() if key != "id"})
            )
    # such a block has no form that is known
    except (AttributeError, LookupError, TypeError, ValueError):
        pass
    return None


def length(member: Any, turns: Sequence[Turn], tools: Sequence[Tool]) -> int:
    """How many tokens these turns have for a member that can count."""
    if hasattr(member, "token_count"):
        return int(member.token_count(turns, tools) if tools else member.token_count(turns))
    return sum(len(member.token_ids(text)) for text in texts_of(turns, tools))


def guessed(texts: Iterable[str]) -> int:
    """About how many tokens these texts have, where no member can count."""
    return math.ceil(sum(len(text.encode(errors="replace")) for text in texts) / BYTES_PER_TOKEN)


def texts_of(turns: Sequence[Turn], tools: Sequence[Tool]) -> list[str]:
    """All texts of a conversation, without what a template puts around them."""
    texts = [
        turn.text + "".join(call.name + call.arguments for call in turn.calls) for turn in turns
    ]
    return texts + [tool.name + tool.description + tool.parameters for tool in tools]


def read_json(text: str | bytes) -> Any:
    """Read JSON. Also a number that is too large for a float, such as ``1e999``, is a
    ``ValueError``: Python reads it as infinity.

    >>> read_json('{"a": 1e3}')
    {'a': 1000.0}
    """
    return json.loads(text, parse_float=_finite, parse_constant=_finite)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text:.40} is too large for a float")
    return value
