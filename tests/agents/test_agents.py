"""Agents of LangChain's own making: tools are called, what they say comes back, the members answer together."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import (
    AgentMiddleware,
    HumanInTheLoopMiddleware,
    ModelCallLimitMiddleware,
    ModelFallbackMiddleware,
    ModelRetryMiddleware,
    ToolRetryMiddleware,
)
from langchain_core.messages import AIMessageChunk
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from langchain_specfuse import SpecFuseCallbackHandler
from langchain_specfuse.core.values import Query

from .conftest import (
    PLAN,
    QUESTION,
    SlowMember,
    asoon,
    brief,
    called,
    free,
    kinds,
    made,
    model,
    reporter,
    results,
    traveller,
    weather,
)

REPORT = "The report says: sunny in Paris, 21 degrees."


async def asked(agent: Any, way: str, question: Any = QUESTION, **options: Any) -> Any:
    """The agent's last state, asked in this way."""
    if way == "invoke":
        return agent.invoke(question, **options)
    if way == "ainvoke":
        return await agent.ainvoke(question, **options)
    if way == "stream":
        return list(agent.stream(question, stream_mode="values", **options))[-1]
    return [state async for state in agent.astream(question, stream_mode="values", **options)][-1]


WAYS = pytest.mark.parametrize("way", ["invoke", "ainvoke", "stream", "astream"])


@WAYS
async def test_an_agent_asks_its_tool_reads_the_result_and_answers(llm: Any, way: str) -> None:
    state = await asked(create_agent(llm, [weather]), way)
    assert kinds(state) == PLAN
    assert made(state) == [("weather", {"city": "Paris"})]
    assert results(state)[0].tool_call_id == state["messages"][1].tool_calls[0]["id"]
    assert state["messages"][-1].text == REPORT
    assert await asoon(lambda: free(llm))


async def test_the_system_prompt_reaches_every_member_in_every_turn_of_the_loop() -> None:
    seen: list[tuple[str, str]] = []

    def noted(query: Query) -> str:
        seen.append((query.turns[0].role, query.turns[0].text))
        return reporter(query)

    create_agent(model(noted, noted), [weather], system_prompt="Be kind.").invoke(QUESTION)
    assert set(seen) == {("system", "Be kind.")}
    assert len(seen) == 4


class ToolFirst(AgentMiddleware):
    """A tool must be called first; once it has answered, nothing may be called."""

    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        return handler(self._chosen(request))

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        return await handler(self._chosen(request))

    def _chosen(self, request: Any) -> Any:
        return request.override(tool_choice="none" if request.messages[-1].type == "tool" else "any")


@WAYS
async def test_a_middleware_chooses_when_tools_are_called(way: str) -> None:
    """The members would do the opposite of both: they call only where they must."""

    def contrary(query: Query) -> str:
        must = query.constraint is not None and query.constraint.kind == "calls"
        call = called(("weather", {"city": "Rome"}))
        return call if must or query.turns[-1].role == "tool" else "I know it already."

    llm = model(contrary, contrary)
    state = await asked(create_agent(llm, [weather], middleware=[ToolFirst()]), way)
    assert kinds(state) == PLAN
    assert [name for name, _ in made(state)] == ["weather"]


# --- what tools may say -----------------------------------------------------------------------------------------


@tool
def listing(city: str) -> list[str]:
    """Sights of a city."""
    return [city, "a tower", "ein Fluß"]


@tool
def table(city: str) -> dict[str, Any]:
    """Facts about a city."""
    return {"name": city, "people": 2_100_000, "rivers": ["Seine"], "capital": True}


@tool
def novel(city: str) -> str:
    """Everything about a city."""
    return f"{city} " * 5_000 + "end"


@tool
def silence(city: str) -> None:
    """Nothing about a city."""


@pytest.mark.parametrize("spoken", [listing, table, novel, silence], ids=lambda one: one.name)
@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
async def test_members_read_whatever_a_tool_says(spoken: Any, way: str) -> None:
    read: list[str] = []

    def reader(query: Query) -> str:
        if query.turns[-1].role != "tool":
            return called((spoken.name, {"city": "Paris"}))
        read.append(query.turns[-1].text)
        return "Read."

    state = await asked(create_agent(model(reader, reader), [spoken]), way)
    assert kinds(state) == PLAN
    assert set(read) == {results(state)[0].text}
    assert state["messages"][-1].text == "Read."


def test_a_tool_s_own_parts_reach_the_members_as_text() -> None:
    read: list[str] = []

    @tool
    def parts(city: str) -> list[dict[str, str]]:
        """Parts of a text."""
        return [{"type": "text", "text": f"{city} is"}, {"type": "text", "text": " large"}]

    def reader(query: Query) -> str:
        if query.turns[-1].role != "tool":
            return called(("parts", {"city": "Paris"}))
        read.append(query.turns[-1].text)
        return "Read."

    create_agent(model(reader), [parts]).invoke(QUESTION)
    assert len(read) == 1
    assert "Paris is" in read[0] and "large" in read[0]


@tool
def broken(city: str) -> str:
    """Never works."""
    raise ConnectionError(f"no line to {city}")


def determined(query: Query) -> str:
    last = query.turns[-1]
    return f"Sorry: {last.text}" if last.role == "tool" else called(("broken", {"city": "Paris"}))


@WAYS
async def test_a_tool_that_raises_ends_the_agent_and_nothing_is_kept(way: str) -> None:
    llm = model(determined, determined)
    with pytest.raises(ConnectionError, match="no line to Paris"):
        await asked(create_agent(llm, [broken]), way)
    assert await asoon(lambda: free(llm))
    assert "no line" not in llm.invoke("?").text


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
async def test_a_tool_s_failure_as_a_message_is_read_like_its_results(way: str) -> None:
    again = ToolRetryMiddleware(max_retries=1, initial_delay=0, jitter=False, on_failure="continue")
    state = await asked(create_agent(model(determined, determined), [broken], middleware=[again]), way)
    assert kinds(state) == PLAN
    assert results(state)[0].status == "error"
    assert "no line to Paris" in state["messages"][-1].text


def test_several_calls_at_once_are_all_made_and_answered() -> None:
    def curious(query: Query) -> str:
        said = [turn.text for turn in query.turns if turn.role == "tool"]
        if said:
            return " ".join(said)
        return called(("weather", {"city": "Paris"}), ("weather", {"city": "Rome"}), ("table", {"city": "Bonn"}))

    state = create_agent(model(curious, curious), [weather, table]).invoke(QUESTION)
    assert kinds(state) == ("human", "ai", "tool", "tool", "tool", "ai")
    assert made(state) == [("weather", {"city": "Paris"}), ("weather", {"city": "Rome"}), ("table", {"city": "Bonn"})]
    ids = [call["id"] for call in state["messages"][1].tool_calls]
    assert [message.tool_call_id for message in results(state)] == ids
    assert len(set(ids)) == 3
    assert "sunny in Rome" in state["messages"][-1].text and "Bonn" in state["messages"][-1].text


def test_one_tool_after_the_other_with_the_result_of_the_first() -> None:
    @tool
    def add(a: int, b: int) -> int:
        """The sum."""
        return a + b

    def reckoner(query: Query) -> str:
        said = [turn.text for turn in query.turns if turn.role == "tool"]
        if len(said) == 2:
            return f"It is {said[1]}."
        return called(("add", {"a": int(said[0]) if said else 1, "b": 2}))

    state = create_agent(model(reckoner, reckoner), [add]).invoke({"messages": [("human", "1 + 2 + 2?")]})
    assert made(state) == [("add", {"a": 1, "b": 2}), ("add", {"a": 3, "b": 2})]
    assert state["messages"][-1].text == "It is 5."


def test_members_that_call_differently_vote_on_the_call() -> None:
    def rome(query: Query) -> str:
        last = query.turns[-1]
        return f"The report says: {last.text}" if last.role == "tool" else called(("weather", {"city": "Rome"}))

    state = create_agent(model(rome, reporter, reporter), [weather]).invoke(QUESTION)
    assert made(state) == [("weather", {"city": "Paris"})]


# --- many, and broken off ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["batch", "abatch"])
async def test_agents_side_by_side_do_not_mix(way: str) -> None:
    llm = model(traveller, traveller)
    agent = create_agent(llm, [weather])
    cities = [f"City{number}" for number in range(12)]
    questions = [{"messages": [("human", city)]} for city in cities]
    states = agent.batch(questions) if way == "batch" else await agent.abatch(questions)
    assert [made(state) for state in states] == [[("weather", {"city": city})] for city in cities]
    assert [state["messages"][-1].text for state in states] == [f"It is sunny in {c}, 21 degrees." for c in cities]
    assert await asoon(lambda: free(llm))


@pytest.fixture
def slow() -> Any:
    """Would take seconds for its last answer."""

    def endless(query: Query) -> str:
        long = " ".join(f"word{number}" for number in range(400))
        return long if query.turns[-1].role == "tool" else called(("weather", {"city": "Paris"}))

    return model(endless, endless, member=SlowMember, max_tokens=400, segment_tokens=2)


def quiet(llm: Any) -> bool:
    """Nobody drafts any more."""
    before = [member.draft_calls for member in llm.members]
    time.sleep(0.1)
    return before == [member.draft_calls for member in llm.members]


@pytest.mark.parametrize("way", ["ainvoke", "astream"])
async def test_cancelling_an_agent_frees_everything(slow: Any, way: str) -> None:
    answering = asyncio.Event()
    loop = asyncio.get_running_loop()

    def seen(event: Any) -> None:
        if "word" in event.text:
            loop.call_soon_threadsafe(answering.set)

    config = {"callbacks": [SpecFuseCallbackHandler(on_round=seen)]}
    task = asyncio.create_task(asked(create_agent(slow, [weather]), way, config=config))
    await asyncio.wait_for(answering.wait(), 20)
    assert not free(slow)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asoon(lambda: free(slow))
    assert quiet(slow)


async def test_leaving_an_agent_s_stream_frees_everything(slow: Any) -> None:
    async for chunk, _ in create_agent(slow, [weather]).astream(QUESTION, stream_mode="messages"):
        if "word" in chunk.text and chunk.type == "AIMessageChunk":
            break
    assert await asoon(lambda: free(slow))
    assert quiet(slow)


async def test_a_crowd_of_agents_of_which_a_third_is_cancelled_leaves_nothing_behind_and_the_others_right() -> None:
    llm = model(traveller, traveller, member=SlowMember)
    for member in llm.members:
        member.seconds = 0.002
    agent = create_agent(llm, [weather])

    async def one(number: int) -> str | None:
        run = agent.ainvoke({"messages": [("human", f"City{number}")]})
        if number % 3:
            return (await run)["messages"][-1].text
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(run, 0.002 * (number % 7 + 1))
        return None

    answers = await asyncio.gather(*(one(number) for number in range(60)))
    wanted = [f"It is sunny in City{number}, 21 degrees." if number % 3 else None for number in range(60)]
    assert answers == wanted
    assert await asoon(lambda: free(llm))
    assert quiet(llm)


def test_a_limit_of_the_model_calls_holds() -> None:
    def stubborn(query: Query) -> str:
        return called(("weather", {"city": "Paris"}))

    agent = create_agent(model(stubborn), [weather], middleware=[ModelCallLimitMiddleware(run_limit=3)])
    state = agent.invoke(QUESTION)
    assert len(results(state)) == 3


# --- with what else LangChain has for agents --------------------------------------------------------------------


def test_a_person_may_be_asked_before_the_tool_is() -> None:
    """Which means that an answer with calls survives being written down and read again."""
    agent = create_agent(
        model(reporter, brief),
        [weather],
        middleware=[HumanInTheLoopMiddleware(interrupt_on={"weather": True})],
        checkpointer=InMemorySaver(),
    )
    thread = {"configurable": {"thread_id": "1"}}
    asked = agent.invoke(QUESTION, thread)
    (pause,) = asked["__interrupt__"]
    assert pause.value["action_requests"][0]["args"] == {"city": "Paris"}
    state = agent.invoke(Command(resume={"decisions": [{"type": "approve"}]}), thread)
    assert state["messages"][-1].text == REPORT
    assert state["messages"][-1].response_metadata["specfuse"]["rounds"] > 0
    again = agent.invoke({"messages": [("human", "And now?")]}, thread)
    assert again["messages"][-1].type in ("ai", "tool") and len(again["messages"]) > len(state["messages"])


def test_a_model_that_fails_is_asked_again_or_another_one_is() -> None:
    def fresh() -> Any:
        llm = model(reporter)
        llm.members[0].fails_in = 1
        return llm

    again = create_agent(fresh(), [weather], middleware=[ModelRetryMiddleware(max_retries=1, initial_delay=0)])
    assert again.invoke(QUESTION)["messages"][-1].text == REPORT
    other = create_agent(fresh(), [weather], middleware=[ModelFallbackMiddleware(model(reporter))])
    assert other.invoke(QUESTION)["messages"][-1].text == REPORT


async def test_tokens_tools_and_rounds_come_through_the_events_in_order(llm: Any) -> None:
    events = [event async for event in create_agent(llm, [weather]).astream_events(QUESTION, version="v2")]
    names = [event["event"] for event in events]
    assert "on_tool_start" in names and "on_tool_end" in names
    chunks = [event["data"]["chunk"] for event in events if event["event"] == "on_chat_model_stream"]
    assert "".join(chunk.text for chunk in chunks) == REPORT
    assert len([chunk for chunk in chunks if chunk.text]) > 1
    before = chunks[: next(i for i, chunk in enumerate(chunks) if chunk.text)]
    whole = sum(before[1:], before[0])
    assert isinstance(whole, AIMessageChunk)
    assert [(call["name"], call["args"]) for call in whole.tool_calls] == [("weather", {"city": "Paris"})]
    rounds = [event for event in events if event["name"] == "specfuse_round"]
    assert len(rounds) > 3
    starts = [event["run_id"] for event in events if event["event"] == "on_chat_model_start"]
    assert list(dict.fromkeys(event["run_id"] for event in rounds)) == starts
