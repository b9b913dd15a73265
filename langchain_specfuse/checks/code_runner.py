"""The program that runs an answer's code: ``python -I code_runner.py JOB``, in its own process.

It imports nothing of this package. It limits the process, runs the code, then the examples of the
question, then the tests, and writes what failed first into the file that the job names. The code
can do whatever this process can: see ``SECURITY.md``.
"""

from __future__ import annotations

import ast
import ctypes
import doctest
import json
import os
import signal
import sys
import traceback
import types
from contextlib import suppress
from pathlib import Path
from typing import Any

MEMORY = 2**30
FILE = 2**24
NOBODY = 65534
_NEWUSER, _NEWPID, _NEWNET = 0x10000000, 0x20000000, 0x40000000
_PR_SET_PDEATHSIG = 1


def main(job: dict[str, Any]) -> None:
    result = os.open(job["result"], os.O_WRONLY | os.O_CREAT)
    write, end, dumps = os.write, os._exit, json.dumps  # before the code can replace them
    limit(job["timeout"])
    reason = fault(job["code"], job["examples"], job["tests"], job["is_fenced"])
    write(result, dumps({"reason": reason and reason[:1000]}).encode())
    end(0)  # whatever threads and exit handlers the code has left


# --- limits ---------------------------------------------------------------------------------------


def limit(timeout: float) -> None:
    """Limit this process and its children, as far as the system allows it."""
    try:
        import resource
    except ImportError:  # Windows
        return
    limits = {
        "RLIMIT_CPU": int(timeout) + 2,
        "RLIMIT_AS": MEMORY,
        "RLIMIT_FSIZE": FILE,
        "RLIMIT_NOFILE": 64,
        "RLIMIT_CORE": 0,
        # Outside a namespace of its own, this counts all processes of the user.
        "RLIMIT_NPROC": 64 if sys.platform == "linux" and isolated() else 1024,
    }
    for name, value in limits.items():
        with suppress(AttributeError, ValueError, OSError):  # macOS refuses some
            kind = getattr(resource, name)
            hard = resource.getrlimit(kind)[1]
            allowed = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(kind, (allowed, allowed))


def isolated() -> bool:
    """Move into namespaces without a network and without other processes. Returns False if the
    system refuses, as it does in most containers."""
    if os.geteuid() == 0:
        # The kernel limits the processes of the user nobody, but not those of root. Files are still
        # opened as root.
        with suppress(OSError):  # a container may have no such user
            os.setresuid(NOBODY, -1, -1)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEWUSER | _NEWPID | _NEWNET) != 0:
        return False
    child = os.fork()
    if child:
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status < 0:
            os.kill(os.getpid(), -status)
        os._exit(status)
    # This process is the first of its namespace: when it ends, the kernel ends all the others.
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return True


# --- the code -------------------------------------------------------------------------------------


def fault(code: str, examples: str, tests: str, is_fenced: bool) -> str | None:
    """What fails first when this code runs; None if nothing does."""
    try:
        program = compile(code, "answer.py", "exec")
    except Exception as error:
        return f"is not valid Python: {_described(error)}" if is_fenced else "has no Python code"
    module = types.ModuleType("answer" if examples or tests else "__main__")
    sys.modules[module.__name__] = module  # classes and pickle look for it
    try:
        exec(program, module.__dict__)
    except SystemExit as end:
        if examples or tests or end.code not in (None, 0):
            return f"exits with {end.code!r:.80}"
    except BaseException as error:  # models do write `raise KeyboardInterrupt`
        return f"raises {_described(error, 'answer.py')}"
    return _failed_example(examples, module) or _failed_test(tests, module)


def _failed_example(examples: str, module: types.ModuleType) -> str | None:
    parsed = doctest.DocTestParser().get_doctest(examples, module.__dict__, "question", None, 0)
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    runner = doctest.DebugRunner(checker=_Output(), verbose=False, optionflags=flags)
    try:
        runner.run(parsed, clear_globs=False)
    except doctest.DocTestFailure as failure:
        source, want = failure.example.source.strip(), failure.example.want.strip()
        return f"{source:.200} gives {failure.got.strip()[:200]}, expected {want:.200}"
    except doctest.UnexpectedException as failure:
        return f"{failure.example.source.strip():.200} raises {_described(failure.exc_info[1])}"
    return None


class _Output(doctest.OutputChecker):
    """Accepts ``"a"`` for ``'a'``: examples in questions are not always written as Python prints
    them."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        if super().check_output(want, got, optionflags):
            return True
        try:
            return bool(ast.literal_eval(want.strip()) == ast.literal_eval(got.strip()))
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            return False


def _failed_test(tests: str, module: types.ModuleType) -> str | None:
    try:
        exec(compile(tests, "tests.py", "exec"), module.__dict__)
    except AssertionError as error:
        said = f": {error!s:.200}" if str(error) else ""
        return f"{_line(error, 'tests.py', tests)} fails{said}"
    except BaseException as error:  # the tests call the answer, which may exit
        return f"{_line(error, 'tests.py', tests)} raises {_described(error)}"
    return None


def _described(error: BaseException | None, file: str = "") -> str:
    """The class of an exception, its message and, if it was raised there, the line in a file."""
    try:
        message = f"{error!s:.300}"
    except Exception:  # the exception's class comes from the answer
        message = ""
    name = type(error).__name__
    number = _number(error, file)
    place = f" in line {number}" if number else ""
    return f"{name}{place}: {message}" if message else name + place


def _line(error: BaseException, file: str, text: str) -> str:
    number = _number(error, file)
    return f"{text.splitlines()[number - 1].strip():.200}" if number else "a test"


def _number(error: BaseException | None, file: str) -> int:
    """The number of the last line of this file that the exception passed through, or 0."""
    frames = traceback.extract_tb(error.__traceback__) if error else []
    return next((frame.lineno or 0 for frame in reversed(frames) if frame.filename == file), 0)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text("utf-8")))
