"""Picking tokens: the same as transformers' own filters, and repeatable whatever else is going on."""

import math
from collections import Counter

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
from langchain_specfuse.members import _sampling
from langchain_specfuse.members._sampling import chosen, end_logprobs, logprobs_of

SIZE = 12


def reference(row, how, context):
    """The distribution from which transformers would sample."""
    steps = LogitsProcessorList()
    if how.repetition_penalty:
        steps.append(RepetitionPenaltyLogitsProcessor(how.repetition_penalty))
    steps.append(TemperatureLogitsWarper(how.temperature))
    if how.top_k:
        steps.append(TopKLogitsWarper(how.top_k))
    if how.top_p is not None and how.top_p < 1:
        steps.append(TopPLogitsWarper(how.top_p))
    if how.min_p is not None:
        steps.append(MinPLogitsWarper(how.min_p))
    return steps(torch.tensor([context]), row[None].clone())[0].softmax(-1)


class Noise:
    """Instead of random numbers: an even walk from 0 to 1, so that counts are the distribution."""

    def __init__(self, seed):
        self.at = float(seed.split(":")[0]) / STEPS

    def random(self):
        return self.at


STEPS = 400


def distribution(row, how, context, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(_sampling.random, "Random", Noise)
        told = Counter(chosen(row[None], [Sampling(**{**how, "seed": seed})], [context])[0] for seed in range(STEPS))
    return torch.tensor([told[token] / STEPS for token in range(len(row))])


FILTERS = [
    {},
    {"temperature": 0.3},
    {"top_k": 3},
    {"top_k": 1},
    {"top_p": 0.6},
    {"top_p": 0.01},
    {"min_p": 0.2},
    {"top_k": 4, "top_p": 0.7},
    {"top_k": 5, "top_p": 0.8, "min_p": 0.3},
    {"temperature": 1.7, "top_p": 0.9, "repetition_penalty": 1.8},
    {"top_k": 500},
]


@pytest.mark.parametrize("how", FILTERS, ids=str)
def test_filters_are_those_of_transformers(how, monkeypatch):
    how = {"temperature": 1.0} | how
    for seed in range(3):
        row = torch.randn(SIZE, generator=torch.Generator().manual_seed(seed)) * 2
        wanted = reference(row, Sampling(**how), [1, 2, 3, 2])
        found = distribution(row, how, [1, 2, 3, 2], monkeypatch)
        assert (found - wanted).abs().max() <= 1.01 / STEPS
        assert ((found > 0) == (wanted > 1 / STEPS)).logical_or(wanted < 2 / STEPS).all()


rows = st.lists(st.floats(-8, 8, width=32), min_size=SIZE, max_size=SIZE).map(torch.tensor)


@given(rows, st.integers(0, 2**40))
def test_top_k_of_one_is_greedy(row, seed):
    greedy = chosen(row[None], [Sampling()], [[0]])
    assert chosen(row[None], [Sampling(temperature=2.0, top_k=1, seed=seed)], [[0]]) == greedy == [int(row.argmax())]


@given(st.lists(rows, min_size=2, max_size=4), st.integers(0, 2**40))
def test_a_row_does_not_depend_on_the_others(batch, seed):
    how = [Sampling(temperature=1.0, seed=seed + k, repetition_penalty=1.2) for k in range(len(batch))]
    contexts = [list(range(k + 1)) for k in range(len(batch))]
    together = chosen(torch.stack(batch), how, contexts)
    assert together == [
        chosen(row[None], [one], [context])[0] for row, one, context in zip(batch, how, contexts, strict=True)
    ]


def test_noise_depends_on_seed_and_place_and_on_no_global_state():
    row = torch.zeros(1, 1000)
    warm = Sampling(temperature=1.0, seed=1)
    torch.manual_seed(0)
    first = [chosen(row, [warm], [[0] * n])[0] for n in range(1, 20)]
    torch.manual_seed(99)
    assert [chosen(row, [warm], [[0] * n])[0] for n in range(1, 20)] == first
    assert len(set(first)) > 15
    assert chosen(row, [Sampling(temperature=1.0, seed=2)], [[0]]) != first[:1]


def test_greedy_with_a_penalty_is_transformers_own():
    row = torch.tensor([3.0, 2.9, -1.0, 2.8])
    how = Sampling(repetition_penalty=1.1)
    wanted = RepetitionPenaltyLogitsProcessor(1.1)(torch.tensor([[0, 2]]), row[None].clone()).argmax()
    assert chosen(row[None], [how], [[0, 2]]) == [int(wanted)] == [1]


@given(rows, st.sets(st.integers(0, SIZE - 1), min_size=1))
def test_the_end_is_the_sum_over_its_tokens(row, stops):
    told = end_logprobs(row[None], sorted(stops))[0]
    assert math.exp(told) == pytest.approx(float(row.softmax(-1)[sorted(stops)].sum()), abs=1e-5)
    assert told <= 0
    assert end_logprobs(row[None], []) == [-math.inf]


@given(rows, st.integers(0, SIZE - 1))
def test_log_probabilities_are_never_above_zero_also_in_low_precision(row, token):
    assert logprobs_of(row[None], [token])[0] == pytest.approx(float(row.log_softmax(-1)[token]), abs=1e-5)
    assert logprobs_of(row[None].bfloat16(), [token])[0] <= 0
