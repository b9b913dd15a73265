"""Writes all drafts of a batch, one token at a time, until each has ended.

A draft ends where the model ends its turn, where a stop string appears, at the end of the budget,
or at the last safe boundary once it is long enough. Under a constraint it also ends where only one
continuation is left, and a tool call is drafted whole.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...core.answer import kept_tokens
from ...core.values import Draft, DraftJob, Effort, Failure, Sampling
from ...errors import message_of
from ..text.words import OVERTIME, AddedText, End, Words, complete, end_at, find_end
from .cache import Cache
from .logits import end_logprobs, logprobs_of, most_likely, sample
from .masking import DraftConstraint, cut_in_structure, masked, without
from .strands import Logits, SequenceKey

CUTS = (kept_tokens, cut_in_structure)
"""Functions that find where a draft may be cut. In prose only the first is used."""
OTHERS = 48
"""If tokens are excluded, a draft reports at most this many other first tokens."""


def most_tokens(job: DraftJob) -> int:
    """The greatest length of a draft for this job."""
    return OVERTIME * max(job.segment_tokens, job.call_tokens if job.query.constraint else 0) + 8


@dataclass(frozen=True)
class Leftover:
    """The tokens of a query's last draft, including those that were cut off. If they were sampled
    again, they would be the same."""

    context: list[int]
    tokens: list[int]
    logprobs: list[float]
    sampling: Sampling


@dataclass
class OpenDraft:
    """A draft that is being written."""

    job: DraftJob
    key: SequenceKey
    context: list[int]
    """Prompt and agreed answer."""
    sampling: Sampling
    limit: int
    """At most this many tokens."""
    words: Words
    stops: Sequence[int]
    """Tokens that end a turn."""
    end_text: str = ""
    """Words that end a turn, for a model without such tokens."""
    constraint: DraftConstraint | None = None
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    logits: dict[int, Logits] = field(default_factory=dict)
    """n -> the logits after the first n tokens, wherever the draft may still be cut."""
    reused: int = 0
    """Tokens of the context that were cached."""
    end: End | None = None
    """Where it ends, once that is known."""
    end_logprob: float = 0.0
    """The log-probability of the token that ended the turn, if one did."""
    failure: Failure | None = None
    others: tuple[tuple[int, str], ...] = ()
    """If tokens are excluded: other tokens that it could have begun with, and their texts."""
    _added: AddedText = field(init=False, repr=False)
    _decided: int = 0
    """Up to how many tokens it has been decided whether the draft may be cut."""
    _boundaries: dict[Callable[..., int], int] = field(default_factory=dict)
    """Function of ``CUTS`` -> the last place that it has found."""

    def __post_init__(self) -> None:
        self._added = AddedText(self.words, self.context)

    @property
    def ids(self) -> list[int]:
        return self.context + self.tokens

    @property
    def done(self) -> bool:
        return self.end is not None or self.failure is not None

    def begin(self, leftover: Leftover | None) -> None:
        """Before the first token: end the draft if the answer is complete, and take the tokens that
        are known from the last draft."""
        with self.guarded():
            if self.constraint is not None and self.constraint.state.must_end():
                self.end = End(0, ended=True)
        if leftover is None or leftover.sampling != self.sampling:
            return
        if self.job.excluded:  # the last draft was written without this exclusion
            return
        agreed = len(self.context) - len(leftover.context)
        if agreed <= 0 or self.context != leftover.context + leftover.tokens[:agreed]:
            return
        # One by one, as if they were sampled now: where the draft ends must not depend on what is
        # known already.
        known = list(zip(leftover.tokens, leftover.logprobs, strict=True))[agreed:]
        for token, logprob in known[: self.limit]:
            before = len(self.tokens)
            if not self.done:
                self._add(token, logprob, None)
            if len(self.tokens) == before:
                break

    def reply(self, cache: Cache, effort: Effort) -> Draft | Failure:
        """The finished draft."""
        if self.failure or self.end is None:
            return self.failure or Failure("error", "the draft has no end")
        kept, end = self.end.kept, self.end
        tokens = [*self.tokens[:kept], *end.rest]
        text, ends = self.words.text_after(self.context, tokens)
        if kept < len(self.tokens) and (row := self.logits.get(kept)) is not None:
            cache.keep_logits(self.key, len(self.context) + kept, row)
        logprobs = end.logprobs(self.logprobs, self.end_logprob)
        return Draft(
            text,
            end.ended,
            tuple(tokens),
            tuple(logprobs),
            effort,
            tuple(ends),
            others=self.others,
        )

    def leftover(self) -> Leftover:
        """Its tokens, as the beginning of the query's next draft."""
        return Leftover(list(self.context), self.tokens, self.logprobs, self.sampling)

    # --- one more token ---------------------------------------------------------------------------

    @property
    def excluded(self) -> tuple[int, ...]:
        """The tokens that may not come next."""
        return () if self.tokens else self.job.excluded

    def find_others(self, legal: Logits, token: int) -> None:
        """Find the other tokens that the draft could have begun with. ``legal`` contains the logits
        from which ``token`` was sampled."""
        known = {token, *self.job.excluded, *self.stops}
        likely = [other for other in most_likely(legal, 4 * OTHERS) if other not in known]
        self.others = self.words.alternatives(self.context, likely, OTHERS)

    def take(self, token: int, logprob: float, row: Logits) -> None:
        """A token that was sampled from these logits."""
        if token in self.stops:
            self.end = End(len(self.tokens), ended=True)
            self.end_logprob = end_logprobs(row[None], self.stops)[0]
            return
        self._add(token, logprob, row)
        if not self.done:
            self._drop_logits()

    def _add(self, token: int, logprob: float, row: Logits | None) -> None:
        if self.constraint is None:
            self._put(token, logprob, row)
            return self._check(self.job.segment_tokens)
        with self.guarded():
            if not self.constraint.take(token):
                if row is not None and not self.constraint.exclude(token):
                    self.stuck(logprob)
                return
            self._put(token, logprob, row)
            self._check_constrained(self.constraint)

    def _put(self, token: int, logprob: float, row: Logits | None) -> None:
        if row is not None:
            self.logits[len(self.tokens)] = row
        self.tokens.append(token)
        self.logprobs.append(logprob)
        self._added.extend([token])

    def _drop_logits(self) -> None:
        """Keep only the logits where the draft may still be cut, because one row is as long as the
        vocabulary.

        The draft may be cut at the last boundary so far, and at places that later text decides:
        after the last complete character, or where a text may begin that must not be split.
        """
        text, ends = self._added.text, self._added.ends
        begin = self.constraint.begin if self.constraint else ""
        decided = bisect_right(ends, len(text) - max(1, len(self.end_text), len(begin)))
        for cut in CUTS if self.constraint else CUTS[:1]:
            first = max(self._decided - 1, 0)
            kept = cut(text, ends[first:decided], decided - first)
            if kept > 1 or (kept and not first):
                self._boundaries[cut] = first + kept
        self._decided = max(self._decided, decided)
        boundary = next((at for cut in CUTS if (at := self._boundaries.get(cut))), 0)
        self.logits = {
            at: row for at, row in self.logits.items() if at == boundary or at >= decided
        }

    # --- where it ends ----------------------------------------------------------------------------

    def _check(self, length: int, hold: str = "", *, prose: bool = True) -> None:
        """End the draft here if it is time to, once it has ``length`` tokens. Structured text may
        also be cut behind punctuation."""
        end_text = self.end_text if prose else ""
        if len(self.tokens) >= min(length, self.limit) or end_text or self.job.stop:
            text, ends = self._added.text, self._added.ends
            cuts = CUTS[:1] if prose else CUTS
            how: Any = {
                "limit": self.limit,
                "target": length,
                "end_text": end_text,
                "hold": hold,
                "cuts": cuts,
            }
            self.end = find_end(self.words, self.job, text, ends, **how)

    def _check_constrained(self, constraint: DraftConstraint) -> None:
        """Like :meth:`_check` under a constraint: the grammar says where calls begin and end, and
        where only one continuation is left."""
        size = len(self.tokens)
        if constraint.state.must_end():
            self.end = End(size, ended=True)
        # a call is complete, and the turn continues: members vote on this call alone
        elif constraint.call_end:
            self.end = End(constraint.call_end)
        elif constraint.state.in_call:
            if not (constraint.entered and self._cut_before_call(constraint)):
                self._check(max(self.job.call_tokens, self.job.segment_tokens), prose=False)
        elif constraint.left:
            constraint.call_end = size
            if size >= self.limit:
                self.end = End(size)
        elif constraint.free:
            self._check(self.job.segment_tokens, constraint.begin)
        elif constraint.newly_forced() and complete(self._added.ends) == size:
            self.end = End(size)
        else:
            self._check(self.job.segment_tokens, prose=False)

    def _cut_before_call(self, constraint: DraftConstraint) -> bool:
        """Make the text before a call a separate draft, so that members vote on whole calls."""
        text, ends = self._added.text, self._added.ends
        at = text.rfind(constraint.begin.rstrip()) if constraint.begin else -1
        if at <= 0 or not text[:at].strip():
            return False
        self.end = end_at(self.words, text, ends, at, ended=False)
        return True

    # --- constraints ------------------------------------------------------------------------------

    def mask(self) -> Any:
        mask = None
        if self.constraint is not None and not self.done:
            with self.guarded():
                mask = self.constraint.mask
                if mask is not None and not mask.any():
                    self.stuck(0.0)
        return mask

    def stuck(self, logprob: float) -> None:
        """End the draft with its tokens so far: the grammar allows no token, or not the sampled
        one."""
        self.end = End(complete(self._added.ends))
        if not self.end.kept:
            kind = "nan" if math.isnan(logprob) else "error"
            self.failure = Failure(kind, "none of its tokens can follow under this constraint")

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """A context in which an error of the grammar fails this draft and no other."""
        try:
            yield
        except Exception as error:
            why = f"{type(error).__name__}: {message_of(error)}"
            self.failure = Failure("error", f"its constraint failed: {why}", error)


def write_drafts(cache: Cache, drafts: Sequence[OpenDraft]) -> None:
    """Read the contexts of these drafts, and write them together until each is done."""
    with cache.holding(lambda: (row for draft in drafts for row in draft.logits.values())):
        _write(cache, drafts)


def _write(cache: Cache, drafts: Sequence[OpenDraft]) -> None:
    rows = cache.prefill([(draft.key, draft.ids) for draft in drafts], drafting=True)
    for draft in drafts:
        draft.reused = min(cache.reused[draft.key], len(draft.context))
    logits = {draft.key: row for draft, row in zip(drafts, rows, strict=True)}
    while writing := [draft for draft in drafts if not draft.done]:
        ready = [draft for draft in writing if draft.key in logits]
        if not ready:
            rows = cache.decode(
                [draft.key for draft in writing], [draft.tokens[-1] for draft in writing]
            )
            logits.update(zip((draft.key for draft in writing), rows, strict=True))
            continue
        masks = {draft.key: draft.mask() for draft in ready}
        if ready := [draft for draft in ready if not draft.done]:
            _add_token(ready, logits, [masks[draft.key] for draft in ready])


def _add_token(
    drafts: Sequence[OpenDraft], logits: dict[SequenceKey, Logits], masks: list[Any]
) -> None:
    """Sample the next token of each of these drafts."""
    rows = np.stack([logits[draft.key] for draft in drafts])
    how = [_sampling(draft) for draft in drafts]
    is_masked = any(mask is not None for mask in masks)
    legal = list(masked(rows, masks) if is_masked else rows)
    for at, draft in enumerate(drafts):
        if draft.excluded:
            legal[at] = without(legal[at], draft.excluded)
    texts = [draft.ids for draft in drafts]
    tokens = sample(legal, how, texts)
    for at, (draft, logprob) in enumerate(zip(drafts, logprobs_of(rows, tokens), strict=True)):
        row = logits[draft.key]  # not a view of ``rows``, which would keep all of them in memory
        if draft.excluded:
            draft.find_others(legal[at], tokens[at])
        draft.take(tokens[at], logprob, row)
        # a refused token is sampled again
        if not (draft.done or (draft.constraint and draft.constraint.refused)):
            del logits[draft.key]


def _sampling(draft: OpenDraft) -> Sampling:
    """The draft's sampling, without a penalty where the grammar constrains the draft. There,
    repetition is not the model's choice, and a penalty would change what it copies."""
    free = draft.constraint is None or draft.constraint.free
    if free or draft.sampling.repetition_penalty is None:
        return draft.sampling
    return replace(draft.sampling, repetition_penalty=None)
