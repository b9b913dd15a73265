"""Sources: questions about short texts with numbers, made by this script. Some ask for a number that
the text does not have, others for a notice with the details of the text.

The check is ``checks.grounded()``. The grade looks for numbers by itself: those of the answer that
neither the text nor the question has are faults.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from cases import SEALED, Case, Grade

from langchain_specfuse import checks

MAX_TOKENS = 128
EACH = 16
"""How often each template of a text is filled in."""

NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
MARKER = re.compile(r"(?m)^\s*\d+[.)](?=\s)")
NOT_SAID = re.compile(
    r"(?i)\b(?:not|n't|no|never|cannot|without|unknown|unclear|unspecified|unavailable)\b|n't\b"
)


def numbers_in(text: str) -> list[str]:
    """The numbers of a text, without separators of thousands and the markers of lists.

    >>> numbers_in("1. It cost 1,250 euros, or 3.50 each")
    ['1250', '3.5']
    """
    return [normal(found) for found in NUMBER.findall(MARKER.sub("", text))]


def normal(number: str) -> str:
    """The usual form of a number.

    >>> normal("1,250"), normal("3.50"), normal("007")
    ('1250', '3.5', '7')
    """
    if re.fullmatch(r"\d{1,3}(?:[,.]\d{3})+", number):
        return re.sub("[,.]", "", number)
    whole, _, rest = number.replace(",", ".").partition(".")
    rest = rest.rstrip("0")
    return f"{int(whole)}.{rest}" if rest else str(int(whole))


def grade(known: frozenset[str], kind: str, reference: str, answer: str) -> Grade:
    """Right if no number of the answer is foreign to text and question, and the answer has the
    number that was asked for, or says that the text does not have it, or has two numbers of the
    text where a notice was asked for."""
    found = numbers_in(answer)
    faults = sum(number not in known for number in found)
    if faults:
        return Grade(False, "ungrounded", faults)
    if kind == "absent":
        is_right = NOT_SAID.search(answer) is not None
    elif kind == "notice":
        is_right = len(set(found)) >= 2
    else:
        is_right = normal(reference) in found
    return Grade(is_right, "" if is_right else "wrong")


# --- texts ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Template:
    """A text with places for names and numbers, and what may be asked about it."""

    kind: str
    text: str
    numbers: Mapping[str, tuple[int, int]]
    """name -> the range of its values."""
    asked: Mapping[str, str]
    """name -> the question that asks for it."""
    absent: Sequence[str]
    """Questions that the text does not answer."""
    notice: str
    """A request for a longer text, whose numbers can come from the text only."""


PLACES = (
    *("Norwick", "Altmere", "Sandholm", "Brackley", "Tarnby", "Elverum", "Kesten", "Marlow"),
    *("Ostrava Bay", "Pellworm", "Rosenau", "Velden", "Wexcombe", "Yarrow", "Zandvoort", "Corvale"),
)
TEMPLATES = (
    Template(
        "museum",
        "The maritime museum of {place} opened in {year}. It shows {ships} model ships in {rooms} "
        "rooms. A ticket costs {price} euros. Last year {visitors} people came to see it.",
        {
            "year": (1870, 1995),
            "ships": (110, 490),
            "rooms": (6, 28),
            "price": (7, 19),
            "visitors": (21000, 98000),
        },
        {
            "year": "In which year did the museum open?",
            "ships": "How many model ships does the museum show?",
            "price": "How much is a ticket?",
            "visitors": "How many visitors did the museum have last year?",
        },
        (
            "How many people work in the museum?",
            "How many minutes does a guided tour take?",
            "How much is a ticket for a child?",
        ),
        "Write a notice for tourists about the museum, with all details that they need for a visit.",
    ),
    Template(
        "train",
        "The night train from {place} leaves at platform {platform}. It has {cars} cars and "
        "{beds} beds. The journey of {distance} kilometres takes {hours} hours, with {stops} "
        "stops on the way.",
        {
            "platform": (2, 19),
            "cars": (7, 16),
            "beds": (120, 380),
            "distance": (610, 1490),
            "hours": (8, 15),
            "stops": (3, 9),
        },
        {
            "platform": "From which platform does the train leave?",
            "beds": "How many beds does the train have?",
            "distance": "How many kilometres long is the journey?",
            "hours": "How many hours does the journey take?",
        },
        (
            "What does a bed in the train cost?",
            "How fast does the train go at most, in kilometres per hour?",
            "In which year did the train run for the first time?",
        ),
        "Write a notice for travellers about this train, with all details that they need.",
    ),
    Template(
        "company",
        "{place} Tools was founded in {year} and makes pumps. It employs {people} people, "
        "{apprentices} of them apprentices. In the last year it sold {pumps} pumps and earned "
        "{million} million euros.",
        {
            "year": (1921, 1998),
            "people": (140, 890),
            "apprentices": (11, 46),
            "pumps": (3100, 9900),
            "million": (12, 85),
        },
        {
            "year": "When was the company founded?",
            "people": "How many people does the company employ?",
            "apprentices": "How many apprentices does the company have?",
            "pumps": "How many pumps were sold in the last year?",
        },
        (
            "How many people did the company employ ten years ago?",
            "What does a pump of the company weigh, in kilograms?",
            "How old is the founder of the company?",
        ),
        "Write a paragraph for a business magazine about the company, with its history and figures.",
    ),
    Template(
        "lake",
        "Lake {place} lies {height} metres above the sea. It is {length} kilometres long and up to "
        "{depth} metres deep. {islands} islands lie in it, and {species} species of fish live "
        "there.",
        {
            "height": (210, 1890),
            "length": (11, 64),
            "depth": (34, 290),
            "islands": (3, 19),
            "species": (21, 58),
        },
        {
            "height": "How high above the sea does the lake lie?",
            "length": "How long is the lake?",
            "depth": "How deep is the lake at most?",
            "species": "How many species of fish live in the lake?",
        },
        (
            "How warm is the water of the lake in July?",
            "How many people live at the lake?",
            "How wide is the lake?",
        ),
        "Write a paragraph for a travel guide about the lake, with figures.",
    ),
    Template(
        "recipe",
        "For the bread of {place} you need {flour} grams of flour, {water} grams of water and "
        "{salt} grams of salt. The dough rests for {rest} minutes and is baked at {heat} degrees "
        "for {bake} minutes.",
        {
            "flour": (450, 950),
            "water": (280, 440),
            "salt": (8, 19),
            "rest": (70, 190),
            "heat": (205, 265),
            "bake": (27, 58),
        },
        {
            "flour": "How much flour does the bread need?",
            "salt": "How many grams of salt does the bread need?",
            "rest": "How long does the dough rest?",
            "heat": "At how many degrees is the bread baked?",
        },
        (
            "How many calories does a slice have?",
            "How much yeast does the bread need?",
            "For how many days does the bread stay fresh?",
        ),
        "Write the recipe as steps for a beginner, with all amounts and times.",
    ),
    Template(
        "election",
        "In the election in {place}, {voters} people voted. Ms Arden won with {first} percent; Mr "
        "Bell got {second} percent. The council has {seats} seats, and its term ends in {end}.",
        {
            "voters": (12000, 79000),
            "first": (41, 58),
            "second": (22, 39),
            "seats": (21, 59),
            "end": (2029, 2033),
        },
        {
            "voters": "How many people voted?",
            "first": "What share of the votes did Ms Arden get?",
            "second": "How many percent did Mr Bell get?",
            "seats": "How many seats does the council have?",
        },
        (
            "How old is Ms Arden?",
            "How many candidates were there?",
            "How many people were allowed to vote?",
        ),
        "Write a report for the local newspaper about the election, with figures.",
    ),
)
HINTS = (
    "Answer in one or two sentences.",
    "Answer in one or two sentences, from the text. If the text does not say it, say so.",
)


def filled(template: Template, chance: random.Random) -> tuple[str, dict[str, str]]:
    """The text with names and numbers, and the numbers. All are different."""
    values: dict[str, str] = {}
    while len(set(values.values())) < len(template.numbers):
        for name, (low, high) in template.numbers.items():
            number = chance.randint(low, high)
            values[name] = f"{number:,}" if number >= 10000 else str(number)
    return template.text.format(place=chance.choice(PLACES), **values), values


def asked(template: Template, number: int, chance: random.Random) -> Iterator[Case]:
    """Three questions about one text: one that it answers, one that it does not, and a notice."""
    part = "sealed" if number >= 0 else "tried"
    text, values = filled(template, chance)
    name = chance.choice(list(template.asked))
    hint = HINTS[number % 2]
    absent = chance.choice(template.absent)
    questions = {
        "lookup": (f"{template.asked[name]} {hint}", values[name]),
        "absent": (f"{absent} {hint}", ""),
        "notice": (template.notice, ""),
    }
    for kind, (question, reference) in questions.items():
        prompt = f"{text}\n\n{question}"
        known = frozenset(numbers_in(prompt))
        yield Case(
            f"sources {part} {template.kind} {number} {kind}",
            kind,
            prompt,
            (checks.grounded(),),
            partial(grade, known, kind, reference),
            limits_length=True,
        )


def cases(part: str, folder: object = None) -> list[Case]:
    """The questions of a part: sealed and tried texts have other numbers."""
    numbers = range(EACH) if part == SEALED else range(-2, 0)
    chance = random.Random(f"sources {part}")
    return [
        case
        for template in TEMPLATES
        for number in numbers
        for case in asked(template, number, chance)
    ]
