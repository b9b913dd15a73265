"""Drafts of a batch: each begins with what is known of it already, all are drawn together, and told as others see them.

Knows jobs, tokens and what is kept of a query; nothing of how text became tokens, of how one token is drawn, or of how
candidates are scored.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ..core.values import Draft, Effort, Failure
from ._drawing import Drawing
from ._lookahead import Trail
from ._memo import Memo
from ._pen import Pen
from ._scoring import Scoring
from ._stores import Store
from ._text import Words


@dataclass
class Sheet:
    """One member's job to draft: the pen that writes it, and what is kept of its query."""

    pen: Pen
    memo: Memo
    words: Words
    scoring: Scoring
    sizes: list[int] = field(default_factory=list)
    """How long each of the pen's hints is without the words of its end."""

    def go_on(self, drawing: Drawing) -> None:
        """With what was drawn behind the last draft's end, if the text went on as that began."""
        pen, memo = self.pen, self.memo
        gone = len(pen.context) - len(memo.ahead_after)
        if memo.ahead_how != pen.how or gone <= 0 or pen.context != memo.ahead_after + memo.ahead[:gone]:
            return
        # One by one, as if they were drawn now: where the draft ends must not depend on what is known already.
        for token, logprob in list(zip(memo.ahead, memo.ahead_logprobs, strict=True))[gone:][: pen.limit]:
            before = len(pen.tokens)
            if not pen.done:
                drawing.add(pen, token, logprob, None)
            if len(pen.tokens) == before:
                break

    def look_back(self) -> None:
        """At what the query's text has shown so far: from now on the pen may guess."""
        memo = self.memo
        memo.trail = self.pen.trail = memo.trail or Trail()
        memo.trail.heard([memo.ahead_after + memo.ahead], len(memo.ahead_after))
        memo.trail.follow(self.pen.context)

    def look_beside(self, tails: list[list[int]], sizes: list[int]) -> None:
        """At others' drafts for this place, which will be read along."""
        self.pen.hints, self.sizes = tails, sizes
        if self.pen.trail is not None:
            self.pen.trail.beside(tails, len(self.pen.context))

    def keep_scores(self) -> None:
        """What was read along with the draft has its scores already."""
        pen, memo = self.pen, self.memo
        if not pen.hinted:
            return
        told = zip(pen.job.hints or (), pen.hints, self.sizes, pen.hinted, strict=True)
        memo.checked = {(c.text, c.ended): self.scoring.logprobs(ids, n, c.ended, rows) for c, ids, n, rows in told}
        memo.checked_after = pen.context

    def told(self, store: Store, share: Effort) -> Draft:
        """The draft as others will see it; what was cut off is kept for the next one."""
        pen, memo = self.pen, self.memo
        kept = pen.tokens[: pen.kept] + pen.rest
        text, ends = self.words.told(pen.context, kept)
        logprobs = pen.logprobs[: pen.kept + bool(pen.rest)] + [0.0] * (len(pen.rest) - 1)
        known = pen.known_again()
        memo.ahead, memo.ahead_logprobs = pen.tokens[:known] + pen.beyond, pen.logprobs[:known] + pen.beyond_logprobs
        memo.ahead_after, memo.ahead_how = list(pen.context), pen.how
        if pen.kept < len(pen.tokens) and (row := pen.logits[pen.kept]) is not None:
            store.pin(pen.key, len(pen.context) + pen.kept, row.clone())
        if pen.ended and pen.end_logprob is not None:
            logprobs = [*logprobs, pen.end_logprob]
        effort = replace(share, prompt=memo.asked)
        if memo.found is not None:  # the thought came before: by now all of the prompt is known
            effort, memo.found = replace(effort, reused=memo.found), None
        ends_told = tuple(ends) if pen.bound else None
        # Told with the first draft, and with it again whenever that is asked for again.
        first = not any(segment.tokens for segment in pen.job.answer)
        return Draft(text, pen.ended, tuple(kept), tuple(logprobs), effort, ends_told, memo.thought if first else "")


def drafts(drawing: Drawing, sheets: Sequence[Sheet], since: float, clock: float) -> list[Draft | Failure]:
    """All of them, drawn together. ``since``, ``clock``: when work on them began."""
    store, pens = drawing.store, [sheet.pen for sheet in sheets]
    read = store.passed
    if any(pen.trail for pen in pens):
        drawing.lookahead.prices.measure(store, pens[0].context[0])
    # What was drafted ahead is read together with the hints, if there are any.
    rows = store.lead([(pen.key, pen.context if pen.hints else pen.ids) for pen in pens], exact=True)
    found = [min(store.found[pen.key], len(pen.context)) for pen in pens]
    logits = {pen.key: row for pen, row in zip(pens, rows, strict=True) if not (pen.hints and pen.tokens)}
    drawing.draw(pens, logits)
    for sheet in sheets:
        sheet.keep_scores()
    seconds, many = time.perf_counter() - since, len(sheets)
    share = Effort((store.passed - read) // many, 0, 0, seconds, clock)
    return [
        sheet.pen.failure or sheet.told(store, replace(share, reused=reused))
        for sheet, reused in zip(sheets, found, strict=True)
    ]
