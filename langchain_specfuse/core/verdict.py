"""A decision: the members vote on labels. Nothing is drafted; each label is a draft that ends the answer.

As in ``rounds``, a generator yields what members should do and is sent the replies; at the end it yields a
:class:`Verdict`.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import EnsembleError, UsageError, advised
from .panel import Panel
from .rounds import failure_of, member_error
from .values import Ask, Candidate, Departure, Failure, Query, Replies, Reply, Scored, ScoreJob
from .voting import FLOOR

LABELS_AT_ONCE = 64
"""More labels are scored in several passes: each takes room in every member's cache."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the members decided."""

    probabilities: Mapping[str, float]
    """label -> probability, the weighted mean over the members: Σ_j w_j p_j(label). They sum to 1."""
    by_member: Mapping[str, Mapping[str, float]]
    """member -> label -> probability."""
    mass: Mapping[str, float]
    """member -> the probability that it would answer with one of these labels at all. If it is tiny, the probabilities
    say little: rephrase the question, or offer other labels."""
    weights: Mapping[str, float]
    """member -> voting weight; they sum to 1."""
    left: tuple[Departure, ...] = ()
    """Members that failed, and why."""

    @property
    def label(self) -> str:
        """The most probable label; among equals the first."""
        return max(self.probabilities, key=lambda label: round(self.probabilities[label], 12))

    @property
    def confidence(self) -> float:
        """The probability of that label."""
        return self.probabilities[self.label]

    @property
    def margin(self) -> float:
        """The confidence minus the probability of the second label (1.0 when there is no other)."""
        others = [share for label, share in self.probabilities.items() if label != self.label]
        return self.confidence - max(others) if others else 1.0

    @property
    def text(self) -> str:
        """The label, as a round has its text."""
        return self.label

    def as_dict(self) -> dict[str, Any]:
        """The verdict as plain JSON."""
        return {
            "label": self.label,
            "probabilities": dict(self.probabilities),
            "margin": self.margin,
            "by_member": {name: dict(shares) for name, shares in self.by_member.items()},
            "mass": dict(self.mass),
            "weights": dict(self.weights),
            "left": [{"member": d.member, "kind": d.kind, "reason": d.reason, "round": d.round} for d in self.left],
        }


Deciding = Generator[Ask | Verdict, Replies | None, None]


def decided(query: Query, labels: Sequence[str], panel: Panel) -> Deciding:
    """The verdict on these labels. Every verifier reads the query once and scores every label."""
    if not panel.verifiers:
        error = UsageError("none of these members can score, so none can decide")
        raise advised(error, "a decision needs a member with log-probabilities, such as a TransformersMember")
    sums: dict[str, list[float]] = {name: [] for name in panel.verifiers}
    for some in _parts(labels):
        candidates, drafters = tuple(Candidate(label, True, ()) for label in some), set(panel.drafters)
        jobs = {name: ScoreJob(query, (), candidates, thinks=name in drafters) for name in panel.verifiers}
        replies = yield Ask(jobs, 1)
        assert replies is not None
        failures = {name: failed for name, job in jobs.items() if (failed := _unfit(job, replies[name]))}
        panel = panel.without([Departure(n, f.kind, f.message, 1, f.cause) for n, f in failures.items()])
        if not panel.verifiers:
            raise _nobody(panel)
        for name in panel.verifiers:
            reply = replies[name]
            assert isinstance(reply, Scored)
            sums[name] += [math.fsum(max(value, FLOOR) for value in row) for row in reply.logprobs]
    yield verdict(labels, {name: sums[name] for name in panel.verifiers}, panel.weights, panel.left)


def verdict(
    labels: Sequence[str],
    sums: Mapping[str, Sequence[float]],
    weights: Mapping[str, float],
    left: tuple[Departure, ...] = (),
) -> Verdict:
    """The verdict from each member's summed log-probabilities of the labels.

    >>> sums = {"ann": [math.log(0.6), math.log(0.2)], "bob": [math.log(0.01), math.log(0.03)]}
    >>> found = verdict(["yes", "no"], sums, {"ann": 0.5, "bob": 0.5})
    >>> found.label, [round(p, 6) for p in found.probabilities.values()], round(found.mass["bob"], 6)
    ('yes', [0.5, 0.5], 0.04)
    """
    whole = math.fsum(weights[name] for name in sums)
    shares = {name: weights[name] / whole for name in sums}
    own = {name: dict(zip(labels, probabilities(row), strict=True)) for name, row in sums.items()}
    mixed = {label: math.fsum(shares[name] * own[name][label] for name in own) for label in labels}
    mass = {name: min(1.0, math.fsum(map(math.exp, row))) for name, row in sums.items()}
    return Verdict(mixed, own, mass, shares, left)


def probabilities(sums: Sequence[float]) -> list[float]:
    """One member's probabilities of the labels, given that it answers with one of them: p_i = e^(s_i) / Σ_k e^(s_k).

    s is the *sum* of the log-probabilities of a label's tokens and of the end after it, so e^s is the probability of
    that whole answer, also where one label begins with another. A mean would favour long labels, whose last tokens
    follow from the first.

    >>> [round(p, 6) for p in probabilities([math.log(0.3), math.log(0.1)])]
    [0.75, 0.25]
    """
    best = max(sums)
    shares = [math.exp(value - best) for value in sums]
    whole = math.fsum(shares)
    return [share / whole for share in shares]


def _unfit(job: ScoreJob, reply: Reply) -> Failure | None:
    """Why this is not a score of every label, if it is not."""
    if failed := failure_of(job, reply):
        return failed
    assert isinstance(reply, Scored)
    short = min(map(len, reply.logprobs))
    if short < 2:
        return Failure("error", f"returned {short} numbers for a label (wanted its tokens and the end)")
    return None


def _nobody(panel: Panel) -> EnsembleError:
    reasons = "; ".join(f"{gone.member} ({gone.kind}): {gone.reason}" for gone in panel.left)
    error = EnsembleError(f"no member is left to decide: {reasons}", failures=tuple(map(member_error, panel.left)))
    return advised(error, "what each member raised is in .failures, with its cause; try them one by one")


def _parts(labels: Sequence[str]) -> Iterator[Sequence[str]]:
    for at in range(0, len(labels), LABELS_AT_ONCE):
        yield labels[at : at + LABELS_AT_ONCE]
