"""How one tokenizer reads a text to which other members contribute, and where a draft ends.

A member's own segments keep their own tokens. Text from others is tokenized in its context, never
alone: a run of it is one text, cut into blocks at safe boundaries so that a long run costs no more
than its end. In an answer, text that looks like a special token is ordinary text: an HTML page must
not end a turn with its ``</s>``. The text of new tokens is the difference between two decoded
texts, which keeps every space whatever the tokenizer does at the beginning of a text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from threading import Lock
from typing import Any

from ...core.answer import first_stop, held_back, is_safe, kept_tokens
from ...core.values import DraftJob, Segment

LEFT_TOKENS = 12
"""How many tokens of context are decoded, too, to find the text that a new token adds."""
LEFT_CHARS = 48
"""How many characters of context are tokenized, too, so that the first new token is the same as in
the whole text."""
ANCHORS = ("\n", "x", "0", ")")
"""A text that shares a token with its context is tokenized after one of these: alone, some
tokenizers put a space first."""
BLOCK_CHARS = 400
OPEN_TOKENS = 32
"""How many new tokens are decoded as one text. Beyond that, the first of them are not decoded
again, so that each further token costs the same. Drafts of the usual length are decoded whole."""
REPLACEMENT = "\ufffd"
HELD_BYTES = 4
"""A character has at most four bytes: one that is still incomplete after more tokens never becomes
complete."""

_ENCODING = Lock()
"""Held while a tokenizer of this process encodes. Whether it recognises special tokens is part of
its state, and members and token counters may share a tokenizer."""


class Words:
    """Converts between texts and tokens of one tokenizer."""

    def __init__(self, tokenizer: Any, split: Callable[[str], Sequence[str]] | None = None) -> None:
        """``split`` cuts a text inside what the tokenizer would always read as special tokens."""
        self.tokenizer = tokenizer
        self._split_text = split
        is_elsewhere = getattr(tokenizer, "is_elsewhere", False)
        self._encoding: AbstractContextManager[Any] = nullcontext() if is_elsewhere else _ENCODING
        self._after = lru_cache(maxsize=4096)(self._encoded_after)

    def encode(self, text: str, marks: bool = True) -> list[int]:
        """The tokens of a text that stands alone (a rendered prompt), without anything added.

        ``marks``: whether special tokens in the text are recognised. In an answer they are not.
        """
        if self._split_text is not None and not marks:
            parts = self._split_text(text)
            if len(parts) > 1:
                return self.encode_parts(parts, marks)
        options = {"add_special_tokens": False, "split_special_tokens": not marks}
        with self._encoding:
            return list(self.tokenizer(text, **options)["input_ids"])

    def encode_parts(self, parts: Sequence[str], marks: bool = True) -> list[int]:
        """The tokens of a text that is given in parts. A special token that extends over two parts
        is not recognised."""
        ids = self.encode(parts[0], marks)
        for part in parts[1:]:
            ids += self._encoded_after("x", part, marks)
        return ids

    def continuing(self, text: str, marks: bool = False) -> list[int]:
        """The tokens of a text that follows a word: no space is added, as some tokenizers do at a
        beginning."""
        return list(self._after("x", text, marks))

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(
            list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text

    def answer_ids(
        self, me: str, prompt_ids: Sequence[int], segments: Sequence[Segment]
    ) -> list[int]:
        """The tokens of the prompt and the agreed answer for the member ``me``."""
        ids = list(prompt_ids)
        run = ""
        for segment in segments:
            own = segment.tokens.get(me)
            if not own:
                run += segment.text
                continue
            ids += self.after(ids, run)
            ids += own
            run = ""
        return ids + self.after(ids, run)

    def after(self, ids: Sequence[int], run: str, marks: bool = False) -> list[int]:
        """The tokens of a text from others that follows ``ids``."""
        if not run:
            return []
        left = self.left(ids)[1][-LEFT_CHARS:]
        new: list[int] = []
        for block in blocks(run):
            new += self._after(left, block, marks)
            left = (left + block)[-LEFT_CHARS:]
        return new

    def _encoded_after(self, left: str, text: str, marks: bool) -> tuple[int, ...]:
        """The tokens of ``text`` as a continuation of ``left``."""
        left = left.lstrip(REPLACEMENT)
        for anchor in (left, *ANCHORS) if left else ANCHORS:
            ids = self._split(anchor, text, marks)
            if ids is not None:
                return ids
        return tuple(self.encode(text, marks))

    def _split(self, left: str, text: str, marks: bool) -> tuple[int, ...] | None:
        """The tokens after ``left`` when both are tokenized as one text; None if one token holds
        parts of both."""
        alone = self.encode(left, marks)
        whole = self.encode(left + text, marks)
        if whole[: len(alone)] == alone:
            return tuple(whole[len(alone) :])
        # Tokenizing together changed the end of ``left``: look for the place where ``text`` begins.
        for count in range(len(alone) - 1, max(len(alone) - 5, 0), -1):
            if whole[:count] == alone[:count]:
                for at in range(count, len(whole)):
                    if self.decode(whole[:at]) == self.decode(alone):
                        return tuple(whole[at:])
                return None
        return None

    def text_after(self, context: Sequence[int], new: Sequence[int]) -> tuple[str, list[int]]:
        """The text that these tokens add, and how many of its characters are complete after each of
        them."""
        added = AddedText(self, context)
        added.extend(new)
        return added.text, added.ends

    def ends(self, context: Sequence[int], new: Sequence[int], candidate: str) -> tuple[int, ...]:
        """How many of the candidate's characters are complete after each of these tokens.

        The tokens may begin before the candidate, where its beginning shares a token with the text
        before it.
        """
        text, ends = self.text_after(context, new)
        before = len(text) - len(candidate)
        return tuple(max(0, end - before) for end in ends)

    def added(self, context: Sequence[int], new: Sequence[int]) -> str:
        """The text that these tokens add, even if its last character is incomplete."""
        return self.difference(*self.left(context), new)

    def alternatives(
        self, context: Sequence[int], tokens: Iterable[int], most: int
    ) -> tuple[tuple[int, str], ...]:
        """The first ``most`` of these tokens that would add text to the context, each with its
        text. A token that completes no character adds none."""
        left, base = self.left(context)
        found: list[tuple[int, str]] = []
        for token in tokens:
            if len(found) == most:
                break
            text = self.difference(left, base, [token]).rstrip(REPLACEMENT)
            if text:
                found.append((token, text))
        return tuple(found)

    def left(self, context: Sequence[int]) -> tuple[list[int], str]:
        """The last tokens of the context and their text, which begins with a whole character: half
        a character would change the text after it."""
        first = None
        for size in range(LEFT_TOKENS, LEFT_TOKENS + HELD_BYTES):
            left = list(context[-size:])
            text = self.decode(left)
            if not text.startswith(REPLACEMENT):
                return left, text
            first = first or (left, text)
        return first or ([], "")

    def difference(self, left: list[int], base: str, new: Sequence[int]) -> str:
        """The text that these tokens add to the tokens ``left``, whose text is ``base``."""
        whole = self.decode([*left, *new])
        for _ in range(HELD_BYTES):
            if whole.startswith(base):
                return whole[len(base) :]
            # The context ended with the first bytes of a character, which is complete now.
            base = base.removesuffix(REPLACEMENT)
        return self.decode(new)


class AddedText:
    """The text that tokens add to a context, token by token.

    Only the last tokens are decoded again for each new one, so the work grows linearly.
    """

    def __init__(self, words: Words, context: Sequence[int]) -> None:
        self.text = ""
        self.ends: list[int] = []
        """How many characters of the text are complete after each token."""
        self._words = words
        self._left, self._base = words.left(context)
        self._closed = ""
        """The text that no longer changes."""
        self._open: list[int] = []
        """The tokens after that text."""
        self._held = 0
        """How many of the last tokens ended within a character."""

    def extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._add(token)

    def _add(self, token: int) -> None:
        self._open.append(token)
        whole = self._closed + self._words.difference(self._left, self._base, self._open)
        complete = whole.rstrip(REPLACEMENT)
        self._held = self._held + 1 if len(complete) < len(whole) else 0
        if self._held > HELD_BYTES:
            complete = whole
        if len(complete) > len(self.text):
            self.text = complete
        self.ends.append(len(self.text))
        within = 0 < self._held <= HELD_BYTES
        if len(self._open) >= OPEN_TOKENS and not within:
            self._close(whole)

    def _close(self, whole: str) -> None:
        """Stop decoding the open tokens again, except those that may be part of a character."""
        left, text = self._words.left(self._open)
        base = text.rstrip(REPLACEMENT)
        if text and whole.endswith(text):
            self._left, self._base, self._open = left, base, []
            self._closed = whole[: len(whole) - len(text) + len(base)]


def blocks(run: str) -> Iterator[str]:
    """Cut a long run into blocks that stay the same when it grows: at the first safe boundary after
    400 characters.

    >>> [len(block) for block in blocks("word " * 200)]
    [404, 400, 196]
    """
    start = at = 0
    while len(run) - start > BLOCK_CHARS:
        at = start + BLOCK_CHARS
        while at < len(run) and not is_safe(run, at):
            at += 1
        if at >= len(run):
            break
        yield run[start:at]
        start = at
    if start < len(run):
        yield run[start:]


def either(logprobs: Iterable[float]) -> float:
    """The log-probability of any of these events, at most 0.

    >>> round(math.exp(either([math.log(0.25), math.log(0.5)])), 6)
    0.75
    """
    known = sorted(logprobs, reverse=True)
    if not known or known[0] == -math.inf:
        return -math.inf
    return min(0.0, known[0] + math.log(math.fsum(math.exp(value - known[0]) for value in known)))


# --- where a draft ends ---------------------------------------------------------------------------

OVERTIME = 2
"""A draft without a safe boundary may have this many times as many tokens as its target, plus
eight."""


@dataclass(frozen=True, slots=True)
class End:
    """Where a draft ends."""

    kept: int
    """How many of its tokens are kept."""
    rest: tuple[int, ...] = ()
    """The answer's last characters, where their token also begins the text that ends the turn."""
    ended: bool = False
    """Whether the draft ends the answer."""

    def logprobs(self, known: Sequence[float], ended_by: float = 0.0) -> list[float]:
        """The log-probabilities of the tokens in ``kept`` and ``rest`` and, if it ended, of the end
        of the turn.

        ``known``: those of all drawn tokens; ``ended_by``: that of the token that ended the turn,
        if one did.
        """
        count = self.kept + bool(self.rest)
        row = [*known[:count], *[0.0] * (len(self.rest) - 1)]
        if self.ended:
            row.append(math.fsum(known[count:]) + ended_by)
        return row


def find_end(
    words: Words,
    job: DraftJob,
    text: str,
    ends: Sequence[int],
    *,
    limit: int,
    target: int | None = None,
    end_text: str = "",
    hold: str = "",
    cuts: Sequence[Callable[[str, Sequence[int], int], int]] = (kept_tokens,),
) -> End | None:
    """Where the draft ends; None if it needs more tokens. ``text`` and ``ends`` are those of
    :meth:`.text_after`.

    A draft ends where ``end_text`` ends the turn, at a stop string, after ``limit`` tokens, or at
    the last safe boundary once it has ``target`` tokens (default: the job's). Text such as ``hold``
    is not cut in two. ``cuts`` are functions that find a boundary; the first that finds one counts.
    """
    size = len(ends)
    target = target or job.segment_tokens
    at = text.find(end_text) if end_text else -1
    if at >= 0:
        return end_at(words, text, ends, at, ended=True)
    if first_stop(tail_of(job) + text, job.stop) is not None or size >= limit:
        return End(complete(ends))
    if size < target:
        return None
    # Text that may begin ``end_text`` is held back: the next tokens will tell.
    open_end = len(text) - held_back(text, (end_text, hold))
    whole = sum(end <= open_end for end in ends)
    for most in (min(target, whole), whole):
        for cut in cuts:
            kept = cut(text, ends, most)
            if kept:
                return End(kept)
    return End(complete(ends)) if size >= OVERTIME * target + 8 else None


def end_at(words: Words, text: str, ends: Sequence[int], at: int, *, ended: bool) -> End:
    """The end at this character, which may be in the middle of a token."""
    kept = sum(end <= at for end in ends)
    known = ends[kept - 1] if kept else 0
    rest: tuple[int, ...] = ()
    if known < at:
        rest = tuple(words.continuing(text[known:at]))
    return End(kept, rest, ended)


def complete(ends: Sequence[int]) -> int:
    """The number of tokens without those at the end that hold an incomplete character."""
    count = len(ends)
    while count > 1 and ends[count - 1] == ends[count - 2]:
        count -= 1
    return count


def tail_of(job: DraftJob) -> str:
    """The end of the answer in which a stop string may have begun."""
    longest = max((len(word) for word in job.stop), default=1) - 1
    if not longest:
        return ""
    return "".join(segment.text for segment in job.answer)[-longest:]


@dataclass
class PartialDraft:
    """A draft whose tokens come in several at a time, until its end is found."""

    job: DraftJob
    words: Words
    context: Sequence[int]
    limit: int
    """The greatest number of tokens."""
    end_text: str = ""
    """The text that ends a turn, for a model without tokens that do."""
    tokens: list[int] = field(default_factory=list)
    end: End | None = None
    _logprobs: list[float] | None = field(default_factory=list)
    _ended_by: float = 0.0
    _added: AddedText = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._added = AddedText(self.words, self.context)

    @property
    def next_count(self) -> int:
        """How many tokens to draw next."""
        return min(self.job.segment_tokens, self.limit - len(self.tokens))

    def add(
        self,
        tokens: Sequence[int],
        logprobs: Sequence[float] | None,
        *,
        ended: bool = False,
        ended_by: float = 0.0,
    ) -> None:
        """Add drawn tokens, one by one, because the end of the draft must not depend on how many
        tokens arrive at once.

        ``ended``: the model ended its turn behind them, by a token of log-probability ``ended_by``.
        """
        before = len(self.tokens)
        self.tokens += tokens
        if self._logprobs is None or logprobs is None:
            self._logprobs = None
        else:
            self._logprobs = [*self._logprobs, *logprobs]
        self._added.extend(tokens)
        text, ends = self._added.text, self._added.ends
        for size in range(before + 1, len(self.tokens) + 1):
            so_far, known = text[: ends[size - 1]], ends[:size]
            self.end = find_end(
                self.words, self.job, so_far, known, limit=self.limit, end_text=self.end_text
            )
            if self.end is not None:
                del self.tokens[size:]
                return
        if ended:
            self.end, self._ended_by = End(len(self.tokens), ended=True), ended_by
        elif not tokens:  # the engine has nothing more to add
            self.end = End(complete(ends))

    def result(self) -> tuple[list[int], list[float] | None]:
        """The tokens that are kept, and their log-probabilities with that of the end."""
        assert self.end is not None
        kept = [*self.tokens[: self.end.kept], *self.end.rest]
        if self._logprobs is None:
            return kept, None
        return kept, self.end.logprobs(self._logprobs[: len(self.tokens)], self._ended_by)
