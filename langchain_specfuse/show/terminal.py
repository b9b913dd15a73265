"""A run on a terminal: who wrote what, in colour, and a table of the rounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..core.round import Departure, Round
from ..errors import amount

COLOURS = (36, 33, 35, 32, 34, 31)
BOLD, DIM = 1, 2
FINISHED = {
    "stop": "its author ended it",
    "stop_string": "a stop string appeared",
    "length": "the budget was used up",
    "refusal": "the members refused",
}
STALLED = "no member could continue it"
MAX_WEIGHTS = 5
"""With more members than this a row shows only its author's weight."""
_CONTROLS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"}
_CONTROLS |= dict.fromkeys(range(127, 160), 0xFFFD)
# Embeddings, overrides and isolates reorder what follows them on the line.
_CONTROLS |= dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A)), 0xFFFD)


class Paint:
    """A colour per member. Every piece resets its colour, so the terminal stays clean whenever the
    program ends.

    >>> Paint(["a", "b"], on=True).by("b", "text")
    '\\x1b[33mtext\\x1b[0m'
    >>> Paint(["a", "b"], on=False).by("b", "text")
    'text'
    """

    def __init__(self, names: Sequence[str], *, on: bool) -> None:
        self.names = tuple(names)
        self.on = on
        self._codes = {name: COLOURS[at % len(COLOURS)] for at, name in enumerate(self.names)}

    def by(self, name: str, text: str) -> str:
        """The text in the member's colour; dim for forced text, which has no author."""
        return self.coded(self._codes.get(name, BOLD) if name else DIM, text)

    def coded(self, code: int, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.on and text else text


def visible(text: str, margin: str = "") -> str:
    """The text with symbols for control characters, so that it cannot control the terminal.

    All text from models, servers and libraries passes through here before it is shown. Lines after
    the first begin with ``margin``, so that they do not look like the program's own lines.

    >>> visible("a\\x1b[2Jb\\nerror: c", margin="  ")
    'a␛[2Jb\\n  error: c'
    """
    return text.translate(_CONTROLS).replace("\n", "\n" + margin)


def one_line(text: str) -> str:
    """:func:`visible` text without line breaks, for names and table cells."""
    return visible(text).replace("\n", "␊")


def pieces(item: Round) -> list[tuple[str, str]]:
    """The text of a round in pieces with their authors: forced text around the segment has the
    author ""."""
    text, segment, forced = item.text, item.segment.text, item.forced
    for at in range(len(forced) + 1) if forced else ():
        end = at + len(segment)
        if text[at:end] == segment and text[:at] + text[end:] == forced:
            parts = [("", text[:at]), (item.member, segment), ("", text[end:])]
            return [(name, part) for name, part in parts if part]
    return [(item.member, text)]


def legend(paint: Paint) -> str:
    """The members in their colours; without colours, their names only."""
    mark = "■ " if paint.on else ""
    return "  ".join(paint.by(name, f"{mark}{one_line(name)}") for name in paint.names)


def table(rounds: Sequence[Round], paint: Paint, width: int = 100) -> str:
    """One line per round with its events, then a summary."""
    weights = "weights" if len(paint.names) <= MAX_WEIGHTS else "weight"
    head = ["#", "author", "segment", "total", "margin", weights, "seconds"]
    rows = [_row(item, paint.names) for item in rounds]
    widths = [max(len(row[at]) for row in (head, *rows)) for at in range(len(head))]
    widths[2] = max(12, min(widths[2], width - sum(widths) + widths[2] - 2 * (len(head) - 1)))
    lines = [paint.coded(BOLD, _line(head, widths))]
    for item, row in zip(rounds, rows, strict=True):
        lines.append(paint.by(item.member, _line(row, widths)))
        if item.looped:
            lines.append(_note(paint, DIM, f"loops, not eligible: {', '.join(item.looped)}"))
        if item.evidence:
            asked = ", ".join(f"{name} {value:+.2f}" for name, value in item.evidence.items())
            unsure = f"{item.lead} was unsure; evidence for others: {asked}"
            lines.append(_note(paint, DIM, unsure))
        for phase, late in item.late.items():
            lines.append(_note(paint, DIM, f"late in {phase}: {', '.join(late)}"))
        for left in item.left:
            lines += [_note(paint, BOLD, line) for line in departed(left)]
    return "\n".join([*lines, "", _summary(rounds, paint)])


def _note(paint: Paint, code: int, text: str) -> str:
    """An indented line below the line of a round."""
    return paint.coded(code, f"   {visible(text, margin='   ')}")


def departed(left: Departure) -> list[str]:
    """Lines that say which member left, why, and what to do about it, if that is known."""
    return [
        f"{left.member} left ({left.kind}): {left.reason}",
        *getattr(left.cause, "__notes__", ()),
    ]


def _row(item: Round, names: Sequence[str]) -> list[str]:
    total = item.totals.get(item.winner)
    disputed = total is not None and item.margin < 1.0
    shown = names if len(names) <= MAX_WEIGHTS else [item.member]
    return [
        str(item.number),
        item.winner,
        repr(item.segment.text) + (" ■" if item.segment.ended else ""),
        f"{total:.3f}" if disputed else "-",
        f"+{item.margin:.3f}" if disputed else "-",
        " ".join(f"{item.weights[name]:.2f}" if name in item.weights else "-   " for name in shown),
        f"{sum(item.seconds.values()):.2f}",
    ]


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    shown = []
    for at, (cell, width) in enumerate(zip(cells, widths, strict=True)):
        flat = one_line(cell)
        cut = flat if len(flat) <= width else flat[: width - 1] + "…"
        shown.append(cut.rjust(width) if at in (0, 3, 4, 6) else cut.ljust(width))
    return "  ".join(shown).rstrip()


def _summary(rounds: Sequence[Round], paint: Paint) -> str:
    wins = Counter(item.member for item in rounds)
    tokens = sum(
        max((len(ids) for ids in item.segment.tokens.values()), default=0) for item in rounds
    )
    seconds = sum(sum(item.seconds.values()) for item in rounds)
    shares = ", ".join(
        paint.by(name, f"{one_line(name)} {wins[name]}") for name in paint.names if wins[name]
    )
    ending = FINISHED.get(rounds[-1].finish or "", "it is incomplete")
    if rounds[-1].stalled:
        ending = STALLED
    speed = f", {tokens / seconds:.1f} a second" if seconds > 0 else ""
    return (
        f"{amount(len(rounds), 'round')} ({shares}), {amount(tokens, 'token')} in {seconds:.1f} "
        f"s{speed}; {ending}"
    )
