"""Guessing how a draft goes on, so that one pass reads several of its tokens.

Where the last tokens stood before (in the prompt, in the answer, in others' drafts), what followed them then is read
along with the next token. A draft that says another word than somebody else's often goes on as that one does: so does
the guess. Each token is still drawn from the logits before it, with its own noise and under its own
mask: a guess changes when the logits are there, never what is drawn. Whether guessing pays hangs on how often guesses
have come true in this answer and on what a pass over more tokens costs here, which is measured once.

Knows token ids, logits and prices; nothing of text, jobs or votes.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from ._prefixes import common_prefix
from ._stores import Store

GRAMS = (3, 2)
"""A guess follows so many tokens that stood together before: the longer, the more often it comes true."""
SIZES = (3, 7)
"""So many tokens are guessed: with the one that is read anyway, four and eight, which kernels like."""
JOINED, SWAPPED = 1, 0
"""Where no such tokens are found, a guess follows the last token in another draft for this place, or the token that
stands there in the place of the last."""
PRIORS = {3: 0.6, 2: 0.4, JOINED: 0.5, SWAPPED: 0.4}
"""How often guesses come true before any was checked."""
FADE = 0.95
"""What each later token leaves of the weight of an earlier one."""
PROBE = 16
"""Where guessing does not pay, one chance in so many is taken all the same: a quotation may have begun."""
MEASURED = (1, 4, 8, 16)
REPEATS = 3


@dataclass
class Odds:
    """How often the tokens of guesses came true, the later ones counting more."""

    share: float
    checked: float = 2.0

    def learn(self, hit: bool) -> None:
        weight = FADE * self.checked
        self.share = (weight * self.share + hit) / (weight + 1.0)
        self.checked = weight + 1.0


@dataclass
class Way:
    """One way to go on that has been read along."""

    ids: list[int]
    rows: Tensor
    """The logits after each of them: (tokens, vocabulary)."""
    odds: Odds | None = None
    """Whom to tell how it went."""
    at: int = 0


@dataclass
class Foresight:
    """What was read along for one draft."""

    ways: list[Way] = field(default_factory=list)

    def after(self, token: int) -> Tensor | None:
        """The logits after this token, if it was foreseen; what goes on otherwise is forgotten."""
        found, going = None, []
        for way in self.ways:
            hit = way.ids[way.at] == token
            if way.odds:
                way.odds.learn(hit)
            if hit:
                found = way.rows[way.at]
                way.at += 1
                if way.at < len(way.ids):
                    going.append(way)
        self.ways = going
        return found


@dataclass
class Guess:
    """Tokens that may come next."""

    ids: list[int]
    odds: Odds

    def expected(self, size: int) -> float:
        """How many of the first ``size`` come true, if each does with the same chance: s + s² + ...

        >>> Guess([7, 7, 7], Odds(0.5)).expected(2), Guess([7], Odds(0.5)).expected(9), Guess([], Odds(0.5)).expected(3)
        (0.75, 0.5, 0)
        """
        return sum(self.odds.share**k for k in range(1, min(size, len(self.ids)) + 1))


class Trail:
    """What one query's text has shown so far: which tokens followed which."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.idle = 0
        self._odds = {kind: Odds(share) for kind, share in PRIORS.items()}
        self._after: dict[tuple[int, ...], tuple[list[int], int]] = {}
        self._begun, self._others = 0, list[Sequence[int]]()

    def follow(self, ids: Sequence[int]) -> None:
        """The text so far. A tail that is read in other tokens than before takes the place of the old one."""
        known = common_prefix(self.ids, list(ids))
        self.ids[known:] = ids[known:]
        self._learn(self.ids, known)

    def heard(self, ways: Sequence[Sequence[int]], start: int) -> None:
        """Other ways to go on, from ``start``: drafts, which may have lost."""
        for ids in ways:
            self._learn(list(ids[max(start - max(GRAMS), 0) :]), 0)

    def beside(self, ways: Sequence[Sequence[int]], start: int) -> None:
        """Others' drafts for the place of the one that begins now, behind ``start``."""
        self._begun, self._others = start, [ids[start:] for ids in ways]
        self.heard(ways, start)

    def _learn(self, ids: list[int], start: int) -> None:
        for at in range(start, len(ids)):
            for size in GRAMS:
                if at >= size:
                    self._after[tuple(ids[at - size : at])] = ids, at

    def guess(self, ids: Sequence[int], most: int) -> Guess | None:
        """What followed the end of these tokens when it stood somewhere before; else, how another draft goes on.

        >>> trail = Trail()
        >>> trail.follow([1, 2, 3, 4, 5, 6])
        >>> trail.guess([9, 2, 3], 2).ids, trail.guess([3, 2], 2)
        ([4, 5], None)
        """
        if most <= 0:
            return None
        for size in GRAMS:
            told, at = self._after.get(tuple(ids[-size:]), (None, 0))
            if told is not None and told[at : at + most]:
                return Guess(told[at : at + most], self._odds[size])
        kind, rest = joined(ids[self._begun :], self._others)
        return Guess(list(rest[:most]), self._odds[kind]) if rest else None


def joined(own: Sequence[int], others: Sequence[Sequence[int]]) -> tuple[int, Sequence[int]]:
    """How a draft that has parted from all others may go on as one of them does, and on what ground.

    Behind its last token, where another has that too, as near to the same place as can be; else behind what stands in
    its place there.

    >>> joined([1, 2, 9, 8, 4], [[1, 2, 3, 4, 5, 6]]) == (JOINED, [5, 6])
    True
    >>> joined([1, 2, 9], [[1, 2], [1, 2, 3, 4, 5, 6]]) == (SWAPPED, [4, 5, 6])
    True
    >>> joined([1, 2, 9], [[1, 2, 9]])[1], joined([], [[1]])[1]
    ([], [])
    """
    last = len(own) - 1
    found = [(abs(at - last), at, ids) for ids in others for at in range(len(ids) - 1) if own and ids[at] == own[last]]
    if found:
        _, at, ids = min(found, key=lambda place: place[0])
        return JOINED, ids[at + 1 :]
    return SWAPPED, next((ids[last + 1 :] for ids in others if own and ids[last + 1 :]), [])


class Prices:
    """What a pass over so many tokens costs here, beside one over a single token."""

    def __init__(self) -> None:
        self.known: dict[int, float] = {}

    def measure(self, store: Store, token: int) -> None:
        """Once, by the clock: from then on the same text makes the same guesses."""
        if self.known:
            return
        key, counted = "what a pass costs", (store.passed, store.reused)
        store.lead([(key, [token])])
        seconds = dict.fromkeys(MEASURED, math.inf)
        for _ in range(REPEATS):
            for size in MEASURED:
                store.turn_back(key, [token])
                since = time.perf_counter()
                float(store.stride([(key, [token] * size)])[0][-1, 0])  # the number is only there when the pass is over
                seconds[size] = min(seconds[size], time.perf_counter() - since)
        store.forget(key)
        store.passed, store.reused = counted
        # Whatever a busy machine made of it: more tokens cost no less than one, and no more than one by one.
        self.known = {size: min(max(took / seconds[1], 1.0), float(size)) for size, took in seconds.items()}

    def of(self, tokens: int) -> float:
        """Between and beyond what was measured, along straight lines.

        >>> prices = Prices()
        >>> prices.known = {1: 1.0, 4: 1.25, 8: 1.5, 16: 2.0}
        >>> [prices.of(size) for size in (1, 2, 8, 32)]
        [1.0, 1.0833333333333333, 1.5, 3.0]
        """
        sizes = sorted(self.known)
        upper = min(max(bisect_left(sizes, tokens), 1), len(sizes) - 1)
        low, high = sizes[upper - 1], sizes[upper]
        slope = (self.known[high] - self.known[low]) / (high - low)
        return self.known[low] + slope * (tokens - low)

    def best(self, guesses: Sequence[Guess | None]) -> int:
        """How many tokens to guess for these drafts, which share a pass: where a second brings most tokens.

        >>> prices = Prices()
        >>> prices.known = {1: 1.0, 4: 1.25, 8: 1.5, 16: 2.0}
        >>> prices.best([Guess([7] * 7, Odds(0.9))]), prices.best([Guess([7] * 7, Odds(0.4))])
        (7, 3)
        >>> prices.best([Guess([7] * 7, Odds(0.1))]), prices.best([Guess([7] * 7, Odds(0.4)), None, None, None])
        (0, 0)
        """
        return max((0, *SIZES), key=lambda size: self._pace(guesses, size))

    def _pace(self, guesses: Sequence[Guess | None], size: int) -> float:
        longest = max((len(guess.ids[:size]) for guess in guesses if guess), default=0)
        tokens = math.fsum(1.0 + (guess.expected(size) if guess else 0.0) for guess in guesses)
        return tokens / self.of((1 + longest) * len(guesses))


class Lookahead:
    """What members who share a memory guess."""

    def __init__(self) -> None:
        self.prices = Prices()

    def runs(self, asked: Sequence[tuple[Trail | None, Sequence[int], int]]) -> list[Guess | None]:
        """For each draft that shares the next pass (its trail, all tokens so far, how many more can be of use) what to
        read along."""
        guesses = [trail.guess(ids, min(most, max(SIZES))) if trail else None for trail, ids, most in asked]
        if not any(guesses):
            return guesses
        size = self.prices.best(guesses)
        if not size:
            for (trail, _, _), guess in zip(asked, guesses, strict=True):
                if trail and guess:
                    trail.idle += 1
                    size = SIZES[0] if trail.idle % PROBE == 0 else size
        return [Guess(guess.ids[:size], guess.odds) if guess and size else None for guess in guesses]
