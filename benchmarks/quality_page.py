"""docs/study-real.md from benchmarks/quality.json: every number on the page is one that the script measured."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from quality_cells import PAPER
from quality_choices import Choice, decided, gaps, rules, said_of
from quality_members import GEMMA, SMOL
from quality_tasks import Set

from langchain_specfuse.evaluation.statistics import against_best, difference, interval

Cells = Mapping[str, Mapping[str, Any]]
BEST = (SMOL, GEMMA)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in lines)


def _headed(rows: Iterator[list[str]]) -> str:
    return table(next(rows), list(rows))


HEARD = " ".join(f"{key}={value}" for key, value in PAPER.items())
"""The cells whose votes were written down: all verifiers equally loud, as published."""


def name(set: str, panel: str = "both", chosen: str = "defaults") -> str:
    return f"{set} | {panel} | {chosen}"


def paired(one: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[list[float], list[float]]:
    """Both cells' scores of the questions that both were asked."""
    common = [question for question in one["scores"] if question in other["scores"]]
    return [one["scores"][q] for q in common], [other["scores"][q] for q in common]


def points(one: Mapping[str, Any], other: Mapping[str, Any], *, graded: bool) -> str:
    """How many points one cell lies above another on the same questions."""
    told = difference(*paired(one, other), graded=graded)
    return f"{100 * told.mean:+.0f} [{100 * told.low:+.0f}, {100 * told.high:+.0f}]"


def against(cell: Mapping[str, Any], singles: Mapping[str, Mapping[str, Any]], *, graded: bool) -> str:
    """Against the best of these on the same questions, and whether that is more than chance."""
    common = [q for q in cell["scores"] if all(q in one["scores"] for one in singles.values())]
    rows = {who: [one["scores"][q] for q in common] for who, one in singles.items()}
    told = against_best([cell["scores"][q] for q in common], rows, graded=graded)
    low, high = told.apart.low, told.apart.high
    return f"{100 * told.apart.mean:+.0f} [{100 * low:+.0f}, {100 * high:+.0f}] ({told.verdict})"


def share(cell: Mapping[str, Any], *, graded: bool) -> str:
    told = interval(list(cell["scores"].values()), graded=graded)
    return f"{100 * told.mean:.0f} [{100 * told.low:.0f}, {100 * told.high:.0f}]"


def singles(cells: Cells, set: str) -> dict[str, Mapping[str, Any]]:
    return {member: cells[name(set, member)] for member in BEST if name(set, member) in cells}


# --- tables -----------------------------------------------------------------------------------------------------


def main_rows(cells: Cells, asks: Mapping[str, Set]) -> Iterator[list[str]]:
    for set, one in asks.items():
        alone, whole = singles(cells, set), cells.get(name(set))
        if len(alone) < len(BEST) or not whole:
            continue
        graded = one.task.graded
        oracle = {q: max(cell["scores"][q] for cell in alone.values()) for q in whole["scores"]}
        yield [
            f"{set} ({len(whole['scores'])})",
            *(share(alone[member], graded=graded) for member in BEST),
            share({"scores": oracle}, graded=graded),
            f"**{share(whole, graded=graded)}**",
            against(whole, alone, graded=graded),
        ]


def fate_rows(cells: Cells, asks: Mapping[str, Set]) -> Iterator[list[str]]:
    """What becomes of questions that both members, one, or none of them got right alone."""
    every: dict[int, list[float]] = {2: [], 1: [], 0: []}
    for set, one in asks.items():
        alone, whole = singles(cells, set), cells.get(name(set))
        if len(alone) == len(BEST) and whole and not one.task.graded:
            by_right: dict[int, list[float]] = {2: [], 1: [], 0: []}
            for question, score in whole["scores"].items():
                by_right[int(sum(cell["scores"][question] for cell in alone.values()))].append(score)
            every = {right: every[right] + by_right[right] for right in every}
            yield [set, *(_of(by_right[right]) for right in every)]
    yield ["all", *(_of(scores) for scores in every.values())]


def _of(scores: Sequence[float]) -> str:
    return f"{sum(scores):.0f} of {len(scores)}"


def conduct_rows(cells: Cells, asks: Mapping[str, Set]) -> Iterator[list[str]]:
    """How answers came about, not how good they are."""
    for set in asks:
        for panel in (*BEST, "both"):
            cell = cells.get(name(set, panel))
            if cell:
                count = sum(cell["finish"].values())
                yield [
                    set,
                    panel,
                    f"{cell['tokens']:.0f}",
                    f"{100 * cell['finish'].get('stop', 0) / count:.0f}%",
                    f"{100 * cell['said_again']:.0f}%",
                    f"{cell['rounds']:.1f}",
                    _percent(cell["coinciding"]),
                    f"{100 * cell['wins'].get(GEMMA, 0.0):.0f}%" if panel == "both" else "",
                    ", ".join(f"{what} {100 * value:.0f}%" for what, value in cell.get("numbers", {}).items()),
                ]


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.0f}%"


def setting_rows(cells: Cells, asks: Mapping[str, Set], wanted: Callable[[str, str], bool]) -> Iterator[list[str]]:
    """Cells by what was changed, sets beside each other."""
    told: dict[tuple[str, str], dict[str, Mapping[str, Any]]] = {}
    for key, cell in cells.items():
        set, panel, chosen = key.split(" | ")
        if wanted(panel, chosen) and name(set) in cells and len(singles(cells, set)) == len(BEST):
            told.setdefault((panel, chosen), {})[set] = cell
    for (panel, chosen), by_set in told.items():
        for set, cell in by_set.items():
            graded = asks[set].task.graded
            yield [
                panel if chosen == "defaults" else f"{panel}: `{chosen}`" if panel != "both" else f"`{chosen}`",
                f"{set} ({len(cell['scores'])})",
                share(cell, graded=graded),
                points(cell, cells[name(set)], graded=graded),
                against(cell, singles(cells, set), graded=graded),
                f"{cell['members_a_round']:.2f}",
                _percent(cell["said_again"]),
            ]


HEAD = [
    "what",
    "set (questions)",
    "score",
    "over the defaults",
    "over the best member",
    "members a round",
    "said again",
]


CONDUCT = (
    "set",
    "who",
    "tokens",
    "ended by itself",
    "said again",
    "rounds",
    "drafts coincide",
    f"{GEMMA} won",
    "also",
)
JUDGED = ("ours", "facts", "chinese", "ifeval")


def choice_rows(cells: Cells, chosen: str, pairs: Callable[[Cells, str], list[Choice]]) -> Iterator[list[str]]:
    """Rules on the same drafts: how often the better one is taken, where one is right and one is not."""
    by_set = {set: pairs(cells, set) for set in JUDGED if "choices" in cells.get(name(set, "both", chosen), {})}
    yield ["who chooses", *by_set, "all"]
    for told, rule in rules(BEST, neutral=chosen != HEARD).items():
        rights = [decided(choices, rule) for choices in by_set.values()]
        yield [told, *(_of(one) for one in (*rights, [hit for one in rights for hit in one]))]


def whole_answers(cells: Cells, set: str) -> list[Choice]:
    """Whole answers, each graded."""
    return _choices(cells, name(set, "both", f"{HEARD} segment_tokens=all"))


def first_drafts(cells: Cells, set: str) -> list[Choice]:
    """The first round's drafts, each graded by the answer that its writer gives alone."""
    alone = {member: cell["scores"] for member, cell in singles(cells, set).items()}

    def graded(choice: Choice) -> Choice:
        told = [replace(d, right=max(alone[who][choice.question] for who in d.authors)) for d in choice.drafts]
        return replace(choice, drafts=tuple(told))

    return [graded(choice) for choice in _choices(cells, name(set, "both", HEARD)) if choice.round == 1]


def _choices(cells: Cells, key: str) -> list[Choice]:
    return [Choice.read(told) for told in cells.get(key, {}).get("choices", ())]


def gap_rows(cells: Cells) -> Iterator[list[str]]:
    """How loud each verifier's vote is, and what it says of the other's drafts."""
    for set in JUDGED:
        every = _choices(cells, name(set, "both", HEARD))
        kinds = {"first drafts": [c for c in every if c.round == 1], "all segments": every}
        for kind, choices in {**kinds, "whole answers": whole_answers(cells, set)}.items():
            if choices:
                yield [
                    set,
                    kind,
                    str(len(choices)),
                    *(f"{statistics.fmean(gaps(choices, member)):.2f}" for member in BEST),
                    *(f"{statistics.fmean(said_of(choices, *pair)):.2f}" for pair in ((GEMMA, SMOL), (SMOL, GEMMA))),
                    f"{100 * statistics.fmean(choice.winner == GEMMA for choice in choices):.0f}%",
                ]


# --- the page ---------------------------------------------------------------------------------------------------


def page(results: Mapping[str, Any], asks: Mapping[str, Set]) -> str:
    cells: Cells = results["cells"]
    about = [
        [set, one.about + (" (ours)" if one.ours else ""), str(len(one.task.questions)), str(one.task.max_tokens)]
        for set, one in asks.items()
    ]
    parts = [
        INTRODUCTION.format(dtype=results.get("dtype", "")),
        table(["set", "what it is", "questions", "tokens an answer"], about),
        "## The ensemble and its members",
        MAIN,
        table(
            ["set (questions)", *BEST, "oracle", "both, defaults", "over the best member"], list(main_rows(cells, asks))
        ),
        FATES,
        table(["set", "both right alone", "one right alone", "none right alone"], list(fate_rows(cells, asks))),
        table(CONDUCT, list(conduct_rows(cells, asks))),
        "## Who can judge?",
        JUDGES,
        _headed(choice_rows(cells, f"{HEARD} segment_tokens=all", whole_answers)),
        FIRST_DRAFTS,
        _headed(choice_rows(cells, HEARD, first_drafts)),
        GAPS,
        table(GAP_HEAD, list(gap_rows(cells))),
        "## Settings",
        SETTINGS,
        table(HEAD, list(setting_rows(cells, asks, lambda panel, chosen: panel == "both" and chosen != "defaults"))),
        "## Other members",
        table(HEAD, list(setting_rows(cells, asks, lambda panel, chosen: panel not in (*BEST, "both")))),
    ]
    notes = Path(__file__).with_name("quality_notes.md")
    return "\n\n".join(part for part in [*parts, notes.read_text().strip() if notes.exists() else ""] if part) + "\n"


INTRODUCTION = """# The study on real members

Written by `benchmarks/quality.py --page` from what it measured: no number in a table is typed in by hand.

Two small real models answer together: SmolLM2-135M-Instruct, a chat model for English, and Gemma-3-270M, a base model
that knows many languages and gets a plain template. Weights in {dtype}, on one thread of a processor. Everything is
greedy but where a temperature is named. Brackets are 95% intervals. The sets are small: what is not said to be better
or worse is open. Sets that are ours were written for this study, by the same people as the method, and prove nothing
about published ones."""
MAIN = """With the defaults. Against the best member: the interval holds whoever is truly the best, and "better" and
"worse" are corrected for having picked the best on the same questions ([evaluation](evaluation.md))."""
FATES = """How often the ensemble is right where both members are right alone, where one is, and where none is."""
JUDGES = """Whole answers of both members, one of them to be chosen: the cell with one round. Only questions count on
which one answer is right and the other is not. All rules choose among the same answers with the same numbers."""
FIRST_DRAFTS = """The same for the first round: drafts of about ten tokens, each called right if the
answer that its writer gives alone is."""
GAPS = """How far each verifier puts its own draft above the other's, in mean log-probability: the larger gap decides a
vote of two. Then what each says of the other's drafts, and how often Gemma's is chosen."""
GAP_HEAD = (
    "set",
    "drafts",
    "votes",
    f"gap of {SMOL}",
    f"gap of {GEMMA}",
    f"{GEMMA} of {SMOL}'s",
    f"{SMOL} of {GEMMA}'s",
    f"{GEMMA} won",
)
SETTINGS = "One thing changed at a time; the intervals are paired, on the questions that both were asked."
