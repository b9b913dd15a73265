"""Generates the thought of a reasoning model before its first word, once per query. It is not part
of the answer.

A thought depends on the query alone. It is greedy whatever the job's sampling is, so drafts and
scores are based on the same thought, even after the member has lost its caches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ...core.answer import continues_loop
from ...core.values import Sampling
from ..text.thinking import Marks
from ..text.words import REPLACEMENT, Words
from .cache import Cache
from .logits import sample
from .strands import SequenceKey

TAIL = 16
"""The mark that closes a thought is searched for in the last tokens: as many as it has bytes, plus
this many."""
LOOP_EVERY = 64
"""How often, in tokens, a thought is checked: one that only repeats itself is closed."""


@dataclass
class Thought:
    """A query's thought while it is generated."""

    key: SequenceKey
    prompt: list[int]
    budget: int
    words: Words
    stops: Sequence[int]
    sampling: Sampling
    marks: Marks
    tokens: list[int] = field(default_factory=list)
    done: bool = False
    text: str = ""
    ids: list[int] = field(default_factory=list)
    """The prompt with the whole thought, closed."""

    def take(self, token: int) -> None:
        if token in self.stops:
            self.done = True
            return
        self.tokens.append(token)
        size = len(self.tokens)
        self.done = size >= self.budget or self.marks.close.strip() in self._decoded(
            self.tokens[-self._tail :]
        )
        if not self.done and size % LOOP_EVERY == 0:
            last = self._decoded(self.tokens[-LOOP_EVERY:])
            self.done = continues_loop(self._decoded(self.tokens[:-LOOP_EVERY]), last)

    def close(self) -> None:
        """Turn the thought into the answer's context. The mark that ends it is added, whether the
        model has written it or not."""
        kept, rest = self._until_end()
        self.text = (self._decoded(kept) + rest).rstrip(REPLACEMENT).strip()
        base = self.prompt + kept
        end = self.marks.close.lstrip()
        line = self.marks.close.removesuffix(end)
        if self.text and (self._decoded(kept[-4:]) + rest).endswith(line):
            line = ""
        self.ids = base + self.words.after(base, f"{rest}{line}{end}", marks=True)

    def _until_end(self) -> tuple[list[int], str]:
        """The tokens before the end of the thought, and the text between them and it."""
        head, tail = self.tokens[: -self._tail], self.tokens[-self._tail :]
        at = self._decoded(tail).find(self.marks.close.strip())
        if at < 0:
            while tail and self._decoded(tail).endswith(REPLACEMENT):
                tail.pop()  # half a character
            return head + tail, ""
        count = max(n for n in range(len(tail) + 1) if len(self._decoded(tail[:n])) <= at)
        return head + tail[:count], self._decoded(tail)[len(self._decoded(tail[:count])) : at]

    @property
    def _tail(self) -> int:
        return len(self.marks.close.encode()) + TAIL

    def _decoded(self, ids: Sequence[int]) -> str:
        """The text with special tokens: the end of a thought may be one."""
        text: str = self.words.tokenizer.decode(
            list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text


def think(cache: Cache, thoughts: list[Thought]) -> None:
    """Generate these thoughts together, token by token, until each is closed or has used its
    budget."""
    for thought in thoughts:
        thought.done = thought.budget <= 0
    writing = [thought for thought in thoughts if not thought.done]
    rows = []
    if writing:
        rows = cache.prefill([(thought.key, thought.prompt) for thought in writing], drafting=True)
    while writing:
        tokens = sample(
            np.stack(rows), [t.sampling for t in writing], [t.prompt + t.tokens for t in writing]
        )
        for thought, token in zip(writing, tokens, strict=True):
            thought.take(token)
        writing = [thought for thought in writing if not thought.done]
        if writing:
            rows = cache.decode(
                [thought.key for thought in writing], [thought.tokens[-1] for thought in writing]
            )
    for thought in thoughts:
        thought.close()
