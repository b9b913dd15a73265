"""From logits to log-probabilities: of tokens, of a candidate, and of the end of the turn as one
event."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from langchain_specfuse.core.values import Candidate
from langchain_specfuse.members.text.words import Words, either

from .strands import Logits


def logprobs_of(logits: Logits, tokens: Sequence[int]) -> list[float]:
    """The log-probability of one token per row. logits: (rows, vocabulary)."""
    return [
        _at_most_0(float(row[token]) - _logsumexp(row))
        for row, token in zip(logits, tokens, strict=True)
    ]


def end_logprobs(logits: Logits, stops: Sequence[int]) -> list[float]:
    """The log-probability, per row, that the turn ends here with any of the stop tokens. -inf if
    there are none."""
    return [
        _at_most_0(_logsumexp(row[list(stops)]) - _logsumexp(row)) if stops else -math.inf
        for row in logits
    ]


def _logsumexp(row: Logits) -> float:
    most = float(row.max())
    # Where nothing is finite the answer is the maximum itself: -inf, inf or not a number.
    return (
        most + math.log(float(np.exp(row - row.max()).sum(dtype=np.float64)))
        if math.isfinite(most)
        else most
    )


def _at_most_0(logprob: float) -> float:
    """What is not a number stays that."""
    return 0.0 if logprob > 0 else logprob


@dataclass(frozen=True)
class CandidateTokens:
    """A candidate as one member reads it."""

    candidate: Candidate
    ids: list[int]
    """Prompt, answer and candidate; if the candidate ends the answer, then the words that end a
    turn, if any."""
    size: int
    """Their number without the words of the end."""

    def logprobs(self, logits: Logits, stops: Sequence[int]) -> tuple[float, ...]:
        """One number per new token, and one for the end.

        ``logits``: before each new token and after the last, (new tokens + 1, vocabulary).
        """
        new = self.ids[len(self.ids) + 1 - len(logits) :]
        known = logprobs_of(logits[: len(new)], new) if new else []
        count = len(new) - (len(self.ids) - self.size)
        if not self.candidate.ended:
            return tuple(known)
        end = end_logprobs(logits[count : count + 1], stops)[0]
        if len(self.ids) > self.size:
            end = either([end, math.fsum(known[count:])])
        return (*known[:count], end)

    def ends(self, logits: Logits, words: Words) -> tuple[int, ...]:
        """As :meth:`.Words.ends`."""
        start = len(self.ids) + 1 - len(logits)
        return words.ends(self.ids[:start], self.ids[start : self.size], self.candidate.text)
