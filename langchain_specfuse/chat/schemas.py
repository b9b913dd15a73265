"""JSON schemas of Python's ways to declare data, and tools of every kind in OpenAI's form."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping, Sequence
from textwrap import shorten
from typing import Any

import pydantic
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_json_schema, convert_to_openai_tool
from pydantic import TypeAdapter
from pydantic.v1 import BaseModel as OldModel

from ..errors import UsageError, advised

_JSON_TYPES = frozenset({"object", "array", "string", "number", "integer", "boolean", "null"})
_SCHEMA_WORDS = frozenset(
    {"properties", "$ref", "anyOf", "oneOf", "allOf", "enum", "const", "$defs", "items"}
)
WRAPPED = frozenset({"name", "schema", "strict", "description"})
"""What OpenAI's ``json_schema`` holds."""
_WANTED = "a pydantic class, a dataclass, a TypedDict or a JSON schema"


def is_schema(source: Any) -> bool:
    """Whether this dict is a JSON schema."""
    if not isinstance(source, Mapping):
        return False
    kind = source.get("type")
    kinds = kind if isinstance(kind, list) else [kind]
    return set(kinds) <= _JSON_TYPES or (kind is None and bool(_SCHEMA_WORDS & source.keys()))


def schema_of(source: Any, strict: bool | None = None) -> dict[str, Any]:
    """The JSON schema of a class; of OpenAI's function dicts the one of their arguments."""
    if isinstance(source, Mapping):
        return _of_mapping(source)
    if not (_is_model(source) or _is_dataclass(source) or _is_typed_dict(source)):
        raise advised(
            UsageError(f"a schema is {_WANTED}, got {source!r:.200}"),
            "for example a pydantic class",
        )
    try:
        schema = _recursive_schema(source) or convert_to_json_schema(source, strict=strict)
        return schema if reader_of(source) is None else _with_lists_for_sets(schema)
    except Exception as error:
        wrong = UsageError(f"{source.__name__} has no JSON schema: {error}")
        raise advised(wrong, "declare its fields with types that JSON supports") from error


def _of_mapping(source: Mapping[str, Any]) -> dict[str, Any]:
    function = source.get("function") if source.get("type") == "function" else source
    if isinstance(function, Mapping) and "name" in function:
        parameters = function.get("parameters", function.get("input_schema"))
        if isinstance(parameters, Mapping):
            return titled(function, parameters)
        inner = function.get("schema")
        if isinstance(inner, Mapping) and function.keys() <= WRAPPED:
            return titled(function, inner)
    if is_schema(source):
        return dict(source)
    advice = f"a JSON schema says at least its 'type', one of {', '.join(sorted(_JSON_TYPES))}"
    raise advised(UsageError(f"a schema is {_WANTED}, got {dict(source)!r:.200}"), advice)


def titled(named: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with the name and the description that stand beside it."""
    beside = {"title": named.get("name"), "description": named.get("description")}
    return {**{key: value for key, value in beside.items() if value}, **schema}


def _recursive_schema(source: Any) -> dict[str, Any] | None:
    """The class's own schema if a definition needs itself: LangChain writes references out and
    loses such a one."""
    if _is_typed_dict(source) and not _is_model(source):
        return None
    if isinstance(source, type) and issubclass(source, OldModel):
        schema = source.schema()
    else:
        schema = TypeAdapter(source).json_schema()
    bodies = {**schema.get("definitions", {}), **schema.get("$defs", {})}
    needs = {
        name: set(re.findall(r'"\$ref": "#/[^"]*?/([^"/]+)"', json.dumps(body)))
        for name, body in bodies.items()
    }
    for _ in needs:
        needs = {
            name: names.union(*(needs.get(one, ()) for one in names))
            for name, names in needs.items()
        }
    return schema if any(name in names for name, names in needs.items()) else None


def _with_lists_for_sets(part: Any) -> Any:
    """The schema without ``uniqueItems``: no grammar can keep it, and the class merges doubles when
    it reads them."""
    if isinstance(part, list):
        return [_with_lists_for_sets(one) for one in part]
    if not isinstance(part, dict):
        return part
    merged = part.get("uniqueItems") is True and part.get("minItems", 0) < 2
    return {
        key: _with_lists_for_sets(value)
        for key, value in part.items()
        if not (merged and key == "uniqueItems")
    }


def reader_of(source: Any) -> Callable[[Any], Any] | None:
    """What makes an object of this class from its data; None: the data are all that is wanted."""
    if isinstance(source, type) and issubclass(source, OldModel):
        return source.parse_obj
    return (
        TypeAdapter(source).validate_python if _is_model(source) or _is_dataclass(source) else None
    )


def name_of(source: Any) -> str:
    """What the schema is called."""
    if isinstance(source, Mapping):
        schema = schema_of(source)
        return str(
            schema.get("title") or str(schema.get("$ref", "")).rpartition("/")[2] or "answer"
        )
    return str(getattr(source, "__name__", "answer"))


def _is_model(source: Any) -> bool:
    return isinstance(source, type) and issubclass(source, (pydantic.BaseModel, OldModel))


def _is_dataclass(source: Any) -> bool:
    return isinstance(source, type) and dataclasses.is_dataclass(source)


def _is_typed_dict(source: Any) -> bool:
    """Not asked of ``typing``: before Python 3.12 pydantic and LangChain want those of
    ``typing_extensions``."""
    return isinstance(source, type) and issubclass(source, dict) and hasattr(source, "__total__")


# --- tools ----------------------------------------------------------------------------------------


def openai_tools(tools: Any, strict: bool | None = None) -> list[dict[str, Any]]:
    """The tools in OpenAI's form, checked: each has a schema, and a name that no other has."""
    if isinstance(tools, str | Mapping) or not isinstance(tools, Sequence):
        raise advised(
            UsageError(f"tools must be a list, got {tools!r:.200}"),
            "put it into a list: bind_tools([tool])",
        )
    named: dict[str, dict[str, Any]] = {}
    for converted in (_openai_tool(tool, place, strict) for place, tool in enumerate(tools)):
        name = converted["function"]["name"]
        other = named.setdefault(name, converted)
        # A class and its schema are the same tool.
        if other is not converted and _untitled(other) != _untitled(converted):
            error = UsageError(f"two tools are called {name!r}; names must differ")
            raise advised(error, "give one of them another name, for example @tool('other_name')")
    return list(named.values())


def _untitled(tool: Any) -> Any:
    """The parameters of a tool without titles; as text, which a schema that contains itself does
    not have."""
    try:
        return json.loads(json.dumps(tool["function"]["parameters"]), object_hook=_drop_title)
    except (TypeError, ValueError):
        return tool


def _drop_title(part: dict[str, Any]) -> dict[str, Any]:
    return {
        key: value for key, value in part.items() if key != "title" or not isinstance(value, str)
    }


def _openai_tool(tool: Any, place: int, strict: bool | None) -> dict[str, Any]:
    if not isinstance(tool, Mapping | BaseTool) and not callable(tool):
        raise advised(
            UsageError(
                f"tool {place} cannot be called: {tool!r:.200} is no function, class or dict"
            ),
            "pass a function with type hints, a @tool, a pydantic class or a dict",
        )
    try:
        converted = convert_to_openai_tool(tool, strict=strict)
    except Exception as error:
        why = shorten(str(error), 200, placeholder=" ...")
        wrong = UsageError(f"tool {place} cannot be called: {tool!r:.200} ({why})")
        raise advised(
            wrong, "pass a function with type hints, a @tool, a pydantic class or a dict"
        ) from error
    function = converted.get("function")
    if converted.get("type") != "function" or not isinstance(function, Mapping):
        wrong = UsageError(
            f"tool {place} is of type {converted.get('type')!r}, wanted 'function': {tool!r:.200}"
        )
        raise advised(
            wrong,
            "tools that a provider runs are not available here: pass your own function",
        )
    name = function.get("name")
    if not isinstance(name, str) or not name.strip():
        wrong = UsageError(f"tool {place} has no name: {tool!r:.200}")
        raise advised(
            wrong, "name it: {'type': 'function', 'function': {'name': ..., 'parameters': {...}}}"
        )
    source = tool.tool_call_schema if isinstance(tool, BaseTool) else tool
    recursive = _recursive_schema(source) if _is_model(source) and not strict else None
    parameters = _parameters(recursive, function, name)
    if not isinstance(source, Mapping):  # a class or a function, which reads a list as a set
        parameters = _with_lists_for_sets(parameters)
    return {"type": "function", "function": {**function, "parameters": parameters}}


def _parameters(recursive: Any, function: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The schema of a tool's arguments: always of an object."""
    parameters = recursive or function.get("parameters")
    if not isinstance(parameters, Mapping):
        wrong = UsageError(f"tool {name!r} has no schema for its arguments")
        raise advised(wrong, "if it takes none: 'parameters': {'type': 'object', 'properties': {}}")
    if (kind := parameters.get("type", "object")) != "object":
        wrong = UsageError(f"the schema of tool {name!r} is of type {kind!r}, wanted 'object'")
        raise advised(
            wrong, "a tool's arguments have names: {'type': 'object', 'properties': {...}}"
        )
    return {**parameters, **({} if _SCHEMA_WORDS & parameters.keys() else {"type": "object"})}
