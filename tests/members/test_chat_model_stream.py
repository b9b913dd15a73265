"""A chat model that leads hands on its own stream, part by part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_anthropic import ChatAnthropic
from langchain_core.caches import InMemoryCache
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_ollama import ChatOllama
from langchain_openai import ChatOpenAI

from langchain_specfuse import ChatModelMember
from langchain_specfuse.core.call import Call
from langchain_specfuse.core.values import Constraint, Draft, DraftJob, Effort, Failure, Segment
from langchain_specfuse.members.chat_model.words import words_of

from . import tiny
from .contract import draft_job, drafted
from .test_chat_model import (
    LONG,
    NO,
    REASONED,
    SAID_NO,
    STORY,
    Talker,
    counted,
    ends_with,
    refuser,
    talker,
    thinker,
)

openai = partial(ChatOpenAI, api_key="key")
anthropic = partial(ChatAnthropic, api_key="key")


def lead_job(**options: Any) -> DraftJob:
    return replace(draft_job(**{"max_tokens": 4000, **options}), leads=True)


def streamed(member: ChatModelMember, job: DraftJob) -> list[Draft]:
    drafts = list(member.stream(job))
    assert all(isinstance(draft, Draft) for draft in drafts), drafts
    return [draft for draft in drafts if isinstance(draft, Draft)]


def text_of(drafts: list[Draft]) -> str:
    return "".join(draft.text for draft in drafts)


def effort_of(drafts: list[Draft]) -> Effort:
    effort = sum((draft.effort for draft in drafts), Effort())
    return replace(effort, seconds=0.0, cost=round(effort.cost, 9))


def drafted_to_its_end(member: ChatModelMember, job: DraftJob) -> list[Draft]:
    """Return what the member writes if it is asked for one draft after another."""
    drafts: list[Draft] = []
    while not (drafts and (drafts[-1].ended or not drafts[-1].text)):
        answer = (*job.answer, Segment(text_of(drafts)))
        drafts.append(drafted(member, replace(job, answer=answer, segment_tokens=3)))
    return drafts


class Parts(Talker):
    """Writes these parts of a text, then ends or breaks off."""

    parts: list[str]
    breaks: bool = False

    def _stream(self, *args: Any, **options: Any) -> Iterator[ChatGenerationChunk]:
        self.asked.append((args, options))
        for part in self.parts:
            self.said.append(part)
            yield ChatGenerationChunk(message=AIMessageChunk(part))
        if self.breaks:
            raise ConnectionError("reset")
        yield ChatGenerationChunk(message=ends_with("stop"))


def writing(*parts: str, **options: Any) -> Parts:
    return Parts(parts=list(parts), asked=[], said=[], closed=[], **options)


# --- text -----------------------------------------------------------------------------------------


def test_the_first_part_is_handed_on_when_it_arrives() -> None:
    model = talker()
    stream = ChatModelMember(model, name="a").stream(lead_job())
    first = next(stream)
    assert isinstance(first, Draft) and first.text == "The"
    assert model.said == ["The"] and len(model.asked) == 1
    assert first.effort.requests == 1 and first.effort.estimated


@pytest.mark.parametrize("breaks", [False, True])
def test_while_others_are_read_a_chunk_is_all_that_arrives_in_a_while(breaks: bool) -> None:
    # A thousand tokens of 32 streams of ChatOpenAI took 0.7 s of processor time, and 0.3 s of it was
    # its own.
    member = ChatModelMember(writing("The", " sky", " is", " blue", breaks=breaks), name="a")
    others = [member.stream(lead_job(id=f"other {number}")) for number in range(9)]
    for other in others:
        next(other)
    first, rest, *failures = member.stream(lead_job(id="one"))
    assert isinstance(first, Draft) and first.text == "The"
    assert isinstance(rest, Draft) and rest.text == " sky is blue" and rest.ended != breaks
    assert [isinstance(failure, Failure) for failure in failures] == [True] * breaks


@pytest.mark.parametrize("kind", ["story", *LONG])
def test_a_stream_is_one_request_and_adds_up_to_what_drafts_give(kind: str) -> None:
    script = LONG.get(kind, STORY)
    models = [counted(usages=[(40, 0), (0, 30)], script=script) for _ in range(2)]
    one, other = (ChatModelMember(model, name="a", price=(1, 2)) for model in models)
    drafts, expected = streamed(one, lead_job()), drafted_to_its_end(other, lead_job())
    assert text_of(drafts) == text_of(expected) and len(models[0].asked) == 1
    assert [draft.ended for draft in drafts] == [False] * (len(drafts) - 1) + [True]
    assert effort_of(drafts) == effort_of(expected)
    assert effort_of(drafts).cost == pytest.approx((40 * 1 + 30 * 2) / 1e6)


@given(
    st.text(st.sampled_from("ab c.\n天😀"), max_size=60) | st.text("ab", max_size=60),
    st.lists(st.integers(0, 60), max_size=6),
    st.integers(1, 30),
)
def test_the_count_of_words_does_not_depend_on_the_parts(
    text: str, cuts: list[int], most: int
) -> None:
    places = [0, *sorted(cuts), len(text)]
    parts = [text[start:end] for start, end in zip(places, places[1:], strict=False)]
    drafts = streamed(ChatModelMember(writing("X", *parts), name="a"), lead_job(max_tokens=most))
    words = words_of("X" + text)
    assert drafts[-1].ended == (len(words) <= most)
    if len(words) <= most:
        assert text_of(drafts) == "X" + text
    assert sum(len(draft.tokens) for draft in drafts) <= most
    assert ("X" + text).startswith(text_of(drafts))
    if len(words) <= most or max(map(len, text.split()), default=0) < 12:
        assert text_of(drafts) == "".join(words[:most])
        assert sum(len(draft.tokens) for draft in drafts) == min(len(words), most)
    for draft in drafts:
        assert draft.ends is None or len(draft.ends) == len(draft.tokens)


def test_a_reply_that_the_provider_cut_ends_the_answer_of_a_lead() -> None:
    drafts = streamed(ChatModelMember(talker(finish="length"), name="a"), lead_job())
    assert text_of(drafts) == STORY and drafts[-1].ended and drafts[-1].is_cut
    assert not any(draft.ended or draft.is_cut for draft in drafts[:-1])


@pytest.mark.parametrize("parts", [1, 3, 7])
def test_an_object_comes_as_it_was_written(parts: int) -> None:
    text = '{"a":1,\n "b: c" : [" , ","\\u00f6"]}\n'
    pieces = [text[at : at + parts] for at in range(0, len(text), parts)]
    query = replace(tiny.query("Why?"), constraint=Constraint("json"))
    member = ChatModelMember(writing(*pieces), name="a")
    drafts = streamed(member, replace(lead_job(), query=query))
    assert text_of(drafts) == text and drafts[-1].ended and len(drafts) >= len(pieces)


@pytest.mark.parametrize(
    ("constraint", "parts"),
    [
        (Constraint("json"), ['{"a": [{}', ', {"b": "}"}', "]}", "\n"]),
        (Constraint("choice", '["red", "redder", "blue"]'), ["bl", "ue"]),
    ],
)
def test_the_usage_after_a_complete_text_is_read(constraint: Constraint, parts: list[str]) -> None:
    """OpenAI's stream_options send it in a last chunk, after the finish reason."""

    class Ending(Parts):
        def _stream(self, *args: Any, **options: Any) -> Iterator[ChatGenerationChunk]:
            yield from super()._stream(*args, **options)
            usage: Any = {"input_tokens": 1000, "output_tokens": 50, "total_tokens": 1050}
            yield ChatGenerationChunk(message=AIMessageChunk("", usage_metadata=usage))

    model = Ending(parts=parts, asked=[], said=[], closed=[])
    query = replace(tiny.query("Why?"), constraint=constraint)
    drafts = streamed(ChatModelMember(model, name="a"), replace(lead_job(), query=query))
    effort = effort_of(drafts)
    assert (effort.input_tokens, effort.output_tokens) == (1000, 50) and not effort.estimated
    assert text_of(drafts) == "".join(parts)


def test_a_choice_is_handed_on_when_it_is_complete() -> None:
    query = replace(tiny.query("Which?"), constraint=Constraint("choice", '["red", "blue"]'))
    job = replace(lead_job(), query=query)
    (draft,) = streamed(ChatModelMember(writing("bl", "ue", "\n"), name="a"), job)
    assert (draft.text, draft.ended) == ("blue", True)
    model = writing("It is ", "blue")
    (failure,) = ChatModelMember(model, name="a").stream(job)
    assert isinstance(failure, Failure) and "is not what was asked for" in failure.message
    assert len(model.asked) == 2 and failure.effort.requests == 2


@pytest.mark.parametrize("how", REASONED)
def test_reasoning_arrives_before_the_text(how: str) -> None:
    drafts = streamed(ChatModelMember(thinker(**REASONED[how]), name="a"), lead_job())
    if tags := REASONED[how].get("thought"):
        assert text_of(drafts) == f"{tags}{STORY}", "without a vote, tags are text"
        return
    assert "".join(draft.thought for draft in drafts).strip() == "Well, blue?"
    assert drafts[0].thought and text_of(drafts) == STORY


def test_a_chat_model_without_a_stream_says_so() -> None:
    class InOnePiece(Talker):
        disable_streaming: Any = True

        def _generate(self, *args: Any, **options: Any) -> ChatResult:
            return ChatResult(generations=[ChatGeneration(message=AIMessage(STORY))])

    member = ChatModelMember(InOnePiece(asked=[], said=[], closed=[]), name="a")
    assert text_of(streamed(member, lead_job())) == STORY
    assert member.silence_s == (120, 120)


@pytest.mark.parametrize(
    ("model", "silence_s"),
    [
        (openai(model="gpt-4.1"), (10, 10)),
        (openai(model="gpt-4.1", disable_streaming="tool_calling"), (120, 120)),
        (openai(model="gpt-4.1", cache=InMemoryCache()), (120, 120)),
        (openai(model="gpt-5"), (120, 120)),
        (openai(model="gpt-5", reasoning_effort="none"), (10, 10)),
        (openai(model="an-alias", reasoning={"effort": "low"}), (120, 120)),
        (anthropic(model="claude-sonnet-5"), (120, 120)),
        (anthropic(model="claude-sonnet-5", thinking={"type": "disabled"}), (10, 10)),
        (anthropic(model="an-alias", thinking={"type": "adaptive"}), (120, 120)),
        (ChatOllama(model="qwen3", reasoning=True), None),
    ],
    ids=lambda given: getattr(given, "model_name", getattr(given, "model", str(given))),
)
def test_silence_lasts_longer_where_nothing_is_shown_of_a_reply_under_way(
    model: Any, silence_s: Any
) -> None:
    """OpenAI's models reason unseen, and so do Claude's by default since version 4.7. Ollama loads
    a model when it is asked for."""
    assert ChatModelMember(model).silence_s == silence_s


# --- failures -------------------------------------------------------------------------------------


def test_a_stream_that_is_cut_keeps_what_has_arrived() -> None:
    member = ChatModelMember(writing("The sky", " is bl", breaks=True), name="a")
    *drafts, failure = member.stream(lead_job())
    assert [draft.text for draft in drafts if isinstance(draft, Draft)] == ["The sky", " is bl"]
    assert isinstance(failure, Failure) and failure.kind == "error" and "reset" in failure.message


def test_a_reply_that_is_cancelled_is_not_complete() -> None:
    """``SpecFuseChatModel.unload`` while an answer is read."""
    member = ChatModelMember(talker(), name="a")
    stream = member.stream(lead_job())
    assert isinstance(next(stream), Draft)
    member.unload()
    (failure,) = stream
    assert isinstance(failure, Failure) and "cancelled" in failure.message


@pytest.mark.parametrize("how", SAID_NO)
def test_a_refusal_is_a_refusal_and_is_not_asked_for_again(how: str) -> None:
    model = refuser(*SAID_NO[how])
    member = ChatModelMember(model, name="a")
    *drafts, reply = member.stream(lead_job())
    assert not any(draft.text or draft.ended for draft in drafts if isinstance(draft, Draft))
    assert isinstance(reply, Failure) and (reply.kind, reply.message) == ("refusal", NO)
    effort = sum((draft.effort for draft in drafts), reply.effort)
    assert (effort.input_tokens, effort.output_tokens) == (9, 7)
    (again,) = member.stream(lead_job())
    assert again == reply and len(model.asked) == 1


def test_replies_that_start_over_are_reported_with_their_cost() -> None:
    job = lead_job(answer=(Segment("The sky was"),))
    (reply,) = ChatModelMember(counted(usages=[(40, 30)], way="no"), name="a").stream(job)
    assert isinstance(reply, Failure) and "cannot continue" in reply.message
    assert reply.effort.requests == 3, "one for each way, and one for the whole answer"


# --- one open stream ------------------------------------------------------------------------------


def test_a_lead_goes_on_with_the_stream_of_its_drafts() -> None:
    model = counted(usages=[(40, 30)])
    member = ChatModelMember(model, name="a")
    first = drafted(member, draft_job(segment_tokens=3))
    drafts = streamed(member, lead_job(answer=(Segment(first.text),)))
    assert first.text + text_of(drafts) == STORY and len(model.asked) == 1
    effort = effort_of([first, *drafts])
    assert (effort.requests, effort.input_tokens, effort.output_tokens) == (1, 40, 30)


def test_a_draft_goes_on_with_a_stream_that_nobody_reads_any_more() -> None:
    """A check stops a lead, and the member drafts again."""
    model = talker()
    member = ChatModelMember(model, name="a")
    stream = member.stream(lead_job())
    begun = [next(stream) for _ in range(3)]
    stream.close()  # type: ignore[attr-defined]
    assert len(model.said) == 3 and not model.closed
    agreed = "".join(draft.text for draft in begun if isinstance(draft, Draft))
    draft = drafted(member, draft_job(answer=(Segment(agreed),), segment_tokens=2))
    assert STORY.startswith(agreed + draft.text) and len(model.asked) == 1
    member.forget(draft_job().query.id)
    assert model.closed


def test_a_draft_after_collected_text_that_broke_off_fails() -> None:
    """A check stops a lead whose reply broke off behind text that was read in one go."""
    member = ChatModelMember(writing("The", " sky", " is", " blue", breaks=True), name="a")
    for number in range(9):
        next(member.stream(lead_job(id=f"other {number}")))
    stream = member.stream(lead_job())
    agreed = "".join(next(stream).text for _ in range(2))  # type: ignore[union-attr]
    stream.close()  # type: ignore[attr-defined]
    assert agreed == "The sky is blue"
    (reply,) = member.draft([draft_job(answer=(Segment(agreed),), segment_tokens=2)])
    assert isinstance(reply, Failure) and "broke off" in reply.message


def test_a_lead_continues_the_text_of_others_in_a_new_request() -> None:
    model = talker(way="instruct")
    member = ChatModelMember(model, name="a")
    drafts = streamed(member, lead_job(answer=(Segment("The sky was"),)))
    assert text_of(drafts) == STORY.removeprefix("The sky is")
    assert len(model.asked) == 1


def test_whatever_arrives_is_noted_and_a_closed_stream_ends() -> None:
    """Parts without text, such as those of a tool call, are signs that the model is there."""
    chunk: Any = {"name": "look", "args": "", "id": "1", "index": 0, "type": "tool_call_chunk"}
    seen: list[float] = []
    call = Call()

    class Calling(Talker):
        def _stream(self, *args: Any, **options: Any) -> Iterator[ChatGenerationChunk]:
            for _ in range(3):
                yield ChatGenerationChunk(message=AIMessageChunk("", tool_call_chunks=[chunk]))
                seen.append(call.last)
            call.close()
            yield from super()._stream(*args, **options)

    model = Calling(asked=[], said=[], closed=[])
    with call.in_this_thread():
        *drafts, reply = ChatModelMember(model, name="a").stream(lead_job())
    assert not any(draft.text for draft in drafts if isinstance(draft, Draft))
    assert len(set(seen)) == 3 and seen == sorted(seen)
    assert isinstance(reply, Failure) and "given up" in reply.message
    assert model.said == ["The"] and model.closed, "no more is read"
