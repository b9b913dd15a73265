"""Who leads an answer, and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..core.routing import Router, best, features_of
from ..core.values import Turn

REASONS: Mapping[str, str] = {
    "router": "the router expects {expected} of such questions",
    "calibration": "{expected} of the questions of the calibration",
    "named": "it was named as the lead",
    "largest": "it has at least twice the parameters of every other member",
    "first": "it is the first member",
    "reserve": "the member that should lead has failed recently",
}
"""The value of ``Routing.by`` -> the reason in words."""


@dataclass(frozen=True, slots=True)
class Routing:
    """Who leads an answer, and why."""

    lead: str | None
    """None if all members vote as equals."""
    by: str
    """A key of ``REASONS``, or ``vote``."""
    expected: Mapping[str, float] = field(default_factory=dict)
    """member -> the share of right answers that is expected of it, if that is known."""
    rule: str = ""
    """Why the first member leads, or why no member does, if ``lead="auto"`` decided that."""

    def as_dict(self) -> dict[str, Any]:
        """The routing as plain JSON. It contains no text of the question."""
        values: dict[str, Any] = {"lead": self.lead, "by": self.by}
        if self.expected:
            values["expected"] = {name: round(value, 4) for name, value in self.expected.items()}
        return values

    def text(self) -> str:
        """The routing in words.

        >>> Routing("a", "router", {"a": 0.8, "b": 0.3}).text()
        'a leads: the router expects it to be right on 80% (b 30%) of such questions'
        >>> Routing("a", "largest").text()
        'a leads: it has at least twice the parameters of every other member'
        >>> Routing(None, "vote", rule="the members are alike").text()
        'no member leads: all vote, because the members are alike'
        """
        rule = f", because {self.rule}" if self.rule else ""
        if self.lead is None:
            return f"no member leads: all vote{rule}"
        expected = ""
        if self.expected:
            verb = "it to be right on" if self.by == "router" else "alone, it is right on"
            others = [
                f"{name} {100 * share:.0f}%"
                for name, share in self.expected.items()
                if name != self.lead
            ]
            expected = f"{verb} {100 * self.expected[self.lead]:.0f}% ({', '.join(others)})"
        return f"{self.lead} leads: {REASONS[self.by].format(expected=expected)}{rule}"


def routed(router: Router, turns: Iterable[Turn]) -> Routing:
    """Who leads the answer to this conversation."""
    predicted = router.predicted(features_of(turns))
    expected = {name: min(max(value, 0.0), 1.0) for name, value in predicted.items()}
    return Routing(best(predicted, best(router.shares)), "router", expected)
