"""The shortest way found to make a text whole: value by value, each by a small search over bytes.

It knows no grammar. That JSON ends strings with quotation marks and values with brackets makes it quick, not right:
every step is asked of the state, and where the quick way leads nowhere, a wider search looks at everything.
"""

from __future__ import annotations

import bisect
import heapq
import re
from collections import Counter
from collections.abc import Sequence
from itertools import count

from ._states import State

NEAR = 150
"""Texts to look at for the end of one value."""
WIDE = 1000
"""Texts to look at for the end of the whole."""
FIRST = 512
"""Bytes to go value by value before looking at the whole."""
FAR = 20_000
"""Bytes to go value by value when that found nothing: a very long string must be filled."""

_EXAMPLES = ("a@a.aa", "2000-01-01T00:00:00Z", "00000000-0000-4000-8000-000000000000", "0.0.0.0", "::0", "P1DT1S")
_ENDINGS = sorted({f'{text[at:]}"'.encode() for text in _EXAMPLES for at in range(len(text) + 1)}, key=len)
"""How strings of common formats end: found at once where one of them fits."""
_SHORT = ("0", '""', "[]", "{}", "null", "true", "false", "1", "1.1", "-1")
_VALUES = [f"{value}{end}".encode() for end in "}]," for value in _SHORT]
"""The shortest values, each with what may stand behind it."""
_STRING = re.compile(r'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_OUTSIDE = b'}],:"0123456789nft-[{.eE+ '
"""Between values: end them, then the shortest value. Everything else follows in its own order."""
_INSIDE = b'"abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ-_ .:/@'
"""In a string: end it, then fill it with plain letters."""
_FEW = 12
"""Where no more bytes than this may follow, all are tried."""
_ALIKE = 24
"""Of texts that look alike (the same may follow) so many are looked at: a count cannot be seen, one is too few."""
_MARKS = 6
"""Of marks that look alike in one place so many are tried; of letters and digits one."""
_DEEPER = 12
"""Opening a bracket costs as much as so many bytes: it has to be closed again, and may open others."""


def closed(
    state: State, text: str, literals: Sequence[str] = (), *, words: Sequence[str] = (), json: bool = True
) -> bytes | None:
    """What makes the text whole, where ``state`` stands; None if nothing was found.

    ``literals``: what the patterns of the grammar name; strings may have to end with it. ``words``: what may have to be
    in the text. ``json``: the text is JSON.
    """
    scan = Scan.behind(text)
    endings = _with_literals(literals)
    found = _straight(state, scan, FIRST, endings) if json else None
    if found is None:
        plain = [word.encode() for word in words]
        found = _search(state, scan, WIDE, near=False, words=plain)
        if found is None and plain:
            found = _straight(state, scan, FIRST, endings, plain)
    return _straight(state, scan, FAR, endings) if found is None else found


class Scan:
    """Where a text stands in JSON: in a string, behind a backslash, how deep."""

    __slots__ = ("depth", "inside", "last", "slash")

    def __init__(self) -> None:
        self.inside = self.slash = False
        self.depth = 0
        self.last = 0

    @classmethod
    def behind(cls, text: str) -> Scan:
        """Behind a text of any length: whole strings in it are skipped at once."""
        scan = cls()
        rest = _STRING.sub('""', text)
        opened = rest.replace('""', "  ").find('"')
        if opened < 0:
            scan.move(rest.encode())
            return scan
        scan.move(rest[: opened + 1].encode())
        tail = rest[opened + 1 :]
        scan.slash = (len(tail) - len(tail.rstrip("\\"))) % 2 == 1
        return scan

    def fork(self) -> Scan:
        other = Scan()
        other.inside, other.slash, other.depth, other.last = self.inside, self.slash, self.depth, self.last
        return other

    def move(self, data: bytes) -> None:
        for byte in data:
            if self.slash:
                self.slash = False
            elif self.inside:
                self.slash = byte == 0x5C
                self.inside = byte != 0x22
            elif byte == 0x22:
                self.inside = True
            else:
                self.depth += (byte in b"{[") - (byte in b"}]")
            if byte != 0x20 or self.inside:
                self.last = byte

    @property
    def between(self) -> bool:
        """Whether something has just ended: a string, a value, a bracket."""
        return not self.inside and self.last in b'",}]:'


def _straight(
    state: State, scan: Scan, far: int, endings: Sequence[bytes], words: Sequence[bytes] = ()
) -> bytes | None:
    """The nearest end of each value in turn, or (with ``words``) of the whole. What is not near is filled, further
    each time."""
    state, scan, found, stride = state.fork(), scan.fork(), bytearray(), 4
    filling = 0
    while not state.may_end():
        if len(found) > far:
            return None
        step = state.forced()
        if not step:
            step = _ranked(state.follows(), scan.inside)[:1]
            ends = not words and step and step in (b'"' if scan.inside else b"}],")
            if not filling and not ends:
                near = _nearest(state, scan, endings, words)
                step = near or step
                filling, stride = (0, stride) if near else (stride, 2 * stride)
        if not step:
            return None
        filling = max(filling - len(step), 0)
        state.advance(step)
        scan.move(step)
        found += step
    return bytes(found)


def _nearest(state: State, scan: Scan, endings: Sequence[bytes], words: Sequence[bytes]) -> bytes | None:
    if words:
        return _search(state, scan, NEAR, near=False, words=words)
    found = _ending(state, endings) if scan.inside else _value(state)
    return found or _search(state, scan, NEAR, near=True)


def _with_literals(literals: Sequence[str]) -> list[bytes]:
    more = {
        f'{"a" * before}{text[at:]}"'.encode()
        for text in literals
        for at in range(len(text))
        for before in ((0, 1, 2, 3, 4, 6, 8, 12, 16) if not at else (0,))
    }
    return sorted({*_ENDINGS, *more}, key=len) if more else _ENDINGS


def _value(state: State) -> bytes | None:
    return next((value for value in _VALUES if state.fits(value) == len(value)), None)


def _ending(state: State, endings: Sequence[bytes]) -> bytes | None:
    """An end of a common format, or as many plain letters as the string still needs."""
    found = next((ending for ending in endings if state.fits(ending) == len(ending)), None)
    if found or state.fits(b"aa") < 2:
        return found

    def fits(size: int) -> bool:
        return state.fits(b"a" * size + b'"') == size + 1

    enough = next((size for size in (4, 16, 64, 256, 1024, 4096, 16384, 65536) if fits(size)), 0)
    if not enough:
        return None
    least = bisect.bisect_left(range(enough), True, key=fits)
    return b"a" * least + b'"'


def _search(state: State, scan: Scan, most: int, near: bool, words: Sequence[bytes] = ()) -> bytes | None:
    """The shortest way to the end of the text, or (``near``) to that of a value. ``words`` are steps like bytes."""
    order = count()
    telling: dict[tuple[bytes, bool], bytes] = {}
    seen: Counter[tuple[object, ...]] = Counter()
    heap = [(0, next(order), 0, b"", state.fork(), scan.fork(), state.follows())]
    for _ in range(most):
        if not heap:
            return None
        _, _, cost, text, here, at, follows = heapq.heappop(heap)
        if here.may_end() or (near and text and at.between):
            return text
        forced = here.forced()
        if not forced and (follows, at.inside) not in telling:
            telling[follows, at.inside] = _telling(here, at)
        steps = [forced] if forced else _steps(here, at, follows, telling[follows, at.inside], words)
        beside: Counter[tuple[object, ...]] = Counter()
        for rank, step in enumerate(steps):
            there, then = here.fork(), at.fork()
            there.advance(step)
            then.move(step)
            follows = there.follows()
            mark = step if step in words else not step.isalnum()
            look = there.may_end(), follows, then.inside, then.slash, then.depth, then.between, mark
            beside[look] += 1
            seen[look] += 1
            if beside[look] > (_MARKS if mark else 1) or seen[look] > _ALIKE:
                continue
            # A choice costs, forced text and words hardly; of equal costs, what stands first in the order comes first.
            spent = cost + len(step) + (0 if forced or step in words else 16)
            deeper = 16 * _DEEPER * max(then.depth - scan.depth, 0)
            heapq.heappush(
                heap, (spent + deeper + min(rank, 15), next(order), spent, text + step, there, then, follows)
            )
    return None


def _steps(state: State, scan: Scan, follows: bytes, telling: bytes, words: Sequence[bytes]) -> list[bytes]:
    """Bytes that are worth trying, and the words that fit here."""
    near_by = [bytes([byte]) for byte in _worth(follows, scan.inside, telling)]
    return near_by + [word for word in words if state.fits(word) == len(word)]


def _ranked(follows: bytes, inside: bool) -> bytes:
    order = _INSIDE if inside else _OUTSIDE
    known = bytes(byte for byte in order if byte in follows)
    return known + bytes(byte for byte in follows if byte not in known)


def _worth(follows: bytes, inside: bool, telling: bytes) -> bytes:
    """What is worth trying: all of a few, else what tells, marks, and two of each kind of letter."""
    ranked = _ranked(follows, inside)
    if len(ranked) <= _FEW:
        return ranked
    kinds: dict[str, list[int]] = {}
    for byte in ranked:
        kinds.setdefault(_kind(byte), []).append(byte)
    some = [byte for name, kind in kinds.items() for byte in (kind if name == "mark" else (kind[0], kind[-1]))]
    return bytes(dict.fromkeys([*ranked[:1], *(byte for byte in telling if byte in follows), *some]))


def _telling(state: State, scan: Scan) -> bytes:
    """Where much may follow: the bytes behind which something else may follow than behind most others."""
    follows = bytes(byte for byte in _ranked(state.follows(), scan.inside) if byte < 0x80)
    if len(follows) <= _FEW:
        return b""
    groups: dict[tuple[bool, bytes], list[int]] = {}
    for byte in follows:
        there = state.fork()
        there.advance(bytes([byte]))
        groups.setdefault((there.may_end(), there.follows()), []).append(byte)
    return bytes(group[0] for group in sorted(groups.values(), key=len)[:_FEW])


def _kind(byte: int) -> str:
    letter = chr(byte)
    if byte >= 0x80:
        return "more"
    return "digit" if letter.isdigit() else "lower" if letter.islower() else "upper" if letter.isupper() else "mark"
