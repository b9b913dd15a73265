"""What a member keeps of one query beside its cache. All of it can be made again from a job."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..core.values import Sampling, Segment
from ._bound import Standing
from ._lookahead import Trail
from ._text import Words


@dataclass
class Memo:
    """One query's tokens, and what is known of how they go on."""

    prompt: list[int]
    """With what it has thought, if it thinks."""
    asked: int = 0
    """How much of that is the prompt."""
    thought: str = ""
    found: int | None = None
    """How much of the prompt was known already when the thought began; None where there is none, or it was told."""
    settled: tuple[Segment, ...] = ()
    """The answer up to the last own segment: what comes before it never changes again."""
    settled_ids: list[int] = field(default_factory=list)
    ahead: list[int] = field(default_factory=list)
    """The last draft's tokens, with those that were cut off: drawn again, they would come out the same."""
    ahead_logprobs: list[float] = field(default_factory=list)
    ahead_after: list[int] = field(default_factory=list)
    ahead_how: Sampling | None = None
    standing: Standing | None = None
    """Where the agreed answer stands under the query's constraint."""

    trail: Trail | None = None
    """What may be guessed from, once a job has wanted guesses."""
    checked: dict[tuple[str, bool], tuple[float, ...]] = field(default_factory=dict)
    """The log-probabilities of candidates that were read along with the last draft, by text and end."""
    checked_after: list[int] = field(default_factory=list)

    def known(self, context: list[int]) -> dict[tuple[str, bool], tuple[float, ...]]:
        """What was read along at this place."""
        return self.checked if self.checked_after == context else {}

    def read(self, me: str, words: Words, answer: tuple[Segment, ...]) -> list[int]:
        """Prompt and answer in tokens; from the last own segment on, so that a long answer costs no more."""
        count = len(self.settled)
        if answer[:count] != self.settled or not count:
            count, self.settled, self.settled_ids = 0, (), self.prompt
        own = max((i for i in range(count, len(answer)) if me in answer[i].tokens), default=-1) + 1
        if own > count:
            self.settled_ids = words.answer_ids(me, self.settled_ids, answer[count:own])
            count, self.settled = own, answer[:own]
        return words.answer_ids(me, self.settled_ids, answer[count:])
