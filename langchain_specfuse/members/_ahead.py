"""Drawing drafts in leaps: first so many tokens for each, then a look at where each has come to its end.

Where a draft ends is what :mod:`._drawing` says, token by token, as if they had come one by one. What was drawn behind
an end is how the query's next draft begins, should this one win. Knows drafts and leaps; nothing of what ends a draft.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from ._leaps import Leapt, Start
from ._pen import Pen

if TYPE_CHECKING:
    from ._drawing import Drawing


def leap(drawing: Drawing, pens: list[Pen], logits: Mapping[str, Tensor]) -> bool:
    """As many tokens at once as the longest draft wants; behind that one by one, to the next boundary.

    Only for pens without a constraint, and all of them or none: then it is False. ``logits``: before the next token of
    all of them, or of none. Others' drafts have been read by then, for they must be scored anyway; nothing is guessed
    from here on: a pass for that would be launched piece by piece.
    """
    leaps, pens = drawing.leaps, [pen for pen in pens if pen.bound is None]
    if leaps is None or not pens or not leaps.serve([pen.key for pen in pens]):
        return False
    for pen in pens:
        if pen.hinted:  # what was read for them may be a branch so far
            drawing.store.turn_back(pen.key, pen.ids[:-1])
    known, like = logits, next((pen.hinted[0] for pen in pens if pen.hinted), None)
    while pens:
        count = max(min(pen.job.segment_tokens, pen.limit) - len(pen.tokens) for pen in pens)
        starts = [Start(pen.key, pen.ids, pen.how, pen.limit - len(pen.tokens), known.get(pen.key)) for pen in pens]
        for pen, leapt in zip(pens, leaps.take(starts, max(count, 1), like), strict=True):
            _look(drawing, pen, leapt)
        pens = [pen for pen in pens if not pen.done]
        known = {}  # the last tokens have not been read yet
    return True


def _look(drawing: Drawing, pen: Pen, leapt: Leapt) -> None:
    """Up to where the draft ends its tokens are its own; behind that they are kept apart, up to an end of the turn."""
    for step, (token, logprob) in enumerate(zip(leapt.tokens, leapt.logprobs, strict=True)):
        if not pen.done:
            drawing.take(pen, token, logprob, leapt.logits[step], leapt.ends[step])
        elif pen.ended or token in drawing.stops:
            return
        else:
            pen.beyond.append(token)
            pen.beyond_logprobs.append(logprob)
