"""The members of one ensemble, loaded once, and the way to ask them a question."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, cast

from ..core.member import Member, Probe
from ..core.panel import Panel
from ..core.referee import FREE, Referee
from ..core.rounds import rounds
from ..core.values import Query, Round, Seat, Settings
from ..core.verdict import Verdict, decided
from ..errors import UsageError, advised
from .desk import Task, desk_for
from .drive import adrive, drive


class Ensemble:
    """Drafting members and verify-only members under unique names. Making one loads nothing."""

    def __init__(self, members: Sequence[Member], verifiers: Sequence[Member] = ()) -> None:
        if not members:
            raise advised(UsageError("an ensemble needs at least one member, got none"), "name one in members=[...]")
        self.members: dict[str, Member] = {}
        for member in (*members, *verifiers):
            if member.name in self.members:
                error = UsageError(f"two members are called {member.name!r}; names must differ")
                raise advised(error, "give one of them another name, for example TransformersMember(..., name='b')")
            self.members[member.name] = member
        self._drafting = frozenset(member.name for member in members)
        self._lock = threading.Lock()
        self._probes: Future[dict[str, Probe]] | None = None

    def loaded(self) -> Future[dict[str, Probe]]:
        """What each member can do, once all are loaded; loading starts now if it has not. A failed load is retried."""
        with self._lock:
            failed = self._probes is not None and self._probes.done() and self._probes.exception() is not None
            if self._probes is None or failed:
                future: Future[dict[str, Probe]] = Future()
                self._probes = future
                future.set_running_or_notify_cancel()
                desk_for("loading").put(Task(self, "call", lambda: self._load(future), lambda _: None))
            return self._probes

    def _load(self, future: Future[dict[str, Probe]]) -> None:
        try:
            future.set_result({name: member.probe() for name, member in self.members.items()})
        except BaseException as error:
            future.set_exception(error)

    def seats(self, probes: Mapping[str, Probe]) -> list[Seat]:
        return [Seat(name, name in self._drafting, probe.scores) for name, probe in probes.items()]

    def rounds(
        self,
        query: Query,
        settings: Settings,
        *,
        referee: Referee = FREE,
        prior: Mapping[str, float] | None = None,
        timeout: float | None = None,
        member_timeout: float | None = None,
    ) -> Iterator[Round]:
        """Ask, and get the rounds as they are agreed. ``referee`` judges texts under the query's constraint, if it has
        one. ``timeout`` does not count the time that loading takes."""
        panel = Panel.of(self.seats(self.loaded().result()), prior)
        loop = rounds(query, settings, panel, referee)
        return drive(loop, query.id, self.members, timeout=timeout, member_timeout=member_timeout)

    async def arounds(
        self,
        query: Query,
        settings: Settings,
        *,
        referee: Referee = FREE,
        prior: Mapping[str, float] | None = None,
        timeout: float | None = None,
        member_timeout: float | None = None,
    ) -> AsyncIterator[Round]:
        """``rounds`` for asyncio."""
        import asyncio

        probes = await asyncio.wrap_future(self.loaded())
        panel = Panel.of(self.seats(probes), prior)
        loop = rounds(query, settings, panel, referee)
        driven = adrive(loop, query.id, self.members, timeout=timeout, member_timeout=member_timeout)
        try:
            async for item in driven:
                yield item
        finally:
            await driven.aclose()  # type: ignore[attr-defined]

    def verdict(
        self, query: Query, labels: Sequence[str], *, prior: Mapping[str, float] | None = None, **limits: float | None
    ) -> Verdict:
        """Let the members vote on these labels; nothing is drafted. ``limits`` are those of ``rounds``."""
        loop = self._deciding(self.loaded().result(), query, labels, prior)
        (found,) = drive(loop, query.id, self.members, **limits)
        return cast("Verdict", found)

    async def averdict(
        self, query: Query, labels: Sequence[str], *, prior: Mapping[str, float] | None = None, **limits: float | None
    ) -> Verdict:
        """``verdict`` for asyncio."""
        import asyncio

        probes = await asyncio.wrap_future(self.loaded())
        loop = self._deciding(probes, query, labels, prior)
        (found,) = [item async for item in adrive(loop, query.id, self.members, **limits)]
        return cast("Verdict", found)

    def _deciding(
        self, probes: Mapping[str, Probe], query: Query, labels: Sequence[str], prior: Mapping[str, float] | None
    ) -> Any:
        return decided(query, labels, Panel.of(self.seats(probes), prior))
