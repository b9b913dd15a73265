"""What an endpoint with checks sends: never the text that a check refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from langchain_specfuse import CheckError, TraceCallbackHandler, checks
from langchain_specfuse.serve.rounds import Rounds

from .conftest import ensemble, events

ROUNDS = "/v1/specfuse/rounds"
HOPE = "We hope for a good answer to you."
GUARANTEE = "We guarantee a good answer to you."
NO_PROMISES = checks.at("sentence", checks.forbids("guarantee"), name="no_promises")


def promising(*texts: str, **options: Any) -> Any:
    return ensemble(*(texts or (GUARANTEE, HOPE)), **{"checks": [NO_PROMISES], **options})


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_gets_counts_and_reasons(serve: Any, stream: bool) -> None:
    response = serve(promising()).ask(stream=stream)
    last = events(response)[-2] if stream else response.json()
    found = last["specfuse"]["checks"]["no_promises"]
    assert found["rejected"] > 0 and found["reasons"] == ["contains 'guarantee'"]
    if not stream:
        assert last["choices"][0]["message"]["content"] == HOPE
    assert GUARANTEE not in response.text and "We guarantee" not in response.text


@pytest.mark.parametrize("at", ["segment", "sentence", "answer"])
def test_rounds_have_no_text_that_was_not_shown(serve: Any, at: Any) -> None:
    endpoint = serve(promising(checks=[checks.at(at, NO_PROMISES)]), page=True)
    asked = {"model": "specfuse", "messages": [{"role": "user", "content": "Well?"}]}
    whole = endpoint.post(asked, ROUNDS)
    streamed = endpoint.post({**asked, "stream": True}, ROUNDS)
    rounds = whole.json()["rounds"]
    assert "".join(item["text"] for item in rounds) == HOPE
    rejected = [rejection for item in rounds for rejection in item["rejected"]]
    assert rejected and {item["reason"] for item in rejected} == {"contains 'guarantee'"}
    for response in (whole, streamed):
        assert "guarantee" not in response.text.replace("contains 'guarantee'", "")
    drafts = [item["drafts"][item["winner"]]["text"] for item in rounds]
    assert all(text in HOPE for text in drafts) and any(drafts)


@pytest.mark.parametrize("stream", [False, True])
def test_no_client_gets_what_is_redacted(serve: Any, stream: bool) -> None:
    texts = ("Write to ann@example.com now.", "Write to ann@example.com, or not.")
    endpoint = serve(ensemble(*texts, checks=[checks.redact("email")]), page=True)
    asked = {"model": "specfuse", "messages": [{"role": "user", "content": "Whom?"}]}
    for response in (endpoint.ask(stream=stream), endpoint.post(asked, ROUNDS)):
        assert "[redacted]" in response.text
        assert "ann@" not in response.text and "example.com" not in response.text


def test_show_rejected_shows_all_drafts(serve: Any) -> None:
    endpoint = serve(promising(), page=True, show_rejected=True)
    asked = {"model": "specfuse", "messages": [{"role": "user", "content": "Well?"}]}
    rounds = endpoint.post(asked, ROUNDS).json()["rounds"]
    texts = [rejection["text"] for item in rounds for rejection in item["rejected"]]
    assert any("guarantee" in text for text in texts) or any(item["withdrawn"] for item in rounds)


def test_without_checks_all_drafts_are_shown(serve: Any) -> None:
    endpoint = serve(promising(checks=[]), page=True)
    asked = {"model": "specfuse", "messages": [{"role": "user", "content": "Well?"}]}
    first = endpoint.post(asked, ROUNDS).json()["rounds"][0]
    assert all(draft["text"] for draft in first["drafts"].values())


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_no_text_passed_fails_with_its_check(serve: Any, stream: bool) -> None:
    endpoint = serve(promising(GUARANTEE, GUARANTEE))
    response = endpoint.ask(stream=stream)
    assert response.status_code == 500 and response.headers["x-should-retry"] == "false"
    error = response.json()["error"]
    assert error["code"] == "check_failed" and "'no_promises'" in error["message"]
    assert "contains 'guarantee'" in error["message"]
    assert endpoint.counted("specfuse_refused_total", 1, code="check_failed")
    assert endpoint.metric("specfuse_rejected_total", check="no_promises") > 0


def test_a_broken_check_is_named_and_not_quoted(serve: Any) -> None:
    def breaks(text: str) -> None:
        raise RuntimeError("a secret of the operator")

    error = serve(promising(checks=[breaks])).ask().json()["error"]
    assert "'breaks'" in error["message"] and "secret" not in error["message"]


def test_an_answer_that_a_check_ended_has_openais_finish_reason(serve: Any) -> None:
    llm = promising(
        "It is good. We guarantee it.", "It is good. We guarantee it.", on_failure="end"
    )
    choice = serve(llm).ask().json()["choices"][0]
    assert choice["finish_reason"] == "content_filter"
    text = choice["message"]["content"]
    assert text.startswith("It is good.") and "guarantee" not in text


@pytest.mark.parametrize("name", ["checks", "on_failure", "redrafts"])
def test_a_request_cannot_change_the_checks(serve: Any, name: str) -> None:
    response = serve(promising()).ask(**{name: []})
    assert response.status_code == 400 and name in response.json()["error"]["message"]


WORDS = st.lists(
    st.sampled_from(["so", "bad", "good", "it", "is.", "Yes,"]), min_size=1, max_size=9
)


@settings(max_examples=30)
@given(
    texts=st.lists(WORDS.map(" ".join), min_size=1, max_size=3),
    place=st.sampled_from(["segment", "sentence", "line", "answer"]),
    how=st.sampled_from(["raise", "end"]),
    segment=st.sampled_from(["draft", "answer"]),
    size=st.integers(1, 5),
)
def test_no_round_has_refused_text_wherever_a_check_is_asked(
    texts: list[str], place: Any, how: str, segment: str, size: int
) -> None:
    check = checks.at(place, lambda text: "no" if "bad" in text else None, name="tone")
    llm = ensemble(*texts, checks=[check], on_failure=how, segment=segment, segment_tokens=size)
    recorder = TraceCallbackHandler()
    rounds = Rounds("m", recorder)
    sent: list[Any] = []
    try:
        for chunk in llm.stream("Well?", {"callbacks": [recorder]}):
            sent += rounds.add(chunk)
    except CheckError:
        pass
    else:
        sent.append(rounds.whole())
    assert "bad" not in json.dumps(sent)
