"""Usage and cost of an answer with hosted members, in LangChain's terms."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import SummarizationMiddleware
from langchain_core.caches import InMemoryCache
from langchain_core.callbacks import UsageMetadataCallbackHandler
from langchain_core.language_models import BaseChatModel
from langchain_core.language_models.chat_models import generate_from_stream
from langchain_core.messages import AIMessageChunk
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGenerationChunk, ChatResult

from langchain_specfuse import ChatModelMember, ScriptedMember, SpecFuseChatModel
from tests.methods import in_method

from .conftest import BLUE, WIDE, asked, joined

SENT = 40
"""Tokens of each request to a counting model."""


class Counting(BaseChatModel):
    """A hosted chat model that continues its script, votes for A, and counts the tokens it reads
    and writes. It reports the usage of each word in its own chunk."""

    script: str = BLUE
    label: str = "counting"
    requests: int = 0
    written: int = 0
    reports: bool = True

    @property
    def _llm_type(self) -> str:
        return "counting"

    def _get_ls_params(self, stop: Any = None, **kwargs: Any) -> Any:
        return {**super()._get_ls_params(stop, **kwargs), "ls_model_name": self.label}

    def _said(self, messages: Any) -> str:
        last = messages[-1]
        if last.type != "ai":
            return "A" if "Reply with its letter" in last.text else self.script
        if last.text.endswith("seven,"):
            return " six, five"
        at = len(last.text.split())
        return " " + " ".join(self.script.split()[at:])

    def _stream(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> Iterator[ChatGenerationChunk]:
        self.requests += 1
        yield self._chunk("", SENT, 0)
        for at, word in enumerate(self._said(messages).split(" ")):
            if word:
                self.written += 1
                yield self._chunk(f" {word}" if at else word, 0, 1)

    def _chunk(self, text: str, sent: int, written: int) -> ChatGenerationChunk:
        usage = UsageMetadata(input_tokens=sent, output_tokens=written, total_tokens=sent + written)
        message = AIMessageChunk(text, usage_metadata=usage if self.reports else None)
        return ChatGenerationChunk(message=message)

    def _generate(self, *args: Any, **kwargs: Any) -> ChatResult:
        return generate_from_stream(self._stream(*args, **kwargs))


def counting(**fields: Any) -> tuple[Counting, Counting]:
    """Return two models that disagree about one word."""
    return Counting(label="a", **fields), Counting(label="b", script=WIDE, **fields)


def ensemble(*members: Any, **options: Any) -> SpecFuseChatModel:
    return SpecFuseChatModel(
        **in_method(members=list(members), segment_tokens=4, lead=None, **options)
    )


WAYS = ["invoke", "ainvoke", "stream", "astream", "batch"]


@pytest.mark.parametrize("way", WAYS)
async def test_usage_counts_everything_hosted_members_read_and_wrote(way: str) -> None:
    models = counting()
    handler = UsageMetadataCallbackHandler()
    result = await asked(ensemble(*models), way, config={"callbacks": [handler]})
    answers = result if way == "batch" else [joined(result) if "stream" in way else result]
    sent, written = (sum(SENT * model.requests for model in models), sum(m.written for m in models))
    assert sum(answer.usage_metadata["input_tokens"] for answer in answers) == sent
    assert sum(answer.usage_metadata["output_tokens"] for answer in answers) == written
    assert sent > 3 * SENT, "there were ballots"
    for reply in answers:
        usage = reply.usage_metadata
        assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
        assert "total_cost" not in usage
        details = usage["output_token_details"]
        assert details["drafted"] - details["discarded"] == len(reply.text.split())
    (counted,) = handler.usage_metadata.values()
    assert (counted["input_tokens"], counted["output_tokens"]) == (sent, written)


def test_each_hosted_member_has_its_own_total() -> None:
    models = counting()
    answer = ensemble(*models).invoke("Why?")
    usage = answer.response_metadata["specfuse"]["usage"]
    for model in models:
        used = usage[model.label]
        assert used["requests"] == model.requests
        assert (used["input_tokens"], used["output_tokens"]) == (
            SENT * model.requests,
            model.written,
        )


def test_whole_answers_count_every_sample() -> None:
    """This includes further samples that win under a name of their own."""
    models = counting()
    llm = ensemble(*models, segment="answer", samples=3, result="text")
    answer = llm.invoke("Why?", seed=1)
    usage = answer.usage_metadata
    assert usage["input_tokens"] == SENT * sum(model.requests for model in models) == 6 * SENT
    assert usage["output_tokens"] == sum(model.written for model in models)


def test_unreported_usage_of_a_cancelled_stream_is_marked_as_an_estimate() -> None:
    answer = ensemble(*counting(reports=False)).invoke("Why?")
    usage = answer.response_metadata["specfuse"]["usage"]
    assert all(total["estimated"] is True and total["input_tokens"] > 0 for total in usage.values())
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["input_tokens"] == sum(u["input_tokens"] for u in usage.values())
    complete = SpecFuseChatModel(members=[Counting()]).invoke("Why?")
    (used,) = complete.response_metadata["specfuse"]["usage"].values()
    assert "estimated" not in used


@pytest.mark.parametrize("way", WAYS)
async def test_the_total_cost_is_known_if_every_hosted_member_has_a_price(way: str) -> None:
    first, second = counting()
    members = [
        ChatModelMember(model, name=model.label, price=(3.0, 15.0)) for model in (first, second)
    ]
    handler = UsageMetadataCallbackHandler()
    for _ in range(2):
        result = await asked(ensemble(*members), way, config={"callbacks": [handler]})
    answers = result if way == "batch" else [joined(result) if "stream" in way else result]
    for answer in answers:
        usage = answer.usage_metadata
        expected = (usage["input_tokens"] * 3 + usage["output_tokens"] * 15) / 1e6
        assert answer.response_metadata["specfuse"]["total_cost"] == pytest.approx(expected)
        assert "stream" in way or usage["total_cost"] == pytest.approx(expected)
    # LangChain can still add up the tokens
    (counted,) = handler.usage_metadata.values()
    assert counted["input_tokens"] == SENT * (first.requests + second.requests)
    half = ensemble(members[0], second).invoke("Why?")
    assert "total_cost" not in half.usage_metadata


def test_an_answer_from_the_cache_costs_nothing() -> None:
    llm = ensemble(ChatModelMember(Counting(), name="a", price=(1.0, 1.0)), cache=InMemoryCache())
    first, second = llm.invoke("Why?"), llm.invoke("Why?")
    assert first.usage_metadata["total_cost"] > 0
    assert second.usage_metadata["total_cost"] == 0


def test_members_on_this_machine_count_as_before() -> None:
    def local() -> list[ScriptedMember]:
        return [ScriptedMember(BLUE, name="a"), ScriptedMember(WIDE, name="b")]

    answer = ensemble(*local()).invoke("Why is it so?")
    usage = answer.usage_metadata
    assert usage["output_tokens"] == len(BLUE.split())
    assert answer.response_metadata["model_provider"] == "specfuse"
    hosted = Counting(label="hosted")
    # the prompt and segments of local members, plus everything the hosted one read and wrote
    mixed = ensemble(*local(), hosted).invoke("Why is it so?")
    assert mixed.text == BLUE
    assert mixed.usage_metadata["input_tokens"] == usage["input_tokens"] + SENT * hosted.requests
    assert mixed.response_metadata["specfuse"]["shares"] == {"a": 1.0}
    assert mixed.usage_metadata["output_tokens"] == usage["output_tokens"] + hosted.written


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
async def test_an_agent_summarises_no_sooner_than_with_one_member(way: str) -> None:
    """The usage of an answer is a multiple of the conversation's length."""

    async def messages(llm: Any, limit: int) -> list[Any]:
        middleware = SummarizationMiddleware(
            model=llm, trigger=("tokens", limit), keep=("messages", 1)
        )
        agent = create_agent(llm, tools=[], middleware=[middleware])
        state: dict[str, Any] = {"messages": []}
        for question in ("Why?", "Are you sure?", "Really?"):
            state["messages"] = [*state["messages"], ("human", question)]
            result = agent.invoke(state) if way == "invoke" else await agent.ainvoke(state)
            state = {"messages": result["messages"]}
        return list(state["messages"])

    def summarised(history: list[Any]) -> bool:
        return any("summary" in message.text for message in history if message.type == "human")

    two = ensemble(*counting())
    (answer,) = [await asked(two, way, "Why?")]
    assert answer.usage_metadata["total_tokens"] > 200
    history = await messages(two, 200)
    assert len(history) == 6 and not summarised(history)
    assert not summarised(await messages(Counting(), 200))
    # both do when the conversation itself is too long
    assert summarised(await messages(ensemble(*counting()), 30))
