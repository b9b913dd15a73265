"""The demo's ensembles against what people would use instead: the same question, files and threads.

Instead: one of the models in llama-server; a member alone; whole answers of all members, of which
the likeliest is taken; the same weights in transformers, in float32. Measured are the tokens a
second of the whole answer, and when its first text is there. The answer of a member alone is
compared with llama-server's.

    python benchmarks/engines.py [--repeats 3] [--tokens 64] [--tiny]
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import httpx2
from common import (
    STORY,
    apart,
    arguments,
    demo,
    llama_server,
    medians,
    query,
    question,
    report,
    text_of,
)

from langchain_specfuse import Method, ServerMember
from langchain_specfuse.core.options import Settings
from langchain_specfuse.demo import ENSEMBLES
from langchain_specfuse.engine import Ensemble
from langchain_specfuse.members.llamacpp.binding import thread_count

MEASURES = (
    "core",
    "engine",
    "members/local",
    "members/llamacpp",
    "members/text/words.py",
    "members/transformers",
    "members/server",
)
"""The parts of the package that decide these figures."""

Ways = dict[str, dict[str, Any]]
"""``alone NAME``, ``server NAME``, ``led NAME`` (the default, if there is a lead), ``all`` (all
draft), ``whole``, ``servers`` or ``transformers``: the answer and its times."""
Part = Callable[[str, int], Ways]


def written(members: list[Any], settings: Settings) -> dict[str, Any]:
    """One answer of these members."""
    ensemble = Ensemble(members)
    ensemble.loaded().result()
    since, rounds, first = time.perf_counter(), [], 0.0
    for one in ensemble.rounds(query(question(STORY)), settings):
        first = first or time.perf_counter() - since
        rounds.append(one)
    tokens = sum(len(one.drafts[one.winner].tokens) for one in rounds)
    return timed(time.perf_counter() - since, first, tokens, text_of(rounds))


def timed(seconds: float, first: float, tokens: int, text: str) -> dict[str, Any]:
    return {
        "tokens_per_second": tokens / seconds,
        "first_s": first,
        "seconds": seconds,
        "tokens": tokens,
        "text": text,
    }


def here(size: str, tokens: int) -> Ways:
    """Members in this process, read by llama.cpp: alone, and together in each way."""
    members = demo(size, prefix_cache=False)
    for member in members:
        written([member], Settings(max_tokens=8))
    led, equals = Settings(max_tokens=tokens), Settings(max_tokens=tokens, lead=None)
    found = {f"alone {member.name}": written([member], equals) for member in members}
    ensemble = Ensemble(members)
    ensemble.loaded().result()
    if lead := ensemble.lead(led):
        found[f"led {lead}"] = written(members, led)
    found["all"] = written(members, equals)
    whole = Settings(max_tokens=tokens, method=Method(segment_tokens=tokens), lead=None)
    return found | {"whole": written(members, whole)}


def alone_on_server(size: str, tokens: int) -> Ways:
    """The first member's model in llama-server, without this package."""
    one = ENSEMBLES[size][0]
    with llama_server(one, thread_count()) as url:
        asked_server(url, 8)
        return {f"server {one.name}": asked_server(url, tokens)}


def asked_server(url: str, tokens: int) -> dict[str, Any]:
    body = {
        "messages": [{"role": "user", "content": STORY}],
        "max_tokens": tokens,
        "temperature": 0,
        "stream": True,
        "cache_prompt": False,
        "repeat_penalty": 1.0,
        "stream_options": {"include_usage": True},
    }
    since, first, text, used = time.perf_counter(), 0.0, "", 0
    with httpx2.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=600) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                event = json.loads(line.removeprefix("data: "))
                used = (event.get("usage") or {}).get("completion_tokens", used)
                for choice in event["choices"]:
                    text += choice["delta"].get("content") or ""
            first = first or bool(text) * (time.perf_counter() - since)
    return timed(time.perf_counter() - since, first, used, text)


def members_on_servers(size: str, tokens: int) -> Ways:
    """The same ensemble with each member on a llama-server, which share the threads."""
    with ExitStack() as running:
        share = max(1, thread_count() // len(ENSEMBLES[size]))
        members = [
            ServerMember(
                f"{running.enter_context(llama_server(one, share))}/v1",
                name=one.name,
                chat_template=one.options.get("chat_template"),
            )
            for one in ENSEMBLES[size]
        ]
        written(members, Settings(max_tokens=8, lead=None))
        return {"servers": written(members, Settings(max_tokens=tokens, lead=None))}


def in_transformers(size: str, tokens: int) -> Ways:
    """The same weights in float32."""
    from langchain_specfuse import TransformersMember
    from tests.members.engines import folder

    members = [
        TransformersMember(
            folder(one), name=one.name, dtype="float32", prefix_cache=False, **one.options
        )
        for one in ENSEMBLES[size]
    ]
    written(members, Settings(max_tokens=8, lead=None))
    return {"transformers": written(members, Settings(max_tokens=tokens, lead=None))}


FAST, SLOW = (
    (here, alone_on_server),
    {"small": (members_on_servers, in_transformers), "default": (members_on_servers,)},
)
"""Parts that are measured several times, and once. The larger model would take 6 GB and minutes in
transformers."""
TINY = {"small": (members_on_servers,)}
"""The parts of ``--tiny`` that are measured once."""


def compared(size: str, slow: Sequence[Part], repeats: int, tokens: int) -> dict[str, Any]:
    """Each part in turn, in a process of its own; the medians of each way."""
    runs = defaultdict[str, list[dict[str, Any]]](list)
    for at in range(repeats):
        for part in FAST if at else (*FAST, *slow):
            for way, found in apart(part, size, tokens).items():
                print(f"{size}: {way}: {found['tokens_per_second']:.1f} tokens/s", flush=True)
                runs[way].append(found)
    texts = {way: {run.pop("text") for run in some} for way, some in runs.items()}
    assert all(len(some) == 1 for some in texts.values()), "a way has given different answers"
    first = ENSEMBLES[size][0].name
    same = texts[f"alone {first}"] == texts[f"server {first}"]
    return {"ways": {way: medians(some) for way, some in runs.items()}, "same_answer": same}


def main() -> None:
    given = arguments(
        __file__, __doc__, tiny={"repeats": 1, "tokens": 16}, repeats=3, tokens=64
    ).parse_args()
    slow = TINY if given.tiny else SLOW
    ensembles = {
        size: compared(size, parts, given.repeats, given.tokens) for size, parts in slow.items()
    }
    report(__file__, given, MEASURES, {"ensembles": ensembles})


if __name__ == "__main__":
    main()
