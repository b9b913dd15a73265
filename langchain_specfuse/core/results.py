"""The result in an answer: its number, choice, object or text, so that two answers can be
compared."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Hashable, Mapping
from decimal import Decimal
from typing import Any, TypeAlias

from .letters import chosen_letter

Result: TypeAlias = Callable[[str], Hashable]
"""An answer's text -> its result; None if it contains none. Equal results agree."""

_NUMBER = re.compile(
    r"(?<![\w.])[-+−]?[$€£]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|(?<![\w.])[-+−]?[$€£]?\.\d+"
)
_FINAL = (re.compile(r"####\s*([^\n]*)"), re.compile(r"\\boxed\{([^{}]*)\}"))
"""How the datasets GSM8K and MATH mark a final answer."""


def final_number(text: str) -> Decimal | None:
    """The number that a text ends up with: that after ``####``, else in ``\\boxed{}``, else the
    last one.

    >>> (
    ...     final_number("12 + 30 = 42, so it costs $1,042.50."),
    ...     final_number("#### 7\\n(of 9)"),
    ...     final_number("none"),
    ... )
    (Decimal('1042.50'), Decimal('7'), None)
    """
    for mark in _FINAL:
        marked = [values for found in mark.findall(text) if (values := _numbers(found))]
        if marked:
            return marked[-1][0]
    found = _numbers(text)
    return found[-1] if found else None


def _numbers(text: str) -> list[Decimal]:
    return [
        Decimal(re.sub(r"[^\d.\-]", "", found.replace("−", "-"))) for found in _NUMBER.findall(text)
    ]


def json_in(text: str) -> str | None:
    """The first JSON object or list in a text, in a form in which equal values are spelt alike.

    >>> json_in('So: {"b": 1.0, "a": [2]}.') == json_in('{"a": [2], "b": 1}'), json_in("no")
    (True, None)
    """
    for found in re.finditer(r"[{\[]", text):
        try:
            value, _ = json.JSONDecoder().raw_decode(text, found.start())
        except (ValueError, RecursionError):
            continue
        return json.dumps(alike(value), sort_keys=True)
    return None


def json_value(text: str) -> str | None:
    """The JSON value that the whole text is, in a form in which equal values are spelt alike.

    >>> json_value('{"b": 1.0, "a": -2}') == json_value('{"a": -2, "b": 1}'), json_value("-1")
    (True, '-1')
    """
    try:
        return json.dumps(alike(json.loads(text)), sort_keys=True)
    except (ValueError, RecursionError):
        return None


def alike(value: Any) -> Any:
    """The value with 3 for 3.0, so that equal numbers are written alike."""
    if isinstance(value, dict):
        return {key: alike(one) for key, one in value.items()}
    if isinstance(value, list):
        return [alike(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


_WORD = re.compile(r"(?:(?<!\w)-(?=\d))?\w+(?:[+#]+(?!\w))?")


def plain_text(text: str) -> str | None:
    """The words of the text in lower case, without white space and punctuation around them. Kept
    are the sign of a number and the end of C++ and C#, because they change the meaning.

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
"""The values of the option ``result``; any function of the answer's text will do as well."""
