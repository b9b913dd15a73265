"""The soak in a short form: two lots of a hundred questions."""

from __future__ import annotations

import pytest

from .soak import soak


@pytest.fixture(scope="module")
def report():
    return soak(200, 1, items=12, lot=100, patience_s=3.0)


def test_every_answer_that_is_not_broken_off_is_the_one_that_it_gets_alone(report):
    assert report["wrong"] == []


def test_all_kinds_of_callers_and_of_ends_were_there(report):
    ways = {"invoke", "stream", "ainvoke", "astream", "abatch", "anyio"}
    assert set(report["seen"]) >= ways | {"cancelled", "broken off"}
    assert report["seen"]["faulty"] >= 4
    assert 30 <= report["seen"]["cancelled"] + report["seen"]["broken off"] <= 80


def test_nothing_is_left_of_them(report):
    assert report["left"] == {"threads": 0, "files": 0, "sockets": 0}


def test_memory_is_where_it_was(report):
    assert report["memory"]["objects_ratio"] == pytest.approx(1, abs=0.01)
    assert report["memory"]["used_ratio"] == pytest.approx(1, abs=0.05)
