"""The cells of the study on real members: a set, who answers, and what differs from the defaults.

The order is the order in which they are measured, the most telling first. Knows names and settings; asks nobody.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from quality_members import GEMMA, SMOL

from langchain_specfuse.core.values import PRESETS, Sampling, Settings

CHANCE = ("temperature", "top_p", "seed", "repetition_penalty")
"""What belongs to sampling."""


@dataclass(frozen=True)
class Cell:
    """One panel on one set, with what differs from the defaults."""

    set: str
    panel: str = "both"
    chosen: Mapping[str, Any] = field(default_factory=dict)
    how: tuple[str, str] = ("", "")
    first: int | None = None
    """Only so many questions."""
    listens: bool = False
    """Whether what every verifier said of every draft is kept."""

    @property
    def name(self) -> str:
        words = [f"{key}={value}" for key, value in self.chosen.items()] + (["/".join(self.how)] if self.how[0] else [])
        return f"{self.set} | {self.panel} | {' '.join(words) or 'defaults'}"

    def settings(self, tokens: int) -> Settings:
        told = {"max_tokens": tokens, **PRESETS["robust"], **self.chosen}
        if "preset" in told:
            told = {"max_tokens": tokens, **PRESETS[told["preset"]], **self.chosen}
            del told["preset"]
        if told.get("segment_tokens") == "all":
            told["segment_tokens"] = tokens
        sampling = Sampling(**{key: told.pop(key) for key in CHANCE if key in told})
        return Settings(sampling=sampling, **told)


PAPER = {"voice": "equal", "reward": "wins", "learning_rate": 1.0}
"""How loud verifiers are, and what earns weight, under the published method."""
SHORT = ("ours", "chinese")
FIRST = {"ours": 40, "facts": 48, "chinese": 32, "ifeval": 20}
"""The grid asks fewer questions."""


def main_cells() -> Iterator[Cell]:
    for name in SHORT:
        yield from (Cell(name, SMOL), Cell(name, GEMMA), Cell(name), Cell(name, chosen=PAPER, listens=True))


def more_cells() -> Iterator[Cell]:
    """The published sets, and one more of ours."""
    for name in ("ifeval", "facts", "gsm8k", "humaneval"):
        yield from (Cell(name, SMOL), Cell(name, GEMMA), Cell(name))
        yield Cell(name, chosen=PAPER, listens=name in ("ifeval", "facts"))
    yield Cell("facts", chosen=PAPER | {"segment_tokens": "all"}, listens=True)


def whole_cells() -> Iterator[Cell]:
    """One round: whole answers are drafted, and one of them is chosen."""
    for name in (*SHORT, "ifeval"):
        yield Cell(name, chosen=PAPER | {"segment_tokens": "all"}, listens=True)


def variant_cells() -> Iterator[Cell]:
    """Other ways to count and to reward."""
    tried: list[tuple[dict[str, Any], tuple[str, str]]] = [
        ({"voice": "equal"}, ("", "")),
        ({"reward": "wins", "learning_rate": 1.0}, ("", "")),
        (PAPER, ("surest", "by_wins")),
        (PAPER, ("calibrated", "by_wins")),
    ]
    for chosen, how in tried:
        yield from (Cell(name, chosen=chosen, how=how, first=FIRST[name]) for name in ("ours", "facts", "chinese"))


def grid_cells() -> Iterator[Cell]:
    """One thing changed at a time."""
    tried: list[dict[str, Any]] = [
        *({"score": score} for score in ("mean_prob", "logprob_per_byte")),
        *({"segment_tokens": tokens} for tokens in (4, 6, 16)),
        *({"feedback": feedback} for feedback in ("off", "anytime")),
        *({"preset": preset} for preset in ("specfuse", "specem")),
        # Two stay under the defaults, so a policy shows only where one may.
        *({"exit": kind, "min_members": 1} for kind in ("studentized", "literal", "fixed")),
        {"repetition_penalty": 1.0},
        *({"temperature": 0.7, "seed": seed} for seed in (0, 1)),
    ]
    for chosen in tried:
        yield from (Cell(name, chosen=chosen, first=FIRST[name]) for name in ("ours", "facts", "chinese"))
    for chosen in (*tried[:5], {"segment_tokens": 32}):
        yield Cell("ifeval", chosen=chosen, first=FIRST["ifeval"])


def panel_cells() -> Iterator[Cell]:
    """More members, and members that are one model several times."""
    for name in SHORT:
        first = FIRST[name]
        for panel in (f"{SMOL}, brief", f"{GEMMA}, brief", "three", "five", "self by prompt"):
            yield Cell(name, panel, first=first)
        yield Cell(name, "five", {"min_members": 1}, first=first)
        for panel in (SMOL, "self by seed"):
            yield Cell(name, panel, {"temperature": 0.7, "seed": 0}, first=first)
        for panel in (SMOL, GEMMA):
            yield Cell(name, panel, {"repetition_penalty": 1.0}, first=first)
        yield Cell(name, "five", {"exit": "quiet"}, first=first)
    yield Cell("ifeval", "five", first=FIRST["ifeval"])
    for least in (1, 2):
        yield Cell("ifeval", "five", {"exit": "quiet", "min_members": least}, first=FIRST["ifeval"])


def long_cells() -> Iterator[Cell]:
    for name in ("steps", "recall", "stories"):
        yield from (Cell(name, panel) for panel in (SMOL, GEMMA, "both"))


PARTS = {
    "main": main_cells,
    "whole": whole_cells,
    "more": more_cells,
    "variants": variant_cells,
    "grid": grid_cells,
    "panels": panel_cells,
    "long": long_cells,
}
