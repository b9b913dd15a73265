"""Formats that also allow redacted text.

The members and the referee judge the redacted text, so a format that does not allow it would end
the answer there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..core.checks import Check
from ..core.redacting import Redacting
from ..core.values import Constraint
from ..errors import UsageError, advised

_NAMED = frozenset(("properties", "patternProperties", "$defs", "definitions"))
"""Keywords whose values are schemas by name."""
_INNER = frozenset(("items", "prefixItems", "additionalProperties", "anyOf", "oneOf", "allOf"))
"""Keywords whose values are schemas."""


def redacted_format(format: Constraint | None, checks: Sequence[Check]) -> Constraint | None:
    """The format, which also allows redacted text. A pattern or a grammar cannot be changed."""
    rules = [check for check in checks if check.redacts is not None]
    if format is None or not rules or format.kind == "json":
        return format
    if format.kind in ("regex", "grammar"):
        error = UsageError(
            f"{rules[0].name} cannot be combined with {format.kind}=...: redacted text would not "
            "match it"
        )
        raise advised(
            error, f"leave {format.kind} or the rule out, or use a schema or choice=[...]"
        )
    body = json.loads(format.body)
    redacting = Redacting(rules)
    if format.kind == "choice":
        changed: Any = _redacted_values(body, redacting)
    else:
        changed = redacted_schema(body, rules)
    return Constraint(format.kind, json.dumps(changed, ensure_ascii=False))


def redacted_schema(schema: Any, rules: Sequence[Check]) -> Any:
    """The schema, whose strings may also be redacted.

    >>> from langchain_specfuse import checks
    >>> redacted_schema({"enum": ["ann@example.com", "none"]}, [checks.redact("email")])
    {'enum': ['[redacted]', 'none']}
    """
    return _allowing(schema, Redacting(rules), sorted({rule.redacts.with_ for rule in rules}))


def _allowing(schema: Any, redacting: Redacting, replacements: Sequence[str]) -> Any:
    if isinstance(schema, list):
        return [_allowing(item, redacting, replacements) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    new: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "enum" and isinstance(value, list):
            new[key] = _redacted_values(value, redacting)
        elif key == "const":
            new[key] = redacting.value(value)
        elif key in _NAMED and isinstance(value, Mapping):
            new[key] = {
                name: _allowing(item, redacting, replacements) for name, item in value.items()
            }
        elif key in _INNER:
            new[key] = _allowing(value, redacting, replacements)
        else:
            new[key] = value
    if new.get("type") != "string" or "enum" in new or "const" in new:
        return _with_any_type(new, schema)
    refused = [text for text in replacements if not _may_be(text, new)]
    return {"anyOf": [new, *({"const": text} for text in refused)]} if refused else new


def _with_any_type(new: dict[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema without its type if a value that it allows has another type now."""
    is_same = new.get("enum") == schema.get("enum") and new.get("const") == schema.get("const")
    return new if is_same else {key: value for key, value in new.items() if key != "type"}


def _may_be(text: str, schema: Mapping[str, Any]) -> bool:
    """Whether a schema of strings certainly allows this one."""
    fits = schema.get("minLength", 0) <= len(text) <= schema.get("maxLength", len(text))
    return fits and "pattern" not in schema and "format" not in schema


def _redacted_values(values: Sequence[Any], redacting: Redacting) -> list[Any]:
    """The values, redacted, each once."""
    new: list[Any] = []
    for value in map(redacting.value, values):
        if not any(value == other and type(value) is type(other) for other in new):
            new.append(value)
    return new
