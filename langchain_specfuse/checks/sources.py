"""The check that an answer takes its facts from its sources.

No library was found that does this without a model. The validators of Guardrails' hub with this
purpose (``provenance_llm``, ``grounded_ai_hallucination``) ask one, as do ragas and NeMo
Guardrails. This check compares spellings, so it costs almost nothing, and no text can persuade it.
It does not know whether a sentence is true: a number from the sources may be used for the wrong
thing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from ..core.checks import Check, CheckContext
from ..errors import UsageError, advised, amount
from .facts import claims_in, facts_in

REACH = 500
"""No fact but a quotation begins further before its end, or on another line."""
_BEGUN_QUOTATION = re.compile(r"“[^“”]*(?:”|\Z)|„[^„“”]*(?:[“”]|\Z)|«[^«»]*(?:»|\Z)")


def grounded(sources: Sequence[Any] | None = None) -> Check:
    """Every number, date, quotation and link of the answer occurs in the sources.

    >>> check = grounded(["Opened on 5 March 1998. It cost 2.5 million euros."])
    >>> check.function("It opened on March 5th, 1998, and cost €2,500,000.")
    >>> check.function("It opened in 1999.")
    'the number 1999 is not in the sources'

    ``sources`` is a list of texts or of LangChain's documents. Without it, the sources are the
    messages of the conversation, with the results of tools.

    Two spellings of one fact are equal: 1,000 and 1000, 5% and 5 percent, 2024-03-05 and March 5,
    2024 (and 03/05/2024, read both ways). A magnitude belongs to its number:

    >>> check = grounded(["Revenue: $2.4bn, from 40 shops."])
    >>> check.function("Revenue was 2.4 billion dollars, 2,400,000,000 or 2.4 × 10⁹.")
    >>> check.function("There are 40k shops.")
    'the number 40k is not in the sources'

    k, M, B, bn and tn count directly after a number; m, b and t only if a currency stands before
    it, because elsewhere 40m is a length. "Five" in a source allows 5. Signs, currencies and units
    are not compared. A date without a day or year agrees with every date that contains it.
    Quotations count from three words on; their capitals and punctuation do not matter. A code with
    three digits or more (N12345) counts as well. Not judged: numbers written as words, numbers
    inside shorter names (GPT4), the numbers of a list, and marks such as [2].

    It runs at every sentence, because half a sentence may end in half a fact: "2.5" before
    "million", or "5 March" before the year.
    """
    if sources is None:
        return _ready(GroundedInMessages(), "grounded()")
    if isinstance(sources, str) or not isinstance(sources, Sequence):
        error = UsageError(f"sources must be a list, got {type(sources).__name__}")
        raise advised(error, "for example checks.grounded(['The tower is 324 m high.'])")
    texts = tuple(_text_of(source) for source in sources)
    digest = sha256("\0".join(texts).encode("utf-8", "surrogatepass")).hexdigest()
    return _ready(GroundedInTexts(texts), f"grounded({digest})")


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

    def __repr__(self) -> str:
        return f"GroundedInTexts({amount(len(self.sources), 'source')})"

    def __call__(self, text: str, context: CheckContext | None = None) -> str | None:
        return _fault(text if context is None else _unread(text, context.draft), self.sources)


@dataclass(frozen=True, slots=True)
class GroundedInMessages:
    """The function of :func:`grounded` without sources."""

    def __call__(self, text: str, context: CheckContext) -> str | None:
        sources = tuple(str(message.text) for message in context.messages)
        return _fault(_unread(text, context.draft), sources)


def _unread(text: str, draft: str) -> str:
    """The end of a text whose beginning has passed: the draft, and what a fact of it may have begun
    with. So a long answer is read once, not again at every sentence.

    >>> _unread("In 1998.\\nIt cost 2.5 million.", " million.")
    'It cost 2.5 million.'
    >>> _unread("He said: “So\\nbe it.”", "it.”")
    '“So\\nbe it.”'
    """
    passed = len(text) - len(draft)
    start = max(text.rfind("\n", 0, passed), text.rfind(". ", 0, max(passed - REACH, 0))) + 1
    *_, quotation = None, *_BEGUN_QUOTATION.finditer(text, 0, start)
    if quotation and quotation.end() == start and quotation[0][-1] not in "“”»":
        start = quotation.start()
    return text[start:]


def _fault(text: str, sources: tuple[str, ...]) -> str | None:
    known = [facts_in(source) for source in sources]
    for claim in claims_in(text):
        if not any(claim.fact.is_in(facts) for facts in known):
            return f"the {claim.kind} {claim.spelling:.200} is not in the sources"
    return None
