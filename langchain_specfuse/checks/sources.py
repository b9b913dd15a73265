"""The check that an answer takes its facts from its sources.

No library was found that does this without a model. The validators of Guardrails' hub with this
purpose (``provenance_llm``, ``grounded_ai_hallucination``) ask one, as do ragas and NeMo
Guardrails. This check compares spellings, so it costs almost nothing, and no text can persuade it.
It does not know whether a sentence is true: a number from the sources may be used for the wrong
thing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from ..core.checks import Check, CheckContext, Finding, fault
from ..errors import UsageError, advised, amount
from .facts import (
    LONGEST,
    DecimalSign,
    begun_quotation,
    claims_in,
    facts_in,
    place_of,
    quotations_in,
)

REACH = 100
"""No fact but a quotation begins further before its end, or on another line."""
MARKS = 99
"""The numbers up to this one may refer to passages, if the number of passages is not known."""


def grounded(sources: Sequence[Any] | None = None, *, decimal: DecimalSign | None = None) -> Check:
    """Every number, date, quotation, link and e-mail address of the answer occurs in the sources.

    >>> check = grounded(["Opened on 5 March 1998. It cost 2.5 million euros."])
    >>> check.function("It opened on March 5th, 1998, and cost €2,500,000.")
    >>> check.function("It opened in 1999.")
    Finding(reason='the number 1999 is not in the sources', start=13, end=17)

    ``sources`` is a list of texts or of LangChain's documents. Without it, the sources are the
    messages of the conversation, with the results of tools.

    Two spellings of one fact are equal: 1,000 and 1000, 5% and 5 percent, 2024-03-05 and March 5,
    2024 (and 03/05/2024, read both ways). A magnitude belongs to its number:

    >>> check = grounded(["Revenue: $2.4bn, from 40 shops."])
    >>> check.function("Revenue was 2.4 billion dollars, 2,400,000,000 or 2.4 × 10⁹.")
    >>> check.function("There are 40k shops.").reason
    'the number 40k is not in the sources'

    k, M, B, bn and tn count directly after a number; m, b and t only if a currency stands before
    it, because elsewhere 40m is a length. "Five" in a source allows 5. Signs, currencies and units
    are not compared. A date without a day or year agrees with every date that contains it; only
    English names of months are known.

    ``decimal`` is the decimal sign of the answer, "." or ",". By default, it is the one that most
    sources use; each source is read with the sign that its own numbers show. With ",", 1.500 is
    1500. With either, 3,5 is 3.5, and 1.500.000, 1'500'000 and 1 500 000 are 1,500,000.

    Quotations count from three words on, up to 2,000 characters; their capitals and punctuation do
    not matter. They are in “ ”, „ “, « », ‹ ›, ‘ ’, ‚ ‘, 「」, 『』 or straight marks. Links count
    without https:// too, if the host has a common ending (example.com). A code with three digits
    or more (N12345) counts as well. Not judged: numbers written as words, numbers inside shorter
    names (GPT4), the numbers of a list, and marks such as [2], up to the number of ``sources`` (up
    to 99 if there is only one, or if the messages are the sources).

    It runs at every sentence, because half a sentence may end in half a fact: "2.5" before
    "million", or "5 March" before the year.
    """
    if decimal not in (None, ".", ","):
        error = UsageError(f"decimal must be '.' or ',', got {decimal!r:.80}")
        raise advised(error, "or leave it out: the sources show it")
    if sources is None:
        return _ready(GroundedInMessages(decimal), f"grounded(decimal={decimal!r})")
    if isinstance(sources, str) or not isinstance(sources, Sequence):
        error = UsageError(f"sources must be a list, got {type(sources).__name__}")
        raise advised(error, "for example checks.grounded(['The tower is 324 m high.'])")
    texts = tuple(_text_of(source) for source in sources)
    digest = sha256("\0".join(texts).encode("utf-8", "surrogatepass")).hexdigest()
    return _ready(GroundedInTexts(texts, decimal), f"grounded({digest}, decimal={decimal!r})")


def _ready(function: Any, identity: str) -> Check:
    return Check(function, "grounded", at="sentence", takes_context=True, identity=identity)


def _text_of(source: Any) -> str:
    if isinstance(source, str):
        return source
    text = getattr(source, "page_content", None)
    if not isinstance(text, str):
        error = UsageError(f"a source must be a text or a document, got {type(source).__name__}")
        raise advised(error, "pass a list of texts, or the documents that a retriever returned")
    origin = (getattr(source, "metadata", None) or {}).get("source")
    return f"{text}\n{origin}" if isinstance(origin, str) else text


@dataclass(frozen=True, slots=True)
class GroundedInTexts:
    """The function of :func:`grounded` with sources."""

    sources: tuple[str, ...]
    decimal: DecimalSign | None = None

    def __repr__(self) -> str:
        return f"GroundedInTexts({amount(len(self.sources), 'source')})"

    def __call__(self, text: str, context: CheckContext | None = None) -> Finding | str | None:
        new = text if context is None else context.draft
        marks = len(self.sources) if len(self.sources) > 1 else MARKS
        return _fault(text, len(new), self.sources, self.decimal, marks)


@dataclass(frozen=True, slots=True)
class GroundedInMessages:
    """The function of :func:`grounded` without sources."""

    decimal: DecimalSign | None = None

    def __call__(self, text: str, context: CheckContext) -> Finding | str | None:
        sources = tuple(str(message.text) for message in context.messages)
        return _fault(text, len(context.draft), sources, self.decimal, MARKS)


def _unread(text: str, passed: int) -> tuple[int, int]:
    """The place from which on a text can have new facts, if its beginning has passed up to this
    one, and the place where a quotation begins that is open there. So a long answer is read once,
    not again at every sentence.

    >>> _unread("In 1998.\\nIt cost 2.5 million.", 22)
    (9, 9)
    >>> _unread("He said: “So\\nbe it.”", 16)
    (13, 9)
    """
    first = max(passed - LONGEST, 0)
    far = max(passed - REACH, 0)
    start = max(text.rfind("\n", first, passed), text.rfind(". ", first, far)) + 1
    if start == 0 < first:
        start = text.rfind(" ", first, far) + 1
    return start, begun_quotation(text, first, start)


def _fault(
    text: str, new: int, sources: tuple[str, ...], decimal: DecimalSign | None, marks: int
) -> Finding | str | None:
    """The first fact of the new text at the end, of this length, that no source contains."""
    known = [facts_in(source) for source in sources]
    if decimal is None:
        shown = Counter(facts.decimal for facts in known)
        decimal = "," if shown[","] > shown["."] else "."
    start, quoted = _unread(text, len(text) - new)
    facts = [(start, claim) for claim in claims_in(text[start:], decimal, marks)]
    facts += [(quoted, claim) for claim in quotations_in(text[quoted:])]
    for first, claim in facts:
        if any(claim.fact.is_in(facts) for facts in known):
            continue
        place = place_of(claim, text[first:])
        if place is None:
            return f"the {claim.kind} {claim.spelling:.200} is not in the sources"
        begin, end = first + place[0], first + place[1]
        reason = f"the {claim.kind} {text[begin:end]:.200} is not in the sources"
        return fault(reason, begin, end)
    return None
