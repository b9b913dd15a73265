"""Code of answers: what is run, what is said, and what it cannot do to this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage

from langchain_specfuse import UsageError, checks


def fault(code: str, tests: str | None = None, timeout: float = 20) -> str | None:
    """What the check says about an answer with this code."""
    check = checks.python(tests=tests, examples=False, timeout=timeout)
    return check.function(f"Here it is:\n```python\n{code}\n```\nDone.")


def isolates() -> bool:
    """Whether this system gives a process namespaces of its own."""
    unshared = ["unshare", "--user", "--net", "--pid", "--fork", "true"]
    try:
        return subprocess.run(unshared, capture_output=True).returncode == 0
    except OSError:
        return False


ISOLATED = pytest.mark.skipif(not isolates(), reason="this system refuses namespaces")
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="the limits differ elsewhere")


# --- which code is run ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("```python\nx = 1\n```", None),
        ("```py\nx = 1\n```", None),
        ("```\nx = 1\n```", None),
        ("x = 1\nassert x == 1", None),
        ("x = 1\nassert x == 2", "raises AssertionError in line 2"),
        ("First\n```python\nx = 1\n```\nthen\n```python\nassert x == 2\n```", "AssertionError"),
        ("```python\nx = 1\n```\nIt prints\n```\n1 2\n```", None),
        ("```python\nx = 1\n```\n```python\n>>> x\n1\n```", None),
        ("```python\r\nx = 1\r\nassert x == 2\r\n```\r\n", "AssertionError in line 2"),
        ("- so:\n  ```python\n  if True:\n      assert 0\n  ```", "AssertionError in line 2"),
        ("~~~python\nassert 0\n~~~", "AssertionError"),
        ("````python\ns = '''\n```\n'''\nassert 0\n````", "AssertionError in line 4"),
        ("It is cut off:\n```python\nassert 0", "AssertionError"),
        ("```python\nname = 'é天😀'\nassert len(name) == 3\n```", None),
        ("```js\nlet x\n```", "has no Python code"),
        ("The answer is 4.", "has no Python code"),
        ("```python\ndef f(:\n```", "is not valid Python: SyntaxError"),
        ("```python\nx = '\0'\n```", "is not valid Python"),
        ("```python\nx = '\ud800'\n```", "is not valid Python"),
    ],
)
def test_the_code_is_what_the_answers_blocks_contain(answer, said):
    reason = checks.python(examples=False, timeout=20).function(answer)
    assert (reason is None) if said is None else said in reason


# --- examples and tests ---------------------------------------------------------------------------

QUESTION = '''Complete this function:
```python
def twice(s):
    """Repeat it.
    >>> twice("a")
    "aa"
    >>> twice([1,  2])
    [1, 2, 1, 2]
    >>>twice(None)
    Traceback (most recent call last):
    TypeError: ...
    """
```'''


def answered(body: str, *messages: object, tests: str | None = None) -> str | None:
    context = checks.CheckContext(messages or (HumanMessage(QUESTION),), "", "ann", True)
    function = checks.python(tests=tests, timeout=20).function
    return function(f"```python\ndef twice(s):\n    {body}\n```", context)


def test_the_questions_doctests_are_run():
    assert answered("return s * 2") is None
    assert answered("return s * 3") == """twice("a") gives 'aaa', expected "aa\""""
    assert answered("return [1, 2, 1, 2]").startswith('twice("a") gives [1, 2, 1, 2]')
    assert answered("return s + 1") == (
        'twice("a") raises TypeError: can only concatenate str (not "int") to str'
    )


def test_only_the_last_question_has_examples():
    other = (
        HumanMessage("Now anything.\n>>> twice(3)\n7"),
        AIMessage("Well"),
        HumanMessage(QUESTION),
    )
    assert answered("return s * 2", *other) is None
    assert answered("return s * 3", HumanMessage(QUESTION), HumanMessage("Again")) is None
    assert answered("return s * 3", SystemMessage("No question")) is None


def test_tests_run_after_the_examples():
    assert answered("return s * 2", tests="assert twice(3) == 6") is None
    assert answered("return s * 2", tests="assert twice(3) == 7").startswith("assert twice(3) == 7")


@pytest.mark.parametrize(
    ("code", "tests", "reason"),
    [
        ("def f(x): return x", "assert f(1) == 1\nassert f(2) == 3", "assert f(2) == 3 fails"),
        ("def f(x): return x", "assert f(2) == 3, f(2)", "assert f(2) == 3, f(2) fails: 2"),
        (
            "def f(x): return x[0]",
            "f(1)",
            "f(1) raises TypeError: 'int' object is not subscriptable",
        ),
        ("x = 1", "f(1)", "f(1) raises NameError: name 'f' is not defined"),
        ("def f(x): return f(x)", "f(1)", "f(1) raises RecursionError: maximum recursion depth"),
        ("import sys\nsys.exit(0)", "assert 1", "exits with 0"),
        ("import os\nos._exit(0)", "assert 1", "ends early, with exit code 0"),
        ("raise KeyboardInterrupt", "assert 1", "raises KeyboardInterrupt in line 1"),
        ("def f(): exit()", "f()", "f() raises SystemExit"),
    ],
)
def test_what_fails_first_is_said(code, tests, reason):
    assert fault(code, tests).startswith(reason)


def test_a_class_in_the_code_is_found_where_python_looks_for_it():
    code = "from dataclasses import dataclass\n@dataclass\nclass A:\n    x: int"
    assert fault(code, "import pickle; assert pickle.loads(pickle.dumps(A(1))) == A(1)") is None


def test_a_script_without_tests_may_exit_and_is_the_main_program():
    assert fault("if __name__ == '__main__':\n    raise SystemExit") is None
    assert fault("if __name__ == '__main__':\n    raise SystemExit(3)") == "exits with 3"
    assert fault("if __name__ == '__main__':\n    raise SystemExit(3)", "assert 1") is None


# --- limits ---------------------------------------------------------------------------------------


def test_an_endless_loop_is_ended_in_time():
    start = time.monotonic()
    assert fault("while True: pass", timeout=0.8) == "runs longer than 0.8 s"
    assert time.monotonic() - start < 30


def test_endless_output_takes_no_memory_here():
    assert fault("while True: print('x' * 10**6)", timeout=1) == "runs longer than 1 s"


def test_an_endless_reason_is_shortened():
    assert len(fault("raise ValueError('x' * 10**7)")) < 1000
    assert len(fault("x = 1", "assert 0, 'x' * 10**7")) < 1000


@LINUX
@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("bytearray(2**31)", "MemoryError"),
        ("open('big', 'wb').write(bytes(2**25))", "File too large"),
        ("files = [open('f', 'w') for _ in range(200)]", "Too many open files"),
        ("import ctypes\nctypes.string_at(0)", "ends early, with SIGSEGV"),
    ],
)
def test_memory_files_and_crashes_stay_in_the_process(code, said):
    assert said in fault(code)


FORKS = """
import os, time
for count in range(500):
    try:
        child = os.fork()
    except OSError:
        raise SystemExit(f"refused after {count}")
    if child == 0:
        time.sleep(60)
        os._exit(0)
"""


@ISOLATED
def test_processes_without_end_are_refused():
    assert fault(FORKS).startswith("exits with 'refused after ")


DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(1.5)
        open({path!r}, "w").close()
    os._exit(0)
"""


@ISOLATED
def test_a_process_in_the_background_ends_with_the_check(tmp_path):
    path = tmp_path / "written later"
    assert fault(DAEMON.format(path=str(path))) is None
    time.sleep(2.5)
    assert not path.exists()


@pytest.mark.skipif(os.name != "posix", reason="there are no process groups")
def test_a_child_of_code_that_takes_too_long_ends_with_it(tmp_path):
    path = tmp_path / "written later"
    code = f"import os, time\nos.fork()\ntime.sleep(1)\nopen({str(path)!r}, 'w').close()"
    assert fault(code, timeout=0.5) == "runs longer than 0.5 s"
    time.sleep(1)
    assert not path.exists()


@ISOLATED
@pytest.mark.parametrize("host", ["1.1.1.1", "127.0.0.1"])
def test_there_is_no_network(host):
    code = f"import socket\nsocket.create_connection(({host!r}, 80), 2)"
    assert "Network is unreachable" in fault(code)


@ISOLATED
def test_the_environment_of_this_process_cannot_be_read(monkeypatch):
    """The variables that the interpreter was started with stay in /proc."""
    code = f"import os\nopen('/proc/{os.getpid()}/environ', 'rb').read()"
    assert "PermissionError" in fault(code)


def test_the_code_sees_an_empty_folder_and_no_variable_of_this_process(monkeypatch):
    monkeypatch.setenv("SOME_KEY", "abc")
    code = "import os\nassert os.listdir() == []\nassert 'SOME_KEY' not in os.environ"
    assert fault(code) is None
    home = "import os, pathlib\nassert pathlib.Path.home() == pathlib.Path.cwd()"
    assert fault(home) is None


def test_what_the_code_writes_is_deleted_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    kept = tmp_path / "kept"
    kept.write_text("x")
    assert fault("import os, shutil\nopen('a', 'w')\nshutil.rmtree(os.getcwd())") is None
    assert fault("open('b', 'w')\nimport os\nos.chmod('.', 0o500)") is None
    assert list(tmp_path.iterdir()) == [kept]


def test_input_is_empty_and_threads_and_handlers_do_not_delay():
    assert fault("input()").startswith("raises EOFError")
    start = time.monotonic()
    waits = "import atexit, threading, time\natexit.register(time.sleep, 15)\n"
    assert fault(waits + "threading.Thread(target=time.sleep, args=(15,)).start()") is None
    assert time.monotonic() - start < 30


def test_code_that_replaces_what_the_runner_uses_cannot_break_it():
    assert fault("import os, json, builtins\nos.write = json.dumps = os._exit = None") is None
    assert fault("class E(Exception):\n    def __str__(self): 1 / 0\nraise E") == (
        "raises E in line 3"
    )


def test_an_interpreter_that_cannot_start_is_an_error_and_no_verdict(monkeypatch, tmp_path):
    false = Path("/bin/false")
    if not false.exists():
        pytest.skip("there is no program that always fails")
    monkeypatch.setattr(sys, "executable", str(false))
    with pytest.raises(RuntimeError, match="exit code 1"):
        fault("x = 1")


# --- arguments ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"tests": ""}, "''"),
        ({"tests": ["assert 1"]}, "assert 1"),
        ({"tests": "assert f(:"}, "invalid syntax"),
        ({"examples": "yes"}, "'yes'"),
        ({"timeout": 0}, "got 0"),
        ({"timeout": None}, "None"),
    ],
    ids=repr,
)
def test_arguments_that_cannot_work_are_refused(arguments, said):
    with pytest.raises(UsageError, match=said) as caught:
        checks.python(**arguments)
    assert caught.value.notes[0].startswith("-> ")
