"""From logits to tokens and log-probabilities.

Sampling is repeatable whatever else is in the batch. The noise of a token depends on (seed,
position) alone: not on the round, the batch, the device or a global generator. So text that was
drafted and cut off is the same when it is drafted again.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence

import numpy as np

from ...core.values import Sampling
from ..text.prompts import CandidateTokens
from ..text.words import Words, either
from .strands import Logits

# --- sampling -------------------------------------------------------------------------------------


def sample(
    logits: Iterable[Logits], sampling: Sequence[Sampling], contexts: Sequence[Sequence[int]]
) -> list[int]:
    """One token per row. ``contexts``: the tokens before it. The penalty applies to these, and
    their number is the position."""
    tokens = []
    for row, how, context in zip(logits, sampling, contexts, strict=True):
        row = _penalise(row, how.repetition_penalty, context)
        if how.temperature > 0:
            tokens.append(_pick(row, how, len(context)))
        else:
            tokens.append(int(row.argmax()))
    return tokens


def _penalise(row: Logits, penalty: float | None, context: Sequence[int]) -> Logits:
    if not penalty or penalty == 1.0:
        return row
    row = row.copy()
    seen = np.fromiter(set(context), dtype=np.int64)
    row[seen] = np.where(row[seen] > 0, row[seen] / penalty, row[seen] * penalty)
    return row


def _pick(row: Logits, how: Sampling, position: int) -> int:
    """Inverse transform sampling on the sorted, filtered probabilities with one uniform number."""
    tokens = np.argsort(-row, kind="stable")[: how.top_k or None]
    # Divided by a temperature near 0, distances from the best token become -inf. The logits
    # themselves would become inf, and their differences NaN.
    distances = (row[tokens] - row[tokens[0]]).astype(np.float64)
    with np.errstate(over="ignore"):
        weights = np.exp(distances / how.temperature)
    # Each filter gets what the one before has left: top_k, top_p, min_p.
    probs = weights / weights.sum()
    keep = np.ones(len(probs), dtype=bool)
    if how.top_p is not None:
        keep &= probs.cumsum() - probs < how.top_p
    if how.min_p is not None:
        keep &= probs >= how.min_p * probs[0]
    keep[0] = True
    sums = probs[keep].cumsum()
    at = int(np.searchsorted(sums, noise(how.seed, position) * sums[-1], side="right"))
    return int(tokens[keep][min(at, len(sums) - 1)])


def noise(seed: int, position: int) -> float:
    """The uniform number that picks the token at this position."""
    return random.Random(f"{seed}:{position}").random()


def most_likely(row: Logits, count: int) -> list[int]:
    """The most probable tokens, best first, without those at minus infinity.

    >>> most_likely(np.array([1.0, 3.0, -np.inf, 2.0], dtype=np.float32), 3)
    [1, 3, 0]
    """
    count = min(count, len(row))
    tokens = np.argpartition(-row, count - 1)[:count]
    tokens = tokens[np.lexsort((tokens, -row[tokens]))]
    return [int(token) for token in tokens if row[token] > -np.inf]


# --- log-probabilities ----------------------------------------------------------------------------


def logprobs_of(logits: Logits, tokens: Sequence[int]) -> list[float]:
    """The log-probability of one token per row. logits: (rows, vocabulary)."""
    pairs = zip(logits, tokens, strict=True)
    return [_at_most_0(float(row[token]) - _logsumexp(row)) for row, token in pairs]


def end_logprobs(logits: Logits, stops: Sequence[int]) -> list[float]:
    """The log-probability, per row, that the turn ends here with any of the stop tokens. -inf if
    there are none."""
    if not stops:
        return [-math.inf] * len(logits)
    ids = list(stops)
    return [_at_most_0(_logsumexp(row[ids]) - _logsumexp(row)) for row in logits]


def _logsumexp(row: Logits) -> float:
    most = float(row.max())
    if not math.isfinite(most):
        return most  # -inf, inf or NaN
    return most + math.log(float(np.exp(row - row.max()).sum(dtype=np.float64)))


def _at_most_0(logprob: float) -> float:
    """NaN stays NaN."""
    return 0.0 if logprob > 0 else logprob


# --- candidates -----------------------------------------------------------------------------------


def candidate_logprobs(
    tokens: CandidateTokens, logits: Logits, stops: Sequence[int]
) -> tuple[float, ...]:
    """One number per new token, and one for the end if the candidate ends the answer.

    ``logits``: before each new token and after the last, (new tokens + 1, vocabulary).
    """
    new = tokens.ids[_start(tokens, logits) :]
    known = logprobs_of(logits[: len(new)], new) if new else []
    if not tokens.candidate.ended:
        return tuple(known)
    end_size = len(tokens.ids) - tokens.size
    count = len(new) - end_size
    end = end_logprobs(logits[count : count + 1], stops)[0]
    if end_size:
        end = either([end, math.fsum(known[count:])])
    return (*known[:count], end)


def candidate_ends(tokens: CandidateTokens, logits: Logits, words: Words) -> tuple[int, ...]:
    """For each new token, how many characters of the candidate are complete after it."""
    start = _start(tokens, logits)
    new = tokens.ids[start : tokens.size]
    return words.ends(tokens.ids[:start], new, tokens.candidate.text)


def _start(tokens: CandidateTokens, logits: Logits) -> int:
    """The number of tokens before the first new one."""
    return len(tokens.ids) + 1 - len(logits)
