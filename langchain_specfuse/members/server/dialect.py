"""The requests that a member sends to an engine on a server, in token ids. ``vllm`` and
``llamacpp`` implement them."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...core.values import Constraint, Sampling
from ...errors import MemberError, amount
from ..text.words import Words
from .client import Client
from .tokenizers import ServerTokenizer, TokenizingEngine


@dataclass(frozen=True, slots=True)
class Draw:
    """A request to draw tokens after others."""

    key: str
    """The query's id: its requests should reach the same cache."""
    ids: Sequence[int]
    count: int
    sampling: Sampling
    constraint: Constraint | None = None
    """A constraint on the text that begins with the first drawn token."""
    excluded: tuple[int, ...] = ()
    """Tokens that may not be drawn."""
    scored: bool = True
    """Whether a stream should report log-probabilities."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """The tokens that an engine drew."""

    tokens: tuple[int, ...]
    """Without the one that ended the turn."""
    logprobs: tuple[float, ...] | None
    """The model's own log-probabilities; None if the engine reports others (after a mask, a
    temperature or a penalty)."""
    ended: bool = False
    ended_by: float = 0.0
    """The log-probability of the end of the turn."""
    reused: int | None = None
    """Tokens of the prompt that were in a cache; None: unknown."""
    likely: tuple[int, ...] = ()
    """If tokens were excluded: the most probable first tokens, best first, if the engine reports
    them."""


@dataclass(slots=True)
class Piece:
    """What one event of a stream brings."""

    text: str = ""
    tokens: Sequence[int] | None = ()
    """The tokens of this text, without the one that ended the turn. Those of an incomplete
    character come in earlier pieces, without text. None: the engine does not report them all."""
    logprobs: Sequence[float] | None = None
    """As in :class:`Drawn`."""
    finish: str = ""
    """In the last one: ``stop`` for the end of the turn, ``length`` for the limit."""
    ended_by: float = 0.0
    """As in :class:`Drawn`."""
    reused: int | None = None
    """As in :class:`Drawn`, in a piece without text."""


@dataclass(frozen=True, slots=True)
class Path:
    """Tokens to score: those from ``start`` on and, if ``ended``, the end of the turn."""

    ids: tuple[int, ...]
    start: int
    ended: bool = False

    @property
    def new(self) -> tuple[int, ...]:
        return self.ids[self.start :]


LIKELY = 20
"""How many of the most probable tokens to request, besides the excluded ones. vLLM reports no
more."""

Scorer = Callable[[str, Sequence[Path]], list[list[float]]]
"""(query id, paths) -> for each path one log-probability per new token, and one for its end if it
ends."""


class Dialect(TokenizingEngine):
    """The requests of one kind of engine."""

    name: str

    def __init__(self, client: Client, model: str) -> None:
        self.client = client
        self.model = model
        self.stops: Sequence[int] = ()
        """The tokens that end a turn. They are set, like ``words``, when the tokenizer is known."""
        self.words: Words

    def tokenizer(self) -> ServerTokenizer:
        """The server's own tokenizer."""
        return ServerTokenizer(self)

    @abstractmethod
    def draw(self, draw: Draw) -> Drawn:
        """Draw tokens."""

    @abstractmethod
    def stream(self, draw: Draw) -> Iterator[list[Piece]]:
        """Draw tokens; each list has what has arrived by now. Nothing is excluded."""

    @abstractmethod
    def scorers(self) -> Mapping[str, Scorer]:
        """The ways in which the engine may be able to score, the cheapest first. A trial finds out
        which of them are right."""

    def scorer(self, known: Mapping[str, Scorer], size: int) -> Scorer:
        """The best of these scorers for a context of this size."""
        return next(iter(known.values()))

    def limit(self) -> int | None:
        """The most tokens of prompt and answer together, if the list of models says so."""
        listed = {entry.get("id"): entry for entry in self.client.models()}
        entry = listed.get(self.model, {})
        base = listed.get(entry.get("parent"), {})  # vLLM lists a LoRA adapter without a limit
        return entry.get("max_model_len") or base.get("max_model_len")

    def forget(self, key: str) -> None:
        """Forget this query, which is over."""
        return

    # --- checks of replies ------------------------------------------------------------------------

    def check_finished(self, reason: Any) -> None:
        """Raise unless this is a reason for which an engine ends a complete reply. Only this field
        shows that a reply was stopped: the rest looks complete."""
        if reason not in ("stop", "length"):
            raise MemberError(f"{self.model} broke off ({reason})", member=self.model)

    def logprobs(self, values: Iterable[Any], count: int) -> tuple[float, ...]:
        """The log-probabilities of a reply. Raises unless they are ``count`` numbers."""
        values = tuple(values)
        if len(values) != count:
            message = (
                f"{self.model} returned {amount(len(values), 'log-probability')} for "
                f"{amount(count, 'token')}"
            )
            raise MemberError(message, member=self.model)
        for value in values:
            if value is None or math.isnan(value):  # JSON has no NaN, and servers send null
                message = f"{self.model} returned {value!r} as a log-probability"
                raise MemberError(message, member=self.model, kind="nan")
        return tuple(min(0.0, float(value)) for value in values)

    def check_same(self, returned: Sequence[int], asked: Sequence[int]) -> None:
        """Raise unless the reply is about the requested tokens. Some servers ignore fields that
        they do not know."""
        if list(returned) != list(asked):
            message = (
                f"{self.model} was asked about the tokens {list(asked)[:8]} and returned "
                f"{list(returned)[:8]}"
            )
            raise MemberError(message, member=self.model)


def cached_tokens(count: int | None, most: int) -> int | None:
    """How many of the prompt's tokens were in a cache, if the reply says so."""
    return None if count is None else min(count, most)
