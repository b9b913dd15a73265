"""Texts for what a chat template does not render: which tools there are, how to write a call, and
what a constrained answer must look like."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ...constraints import format_in
from ...core.values import CallFormat, Constraint, Tool, ToolCall, Turn

CHOICE_CHARS = 600

# --- constraints ----------------------------------------------------------------------------------


def parts(constraint: Constraint | None) -> list[Constraint]:
    """The kinds of answer that a constraint allows.

    >>> parts(Constraint("any_of", '[["prose", ""], ["json", ""]]'))
    [Constraint(kind='prose', body=''), Constraint(kind='json', body='')]
    """
    if constraint is None:
        return []
    if constraint.kind != "any_of":
        return [constraint]
    return [
        part for kind, body in json.loads(constraint.body) for part in parts(Constraint(kind, body))
    ]


def allows_prose(constraint: Constraint | None) -> bool:
    """Whether an answer in plain words is allowed."""
    return constraint is None or any(part.kind == "prose" for part in parts(constraint))


def call_format(constraint: Constraint | None) -> CallFormat | None:
    """How a call is written in this answer; None if there can be none."""
    bodies = [json.loads(part.body) for part in parts(constraint) if part.kind == "calls"]
    return format_in(bodies[0]) if bodies else None


# --- calls and results as text --------------------------------------------------------------------


def call_text(call: ToolCall, form: CallFormat) -> str:
    """A call as an answer has it.

    >>> call_text(ToolCall("add", '{"a":1}'), CallFormat())
    '<tool_call>\\n{"name": "add", "arguments": {"a": 1}}\\n</tool_call>'
    """
    body = {form.name_key: call.name, form.arguments_key: arguments_of(call)}
    return form.begin + json.dumps(body, ensure_ascii=False) + form.end


def arguments_of(call: ToolCall) -> dict[str, Any]:
    """A call's arguments; anything but a JSON object becomes the value of one key."""
    try:
        arguments = json.loads(call.arguments or "{}")
    except ValueError:
        arguments = call.arguments
    return arguments if isinstance(arguments, dict) else {"input": arguments}


def calls_as_text(turn: Turn, form: CallFormat | None) -> Turn:
    """The assistant's turn with its calls written out; as a sentence (``form=None``) where no call
    may follow.

    >>> calls_as_text(Turn("assistant", "", (ToolCall("weather", '{"city": "Paris"}'),)), None).text
    'I ask the tool weather (city: Paris).'
    """
    if form is None:
        calls = " ".join(_sentence(call) for call in turn.calls)
    else:
        calls = form.between.join(call_text(call, form) for call in turn.calls)
    return Turn(turn.role, "\n".join(text for text in (turn.text, calls) if text))


def _sentence(call: ToolCall) -> str:
    values = []
    for key, value in arguments_of(call).items():
        values.append(f"{key}: {value if isinstance(value, str) else _json(value)}")
    if not values:
        return f"I ask the tool {call.name}."
    return f"I ask the tool {call.name} ({', '.join(values)})."


def result_as_text(turn: Turn, last: bool) -> Turn:
    """A tool's result as a turn of the user. Small models copied it when it was in JSON or tags
    (docs/development/log.md).

    ``last``: no call may follow.
    """
    tool = f"The tool {turn.name}" if turn.name else "The tool"
    text = f"{tool} says:\n{turn.text}"
    if last:
        text += "\n\nUse this to answer my question."
    return Turn("user", text)


# --- the system text ------------------------------------------------------------------------------


def instructions(
    tools: Sequence[Tool], constraint: Constraint | None, *, native: bool, own: CallFormat | None
) -> str:
    """What the system text must add. ``native``: the template renders the tools; ``own``: the
    member's call format."""
    form = call_format(constraint) or CallFormat()
    kinds = parts(constraint)
    texts = []
    if tools and not native:
        texts.append("You can use these tools:\n" + "\n".join(_tool(tool) for tool in tools))
    if tools and not (native and own == form):
        shape = (
            f'{form.begin}{{"{form.name_key}": "TOOL", "{form.arguments_key}": {{...}}}}{form.end}'
        )
        text = f"To use a tool, answer with nothing but this:\n{shape}"
        is_forced = bool(kinds) and all(part.kind == "calls" for part in kinds)
        if not is_forced:
            text += "\nIf no tool is needed, answer in plain words."
        texts.append(text)
    texts += [_kind(part, bool(tools)) for part in kinds]
    return "\n\n".join(filter(None, texts))


def _tool(tool: Tool) -> str:
    parameters = _json(json.loads(tool.parameters)) if tool.parameters else ""
    purpose = " ".join(tool.description.split())
    head = f"- {tool.name}: {purpose}" if purpose else f"- {tool.name}"
    return f"{head} Arguments: {parameters}" if parameters else head


def _kind(part: Constraint, tools: bool) -> str:
    """How to write an answer of this kind; empty where nothing must be said."""
    head = "When no tool is needed, answer" if tools else "Answer"
    if part.kind == "json":
        return f"{head} with a JSON object."
    if part.kind == "json_schema":
        return f"{head} with JSON that fits this schema:\n{_json(json.loads(part.body))}"
    if part.kind == "choice":
        choices = part.body
        if len(choices) > CHOICE_CHARS:
            choices = choices[:CHOICE_CHARS] + "..."
        return f"{head} with one of these: {choices.strip('[]')}"
    return ""


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
