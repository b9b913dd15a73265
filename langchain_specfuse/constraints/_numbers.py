"""The words of numbers in their plain form: bounds as far as grammars count, and on the steps that there are."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from ..errors import UsageError, advised
from ._enum import Impossible

LARGE = 10**18
"""Bounds beyond this are more than the libraries can count."""
ADVICE = "leave it out of the schema, and check the value yourself"


def numeric(kind: str) -> Any:
    """The reader of this type's words."""

    def read(words: dict[str, Any], path: str, reading: Any) -> Any:
        found: dict[str, Any] = {"type": kind}
        for low, open_low in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
            if words.get(open_low) is True:  # as drafts 3 and 4 say it
                words[open_low] = words.pop(low, None)
            for word in (low, open_low):
                if words.get(word) not in (None, False):
                    found[word] = _finite(words[word], f"{path}.{word}")
                elif word in words and words[word] is not None and not isinstance(words[word], bool):
                    found[word] = words[word]
        if "multipleOf" in words:
            found["multipleOf"] = _finite(words["multipleOf"], f"{path}.multipleOf")
            if found["multipleOf"] <= 0:
                raise UsageError(f"{path}.multipleOf must be above 0, got {found['multipleOf']}")
            _refuse_empty(found, path)
            found = _on_steps(found)
        _refuse_empty(found, path)
        return _narrowed(found, path)

    return read


def _on_steps(found: dict[str, Any]) -> dict[str, Any]:
    """Bounds as the nearest multiples inside: open ones lose the library numbers with a 0 at their end.

    >>> _on_steps({"multipleOf": 0.25, "exclusiveMinimum": 0, "maximum": 1.3})
    {'multipleOf': 0.25, 'minimum': 0.25, 'maximum': 1.25}
    """
    step, kept = Fraction(str(found["multipleOf"])), dict(found)
    for word, sign in (("inimum", 1), ("aximum", -1)):
        inside = []
        for name in (f"m{word}", f"exclusiveM{word}"):
            if name in kept:
                steps = Fraction(str(kept.pop(name))) * sign / step
                inside.append(math.floor(steps) + 1 if name.startswith("exclusive") else math.ceil(steps))
        if inside:
            bound = max(inside) * sign * step
            kept[f"m{word}"] = int(bound) if bound.denominator == 1 else float(bound)
    return kept


def _narrowed(found: dict[str, Any], path: str) -> Any:
    """Bounds as far as grammars count: what is wider (64 bits, the largest float) is drawn in, never left out."""
    highest = 2**63 - 1 if found["type"] == "integer" else LARGE
    for word, sign, most in (("inimum", -1, LARGE), ("aximum", 1, highest)):
        for name in (f"m{word}", f"exclusiveM{word}"):
            if name in found and found[name] * sign < -LARGE:
                told = f"{path}.{name} {str(found[name])[:30]} cannot be kept: no grammar counts beyond {LARGE}"
                raise advised(UsageError(told), ADVICE)
            if name in found:
                found[name] = _as_float(found[name] if found[name] * sign <= most else sign * most, -sign)
    return found


def _as_float(bound: Any, inwards: int) -> Any:
    """The bound, or the next one inwards that a float is equal to: the libraries read every number as a float."""
    near = float(bound)
    if isinstance(bound, int) and (int(near) - bound) * inwards < 0:
        near = math.nextafter(near, inwards * math.inf)
    return int(near) if isinstance(bound, int) else bound


def _finite(value: Any, path: str) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise UsageError(f"{path} wants a number, got {value!r}")
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _refuse_empty(found: dict[str, Any], path: str) -> None:
    low = max(found.get("minimum", -math.inf), found.get("exclusiveMinimum", -math.inf))
    high = min(found.get("maximum", math.inf), found.get("exclusiveMaximum", math.inf))
    opened = low in (found.get("exclusiveMinimum"), None) or high in (found.get("exclusiveMaximum"), None)
    if low > high or (low == high and opened):
        raise Impossible(f"{path} wants a number from {low} to {high}")
    if found["type"] == "integer" and math.isfinite(low) and math.isfinite(high):
        first = math.floor(low) + 1 if low == found.get("exclusiveMinimum") else math.ceil(low)
        last = math.ceil(high) - 1 if high == found.get("exclusiveMaximum") else math.floor(high)
        step = found.get("multipleOf", 1)
        if last < math.ceil(first / step) * step:
            raise Impossible(f"{path}: there is no such integer from {low} to {high}")
