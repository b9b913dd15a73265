"""docs/study-tuned.md from benchmarks/tuned.json: every number on the page is one that the script measured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from study_page import mixed, paired, parts_right, share, single, table, whole
from tuned_skills import SKILLS

from langchain_specfuse.core import panel, voting

World = dict[str, Any]


def of_skill(skill: str) -> Callable[[str], bool]:
    return lambda kind: kind == skill


def alone(world: World) -> list[str]:
    return [name for name in world["cells"] if name.startswith("alone ")]


def best_member(world: World, wanted: Callable[[str], bool]) -> str:
    """The cell of the one member that answers the most of these questions."""
    return max(alone(world), key=lambda name: sum(whole(world, name, wanted)))


def by_router(world: World) -> list[bool]:
    """Every single question as its own specialist, alone, got it: what a perfect router would reach."""
    pairs = enumerate(world["kinds"])
    return [world["cells"][f"alone {kind}"]["marks"][n] == "1" for n, kind in pairs if single(kind)]


def over_best(world: World, name: str, wanted: Callable[[str], bool]) -> str:
    return paired(whole(world, name, wanted), whole(world, best_member(world, wanted), wanted))


def parts_over_best(world: World, name: str) -> str:
    best = max(alone(world), key=lambda one: sum(parts_right(world, one)))
    return paired(parts_right(world, name), parts_right(world, best))


def rows_of_sets(world: World) -> list[list[str]]:
    """Who answers what: every member alone, and the ensemble."""

    def row(name: str, title: str) -> list[str]:
        sets = [share(whole(world, name, wanted)) for wanted in (*map(of_skill, SKILLS), single)]
        return [title, *sets, share(parts_right(world, name)), share(whole(world, name, mixed))]

    told = [row(name, name.replace("alone ", "alone: ")) for name in alone(world)]
    return [*told, row("defaults", "**ensemble, defaults**")]


def rows_over_best(world: World) -> list[list[str]]:
    """Points over whichever single member is best on that set."""
    return [
        [
            "defaults" if name == "defaults" else f"`{name}`",
            *(over_best(world, name, of_skill(skill)) for skill in SKILLS),
            over_best(world, name, single),
            parts_over_best(world, name),
        ]
        for name in together(world)
    ]


def together(world: World) -> list[str]:
    return [name for name in world["cells"] if name not in alone(world)]


def rows_of_cells(world: World) -> list[list[str]]:
    singles = [kind for kind in world["kinds"] if single(kind)]

    def row(name: str) -> list[str]:
        cell = world["cells"][name]
        return [
            "defaults" if name == "defaults" else f"`{name}`",
            share(whole(world, name, single)),
            paired(whole(world, name, single), whole(world, "defaults", single)),
            paired(whole(world, name, single), by_router(world)),
            share(parts_right(world, name)),
            share([mark == "1" for mark in cell["opened"]]),
            "{} of {}, {} of {}".format(*_after(world, name)),
            share([mark == "1" for mark in cell["leads"]]),
            f"{cell['members_a_round']:.2f}",
            f"{cell['specialist_left']} of {len(singles)}",
        ]

    return [row(name) for name in together(world)]


def _after(world: World, name: str) -> tuple[int, int, int, int]:
    """How many answers are right whose first segment the specialist wrote, of how many; and of the others."""
    pairs = list(zip(whole(world, name, single), world["cells"][name]["opened"], strict=True))
    own, others = [hit for hit, mark in pairs if mark == "1"], [hit for hit, mark in pairs if mark == "0"]
    return sum(own), len(own), sum(others), len(others)


SETS = ["", *SKILLS, "all single (mixed set)", "parts of two-part questions", "two-part questions"]
OVER = ["settings", *SKILLS, "mixed set", "parts of two-part questions"]
CELLS = ["settings", "mixed set right", "points over defaults", "points over a perfect router", "parts right",
         "specialist wrote the first segment", "right if it did, if not",
         "specialist leads in 4", "members a round", "specialist left"]  # fmt: skip


def rows_of_first(world: World) -> list[list[str]]:
    titles = {"specialist": "the question's specialist", "other": "another specialist", "plain": "the untuned model"}
    told = world["cells"]["defaults"]["first_rounds"]
    keys = ("writer", "others", "plain", "total", "reward")
    return [[titles[role], *(f"{row[key]:.2f}" for key in keys)] for role, row in told.items()]


def rows_of_training(world: World) -> list[list[str]]:
    return [
        [skill, *(f"{told[key]:,}" for key in ("steps", "examples", "answer_tokens"))]
        for skill, told in world["training"].items()
    ]


def page(results: dict[str, World]) -> str:
    text = [INTRODUCTION]
    for mode, (title, told) in TITLES.items():
        if "defaults" in results.get(mode, {}).get("cells", {}):
            others = {name: world for name, world in results.items() if name.partition("-")[0] == mode}
            text += [f"## {title}", told, *_told(results[mode]), *_umpired(others)]
    notes = Path(__file__).with_name("tuned_notes.md")
    if notes.exists():
        text.append(notes.read_text().strip())
    return "\n\n".join(text) + "\n"


def _told(world: World) -> list[str]:
    return [
        SETTINGS.format(**world),
        table(["specialist", "steps", "examples", "answer tokens"], rows_of_training(world)),
        "### Who answers what",
        table(SETS, rows_of_sets(world)),
        "### Against the best member of each set",
        "Points over the member that is best on that set, with a paired bootstrap interval.",
        table(OVER, rows_over_best(world)),
        "### What happens in the first round",
        FIRST,
        table(FIRSTS, rows_of_first(world)),
        "### What else changes",
        CHANGES,
        table(CELLS, rows_of_cells(world)),
    ]


def rows_of_umpire(worlds: dict[str, World]) -> list[list[str]]:
    """With the umpire and without, over the best member of each set: by drawing of questions, and all of them."""

    def row(title: str, name: str, some: list[World]) -> list[str]:
        def over(wanted: Callable[[str], bool]) -> str:
            mine = [hit for world in some for hit in whole(world, name, wanted)]
            best = [hit for world in some for hit in whole(world, best_member(world, wanted), wanted)]
            return f"{sum(mine)} of {len(mine)}, {paired(mine, best)}"

        return [title, f"`{name}`" if name != "defaults" else name, *map(over, map(of_skill, SKILLS)), over(single)]

    drawn = {f"seed {name.partition('-')[2] or 5}": [world] for name, world in worlds.items()}
    return [
        row(title, name, some)
        for title, some in {**drawn, "all": list(worlds.values())}.items()
        for name in ("umpire=False", "defaults")
    ]


def _umpired(worlds: dict[str, World]) -> list[str]:
    if len(worlds) < 2:
        return []
    return [
        "### What the umpire brings",
        UMPIRE,
        table(["questions", "settings", *SKILLS, "mixed set"], rows_of_umpire(worlds)),
    ]


TITLES = {
    "narrow": ("Specialists that know nothing else", "Each has read its own skill only."),
    "kept": (
        "Specialists that stay as they were elsewhere",
        "A third of what each has read are first sentences of what the untuned model says to ordinary questions "
        "(those of `benchmarks/transcripts.py`).",
    ),
}
INTRODUCTION = """# The study with a real model: LoRA specialists

Written by `benchmarks/tuned.py --page` from what it measured: no number in a table is typed in by hand.

Five members, all SmolLM2-135M-Instruct. Four were tuned with LoRA to one narrow skill each, on one core in minutes:
two-digit sums digit by digit, made-up words, numbers in Spanish, orders as JSON. The fifth is the untuned model. No
specialist has read anything of the other skills. Questions are held out: none of a skill's measured cases was trained
on, but for the made-up words, which can only be known. An answer counts when it is right to the letter. Brackets are
95% intervals: Wilson's for shares, a paired bootstrap for differences. Everything is greedy. One seed of training."""
SETTINGS = (
    "{singles} held-out questions of each skill; {twos} of two skills in one question, of which the parts right are "
    "told. Defaults: preset `robust`, at most 80 tokens."
)
FIRST = (
    "Defaults, single questions: the mean log-probability a token that a draft gets from its writer, from other "
    "specialists (the writer left out) and from the untuned model; its total (of 1); its reward."
)
UMPIRE = (
    "Right answers, and points over the member that is best on that set. The umpire's bounds (`SURE` and `ANYWAY` in "
    "`core/umpire.py`) were chosen on the questions of seed 5; the others are the check."
)
FIRSTS = ["draft of", "its writer", "specialists", "the untuned model", "total", "reward"]
CHANGES = (
    "A perfect router asks for each question its specialist alone. What stands as `count/reward` are experiments of "
    "`benchmarks/variants.py` and `benchmarks/tuned_rules.py`; `factor`, `patience` and `first` are constants of the "
    f"studentized exit ({panel.HEAT}, {panel.PATIENCE} and {panel.FIRST_EXIT} in `core/panel.py`), `spoken` is how "
    f"many tokens an assured voice is the probability of ({voting.SPOKEN} in `core/voting.py`)."
)
