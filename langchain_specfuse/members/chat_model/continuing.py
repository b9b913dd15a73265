"""Decides what the first words of a reply to "continue this text" are, and what of them goes out.

A reply is a continuation, or it starts over: models that were not made for it often write the whole
answer again, exactly or in other words. Nothing that the reader has seen is shown again, so the
first words are held until this is decided. :class:`Opening` has the rule.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import cached_property
from itertools import takewhile, zip_longest
from operator import eq

from ...core.answer import is_safe
from ...core.sentences import MARKS, STARTS, TRAILER, units
from .openers import is_of_rest, opener, opener_is_said
from .ways import QUOTED
from .words import words_of

TAIL = 12
"""Fewer repeated characters than this do not count as a repetition of the text's end."""
SAME_WORDS = 3
"""A reply that begins with this many of the text's first words has started over."""
SEEN, SHARED = 6, 4
"""How many of a reply's first long words are compared with those of the text's beginning, and how
many of them must be the same, in the same order, if the reply has started over in other words."""
BEGINNING = 40
"""How many words the beginning of a text has."""
OPENING, CLOSING = "([{", ".,;:!?)]}"
"""No space follows the former, or precedes the latter."""
_DOUBLED = """
    that had her do so no very really much far never ha bye hear nous vous
"""
DOUBLED = frozenset(_DOUBLED.split())
"""Words that good text has twice in a row: "He said that that was so", "She had had enough"."""
_WORD = re.compile(r"[^\W\d_\u2e80-\U0010ffff]+(?:['’-][^\W\d_]+)*")
"""A word of letters, in a script with spaces."""
_QUOTE = re.compile(r'(?<!\\)"')
_SENTENCE_END = re.compile(rf"[{''.join(sorted(MARKS))}:;：|]{TRAILER}$")
_ITEM = re.compile(r"\s*([#>|]|[-*+•]\s|\d+[.)]\s|```)")
"""The beginning of a line that need not be, or follow, a sentence: a heading, an item, a row."""
_LINE = re.compile(r"[-*+•]\s|\d+[.)]\s|#{1,6}\s")
"""The beginning of a line that may follow a line of that kind. Models leave out the line break
before it."""
_OBJECT = re.compile(r'\s*(\{|\[\s*[{"])')
_SHORT_WORDS = """
    the and are was were for its has had have but not you can all one our his her she with that this
    from they them their there into more most than which will would been being when what who how why
    because also such other some any each only over very just about after before
    der die das den dem des und ist ein eine von mit auf für sich nicht
    les des une est que qui los las del por con para
"""
_COMMON = frozenset(_SHORT_WORDS.split())
"""Words that say little about what a text is about."""


class Restarted(Exception):
    """The reply is no continuation of the text, but an answer from its beginning."""


class Opening:
    """The first words of a reply that should continue a text. :meth:`add` holds them until it is
    decided what the reply is.

    **The rule.** The first of these that fits decides:

    1. The reply begins with exactly the whole text, white space aside: it has started over, and
       what follows the text goes out. The length of the text does not matter. But if the text only
       repeats itself, as "ha ha ha" or equal rows do, the reply continues the repetition.
    2. Where a message has asked for the rest, the reply begins with the end of the text, at least
       12 characters of it: that end is dropped, unless the text contains it twice. Shorter ends
       are dropped, too, capitals aside: all that is there of the last sentence, two words or more,
       and one word in the middle of a sentence unless it is one of :data:`DOUBLED`. Numbers, marks,
       code and scripts without spaces are excepted, and so is a capital that may begin the whole
       answer again: words that the text begins with, or words that are small in the text and
       follow no mark there. A reply that repeats the text or its end, adds nothing, and stops in
       the middle of a sentence, has started over.
    3. The text stops in the middle of a sentence, and the reply goes on with a small letter, a
       digit or a punctuation mark: a continuation.
    4. The text stops in the middle of a sentence, and the reply begins with a capital of a new
       sentence: with the text's own first word, if it is in the text only once; with a word such as
       "The", "It" or "Because"; with a heading; or, after an opener such as "Of course!" that does
       not speak of the rest, with any capital. It has started over.
    5. The reply begins with the first three words of the text, which has them only once. Or the
       text is an object, and the reply begins with its first key or with a code fence. It has
       started over, in other words from there on.
    6. Of the first six long words of the reply, four are among the first long words of the text, in
       the same order, but its first three words are not in the text: it has started over in other
       words. List items and rows are excepted: they may be like the first one.
    7. Everything else is a continuation. It goes out with the white space that belongs there.

    Openers ("Sure, ...", "Of course! Here is the continuation:") are set aside before anything is
    compared, and are left out where a message has asked for the rest; but "Of course, ..." after a
    complete sentence stays if the reply is a continuation.

    The rule overlooks a reply in other words that shares neither its first word nor its long words
    with the text. Such a reply goes out as a continuation.

    >>> def read(text, reply, **options):
    ...     try:
    ...         return Opening([text], text, **options).add(reply, is_over=True)
    ...     except Restarted:
    ...         return "started over"
    >>> read("The sky is", "blue."), read("The sky is", "The sky is blue.")
    (' blue.', ' blue.')
    >>> read("The sky is", "Of course! The sky is blue.")
    ' blue.'
    >>> read("The sky is", "It looks blue."), read("The sky is so", "The sky looks blue.")
    ('started over', 'started over')
    >>> read("ha ha", "ha ha ha!"), read("In Rome, ha ha", "ha!")
    (' ha ha ha!', ' ha!')
    >>> read("The sky is blue because", "is blue because air", is_instructed=True)
    ' air'
    >>> read("So far, so good, we", "We are sure.", is_instructed=True)
    ' are sure.'
    """

    def __init__(
        self,
        wholes: Sequence[str],
        answer: str,
        *,
        is_instructed: bool = False,
        is_exact: bool = False,
    ) -> None:
        """``wholes``: the text that the model was given, and a part of it that an answer may begin
        with. Both end with ``answer``. ``is_instructed``: a message asks for the rest.
        ``is_exact``: only a reply that begins with a whole text is of use."""
        self._answer = answer
        self._white = answer[len(answer.rstrip()) :]
        self._text = wholes[0].rstrip()
        self._texts = [
            text for text in wholes if text.strip() and (is_exact or not _is_repetitive(text))
        ]
        self._wholes = [_Whole(text, 0) for text in self._texts]
        self._tails = _tails(self._text) if is_instructed else []
        self._is_instructed = is_instructed
        self._is_exact = is_exact
        self._reply = ""
        self._opener: int | None = None

    def add(self, text: str, *, is_over: bool = False) -> str | None:
        """What goes out of the reply, now that this text is added to it; None if that is not
        decided yet. Raises :class:`Restarted`. ``is_over``: the reply has ended."""
        self._reply += text
        reply = self._reply
        if not reply.strip():
            if is_over and self._is_exact:
                raise Restarted
            return "" if is_over else None  # at the end: nothing is left to write
        if self._opener is None:
            self._opener = opener(reply)
            if self._opener:
                self._wholes += [_Whole(text, self._opener) for text in self._texts]
        ends = [whole.end_in(reply, is_over) for whole in self._wholes]
        if any(ends):
            return self._after(reply[max(filter(None, ends)) :])
        if not is_over and (None in ends or self._opener is None):
            return None
        if None in ends or self._is_exact:
            raise Restarted
        return self._continued(reply, self._opener or 0, is_over)

    def _continued(self, reply: str, size: int, is_over: bool) -> str | None:
        """What goes out of a reply that does not begin with a whole text, and has an opener of this
        size."""
        body = reply[size:].lstrip()
        for tail in self._tails:
            if body.startswith(tail) and (is_over or body[len(tail) :].strip()):
                return self._after(body[len(tail) :])
            if not is_over and (tail.startswith(body) or body.strip() == tail):
                return None
        repeated = self._repeated_in(reply[size:], is_over) if self._is_instructed else 0
        if repeated is None:
            return None
        if repeated:
            return self._after(body[repeated:])
        answers = size > 0 and not is_of_rest(reply[:size])
        has_restarted = self._has_restarted(reply[size:], is_over, answers=answers)
        if has_restarted is None:
            return None
        if has_restarted:
            raise Restarted
        if size and self._drops(reply[:size]):
            reply = reply[size:]
        if _is_marker(self._line) and (marker := _LINE.match(reply.lstrip())):
            reply = reply.lstrip()[marker.end() :]
        return joined(self._answer, reply)

    def _after(self, rest: str) -> str:
        """What goes out of a reply that repeats the text, or its end, before this rest."""
        is_asked = self._is_instructed or self._is_exact
        if is_asked and not rest.strip() and (self._is_in_sentence or _is_marker(self._line)):
            raise Restarted
        return _after_white(self._white, rest)

    def _repeated_in(self, reply: str, is_over: bool) -> int | None:
        """How much of this reply, after its white space, repeats the last words of the text; None:
        undecided."""
        body = reply.lstrip()
        white = reply[: len(reply) - len(body)]
        is_code = self._text.count("```") % 2 == 1 or len(white) > 1 or "\n" in white + self._white
        if is_code or not body or self._line.lstrip().startswith(("#", "|", ">")):
            return 0
        for words in self._ends:
            end = _end_of(words, body, is_over)
            if end is None:
                return None
            if end and not (body[0].isupper() and self._may_be_anew(words)):
                return end
        return 0

    @cached_property
    def _ends(self) -> list[list[str]]:
        """The last words of the text that count as repeated, the most words first."""
        words = self._text.split()[-BEGINNING:]
        folded = [word.casefold() for word in words]
        found: list[list[str]] = []
        ends = units(self._text)
        sentence = self._text[ends[-1] if ends else 0 :].split()
        if self._is_in_sentence and 1 < len(sentence) <= len(words):
            found.append(sentence)
        for size in range(1, len(words) + 1):
            word = words[-size]
            if not _WORD.fullmatch(word if size == 1 else word.rstrip(",;")):
                break
            end = folded[-size:]
            if size == 1 and (end[0] in DOUBLED or not self._is_in_sentence):
                continue
            is_once = folded[-2 * size : -size] != end
            if is_once and (size == 1 or len(set(end)) > 1):
                found.append(words[-size:])
        return sorted(found, key=len, reverse=True)

    def _may_be_anew(self, words: Sequence[str]) -> bool:
        """Whether a reply that begins with these last words of the text, and with a capital, may
        be a whole answer: the text begins with them, or the first one is small and begins no
        clause."""
        own = self._text.split()
        if [word.casefold() for word in own[: len(words)]] == [word.casefold() for word in words]:
            return True
        before = own[: -len(words)]
        return words[0][0].islower() and bool(before) and before[-1][-1].isalnum()

    def _drops(self, begun: str) -> bool:
        """Whether this opener is no part of the continuation after it."""
        if not self._is_instructed or _is_quoting(self._text):
            return False
        return self._is_in_sentence or opener_is_said(begun)

    @cached_property
    def _words(self) -> list[str]:
        return _stripped(self._text)

    @cached_property
    def _plain_words(self) -> list[str]:
        return _plain_of(self._words)

    @property
    def _line(self) -> str:
        """The last line of the text."""
        return self._text.rpartition("\n")[2]

    @cached_property
    def _first_key(self) -> str:
        """What an object has before its first value, without white space; empty for other texts."""
        return "".join(self._text.partition(":")[0].split()) if _OBJECT.match(self._text) else ""

    @cached_property
    def _is_in_sentence(self) -> bool:
        """Whether the text stops in the middle of a sentence."""
        line = self._line
        if "\n" in self._white or _ITEM.match(line) or _SENTENCE_END.search(line):
            return False
        if _is_marker(line) or _is_emoji(line[-1:]):
            return False
        opens_quote = line.endswith('"') and _is_quoting(line)
        return not opens_quote and not line.endswith(("“", "„", "«", "‘", *OPENING))

    def _has_restarted(self, body: str, is_over: bool, *, answers: bool) -> bool | None:
        """Rules 3 to 6; None: undecided. ``answers``: its opener announces an answer, not the
        rest."""
        words = _stripped(body)
        if not words:
            return True if is_over else None
        if self._first_key:
            begun = "".join(body.split())
            if begun.startswith(("```", self._first_key)):
                return True
            if not is_over and ("```".startswith(begun) or self._first_key.startswith(begun)):
                return None
        white = body[: len(body) - len(body.lstrip())]
        first = words[0].lstrip("*_\"'“‘(")
        is_heading = body.startswith("#")
        if self._is_in_sentence and not is_heading and not _may_begin_sentence(first):
            return False
        complete = words if is_over else words[:-1]
        if not complete:
            return None
        own = self._words
        is_new = is_heading or self._begins_sentence(first, own, answers=answers)
        if self._is_in_sentence and "\n" not in white and is_new:
            return True
        plain, own_plain = _plain_of(complete), self._plain_words
        common = sum(1 for _ in takewhile(bool, map(eq, plain, own_plain)))
        if common >= SAME_WORDS:
            return not _occurs(own_plain[:common], own_plain, 1)
        if common == len(plain) < len(own_plain) and not is_over:
            return None
        is_row = self._line.lstrip().startswith("|")
        if is_row or (_ITEM.match(body) and _ITEM.match(self._line)):
            return False
        if len(plain) < SAME_WORDS and not is_over:
            return None
        if not plain or _occurs(plain[:SAME_WORDS], own_plain):  # the text repeats itself
            return False
        return _is_similar(plain, own_plain, is_over)

    def _begins_sentence(self, first: str, own: Sequence[str], *, answers: bool) -> bool:
        """Whether a reply that begins with this word, in the middle of a sentence, has started
        over."""
        plain = re.sub(r"\W+$", "", first)
        if plain in STARTS:
            return True
        if not first[:1].isupper():
            return False
        if answers and self._is_instructed:
            return True
        return (
            plain not in ("I", "I'm", "I’m")
            and plain == re.sub(r"\W+$", "", own[0])
            and own.count(own[0]) == 1
        )


def _may_begin_sentence(word: str) -> bool:
    """Whether a sentence may begin with this word. Scripts without capitals do not show it."""
    return word[:1].isalpha() and not word[:1].islower()


def _is_marker(line: str) -> bool:
    """Whether the line has only the mark of an item."""
    return re.fullmatch(r"\s*([#>|*+•-]+|\d+[.)])\s*", line) is not None


def _is_repetitive(text: str) -> bool:
    """Whether the text is one part again and again."""
    words = _stripped(text)
    sizes = [at for at in range(1, len(words) // 2 + 1) if words[at] == words[0]]
    return any(words[size:] == words[:-size] for size in sizes)


class _Whole:
    """A whole text that a reply may begin with at this place."""

    def __init__(self, text: str, start: int) -> None:
        self._text = "".join(text.split())
        self._known, self._agreed = start, 0
        """How much of the reply, and of this text, is known to agree."""

    def end_in(self, reply: str, is_over: bool) -> int | None:
        """Where the text ends in this reply, white space aside; 0 if the reply does not begin with
        it, None if that is not decided yet. Replies grow, and only what is new is read."""
        for at in range(self._known, len(reply)):
            if reply[at].isspace():
                continue
            if self._agreed == len(self._text):
                end = len(reply[:at].rstrip())
                return 0 if _divides_word(reply, end) else end
            if reply[at] != self._text[self._agreed]:
                return 0
            self._known, self._agreed = at + 1, self._agreed + 1
        if is_over and self._agreed == len(self._text):
            return len(reply)
        return None


# --- words ----------------------------------------------------------------------------------------


def _stripped(text: str) -> list[str]:
    return [stripped for word in words_of(text) if (stripped := word.strip())]


def _plain_of(words: Sequence[str]) -> list[str]:
    """The words without capitals and marks."""
    plain = ["".join(filter(str.isalnum, word.casefold())) for word in words]
    return [word for word in plain if word]


def _occurs(part: Sequence[str], words: Sequence[str], start: int = 0) -> bool:
    """Whether this part of a text is among these words, from this place on."""
    ends = range(start, len(words) - len(part) + 1)
    starts = [at for at in ends if words[at] == part[0]]
    return any(words[at : at + len(part)] == part for at in starts)


def _stems(words: Sequence[str]) -> list[str]:
    """The beginnings of the long words among these, each once. In scripts without spaces, where
    each character is a word, those of two characters.

    >>> _stems(["the", "colour", "of", "sky"]), _stems(list("天空是"))
    (['colou', 'sky'], ['天空', '空是'])
    """
    found = []
    for word, following in zip_longest(words, words[1:], fillvalue=""):
        if _is_character(word):
            found += [word + following] if _is_character(following) else []
        elif (len(word) > 2 or word > "\u2e80") and word not in _COMMON:
            found.append(word[:5])
    return list(dict.fromkeys(found))


def _is_character(word: str) -> bool:
    """Whether the word is a character of a script without spaces."""
    return len(word) == 1 and word > "\u2e80"


def _is_similar(reply: Sequence[str], text: Sequence[str], is_over: bool) -> bool | None:
    """Whether the long words of the reply are those of the text's beginning; None: undecided."""
    own = _stems(text[:BEGINNING])
    seen = _stems(reply[:BEGINNING])[:SEEN]
    left = 0 if is_over or len(reply) >= BEGINNING else SEEN - len(seen)
    least = min(SHARED, max(len(own), SHARED - 1))
    shared = _shared(seen, own)
    if shared >= least:
        return True
    return False if shared + left < least else None


def _shared(left: Sequence[str], right: Sequence[str]) -> int:
    """How many words are in both, in the same order."""
    row = [0] * (len(right) + 1)
    for word in left:
        before = row
        row = [0]
        for at, other in enumerate(right):
            row.append(before[at] + 1 if word == other else max(row[at], before[at + 1]))
    return row[-1]


def _divides_word(text: str, at: int) -> bool:
    """Whether a word goes on here."""
    pair = text[at - 1 : at + 1]
    return len(pair) == 2 and pair.isalnum() and len(words_of(pair)) == 1


def _end_of(words: Sequence[str], reply: str, is_over: bool) -> int | None:
    """Where these words end in a reply that begins with them, capitals aside; 0: it does not; None:
    undecided.

    >>> [_end_of(["of", "the"], reply, False) for reply in ("Of the air", "of them", "of th", "so")]
    [6, 0, None, 0]
    """
    seen = list(re.finditer(r"\S+", reply))
    for at, (word, match) in enumerate(zip(words, seen, strict=False), start=1):
        theirs, own = match[0].casefold(), word.casefold()
        may_go_on = match.end() == len(reply.rstrip()) and not is_over
        if may_go_on and own.startswith(theirs):
            return None
        if at < len(words):
            if theirs != own:
                return 0
        elif match[0][: len(word)].casefold() == own:
            after = match[0][len(word) : len(word) + 1]
            return 0 if after.isalnum() or after in tuple("'’-_(") else match.start() + len(word)
    return None if len(seen) < len(words) and not is_over else 0


# --- joining --------------------------------------------------------------------------------------


def joined(text: str, reply: str) -> str:
    """The continuation of a text in a reply, with a space where two words would run together, and
    a line break before an item or a code fence.

    >>> joined("The sky is", "blue."), joined("The sky is", " blue."), joined("天空是", "蓝色")
    (' blue.', ' blue.', '蓝色')
    >>> joined("- Walls", "- Doors"), joined("- Walls", "and doors")
    ('\\n- Doors', ' and doors')
    >>> joined("def f():\\n", "    return 1"), joined("def f():\\n", "\\n    return 1")
    ('    return 1', '    return 1')
    """
    kept = text.rstrip()
    if len(kept) < len(text):
        return _after_white(text[len(kept) :], reply)
    if not _runs_together(text, reply):
        return reply
    last_line = text.rpartition("\n")[2]
    begins_code = last_line.lstrip().startswith("```")
    begins_item = _ITEM.match(last_line) and _LINE.match(reply)
    begins_row = text.endswith("|") and reply.startswith("|")
    begins_line = begins_code or begins_item or begins_row or reply.startswith("```")
    return ("\n" if begins_line else " ") + reply


def _runs_together(text: str, reply: str) -> bool:
    """Whether a space is missing between these two.

    >>> [_runs_together('["Ann"', reply) for reply in ("]", ",", "and")]
    [False, False, True]
    >>> _runs_together("soon", "👋"), _runs_together("👋", "Bye"), _runs_together("再见", "👋")
    (True, True, False)
    >>> _runs_together('["', 'Ann"]'), _runs_together('["Ann', '"]'), _runs_together('"Ann"', "is")
    (False, False, True)
    """
    if not text or not reply or reply[0].isspace():
        return False
    # Spaces are beside emoji, except in scripts without spaces.
    left, right = ("a" if _is_emoji(side) else side for side in (text[-1], reply[0]))
    if is_safe(left + right, 1):
        return False
    if text[-1] in OPENING or reply[0] in CLOSING:
        return False
    return not (_is_quoting(text) and '"' in (text[-1], reply[0]))


def _is_emoji(sign: str) -> bool:
    return sign == "\ufe0f" or (sign != "" and unicodedata.category(sign) == "So")


def _is_quoting(text: str) -> bool:
    """Whether the last line of the text is within quotation marks."""
    return len(_QUOTE.findall(text.rpartition("\n")[2])) % 2 == 1


def _after_white(white: str, reply: str) -> str:
    """The reply without white space that the text already ends with. Models do not see that white
    space, because some providers refuse a message that ends with it."""
    lead = reply[: len(reply) - len(reply.lstrip())]
    if lead.startswith(white):
        return reply[len(white) :]
    is_indent = "\n" in white and "\n" not in lead and len(lead) > 1
    return reply if is_indent else reply[len(lead) :]


def _tails(text: str) -> list[str]:
    """The ends of the text that a model may repeat, the longest first: from one of its last words
    on, or as they are quoted in the request. Not those that the text repeats itself."""
    starts = [match.start() for match in re.finditer(r"\S+", text)][-40:]
    ends = [text[at:] for at in starts if len(text) - at >= TAIL]
    if not ends:
        return []
    last = ends[-1]
    if len(text) > QUOTED:
        ends.append(text[-QUOTED:].lstrip())
    ends.sort(key=len, reverse=True)
    return [end for end in ends if _is_once(end, text) and _is_once(last, end)]


def _is_once(end: str, text: str) -> bool:
    """Whether the text has its end only there."""
    return text.find(end) == len(text) - len(end)
