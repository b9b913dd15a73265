"""Graded answers on disk, so that an interrupted evaluation continues.

Each graded answer is a line of JSON that is written as soon as the answer is graded. Its ``key``
identifies the system, its settings and members, the question, the grader and the seed. If the
process is killed in the middle of a line, the next run removes that line.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, BinaryIO

from pydantic import Field, TypeAdapter, ValidationError

from ..errors import UsageError, advised


@dataclass(frozen=True, slots=True)
class Graded:
    """A system's answer to one question, its grade, and what it cost."""

    key: str
    system: str
    question: str
    """The question's id."""
    seed: int
    answer: str
    score: Annotated[float, Field(ge=0, le=1)]
    note: str = ""
    """Why the grader did not accept the answer."""
    error: str = ""
    """Why there is no answer. A missing answer counts as wrong."""
    finish: str = ""
    """``stop``, ``length`` or another finish reason of the answer."""
    tokens: int = 0
    rounds: int = 0
    drafts: int = 0
    """Drafts of all members. ``drafts / rounds`` members took part in a round."""
    passes: int = 0
    """Forward passes of all members: one per drafted token, one per scoring."""
    seconds: float = 0.0
    """Computing time of all members. The time of a batch is divided among its answers."""
    checks: dict[str, dict[str, int]] = field(default_factory=dict)
    """check -> how many drafts it ``passed`` and ``rejected``, and how many answers it ``ended``,
    because no draft passed it or it failed itself."""


_GRADED = TypeAdapter(Graded)


class Results:
    """The graded answers of one folder. Only one process can write to it at a time.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> with Results(folder) as results:
    ...     results.add(Graded("k", "ensemble", "1", 0, "42", 1.0))
    >>> [graded.answer for graded in Results(folder).answers()]
    ['42']
    """

    def __init__(self, folder: str | Path) -> None:
        self.path = Path(folder) / "results.jsonl"
        self._file: BinaryIO | None = None
        self._by_key: dict[str, Graded] = {}
        if self.path.exists():
            answers, _ = read_answers(self.path.read_bytes(), self.path)
            self._by_key = {graded.key: graded for graded in answers}

    def __enter__(self) -> Results:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("a+b")
        except OSError as error:
            unwritable = UsageError(f"results cannot be written: {error}")
            raise advised(unwritable, "name another folder with --out") from error
        self._lock(self._file)
        self._file.seek(0)
        answers, end = read_answers(self._file.read(), self.path)
        self._file.truncate(end)
        self._by_key = {graded.key: graded for graded in answers}
        return self

    def __exit__(self, *_: object) -> None:
        if self._file:
            self._file.close()
            self._file = None

    def _lock(self, file: BinaryIO) -> None:
        with suppress(ModuleNotFoundError):  # not a POSIX system
            import fcntl

            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                file.close()
                self._file = None
                busy = UsageError(f"another process is writing {self.path}")
                raise advised(busy, "wait for it, or name another folder with --out") from error

    def __contains__(self, key: str) -> bool:
        return key in self._by_key

    def add(self, graded: Graded) -> None:
        """Append a graded answer and sync it to the disk. It replaces an earlier one with its
        key."""
        assert self._file is not None, "answers are added inside `with`"
        line = json.dumps(asdict(graded), ensure_ascii=False).encode(errors="replace")
        self._file.write(line + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self._by_key[graded.key] = graded

    def answers(self, keys: Iterable[str] | None = None) -> list[Graded]:
        """The stored answers with these keys, in this order. Without keys: all, in the order in
        which they were added."""
        if keys is None:
            return list(self._by_key.values())
        return [self._by_key[key] for key in keys if key in self._by_key]


def read_answers(data: bytes, path: Path) -> tuple[list[Graded], int]:
    """The graded answers in a file's content, and the offset at which the last complete line ends.
    Only the last line may be broken."""
    *lines, rest = data.split(b"\n")
    end = len(data) - len(rest)
    answers: list[Graded] = []
    for number, line in enumerate(lines, 1):
        try:
            answers.append(_GRADED.validate_json(line, strict=True))
        except ValidationError as error:
            if number == len(lines):
                return answers, end - len(line) - 1
            problem = error.errors()[0]
            field = ".".join(map(str, problem["loc"])) or "the line"
            broken = UsageError(f"{path}:{number} is not a result: {field}: {problem['msg']}")
            raise advised(broken, "delete that line, or name another folder with --out") from error
    return answers, end
