"""The numbers of a door are those of its answers, in a format that Prometheus reads."""

from __future__ import annotations

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from langchain_specfuse import SpecFuseCallbackHandler

from .conftest import ensemble


def test_rounds_wins_and_weights_are_what_the_chat_models_events_tell(door):
    here = door()
    rounds = []
    listener = SpecFuseCallbackHandler(on_round=rounds.append)
    own = here.llm.invoke("Why?", {"callbacks": [listener]})
    for streamed in (True, False):
        assert here.asked(stream=streamed).status_code == 200
    assert here.number("specfuse_rounds_total") == 2 * len(rounds)
    for member in "ab":
        won = sum(event.winner == member for event in rounds)
        assert here.number("specfuse_segments_total", member=member) == 2 * won
        assert here.number("specfuse_weight_count", member=member) == 2
    weights = [here.number("specfuse_weight_sum", member=member) for member in "ab"]
    assert sum(weights) == pytest.approx(2)
    assert here.number("specfuse_tokens_total", kind="answer") == 2 * own.usage_metadata["output_tokens"]
    assert here.number("specfuse_tokens_total", kind="prompt") > 0


def test_every_answer_is_timed_and_booked_once(door):
    here = door()
    here.asked()
    here.asked(max_tokens=3)
    here.asked(stream=True)
    here.asked(temperature=-1)
    assert here.number("specfuse_answers_total", outcome="stop") == 2
    assert here.number("specfuse_answers_total", outcome="length") == 1
    assert here.number("specfuse_answers_total", outcome="invalid_value") == 1
    assert here.number("specfuse_answer_seconds_count") == 4
    assert here.number("specfuse_first_segment_seconds_count") == 3
    assert 0 < here.number("specfuse_first_segment_seconds_sum") < here.number("specfuse_answer_seconds_sum")
    assert here.number("specfuse_answers_in_flight") == here.number("specfuse_answers_waiting") == 0


def test_names_are_escaped(door):
    from langchain_specfuse import ScriptedMember

    here = door(ensemble(ScriptedMember("Blue.", name='a "b"\\\n{c}')))
    here.asked()
    assert here.number("specfuse_segments_total", member='a "b"\\\n{c}') == 1


def test_two_doors_count_apart(door):
    one, other = door(), door()
    one.asked()
    assert (one.number("specfuse_rounds_total") > 0, other.number("specfuse_rounds_total")) == (True, 0)


def test_the_format_is_prometheuss_and_every_name_is_ours(door):
    here = door()
    here.asked()
    response = httpx.get(here.url + "/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    families = list(text_string_to_metric_families(response.text))
    assert families and all(family.name.startswith("specfuse_") and family.documentation for family in families)
