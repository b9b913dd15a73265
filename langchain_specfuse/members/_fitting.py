"""A script under a constraint: written as the constraint wants it where it means the same, else warned about.

Knows texts and constraints; nothing of members and queries.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from typing import Any

from ..core.referee import Referee
from ..core.values import CallFormat, Constraint

log = logging.getLogger("langchain_specfuse")

_DECODER = json.JSONDecoder()
_FENCED = re.compile(r"```\w*\s*(.*?)\s*```", re.S)
DEEP = 32
"""A schema's references and alternatives are followed so far."""


def fitted(script: str, constraint: Constraint | None, name: str) -> str:
    """The script as this constraint lets it be said. As it is, with a warning in the log, where it cannot be."""
    if constraint is None:
        return script
    try:
        from ..constraints import calls_of, referee_for
        from ..constraints._kinds import plan_of

        referee, rules = referee_for(constraint), plan_of(constraint).rules
    except (ImportError, ValueError, RuntimeError):  # nothing here reads it: whoever asks is told so elsewhere
        return script
    begins = [form.begin.strip() for form in _forms(rules)]
    plain = max(map(script.count, begins), default=0) == len(calls_of(constraint, script).calls)
    found: dict[str, int] = {}
    for text in dict.fromkeys([script] * plain + list(_rewritten(script, rules))):
        found[text] = referee.legal("", text)
        if found[text] == len(text) and referee.may_end(text):
            return text
    found = {script: found[script], **found}  # the script first: of those that go equally far it is told
    log.warning("%s: %s", name, _told(script, max(found, key=lambda text: found[text]), referee, rules))
    return script


def _rewritten(script: str, rules: Any) -> Iterator[str]:
    """The script in other words that mean the same: for calls first, since what is called may pass for prose."""
    bare = _bare(script)
    value = _loaded(bare)
    for rule in rules:
        if hasattr(rule, "tools"):
            yield from _with_calls(script, rule)
    yield from (script, bare)
    for rule in rules:
        if hasattr(rule, "tools") and (call := _call_in(value, rule.format)):
            yield _written([call], rule)
        elif hasattr(rule, "schema") and value is not None:
            yield _json(in_order(value, rule.schema, rule.schema))


def _bare(script: str) -> str:
    """Without the white space and the fence around it."""
    script = script.strip()
    fenced = _FENCED.fullmatch(script)
    return fenced[1] if fenced else script


def _loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


# --- calls ------------------------------------------------------------------------------------------------------


def _forms(rules: Any) -> list[CallFormat]:
    """In which formats a script may call: that of the constraint, and the common one."""
    own = [rule.format for rule in rules if hasattr(rule, "tools")]
    return list(dict.fromkeys(form for form in [*own, CallFormat()] if form.begin.strip())) if own else []


def _with_calls(script: str, rule: Any) -> Iterator[str]:
    """The script with its calls as this constraint writes them."""
    for form in _forms([rule]):
        prose, begin, rest = script.partition(form.begin.strip())
        if begin and (calls := _calls_in(begin + rest, form)):
            yield (prose if prose.strip() else "") + _written(calls, rule)


def _calls_in(text: str, form: CallFormat) -> list[tuple[str, Any]]:
    """The calls of a text that is nothing but calls, however they are spaced; none if it is more than that."""
    calls, text = [], text.strip()
    while text:
        if not text.startswith(form.begin.strip()):
            return []
        text = text.removeprefix(form.begin.strip()).lstrip()
        try:
            value, end = _DECODER.raw_decode(text)
        except (ValueError, RecursionError):
            return []
        call, text = _call_in(value, form), text[end:].lstrip()
        if not call or not text.startswith(form.end.strip()):
            return []
        calls.append(call)
        text = text.removeprefix(form.end.strip()).lstrip().removeprefix(form.between.strip()).lstrip()
    return calls


def _call_in(value: Any, form: CallFormat) -> tuple[str, Any] | None:
    for one in (form, CallFormat()):
        if isinstance(value, dict) and set(value) == {one.name_key, one.arguments_key}:
            return value[one.name_key], value[one.arguments_key]
    return None


def _written(calls: list[tuple[str, Any]], rule: Any) -> str:
    form, schemas = rule.format, dict(rule.tools)
    bodies = []
    for name, arguments in calls:
        schema = schemas.get(str(name), {})
        bodies.append(_json({form.name_key: name, form.arguments_key: in_order(arguments, schema, schema)}))
    return str(form.between.join(form.begin + body + form.end for body in bodies))


# --- the order of keys ------------------------------------------------------------------------------------------


def in_order(value: Any, schema: Any, root: Any) -> Any:
    """The value with its keys as this schema, in its plain form, has them.

    >>> schema = {"type": "object", "properties": {"a": {}, "b": {}}}
    >>> in_order({"b": 1, "a": 2}, schema, schema)
    {'a': 2, 'b': 1}
    """
    schema = _meant(value, schema, root, DEEP)
    if isinstance(value, dict):
        named, more = schema.get("properties", {}), schema.get("additionalProperties", {})
        keys = [key for key in named if key in value] + [key for key in value if key not in named]
        return {key: in_order(value[key], named.get(key, more), root) for key in keys}
    if isinstance(value, list):
        first, more = schema.get("prefixItems", []), schema.get("items", {})
        return [in_order(one, first[at] if at < len(first) else more, root) for at, one in enumerate(value)]
    return value


def _meant(value: Any, schema: Any, root: Any, deep: int) -> dict[str, Any]:
    """The part of the schema that speaks of this value: behind references, and among alternatives."""
    if not isinstance(schema, dict) or deep < 0:
        return {}
    if "$ref" in schema:
        return _meant(value, root.get("$defs", {}).get(schema["$ref"].rpartition("/")[2]), root, deep - 1)
    if "anyOf" in schema:
        parts = [_meant(value, part, root, deep - 1) for part in schema["anyOf"]]
        return next((part for part in parts if _suits(value, part)), {})
    return schema


def _suits(value: Any, schema: dict[str, Any]) -> bool:
    if isinstance(value, list):
        return schema.get("type") == "array"
    if not isinstance(value, dict) or schema.get("type") != "object":
        return False
    named = schema.get("properties", {})
    others = schema.get("additionalProperties", True) is not False
    wrong = [key for key, one in named.items() if key in value and not _may_be(value[key], one)]
    return not wrong and (others or value.keys() <= named.keys()) and value.keys() >= set(schema.get("required", ()))


def _may_be(value: Any, schema: Any) -> bool:
    return not isinstance(schema, dict) or "enum" not in schema or value in schema["enum"]


# --- what is wrong ----------------------------------------------------------------------------------------------


def _told(script: str, text: str, referee: Referee, rules: Any) -> str:
    """What is wrong with the script, whose best writing is this text, and what would be right."""
    at = referee.legal("", text)
    told = "its script" if text == script else "its script, even spelled as it should be,"
    if at < len(text):
        told += f" does not fit the constraint from character {at} on, where it says {text[at : at + 20]!r}"
    else:
        told += f" ends at character {at}, before the answer is whole"
    told += ": another answer comes out. Legal is " + "; or ".join(map(_legal, rules))
    way = referee.closing(text[:at])
    return f"{told}; such as {text[:at] + way!r:.200}" if way else told


def _legal(rule: Any) -> str:
    if hasattr(rule, "tools"):
        names = ", ".join(name for name, _ in rule.tools)
        told = f"a call of {names:.200}" + (", each call once" if rule.parallel else ", one only")
        return f"{told}: ScriptedMember.call({rule.tools[0][0]!r}, ...) with all that its schema wants"
    if hasattr(rule, "schema"):
        order = "the schema's keys in the schema's order, and no escapes without need"
        return f"JSON with ', ' and ': ', {order}: json.dumps(value, ensure_ascii=False)"
    if hasattr(rule, "texts"):
        return "one of " + ", ".join(map(repr, rule.texts))[:200]
    return f"a text that follows {getattr(rule, 'pattern', None) or 'the grammar'!s:.200} from its beginning to its end"
