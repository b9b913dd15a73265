"""Walks through what a constraint allows, and what JSON makes of where they end."""

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
    """The tokens of a mask."""
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    assert not bits[size:].any()
    return [int(token) for token in np.flatnonzero(bits[:size])]


def walk(state: State, dice: random.Random, most: int, eager: float = 0.6) -> tuple[bytes, bool]:
    """Random legal bytes from here, and whether the text is whole. ``most``: from so many on it
    goes for the end.

    ``eager``: how gladly it ends strings, arrays and objects. There is always a way on: no text is
    a dead end.
    """
    found = b""
    while len(found) < most + 300:
        if state.may_end() and (len(found) >= most or dice.random() < 0.3):
            return found, True
        follows = state.follows()
        if not follows:
            assert state.may_end(), found
            return found, True
        ends = bytes(byte for byte in follows if byte in b'"]},')
        byte = dice.choice(
            ends if ends and (len(found) >= most or dice.random() < eager) else follows
        )
        assert state.advance(bytes([byte])) == 1
        found += bytes([byte])
    return found, False


def assert_satisfies(text: str, schema: Any) -> None:
    """JSON reads it, and another library accepts it."""
    value = json.loads(text)
    judge = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    judge(without_nullable(schema), format_checker=judge.FORMAT_CHECKER).validate(value)


def without_nullable(schema: Any) -> Any:
    """OpenAPI's word in those of JSON Schema."""
    if isinstance(schema, list):
        return [without_nullable(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {
        key: one if key in ("enum", "const") else without_nullable(one)
        for key, one in schema.items()
    }
    if found.pop("nullable", False) is True:
        return {"anyOf": [found, {"type": "null"}]}
    return found
