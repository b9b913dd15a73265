"""Picking tokens for many rows at once on the device, without asking the host: what ``_sampling`` does row by row.

The noise is the same: made by the host, by seed and position, for all steps beforehand. All tensors stay where they
are, so that a captured step finds them again. Knows logits and tokens; nothing of memory, passes or text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..core.values import Sampling
from ._sampling import noise


class Dice:
    """How the next tokens of so many rows are picked, for so many steps."""

    def __init__(self, rows: int, steps: int, width: int, stops: Sequence[int], device: torch.device) -> None:
        self.samples = self.penalises = False
        self.noise = torch.zeros((steps, rows), dtype=torch.float64, device=device)
        self.top_k = torch.zeros((rows, 1), dtype=torch.long, device=device)
        # One line each: the temperature (0: greedy), top_p, min_p, the penalty.
        self.told = torch.zeros((4, rows, 1), device=device)
        self.stops = torch.tensor(list(stops), dtype=torch.long, device=device)
        self.seen: Tensor | None = None  # (rows, width): which tokens a row holds; made when somebody is penalised
        self.width = width

    @classmethod
    def of(
        cls,
        hows: Sequence[Sampling],
        contexts: Sequence[Sequence[int]],
        *,
        steps: int,
        width: int,
        stops: Sequence[int],
        device: torch.device,
    ) -> Dice:
        dice = cls(len(hows), steps, width, stops, device)
        dice.load(dict(enumerate(zip(hows, contexts, strict=True))))
        return dice

    def load(self, wants: dict[int, tuple[Sampling, Sequence[int]]]) -> None:
        """How these rows pick from now on, and the tokens so far: their number is the place of the first new one."""
        steps, rows = self.noise.shape
        self.samples = any(how.temperature > 0 for how, _ in wants.values())
        self.penalises = any(_penalty(how) != 1.0 for how, _ in wants.values())
        told = torch.tensor([[0.0], [math.inf], [0.0], [1.0]]).repeat(1, rows)
        top_k, noises = torch.full((rows, 1), self.width), torch.zeros((steps, rows), dtype=torch.float64)
        for row, (how, ids) in wants.items():
            filters = math.inf if how.top_p is None else how.top_p, how.min_p or 0.0
            told[:, row] = torch.tensor([how.temperature, *filters, _penalty(how)])
            top_k[row] = how.top_k or self.width
            if how.temperature > 0:
                noises[:, row] = torch.tensor([noise(how.seed, len(ids) + step) for step in range(steps)])
        if self.samples or self.penalises:
            self.told.copy_(told[..., None])
            self.top_k.copy_(top_k)
            self.noise.copy_(noises)
        if self.penalises:
            if self.seen is None:
                self.seen = torch.zeros((rows, self.width), dtype=torch.bool, device=self.noise.device)
            self.seen.zero_()
            for row, (_, ids) in wants.items():
                self.seen[row, torch.tensor(sorted(set(ids)), device=self.seen.device)] = True

    def thrown(self, logits: Tensor, step: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """One token per row; its log-probability, and that of the turn's end, before any filter. ``step``: (1,)."""
        wide = logits.float()
        rows = self._penalised(wide)
        tokens = rows.argmax(-1)
        if self.samples:
            heat = self.told[0]
            drawn = self._sampled(rows / torch.where(heat > 0, heat, 1.0), step)
            tokens = torch.where(heat[:, 0] > 0, drawn, tokens)
        if self.penalises and self.seen is not None:
            self.seen.scatter_(1, tokens[:, None], True)
        whole = wide.logsumexp(-1)
        known = (wide.gather(-1, tokens[:, None])[:, 0] - whole).clamp_max(0.0)
        if not len(self.stops):
            return tokens, known, torch.full_like(known, -math.inf)
        ends = wide.index_select(-1, self.stops).logsumexp(-1) - whole
        return tokens, known, ends.clamp_max(0.0)

    def _penalised(self, rows: Tensor) -> Tensor:
        if not self.penalises or self.seen is None:
            return rows
        penalty = self.told[3]
        return torch.where(self.seen, torch.where(rows > 0, rows / penalty, rows * penalty), rows)

    def _sampled(self, rows: Tensor, step: Tensor) -> Tensor:
        """Inverse transform on the sorted, filtered probabilities: see ``_sampling``."""
        _, top_p, min_p, _ = self.told
        values, tokens = rows.sort(dim=-1, descending=True, stable=True)
        within = torch.arange(rows.shape[-1], device=rows.device) < self.top_k
        probs = values.masked_fill(~within, -math.inf).softmax(-1)
        keep = within & (probs.cumsum(-1) - probs < top_p) & (probs >= min_p * probs[:, :1])
        keep[:, 0].fill_(True)  # by assignment it would be a tensor of the host
        heap = probs.masked_fill(~keep, 0.0).double().cumsum(-1)
        noises = self.noise.index_select(0, step).transpose(0, 1)
        at = torch.searchsorted(heap, noises * heap[:, -1:], right=True).minimum(keep.sum(-1, keepdim=True) - 1)
        return tokens.gather(-1, at)[:, 0]


def _penalty(how: Sampling) -> float:
    return how.repetition_penalty or 1.0
