"""When several members are confident in different openings of an answer, a neutral member decides between these.

A member that has read little but its own subject is confident on every question. Where two members take a question for
theirs, their votes cancel, and no score of the drafts tells them apart. What does is how much a draft has to do with
the question: a member that wrote neither scores both with the question and without it.

Paper: it has no tie-break. Discounting what is likely without the question is known from dialogue (Li et al., 2016) and
from multiple choice (Holtzman et al., 2021). Results are in docs/log.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from .method import ScoreKind
from .values import Query
from .voting import per_token

CONFIDENT = 0.97
"""An author is confident in its draft if it gives it at least this probability per token."""
DISCOUNT = 0.9
"""How much of a draft's likelihood without the question counts against it. Not all: fluency is worth something."""


@dataclass(frozen=True, slots=True)
class Tie:
    """Drafts whose authors are confident in them, and the member that decides between these."""

    drafts: tuple[int, ...]
    parties: tuple[str, ...]
    breaker: str


def find_tie(kind: ScoreKind, scores: Mapping[str, Sequence[float]], authors: Sequence[Sequence[str]]) -> Tie | None:
    """The tie between drafts whose authors are confident, if there is one; the least confident other member breaks it.

    >>> sure, unsure = math.log(0.99), math.log(0.5)
    >>> scores = {"a": [sure, -9.0, -9.0], "b": [-9.0, sure, -9.0], "c": [-4.0, -3.0, unsure]}
    >>> find_tie("mean_logprob", scores, [["a"], ["b"], ["c"]])
    Tie(drafts=(0, 1), parties=('a', 'b'), breaker='c')

    No tie where only one is confident, or where no other member can decide:

    >>> find_tie("mean_logprob", {**scores, "b": [-9.0, unsure, -9.0]}, [["a"], ["b"], ["c"]])
    >>> find_tie("mean_logprob", {name: scores[name] for name in "ab"}, [["a"], ["b"], ["c"]])
    """
    sure = {
        i: [name for name in names if name in scores and per_token(kind, scores[name][i]) >= CONFIDENT]
        for i, names in enumerate(authors)
    }
    drafts = tuple(i for i, names in sure.items() if names)
    parties = tuple(name for names in sure.values() for name in names)
    others = [name for name in scores if not any(name in authors[i] for i in drafts)]
    if len(drafts) < 2 or not others:
        return None
    return Tie(drafts, parties, min(others, key=lambda name: max(scores[name])))


def without_question(query: Query) -> Query | None:
    """The same conversation with an empty last question; None if it does not end with a question.

    >>> from .values import Turn
    >>> bare = without_question(Query("q", (Turn("system", "Be brief."), Turn("user", "Why?"))))
    >>> bare.id, [turn.text for turn in bare.turns]
    ('q without its question', ['Be brief.', ''])
    >>> without_question(Query("q", (Turn("user", "Why?"), Turn("assistant", "Because"))))
    """
    if not query.turns or query.turns[-1].role != "user":
        return None
    *before, last = query.turns
    return replace(query, id=f"{query.id} without its question", turns=(*before, replace(last, text="")))


def favourite(kind: ScoreKind, with_question: Sequence[float], without: Sequence[float]) -> int:
    """The draft that gains most from the question: log p(with it) - 0.9 log p(without it), per token.

    >>> favourite("mean_logprob", [-4.0, -3.0], [-7.0, -4.0])
    0
    """
    gains = [_log(kind, w) - DISCOUNT * _log(kind, o) for w, o in zip(with_question, without, strict=True)]
    return max(range(len(gains)), key=gains.__getitem__)


def broken(votes: Mapping[str, Sequence[float]], tie: Tie, favoured: int) -> dict[str, list[float]]:
    """The votes after the tie-break: what the parties gave to the tied drafts goes to the favoured one.

    >>> tie = Tie((0, 1), ("a", "b"), "c")
    >>> broken({"a": [0.8, 0.1, 0.1], "b": [0.0, 1.0, 0.0], "c": [0.1, 0.2, 0.7]}, tie, 1)
    {'a': [0.0, 0.9, 0.1], 'b': [0.0, 1.0, 0.0], 'c': [0.1, 0.2, 0.7]}
    """

    def moved(judge: str, row: Sequence[float]) -> list[float]:
        if judge not in tie.parties:
            return list(row)
        whole = math.fsum(row[i] for i in tie.drafts)
        return [whole if i == favoured else 0.0 if i in tie.drafts else vote for i, vote in enumerate(row)]

    return {judge: moved(judge, row) for judge, row in votes.items()}


def _log(kind: ScoreKind, score: float) -> float:
    return math.log(max(per_token(kind, score), math.exp(-100.0)))
