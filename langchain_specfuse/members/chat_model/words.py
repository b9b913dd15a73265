"""Words of a text, which are counted instead of a chat model's tokens."""

from __future__ import annotations

import itertools
import re

from ...core.answer import kept_tokens

LONG_WORD = 12
"""Longer words, such as addresses, count as several tokens."""
_UNSPACED = (
    "\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u1950-\u19ff\u1a20-\u1aaf"  # Thai to Tai Tham
    "\u2e80-\u312f\u3190-\u9fff\uf900-\ufaff\uff00-\uffef"  # Chinese and Japanese
    "\U00010000-\U0010ffff"  # more of them, and emoji
)
"""Characters of scripts without spaces between words, and emoji."""
_WORD = re.compile(rf"(\s{{0,16}})([{_UNSPACED}]|[^\s{_UNSPACED}]*)")


def words_of(text: str) -> list[str]:
    """The words of a text, each with the white space before it. Joined, they are the text.

    In scripts without spaces (Chinese, Japanese, Thai) each character is a word, and so is each
    emoji. A word of more than ``LONG_WORD`` characters, such as an address, is cut into words of
    four characters, and white space is cut after 16 characters.

    >>> words_of("The sky is\\nblue. "), words_of("天空是蓝的 sky")
    (['The', ' sky', ' is', '\\nblue.', ' '], ['天', '空', '是', '蓝', '的', ' sky'])
    >>> words_of(" https://a.org/b?c=1")
    [' http', 's://', 'a.or', 'g/b?', 'c=1']
    """
    words = []
    for space, word in _WORD.findall(text):
        pieces = [word]
        if len(word) > LONG_WORD:
            pieces = [word[at : at + 4] for at in range(0, len(word), 4)]
        pieces[0] = space + pieces[0]
        words += pieces
    return words[:-1]  # the last match is empty


def cut(text: str, count: int) -> str:
    """The text up to its last safe boundary, of at most ``count`` words; empty if there is none.

    >>> cut("The sky is bl", 9), cut("The sky is blue", 2)
    ('The sky is', 'The sky')
    """
    ends = list(itertools.accumulate(map(len, words_of(text))))
    kept = kept_tokens(text, ends, count)
    return text[: ends[kept - 1]] if kept else ""
