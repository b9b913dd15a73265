"""Convert LangChain's messages to plain turns, and count their tokens."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    convert_to_messages,
    is_data_content_block,
)

from ..core.values import Attachment, Tool, ToolCall, Turn
from ..errors import UsageError, advised
from ..members.chat_model.member import INPUTS, OTHER
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
"""Blocks of an AI message that contain no text for members: reasoning, and calls, which are read
from ``tool_calls``."""
BYTES_PER_TOKEN = 4
"""The length of a token that is assumed if no member can count tokens."""


def refuse_broken(text: str) -> None:
    """Refuse a text with lone surrogates, which no tokenizer accepts. Python reads bytes that are
    not UTF-8 as surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        broken = UsageError(
            f"the text is not valid UTF-8 at character {error.start + 1}: {text[:80]!r}"
        )
        raise advised(broken, "convert it to UTF-8") from error


def turns_of(messages: Sequence[BaseMessage], *, hosted: bool = False) -> tuple[Turn, ...]:
    """Convert a conversation to plain turns. ``hosted``: a chat model gets the messages themselves,
    so that a block which is unknown here is an attachment that other members cannot read.

    System messages are joined and put first, because most chat templates allow them only there.
    Neighbours with the same role become one turn, with a blank line between them, unless they are
    tool calls or results. A human's ``name`` is written before the text ("ann: hello"). Images,
    files, audio and videos of a human message become attachments of its turn. Refusals become text
    of the assistant, and so do calls and results of tools on a provider's servers. Reasoning of
    earlier turns is left out. If the last message is an AI message, the answer is a new assistant
    turn; the message is not continued.
    """
    if not messages:
        error = UsageError("there is nothing to answer: expected at least one message, got none")
        raise advised(error, "pass a text, or a list such as [('human', 'Why is the sky blue?')]")
    turns = list(
        _with_tool_names([_turn(message, at, hosted) for at, message in enumerate(messages)])
    )
    for turn in turns:
        _refuse_broken_turn(turn)
    system = [turn for turn in turns if turn.role == "system"]
    others = [turn for turn in turns if turn.role != "system"]
    return _merged([*system, *others])


def messages_of(turns: Sequence[Turn]) -> list[BaseMessage]:
    """Plain turns as messages: those of system, user and assistant, without calls.

    >>> [message.type for message in messages_of([Turn("system", "Be brief."), Turn("user", "Hi")])]
    ['system', 'human']
    """
    return convert_to_messages([(turn.role, turn.text) for turn in turns])


def _refuse_broken_turn(turn: Turn) -> None:
    texts = [turn.text, turn.name]
    for call in turn.calls:
        texts += [call.name, call.arguments]
    texts += [attachment.body for attachment in turn.attachments]
    for text in texts:
        refuse_broken(text)


def _merged(turns: Sequence[Turn]) -> tuple[Turn, ...]:
    """The turns, with neighbours of the same role joined."""
    merged: list[Turn] = []
    for turn in turns:
        if merged and _can_join(merged[-1], turn):
            before = merged.pop()
            text = _paragraphs(before.text, turn.text)
            turn = Turn(turn.role, text, attachments=before.attachments + turn.attachments)
        merged.append(turn)
    return tuple(merged)


def _can_join(before: Turn, turn: Turn) -> bool:
    if before.role != turn.role or turn.role == "tool":
        return False
    return not before.calls and not turn.calls


def _paragraphs(*texts: str) -> str:
    """The texts that are not empty, with a blank line between them."""
    return "\n\n".join(filter(None, texts))


def _with_tool_names(turns: Sequence[Turn]) -> Iterator[Turn]:
    """The turns. A tool's turn without a name gets the name of the call that it answers."""
    names: dict[str, str] = {}
    for turn in turns:
        names |= {call.id: call.name for call in turn.calls if call.id}
        if turn.role == "tool" and not turn.name:
            turn = replace(turn, name=names.get(turn.call_id, ""))
        yield turn


def _turn(message: BaseMessage, place: int, hosted: bool) -> Turn:
    text, attachments = _contents(message, place, hosted)
    if isinstance(message, SystemMessage):
        return Turn("system", text, attachments=attachments)
    if isinstance(message, HumanMessage):
        if message.name:
            text = f"{message.name}: {text}"
        return Turn("user", text, attachments=attachments)
    if isinstance(message, AIMessage):
        # Many providers' packages store a refusal outside the content, and some of them in it too.
        refusal = message.additional_kwargs.get("refusal")
        if isinstance(refusal, str) and refusal not in text:
            text = _paragraphs(text, refusal)
        return Turn("assistant", text, tuple(_calls(message)), attachments=attachments)
    if isinstance(message, ToolMessage):
        if message.status == "error" and not text.lower().startswith("error"):
            text = f"Error: {text}"
        name, call_id = message.name or "", message.tool_call_id
        return Turn("tool", text, name=name, call_id=call_id, attachments=attachments)
    if isinstance(message, FunctionMessage):
        return Turn("tool", text, name=message.name)
    if isinstance(message, ChatMessage) and message.role in _ROLES:
        return Turn(_ROLES[message.role], text)
    role = getattr(message, "role", message.type)
    error = UsageError(
        f"message {place} has the role {role!r:.80}, expected one of {', '.join(sorted(_ROLES))}"
    )
    raise advised(error, "leave it out, or make it a human message")


def _calls(message: AIMessage) -> Iterator[ToolCall]:
    """All calls of the message, from its fields and its blocks, each once. Valid calls come
    first."""
    ids: set[str] = set()
    contents: set[tuple[str, str]] = set()
    for valid in message.tool_calls:
        call = ToolCall(valid["name"], _json(valid["args"]), valid["id"] or "")
        if call.id:
            ids.add(call.id)
        contents.add((call.name, call.arguments))
        yield call
    blocks = message.content if isinstance(message.content, list) else []
    for block in blocks:
        if isinstance(block, Mapping) and _kind(block) in _CALLS:
            call = _block_call(block)
            if call.id not in ids and (call.name, call.arguments) not in contents:
                yield call
    for broken in message.invalid_tool_calls:
        yield ToolCall(broken["name"] or "unknown", _object(broken["args"]), broken["id"] or "")


def _block_call(block: Mapping[str, Any]) -> ToolCall:
    arguments = block.get("input", block.get("args"))
    text = _object(arguments) if isinstance(arguments, str) else _json(arguments or {})
    name = block.get("name")
    return ToolCall("unknown" if name is None else str(name), text, str(block.get("id") or ""))


def _json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except (TypeError, ValueError, RecursionError) as error:
        refused = UsageError(
            f"arguments of a call, or a result, cannot be written as JSON: {error!s:.200}"
        )
        advice = "use strings as keys, no circular references, and fewer levels"
        raise advised(refused, advice) from error


def _object(text: str | None) -> str:
    """A call's arguments as a JSON object. Text that is not an object becomes ``{"invalid":
    text}``."""
    try:
        arguments = read_json(text or "{}")
    except (ValueError, RecursionError):
        arguments = None
    return _json(arguments if isinstance(arguments, dict) else {"invalid": text})


def _contents(message: BaseMessage, place: int, hosted: bool) -> tuple[str, tuple[Attachment, ...]]:
    """The text of a message, and its attachments."""
    if isinstance(message.content, str):
        return message.content, ()
    text = ""
    attachments: list[Attachment] = []
    for index, block in enumerate(message.content):
        may_attach = hosted or isinstance(message, HumanMessage)
        attachment = _attachment(block) if may_attach else None
        if attachment is not None:
            attachments.append(attachment)
            continue
        try:
            block_text = _block_text(block, message, place, index)
        except UsageError:
            if not hosted:
                raise
            attachments.append(Attachment(OTHER, _json(block)))
            continue
        if text and refusal_block(block):
            text += "\n\n"
        text += block_text
    return text, tuple(attachments)


def _kind(block: Any) -> str | None:
    """The type of a block, as text even if it is not a string."""
    kind = block.get("type") if isinstance(block, Mapping) else type(block).__name__
    return kind if kind is None or isinstance(kind, str) else repr(kind)


def _foreign_text(block: Any, message: AIMessage) -> str | None:
    """The text for a provider's block in an AI message: the text of a refusal, or the call or
    result of a tool on the provider's servers. None for other blocks.

    LangChain converts the blocks of the providers that it supports to standard blocks.
    """
    providers = ["openai", "anthropic", "google_genai"]
    if message.response_metadata.get("model_provider"):
        providers = [message.response_metadata["model_provider"]]
    for provider in providers:
        metadata = {"model_provider": provider}
        try:
            standard = AIMessage([block], response_metadata=metadata).content_blocks
        except (AttributeError, LookupError, TypeError, ValueError):
            continue
        texts = [_standard_text(standard_block) for standard_block in standard]
        if texts and None not in texts:
            return "".join(filter(None, texts))
    return None


def _standard_text(block: Mapping[str, Any]) -> str | None:
    """The text for a standard block, see :func:`_foreign_text`."""
    refusal = refusal_block(block)
    if refusal is not None:
        return refusal
    kind = block["type"]
    if kind == "server_tool_call":
        return f"[{block.get('name')}: {_json(block.get('args'))}]\n"
    if kind == "server_tool_result":
        output = _readable(block.get("output"))
        if not output:
            return ""
        output_text = output if isinstance(output, str) else _json(output)
        return f"[result: {output_text}]\n"
    return "" if kind in _NO_TEXT | {"server_tool_call_chunk"} else None


def _readable(value: Any) -> Any:
    """The result of a provider's tool without the parts that only the provider can read."""
    if isinstance(value, Mapping):
        readable_keys = [key for key in value if not str(key).startswith("encrypted")]
        return {key: _readable(value[key]) for key in readable_keys}
    if isinstance(value, list):
        return [_readable(item) for item in value]
    return value


def _block_text(block: Any, message: BaseMessage, place: int, index: int) -> str:
    if isinstance(block, str):
        return block
    kind = _kind(block)
    if isinstance(block, Mapping):
        text = _mapping_text(block, kind, message)
        if text is not None:
            return text
    where = f"block {index} of message {place} ({message.type})"
    error = UsageError(f"{where} is of type {kind!r:.80}, expected 'text'")
    more = "; images, files and audio can be in a human message: {'type': 'image', 'url': ...}"
    raise advised(error, f"leave the block out, or describe it in words{more}")


def _mapping_text(block: Mapping[str, Any], kind: str | None, message: BaseMessage) -> str | None:
    """The text of a block; None if blocks of this type are not supported in this message."""
    if kind in ("text", "text-plain") and isinstance(block.get("text"), str):
        return str(block["text"])
    if isinstance(message, AIMessage):
        if kind in _NO_TEXT | _CALLS:
            return ""
        return _foreign_text(block, message)
    if isinstance(message, ToolMessage) and kind in (None, "json"):
        return _json(block.get("json", dict(block)))
    return None


def _attachment(block: Any) -> Attachment | None:
    """The image, file, audio or video in a block of a human message, as LangChain's standard block;
    None if the block is something else.

    LangChain gives some blocks a random id, which is left out: answers do not depend on it.
    """
    try:
        # LangChain reads the formats of OpenAI, Anthropic and others too.
        (standard,) = HumanMessage([block]).content_blocks
        content: dict[str, Any] = dict(standard)
        kind = content["type"]
        if kind not in INPUTS or not is_data_content_block(content):
            return None
        content.pop("id", None)
        return Attachment(kind, _json(content))
    except (AttributeError, LookupError, TypeError, ValueError):  # the format is unknown
        return None


def estimated_tokens(texts: Iterable[str]) -> int:
    """An estimate of how many tokens these texts have, if no member can count tokens."""
    size = sum(len(text.encode(errors="replace")) for text in texts)
    return math.ceil(size / BYTES_PER_TOKEN)


def texts_of(turns: Sequence[Turn], tools: Sequence[Tool]) -> list[str]:
    """All texts of a conversation, without what a template puts around them."""
    texts = []
    for turn in turns:
        calls = "".join(call.name + call.arguments for call in turn.calls)
        texts.append(turn.text + calls)
    return texts + [tool.name + tool.description + tool.parameters for tool in tools]


def read_json(text: str | bytes) -> Any:
    """Read JSON. Raises ``ValueError`` also for a number that is too large for a float, such as
    ``1e999``, which Python reads as infinity.

    >>> read_json('{"a": 1e3}')
    {'a': 1000.0}
    """
    return json.loads(text, parse_float=_finite, parse_constant=_finite)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text:.40} is too large for a float")
    return value
