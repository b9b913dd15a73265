"""Sampling equals transformers' own filters, and is reproducible whatever else is running."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from langchain_specfuse.core.values import Sampling
from langchain_specfuse.members.local import logits
from langchain_specfuse.members.local.logits import end_logprobs, logprobs_of, sample

SIZE, STEPS = 12, 400
CONTEXT = [1, 2, 3, 2]


def reference(row, how):
    """Return the distribution from which transformers would sample."""
    steps = LogitsProcessorList()
    if how.repetition_penalty:
        steps.append(RepetitionPenaltyLogitsProcessor(how.repetition_penalty))
    steps.append(TemperatureLogitsWarper(how.temperature))
    if how.top_k:
        steps.append(TopKLogitsWarper(how.top_k))
    if how.top_p is not None:
        steps.append(TopPLogitsWarper(how.top_p))
    if how.min_p is not None:
        steps.append(MinPLogitsWarper(how.min_p))
    return steps(torch.tensor([CONTEXT]), torch.tensor(row[None]))[0].softmax(-1)


FILTERS = [
    {},
    {"temperature": 0.3},
    {"top_k": 3},
    {"top_p": 0.6},
    {"top_p": 0.01},
    {"min_p": 0.2},
    {"top_k": 5, "top_p": 0.8, "min_p": 0.3},
    {"temperature": 1.7, "top_p": 0.9, "repetition_penalty": 1.8},
]


@pytest.mark.parametrize("how", FILTERS, ids=str)
def test_filters_are_those_of_transformers(how, monkeypatch):
    """An even grid from 0 to 1 replaces the noise, so counts are the distribution."""
    monkeypatch.setattr(logits, "noise", lambda seed, position: seed / STEPS)
    how = {"temperature": 1.0} | how
    for seed in range(3):
        row = np.random.default_rng(seed).normal(0, 2, SIZE).astype(np.float32)
        expected = reference(row, Sampling(**how))
        counts = Counter(
            sample(row[None], [Sampling(**how, seed=step)], [CONTEXT])[0] for step in range(STEPS)
        )
        frequencies = torch.tensor([counts[token] / STEPS for token in range(SIZE)])
        assert (frequencies - expected).abs().max() <= 1.01 / STEPS
        assert ((frequencies > 0) == (expected > 1 / STEPS)).logical_or(expected < 2 / STEPS).all()


rows = st.lists(st.floats(-8, 8, width=32), min_size=SIZE, max_size=SIZE).map(
    lambda row: np.array(row, np.float32)
)


@given(rows, st.integers(0, 2**40))
def test_top_k_of_one_is_greedy(row, seed):
    greedy = sample(row[None], [Sampling()], [[0]])
    assert (
        sample(row[None], [Sampling(temperature=2.0, top_k=1, seed=seed)], [[0]])
        == greedy
        == [int(row.argmax())]
    )


@given(st.lists(rows, min_size=2, max_size=4), st.integers(0, 2**40))
def test_a_row_does_not_depend_on_the_others(batch, seed):
    how = [
        Sampling(temperature=1.0, seed=seed + k, repetition_penalty=1.2) for k in range(len(batch))
    ]
    contexts = [list(range(k + 1)) for k in range(len(batch))]
    alone = [
        sample(row[None], [sampling], [ids])[0]
        for row, sampling, ids in zip(batch, how, contexts, strict=True)
    ]
    assert sample(np.stack(batch), how, contexts) == alone


def test_noise_depends_on_seed_and_position_and_on_no_global_state():
    row, warm = np.zeros((1, 1000), np.float32), Sampling(temperature=1.0, seed=1)
    np.random.seed(0)
    first = [sample(row, [warm], [[0] * n])[0] for n in range(1, 20)]
    np.random.seed(99)
    assert [sample(row, [warm], [[0] * n])[0] for n in range(1, 20)] == first
    assert len(set(first)) > 15
    assert sample(row, [Sampling(temperature=1.0, seed=2)], [[0]]) != first[:1]


@given(rows, st.sets(st.integers(0, SIZE - 1), min_size=1))
def test_the_probability_of_an_end_is_the_sum_over_its_tokens(row, stops):
    (logprob,) = end_logprobs(row[None], sorted(stops))
    assert math.exp(logprob) == pytest.approx(
        float(torch.tensor(row).softmax(-1)[sorted(stops)].sum()), abs=1e-5
    )
    assert logprob <= 0 and end_logprobs(row[None], []) == [-math.inf]


@given(rows, st.integers(0, SIZE - 1))
def test_log_probabilities_are_never_above_zero(row, token):
    assert logprobs_of(row[None], [token])[0] == pytest.approx(
        float(torch.tensor(row).log_softmax(-1)[token]), abs=1e-5
    )
    assert logprobs_of(row[None] * 50, [token])[0] <= 0
