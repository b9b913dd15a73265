"""The members of one ensemble, loaded once, and the way to ask them a question."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import aclosing, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ..core.ballot import largest
from ..core.consensus import answers
from ..core.member import Member, Probe
from ..core.options import Settings
from ..core.panel import Panel
from ..core.referee import FREE, Referee
from ..core.round import Departure, Round
from ..core.rounds import Loop, rounds
from ..core.values import BUDGET, WRONG_SETTINGS, Failure, Panelist, Query
from ..errors import (
    EnsembleError,
    MemberError,
    SpecFuseError,
    UsageError,
    advised,
    emptied,
    message_of,
    notes_in,
)
from . import limits
from .breaker import PAUSE_S, Breaker
from .calls import Calls, Task
from .drive import Admission, adrive, drive

if TYPE_CHECKING:
    from .checker import Checker

log = logging.getLogger("langchain_specfuse")
exits = logging.getLogger("langchain_specfuse.exits")
"""Who has left an answer. The command line shows that in another way, and turns it off."""

LOADS = Calls("loading", lambda: 1, in_new_threads=True)
"""Members load one after another, those of several ensembles too. A thread that has tried a model
ends: OpenMP keeps threads for each living thread that has computed and, once these are more than
the cores, waits in a way that makes each pass of llama.cpp take twice as long."""
SHOWN = 400
"""At most this many characters of an error are shown."""


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    """A call that waits until members are loaded."""

    needed: Callable[[], Sequence[str]]
    """The names of these members; they may change when one cannot be loaded."""
    future: Future[dict[str, Probe]]
    settings: Settings | None = None
    """Of the answer that begins then, if there is one."""


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
        self.breaker = Breaker()
        self._lock = threading.RLock()
        self._probes: dict[str, Probe] = {}
        """What each loaded member can do."""
        self._failed: dict[str, BaseException] = {}
        """Why members could not be loaded when this was last tried."""
        self._reported: dict[str, float] = {}
        """The members whose failed load an answer has reported -> when, by ``time.monotonic()``."""
        self._waiting: list[_Waiting] = []
        self._loading: Task | None = None
        """The load that the next ones wait for."""
        self._loads_since = 0.0
        """When it began or was queued, by ``time.monotonic()``."""
        self._is_early = False
        """Whether all members were asked to load early, in this series of loads."""
        self._under_way: set[str] = set()
        """The members that are being loaded."""

    # - loading

    def is_ready(self, settings: Settings | None = None) -> bool:
        """Whether the members that an answer with these settings begins with are loaded; without
        settings, whether all members are."""
        return set(self._needed(settings)) <= self._probes.keys()

    def load(self, settings: Settings | None = None) -> None:
        """Start loading if necessary, without waiting for it (see ``is_ready``)."""
        if not self.is_ready(settings):
            self.loaded(settings)

    def loaded(self, settings: Settings | None = None) -> Future[dict[str, Probe]]:
        """What each member can do, once the members that an answer with these settings begins with
        (without settings: all) are loaded. Starts loading if necessary. Members in reserve are
        loaded afterwards. A failed load is tried again, in the background if another member can
        lead.
        """
        order = [] if settings is None else self.order(settings)
        return self._loaded(lambda: self._needed(settings), self._tried(order), settings)

    def _tried(self, order: Sequence[str]) -> list[str]:
        """The members whose failed load is tried again before the answer begins. ``order``: the
        lead and its reserve; empty if all members take part."""
        if not order:
            return list(self.members)
        if any(name in self._probes for name in order):
            # No answer waits for a lead that could not be reached.
            return [name for name in order[:1] if not self._is_unreached(name)]
        return list(order)

    def _is_unreached(self, name: str) -> bool:
        """Whether the member could not be loaded for a reason that may pass, unlike wrong settings
        and missing files."""
        error = self._failed.get(name)
        return isinstance(error, MemberError) and error.kind != "not_found"

    def _is_passed_over(self, name: str) -> bool:
        """Whether others take the place of this member because it has failed lately. Wrong settings
        are an error instead."""
        is_wrong = name in self._failed and not self._is_unreached(name)
        is_paused = self.breaker.is_paused(name) or _is_away(self.members[name])
        return is_paused and not is_wrong

    def _needed(self, settings: Settings | None) -> list[str]:
        """The members that must be loaded before an answer with these settings begins."""
        order = [] if settings is None else self.order(settings)
        if not order:
            return list(self.members)
        # A lead that cannot be reached is replaced; wrong settings of a member are an error.
        loadable = [name for name in order if not self._is_unreached(name)]
        return loadable[:1] or order

    def _loaded(
        self,
        needed: Callable[[], Sequence[str]],
        tried: Sequence[str],
        settings: Settings | None = None,
    ) -> Future[dict[str, Probe]]:
        """What each member can do, once the ``needed`` ones are loaded. If the last load of one of
        the ``tried`` members has failed, it is loaded again."""
        future: Future[dict[str, Probe]] = Future()
        future.set_running_or_notify_cancel()
        with self._lock:
            for name in tried:
                self._failed.pop(name, None)
            self._waiting.append(_Waiting(needed, future, settings))
        self._settle()
        return future

    def _settle(self) -> None:
        """Complete the futures of calls whose members are loaded or cannot be loaded, and keep the
        loading thread running while there is anything to load."""
        done: list[tuple[Future[dict[str, Probe]], BaseException | None]] = []
        with self._lock:
            waiting, self._waiting = self._waiting, []
            for call in waiting:
                names = call.needed()
                failed = [name for name in names if name in self._failed]
                if failed:
                    done.append((call.future, self._error_of(failed, names, call.settings)))
                elif set(names) <= self._probes.keys():
                    done.append((call.future, None))
                else:
                    self._waiting.append(call)
            probes = {name: self._probes[name] for name in self.members if name in self._probes}
            self._load_next()
        for future, error in done:
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(probes)

    def _error_of(
        self, failed: Sequence[str], needed: Sequence[str], settings: Settings | None
    ) -> BaseException:
        """The error of an answer that cannot begin because these of the ``needed`` members cannot
        be loaded."""
        errors = [self._failed[name] for name in failed]
        if len(failed) == len(needed):
            return _joined(errors)
        name, error = failed[0], emptied(errors[0])
        if settings is None or not isinstance(error, MemberError) or not self._is_unreached(name):
            return error
        advice = f"all members take part in this answer; to go on without {name}, leave it out"
        others = [other for other in self.members if other in self.drafting - self._failed.keys()]
        can_lead = settings.method.segment == "draft" and settings.method.margin == math.inf
        if others and can_lead and name in self.drafting:
            advice += f", or let another member lead: lead={others[0]!r}"
        # A copy, because the advice is for this answer, and others share the error of the load.
        own = MemberError(*error.args)
        vars(own).update(vars(error))
        own.__cause__ = error.__cause__
        return advised(own, advice)

    def _next(self) -> str | None:
        """The member to load next: first those that a call waits for, then the reserve."""
        wanted = [name for call in self._waiting for name in call.needed()]
        for name in (*wanted, *self.members):
            error = self._failed.get(name)
            can_retry = isinstance(error, MemberError) and not self.breaker.is_paused(name)
            is_new = name not in self._probes and name not in self._under_way
            if is_new and (error is None or can_retry):
                return name
        return None

    def _load_next(self) -> None:
        """Have the next member loaded, unless one is being loaded. The caller holds the lock."""
        if self._loading is not None and time.monotonic() > self._loads_since + limits.LOADS_S:
            LOADS.close(self._loading)  # the next one need not wait for it any more
            self._loading = None
        name = None if self._loading else self._next()
        if name is None:
            self._is_early = self._is_early and self._loading is not None
            return
        self._loading = Task(partial(self._load, name), partial(self._note_load, name))
        self._loads_since = time.monotonic()
        LOADS.begin(self._loading)

    def _load(self, name: str) -> None:
        with self._lock:
            is_first, self._is_early = not self._is_early, True
            self._under_way.add(name)
        try:
            if is_first:
                self._load_early()
            self.breaker.try_again(name)
            probe = _probe_of(self.members[name])
        # the loading thread hands the error to the calls that wait for the member
        except BaseException as error:
            self._note_failure(name, _as_failure(name, error))
        else:
            self._probes[name] = probe
            self._failed.pop(name, None)
            self.breaker.worked(name)
        with self._lock:
            self._under_way.discard(name)
            self._loading = None
        self._settle()

    def _note_load(self, name: str, failure: Failure | None) -> None:
        """The load has ended, or no thread could be started for it."""
        if failure is None:
            return
        with self._lock:
            self._loading = None
        self._note_failure(name, MemberError(failure.message, member=name))
        self._settle()

    def _load_early(self) -> None:
        """Let members that load elsewhere load in parallel."""
        for member in self.members.values():
            try:
                getattr(member, "start_loading", lambda: None)()
            except Exception:  # `probe` shows whether it loads
                log.info("%s could not start to load early", member.name, exc_info=True)

    def _note_failure(self, name: str, error: BaseException) -> None:
        self._failed[name] = emptied(error)
        self._reported.pop(name, None)
        if isinstance(error, MemberError):
            # An error of any kind: without a pause, the member would be loaded again immediately.
            is_slow = time.monotonic() - self._loads_since > PAUSE_S
            self.breaker.failed(name, "timeout" if is_slow else "error")
        with self._lock:
            is_raised = any(name in call.needed() for call in self._waiting)
        if not is_raised:  # the others go on without it
            log.warning("%s cannot be loaded: %s", name, error)

    # - who takes part

    def order(self, settings: Settings) -> list[str]:
        """The member that leads, then those in reserve, in the order in which they take over.
        Members that have failed recently come last. Empty if all members take part."""
        return self._ordered(self._wanted(settings))

    def _ordered(self, wanted: Sequence[str]) -> list[str]:
        return sorted(wanted, key=self._is_passed_over)

    def _wanted(self, settings: Settings) -> list[str]:
        """``order`` if no member had failed."""
        if settings.method.segment != "draft" or settings.method.margin != math.inf:
            return []
        lead = self.lead(settings)
        if lead is None:
            return []
        prior = settings.method.prior or {}
        others = [name for name in self.members if name in self.drafting - {lead}]
        others.sort(key=lambda name: -prior.get(name, 1.0))
        return [lead, *others]

    def has_one_writer(self, settings: Settings) -> bool:
        """Whether one member writes an answer with these settings, as far as that is known."""
        is_alone = settings.method.segment == "draft" and len(self.drafting) == 1
        return is_alone or bool(self._wanted(settings))

    def lead(self, settings: Settings) -> str | None:
        """The member that leads: the named one or, with ``"auto"``, the one that is by far the
        largest. Without one, the first leads if a chat model is among the writers (it votes by
        extra requests) or if a vote could decide nothing, unless a verifier can score."""
        writers = [name for name in self.members if name in self.drafting]
        lead = settings.lead
        if len(writers) < 2:
            return None
        if settings.method.margin is None:
            return None
        if lead == "auto":
            return self._largest_or_first(writers)
        if lead is not None and lead not in writers:
            error = UsageError(f"lead must be one of the members that write, got {lead!r}")
            raise advised(error, f"they are {', '.join(writers)}")
        return lead

    def natives(self) -> list[str]:
        """The members that write and answer the caller's own request, as far as that is known."""
        known = {name: self._known(name) for name in self.members if name in self.drafting}
        return [name for name, probe in known.items() if probe is not None and probe.native]

    def _largest(self, writers: Sequence[str]) -> str | None:
        known = {name: self._known(name) for name in writers}
        return largest({name: probe.size if probe else 0 for name, probe in known.items()})

    def _largest_or_first(self, writers: Sequence[str]) -> str | None:
        known = {name: self._known(name) for name in self.members}
        lead = self._largest(writers)
        if lead is not None:
            return lead
        ballots = {name for name, probe in known.items() if probe and probe.ballots}
        is_free = not ballots & set(writers)
        if not is_free and self.drafting == known.keys():
            return writers[0]
        if None in known.values():
            return None
        voting = {name for name, probe in known.items() if probe and probe.scores} - ballots
        has_verifier = not voting <= set(writers)
        return None if has_verifier or (is_free and len(voting) > 1) else writers[0]

    def _known(self, name: str) -> Probe | None:
        """What is known about a member; None if it must be loaded first."""
        if name in self._probes:
            return self._probes[name]
        preview: Probe | None = getattr(self.members[name], "preview", lambda: None)()
        return preview if preview is not None and preview.ballots else None

    def panel(
        self,
        settings: Settings,
        kinds: frozenset[str] = frozenset(),
        began: float = -math.inf,
    ) -> Panel:
        """The panel with which an answer begins. ``kinds``: what the conversation holds besides
        text. ``began``: when the question was asked, by ``time.monotonic()``."""
        wanted = self._wanted(settings)
        if wanted:
            order = self._ordered(wanted)
            # the order may have changed since the lead was loaded
            loaded = [name for name in order if name in self._probes]
            self._refuse_blind([name for name in loaded if name == self.lead(settings)], kinds)
            able = [name for name in loaded if self._reads(name, kinds)]
            self._refuse_blind([] if able else loaded, kinds)
            lead = able[0]
            absent = self._absent(wanted[: wanted.index(lead)], began)
            gone = {lead, *(departure.member for departure in absent)}
            reserve = [name for name in order if name not in gone]
            self.breaker.try_again(lead)
            return Panel.of([self._panelist(lead)], lead=lead, reserve=reserve, absent=absent)
        self._refuse_blind([name for name in self.members if name in self.drafting], kinds)
        # A verifier that cannot read all of the conversation has no vote, because it would prefer
        # the draft that sounds more likely without it.
        present = self._present()
        panelists = [self._panelist(name) for name in present if self._reads(name, kinds)]
        leader = self.lead(settings)
        return Panel.of(panelists, settings.method.prior, leader if leader in present else None)

    def _present(self) -> list[str]:
        """The members that can work now; all if none of these could write."""
        present = [name for name in self.members if not _is_away(self.members[name])]
        return present if self.drafting.intersection(present) else list(self.members)

    def _absent(self, names: Sequence[str], began: float) -> list[Departure]:
        """Of these members, which should have led, those that could not be loaded. As after any
        other failure, answers to questions that are asked later do not report it again."""
        absent = []
        for name in names:
            error = self._failed.get(name)
            if error is None or name in self._probes or not self._is_unreached(name):
                continue
            if began <= self._reported.setdefault(name, time.monotonic()):
                failure = Failure.of(error, message_of(error))
                departure = Departure(name, failure.kind, failure.message, 1, failure.cause)
                absent.append(departure)
        return absent

    def _panelist(self, name: str) -> Panelist:
        probe = self._probes[name]
        drafts = name in self.drafting
        return Panelist(name, drafts, probe.scores, probe.excludes, probe.size, probe.native)

    def _reads(self, name: str, kinds: frozenset[str]) -> bool:
        return kinds <= set(self._probes[name].takes)

    def _refuse_blind(self, names: Sequence[str], kinds: frozenset[str]) -> None:
        """Refuse a conversation that one of these members cannot read."""
        unable = [name for name in names if not self._reads(name, kinds)]
        if unable:
            error = UsageError(
                f"the conversation holds more than text ({', '.join(sorted(kinds))}), which "
                f"{', '.join(unable)} cannot read"
            )
            advice = "describe it in words, or let only members draft that accept it: chat models"
            raise advised(error, advice)

    def _wake(self, name: str, kinds: frozenset[str]) -> Future[Panelist]:
        """A member in reserve, once it is loaded and if it can read the conversation."""
        woken: Future[Panelist] = Future()

        def complete(loading: Future[dict[str, Probe]]) -> None:
            try:
                loading.result()
                self._refuse_blind([name], kinds)
                panelist = self._panelist(name)
            # the loading thread hands the error to the answer that waits for the member
            except BaseException as error:
                self._reported.setdefault(name, time.monotonic())
                woken.set_exception(error)
            else:
                woken.set_result(panelist)

        self._loaded(lambda: [name], [name]).add_done_callback(complete)
        return woken

    # - asking

    def rounds(
        self,
        query: Query,
        settings: Settings,
        *,
        referee: Referee = FREE,
        checker: Checker | None = None,
        began: float | None = None,
    ) -> Iterator[Round]:
        """Ask, and get the rounds as they are agreed. The ``timeout`` of the settings does not
        include loading.

        ``referee`` judges texts under the query's constraint, if it has one. ``checker`` runs the
        checks of the settings. ``began``: when the question was asked, by ``time.monotonic()``, if
        members may have been loaded for it since.
        """
        began = time.monotonic() if began is None else began
        self.loaded(settings).result()
        panel = self.panel(settings, query.kinds, began)
        loop = _loop(query, settings, panel, referee)
        wake = partial(self._wake, kinds=query.kinds)
        driven = drive(loop, self.members, settings, self.admission, checker, wake)
        with closing(driven), self._failures_noted(panel):
            for round in driven:
                self._note(round, panel)
                yield round

    async def arounds(
        self,
        query: Query,
        settings: Settings,
        *,
        referee: Referee = FREE,
        checker: Checker | None = None,
        began: float | None = None,
    ) -> AsyncIterator[Round]:
        """``rounds`` for asyncio."""
        began = time.monotonic() if began is None else began
        loading = self.loaded(settings)
        if loading.done():  # the usual case
            loading.result()
        else:
            await asyncio.wrap_future(loading)
        panel = self.panel(settings, query.kinds, began)
        loop = _loop(query, settings, panel, referee)
        wake = partial(self._wake, kinds=query.kinds)
        driven = adrive(loop, self.members, settings, self.admission, checker, wake)
        async with aclosing(driven):
            with self._failures_noted(panel):
                async for round in driven:
                    self._note(round, panel)
                    yield round

    def _note(self, round: Round, panel: Panel) -> None:
        """Report to the breaker which members have failed in this round and which have replied.
        ``panel``: the one with which the answer began."""
        for gone in round.left:
            # A conversation that a member cannot read says nothing about the member. A failed load
            # has been reported, and the member may be loaded by now.
            if not isinstance(gone.cause, UsageError) and gone not in panel.absent:
                self.breaker.failed(gone.member, gone.kind)
                _log_exit(gone)
        for name in {*round.drafts, *round.refusals}:
            self.breaker.worked(name, is_done=bool(round.finish))

    @contextmanager
    def _failures_noted(self, panel: Panel) -> Iterator[None]:
        """If the answer fails, report to the breaker which members have failed."""
        try:
            yield
        except EnsembleError as error:
            absent = {gone.member for gone in panel.absent}
            for failure in error.failures:
                if not isinstance(failure.__cause__, UsageError) and failure.member not in absent:
                    self.breaker.failed(failure.member, failure.kind)
            raise


def _log_exit(gone: Departure) -> None:
    """Say that a member has failed. Because the others write its answers, nobody might notice. The
    provider's message is left out: it may quote the question."""
    if gone.kind in WRONG_SETTINGS:
        advice = notes_in(gone.cause) or [f"-> {WRONG_SETTINGS[gone.kind]}"]
        log.warning(
            "the settings of %s look wrong (%s): until they are corrected, the other members write "
            "without it\n%s",
            gone.member,
            gone.kind,
            "\n".join(advice),
        )
    elif gone.kind not in ("exit", BUDGET):
        origin = gone.cause and (gone.cause.__cause__ or gone.cause)
        is_foreign = origin is not None and not isinstance(origin, SpecFuseError)
        kind = f"{gone.kind}, {type(origin).__name__}" if is_foreign else gone.kind
        exits.warning("%s left an answer (%s); the other members continue", gone.member, kind)


def _loop(query: Query, settings: Settings, panel: Panel, referee: Referee) -> Loop:
    """The loop that decides on the answer: segment by segment, or as a whole."""
    if settings.method.segment == "answer":
        return answers(query, settings, panel, referee)
    return rounds(query, settings, panel, referee)


def _joined(errors: Sequence[BaseException]) -> BaseException:
    """The error if none of these members can be loaded."""
    failures = tuple(emptied(error) for error in errors if isinstance(error, MemberError))
    if len(failures) < 2:
        return emptied(errors[0])
    reasons = "; ".join(f"{failure.member}: {failure.message}" for failure in failures)
    error = EnsembleError(f"no member can be loaded: {reasons}", failures=failures)
    for note in notes_in(*failures):
        error.add_note(note)
    return error


def _as_failure(name: str, error: BaseException) -> BaseException:
    """The error of a load. One that may pass, such as memory that other programs hold now, becomes
    the member's failure: another member can lead meanwhile. Any other error stays as it is."""
    passing = (RuntimeError, MemoryError, ConnectionError, TimeoutError)
    if not isinstance(error, passing) or isinstance(error, NotImplementedError):
        return error
    failure = MemberError(f"{type(error).__name__}: {error}"[:SHOWN], member=name)
    failure.__cause__ = error
    for note in notes_in(error):
        failure.add_note(note)
    return advised(failure, "the error is the member's own; try it alone: members=[...]")


def _is_away(member: Member) -> bool:
    """Whether the member says that it cannot work for now."""
    return bool(getattr(member, "is_away", False))


def _probe_of(member: Member) -> Probe:
    """What the member reports about itself."""
    probe: object = member.probe()
    if isinstance(probe, Probe):
        return probe
    error = MemberError(
        f"probe() of {member.name} must return a Probe, got {type(probe).__name__}",
        member=member.name,
    )
    raise advised(error, "from langchain_specfuse.core.member import Probe")
