"""A provider or a server that falls silent: its lead is replaced in mid-sentence, other answers do
not notice, and nothing stays behind."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.outputs import ChatGenerationChunk

from langchain_specfuse import ChatModelMember, Method, ScriptedMember, SpecFuseChatModel
from langchain_specfuse.engine import limits
from langchain_specfuse.members.chat_model import member
from tests import late
from tests.late import three_tries

from .remote import KINDS, WORDS, Remote, running, until
from .test_chat_model import STORY, Talker

SILENCE_S, FIRST_S = 0.25, 0.5


@pytest.fixture(params=KINDS)
def remote(request: pytest.FixtureRequest) -> Iterator[Remote]:
    with running(request.param) as found:
        yield found


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SILENCE_S", SILENCE_S)
    monkeypatch.setattr(limits, "FIRST_SILENCE_S", FIRST_S)
    monkeypatch.setattr(member, "silence_of", lambda model: None)  # the same for chat models


def with_reserves(*members: Any, whole: str) -> SpecFuseChatModel:
    """The members, and a reserve that has the same text."""
    last = ScriptedMember(whole, name="last")
    return SpecFuseChatModel(
        members=[*members, last],
        lead=members[0].name,
        max_tokens=WORDS,
        method=Method(segment_tokens=2),
    )


def exits_of(message: Any) -> list[tuple[str, str]]:
    return [
        (exit["member"], exit["reason"]) for exit in message.response_metadata["specfuse"]["exits"]
    ]


# --- silence --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at", "limit_s", "way"),
    [
        (0, FIRST_S, "sync"),
        (0, FIRST_S, "async"),
        (1, SILENCE_S, "sync"),
        (4, SILENCE_S, "async"),
    ],
)
def test_a_lead_that_falls_silent_is_replaced_in_mid_sentence(
    remote: Remote, short: None, at: int, limit_s: float, way: str
) -> None:
    """After one token, perhaps no word is complete and nothing was shown, but the token has
    arrived."""
    whole = remote.llm.invoke("Why?").text
    llm = with_reserves(remote.member, whole=whole)
    remote.hang(at)
    with late.only_where(lambda name: name == "lead" and remote.hangs()):
        message = llm.invoke("Why?") if way == "sync" else asyncio.run(llm.ainvoke("Why?"))
    assert message.text == whole
    assert exits_of(message) == [("lead", f"no token for {limit_s:g} s")]
    if isinstance(remote.member, ChatModelMember):  # it reads until something comes
        remote.go_on()
    assert until(lambda: not remote.threads())
    assert until(lambda: remote.hung_up)


@three_tries
def test_the_first_token_of_a_reserve_may_take_longer(remote: Remote, short: None) -> None:
    """The headers of its reply are not a token."""
    remote.slow_down(0.0, (SILENCE_S + FIRST_S) / 2)
    lead, before = ScriptedMember(STORY, name="a", fails_in=2), remote.asked()
    message = with_reserves(lead, remote.member, whole=STORY).invoke("Why?")
    assert [name for name, _ in exits_of(message)] == ["a"]
    assert message.text.startswith("The sky") and remote.asked() == before + 1


@pytest.mark.parametrize("remote", KINDS[1:], indirect=True)
@three_tries
def test_keep_alive_comments_count(remote: Any, short: None) -> None:
    """As OpenRouter and llama-server send them while a prompt is read."""
    whole = remote.llm.invoke("Why?").text

    def pace(number: int) -> Iterator[bytes]:
        for _ in range(5 if number in (0, 4) else 0):
            time.sleep((SILENCE_S if number else FIRST_S) / 4)
            yield b": keep-alive\n\n"

    remote.server.pace = pace
    message = with_reserves(remote.member, whole=whole).invoke("Why?")
    assert message.text == whole and exits_of(message) == []


# --- other answers --------------------------------------------------------------------------------


async def beside_one_that_hangs(remote: Remote, llm: SpecFuseChatModel) -> tuple[Any, list[Any]]:
    """An answer that hangs, and others that were asked for after it and are complete."""
    remote.hang(2)
    first = asyncio.create_task(llm.ainvoke("Why?"))
    assert await asyncio.to_thread(until, remote.hangs)
    remote.recover()
    others = await asyncio.gather(*(remote.llm.ainvoke("Why?") for _ in range(8)))
    return first, others


def test_one_request_that_hangs_delays_only_its_own_answer(remote: Remote) -> None:
    async def answers() -> set[str]:
        first, others = await beside_one_that_hangs(remote, remote.llm)
        assert not first.done()
        remote.go_on()
        return {message.text for message in [await first, *others]}

    assert asyncio.run(answers()) == {remote.llm.invoke("Why?").text}


def test_one_request_that_hangs_fails_only_its_own_answer(remote: Remote, short: None) -> None:
    whole = remote.llm.invoke("Why?").text

    async def answers() -> list[Any]:
        llm = with_reserves(remote.member, whole=whole)
        first, others = await beside_one_that_hangs(remote, llm)
        return [await first, *others]

    first, *others = asyncio.run(answers())
    assert {message.text for message in [first, *others]} == {whole}
    assert exits_of(first) == [("lead", f"no token for {SILENCE_S:g} s")]
    assert not any(map(exits_of, others))


# --- answers that are over ------------------------------------------------------------------------


def test_requests_of_answers_that_are_over_are_not_sent(remote: Remote) -> None:
    remote.member.max_concurrency = 1
    remote.hang(2)

    async def answers() -> int:
        first = asyncio.create_task(remote.llm.ainvoke("Why?"))
        assert await asyncio.to_thread(until, remote.hangs)
        waiting = [asyncio.create_task(remote.llm.ainvoke("Why?")) for _ in range(5)]
        await asyncio.sleep(0.05)
        for task in (*waiting, first):
            task.cancel()
        asked = remote.asked()
        remote.recover()
        await remote.llm.ainvoke("Why?")  # it does not wait for the one that hangs
        return remote.asked() - asked

    assert asyncio.run(answers()) == 1


def test_no_more_is_read_of_a_reply_whose_answer_is_over() -> None:
    """Text that is not read is not billed."""
    go = threading.Event()

    class Hanging(Talker):
        def _stream(self, *args: Any, **options: Any) -> Iterator[ChatGenerationChunk]:
            for number, chunk in enumerate(super()._stream(*args, **options)):
                if number == 3:
                    go.wait(30)
                yield chunk

    model = Hanging(asked=[], said=[], closed=[])
    stream = SpecFuseChatModel(members=[ChatModelMember(model, name="read")]).stream("Why?")
    assert STORY.startswith(next(stream).text + next(stream).text)  # it is read two chunks ahead
    assert until(lambda: len(model.said) == 4)
    stream.close()  # type: ignore[attr-defined]
    go.set()
    assert until(lambda: model.closed)
    assert len(model.said) == 4
