"""A run on a terminal: who wrote what, in colour, and the table of its rounds. Knows rounds and text, nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..core.values import Round
from ..errors import amount

COLOURS = (36, 33, 35, 32, 34, 31)
BOLD, DIM = 1, 2
FINISHED = {"stop": "its writer ended it", "stop_string": "a stop string appeared", "length": "the budget was used up"}
SHOWN_WEIGHTS = 5
"""With more members than this a row shows only its author's weight."""
_CONTROLS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"}
_CONTROLS |= dict.fromkeys(range(127, 160), 0xFFFD)


class Paint:
    """A colour per member; every piece is closed again, so a terminal that is left at any moment stays clean.

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
        return self.coded(self.code(name), text)

    def code(self, name: str) -> int:
        """The terminal's number for a member's colour, or for what nobody wrote."""
        return self._codes.get(name, BOLD) if name else DIM

    def coded(self, code: int, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.on and text else text


def visible(text: str) -> str:
    """The text with control characters as pictures: an answer must not be able to command the terminal.

    >>> visible("a\\x1b[2Jb\\n")
    'a␛[2Jb\\n'
    """
    return text.translate(_CONTROLS)


def pieces(item: Round) -> list[tuple[str, str]]:
    """What a round shows, piece by piece with its author: "" for what nobody wrote, because it had to be so."""
    return parted(item.text, item.segment.text, item.winner, forced=item.forced, closed=item.closed)


def parted(text: str, said: str, winner: str, *, forced: str = "", closed: str = "") -> list[tuple[str, str]]:
    """The same from a round's plain data: its text, its segment, and what was put around that.

    >>> parted('{"city": "Rome"}', "Rome", "ann", forced='{"city": ""}')
    [('', '{"city": "'), ('ann', 'Rome'), ('', '"}')]
    """
    shown = text.removesuffix(closed)
    for at in range(len(forced) + 1) if forced + closed else ():
        if shown[at : at + len(said)] == said and shown[:at] + shown[at + len(said) :] == forced:
            parts = [("", shown[:at]), (winner, said), ("", shown[at + len(said) :] + closed)]
            return [(name, piece) for name, piece in parts if piece]
    return [(winner, text)]


def legend(paint: Paint) -> str:
    """Who writes in which colour."""
    return "  ".join(paint.by(name, f"■ {name}") for name in paint.names)


def table(rounds: Sequence[Round], paint: Paint, width: int = 100) -> str:
    """One line per round, then who left and why, then the sum of it all."""
    head = ["#", "author", "segment", "total", "margin", _weights_head(paint.names), "seconds"]
    rows = [_row(item, paint.names) for item in rounds]
    widths = [max(len(row[at]) for row in (head, *rows)) for at in range(len(head))]
    widths[2] = max(12, min(widths[2], width - sum(widths) + widths[2] - 2 * (len(head) - 1)))
    lines = [paint.coded(BOLD, _line(head, widths))]
    for item, row in zip(rounds, rows, strict=True):
        lines.append(paint.by(item.winner, _line(row, widths)))
        lines += [paint.coded(DIM, f"   loops, not eligible: {', '.join(item.looped)}")] if item.looped else []
        lines += [paint.coded(DIM, f"   several were sure: {item.umpire} decided")] if item.umpire else []
        lines += [paint.coded(DIM, f"   late in {phase}: {', '.join(late)}") for phase, late in item.late.items()]
        lines += [paint.coded(DIM, f"   closed by hand: {visible(repr(item.closed))}")] if item.closed else []
        lines += [paint.coded(BOLD, f"   {left.member} left ({left.kind}): {left.reason}") for left in item.left]
    return "\n".join([*lines, "", _sum(rounds, paint)])


def _row(item: Round, names: Sequence[str]) -> list[str]:
    total = item.totals.get(item.winner)
    disputed = total is not None and item.margin < 1.0
    return [
        str(item.number),
        item.winner,
        visible(repr(item.segment.text)) + (" ■" if item.segment.ended else ""),
        f"{total:.3f}" if disputed else "-",
        f"+{item.margin:.3f}" if disputed else "-",
        _weights(item, names),
        f"{sum(item.seconds.values()):.2f}",
    ]


def _weights_head(names: Sequence[str]) -> str:
    return "weights" if len(names) <= SHOWN_WEIGHTS else "weight"


def _weights(item: Round, names: Sequence[str]) -> str:
    """Those after this round; a dash for who is out."""
    shown = names if len(names) <= SHOWN_WEIGHTS else [item.winner]
    return " ".join(f"{item.weights[name]:.2f}" if name in item.weights else "-   " for name in shown)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    pieces = []
    for at, (cell, width) in enumerate(zip(cells, widths, strict=True)):
        cut = cell if len(cell) <= width else cell[: width - 1] + "…"
        pieces.append(cut.rjust(width) if at in (0, 3, 4, 6) else cut.ljust(width))
    return "  ".join(pieces).rstrip()


def _sum(rounds: Sequence[Round], paint: Paint) -> str:
    last = rounds[-1]
    wrote = Counter(item.winner for item in rounds)
    tokens = sum(max((len(ids) for ids in item.segment.tokens.values()), default=0) for item in rounds)
    seconds = sum(sum(item.seconds.values()) for item in rounds)
    shares = ", ".join(paint.by(name, f"{name} {wrote[name]}") for name in paint.names if wrote[name])
    ending = FINISHED.get(last.finish or "", "it was left unfinished")
    speed = f", {tokens / seconds:.1f} a second" if seconds > 0 else ""
    return f"{amount(len(rounds), 'round')} ({shares}), {amount(tokens, 'token')} in {seconds:.1f} s{speed}; {ending}"
