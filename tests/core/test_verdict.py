"""The vote on labels, as arithmetic and as a loop."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langchain_specfuse.core.panel import Panel
from langchain_specfuse.core.values import Effort, Failure, Query, Scored, ScoreJob, Seat, Turn
from langchain_specfuse.core.verdict import LABELS_AT_ONCE, Verdict, decided, verdict
from langchain_specfuse.errors import EnsembleError, UsageError

QUERY = Query("q", (Turn("user", "Is it so?"),))
SUMS = st.floats(-60, 0)


def ruled(answerers, labels, seats=None, prior=None):
    """The verdict, and every ``Ask`` on the way to it."""
    loop = decided(QUERY, labels, Panel.of(seats or [Seat(name) for name in answerers], prior))
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
        return Scored(tuple(rows), Effort(read=7))

    return score


def test_the_probabilities_are_the_members_own_mixed_by_weight():
    answerers = {"ann": opinion(yes=0.6, no=0.2), "bob": opinion(yes=0.01, no=0.03)}
    found, _ = ruled(answerers, ["yes", "no"])
    assert found.by_member["ann"] == pytest.approx({"yes": 0.75, "no": 0.25})
    assert found.by_member["bob"] == pytest.approx({"yes": 0.25, "no": 0.75})
    assert found.mass == pytest.approx({"ann": 0.8, "bob": 0.04})
    assert found.probabilities == pytest.approx({"yes": 0.5, "no": 0.5})
    heavy, _ = ruled(
        {"ann": opinion(yes=0.6, no=0.2), "bob": opinion(yes=0.01, no=0.03)}, ["yes", "no"], prior={"ann": 3}
    )
    assert heavy.weights == {"ann": 0.75, "bob": 0.25}
    assert heavy.probabilities == pytest.approx({"yes": 0.625, "no": 0.375})
    assert (heavy.label, heavy.margin) == ("yes", pytest.approx(0.25))


def test_a_long_label_is_not_favoured_for_its_easy_last_tokens():
    # The mean of the long one is higher, its probability is not.
    rows = {"no": (-0.7, -0.7), "not at all, by no means": (-2.0, *(-0.05,) * 7)}
    found, _ = ruled({"ann": lambda job: Scored(tuple(rows[c.text] for c in job.candidates))}, list(rows))
    assert found.label == "no"
    assert found.probabilities["no"] == pytest.approx(math.exp(-1.4) / (math.exp(-1.4) + math.exp(-2.35)))


def test_every_label_is_a_draft_that_ends_and_all_are_asked_for_in_one_pass():
    found, asks = ruled({"ann": opinion(a=0.5, ab=0.25)}, ["a", "ab"])
    (ask,) = asks
    assert [(c.text, c.ended) for c in ask.jobs["ann"].candidates] == [("a", True), ("ab", True)]
    assert all(isinstance(job, ScoreJob) and job.answer == () for job in ask.jobs.values())
    assert found.efforts["ann"].read == 7


def test_many_labels_are_asked_in_parts_and_end_in_one_distribution():
    labels = [f"label {k}" for k in range(2 * LABELS_AT_ONCE + 1)]
    shares = {label: 1 / (k + 2) ** 2 for k, label in enumerate(labels)}
    found, asks = ruled({"ann": opinion(**shares)}, labels)
    assert [len(ask.jobs["ann"].candidates) for ask in asks] == [LABELS_AT_ONCE, LABELS_AT_ONCE, 1]
    whole = sum(shares.values())
    assert found.probabilities == pytest.approx({label: share / whole for label, share in shares.items()})
    assert found.efforts["ann"].read == 21


@given(st.data(), st.integers(1, 4), st.integers(1, 6))
def test_what_holds_of_every_verdict(data, members, size):
    labels = [f"l{k}" for k in range(size)]
    sums = {f"m{k}": data.draw(st.lists(SUMS, min_size=size, max_size=size)) for k in range(members)}
    weights = {name: data.draw(st.floats(0.02, 1)) for name in sums}
    found = verdict(labels, sums, weights)
    assert sum(found.probabilities.values()) == pytest.approx(1)
    assert sum(found.weights.values()) == pytest.approx(1)
    assert found.probabilities[found.label] >= max(found.probabilities.values()) - 1e-11
    if members == 1 or size == 1:
        assert found.dissent is None
    else:
        assert 0 <= found.dissent <= 1
    twins = verdict(labels, dict.fromkeys(sums, sums["m0"]), weights)
    assert not twins.dissent or twins.dissent < 1e-9
    assert twins.probabilities == pytest.approx(found.by_member["m0"])


def test_dissent_is_not_uncertainty():
    unsure = verdict(["a", "b"], {"x": [-1.0, -1.0], "y": [-9.0, -9.0]}, {"x": 0.5, "y": 0.5})
    apart = verdict(["a", "b"], {"x": [0.0, -50.0], "y": [-50.0, 0.0]}, {"x": 0.5, "y": 0.5})
    assert unsure.probabilities == apart.probabilities == pytest.approx({"a": 0.5, "b": 0.5})
    assert (unsure.dissent, apart.dissent) == (pytest.approx(0), pytest.approx(1))


def test_of_equal_labels_the_first_is_chosen_and_no_number_is_too_small():
    worst = -math.inf
    rows = lambda job: Scored(tuple((worst, worst) for _ in job.candidates))
    found, _ = ruled({"ann": rows}, ["b", "a"])
    assert found.label == "b" and found.probabilities == {"b": 0.5, "a": 0.5} and found.mass == {"ann": 0.0}


@pytest.mark.parametrize(
    "reply",
    [
        Failure("error", "broke"),
        Scored(((-1.0, -1.0),)),
        Scored(((-1.0, math.nan), (-1.0, -1.0))),
        Scored(((-1.0, 0.5), (-1.0, -1.0))),
        Scored(((), ())),
        Scored(((-1.0,), (-1.0, -1.0))),
        None,
    ],
    ids=["fails", "too few", "nan", "positive", "empty", "no end", "nothing"],
)
def test_who_fails_or_talks_nonsense_has_no_vote(reply):
    found, _ = ruled({"ann": opinion(yes=0.6, no=0.2), "bob": lambda job: reply}, ["yes", "no"])
    assert set(found.by_member) == {"ann"} and found.weights == {"ann": 1.0}
    assert [gone.member for gone in found.left] == ["bob"]
    with pytest.raises(EnsembleError, match="no member is left to decide: bob") as told:
        ruled({"bob": lambda job: reply}, ["yes", "no"])
    assert [failure.member for failure in told.value.failures] == ["bob"]


def test_who_fails_half_way_is_out_of_all_of_it():
    labels = [f"l{k}" for k in range(LABELS_AT_ONCE + 1)]
    ann = opinion(**dict.fromkeys(labels, 0.01))
    found, asks = ruled(
        {"ann": ann, "bob": lambda job: ann(job) if len(job.candidates) > 1 else Failure("timeout", "slow")}, labels
    )
    assert [set(ask.jobs) for ask in asks] == [{"ann", "bob"}, {"ann", "bob"}]
    assert set(found.by_member) == {"ann"} and len(found.probabilities) == len(labels)


def test_draft_only_members_have_no_vote_and_verify_only_ones_have():
    seats = [Seat("ann"), Seat("bob", scores=False), Seat("cyd", drafts=False)]
    answerers = {name: opinion(yes=0.5, no=0.25) for name in ("ann", "cyd")}
    found, _ = ruled(answerers, ["yes", "no"], seats)
    assert found.weights == {"ann": 0.5, "cyd": 0.5}
    with pytest.raises(UsageError, match="none of these members can score"):
        ruled({}, ["yes", "no"], seats[1:2])


def test_a_verdict_is_plain_json():
    import json

    found, _ = ruled({"ann": opinion(yes=0.6, no=0.2), "bob": lambda job: Failure("nan", "odd")}, ["yes", "no"])
    told = found.as_dict()
    assert json.loads(json.dumps(told)) == told
    assert told["label"] == "yes" and told["left"][0]["kind"] == "nan" and told["dissent"] is None


def test_who_only_votes_need_not_think():
    answerers = {"ann": opinion(yes=0.6, no=0.2), "bob": opinion(yes=0.1, no=0.3)}
    _, asks = ruled(answerers, ["yes", "no"], [Seat("ann"), Seat("bob", drafts=False)])
    assert {name: job.thinks for name, job in asks[0].jobs.items()} == {"ann": True, "bob": False}
