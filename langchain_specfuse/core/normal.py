"""The normal form of a text, in which different spellings of the same text are equal.

Paper: it has no such form.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache

_LOOK_ALIKES = str.maketrans(
    "авекмнорстухіјѕһԁԛԝӏ" + "αβεζηικμνορτυχ" + "ı",
    "abekmhopctyxijshdqwl" + "abezhikmnoptyx" + "i",
)
"""Small Cyrillic and Greek letters that look like Latin ones, or whose capitals do, and the
Latin letter; the dotless i too."""


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
