"""How much of a device's memory the members of this process may take together, as it was told.

Knows numbers of bytes and devices' names; who gives way to whom is the business of each device's own
:class:`._allowance.Allowance`.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from ..errors import UsageError
from ._allowance import Allowance
from ._sizes import bytes_of

Told: TypeAlias = int | str | Mapping[str, int | str]
"""A budget as it is written: bytes on every device, or by device."""


DEVICE = re.compile(r"cpu|mps|(cuda|xpu):\d+")


class Budget:
    """Bytes for the weights and caches of all members that were given it: one number for every device, or one each."""

    def __init__(self, told: Told) -> None:
        self.told = told
        self._allowances: dict[str, Allowance] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"memory_budget={self.told!r}"

    def on(self, device: str) -> Allowance | None:
        """This device's share; None: as much as there is."""
        device = named(device)
        with self._lock:
            if device not in self._allowances:
                told = self.told
                if isinstance(told, Mapping):
                    given = {named(key): value for key, value in told.items()}
                    if device not in given:
                        return None
                    told = given[device]
                self._allowances[device] = Allowance(device, bytes_of(told))
            return self._allowances[device]

    def bind(self, members: Sequence[Any]) -> None:
        """For all of them that hold weights in this process (a server's memory is its own), or for none of them."""
        bound = [member for member in members if callable(getattr(member, "within", None))]
        new = [member for member in bound if getattr(member, "budget", None) is None]
        try:
            for member in bound:
                member.within(self)
        except UsageError:  # one of them has another
            for member in new:
                member.budget = None
            raise

    @property
    def held(self) -> Mapping[str, tuple[int, int]]:
        """Per device the bytes of weights and of caches now."""
        return {device: allowance.held for device, allowance in self._allowances.items()}


def key_of(told: Told) -> tuple[tuple[str, int], ...]:
    """Equal for budgets that say the same. A device that no member can be on would bound nothing, and is refused."""
    if not isinstance(told, Mapping):
        return (("", bytes_of(told)),)
    pairs = sorted((named(device), bytes_of(size)) for device, size in told.items())
    wrong = [device for device, _ in pairs if not DEVICE.fullmatch(device)]
    if wrong or len({device for device, _ in pairs}) < len(pairs):
        raise ValueError(f"{wrong or list(told)} are no devices such as 'cpu' or 'cuda:0', each named once")
    return tuple(pairs)


def named(device: str) -> str:
    """The first GPU has a number too."""
    return f"{device}:0" if device in ("cuda", "xpu") else device
