"""The options of an answer. Each is defined once, as a field with a type and a description.

Checks, error messages, the flags of the command and the tables in the docs are made from these
fields, so a new option needs a field here (if the loop or the engine reads it) or in
``chat.options``, and nothing else.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Mapping
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SkipValidation,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from ..errors import UsageError, advised, meant
from ..removed import removed
from .checks import Check, as_checks
from .results import RESULTS
from .values import Sampling

ScoreKind = Literal["mean_prob", "mean_logprob", "logprob_per_byte"]
WeightingKind = Literal["equal", "confidence"]
RewardKind = Literal["wins", "margins"]
ExitKind = Literal["studentized", "never"]

Flag: TypeAlias = Annotated[bool, Field(strict=True)]
Count: TypeAlias = Annotated[int, Field(strict=True, ge=1)]
WholeNumber: TypeAlias = Annotated[int, Field(strict=True)]
Positive: TypeAlias = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
Nonnegative: TypeAlias = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
Share: TypeAlias = Annotated[float, Field(strict=True, gt=0, le=1)]


# --- errors and texts -----------------------------------------------------------------------------


def refusal(
    error: ValidationError,
    notes: Mapping[str, str],
    *,
    name: str = "",
    expected: Mapping[str, str] | None = None,
) -> UsageError:
    """The first error of a pydantic validation as a :class:`.UsageError`: what was expected and
    what was given.

    ``notes`` has all names that are allowed, each with its meaning, which becomes the error's
    advice. ``name`` is the name of the value if pydantic does not know it. ``expected`` may
    describe, by name, what a value must be, in place of pydantic's words. A ``UsageError`` that a
    validator raised is returned unchanged.

    >>> class Size(BaseModel):
    ...     width: Count
    >>> try:
    ...     Size(width=0)
    ... except ValidationError as error:
    ...     refusal(error, {"width": "in pixels"})
    UsageError('width must be greater than or equal to 1, got 0')
    """
    first = error.errors(include_url=False)[0]
    context = first.get("ctx", {})
    cause = context.get("error")
    if isinstance(cause, UsageError):
        return cause
    if first["loc"]:
        name = str(first["loc"][0])
    if first["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        advice = meant(name, notes, f"the options are {', '.join(notes)}")
        return advised(UsageError(f"there is no option {name!r}"), advice)
    meaning = notes.get(name)
    note = f"{name}: {meaning}" if meaning else f"leave {name} out, or see what it must be"
    if first["type"] in ("missing", "missing_argument"):
        return advised(UsageError(f"{name} is missing"), note)
    problem = re.sub(", unable to.*| after validation, not .*", "", first["msg"])
    rule = re.sub(r"^\w+ should", "must", problem)
    place = "".join(f"[{index}]" for index in first["loc"] if isinstance(index, int))
    if cause is not None:
        rule = str(cause)
    elif expected:
        rule, place = f"must be {expected[name]}", ""
    value = first["input"]
    wrong = UsageError(f"{name}{place} {rule}, got {value!r:.200}")
    choices = re.findall("'([^']*)'", str(context.get("expected", "")))
    return advised(wrong, meant(value, choices, note))


def notes_of(model: type[BaseModel]) -> dict[str, str]:
    """The descriptions of a model's fields, for :func:`refusal`."""
    return {name: field.description or "" for name, field in model.model_fields.items()}


def parsed(model: type[BaseModel], name: str, text: str) -> Any:
    """The value that a text on the command line stands for, checked as the field of this name.

    >>> parsed(Method, "loop_guard", "false"), parsed(Method, "margin", "inf")
    (False, inf)
    """
    field = model.model_fields[name]
    adapter = TypeAdapter[Any](Annotated[(field.annotation, field)])  # type: ignore[arg-type]
    try:
        if text.lower() == "none":
            return adapter.validate_python(None)
        return adapter.validate_strings(text)
    except ValidationError as error:
        raise refusal(error, notes_of(model), name=name) from None


class Checked(BaseModel):
    """A frozen pydantic model that raises :class:`.UsageError` for wrong values."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    def __init__(self, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise refusal(error, notes_of(type(self))) from None


# --- the method -----------------------------------------------------------------------------------


def _result(value: Any) -> Any:
    """A key of ``RESULTS`` or a function."""
    if value is None or callable(value) or (isinstance(value, str) and value in RESULTS):
        return value
    if value == "fuse":
        raise removed('result="fuse"')
    known = ", ".join(map(repr, RESULTS))
    error = UsageError(f"result must be one of {known} or a function, got {value!r:.200}")
    raise advised(error, "a function takes an answer's text and returns its result, or None")


def _prior(value: Any) -> Any:
    """Voting weights by name."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        error = UsageError(
            f"prior must be a dict of member names and numbers above 0, got {value!r:.200}"
        )
        raise advised(error, "leave it out for equal weights")
    for name, weight in value.items():
        is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
        if not is_number or not 0 < weight < float("inf"):
            error = UsageError(f"prior of {name!r} must be a number above 0, got {weight!r:.200}")
            advice = "to keep a member from writing, put it in verifiers= or leave it out"
            raise advised(error, advice)
    return dict(value)


class Method(Checked):
    """How drafts become an answer. ``Method()`` is ``"robust"``; :meth:`named` starts from another
    named method.

    >>> Method(learning_rate=1.0).score
    'mean_logprob'
    >>> Method.named("specem", exit="studentized").reward
    'wins'
    >>> Method(reward="margin")
    Traceback (most recent call last):
    langchain_specfuse.errors.UsageError: reward must be 'wins' or 'margins', got 'margin'
    -> did you mean 'margins'?
    """

    score: ScoreKind = Field(default="mean_logprob", description="how a verifier scores a draft")
    weighting: WeightingKind = Field(
        default="confidence",
        description="equal: votes count by weight alone; confidence: a verifier that finds no "
        "draft probable counts less",
    )
    reward: RewardKind = Field(
        default="margins",
        description="what a draft earns its author: wins in comparisons by third parties, or "
        "margins over all verifiers",
    )
    learning_rate: Nonnegative = Field(
        default=3.0,
        description="how fast rewards change the voting weights; 0: weights stay as they are",
    )
    exit: ExitKind = Field(
        default="studentized", description="when members that keep losing leave the answer"
    )
    min_members: Count = Field(default=2, description="this many members stay")
    loop_guard: Flag = Field(
        default=True,
        description="pass over drafts that only repeat the end of the answer, and end a local "
        "lead's answer once it has only repeated itself for 2,000 characters (False: its default "
        "budget is 512 tokens)",
    )
    sure: Nonnegative = Field(
        default=0.4,
        description="the lead is sure of a draft if it gives every token of it at least this "
        "probability",
    )
    margin: Annotated[float, Field(strict=True, ge=0)] | None = Field(
        default=math.inf,
        description="inf: a member that leads writes alone, and the others are in reserve; a "
        "number: where the lead is unsure, the others draft too, and a draft replaces the lead's "
        "if the verifiers' mean log-probability per token is higher by more than this (one "
        "verifier's difference counts as at most 2.94); none: no member leads, all vote",
    )
    segment_tokens: Count = Field(
        default=10, description="length of a draft in its author's tokens"
    )
    segment: Literal["draft", "answer"] = Field(
        default="draft",
        description="what is agreed at a time: a draft of segment_tokens, or a whole answer "
        "(without streaming)",
    )
    result: Annotated[
        str | SkipValidation[Callable[[str], Hashable]] | None, BeforeValidator(_result)
    ] = Field(
        default=None,
        description="with segment='answer', how answers are compared: by number, choice, json, "
        "text, or a function of the text (default: by the object, choice or call that was asked "
        "for)",
    )
    samples: Count = Field(
        default=1,
        le=100,
        description="with segment='answer': answers per member, the second and further sampled",
    )
    prior: Annotated[dict[str, float] | None, BeforeValidator(_prior)] = Field(
        default=None,
        description="initial voting weights by member name (1 for members that are not named)",
    )
    verifiers: list[Any] = Field(
        default_factory=list, description="members that vote but never write"
    )
    refusals: Literal["outvoted", "any", "ignore"] = Field(
        default="outvoted",
        description="when the answer is a refusal: outvoted: only if no member that is asked "
        "drafts and at least one refuses; any: as soon as one refuses; ignore: as outvoted, but "
        "members in reserve are asked first",
    )

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, fields: dict[str, Any]) -> dict[str, Any]:
        for name in fields:
            if name not in cls.model_fields:
                known = f"the options are {', '.join(cls.model_fields)}"
                advice = meant(name, cls.model_fields, known)
                raise advised(UsageError(f"there is no option {name!r} of the method"), advice)
        return fields

    @model_validator(mode="after")
    def _need_whole_answers(self) -> Method:
        name = "result" if self.result is not None else "samples" if self.samples > 1 else None
        if name and self.segment != "answer":
            error = UsageError(f"{name} is given, but answers are agreed segment by segment")
            raise advised(error, f"add segment='answer', or leave {name} out")
        return self

    @classmethod
    def named(cls, name: str, **changes: Any) -> Method:
        """One of :data:`METHODS`, with changes."""
        if name not in METHODS:
            names = ", ".join(map(repr, METHODS))
            error = UsageError(f"method must be one of {names} or a Method, got {name!r:.80}")
            raise advised(error, meant(name, METHODS, "'robust' is the default"))
        return cls(**{**dict(METHODS[name]), **changes})

    def __hash__(self) -> int:
        return hash(tuple(self.rules.items()))

    def __repr_args__(self) -> Any:
        changes = self.changes
        changes.pop("verifiers", None)  # their own texts may be long
        return changes.items()

    @property
    def changes(self) -> dict[str, Any]:
        """The options in which this differs from ``Method()``."""
        usual = dict(METHODS["robust"])
        return {name: value for name, value in self if value != usual[name]}

    @property
    def rules(self) -> dict[str, Any]:
        """Those of the changes that say how drafts are compared. The others say what is drafted, by
        whom, and who votes."""
        return {name: value for name, value in self.changes.items() if name not in _NO_RULES}


_NO_RULES = frozenset(
    ("segment_tokens", "segment", "result", "samples", "prior", "verifiers", "refusals")
)
"""The options of the method that leave open how drafts are compared."""
_PUBLISHED: Mapping[str, Any] = {
    "score": "mean_prob",
    "weighting": "equal",
    "reward": "wins",
    "loop_guard": False,
    "min_members": 1,
    "margin": None,
}
METHODS: Mapping[str, Method] = {
    # Paper: "specfuse" and "specem" follow the two versions of the paper; "robust" is ours. It
    # keeps two members, because no other member corrects a lone one that repeats itself
    # (docs/development/log.md).
    "robust": Method(),
    "specfuse": Method(**_PUBLISHED, learning_rate=0.0),
    "specem": Method(**_PUBLISHED, learning_rate=1.0, exit="never"),
}


# --- the settings of an answer --------------------------------------------------------------------


def _method(value: Any) -> Any:
    """The method with this name, with these options, or the one given."""
    if isinstance(value, Method):
        return value
    if isinstance(value, str):
        return Method.named(value)
    if isinstance(value, Mapping):
        return Method.named(**{"name": "robust", **value})
    error = UsageError(
        f"method must be one of {', '.join(map(repr, METHODS))} or a Method, got {value!r:.200}"
    )
    raise advised(error, "for example Method(exit='never')")


def _stop_strings(value: Any) -> Any:
    """One stop string or several, as a list without repetitions."""
    if value is None:
        return None
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, list | tuple) or not all(isinstance(text, str) for text in strings):
        error = UsageError(f"stop must be a text or a list of texts, got {value!r:.200}")
        raise advised(error, "for example stop=['\\n\\n', 'Question:']")
    if "" in strings:
        error = UsageError(f"a stop string must not be empty, got stop={value!r}")
        raise advised(error, "leave it out")
    return list(dict.fromkeys(strings))


DEFAULT_TOKENS = 512
NO_LIMIT = 2**31


class ModelSettings(Checked):
    """The settings of an answer that a chat model has as well."""

    max_tokens: Count | None = Field(
        default=None,
        description="budget of the answer in tokens (default: none for a local lead, the "
        "provider's for a hosted one; otherwise 512)",
    )
    stop: Annotated[list[str] | None, BeforeValidator(_stop_strings)] = Field(
        default=None, description="texts that end the answer and are not part of it"
    )
    temperature: Nonnegative = Field(default=0.0, description="0 is greedy and repeatable")
    top_p: Share | None = Field(
        default=None,
        description="sample from the most probable tokens that together reach this mass",
    )
    top_k: Count | None = Field(default=None, description="sample from this many tokens")
    min_p: Annotated[float, Field(strict=True, ge=0, le=1)] | None = Field(
        default=None, description="leave out tokens below this share of the most probable one"
    )
    repetition_penalty: Positive | None = Field(
        default=None,
        description="above 1, tokens that occurred become less probable (default: each member's "
        "own setting)",
    )
    seed: WholeNumber | None = Field(
        default=None, description="makes sampling repeatable (default: a new one for each call)"
    )
    method: Annotated[Method, BeforeValidator(_method)] = Field(
        default=METHODS["robust"],
        description="robust, specfuse, specem, or a Method with options of its own",
    )
    lead: str | None = Field(
        default="auto",
        description="the member that writes while the others are in reserve, or its name; auto: "
        "the one with at least twice the parameters of every other; without one, the first if one "
        "of them is a chat model or fewer than two can vote; None: all vote",
    )
    timeout: Positive | None = Field(
        default=None, description="seconds for a whole answer, not counting loading"
    )
    member_timeout: Positive | None = Field(
        default=None,
        description="seconds for one reply of one member; a member that takes longer leaves the "
        "answer",
    )
    max_concurrency: Count = Field(
        default=256, description="answers under way at once on these members; others wait"
    )
    max_calls: Count | None = Field(
        default=None,
        description="start no request to chat models once an answer has made this many (default: "
        "no limit)",
    )
    max_cost: Positive | None = Field(
        default=None,
        description="start no request to chat models, and close their open streams, once an answer "
        "has cost this many dollars; each chat model needs a price",
    )
    checks: Annotated[list[SkipValidation[Check]], BeforeValidator(as_checks)] = Field(
        default_factory=list,
        description="functions that every text must pass before it is streamed: they take the text "
        "so far, and return None or the reason to refuse it",
    )
    redrafts: Annotated[int, Field(strict=True, ge=0)] | None = Field(
        default=None,
        description="with checks: attempts in a row that add no verified text before the answer "
        "fails (default: 4; 2 further requests to a chat model that gets feedback)",
    )
    feedback: Flag = Field(
        default=True,
        description="with checks: tell a chat model what was refused and why, in the request for "
        "another text; False: only draw samples",
    )
    on_failure: Literal["raise", "end", "keep"] = Field(
        default="raise",
        description="when no attempt passes a check: raise a CheckError, end the answer before "
        "that text or, if whole answers are agreed, keep the lead's own answer",
    )
    reasoning: Flag | None = Field(
        default=None,
        description="show the reasoning of the member whose draft is agreed first, before the "
        "answer (default: only that of a chat model that leads)",
    )

    @model_validator(mode="after")
    def _check_keep(self) -> Self:
        if self.on_failure == "keep" and self.method.segment != "answer":
            error = UsageError(
                "on_failure='keep' is for whole answers, but these are agreed draft by draft"
            )
            advice = "add method=Method(segment='answer'), or choose on_failure='raise' or 'end'"
            raise advised(error, advice)
        return self

    @property
    def judges(self) -> list[Check]:
        """The checks that judge text; the others redact it."""
        return [check for check in self.checks if check.redacts is None]

    @property
    def sampling(self) -> Sampling:
        """How members pick tokens. Without a seed it is 0."""
        return Sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            seed=self.seed or 0,
        )

    def budget(self, *, leads: bool = False, native: bool = False) -> int:
        """How long the answer may become, in its authors' tokens. ``leads``: one member writes, and
        ends with its context at the latest, or where the guard against loops ends it. ``native``: a
        provider has a limit of its own."""
        is_open = native or (leads and self.method.loop_guard)
        return self.max_tokens or (NO_LIMIT if is_open else DEFAULT_TOKENS)

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """The texts that end the answer."""
        return tuple(self.stop or ())


class Settings(ModelSettings):
    """What the loop and the engine need to know about an answer besides the question and the
    members."""

    max_waiting: Annotated[int, Field(strict=True, ge=0)] | None = Field(
        default=None,
        description="refuse a call with BusyError if this many answers are waiting already "
        "(default: no limit)",
    )
    logprobs: Flag = Field(
        default=False,
        description="add the log-probabilities of the answer's tokens to response_metadata",
    )
