"""A process that was forked from one that had been asked a question says so; it neither hangs nor
answers wrongly."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")

PARENT = """
    import os, sys, threading, time
    from langchain_specfuse import ScriptedMember, SpecFuseChatModel, UsageError

    def llm(name):
        return SpecFuseChatModel(members=[ScriptedMember("The sky is blue.", name=name), ScriptedMember("So it is.")])

    def child(act):
        sys.stdout.flush()
        pid = os.fork()
        if not pid:
            try:
                act()
            except UsageError as error:
                print(error)
            sys.stdout.flush()
            os._exit(0)
        os.waitpid(pid, 0)

    one, other = llm("one"), llm("other")
"""


def output(code):
    """What the code prints, in a process group of its own: a child that hangs must not outlive the
    test."""
    code = textwrap.dedent(PARENT) + textwrap.dedent(code)
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        printed, _ = process.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        pytest.fail("the child hangs")
    return printed


def test_a_child_forked_before_the_first_question_answers_and_later_ones_get_an_error():
    """Also where it reads on in its parent's stream. Closing that stream is harmless, and the
    parent goes on."""
    printed = output("""
        child(lambda: print(one.invoke("How is it?").text))
        stream = one.stream("How is it?", method={"segment_tokens": 1})
        first = next(stream).text
        child(lambda: print(one.invoke("And now?").text))
        child(lambda: print(other.invoke("And now?").text))
        child(lambda: print(next(stream).text))
        child(lambda: (stream.close(), print("closed")))
        print(first + "".join(chunk.text for chunk in stream))
        print(one.invoke("Still there?").text)
    """)
    assert printed.startswith("The sky is blue.\n")
    assert printed.count("was forked from one whose members had been at work") == 3
    assert printed.count("'spawn'") == 3
    assert printed.endswith("closed\nThe sky is blue.\nThe sky is blue.\n")
