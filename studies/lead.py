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

import argparse
import json
import math
import sys
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))

from bank import Bank, banked
from common import commit, machine
from questions import PARTS, SETS, asked, graded
from side_by_side import SideBySide

from langchain_specfuse.core.member import Member
from langchain_specfuse.core.options import Method, Settings
from langchain_specfuse.core.round import Round
from langchain_specfuse.core.values import Query
from langchain_specfuse.demo import demo_members
from langchain_specfuse.engine import Ensemble
from langchain_specfuse.evaluation import Question
from langchain_specfuse.evaluation.comparison import two_sided
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


def answer(rule: str, ensemble: Ensemble, question: Question, settings: Settings) -> Answer:
    """Ask one question."""
    query = Query(f"study-{uuid.uuid4().hex}", question.turns)
    rounds: list[Round] = list(ensemble.rounds(query, settings))
    text = "".join(round.text for round in rounds)
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


def answers_in(path: Path) -> list[Answer]:
    """The answers of earlier runs."""
    if not path.exists():
        return []
    return [Answer(**json.loads(line)) for line in path.read_text().splitlines()]


def ask(
    rules: Sequence[str],
    members: Sequence[Member],
    questions: Sequence[Question],
    path: Path,
) -> list[Answer]:
    """Ask every rule every question that it has not answered, and store each answer at once."""
    answers = answers_in(path)
    stored = {(item.rule, item.question) for item in answers}
    lead = members[0].name
    for rule in rules:
        ensemble, settings = ensemble_of(rule, members), settings_of(rule, lead)
        for question in questions:
            if (rule, question.id) in stored:
                continue
            answers.append(answer(rule, ensemble, question, settings))
            with path.open("a") as file:
                file.write(json.dumps(asdict(answers[-1])) + "\n")
        print(f"{rule}: {len(questions)} answers", file=sys.stderr, flush=True)
    return answers


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
    wins = sum(a.score > b.score for a, b in pairs)
    losses = sum(a.score < b.score for a, b in pairs)
    rounds = max(sum(a.rounds for a, _ in pairs), 1)
    passes = max(sum(b.passes for _, b in pairs), 1)
    seconds = max(math.fsum(b.seconds for _, b in pairs), 1e-9)
    return {
        "questions": len(pairs),
        "right": sum(a.score for a, _ in pairs),
        "wins": wins,
        "losses": losses,
        "p": two_sided(wins, losses),
        "changed": sum(a.text != b.text for a, b in pairs),
        "consulted": sum(a.consulted for a, _ in pairs) / rounds,
        "replaced": sum(a.replaced for a, _ in pairs) / rounds,
        "passes": sum(a.passes for a, _ in pairs) / passes,
        "seconds": math.fsum(a.seconds for a, _ in pairs) / seconds,
    }


def show(rows: Iterable[dict[str, Any]], out: Path | None) -> None:
    """Print the rows, and write them as JSON if there is a file."""
    rows = list(rows)
    if out:
        about = {"commit": commit(), "date": f"{date.today()}", "machine": machine()}
        out.write_text(json.dumps([{**about, "rows": rows}], indent=1) + "\n")
    for each in rows:
        cells = []
        for name, value in each.items():
            shown = f"{value:.3f}" if isinstance(value, float) else value
            cells.append(f"{name} {shown}")
        print("  ".join(cells), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", choices=PARTS, default="tune")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--questions", type=int, default=60, help="of each set, at most")
    parser.add_argument(
        "--data", type=Path, required=True, help="the folder of the sets that are not made here"
    )
    parser.add_argument("--rules", nargs="+", default=["lead", "0.4@0.5"])
    parser.add_argument("--folder", type=Path, default=Path("specfuse-study"))
    parser.add_argument(
        "--table", action="store_true", help="only compare the answers that are there"
    )
    parser.add_argument("--out", type=Path, help="write the rows as JSON")
    options = parser.parse_args()
    path = options.folder / options.part / "answers.jsonl"
    if options.table:
        answers = answers_in(path)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        bank = Bank(options.folder / "bank.sqlite")
        members = banked({member.name: member for member in demo_members()}, bank)
        questions = asked(options.sets, options.part, options.questions, options.data)
        answers = ask(options.rules, list(members.values()), questions, path)
    base = "lead" if "lead" in options.rules else options.rules[0]
    show(table(answers, options.rules, base), options.out)


if __name__ == "__main__":
    main()
