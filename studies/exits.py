"""Exit policies and a learning rate from outside the package: what the paper's text says word by word, for comparison.

After ``register()``, ``Method(exit="literal")``, ``Method(exit="fixed")`` and
``Method(feedback="anytime")`` work like the built-in values.

``literal``: p = softmax(S / τ) over the drafting members, where S is the sum of a member's totals and τ_t = H · sqrt(t)
(H: the entropy of the wins); the member with the lowest p leaves when p < 0.5 / n. ``fixed``: the same with τ = 1.
Totals that sum to 1 never grow far apart, so both let few members go; ``studentized``, the default, divides the
deviations by their spread.
``anytime``: η_t = rate · sqrt(8 ln n / t), the rate of the any-time analysis of multiplicative weights.
"""

from __future__ import annotations

import math

from langchain_specfuse.core.panel import EXIT_POLICIES, LEARNING_RATES, Panel, win_entropy
from langchain_specfuse.core.values import Departure


def keep_probabilities(panel: Panel, tau: float) -> dict[str, float]:
    """p = softmax(S / τ) over the drafting members."""
    sums = {name: panel.record.totals.get(name, 0.0) for name in panel.drafters}
    best = max(sums.values())
    shares = {name: math.exp((total - best) / max(tau, 1e-6)) for name, total in sums.items()}
    return {name: share / math.fsum(shares.values()) for name, share in shares.items()}


def literal(panel: Panel, min_members: int, round: int) -> Panel:
    return _lowest_leaves(panel, round, win_entropy(panel) * math.sqrt(max(panel.record.rounds, 1)))


def fixed(panel: Panel, min_members: int, round: int) -> Panel:
    return _lowest_leaves(panel, round, 1.0)


def _lowest_leaves(panel: Panel, round: int, tau: float) -> Panel:
    """One member at a time, so ``min_members`` stay: an exit policy is called only while there are more."""
    keep, limit = keep_probabilities(panel, tau), 0.5 / len(panel.drafters)
    lowest = min(panel.drafters, key=lambda name: (keep[name], panel.weights[name], -panel.drafters.index(name)))
    reason = f"its drafts kept losing: keep-probability {keep[lowest]:.3f}, below {limit:.3f}"
    return panel.without([Departure(lowest, "exit", reason, round)] if keep[lowest] < limit else [])


def anytime(rate: float, round: int, members: int) -> float:
    return rate * math.sqrt(8 * math.log(members) / round) if members > 1 else 0.0


def register() -> None:
    """Make them values of the options ``exit`` and ``feedback``."""
    EXIT_POLICIES.update(literal=literal, fixed=fixed)
    LEARNING_RATES.update(anytime=anytime)
