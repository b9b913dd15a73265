"""How long a member gives no sign of life, and how long it may.

A call of a member is looked at a few times within its limit. A look counts for no more than two of
the pauses between looks, however late it comes: while a process is suspended (a laptop that sleeps,
SIGSTOP), its members cannot give a sign.
"""

from __future__ import annotations

from .values import Failure

LOOKS = 30
"""A call is looked at this many times within its limit."""
QUIET_TOKENS = 30
"""Where a reply comes in one piece, this many tokens take no longer than the limit of silence."""


def quiet_s(tokens: int) -> float:
    """How much longer than the limit a member may be silent before a reply of so many tokens that
    comes in one piece: a second for each token beyond the first.

    >>> quiet_s(24), quiet_s(130)
    (0.0, 100.0)
    """
    return float(max(tokens - QUIET_TOKENS, 0))


class Silence:
    """For how long one call has given no sign.

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
        """The time between two looks."""
        return self.limit_s / LOOKS

    def is_too_long(self, now: float, sign: float | None) -> bool:
        """Take a look. ``sign`` is the last sign of life; it lies ahead if none can come
        earlier."""
        passed = min(now - self._looked, 2 * self.pause_s)
        self._looked = now
        is_quiet = sign == self._sign and (sign is None or sign <= now)
        self._sign = sign
        self._lasts_s = self._lasts_s + passed if is_quiet else 0.0
        return self._lasts_s >= self.limit_s


def silent(limit_s: float) -> Failure:
    """The failure of a member that gave no sign of life for so long."""
    return Failure("timeout", f"no token for {limit_s:g} s")
