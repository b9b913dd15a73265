"""Endpoints of ours as members, in processes of their own: one is killed, one is stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from langchain_openai import ChatOpenAI

from langchain_specfuse import ChatModelMember, Method, ScriptedMember, SpecFuseChatModel
from tests import late

from .conftest import until

pytestmark = pytest.mark.slow
WORDS = 20
RUN = """
import sys, threading, time
from langchain_specfuse import ScriptedMember, SpecFuseChatModel
from langchain_specfuse.serve import app_of
from langchain_specfuse.serve.server import listening, server_of

name, pause_s = sys.argv[1], float(sys.argv[2])

class Slow(ScriptedMember):
    def draft(self, jobs):
        time.sleep(pause_s)
        return super().draft(jobs)

def script(query):
    turns = query.turns
    if turns[-1].text.startswith("Continue your last message"):
        turns = turns[:-1]
    begun = len(turns[-1].text.split()) if turns[-1].role == "assistant" else 0
    if begun == 0:
        print("asked", flush=True)
    return " ".join(f"{name}ö{number}" for number in range(begun, WORDS))

llm = SpecFuseChatModel(members=[Slow(script, name=name)], method={"segment_tokens": 1})
with listening("127.0.0.1", 0) as listener:
    print(listener.getsockname()[1], flush=True)
    server_of(app_of(llm), grace_s=1).run([listener])
""".replace("WORDS", str(WORDS))


class Endpoint:
    """An endpoint with one member, in a process of its own. ``lines`` has what it prints."""

    def __init__(self, name: str, pause_s: float) -> None:
        command = [sys.executable, "-c", RUN, name, str(pause_s)]
        self.name = name
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=os.environ
        )
        self.lines: list[str] = []
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            self.lines.extend(line.strip() for line in lines)

    def member(self) -> ChatModelMember:
        assert until(lambda: self.lines, 60)
        url = f"http://127.0.0.1:{self.lines[0]}/v1"
        model = ChatOpenAI(model="specfuse", base_url=url, api_key="none", max_retries=0)
        return ChatModelMember(model, name=self.name)

    def end(self) -> None:
        self.process.kill()
        self.process.wait(60)
        self._reading.join(30)


@pytest.fixture
def endpoint() -> Iterator[Callable[..., Endpoint]]:
    running: list[Endpoint] = []
    yield lambda *given: running.append(Endpoint(*given)) or running[-1]
    for each in running:
        each.end()


def numbers(text: str) -> list[int]:
    return [int(word.split("ö")[1]) for word in text.split()]


def writers(text: str) -> list[str]:
    return list(dict.fromkeys(word.split("ö")[0] for word in text.split()))


@pytest.mark.parametrize(
    ("how", "kind"),
    [("SIGKILL", "error"), pytest.param("SIGSTOP", "timeout", marks=pytest.mark.long)],
)
def test_another_endpoint_continues_where_one_is_killed_or_hangs(endpoint, how, kind):
    first, second = endpoint("a", 0.1), endpoint("b", 0.0)
    llm = SpecFuseChatModel(
        members=[first.member(), second.member()],
        method=Method(segment_tokens=2),
        member_timeout=1.0,
    )
    text, struck, exits = "", False, []
    with late.only_where(lambda name: name == "a" and struck and how == "SIGSTOP"):
        for chunk in llm.stream("Count."):
            text += chunk.text
            if len(text.split()) >= 6 and not struck:
                assert second.lines[1:] == [], "the reserve has been sent no request"
                first.process.send_signal(getattr(signal, how))
                struck = True
            exits += chunk.response_metadata.get("specfuse", {}).get("exits", [])
    assert numbers(text) == list(range(WORDS)) and writers(text) == ["a", "b"]
    assert [(left["member"], left["kind"]) for left in exits] == [("a", kind)]
    message = llm.invoke("Count.")
    assert writers(message.text) == ["b"], "the next answer begins with the reserve"


def test_a_model_in_this_process_answers_where_no_endpoint_was_running(endpoint):
    gone = endpoint("a", 0.0)
    member = gone.member()
    gone.end()
    spare = ScriptedMember(" ".join(f"sö{number}" for number in range(WORDS)), name="spare")
    llm: Any = SpecFuseChatModel(members=[member, spare], lead="a")
    message = llm.invoke("Count.")
    assert writers(message.text) == ["s"]
    (left,) = message.response_metadata["specfuse"]["exits"]
    assert left["member"] == "a" and "cannot be reached" in left["reason"]
