"""A question's features are the same everywhere and say nothing but what the text holds; a router
adds up weights."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langchain_specfuse.core.routing import (
    BEFORE,
    BUCKETS,
    LONGEST,
    Router,
    features_of,
    n_grams,
    unit,
)
from langchain_specfuse.core.values import Turn


@given(st.text(max_size=300))
def test_features_of_any_text_are_a_vector_of_unit_length(text):
    features = n_grams(text)
    assert all(0 <= bucket < BUCKETS for bucket in features)
    length = math.fsum(value * value for value in features.values())
    assert length == pytest.approx(1.0 if text.strip() else 0.0)


def test_features_are_the_same_in_every_process():
    text = "Translate 'Übermut' into Spanish: \ud800 12 times"
    code = (
        "from langchain_specfuse.core.routing import n_grams; import json, sys; "
        "print(json.dumps(n_grams(json.loads(sys.argv[1]))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(text)],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONHASHSEED": "7"},
    )
    assert {int(key): value for key, value in json.loads(done.stdout).items()} == n_grams(text)


def test_features_do_not_change_between_versions():
    """Files with weights remain valid only as long as this holds: another hash needs another
    name."""
    assert n_grams("Add 12 and 34.") == pytest.approx(n_grams("add 99 and 00."))
    assert sorted(n_grams("Hi")) == [206, 284, 2716]


def test_the_first_word_counts_extra():
    one, other = n_grams("Add 12. Explain dax."), n_grams("Explain dax. Add 12.")
    adds, explains = n_grams("Add 77."), n_grams("Explain wug.")

    def likeness(first: dict[int, float], second: dict[int, float]) -> float:
        return math.fsum(value * second.get(bucket, 0.0) for bucket, value in first.items())

    assert likeness(one, adds) - likeness(other, adds) > 0.1
    assert likeness(other, explains) - likeness(one, explains) > 0.1


def test_only_what_the_user_says_decides():
    asked = [Turn("user", "Add 2 and 3.")]
    around = [Turn("system", "Be brief."), *asked, Turn("assistant", "5"), Turn("tool", "five")]
    assert features_of(around) == features_of(asked)
    assert features_of([Turn("assistant", "Hello")]) == {}


def test_the_message_before_the_last_one_counts_half():
    said = [Turn("user", text) for text in ("Add", "Speak", "Sing")]
    before, last = n_grams("Speak"), n_grams("Sing")
    both = {position: value / 2 for position, value in before.items()}
    for position, value in last.items():
        both[position] = both.get(position, 0.0) + value
    assert features_of(said) == pytest.approx(unit(both))
    assert features_of([said[2], said[2]]) == pytest.approx(last)


def test_the_beginning_and_the_end_of_a_long_question_are_read():
    half = LONGEST // 2
    begin, end = "begin " + "y" * half, "y" * half + " end"
    read = f"{begin[:half]} {end[-half:]}"
    long = [Turn("user", "z" * 999), Turn("user", f"begin {'y' * 10**6} end")]
    short = [Turn("user", "z" * BEFORE), Turn("user", read)]
    assert features_of(long) == features_of(short)


def test_for_a_question_without_known_features_the_shares_are_predicted():
    router = Router({"a": 0.2, "b": 0.7}, {3: [0.1, -0.1]})
    assert router.predicted({}) == router.predicted({4: 1.0}) == {"a": 0.2, "b": 0.7}
    assert router.predicted({3: 0.5, 4: 0.5}) == pytest.approx({"a": 0.25, "b": 0.65})


def test_a_prediction_for_2000_characters_takes_less_than_2_ms():
    text = " ".join(f"word{n} of many" for n in range(400))[:2000]
    router = Router(dict.fromkeys("abcd", 0.5), {n: [0.1, 0.2, 0.3, 0.4] for n in range(BUCKETS)})

    def milliseconds() -> float:
        since = time.thread_time()
        router.predicted(features_of([Turn("user", text)]))
        return 1000 * (time.thread_time() - since)

    assert min(milliseconds() for _ in range(50)) < 2.0
