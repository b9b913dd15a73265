"""Openers of replies to "continue this text": "Sure, ...", "Of course! Here is the rest:"."""

from __future__ import annotations

import re
from collections.abc import Sequence

LONGEST = 160
"""An announcement, such as "Here is the rest:", ends within so many characters."""
_INTERJECTIONS = (
    *("sure thing", "sure", "of course", "certainly", "absolutely", "definitely", "okay", "ok"),
    *("alright", "all right", "understood", "got it", "no problem", "yes", "great", "gladly"),
    *("my apologies", "apologies", "sorry", "natürlich", "gerne", "klar", "sicher"),
    *("bien sûr", "d'accord", "claro", "por supuesto", "certo", "certamente"),
)
_ANNOUNCEMENTS = (
    *("here is", "here's", "here’s", "here are", "let me", "let's", "let’s", "i'll", "i’ll"),
    *("i will", "i apologize", "i'm sorry", "i’m sorry", "i am sorry", "continuing"),
    *("to continue", "picking up", "the continuation", "below is", "this is", "happy to"),
    *("hier ist", "hier die", "voici", "aquí", "ecco"),
)
_IS_OF_REST = re.compile(
    r"continu|\brest\b|left off|stopp?ed|interrupt|fortsetz|\bsuite\b", re.IGNORECASE
)
_IS_OPENER = re.compile(rf"{_IS_OF_REST.pattern}|\banswer\b|sorry|apologi", re.IGNORECASE)
_MARKS = re.compile(r"[!.,:;–—-]+\s*")
_SENTENCE = re.compile(rf"[^.:!\n]{{0,{LONGEST}}}[.:!\n]+\s*")


def is_of_rest(opener: str) -> bool:
    """Whether an opener announces the rest of a text, rather than an answer."""
    return _IS_OF_REST.search(opener) is not None


def opener_is_said(opener: str) -> bool:
    """Whether an opener addresses the one who asked, so that it cannot be a part of the text.
    "Of course," can be one."""
    is_said = "!" in opener or opener.rstrip().endswith(":")
    return is_said or _IS_OPENER.search(opener) is not None


def opener(reply: str) -> int | None:
    """The length of the opener that a reply begins with; 0 if it has none, None if that is not
    decided yet.

    >>> [opener(reply) for reply in ("Of course! Blue", "Blue is", "Of cou", "Sure, blue")]
    [11, 0, None, 6]
    >>> opener("Certainly! Here is the continuation: blue"), opener("Here is the rest: blue")
    (37, 18)
    """
    start = len(reply) - len(reply.lstrip())
    size = _phrase(reply[start:], _INTERJECTIONS)
    if size is None:
        return None
    at = start
    if size:
        marks = _MARKS.match(reply, start + size)
        if marks is None:
            return None if start + size == len(reply) else 0
        at = marks.end()
        if at == len(reply):
            return None
    size = _phrase(reply[at:], _ANNOUNCEMENTS)
    if size is None:
        return None
    if size:
        sentence = _SENTENCE.match(reply, at + size)
        if sentence is None and len(reply) - at < LONGEST and "\n" not in reply[at:]:
            return None
        end = sentence.end() if sentence is not None else at
        if sentence is not None and (at > start or _IS_OPENER.search(reply[at:end])):
            at = end
            if at == len(reply):
                return None
    return at if at > start else 0


def _phrase(text: str, phrases: Sequence[str]) -> int | None:
    """The length of the phrase that the text begins with; 0: none; None: it may become one."""
    text = text.lower()
    sizes = [len(phrase) for phrase in phrases if text.startswith(phrase)]
    if any(phrase.startswith(text) and phrase != text for phrase in phrases):
        return None
    size = max(sizes, default=0)
    return 0 if text[size : size + 1].isalnum() else size
