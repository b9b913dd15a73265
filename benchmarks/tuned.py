"""Does the vote find out who knows, with a real language model? LoRA specialists of SmolLM2-135M, and the model itself.

Four members were tuned to one skill each (``tuned_members.py``), the fifth is the untuned model. Every cell answers the
same held-out questions: of one skill, and of two skills in one. Told are the answers right to the letter, whether the
question's specialist leads the weights, how many members draft in a round.

    python benchmarks/tuned.py [--mode narrow] [--singles 12] [--twos 12] [--seed 5] [--only LABEL...]

Results are kept in ``tuned.json`` cell by cell: started again, it goes on. ``--page`` writes ``docs/study-tuned.md``,
``--show N...`` prints the rounds of these questions.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from specialists import PAPER, answered, rounds_of, summed
from tuned_members import PLAIN, members, training
from tuned_rules import OWN, constants
from tuned_skills import Part, questions

from langchain_specfuse.core.values import PRESETS, Round, Settings
from langchain_specfuse.engine import Ensemble

HERE = Path(__file__)
RESULTS = HERE.with_suffix(".json")
BASE: dict[str, Any] = {"max_tokens": 80, **PRESETS["robust"]}
"""The defaults (preset ``robust``) but for the budget: no right answer is longer."""

Cell = tuple[dict[str, Any], tuple[str, str], dict[str, float]]
"""What is chosen of the settings, of the ways to count and to reward, and of the method's constants."""
METHOD = ("", "")
PUBLISHED: dict[str, Any] = PAPER | {"umpire": False}
SEED = 5
"""Which questions are drawn. The umpire's bounds were chosen on these: other seeds are for the check."""


def cells() -> Iterator[Cell]:
    """The most telling ones first."""
    yield {}, METHOD, {}
    yield {"umpire": False}, METHOD, {}
    yield PUBLISHED, METHOD, {}
    yield {"voice": "equal"}, METHOD, {}
    yield {"reward": "wins", "learning_rate": 1.0}, METHOD, {}
    yield {"exit": "never"}, METHOD, {}
    yield {"min_members": 1}, METHOD, {}
    yield from (({"exit": "quiet", "min_members": least}, METHOD, {}) for least in (1, 2))
    yield from (({"drafters": drafters}, METHOD, {}) for drafters in (1, 2))
    yield {"drafters": 2, "exit": "quiet", "min_members": 2}, METHOD, {}
    for count in ("surest", "calibrated", "gated", *OWN):
        yield PUBLISHED, (count, "by_wins"), {}
    for count in ("plain", "surest", "likelier"):
        yield PUBLISHED | {"learning_rate": 3.0}, (count, "by_own"), {}
    yield PUBLISHED | {"learning_rate": 3.0}, ("plain", "by_all"), {}
    for tokens in (4, 16):
        yield {"segment_tokens": tokens}, METHOD, {}
    for rate in (1.0, 10.0):
        yield {"learning_rate": rate}, METHOD, {}
    for feedback in ("off", "anytime"):
        yield {"feedback": feedback}, METHOD, {}
    for score in ("mean_prob", "logprob_per_byte"):
        yield {"score": score}, METHOD, {}
    for tokens in (1, 4, 16):
        yield {}, METHOD, {"spoken": tokens}
    for quicker in QUICKER:
        yield {"min_members": 1}, METHOD, quicker


QUICKER: tuple[dict[str, float], ...] = (
    {"factor": 1.0},
    {"patience": 1, "first": 2},
    {"factor": 1.0, "patience": 1, "first": 2},
    {"factor": 1.0, "patience": 1, "first": 1},
)


def label(cell: Cell) -> str:
    chosen, how, other = cell
    words = [f"{key}={value}" for key, value in (chosen | other).items()]
    return " ".join([*words, *(["/".join(how)] if how[0] else [])]) or "defaults"


def opened(asked: Sequence[tuple[Part, ...]], told: Sequence[list[Round]]) -> str:
    """Of which single questions the specialist wrote the first segment, alone or with others."""
    return "".join(
        str(int(parts[0].skill in rounds[0].authors))
        for parts, rounds in zip(asked, told, strict=True)
        if len(parts) == 1
    )


def first_rounds(asked: Sequence[tuple[Part, ...]], told: Sequence[list[Round]]) -> dict[str, dict[str, float]]:
    """Of single questions' first rounds, by whose draft it is: what its writer, other specialists and the untuned model
    think of it on average, and its total and reward."""
    seen: dict[str, list[dict[str, float]]] = {"specialist": [], "other": [], PLAIN: []}
    for parts, rounds in zip(asked, told, strict=True):
        if len(parts) == 1 and len(rounds[0].scores) > 1:
            for name in rounds[0].drafts:
                role = PLAIN if name == PLAIN else "specialist" if name == parts[0].skill else "other"
                seen[role].append(received(rounds[0], name))
    return {role: {key: round(statistics.fmean(one[key] for one in many if key in one), 3) for key in HEADS}
            for role, many in seen.items() if many}  # fmt: skip


HEADS = ("writer", "others", PLAIN, "total", "reward")


def received(one: Round, name: str) -> dict[str, float]:
    """What a draft got in this round: scores by kind of verifier, total and reward."""
    scores = {judge: row[name] for judge, row in one.scores.items() if name in row}
    others = [score for judge, score in scores.items() if judge not in (name, PLAIN)]
    told = {"total": one.totals[name], "reward": one.rewards[name], "others": statistics.fmean(others)}
    if name in scores:
        told["writer"] = scores[name]
    if PLAIN in scores:
        told[PLAIN] = scores[PLAIN]
    return told


def cell_of(ensemble: Ensemble, asked: Sequence[tuple[Part, ...]], cell: Cell) -> dict[str, Any]:
    chosen, how, other = cell
    since = time.perf_counter()
    with constants(**other):  # type: ignore[arg-type]
        told = answered(ensemble, asked, Settings(**(BASE | chosen)), how)  # type: ignore[arg-type]
    made = summed(asked, told, time.perf_counter() - since)  # type: ignore[arg-type]
    own = {"opened": opened(asked, told), "first_rounds": first_rounds(asked, told)}
    return {"settings": BASE | chosen, "how": list(how), "constants": other} | own | made


def measured(
    world: dict[str, Any], mode: str, singles: int, twos: int, seed: int, only: Sequence[str]
) -> Iterator[str]:
    """Fill in the cells that are not there yet; after each, whoever called may save."""
    everybody = members(mode)
    asked = questions(singles, twos, seed)
    kinds = ["+".join(p.skill for p in parts) for parts in asked]
    if world.get("kinds") != kinds:  # cells of other questions cannot be compared in pairs
        world["cells"] = {}
    world.update(singles=singles, twos=twos, kinds=kinds, training=training(mode))
    done = world.setdefault("cells", {})
    together = Ensemble(everybody)
    plans = [(f"alone {one.name}", Ensemble([one]), ({}, METHOD, {})) for one in everybody]
    plans += [(label(cell), together, cell) for cell in cells()]
    for name, ensemble, cell in plans:
        if name not in done and (not only or name in only):
            done[name] = cell_of(ensemble, asked, cell)
            for one in everybody:
                one.save()
            yield name


def show(mode: str, asked: Sequence[tuple[Part, ...]]) -> None:
    """The rounds of some questions, to see what happens in them."""
    ensemble = Ensemble(members(mode))
    for parts in asked:
        print(f"\n{[p.question for p in parts]}\n  wanted: {[p.answer() for p in parts]}")
        for r in rounds_of(ensemble, parts, Settings(**BASE), METHOD):  # type: ignore[arg-type]
            print(f"round {r.number}: {r.winner} {r.segment.text!r}")
            for name, draft in r.drafts.items():
                scores = {judge: f"{row[name]:.2f}" for judge, row in r.scores.items() if name in row}
                print(f"   {name:8} {draft.text!r:50} total {r.totals[name]:.3f} reward {r.rewards[name]:.2f} "
                      f"weight {r.weights_before[name]:.3f} {scores}")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", default="narrow", choices=("narrow", "kept"))
    parser.add_argument("--singles", type=int, default=12)
    parser.add_argument("--twos", type=int, default=12)
    parser.add_argument("--seed", type=int, default=SEED, help="other questions than those of the table")
    parser.add_argument("--only", nargs="*", default=(), help="only the cells of these labels")
    parser.add_argument("--show", metavar="N", type=int, nargs="*", help="print the rounds of these questions")
    parser.add_argument("--page", action="store_true", help="only write docs/study-tuned.md from the results")
    told = parser.parse_args()
    torch.set_num_threads(1)
    if told.show is not None:
        show(told.mode, [questions(told.singles, told.twos, told.seed)[n] for n in told.show])
        return
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if not told.page:
        world = results.setdefault(told.mode if told.seed == SEED else f"{told.mode}-{told.seed}", {})
        for name in measured(world, told.mode, told.singles, told.twos, told.seed, told.only):
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")
            cell = world["cells"][name]
            right = sum("0" not in mark for mark in cell["marks"])
            print(f"{name}: {right} right, {cell['members_a_round']} members, {cell['seconds']} s", flush=True)
    from tuned_page import page

    (HERE.parent.parent / "docs" / "study-tuned.md").write_text(page(results))


if __name__ == "__main__":
    main()
