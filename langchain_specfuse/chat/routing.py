"""Who leads an answer and why, and the features by which a router decides it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ..core.routing import Embedded, Router, best, features_of, unit
from ..core.values import Turn
from ..errors import UsageError, advised

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


def routed(router: Router, turns: Iterable[Turn], embeddings: Any = None) -> Routing:
    """Who leads the answer to this conversation. The router must fit the embeddings: see
    :func:`check_embeddings`."""
    made_with = router.embeddings
    if made_with is None:
        features = features_of(turns)
    else:
        read = partial(embedded, embeddings, dimension=made_with.dimension)
        features = features_of(turns, read)
    predicted = router.predicted(features)
    expected = {name: min(max(value, 0.0), 1.0) for name, value in predicted.items()}
    return Routing(best(predicted, best(router.shares)), "router", expected)


# --- embeddings -----------------------------------------------------------------------------------


def embedded(embeddings: Any, text: str, dimension: int | None = None) -> dict[int, float]:
    """The embedding of a text, as features. ``dimension``: how many numbers it must have."""
    # Not embed_documents: some embeddings treat a query and a document differently, and each
    # question must be treated like those that the router was made from.
    values = [float(value) for value in embeddings.embed_query(text)]
    if dimension not in (None, len(values)) or not all(map(math.isfinite, values)):
        numbers = f"{dimension} finite numbers" if dimension else "finite numbers"
        error = UsageError(
            f"{name_of(embeddings)} must return {numbers} for a text, got {len(values)} numbers"
            + ("" if all(map(math.isfinite, values)) else ", not all finite")
        )
        raise advised(error, "use the embeddings that the router was made with")
    return unit(dict(enumerate(values)))


def name_of(embeddings: Any) -> str:
    """The class of these embeddings, and the name of their model if it has one."""
    name = type(embeddings).__name__
    for attribute in ("model", "model_name", "model_id"):
        model = getattr(embeddings, attribute, None)
        if isinstance(model, str) and model:
            return f"{name} {model}"
    return name


def check_embeddings(made_with: Embedded, embeddings: Any) -> None:
    """Refuse embeddings other than those that the router was made with."""
    if embeddings is None:
        given = "the chat model has no embeddings"
    elif name_of(embeddings) != made_with.name:
        given = f"the chat model's embeddings are {name_of(embeddings)}"
    else:
        return
    error = UsageError(f"the router was made with {made_with.name}, but {given}")
    advice = "pass the same ones: SpecFuseChatModel(..., embeddings=...); or calibrate again"
    raise advised(error, advice)
