"""Build the runnables and parsers of ``with_structured_output``, with which a chat model answers
with objects.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any, cast

from langchain_core.exceptions import ModelRefusalError, OutputParserException
from langchain_core.messages import AIMessage
from langchain_core.output_parsers import BaseCumulativeTransformOutputParser
from langchain_core.outputs import ChatGeneration, Generation
from langchain_core.runnables import Runnable, RunnableMap, RunnablePassthrough
from langchain_core.utils.json import parse_json_markdown, parse_partial_json

from ..constraints import fault, half_escape
from ..errors import UsageError, advised
from ..members.chat_model.refusals import refusal_in
from .call_text import reason_of
from .messages import read_json
from .options import STRUCTURED
from .schemas import name_of, openai_tools, reader_of, schema_of

FORMS = ("json_schema", "json_mode", "function_calling")
"""The values of ``method``."""

ADVICE_CUT_OFF = "the answer was cut off by max_tokens: raise it"
ADVICE_STALLED = (
    "the members only repeated themselves, wrote nothing that the schema allows, or have no "
    "context left: describe the object in the prompt, or add a member that can be masked, such as "
    "a .gguf file"
)


class StructuredReader(BaseCumulativeTransformOutputParser[Any]):
    """Reads the object in the JSON of an answer, or in the arguments of its call.

    While the answer streams, it returns partial objects: a dict from its first key on, an instance
    of a class as soon as its data are valid.
    """

    read: Callable[[Any], Any] | None = None
    """The function that makes the object from its data; None if the data are the object."""
    call: str | None = None
    """The tool whose arguments are the data; None if the data are the text."""
    name: str = ""
    """The name of the tool by which a provider may return the data nevertheless."""
    whole: str | None = None
    """The schema against which finished data are checked; None if ``read`` checks them."""

    @property
    def _type(self) -> str:
        return "specfuse-structured"

    def parse_result(self, result: list[Generation], *, partial: bool = False) -> Any:
        message = result[0].message if isinstance(result[0], ChatGeneration) else None
        summary = message.response_metadata.get("specfuse", {}) if message else {}
        finish = summary.get("finish")
        if finish == "refusal":
            raise _refusal_error(message)
        partial = partial and finish is None
        text = result[0].text
        try:
            data = self._data(text, message, partial)
            return data if self.read is None or data is None else self.read(data)
        except ValueError as error:  # JSON's and both pydantics' errors are ValueErrors
            if partial:
                return None
            why = f"the answer cannot be read: {error}"
            if finish == "length":
                why += f"\n-> {ADVICE_STALLED if _is_stalled(message) else ADVICE_CUT_OFF}"
            raise OutputParserException(why, llm_output=text) from error

    def parse(self, text: str) -> Any:
        return self.parse_result([Generation(text=text)])

    def _data(self, text: str, message: Any, partial: bool) -> Any:
        called = {call["name"] for call in getattr(message, "tool_calls", ())}
        if self.call or (self.name in called and not text.strip()):
            data = self._arguments(message)
        else:
            data = _json_in(text, message, partial)
        if self.whole is not None and not partial:
            wrong = fault(self.whole, data)
            if wrong:
                raise ValueError(wrong)
        return data

    def _arguments(self, message: Any) -> Any:
        """The arguments of the tool's first call; None if it is not called."""
        for call in getattr(message, "tool_calls", ()):
            if call["name"] == (self.call or self.name):
                return call["args"]
        for call in getattr(message, "invalid_tool_calls", ()):
            if call["name"] == self.call:
                reason = call["error"] or reason_of(call["args"] or "")
                raise ValueError(reason or "it is not JSON")
        return None


def _json_in(text: str, message: Any, partial: bool) -> Any:
    """The data in an answer's text. The text of a partial answer is completed."""
    if partial:
        # without half a character, so that each text of an object begins with the one before
        text = text.lstrip()
        text = text[: len(text) - half_escape(text)]
        return parse_partial_json(text) if text else None
    calls = [*getattr(message, "tool_calls", ()), *getattr(message, "invalid_tool_calls", ())]
    if calls and not text:
        raise ValueError(f"the answer is a call of {calls[0]['name']!r}, not an object")
    return parse_json_markdown(text, parser=read_json)


def _refusal_error(message: Any) -> Exception:
    refusal = refusal_in(message) if isinstance(message, AIMessage) else ""
    reason = f": {refusal}" if refusal else ""
    return ModelRefusalError(f"the members refused to answer{reason}", raw_message=message)


def _is_stalled(message: Any) -> bool:
    """Whether the answer is incomplete although max_tokens was not reached."""
    return bool(message.response_metadata.get("specfuse", {}).get("stalled"))


def structured(
    bind: Callable[..., Any],
    bind_tools: Callable[..., Any],
    schema: Any,
    *,
    method: str | None,
    include_raw: bool,
    strict: bool | None,
    kwargs: Mapping[str, Any],
) -> Runnable[Any, Any]:
    """A runnable that asks the model for this schema and reads its answers."""
    asked: dict[str, Any] = {"schema": schema}
    if method is not None:
        asked["method"] = method
    if strict is not None:
        asked["strict"] = strict
    method = method or "json_schema"
    if method not in FORMS:
        error = UsageError(
            f"method must be one of {', '.join(map(repr, FORMS))}, got {method!r:.80}"
        )
        raise advised(error, "leave it out: 'json_schema' is the most reliable")
    if schema is None and method != "json_mode":
        error = UsageError(f"method={method!r} needs a schema, got None")
        raise advised(error, "pass a schema, or method='json_mode' for any JSON object")
    if schema is None:
        bound = bind(**kwargs, response_format={"type": "json_object"}, **{STRUCTURED: asked})
        return _read_by(StructuredReader(), bound, include_raw)
    json_schema = schema_of(schema, strict)
    options = {**kwargs, **_for_traces(schema, json_schema, method, strict), STRUCTURED: asked}
    reader = StructuredReader(read=reader_of(schema), name=name_of(schema))
    if method == "function_calling":
        bound = _as_call(bind_tools, schema, json_schema, strict, options)
        reader.call = openai_tools(bound.kwargs["tools"])[0]["function"]["name"]
    else:
        wrapped: dict[str, Any] = {"name": name_of(schema), "schema": json_schema}
        if strict is not None:
            wrapped["strict"] = strict
        bound = bind(**options, response_format={"type": "json_schema", "json_schema": wrapped})
        if reader.read is None:
            reader.whole = json.dumps(json_schema)
    return _read_by(reader, bound, include_raw)


def _as_call(
    bind_tools: Callable[..., Any],
    schema: Any,
    json_schema: dict[str, Any],
    strict: bool | None,
    options: Mapping[str, Any],
) -> Any:
    """The model, bound to a tool with this schema, which it must call."""
    if options.get("tools"):
        error = UsageError(
            "tools and method='function_calling' are both given: the object would be one more call"
        )
        raise advised(error, "leave method out: the answer is then a call of a tool, or the object")
    options = {name: value for name, value in options.items() if name != "tools"}
    if isinstance(schema, Mapping):
        schema = _function({"title": name_of(schema), **json_schema})
    return bind_tools(
        [schema], tool_choice=True, parallel_tool_calls=False, strict=strict, **options
    )


def _function(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON schema as a tool. LangChain's conversion would keep only its properties."""
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
    schema: Any, json_schema: Mapping[str, Any], method: str, strict: bool | None
) -> dict[str, Any]:
    """The option from which LangChain's traces show the schema."""
    kwargs: dict[str, Any] = {"method": method}
    if strict is not None:
        kwargs["strict"] = strict
    source = schema if isinstance(schema, type) else {"title": name_of(schema), **json_schema}
    return {"ls_structured_output_format": {"kwargs": kwargs, "schema": source}}


def _read_by(reader: StructuredReader, bound: Any, include_raw: bool) -> Runnable[Any, Any]:
    """A runnable that returns the object. With ``include_raw``, it returns a dict of the answer and
    the object or the error."""
    if not include_raw:
        return cast("Runnable[Any, Any]", bound | reader)
    read = RunnablePassthrough.assign(
        parsed=itemgetter("raw") | reader, parsing_error=lambda _: None
    )
    unread = RunnablePassthrough.assign(parsed=lambda _: None)
    return RunnableMap(raw=bound) | read.with_fallbacks([unread], exception_key="parsing_error")
