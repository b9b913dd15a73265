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
from ..core.values import Failure, Sampling
from ._ahead import leap
from ._bound import Bound, cut_in_structure, masked
from ._leaps import Leaps
from ._lookahead import SIZES, Guess, Lookahead, Odds, Way
from ._pen import Pen
from ._sampling import chosen, end_logprobs, logprobs_of
from ._stores import Fan, Store
from ._text import OVERTIME, Words, complete, tail_of


@dataclass(frozen=True)
class Drawing:
    """What all drafts of one member share."""

    words: Words
    store: Store
    stops: Sequence[int]
    """Tokens that end a turn."""
    end_text: str
    """Words that end a turn, for a model without such tokens."""
    lookahead: Lookahead = field(default_factory=Lookahead)
    leaps: Leaps | None = None
    """Draws several tokens before anybody looks, where that is faster."""

    def draw(self, pens: list[Pen], logits: dict[str, Tensor]) -> None:
        """One token at a time for all of them, until each has come to its end. ``logits``: before the next token."""
        leap(self, [pen for pen in pens if not (pen.done or pen.hints)], logits)
        while writing := [pen for pen in pens if not pen.done]:
            ready = [pen for pen in writing if pen.key in logits]
            if not ready:
                if not leap(self, [pen for pen in writing if pen.hinted], {}):
                    logits.update(self._read_on(writing))
                continue
            self._read_forced([pen for pen in ready if pen.bound], logits)
            masks = {pen.key: self._mask(pen) for pen in ready if pen.bound and not pen.done}
            if ready := [pen for pen in ready if not pen.done]:
                self._draw_one(ready, logits, [masks.get(pen.key) for pen in ready])

    def _draw_one(self, pens: list[Pen], logits: dict[str, Tensor], bound: list[Any]) -> None:
        """The next token for each of these."""
        rows = stack([logits[pen.key] for pen in pens])
        hows = [_unpenalised(pen.how) if pen.bound and not pen.bound.free else pen.how for pen in pens]
        tokens = chosen(masked(rows, bound), hows, [pen.ids for pen in pens])
        known = logprobs_of(rows, tokens)
        for pen, token, logprob, row in zip(pens, tokens, known, rows, strict=True):
            self.take(pen, token, logprob, row)
            if not (pen.done or (pen.bound and pen.bound.refused)):
                del logits[pen.key]
                if (foreseen := pen.foresight.after(token)) is not None:
                    logits[pen.key] = foreseen

    def _read_on(self, pens: list[Pen]) -> dict[str, Tensor]:
        """The logits after the last token of each of these, and after what is guessed to follow it."""
        asked = [(pen.trail, pen.ids, pen.far) for pen in pens]
        guesses = self.lookahead.runs(asked)
        pairs = list(zip(pens, guesses, strict=True))
        told = self._read_hinted([(pen, guess) for pen, guess in pairs if pen.hints and not pen.hinted])
        rest = [(pen, guess) for pen, guess in pairs if pen.key not in told]
        for pen, _ in rest:
            if pen.trail is not None:
                self.store.turn_back(pen.key, pen.ids[:-1])
        if not any(guess for _, guess in rest):
            keys, last = [pen.key for pen, _ in rest], [pen.tokens[-1] for pen, _ in rest]
            return told | (dict(zip(keys, self.store.step(keys, last), strict=True)) if rest else {})
        runs = [(pen.key, [pen.tokens[-1], *(guess.ids if guess else ())]) for pen, guess in rest]
        for (pen, guess), rows in zip(rest, self.store.stride(runs), strict=True):
            told[pen.key] = rows[0]
            if guess:
                pen.foresight.ways = [Way(guess.ids, rows[1:], guess.odds)]
        return told

    def _read_hinted(self, pairs: list[tuple[Pen, Guess | None]]) -> dict[str, Tensor]:
        """In one pass others' drafts, and our own with what may follow, unless it is one of theirs so far."""
        fans: list[Fan] = []
        guessed: list[list[Odds | None]] = []
        for pen, guess in pairs:
            foreign = any(ids[: len(pen.ids)] == pen.ids for ids in pen.hints)
            ours = [] if foreign else [pen.ids + (guess.ids if guess else [])]
            apart = min(pen.limit, OVERTIME * pen.job.segment_tokens + 8) + max(SIZES)
            fans.append(Fan(pen.key, pen.context, pen.hints + ours, apart))
            guessed.append([*(None for _ in pen.hints), guess.odds if guess else None])
        logits = {}
        told = self.store.fan(fans) if fans else []
        for (pen, _), fan, odds, branches in zip(pairs, fans, guessed, told, strict=True):
            pen.hinted = branches[: len(pen.hints)]
            for ids, rows, whose in zip(fan.branches, branches, odds, strict=False):
                if ids[: len(pen.ids)] == pen.ids:
                    logits[pen.key] = rows[len(pen.tokens)]
                    if rest := ids[len(pen.ids) :]:
                        pen.foresight.ways.append(Way(rest, rows[len(pen.tokens) + 1 :], whose))
        return logits

    def open(self, pen: Pen) -> None:
        """Before the first token of a draft under a constraint: the answer may be whole, with nothing to follow."""
        if pen.bound is not None and pen.bound.state.must_end():
            pen.ended, pen.done, pen.end_logprob = True, True, 0.0

    def take(self, pen: Pen, token: int, logprob: float, row: Tensor, end_logprob: float | None = None) -> None:
        """A token that was drawn now; it may end the turn."""
        if token in self.stops:
            pen.ended, pen.done = True, True
            pen.kept = len(pen.tokens)
            pen.end_logprob = end_logprobs(row[None], self.stops)[0] if end_logprob is None else end_logprob
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
                    if run := pen.bound.run(self.words, pen.ids, room):
                        runs.append((pen, run))
        if not runs:
            return
        before = {pen.key: pen.ids for pen, _ in runs}
        for key, ids in before.items():
            self.store.pin(key, len(ids), logits[key])
        told = self.store.fan([Fan(pen.key, before[pen.key], [before[pen.key] + run]) for pen, run in runs])
        for (pen, run), (rows,) in zip(runs, told, strict=True):
            pen.foresight.ways = []
            known = logprobs_of(rows[:-1], run)
            for token, logprob, row in zip(run, known, rows, strict=False):
                if not pen.done:
                    assert pen.bound is not None
                    pen.bound.read.append(len(pen.tokens))
                    self.add(pen, token, logprob, row)
        going = [pen for pen, _ in runs if not pen.done]
        if going:
            after = self.store.lead([(pen.key, pen.ids) for pen in going], exact=True)
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
