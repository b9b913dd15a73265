"""Drawing drafts: one token at a time for many queries at once, until each draft has come to its end.

A draft ends where the model ends its turn, where a stop string appears, where the budget does, or at the last safe
boundary once it is long enough. Knows tokens, text and the store; nothing of prompts, jobs' replies or scores.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor, stack

from ..core.answer import first_stop, held_back, kept_tokens
from ..core.values import DraftJob, Sampling
from ._sampling import chosen, end_logprobs, logprobs_of
from ._stores import Store
from ._text import Words

OVERTIME = 2
"""A draft without a safe boundary may go on to this many times its length, and a few tokens more."""


@dataclass
class Pen:
    """One draft being drawn."""

    job: DraftJob
    key: str
    context: list[int]
    how: Sampling
    limit: int
    """Tokens that may be drawn at most."""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    logits: list[Tensor | None] = field(default_factory=list)
    """The logits before each token, where known."""
    ended: bool = False
    end_logprob: float | None = None
    rest: list[int] = field(default_factory=list)
    """The answer's last characters, where the token that was drawn for them also begins the words that end the turn."""
    done: bool = False
    kept: int = 0

    def put(self, token: int, logprob: float, logits: Tensor | None) -> None:
        self.tokens.append(token)
        self.logprobs.append(logprob)
        self.logits.append(logits)


@dataclass(frozen=True)
class Drawing:
    """What all drafts of one member share."""

    words: Words
    store: Store
    stops: Sequence[int]
    """Tokens that end a turn."""
    end_text: str
    """Words that end a turn, for a model without such tokens."""

    def draw(self, pens: list[Pen], logits: dict[str, Tensor]) -> None:
        """One token at a time for all of them, until each has come to its end."""
        while writing := [pen for pen in pens if not pen.done]:
            rows = stack([logits[pen.key] for pen in writing])
            tokens = chosen(rows, [pen.how for pen in writing], [pen.context + pen.tokens for pen in writing])
            known = logprobs_of(rows, tokens)
            for pen, token, logprob, row in zip(writing, tokens, known, rows, strict=True):
                self._put(pen, token, logprob, row)
            going = [pen for pen in writing if not pen.done]
            if going:
                after = self.store.step([pen.key for pen in going], [pen.tokens[-1] for pen in going])
                logits = dict(zip((pen.key for pen in going), after, strict=True))

    def _put(self, pen: Pen, token: int, logprob: float, row: Tensor) -> None:
        if token in self.stops:
            pen.ended, pen.done = True, True
            pen.kept = len(pen.tokens)
            pen.end_logprob = end_logprobs(row[None], self.stops)[0]
            return
        pen.put(token, logprob, row)
        self.look(pen)

    def look(self, pen: Pen) -> None:
        """Whether this draft has come to its end: a stop string, the end of a turn in words, a boundary, the budget."""
        size, wanted = len(pen.tokens), pen.job.segment_tokens
        needs_text = self.end_text or pen.job.stop
        if not needs_text and size < min(wanted, pen.limit):
            return
        text, ends = self.words.told(pen.context, pen.tokens)
        if self._ends_in_words(pen, text, ends):
            return
        open_end = len(text) - held_back(text, (self.end_text,))
        if first_stop(_tail(pen.job) + text, pen.job.stop) is not None or size >= pen.limit:
            pen.done, pen.kept = True, _complete(ends)
        elif size >= wanted:
            # What may be the beginning of the end in words is not offered yet: the next tokens will tell.
            whole = sum(end <= open_end for end in ends)
            pen.kept = kept_tokens(text, ends, min(wanted, whole)) or kept_tokens(text, ends, whole)
            overtime = size >= OVERTIME * wanted + 8
            pen.done = pen.kept > 0 or overtime
            pen.kept = pen.kept or _complete(ends)

    def _ends_in_words(self, pen: Pen, text: str, ends: list[int]) -> bool:
        """A model without stop tokens of its own for a turn says its end in words, which are no part of the answer."""
        mark = self.end_text
        at = text.find(mark) if mark else -1
        if at < 0:
            return False
        pen.kept = sum(end <= at for end in ends)
        said = ends[pen.kept - 1] if pen.kept else 0
        pen.rest = self.words.continuing(text[said:at]) if said < at else []
        pen.end_logprob = math.fsum(pen.logprobs[pen.kept + bool(pen.rest) :])
        pen.ended = pen.done = True
        return True


def _complete(ends: Sequence[int]) -> int:
    """How many tokens end where a character is complete."""
    whole = len(ends)
    while whole > 1 and ends[whole - 1] == ends[whole - 2]:
        whole -= 1
    return whole


def _tail(job: DraftJob) -> str:
    """The end of the answer in which a stop string may have begun."""
    longest = max((len(word) for word in job.stop), default=1) - 1
    return "".join(segment.text for segment in job.answer)[-longest:] if longest else ""
