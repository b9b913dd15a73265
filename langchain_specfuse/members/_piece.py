"""A draft as its tokens come in, a handful at a time, until it has come to its end.

Where a draft ends is what the in-process member's drawing says too: where the model ends its turn, where a stop string
appears, where the budget does, or at the last safe boundary once it is long enough. Knows tokens and text; nothing of
where they come from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..core.answer import first_stop, held_back, kept_tokens
from ..core.values import DraftJob
from ._dialects import Drawn
from ._text import OVERTIME, Words, complete, tail_of


@dataclass
class Piece:
    """One draft on its way."""

    job: DraftJob
    words: Words
    context: Sequence[int]
    limit: int
    """Tokens that may be drawn at most."""
    end_text: str = ""
    """Words that end a turn, for a model without tokens that do."""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] | None = field(default_factory=list)
    ended: bool = False
    end_logprob: float = 0.0
    done: bool = False
    kept: int = 0
    rest: list[int] = field(default_factory=list)
    """The answer's last characters, where their token also begins the words that end the turn."""
    text: str = ""
    ends: list[int] = field(default_factory=list)

    @property
    def wanted(self) -> int:
        """How many tokens to draw next."""
        return min(self.job.segment_tokens, self.limit - len(self.tokens))

    def take(self, drawn: Drawn) -> None:
        """Some more tokens, looked at one by one: where the draft ends must not depend on how they came."""
        before = len(self.tokens)
        self.tokens += drawn.tokens
        self.logprobs = None if self.logprobs is None or drawn.logprobs is None else [*self.logprobs, *drawn.logprobs]
        self.text, self.ends = self.words.told(self.context, self.tokens)
        for size in range(before + 1, len(self.tokens) + 1):
            self._look(size)
            if self.done:
                return
        if drawn.ended:
            self.ended = self.done = True
            self.kept, self.end_logprob = len(self.tokens), drawn.end_logprob
        elif len(drawn.tokens) == 0:  # nothing more comes: what is there is the draft
            self.done, self.kept = True, complete(self.ends)

    def result(self) -> tuple[list[int], list[float] | None]:
        """The tokens that are kept, and their log-probabilities with that of the end."""
        kept = self.tokens[: self.kept] + self.rest
        if self.logprobs is None:
            return kept, None
        told = self.logprobs[: self.kept + bool(self.rest)] + [0.0] * (len(self.rest) - 1)
        return kept, [*told, self.end_logprob] if self.ended else told

    def _look(self, size: int) -> None:
        """Whether the draft has come to its end with this token."""
        ends = self.ends[:size]
        text = self.text[: ends[-1]]
        if self._ends_in_words(text, ends):
            return
        wanted = self.job.segment_tokens
        if first_stop(tail_of(self.job) + text, self.job.stop) is not None or size >= self.limit:
            self.done, self.kept = True, complete(ends)
        elif size >= wanted:
            open_end = len(text) - held_back(text, (self.end_text,))
            whole = sum(end <= open_end for end in ends)
            self.kept = kept_tokens(text, ends, min(wanted, whole)) or kept_tokens(text, ends, whole)
            self.done = self.kept > 0 or size >= OVERTIME * wanted + 8
            self.kept = self.kept or complete(ends)

    def _ends_in_words(self, text: str, ends: Sequence[int]) -> bool:
        at = text.find(self.end_text) if self.end_text else -1
        if at < 0:
            return False
        self.kept = sum(end <= at for end in ends)
        said = ends[self.kept - 1] if self.kept else 0
        self.rest = self.words.continuing(text[said:at]) if said < at else []
        if self.logprobs is not None:
            self.end_logprob = math.fsum(self.logprobs[self.kept + bool(self.rest) : len(ends)])
        self.ended = self.done = True
        return True
