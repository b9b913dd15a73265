"""Every example runs as it stands, in a process of its own, and says something."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from .blocks import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
REAL = {"agent", "chain", "decision", "own_model", "quickstart", "rag", "structured"}
NEEDS = {"ray_cluster": ("ray",), "serve_ray": ("ray", "aiohttp_cors")}
"""Packages without which an example cannot run: aiohttp_cors stands for what ray[serve] adds to ray."""
WORDS = {
    "agent": "tool: The museum is open from 10 to 5.",
    "async_batch": "1 2 3 4 5 6 7 8 9 done.",
    "decision": "dissent",
    "door": "|\nwritten by {'ann': 1.0}",
    "events": "cyd left",
    "langgraph_node": "tools 'The next train to Ulm leaves at 10:42.'",
    "rag": "[2]",
    "structured": "Booking(name=",
    "testing": "all fine",
    "own_model": "teacher",
    "ray_cluster": "ann lives in 2 processes",
    "serve_ray": "The sky is blue because the air scatters short waves.\n" * 4,
    "quickstart": "rounds, written by",
}
"""What an example prints, among other things."""


@pytest.mark.parametrize(
    "script",
    [pytest.param(path, marks=pytest.mark.real if path.stem in REAL else ()) for path in EXAMPLES],
    ids=lambda path: path.stem,
)
def test_an_example_runs(script):
    for module in NEEDS.get(script.stem, ()):
        if find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    offline = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "error" if script.stem not in REAL else "default"}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=600, env=offline)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert WORDS.get(script.stem, "") in done.stdout


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short_and_says_what_it_shows(script):
    text = script.read_text()
    assert len(text.splitlines()) < 50
    assert text.startswith('"""')
