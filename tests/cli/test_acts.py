"""``langchain-specfuse demo``: the acts, with scripted members and with real ones; and the member in a
process of its own that one of them kills."""

from __future__ import annotations

import io
import os
import pickle
import re
import signal
import subprocess
import sys
import time

import pytest

from langchain_specfuse import MemberError, ScriptedMember
from langchain_specfuse.cli.main import FAILED, FINE, INTERRUPTED, MISUSED, main
from langchain_specfuse.cli.member_process import MemberProcess
from langchain_specfuse.core.values import DraftJob, Failure, Query, Sampling, Segment, Turn
from langchain_specfuse.errors import advised
from tests.demo_members import SlowMember, replace_demo

SORRY = (
    "We are sorry that the parcel which you have ordered from us last week, on Monday, is late, "
    "and we will look for it now."
)
SURE = SORRY.replace("sorry", "sure")


@pytest.fixture
def act(capsys, monkeypatch):
    """Run the command with these scripts; return (exit code, standard output, standard error)."""

    def ran(*argv: str, lead=SORRY, other=SURE):
        by = [SlowMember(lead, name="lead"), ScriptedMember(other, name="other")]
        replace_demo(by, monkeypatch.setattr)
        return (main(["demo", *argv]), *capsys.readouterr())

    return ran


# --- the acts -------------------------------------------------------------------------------------


def test_each_act_shows_its_command_and_what_happened(act):
    code, out, err = act()
    assert (code, err) == (FINE, "langchain-specfuse: loading lead, other ...\n")
    vote, rule, failure = re.split(r"^\d\. ", out, flags=re.MULTILINE)[1:]
    assert "--lead none 'How do birds fly? Answer in two sentences.'\n\nlead  other\n" in vote
    assert re.search(r"^-> lead wrote .*; \d+\.\d s, first text after \d", vote, re.MULTILINE)
    assert "--check 'forbids:(?i)sorry|apolog'" in rule and "✗ lead" in rule
    assert "sure that" in rule.split("\n\n")[2] and "sorry" not in rule.split("\n\n")[2]
    assert re.search(r"^-> \d drafts? broke the rule, the answer keeps it", rule, re.MULTILINE)
    assert re.search(r"^\$ .*langchain-specfuse demo 3$", failure, re.MULTILINE)
    begin, pid, end = re.search(
        r"^(We are .*) \[kill -9 (\d+)\](.*)$", failure, re.MULTILINE
    ).groups()
    assert begin + end == SORRY and end
    assert f"lead left (error): its process {pid} was killed" in failure
    count = len(begin.split())
    assert f"-> lead wrote {count} words, other the other {len(end.split())}, from " in failure
    assert re.search(r"3 acts in \d+ s", out)


def test_the_default_models_get_a_question_of_their_own(act, monkeypatch):
    monkeypatch.setenv("DEMO", "default")
    out = act("1")[1]
    assert (
        "$ langchain-specfuse --lead none 'Why is the sea salty? Answer in two sentences.'" in out
    )


def test_scripted_members_show_all_acts_without_a_model(monkeypatch, capsys, tmp_path):
    """Who cannot fetch 0.35 GB sees the same."""
    monkeypatch.setenv("DEMO", "scripted")
    monkeypatch.setenv("SPECFUSE_CACHE", str(tmp_path))
    assert main(["demo"]) == FINE
    out, err = capsys.readouterr()
    assert "no model writes here" in err and "nothing is fetched" in err
    vote, rule, failure = re.findall(r"^-> (.*)", out, flags=re.MULTILINE)
    assert "scripted-1 2" in vote or "scripted-2 1" in vote
    assert "1 draft broke the rule, the answer keeps it" in rule
    assert "scripted-1 wrote 20 words, scripted-2 the other 1" in failure
    assert "$ DEMO=scripted langchain-specfuse demo 2" in out and not list(tmp_path.iterdir())
    assert main(["Why?"]) == MISUSED and "langchain-specfuse demo" in capsys.readouterr().err


def test_one_act_is_shown_alone(act):
    code, out, _ = act("2")
    assert code == FINE and "\n2. " in out and "\n1. " not in out and "1 act in" in out


def test_an_act_that_does_not_turn_out_as_expected_says_so(act):
    code, out, _ = act("2", "3", lead="It is on its way.", other="It is on its way.")
    assert code == FINE and "kill -9" not in out
    assert "-> no draft broke the rule this time" in out
    assert "-> the answer was over before its author could be killed" in out


def test_an_act_that_fails_does_not_keep_the_next_one_from_being_shown(act):
    code, out, err = act("2", "1", lead="sorry", other="sorry")
    assert code == FAILED and "no text passed the check" in err and "-> lead wrote" in out


def test_the_act_that_kills_is_shown_once_and_last(act):
    code, out, _ = act("3", "1", "3")
    assert code == FINE and re.findall(r"^(\d)\. ", out, re.MULTILINE) == ["1", "3"]


@pytest.mark.parametrize(
    "argv", [["0"], ["4"], ["1", "-1"], ["Why is the sky blue?"], ["--members", "a"]]
)
def test_a_mistake_is_named_before_anything_is_loaded(act, argv):
    code, out, err = act(*argv)
    assert (code, out) == (MISUSED, "") and "error: " in err and "loading" not in err


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colours_follow_the_terminal(act, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", Terminal())
        act("2")
        coloured = sys.stdout.getvalue()
        patch.setattr(sys, "stdout", Terminal())
        act("2", "--no-color")
        plain = sys.stdout.getvalue()
    assert "\x1b[2;9;31m" in coloured.split("\n\n")[2]
    assert "\x1b" not in plain and "sorry" not in plain.split("\n\n")[2]


INTERRUPTED_ACT = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from langchain_specfuse.cli import main as cli
from langchain_specfuse.errors import advised
from tests.demo_members import SlowMember, replace_demo
replace_demo([SlowMember("a b c d e f g h i j " * 50, name="a"), SlowMember("k", name="k")])
cli.main = lambda main=cli.main: main(["demo", "1"])
cli.command()
"""


def test_ctrl_c_ends_the_demo_at_once_and_its_process_too():
    call = [sys.executable, "-c", INTERRUPTED_ACT]
    process = subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with process:
        while not process.stdout.readline().startswith("$"):
            pass
        children = _children(process.pid)
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == INTERRUPTED and "Traceback" not in err
    assert time.monotonic() - began < 10
    assert len(children) == 1 and not _runs(children[0])


@pytest.mark.real
@pytest.mark.long
def test_the_small_models_show_the_acts(capfd):
    assert main(["demo", "--yes"]) == FINE
    out, err = capfd.readouterr()
    assert out.count("\n-> ") == 3 and "Traceback" not in err
    assert re.search(r"-> \S+ wrote \d+ segments?, \S+ \d", out), "both write in the first act"
    killed = re.search(r"\[kill -9 (\d+)\]", out)
    if killed:  # unless another machine's rounding has ended the answer early
        assert f"SmolLM2-135M left (error): its process {killed[1]} was killed" in out
    assert "sorry" not in out.split("\n2. ")[1].split("\n\n")[2]


# --- the process ----------------------------------------------------------------------------------


def job() -> DraftJob:
    query = Query("q", (Turn("user", "Where is it?"),))
    return DraftJob(query, (Segment("We"),), 3, 9, Sampling())


@pytest.fixture
def apart():
    member = MemberProcess(SlowMember(SORRY, name="ann"))
    yield member
    member.end()


def test_a_member_in_a_process_replies_as_it_does_here(apart):
    here = SlowMember(SORRY, name="ann")
    assert apart.probe() == here.probe() and (apart.name, apart.device) == ("ann", here.device)
    assert [draft.text for draft in apart.draft([job()])] == [" are sorry that"]
    assert apart.draft([job()])[0].tokens == here.draft([job()])[0].tokens
    apart.forget("q")


def test_a_killed_process_fails_its_jobs_and_says_how_it_ended(apart):
    apart.probe()
    apart.kill()
    (failure,) = apart.draft([job()])
    assert isinstance(failure, Failure)
    assert failure.message == f"its process {apart.pid} was killed (SIGKILL)"
    apart.forget("q")  # does not raise


def test_what_the_member_raises_is_raised_here():
    member = MemberProcess(ScriptedMember(SORRY, name="ann", fails_in=1))
    try:
        with pytest.raises(MemberError, match="RuntimeError: scripted failure"):
            member.draft([job()]) if member.probe() else None
    finally:
        member.end()


class Missing(ScriptedMember):
    def probe(self):
        raise advised(MemberError("it is not there", kind="not_found"), "name another one")


def test_an_error_of_loading_keeps_its_kind_and_its_advice():
    member = MemberProcess(Missing(SORRY, name="ann"))
    try:
        with pytest.raises(MemberError, match=r"^it is not there") as caught:
            member.probe()
    finally:
        member.end()
    assert (caught.value.kind, caught.value.notes) == ("not_found", ("-> name another one",))


def test_a_process_that_ends_while_it_loads_is_reported(apart):
    apart.start_loading()
    apart.kill()
    with pytest.raises(MemberError, match="was killed"):
        apart.probe()


ORPHAN = """
import os, signal, sys
from langchain_specfuse import ScriptedMember
from langchain_specfuse.cli.member_process import MemberProcess
member = MemberProcess(ScriptedMember("a", name="a"))
member.probe()
print(member.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_no_process_is_left_when_this_one_is_killed():
    done = subprocess.run(
        [sys.executable, "-c", ORPHAN], capture_output=True, text=True, timeout=60
    )
    assert not _runs(int(done.stdout)) and done.stderr == ""


@pytest.mark.parametrize("calls", [b"", pickle.dumps(ScriptedMember("a"))[:-9]])
def test_a_process_whose_starter_ends_while_it_starts_ends_silently(calls):
    call = [sys.executable, "-m", MemberProcess.__module__]
    done = subprocess.run(call, input=calls, capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")


def _children(pid: int) -> list[int]:
    import psutil

    return [child.pid for child in psutil.Process(pid).children()]


def _runs(pid: int) -> bool:
    """Whether the process still runs after a few seconds."""
    for _ in range(50):
        try:
            os.kill(pid, 0)
            with open(f"/proc/{pid}/stat") as file:
                if ") Z " in file.read():  # nobody has waited for it yet
                    return False
        except (ProcessLookupError, FileNotFoundError):
            return False
        time.sleep(0.1)
    return True
