"""The experiments of SpecFuse v2 and SpecEM, and the checks that follow from them, with this
package.

    python studies/paper.py                  # every table whose members fit on this machine
    python studies/paper.py --plan           # only what fits, and how long it takes
    python studies/paper.py --plan --gpus 80
    python studies/paper.py --table --out studies/paper.json

Before the run, the script prints the memory that each group of members needs on this machine and
leaves out the tables whose members do not fit. Then every system answers a few development
questions, and the script prints the hours that the rest takes at that pace. A stopped run continues.

The members are ours: the texts of the papers that we could read name sizes, not models. Other
members are named with ``--members``: ``vllm:`` and hub ids, folders, GGUF files, addresses.

Needs the extras ``hub`` and ``server`` of the package, vLLM, and for the sets ``pip install
pyarrow rouge-score lm-eval langdetect immutabledict nltk``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import hub_sets
from cases import DEVELOPMENT, SEALED
from forecast import Pace, ask_plan, forecast, keys_left, single_plans
from rows import Row, about
from systems import chosen

from langchain_specfuse.chat.members import ensemble_for, unload
from langchain_specfuse.chat.references import names_of
from langchain_specfuse.cli import plan as plan_command
from langchain_specfuse.core.member import Member
from langchain_specfuse.core.options import Settings
from langchain_specfuse.errors import SpecFuseError, UsageError, advised
from langchain_specfuse.evaluation import Graded, Plan, Report, Results, System, Task, summary
from langchain_specfuse.evaluation.comparison import by_system, compared
from langchain_specfuse.evaluation.tasks import digest
from langchain_specfuse.members.planning import gpus

COUNT = 300
"""Sealed questions of each set."""
MEASURED = 16
"""Development questions of each set, as many as are asked at once."""

GROUPS: Mapping[str, tuple[str, ...]] = {
    "five": (
        "vllm:meta-llama/Llama-3.1-8B-Instruct",
        "vllm:Qwen/Qwen2.5-7B-Instruct",
        "vllm:mistralai/Mistral-7B-Instruct-v0.3",
        "vllm:google/gemma-2-9b-it",
        "vllm:tiiuae/Falcon3-7B-Instruct",
    ),
    "three": (
        "vllm:meta-llama/Llama-3.1-8B-Instruct",
        "vllm:Qwen/Qwen2.5-7B-Instruct",
        "vllm:mistralai/Mistral-7B-Instruct-v0.3",
    ),
    "mixed": (
        "vllm:meta-llama/Llama-3.2-1B-Instruct",
        "vllm:meta-llama/Llama-3.1-8B-Instruct",
        "vllm:hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4",
    ),
    "large": (
        "vllm:meta-llama/Llama-3.3-70B-Instruct",
        "vllm:Qwen/Qwen2.5-72B-Instruct",
        "vllm:nvidia/Llama-3.1-Nemotron-70B-Instruct-HF",
    ),
}
"""Members that are loaded together, the largest last where their sizes differ."""

ALONE, SPECFUSE, SPECEM = "singles", "SpecFuse:method=specfuse", "SpecEM:method=specem"
OURS = "robust:method=robust"
EXACT = ("gsm8k", "mmlu", "arc", "ifeval", "dolly")


@dataclass(frozen=True)
class Table:
    """A table: some systems of one group of members on some sets."""

    title: str
    group: str
    systems: tuple[str, ...]
    """As ``systems.py`` reads them. ``{largest}`` is the last member."""
    sets: tuple[str, ...] = ("gsm8k", "ifeval")
    reported: Mapping[str, str] = field(default_factory=dict)
    """System -> how many members take part in a round, according to the paper."""


TABLES: Mapping[str, Table] = {
    "main": Table("Five members of 7B to 9B", "five", (ALONE, SPECFUSE, SPECEM, OURS), EXACT),
    "exit": Table(
        "Members that leave, and no exit",
        "five",
        (SPECFUSE, "SpecFuse without exit:method=specfuse,exit=never"),
        reported={"SpecFuse": "2.4 of 5", "SpecFuse without exit": "5 of 5"},
    ),
    "one-gpu": Table(
        "Three members on one GPU of 80 GB", "three", (ALONE, SPECFUSE, SPECEM, OURS), EXACT
    ),
    "segments": Table(
        "Sizes of segments (10 tokens by default), and one round",
        "three",
        (
            SPECEM,
            "5 tokens:method=specem,segment_tokens=5",
            "20 tokens:method=specem,segment_tokens=20",
            "40 tokens:method=specem,segment_tokens=40",
            "one round:method=specem,segment_tokens=4096",
        ),
    ),
    "temperature": Table(
        "Temperature 1, and greedy",
        "three",
        (
            SPECEM,
            "SpecEM at 1:method=specem,temperature=1.0",
            SPECFUSE,
            "SpecFuse at 1:method=specfuse,temperature=1.0",
        ),
    ),
    "long": Table(
        "Long texts: at least 300 words", "three", (ALONE, SPECFUSE, SPECEM, OURS), ("long",)
    ),
    "mixed": Table(
        "Mixed sizes: 1B, 8B and 70B",
        "mixed",
        (ALONE, SPECFUSE, SPECEM, OURS, "the largest leads:method=robust,lead={largest}"),
        EXACT,
    ),
    "large": Table("Three members of 70B to 72B", "large", (ALONE, SPECFUSE, SPECEM, OURS), EXACT),
}


# --- what is asked --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Group:
    """Members that are loaded together, and their tables."""

    name: str
    references: tuple[str, ...]
    tables: tuple[str, ...]

    def answers(self, folder: Path, part: str) -> Path:
        """Where the answers to the questions of a part are stored."""
        return folder / self.name / part

    def pace(self, folder: Path) -> Pace:
        return Pace(folder / self.name / "pace.json")


def groups_of(tables: Sequence[str], members: Sequence[str] | None) -> list[Group]:
    """The groups of these tables; a single one if members are given."""
    if members:
        name = f"own-{digest(list(members))[:6]}"  # other members have another pace
        return [Group(name, tuple(members), tuple(tables))]
    needed = dict.fromkeys(TABLES[name].group for name in tables)
    return [
        Group(name, GROUPS[name], tuple(one for one in tables if TABLES[one].group == name))
        for name in needed
    ]


def plans(
    table: str, members: Mapping[str, Member], tasks: Mapping[str, Task], at_once: int
) -> Iterator[Plan]:
    """The plan of each set of a table that is asked."""
    for name in TABLES[table].sets:
        if name in tasks:
            settings = Settings(max_tokens=tasks[name].max_tokens, lead=None, seed=0)
            systems = systems_of(TABLES[table], list(members), settings)
            yield Plan(tasks[name], systems, members, at_once=at_once)


def systems_of(table: Table, members: Sequence[str], settings: Settings) -> tuple[System, ...]:
    """The systems of a table with these members."""
    names = [name.replace("{largest}", members[-1]) for name in table.systems]
    return tuple(chosen(names, members, settings))


def remaining(
    group: Group, tasks: Mapping[str, Task], results: Results, at_once: int
) -> dict[str, int]:
    """How many answers of a group are left, by what is asked. Tables share answers."""
    members = ensemble_for(group.references).members
    left: dict[str, set[str]] = {}
    for table in group.tables:
        for plan in plans(table, members, tasks, at_once):
            for what, single in single_plans(plan.task.name, plan):
                left.setdefault(what, set()).update(keys_left(single, results))
    return {what: len(keys) for what, keys in left.items()}


def ask(
    group: Group,
    tasks: Mapping[str, Task],
    part: str,
    folder: Path,
    at_once: int,
    store: Callable[[str, list[Row]], None] | None = None,
) -> None:
    """Ask everything of a group that has no answer yet. ``store`` gets the rows of a table after
    each system."""
    ensemble = ensemble_for(group.references)
    members, pace = ensemble.members, group.pace(folder)
    with Results(group.answers(folder, part)) as results:
        if any(remaining(group, tasks, results, at_once).values()):
            ensemble.loaded().result()  # before the clock runs
        for table in group.tables:
            planned = list(plans(table, members, tasks, at_once))
            for plan in planned:
                for what, single in single_plans(plan.task.name, plan):
                    print(f"{group.name}, {table}, {part}: {what}", file=sys.stderr, flush=True)
                    ask_plan(what, single, results, pace)
                    if store:
                        store(table, rows_of(planned, results, pace))


# --- memory and hours -----------------------------------------------------------------------------


def memory_plan(group: Group, described: str | None) -> tuple[str, bool]:
    """What ``langchain-specfuse plan`` says about the members of a group, and whether they fit on
    this machine, or on a described one."""
    words = ["--members", *group.references]
    if described:
        words += ["--gpus", described]
    out = StringIO()
    try:
        plan_command.run(plan_command.parser().parse_args(words), out)
    except SpecFuseError as error:
        return f"{out.getvalue()}{with_notes(error)}".strip(), False
    return out.getvalue().strip(), True


def hours_plan(
    groups: Sequence[Group], tasks: Mapping[str, Task], folder: Path, at_once: int
) -> str:
    """How many answers are left, and how long they take at the pace that was measured."""
    lines = []
    for group in groups:
        left = remaining(group, tasks, Results(group.answers(folder, SEALED)), at_once)
        shown = forecast(left, group.pace(folder).seconds_each)
        lines += [f"{group.name}:", *(f"  {line}" for line in shown)]
    return "\n".join(lines)


def is_measured(group: Group, tasks: Mapping[str, Task], folder: Path, at_once: int) -> bool:
    """Whether the pace of everything that is left is known."""
    left = remaining(group, tasks, Results(group.answers(folder, SEALED)), at_once)
    pace = group.pace(folder)
    return all(pace.seconds_each(what) for what, answers in left.items() if answers)


# --- rows -----------------------------------------------------------------------------------------


def rows_of(plans: Iterable[Plan], results: Results, pace: Pace) -> list[Row]:
    """A row for each system of a table, with a cell for each set that it has answered."""
    cells: dict[str, dict[str, Any]] = {}
    for plan in plans:
        asks = [ask.key for system in plan.systems for ask in plan.asks(system)]
        answers = results.answers(asks)
        report, grouped = summary(plan, answers), by_system(answers)
        for system in plan.systems:
            own = cells.setdefault(system.name, {})
            row, graded = report.row(system.name), grouped[system.name]
            if row is not None:
                own[plan.task.name] = {
                    **{name: round(getattr(row, name), 4) for name in CELL},
                    "rounds": sum(one.rounds for one in graded),
                    "drafts": sum(one.drafts for one in graded),
                    "by the clock": pace.seconds_each(f"{plan.task.name}, {system.name}"),
                    **against(plan, report, graded, grouped[plan.systems[0].name]),
                }
    return [{"system": name, "sets": own} for name, own in cells.items()]


CELL = ("questions", "score", "failed", "tokens", "passes", "seconds")


def against(plan: Plan, report: Report, own: Sequence[Graded], first: Sequence[Graded]) -> Row:
    """Whether a system is better than each member alone or, in a table without single members, how
    it compares with the first system."""
    name = own[0].system
    if any(system.alone for system in plan.systems):
        return {"verdict": report.verdict(name)} if report.against_members(name) else {}
    if not first or first[0].system == name:
        return {}
    found = compared(own, first)
    return {"won": found.wins, "lost": found.losses, "p": round(found.p, 4)}


def members_per_round(row: Row) -> float | None:
    """How many members took part in a round of a system, on average; None without answers."""
    rounds = sum(cell["rounds"] for cell in row["sets"].values())
    drafts = sum(cell["drafts"] for cell in row["sets"].values())
    return round(drafts / rounds, 2) if rounds else None


class Stored:
    """The rows of all tables, in a file beside the answers."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "rows.json"
        self.tables: dict[str, Any] = {}
        if self.path.exists():
            self.tables = json.loads(self.path.read_text("utf-8"))

    def add(self, group: Group, table: str, rows: list[Row]) -> None:
        """Store the rows of a table. Sets that were asked before, of the same members, stay."""
        made = about()
        made["machine"] = ", ".join(gpu.name for gpu in gpus()) or made["machine"]
        members = list(group.references)
        before = self.tables.get(table, {})
        is_known = before.get("members") == members
        known = {row["system"]: row["sets"] for row in before["rows"]} if is_known else {}
        rows = [
            {**row, "sets": _merged(known.get(row["system"], {}), row["sets"], made)}
            for row in rows
        ]
        self.tables[table] = {"about": made, "members": members, "rows": rows}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self.tables, indent=1) + "\n", "utf-8")


def _merged(known: Row, sets: Row, made: Row) -> Row:
    """The cells of a system, each with where it comes from. One that has not changed keeps it."""
    merged = dict(known)
    for name, cell in sets.items():
        before = known.get(name, {})
        if before != {**cell, "about": before.get("about")}:
            merged[name] = {**cell, "about": made}
    return merged


def page(folder: Path) -> dict[str, Any]:
    """Everything that the page shows: all tables, also those that were not run, and the sets."""
    stored, record = Stored(folder).tables, folder / "sets.json"
    read = json.loads(record.read_text("utf-8")) if record.exists() else {}
    tables = []
    for name, table in TABLES.items():
        found = stored.get(name, {})
        members = found.get("members") or list(GROUPS[table.group])
        rows = found.get("rows") or not_run(table, members)
        tables.append(
            {
                "table": name,
                "title": table.title,
                "members": members,
                "sets": list(table.sets),
                "reported": dict(table.reported),
                "about": found.get("about", {}),
                "rows": [{**row, "members per round": members_per_round(row)} for row in rows],
            }
        )
    sets = [
        {
            "set": name,
            "repository": one.repository,
            "licence": one.licence,
            "measure": one.measure,
            "revision": read.get(name, {}).get("revision") or one.revision,
        }
        for name, one in hub_sets.SETS.items()
    ]
    return {"sets": sets, "tables": tables}


def not_run(table: Table, members: Sequence[str]) -> list[Row]:
    """The rows of a table that was not run."""
    systems = systems_of(table, names_of(members), Settings(lead=None))
    return [{"system": one.name, "sets": {}} for one in systems]


def lines_of(table: Mapping[str, Any]) -> Iterator[str]:
    """A table for the terminal."""
    yield f"{table['title']} ({', '.join(table['members'])})"
    for row in table["rows"]:
        cells = [
            f"{name} {100 * cell['score']:.1f} of {cell['questions']}"
            for name, cell in row["sets"].items()
        ]
        yield f"  {row['system']}: {', '.join(cells) or 'not run'}"


# --- the run --------------------------------------------------------------------------------------


def tasks_of(
    tables: Sequence[str], sets: Sequence[str], part: str, count: int, options: Any
) -> dict[str, Task]:
    """The questions of all sets that these tables ask."""
    wanted = dict.fromkeys(one for name in tables for one in TABLES[name].sets if one in sets)
    missing = hub_sets.missing_packages(list(wanted))
    if missing:
        error = UsageError(f"the sets {', '.join(wanted)} need {', '.join(missing)}")
        install = " ".join(missing).replace("_", "-")
        raise advised(error, f"pip install {install}; or choose others with --sets")
    return {name: hub_sets.task(name, part, count, options.folder, options.data) for name in wanted}


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--sets", nargs="+", choices=hub_sets.SETS, default=list(hub_sets.SETS))
    parser.add_argument("--members", nargs="+", help="in place of the members of every table")
    parser.add_argument("--data", type=Path, help="a folder of files with the sets' questions")
    parser.add_argument(
        "--questions", type=int, default=COUNT, help="sealed questions of each set (%(default)s)"
    )
    parser.add_argument(
        "--measured",
        type=int,
        default=MEASURED,
        help="development questions of each set that measure the pace (%(default)s)",
    )
    parser.add_argument(
        "--at-once", type=int, default=16, help="how many questions are asked at once"
    )
    parser.add_argument("--folder", type=Path, default=Path("specfuse-study/paper"))
    parser.add_argument("--gpus", help="with --plan: another machine's GPUs, such as 80 or 4x80")
    parser.add_argument(
        "--plan", action="store_true", help="only say what fits and how long it takes"
    )
    parser.add_argument("--table", action="store_true", help="only show the results so far")
    parser.add_argument("--out", type=Path, help="write what the page shows as JSON")
    return parser


def main(words: Sequence[str] | None = None) -> int:
    arguments = parser()
    options = arguments.parse_args(words)
    if options.gpus and not options.plan:
        arguments.error("--gpus describes another machine: add --plan")
    try:
        if options.table:
            return show(options)
        return study(options)
    except SpecFuseError as error:
        print(f"error: {with_notes(error)}", file=sys.stderr)
        return 1


def study(options: argparse.Namespace) -> int:
    """Plan, measure and ask. Returns 1 if a group could not be asked."""
    fitting, failed = [], False
    for group in groups_of(options.tables, options.members):
        text, fits = memory_plan(group, options.gpus)
        verdict = "fits" if fits else "is left out"
        print(f"{group.name} ({', '.join(group.tables)}) {verdict}\n{text}\n", flush=True)
        if fits:
            fitting.append(group)
    if options.gpus or not fitting:
        return 0 if options.plan else 1
    tables = [table for group in fitting for table in group.tables]
    sealed = tasks_of(tables, options.sets, SEALED, options.questions, options)
    if options.plan:
        print(hours_plan(fitting, sealed, options.folder, options.at_once))
        return 0
    pilot = tasks_of(tables, options.sets, DEVELOPMENT, options.measured, options)
    loaded = Loaded()
    for group in list(fitting):
        if is_measured(group, sealed, options.folder, options.at_once):
            continue
        if not asked(group, pilot, DEVELOPMENT, options, loaded):
            fitting.remove(group)
            failed = True
    print(hours_plan(fitting, sealed, options.folder, options.at_once), flush=True)
    # The members that are loaded come first.
    for group in sorted(fitting, key=lambda group: group is not loaded.group):
        failed |= not asked(group, sealed, SEALED, options, loaded)
    loaded.use(None)
    show(options)
    return int(failed)


class Loaded:
    """The group whose members may be in memory. Only one is at a time."""

    def __init__(self) -> None:
        self.group: Group | None = None

    def use(self, group: Group | None) -> None:
        """Free the members of another group."""
        if self.group is not None and self.group is not group:
            unload(*self.group.references)
        self.group = group


def asked(
    group: Group, tasks: Mapping[str, Task], part: str, options: argparse.Namespace, loaded: Loaded
) -> bool:
    """Ask a group. Returns False if its members failed; the other groups are asked nevertheless."""
    stored = Stored(options.folder)
    store = partial(stored.add, group) if part == SEALED else None
    loaded.use(group)
    try:
        ask(group, tasks, part, options.folder, options.at_once, store)
    except SpecFuseError as error:
        print(f"{group.name}: {with_notes(error)}", file=sys.stderr, flush=True)
        return False
    return True


def with_notes(error: SpecFuseError) -> str:
    """What happened, and what to do."""
    return "\n".join([str(error), *getattr(error, "__notes__", ())])


def show(options: argparse.Namespace) -> int:
    """Print all tables, and write them as JSON if there is a file."""
    content = page(options.folder)
    for table in content["tables"]:
        print("\n".join(lines_of(table)), flush=True)
    if options.out:
        options.out.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
