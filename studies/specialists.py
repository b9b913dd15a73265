"""Does the vote find the member that knows? Measured with specialists whose strengths are known.

``--members tiny``: each knows one skill and has read the others with a share of the facts right
(``tiny_members.py``). ``--members lora``: adapters of one real model, each trained on one skill
only, and that model (``lora_members.py``). All ways to weigh votes answer the same questions: of
one skill, and of two. The study counts answers that are right to the letter, and how often the
specialist of the question has the highest weight after four rounds.

    python studies/specialists.py --seed 1 --mode vague
    python studies/specialists.py --seed 1 --members lora --singles 36 --mixed 24

Results are kept in ``specialists.json`` question by question, so a run that was stopped continues.
``--table`` compares them: see ``preregistration.md``.
"""

from __future__ import annotations

import json
import math
import random
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))

import lora_members
import tiny_members
import torch
from command import stoppable
from common import about, answered, arguments, save, text_of
from common import question as turns_of
from forecast import forecast
from rows import sign_test
from skills import ASKED, LORA, Part, part, question, right

from langchain_specfuse.core.options import Method, Settings
from langchain_specfuse.core.round import Round
from langchain_specfuse.engine import Ensemble

LEADS_BY = 4
ALONE = "alone: "
OURS: Mapping[str, Any] = {"weighting": "confidence", "reward": "margins", "learning_rate": 3.0}
PUBLISHED: Mapping[str, Any] = {"weighting": "equal", "reward": "wins", "learning_rate": 1.0}
WAYS: Mapping[str, Mapping[str, Any]] = {
    "ours": OURS,
    "weighting as published": {**OURS, "weighting": "equal"},
    "reward as published": {**PUBLISHED, "weighting": "confidence"},
    "both as published": PUBLISHED,
}


@dataclass(frozen=True)
class Kind:
    """What members of a kind are asked, and in which ways."""

    skills: Sequence[str]
    facts: int
    """In a question of one skill; one less in each part of a question of two."""
    max_tokens: int
    ways: Sequence[str]
    tuning: str | None = None
    sealed: str | None = None
    """What the questions are kept for."""


KINDS = {
    "tiny": Kind(ASKED, 3, 160, tuple(WAYS)),
    "lora": Kind(LORA, 2, 100, ("ours", "both as published"), "tuning", "sealed"),
}


def kind_of(world: str) -> str:
    return "lora" if world.startswith("lora") else "tiny"


def members_in(world: Mapping[str, Any]) -> list[str]:
    """The names of the members of stored results."""
    return [way.removeprefix(ALONE) for way in world["ways"] if way.startswith(ALONE)]


def questions(options: Mapping[str, Any]) -> list[tuple[Part, ...]]:
    """``singles`` questions of each skill, and ``mixed`` ones of two different skills."""
    kind, chance = KINDS[options.get("members", "tiny")], random.Random(4 + options["seed"])
    use = kind.sealed if options["seed"] else kind.tuning

    def drawn(count: int, size: int, skills: Callable[[], Sequence[str]]) -> list[tuple[Part, ...]]:
        asked: list[tuple[Part, ...]] = []
        while len(asked) < count:
            parts = tuple(part(skill, chance, size, use) for skill in skills())
            if use is None or parts not in asked:  # tiny members are asked a few questions twice
                asked.append(parts)
        return asked

    single = [drawn(options["singles"], kind.facts, lambda: [skill]) for skill in kind.skills]  # noqa: B023 - called at once
    return [
        *chain(*single),
        *drawn(options["mixed"], kind.facts - 1, lambda: chance.sample(kind.skills, 2)),
    ]


def leads(parts: Sequence[Part], rounds: Sequence[Round]) -> bool:
    """Whether the specialist has the highest weight after four rounds (or where a shorter answer
    ends)."""
    weights = rounds[min(LEADS_BY, len(rounds)) - 1].weights
    own = weights.get(parts[0].skill, 0.0)
    return all(own > weight + 1e-9 for name, weight in weights.items() if name != parts[0].skill)


def settings_of(way: str, max_tokens: int) -> Settings:
    """The settings of a vote, or of one member alone."""
    if way.startswith(ALONE):
        return Settings(
            max_tokens=max_tokens, lead=way.removeprefix(ALONE), method=Method(margin=math.inf)
        )
    return Settings(max_tokens=max_tokens, lead=None, method=Method(**WAYS[way]))


def ask(ensemble: Ensemble, parts: Sequence[Part], settings: Settings, row: dict[str, Any]) -> None:
    """Ask a question, and add to the row of a way which parts of the answer are right."""
    since = time.perf_counter()
    rounds = answered(ensemble, turns_of(question(parts)), settings)
    marks = "".join(str(int(mark)) for mark in right(parts, text_of(rounds)))
    row["marks"] = f"{row['marks']} {marks}".lstrip()
    row["leads"] += str(int(leads(parts, rounds))) if len(parts) == 1 else ""
    row["seconds"] = round(row["seconds"] + time.perf_counter() - since, 1)


def rows_of(ways: Iterable[str], rows: dict[str, Any]) -> dict[str, Any]:
    """The row of each way: stored, or new."""
    return {way: rows.setdefault(way, {"marks": "", "leads": "", "seconds": 0.0}) for way in ways}


def answers_in(row: Mapping[str, Any]) -> int:
    """How many questions of a row are answered."""
    return len(row["marks"].split())


def plan_of(
    rows: Mapping[str, Any], asked: Sequence[Any], similar: Mapping[str, Any] | None = None
) -> str:
    """How many questions are left in each way, and how long they take. ``similar``: rows
    whose pace is assumed for ways that were not asked yet."""
    left = {way: len(asked) - answers_in(row) for way, row in rows.items()}

    def seconds_each(way: str) -> float | None:
        for row in (rows[way], (similar or {}).get(way)):
            if row and row["marks"]:
                return float(row["seconds"] / answers_in(row))
        return None

    return "\n".join(forecast(left, seconds_each))


def ask_all(
    ensemble: Ensemble,
    rows: Mapping[str, Any],
    asked: Sequence[tuple[Part, ...]],
    world: str,
    store: Callable[[], None],
) -> None:
    """Ask in every way the questions that it still lacks. ``store`` is called after each answer."""
    ensemble.loaded().result()
    for way, row in rows.items():
        settings = settings_of(way, KINDS[kind_of(world)].max_tokens)
        with stoppable(f"{world}, {way}"):
            for parts in asked[answers_in(row) :]:
                ask(ensemble, parts, settings, row)
                store()
        print(f"{world}, {way}: {row['marks'].count('1')} right", flush=True)


def routed(world: Mapping[str, Any]) -> str:
    """The marks of a router that knows each question's skill: the specialist answers; of a question
    of two skills, the specialist of the first."""
    asked = questions(world["about"]["arguments"])
    marks = []
    for number, parts in enumerate(asked):
        alone = world["ways"][ALONE + parts[0].skill]
        marks.append(alone["marks"].split()[number])
    return " ".join(marks)


def table(worlds: Mapping[str, Any]) -> None:
    """Ours against every other way, each member alone and the router, over all worlds together."""

    def marks(way: str) -> str:
        return "".join(world["ways"][way]["marks"] for world in worlds.values()).replace(" ", "")

    ours = marks("ours")
    for way in next(iter(worlds.values()))["ways"]:
        wins, losses, p = sign_test(zip(ours, marks(way), strict=True))
        print(
            f"{way:24} {marks(way).count('1')} of {len(ours)} right; ours wins {wins}, "
            f"loses {losses}, p = {p:.3g}"
        )


def members_of(world: str) -> Sequence[Any]:
    """The members of a world, such as ``lora-1`` or ``vague-2``. Those that were not trained yet
    are trained first."""
    if kind_of(world) == "lora":
        return lora_members.members()
    mode, _, seed = world.partition("-")
    return tiny_members.members(mode, int(seed))


def main() -> None:
    parser = arguments(__file__, __doc__)
    parser.add_argument("--members", default="tiny", choices=KINDS)
    parser.add_argument(
        "--mode", default="vague", choices=("vague", "misled"), help="how tiny members do not know"
    )
    parser.add_argument("--singles", type=int, default=40)
    parser.add_argument("--mixed", type=int, default=40)
    parser.add_argument(
        "--seed", type=int, default=0, help="of tiny members and of questions; 0 was used to tune"
    )
    parser.add_argument(
        "--table", action="store_true", help="only compare the results that are there"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = json.loads(options.out.read_text()) if options.out.exists() else {}
    if options.table:
        names = [name for name in sorted(results) if kind_of(name) == options.members]
        return table({name: results[name] for name in names})
    if options.members == "tiny":
        name = f"{options.mode}-{options.seed}"
        sizes = tiny_members.sizes(options.mode, options.seed)
    else:
        name, sizes = f"lora-{options.seed}", lora_members.sizes()
    members = members_of(name)
    world = results.setdefault(name, {"ways": {}, "members": sizes, "about": about(options)})
    kind, asked = KINDS[options.members], questions(vars(options))
    ensemble = Ensemble(members)
    ways = (*kind.ways, *(ALONE + member for member in ensemble.members))
    rows = rows_of(ways, world["ways"])
    print(plan_of(rows, asked), flush=True)
    ask_all(ensemble, rows, asked, name, lambda: save(options.out, results))
    world["ways"]["router"] = {"marks": routed(world)}
    save(options.out, results)
    return None


if __name__ == "__main__":
    main()
