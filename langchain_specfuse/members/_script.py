"""What a scripted member may be given to say, read into texts and functions; and how a call is written.

Knows plain values, and a LangChain message by its looks alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..core.values import CallFormat, Query
from ..errors import UsageError, advised

Line = str | Callable[[Query], Any]
"""One answer, or the function that makes it."""
_ADVICE = "pass a text, a dict (said as JSON), an AIMessage, a function of the query, or a list of these"


def lines_of(answer: Any) -> tuple[Line, ...]:
    """The answers of a script, in their order: one of a text or a function, as many as a list has."""
    if (line := _line(answer)) is not None:
        return (line,)
    if not isinstance(answer, Sequence) or isinstance(answer, (bytes, bytearray)):
        raise advised(UsageError(f"a scripted member cannot say {_told(answer)}"), _ADVICE)
    if not answer:
        raise advised(UsageError("a scripted member was given an empty list: it has nothing to say"), _ADVICE)
    return tuple(_entry(one, place) for place, one in enumerate(answer))


def said_by(line: Line, query: Query) -> str:
    """What is said to this query."""
    if isinstance(line, str):
        return line
    found = line(query)
    text = text_of(found)
    if text is None:
        name = getattr(line, "__name__", type(line).__name__)
        error = UsageError(f"the script {name!r} returned {_told(found)}, wanted a text")
        raise advised(error, "return a text, a dict (said as JSON) or an AIMessage")
    return text


def text_of(value: Any) -> str | None:
    """A text as it is, a dict as JSON, a message's text and calls as a member writes them. None: it is none of these.

    >>> text_of({"city": "Köln"})
    '{"city": "Köln"}'
    """
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Mapping):
        return _json(dict(value), "a script")
    calls = getattr(value, "tool_calls", None)
    text = next(
        (one for one in (getattr(value, key, None) for key in ("text", "content")) if isinstance(one, str)), None
    )
    if isinstance(value, type) or not isinstance(calls, Sequence) or text is None:
        return None
    return str(text) + CallFormat().between.join(call_text(call["name"], call["args"]) for call in calls)


def call_text(name: str, arguments: Mapping[str, Any]) -> str:
    """A call in the common format."""
    if not isinstance(name, str) or not name:
        raise advised(
            UsageError(f"a call needs the name of a tool, got {_told(name)}"), "call('get_weather', city='Rome')"
        )
    form = CallFormat()
    body = {form.name_key: name, form.arguments_key: dict(arguments)}
    return form.begin + _json(body, f"the call of {name!r}") + form.end


def _line(value: Any) -> Line | None:
    text = text_of(value)
    return value if text is None and callable(value) else text


def _entry(value: Any, place: int) -> Line:
    line = _line(value)
    if line is None:
        raise advised(UsageError(f"answer {place} of the script is {_told(value)}, wanted a text"), _ADVICE)
    return line


def _json(value: Any, what: str) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        told = UsageError(f"{what} is no JSON: {error}")
        raise advised(told, "use texts, finite numbers, True, False, None, lists and dicts only") from error


def _told(value: Any) -> str:
    return "None" if value is None else f"{value!r:.80} (of type {type(value).__name__})"
