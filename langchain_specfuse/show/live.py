"""A run on a terminal while it grows: under the answer, who is in and with what weight. Needs rich; knows rounds.

Finished lines are written once, exactly as they would be without a live view; only the line that is still growing and
the bars under it are drawn anew, and at the end they give way to the rest of the answer. So what stays on the terminal
is the plain output, whatever its width, and also after Ctrl-C.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from ..core.values import Round
from .terminal import Paint, pieces, visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

NARROWEST, LOWEST = 40, 8
"""Columns and lines under which there is no room for a view that is drawn anew."""
BAR, NAME = 24, 28
_STYLES = {36: "cyan", 33: "yellow", 35: "magenta", 32: "green", 34: "blue", 31: "red"}


def fits(out: TextIO) -> bool:
    """Whether rich is there, and this is a terminal that can be drawn on, with room to draw."""
    if importlib.util.find_spec("rich") is None:
        return False
    try:
        size = os.get_terminal_size(out.fileno())
    except (OSError, ValueError):  # no terminal, or nothing that has a number
        return False
    roomy = size.columns >= NARROWEST and size.lines >= LOWEST
    knows_bars = (out.encoding or "").lower().startswith("utf")
    return out.isatty() and os.environ.get("TERM", "dumb") != "dumb" and roomy and knows_bars


class LiveView:
    """Shows rounds as they come: ``with LiveView(paint, out) as view: view.show(round)``."""

    def __init__(self, paint: Paint, out: TextIO) -> None:
        from rich.console import Console

        self._paint = paint
        self._out = out
        self._console: Console = Console(file=out, no_color=not paint.on, highlight=False, emoji=False, markup=False)
        self._line: list[tuple[str, str]] = []
        """What has been agreed and not been written yet, by author: a line that is still growing."""
        self._live: Live = self._fresh()

    def __enter__(self) -> LiveView:
        return self

    def show(self, round: Round) -> None:
        """The answer has grown."""
        from rich.console import ConsoleDimensions

        self._line += pieces(round)
        self._live.stop()  # it takes its lines back: what follows stands where they stood
        self._write_whole_lines()
        self._live = self._fresh()
        self._console.size = ConsoleDimensions(*os.get_terminal_size(self._out.fileno()))  # rich would ask stdin first
        self._live.start()
        self._live.update(self._picture(round), refresh=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()
        self._put(self._line)
        self._line = []

    def _fresh(self) -> Live:
        from rich.live import Live

        return Live(
            console=self._console,
            transient=True,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
            vertical_overflow="crop",
        )

    def _write_whole_lines(self) -> None:
        """Whatever stands before the last line break; the rest goes on growing."""
        breaks = [at for at, (_, text) in enumerate(self._line) if "\n" in text]
        if not breaks:
            return
        name, text = self._line[breaks[-1]]
        head, newline, tail = text.rpartition("\n")
        self._put([*self._line[: breaks[-1]], (name, head + newline)])
        self._line = [(name, tail), *self._line[breaks[-1] + 1 :]]

    def _put(self, parts: Sequence[tuple[str, str]]) -> None:
        self._out.write("".join(self._paint.by(name, visible(text)) for name, text in parts))
        self._out.flush()

    def _picture(self, round: Round) -> Text:
        """The growing line, as much of its end as there is room for, and a bar per member."""
        from rich.text import Text

        size = self._console.size
        most = max(1, min(len(self._paint.names), size.height // 2 - 1))
        shown = sorted(self._paint.names, key=lambda name: -round.weights.get(name, -1.0))[:most]
        names = [name for name in self._paint.names if name in shown]
        line = Text(no_wrap=False, overflow="fold")
        for name, text in self._last(size.height * size.width):
            line.append(visible(text), style=self._style(name))
        room = max(1, size.height - len(names) - 3)
        lines = list(line.wrap(self._console, size.width, overflow="fold", no_wrap=False))[-room:]
        bars = [self._bar(name, round, size.width) for name in names]
        return Text("\n").join([*lines, Text(""), *bars])

    def _last(self, characters: int) -> list[tuple[str, str]]:
        """The end of the growing line: more than this has no room, and wrapping it would cost time in every round."""
        at, seen = len(self._line), 0
        while at and seen < characters:
            at -= 1
            seen += len(self._line[at][1])
        return self._line[at:]

    def _bar(self, name: str, round: Round, width: int) -> Text:
        from rich.text import Text

        label = Text(visible(name).replace("\n", " "), style=self._style(name))
        label.truncate(min(NAME, width // 3), overflow="ellipsis", pad=True)
        weight = round.weights.get(name)
        full = min(BAR, width // 3)
        bar = "█" * max(1, int((weight or 0.0) * full + 0.5))
        won = "  ✓" if name == round.winner else "  late" if name in round.stragglers else ""
        told = "  left" if weight is None else f"  {bar:<{full}} {weight:.2f}{won}"
        line = label + Text(told, style=self._style(name) if weight is not None else "dim")
        line.truncate(width - 1)
        return line

    def _style(self, name: str) -> str:
        return _STYLES.get(self._paint.code(name), "dim") if self._paint.on else ""
