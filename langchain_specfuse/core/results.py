"""The result in an answer: its number, choice, object or text, so that two answers can be
compared."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from decimal import Decimal
from typing import Any, TypeAlias

from .letters import chosen_letter
from .values import ToolCall

Result: TypeAlias = Callable[[str], Hashable]
"""An answer's text -> its result; None if it contains none. Equal results agree."""

_NUMBER = re.compile(
    r"(?<![\w.])[-+−]?[$€£]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|(?<![\w.])[-+−]?[$€£]?\.\d+"
)
_FINAL = (re.compile(r"####\s*([^\n]*)"), re.compile(r"\\boxed\{([^{}]*)\}"))
"""How the datasets GSM8K and MATH mark a final answer."""


def final_number(text: str) -> Decimal | None:
    """The final number of a text: the one after ``####``, else in ``\\boxed{}``, else the last
    one.

    >>> (
    ...     final_number("12 + 30 = 42, so it costs $1,042.50."),
    ...     final_number("#### 7\\n(of 9)"),
    ...     final_number("none"),
    ... )
    (Decimal('1042.50'), Decimal('7'), None)
    """
    for mark in _FINAL:
        for marked in reversed(mark.findall(text)):
            numbers = _numbers(marked)
            if numbers:
                return numbers[0]
    numbers = _numbers(text)
    return numbers[-1] if numbers else None


def _numbers(text: str) -> list[Decimal]:
    numbers = []
    for spelling in _NUMBER.findall(text):
        digits = re.sub(r"[^\d.\-]", "", spelling.replace("−", "-"))
        numbers.append(Decimal(digits))
    return numbers


def json_in(text: str) -> str | None:
    """The first JSON object or list in a text, rewritten so that equal values are equal texts.

    >>> json_in('So: {"b": 1.0, "a": [2]}.') == json_in('{"a": [2], "b": 1}'), json_in("no")
    (True, None)
    """
    for bracket in re.finditer(r"[{\[]", text):
        try:
            value, _ = json.JSONDecoder().raw_decode(text, bracket.start())
        except (ValueError, RecursionError):
            continue
        return json.dumps(alike(value), sort_keys=True)
    return None


def json_value(text: str) -> str | None:
    """The whole text as a JSON value, rewritten so that equal values are equal texts.

    >>> json_value('{"b": 1.0, "a": -2}') == json_value('{"a": -2, "b": 1}'), json_value("-1")
    (True, '-1')
    """
    try:
        return json.dumps(alike(json.loads(text)), sort_keys=True)
    except (ValueError, RecursionError):
        return None


def calls_key(calls: Sequence[ToolCall]) -> tuple[Hashable, ...]:
    """A key that is equal for the same calls with the same arguments, whether a provider has
    returned them beside its text or a member has written them as text."""
    return tuple((call.name, json_value(call.arguments)) for call in calls)


def alike(value: Any) -> Any:
    """The value with 3 for 3.0, so that equal numbers are written alike."""
    if isinstance(value, dict):
        return {key: alike(item) for key, item in value.items()}
    if isinstance(value, list):
        return [alike(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


_WORD = re.compile(r"(?:(?<!\w)-(?=\d))?\w+(?:[+#]+(?!\w))?")


def plain_text(text: str) -> str | None:
    """The words of the text in lower case, without punctuation. The sign of a number and the end of
    C++ and C# stay, because they change the meaning.

    >>> plain_text(" Paris. "), plain_text("...")
    ('paris', None)
    >>> plain_text("It is -1."), plain_text("C++!"), plain_text("well-known: 1-2")
    ('it is -1', 'c++', 'well known 1 2')
    """
    return " ".join(_WORD.findall(text.casefold().replace("−", "-"))) or None


RESULTS: Mapping[str, Result] = {
    "number": final_number,
    "choice": lambda text: chosen_letter(text) or None,
    "json": json_in,
    "text": plain_text,
}
"""The values of the option ``result``. It also accepts any function of the answer's text."""
