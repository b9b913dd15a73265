"""What a member asks of an engine, whichever it is: draw some tokens, read some others.

Values and a protocol; ``_vllm``, ``_sglang`` and ``_llamacpp`` say how it is said to each. Token ids alone: nothing of
text, templates, drafts or votes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..core.values import Constraint, Sampling
from ..errors import MemberError, amount
from ._http import Wire


@dataclass(frozen=True, slots=True)
class Wish:
    """So many tokens after these."""

    key: str
    """The query's: what is alike should go to the same cache."""
    ids: Sequence[int]
    count: int
    sampling: Sampling
    constraint: Constraint | None = None
    """The draft begins where this begins: the engine may hold it to that."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """What was drawn."""

    tokens: tuple[int, ...]
    """Without the one that ended the turn."""
    logprobs: tuple[float, ...] | None
    """The model's own; None where the engine tells others (after a mask, a temperature or a penalty)."""
    ended: bool = False
    end_logprob: float = 0.0
    reused: int = 0
    """Tokens that a cache held, where the engine tells."""
    told: bool = False
    """Whether it does."""


@dataclass(frozen=True, slots=True)
class Path:
    """Tokens whose probabilities are wanted: those from ``start`` on, and the end of the turn behind them."""

    ids: tuple[int, ...]
    start: int
    ended: bool = False

    @property
    def new(self) -> tuple[int, ...]:
        return self.ids[self.start :]


Way = Callable[[str, Sequence[Path]], list[list[float]]]
"""(query's key, paths) -> per path one log-probability per new token, and one for the end if it ends."""


class Tokenizer(Protocol):
    """As much of a tokenizer as members need; one of transformers is one."""

    chat_template: Any

    def __call__(
        self, text: str, add_special_tokens: bool = False, split_special_tokens: bool = False
    ) -> Mapping[str, Any]: ...

    def decode(self, ids: Sequence[int], **how: Any) -> str: ...

    def apply_chat_template(self, messages: Sequence[Any], **how: Any) -> str: ...


class Dialect(Protocol):
    """How one engine is spoken to."""

    name: str
    stops: Sequence[int]
    """Tokens that end a turn; known once there is a tokenizer."""

    def limit(self) -> int | None:
        """Tokens of prompt and answer together."""

    def tokenizer(self) -> Tokenizer | None:
        """The server's own, if it lends it."""

    def draw(self, wish: Wish) -> Drawn:
        """How it goes on."""

    def ways(self) -> Mapping[str, Way]:
        """The ways in which it may be able to score, the cheapest first; which of them are right is found by trying."""

    def way(self, known: Mapping[str, Way], size: int) -> Way:
        """The best of these for a context of this size."""

    def forget(self, key: str) -> None:
        """The query is over."""


def numbers(values: Iterable[Any], wanted: int, who: str) -> tuple[float, ...]:
    """The log-probabilities that a server told, if they are as many as wanted, and numbers."""
    found = tuple(values)
    if len(found) != wanted:
        told = amount(len(found), "log-probability")
        raise MemberError(f"{who} told {told} for {amount(wanted, 'token')}", member=who)
    bad = [value for value in found if not isinstance(value, (int, float)) or math.isnan(value)]
    if bad:
        kind = "nan" if isinstance(bad[0], float) else "error"
        raise MemberError(f"{who} told {bad[0]!r} as a log-probability (wanted a number)", member=who, kind=kind)
    return tuple(min(0.0, float(value)) for value in found)


def from_cache(told: Any, most: int) -> tuple[int, bool]:
    """How many of so many tokens a cache held, and whether the engine tells: what is no count tells nothing.

    >>> from_cache(7, 5), from_cache(float("inf"), 5)
    ((5, True), (0, False))
    """
    if isinstance(told, bool) or not isinstance(told, int) or told < 0:
        return 0, False
    return min(told, most), True


def either(logprobs: Iterable[float]) -> float:
    """The log-probability that any of these comes, at most 0.

    >>> round(math.exp(either([math.log(0.25), math.log(0.5)])), 6)
    0.75
    """
    known = sorted(logprobs, reverse=True)
    if not known or known[0] == -math.inf:
        return -math.inf
    return min(0.0, known[0] + math.log(math.fsum(math.exp(value - known[0]) for value in known)))


def spelled(path: Path, stops: Sequence[int]) -> list[list[int]]:
    """The path as whole prompts: one that ends comes once with each token that can end it."""
    return [[*path.ids, stop] for stop in stops] if path.ended else [list(path.ids)]


def folded(path: Path, rows: Sequence[Sequence[float]]) -> list[float]:
    """The numbers of a path from those of its prompts: the end is any of their last tokens."""
    size = len(path.new)
    return [*rows[0][:size], *([either(row[size] for row in rows)] if path.ended else [])]


def sampled(how: Sampling) -> dict[str, Any]:
    """How tokens are picked, said in full: a server has defaults of its own. A penalty of None is the server's."""
    told: dict[str, Any] = {"temperature": how.temperature, "top_p": 1.0, "top_k": -1, "min_p": 0.0}
    told |= {"presence_penalty": 0.0, "frequency_penalty": 0.0}
    told |= {key: value for key in ("top_p", "top_k", "min_p") if (value := getattr(how, key)) is not None}
    return told if how.repetition_penalty is None else told | {"repetition_penalty": how.repetition_penalty}


def same(told: Sequence[int], asked: Sequence[int], who: str) -> None:
    """The tokens that came back must be those that were asked about: some servers ignore what they do not know."""
    if list(told) != list(asked):
        raise MemberError(f"{who} was asked about the tokens {list(asked)[:8]}, and told of {list(told)[:8]}")


def came_through(reason: Any, who: str) -> None:
    """An engine that breaks off (it was stopped, or had no room) says so only here: the rest looks like a reply."""
    if reason in ("abort", "error", "content_filter"):
        raise MemberError(f"{who} broke off what it was asked ({reason})", member=who)


def context_of(wire: Wire, model: str) -> int | None:
    """How long a context the server gives this model, where its list of models tells."""
    served = wire.get("/v1/models").get("data", ())
    return next((one.get("max_model_len") for one in served if one.get("id") == model), None)
