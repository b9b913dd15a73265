"""The options of the method, defined once: checks, the command line and the tables in the docs are
made from them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from ..errors import UsageError, advised, meant
from .results import Result
from .values import Sampling

ScoreKind = Literal["mean_prob", "mean_logprob", "logprob_per_byte"]
WeightingKind = Literal["equal", "confidence"]
RewardKind = Literal["wins", "margins"]
FeedbackKind = Literal["off", "published"]
ExitKind = Literal["studentized", "never"]
LateKind = Literal["exit", "skip"]


def _option(default: Any, help: str, **limits: Any) -> Any:
    return field(default=default, metadata={"help": help, **limits})


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """How drafts become an answer. ``Method()`` is ``"robust"``; :meth:`named` starts from another
    one.

    >>> Method(learning_rate=1.0).score
    'mean_logprob'
    >>> Method.named("specem", exit="studentized").feedback
    'published'
    >>> Method(reward="margin")
    Traceback (most recent call last):
    langchain_specfuse.errors.UsageError: reward must be one of 'wins', 'margins', got 'margin'
    -> did you mean 'margins'?
    """

    score: ScoreKind = _option("mean_logprob", "how a verifier scores a draft")
    weighting: WeightingKind = _option(
        "confidence",
        "equal: votes count by weight alone; confidence: a verifier that finds no draft probable "
        "counts less",
    )
    reward: RewardKind = _option(
        "margins",
        "what a draft earns its author: wins of comparisons by third parties, or margins over all "
        "verifiers",
    )
    feedback: FeedbackKind = _option("published", "how rewards change the voting weights")
    learning_rate: float = _option(3.0, "how fast rewards change the weights", least=0)
    exit: ExitKind = _option("studentized", "when members that keep losing leave the answer")
    min_members: int = _option(2, "this many members stay", least=1)
    loop_guard: bool = _option(True, "pass over drafts that only repeat the end of the answer")
    sure: float = _option(
        0.4,
        "the lead is sure of a draft if it gives every token of it at least this probability",
        least=0,
    )
    margin: float | None = _option(
        0.5,
        "a draft replaces the lead's if the verifiers' mean log-probability per token is higher by "
        "more than this (one verifier's difference counts as at most 2.94); "
        "inf: the lead's draft always stands; none: nobody leads, all vote",
        least=0,
        endless=True,
    )
    late: LateKind = _option(
        "exit", "a member that exceeds member_timeout leaves the answer, or skips the round"
    )

    def __post_init__(self) -> None:
        for name, option in options().items():
            option.check(name, getattr(self, name))

    @classmethod
    def named(cls, name: str, **changes: Any) -> Method:
        """One of :data:`METHODS`, with changes."""
        if name not in METHODS:
            error = UsageError(
                f"method must be one of {_listed(METHODS)} or a Method, got {name!r:.80}"
            )
            raise advised(error, meant(name, METHODS, "'robust' is the default"))
        for key in changes:
            if key not in options():
                error = UsageError(f"there is no option {key!r} of the method")
                raise advised(
                    error, meant(key, options(), f"the options are {', '.join(options())}")
                )
        return dataclasses.replace(METHODS[name], **changes)

    @property
    def changes(self) -> dict[str, Any]:
        """The options in which this differs from ``Method()``."""
        usual = METHODS["robust"]
        return {
            name: value
            for name in options()
            if (value := getattr(self, name)) != getattr(usual, name)
        }


@dataclass(frozen=True, slots=True)
class Option:
    """One option of the method: what it may be, and what it is for."""

    type: Any
    help: str
    default: Any
    least: float | None = None
    endless: bool = False
    """Whether it may be infinite."""
    optional: bool = False
    """Whether it may be None."""

    @property
    def choices(self) -> tuple[Any, ...]:
        """All values, where they can be listed."""
        return (
            get_args(self.type)
            if get_origin(self.type) is Literal
            else (True, False)
            if self.type is bool
            else ()
        )

    @property
    def wanted(self) -> str:
        """What the option may be, for an error or a table."""
        if self.choices:
            return "True or False" if self.type is bool else f"one of {_listed(self.choices)}"
        kind = "number" if self.type is float else "whole number"
        return (
            f"a {kind} of at least {self.least}"
            + (", inf" * self.endless)
            + (" or None" * self.optional)
        )

    def check(self, name: str, value: Any) -> None:
        """Raise :class:`.UsageError` if the option cannot be this."""
        if not self._allows(value):
            error = UsageError(f"{name} must be {self.wanted}, got {value!r:.80}")
            raise advised(
                error, meant(value, self.choices, f"{self.help}; the default is {self.default!r}")
            )

    def read(self, name: str, text: str) -> Any:
        """The value that a text on the command line stands for.

        >>> (
        ...     options()["loop_guard"].read("loop_guard", "false"),
        ...     options()["margin"].read("margin", "inf"),
        ... )
        (False, inf)
        """
        words: dict[str, Any] = {"true": True, "false": False, "none": None}
        value: Any = words.get(text.lower(), text)
        for number in (int, float) if not self.choices else ():
            try:
                value = number(text)
                break
            except ValueError:
                continue
        self.check(name, value)
        return value

    def _allows(self, value: Any) -> bool:
        if value is None:
            return self.optional
        if self.choices:
            return any(
                value is choice or (isinstance(choice, str) and value == choice)
                for choice in self.choices
            )
        kinds: Any = int | float if self.type is float else int
        number = isinstance(value, kinds) and not isinstance(value, bool)
        return (
            number
            and (math.isfinite(value) or self.endless)
            and (self.least is None or value >= self.least)
        )


@cache
def options() -> Mapping[str, Option]:
    """Every option of :class:`Method` by name."""
    hints, found = get_type_hints(Method), {}
    for one in dataclasses.fields(Method):
        kind = next(
            (arg for arg in get_args(hints[one.name]) if arg in (int, float)), hints[one.name]
        )
        optional = type(None) in get_args(hints[one.name])
        found[one.name] = Option(kind, default=one.default, optional=optional, **one.metadata)
    return found


def _listed(names: Any) -> str:
    return ", ".join(map(repr, names))


_PUBLISHED: Mapping[str, Any] = {
    "score": "mean_prob",
    "weighting": "equal",
    "reward": "wins",
    "learning_rate": 1.0,
    "loop_guard": False,
    "min_members": 1,
    "margin": None,
}
METHODS: Mapping[str, Method] = {
    # Paper: "specfuse" and "specem" follow the two versions of the paper; "robust" is ours. It
    # keeps two members, because no other member corrects a lone one that repeats itself
    # (docs/log.md).
    "robust": Method(),
    "specfuse": Method(**_PUBLISHED, feedback="off"),
    "specem": Method(**_PUBLISHED, exit="never"),
}


@dataclass(frozen=True, slots=True)
class Settings:
    """What the loop needs to know about one answer besides the question."""

    segment_tokens: int = 10
    max_tokens: int = 512
    """Budget of the answer, each segment in its writer's tokens."""
    stop: tuple[str, ...] = ()
    sampling: Sampling = Sampling()
    method: Method = METHODS["robust"]
    lead: str | None = "auto"
    """The name of the member that leads; ``"auto"``: the one that is much the largest, if any;
    None: all are equals."""
    result: str | Result | None = None
    """What whole answers are compared by (a key of ``RESULTS`` or a function); None: answers are
    agreed by segments."""
    samples: int = 1
    """Whole answers per member."""
    max_calls: int | None = None
    """Requests to members that are billed by request. See :class:`.Budget`."""
    max_cost: float | None = None
    """Dollars."""
    refusals: Literal["outvoted", "any"] = "outvoted"
    """``outvoted``: the answer is a refusal only if no member drafts and one refuses; ``any``: as
    soon as one refuses."""
