"""Compare any systems on questions from a file: members alone, the ensemble, the ensemble with
options changed, and what people do instead (``surest``).

    python studies/compare.py questions.jsonl --grader number --members A.gguf B.gguf \\
        --systems singles ensemble surest short:segment_tokens=4,exit=never

``--record FILE`` keeps every reply of the members, so that the next system asks them only for what
is new. The rows ``oracle`` (for each question the best member, picked with the grades) and
``router`` (for each question the member that is best on the *other* questions of its "kind") show
how much there is to gain. Needs numpy.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from bank import Bank, banked
from intervals import AgainstBest, against_best, interval
from systems import SUREST, chosen

from langchain_specfuse.chat.members import ensemble_for
from langchain_specfuse.core.member import Member
from langchain_specfuse.core.options import Settings
from langchain_specfuse.core.round import Round
from langchain_specfuse.core.values import Query
from langchain_specfuse.engine import Ensemble
from langchain_specfuse.evaluation import Graded, Plan, Results, System, Task, jsonl, run
from langchain_specfuse.evaluation.comparison import by_system, scores_of
from langchain_specfuse.evaluation.running import Progress, passes_of, seconds_of

Scores = Mapping[str, float]
"""question -> score."""


def evaluated(
    task: Task, systems: Sequence[System], members: Mapping[str, Member], results: Results
) -> list[Graded]:
    """The graded answers of all systems. What has a result is not asked again."""
    answers: list[Graded] = []
    for system in systems:
        plan = Plan(task, (system,), members)
        if system.name == SUREST:
            answers += _surest(plan, system, results)
        else:
            answers += run(plan, results, watch=Progress(sys.stderr))
    return answers


def _surest(plan: Plan, system: System, results: Results) -> list[Graded]:
    """Of each member's own answer, the one of which its author is surest."""
    asks = plan.asks(system)
    settings = system.settings.model_copy(update={"lead": None})
    for ask in asks:
        if ask.key in results:
            continue
        alone = []
        for name in system.members:
            query = Query(f"study-{uuid.uuid4().hex}", ask.question.turns)
            alone.append(list(Ensemble([plan.members[name]]).rounds(query, settings)))
        text = "".join(round.text for round in max(alone, key=confidence))
        grade = plan.task.grade(ask.question, text)
        rounds = list(itertools.chain.from_iterable(alone))
        graded = Graded(
            ask.key,
            system.name,
            ask.question.id,
            ask.seed,
            text,
            grade.score,
            grade.note,
            tokens=sum(len(round.drafts[round.winner].tokens) for round in rounds),
            passes=sum(map(passes_of, rounds)),
            seconds=seconds_of(rounds),
        )
        results.add(graded)
    return results.answers(ask.key for ask in asks)


def confidence(rounds: Sequence[Round]) -> float:
    """The mean log-probability per token that the author gave its answer; minus infinity if it is
    unknown."""
    values = [value for round in rounds for value in round.drafts[round.winner].logprobs or ()]
    return math.fsum(values) / len(values) if values else -math.inf


# --- what they show -------------------------------------------------------------------------------


def oracle(singles: Mapping[str, Scores]) -> list[float]:
    """The score of the best member, for each question that all have answered."""
    return [max(scores) for scores in zip(*common(*singles.values()), strict=True)]


def router(singles: Mapping[str, Scores], kinds: Mapping[str, object]) -> list[float]:
    """Each question's score by the member that is best on the *other* questions of its kind; empty
    without kinds."""
    questions = [
        question
        for question, kind in kinds.items()
        if kind is not None and all(question in scores for scores in singles.values())
    ]
    routed = []
    for question in questions:
        others = [
            other for other in questions if kinds[other] == kinds[question] and other != question
        ]
        totals = {
            name: math.fsum(scores[other] for other in others) for name, scores in singles.items()
        }
        best = max(totals, key=lambda name: totals[name])
        routed.append(singles[best][question])
    return routed


def common(*scores: Scores) -> list[list[float]]:
    """The scores on the questions that all have answered."""
    questions = [
        question for question in scores[0] if all(question in other for other in scores[1:])
    ]
    return [[each[question] for question in questions] for each in scores]


def best_of(systems: Sequence[System], scores: Mapping[str, Scores]) -> dict[str, AgainstBest]:
    """system -> it against the best single member, corrected for the number of systems."""
    singles = {system.name: scores[system.name] for system in systems if _single(system)}
    others = [system.name for system in systems if not _single(system)]
    against = {}
    for name in others if singles else ():
        ours, *theirs = common(scores[name], *singles.values())
        named = dict(zip(singles, theirs, strict=True))
        against[name] = against_best(ours, named, len(others))
    return against


def _single(system: System) -> bool:
    return system.alone and system.name in system.members


def show(task: Task, systems: Sequence[System], answers: Sequence[Graded]) -> None:
    """Print a row per system, and each against the best member."""
    grouped = by_system(answers)
    scores = {system.name: scores_of(grouped[system.name]) for system in systems}
    for name, graded in grouped.items():
        passes = sum(item.passes for item in graded) / len(graded)
        seconds = math.fsum(item.seconds for item in graded) / len(graded)
        shown = interval(list(scores[name].values()))
        print(f"{name:20} {shown}  {passes:.0f} passes, {seconds:.2f} s an answer")
    singles = {system.name: scores[system.name] for system in systems if _single(system)}
    if len(singles) > 1:
        print(f"{'oracle':20} {interval(oracle(singles))}")
        kinds = {question.id: question.facts.get("kind") for question in task.questions}
        routed = router(singles, kinds)
        if routed:
            print(f"{'router':20} {interval(routed)}")
    for name, result in best_of(systems, scores).items():
        print(
            f"{name}: {result.wins} won, {result.losses} lost against {result.best} alone, "
            f"p = {result.p_plain:.3g}; corrected: {result.verdict}, {result.difference} points"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task", metavar="FILE.jsonl", help="as for langchain-specfuse eval")
    parser.add_argument("--grader", help="as for langchain-specfuse eval")
    parser.add_argument("--members", nargs="+", required=True)
    parser.add_argument("--verifiers", nargs="+", default=[])
    parser.add_argument("--lead", default="auto", help="a member, auto or none")
    parser.add_argument("--systems", nargs="+", default=["singles", "ensemble"])
    parser.add_argument("--limit", type=int, help="only the first questions")
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--folder", type=Path, default=Path("specfuse-study"))
    parser.add_argument("--record", metavar="FILE", help="keep the members' replies in this file")
    options = parser.parse_args()
    task = jsonl(options.task, options.grader).first(options.limit)
    members = ensemble_for(options.members, options.verifiers).members
    names, writers = list(members), len(members) - len(options.verifiers)
    lead = None if options.lead == "none" else options.lead
    settings = Settings(max_tokens=options.max_tokens, lead=lead)
    systems = chosen(options.systems, names[:writers], settings, names[writers:])
    if options.record:
        members = banked(members, Bank(options.record))
    with Results(options.folder) as results:
        answers = evaluated(task, systems, members, results)
    show(task, systems, answers)


if __name__ == "__main__":
    main()
