"""Does a lead lose anything by being corrected? Compares rules for when another draft replaces the
lead's, with the demo's two models.

The strong member (Qwen2.5-Coder-1.5B) leads, the weak one (SmolLM2-135M) is consulted. Every rule
answers the same questions. All replies are kept in a bank, so a rule that differs in few places
costs little. The table shows wins and losses against the lead alone, in total and on each set.

    python studies/lead.py --data FOLDER --sets math code --part tune --questions 20 \\
        --rules lead 0.4@0.5 vote

``questions.py`` lists the packages and files that the questions need. A stopped run continues.
``--table`` asks nothing; it only compares the answers that are there.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))

from answers import Answers
from bank import Bank, banked
from command import arguments, need, parsed
from common import answered, save, text_of
from questions import PARTS, SETS, asked, graded
from rows import about, print_rows, sign_test
from side_by_side import SideBySide

from langchain_specfuse.core.member import Member
from langchain_specfuse.core.options import Method, Settings
from langchain_specfuse.demo import demo_members
from langchain_specfuse.engine import Ensemble
from langchain_specfuse.evaluation import Question
from langchain_specfuse.evaluation.running import passes_of, seconds_of

BALLOT = "ballot-"
MAX_TOKENS = 256


@dataclass(frozen=True)
class Answer:
    """One rule's answer to one question, and what a study counts in its rounds."""

    rule: str
    question: str
    text: str
    score: float
    rounds: int
    consulted: int
    """Rounds of two and more members."""
    replaced: int
    """Rounds in which another draft than the lead's won."""
    passes: int
    seconds: float


def settings_of(rule: str, lead: str) -> Settings:
    """``lead``: the lead alone; ``vote``: all are equals; ``samples``: up to five whole answers of
    the lead, of which the most frequent number wins; ``SURE@MARGIN``; or ``ballot-SURE@MARGIN``,
    with drafts compared side by side."""
    if rule == "samples":
        return Settings(max_tokens=MAX_TOKENS, segment="answer", result="number", samples=5)
    if rule == "vote":
        return Settings(max_tokens=MAX_TOKENS, lead=None)
    if rule == "lead":
        return Settings(max_tokens=MAX_TOKENS, lead=lead, method=Method(margin=math.inf))
    sure, margin = rule.removeprefix(BALLOT).split("@")
    method = Method(sure=float(sure), margin=float(margin))
    return Settings(max_tokens=MAX_TOKENS, lead=lead, method=method)


def ensemble_of(rule: str, members: Sequence[Member]) -> Ensemble:
    """The members that a rule asks. The first one leads."""
    if rule == "samples":
        return Ensemble(list(members[:1]))
    if rule.startswith(BALLOT):
        return Ensemble([SideBySide(member) for member in members])
    return Ensemble(list(members))


def answer(rule: str, ensemble: Ensemble, settings: Settings, question: Question) -> Answer:
    """Ask one question."""
    rounds = answered(ensemble, question.turns, settings)
    text = text_of(rounds)
    score = graded(question, text).score if text.strip() else 0.0
    return Answer(
        rule,
        question.id,
        text,
        score,
        rounds=len(rounds),
        consulted=sum(len(round.drafts) > 1 for round in rounds),
        replaced=sum(bool(round.lead) and round.lead not in round.authors for round in rounds),
        passes=sum(map(passes_of, rounds)),
        seconds=seconds_of(rounds),
    )


def stored(path: Path) -> Answers[Answer]:
    """The answers of earlier runs."""
    return Answers(path, Answer, lambda item: (item.rule, item.question))


def left(answers: Answers[Answer], rule: str, questions: Sequence[Question]) -> list[Question]:
    """The questions that this rule has not answered."""
    return answers.left(questions, lambda question: (rule, question.id))


def ask(
    rules: Sequence[str],
    members: Sequence[Member],
    questions: Sequence[Question],
    answers: Answers[Answer],
) -> None:
    """Ask every rule every question that it has not answered."""
    for rule in rules:
        remaining = left(answers, rule, questions)
        if remaining:
            ensemble, settings = ensemble_of(rule, members), settings_of(rule, members[0].name)
            ensemble.loaded().result()  # before the clock runs
            new = map(partial(answer, rule, ensemble, settings), remaining)
            answers.store(rule, len(remaining), new)


# --- what they show -------------------------------------------------------------------------------


def table(answers: Sequence[Answer], rules: Sequence[str], base: str) -> Iterator[dict[str, Any]]:
    """A row per rule and set, against the base rule; the last row of each rule covers all sets."""
    by_rule: Mapping[str, dict[str, Answer]] = {rule: {} for rule in rules}
    for item in answers:
        if item.rule in by_rule:
            by_rule[item.rule][item.question] = item
    for rule, own in by_rule.items():
        shared = [question for question in own if question in by_rule[base]]
        for kind in (*SETS, ""):
            pairs = [
                (own[question], by_rule[base][question])
                for question in shared
                if question.startswith(kind)
            ]
            if pairs:
                yield {"rule": rule, "set": kind or "all", **row(pairs)}


def row(pairs: Sequence[tuple[Answer, Answer]]) -> dict[str, Any]:
    wins, losses, p = sign_test((a.score, b.score) for a, b in pairs)
    rounds = max(sum(a.rounds for a, _ in pairs), 1)
    passes = max(sum(b.passes for _, b in pairs), 1)
    seconds = max(math.fsum(b.seconds for _, b in pairs), 1e-9)
    return {
        "questions": len(pairs),
        "right": sum(a.score for a, _ in pairs),
        "wins": wins,
        "losses": losses,
        "p": p,
        "changed": sum(a.text != b.text for a, b in pairs),
        "consulted": sum(a.consulted for a, _ in pairs) / rounds,
        "replaced": sum(a.replaced for a, _ in pairs) / rounds,
        "passes": sum(a.passes for a, _ in pairs) / passes,
        "seconds": math.fsum(a.seconds for a, _ in pairs) / seconds,
    }


def main() -> None:
    parser = arguments(__doc__, PARTS)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--questions", type=int, default=60, help="of each set, at most")
    parser.add_argument("--rules", nargs="+", default=["lead", "0.4@0.5"])
    options = parsed(parser)
    answers = stored(options.folder / options.part / "answers.jsonl")
    if not options.table:
        need(parser, options, "data")
        questions = asked(options.sets, options.part, options.questions, options.data)
        remaining = {rule: len(left(answers, rule, questions)) for rule in options.rules}
        print(answers.plan(remaining), flush=True)
        if options.plan:
            return
        bank = Bank(options.folder / "bank.sqlite")
        members = banked({member.name: member for member in demo_members()}, bank)
        ask(options.rules, list(members.values()), questions, answers)
    base = "lead" if "lead" in options.rules else options.rules[0]
    rows = list(table(answers.all, options.rules, base))
    print_rows(rows)
    if options.out:
        save(options.out, [{**about(), "rows": rows}])


if __name__ == "__main__":
    main()
