"""Read the body of a request for a chat completion strictly, into LangChain messages and options
of the chat model.

A client may choose how its answer is sampled and formatted, but not which members answer. An option
that would change the answer and is not supported is refused, not ignored.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from pydantic import BaseModel, Field, ValidationError
from starlette.requests import ClientDisconnect, Request

from ..chat.messages import read_json
from ..chat.options import FOREIGN
from ..errors import meant
from .errors import ApiError, invalid

BODY_TIMEOUT_S = 30.0
MAX_FORMAT_BYTES = 128 * 1024
"""The limit for tools and formats together, as JSON. Compiling them costs more than reading
them."""
MAX_PARTS = 5_000
"""The limit for messages, their parts and tool calls together, and for the items of an option. Each
is made into an object, which takes longer than reading a text of the same size."""
SMALL_BODY_BYTES = 32 * 1024
"""A larger body is read in another thread, so that other requests do not wait for it."""
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
HOSTED = ("reasoning_effort", "verbosity")
"""Options for chat models only. Where no member is one, they have no effect."""
OPENAI = ("user", "service_tier", "prompt_cache_key")
"""Options for OpenAI's chat models. Other chat models refuse them, so they have no effect if one of
those is a member."""
OPTIONS = (*SAMPLING, "stop", "logprobs", *HOSTED, *OPENAI, *FORMATS)
"""Options of the chat model that a client may choose."""
BUDGETS = ("max_output_tokens", "max_completion_tokens", "max_tokens")
"""OpenAI's names for the same option. The first one is that of responses."""
IGNORED = {
    "metadata",
    "safety_identifier",
    "prompt_cache_retention",
    "prediction",
    "client_metadata",  # Codex sends it
}
"""Options that are accepted but do not affect the answer."""
NEUTRAL = {
    name: option.neutral
    for name, option in FOREIGN.items()
    if option.has_neutral and name not in IGNORED and name not in OPTIONS
}
NEUTRAL |= {"functions": [], "function_call": "none"}
"""Unsupported options, accepted only with a neutral value."""
MESSAGES: dict[str, type[BaseMessage]] = {
    "user": HumanMessage,
    "assistant": AIMessage,
    "tool": ToolMessage,
}
MESSAGES |= dict.fromkeys(("system", "developer"), SystemMessage)
IMAGES = (b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"RIFF")
"""How the data of an image begins: PNG, JPEG, GIF, WebP."""
_USER = '{"role": "user", "content": "Why is the sky blue?"}'
EXAMPLE = f"for example {_USER}"


class Limits(BaseModel, frozen=True, extra="forbid"):
    """The limits of an endpoint. A request beyond them is refused with a reason. The number of
    answers at once is limited by the chat model's ``max_concurrency``."""

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
        default=300.0, gt=0, allow_inf_nan=False, description="seconds for an answer and its wait"
    )


async def request_in(
    request: Request, limits: Limits, read: Callable[[Any], ChatRequest]
) -> ChatRequest:
    """The question in an HTTP request, which ``read`` reads from its JSON. Raises
    :class:`ApiError` if something is wrong with it."""
    body = await _received(request, limits)
    if len(body) <= SMALL_BODY_BYTES:
        return read(_parsed(body))
    return await asyncio.to_thread(lambda: read(_parsed(body)))


async def _received(request: Request, limits: Limits) -> bytes:
    """The body, with bounds on its size and on the time it takes to arrive."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # a web page may send other types to any site without asking
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
        return bytes(body)
    except TimeoutError:
        late = f"the body did not arrive within {BODY_TIMEOUT_S:g} s\n-> send it at once"
        raise ApiError(408, late, code="body_too_slow", close=True) from None
    except ClientDisconnect:
        raise ApiError(499, "the client has disconnected", code="gone") from None


def _parsed(body: bytes) -> Any:
    """The body as plain data."""
    try:
        return read_json(body.decode())
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
    sent: Mapping[str, Any] = field(default_factory=dict)
    """The options as the client wrote them, for replies that repeat them."""


class _Fields(BaseModel):
    """The fields that the chat model does not validate."""

    messages: list[Any] = Field(min_length=1)
    stream: bool = Field(False, strict=True)
    stream_options: dict[Literal["include_usage", "include_obfuscation"], bool] = {}
    response_format: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    verbosity: str | None = None
    user: str | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    seed: int | None = Field(None, strict=True, ge=-(2**63), lt=2**63)


USED = {"model", *BUDGETS[1:], *_Fields.model_fields, *OPTIONS}


def read_request(body: Any, model: str, limits: Limits) -> ChatRequest:
    """The request in this body. Raises :class:`ApiError` if something is wrong with it."""
    sent = options_in(body, USED, NEUTRAL, f'with at least "model" and "messages": [{_USER}]')
    return checked(sent, model, limits)


def options_in(
    body: Any, used: Collection[str], neutral: Mapping[str, Any], advice: str
) -> dict[str, Any]:
    """The options in a body that are not null. Other names than those that are ``used`` or ignored
    are refused, and so are other values than ``neutral`` ones."""
    if not isinstance(body, dict):
        raise invalid(f"the body must be a JSON object, got {body!r:.80}", advice)
    sent = {name: value for name, value in body.items() if value is not None}
    for name, value in sent.items():
        if name not in IGNORED and name not in used and name not in neutral:
            advice = meant(name, used, f"the options are {', '.join(sorted(used))}")
            raise invalid(
                f"there is no option {name!r:.80}",
                advice,
                param=f"{name:.80}",
                code="unknown_parameter",
            )
        if value != neutral.get(name, value):
            message = f"{name} is not supported, got {value!r:.80}"
            raise invalid(
                message,
                f"leave it out, or send {json.dumps(neutral[name])}",
                param=name,
                code="unsupported_parameter",
            )
    _refuse_many(sent)
    return sent


def checked(
    sent: dict[str, Any], model: str, limits: Limits, places: Sequence[str] = ()
) -> ChatRequest:
    """The request with these options of a chat completion. ``places``: where errors say that each
    message is."""
    refuse_other_model(sent.get("model"), model)
    try:
        fields = _Fields.model_validate(sent)
    except ValidationError as error:
        name = str(error.errors()[0]["loc"][0])
        advice = f"for example [{_USER}]" if name == "messages" else "leave it out"
        raise invalid(
            f"{name} cannot be {sent.get(name)!r:.80}: {_reason(error)}", advice, param=name
        ) from None
    places = places or [f"messages[{index}]" for index in range(len(fields.messages))]
    messages = [_message(*item) for item in zip(fields.messages, places, strict=True)]
    usage = fields.stream_options.get("include_usage", False)
    return ChatRequest(messages, _options(sent, limits), fields.stream, usage)


def refuse_other_model(name: Any, model: str) -> None:
    if name == model:
        return
    if name is None:
        status, reason = 400, "model is missing"
    else:
        status, reason = 404, f"there is no model {name!r:.80}"
    message = f"{reason}\n-> the model is {model!r}; GET /v1/models lists it"
    raise ApiError(status, message, code="model_not_found", param="model")


def _refuse_many(sent: dict[str, Any]) -> None:
    """Refuse a request with so many parts that reading it would take long."""
    for name, value in sent.items():
        if name in IGNORED or not isinstance(value, list | dict):
            continue
        is_conversation = name in ("messages", "input")
        count = _parts_in(value) if is_conversation else len(value)
        if count > MAX_PARTS:
            what, advice = "items", "send fewer items"
            if is_conversation:
                what = "messages, parts and tool calls together"
                advice = "shorten the conversation"
            raise invalid(
                f"{name}: {count:,} {what}; the limit is {MAX_PARTS:,}",
                advice,
                param=name,
                code="too_many_items",
            )


def _parts_in(messages: list[Any] | dict[str, Any]) -> int:
    """How many messages, parts of messages and tool calls these are."""
    count = len(messages)
    for message in messages:
        if isinstance(message, dict):
            fields = (message.get(name) for name in ("content", "tool_calls", "output"))
            count += sum(len(field) for field in fields if isinstance(field, list))
    return count


def _message(message: Any, where: str) -> BaseMessage:
    """LangChain's message. The chat model validates its content."""
    role = message.get("role") if isinstance(message, dict) else None
    if role not in list(MESSAGES):
        raise invalid(
            f"{where} needs a role, one of {', '.join(MESSAGES)}; got {message!r:.80}",
            EXAMPLE,
            param=where,
        )
    fields = {
        name: message[name]
        for name in ("content", "name", "tool_call_id")
        if message.get(name) is not None
    }
    if isinstance(fields.get("content"), list):
        fields["content"] = [_part(part, where) for part in fields["content"]]
    try:
        calls = [_call(call) for call in message.get("tool_calls") or ()]
        if role == "assistant" and calls:
            valid = [call for call in calls if call["type"] == "tool_call"]
            broken = [call for call in calls if call not in valid]
            fields = {"content": "", **fields, "tool_calls": valid, "invalid_tool_calls": broken}
        return MESSAGES[role](**fields)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise invalid(
            f"{where} cannot be {message!r:.80}: {_reason(error):.200}", EXAMPLE, param=where
        ) from None


def _part(part: Any, where: str) -> Any:
    """A part of a message: an image as LangChain's standard block, text as it is."""
    kind = part.get("type") if isinstance(part, dict) else "text"
    if kind in ("text", "refusal"):
        return part
    if kind != "image_url":
        message = f"{where} has a part of type {kind!r:.80}; the endpoint takes text and images"
        raise invalid(message, "describe files and sounds in words", param=where)
    image = part.get("image_url")
    fields = dict(image) if isinstance(image, dict) else {"url": image}
    url = fields.pop("url", None)
    block: dict[str, Any] = {"type": "image", "extras": fields} if fields else {"type": "image"}
    if isinstance(url, str) and url.startswith("https://"):
        return {**block, "url": url}
    mime_type, _, data = str(url).removeprefix("data:").partition(";base64,")
    if mime_type.startswith("image/") and _is_image(data):
        return {**block, "base64": data, "mime_type": mime_type}
    raise invalid(
        f"{where} has an image that is neither data nor an https address",
        "send 'data:image/png;base64,...' (or jpeg, gif, webp), or 'https://...'",
        param=where,
    )


def _is_image(data: str) -> bool:
    """Whether this is an image in base64. Otherwise it may be a path: ChatOllama's client reads the
    file at a path that it gets as data."""
    try:
        return base64.b64decode(data, validate=True).startswith(IMAGES)
    except ValueError:
        return False


def _call(tool_call: Any) -> dict[str, Any]:
    """LangChain's tool call. If its arguments are not a JSON object, it becomes an invalid tool
    call, because the model did make it."""
    text = tool_call["function"].get("arguments") or "{}"
    call = {"name": tool_call["function"]["name"], "id": tool_call.get("id", "")}
    try:
        arguments = read_json(text)
    except (ValueError, RecursionError):
        arguments = None
    if isinstance(arguments, dict):
        return {**call, "args": arguments, "type": "tool_call"}
    return {**call, "args": text, "error": None, "type": "invalid_tool_call"}


def _reason(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        if first["loc"]:
            return f"{first['loc'][0]}: {first['msg']}"
    return repr(error)


def _options(sent: dict[str, Any], limits: Limits) -> dict[str, Any]:
    options = {name: sent[name] for name in OPTIONS if name in sent}
    size = len(json.dumps({name: options[name] for name in FORMATS if name in options}))
    if size > MAX_FORMAT_BYTES:
        message = f"tools and formats take {size} bytes as JSON; the limit is {MAX_FORMAT_BYTES}"
        raise invalid(message, "send fewer tools, or a smaller schema", code="shape_too_large")
    _add_parameters(options.get("tools"))
    names = [name for name in BUDGETS if name in sent]
    if not names:
        return options
    name = names[0]
    budget = sent[name]
    if sent.get("max_tokens", budget) != budget:
        raise invalid(f"max_tokens and {name} differ", "leave max_tokens out", param="max_tokens")
    if isinstance(budget, int) and budget > limits.max_answer_tokens:
        message = f"{name} is {budget}; the limit is {limits.max_answer_tokens}"
        raise invalid(message, "ask for less", param=name)
    options["max_tokens"] = budget
    return options


def _add_parameters(tools: Any) -> None:
    """Add empty parameters to the tools that have none, as OpenAI allows."""
    if not isinstance(tools, list):
        return
    for tool in tools:
        if isinstance(tool, dict) and isinstance(tool.get("function"), dict):
            tool["function"].setdefault("parameters", {"type": "object", "properties": {}})
