"""A member that leads fails, and another one continues its answer, in mid-sentence."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import random
import re
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.tools import tool
from langchain_core.tracers import BaseTracer
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

from langchain_specfuse import (
    ChatModelMember,
    EnsembleError,
    MemberError,
    Method,
    ScriptedMember,
    SpecFuseCallbackHandler,
    SpecFuseChatModel,
    UsageError,
    checks,
)
from langchain_specfuse.engine import breaker, limits
from langchain_specfuse.members.chat_model import settings
from tests import late
from tests.members import tiny
from tests.members.calling_model import CallingModel, call_of, pieces
from tests.members.continued import begun_in, begun_in_body
from tests.members.failing_server import FailingServer
from tests.methods import in_method

from .conftest import BLUE, LIMIT_S, GatedMember, joined, until

WORDS = 24
"""The length of a script in which random failures happen."""
LATE_S = 0.2
"""The limit after which a member that hangs is late."""


class StatusError(Exception):
    """A provider's error."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the provider answered {status}")
        self.status_code = status


class FailingModel(BaseChatModel):
    """A chat model that writes its name and the number of each word, continues the text of others
    at the next number, and fails after some words in all."""

    called: str = "a"
    fails_after: int | None = None
    """After this many words of its own; None: it does not fail."""
    how: str = "raise"
    """``raise``, ``hang``, ``cut`` (its last word is not complete), or the status of an error."""
    spared: int = 0
    """Answers that it completes before it may fail."""
    words: int = WORDS
    thought: str = ""
    asked: list[Any] = []  # noqa: RUF012 (a field)
    hanging: Any = None
    released: Any = None

    @property
    def _llm_type(self) -> str:
        return "failing"

    def _generate(self, *_: Any, **__: Any) -> ChatResult:
        raise NotImplementedError

    def _stream(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **options: Any
    ) -> Iterator[ChatGenerationChunk]:
        self.asked.append(messages)
        first = len(begun_in(messages).split())
        texts = [f"{self.called}{number}" for number in range(first, self.words)]
        if self.fails_after == 0 and self._may_fail():
            self._fail()
        if self.thought:
            reasoning = [{"type": "reasoning", "reasoning": self.thought}]
            yield ChatGenerationChunk(message=AIMessageChunk(reasoning))
        for at, text in enumerate(texts):
            if self.fails_after is not None and at == self.fails_after:
                if self.how == "cut":
                    yield self._chunk(f" {text}"[:2])
                if self._may_fail():
                    self._fail()
            yield self._chunk(text if at + first == 0 else f" {text}")
        yield ChatGenerationChunk(
            message=AIMessageChunk("", response_metadata={"finish_reason": "stop"})
        )

    def _chunk(self, text: str) -> ChatGenerationChunk:
        return ChatGenerationChunk(message=AIMessageChunk(text))

    def _may_fail(self) -> bool:
        return len(self.asked) > self.spared

    def _fail(self) -> None:
        if self.how == "hang":
            self.hanging.set()
            self.released.wait(LIMIT_S)
        if self.how.isdigit():
            raise StatusError(int(self.how))
        raise ConnectionError("peer closed connection without sending complete message body")


def failing_members(*plans: tuple[int | None, str], **options: Any) -> list[ChatModelMember]:
    """Members a, b, c ... that fail in these ways."""
    released = threading.Event()
    return [
        ChatModelMember(
            FailingModel(
                called=name,
                fails_after=after,
                how=how,
                asked=[],
                hanging=threading.Event(),
                released=released,
                **options,
            ),
            name=name,
        )
        for name, (after, how) in zip("abcdef", plans, strict=False)
    ]


def requests(member: ChatModelMember) -> list[list[BaseMessage]]:
    """The requests to this member's model."""
    return member.model.asked


def numbers(text: str) -> list[int]:
    return [int(word[1:]) for word in text.split()]


def writers(text: str) -> str:
    """The names of those that wrote the words, each once for words in a row."""
    return re.sub(r"(.)\1+", r"\1", "".join(word[0] for word in text.split()))


# --- random failures --------------------------------------------------------------------------------

FAILURES = ("raise", "raise", "cut", "500", "429", "401", "hang")


def fate(seed: int) -> tuple[list[tuple[int | None, str]], int]:
    """The failures of one to three members, and the length of segments."""
    random_ = random.Random(seed)
    plans: list[tuple[int | None, str]] = []
    for _ in range(random_.randint(1, 3)):
        fails = random_.random() < 0.7
        plans.append((random_.randint(0, WORDS - 1) if fails else None, random_.choice(FAILURES)))
    return plans, random_.choice([1, 4, 64])


def streamed(llm: SpecFuseChatModel, way: str) -> tuple[list[AIMessageChunk], EnsembleError | None]:
    """The chunks of an answer, and the error with which it ended."""
    chunks: list[AIMessageChunk] = []

    async def ask() -> None:
        async for chunk in llm.astream("Count."):
            chunks.append(chunk)  # noqa: PERF401 (an error ends it)

    try:
        if way == "astream":
            asyncio.run(ask())
        else:
            chunks.extend(llm.stream("Count."))
    except EnsembleError as error:
        return chunks, error
    return chunks, None


@pytest.mark.parametrize(
    "seed", [*range(12), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(12, 100))]
)
def test_an_answer_is_complete_whichever_members_fail_and_however(seed):
    plans, length = fate(seed)
    limit = LATE_S if any(how == "hang" for _, how in plans) else None
    texts = []
    for way in ("stream", "astream"):
        members = failing_members(*plans)
        llm = SpecFuseChatModel(
            members=members, method=Method(segment_tokens=length), member_timeout=limit
        )
        hanging = {member.name: member.model.hanging for member in members}
        with late.only_where(lambda name, hanging=hanging: hanging[name].is_set()):
            chunks, error = streamed(llm, way)
        text = "".join(chunk.text for chunk in chunks)
        if error is not None and plans[-1][1] == "cut":
            text = re.sub(r" ?[a-z]$", "", text)  # what the last member had written of a word
            error.text = re.sub(r" ?[a-z]$", "", error.text)
        texts.append((text, str(error)))
        assert all(isinstance(chunk, AIMessageChunk) for chunk in chunks)
        assert numbers(text) == list(range(len(text.split()))), "lost or repeated"
        if error is None:
            assert len(text.split()) == WORDS
            whole = joined(chunks)
            gone = [left["member"] for left in whole.response_metadata["specfuse"]["exits"]]
            woken = [member.name for member in members if requests(member)]
            assert woken == [name for name in "abc" if name in gone] + [writers(text)[-1]]
            assert gone == woken[:-1]
        else:
            assert all(after is not None for after, _ in plans) and error.text == text
            assert [failure.member for failure in error.failures] == [m.name for m in members]
        for member in members[1:]:
            for messages in requests(member):
                assert text.startswith(begun_in(messages)), "the prompt has what was streamed"
        for member in members:
            member.model.released.set()
    assert texts[0] == texts[1], "sync and async differ"


# --- providers ------------------------------------------------------------------------------------


@pytest.fixture
def hosted() -> Iterator[Callable[..., tuple[ChatModelMember, FailingServer]]]:
    """Return a factory of ChatOpenAI members, each with a server of its own."""
    servers: list[FailingServer] = []

    def make(name: str, **options: Any) -> tuple[ChatModelMember, FailingServer]:
        servers.append(FailingServer(name, **options))
        model = ChatOpenAI(model="m", base_url=servers[-1].url, api_key="none", max_retries=0)
        return ChatModelMember(model, name=name), servers[-1]

    yield make
    for server in servers:
        server.stop()


def umlauts(text: str) -> list[int]:
    assert "\ufffd" not in text
    return [int(word.split("ö")[1]) for word in text.split()]


@pytest.mark.parametrize(
    ("how", "after"),
    [("cut", 0), ("cut", 7), ("hang", 7), ("500", 0), ("429", 0), ("401", 0)],
)
def test_a_provider_that_breaks_off_is_replaced_in_mid_sentence(hosted, how, after):
    (first, failing), (second, other) = hosted("a", fails_after=after, how=how), hosted("b")
    limit = LATE_S if how == "hang" else None
    llm = SpecFuseChatModel(members=[first, second], member_timeout=limit, max_tokens=200)
    with late.only_where(lambda name: name == "a" and failing.failed_at):
        chunks = list(llm.stream("Count."))
    text = "".join(chunk.text for chunk in chunks)
    assert umlauts(text) == list(range(24))
    assert writers(text) in ("ab", "b") and len(other.asked) == 1
    again = after == 0 and how in ("cut", "500")
    begun = begun_in_body(other.asked[0]["messages"])
    assert text.startswith(begun) and len(failing.asked) == 1 + again
    (left,) = joined(chunks).response_metadata["specfuse"]["exits"]
    assert left["member"] == "a"
    assert left["kind"] == {"hang": "timeout", "401": "denied"}.get(how, "error")


@pytest.mark.parametrize(
    ("how", "kind", "check"),
    [
        ("401", "denied", "OPENAI_API_KEY"),
        ("403", "denied", "account"),
        ("404", "not_found", "the name of its model"),
    ],
)
def test_a_lead_with_wrong_settings_is_named_with_what_to_check(hosted, caplog, how, kind, check):
    """Its reserve writes every answer, so without a warning nobody would notice."""
    (first, _), (second, _) = hosted("a", fails_after=0, how=how), hosted("b")
    seen: list[tuple[str, str]] = []
    handler = SpecFuseCallbackHandler(on_exit=lambda exit: seen.append((exit.member, exit.kind)))
    llm = SpecFuseChatModel(members=[first, second], max_tokens=200)
    answer = llm.invoke("Count.", {"callbacks": [handler]})
    assert umlauts(answer.text) == list(range(24))
    (left,) = answer.response_metadata["specfuse"]["exits"]
    assert (left["member"], left["kind"]) == ("a", kind)
    assert how in left["reason"]
    assert seen == [("a", kind)]
    (warning,) = [record for record in caplog.records if record.levelname == "WARNING"]
    text = warning.getMessage()
    assert "settings of a look wrong" in text
    assert check in text
    caplog.clear()
    assert umlauts(llm.invoke("Count.").text) == list(range(24))
    assert not caplog.records, "it pauses, so that the log is not flooded"


@pytest.mark.parametrize("how", ["500", "429", "cut"])
def test_a_failure_that_passes_is_not_blamed_on_the_settings(hosted, caplog, how):
    """But it is logged: the reserve's answers hide it."""
    (first, _), (second, _) = hosted("a", fails_after=0, how=how), hosted("b")
    llm = SpecFuseChatModel(members=[first, second], max_tokens=200)
    llm.invoke("Count.")
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno > logging.INFO]
    assert re.fullmatch(r"a left an answer \(error, \w+\); the other members continue", warning)
    caplog.clear()
    llm.invoke("Count.")
    assert not caplog.records, "it pauses, so that the log is not flooded"


def test_a_reply_that_ends_without_a_reason_has_broken_off_if_others_gave_one(hosted):
    (first, _), (second, other) = hosted("a", fails_after=7, how="end", spared=1), hosted("b")
    llm = SpecFuseChatModel(members=[first, second], method=Method(segment_tokens=4))
    assert writers(llm.invoke("Count.").text) == "a" and other.asked == []
    message = llm.invoke("Count again.")
    assert umlauts(message.text) == list(range(24)) and writers(message.text) == "ab"
    (left,) = message.response_metadata["specfuse"]["exits"]
    assert left["kind"] == "error" and "broke off" in left["reason"]


def test_a_reserve_is_sent_no_request_while_the_lead_works(hosted):
    (first, _), (second, other) = hosted("a"), hosted("b")
    llm = SpecFuseChatModel(members=[first, second])
    messages: list[Any] = []
    for question in ("Count.", "Again.", "And again."):
        messages += [("user", question), llm.invoke([*messages, ("user", question)])]
    assert other.asked == [] and {writers(m.text) for m in messages[1::2]} == {"a"}


# --- what the answer holds ------------------------------------------------------------------------


@tool
def book(city: str, nights: int, guests: list[str]) -> str:
    """Book a room."""
    return f"booked in {city}"


class Booking(BaseModel):
    """A booking."""

    city: str
    nights: int
    guests: list[str]


GUESTS = ["Ann", "Bob", "Cem"]
CALL = {"city": "Köln am Rhein", "nights": 3, "guests": GUESTS}


def dying_pair(answer: Any, fails_in: int, other: Any = None, **options: Any) -> Any:
    """Two scripted members, the first of which leads and fails in this draft."""
    return [
        ScriptedMember(answer, name="lead", fails_in=fails_in, **options),
        ScriptedMember(answer if other is None else other, name="spare", **options),
    ]


def exits(message: Any) -> list[str]:
    return [left["member"] for left in message.response_metadata["specfuse"]["exits"]]


@pytest.mark.parametrize("length", [1, 4, 64])
@pytest.mark.parametrize("fails_in", range(1, 12, 2))
def test_a_tool_call_that_is_cut_in_its_middle_is_completed(fails_in, length):
    members = dying_pair(ScriptedMember.call("book", **CALL), fails_in)
    llm = SpecFuseChatModel(members=members, method=Method(segment_tokens=length), lead="lead")
    message = llm.bind_tools([book]).invoke("Book.")
    (call,) = message.tool_calls
    assert (call["name"], call["args"]) == ("book", CALL) and message.invalid_tool_calls == []
    assert exits(message) == (["lead"] if members[0].draft_calls >= fails_in else [])


@pytest.mark.parametrize("length", [1, 4])
@pytest.mark.parametrize("fails_in", range(1, 10, 2))
def test_an_object_that_is_cut_in_its_middle_is_completed(fails_in, length):
    members = dying_pair(CALL, fails_in)
    llm = SpecFuseChatModel(members=members, method=Method(segment_tokens=length), lead="lead")
    found = llm.with_structured_output(Booking, include_raw=True).invoke("Book.")
    assert found["parsing_error"] is None and found["parsed"].model_dump() == CALL
    assert exits(found["raw"]) == (["lead"] if members[0].draft_calls >= fails_in else [])


SCHEMAS = [Booking, Booking.model_json_schema()]
BOOKED = json.dumps(CALL, ensure_ascii=False)
BROKEN_OFF = {
    "class": "Invalid JSON",  # OpenAI's client reads the object of a class itself
    "schema": "broke off",
}


def booking(found: Any) -> dict[str, Any]:
    return found.model_dump() if isinstance(found, Booking) else found


def streamed_object(booker: Any) -> dict[str, Any]:
    """The parts of a streamed answer with ``include_raw``; the last state of the object."""
    parts: dict[str, Any] = {}
    for part in booker.stream("Book."):
        for name, value in part.items():
            parts[name] = parts[name] + value if name == "raw" and name in parts else value
    return parts


@pytest.mark.parametrize("schema", SCHEMAS, ids=BROKEN_OFF)
@pytest.mark.parametrize("fails_after", [1, 4, 9, 14])
@pytest.mark.parametrize(("by", "length"), [("provider", 4), ("member", 1), ("member", 64)])
def test_an_object_that_broke_off_is_begun_anew_if_nothing_of_it_was_shown(
    hosted, fails_after, length, schema, by
):
    """Its model has never given a reason for an end, but an object cannot end there."""
    lead, _ = hosted("lead", script=pieces(BOOKED), fails_after=fails_after, how="end")
    spare = ScriptedMember(CALL, name="spare")
    if by == "provider":
        spare, server = hosted("spare", script=pieces(BOOKED))
    llm = SpecFuseChatModel(members=[lead, spare], method=Method(segment_tokens=length))
    found = llm.with_structured_output(schema, include_raw=True).invoke("Book.")
    assert found["parsing_error"] is None and booking(found["parsed"]) == CALL
    raw = found["raw"].response_metadata
    assert raw["finish_reason"] == "stop"
    (left,) = raw["specfuse"]["exits"]
    assert (left["member"], left["kind"]) == ("lead", "error")
    assert BROKEN_OFF["class" if schema is Booking else "schema"] in left["reason"]
    if by == "provider":
        (body,) = server.asked
        assert [message["role"] for message in body["messages"]] == ["user"]
        assert body["response_format"]["type"] == "json_schema"


@pytest.mark.parametrize("fails_after", [1, 4, 9, 14])
def test_an_object_that_broke_off_and_was_shown_is_completed(hosted, fails_after):
    lead, _ = hosted("lead", script=pieces(BOOKED), fails_after=fails_after, how="end")
    llm = SpecFuseChatModel(
        members=[lead, ScriptedMember(CALL, name="spare")], method=Method(segment_tokens=2)
    )
    found = streamed_object(llm.with_structured_output(SCHEMAS[1], include_raw=True))
    assert found["parsing_error"] is None and found["parsed"] == CALL
    assert exits(found["raw"]) == ["lead"]


@pytest.mark.parametrize("fails_after", [0, 1, 4, 9, 14])
@pytest.mark.parametrize("by", ["provider", "member"])
@pytest.mark.parametrize("way", ["invoke", "stream"])
def test_a_call_that_broke_off_is_begun_anew(hosted, fails_after, by, way):
    lead, _ = hosted(
        "lead", script=pieces(BOOKED), calls="book", fails_after=fails_after, how="end"
    )
    spare = ScriptedMember(ScriptedMember.call("book", **CALL), name="spare")
    if by == "provider":
        spare, server = hosted("spare", script=pieces(BOOKED), calls="book")
    llm = SpecFuseChatModel(members=[lead, spare]).bind_tools([book])
    message = llm.invoke("Book.") if way == "invoke" else joined(list(llm.stream("Book.")))
    (call,) = message.tool_calls
    assert (call["name"], call["args"]) == ("book", CALL) and message.invalid_tool_calls == []
    assert exits(message) == ["lead"] and message.text == ""
    if by == "provider":
        assert call["id"] == "call_1"
        (body,) = server.asked
        assert [message["role"] for message in body["messages"]] == ["user"]


def test_an_object_that_is_complete_needs_no_reason(hosted):
    script = [*pieces(BOOKED), " "]
    for number, schema in enumerate(SCHEMAS):
        lead, _ = hosted(f"lead{number}", script=script, fails_after=len(script) - 1, how="end")
        llm = SpecFuseChatModel(members=[lead, ScriptedMember(CALL, name="spare")])
        found = llm.with_structured_output(schema, include_raw=True).invoke("Book.")
        assert booking(found["parsed"]) == CALL and exits(found["raw"]) == []


def test_an_object_that_its_model_ends_in_the_middle_is_asked_for_once_more(hosted):
    """``invoke`` has shown nothing. Then the reserve writes it."""
    lead, server = hosted("lead", script=pieces(BOOKED)[:9])
    llm = SpecFuseChatModel(members=[lead, ScriptedMember(CALL, name="spare")])
    booker = llm.with_structured_output(SCHEMAS[1], include_raw=True)
    found = booker.invoke("Book.")
    assert found["parsed"] == CALL and exits(found["raw"]) == ["lead"]
    first, again = (body["messages"] for body in server.asked)
    assert again[: len(first)] == first
    assert again[-2]["content"] == "".join(pieces(BOOKED)[:9])
    assert "it is not JSON" in again[-1]["content"]


def test_an_object_that_was_asked_for_twice_is_that_of_the_second_reply():
    model = CallingModel(replies=[BOOKED[:20], BOOKED], asked=[])
    llm = SpecFuseChatModel(members=[model, ScriptedMember("{}", name="spare")])
    found = llm.with_structured_output(SCHEMAS[1], include_raw=True).invoke("Book.")
    assert found["parsed"] == CALL and exits(found["raw"]) == []
    used = found["raw"].response_metadata["specfuse"]["usage"]
    assert used["CallingModel"]["requests"] == 2


def test_a_streamed_object_that_its_model_ends_in_the_middle_has_not_broken_off(hosted):
    """It was shown as it came, so that it cannot be asked for again."""
    lead, server = hosted("lead", script=pieces(BOOKED)[:9])
    llm = SpecFuseChatModel(members=[lead, ScriptedMember(CALL, name="spare")])
    message = joined(list(llm.stream("Book.", response_format=SCHEMAS[1])))
    assert message.text == "".join(pieces(BOOKED)[:9]) and exits(message) == []
    assert len(server.asked) == 1


@pytest.mark.parametrize("schema", SCHEMAS, ids=BROKEN_OFF)
def test_an_object_that_breaks_off_without_a_reserve_is_an_error_that_says_so(hosted, schema):
    lead, _ = hosted("lead", script=pieces(BOOKED), fails_after=9, how="end")
    booker = SpecFuseChatModel(members=[lead]).with_structured_output(schema)
    with pytest.raises(EnsembleError, match=BROKEN_OFF["class" if schema is Booking else "schema"]):
        booker.invoke("Book.")


@pytest.mark.parametrize("fails_after", range(0, 25, 2))
def test_a_chat_model_writes_the_object_or_the_call_that_another_one_began(fails_after):
    def members(reply: Any) -> list[ChatModelMember]:
        models = [
            CallingModel(replies=[reply], fails_after=fails_after, asked=[]),
            CallingModel(replies=[reply], asked=[]),
        ]
        return [ChatModelMember(model, name=name) for model, name in zip(models, "ab", strict=True)]

    llm = SpecFuseChatModel(members=members(BOOKED))
    assert llm.with_structured_output(Booking).invoke("Book.").model_dump() == CALL
    llm = SpecFuseChatModel(members=members(BOOKED))
    streamed = streamed_object(llm.with_structured_output(Booking, include_raw=True))
    assert streamed["parsed"].model_dump() == CALL and streamed["raw"].text == BOOKED

    pair = members(call_of("book", "I book it.", **CALL))
    llm = SpecFuseChatModel(members=pair)
    message = joined(list(llm.bind_tools([book]).stream("Book.")))
    (call,) = message.tool_calls
    assert call["args"] == CALL and message.invalid_tool_calls == []
    assert message.text == "I book it."
    for member in pair:
        for _, options in requests(member):
            assert [tool["function"]["name"] for tool in options["tools"]] == ["book"]


class Choice(BaseModel):
    """A choice."""

    colour: Literal["red", "green", "blue"]
    count: Literal[1, 22, 333]
    is_sure: bool


@pytest.mark.parametrize("fails_in", range(1, 8))
def test_an_object_stays_valid_where_a_model_with_other_tokens_takes_over(fails_in, monkeypatch):
    lead, spare = tiny.member("llama", 1), tiny.member("mistral", 2)
    drafts = 0
    draft = lead.draft

    def fails(jobs: Any) -> Any:
        nonlocal drafts
        drafts += 1
        if drafts == fails_in:
            raise RuntimeError("device lost")
        return draft(jobs)

    monkeypatch.setattr(lead, "draft", fails)
    llm = SpecFuseChatModel(members=[lead, spare], method=Method(segment_tokens=1), lead=lead.name)
    found = llm.with_structured_output(Choice, include_raw=True).invoke("Choose.")
    assert isinstance(found["parsed"], Choice) and found["parsing_error"] is None
    assert exits(found["raw"]) == ([lead.name] if drafts >= fails_in else [])


@pytest.mark.parametrize("fails_in", [1, 2, 3, 4])
@pytest.mark.parametrize("stop", ["4 5", "3 4", "5", "2 3 4 5 6"])
def test_a_stop_string_across_the_seam_ends_the_answer(fails_in, stop):
    members = dying_pair("1 2 3 4 5 6 7 8", fails_in)
    llm = SpecFuseChatModel(members=members, method=Method(segment_tokens=2), lead="lead")
    assert llm.invoke("Count.", stop=[stop]).text == "1 2 3 4 5 6 7 8".split(stop)[0]


def test_log_probabilities_are_those_of_each_segments_writer():
    members = dying_pair("1 2 3 4 5 6", 2)
    llm = SpecFuseChatModel(members=members, method=Method(segment_tokens=2), lead="lead")
    tokens = llm.invoke("Count.", logprobs=True).response_metadata["logprobs"]["content"]
    assert "".join(token["token"] for token in tokens).split() == ["1", "2", "3", "4", "5", "6"]


def test_reasoning_of_the_lead_is_shown_and_that_of_its_successor_does_not_break_the_answer():
    thinking = failing_members((9, "raise"), (None, ""))
    thinking[0].model.thought = thinking[1].model.thought = "let me see"
    llm = SpecFuseChatModel(members=thinking, method=Method(segment_tokens=4), reasoning=True)
    message = joined(list(llm.stream("Count.")))
    thoughts = [block["reasoning"] for block in message.content_blocks if "reasoning" in block]
    assert "".join(thoughts) == "let me see" and writers(message.text) == "ab"
    assert numbers(message.text) == list(range(WORDS))


def test_every_word_of_both_writers_has_passed_the_checks():
    first, second = failing_members((9, "raise"), (None, ""))
    seen: list[str] = []

    def odd(text: str) -> str | None:
        seen.append(text)
        return "says ten" if "10" in text else None

    llm = SpecFuseChatModel(
        members=[first, second], method=Method(segment_tokens=4), checks=[odd], on_failure="end"
    )
    message = llm.invoke("Count.")
    assert "10" not in message.text and numbers(message.text) == list(range(10))
    assert writers(message.text) == "ab" and message.text in seen


def test_a_reserve_writes_where_no_redraft_of_the_lead_passes():
    members = [
        ScriptedMember("one two bad four five", name="lead"),
        ScriptedMember("1 2 3 4 5", name="spare"),
    ]
    llm = SpecFuseChatModel(
        members=members,
        method=Method(segment_tokens=2),
        lead="lead",
        checks=[checks.forbids("bad")],
        redrafts=1,
    )
    message = llm.invoke("Count.")
    # "two" was held back and is withdrawn after the second time, with the rest of its sentence
    assert message.text.split()[:3] == ["one", "2", "3"] and exits(message) == []
    assert members[1].draft_calls >= 1


@pytest.mark.parametrize("spare", ["hosted", "local"])
def test_a_reserve_writes_all_of_an_answer_to_which_the_lead_adds_nothing(spare):
    """As docs/failures.md advises against empty replies. A user got the reserve's
    first words alone: the lead, asked to continue them, was empty again, and ended the answer."""
    lead = FailingModel(called="a", words=0, asked=[])
    reserve = FailingModel(called="b", asked=[])
    members = [ChatModelMember(lead, name="a"), ChatModelMember(reserve, name="b")]
    if spare == "local":
        members[1] = ScriptedMember(" ".join(f"b{number}" for number in range(WORDS)), name="b")
    llm = SpecFuseChatModel(
        members=members,
        lead="a",
        method=Method(segment_tokens=4),
        checks=[lambda text: None if text.strip() else "is empty"],
        redrafts=1,
    )
    for message in (llm.invoke("Count."), joined(list(llm.stream("Count.")))):
        assert numbers(message.text) == list(range(WORDS)) and writers(message.text) == "b"
        assert message.response_metadata["finish_reason"] == "stop"
    assert len(lead.asked) == 2 * 2 and len(reserve.asked) == (2 if spare == "hosted" else 0)


def test_a_reserve_sends_no_request_once_the_budget_is_spent():
    first, second = failing_members((9, "raise"), (None, ""))
    llm = SpecFuseChatModel(members=[first, second], method=Method(segment_tokens=4), max_calls=1)
    with pytest.raises(EnsembleError, match=r"a \(error\).*b \(budget\)") as raised:
        llm.invoke("Count.")
    assert requests(second) == [] and numbers(raised.value.text) == list(range(8))
    bounds, network = raised.value.notes
    assert bounds == "-> raise max_calls= or max_cost=, so that b can be asked"
    assert "network" in network, "about what happened to the lead"


def test_a_reserve_in_this_process_costs_no_budget():
    (first,) = failing_members((9, "raise"))
    second = ScriptedMember(" ".join(f"s{n}" for n in range(WORDS)), name="spare")
    llm = SpecFuseChatModel(
        members=[first, second], method=Method(segment_tokens=4), max_calls=1, lead="a"
    )
    assert numbers(llm.invoke("Count.").text) == list(range(WORDS))


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize("refusals", ["outvoted", "any"])
def test_a_refusal_of_the_lead_is_the_answer(refusals):
    spare = ScriptedMember("With a hairpin.", name="spare")
    members = [ScriptedMember(ScriptedMember.refusal("No."), name="lead"), spare]
    message = SpecFuseChatModel(
        members=members, lead="lead", method=Method(refusals=refusals)
    ).invoke("How?")
    assert message.text == "" and message.additional_kwargs["refusal"] == "No."
    assert spare.draft_calls == 0


def test_the_reserve_answers_what_the_lead_refuses_if_refusals_are_ignored():
    members = [
        ScriptedMember(ScriptedMember.refusal("No."), name="lead"),
        ScriptedMember("With a hairpin and a lot of patience.", name="spare"),
    ]
    llm = SpecFuseChatModel(
        members=members, lead="lead", method=Method(refusals="ignore", segment_tokens=2)
    )
    message = llm.invoke("How?")
    assert message.text == "With a hairpin and a lot of patience."
    assert "refusal" not in message.additional_kwargs and exits(message) == []


# --- under way ------------------------------------------------------------------------------------


def test_exits_are_in_metadata_events_and_traces():
    left: list[Any] = []
    handler = SpecFuseCallbackHandler(on_exit=left.append)
    first, second, third = failing_members((9, "raise"), (5, "429"), (None, ""))
    llm = SpecFuseChatModel(members=[first, second, third], method=Method(segment_tokens=4))
    message = llm.invoke("Count.", {"callbacks": [handler]})
    assert [(event.member, event.kind) for event in left] == [("a", "error"), ("b", "error")]
    summary = message.response_metadata["specfuse"]
    assert [gone["member"] for gone in summary["exits"]] == ["a", "b"]
    assert [gone["round"] for gone in summary["exits"]] == [event.round for event in left]
    assert "429" in summary["exits"][1]["reason"] and writers(message.text) == "abc"
    assert summary["weights"] == {"c": 1.0}


def test_an_answer_can_be_cancelled_while_a_reserve_takes_over():
    lead, spare = ScriptedMember(BLUE, name="lead", fails_in=2), GatedMember(BLUE, name="spare")
    spare.first = 0
    llm = SpecFuseChatModel(members=[lead, spare], lead="lead", method=Method(segment_tokens=4))
    stream = llm.stream("Why?")
    assert next(stream).text
    assert spare.waiting.wait(LIMIT_S)
    stream.close()
    spare.gate.set()
    assert until(lambda: not lead.open_queries and not spare.open_queries)
    assert llm.invoke("Why?").text == BLUE


async def test_a_task_can_be_cancelled_while_a_reserve_is_loaded(pair):
    lead, spare = pair
    spare.may_load.clear()
    llm = led(pair)
    task = asyncio.create_task(llm.ainvoke("Count."))
    assert await asyncio.to_thread(until, lambda: lead.draft_calls == 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    spare.may_load.set()
    assert await asyncio.to_thread(until, lambda: not lead.open_queries)
    assert (await llm.ainvoke("Count.")).text in ("1 2 3 4 5 6", "a b c d e f")


@pytest.mark.parametrize("way", ["batch", "abatch"])
def test_a_lead_that_fails_during_twenty_answers_loses_none_of_them(way):
    first, second = failing_members((9, "raise"), (None, ""), spared=7)
    llm = SpecFuseChatModel(members=[first, second], method=Method(segment_tokens=4))
    questions = [f"Count. {number}" for number in range(20)]
    if way == "batch":
        messages = llm.batch(questions)
    else:
        messages = asyncio.run(llm.abatch(questions))
    assert [numbers(message.text) for message in messages] == [list(range(WORDS))] * 20
    assert {writers(message.text) for message in messages} <= {"a", "ab", "b"}


def test_in_a_later_turn_of_an_agent_the_reserve_is_asked_nothing(now):
    from langchain.agents import create_agent
    from langgraph.checkpoint.memory import InMemorySaver

    lead = ScriptedMember(
        [ScriptedMember.call("book", **CALL), "Booked.", "Yes it is."], name="lead"
    )
    spare = ScriptedMember("It is booked already.", name="spare")
    llm = SpecFuseChatModel(members=[lead, spare], lead="lead", method=Method(segment_tokens=4))
    agent = create_agent(llm, [book], checkpointer=InMemorySaver())
    thread = {"configurable": {"thread_id": "1"}}
    state = agent.invoke({"messages": [("user", "Book.")]}, thread)
    assert state["messages"][-1].text == "Booked." and spare.draft_calls == 0
    lead.fails_in = lead.draft_calls + 1
    state = agent.invoke({"messages": [("user", "Is it booked?")]}, thread)
    assert state["messages"][-1].text == "It is booked already."
    asked = spare.draft_calls
    now.seconds += breaker.PAUSE_S
    state = agent.invoke({"messages": [("user", "Really?")]}, thread)
    assert state["messages"][-1].text == "Yes it is." and spare.draft_calls == asked


# --- the circuit breaker --------------------------------------------------------------------------


class Now:
    """A clock for the circuit breakers that the tests move."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def monotonic(self) -> float:
        return self.seconds


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Now:
    clock = Now()
    monkeypatch.setattr(breaker, "time", clock)
    return clock


def test_the_next_answers_begin_with_the_reserve_until_the_pause_is_over(now):
    first, second = failing_members((5, "raise"), (None, ""))
    llm = SpecFuseChatModel(members=[first, second], method=Method(segment_tokens=4))
    assert writers(llm.invoke("Count.").text) == "ab" and len(requests(first)) == 1
    for _ in range(3):
        message = llm.invoke("Count.")
        assert writers(message.text) == "b" and len(requests(first)) == 1
        assert message.response_metadata["specfuse"]["exits"] == []
    now.seconds += breaker.PAUSE_S
    assert writers(llm.invoke("Count.").text) == "ab" and len(requests(first)) == 2
    assert writers(llm.invoke("Count.").text) == "b", "it pauses again"
    first.model.fails_after = None
    now.seconds += breaker.PAUSE_S
    for _ in range(2):
        assert writers(llm.invoke("Count.").text) == "a", "it has recovered"


@pytest.mark.parametrize("limit", ["member_timeout", "silence"])
def test_a_provider_that_works_again_leads_again_while_its_earlier_request_hangs(
    hosted, now, monkeypatch, limit
):
    monkeypatch.setattr(settings, "SILENCE_S", LATE_S)
    (first, failing), (second, _) = hosted("a", fails_after=7, how="hang"), hosted("b")
    llm = SpecFuseChatModel(
        members=[first, second],
        method=Method(segment_tokens=4),
        member_timeout=LATE_S if limit == "member_timeout" else None,
    )
    with late.only_where(lambda name: name == "a" and failing.failed_at):
        assert writers(llm.invoke("Count.").text).endswith("b")
    failing.fails_after = None
    now.seconds += breaker.PAUSE_S
    with late.only_where(lambda name: False):
        message = llm.invoke("Count.")
    assert writers(message.text) == "a" and len(failing.asked) == 2
    assert message.response_metadata["specfuse"]["exits"] == []
    assert not failing.released.is_set()


def test_one_answer_tries_a_member_again_while_others_go_on_with_the_reserve(now):
    first, second = failing_members((5, "raise"), (None, ""))
    llm = SpecFuseChatModel(members=[first, second], method=Method(segment_tokens=4))
    llm.invoke("Count.")
    now.seconds += breaker.PAUSE_S
    first.model.fails_after, first.model.how = 0, "hang"
    texts: list[str] = []
    trying = threading.Thread(target=lambda: texts.append(llm.invoke("Count.").text))
    trying.start()
    assert until(lambda: len(requests(first)) == 2)
    assert writers(llm.invoke("Count.").text) == "b" and trying.is_alive()
    first.model.released.set()
    trying.join(LIMIT_S)
    assert [writers(text) for text in texts] == ["b"] and len(requests(first)) == 2


def test_a_refusal_or_a_full_context_causes_no_pause(now):
    first = ScriptedMember("one two three four five six", name="first", max_context=4)
    second = ScriptedMember("1 2 3 4 5 6", name="second")
    llm = SpecFuseChatModel(members=[first, second], method=Method(segment_tokens=2), lead="first")
    for _ in range(2):
        assert llm.invoke("Count.").text == "one two three four 5 6"


PIXEL = {"type": "image", "base64": "aGk=", "mime_type": "image/png"}


def test_a_reserve_that_cannot_read_an_image_does_not_lead_while_the_lead_pauses(now):
    (first,) = failing_members((5, "raise"))
    blind = ScriptedMember("1 2 3 4 5 6 7 8", name="blind")
    llm = SpecFuseChatModel(members=[first, blind], lead="a", method=Method(segment_tokens=4))
    llm.invoke("Count.")
    assert llm.invoke("Count.").text == blind.answer
    first.model.fails_after = None
    assert writers(llm.invoke([("user", [PIXEL])]).text) == "a"


def test_a_lead_that_cannot_read_an_image_is_an_error():
    (second,) = failing_members((None, ""))
    llm = SpecFuseChatModel(members=[ScriptedMember("1", name="blind"), second], lead="blind")
    with pytest.raises(UsageError, match="blind cannot read"):
        llm.invoke([("user", [PIXEL])])
    assert requests(second) == []


@pytest.mark.parametrize("how", ["raise", "429"])
def test_a_lead_with_a_full_context_ends_the_answer_even_if_its_reserve_fails(how):
    (second,) = failing_members((0, how))
    first = ScriptedMember("one two three four five six", name="first", max_context=4)
    llm = SpecFuseChatModel(members=[first, second], method=Method(segment_tokens=2), lead="first")
    message = llm.invoke("Count.")
    assert message.text == "one two three four"
    assert message.response_metadata["specfuse"]["finish"] == "length"


def test_a_reserve_that_cannot_read_the_conversation_is_passed_over_and_does_not_pause(now):
    first, second = failing_members((9, "raise"), (None, ""))
    blind = ScriptedMember("1 2 3", name="blind")
    llm = SpecFuseChatModel(
        members=[first, blind, second], lead="a", method=Method(segment_tokens=4)
    )
    message = llm.invoke([("user", [PIXEL])])
    assert writers(message.text) == "ab" and exits(message) == ["a", "blind"]
    assert llm.invoke("Count.").text == "1 2 3"


# --- loading --------------------------------------------------------------------------------------


class Loaded(ScriptedMember):
    """Loads when it may, and fails to load with an error if it has one. ``loads`` has the names of
    all members in the order in which their loading began."""

    def __init__(self, *args: Any, loads: list[str], **options: Any) -> None:
        super().__init__(*args, **options)
        self.loads = loads
        self.error_at_load: Exception | None = None
        self.may_load = threading.Event()
        self.may_load.set()

    def probe(self) -> Any:
        self.loads.append(self.name)
        self.may_load.wait(LIMIT_S)
        if self.error_at_load is not None:
            raise self.error_at_load
        return super().probe()


@pytest.fixture
def pair() -> tuple[Loaded, Loaded]:
    loads: list[str] = []
    lead = Loaded("1 2 3 4 5 6", name="lead", loads=loads, fails_in=2)
    return lead, Loaded("a b c d e f", name="spare", loads=loads)


def led(pair: Sequence[ScriptedMember], **options: Any) -> SpecFuseChatModel:
    """The second member of a pair leads, and the first is in reserve."""
    lead, spare = pair
    return SpecFuseChatModel(
        **in_method(members=[spare, lead], lead="lead", segment_tokens=2, **options)
    )


def unreached(name: str) -> MemberError:
    return MemberError(f"its server at http://{name} cannot be reached", member=name)


def test_an_answer_begins_before_its_reserve_is_loaded_and_waits_for_it_only_if_it_is_needed(pair):
    lead, spare = pair
    spare.may_load.clear()
    stream = led(pair).stream("Count.")
    assert next(stream).text == "1 2" and until(lambda: lead.loads == ["lead", "spare"])
    opened = threading.Timer(0.2, spare.may_load.set)
    opened.start()
    assert "".join(chunk.text for chunk in stream) == " c d e f"


def test_a_reserve_that_cannot_be_loaded_is_reported_and_affects_no_answer(pair, caplog):
    lead, spare = pair
    lead.fails_in = None
    spare.error_at_load = unreached("spare")
    llm = led(pair)
    message = llm.invoke("Count.")
    assert message.text == "1 2 3 4 5 6"
    assert message.response_metadata["specfuse"]["exits"] == []
    assert until(lambda: "http://spare cannot be reached" in caplog.text)
    assert llm.invoke("Count.").text == "1 2 3 4 5 6"


def test_a_lead_that_cannot_be_loaded_is_replaced_and_leads_once_it_can(pair, now):
    lead = pair[0]
    lead.fails_in, lead.error_at_load = None, unreached("lead")
    llm = led(pair)
    for _ in range(3):
        assert llm.invoke("Count.").text == "a b c d e f"
    assert lead.loads.count("lead") == 1, "it is not tried again during its pause"
    lead.error_at_load = None
    lead.may_load.clear()
    now.seconds += breaker.PAUSE_S
    assert llm.invoke("Count.").text == "a b c d e f", "no answer waits for another try"
    lead.may_load.set()
    assert until(lambda: llm.invoke("Count.").text == "1 2 3 4 5 6")


@pytest.mark.parametrize(
    "error", [RuntimeError("CUDA out of memory"), MemoryError(), ConnectionError("cut")], ids=repr
)
def test_a_lead_that_has_no_memory_to_load_into_is_replaced(pair, error, caplog):
    pair[0].error_at_load = error
    message = led(pair).invoke("Count.")
    assert message.text == "a b c d e f"
    assert f"lead cannot be loaded: {type(error).__name__}" in caplog.text


@pytest.fixture
def damaged(tmp_path: Path) -> str:
    """Return the path of a GGUF file that breaks off in its header."""
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF\x03\0\0\0")
    return str(path)


class Recorder(BaseTracer):
    """Keeps the runs of chat models and of their rounds."""

    def __init__(self) -> None:
        super().__init__()
        self.spans: list[Any] = []

    def _persist_run(self, run: Any) -> None:
        self.spans.append(run)


def test_a_lead_with_a_damaged_file_is_reported_like_one_whose_server_is_down(damaged, caplog):
    down = ChatOpenAI(model="m", base_url="http://127.0.0.1:9", api_key="none", max_retries=0)
    dead = ChatModelMember(down, name="broken")
    for lead, reason in ((damaged, "llama.cpp cannot load"), (dead, "cannot be reached")):
        left: list[Any] = []
        tracer = Recorder()
        callbacks = [SpecFuseCallbackHandler(on_exit=left.append), tracer]
        spare = ScriptedMember("Blue.", name="spare")
        llm = SpecFuseChatModel(members=[lead, spare], lead="broken")
        message = llm.invoke("Why?", {"callbacks": callbacks})
        assert message.text == "Blue."
        (gone,) = message.response_metadata["specfuse"]["exits"]
        assert (gone["member"], gone["kind"], gone["round"]) == ("broken", "error", 1)
        assert reason in gone["reason"]
        assert [(event.member, event.reason) for event in left] == [("broken", gone["reason"])]
        assert left[0].weights == {"spare": 1.0}
        traced = tracer.spans[0].extra["metadata"]["specfuse_exits"]
        assert traced == [{"member": "broken", "kind": "error", "round": 1}]
        again = llm.invoke("Why?").response_metadata["specfuse"]
        assert again["exits"] == [] and again["routing"]["by"] == "reserve"
    assert "seems incomplete or damaged: download it again" in caplog.text


@pytest.mark.parametrize("way", ["batch", "abatch"])
def test_all_answers_that_waited_for_a_lead_that_cannot_be_loaded_report_it(pair, way):
    lead = pair[0]
    lead.error_at_load = unreached("lead")
    lead.may_load.clear()
    llm, questions, begun = led(pair), ["Count."] * 4, []

    class Noting(BaseCallbackHandler):
        def on_chat_model_start(self, *_: Any, **__: Any) -> None:
            begun.append(1)
            if len(begun) == len(questions):  # soon all of them wait
                threading.Timer(0.3, lead.may_load.set).start()

    config: Any = {"callbacks": [Noting()]}
    if way == "batch":
        messages = llm.batch(questions, config)
    else:
        messages = asyncio.run(llm.abatch(questions, config))
    assert [exits(message) for message in messages] == [["lead"]] * 4
    assert exits(llm.invoke("Count.")) == []


def test_each_failed_attempt_to_load_the_lead_is_reported_by_one_answer(pair, now):
    lead = pair[0]
    lead.error_at_load = unreached("lead")
    llm = led(pair)
    assert exits(llm.invoke("Count.")) == ["lead"]
    lead.may_load.clear()
    now.seconds += breaker.PAUSE_S
    assert exits(llm.invoke("Count.")) == [], "the next attempt has not failed yet"
    lead.may_load.set()
    reports: list[str] = []
    assert until(lambda: reports or reports.extend(exits(llm.invoke("Count."))) or reports)
    assert reports == ["lead"] and lead.loads.count("lead") == 2
    assert exits(llm.invoke("Count.")) == []


def test_members_that_cannot_be_loaded_leave_in_the_order_in_which_they_would_have_led(pair):
    lead, spare = pair
    third = Loaded("A B C D E F", name="third", loads=lead.loads)
    lead.error_at_load, spare.error_at_load = unreached("lead"), unreached("spare")
    llm = SpecFuseChatModel(
        members=[spare, lead, third], lead="lead", method=Method(segment_tokens=2)
    )
    message = llm.invoke("Count.")
    assert message.text == "A B C D E F" and exits(message) == ["lead", "spare"]


def test_a_lead_that_cannot_be_loaded_is_not_asked_again_by_the_answer_that_reports_it(pair):
    lead, spare = pair
    lead.error_at_load, spare.fails_in = unreached("lead"), 1
    with pytest.raises(EnsembleError, match=r"http://lead .*; spare \(error\)") as raised:
        led(pair).invoke("Count.")
    failures = [(failure.member, failure.round) for failure in raised.value.failures]
    assert failures == [("lead", 1), ("spare", 1)] and lead.loads.count("lead") == 1


def test_a_reserve_whose_failed_load_an_answer_has_reported_is_not_reported_by_the_next(pair):
    lead, spare = pair
    third = Loaded("A B C D E F", name="third", loads=lead.loads)
    spare.error_at_load = unreached("spare")
    spare.may_load.clear()
    llm = SpecFuseChatModel(
        members=[spare, lead, third], lead="lead", method=Method(segment_tokens=2)
    )
    stream = llm.stream("Count.")
    chunks = [next(stream)]
    threading.Timer(0.2, spare.may_load.set).start()
    message = joined([*chunks, *stream])
    assert message.text == "1 2 C D E F" and exits(message) == ["lead", "spare"]
    message = llm.invoke("Count.")
    assert message.text == "A B C D E F" and exits(message) == []


def test_an_error_in_the_code_of_the_lead_is_raised(pair):
    pair[0].error_at_load = KeyError("weights")
    with pytest.raises(MemberError, match="could not be loaded: KeyError: 'weights'"):
        led(pair).invoke("Count.")


def test_a_member_alone_that_cannot_load_says_why():
    member = Loaded("1 2", name="alone", loads=[])
    member.error_at_load = RuntimeError("CUDA out of memory")
    with pytest.raises(MemberError, match="RuntimeError: CUDA out of memory") as raised:
        SpecFuseChatModel(members=[member]).invoke("Count.")
    assert raised.value.member == "alone" and raised.value.__cause__ is member.error_at_load


def test_a_reserve_that_hangs_while_it_loads_keeps_neither_the_answer_nor_other_members(
    pair, monkeypatch
):
    monkeypatch.setattr(limits, "LOADS_S", 0.3)
    lead, spare = pair
    third = Loaded("A B C D E F", name="third", loads=lead.loads)
    spare.may_load.clear()
    llm = SpecFuseChatModel(
        members=[spare, lead, third], lead="lead", method=Method(segment_tokens=2)
    )
    with late.only_where(lambda name: name == "spare"):
        message = llm.invoke("Count.")
    assert message.text == "1 2 C D E F"
    assert lead.loads == ["lead", "spare", "third"]
    exits = message.response_metadata["specfuse"]["exits"]
    assert [(exit["member"], exit["kind"]) for exit in exits] == [
        ("lead", "error"),
        ("spare", "timeout"),
    ]
    spare.may_load.set()
    lead.error_at_load = third.error_at_load = unreached("it")
    assert until(lambda: not llm.invoke("Count.", lead="spare").text.strip("abcdef "))
    assert lead.loads.count("spare") == 1


def test_an_answer_waits_for_its_lead_however_long_it_loads(pair, monkeypatch):
    monkeypatch.setattr(limits, "LOADS_S", 0.05)
    lead = pair[0]
    lead.fails_in = None
    lead.may_load.clear()
    threading.Timer(0.4, lead.may_load.set).start()
    assert led(pair).invoke("Count.").text == "1 2 3 4 5 6"


def test_wrong_settings_of_the_lead_raise_an_error_immediately(pair):
    pair[0].error_at_load = UsageError("no such file: lead.gguf")
    with pytest.raises(UsageError, match=r"lead\.gguf"):
        led(pair).invoke("Count.")


def test_if_no_member_can_be_loaded_the_error_names_all_and_the_next_call_tries_all_again(pair):
    lead, spare = pair
    lead.error_at_load, spare.error_at_load = unreached("lead"), unreached("spare")
    llm = led(pair)
    with pytest.raises(EnsembleError, match=r"http://lead .*http://spare ") as raised:
        llm.invoke("Count.")
    assert [failure.member for failure in raised.value.failures] == ["lead", "spare"]
    spare.error_at_load = None
    assert llm.invoke("Count.").text == "a b c d e f"


def test_a_reserve_that_cannot_be_loaded_keeps_nothing_in_memory(pair):
    class Weights:
        pass

    halves: list[Any] = []

    class Half(Loaded):
        def probe(self) -> Any:
            weights = Weights()
            halves.append(weakref.ref(weights))
            raise unreached("spare")

    lead, spare = pair[0], Half("a b c d e f", name="spare", loads=[])
    lead.fails_in = None
    llm = led((lead, spare))
    assert llm.invoke("Count.").text == "1 2 3 4 5 6"
    assert until(lambda: halves and gc.collect() >= 0 and halves[0]() is None, 5)


@pytest.mark.parametrize("kind", ["error", "overflow", "budget", "not_found"])
def test_a_reserve_that_cannot_be_loaded_pauses_whatever_the_kind_of_its_error(pair, now, kind):
    lead, spare = pair
    lead.fails_in = None
    spare.error_at_load = MemberError("no room", member="spare", kind=kind)
    llm = led(pair)
    assert llm.invoke("Count.").text == "1 2 3 4 5 6"
    assert until(lambda: "spare" in lead.loads)
    assert llm.invoke("Count.").text == "1 2 3 4 5 6"
    assert lead.loads.count("spare") == 1
    now.seconds += breaker.PAUSE_S
    llm.invoke("Count.")
    assert until(lambda: lead.loads.count("spare") == 2)


def test_a_member_that_cannot_start_to_load_early_keeps_no_other_from_loading(pair):
    class Eager(Loaded):
        def start_loading(self) -> None:
            raise RuntimeError("no cluster")

    lead, spare = pair[0], Eager("a b c d e f", name="spare", loads=[])
    lead.fails_in = None
    assert led((lead, spare)).invoke("Count.").text == "1 2 3 4 5 6"


def test_if_all_members_fail_the_error_names_them_in_order():
    members = failing_members((5, "raise"), (3, "500"), (0, "401"))
    with pytest.raises(EnsembleError, match=r"a \(error\).*b \(error\).*c \(denied\)") as raised:
        SpecFuseChatModel(members=members, method=Method(segment_tokens=1)).invoke("Count.")
    assert [failure.member for failure in raised.value.failures] == ["a", "b", "c"]
    assert numbers(raised.value.text) == list(range(len(raised.value.text.split())))


def test_a_lead_whose_file_does_not_exist_is_an_error_and_not_replaced() -> None:
    llm = SpecFuseChatModel(members=["nowhere.gguf", ScriptedMember("Blue.")], lead="nowhere")
    with pytest.raises(MemberError, match=r"nowhere\.gguf"):
        llm.invoke("Why?")
