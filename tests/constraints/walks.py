"""Random walks through what a constraint allows, and checks of the texts they produce."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import numpy as np

from langchain_specfuse.constraints import State, Vocabulary
from langchain_specfuse.core.values import Constraint

BYTES = Vocabulary([bytes([byte]) for byte in range(256)])


def json_schema(schema: Any) -> Constraint:
    return Constraint("json_schema", json.dumps(schema))


def allowed(mask: Any, size: int) -> list[int]:
    """Return the tokens that a mask allows."""
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    assert not bits[size:].any()
    return [int(token) for token in np.flatnonzero(bits[:size])]


def walk(state: State, dice: random.Random, most: int, eager: float = 0.6) -> tuple[bytes, bool]:
    """Return random legal bytes from this state, and whether the text is complete. From ``most``
    bytes on the walk tries to end; ``eager`` is its probability of ending strings, arrays and
    objects. No legal text is a dead end.

    ``eager``: how gladly it ends strings, arrays and objects. There is always a way on: no text is
    a dead end.
    """
    text = b""
    while len(text) < most + 300:
        if state.may_end() and (len(text) >= most or dice.random() < 0.3):
            return text, True
        follows = state.follows()
        if not follows:
            assert state.may_end(), text
            return text, True
        ends = bytes(byte for byte in follows if byte in b'"]},')
        byte = dice.choice(
            ends if ends and (len(text) >= most or dice.random() < eager) else follows
        )
        assert state.advance(bytes([byte])) == 1
        text += bytes([byte])
    return text, False


def assert_satisfies(text: str, schema: Any) -> None:
    """Check the value with Python's JSON parser and another schema library."""
    value = json.loads(text)
    judge = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    judge(without_nullable(schema), format_checker=judge.FORMAT_CHECKER).validate(value)


def without_nullable(schema: Any) -> Any:
    """Replace OpenAPI's ``nullable`` by JSON Schema's ``anyOf``."""
    if isinstance(schema, list):
        return [without_nullable(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    converted = {
        key: value if key in ("enum", "const") else without_nullable(value)
        for key, value in schema.items()
    }
    if converted.pop("nullable", False) is True:
        return {"anyOf": [converted, {"type": "null"}]}
    return converted
