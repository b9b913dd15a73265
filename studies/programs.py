"""Programs: the even-numbered problems of MBPP. One test is shown to the model and is the check.
The grade uses all tests, so the others are hidden.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Hashable
from functools import partial
from pathlib import Path

from cases import Case, Grade, part_of

from langchain_specfuse import checks

MAX_TOKENS = 256
TIMEOUT_S = 10
PROMPT = """{text}
Answer with the Python code alone, in one code block. It must pass this test:
{test}"""


def program_in(answer: str) -> str:
    """The code of an answer: its code blocks, or all of it if it has none."""
    blocks = re.findall(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", answer, re.S)
    return "\n".join(blocks) if blocks else answer


def passes(setup: str, tests: list[str], answer: str) -> Grade:
    """Right if the program passes all tests."""
    fault = fault_of("\n".join([setup, program_in(answer), *tests]), TIMEOUT_S)
    return Grade(not fault, fault)


def fault_of(program: str, timeout_s: float) -> str:
    """Run a program in an empty folder, in a process of its own. Return the name of the error that
    ended it, or an empty text if there was none."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-c", program],
                cwd=folder,
                env={},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                timeout=timeout_s,
            )
        except (subprocess.TimeoutExpired, ValueError) as error:
            return type(error).__name__
    if done.returncode == 0:
        return ""
    last = done.stderr.strip().splitlines()[-1:] or [f"exit {done.returncode}"]
    return re.match(r"\w*", last[0])[0] or "error"  # type: ignore[index]


def same_program(answer: str) -> Hashable:
    """A key that is equal for programs that differ in layout and comments only; None for text that
    is not a program.

    >>> same_program("```python\\nx = 1  # one\\n```") == same_program("x=1")
    True
    """
    try:
        return ast.dump(ast.parse(program_in(answer)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def cases(part: str, folder: Path) -> list[Case]:
    """The problems of a part. One in six is a development question."""
    found = []
    for line in (folder / "mbpp-even.jsonl").read_text().splitlines():
        one = json.loads(line)
        if part_of(one["text"], 6) != part:
            continue
        setup, tests = one["setup"] or "", one["tests"]
        visible = f"{setup}\n{tests[0]}".strip()
        check = checks.python(tests=visible, timeout=TIMEOUT_S)
        text = PROMPT.format(text=one["text"], test=tests[0])
        grade = partial(passes, setup, tests)
        found.append(Case(f"code {one['task_id']}", "code", text, (check,), grade))
    return found
