"""A process that is forked after members were at work says so; it neither hangs nor answers wrongly."""

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
    from langchain_specfuse.engine import desk
    from langchain_specfuse import ScriptedMember, SpecFuseChatModel, UsageError

    def llm(name):
        return SpecFuseChatModel(members=[ScriptedMember("The sky is blue.", name=name), ScriptedMember("So it is.")])

    def child(what):
        sys.stdout.flush()
        pid = os.fork()
        if not pid:
            try:
                what()
            except UsageError as error:
                print(error, *error.__notes__)
            sys.stdout.flush()
            os._exit(0)
        os.waitpid(pid, 0)
"""


def ran(code, timeout_s=120):
    """In a process and group of its own: a child that hangs must not outlive the test."""
    told = textwrap.dedent(PARENT) + textwrap.dedent(code)
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", told], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        said, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        pytest.fail("the child hangs")
    return said


@pytest.mark.parametrize("who", ["one", "other"])
def test_a_child_of_a_process_that_has_answered_is_told_what_is_wrong(who):
    said = ran(f"""
        one, other = llm("one"), llm("other")
        one.invoke("How is it?")
        child(lambda: print({who}.invoke("And now?").text))
        print(one.invoke("Still there?").text)
    """)
    assert "was forked from one whose members had been at work" in said
    assert "'spawn'" in said
    assert said.endswith("The sky is blue.\n")


def test_a_child_forked_in_the_middle_of_an_answer_closes_it_in_peace_and_the_parent_goes_on():
    said = ran("""
        stream = one = llm("one").stream("How is it?", segment_tokens=1)
        first = next(stream).text
        child(lambda: (stream.close(), print("closed")))
        print(first + "".join(chunk.text for chunk in stream))
    """)
    assert said == "closed\nThe sky is blue.\n"


def test_a_child_that_reads_on_in_its_parents_stream_is_told():
    said = ran("""
        one = llm("one")
        stream = one.stream("How is it?", segment_tokens=1)
        first = next(stream).text
        child(lambda: print(next(stream).text))
        print(first + "".join(chunk.text for chunk in stream))
    """)
    assert "was forked from" in said
    assert said.endswith("The sky is blue.\n")


def test_a_child_forked_while_others_ask_is_told_as_well():
    """Locks may be held by threads that the child does not have: those of imports in the first questions, say."""
    said = ran("""
        one = llm("one")
        stop = threading.Event()
        def ask():
            while not stop.is_set():
                one.invoke("How is it?")
        askers = [threading.Thread(target=ask) for _ in range(4)]
        for asker in askers: asker.start()
        while not desk._SETTLED: time.sleep(0)
        for _ in range(12):
            child(lambda: print(one.invoke("And now?").text))
        stop.set()
        for asker in askers: asker.join()
    """)
    assert said.count("was forked from") == 12


def test_a_child_forked_before_the_first_question_answers():
    said = ran("""
        one = llm("one")
        child(lambda: print(one.invoke("How is it?").text))
        print(one.invoke("How is it?").text)
    """)
    assert said == "The sky is blue.\n" * 2
