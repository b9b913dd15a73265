"""The request that chat models among the members pass on: the caller's messages and arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import BaseMessage

from ..core.values import Constraint
from ..members.chat_model.request import Request
from .options import STRUCTURED, Call

_CHOICE = ("tool_choice", "strict", "parallel_tool_calls")
_FORMATS = frozenset({"text", "json_object", "json_schema"})
"""The types of OpenAI's ``response_format``, which other providers read too."""
_SAMPLING = ("max_tokens", "top_p", "top_k", "min_p", "repetition_penalty")
"""Options that are passed on if they are set. The temperature is part of each job."""


def request_of(
    messages: Sequence[BaseMessage],
    call: Call,
    options: Mapping[str, Any],
    text: Constraint | None,
    *,
    lead: str,
    is_whole: bool,
) -> Request:
    """The request with these messages. ``options`` are those of the call as the caller gave them;
    ``text``: the form of an answer that is not a call; ``lead``: the member that is asked first;
    ``is_whole``: nobody sees the answer before it is complete."""
    structured: Mapping[str, Any] | None = options.get(STRUCTURED)
    further = dict(call.further)
    model = further.pop("model", None)
    further |= {name: value for name in _SAMPLING if (value := getattr(call, name)) is not None}
    if call.stop:
        further["stop"] = list(call.stop)
    if options.get("logprobs"):
        further["logprobs"] = True
    if options.get("seed") is not None:
        further["seed"] = options["seed"]
    tools: Sequence[Any] = options.get("tools") or ()
    format = options.get("response_format")
    if structured is None and format is not None:
        if tools or (isinstance(format, Mapping) and format.get("type") in _FORMATS):
            further["response_format"] = format
        else:  # a schema, which only bind_tools may read
            structured = {"schema": format, "method": "json_schema"}
    if structured is not None and structured.get("method") == "function_calling":
        tools = ()
    choice = {name: options[name] for name in _CHOICE if options.get(name) is not None}
    return Request(
        tuple(messages),
        tuple(tools),
        choice if tools else {},
        structured,
        further,
        {} if model is None else {lead: {"model": model}},
        text,
        is_whole or call.method.segment == "answer",
    )
