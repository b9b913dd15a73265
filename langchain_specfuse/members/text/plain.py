"""Words as tokens, for members whose own tokens are unknown."""

from __future__ import annotations

import itertools
import re
import zlib

from ...core.answer import kept_tokens

_WORD = re.compile(r"\s*\S+|\s+\Z")


def words_of(text: str) -> list[str]:
    """The words, each with the white space before it; together they are the text.

    >>> words_of("The sky is\\nblue. ")
    ['The', ' sky', ' is', '\\nblue.', ' ']
    """
    return _WORD.findall(text)


def word_ids(text: str) -> tuple[int, ...]:
    """A number of our own for each word."""
    return tuple(zlib.crc32(word.encode()) for word in words_of(text))


def cut(text: str, count: int | None = None) -> str:
    """The text up to its last safe boundary, of at most ``count`` words; empty if there is none.

    >>> cut("The sky is bl"), cut("The sky is blue", 2)
    ('The sky is', 'The sky')
    """
    ends = list(itertools.accumulate(map(len, words_of(text))))
    kept = kept_tokens(text, ends, len(ends) if count is None else count)
    return text[: ends[kept - 1]] if kept else ""
