"""RayMember: any member behind actors of a Ray cluster: placed by resources, restarted when it dies, in replicas.

A job carries all that is needed, so whichever process gets it gives the same reply. Nothing is loaded here.
"""

from __future__ import annotations

import logging
import os
import pickle
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ..core.member import Probe
from ..core.values import Draft, DraftJob, Failure, Scored, ScoreJob
from ..errors import MemberError, UsageError, advised

log = logging.getLogger("langchain_specfuse")

PLACEMENT = ("cluster", "replicas", "num_cpus", "num_gpus", "resources")
"""The arguments that say where a member works."""
ATTEMPTS = 3
"""A job fails when its process died this often over it. The last time each job is sent alone, so that a job that kills
its process does not take others with it."""
CONNECT_S, PLACING_S, RESTART_S, PAUSE_S = 5.0, 120.0, 60.0, 0.05
"""Limits: to reach the cluster (Ray would try for minutes), to find a place, to be back after a death (after that jobs
fail at once until a process is back); and the pause between two looks."""
_CONNECTING = threading.Lock()


class RayMember:
    """One LLM behind actors of a Ray cluster.

    >>> from langchain_specfuse import RayMember, ScriptedMember
    >>> member = RayMember(ScriptedMember("The sky is blue.", name="ann"), replicas=2)  # starts nothing yet
    >>> member
    RayMember(ScriptedMember(name='ann'), cluster='auto', replicas=2)

    ``member`` is any member that has not been loaded; each replica loads it for itself. ``cluster`` is ``"auto"`` (the
    one that ``RAY_ADDRESS`` names or that runs on this machine) or an address, ``"10.0.0.1:6379"``; a process that is
    connected already stays so. Each of the ``replicas`` takes ``num_cpus``, ``num_gpus`` (default: one if the cluster
    has any; ``0.5`` lets two members share one) and ``resources`` of one node. A query stays with one replica while
    that lives, for its cache is there; the jobs of a batch run in all replicas at once.
    """

    def __init__(
        self,
        member: Any,
        *,
        cluster: str = "auto",
        replicas: int = 1,
        num_cpus: float = 1,
        num_gpus: float | None = None,
        resources: Mapping[str, float] | None = None,
    ) -> None:
        if isinstance(member, RayMember) or not hasattr(type(member), "probe"):
            error = UsageError(f"a RayMember hosts a member, got {member!r:.80} ({type(member).__name__})")
            raise advised(error, "for example RayMember(TransformersMember('Qwen/Qwen2.5-7B-Instruct'))")
        if not isinstance(replicas, int) or isinstance(replicas, bool) or replicas < 1:
            raise UsageError(f"replicas must be a whole number of at least 1, got {replicas!r}")
        if not isinstance(cluster, str) or not (cluster == "auto" or re.fullmatch(r"[^/\s]+:\d+", cluster)):
            error = UsageError(f"cluster must be 'auto' or an address of Ray, got {cluster!r}")
            raise advised(error, "for example '10.0.0.1:6379', from a machine of the cluster (no ray:// client)")
        amounts = {"num_cpus": num_cpus, "num_gpus": num_gpus or 0, **(resources or {})}
        if wrong := {name: one for name, one in amounts.items() if not isinstance(one, int | float) or not one >= 0}:
            raise UsageError(f"amounts must be numbers of at least 0, got {wrong}")
        self.name: str = member.name
        self._member, self.cluster, self.replicas = member, cluster, replicas
        self.num_cpus, self.num_gpus, self.resources = num_cpus, num_gpus, dict(resources or {})
        self._team: list[_Replica] = []
        self._asked: dict[str, float] = {}  # what each replica takes
        self._home: dict[str, int] = {}  # query id -> its replica
        self._ready: Probe | None = None
        self._lock = threading.RLock()  # tokens are counted from any thread

    def __repr__(self) -> str:
        return f"RayMember({self._member!r}, cluster={self.cluster!r}, replicas={self.replicas})"

    def __reduce__(self) -> Any:
        # A copy starts actors of its own.
        return partial(RayMember, **{name: getattr(self, name) for name in PLACEMENT}), (self._member,)

    def __getattr__(self, name: str) -> Any:
        # What only some members can do is looked up in the hosted member's class: the member is not loaded here.
        if name in ("token_ids", "token_count", "spec", "preview") and hasattr(type(vars(self).get("_member")), name):
            return partial(self._call, name) if name.startswith("token") else getattr(self._member, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def device(self) -> str:
        return f"ray:{self.name}:{id(self)}"  # a worker of its own: it computes elsewhere

    @property
    def places(self) -> tuple[tuple[str, int], ...]:
        """Where its replicas live: the address of the node, and the process there."""
        return tuple(one.place for one in self._team if one.place)

    def probe(self) -> Probe:
        with self._lock:
            if self._ready is not None and not _ray().is_initialized():
                self.unload()  # ray.shutdown() ended the actors
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
        """Start the actors and do not wait: several members load at the same time."""
        with self._lock:
            self._team = self._team or self._started()

    def draft(self, jobs: Sequence[DraftJob]) -> list[Draft | Failure]:
        return self._each("draft", jobs)

    def score(self, jobs: Sequence[ScoreJob]) -> list[Scored | Failure]:
        return self._each("score", jobs)

    def forget(self, query_id: str) -> None:
        home = self._home.pop(query_id, None)
        if home is not None and self._team:
            self._team[home].send("forget", query_id)  # no reply is needed

    def unload(self) -> None:
        """End the actors. The next job starts new ones."""
        for one in self._team:
            one.end()
        self._team, self._home, self._ready = [], {}, None

    def _each(self, work: str, jobs: Sequence[Any]) -> list[Any]:
        self.probe()
        replies: dict[int, Any] = {}
        for attempt in range(ATTEMPTS):
            waiting = [at for at in range(len(jobs)) if at not in replies]
            for group in ([at] for at in waiting) if attempt == ATTEMPTS - 1 else [waiting]:
                replies |= self._ask(work, jobs, group)
        return [replies[at] if at in replies else Failure("error", self._trouble(work)) for at in range(len(jobs))]

    def _ask(self, work: str, jobs: Sequence[Any], group: Sequence[int]) -> dict[int, Any]:
        """The replies to these jobs, by their places in the batch; none to jobs whose replica died."""
        parts: dict[int, list[int]] = {}
        counts = Counter(self._home.values())
        for at in group if self._any_up() else ():
            query = jobs[at].query.id
            if (home := self._home.get(query)) is None or not self._team[home].place:
                home = min(range(self.replicas), key=lambda one: (not self._team[one].place, counts[one]))
                self._home[query], counts[home] = home, counts[home] + 1
            parts.setdefault(home, []).append(at)
        sent = {home: self._team[home].send(work, [jobs[at] for at in part]) for home, part in parts.items()}
        found = {home: self._team[home].receive(sent[home]) for home in parts}
        return {at: one for home, part in parts.items() for at, one in zip(part, found[home] or (), strict=False)}

    def _any_up(self) -> bool:
        """Whether any replica is up. If none is, wait for one, as long as a restart may take."""
        while not any([one.is_up() for one in self._team]):  # noqa: C419 (all are looked at)
            if all(time.monotonic() - one.down_since > RESTART_S for one in self._team):
                return False
            time.sleep(PAUSE_S)
        return True

    def _trouble(self, work: str) -> str:
        how = f"it died over this {work}" if self.places else f"its processes died over this {work}, none is back yet"
        return f"{how}: {'; '.join({one.trouble for one in self._team if one.trouble})}"[:600]

    def _call(self, method: str, *arguments: Any) -> Any:
        """A call that belongs to no query: any replica that is up answers."""
        self.probe()
        for one in self._team * ATTEMPTS:
            if self._any_up() and one.is_up() and (result := one.receive(one.send(method, *arguments))) is not None:
                return result
        raise MemberError(self._trouble(method), member=self.name)

    def _started(self) -> list[_Replica]:
        with _CONNECTING:
            ray = _connected(self.cluster, self.name)
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        gpus = float(any(node.get("GPU", 0) >= 1 for node in nodes)) if self.num_gpus is None else self.num_gpus
        self._asked = {"CPU": self.num_cpus, "GPU": gpus, **self.resources}
        if not any(all(node.get(name, 0) >= count for name, count in self._asked.items()) for node in nodes):
            has = " | ".join(map(_shown, nodes)) or "none"
            error = UsageError(f"{self.name} wants {_shown(self._asked)}, which no node has; there are {has}")
            raise advised(error, "ask for less (num_cpus=0.5, num_gpus=0.5, resources=), or add nodes first")
        actor = ray.remote(_Actor).options(
            num_cpus=self.num_cpus,
            num_gpus=gpus,
            resources=self.resources,
            max_restarts=-1,
            max_task_retries=0,  # a retry may kill the new process too: jobs are sent again here, in the end alone
            scheduling_strategy="SPREAD",
        )
        try:
            return [_Replica(ray, partial(actor.remote, self._member)) for _ in range(self.replicas)]
        except (TypeError, AttributeError, pickle.PicklingError) as error:
            unsent = UsageError(f"{self.name} cannot be sent to another process: {str(error).splitlines()[0]}")
            raise advised(unsent, "a member that has not been loaded can be: name its model, load nothing") from error

    def _loaded(self) -> Probe:
        """What the replicas can do, once all have their places and have loaded."""
        ray = _ray()
        ray.wait([one.ping for one in self._team], num_returns=self.replicas, timeout=PLACING_S)
        if down := [one for one in self._team if not one.is_up()]:
            why = down[0].trouble or f"no place was free within {PLACING_S:g} s"
            wants, free = _shown(self._asked), _shown(ray.available_resources())
            message = f"Ray did not start {self.name} ({why}): it wants {wants}; free are {free}"
            error = MemberError(message, member=self.name)
            raise advised(error, "ask for less, end what else runs there, or install the same versions on every node")
        probes = [one.receive(one.probe) for one in self._team]
        if None in probes:
            died = MemberError(f"{self.name}: {self._trouble('load')}", member=self.name)
            raise advised(died, "is there memory enough for its weights on that node?")
        limit = min((one.max_context for one in probes if one.max_context is not None), default=None)
        nodes = ", ".join(dict.fromkeys(node for node, _ in self.places))
        detail = f"{probes[0].detail}; {len(probes)} by Ray at {nodes}".lstrip("; ")
        return replace(probes[0], scores=all(one.scores for one in probes), max_context=limit, detail=detail)


class _Replica:
    """One actor. Ray restarts its process; an actor that Ray does not restart is replaced."""

    def __init__(self, ray: Any, start: Callable[[], Any]) -> None:
        self._ray, self._start = ray, start
        self._lock = threading.Lock()
        self._actor = start()
        self.ping = self._actor.where.remote()  # answered as soon as the process is up
        self.probe = self.send("probe")
        self.place: tuple[str, int] | None = None  # node and process; None: not up
        self.down_since, self.trouble = time.monotonic(), ""

    def is_up(self) -> bool:
        """Asked again and again, it notices a restart."""
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
    """What Ray runs: a member that loads when it is first asked, also in a process that replaces a dead one."""

    def __init__(self, member: Any) -> None:
        self._member = member
        self._probe: Probe | None = None

    def where(self) -> tuple[str, int]:
        return _ray().util.get_node_ip_address(), os.getpid()

    def call(self, method: str, *arguments: Any) -> Any:
        try:
            if self._probe is None and method != "forget":
                self._probe = self._member.probe()
            result: Any = self._probe if method == "probe" else getattr(self._member, method)(*arguments)
        except Exception as error:
            raise _picklable(error) from None
        if method not in ("draft", "score"):
            return result
        return [replace(one, cause=_picklable(one.cause)) if isinstance(one, Failure) else one for one in result]


def _picklable(error: Any) -> Any:
    try:
        return pickle.loads(pickle.dumps(error))
    except Exception:
        return MemberError(f"{type(error).__name__}: {error}", kind=getattr(error, "kind", "error"))


# --- the cluster ------------------------------------------------------------------------------------------------


def _ray() -> Any:
    try:
        import ray
    except ModuleNotFoundError as error:
        missing = UsageError(f"a member on a cluster needs {error.name}, which is not installed")
        raise advised(missing, 'pip install "langchain-specfuse[ray]"') from error
    return ray


def _connected(cluster: str, name: str) -> Any:
    """Ray, with this process as part of the cluster. Called under a lock: Ray must not be connected twice at once."""
    ray = _ray()
    address = os.environ.get("RAY_ADDRESS", "auto") if cluster == "auto" else cluster
    if ray.is_initialized():
        here = ray.get_runtime_context().gcs_address
        if cluster != "auto" and _resolved(ray, cluster) != _resolved(ray, here):
            error = UsageError(f"cluster={cluster!r} is wanted, but this process belongs to the cluster at {here!r}")
            raise advised(error, "a process belongs to one cluster: name that one, or call ray.shutdown() first")
        return ray
    try:
        if address not in ("auto", "local"):
            socket.create_connection(_resolved(ray, address), timeout=CONNECT_S).close()
        ray.init(cluster, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, OverflowError, RuntimeError, ValueError) as error:
        missing = MemberError(f"{name}: no Ray cluster at {address!r}: {error}", member=name)
        raise advised(missing, "`ray start --head` starts one; name it: cluster='HOST:6379' or RAY_ADDRESS") from error
    return ray


def _resolved(ray: Any, address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    own = host in ("localhost", "127.0.0.1")  # which Ray replaces by this machine's own address
    return ray.util.get_node_ip_address() if own else socket.gethostbyname(host), int(port)


def _shown(amounts: Mapping[str, float]) -> str:
    """Resources for people, without those that Ray adds itself."""
    own = {name: count for name, count in sorted(amounts.items()) if count > 0 and not re.search("memory|node:", name)}
    return ", ".join(f"{name} {count:g}" for name, count in own.items()) or "nothing"
