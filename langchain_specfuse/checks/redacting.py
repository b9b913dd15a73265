"""Redact personal data, or whatever matches a pattern.

LangChain's ``PIIMiddleware`` redacts messages of an agent that are complete. This rule redacts what
is still being written, before anybody reads it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches

from ..core.answer import word_start
from ..core.checks import Check
from ..core.normal import Spelling, normal
from ..core.redacting import REACH
from ..errors import UsageError, advised
from .personal import PERSONAL, PersonalPattern, Span, merged
from .words import beginning_of, compiled_pattern, shown

LEAST = 6
"""Texts with fewer letters and digits are not searched for in other spellings: "It's hot" is not
"shot"."""

_OTHER_NAMES = {
    "mail": "email",
    "mailaddress": "email",
    "emailaddress": "email",
    "creditcard": "card",
    "cardnumber": "card",
    "creditcardnumber": "card",
    "ipaddress": "ip",
    "phonenumber": "phone",
    "telephone": "phone",
    "telephonenumber": "phone",
}
"""Other names of the kinds of personal data, in small letters without spaces."""


def redact(pattern: str | re.Pattern[str] | PersonalPattern, with_: str = "[redacted]") -> Check:
    """Replace everything that matches, instead of asking for another text.

    ``pattern`` is a kind of personal data (``EMAIL``, ``CARD``, ``IBAN``, ``IP``, ``PHONE``, or the
    name of one: ``"email"``) or a regular expression. Other names of these kinds, such as
    ``"mails"``, are refused: to redact this word, pass ``re.compile("mails")``.

    >>> redact("email"), redact("email").redacts.found("Write to ann@example.com now", 0)
    (<check redact(email) at every segment>, ([(9, 24)], 25))

    The text, the arguments of tool calls, objects and reasoning that is shown are redacted, before
    other checks, other members, events and traces get them. No text is asked for again. Text that
    may be the beginning of a match is held back. For a regular expression that is more than plain
    text, this is the unfinished word only, so the beginning of a longer match may be shown. Plain
    text with six letters and digits or more is also found in other spellings: other case, spaces,
    punctuation and look-alike characters.
    """
    if not isinstance(with_, str) or re.search(r'["\\\n]', with_):
        error = UsageError(
            "with_ must be a text without quotation marks, backslashes and line breaks, "
            f"got {with_!r:.80}"
        )
        raise advised(error, "for example checks.redact('email', with_='[address]')")
    if isinstance(pattern, str):
        pattern = PERSONAL.get(pattern.lower()) or _not_a_kind(pattern)
    rule: RedactsPersonal | RedactsMatches
    if isinstance(pattern, PersonalPattern):
        rule, name = RedactsPersonal(pattern, with_), pattern.name
    else:
        compiled = compiled_pattern(pattern)
        rule, name = (
            RedactsMatches(compiled.pattern, compiled.flags, with_),
            shown(compiled.pattern),
        )
    return Check(
        rule, f"redact({name})", judges_calls=False, identity=repr(rule), private=True, redacts=rule
    )


def _not_a_kind(pattern: str) -> str:
    """The pattern, unless it is probably meant as the name of a kind of personal data."""
    word = re.sub(r"[\s_-]", "", pattern.lower())
    singular = {word, word.removesuffix("s"), word.removesuffix("es")}
    meant = [_OTHER_NAMES.get(name, name) for name in singular]
    kinds = [name for name in meant if name in PERSONAL]
    if not kinds and len(word) > 4:
        kinds = get_close_matches(word, PERSONAL, n=1, cutoff=0.8)
    if not kinds:
        return pattern
    names = ", ".join(map(repr, PERSONAL))
    error = UsageError(f"redact({pattern!r}) would redact only this word; the kinds are {names}")
    raise advised(
        error, f"did you mean {kinds[0]!r}? To redact this very word, pass re.compile(...)"
    )


@dataclass(frozen=True, slots=True)
class RedactsPersonal:
    """What :func:`redact` replaces if it is given a kind of personal data."""

    pattern: PersonalPattern
    with_: str

    def found(self, text: str, start: int) -> tuple[list[Span], int]:
        return self.pattern.found(text, start)


@dataclass(frozen=True, slots=True)
class RedactsMatches:
    """What :func:`redact` replaces if it is given a regular expression."""

    pattern: str
    flags: int
    with_: str

    def found(self, text: str, start: int) -> tuple[list[Span], int]:
        compiled = re.compile(self.pattern, self.flags)
        matches = compiled.finditer(text, max(start - REACH, 0))
        spans = [match.span() for match in matches if match[0] and match.end() > start]
        pending = beginning_of(compiled)
        begun = pending(text) if pending else word_start(text, len(text))
        if len(text) - begun > REACH:
            begun = len(text)  # it may be a text without spaces
        form = normal("".join(pending.characters))[0] if pending else ""
        if pending and "" not in pending.characters and len(form) >= LEAST:
            spelling = Spelling(form, len(form), is_distinct=True)
            spans = merged([*spans, *spelling.spans(text, start)])
            begun = min(begun, spelling.pending(text))
        # A match at the end may go on.
        return spans, min([begun, *(first for first, end in spans if end == len(text))])
