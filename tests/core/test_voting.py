"""Scores, votes, totals, rewards: what must hold for all numbers."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langchain_specfuse.core.voting import assurances, margins, raw_score, rewards, totals, voices, votes, win_rates

KINDS = ["mean_prob", "mean_logprob", "logprob_per_byte"]
logprob = st.one_of(
    st.floats(-30, 0), st.just(-math.inf), st.floats(-1e300, -1e3), st.sampled_from([0.0, -0.0, -745.0, -1e-320])
)
rows = st.lists(st.lists(logprob, max_size=6), min_size=1, max_size=7)
kinds = st.sampled_from(KINDS)


@given(kinds, rows)
def test_votes_are_shares(kind, drafts):
    shares = votes(kind, [raw_score(kind, row, "x" * len(row)) for row in drafts])
    assert all(math.isfinite(share) and share >= 0 for share in shares)
    assert math.fsum(shares) == pytest.approx(1.0, abs=1e-9)


@given(kinds, rows)
def test_votes_never_reverse_the_order_and_equal_scores_get_equal_votes(kind, drafts):
    scores = [raw_score(kind, row, "x" * len(row)) for row in drafts]
    shares = votes(kind, scores)
    for one, share in zip(scores, shares, strict=True):
        for other, rest in zip(scores, shares, strict=True):
            assert share >= rest if one >= other else share <= rest
            assert share == rest or one != other


@given(kinds, st.lists(st.floats(-8, 0), min_size=1, max_size=5), st.integers(0, 4), st.floats(0.01, 3))
def test_a_more_probable_token_never_lowers_a_score(kind, row, place, more):
    place %= len(row)
    better = [min(0.0, value + more) if k == place else value for k, value in enumerate(row)]
    assert raw_score(kind, better, "some text") >= raw_score(kind, row, "some text")


def test_a_clear_preference_shows_in_every_kind_of_vote():
    for kind in KINDS:
        liked, disliked = votes(kind, [raw_score(kind, [-0.1] * 3, "abc"), raw_score(kind, [-4.0] * 3, "abc")])
        assert liked > 0.9 > 0.1 > disliked


ballots = st.integers(2, 5).flatmap(
    lambda n: st.lists(
        st.lists(st.floats(0.01, 1), min_size=n, max_size=n).map(lambda row: [v / sum(row) for v in row]),
        min_size=n,
        max_size=n,
    )
)


@given(ballots)
def test_totals_of_shares_are_shares(matrix):
    judges = {f"m{j}": row for j, row in enumerate(matrix)}
    sums = totals(judges, dict.fromkeys(judges, 1 / len(judges)), len(matrix))
    assert math.fsum(sums) == pytest.approx(1)
    assert min(sums) >= 0


@given(ballots)
def test_rewards_lie_between_0_and_1_and_average_one_half_where_third_parties_judge(matrix):
    judges = {f"m{j}": row for j, row in enumerate(matrix)}
    rewards = win_rates(judges, [[name] for name in judges])
    assert all(0 <= reward <= 1 for reward in rewards)
    if len(matrix) > 2:
        assert math.fsum(rewards) == pytest.approx(len(matrix) / 2)


@given(ballots)
def test_praising_oneself_earns_nothing(matrix):
    judges = {f"m{j}": row for j, row in enumerate(matrix)}
    authors = [[name] for name in judges]
    vain = {name: [1.0 if [name] == author else 0.0 for author in authors] for name in judges}
    for i, name in enumerate(judges):
        mine = {**judges, name: vain[name]}
        if len(matrix) > 2:  # its view of the others' drafts is all that counts, and of those it thinks the same here
            mine[name] = [1.0 if k == i else judges[name][k] for k in range(len(matrix))]
        assert win_rates(mine, authors)[i] == win_rates(judges, authors)[i]


def test_two_members_earn_the_soft_margin_that_the_other_gives_them():
    rewards = win_rates({"a": [0.9, 0.1], "b": [0.4, 0.6]}, [["a"], ["b"]])
    assert rewards == [0.4, 0.1]


def test_with_three_members_the_third_party_judges():
    # a and b love themselves; c prefers b: only c compares a with b, only b compares a with c, only a b with c.
    judges = {"a": [0.8, 0.15, 0.05], "b": [0.2, 0.7, 0.1], "c": [0.3, 0.4, 0.3]}
    assert win_rates(judges, [["a"], ["b"], ["c"]]) == [0.5, 1.0, 0.0]


def test_a_verify_only_judge_is_a_third_party_for_two_drafts():
    judges = {"a": [0.9, 0.1], "b": [0.9, 0.1], "judge": [0.4, 0.6]}
    assert win_rates(judges, [["a"], ["b"]]) == [0.0, 1.0]


def test_coinciding_drafts_share_one_reward_and_their_authors_do_not_judge_it():
    judges = {"a": [1.0, 0.0], "b": [0.8, 0.2], "c": [0.3, 0.7]}
    assert win_rates(judges, [["a", "b"], ["c"]]) == [0.3, 0.1]


def test_a_tie_counts_one_half():
    assert win_rates({n: [1 / 3] * 3 for n in "abc"}, [["a"], ["b"], ["c"]]) == [0.5, 0.5, 0.5]


def test_without_judges_everybody_earns_the_same():
    assert win_rates({}, [["a"], ["b"]]) == [0.5, 0.5]


# --- margins, and whose vote is loud ------------------------------------------------------------------------------


def alike(judges):
    return dict.fromkeys(judges, 1.0)


@given(ballots)
def test_margins_lie_between_0_and_1_and_average_one_half(matrix):
    judges = {f"m{j}": row for j, row in enumerate(matrix)}
    earned = margins(judges, alike(judges), len(matrix)) if len(matrix) > 1 else [0.5]
    assert all(0 <= reward <= 1 for reward in earned)
    assert math.fsum(earned) / len(earned) == pytest.approx(0.5)


def test_a_clear_preference_earns_more_than_several_narrow_ones():
    judges = {"knows": [0.9, 0.05, 0.05], "b": [0.33, 0.34, 0.33], "c": [0.33, 0.34, 0.33]}
    assert max(range(3), key=margins(judges, alike(judges), 3).__getitem__) == 0
    assert max(range(3), key=win_rates(judges, [["knows"], ["b"], ["c"]]).__getitem__) == 1


def test_of_two_drafts_the_margin_is_the_mean_vote():
    judges = {"a": [0.9, 0.1], "b": [0.4, 0.6]}
    assert margins(judges, alike(judges), 2) == pytest.approx([0.65, 0.35])


def test_a_loud_judge_s_margins_count_for_more():
    judges = {"a": [0.9, 0.1], "b": [0.1, 0.9]}
    assert margins(judges, {"a": 3.0, "b": 1.0}, 2) == pytest.approx([0.7, 0.3])


@pytest.mark.parametrize("kind", ["wins", "margins"])
def test_the_only_draft_earns_1_and_an_unjudged_one_a_half(kind):
    assert rewards(kind, {"a": [1.0]}, [["a", "b"]], {"a": 1.0}) == [1.0]
    assert rewards(kind, {}, [["a"], ["b"]], {}) == [0.5, 0.5]


def test_votes_of_nothing_tell_nothing_by_margin():
    assert margins({"a": [0.0, 0.0]}, {"a": 1.0}, 2) == [0.5, 0.5]


kinds = st.sampled_from(["mean_prob", "mean_logprob", "logprob_per_byte"])


@given(ballots, kinds)
def test_equal_voices_are_the_weights(matrix, kind):
    scores = {f"m{j}": row for j, row in enumerate(matrix)}
    weights = {name: 1.0 + j for j, name in enumerate(scores)}
    told = voices(assurances("equal", kind, scores), weights)
    assert told == pytest.approx({name: w / sum(weights.values()) for name, w in weights.items()})


@pytest.mark.parametrize(
    ("kind", "sure", "lost"),
    [
        ("mean_prob", 0.8, 0.4),
        ("mean_logprob", math.log(0.8), math.log(0.4)),
        ("logprob_per_byte", math.log(0.8) / 4, math.log(0.4) / 4),
    ],
)
def test_an_assured_voice_is_the_probability_of_eight_tokens_of_the_draft_that_one_likes_best(kind, sure, lost):
    told = assurances("assured", kind, {"a": [sure, lost / 2 - 1], "b": [lost, lost]})
    assert told == pytest.approx({"a": 0.8**8, "b": 0.4**8})


@given(ballots, kinds)
def test_assured_voices_are_positive_and_sum_to_1(matrix, kind):
    scores = {
        f"m{j}": [math.log(value) * (kind != "mean_prob") or value for value in row] for j, row in enumerate(matrix)
    }
    told = voices(assurances("assured", kind, scores), dict.fromkeys(scores, 0.5))
    assert math.fsum(told.values()) == pytest.approx(1)
    assert min(told.values()) > 0


@given(ballots)
def test_who_is_surer_of_its_favourite_speaks_louder(matrix):
    scores = {f"m{j}": [math.log(value) for value in row] for j, row in enumerate(matrix)}
    told = assurances("assured", "mean_logprob", scores)
    for one in scores:
        for other in scores:
            assert max(scores[one]) < max(scores[other]) or told[one] >= told[other] - 1e-12


def test_voices_sum_to_1_though_everybody_finds_everything_impossible():
    scores = {"a": [-1e4, -1e4], "b": [-1e4, -1e4]}
    assert voices(assurances("assured", "mean_logprob", scores), {"a": 0.75, "b": 0.25}) == {"a": 0.75, "b": 0.25}
