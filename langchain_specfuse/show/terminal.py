"""Show a run in a terminal: the text in its authors' colours, and a table of the rounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..core.agreed import AgreedTokens
from ..core.round import Departure, Rejection, Round
from ..errors import amount, notes_in

COLOURS = (36, 33, 35, 32, 34, 31)
BOLD, DIM, STRUCK = 1, 2, 9
REFUSED = "2;9;31"
"""Dim, struck out and red: some terminals do not strike out."""
FINISHED = {
    "stop": "its author ended it",
    "stop_string": "a stop string appeared",
    "length": "the budget was used up",
    "refusal": "the models refused",
    "check": "a check refused the rest",
}
STALLED = "no model could continue it"
LOOPED = "it only repeated itself"
MAX_WEIGHTS = 5
"""With more members than this, a row shows only its author's weight."""
SEGMENT = 2
"""The column of the segment, which becomes narrower if a line is too long."""
MIN_SEGMENT = 12
NUMBERS = {"#", "total", "margin", "seconds"}
"""The columns that are aligned to the right."""
_CONTROLS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"}
_CONTROLS |= dict.fromkeys(range(127, 160), 0xFFFD)
# Embeddings, overrides and isolates reorder what follows them on the line.
_CONTROLS |= dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A)), 0xFFFD)


class Paint:
    """A colour per member. Every piece of text resets its colour, so that the terminal is clean
    whenever the program ends.

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
        """The text in the member's colour. Forced text has no author and is dim."""
        code = self._codes.get(name, BOLD) if name else DIM
        return self.coded(code, text)

    def coded(self, code: int | str, text: str) -> str:
        if not self.on or not text:
            return text
        return f"\x1b[{code}m{text}\x1b[0m"


def visible(text: str, margin: str = "") -> str:
    """The text with symbols for control characters, so that it cannot control the terminal.

    All text from models, servers and libraries passes through here before it is shown. Lines after
    the first begin with ``margin``, so that they do not look like the program's own lines.

    >>> visible("a\\x1b[2Jb\\nerror: c", margin="  ")
    'a␛[2Jb\\n  error: c'
    """
    return text.translate(_CONTROLS).replace("\n", "\n" + margin)


def with_refused(item: Round, text: str, paint: Paint) -> str:
    """The text that a round releases, and what checks refused, struck out where it would have
    stood. Without colours only the text, because nothing would tell the two apart."""
    if not paint.on:
        return text
    before = after = ""
    for rejection in item.rejected:
        refused = rejection.held_back + rejection.text
        if rejection.is_shown:
            continue
        if rejection.kept and item.text and refused.startswith(item.text):
            after += _struck(refused[len(item.text) :], paint)
        else:
            before += _struck(refused, paint)
    return before + text + after


def _struck(text: str, paint: Paint) -> str:
    """Refused text, struck out. A space keeps it apart from what it follows, or from what replaces
    a first word."""
    words = text.strip()
    struck = paint.coded(REFUSED, visible(words))
    return f" {struck}" if text[:1].isspace() else f"{struck} "


def one_line(text: str) -> str:
    """:func:`visible` text without line breaks, for names and table cells."""
    return visible(text).replace("\n", "␊")


def legend(paint: Paint) -> str:
    """The members in their colours, or only their names if there are no colours."""
    mark = "■ " if paint.on else ""
    return "  ".join(paint.by(name, f"{mark}{one_line(name)}") for name in paint.names)


def table(
    rounds: Sequence[Round],
    paint: Paint,
    width: int = 100,
    unfinished: Sequence[Rejection] = (),
) -> str:
    """One line per round with its events, then a summary. Where one model leads, no line has the
    columns of a vote. ``unfinished`` contains the drafts that checks refused in a last round that
    was never finished."""
    head = ["#", "author", "text", "seconds"]
    rows = [_row(item) for item in rounds]
    if any(len(item.drafts) > 1 for item in rounds):
        weights = "weights" if len(paint.names) <= MAX_WEIGHTS else "weight"
        head[SEGMENT:-1] = ["segment", "total", "margin", weights]
        for item, row in zip(rounds, rows, strict=True):
            row[-1:-1] = _vote(item, paint.names)
    columns = zip(head, *rows, strict=True)
    widths = [max(len(cell) for cell in column) for column in columns]
    spaces = 2 * (len(head) - 1)
    free = width - spaces - (sum(widths) - widths[SEGMENT])
    widths[SEGMENT] = max(MIN_SEGMENT, min(widths[SEGMENT], free))
    right = [name in NUMBERS for name in head]
    lines = [paint.coded(BOLD, _line(head, widths, right))]
    for item, row in zip(rounds, rows, strict=True):
        lines.append(paint.by(item.member, _line(row, widths, right)))
        if looped := [name for name in item.looped if name != item.winner]:
            lines.append(_note(paint, DIM, f"loops, not eligible: {', '.join(looped)}"))
        if item.evidence:
            evidence = ", ".join(f"{name} {value:+.2f}" for name, value in item.evidence.items())
            unsure = f"{item.lead} was unsure; evidence for others: {evidence}"
            lines.append(_note(paint, DIM, unsure))
        lines += [_rejected(rejection, paint) for rejection in item.rejected]
        if item.withdrawn:
            lines.append(f"   withdrawn: {paint.coded(STRUCK, one_line(repr(item.withdrawn)))}")
        for left in item.left:
            lines += [_note(paint, BOLD, line) for line in departed(left)]
    lines += [_rejected(rejection, paint) for rejection in unfinished]
    return "\n".join([*lines, "", _summary(rounds, paint, len(unfinished))])


def _note(paint: Paint, code: int, text: str) -> str:
    """An indented line below the line of a round."""
    return paint.coded(code, f"   {visible(text, margin='   ')}")


def _rejected(rejection: Rejection, paint: Paint) -> str:
    """A line about a draft that a check refused. The refused part is struck out."""
    kept, refused = rejection.text[: rejection.kept], rejection.text[rejection.kept :]
    kept = rejection.held_back + kept
    where = f", after {kept!r}" if kept else ""
    why = f"{rejection.check}: {rejection.reason}"
    if rejection.is_shown:
        why += "; shown all the same"
    struck = paint.coded(STRUCK, one_line(repr(refused)))
    return f"   ✗ {one_line(rejection.member + where)}: {struck} ({one_line(why)})"


def departed(left: Departure) -> list[str]:
    """Lines that say which member left and why and, if known, what to do about it."""
    return [f"{left.member} left ({left.kind}): {left.reason}", *notes_in(left.cause)]


def _row(item: Round) -> list[str]:
    segment = repr(item.segment.text)
    if item.segment.ended:
        segment += " ■"
    seconds = f"{sum(item.seconds.values()):.2f}"
    return [str(item.number), item.winner, segment, seconds]


def _vote(item: Round, names: Sequence[str]) -> list[str]:
    """The winner's total and margin, and everybody's weight."""
    total = margin = "-"
    if item.winner in item.totals and item.margin < 1.0:  # there was a vote
        total = f"{item.totals[item.winner]:.3f}"
        margin = f"+{item.margin:.3f}"
    weights = {name: f"{weight:.2f}" for name, weight in item.weights.items()}
    shown = names if len(names) <= MAX_WEIGHTS else [item.member]
    return [total, margin, " ".join(weights.get(name, "-   ") for name in shown)]


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    shown = []
    for cell, width, is_right in zip(cells, widths, right, strict=True):
        text = one_line(cell)
        if len(text) > width:
            text = text[: width - 1] + "…"
        shown.append(text.rjust(width) if is_right else text.ljust(width))
    return "  ".join(shown).rstrip()


def _summary(rounds: Sequence[Round], paint: Paint, unfinished: int) -> str:
    wins = Counter(item.member for item in rounds)
    agreed = AgreedTokens()
    for item in rounds:
        agreed.add(item)
    tokens = agreed.count()
    seconds = sum(sum(item.seconds.values()) for item in rounds)
    authors = [name for name in paint.names if wins[name]]
    shares = ", ".join(paint.by(name, f"{one_line(name)} {wins[name]}") for name in authors)
    ending = "it is incomplete"
    if rounds:
        ending = FINISHED.get(rounds[-1].finish or "", ending)
        if rounds[-1].stalled:
            ending = LOOPED if rounds[-1].winner in rounds[-1].looped else STALLED
    speed = f", {tokens / seconds:.1f} a second" if seconds > 0 else ""
    if refused := sum(len(item.rejected) for item in rounds) + unfinished:
        ending += f"; checks refused {amount(refused, 'draft')}"
    count = amount(len(rounds), "round")
    if shares:
        count += f" ({shares})"
    return f"{count}, {amount(tokens, 'token')} in {seconds:.1f} s{speed}; {ending}"
