"""Decisions of real weights."""

from __future__ import annotations

import itertools
import json
import warnings

import pytest

from langchain_specfuse import demo_members, unload
from langchain_specfuse.chat.labelling import Decider, LabelQuestion
from langchain_specfuse.engine.ensemble import Ensemble
from langchain_specfuse.evaluation.decisions import examples_of, fitted_to

pytestmark = [pytest.mark.real, pytest.mark.long]

COLOURS = {"red": "", "blue": "", "green_apple": ""}


@pytest.fixture(scope="module")
def members():
    small = demo_members("small")
    yield small
    unload(*small)


def test_decisions_are_the_same_alone_together_and_in_any_order_of_labels(members):
    decider = Decider(Ensemble(members))
    texts = [f"The {thing} is {colour}." for thing in ("car", "house") for colour in COLOURS]
    orders = [dict(order) for order in itertools.permutations(COLOURS.items())]
    questions = [LabelQuestion.choice(order, "Which colour is it?") for order in orders]
    together = decider.decide([(questions[0], text) for text in texts])
    # Gemma's weights have blocks of 256, whose results depend on how many texts a pass reads.
    for decision, text, question in zip(together, texts, questions, strict=True):
        (alone,) = decider.decide([(question, text)])
        assert dict(alone.probabilities) == pytest.approx(dict(decision.probabilities), abs=0.05)


def test_a_fit_to_examples_makes_small_models_better_on_new_texts(members, tmp_path):
    def lines(things):
        for thing, colour in itertools.product(things, COLOURS):
            yield {"input": f"The {thing} is {colour}.", "label": colour}

    path = tmp_path / "examples.jsonl"
    known = ("car", "house", "sky", "hat", "door", "book", "cup", "bird")
    path.write_text("\n".join(map(json.dumps, lines(known))))
    ensemble = Ensemble(members)
    fitted = fitted_to(examples_of(path), ensemble)
    new = list(lines(("flower", "boat", "pen", "lamp")))
    items = [(fitted.question, line["input"]) for line in new]
    decider = Decider(ensemble)
    raw = decider.decide(items)
    calibrated = decider.decide(items, [fitted.calibration])

    def right(decisions):
        return sum(d.label == line["label"] for d, line in zip(decisions, new, strict=True))

    assert right(calibrated) >= max(right(raw), 8)


def test_the_decision_model_of_langchain_has_real_members(members):
    from langchain_core import decisions

    from langchain_specfuse import SpecFuseDecisionModel

    model = SpecFuseDecisionModel(members=members)
    question = decisions.Noul(instructions="Is the weather good?")
    rubric = ["cold", "mild", "hot"]
    questions = {
        "good": question,
        "heat": decisions.Score(instructions="How warm is it?", criteria=rubric),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        response = model.invoke({"state": "The sun is shining.", "questions": questions})
    assert 0 < response.nouls["good"].noul < 1
    assert 0 < response.scores["heat"].score < 2
    assert response.usage["input_tokens"] > 50
