"""Scores of a batch: what each job asks about, read in one pass, and told as its candidates' log-probabilities.

Knows jobs, tokens and the store; nothing of how the tokens were found, and nothing of how drafts are drawn.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from ..core.values import Candidate, Effort, Scored, ScoreJob
from ._scoring import Scoring
from ._stores import Fan, Store
from ._text import Words


@dataclass(frozen=True)
class Proof:
    """One member's job to score, in tokens."""

    job: ScoreJob
    fan: Fan
    sizes: list[int]
    """How long each branch is without the words of its end."""
    new: list[Candidate]
    """The candidates that must be read: one for each branch."""
    known: Mapping[tuple[str, bool], tuple[float, ...]]
    """The log-probabilities of those that were read along with a draft, by text and end."""
    scoring: Scoring
    words: Words

    def logprobs(self, told: Sequence[Tensor]) -> tuple[tuple[float, ...], ...]:
        """Of all candidates, in the job's order. ``told``: the logits for each branch."""
        read = {
            (c.text, c.ended): self.scoring.logprobs(ids, size, c.ended, logits)
            for ids, size, c, logits in zip(self.fan.branches, self.sizes, self.new, told, strict=True)
        }
        all_known = {**self.known, **read}
        return tuple(all_known[c.text, c.ended] for c in self.job.candidates)

    def ends(self, told: Sequence[Tensor]) -> tuple[tuple[int, ...], ...] | None:
        """Under a constraint, where in the text each token ends. Nothing is read along with a draft there."""
        if not self.job.query.constraint:
            return None
        return tuple(
            self.scoring.ends(self.words, ids, size, c.text, logits)
            for ids, size, c, logits in zip(self.fan.branches, self.sizes, self.job.candidates, told, strict=True)
        )


def scored(store: Store, proofs: Sequence[Proof]) -> list[Scored]:
    """All of them in one pass."""
    clock, since, read = time.time(), time.perf_counter(), store.passed
    told = _fanned(store, [proof.fan for proof in proofs])
    logprobs = [proof.logprobs(mine) for proof, mine in zip(proofs, told, strict=True)]
    seconds, many = time.perf_counter() - since, len(proofs)
    share = Effort((store.passed - read) // many, 0, 0, seconds, clock)
    # Where all was read along with the draft, nothing was looked up now.
    efforts = [replace(share, reused=store.found.get(one.fan.key, len(one.fan.ids))) for one in proofs]
    ends = [proof.ends(mine) for proof, mine in zip(proofs, told, strict=True)]
    return [Scored(*one) for one in zip(logprobs, efforts, ends, strict=True)]


def _fanned(store: Store, fans: Sequence[Fan]) -> list[list[Tensor]]:
    """What the store tells of these; nothing is asked about those that were read along with a draft as a whole."""
    asked = [fan for fan in fans if fan.branches or not fan.beside]
    told = dict(zip(map(id, asked), store.fan(asked) if asked else (), strict=True))
    return [told.get(id(fan), []) for fan in fans]
