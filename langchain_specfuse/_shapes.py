"""What one call asks the answer to be: tools that may be called, and the shape of what is said.

Turns the options ``tools, tool_choice, parallel_tool_calls, strict, response_format, regex, choice, grammar`` into
tools and one constraint, and refuses before any model runs what cannot be. Knows the options; how grammars are read
is in ``constraints``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ._options import refuse_broken
from ._schemas import WRAPPED, is_schema, schema_of, titled
from ._tools import Toolbox, openai_tools, toolbox
from .core.referee import FREE, Referee
from .core.values import CallFormat, Constraint, Tool
from .errors import UsageError, advised

TOOL_OPTIONS = ("tools", "tool_choice", "parallel_tool_calls", "strict")
TEXT_OPTIONS = ("response_format", "regex", "choice", "grammar")
OPTIONS = frozenset((*TOOL_OPTIONS, *TEXT_OPTIONS))

PROSE = Constraint("prose")
COMMON = CallFormat()
"""How calls are written where the members have no format of their own, or not the same one."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What an answer may be."""

    toolbox: Toolbox | None = None
    text: Constraint | None = None
    """What it must look like where it is no call; None: prose."""

    @property
    def tools(self) -> tuple[Tool, ...]:
        return self.toolbox.tools if self.toolbox else ()

    @property
    def begins_with_call(self) -> bool:
        """Whether a call, if there is one, is all of the answer."""
        return self.toolbox is not None and (self.toolbox.forced or self.text is not None)

    def constraint(self, format: CallFormat = COMMON) -> Constraint | None:
        """The whole as plain data; None: anything goes."""
        if self.toolbox is None:
            return self.text
        calls = self.toolbox.constraint(format)
        if self.toolbox.forced:
            return calls
        kinds = [calls, self.text] if self.text else [PROSE, calls]
        return Constraint("any_of", json.dumps([[one.kind, one.body] for one in kinds], ensure_ascii=False))


def shape_of(given: Mapping[str, Any], stop: Sequence[str] = ()) -> Shape:
    """The shape that these options ask for, checked: nothing is loaded yet, and nothing will be in vain.

    ``stop`` is the call's own: the chat model's is for prose, and is not looked for in anything else.
    """
    strict = given.get("strict")
    if not isinstance(strict, bool | None):
        error = UsageError(f"strict must be True or False, got {strict!r:.80}")
        raise advised(error, "leave it out: answers keep to their schema in any case")
    box = toolbox(given.get("tools"), given.get("tool_choice"), given.get("parallel_tool_calls"), strict)
    shape = Shape(box, text_constraint(given))
    _refuse_conflicts(shape, given, stop)
    if (constraint := shape.constraint()) is not None:
        for text in (constraint.body, *(tool.description for tool in shape.tools)):
            refuse_broken(text)
        _check(constraint)
    return shape


def _refuse_conflicts(shape: Shape, given: Mapping[str, Any], stop: Sequence[str]) -> None:
    """Options that cannot both be kept. A ``response_format`` may stand beside a forced call: it has its turn later."""
    asked = [name for name in TEXT_OPTIONS if given.get(name) is not None]
    forced = shape.toolbox is not None and shape.toolbox.forced
    if forced and asked and asked[0] != "response_format":
        error = UsageError(f"{asked[0]} and tool_choice={given['tool_choice']!r:.80}: the answer is a call, not a text")
        raise advised(error, f"leave {asked[0]} out, or tool_choice='auto'")
    if stop and (forced or shape.text):
        what = "tool_choice" if forced else asked[0]
        error = UsageError(f"stop={list(stop)!r:.200} and {what}=...: a stop string would cut what must be whole")
        raise advised(error, "leave stop out: the answer ends when it is whole")


def text_constraint(given: Mapping[str, Any]) -> Constraint | None:
    """What the text must look like, if that was asked for."""
    chosen = [name for name in TEXT_OPTIONS if given.get(name) is not None]
    if len(chosen) > 1:
        error = UsageError(f"{chosen[0]} and {chosen[1]} are both given; an answer has one shape")
        raise advised(error, f"leave {chosen[0]} or {chosen[1]} out")
    if not chosen:
        return None
    (name,) = chosen
    if name == "response_format":
        return _response_format(given[name])
    if name == "choice":
        return _choice(given[name])
    if not isinstance(given[name], str) or not given[name]:
        error = UsageError(f"{name} must be a text, got {given[name]!r:.200}")
        raise advised(
            error, "for example regex='[0-9]{4}'" if name == "regex" else "for example grammar='root ::= \"x\"'"
        )
    return Constraint(name, given[name])


def _choice(texts: Any) -> Constraint:
    good = isinstance(texts, list | tuple) and texts and all(isinstance(one, str) and one for one in texts)
    if not good:
        error = UsageError(f"choice must be a list of texts, at least one and none empty, got {texts!r:.200}")
        raise advised(error, "for example choice=['yes', 'no']")
    return Constraint("choice", json.dumps(list(dict.fromkeys(texts)), ensure_ascii=False))


def _response_format(wanted: Any) -> Constraint | None:
    kind = wanted.get("type") if isinstance(wanted, Mapping) else None
    if kind == "text" or kind == "json_object":
        _refuse_more(wanted, {"type"})
        return Constraint("json") if kind == "json_object" else None
    if kind == "json_schema":
        _refuse_more(wanted, {"type", "json_schema"})
        return _json_schema(wanted.get("json_schema"))
    if not isinstance(wanted, Mapping) or is_schema(wanted):
        return _constraint(schema_of(wanted))
    error = UsageError(f"response_format is of a kind that is not known: {dict(wanted)!r:.200}")
    raise advised(error, "'json_schema', 'json_object' or 'text' as its type, a pydantic class, or a JSON schema")


def _json_schema(wrapped: Any) -> Constraint:
    if not isinstance(wrapped, Mapping) or not isinstance(wrapped.get("schema"), Mapping):
        error = UsageError(f"response_format has no schema: {wrapped!r:.200}")
        raise advised(error, "{'type': 'json_schema', 'json_schema': {'name': ..., 'schema': {...}}}")
    _refuse_more(wrapped, WRAPPED)
    return _constraint(titled(wrapped, wrapped["schema"]))


def _refuse_more(given: Mapping[str, Any], known: set[str] | frozenset[str]) -> None:
    if unknown := [name for name in given if name not in known]:
        error = UsageError(f"response_format has a key {unknown[0]!r} that is not known")
        raise advised(error, f"there are {', '.join(sorted(known))}")


def _constraint(schema: Mapping[str, Any]) -> Constraint:
    try:
        return Constraint("json_schema", json.dumps(schema, ensure_ascii=False))
    except (TypeError, ValueError, RecursionError) as error:
        told = UsageError(f"the schema is no JSON: {error}")
        raise advised(told, "write it with texts, numbers, lists and dicts only") from error


def referee_of(constraint: Constraint | None) -> Referee:
    """Who judges texts under this constraint."""
    if constraint is None:
        return FREE
    referee: Referee = _constraints().referee_for(constraint)
    return referee


@lru_cache(maxsize=256)
def _check(constraint: Constraint) -> None:
    """Once for each that is good: a bound tool is asked for again and again."""
    try:
        _constraints().check(constraint)
    except UsageError as error:
        if not getattr(error, "__notes__", ()):
            advised(error, "mend the schema, or leave out what it is told not to understand")
        raise


def _constraints() -> Any:
    """The room that reads grammars, opened when there is one to read: its packages are an extra."""
    try:
        from . import constraints
    except ImportError as error:
        told = UsageError(f"tools and structured output need a package that is not installed: {error}")
        raise advised(told, 'pip install "langchain-specfuse[structured]"') from error
    return constraints


def plain(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options as plain data: what a cache's key and a trace can tell apart (two classes may have one name)."""
    told = dict(given)
    if told.get("tools"):
        told["tools"] = openai_tools(told["tools"], told.get("strict"))
    if told.get("response_format") is not None:
        text = _response_format(told["response_format"])
        told["response_format"] = text and [text.kind, text.body]
    return told
