"""Turns a chat model's reply to "continue this text" into an exact continuation of the text.

Some models first repeat the text or its end, and some providers remove white space. A trial shows
whether a model repeats (:func:`repeated_words`), because a text may legitimately repeat itself, for
example in equal rows of a table.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...core.answer import is_safe

TAIL = 12
"""Fewer repeated characters than this do not count as a repetition."""
QUOTED = 80
"""How many of the text's last characters the request to continue it quotes."""
RESTART = 200
"""If a reply begins with a whole text of at least this length, the model has started over, whatever
the trial showed."""
OPENING, CLOSING = "([{", ".,;:!?)]}"
"""No space follows the former, or precedes the latter."""
_QUOTE = re.compile(r'(?<!\\)"')
_SIGN = 40
"""If the first characters of a text (this many) occur in it again, the text may legitimately be
repeated whole."""


def repeated_words(text: str, reply: str) -> int:
    """How many of the text's last words the reply begins with; 0 if they have fewer than ``TAIL``
    characters.

    >>> begun = "ten, nine, eight, seven,"
    >>> [repeated_words(begun, reply) for reply in ("six", "eight, seven, six", begun + " six")]
    [0, 2, 4]
    """
    for tail in _tails(text):
        if reply.lstrip().startswith(tail):
            return len(tail.split())
    return 0


def repeatable(text: str, words: int | None) -> list[str]:
    """The parts of a text that the reply may repeat, the most likely first.

    ``words``: how many words the model repeated in its trial, or None if it repeated all of them. A
    model that repeated nothing in the trial is expected to repeat nothing, unless it starts over.

    >>> repeatable("| a |\\n| a |", 0), repeatable("It is so very blue", 2)[0]
    ([], 'very blue')
    """
    text = text.rstrip()
    if words == 0:
        restarts = len(text) >= RESTART and text.find(text[:_SIGN], 1) < 0
        return [text] if restarts else []
    tails = _tails(text)
    if words is None:
        return [text, text[-QUOTED:], text.rpartition("\n")[2].lstrip(), *tails]
    return [text[at:] for at in _starts(text)[-words:][:1]] + tails


def is_undecided(reply: str, repeats: Sequence[str]) -> bool:
    """Whether more of the reply is needed to see which of these texts it repeats, if any, and how
    much white space follows."""
    reply = reply.lstrip()
    for text in repeats:
        if reply.startswith(text):  # the more likely ones are ruled out
            return not reply[len(text) :].strip()
        if text.startswith(reply):
            return True
    return not reply


def joined(text: str, reply: str, repeats: Sequence[str] = ()) -> str:
    """The continuation of a text in a reply: without the repeated text, and with a space where two
    words would run together.

    >>> joined("The sky is", "blue."), joined("The sky is", " blue.")
    (' blue.', ' blue.')
    >>> joined("The sky is", "The sky is blue.", ["The sky is"]), joined("天空是", "蓝色")
    (' blue.', '蓝色')
    >>> joined("def f():\\n", "    return 1"), joined("def f():\\n", "\\n    return 1")
    ('    return 1', '    return 1')
    """
    stripped, kept = reply.lstrip(), text.rstrip()
    for repeat in repeats:
        if repeat and stripped.startswith(repeat):
            return _after_white(text[len(kept) :], stripped[len(repeat) :])
    if len(kept) < len(text):
        return _after_white(text[len(kept) :], reply)
    return f" {reply}" if _runs_together(text, reply) else reply


def _runs_together(text: str, reply: str) -> bool:
    """Whether a space is missing between these two.

    >>> [_runs_together('["Ann"', reply) for reply in ("]", ",", "and")]
    [False, False, True]
    >>> _runs_together('["', 'Ann"]'), _runs_together('["Ann', '"]'), _runs_together('"Ann"', "is")
    (False, False, True)
    """
    if not text or not reply or is_safe(text + reply, len(text)):
        return False
    if text[-1] in OPENING or reply[0] in CLOSING:
        return False
    is_quoting = len(_QUOTE.findall(text.rpartition("\n")[2])) % 2 == 1
    touches_quote = '"' in (text[-1], reply[0])
    return not (is_quoting and touches_quote)


def _after_white(white: str, reply: str) -> str:
    """The reply without white space that the text already ends with. Models do not see that white
    space, because some providers refuse a message that ends with it."""
    lead = reply[: len(reply) - len(reply.lstrip())]
    if lead.startswith(white):
        return reply[len(white) :]
    is_indent = "\n" in white and "\n" not in lead and len(lead) > 1
    return reply if is_indent else reply[len(lead) :]


def _starts(text: str) -> list[int]:
    return [match.start() for match in re.finditer(r"\S+", text)]


def _tails(text: str) -> list[str]:
    """The ends of the text that a model may repeat, the longest first; each begins at a word."""
    starts = _starts(text)
    return [text[at:] for at in starts if len(text) - at >= TAIL][-40:]
