"""Many questions at once are really answered together: what waits for a member becomes one batch of its work."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig, RunnableLambda

from langchain_specfuse import SpecFuseChatModel, UsageError
from langchain_specfuse.engine.desk import Desk, desk_for

from .conftest import SlowMember

_NUMBERS = itertools.count()


def told(query: Any) -> str:
    return f"You said {query.turns[-1].text} to me and to all the others who are here today."


@pytest.fixture
def desk_and_llm() -> tuple[Desk, SpecFuseChatModel]:
    device = f"batching-{next(_NUMBERS)}"
    members = [SlowMember(told, name=name, device=device) for name in "ab"]
    return desk_for(device), SpecFuseChatModel(members=members, segment_tokens=4)


def sizes(desk: Desk) -> list[int]:
    return [size for _, work, size in desk.batches if work == "draft"]


QUESTIONS = [f"word{i}" for i in range(40)]
ANSWERS = [f"You said {word} to me and to all the others who are here today." for word in QUESTIONS]


@pytest.mark.parametrize("way", ["batch", "abatch", "generate", "agenerate", "chain"])
async def test_questions_are_answered_together_and_in_order(desk_and_llm: Any, way: str) -> None:
    desk, llm = desk_and_llm
    if way == "chain":
        messages = (RunnableLambda(str) | llm).batch(QUESTIONS, {"max_concurrency": 40})
    elif way.endswith("batch"):
        result = getattr(llm, way)(QUESTIONS)
        messages = await result if way == "abatch" else result
    else:
        result = getattr(llm, way)([[HumanMessage(question)] for question in QUESTIONS])
        messages = [row[0].message for row in (await result if way == "agenerate" else result).generations]
    assert [message.text for message in messages] == ANSWERS
    # 4 rounds of 2 members for 40 questions: alone that would be 320 batches.
    assert max(sizes(desk)) >= 20
    assert len(sizes(desk)) < 80


async def test_max_concurrency_is_respected(desk_and_llm: Any) -> None:
    desk, llm = desk_and_llm
    llm.batch(QUESTIONS[:8], {"max_concurrency": 2})
    await llm.abatch(QUESTIONS[:8], {"max_concurrency": 2})
    list(llm.batch_as_completed(QUESTIONS[:8], {"max_concurrency": 2}))
    assert max(sizes(desk)) == 2


def test_answers_come_as_they_are_completed_with_their_places(desk_and_llm: Any) -> None:
    desk, llm = desk_and_llm
    assert sorted((place, message.text) for place, message in llm.batch_as_completed(QUESTIONS)) == list(
        enumerate(ANSWERS)
    )
    assert max(sizes(desk)) >= 20


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
async def test_a_wrong_question_does_not_spoil_the_others(desk_and_llm: Any, asynchronous: bool) -> None:
    _, llm = desk_and_llm
    inputs: list[Any] = ["one", [HumanMessage([{"type": "image", "url": "https://example.com/x.png"}])], "three"]
    if asynchronous:
        results = await llm.abatch(inputs, return_exceptions=True)
    else:
        results = llm.batch(inputs, return_exceptions=True)
    assert [type(result).__name__ for result in results] == ["AIMessage", "UsageError", "AIMessage"]
    with pytest.raises(UsageError):
        _ = await llm.abatch(inputs) if asynchronous else llm.batch(inputs)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
async def test_each_question_keeps_its_own_config(desk_and_llm: Any, asynchronous: bool) -> None:
    from .test_events import Ear

    _, llm = desk_and_llm
    ears = [Ear() for _ in range(5)]
    configs: list[RunnableConfig] = [{"callbacks": [ear], "run_name": f"run {i}"} for i, ear in enumerate(ears)]
    _ = await llm.abatch(QUESTIONS[:5], configs) if asynchronous else llm.batch(QUESTIONS[:5], configs)
    assert [len(ear.runs) for ear in ears] == [1] * 5
    for ear, answer in zip(ears, ANSWERS, strict=False):
        assert "".join(data["text"] for _, _, data in ear.events) == answer
    assert configs[0].keys() == {"callbacks", "run_name"}, "the caller's config is left as it was"


def test_nothing_asked_is_nothing_answered(desk_and_llm: Any) -> None:
    assert desk_and_llm[1].batch([]) == []


async def test_a_question_is_answered_alike_alone_and_in_a_crowd(desk_and_llm: Any) -> None:
    _, llm = desk_and_llm
    alone = llm.invoke(QUESTIONS[0])
    for crowd in (llm.batch(QUESTIONS), await llm.abatch(QUESTIONS)):
        assert crowd[0].text == alone.text
        assert crowd[0].response_metadata == alone.response_metadata
