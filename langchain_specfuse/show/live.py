"""A live view of a run on a terminal: under the growing answer, the members and their weights. Needs rich.

Finished lines are written once, exactly as without a live view. Only the line that is still growing and the bars under
it are redrawn, and at the end they are replaced by the rest of the answer. So what stays on the terminal is the plain
output, whatever its width, also after Ctrl-C.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

from ..core.values import Round
from .terminal import Paint, pieces, visible

if TYPE_CHECKING:
    from rich.live import Live
    from rich.text import Text

MIN_COLUMNS, MIN_LINES = 40, 8
BAR_WIDTH, NAME_WIDTH = 24, 28


def fits(out: TextIO) -> bool:
    """Whether rich is installed, and this is a terminal with room for a live view."""
    if importlib.util.find_spec("rich") is None:
        return False
    try:
        size = os.get_terminal_size(out.fileno())
    except (OSError, ValueError):  # no terminal, or no file
        return False
    roomy = size.columns >= MIN_COLUMNS and size.lines >= MIN_LINES
    utf = (out.encoding or "").lower().startswith("utf")  # for the bars
    return out.isatty() and os.environ.get("TERM", "dumb") != "dumb" and roomy and utf


class LiveView:
    """Shows rounds as they come: ``with LiveView(paint, out) as view: view.show(round)``."""

    def __init__(self, paint: Paint, out: TextIO) -> None:
        from rich.console import Console

        self._paint = paint
        self._out = out
        self._console = Console(file=out, no_color=not paint.on, highlight=False, emoji=False, markup=False)
        self._line: list[tuple[str, str]] = []
        """The line that is still growing, by author: agreed, and not written yet."""
        self._live: Live = self._new_live()

    def __enter__(self) -> LiveView:
        return self

    def __exit__(self, *_: Any) -> None:
        self._live.stop()
        self._write(self._line)
        self._line = []

    def show(self, round: Round) -> None:
        """Show the answer with this round."""
        from rich.console import ConsoleDimensions

        self._line += pieces(round)
        self._live.stop()  # removes its lines, so what is written next takes their place
        self._write_finished_lines()
        self._live = self._new_live()
        self._console.size = ConsoleDimensions(*os.get_terminal_size(self._out.fileno()))  # rich would ask stdin first
        self._live.start()
        self._live.update(self._picture(round), refresh=True)

    def _new_live(self) -> Live:
        from rich.live import Live

        options: Any = {"auto_refresh": False, "redirect_stdout": False, "redirect_stderr": False}
        return Live(console=self._console, transient=True, vertical_overflow="crop", **options)

    def _write_finished_lines(self) -> None:
        """Write everything before the last line break."""
        breaks = [at for at, (_, text) in enumerate(self._line) if "\n" in text]
        if breaks:
            name, text = self._line[breaks[-1]]
            head, newline, tail = text.rpartition("\n")
            self._write([*self._line[: breaks[-1]], (name, head + newline)])
            self._line = [(name, tail), *self._line[breaks[-1] + 1 :]]

    def _write(self, parts: Sequence[tuple[str, str]]) -> None:
        self._out.write("".join(self._paint.by(name, visible(text)) for name, text in parts))
        self._out.flush()

    def _picture(self, round: Round) -> Text:
        """As much of the growing line's end as there is room for, and a bar for each of the heaviest members."""
        from rich.text import Text

        size = self._console.size
        most = max(1, min(len(self._paint.names), size.height // 2 - 1))
        heaviest = sorted(self._paint.names, key=lambda name: -round.weights.get(name, -1.0))[:most]
        names = [name for name in self._paint.names if name in heaviest]
        line = Text(no_wrap=False, overflow="fold")
        for name, text in self._line_end(size.height * size.width):
            line.append(visible(text), style=self._style(name))
        room = max(1, size.height - len(names) - 3)
        lines = list(line.wrap(self._console, size.width, overflow="fold", no_wrap=False))[-room:]
        return Text("\n").join([*lines, Text(""), *(self._bar(name, round, size.width) for name in names)])

    def _line_end(self, characters: int) -> list[tuple[str, str]]:
        """The end of the growing line: wrapping all of it would take time in every round."""
        at, seen = len(self._line), 0
        while at and seen < characters:
            at -= 1
            seen += len(self._line[at][1])
        return self._line[at:]

    def _bar(self, name: str, round: Round, width: int) -> Text:
        from rich.text import Text

        label = Text(visible(name).replace("\n", " "), style=self._style(name))
        label.truncate(min(NAME_WIDTH, width // 3), overflow="ellipsis", pad=True)
        weight = round.weights.get(name)
        full = min(BAR_WIDTH, width // 3)
        bar = "█" * max(1, int((weight or 0.0) * full + 0.5))
        mark = "  ✓" if name == round.winner else "  late" if name in round.late_members else ""
        text = "  left" if weight is None else f"  {bar:<{full}} {weight:.2f}{mark}"
        line = label + Text(text, style=self._style(name) if weight is not None else "dim")
        line.truncate(width - 1)
        return line

    def _style(self, name: str) -> str:
        code = self._paint.code(name)
        return "" if not self._paint.on else f"color({code - 30})" if code >= 30 else "dim"
