"""Where each query lives: at one of several replicas, for as long as that replica lives. Pure; knows no replicas."""

from __future__ import annotations

from collections.abc import Collection, Sequence


class Homes:
    """Remembers the replica of each query: what was read for it is kept there, and nowhere else.

    >>> homes = Homes()
    >>> homes.parts(["a", "b", "c"], living=[0, 1])
    {0: [0, 2], 1: [1]}
    >>> homes.parts(["c", "b"], living=[0, 1])
    {0: [0], 1: [1]}
    >>> homes.parts(["c", "b"], living=[1])  # replica 0 died
    {1: [0, 1]}
    """

    def __init__(self) -> None:
        self._home: dict[str, int] = {}

    def parts(self, ids: Sequence[str], living: Collection[int]) -> dict[int, list[int]]:
        """replica -> the places of its queries in ``ids``. Who has no living home moves to where the fewest live."""
        crowds = dict.fromkeys(sorted(living), 0)
        for home in self._home.values():
            if home in crowds:
                crowds[home] += 1
        parts: dict[int, list[int]] = {}
        for place, query in enumerate(ids):
            if self._home.get(query) not in crowds:
                self._home[query] = min(crowds, key=lambda one: crowds[one])
                crowds[self._home[query]] += 1
            home = self._home[query]
            parts.setdefault(home, []).append(place)
        return parts

    def leave(self, query: str) -> int | None:
        """The query is over: where it lived, if anywhere."""
        return self._home.pop(query, None)
