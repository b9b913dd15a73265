"""``with_structured_output``: a chat model whose answers come as objects.

Knows LangChain's runnables and parsers and how a schema is asked for; what an answer may be is in ``_shapes``.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any

from langchain_core.exceptions import OutputParserException
from langchain_core.output_parsers import BaseCumulativeTransformOutputParser
from langchain_core.outputs import ChatGeneration, Generation
from langchain_core.runnables import Runnable, RunnableMap, RunnablePassthrough
from langchain_core.utils.json import parse_partial_json

from ._calls import BEYOND, CLOSED
from ._numbers import Beyond, read_json, refuse_beyond
from ._schemas import name_of, reader_of, schema_of
from .errors import UsageError, advised

log = logging.getLogger("langchain_specfuse")

METHODS = ("json_schema", "json_mode", "function_calling")

_HALF = re.compile(r"\\(u[0-9a-fA-F]{0,3})?\Z|\\u[dD][89abAB][0-9a-fA-F]{2}(\\(u[0-9a-fA-F]{0,3})?)?\Z")
"""An escape that is not whole yet, or half of a pair: without it what is shown only ever grows."""


class StructuredReader(BaseCumulativeTransformOutputParser[Any]):
    """Reads the JSON of an answer, or the arguments of its call; while it streams, as much as there is of it.

    A class is shown from when on its data are valid, a dict from its first key on.
    """

    read: Callable[[Any], Any] | None = None
    """Makes the object. None: the data are all that is wanted."""
    call: str | None = None
    """The tool in whose arguments the data are. None: they are the text."""
    warns: bool = True
    """Whether the log tells of an object that was closed by hand; with ``include_raw`` the answer does."""

    @property
    def _type(self) -> str:
        return "specfuse-structured"

    def parse_result(self, result: list[Generation], *, partial: bool = False) -> Any:
        answer = getattr(result[0], "message", None)
        if self.warns and answer and answer.response_metadata.get("specfuse", {}).get("closed"):
            told = "the object was closed by hand (max_tokens ended, or nobody could go on in its form)"
            log.warning("%s: what it says may be cut short", told)
        try:
            data = self._data(result[0], partial)
            return data if self.read is None or data is None else self.read(data)
        except ValueError as error:  # JSON's and both pydantics' errors are ValueErrors
            if partial and not isinstance(error, Beyond):
                return None
            told = f"the answer cannot be read: {error}"
            raise OutputParserException(told, llm_output=result[0].text) from error

    def parse(self, text: str) -> Any:
        return self.parse_result([Generation(text=text)])

    def _data(self, generation: Generation, partial: bool) -> Any:
        message = generation.message if isinstance(generation, ChatGeneration) else None
        if self.call is not None:
            return _arguments(message, self.call)
        if not partial:
            if not generation.text and (called := _called(message)):
                raise ValueError(f"the answer is a call of {called!r}, not an object")
            return read_json(generation.text)
        text = generation.text.lstrip()
        return refuse_beyond(parse_partial_json(_HALF.sub("", text))) if text else None


def _arguments(message: Any, name: str) -> Any:
    """What this tool is called with, in a call that was closed by hand too; None if it is not called."""
    right = [one["args"] for one in getattr(message, "tool_calls", ()) if one["name"] == name]
    if right:
        return right[0]
    broken = [one["args"] or "" for one in getattr(message, "invalid_tool_calls", ()) if one["name"] == name]
    return read_json(broken[0].removesuffix(CLOSED).removesuffix(BEYOND)) if broken else None


def _called(message: Any) -> str | None:
    """The tool that this message calls first."""
    calls = [*getattr(message, "tool_calls", ()), *getattr(message, "invalid_tool_calls", ())]
    return calls[0]["name"] if calls else None


def structured(
    bind: Callable[..., Any],
    bind_tools: Callable[..., Any],
    schema: Any,
    *,
    method: str,
    include_raw: bool,
    strict: bool | None,
    kwargs: Mapping[str, Any],
) -> Runnable[Any, Any]:
    """The model, asked for this schema, and whoever reads its answers."""
    if method not in METHODS:
        error = UsageError(f"method must be one of {', '.join(map(repr, METHODS))}, got {method!r:.80}")
        raise advised(error, "leave it out: 'json_schema' is the surest")
    if schema is None and method != "json_mode":
        error = UsageError(f"method={method!r} needs a schema, got None")
        raise advised(error, "pass a schema, or method='json_mode' for any JSON object")
    asked = _as_call(bind_tools, schema, strict, kwargs) if method == "function_calling" else None
    bound, reader = asked or _as_text(bind, schema, method, strict, kwargs)
    reader.warns = not include_raw
    return _with_raw(bound, reader) if include_raw else bound | reader


def _as_text(
    bind: Callable[..., Any], schema: Any, method: str, strict: bool | None, kwargs: Mapping[str, Any]
) -> tuple[Any, StructuredReader]:
    if schema is None:
        return bind(**kwargs, response_format={"type": "json_object"}), StructuredReader()
    wanted = schema_of(schema, strict)
    named = {"name": name_of(schema), "schema": wanted} | ({} if strict is None else {"strict": strict})
    format = {"type": "json_schema", "json_schema": named}
    told = _told(schema, wanted, method, strict)
    return bind(**kwargs, response_format=format, **told), StructuredReader(read=reader_of(schema))


def _as_call(
    bind_tools: Callable[..., Any], schema: Any, strict: bool | None, kwargs: Mapping[str, Any]
) -> tuple[Any, StructuredReader]:
    if kwargs.get("tools"):
        error = UsageError("tools and method='function_calling' are both given: the object would be one more call")
        raise advised(error, "leave method out: the answer is then a call of a tool, or the object")
    kwargs = {name: value for name, value in kwargs.items() if name != "tools"}
    wanted = schema_of(schema, strict)
    tool = _function({"title": name_of(schema), **wanted}) if isinstance(schema, Mapping) else schema
    told = _told(schema, wanted, "function_calling", strict)
    bound = bind_tools([tool], tool_choice=True, parallel_tool_calls=False, strict=strict, **kwargs, **told)
    name = bound.kwargs["tools"][0]["function"]["name"]
    return bound, StructuredReader(read=reader_of(schema), call=name)


def _function(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON schema as a tool; LangChain's own way drops all but its properties."""
    parameters = {key: value for key, value in schema.items() if key not in ("title", "description")}
    function = {"name": schema["title"], "description": schema.get("description", ""), "parameters": parameters}
    return {"type": "function", "function": function}


def _told(schema: Any, wanted: Mapping[str, Any], method: str, strict: bool | None) -> dict[str, Any]:
    """What LangChain's traces want to know."""
    kwargs = {"method": method} if strict is None else {"method": method, "strict": strict}
    source = schema if isinstance(schema, type) else {"title": name_of(schema), **wanted}
    return {"ls_structured_output_format": {"kwargs": kwargs, "schema": source}}


def _with_raw(bound: Any, reader: StructuredReader) -> Runnable[Any, Any]:
    """The answer itself beside what was read from it, or beside the error."""
    read = RunnablePassthrough.assign(parsed=itemgetter("raw") | reader, parsing_error=lambda _: None)
    unread = RunnablePassthrough.assign(parsed=lambda _: None)
    return RunnableMap(raw=bound) | read.with_fallbacks([unread], exception_key="parsing_error")
