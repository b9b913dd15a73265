"""Several tokens of many queries in one leap: each is picked on the device and read at once, and the host asks once.

Drawn one by one, every token waits for the host: it launches a thousand small pieces of work, asks for the token, and
looks whether the draft has come to its end. Where the device is fast, it mostly waits. In a leap a step feeds its own
token to the next; the host looks at all of them afterwards, and what was drawn beyond an end is cut off. Tokens and
numbers are those that would be drawn one by one. A step has fixed shapes and tensors, so ``_graphs`` can capture it.

Rows that are done go on for nothing until the leap is over: on a CPU, which does not wait for launches, nothing leaps.
Knows rows, tokens and how they are picked; nothing of text, jobs or boundaries.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..core.values import Sampling
from ._dice import Dice
from ._graphs import Graphs
from ._rows import Row
from ._seats import power
from ._slab import Slab

MOST = 16
"""So many steps are in one leap at most: the logits of all of them are held."""
GRAIN = 256
"""Columns are shown in so many at least: a captured step serves all rows of up to its width."""


@dataclass(frozen=True)
class Start:
    """One query's text so far, from which to go on."""

    key: str
    ids: list[int]
    how: Sampling
    room: int
    """Tokens that may be drawn at most."""
    logits: Tensor | None = None
    """What may come next; None: the last token has not been read yet."""


@dataclass(frozen=True)
class Leapt:
    """What was drawn for one query, an end in the middle or not."""

    tokens: list[int]
    logprobs: list[float]
    ends: list[float]
    """The log-probability, before each token, that the turn ends there."""
    logits: Tensor
    """Before each token: (tokens, vocabulary)."""

    def at(self, step: int) -> tuple[int, float, Tensor]:
        return self.tokens[step], self.logprobs[step], self.logits[step]


@dataclass
class Track:
    """The tensors of leaps with so many rows: they stay in place, for whoever has captured a step."""

    dice: Dice
    logits: Tensor  # (steps, rows, vocabulary)
    told: Tensor  # (3, steps, rows): tokens, their log-probabilities, those of the end
    step: Tensor  # (1,)
    # One line each: the token to read next, its position, its column, where the first new token goes, the last position
    # that may be read, how many tokens are wanted, and the column that nobody sees.
    lines: Tensor = field(repr=False)  # (7, rows)

    @classmethod
    def made(cls, rows: int, like: Tensor, stops: Sequence[int]) -> Track:
        width, device = like.shape[-1], like.device
        return cls(
            Dice(rows, MOST, width, stops, device),
            like.new_zeros((MOST, rows, width)),
            torch.zeros((3, MOST, rows), dtype=torch.float64, device=device),
            torch.zeros(1, dtype=torch.long, device=device),
            torch.zeros((7, rows), dtype=torch.long, device=device),
        )

    def load(self, starts: dict[int, tuple[Start, int]], scratch: int) -> None:
        """Where these rows are, and how many tokens each wants. All other rows write where nobody sees it."""
        lines = [[0, 0, scratch, 0, 0, 0, scratch]] * self.lines.shape[1]
        for row, (start, wanted) in starts.items():
            size = len(start.ids)
            lines[row] = [start.ids[-1], size - 1, size - 1, size, size + wanted - 1, wanted, scratch]
        self.lines.copy_(torch.tensor(lines).T)
        self.step.zero_()
        self.dice.load({row: (start.how, start.ids) for row, (start, _) in starts.items()})

    def idle(self, scratch: int) -> None:
        """No row wants anything."""
        self.lines.zero_()
        self.lines[[2, 6]] = scratch
        self.step.zero_()

    def put(self, logits: Tensor) -> None:
        """Pick one token per row, write it down, and make it the one to read next."""
        tokens, logprobs, ends = self.dice.thrown(logits, self.step)
        self.told.index_copy_(1, self.step, torch.stack([tokens.double(), logprobs.double(), ends.double()])[:, None])
        self.logits.index_copy_(0, self.step, logits[None])
        _, _, _, first, last, wanted, scratch = self.lines
        place = first + self.step
        # Whoever has all that is wanted stands still: beyond it the model may know no position.
        column = torch.where(self.step + 1 < wanted, place, scratch)
        self.lines[:3].copy_(torch.stack([tokens, place.minimum(last), column]))
        self.step.add_(1)


class Leaps:
    """What all leaps of members with one memory share."""

    def __init__(self, slab: Slab, stops: Sequence[int], graphs: Graphs | None = None) -> None:
        self.slab, self.stops, self.graphs = slab, stops, graphs
        self._tracks: dict[int, Track] = {}

    def serve(self, keys: Sequence[str]) -> bool:
        """Whether all of these can leap: a step that is captured knows no adapters."""
        return not any(self.slab.read.adapter_of(key) for key in keys)

    def take(self, starts: Sequence[Start], count: int, like: Tensor | None = None) -> list[Leapt]:
        """So many tokens for each of these, or as many as there is room for. All with logits, or all without.

        ``like``: any logits of the model, should the first leap of all be one without.
        """
        count = min(count, MOST)
        width = max(len(one.ids) + max(1, min(count, one.room)) for one in starts)
        self.slab.make_room([one.key for one in starts], width)  # before it is looked where the rows are
        wants = {self.slab.rows[one.key].index: (one, max(1, min(count, one.room))) for one in starts}
        rows = [self.slab.rows[one.key] for one in starts]
        try:
            track = self._track(wants, starts[0].logits if like is None else like)
            self._leap(track, starts, wants, count, min(bucket(width), self.slab.capacity[1]))
            told = track.told[:, :count].cpu()
        except BaseException:
            for row in rows:  # may lack what they say they hold
                row.cut(0)
            raise
        logits = track.logits[:count].clone()  # the next leap writes over it
        return [self._told(row, *wants[row.index], told[..., row.index], logits[:, row.index]) for row in rows]

    def _leap(
        self, track: Track, starts: Sequence[Start], wants: dict[int, tuple[Start, int]], count: int, width: int
    ) -> None:
        known = starts[0].logits
        scratch = self.slab.capacity[1] - 1
        track.load(wants, scratch)
        step = self._step(track, width)
        if self.graphs is not None:
            kind = (id(track), width, track.dice.samples, track.dice.penalises)
            if not self.graphs.holds(kind):  # then it runs: with nothing at stake
                track.idle(scratch)
                self.graphs.capture(kind, step)
                track.load(wants, scratch)
            step = self.graphs.step(kind, step)
        if known is not None:
            first = track.logits.new_zeros(track.logits.shape[1:])
            first[list(wants)] = torch.stack([one.logits for one in starts if one.logits is not None])
            track.put(first)
        for _ in range(count - (known is not None)):
            step()

    def _track(self, wants: Collection[int], like: Tensor | None) -> Track:
        # Where memory is short, there are no more rows than are needed.
        rows = min(power(max(wants) + 1), self.slab.capacity[0])
        if rows not in self._tracks:
            like = like if like is not None else next(iter(self._tracks.values())).logits[0, 0]
            self._tracks[rows] = Track.made(rows, like, self.stops)
        return self._tracks[rows]

    def _step(self, track: Track, width: int) -> Callable[[], None]:
        ids, positions, columns = track.lines[:3].unsqueeze(-1)

        def step() -> None:
            track.put(self.slab.hop(ids, positions, columns, width))

        return step

    def _told(self, row: Row, start: Start, wanted: int, told: Tensor, logits: Tensor) -> Leapt:
        """What is known of a row after its leap. Its last token has not been read."""
        tokens = [int(token) for token in told[0, :wanted].tolist()]
        self.slab.went_on(row, [*([] if start.logits is not None else start.ids[-1:]), *tokens[:-1]])
        _, logprobs, ends = told[:, :wanted].tolist()
        return Leapt(tokens, logprobs, ends, logits[:wanted])


def bucket(width: int) -> int:
    """A width that serves this one too, so that few steps are captured: at most a quarter more of a long row.

    >>> bucket(300), bucket(1100)
    (512, 1280)
    """
    grain = max(GRAIN, power(width) // 8)
    return -(-width // grain) * grain
