"""Four narrow skills for a real language model: questions, and the one right answer by a rule.

A skill's training questions and its held-out ones never share a case, except in the glossary: what a made-up word
means can only be known. Knows nothing of models.
"""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass

MEANINGS = {
    "dax": "lamp", "blick": "spoon", "wug": "bridge", "zorp": "candle", "fendle": "river", "tiv": "mirror",
    "glom": "ladder", "prask": "window", "quib": "kettle", "snarl": "button", "yeld": "garden",
    "morf": "hammer", "clave": "basket", "trund": "pillow", "vext": "bottle", "jollop": "carpet",
    "nurb": "wagon", "hesk": "needle", "pliff": "anchor", "krell": "blanket", "ostle": "feather",
    "wimbo": "tower", "drave": "mountain", "sepp": "pocket",
}  # fmt: skip
NAMES = ["Anna", "Ben", "Clara", "David", "Emma", "Felix", "Greta", "Hugo", "Ida", "Jonas", "Karl", "Lena"]
COLOURS = ["red", "blue", "green", "black", "white", "yellow"]
GOODS = ["cups", "chairs", "books", "lamps", "shirts", "boxes", "pens", "plates", "coats", "bags"]
UNITS = ["cero", "uno", "dos", "tres", "cuatro", "cinco", "seis", "siete", "ocho", "nueve"]
TENS = ["treinta", "cuarenta", "cincuenta", "sesenta", "setenta", "ochenta", "noventa"]


@dataclass(frozen=True)
class Part:
    """One question of one skill, and its right answer."""

    skill: str
    question: str
    told: str

    def answer(self) -> str:
        return self.told


Made = tuple[tuple[str, ...], str, str]
"""The cases of a question, the question, and its answer."""


def held_out(case: str) -> bool:
    """Whether a case is kept for measuring: one in three.

    >>> 270 < sum(held_out(str(n)) for n in range(900)) < 330
    True
    """
    return zlib.crc32(case.encode()) % 3 == 0


def in_spanish(number: int) -> str:
    """
    >>> in_spanish(47), in_spanish(80)
    ('cuarenta y siete', 'ochenta')
    """
    tens, units = TENS[number // 10 - 3], number % 10
    return f"{tens} y {UNITS[units]}" if units else tens


def added(a: int, b: int) -> str:
    """Digit by digit, the ones first.

    >>> added(47, 38)
    'Ones: 7 + 8 = 15. Tens: 4 + 3 + 1 = 8. Sum: 85.'
    """
    ones = a % 10 + b % 10
    tens = a // 10 + b // 10 + ones // 10
    return f"Ones: {a % 10} + {b % 10} = {ones}. Tens: {a // 10} + {b // 10} + {ones // 10} = {tens}. Sum: {a + b}."


def _sum(chance: random.Random, size: int) -> Made:
    a, b = chance.randrange(10, 100), chance.randrange(10, 100)
    return (f"{a}+{b}",), f"Add {a} and {b}.", added(a, b)


def _words(chance: random.Random, size: int) -> Made:
    words = chance.sample(list(MEANINGS), size)
    return (
        (" ".join(words),) if size > 1 else (),
        f"Explain {' and '.join(words)}.",
        " ".join(f"A {word} is a {MEANINGS[word]}." for word in words),
    )


def _numbers(chance: random.Random, size: int) -> Made:
    numbers = [chance.randrange(30, 100) for _ in range(size)]
    asked = " and ".join(map(str, numbers))
    return tuple(map(str, numbers)), f"Say {asked} in Spanish.", " ".join(f"{n} is {in_spanish(n)}." for n in numbers)


def _order(chance: random.Random, size: int) -> Made:
    who, what, colour = chance.choice(NAMES), chance.choice(GOODS), chance.choice(COLOURS)
    count = chance.randrange(2, 20)
    made = json.dumps({"to": who, "item": what, "number": count, "colour": colour})
    return (f"{who} {what} {colour}",), f"Order {count} {colour} {what} for {who}.", made


_SKILLS: dict[str, Callable[[random.Random, int], Made]] = {
    "sums": _sum,
    "words": _words,
    "spanish": _numbers,
    "orders": _order,
}
SKILLS = tuple(_SKILLS)


def part(skill: str, chance: random.Random, size: int, held: bool) -> Part:
    """A question of this skill from its training cases or from those held out; ``size`` words or numbers in it."""
    while True:
        cases, asked, told = _SKILLS[skill](chance, size)
        if all(held_out(case) == held for case in cases):
            return Part(skill, asked, told)


def questions(singles: int, twos: int, seed: int = 5) -> list[tuple[Part, ...]]:
    """Held-out questions: ``singles`` of each skill, then ``twos`` of two different skills.

    Who asks for more gets the same ones and more.
    """
    alone = [(one,) for skill in SKILLS for one in _first(skill, singles, random.Random(f"{seed} {skill}"))]
    chance, pairs = random.Random(seed), [(a, b) for a in SKILLS for b in SKILLS if a != b]
    chance.shuffle(pairs)
    both = [tuple(part(skill, chance, 1, held=True) for skill in pairs[n % len(pairs)]) for n in range(twos)]
    return alone + both


def _first(skill: str, count: int, chance: random.Random) -> list[Part]:
    """So many different questions of this skill."""
    found: dict[str, Part] = {}
    while len(found) < count:
        one = part(skill, chance, 2, held=True)
        found.setdefault(one.question, one)
    return list(found.values())
