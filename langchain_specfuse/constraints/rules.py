"""Translate constraints into grammars in llguidance's Lark. A constraint that cannot work raises
``UsageError``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ..core.values import CallFormat, Constraint
from ..errors import UsageError, advised
from .calls import CallReader, dumped, format_in
from .schema import prepared
from .vocabulary import llguidance

SPELLING = {
    "item_separator": ", ",
    "key_separator": ": ",
    "whitespace_flexible": False,
    "json_allowed_escapes": 'nrbtf\\"',
}
"""JSON has one spelling, so members cannot fill an answer with white space, and equal strings are
equal text. llguidance (1.9) cannot allow ``\\/`` or ``\\u00f6``: its ``u`` means control characters
alone. A server's own guided decoding may write them; they become the characters that they mean."""
_FENCE = re.compile(r"\A\s*```\w*\s")
_FENCE_BEGUN = re.compile(r"\s*(?:`{0,2}|```\w*)")
_STRINGS = re.compile(r'("(?:[^"\\]|\\.)*+(?:"|\\?\Z))', re.DOTALL)
_WHOLE_STRING = re.compile(r'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_ESCAPE = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.)", re.DOTALL
)
_HALF_ESCAPE = re.compile(
    r"(?<!\\)(?:\\\\)*"
    r"(\\(?:u[dD][89abAB][0-9a-fA-F]{2}(?:\\(?:u[0-9a-fA-F]{0,3})?)?|(?:u[0-9a-fA-F]{0,3})?))\Z"
)
_ESCAPED = re.compile(r"(?<!\\)(?:\\\\)*\\\Z")


@dataclass(frozen=True)
class Rule:
    """One grammar."""

    lark: str
    json: bool = False
    """Whether it allows only JSON, or calls, which contain JSON."""
    calls: CallFormat | None = None
    """The format of the calls that it allows."""


@dataclass(frozen=True)
class Grammars:
    """What a constraint allows: a text that matches one of the grammars or, with ``prose``, any
    text that may contain calls."""

    rules: tuple[Rule, ...]
    prose: bool = False

    @property
    def calls(self) -> CallFormat | None:
        """The format of calls; None if there can be none."""
        return next((rule.calls for rule in self.rules if rule.calls), None)


@lru_cache(maxsize=128)
def grammars_of(constraint: Constraint) -> Grammars:
    """The grammars of a constraint. The chat model builds the constraint's body; patterns, choices
    and grammars in it come from the user."""
    kind, body = constraint.kind, constraint.body
    if kind == "prose":
        return Grammars((), prose=True)
    if kind == "any_of":
        return _any_of(json.loads(body))
    if kind == "json_schema":
        return Grammars((_json(json.loads(body)),))
    if kind == "json":
        return Grammars((_json({"type": "object"}),))
    if kind in ("regex", "grammar") and not body:
        raise UsageError(f"the {kind} is empty")
    if kind == "regex":
        return Grammars((_pattern_rule(body),))
    if kind == "choice":
        return Grammars((Rule("start: " + _regex("|".join(map(_escaped, json.loads(body))))),))
    if kind == "grammar":
        return Grammars((Rule(_from_gbnf(body)),))
    if kind == "calls":
        return Grammars((_calls(json.loads(body)),))
    raise UsageError(f"no constraint is of kind {kind!r:.80}")


def reader_for(constraint: Constraint | None) -> CallReader | None:
    """A reader for answers under this constraint; None if they cannot contain calls."""
    if constraint is None:
        return None
    grammars = grammars_of(constraint)
    if grammars.calls is None:
        return None
    return CallReader(grammars.calls, anywhere=grammars.prose)


def _any_of(parts: Sequence[Sequence[str]]) -> Grammars:
    alternatives = [grammars_of(Constraint(*part)) for part in parts]
    rules = tuple(dict.fromkeys(rule for grammars in alternatives for rule in grammars.rules))
    if not any(grammars.prose for grammars in alternatives):
        return Grammars(rules)
    # Prose allows everything that the others allow. Only the rules for calls remain in it.
    return Grammars(tuple(rule for rule in rules if rule.calls), prose=True)


# --- JSON and calls -------------------------------------------------------------------------------


@lru_cache(maxsize=128)
def schema_of(body: str) -> str:
    """The schema of a ``json_schema`` as it is enforced: objects that name their properties are
    closed. A server whose guided decoding gets it writes what the referee accepts."""
    return json.dumps(prepared(json.loads(body), "schema", error_of), ensure_ascii=False)


def _json(schema: Any) -> Rule:
    return Rule(f"start: {_prepared(schema, 'schema')}", json=True)


def _prepared(schema: Any, where: str) -> str:
    """The schema as a part of a grammar."""
    try:
        return _embedded(prepared(schema, where, error_of))
    except RecursionError:
        raise advised(
            UsageError(f"{where} is nested too deep"), "make the schema flatter"
        ) from None


def _embedded(schema: Any) -> str:
    return "%json " + json.dumps({**schema, "x-guidance": SPELLING}, ensure_ascii=False)


def error_of(schema: Any) -> str:
    """Why llguidance refuses this schema; empty if it does not."""
    try:
        return reason(llguidance().LLMatcher.validate_grammar(f"start: {_embedded(schema)}"))
    except BaseException as error:  # Rust's panics have no class that can be imported
        if type(error).__name__ != "PanicException":
            raise
        return "a keyword has a value of a wrong type"


def reason(error: str) -> str:
    """llguidance's message, without our grammar and without the state of its parser."""
    text = error.split("\n <state>")[0].rpartition("failed to compile JSON schema: ")[2]
    return re.sub(r"\n +\d+ \| start: %json .*", "", text, flags=re.DOTALL).strip()


def _calls(body: Mapping[str, Any]) -> Rule:
    form = format_in(body)
    bodies: list[str] = []
    for tool in body["tools"]:
        name = tool["name"]
        arguments = _prepared(arguments_schema(tool["parameters"]), f"{name}.parameters")
        head = f"{{{dumped(form.name_key)}: {dumped(name)}, {dumped(form.arguments_key)}: "
        bodies.append(f"{dumped(head)} {arguments} {dumped('}')}")
    begin, end, between = (
        dumped(text) if text else "" for text in (form.begin, form.end, form.between)
    )
    more = f" ({between} call)*" if body.get("parallel", False) else ""
    lark = f"start: call{more}\ncall: {begin} body {end}\nbody: " + "\n    | ".join(bodies)
    return Rule(lark, json=True, calls=form)


def arguments_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a tool's arguments: always an object, and without properties if the tool's
    schema names none."""
    names_nothing = set(schema) <= {"type", "title", "description", "$schema"}
    if names_nothing and schema.get("type", "object") == "object":
        return {"type": "object", "properties": {}}
    return {"type": "object", **schema}


def respaced(constraint: Constraint | None, answer: str, draft: str) -> str:
    """A draft that was written without masks, with the spaces that the grammar demands, without
    the code fence that many models put around JSON, and with characters instead of their escapes.
    Text that need not be JSON is left unchanged.

    >>> respaced(Constraint("json"), "{", '\\n  "a":[1,2],\\n  "b c" : " , "')
    '"a": [1, 2], "b c": " , "'
    >>> (
    ...     respaced(Constraint("json"), "", '```json\\n{"a"'),
    ...     respaced(Constraint("json"), "", "```js"),
    ... )
    ('{"a"', '')
    """
    if constraint is None or constraint.kind not in ("json", "json_schema"):
        return draft
    if not answer:
        if _FENCE_BEGUN.fullmatch(draft):
            return ""
        draft = _FENCE.sub("", draft)
    inside = _inside(answer)
    parts = _STRINGS.split(inside + draft)
    parts[::2] = [
        re.sub(r"[,:]", r"\g<0> ", re.sub(r"[ \t\r\n]+", "", part)) for part in parts[::2]
    ]
    begun = len(inside) + inside.endswith("\\")  # what follows the backslash belongs to it
    for index in range(1, len(parts), 2):
        parts[index] = parts[index][:begun] + _ESCAPE.sub(_unescaped, parts[index][begun:])
        begun = 0
    owed = " " if answer.endswith((",", ":")) and not inside else ""
    return owed + "".join(parts)[len(inside) :]


def _unescaped(match: re.Match[str]) -> str:
    """The character that an escape means, in the grammar's spelling; the escape itself if it is no
    character."""
    escape = match[0]
    if escape == "\\/":
        return "/"
    if len(escape) == 2:
        return escape
    spelled = json.dumps(json.loads(f'"{escape}"'), ensure_ascii=False)[1:-1]
    is_half = "\ud800" <= spelled[0] <= "\udfff"
    return escape if is_half or spelled.startswith("\\u") else spelled


def half_escape(text: str) -> int:
    """How many characters at the end of this JSON may be an incomplete escape, or half of a
    character.

    >>> [half_escape(text) for text in ("\\\\u00", "\\\\ud83d\\\\", "\\\\\\\\", "\\\\u00f6")]
    [4, 7, 0, 0]
    """
    match = _HALF_ESCAPE.search(text)
    return len(match[1]) if match else 0


def _inside(text: str) -> str:
    """A quote if the text stops inside a string, with a backslash if it stops in an escape."""
    parts = _STRINGS.split(text)
    if len(parts) < 2 or parts[-1] or _WHOLE_STRING.fullmatch(parts[-2]):
        return ""
    return '"\\' if _ESCAPED.search(parts[-2]) else '"'


# --- patterns, choices, grammars ------------------------------------------------------------------


def _pattern_rule(pattern: str) -> Rule:
    """The rule of a user's pattern; an error quotes the pattern as the user wrote it."""
    rule = Rule(f"start: {_regex(_whole_pattern(pattern))}")
    error = llguidance().LLMatcher.validate_grammar(rule.lark)
    why = re.search("^error: (.*)", error, re.MULTILINE)
    if "invalid regex" in error and why:
        wrong = UsageError(f"the pattern {pattern!r:.200} cannot be read: {why[1]}")
        raise advised(wrong, "correct the pattern, for example '[0-9]{4}'")
    return rule


def _whole_pattern(pattern: str) -> str:
    """The pattern without anchors: it is matched against the whole answer anyway."""
    pattern = pattern.removeprefix("^")
    if pattern.endswith("$") and (len(pattern) - len(pattern[:-1].rstrip("\\"))) % 2 == 1:
        return pattern[:-1]
    return pattern


def _regex(pattern: str) -> str:
    # A slash would end the expression, so each one is replaced, together with the backslash of one
    # that is escaped already.
    def without_slash(match: re.Match[str]) -> str:
        return r"\x2f" if match[1] in (None, "/") else match[0]

    slashless = re.sub(r"\\(.)|/", without_slash, pattern, flags=re.DOTALL)
    return f"/(?:{slashless})/"


def _escaped(text: str) -> str:
    return re.sub(r"([^\w\s]|\s)", lambda match: f"\\x{{{ord(match[0]):x}}}", text)


def _from_gbnf(text: str) -> str:
    llguidance()
    from llguidance.gbnf_to_lark import gbnf_to_lark

    try:
        return str(gbnf_to_lark(text))
    except Exception as error:  # llguidance has no class of its own for this error
        wrong = UsageError(f"the grammar cannot be read: {error}")
        raise advised(wrong, 'write rules of GBNF, for example root ::= "yes" | "no"') from error
