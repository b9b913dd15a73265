"""Determine the shape of an answer: the tools that it may call, and the format of other answers.

The options ``tools, tool_choice, parallel_tool_calls, strict, response_format, regex, choice,
grammar`` of a call become tools and one constraint. Impossible ones are refused before any model
runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..constraints import arguments_schema, check, fault, preload, referee_for
from ..core.checks import Check
from ..core.values import CallFormat, Constraint, Tool
from ..errors import UsageError, advised
from .functions import on_event_loop
from .messages import refuse_broken
from .options import STRUCTURED, Call
from .redacted import redacted_format, redacted_schema
from .references import are_chat_models, has_chat_model
from .schemas import WRAPPED, is_providers, is_schema, openai_tools, schema_of, titled

preload("llguidance")

TEXT_OPTIONS = ("response_format", "regex", "choice", "grammar")
referee_of = referee_for
COMMON = CallFormat()
"""The format of calls if the members have none, or different ones."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The calls and texts that an answer may consist of."""

    tools: tuple[Tool, ...] = ()
    """The tools that may be called."""
    forced: bool = False
    """Whether the answer must be a call."""
    parallel: bool = False
    """Whether the answer may be several calls."""
    text: Constraint | None = None
    """The format of an answer that is not a call; None for prose."""
    rules: tuple[Check, ...] = ()
    """What is redacted in the answer."""
    strict: frozenset[str] = frozenset()
    """The tools whose calls must all be valid."""

    def fault(self, name: str, arguments: Any) -> str:
        """What is wrong with a finished call under the schema of its tool; empty if it is valid."""
        for tool in self.tools:
            if tool.name == name:
                return fault(_dumped(arguments_schema(self._parameters(tool))), arguments)
        return ""

    @property
    def begins_with_call(self) -> bool:
        """Whether an answer that contains a call consists of calls only."""
        return bool(self.tools) and (self.forced or self.text is not None)

    def constraint(self, format: CallFormat = COMMON) -> Constraint | None:
        """The constraint for this shape, with calls in this format; None if every text is
        allowed."""
        text = redacted_format(self.text, self.rules)
        if not self.tools:
            return text
        tools = [{"name": tool.name, "parameters": self._parameters(tool)} for tool in self.tools]
        body = {"tools": tools, "parallel": self.parallel, **asdict(format)}
        calls = Constraint("calls", _dumped(body))
        if self.forced:
            return calls
        kinds = [calls, text] if text else [Constraint("prose"), calls]
        return Constraint("any_of", _dumped([[kind.kind, kind.body] for kind in kinds]))

    def _parameters(self, tool: Tool) -> Any:
        """The schema of a tool's arguments, which may also be redacted."""
        schema = json.loads(tool.parameters)
        return redacted_schema(schema, self.rules) if self.rules else schema


def shape_of(call: Call, stop: Sequence[str] = ()) -> Shape:
    """The shape that a call asks for, checked before anything is loaded.

    ``stop`` are the stop strings of the call. Those of the chat model are not checked here, because
    they apply to prose only.
    """
    rules = tuple(check for check in call.checks if check.redacts is not None)
    shape = Shape(*_calls(call), _text_constraint(call), rules)
    _refuse_conflicts(shape, call, stop)
    constraint = shape.constraint()
    if constraint is None:
        return shape
    if are_chat_models(call.members):  # their providers know what they accept
        return replace(shape, strict=_strict_tools(call, shape.tools))
    for text in (constraint.body, *(tool.description for tool in shape.tools)):
        refuse_broken(text)
    check(constraint)
    # jsonschema reads files when it is imported, so a chat model that is bound on an event loop
    # imports it later, with the question, on another thread.
    if shape.tools and not on_event_loop():
        preload("jsonschema")
    return replace(shape, strict=_strict_tools(call, shape.tools))


def _strict_tools(call: Call, tools: Sequence[Tool]) -> frozenset[str]:
    """The tools of which every call must be valid."""
    if call.strict:
        return frozenset(tool.name for tool in tools)
    names = set()
    for tool in call.tools or ():
        if isinstance(tool, Mapping):  # only a dict has a key "strict"
            function = tool.get("function", tool)
            if function.get("strict") is True:
                names.add(function["name"])
    return frozenset(names)


def _text_options(call: Call) -> list[str]:
    """The options of the call that give the answer a format."""
    return [name for name in TEXT_OPTIONS if getattr(call, name) is not None]


def _refuse_conflicts(shape: Shape, call: Call, stop: Sequence[str]) -> None:
    """Refuse options that contradict each other. A ``response_format`` may be combined with a
    forced call: it applies to a later answer."""
    formats = _text_options(call)
    if shape.forced and formats and formats[0] != "response_format":
        error = UsageError(
            f"{formats[0]} and tool_choice={call.tool_choice!r:.80}: the answer is a call, not a "
            "text"
        )
        raise advised(error, f"leave {formats[0]} out, or tool_choice='auto'")
    if stop and (shape.forced or shape.text):
        what = "tool_choice" if shape.forced else formats[0]
        error = UsageError(
            f"stop={list(stop)!r:.200} and {what}=...: a stop string would cut the answer off"
        )
        raise advised(error, "leave stop out: the answer ends when it is complete")


def as_plain_data(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a call as plain data for cache keys and traces, because two classes may have
    the same name."""
    plain = {name: value for name, value in options.items() if name != STRUCTURED}
    if plain.get("tools"):
        tools = openai_tools(plain["tools"], plain.get("strict"), hosted=True)
        plain["tools"] = tools + [tool for tool in plain["tools"] if is_providers(tool)]
    if plain.get("response_format") is not None:
        text = _response_format(plain["response_format"])
        plain["response_format"] = text and [text.kind, text.body]
    return plain


# --- the text -------------------------------------------------------------------------------------


def _text_constraint(call: Call) -> Constraint | None:
    formats = _text_options(call)
    if len(formats) > 1:
        first, second = formats[:2]
        error = UsageError(f"{first} and {second} are both given; an answer has one format")
        raise advised(error, f"leave {first} or {second} out")
    if call.response_format is not None:
        return _response_format(call.response_format)
    if call.choice is not None:
        return Constraint("choice", _dumped(list(dict.fromkeys(call.choice))))
    if call.regex is not None:
        return Constraint("regex", call.regex)
    if call.grammar is not None:
        return Constraint("grammar", call.grammar)
    return None


def _response_format(format: Any) -> Constraint | None:
    kind = format.get("type") if isinstance(format, Mapping) else None
    if kind in ("text", "json_object"):
        _refuse_more(format, {"type"})
        return Constraint("json") if kind == "json_object" else None
    if kind == "json_schema":
        _refuse_more(format, {"type", "json_schema"})
        wrapped = format.get("json_schema")
        if not isinstance(wrapped, Mapping) or not isinstance(wrapped.get("schema"), Mapping):
            error = UsageError(f"response_format has no schema: {wrapped!r:.200}")
            raise advised(
                error, "{'type': 'json_schema', 'json_schema': {'name': ..., 'schema': {...}}}"
            )
        _refuse_more(wrapped, WRAPPED)
        return Constraint("json_schema", _dumped(titled(wrapped, wrapped["schema"])))
    if isinstance(format, str):
        raise advised(
            UsageError(f"response_format must be a dict or a class, got {format!r:.200}"),
            "for any JSON object: {'type': 'json_object'}; for a schema: with_structured_output",
        )
    if not isinstance(format, Mapping) or is_schema(format):
        return Constraint("json_schema", _dumped(schema_of(format)))
    error = UsageError(f"response_format has an unknown type: {dict(format)!r:.200}")
    raise advised(
        error,
        "'json_schema', 'json_object' or 'text' as its type, a pydantic class, or a JSON schema",
    )


def _refuse_more(format: Mapping[str, Any], known: set[str] | frozenset[str]) -> None:
    unknown = [name for name in format if name not in known]
    if unknown:
        error = UsageError(f"response_format has an unknown key {unknown[0]!r}")
        raise advised(error, f"known keys are {', '.join(sorted(known))}")


# --- the tools ------------------------------------------------------------------------------------


def tools_of(tools: Any, strict: bool | None = None, *, hosted: bool = False) -> tuple[Tool, ...]:
    """The tools as members see them. ``hosted``: as for ``openai_tools``."""
    if not tools:
        return ()
    functions = [tool["function"] for tool in openai_tools(tools, strict, hosted=hosted)]
    return tuple(
        Tool(
            function["name"],
            str(function.get("description") or ""),
            _dumped(function["parameters"]),
        )
        for function in functions
    )


def _calls(call: Call) -> tuple[tuple[Tool, ...], bool, bool]:
    """The tools that may be called, whether one must be, and whether several may be. With ``none``
    members do not see any tools."""
    hosted = has_chat_model(call.members)
    tools = tools_of(call.tools or [], call.strict, hosted=hosted)
    try:
        choice = _tool_choice(call.tool_choice, [tool.name for tool in tools])
    except UsageError:
        if not hosted or len(tools) == len(call.tools or []):
            raise
        choice = "auto"  # of a tool that the provider runs
    parallel = call.parallel_tool_calls
    if not tools or choice == "none":
        return (), False, False
    if choice == "auto":
        return tools, False, parallel is not False
    if choice == "any":
        return tools, True, parallel is True
    if parallel:
        error = UsageError(
            f"parallel_tool_calls=True and tool_choice={choice!r}: a named tool is called once"
        )
        raise advised(error, "tool_choice='any' allows several calls")
    return tuple(tool for tool in tools if tool.name == choice), True, False


def _tool_choice(choice: Any, names: Sequence[str]) -> str:
    """``auto``, ``any``, ``none`` or a tool's name."""
    if choice is None or choice is False:
        return "auto"
    if not names:
        error = UsageError(f"tool_choice={choice!r:.80} without tools")
        raise advised(error, "pass tools as well, or leave tool_choice out")
    name = "any" if choice is True else _name_in(choice)
    if name is None:
        error = UsageError(
            f"tool_choice must be 'auto', 'any', 'none' or a tool's name, got {choice!r:.200}"
        )
        tool_name = getattr(choice, "name", None) or getattr(choice, "__name__", None)
        if tool_name in names:
            raise advised(error, f"pass the tool's name: tool_choice={tool_name!r} (tool.name)")
        example = "{'type': 'function', 'function': {'name': ...}}"
        raise advised(error, f"for example tool_choice='any'; as a dict {example}")
    if name in names:
        return name
    if name in ("auto", "any", "none", "required"):
        return "any" if name == "required" else name
    error = UsageError(
        f"tool_choice names {name!r}, which is not a tool; the tools are "
        + ", ".join(map(repr, names))
    )
    raise advised(error, "name one of them, or 'auto', 'any', 'none'")


def _name_in(choice: Any) -> str | None:
    """The name in a choice, which is a text or a dict in OpenAI's or Anthropic's format."""
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
