"""The shortest way found to make a text whole: a search over bytes, first straight on, then wider."""

from __future__ import annotations

import heapq
from itertools import count

from ._states import State

STRAIGHT = 96
"""Bytes to try straight on before looking more widely."""
WIDE = 1500
"""Texts to look at in the wide search."""
FAR = 200_000
"""Bytes to go straight on when the wide search found nothing: a very long string that must be filled."""

_OUTSIDE = b'}],:0123456789"nft-[{.eE+ '
"""Between values: end them, then the shortest value. Everything else follows in its own order."""
_INSIDE = b'"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_ .:/@'
"""In a string: end it, then fill it with plain letters."""
_SAMPLED = 12
"""Where more bytes than this may follow, one of each kind is tried."""


def closed(state: State, text: str) -> bytes | None:
    """What makes the text whole, where ``state`` stands; None if nothing was found."""
    quoted = _quoted(text)
    return (
        _straight(state, quoted, STRAIGHT)
        or _wide(state, quoted)
        or _straight(state, quoted, FAR)
        or (b"" if state.may_end() else None)
    )


def _straight(state: State, quoted: bool, far: int) -> bytes | None:
    """The likeliest way out, byte by byte; forced bytes come in one piece."""
    state, found, scan = state.fork(), bytearray(), _Quotes(quoted)
    while not state.may_end():
        if len(found) > far:
            return None
        step = state.forced() or _ranked(state.follows(), scan.inside)[:1]
        if not step:
            return None
        state.advance(step)
        scan.move(step)
        found += step
    return bytes(found)


def _wide(state: State, quoted: bool) -> bytes | None:
    """The shortest of all ways, as far as the search gets."""
    order = count()
    heap = [(0, next(order), b"", state.fork(), _Quotes(quoted))]
    for _ in range(WIDE):
        if not heap:
            return None
        _, _, text, here, scan = heapq.heappop(heap)
        if here.may_end():
            return text
        forced = here.forced()
        steps = [forced] if forced else [bytes([byte]) for byte in _sample(here.follows(), scan.inside)]
        for rank, step in enumerate(steps):
            there, then = here.fork(), _Quotes(scan.inside, scan.slash)
            if there.advance(step) != len(step):
                continue
            then.move(step)
            # A later choice costs a little: equal lengths are tried in their order.
            heapq.heappush(heap, (8 * (len(text) + len(step)) + min(rank, 7), next(order), text + step, there, then))
    return None


def _ranked(follows: bytes, inside: bool) -> bytes:
    order = _INSIDE if inside else _OUTSIDE
    known = bytes(byte for byte in order if byte in follows)
    return known + bytes(byte for byte in follows if byte not in known)


def _sample(follows: bytes, inside: bool) -> bytes:
    """What is worth trying: all of a few, else the first and the last of each kind of character."""
    ranked = _ranked(follows, inside)
    if len(ranked) <= _SAMPLED:
        return ranked
    kinds: dict[str, list[int]] = {}
    for byte in ranked:
        kinds.setdefault(_kind(byte), []).append(byte)
    return bytes(dict.fromkeys(byte for bytes_ in kinds.values() for byte in (bytes_[0], bytes_[-1])))


def _kind(byte: int) -> str:
    letter = chr(byte)
    if byte >= 0x80:
        return "more"
    if letter in '"\\':
        return letter
    return "digit" if letter.isdigit() else "lower" if letter.islower() else "upper" if letter.isupper() else "other"


def _quoted(text: str) -> bool:
    """Whether the text ends inside a JSON string (or looks so)."""
    scan = _Quotes(False)
    scan.move(text.encode())
    return scan.inside


class _Quotes:
    """Follows the quotation marks of JSON."""

    __slots__ = ("inside", "slash")

    def __init__(self, inside: bool, slash: bool = False) -> None:
        self.inside = inside
        self.slash = slash

    def move(self, data: bytes) -> None:
        for byte in data:
            if self.slash:
                self.slash = False
            elif byte == 0x5C and self.inside:
                self.slash = True
            elif byte == 0x22:
                self.inside = not self.inside
