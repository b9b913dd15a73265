"""Results on disk: one line of JSON per finished question, appended at once, so that a run can be killed and go on.

A line's ``key`` tells system, settings, members, question, checker and seed apart. What a process that died has left
half-written is cut off when the file is opened. Knows files and lines; nothing of what they mean.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import UsageError, advised


@dataclass(frozen=True, slots=True)
class Result:
    """One system's answer to one question, its grade, and what it took."""

    key: str
    system: str
    question: str
    seed: int
    answer: str
    score: float
    parts: Mapping[str, bool] = field(default_factory=dict)
    numbers: Mapping[str, float] = field(default_factory=dict)
    note: str = ""
    error: str = ""
    """What went wrong, if there was no answer: it counts as wrong."""
    unchecked: str = ""
    """What the checker raised: nobody knows whether the answer is right. The next run has it graded anew."""
    finish: str = ""
    tokens: int = 0
    rounds: int = 0
    began: float = 0.0
    """In seconds of ``time.time()``: how fast a system is, is told from all its answers together."""
    seconds: float = 0.0
    first_s: float | None = None
    """From asking to the first text, with other questions under way."""
    drafting: int = 0
    """Drafts asked for in all rounds: members per round is this by rounds."""
    shared: int = 0
    """Rounds of two and more members in which all drafts were the same."""
    open: int = 0
    """Rounds of two and more members."""
    looped: int = 0
    """Rounds in which a draft had to wait because it only repeated."""
    members: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """member -> ``wins`` (rounds), ``judged`` (rounds with a vote), ``reward`` (summed over those), ``left`` (0, 1)."""


class Results:
    """The results of one folder. One process writes; a second one is refused.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> with Results(folder) as results:
    ...     results.add(Result("k", "ensemble", "1", 0, "42", 1.0))
    >>> [result.answer for result in Results(folder).found()]
    ['42']
    """

    def __init__(self, folder: str | Path) -> None:
        self.path = Path(folder) / "results.jsonl"
        self._by_key: dict[str, Result] = {}
        self._file: BinaryIO | None = None
        if self.path.exists():
            self._by_key = {result.key: result for result in _lines(self.path.read_bytes(), self.path)[0]}

    def __enter__(self) -> Results:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("a+b")
        except OSError as error:
            raise advised(
                UsageError(f"results cannot be written: {error}"), "name another folder with --out"
            ) from error
        self._lock(self._file)
        self._file.seek(0)
        found, whole = _lines(self._file.read(), self.path)
        self._file.truncate(whole)
        self._file.seek(0, os.SEEK_END)
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
        """Append and write through: whatever happens next, this result stays. The last of one key counts."""
        assert self._file is not None, "results are added inside `with`"
        self._file.write(json.dumps(asdict(result), ensure_ascii=True).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self._by_key[result.key] = result

    def found(self, keys: Iterable[str] | None = None) -> list[Result]:
        """The results under these keys that are there, in their order; without keys all, as they came."""
        if keys is None:
            return list(self._by_key.values())
        return [self._by_key[key] for key in keys if key in self._by_key]


def _lines(data: bytes, path: Path) -> tuple[list[Result], int]:
    """The whole lines, and where they end. Only the last line may be broken: that is what a killed process leaves."""
    whole = data.rfind(b"\n") + 1
    results: list[Result] = []
    lines = data[:whole].split(b"\n")[:-1]
    for at, line in enumerate(lines):
        try:
            results.append(_result(json.loads(line)))
        except (ValueError, TypeError, RecursionError) as error:
            if at == len(lines) - 1:
                return results, whole - len(line) - 1
            wrong = UsageError(f"{path}:{at + 1} is no result: {error}")
            raise advised(wrong, "delete that line, or name another folder with --out") from error
    return results, whole


_KINDS: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("key", "system", "question", "answer", "note", "error", "unchecked", "finish"), (str,)),
    **dict.fromkeys(("seed", "tokens", "rounds", "drafting", "shared", "open", "looped"), (int,)),
    **dict.fromkeys(("score", "began", "seconds"), (int, float)),
    **dict.fromkeys(("parts", "numbers", "members"), (dict,)),
    "first_s": (int, float, type(None)),
}
"""field of a result -> what JSON may hold there."""


def _result(told: Any) -> Result:
    if not isinstance(told, dict):
        raise TypeError(f"got {type(told).__name__}")
    result = Result(**told)
    for name, kinds in _KINDS.items():
        value = getattr(result, name)
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise TypeError(f"{name} is {value!r:.60}")
    if not 0 <= result.score <= 1:
        raise TypeError(f"score is {result.score!r}, not from 0 to 1")
    return result
