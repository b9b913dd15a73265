"""Checks of the words of an answer: patterns, letters, lengths.

Guardrails' hub has validators with the same purpose (``regex_match``, ``valid_length``). They judge
whole texts and bring their own framework, so these few lines are written here. All but
:func:`requires` are prefix-closed: if a text passes, so does every beginning of it, so a draft can
be cut before its fault and continued.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from ..core.checks import Check, CheckContext, Finding
from ..core.sentences import sentence_ends
from ..errors import UsageError, advised, amount
from .personal import UNSPACED, PersonalPattern

_SHOWN = 40
"""Longer patterns are shortened in the names of checks."""
_WORD = re.compile(rf"[{UNSPACED}]|[^\s{UNSPACED}]*[^\W_{UNSPACED}][^\s{UNSPACED}]*")

_CHARACTER = re.compile(r"[^\\^$*+?{}\[\]|()]|\\\W")
"""A character of a pattern that stands for itself; a full stop too."""
_PLAIN = re.compile(f"(?:{_CHARACTER.pattern})+")


# --- patterns -------------------------------------------------------------------------------------


def forbids(pattern: str | re.Pattern[str] | PersonalPattern) -> Check:
    """The answer contains nothing that matches this regular expression, or this kind of personal
    data: ``EMAIL``, ``CARD``, ``IBAN``, ``IP`` or ``PHONE`` of this module. A text is never
    the name of a kind: ``forbids("email")`` forbids this word, ``forbids(checks.EMAIL)`` forbids
    addresses.

    >>> check = forbids("(?i)guarantee")
    >>> check.name, check.function("We Guarantee it.")
    ("forbids('(?i)guarantee')", Finding(reason="contains 'Guarantee'", start=3, end=12))

    Case matters, unless the pattern begins with ``(?i)``, or is an address or a long number, which
    is refused in every spelling. The check runs at every segment, on the whole answer so far
    without a last word that may still go on. If the pattern is plain text (in which a ``.`` may
    stand for any character), text that may be the beginning of a match is not shown. Of a longer
    match of another pattern, the first words may have been shown. Nothing can interrupt Python's
    ``re``: a pattern that backtracks without end blocks the whole process.
    """
    if isinstance(pattern, PersonalPattern):
        check = _ready(ForbidsPersonal(pattern), f"forbids({pattern.name})", judges_reasoning=True)
        return replace(check, pending=pattern.pending, private=True, takes_context=True)
    compiled = compiled_pattern(pattern)
    function = Forbids(compiled.pattern, compiled.flags)
    check = _ready(function, f"forbids({shown(compiled.pattern)})", judges_reasoning=True)
    literal = "".join(character or "." for character in _characters(compiled))
    return replace(check, pending=beginning_of(compiled), literal=literal)


@dataclass(frozen=True, slots=True)
class Forbids:
    """The function of :func:`forbids`."""

    pattern: str
    flags: int

    def __call__(self, text: str) -> Finding | str | None:
        found = re.compile(self.pattern, self.flags).search(text)
        if found is None:
            return None
        if not found[0]:
            return f"matches {shown(self.pattern)}"
        reason = f"contains {found[0]!r:.200}"
        if not found[0].strip():
            reason = f"matches {shown(self.pattern)}"
        return Finding(reason, *found.span())


@dataclass(frozen=True, slots=True)
class ForbidsPersonal:
    """The function of :func:`forbids` with a pattern for personal data, which no reason repeats."""

    pattern: PersonalPattern

    def __call__(self, text: str, context: CheckContext | None = None) -> Finding | None:
        new = len(text) if context is None else len(context.draft)
        spans = self.pattern.find_last(text, new)
        return Finding(f"contains {self.pattern.noun}", *spans[0]) if spans else None


@dataclass(frozen=True, slots=True)
class Beginning:
    """Where a text ends with the beginning of these characters. An empty text among them stands for
    any character.

    >>> Beginning(("4", "2", " ", "1"), ignores_case=False)("or 42")
    3
    """

    characters: tuple[str, ...]
    ignores_case: bool

    def __call__(self, text: str) -> int:
        size = len(text)
        for start in range(max(size - len(self.characters), 0), size):
            pairs = zip(self.characters, text[start:], strict=False)
            if all(self._is_same(*pair) for pair in pairs):
                return start
        return size

    def _is_same(self, character: str, given: str) -> bool:
        if self.ignores_case:
            return not character or character.casefold() == given.casefold()
        return not character or character == given


def beginning_of(pattern: re.Pattern[str]) -> Beginning | None:
    """Where a text ends with the beginning of a match, for a pattern of plain text."""
    characters = _characters(pattern)
    return Beginning(characters, bool(pattern.flags & re.IGNORECASE)) if characters else None


def _characters(pattern: re.Pattern[str]) -> tuple[str, ...]:
    """The characters that a pattern of plain text consists of, with an empty text for a full stop,
    which matches any character. Empty for any other pattern."""
    text = pattern.pattern.removeprefix("(?i)").removeprefix(r"\b").removesuffix(r"\b")
    if pattern.flags & re.VERBOSE or not _PLAIN.fullmatch(text):
        return ()
    return tuple("" if part == "." else part[-1] for part in _CHARACTER.findall(text))


def requires(pattern: str | re.Pattern[str]) -> Check:
    """The whole answer contains something that matches this regular expression.

    >>> check = requires("Yours sincerely")
    >>> check.function("Yours"), check
    ("contains nothing like 'Yours sincerely'", <check requires('Yours sincerely') at every answer>)

    It runs when the answer is complete; nothing is streamed before.
    """
    compiled = compiled_pattern(pattern)
    function = Requires(compiled.pattern, compiled.flags)
    return _ready(function, f"requires({shown(compiled.pattern)})", at="answer")


@dataclass(frozen=True, slots=True)
class Requires:
    """The function of :func:`requires`."""

    pattern: str
    flags: int

    def __call__(self, text: str) -> str | None:
        if re.compile(self.pattern, self.flags).search(text):
            return None
        return f"contains nothing like {shown(self.pattern)}"


def compiled_pattern(pattern: Any) -> re.Pattern[str]:
    """The regular expression, if it is one and matches at least one character."""
    text = pattern.pattern if isinstance(pattern, re.Pattern) else pattern
    if not isinstance(text, str):
        error = UsageError(f"a pattern must be a text, got {pattern!r:.80}")
        raise advised(error, "for example checks.forbids('guarantee')")
    try:
        compiled: re.Pattern[str] = re.compile(pattern)
    except re.error as error:
        wrong = UsageError(f"{text!r:.80} is not a regular expression: {error}")
        raise advised(wrong, "to search for this very text, pass re.escape(text)") from error
    if compiled.search("") is not None:
        empty = UsageError(f"the pattern {text!r:.80} matches an empty text, and so every text")
        raise advised(empty, "write a pattern that matches at least one character")
    return compiled


def shown(pattern: str) -> str:
    """A pattern as names and reasons have it."""
    return repr(pattern if len(pattern) <= _SHOWN else pattern[: _SHOWN - 1] + "…")


# --- lengths and letters --------------------------------------------------------------------------


def max_words(n: int) -> Check:
    """The answer has at most ``n`` words.

    >>> max_words(3).function("It is half past nine.")
    'has 5 words, more than 3'

    Whatever stands between two spaces is a word if it contains a letter or a digit. In Chinese and
    Japanese text, every character is a word.
    """
    check = _ready(MaxWords(_count(n, "max_words")), f"max_words({n})")
    return replace(check, takes_context=True)


@dataclass(frozen=True, slots=True)
class MaxWords:
    """The function of :func:`max_words`."""

    n: int

    def __call__(self, text: str, context: CheckContext | None = None) -> str | None:
        start, words = _counted(self, text, context)
        starts = [found.start() for found in _WORD.finditer(text, start)]
        if starts and context is not None:
            context.memory[self] = text, starts[-1], words + len(starts) - 1
        return _excess(words + len(starts), self.n, "word")


def max_sentences(n: int) -> Check:
    """The answer has at most ``n`` sentences.

    >>> max_sentences(1).function("It is 9.30. Hurry")
    'has 2 sentences, more than 1'

    A sentence contains a letter. It ends with a punctuation mark, an empty line, an item of a list
    or a heading, but not with an abbreviation ("Dr. No") or the number of an item.
    """
    check = _ready(MaxSentences(_count(n, "max_sentences")), f"max_sentences({n})")
    return replace(check, takes_context=True)


@dataclass(frozen=True, slots=True)
class MaxSentences:
    """The function of :func:`max_sentences`."""

    n: int

    def __call__(self, text: str, context: CheckContext | None = None) -> str | None:
        start, count = _counted(self, text, context)
        for end in sentence_ends(text, start):
            count += any(map(str.isalpha, text[start:end]))
            start = end
        if context is not None:
            context.memory[self] = text, start, count
        return _excess(count + any(map(str.isalpha, text[start:])), self.n, "sentence")


def lowercase() -> Check:
    """The answer has no capital letters.

    >>> lowercase().function("from Ulm to Rome")
    "has a capital letter: 'Ulm'"
    """
    return _ready(Lowercase(), "lowercase")


@dataclass(frozen=True, slots=True)
class Lowercase:
    """The function of :func:`lowercase`."""

    def __call__(self, text: str) -> str | None:
        if text.islower():  # the usual case, fast
            return None
        for word in re.finditer(r"\S+", text):
            if any(letter.isupper() or letter.istitle() for letter in word[0]):
                return f"has a capital letter: {word[0]!r:.80}"
        return None


def _count(n: Any, name: str) -> int:
    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        error = UsageError(f"{name} takes a whole number above 0, got {n!r:.80}")
        raise advised(error, f"for example checks.{name}(80)")
    return n


def _counted(check: Any, text: str, context: CheckContext | None) -> tuple[int, int]:
    """The place up to which the check has counted this text in this answer, when it was shorter,
    and its count there, which no longer text changes. So a long answer is counted once, not again
    at every word."""
    memory = {} if context is None else context.memory
    counted, place, count = memory.get(check, ("", 0, 0))
    return (place, count) if text.startswith(counted) else (0, 0)


def _excess(count: int, limit: int, noun: str) -> str | None:
    return f"has {amount(count, noun)}, more than {limit}" if count > limit else None


def _ready(
    function: Any, name: str, *, at: Any = "segment", judges_reasoning: bool = False
) -> Check:
    return Check(
        function,
        name,
        at=at,
        judges_reasoning=judges_reasoning,
        judges_calls=False,
        identity=repr(function),
    )
