"""The members of one ensemble, loaded once, and the way to ask them a question."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

from ..core.ballot import largest
from ..core.consensus import answers
from ..core.fusion import fused
from ..core.member import Member, Probe
from ..core.options import Settings
from ..core.panel import Panel
from ..core.referee import FREE, Referee
from ..core.results import FUSE
from ..core.round import Round
from ..core.rounds import Loop, rounds
from ..core.values import Panelist, Query
from ..errors import MemberError, UsageError, advised, emptied
from .drive import Admission, adrive, drive
from .worker import refuse_fork, worker_for

if TYPE_CHECKING:
    from .checker import Checker


class Ensemble:
    """Drafting members and verify-only members under unique names. Making one loads nothing."""

    def __init__(self, members: Sequence[Member], verifiers: Sequence[Member] = ()) -> None:
        if not members:
            error = UsageError("an ensemble needs at least one member, got none")
            raise advised(error, "name one in members=[...]")
        self.members: dict[str, Member] = {}
        for member in (*members, *verifiers):
            if member.name in self.members:
                error = UsageError(f"two members are called {member.name!r}; names must differ")
                advice = "give one of them another name: TransformersMember(..., name='b')"
                raise advised(error, advice)
            self.members[member.name] = member
        self.drafting = frozenset(member.name for member in members)
        """The names of the members that write."""
        self.admission = Admission()
        """The answers under way, and those that wait for their turn."""
        self._lock = threading.Lock()
        self._probes: dict[str, Probe] | None = None
        """What each member can do; None until all are loaded."""
        self._waiting: list[Future[dict[str, Probe]]] = []
        self._loading = False

    # - loading

    @property
    def ready(self) -> bool:
        """Whether all members are loaded."""
        return self._probes is not None

    def load(self) -> None:
        """Start loading if necessary, without waiting for it (see ``ready``)."""
        with self._lock:
            if self._probes is None:
                self._start_loading()

    def loaded(self) -> Future[dict[str, Probe]]:
        """What each member can do, once all are loaded; starts loading if necessary. A failed load
        is tried again.

        Each caller gets a future of its own: an interrupt while waiting may leave its lock taken.
        """
        refuse_fork()
        future: Future[dict[str, Probe]] = Future()
        future.set_running_or_notify_cancel()
        with self._lock:
            probes = self._probes
            if probes is None:
                self._waiting.append(future)
                self._start_loading()
        if probes is not None:
            future.set_result(probes)
        return future

    def _start_loading(self) -> None:
        if not self._loading:
            worker_for("loading").call(self, self._load)
            # last, so that an interrupt before it does not leave a load that never begins
            self._loading = True

    def _load(self) -> None:
        try:
            for member in self.members.values():
                # Members that load elsewhere do so all at once.
                getattr(member, "start_loading", lambda: None)()
            probes = {name: _probe_of(member) for name, member in self.members.items()}
        except BaseException as error:
            for future in self._end_loading(None):
                future.set_exception(emptied(error))
        else:
            for future in self._end_loading(probes):
                future.set_result(probes)

    def _end_loading(self, probes: dict[str, Probe] | None) -> list[Future[dict[str, Probe]]]:
        """Note that loading is over. Returns the futures of those that wait for it."""
        with self._lock:
            self._probes, self._loading = probes, False
            waiting, self._waiting = self._waiting, []
        return waiting

    # - who takes part

    def panel(
        self,
        probes: Mapping[str, Probe],
        settings: Settings,
        kinds: frozenset[str] = frozenset(),
    ) -> Panel:
        """The panel with which an answer begins. ``kinds``: what the conversation holds besides
        text.

        A verifier that cannot read all of it has no vote, because it would prefer the draft that
        sounds more likely without it.
        """
        blind = [name for name, probe in probes.items() if not kinds <= set(probe.takes)]
        unable = [name for name in blind if name in self.drafting]
        if unable:
            error = UsageError(
                f"the conversation holds more than text ({', '.join(sorted(kinds))}), which "
                f"{', '.join(unable)} cannot read"
            )
            advice = "describe it in words, or let only members draft that accept it: chat models"
            raise advised(error, advice)
        panelists = [
            Panelist(
                name,
                name in self.drafting,
                probe.scores,
                excludes=probe.excludes,
                size=probe.size,
            )
            for name, probe in probes.items()
            if name not in blind
        ]
        return Panel.of(panelists, settings.prior, self.lead(probes, settings))

    def lead(self, probes: Mapping[str, Probe], settings: Settings) -> str | None:
        """The member that leads: the named one or, with ``"auto"``, the one that is by far the
        largest, if there is one."""
        sizes = {name: probe.size for name, probe in probes.items() if name in self.drafting}
        lead = settings.lead
        if settings.method.margin is None or len(sizes) < 2:
            return None
        if lead == "auto":
            lead = largest(sizes)
            if lead is None and settings.method.margin == math.inf:
                error = UsageError(
                    "margin=inf: the lead's draft always wins, but no member is named as the lead"
                )
                raise advised(error, f"name one with lead=: {', '.join(sizes)}")
        elif lead is not None and lead not in sizes:
            error = UsageError(f"lead must be one of the members that write, got {lead!r}")
            raise advised(error, f"they are {', '.join(sizes)}")
        return lead

    # - asking

    def rounds(
        self,
        query: Query,
        settings: Settings,
        *,
        referee: Referee = FREE,
        checker: Checker | None = None,
    ) -> Iterator[Round]:
        """Ask, and get the rounds as they are agreed. The ``timeout`` of the settings does not
        include loading.

        ``referee`` judges texts under the query's constraint, if it has one. ``checker`` runs the
        checks of the settings.
        """
        loop = self._loop(self.loaded().result(), query, settings, referee)
        return drive(loop, self.members, settings, self.admission, checker)

    async def arounds(
        self,
        query: Query,
        settings: Settings,
        *,
        referee: Referee = FREE,
        checker: Checker | None = None,
    ) -> AsyncIterator[Round]:
        """``rounds`` for asyncio."""
        probes = await asyncio.wrap_future(self.loaded())
        loop = self._loop(probes, query, settings, referee)
        driven = adrive(loop, self.members, settings, self.admission, checker)
        try:
            async for round in driven:
                yield round
        finally:
            await driven.aclose()

    def _loop(
        self, probes: Mapping[str, Probe], query: Query, settings: Settings, referee: Referee
    ) -> Loop:
        """The loop that agrees the answer: segment by segment, as a whole, or fused."""
        panel = self.panel(probes, settings, query.kinds)
        if settings.segment == "answer" and settings.result == FUSE:
            return fused(query, settings, panel, referee)
        if settings.segment == "answer":
            return answers(query, settings, panel, referee)
        return rounds(query, settings, panel, referee)


def _probe_of(member: Member) -> Probe:
    """What the member reports about itself. Anyone can write a member, so the report is checked."""
    probe = member.probe()
    if issubclass(type(probe), Probe):
        return probe
    error = MemberError(
        f"probe() of {member.name} must return a Probe, got {type(probe).__name__}",
        member=member.name,
    )
    raise advised(error, "from langchain_specfuse.core.member import Probe")
