"""How many forward passes does a token of the answer cost, and what do fewer passes cost in right answers?

Tiny specialists (``tiny_members.py``) answer single questions, and some of two parts, under each way to cast, to cut
and to guess; beside them what is no part of the method: a veto of those who did not draft, and segments whose length
follows the vote. Passes are counted in the models themselves, in answers that have the machine to themselves, and told
by what they were spent on. Then five members of the demo's two models.

    python benchmarks/passes.py [--parts vague,misled,vague two,misled two,demo] [--each 40] [--two 96]

Results are kept in ``passes.json`` cell by cell: started again, it goes on. ``--table`` only prints them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from skills import Part, question, right
from specialists import questions
from tiny_members import members
from transformers import PreTrainedModel

from langchain_specfuse.core.answer import Answer
from langchain_specfuse.core.ballot import Ballot, Vote
from langchain_specfuse.core.casting import Casting
from langchain_specfuse.core.panel import Panel, dismissed, hedged, learning_rate, observed
from langchain_specfuse.core.rounds import Clock, Loop, call_for_drafts, call_for_scores
from langchain_specfuse.core.rounds import rounds as loop_of
from langchain_specfuse.core.values import Ask, DraftJob, Query, Round, Scored, ScoreJob, Settings, Turn
from langchain_specfuse.engine import Ensemble
from langchain_specfuse.engine.drive import drive
from langchain_specfuse.evaluation.statistics import difference

RESULTS = Path(__file__).with_suffix(".json")
BASE: dict[str, Any] = {"segment_tokens": 8, "max_tokens": 160, "min_members": 2}
"""As in ``specialists.py``: the defaults but for a shorter segment."""
COUNTED = 23
"""Passes are counted in about so many questions: those are asked one at a time."""

# --- what was tried and left out --------------------------------------------------------------------------------

VETO = 0.35
SHORT, LONG = 4, 16


@dataclass
class Idea:
    """Nothing changed: it is the method. ``veto``: those who did not draft judge a lone draft before it is shown.
    ``adapts``: the segment is short after a disputed vote and long after agreement or a lone writer."""

    veto: bool = False
    adapts: bool = False
    usual: dict[str, list[float]] = field(default_factory=dict)
    """verifier -> its scores of its own drafts."""

    def seen(self, drafts: Mapping[str, Any], vote: Vote) -> None:
        for judge, row in vote.scores.items():
            if judge in row and len(drafts) > 1:
                self.usual.setdefault(judge, []).append(row[judge])

    def refuses(self, scores: Mapping[str, float], weights: Mapping[str, float]) -> bool:
        """The vote between the lone draft and a draft of one's own as good as usual; the absent weigh as ever."""
        heard = {judge: score for judge, score in scores.items() if judge in self.usual}
        said = [
            weights[judge] / (1 + math.exp(min(sum(self.usual[judge]) / len(self.usual[judge]) - score, 50)))
            for judge, score in heard.items()
        ]
        return bool(said) and math.fsum(said) / math.fsum(weights[judge] for judge in heard) < VETO

    def length(self, drafts: Mapping[str, Any], vote: Vote) -> int:
        return SHORT if len(drafts) > 1 and vote.disputed else LONG


def tried(query: Query, settings: Settings, panel: Panel, idea: Idea) -> Loop:
    """``core.rounds.rounds`` with an idea."""
    answer, casting, now = Answer(stop=settings.stop, budget=settings.max_tokens).started(), Casting(), settings
    for number in range(1, settings.max_tokens + 1):
        before, clock = panel, Clock()
        panel, drafts = yield from call_for_drafts(panel, query, now, answer, number, clock, casting)
        ballot = Ballot(settings, drafts, answer.text)
        if idea.veto and len(drafts) < len(panel.drafters):
            scores = yield from absent(query, answer, ballot, panel, number)
            if idea.refuses(scores, panel.weights):
                rest = replace(panel, seats=tuple(seat for seat in panel.seats if seat.name not in drafts))
                _, more = yield from call_for_drafts(rest, query, replace(now, drafters=None), answer, number, clock)
                drafts = {name: (drafts | more)[name] for name in panel.drafters}
                ballot = Ballot(settings, drafts, answer.text)
        panel, scored = yield from call_for_scores(panel, query, answer, ballot, number, clock)
        vote = ballot.counted(scored, panel.weights)
        answer = answer.plus(vote.segment)
        idea.seen(drafts, vote)
        voted, casting = panel, casting.after(drafts, vote)
        if idea.adapts:
            now = replace(settings, segment_tokens=idea.length(drafts, vote))
        eta = learning_rate(settings.feedback, settings.learning_rate, number, len(panel.drafters))
        panel = hedged(panel, vote.rewards, eta)
        if vote.disputed and drafts.keys() >= set(panel.drafters):
            panel = observed(panel, vote.totals, vote.winner)
            panel = dismissed(settings.exit, panel, settings.min_members, number)
        yield Round(
            number, answer.released, vote.segment, vote.winner, drafts, vote.scores, vote.votes, vote.totals,
            vote.rewards, voted.weights, panel.weights, authors=vote.authors, looped=ballot.looped,
            left=panel.left[len(before.left) :], finish=answer.finish,
        )  # fmt: skip
        if answer.finish:
            return


def absent(query: Query, answer: Answer, ballot: Ballot, panel: Panel, number: int) -> Iterator[Any]:
    """The scores that those who did not draft give a lone draft."""
    judges = [name for name in panel.verifiers if name not in ballot.drafts]
    replies = yield Ask({n: ScoreJob(query, answer.segments, ballot.unknown_to(n)) for n in judges}, number)
    return {n: ballot.scores_of(n, reply)[0] for n, reply in replies.items() if isinstance(reply, Scored)}


# --- counting ---------------------------------------------------------------------------------------------------


@contextmanager
def passes() -> Iterator[list[int]]:
    """How often any member's model was run inside."""
    count = [0]

    def ran(module: Any, *_: Any) -> None:
        count[0] += isinstance(module, PreTrainedModel) and hasattr(module, "lm_head")

    hook = torch.nn.modules.module.register_module_forward_hook(ran)
    try:
        yield count
    finally:
        hook.remove()


def spent_on(loop: Loop, count: list[int], spent: Counter[str]) -> Loop:
    """The same loop; beside it, what its passes went to: the first vote, lone writers, later votes (rounds in which
    somebody had won before), and of each, how much was scoring."""
    replies: Any = None
    here, won = Counter[str](), False
    while True:
        try:
            item = loop.send(replies)
        except StopIteration:
            return
        before = count[0]
        replies = yield item
        if isinstance(item, Ask):
            drafts = isinstance(next(iter(item.jobs.values())), DraftJob)
            here["drafts" if drafts else "scores"] += count[0] - before
            continue
        kind = "lone" if len(item.drafts) == 1 else "later" if won else "first"
        spent.update({f"{kind} {work}": passes for work, passes in here.items()})
        here, won = Counter(), won or len({(draft.text, draft.ended) for draft in item.drafts.values()}) > 1


def written(rounds: Sequence[Round]) -> int:
    """Tokens of an answer, its end among them."""
    return sum(len(r.drafts[r.winner].tokens) + r.segment.ended for r in rounds)


def is_chain(texts: Sequence[str]) -> bool:
    ordered = sorted(set(texts), key=len)
    return len(ordered) > 1 and all(b.startswith(a) for a, b in itertools.pairwise(ordered))


def settled_early(round: Round) -> int:
    """How many verifiers, asked one after another by weight, could no longer change who wins."""
    votes = sorted(round.votes.items(), key=lambda item: -round.weights_before[item[0]])
    whole = math.fsum(round.weights_before[judge] for judge, _ in votes)
    left, sums = whole, dict.fromkeys(round.totals, 0.0)
    for heard, (judge, row) in enumerate(votes, 1):
        left -= round.weights_before[judge]
        sums = {name: total + round.weights_before[judge] * row.get(name, 0.0) for name, total in sums.items()}
        best = max(sums, key=lambda name: sums[name])
        said = round.drafts[best].text
        rest = [total for name, total in sums.items() if round.drafts[name].text != said]
        if rest and sums[best] - max(rest) > left:
            return len(votes) - heard
    return 0


# --- cells ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    name: str
    choices: Mapping[str, Any] = field(default_factory=dict)
    idea: Callable[[], Idea] | None = None
    alone: bool = False


GUESSES = {"speculate": True}
ONE = {"drafters": 1}
LONGER = {"segment_tokens": 10}
"""The default length."""
AT_EIGHT = [
    Cell("each alone", alone=True),
    Cell("each alone, guesses", GUESSES, alone=True),
    Cell("all draft"),
    Cell("all draft, guesses", GUESSES),
    Cell("one drafts", ONE),
    Cell("one drafts, guesses", ONE | GUESSES),
]
AT_TEN = [
    Cell("all draft, 10 tokens", LONGER),
    Cell("all draft, guesses, 10 tokens", LONGER | GUESSES),
    Cell("one drafts, 10 tokens", LONGER | ONE),
    Cell("one drafts, guesses, 10 tokens", LONGER | ONE | GUESSES),
]
SPECIALISTS = [
    *AT_EIGHT,
    *AT_TEN,
    Cell("all draft, 5 tokens", {"segment_tokens": 5}),
    Cell("one drafts, 5 tokens", {"segment_tokens": 5, "drafters": 1}),
    Cell("one drafts, guesses, 5 tokens", {"segment_tokens": 5} | ONE | GUESSES),
    Cell("two draft, 5 tokens", {"segment_tokens": 5, "drafters": 2}),
    Cell("one drafts, the others may veto, 5 tokens", {"segment_tokens": 5, "drafters": 1}, lambda: Idea(veto=True)),
    Cell("all draft, 4 or 16 tokens", {"segment_tokens": 4}, lambda: Idea(adapts=True)),
    Cell("one drafts, 4 or 16 tokens", {"segment_tokens": 4, "drafters": 1}, lambda: Idea(adapts=True)),
]
DEMO = [
    Cell("each alone", alone=True),
    Cell("all draft"),
    Cell("one drafts", ONE),
    Cell("one drafts, guesses", ONE | GUESSES),
]
PARTS = {"vague": SPECIALISTS, "misled": SPECIALISTS, "vague two": AT_EIGHT + AT_TEN, "misled two": AT_EIGHT + AT_TEN,
         "demo": DEMO}  # fmt: skip
DEMO_ASKED = ("Why is the sky blue?", "How do I boil an egg?")


def rounds_of(
    ensemble: Ensemble,
    asked: str,
    settings: Settings,
    idea: Callable[[], Idea] | None,
    metered: Callable[[Loop], Loop] = lambda loop: loop,
) -> list[Round]:
    query = Query(f"{time.perf_counter_ns()}-{asked}", (Turn("user", asked),))
    panel = Panel.of(ensemble.seats(ensemble.loaded().result()))
    loop = loop_of(query, settings, panel) if idea is None else tried(query, settings, panel, idea())
    return list(drive(metered(loop), query.id, ensemble.members))


def at_once(work: Callable[[int], list[Round]], number: int) -> list[list[Round]]:
    told: dict[int, list[Round]] = {}
    threads = [threading.Thread(target=lambda n=n: told.update({n: work(n)})) for n in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [told[n] for n in range(number)]


def counted(
    ensemble: Ensemble, asked: Sequence[str], settings: Settings, cell: Cell, spent: Counter[str]
) -> list[list[Round]]:
    """The rounds of these questions, one at a time, and in ``spent`` the passes that they took."""
    rounds_of(ensemble, asked[0], settings, cell.idea)  # what guesses are worth is tried in the very first
    with passes() as count:
        told = [
            rounds_of(ensemble, one, settings, cell.idea, lambda loop: spent_on(loop, count, spent)) for one in asked
        ]
    return told


def specialists(one_by_one: Sequence[Any], cell: Cell, asked: Sequence[tuple[Part, ...]]) -> dict[str, Any]:
    """One cell: which parts of the answers were right, and what a token cost."""
    settings = Settings(**{**BASE, **cell.choices})
    since, marks, spent, tokens, all_rounds = time.perf_counter(), [], Counter[str](), 0, []
    for ensemble in [Ensemble([one]) for one in one_by_one] if cell.alone else [Ensemble(one_by_one)]:
        told = at_once(lambda n, e=ensemble: rounds_of(e, question(asked[n]), settings, cell.idea), len(asked))
        right_ones = [mark for p, rs in zip(asked, told, strict=True) for mark in right(p, "".join(r.text for r in rs))]
        marks.append("".join(str(int(mark)) for mark in right_ones))
        some = [question(parts) for parts in asked[:: max(round(len(asked) / COUNTED), 1)]]
        one_at_a_time = counted(ensemble, some, settings, cell, spent)
        tokens += sum(map(written, one_at_a_time))
        all_rounds += itertools.chain.from_iterable(told)
    return {"marks": marks} | summed(all_rounds, spent, tokens, time.perf_counter() - since)


def summed(rounds: Sequence[Round], spent: Counter[str], tokens: int, seconds: float) -> dict[str, Any]:
    open_votes = [r for r in rounds if r.votes]
    return {
        "passes": spent.total(),
        "tokens": tokens,
        "passes_a_token": round(spent.total() / tokens, 2),
        "spent_on": {kind: round(spent[kind] / tokens, 3) for kind in sorted(spent)},
        "rounds": len(rounds),
        "alone": sum(len(r.drafts) == 1 for r in rounds),
        "all_the_same": sum(len(r.drafts) > 1 and len({(d.text, d.ended) for d in r.drafts.values()}) == 1
                            for r in rounds),
        "one_begins_the_other": sum(is_chain([d.text for d in r.drafts.values()]) for r in rounds),
        "verifiers": sum(len(r.votes) for r in open_votes),
        "verifiers_too_late": sum(map(settled_early, open_votes)),
        "seconds": round(seconds, 1),
    }  # fmt: skip


def demo(one_by_one: Sequence[Any], cell: Cell) -> dict[str, Any]:
    settings = Settings(max_tokens=40, min_members=2, **cell.choices)
    since, spent, tokens, rounds = time.perf_counter(), Counter[str](), 0, []
    for ensemble in [Ensemble([one]) for one in one_by_one] if cell.alone else [Ensemble(one_by_one)]:
        ensemble.loaded().result()
        told = counted(ensemble, DEMO_ASKED, settings, cell, spent)
        tokens += sum(map(written, told))
        rounds += itertools.chain.from_iterable(told)
    texts = [] if cell.alone else ["".join(r.text for r in rs) for rs in told]
    return summed(rounds, spent, tokens, time.perf_counter() - since) | {"answers": texts}


def five_of_two() -> list[Any]:
    """Five members of the demo's two models: they share weights and differ in what they are told."""
    from langchain_specfuse.demo import demo_members
    from langchain_specfuse.members.transformers import TransformersMember

    told: list[Any] = []
    manners = ("Answer briefly.", "You are a careful teacher.", "Explain step by step.")
    for one, how in zip(demo_members(), (manners, manners[:2]), strict=True):
        told += [
            TransformersMember(
                one.source.model, name=f"{one.name}-{n}", system_prompt=manner, chat_template=one.chat_template,
                repetition_penalty=one.repetition_penalty, dtype=one.source.dtype,
            )
            for n, manner in enumerate(how)
        ]  # fmt: skip
    return told


def table(part: str, cells: Mapping[str, Any]) -> str:
    lines = [
        f"\n{part}",
        "| | passes a token | rounds of one writer | right | against all draft |",
        "|---|---|---|---|---|",
    ]
    base = [float(c) for c in cells.get("all draft", {}).get("marks", [""])[0]]
    for name, cell in cells.items():
        marks = cell.get("marks", [])
        shares = [sum(map(int, one)) / len(one) for one in marks]
        right_ones = "-".join(f"{share:.0%}" for share in sorted({min(shares), max(shares)})) if shares else ""
        apart = difference([float(c) for c in marks[0]], base) if len(marks) == 1 and base else None
        told = f"{100 * apart.mean:+.0f} [{100 * apart.low:+.0f}, {100 * apart.high:+.0f}]" if apart else ""
        share = cell["alone"] / cell["rounds"]
        lines.append(f"| {name} | {cell['passes_a_token']} | {share:.0%} | {right_ones} | {told} |")
    if "all draft" in cells:
        c = cells["all draft"]
        lines.append(
            f"all draft: in {c['rounds']} rounds all drafts are the same in {c['all_the_same']}, each begins the next "
            f"in {c['one_begins_the_other']}; {c['verifiers_too_late']} of {c['verifiers']} votes could change nothing"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--each", type=int, default=40, help="questions of each skill")
    parser.add_argument("--two", type=int, default=96, help="questions of two skills")
    parser.add_argument("--table", action="store_true", help="only print what is there")
    told = parser.parse_args()
    torch.set_num_threads(1)
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for part in [] if told.table else told.parts.split(","):
        mode, _, two = part.partition(" ")
        one_by_one = five_of_two() if part == "demo" else members(mode)
        asked = questions(0, told.two) if two else questions(told.each, 0)
        for cell in PARTS[part]:
            cells = results.setdefault(part, {})
            if cell.name not in cells:
                cells[cell.name] = demo(one_by_one, cell) if part == "demo" else specialists(one_by_one, cell, asked)
                RESULTS.write_text(json.dumps(results, indent=1) + "\n")
                print(part, cell.name, cells[cell.name]["passes_a_token"], flush=True)
    for part, cells in results.items():
        print(table(part, cells))


if __name__ == "__main__":
    main()
