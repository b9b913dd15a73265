"""Tools as LangChain knows them, and the choice among them, as plain data.

Every form that LangChain knows becomes OpenAI's dict first (that is what is bound, traced and cached), then a
:class:`Tool`. Knows LangChain's forms and what makes a tool callable; nothing of grammars or messages.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool

from ._schemas import is_model, object_schema, own_schema
from .core.values import CallFormat, Constraint, Tool
from .errors import UsageError, advised

NO_ARGUMENTS = {"type": "object", "properties": {}}


@dataclass(frozen=True, slots=True)
class Toolbox:
    """Tools, and whether they may, must or cannot be called."""

    tools: tuple[Tool, ...]
    forced: bool = False
    """The answer is a call, whatever is asked."""
    parallel: bool = False
    """Whether it may be several calls."""

    def constraint(self, format: CallFormat) -> Constraint:
        """Calls of these tools, written in this format."""
        tools = [{"name": tool.name, "parameters": json.loads(tool.parameters)} for tool in self.tools]
        body = {"tools": tools, "parallel": self.parallel, **asdict(format)}
        return Constraint("calls", json.dumps(body, ensure_ascii=False))


# --- tools ------------------------------------------------------------------------------------------------------


def openai_tools(tools: Any, strict: bool | None = None) -> list[dict[str, Any]]:
    """The tools in OpenAI's form, checked: each has a schema, and a name that no other has."""
    if isinstance(tools, str | Mapping) or not isinstance(tools, Sequence):
        error = UsageError(f"tools must be a list, got {tools!r:.200}")
        raise advised(error, "put it into a list: bind_tools([tool])")
    converted = [_openai_tool(tool, place, strict) for place, tool in enumerate(tools)]
    named: dict[str, dict[str, Any]] = {}
    for tool in converted:
        name = tool["function"]["name"]
        # The same tool in two forms (a class, and its schema) is one.
        if _bare(named.setdefault(name, tool)["function"]["parameters"]) != _bare(tool["function"]["parameters"]):
            error = UsageError(f"two tools are called {name!r}; names must differ")
            raise advised(error, "give one of them another name, for example @tool('other_name')")
    return list(named.values())


def _bare(schema: Any) -> Any:
    """The schema without the titles that some forms have and others do not."""
    if isinstance(schema, Mapping):
        kept = {key: value for key, value in schema.items() if not (key == "title" and isinstance(value, str))}
        return {key: _bare(value) for key, value in kept.items()}
    return [_bare(one) for one in schema] if isinstance(schema, list) else schema


def _openai_tool(tool: Any, place: int, strict: bool | None) -> dict[str, Any]:
    try:
        converted = convert_to_openai_tool(tool, strict=strict)
    except Exception as error:
        told = UsageError(f"tool {place} is none that can be called: {tool!r:.200} ({_first_line(error)})")
        raise advised(told, "pass a function with type hints, a @tool, a pydantic class or a dict") from error
    function = converted.get("function")
    if converted.get("type") != "function" or not isinstance(function, Mapping):
        told = UsageError(f"tool {place} is of type {converted.get('type')!r}, wanted 'function': {tool!r:.200}")
        raise advised(told, "a tool that a provider runs for you does not exist here: pass a function of your own")
    name = function.get("name")
    if not isinstance(name, str) or not name.strip():
        told = UsageError(f"tool {place} has no name: {tool!r:.200}")
        raise advised(told, "name it: {'type': 'function', 'function': {'name': ..., 'parameters': {...}}}")
    parameters = _parameters(tool, function, strict)
    if not isinstance(parameters, Mapping):
        told = UsageError(f"tool {name!r} has no schema of its arguments")
        raise advised(told, f"if it takes none: 'parameters': {NO_ARGUMENTS}")
    try:
        json.dumps(_bare(parameters))
    except (TypeError, ValueError, RecursionError) as error:
        told = UsageError(f"the schema of tool {name!r} is no JSON: {error}")
        raise advised(told, "write it with texts, numbers, lists and dicts only, not too deep") from error
    whole = {**function, "parameters": object_schema(parameters, f"tool {name!r}")}
    return {"type": "function", "function": whole}


def _parameters(tool: Any, function: Mapping[str, Any], strict: bool | None) -> Any:
    """LangChain's own schema of the arguments; the class's where LangChain's loses a recursion."""
    source = tool.tool_call_schema if isinstance(tool, BaseTool) else tool
    recursive = own_schema(source, only_recursive=True) if is_model(source) and not strict else None
    return recursive if recursive is not None else function.get("parameters")


def told_tools(tools: Sequence[Mapping[str, Any]]) -> tuple[Tool, ...]:
    """OpenAI's form as the members are told it."""
    functions = [tool["function"] for tool in tools]
    return tuple(
        Tool(one["name"], str(one.get("description") or ""), json.dumps(one["parameters"], ensure_ascii=False))
        for one in functions
    )


# --- which of them ----------------------------------------------------------------------------------------------


def toolbox(tools: Any, choice: Any, parallel: Any, strict: bool | None = None) -> Toolbox | None:
    """What may be called; None: nothing. With ``none`` the members are not told of any tool."""
    converted = openai_tools(tools or [], strict)
    told = told_tools(converted)
    chosen = chosen_tool(choice, [tool.name for tool in told])
    if parallel is not None and not isinstance(parallel, bool):
        error = UsageError(f"parallel_tool_calls must be True or False, got {parallel!r:.80}")
        raise advised(error, "leave it out to let members decide where they are free to call")
    if not told or chosen == "none":
        return None
    if chosen == "auto":
        return Toolbox(told, parallel=parallel is not False)
    if chosen == "any":
        return Toolbox(told, forced=True, parallel=parallel is True)
    if parallel:
        error = UsageError(f"parallel_tool_calls=True and tool_choice={chosen!r}: a tool named is called once")
        raise advised(error, "tool_choice='any' allows several calls")
    return Toolbox(tuple(tool for tool in told if tool.name == chosen), forced=True)


def chosen_tool(choice: Any, names: Sequence[str]) -> str:
    """``auto``, ``any``, ``none`` or a tool's name."""
    if choice is None or choice is False:
        return "auto"
    if not names:
        error = UsageError(f"tool_choice={choice!r:.80} without tools")
        raise advised(error, "pass tools as well, or leave tool_choice out")
    if choice is True:
        return "any"
    name = _named(choice)
    if name is None:
        error = UsageError(f"tool_choice must be 'auto', 'any', 'none' or a tool's name, got {choice!r:.200}")
        own = getattr(choice, "name", None) or getattr(choice, "__name__", None)
        if own in names:
            raise advised(error, f"pass the tool's name: tool_choice={own!r} (tool.name)")
        raise advised(error, "for example tool_choice='any'; as a dict {'type': 'function', 'function': {'name': ...}}")
    if name in names:
        return name
    if name in ("auto", "any", "none", "required"):
        return "any" if name == "required" else name
    error = UsageError(f"tool_choice names {name!r}, which is no tool; there are {', '.join(map(repr, names))}")
    raise advised(error, "name one of them, or 'auto', 'any', 'none'")


def _named(choice: Any) -> str | None:
    """What a choice names: in words, in OpenAI's form or in Anthropic's."""
    if isinstance(choice, str):
        return choice
    if not isinstance(choice, Mapping):
        return None
    kind = choice.get("type")
    function = choice.get("function")
    if kind == "function":
        name = function.get("name") if isinstance(function, Mapping) else choice.get("name")
    else:
        name = choice.get("name") if kind == "tool" else kind
    return name if isinstance(name, str) else None


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
