"""Does the vote find out who knows? Tiny specialists whose strengths are known, so there is a truth to measure against.

Each specialist knows one skill and has read the others with a share of the facts right (``tiny_members.py``). Every way
to weigh votes answers the same questions: of one skill, and of two. Measured are the answers that are right to the
letter, and how often the specialist of the question has the highest weight after four rounds.

    python studies/specialists.py --seed 1 --mode vague

Results are kept in ``specialists.json`` way by way, so a run that was stopped continues. ``--table`` compares them: see
``preregistration.md``.
"""

from __future__ import annotations

import json
import math
import random
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))

import torch
from common import about, arguments, query, save, text_of, together
from common import question as turns_of
from skills import ASKED, Part, part, question, right
from tiny_members import members, sizes

from langchain_specfuse.core.method import Method, Settings
from langchain_specfuse.core.values import Round
from langchain_specfuse.engine import Ensemble
from langchain_specfuse.evaluation.statistics import mcnemar

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


def questions(singles: int, mixed: int, seed: int) -> list[tuple[Part, ...]]:
    """``singles`` questions of each skill, and mixed ones of two different skills, drawn as training draws them."""
    chance = random.Random(seed)
    single = [(part(skill, chance, 3),) for skill in ASKED for _ in range(singles)]
    two = [tuple(part(skill, chance, 2) for skill in chance.sample(ASKED, 2)) for _ in range(mixed)]
    return single + two


def leads(parts: Sequence[Part], rounds: Sequence[Round]) -> bool:
    """Whether the specialist has the highest weight after four rounds (or where a shorter answer ends)."""
    weights = rounds[min(LEADS_BY, len(rounds)) - 1].weights
    own = weights.get(parts[0].skill, 0.0)
    return all(own > weight + 1e-9 for name, weight in weights.items() if name != parts[0].skill)


def settings_of(way: str) -> Settings:
    """Of a vote, or of one member alone."""
    if way.startswith(ALONE):
        return Settings(max_tokens=160, lead=way.removeprefix(ALONE), method=Method(margin=math.inf))
    return Settings(max_tokens=160, lead=None, method=Method(**WAYS[way]))


def measured(ensemble: Ensemble, asked: Sequence[tuple[Part, ...]], way: str) -> dict[str, Any]:
    """One way: which parts were right, per question, so that ways can be compared in pairs."""
    settings, since = settings_of(way), time.perf_counter()
    ensemble.loaded().result()
    answers = together(lambda n: list(ensemble.rounds(query(turns_of(question(asked[n]))), settings)), len(asked))
    single = [(parts, rounds) for parts, rounds in zip(asked, answers, strict=True) if len(parts) == 1]
    marks = [right(parts, text_of(rounds)) for parts, rounds in zip(asked, answers, strict=True)]
    return {
        "marks": " ".join("".join(str(int(m)) for m in mark) for mark in marks),
        "leads": "".join(str(int(leads(parts, rounds))) for parts, rounds in single),
        "seconds": round(time.perf_counter() - since, 1),
    }


def routed(world: Mapping[str, Any]) -> str:
    """The marks of a router that knows each question's skill: the specialist answers, of two skills the first one's."""
    about = world["about"]["arguments"]
    asked = questions(about["singles"], about["mixed"], 4 + about["seed"])
    alone = {name: one["marks"].split() for name, one in world["ways"].items() if name.startswith(ALONE)}
    return " ".join(alone[ALONE + parts[0].skill][n] for n, parts in enumerate(asked))


def table(results: Mapping[str, Any]) -> None:
    """Ours against every other way, each member alone and the router, over all worlds together."""

    def marks(way: str) -> str:
        return "".join(one["ways"][way]["marks"] for _, one in sorted(results.items())).replace(" ", "")

    ours = marks("ours")
    for way in next(iter(results.values()))["ways"]:
        wins = sum(a > b for a, b in zip(ours, marks(way), strict=True))
        losses = sum(a < b for a, b in zip(ours, marks(way), strict=True))
        print(f"{way:24} {marks(way).count('1')} of {len(ours)} right; ours wins {wins}, loses {losses}, "
              f"p = {mcnemar(wins, losses):.3g}")  # fmt: skip


def main() -> None:
    parser = arguments(__file__, __doc__)
    parser.add_argument("--mode", default="vague", choices=("vague", "misled"))
    parser.add_argument("--singles", type=int, default=40)
    parser.add_argument("--mixed", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0, help="of the members and of the questions; 0 was used to tune")
    parser.add_argument("--table", action="store_true", help="only compare the results that are there")
    given = parser.parse_args()
    torch.set_num_threads(1)
    results = json.loads(given.out.read_text()) if given.out.exists() else {}
    if given.table:
        return table(results)
    asked = questions(given.singles, given.mixed, 4 + given.seed)
    new = {"ways": {}, "members": sizes(given.mode, given.seed), "about": about(given)}
    world = results.setdefault(f"{given.mode}-{given.seed}", new)
    ensemble = Ensemble(members(given.mode, given.seed))
    for name in (*WAYS, *(ALONE + member for member in ensemble.members)):
        if name not in world["ways"]:
            world["ways"][name] = measured(ensemble, asked, name)
            save(given.out, results)
            print(f"{name}: {world['ways'][name]['marks'].count('1')} right", flush=True)
    world["ways"]["router"] = {"marks": routed(world)}
    save(given.out, results)
    return None


if __name__ == "__main__":
    main()
