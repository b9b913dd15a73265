"""JSON schemas of whatever says how data looks: pydantic classes of both kinds, dataclasses, TypedDicts, dicts.

Knows Python's ways to declare data; nothing of grammars, tools or answers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import pydantic
from langchain_core.utils.function_calling import convert_to_json_schema
from pydantic import TypeAdapter
from pydantic.v1 import BaseModel as OldModel

from .errors import UsageError, advised

_JSON_TYPES = frozenset({"object", "array", "string", "number", "integer", "boolean", "null"})
_SCHEMA_WORDS = frozenset({"properties", "$ref", "anyOf", "oneOf", "allOf", "enum", "const", "$defs", "items"})
WRAPPED = frozenset({"name", "schema", "strict", "description"})
"""What OpenAI's ``json_schema`` holds."""
WANTED = "a pydantic class, a dataclass, a TypedDict or a JSON schema"


def is_model(source: Any) -> bool:
    """Whether this is a pydantic class, of either kind."""
    return isinstance(source, type) and issubclass(source, (pydantic.BaseModel, OldModel))


def is_schema(source: Any) -> bool:
    """Whether this dict is a JSON schema."""
    if not isinstance(source, Mapping):
        return False
    kind = source.get("type")
    kinds = kind if isinstance(kind, list) else [kind]
    return set(kinds) <= _JSON_TYPES or (kind is None and bool(_SCHEMA_WORDS & source.keys()))


def schema_of(source: Any, strict: bool | None = None) -> dict[str, Any]:
    """The JSON schema; of OpenAI's function dicts the one of their arguments."""
    if isinstance(source, Mapping):
        return _of_mapping(source)
    if not (is_model(source) or _is_typed_dict(source) or _is_dataclass(source)):
        raise advised(UsageError(f"a schema is {WANTED}, got {source!r:.200}"), "for example a class of pydantic's")
    try:
        own = own_schema(source, only_recursive=True) if not _is_typed_dict(source) else None
        schema = own if own is not None else convert_to_json_schema(source, strict=strict)
        return schema if reader_of(source) is None else _with_lists_for_sets(schema)
    except Exception as error:
        told = UsageError(f"{source.__name__} has no JSON schema: {error}")
        raise advised(told, "declare its fields with types that JSON knows") from error


def _with_lists_for_sets(part: Any) -> Any:
    """The schema without ``uniqueItems``: no grammar can keep it, and the class merges doubles when it reads them."""
    if isinstance(part, list):
        return [_with_lists_for_sets(one) for one in part]
    if not isinstance(part, dict):
        return part
    merged = part.get("uniqueItems") is True and part.get("minItems", 0) < 2
    return {key: _with_lists_for_sets(value) for key, value in part.items() if not (merged and key == "uniqueItems")}


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
    types = f"its 'type' is one of {', '.join(sorted(_JSON_TYPES))}"
    advice = types if "type" in source else f"a JSON schema says at least its 'type'; {types}"
    raise advised(UsageError(f"a schema is {WANTED}, got {dict(source)!r:.200}"), advice)


def titled(named: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with the name and the description that stand beside it."""
    beside = {"title": named.get("name"), "description": named.get("description")}
    return {**{key: value for key, value in beside.items() if value}, **schema}


def own_schema(source: Any, only_recursive: bool = False) -> dict[str, Any] | None:
    """The schema as the class itself tells it, with its definitions; None if only a recursive one is wanted."""
    if is_model(source):
        schema = source.model_json_schema() if issubclass(source, pydantic.BaseModel) else source.schema()
    else:
        schema = TypeAdapter(source).json_schema()
    return schema if not only_recursive or _is_recursive(schema) else None


def _is_recursive(schema: Mapping[str, Any]) -> bool:
    """Whether a definition needs itself: then references cannot be written out."""
    definitions = {**schema.get("definitions", {}), **schema.get("$defs", {})}
    needs = {name: _references(body) & definitions.keys() for name, body in definitions.items()}

    def reaches(start: str, name: str, seen: set[str]) -> bool:
        new = needs.get(name, set()) - seen
        return start in needs.get(name, set()) or any(reaches(start, one, seen | new) for one in new)

    return any(reaches(name, name, set()) for name in definitions)


def _references(part: Any) -> set[str]:
    if isinstance(part, Mapping):
        own = {str(part["$ref"]).rpartition("/")[2]} if "$ref" in part else set()
        return own.union(*(_references(value) for value in part.values()))
    return set().union(*(_references(value) for value in part)) if isinstance(part, list) else set()


def object_schema(schema: Mapping[str, Any], whose: str) -> dict[str, Any]:
    """The schema of a tool's arguments: always of an object."""
    kind = schema.get("type", "object")
    if kind != "object":
        error = UsageError(f"the schema of {whose} is of type {kind!r}, wanted 'object'")
        raise advised(error, "a tool's arguments have names: {'type': 'object', 'properties': {...}}")
    return dict(schema) if _SCHEMA_WORDS & schema.keys() or "type" in schema else {**schema, "type": "object"}


def reader_of(source: Any) -> Callable[[Any], Any] | None:
    """What makes an object of this class from its data; None: the data are all that is wanted."""
    if is_model(source):
        read: Callable[[Any], Any] = getattr(source, "model_validate", None) or source.parse_obj
        return read
    return TypeAdapter(source).validate_python if _is_dataclass(source) else None


def name_of(source: Any) -> str:
    """What the schema is called."""
    if isinstance(source, Mapping):
        schema = schema_of(source)
        return str(schema.get("title") or str(schema.get("$ref", "")).rpartition("/")[2] or "answer")
    return str(getattr(source, "__name__", "answer"))


def _is_dataclass(source: Any) -> bool:
    return isinstance(source, type) and dataclasses.is_dataclass(source)


def _is_typed_dict(source: Any) -> bool:
    """Not asked of ``typing``: before Python 3.12 pydantic and LangChain want those of ``typing_extensions``."""
    return isinstance(source, type) and issubclass(source, dict) and hasattr(source, "__total__")
