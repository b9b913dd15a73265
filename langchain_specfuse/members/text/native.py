"""Finds out what a chat template supports by rendering marked tools, calls, results and thoughts.

The model's name is never used for this.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ...core.values import CallFormat, Tool, ToolCall
from ...errors import MemberError
from .thinking import Marks
from .tools import arguments_of

Message = dict[str, Any]
Render = Callable[..., str]
"""(messages, tools=None, add_generation_prompt=False) -> text; raises what the template raises."""
QUESTION: Message = {"role": "user", "content": "x"}
MARK = "specfuse-answer-mark"
THOUGHT = "specfuse-thought-mark"
NAME, KEY, VALUE, RESULT = "specfuse_tool", "specfuse_key", "specfuse_value", "specfuse_result"
_JSON_PAIR = re.compile(rf'"{KEY}"\s*:\s*"{VALUE}"')
_CALL = re.compile(
    rf'\{{\s*"([^"]+)"\s*:\s*"{NAME}"\s*,\s*"([^"]+)"\s*:\s*\{{\s*"{KEY}"\s*:\s*"{VALUE}"\s*\}}\s*\}}'
)
_THOUGHT = re.compile(r"<think>.*?</think>\s*", re.DOTALL)
_LAST_TAG = re.compile(r"[<\[][^<>\[\]]+[>\]]\s*\Z")


@dataclass(frozen=True, slots=True)
class Native:
    """What a template supports."""

    tools: bool = False
    """Whether it shows the model the tools."""
    calls: Literal["dict", "text", "no"] = "no"
    """Whether it writes the assistant's calls, and whether it wants their arguments as a mapping or
    as JSON text."""
    results: bool = False
    """Whether it supports turns with a tool's result."""
    format: CallFormat | None = None
    """How it writes a call, where that is JSON with a name and arguments between two marks."""


def native_of(render: Render) -> Native:
    """What this template supports."""
    schema = {
        "type": "object",
        "properties": {KEY: {"type": "string", "description": VALUE}},
        "required": [KEY],
    }
    tool = tool_data(Tool(NAME, "x", json.dumps(schema)))
    shown = attempt(render, [QUESTION], tools=[tool], add_generation_prompt=True)
    tools = NAME in shown and KEY in shown
    calls = _calls_of(render)
    # Many templates write any role. A model has seen results of tools in training only if its
    # template supports tools or calls.
    results = (tools or calls != "no") and _knows_results(render, calls)
    return Native(tools, calls, results, _format(render, calls))


def attempt(render: Render, messages: Sequence[Message], **more: Any) -> str:
    """The rendering; empty if the template refuses."""
    try:
        return render(messages, **more)
    except MemberError:  # a server could not be reached, so this is not a refusal by the template
        raise
    except Exception:  # a template may raise anything
        return ""


def _called(way: str, count: int = 1) -> Message:
    calls = [ToolCall(NAME, json.dumps({KEY: VALUE}), f"call{k:05}") for k in range(count)]
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [call_data(call, way) for call in calls],
    }


def _results(count: int = 1) -> list[Message]:
    return [
        {"role": "tool", "content": RESULT, "name": NAME, "tool_call_id": f"call{k:05}"}
        for k in range(count)
    ]


def _calls_of(render: Render) -> Literal["dict", "text", "no"]:
    """How the template wants a call's arguments, if it writes calls."""
    ways: tuple[Literal["dict", "text"], ...] = ("dict", "text")
    rendered = {}
    for way in ways:
        call = [QUESTION, _called(way)]
        text = attempt(render, [*call, *_results()])
        rendered[way] = text or attempt(render, [*call, QUESTION])
    for way, text in rendered.items():
        if NAME in text and _JSON_PAIR.search(text):
            return way
    # Not every template writes JSON: some write names and values in tags, or as Python does.
    for way, text in rendered.items():
        is_escaped = f'{{\\"{KEY}' in text
        if NAME in text and KEY in text and VALUE in text and not is_escaped:
            return way
    return "no"


def _knows_results(render: Render, calls: str) -> bool:
    before = _called(calls) if calls != "no" else {"role": "assistant", "content": "y"}
    return RESULT in attempt(render, [QUESTION, before, *_results()], add_generation_prompt=True)


def _format(render: Render, calls: str) -> CallFormat | None:
    """Begin, end and keys of a call, cut out of a rendered one."""
    if calls == "no":
        return None
    rendered = attempt(render, [QUESTION, _called(calls)])
    prompt = attempt(render, [QUESTION], add_generation_prompt=True)
    answered = attempt(render, [QUESTION, {"role": "assistant", "content": MARK}])
    closing = answered.rpartition(MARK)[2]
    call = _CALL.search(rendered)
    if call is None or not prompt:
        return None
    if not rendered.startswith(prompt) or not rendered.endswith(closing):
        return None
    begin = _THOUGHT.sub("", rendered[len(prompt) : call.start()])
    end = rendered[call.end() : len(rendered) - len(closing)]
    if not begin.strip() or not end.strip():
        return None  # nothing distinguishes such a call from an answer in JSON
    return CallFormat(begin, end, _between(render, calls, begin, end), *call.groups())


def _between(render: Render, calls: str, begin: str, end: str) -> str:
    """What the template writes between two calls."""
    rendered = attempt(render, [QUESTION, _called(calls, 2), *_results(2)])
    two = list(_CALL.finditer(rendered))
    if len(two) != 2:
        return CallFormat().between
    gap = rendered[two[0].end() : two[1].start()]
    regular = gap.startswith(end) and gap.endswith(begin) and len(gap) >= len(end) + len(begin)
    return gap[len(end) : len(gap) - len(begin)] if regular else CallFormat().between


# --- how a template marks thoughts ----------------------------------------------------------------


def marks_of(render: Render) -> Marks | None:
    """The marks around a thought, cut out of its rendering."""
    answer = {"role": "assistant", "content": MARK}
    # Templates read one of these two fields: gpt-oss's the first, Qwen's the second.
    thoughtful = answer | {"thinking": THOUGHT, "reasoning_content": THOUGHT}
    before, _, after = attempt(render, [QUESTION, thoughtful]).partition(THOUGHT)
    close, answered, _ = after.partition(MARK)
    prompt = attempt(render, [QUESTION], add_generation_prompt=True)
    if not (answered and close.strip() and prompt and before.startswith(prompt)):
        return None
    if before.rstrip() == prompt.rstrip():  # the prompt opens the thought
        last = _LAST_TAG.search(before)
        return Marks(last[0], close, last[0] + close) if last else None
    open = before.removeprefix(prompt)
    head = attempt(render, [QUESTION, answer]).partition(MARK)[0]
    none = head.removeprefix(prompt) if head.startswith(prompt) else ""
    return Marks(open, close, none if none.strip() else open + close)


# --- tools and calls as templates want them -------------------------------------------------------


def tool_data(tool: Tool) -> dict[str, Any]:
    """A tool as chat templates want it."""
    parameters: Any = {"type": "object", "properties": {}}
    if tool.parameters:
        parameters = json.loads(tool.parameters)
    function = {"name": tool.name, "description": tool.description, "parameters": parameters}
    return {"type": "function", "function": function}


def call_data(call: ToolCall, way: str) -> dict[str, Any]:
    """A call as chat templates want it."""
    arguments: Any = arguments_of(call)
    if way == "text":
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {
        "type": "function",
        "id": plain_id(call.id),
        "function": {"name": call.name, "arguments": arguments},
    }


def plain_id(call_id: str) -> str:
    """A call's id as the strictest templates want it: nine letters and digits."""
    if re.fullmatch(r"[A-Za-z0-9]{9}", call_id):
        return call_id
    return hashlib.sha256(call_id.encode()).hexdigest()[:9]
