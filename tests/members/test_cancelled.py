"""An answer that nobody waits for any more ends its request: the server sees the connection closed
at once, whichever way the answer was cancelled."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing, closing
from typing import Any

import pytest
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable

from .remote import KINDS, Remote, running, until

WITHIN_S = 10.0
"""Far less than a reply takes that hangs or is read to its end, and more than a machine pauses."""


@pytest.fixture(params=KINDS)
def remote(request: pytest.FixtureRequest) -> Iterator[Remote]:
    with running(request.param) as found:
        yield found


def close(runnable: Runnable[str, Any], remote: Remote) -> None:
    with closing(runnable.stream("Why?")) as stream:  # type: ignore[type-var]
        next(stream)


def aclose(runnable: Runnable[str, Any], remote: Remote) -> None:
    async def read() -> None:
        async with aclosing(runnable.astream("Why?")) as stream:  # type: ignore[type-var]
            await anext(stream)

    asyncio.run(read())


def cancel(runnable: Runnable[str, Any], remote: Remote) -> None:
    async def ask() -> None:
        task = asyncio.create_task(runnable.ainvoke("Why?"))
        assert await asyncio.to_thread(until, remote.asked)
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(ask())


def timeout(runnable: Runnable[str, Any], remote: Remote) -> None:
    async def ask() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await runnable.ainvoke("Why?")

    asyncio.run(ask())


Way = Callable[[Runnable[str, Any], Remote], None]
WAYS: list[Way] = [close, aclose, cancel, timeout]


def assert_ends(remote: Remote) -> None:
    """Check that the request has ended, or ends now."""
    since = time.monotonic()
    assert until(lambda: remote.hung_up), "the request goes on"
    assert remote.hung_up[0] - since < WITHIN_S
    assert until(lambda: not remote.threads())


@pytest.mark.parametrize("way", WAYS)
def test_a_request_whose_reply_arrives(remote: Remote, way: Way) -> None:
    remote.slow_down(0.05)
    way(remote.llm, remote)
    assert_ends(remote)


@pytest.mark.parametrize("remote", KINDS[1:], indirect=True)
@pytest.mark.parametrize(("way", "at"), [(cancel, 0), (timeout, 0), *((way, 3) for way in WAYS)])
def test_a_request_whose_server_is_silent(remote: Remote, way: Way, at: int) -> None:
    remote.hang(at)
    way(remote.llm, remote)
    assert_ends(remote)


@pytest.mark.parametrize("remote", KINDS[1:], indirect=True)
def test_the_time_limit_of_an_answer_ends_its_request(remote: Remote) -> None:
    remote.hang(0)
    with pytest.raises(TimeoutError):
        remote.llm.model_copy(update={"timeout": 0.2}).invoke("Why?")
    assert_ends(remote)


@pytest.mark.parametrize("way", WAYS)
def test_a_request_of_a_chain(remote: Remote, way: Way) -> None:
    remote.slow_down(0.05)
    prompt = ChatPromptTemplate.from_template("Tell me: {question}")
    chain: Runnable[Any, Any] = {"question": str} | prompt | remote.llm
    if way is not close:  # LangChain reads what a parser gets to its end, whatever the model
        chain |= StrOutputParser()
    way(chain, remote)
    assert_ends(remote)
