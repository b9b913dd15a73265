"""What the log of a vLLM server says: what it does while it starts, and why it has ended."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ...core.call import SHOWN


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a server ends, by a line of its log."""

    pattern: re.Pattern[str]
    kind: str
    """That of the :class:`.MemberError`; ``usage``: a :class:`.UsageError`."""
    advice: str


CAUSES = (
    Cause(
        re.compile(r"address already in use", re.I),
        "error",
        "another program has taken the server's port meanwhile: try again",
    ),
    Cause(
        re.compile(r"gated repo|GatedRepo|403 Client Error", re.I),
        "not_found",
        "accept the model's conditions on its page at the hub, and put a token into HF_TOKEN",
    ),
    Cause(
        re.compile(
            r"not a valid model identifier|Repository ?Not ?Found|404 Client Error|HFValidation"
            r"|does not appear to have a file named config.json|Invalid repository ID",
            re.I,
        ),
        "not_found",
        "check the model's name: a hub id such as 'Qwen/Qwen3-8B', or a folder; a private model "
        "needs a token in HF_TOKEN",
    ),
    Cause(
        re.compile(r"couldn't connect to|LocalEntryNotFound|offline mode|cached snapshot", re.I),
        "not_found",
        "the hub cannot be reached, or HF_HUB_OFFLINE is set: name a folder, or download it first",
    ),
    Cause(
        re.compile(
            r"out of memory|memory on (device|node)|No available memory|KV cache.*(is needed|less)"
            r"|MemoryError|exceeds.*memory|ended with SIGKILL",
            re.I,
        ),
        "error",
        "use fewer or smaller members, a quantised model, a smaller context "
        "(engine_args={'max_model_len': 4096}), other memory= or gpu=, or tensor_parallel=2",
    ),
    Cause(
        re.compile(r"unrecognized arguments|error: argument|invalid choice", re.I),
        "usage",
        "engine_args= takes the flags of `vllm serve`, such as {'max_model_len': 8192}",
    ),
    Cause(
        re.compile(r"Failed to infer device type", re.I),
        "error",
        "this vLLM finds no GPU; without one, install vLLM's build for CPUs",
    ),
)
"""The first one that matches is taken."""

_ERROR = re.compile(
    r"\b((?:\w+\.)*\w*(?:Error|Exception)\b.*?: .+|error: .+|the server ended with SIG\w+)"
)
_FOLLOWS = re.compile(
    r"Engine core initialization failed|WorkerProc initialization failed|See root cause above"
)
"""Errors that only say that there was another one."""


_BEGINNING = re.compile(
    r"(\(\w+ pid=\d+\) )*"
    r"(?P<level>(DEBUG|INFO|WARNING|ERROR) [\d-]+ [\d:.,]+ \[[^]]*\] )?"
)
"""What vLLM writes before a line: the process, the level, the time, the place in its code."""


def last_step(lines: Sequence[str]) -> str:
    """What a server that starts did last, by the lines of its log: vLLM's own messages and progress
    bars, without what stands before them.

    >>> last_step(["(EngineCore pid=7) INFO 11-26 18:56:28 [a.py:2] Loading weights", "  x = f()"])
    'Loading weights'
    """
    for line in reversed(lines):
        begins = _BEGINNING.match(line)
        if begins and (begins["level"] or "%|" in line):
            return line[begins.end() :].strip()[:120]
    return lines[-1].strip()[:120] if lines else "no output yet"


def _errors(lines: Sequence[str]) -> list[str]:
    """The errors in a log, without what stands before them in their lines."""
    found = []
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        match = _ERROR.search(line)
        if match is None or _FOLLOWS.search(line):
            continue
        is_continued = "validation error" in line  # pydantic's
        found.append(f"{match[1]} {following.strip()}" if is_continued else match[1])
    return found


def cause_of(lines: Sequence[str]) -> tuple[Cause | None, str]:
    """Why a server has ended, as far as its log says it, and the error that says it."""
    errors = _errors(lines)
    for cause in CAUSES:
        for error in reversed(errors):  # the last one is the most readable
            if cause.pattern.search(error):
                return cause, error[:SHOWN]
    last = (errors or list(lines) or ["it wrote nothing"])[-1]
    return None, last[-SHOWN:]
