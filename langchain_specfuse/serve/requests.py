"""The body of a request, read strictly: LangChain messages and options of the chat model.

A client chooses how its answer is sampled and what it looks like, never which members answer. An
option that would change the answer and cannot be honoured is refused, not ignored.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any, Literal

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from pydantic import BaseModel, Field, ValidationError
from starlette.requests import ClientDisconnect, Request

from ..chat.call_text import read_json
from ..chat.options import NOT_SUPPORTED
from ..errors import meant
from .responses import ApiError, invalid

BODY_TIMEOUT_S = 30.0
MAX_FORMAT_BYTES = 128 * 1024
"""Of tools and formats together, as JSON: compiling them costs more than reading them."""
FORMATS = (
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "response_format",
    "regex",
    "choice",
    "grammar",
)
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed")
OPTIONS = (*SAMPLING, "stop", "logprobs", *FORMATS)
"""Options of the chat model that a client may choose."""
IGNORED = {
    "user",
    "metadata",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "prediction",
}
"""Options that are accepted but do not affect the answer."""
NEUTRAL = {name: neutral for name, (neutral, _) in NOT_SUPPORTED.items() if name not in IGNORED}
NEUTRAL |= {"functions": [], "function_call": "none"}
"""Unsupported options, accepted only with a neutral value."""
MESSAGES: dict[str, type[BaseMessage]] = {
    "user": HumanMessage,
    "assistant": AIMessage,
    "tool": ToolMessage,
}
MESSAGES |= dict.fromkeys(("system", "developer"), SystemMessage)
_USER = '{"role": "user", "content": "Why is the sky blue?"}'
EXAMPLE = f"for example {_USER}"


class Limits(BaseModel, frozen=True, extra="forbid"):
    """The bounds of an endpoint; a request beyond them is refused with a reason. How many answers
    are under way at once is the chat model's own ``max_concurrency``."""

    max_waiting: int = Field(
        default=64, strict=True, ge=0, description="requests that may wait; more get a 429"
    )
    max_answer_tokens: int = Field(
        default=4096, strict=True, ge=1, description="largest max_tokens of a client"
    )
    max_body_bytes: int = Field(
        default=2 * 1024 * 1024, strict=True, ge=1, description="largest request body"
    )
    timeout: float = Field(
        default=300.0, gt=0, allow_inf_nan=False, description="seconds for an answer with its wait"
    )


async def read_body(request: Request, limits: Limits) -> Any:
    """The body as plain data, with bounds on its size and on the time it takes to arrive."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # a web page may send other types to other sites without asking
        message = (
            f"the body is of type {kind!r:.80}\n-> send it with content-type: application/json"
        )
        raise ApiError(415, message, code="unsupported_media_type")
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > limits.max_body_bytes:
                    large = (
                        f"the body is larger than {limits.max_body_bytes} bytes\n-> send a "
                        "shorter conversation"
                    )
                    raise ApiError(413, large, code="body_too_large", close=True)
        return read_json(body.decode())
    except TimeoutError:
        late = f"the body did not arrive within {BODY_TIMEOUT_S:g} s\n-> send it at once"
        raise ApiError(408, late, code="body_too_slow", close=True) from None
    except ClientDisconnect:
        raise ApiError(499, "the client has disconnected", code="gone") from None
    except ValueError as error:  # also a decoding error, or a number of thousands of digits
        reason = getattr(error, "msg", type(error).__name__)
        raise invalid(
            f"the body is not JSON: {reason}", "send a JSON object in UTF-8", code="invalid_json"
        ) from None
    except RecursionError:
        raise invalid(
            "the body is nested too deep", "send a flatter schema", code="body_too_deep"
        ) from None


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A question, and how to answer it."""

    messages: list[BaseMessage]
    options: dict[str, Any]
    """Options of the chat model for this call."""
    stream: bool = False
    include_usage: bool = False


class _Fields(BaseModel):
    """The options that the chat model does not check."""

    messages: list[Any] = Field(min_length=1)
    stream: bool = Field(False, strict=True)
    stream_options: dict[Literal["include_usage", "include_obfuscation"], bool] = {}
    response_format: dict[str, Any] | None = None
    seed: int | None = Field(None, strict=True, ge=-(2**63), lt=2**63)


USED = {"model", "max_tokens", "max_completion_tokens", *_Fields.model_fields, *OPTIONS}


def read_request(body: Any, model: str, limits: Limits) -> ChatRequest:
    """The request in this body; :class:`ApiError` if something is wrong with it."""
    if not isinstance(body, dict):
        raise invalid(
            f"the body must be a JSON object, got {body!r:.80}",
            'with at least "model" and "messages"',
        )
    given = {name: value for name, value in body.items() if value is not None}
    _refuse_unknown(given)
    refuse_other_model(given.get("model"), model)
    try:
        fields = _Fields.model_validate(given)
    except ValidationError as error:
        name = str(error.errors()[0]["loc"][0])
        advice = f"for example [{_USER}]" if name == "messages" else "leave it out"
        raise invalid(
            f"{name} cannot be {given.get(name)!r:.80}: {_reason(error)}", advice, param=name
        ) from None
    messages = [_message(one, f"messages[{place}]") for place, one in enumerate(fields.messages)]
    usage = fields.stream_options.get("include_usage", False)
    return ChatRequest(messages, _options(given, limits), fields.stream, usage)


def refuse_other_model(asked: Any, model: str) -> None:
    if asked != model:
        message = "model is missing" if asked is None else f"there is no model {asked!r:.80}"
        message = f"{message}\n-> the model is {model!r}; GET /v1/models lists it"
        raise ApiError(
            400 if asked is None else 404, message, code="model_not_found", param="model"
        )


def _refuse_unknown(given: dict[str, Any]) -> None:
    for name, value in given.items():
        if name not in USED | IGNORED | NEUTRAL.keys():
            advice = meant(name, USED, f"the options are {', '.join(sorted(USED))}")
            raise invalid(
                f"there is no option {name!r:.80}",
                advice,
                param=f"{name:.80}",
                code="unknown_parameter",
            )
        if value != NEUTRAL.get(name, value):
            message = f"{name} is not supported, got {value!r:.80}"
            raise invalid(
                message,
                f"leave it out, or send {json.dumps(NEUTRAL[name])}",
                param=name,
                code="unsupported_parameter",
            )


def _message(given: Any, where: str) -> BaseMessage:
    """LangChain's message. What may stand in its content is checked by the chat model."""
    role = given.get("role") if isinstance(given, dict) else None
    if role not in list(MESSAGES):
        raise invalid(
            f"{where} needs a role, one of {', '.join(MESSAGES)}; got {given!r:.80}",
            EXAMPLE,
            param=where,
        )
    fields = {
        name: given[name]
        for name in ("content", "name", "tool_call_id")
        if given.get(name) is not None
    }
    parts = fields.get("content")
    for part in parts if role == "user" and isinstance(parts, list) else ():
        # Chat models of some providers load an image's address themselves: a client could reach
        # this host's network.
        if isinstance(part, dict) and part.get("type") != "text":
            message = (
                f"{where} has a part of type {part.get('type')!r:.80}; the endpoint takes text"
            )
            raise invalid(message, "describe images and files in words", param=where)
    try:
        calls = [_call(one) for one in given.get("tool_calls") or ()]
        if role == "assistant" and calls:
            valid = [call for call in calls if call["type"] == "tool_call"]
            broken = [call for call in calls if call not in valid]
            fields = {"content": "", **fields, "tool_calls": valid, "invalid_tool_calls": broken}
        return MESSAGES[role](**fields)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise invalid(
            f"{where} cannot be {given!r:.80}: {_reason(error):.200}", EXAMPLE, param=where
        ) from None


def _call(given: Any) -> dict[str, Any]:
    """LangChain's tool call; an invalid one if its arguments are not a JSON object, because it was
    made all the same."""
    text = given["function"].get("arguments") or "{}"
    call = {"name": given["function"]["name"], "id": given.get("id", "")}
    try:
        arguments = read_json(text)
    except (ValueError, RecursionError):
        arguments = None
    if isinstance(arguments, dict):
        return {**call, "args": arguments, "type": "tool_call"}
    return {**call, "args": text, "error": None, "type": "invalid_tool_call"}


def _reason(error: Exception) -> str:
    first: Any = error.errors()[0] if isinstance(error, ValidationError) else None
    return f"{first['loc'][0]}: {first['msg']}" if first and first["loc"] else repr(error)


def _options(given: dict[str, Any], limits: Limits) -> dict[str, Any]:
    options = {name: given[name] for name in OPTIONS if name in given}
    size = len(json.dumps({name: options[name] for name in FORMATS if name in options}))
    if size > MAX_FORMAT_BYTES:
        message = f"tools and formats take {size} bytes as JSON; the limit is {MAX_FORMAT_BYTES}"
        raise invalid(message, "send fewer tools, or a smaller schema", code="shape_too_large")
    for tool in options["tools"] if isinstance(options.get("tools"), list) else ():
        # OpenAI does not need parameters
        if isinstance(tool, dict) and isinstance(tool.get("function"), dict):
            tool["function"].setdefault("parameters", {"type": "object", "properties": {}})
    # OpenAI has two names
    name = "max_completion_tokens" if "max_completion_tokens" in given else "max_tokens"
    if (budget := given.get(name)) is not None:
        if given.get("max_tokens", budget) != budget:
            raise invalid(
                f"max_tokens and {name} differ", "leave max_tokens out", param="max_tokens"
            )
        if isinstance(budget, int) and budget > limits.max_answer_tokens:
            raise invalid(
                f"{name} is {budget}; the limit is {limits.max_answer_tokens}",
                "ask for less",
                param=name,
            )
        options["max_tokens"] = budget
    return options
