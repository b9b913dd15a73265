"""One draft being drawn: what is there of it, what it must keep to, and what was read along for it.

Knows tokens; the drawing itself is in ``_drawing``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from ..core.values import DraftJob, Failure, Sampling
from ._bound import Bound
from ._lookahead import SIZES, Foresight, Trail
from ._text import OVERTIME


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
    bound: Bound | None = None
    """Where the draft stands under the query's constraint, if it has one."""
    failure: Failure | None = None
    """Why there is no draft."""
    beyond: list[int] = field(default_factory=list)
    """What was drawn behind the draft's end before anybody looked: how the next draft begins, should this one win."""
    beyond_logprobs: list[float] = field(default_factory=list)
    trail: Trail | None = None
    """What may be guessed from; None: nothing is."""
    hints: list[list[int]] = field(default_factory=list)
    """Others' drafts for this place as whole lists of tokens, to be read along with the first token."""
    hinted: list[Tensor] | None = None
    """The logits before each new token of these and after the last, once they have been read."""
    foresight: Foresight = field(default_factory=Foresight)

    @property
    def ids(self) -> list[int]:
        return self.context + self.tokens

    @property
    def far(self) -> int:
        """How many more tokens can be of use: those that are drawn without the next one being needed do not count."""
        in_call = self.bound is not None and self.bound.state.in_call
        wanted = self.job.call_tokens if in_call else self.job.segment_tokens
        size = len(self.tokens)
        return min(self.limit, wanted if size < wanted else OVERTIME * wanted + 8) - size - 1

    def put(self, token: int, logprob: float, logits: Tensor | None) -> None:
        self.tokens.append(token)
        self.logprobs.append(logprob)
        self.logits.append(logits)

    def known_again(self) -> int:
        """How many of the tokens would be drawn again as they are after what was kept of them.

        Forced text is not drawn: where it is read in one piece depends on where the draft begins.
        """
        return min([len(self.tokens), *(at for at in (self.bound.read if self.bound else ()) if at >= self.kept)])


def room_for(job: DraftJob) -> int:
    """More tokens than a draft and what is read along with it can be."""
    size = OVERTIME * max(job.segment_tokens, job.call_tokens if job.query.constraint else 0) + 8
    if job.hints is None:
        return size
    # The draft itself, what was drafted ahead of it, read once more beside the hints, and a guess behind each.
    return 2 * (size + max(SIZES)) + sum(len(hint.text.encode()) + 8 for hint in job.hints)
