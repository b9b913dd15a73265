"""The check that an answer is JSON and valid under a schema.

``jsonschema`` validates against schemas, and pydantic against its own classes. If members can be
masked, the option ``json_schema`` is better: it lets them write nothing else. This check is for
members that cannot be masked, and for what no grammar can express.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..constraints import fault, refuse_invalid
from ..core.checks import Check
from ..errors import UsageError, advised

_WHERE = "the schema of json_schema()"
_KEYWORDS = {
    *("$ref", "allOf", "anyOf", "oneOf", "not", "if", "type", "enum", "const", "properties"),
    *("required", "items", "prefixItems"),
}
"""A schema has at least one of these. Without any, every value would pass."""


def json_schema(schema: Any) -> Check:
    """The whole answer is JSON, and valid under this schema: a dict, or a pydantic class.

    >>> check = json_schema({"type": "object", "required": ["town"]})
    >>> check.function('{"city": "Ulm"}')
    "'town' is a required property"

    It runs when the answer is complete; nothing is streamed before.
    """
    if callable(getattr(schema, "model_validate_json", None)):
        return _check(ValidFor(schema), "")
    if not isinstance(schema, Mapping) or not _KEYWORDS & schema.keys():
        error = UsageError(f"expected a JSON schema or a pydantic class, got {schema!r:.200}")
        raise advised(error, "a schema has at least a 'type', for example {'type': 'object'}")
    try:
        text = json.dumps(schema, sort_keys=True)
    except (TypeError, ValueError, RecursionError) as error:
        wrong = UsageError(f"{_WHERE} cannot be written as JSON: {error!s:.200}")
        raise advised(wrong, "use only dicts, lists, texts, numbers, booleans and None") from error
    refuse_invalid(json.loads(text), _WHERE)
    function = ValidUnder(text)
    return _check(function, repr(function))


def _check(function: Any, identity: str) -> Check:
    return Check(
        function,
        "json_schema",
        at="answer",
        judges_reasoning=False,
        judges_calls=False,
        identity=identity,
    )


@dataclass(frozen=True, slots=True)
class ValidUnder:
    """The function of :func:`json_schema` with a schema."""

    schema: str

    def __call__(self, text: str) -> str | None:
        try:
            value = json.loads(text, parse_float=_finite, parse_constant=_finite)
        except (ValueError, RecursionError) as error:
            return f"is not JSON: {error!s:.200}"
        return fault(self.schema, value) or None


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text:.40} is not a number of JSON, or too large")
    return value


@dataclass(frozen=True, slots=True)
class ValidFor:
    """The function of :func:`json_schema` with a pydantic class."""

    model: Any

    def __call__(self, text: str) -> str | None:
        try:
            self.model.model_validate_json(text)
        except ValueError as error:
            return _first_fault(error)
        return None


def _first_fault(error: Any) -> str:
    """What is wrong first, as pydantic says it, and where."""
    if not hasattr(error, "errors"):
        return f"is not valid: {error!s:.300}"
    fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(map(str, fault["loc"]))
    return f"{place}: {fault['msg']:.300}" if place else f"{fault['msg']:.300}"
