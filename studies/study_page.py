"""docs/study.md from studies/specialists.json: every number on the page was measured by the script."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from skills import ASKED, SKILLS

from langchain_specfuse.evaluation.statistics import difference, interval

World = dict[str, Any]


def share(hits: Sequence[bool]) -> str:
    found = interval([float(hit) for hit in hits])
    return f"{100 * found.mean:.0f}% [{100 * found.low:.0f}, {100 * found.high:.0f}]"


def paired(one: Sequence[bool], other: Sequence[bool]) -> str:
    """How many points ``one`` is better than ``other`` on the same questions."""
    found = difference([float(hit) for hit in one], [float(hit) for hit in other])
    return f"{100 * found.mean:+.0f} [{100 * found.low:+.0f}, {100 * found.high:+.0f}]"


def whole(world: World, name: str, wanted: Callable[[str], bool]) -> list[bool]:
    """Which questions of a kind this cell answered wholly right."""
    marks = world["cells"][name]["marks"]
    return ["0" not in mark for mark, kind in zip(marks, world["kinds"], strict=True) if wanted(kind)]


def mixed(kind: str) -> bool:
    return "+" in kind


def single(kind: str) -> bool:
    return not mixed(kind)


def anything(kind: str) -> bool:
    return True


def parts_right(world: World, name: str) -> list[bool]:
    """The mixed questions, part by part."""
    pairs = zip(world["cells"][name]["marks"], world["kinds"], strict=True)
    return [mark == "1" for marks, kind in pairs if mixed(kind) for mark in marks]


def led(world: World, name: str) -> list[bool]:
    """Where the specialist had the highest weight, among skills whose specialist gets half of them right alone."""
    kinds = [kind for kind in world["kinds"] if single(kind)]
    masters = {skill for skill in ASKED if 2 * sum(_alone(world, skill)) >= len(_alone(world, skill))}
    return [mark == "1" for mark, kind in zip(world["cells"][name]["leads"], kinds, strict=True) if kind in masters]


def _alone(world: World, skill: str) -> list[bool]:
    return whole(world, f"alone {skill}", lambda kind: kind == skill)


def routed(world: World) -> list[bool]:
    """The single questions, each as its specialist alone answered it: what a perfect router would reach."""
    pairs = enumerate(world["kinds"])
    return [world["cells"][f"alone {kind}"]["marks"][n] == "1" for n, kind in pairs if single(kind)]


def by_specialists(world: World) -> list[bool]:
    """The same parts, each as its specialist alone answered it."""
    return [
        world["cells"][f"alone {skill}"]["marks"][n][at] == "1"
        for n, kind in enumerate(world["kinds"])
        if mixed(kind)
        for at, skill in enumerate(kind.split("+"))
    ]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in lines)


def rows_of_members(world: World) -> list[list[str]]:
    names = [f"alone {skill}" for skill in SKILLS]

    def row(title: str, hits: Callable[[Callable[[str], bool]], list[bool]]) -> list[str]:
        kinds = [share(hits(lambda kind, skill=skill: kind == skill)) for skill in ASKED]  # type: ignore[misc]
        return [title, *kinds, share(hits(single)), share(hits(mixed))]

    def best(wanted: Callable[[str], bool]) -> list[bool]:
        return [any(column) for column in zip(*(whole(world, name, wanted) for name in names), strict=True)]

    def only(name: str) -> Callable[[Callable[[str], bool]], list[bool]]:
        return lambda wanted: whole(world, name, wanted)

    rows = [row(name.replace("alone", "alone:"), only(name)) for name in names]
    rows.append(row("oracle: whichever member is right", best))
    return [*rows, row("**ensemble, defaults**", only("defaults"))] if "defaults" in world["cells"] else rows


def rows_of_cells(world: World, names: Sequence[str]) -> list[list[str]]:
    top = max((f"alone {skill}" for skill in SKILLS), key=lambda name: sum(whole(world, name, anything)))
    rows = []
    for name in names:
        cell = world["cells"][name]
        rows.append(
            [
                f"`{name}`" if name != "defaults" else "defaults",
                share(whole(world, name, single)),
                share(whole(world, name, mixed)),
                paired(whole(world, name, anything), whole(world, "defaults", anything)),
                paired(whole(world, name, anything), whole(world, top, anything)),
                paired(whole(world, name, single), routed(world)),
                share(led(world, name)),
                f"{cell['members_a_round']:.2f}",
            ]
        )
    return rows


HEAD = ["options", "single right", "mixed right", "points over defaults", "points over the best member",
        "single: points over each one's specialist",
        "specialist leads in 4", "members per round"]  # fmt: skip


def page(results: dict[str, World]) -> str:
    text = [INTRODUCTION]
    for mode, world in results.items():
        text += [f"## {TITLES[mode]}", SETTINGS.format(**world, **_sizes(world))]
        text += [table(["", *ASKED, "all single", "mixed"], rows_of_members(world))]
        if "defaults" not in world["cells"]:
            continue
        text += [
            f"Parts of mixed questions right: ensemble {share(parts_right(world, 'defaults'))}, each part's specialist "
            f"alone {share(by_specialists(world))}; the ensemble is "
            f"{paired(parts_right(world, 'defaults'), by_specialists(world))} points better."
        ]
        text += [f"Points over the skill's specialist, defaults: {_by_skill(world, 'defaults')}."]
        names = [name for name in world["cells"] if not name.startswith("alone")]
        plain = [name for name in names if not world["cells"][name]["how"][0]]
        other = [name for name in names if name not in plain]
        text += ["### Options", table(HEAD, rows_of_cells(world, plain))]
        if other:
            text += ["### Experiments", EXPERIMENTS, table(HEAD, rows_of_cells(world, other))]
    text.append(Path(__file__).with_name("study_notes.md").read_text().strip())
    return "\n\n".join(text) + "\n"


def _by_skill(world: World, name: str) -> str:
    def gap(skill: str) -> str:
        def asked(kind: str) -> bool:
            return kind == skill

        return f"{skill} {paired(whole(world, name, asked), whole(world, f'alone {skill}', asked))}"

    return ", ".join(map(gap, ASKED))


def _sizes(world: World) -> dict[str, Any]:
    weights = [one["weights"] for one in world["members"].values()]
    versions = {cell.get("about", {}).get("version", "0.5.0") for cell in world["cells"].values()}
    return {"least": min(weights), "most": max(weights), "versions": " and ".join(sorted(versions))}


TITLES = {
    "vague": "Members that are unsure of what they do not know",
    "misled": "Members that are confident in what is wrong",
}
INTRODUCTION = """# The study: does the vote find out who knows?

Written by `studies/specialists.py --page` from what it measured: no number in a table is typed in by hand.

Five tiny models, trained from scratch, each with a tokenizer of its own. Four are to master one skill each: two-digit
sums digit by digit, capitals, opposites, the young of animals. The fifth was to turn lists of words round and did not
learn to in the time given: a member of little use, and it is not asked about lists. All have read the other skills in
the same form, but with only 0, 25 or 50% of the facts right. So it is known which member should decide. An answer
counts when it is right to the letter. Brackets are 95% intervals, as `langchain-specfuse eval` computes them. All is
greedy.

The members are tiny and the skills are narrow: the results say how the vote works, not how well large models answer."""
SETTINGS = (
    "{singles} questions of each skill and {mixed} mixed ones of two skills; {least:,} to {most:,} weights per member. "
    "Method `robust`, the default. Measured with version {versions}."
)
EXPERIMENTS = (
    "Other ways to count the scores / to reward, as in `studies/variants.py`; options that are not named have their "
    "defaults, but all verifiers count equally. `plain/by_wins` is the published way."
)
