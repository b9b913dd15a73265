"""RayMember: any member, run by an actor of a Ray cluster. Ray places the actor by its resources
and restarts it when it dies.

A job contains everything that its reply depends on, so every process gives the same reply. Nothing
is loaded in this process.
"""

from __future__ import annotations

import logging
import os
import pickle
import re
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

from pydantic import Field

from ..core.member import Probe
from ..core.values import Draft, DraftJob, Failure, Scored, ScoreJob
from ..errors import MemberError, UsageError, advised, imported
from .arguments import checked

log = logging.getLogger("langchain_specfuse")

PLACEMENT = ("cluster", "num_cpus", "num_gpus", "resources")
"""The arguments that say where a member works."""
ATTEMPTS = 3
"""A job fails after its process has died this many times during the job. For the last attempt, each
job is sent alone, so that a job that kills its process does not make others fail."""
CONNECT_S, PLACING_S, RESTART_S, PAUSE_S = 5.0, 120.0, 60.0, 0.05
"""Time limits for reaching the cluster (Ray would try for minutes), for finding a place, and for
the restart of a dead process (after which jobs fail immediately until a process is back); and the
pause between two checks."""
Amount = Annotated[float, Field(ge=0)]
_CONNECTING = threading.Lock()


class RayMember:
    """One LLM behind an actor of a Ray cluster.

    >>> from langchain_specfuse import RayMember, ScriptedMember
    >>> member = RayMember(ScriptedMember("The sky is blue.", name="ann"))  # starts nothing yet
    >>> member
    RayMember(ScriptedMember(name='ann'), cluster='auto')

    ``member`` is any member that has not been loaded; the actor loads it. ``cluster`` is ``"auto"``
    (the one that ``RAY_ADDRESS`` names or that runs on this machine) or an address such as
    ``"10.0.0.1:6379"``. A process that is already connected to a cluster uses that cluster. The
    actor takes ``num_cpus``, ``num_gpus`` (default: one if the cluster has any; ``0.5`` lets two
    members share one) and ``resources`` of one node.
    """

    @checked()
    def __init__(
        self,
        member: Any,
        *,
        cluster: str = "auto",
        num_cpus: Amount = 1,
        num_gpus: Amount | None = None,
        resources: Mapping[str, Amount] | None = None,
    ) -> None:
        if isinstance(member, RayMember) or not hasattr(type(member), "probe"):
            error = UsageError(
                f"a RayMember hosts a member, got {member!r:.80} ({type(member).__name__})"
            )
            raise advised(
                error, "for example RayMember(TransformersMember('Qwen/Qwen2.5-7B-Instruct'))"
            )
        if cluster != "auto" and not re.fullmatch(r"[^/\s]+:\d+", cluster):
            error = UsageError(f"cluster must be 'auto' or an address of Ray, got {cluster!r}")
            raise advised(
                error,
                "for example '10.0.0.1:6379', from a machine of the cluster (no ray:// client)",
            )
        self.name: str = member.name
        self._member = member
        self.cluster = cluster
        self.num_cpus = num_cpus
        self.num_gpus = num_gpus
        self.resources = dict(resources or {})
        self._process: _Process | None = None
        self._needed: dict[str, float] = {}  # the resources that the actor takes
        self._ready: Probe | None = None
        self._lock = threading.RLock()  # tokens are counted from any thread

    def __repr__(self) -> str:
        return f"RayMember({self._member!r}, cluster={self.cluster!r})"

    def __reduce__(self) -> Any:
        # A copy starts an actor of its own.
        return partial(RayMember, **{name: getattr(self, name) for name in PLACEMENT}), (
            self._member,
        )

    def __getattr__(self, name: str) -> Any:
        # What only some members have is looked up in the hosted member's class, because the member
        # is not loaded in this process.
        hosted = type(vars(self).get("_member"))
        if hasattr(hosted, name):
            if name in ("token_ids", "token_count"):
                return partial(self._call, name)
            if name in ("spec", "preview"):
                return getattr(self._member, name)
        if name == "last_sign" and hasattr(hosted, "note_sign"):
            # It watches its jobs itself, so no sign is needed while its process is up.
            return time.monotonic() if self.place else 0.0
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def device(self) -> str:
        return f"ray:{self.name}:{id(self)}"  # a worker of its own: it computes elsewhere

    @property
    def place(self) -> tuple[str, int] | None:
        """Where it runs: the node's address and the process there; None if not running."""
        return self._process.place if self._process else None

    def probe(self) -> Probe:
        with self._lock:
            if self._ready is not None and not _ray().is_initialized():
                self.unload()  # ray.shutdown() ended the actor
            if self._ready is None:
                self.start_loading()
                try:
                    self._ready = self._loaded()
                except BaseException:
                    self.unload()
                    raise
                log.info("%s: %s", self.name, self._ready.detail)
            return self._ready

    def start_loading(self) -> None:
        """Start the actor and do not wait: several members load at the same time."""
        with self._lock:
            self._process = self._process or self._started()

    def draft(self, jobs: Sequence[DraftJob]) -> list[Draft | Failure]:
        return self._each("draft", jobs)

    def score(self, jobs: Sequence[ScoreJob]) -> list[Scored | Failure]:
        return self._each("score", jobs)

    def forget(self, query_id: str) -> None:
        if self._process is not None:
            self._process.send("forget", query_id)  # no reply is needed

    def unload(self) -> None:
        """End the actor. The next job starts a new one."""
        if self._process is not None:
            self._process.end()
        self._process = self._ready = None

    def _each(self, work: str, jobs: Sequence[Any]) -> list[Any]:
        self.probe()
        replies: list[Any] = [None] * len(jobs)
        for attempt in range(ATTEMPTS):
            waiting = [at for at, reply in enumerate(replies) if reply is None]
            if not waiting:
                break
            groups = [waiting]
            if attempt == ATTEMPTS - 1:
                groups = [[at] for at in waiting]
            for group in groups:
                batch = self._answer(work, [jobs[at] for at in group]) or ()
                for at, reply in zip(group, batch, strict=False):
                    replies[at] = reply
        for at, reply in enumerate(replies):
            if reply is None:
                replies[at] = Failure("error", self._trouble(work))
        return replies

    def _answer(self, method: str, *arguments: Any) -> Any:
        """What the member returns; None if its process died and was not restarted in time."""
        process = self._process
        assert process is not None
        while not process.is_up():
            if time.monotonic() - process.down_since > RESTART_S:
                return None
            time.sleep(PAUSE_S)
        return process.receive(process.send(method, *arguments))

    def _trouble(self, work: str) -> str:
        reason = self._process.trouble if self._process else ""
        if self.place:
            return f"it died over this {work}: {reason}"
        return f"its process died over this {work}, and is not back yet: {reason}"

    def _call(self, method: str, *arguments: Any) -> Any:
        self.probe()
        for _ in range(ATTEMPTS):
            result = self._answer(method, *arguments)
            if result is not None:
                return result
        raise MemberError(self._trouble(method), member=self.name)

    def _started(self) -> _Process:
        with _CONNECTING:
            ray = _connected(self.cluster, self.name)
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        gpus = self.num_gpus
        if gpus is None:
            gpus = float(any(node.get("GPU", 0) >= 1 for node in nodes))
        self._needed = {"CPU": self.num_cpus, "GPU": gpus, **self.resources}
        if not any(_fits(self._needed, node) for node in nodes):
            there = " | ".join(map(_shown, nodes)) or "none"
            error = UsageError(
                f"{self.name} wants {_shown(self._needed)}, which no node has; there are {there}"
            )
            advice = "ask for less (num_cpus=0.5, num_gpus=0.5, resources=), or add nodes first"
            raise advised(error, advice)
        actor = ray.remote(_Actor).options(
            num_cpus=self.num_cpus,
            num_gpus=gpus,
            resources=self.resources,
            max_restarts=-1,
            # RayMember sends jobs again itself, in the end alone: a retry may kill the new process.
            max_task_retries=0,
            scheduling_strategy="SPREAD",
        )
        try:
            return _Process(ray, partial(actor.remote, self._member))
        except (TypeError, AttributeError, pickle.PicklingError) as error:
            unsent = UsageError(
                f"{self.name} cannot be sent to another process: {str(error).splitlines()[0]}"
            )
            advice = "pass a member that is named by its model and has not been loaded"
            raise advised(unsent, advice) from error

    def _loaded(self) -> Probe:
        """What the member can do, once it has its place and has loaded."""
        ray, process = _ray(), self._process
        assert process is not None
        ray.wait([process.ping], timeout=PLACING_S)
        if not process.is_up():
            why = process.trouble or f"no place was free within {PLACING_S:g} s"
            wants, free = _shown(self._needed), _shown(ray.available_resources())
            message = f"Ray did not start {self.name} ({why}): it wants {wants}; free are {free}"
            error = MemberError(message, member=self.name)
            raise advised(
                error,
                "ask for less, stop other programs there, or install the same versions on every "
                "node",
            )
        probe: Probe | None = process.receive(process.probe)
        if probe is None or process.place is None:
            died = MemberError(f"{self.name}: {self._trouble('load')}", member=self.name)
            raise advised(died, "is there enough memory for its weights on that node?")
        return replace(probe, detail=f"{probe.detail}; by Ray at {process.place[0]}".lstrip("; "))


class _Process:
    """One actor. Ray restarts its process; an actor that Ray does not restart is replaced."""

    def __init__(self, ray: Any, start: Callable[[], Any]) -> None:
        self._ray = ray
        self._start = start
        self._lock = threading.Lock()
        self._actor = start()
        self.ping = self._actor.where.remote()  # answered as soon as the process is up
        self.probe = self.send("probe")
        self.place: tuple[str, int] | None = None  # node and process; None: not up
        self.down_since = time.monotonic()
        self.trouble = ""
        """Why it died."""

    def is_up(self) -> bool:
        """Whether the process runs. Notices a restart."""
        with self._lock:
            if self.place is None and self._ray.wait([self.ping], timeout=0)[0]:
                try:
                    self.place = self._ray.get(self.ping)
                except self._ray.exceptions.RayError as error:
                    self._note_death(error)
            return self.place is not None

    def send(self, method: str, *arguments: Any) -> Any:
        return self._actor.call.remote(method, *arguments)

    def receive(self, sent: Any) -> Any:
        """What the member returned, or raised; None: its process died first."""
        try:
            return self._ray.get(sent)
        except self._ray.exceptions.RayTaskError as failed:
            raise failed.cause from None
        except self._ray.exceptions.RayError as failed:
            with self._lock:
                log.warning("a process of a Ray member at %s died: %s", self.place, failed)
                self.place, self.down_since = None, time.monotonic()
                self._note_death(failed)
            return None

    def end(self) -> None:
        if self._ray.is_initialized():
            self._ray.kill(self._actor)

    def _note_death(self, error: Exception) -> None:
        self.trouble = f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
        if isinstance(error, self._ray.exceptions.ActorDiedError):  # Ray does not restart it
            self._actor = self._start()
        self.ping = self._actor.where.remote()


class _Actor:
    """What Ray runs: a member that loads at its first job, also in a process that replaces a dead
    one."""

    def __init__(self, member: Any) -> None:
        self._member = member
        self._probe: Probe | None = None

    def where(self) -> tuple[str, int]:
        return _ray().util.get_node_ip_address(), os.getpid()

    def call(self, method: str, *arguments: Any) -> Any:
        try:
            if self._probe is None and method != "forget":
                self._probe = self._member.probe()
            if method == "probe":
                return self._probe
            result: Any = getattr(self._member, method)(*arguments)
        except Exception as error:
            raise _picklable(error) from None
        if method not in ("draft", "score"):
            return result
        replies = list(result)
        for at, reply in enumerate(replies):
            if isinstance(reply, Failure):
                replies[at] = replace(reply, cause=_picklable(reply.cause))
        return replies


def _picklable(error: Any) -> Any:
    try:
        return pickle.loads(pickle.dumps(error))
    except Exception:
        return MemberError(f"{type(error).__name__}: {error}", kind=getattr(error, "kind", "error"))


# --- the cluster ----------------------------------------------------------------------------------


def _ray() -> Any:
    return imported("ray", "a member on a cluster", "ray")


def _connected(cluster: str, name: str) -> Any:
    """Ray, with this process connected to the cluster. Call it under a lock, because two threads
    must not connect at the same time."""
    ray = _ray()
    address = os.environ.get("RAY_ADDRESS", "auto") if cluster == "auto" else cluster
    if ray.is_initialized():
        here = ray.get_runtime_context().gcs_address
        if cluster != "auto" and _resolved(ray, cluster) != _resolved(ray, here):
            error = UsageError(
                f"cluster={cluster!r} was given, but this process belongs to the cluster at "
                f"{here!r}"
            )
            advice = "a process belongs to one cluster: name that one, or call ray.shutdown() first"
            raise advised(error, advice)
        return ray
    try:
        if address not in ("auto", "local"):
            socket.create_connection(_resolved(ray, address), timeout=CONNECT_S).close()
        ray.init(cluster, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, OverflowError, RuntimeError, ValueError) as error:
        missing = MemberError(f"{name}: no Ray cluster at {address!r}: {error}", member=name)
        raise advised(
            missing, "`ray start --head` starts one; name it: cluster='HOST:6379' or RAY_ADDRESS"
        ) from error
    return ray


def _resolved(ray: Any, address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if host in ("localhost", "127.0.0.1"):  # Ray replaces these by this machine's own address
        return ray.util.get_node_ip_address(), int(port)
    return socket.gethostbyname(host), int(port)


def _fits(needed: Mapping[str, float], node: Mapping[str, float]) -> bool:
    """Whether a node has these resources."""
    return all(node.get(name, 0) >= count for name, count in needed.items())


def _shown(amounts: Mapping[str, float]) -> str:
    """Resources in words, without those that Ray adds itself."""
    shown = []
    for name, count in sorted(amounts.items()):
        if count > 0 and not re.search("memory|node:", name):
            shown.append(f"{name} {count:g}")
    return ", ".join(shown) or "nothing"
