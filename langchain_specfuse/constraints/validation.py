"""Check finished values against their JSON schema, with ``jsonschema``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from importlib import import_module
from typing import Any

from ..errors import UsageError, advised

DRAFTS = ("Draft202012Validator", "Draft7Validator", "Draft4Validator")
"""If a schema does not name its draft, the first of these in which it is valid is used."""


def fault(schema: str, value: Any) -> str:
    """What is wrong with this value under a schema, which is JSON text; empty if it is valid.

    >>> fault('{"type": "array", "uniqueItems": true}', [1, 1])
    '[1, 1] has non-unique elements'
    """
    try:
        violation = _library().exceptions.best_match(_judge(schema).iter_errors(value))
    except re.error:  # llguidance, which enforced this pattern, reads more than Python
        return ""
    # A reference may lead nowhere, and a value may be nested too deep.
    except Exception as error:
        return f"it cannot be checked: {type(error).__name__}: {error!s:.200}"
    if violation is None:
        return ""
    message = f"{violation.message:.300}"
    place = violation.json_path.removeprefix("$").removeprefix(".")
    return f"{place}: {message}" if place else message


def refuse_invalid(schema: Any, where: str) -> None:
    """Raise ``UsageError`` if this is not a schema in any draft."""
    _, error = _draft(schema)
    if error is not None:
        wrong = UsageError(f"{where} is not a JSON schema: {error.json_path}: {error.message:.300}")
        raise advised(wrong, "fix the schema") from error


def _library() -> Any:
    return import_module("jsonschema")  # not before it is needed: it reads files


@lru_cache(maxsize=256)
def _judge(schema: str) -> Any:
    read = json.loads(schema)
    draft = _library().validators.extend(_draft(read)[0], {"multipleOf": _multiple_of})
    # With the default registry, references to other hosts would be fetched.
    return draft(read, registry=import_module("jsonschema_specifications").REGISTRY)


def _draft(schema: Any) -> tuple[Any, Any]:
    """The validator class of the schema's draft; and why the schema is not valid in it, or None."""
    library = _library()
    declared = library.validators.validator_for(schema, default=None)
    drafts = [declared] if declared else [getattr(library, name) for name in DRAFTS]
    errors = []
    for draft in drafts:
        try:
            draft.check_schema(schema)
        except library.exceptions.SchemaError as error:
            errors.append(error)
        else:
            return draft, None
    return drafts[0], errors[0]


def _multiple_of(validator: Any, divisor: Any, instance: Any, schema: Any) -> Iterator[Any]:
    """Calculate with decimal numbers, as the grammars do: 0.3 is three times 0.1."""
    if validator.is_type(instance, "number"):
        quotient = Fraction(str(instance)) / Fraction(str(divisor))
        if quotient.denominator != 1:
            message = f"{instance!r} is not a multiple of {divisor!r}"
            yield _library().exceptions.ValidationError(message)
