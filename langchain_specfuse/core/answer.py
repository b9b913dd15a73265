"""The agreed text: where a draft may be cut, stop strings across seams, the budget, and loops.

Knows characters, not tokens: a member passes in where its tokens end. Nothing is ever stripped or replaced.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace

from .referee import FREE, Referee
from .values import Draft, Finish, Segment

# --- where a draft may be cut -----------------------------------------------------------------------------------

# Scripts written without spaces between words: every character may be followed by a seam.
_UNSPACED = re.compile(
    r"[\u2e80-\u303e\u3041-\u30ff\u31f0-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]"
)
_PICTURE = re.compile(r"[\u2190-\u2bff\U0001f000-\U0001faff]")


def kept_tokens(text: str, ends: Sequence[int], limit: int) -> int:
    """How many tokens of a draft to keep, so that it ends where a word does; 0 if no such place is known yet.

    ``ends[k]`` is the number of characters of ``text`` that are complete after token k+1, ``limit`` the number of
    tokens wanted. A word at the very end is not kept, for nobody knows yet whether it goes on; nor is a token that
    completes no character, for it holds bytes of the next one (``ends`` may say 0 where a token does both).

    >>> kept_tokens("The sky is bl", [3, 7, 10, 13], limit=4)
    3
    >>> kept_tokens("天空是", [1, 2, 3], limit=3)
    3
    >>> kept_tokens("a😀", [1, 1, 1, 2], limit=3)  # tokens 2 to 4 are the bytes of one character
    1

    Paper: it knows only the space as a boundary, strips white space and cuts drafts that end the answer as well.
    """
    for count in range(min(limit, len(ends)), 0, -1):
        if (count == 1 or ends[count - 1] > ends[count - 2]) and is_safe(text, ends[count - 1]):
            return count
    return 0


def is_safe(text: str, at: int) -> bool:
    """Whether tokenizers of all kinds split at this place, so that a seam here costs nobody anything.

    >>> [is_safe("a bc", at) for at in range(5)]
    [False, True, False, False, False]
    """
    if not 0 < at <= len(text):
        return False
    left = text[at - 1]
    if at >= len(text):
        return bool(_UNSPACED.match(left)) and not left.isspace()
    right = text[at]
    if _joined(left, right):
        return False
    if right.isspace():
        # Not inside a run of white space, nor between punctuation and a line break (";\n" is one token for many).
        return not left.isspace() and (right not in ("\r", "\n") or left.isalnum())
    if left == "\n":
        return True
    return any(kind.match(side) for kind in (_UNSPACED, _PICTURE) for side in (left, right)) and not left.isspace()


def _joined(left: str, right: str) -> bool:
    """Two code points of one visible character: marks, variation selectors, joiners, flags, skin tones, tags."""
    return (
        unicodedata.category(right) in ("Mn", "Me", "Mc")
        or "\u200d" in (left, right)
        or "\U0001f3fb" <= right <= "\U0001f3ff"
        or ("\U0001f1e6" <= left <= "\U0001f1ff" and "\U0001f1e6" <= right <= "\U0001f1ff")
        or "\U000e0020" <= right <= "\U000e007f"
    )


# --- loops ------------------------------------------------------------------------------------------------------

LOOP_CHARS = 24
"""Shorter repetitions are left alone: "ha ha ha", a short list of zeros."""
LOOP_MARKS = 96
"""The same for repetitions without a letter or digit: rules and empty rows of a table, dots, indentation."""
LOOP_WINDOW = 600
"""Characters of the answer's tail in which a repetition is looked for."""


def continues_loop(answer: str, draft: str) -> bool:
    """Whether the draft only continues a repetition of the answer's tail.

    True if, for some period p, the draft and some text before it copy what stands p characters earlier, over at least
    one full period: the answer had begun to repeat itself, and the draft goes on with it.

    >>> loop = "it is natural because it is natural because"
    >>> continues_loop(loop, " it is natural because it"), continues_loop(loop, " of the air")
    (True, False)
    >>> continues_loop("Paris is big. ", "Paris is big. ")  # said twice, not yet a loop
    False
    """
    if not draft.strip():
        return False
    whole = answer[-LOOP_WINDOW:] + draft
    probe = whole[-LOOP_CHARS:]
    at = whole.rfind(probe, 0, len(whole) - 1)
    while at >= 0:
        period = len(whole) - len(probe) - at
        if _repeats(whole, period, len(draft)):
            return True
        at = whole.rfind(probe, 0, at + len(probe) - 1)
    return False


def _repeats(whole: str, period: int, draft: int) -> bool:
    """Whether the end of the text copies what stands ``period`` characters earlier, for long enough."""
    least = LOOP_CHARS if any(map(str.isalnum, whole[-period:])) else LOOP_MARKS
    run = max(period, least, draft + min(period, LOOP_CHARS) // 2)
    return run + period <= len(whole) and whole[-run:] == whole[-run - period : -period]


# --- the answer -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Answer:
    """What has been agreed so far. ``plus`` gives the next one."""

    stop: tuple[str, ...]
    budget: int
    referee: Referee = FREE
    segments: tuple[Segment, ...] = ()
    text: str = ""
    """All that is part of the answer (a stop string and what follows it never are)."""
    shown: int = 0
    """How many characters of it have been released."""
    released: str = ""
    """What the last segment released: it may begin with text held back before."""
    forced: str = ""
    """What the last ``plus`` added that nobody had a choice about."""
    closed: str = ""
    """What it added to make an answer whole that ends too soon."""
    tokens_left: int = 0
    finish: Finish | None = None

    def __post_init__(self) -> None:
        if not self.segments:
            object.__setattr__(self, "tokens_left", self.budget)

    def started(self) -> Answer:
        """With what every answer to this query begins with."""
        forced = self.referee.forced("")
        return replace(self, segments=(Segment(forced),), text=forced, forced=forced) if forced else self

    def plus(self, segment: Segment, last: bool = False) -> Answer:
        """The answer with one more segment. ``last``: no further round is allowed."""
        text = self.text + segment.text
        writer_tokens = next(iter(segment.tokens.values()), ())
        left = self.tokens_left - (len(writer_tokens) or 1)
        finish: Finish | None = None
        segments, forced = (*self.segments, segment), ""
        stop_at = first_stop(text[: self.referee.prose(text)], self.stop, self.shown)
        if stop_at is not None:
            text, finish = text[:stop_at], "stop_string"
        elif segment.ended:
            finish = "stop"
        else:
            forced = self.referee.forced(text)
            text, segments = text + forced, (*segments, Segment(forced)) if forced else segments
            if self.referee.must_end(text):
                finish = "stop"
            elif not (segment.text or writer_tokens):  # who adds nothing will not do so next time
                finish = "stop" if self._is_whole(text) else "length"
            elif left <= 0 or last:
                finish = "length"
        closed = self.referee.closing(text) if finish in ("length", "stop_string") else ""
        text += closed
        shown = len(text) if finish else len(text) - self._held_back(text)
        return replace(
            self,
            segments=segments,
            text=text,
            shown=shown,
            released=text[self.shown : shown],
            forced=(self.forced if self.tokens_left == self.budget else "") + forced,
            closed=closed,
            tokens_left=left,
            finish=finish,
        )

    def _is_whole(self, text: str) -> bool:
        """Whether nothing is missing; of prose nobody knows."""
        return self.referee.prose(text) < len(text) and self.referee.may_end(text)

    def _held_back(self, text: str) -> int:
        """Stop strings are looked for in prose alone: inside a call nothing needs to wait for one."""
        return held_back(text[self.shown :], self.stop) if self.referee.prose(text) == len(text) else 0


def lawful(draft: Draft, answer: Answer) -> Draft:
    """The draft as the referee lets it stand: cut at the last legal character, ended where the answer must end."""
    referee, text = answer.referee, draft.text
    legal = referee.legal(answer.text, text)
    if legal < len(text):
        # Whose tokens end elsewhere: they are known no more, nor is what the writer thought of them.
        draft = replace(draft, text=text[:legal], ended=False, tokens=(), logprobs=None, ends=None)
    whole = answer.text + draft.text
    if draft.ended and not referee.may_end(whole):
        return replace(draft, ended=False, logprobs=draft.logprobs and draft.logprobs[: len(draft.tokens)])
    if draft.text and not draft.ended and referee.must_end(whole):
        return replace(draft, ended=True, logprobs=draft.logprobs and (*draft.logprobs, 0.0))
    return draft


def first_stop(text: str, stop: Sequence[str], start: int = 0) -> int | None:
    """Where the earliest stop string begins, from ``start`` on.

    >>> first_stop("one END two", ["END", "ND"])
    4
    """
    found = [at for word in stop if word and (at := text.find(word, start)) >= 0]
    return min(found, default=None)


def held_back(text: str, stop: Sequence[str]) -> int:
    """How many of the last characters may be the beginning of a stop string, and must not be shown yet.

    >>> held_back("one E", ["END"]), held_back("one", ["END"])
    (1, 0)
    """
    return max(
        (size for word in stop for size in range(1, min(len(word) - 1, len(text)) + 1) if text.endswith(word[:size])),
        default=0,
    )
