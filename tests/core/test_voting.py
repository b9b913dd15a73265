"""Scores, votes, totals, rewards and confidence: properties that hold for all numbers."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langchain_specfuse.core.voting import confidences, margins, raw_score, shares, votes, win_rates

KINDS = ["mean_prob", "mean_logprob", "logprob_per_byte"]
logprob = st.one_of(
    st.floats(-30, 0),
    st.just(-math.inf),
    st.floats(-1e300, -1e3),
    st.sampled_from([0.0, -0.0, -745.0, -1e-320]),
)
rows = st.lists(st.lists(logprob, max_size=6), min_size=1, max_size=7)
kinds = st.sampled_from(KINDS)


@given(kinds, rows)
def test_votes_sum_to_1_and_keep_the_order_of_scores(kind, drafts):
    scores = [raw_score(kind, row, "x" * len(row)) for row in drafts]
    result = votes(kind, scores)
    assert all(math.isfinite(vote) and vote >= 0 for vote in result)
    assert math.fsum(result) == pytest.approx(1.0, abs=1e-9)
    for score, vote in zip(scores, result, strict=True):
        for other, rest in zip(scores, result, strict=True):
            assert vote >= rest if score >= other else vote <= rest
            assert vote == rest or score != other


matrices = st.integers(2, 5).flatmap(
    lambda n: st.lists(
        st.lists(st.floats(0.01, 1), min_size=n, max_size=n).map(
            lambda row: [v / sum(row) for v in row]
        ),
        min_size=n,
        max_size=n,
    )
)
"""One verifier per draft; each row contains a verifier's votes."""


def by_verifier(matrix):
    return {f"m{j}": row for j, row in enumerate(matrix)}


# --- rewards --------------------------------------------------------------------------------------


@given(matrices)
def test_win_rates_lie_between_0_and_1_and_average_one_half_where_third_parties_judge(matrix):
    verifiers = by_verifier(matrix)
    earned = win_rates(verifiers, [[name] for name in verifiers])
    assert all(0 <= reward <= 1 for reward in earned)
    if len(matrix) > 2:
        assert math.fsum(earned) == pytest.approx(len(matrix) / 2)


A_B_C = [["a"], ["b"], ["c"]]


@pytest.mark.parametrize(
    ("verifiers", "authors", "earned"),
    [
        # Two members: each draft earns the vote of the other.
        ({"a": [0.9, 0.1], "b": [0.4, 0.6]}, A_B_C[:2], [0.4, 0.1]),
        # Only c compares a with b, only b compares a with c, only a compares b with c.
        (
            {"a": [0.8, 0.15, 0.05], "b": [0.2, 0.7, 0.1], "c": [0.3, 0.4, 0.3]},
            A_B_C,
            [0.5, 1.0, 0.0],
        ),
        # A verify-only member is a third party for two drafts.
        ({"a": [0.9, 0.1], "b": [0.9, 0.1], "judge": [0.4, 0.6]}, A_B_C[:2], [0.0, 1.0]),
        # The authors of a common draft do not judge it.
        ({"a": [1.0, 0.0], "b": [0.8, 0.2], "c": [0.3, 0.7]}, [["a", "b"], ["c"]], [0.3, 0.1]),
        ({n: [1 / 3] * 3 for n in "abc"}, A_B_C, [0.5, 0.5, 0.5]),
        ({}, A_B_C[:2], [0.5, 0.5]),
    ],
    ids=["two", "third parties", "verify-only", "coinciding", "ties", "no verifiers"],
)
def test_win_rates(verifiers, authors, earned):
    assert win_rates(verifiers, authors) == earned


def alike(verifiers):
    return dict.fromkeys(verifiers, 1.0)


@given(matrices)
def test_margins_lie_between_0_and_1_and_average_one_half(matrix):
    verifiers = by_verifier(matrix)
    earned = margins(verifiers, alike(verifiers), len(matrix))
    assert all(0 <= reward <= 1 for reward in earned)
    assert math.fsum(earned) / len(earned) == pytest.approx(0.5)


def test_margins_of_two_drafts_are_mean_votes_weighted_by_confidence():
    verifiers = {"a": [0.9, 0.1], "b": [0.1, 0.9]}
    assert margins(verifiers, alike(verifiers), 2) == pytest.approx([0.5, 0.5])
    assert margins(verifiers, {"a": 3.0, "b": 1.0}, 2) == pytest.approx([0.7, 0.3])
    assert margins({"a": [0.0, 0.0]}, {"a": 1.0}, 2) == [0.5, 0.5]


# --- confidence -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "sure", "lost"),
    [
        ("mean_prob", 0.8, 0.4),
        ("mean_logprob", math.log(0.8), math.log(0.4)),
        ("logprob_per_byte", math.log(0.8) / 4, math.log(0.4) / 4),
    ],
)
def test_confidence_grows_with_the_probability_of_eight_tokens_of_the_favourite_draft(
    kind, sure, lost
):
    result = confidences("confidence", kind, {"a": [sure, lost / 2 - 1], "b": [lost, lost]})
    assert result == pytest.approx({"a": 0.1 + 0.9 * 0.8**8, "b": 0.1 + 0.9 * 0.4**8})


@given(matrices, kinds)
def test_shares_are_positive_sum_to_1_and_follow_confidence(matrix, kind):
    scores = {
        name: [v if kind == "mean_prob" else math.log(v) for v in row]
        for name, row in by_verifier(matrix).items()
    }
    result = shares(confidences("confidence", kind, scores), dict.fromkeys(scores, 0.5))
    assert math.fsum(result.values()) == pytest.approx(1)
    assert min(result.values()) > 0
    for member in scores:
        for other in scores:
            assert (
                max(scores[member]) < max(scores[other]) or result[member] >= result[other] - 1e-12
            )
