"""All scenarios by name. A scenario is a function that returns what is recorded."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

from . import leads, llamacpp_files, random_members, scripted, servers, tiny_models

Scenario = Callable[[], dict[str, Any]]
GROUPS = {
    "scripted": scripted,
    "lead": leads,
    "random": random_members,
    "tiny": tiny_models,
    "server": servers,
    "llamacpp": llamacpp_files,
}
ALL: dict[str, Scenario] = {}
for _group, _module in GROUPS.items():
    for _scenario in _module.SCENARIOS:
        ALL[f"{_group}-{_scenario.__name__.replace('_', '-')}"] = _scenario


def outcome(name: str) -> dict[str, Any]:
    """What the scenario gives now."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some appear once in a process
        return ALL[name]()


def beginning_with(beginnings: Sequence[str]) -> list[str]:
    """The names that begin with one of these; without any, all names."""
    return [name for name in ALL if not beginnings or name.startswith(tuple(beginnings))]
