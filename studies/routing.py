"""Does the doctor's router ask the right member? Made from development questions, applied to sealed
ones.

``specialists``: the members of ``specialists.py``. Each answers development questions alone; the
router is made from their marks. Each member's own answers to the sealed questions are stored in
``specialists.json``, so those of the members that the router chooses are looked up, and no sealed
question is asked.
``mixed``: three real models of different size on the questions of ``fusion.py``, which are asked here:
each member alone, the development part and the sealed part.

    python studies/routing.py specialists --members lora
    python studies/routing.py specialists --members tiny
    python studies/routing.py mixed --data FOLDER
    python studies/routing.py specialists --members lora --table

Marks and graded answers are kept, so a run that was stopped continues. ``--table`` shows the sealed
part; without it, only development numbers are shown. See ``preregistration.md``, section 9.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cases import DEVELOPMENT, SEALED, spread

from langchain_specfuse import LlamaCppMember
from langchain_specfuse.chat.routing import routed
from langchain_specfuse.core.options import Settings
from langchain_specfuse.core.routing import Router
from langchain_specfuse.core.values import Turn
from langchain_specfuse.demo import file_of
from langchain_specfuse.evaluation import Graded, Plan, Results, System, Task, run
from langchain_specfuse.evaluation.comparison import by_system, mean, scores_of, two_sided
from langchain_specfuse.evaluation.doctor import with_router
from langchain_specfuse.evaluation.gate import opens
from langchain_specfuse.evaluation.graders import Grade, Question
from langchain_specfuse.evaluation.running import Progress

STUDIES = Path(__file__).resolve().parent
WAYS = 4
"""What the gate divides its level by: the doctor compares the lead with about this many ways."""
WORLDS: Mapping[str, Sequence[str]] = {"lora": ("lora-1",), "tiny": ("vague-2", "misled-2")}
"""Worlds of ``specialists.json``."""
QUESTIONS = {
    "lora": {"members": "lora", "seed": 0, "singles": 20, "mixed": 12},
    "tiny": {"members": "tiny", "seed": 102, "singles": 40, "mixed": 24},
}
"""The questions that the routers are made from: no sealed question was drawn with these seeds, and
the questions for the adapters belong to the tuning part."""
DEVELOPMENT_COUNT, SEALED_COUNT = 40, 60
"""Questions of each set of ``fusion.py``, at most."""


# --- specialists ----------------------------------------------------------------------------------


def turns(parts: Any) -> tuple[Turn, ...]:
    from skills import question

    return (Turn("user", question(parts)),)


def development(kind: str, sealed: Mapping[str, Any]) -> list[Any]:
    """The questions that a router is made from: none of the sealed ones."""
    import specialists

    kept = specialists.questions(sealed["about"]["arguments"])
    return [parts for parts in specialists.questions(QUESTIONS[kind]) if parts not in kept]


def marks_of(world: str, asked: Sequence[Any], path: Path) -> dict[str, str]:
    """member -> its marks on the development questions, asked now if they are not stored."""
    import specialists
    import torch

    from langchain_specfuse.engine import Ensemble

    torch.set_num_threads(1)
    kind = "lora" if world.startswith("lora") else "tiny"
    results = json.loads(path.read_text()) if path.exists() else {}
    rows = results.setdefault(world, {})
    if kind == "lora":
        import lora_members

        members: Sequence[Any] = lora_members.members()
    else:
        import tiny_members

        members = tiny_members.members(world.partition("-")[0], 2)
    ensemble = Ensemble(members)
    ensemble.loaded().result()
    for name in ensemble.members:
        row = rows.setdefault(name, {"marks": "", "leads": "", "seconds": 0.0})
        way = specialists.ALONE + name
        settings = specialists.settings_of(way, specialists.KINDS[kind].max_tokens)
        for parts in asked[len(row["marks"].split()) :]:
            specialists.ask(ensemble, parts, settings, row)
            path.write_text(json.dumps(results, indent=1) + "\n")
        print(f"{world}, {name}: {row['marks'].count('1')} right", flush=True)
    return {name: row["marks"] for name, row in rows.items()}


def share(marks: str) -> float:
    """The share of a question's parts that were answered right."""
    return mean(map(int, marks))


def made_from(
    questions: Sequence[Question], alone: Mapping[str, Sequence[Graded]], title: str
) -> Router | None:
    """The router, if the gate opens. Prints the numbers of the development questions."""
    router, answers = with_router(questions, alone)
    best = best_of(alone)
    ours, theirs = scores_of(answers), scores_of(alone[best])
    wins = sum(ours[question] > theirs[question] for question in ours)
    losses = sum(ours[question] < theirs[question] for question in ours)
    opened = opens(wins, losses, WAYS)
    print(
        f"{title}: {len(ours)} development questions, router {mean(ours.values()):.3f}, "
        f"{best} alone {mean(theirs.values()):.3f}; {wins} won, {losses} lost: "
        f"{'opened' if opened else 'not opened'}",
        flush=True,
    )
    return router if opened else None


def best_of(alone: Mapping[str, Sequence[Graded]]) -> str:
    """The member that is right most often."""
    return max(alone, key=lambda name: mean(scores_of(alone[name]).values()))


def lead_of(router: Router | None, turns: Sequence[Turn], best: str) -> str:
    """The member that leads a question: the best single member if the gate is closed."""
    if router is None:
        return best
    return routed(router, turns).lead or best


def specialists_study(kind: str, path: Path, with_sealed: bool) -> None:
    import specialists

    marks_routed, others = "", {}
    stored = json.loads((STUDIES / "specialists.json").read_text())
    worlds = {world: stored[world] for world in WORLDS[kind]}
    for world, sealed in worlds.items():
        asked = development(kind, sealed)
        marks = marks_of(world, asked, path)
        alone = {
            name: [
                Graded("", name, str(n), 0, "", share(part), seconds=0.0)
                for n, part in enumerate(row.split())
            ]
            for name, row in marks.items()
        }
        labelled = [Question(str(n), turns(parts)) for n, parts in enumerate(asked)]
        router = made_from(labelled, alone, world)
        if not with_sealed:
            continue
        best = best_of(alone)
        for n, parts in enumerate(specialists.questions(sealed["about"]["arguments"])):
            lead = lead_of(router, turns(parts), best)
            marks_routed += sealed["ways"][specialists.ALONE + lead]["marks"].split()[n]
    if with_sealed:
        for way in next(iter(worlds.values()))["ways"]:
            rows = "".join(world["ways"][way]["marks"] for world in worlds.values())
            others[way] = rows.replace(" ", "")
        show(marks_routed, others)


def show(routed: str, others: Mapping[str, str]) -> None:
    """The router's marks against those of every other way."""
    print(f"router: {routed.count('1')} of {len(routed)} right")
    for way, marks in others.items():
        wins = sum(a > b for a, b in zip(routed, marks, strict=True))
        losses = sum(a < b for a, b in zip(routed, marks, strict=True))
        name = "knows the labels" if way == "router" else way
        print(
            f"  against {name:24} {marks.count('1')} right; wins {wins}, loses {losses}, "
            f"p = {two_sided(wins, losses):.3g}"
        )


# --- three models ---------------------------------------------------------------------------------


class Mixed:
    """Three models, each alone, on the four sets of ``fusion.py``."""

    def __init__(self, data: Path, folder: Path, at_once: int) -> None:
        import fusion

        self.sets = fusion.SETS
        self.members = {
            file.name: LlamaCppMember(file_of(file), name=file.name, **file.options)
            for file in fusion.FILES
        }
        self._data, self._folder, self._at_once = data, folder, at_once

    def asked(self, part: str, count: int) -> tuple[list[Question], dict[str, list[Graded]]]:
        """The questions of a part, and each member's graded answers."""
        questions: list[Question] = []
        answers: list[Graded] = []
        for name in self.sets:
            new, graded = self._set(name, part, count)
            questions += new
            answers += graded
        grouped = by_system(answers)
        return questions, {name: grouped[name] for name in self.members}

    def _set(self, name: str, part: str, count: int) -> tuple[Sequence[Question], list[Graded]]:
        cases = {case.id: case for case in spread(self.sets[name].cases(part, self._data), count)}
        questions = tuple(Question(case.id, (Turn("user", case.text),)) for case in cases.values())

        def grade(question: Question, answer: str) -> Grade:
            return Grade(float(cases[question.id].grade(answer).right))

        task = Task(f"routing {part} {name}", questions, grade, mark="1")
        settings = Settings(max_tokens=self.sets[name].max_tokens)
        singles = tuple(System(member, (member,), settings) for member in self.members)
        plan = Plan(task, singles, self.members, at_once=self._at_once)
        with Results(self._folder / part / name) as results:
            answers = run(plan, results, watch=Progress(sys.stderr))
        return questions, answers


def mixed_study(mixed: Mixed, with_sealed: bool) -> None:
    questions, alone = mixed.asked(DEVELOPMENT, DEVELOPMENT_COUNT)
    router = made_from(questions, alone, "mixed")
    if not with_sealed:
        return
    best = best_of(alone)
    questions, sealed = mixed.asked(SEALED, SEALED_COUNT)
    scores = {name: scores_of(graded) for name, graded in sealed.items()}
    passes = {
        name: {answer.question: answer.passes for answer in graded}
        for name, graded in sealed.items()
    }
    leads = {item.id: lead_of(router, item.turns, best) for item in questions}
    routed = "".join(str(int(scores[leads[item.id]][item.id])) for item in questions)
    others = {
        name: "".join(str(int(own[item.id])) for item in questions) for name, own in scores.items()
    }
    show(routed, others)
    used = sum(passes[lead][question] for question, lead in leads.items())
    print(f"passes: {used / max(sum(passes[best].values()), 1):.2f} times those of {best} alone")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", choices=("specialists", "mixed"))
    parser.add_argument("--members", choices=QUESTIONS, default="lora")
    parser.add_argument("--data", type=Path, help="the folder of the sets that are not made here")
    parser.add_argument("--folder", type=Path, default=Path("specfuse-study/routing"))
    parser.add_argument("--threads", type=int, default=1, help="of each member")
    parser.add_argument(
        "--at-once", type=int, default=1, help="questions that are asked in parallel"
    )
    parser.add_argument("--table", action="store_true", help="also show the sealed part")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    if options.study == "specialists":
        return specialists_study(options.members, STUDIES / "routing.json", options.table)
    if options.data is None:
        parser.error("--data is missing: the folder of the sets that are not made here")
    mixed = Mixed(options.data, options.folder, options.at_once)
    return mixed_study(mixed, options.table)


if __name__ == "__main__":
    main()
