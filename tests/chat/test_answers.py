"""What comes out: text, chunks, usage, metadata, provenance; the same whichever way it is asked for."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessageChunk, HumanMessage

from langchain_specfuse import ScriptedMember, SpecFuseChatModel

from .conftest import BLUE, WIDE

TEXTS = st.text(st.sampled_from("ab \n\t.,é天空🙂-`*") | st.characters(codec="utf-8"), min_size=1, max_size=60)


def joined(chunks: list[AIMessageChunk]) -> AIMessageChunk:
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole = whole + chunk
    return whole


async def every_way(llm: SpecFuseChatModel, question: str = "Why?", **options: Any) -> list[Any]:
    """The message from invoke, ainvoke, stream, astream, batch, abatch, generate and agenerate."""
    return [
        llm.invoke(question, **options),
        await llm.ainvoke(question, **options),
        joined(list(llm.stream(question, **options))),
        joined([chunk async for chunk in llm.astream(question, **options)]),
        llm.batch([question, question], **options)[1],
        (await llm.abatch([question, question], **options))[1],
        llm.generate([[HumanMessage(question)]] * 2, **options).generations[1][0].message,  # type: ignore[attr-defined]
        (await llm.agenerate([[HumanMessage(question)]] * 2, **options)).generations[1][0].message,
    ]


async def test_every_way_of_asking_gives_the_same_message(ensemble: Any) -> None:
    messages = await every_way(ensemble(max_tokens=10))
    first = messages[0]
    assert first.text == " ".join(BLUE.split()[:10])
    for message in messages:
        assert message.text == first.text
        assert message.usage_metadata == first.usage_metadata
        assert message.response_metadata == first.response_metadata


async def test_each_agreed_segment_is_one_chunk_and_they_join_to_the_answer(ensemble: Any) -> None:
    llm = ensemble()
    chunks = [chunk.text for chunk in llm.stream("Why?") if chunk.text]
    assert chunks == ["The sky is blue", " because the air scatters", " short waves more than", " long ones."]
    assert chunks == [chunk.text async for chunk in llm.astream("Why?") if chunk.text]
    assert llm.invoke("Why?").text == "".join(chunks) == BLUE


@given(TEXTS, TEXTS, st.integers(1, 5))
def test_text_is_conserved_to_the_byte(one: str, other: str, segment_tokens: int) -> None:
    llm = SpecFuseChatModel(
        members=[ScriptedMember(one, name="a"), ScriptedMember(other, name="b")], segment_tokens=segment_tokens
    )
    chunks = [chunk.text for chunk in llm.stream("?")]
    assert "".join(chunks) == llm.invoke("?").text
    alone = SpecFuseChatModel(members=[ScriptedMember(one, name="a")], segment_tokens=segment_tokens)
    assert alone.invoke("?").text == one


@given(TEXTS, st.lists(st.text(st.sampled_from("ab \n.é天🙂"), min_size=1, max_size=3), min_size=1, max_size=3))
def test_a_stop_string_is_never_seen_whatever_the_seams(text: str, stop: list[str]) -> None:
    llm = SpecFuseChatModel(members=[ScriptedMember(text, name="a")], segment_tokens=1, stop=stop[:1])
    seen = "".join(chunk.text for chunk in llm.stream("?", stop=stop[1:]))
    assert text.startswith(seen)
    assert not any(one in seen for one in stop)
    assert seen == text or any(text[len(seen) :].startswith(one) for one in stop)


async def test_stop_strings_of_the_model_and_of_the_call_are_both_kept(ensemble: Any) -> None:
    llm = ensemble(stop="waves", segment_tokens=3)
    for message in await every_way(llm):
        assert message.text == "The sky is blue because the air scatters short "
        assert message.response_metadata["finish_reason"] == "stop_string"
    for message in await every_way(llm, stop=["the a"]):
        assert message.text == "The sky is blue because "
    assert llm.bind(stop=["the a"]).invoke("Why?").text == "The sky is blue because "


@pytest.mark.parametrize(
    ("options", "reason"), [({}, "stop"), ({"max_tokens": 5}, "length"), ({"max_rounds": 2}, "length")]
)
def test_the_finish_reason_says_why_it_ended(ensemble: Any, options: dict[str, int], reason: str) -> None:
    assert ensemble(**options).invoke("Why?").response_metadata["finish_reason"] == reason


async def test_metadata_is_told_once(ensemble: Any) -> None:
    llm = ensemble()
    for chunks in (list(llm.stream("Why?")), [chunk async for chunk in llm.astream("Why?")]):
        first, *middle, last = chunks
        assert first.response_metadata == {"model_name": "a+b", "model_provider": "specfuse"}
        assert all(chunk.response_metadata == {} and chunk.usage_metadata is None for chunk in middle)
        assert set(last.response_metadata) == {"finish_reason", "specfuse"}
        assert last.chunk_position == "last"
        assert last.usage_metadata


def test_an_answer_of_one_segment_has_all_metadata_on_its_only_chunk(ensemble: Any) -> None:
    (chunk,) = ensemble(segment_tokens=100).stream("Why?")
    assert {"model_name", "finish_reason", "specfuse"} <= set(chunk.response_metadata)


def test_an_empty_answer_is_one_empty_last_chunk(ensemble: Any) -> None:
    (chunk,) = ensemble("", "").stream("Why?")
    assert (chunk.text, chunk.chunk_position, chunk.response_metadata["finish_reason"]) == ("", "last", "stop")
    assert ensemble("", "").invoke("Why?").usage_metadata["output_tokens"] == 0


def test_the_summary_tells_rounds_weights_shares_and_exits_as_plain_json(ensemble: Any) -> None:
    summary = ensemble().invoke("Why?").response_metadata["specfuse"]
    assert json.loads(json.dumps(summary)) == summary
    assert summary["members"] == ["a", "b"]
    assert summary["rounds"] == 4
    assert sum(summary["weights"].values()) == pytest.approx(1)
    assert sum(summary["shares"].values()) == pytest.approx(1)
    assert (summary["exits"], summary["looped"]) == ([], 0)


def test_usage_counts_the_winners_tokens_once_and_all_drafts_apart(ensemble: Any) -> None:
    usage = ensemble().invoke("Why is the sky so?").usage_metadata
    assert usage["input_tokens"] == 5
    assert usage["output_tokens"] == len(BLUE.split())
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    details = usage["output_token_details"]
    assert details["drafted"] == 2 * len(BLUE.split())
    assert details["discarded"] == details["drafted"] - usage["output_tokens"]
    assert details["verified"] > 0
    assert usage["input_token_details"]["cache_read"] <= usage["input_tokens"]


@given(st.integers(1, 30), st.integers(1, 9))
def test_usage_never_exceeds_the_budget(max_tokens: int, segment_tokens: int) -> None:
    members = [ScriptedMember(BLUE, name="a"), ScriptedMember(WIDE, name="b")]
    llm = SpecFuseChatModel(members=members, max_tokens=max_tokens, segment_tokens=segment_tokens)
    message = llm.invoke("Why?")
    assert message.usage_metadata
    assert message.usage_metadata["output_tokens"] <= max_tokens
    assert len(message.text.split()) == message.usage_metadata["output_tokens"]


def test_usage_is_seen_by_langchains_own_counter(ensemble: Any) -> None:
    from langchain_core.callbacks import get_usage_metadata_callback

    with get_usage_metadata_callback() as counter:
        ensemble().invoke("Why?")
        list(ensemble().stream("Why?"))
    assert counter.usage_metadata["a+b"]["output_tokens"] == 2 * len(BLUE.split())


# --- who wrote what ---------------------------------------------------------------------------------------------


async def test_v1_blocks_say_who_wrote_which_part(ensemble: Any) -> None:
    for message in await every_way(ensemble(output_version="v1")):
        (block,) = message.content
        assert block["text"] == BLUE == message.text
        values = [note["value"] for note in block["annotations"]]
        assert {note["type"] for note in block["annotations"]} == {"non_standard_annotation"}
        assert [value["round"] for value in values] == [1, 2, 3, 4]
        assert {value["member"] for value in values} == {"a"}
        assert "".join(BLUE[value["start"] : value["end"]] for value in values) == BLUE
        assert all(0 <= value["margin"] <= 1 for value in values)
        assert message.usage_metadata["output_tokens"] == len(BLUE.split())
        assert message.response_metadata["output_version"] == "v1"


def test_v1_and_v0_say_the_same(ensemble: Any) -> None:
    assert ensemble(output_version="v1").invoke("Why?").text == ensemble().invoke("Why?").text


async def test_the_newest_event_stream_joins_to_the_answer(ensemble: Any) -> None:
    stream = ensemble().stream_events("Why?", version="v3")
    assert "".join(stream.text) == BLUE


# --- sampling ---------------------------------------------------------------------------------------------------


def test_a_seed_of_chance_is_told_so_that_the_answer_can_be_had_again(ensemble: Any) -> None:
    llm = ensemble(temperature=0.8)
    one, other = (llm.invoke("Why?").response_metadata["specfuse"]["seed"] for _ in range(2))
    assert one != other
    assert llm.invoke("Why?", seed=one).response_metadata["specfuse"]["seed"] == one


def test_a_greedy_answer_needs_no_seed(ensemble: Any) -> None:
    assert "seed" not in ensemble(seed=3).invoke("Why?").response_metadata["specfuse"]


async def test_many_async_answers_at_once_do_not_mix() -> None:
    llm = SpecFuseChatModel(members=[ScriptedMember(lambda query: f"You said {query.turns[-1].text} to me.", name="a")])
    answers = await asyncio.gather(*(llm.ainvoke(f"word{i}") for i in range(30)))
    assert [answer.text for answer in answers] == [f"You said word{i} to me." for i in range(30)]
