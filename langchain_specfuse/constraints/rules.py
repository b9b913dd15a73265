"""Constraints as grammars in llguidance's Lark. ``UsageError`` where a constraint cannot work."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ..core.values import CallFormat, Constraint
from ..errors import UsageError, advised
from .calls import CallReader, format_in
from .schema import prepared
from .vocabulary import llguidance

KINDS = ("json_schema", "json", "regex", "choice", "grammar", "calls", "prose", "any_of")
SPELLING = {
    "item_separator": ", ",
    "key_separator": ": ",
    "whitespace_flexible": False,
    "json_allowed_escapes": 'nrbtf\\"',
}
"""JSON has one spelling: members cannot fill an answer with white space, and equal strings are equal text. ``u`` is not
among the escapes, because half of one at the end of a draft would have to become an unintended character."""
_STRINGS = re.compile(r'("(?:[^"\\]|\\.)*+(?:"|\\?\Z))', re.DOTALL)


@dataclass(frozen=True)
class Rule:
    """One grammar."""

    lark: str
    json: bool = False
    """All that it allows is JSON, or calls, which hold JSON."""
    calls: CallFormat | None = None
    """How the calls that it allows are written."""


@dataclass(frozen=True)
class Plan:
    """What a constraint allows: a text of one of the grammars, or (``prose``) any text, in which calls may begin."""

    rules: tuple[Rule, ...]
    prose: bool = False

    @property
    def calls(self) -> CallFormat | None:
        """How calls are written; None if there can be none."""
        return next((rule.calls for rule in self.rules if rule.calls), None)


@lru_cache(maxsize=128)
def plan_of(constraint: Constraint) -> Plan:
    """The grammars of a constraint."""
    kind, body = constraint.kind, constraint.body
    if kind == "prose":
        return Plan((), prose=True)
    if kind == "any_of":
        return _any_of(body)
    if kind == "json_schema":
        return Plan((_json(_loaded(body, "the JSON schema")),))
    if kind == "json":
        return Plan((_json({"type": "object"}),))
    if kind in ("regex", "grammar") and not body:
        raise UsageError(f"the {kind} is empty")
    if kind == "regex":
        return Plan((Rule(f"start: {_regex(_whole_pattern(body))}"),))
    if kind == "choice":
        return Plan((Rule("start: " + _regex("|".join(map(_escaped, _texts(body))))),))
    if kind == "grammar":
        return Plan((Rule(_from_gbnf(body)),))
    if kind == "calls":
        return Plan((_calls(_loaded(body, "the calls")),))
    raise advised(UsageError(f"no constraint is of kind {kind!r:.80}"), f"one of {', '.join(KINDS)}")


def reader_for(constraint: Constraint | None) -> CallReader | None:
    """A reader for answers under this constraint; None if they cannot hold calls."""
    plan = plan_of(constraint) if constraint else None
    return CallReader(plan.calls, anywhere=plan.prose) if plan and plan.calls else None


def _any_of(body: str) -> Plan:
    parts = _loaded(body, "any_of")
    if not isinstance(parts, list) or not parts or not all(_is_pair(part) for part in parts):
        raise UsageError(f"any_of must be a JSON list of [kind, body], got {body[:200]}")
    plans = [plan_of(Constraint(*part)) for part in parts]
    rules = tuple(dict.fromkeys(rule for plan in plans for rule in plan.rules))
    if not any(plan.prose for plan in plans):
        return Plan(rules)
    # Prose allows whatever the others do, except that a call in it must be one.
    calls = tuple(rule for rule in rules if rule.calls)
    if len(calls) > 1:
        raise advised(UsageError("any_of with prose holds more than one set of calls"), "put all tools into one")
    return Plan(calls, prose=True)


def _is_pair(part: Any) -> bool:
    return isinstance(part, list) and 1 <= len(part) <= 2 and all(isinstance(one, str) for one in part)


# --- JSON and calls -----------------------------------------------------------------------------------------------


def _json(schema: Any) -> Rule:
    return Rule(f"start: {_embedded(_prepared(schema, 'schema'))}", json=True)


def _prepared(schema: Any, where: str) -> Any:
    try:
        return prepared(schema, where, error_of)
    except RecursionError:
        raise advised(UsageError(f"{where} is nested too deep"), "make the schema flatter") from None


def _embedded(schema: Any) -> str:
    return "%json " + json.dumps({**schema, "x-guidance": SPELLING}, ensure_ascii=False)


def error_of(schema: Any) -> str:
    """Why llguidance refuses this schema; empty if it does not."""
    try:
        return reason(llguidance().LLMatcher.validate_grammar(f"start: {_embedded(schema)}"))
    except BaseException as error:  # it panics where it cuts what it quotes in the middle of a character
        if type(error).__name__ != "PanicException":
            raise
        return "a keyword has a value of a wrong type"


def reason(error: str) -> str:
    """llguidance's message without the place in the grammar that we wrote, and without the state of its parser."""
    text = error.split("\n <state>")[0].rpartition("failed to compile JSON schema: ")[2]
    return re.sub(r"\n +\d+ \| start: %json .*", "", text, flags=re.DOTALL).strip()


def _calls(body: Any) -> Rule:
    if not isinstance(body, dict) or not isinstance(body.get("tools"), list) or not body["tools"]:
        raise advised(UsageError("a calls constraint names no tools"), 'give "tools": a list of names and parameters')
    form = format_in(body)
    if form.name_key == form.arguments_key:
        raise UsageError(f"name and arguments of a call share the key {form.name_key!r}")
    tools: dict[str, Any] = {}
    for tool in body["tools"]:
        name = tool.get("name") if isinstance(tool, Mapping) else None
        if not isinstance(name, str) or not name:
            raise UsageError(f"a tool has no name: {str(tool)[:200]}")
        if name in tools:
            raise UsageError(f"two tools are called {name!r}")
        tools[name] = _prepared(_arguments(tool.get("parameters"), name), f"{name}.parameters")
    bodies = []
    for name, schema in tools.items():
        head = f"{{{_quoted(form.name_key)}: {_quoted(name)}, {_quoted(form.arguments_key)}: "
        bodies.append(f"{_quoted(head)} {_embedded(schema)} {_quoted('}')}")
    begin, end, between = (_quoted(text) if text else "" for text in (form.begin, form.end, form.between))
    more = f" ({between} call)*" if body.get("parallel", False) else ""
    lark = f"start: call{more}\ncall: {begin} body {end}\nbody: " + "\n    | ".join(bodies)
    return Rule(lark, json=True, calls=form)


def _arguments(schema: Any, name: str) -> Any:
    """The schema of a tool's arguments: always of an object, and one that names nothing allows nothing."""
    if schema is None:
        raise advised(UsageError(f"the tool {name!r} has no schema"), "give its parameters as a JSON schema")
    if isinstance(schema, str):
        schema = _loaded(schema, f"the parameters of {name!r}")
    if not isinstance(schema, dict):
        raise UsageError(f"the parameters of {name!r} are no JSON schema: {str(schema)[:200]}")
    if set(schema) <= {"type", "title", "description", "$schema"} and schema.get("type", "object") == "object":
        return {"type": "object", "properties": {}}
    return {"type": "object", **schema}


def respaced(constraint: Constraint | None, answer: str, draft: str) -> str:
    """The draft of a member that no mask held, spaced as the grammar wants it; unchanged if it need not be JSON.

    >>> respaced(Constraint("json"), "{", '\\n  "a":[1,2],\\n  "b c" : " , "')
    '"a": [1, 2], "b c": " , "'
    """
    if constraint is None or constraint.kind not in ("json", "json_schema"):
        return draft
    parts = _STRINGS.split(answer + draft)
    parts[::2] = [re.sub(r"[,:]", r"\g<0> ", re.sub(r"[ \t\r\n]+", "", part)) for part in parts[::2]]
    return "".join(parts)[len(answer) :]


# --- patterns, choices, grammars ----------------------------------------------------------------------------------


def _whole_pattern(pattern: str) -> str:
    """The whole answer is matched anyway, so that anchors say nothing."""
    pattern = pattern.removeprefix("^")
    if pattern.endswith("$") and (len(pattern) - len(pattern[:-1].rstrip("\\"))) % 2 == 1:
        return pattern[:-1]
    return pattern


def _regex(pattern: str) -> str:
    # A slash ends it, and one that is escaped already must not leave its backslash to the escape put there.
    slashless = re.sub(r"\\(.)|/", lambda found: r"\x2f" if found[1] in (None, "/") else found[0], pattern, flags=re.S)
    return f"/(?:{slashless})/"


def _escaped(text: str) -> str:
    return re.sub(r"([^\w\s]|\s)", lambda found: f"\\x{{{ord(found[0]):x}}}", text)


def _texts(body: str) -> list[str]:
    texts = _loaded(body, "the choice")
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise UsageError(f"a choice must be a JSON list of at least one text, got {body[:200]}")
    if not any(texts):
        raise UsageError("a choice of nothing but the empty text leaves nothing to write")
    return list(dict.fromkeys(texts))


def _from_gbnf(text: str) -> str:
    llguidance()
    from llguidance.gbnf_to_lark import gbnf_to_lark

    try:
        return str(gbnf_to_lark(text))
    except Exception as error:  # llguidance has no class for it
        raise advised(UsageError(f"the grammar cannot be read: {error}"), "fix it") from error


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _loaded(body: Any, what: str) -> Any:
    try:
        return json.loads(body)
    except (ValueError, TypeError, RecursionError) as error:
        raise UsageError(f"{what} cannot be read as JSON: {error}") from error
