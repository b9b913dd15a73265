"""Run an evaluation: ask every system every question, grade the answers and store each at once.

Up to ``at_once`` questions of a system are under way together, so that the workers form batches.
Systems run one after another, so that none slows down another. A question that has a result is not
asked again; a question that failed is.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TextIO

from .._version import __version__
from ..chat.functions import check_id
from ..core.agreed import AgreedTokens
from ..core.member import Member
from ..core.options import Settings
from ..core.round import Round
from ..engine.ensemble import Ensemble
from ..engine.worker import call
from ..errors import CheckError, SpecFuseError, UsageError, advised, amount, message_of
from ..show.terminal import visible
from .asking import asked
from .graders import Grade, Question
from .results import Graded, Results
from .tasks import Task, digest

AT_ONCE = 16
ENSEMBLE = "ensemble"
_LIMITS = {"timeout", "max_concurrency", "max_waiting"}
"""Settings that never change an answer, but may prevent one."""
_OF_CHECKS = {"checks", "redrafts", "feedback", "on_failure"}
"""Settings that change no answer if there are no checks."""


@dataclass(frozen=True, slots=True)
class System:
    """Members and settings that answer questions together."""

    name: str
    members: tuple[str, ...]
    settings: Settings
    verifiers: tuple[str, ...] = ()

    @property
    def alone(self) -> bool:
        """Whether one member answers by itself."""
        return len(self.members) == 1 and not self.verifiers and self.settings.method.samples == 1

    def as_dict(self) -> dict[str, Any]:
        """The system as plain data."""
        return {
            "name": self.name,
            "members": list(self.members),
            "verifiers": list(self.verifiers),
            "settings": {
                **self.settings.model_dump(exclude={"checks"}),
                "checks": [check.name for check in self.settings.checks],
            },
        }

    def fingerprint(self, identities: Mapping[str, Any]) -> str:
        """A hash of everything that can change an answer. ``identities``: see ``identity``."""
        members = [identities[name] for name in self.members]
        verifiers = [identities[name] for name in self.verifiers]
        settings = self.settings.model_dump(exclude=_LIMITS | _OF_CHECKS)
        if self.settings.checks:
            settings |= self.settings.model_dump(include=_OF_CHECKS - {"checks"})
            settings["checks"] = [check_id(check) for check in self.settings.checks]
        return digest([members, verifiers, self.name, settings])


def alone_and_together(
    members: Iterable[str], settings: Settings, verifiers: Iterable[str] = ()
) -> tuple[System, ...]:
    """Each member alone, and the ensemble of all, if there are two members or a verifier.

    >>> [system.name for system in alone_and_together(["a", "b"], Settings())]
    ['a', 'b', 'ensemble']
    """
    names, judges = tuple(members), tuple(verifiers)
    singles = tuple(System(name, (name,), settings) for name in names)
    if len(names) == 1 and not judges:
        return singles
    if ENSEMBLE in names:
        error = UsageError(f"no member may be called {ENSEMBLE!r} in an evaluation")
        raise advised(error, "give that member another name")
    return (*singles, System(ENSEMBLE, names, settings, verifiers=judges))


@dataclass(frozen=True, slots=True)
class Ask:
    """One question for one system."""

    key: str
    """The key of its result."""
    question: Question
    seed: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of an evaluation: each system answers each question once per seed."""

    task: Task
    systems: tuple[System, ...]
    members: Mapping[str, Member]
    seeds: tuple[int, ...] = (0,)
    at_once: int = AT_ONCE
    """How many questions of one system are under way together."""

    def asks(self, system: System) -> list[Ask]:
        """Everything that this system is asked."""
        identities = {name: identity(member) for name, member in self.members.items()}
        mark = digest([__version__, system.fingerprint(identities)])
        return [
            Ask(digest([mark, self.task.fingerprint(question), seed]), question, seed)
            for seed in self.seeds
            for question in self.task.questions
        ]


Watch = Callable[[System, int, int], None]
"""Called after every result with the system, how many answers it has, and out of how many."""


def identity(member: Member) -> Any:
    """Everything that affects this member's output, as plain data."""
    spec = getattr(member, "spec", None)
    return [member.name, dict(spec) if isinstance(spec, Mapping) else type(member).__name__]


def run(plan: Plan, results: Results, *, watch: Watch | None = None) -> list[Graded]:
    """Ask all questions that have no result yet or have failed, and return the plan's graded
    answers."""

    def work() -> list[Graded]:
        for system in plan.systems:
            plan.asks(system)  # reads the files of checks, before the event loop runs
        return asyncio.run(_run(plan, results, watch or _ignore))

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return work()
    with ThreadPoolExecutor(1) as pool:  # the cells of a notebook run inside a loop
        return pool.submit(work).result()


def _ignore(system: System, done: int, total: int) -> None:
    pass


async def _run(plan: Plan, results: Results, watch: Watch) -> list[Graded]:
    for system in plan.systems:
        await _ask_all(plan, system, results, watch)
    asks = itertools.chain.from_iterable(plan.asks(system) for system in plan.systems)
    return results.answers(ask.key for ask in asks)


async def _ask_all(plan: Plan, system: System, results: Results, watch: Watch) -> None:
    """Ask this system all questions without a result. A usage error stops the evaluation."""
    asks = plan.asks(system)
    complete = {
        graded.key for graded in results.answers(ask.key for ask in asks) if not graded.error
    }
    remaining = [ask for ask in asks if ask.key not in complete]
    done = itertools.count(len(complete))
    watch(system, next(done), len(asks))
    if not remaining:
        return
    ensemble = Ensemble(
        [plan.members[name] for name in system.members],
        [plan.members[name] for name in system.verifiers],
    )
    await asyncio.wrap_future(ensemble.loaded())
    for member in ensemble.members.values():
        # Cached prompts of an earlier system would make this one look faster.
        if drop := getattr(member, "drop_prefixes", None):
            await asyncio.wrap_future(on_worker(member, drop))
    limit = asyncio.Semaphore(plan.at_once)

    async def answer(ask: Ask) -> None:
        async with limit:
            results.add(await _graded(plan, system, ensemble, ask))
        watch(system, next(done), len(asks))

    try:
        async with asyncio.TaskGroup() as group:
            for ask in remaining:
                group.create_task(answer(ask))
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def _graded(plan: Plan, system: System, ensemble: Ensemble, ask: Ask) -> Graded:
    """Ask one question and grade the answer."""
    seed = system.settings.sampling.seed + ask.seed
    settings = system.settings.model_copy(update={"seed": seed})
    turns = ask.question.turns
    answer, failure, note = "", "", "failed"
    rounds: list[Round] = []
    ended: CheckError | None = None
    try:
        stream = asked(ensemble, turns, settings)
        async with aclosing(stream):  # type: ignore[type-var]
            async for round in stream:
                rounds.append(round)
                answer += round.text
    except UsageError:
        raise
    except CheckError as error:
        ended = error
        failure, note = f"CheckError: {error.message}", f"{error.check}: {error.reason}"
    except (SpecFuseError, TimeoutError) as error:
        failure = f"{type(error).__name__}: {message_of(error)}"
    if failure:
        grade = Grade(0.0, note)
    else:
        # in a thread, because a grader may be slow
        grade = await asyncio.to_thread(plan.task.grade, ask.question, answer)
    return Graded(
        ask.key,
        system.name,
        ask.question.id,
        ask.seed,
        answer,
        grade.score,
        grade.note,
        failure,
        finish=(rounds[-1].finish or "") if rounds else "",
        tokens=tokens_of(rounds),
        rounds=len(rounds),
        drafts=sum(len(round.drafts) for round in rounds),
        passes=sum(map(passes_of, rounds)),
        seconds=seconds_of(rounds),
        checks=counts_of(rounds, ended),
    )


def counts_of(rounds: Sequence[Round], ended: CheckError | None) -> dict[str, dict[str, int]]:
    """Count what each check said about the drafts of one answer. ``ended`` is the error with which
    a check ended the answer, in a round that was never finished."""
    counts: dict[str, Counter[str]] = {}

    def count(check: str, kind: str, times: int = 1) -> None:
        counts.setdefault(check, Counter(passed=0, rejected=0, ended=0))[kind] += times

    for round in rounds:
        for check, said in round.checks.items():
            for kind, times in said.items():
                count(check, kind, times)
    if ended is not None:
        for rejection in ended.rejected:
            count(rejection["check"], "rejected")
        count(ended.check, "ended")
    elif rounds and rounds[-1].finish == "check":
        count(rounds[-1].rejected[-1].check, "ended")
    return {check: dict(said) for check, said in counts.items()}


def tokens_of(rounds: Iterable[Round]) -> int:
    """The length of the agreed text in its authors' tokens."""
    agreed = AgreedTokens()
    for round in rounds:
        agreed.add(round)
    return agreed.count()


def passes_of(round: Round) -> int:
    """The forward passes of a round: one per drafted token, including those of refused drafts, one
    per empty draft, and one per verifier that scored."""
    empty = sum(not (draft.tokens or draft.text) for draft in round.drafts.values())
    return round.drafted + empty + len(round.efforts.get("verify", {}))


def seconds_of(rounds: Sequence[Round]) -> float:
    """Seconds that all members computed for these rounds."""
    return math.fsum(
        effort.seconds
        for round in rounds
        for by_member in round.efforts.values()
        for effort in by_member.values()
    )


def on_worker(member: Member, function: Callable[[], Any]) -> Future[Any]:
    """Call a function in a thread that may use the member, while it is not at work."""
    done: Future[Any] = Future()

    def work() -> None:
        try:
            done.set_result(function())
        except BaseException as error:  # handed to the thread that waits for the result
            done.set_exception(error)

    done.set_running_or_notify_cancel()
    call(member, work)
    return done


class Progress:
    """Prints how far each system is, and how long it will still take: ``run(plan, results,
    watch=Progress(sys.stderr))``. With the names of all ``systems``, in the order in which they are
    asked, it says which of how many phases this is."""

    EVERY_S = 10.0

    def __init__(self, stream: TextIO, systems: Sequence[str] = ()) -> None:
        self._stream = stream
        self._systems = list(systems)
        self._system = ""
        self._stored = 0
        """Results of an earlier run, which say nothing about speed."""
        self._since = self._printed = time.monotonic()

    def __call__(self, system: System, done: int, total: int) -> None:
        now = time.monotonic()
        if system.name != self._system:
            self._system, self._stored, self._since = system.name, done, now
        line = f"{self._phase(system.name)}: {done} of {amount(total, 'answer')}"
        # Questions are answered side by side: the first answers say little about the others.
        if self._stored + AT_ONCE <= done < total:
            seconds = (now - self._since) / (done - self._stored) * (total - done)
            line += f", about {_duration(seconds)} left"
            if len(self._systems) > 1:
                line += " in this phase"
        if done == total or now - self._printed >= self.EVERY_S:
            self._printed = now
            print(visible(line), file=self._stream, flush=True)

    def _phase(self, name: str) -> str:
        if len(self._systems) < 2:
            return name
        return f"phase {self._systems.index(name) + 1} of {len(self._systems)}, {name}"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min"
