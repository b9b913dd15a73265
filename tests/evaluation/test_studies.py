"""The experiments of ``studies/``: they differ from the method in nothing but what they are there to change."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from langchain_specfuse.core.method import Method, Settings
from langchain_specfuse.core.panel import EXIT_POLICIES, LEARNING_RATES
from langchain_specfuse.core.values import Query, Turn
from langchain_specfuse.engine import Ensemble
from langchain_specfuse.errors import UsageError
from langchain_specfuse.members.scripted import ScriptedMember

NAMES = ("ann", "bob", "cyd", "dan")


@pytest.fixture
def studies(monkeypatch):
    """The folder can be imported; what it registers is gone afterwards."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "studies"))
    registered = dict(EXIT_POLICIES), dict(LEARNING_RATES)
    yield
    for table, before in zip((EXIT_POLICIES, LEARNING_RATES), registered, strict=True):
        table.clear()
        table.update(before)
    sys.modules.pop("exits", None)


@pytest.mark.parametrize("exit", ["literal", "fixed"])
def test_exits_and_feedback_are_registered_from_outside(studies, exit):
    with pytest.raises(UsageError, match="exit must be one of 'studentized', 'never', got"):
        Method(exit=exit)
    import exits

    exits.register()
    text = " ".join(f"word{n}" for n in range(200))
    members = [
        ScriptedMember(text, name="ann"),
        ScriptedMember(text, name="bob"),
        ScriptedMember("no " * 200, name="cyd"),
    ]
    settings = Settings(segment_tokens=4, max_tokens=80, method=Method(exit=exit, feedback="anytime", loop_guard=False))
    query = Query(f"q-{exit}", (Turn("user", "Why?"),))
    left = [(gone.member, gone.kind) for one in Ensemble(members).rounds(query, settings) for gone in one.left]
    assert left == [("cyd", "exit")]
    assert exits.anytime(1.0, 4, 3) == pytest.approx(1.482, abs=1e-3) and exits.anytime(1.0, 4, 1) == 0
