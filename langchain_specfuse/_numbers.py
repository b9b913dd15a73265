"""JSON as everybody reads it, but for numbers that no float holds: ``1e999`` would be read as infinity.

Grammars of JSON allow such numbers, so members may write them. Knows nothing of calls and messages.
"""

from __future__ import annotations

import json
import math
from typing import Any


class Beyond(ValueError):
    """A number that no float holds."""


def read_json(text: str | bytes) -> Any:
    """What this JSON says. ``ValueError`` where it is none, ``Beyond`` where a number in it is more than any float.

    >>> read_json('{"a": 1e3}')
    {'a': 1000.0}
    """
    return json.loads(text, parse_float=_finite, parse_constant=_finite)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise Beyond(f"{text:.40} is no number that a float holds")
    return value


def beyond(text: str) -> bool:
    """Whether this is JSON but for a number that no float holds."""
    try:
        read_json(text)
    except Beyond:
        return True
    except (ValueError, RecursionError):
        return False
    return False


def refuse_beyond(value: Any) -> Any:
    """The same value; ``Beyond`` where a number in it has become infinite."""
    todo = [value]
    while todo:
        one = todo.pop()
        if isinstance(one, dict | list):
            todo += one.values() if isinstance(one, dict) else one
        elif isinstance(one, float) and not math.isfinite(one):
            raise Beyond("a number in it is more than a float holds")
    return value
