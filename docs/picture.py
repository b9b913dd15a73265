"""Draws a run as a terminal that stands still: rounds as plain JSON (``specfuse --json``) in, SVG out. Nothing else.

specfuse --json "Why is the sky blue?" | python docs/picture.py "Why is the sky blue?" > run.svg
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

Round = Mapping[str, Any]
"""What ``Round.as_dict()`` gives."""

COLOURS = ("#56d4dd", "#f2c14e", "#d08cf0", "#7ee081", "#79a8ff", "#ff8f7e")
TEXT, FAINT, PAPER, BAR = "#e6e6e6", "#8b949e", "#16191f", "#262b34"
COLUMNS = 96
CHAR, LINE, SIZE, EDGE, TOP = 8.0, 20, 13, 24, 44
SEGMENT = 50
"""Characters of a segment that its row of the table shows."""


class Sheet:
    """Lines of coloured text on a grid of characters, and the boxes behind them."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.line = 0

    def put(self, column: int, text: str, colour: str, *, bold: bool = False) -> None:
        """The text at this column; its width is fixed, whatever the reader's font is."""
        if not text:
            return
        x, y = EDGE + column * CHAR, TOP + self.line * LINE + 14
        weight = ' font-weight="bold"' if bold else ""
        self.parts.append(
            f'<text x="{x:g}" y="{y}" fill="{colour}" textLength="{len(text) * CHAR:g}"{weight}>{escape(text)}</text>'
        )

    def box(self, column: float, width: float, colour: str, *, opacity: float = 1.0, low: int = 0) -> None:
        """A filled box of so many characters' width in the current line."""
        x, y = EDGE + column * CHAR, TOP + self.line * LINE + low
        size = f'width="{max(width * CHAR - 1, 1):.1f}" height="{LINE - 2 * low - 1}"'
        self.parts.append(f'<rect x="{x:.1f}" y="{y}" {size} rx="2" fill="{colour}" fill-opacity="{opacity:g}"/>')

    def svg(self, title: str) -> str:
        width, height = 2 * EDGE + COLUMNS * CHAR, TOP + self.line * LINE + 16
        font = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"
        dots = "".join(
            f'<circle cx="{EDGE + 18 * n}" cy="18" r="5.5" fill="{c}"/>'
            for n, c in enumerate(("#ff5f57", "#febc2e", "#28c840"))
        )
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height}" width="{width:g}" '
            f'height="{height}" role="img" font-family="{font}" font-size="{SIZE}" xml:space="preserve" '
            'style="white-space:pre">'
        )
        frame = f'<rect width="{width:g}" height="{height}" rx="10" fill="{PAPER}"/>'
        return "\n".join([head, f"<title>{escape(title)}</title>", frame, dots, *self.parts, "</svg>", ""])


def drawn(rounds: Sequence[Round], command: str) -> str:
    """The whole picture: the command, the answer in its authors' colours, a row per round, and the sum."""
    names = list(rounds[0]["weights_before"])
    colours = dict(zip(names, COLOURS * len(names), strict=False))
    sheet = Sheet()
    sheet.put(0, "$" if command.startswith("specfuse") else "#", FAINT)
    sheet.put(2, command, TEXT, bold=True)
    sheet.line += 2
    _legend(sheet, colours)
    _answer(sheet, rounds, colours)
    _table(sheet, rounds, colours)
    wrote = {name: sum(item["winner"] == name for item in rounds) for name in names}
    shares = ", ".join(f"{name} wrote {count}" for name, count in wrote.items())
    sheet.put(0, f"{len(rounds)} rounds: {shares}", FAINT)
    sheet.line += 1
    return sheet.svg(f"{command}: {''.join(item['text'] for item in rounds)}")


def _legend(sheet: Sheet, colours: Mapping[str, str]) -> None:
    column = 0
    for name, colour in colours.items():
        sheet.put(column, f"■ {name}", colour)
        column += len(name) + 4
    sheet.line += 2


def _answer(sheet: Sheet, rounds: Sequence[Round], colours: Mapping[str, str]) -> None:
    column = 0
    for item in rounds:
        colour = colours[item["winner"]]
        for piece in _lines(item["text"], column):
            if piece == "\n":
                sheet.line, column = sheet.line + 1, 0
                continue
            sheet.box(column, len(piece), colour, opacity=0.14)
            sheet.put(column, piece, colour)
            column += len(piece)
    sheet.line += 2


def _lines(text: str, column: int) -> Iterator[str]:
    """The text in pieces that fit on their lines, with a line break between them."""
    piece = ""
    for word in _words(text):
        if word == "\n":
            yield from (piece, "\n") if piece else ("\n",)
            piece, column = "", 0
            continue
        if column + len(piece) + len(word) > COLUMNS:
            yield from (piece, "\n") if piece else ("\n",)
            piece, column, word = "", 0, word.lstrip()
        piece += word
    if piece:
        yield piece


def _words(text: str) -> Iterator[str]:
    word = ""
    for char in text:
        if char == "\n" or (char == " " and word.strip()):
            yield word
            word = ""
        if char == "\n":
            yield "\n"
        else:
            word += char
    yield word


def _table(sheet: Sheet, rounds: Sequence[Round], colours: Mapping[str, str]) -> None:
    author = max(len("author"), *(len(name) for name in colours))
    at = {"#": 0, "author": 4, "segment": 6 + author, "won by": 8 + author + SEGMENT, "weights": 17 + author + SEGMENT}
    for head, column in at.items():
        sheet.put(column, head, FAINT)
    sheet.line += 1
    for item in rounds:
        colour = colours[item["winner"]]
        sheet.put(0, f"{item['round']:2}", FAINT)
        sheet.put(at["author"], item["winner"], colour)
        shown = repr(item["segment"]) + (" ■" if item["ended"] else "")
        sheet.put(at["segment"], shown if len(shown) <= SEGMENT else shown[: SEGMENT - 1] + "…", colour)
        margin = _margin(item)
        sheet.put(at["won by"], "-" if margin is None else f"{margin:+.3f}", FAINT)
        _weights(sheet, at["weights"], item["weights"], colours)
        sheet.line += 1
        for gone in item["left"]:
            sheet.put(4, f"{gone['member']} left: {gone['reason']}"[: COLUMNS - 4], "#ff8f7e")
            sheet.line += 1
    sheet.line += 1


def _weights(sheet: Sheet, column: int, weights: Mapping[str, float], colours: Mapping[str, str]) -> None:
    """A bar, shared by the members as the voting power is."""
    room = COLUMNS - column
    sheet.box(column, room, BAR, low=4)
    start = float(column)
    for name, weight in weights.items():
        sheet.box(start, weight * room, colours[name], low=4)
        start += weight * room


def _margin(item: Round) -> float | None:
    """How far the winner lay above the best other draft; None if nobody disagreed."""
    won = item["drafts"][item["winner"]]
    others = [item["totals"][name] for name, draft in item["drafts"].items() if _said(draft) != _said(won)]
    return item["totals"][item["winner"]] - max(others) if others and item["scores"] else None


def _said(draft: Mapping[str, Any]) -> tuple[str, bool]:
    return draft["text"], draft["ended"]


if __name__ == "__main__":
    lines = [json.loads(line) for line in sys.stdin]
    print(drawn(lines, f'specfuse "{" ".join(sys.argv[1:])}"'), end="")
