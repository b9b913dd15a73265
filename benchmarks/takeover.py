"""What does a reserve cost until it is needed, and how soon does it continue after a failure?

- *Cost*: answers of the lead alone and with a reserve, alternately, and the resident bytes of both.
- *In this process*: the lead fails in its third segment, and another model, which has read nothing
  before, continues: after a short question, and after a conversation of ``--tokens`` tokens.
- *On a server*: as in this process, but a llama-server is in reserve.
- *Hosted*: two servers that write with the delays of a provider (``FIRST_S`` before a reply,
  ``WORD_S`` before each word). The lead's connection breaks. Before its first takeover, the reserve
  asks its server for the list of models.

Times run from the failure to the next text. The text up to the failure is the lead's.

    python benchmarks/takeover.py [--repeats 3] [--tokens 700] [--tiny]
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

from common import (
    QUESTIONS,
    STORY,
    Turns,
    answered,
    apart,
    arguments,
    demo,
    llama_server,
    on_workers,
    query,
    question,
    report,
    text_of,
)
from langchain_openai import ChatOpenAI
from prefix import history

from langchain_specfuse import (
    ChatModelMember,
    Method,
    ScriptedMember,
    ServerMember,
    SpecFuseChatModel,
)
from langchain_specfuse.core.options import Settings
from langchain_specfuse.core.values import Turn
from langchain_specfuse.demo import SMOLLM2
from langchain_specfuse.engine import Ensemble
from langchain_specfuse.members.llamacpp.binding import thread_count
from tests.members.failing_server import FailingServer

MEASURES = ("core/rounds.py", "engine/drive.py", "engine/ensemble.py", "members/local")
"""The parts of the package that decide these figures."""

FIRST_S, WORD_S = 0.4, 0.02
SEGMENT = 8
FAILS_IN = 3


class Failing:
    """A member that fails in its third draft of an answer, and notes when."""

    def __init__(self, member: Any) -> None:
        self._member = member
        self.failed_at = 0.0
        self.drafts = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._member, name)

    def draft(self, jobs: Sequence[Any]) -> Any:
        self.drafts += 1
        if self.drafts == FAILS_IN:
            self.failed_at = time.perf_counter()
            raise RuntimeError("the device is lost")
        return self._member.draft(jobs)


def settings(lead: str, tokens: int) -> Settings:
    return Settings(lead=lead, max_tokens=tokens, method=Method(segment_tokens=SEGMENT))


def taken_over(lead: Any, reserve: Any, turns: Turns) -> float:
    """Seconds from a failure of the lead to the next text. The reserve has read nothing."""
    on_workers(Ensemble([reserve]), lambda member: getattr(member, "drop_prefixes", int)())
    failing = Failing(lead)
    # Another ensemble, because its circuit breaker remembers no failure.
    ensemble = Ensemble([failing, reserve])
    ensemble.loaded().result()
    for item in ensemble.rounds(query(turns), settings(lead.name, FAILS_IN * SEGMENT)):
        if item.number == FAILS_IN:
            return time.perf_counter() - failing.failed_at
    raise AssertionError("the lead has not failed")


def resident() -> int:
    import psutil

    return int(psutil.Process(os.getpid()).memory_info().rss)


def cost(lead: Any, reserve: Any, repeats: int, tokens: int) -> dict[str, Any]:
    """The time of answers with a reserve, divided by the time of the lead alone, and the bytes of
    both."""
    alone = Ensemble([lead])
    alone.loaded().result()
    before = resident()
    both = Ensemble([lead, reserve])
    both.loaded().result()
    bytes_of_reserve = resident() - before
    seconds: dict[str, list[float]] = {"alone": [], "with a reserve": []}
    texts = set()
    given = settings(lead.name, tokens)
    for turn in range(repeats + 1):
        for name, ensemble in (("alone", alone), ("with a reserve", both)):
            since = time.perf_counter()
            texts.add(text_of(answered(ensemble, question(QUESTIONS[2]), given)))
            if turn:  # the first one warms up
                seconds[name].append(time.perf_counter() - since)
    ratios = [b / a for a, b in zip(seconds["alone"], seconds["with a reserve"], strict=True)]
    return {
        "ratio": round(median(ratios), 3),
        "lowest": round(min(ratios), 3),
        "highest": round(max(ratios), 3),
        "alone_s": round(median(seconds["alone"]), 3),
        "same_text": len(texts) == 1,
        "bytes_before": before,
        "bytes_of_reserve": bytes_of_reserve,
    }


def hosted(repeats: int) -> dict[str, Any]:
    """Seconds from a break of the connection to the next text, at the first takeover and later."""
    first = FailingServer("a", fails_after=20, first_s=FIRST_S, word_s=WORD_S, words=30)
    second = FailingServer("b", first_s=FIRST_S, word_s=WORD_S, words=30)

    def member(server: FailingServer) -> ChatModelMember:
        model = ChatOpenAI(model="m", base_url=server.url, api_key="none", max_retries=0)
        return ChatModelMember(model, name=server.name)

    spare = member(second)
    seconds = []
    try:
        for _ in range(repeats + 1):
            # Another lead, because the circuit breaker would pass over this one.
            llm = SpecFuseChatModel(
                members=[member(first), spare], method=Method(segment_tokens=SEGMENT), trace="off"
            )
            for chunk in llm.stream("Count."):
                if second.name in chunk.text:
                    seconds.append(time.perf_counter() - first.failed_at)
                    break
    finally:
        first.stop()
        second.stop()
    return {"first_s": round(seconds[0], 3), "later_s": round(median(seconds[1:]), 3)}


def on_server(conversations: dict[str, Turns], repeats: int) -> dict[str, float]:
    """Seconds to the next text of a llama-server, after each of these conversations. The lead is
    scripted, because a model in this process would take the processor from the server."""
    lead = ScriptedMember(STORY, name="lead")
    found: dict[str, float] = {}
    with llama_server(SMOLLM2, thread_count()) as url:
        for length, turns in conversations.items():
            seconds = []
            for number in range(repeats):
                # Another beginning, because the server keeps what it has read.
                first = Turn("system", f"This is conversation {number}.")
                served = ServerMember(url, SMOLLM2.name, name="served")
                seconds.append(taken_over(lead, served, (first, *turns)))
                served.unload()
            found[length] = round(median(seconds), 3)
    return found


def main() -> None:
    given = arguments(
        __file__, __doc__, tiny={"repeats": 1, "tokens": 150}, repeats=3, tokens=700
    ).parse_args()
    lead, reserve = demo("small" if given.tiny else "default")
    result: dict[str, Any] = {"lead": lead.name, "reserve": reserve.name}
    result["cost"] = cost(lead, reserve, given.repeats, 24 if given.tiny else 64)
    conversations = {
        "short": question(QUESTIONS[2]),
        "long": history(lead, given.tokens),
    }
    result["takeovers"] = takeovers = []
    for length, turns in conversations.items():
        seconds = [taken_over(lead, reserve, turns) for _ in range(given.repeats)]
        takeovers.append(
            {"reserve": "in this process", "conversation": length, "s": round(median(seconds), 3)}
        )
    for length, seconds in apart(on_server, conversations, given.repeats).items():
        takeovers.append({"reserve": "on a server", "conversation": length, "s": seconds})
    result["hosted"] = hosted(given.repeats)
    report(__file__, given, MEASURES, result)


if __name__ == "__main__":
    main()
