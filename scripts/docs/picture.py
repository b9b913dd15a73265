"""Draw a run as a terminal window in SVG, and photograph its HTML page in a browser.

Rounds are plain JSON, as ``Round.as_dict()`` gives them. Photographs need playwright and a Chromium
(``scripts/browser`` finds or installs one).
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

Round = Mapping[str, Any]

COLOURS = ("#56d4dd", "#f2c14e", "#d08cf0", "#7ee081", "#79a8ff", "#ff8f7e")
TEXT, FAINT, PAPER, BAR = "#e6e6e6", "#8b949e", "#16191f", "#262b34"
COLUMNS = 102
CHAR, LINE, SIZE, EDGE, TOP = 8.0, 20, 13, 24, 44
SEGMENT = 50
"""The number of characters of a segment that its row of the table shows."""
FONT = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"
BUTTONS = ("#ff5f57", "#febc2e", "#28c840")
PROGRAM = "langchain-specfuse"


class Canvas:
    """Coloured text and boxes on a grid of characters."""

    def __init__(self, columns: int = COLUMNS) -> None:
        self.columns = columns
        self.parts: list[str] = []
        self.line = 0

    def put(
        self, column: int, text: str, colour: str, *, bold: bool = False, struck: bool = False
    ) -> None:
        """Write text at this column of the current line. Its width does not depend on the reader's
        font."""
        column += len(text) - len(text.lstrip())  # browsers drop spaces at the ends
        text = text.strip()
        if not text:
            return
        x, y = EDGE + column * CHAR, TOP + self.line * LINE + 14
        weight = ' font-weight="bold"' if bold else ""
        line = ' text-decoration="line-through"' if struck else ""
        self.parts.append(
            f'<text x="{x:g}" y="{y}" fill="{colour}" '
            f'textLength="{len(text) * CHAR:g}"{weight}{line}>{escape(text)}</text>'
        )

    def box(
        self, column: float, width: float, colour: str, *, opacity: float = 1.0, inset: int = 0
    ) -> None:
        """Fill a box of this many characters' width in the current line."""
        x, y = EDGE + column * CHAR, TOP + self.line * LINE + inset
        size = f'width="{max(width * CHAR - 1, 1):.1f}" height="{LINE - 2 * inset - 1}"'
        self.parts.append(
            f'<rect x="{x:.1f}" y="{y}" {size} rx="2" fill="{colour}" fill-opacity="{opacity:g}"/>'
        )

    def svg(self, title: str) -> str:
        width, height = 2 * EDGE + self.columns * CHAR, TOP + self.line * LINE + 16
        circles = [
            f'<circle cx="{EDGE + 18 * n}" cy="18" r="5.5" fill="{c}"/>'
            for n, c in enumerate(BUTTONS)
        ]
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height}" '
            f'width="{width:g}" '
            f'height="{height}" role="img" font-family="{FONT}" font-size="{SIZE}" '
            'xml:space="preserve" '
            'style="white-space:pre">'
        )
        frame = f'<rect width="{width:g}" height="{height}" rx="10" fill="{PAPER}"/>'
        return "\n".join(
            [
                head,
                f"<title>{escape(title)}</title>",
                frame,
                "".join(circles),
                *self.parts,
                "</svg>",
                "",
            ]
        )


def drawn(rounds: Sequence[Round], command: str) -> str:
    """The picture: the command, the answer in its authors' colours, a row per round, and each
    member's share."""
    names = list(rounds[0]["weights_before"])
    colours = dict(zip(names, COLOURS * len(names), strict=False))
    canvas = Canvas()
    canvas.put(0, "$" if command.startswith(PROGRAM) else "#", FAINT)
    canvas.put(2, command, TEXT, bold=True)
    canvas.line += 2
    _draw_legend(canvas, colours)
    _draw_answer(canvas, rounds, colours)
    _draw_table(canvas, rounds, colours)
    won = {name: sum(item["winner"] == name for item in rounds) for name in names}
    shares = ", ".join(f"{name} wrote {count}" for name, count in won.items())
    canvas.put(0, f"{len(rounds)} rounds: {shares}", FAINT)
    canvas.line += 1
    return canvas.svg(f"{command}: {''.join(item['text'] for item in rounds)}")


def _draw_legend(canvas: Canvas, colours: Mapping[str, str]) -> None:
    column = 0
    for name, colour in colours.items():
        canvas.put(column, f"■ {name}", colour)
        column += len(name) + 4
    canvas.line += 2


def _draw_answer(canvas: Canvas, rounds: Sequence[Round], colours: Mapping[str, str]) -> None:
    column = 0
    for item in rounds:
        colour = colours[item["winner"]]
        for part in _wrapped(item["text"], column):
            if part == "\n":
                canvas.line, column = canvas.line + 1, 0
                continue
            canvas.box(column, len(part), colour, opacity=0.14)
            canvas.put(column, part, colour)
            column += len(part)
    canvas.line += 2


def _wrapped(text: str, column: int) -> Iterator[str]:
    """The text in parts that fit on their lines, with line breaks between them."""
    part = ""
    for word in re.findall(r"\n| *[^ \n]+| +", text):
        too_long = column + len(part) + len(word) > COLUMNS
        if word == "\n" or too_long:
            yield from (part, "\n") if part else ("\n",)
            part, column = "" if word == "\n" else word.lstrip(), 0
        else:
            part += word
    if part:
        yield part


def _draw_table(canvas: Canvas, rounds: Sequence[Round], colours: Mapping[str, str]) -> None:
    author = max(len("author"), *(len(name) for name in colours))
    at = {
        "#": 0,
        "author": 4,
        "segment": 6 + author,
        "won by": 8 + author + SEGMENT,
        "weights": 17 + author + SEGMENT,
    }
    for head, column in at.items():
        canvas.put(column, head, FAINT)
    canvas.line += 1
    for item in rounds:
        colour = colours[item["winner"]]
        canvas.put(0, f"{item['round']:2}", FAINT)
        canvas.put(at["author"], item["winner"], colour)
        segment = repr(item["segment"])
        if item["ended"]:
            segment += " ■"
        if len(segment) > SEGMENT:
            segment = segment[: SEGMENT - 1] + "…"
        canvas.put(at["segment"], segment, colour)
        voted = item["scores"] and item.get("runner_up") is not None
        margin = f"{item['margin']:+.3f}" if voted else "-"
        canvas.put(at["won by"], margin, FAINT)
        _draw_weights(canvas, at["weights"], item["weights"], colours)
        canvas.line += 1
        for gone in item["left"]:
            canvas.put(4, f"{gone['member']} left: {gone['reason']}"[: COLUMNS - 4], "#ff8f7e")
            canvas.line += 1
    canvas.line += 1


def _draw_weights(
    canvas: Canvas, column: int, weights: Mapping[str, float], colours: Mapping[str, str]
) -> None:
    """A bar that the members share as they share the voting weight."""
    room = COLUMNS - column
    canvas.box(column, room, BAR, inset=4)
    start = float(column)
    for name, weight in weights.items():
        canvas.box(start, weight * room, colours[name], inset=4)
        start += weight * room


# --- photographs ----------------------------------------------------------------------------------

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
VIEWPORT = {"width": 1200, "height": 1040}


def photograph(trace: Any, server: str, questions: Sequence[str], folder: Path) -> None:
    """Save three photographs: the trace's page with its most divided round chosen, light and dark,
    and the page of a server when a check has just refused a draft of its last answer."""
    from playwright.sync_api import sync_playwright

    path = os.environ.get("SPECFUSE_CHROMIUM") or next(
        filter(None, map(shutil.which, BROWSERS)), None
    )
    if path is None:
        sys.exit("no Chromium was found: run scripts/browser")
    divided = max(range(len(trace.rounds)), key=lambda at: trace.rounds[at].get("dissent") or 0.0)
    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as playwright:
        file = Path(temporary) / "run.html"
        trace.save(file)
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        for scheme in ("light", "dark"):
            page = browser.new_page(viewport=VIEWPORT, color_scheme=scheme)  # type: ignore[arg-type]
            page.goto(file.as_uri())
            page.click(f".segment >> nth={divided}")
            page.evaluate("document.activeElement.blur()")
            page.screenshot(path=folder / f"page-{scheme}.png")
        page = browser.new_page(viewport=VIEWPORT, color_scheme="light")
        page.goto(server)
        for question in questions:
            page.wait_for_selector("#go", timeout=300_000)
            page.fill("#words", question)
            page.keyboard.press("Enter")
        page.wait_for_selector(".struck", timeout=300_000)
        page.wait_for_timeout(1000)  # it has appeared completely
        page.screenshot(path=folder / "live.png")
        browser.close()
