"""LangChain's retries and fallbacks understand the error of a failed answer."""

from __future__ import annotations

import copy
import json
import pickle
import threading
import traceback
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import ModelRetryMiddleware
from langchain_anthropic import ChatAnthropic
from langchain_core import exceptions as langchain
from langchain_core.exceptions import ModelError
from langchain_core.language_models import BaseChatModel
from langchain_core.outputs import ChatResult
from langchain_core.tools import tool
from langchain_mistralai import ChatMistralAI
from langchain_openai import ChatOpenAI

from langchain_specfuse import (
    ChatModelMember,
    CheckError,
    EnsembleError,
    MemberError,
    Method,
    ScriptedMember,
    ServerMember,
    SpecFuseChatModel,
    SpecFuseError,
    UsageError,
)
from langchain_specfuse.members.server import client
from tests.members.failing_server import FailingServer as CuttingServer
from tests.members.fake_provider import Call, FakeProvider, Kind, Reply

from .conftest import BLUE, FailingMember, asked

ANSWERING = ["invoke", "ainvoke", "stream", "astream", "batch"]


class StatusError(Exception):
    """An error with a status, as the clients of OpenAI, Anthropic, Ollama and others raise it."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the provider answered {status}")
        self.status_code = status


class ResponseError(Exception):
    """An error as httpx and requests raise it."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the provider answered {status}")
        self.response = type("Response", (), {"status_code": status})()


class APITimeoutError(Exception):
    """OpenAI's timeout is a connection error too."""


class ConnectError(Exception):
    pass


class ProviderLimitError(StatusError, langchain.ModelRateLimitError):
    """LangChain's integrations raise such classes."""


class Raising(BaseChatModel):
    """A chat model whose provider fails."""

    error: Any
    asked: int = 0

    @property
    def _llm_type(self) -> str:
        return "raising"

    def _generate(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        self.asked += 1
        raise self.error


class Unloadable(ScriptedMember):
    """Fails to load with the given error."""

    def __init__(self, error: Exception) -> None:
        super().__init__(BLUE, name="unloadable")
        self.error, self.loads = error, 0

    def probe(self) -> Any:
        self.loads += 1
        raise self.error


def failing(*errors: Exception) -> SpecFuseChatModel:
    members = [
        ChatModelMember(Raising(error=error), name=f"m{at}") for at, error in enumerate(errors)
    ]
    return SpecFuseChatModel(members=members)


@pytest.mark.parametrize(
    ("error", "known", "retryable"),
    [
        (StatusError(400), "ModelInvalidRequestError", False),
        (StatusError(422), "ModelInvalidRequestError", False),
        (StatusError(401), "ModelAuthenticationError", False),
        (StatusError(403), "ModelPermissionDeniedError", False),
        (StatusError(404), "ModelNotFoundError", False),
        (StatusError(413), "ContextOverflowError", False),
        (StatusError(429), "ModelRateLimitError", True),
        (StatusError(500), "ModelAPIError", True),
        (StatusError(529), "ModelAPIError", True),
        (ResponseError(401), "ModelAuthenticationError", False),
        (ResponseError(503), "ModelAPIError", True),
        (ProviderLimitError(429), "ModelRateLimitError", True),
        (langchain.ContextOverflowError("too long"), "ContextOverflowError", False),
        (APITimeoutError("too late"), "ModelTimeoutError", True),
        (TimeoutError("too late"), "ModelTimeoutError", True),
        (ConnectError("refused"), "ModelConnectionError", True),
        (ConnectionResetError("cut"), "ModelConnectionError", True),
    ],
    ids=lambda value: str(value) if isinstance(value, Exception) else None,
)
@pytest.mark.parametrize("count", [1, 2])
def test_a_failure_of_all_members_has_langchains_class_for_it(
    error: Exception, known: str, retryable: bool, count: int
) -> None:
    with pytest.raises(EnsembleError) as raised:
        failing(*[error] * count).invoke("Why?")
    assert isinstance(raised.value, getattr(langchain, known))
    assert raised.value.is_retryable is retryable
    assert raised.value.__cause__ is error
    assert [failure.member for failure in raised.value.failures] == ["m0", "m1"][:count]
    assert str(error) in str(raised.value)
    assert any(note.startswith("-> ") for note in raised.value.notes)


@pytest.mark.parametrize("way", ANSWERING)
async def test_every_way_of_asking_raises_langchains_class(way: str) -> None:
    with pytest.raises(EnsembleError) as raised:
        await asked(failing(StatusError(401), StatusError(401)), way)
    assert isinstance(raised.value, langchain.ModelAuthenticationError)


@pytest.mark.parametrize(
    ("errors", "retryable"),
    [
        ([StatusError(401), StatusError(400)], False),
        ([StatusError(401), StatusError(429)], True),
        ([StatusError(400), ConnectError("refused"), StatusError(404)], True),
        # LangChain retries errors that it has no class for
        ([StatusError(401), RuntimeError("broken")], True),
        ([RuntimeError("broken")], True),
    ],
)
def test_different_failures_can_be_retried_if_one_of_them_can(
    errors: list[Exception], retryable: bool
) -> None:
    with pytest.raises(EnsembleError) as raised:
        failing(*errors).invoke("Why?")
    assert isinstance(raised.value, ModelError)
    assert raised.value.is_retryable is retryable
    specific = [langchain.ModelAuthenticationError, langchain.ModelRateLimitError]
    assert not isinstance(raised.value, tuple(specific))


def test_the_providers_own_retry_hint_is_used() -> None:
    class Overloaded(ModelError):
        is_retryable = True

    for error, retryable in [(Overloaded("later"), True), (ModelError("never"), False)]:
        with pytest.raises(EnsembleError) as raised:
            failing(error).invoke("Why?")
        assert isinstance(raised.value, ModelError)
        assert raised.value.is_retryable is retryable


@pytest.mark.parametrize(
    ("kind", "known"),
    [
        ("timeout", langchain.ModelTimeoutError),
        ("overflow", langchain.ContextOverflowError),
        ("not_found", langchain.ModelNotFoundError),
        ("error", ModelError),
        ("nan", ModelError),
    ],
)
def test_members_on_this_machine_fail_with_langchains_classes(
    kind: str, known: type[ModelError]
) -> None:
    llm = SpecFuseChatModel(members=[FailingMember(kind, name="a"), FailingMember(kind, name="b")])
    with pytest.raises(EnsembleError) as raised:
        llm.invoke("Why?")
    assert isinstance(raised.value, known)
    good = SpecFuseChatModel(members=[ScriptedMember(BLUE, name="good")])
    assert llm.with_fallbacks([good], exceptions_to_handle=(ModelError,)).invoke("?").text == BLUE


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
async def test_a_member_that_cannot_be_loaded_fails_with_langchains_class(way: str) -> None:
    with pytest.raises(MemberError) as raised:
        await asked(SpecFuseChatModel(members=[Unloadable(StatusError(401))]), way)
    assert isinstance(raised.value, langchain.ModelAuthenticationError)
    assert isinstance(raised.value.__cause__, StatusError)
    member = Unloadable(MemberError("no such model", member="x", kind="not_found"))
    with pytest.raises(MemberError) as raised:
        await asked(SpecFuseChatModel(members=[member]), way)
    assert isinstance(raised.value, langchain.ModelNotFoundError)
    assert (raised.value.member, raised.value.kind) == ("x", "not_found")


def test_the_error_can_be_copied_and_pickled() -> None:
    for llm in (
        failing(StatusError(429)),
        failing(StatusError(401), StatusError(429)),
        SpecFuseChatModel(members=[Unloadable(StatusError(400))]),
    ):
        with pytest.raises(SpecFuseError) as raised:
            llm.invoke("Why?")
        for twin in (copy.copy(raised.value), pickle.loads(pickle.dumps(raised.value))):
            assert type(twin) is type(raised.value)
            assert twin.is_retryable is raised.value.is_retryable
            assert str(twin) == str(raised.value)
            assert twin.notes == raised.value.notes
            assert len(getattr(twin, "failures", ())) == len(getattr(raised.value, "failures", ()))


# --- LangChain's middleware -----------------------------------------------------------------------


class FailingServer:
    """A server that answers every request with one status and one text."""

    def __init__(self, status: int, text: str | None = None) -> None:
        self.asked: list[str] = []
        server = self

        class Answering(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                server.asked.append(self.path)
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                refused = json.dumps({"error": {"message": f"refused with {status}"}})
                body = (refused if text is None else text).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST

            def log_message(self, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
        threading.Thread(target=self._server.serve_forever, args=(0.005,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def failing_server(request: pytest.FixtureRequest) -> Iterator[FailingServer]:
    server = FailingServer(request.param)
    yield server
    server.stop()


def agent(llm: Any) -> Any:
    retry = ModelRetryMiddleware(
        max_retries=3, initial_delay=0.0, backoff_factor=0.0, jitter=False, on_failure="error"
    )
    return create_agent(llm, tools=[], middleware=[retry])


def ask(agent: Any, question: str = "Why?") -> Any:
    return agent.invoke({"messages": [("human", question)]})


@pytest.mark.parametrize(
    ("failing_server", "requests"),
    [(401, 1), (400, 1), (403, 1), (429, 4), (503, 4)],
    indirect=["failing_server"],
)
async def test_an_agent_retries_a_hosted_member_only_where_that_can_help(
    failing_server: FailingServer, requests: int
) -> None:
    chat = pytest.importorskip("langchain_openai").ChatOpenAI(
        model="m", base_url=failing_server.url, api_key="none", max_retries=0
    )
    executor = agent(SpecFuseChatModel(members=[chat]))
    with pytest.raises(EnsembleError):
        ask(executor)
    assert len(failing_server.asked) == requests
    with pytest.raises(EnsembleError):
        await executor.ainvoke({"messages": [("human", "Why?")]})
    assert len(failing_server.asked) == 2 * requests


@pytest.mark.parametrize(
    ("failing_server", "kind", "advice"),
    [
        (401, "denied", "OPENAI_API_KEY"),
        (403, "denied", "account"),
        (404, "not_found", "model's name"),
        (413, "overflow", "shorten"),
        (422, "bad_request", "settings"),
        (429, "error", "wait"),
        (503, "error", "server failed"),
    ],
    indirect=["failing_server"],
)
@pytest.mark.parametrize("count", [1, 2])
def test_the_advice_fits_the_response_of_the_provider(
    failing_server: FailingServer, kind: str, advice: str, count: int
) -> None:
    chat = pytest.importorskip("langchain_openai").ChatOpenAI(
        model="m", base_url=failing_server.url, api_key="none", max_retries=0
    )
    members = [ChatModelMember(chat, name=f"m{at}") for at in range(count)]
    with pytest.raises(EnsembleError) as raised:
        SpecFuseChatModel(members=members).invoke("Why?")
    assert f"m0 ({kind}): " in str(raised.value)
    assert {failure.kind for failure in raised.value.failures} == {kind}
    (note,) = raised.value.notes
    assert advice in note and "one by one" not in note


def test_the_advice_names_the_members_that_failed_differently() -> None:
    with pytest.raises(EnsembleError) as raised:
        failing(StatusError(403), StatusError(429)).invoke("Why?")
    first, second = raised.value.notes
    assert first.startswith("-> m0: ") and "account" in first
    assert second.startswith("-> m1: ") and "wait" in second


@pytest.mark.parametrize("count", [1, 2])
def test_the_advice_to_try_members_one_by_one_needs_several_members(count: int) -> None:
    with pytest.raises(EnsembleError) as raised:
        failing(*[RuntimeError("boom")] * count).invoke("Why?")
    (note,) = raised.value.notes
    assert ("one by one" in note) is (count > 1) and ".failures" in note


@pytest.mark.parametrize(
    ("failing_server", "attempts", "known"),
    [
        (401, 1, langchain.ModelAuthenticationError),
        (400, 1, langchain.ModelInvalidRequestError),
        (429, 4, langchain.ModelRateLimitError),
        (500, 4, langchain.ModelAPIError),
    ],
    indirect=["failing_server"],
)
def test_an_agent_retries_a_server_only_where_that_can_help(
    failing_server: FailingServer,
    attempts: int,
    known: type[ModelError],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client, "RETRIES", 0)
    llm = SpecFuseChatModel(members=[ServerMember(failing_server.url, "m", name="served")])
    with pytest.raises(MemberError) as raised:
        llm.invoke("Why?")
    assert isinstance(raised.value, known)
    once = len(failing_server.asked)
    with pytest.raises(MemberError):
        ask(agent(llm))
    assert len(failing_server.asked) == once * (1 + attempts)


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (404, None),
        (404, "<html>No such page.</html>"),
        (200, "<html>Welcome!</html>"),
        (200, '{"hello": "world"}'),
        (200, '"hello"'),
        (200, '["hello"]'),
        (200, "null"),
    ],
)
@pytest.mark.parametrize("model", ["", "#m"], ids=["any model", "a model"])
def test_an_address_without_a_model_server_is_not_tried_again(
    status: int, text: str | None, model: str
) -> None:
    server = FailingServer(status, text)
    try:
        with pytest.raises(MemberError) as raised:
            SpecFuseChatModel(members=[server.url + model]).invoke("Why?")
    finally:
        server.stop()
    assert isinstance(raised.value, langchain.ModelNotFoundError)
    assert raised.value.is_retryable is False and raised.value.kind == "not_found"
    assert server.url in str(raised.value)
    assert "-> " in "".join(raised.value.notes)


def test_a_server_that_cannot_be_reached_is_langchains_connection_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client, "RETRIES", 0)
    stopped = FailingServer(500)
    stopped.stop()
    llm = SpecFuseChatModel(members=[ServerMember(stopped.url, "m", name="served")])
    with pytest.raises(MemberError) as raised:
        llm.invoke("Why?")
    assert isinstance(raised.value, langchain.ModelConnectionError)
    good = SpecFuseChatModel(members=[ScriptedMember(BLUE, name="good")])
    assert llm.with_fallbacks([good], exceptions_to_handle=(ModelError,)).invoke("?").text == BLUE


def test_the_error_of_a_reply_that_was_cut_says_how_much_had_come() -> None:
    """OpenAI's client has one error for a connection that breaks and for none at all. Failover Bench
    (S08) found that a stream cut after 40 words was said to come from a server out of reach."""
    server = CuttingServer("a", fails_after=3)
    model = ChatOpenAI(model="m", base_url=server.url, api_key="none", max_retries=0)
    try:
        with pytest.raises(EnsembleError, match=r"broke off after \d+ characters \(") as raised:
            list(SpecFuseChatModel(members=[model]).stream("Count."))
    finally:
        server.stop()
    told = str(raised.value)
    assert "cannot be reached" not in told and "start the server" not in told
    assert isinstance(raised.value, langchain.ModelConnectionError)


@pytest.mark.parametrize(
    ("kind", "broken", "reason"),
    [
        ("openai", {"cut": 1}, "its reply broke off before its first word"),
        ("openai", {"cut": 3}, "its reply broke off in the middle of a tool call"),
        ("anthropic", {"cut": 4}, "its reply broke off in the middle of a tool call"),
        ("mistral", {"cut": 0}, "closed the connection before its reply"),
        ("anthropic", {"cut": 0}, "closed the connection before its reply"),
        ("openai", {"cut": 0}, "closed the connection before its reply"),
        ("openai", {"cut": 0, "is_reset": True}, "closed the connection before its reply"),
    ],
)
def test_the_error_of_a_broken_connection_does_not_say_that_there_was_none(
    kind: Kind, broken: dict[str, Any], reason: str
) -> None:
    """OpenAI's and Anthropic's clients have one error for both. A user whose provider broke off in a
    call was told to start its server."""
    server = FakeProvider(kind, Reply([Call("find", ('{"city": ', '"Paris"}'))], **broken))
    model: Any = ChatOpenAI(model="m", base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    if kind == "anthropic":
        model = ChatAnthropic(model="m", base_url=server.url, api_key="none", max_retries=0)
    elif kind == "mistral":
        model = ChatMistralAI(model="m", endpoint=f"{server.url}/v1", api_key="none", max_retries=1)

    @tool
    def find(city: str) -> str:
        """Find it."""
        return city

    llm = SpecFuseChatModel(members=[model])
    try:
        with pytest.raises(EnsembleError, match=reason) as raised:
            llm.bind_tools([find]).invoke("Where?")
    finally:
        server.stop()
    assert "cannot be reached" not in str(raised.value)
    assert "start the server" not in str(raised.value)
    assert isinstance(raised.value, langchain.ModelConnectionError)


def test_a_vote_without_a_server_that_is_down_says_how_to_go_on_without_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client, "RETRIES", 0)
    stopped = FailingServer(500)
    stopped.stop()
    other = ScriptedMember(BLUE, name="other")
    members = [ServerMember(stopped.url, "m", name="served"), other]
    llm = SpecFuseChatModel(members=members, lead=None)
    for _ in range(2):  # the advice is not repeated
        with pytest.raises(MemberError, match="cannot be reached") as raised:
            llm.invoke("Why?")
        assert isinstance(raised.value, langchain.ModelConnectionError)
        assert raised.value.member == "served" and stopped.url in str(raised.value)
        start, go_on = raised.value.notes
        assert "start the server" in start
        assert "without served, leave it out" in go_on and "lead='other'" in go_on
    assert SpecFuseChatModel(members=[other], lead=None).invoke("Why?").text == BLUE
    assert llm.invoke("Why?", lead="other").text == BLUE
    # no lead helps where whole answers are compared
    with pytest.raises(MemberError) as raised:
        llm.invoke("Why?", method=Method(segment="answer", result="text"))
    assert "leave it out" in raised.value.notes[-1]
    assert "lead=" not in raised.value.notes[-1]


async def test_an_invalid_call_is_not_retried() -> None:
    """This covers calls with invalid options and calls with invalid messages."""
    tries: list[int] = []

    def content(*args: Any) -> str:
        tries.append(1)
        return BLUE

    llm = SpecFuseChatModel(members=[ScriptedMember(content, name="a")])
    for wrong in (llm.bind(temperature=-1), llm.bind(regex="[")):
        for way in ("invoke", "ainvoke", "stream"):
            with pytest.raises(UsageError) as raised:
                await asked(wrong, way)
            assert isinstance(raised.value, langchain.ModelInvalidRequestError)
            assert not raised.value.is_retryable
            assert pickle.loads(pickle.dumps(raised.value)).notes == raised.value.notes
    with pytest.raises(UsageError) as raised:
        llm.bind_tools([{"name": "t", "parameters": {"type": "nonsense"}}])
    assert isinstance(raised.value, langchain.ModelInvalidRequestError)


@pytest.mark.parametrize(
    ("options", "message", "advice"),
    [
        ({"regex": "("}, "the pattern '(' cannot be read: unclosed group", "correct the pattern"),
        ({"regex": "a/(?=b)"}, "the pattern 'a/(?=b)' cannot be read: look-around", "correct"),
        ({"grammar": "root := a"}, "the grammar cannot be read", 'root ::= "yes" | "no"'),
    ],
)
def test_an_invalid_pattern_is_quoted_as_written_in_one_sentence(
    options: Any, message: str, advice: str
) -> None:
    llm = SpecFuseChatModel(members=[ScriptedMember("yes", name="a")])
    with pytest.raises(UsageError) as raised:
        llm.invoke("?", **options)
    assert raised.value.message.startswith(message) and "\n" not in raised.value.message
    assert advice in raised.value.notes[0]


def test_an_agent_does_not_retry_an_invalid_call() -> None:
    class Counting(SpecFuseChatModel):
        calls: int = 0

        def _stream(self, *args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            return super()._stream(*args, **kwargs)

    llm = Counting(members=[ScriptedMember(BLUE, name="a")])
    picture = {"type": "image", "url": "https://example.com/cat.png"}
    with pytest.raises(UsageError):
        agent(llm).invoke({"messages": [{"role": "user", "content": [picture]}]})
    assert llm.calls == 1


# --- checks that fail -----------------------------------------------------------------------------


def no_blue(text: str) -> str | None:
    return "mentions blue" if "blue" in text else None


def breaks(text: str) -> None:
    raise LookupError("the list is empty")


def checked(*checks: Any) -> SpecFuseChatModel:
    return SpecFuseChatModel(members=[ScriptedMember(BLUE, name="a")], checks=list(checks))


@pytest.mark.parametrize("way", ANSWERING)
async def test_a_check_that_no_text_passes_is_langchains_error_and_not_retryable(way: str) -> None:
    with pytest.raises(CheckError) as raised:
        await asked(checked(no_blue), way)
    error = raised.value
    assert isinstance(error, ModelError) and error.is_retryable is False
    assert (error.check, error.reason) == ("no_blue", "mentions blue")
    assert "blue" not in error.text and BLUE.startswith(error.text)
    assert "no_blue" in str(error) and "mentions blue" in str(error)
    assert error.__cause__ is None
    assert any(note.startswith("-> ") for note in error.notes)


@pytest.mark.parametrize("way", ANSWERING)
@pytest.mark.parametrize("on_failure", ["raise", "end"])
async def test_a_check_that_raises_is_named_with_its_exception(way: str, on_failure: str) -> None:
    with pytest.raises(CheckError) as raised:
        await asked(checked(breaks).model_copy(update={"on_failure": on_failure}), way)
    error = raised.value
    assert isinstance(error, ModelError) and error.is_retryable is False
    assert (error.check, error.text) == ("breaks", "")
    assert error.reason == "raised LookupError: the list is empty"
    assert isinstance(error.__cause__, LookupError)


def test_the_cause_is_what_the_check_raised_also_if_that_is_an_error_of_this_package() -> None:
    def judge(text: str) -> str | None:
        return failing(StatusError(401)).invoke(text).text

    with pytest.raises(CheckError) as raised:
        checked(judge).invoke("Why?")
    assert isinstance(raised.value.__cause__, EnsembleError)
    assert isinstance(raised.value.__cause__.__cause__, StatusError)


def test_the_error_of_a_check_can_be_copied_and_pickled() -> None:
    for llm in (checked(no_blue), checked(breaks)):
        with pytest.raises(CheckError) as raised:
            llm.invoke("Why?")
        for twin in (copy.copy(raised.value), pickle.loads(pickle.dumps(raised.value))):
            assert type(twin) is type(raised.value)
            assert vars(twin) == vars(raised.value)
            assert str(twin) == str(raised.value)


def test_an_agent_asks_once_if_no_text_passes_a_check() -> None:
    answers: list[int] = []

    def script(query: Any) -> str:
        answers.append(1)
        return BLUE

    llm = SpecFuseChatModel(members=[ScriptedMember(script, name="a")], checks=[no_blue])
    with pytest.raises(CheckError):
        llm.invoke("Why?")
    once = len(answers)
    with pytest.raises(CheckError):
        ask(agent(llm))
    assert len(answers) == 2 * once


def test_fallbacks_take_over_where_they_are_told_to() -> None:
    good = SpecFuseChatModel(members=[ScriptedMember("Grey.", name="good")])
    for handled in ((CheckError,), (ModelError,), (Exception,)):
        llm = checked(no_blue).with_fallbacks([good], exceptions_to_handle=handled)
        assert llm.invoke("?").text == "Grey."
    with pytest.raises(CheckError):
        checked(no_blue).with_fallbacks([good], exceptions_to_handle=(EnsembleError,)).invoke("?")


def test_the_advice_is_part_of_the_text_and_is_shown_once() -> None:
    """Most logs, and LangSmith, show ``str(error)`` alone."""
    llm = SpecFuseChatModel(members=[ScriptedMember("The sky is blue.")], checks=[lambda _: "no"])
    with pytest.raises(CheckError) as raised:
        llm.invoke("?")
    error = raised.value
    shown = "".join(traceback.format_exception(error))
    advice = "-> raise redrafts="
    assert str(error).startswith(error.message) and "\n".join(error.notes) in str(error)
    assert advice in str(error) and shown.count(advice) == 1
    assert "langchain_specfuse.chat.errors.CheckError: no text passed" in shown
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    error.add_note("seen in production")
    assert str(error).endswith("\nseen in production")


def test_the_reasons_in_a_message_have_no_advice() -> None:
    """The advice of all failures follows the message, each once."""
    with pytest.raises(EnsembleError) as raised:
        failing(StatusError(401), StatusError(401)).invoke("?")
    assert "->" not in raised.value.message and str(raised.value).count("-> check") == 1
