"""Long texts that a rule can grade: facts far back, sums in many steps, stories with planted facts.

The rules read words, no meaning: they see a wrong age, a brother with another name, a step that does not add up, and
text that was said before. Knows texts; nothing of members.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

from langchain_specfuse.core.values import Turn
from langchain_specfuse.evaluation import Grade, Question, Task
from langchain_specfuse.evaluation.checkers import contains

SAID_AGAIN = 6
"""Words in a row that come a second time in one answer count as said again."""


def said_again(text: str) -> float:
    """The share of runs of six words that the text had said before.

    >>> said_again("one two three four five six"), said_again("na " * 12)
    (0.0, 0.8571428571428571)
    """
    words = text.split()
    runs = [tuple(words[at : at + SAID_AGAIN]) for at in range(len(words) - SAID_AGAIN + 1)]
    return 1 - len(set(runs)) / len(runs) if runs else 0.0


# --- a fact far back ----------------------------------------------------------------------------------------------

PLACES = ("harbour", "market", "station", "school", "river", "bakery", "museum", "bridge")
WEATHER = ("quiet in the morning", "full of people", "wet after the rain", "closed until noon", "bright and cold")
PLANTED = (
    ("The ship's cat is called Pepper.", "What is the ship's cat called?", "Pepper"),
    ("The code of the blue door is 4172.", "What is the code of the blue door?", "4172"),
    ("Mrs. Lindqvist keeps the spare key.", "Who keeps the spare key?", "Lindqvist"),
    ("The treasure lies under the old oak.", "Under what does the treasure lie?", "oak"),
    ("The meeting takes place in Lisbon.", "Where does the meeting take place?", "Lisbon"),
    ("The captain's favourite drink is cocoa.", "What is the captain's favourite drink?", "cocoa"),
    ("The lighthouse has 212 steps.", "How many steps does the lighthouse have?", "212"),
    ("The doctor's name is Amara.", "What is the doctor's name?", "Amara"),
)


def diary(days: int, chance: random.Random) -> str:
    """So many days on which nothing happens.

    >>> diary(1, random.Random(1))
    'Day 1: the market was closed until noon.'
    """
    told = (f"Day {day}: the {chance.choice(PLACES)} was {chance.choice(WEATHER)}." for day in range(1, days + 1))
    return " ".join(told)


def recall(days: int = 80) -> Task:
    """One planted fact, then a diary, then the question."""

    def questions() -> Iterator[Question]:
        for at, (fact, asked, reference) in enumerate(PLANTED):
            text = f"{fact}\n\n{diary(days, random.Random(at))}\n\nQuestion: {asked}"
            yield Question(f"{at:02d}", (Turn("user", text),), reference)

    return Task("recall", tuple(questions()), contains, "recall 1", max_tokens=24)


# --- sums in steps --------------------------------------------------------------------------------------------------

_STEP = re.compile(r"(\d+)\s*\+\s*(\d+)\s*=\s*(\d+)")
STEPS = 10


def steps(count: int = 12) -> Task:
    """Add a number ten times, one line a step."""

    def question(at: int) -> Question:
        start, add = 2 + 3 * at % 11, 2 + at % 4
        shown = f"{start} + {add} = {start + add}"
        text = (
            f"Start with {start} and add {add}, ten times. Write one line for each step, each beginning with the last "
            f"result. The first line is: {shown}"
        )
        return Question(f"{at:02d}", (Turn("user", text),), [start, add])

    questions = tuple(question(at) for at in range(count))
    return Task("steps", questions, steps_right, "steps 1", max_tokens=128, graded=True, measure="share of steps right")


def steps_right(question: Question, answer: str) -> Grade:
    """The share of the ten steps that are right before the first wrong one.

    >>> steps_right(Question("1", (Turn("user", ""),), [1, 2]), "1 + 2 = 3\\n3 + 2 = 5\\n5 + 2 = 8").score
    0.2
    """
    value, add = question.reference
    good = 0
    for left, right, result in (map(int, found) for found in _STEP.findall(answer)):
        if (left, right, result) != (value, add, value + add):
            break
        value, good = result, good + 1
    return Grade(min(good, STEPS) / STEPS)


# --- stories --------------------------------------------------------------------------------------------------------

HEROES = (
    ("Maya", 34, "Otto", "brother", "green", "Bergen"),
    ("Viktor", 61, "Irene", "sister", "yellow", "Porto"),
    ("Salma", 19, "Karim", "cousin", "red", "Malta"),
    ("Jonas", 45, "Frieda", "neighbour", "blue", "Zurich"),
)
COLOURS = ("green", "yellow", "red", "blue", "black", "white", "brown", "grey", "purple", "pink", "orange")


def stories(tokens: int = 1000) -> Task:
    """A long story about somebody of whom four things are told."""

    def question(hero: tuple[str, int, str, str, str, str]) -> Question:
        name, age, other, tie, colour, town = hero
        text = (
            f"{name} is {age} years old and lives in {town}. The name of {name}'s {tie} is {other}. {name} always "
            f"wears a {colour} coat. Write a very long story, in many chapters, about a journey of {name} and {other}."
        )
        return Question(name, (Turn("user", text),), list(hero))

    told = "share of planted facts kept to"
    questions = tuple(map(question, HEROES))
    return Task("stories", questions, facts_kept, "stories 1", max_tokens=tokens, graded=True, measure=told)


def facts_kept(question: Question, answer: str) -> Grade:
    """Four facts: who it is about (still named in the last quarter), age, tie and coat (never told otherwise)."""
    name, age, other, tie, colour, _ = question.reference
    ages = {int(found) for found in re.findall(r"\b(\d{1,3})[- ]years?[- ]old", answer)}
    ties = set(re.findall(rf"\b{tie}(?:'s name (?:is|was)|,| named| called)? ([A-Z][a-z]+)", answer))
    coats = set(re.findall(rf"\b({'|'.join(COLOURS)}) coat", answer, re.I))
    parts = {
        "named to the end": name in answer[-len(answer) // 4 :],
        "age": ages <= {age},
        "tie": ties <= {other, name},
        "coat": {coat.lower() for coat in coats} <= {colour},
    }
    return Grade(sum(parts.values()) / len(parts), parts, {"said again": said_again(answer)})
