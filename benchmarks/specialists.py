"""Does the vote find out who knows? Tiny specialists whose strengths are known, so there is a truth to measure against.

Each specialist knows one skill and has read the others with a share of the contents right (``tiny_members.py``). Every
cell answers the same questions: of one skill, and mixed ones of two. Told are the answers that are right to the letter,
how often the specialist of the question leads the weights after four rounds, and how many members draft in a round.

    python benchmarks/specialists.py [--parts main,grid,variants] [--mode vague] [--singles 12] [--mixed 30]

Results are kept in ``specialists.json`` cell by cell: started again, it goes on. ``--page`` writes ``docs/study.md``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from skills import ASKED, Part, answer, part, question, right
from tiny_members import members, sizes
from variants import COUNTS, REWARDS, varied

from langchain_specfuse.core.panel import Panel
from langchain_specfuse.core.values import PRESETS, Query, Round, Settings, Turn
from langchain_specfuse.engine import Ensemble
from langchain_specfuse.engine.drive import drive

HERE = Path(__file__)
RESULTS = HERE.with_suffix(".json")
BASE: dict[str, Any] = {"max_tokens": 160, **PRESETS["robust"]}
"""The defaults, with a budget that no right answer needs."""
LEADS_BY = 4


def questions(singles: int, mixed: int, seed: int = 4) -> list[tuple[Part, ...]]:
    """``singles`` questions of each skill, and mixed ones of two different skills, drawn as training draws them."""
    chance = random.Random(seed)
    single = [(part(skill, chance, 3),) for skill in ASKED for _ in range(singles)]
    two = [tuple(part(skill, chance, 2) for skill in chance.sample(ASKED, 2)) for _ in range(mixed)]
    return single + two


def rounds_of(ensemble: Ensemble, parts: Sequence[Part], settings: Settings, how: tuple[str, str]) -> list[Round]:
    query = Query(f"{id(parts)}-{time.perf_counter_ns()}", (Turn("user", question(parts)),))
    if how == ("", ""):
        return list(ensemble.rounds(query, settings))
    panel = Panel.of(ensemble.seats(ensemble.loaded().result()))
    loop = varied(query, settings, panel, COUNTS[how[0]], REWARDS[how[1]])
    return list(drive(loop, query.id, ensemble.members))


def answered(
    ensemble: Ensemble, asked: Sequence[tuple[Part, ...]], settings: Settings, how: tuple[str, str]
) -> list[list[Round]]:
    """The rounds of every question; all are asked at once."""
    told: dict[int, list[Round]] = {}

    def one(which: int) -> None:
        told[which] = rounds_of(ensemble, asked[which], settings, how)

    threads = [threading.Thread(target=one, args=(which,)) for which in range(len(asked))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [told[which] for which in range(len(asked))]


def leads(parts: Sequence[Part], rounds: Sequence[Round]) -> bool:
    """Whether the specialist has more weight than anybody else after four rounds (or where a shorter answer ends)."""
    weights = rounds[min(LEADS_BY, len(rounds)) - 1].weights
    own = weights.get(parts[0].skill, 0.0)
    return all(own > weight + 1e-9 for name, weight in weights.items() if name != parts[0].skill)


def summed(asked: Sequence[tuple[Part, ...]], told: Sequence[list[Round]], seconds: float) -> dict[str, Any]:
    """One cell: which parts were right, per question, so that cells can be compared in pairs."""
    marks = [right(parts, "".join(r.text for r in rounds)) for parts, rounds in zip(asked, told, strict=True)]
    single = [(p, r) for p, r in zip(asked, told, strict=True) if len(p) == 1]
    disputed = [r for _, rounds in single for r in rounds if r.scores]
    return {
        "marks": ["".join(str(int(m)) for m in mark) for mark in marks],
        "leads": "".join(str(int(leads(p, r))) for p, r in single),
        "members_a_round": round(statistics.fmean(len(r.drafts) for rounds in told for r in rounds), 2),
        "rounds_an_answer": round(statistics.fmean(len(rounds) for rounds in told), 1),
        "coinciding": round(1 - len(disputed) / sum(len(r) for _, r in single), 3),
        "specialist_won": round(
            sum(p[0].skill in r.authors for p, rounds in single for r in rounds)
            / sum(len(rounds) for _, rounds in single),
            3,
        ),
        "specialist_left": sum(any(d.member == p[0].skill for r in rounds for d in r.left) for p, rounds in single),
        "seconds": round(seconds, 1),
    }


# --- cells ------------------------------------------------------------------------------------------------------

Cell = tuple[dict[str, Any], tuple[str, str]]
FEEDBACK = [("off", 1.0), ("published", 1.0), ("published", 3.0), ("published", 10.0), ("anytime", 3.0)]
SCORES = ("mean_prob", "mean_logprob", "logprob_per_byte")


PAPER = {"voice": "equal", "reward": "wins", "learning_rate": 1.0}
"""How loud verifiers are, and what earns weight, under the published method."""


def grid() -> Iterator[Cell]:
    """One thing changed at a time; the published way to weigh first."""
    plain = ("", "")
    yield PAPER, plain
    yield {"voice": "equal"}, plain
    yield {"reward": "wins", "learning_rate": 1.0}, plain
    for preset in ("specfuse", "specem"):
        yield {**PRESETS[preset], "min_members": 2}, plain
    for score, (feedback, rate) in itertools.product(SCORES, FEEDBACK):
        yield {"score": score, "feedback": feedback, "learning_rate": rate}, plain
    for kind, least in itertools.product(("never", "studentized", "quiet", "literal", "fixed"), (1, 2)):
        if (kind, least) not in (("studentized", 2), ("never", 1)):
            yield {"exit": kind, "min_members": least}, plain
    for drafters in (1, 2):
        yield {"drafters": drafters}, plain
    yield {"drafters": 2, "exit": "quiet", "min_members": 2}, plain
    for tokens in (4, 16):
        yield {"segment_tokens": tokens}, plain
        yield {"segment_tokens": tokens, "drafters": 1}, plain
        yield {"segment_tokens": tokens, "exit": "never"}, plain
        yield {"segment_tokens": tokens, "min_members": 1}, plain
        yield from (({"segment_tokens": tokens, "exit": "quiet", "min_members": least}, plain) for least in (1, 2))
        yield PAPER | {"segment_tokens": tokens}, plain


def experiments() -> Iterator[Cell]:
    """Other ways to count and to reward, where nobody leaves, so that they are told apart by the vote alone."""
    for count in COUNTS:
        yield {"exit": "never", "feedback": "off"}, (count, "by_wins")
    for reward in REWARDS:
        yield {"exit": "never", "learning_rate": 3.0}, ("plain", reward)
    for count, reward in itertools.product(("calibrated", "surest"), ("by_all", "by_own")):
        yield {"exit": "never", "learning_rate": 3.0}, (count, reward)


def label(cell: Cell) -> str:
    chosen, how = cell
    words = [f"{key}={value}" for key, value in chosen.items()] + ([f"{how[0]}/{how[1]}"] if how[0] else [])
    return " ".join(words) or "defaults"


def measured(
    world: dict[str, Any], mode: str, which: Sequence[str], singles: int, mixed: int, only: Sequence[str] = ()
) -> Iterator[None]:
    """Fill in the cells that are not there yet; after each, whoever called may save."""
    one_by_one = members(mode)
    ensemble = Ensemble(one_by_one)
    asked = questions(singles, mixed)
    cells = world.setdefault("cells", {})
    world.update(singles=singles, mixed=mixed, kinds=["+".join(p.skill for p in parts) for parts in asked])
    plans: dict[str, list[Cell]] = {
        "main": [({}, ("", "")), (PAPER, ("", ""))],
        "grid": list(grid()),
        "variants": list(experiments()),
    }
    if "members" not in world:
        world["members"] = sizes(mode)
    for one in one_by_one:
        if f"alone {one.name}" not in cells:
            cells[f"alone {one.name}"] = cell_of(Ensemble([one]), asked, {}, ("", ""))
            yield
    for cell in itertools.chain.from_iterable(plans[name] for name in which):
        wanted = not only or label(cell) in only
        if wanted and label(cell) not in cells:
            cells[label(cell)] = cell_of(ensemble, asked, *cell)
            yield


def cell_of(
    ensemble: Ensemble, asked: Sequence[tuple[Part, ...]], chosen: dict[str, Any], how: tuple[str, str]
) -> dict[str, Any]:
    since = time.perf_counter()
    told = answered(ensemble, asked, Settings(**(BASE | chosen)), how)
    return {"settings": BASE | chosen, "how": list(how)} | summed(asked, told, time.perf_counter() - since)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="main,grid,variants")
    parser.add_argument("--mode", default="vague", choices=("vague", "misled"))
    parser.add_argument("--singles", type=int, default=12)
    parser.add_argument("--mixed", type=int, default=30)
    parser.add_argument("--only", nargs="*", default=(), help="only the cells of these labels")
    parser.add_argument("--show", metavar="N", type=int, nargs="*", help="print the rounds of these questions")
    parser.add_argument("--page", action="store_true", help="only write docs/study.md from the results")
    told = parser.parse_args()
    torch.set_num_threads(1)
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if told.show is not None:
        show(told.mode, [questions(told.singles, told.mixed)[n] for n in told.show])
        return
    if not told.page:
        world = results.setdefault(told.mode, {})
        which = [name for name in told.parts.split(",") if name]
        for _ in measured(world, told.mode, which, told.singles, told.mixed, told.only):
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")
            name, cell = list(world["cells"].items())[-1]
            print(f"{name}: {sum(m.count('1') for m in cell['marks'])} {cell['seconds']} s", flush=True)
    from study_page import page

    text = page(results)
    (HERE.parent.parent / "docs" / "study.md").write_text(text)
    print(text)


def show(mode: str, asked: Sequence[tuple[Part, ...]]) -> None:
    """The rounds of some questions, to see what happens in them."""
    ensemble = Ensemble(members(mode))
    for parts in asked:
        print(f"\n{question(parts)}\n  wanted: {answer(parts)}")
        for r in rounds_of(ensemble, parts, Settings(**BASE), ("", "")):
            print(f"round {r.number}: {r.winner} {r.segment.text!r}")
            for name, draft in r.drafts.items():
                votes = {j: f"{row[name]:.2f}" for j, row in r.votes.items() if name in row}
                print(f"   {name:10} {draft.text!r:45} total {r.totals[name]:.3f} reward {r.rewards[name]:.2f} "
                      f"weight {r.weights_before[name]:.3f} {votes}")  # fmt: skip


if __name__ == "__main__":
    main()
