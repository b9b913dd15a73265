"""Results on disk: one line of JSON per finished question, written at once, so that a run can be
killed and continued.

A result's ``key`` identifies system, settings, members, question, checker and seed. A half-written
last line, which a killed process leaves, is cut off when the file is opened.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, BinaryIO

from pydantic import Field, TypeAdapter, ValidationError

from ..errors import UsageError, advised


@dataclass(frozen=True, slots=True)
class Result:
    """One system's answer to one question, its grade, and what it took."""

    key: str
    system: str
    question: str
    seed: int
    answer: str
    score: Annotated[float, Field(ge=0, le=1)]
    note: str = ""
    error: str = ""
    """Why there is no answer: it counts as wrong."""
    finish: str = ""
    tokens: int = 0
    rounds: int = 0
    began: float = 0.0
    """In seconds of ``time.time()``: a system's speed is measured over all its answers together."""
    seconds: float = 0.0
    first_s: float | None = None
    """Seconds from asking to the first text, with other questions under way."""
    open: int = 0
    """Rounds of two and more members."""
    replaced: int = 0
    """Rounds in which another draft than the lead's won."""
    passes: int = 0
    """Forward passes of all members: one per drafted token, one per scoring."""
    work_s: float = 0.0
    """Seconds that the members computed; replies from a bank count with the seconds that they once
    took."""


_RESULT = TypeAdapter(Result)


class Results:
    """The results of one folder. Only one process can write at a time.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> with Results(folder) as results:
    ...     results.add(Result("k", "ensemble", "1", 0, "42", 1.0))
    >>> [result.answer for result in Results(folder).found()]
    ['42']
    """

    def __init__(self, folder: str | Path) -> None:
        self.path = Path(folder) / "results.jsonl"
        self._file: BinaryIO | None = None
        found = read_results(self.path.read_bytes(), self.path)[0] if self.path.exists() else []
        self._by_key = {result.key: result for result in found}

    def __enter__(self) -> Results:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("a+b")
        except OSError as error:
            wrong = UsageError(f"results cannot be written: {error}")
            raise advised(wrong, "name another folder with --out") from error
        self._lock(self._file)
        self._file.seek(0)
        found, end = read_results(self._file.read(), self.path)
        self._file.truncate(end)
        self._by_key = {result.key: result for result in found}
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

    def add(self, result: Result) -> None:
        """Append a result and write it through to the disk. The last result of a key counts."""
        assert self._file is not None, "results are added inside `with`"
        line = json.dumps(asdict(result), ensure_ascii=False).encode(errors="replace")
        self._file.write(line + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self._by_key[result.key] = result

    def found(self, keys: Iterable[str] | None = None) -> list[Result]:
        """The results of these keys that exist, in that order; without keys, all as they came."""
        return [
            self._by_key[key]
            for key in (self._by_key if keys is None else keys)
            if key in self._by_key
        ]


def read_results(data: bytes, path: Path) -> tuple[list[Result], int]:
    """The results in a file's content, and where the last whole line ends. Only the last line may
    be broken."""
    *lines, rest = data.split(b"\n")
    results: list[Result] = []
    for at, line in enumerate(lines):
        try:
            results.append(_RESULT.validate_json(line, strict=True))
        except ValidationError as error:
            if at == len(lines) - 1:
                return results, len(data) - len(rest) - len(line) - 1
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the line"
            wrong = UsageError(f"{path}:{at + 1} is not a result: {where}: {first['msg']}")
            raise advised(wrong, "delete that line, or name another folder with --out") from error
    return results, len(data) - len(rest)
