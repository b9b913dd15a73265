"""``SpecFuseChecks`` checks what any chat model of an agent writes, in the agent's own ways."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import (
    ModelFallbackMiddleware,
    ModelRetryMiddleware,
    PIIMiddleware,
    SummarizationMiddleware,
)
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_core.language_models import FakeMessagesListChatModel, GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from members.fake_provider import Call, FakeProvider, Reply, Text
from pydantic import BaseModel

from langchain_specfuse import CheckError, Method, ScriptedMember, SpecFuseChatModel, checks
from langchain_specfuse import SpecFuseChecks as Middleware
from langchain_specfuse.checks import CheckContext

from .conftest import calls_made, kinds, results

QUESTION: Any = {"messages": [("human", "Pay Bo what we owe.")]}
WAYS = ["invoke", "ainvoke"]
PROMISE = checks.forbids("guarantee")
GOOD = Reply([Text("It is", " paid, and", " Bo knows.")])
BAD = Reply([Text("It is paid.", " We guarantee", " that.")])
PAID: list[int] = []


@tool
def pay(amount: int) -> str:
    """Pay somebody."""
    PAID.append(amount)
    return f"paid {amount}"


def paying(amount: int) -> Reply:
    return Reply([Text("I pay."), Call("pay", ('{"amount"', f": {amount}", "}"))])


def small(text: str, context: CheckContext) -> str | None:
    amount = context.tool_calls[-1]["args"]["amount"]
    return f"pays {amount}, more than 100" if amount > 100 else None


class Receipt(BaseModel):
    """What was paid."""

    amount: int
    to: str


RECEIPT = Receipt(amount=90, to="Bo")
OBJECT = json.dumps(RECEIPT.model_dump())


@pytest.fixture
def server() -> Iterator[FakeProvider]:
    PAID.clear()
    made = FakeProvider("openai")
    yield made
    made.stop()


@pytest.fixture
def hosted(server: FakeProvider) -> ChatOpenAI:
    return ChatOpenAI(
        model="gpt-4.1",
        base_url=f"{server.url}/v1",
        api_key="key",
        max_retries=0,
        stream_usage=True,
    )


async def run(agent: Any, way: str, input: Any = QUESTION, config: Any = None) -> Any:
    if way == "invoke":
        return await asyncio.to_thread(agent.invoke, input, config)
    return await agent.ainvoke(input, config)


def agent_of(model: Any, *rules: Any, before: Any = (), tools: Any = (pay,), **options: Any) -> Any:
    failing = {name: options.pop(name) for name in ("on_failure", "redrafts") if name in options}
    middleware = [*before, Middleware([*rules], **failing)]
    return create_agent(model, list(tools), middleware=middleware, **options)


@pytest.mark.parametrize("way", WAYS)
async def test_the_provider_gets_the_same_requests_as_without_it(
    server: FakeProvider, hosted: ChatOpenAI, way: str
) -> None:
    asked = []
    for middleware in ([], [Middleware([PROMISE])]):
        server.begin(paying(90), GOOD)
        agent = create_agent(
            hosted.model_copy(update={"streaming": True}),
            [pay],
            system_prompt="Be kind.",
            middleware=middleware,
        )
        state = await run(agent, way)
        assert kinds(state) == ("human", "ai", "tool", "ai")
        assert state["messages"][-1].text == "It is paid, and Bo knows."
        for body in server.asked:
            for message in body["messages"]:
                message.pop("tool_call_id", None)
                message.pop("name", None)
        asked.append(server.asked)
    assert asked[0] == asked[1]


@pytest.mark.parametrize("way", WAYS)
async def test_what_the_model_writes_is_redacted(
    server: FakeProvider, hosted: ChatOpenAI, way: str
) -> None:
    @tool
    def mail(to: str) -> str:
        """Write to somebody."""
        return f"wrote to {to}"

    call = Call("mail", ('{"to": "bo@exam', 'ple.com"}'))
    server.begin(
        Reply([Text("I write to bo", "@example.com."), call]),
        Reply([Text("bo@example.com", " knows.")]),
    )
    state = await run(agent_of(hosted, checks.redact("email"), tools=[mail]), way)
    texts = [message.text for message in state["messages"][1:]]
    assert texts == ["I write to [redacted].", "wrote to [redacted]", "[redacted] knows."]
    assert calls_made(state) == [("mail", {"to": "[redacted]"})]
    assert "example" not in str(state["messages"]) and len(server.asked) == 2


@pytest.mark.parametrize("way", WAYS)
async def test_settings_of_the_request_reach_the_provider(
    server: FakeProvider, hosted: ChatOpenAI, way: str
) -> None:
    from langchain.agents.middleware import AgentMiddleware

    class Settings(AgentMiddleware):
        def wrap_model_call(self, request: Any, handler: Any) -> Any:
            return handler(self._set(request))

        async def awrap_model_call(self, request: Any, handler: Any) -> Any:
            return await handler(self._set(request))

        def _set(self, request: Any) -> Any:
            settings = {"temperature": 0.3, "prompt_cache_key": "k"}
            return request.override(model_settings=settings, tool_choice="any")

    server.begin(GOOD)
    await run(agent_of(hosted, PROMISE, before=[Settings()]), way)
    (body,) = server.asked
    assert (body["temperature"], body["prompt_cache_key"]) == (0.3, "k")
    assert body["tool_choice"] == "required"


@pytest.mark.parametrize("way", ["stream", "astream"])
async def test_checked_text_is_streamed_once_and_no_other(
    server: FakeProvider, hosted: ChatOpenAI, way: str
) -> None:
    server.begin(paying(90), BAD, Reply([Text(" Bo", " knows.")]))
    agent = agent_of(hosted, PROMISE)
    if way == "stream":
        parts = list(agent.stream(QUESTION, stream_mode=["messages", "values"]))
    else:
        parts = [part async for part in agent.astream(QUESTION, stream_mode=["messages", "values"])]
    chunks = [data[0] for mode, data in parts if mode == "messages"]
    text = "".join(chunk.text for chunk in chunks if chunk.type == "AIMessageChunk")
    last = [data for mode, data in parts if mode == "values"][-1]["messages"][-1].text
    assert "guarantee" not in text
    assert text == "I pay." + last
    assert last.startswith("It is paid.")
    assert len(chunks) > 4


@pytest.mark.parametrize("way", ["stream", "astream"])
async def test_the_words_of_a_model_that_judges_are_not_streamed(
    server: FakeProvider, hosted: ChatOpenAI, way: str
) -> None:
    server.begin(GOOD)
    judge = speaks(AIMessage("No, not at all."))
    agent = agent_of(hosted, checks.asks(judge, "Is it rude?"), tools=())
    if way == "stream":
        parts = list(agent.stream(QUESTION, stream_mode="messages"))
    else:
        parts = [part async for part in agent.astream(QUESTION, stream_mode="messages")]
    assert "".join(message.text for message, _ in parts) == "It is paid, and Bo knows."


@pytest.mark.parametrize("way", WAYS)
async def test_an_error_of_a_check_is_the_error_of_the_model_call(
    server: FakeProvider, hosted: ChatOpenAI, way: str
) -> None:
    server.begin(paying(90), BAD)
    with pytest.raises(CheckError) as caught:
        await run(agent_of(hosted, PROMISE), way)
    assert caught.value.text.startswith("It is paid.")
    server.begin(BAD)
    with pytest.raises(CheckError):
        await run(agent_of(hosted, PROMISE), way)


@pytest.mark.parametrize("way", WAYS)
async def test_a_fallback_of_the_agent_handles_it_and_is_checked_too(
    server: FakeProvider, hosted: ChatOpenAI, way: str
) -> None:
    server.begin(BAD)
    for text in ("It is paid.", "We guarantee it."):
        other = GenericFakeChatModel(messages=iter([AIMessage(text)] * 3))
        agent = agent_of(hosted, PROMISE, before=[ModelFallbackMiddleware(other)], tools=())
        if "guarantee" in text:
            with pytest.raises(CheckError):
                await run(agent, way)
        else:
            assert (await run(agent, way))["messages"][-1].text == text


@pytest.mark.parametrize("way", WAYS)
async def test_a_retry_of_the_agent_handles_it(
    server: FakeProvider, hosted: ChatOpenAI, way: str
) -> None:
    """A CheckError says that it cannot be retried, so the user names it."""
    retry = ModelRetryMiddleware(
        max_retries=1, retry_on=(CheckError,), initial_delay=0, jitter=False
    )
    failed = []

    def write(body: Any) -> Reply:
        if body["messages"][-1]["role"] == "user" and failed:
            return GOOD
        failed.append(body)
        return BAD

    server.begin(write)
    state = await run(agent_of(hosted, PROMISE, before=[retry], redrafts=1), way)
    assert state["messages"][-1].text == "It is paid, and Bo knows."


@pytest.mark.parametrize("way", WAYS)
async def test_the_thread_is_resumed_after_the_error_and_no_tool_runs_again(
    server: FakeProvider, hosted: ChatOpenAI, way: str
) -> None:
    server.begin(paying(90), BAD)
    agent = agent_of(hosted, PROMISE, checkpointer=InMemorySaver())
    thread: Any = {"configurable": {"thread_id": "1"}}
    with pytest.raises(CheckError):
        await run(agent, way, QUESTION, thread)
    assert kinds(agent.get_state(thread).values) == ("human", "ai", "tool")
    server.begin(GOOD)
    state = await run(agent, way, None, thread)
    assert kinds(state) == ("human", "ai", "tool", "ai")
    assert state["messages"][-1].text == "It is paid, and Bo knows."
    assert PAID == [90]


@pytest.mark.parametrize("way", WAYS)
async def test_with_end_the_text_before_the_fault_is_the_message(
    server: FakeProvider, hosted: ChatOpenAI, way: str
) -> None:
    server.begin(BAD)
    last = (await run(agent_of(hosted, PROMISE, on_failure="end"), way))["messages"][-1]
    assert last.text.rstrip() in ("It is paid.", "It is paid. We")
    assert last.response_metadata["finish_reason"] == "check"


@pytest.mark.parametrize("on_failure", ["raise", "end"])
@pytest.mark.parametrize("way", WAYS)
async def test_a_refused_call_is_not_emitted(
    server: FakeProvider, hosted: ChatOpenAI, way: str, on_failure: str
) -> None:
    server.begin(paying(900))
    agent = agent_of(hosted, checks.at("call", small), on_failure=on_failure)
    if on_failure == "raise":
        with pytest.raises(CheckError, match="pays 900"):
            await run(agent, way)
    else:
        state = await run(agent, way)
        assert state["messages"][-1].text == "I pay."
        assert calls_made(state) == []
    assert PAID == []


@pytest.mark.parametrize("way", WAYS)
async def test_a_call_that_passes_is_run(
    server: FakeProvider, hosted: ChatOpenAI, way: str
) -> None:
    server.begin(paying(90), GOOD)
    state = await run(agent_of(hosted, checks.at("call", small)), way)
    assert calls_made(state) == [("pay", {"amount": 90})]
    assert results(state)[0].text == "paid 90"
    assert PAID == [90]


@pytest.mark.parametrize(
    "schema",
    [Receipt, ProviderStrategy(Receipt), ToolStrategy(Receipt)],
    ids=["auto", "provider", "tool"],
)
@pytest.mark.parametrize("way", WAYS)
async def test_objects_are_checked_in_the_form_that_the_provider_is_asked_for(
    server: FakeProvider, hosted: ChatOpenAI, way: str, schema: Any
) -> None:
    """gpt-4.1 writes objects itself; ``create_agent`` knows it by its name."""
    reply = Reply([Text(*OBJECT)])
    if isinstance(schema, ToolStrategy):
        reply = Reply([Call("Receipt", tuple(OBJECT))])
    requests = []
    for middleware in ([], [Middleware([PROMISE])]):
        server.begin(reply)
        agent = create_agent(hosted, [pay], response_format=schema, middleware=middleware)
        assert (await run(agent, way))["structured_response"] == RECEIPT
        requests.append(
            {key: server.asked[0].get(key) for key in ("response_format", "tools", "tool_choice")}
        )
    assert requests[0] == requests[1]
    rule = checks.forbids("Bo")
    if isinstance(schema, ToolStrategy):
        rule = checks.at("call", lambda text, context: str(context.tool_calls[0]["args"]))
    with pytest.raises(CheckError, match="Bo"):
        await run(agent_of(hosted, rule, response_format=schema), way)


class Speaks(FakeMessagesListChatModel):
    """Answers with these messages in turn, and can be given tools."""

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self


def speaks(*messages: Any) -> Speaks:
    return Speaks(responses=list(messages))


@pytest.mark.parametrize("way", WAYS)
async def test_a_model_whose_provider_writes_no_objects_is_given_a_tool(way: str) -> None:
    call = {"name": "Receipt", "args": RECEIPT.model_dump(), "id": "1", "type": "tool_call"}
    agent = agent_of(speaks(AIMessage("", tool_calls=[call])), PROMISE, response_format=Receipt)
    assert (await run(agent, way))["structured_response"] == RECEIPT


@pytest.mark.parametrize("way", WAYS)
async def test_other_middleware_works_beside_it(way: str) -> None:
    summary = SummarizationMiddleware(
        speaks(*[AIMessage("We guarantee nothing.")] * 9),
        trigger=("messages", 3),
        keep=("messages", 1),
    )
    seen: list[str] = []

    def note(text: str, context: CheckContext) -> None:
        seen[:] = [str(message.text) for message in context.messages]

    agent = agent_of(
        speaks(AIMessage("Write to ann@example.org, please.")),
        note,
        PROMISE,
        before=[PIIMiddleware("email", apply_to_output=True), summary],
    )
    messages = [("human", "My address is bo@example.org."), ("ai", "Yes."), ("human", "And hers?")]
    state = await run(agent, way, {"messages": messages})
    assert state["messages"][-1].text == "Write to [REDACTED_EMAIL], please."
    assert "We guarantee nothing." in seen[0]
    assert "bo@example.org" not in "".join(seen)


@pytest.mark.parametrize("way", WAYS)
async def test_an_ensemble_gets_the_checks_in_addition_to_its_own(way: str) -> None:
    members = [
        ScriptedMember(text, name=name)
        for name, text in (("a", "We guarantee it."), ("b", "It is PAID."), ("c", "It is paid."))
    ]
    llm = SpecFuseChatModel(members=members, checks=[checks.forbids("PAID")])
    assert (await run(agent_of(llm, PROMISE, tools=()), way))["messages"][-1].text == "It is paid."
    assert len(llm.checks) == 1


@pytest.mark.parametrize("way", WAYS)
async def test_an_error_advises_another_model_and_no_member(way: str) -> None:
    """After a redaction, this model cannot continue its text."""
    for rules in ([PROMISE], [PROMISE, checks.redact("paid")]):
        agent = agent_of(speaks(AIMessage("It is paid. We guarantee it.")), *rules, tools=())
        with pytest.raises(CheckError) as caught:
            await run(agent, way)
        assert ("it starts over)" in str(caught.value)) == (len(rules) == 2)
        assert "name ModelFallbackMiddleware(other) before" in caught.value.notes[0]
        assert "member" not in str(caught.value).replace("no member is left", "")


def test_only_raise_and_end_are_for_agents() -> None:
    with pytest.raises(ValueError, match="whole answers"):
        Middleware([PROMISE], on_failure="keep")  # type: ignore[arg-type]


@pytest.mark.parametrize("way", WAYS)
async def test_a_refused_call_is_not_kept(way: str) -> None:
    """``keep`` is for whole answers: their text, never a call."""
    PAID.clear()
    member = ScriptedMember(ScriptedMember.call("pay", amount=900))
    rules: list[Callable[..., Any]] = [checks.at("call", small)]  # type: ignore[list-item]
    llm = SpecFuseChatModel(
        members=[member], method=Method(segment="answer"), on_failure="keep", checks=rules
    )
    with pytest.raises(CheckError, match="pays 900"):
        await run(create_agent(llm, [pay]), way)
    assert PAID == []
