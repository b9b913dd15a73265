"""Convert Python's data classes to JSON schemas, and tools of every kind to OpenAI's format."""

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
"""The keys of OpenAI's ``json_schema``."""
_EXPECTED = "a pydantic class, a dataclass, a TypedDict or a JSON schema"


def is_schema(source: Any) -> bool:
    """Whether this dict is a JSON schema."""
    if not isinstance(source, Mapping):
        return False
    kind = source.get("type")
    kinds = kind if isinstance(kind, list) else [kind]
    is_type = all(isinstance(name, str) and name in _JSON_TYPES for name in kinds)
    return is_type or (kind is None and bool(_SCHEMA_WORDS & source.keys()))


def schema_of(source: Any, strict: bool | None = None) -> dict[str, Any]:
    """The JSON schema of a class, or of the arguments in one of OpenAI's function dicts."""
    if isinstance(source, Mapping):
        return _schema_in(source)
    if not (_is_model(source) or _is_dataclass(source) or _is_typed_dict(source)):
        refused = UsageError(f"a schema is {_EXPECTED}, got {source!r:.200}")
        raise advised(refused, "for example a pydantic class")
    try:
        schema = _recursive_schema(source) or convert_to_json_schema(source, strict=strict)
        return schema if reader_of(source) is None else _with_lists_for_sets(schema)
    except Exception as error:
        refused = UsageError(f"{source.__name__} has no JSON schema: {error}")
        raise advised(refused, "declare its fields with types that JSON supports") from error


def _schema_in(source: Mapping[str, Any]) -> dict[str, Any]:
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
    raise advised(UsageError(f"a schema is {_EXPECTED}, got {dict(source)!r:.200}"), advice)


def titled(function: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with the function's name and description, unless it has its own."""
    labels = {"title": function.get("name"), "description": function.get("description")}
    return {**{key: value for key, value in labels.items() if value}, **schema}


def _recursive_schema(source: Any) -> dict[str, Any] | None:
    """pydantic's schema of the class if a definition refers to itself; otherwise None. LangChain
    replaces references by what they refer to, and loses these."""
    if _is_typed_dict(source) and not _is_model(source):
        return None
    if isinstance(source, type) and issubclass(source, OldModel):
        schema = source.schema()
    else:
        schema = TypeAdapter(source).json_schema()
    bodies = {**schema.get("definitions", {}), **schema.get("$defs", {})}
    references = {
        name: set(re.findall(r'"\$ref": "#/[^"]*?/([^"/]+)"', json.dumps(body)))
        for name, body in bodies.items()
    }
    for _ in range(len(references)):
        references = {
            name: targets.union(*(references.get(target, ()) for target in targets))
            for name, targets in references.items()
        }
    is_recursive = any(name in targets for name, targets in references.items())
    return schema if is_recursive else None


def _with_lists_for_sets(part: Any) -> Any:
    """The schema without ``uniqueItems``. No grammar can express it, and the class removes
    duplicates when it reads them."""
    if isinstance(part, list):
        return [_with_lists_for_sets(item) for item in part]
    if not isinstance(part, dict):
        return part
    kept = dict(part)
    if part.get("uniqueItems") is True and part.get("minItems", 0) < 2:
        del kept["uniqueItems"]
    return {key: _with_lists_for_sets(value) for key, value in kept.items()}


def reader_of(source: Any) -> Callable[[Any], Any] | None:
    """The function that makes an object of this class from its data; None if the data are used as
    they are."""
    if isinstance(source, type) and issubclass(source, OldModel):
        return source.parse_obj
    if _is_model(source) or _is_dataclass(source):
        return TypeAdapter(source).validate_python
    return None


def name_of(source: Any) -> str:
    """The name of a class or of a schema."""
    if isinstance(source, Mapping):
        schema = schema_of(source)
        reference = str(schema.get("$ref", "")).rpartition("/")[2]
        return str(schema.get("title") or reference or "answer")
    return str(getattr(source, "__name__", "answer"))


def _is_model(source: Any) -> bool:
    return isinstance(source, type) and issubclass(source, (pydantic.BaseModel, OldModel))


def _is_dataclass(source: Any) -> bool:
    return isinstance(source, type) and dataclasses.is_dataclass(source)


def _is_typed_dict(source: Any) -> bool:
    """Whether this is a TypedDict, of ``typing`` or of ``typing_extensions``. Before Python 3.12,
    pydantic and LangChain expect the latter, which ``typing.is_typeddict`` does not recognise."""
    return isinstance(source, type) and issubclass(source, dict) and hasattr(source, "__total__")


# --- tools ----------------------------------------------------------------------------------------


def openai_tools(
    tools: Any, strict: bool | None = None, *, hosted: bool = False
) -> list[dict[str, Any]]:
    """Convert tools to OpenAI's format. Refuses tools without a schema, and different tools with
    the same name. ``hosted``: leaves out tools that a provider runs itself."""
    if isinstance(tools, str | Mapping) or not isinstance(tools, Sequence):
        error = UsageError(f"tools must be a list, got {tools!r:.200}")
        raise advised(error, "put it into a list: bind_tools([tool])")
    by_name: dict[str, dict[str, Any]] = {}
    for place, tool in enumerate(tools):
        if hosted and is_providers(tool):
            continue
        converted = _openai_tool(tool, place, strict)
        name = converted["function"]["name"]
        other = by_name.setdefault(name, converted)
        # A class and its schema are the same tool.
        if other is not converted and _untitled(other) != _untitled(converted):
            error = UsageError(f"two tools are called {name!r}; names must differ")
            raise advised(error, "give one of them another name, for example @tool('other_name')")
    return list(by_name.values())


def is_providers(tool: Any) -> bool:
    """Whether a provider runs this tool, such as a web search."""
    if not isinstance(tool, Mapping):
        return False
    return tool.get("type", "function") != "function" and "parameters" not in tool


def _untitled(tool: Any) -> Any:
    """The parameters of a tool without titles; the tool itself if they cannot be written as JSON,
    as a schema that contains itself cannot."""
    try:
        return json.loads(json.dumps(tool["function"]["parameters"]), object_hook=_drop_title)
    except (TypeError, ValueError):
        return tool


def _drop_title(part: dict[str, Any]) -> dict[str, Any]:
    """The part of a schema without its title. A property that is called "title" stays."""
    if isinstance(part.get("title"), str):
        return {key: value for key, value in part.items() if key != "title"}
    return part


def _openai_tool(tool: Any, place: int, strict: bool | None) -> dict[str, Any]:
    """A tool in OpenAI's format, with the schema of its arguments."""
    function = _function_of(tool, place, strict)
    name = function.get("name")
    if not isinstance(name, str) or not name.strip():
        refused = UsageError(f"tool {place} has no name: {tool!r:.200}")
        advice = "name it: {'type': 'function', 'function': {'name': ..., 'parameters': {...}}}"
        raise advised(refused, advice)
    source = tool.tool_call_schema if isinstance(tool, BaseTool) else tool
    schema = function.get("parameters")
    if _is_model(source) and not strict:
        schema = _recursive_schema(source) or schema
    parameters = _parameters(schema, name)
    if not isinstance(source, Mapping):  # a class or a function, which reads a list as a set
        parameters = _with_lists_for_sets(parameters)
    return {"type": "function", "function": {**function, "parameters": parameters}}


def _function_of(tool: Any, place: int, strict: bool | None) -> Mapping[str, Any]:
    """The description of a tool's function in OpenAI's format, as LangChain writes it."""
    advice = "pass a function with type hints, a @tool, a pydantic class or a dict"
    if not isinstance(tool, Mapping | BaseTool) and not callable(tool):
        message = f"tool {place} cannot be called: {tool!r:.200} is no function, class or dict"
        raise advised(UsageError(message), advice)
    try:
        converted = convert_to_openai_tool(tool, strict=strict)
    except Exception as error:
        reason = shorten(str(error), 200, placeholder=" ...")
        refused = UsageError(f"tool {place} cannot be called: {tool!r:.200} ({reason})")
        raise advised(refused, advice) from error
    kind = converted.get("type")
    function = converted.get("function")
    if kind == "function" and isinstance(function, Mapping):
        return function
    refused = UsageError(f"tool {place} is of type {kind!r}, expected 'function': {tool!r:.200}")
    advice = "tools that a provider runs are not available here: pass your own function"
    raise advised(refused, advice)


def _parameters(schema: Any, name: str) -> dict[str, Any]:
    """The schema of a tool's arguments, which is always that of an object."""
    if not isinstance(schema, Mapping):
        refused = UsageError(f"tool {name!r} has no schema for its arguments")
        advice = "if it takes none: 'parameters': {'type': 'object', 'properties': {}}"
        raise advised(refused, advice)
    kind = schema.get("type", "object")
    if kind != "object":
        refused = UsageError(f"the schema of tool {name!r} is of type {kind!r}, expected 'object'")
        advice = "a tool's arguments have names: {'type': 'object', 'properties': {...}}"
        raise advised(refused, advice)
    if _SCHEMA_WORDS & schema.keys():
        return dict(schema)
    return {**schema, "type": "object"}
