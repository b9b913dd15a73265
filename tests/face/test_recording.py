"""A handler that keeps a trace of every answer that a chat model gives."""

from __future__ import annotations

import asyncio

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage

from langchain_specfuse import EnsembleError, ScriptedMember, SpecFuseChatModel, TraceCallbackHandler, UsageError

from .conftest import BLUE


def test_an_answer_becomes_a_trace_with_its_question(ensemble):
    recorder = TraceCallbackHandler()
    messages = [SystemMessage("Be short."), HumanMessage("Hi"), AIMessage("Yes?"), HumanMessage("Why is it blue?")]
    answer = ensemble().invoke(messages, {"callbacks": [recorder]})
    assert recorder.trace.answer == answer.text == BLUE
    assert recorder.trace.question == "Why is it blue?" and recorder.trace.members == ["a", "b"]
    assert recorder.trace.rounds[-1]["finish"] == "stop" and recorder.trace.error == ""


def test_many_answers_at_once_are_kept_apart(ensemble):
    recorder = TraceCallbackHandler()
    ensemble().batch([f"Question {at}?" for at in range(8)], {"callbacks": [recorder]})
    assert {trace.question for trace in recorder.traces.values()} == {f"Question {at}?" for at in range(8)}
    assert {trace.answer for trace in recorder.traces.values()} == {BLUE}


async def test_it_listens_to_asynchronous_answers_too(ensemble):
    recorder, llm = TraceCallbackHandler(), ensemble()
    await asyncio.gather(*(llm.ainvoke(f"{at}?", {"callbacks": [recorder]}) for at in range(4)))
    assert sorted(trace.question for trace in recorder.traces.values()) == ["0?", "1?", "2?", "3?"]
    assert {trace.answer for trace in recorder.traces.values()} == {BLUE}


def test_inside_a_chain_it_records_the_chat_model_s_run(ensemble):
    recorder = TraceCallbackHandler()
    chain = (lambda question: f"{question}?") | ensemble()  # type: ignore[operator]
    chain.invoke("Why", {"callbacks": [recorder]})
    assert recorder.trace.question == "Why?" and len(recorder.traces) == 1


def test_an_answer_that_failed_says_so_and_keeps_what_was_agreed():
    recorder = TraceCallbackHandler()
    llm = SpecFuseChatModel(members=[ScriptedMember(BLUE, name="a", fails_in=2)], segment_tokens=4)
    with pytest.raises(EnsembleError):
        llm.invoke("Why?", {"callbacks": [recorder]})
    assert recorder.trace.answer == "The sky is blue" and "no member is left" in recorder.trace.error


def test_only_the_last_answers_are_kept(ensemble):
    recorder, llm = TraceCallbackHandler(kept=2), ensemble()
    for at in range(5):
        llm.invoke(f"{at}?", {"callbacks": [recorder]})
    assert [trace.question for trace in recorder.traces.values()] == ["3?", "4?"]


def test_misuse_is_told():
    with pytest.raises(UsageError, match="nothing has been recorded"):
        _ = TraceCallbackHandler().trace
    with pytest.raises(UsageError, match="kept is 0"):
        TraceCallbackHandler(kept=0)
