"""The log-probabilities of an answer's tokens, in OpenAI's shape."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..core.round import Round
from ..core.values import Draft

LEAST = -9999.0
"""OpenAI's value for a token with almost no probability, because JSON has no infinity."""


class AnswerLogprobs:
    """Collects the tokens of the agreed drafts, each as its writer drew it.

    Text without log-probabilities is left out: text that a constraint forces, drafts that the
    referee cut or respaced, and segments of members that do not report any, such as most hosted
    models. If a writer does not report where its tokens end, its whole segment is one entry.
    """

    def __init__(self) -> None:
        self._length = 0
        """The length of the answer, including text that a stop string removes later."""
        self._found: list[tuple[int, str, float]] = []
        """For each token: where in the answer it ends, its text, its log-probability."""

    def add(self, round: Round) -> None:
        """Add the segment that was agreed in this round."""
        draft, begin = round.drafts[round.winner], self._length
        at = 0
        for text, logprob in _tokens(draft):
            at += len(text)
            self._found.append((begin + at, text, logprob))
        self._length += len(round.segment.text) + len(round.forced)

    def content(self, shown: int | None = None) -> list[dict[str, Any]]:
        """The tokens in OpenAI's format. ``shown``: the length to which a stop string cut the
        answer; None: it was not cut."""
        return [
            {
                "token": text,
                "bytes": list(text.encode("utf-8", "replace")),
                "logprob": max(logprob, LEAST),
                "top_logprobs": [],
            }
            for end, text, logprob in self._found
            if shown is None or end <= shown
        ]


def _tokens(draft: Draft) -> Iterator[tuple[str, float]]:
    """The texts of a draft's tokens with their log-probabilities, without the end of the turn."""
    known = (draft.logprobs or ())[: len(draft.tokens)]
    if not known:
        return
    if draft.ends is None or len(draft.ends) != len(known):
        yield draft.text, sum(known)
        return
    begin = 0
    for end, logprob in zip(draft.ends, known, strict=True):
        yield draft.text[begin:end], logprob
        begin = max(begin, end)
