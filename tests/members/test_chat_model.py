"""Any LangChain chat model as a member: streams, continuations, ballots and failures."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial, reduce
from operator import add
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from langchain_core.caches import InMemoryCache
from langchain_core.exceptions import ModelError, ModelRefusalError, ModelTimeoutError
from langchain_core.language_models import BaseChatModel, FakeListChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_ollama import ChatOllama
from langchain_openai import ChatOpenAI

from langchain_specfuse import (
    ChatModelMember,
    EnsembleError,
    ScriptedMember,
    SpecFuseChatModel,
    UsageError,
)
from langchain_specfuse.chat.members import ensemble_for
from langchain_specfuse.chat.references import checked_member, names_of
from langchain_specfuse.core.answer import is_safe
from langchain_specfuse.core.options import Method, Settings
from langchain_specfuse.core.values import (
    Candidate,
    Effort,
    Failure,
    Query,
    Sampling,
    Segment,
    Turn,
)
from langchain_specfuse.engine import Ensemble
from langchain_specfuse.members.chat_model.words import words_of
from tests.methods import in_method

from . import tiny
from .contract import MemberContract, draft_job, drafted, score_job, scored
from .fake_server import FakeServer

STORY = (
    "The sky is blue because air scatters blue light more than red light, and so it comes from "
    "everywhere."
)


class Talker(BaseChatModel):
    """A chat model that writes a script word by word and continues text in one of the ways of real
    models: an assistant message at the end (``continue``, as older Claude models), when asked to
    (``instruct``), after all of the text (``repeat``), or not at all."""

    script: str = STORY
    way: str = "continue"
    letter: str = "B"
    finish: str = "stop"
    thought: str = ""
    asked: list[Any] = []  # noqa: RUF012 (a field)
    said: list[str] = []  # noqa: RUF012
    closed: list[bool] = []  # noqa: RUF012
    error: Any = None

    @property
    def _llm_type(self) -> str:
        return "talker"

    def _get_ls_params(self, *args: Any, **options: Any) -> Any:
        params = super()._get_ls_params(*args, **options)
        return {**params, "ls_provider": "anthropic"} if self.way == "continue" else params

    def _generate(self, *_: Any, **__: Any) -> ChatResult:
        raise NotImplementedError

    def _stream(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **options: Any
    ) -> Iterator[ChatGenerationChunk]:
        self.asked.append((messages, options))
        if self.error is not None:
            raise self.error
        try:
            for word in re.findall(r"\s*\S+", self._reply(messages)):
                self.said.append(word)
                yield ChatGenerationChunk(message=AIMessageChunk(word))
            yield ChatGenerationChunk(
                message=AIMessageChunk("", response_metadata={"finish_reason": self.finish})
            )
        finally:
            self.closed.append(True)

    def _reply(self, messages: list[BaseMessage]) -> str:
        if "Reply with its letter" in messages[-1].text:
            return self.letter
        script = self.script
        begun = next(
            (message.text for message in reversed(messages) if isinstance(message, AIMessage)), ""
        )
        if isinstance(messages[-1], AIMessage):
            continues = self.way == "continue"
        else:
            instructed = "Continue your last message" in messages[-1].text
            continues = instructed and self.way == "instruct"
        place = len(begun.split()) if continues else 0
        words = script.split()[place:]
        if self.way == "repeat" and begun:
            return f"{begun} {' '.join(script.split()[len(begun.split()) :])}"
        space = " " if place and self.way == "continue" else ""
        return self.thought + space + " ".join(words)


def talker(**fields: Any) -> Talker:
    return Talker(asked=[], said=[], closed=[], **fields)


class Voteless(ChatModelMember):
    """Reports that it cannot score, because the contract's rules for scores do not apply to
    ballots."""

    def probe(self) -> Any:
        return replace(super().probe(), scores=False)


class TestContract(MemberContract):
    @pytest.fixture
    def make_member(self) -> Callable[[], ChatModelMember]:
        return lambda: Voteless(talker(), name="talker")


class TestContractInstructed(MemberContract):
    @pytest.fixture
    def make_member(self) -> Callable[[], ChatModelMember]:
        return lambda: Voteless(talker(way="instruct"), name="talker")


def rounds(members: list[Any], **settings: Any) -> list[Any]:
    query = Query("q", (Turn("user", "Why is the sky blue?"),))
    return list(
        Ensemble(members).rounds(
            query, Settings(**in_method(segment_tokens=4, max_tokens=64, **settings))
        )
    )


# --- streams --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("way", "finish"), [("continue", "stop"), ("restart", "end_turn"), ("restart", "eos_token")]
)
def test_alone_it_is_asked_once_and_writes_its_own_answer(way: str, finish: str) -> None:
    model = talker(way=way, finish=finish)
    answered = rounds([ChatModelMember(model, name="a")])
    assert "".join(round.text for round in answered) == STORY and len(answered) > 3
    assert len(model.asked) == 1 and answered[-1].finish == "stop"


def test_a_lead_that_cannot_continue_a_text_writes_while_it_is_not_corrected() -> None:
    model, other = talker(way="restart"), ScriptedMember("Nothing of the kind.", name="b")
    lead = ChatModelMember(model, name="a")
    answered = rounds([lead, other], lead="a", method=Method(margin=math.inf))
    assert "".join(round.text for round in answered) == STORY and other.draft_calls == 0


def test_where_another_draft_is_agreed_its_stream_is_cancelled_and_a_new_one_continues() -> None:
    model = talker()
    member = ChatModelMember(model, name="a")
    first = drafted(member, draft_job(segment_tokens=3))
    sent = len(model.said)
    assert first.text == "The sky is" and sent < len(STORY.split()) // 2
    closed = len(model.closed)
    second = drafted(member, draft_job(answer=(Segment("The sky was"),), segment_tokens=3))
    assert second.text == " blue because air" and len(model.closed) > closed
    messages, _ = model.asked[-1]
    assert isinstance(messages[-1], AIMessage) and messages[-1].text == "The sky was"
    assert len(model.said) < sent + 8, "no more is read than the draft needs"


def test_the_stream_goes_on_where_another_member_wrote_what_it_would_have_written() -> None:
    model = talker()
    member = ChatModelMember(model, name="a")
    drafted(member, draft_job(segment_tokens=3))
    asked = len(model.asked)
    job = draft_job(answer=(Segment("The sky is blue because"),), segment_tokens=2)
    assert drafted(member, job).text == " air scatters"
    assert len(model.asked) == asked


def test_another_sample_is_another_request_with_its_temperature() -> None:
    model = talker()
    member = ChatModelMember(model, name="a")
    job = draft_job(segment_tokens=3)
    efforts = [drafted(member, job).effort]
    for seed in (1, 2):
        closed = len(model.closed)
        sample = replace(job, sampling=Sampling(temperature=0.7, seed=seed))
        efforts.append(drafted(member, sample).effort)
        assert len(model.closed) == closed + 1, "the stream of the last draft is cancelled"
    assert [options for _, options in model.asked] == [{}, *[{"temperature": 0.7}] * 2]
    assert [effort.requests for effort in efforts] == [1, 1, 1]
    assert all(effort.input_tokens and effort.output_tokens for effort in efforts)


def test_after_text_was_withdrawn_another_sample_continues_what_stands() -> None:
    model = talker()
    member = ChatModelMember(model, name="a")
    answer: tuple[Segment, ...] = ()
    for _ in range(3):
        draft = drafted(member, draft_job(answer=answer, segment_tokens=3))
        answer = (*answer, Segment(draft.text))
    stands = answer[:1]
    # the same job again is the same draft, which has been paid for
    again = drafted(member, draft_job(answer=stands, segment_tokens=3))
    assert again.text == answer[1].text
    assert (again.effort.requests, again.effort.read) == (0, 0)
    closed, requests = len(model.closed), len(model.asked)
    warm = Sampling(temperature=0.7, seed=1)
    sample = drafted(member, draft_job(answer=stands, segment_tokens=3, sampling=warm))
    assert sample.text == answer[1].text, "this model writes the same at any temperature"
    messages, options = model.asked[-1]
    assert messages[-1].text == stands[0].text
    assert options == {"temperature": 0.7}
    assert len(model.asked) == requests + 1 and sample.effort.requests == 1
    assert len(model.closed) == closed + 1, "the stream of the withdrawn text is cancelled"
    following = (*stands, Segment(sample.text))
    more = drafted(member, draft_job(answer=following, segment_tokens=3, sampling=warm))
    assert more.effort.requests == 0, "its own stream goes on"


def test_it_says_that_it_cannot_exclude_tokens() -> None:
    assert not ChatModelMember(talker()).probe().excludes
    assert not ScriptedMember(STORY).probe().excludes


def test_forgetting_cancels_the_stream() -> None:
    model = talker()
    member = ChatModelMember(model, name="a")
    drafted(member, draft_job(segment_tokens=3))
    closed, sent = len(model.closed), len(model.said)
    member.forget("q")
    assert len(model.closed) == closed + 1 and len(model.said) == sent


# --- continuations --------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["continue", "instruct", "repeat"])
def test_a_continuation_begins_where_the_answer_stops(way: str) -> None:
    member = ChatModelMember(talker(way=way), name="a")
    for answer in ("The sky is", "The sky is blue because air scatters"):
        rest = STORY.split()[len(answer.split()) :]
        assert drafted(
            member, draft_job(answer=(Segment(answer),), segment_tokens=3)
        ).text == " " + " ".join(rest[:3])


def test_a_model_that_cannot_continue_leaves_with_advice() -> None:
    member = ChatModelMember(talker(way="restart"), name="a")
    (reply,) = member.draft([draft_job(answer=(Segment("The sea"),))])
    assert isinstance(reply, Failure) and "cannot continue a given text" in reply.message
    (advice,) = getattr(reply.cause, "notes", [])
    assert ".gguf" in advice and "lead='a'" in advice and "segment='answer'" in advice
    (reply,) = member.draft([replace(draft_job(answer=(Segment("The sea"),)), leads=True)])
    assert isinstance(reply, Failure)
    (advice,) = getattr(reply.cause, "notes", [])
    assert ".gguf" in advice and "lead=" not in advice, "it leads already"
    answered = rounds(
        [ScriptedMember("It is green, and that is that, of course.", name="s"), member], lead=None
    )
    assert answered[-1].finish == "stop"


# --- words in place of tokens ---------------------------------------------------------------------

LONG = {
    "Chinese": "天空看起来是蓝色的，因为空气散射蓝光比散射红光更多。" * 60,
    "Japanese": "空が青いのは、空気が赤い光より青い光を多く散乱させるからです。" * 60,
    "Thai": "ท้องฟ้าเป็นสีฟ้าเพราะอากาศกระเจิงแสงสีน้ำเงินมากกว่าแสงสีแดง " * 60,
    "Thai without a space": "ท้องฟ้าเป็นสีฟ้าเพราะอากาศกระเจิงแสงสีน้ำเงินมากกว่าแสงสีแดง" * 60,
    "emoji": "😀🎉" * 800,
    "an address": "https://example.org/" + "a/b1?c=2&" * 300,
    "base64": "iVBORw0KGgoAAAANSUhEUgAA" * 100,
    "new lines": "So:" + "\n" * 2000 + "It is.",
    "Chinese and English": "天空is蓝色的 because 空气scatters蓝光。" * 60,
}


class Verbatim(Talker):
    """Streams its script unchanged, a few characters at a time, and continues a begun answer."""

    def _stream(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **options: Any
    ) -> Iterator[ChatGenerationChunk]:
        self.asked.append((messages, options))
        reply = self._reply(messages)
        for at in range(0, len(reply), 3):
            self.said.append(reply[at : at + 3])
            yield ChatGenerationChunk(message=AIMessageChunk(reply[at : at + 3]))
        last = AIMessageChunk("", response_metadata={"finish_reason": self.finish})
        yield ChatGenerationChunk(message=last)

    def _reply(self, messages: list[BaseMessage]) -> str:
        begun = messages[-1].text if isinstance(messages[-1], AIMessage) else ""
        return self.script[len(begun) :]


def verbatim(**fields: Any) -> Verbatim:
    return Verbatim(asked=[], said=[], closed=[], **fields)


@pytest.mark.parametrize("kind", LONG)
def test_max_tokens_bounds_text_without_spaces(kind: str) -> None:
    """In a whole answer, also if a chat model does not keep to it."""
    model = verbatim(script=LONG[kind])
    how = {"segment": "answer", "result": "text"}
    answer = SpecFuseChatModel(members=[model], max_tokens=20, **in_method(**how)).invoke("Why?")
    assert answer.response_metadata["finish_reason"] == "length"
    assert LONG[kind].startswith(answer.text) and 10 <= len(answer.text) <= 20 * 16
    used = answer.response_metadata["specfuse"]["usage"]["Verbatim"]
    assert answer.usage_metadata["output_tokens"] == used["output_tokens"] >= 20
    assert used["estimated"]
    assert [options["max_tokens"] for _, options in model.asked] == [20]
    assert len("".join(model.said)) < 3 * len(answer.text) + 200, "no more is read than is needed"


@pytest.mark.parametrize("kind", LONG)
def test_drafts_of_text_without_spaces_end_at_safe_places(kind: str) -> None:
    member = ChatModelMember(verbatim(script=LONG[kind]), name="a")
    draft = drafted(member, draft_job(segment_tokens=6, max_tokens=10_000))
    if safe := [at for at in range(1, len(LONG[kind]) - 1) if is_safe(LONG[kind], at)]:
        assert len(draft.text) in safe or draft.ended
        assert len(draft.tokens) < 2 * max(6, len(words_of(LONG[kind][: safe[0]]))) + 16
    if "Chinese" in kind:
        assert len(draft.tokens) == 6


def test_max_cost_counts_text_without_spaces() -> None:
    """Words of a cancelled stream are counted; each character costs a dollar."""
    models = [verbatim(script=LONG["Chinese"].replace("蓝", colour)) for colour in "红灰"]
    members = [
        ChatModelMember(model, name=name, price=(0, 1e6))
        for model, name in zip(models, "ab", strict=True)
    ]
    llm = SpecFuseChatModel(
        members=members, lead=None, method=Method(segment_tokens=8), max_cost=15
    )
    usage = llm.invoke("Why?", max_tokens=40).response_metadata["specfuse"]["usage"]
    assert all(total["cost"] >= 8 for total in usage.values())
    asked = [messages[-1].text for model in models for messages, _ in model.asked]
    assert not any("Reply with its letter" in text for text in asked), "the drafts cost 16 dollars"


@given(st.text(st.sampled_from("ab,.é \n天空ทเ😀\u200d\u0301")))
def test_words_join_to_the_text(text: str) -> None:
    words = words_of(text)
    assert "".join(words) == text and all(words) and all(len(word) <= 28 for word in words)


class Echo(Verbatim):
    """Continues its script correctly, but first repeats a part of what it continues."""

    echo: Callable[[str], str] = str

    def _reply(self, messages: list[BaseMessage]) -> str:
        begun = next(
            message.text for message in reversed(messages) if isinstance(message, AIMessage)
        )
        return self.echo(begun) + self.script[len(begun) :]


def echo(**fields: Any) -> Echo:
    return Echo(asked=[], said=[], closed=[], **fields)


ECHOES = {
    "nothing": lambda text: "",
    "everything": str,
    "everything after white space": lambda text: f"\n{text}",
    "everything after an opener": lambda text: f"Of course! Here is the whole text:\n\n{text}",
    "its end": lambda text: end_of(text),
}
PARTS_OF_TEXTS = [
    "| a | b |\n",
    "ha ",
    "the sky is blue. ",
    "    return x\n",
    "天空",
    "\n",
    "so: ",
    "😀 ",
]


def end_of(text: str) -> str:
    """The last words of a text, of twelve characters or more, if it has them once."""
    starts = [match.start() for match in re.finditer(r"\S+", text)]
    ends = [text[at:] for at in starts if len(text) - at >= 12]
    return ends[-1] if ends and text.find(ends[-1]) == len(text) - len(ends[-1]) else ""


@pytest.mark.parametrize(
    ("way", "echoed"),
    [
        *(("continue", echoed) for echoed in ECHOES if echoed != "its end"),
        *(("instruct", echoed) for echoed in ECHOES),
    ],
)
@given(st.data())
@settings(max_examples=20, deadline=None)
def test_a_true_continuation_is_neither_cut_nor_doubled(echoed: str, way: str, data: Any) -> None:
    """A model that was asked for the rest may begin it with the end of the text; a text that goes
    on with its own end then has it once."""
    parts = data.draw(st.lists(st.sampled_from(PARTS_OF_TEXTS), min_size=2, max_size=24))
    text = "".join(["Well, so ", *parts, "end."])
    at = data.draw(st.sampled_from([at for at in range(4, len(text)) if is_safe(text, at)]))
    if way == "instruct":
        ends = [text[start:at].strip() for start in range(at - 11)]
        assume(not any(text[at:].lstrip().startswith(end) for end in ends if len(end) >= 12))
    member = ChatModelMember(echo(script=text, way=way, echo=ECHOES[echoed]), name="a")
    draft = drafted(member, draft_job(answer=(Segment(text[:at]),), segment_tokens=6))
    assert draft.text and text[at:].startswith(draft.text)


@pytest.mark.parametrize("way", ["continue", "instruct"])
def test_equal_rows_are_all_written(way: str) -> None:
    """Of a model that is asked for the rest, one row after a single one may be the repeated end of
    the text."""
    row = "| 1 | blue | yes |\n"
    table = "Colours:\n" + row * 6 + "Done."
    model = echo(script=table, way=way, echo=ECHOES["nothing"])
    for rows in range(1 if way == "continue" else 2, 6):
        answer = (Segment("Colours:\n" + row * rows),)
        member = ChatModelMember(model, name="a")
        draft = drafted(member, draft_job(answer=answer, segment_tokens=60))
        assert draft.text == row * (6 - rows) + "Done."


# --- whole answers, reasoning and ends ------------------------------------------------------------


SAID = {
    "title": "Said",
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
}


@pytest.mark.parametrize("segment", ["draft", "answer"])
@pytest.mark.parametrize("written", ['{"ok": true}', '{\n "ok":true}'], ids=["plain", "spaced"])
def test_a_model_without_a_format_is_asked_for_an_object_in_a_sentence(
    written: str, segment: str
) -> None:
    model = verbatim(script=written)
    llm = SpecFuseChatModel(members=[model], method=Method(segment=segment))
    found = llm.with_structured_output(SAID, include_raw=True).invoke("Is it?")
    assert found["parsed"] == {"ok": True} and found["raw"].text == written
    ((messages, _),) = model.asked
    assert [message.type for message in messages] == ["system", "human"]
    assert '"boolean"' in messages[0].text and messages[1].text == "Is it?"


@pytest.mark.parametrize("segment", ["draft", "answer"])
def test_a_model_that_writes_prose_in_place_of_an_object_is_asked_once_more(segment: str) -> None:
    model = talker(way="no")
    llm = SpecFuseChatModel(members=[model], method=Method(segment=segment)).with_structured_output(
        SAID
    )
    with pytest.raises(EnsembleError, match="is not what was asked for: it is not JSON"):
        llm.invoke("Is it?")
    (first, _), (second, _) = model.asked
    assert second[:2] == first and second[2].text == STORY
    assert "it is not JSON" in second[3].text
    model.script = '{"ok": true}'
    assert llm.invoke("Is it?") == {"ok": True} and len(model.asked) == 3


def test_it_writes_whole_answers() -> None:
    models = [
        talker(script="6 * 7 = 42 #### 42", way="restart"),
        talker(script="It is 42.", way="restart"),
    ]
    llm = SpecFuseChatModel(members=models, method=Method(segment="answer", result="number"))
    assert llm.invoke("6 * 7?").text == "6 * 7 = 42 #### 42"


class Thinker(Talker):
    """Streams reasoning in separate chunks before its first word."""

    chunks: list[Any]

    def _stream(self, *args: Any, **options: Any) -> Iterator[ChatGenerationChunk]:
        for chunk in self.chunks:
            self.said.append("")
            yield ChatGenerationChunk(message=chunk)
        yield from super()._stream(*args, **options)


def fields(name: str, provider: str = "") -> list[AIMessageChunk]:
    said_by = {"model_provider": provider} if provider else {}
    return [
        AIMessageChunk("", additional_kwargs={name: word}, response_metadata=said_by)
        for word in ("Well,", " blue?")
    ]


HARMONY = (
    "<|channel|>analysis<|message|>Well, blue?<|end|><|start|>assistant<|channel|>final<|message|>"
)
BLOCKS: list[Any] = [
    [{"type": "reasoning", "reasoning": word, "index": 0}] for word in ("Well,", " blue?")
]
REASONED = {
    "tags": {"thought": "<think>Well, blue? </think>\n\n"},
    "channels": {"thought": HARMONY},
    "blocks": {"chunks": [AIMessageChunk(block) for block in BLOCKS]},
    "field": {"chunks": fields("reasoning_content")},
    "field of a server like OpenAI's": {"chunks": fields("reasoning_content", "openai")},
    "other field": {"chunks": fields("reasoning")},
}


def thinker(**options: Any) -> Thinker:
    return Thinker(asked=[], said=[], closed=[], **{"chunks": [], **options})


@pytest.mark.parametrize("how", REASONED)
def test_reasoning_is_not_part_of_the_answer(how: str) -> None:
    """A vote separates reasoning in tags too, since the members score the text after it. The text
    of a lead is its provider's own."""
    tags = REASONED[how].get("thought", "")
    answered = rounds([ChatModelMember(thinker(**REASONED[how]), name="a")])
    assert "".join(round.text for round in answered) == str(tags) + STORY
    thoughts = [thought for round in answered for thought in round.thoughts.values()]
    assert "".join(thoughts) == ("" if tags else "Well, blue?")
    draft = drafted(
        ChatModelMember(thinker(**REASONED[how]), name="a"), draft_job(segment_tokens=3)
    )
    assert (draft.text, draft.thought) == ("The sky is", "Well, blue?")
    # it reasons again before it continues another member's text
    for way in ("continue", "instruct"):
        member = ChatModelMember(thinker(way=way, **REASONED[how]), name="a")
        draft = drafted(member, draft_job(answer=(Segment("The sky was"),), segment_tokens=3))
        assert (draft.text, draft.thought) == (" blue because air", "Well, blue?")
        drafts = [Candidate(" is red", False, ("x",)), Candidate(" is blue", False, ("y",))]
        assert scored(member, score_job(*drafts)).logprobs[0] == pytest.approx([math.log(0.5)])


THOUGHTS = [
    "<think>" + "so it goes " * 100,
    [AIMessageChunk("", additional_kwargs={"reasoning": " so"})] * 100,
]


@pytest.mark.parametrize("thought", THOUGHTS, ids=["tags", "chunks"])
def test_endless_reasoning_is_cancelled_and_the_others_finish(thought: Any) -> None:
    model = thinker(**({"thought": thought} if isinstance(thought, str) else {"chunks": thought}))
    member = ChatModelMember(model, name="a", thinking_tokens=40)
    answered = rounds([member, ScriptedMember(STORY, name="b")], lead=None)
    assert "".join(round.text for round in answered) == STORY and len(model.said) == 41
    (left,) = answered[0].left
    assert (left.member, left.kind) == (
        "a",
        "error",
    ) and "reasoned up to thinking_tokens=40" in left.reason
    if isinstance(thought, str):
        return  # without a vote, tags are text
    with pytest.raises(EnsembleError, match="no member is left") as raised:
        SpecFuseChatModel(members=[member]).invoke("Why?")
    assert "reasoning effort" in raised.value.notes[0]


def test_reasoning_that_uses_up_the_providers_tokens_is_a_failure() -> None:
    (reply,) = ChatModelMember(
        talker(thought="<think>so", script="", finish="length"), name="a"
    ).draft([draft_job()])
    assert isinstance(reply, Failure) and "up to its own max_tokens" in reply.message


@pytest.mark.parametrize(
    "make_model",
    [ChatOllama, partial(ChatOpenAI, api_key="none", max_retries=0)],
    ids=["ollama", "openai"],
)
def test_an_unreachable_server_is_named_with_advice(make_model: Any) -> None:
    url = "http://127.0.0.1:9"
    llm = SpecFuseChatModel(members=[make_model(model="m", base_url=f"{url}/v1")])
    with pytest.raises(EnsembleError, match=f"{url}.*Conn") as raised:
        llm.invoke("Why?")
    assert "start the server" in raised.value.notes[0]


# --- images and files -----------------------------------------------------------------------------

PIXEL = {"type": "image", "base64": "AAAA", "mime_type": "image/png"}
QUESTION = HumanMessage([{"type": "text", "text": "What colour is it?"}, PIXEL])


def test_an_empty_name_is_refused() -> None:
    with pytest.raises(UsageError, match=r"name.*empty.*''"):
        ChatModelMember("")


def test_images_go_to_all_that_write_and_vote() -> None:
    models = [
        Chooser(script=f"It is {word} in the picture.", asked=[], said=[], closed=[])
        for word in ("red", "blue")
    ]
    blind = ScriptedMember("It is blue in the picture.", name="blind")
    llm = SpecFuseChatModel(members=models, method=Method(verifiers=[blind]), lead=None)
    message = llm.invoke([HumanMessage("Look."), QUESTION])
    assert message.text == "It is red in the picture." and blind.score_calls == 0
    for model in models:
        (request, _), *ballots = model.asked
        assert [message.content for message in request] == ["Look.", QUESTION.content]
        assert len(ballots) == 2
        assert all(messages[-1].content[0] == PIXEL for messages, _ in ballots)
    assert llm.invoke([QUESTION]).text == message.text


@pytest.mark.parametrize(
    ("others", "block", "unable"),
    [
        ([ScriptedMember("Red.", name="b")], PIXEL, "b cannot"),
        ([talker(profile={"image_inputs": False})], PIXEL, "Talker#2 cannot"),
        ([talker(profile={"image_inputs": True, "pdf_inputs": False})], PIXEL, ""),
        (
            [talker(profile={"pdf_inputs": False})],
            {"type": "file", "url": "https://x.test/a.pdf"},
            "Talker#2 cannot",
        ),
    ],
)
def test_members_that_cannot_read_images_are_named_before_any_member_is_asked(
    others: Any, block: Any, unable: str
) -> None:
    model = talker()
    llm = SpecFuseChatModel(members=[model, *others], lead=None)
    if not unable:
        assert llm.invoke([HumanMessage([block])]).text == STORY
        return
    with pytest.raises(UsageError, match=f"{unable} read") as raised:
        llm.invoke([HumanMessage([block])])
    assert "in words" in raised.value.notes[0] and not model.asked


# --- langchain-openai with a recording server -----------------------------------------------------


@pytest.fixture
def openai() -> Iterator[tuple[FakeServer, ChatOpenAI]]:
    server = FakeServer("chat", None, tiny.tokenizer_of("bytes"))
    yield server, ChatOpenAI(model="tiny", base_url=server.url, api_key="none", max_retries=0)
    server.stop()


def streamed(*deltas: dict[str, Any]) -> bytes:
    ends = [*((delta, None) for delta in deltas), ({}, "stop")]
    chunks = [
        {"choices": [{"index": 0, "delta": delta, "finish_reason": end}], "model": "tiny"}
        for delta, end in ends
    ]
    return "".join(f"data: {part}\n\n" for part in [*map(json.dumps, chunks), "[DONE]"]).encode()


def test_an_image_reaches_the_provider_in_its_own_form(
    openai: tuple[FakeServer, ChatOpenAI],
) -> None:
    server, model = openai
    server.fault = lambda path, _: streamed(
        {"role": "assistant", "content": ""}, {"content": "It is red."}
    )
    assert SpecFuseChatModel(members=[model]).invoke([QUESTION]).text == "It is red."
    content = server.asked[-1][1]["messages"][-1]["content"]
    assert [part["type"] for part in content] == ["text", "image_url"], "as the caller wrote it"
    assert content[1]["image_url"]["url"] == "data:image/png;base64,AAAA"


def test_reasoning_that_the_chat_model_leaves_out_is_bounded(
    openai: tuple[FakeServer, ChatOpenAI],
) -> None:
    server, model = openai
    server.fault = lambda path, _: streamed(
        *[{"reasoning_content": " so"}] * 60, {"content": "It is red."}
    )
    assert (
        drafted(ChatModelMember(model, thinking_tokens=60), draft_job(id="enough")).text
        == "It is red."
    )
    (reply,) = ChatModelMember(model, thinking_tokens=40).draft([draft_job(id="less")])
    assert isinstance(reply, Failure) and "up to thinking_tokens=40" in reply.message


class Cut(Talker):
    """Its provider ends each of its replies after six words."""

    def _reply(self, messages: list[BaseMessage]) -> str:
        words = super()._reply(messages).split()
        self.finish = "length" if len(words) > 6 else "stop"
        return (" " if len(words) < len(STORY.split()) else "") + " ".join(words[:6])


def test_a_lead_that_reaches_its_own_limit_ends_the_answer() -> None:
    model, spare = Cut(asked=[], said=[], closed=[]), ScriptedMember(STORY, name="b")
    message = SpecFuseChatModel(members=[model, spare]).invoke("Why?")
    assert message.text == " ".join(STORY.split()[:6])
    assert message.response_metadata["finish_reason"] == "length"
    about = message.response_metadata["specfuse"]
    assert about["finish"] == "length" and about["exits"] == [] and not about["stalled"]
    assert len(model.asked) == 1 and spare.draft_calls == 0


def test_in_a_vote_an_answer_that_the_provider_cut_is_continued() -> None:
    """Without its last word, which may be incomplete."""
    models = [Cut(asked=[], said=[], closed=[]) for _ in range(2)]
    members = [ChatModelMember(model, name=name) for model, name in zip(models, "ab", strict=True)]
    answered = rounds(members, lead=None)
    assert "".join(round.text for round in answered) == STORY and answered[-1].finish == "stop"
    begun = [messages[-1].text for messages, _ in models[0].asked if len(messages) > 1]
    assert " ".join(STORY.split()[:5]) in begun


# --- how a reply ends -----------------------------------------------------------------------------


def ends_with(reason: str) -> AIMessageChunk:
    return AIMessageChunk("", response_metadata={"finish_reason": reason})


@pytest.mark.parametrize("reason", ["error", "abort", "insufficient_system_resource"])
def test_a_reply_whose_finish_reason_is_a_failure_has_broken_off(reason: str) -> None:
    first = ChatModelMember(refuser(AIMessageChunk("The sky is"), ends_with(reason)), name="a")
    (reply,) = first.draft([draft_job()])
    assert isinstance(reply, Failure) and f"broke off: its finish reason is {reason!r}" in str(
        reply
    )
    reserve = ScriptedMember("The sky is blue.", name="b")
    message = SpecFuseChatModel(members=[first, reserve]).invoke("Why?")
    assert message.text == "The sky is blue."
    (left,) = message.response_metadata["specfuse"]["exits"]
    assert (left["member"], left["kind"]) == ("a", "error")


def test_a_full_context_window_ends_a_reply_as_its_limit_does() -> None:
    """In a vote, its last word may be incomplete, and is left to the next request."""
    for name in ("model_context_window_exceeded", "length"):
        member = ChatModelMember(refuser(AIMessageChunk("The sky is"), ends_with(name)), name="a")
        (reply,) = member.draft([draft_job()])
        assert (reply.text, reply.ended) == ("The sky", False)


def test_a_connection_that_breaks_after_the_finish_reason_loses_nothing() -> None:
    broken = refuser(AIMessageChunk("The sky."), ends_with("stop"), ConnectionError("reset"))
    (reply,) = ChatModelMember(broken, name="a").draft([draft_job()])
    assert (reply.text, reply.ended) == ("The sky.", True)


THE_SKY = AIMessageChunk("The sky.")


@pytest.mark.parametrize(("text", "lead"), [("", "auto"), ("", None), ("<think>So", None)])
def test_a_first_reply_without_text_and_without_a_finish_reason_has_broken_off(
    text: str, lead: str | None
) -> None:
    model = refuser(AIMessageChunk(text))
    llm = SpecFuseChatModel(members=[model, ScriptedMember(STORY, name="b")], lead=lead)
    message = llm.invoke("Why?")
    assert message.text == STORY
    (left,) = message.response_metadata["specfuse"]["exits"]
    assert left["member"] == "Refuser" and "without text" in left["reason"]


def test_an_empty_reply_with_a_finish_reason_is_an_answer() -> None:
    llm = SpecFuseChatModel(members=[refuser(ends_with("stop")), ScriptedMember(STORY, name="b")])
    message = llm.invoke("Why?")
    assert message.text == "" and not message.response_metadata["specfuse"]["exits"]


def test_a_model_that_gives_no_reasons_may_have_nothing_to_add_to_the_text_of_others() -> None:
    class Terse(Talker):
        def _stream(self, *args: Any, **options: Any) -> Iterator[ChatGenerationChunk]:
            *words, _ = super()._stream(*args, **options)
            yield from words or [ChatGenerationChunk(message=AIMessageChunk(""))]

    member = ChatModelMember(Terse(asked=[], said=[], closed=[]), name="a")
    draft = drafted(member, draft_job(answer=(Segment(STORY),)))
    assert (draft.text, draft.ended) == ("", True)


def test_a_chat_model_that_is_created_again_is_still_known_to_give_reasons() -> None:
    """A broken connection may look like the end of a reply without a reason."""
    whole, broken = [THE_SKY, ends_with("stop")], [AIMessageChunk("The")]

    class Served(Refuser):
        model: str

        def _stream(self, *args: Any, **options: Any) -> Iterator[ChatGenerationChunk]:
            self.chunks = replies.pop(0)
            yield from super()._stream(*args, **options)

    def member(model: str) -> ChatModelMember:
        return ChatModelMember(Served(model=model, chunks=[], asked=[], said=[], closed=[]))

    replies = [whole, broken, broken]
    assert drafted(member("first"), draft_job()).ended
    (reply,) = member("first").draft([draft_job()])
    assert isinstance(reply, Failure) and "without a finish reason" in reply.message
    assert drafted(member("other"), draft_job()).text == "The"


# --- refusals -------------------------------------------------------------------------------------

NO = "I cannot help with that."
SAID_NO: dict[str, list[AIMessageChunk]] = {
    "OpenAI's field": [
        AIMessageChunk("", additional_kwargs={"refusal": part}) for part in ("I cannot", NO[8:])
    ],
    "a block": [AIMessageChunk([{"type": "refusal", "refusal": NO}])],
    "a block, then an end like any other": [
        AIMessageChunk([{"type": "refusal", "refusal": NO}]),
        AIMessageChunk("", response_metadata={"finish_reason": "stop"}),
    ],
    "a block as an older core wraps it": [
        AIMessageChunk([{"type": "non_standard", "value": {"type": "refusal", "refusal": NO}}])
    ],
}


NUMBERS = itertools.count()


class Refuser(Talker):
    """Refuses in these chunks or with an error, whatever it is asked to write."""

    chunks: list[Any]
    number: int = 0
    """Tells two of them apart: whether a model gives reasons for the end of its replies is known by
    its settings."""

    def _stream(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **options: Any
    ) -> Iterator[ChatGenerationChunk]:
        if "Reply with its letter" in messages[-1].text:
            yield from super()._stream(messages, stop, run_manager, **options)
            return
        self.asked.append((messages, options))
        for chunk in self.chunks:
            if isinstance(chunk, Exception):
                raise chunk
            yield ChatGenerationChunk(message=chunk)
        usage = UsageMetadata(input_tokens=9, output_tokens=7, total_tokens=16)
        yield ChatGenerationChunk(message=AIMessageChunk("", usage_metadata=usage))


def refuser(*chunks: Any) -> Refuser:
    number = next(NUMBERS)
    return Refuser(chunks=list(chunks), letter="?", number=number, asked=[], said=[], closed=[])


@pytest.mark.parametrize("how", SAID_NO)
def test_a_refusal_is_read_in_every_form(how: str) -> None:
    member = ChatModelMember(refuser(*SAID_NO[how]), name="a")
    (reply,) = member.draft([draft_job()])
    assert isinstance(reply, Failure) and (reply.kind, reply.message) == ("refusal", NO)
    assert (reply.effort.input_tokens, reply.effort.output_tokens) == (9, 7)


REASONS = [
    {"finish_reason": "content_filter"},
    {"finish_reason": "SAFETY"},
    {"stop_reason": "refusal"},
    {"stopReason": "guardrail_intervened"},
]


@pytest.mark.parametrize("reason", REASONS)
def test_a_reply_that_the_provider_breaks_off_is_a_refusal(reason: dict[str, str]) -> None:
    """Text that was agreed stays; text of the refused reply is not a draft."""
    words = [AIMessageChunk(word) for word in (" one", " two", " three", " four", " five")]
    chunks = [*words, AIMessageChunk("", response_metadata=reason)]
    member = ChatModelMember(refuser(*chunks), name="a")
    first = drafted(member, draft_job(segment_tokens=3))
    assert first.text == " one two three"
    (reply,) = member.draft([draft_job(answer=(Segment(first.text),), segment_tokens=3)])
    assert isinstance(reply, Failure) and reply.kind == "refusal" and "filter" in reply.message
    (reply,) = ChatModelMember(refuser(*chunks), name="a").draft([draft_job(segment_tokens=9)])
    assert isinstance(reply, Failure) and reply.kind == "refusal"


def test_a_member_that_refused_is_asked_once_for_an_answer() -> None:
    model = refuser(*SAID_NO["OpenAI's field"])
    llm = SpecFuseChatModel(
        members=[model, ScriptedMember(STORY, name="b")], lead=None, method=Method(segment_tokens=3)
    )
    for asked in (1, 2):
        message = llm.invoke("Why?")
        about = message.response_metadata["specfuse"]
        assert message.text == STORY and about["refusals"] == {"Refuser": NO}
        assert about["rounds"] > 3 and about["exits"] == [] and len(model.asked) == asked
        used = about["usage"]["Refuser"]
        assert (used["requests"], used["input_tokens"], used["output_tokens"]) == (1, 9, 7)


@pytest.mark.parametrize("how", ["OpenAI's field", "a block", "an error"])
def test_after_a_refusal_a_model_that_gives_no_reasons_is_believed_as_before(how: str) -> None:
    """A refusal is no reason for an end, so the end of later replies needs none."""
    refused = {"an error": [coded(NO, "content_filter")], **SAID_NO}[how]
    model = refuser(*refused)
    member = ChatModelMember(model, name="a")
    (reply,) = member.draft([draft_job()])
    assert isinstance(reply, Failure) and reply.kind == "refusal"
    model.chunks = [AIMessageChunk(STORY)]
    later = replace(draft_job(segment_tokens=99), query=tiny.query("Why else?"))
    draft = drafted(member, later)
    assert draft.text == STORY and draft.ended


def test_an_error_that_reports_a_refusal_is_a_refusal() -> None:
    for error in (ModelRefusalError(NO), coded(NO, "content_filter")):
        (reply,) = ChatModelMember(refuser(error), name="a").draft([draft_job()])
        assert isinstance(reply, Failure) and reply.kind == "refusal" and NO in reply.message


@pytest.mark.parametrize("segment", ["draft", "answer"])
@pytest.mark.parametrize("refusals", ["outvoted", "any"])
def test_the_error_of_a_provider_that_refuses_is_that_of_the_answer_unless_others_write(
    segment: Any, refusals: Any
) -> None:
    refuses = [refuser(coded(NO, "content_filter")) for _ in range(2)]
    options: dict[str, Any] = {"lead": None, "segment": segment, "refusals": refusals}
    if segment == "answer":
        options["result"] = "text"
    members = [refuses[0], ScriptedMember(STORY, name="b")]
    llm = SpecFuseChatModel(members=members, **in_method(**options))
    if refusals == "outvoted":
        message = llm.invoke("Why?")
        assert message.text == STORY and len(refuses[0].asked) == 1
        assert NO in message.response_metadata["specfuse"]["refusals"]["Refuser"]
    else:
        with pytest.raises(ModelRefusalError, match=NO):
            llm.invoke("Why?")
    with pytest.raises(EnsembleError, match=NO) as raised:
        SpecFuseChatModel(members=refuses, **in_method(**options)).invoke("Why?")
    assert isinstance(raised.value, ModelRefusalError) and not raised.value.is_retryable


def coded(text: str, code: str) -> Exception:
    error = RuntimeError(text)
    error.code = code  # type: ignore[attr-defined]
    return error


@pytest.mark.parametrize("how", SAID_NO)
def test_if_all_models_refuse_an_object_langchains_error_is_raised(how: str) -> None:
    schema = {"title": "Said", "type": "object", "properties": {"ok": {"type": "boolean"}}}
    schema["required"] = ["ok"]
    models = [refuser(*SAID_NO[how]), refuser(*SAID_NO["a block"])]
    for segment in ("draft", "answer"):
        llm = SpecFuseChatModel(members=models, method=Method(segment=segment))
        with pytest.raises(ModelError, match=NO) as raised:
            llm.with_structured_output(schema).invoke("Is it?")
        assert type(raised.value).__name__ == "ModelRefusalError"


def chunk_of(delta: dict[str, Any], end: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": end}
    return {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "tiny"} | {
        "choices": [choice]
    }


def events(*parts: Any) -> bytes:
    """Return server-sent events in the form of OpenAI's documentation."""
    lines = [f"event: {part['type']}\n" if "type" in part else "" for part in parts]
    texts = [f"{line}data: {json.dumps(part)}\n\n" for line, part in zip(lines, parts, strict=True)]
    return "".join([*texts, "data: [DONE]\n\n"]).encode()


RESPONSE = {
    "id": "r",
    "object": "response",
    "created_at": 1,
    "model": "tiny",
    "output": [],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
}
ITEM = {"output_index": 0, "content_index": 0, "item_id": "m"}
REFUSED_BY_OPENAI: dict[str, tuple[dict[str, Any], Any]] = {
    "with response_format": (
        {"model_kwargs": {"response_format": {"type": "json_object"}}},
        events(
            chunk_of({"role": "assistant", "content": None, "refusal": ""}),
            chunk_of({"refusal": "I cannot"}),
            chunk_of({"refusal": NO[8:]}),
            chunk_of({}, "stop"),
        ),
    ),
    "by the filter": (
        {},
        events(chunk_of({"role": "assistant", "content": ""}), chunk_of({}, "content_filter")),
    ),
    "by the Responses API": (
        {"use_responses_api": True},
        events(
            {"type": "response.created", "response": RESPONSE | {"status": "in_progress"}},
            {"type": "response.refusal.delta", "delta": NO, **ITEM},
            {"type": "response.refusal.done", "refusal": NO, **ITEM},
            {"type": "response.completed", "response": RESPONSE | {"status": "completed"}},
        ),
    ),
    "by Azure, before it begins": (
        {},
        (
            400,
            {"error": {"message": NO, "code": "content_filter", "type": None, "param": "prompt"}},
        ),
    ),
}


@pytest.mark.parametrize("how", REFUSED_BY_OPENAI)
def test_chat_openai_refuses(how: str) -> None:
    options, reply = REFUSED_BY_OPENAI[how]
    server = FakeServer("chat", None, tiny.tokenizer_of("bytes"))
    server.fault = lambda path, _: reply
    try:
        model = ChatOpenAI(
            model="tiny", base_url=server.url, api_key="none", max_retries=0, **options
        )
        llm = SpecFuseChatModel(members=[model, ScriptedMember(STORY, name="b")], lead=None)
        message = llm.invoke("Why?")
        (refusal,) = message.response_metadata["specfuse"]["refusals"].values()
        assert message.text == STORY and message.response_metadata["specfuse"]["exits"] == []
        assert NO in refusal or (how == "by the filter" and "filter" in refusal)
        if not isinstance(reply, bytes):  # an error, as that of the model alone
            with pytest.raises(ModelRefusalError, match=NO):
                SpecFuseChatModel(members=[model]).invoke("Why?")
            return
        alone = SpecFuseChatModel(members=[model]).invoke("Why?")
        assert alone.response_metadata["specfuse"]["finish"] == "refusal" and not alone.text
        own = reduce(add, model.stream("Why?"))
        assert alone.content == own.content
        assert alone.additional_kwargs == own.additional_kwargs
        for name in ("finish_reason", "status"):
            assert alone.response_metadata.get(name) == own.response_metadata.get(name)
    finally:
        server.stop()


ERROR_EVENTS = {
    "a message": 'event: error\ndata: {"message": "overloaded", "code": 500}\n\n',
    "an error object": 'event: error\ndata: {"error": {"message": "overloaded"}}\n\n',
    "text": "event: error\ndata: overloaded\n\n",
    "an object of an error": 'data: {"object": "error", "message": "overloaded"}\n\n',
    "details": 'data: {"detail": "overloaded"}\n\n',
    "nothing": "data: [DONE]\n\n",
}


@pytest.mark.parametrize("error", ERROR_EVENTS)
def test_an_error_event_as_the_first_reply_is_a_failure(
    error: str, openai: tuple[FakeServer, ChatOpenAI]
) -> None:
    server, model = openai
    server.fault = lambda path, _: ERROR_EVENTS[error].encode()
    message = SpecFuseChatModel(members=[model, ScriptedMember(STORY, name="b")]).invoke("Why?")
    assert message.text == STORY
    (left,) = message.response_metadata["specfuse"]["exits"]
    assert left["kind"] == "error"


@pytest.mark.parametrize(
    ("status", "text", "ended"),
    [("completed", "The sky.", True), ("incomplete", "The", False), ("", "The sky.", True)],
)
def test_the_responses_api_says_how_a_reply_ended(
    status: str, text: str, ended: bool, openai: tuple[FakeServer, ChatOpenAI]
) -> None:
    server, _ = openai
    said = {"type": "response.output_text.delta", "delta": "The sky.", "logprobs": [], **ITEM}
    details = {"incomplete_details": {"reason": "max_output_tokens"}} if not ended else {}
    last = {"type": f"response.{status}", "response": RESPONSE | {"status": status} | details}
    begun = {"type": "response.created", "response": RESPONSE | {"status": "in_progress"}}
    server.fault = lambda path, _: events(begun, said, *[last] * bool(status))
    model = ChatOpenAI(
        model=f"ends {status}",
        base_url=server.url,
        api_key="none",
        max_retries=0,
        use_responses_api=True,
    )
    draft = drafted(ChatModelMember(model), draft_job())
    assert (draft.text, draft.ended) == (text, ended)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("boom"), "error"),
        (TimeoutError("late"), "timeout"),
        (ModelTimeoutError("late"), "timeout"),
    ],
)
def test_an_error_of_the_model_is_a_failure_of_its_kind(error: Exception, kind: str) -> None:
    (reply,) = ChatModelMember(talker(error=error), name="a").draft([draft_job()])
    assert (
        isinstance(reply, Failure) and reply.kind == kind and type(error).__name__ in reply.message
    )


# --- ballots --------------------------------------------------------------------------------------


class Chooser(Talker):
    """Votes for the draft that contains a given word."""

    word: str = "red"

    def _reply(self, messages: list[BaseMessage]) -> str:
        if "Reply with its letter" not in messages[-1].text:
            return super()._reply(messages)
        return next(
            (
                line[0]
                for line in messages[-1].text.splitlines()
                if line[1:2] == ":" and self.word in line
            ),
            "?",
        )


def test_a_ballot_counts_both_orders() -> None:
    drafts = [Candidate(" is red", False, ("x",)), Candidate(" is blue", False, ("y",))]
    red, blue = scored(
        ChatModelMember(Chooser(asked=[], said=[], closed=[]), name="a"), score_job(*drafts)
    ).logprobs
    assert red[0] == pytest.approx(math.log(2.1 / 2.2)) and blue[0] == pytest.approx(
        math.log(0.1 / 2.2)
    )
    always_b = scored(ChatModelMember(talker(letter="B"), name="a"), score_job(*drafts)).logprobs
    assert always_b[0] == always_b[1], "whoever always takes the second has no preference"
    silent = scored(
        ChatModelMember(talker(letter="neither"), name="a"), score_job(*drafts)
    ).logprobs
    assert silent[0] == silent[1]


@pytest.mark.parametrize(
    ("reply", "share"),
    [
        ("b", 2.1 / 2.3),
        ("(b)", 2.1 / 2.3),
        ("**B**", 2.1 / 2.3),
        ("B, it is a bit clearer", 2.1 / 2.3),
        ("I think it is B", 2.1 / 2.3),
        ("The best continuation is B", 2.1 / 2.3),
        ("a bit of both", 1 / 3),
        ("A and B are the same", 1 / 3),
    ],
)
def test_a_ballot_is_a_letter_and_not_an_article(reply: str, share: float) -> None:
    """B is the second of three drafts in both orders."""
    drafts = [Candidate(f" is {colour}", False, (colour,)) for colour in ("red", "blue", "grey")]
    member = ChatModelMember(talker(letter=reply), name="a")
    assert scored(member, score_job(*drafts)).logprobs[1] == (pytest.approx(math.log(share)),)


def test_a_ballot_with_more_texts_than_letters_is_refused_before_any_request() -> None:
    model = talker(letter="A")
    texts = [Candidate(f" {number}", True, ()) for number in range(27)]
    member = ChatModelMember(model, name="a")
    assert len(scored(member, score_job(*texts[:26])).logprobs) == 26
    asked = len(model.asked)
    (reply,) = member.score([score_job(*texts)])
    assert isinstance(reply, Failure) and len(model.asked) == asked > 0
    assert reply.message == "a ballot lists at most 26 texts, got 27"


def test_members_without_log_probabilities_agree_by_ballot() -> None:
    scripts = (
        "The sky is blue today, they say.",
        "The sky is red today, they say.",
        "The sky is red today, they say.",
    )
    members = [Chooser(script=script, asked=[], said=[], closed=[]) for script in scripts]
    llm = SpecFuseChatModel(members=members, lead=None, method=Method(segment_tokens=4))
    assert llm.invoke("What colour is the sky?").text == scripts[1]


@pytest.mark.parametrize(("least", "asked"), [(-0.1, False), (-3.0, True), (None, True)])
def test_a_lead_that_shows_that_it_is_sure_is_not_put_to_the_vote(
    least: float | None, asked: bool
) -> None:
    class Shows(Talker):
        def _stream(self, *args: Any, **options: Any) -> Iterator[ChatGenerationChunk]:
            for chunk in super()._stream(*args, **options):
                logprobs = {}
                if least is not None:
                    logprobs = {"logprobs": {"content": [{"token": "x", "logprob": least}]}}
                chunk.message.response_metadata = {**logprobs, **chunk.message.response_metadata}
                yield chunk

    other = ScriptedMember(STORY.replace("blue", "red"), name="b", draft_only=True)
    answered = rounds(
        [ChatModelMember(Shows(letter="?", asked=[], said=[], closed=[]), name="a"), other],
        lead="a",
        method=Method(margin=0.5),
    )
    assert "".join(round.text for round in answered) == STORY and bool(other.draft_calls) == asked


# --- members as users write them ------------------------------------------------------------------


def test_a_chat_model_object_is_always_the_same_member() -> None:
    model = FakeListChatModel(responses=["Blue."])
    ensemble = ensemble_for([checked_member(model)])
    assert ensemble_for([model]) is ensemble and isinstance(
        ensemble.members["FakeListChatModel"], ChatModelMember
    )
    llm = SpecFuseChatModel(members=[model])
    assert llm.invoke("What colour is the sky?").text == "Blue."


SETTINGS = [{}, {"base_url": "http://b"}, {"top_p": 0.5}, {"stop": ["."]}, {"seed": 1}]


@pytest.mark.parametrize(
    "make_model", [ChatOllama, partial(ChatOpenAI, api_key="x")], ids=["ollama", "openai"]
)
def test_caches_tell_chat_models_of_different_settings_apart(make_model: Any) -> None:
    models = [
        make_model(**{"model": "m", "base_url": "http://a", **settings}) for settings in SETTINGS
    ]
    keys = [SpecFuseChatModel(members=[model])._get_llm_string() for model in models]
    assert len(set(keys)) == len(SETTINGS)
    if isinstance(make_model, partial):  # the API key does not change answers
        other = make_model(model="m", base_url="http://a", api_key="y")
        assert SpecFuseChatModel(members=[other])._get_llm_string() == keys[0]
    first, other = (
        SpecFuseChatModel(members=[FakeListChatModel(responses=[response])])
        for response in ("one", "two")
    )
    first.cache = other.cache = InMemoryCache()
    assert (first.invoke("Which?").text, other.invoke("Which?").text) == ("one", "two")


def test_a_model_that_was_bound_is_refused_with_advice() -> None:
    with pytest.raises(UsageError, match="a member is") as error:
        checked_member(talker().bind(stop=["."]))
    assert "pass the chat model itself" in error.value.notes[0]


def test_only_names_with_a_provider_become_chat_models() -> None:
    assert names_of(["ollama:llama3.2", "openai:gpt-5-mini"]) == ["llama3.2", "gpt-5-mini"]
    with pytest.raises(UsageError, match="not installed") as error:
        ensemble_for(["groq:llama-3.3"])
    assert "pip install langchain-groq" in error.value.notes[0]


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(UsageError, match="has no provider 'opnai'") as name_error:
        ensemble_for(["opnai:gpt-4.1"])
    assert name_error.value.notes == ("-> did you mean 'openai'?",)
    with pytest.raises(UsageError, match="a member is") as class_error:
        checked_member(FakeListChatModel)
    assert "make an object of it, FakeListChatModel(...)" in class_error.value.notes[0]
    with pytest.raises(UsageError, match=r"model.*BaseChatModel.*got 3") as type_error:
        ChatModelMember(3)
    assert "ChatModelMember('ollama:llama3.2')" in type_error.value.notes[0]
    for name in ("max_concurrency", "thinking_tokens"):
        with pytest.raises(UsageError, match=f"{name} must be"):
            ChatModelMember(talker(), **{name: 0})


def test_a_temperature_is_passed_on_only_where_the_answer_asks_for_one() -> None:
    model = talker()
    member = ChatModelMember(model, name="a")
    drafted(member, draft_job(id="cold"))
    drafted(member, draft_job(id="warm", sampling=Sampling(temperature=0.7)))
    assert [options for _, options in model.asked[-2:]] == [{}, {"temperature": 0.7}]


class Counted(Talker):
    """Reports its usage in these chunks after its words."""

    usages: list[tuple[int, int]]

    def _stream(self, *args: Any, **options: Any) -> Iterator[ChatGenerationChunk]:
        yield from super()._stream(*args, **options)
        for sent, written in self.usages:
            usage = UsageMetadata(
                input_tokens=sent, output_tokens=written, total_tokens=sent + written
            )
            yield ChatGenerationChunk(message=AIMessageChunk("", usage_metadata=usage))


def spent(answered: list[Any], name: str) -> Effort:
    efforts = [
        phase[name] for round in answered for phase in round.efforts.values() if name in phase
    ]
    return sum(efforts, Effort())


def test_counts_of_a_stream_that_reports_no_usage_are_marked_as_estimates() -> None:
    answered = rounds([ChatModelMember(counted(usages=[(40, 30)]), name="a")])
    first, whole = answered[0].efforts["draft"]["a"], spent(answered, "a")
    assert first.estimated and not whole.estimated, "the last round brings the provider's counts"
    assert (whole.input_tokens, whole.output_tokens) == (40, 30)
    assert spent(rounds([ChatModelMember(counted(usages=[]), name="a")]), "a").estimated
    # the first stream is cancelled, the second one is read to its end
    lead = ScriptedMember(STORY.replace("blue", "red"), name="b")
    member = ChatModelMember(counted(usages=[(40, 30)], letter="?"), name="a")
    consulted = rounds([lead, member], lead="b", method=Method(sure=1.1, margin=0.5))
    assert spent(consulted, "a").estimated


def counted(**options: Any) -> Counted:
    return Counted(asked=[], said=[], closed=[], **options)


PARTS = {
    "at once": [(40, 30)],
    "in increments": [(40, 0), (0, 10), (0, 20)],
    "with zeros": [(40, 1), (0, 29), (0, 0)],
}


@pytest.mark.parametrize("parts", PARTS)
def test_the_usage_of_chunks_is_added_as_langchain_adds_it(parts: str) -> None:
    chunks = list(counted(usages=PARTS[parts]).stream("Why?"))
    added = reduce(add, chunks).usage_metadata
    assert added is not None
    effort = spent(rounds([ChatModelMember(counted(usages=PARTS[parts]), name="a")]), "a")
    assert (effort.input_tokens, effort.output_tokens) == (
        added["input_tokens"],
        added["output_tokens"],
    )


def test_max_cost_sees_usage_that_arrives_in_increments() -> None:
    """Each ballot costs 40 dollars in increments of one; the first two reach the bound."""
    models = [
        counted(usages=[(0, 1)] * 40, script=STORY.replace("blue", word))
        for word in ("red", "grey")
    ]
    members = [ChatModelMember(model, name=model.script[11:15], price=(0, 1e6)) for model in models]
    llm = SpecFuseChatModel(
        members=members, lead=None, method=Method(segment_tokens=4), max_cost=50
    )
    usage = llm.invoke("Why is the sky blue?").response_metadata["specfuse"]["usage"]
    ballots = [
        sum("Reply with its letter" in messages[-1].text for messages, _ in model.asked)
        for model in models
    ]
    assert ballots == [2, 2], "those of the first round, which are sent together"
    assert sum(total["cost"] for total in usage.values()) > 160


def test_a_cancelled_stream_that_has_reported_its_prompt_still_counts_its_words() -> None:
    class Early(Talker):
        def _stream(self, *args: Any, **options: Any) -> Iterator[ChatGenerationChunk]:
            usage = UsageMetadata(input_tokens=40, output_tokens=1, total_tokens=41)
            yield ChatGenerationChunk(message=AIMessageChunk("", usage_metadata=usage))
            yield from super()._stream(*args, **options)

    member = ChatModelMember(Early(asked=[], said=[], closed=[]), name="a")
    effort = drafted(member, draft_job(segment_tokens=8)).effort
    assert effort.estimated and effort.input_tokens == 40 and effort.output_tokens >= 8


def test_what_each_member_cost_is_summed_by_member() -> None:
    class Billed(Talker):
        def _stream(self, *args: Any, **options: Any) -> Iterator[ChatGenerationChunk]:
            yield from super()._stream(*args, **options)
            usage = {"input_tokens": 40, "output_tokens": 30, "total_tokens": 70}
            yield ChatGenerationChunk(message=AIMessageChunk("", usage_metadata=usage))

    billed, silent = Billed(asked=[], said=[], closed=[]), talker()
    words = len(["Why", "is", "the", "sky", "blue?"])
    for model, known in (
        (billed, {"input_tokens": 40, "output_tokens": 30}),
        (silent, {"input_tokens": words, "output_tokens": len(STORY.split()), "estimated": True}),
    ):
        llm = SpecFuseChatModel(members=[ChatModelMember(model, name="a")])
        usage = llm.invoke("Why is the sky blue?").response_metadata["specfuse"]["usage"]
        assert usage == {"a": {"requests": 1, **known}}
    chooser = Chooser(asked=[], said=[], closed=[])
    llm = SpecFuseChatModel(
        members=[chooser, ScriptedMember("The sky is red.", name="b")],
        lead=None,
        method=Method(segment_tokens=3),
    )
    metadata = llm.invoke("Why is the sky blue?").response_metadata["specfuse"]
    used = metadata["usage"]["Chooser"]["requests"]
    assert list(metadata["usage"]) == ["Chooser"] and used == len(chooser.asked) > 2
