"""Measures how long a member has given no sign of life, and decides when that is too long.

A call of a member is checked several times within its limit. A check that comes late adds no more
than two of the pauses between checks: while the process is suspended (a laptop that sleeps,
SIGSTOP), its members cannot give a sign.
"""

from __future__ import annotations

from .values import Failure

LOOKS = 30
"""A call is checked this many times within its limit."""
QUIET_TOKENS = 30
"""If a reply comes in one piece, this many tokens need no more time than the limit of silence."""


def quiet_s(tokens: int) -> float:
    """How much longer than the limit a member may be silent before a reply of this many tokens that
    comes in one piece: a second for each token beyond :data:`QUIET_TOKENS`.

    >>> quiet_s(24), quiet_s(130)
    (0.0, 100.0)
    """
    return float(max(tokens - QUIET_TOKENS, 0))


class Silence:
    """How long one call has given no sign.

    >>> silence = Silence(limit_s=30.0, now=0.0, sign=None)
    >>> [silence.is_too_long(now, sign=None) for now in (1.0, 2.0)]
    [False, False]
    >>> silence.is_too_long(500.0, sign=None)  # the process was suspended
    False
    """

    def __init__(self, limit_s: float, now: float, sign: float | None) -> None:
        """``sign``: the last sign of life before the call."""
        self.limit_s = limit_s
        self._sign = sign
        self._looked = now
        self._lasts_s = 0.0

    @property
    def pause_s(self) -> float:
        """The time between two checks."""
        return self.limit_s / LOOKS

    def is_too_long(self, now: float, sign: float | None) -> bool:
        """Check the call. ``sign`` is the last sign of life, or a time in the future if none can
        come earlier."""
        passed = min(now - self._looked, 2 * self.pause_s)
        self._looked = now
        is_quiet = sign == self._sign and (sign is None or sign <= now)
        self._sign = sign
        self._lasts_s = self._lasts_s + passed if is_quiet else 0.0
        return self._lasts_s >= self.limit_s


def silent(limit_s: float) -> Failure:
    """The failure of a member that gave no sign of life for this long."""
    return Failure("timeout", f"no token for {limit_s:g} s")


def late(timeout_s: float) -> Failure:
    """The failure of a member that exceeded its time limit."""
    return Failure("timeout", f"did not answer within member_timeout={timeout_s:g} s")
