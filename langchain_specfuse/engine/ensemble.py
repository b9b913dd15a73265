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
from ..core.values import Query, Round, Seat, Settings, Straggler
from ..core.verdict import Verdict, decided
from ..errors import UsageError, advised, emptied
from .desk import desk_for, refuse_fork
from .drive import Place, adrive, drive
from .line import Line, Turn
from .task import Task


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
        self.line = Line()
        """Its answers under way, and those that wait for their turn."""
        self._lock = threading.Lock()
        self._known: dict[str, Probe] | None = None
        self._waiting: list[Future[dict[str, Probe]]] = []
        self._loading = False

    @property
    def ready(self) -> bool:
        """Whether all members are loaded."""
        return self._known is not None

    def loaded(self) -> Future[dict[str, Probe]]:
        """What each member can do, once all are loaded; loading starts now if it has not. A failed load is retried.

        The future is the caller's own: who is interrupted while waiting leaves its lock taken, and hurts nobody else.
        """
        refuse_fork()
        future: Future[dict[str, Probe]] = Future()
        future.set_running_or_notify_cancel()
        with self._lock:
            known = self._known
            if known is None:
                self._waiting.append(future)
                self._begin()
        if known is not None:
            future.set_result(known)
        return future

    def load(self) -> None:
        """Begin to load, if nobody has. Nobody is told when it is done: see ``ready``."""
        with self._lock:
            if self._known is None:
                self._begin()

    def _begin(self) -> None:
        if not self._loading:
            desk_for("loading").put(Task(self, "call", self._load, lambda _: None))
            self._loading = True  # last: after an interrupt nobody may wait for a load that never began

    def _load(self) -> None:
        try:
            for member in self.members.values():
                # Only some can: those that load elsewhere, all at once.
                getattr(member, "start_loading", lambda: None)()
            known = {name: member.probe() for name, member in self.members.items()}
        except BaseException as error:
            for future in self._loaded(None):
                future.set_exception(emptied(error))
        else:
            for future in self._loaded(known):
                future.set_result(known)

    def _loaded(self, known: dict[str, Probe] | None) -> list[Future[dict[str, Probe]]]:
        """It is over: who is to be told."""
        with self._lock:
            self._known, self._loading = known, False
            waiting, self._waiting = self._waiting, []
        return waiting

    def seats(self, probes: Mapping[str, Probe]) -> list[Seat]:
        return [
            Seat(name, name in self._drafting, probe.scores, probe.size, self.members[name].device)
            for name, probe in probes.items()
        ]

    def rounds(
        self,
        query: Query,
        settings: Settings,
        *,
        referee: Referee = FREE,
        prior: Mapping[str, float] | None = None,
        timeout: float | None = None,
        member_timeout: float | None = None,
        straggler: Straggler = "exit",
        turn: Turn = Turn(),  # noqa: B008 - it is frozen
    ) -> Iterator[Round]:
        """Ask, and get the rounds as they are agreed. ``referee`` judges texts under the query's constraint, if it has
        one. ``timeout`` does not count the time that loading takes. ``turn``: how much company the answer wants."""
        panel = Panel.of(self.seats(self.loaded().result()), prior)
        loop = rounds(query, settings, panel, referee)
        limits: Any = {"timeout": timeout, "member_timeout": member_timeout, "straggler": straggler}
        return drive(loop, query.id, self.members, **limits, place=Place(self.line, turn))

    async def arounds(
        self,
        query: Query,
        settings: Settings,
        *,
        referee: Referee = FREE,
        prior: Mapping[str, float] | None = None,
        timeout: float | None = None,
        member_timeout: float | None = None,
        straggler: Straggler = "exit",
        turn: Turn = Turn(),  # noqa: B008 - it is frozen
    ) -> AsyncIterator[Round]:
        """``rounds`` for asyncio."""
        import asyncio

        probes = await asyncio.wrap_future(self.loaded())
        panel = Panel.of(self.seats(probes), prior)
        loop = rounds(query, settings, panel, referee)
        limits: Any = {"timeout": timeout, "member_timeout": member_timeout, "straggler": straggler}
        driven = adrive(loop, query.id, self.members, **limits, place=Place(self.line, turn))
        try:
            async for item in driven:
                yield item
        finally:
            await driven.aclose()  # type: ignore[attr-defined]

    def verdict(
        self, query: Query, labels: Sequence[str], *, prior: Mapping[str, float] | None = None, **limits: Any
    ) -> Verdict:
        """Let the members vote on these labels; nothing is drafted. ``limits`` are those of ``rounds``."""
        loop = self._deciding(self.loaded().result(), query, labels, prior)
        (found,) = drive(loop, query.id, self.members, place=Place(self.line), **limits)
        return cast("Verdict", found)

    async def averdict(
        self, query: Query, labels: Sequence[str], *, prior: Mapping[str, float] | None = None, **limits: Any
    ) -> Verdict:
        """``verdict`` for asyncio."""
        import asyncio

        probes = await asyncio.wrap_future(self.loaded())
        loop = self._deciding(probes, query, labels, prior)
        (found,) = [item async for item in adrive(loop, query.id, self.members, place=Place(self.line), **limits)]
        return cast("Verdict", found)

    def _deciding(
        self, probes: Mapping[str, Probe], query: Query, labels: Sequence[str], prior: Mapping[str, float] | None
    ) -> Any:
        return decided(query, labels, Panel.of(self.seats(probes), prior))
