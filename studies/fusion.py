"""Are merged answers better than the lead's own, and do other members add anything to samples of
the lead?

Three ways to answer the same questions (of ``programs.py``, ``rules.py`` and ``sources.py``, and
those of GSM8K in ``questions.py``): the lead alone; *self-fusion*, in which the lead reads three
samples of its own and writes the final answer; and *fusion*, in which it reads its own answer and
those of two smaller members. ``preregistration.md``, section 8, says what was decided before any
sealed question was asked in this way.

    python studies/fusion.py --data FOLDER                  # the development questions
    python studies/fusion.py --data FOLDER --part sealed    # the sealed questions
    python studies/fusion.py --part sealed --table          # the table of results

A stopped run continues. The answers that were merged are stored as grades, without their text.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))

import programs
import rules
import sources
from answers import Answers
from cases import DEVELOPMENT, PARTS, SEALED, Case, Grade, spread
from command import arguments, need, parsed
from common import answered, question, text_of
from models import MODELS, member_of
from questions import gsm8k
from questions import part_of as part_of_problem
from rows import show, sign_test

from langchain_specfuse.core.member import Member
from langchain_specfuse.core.options import Settings
from langchain_specfuse.core.round import Round
from langchain_specfuse.engine import Ensemble
from langchain_specfuse.evaluation.comparison import mean
from langchain_specfuse.evaluation.graders import number
from langchain_specfuse.evaluation.running import passes_of

LEAD, SELF_FUSION, FUSION = WAYS = ("lead", "self-fusion", "fusion")
COUNT = 60
"""Sealed questions of each set."""
SECONDS = {LEAD: 8.0, SELF_FUSION: 34.0, FUSION: 22.0}
"""About how long a question takes on one idle core, until it is measured."""
Asked = tuple[str, Case]
"""A question, with the name of its set."""


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


def answer(way: str, ensemble: Ensemble, asked: Asked) -> Answer:
    """Ask one question. The first member leads."""
    name, case = asked
    settings = settings_of(way, next(iter(ensemble.members)), SETS[name].max_tokens)
    since = time.perf_counter()
    rounds = answered(ensemble, question(case.text), settings)
    seconds = time.perf_counter() - since
    text = text_of(rounds)
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


def stored(path: Path) -> Answers[Answer]:
    """The answers of earlier runs."""
    return Answers(path, Answer, lambda item: (item.way, item.question), SECONDS)


def left(answers: Answers[Answer], way: str, questions: Sequence[Asked]) -> list[Asked]:
    """The questions that were not asked in this way yet."""
    return answers.left(questions, lambda asked: (way, asked[1].id))


def ask(
    ways: Sequence[str],
    members: Sequence[Member],
    questions: Sequence[Asked],
    answers: Answers[Answer],
) -> None:
    """Ask every question in every way in which it was not asked yet."""
    for way in ways:
        remaining = left(answers, way, questions)
        if remaining:
            ensemble = Ensemble(members if way == FUSION else members[:1])
            ensemble.loaded().result()  # before the clock runs
            new = map(partial(answer, way, ensemble), remaining)
            answers.store(way, len(remaining), new)


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
        "seconds": round(mean(item.seconds for item in answers), 2),
    }


def against(scores: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """Wins and losses, with the exact sign test."""
    won, lost, p = sign_test(scores)
    return {"won": won, "lost": lost, "p": round(p, 4)}


def main() -> None:
    parser = arguments(__doc__, PARTS)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--questions", type=int, help="of each set (default: as planned)")
    options = parsed(parser)
    answers = stored(options.folder / "fusion" / f"{options.part}.jsonl")
    if options.table:
        return show(list(table(answers.all)), options.out)
    need(parser, options, "data")
    count = options.questions or (COUNT if options.part == SEALED else 3)
    questions = [
        (name, case)
        for name in options.sets
        for case in spread(SETS[name].cases(options.part, options.data), count)
    ]
    remaining = {way: len(left(answers, way, questions)) for way in options.ways}
    print(answers.plan(remaining), flush=True)
    if options.plan:
        return None
    ask(options.ways, [member_of(model) for model in MODELS.values()], questions, answers)
    return show(list(table(answers.all)), options.out)


if __name__ == "__main__":
    main()
