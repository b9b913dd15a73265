"""A handler that keeps a trace of every answer that a chat model gives."""

from __future__ import annotations

import asyncio

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage

from langchain_specfuse import EnsembleError, ScriptedMember, SpecFuseChatModel, Trace, TraceCallbackHandler, UsageError

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


def test_an_answer_that_failed_before_its_first_round_is_there_with_its_error(tmp_path):
    recorder = TraceCallbackHandler()
    with pytest.raises(EnsembleError):
        SpecFuseChatModel(members=[ScriptedMember(BLUE, fails_in=1)]).invoke("Why?", {"callbacks": [recorder]})
    trace = recorder.trace
    assert (trace.question, trace.rounds) == ("Why?", []) and "no member is left" in trace.error
    trace.save(tmp_path / "run.html")
    trace.save(tmp_path / "run.json")
    assert Trace.load(tmp_path / "run.json").error == trace.error


def test_a_failure_of_another_chat_model_is_no_trace():
    class Other(GenericFakeChatModel):
        def _generate(self, *args, **kwargs):
            raise RuntimeError("no")

    recorder = TraceCallbackHandler()
    with pytest.raises(RuntimeError):
        Other(messages=iter([])).invoke("Why?", {"callbacks": [recorder]})
    assert recorder.traces == {}


def test_an_answer_from_a_cache_has_no_rounds_and_that_is_what_is_told(ensemble):
    llm = ensemble(cache=InMemoryCache())
    llm.invoke("Why?")
    recorder = TraceCallbackHandler()
    llm.invoke("Why?", {"callbacks": [recorder]})
    with pytest.raises(UsageError, match="1 answer came without a round") as raised:
        _ = recorder.trace
    assert "cache=False" in raised.value.__notes__[0]


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
