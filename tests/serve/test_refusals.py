"""Invalid, excessive and harmful requests are refused with a reason; they cost other requests
nothing and appear in no log."""

from __future__ import annotations

import json
import logging
import sys
import threading

import httpx2
import pytest
from chat.recording import recorded
from pydantic import ValidationError

from langchain_specfuse import ScriptedMember
from langchain_specfuse.core.values import Failure
from langchain_specfuse.serve import Limits, requests

from .conftest import BLUE, PATH, QUESTION, ensemble, serving, until

GOOD = {"model": "specfuse", "messages": QUESTION}
TOOLS = [
    {"type": "function", "function": {"name": "add", "description": "Add two numbers, or more."}}
]


def wrong(response, status, code):
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["code"] == code
    assert set(error) == {"message", "type", "param", "code"}
    return error


@pytest.fixture(scope="module")
def shared():
    with serving() as start:
        yield start(limits=Limits(max_body_bytes=20_000))


@pytest.fixture
def endpoint(shared):
    """Return an endpoint that must work as before after each test."""
    yield shared
    assert shared.ask().json()["choices"][0]["message"]["content"] == BLUE
    assert shared.idle()


# --- bodies ---------------------------------------------------------------------------------------


def test_a_body_that_is_not_a_request_is_refused(endpoint):
    wrong_json = [
        b"",
        b'{"model": NaN}',
        b'{"temperature": 1e999}',
        b"\xff\xfe{\x00}\x00",
        b"[" + b"1" * 9000 + b"]",
    ]
    for body in wrong_json:
        wrong(endpoint.post(body), 400, "invalid_json")
    # Python 3.14 parses as deep as its stack allows, which is deeper than the limit for bodies.
    wrong(
        endpoint.post(b"[" * 9000),
        400,
        "invalid_json" if sys.version_info >= (3, 14) else "body_too_deep",
    )
    wrong(endpoint.post(b'"specfuse"'), 400, "invalid_value")


def test_a_schema_of_any_depth_is_compiled_or_refused(endpoint):
    for depth in (50, 150, 400):
        schema = {"type": "string"}
        for _ in range(depth):
            schema = {"type": "object", "properties": {"a": schema}}
        wrapped = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
        assert endpoint.ask(response_format=wrapped, max_tokens=2).status_code in (200, 400)


def many(count, **words):
    """Return a format for an object with this many properties."""
    properties = {f"property_{number}": {"type": "string"} for number in range(count)}
    schema = {"type": "object", "properties": properties, **words}
    return {"type": "json_schema", "json_schema": {"name": "many", "schema": schema}}


def test_a_schema_with_more_optional_properties_than_a_grammar_takes_is_refused(serve):
    endpoint = serve(ensemble("{}"))
    shapes = [
        many(3000),
        many(3000, required=["property_0"]),
        many(1, additionalProperties=many(700)["json_schema"]["schema"]),
    ]
    for shape in shapes:
        error = wrong(endpoint.ask(response_format=shape), 400, "invalid_value")
        assert "optional properties" in error["message"]
        assert "-> require some" in error["message"]
    answer = endpoint.ask(response_format=many(490))
    assert answer.json()["choices"][0]["message"]["content"] == "{}"
    required = many(1000, required=[f"property_{number}" for number in range(1000)])
    assert endpoint.ask(response_format=required, max_tokens=2).status_code == 200


def test_a_body_that_is_too_large_is_not_read_to_its_end(endpoint, monkeypatch):
    """The buffers between two sockets hold some of it, but not 640 MB."""
    wrong(endpoint.post(b" " * 20_001), 413, "body_too_large")
    sent = []

    def endless():
        for _ in range(10_000):
            sent.append(1)
            yield b" " * 65_536

    try:
        answer = httpx2.post(
            endpoint.url + PATH, content=endless(), headers={"content-type": "application/json"}
        )
        wrong(answer, 413, "body_too_large")
    except httpx2.TransportError:  # the connection was closed before all was sent
        pass
    assert len(sent) < 10_000
    monkeypatch.setattr(requests, "MAX_FORMAT_BYTES", 100)
    wrong(endpoint.ask(tools=TOOLS), 400, "shape_too_large")


def test_other_content_types_paths_and_methods_are_refused_in_the_same_form(endpoint):
    """A web page can send text to another site without permission, but not JSON."""
    wrong(endpoint.post(GOOD, content_type="text/plain"), 415, "unsupported_media_type")
    assert endpoint.post(GOOD, content_type="Application/JSON; charset=utf-8").status_code == 200
    assert f"-> use POST {PATH}" in wrong(endpoint.get(PATH), 405, "unknown_url")["message"]
    assert (
        "-> use GET /v1/models"
        in wrong(endpoint.post(GOOD, "/v1/models"), 405, "unknown_url")["message"]
    )
    refused = wrong(endpoint.post(GOOD, "/v1/embeddings"), 404, "unknown_url")
    assert "has no embeddings" in refused["message"]
    wrong(endpoint.post(GOOD, PATH + "/"), 404, "unknown_url")


# --- values ---------------------------------------------------------------------------------------


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"messages": "Why?"}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": [{"content": "Why?"}]}, "messages[0]"),
        ({"messages": [*QUESTION, {"role": "tool", "content": "no id"}]}, "messages[1]"),
        (
            {"messages": [*QUESTION, {"role": "assistant", "tool_calls": [{"id": 1}]}]},
            "messages[1]",
        ),
        ({"messages": [*QUESTION, {"role": "user", "content": None}]}, "messages[1]"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, None),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0]"),
        ({"stream": "yes"}, "stream"),
        ({"stream": True, "stream_options": {"usage": True}}, "stream_options"),
        ({"temperature": "hot"}, "temperature"),
        ({"seed": 10**30}, "seed"),
        ({"stop": [""]}, None),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 10, "max_completion_tokens": 20}, "max_tokens"),
        ({"max_completion_tokens": 100_000}, "max_completion_tokens"),
        ({"tools": [None]}, None),
        ({"tools": TOOLS, "tool_choice": {"type": "custom", "custom": {}}}, "tool_choice"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": {}}}, "response_format"),
        ({"response_format": "json"}, "response_format"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"schema": {"type": "colour"}},
                }
            },
            None,
        ),
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
    ],
)
def test_a_wrong_value_is_named_with_advice(endpoint, options, param):
    response = endpoint.ask(**options)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param and "-> " in error["message"]
    assert "AAAA" not in error["message"], "an image would be all of the message"


def test_messages_that_are_not_a_list_are_refused_with_an_example(endpoint):
    error = endpoint.ask(messages="hi").json()["error"]
    shown = error["message"].partition("-> for example ")[2]
    assert endpoint.ask(messages=json.loads(shown)).status_code == 200


def test_a_client_does_not_choose_who_answers_or_how_they_agree(endpoint):
    wrong(endpoint.ask(model="gpt-5"), 404, "model_not_found")
    for name in (
        "members",
        "verifiers",
        "prior",
        "timeout",
        "trace",
        "segment_tokens",
        "max_waiting",
    ):
        error = wrong(endpoint.ask(**{name: ["/etc/passwd"]}), 400, "unknown_parameter")
        assert error["param"] == name
    for name, near in (("max_token", "max_tokens"), ("stops", "stop"), ("modality", None)):
        message = endpoint.ask(**{name: "low"}).json()["error"]["message"]
        assert ("did you mean" in message) == bool(near) and (not near or repr(near) in message)
    neutral = {
        "n": 1,
        "logprobs": False,
        "top_logprobs": None,
        "presence_penalty": 0,
        "frequency_penalty": 0.0,
    }
    ignored = {
        "logit_bias": {},
        "store": False,
        "user": "ann",
        "metadata": {"a": "b"},
        "seed": None,
        "tools": None,
    }
    assert endpoint.ask(**neutral, **ignored).status_code == 200


def test_limits_are_checked_and_the_smaller_budget_holds(serve):
    for bad in (
        {"max_waiting": -1},
        {"max_body_bytes": 1.5},
        {"timeout": float("nan")},
        {"at_once": 1},
    ):
        with pytest.raises(ValidationError, match=next(iter(bad))):
            Limits(**bad)
    answer = serve(ensemble(max_tokens=20), limits=Limits(max_answer_tokens=3)).ask().json()
    assert (answer["usage"]["completion_tokens"], answer["choices"][0]["finish_reason"]) == (
        3,
        "length",
    )


@pytest.mark.parametrize(
    ("options", "tokens"), [({}, 600), ({"lead": "a"}, 700), ({"max_tokens": 5}, 5)]
)
def test_without_max_tokens_a_lead_writes_as_much_as_the_endpoint_allows(serve, options, tokens):
    long = " ".join(map(str, range(700)))
    limits = Limits(max_answer_tokens=600 if not options else 4096)
    members = (long,) if not options else (long, BLUE)
    usage = serve(ensemble(*members, **options), limits=limits).ask().json()["usage"]
    assert usage["completion_tokens"] == tokens


# --- keys and names -------------------------------------------------------------------------------


def test_without_a_key_only_probes_are_served_and_unknown_hosts_get_nothing(serve):
    endpoint = serve(api_keys=["first", "söcond"])
    assert {httpx2.head(endpoint.url + path).status_code for path in ("/health", "/ready")} == {200}
    for path in ("/v1/models", "/v1/models/specfuse", "/metrics"):
        wrong(endpoint.get(path), 401, "invalid_api_key")
        for key in ("first", "söcond"):
            assert (
                endpoint.get(path, headers={"authorization": f"Bearer {key}".encode()}).status_code
                == 200
            )
    for header in ("", "Bearer", "Bearer firs", "Bearer first2", "Basic first", "first"):
        wrong(endpoint.post(GOOD, authorization=header), 401, "invalid_api_key")
    assert endpoint.post(GOOD, authorization="Bearer first").status_code == 200
    endpoint = serve(hosts=["127.0.0.1", "[::1]"])  # against DNS rebinding
    wrong(endpoint.post(GOOD, host="evil.example:80"), 403, "unknown_host")
    assert [endpoint.post(GOOD, host=host).status_code for host in ("127.0.0.1:1234", "[::1]")] == [
        200,
        200,
    ]


def test_a_key_is_in_no_metric_log_or_trace(serve, caplog):
    caplog.set_level(logging.DEBUG)
    key = "sk-canary-5b1c8e"
    with recorded() as (tracer, langsmith):
        endpoint = serve(ensemble(callbacks=[tracer]), api_keys=[key])
        bodies = ({**GOOD, "stream": True}, GOOD, {**GOOD, "temperature": -1})
        responses = [
            endpoint.post(body, authorization=f"Bearer {sent}")
            for sent in (key, key[:-1])
            for body in bodies
        ]
        assert [response.status_code for response in responses] == [200, 200, 400, 401, 401, 401]
        metrics = endpoint.get("/metrics", headers={"authorization": f"Bearer {key}"}).text
    assert "specfuse_answers_total" in metrics and BLUE[:20] in langsmith.told
    seen = [metrics, langsmith.told, caplog.text, *(response.text for response in responses)]
    assert not any("sk-canary" in text for text in seen)


# --- members --------------------------------------------------------------------------------------

SECRET = "the password is swordfish"


class Telling(ScriptedMember):
    """Raises an error that contains its question."""

    def draft(self, jobs):
        raise RuntimeError(f"no: {jobs[0].query.turns[-1].text}")


class Late(ScriptedMember):
    def draft(self, jobs):
        return [Failure("timeout", SECRET) for _ in jobs]


def test_no_word_of_a_question_is_logged_or_counted(serve, caplog, capfd):
    caplog.set_level(logging.INFO)
    endpoints = [
        serve(ensemble(member)) for member in (ScriptedMember(BLUE), Telling(BLUE), Late(BLUE))
    ]
    question = [{"role": "user", "content": SECRET}]
    responses = [endpoint.ask(messages=question) for endpoint in endpoints]
    responses += [endpoints[0].ask(**options) for options in ({"temperature": SECRET}, {SECRET: 1})]
    assert [response.status_code for response in responses] == [200, 500, 500, 400, 400]
    metrics = "".join(endpoint.get("/metrics").text for endpoint in endpoints)
    assert SECRET not in caplog.text + metrics + "".join(capfd.readouterr())
    assert SECRET not in responses[1].text + responses[2].text


def test_while_members_load_questions_are_refused_and_probes_answered(serve):
    go_on = threading.Event()

    class Heavy(ScriptedMember):
        def probe(self):
            assert go_on.wait(30)
            return super().probe()

    endpoint = serve(ensemble(Heavy(BLUE)), ready=False)
    assert [endpoint.get(path).status_code for path in ("/health", "/ready")] == [200, 503]
    response = endpoint.post(GOOD)
    wrong(response, 503, "loading")
    assert response.headers["retry-after"] == "5"
    go_on.set()
    assert until(lambda: endpoint.get("/ready").status_code == 200)
    assert endpoint.post(GOOD).status_code == 200


def test_a_member_that_leaves_is_counted_and_logged_and_the_others_finish(serve, caplog):
    caplog.set_level(logging.INFO)
    endpoint = serve(ensemble(Telling(BLUE, name="mute"), BLUE, BLUE))
    answer = endpoint.ask().json()
    assert answer["choices"][0]["message"]["content"] == BLUE
    assert answer["specfuse"]["exits"] == [{"member": "mute", "kind": "error", "round": 1}]
    assert endpoint.counted("specfuse_exits_total", 1, member="mute", kind="error")
    assert "mute left an answer (error, RuntimeError); the other members continue" in caplog.text


def test_a_lead_that_could_not_be_loaded_before_the_first_question_is_counted_once(serve):
    class Unloadable(ScriptedMember):
        def probe(self):
            raise RuntimeError("out of memory")

    endpoint = serve(ensemble(Unloadable(BLUE, name="big"), ScriptedMember(BLUE), lead="big"))
    for _ in range(2):
        assert endpoint.ask().json()["choices"][0]["message"]["content"] == BLUE
    assert endpoint.counted("specfuse_exits_total", 1, member="big", kind="error")
