"""Every scenario gives what ``records/`` says. See the package's docstring."""

from __future__ import annotations

import difflib
import json

import pytest

from tests.golden import scenarios
from tests.golden.record import FOLDER, path_of, plain, with_recorded_numbers, written


def parameters() -> list[object]:
    marks = (pytest.mark.real, pytest.mark.long)
    on_real_weights = scenarios.beginning_with(["llamacpp"])
    return [
        pytest.param(name, marks=marks if name in on_real_weights else ()) for name in scenarios.ALL
    ]


@pytest.mark.parametrize("name", parameters())
def test_the_answers_are_those_that_were_recorded(name: str) -> None:
    path = path_of(name)
    text = path.read_text(encoding="utf-8")
    outcome = plain(scenarios.outcome(name))
    if outcome == json.loads(text):
        return
    outcome = written(with_recorded_numbers(outcome, json.loads(text)))
    diff = difflib.unified_diff(
        text.splitlines(), outcome.splitlines(), f"records/{path.name}", "now", lineterm="", n=4
    )
    if lines := list(diff):
        again = f"If this is intended, record it again: python -m tests.golden {name}"
        pytest.fail("\n".join([*lines, "", again]), pytrace=False)


def test_every_record_has_a_scenario() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(scenarios.ALL)
