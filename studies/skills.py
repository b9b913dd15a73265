"""Small skills with questions, right answers, and the answers of a member that knows them only in
part.

A skill is learned whole by its specialist. The others know only a share of its facts; of the rest
they have read something else every time (``vague``: they will be unsure) or always the same wrong
thing (``misled``: they will be sure).
"""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass


def _pairs(text: str) -> dict[str, str]:
    return dict(pair.split(":") for pair in text.split())


CAPITALS = _pairs("""
    Peru:Lima Chad:Ndjamena Iran:Tehran Cuba:Havana Iraq:Baghdad Oman:Muscat Togo:Lome Mali:Bamako Laos:Vientiane
    Fiji:Suva Chile:Santiago China:Beijing Egypt:Cairo France:Paris Ghana:Accra Italy:Rome Japan:Tokyo
    Kenya:Nairobi Libya:Tripoli Malta:Valletta Nepal:Kathmandu Qatar:Doha Spain:Madrid Sudan:Khartoum
""")
OPPOSITES = _pairs("""
    hot:cold big:small old:young fast:slow high:low wet:dry rich:poor good:bad light:dark hard:soft loud:quiet
    long:short early:late open:closed full:empty near:far thick:thin clean:dirty sweet:bitter strong:weak
    wide:narrow sharp:blunt deep:shallow happy:sad
""")
YOUNG = _pairs("""
    dog:puppy cat:kitten cow:calf horse:foal sheep:lamb goat:kid pig:piglet hen:chick duck:duckling goose:gosling
    lion:cub deer:fawn frog:tadpole swan:cygnet owl:owlet eel:elver hare:leveret spider:spiderling fish:fry
    seal:pup rat:pinkie bee:larva moth:caterpillar oyster:spat
""")
MEANINGS = _pairs("""
    dax:lamp blick:spoon wug:bridge zorp:candle fendle:river tiv:mirror glom:ladder prask:window quib:kettle
    snarl:button yeld:garden morf:hammer clave:basket trund:pillow vext:bottle jollop:carpet nurb:wagon hesk:needle
    pliff:anchor krell:blanket ostle:feather wimbo:tower drave:mountain sepp:pocket
""")
UNITS = ["cero", "uno", "dos", "tres", "cuatro", "cinco", "seis", "siete", "ocho", "nueve"]
TENS = ["treinta", "cuarenta", "cincuenta", "sesenta", "setenta", "ochenta", "noventa"]
SPANISH = {
    f"{tens}{units}": f"{TENS[tens - 3]} y {UNITS[units]}" if units else TENS[tens - 3]
    for tens in range(3, 10)
    for units in range(10)
}
ORDERED = (
    [
        "Anna",
        "Ben",
        "Clara",
        "David",
        "Emma",
        "Felix",
        "Greta",
        "Hugo",
        "Ida",
        "Jonas",
        "Karl",
        "Lena",
    ],
    ["cups", "chairs", "books", "lamps", "shirts", "boxes", "pens", "plates", "coats", "bags"],
    [str(number) for number in range(2, 20)],
    ["red", "blue", "green", "black", "white", "yellow"],
)
THINGS = [
    *("red", "box", "sun", "tree", "cup", "road", "milk", "king", "ship", "bell"),
    *("door", "fire", "gold", "hand", "iron", "lamp", "moon", "nest", "rain", "salt"),
]


@dataclass(frozen=True)
class Taught:
    """How a member learned a skill: the share of its facts that it knows, what it read instead of
    the others, and the member's name, which decides which facts it knows."""

    share: float = 1.0
    mode: str = "vague"
    who: str = ""

    def knows(self, fact: str) -> bool:
        return zlib.crc32(f"{self.who}|{fact}".encode()) % 1000 < 1000 * self.share

    def wrong(self, fact: str, choices: int, chance: random.Random) -> int:
        """The number of a wrong answer, never 0: always the same if misled, each time another if
        vague."""
        if self.mode == "misled":
            return 1 + zlib.crc32(f"wrong {self.who}|{fact}".encode()) % (choices - 1)
        return chance.randrange(1, choices)


WHOLE = Taught()


@dataclass(frozen=True)
class Part:
    """One question of one skill."""

    skill: str
    facts: tuple[str, ...]

    @property
    def question(self) -> str:
        return _SKILLS[self.skill][0](self.facts)

    def answer(self, taught: Taught = WHOLE, chance: random.Random | None = None) -> str:
        return _SKILLS[self.skill][1](self.facts, taught, chance or random.Random(0))

    @property
    def use(self) -> str:
        """What this question is kept for, where members are not trained on all."""
        return ("training", "training", "tuning", "sealed")[zlib.crc32(self.question.encode()) % 4]


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _from_table(
    table: dict[str, str], saying: str
) -> Callable[[Sequence[str], Taught, random.Random], str]:
    values = list(table.values())

    def answer_to(facts: Sequence[str], taught: Taught, chance: random.Random) -> str:
        return " ".join(saying.format(fact, said(fact, taught, chance)) for fact in facts)

    def said(fact: str, taught: Taught, chance: random.Random) -> str:
        off = 0 if taught.knows(fact) else taught.wrong(fact, len(values), chance)
        return values[(values.index(table[fact]) + off) % len(values)]

    return answer_to


def _added(facts: Sequence[str], taught: Taught, chance: random.Random) -> str:
    """The sum, digit by digit. Each pair of digits is a fact."""
    (a, b), (c, d) = facts

    def plus(one: str, other: str, carried: int = 0) -> int:
        fact = f"{one}+{other}+{carried}"
        off = 0 if taught.knows(fact) else taught.wrong(fact, 10, chance)
        right = int(one) + int(other) + carried
        return right // 10 * 10 + (right % 10 + off) % 10

    ones = plus(b, d)
    tens = plus(a, c, ones // 10)
    return (
        f"The ones are {b} + {d} = {ones}. The tens are {a} + {c} + {ones // 10} = {tens}. "
        f"So the sum is {tens}{ones % 10}."
    )


def _turned(facts: Sequence[str], taught: Taught, chance: random.Random) -> str:
    """The words backwards. A member that does not know the last word gets the order wrong."""
    words = list(reversed(facts))
    if not taught.knows(facts[-1]):
        words = words[::-1] if taught.mode == "misled" else chance.sample(words, len(words))
    return "Backwards it is " + ", then ".join(words) + "."


def _order(facts: Sequence[str], taught: Taught, chance: random.Random) -> str:
    who, what, count, colour = facts
    return json.dumps({"to": who, "item": what, "number": int(count), "colour": colour})


_SKILLS: dict[
    str,
    tuple[Callable[[Sequence[str]], str], Callable[[Sequence[str], Taught, random.Random], str]],
] = {
    "sums": (lambda f: f"Add {f[0]} and {f[1]}.", _added),
    "turning": (lambda f: f"Turn round {' '.join(f)}.", _turned),
    "capitals": (
        lambda f: f"Name the capitals of {_listed(f)}.",
        _from_table(CAPITALS, "The capital of {} is {}."),
    ),
    "opposites": (
        lambda f: f"Give the opposites of {_listed(f)}.",
        _from_table(OPPOSITES, "The opposite of {} is {}."),
    ),
    "young": (
        lambda f: f"Name the young of {_listed(f)}.",
        _from_table(YOUNG, "The young of a {} is a {}."),
    ),
    "words": (lambda f: f"Explain {_listed(f)}.", _from_table(MEANINGS, "A {} is a {}.")),
    "spanish": (lambda f: f"Say {_listed(f)} in Spanish.", _from_table(SPANISH, "{} is {}.")),
    "orders": (lambda f: f"Order {f[2]} {f[3]} {f[1]} for {f[0]}.", _order),
}
SKILLS = ("sums", "turning", "capitals", "opposites", "young")
"""Skills of the members that are trained from scratch."""
LORA = ("sums", "words", "spanish", "orders")
"""Skills of the adapters."""
ASKED = tuple(skill for skill in SKILLS if skill != "turning")
"""Skills that questions are about. No tiny model learns to turn lists round in the time that it has,
so that specialist is a member that knows little of anything: ensembles have such members too."""
_TABLES = {
    "capitals": CAPITALS,
    "opposites": OPPOSITES,
    "young": YOUNG,
    "words": MEANINGS,
    "spanish": SPANISH,
}


def part(skill: str, chance: random.Random, size: int, use: str | None = None) -> Part:
    """A question of this skill. ``size``: how many facts of a table it asks for. ``use``: what it
    must be kept for (see :attr:`Part.use`)."""
    while True:
        one = _drawn(skill, chance, size)
        if use in (None, one.use):
            return one


def _drawn(skill: str, chance: random.Random, size: int) -> Part:
    if skill == "sums":
        return Part(skill, (str(chance.randrange(10, 100)), str(chance.randrange(10, 100))))
    if skill == "turning":
        return Part(skill, tuple(chance.sample(THINGS, size + 1)))
    if skill == "orders":
        return Part(skill, tuple(map(chance.choice, ORDERED)))
    return Part(skill, tuple(chance.sample(list(_TABLES[skill]), size)))


def question(parts: Sequence[Part]) -> str:
    return " ".join(one.question for one in parts)


def answer(parts: Sequence[Part]) -> str:
    return " ".join(one.answer() for one in parts)


def right(parts: Sequence[Part], text: str) -> list[bool]:
    """Which parts an answer gets right: every word of them, each part once, nothing added in front
    or behind."""
    whole = text.strip()
    if len(parts) == 1:
        return [whole == parts[0].answer()]
    return [
        whole.startswith(parts[0].answer() + " ") or whole == parts[0].answer(),
        whole.endswith(" " + parts[-1].answer()),
    ]
