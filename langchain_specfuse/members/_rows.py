"""What a slab remembers of one query: its tokens, and the ways to go on that were read and not yet chosen."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from ._adapters import Adapter


@dataclass
class Branch:
    """Tokens read as one way to go on from ``start``, kept in columns of their own until it wins or is forgotten."""

    start: int
    ids: list[int]
    column: int
    refed: bool
    """True: its first token is the last one shared with the row, read once more for the logits after it."""
    logits: Tensor | None = None


@dataclass
class Row:
    """One query's tokens in the slab."""

    key: str
    index: int
    adapter: Adapter | None = None
    ids: list[int] = field(default_factory=list)
    logits: dict[int, Tensor] = field(default_factory=dict)
    """Next-token logits after the first n tokens, for the few n that will be asked for again."""
    branches: list[Branch] = field(default_factory=list)
    ahead: int = 0
    """So many tokens were read piece by piece since the last job was done."""
    due: int = 0
    """So many it will be when it has been read."""
    asked: bool = False
    """Whether any job was done: before that, all that it holds was read ahead."""
    ends: dict[int, Tensor] = field(default_factory=dict)
    """The same where prompts ended, of this query and of those that it goes on from."""

    @property
    def mark(self) -> int:
        return self.adapter.mark if self.adapter else 0

    def cut(self, length: int) -> None:
        """Only the first tokens."""
        self.ids = self.ids[:length]
        self.logits = {n: logits for n, logits in self.logits.items() if n <= length}
        self.ends = {n: logits for n, logits in self.ends.items() if n <= length}
        self.branches = []

    def apart(self) -> list[Branch]:
        """The branches that lie behind all of the row's tokens: writing those has not touched them."""
        return [branch for branch in self.branches if branch.column >= len(self.ids)]
