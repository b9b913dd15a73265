"""Does the vote find out who knows? Tiny specialists whose strengths are known, so there is a truth to measure against.

Each specialist knows one skill and has read the others with a share of the facts right (``tiny_members.py``). Every
cell answers the same questions: of one skill, and of two. Measured are the answers that are right to the letter, how
often the specialist of the question has the highest weight after four rounds, and how many members draft in a round.

    python studies/specialists.py [--parts main,grid,variants] [--mode vague] [--singles 25] [--mixed 30]

Results are kept in ``specialists.json`` cell by cell: a run that was stopped continues. ``--page`` writes
``docs/study.md`` from them.
"""

from __future__ import annotations

import itertools
import json
import random
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))

import exits
import torch
from common import about, arguments, query, save, text_of, together
from common import question as turns_of
from skills import ASKED, Part, answer, part, question, right
from study_page import page
from tiny_members import members, sizes
from variants import COUNTS, REWARDS, varied

from langchain_specfuse.core.method import METHODS, Method, Settings
from langchain_specfuse.core.values import Round
from langchain_specfuse.engine import Ensemble, drive

exits.register()
LEADS_BY = 4
Cell = tuple[Mapping[str, Any], tuple[str, str]]
"""Options of the method (and ``method``, ``segment_tokens``); ways to count and to reward of ``variants.py``."""
PUBLISHED = {"weighting": "equal", "reward": "wins", "learning_rate": 1.0}
"""How verifiers count, and what earns weight, under the published method."""


def settings_of(chosen: Mapping[str, Any]) -> Settings:
    """The defaults with these changes, and a budget that no right answer needs."""
    changes = dict(chosen)
    tokens = changes.pop("segment_tokens", 10)
    return Settings(tokens, max_tokens=160, method=Method.named(changes.pop("method", "robust"), **changes))


def questions(singles: int, mixed: int, seed: int = 4) -> list[tuple[Part, ...]]:
    """``singles`` questions of each skill, and mixed ones of two different skills, drawn as training draws them."""
    chance = random.Random(seed)
    single = [(part(skill, chance, 3),) for skill in ASKED for _ in range(singles)]
    two = [tuple(part(skill, chance, 2) for skill in chance.sample(ASKED, 2)) for _ in range(mixed)]
    return single + two


def rounds_of(ensemble: Ensemble, parts: Sequence[Part], settings: Settings, how: tuple[str, str]) -> list[Round]:
    one = query(turns_of(question(parts)))
    if how == ("", ""):
        return list(ensemble.rounds(one, settings))
    panel = ensemble.panel(ensemble.loaded().result(), None)
    return list(drive(varied(one, settings, panel, COUNTS[how[0]], REWARDS[how[1]]), one.id, ensemble.members))


def leads(parts: Sequence[Part], rounds: Sequence[Round]) -> bool:
    """Whether the specialist has the highest weight after four rounds (or where a shorter answer ends)."""
    weights = rounds[min(LEADS_BY, len(rounds)) - 1].weights
    own = weights.get(parts[0].skill, 0.0)
    return all(own > weight + 1e-9 for name, weight in weights.items() if name != parts[0].skill)


def measured(ensemble: Ensemble, asked: Sequence[tuple[Part, ...]], cell: Cell) -> dict[str, Any]:
    """One cell: which parts were right, per question, so that cells can be compared in pairs."""
    chosen, how = cell
    settings, since = settings_of(chosen), time.perf_counter()
    ensemble.loaded().result()
    answers = together(lambda n: rounds_of(ensemble, asked[n], settings, how), len(asked))
    single = [(parts[0], rounds) for parts, rounds in zip(asked, answers, strict=True) if len(parts) == 1]
    of_single = [(one.skill, r) for one, rounds in single for r in rounds]
    marks = [right(parts, text_of(rounds)) for parts, rounds in zip(asked, answers, strict=True)]
    return {
        "settings": dict(chosen),
        "how": list(how),
        "marks": ["".join(str(int(m)) for m in mark) for mark in marks],
        "leads": "".join(str(int(leads((one,), rounds))) for one, rounds in single),
        "members_a_round": round(statistics.fmean(len(r.drafts) for rounds in answers for r in rounds), 2),
        "rounds_an_answer": round(statistics.fmean(map(len, answers)), 1),
        "coinciding": round(1 - statistics.fmean(bool(r.scores) for _, r in of_single), 3),
        "specialist_won": round(statistics.fmean(skill in r.authors for skill, r in of_single), 3),
        "specialist_left": sum(any(gone.member == skill for gone in r.left) for skill, r in of_single),
        "seconds": round(time.perf_counter() - since, 1),
    }


# --- cells ------------------------------------------------------------------------------------------------------


def grid() -> Iterator[Cell]:
    """One thing changed at a time; the published way to weigh first."""
    plain = ("", "")
    yield PUBLISHED, plain
    yield {"weighting": "equal"}, plain
    yield {"reward": "wins", "learning_rate": 1.0}, plain
    for method in (name for name in METHODS if name != "robust"):
        yield {"method": method, "min_members": 2}, plain
    for score in ("mean_prob", "mean_logprob", "logprob_per_byte"):
        for feedback, rate in (
            ("off", 1.0),
            ("published", 1.0),
            ("published", 3.0),
            ("published", 10.0),
            ("anytime", 3.0),
        ):
            yield {"score": score, "feedback": feedback, "learning_rate": rate}, plain
    for kind, least in itertools.product(("never", "studentized", "literal", "fixed"), (1, 2)):
        if (kind, least) not in (("studentized", 2), ("never", 1)):
            yield {"exit": kind, "min_members": least}, plain
    for drafters in (1, 2):
        yield {"drafters": drafters}, plain
    for tokens in (4, 16):
        for changes in ({}, {"drafters": 1}, {"exit": "never"}, {"min_members": 1}):
            yield {"segment_tokens": tokens, **changes}, plain
        yield PUBLISHED | {"segment_tokens": tokens}, plain


def experiments() -> Iterator[Cell]:
    """Other ways to count and to reward. No member leaves, so that they differ by the vote alone."""
    for count in COUNTS:
        yield {"exit": "never", "feedback": "off"}, (count, "by_wins")
    pairs = [("plain", reward) for reward in REWARDS]
    pairs += itertools.product(("calibrated", "surest"), ("by_all", "by_own"))
    for how in pairs:
        yield {"exit": "never", "learning_rate": 3.0}, how


EQUALS: Sequence[Mapping[str, Any]] = (
    {},
    {"weighting": "equal"},
    {"reward": "wins", "learning_rate": 1.0},
    PUBLISHED,
)
"""The default vote of equals, and the published way to weigh in one respect or in both: see preregistration.md."""
CELLS: Mapping[str, Sequence[Cell]] = {
    "main": [({}, ("", "")), (PUBLISHED, ("", ""))],
    "grid": list(grid()),
    "variants": list(experiments()),
    "sealed": [({**one, "tie_break": False}, ("", "")) for one in EQUALS],
}


def label(cell: Cell) -> str:
    chosen, how = cell
    words = [f"{key}={value}" for key, value in chosen.items()] + ([f"{how[0]}/{how[1]}"] if how[0] else [])
    return " ".join(words) or "defaults"


def show(mode: str, asked: Sequence[tuple[Part, ...]]) -> None:
    """Prints the rounds of some questions."""
    ensemble = Ensemble(members(mode))
    for parts in asked:
        print(f"\n{question(parts)}\n  wanted: {answer(parts)}")
        for r in rounds_of(ensemble, parts, settings_of({}), ("", "")):
            print(f"round {r.number}: {r.winner} {r.segment.text!r}")
            for name, draft in r.drafts.items():
                votes = {j: f"{row[name]:.2f}" for j, row in r.votes.items() if name in row}
                print(f"   {name:10} {draft.text!r:45} total {r.totals[name]:.3f} reward {r.rewards[name]:.2f} "
                      f"weight {r.weights_before[name]:.3f} {votes}")  # fmt: skip


def main() -> None:
    parser = arguments(__file__, __doc__)
    parser.add_argument("--parts", default=",".join(CELLS))
    parser.add_argument("--mode", default="vague", choices=("vague", "misled"))
    parser.add_argument("--singles", type=int, default=25)
    parser.add_argument("--mixed", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0, help="of the members and of the questions; 0 was used to tune")
    parser.add_argument("--only", nargs="*", default=(), help="only the cells of these labels")
    parser.add_argument("--show", metavar="N", type=int, nargs="*", help="print the rounds of these questions")
    parser.add_argument("--page", action="store_true", help="only write docs/study.md from the results")
    given = parser.parse_args()
    torch.set_num_threads(1)
    results = json.loads(given.out.read_text()) if given.out.exists() else {}
    asked = questions(given.singles, given.mixed, 4 + given.seed)
    if given.show is not None:
        show(given.mode, [asked[n] for n in given.show])
    elif given.page:
        (Path(__file__).resolve().parent.parent / "docs" / "study.md").write_text(page(results))
    else:
        named = given.mode + (f"-{given.seed}" if given.seed else "")
        world = results.setdefault(named, {"cells": {}, "members": sizes(given.mode, given.seed)})
        kinds = ["+".join(p.skill for p in parts) for parts in asked]
        world |= {"singles": given.singles, "mixed": given.mixed, "kinds": kinds}
        one_by_one = members(given.mode, given.seed)
        todo = {f"alone {one.name}": (Ensemble([one]), ({}, ("", ""))) for one in one_by_one}
        whole = Ensemble(one_by_one)
        todo |= {label(cell): (whole, cell) for name in given.parts.split(",") for cell in CELLS[name]}
        for name, (ensemble, cell) in todo.items():
            if name in world["cells"] or (given.only and name not in given.only):
                continue
            world["cells"][name] = measured(ensemble, asked, cell) | {"about": about(given)}
            save(given.out, results)
            count = sum(mark.count("1") for mark in world["cells"][name]["marks"])
            print(f"{name}: {count} right, {world['cells'][name]['seconds']} s", flush=True)


if __name__ == "__main__":
    main()
