"""Settings that all tests share: Hypothesis, and the order in which parallel processes take
files."""

import functools
import gc
import os
import ssl
import tempfile
from collections import Counter

import httpcore2
import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("DEMO", "small")  # without its 1.1 GB model
gc.disable()  # while tests are collected: it took a third of the time of the imports

# Clients of httpx, httpx2 and requests read all certificates when they are made, also for http: a
# third of the processor time of tests that make a client for each question. They share them here.
ssl.create_default_context = functools.cache(ssl.create_default_context)
httpcore2.default_ssl_context = functools.cache(httpcore2.default_ssl_context)

# The same examples every time: a run that fails fails again. `scripts/torture` tries new ones,
# and many more.
settings.register_profile("here", deadline=None, max_examples=20, derandomize=True)
settings.register_profile(
    "torture",
    deadline=None,
    max_examples=2000,
    derandomize=False,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("here")


def pytest_configure(config: pytest.Config) -> None:
    """What examples in docstrings and pages leave in the temporary directory goes at the
    end. pytest's own folders of the last three runs stay where they are."""
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    folder = tempfile.TemporaryDirectory(prefix="specfuse-tests-")
    config.add_cleanup(folder.cleanup)
    tempfile.tempdir = folder.name


HEAVY = ("real", "slow")
"""Tests with these marks take as long as twenty others."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Parallel processes take one file each, the longest first, so that they end at about the same
    time."""
    if hasattr(config, "workerinput"):
        weight = Counter[object]()
        for item in items:
            weight[item.path] += 20 if any(map(item.get_closest_marker, HEAVY)) else 1
        items.sort(key=lambda item: -weight[item.path])


def pytest_collection_finish() -> None:
    """Keep the garbage collector from looking through everything that was imported."""
    gc.freeze()
    gc.enable()
