"""What an answer may spend on members that are billed by request: the options ``max_calls`` and ``max_cost``.

Once a bound is reached, jobs say ``new_requests=False``. A member that would need a new request refuses such a job: it
leaves if the job was a draft, and only misses the vote if it was a ballot. A member whose open stream matches the
agreed text continues that stream, and members that cost no requests go on as before. Requests that start together are
not stopped half-way, so an answer may exceed a bound by those of one phase of a round.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from .values import Effort


@dataclass(slots=True)
class Budget:
    """What an answer may cost, and what it has cost.

    >>> budget = Budget(max_calls=2)
    >>> budget.spend([Effort(requests=1)]), budget.is_spent
    (None, False)
    >>> budget.spend([Effort(requests=1)]), budget.is_spent
    (None, True)
    """

    max_calls: int | None = None
    max_cost: float | None = None
    used: Effort = Effort()

    def spend(self, efforts: Iterable[Effort]) -> None:
        self.used = sum(efforts, self.used)

    @property
    def is_spent(self) -> bool:
        """Whether no new request may be started."""
        calls, cost = (math.inf if bound is None else bound for bound in (self.max_calls, self.max_cost))
        return self.used.requests >= calls or self.used.cost >= cost
