"""If some members refuse, the others answer; if all refuse, the message is a refusal."""

from __future__ import annotations

import functools
import operator
from typing import Any

import pytest
from langchain_core.exceptions import ModelRefusalError
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage
from langchain_core.tracers.run_collector import RunCollectorCallbackHandler

from langchain_specfuse import (
    Method,
    ScriptedMember,
    SpecFuseCallbackHandler,
    SpecFuseChatModel,
    TraceCallbackHandler,
    UsageError,
)
from tests.methods import in_method

NO = "I cannot help with that."
TEXT = "The sky is blue because air scatters blue light more than red light."
SCHEMA = {
    "title": "Said",
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
}


def refusing(name: str, text: str = NO, **options: Any) -> ScriptedMember:
    return ScriptedMember(ScriptedMember.refusal(text), name=name, **options)


def willing(name: str, text: str = TEXT) -> ScriptedMember:
    return ScriptedMember(text, name=name)


async def every_way(llm: Any) -> list[AIMessage]:
    """Return the answer from invoke, ainvoke, stream and astream."""
    streams = list(llm.stream("Why?")), [chunk async for chunk in llm.astream("Why?")]
    sums = [functools.reduce(operator.add, chunks) for chunks in streams]
    return [llm.invoke("Why?"), await llm.ainvoke("Why?"), *sums]


# --- some members refuse --------------------------------------------------------------------------


@pytest.mark.parametrize("lead", ["a", None, "b"])
@pytest.mark.parametrize("options", [{"method": {"margin": 0.5}}, {"refusals": "ignore"}])
async def test_the_others_write_and_the_refusal_is_in_the_metadata(
    lead: str | None, options: dict[str, Any]
) -> None:
    members = [refusing("a"), willing("b"), willing("c", TEXT.replace("blue", "red"))]
    llm = SpecFuseChatModel(**in_method(members=members, lead=lead, prior={"b": 3.0}, **options))
    for message in await every_way(llm):
        assert message.text == TEXT and message.response_metadata["finish_reason"] == "stop"
        assert "refusal" not in message.additional_kwargs
        about = message.response_metadata["specfuse"]
        if lead != "b":
            assert about["refusals"] == {"a": NO} and about["exits"] == []
            assert set(about["shares"]) == {"b"}


def test_a_refusal_is_in_every_round_and_in_the_trace_and_earns_nothing() -> None:
    members = [refusing("a"), willing("b"), willing("c", TEXT.replace("blue", "red"))]
    events: list[Any] = []
    recorder, runs = TraceCallbackHandler(), RunCollectorCallbackHandler()
    llm = SpecFuseChatModel(members=members, lead=None, method=Method(segment_tokens=4))
    listener = SpecFuseCallbackHandler(on_round=events.append)
    llm.invoke("Why?", {"callbacks": [listener, recorder, runs]})
    assert len(events) > 2
    for event in events:
        assert event.refusals == {"a": NO} and set(event.drafts) == {"b", "c"}
        assert "a" not in event.rewards and "a" in event.weights and event.left == []
    assert [item["refusals"] for item in recorder.trace.rounds] == [{"a": NO}] * len(events)
    (answer,) = runs.traced_runs
    refusals = [round.outputs["refusals"] for round in answer.child_runs]
    assert refusals == [{"a": NO}] * len(events)


def test_a_member_that_refuses_still_votes() -> None:
    members = [refusing("a"), willing("b"), willing("c", TEXT.replace("blue", "red"))]
    SpecFuseChatModel(members=members, lead=None).invoke("Why?")
    assert members[0].score_calls > 0


def test_a_refusal_does_not_count_among_whole_answers() -> None:
    members = [refusing("a"), willing("b", "It is 42."), willing("c", "It is 42.")]
    llm = SpecFuseChatModel(members=members, method=Method(segment="answer", result="number"))
    message = llm.invoke("6 * 7?")
    assert message.text == "It is 42."
    assert message.response_metadata["specfuse"]["refusals"] == {"a": NO}


# --- all members refuse ---------------------------------------------------------------------------

HOW = {
    "drafts": {},
    "a lead": {"lead": "b"},
    "answers": {"segment": "answer", "result": "text"},
    "samples": {"segment": "answer", "result": "text", "samples": 2, "temperature": 0.5},
}


def is_refused(message: AIMessage, text: str, *, v1: bool, agreed: str = "") -> bool:
    blocks = [block for block in message.content_blocks if block["type"] == "refusal"]
    assert [block["refusal"] for block in blocks] == [text]
    assert message.response_metadata["finish_reason"] == "refusal"
    return message.additional_kwargs["refusal"] == text and message.text == agreed


@pytest.mark.parametrize("version", ["v0", "v1"])
@pytest.mark.parametrize("how", HOW)
async def test_if_all_refuse_the_message_is_a_refusal(how: str, version: str) -> None:
    members = [refusing("a", "A no."), refusing("b", "B no.")]
    llm = SpecFuseChatModel(members=members, output_version=version, **in_method(**HOW[how]))
    expected = "B no." if how == "a lead" else "A no."
    for message in await every_way(llm):
        assert is_refused(message, expected, v1=version == "v1")
        about = message.response_metadata["specfuse"]
        asked = ["b"] if how == "a lead" else ["a", "b"]  # the reserve is not asked
        assert about["refusals"] == {name: f"{name.upper()} no." for name in asked}
        assert about["exits"] == []
        assert not message.tool_calls and not message.invalid_tool_calls


def test_an_answer_is_a_refusal_if_every_member_refused_or_failed() -> None:
    members = [ScriptedMember(TEXT, name="a", fails_in=1), refusing("b")]
    message = SpecFuseChatModel(members=members).invoke("Why?")
    assert is_refused(message, NO, v1=False)
    assert [
        departure["member"] for departure in message.response_metadata["specfuse"]["exits"]
    ] == ["a"]


@pytest.mark.parametrize("version", ["v0", "v1"])
def test_what_was_agreed_before_the_last_writer_left_stays(version: str) -> None:
    members = [ScriptedMember(TEXT, name="a", fails_in=3), refusing("b")]
    llm = SpecFuseChatModel(
        members=members, method=Method(segment_tokens=3), output_version=version
    )
    agreed = " ".join(TEXT.split()[:6])
    message = functools.reduce(operator.add, llm.stream("Why?"))
    assert is_refused(message, NO, v1=version == "v1", agreed=agreed)


def test_a_refusal_without_text_is_a_refusal() -> None:
    message = SpecFuseChatModel(members=[refusing("a", "")]).invoke("Why?")
    assert is_refused(message, "", v1=False)


async def test_an_object_that_is_refused_raises_langchains_error() -> None:
    llm = SpecFuseChatModel(members=[refusing("a"), refusing("b")])
    for method in ("json_schema", "function_calling", "json_mode"):
        asked = llm.with_structured_output(SCHEMA, method=method)
        for ask in (asked.invoke, lambda question, model=asked: list(model.stream(question))):
            with pytest.raises(ModelRefusalError, match=NO) as raised:
                ask("Is it?")
            assert raised.value.raw_message.additional_kwargs["refusal"] == NO
        with pytest.raises(ModelRefusalError, match=NO):
            await asked.ainvoke("Is it?")
        result = llm.with_structured_output(SCHEMA, method=method, include_raw=True).invoke("?")
        assert result["parsed"] is None and isinstance(result["parsing_error"], ModelRefusalError)


def test_an_object_is_returned_if_one_member_writes_it() -> None:
    llm = SpecFuseChatModel(members=[refusing("a"), ScriptedMember({"ok": True}, name="b")])
    assert llm.with_structured_output(SCHEMA).invoke("Is it?") == {"ok": True}


def test_an_agent_stops_at_a_refusal() -> None:
    from langchain.agents import create_agent

    def weather(city: str) -> str:
        """Look up the weather."""
        return "Sunny."

    agent = create_agent(SpecFuseChatModel(members=[refusing("a"), refusing("b")]), [weather])
    messages = agent.invoke({"messages": [HumanMessage("Rome?")]})["messages"]
    assert len(messages) == 2 and is_refused(messages[-1], NO, v1=False)


def test_the_refusal_is_in_the_events_of_langchain() -> None:
    llm = SpecFuseChatModel(members=[refusing("a")], output_version="v1")
    events = list(llm.stream_events("Why?", version="v3"))
    blocks = [event["content"] for event in events if event["event"] == "content-block-finish"]
    assert [(block["type"], block["refusal"]) for block in blocks] == [("refusal", NO)]


@pytest.mark.parametrize("version", ["v0", "v1"])
def test_langchains_middleware_sees_the_refusal(version: str) -> None:
    from langchain.agents import create_agent
    from langchain.agents.middleware import ModelFallbackMiddleware, ModelRefusalMiddleware

    llm = SpecFuseChatModel(members=[refusing("a"), refusing("b")], output_version=version)
    agent = create_agent(llm, middleware=[ModelRefusalMiddleware()])
    with pytest.raises(ModelRefusalError, match=NO):
        agent.invoke({"messages": [HumanMessage("Why?")]})
    other = SpecFuseChatModel(members=[willing("c")])
    both = [ModelFallbackMiddleware(other), ModelRefusalMiddleware()]
    messages = create_agent(llm, middleware=both).invoke({"messages": [HumanMessage("Why?")]})
    assert messages["messages"][-1].text == TEXT


# --- refusals="any" -------------------------------------------------------------------------------


@pytest.mark.parametrize("how", HOW)
async def test_refusals_any_makes_one_refusal_the_answer(how: str) -> None:
    members = [willing("b"), refusing("a"), willing("c")]
    assert SpecFuseChatModel(members=members, **in_method(**HOW[how])).invoke("Why?").text == TEXT
    llm = SpecFuseChatModel(members=members, **in_method(**HOW[how], refusals="any"))
    if how == "a lead":
        assert llm.invoke("Why?", lead="a").additional_kwargs["refusal"] == NO
        return
    for message in await every_way(llm):
        assert is_refused(message, NO, v1=False)
        assert message.response_metadata["specfuse"]["refusals"] == {"a": NO}


def test_refusals_any_applies_to_objects_too() -> None:
    members = [ScriptedMember({"ok": True}, name="b"), refusing("a")]
    llm = SpecFuseChatModel(members=members, lead=None, method=Method(refusals="any"))
    with pytest.raises(ModelRefusalError, match=NO):
        llm.with_structured_output(SCHEMA).invoke("Is it?")


def test_refusals_is_validated_and_part_of_the_cache_key() -> None:
    with pytest.raises(UsageError, match=r"refusals.*'outvoted', 'any' or 'ignore'"):
        SpecFuseChatModel(members=[willing("a")], method=Method(refusals="all"))
    keys = {
        SpecFuseChatModel(members=[member], method=Method(refusals=how))._get_llm_string()
        for member in (willing("a", NO), refusing("a"))
        for how in ("outvoted", "any")
    }
    assert len(keys) == 4


# --- refusals in the history ----------------------------------------------------------------------


@pytest.mark.parametrize("version", ["v0", "v1"])
def test_a_refusal_can_be_sent_back_as_history(version: str) -> None:
    seen: list[Any] = []

    def answer(query: Any) -> str:
        seen.append([(turn.role, turn.text) for turn in query.turns])
        return ScriptedMember.refusal(NO) if len(seen) == 1 else "Well."

    llm = SpecFuseChatModel(members=[ScriptedMember(answer, name="a")], output_version=version)
    first = llm.invoke("Why?")
    assert llm.invoke([HumanMessage("Why?"), first, HumanMessage("Please.")]).text == "Well."
    assert seen[-1] == [("user", "Why?"), ("assistant", NO), ("user", "Please.")]


SEARCH = {"query": "sky"}
FOUND = [{"type": "web_search_result", "title": "Blue", "encrypted_content": "x1y2"}]
HISTORY: dict[str, tuple[Any, dict[str, Any], list[str]]] = {
    "a refusal's block": ([{"type": "refusal", "refusal": NO}], {}, [NO]),
    "a refusal's block beside text": (
        [{"type": "text", "text": "Well."}, {"type": "refusal", "refusal": NO}],
        {},
        ["Well.\n\n" + NO],
    ),
    "langchain-core's blocks": (
        [
            {"type": "server_tool_call", "name": "web_search", "id": "1", "args": SEARCH},
            {
                "type": "server_tool_result",
                "tool_call_id": "1",
                "status": "success",
                "output": FOUND,
            },
            {"type": "text", "text": "It is blue."},
        ],
        {"output_version": "v1"},
        ['web_search: {"query": "sky"}', "Blue", "It is blue."],
    ),
    "Anthropic's blocks": (
        [
            {"type": "server_tool_use", "name": "web_search", "id": "1", "input": SEARCH},
            {"type": "web_search_tool_result", "tool_use_id": "1", "content": FOUND},
            {"type": "text", "text": "It is blue."},
        ],
        {"model_provider": "anthropic"},
        ['web_search: {"query": "sky"}', "Blue", "It is blue."],
    ),
    "OpenAI's blocks": (
        [
            {"type": "web_search_call", "id": "1", "status": "completed", "action": SEARCH},
            {"type": "code_interpreter_call", "id": "2", "code": "1+1", "outputs": [{"logs": "2"}]},
            {"type": "text", "text": "It is blue."},
        ],
        {},
        ['web_search: {"query": "sky"}', "1+1", '"logs": "2"', "It is blue."],
    ),
}


@pytest.mark.parametrize("kind", HISTORY)
def test_blocks_of_refusals_and_of_providers_tools_are_read(kind: str) -> None:
    blocks, about, parts = HISTORY[kind]
    seen: list[str] = []

    def answer(query: Any) -> str:
        seen.append(query.turns[1].text)
        return "Well."

    llm = SpecFuseChatModel(members=[ScriptedMember(answer, name="a")])
    for message in (AIMessage, AIMessageChunk):
        history = message(blocks, response_metadata=about)
        assert llm.invoke([HumanMessage("Why?"), history, HumanMessage("And?")]).text == "Well."
        assert all(part in seen[-1] for part in parts) and "x1y2" not in seen[-1]
        assert seen[-1].endswith(parts[-1])


def test_unknown_blocks_are_still_refused() -> None:
    llm = SpecFuseChatModel(members=[willing("a")])
    for block in ({"type": "image", "url": "https://x.test"}, {"type": "strange", "a": 1}):
        with pytest.raises(UsageError, match="expected 'text'"):
            llm.invoke([HumanMessage("Why?"), AIMessage([block]), HumanMessage("And?")])
