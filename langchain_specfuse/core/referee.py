"""Who says what may stand in an answer, where the query has a constraint. Knows texts, no tokens and no members.

The loop asks a referee about every draft, whoever wrote it: a member that masks its own drafting passes unchanged, one
that cannot is cut at the last legal character. The implementation that reads grammars is in ``constraints``.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol


class Referee(Protocol):
    """All questions are about texts that are legal so far: ``answer`` is a legal beginning of a whole answer."""

    def legal(self, answer: str, draft: str) -> int:
        """How many characters of the draft may stand after the answer."""

    def may_end(self, answer: str) -> bool:
        """Whether the answer is whole."""

    def forced(self, answer: str) -> str:
        """What must come next, as far as there is only one way on ("" if there is a choice, or the answer must end).

        White space at its end is left to the members: many tokenizers join it to the next word.
        """

    def must_end(self, answer: str) -> bool:
        """Whether the answer is whole and nothing may follow."""

    def spans(self, answer: str, draft: str) -> tuple[tuple[int, int], ...]:
        """Where the draft (legal after the answer) had no choice: [from, to) in its characters."""

    def closing(self, answer: str) -> str:
        """The shortest way found to make the answer whole ("" if it is)."""

    def same(self, answer: str, draft: str) -> Hashable:
        """Drafts with equal values here mean the same: their text, or the calls that they complete."""

    def prose(self, answer: str) -> int:
        """How many of the first characters are free text: stop strings are looked for in these alone."""


class Unbound:
    """The referee of a query without a constraint: everything is legal, nothing is forced."""

    def legal(self, answer: str, draft: str) -> int:
        return len(draft)

    def may_end(self, answer: str) -> bool:
        return True

    def forced(self, answer: str) -> str:
        return ""

    def must_end(self, answer: str) -> bool:
        return False

    def spans(self, answer: str, draft: str) -> tuple[tuple[int, int], ...]:
        return ()

    def closing(self, answer: str) -> str:
        return ""

    def same(self, answer: str, draft: str) -> Hashable:
        return draft

    def prose(self, answer: str) -> int:
        return len(answer)


FREE = Unbound()
