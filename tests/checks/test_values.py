"""Ready-made checks as values: equality, pickling, names, identity, and where they are asked."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest
from langchain_core.documents import Document
from pydantic import BaseModel

from langchain_specfuse import UsageError, checks


class Town(BaseModel):
    name: str


MAKERS = {
    "forbids": lambda: checks.forbids("(?i)guarantee"),
    "requires": lambda: checks.requires("Dear"),
    "max_words": lambda: checks.max_words(80),
    "max_sentences": lambda: checks.max_sentences(3),
    "lowercase": checks.lowercase,
    "grounded": checks.grounded,
    "grounded in texts": lambda: checks.grounded(["a", Document(page_content="b")]),
    "python": checks.python,
    "python with tests": lambda: checks.python(tests="assert f(1)", examples=False, timeout=3),
    "json_schema": lambda: checks.json_schema({"type": "object", "required": ["town"]}),
    "json_schema of a class": lambda: checks.json_schema(Town),
    "at": lambda: checks.at("line", checks.forbids("x"), name="no x", timeout=2),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_equal_arguments_make_equal_checks_also_after_pickling(make):
    check = make()
    copy = pickle.loads(pickle.dumps(check))
    assert check == make() == copy
    assert hash(check) == hash(make())
    assert repr(check.function) == repr(copy.function)


def test_other_arguments_make_other_checks():
    made = [
        *(make() for make in MAKERS.values()),
        checks.forbids("guarantee"),
        checks.max_words(81),
        checks.grounded(["a"]),
        checks.grounded([]),
        checks.python(timeout=3),
        checks.json_schema({"type": "object"}),
        checks.at("sentence", checks.forbids("x"), name="no x", timeout=2),
    ]
    assert len(set(made)) == len(made)
    identities = [check.identity for check in made if check.identity]
    assert len(set(identities)) == len(identities) == len(made) - 1  # the class has none


def test_an_identity_is_the_same_in_every_process():
    code = (
        "from langchain_specfuse import checks as c; "
        "made = c.forbids('x'), c.grounded(['é']), c.json_schema({'type': 'object', 'title': 't'}),"
        " c.python('f()'), c.at('line', c.lowercase()); print([check.identity for check in made])"
    )
    command = [sys.executable, "-c", code]
    printed = {
        subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(filter(None, sys.path))},
        ).stdout
        for seed in "12"
    }
    assert len(printed) == 1
    assert "''" not in printed.pop()


def test_names_are_short_and_places_are_those_of_the_docs():
    shown = {name: repr(make()) for name, make in MAKERS.items()}
    assert shown == {
        "forbids": "<check forbids('(?i)guarantee') at every segment>",
        "requires": "<check requires('Dear') at every answer>",
        "max_words": "<check max_words(80) at every segment>",
        "max_sentences": "<check max_sentences(3) at every segment>",
        "lowercase": "<check lowercase at every segment>",
        "grounded": "<check grounded at every sentence>",
        "grounded in texts": "<check grounded at every sentence>",
        "python": "<check python at every answer>",
        "python with tests": "<check python at every answer>",
        "json_schema": "<check json_schema at every answer>",
        "json_schema of a class": "<check json_schema at every answer>",
        "at": "<check no x at every line>",
    }
    judging = {name for name, make in MAKERS.items() if make().judges_reasoning}
    assert judging == {"forbids", "grounded", "grounded in texts", "at"}


# --- at -------------------------------------------------------------------------------------------


def test_at_keeps_what_it_is_not_told():
    python = checks.python(timeout=30)
    moved = checks.at("block", python)
    assert (moved.at, moved.name, moved.timeout_s) == ("block", "python", python.timeout_s)
    assert moved.function == python.function
    assert moved.judges_reasoning is False
    assert checks.at("line", len).timeout_s == 10
    assert checks.at("line", len).identity == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"place": "sentense"}, "sentense"),
        ({"place": None}, "None"),
        ({"check": "text"}, "str"),
        ({"check": dict}, "type"),
        ({"name": ""}, "''"),
        ({"name": 3}, "3"),
        ({"timeout": 0}, "got 0"),
        ({"timeout": -1}, "-1"),
        ({"timeout": True}, "True"),
        ({"timeout": "10"}, "'10'"),
        ({"timeout": float("inf")}, "inf"),
        ({"timeout": float("nan")}, "nan"),
    ],
    ids=repr,
)
def test_at_refuses_what_cannot_work(arguments, said):
    given = {"place": "line", "check": len, **arguments}
    with pytest.raises(UsageError, match=said) as caught:
        checks.at(given.pop("place"), given.pop("check"), **given)
    assert caught.value.notes[0].startswith("-> ")


def test_at_names_the_place_that_was_meant():
    with pytest.raises(UsageError) as caught:
        checks.at("sentense", len)
    assert "'sentence'" in caught.value.notes[0]
