"""Text, chunks, usage, metadata and provenance of an answer are the same in every way of asking."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langchain_core.tracers.run_collector import RunCollectorCallbackHandler

from langchain_specfuse import EnsembleError, Method, ScriptedMember, SpecFuseChatModel
from langchain_specfuse.core.values import Draft, DraftJob

from .conftest import BLUE, asked, joined
from .test_mixes import scripted


async def every_way(llm: SpecFuseChatModel, question: str = "Why?", **options: Any) -> list[Any]:
    """Return the message from invoke, ainvoke, stream, astream, batch, abatch, generate and
    agenerate."""
    messages = [await asked(llm, way, question, **options) for way in ("invoke", "ainvoke")]
    messages += [
        joined(await asked(llm, way, question, **options)) for way in ("stream", "astream")
    ]
    messages += [(await asked(llm, way, question, **options))[1] for way in ("batch", "abatch")]
    twice: Any = [[HumanMessage(question)]] * 2
    generated = [llm.generate(twice, **options), await llm.agenerate(twice, **options)]
    return messages + [result.generations[1][0].message for result in generated]  # type: ignore[attr-defined]


async def test_every_way_of_asking_gives_the_same_message(ensemble: Any) -> None:
    messages = await every_way(ensemble(max_tokens=10))
    first = messages[0]
    assert first.text == " ".join(BLUE.split()[:10])
    for message in messages:
        assert message.text == first.text
        assert message.usage_metadata == first.usage_metadata
        assert message.response_metadata == first.response_metadata


async def test_each_agreed_segment_is_one_chunk_and_chunks_join_to_the_answer(
    ensemble: Any,
) -> None:
    llm = ensemble()
    chunks = [chunk.text for chunk in llm.stream("Why?") if chunk.text]
    assert chunks == [
        "The sky is blue",
        " because the air scatters",
        " short waves more than",
        " long ones.",
    ]
    assert chunks == [chunk.text async for chunk in llm.astream("Why?") if chunk.text]
    assert llm.invoke("Why?").text == "".join(chunks) == BLUE


# --- stop strings ---------------------------------------------------------------------------------


@pytest.mark.parametrize("output_version", ["v0", "v1"])
def test_an_answer_is_the_same_whether_anybody_listens_or_not(output_version: str) -> None:
    def answer(seed: int, callbacks: list[Any]) -> Any:
        rng = random.Random(seed)
        names = "abc"[: rng.randint(1, 3)]
        members = [scripted(name, rng) for name in names]
        if rng.random() < 0.2:
            members[0] = ScriptedMember(ScriptedMember.refusal("No."), name="a")
        refused = f"{rng.choice(names)}{rng.randrange(16)}"
        llm = SpecFuseChatModel(
            members=members,
            method=Method(segment_tokens=rng.choice([1, 3])),
            lead=rng.choice([None, "a"]),
            checks=[lambda text: f"it has {refused}" if refused in text else None] * (seed % 2),
            on_failure="end",
            output_version=output_version,
        )
        try:
            message = llm.invoke("Count.", {"callbacks": callbacks})
        except EnsembleError as error:
            return str(error), error.text
        return message.model_copy(update={"id": None})

    for seed in range(30):
        assert answer(seed, []) == answer(seed, [RunCollectorCallbackHandler()])


def test_a_stop_string_does_not_change_the_vote() -> None:
    """A draft that is cut at the stop string before the vote would lose to the other draft."""
    texts = ('{"tags": [\n    {"name": "a"}]}', '{"tags": ["Category A", "Category B"]}')
    members = [ScriptedMember(text, name=name) for text, name in zip(texts, "ab", strict=True)]
    llm = SpecFuseChatModel(members=members, method=Method(segment_tokens=3))
    assert llm.invoke("?").text.startswith('{"tags": [\n    ')
    assert llm.invoke("?", stop=["\n    "]).text == '{"tags": ['


async def test_a_calls_stop_strings_replace_those_of_the_model(ensemble: Any) -> None:
    llm = ensemble(stop="waves", segment_tokens=3)
    for message in await every_way(llm):
        assert message.text == "The sky is blue because the air scatters short "
        assert message.response_metadata["finish_reason"] == "stop"
        assert message.response_metadata["specfuse"]["finish"] == "stop_string"
    for message in await every_way(llm, stop=["long"]):
        assert message.text == "The sky is blue because the air scatters short waves more than "
    assert llm.bind(stop=["the a"]).invoke("Why?").text == "The sky is blue because "
    assert llm.invoke("Why?", stop=[]).text == BLUE


# --- metadata and usage ---------------------------------------------------------------------------


async def test_metadata_is_sent_once(ensemble: Any) -> None:
    llm = ensemble()
    for chunks in (list(llm.stream("Why?")), [chunk async for chunk in llm.astream("Why?")]):
        first, *middle, last = chunks
        assert first.response_metadata == {"model_name": "a+b", "model_provider": "specfuse"}
        assert all(
            chunk.response_metadata == {} and chunk.usage_metadata is None for chunk in middle
        )
        assert set(last.response_metadata) == {"finish_reason", "specfuse"}
        assert last.chunk_position == "last"
        assert last.usage_metadata


@pytest.mark.parametrize(("text", "reason"), [(BLUE, "stop"), ("", "stop")])
def test_an_answer_of_one_segment_or_none_is_one_chunk_with_all_metadata(
    ensemble: Any, text: str, reason: str
) -> None:
    (chunk,) = ensemble(text, text, segment_tokens=100).stream("Why?")
    assert (chunk.text, chunk.chunk_position, chunk.response_metadata["finish_reason"]) == (
        text,
        "last",
        reason,
    )
    assert {"model_name", "specfuse"} <= set(chunk.response_metadata)
    assert chunk.usage_metadata["output_tokens"] == len(text.split())


def test_the_summary_is_plain_json_with_rounds_weights_shares_and_exits(ensemble: Any) -> None:
    summary = ensemble().invoke("Why?").response_metadata["specfuse"]
    assert json.loads(json.dumps(summary)) == summary
    assert summary["members"] == ["a", "b"]
    assert summary["rounds"] == 4
    assert sum(summary["weights"].values()) == pytest.approx(1)
    assert sum(summary["shares"].values()) == pytest.approx(1)
    assert (summary["exits"], summary["looped"], summary["late"], summary["forced"]) == (
        [],
        0,
        {},
        0,
    )


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


class Wavering(ScriptedMember):
    """Writes a different text in its further samples."""

    def __init__(self, first: str, later: str, name: str) -> None:
        super().__init__(first, name=name)
        self.later = ScriptedMember(later, name=name)

    def draft(self, jobs: list[DraftJob]) -> Any:
        (job,) = jobs
        return self.later.draft(jobs) if job.sampling.seed else super().draft(jobs)


@pytest.mark.parametrize("other", ["b", "a#2"])
def test_shares_name_the_member_whose_sample_won(other: str) -> None:
    """This holds even if a member has the name that another one's further sample would get."""
    members = [Wavering("6 x 7 is 41", "It is 42", "a"), Wavering("Who knows?", "43", other)]
    llm = SpecFuseChatModel(
        members=members,
        method=Method(segment="answer", result="number", samples=4, prior={"a": 3.0}),
        seed=0,
        lead=None,
        output_version="v1",
    )
    answer = llm.invoke("What is 6 x 7?")
    assert answer.text == "It is 42"
    assert answer.response_metadata["specfuse"]["shares"] == {"a": 1.0}
    assert [note["member"] for note in notes(answer)] == ["a"]


def test_the_seed_of_a_sampled_answer_is_in_its_metadata_and_repeats_it(ensemble: Any) -> None:
    llm = ensemble(temperature=0.8)
    seed, another_seed = (
        llm.invoke("Why?").response_metadata["specfuse"]["seed"] for _ in range(2)
    )
    assert seed != another_seed
    assert llm.invoke("Why?", seed=seed).response_metadata["specfuse"]["seed"] == seed
    assert "seed" not in ensemble(seed=3).invoke("Why?").response_metadata["specfuse"]


# --- provenance -----------------------------------------------------------------------------------


def notes(message: Any) -> list[dict[str, Any]]:
    return [
        note["value"] for block in message.content_blocks for note in block.get("annotations", [])
    ]


async def test_v1_blocks_say_who_wrote_which_part(ensemble: Any) -> None:
    for message in await every_way(ensemble(output_version="v1")):
        (block,) = message.content
        assert block["text"] == BLUE == message.text
        assert {note["type"] for note in block["annotations"]} == {"non_standard_annotation"}
        values = notes(message)
        assert [value["round"] for value in values] == [1, 2, 3, 4]
        assert {value["member"] for value in values} == {"a"}
        assert "".join(BLUE[value["start"] : value["end"]] for value in values) == BLUE
        assert message.usage_metadata["output_tokens"] == len(BLUE.split())
        assert message.response_metadata["output_version"] == "v1"


def test_the_confidence_of_a_segment_is_its_share_of_the_vote(ensemble: Any) -> None:
    (agreed,) = notes(ensemble("The sky", "The sky", output_version="v1").invoke("?"))
    assert (agreed["confidence"], agreed["dissent"]) == (1.0, 0.0)
    texts = ("The sky is blue", "The sky is wide", "The sky is blue")
    (value,) = notes(
        ensemble(*texts, output_version="v1", method={"weighting": "equal"}).invoke("?")
    )
    # Each scores its own draft -0.1 per word; in another's draft, one word in five gets -3.0.
    share = 1 / (1 + math.exp(-(3.0 - 0.1) / 5))
    assert value["confidence"] == pytest.approx((2 * share + (1 - share)) / 3)
    assert 0 < value["dissent"] < 1


class Speechless(ScriptedMember):
    """Drafts nothing and never ends the answer."""

    def draft(self, jobs: list[DraftJob]) -> Any:
        return [Draft("") for _ in jobs]


@pytest.mark.filterwarnings("ignore:no member can score")
def test_confidence_is_absent_if_no_member_could_disagree_or_vote(ensemble: Any) -> None:
    mute = [
        ScriptedMember(text, name=name, draft_only=True)
        for text, name in (("The sky", "a"), ("The sea", "b"))
    ]
    silent = [ScriptedMember("Yes", name="a"), Speechless("", name="b")]
    for members in ([ScriptedMember("Yes")], mute, silent):
        value = notes(ensemble(members=members, output_version="v1").invoke("?"))[0]
        assert (value["confidence"], value["dissent"]) == (None, None)


@pytest.mark.parametrize("output_version", [None, "v1"])
async def test_langchains_v3_events_carry_text_usage_and_metadata(
    ensemble: Any, output_version: Any
) -> None:
    """LangChain's bridge from chunks keeps only the last annotation of a text (1.8.3)."""
    llm = ensemble(output_version=output_version)
    stream = llm.stream_events("Why?", version="v3")
    assert "".join(stream.text) == BLUE
    message, same = stream.output, llm.invoke("Why?")
    assert message.usage_metadata == same.usage_metadata
    assert message.response_metadata["specfuse"] == same.response_metadata["specfuse"]
    astream = await llm.astream_events("Why?", version="v3")
    assert (await astream.output).text == BLUE
