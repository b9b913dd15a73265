"""The normal form of a text, in which different spellings of the same text are equal, and the
search for other spellings of a text.

Paper: it has no such form.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

_LOOK_ALIKES = str.maketrans(
    "авекмнорстухіјѕһԁԛԝӏ" + "αβεζηικμνορτυχ" + "ı",
    "abekmhopctyxijshdqwl" + "abezhikmnoptyx" + "i",
)
"""Small Cyrillic and Greek letters that look like Latin ones, or whose capitals do, and the
Latin letter; the dotless i too."""


SHORTEST = 3
"""Shorter normal forms are not searched for: other texts have them, too."""
SHORTEST_DATA, SHORTEST_WORDS = 8, 15
"""Shorter forms are shared by different texts: "1.00" and "100%", "were" and "we're"."""
PART = 0.6
"""This share of an address, a number or a name, in a row, counts as all of it."""


def normal(text: str) -> tuple[str, list[int]]:
    """The normal form of a text, and for each of its characters the place in the text.

    Only letters and digits remain, without accents: in small letters, full-width and other
    compatible characters as plain ones (NFKD), digits of all scripts as 0 to 9, and Cyrillic and
    Greek letters that look like Latin ones as those.

    >>> normal("Ann.Smith@example.c om")[0]
    'annsmithexamplecom'
    >>> normal("（４１）")
    ('41', [1, 2])
    """
    letters: list[str] = []
    places: list[int] = []
    for place, character in enumerate(text):
        form = _form(character)
        letters.append(form)
        places += [place] * len(form)
    return "".join(letters), places


@lru_cache(4096)
def _form(character: str) -> str:
    plain = unicodedata.normalize("NFKD", character).casefold()
    kept = (
        str(unicodedata.decimal(letter)) if letter.isdecimal() else letter
        for letter in plain.translate(_LOOK_ALIKES)
        if letter.isalnum()
    )
    return "".join(kept)


@dataclass(frozen=True, slots=True)
class Spelling:
    """A text that is searched for in every spelling."""

    form: str
    least: int
    """So many characters of the form in a row match; if it is all of them, only as whole words."""
    is_distinct: bool
    """Whether hardly any other text has this form."""

    @classmethod
    def of(cls, text: str, *, is_fixed: bool, is_data: bool = False) -> Spelling | None:
        """The spelling of this text; None if it has too few letters and digits. The text is data if
        it has an @, if half of its letters and digits are digits (a fifth in a long text), or if it
        is a long name: half of its words, and at least three, begin with capital letters.
        ``is_fixed``: a user has forbidden this very text, or this kind of data. Otherwise, a text
        with a part of it, or the same words in another spelling, may be what the user wants
        instead."""
        form, _ = normal(text)
        if len(form) < SHORTEST:
            return None
        is_long = len(form) >= SHORTEST_WORDS
        parts = 5 if is_long else 2
        is_data = is_data or "@" in text or parts * sum(map(str.isdigit, form)) >= len(form)
        words = re.findall(r"\w+", text)
        capitals = sum(word[0].isupper() for word in words)
        is_name = is_fixed and is_long and capitals > 2 and 2 * capitals >= len(words)
        if not (is_data or is_name):
            return cls(form, len(form), is_fixed and is_long)
        is_distinct = len(form) >= SHORTEST_DATA
        share = PART if is_fixed and is_distinct else 1
        return cls(form, math.ceil(share * len(form)), is_distinct)

    @classmethod
    def of_literal(cls, text: str) -> Spelling | None:
        """The spelling of a whole text that no check has refused yet; None if other texts may well
        have its form: if it is short, or has neither a digit nor an @."""
        form, _ = normal(text)
        is_data = "@" in text or any(map(str.isdigit, form))
        return cls(form, len(form), True) if is_data and len(form) >= SHORTEST_DATA else None

    @property
    def is_in_part(self) -> bool:
        """Whether a part of it is found, too."""
        return self.least < len(self.form)

    def found(self, text: str, start: int = 0) -> tuple[int, int] | None:
        """Where it is spelled in this text for the first time, in characters of the text. It ends
        after ``start``.

        >>> Spelling.of("4111 1111 2222", is_fixed=True).found("It is 4 1 1 1-1 1 1 1-9.")
        (6, 21)
        """
        return next(self.spans(text, start), None)

    def spans(self, text: str, start: int = 0) -> Iterator[tuple[int, int]]:
        """All places where it is spelled that end after ``start``; of a part, more than once."""
        first = _place_before(text, start, len(self.form) - 1)
        tail, places = normal(text[first:])
        for at in range(len(tail) - self.least + 1):
            end = at + self.least
            if tail[at:end] not in self.form or first + places[end - 1] < start:
                continue
            while at > 0 and tail[at - 1 : end] in self.form:
                at -= 1
            while end < len(tail) and tail[at : end + 1] in self.form:
                end += 1
            span = first + places[at], first + places[end - 1] + 1
            if self.is_in_part or (is_apart(text, span[0]) and is_apart(text, span[1])):
                yield span

    def pending(self, text: str) -> int:
        """Where the end of this text begins that may be the beginning of it.

        >>> Spelling.of("4111 1111 2222", is_fixed=True).pending("It is 4 11"), len("It is ")
        (6, 6)
        """
        first = _place_before(text, len(text), len(self.form) - 1)
        tail, places = normal(text[first:])
        for at, place in enumerate(places):
            is_long = self.is_in_part and len(tail) - at >= SHORTEST and tail[at:] in self.form
            if is_long or (self.form.startswith(tail[at:]) and is_apart(text, first + place)):
                return first + place
        return len(text)

    def begins(self, text: str) -> bool:
        """Whether it may begin with this text."""
        form, _ = normal(text)
        return len(form) > 1 and self.form.startswith(form)


def is_apart(text: str, at: int) -> bool:
    """Whether no word goes on at this place."""
    return not (text[max(at - 1, 0) : at].isalnum() and text[at : at + 1].isalnum())


def _place_before(text: str, at: int, count: int) -> int:
    """The place before the last ``count`` letters and digits before this one."""
    while at > 0 and count > 0:
        at -= 1
        count -= len(_form(text[at]))
    return at
