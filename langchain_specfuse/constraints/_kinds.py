"""What kinds of constraints there are: plain data read into rules, and refused in words where it cannot work."""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ..core.values import Constraint
from ..errors import UsageError, advised
from ._calls import format_in
from ._rules import Calls, Choice, Ebnf, Json, Pattern, Rules
from ._schema import plain

KINDS = ("json_schema", "json", "regex", "choice", "grammar", "calls", "prose", "any_of")


class Free(enum.Enum):
    """How much free text there may be."""

    NONE = 0
    PROSE = 1
    CALLS = 2
    """Free text in which a call may begin."""


@dataclass(frozen=True)
class Plan:
    """A constraint as rules: the answer follows one of them."""

    rules: tuple[Rules, ...]
    free: Free = Free.NONE

    @property
    def calls(self) -> Calls | None:
        return next((rules for rules in self.rules if isinstance(rules, Calls)), None)

    @property
    def json(self) -> bool:
        """Whether all that it rules is JSON."""
        return all(isinstance(rules, Json | Calls) for rules in self.rules)

    @property
    def literals(self) -> tuple[str, ...]:
        """The plain text in its patterns."""
        found = {text for pattern in self.patterns for text in _plain_parts(pattern)}
        return tuple(sorted(found, key=lambda text: (len(text), text))[:16])

    @property
    def words(self) -> tuple[str, ...]:
        """Text that the answer has to have somewhere in it, or may, where a pattern rules all of it."""
        own = [_exemplary(rules.pattern) for rules in self.rules if isinstance(rules, Pattern)]
        return tuple(dict.fromkeys(text for pattern in own for text in _plain_parts(pattern)))[:16]

    @property
    def patterns(self) -> tuple[str, ...]:
        """What strings must match."""
        return tuple(dict.fromkeys(pattern for rules in self.rules for pattern in _patterns(rules)))


def _patterns(rules: Any) -> list[str]:
    """All patterns of a rule or a plain schema."""
    if isinstance(rules, Json):
        return _patterns(rules.schema)
    if isinstance(rules, Calls):
        return [pattern for _, schema in rules.tools for pattern in _patterns(schema)]
    if isinstance(rules, dict):
        own = [rules["pattern"]] if isinstance(rules.get("pattern"), str) else []
        return own + [pattern for one in rules.values() for pattern in _patterns(one)]
    return [pattern for one in rules for pattern in _patterns(one)] if isinstance(rules, list | tuple) else []


def _plain_parts(pattern: str) -> list[str]:
    """
    >>> _plain_parts(r"^[^@]+@x[.]org$")
    ['@x', 'org']
    >>> _plain_parts("a(?:[^b])*x")
    ['a', 'x']
    """
    bare = re.sub(r"\(\?:|\\[dDwWsS]|\[(?:\\.|[^\]\\])*\]|\{[^}]*\}|[$^()*+?.|](?<!\\.)", "\0", pattern)
    return [part for part in re.sub(r"\\(.)", r"\1", bare).split("\0") if part and len(part) < 40]


def _exemplary(pattern: str) -> str:
    r"""One character for each class of them.

    >>> _plain_parts(_exemplary(r"a.*[xyz]\d[.]"))
    ['a', 'x0.']
    """
    first = lambda found: found[1] if found[1][0] == "\\" or found[1].isalnum() else "\\" + found[1]
    told = re.sub(r"\[(?!\^)(\\.|[^\]\\])(?:\\.|[^\]\\])*\]", first, pattern)
    return re.sub(r"\\([dws])", lambda found: {"d": "0", "w": "a", "s": "\\ "}[found[1]], told)


@lru_cache(maxsize=128)
def plan_of(constraint: Constraint) -> Plan:
    """The rules of a constraint. ``UsageError`` where it cannot work."""
    kind, body = constraint.kind, constraint.body
    if kind == "prose":
        return Plan((), Free.PROSE)
    if kind == "any_of":
        return _any_of(body)
    if kind == "json_schema":
        return Plan((Json(plain(_loaded(body, "the JSON schema"), "schema")),))
    if kind == "json":
        return Plan((Json(plain({"type": "object", "additionalProperties": True}, "schema")),))
    if kind == "regex":
        return Plan((Pattern(unanchored(_some(body, "the pattern"))),))
    if kind == "choice":
        return Plan((_choice(body),))
    if kind == "grammar":
        return Plan((Ebnf(_some(body, "the grammar")),))
    if kind == "calls":
        return Plan((_calls(_loaded(body, "the calls")),))
    raise advised(UsageError(f"no constraint is of kind {kind!r:.80}"), f"one of {', '.join(KINDS)}")


def _any_of(body: str) -> Plan:
    parts = _loaded(body, "any_of")
    if not isinstance(parts, list) or not parts or not all(_is_pair(part) for part in parts):
        raise UsageError(f"any_of wants a JSON list of [kind, body], got {body[:200]}")
    plans = [plan_of(Constraint(*part)) for part in parts]
    rules = {repr(rule): rule for plan in plans for rule in plan.rules}
    if not any(plan.free is not Free.NONE for plan in plans):
        return Plan(tuple(rules.values()))
    # Free text allows whatever the others do, except that a call in it must be one.
    calls = [rule for rule in rules.values() if isinstance(rule, Calls)]
    if len(calls) > 1:
        raise advised(UsageError("any_of with prose holds more than one set of calls"), "put all tools into one")
    return Plan(tuple(calls), Free.CALLS if calls else Free.PROSE)


def _is_pair(part: Any) -> bool:
    return isinstance(part, list) and 1 <= len(part) <= 2 and all(isinstance(one, str) for one in part)


def _choice(body: str) -> Choice:
    texts = _loaded(body, "the choice")
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise UsageError(f"a choice wants a JSON list of at least one text, got {body[:200]}")
    if not any(texts):
        raise UsageError("a choice of nothing but the empty text leaves nothing to write")
    for text in texts:
        text.encode()
    return Choice(tuple(dict.fromkeys(texts)))


def _calls(body: Any) -> Calls:
    if not isinstance(body, dict) or not isinstance(body.get("tools"), list) or not body["tools"]:
        raise advised(UsageError("a calls constraint names no tools"), 'give "tools": a list of names and parameters')
    tools: dict[str, Any] = {}
    for tool in body["tools"]:
        name = tool.get("name") if isinstance(tool, Mapping) else None
        if not isinstance(name, str) or not name:
            raise UsageError(f"a tool has no name: {str(tool)[:200]}")
        if name in tools:
            raise UsageError(f"two tools are called {name!r}")
        schema = tool.get("parameters")
        if schema is None:
            raise advised(UsageError(f"the tool {name!r} has no schema"), "give its parameters as a JSON schema")
        tools[name] = plain(_arguments(schema, name), f"{name}.parameters")
    form = format_in(body)
    if form.name_key == form.arguments_key:
        raise UsageError(f"name and arguments of a call share the key {form.name_key!r}")
    return Calls(form, tuple(tools.items()), bool(body.get("parallel", False)))


def _arguments(schema: Any, name: str) -> Any:
    """The schema of a tool's arguments: always an object, and nothing but what it names."""
    if isinstance(schema, str):
        schema = _loaded(schema, f"the parameters of {name!r}")
    if not isinstance(schema, dict):
        raise UsageError(f"the parameters of {name!r} are no JSON schema: {str(schema)[:200]}")
    if set(schema) <= {"type", "title", "description", "$schema"} and schema.get("type", "object") == "object":
        return {"type": "object", "properties": {}}
    return {"type": "object", **schema}


def unanchored(pattern: str) -> str:
    """The whole answer is matched anyway."""
    pattern = pattern.removeprefix("^")
    if pattern.endswith("$") and (len(pattern) - len(pattern[:-1].rstrip("\\"))) % 2 == 1:
        return pattern[:-1]
    return pattern


def _some(body: str, what: str) -> str:
    if not body:
        raise UsageError(f"{what} is empty")
    return body


def _loaded(body: Any, what: str) -> Any:
    try:
        return json.loads(body)
    except (ValueError, TypeError, RecursionError) as error:
        raise UsageError(f"{what} cannot be read as JSON: {error}") from error
