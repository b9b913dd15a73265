"""Track who wrote which text of an answer, and how many tokens it has, while rounds agree on more
text, hold some of it back, and withdraw some again."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from .round import Round
from .values import Draft


class Piece(NamedTuple):
    """A piece of the text that a round releases."""

    round: Round
    """The round that agreed on it: this round, or an earlier one that held it back."""
    text: str
    is_forced: bool = False
    """A constraint allowed no other text."""

    @property
    def author(self) -> str:
        """The member that wrote it; empty for forced text."""
        return "" if self.is_forced else self.round.member


class ReleasedText:
    """Tells who wrote the text that each round releases, which earlier rounds may have held
    back."""

    def __init__(self) -> None:
        self._held: list[Piece] = []
        """Agreed text that is not released yet."""

    def add(self, round: Round) -> list[Piece]:
        """The text that this round releases, in pieces."""
        self._withdraw(len(round.withdrawn))
        text = round.text
        for pieces in _splits(round):
            agreed = [*self._held, *pieces]
            if "".join(piece.text for piece in agreed).startswith(text):
                self._held = agreed
                return self._take(len(text))
        self._held = []  # the round's text does not follow from its segment
        return [Piece(round, text)] if text else []

    def _withdraw(self, length: int) -> None:
        while length > 0 and self._held:
            last = self._held.pop()
            if len(last.text) > length:
                self._held.append(last._replace(text=last.text[:-length]))
            length -= len(last.text)

    def _take(self, length: int) -> list[Piece]:
        taken: list[Piece] = []
        while length > 0:
            first = self._held.pop(0)
            if len(first.text) > length:
                self._held.insert(0, first._replace(text=first.text[length:]))
                first = first._replace(text=first.text[:length])
            taken.append(first)
            length -= len(first.text)
        return taken


def _splits(round: Round) -> Iterator[list[Piece]]:
    """All ways to split the forced text into a part before the segment and a part after it."""
    forced = round.forced
    for start in range(len(forced) + 1):
        pieces = [
            Piece(round, forced[:start], is_forced=True),
            Piece(round, round.segment.text),
            Piece(round, forced[start:], is_forced=True),
        ]
        yield [piece for piece in pieces if piece.text]


class AgreedTokens:
    """Counts the tokens of the agreed drafts, each in its author's own tokens, less the tokens of
    text that was withdrawn.

    >>> from langchain_specfuse.core.round import Round
    >>> from langchain_specfuse.core.values import Draft, Segment
    >>> def agreed(number, text, tokens, withdrawn=""):
    ...     drafts = {"a": Draft(text, tokens=tokens)}
    ...     segment = Segment(text)
    ...     return Round(
    ...         number, text, segment, "a", drafts, {}, {}, {}, {}, {}, {}, withdrawn=withdrawn
    ...     )
    >>> tokens = AgreedTokens()
    >>> tokens.add(agreed(1, "It is", (1, 2)))
    >>> tokens.add(agreed(2, " guaranteed.", (3, 4)))
    >>> tokens.add(agreed(3, " likely.", (5, 6), withdrawn=" guaranteed."))
    >>> tokens.count(), tokens.withdrawn
    (4, 2)
    """

    def __init__(self) -> None:
        self.withdrawn = 0
        """How many tokens were withdrawn."""
        self._length = 0
        """The length of the agreed text, including what a stop string removes later."""
        self._pieces: list[tuple[int, int, str]] = []
        """The end of each piece in the agreed text, its length in tokens and its author. A piece is
        one token, or a whole draft if its author does not report where its tokens end."""

    def add(self, round: Round) -> None:
        """Withdraw what this round withdraws, then add its winning draft."""
        self._length -= len(round.withdrawn)
        while self._pieces and self._pieces[-1][0] > self._length:
            self.withdrawn += self._pieces.pop()[1]
        for end, tokens in _pieces_of(round.drafts[round.winner]):
            self._pieces.append((self._length + end, tokens, round.member))
        self._length += len(round.segment.text) + len(round.forced)

    def count(self, without: Collection[str] = ()) -> int:
        """How many tokens were agreed, without those of some members."""
        return sum(tokens for _, tokens, author in self._pieces if author not in without)


def _pieces_of(draft: Draft) -> Iterator[tuple[int, int]]:
    """The end of each token in the draft, each with 1; or the end of the draft with its length in
    tokens."""
    if draft.ends is not None and len(draft.ends) == len(draft.tokens) > 0:
        for end in draft.ends:
            yield end, 1
    elif length := draft.size:
        yield len(draft.text), length
