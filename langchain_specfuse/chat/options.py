"""Options, defined once: the chat model's fields, the options of a call, the command's flags and
the tables in the docs are all made from the classes below. The options of the method itself are in
``core.options``; the time limits are explained in ``docs/how-to/timeouts-and-load.md``.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, Field, SkipValidation, TypeAdapter, ValidationError

from ..core.options import METHODS, Method, Settings
from ..core.results import RESULTS
from ..errors import UsageError, advised, meant
from ..secret_values import masked
from .calibration import calibrated
from .functions import function_id
from .members import check_prices, checked_member, names_of
from .report import Depth

log = logging.getLogger("langchain_specfuse")

Count: TypeAlias = Annotated[int, Field(strict=True, ge=1)]
Positive: TypeAlias = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
Nonnegative: TypeAlias = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
Share: TypeAlias = Annotated[float, Field(strict=True, gt=0, le=1)]


class CallOptions(BaseModel):
    """Chosen when the chat model is made, or for one call: ``llm.invoke(question,
    temperature=0.7)``."""

    members: list[Any] = Field(
        description="the models that write: hub ids, folders, .gguf files, base+adapter, servers' "
        "addresses, names such as 'openai:gpt-4.1-mini', chat models, dicts of arguments, or "
        "member objects"
    )
    verifiers: list[Any] = Field(
        default_factory=list, description="members that vote but never write"
    )
    model_name: str | None = Field(
        None, description="the name in traces and metadata (default: the members' names)"
    )
    segment_tokens: Count = Field(10, description="length of a draft in its author's tokens")
    segment: Literal["draft", "answer"] = Field(
        "draft",
        description="what is agreed at a time: a draft of segment_tokens, or a whole answer "
        "(nothing streams)",
    )
    result: str | SkipValidation[Callable[[str], Any]] | None = Field(
        None,
        description="with segment='answer': what answers are compared by: number, choice, json, "
        "text, or a function of "
        "the text (default: by the object, choice or call that was asked for)",
    )
    samples: Count = Field(
        1,
        le=100,
        description="with segment='answer': answers per member, the second and further sampled",
    )
    max_tokens: Count = Field(512, description="budget of the answer in tokens")
    stop: list[str] | None = Field(
        None, description="texts that end the answer and are not part of it"
    )
    temperature: Nonnegative = Field(0.0, description="0 is greedy and repeatable")
    top_p: Share | None = Field(
        None, description="sample from the most probable tokens that together reach this mass"
    )
    top_k: Count | None = Field(None, description="sample from this many tokens")
    min_p: Annotated[float, Field(strict=True, ge=0, le=1)] | None = Field(
        None, description="leave out tokens below this share of the most probable one"
    )
    repetition_penalty: Positive | None = Field(
        None,
        description="above 1, tokens that occurred become less probable (default: each member's "
        "own setting)",
    )
    seed: Annotated[int, Field(strict=True)] | None = Field(
        None, description="makes sampling repeatable (default: a new one for each call)"
    )
    method: Annotated[Method, SkipValidation] = Field(
        METHODS["robust"],
        description="robust, specfuse, specem, or a Method with options of its own",
    )
    lead: str | None = Field(
        "auto",
        description="the member whose draft stands unless another is better; auto: the one with at "
        "least twice the "
        "parameters of every other, if there is one; None: all vote",
    )
    prior: dict[str, float] | None = Field(
        None, description="initial voting weights by member name (1 for members that are not named)"
    )
    timeout: Positive | None = Field(
        None, description="seconds for a whole answer, not counting loading"
    )
    member_timeout: Positive | None = Field(
        None,
        description="seconds for one reply of one member; a member that takes longer leaves the "
        "answer",
    )
    max_concurrency: Count = Field(
        256, description="answers under way at once on these members; others wait"
    )
    trace: Depth = Field(
        "rounds",
        description="depth of traces: off, summary, rounds, or members (each draft and scoring "
        "too)",
    )
    max_calls: Count | None = Field(
        None,
        description="start no request to chat models once an answer has made this many (default: "
        "no limit)",
    )
    max_cost: Positive | None = Field(
        None,
        description="start no request to chat models once an answer has cost this many dollars; "
        "each needs a price",
    )
    refusals: Literal["outvoted", "any"] = Field(
        "outvoted",
        description="when the answer is a refusal: outvoted: only if no member drafts and at least "
        "one refuses; any: as soon as one refuses",
    )
    reasoning: Annotated[bool, Field(strict=True)] = Field(
        False,
        description="show the reasoning of the member whose draft is agreed first, before the "
        "answer",
    )
    logprobs: Annotated[bool, Field(strict=True)] = Field(
        False,
        description="add the log-probabilities of the answer's tokens to response_metadata",
    )


class Options(CallOptions):
    """The fields of the chat model that are not LangChain's."""

    calibration: str | None = Field(
        None,
        description="file of doctor --profile: which member leads, and how the others take part",
    )
    streaming: Annotated[bool, Field(strict=True)] | None = Field(
        None,
        description="LangChain's switch: True streams inside invoke as well, False never streams",
    )


CALL_ONLY: Mapping[str, str] = {
    "max_waiting": "refuse the call with BusyError if this many answers are waiting already",
    **dict.fromkeys(("tools", "tool_choice", "parallel_tool_calls", "strict"), "see bind_tools"),
    **dict.fromkeys(
        ("response_format", "regex", "choice", "grammar"), "what the answer must look like"
    ),
}
"""Options of a call that are not fields of the chat model."""
_INTERNAL = frozenset({"ls_structured_output_format", "structured_output_format", "stream"})
"""LangChain may leave these in a call."""
_LANGCHAIN = frozenset({"output_version", "disable_streaming", "cache", "verbose", "rate_limiter"})

_MEMBERS_OWN = "set it on a member that is a chat model: members=[ChatOpenAI(..., {}=...)]"
NOT_SUPPORTED: Mapping[str, tuple[Any, str]] = {
    "n": (
        1,
        "llm.batch([question] * 3); to agree on one of several: segment='answer', samples=3, "
        "result='number' ('choice', 'json' or 'text' for other answers)",
    ),
    "stream_usage": (True, "leave it out: every stream ends with its usage"),
    "top_logprobs": (
        0,
        "logprobs=True has the answer's tokens; the event specfuse_round has the drafts that lost",
    ),
    **dict.fromkeys(
        ("frequency_penalty", "presence_penalty"),
        (0, "repetition_penalty=1.1; a draft that only repeats the answer cannot win anyway"),
    ),
    "logit_bias": (
        {},
        "tokens differ between members; choice=, regex= or grammar= constrain the text",
    ),
    "store": (False, "to store answers, use a cache or a tracer"),
    "modalities": (["text"], "answers are text"),
    "reasoning_effort": (None, _MEMBERS_OWN.format("reasoning_effort")),
    "verbosity": (None, _MEMBERS_OWN.format("verbosity")),
    "service_tier": (None, _MEMBERS_OWN.format("service_tier")),
}
"""Options of other chat models: the neutral value, which is accepted, and what to use instead of
any other value."""

_RENAMED: Mapping[str, str] = {
    **{name: f"method=Method({name}=...)" for name in Method.model_fields},
    **dict.fromkeys(
        ("max_rounds", "max_new_tokens", "max_completion_tokens", "max_length", "num_predict"),
        "max_tokens=...",
    ),
    "models": "members=[...]",
    "repeat_penalty": "repetition_penalty=...",
    "request_timeout": "timeout=...",
    **dict.fromkeys(("base_url", "openai_api_base"), 'members=["http://host:8000/v1#model"]'),
    "functions": "tools=[...]",
    "function_call": "tool_choice=...",
    "format": "response_format={'type': 'json_object'} in a call, or "
    "llm.with_structured_output(schema)",
}
"""Names of other packages, and their names here."""
_ELSEWHERE: Mapping[str, str] = {
    **dict.fromkeys(
        ("model_kwargs", "extra_body", "default_headers", "keep_alive", "num_ctx", "num_gpu"),
        "set it on the member: members=[ChatOpenAI(...)], [ChatOllama(...)] or "
        "[LlamaCppMember(...)]",
    ),
    **dict.fromkeys(
        ("openai_api_key", "organization", "openai_organization"),
        "set it on the member: members=[ChatOpenAI(...)]; a server's key is in the environment "
        "variable SPECFUSE_API_KEY",
    ),
    "user": "put it into the trace: llm.invoke(question, {'metadata': {'user': ...}})",
}
"""Options of other packages that have no counterpart here, and what to do instead."""
_IGNORED: Mapping[str, str] = {
    "max_retries": "nothing is retried: a failed member leaves, the others finish. "
    "llm.with_retry() repeats answers",
    "api_key": "members in this process need no key; a server's is in the environment variable "
    "SPECFUSE_API_KEY",
}
"""LangChain's standard tests make every chat model with these."""


# --- checks ---------------------------------------------------------------------------------------


def checked(given: Mapping[str, Any], known: Iterable[str]) -> dict[str, Any]:
    """Validate and normalise options. None means "not given", except in ``lead=None``: no member
    leads."""
    given = {
        "stop" if name == "stop_sequences" else name: one
        for name, one in given.items()
        if one is not None or name == "lead"
    }
    for name in given.keys() & NOT_SUPPORTED.keys():
        neutral, instead = NOT_SUPPORTED[name]
        value = given.pop(name)
        if value != neutral:
            raise advised(UsageError(f"{name} is not supported, got {value!r:.80}"), instead)
    if "model" in given:
        given = _with_model(given)
    known = set(known)
    return {name: _checked_one(name, value, known) for name, value in given.items()}


def of_model(given: Mapping[str, Any], known: Iterable[str]) -> dict[str, Any]:
    """The fields with which a chat model is made, checked."""
    for name in given.keys() & _IGNORED.keys():
        log.warning("%s is ignored: %s", name, _IGNORED[name])
    chosen = checked({name: value for name, value in given.items() if name not in _IGNORED}, known)
    check_names(chosen)
    if chosen.get("calibration"):  # read now, so that a wrong file is refused at once
        calibrated(defaults() | chosen, names_of(chosen["members"]))
    return chosen


def of_call(fields: Mapping[str, Any], call: Mapping[str, Any]) -> dict[str, Any]:
    """The options of one call: those given with it over the chat model's fields, all checked.

    Fields are checked again because they can be assigned after the chat model was made.
    """
    own = {name: value for name, value in call.items() if name not in _INTERNAL}
    chosen = defaults() | checked(fields, Options.model_fields)
    chosen |= checked(own, {*CallOptions.model_fields, *CALL_ONLY})
    # of the members, not of one model that is asked instead
    if chosen["calibration"] and "model" not in own:
        members = members_list(chosen.get("members"), "members")
        chosen = calibrated(chosen, names_of(members))
    by_name = chosen["prior"] is not None or chosen["lead"] not in ("auto", None)
    if by_name or chosen["max_cost"] is not None or "members" not in chosen:
        check_names(chosen)
    return chosen


def check_names(chosen: Mapping[str, Any]) -> None:
    """Refuse missing members, two of one name, a prior or a lead that is not there, and costs
    without prices."""
    if chosen.get("members") is None and chosen.get("model_name") is not None:
        error = UsageError(f"model_name={chosen['model_name']!r:.200} is given, but no members are")
        raise advised(
            error, "name the models in members=[...]; model_name is only the label in traces"
        )
    members = members_list(chosen.get("members"), "members")
    everybody = [*members, *(chosen.get("verifiers") or ())]
    names = names_of(everybody)
    if chosen.get("max_cost") is not None:
        check_prices(everybody, names)
    if chosen.get("prior") is not None:
        checked_prior(chosen["prior"], names)
    checked_lead(chosen.get("lead"), names[: len(members)], chosen.get("method"))


def _checked_one(name: str, value: Any, known: set[str]) -> Any:
    if name not in known:
        raise _unknown(name, known)
    if name in _CHECKS:
        return _CHECKS[name](value)
    value = os.fspath(value) if isinstance(value, os.PathLike) else value
    adapter = _ADAPTERS.get(name)
    try:
        return value if adapter is None else adapter.validate_python(value)
    except ValidationError as error:
        expected = error.errors()[0]["msg"].replace("Input should", "must", 1)
        wrong = UsageError(f"{name} {expected}, got {masked(value)!r:.200}")
        field = Options.model_fields.get(name)
        raise advised(
            wrong, f"{name}: {field.description if field else CALL_ONLY[name]}"
        ) from error


def _with_model(given: Mapping[str, Any]) -> dict[str, Any]:
    """``model=`` as in other chat models: the only member."""
    if "members" in given:
        error = UsageError("model and members are both given")
        raise advised(error, "model= is short for one member; the label in traces is model_name=")
    model = given["model"]
    label = {"model_name": model} if isinstance(model, str) and "model_name" not in given else {}
    return {
        "lead": "auto",
        **{name: given[name] for name in given if name != "model"},
        "members": [model],
        **label,
    }


def _unknown(name: str, known: Iterable[str]) -> UsageError:
    error = UsageError(f"there is no option {name!r}")
    if name in _LANGCHAIN or name in Options.model_fields:
        error = UsageError(f"{name} is chosen when the chat model is made, not for one call")
        return advised(
            error,
            f"SpecFuseChatModel(..., {name}=...), or another chat model: they share their members",
        )
    if name in _RENAMED:
        return advised(error, f"use {_RENAMED[name]}")
    if name in _ELSEWHERE:
        return advised(error, _ELSEWHERE[name])
    if name in _IGNORED:
        return advised(error, _IGNORED[name])
    if name in CALL_ONLY:
        error = UsageError(f"{name} is chosen for a call, not when the chat model is made")
        return advised(
            error, "llm.bind_tools([...])" if name == "tools" else f"llm.bind({name}=...)"
        )
    return advised(error, meant(name, sorted(known), f"the options are {', '.join(sorted(known))}"))


def as_method(given: Any) -> Method:
    """A method by name, as an object, or as a dict of its options (with ``name`` for the method
    that it changes)."""
    if isinstance(given, Method):
        return given
    if isinstance(given, str):
        return Method.named(given)
    if isinstance(given, Mapping):
        return Method.named(**{"name": "robust", **given})
    error = UsageError(
        f"method must be one of {', '.join(map(repr, METHODS))} or a Method, got {given!r:.80}"
    )
    raise advised(error, "for example Method(exit='never')")


def members_list(given: Any, field: str) -> list[Any]:
    """The members of a list, each checked as far as possible without loading it."""
    expected = (
        f"{field} must be a list of hub ids, folders, .gguf files, servers' addresses, names such "
        "as 'openai:gpt-4.1-mini', chat models, dicts or member objects"
    )
    if not isinstance(given, list | tuple):
        advice = (
            "name one, for example members=['model.gguf']"
            if given is None
            else f"put it into a list: {field}=[...]"
        )
        raise advised(UsageError(f"{expected}, got {masked(given)!r:.200}"), advice)
    if not given and field == "members":
        raise advised(
            UsageError(f"{expected}, at least one; got none"),
            "name one, for example 'Qwen/Qwen3-0.6B'",
        )
    return [checked_member(one) for one in given]


def stop_strings(given: Any) -> list[str]:
    """One stop string or several, as a list."""
    strings = [given] if isinstance(given, str) else given
    if not isinstance(strings, list | tuple) or not all(isinstance(one, str) for one in strings):
        error = UsageError(f"stop must be a text or a list of texts, got {given!r:.200}")
        raise advised(error, "for example stop=['\\n\\n', 'Question:']")
    if "" in strings:
        raise advised(
            UsageError(f"a stop string must not be empty, got stop={given!r}"), "leave it out"
        )
    return list(dict.fromkeys(strings))


def checked_prior(prior: Any, names: Iterable[str]) -> dict[str, float]:
    """Initial voting weights by member name."""
    names = list(names)
    expected = f"a dict of member names ({', '.join(names)}) and numbers above 0"
    if not isinstance(prior, Mapping):
        raise advised(
            UsageError(f"prior must be {expected}, got {prior!r:.200}"),
            "leave it out for equal weights",
        )
    for name, weight in prior.items():
        if name not in names:
            advice = meant(name, names, f"the members are {', '.join(names)}", cutoff=0.5)
            raise advised(
                UsageError(f"prior names {name!r}, which is not a member; it must be {expected}"),
                advice,
            )
        if (
            isinstance(weight, bool)
            or not isinstance(weight, int | float)
            or not 0 < weight < float("inf")
        ):
            error = UsageError(f"prior of {name!r} must be a number above 0, got {weight!r:.80}")
            raise advised(
                error, "to keep a member from writing, put it in verifiers= or leave it out"
            )
    return dict(prior)


def checked_lead(lead: str | None, writers: Sequence[str], method: Method | None = None) -> None:
    """Refuse a lead that does not write, and one beside a method in which nobody leads."""
    if lead in ("auto", None):
        return
    if lead not in writers:
        advice = "name a member that writes, or use 'auto', or None if all should vote"
        advice = meant(lead, writers, advice, cutoff=0.5)
        raise advised(
            UsageError(f"lead must be one of {', '.join(writers)}, got {lead!r:.80}"), advice
        )
    if method is not None and method.margin is None:
        error = UsageError(
            f"lead={lead!r}, but no member leads with this method, because its margin is None"
        )
        raise advised(
            error, "leave lead out, or give the method a margin: Method.named('specem', margin=1.0)"
        )


def as_result(given: Any) -> Any:
    """What answers are compared by."""
    if callable(given):
        function_id(given)  # reads its file now, because questions may come on an event loop
        return given
    if given in RESULTS:
        return given
    error = UsageError(
        f"result must be one of {', '.join(map(repr, RESULTS))} or a function, got {given!r:.80}"
    )
    raise advised(error, "a function takes an answer's text and returns its result, or None")


_CHECKS: Mapping[str, Callable[[Any], Any]] = {
    "result": as_result,
    "members": lambda given: members_list(given, "members"),
    "verifiers": lambda given: members_list(given, "verifiers"),
    "method": as_method,
    "stop": stop_strings,
    # These need the members' names: see check_names.
    "prior": lambda given: given,
    "lead": lambda given: given,
}
_ADAPTERS: dict[str, TypeAdapter[Any]] = {
    "max_waiting": TypeAdapter(Annotated[int, Field(strict=True, ge=0)])
}
for _name, _field in Options.model_fields.items():
    _type: Any = _field.annotation
    _ADAPTERS[_name] = TypeAdapter(
        Annotated[(_type, *_field.metadata)] if _field.metadata else _type
    )


def refuse_broken(text: str) -> None:
    """Bytes that are not UTF-8 arrive as lone surrogates, which no tokenizer accepts."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        broken = UsageError(
            f"the text is not valid UTF-8 at character {error.start + 1}: {text[:80]!r}"
        )
        raise advised(broken, "convert it to UTF-8") from error


# --- what the engine needs ------------------------------------------------------------------------

_DEFAULTS = {
    name: field.get_default(call_default_factory=True)
    for name, field in Options.model_fields.items()
    if not field.is_required()
}


def defaults() -> dict[str, Any]:
    """Every option but ``members`` with its default."""
    return dict(_DEFAULTS)


def settings(chosen: Mapping[str, Any]) -> Settings:
    """What the loop needs to know about an answer with these options."""
    seed = chosen["seed"]
    if seed is None:  # a new one for each call; greedy answers need none
        seed = secrets.randbelow(2**31) if chosen["temperature"] else 0
    known = Settings.model_fields.keys() & chosen.keys()
    return Settings(**{**{name: chosen[name] for name in known}, "seed": int(seed)})
