"""Keeps the answers of a study in a file, so that a stopped run can continue, and so that a run can
say how much longer it takes.

Each answer is a line of JSON, which is written as soon as the answer is complete. The pace of the
run is kept in a second file beside it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Generic, TypeVar

from command import stoppable
from forecast import Pace, forecast, shown
from pydantic import TypeAdapter, ValidationError

from langchain_specfuse.errors import UsageError, advised

Answer = TypeVar("Answer")
"""A dataclass."""
Item = TypeVar("Item")


class Answers(Generic[Answer]):
    """The answers in a file. ``key`` identifies an answer. ``expected`` has the seconds that each
    part of the run is assumed to take for a question until they are measured.

    >>> import tempfile
    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Sum:
    ...     question: str
    ...     total: int
    >>> path = Path(tempfile.mkdtemp()) / "sums.jsonl"
    >>> answers = Answers(path, Sum, key=lambda answer: answer.question)
    >>> answers.store("sums", 2, [Sum("1+1", 2)])
    >>> Answers(path, Sum, key=lambda answer: answer.question).all
    [Sum(question='1+1', total=2)]
    >>> answers.left(["1+1", "1+2"], key=str)
    ['1+2']
    """

    def __init__(
        self,
        path: Path,
        kind: type[Answer],
        key: Callable[[Answer], Hashable],
        expected: Mapping[str, float] | None = None,
    ) -> None:
        self.path = path
        self.pace = Pace(path.with_suffix(".pace.json"), expected)
        self._kind: TypeAdapter[Any] = TypeAdapter(kind)
        self._key = key
        self.all: list[Answer] = []
        """All answers, in the order in which they were stored."""
        if path.exists():
            self.all = [self._read(*line) for line in enumerate(_lines(path.read_bytes()), 1)]
        self._keys = set(map(key, self.all))

    def _read(self, number: int, line: bytes) -> Answer:
        try:
            answer: Answer = self._kind.validate_json(line)
        except ValidationError as error:
            problem = error.errors()[0]
            field = ".".join(map(str, problem["loc"])) or "the line"
            broken = UsageError(
                f"{self.path}:{number} is not an answer of this study: {field}: {problem['msg']}"
            )
            raise advised(broken, "delete that line, or name another --folder") from error
        return answer

    def left(self, items: Iterable[Item], key: Callable[[Item], Hashable]) -> list[Item]:
        """The items that have no answer yet. ``key`` returns the key of the answer to an item."""
        return [item for item in items if key(item) not in self._keys]

    def plan(self, left: Mapping[str, int]) -> str:
        """How many questions are left in each part of the run, and how long they take."""
        return "\n".join(forecast(left, self.pace.seconds_each))

    def store(self, what: str, count: int, new: Iterable[Answer]) -> None:
        """Store the ``count`` answers of a part of the run as they come, and print its progress."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._cut()
        since = last = time.monotonic()
        with stoppable(what):
            for done, answer in enumerate(new, 1):
                self._add(answer)
                now = time.monotonic()
                self.pace.add(what, 1, now - last)
                last = now
                hours = (now - since) / done * (count - done) / 3600
                line = f"{what}: {done} of {count}, {shown(hours)} left"
                print(line, file=sys.stderr, flush=True)

    def _add(self, answer: Answer) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(answer)) + "\n")
        self.all.append(answer)
        self._keys.add(self._key(answer))

    def _cut(self) -> None:
        """Remove a line that was cut off when a run was killed."""
        if self.path.exists():
            content = self.path.read_bytes()
            end = content.rfind(b"\n") + 1
            if end < len(content):
                with self.path.open("r+b") as file:
                    file.truncate(end)


def _lines(content: bytes) -> list[bytes]:
    """The complete lines."""
    return content.split(b"\n")[:-1]
