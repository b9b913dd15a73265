"""Are merged answers better than the lead's own, and do other members add anything to samples of
the lead?

Three ways to answer the same questions (of ``programs.py``, ``rules.py`` and ``sources.py``, and
those of GSM8K in ``questions.py``): the lead alone; *self-fusion*, in which the lead reads three samples of its own
and writes the final answer; and *fusion*, in which it reads its own answer and those of two smaller
members. ``preregistration.md``, section 8, says what was decided before any sealed question was
asked in this way.

    python studies/fusion.py --data FOLDER                  # the development questions
    python studies/fusion.py --data FOLDER --part sealed    # the sealed questions
    python studies/fusion.py --part sealed --table          # the table of results

A stopped run continues. The answers that were merged are stored as grades, without their text.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))

import programs
import rules
import sources
from cases import DEVELOPMENT, PARTS, SEALED, Case, Grade, spread
from common import commit, machine
from questions import gsm8k
from questions import part_of as part_of_problem

from langchain_specfuse import LlamaCppMember
from langchain_specfuse.core.member import Member
from langchain_specfuse.core.options import Settings
from langchain_specfuse.core.round import Round
from langchain_specfuse.core.values import Query, Turn
from langchain_specfuse.demo import GEMMA, QWEN, SMOLLM2, file_of
from langchain_specfuse.engine import Ensemble
from langchain_specfuse.evaluation.comparison import two_sided
from langchain_specfuse.evaluation.graders import number
from langchain_specfuse.evaluation.running import passes_of

LEAD, SELF_FUSION, FUSION = WAYS = ("lead", "self-fusion", "fusion")
FILES = (QWEN, SMOLLM2, GEMMA)
"""The lead comes first."""
COUNT = 60
"""Sealed questions of each set."""
SECONDS = {LEAD: 8.0, SELF_FUSION: 34.0, FUSION: 22.0}
"""About how long a question takes on one idle core. The mean over the stored answers replaces it."""


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


@dataclass(frozen=True)
class Answer:
    """One question, answered in one way."""

    way: str
    question: str
    set: str
    text: str
    score: float
    own: Mapping[str, float] = field(default_factory=dict)
    """member or sample -> the score of the answer that was merged."""
    passes: int = 0
    """Forward passes of all members: one per drafted token."""
    read: int = 0
    """Tokens that went through a model, including those of prompts."""
    seconds: float = 0.0


def settings_of(way: str, lead: str, max_tokens: int) -> Settings:
    """The settings of this way."""
    if way == LEAD:
        return Settings(max_tokens=max_tokens, lead=lead)
    samples = 3 if way == SELF_FUSION else 1
    return Settings(
        max_tokens=max_tokens, lead=lead, segment="answer", result="fuse", samples=samples
    )


def answer(way: str, name: str, ensemble: Ensemble, case: Case, settings: Settings) -> Answer:
    """Ask one question of the set with this name."""
    since = time.perf_counter()
    query = Query(f"study-{uuid.uuid4().hex}", (Turn("user", case.text),))
    rounds = list(ensemble.rounds(query, settings))
    seconds = time.perf_counter() - since
    text = "".join(round.text for round in rounds)
    own = rounds[0].drafts if rounds[0].number == 0 else {}
    return Answer(
        way,
        case.id,
        name,
        text,
        score_of(case, text),
        own={member: score_of(case, draft.text) for member, draft in own.items()},
        passes=sum(map(passes_of, rounds)),
        read=sum(map(read_in, rounds)),
        seconds=round(seconds, 3),
    )


def score_of(case: Case, text: str) -> float:
    return float(bool(text.strip()) and case.grade(text).right)


def read_in(round: Round) -> int:
    """The tokens that went through a model in this round."""
    return sum(effort.read for by_member in round.efforts.values() for effort in by_member.values())


def answers_in(path: Path) -> list[Answer]:
    """The answers of earlier runs. A line that was cut off when a run was stopped is left out."""
    if not path.exists():
        return []
    text = path.read_text()
    if text and not text.endswith("\n"):
        text = text[: text.rfind("\n") + 1]
        path.write_text(text)
    return [Answer(**json.loads(line)) for line in text.splitlines()]


def ask(
    ways: Sequence[str],
    members: Sequence[Member],
    questions: Sequence[tuple[str, Case]],
    path: Path,
) -> list[Answer]:
    """Answer every question in every way that has no answer yet, and store each answer
    immediately."""
    answers = answers_in(path)
    stored = {(item.way, item.question) for item in answers}
    for way in ways:
        ensemble = Ensemble(members if way == FUSION else members[:1])
        for done, (name, case) in enumerate(questions, 1):
            if (way, case.id) in stored:
                continue
            settings = settings_of(way, members[0].name, SETS[name].max_tokens)
            answers.append(answer(way, name, ensemble, case, settings))
            with path.open("a") as file:
                file.write(json.dumps(asdict(answers[-1])) + "\n")
            print(f"{way}: {done} of {len(questions)}", file=sys.stderr, flush=True)
    return answers


# --- what they show -------------------------------------------------------------------------------


def table(answers: Sequence[Answer]) -> Iterator[dict[str, Any]]:
    """A row for each way and set, on the questions that were answered in all of these ways; the
    last row of each way covers all sets."""
    by_way: dict[str, dict[str, Answer]] = defaultdict(dict)
    for item in answers:
        by_way[item.way][item.question] = item
    shared = [q for q in by_way[LEAD] if all(q in own for own in by_way.values())]
    for way, own in by_way.items():
        for name in (*SETS, ""):
            chosen = [question for question in shared if own[question].set.startswith(name)]
            if chosen:
                row = {"way": way, "set": name or "all", **numbers([own[q] for q in chosen])}
                for other in by_way:
                    if other != way:
                        scores = [(own[q].score, by_way[other][q].score) for q in chosen]
                        row[f"against {other}"] = against(scores)
                yield row


def numbers(answers: Sequence[Answer]) -> dict[str, Any]:
    """What one row says about these answers by themselves."""
    count = len(answers)
    merged = [item for item in answers if item.own]
    some_right = [item for item in merged if max(item.own.values()) == 1.0]
    return {
        "questions": count,
        "right": sum(item.score for item in answers),
        "an own answer right": len(some_right),
        "kept right": sum(item.score == 1.0 for item in some_right),
        "right from wrong ones": sum(
            item.score == 1.0 for item in merged if max(item.own.values()) < 1.0
        ),
        "passes": round(sum(item.passes for item in answers) / count, 1),
        "read": round(sum(item.read for item in answers) / count, 1),
        "seconds": round(math.fsum(item.seconds for item in answers) / count, 2),
    }


def against(scores: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """Wins and losses, with the exact sign test."""
    won = sum(own > other for own, other in scores)
    lost = sum(own < other for own, other in scores)
    return {"won": won, "lost": lost, "p": round(two_sided(won, lost), 4)}


def show(answers: Sequence[Answer], out: Path | None) -> None:
    """Print the rows, and write them as JSON if there is a file."""
    rows = list(table(answers))
    for row in rows:
        print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)
    if out:
        about = {"commit": commit(), "date": f"{date.today()}", "machine": machine()}
        out.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


def plan_of(
    ways: Sequence[str], questions: Sequence[tuple[str, Case]], answers: Sequence[Answer]
) -> str:
    """How many questions are left in each way, and about how long they take."""
    lines, whole = [], 0.0
    for way in ways:
        stored = {item.question: item for item in answers if item.way == way}
        left = sum(case.id not in stored for _, case in questions)
        each = SECONDS[way]
        if len(stored) >= 5:
            each = math.fsum(item.seconds for item in stored.values()) / len(stored)
        whole += left * each
        lines.append(f"{way}: {left} questions, {left * each / 3600:.2f} hours")
    return "\n".join([*lines, f"together {whole / 3600:.1f} hours"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", choices=PARTS, default=DEVELOPMENT)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--questions", type=int, help="of each set (default: as planned)")
    parser.add_argument("--data", type=Path, help="the folder of the sets that are not made here")
    parser.add_argument("--threads", type=int, help="of each member (default: as many as help)")
    parser.add_argument("--folder", type=Path, default=Path("specfuse-study"))
    parser.add_argument("--plan", action="store_true", help="only say how long it would take")
    parser.add_argument("--table", action="store_true", help="only show the results so far")
    parser.add_argument("--out", type=Path, help="write the rows as JSON")
    options = parser.parse_args()
    if options.threads:
        os.environ["OMP_NUM_THREADS"] = str(options.threads)
    path = options.folder / "fusion" / f"{options.part}.jsonl"
    if options.table:
        return show(answers_in(path), options.out)
    if options.data is None:
        parser.error("--data is missing: the folder of the sets that are not made here")
    count = options.questions or (COUNT if options.part == SEALED else 3)
    questions = [
        (name, case)
        for name in options.sets
        for case in spread(SETS[name].cases(options.part, options.data), count)
    ]
    print(plan_of(options.ways, questions, answers_in(path)), flush=True)
    if options.plan:
        return None
    path.parent.mkdir(parents=True, exist_ok=True)
    members = [LlamaCppMember(file_of(file), name=file.name, **file.options) for file in FILES]
    return show(ask(options.ways, members, questions, path), options.out)


if __name__ == "__main__":
    main()
