"""Rules: questions that ask for a text and name prefix-closed rules, such as "no commas" or "at
most 40 words". If a text keeps such a rule, so does every beginning of it.

There are two sources: templates of our own, and the prompts of IFEval's even half that contain such
a rule. The first study left out IFEval's prompts with rules that had been examined before it (no
commas, lowercase, forbidden words). The second has other tasks, and of these prompts those that no
member has been asked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cases import DEVELOPMENT, SEALED, Case, Grade, hashed, part_of

from langchain_specfuse import checks

MAX_TOKENS = 160
EXAMINED_BEFORE = {
    "punctuation:no_comma",
    "change_case:english_lowercase",
    "keywords:forbidden_words",
}
"""IFEval's names of the rules whose prompts were examined before."""


@dataclass(frozen=True)
class Rule:
    """A rule: the request, the check of the chat model, and the test of a finished text."""

    kind: str
    asked: str
    check: Any
    kept: Callable[[str], bool]
    limits_length: bool = False


# --- tests of finished texts ----------------------------------------------------------------------


def lacks(pattern: str) -> Callable[[str], bool]:
    """A test that a text contains nothing that matches."""
    return lambda text: re.search(pattern, text) is None


def words_in(text: str) -> int:
    """Count the words of a text: the pieces between spaces that contain a letter or a digit.

    >>> words_in("Well - it is 9.")
    4
    """
    return sum(re.search(r"[^\W_]", piece) is not None for piece in text.split())


def sentences_in(text: str) -> list[str]:
    """The sentences of a text. A sentence ends with a punctuation mark before white space, or with
    an empty line.

    >>> sentences_in("It is 9.30. Hurry! Or not")
    ['It is 9.30.', 'Hurry!', 'Or not']
    """
    pieces = re.split(r"(?<=[.!?])[\"'”’»)]*\s+|\n\s*\n", text)
    return [piece for piece in pieces if re.search(r"[^\W\d_]", piece)]


def is_brief(text: str, words: int) -> bool:
    """Whether every sentence has at most this many words."""
    return all(words_in(sentence) <= words for sentence in sentences_in(text))


# --- checks that a user would write ---------------------------------------------------------------


def no_long_words(text: str) -> str | None:
    """Refuse words of more than ten letters."""
    found = re.search(r"[^\W\d_]{11,}", text)
    return f"{found[0]!r} has more than ten letters" if found else None


def short_sentences(text: str) -> str | None:
    """Refuse sentences of more than twelve words."""
    if is_brief(text, 12):
        return None
    return "a sentence has more than twelve words"


def capitals_only(text: str) -> str | None:
    """Refuse small letters."""
    found = re.search(r"\S*[a-z]\S*", text)
    return f"{found[0]!r} has a small letter" if found else None


def plain_prose(text: str) -> str | None:
    """Refuse lists and headings."""
    found = re.search(r"(?m)^\s*(?:[-*•#]|\d+[.)])", text)
    return f"a line begins with {found[0].strip()!r}" if found else None


@dataclass(frozen=True)
class FewerThan:
    """Refuse a text in which a pattern matches this often."""

    count: int
    pattern: str

    def __call__(self, text: str) -> str | None:
        found = len(re.findall(self.pattern, text))
        return f"{self.pattern} occurs {found} times" if found >= self.count else None


@dataclass(frozen=True)
class FewSentences:
    """Refuse a text of this many sentences, as the study counts them."""

    count: int

    def __call__(self, text: str) -> str | None:
        found = len(sentences_in(text))
        return f"has {found} sentences" if found >= self.count else None


# --- templates of our own -------------------------------------------------------------------------

TASKS: tuple[tuple[str, str, str], ...] = (
    ("Describe a lighthouse at night.", "light", "sea"),
    ("Explain how bees make honey.", "nectar", "hive"),
    ("Write a short letter to a landlord about a broken heating.", "heating", "cold"),
    ("Tell a story about a dog that gets lost in a market.", "dog", "owner"),
    ("Give advice to somebody who starts to learn the violin.", "practice", "teacher"),
    ("Describe the taste of a ripe mango.", "sweet", "juicy"),
    ("Explain why leaves change their colour in autumn.", "green", "chlorophyll"),
    ("Write a product description for a folding bicycle.", "bike", "easy"),
    ("Recommend three things to do on a rainy Sunday.", "book", "movie"),
    ("Explain what a library does for a small town.", "books", "community"),
    ("Write a welcome message for new members of a chess club.", "welcome", "chess"),
    ("Describe how to make a cup of tea.", "water", "boil"),
    ("Tell a child what thunder is.", "lightning", "sound"),
    ("Write an apology from a restaurant to a guest who waited too long.", "sorry", "wait"),
    ("Describe a busy railway station in the morning.", "train", "people"),
    ("Explain how a refrigerator keeps food cold.", "heat", "air"),
    ("Write a short speech for the retirement of a gardener.", "garden", "years"),
    ("Give tips for packing a suitcase.", "clothes", "bag"),
    ("Tell a story about two sisters who find an old key.", "key", "door"),
    ("Explain what inflation is to a teenager.", "money", "prices"),
    ("Write an invitation to a picnic in the park.", "food", "friends"),
    ("Describe a snow-covered village.", "snow", "white"),
    ("Explain why people should sleep enough.", "body", "health"),
    ("Write a review of a quiet hotel by a lake.", "lake", "room"),
    ("Give advice to a shy person before a job interview.", "confident", "questions"),
    ("Explain how a sail moves a boat.", "wind", "boat"),
    ("Describe your ideal kitchen.", "kitchen", "space"),
    ("Tell a story about a robot that learns to paint.", "robot", "art"),
    ("Write a note that asks a neighbour to feed a cat.", "cat", "food"),
    ("Explain what makes bread rise.", "yeast", "dough"),
    ("Describe the work of a firefighter.", "fire", "safety"),
    ("Give reasons to ride a bicycle to work.", "exercise", "traffic"),
    ("Write a short advertisement for a bakery.", "fresh", "bread"),
    ("Explain how to remove a stain of coffee.", "water", "cloth"),
    ("Tell a story about a letter that arrives late.", "letter", "time"),
    ("Describe a walk through a forest after rain.", "rain", "trees"),
    ("Explain what a museum guide does.", "visitors", "art"),
    ("Write a message to a team that has finished a long project.", "team", "work"),
    ("Give advice for a first day at a new school.", "new", "friends"),
    ("Explain why the sea is salty.", "salt", "rivers"),
    ("Describe an old clock in a hallway.", "time", "wood"),
    ("Write a complaint about a noisy construction site.", "noise", "morning"),
)
DEVELOPMENT_TASKS: tuple[tuple[str, str, str], ...] = (
    ("Describe a mountain hut in summer.", "mountain", "view"),
    ("Explain how a candle burns.", "wax", "flame"),
    ("Write a thank-you note to a doctor.", "thank", "care"),
    ("Tell a story about a fisherman and a bottle.", "bottle", "fish"),
    ("Give tips for growing tomatoes on a balcony.", "plants", "sun"),
    ("Describe a street market in the evening.", "people", "food"),
)
"""Tasks of the development questions. No sealed question uses them."""
NEW_TASKS: tuple[tuple[str, str, str], ...] = (
    ("Describe a harbour at dawn.", "boats", "water"),
    ("Explain how a bicycle stays upright.", "wheels", "balance"),
    ("Write a short letter to a teacher about a missed exam.", "exam", "sorry"),
    ("Tell a story about a fox that visits a school.", "fox", "children"),
    ("Give advice to somebody who begins to run.", "shoes", "slowly"),
    ("Describe the smell of freshly ground coffee.", "aroma", "rich"),
    ("Explain why the moon changes its shape.", "sun", "light"),
    ("Write a product description for a wooden chair.", "comfortable", "wood"),
    ("Recommend three ways to spend a long train journey.", "read", "music"),
    ("Explain what a post office does.", "letters", "mail"),
    ("Write a welcome message for guests of a small guesthouse.", "welcome", "stay"),
    ("Describe how to wash a woollen pullover.", "water", "gentle"),
    ("Tell a child what an echo is.", "sound", "wall"),
    ("Write an apology from a bus company for a long delay.", "delay", "bus"),
    ("Describe a crowded beach in August.", "sand", "people"),
    ("Explain how a thermometer works.", "temperature", "liquid"),
    ("Write a short speech for the opening of a swimming pool.", "pool", "community"),
    ("Give tips for sleeping in a tent.", "tent", "warm"),
    ("Tell a story about two brothers who build a raft.", "raft", "river"),
    ("Explain what a loan is to a child.", "money", "bank"),
    ("Write an invitation to a concert in a church.", "music", "church"),
    ("Describe an empty theatre.", "stage", "seats"),
    ("Explain why people wash their hands.", "germs", "soap"),
    ("Write a review of a loud restaurant by a road.", "food", "noise"),
    ("Give advice to somebody who moves to another country.", "language", "culture"),
    ("Explain how a kite flies.", "wind", "string"),
    ("Describe your ideal garden.", "flowers", "trees"),
    ("Tell a story about a clock that runs backwards.", "clock", "time"),
    ("Write a note that asks a colleague to water plants.", "plants", "water"),
    ("Explain what makes soap bubbles round.", "surface", "air"),
    ("Describe the work of a nurse.", "patients", "care"),
    ("Give reasons to learn a second language.", "language", "people"),
    ("Write a short advertisement for a flower shop.", "flowers", "fresh"),
    ("Explain how to clean a window.", "water", "cloth"),
    ("Tell a story about a suitcase that is exchanged by mistake.", "suitcase", "airport"),
    ("Describe a drive through a desert.", "sand", "road"),
    ("Explain what an orchestra conductor does.", "music", "musicians"),
    ("Write a message to a family after a long winter.", "spring", "family"),
    ("Give advice for a first visit to an opera.", "opera", "music"),
    ("Explain why ice floats on water.", "water", "dense"),
    ("Describe an old bridge in a village.", "stone", "bridge"),
    ("Write a complaint about a parcel that never arrived.", "parcel", "delivery"),
)
"""Tasks of the second study, written on 28 November 2026, before any member was asked them."""
EACH = 16
"""Sealed questions of each kind of rule."""
LETTERS = "kwpgbvfy"
PHRASES = (
    ("such as", "as well as"),
    ("in addition", "for example"),
    ("it is important", "make sure"),
    ("one day", "and then"),
)


def no_commas(task: tuple[str, str, str], number: int) -> Rule:
    return Rule("no commas", "Use no commas.", checks.forbids(","), lacks(","))


def lowercase(task: tuple[str, str, str], number: int) -> Rule:
    asked = "Write everything in small letters, without any capital letter."
    return Rule("lowercase", asked, checks.lowercase(), lacks("[A-Z]"))


def capitals(task: tuple[str, str, str], number: int) -> Rule:
    asked = "Write everything in capital letters, without any small letter."
    return Rule("capitals", asked, capitals_only, lacks("[a-z]"))


def forbidden_words(task: tuple[str, str, str], number: int) -> Rule:
    _, one, other = task
    pattern = rf"(?i)\b(?:{one}|{other})\b"
    asked = f"Do not use the words '{one}' and '{other}'."
    return Rule("forbidden words", asked, checks.forbids(pattern), lacks(pattern))


def forbidden_letter(task: tuple[str, str, str], number: int) -> Rule:
    letter = LETTERS[number % len(LETTERS)]
    pattern = f"[{letter}{letter.upper()}]"
    asked = f"Use no word that contains the letter '{letter}'."
    return Rule("forbidden letter", asked, checks.forbids(pattern), lacks(pattern))


def forbidden_phrases(task: tuple[str, str, str], number: int) -> Rule:
    one, other = PHRASES[number % len(PHRASES)]
    pattern = rf"(?i)\b(?:{one}|{other})\b"
    asked = f"Do not use the phrases '{one}' and '{other}'."
    return Rule("forbidden phrases", asked, checks.forbids(pattern), lacks(pattern))


def max_words(task: tuple[str, str, str], number: int) -> Rule:
    count = (25, 40, 60)[number % 3]
    return Rule(
        "max words",
        f"Use at most {count} words.",
        checks.max_words(count),
        lambda text: words_in(text) <= count,
        limits_length=True,
    )


def max_sentences(task: tuple[str, str, str], number: int) -> Rule:
    count = (1, 2, 3)[number % 3]
    asked = f"Write at most {count} sentences." if count > 1 else "Write a single sentence."
    return Rule(
        "max sentences",
        asked,
        checks.max_sentences(count),
        lambda text: len(sentences_in(text)) <= count,
        limits_length=True,
    )


def no_digits(task: tuple[str, str, str], number: int) -> Rule:
    asked = "Use no digits: write every number as a word. Mention at least two numbers."
    return Rule("no digits", asked, checks.forbids(r"\d"), lacks(r"\d"))


def no_marks(task: tuple[str, str, str], number: int) -> Rule:
    asked = "Use no colons, no exclamation marks and no parentheses."
    return Rule("no marks", asked, checks.forbids("[:!()]"), lacks("[:!()]"))


def prose(task: tuple[str, str, str], number: int) -> Rule:
    asked = "Write plain prose, without lists and headings."
    return Rule("plain prose", asked, plain_prose, lacks(r"(?m)^\s*(?:[-*•#]|\d+[.)])"))


def long_words(task: tuple[str, str, str], number: int) -> Rule:
    asked = "Use no word of more than ten letters."
    return Rule("no long words", asked, no_long_words, lacks(r"[^\W\d_]{11,}"))


def brief_sentences(task: tuple[str, str, str], number: int) -> Rule:
    asked = "No sentence may have more than twelve words."
    return Rule("short sentences", asked, short_sentences, lambda text: is_brief(text, 12))


def impersonal(task: tuple[str, str, str], number: int) -> Rule:
    pattern = r"(?i)\b(?:you|your|i|my|me)\b"
    asked = "Do not use the words 'you', 'your', 'I', 'my' and 'me'."
    return Rule("impersonal", asked, checks.forbids(pattern), lacks(pattern))


RULES = (
    *(no_commas, lowercase, capitals, forbidden_words, forbidden_letter, forbidden_phrases),
    *(max_words, max_sentences, no_digits, no_marks, prose, long_words, brief_sentences),
    impersonal,
)
PAIRS = (
    *((no_commas, forbidden_words), (lowercase, no_digits), (prose, max_words)),
    *((no_marks, brief_sentences), (forbidden_letter, no_commas), (long_words, impersonal)),
)
"""Rules that are asked for together."""


def case_of(name: str, task: str, *rules: Rule) -> Case:
    """A question with these rules."""
    asked = "\n".join([task, *(rule.asked for rule in rules)])
    kind = " + ".join(rule.kind for rule in rules)
    return _case(name, "two rules" if len(rules) > 1 else kind, asked, rules)


def _case(name: str, kind: str, asked: str, rules: tuple[Rule, ...]) -> Case:
    def grade(text: str) -> Grade:
        broken = [rule.kind for rule in rules if not rule.kept(text)]
        if not text.strip():
            broken = ["empty"]
        return Grade(not broken, ", ".join(broken))

    return Case(
        f"rules {name}",
        kind,
        asked,
        tuple(rule.check for rule in rules),
        grade,
        any(rule.limits_length for rule in rules),
    )


def templates(part: str, sealed: Sequence[tuple[str, str, str]] = TASKS) -> Iterator[Case]:
    """Our own questions. Every kind of rule is combined with different tasks. ``sealed``: the tasks
    of the sealed part."""
    tasks, count = (sealed, EACH) if part == SEALED else (DEVELOPMENT_TASKS, 1)
    label = "new" if tasks is NEW_TASKS else part
    kinds: list[tuple[Any, ...]] = [(rule,) for rule in RULES] + list(PAIRS)
    for position, kind in enumerate(kinds):
        repeats = count if len(kind) == 1 or part == DEVELOPMENT else count // 4
        for number in range(repeats):
            task = tasks[(5 * position + number) % len(tasks)]
            rules = [rule(task, number) for rule in kind]
            yield case_of(f"{label} {position}-{number}", task[0], *rules)


# --- IFEval ---------------------------------------------------------------------------------------


def published(folder: Path) -> Iterator[Case]:
    """The prompts of IFEval's even half with rules of this kind, and those rules."""
    for line in (folder / "ifeval-even.jsonl").read_text().splitlines():
        one = json.loads(line)
        names = one["instruction_id_list"]
        if EXAMINED_BEFORE & set(names):
            continue
        given = zip(names, one["kwargs"], strict=True)
        rules = [rule for name, values in given if (rule := _published_rule(name, values))]
        if rules:
            yield _case(f"ifeval {one['key']}", "ifeval", one["prompt"], tuple(rules))


def unopened(folder: Path) -> Iterator[Case]:
    """The prompts of IFEval's even half that no member has been asked and that have one of the
    rules that :func:`published` leaves out. Prompts that want themselves repeated cannot keep it."""
    asked = {case.text for case in published(folder)}
    for line in (folder / "ifeval-even.jsonl").read_text().splitlines():
        one = json.loads(line)
        names = one["instruction_id_list"]
        is_new = int(hashed(one["prompt"]), 16) % 3 == 1 and one["prompt"] not in asked
        if not is_new or "combination:repeat_prompt" in names:
            continue
        given = zip(names, one["kwargs"], strict=True)
        rules = [_examined_rule(name, values) for name, values in given if name in EXAMINED_BEFORE]
        if rules:
            yield _case(f"ifeval {one['key']}", "ifeval", one["prompt"], tuple(rules))


def _examined_rule(name: str, values: Mapping[str, Any]) -> Rule:
    """One of the rules of ``EXAMINED_BEFORE``."""
    if name == "punctuation:no_comma":
        return Rule(name, "", checks.forbids(","), lacks(","))
    if name == "change_case:english_lowercase":
        return Rule(name, "", checks.lowercase(), lacks("[A-Z]"))
    words = "|".join(map(re.escape, values["forbidden_words"]))
    pattern = rf"(?i)\b(?:{words})\b"
    return Rule(name, "", checks.forbids(pattern), lacks(pattern))


def _published_rule(name: str, values: Mapping[str, Any]) -> Rule | None:
    """Turn an instruction of IFEval into a rule. Returns None if it is not prefix-closed, or if
    every text of this study's length keeps it."""
    relation = [value for key, value in values.items() if key.endswith("relation")]
    if name == "change_case:english_capital":
        return Rule(name, "", capitals_only, lacks("[a-z]"))
    if relation != ["less than"]:
        return None
    if name == "length_constraints:number_words" and values["num_words"] <= MAX_TOKENS:
        most = values["num_words"] - 1
        check = checks.max_words(most)
        return Rule(name, "", check, lambda text: words_in(text) <= most, limits_length=True)
    if name == "length_constraints:number_sentences":
        few = FewSentences(values["num_sentences"])
        return Rule(name, "", few, lambda text: few(text) is None, limits_length=True)
    patterns = {
        "keywords:letter_frequency": (
            "let_frequency",
            f"(?i){re.escape(values.get('letter', ''))}",
        ),
        "keywords:frequency": ("frequency", rf"(?i)\b{values.get('keyword')}\b"),
        "change_case:capital_word_frequency": ("capital_frequency", r"\b[A-Z]+\b"),
    }
    if name not in patterns:
        return None
    key, pattern = patterns[name]
    fewer = FewerThan(values[key], pattern)
    return Rule(name, "", fewer, lambda text: fewer(text) is None)


def cases(part: str, folder: Path) -> list[Case]:
    """The questions of a part. One IFEval prompt in eight is a development question."""
    prompts = [case for case in published(folder) if part_of(case.text, 8) == part]
    return [*templates(part), *prompts]


def new_cases(part: str, folder: Path) -> list[Case]:
    """The questions of the second study. Its development questions are those of the first."""
    if part == DEVELOPMENT:
        return cases(part, folder)
    return [*templates(part, NEW_TASKS), *unopened(folder)]
