"""Does the doctor's router ask the right member? Made from development questions, applied to sealed
ones.

``specialists``: the members of ``specialists.py``. Each answers development questions alone; the
router is made from their marks. Each member's own answers to the sealed questions are stored in
``specialists.json``, so those of the members that the router chooses are looked up, and no sealed
question is asked.
``mixed``: three real models of different size on four sets of questions. Each member
answers them alone: the development part, and with ``--table`` the sealed part.

    python studies/routing.py specialists --members lora
    python studies/routing.py specialists --members tiny
    python studies/routing.py mixed --data FOLDER
    python studies/routing.py specialists --members lora --table

A stopped run continues. ``--table`` shows the sealed part too; without it, only development numbers
are shown. See ``preregistration.md``, section 9.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import programs
import rules
import sources
from cases import DEVELOPMENT, PARTS, SEALED, Case, Grade, spread
from command import arguments, need, parsed
from forecast import Pace, ask_plan, forecast, keys_left, single_plans
from models import MODELS, member_of
from questions import gsm8k
from questions import part_of as part_of_problem
from rows import Row, show, sign_test

from langchain_specfuse.chat.routing import routed
from langchain_specfuse.core.options import Settings
from langchain_specfuse.core.routing import Router
from langchain_specfuse.core.values import Turn
from langchain_specfuse.engine import Ensemble
from langchain_specfuse.evaluation import Graded, Plan, Results, System, Task, graders
from langchain_specfuse.evaluation.comparison import by_system, mean, scores_of
from langchain_specfuse.evaluation.doctor import with_router
from langchain_specfuse.evaluation.gate import opens
from langchain_specfuse.evaluation.graders import Question, number

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
COUNTS = {DEVELOPMENT: 40, SEALED: 60}
"""Questions of each set, at most."""


def problems(part: str, folder: Path) -> list[Case]:
    """GSM8K's problems. The tuning part of section 3 is for development."""
    named = {"tune": DEVELOPMENT, "sealed": SEALED}

    def case(problem: Any) -> Case:
        grade = lambda text: Grade(number(problem, text).score == 1.0)
        return Case(problem.id, "math", problem.text, (), grade)

    return [case(one) for one in gsm8k(folder) if named.get(part_of_problem(one.text)) == part]


@dataclass(frozen=True)
class Set:
    """Questions, and how long their answers may be."""

    cases: Callable[[str, Path], list[Case]]
    max_tokens: int


SETS = {
    "math": Set(problems, 256),
    "code": Set(programs.cases, programs.MAX_TOKENS),
    "rules": Set(rules.cases, rules.MAX_TOKENS),
    "sources": Set(sources.cases, sources.MAX_TOKENS),
}


# --- specialists ----------------------------------------------------------------------------------


def turns(parts: Any) -> tuple[Turn, ...]:
    from skills import question

    return (Turn("user", question(parts)),)


def development(kind: str, sealed: Mapping[str, Any]) -> list[Any]:
    """The questions that a router is made from: none of the sealed ones."""
    import specialists

    kept = specialists.questions(sealed["about"]["arguments"])
    return [parts for parts in specialists.questions(QUESTIONS[kind]) if parts not in kept]


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
    wins, losses, _ = sign_test((ours[question], theirs[question]) for question in ours)
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


class Specialists:
    """The members of some worlds of ``specialists.json``, and their marks on development
    questions."""

    def __init__(self, kind: str, path: Path) -> None:
        import specialists

        stored = json.loads((STUDIES / "specialists.json").read_text())
        self.worlds = {world: stored[world] for world in WORLDS[kind]}
        self.asked = {world: development(kind, sealed) for world, sealed in self.worlds.items()}
        self._path = path
        self._results = json.loads(path.read_text()) if path.exists() else {}
        self._rows = {
            world: specialists.rows_of(
                specialists.members_in(sealed), self._results.setdefault(world, {})
            )
            for world, sealed in self.worlds.items()
        }

    def plan(self) -> str:
        """How many questions are left, and how long they take."""
        import specialists

        lines = []
        for world, rows in self._rows.items():
            sealed = self.worlds[world]["ways"]
            similar = {name: sealed[specialists.ALONE + name] for name in rows}
            lines += [f"{world}:", specialists.plan_of(rows, self.asked[world], similar)]
        return "\n".join(lines)

    def ask(self) -> None:
        """Ask what was not asked yet. Members that were not trained yet are trained first."""
        import specialists
        import torch

        torch.set_num_threads(1)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        for world, rows in self._rows.items():
            asked = self.asked[world]
            if all(specialists.answers_in(row) == len(asked) for row in rows.values()):
                continue
            by_way = {specialists.ALONE + name: row for name, row in rows.items()}
            ensemble = Ensemble(specialists.members_of(world))
            specialists.ask_all(ensemble, by_way, asked, world, self._store)

    def _store(self) -> None:
        self._path.write_text(json.dumps(self._results, indent=1) + "\n")

    def alone(self, world: str) -> dict[str, list[Graded]]:
        """member -> its graded answers to the development questions."""
        return {
            name: [
                Graded("", name, str(n), 0, "", share(part), seconds=0.0)
                for n, part in enumerate(row["marks"].split())
            ]
            for name, row in self._rows[world].items()
        }


def specialists_study(study: Specialists, with_sealed: bool) -> list[Row]:
    """The rows of the sealed part, if they are wanted."""
    import specialists

    marks_routed, others = "", {}
    for world, sealed in study.worlds.items():
        asked, alone = study.asked[world], study.alone(world)
        labelled = [Question(str(n), turns(parts)) for n, parts in enumerate(asked)]
        router = made_from(labelled, alone, world)
        best = best_of(alone)
        if with_sealed:
            for n, parts in enumerate(specialists.questions(sealed["about"]["arguments"])):
                lead = lead_of(router, turns(parts), best)
                marks_routed += sealed["ways"][specialists.ALONE + lead]["marks"].split()[n]
    if not with_sealed:
        return []
    for way in next(iter(study.worlds.values()))["ways"]:
        rows = "".join(world["ways"][way]["marks"] for world in study.worlds.values())
        others[way] = rows.replace(" ", "")
    return list(table(marks_routed, others))


def table(routed: str, others: Mapping[str, str]) -> Iterator[Row]:
    """Yield a row with the router's marks, and one for each other way, compared with the router."""
    yield {"way": "the router", "right": routed.count("1"), "marks": len(routed)}
    for way, marks in others.items():
        name = "a router that knows the labels" if way == "router" else way
        row: Row = {"way": name, "right": marks.count("1"), "marks": len(marks)}
        tested = sign_test(zip(routed, marks, strict=True))
        yield {**row, "the router against it": tested._asdict()}


# --- three models ---------------------------------------------------------------------------------


class Mixed:
    """Three models, each alone, on four sets of questions."""

    def __init__(self, data: Path, folder: Path, at_once: int) -> None:
        self.sets = SETS
        self.members = {model.name: member_of(model) for model in MODELS.values()}
        self._data, self._folder, self._at_once = data, folder, at_once
        self._pace = Pace(folder / "pace.json")

    def plan(self, parts: Sequence[str]) -> str:
        """How many answers of these parts are left, and how long they take."""
        left: Counter[str] = Counter()
        for part in parts:
            left.update(self._left(part))
        return "\n".join(forecast(left, self._pace.seconds_each))

    def _left(self, part: str) -> dict[str, int]:
        """How many answers are left, by what is asked."""
        left = {}
        for name, plan in self._plans(part).items():
            results = Results(self._folder / part / name)
            for what, single in single_plans(name, plan):
                left[what] = len(keys_left(single, results))
        return left

    def asked(self, part: str) -> tuple[list[Question], dict[str, list[Graded]]]:
        """The questions of a part, and each member's graded answers. Asks what was not asked
        yet."""
        questions: list[Question] = []
        answers: list[Graded] = []
        if any(self._left(part).values()):
            Ensemble(list(self.members.values())).loaded().result()  # before the clock runs
        for name, plan in self._plans(part).items():
            with Results(self._folder / part / name) as results:
                for what, single in single_plans(name, plan):
                    ask_plan(what, single, results, self._pace)
                    answers += results.answers(ask.key for ask in single.asks(single.systems[0]))
            questions += plan.task.questions
        grouped = by_system(answers)
        return questions, {name: grouped[name] for name in self.members}

    def _plans(self, part: str) -> dict[str, Plan]:
        """The plan of each set."""
        return {name: self._plan(name, part) for name in self.sets}

    def _plan(self, name: str, part: str) -> Plan:
        chosen = spread(self.sets[name].cases(part, self._data), COUNTS[part])
        cases = {case.id: case for case in chosen}
        questions = tuple(Question(case.id, (Turn("user", case.text),)) for case in chosen)

        def grade(question: Question, answer: str) -> graders.Grade:
            return graders.Grade(float(cases[question.id].grade(answer).right))

        task = Task(f"routing {part} {name}", questions, grade, mark="1")
        settings = Settings(max_tokens=self.sets[name].max_tokens)
        singles = tuple(System(member, (member,), settings) for member in self.members)
        return Plan(task, singles, self.members, at_once=self._at_once)


def mixed_study(mixed: Mixed, with_sealed: bool) -> list[Row]:
    """The rows of the sealed part, if they are wanted."""
    questions, alone = mixed.asked(DEVELOPMENT)
    router = made_from(questions, alone, "mixed")
    if not with_sealed:
        return []
    print(mixed.plan([SEALED]), flush=True)  # the pace is known now
    best = best_of(alone)
    questions, sealed = mixed.asked(SEALED)
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
    used = sum(passes[lead][question] for question, lead in leads.items())
    share = round(used / max(sum(passes[best].values()), 1), 3)
    first, *rows = table(routed, others)
    return [{**first, f"passes relative to {best} alone": share}, *rows]


def main() -> None:
    parser = arguments(
        __doc__, at_once=1, threads=1, table="ask what is left, and show the sealed part too"
    )
    parser.add_argument("study", choices=("specialists", "mixed"))
    parser.add_argument("--members", choices=QUESTIONS, default="lora")
    options = parsed(parser)
    folder = options.folder / "routing"
    if options.study == "specialists":
        specialists = Specialists(options.members, folder / "specialists.json")
        print(specialists.plan(), flush=True)
        if options.plan:
            return
        specialists.ask()
        rows = specialists_study(specialists, options.table)
        return show(rows, options.out, f"specialists, {options.members}")
    need(parser, options, "data")
    mixed = Mixed(options.data, folder, options.at_once)
    print(mixed.plan(PARTS if options.table else [DEVELOPMENT]), flush=True)
    if not options.plan:
        show(mixed_study(mixed, options.table), options.out, "mixed")


if __name__ == "__main__":
    main()
