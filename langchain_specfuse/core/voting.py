"""The arithmetic of one vote, each step with its formula: scores become votes, totals and rewards.

All functions are pure. A draft is an index in a list; only rewards depend on its authors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from .options import RewardKind, ScoreKind, WeightingKind

FLOOR = -1e4
"""Log-probabilities below this, such as minus infinity, are raised to it, so that votes stay
finite."""
CONFIDENT_TOKENS = 8
"""A verifier's confidence is the probability of this many tokens of its favourite draft."""
BYTES_PER_TOKEN = 4
LEAST_CONFIDENCE = 0.1
"""The confidence of a verifier that finds no draft probable. If it were 0, tiny differences would
decide when no verifier finds any draft probable."""


def raw_score(kind: ScoreKind, logprobs: Sequence[float], text: str) -> float:
    """One verifier's score of one draft, from the log-probabilities of the draft's m tokens. The
    end of the turn counts as a token.

    ``mean_prob`` (1/m) Σ p, ``mean_logprob`` (1/m) Σ log p, ``logprob_per_byte`` Σ log p / bytes.

    >>> raw_score("mean_prob", [math.log(0.5), math.log(0.25)], "a b")
    0.375
    >>> round(raw_score("mean_logprob", [-1.0, -2.0], "a b"), 3)
    -1.5
    >>> raw_score("logprob_per_byte", [-1.0, -2.0], "äbc")
    -0.75

    A draft without tokens and without an end gets the worst score:

    >>> raw_score("mean_logprob", [], "")
    -10000.0
    """
    if not logprobs:
        return 0.0 if kind == "mean_prob" else FLOOR
    if min(logprobs) < FLOOR:
        logprobs = [max(value, FLOOR) for value in logprobs]
    if kind == "mean_prob":
        return math.fsum(map(math.exp, logprobs)) / len(logprobs)
    if kind == "mean_logprob":
        return math.fsum(logprobs) / len(logprobs)
    return math.fsum(logprobs) / max(len(text.encode()), 1)


def votes(kind: ScoreKind, scores: Sequence[float]) -> list[float]:
    """One verifier's votes for all drafts, in the order of its scores: s_i >= 0, Σ s_i = 1.

    Scores of the kind ``mean_prob`` are divided by their sum. For the kinds of log-probabilities,
    the votes are the softmax of the scores.

    >>> votes("mean_prob", [0.75, 0.25])
    [0.75, 0.25]
    >>> [round(v, 3) for v in votes("mean_logprob", [-1.0, -2.0])]
    [0.731, 0.269]
    >>> votes("mean_prob", [0.0, 0.0])
    [0.5, 0.5]

    Paper: the published reference divides raw logits by their sum, which reverses the order when
    they are negative.
    """
    if kind == "mean_prob":
        raw = list(scores)
    else:
        best = max(scores)
        raw = [math.exp(score - best) for score in scores]
    whole = math.fsum(raw)
    if whole <= 0:
        return [1.0 / len(scores)] * len(scores)
    return [score / whole for score in raw]


def totals(
    by_verifier: Mapping[str, Sequence[float]], weights: Mapping[str, float], drafts: int
) -> list[float]:
    """The total of each draft i: Σ_j w_j s_ji over the verifiers j that voted.

    >>> totals({"a": [1.0, 0.0], "b": [0.25, 0.75]}, {"a": 0.5, "b": 0.5}, 2)
    [0.625, 0.375]
    """
    return [
        math.fsum(weights[verifier] * row[i] for verifier, row in by_verifier.items())
        for i in range(drafts)
    ]


def confidences(
    kind: WeightingKind, score: ScoreKind, scores: Mapping[str, Sequence[float]]
) -> dict[str, float]:
    """How much each verifier counts in this round besides its weight, from 0 to 1.

    ``equal``: 1. ``confidence``: c_j = 0.1 + 0.9 p^8, where p is the probability per token that j
    gives its favourite draft. A verifier that finds no draft probable, not even its own, leaves the
    decision to the others.

    >>> scores = {"a": [math.log(0.95), -3.0], "b": [math.log(0.5), math.log(0.3)]}
    >>> {name: round(c, 3) for name, c in confidences("confidence", "mean_logprob", scores).items()}
    {'a': 0.697, 'b': 0.104}

    Paper: a verifier's votes count by its weight alone. A member that knows the answer strongly
    prefers it, but members that do not know it strongly prefer their own drafts too, and there are
    more of those (docs/development/log.md).
    """
    if kind == "equal":
        return dict.fromkeys(scores, 1.0)
    confidence = {}
    for name, row in scores.items():
        probability = per_token(score, max(row)) ** CONFIDENT_TOKENS
        confidence[name] = LEAST_CONFIDENCE + (1 - LEAST_CONFIDENCE) * probability
    return confidence


def per_token(kind: ScoreKind, score: float) -> float:
    """Convert a score to a probability per token."""
    if kind == "mean_prob":
        return min(score, 1.0)
    if kind == "logprob_per_byte":
        score *= BYTES_PER_TOKEN
    return math.exp(min(score, 0.0))


def shares(confidence: Mapping[str, float], weights: Mapping[str, float]) -> dict[str, float]:
    """The share in the vote of each verifier that voted: w_j c_j, normalised.

    >>> parts = shares({"a": 0.3, "b": 0.1}, {"a": 0.5, "b": 0.5, "absent": 1.0})
    >>> {name: round(part, 3) for name, part in parts.items()}
    {'a': 0.75, 'b': 0.25}
    """
    products = {name: weights[name] * c for name, c in confidence.items()}
    whole = math.fsum(products.values())
    return {name: product / whole for name, product in products.items()}


def rewards(
    kind: RewardKind,
    by_verifier: Mapping[str, Sequence[float]],
    authors: Sequence[Sequence[str]],
    confidence: Mapping[str, float],
) -> list[float]:
    """The reward that each draft earns for its authors, by :func:`win_rates` or :func:`margins`. A
    single draft earns 1."""
    if len(authors) == 1:
        return [1.0]
    if kind == "wins":
        return win_rates(by_verifier, authors)
    return margins(by_verifier, confidence, len(authors))


def margins(
    by_verifier: Mapping[str, Sequence[float]], confidence: Mapping[str, float], drafts: int
) -> list[float]:
    """The reward r_i of each draft: how clearly all verifiers prefer it to the other drafts, its
    authors included.

    This is the mean of s_ji / (s_ji + s_jk) over all verifiers j, weighted by c_j, and all other
    drafts k.

    >>> [round(r, 3) for r in margins({"a": [0.7, 0.3], "b": [0.6, 0.4]}, {"a": 1.0, "b": 1.0}, 2)]
    [0.65, 0.35]

    One verifier with a clear preference outweighs two with a slight one:

    >>> rows = {"a": [0.9, 0.05, 0.05], "b": [0.33, 0.34, 0.33], "c": [0.33, 0.34, 0.33]}
    >>> [round(r, 2) for r in margins(rows, {"a": 1.0, "b": 1.0, "c": 1.0}, 3)]
    [0.65, 0.43, 0.42]

    Paper: only third parties judge there, and a narrow win counts as much as a clear one. A third
    party that cannot answer the question adds noise (docs/development/log.md).
    """
    if not by_verifier:
        return [0.5] * drafts
    whole = math.fsum(confidence[verifier] for verifier in by_verifier)
    parts = {verifier: confidence[verifier] / whole for verifier in by_verifier}
    return [
        math.fsum(parts[verifier] * _margin(i, row) for verifier, row in by_verifier.items())
        for i in range(drafts)
    ]


def _margin(i: int, row: Sequence[float]) -> float:
    pairs = [(row[i], other) for k, other in enumerate(row) if k != i]
    return math.fsum(a / (a + b) if a + b > 0 else 0.5 for a, b in pairs) / len(pairs)


def win_rates(
    by_verifier: Mapping[str, Sequence[float]], authors: Sequence[Sequence[str]]
) -> list[float]:
    """The reward r_i of each draft, as third parties judge it.

    This is the share of comparisons (verifier j, other draft k) in which s_ji > s_jk, among
    verifiers that wrote neither of the two. A tie counts as one half. If there are no such
    verifiers (there are two drafts, and each verifier wrote one of them), it is the mean vote s_ji
    of the verifiers that did not write i.

    >>> win_rates({"a": [0.7, 0.3], "b": [0.6, 0.4]}, [["a"], ["b"]])
    [0.6, 0.3]
    >>> win_rates(
    ...     {"a": [0.5, 0.3, 0.2], "b": [0.2, 0.5, 0.3], "c": [0.5, 0.1, 0.4]},
    ...     [["a"], ["b"], ["c"]],
    ... )
    [0.5, 0.5, 0.5]
    >>> win_rates(
    ...     {"a": [0.5, 0.3, 0.2], "b": [0.5, 0.3, 0.2], "c": [0.5, 0.3, 0.2]},
    ...     [["a"], ["b"], ["c"]],
    ... )
    [1.0, 0.5, 0.0]

    Paper: the reference's feedback has no effect with two members; the mean vote is our addition.
    """
    return [_win_rate(i, by_verifier, authors) for i in range(len(authors))]


def _win_rate(
    i: int, by_verifier: Mapping[str, Sequence[float]], authors: Sequence[Sequence[str]]
) -> float:
    others = {name: row for name, row in by_verifier.items() if name not in authors[i]}
    wins: list[float] = []
    for verifier, row in others.items():
        rivals = [k for k in range(len(authors)) if k != i and verifier not in authors[k]]
        wins += [0.5 + 0.5 * (row[i] > row[k]) - 0.5 * (row[i] < row[k]) for k in rivals]
    values = wins or [row[i] for row in others.values()]
    return math.fsum(values) / len(values) if values else 0.5
