"""Record what a terminal shows of ``langchain-specfuse demo``, and draw the record as a moving SVG.

The record is an asciicast (version 2), which ``asciinema play`` plays, too. The picture plays it in
real time, with a pause after each act and without the tables of rounds. It moves by CSS alone, so
that it plays in an ``<img>``. Readers who want no motion see the last moment.
"""

from __future__ import annotations

import codecs
import json
import os
import pty
import re
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from picture import COLOURS, PROGRAM, TEXT, Canvas

COLUMNS = 92
PAUSE_S, END_S = 2.5, 8.0
"""How long the picture waits after an act, and after the last one."""
CODES = dict(zip(("36", "33", "35", "32", "34", "31"), COLOURS, strict=True))
"""The terminal's colours."""
_PIECE = re.compile(r"\x1b\[([\d;]*)m|(\r?\n)|([^\x1b\r\n]+)")


def record_acts(file: Path) -> None:
    """Run the demo in a terminal, and save what it shows, and when."""
    events: list[tuple[float, str, str]] = []
    began = time.time()
    decoder = codecs.getincrementaldecoder("utf-8")()

    def read(terminal: int) -> bytes:
        shown = os.read(terminal, 1 << 16)
        events.append((round(time.time() - began, 3), "o", decoder.decode(shown)))
        return shown

    os.environ |= {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "DEMO": "default"}
    status = pty.spawn([sys.executable, "-m", "langchain_specfuse", "demo", "--yes"], read)
    if status:
        sys.exit("the demo failed; nothing is saved")
    head = {"version": 2, "width": COLUMNS, "height": 40, "title": f"{PROGRAM} demo"}
    file.write_text("".join(f"{json.dumps(line)}\n" for line in [head, *events]))


# --- what the terminal shows ----------------------------------------------------------------------


class Char(NamedTuple):
    """A character on the screen."""

    text: str
    codes: tuple[str, ...]
    """Its colour and so on, as the terminal's codes."""
    at: float
    """When it appears, in seconds."""

    def later(self, seconds: float) -> Char:
        return self._replace(at=self.at + seconds)


Line = Sequence[Char]


def shown(cast: str) -> list[Line]:
    """What the picture shows of this record: for each act its title, its command, the answer and
    the result."""
    lines = list(_lines(json.loads(line) for line in cast.splitlines()[1:]))
    starts = [at for at, line in enumerate(lines) if re.match(r"\d\. ", _text(line))]
    kept: list[Line] = []
    for number, (start, end) in enumerate(zip(starts, [*starts[1:], None], strict=True)):
        parts = [list(part) for is_text, part in groupby(lines[start:end], key=bool) if is_text]
        result = [line for part in parts for line in part if _text(line).startswith("->")]
        while result[0] not in parts[-1]:
            parts.pop()  # what comes after the last act
        title, legend, *answer, _table, _summary = parts
        first = legend if number == 0 else []
        act = [*title, *first, *(line for part in answer for line in part), *result]
        kept += [[], *([char.later(number * PAUSE_S) for char in line] for line in act)]
    begin = kept[1][0].at
    moved = [[char.later(-begin) for char in line] for line in kept[1:]]
    return [part for line in moved for part in _wrapped(line)]


def _lines(events: Iterator[Sequence[object]]) -> Iterator[Line]:
    line: list[Char] = []
    codes: tuple[str, ...] = ()
    for at, _, text in events:
        for code, end, words in _PIECE.findall(str(text)):
            if end:
                yield line
                line = []
            elif words:
                line += [Char(char, codes, float(str(at))) for char in words]
            else:
                codes = tuple(code.split(";")) if code not in ("", "0") else ()
    yield line


def _text(line: Line) -> str:
    return "".join(char.text for char in line)


def _wrapped(line: Line) -> Iterator[Line]:
    """The line in parts that fit on the screen. A terminal would break words."""
    indent = len(_text(line)) - len(_text(line).lstrip())
    while len(line) > COLUMNS:
        cut = _text(line).rfind(" ", indent + 1, COLUMNS + 1)
        cut = cut if cut > 0 else COLUMNS
        yield line[:cut]
        rest = line[cut:]
        while rest[0].text == " ":
            rest = rest[1:]
        line = [Char(" ", (), rest[0].at)] * indent + list(rest)
    yield line


# --- the picture ----------------------------------------------------------------------------------


def filmed(cast: str) -> str:
    """The picture of this record."""
    lines = shown(cast)
    placed = [
        (row, column, char) for row, line in enumerate(lines) for column, char in enumerate(line)
    ]
    placed.sort(key=lambda item: item[2].at)
    total = placed[-1][2].at + END_S
    canvas = Canvas(COLUMNS)
    rules = []
    for number, (at, chars) in enumerate(groupby(placed, key=lambda item: item[2].at)):
        rules.append(_rule(f"m{number}", at / total))
        canvas.parts.append(f'<g class="m{number}">')
        _draw(canvas, chars)
        canvas.parts.append("</g>")
    canvas.parts.insert(0, _style(rules, total))
    canvas.line = len(lines)
    return canvas.svg(f"{PROGRAM} demo: {' '.join(map(_text, lines))}")


def _draw(canvas: Canvas, placed: Iterator[tuple[int, int, Char]]) -> None:
    """Draw characters, those of one line and one colour together."""

    def run(item: tuple[int, tuple[int, int, Char]]) -> tuple[object, ...]:
        at, (row, column, char) = item
        return row, column - at, char.codes

    for (row, _, codes), chars in groupby(enumerate(placed), key=run):
        run_of = [item for _, item in chars]
        canvas.line = row
        text = "".join(char.text for *_, char in run_of)
        colour = next((CODES[code] for code in codes if code in CODES), TEXT)
        # Browsers may merge several spaces.
        for words in re.finditer(r"\S+( \S+)*", text):
            column = run_of[0][1] + words.start()
            canvas.put(column, words[0], colour, bold="1" in codes, struck="9" in codes)


def _rule(name: str, start: float) -> str:
    """The CSS rule for what appears after this share of the time, again and again."""
    stops = f"{100 * start:.3f}%{{opacity:1}}"
    if start:
        stops = "0%{opacity:0}" + stops
    return f"@keyframes {name}{{{stops}}}.{name}{{animation-name:{name}}}"


def _style(rules: Sequence[str], total: float) -> str:
    return (
        "<style>@media (prefers-reduced-motion:no-preference){g{opacity:0;"
        "animation-timing-function:step-end;animation-iteration-count:infinite;"
        f"animation-duration:{total:.2f}s}}{''.join(rules)}}}</style>"
    )
