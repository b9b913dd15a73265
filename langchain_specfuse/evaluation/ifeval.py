"""IFEval's verifiable instructions: for each instruction id, a rule that says whether an answer follows it.

After the definitions of Zhou et al. 2023 (arXiv 2311.07911), strict accuracy. Where ours differ: sentences and words in
capitals are told apart by rules here, not by NLTK's trained data; a "letter" that is no letter (``#``) is counted as it
stands. Knows texts; the questions come from the published file, whose path the user gives.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import UsageError, advised
from .tasks import Grade, Question

Rule = Callable[..., bool]
RULES: dict[str, Rule] = {}
_LANGUAGES = threading.Lock()


def rule(name: str) -> Callable[[Rule], Rule]:
    def kept(function: Rule) -> Rule:
        RULES[name] = function
        return function

    return kept


def grade(question: Question, answer: str) -> Grade:
    """Right if every instruction is followed; ``parts`` tells which are."""
    parts = {
        f"{name}#{at}": followed(name, answer, kwargs)
        for at, (name, kwargs) in enumerate(zip(question.facts["instructions"], question.facts["kwargs"], strict=True))
    }
    broken = [name.partition("#")[0] for name, good in parts.items() if not good]
    return Grade(float(not broken), parts, note=f"not followed: {', '.join(broken)}" if broken else "")


def followed(name: str, answer: str, kwargs: Mapping[str, Any]) -> bool:
    """Whether the answer follows one instruction. An empty answer follows none.

    >>> followed("punctuation:no_comma", "Yes and no.", {}), followed("punctuation:no_comma", "Yes, no.", {})
    (True, False)
    """
    if name not in RULES:
        error = UsageError(f"there is no rule for the instruction {name!r}")
        raise advised(error, f"known are {', '.join(sorted(RULES))}")
    given = {key: value for key, value in kwargs.items() if value is not None}
    return bool(answer.strip()) and RULES[name](answer, **given)


def _holds(count: int, relation: str, bound: int) -> bool:
    if relation not in ("less than", "at least"):
        raise advised(UsageError(f"a relation is 'less than' or 'at least', got {relation!r}"), "mend the task's file")
    return count < bound if relation == "less than" else count >= bound


def language_of(text: str) -> str | None:
    """The language, by ``langdetect``, always the same for the same text; None if it cannot tell."""
    try:
        from langdetect import DetectorFactory, LangDetectException, detect
    except ModuleNotFoundError as error:
        missing = UsageError("telling languages needs langdetect, which is not installed")
        raise advised(missing, 'pip install "langchain-specfuse[eval]"') from error
    with _LANGUAGES:  # it loads its profiles when first asked
        DetectorFactory.seed = 0
        try:
            return str(detect(text))
        except LangDetectException:
            return None


# --- words and letters --------------------------------------------------------------------------------------------


@rule("keywords:existence")
def _(answer: str, keywords: list[str]) -> bool:
    return all(re.search(re.escape(word), answer, re.I) for word in keywords)


@rule("keywords:frequency")
def _(answer: str, keyword: str, frequency: int, relation: str) -> bool:
    return _holds(len(re.findall(re.escape(keyword.strip()), answer, re.I)), relation, frequency)


@rule("keywords:forbidden_words")
def _(answer: str, forbidden_words: list[str]) -> bool:
    return not any(re.search(rf"\b{re.escape(word)}\b", answer, re.I) for word in forbidden_words)


@rule("keywords:letter_frequency")
def _(answer: str, letter: str, let_frequency: int, let_relation: str) -> bool:
    return _holds(answer.lower().count(letter.lower()), let_relation, let_frequency)


@rule("change_case:capital_word_frequency")
def _(answer: str, capital_frequency: int, capital_relation: str) -> bool:
    # A word with hyphens, apostrophes or full stops inside is one word.
    words = re.findall(r"\w+(?:[-'’.&]\w+)*", answer)
    return _holds(sum(word.isupper() for word in words), capital_relation, capital_frequency)


@rule("change_case:english_capital")
def _(answer: str) -> bool:
    return answer.isupper() and language_of(answer) in ("en", None)


@rule("change_case:english_lowercase")
def _(answer: str) -> bool:
    return answer.islower() and language_of(answer) in ("en", None)


@rule("language:response_language")
def _(answer: str, language: str) -> bool:
    # As published: what has no language that can be told (numbers alone) counts as followed.
    return language_of(answer) in (language, None)


@rule("punctuation:no_comma")
def _(answer: str) -> bool:
    return "," not in answer


# --- lengths ------------------------------------------------------------------------------------------------------

_SHORT = r"Mr|Mrs|Ms|Dr|Prof|St|Sr|Jr|vs|etc|e\.g|i\.e|a\.m|p\.m|U\.S|U\.K|No|Inc|Ltd|Co|[A-Z]"
_ABBREVIATION = re.compile(rf"\b(?:{_SHORT})\.$")


def sentences(text: str) -> list[str]:
    """The sentences: cut behind ``.``, ``!`` or ``?`` (and closing quotes) before white space, but not in "Dr. Who".

    >>> len(sentences('Dr. Who said: "No!" He left. Why? It cost 3.50.'))
    4
    """
    found, held = [], ""
    for piece in re.split(r"(?<=[.!?。！？])[\"'”’)\]]*\s+|(?<=[.!?][\"'”’)\]])\s+", text.strip()):
        held = f"{held} {piece}".strip()
        if not _ABBREVIATION.search(held):
            found.append(held)
            held = ""
    return [one for one in [*found, held] if re.search(r"\w", one)]


@rule("length_constraints:number_sentences")
def _(answer: str, num_sentences: int, relation: str) -> bool:
    return _holds(len(sentences(answer)), relation, num_sentences)


@rule("length_constraints:number_words")
def _(answer: str, num_words: int, relation: str) -> bool:
    return _holds(len(re.findall(r"\w+", answer)), relation, num_words)


def _parts(answer: str, divider: str) -> list[str] | None:
    """The parts between dividers. The first and last may be empty (a divider at an end); None if another one is."""
    pieces = re.split(divider, answer)
    if any(not piece.strip() for piece in pieces[1:-1]):
        return None
    return [piece.strip() for piece in pieces if piece.strip()]


@rule("length_constraints:number_paragraphs")
def _(answer: str, num_paragraphs: int) -> bool:
    found = _parts(answer, r"\s?\*\*\*\s?")
    return found is not None and len(found) == num_paragraphs


@rule("length_constraints:nth_paragraph_first_word")
def _(answer: str, num_paragraphs: int, nth_paragraph: int, first_word: str) -> bool:
    pieces = answer.split("\n\n")
    count = sum(bool(piece.strip()) for piece in pieces)
    if nth_paragraph > count or not (words := pieces[nth_paragraph - 1].split()):
        return False
    word = re.split(r"[.,?!'\"]", words[0].lstrip("'").lstrip('"'))[0]
    return count == num_paragraphs and word.lower() == first_word.lower()


# --- shapes -------------------------------------------------------------------------------------------------------


@rule("detectable_content:number_placeholders")
def _(answer: str, num_placeholders: int) -> bool:
    return len(re.findall(r"\[.*?\]", answer)) >= num_placeholders


@rule("detectable_content:postscript")
def _(answer: str, postscript_marker: str) -> bool:
    # "P. S." is one, too; in any case.
    known = {"P.S.": r"p\.\s?s\.", "P.P.S": r"p\.\s?p\.\s?s"}
    return bool(re.search(known.get(postscript_marker, re.escape(postscript_marker.lower())), answer.lower()))


@rule("detectable_format:number_bullet_lists")
def _(answer: str, num_bullets: int) -> bool:
    stars, dashes = re.findall(r"^\s*\*[^*].*$", answer, re.M), re.findall(r"^\s*-.*$", answer, re.M)
    return len(stars) + len(dashes) == num_bullets


@rule("detectable_format:constrained_response")
def _(answer: str) -> bool:
    return any(f"My answer is {word}." in answer for word in ("yes", "no", "maybe"))


@rule("detectable_format:number_highlighted_sections")
def _(answer: str, num_highlights: int) -> bool:
    single, double = re.findall(r"\*[^\n*]*\*", answer), re.findall(r"\*\*[^\n*]*\*\*", answer)
    return sum(bool(one.strip("* ")) for one in [*single, *double]) >= num_highlights


@rule("detectable_format:multiple_sections")
def _(answer: str, section_spliter: str, num_sections: int) -> bool:
    return len(re.findall(rf"\s?{re.escape(section_spliter.strip())}\s?\d+\s?", answer)) >= num_sections


@rule("detectable_format:json_format")
def _(answer: str) -> bool:
    bare = re.sub(r"^```(?:json|Json|JSON)?|```$", "", answer.strip()).strip()
    try:
        json.loads(bare)
    except ValueError:
        return False
    return True


@rule("detectable_format:title")
def _(answer: str) -> bool:
    return any(title.strip("<> ") for title in re.findall(r"<<[^\n]+>>", answer))


@rule("combination:two_responses")
def _(answer: str) -> bool:
    found = _parts(answer, re.escape("******"))
    return found is not None and len(found) == 2 and found[0] != found[1]


@rule("combination:repeat_prompt")
def _(answer: str, prompt_to_repeat: str) -> bool:
    return answer.strip().lower().startswith(prompt_to_repeat.strip().lower())


@rule("startend:end_checker")
def _(answer: str, end_phrase: str) -> bool:
    return answer.strip().strip('"').lower().endswith(end_phrase.strip().lower())


@rule("startend:quotation")
def _(answer: str) -> bool:
    bare = answer.strip()
    return len(bare) > 1 and bare[0] == bare[-1] == '"'
