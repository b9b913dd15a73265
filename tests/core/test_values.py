"""Records are frozen and convert completely to plain JSON."""

from __future__ import annotations

import dataclasses
import json

import pytest

from langchain_specfuse.core.options import Method, Settings
from langchain_specfuse.core.round import Departure, Round
from langchain_specfuse.core.values import Draft, Effort, Failure, Segment

from .play import play, speakers


def test_efforts_add_up():
    first, second = Effort(1, 2, 30, 0.5), Effort(10, 20, 3, 0.25)
    assert first + second == second + first == Effort(11, 22, 30, 0.75)


@pytest.mark.parametrize(
    ("kind", "fields"), [(Failure, ("error", "fell")), (Departure, ("a", "error", "fell", 3))]
)
def test_the_cause_of_a_failure_is_neither_compared_nor_shown(kind, fields):
    assert kind(*fields, cause=ValueError("secret")) == kind(*fields)
    assert "secret" not in repr(kind(*fields, cause=ValueError("secret")))


def test_a_round_as_json_has_every_field_and_every_derived_number():
    second = play(
        speakers(a="The sky is grey.", b="The sky is blue."),
        Settings(method=Method(segment_tokens=3)),
    ).rounds[1]
    record = second.as_dict()
    assert json.loads(json.dumps(record)) == record
    fields = {field.name for field in dataclasses.fields(Round)} - {"number", "efforts"}
    derived = {"round", "ended", "margin", "dissent", "runner_up", "tokens", "late"}
    assert set(record) == fields | derived
    assert record["drafts"] == {
        "a": {"text": " grey.", "ended": True, "tokens": 1},
        "b": {"text": " blue.", "ended": True, "tokens": 1},
    }
    assert (record["segment"], record["winner"], record["runner_up"]) == (" grey.", "a", "b")
    assert record["tokens"]["draft"]["a"]["read"] == 1


@pytest.mark.parametrize(
    ("drafts", "totals", "authors", "margin", "dissent", "runner_up"),
    [
        ({"a": "x", "b": "x"}, {"a": 0.5, "b": 0.5}, (), 1.0, 0.0, None),
        ({"a": "x", "b": "y"}, {"a": 0.5, "b": 0.5}, (), 0.0, 1.0, "b"),
        ({"a": "x", "b": "y"}, {"a": 1.0, "b": 0.0}, (), 1.0, 0.0, "b"),
        ({"a": "x", "b": "y", "c": "x"}, {"a": 0.5, "b": 0.5, "c": 0.5}, (), 0.0, 1.0, "b"),
        ({"a": "x", "b": "y", "c": "z"}, {"a": 0.6, "b": 0.1, "c": 0.3}, (), 0.3, 0.817, "c"),
        ({"a": "1", "b": "1.0"}, {"a": 0.5, "b": 0.5}, ("a", "b"), 1.0, 0.0, None),
        ({"a": Draft("x", True), "b": Draft("x")}, {"a": 0.6, "b": 0.4}, (), 0.2, 0.971, "b"),
    ],
)
def test_margin_dissent_and_runner_up_are_those_of_distinct_drafts(
    drafts, totals, authors, margin, dissent, runner_up
):
    by_member = {
        name: draft if isinstance(draft, Draft) else Draft(draft) for name, draft in drafts.items()
    }
    round = Round(1, "", Segment(""), "a", by_member, {}, {}, totals, {}, {}, {}, authors=authors)
    assert round.margin == pytest.approx(margin)
    assert round.dissent == pytest.approx(dissent, abs=1e-3)
    assert round.runner_up == runner_up
