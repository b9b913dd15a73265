"""Many requests at once: each gets the answer that it gets alone; excess requests are refused at
once."""

from __future__ import annotations

import asyncio
import json
import time

import httpx2
import openai
import pytest
from chat.conftest import GatedMember

from langchain_specfuse import ScriptedMember
from langchain_specfuse.serve import Limits

from .conftest import BLUE, PATH, QUESTION, ensemble


async def test_requests_beyond_the_bounds_are_refused_at_once_and_the_others_answered(serve):
    """They are refused while every accepted answer still waits for its first draft."""
    gated = GatedMember(BLUE, first=0)
    endpoint = serve(ensemble(gated, max_concurrency=2), limits=Limits(max_waiting=3))
    body = {"model": "specfuse", "messages": QUESTION}
    async with httpx2.AsyncClient(timeout=60) as client:
        asked = [
            asyncio.create_task(client.post(endpoint.url + PATH, json=body)) for _ in range(12)
        ]
        first = asyncio.as_completed(asked)
        refused = [await next(first) for _ in range(7)]
        assert endpoint.metric("specfuse_answers_in_flight") == 2
        assert endpoint.metric("specfuse_answers_waiting") == 3
        gated.gate.set()
        answered = [
            response for response in await asyncio.gather(*asked) if response not in refused
        ]
    assert [response.json()["choices"][0]["message"]["content"] for response in answered] == [
        BLUE
    ] * 5
    assert {response.json()["error"]["code"] for response in refused} == {"rate_limit_exceeded"}
    assert all(
        response.status_code == 429 and int(response.headers["retry-after"]) >= 1
        for response in refused
    )
    assert endpoint.counted("specfuse_refused_total", 7, code="rate_limit_exceeded")
    assert endpoint.counted("specfuse_answers_total", 5)


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
LARGE_BODIES = {
    "messages": {"messages": [{"role": "user", "content": ""}] * 50_000},
    "parts": {"messages": [{"role": "user", "content": [1] * 600_000}]},
    "calls": {"messages": [{"role": "assistant", "content": "", "tool_calls": [CALL] * 20_000}]},
    "tools": {"tools": [{"type": "function", "function": {"name": "f"}}] * 10_000},
    "stop": {"stop": [1] * 600_000},
    "stream_options": {"stream_options": dict.fromkeys(map(str, range(100_000)), 1)},
    "temperature": {"temperature": [1] * 600_000},
    "x": {"x" * 1_900_000: 1},
}


@pytest.mark.parametrize("name", LARGE_BODIES)
async def test_a_body_with_very_many_parts_is_refused_and_no_other_request_waits(serve, name):
    endpoint = serve()
    endpoint.ask()
    body = json.dumps({"model": "specfuse", "messages": QUESTION, **LARGE_BODIES[name]}).encode()
    async with httpx2.AsyncClient(timeout=60) as client:
        headers = {"content-type": "application/json"}
        asked = asyncio.create_task(client.post(endpoint.url + PATH, content=body, headers=headers))
        since = time.process_time()
        while not asked.done():
            await client.get(f"{endpoint.url}/health")
        spent_s = time.process_time() - since
    response = await asked
    (param,) = LARGE_BODIES[name]
    assert response.status_code == 400 and response.json()["error"]["param"] == param[:80]
    # The endpoint runs in this process, so this is all that another request may have waited for.
    # The time itself depends on what else the machine does.
    assert spent_s < 1.0


def test_a_long_conversation_and_a_long_text_are_answered(serve):
    endpoint = serve()
    for messages in (QUESTION * 5000, [{"role": "user", "content": "a " * 900_000}]):
        response = endpoint.ask(messages=messages)
        assert response.json()["choices"][0]["message"]["content"] == BLUE


def test_a_late_answer_ends_with_an_error_status_or_with_an_error_after_its_text(serve):
    gated = GatedMember(BLUE, first=0)
    endpoint = serve(ensemble(gated), limits=Limits(timeout=0.3))
    response = endpoint.ask()
    assert (response.status_code, response.json()["error"]["code"]) == (504, "timeout")
    assert response.headers["x-should-retry"] == "false"
    gated.gate.set()
    assert endpoint.idle()

    class Slow(ScriptedMember):
        def draft(self, jobs):
            time.sleep(0.05)
            return super().draft(jobs)

    endpoint = serve(ensemble(Slow("word " * 2000), max_tokens=2000), limits=Limits(timeout=3))
    stream = endpoint.client().chat.completions.create(
        model="specfuse", messages=QUESTION, stream=True
    )
    received = []
    with pytest.raises(openai.APIError, match="took too long"):
        received.extend(stream)
    assert received
    assert endpoint.counted("specfuse_answers_total", 1, outcome="timeout")
    assert endpoint.idle()
