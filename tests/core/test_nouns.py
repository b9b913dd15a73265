"""What all the nouns have in common, what they hold where nobody says otherwise, and how they look as plain JSON."""

from __future__ import annotations

import dataclasses
import importlib
import math
import pkgutil
from dataclasses import MISSING

import pytest

from langchain_specfuse import core
from langchain_specfuse.core.answer import Answer
from langchain_specfuse.core.casting import Casting
from langchain_specfuse.core.member import Probe
from langchain_specfuse.core.panel import Panel, Record
from langchain_specfuse.core.referee import FREE
from langchain_specfuse.core.values import (
    PRESETS,
    Ask,
    Call,
    CallFormat,
    Candidate,
    Constraint,
    Departure,
    Draft,
    DraftJob,
    Effort,
    Failure,
    Query,
    Round,
    Sampling,
    Scored,
    ScoreJob,
    Seat,
    Segment,
    Settings,
    Tool,
    Turn,
)
from langchain_specfuse.core.verdict import Verdict

MODULES = [importlib.import_module(f"{core.__name__}.{found.name}") for found in pkgutil.iter_modules(core.__path__)]
NOUNS = {
    kind.__name__: kind
    for module in MODULES
    for kind in vars(module).values()
    if dataclasses.is_dataclass(kind) and kind.__module__ == module.__name__
}


@pytest.mark.parametrize("name", NOUNS)
def test_a_noun_cannot_be_changed_and_takes_no_more_than_it_names(name):
    kind = NOUNS[name]
    assert kind.__dataclass_params__.frozen
    assert set(kind.__slots__) == {field.name for field in dataclasses.fields(kind)}


DEFAULTS = {
    Call: {"id": ""},
    CallFormat: {
        "begin": "<tool_call>\n",
        "end": "\n</tool_call>",
        "between": "\n",
        "name_key": "name",
        "arguments_key": "arguments",
    },
    Turn: {"calls": (), "name": "", "call_id": ""},
    Constraint: {"body": ""},
    Sampling: {
        "temperature": 0.0,
        "top_p": None,
        "top_k": None,
        "min_p": None,
        "repetition_penalty": None,
        "seed": 0,
    },
    Settings: {
        "segment_tokens": 10,
        "drafters": None,
        "speculate": False,
        "max_tokens": 512,
        "max_rounds": None,
        "stop": (),
        "score": "mean_logprob",
        "voice": "assured",
        "reward": "margins",
        "feedback": "published",
        "learning_rate": 3.0,
        "umpire": True,
        "exit": "studentized",
        "min_members": 1,
        "loop_guard": True,
        "sampling": Sampling(),
    },
    Seat: {"drafts": True, "scores": True, "size": 0, "desk": ""},
    Query: {"tools": (), "constraint": None},
    Segment: {"ended": False, "tokens": {}},
    Effort: {"read": 0, "reused": 0, "prompt": 0, "seconds": 0.0, "began": 0.0},
    Draft: {"ended": False, "tokens": (), "logprobs": None, "effort": Effort(), "ends": None, "thought": ""},
    DraftJob: {"stop": (), "call_tokens": 64, "hints": None, "pieces": None},
    ScoreJob: {"thinks": True, "pieces": None},
    Scored: {"effort": Effort(), "ends": None},
    Failure: {"cause": None},
    Ask: {"spare": False},
    Departure: {"cause": None},
    Round: {
        "authors": (),
        "forced": "",
        "closed": "",
        "thoughts": {},
        "looped": (),
        "umpire": "",
        "late": {},
        "left": (),
        "finish": None,
        "efforts": {},
        "seconds": {},
        "began": {},
    },
    Verdict: {"left": (), "efforts": {}, "seconds": 0.0},
    Probe: {"scores": True, "max_context": None, "detail": "", "calls": None, "size": 0},
    Answer: {
        "referee": FREE,
        "segments": (),
        "text": "",
        "shown": 0,
        "released": "",
        "forced": "",
        "closed": "",
        "tokens_left": 0,
        "finish": None,
    },
    Panel: {"left": (), "record": Record()},
    Record: {"rounds": 0, "quality": {}, "sums": {}, "wins": {}, "squares": 0.0, "count": 0, "low": {}},
    Casting: {"wins": {}, "sureness": {}},
    Tool: {},
    Candidate: {},
}


@pytest.mark.parametrize("kind", DEFAULTS, ids=lambda kind: kind.__name__)
def test_what_nobody_says_is_so(kind):
    found = {}
    for field in dataclasses.fields(kind):
        if field.default is not MISSING:
            found[field.name] = field.default
        elif field.default_factory is not MISSING:
            found[field.name] = field.default_factory()
    assert found == DEFAULTS[kind]
    assert {name: type(value) for name, value in found.items()} == {
        name: type(value) for name, value in DEFAULTS[kind].items()
    }


def test_the_presets_are_these():
    published = {
        "score": "mean_prob",
        "voice": "equal",
        "reward": "wins",
        "learning_rate": 1.0,
        "umpire": False,
        "loop_guard": False,
    }
    assert {name: dict(told) for name, told in PRESETS.items()} == {
        "specfuse": {**published, "feedback": "off", "exit": "studentized"},
        "specem": {**published, "feedback": "published", "exit": "never"},
        "robust": {"min_members": 2},
    }


def test_an_answer_has_its_whole_budget_until_something_is_agreed():
    assert Answer((), 7).tokens_left == 7
    assert Answer((), 7, segments=(Segment("x"),), tokens_left=3).tokens_left == 3


def test_efforts_add_up():
    one, other = Effort(1, 2, 30, 0.5, began=9.0), Effort(10, 20, 3, 0.25, began=8.0)
    assert one + other == Effort(11, 22, 30, 0.75, 8.0)
    assert other + one == Effort(11, 22, 30, 0.75, 8.0)
    assert Effort(began=5.0) + Effort() == Effort() + Effort(began=5.0) == Effort(began=5.0)


@pytest.mark.parametrize("kind", [Failure, Departure])
def test_what_was_raised_makes_no_difference_and_is_not_shown(kind):
    told = ("a", "error", "fell", 3)[: len(dataclasses.fields(kind)) - 1]
    assert kind(*told, cause=ValueError("secret")) == kind(*told)
    assert "secret" not in repr(kind(*told, cause=ValueError("secret")))


def test_a_round_as_plain_json_has_all_of_it():
    drafts = {"a": Draft(" x", tokens=(1, 2)), "b": Draft(" y", True, (3,), thought="hm")}
    round = Round(
        number=3,
        text=" x",
        segment=Segment(" x", False),
        winner="a",
        drafts=drafts,
        scores={"a": {"a": -1.0, "b": -2.0}},
        votes={"a": {"a": 0.7, "b": 0.3}},
        totals={"a": 0.75, "b": 0.25},
        rewards={"a": 0.6, "b": 0.4},
        weights_before={"a": 0.5, "b": 0.5},
        weights={"a": 0.625, "b": 0.375},
        authors=("a",),
        forced="{",
        closed="}",
        thoughts={"b": "hm"},
        looped=("b",),
        umpire="a",
        late={"verify": ("b",)},
        left=(Departure("b", "exit", "lost", 3),),
        finish="length",
        efforts={"draft": {"a": Effort(5, 6, 7, 0.5, 1.0)}},
        seconds={"draft": 0.5},
        began={"draft": 1.0},
    )
    assert round.as_dict() == {
        "round": 3,
        "text": " x",
        "segment": " x",
        "ended": False,
        "winner": "a",
        "authors": ["a"],
        "drafts": {"a": {"text": " x", "ended": False, "tokens": 2}, "b": {"text": " y", "ended": True, "tokens": 1}},
        "scores": {"a": {"a": -1.0, "b": -2.0}},
        "votes": {"a": {"a": 0.7, "b": 0.3}},
        "totals": {"a": 0.75, "b": 0.25},
        "margin": 0.5,
        "dissent": pytest.approx(-(0.75 * math.log(0.75) + 0.25 * math.log(0.25)) / math.log(2)),
        "runner_up": "b",
        "rewards": {"a": 0.6, "b": 0.4},
        "weights_before": {"a": 0.5, "b": 0.5},
        "weights": {"a": 0.625, "b": 0.375},
        "forced": "{",
        "closed": "}",
        "thoughts": {"b": "hm"},
        "looped": ["b"],
        "umpire": "a",
        "late": {"verify": ["b"]},
        "left": [{"member": "b", "kind": "exit", "reason": "lost", "round": 3}],
        "finish": "length",
        "seconds": {"draft": 0.5},
        "tokens": {"draft": {"a": {"read": 5, "reused": 6, "seconds": 0.5}}},
    }
    assert round.members == ("a", "b")
    assert round.stragglers == ("b",)
    assert round.failures == ()


def test_a_verdict_as_plain_json_has_all_of_it():
    own = {"ann": {"yes": 0.75, "no": 0.25}, "bob": {"yes": 0.25, "no": 0.75}}
    left = (Departure("cyd", "nan", "odd", 1),)
    found = Verdict({"yes": 0.5, "no": 0.5}, own, {"ann": 0.8, "bob": 0.4}, {"ann": 0.5, "bob": 0.5}, left, {}, 2.0)
    quarter = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert found.as_dict() == {
        "label": "yes",
        "probabilities": {"yes": 0.5, "no": 0.5},
        "margin": 0.0,
        "dissent": pytest.approx((math.log(2) - quarter) / math.log(2)),
        "by_member": own,
        "mass": {"ann": 0.8, "bob": 0.4},
        "weights": {"ann": 0.5, "bob": 0.5},
        "left": [{"member": "cyd", "kind": "nan", "reason": "odd", "round": 1}],
        "seconds": 2.0,
    }
    assert found.text == "yes"


def test_dissent_reaches_1_and_no_further():
    own = {"ann": {"yes": 1.0, "no": 0.0}, "bob": {"yes": 0.0, "no": 1.0}}
    found = Verdict({"yes": 0.5, "no": 0.5}, own, {}, {"ann": 0.5, "bob": 0.5})
    assert found.dissent == 1.0
    three = Verdict(
        {"yes": 0.5, "no": 0.5, "so": 0.0},
        {"ann": {"yes": 1.0, "no": 0.0, "so": 0.0}, "bob": {"yes": 0.0, "no": 1.0, "so": 0.0}},
        {},
        {"ann": 0.5, "bob": 0.5},
    )
    assert three.dissent == pytest.approx(1.0)
    assert three.margin == 0.0
    alone = Verdict({"yes": 1.0}, {"ann": {"yes": 1.0}}, {}, {"ann": 1.0})
    assert (alone.dissent, alone.margin) == (None, 1.0)
    assert Verdict({"yes": 1.0}, {"a": {"yes": 1.0}, "b": {"yes": 1.0}}, {}, {"a": 0.5, "b": 0.5}).dissent is None


def test_where_nothing_is_asked_of_it_everything_is_legal():
    assert FREE.legal("a", "bc") == 2
    assert FREE.may_end("a") is True
    assert FREE.forced("a") == FREE.closing("a") == ""
    assert FREE.must_end("a") is False
    assert FREE.spans("a", "bc") == ()
    assert FREE.same("a", "bc") == "bc"
    assert FREE.prose("abc") == 3
