"""What all tests share: how Hypothesis works here."""

import gc
from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, settings

# The same examples every time: a run that fails fails again. New ones are what `make torture` is for.
settings.register_profile("here", deadline=None, max_examples=60, derandomize=True)
# What tests/torture/mutants.py runs: the same examples every time, and whether one fails is all it asks.
settings.register_profile(
    "mutants",
    settings.get_profile("here"),
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
# `make torture`: the same properties on many more examples.
settings.register_profile(
    "torture",
    deadline=None,
    max_examples=2000,
    derandomize=False,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("here")


HEAVY = ("real", "slow")
"""Marks of tests that take as long as twenty others do."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Processes that take a file each take the longest first, so that they end at about the same time."""
    if hasattr(config, "workerinput"):
        weight = Counter[object]()
        for item in items:
            weight[item.path] += 20 if any(map(item.get_closest_marker, HEAVY)) else 1
        items.sort(key=lambda item: -weight[item.path])


def pytest_collection_finish() -> None:
    """What was imported stays: tests that look for garbage need not go through it."""
    gc.freeze()
