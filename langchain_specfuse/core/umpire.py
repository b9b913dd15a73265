"""When several members are sure of different beginnings of an answer, who decides? One that is no party.

A member that has read little but its own skill is sure of itself on every question. Where two take the same question
for theirs, their votes cancel, and nothing that anybody says of the drafts tells them apart. What does is how much the
question has to do with it: somebody else scores these drafts with the question and without it. Knows the numbers of one
vote; asks nobody.

Paper: it has no umpire. One wrong first segment decides an answer, and where two were sure it was wrong more often
than not (docs/study-tuned.md). Counting what is likely without the question against a text is known from dialogue (Li
et al., 2016) and from multiple choice (Holtzman et al., 2021).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from .values import Query, ScoreKind
from .voting import a_token

SURE = 0.97
"""A writer is sure of its draft if that has at least this probability a token."""
ANYWAY = 0.9
"""How much of what is likely without the question counts against a draft: a text's fluency is worth something."""


@dataclass(frozen=True, slots=True)
class Dispute:
    """Several drafts whose writers are sure of them, and who shall decide between them."""

    drafts: tuple[int, ...]
    parties: tuple[str, ...]
    umpire: str


def dispute(kind: ScoreKind, scores: Mapping[str, Sequence[float]], authors: Sequence[Sequence[str]]) -> Dispute | None:
    """Whether two drafts or more have writers that are sure of them, and who is least sure of all others.

    >>> sure, unsure = math.log(0.99), math.log(0.5)
    >>> scores = {"a": [sure, -9.0, -9.0], "b": [-9.0, sure, -9.0], "c": [-4.0, -3.0, unsure]}
    >>> dispute("mean_logprob", scores, [["a"], ["b"], ["c"]])
    Dispute(drafts=(0, 1), parties=('a', 'b'), umpire='c')

    No dispute: only one is sure, or nobody else is there to decide.

    >>> dispute("mean_logprob", {**scores, "b": [-9.0, unsure, -9.0]}, [["a"], ["b"], ["c"]])
    >>> dispute("mean_logprob", {name: scores[name] for name in "ab"}, [["a"], ["b"], ["c"]])
    """
    sure = {
        i: [name for name in names if name in scores and a_token(kind, scores[name][i]) >= SURE]
        for i, names in enumerate(authors)
    }
    drafts = tuple(i for i, names in sure.items() if names)
    parties = tuple(name for names in sure.values() for name in names)
    others = [name for name in scores if not any(name in authors[i] for i in drafts)]
    if len(drafts) < 2 or not others:
        return None
    return Dispute(drafts, parties, min(others, key=lambda name: max(scores[name])))


def without_question(query: Query) -> Query | None:
    """The same conversation, but for what was asked last; None if that is nobody's question.

    >>> from .values import Turn
    >>> told = without_question(Query("q", (Turn("system", "Be brief."), Turn("user", "Why?"))))
    >>> told.id, [turn.text for turn in told.turns]
    ('q without its question', ['Be brief.', ''])
    >>> without_question(Query("q", (Turn("user", "Why?"), Turn("assistant", "Because"))))
    """
    if not query.turns or query.turns[-1].role != "user":
        return None
    *before, last = query.turns
    return replace(query, id=f"{query.id} without its question", turns=(*before, replace(last, text="")))


def called_for(kind: ScoreKind, asked: Sequence[float], unasked: Sequence[float]) -> int:
    """Which of these drafts the question calls for most: log p(with it) - 0.9 log p(without it), a token.

    >>> called_for("mean_logprob", [-4.0, -3.0], [-7.0, -4.0])
    0
    """
    gains = [_log(kind, a) - ANYWAY * _log(kind, u) for a, u in zip(asked, unasked, strict=True)]
    return max(range(len(gains)), key=gains.__getitem__)


def decided(ballots: Mapping[str, Sequence[float]], between: Dispute, favoured: int) -> dict[str, list[float]]:
    """The votes, where what the parties gave to the drafts in dispute goes to the favoured one.

    >>> between = Dispute((0, 1), ("a", "b"), "c")
    >>> decided({"a": [0.8, 0.1, 0.1], "b": [0.0, 1.0, 0.0], "c": [0.1, 0.2, 0.7]}, between, 1)
    {'a': [0.0, 0.9, 0.1], 'b': [0.0, 1.0, 0.0], 'c': [0.1, 0.2, 0.7]}
    """

    def told(judge: str, row: Sequence[float]) -> list[float]:
        if judge not in between.parties:
            return list(row)
        whole = math.fsum(row[i] for i in between.drafts)
        return [whole if i == favoured else 0.0 if i in between.drafts else vote for i, vote in enumerate(row)]

    return {judge: told(judge, row) for judge, row in ballots.items()}


def _log(kind: ScoreKind, score: float) -> float:
    return math.log(max(a_token(kind, score), math.exp(-100.0)))
