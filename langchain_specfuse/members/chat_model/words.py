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
    return [word for space, whole in _split(text) for word in _pieces(space, whole)]


class WordCount:
    """Counts the words of a text that arrives in parts. The count after each part is that of
    :func:`words_of` for all of the text so far.

    >>> count = WordCount()
    >>> [count.add(part) for part in ("The sk", "y is", "")]
    [['The', ' sk'], [' is'], []]
    >>> count.total
    3
    """

    def __init__(self) -> None:
        self.total = 0
        self._open = ""
        """The last word, which may go on. Of a long one, only its end."""
        self._counted = 0
        """How many words it counts as."""

    def add(self, part: str) -> list[str]:
        """The words that the part adds. A word that becomes long counts as several, of which some
        may end before the part."""
        if not part:
            return []
        words: list[str] = []
        for space, word in _split(self._open + part):
            words += _pieces(space, word)
        del words[: self._counted]
        word = word[max(len(word) - LONG_WORD - 1, 0) // 4 * 4 :]
        self._open = space + word
        self._counted = len(_pieces(space, word))
        self.total += len(words)
        return words


def _split(text: str) -> list[tuple[str, str]]:
    """The words of a text, long ones whole, each with the white space before it."""
    return _WORD.findall(text)[:-1]  # the last match is empty


def _pieces(space: str, word: str) -> list[str]:
    if len(word) <= LONG_WORD:
        return [space + word]
    return [space + word[:4], *(word[at : at + 4] for at in range(4, len(word), 4))]


def cut(text: str, count: int) -> str:
    """The text up to its last safe boundary, of at most ``count`` words; empty if there is none.

    >>> cut("The sky is bl", 9), cut("The sky is blue", 2)
    ('The sky is', 'The sky')
    """
    ends = list(itertools.accumulate(map(len, words_of(text))))
    kept = kept_tokens(text, ends, count)
    return text[: ends[kept - 1]] if kept else ""
