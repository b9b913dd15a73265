"""How long a run still takes, at the pace that was measured on this machine.

A study names what it asks ("gsm8k, SpecEM"), adds the seconds of each part of its run to a
:class:`Pace`, and prints a :func:`forecast` of what is left. The pace is kept in a file beside the
answers, so that a run that continues begins with a forecast.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


class Pace:
    """Seconds per answer by the clock, for each thing that a study asks. ``expected``: the seconds
    that are assumed until they are measured.

    >>> import tempfile
    >>> pace = Pace(Path(tempfile.mkdtemp()) / "pace.json")
    >>> pace.add("gsm8k, alone", answers=4, seconds=2.0)
    >>> Pace(pace.path).seconds_each("gsm8k, alone")
    0.5
    """

    def __init__(self, path: Path, expected: Mapping[str, float] | None = None) -> None:
        self.path = path
        self._expected = expected or {}
        self._measured: dict[str, tuple[int, float]] = {}
        if path.exists():
            stored = json.loads(path.read_text("utf-8"))
            self._measured = {
                what: (answers, seconds) for what, (answers, seconds) in stored.items()
            }

    def add(self, what: str, answers: int, seconds: float) -> None:
        """Add a part of a run to what is known. Replaces the file as a whole, so that a stopped run
        leaves a complete one."""
        before, since = self._measured.get(what, (0, 0.0))
        self._measured[what] = (before + answers, since + seconds)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(self._measured, indent=1) + "\n", "utf-8")
        new.replace(self.path)

    @contextmanager
    def measured(self, what: str, count: Callable[[], int]) -> Iterator[None]:
        """Measure the part of a run inside ``with``, also if it is stopped. ``count``: how many
        answers there are."""
        before, since = count(), time.perf_counter()
        try:
            yield
        finally:
            answers = count() - before
            if answers:
                self.add(what, answers, time.perf_counter() - since)

    def seconds_each(self, what: str) -> float | None:
        """Seconds per answer, measured or expected; None if neither is known."""
        answers, seconds = self._measured.get(what, (0, 0.0))
        return seconds / answers if answers else self._expected.get(what)


def forecast(left: Mapping[str, int], seconds_each: Callable[[str], float | None]) -> list[str]:
    """A line for everything that is left, and the sum. ``left``: how many answers are left, by what
    is asked. ``seconds_each``: the pace of one of these, if it is known."""
    lines, hours, unknown = [], 0.0, 0
    for what, answers in left.items():
        each = seconds_each(what)
        if not answers:
            lines.append(f"{what}: complete")
        elif each is None:
            unknown += 1
            lines.append(f"{what}: {answers} answers, not measured yet")
        else:
            hours += answers * each / 3600
            lines.append(f"{what}: {answers} answers, {shown(answers * each / 3600)}")
    total = f"together {shown(hours)}"
    if unknown:
        total += f", without {unknown} that are not measured yet"
    return [*lines, total]


def shown(hours: float) -> str:
    """A time that a reader can plan with.

    >>> shown(0.002), shown(0.5), shown(31.44)
    ('1 min', '30 min', '31.4 hours')
    """
    return f"{math.ceil(hours * 60)} min" if hours < 1.5 else f"{hours:.1f} hours"
