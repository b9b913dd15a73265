"""What a member is told in words: its tools, how a call is written, and what a bound answer must look like.

For templates that do not know tools, and for what no template knows. Pure text; nothing of tokenizers or grammars.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..core.values import Call, CallFormat, Constraint, Tool, Turn

SCHEMA_CHARS = 1000
"""A schema longer than this is told as its keys, types and descriptions; an outline longer than this is cut."""
TOOL_CHARS = 1600
"""The same for one tool's parameters."""
CHOICE_CHARS = 600
EXAMPLE_CALLS = (
    ("What time is it in Lima? Use a tool.", Call("get_time", '{"city": "Lima"}')),
    ("How many feet are 7 meters? Use a tool.", Call("convert", '{"value": 7, "unit": "feet"}')),
)
"""Two that differ: after one alone a base model calls whatever is most like it."""
EXAMPLE_JSON = (
    "Describe the planet Mars. Answer as JSON with the keys name, color and moons.",
    '{"name": "Mars", "color": "red", "moons": 2}',
)

# --- constraints ------------------------------------------------------------------------------------------------


def parts(constraint: Constraint | None) -> list[Constraint]:
    """The kinds of answer that a constraint allows.

    >>> parts(Constraint("any_of", '[["prose", ""], ["json", ""]]'))
    [Constraint(kind='prose', body=''), Constraint(kind='json', body='')]
    """
    if constraint is None:
        return []
    if constraint.kind != "any_of":
        return [constraint]
    return [part for kind, body in json.loads(constraint.body) for part in parts(Constraint(kind, body))]


def speaks(constraint: Constraint | None) -> bool:
    """Whether an answer in plain words is allowed."""
    return constraint is None or any(part.kind == "prose" for part in parts(constraint))


def call_format(constraint: Constraint | None) -> CallFormat:
    """How a call is written in this answer."""
    bodies = [json.loads(part.body) for part in parts(constraint) if part.kind == "calls"]
    told: dict[str, str] = bodies[0] if bodies else {}
    return CallFormat(**{key: told[key] for key in CallFormat.__dataclass_fields__ if key in told})


def trigger(how: CallFormat) -> str:
    """What tells a call from prose: what begins it, or its first key where nothing does."""
    return how.begin or "{" + json.dumps(how.name_key, ensure_ascii=False) + ': "'


# --- calls and results as text ------------------------------------------------------------------------------------


def written(call: Call, how: CallFormat) -> str:
    """A call as it stands in an answer.

    >>> written(Call("add", '{"a":1}'), CallFormat())
    '<tool_call>\\n{"name": "add", "arguments": {"a": 1}}\\n</tool_call>'
    """
    body = {how.name_key: call.name, how.arguments_key: arguments_of(call)}
    return how.begin + json.dumps(body, ensure_ascii=False) + how.end


def arguments_of(call: Call) -> dict[str, Any]:
    """What a call was called with; what is no object is kept as text under one key."""
    try:
        told = json.loads(call.arguments or "{}")
    except ValueError:
        told = call.arguments
    return told if isinstance(told, dict) else {"input": told}


def calls_as_text(turn: Turn, how: CallFormat | None) -> Turn:
    """What the assistant said, with its calls written out: as calls, or as a sentence where no call may follow.

    >>> calls_as_text(Turn("assistant", "", (Call("weather", '{"city": "Paris"}'),)), None).text
    'I ask the tool weather (city: Paris).'
    """
    if how is None:
        calls = " ".join(_sentence(call) for call in turn.calls)
    else:
        calls = how.between.join(written(call, how) for call in turn.calls)
    return Turn(turn.role, "\n".join(text for text in (turn.text, calls) if text))


def _sentence(call: Call) -> str:
    told = ", ".join(f"{key}: {_said(value)}" for key, value in arguments_of(call).items())
    return f"I ask the tool {call.name} ({told})." if told else f"I ask the tool {call.name}."


def _said(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def result_as_text(turn: Turn, last: bool) -> Turn:
    """What a tool answered, as something that the user says. In JSON or tags small models copied it (docs/log.md).

    ``last``: no call may follow.
    """
    told = f"The tool {turn.name} says:\n{turn.text}" if turn.name else f"The tool says:\n{turn.text}"
    return Turn("user", f"{told}\n\nUse this to answer my question." if last else told)


# --- the system text --------------------------------------------------------------------------------------------


def in_words(tools: Sequence[Tool], constraint: Constraint | None, *, native: bool, own: CallFormat | None) -> str:
    """What the system text must say beside what the conversation says. ``native``: the template tells the tools;
    ``own``: how a call is written by its own training."""
    how, kinds = call_format(constraint), parts(constraint)
    forced = bool(kinds) and all(part.kind == "calls" for part in kinds)
    told = []
    if tools and not native:
        told.append("You can use these tools:\n" + "\n".join(_tool(tool) for tool in tools))
    if tools and not (native and own == how):
        told.append(_way(how, forced))
    told += [text for part in kinds if (text := _kind(part, bool(tools)))]
    return "\n\n".join(told)


def _way(how: CallFormat, forced: bool) -> str:
    shape = f'{how.begin}{{"{how.name_key}": "TOOL", "{how.arguments_key}": {{...}}}}{how.end}'
    others = "" if forced else "\nIf no tool is needed, answer in plain words."
    return f"To use a tool, answer with nothing but this:\n{shape}{others}"


def _tool(tool: Tool) -> str:
    parameters = _tidy(tool.parameters) if tool.parameters else ""
    if len(parameters) > TOOL_CHARS:
        parameters = "\n" + outline(tool.parameters, TOOL_CHARS)
    purpose = " ".join(tool.description.split())
    head = f"- {tool.name}: {purpose}" if purpose else f"- {tool.name}"
    return f"{head} Arguments: {parameters}" if parameters else head


def _kind(part: Constraint, tools: bool) -> str:
    head = "When no tool is needed, answer" if tools else "Answer"
    if part.kind == "json":
        return f"{head} with a JSON object."
    if part.kind == "json_schema":
        schema = _tidy(part.body)
        if len(schema) <= SCHEMA_CHARS:
            return f"{head} with JSON that fits this schema:\n{schema}"
        return f"{head} with JSON that has these keys:\n{outline(part.body, SCHEMA_CHARS)}"
    if part.kind == "choice":
        choices = part.body if len(part.body) <= CHOICE_CHARS else part.body[:CHOICE_CHARS] + "..."
        return f"{head} with one of these: {choices.strip('[]')}"
    return ""


def _tidy(schema: str) -> str:
    try:
        return json.dumps(json.loads(schema), ensure_ascii=False)
    except ValueError:
        return schema


def outline(schema: str, limit: int) -> str:
    """A long schema as a list of its keys, their types and descriptions.

    >>> print(outline('{"properties": {"a": {"type": "integer", "description": "how many"}}}', 100))
    - a (integer): how many
    """
    try:
        root = json.loads(schema)
    except ValueError:
        return schema[:limit]
    lines: list[str] = []
    room = limit
    for line in _lines(root, root, 0):
        room -= len(line) + 1
        if room < 0:
            lines.append("...")
            break
        lines.append(line)
    return "\n".join(lines)


def _lines(node: Any, root: Any, depth: int) -> Iterator[str]:
    node = _resolved(node, root)
    for key, value in (node.get("properties") or {}).items() if isinstance(node.get("properties"), Mapping) else ():
        value = _resolved(value, root)
        inner = _resolved(value.get("items"), root) if value.get("type") == "array" else value
        kind = value.get("type") or ("one of " + json.dumps(value["enum"]) if "enum" in value else "any")
        about = " ".join(str(value.get("description", "")).split())
        yield f"{'  ' * depth}- {key} ({kind})" + (f": {about}" if about else "")
        if depth < 3:
            yield from _lines(inner, root, depth + 1)


def _resolved(node: Any, root: Any) -> Mapping[str, Any]:
    """The node that a reference within the schema points to; of alternatives the first that is an object."""
    for _ in range(8):
        if not isinstance(node, Mapping):
            return {}
        if isinstance(reference := node.get("$ref"), str) and reference.startswith("#/"):
            found: Any = root
            for step in reference[2:].split("/"):
                found = found.get(step, {}) if isinstance(found, Mapping) else {}
            node = {**found, **{k: v for k, v in node.items() if k != "$ref"}} if isinstance(found, Mapping) else {}
            continue
        ways = node.get("anyOf") or node.get("oneOf") or node.get("allOf")
        if "properties" in node or not isinstance(ways, list) or not ways:
            return node
        best = next((way for way in ways if isinstance(way, Mapping) and way.get("type") != "null"), ways[0])
        about = {"description": node["description"]} if "description" in node else {}
        node = {**best, **about} if isinstance(best, Mapping) else {}
    return node if isinstance(node, Mapping) else {}
