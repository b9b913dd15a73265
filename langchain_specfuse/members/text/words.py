"""One tokenizer's view of a text that others write too.

Own segments keep their own tokens. Text from others is tokenized in its context, never alone: runs of it are one text,
cut into blocks at safe boundaries so that a long run costs no more than its tail. What looks like a special token there
is text as well: a page of HTML must not end a turn with its ``</s>``. Text is told from tokens by difference, which
keeps every space whatever the tokenizer does at a beginning. Knows nothing of models and tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from threading import Lock
from typing import Any

from ..core.answer import is_safe
from ..core.values import DraftJob, Segment

OVERTIME = 2
"""A draft without a safe boundary may go on to this many times its length, and a few tokens more."""

LEFT_TOKENS = 12
"""Tokens of context that are decoded along, to see what a new token adds."""
LEFT_CHARS = 48
"""Characters of context that are tokenized along, so that the first new token is what it would be in the whole."""
ANCHORS = ("\n", "x", "0", ")")
"""What a text is read behind where its context melts into it: alone, some tokenizers put a space before it."""
BLOCK_CHARS = 400
REPLACEMENT = "\ufffd"
HELD_BYTES = 4
"""A character has at most four bytes: what is still incomplete after more tokens than that never will be."""

_ENCODING = Lock()
"""How special tokens are read is a state of the tokenizer, which members, and those who count tokens, may share."""


class Words:
    """Text <-> tokens for one tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self._after = lru_cache(maxsize=4096)(self._encoded_after)

    def encode(self, text: str, marks: bool = True) -> list[int]:
        """The tokens of a text that stands alone (a rendered prompt), without anything added.

        ``marks``: what is written like a special token is one. In an answer nothing is, whoever wrote it.
        """
        with _ENCODING:
            return list(self.tokenizer(text, add_special_tokens=False, split_special_tokens=not marks)["input_ids"])

    def continuing(self, text: str, marks: bool = False) -> list[int]:
        """The tokens of a text that follows a word: no space is put before it, as some do at a beginning."""
        return list(self._after("x", text, marks))

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def answer_ids(self, me: str, prompt_ids: Sequence[int], segments: Sequence[Segment]) -> list[int]:
        """The prompt and the agreed answer as ``me`` reads them."""
        ids = list(prompt_ids)
        run = ""
        for segment in segments:
            own = segment.tokens.get(me)
            if own is None:
                run += segment.text
                continue
            ids += self.after(ids, run)
            ids += own
            run = ""
        return ids + self.after(ids, run)

    def after(self, ids: Sequence[int], run: str, marks: bool = False) -> list[int]:
        """The tokens of a text, not our own, that follows ``ids``."""
        if not run:
            return []
        left = self._left(ids)[1][-LEFT_CHARS:]
        found: list[int] = []
        for block in blocks(run):
            found += self._after(left, block, marks)
            left = (left + block)[-LEFT_CHARS:]
        return found

    def _encoded_after(self, left: str, text: str, marks: bool) -> tuple[int, ...]:
        """The tokens of ``text`` as a continuation of ``left``."""
        left = left.lstrip(REPLACEMENT)
        for anchor in (left, *ANCHORS) if left else ANCHORS:
            found = self._split(anchor, text, marks)
            if found is not None:
                return found
        return tuple(self.encode(text, marks))

    def _split(self, left: str, text: str, marks: bool) -> tuple[int, ...] | None:
        """The tokens after ``left`` when both are tokenized as one text; None if one token holds parts of both."""
        alone, whole = self.encode(left, marks), self.encode(left + text, marks)
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

    def told(self, context: Sequence[int], new: Sequence[int]) -> tuple[str, list[int]]:
        """The text that these tokens add, and how many of its characters are complete after each of them."""
        left, base = self._left(context)
        text, ends = "", []
        held = 0
        for count in range(1, len(new) + 1):
            whole = self._added(left, base, new[:count])
            complete = whole.rstrip(REPLACEMENT)
            held = held + 1 if len(complete) < len(whole) else 0
            if held > HELD_BYTES:
                complete = whole
            if len(complete) > len(text):
                text = complete
            ends.append(len(text))
        return text, ends

    def added(self, context: Sequence[int], new: Sequence[int]) -> str:
        """The text that these tokens add, complete characters or not."""
        return self._added(*self._left(context), new)

    def _left(self, context: Sequence[int]) -> tuple[list[int], str]:
        """The end of the context and its text, from where a character begins: half a one spoils what follows."""
        first = None
        for size in range(LEFT_TOKENS, LEFT_TOKENS + HELD_BYTES):
            left = list(context[-size:])
            told = left, self.decode(left)
            if not told[1].startswith(REPLACEMENT):
                return told
            first = first or told
        return first or ([], "")

    def _added(self, left: list[int], base: str, new: Sequence[int]) -> str:
        whole = self.decode([*left, *new])
        for _ in range(HELD_BYTES):
            if whole.startswith(base):
                return whole[len(base) :]
            # The context ended with the first bytes of a character, which was held back and is whole now.
            base = base.removesuffix(REPLACEMENT)
        return self.decode(new)


def blocks(run: str) -> Iterator[str]:
    """A long run in pieces that stay the same when it grows: each ends at the first safe boundary after 400 characters.

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


def complete(ends: Sequence[int]) -> int:
    """How many tokens end where a character is complete."""
    whole = len(ends)
    while whole > 1 and ends[whole - 1] == ends[whole - 2]:
        whole -= 1
    return whole


def tail_of(job: DraftJob) -> str:
    """The end of the answer in which a stop string may have begun."""
    longest = max((len(word) for word in job.stop), default=1) - 1
    return "".join(segment.text for segment in job.answer)[-longest:] if longest else ""
