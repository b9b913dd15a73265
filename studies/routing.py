"""Does the doctor's router ask the right member? Made from development questions, applied to sealed
ones.

``specialists``: the members of ``specialists.py``. Each answers development questions alone; the
router is made from their marks. What each member answers to the sealed questions alone is stored in
``specialists.json``, so the router's choice there is looked up, and no sealed question is asked.
``mixed``: three real models of different size on the questions of ``questions.py``, which are asked
here: each member alone, the calibration part and the sealed part.

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
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from langchain_specfuse.core.options import Settings
from langchain_specfuse.core.routing import Router, features_of
from langchain_specfuse.core.values import Turn
from langchain_specfuse.evaluation import Graded, Plan, Results, System, Task, run
from langchain_specfuse.evaluation.comparison import by_system, mean, scores_of, two_sided
from langchain_specfuse.evaluation.doctor import with_router
from langchain_specfuse.evaluation.gate import opens
from langchain_specfuse.evaluation.graders import Question

STUDIES = Path(__file__).resolve().parent
WAYS = 4
"""What the gate divides its level by: the doctor compares the lead with about as many ways."""
SEALED: Mapping[str, Sequence[str]] = {"lora": ("lora-1",), "tiny": ("vague-2", "misled-2")}
"""Worlds of ``specialists.json``."""
DEVELOPMENT = {
    "lora": {"members": "lora", "seed": 0, "singles": 20, "mixed": 12},
    "tiny": {"members": "tiny", "seed": 102, "singles": 40, "mixed": 24},
}
"""Which questions the routers are made from: their seed is not that of any sealed question, and
those of adapters are of the tuning part."""
CALIBRATION, SEALED_COUNT = 40, 60
"""Questions of each set of ``questions.py``."""


# --- specialists ----------------------------------------------------------------------------------


def turns(parts: Any) -> tuple[Turn, ...]:
    from skills import question

    return (Turn("user", question(parts)),)


def marks_of(world: str, path: Path) -> dict[str, str]:
    """member -> its marks on the development questions, asked now if they are not stored."""
    import specialists
    import torch

    from langchain_specfuse.engine import Ensemble

    torch.set_num_threads(1)
    kind = "lora" if world.startswith("lora") else "tiny"
    results = json.loads(path.read_text()) if path.exists() else {}
    rows = results.setdefault(world, {})
    asked = specialists.questions(DEVELOPMENT[kind])
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
    router, routed = with_router(questions, alone)
    best = max(alone, key=lambda name: mean(scores_of(alone[name]).values()))
    ours, theirs = scores_of(routed), scores_of(alone[best])
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


def specialists_study(kind: str, path: Path, with_sealed: bool) -> None:
    import specialists

    routed, alone_marks = "", {}
    stored = json.loads((STUDIES / "specialists.json").read_text())
    worlds = {world: stored[world] for world in SEALED[kind]}
    for world, sealed in worlds.items():
        marks = marks_of(world, path)
        asked = specialists.questions(DEVELOPMENT[kind])
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
        best = max(alone, key=lambda name: mean(scores_of(alone[name]).values()))
        for n, parts in enumerate(specialists.questions(sealed["about"]["arguments"])):
            lead = best
            if router is not None:
                predicted = router.predicted(features_of(turns(parts)))
                lead = max(predicted, key=predicted.__getitem__)
            routed += sealed["ways"][specialists.ALONE + lead]["marks"].split()[n]
    if with_sealed:
        for way in next(iter(worlds.values()))["ways"]:
            alone_marks[way] = "".join(world["ways"][way]["marks"] for world in worlds.values())
        show(routed, {way: row.replace(" ", "") for way, row in alone_marks.items()})


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


def mixed_study(data: Path, folder: Path, with_sealed: bool, at_once: int) -> None:
    import checked
    import questions

    from langchain_specfuse.demo import file_of
    from langchain_specfuse.members.llamacpp.member import LlamaCppMember

    members = {
        file.name: LlamaCppMember(file_of(file), name=file.name, **file.options)
        for file in checked.FILES.values()
    }
    singles = tuple(System(name, (name,), Settings(max_tokens=256)) for name in members)

    def asked(part: str, count: int) -> tuple[Task, Mapping[str, list[Graded]]]:
        chosen = questions.asked(list(questions.SETS), part, count, data)
        task = Task(f"routing {part}", chosen, questions.graded, mark="1")
        since = time.monotonic()

        def watch(system: System, done: int, total: int) -> None:
            seconds = time.monotonic() - since
            print(f"{part}, {system.name}: {done} of {total}, {seconds:.0f} s", flush=True)

        with Results(folder / part) as results:
            plan = Plan(task, singles, members, at_once=at_once)
            return task, by_system(run(plan, results, watch=watch))

    task, alone = asked("calibrate", CALIBRATION)
    router = made_from(task.questions, alone, "mixed")
    if not with_sealed:
        return
    best = max(alone, key=lambda name: mean(scores_of(alone[name]).values()))
    task, sealed = asked("sealed", SEALED_COUNT)
    scores = {name: scores_of(graded) for name, graded in sealed.items()}
    passes = {
        name: {answer.question: answer.passes for answer in graded}
        for name, graded in sealed.items()
    }
    routed, used = "", 0
    for question in task.questions:
        lead = best
        if router is not None:
            predicted = router.predicted(features_of(question.turns))
            lead = max(predicted, key=predicted.__getitem__)
        routed += str(int(scores[lead][question.id]))
        used += passes[lead][question.id]
    show(
        routed,
        {
            name: "".join(str(int(own[question.id])) for question in task.questions)
            for name, own in scores.items()
        },
    )
    print(f"passes: {used / max(sum(passes[best].values()), 1):.2f} times those of {best} alone")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", choices=("specialists", "mixed"))
    parser.add_argument("--members", choices=DEVELOPMENT, default="lora")
    parser.add_argument("--data", type=Path, help="the folder of the sets that are not made here")
    parser.add_argument("--folder", type=Path, default=Path("specfuse-study/routing"))
    parser.add_argument("--threads", type=int, default=1, help="of each member")
    parser.add_argument("--at-once", type=int, default=1, help="questions under way together")
    parser.add_argument("--table", action="store_true", help="also show the sealed part")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    if options.study == "specialists":
        return specialists_study(options.members, STUDIES / "routing.json", options.table)
    if options.data is None:
        parser.error("--data is missing: the folder of GSM8K's sample and IFEval's even half")
    return mixed_study(options.data, options.folder, options.table, options.at_once)


if __name__ == "__main__":
    main()
