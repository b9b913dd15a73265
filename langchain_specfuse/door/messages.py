"""OpenAI's messages to LangChain's, each wrong one told by its place.

Knows both forms; what the chat model makes of a conversation is not known here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from .._numbers import read_json
from .faults import Fault, refusal

_PARTS = {"text": "text", "refusal": "refusal"}
"""The parts of a content that are words, and under which key."""


def messages_of(given: Any) -> list[BaseMessage]:
    """The conversation, in the order in which it was given.

    >>> messages_of([{"role": "developer", "content": "Be short."}, {"role": "user", "content": "Why?"}])[1].text
    'Why?'
    """
    if not isinstance(given, list) or not given:
        raise refusal(
            f"messages must be a list of at least one message, got {given!r:.80}",
            'for example [{"role": "user", "content": "Why is the sky blue?"}]',
            param="messages",
        )
    return [_message(one, f"messages[{place}]") for place, one in enumerate(given)]


def _message(given: Any, where: str) -> BaseMessage:
    role = given.get("role") if isinstance(given, Mapping) else None
    make = _ROLES.get(role) if isinstance(role, str) else None
    if make is None:
        what = f"{where} must be an object with a role of {', '.join(_ROLES)}, got {given!r:.80}"
        advice = "say what a function returned with the role tool" if role == "function" else "name one of these roles"
        raise refusal(what, advice, param=where)
    return make(given, where)


def _system(given: Mapping[str, Any], where: str) -> BaseMessage:
    return SystemMessage(_text(given, where))


def _user(given: Mapping[str, Any], where: str) -> BaseMessage:
    return HumanMessage(_text(given, where), name=_words(given, "name", where) or None)


def _assistant(given: Mapping[str, Any], where: str) -> BaseMessage:
    for lost in ("function_call", "audio"):
        if given.get(lost) is not None:
            raise refusal(f"{where}.{lost} is not known here", "say it as text or in tool_calls", param=where)
    calls = given.get("tool_calls")
    if calls is None:
        calls = []
    if not isinstance(calls, list):
        raise refusal(f"{where}.tool_calls must be a list, got {calls!r:.80}", "leave it out if nothing was called")
    if given.get("content") is None:
        if not calls and not given.get("refusal"):
            raise refusal(f"{where} says nothing and calls nothing", "leave the message out", param=f"{where}.content")
        text = _words(given, "refusal", where)
    else:
        text = _text(given, where)
    told = [_call(one, f"{where}.tool_calls[{place}]") for place, one in enumerate(calls)]
    good = [call for call in told if call["type"] == "tool_call"]
    broken = [call for call in told if call["type"] != "tool_call"]
    return AIMessage(text, tool_calls=good, invalid_tool_calls=broken)


def _tool(given: Mapping[str, Any], where: str) -> BaseMessage:
    answered = given.get("tool_call_id")
    if not isinstance(answered, str):
        raise refusal(
            f"{where}.tool_call_id must be a text, got {answered!r:.80}",
            "it is the id of the call that this message answers",
            param=f"{where}.tool_call_id",
        )
    return ToolMessage(_text(given, where), tool_call_id=answered, name=_words(given, "name", where) or None)


_ROLES: Mapping[str, Callable[[Mapping[str, Any], str], BaseMessage]] = {
    "system": _system,
    "developer": _system,
    "user": _user,
    "assistant": _assistant,
    "tool": _tool,
}


# --- calls ------------------------------------------------------------------------------------------------------


def _call(given: Any, where: str) -> dict[str, Any]:
    """A call as LangChain has it; one whose arguments are no JSON object as an invalid one, since it was made."""
    function = given.get("function") if isinstance(given, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    arguments = function.get("arguments", "") if isinstance(function, Mapping) else None
    if not isinstance(name, str) or not isinstance(arguments, str) or not isinstance(given.get("id", ""), str):
        raise refusal(
            f"{where} is no call of a function: {given!r:.80}",
            '{"id": "call_1", "type": "function", "function": {"name": "add", "arguments": "{}"}}',
            param=where,
        )
    read = _object(arguments)
    kind = {"type": "invalid_tool_call", "error": None} if read is None else {"type": "tool_call"}
    return {"name": name, "args": arguments if read is None else read, "id": given.get("id", ""), **kind}


def _object(text: str) -> dict[str, Any] | None:
    try:
        told = read_json(text or "{}")
    except (ValueError, RecursionError):
        return None
    return told if isinstance(told, dict) else None


# --- text -------------------------------------------------------------------------------------------------------


def _text(given: Mapping[str, Any], where: str) -> str:
    content = given.get("content")
    where = f"{where}.content"
    if isinstance(content, str):
        return content
    if isinstance(content, list) and content:
        return "".join(_part(one, f"{where}[{place}]") for place, one in enumerate(content))
    raise refusal(f"{where} must be a text or a list of parts, got {content!r:.80}", "say something", param=where)


def _part(given: Any, where: str) -> str:
    kind = given.get("type") if isinstance(given, Mapping) else None
    key = _PARTS.get(kind) if isinstance(kind, str) else None
    text = given.get(key) if key else None
    if isinstance(text, str):
        return text
    raise _no_text(given, kind, where)


def _no_text(given: Any, kind: Any, where: str) -> Fault:
    if isinstance(kind, str) and kind not in _PARTS:
        # Not the part itself: an image may be all of the body.
        what = f"{where} is of type {kind!r:.80}, wanted 'text': members read text only"
        return refusal(what, "leave the part out, or put what it shows into words", param=where)
    wanted = '{"type": "text", "text": "Why is the sky blue?"}'
    return refusal(f"{where} is no part of a content: {given!r:.80}", f"for example {wanted}", param=where)


def _words(given: Mapping[str, Any], key: str, where: str) -> str:
    value = given.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise refusal(f"{where}.{key} must be a text, got {value!r:.80}", "leave it out", param=f"{where}.{key}")
    return value
