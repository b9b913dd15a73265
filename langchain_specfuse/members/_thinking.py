"""What a reasoning model thinks before its first word: drawn once per query, kept for itself.

A thought depends on the query alone: it is greedy whatever the job's sampling is, so that a draft and a score, or a
member that has lost everything, come by the same one. Knows tokens and the store; nothing of templates or constraints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor, stack

from ..core.answer import continues_loop
from ..core.values import Sampling
from ..errors import emptied
from ._leaps import MOST, Leaps, Start
from ._mishaps import is_shortage
from ._sampling import chosen
from ._stores import Store
from ._text import REPLACEMENT, Words
from ._thoughts import AFTER, CLOSE

TAIL = 24
"""The last tokens in which the end of a thought is looked for."""
LOOP_EVERY = 64
"""After so many tokens it is looked whether the thought only repeats itself: then it is closed."""


@dataclass
class Thought:
    """One query's, being drawn."""

    key: str
    prompt: list[int]
    budget: int
    tokens: list[int] = field(default_factory=list)
    done: bool = False
    text: str = ""
    ids: list[int] = field(default_factory=list)
    """The prompt with the whole thought, closed."""


@dataclass(frozen=True)
class Thinking:
    """What all thoughts of one member share."""

    words: Words
    store: Store
    stops: Sequence[int]
    how: Sampling
    leaps: Leaps | None = None

    def batches(self, thoughts: list[Thought]) -> None:
        """All of these, as many at once as fit into memory."""
        for part in self.store.batches([len(t.prompt) + max(t.budget, 0) for t in thoughts]):
            self._safely(thoughts[part])

    def _safely(self, thoughts: list[Thought]) -> None:
        """All of these at once; one by one, when the device runs out of memory."""
        try:
            return self.think(thoughts)
        except Exception as error:
            if not is_shortage(error) or len(thoughts) < 2:
                raise
            emptied(error)
        self.store.relieve()
        for thought in thoughts:
            thought.tokens = []
            self._safely([thought])

    def think(self, thoughts: list[Thought]) -> None:
        """One token at a time for all of them, until each is closed or has used its budget."""
        for thought in thoughts:
            thought.done = thought.budget <= 0
        writing = [thought for thought in thoughts if not thought.done]
        wants = [(thought.key, thought.prompt) for thought in writing]
        logits = dict(zip((key for key, _ in wants), self.store.lead(wants, exact=True), strict=True)) if wants else {}
        leaps = self.leaps if self.leaps and self.leaps.serve([thought.key for thought in writing]) else None
        while writing and leaps is not None:
            writing = self._leap(leaps, writing, logits)
        while writing:
            rows = stack([logits[thought.key] for thought in writing])
            drawn = chosen(rows, [self.how] * len(writing), [thought.prompt + thought.tokens for thought in writing])
            for thought, token in zip(writing, drawn, strict=True):
                self._take(thought, token)
            writing = [thought for thought in writing if not thought.done]
            if writing:
                after = self.store.step([t.key for t in writing], [t.tokens[-1] for t in writing])
                logits = dict(zip((t.key for t in writing), after, strict=True))
        for thought in thoughts:
            self._close(thought)

    def _leap(self, leaps: Leaps, writing: list[Thought], logits: dict[str, Tensor]) -> list[Thought]:
        """Several tokens for all of these; who is not done then."""
        starts = [
            Start(t.key, t.prompt + t.tokens, self.how, t.budget - len(t.tokens), logits.pop(t.key, None))
            for t in writing
        ]
        for thought, leapt in zip(writing, leaps.take(starts, MOST), strict=True):
            for token in leapt.tokens:
                if not thought.done:
                    self._take(thought, token)
        return [thought for thought in writing if not thought.done]

    def _take(self, thought: Thought, token: int) -> None:
        if token in self.stops:
            thought.done = True
            return
        thought.tokens.append(token)
        size = len(thought.tokens)
        thought.done = size >= thought.budget or CLOSE in self._shown(thought.tokens[-TAIL:])
        if not thought.done and size % LOOP_EVERY == 0:
            last = self._shown(thought.tokens[-LOOP_EVERY:])
            thought.done = continues_loop(self._shown(thought.tokens[:-LOOP_EVERY]), last)

    def _close(self, thought: Thought) -> None:
        """The thought as the answer's context: with its end, by the model's own word or by hand."""
        kept, rest = self._until_end(thought.tokens)
        thought.text = (self._shown(kept) + rest).rstrip(REPLACEMENT).strip()
        base = thought.prompt + kept
        line = "" if thought.text and (self._shown(kept[-4:]) + rest).endswith("\n") else "\n"
        thought.ids = base + self.words.after(base, f"{rest}{line}{CLOSE}{AFTER}", marks=True)

    def _until_end(self, tokens: list[int]) -> tuple[list[int], str]:
        """The tokens before the end of the thought, and what text there is between them and it."""
        head, tail = tokens[:-TAIL], tokens[-TAIL:]
        at = self._shown(tail).find(CLOSE)
        if at < 0:
            while tail and self._shown(tail).endswith(REPLACEMENT):
                tail.pop()  # half a character
            return head + tail, ""
        count = max(n for n in range(len(tail) + 1) if len(self._shown(tail[:n])) <= at)
        return head + tail[:count], self._shown(tail)[len(self._shown(tail[:count])) : at]

    def _shown(self, ids: Sequence[int]) -> str:
        """The text with special tokens in it: the end of a thought may be one."""
        text: str = self.words.tokenizer.decode(
            list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text
