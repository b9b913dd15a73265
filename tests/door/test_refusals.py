"""What is wrong, too much or meant badly is refused with a reason, costs nobody else anything, and is in no log."""

from __future__ import annotations

import json
import logging
from dataclasses import fields

import httpx
import pytest
from face.recording import recorded
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from langchain_specfuse import ScriptedMember, UsageError
from langchain_specfuse.core.values import Failure
from langchain_specfuse.door import Limits, app_of
from langchain_specfuse.door.orders import KNOWN, Order

from .conftest import ASKED, BLUE, ensemble, events, tried, until

KEY = "sk-canary-5b1c8e"
TOOLS = [{"type": "function", "function": {"name": "add", "description": "Add two numbers, or more."}}]
GOOD = {"model": "specfuse", "messages": ASKED}


def wrong(response, status, code):
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["code"] == code
    assert set(error) == {"message", "type", "param", "code"}
    return error


@pytest.fixture
def fine(door):
    """A door that must be as good as new after each test."""
    here = door(limits=Limits(most_bytes=20_000, most_shape_bytes=4_000))
    yield here
    assert here.asked().json()["choices"][0]["message"]["content"] == BLUE
    assert until(lambda: here.hall.gate.inside == 0)


# --- bodies -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "invalid_json"),
        (b"{", "invalid_json"),
        (b"\x00", "invalid_json"),
        (b'{"model": NaN}', "invalid_json"),
        (b'{"model": "specfuse", "temperature": 1e999}', "invalid_json"),
        (b"\xff\xfe{\x00}\x00", "invalid_json"),
        (b'{"model": ' + b"1" * 9000 + b"}", "invalid_json"),
        (b"[" * 9000, "body_too_deep"),
        (b'{"a":' * 2000 + b"1" + b"}" * 2000, "body_too_deep"),
        (b'{"tools":' + b"[" * 150 + b"]" * 150 + b"}", "body_too_deep"),
        (b"[]", "invalid_value"),
        (b'"specfuse"', "invalid_value"),
        (b"{}", "model_not_found"),
    ],
)
def test_a_body_that_is_no_question_is_refused(fine, body, code):
    wrong(fine.post(body), 400, code)


def test_a_body_that_is_too_large_is_not_read(fine):
    wrong(fine.post(b" " * 20_001), 413, "body_too_large")


def test_a_body_that_hides_its_size_is_not_read_to_its_end(fine):
    """Some of it lies between two sockets; 640 MB do not."""
    sent = []

    def endless():
        for _ in range(10_000):
            sent.append(1)
            yield b" " * 65_536

    try:
        answer = httpx.post(
            f"{fine.url}/v1/chat/completions", content=endless(), headers={"content-type": "application/json"}
        )
        wrong(answer, 413, "body_too_large")
    except httpx.TransportError:  # the door had closed the line before all was sent
        pass
    assert len(sent) < 10_000


def test_only_json_is_read(fine):
    """A form of another site's page may send text, but not this without being asked whether it may."""
    wrong(fine.post(GOOD, headers={"content-type": "text/plain"}), 415, "unsupported_media_type")
    assert fine.post(GOOD, headers={"content-type": "Application/JSON; charset=utf-8"}).status_code == 200


def test_other_paths_and_ways_are_told_in_the_same_form(fine):
    wrong(httpx.get(fine.url + "/v1/chat/completions"), 405, "unknown_url")
    wrong(fine.post(GOOD, "/v1/embeddings"), 404, "unknown_url")
    wrong(httpx.get(fine.url + "/docs"), 404, "unknown_url")
    wrong(fine.post(GOOD, "/v1/chat/completions/"), 404, "unknown_url")


# --- values -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"messages": "Why?"}, "messages"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, None),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "include_usage"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": {}}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"seed": 10**30}, "seed"),
        ({"seed": "x"}, "seed"),
        ({"stop": [""]}, "stop"),
        ({"stop": ""}, "stop"),
        ({"stop": list("abcdefghijklmnopq")}, "stop"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 10, "max_completion_tokens": 20}, "max_tokens"),
        ({"max_completion_tokens": 100_000}, "max_completion_tokens"),
        ({"tools": [None]}, None),
        ({"tools": "get_weather"}, "tools"),
        ({"tools": [{"type": "web_search"}]}, None),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": "json"}, "response_format"),
        ({"response_format": []}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "colour"}}}}, None),
        ({"regex": "(" * 50}, None),
        ({"choice": ["x" * 5000]}, None),
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"logit_bias": {"50256": -100}}, "logit_bias"),
        ({"functions": [{"name": "f"}]}, "functions"),
    ],
)
def test_a_wrong_value_is_told_by_its_name(fine, options, param):
    error = fine.asked(**options).json()["error"]
    assert error["param"] == param and "-> " in error["message"]


@pytest.mark.parametrize("name", ["members", "verifiers", "prior", "timeout", "trace", "segment_tokens", "preset"])
def test_a_client_does_not_choose_who_answers_or_how_they_agree(fine, name):
    error = wrong(fine.asked(**{name: ["/etc/passwd"]}), 400, "unknown_parameter")
    assert error["param"] == name


@pytest.mark.parametrize("kind", ["allowed_tools", "custom"])
def test_a_choice_of_tools_that_is_not_known_here_is_told_by_its_kind(fine, kind):
    choice = {"type": kind, kind: {"mode": "auto", "tools": []}}
    error = wrong(fine.asked(tools=TOOLS, tool_choice=choice), 400, "unsupported_parameter")
    assert error["param"] == "tool_choice" and f"of the type '{kind}' is not supported" in error["message"]


@pytest.mark.parametrize(("name", "near"), [("max_token", "max_tokens"), ("stops", "stop"), ("reasoning_effort", None)])
def test_only_a_name_that_is_near_is_guessed(fine, name, near):
    message = fine.asked(**{name: "low"}).json()["error"]["message"]
    assert ("did you mean" in message) == bool(near) and (not near or repr(near) in message)


def test_what_asks_for_nothing_may_be_said(fine):
    silent = {"n": 1, "logprobs": False, "top_logprobs": None, "presence_penalty": 0, "frequency_penalty": 0.0}
    more = {"logit_bias": {}, "store": False, "user": "ann", "metadata": {"a": "b"}, "seed": None, "tools": None}
    assert fine.asked(**silent, **more).status_code == 200


def test_a_schema_that_never_ends_is_refused(fine):
    schema = {"type": "object", "properties": {f"key{number}": {"type": "string"} for number in range(300)}}
    wrapped = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    wrong(fine.asked(response_format=wrapped), 400, "shape_too_large")


def test_a_conversation_that_is_longer_than_is_read_here_is_refused(door):
    here = door(limits=Limits(most_prompt_tokens=10))
    message = {"role": "user", "content": "word " * 9}
    assert here.asked(messages=[message]).status_code == 200
    for more in ({"messages": [message, message]}, {"messages": [message], "tools": TOOLS, "stream": True}):
        error = wrong(here.asked(**more), 400, "context_length_exceeded")
        assert "at most 10" in error["message"]


def test_text_of_any_kind_arrives_as_it_is(door):
    here = door(ensemble(lambda query: query.turns[-1].text))
    for text in ("a\x00b", "天空 😀 \u202e", "data: [DONE]\n\ndata: {}", "\u2028\u2029 </script>", "\x1b[31m red"):
        whole = here.asked(messages=[{"role": "user", "content": text}]).json()
        assert whole["choices"][0]["message"]["content"] == text
        told = events(here.asked(messages=[{"role": "user", "content": text}], stream=True))
        assert told[-1] == "[DONE]"
        assert "".join(one["choices"][0]["delta"].get("content", "") for one in told[:-1]) == text


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(sorted(KNOWN)) | st.text(max_size=8), values, max_size=6), st.booleans())
def test_whatever_is_ordered_is_taken_or_refused_by_a_fault(told, good):
    order, fault = tried(Order.of, {**told, **GOOD} if good else told, "specfuse", Limits())
    if fault:
        assert fault.status in (400, 404) and json.loads(fault.json)
    else:
        assert set(order.options) <= KNOWN and "model" not in order.options


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(told=st.dictionaries(st.sampled_from(sorted(KNOWN - {"model", "messages"})), values, max_size=2))
def test_no_order_is_trouble_of_the_server(fine, told):
    response = fine.post(json.dumps(GOOD | told).encode())
    assert response.status_code in (200, 400), response.text


# --- keys and names ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/specfuse", "/metrics"])
def test_without_the_key_there_is_nothing(door, path):
    here = door(keys=["first", "söcond"])
    wrong(httpx.get(here.url + path), 401, "invalid_api_key")
    for key in ("first", "söcond"):
        authorization = f"Bearer {key}".encode()
        assert httpx.get(here.url + path, headers={"authorization": authorization}).status_code == 200


@pytest.mark.parametrize("told", [None, "Bearer", "Bearer firs", "Bearer first2", "Basic first", "first"])
def test_a_wrong_key_asks_in_vain(door, told):
    here = door(keys=["first"])
    headers = {"authorization": told} if told else {}
    wrong(here.post(GOOD, headers=headers), 401, "invalid_api_key")
    assert here.post(GOOD, headers={"authorization": "Bearer first"}).status_code == 200


def test_a_probe_needs_no_key(door):
    here = door(keys=["first"])
    for ask in (httpx.get, httpx.head):
        assert ask(here.url + "/health").status_code == ask(here.url + "/ready").status_code == 200


def test_a_door_that_knows_its_names_opens_to_no_other(door):
    """A name of somebody else's that leads to this machine would make a browser carry answers out."""
    here = door(hosts=["127.0.0.1", "[::1]"])
    wrong(here.post(GOOD, headers={"host": "evil.example:80"}), 403, "unknown_host")
    assert here.post(GOOD, headers={"host": "127.0.0.1:1234"}).status_code == 200
    assert here.post(GOOD, headers={"host": "[::1]"}).status_code == 200


# --- members ----------------------------------------------------------------------------------------------------


SECRET = "the password is swordfish"


class Telling(ScriptedMember):
    """Raises what it was asked."""

    def draft(self, jobs):
        raise RuntimeError(f"no: {jobs[0].query.turns[-1].text}")


class Late(ScriptedMember):
    def draft(self, jobs):
        return [Failure("timeout", SECRET) for _ in jobs]


@pytest.mark.parametrize(
    ("member", "options", "status"),
    [
        (ScriptedMember(BLUE), {}, 200),
        (ScriptedMember(BLUE), {"stream": True}, 200),
        (ScriptedMember(BLUE), {"temperature": SECRET}, 400),
        (ScriptedMember(BLUE), {SECRET: 1}, 400),
        (Telling(BLUE), {}, 500),
        (Late(BLUE), {}, 500),
    ],
)
def test_no_word_of_a_question_is_logged_or_counted(door, caplog, capfd, member, options, status):
    here = door(ensemble(member))
    with caplog.at_level(logging.INFO):
        told = here.asked(messages=[{"role": "user", "content": SECRET}], **options)
    assert told.status_code == status
    metrics = httpx.get(here.url + "/metrics").text
    # As the level is without a choice: what LangChain and the members say at debug is theirs.
    assert SECRET not in caplog.text + metrics + "".join(capfd.readouterr())
    assert status != 500 or SECRET not in told.text


def test_while_members_load_questions_are_sent_away_and_probes_are_told(door):
    import threading

    gate = threading.Event()

    class Heavy(ScriptedMember):
        def probe(self):
            assert gate.wait(10)
            return super().probe()

    here = door(ensemble(Heavy(BLUE)), ready=False)
    assert httpx.get(here.url + "/health").status_code == 200
    assert httpx.get(here.url + "/ready").status_code == 503
    response = here.post(GOOD)
    wrong(response, 503, "loading")
    assert response.headers["retry-after"] == "5"
    gate.set()
    assert until(lambda: httpx.get(here.url + "/ready").status_code == 200)
    assert here.post(GOOD).status_code == 200


def test_a_member_that_leaves_is_counted_and_the_others_go_on(door):
    here = door(ensemble(Telling(BLUE, name="mute"), BLUE, BLUE))
    told = here.asked().json()
    assert told["choices"][0]["message"]["content"] == BLUE
    assert told["specfuse"]["exits"] == [{"member": "mute", "kind": "error", "round": 1}]
    assert here.number("specfuse_exits_total", member="mute", kind="error") == 1


def test_the_log_of_the_program_around_it_stays_open(door, tmp_path):
    """uvicorn's own setting of the log closes the handlers of everybody in the process."""
    others = logging.StreamHandler(stream := (tmp_path / "log").open("w"))
    others.close = stream.close  # as absl's does
    door()
    assert not stream.closed
    others.close()


@pytest.mark.parametrize("told", [KEY, KEY[:-1]])
def test_a_key_is_neither_in_the_metrics_nor_in_what_is_posted_to_langsmith(door, caplog, told):
    caplog.set_level(logging.DEBUG)
    headers = {"authorization": f"Bearer {told}"}
    with recorded() as (tracer, endpoint):
        here = door(ensemble(callbacks=[tracer], trace="members"), keys=[KEY])
        asked = [here.post({**GOOD, "stream": stream}, headers=headers) for stream in (True, False)]
        asked += [here.post({**GOOD, "temperature": -1}, headers=headers)]
        assert {response.status_code for response in asked} == ({200, 400} if told == KEY else {401})
        metrics = httpx.get(here.url + "/metrics", headers={"authorization": f"Bearer {KEY}"}).text
    assert ("specfuse_answers_total" in metrics) and (told != KEY or BLUE[:20] in endpoint.told)
    seen = [metrics, endpoint.told, caplog.text, *(response.text for response in asked)]
    assert not any(KEY[:-1] in one for one in seen)


# --- what the door is opened with ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [one.name for one in fields(Limits) if not one.name.endswith("_s")])
def test_a_bound_that_counts_is_a_whole_number(name):
    with pytest.raises(UsageError, match=rf"{name} must be a whole number of at least [01], got 1\.5"):
        Limits(**{name: 1.5})
    assert getattr(Limits(**{name: 2}), name) == 2


@pytest.mark.parametrize("name", [one.name for one in fields(Limits) if one.name.endswith("_s")])
def test_a_bound_of_time_may_be_a_part_of_a_second(name):
    assert getattr(Limits(**{name: 1.5}), name) == 1.5


def test_a_chat_model_that_has_been_made_wrong_opens_no_door():
    llm = ensemble()
    llm.timeout = "long"
    with pytest.raises(UsageError, match="timeout must be a number of seconds above 0, got 'long'"):
        app_of(llm)


def test_a_budget_of_the_chat_models_that_the_door_cuts_is_told_at_the_start(door, caplog):
    app_of(ensemble(), limits=Limits(most_tokens=3))  # 512 was nobody's choice
    app_of(ensemble(max_tokens=3), limits=Limits(most_tokens=3))
    assert not caplog.text
    here = door(ensemble(max_tokens=20), limits=Limits(most_tokens=3))
    assert "max_tokens is 20, most_tokens is 3" in caplog.text
    told = here.asked().json()
    assert (told["usage"]["completion_tokens"], told["choices"][0]["finish_reason"]) == (3, "length")
