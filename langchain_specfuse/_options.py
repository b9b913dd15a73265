"""What a caller may choose, how wrong values are told, and how choices become the method's settings.

The same rules serve the constructor and every call. Knows numbers and names, nothing of members' insides or messages.
"""

from __future__ import annotations

import difflib
import math
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from ._story import Depth
from .core.values import (
    PRESETS,
    ExitKind,
    FeedbackKind,
    RewardKind,
    Sampling,
    ScoreKind,
    Settings,
    Straggler,
    VoiceKind,
)
from .errors import UsageError, advised
from .members._budget import key_of


@dataclass(frozen=True, slots=True)
class Rule:
    """What a value must be."""

    wanted: str
    holds: Callable[[Any], bool]
    advice: str


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _one_of(names: Iterable[str], advice: str) -> Rule:
    choices = tuple(names)
    return Rule("one of " + ", ".join(map(repr, choices)), lambda value: value in choices, advice)


def _at_least_one(advice: str) -> Rule:
    return Rule("a whole number of at least 1", _count, advice)


def _at_least_nought(advice: str) -> Rule:
    return Rule("a whole number of at least 0", lambda v: _count(v) or (_number(v) and v == 0), advice)


def _seconds(advice: str) -> Rule:
    return Rule("a number of seconds above 0", lambda v: _number(v) and v > 0, advice)


def _fraction(advice: str) -> Rule:
    return Rule("a number above 0 and at most 1", lambda v: _number(v) and 0 < v <= 1, advice)


STRAGGLERS = get_args(Straggler)


def _memory(value: Any) -> bool:
    try:
        return bool(key_of(value))
    except (ValueError, TypeError, AttributeError):
        return False


_PRESET = "leave it out to get what the preset says"

RULES: Mapping[str, Rule] = {
    "model": Rule(
        "a text", lambda v: isinstance(v, str), "it is only the name shown in traces; members= says who writes"
    ),
    "cluster": Rule(
        "'auto' or the address of a Ray cluster",
        lambda v: isinstance(v, str) and (v in ("auto", "local") or re.fullmatch(r"[^/\s]+:\d+", v) is not None),
        "for example '10.0.0.1:6379'; leave it out to have members in this process",
    ),
    "segment_tokens": _at_least_one("10 is a good length"),
    "drafters": _at_least_one("leave it out to let every member draft in every round"),
    "speculate": Rule("True, False or 'auto'", lambda v: isinstance(v, bool) or v == "auto", "'auto' is a good choice"),
    "max_tokens": _at_least_one("it is the budget of the whole answer"),
    "max_rounds": _at_least_one("leave it out to have no limit besides max_tokens"),
    "temperature": Rule("a number of at least 0", lambda v: _number(v) and v >= 0, "0 is greedy and repeatable"),
    "top_p": _fraction("leave it out to sample from everything"),
    "top_k": _at_least_one("leave it out to sample from everything"),
    "min_p": Rule(
        "a number from 0 to 1", lambda v: _number(v) and 0 <= v <= 1, "leave it out to sample from everything"
    ),
    "repetition_penalty": Rule("a number above 0", lambda v: _number(v) and v > 0, "1 is no penalty"),
    "seed": Rule("a whole number", lambda v: isinstance(v, int) and not isinstance(v, bool), "leave it out for chance"),
    "preset": _one_of(PRESETS, "'robust' is the default"),
    "score": _one_of(get_args(ScoreKind), _PRESET),
    "feedback": _one_of(get_args(FeedbackKind), _PRESET),
    "exit": _one_of(get_args(ExitKind), _PRESET),
    "voice": _one_of(get_args(VoiceKind), _PRESET),
    "reward": _one_of(get_args(RewardKind), _PRESET),
    "learning_rate": Rule("a number of at least 0", lambda v: _number(v) and v >= 0, _PRESET),
    "umpire": Rule("True or False", lambda v: isinstance(v, bool), _PRESET),
    "min_members": _at_least_one("at least one member always stays"),
    "loop_guard": Rule("True or False", lambda v: isinstance(v, bool), _PRESET),
    "runners_up": Rule("True or False", lambda v: isinstance(v, bool), "leave it out: it is told on request only"),
    "timeout": _seconds("leave it out to wait for the whole answer"),
    "member_timeout": _seconds("leave it out to wait for every member"),
    "straggler": _one_of(STRAGGLERS, "'exit' is the default; it needs member_timeout, else all wait"),
    "at_once": _at_least_one("256 is the default"),
    "max_waiting": _at_least_nought("leave it out to join a line of any length"),
    "priority": Rule("a whole number", lambda v: isinstance(v, int) and not isinstance(v, bool), "0 is the default"),
    "memory_budget": Rule(
        "a number of bytes such as 6000000000 or '6GB', or a dict of such by device",
        _memory,
        "leave it out to have each member take what it likes",
    ),
    "trace": _one_of(get_args(Depth), "'rounds' is the default"),
    "max_retries": _at_least_nought("with_retry() retries answers"),
    "streaming": Rule("True or False", lambda v: isinstance(v, bool), "leave it out to let LangChain decide"),
    "output_version": Rule("'v0' or 'v1'", lambda v: v in ("v0", "v1"), "'v1' tells who wrote which part"),
}

PER_CALL = frozenset(RULES) - {"streaming", "output_version", "max_retries", "memory_budget"} | {
    "members",
    "verifiers",
    "prior",
    "stop",
}
"""What may be chosen anew for every call."""

METHOD = (
    "segment_tokens",
    "drafters",
    "speculate",
    "max_tokens",
    "max_rounds",
    "score",
    "voice",
    "reward",
    "feedback",
    "learning_rate",
    "umpire",
    "exit",
    "min_members",
    "loop_guard",
)
LIMITS = ("timeout", "member_timeout", "straggler")
TURNS = ("at_once", "max_waiting", "priority")
"""How much company an answer has, and when it is its turn."""
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")

_INTERNAL = frozenset({"ls_structured_output_format", "structured_output_format", "stream"})
"""LangChain's own words that it may leave in a call."""
_MADE_WITH = frozenset(
    {
        *("output_version", "streaming", "disable_streaming", "max_retries", "memory_budget"),
        *("api_key", "cache", "verbose", "rate_limiter"),
    }
)
"""What a chat model is made with."""
SHAPING = frozenset(
    {"tools", "tool_choice", "parallel_tool_calls", "strict", "response_format", "regex", "choice", "grammar"}
)
"""What the answer must be: chosen for a call (their rules are in ``_shapes``)."""


def checked(given: Mapping[str, Any], known: Iterable[str]) -> dict[str, Any]:
    """The choices that were made, by their right names. None means: not chosen."""
    known = set(known)
    chosen = {_ALIASES.get(name, name): value for name, value in given.items() if value is not None}
    for name, value in chosen.items():
        if name not in known:
            raise _shape_of_all(name) if name in SHAPING else _unknown(name, known)
        rule = RULES.get(name)
        if rule and not rule.holds(value):
            error = UsageError(f"{name} must be {rule.wanted}, got {value!r:.200}")
            raise advised(error, rule.advice)
    if "stop" in chosen:
        chosen["stop"] = stop_strings(chosen["stop"])
    return chosen


_ALIASES = {"stop_sequences": "stop"}


def checked_call(given: Mapping[str, Any]) -> dict[str, Any]:
    """The choices of one call, without what LangChain put there for itself."""
    own = {name: value for name, value in given.items() if name not in _INTERNAL}
    for name in _MADE_WITH & own.keys():
        error = UsageError(f"{name} is chosen when the chat model is made, not for one call")
        raise advised(error, f"SpecFuseChatModel(..., {name}=...), or another chat model: they share their members")
    return checked(own, PER_CALL | SHAPING)


def _shape_of_all(name: str) -> UsageError:
    error = UsageError(f"{name} is chosen for a call, not when the chat model is made")
    return advised(error, "llm.bind_tools([...])" if name == "tools" else f"llm.bind({name}=...)")


def _unknown(name: str, known: Iterable[str]) -> UsageError:
    near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.5)
    meant = _COUSINS.get(name) or (near[0] if near else None)
    advice = f"did you mean {meant!r}?" if meant else f"there are {', '.join(sorted(known))}"
    return advised(UsageError(f"there is no option {name!r}"), advice)


_COUSINS = {
    "max_new_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "max_length": "max_tokens",
    "models": "members",
    "functions": "tools",
    "function_call": "tool_choice",
    "format": "response_format",
}
"""What other packages call the same thing, where it is not similar enough to be found."""


def stop_strings(given: Any) -> list[str]:
    """One stop string or several, as a list."""
    strings = [given] if isinstance(given, str) else given
    if not isinstance(strings, list | tuple) or not all(isinstance(one, str) for one in strings):
        error = UsageError(f"stop must be a text or a list of texts, got {given!r:.200}")
        raise advised(error, "for example stop=['\\n\\n', 'Question:']")
    if "" in strings:
        raise advised(UsageError(f"a stop string must not be empty, got stop={given!r}"), "leave it out")
    return list(dict.fromkeys(strings))


def refuse_broken(text: str) -> None:
    """Bytes that are no UTF-8 arrive as lone surrogates, which no tokenizer takes."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        unread = UsageError(f"the text is not valid UTF-8 at character {error.start + 1}: {text[:80]!r}")
        raise advised(unread, "convert it to UTF-8") from error


def checked_prior(prior: Any, names: Iterable[str]) -> dict[str, float]:
    """Starting weights by member; whoever is not in it starts with 1."""
    names = list(names)
    wanted = f"a dict of members' names ({', '.join(names)}) and numbers above 0"
    if not isinstance(prior, Mapping):
        raise advised(UsageError(f"prior must be {wanted}, got {prior!r:.200}"), "leave it out for equal weights")
    for name, weight in prior.items():
        if name not in names:
            near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.3)
            advice = f"did you mean {near[0]!r}?" if near else f"the members are {', '.join(names)}"
            raise advised(UsageError(f"prior names {name!r}, which is no member; it must be {wanted}"), advice)
        if not _number(weight) or weight <= 0:
            error = UsageError(f"prior of {name!r} must be a number above 0, got {weight!r:.80}")
            raise advised(error, "to keep a member from writing, put it in verifiers= or leave it out")
    return dict(prior)


def settings(chosen: Mapping[str, Any]) -> Settings:
    """The method's settings: the preset, and over it whatever was chosen."""
    method = {name: chosen[name] for name in METHOD if chosen[name] is not None}
    sampling = Sampling(**{name: chosen[name] for name in SAMPLING}, seed=_seed(chosen))
    return Settings(
        **{**PRESETS[chosen["preset"]], **method, "stop": tuple(chosen["stop"] or ()), "sampling": sampling}
    )


def _seed(chosen: Mapping[str, Any]) -> int:
    """The caller's seed; without one, chance. Greedy answers need none."""
    if chosen["seed"] is not None:
        return int(chosen["seed"])
    return secrets.randbelow(2**31) if chosen["temperature"] else 0
