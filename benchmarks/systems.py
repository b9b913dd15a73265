"""The systems that stand between a caller and a provider that fails, each asked in its own way.

Run as a program, this file plays the caller of one system. It runs the scenarios side by side, each
with a model and a fallback of its own, and prints what the caller got as JSON. It first prints
``ready``, and begins when it reads a line, so that no system starts up while another one is asked.
LiteLLM runs in a Python of its own, so this file needs only the standard library until a system is
opened.

    python benchmarks/systems.py SYSTEM URL [--profile full] [--only S01 S02]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from faults import QUESTION, WORDS
from scenarios import SCENARIOS, Scenario

Piece = tuple[str, str, Any]
"""Text, the name of the model (or empty) and the usage (or nothing)."""
Ask = Callable[[bool], AsyncIterator[Piece]]
"""Asks the question. ``True``: as a healthy request whose reply is not streamed."""
ALIVE_S = 10.0
"""For the healthy request afterwards."""
HEALTHY = "fb-ok"
LONGEST = ("S15", "S06", "S09", "S07")
APART_S = {"full": 1.0, "fast": 0.2}
"""Between the beginnings of two scenarios."""


@asynccontextmanager
async def specfuse(one: Scenario, url: str) -> AsyncIterator[Ask]:
    from langchain_openai import ChatOpenAI

    from langchain_specfuse import SpecFuseChatModel

    def hosted(name: str) -> ChatOpenAI:
        # At another address than OpenAI's, it asks for a stream's usage only if told to.
        return ChatOpenAI(model=name, base_url=url, api_key="none", stream_usage=True)

    yield _langchain(
        SpecFuseChatModel(members=[hosted(one.model), hosted(one.fallback)]),
        SpecFuseChatModel(members=[hosted(HEALTHY)]),
    )


@asynccontextmanager
async def with_fallbacks(one: Scenario, url: str) -> AsyncIterator[Ask]:
    from langchain_openai import ChatOpenAI

    def hosted(name: str) -> ChatOpenAI:
        return ChatOpenAI(
            model=name, base_url=url, api_key="none", max_retries=2, timeout=30, stream_usage=True
        )

    yield _langchain(
        hosted(one.model).with_fallbacks([hosted(one.fallback)]),
        hosted(HEALTHY),
    )


def _langchain(llm: Any, healthy: Any) -> Ask:
    async def ask(is_healthy: bool) -> AsyncIterator[Piece]:
        if is_healthy:
            message = await healthy.ainvoke(QUESTION)
            yield message.text, "", message.usage_metadata
            return
        async for chunk in llm.astream(QUESTION):
            name = chunk.response_metadata.get("model_name") or ""
            yield chunk.text, name, chunk.usage_metadata

    return ask


@asynccontextmanager
async def endpoint(one: Scenario, url: str) -> AsyncIterator[Ask]:
    """``langchain-specfuse serve`` as a process, asked by OpenAI's client."""
    from openai import AsyncOpenAI

    members = [f"openai:{name}" for name in (one.model, one.fallback)]
    command = ["serve", "--members", *members, "--port", "0"]
    environment = os.environ | {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "none"}
    server = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "langchain_specfuse",
        *command,
        env=environment,
        stderr=asyncio.subprocess.PIPE,
    )
    assert server.stderr is not None
    try:
        where = None
        while where is None:
            line = (await server.stderr.readline()).decode()
            if not line:
                raise RuntimeError("langchain-specfuse serve has ended")
            where = re.search(r"ready: (\S+)", line)
        reading = asyncio.create_task(server.stderr.read())  # so that its output never blocks it
        client = AsyncOpenAI(base_url=where[1], api_key="none", max_retries=0, timeout=300)
        async with client:
            yield _openai(client.chat.completions.create, "specfuse", "specfuse")
    finally:
        server.terminate()
        await server.wait()
    await reading


def _router(**more: Any) -> Callable[[Scenario, str], AbstractAsyncContextManager[Ask]]:
    @asynccontextmanager
    async def opened(one: Scenario, url: str) -> AsyncIterator[Ask]:
        os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it fetches a newer one otherwise
        import litellm

        litellm.suppress_debug_info = True
        litellm.drop_params = True
        models = {"primary": one.model, "fallback": one.fallback, "healthy": HEALTHY}
        given: dict[str, Any] = {"api_base": url, "api_key": "none"}
        falls_back = [{"primary": ["fallback"]}]
        if more:
            # It continues only with models that accept a prefill, according to its map of costs.
            kind = {
                "litellm_provider": "openai",
                "mode": "chat",
                "supports_assistant_prefill": True,
            }
            litellm.register_model({HEALTHY: kind, f"openai/{HEALTHY}": kind})
        router = litellm.Router(
            model_list=[
                {"model_name": name, "litellm_params": {"model": f"openai/{model}", **given}}
                for name, model in models.items()
            ],
            num_retries=2,
            timeout=30,
            fallbacks=falls_back,
            context_window_fallbacks=falls_back,
            **more,
        )
        yield _openai(router.acompletion, "primary", "healthy")

    return opened


def _openai(create: Any, model: str, healthy: str) -> Ask:
    async def ask(is_healthy: bool) -> AsyncIterator[Piece]:
        messages = [{"role": "user", "content": QUESTION}]
        if is_healthy:
            reply = await create(model=healthy, messages=messages)
            yield reply.choices[0].message.content, reply.model, reply.usage
            return
        chunks = await create(
            model=model, messages=messages, stream=True, stream_options={"include_usage": True}
        )
        async for chunk in chunks:
            text = chunk.choices[0].delta.content if chunk.choices else ""
            yield text or "", chunk.model or "", getattr(chunk, "usage", None)

    return ask


@dataclass(frozen=True)
class System:
    label: str
    settings: str
    packages: Sequence[str]
    opened: Callable[[Scenario, str], AbstractAsyncContextManager[Ask]]
    """Its asking function for a scenario, with a provider at an address."""
    here: bool = True
    """Whether it runs in this Python."""


SYSTEMS: Mapping[str, System] = {
    "python": System(
        "this package, in Python",
        "`SpecFuseChatModel(members=[ChatOpenAI(...), ChatOpenAI(...)])`; `stream_usage=True` for "
        "each `ChatOpenAI`",
        ("langchain-core", "langchain-openai", "openai"),
        specfuse,
    ),
    "endpoint": System(
        "this package, its endpoint",
        "`langchain-specfuse serve --members openai:... openai:...`",
        ("langchain-core", "langchain-openai", "openai"),
        endpoint,
    ),
    "with_fallbacks": System(
        "LangChain's `with_fallbacks`",
        "`max_retries=2`, `timeout=30`, `stream_usage=True` for each model",
        ("langchain-core", "langchain-openai", "openai"),
        with_fallbacks,
    ),
    "litellm": System(
        "LiteLLM's Router",
        "`num_retries=2`, `timeout=30`, `fallbacks` and `context_window_fallbacks`",
        ("litellm", "openai"),
        _router(),
        here=False,
    ),
    "litellm-continues": System(
        "LiteLLM's Router, continuing",
        "`num_retries=2`, `timeout=30`, `fallbacks`, `context_window_fallbacks` and "
        "`enable_mid_stream_fallback_continuation=True`; the fallback is registered as a model "
        "with `supports_assistant_prefill`",
        ("litellm", "openai"),
        _router(enable_mid_stream_fallback_continuation=True),
        here=False,
    ),
}


async def called(ask: Ask, limit_s: float, is_healthy: bool = False) -> dict[str, Any]:
    """What a caller gets who waits this long."""
    since = time.monotonic()
    found: dict[str, Any] = {"at": since, "outcome": "answer", "text": "", "error": ""}
    found |= {"model": "", "usage": False, "first_s": None}
    try:
        async with asyncio.timeout(limit_s):
            async for text, model, usage in ask(is_healthy):
                if text and found["first_s"] is None:
                    found["first_s"] = round(time.monotonic() - since, 3)
                found["text"] += text
                found["model"] = model or found["model"]
                found["usage"] = found["usage"] or bool(usage)
    except TimeoutError as error:
        # The system may have raised it as well.
        is_late = time.monotonic() - since >= limit_s
        found |= {"outcome": "hang" if is_late else "error", "error": repr(error)}
    except Exception as error:
        found |= {"outcome": "error", "error": f"{type(error).__name__}: {error}"[:400]}
    found["s"] = round(time.monotonic() - since, 3)
    return found


async def played(one: Scenario, ask: Ask, profile: str, begins_s: float) -> dict[str, Any]:
    """What the caller gets in this scenario, which begins in so many seconds."""
    await asyncio.sleep(begins_s)
    calls = []
    if one.sequences:
        series = one.sequences[profile]
        since = time.monotonic()
        for number in range(series.count):
            await asyncio.sleep(since + number * series.every_s - time.monotonic())
            calls.append(await called(ask, series.limit_s))
    else:
        calls.append(await called(ask, one.limit_s))
    ended = time.monotonic()
    healthy = await called(ask, ALIVE_S, is_healthy=True)
    return {"calls": calls, "ended": ended, "alive": healthy["text"].split() == WORDS}


async def run(system: System, url: str, profile: str, only: Sequence[str]) -> dict[str, Any]:
    chosen = [one for one in SCENARIOS if not only or one.id in only]
    async with AsyncExitStack() as stack:
        opening = [
            stack.enter_async_context(system.opened(one, f"{url}/{one.id}/v1")) for one in chosen
        ]
        asks = await asyncio.gather(*opening)
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        # The longest first; not at once, so that none waits for the processor.
        begins = {id: at * APART_S[profile] for at, id in enumerate(LONGEST)}
        rest = len(LONGEST)
        for one in chosen:
            if one.id not in begins:
                begins[one.id] = rest * APART_S[profile]
                rest += 1
        playing = [
            played(one, ask, profile, begins[one.id]) for one, ask in zip(chosen, asks, strict=True)
        ]
        found = await asyncio.gather(*playing)
    return {one.id: what for one, what in zip(chosen, found, strict=True)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("system", choices=SYSTEMS)
    parser.add_argument("url")
    parser.add_argument("--profile", default="full")
    parser.add_argument("--only", nargs="*", default=())
    given = parser.parse_args()
    system = SYSTEMS[given.system]
    found = asyncio.run(run(system, given.url, given.profile, given.only))
    versions = {name: metadata.version(name) for name in system.packages}
    print(json.dumps({"packages": versions, "scenarios": found}))


if __name__ == "__main__":
    main()
