"""What a chat template knows of tools and thoughts: found out by rendering, never by a model's name.

A marked tool, call, result is rendered, and what comes out is looked at. Knows how to call a template; nothing of
tokens or jobs.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..core.values import Call, CallFormat, Tool, Turn
from ._tools import arguments_of

Message = dict[str, Any]
Render = Callable[..., str]
"""(messages, tools=None, add_generation_prompt=False) -> text; raises what the template raises."""

NAME, KEY, VALUE, RESULT = "specfuse_tool", "specfuse_key", "specfuse_value", "specfuse_result"
_ASK: Message = {"role": "user", "content": "x"}
_JSON_PAIR = re.compile(rf'"{KEY}"\s*:\s*"{VALUE}"')
_THOUGHT = re.compile(r"<think>.*?</think>\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Native:
    """What a template knows."""

    tools: bool = False
    """It tells the model which tools there are."""
    calls: Literal["dict", "text", "no"] = "no"
    """It writes what the assistant called; arguments are given to it as a mapping or as JSON text."""
    results: bool = False
    """It knows turns in which a tool answers."""
    format: CallFormat | None = None
    """How it writes a call, where that is JSON with a name and arguments between two marks."""


def found(render: Render) -> Native:
    """What this template knows."""
    tools = _knows_tools(render)
    calls = _knows_calls(render)
    # Many templates write down any role. Only who knows tools or calls has ever seen a tool's answer in its training.
    results = (tools or calls != "no") and _knows_results(render, calls)
    return Native(tools, calls, results, _format(render, calls))


def tool_data(tool: Tool) -> dict[str, Any]:
    """A tool as chat templates want it."""
    parameters = json.loads(tool.parameters) if tool.parameters else {"type": "object", "properties": {}}
    function = {"name": tool.name, "description": tool.description, "parameters": parameters}
    return {"type": "function", "function": function}


def call_data(call: Call, way: str) -> dict[str, Any]:
    """A call as chat templates want it."""
    arguments: Any = arguments_of(call)
    if way == "text":
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {"type": "function", "id": plain_id(call.id), "function": {"name": call.name, "arguments": arguments}}


def plain_id(told: str) -> str:
    """A call's id that the strictest templates take: nine letters and digits."""
    if re.fullmatch(r"[A-Za-z0-9]{9}", told):
        return told
    return hashlib.sha256(told.encode()).hexdigest()[:9]


def message(turn: Turn, way: str) -> Message:
    """A turn as chat templates want it."""
    told: Message = {"role": turn.role, "content": turn.text}
    if turn.calls:
        told["tool_calls"] = [call_data(call, way) for call in turn.calls]
    if turn.role == "tool":
        told |= {"name": turn.name, "tool_call_id": plain_id(turn.call_id)}
    return told


# --- finding out ------------------------------------------------------------------------------------------------


def _tried(render: Render, messages: Sequence[Message], **more: Any) -> str:
    try:
        return render(messages, **more)
    except Exception:  # templates are programs of strangers: whatever they raise, they do not know this
        return ""


def _knows_tools(render: Render) -> bool:
    schema = {"type": "object", "properties": {KEY: {"type": "string", "description": VALUE}}, "required": [KEY]}
    tool = tool_data(Tool(NAME, "x", json.dumps(schema)))
    told = _tried(render, [_ASK], tools=[tool], add_generation_prompt=True)
    return NAME in told and KEY in told


def _called(way: str, count: int = 1) -> Message:
    calls = [Call(NAME, json.dumps({KEY: VALUE}), f"call{k:05}") for k in range(count)]
    return {"role": "assistant", "content": "", "tool_calls": [call_data(call, way) for call in calls]}


def _answers(count: int = 1) -> list[Message]:
    return [message(Turn("tool", RESULT, name=NAME, call_id=f"call{k:05}"), "dict") for k in range(count)]


def _knows_calls(render: Render) -> Literal["dict", "text", "no"]:
    ways: tuple[Literal["dict", "text"], ...] = ("dict", "text")
    told = {
        way: _tried(render, [_ASK, _called(way), *_answers()]) or _tried(render, [_ASK, _called(way), _ASK])
        for way in ways
    }
    for way in ways:
        if NAME in told[way] and _JSON_PAIR.search(told[way]):
            return way
    # Not every template writes JSON: names and values in tags or Python's own way are calls too.
    for way in ways:
        if NAME in told[way] and KEY in told[way] and VALUE in told[way] and f'{{\\"{KEY}' not in told[way]:
            return way
    return "no"


def _knows_results(render: Render, calls: str) -> bool:
    before = _called(calls) if calls != "no" else {"role": "assistant", "content": "y"}
    return RESULT in _tried(render, [_ASK, before, *_answers()], add_generation_prompt=True)


def _format(render: Render, calls: str) -> CallFormat | None:
    """Begin, end and keys, cut out of a rendered call."""
    if calls == "no":
        return None
    one, two = _tried(render, [_ASK, _called(calls)]), _tried(render, [_ASK, _called(calls, 2), *_answers(2)])
    prompt, said = _tried(render, [_ASK], add_generation_prompt=True), "specfuse-answer-mark"
    closing = _tried(render, [_ASK, {"role": "assistant", "content": said}]).rpartition(said)[2]
    place = _object(one, max(one.find(NAME), 0))
    if place is None or not prompt or not one.startswith(prompt) or not one.endswith(closing):
        return None
    start, stop, keys = place
    begin = _THOUGHT.sub("", one[len(prompt) : start])
    end = one[stop : len(one) - len(closing)]
    if not begin.strip() or not end.strip():
        return None  # nothing tells such a call from an answer in JSON
    return CallFormat(begin, end, _between(two, begin, end), *keys)


def _object(text: str, near: int) -> tuple[int, int, tuple[str, str]] | None:
    """Where the JSON object around the tool's name stands, and its keys of the name and of the arguments."""
    start = text.rfind("{", 0, near)
    while start >= 0:
        try:
            told, size = json.JSONDecoder().raw_decode(text[start:])
        except ValueError:
            told, size = None, 0
        if isinstance(told, Mapping) and len(told) == 2 and start + size > near:
            (first, one), (second, other) = told.items()
            if one == NAME and other == {KEY: VALUE}:
                return start, start + size, (first, second)
        start = text.rfind("{", 0, start)
    return None


def _between(text: str, begin: str, end: str) -> str:
    """What stands between two calls."""
    first = _object(text, max(text.find(NAME), 0))
    if first is not None and text.startswith(end, first[1]):
        after = first[1] + len(end)
        second = text.find(begin, after)
        if second >= 0 and NAME not in text[after:second]:
            return text[after:second]
    return CallFormat().between
