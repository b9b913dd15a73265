"""Check finished values against their whole JSON schema, including what no grammar can express.

``jsonschema`` does the work, because a second implementation of ``if``, ``contains`` and
``$dynamicRef`` would have errors of its own. The extra ``langchain-specfuse[structured]`` installs
it, and it is imported when it is first needed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import lru_cache
from typing import Any

from ..core.values import Constraint
from ..errors import UsageError, advised, imported
from .referee import bytewise
from .rules import error_of

DRAFTS = ("Draft202012Validator", "Draft7Validator", "Draft4Validator")
"""If a schema does not name its draft, the first of these in which it is valid is used."""
_DATA = ("const", "enum", "default", "example", "examples")
"""Keywords whose values are data, not schemas."""


class Validator:
    """Checks values against one schema.

    >>> Validator({"type": "array", "uniqueItems": True}, "schema").fault([1, 1])
    '[1, 1] has non-unique elements'
    """

    def __init__(self, schema: Any, where: str) -> None:
        library = imported("jsonschema", "a schema that no grammar can express", "structured")
        self._best_match = library.exceptions.best_match
        for pattern in _patterns(schema):
            try:
                _reader(pattern)
            except re.error as error:
                wrong = UsageError(f"{where} has an invalid pattern: {pattern:.80}")
                raise advised(wrong, f"fix it: {error}") from error
        # With the default registry, references to other hosts would be fetched.
        registry = imported("jsonschema_specifications", "a schema", "structured").REGISTRY
        self._judge = _lenient(_draft(library, schema, where))(schema, registry=registry)

    def fault(self, value: Any) -> str:
        """What is wrong with this value; empty if it is valid."""
        try:
            violation = self._best_match(self._judge.iter_errors(value))
        # The meta-schema does not follow every reference, so a check may raise anything.
        except Exception as error:
            return f"it cannot be checked: {type(error).__name__}: {error!s:.200}"
        if violation is None:
            return ""
        message = f"{violation.message:.300}"
        place = violation.json_path.removeprefix("$").removeprefix(".")
        return f"{place}: {message}" if place else message


@lru_cache(maxsize=256)
def validator_of(schema: str, where: str) -> Validator:
    """The validator of this schema, which is JSON text."""
    try:
        return Validator(json.loads(schema), where)
    except RecursionError as error:
        deep = UsageError(f"{where} is nested too deep")
        raise advised(deep, "make the schema flatter") from error


def _draft(library: Any, schema: Any, where: str) -> Any:
    """The validator class of the schema's draft. Raises ``UsageError`` if the schema is not valid
    in any."""
    declared = library.validators.validator_for(schema, default=None)
    names = DRAFTS[:1] if "$defs" in schema else DRAFTS  # older drafts ignore $defs
    drafts = [declared] if declared else [getattr(library, name) for name in names]
    faults = []
    for draft in drafts:
        try:
            draft.check_schema(schema, format_checker=None)  # patterns have been checked
        except library.exceptions.SchemaError as error:
            faults.append(error)
        else:
            return draft
    wrong = UsageError(
        f"{where} is not a JSON schema: {faults[0].json_path}: {faults[0].message:.300}"
    )
    raise advised(wrong, "fix the schema") from faults[0]


def _lenient(draft: Any) -> Any:
    """The validator class with OpenAPI's ``nullable``, and with patterns that mean the same as in
    the grammars."""
    replaced = {
        "multipleOf": _multiple_of,
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
    }
    words = {**draft.VALIDATORS, **replaced}
    validators = imported("jsonschema.validators", "a schema", "structured")
    return validators.extend(draft, {word: _unless_null(words[word]) for word in words})


def _unless_null(check: Callable[..., Any]) -> Callable[..., Any]:
    def checked(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if instance is None and schema.get("nullable") is True:
            return
        yield from check(validator, value, instance, schema) or ()

    return checked


def _multiple_of(validator: Any, divisor: Any, instance: Any, schema: Any) -> Iterator[Any]:
    """Calculate with decimal numbers, as the grammars do: 0.3 is three times 0.1."""
    if not validator.is_type(instance, "number"):
        return
    quotient = Fraction(str(instance)) / Fraction(str(divisor))
    if quotient.denominator != 1:
        yield _error(f"{instance!r} is not a multiple of {divisor!r}")


# --- patterns -------------------------------------------------------------------------------------


def _patterns(schema: Any) -> Iterator[str]:
    """All patterns in a schema, at any depth."""
    if isinstance(schema, list):
        for item in schema:
            yield from _patterns(item)
    if not isinstance(schema, dict):
        return
    if isinstance(schema.get("pattern"), str):
        yield schema["pattern"]
    if isinstance(schema.get("patternProperties"), dict):
        yield from schema["patternProperties"]
    for keyword, inner in schema.items():
        if keyword not in _DATA:
            yield from _patterns(inner)


@lru_cache(maxsize=256)
def _reader(pattern: str) -> Callable[[str], Any]:
    """A function that returns whether a text contains this pattern.

    It uses the grammar that drafts must match, which takes linear time, or ``re`` if no grammar can
    express the pattern.
    """
    schema = {"type": "string", "pattern": pattern}
    error = error_of(schema)
    if error and "nsatisfiable" not in error:
        return re.compile(pattern).search
    if error:
        return lambda text: False
    grammar = bytewise().grammar(Constraint("json_schema", json.dumps(schema)))

    def contains(text: str) -> bool:
        data = json.dumps(text, ensure_ascii=False).encode("utf-8", "surrogatepass")
        state = grammar.start()
        return state.advance(data) == len(data) and state.may_end()

    return contains


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[Any]:
    if validator.is_type(instance, "string") and not _reader(pattern)(instance):
        yield _error(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(
    validator: Any, patterns: dict[str, Any], instance: Any, schema: Any
) -> Iterator[Any]:
    if not validator.is_type(instance, "object"):
        return
    for pattern, inner in patterns.items():
        for name, value in instance.items():
            if _reader(pattern)(name):
                yield from validator.descend(value, inner, path=name, schema_path=pattern)


def _additional_properties(
    validator: Any, allowed: Any, instance: Any, schema: dict[str, Any]
) -> Iterator[Any]:
    if not validator.is_type(instance, "object"):
        return
    patterns = schema.get("patternProperties", {})
    for name, value in instance.items():
        if name in schema.get("properties", {}):
            continue
        if any(_reader(pattern)(name) for pattern in patterns):
            continue
        if allowed is False:
            yield _error(f"there is no property {name!r}")
        elif allowed is not True:
            yield from validator.descend(value, allowed, path=name)


def _error(message: str) -> Any:
    exceptions = imported("jsonschema.exceptions", "a schema", "structured")
    return exceptions.ValidationError(message)
