"""What one call asks the answer to be: the tools that may be called, and the format of non-tool
answers.

Turns the options ``tools, tool_choice, parallel_tool_calls, strict, response_format, regex, choice,
grammar`` into tools and one constraint, and refuses impossible ones before any model runs.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

from ..constraints import (
    LeftOut,
    Validator,
    arguments_schema,
    left_out,
    preload,
    referee_for,
    validator_of,
)
from ..core.values import CallFormat, Constraint, Tool
from ..errors import UsageError, advised
from .functions import on_event_loop
from .options import refuse_broken
from .schemas import WRAPPED, is_schema, openai_tools, schema_of, titled

log = logging.getLogger("langchain_specfuse")
preload("llguidance")

TEXT_OPTIONS = ("response_format", "regex", "choice", "grammar")
referee_of = referee_for
COMMON = CallFormat()
"""How calls are written where the members have no format of their own, or not the same one."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What an answer may be."""

    tools: tuple[Tool, ...] = ()
    """The tools that may be called."""
    forced: bool = False
    """The answer must be a call."""
    parallel: bool = False
    """Whether it may be several calls."""
    text: Constraint | None = None
    """The format of an answer that is not a call; None: prose."""
    loose: frozenset[str] = frozenset()
    """The tools with a schema that the grammar enforces only in part."""
    strict: frozenset[str] = frozenset()
    """The tools whose calls must all be valid."""

    def fault(self, name: str, arguments: Any, ruled: bool) -> str:
        """What is wrong with a finished call under the whole schema of its tool; empty if it is
        valid. ``ruled``: it was written under the grammar, which enforces the whole schema of most
        tools."""
        for tool in self.tools:
            if tool.name == name and (name in self.loose or not ruled):
                return _validator(tool).fault(arguments)
        return ""

    @property
    def begins_with_call(self) -> bool:
        """Whether a call, if there is one, is all of the answer."""
        return bool(self.tools) and (self.forced or self.text is not None)

    def constraint(self, format: CallFormat = COMMON) -> Constraint | None:
        """The shape as plain data, with calls in this format; None: anything is allowed."""
        if not self.tools:
            return self.text
        tools = [
            {"name": tool.name, "parameters": json.loads(tool.parameters)} for tool in self.tools
        ]
        calls = Constraint(
            "calls", _dumped({"tools": tools, "parallel": self.parallel, **asdict(format)})
        )
        if self.forced:
            return calls
        kinds = [calls, self.text] if self.text else [Constraint("prose"), calls]
        return Constraint("any_of", _dumped([[one.kind, one.body] for one in kinds]))


def shape_of(given: Mapping[str, Any], stop: Sequence[str] = ()) -> Shape:
    """What these options ask for, checked before anything is loaded.

    ``stop`` is the call's own. The chat model's stop strings are for prose, and are not searched
    for in anything else.
    """
    shape = Shape(*_calls(given), _text_constraint(given))
    _refuse_conflicts(shape, given, stop)
    if (constraint := shape.constraint()) is not None:
        for text in (constraint.body, *(tool.description for tool in shape.tools)):
            refuse_broken(text)
        return _checked(shape, given, left_out(constraint))
    return shape


def _checked(shape: Shape, given: Mapping[str, Any], missing: Sequence[LeftOut]) -> Shape:
    """The shape with its ``loose`` tools. ``UsageError`` if a strict schema is not enforced
    whole."""
    strict = _strict_schemas(given)
    by_schema: dict[str, list[LeftOut]] = {}
    for one in missing:
        if strict is None or one.where in strict:
            raise advised(one.error(), "or leave strict=True out: finished values are then checked")
        by_schema.setdefault(one.where, []).append(one)
    loose = [tool for tool in shape.tools if _schema_name(tool.name) in by_schema]
    # jsonschema reads files when it is imported, so on an event loop a schema is checked later,
    # with the question, on another thread.
    if not on_event_loop():  # refuse invalid schemas now
        if shape.tools and not shape.begins_with_call:
            preload("jsonschema")  # a call in plain JSON may be checked on an event loop later
        for tool in loose:
            _validator(tool)
        if "schema" in by_schema and shape.text:
            validator_of(shape.text.body, "schema")
    for where, parts in by_schema.items():
        _warn_once(where, ", ".join(one.path for one in parts))
    names = [tool.name for tool in shape.tools]
    return replace(
        shape,
        loose=frozenset(tool.name for tool in loose),
        strict=frozenset(one for one in names if strict is None or _schema_name(one) in strict),
    )


def _strict_schemas(given: Mapping[str, Any]) -> set[str] | None:
    """The names of the schemas that must be enforced whole; None: all of them."""
    if given.get("strict") is True:
        return None
    found = set()
    for tool in given.get("tools") or ():
        if isinstance(tool, Mapping):  # nothing else can say it
            function = tool.get("function", tool)
            if function.get("strict") is True:
                found.add(_schema_name(function["name"]))
    wanted = given.get("response_format")
    wrapped = wanted.get("json_schema") if isinstance(wanted, Mapping) else None
    if isinstance(wrapped, Mapping) and wrapped.get("strict") is True:
        found.add("schema")
    return found


def _schema_name(tool: str) -> str:
    return f"{tool}.parameters"


def _validator(tool: Tool) -> Validator:
    schema = arguments_schema(json.loads(tool.parameters))
    return validator_of(_dumped(schema), _schema_name(tool.name))


@lru_cache(maxsize=512)
def _warn_once(where: str, paths: str) -> None:
    log.warning(
        "the grammar for the schema %r leaves out %.500s; finished values are checked against the "
        "whole schema (strict=True refuses such a schema)",
        where,
        ascii(paths)[1:-1],
    )


def whole_schema(schema: Mapping[str, Any]) -> str | None:
    """The schema as text, if the grammar leaves out a part of it; otherwise None."""
    body = _dumped(schema)
    return body if left_out(Constraint("json_schema", body)) else None


def _refuse_conflicts(shape: Shape, given: Mapping[str, Any], stop: Sequence[str]) -> None:
    """Refuse options that contradict each other. A ``response_format`` may be combined with a
    forced call: it applies to a later answer."""
    asked = [name for name in TEXT_OPTIONS if given.get(name) is not None]
    if shape.forced and asked and asked[0] != "response_format":
        error = UsageError(
            f"{asked[0]} and tool_choice={given['tool_choice']!r:.80}: the answer is a call, not a "
            "text"
        )
        raise advised(error, f"leave {asked[0]} out, or tool_choice='auto'")
    if stop and (shape.forced or shape.text):
        what = "tool_choice" if shape.forced else asked[0]
        error = UsageError(
            f"stop={list(stop)!r:.200} and {what}=...: a stop string would cut the answer off"
        )
        raise advised(error, "leave stop out: the answer ends when it is complete")


def plain(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options as plain data for cache keys and traces, because two classes may have the same
    name."""
    found = dict(given)
    if found.get("tools"):
        found["tools"] = openai_tools(found["tools"], found.get("strict"))
    if found.get("response_format") is not None:
        text = _response_format(found["response_format"])
        found["response_format"] = text and [text.kind, text.body]
    return found


# --- the text -------------------------------------------------------------------------------------


def _text_constraint(given: Mapping[str, Any]) -> Constraint | None:
    chosen = [name for name in TEXT_OPTIONS if given.get(name) is not None]
    if len(chosen) > 1:
        error = UsageError(f"{chosen[0]} and {chosen[1]} are both given; an answer has one format")
        raise advised(error, f"leave {chosen[0]} or {chosen[1]} out")
    if not chosen:
        return None
    name, wanted = chosen[0], given[chosen[0]]
    if name == "response_format":
        return _response_format(wanted)
    if name == "choice":
        return _choice(wanted)
    if not isinstance(wanted, str) or not wanted:
        example = "regex='[0-9]{4}'" if name == "regex" else "grammar='root ::= \"x\"'"
        raise advised(
            UsageError(f"{name} must be a text, got {wanted!r:.200}"), f"for example {example}"
        )
    return Constraint(name, wanted)


def _choice(texts: Any) -> Constraint:
    if (
        not isinstance(texts, list | tuple)
        or not texts
        or not all(isinstance(one, str) and one for one in texts)
    ):
        error = UsageError(
            f"choice must be a list of texts, at least one and none empty, got {texts!r:.200}"
        )
        raise advised(error, "for example choice=['yes', 'no']")
    return Constraint("choice", _dumped(list(dict.fromkeys(texts))))


def _response_format(wanted: Any) -> Constraint | None:
    kind = wanted.get("type") if isinstance(wanted, Mapping) else None
    if kind in ("text", "json_object"):
        _refuse_more(wanted, {"type"})
        return Constraint("json") if kind == "json_object" else None
    if kind == "json_schema":
        _refuse_more(wanted, {"type", "json_schema"})
        wrapped = wanted.get("json_schema")
        if not isinstance(wrapped, Mapping) or not isinstance(wrapped.get("schema"), Mapping):
            error = UsageError(f"response_format has no schema: {wrapped!r:.200}")
            raise advised(
                error, "{'type': 'json_schema', 'json_schema': {'name': ..., 'schema': {...}}}"
            )
        _refuse_more(wrapped, WRAPPED)
        return Constraint("json_schema", _dumped(titled(wrapped, wrapped["schema"])))
    if isinstance(wanted, str):
        raise advised(
            UsageError(f"response_format must be a dict or a class, got {wanted!r:.200}"),
            "for any JSON object: {'type': 'json_object'}; for a schema: with_structured_output",
        )
    if not isinstance(wanted, Mapping) or is_schema(wanted):
        return Constraint("json_schema", _dumped(schema_of(wanted)))
    error = UsageError(f"response_format has an unknown type: {dict(wanted)!r:.200}")
    raise advised(
        error,
        "'json_schema', 'json_object' or 'text' as its type, a pydantic class, or a JSON schema",
    )


def _refuse_more(given: Mapping[str, Any], known: set[str] | frozenset[str]) -> None:
    if unknown := [name for name in given if name not in known]:
        error = UsageError(f"response_format has an unknown key {unknown[0]!r}")
        raise advised(error, f"known keys are {', '.join(sorted(known))}")


# --- the tools ------------------------------------------------------------------------------------


def tools_of(tools: Any, strict: bool | None = None) -> tuple[Tool, ...]:
    """The tools as members see them."""
    functions = [tool["function"] for tool in openai_tools(tools, strict)]
    return tuple(
        Tool(one["name"], str(one.get("description") or ""), _dumped(one["parameters"]))
        for one in functions
    )


def _calls(given: Mapping[str, Any]) -> tuple[tuple[Tool, ...], bool, bool]:
    """The tools that may be called, whether one must be, and whether several may be. With ``none``
    members do not see any tools."""
    tools = tools_of(given.get("tools") or [], given.get("strict"))
    chosen = _chosen(given.get("tool_choice"), [tool.name for tool in tools])
    parallel = given.get("parallel_tool_calls")
    if not isinstance(parallel, bool | None):
        error = UsageError(f"parallel_tool_calls must be True or False, got {parallel!r:.80}")
        raise advised(error, "leave it out to let members decide where they are free to call")
    if not tools or chosen == "none":
        return (), False, False
    if chosen in ("auto", "any"):
        return (
            tools,
            chosen == "any",
            parallel is not False if chosen == "auto" else parallel is True,
        )
    if parallel:
        error = UsageError(
            f"parallel_tool_calls=True and tool_choice={chosen!r}: a named tool is called once"
        )
        raise advised(error, "tool_choice='any' allows several calls")
    return tuple(tool for tool in tools if tool.name == chosen), True, False


def _chosen(choice: Any, names: Sequence[str]) -> str:
    """``auto``, ``any``, ``none`` or a tool's name."""
    if choice is None or choice is False:
        return "auto"
    if not names:
        error = UsageError(f"tool_choice={choice!r:.80} without tools")
        raise advised(error, "pass tools as well, or leave tool_choice out")
    name = "any" if choice is True else _named(choice)
    if name is None:
        error = UsageError(
            f"tool_choice must be 'auto', 'any', 'none' or a tool's name, got {choice!r:.200}"
        )
        own = getattr(choice, "name", None) or getattr(choice, "__name__", None)
        if own in names:
            raise advised(error, f"pass the tool's name: tool_choice={own!r} (tool.name)")
        raise advised(
            error,
            "for example tool_choice='any'; as a dict {'type': 'function', 'function': {'name': "
            "...}}",
        )
    if name in names:
        return name
    if name in ("auto", "any", "none", "required"):
        return "any" if name == "required" else name
    error = UsageError(
        f"tool_choice names {name!r}, which is not a tool; there are {', '.join(map(repr, names))}"
    )
    raise advised(error, "name one of them, or 'auto', 'any', 'none'")


def _named(choice: Any) -> str | None:
    """What a choice names: in words, in OpenAI's form or in Anthropic's."""
    if isinstance(choice, str):
        return choice
    if not isinstance(choice, Mapping):
        return None
    kind, function = choice.get("type"), choice.get("function")
    inner = function if kind == "function" and isinstance(function, Mapping) else choice
    name = inner.get("name") if kind in ("function", "tool") else kind
    return name if isinstance(name, str) else None


def _dumped(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        wrong = UsageError(f"a schema is not JSON: {error}")
        raise advised(
            wrong, "use only strings, numbers, lists and dicts, and do not nest them too deeply"
        ) from error
