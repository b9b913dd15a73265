"""Drawing drafts: one token at a time for many queries at once, until each draft has come to its end.

A draft ends where the model ends its turn, where a stop string appears, where the budget does, or at the last safe
boundary once it is long enough. Under a constraint it also ends where only one way on is left; a tool call is drawn
whole. Knows tokens, text and the store; nothing of prompts, jobs' replies or scores.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, stack

from ..core.answer import first_stop, held_back, kept_tokens
from ..core.values import DraftJob, Failure, Sampling
from ._bound import Bound, cut_in_structure, masked
from ._sampling import chosen, end_logprobs, logprobs_of
from ._stores import Fan, Store
from ._text import OVERTIME, Words, complete, tail_of


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

    def put(self, token: int, logprob: float, logits: Tensor | None) -> None:
        self.tokens.append(token)
        self.logprobs.append(logprob)
        self.logits.append(logits)

    def known_again(self) -> int:
        """How many of the tokens would be drawn again as they are after what was kept of them.

        Forced text is not drawn: where it is read in one piece depends on where the draft begins.
        """
        return min([len(self.tokens), *(at for at in (self.bound.read if self.bound else ()) if at >= self.kept)])


@dataclass(frozen=True)
class Drawing:
    """What all drafts of one member share."""

    words: Words
    store: Store
    stops: Sequence[int]
    """Tokens that end a turn."""
    end_text: str
    """Words that end a turn, for a model without such tokens."""

    def draw(self, pens: list[Pen], logits: dict[str, Tensor]) -> None:
        """One token at a time for all of them, until each has come to its end."""
        while True:
            self._read_forced([pen for pen in pens if pen.bound and not pen.done], logits)
            masks = {pen.key: self._mask(pen) for pen in pens if pen.bound and not pen.done}
            writing = [pen for pen in pens if not pen.done]
            if not writing:
                return
            rows = stack([logits[pen.key] for pen in writing])
            bound = [masks.get(pen.key) for pen in writing]
            hows = [_unpenalised(pen.how) if pen.bound and not pen.bound.free else pen.how for pen in writing]
            tokens = chosen(masked(rows, bound), hows, [pen.context + pen.tokens for pen in writing])
            known = logprobs_of(rows, tokens)
            for pen, token, logprob, row in zip(writing, tokens, known, rows, strict=True):
                self._put(pen, token, logprob, row)
            going = [pen for pen in writing if not pen.done and not (pen.bound and pen.bound.refused)]
            if going:
                after = self.store.step([pen.key for pen in going], [pen.tokens[-1] for pen in going])
                logits.update(zip((pen.key for pen in going), after, strict=True))

    def open(self, pen: Pen) -> None:
        """Before the first token of a draft under a constraint: the answer may be whole, with nothing to follow."""
        if pen.bound is not None and pen.bound.state.must_end():
            pen.ended, pen.done, pen.end_logprob = True, True, 0.0

    def _put(self, pen: Pen, token: int, logprob: float, row: Tensor) -> None:
        if token in self.stops:
            pen.ended, pen.done = True, True
            pen.kept = len(pen.tokens)
            pen.end_logprob = end_logprobs(row[None], self.stops)[0]
            return
        self.add(pen, token, logprob, row)

    def add(self, pen: Pen, token: int, logprob: float, row: Tensor | None) -> None:
        """One more token of the draft, drawn now or known from before."""
        if pen.bound is None:
            pen.put(token, logprob, row)
            return self._look(pen)
        with guarded(pen):
            if not pen.bound.takes(token):
                if row is not None and not pen.bound.refuse(token):
                    self._stuck(pen, logprob)
                return
            pen.put(token, logprob, row)
            self._look_bound(pen)

    # --- where a draft ends -------------------------------------------------------------------------------------

    def _look(self, pen: Pen, hold: str = "") -> None:
        """Whether this draft has come to its end: a stop string, the end of a turn in words, a boundary, the budget.

        ``hold``: text that must not be cut in two.
        """
        size, wanted = len(pen.tokens), pen.job.segment_tokens
        needs_text = self.end_text or pen.job.stop
        if not needs_text and size < min(wanted, pen.limit):
            return
        text, ends = self.words.told(pen.context, pen.tokens)
        if self._ends_in_words(pen, text, ends):
            return
        open_end = len(text) - held_back(text, (self.end_text, hold))
        if first_stop(tail_of(pen.job) + text, pen.job.stop) is not None or size >= pen.limit:
            pen.done, pen.kept = True, complete(ends)
        elif size >= wanted:
            # What may be the beginning of the end in words is not offered yet: the next tokens will tell.
            whole = sum(end <= open_end for end in ends)
            pen.kept = kept_tokens(text, ends, min(wanted, whole)) or kept_tokens(text, ends, whole)
            overtime = size >= OVERTIME * wanted + 8
            pen.done = pen.kept > 0 or overtime
            pen.kept = pen.kept or complete(ends)

    def _look_bound(self, pen: Pen) -> None:
        """The same under a constraint: the grammar says where calls begin and end and where there is no choice."""
        bound, size = pen.bound, len(pen.tokens)
        assert bound is not None
        if bound.state.must_end():
            pen.kept, pen.end_logprob = size, 0.0
            pen.ended = pen.done = True
        elif bound.whole:
            # A call is whole, and the next token did not end the turn: the vote is on this call alone.
            pen.kept, pen.done = bound.whole, True
        elif bound.state.in_call:
            if not (bound.entered and self._cut_before_call(pen, bound)):
                self._cut(pen, max(pen.job.call_tokens, pen.job.segment_tokens))
        elif bound.left:
            bound.whole = size
            if size >= pen.limit:
                pen.kept, pen.done = size, True
        elif bound.free:
            self._look(pen, bound.begin)
        else:
            stops = bound.newly_forced() and complete(self.words.told(pen.context, pen.tokens)[1]) == size
            pen.kept, pen.done = (size, True) if stops else (0, False)
            if not stops:
                self._cut(pen, pen.job.segment_tokens)

    def _cut(self, pen: Pen, wanted: int) -> None:
        """Whether a draft of so many tokens, a stop string or the budget ends it here, under a constraint."""
        size = len(pen.tokens)
        if size < min(wanted, pen.limit) and not pen.job.stop:
            return
        text, ends = self.words.told(pen.context, pen.tokens)
        if first_stop(tail_of(pen.job) + text, pen.job.stop) is not None or size >= pen.limit:
            pen.done, pen.kept = True, complete(ends)
        elif size >= wanted:
            for limit in (wanted, size):
                pen.kept = pen.kept or kept_tokens(text, ends, limit) or cut_in_structure(text, ends, limit)
            pen.done = pen.kept > 0 or size >= OVERTIME * wanted + 8
            pen.kept = pen.kept or complete(ends)

    def _cut_before_call(self, pen: Pen, bound: Bound) -> bool:
        """What was said before a call is a draft of its own, so that the vote is on whole calls."""
        text, ends = self.words.told(pen.context, pen.tokens)
        at = text.rfind(bound.begin.rstrip()) if bound.begin else -1
        if at <= 0 or not text[:at].strip():
            return False
        self._keep(pen, text, ends, at)
        pen.done = True
        return True

    def _keep(self, pen: Pen, text: str, ends: list[int], at: int) -> None:
        """Keep the draft up to this character, which may be in the middle of a token."""
        pen.kept = sum(end <= at for end in ends)
        said = ends[pen.kept - 1] if pen.kept else 0
        pen.rest = self.words.continuing(text[said:at]) if said < at else []

    def _stuck(self, pen: Pen, logprob: float) -> None:
        """The grammar leaves no token, or not the one that was drawn: what is there so far is the draft."""
        pen.done = True
        pen.kept = complete(self.words.told(pen.context, pen.tokens)[1])
        if not pen.kept:
            kind = "nan" if math.isnan(logprob) else "error"
            pen.failure = Failure(kind, "none of its tokens can follow under this constraint")

    # --- what a constraint allows -------------------------------------------------------------------------------

    def _mask(self, pen: Pen) -> Any:
        mask = None
        with guarded(pen):
            mask = pen.bound.mask if pen.bound else None
            if mask is not None and not mask.any():
                self._stuck(pen, 0.0)
        return mask

    def _read_forced(self, pens: list[Pen], logits: dict[str, Tensor]) -> None:
        """Inside a call, text without a choice is read in one pass, not drawn token by token."""
        runs: list[tuple[Pen, list[int]]] = []
        for pen in pens:
            with guarded(pen):
                if pen.bound is not None and pen.bound.state.in_call and pen.bound.forced_text():
                    room = min(pen.limit, max(pen.job.call_tokens, pen.job.segment_tokens)) - len(pen.tokens)
                    if run := pen.bound.run(self.words, pen.context + pen.tokens, room):
                        runs.append((pen, run))
        if not runs:
            return
        before = {pen.key: pen.context + pen.tokens for pen, _ in runs}
        for key, ids in before.items():
            self.store.pin(key, len(ids), logits[key])
        told = self.store.fan([Fan(pen.key, before[pen.key], [before[pen.key] + run]) for pen, run in runs])
        for (pen, run), (rows,) in zip(runs, told, strict=True):
            known = logprobs_of(rows[:-1], run)
            for token, logprob, row in zip(run, known, rows, strict=False):
                if not pen.done:
                    assert pen.bound is not None
                    pen.bound.read.append(len(pen.tokens))
                    self.add(pen, token, logprob, row)
        going = [pen for pen, _ in runs if not pen.done]
        if going:
            after = self.store.lead([(pen.key, pen.context + pen.tokens) for pen in going], exact=True)
            logits.update(zip((pen.key for pen in going), after, strict=True))

    # --- ends in words ------------------------------------------------------------------------------------------

    def _ends_in_words(self, pen: Pen, text: str, ends: list[int]) -> bool:
        """A model without stop tokens of its own for a turn says its end in words, which are no part of the answer."""
        mark = self.end_text
        at = text.find(mark) if mark else -1
        if at < 0:
            return False
        self._keep(pen, text, ends, at)
        pen.end_logprob = math.fsum(pen.logprobs[pen.kept + bool(pen.rest) :])
        pen.ended = pen.done = True
        return True


@contextmanager
def guarded(pen: Pen) -> Iterator[None]:
    """A grammar that fails takes its own draft along, and no other."""
    try:
        yield
    except Exception as error:
        pen.done = True
        pen.failure = Failure("error", f"its constraint failed: {type(error).__name__}: {error}", error)


def _unpenalised(how: Sampling) -> Sampling:
    """Under a constraint repetition is not the model's choice, and a penalty would bend what it copies."""
    return how if how.repetition_penalty is None else replace(how, repetition_penalty=None)
