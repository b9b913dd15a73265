"""The log-probabilities of an answer's tokens, in OpenAI's shape."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..core.values import Draft, Round

LEAST = -9999.0
"""What OpenAI writes for a token that is as good as impossible: JSON has no infinity."""


class AnswerLogprobs:
    """Collects the tokens of the agreed drafts, each as its writer drew it.

    What has no log-probability is left out: text that a constraint forces, drafts that the referee
    cut or spaced anew, and segments of members that do not report any, such as most hosted models.
    A writer that does not report where its tokens end has one entry for its whole segment.
    """

    def __init__(self) -> None:
        self._length = 0
        """How long the answer is, with what a stop string cuts away later."""
        self._found: list[tuple[int, str, float]] = []
        """Where in the answer each token ends, its text, its log-probability."""

    def add(self, round: Round) -> None:
        """Add what this round has agreed."""
        draft, begin = round.drafts[round.winner], self._length
        at = 0
        for text, logprob in _tokens(draft):
            at += len(text)
            self._found.append((begin + at, text, logprob))
        self._length += len(round.segment.text) + len(round.forced)

    def content(self, shown: int | None = None) -> list[dict[str, Any]]:
        """OpenAI's list. ``shown``: the answer was cut after so many characters."""
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
    """The texts of a draft's tokens with their log-probabilities; the end of the turn has no
    text."""
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
