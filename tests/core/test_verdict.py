"""The vote on labels, as arithmetic and as a loop."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langchain_specfuse.core.panel import Panel
from langchain_specfuse.core.values import Failure, Panelist, Query, Scored, Turn
from langchain_specfuse.core.verdict import Verdict, decided, verdict
from langchain_specfuse.errors import EnsembleError

QUERY = Query("q", (Turn("user", "Is it so?"),))


def decide(answerers, labels, panel=None, prior=None):
    """The verdict, and every ``Ask`` on the way to it."""
    loop = decided(QUERY, labels, Panel.of(panel or [Panelist(name) for name in answerers], prior))
    asks, item = [], next(loop)
    while not isinstance(item, Verdict):
        asks.append(item)
        item = loop.send({name: answerers[name](job) for name, job in item.jobs.items()})
    assert next(loop, None) is None
    return item, asks


def opinion(**shares):
    """A member that gives these labels these probabilities, each spread over its letters and the end."""

    def score(job):
        rows = [(math.log(shares[c.text]) / (len(c.text) + 1),) * (len(c.text) + 1) for c in job.candidates]
        return Scored(tuple(rows))

    return score


ANN, BOB = opinion(yes=0.6, no=0.2), opinion(yes=0.01, no=0.03)


def test_the_probabilities_are_the_members_own_weighted():
    found, _ = decide({"ann": ANN, "bob": BOB}, ["yes", "no"])
    assert found.by_member["ann"] == pytest.approx({"yes": 0.75, "no": 0.25})
    assert found.by_member["bob"] == pytest.approx({"yes": 0.25, "no": 0.75})
    assert found.mass == pytest.approx({"ann": 0.8, "bob": 0.04})
    assert found.probabilities == pytest.approx({"yes": 0.5, "no": 0.5})
    heavy, _ = decide({"ann": ANN, "bob": BOB}, ["yes", "no"], prior={"ann": 3})
    assert heavy.weights == {"ann": 0.75, "bob": 0.25}
    assert heavy.probabilities == pytest.approx({"yes": 0.625, "no": 0.375})
    assert (heavy.label, heavy.margin) == ("yes", pytest.approx(0.25))


def test_a_long_label_is_not_favoured_for_its_easy_last_tokens():
    # The mean of the long one is higher, its probability is not.
    rows = {"no": (-0.7, -0.7), "not at all, by no means": (-2.0, *(-0.05,) * 7)}
    found, _ = decide({"ann": lambda job: Scored(tuple(rows[c.text] for c in job.candidates))}, list(rows))
    assert found.label == "no"
    assert found.probabilities["no"] == pytest.approx(math.exp(-1.4) / (math.exp(-1.4) + math.exp(-2.35)))


@given(st.data(), st.integers(1, 4), st.integers(1, 6))
def test_probabilities_and_weights_sum_to_1_and_twins_decide_like_one(data, members, size):
    labels = [f"l{k}" for k in range(size)]
    sums = {f"m{k}": data.draw(st.lists(st.floats(-60, 0), min_size=size, max_size=size)) for k in range(members)}
    weights = {name: data.draw(st.floats(0.02, 1)) for name in sums}
    found = verdict(labels, sums, weights)
    assert sum(found.probabilities.values()) == pytest.approx(1)
    assert sum(found.weights.values()) == pytest.approx(1)
    assert found.probabilities[found.label] >= max(found.probabilities.values()) - 1e-11
    twins = verdict(labels, dict.fromkeys(sums, sums["m0"]), weights)
    assert twins.probabilities == pytest.approx(found.by_member["m0"])


@pytest.mark.parametrize(
    "reply",
    [
        Failure("error", "broke"),
        Scored(((-1.0, -1.0),)),
        Scored(((-1.0, math.nan), (-1.0, -1.0))),
        Scored(((-1.0,), (-1.0, -1.0))),
        None,
    ],
    ids=["fails", "too few", "nan", "no end", "nothing"],
)
def test_a_member_that_fails_or_returns_nonsense_has_no_vote(reply):
    found, _ = decide({"ann": ANN, "bob": lambda job: reply}, ["yes", "no"])
    assert set(found.by_member) == {"ann"} and found.weights == {"ann": 1.0}
    assert [gone.member for gone in found.left] == ["bob"]
    with pytest.raises(EnsembleError, match="no member is left to decide: bob") as raised:
        decide({"bob": lambda job: reply}, ["yes", "no"])
    assert [failure.member for failure in raised.value.failures] == ["bob"]
