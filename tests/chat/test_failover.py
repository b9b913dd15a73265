"""A member that leads dies: another one continues its answer, in mid-sentence."""

from __future__ import annotations

import asyncio
import json
import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.tools import tool
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
from langchain_specfuse.engine import breaker

from tests.members.mortal_server import MortalServer

from .conftest import BLUE, LIMIT_S, FailingMember, GatedMember, joined, until

WORDS = 24
"""The length of a script of the random deaths."""
LATE_S = 0.25
"""The limit after which a hung member is late."""


class StatusError(Exception):
    """A provider's error."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the provider answered {status}")
        self.status_code = status


class Mortal(BaseChatModel):
    """A chat model that writes its name and the number of each word, continues the text of others
    at the next number, and dies after some words in all."""

    called: str = "a"
    dies_after: int | None = None
    """After this many words of its own; None: it does not die."""
    how: str = "raise"
    """``raise``, ``hang``, ``cut`` (its last word is not complete), or the status of an error."""
    spared: int = 0
    """Answers that it completes before it may die."""
    words: int = WORDS
    asked: list[Any] = []  # noqa: RUF012 (a field)
    released: Any = None

    @property
    def _llm_type(self) -> str:
        return "mortal"

    def _generate(self, *_: Any, **__: Any) -> ChatResult:
        raise NotImplementedError

    def _stream(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **options: Any
    ) -> Iterator[ChatGenerationChunk]:
        is_trial = any(message.text.startswith("Count the numbers") for message in messages)
        if not is_trial:
            self.asked.append(messages)
        begun = messages[-1].text if isinstance(messages[-1], AIMessage) else ""
        first = len(begun.split())
        if is_trial:
            texts = ["six,", "five,", "four"]
        else:
            texts = [f"{self.called}{number}" for number in range(first, self.words)]
        if self.dies_after == 0 and self._may_die():
            self._die()
        for at, text in enumerate(texts):
            if self.dies_after is not None and not is_trial and at == self.dies_after:
                if self.how == "cut":
                    yield self._chunk(f" {text}"[:2])
                if self._may_die():
                    self._die()
            yield self._chunk(text if at + first == 0 else f" {text}")
        yield ChatGenerationChunk(
            message=AIMessageChunk("", response_metadata={"finish_reason": "stop"})
        )

    def _chunk(self, text: str) -> ChatGenerationChunk:
        return ChatGenerationChunk(message=AIMessageChunk(text))

    def _may_die(self) -> bool:
        return len(self.asked) > self.spared

    def _die(self) -> None:
        if self.how == "hang":
            self.released.wait(LIMIT_S)
        if self.how.isdigit():
            raise StatusError(int(self.how))
        raise ConnectionError("peer closed connection without sending complete message body")


def mortals(*plans: tuple[int | None, str], **options: Any) -> list[ChatModelMember]:
    """Members a, b, c ... with these deaths."""
    released = threading.Event()
    return [
        ChatModelMember(
            Mortal(
                called=name, dies_after=after, how=how, asked=[], released=released, **options
            ),
            name=name,
        )
        for name, (after, how) in zip("abcdef", plans, strict=False)
    ]


def requests(member: ChatModelMember) -> list[list[BaseMessage]]:
    """The requests to this member's model, without trials."""
    return member.model.asked


def numbers(text: str) -> list[int]:
    return [int(word[1:]) for word in text.split()]


def writers(text: str) -> str:
    """The names of those that wrote the words, each once for words in a row."""
    return re.sub(r"(.)\1+", r"\1", "".join(word[0] for word in text.split()))


# --- random deaths --------------------------------------------------------------------------------

DEATHS = ("raise", "raise", "cut", "500", "429", "401", "hang")


def fate(seed: int) -> tuple[list[tuple[int | None, str]], int]:
    """The deaths of one to three members, and the length of segments."""
    random_ = random.Random(seed)
    plans: list[tuple[int | None, str]] = []
    for _ in range(random_.randint(1, 3)):
        dies = random_.random() < 0.7
        plans.append((random_.randint(0, WORDS - 1) if dies else None, random_.choice(DEATHS)))
    return plans, random_.choice([1, 4, 64])


def streamed(llm: SpecFuseChatModel) -> tuple[list[AIMessageChunk], EnsembleError | None]:
    chunks: list[AIMessageChunk] = []
    try:
        for chunk in llm.stream("Count."):
            chunks.append(chunk)
    except EnsembleError as error:
        return chunks, error
    return chunks, None


async def astreamed(llm: SpecFuseChatModel) -> tuple[list[AIMessageChunk], EnsembleError | None]:
    chunks: list[AIMessageChunk] = []
    try:
        async for chunk in llm.astream("Count."):
            chunks.append(chunk)
    except EnsembleError as error:
        return chunks, error
    return chunks, None


@pytest.mark.parametrize("seed", range(200))
def test_an_answer_is_whole_whoever_dies_and_however(seed):
    plans, length = fate(seed)
    limit = LATE_S if any(how == "hang" for _, how in plans) else None
    texts = []
    for ask in (streamed, lambda llm: asyncio.run(astreamed(llm))):
        members = mortals(*plans)
        llm = SpecFuseChatModel(members=members, segment_tokens=length, member_timeout=limit)
        chunks, error = ask(llm)
        text = "".join(chunk.text for chunk in chunks)
        texts.append((text, str(error)))
        assert all(isinstance(chunk, AIMessageChunk) for chunk in chunks)
        assert numbers(text) == list(range(len(text.split()))), "lost or repeated"
        survivors = [member.name for member, (after, _) in zip(members, plans) if after is None]
        if error is None:
            assert len(text.split()) == WORDS
            whole = joined(chunks)
            gone = [left["member"] for left in whole.response_metadata["specfuse"]["exits"]]
            woken = [member.name for member in members if requests(member)]
            assert woken == [name for name in "abc" if name in gone] + [writers(text)[-1]]
            assert gone == woken[:-1]
        else:
            assert not survivors and error.text == text
            assert [failure.member for failure in error.failures] == [m.name for m in members]
        for member in members[1:]:
            for messages in requests(member):
                begun = messages[-1].text if isinstance(messages[-1], AIMessage) else ""
                assert text.startswith(begun), "the prompt has what was streamed"
        for member in members:
            member.model.released.set()
    assert texts[0] == texts[1], "sync and async differ"


# --- providers ------------------------------------------------------------------------------------


@pytest.fixture
def hosted() -> Iterator[Callable[..., tuple[ChatModelMember, MortalServer]]]:
    """Return a factory of ChatOpenAI members, each with a server of its own."""
    servers: list[MortalServer] = []

    def make(name: str, **options: Any) -> tuple[ChatModelMember, MortalServer]:
        servers.append(MortalServer(name, **options))
        model = ChatOpenAI(model="m", base_url=servers[-1].url, api_key="none", max_retries=0)
        return ChatModelMember(model, name=name), servers[-1]

    yield make
    for server in servers:
        server.stop()


def umlauts(text: str) -> list[int]:
    assert "\ufffd" not in text
    return [int(word.split("ö")[1]) for word in text.split()]


@pytest.mark.parametrize("length", [1, 4, 64])
@pytest.mark.parametrize(
    ("how", "after"),
    [("cut", 0), ("cut", 7), ("hang", 7), ("500", 0), ("429", 0), ("401", 0)],
)
def test_a_provider_that_breaks_off_is_replaced_in_mid_sentence(hosted, how, after, length):
    (first, dying), (second, other) = hosted("a", dies_after=after, how=how), hosted("b")
    limit = 1.0 if how == "hang" else None
    llm = SpecFuseChatModel(
        members=[first, second], segment_tokens=length, member_timeout=limit, max_tokens=200
    )
    chunks = list(llm.stream("Count."))
    text = "".join(chunk.text for chunk in chunks)
    assert umlauts(text) == list(range(24))
    assert writers(text) in ("ab", "b") and len(other.asked) == 1
    begun = [message["content"] for message in other.asked[0]["messages"][1:]]
    assert text.startswith("".join(begun)) and len(dying.asked) == 1
    (left,) = joined(chunks).response_metadata["specfuse"]["exits"]
    assert left["member"] == "a" and left["kind"] == ("timeout" if how == "hang" else "error")


def test_a_reply_that_ends_without_a_reason_has_broken_off_if_others_gave_one(hosted):
    (first, _), (second, other) = hosted("a", dies_after=7, how="end", spared=1), hosted("b")
    llm = SpecFuseChatModel(members=[first, second], segment_tokens=4)
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


# --- the circuit breaker --------------------------------------------------------------------------


class Now:
    """A clock for the circuit breakers, which moves when it is told to."""

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
    first, second = mortals((5, "raise"), (None, ""))
    llm = SpecFuseChatModel(members=[first, second], segment_tokens=4)
    assert writers(llm.invoke("Count.").text) == "ab" and len(requests(first)) == 1
    for _ in range(3):
        message = llm.invoke("Count.")
        assert writers(message.text) == "b" and len(requests(first)) == 1
        assert message.response_metadata["specfuse"]["exits"] == []
    now.seconds += breaker.FIRST_PAUSE_S
    assert writers(llm.invoke("Count.").text) == "ab" and len(requests(first)) == 2
    now.seconds += breaker.FIRST_PAUSE_S
    assert writers(llm.invoke("Count.").text) == "b", "the second pause is twice as long"
    first.model.dies_after = None
    now.seconds += breaker.FIRST_PAUSE_S
    for _ in range(2):
        assert writers(llm.invoke("Count.").text) == "a", "it has recovered"


def test_one_answer_tries_a_member_again_while_others_go_on_with_the_reserve(now):
    first, second = mortals((5, "raise"), (None, ""))
    llm = SpecFuseChatModel(members=[first, second], segment_tokens=4)
    llm.invoke("Count.")
    now.seconds += breaker.FIRST_PAUSE_S
    first.model.dies_after, first.model.how = 0, "hang"
    texts: list[str] = []
    trying = threading.Thread(target=lambda: texts.append(llm.invoke("Count.").text))
    trying.start()
    assert until(lambda: len(requests(first)) == 2)
    assert writers(llm.invoke("Count.").text) == "b" and trying.is_alive()
    first.model.released.set()
    trying.join(LIMIT_S)
    assert [writers(text) for text in texts] == ["b"] and len(requests(first)) == 2


def test_a_refusal_or_a_full_context_says_nothing_about_the_member(now):
    first = ScriptedMember("one two three four five six", name="first", max_context=4)
    second = ScriptedMember("1 2 3 4 5 6", name="second")
    llm = SpecFuseChatModel(members=[first, second], segment_tokens=2, lead="first")
    for _ in range(2):
        assert llm.invoke("Count.").text == "one two three four 5 6"


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
    return SpecFuseChatModel(members=[spare, lead], lead="lead", segment_tokens=2, **options)


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


def test_a_reserve_that_cannot_be_loaded_is_reported_and_disturbs_no_answer(pair, caplog):
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
    lead, spare = pair
    lead.fails_in, lead.error_at_load = None, unreached("lead")
    llm = led(pair)
    for _ in range(3):
        assert llm.invoke("Count.").text == "a b c d e f"
    assert lead.loads.count("lead") == 1, "it is not tried again during its pause"
    lead.error_at_load = None
    lead.may_load.clear()
    now.seconds += breaker.FIRST_PAUSE_S
    assert llm.invoke("Count.").text == "a b c d e f", "no answer waits for another try"
    lead.may_load.set()
    assert until(lambda: llm.invoke("Count.").text == "1 2 3 4 5 6")


def test_wrong_settings_of_the_lead_are_an_error_at_once(pair):
    pair[0].error_at_load = UsageError("no such file: lead.gguf")
    with pytest.raises(UsageError, match="lead.gguf"):
        led(pair).invoke("Count.")


def test_if_no_member_can_be_loaded_the_error_names_all_and_the_next_call_tries_all_again(pair):
    lead, spare = pair
    lead.error_at_load, spare.error_at_load = unreached("lead"), unreached("spare")
    llm = led(pair)
    with pytest.raises(EnsembleError, match="http://lead .*http://spare ") as raised:
        llm.invoke("Count.")
    assert [failure.member for failure in raised.value.failures] == ["lead", "spare"]
    spare.error_at_load = None
    assert llm.invoke("Count.").text == "a b c d e f"


def test_if_all_members_fail_the_error_names_them_in_order():
    members = mortals((5, "raise"), (3, "500"), (0, "401"))
    with pytest.raises(EnsembleError, match=r"a \(error\).*b \(error\).*c \(error\)") as raised:
        SpecFuseChatModel(members=members, segment_tokens=1).invoke("Count.")
    assert [failure.member for failure in raised.value.failures] == ["a", "b", "c"]
    assert numbers(raised.value.text) == list(range(len(raised.value.text.split())))
