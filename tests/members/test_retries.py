"""A chat model that leads before a reserve is asked once more where that may help, and nobody asks
it behind our back. The faults are those of Failover Bench
(https://github.com/failoverbench/failoverbench, scenarios/catalogue.yaml).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from langchain_core.exceptions import ModelRefusalError
from langchain_core.language_models import BaseChatModel
from langchain_core.rate_limiters import InMemoryRateLimiter
from langchain_openai import ChatOpenAI

from langchain_specfuse import EnsembleError, Method, ScriptedMember, SpecFuseChatModel
from langchain_specfuse.members.chat_model import retries, settings
from tests import late
from tests.methods import in_method

from .failing_server import FailingServer
from .fake_provider import FakeProvider, Kind, Reply, Text
from .test_native import KINDS, Weather, answered, chat_model

WAYS = ["invoke", "astream"]
SOON_S = 20.0
"""Less than any wait that a provider asks for here, and more than a machine pauses."""
FINE = Reply([Text("From ", "the lead.")])
OURS = {"max_retries": 2}
"""The clients of OpenAI and Anthropic send two more requests by themselves by default."""


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[Kind, list[FakeProvider]]]:
    made = {kind: [FakeProvider(kind) for _ in range(2)] for kind in KINDS}
    yield made
    for pair in made.values():
        for server in pair:
            server.stop()


class Pair:
    """A lead with a reserve."""

    def __init__(self, kind: Kind, servers: Any, *replies: Reply, **options: Any) -> None:
        self.lead, self.reserve = servers[kind]
        self.lead.begin(*replies)
        self.reserve.begin(Reply([Text("From ", "the reserve.")]))
        self.models: list[BaseChatModel] = [
            chat_model(kind, server.url, **({} if kind == "mistral" else OURS))
            for server in servers[kind]
        ]
        self.llm = SpecFuseChatModel(members=self.models, **in_method(**options))

    async def ask(self, way: str) -> Any:
        return await answered(self.llm, "Why?", way)

    @property
    def asked(self) -> tuple[int, int]:
        """The requests that each of them got."""
        return len(self.lead.asked), len(self.reserve.asked)


ONCE = {
    "500 (S03)": Reply(status=500),
    "overloaded (Anthropic)": Reply(status=529),
    "unavailable for a moment": Reply(status=503, retry_after="0.05"),
    "limited (S01)": Reply(status=429, retry_after="0.05"),
    "reset (S05)": Reply(cut=0, is_reset=True),
    "closed, as an idle connection is": Reply(cut=0),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fault", ONCE)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_failure_that_passes_is_answered_by_the_lead(
    servers: Any, kind: Kind, fault: str, way: str
) -> None:
    pair = Pair(kind, servers, ONCE[fault], FINE)
    found = await pair.ask(way)
    assert found.text == "From the lead." and pair.asked == (2, 0)
    assert pair.lead.asked[0] == pair.lead.asked[1]
    about = found.response_metadata["specfuse"]
    assert about["exits"] == []
    assert [used["requests"] for used in about["usage"].values()] == [2]


GONE: dict[str, tuple[Reply, int]] = {
    "500": (Reply(status=500), 2),
    "503 (S04)": (Reply(status=503), 2),
    "reset": (Reply(cut=0, is_reset=True), 2),
    "limited": (Reply(status=429, retry_after="0.05"), 2),
    "limited, without a word on how long (S02)": (Reply(status=429), 1),
    "limited for a minute": (Reply(status=429, retry_after="60"), 1),
    "limited until a date": (Reply(status=429, retry_after="Sat, 28 Nov 2026 20:00:00 GMT"), 1),
    "down for a minute": (Reply(status=503, retry_after="60"), 1),
    "a wrong key": (Reply(status=401), 1),
    "forbidden": (Reply(status=403), 1),
    "no such model": (Reply(status=404), 1),
    "a wrong request": (Reply(status=400), 1),
    "too long (S12)": (Reply(status=400, code="context_length_exceeded"), 1),
    "cut after its first event": (Reply([Text("From the lead.")], cut=1), 1),
}


@pytest.mark.parametrize("fault", GONE)
@pytest.mark.parametrize("kind", KINDS)
async def test_the_reserve_answers_after_two_requests_at_most(
    servers: Any, kind: Kind, fault: str
) -> None:
    reply, requests = GONE[fault]
    pair = Pair(kind, servers, reply)
    since = time.monotonic()
    found = await pair.ask("astream")
    assert found.text == "From the reserve." and time.monotonic() - since < SOON_S
    assert pair.asked == (requests, 1)
    (gone,) = found.response_metadata["specfuse"]["exits"]
    assert gone["round"] == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_a_request_that_the_provider_refuses_says_nothing_about_the_next(
    servers: Any, kind: Kind
) -> None:
    """One user's picture that cannot be read (400) left the reserve to all users for 10 s."""
    pair = Pair(kind, servers, Reply(status=400), FINE)
    (gone,) = (await pair.ask("invoke")).response_metadata["specfuse"]["exits"]
    assert gone["kind"] == "bad_request"
    assert (await pair.ask("invoke")).text == "From the lead."


@pytest.mark.parametrize("by", ["us", "its client"])
def test_a_silent_lead_is_not_asked_again(monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    """S06, S07: nothing comes, by our limit or by the client's own."""
    monkeypatch.setattr(settings, "SILENCE_S", 0.3 if by == "us" else 30)
    server = FailingServer("a", fails_after=0, how="hang")
    timeout = 0.3 if by == "its client" else None
    lead = ChatOpenAI(model="m", base_url=server.url, api_key="none", timeout=timeout)
    llm = SpecFuseChatModel(members=[lead, ScriptedMember("From the reserve.")])
    since = time.monotonic()
    found = llm.invoke("Why?")
    server.stop()
    assert found.text == "From the reserve." and time.monotonic() - since < SOON_S
    assert len(server.asked) == 1
    (gone,) = found.response_metadata["specfuse"]["exits"]
    assert gone["kind"] == "timeout"


@pytest.mark.parametrize("code", ["content_filter", "content_policy_violation"])
@pytest.mark.parametrize("kind", ["openai", "responses"])
async def test_the_refusal_of_a_provider_is_the_error_of_the_answer(
    servers: Any, kind: Kind, code: str
) -> None:
    """S13. Azure OpenAI sends the first code, OpenAI the second."""
    pair = Pair(kind, servers, Reply(status=400, code=code))
    for way in WAYS:
        with pytest.raises(ModelRefusalError, match=r"gpt-4\.1: .*not now") as raised:
            await pair.ask(way)
        assert isinstance(raised.value, EnsembleError) and not raised.value.is_retryable
        cause = raised.value.__cause__
        assert isinstance(cause, openai.BadRequestError) and cause.code == code
    with pytest.raises(ModelRefusalError):
        pair.llm.with_structured_output(Weather).invoke("Why?")
    assert pair.asked == (3, 0)
    found = await answered(pair.llm.bind(method=Method(refusals="ignore")), "Why?", "invoke")
    assert found.text == "From the reserve." and pair.asked == (4, 1)


async def test_a_lead_is_asked_again_when_its_provider_says(servers: Any) -> None:
    pair = Pair("openai", servers, Reply(status=429, retry_after="1"), FINE)
    since = time.monotonic()
    assert (await pair.ask("invoke")).text == "From the lead."
    assert 1 <= time.monotonic() - since < SOON_S


async def test_a_lead_that_is_waited_for_is_given_up_at_its_time_limit(
    servers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "LONGEST_S", 60.0)
    pair = Pair("openai", servers, Reply(status=429, retry_after="60"), FINE, member_timeout=0.3)
    since = time.monotonic()
    with late.only_where(lambda name: name == "gpt-4.1" and pair.lead.asked):
        assert (await pair.ask("invoke")).text == "From the reserve."
    assert time.monotonic() - since < SOON_S and pair.asked == (1, 1)


@pytest.mark.parametrize(("most", "requests"), [(1, 1), (2, 2)])
async def test_further_requests_count_for_max_calls(servers: Any, most: int, requests: int) -> None:
    pair = Pair("openai", servers, Reply(status=500), FINE, max_calls=most)
    found = await pair.ask("invoke")
    assert found.text == ("From the lead." if most == 2 else "From the reserve.")
    assert pair.asked[0] == requests


@pytest.mark.parametrize("kind", ["openai", "responses", "anthropic"])
async def test_without_a_reserve_the_client_asks_as_often_as_it_does_alone(
    servers: Any, kind: Kind
) -> None:
    pair = Pair(kind, servers, Reply(status=503, retry_after="0.01"))
    alone = SpecFuseChatModel(members=pair.models[:1])
    with pytest.raises(EnsembleError):
        alone.invoke("Why?")
    assert pair.asked == (3, 0)


@pytest.mark.parametrize("kind", ["openai", "responses", "anthropic"])
async def test_the_chat_model_of_the_user_stays_as_it_is(servers: Any, kind: Kind) -> None:
    """A client without retries shares its connections."""
    pair = Pair(kind, servers, FINE)
    model: Any = pair.models[0]
    once: Any = retries.asked_once(model)
    client, own = [getattr(each, "root_client", None) or each._client for each in (once, model)]
    assert (client.max_retries, own.max_retries) == (0, 2)
    assert client._client is own._client
    assert once.model_copy(update={"streaming": True}).invoke("Why?").text == "From the lead."


def test_a_lead_that_waits_for_its_rate_limiter_is_not_silent(
    servers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With LangChain's example of a limiter, a request waits for up to 10 s
    (https://docs.langchain.com/oss/python/langchain/models#rate-limiting)."""
    monkeypatch.setattr(settings, "SILENCE_S", 0.3)
    server = servers["openai"][0]
    server.begin(Reply([Text("From the lead.")]))
    limiter = InMemoryRateLimiter(requests_per_second=1, check_every_n_seconds=0.05)
    lead = chat_model("openai", server.url, rate_limiter=limiter)
    llm = SpecFuseChatModel(members=[lead, ScriptedMember("From the reserve.")])
    since = time.monotonic()
    with late.only_where(lambda name: not server.asked):
        assert llm.invoke("Why?").text == "From the lead."
    assert time.monotonic() - since > 0.5
