"""Decide where drafts may be cut, where the answer ends, and how much of it may be shown.

:class:`Answer` finds the answer's end: a stop string, also across segments, the budget or the
constraint. All functions work on characters, and members say at which character each of their
tokens ends. The text itself is never stripped or changed.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from .referee import FREE, Referee
from .values import Draft, Finish, Segment, ToolCall

# --- where a draft may be cut ---------------------------------------------------------------------

# Scripts without spaces between words: a seam may follow every character.
_UNSPACED = re.compile(
    r"[\u2e80-\u303e\u3041-\u30ff\u31f0-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]"
)
_PICTURE = re.compile(r"[\u2190-\u2bff\U0001f000-\U0001faff]")


def kept_tokens(text: str, ends: Sequence[int], limit: int) -> int:
    """How many tokens of a draft to keep, at most ``limit``, so that it ends at the end of a word.
    0 if no word has ended yet.

    ``ends[k]`` is the number of complete characters of ``text`` after token k+1. The last word is
    not kept, because it may go on. A token that completes no character is not kept either, because
    it contains bytes of the next one.

    >>> kept_tokens("The sky is bl", [3, 7, 10, 13], limit=4)
    3
    >>> kept_tokens("天空是", [1, 2, 3], limit=3)
    3
    >>> kept_tokens("a😀", [1, 1, 1, 2], limit=3)  # tokens 2 to 4 are the bytes of one character
    1

    Paper: drafts are cut at spaces only, also those that end the answer, and white space is
    stripped.
    """
    for count in range(min(limit, len(ends)), 0, -1):
        if (count == 1 or ends[count - 1] > ends[count - 2]) and is_safe(text, ends[count - 1]):
            return count
    return 0


def is_safe(text: str, at: int) -> bool:
    """Whether every kind of tokenizer splits the text here, so that a seam does not change any
    member's tokens.

    >>> [is_safe("a bc", at) for at in range(5)]
    [False, True, False, False, False]
    """
    if not 0 < at <= len(text):
        return False
    left = text[at - 1]
    if at >= len(text):
        return bool(_UNSPACED.match(left)) and not left.isspace()
    right = text[at]
    if joined(left, right):
        return False
    if left == "\n" and not right.isspace():
        return True
    if left.isspace():
        return False
    if right in ("\r", "\n"):
        # Many tokenizers have one token for punctuation and a line break, such as ";\n".
        return left.isalnum()
    if right.isspace():
        return True
    patterns = (_UNSPACED, _PICTURE)
    return any(pattern.match(side) for pattern in patterns for side in (left, right))


def word_start(text: str, at: int) -> int:
    """The last place up to ``at`` where a word has certainly ended: there, if it is between words,
    otherwise before the word around it."""
    return next((place for place in range(at, 0, -1) if is_safe(text, place)), 0)


def joined(left: str, right: str) -> bool:
    """Whether two code points belong to one visible character, as marks, variation selectors,
    joiners, flags, skin tones and tags do."""
    return (
        unicodedata.category(right) in ("Mn", "Me", "Mc")
        or "\u200d" in (left, right)
        or "\U0001f3fb" <= right <= "\U0001f3ff"
        or ("\U0001f1e6" <= left <= "\U0001f1ff" and "\U0001f1e6" <= right <= "\U0001f1ff")
        or "\U000e0020" <= right <= "\U000e007f"
    )


# --- loops ----------------------------------------------------------------------------------------

LOOP_CHARS = 24
"""Repetitions that are shorter are allowed, such as "ha ha ha" or a short list of zeros."""
LOOP_MARKS = 96
"""The same length for repetitions without letters and digits, such as lines and empty rows of
tables, dots or indentation."""
LOOP_WINDOW = 600
"""Only this many characters at the end of the answer are searched for repetitions."""
LOOP_END = 2000
"""An answer that has only repeated itself for this many characters ends, if one member writes it:
about as many as a vote may write."""
LOOP_STEP = 64
"""How often, in tokens, an answer is searched for such a repetition."""


def continues_loop(answer: str, draft: str) -> bool:
    """Whether the draft only continues a repetition at the end of the answer.

    It does if, for some period p, the draft and some text before it copy the text p characters
    earlier, over at least one full period.

    >>> loop = "it is natural because it is natural because"
    >>> continues_loop(loop, " it is natural because it"), continues_loop(loop, " of the air")
    (True, False)
    >>> continues_loop("Paris is big. ", "Paris is big. ")  # twice is not a loop yet
    False
    """
    if not draft.strip():
        return False
    whole = answer[-max(LOOP_WINDOW, len(draft)) :] + draft
    probe = whole[-LOOP_CHARS:]
    at = whole.rfind(probe, 0, len(whole) - 1)
    while at >= 0:
        period = len(whole) - len(probe) - at
        if _repeats(whole, period, len(draft)):
            return True
        at = whole.rfind(probe, 0, at + len(probe) - 1)
    return False


def only_repeats(text: str) -> bool:
    """Whether the end of the text has been a repetition for so long that nothing else will follow.

    >>> only_repeats("The sky is blue. " * 200), only_repeats("The sky is blue. " * 100)
    (True, False)
    """
    end = text[-LOOP_END:]
    return len(text) > LOOP_END and (not end.strip() or continues_loop(text[:-LOOP_END], end))


def _repeats(whole: str, period: int, draft: int) -> bool:
    """Whether the end of the text copies the text ``period`` characters earlier, and is long enough
    to be a loop."""
    least = LOOP_CHARS if any(map(str.isalnum, whole[-period:])) else LOOP_MARKS
    run = max(period, least, draft + min(period, LOOP_CHARS) // 2)
    return run + period <= len(whole) and whole[-run:] == whole[-run - period : -period]


# --- the answer -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer so far. :meth:`plus` returns the answer with one more segment."""

    stop: tuple[str, ...]
    budget: int
    referee: Referee = FREE
    """Judges the text of the member that writes."""
    hold: Literal["", "calls", "all"] = ""
    """Which text is not shown before the answer ends; see :class:`.Query`."""
    segments: tuple[Segment, ...] = ()
    text: str = ""
    """The answer's text, without a stop string and anything after it."""
    shown: int = 0
    """How many characters of the text have been released."""
    verified: int | None = None
    """How many characters have passed the user's checks; None if there are no checks."""
    released: str = ""
    """The text that the last ``plus`` released. It may begin with text that was held back
    before."""
    forced: str = ""
    """The text that the last ``plus`` added because the constraint allows nothing else."""
    tokens_left: int = 0
    ends_loops: bool = False
    """Whether it ends when it only repeats itself."""
    finish: Finish | None = None
    stalled: bool = False
    """Whether the answer is incomplete because no member could continue it, or because it only
    repeated itself."""
    calls: tuple[ToolCall, ...] = ()
    """The tool calls that a provider returned beside the text."""

    def __post_init__(self) -> None:
        if not self.segments:
            object.__setattr__(self, "tokens_left", self.budget)

    def started(self) -> Answer:
        """The answer with the text that the constraint forces at its beginning."""
        forced = self.referee.forced("")
        if not forced:
            return self
        return replace(self, segments=(Segment(forced),), text=forced, forced=forced)

    def plus(self, segment: Segment) -> Answer:
        """The answer with one more segment."""
        text = self.text + segment.text
        tokens = next(iter(segment.tokens.values()), None)  # those of its writer
        # of a token that was counted before
        is_rest = tokens == () and (segment.text or segment.is_silent)
        size = len(tokens or ()) or segment.written or 1
        left = self.tokens_left - (0 if is_rest else size)
        forced = ""
        finish: Finish | None = None
        stalled = False
        stop_at = self._stop_in(text, self.referee.prose)
        if stop_at is not None:
            text = text[:stop_at]
            finish = "stop_string"
        elif segment.ended:
            finish = "length" if segment.is_cut else "stop"
        else:
            forced = self.referee.forced(text)
            text += forced
            is_empty = not (segment.text or tokens or segment.is_silent)
            finish, stalled = self._finish_at(text, is_empty, left)
        if finish:
            text, finish = self._without_stop(text, finish)
        shown = len(text) if finish else len(text) - self._held_back(text)
        is_first = self.tokens_left == self.budget
        return Answer(
            self.stop,
            self.budget,
            self.referee,
            self.hold,
            self.segments + ((segment, Segment(forced)) if forced else (segment,)),
            text,
            shown,
            self.verified,
            released=text[self.shown : shown],
            # The text forced before the first segment belongs to the first round.
            forced=self.forced + forced if is_first else forced,
            tokens_left=left,
            ends_loops=self.ends_loops,
            finish=finish,
            stalled=stalled and finish == "length",
            calls=self.calls + segment.calls,
        )

    def written_by(self, *, native: bool, referee: Referee) -> Answer | None:
        """The answer as another member goes on with it. ``referee`` judges the texts of members
        that are not ``native``. Text that was not shown, and that this member cannot continue, is
        dropped. None if it was shown.

        A provider returns calls beside the text, and writes objects in its own way. So it begins a
        call or an object anew, and another member does so after it.
        """
        wanted = FREE if native else referee
        if self.referee is wanted and (self.segments or wanted is FREE):
            return self
        text = self.text[: self.shown] if native else self.text
        if not self.shown and (native or referee.legal("", text) < len(text)):
            text = ""
        if not native and referee.legal("", text) < len(text):
            return None
        segments = self.segments
        if text != self.text:
            segments = (Segment(text),) if text else ()
        answer = replace(self, referee=wanted, segments=segments, text=text, released="", forced="")
        return answer if segments else answer.started()

    def limited_to(self, budget: int, *, ends_loops: bool) -> Answer:
        """The answer with another budget. What was written counts towards it, but at least one more
        token may follow."""
        if (budget, ends_loops) == (self.budget, self.ends_loops):
            return self
        left = max(budget - (self.budget - self.tokens_left), 1)
        return replace(self, budget=budget, tokens_left=left, ends_loops=ends_loops)

    @property
    def is_loop(self) -> bool:
        """Whether it has ended because it only repeated itself."""
        return self.stalled and self.ends_loops and only_repeats(self.text)

    def refused(self, *, shows_rest: bool) -> Answer:
        """The answer that ends in a refusal here. ``shows_rest``: text that was held back is shown
        before it."""
        released = self.text[self.shown :] if shows_rest else ""
        text = self.text[: self.shown] + released
        return replace(self, text=text, released=released, finish="refusal")

    def _finish_at(self, text: str, is_empty: bool, left: int) -> tuple[Finish | None, bool]:
        """Why an answer with this text ends although no member has ended it, and whether it has
        stalled. ``is_empty`` says that the last segment added nothing."""
        if self.referee.must_end(text):
            return "stop", False
        if is_empty:
            # No member adds anything now, so none would in another round.
            return ("stop", False) if self._is_complete(text) else ("length", True)
        if left <= 0:
            return "length", False
        is_due = self.ends_loops and left // LOOP_STEP < self.tokens_left // LOOP_STEP
        return ("length", True) if is_due and only_repeats(text) else (None, False)

    def _is_complete(self, text: str) -> bool:
        """Whether the constraint says that the answer is complete. Prose never is."""
        return self.referee.possible_prose(text) < len(text) and self.referee.may_end(text)

    def _without_stop(self, text: str, finish: Finish) -> tuple[str, Finish]:
        """The whole text without a stop string in the part that might have begun a call.

        If the answer ends in that part, it is prose, unless the budget ended the answer: then it
        may be a call that is cut off.
        """
        stop_at = self._stop_in(text, self.referee.possible_prose)
        if stop_at is None:
            return text, finish
        kept = text[:stop_at]
        cut_off = finish == "length" and self.referee.prose(kept) < len(kept)
        return kept, "length" if cut_off else "stop_string"

    def _stop_in(self, text: str, prose: Callable[[str], int]) -> int | None:
        """Where the first stop string begins that is not in the released text; None if there is
        none. ``prose`` says how much of the text is searched."""
        return first_stop(text[: prose(text)], self.stop, self.shown) if self.stop else None

    def _held_back(self, text: str) -> int:
        """How many characters at the end are not shown yet: those that may still belong to a stop
        string, and those that ``hold`` names.

        Stop strings only count in prose, so nothing is held back inside a call. Text that may begin
        a call may also be prose, so it can contain a stop string, or a part of one.
        """
        if self.hold == "all":
            return len(text) - self.shown
        if self.hold == "calls" and (in_calls := len(text) - self.referee.prose(text)):
            return min(in_calls, len(text) - self.shown)
        if not self.stop or self.referee.possible_prose(text) < len(text):
            return 0
        stop_at = first_stop(text, self.stop, self.shown)
        if stop_at is not None:
            return len(text) - stop_at
        return held_back(text[self.shown :], self.stop)


def legal_part(draft: Draft, answer: Answer) -> Draft:
    """The draft, cut at the last legal character and ended where the answer must end."""
    referee, text = answer.referee, draft.text
    legal = referee.legal(answer.text, text)
    if legal < len(text):
        # The tokens of the shorter text are unknown, and so are their log-probabilities.
        draft = replace(draft, text=text[:legal], ended=False, tokens=(), logprobs=None, ends=None)
    whole = answer.text + draft.text
    if draft.ended and not referee.may_end(whole):
        logprobs = draft.logprobs and draft.logprobs[: len(draft.tokens)]
        return replace(draft, ended=False, logprobs=logprobs)
    if draft.text and not draft.ended and referee.must_end(whole):
        logprobs = draft.logprobs and (*draft.logprobs, 0.0)
        return replace(draft, ended=True, logprobs=logprobs)
    return draft


def first_stop(text: str, stop: Sequence[str], start: int = 0) -> int | None:
    """Where the stop string begins that is complete first, searched from ``start`` on.

    Later text cannot change the result, so it does not depend on the pieces in which the text
    arrives.

    >>> first_stop("one END two", ["END", "ND"])
    4
    >>> first_stop("a b c", ["a b c", "b"])
    2
    """
    places = []
    for word in stop:
        at = text.find(word, start) if word else -1
        if at >= 0:
            places.append((at + len(word), at))
    return min(places)[1] if places else None


def held_back(text: str, stop: Sequence[str]) -> int:
    """How many of the last characters may begin a stop string and must not be shown yet.

    >>> held_back("one E", ["END"]), held_back("one", ["END"])
    (1, 0)
    """
    longest = 0
    for word in stop:
        for size in range(1, min(len(word) - 1, len(text)) + 1):
            if text.endswith(word[:size]):
                longest = max(longest, size)
    return longest
