"""Many at once: each stream is the answer that its question gets alone; who finds no place is told when to come."""

from __future__ import annotations

import asyncio
import time

import httpx
import openai
import pytest

from langchain_specfuse import ScriptedMember, SpecFuseChatModel

from .conftest import BLUE, ensemble, until

MANY = 32
WORDS = BLUE.split()


def story(query):
    """A script of its own for every question."""
    number = int(query.turns[-1].text)
    return " ".join(WORDS[(number * 7 + k * k) % len(WORDS)] for k in range(10 + number))


def tale(query):
    """Another, which now and then agrees with the first."""
    return " ".join(word if k % 3 else "but" for k, word in enumerate(story(query).split()))


async def streamed(client, question, **options):
    pieces = []
    stream = await client.chat.completions.create(
        model="specfuse", messages=[{"role": "user", "content": question}], stream=True, **options
    )
    async for chunk in stream:
        pieces += [chunk.choices[0].delta.content] if chunk.choices[0].delta.content else []
    return pieces


async def crowd(here, questions, **options):
    async with here.aclient() as client:
        return await asyncio.gather(*(streamed(client, question, **options) for question in questions))


async def test_thirty_two_streams_at_once_are_each_the_answer_alone(door):
    here = door(ensemble(story, tale))
    questions = [str(number) for number in range(MANY)]
    told = await crowd(here, questions)
    alone = [[chunk.text for chunk in here.llm.stream(question) if chunk.text] for question in questions]
    assert told == alone
    assert len({"".join(pieces) for pieces in told}) == MANY
    assert until(lambda: here.hall.gate.inside == 0)
    assert until(lambda: not any(member.open_queries for member in here.llm.members))


@pytest.mark.slow
async def test_thirty_two_streams_of_real_members_are_each_the_answer_alone(door):
    pytest.importorskip("torch")
    from members.tiny import member

    llm = SpecFuseChatModel(members=[member("llama", 1), member("gpt2", 3)], max_tokens=16)
    here = door(llm)
    questions = [f"Why is the sky {word}? \x00 天空 😀" for word in (WORDS * 3)[: MANY - 1]] + ["a\nb\n\n"]
    told = await crowd(here, questions)
    alone = [[chunk.text for chunk in llm.stream(question) if chunk.text] for question in questions]
    assert told == alone
    assert len({"".join(pieces) for pieces in told}) > MANY / 4


async def test_a_seed_makes_samples_repeatable_in_a_crowd(door):
    pytest.importorskip("torch")
    from members.tiny import member

    here = door(SpecFuseChatModel(members=[member("llama", 1), member("gpt2", 3)], max_tokens=12))
    questions = [f"Question {number % 4}?" for number in range(12)]
    told = await crowd(here, questions, temperature=1.0, seed=5)
    assert told[:4] == told[4:8] == told[8:]
    assert len({"".join(pieces) for pieces in told}) == 4


# --- more than there is room for --------------------------------------------------------------------------------


class Slow(ScriptedMember):
    def draft(self, jobs):
        time.sleep(0.15)
        return super().draft(jobs)


async def statuses(here, count):
    body = {"model": "specfuse", "messages": [{"role": "user", "content": "Why?"}]}
    async with httpx.AsyncClient(timeout=30) as client:
        return await asyncio.gather(*(client.post(f"{here.url}/v1/chat/completions", json=body) for _ in range(count)))


async def test_who_finds_no_place_is_told_when_to_come_again(door):
    from langchain_specfuse.door import Limits

    here = door(ensemble(Slow(BLUE)), limits=Limits(at_once=2, waiting=3))
    told = await statuses(here, 12)
    served = [response for response in told if response.status_code == 200]
    sent_away = [response for response in told if response.status_code == 429]
    assert (len(served), len(sent_away)) == (5, 7)
    assert all(response.json()["choices"][0]["message"]["content"] == BLUE for response in served)
    assert all(int(response.headers["retry-after"]) >= 1 for response in sent_away)
    assert sent_away[0].json()["error"]["code"] == "rate_limit_exceeded"
    assert here.number("specfuse_refused_total", code="rate_limit_exceeded") == 7
    assert [response.status_code for response in await statuses(here, 2)] == [200, 200]


async def test_never_more_are_answered_at_once_than_was_said(door):
    from langchain_specfuse.door import Limits

    here = door(ensemble(Slow(BLUE)), limits=Limits(at_once=2, waiting=9))
    seen = []
    asking = asyncio.ensure_future(statuses(here, 8))
    while not asking.done():
        seen.append(here.hall.gate.answering)
        await asyncio.sleep(0.005)
    assert {response.status_code for response in await asking} == {200}
    assert max(seen) == 2


async def test_who_waits_too_long_for_a_seat_is_sent_away(door):
    from langchain_specfuse.door import Limits

    class Endless(ScriptedMember):
        def draft(self, jobs):
            time.sleep(0.05)
            return super().draft(jobs)

    here = door(ensemble(Endless("word " * 400)), limits=Limits(at_once=1, waiting=5, timeout_s=1))
    first, second = await statuses(here, 2)
    late, waited = sorted((first, second), key=lambda response: response.status_code, reverse=True)
    assert (late.status_code, late.json()["error"]["code"]) == (504, "timeout")
    assert late.headers["x-should-retry"] == "false"
    assert waited.status_code in (429, 504)
    assert until(lambda: here.hall.gate.inside == 0)


async def test_openais_client_comes_again_by_itself(door):
    from langchain_specfuse.door import Limits

    here = door(ensemble(Slow("Blue.")), limits=Limits(at_once=1, waiting=0))
    async with here.aclient(max_retries=5) as client:
        told = await asyncio.gather(*(streamed(client, "Why?") for _ in range(2)))
    assert told == [["Blue."], ["Blue."]]
    assert here.number("specfuse_refused_total", code="rate_limit_exceeded") >= 1


def test_a_stream_that_takes_too_long_says_so_after_what_it_said(door):
    from langchain_specfuse.door import Limits

    here = door(ensemble(Slow(" ".join(["word"] * 200))), limits=Limits(timeout_s=1))
    said = []
    with pytest.raises(openai.APIError, match="took too long"):
        said.extend(
            here.client().chat.completions.create(
                model="specfuse", messages=[{"role": "user", "content": "Why?"}], stream=True
            )
        )
    assert said
    assert here.number("specfuse_answers_total", outcome="timeout") == 1


async def test_a_chat_model_that_is_busy_itself_is_told_as_a_door_that_is_full(door):
    here = door(ensemble(Slow(BLUE), at_once=1, max_waiting=0))
    told = await statuses(here, 6)
    sent_away = [response for response in told if response.status_code == 429]
    assert len(sent_away) + sum(response.status_code == 200 for response in told) == 6
    assert len(sent_away) >= 3
    assert all(int(response.headers["retry-after"]) >= 1 for response in sent_away)
    for response in sent_away:  # the bounds are the operator's: who asks can only come again
        told_s = response.headers["retry-after"]
        message = response.json()["error"]["message"]
        assert message == f"too many ask at once, and too many wait already\n-> try again in about {told_s} s"
    assert here.number("specfuse_refused_total", code="rate_limit_exceeded") == len(sent_away)
    assert (
        here.number("specfuse_answers_total")
        == here.number("specfuse_answer_seconds_count")
        == len(told) - len(sent_away)
    )
