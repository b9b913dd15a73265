"""Text that tells a member which tools there are, how to write a call, and what a constrained answer must look like.

For what a chat template does not render itself. Pure text; knows nothing of tokenizers or grammars.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...core.values import Call, CallFormat, Constraint, Tool, Turn

SCHEMA_CHARS = 1000
"""A longer schema is shown as its keys, types and descriptions; a longer outline is cut."""
TOOL_CHARS = 1600
"""The same for one tool's parameters."""
CHOICE_CHARS = 600

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


def allows_prose(constraint: Constraint | None) -> bool:
    """Whether an answer in plain words is allowed."""
    return constraint is None or any(part.kind == "prose" for part in parts(constraint))


def call_format(constraint: Constraint | None) -> CallFormat:
    """How a call is written in this answer."""
    bodies = [json.loads(part.body) for part in parts(constraint) if part.kind == "calls"]
    given: dict[str, str] = bodies[0] if bodies else {}
    return CallFormat(**{key: given[key] for key in CallFormat.__dataclass_fields__ if key in given})


def trigger(form: CallFormat) -> str:
    """The text that distinguishes a call from prose: what begins it, or else its first key."""
    return form.begin or "{" + json.dumps(form.name_key, ensure_ascii=False) + ': "'


# --- calls and results as text ------------------------------------------------------------------------------------


def written(call: Call, form: CallFormat) -> str:
    """A call as an answer has it.

    >>> written(Call("add", '{"a":1}'), CallFormat())
    '<tool_call>\\n{"name": "add", "arguments": {"a": 1}}\\n</tool_call>'
    """
    body = {form.name_key: call.name, form.arguments_key: arguments_of(call)}
    return form.begin + json.dumps(body, ensure_ascii=False) + form.end


def arguments_of(call: Call) -> dict[str, Any]:
    """A call's arguments; what is no JSON object is kept under one key."""
    try:
        arguments = json.loads(call.arguments or "{}")
    except ValueError:
        arguments = call.arguments
    return arguments if isinstance(arguments, dict) else {"input": arguments}


def calls_as_text(turn: Turn, form: CallFormat | None) -> Turn:
    """The assistant's turn with its calls written out; as a sentence (``form=None``) where no call may follow.

    >>> calls_as_text(Turn("assistant", "", (Call("weather", '{"city": "Paris"}'),)), None).text
    'I ask the tool weather (city: Paris).'
    """
    if form is None:
        calls = " ".join(_sentence(call) for call in turn.calls)
    else:
        calls = form.between.join(written(call, form) for call in turn.calls)
    return Turn(turn.role, "\n".join(text for text in (turn.text, calls) if text))


def _sentence(call: Call) -> str:
    values = {key: value if isinstance(value, str) else _json(value) for key, value in arguments_of(call).items()}
    shown = ", ".join(f"{key}: {value}" for key, value in values.items())
    return f"I ask the tool {call.name} ({shown})." if shown else f"I ask the tool {call.name}."


def result_as_text(turn: Turn, last: bool) -> Turn:
    """A tool's result as a turn of the user. Small models copied it when it was in JSON or tags (docs/log.md).

    ``last``: no call may follow.
    """
    text = f"The tool {turn.name} says:\n{turn.text}" if turn.name else f"The tool says:\n{turn.text}"
    return Turn("user", f"{text}\n\nUse this to answer my question." if last else text)


# --- the system text --------------------------------------------------------------------------------------------


def instructions(tools: Sequence[Tool], constraint: Constraint | None, *, native: bool, own: CallFormat | None) -> str:
    """What the system text must add. ``native``: the template renders the tools; ``own``: the member's call format."""
    form, kinds = call_format(constraint), parts(constraint)
    texts = []
    if tools and not native:
        texts.append("You can use these tools:\n" + "\n".join(_tool(tool) for tool in tools))
    if tools and not (native and own == form):
        shape = f'{form.begin}{{"{form.name_key}": "TOOL", "{form.arguments_key}": {{...}}}}{form.end}'
        forced = bool(kinds) and all(part.kind == "calls" for part in kinds)
        others = "" if forced else "\nIf no tool is needed, answer in plain words."
        texts.append(f"To use a tool, answer with nothing but this:\n{shape}{others}")
    texts += [text for part in kinds if (text := _kind(part, bool(tools)))]
    return "\n\n".join(texts)


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


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _tidy(schema: str) -> str:
    try:
        return _json(json.loads(schema))
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
    text = ""
    for line in _lines(root, root, 0):
        if len(text) + len(line) + 1 > limit:
            return text + "..."
        text += line + "\n"
    return text.removesuffix("\n")


def _lines(node: Any, root: Any, depth: int) -> Iterator[str]:
    properties = _resolved(node, root).get("properties")
    for key, value in properties.items() if isinstance(properties, Mapping) else ():
        value = _resolved(value, root)
        inner = _resolved(value.get("items"), root) if value.get("type") == "array" else value
        kind = value.get("type") or ("one of " + json.dumps(value["enum"]) if "enum" in value else "any")
        about = " ".join(str(value.get("description", "")).split())
        yield f"{'  ' * depth}- {key} ({kind})" + (f": {about}" if about else "")
        if depth < 3:
            yield from _lines(inner, root, depth + 1)


def _resolved(node: Any, root: Any) -> Mapping[str, Any]:
    """The node that a reference within the schema points to; of alternatives the first that is not null."""
    for _ in range(8):
        if not isinstance(node, Mapping):
            return {}
        own = {key: value for key, value in node.items() if key != "$ref"}
        if isinstance(reference := node.get("$ref"), str) and reference.startswith("#/"):
            found: Any = root
            for step in reference[2:].split("/"):
                found = found.get(step, {}) if isinstance(found, Mapping) else {}
            node = {**found, **own} if isinstance(found, Mapping) else {}
        else:
            ways = node.get("anyOf") or node.get("oneOf") or node.get("allOf")
            if "properties" in node or not isinstance(ways, list) or not ways:
                return node
            best = next((way for way in ways if isinstance(way, Mapping) and way.get("type") != "null"), ways[0])
            about = {key: value for key, value in own.items() if key == "description"}
            node = {**best, **about} if isinstance(best, Mapping) else {}
    return node if isinstance(node, Mapping) else {}
