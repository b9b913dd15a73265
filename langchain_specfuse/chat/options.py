"""The options of the chat model and of one call: pydantic fields, validated in one place.

``core.options`` has the options that the loop and the engine read; this module adds those that only
the chat model reads, and the names that other packages have for the same things.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from langchain_core.language_models import BaseChatModel
from pydantic import Field, PrivateAttr, field_validator, model_validator

from ..core.checks import Check
from ..core.options import Flag, Method, ModelSettings, Settings
from ..core.values import Turn
from ..errors import UsageError, advised, meant
from ..removed import REMOVED, removed
from .calibration import calibration_for, lead_id_of
from .functions import function_id
from .references import check_prices, has_chat_model, members_list, names_of
from .routing import Routing

log = logging.getLogger("langchain_specfuse")


class Options(ModelSettings):
    """The fields of the chat model that are not LangChain's."""

    members: list[Any] = Field(
        description="the models that write: hub ids, folders, .gguf files, base+adapter, "
        "servers' addresses, names such as 'hf:user/model', 'vllm:org/model' and "
        "'openai:gpt-4.1-mini', chat models, or member objects"
    )
    model_name: str | None = Field(
        default=None, description="the name in traces and metadata (default: the members' names)"
    )
    trace: Literal["off", "rounds"] = Field(
        default="rounds",
        description="what tracers get: off (the chat model's run alone), or rounds (a child run "
        "for each, and a summary)",
    )
    calibration: str | None = Field(
        default=None,
        description="file that doctor --calibration wrote: which member leads which questions, and "
        "how the others take part",
    )

    # Validators are methods, not functions in ``Annotated``: pydantic keeps such a function of this
    # module alive, and on Python 3.13 nothing is freed at the end of the process then, so an
    # unfinished stream would not be reported.

    @model_validator(mode="before")
    @classmethod
    def _name_lead(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """``lead`` may be a member itself. Its name takes its place."""
        lead = fields.get("lead")
        if lead is None or isinstance(lead, str):
            return fields
        members = members_list(fields.get("members"), "members")
        names = names_of(members)
        for member, name in zip(members, names, strict=True):
            if member is lead:
                return {**fields, "lead": name}
        error = UsageError(
            f"lead must be one of {', '.join(names)}, or the member itself, got {lead!r:.80}"
        )
        raise advised(error, "list it in members= too, or name a member that is there")

    @field_validator("members", mode="before")
    @classmethod
    def _check_members(cls, members: Any) -> list[Any]:
        return members_list(members, "members")

    @field_validator("method")
    @classmethod
    def _check_method(cls, method: Method) -> Method:
        """Reads the file of a function now, because questions may be asked on an event loop."""
        if callable(method.result):
            function_id(method.result)
        return method.model_copy(update={"verifiers": members_list(method.verifiers, "verifiers")})

    @field_validator("trace", mode="before")
    @classmethod
    def _refuse_depths(cls, trace: Any) -> Any:
        if trace in ("summary", "members"):
            raise removed(f'trace="{trace}"')
        return trace

    @field_validator("model_name", "calibration", mode="before")
    @classmethod
    def _path_as_text(cls, path: Any) -> Any:
        return os.fspath(path) if isinstance(path, os.PathLike) else path

    @field_validator("checks")
    @classmethod
    def _read_functions(cls, checks: list[Check]) -> list[Check]:
        """Read the files of checks now, for the same reason."""
        for check in checks:
            if not check.identity:
                function_id(check.function)
        return checks

    @property
    def names(self) -> list[str]:
        """The names of all members and verifiers."""
        return names_of([*self.members, *self.method.verifiers])


NOT_FOR_A_CALL = ("calibration",)
"""Options that are chosen when the chat model is made, not for one call."""


class Call(Options, Settings):
    """One call: the chat model's fields, with the options that were given for this call over them.

    Everything that reads an option of a call reads it here.
    """

    tools: Any = Field(
        default=None, description="functions that the answer may call; see bind_tools"
    )
    tool_choice: Any = Field(default=None, description="'auto', 'any', 'none' or a tool's name")
    parallel_tool_calls: Flag | None = Field(
        default=None,
        description="whether the answer may be several calls; None: if no call is forced",
    )
    strict: Flag | None = Field(
        default=None,
        description="passed on to LangChain's reading of tools and schemas. Grammars enforce "
        "schemas with and without it",
    )
    response_format: Any = Field(
        default=None,
        description="the format of the answer: a JSON schema, a class, or a dict like OpenAI's",
    )
    regex: Annotated[str, Field(min_length=1)] | None = Field(
        default=None, description="the whole answer matches this, for example '[0-9]{4}'"
    )
    choice: (
        Annotated[
            list[Annotated[str, Field(min_length=1)]],
            Field(strict=True, min_length=1),
        ]
        | None
    ) = Field(
        default=None, description="the answer is one of these texts, for example ['yes', 'no']"
    )
    grammar: Annotated[str, Field(min_length=1)] | None = Field(
        default=None, description="the answer follows this grammar, for example 'root ::= \"x\"'"
    )

    _has_calibrated_result: bool = PrivateAttr(default=False)
    _further: dict[str, Any] = PrivateAttr(default_factory=dict)

    @field_validator("choice", mode="before")
    @classmethod
    def _choice_as_list(cls, choice: Any) -> Any:
        """A tuple as a list. A set has no order, and an iterator can be read only once."""
        return list(choice) if isinstance(choice, tuple) else choice

    @classmethod
    def of(
        cls,
        model: Options,
        stop: Sequence[str] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Self:
        """The fields of a chat model with the options of a call over them, validated.

        The fields are validated again, because they can be assigned or copied without a check.
        """
        options = options or {}
        chosen = {name: value for name, value in options.items() if name not in _NOT_FIELDS}
        if stop is not None:
            chosen["stop"] = stop
        known = cls.model_fields.keys() - set(NOT_FOR_A_CALL)
        further: dict[str, Any] = {}
        if has_chat_model(options.get("members", model.members)):
            ours = {*known, *Method.model_fields}
            further = {name: value for name, value in chosen.items() if name not in ours}
            if not isinstance(further.get("model", ""), str):
                del further["model"]  # one member instead of all
            further.pop("stop_sequences", None)
            chosen = {name: value for name, value in chosen.items() if name not in further}
        chosen = translated(chosen, known)
        fields = {name: getattr(model, name) for name in Options.model_fields}
        if "model" in options and "model" not in further:
            # The calibration was made for the chat model's members, not for the one of this call.
            fields["calibration"] = None
        call = cls(**{"members": None, **_without_none(fields), **chosen}).calibrated()
        call._further = further
        return call

    def calibrated(self) -> Self:
        """The call with the options that its calibration file decides for all questions, because
        the user did not choose them."""
        if not self.calibration:
            return self
        calibration = calibration_for(self.calibration, self.writers)
        method, changes = self.method, dict[str, Any]()
        if not method.rules and self.lead in ("auto", calibration.lead):
            changes |= calibration.method
        if calibration.result and method.segment == "draft" and method.result is None:
            changes |= {"segment": "answer", "result": calibration.result}
        if calibration.prior and method.prior is None:
            changes["prior"] = calibration.prior
        lead = None if self.lead == "auto" and not calibration.leads else self.lead
        fields = {**dict(self), "lead": lead, "method": Method(**{**dict(method), **changes})}
        call = type(self)(**fields)
        call._has_calibrated_result = "result" in changes
        return call

    def routing(self, turns: Iterable[Turn]) -> Routing | None:
        """Who leads this answer, if the calibration file decides that."""
        if not self.calibration or not self._leaves_lead_open:
            return None
        return calibration_for(self.calibration, self.writers).lead_for(turns)

    @property
    def lead_id(self) -> str | None:
        """A text that is different for calibration files that may choose different leads; None if
        no file decides who leads."""
        if not self.calibration or not self._leaves_lead_open:
            return None
        return lead_id_of(self.calibration)

    @property
    def _leaves_lead_open(self) -> bool:
        """Whether the user has chosen neither a lead nor a method without a lead."""
        return self.lead == "auto" and self.method.margin is not None

    @property
    def further(self) -> dict[str, Any]:
        """Arguments of the call that are not ours. Chat models get them as they are."""
        return self._further

    @property
    def has_calibrated_result(self) -> bool:
        """Whether the calibration file chose the result, and not the user."""
        return self._has_calibrated_result

    @property
    def writers(self) -> list[str]:
        """The names of the members that write."""
        return self.names[: len(self.members)]

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        """Refuses two members of one name, a lead or a prior that names no member, and a bound on
        costs without prices."""
        names = self.names
        writers = names[: len(self.members)]
        if self.max_cost is not None:
            check_prices([*self.members, *self.method.verifiers], names)
        for name in self.method.prior or ():
            if name not in names:
                error = UsageError(
                    f"prior names {name!r}, which is not a member; it must be a dict of member "
                    f"names ({', '.join(names)}) and numbers above 0"
                )
                known = f"the members are {', '.join(names)}"
                raise advised(error, meant(name, names, known, cutoff=0.5))
        _check_lead(self.lead, writers, self.method)
        return self


def _check_lead(lead: str | None, writers: Sequence[str], method: Method) -> None:
    """Refuse a lead that does not write, and a lead with a method in which no member leads."""
    if lead in ("auto", None):
        return
    if lead not in writers:
        error = UsageError(f"lead must be one of {', '.join(writers)}, got {lead!r:.80}")
        if lead.lower() == "none":
            raise advised(
                error, "if all members should vote, write lead=None, without quotation marks"
            )
        advice = "name a member that writes, or use 'auto', or None if all should vote"
        raise advised(error, meant(lead, writers, advice, cutoff=0.5))
    if method.margin is None:
        error = UsageError(
            f"lead={lead!r}, but no member leads with this method, because its margin is None"
        )
        advice = "leave lead out, or give the method a margin: Method.named('specem', margin=1.0)"
        raise advised(error, advice)


# --- the names of other packages ------------------------------------------------------------------

STRUCTURED = "specfuse_structured"
"""The option of a call with the arguments of ``with_structured_output``."""
_NOT_FIELDS = frozenset(
    {"ls_structured_output_format", "structured_output_format", "stream", STRUCTURED}
)
"""Options of a call that are not fields: this one, and those that LangChain may leave in it."""
_UNDEFINED: Any = object()


@dataclass(frozen=True, slots=True)
class Foreign:
    """An option of other chat models that does not exist here."""

    advice: str
    """What to do instead."""
    neutral: Any = _UNDEFINED
    """The neutral value, which is accepted. Undefined: no value is accepted."""
    is_ignored: bool = False
    """Whether the chat model accepts any value, with a warning in the log: LangChain's tools pass
    it to every chat model."""

    @property
    def has_neutral(self) -> bool:
        return self.neutral is not _UNDEFINED


_ON_THE_MEMBER = "set it on the member: members=[ChatOpenAI(..., {}=...)]"
_KEYS = (
    "members in this process need no key; that of a chat model is set on the chat model; a "
    "server's is in the environment variable SPECFUSE_API_KEY"
)
FOREIGN: Mapping[str, Foreign] = {
    "models": Foreign("use members=[...]"),
    "max_completion_tokens": Foreign("use max_tokens=..."),
    "num_predict": Foreign("use max_tokens=..."),
    "repeat_penalty": Foreign("use repetition_penalty=..."),
    "request_timeout": Foreign("use timeout=..."),
    "base_url": Foreign('use members=["http://host:8000/v1#model"]'),
    "format": Foreign(
        "use response_format={'type': 'json_object'} in a call, or "
        "llm.with_structured_output(schema)"
    ),
    "max_retries": Foreign(
        "set it on a member; if one fails, the others finish. llm.with_retry() repeats answers",
        is_ignored=True,
    ),
    "api_key": Foreign(_KEYS, is_ignored=True),
    "openai_api_key": Foreign(f"set it on the member: {_KEYS}"),
    **dict.fromkeys(
        ("reserve", "fallbacks"),
        Foreign("list it after the lead: members=[lead, reserve]"),
    ),
    "user": Foreign("put it into the trace: llm.invoke(question, {'metadata': {'user': ...}})"),
    "n": Foreign(
        "llm.batch([question] * 3); to agree on one of several: method=Method("
        "segment='answer', samples=3, result='number') ('choice', 'json' or 'text' for others)",
        neutral=1,
    ),
    "streaming": Foreign("disable_streaming=True never streams", neutral=True),
    "stream_usage": Foreign("leave it out: every stream ends with its usage", neutral=True),
    "top_logprobs": Foreign(
        "logprobs=True has the answer's tokens; the event specfuse_round has the drafts that lost",
        neutral=0,
    ),
    **dict.fromkeys(
        ("frequency_penalty", "presence_penalty"),
        Foreign(
            "repetition_penalty=1.1; a draft that only repeats the answer cannot win anyway",
            neutral=0,
        ),
    ),
    "logit_bias": Foreign(
        "tokens differ between members; choice=, regex= or grammar= constrain the text", neutral={}
    ),
    **dict.fromkeys(
        ("guardrails", "guardrail_config"),  # of ChatBedrock and ChatBedrockConverse
        Foreign("checks=[...]: functions that every text must pass before it is streamed"),
    ),
    "store": Foreign("to store answers, use a cache or a tracer", neutral=False),
    "modalities": Foreign("answers are text", neutral=["text"]),
    **{
        name: Foreign(_ON_THE_MEMBER.format(name), neutral=None)
        for name in ("reasoning_effort", "verbosity", "service_tier")
    },
    **{
        name: Foreign(_ON_THE_MEMBER.format(name))
        for name in ("organization", "model_kwargs", "extra_body")
    },
    **{
        name: Foreign(f"set it on the member: members=[ChatOllama(..., {name}=...)]")
        for name in ("num_ctx", "keep_alive")
    },
}
"""What users of ``ChatOpenAI`` and ``ChatOllama`` pass (docs/hosted-models.md), and
what users of other packages with fallbacks expect."""


def translated(foreign: Mapping[str, Any], known: Iterable[str]) -> dict[str, Any]:
    """These options by our names, without those that ask for nothing. None means "not given",
    except in ``lead=None``: no member leads. Unknown names are refused with advice."""
    options = _without_none(foreign)
    if "stop_sequences" in options:
        options["stop"] = options.pop("stop_sequences")
    for name in options.keys() & FOREIGN.keys():
        if not FOREIGN[name].has_neutral:
            continue
        value = options.pop(name)
        if value != FOREIGN[name].neutral:
            error = UsageError(f"{name} is not supported, got {value!r:.200}")
            raise advised(error, FOREIGN[name].advice)
    if "model" in options:
        options = _with_model(options)
    known = set(known)
    for name in options:
        if name not in known:
            raise _unknown(name, options[name], known)
    return options


def translated_fields(foreign: Mapping[str, Any], known: Iterable[str]) -> dict[str, Any]:
    """The options with which a chat model is made, by our names."""
    options = dict(foreign)
    for name in foreign.keys() & FOREIGN.keys():
        if FOREIGN[name].is_ignored:
            log.warning("%s is ignored: %s", name, FOREIGN[name].advice)
            del options[name]
    options = translated(options, known)
    if "members" not in options and "model_name" in options:
        label = options["model_name"]
        error = UsageError(f"model_name={label!r:.200} is given, but no members are")
        advice = "name the models in members=[...]; model_name is only the label in traces"
        raise advised(error, advice)
    return {"members": None, **options}


def _without_none(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None or name == "lead"}


def _with_model(options: Mapping[str, Any]) -> dict[str, Any]:
    """``model=`` as in other chat models: the only member."""
    if "members" in options:
        error = UsageError("model and members are both given")
        raise advised(error, "model= is short for one member; the label in traces is model_name=")
    others = {name: value for name, value in options.items() if name != "model"}
    model = options["model"]
    if isinstance(model, str):
        others.setdefault("model_name", model)
    return {"lead": "auto", **others, "members": [model]}


def _unknown(name: str, value: Any, known: Iterable[str]) -> UsageError:
    """The error for an option that does not exist, or that cannot be chosen here."""
    if f"{name}=" in REMOVED:
        return removed(f"{name}=")
    if name in NOT_FOR_A_CALL or name in BaseChatModel.model_fields:
        error = UsageError(f"{name} is chosen when the chat model is made, not for one call")
        another = f"SpecFuseChatModel(..., {name}=...), or another chat model"
        return advised(error, f"{another}: they share their members")
    if name in Call.model_fields:
        error = UsageError(f"{name} is chosen for a call, not when the chat model is made")
        bound = "llm.bind_tools([...])" if name == "tools" else f"llm.bind({name}=...)"
        return advised(error, bound)
    if name in Method.model_fields:
        shown = repr(value) if isinstance(value, str | int | float) else "..."
        error = UsageError(f"{name} is an option of the method")
        whole = "segment='answer', " if name in ("result", "samples") else ""
        return advised(error, f"method=Method({whole}{name}={shown})")
    error = UsageError(f"there is no option {name!r}")
    if name in FOREIGN:
        return advised(error, FOREIGN[name].advice)
    names = sorted(known)
    return advised(error, meant(name, names, f"the options are {', '.join(names)}"))
