"""The metrics describe the answers, in Prometheus's format."""

from __future__ import annotations

import pytest
from langchain_openai import ChatOpenAI

from langchain_specfuse import ChatModelMember, ScriptedMember, SpecFuseCallbackHandler
from tests.members.failing_server import FailingServer

from .conftest import BLUE, ensemble


def test_rounds_segments_weights_and_tokens_are_those_of_the_chat_models_events(serve):
    endpoint = serve()
    rounds = []
    expected = endpoint.llm.invoke(
        "Why?", {"callbacks": [SpecFuseCallbackHandler(on_round=rounds.append)]}
    )
    for stream in (True, False):
        assert endpoint.ask(stream=stream).status_code == 200
    assert endpoint.counted("specfuse_answers_total", 2, outcome="stop")
    assert endpoint.metric("specfuse_rounds_total") == 2 * len(rounds)
    for member in "ab":
        won = sum(event.winner == member for event in rounds)
        assert endpoint.metric("specfuse_segments_total", member=member) == 2 * won
        assert endpoint.metric("specfuse_weight_count", member=member) == 2
    assert endpoint.metric("specfuse_weight_sum") == pytest.approx(2)
    assert (
        endpoint.metric("specfuse_tokens_total", kind="answer")
        == 2 * expected.usage_metadata["output_tokens"]
    )
    assert endpoint.metric("specfuse_tokens_total", kind="prompt") > 0


def test_every_request_is_counted_once_as_an_answer_or_as_refused(serve):
    endpoint = serve()
    for options in ({}, {"max_tokens": 3}, {"stream": True}, {"temperature": -1}):
        endpoint.ask(**options)
    assert endpoint.counted("specfuse_answers_total", 2, outcome="stop")
    assert endpoint.counted("specfuse_answers_total", 1, outcome="length")
    assert endpoint.counted("specfuse_refused_total", 1, code="invalid_value")
    assert endpoint.metric("specfuse_answer_seconds_count") == 3
    assert endpoint.metric("specfuse_first_segment_seconds_count") == 3
    assert (
        0
        < endpoint.metric("specfuse_first_segment_seconds_sum")
        < endpoint.metric("specfuse_answer_seconds_sum")
    )
    assert (
        endpoint.metric("specfuse_answers_in_flight")
        == endpoint.metric("specfuse_answers_waiting")
        == 0
    )
    assert endpoint.get("/metrics").headers["content-type"].startswith("text/plain")


def test_the_log_names_all_members_of_an_answer_that_failed(serve, caplog):
    """An operator saw only that it had failed (``EnsembleModelError``); the client was told who."""
    secret = RuntimeError("a word of the question")
    members = [ScriptedMember(BLUE, name=name, fails_in=1, error=secret) for name in "ab"]
    with caplog.at_level("INFO", "langchain_specfuse.serve"):
        told = serve(ensemble(*members, lead="a")).ask().json()["error"]["message"]
    assert "a (error), b (error)" in told
    (line,) = [entry.message for entry in caplog.records if "members_failed (" in entry.message]
    assert line.endswith("members_failed (EnsembleModelError: a (error), b (error))")
    assert "a word of the question" not in caplog.text


def test_a_wrong_key_behind_a_reserve_is_in_the_metrics_and_in_the_log(serve, caplog):
    server = FailingServer("a", fails_after=0, how="401")
    model = ChatOpenAI(model="m", base_url=server.url, api_key="none", max_retries=0)
    members = [ChatModelMember(model, name="a"), ScriptedMember(BLUE, name="b")]
    endpoint = serve(ensemble(*members, lead="a"))
    try:
        assert endpoint.ask().json()["choices"][0]["message"]["content"] == BLUE
        assert endpoint.counted("specfuse_exits_total", 1, member="a", kind="denied")
        assert "settings of a look wrong" in caplog.text
        assert "OPENAI_API_KEY" in caplog.text
    finally:
        server.stop()
