"""Jobs that wait for a member at the same time become one batch."""

from __future__ import annotations

import time
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig, RunnableLambda

from langchain_specfuse import (
    Method,
    ScriptedMember,
    SpecFuseChatModel,
    TraceCallbackHandler,
    UsageError,
)

QUESTIONS = [f"word{i}" for i in range(40)]
ANSWERS = [f"You said {word} to me and to all the others who are here today." for word in QUESTIONS]


class BatchMember(ScriptedMember):
    """Records the sizes of its batches, and takes a moment for each so that jobs can gather."""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            lambda query: (
                f"You said {query.turns[-1].text} to me and to all the others who are here today."
            ),
            **options,
        )
        self.sizes: list[int] = []

    def draft(self, jobs: Any) -> Any:
        self.sizes.append(len(jobs))
        time.sleep(0.02)
        return super().draft(jobs)


@pytest.fixture
def llm() -> SpecFuseChatModel:
    members = [BatchMember(name=name, device="batching") for name in "ab"]
    return SpecFuseChatModel(members=members, method=Method(segment_tokens=4))


@pytest.mark.parametrize("way", ["batch", "abatch", "agenerate", "batch_as_completed", "chain"])
async def test_questions_are_answered_together_and_in_order(
    llm: SpecFuseChatModel, way: str
) -> None:
    if way == "chain":
        messages = (RunnableLambda(str) | llm).batch(QUESTIONS, {"max_concurrency": 40})
    elif way == "batch_as_completed":
        messages = [
            message
            for _, message in sorted(llm.batch_as_completed(QUESTIONS), key=lambda pair: pair[0])
        ]
    elif way == "agenerate":
        results = await llm.agenerate([[HumanMessage(question)] for question in QUESTIONS])
        messages = [row[0].message for row in results.generations]  # type: ignore[attr-defined]
    else:
        messages = llm.batch(QUESTIONS) if way == "batch" else await llm.abatch(QUESTIONS)
    assert [message.text for message in messages] == ANSWERS
    sizes = llm.members[0].sizes
    assert sum(sizes) == 4 * len(QUESTIONS)
    assert len(sizes) <= sum(sizes) / 4
    assert llm.batch([]) == []


async def test_max_concurrency_is_respected(llm: SpecFuseChatModel) -> None:
    llm.batch(QUESTIONS[:8], {"max_concurrency": 2})
    await llm.abatch(QUESTIONS[:8], {"max_concurrency": 2})
    list(llm.batch_as_completed(QUESTIONS[:8], {"max_concurrency": 2}))
    assert max(llm.members[0].sizes) <= 2


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
async def test_an_invalid_question_fails_alone(llm: SpecFuseChatModel, asynchronous: bool) -> None:
    inputs: list[Any] = [
        "one",
        [HumanMessage([{"type": "image", "url": "https://example.com/x.png"}])],
        "three",
    ]
    options: Any = {"return_exceptions": True}
    results = await llm.abatch(inputs, **options) if asynchronous else llm.batch(inputs, **options)
    assert [isinstance(result, UsageError) for result in results] == [False, True, False]
    with pytest.raises(UsageError):
        _ = await llm.abatch(inputs) if asynchronous else llm.batch(inputs)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
async def test_each_question_keeps_its_own_config(
    llm: SpecFuseChatModel, asynchronous: bool
) -> None:
    recorders = [TraceCallbackHandler() for _ in range(5)]
    configs: list[RunnableConfig] = [
        {"callbacks": [recorder], "run_name": f"run {i}"} for i, recorder in enumerate(recorders)
    ]
    if asynchronous:
        await llm.abatch(QUESTIONS[:5], configs)
    else:
        llm.batch(QUESTIONS[:5], configs)
    assert [[trace.answer for trace in recorder.traces.values()] for recorder in recorders] == [
        [text] for text in ANSWERS[:5]
    ]
    assert configs[0].keys() == {"callbacks", "run_name"}, "the caller's config is not changed"
