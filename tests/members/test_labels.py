"""A decision's probabilities are those of the model's own logits, computed here by hand from one plain forward pass."""

from __future__ import annotations

import math

import pytest
import torch

from langchain_specfuse import decide
from langchain_specfuse.chat.decide import label_query
from langchain_specfuse.core.values import Segment

from . import engines, tiny

LABELS = ["yes", "yes, but not always", "no", "天空 😀", "a\nb", "42"]
"""One begins with another; some have many tokens, some of half a character each."""
QUESTION = "Is the sky blue?"


def by_hand(member, labels, list_labels):
    """log P(label and then the end of the turn | prompt), label by label, each from a reading of its own."""
    turns = label_query(QUESTION, labels, list_labels=list_labels).turns
    prompt = member.loaded.prompt_ids(turns)
    return [_summed(member, prompt, label) for label in labels]


def _summed(member, prompt, label):
    new = member.words.answer_ids("nobody", prompt, (Segment(label),))[len(prompt) :]
    assert member.words.added(prompt, new) == label
    own = _logprobs(member, [*prompt, *new])
    written = sum(float(own[len(prompt) - 1 + k, token]) for k, token in enumerate(new))
    end = float(torch.logsumexp(own[-1, member.stops], 0))
    if end_ids := member.loaded.end_ids:  # a model without a chat template may also write its end in words
        own = _logprobs(member, [*prompt, *new, *end_ids])
        at = len(prompt) + len(new) - 1
        words = sum(float(own[at + k, token]) for k, token in enumerate(end_ids))
        end = float(torch.logaddexp(torch.tensor(end), torch.tensor(words)))
    return written + end


@torch.inference_mode()
def _logprobs(member, ids):
    return member.loaded.weights.model(torch.tensor([ids])).logits[0].double().log_softmax(-1)


def softmax(sums):
    whole = sum(math.exp(value - max(sums)) for value in sums)
    return [math.exp(value - max(sums)) / whole for value in sums]


def agrees(members, labels, list_labels, prior=None):
    found = decide(QUESTION, labels, members=members, list_labels=list_labels, prior=prior)
    hand = {one.name: by_hand(one, labels, list_labels) for one in members}
    for one in members:
        assert list(found.by_member[one.name].values()) == pytest.approx(softmax(hand[one.name]), abs=1e-4)
        assert found.mass[one.name] == pytest.approx(sum(map(math.exp, hand[one.name])), rel=1e-3)
        assert found.mass[one.name] <= 1.0
    mixed = [sum(found.weights[one.name] * softmax(hand[one.name])[k] for one in members) for k in range(len(labels))]
    assert list(found.probabilities.values()) == pytest.approx(mixed, abs=1e-4)
    return found


@pytest.mark.parametrize("arch", [*tiny.THREE, "gpt2"])
def test_tiny_models(arch):
    agrees([tiny.member(arch)], LABELS, list_labels=len(arch) % 2 == 0)


def test_a_mixture_of_tokenizers():
    members = [tiny.member("llama"), tiny.member("bloom"), tiny.member("gemma3"), tiny.member("gpt2")]
    found = agrees(members, LABELS, True, prior={"llama-0": 3.0})
    assert found.weights["llama-0"] == pytest.approx(0.5)


def test_the_same_whether_labels_are_asked_together_or_alone():
    member = tiny.member("qwen3")
    found = decide(QUESTION, LABELS, members=[member], list_labels=False)
    turned = decide(QUESTION, LABELS[::-1], members=[member], list_labels=False)
    assert {label: turned.probabilities[label] for label in LABELS} == pytest.approx(
        dict(found.probabilities), abs=1e-5
    )
    two = decide(QUESTION, ["no", "42"], members=[member], list_labels=False)
    wanted = found.probabilities["no"] / (found.probabilities["no"] + found.probabilities["42"])
    assert two.probabilities["no"] == pytest.approx(wanted, abs=1e-4)


@pytest.mark.real
def test_a_real_model():
    (member, _) = engines.in_transformers()
    for labels, list_labels in ((["Yes", "No"], True), (["blue", "blue and white", "I do not know."], False)):
        assert agrees([member], labels, list_labels).label in labels
