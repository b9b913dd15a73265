"""The members of one ensemble, loaded once, and the way to ask them a question."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace

from ..core.ballot import largest
from ..core.consensus import answers
from ..core.member import Member, Probe
from ..core.options import Settings
from ..core.panel import Panel
from ..core.referee import FREE, Referee
from ..core.round import Round
from ..core.rounds import Loop, rounds
from ..core.values import Panelist, Query
from ..errors import MemberError, UsageError, advised, emptied
from .drive import Admission, Schedule, adrive, drive
from .worker import refuse_fork, worker_for


def loop_of(settings: Settings) -> Callable[..., Loop]:
    """The loop that agrees an answer: segment by segment, or as a whole."""
    return answers if settings.segment == "answer" else rounds


def _probed(member: Member) -> Probe:
    """What the member reports of itself. A member may be code of others and report anything."""
    probe = member.probe()
    if issubclass(type(probe), Probe):
        return probe
    error = MemberError(
        f"probe() of {member.name} must return a Probe, got {type(probe).__name__}",
        member=member.name,
    )
    raise advised(error, "from langchain_specfuse.core.member import Probe")


class Ensemble:
    """Drafting members and verify-only members under unique names. Making one loads nothing."""

    def __init__(self, members: Sequence[Member], verifiers: Sequence[Member] = ()) -> None:
        if not members:
            raise advised(
                UsageError("an ensemble needs at least one member, got none"),
                "name one in members=[...]",
            )
        self.members: dict[str, Member] = {}
        for member in (*members, *verifiers):
            if member.name in self.members:
                error = UsageError(f"two members are called {member.name!r}; names must differ")
                raise advised(
                    error,
                    "give one of them another name, for example TransformersMember(..., name='b')",
                )
            self.members[member.name] = member
        self.drafting = frozenset(member.name for member in members)
        """The names of the members that write."""
        self.admission = Admission()
        """The answers under way, and those that wait for their turn."""
        self._lock = threading.Lock()
        self._known: dict[str, Probe] | None = None
        self._waiting: list[Future[dict[str, Probe]]] = []
        self._loading = False

    @property
    def ready(self) -> bool:
        """Whether all members are loaded."""
        return self._known is not None

    def loaded(self) -> Future[dict[str, Probe]]:
        """What each member can do, once all are loaded; starts loading if necessary. A failed load
        is tried again.

        Each caller gets a future of its own: an interrupt while waiting may leave its lock taken.
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
        """Start loading if necessary, without waiting for it (see ``ready``)."""
        with self._lock:
            if self._known is None:
                self._begin()

    def _begin(self) -> None:
        if not self._loading:
            worker_for("loading").call(self, self._load)
            # last, so that an interrupt before it does not leave a load that never begins
            self._loading = True

    def _load(self) -> None:
        try:
            for member in self.members.values():
                # Members that load elsewhere do so all at once.
                getattr(member, "start_loading", lambda: None)()
            known = {name: _probed(member) for name, member in self.members.items()}
        except BaseException as error:
            for future in self._end_loading(None):
                future.set_exception(emptied(error))
        else:
            for future in self._end_loading(known):
                future.set_result(known)

    def _end_loading(self, known: dict[str, Probe] | None) -> list[Future[dict[str, Probe]]]:
        """Loading is over. Returns the futures of those that wait for it."""
        with self._lock:
            self._known, self._loading = known, False
            waiting, self._waiting = self._waiting, []
        return waiting

    def panel(
        self,
        probes: Mapping[str, Probe],
        settings: Settings,
        prior: Mapping[str, float] | None = None,
        kinds: frozenset[str] = frozenset(),
    ) -> Panel:
        """The panel with which an answer begins. ``kinds``: what the conversation holds besides
        text.

        A verifier that cannot read all of it has no vote: it would prefer what sounds likely
        without it.
        """
        blind = [name for name, probe in probes.items() if not kinds <= set(probe.takes)]
        if unable := [name for name in blind if name in self.drafting]:
            held = ", ".join(sorted(kinds))
            error = UsageError(
                f"the conversation holds more than text ({held}), which {', '.join(unable)} cannot "
                "read"
            )
            raise advised(
                error, "describe it in words, or let only members draft that accept it: chat models"
            )
        members = [
            Panelist(n, n in self.drafting, probe.scores)
            for n, probe in probes.items()
            if n not in blind
        ]
        return Panel.of(members, prior, self.lead(probes, settings))

    def lead(self, probes: Mapping[str, Probe], settings: Settings) -> str | None:
        """The member that leads: the one that is named, with ``"auto"`` the one that is much the
        largest, if any."""
        sizes = {name: probe.size for name, probe in probes.items() if name in self.drafting}
        lead = settings.lead
        if settings.method.margin is None or len(sizes) < 2:
            return None
        if lead == "auto":
            lead = largest(sizes)
            if lead is None and settings.method.margin == math.inf:
                error = UsageError(
                    "margin=inf: the lead's draft always stands, but no member is named as the lead"
                )
                raise advised(error, f"name one with lead=: {', '.join(sizes)}")
            return lead
        if lead is not None and lead not in sizes:
            error = UsageError(f"lead must be one of the members that write, got {lead!r}")
            raise advised(error, f"they are {', '.join(sizes)}")
        return lead

    def rounds(
        self,
        query: Query,
        settings: Settings,
        *,
        referee: Referee = FREE,
        prior: Mapping[str, float] | None = None,
        schedule: Schedule | None = None,
    ) -> Iterator[Round]:
        """Ask, and get the rounds as they are agreed. The timeout of ``schedule`` does not include
        loading.

        ``referee`` judges texts under the query's constraint, if it has one.
        """
        probes = self.loaded().result()
        loop = loop_of(settings)(
            query, settings, self.panel(probes, settings, prior, query.kinds), referee
        )
        return drive(loop, query.id, self.members, self._scheduled(schedule))

    async def arounds(
        self,
        query: Query,
        settings: Settings,
        *,
        referee: Referee = FREE,
        prior: Mapping[str, float] | None = None,
        schedule: Schedule | None = None,
    ) -> AsyncIterator[Round]:
        """``rounds`` for asyncio."""
        probes = await asyncio.wrap_future(self.loaded())
        loop = loop_of(settings)(
            query, settings, self.panel(probes, settings, prior, query.kinds), referee
        )
        driven = adrive(loop, query.id, self.members, self._scheduled(schedule))
        try:
            async for item in driven:
                yield item
        finally:
            await driven.aclose()

    def _scheduled(self, schedule: Schedule | None) -> Schedule:
        return replace(schedule or Schedule(), admission=self.admission)
