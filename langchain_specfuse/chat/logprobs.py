"""Report the log-probabilities of an answer's tokens in OpenAI's format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..core.round import Round
from ..core.values import Draft

LEAST = -9999.0
"""OpenAI's value for a token with almost no probability. JSON has no infinity."""


class AnswerLogprobs:
    """Collects the tokens of the agreed drafts, with the log-probabilities that their writers
    reported. Tokens of text that is withdrawn again are dropped.

    Text without log-probabilities is left out: text that a constraint forces, drafts that the
    referee cut or respaced, and segments of members that do not report any, such as most hosted
    models. If a writer does not report where its tokens end, its whole segment becomes one entry.
    """

    def __init__(self) -> None:
        self._length = 0
        """The length of the answer, including text that a stop string removes later."""
        self._tokens: list[tuple[int, str, float]] = []
        """For each token: its end in the answer, its text and its log-probability."""

    def add(self, round: Round) -> None:
        """Drop what this round withdraws, then add the segment that it agreed."""
        self._length -= len(round.withdrawn)
        while self._tokens and self._tokens[-1][0] > self._length:
            self._tokens.pop()
        end = self._length
        for text, logprob in _tokens_of(round.drafts[round.winner]):
            end += len(text)
            self._tokens.append((end, text, logprob))
        self._length += len(round.segment.text) + len(round.forced)

    def content(self, shown: int | None = None) -> list[dict[str, Any]]:
        """The tokens in OpenAI's format. ``shown`` is the length to which a stop string or a
        check cut the answer, or None."""
        return [
            {
                "token": text,
                "bytes": list(text.encode("utf-8", "replace")),
                "logprob": max(logprob, LEAST),
                "top_logprobs": [],
            }
            for end, text, logprob in self._tokens
            if shown is None or end <= shown
        ]


def _tokens_of(draft: Draft) -> Iterator[tuple[str, float]]:
    """The texts of a draft's tokens with their log-probabilities, without the end of the turn."""
    logprobs = (draft.logprobs or ())[: len(draft.tokens)]
    if not logprobs:
        return
    if draft.ends is None or len(draft.ends) != len(logprobs):
        yield draft.text, sum(logprobs)
        return
    begin = 0
    for end, logprob in zip(draft.ends, logprobs, strict=True):
        yield draft.text[begin:end], logprob
        begin = max(begin, end)
