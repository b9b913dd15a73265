"""What a client asks for: the body of a request, read strictly and put into the chat model's options.

Only what is named here gets through: a client chooses how its answer is drawn and shaped, never who answers. An option
that would change the answer and cannot be kept is refused, not ignored. Values are the chat model's to check.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import BaseMessage

from .faults import Fault, refusal
from .limits import Limits
from .messages import messages_of

SHAPES = ("tools", "tool_choice", "parallel_tool_calls", "response_format", "regex", "choice", "grammar")
PASSED = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed", "stop", *SHAPES)
"""What the chat model takes by the same name."""
BUDGETS = ("max_tokens", "max_completion_tokens")
OWN = ("model", "messages", "stream", "stream_options", *BUDGETS)
_CACHING = ("prompt_cache_key", "prompt_cache_retention", "prediction")
IGNORED = frozenset(("user", "metadata", "service_tier", "safety_identifier", *_CACHING))
"""What says nothing about the answer."""
NEUTRAL: Mapping[str, tuple[Any, str]] = {
    "n": (1, "ask several times: questions at once are one batch"),
    "logprobs": (False, "members have different tokens, so there are none to tell; see the field specfuse"),
    "top_logprobs": (0, "members have different tokens, so there are none to tell; see the field specfuse"),
    "presence_penalty": (0, "repetition_penalty is what members know"),
    "frequency_penalty": (0, "repetition_penalty is what members know"),
    "logit_bias": ({}, "members have different tokens; regex, choice and grammar say what an answer looks like"),
    "modalities": (["text"], "members write text only"),
    "store": (False, "nothing is kept here"),
    "functions": ([], "say it with tools"),
    "function_call": ("none", "say it with tool_choice"),
}
"""What can be said if it asks for nothing: its value then, and what to do otherwise."""
KNOWN = frozenset((*OWN, *PASSED, *IGNORED, *NEUTRAL))
MOST_STOPS = 16
_SEEDS = 2**63


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be answered, and how it is to be told."""

    messages: list[BaseMessage]
    options: dict[str, Any]
    """Of the chat model, for this call."""
    streamed: bool = False
    with_usage: bool = False

    @classmethod
    def of(cls, body: Any, model: str, limits: Limits) -> Order:
        """The order that this body is, or a fault that says what is wrong with it."""
        if not isinstance(body, dict):
            raise refusal(f"the body must be a JSON object, got {body!r:.80}", 'at least "model" and "messages"')
        given = {name: value for name, value in body.items() if value is not None}
        _refuse_unknown(given)
        refuse_other_model(given.get("model"), model)
        streamed = _flag(given, "stream")
        return cls(messages_of(given.get("messages")), _options(given, limits), streamed, _wants_usage(given, streamed))


def refuse_other_model(asked: Any, model: str) -> None:
    """There is one model behind a door."""
    if asked != model:
        what = f"there is no model {asked!r:.80}" if asked is not None else "model is missing"
        missing = f"{what}; there is {model!r}\n-> name this one, GET /v1/models lists it"
        raise Fault(404 if asked is not None else 400, missing, code="model_not_found", param="model")


def _refuse_unknown(given: Mapping[str, Any]) -> None:
    for name, value in given.items():
        if name not in KNOWN:
            near = difflib.get_close_matches(name, KNOWN, n=1, cutoff=0.7)
            advice = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted((*OWN, *PASSED)))}"
            raise refusal(f"there is no option {name!r:.80}", advice, param=f"{name:.80}", code="unknown_parameter")
        if name in NEUTRAL and value != NEUTRAL[name][0]:
            neutral, advice = NEUTRAL[name]
            what = f"{name} is not supported, got {value!r:.80}, wanted {neutral!r} or nothing"
            raise refusal(what, advice, param=name, code="unsupported_parameter")


def _options(given: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
    options = {name: given[name] for name in PASSED if name in given}
    shapes = {name: options[name] for name in SHAPES if name in options}
    size = len(json.dumps(shapes))
    if size > limits.most_shape_bytes:
        what = f"tools and shapes take {size} bytes as JSON, at most {limits.most_shape_bytes} are read"
        raise refusal(what, "send fewer tools, or a smaller schema", code="shape_too_large")
    _refuse_forms(options)
    seed = options.get("seed", 0)
    if isinstance(seed, int) and not -_SEEDS <= seed < _SEEDS:
        raise refusal(f"seed must fit into 64 bits, got {seed!r:.80}", "send a smaller one", param="seed")
    if "tools" in options:
        options["tools"] = _tools(options["tools"])
    return {**options, **_budget(given, limits)}


def _refuse_forms(options: Mapping[str, Any]) -> None:
    """What the chat model takes, or tells, in other forms than OpenAI's clients know."""
    stop = options.get("stop")
    if isinstance(stop, list) and len(stop) > MOST_STOPS:
        raise refusal(f"stop has {len(stop)} texts, at most {MOST_STOPS} are looked for", "send fewer", param="stop")
    if stop == "" or (isinstance(stop, list) and "" in stop):
        raise refusal(f"stop must hold no empty text, got {stop!r:.80}", "leave it out", param="stop")
    shape = options.get("response_format", {})
    if not isinstance(shape, dict):
        what = f"response_format must be an object, got {shape!r:.80}"
        raise refusal(what, 'for example {"type": "json_object"}', param="response_format")
    choice = options.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") in ("allowed_tools", "custom"):
        what = f"tool_choice of the type {choice['type']!r} is not supported"
        advice = 'send the tools that are allowed as tools, and tool_choice as "auto", "required" or a function'
        raise refusal(what, advice, param="tool_choice", code="unsupported_parameter")


def _budget(given: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
    named = [name for name in BUDGETS if name in given]
    if not named:
        return {}
    budget = given[named[-1]]
    if len(named) > 1 and given[named[0]] != budget:
        raise refusal(f"{named[0]} and {named[1]} differ", f"leave {named[0]} out", param=named[0])
    if isinstance(budget, int) and budget > limits.most_tokens:
        what = f"{named[-1]} is {budget!r:.80}, at most {limits.most_tokens} are written here"
        raise refusal(what, "ask for less", param=named[-1])
    return {"max_tokens": budget}


def _tools(given: Any) -> Any:
    """The same tools; one that says nothing of its parameters takes none."""
    return [_tool(one) for one in given] if isinstance(given, list) else given


def _tool(given: Any) -> Any:
    function = given.get("function") if isinstance(given, dict) else None
    if not isinstance(function, dict) or function.get("parameters") is not None:
        return given
    return {**given, "function": {**function, "parameters": {"type": "object", "properties": {}}}}


def _flag(given: Mapping[str, Any], name: str) -> bool:
    value = given.get(name, False)
    if not isinstance(value, bool):
        raise refusal(f"{name} must be true or false, got {value!r:.80}", "leave it out for false", param=name)
    return value


def _wants_usage(given: Mapping[str, Any], streamed: bool) -> bool:
    options = given.get("stream_options")
    if options is None:
        return False
    if not streamed or not isinstance(options, dict):
        what = f"stream_options must be an object, and only with stream, got {options!r:.80}"
        raise refusal(what, "leave it out", param="stream_options")
    unknown = options.keys() - {"include_usage", "include_obfuscation"}
    if unknown:
        what = f"there is no stream option {min(unknown)!r:.80}"
        raise refusal(what, "there is include_usage", param="stream_options", code="unknown_parameter")
    return _flag({name: value for name, value in options.items() if value is not None}, "include_usage")
