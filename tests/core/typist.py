"""A small language model for tests: it writes tokens that are often parts of words, and heeds
exclusions and sampling."""

from __future__ import annotations

import random
from collections.abc import Sequence

from langchain_specfuse.core.answer import kept_tokens
from langchain_specfuse.core.values import Draft, DraftJob, Scored, ScoreJob

VOCABULARY = (
    *(" the", " cat", " ca", "t", "s", "e", "gory", " dog", " Dog", " sat", " gua", "rantee"),
    *(",", ".", "!", " 19", "84", " 3", "5", "\n", "\n\n", " a", " I", " can", "'t", "天", "空"),
)
END = -1


class Typist:
    """Its next token depends on the text so far, the seed and the position alone."""

    def __init__(self, seed: int, length: int = 40, words: Sequence[str] = VOCABULARY) -> None:
        self.seed = seed
        self.length = length
        self.words = words
        self.tokens_written = 0

    def __call__(self, job: DraftJob | ScoreJob, _: int) -> Draft | Scored:
        if isinstance(job, ScoreJob):
            rows = [[-1.0] * (len(c.text) + c.ended) for c in job.candidates]
            return Scored(tuple(tuple(row) for row in rows))
        return self._draft(job)

    def _draft(self, job: DraftJob) -> Draft:
        answer = "".join(segment.text for segment in job.answer)
        text = ""
        tokens: list[int] = []
        ends: list[int] = []
        others: tuple[tuple[int, str], ...] = ()
        most = min(job.max_tokens, job.segment_tokens + 12)
        while len(tokens) < most:
            order = self._order(answer + text, job)
            if not tokens:
                allowed = [token for token in order if token not in job.excluded]
                order = allowed or order  # as members promise
                others = tuple((t, self.words[t]) for t in order[1:] if t != END)
            if order[0] == END:
                return Draft(text, True, tuple(tokens), None, ends=tuple(ends), others=others)
            tokens.append(order[0])
            text += self.words[order[0]]
            ends.append(len(text))
            if len(tokens) > job.segment_tokens:
                kept = kept_tokens(text, ends, len(tokens))
                if kept:
                    tokens, ends = tokens[:kept], ends[:kept]
                    text = text[: ends[-1]]
                    break
        self.tokens_written += len(tokens)
        others = others if job.excluded else ()
        return Draft(text, False, tuple(tokens), None, ends=tuple(ends), others=others)

    def _order(self, text: str, job: DraftJob) -> list[int]:
        """All tokens, the most probable first."""
        if len(text) >= 4 * self.length:
            return [END, *range(len(self.words))]
        noise = job.sampling.seed if job.sampling.temperature else 0
        rng = random.Random(f"{self.seed} {noise} {text}")
        order = list(range(len(self.words)))
        rng.shuffle(order)
        if len(text) > 2 * self.length and rng.random() < 0.1:
            return [END, *order]
        return order
