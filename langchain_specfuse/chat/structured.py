"""``with_structured_output``: a chat model whose answers are objects.

It builds LangChain's runnables and parsers; ``shape`` decides which answers are allowed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any

from langchain_core.exceptions import OutputParserException
from langchain_core.messages import AIMessage
from langchain_core.output_parsers import BaseCumulativeTransformOutputParser
from langchain_core.outputs import ChatGeneration, Generation
from langchain_core.runnables import Runnable, RunnableMap, RunnablePassthrough
from langchain_core.utils.json import parse_partial_json

from ..constraints import validator_of
from ..errors import UsageError, advised
from ..members.chat_model.refusals import refusal_in
from .call_text import read_json, reason_of
from .errors import RefusalError
from .schemas import name_of, reader_of, schema_of
from .shape import whole_schema

METHODS = ("json_schema", "json_mode", "function_calling")

CUT_OFF = "the answer was cut off by max_tokens: raise it"
STALLED = (
    "the members wrote nothing that the schema allows, or have no context left: describe the "
    "object in the prompt, or add a member that can be masked, such as a .gguf file"
)

_HALF = re.compile(
    r"\\(u[0-9a-fA-F]{0,3})?\Z|\\u[dD][89abAB][0-9a-fA-F]{2}(\\(u[0-9a-fA-F]{0,3})?)?\Z"
)
"""An escape that is not whole yet, or half of a pair: without it what is shown only ever grows."""


class StructuredReader(BaseCumulativeTransformOutputParser[Any]):
    """Reads the JSON of an answer, or the arguments of its call; while it streams, as much as there
    is of it.

    A class is shown from when on its data are valid, a dict from its first key on.
    """

    read: Callable[[Any], Any] | None = None
    """Makes the object. None: the data are all that is wanted."""
    call: str | None = None
    """The tool whose arguments are the data. None: the data are the text."""
    whole: str | None = None
    """The schema against which finished data are checked, if the grammar leaves out a part of
    it."""

    @property
    def _type(self) -> str:
        return "specfuse-structured"

    def parse_result(self, result: list[Generation], *, partial: bool = False) -> Any:
        message = result[0].message if isinstance(result[0], ChatGeneration) else None
        finish = message.response_metadata.get("finish_reason") if message else None
        partial = partial and finish is None
        if finish == "refusal":
            refusal = refusal_in(message) if isinstance(message, AIMessage) else ""
            raise RefusalError(
                "the members refused to answer" + (f": {refusal}" if refusal else ""),
                raw_message=message,
            )
        try:
            data = (
                self._arguments(message)
                if self.call
                else self._text(result[0].text, message, partial)
            )
            if not partial:
                self._refuse_invalid(data)
            return data if self.read is None or data is None else self.read(data)
        except ValueError as error:  # JSON's and both pydantics' errors are ValueErrors
            if partial:
                return None
            unread = OutputParserException(
                f"the answer cannot be read: {error}", llm_output=result[0].text
            )
            if finish == "length":
                advised(unread, STALLED if _is_stalled(message) else CUT_OFF)
            raise unread from error

    def _refuse_invalid(self, data: Any) -> None:
        if self.whole is not None and (fault := validator_of(self.whole, "schema").fault(data)):
            raise ValueError(fault)

    def parse(self, text: str) -> Any:
        return self.parse_result([Generation(text=text)])

    def _arguments(self, message: Any) -> Any:
        """What the tool is called with; None if it is not called."""
        right = [
            one["args"] for one in getattr(message, "tool_calls", ()) if one["name"] == self.call
        ]
        if right:
            return right[0]
        for one in getattr(message, "invalid_tool_calls", ()):
            if one["name"] == self.call:
                raise ValueError(one["error"] or reason_of(one["args"] or "") or "it is not JSON")
        return None

    def _text(self, text: str, message: Any, partial: bool) -> Any:
        if partial:
            return parse_partial_json(_HALF.sub("", text.lstrip())) if text.strip() else None
        calls = [*getattr(message, "tool_calls", ()), *getattr(message, "invalid_tool_calls", ())]
        if calls and not text:
            raise ValueError(f"the answer is a call of {calls[0]['name']!r}, not an object")
        return read_json(text)


def _is_stalled(message: Any) -> bool:
    """Whether the answer is incomplete although max_tokens was not reached."""
    return bool(message.response_metadata.get("specfuse", {}).get("stalled"))


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
    """The model, asked for this schema, and the reader of its answers."""
    if method not in METHODS:
        error = UsageError(
            f"method must be one of {', '.join(map(repr, METHODS))}, got {method!r:.80}"
        )
        raise advised(error, "leave it out: 'json_schema' is the most reliable")
    if schema is None and method != "json_mode":
        error = UsageError(f"method={method!r} needs a schema, got None")
        raise advised(error, "pass a schema, or method='json_mode' for any JSON object")
    wanted = schema_of(schema, strict) if schema is not None else {}
    options = (
        {**kwargs, **_for_traces(schema, wanted, method, strict)} if schema is not None else kwargs
    )
    call = whole = None
    if schema is None:
        bound = bind(**options, response_format={"type": "json_object"})
    elif method == "function_calling":
        bound = _as_call(bind_tools, schema, wanted, strict, options)
        call = bound.kwargs["tools"][0]["function"]["name"]
    else:
        named = {"name": name_of(schema), "schema": wanted} | (
            {} if strict is None else {"strict": strict}
        )
        bound = bind(**options, response_format={"type": "json_schema", "json_schema": named})
        whole = whole_schema(wanted)
    reader = StructuredReader(read=reader_of(schema), call=call, whole=whole)
    return _with_raw(bound, reader) if include_raw else bound | reader


def _as_call(
    bind_tools: Callable[..., Any],
    schema: Any,
    wanted: dict[str, Any],
    strict: bool | None,
    options: Mapping[str, Any],
) -> Any:
    """The model, which must call a tool of this schema."""
    if options.get("tools"):
        error = UsageError(
            "tools and method='function_calling' are both given: the object would be one more call"
        )
        raise advised(error, "leave method out: the answer is then a call of a tool, or the object")
    options = {name: value for name, value in options.items() if name != "tools"}
    tool = (
        _function({"title": name_of(schema), **wanted}) if isinstance(schema, Mapping) else schema
    )
    return bind_tools([tool], tool_choice=True, parallel_tool_calls=False, strict=strict, **options)


def _function(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON schema as a tool; LangChain's own way drops all but its properties."""
    parameters = {
        key: value for key, value in schema.items() if key not in ("title", "description")
    }
    function = {
        "name": schema["title"],
        "description": schema.get("description", ""),
        "parameters": parameters,
    }
    return {"type": "function", "function": function}


def _for_traces(
    schema: Any, wanted: Mapping[str, Any], method: str, strict: bool | None
) -> dict[str, Any]:
    """What LangChain's traces show of it."""
    kwargs = {"method": method} if strict is None else {"method": method, "strict": strict}
    source = schema if isinstance(schema, type) else {"title": name_of(schema), **wanted}
    return {"ls_structured_output_format": {"kwargs": kwargs, "schema": source}}


def _with_raw(bound: Any, reader: StructuredReader) -> Runnable[Any, Any]:
    """The answer itself beside what was read from it, or beside the error."""
    read = RunnablePassthrough.assign(
        parsed=itemgetter("raw") | reader, parsing_error=lambda _: None
    )
    unread = RunnablePassthrough.assign(parsed=lambda _: None)
    return RunnableMap(raw=bound) | read.with_fallbacks([unread], exception_key="parsing_error")
