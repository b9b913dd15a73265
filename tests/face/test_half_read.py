"""A stream that nobody has read to its end makes no noise when its event loop or the interpreter ends."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from typing import Any

import pytest

from langchain_specfuse import SpecFuseChatModel
from langchain_specfuse._half_read import _OPEN

BEGINNING = """
import asyncio, builtins, os, threading, time
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.output_parsers import StrOutputParser
from langchain_specfuse import ScriptedMember, SpecFuseChatModel

class Heard(BaseCallbackHandler):
    def on_llm_error(self, error, **kwargs):
        print("heard", type(error).__name__, flush=True)

members = [ScriptedMember("The sky is blue. " * 30, name="a"), ScriptedMember("The sky is wide. " * 30, name="b")]
llm = SpecFuseChatModel(members=members, segment_tokens=4)
config = {"callbacks": [Heard()]}
"""
LEFT = {
    "in a variable": "stream = llm.stream('?', config); next(stream)",
    "in a place that is cleared last": "builtins.kept = llm.stream('?', config); next(builtins.kept)",
    "in a chain": "stream = (llm | StrOutputParser()).stream('?', config); next(stream)",
    "by a thread": """
def read():
    local.stream = llm.stream('?', config)
    next(local.stream)
    begun.set()
    time.sleep(100)
local, begun = threading.local(), threading.Event()
threading.Thread(target=read, daemon=True).start()
begun.wait()
""",
    "by asyncio.run": """
async def read():
    builtins.kept = llm.astream('?', config)
    await anext(builtins.kept)
asyncio.run(read())
""",
    "by a loop that is kept": """
builtins.loop = asyncio.new_event_loop()
builtins.kept = llm.astream('?', config)
loop.run_until_complete(anext(builtins.kept))
""",
    "by a loop that is closed": """
loop = asyncio.new_event_loop()
stream = llm.astream('?', config)
loop.run_until_complete(anext(stream))
loop.close()
""",
}


def ended(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", BEGINNING + program], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("where", LEFT)
def test_a_stream_that_was_left_ends_with_the_interpreter_without_a_word(where: str) -> None:
    done = ended(LEFT[where])
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "heard GeneratorExit\n"  # whoever listens is told as ever


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked here")
def test_a_child_that_was_forked_leaves_its_parents_streams_alone() -> None:
    done = ended("""
stream = llm.stream('?', config); next(stream)
if not os.fork():
    from langchain_specfuse._half_read import _OPEN
    os._exit(len(_OPEN))
print("left", os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
""")
    assert (done.stdout, done.stderr) == ("left 0\nheard GeneratorExit\n", "")


async def test_a_stream_that_is_closed_is_closed_at_once_and_kept_no_longer(ensemble: Any, soon: Any) -> None:
    llm: SpecFuseChatModel = ensemble()
    stream, other = llm.astream("Why?"), llm.stream("Why?")
    await anext(stream)
    next(other)
    await stream.aclose()  # type: ignore[attr-defined]
    other.close()  # type: ignore[attr-defined]
    del stream, other
    await asyncio.sleep(0)
    assert soon(lambda: not any(member.open_queries for member in llm.members))
    assert not len(_OPEN)
