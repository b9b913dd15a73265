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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

from pydantic import Field

from ..core.call import interrupted_by, note_arrival, refuse_closed
from ..core.member import Probe
from ..core.values import Draft, DraftJob, Failure, Scored, ScoreJob, Segment
from ..errors import MemberError, UsageError, advised, imported, message_of
from .arguments import checked

log = logging.getLogger("langchain_specfuse")

ATTEMPTS = 3
"""A job fails after its process has died this many times during the job."""
CONNECT_S, PLACING_S, RESTART_S = 5.0, 120.0, 60.0
"""Time limits for reaching the cluster (Ray would try for minutes), for finding a place, and for
the restart of a dead process."""
RETRY_S = 0.2
"""How long to wait before asking again whether a process has been replaced."""
THREADS = 100
"""How many jobs a process works on at the same time, if its member waits for others and does not
say. Ray starts these threads with the process."""
Amount = Annotated[float, Field(ge=0)]
FORWARDED = ("spec", "preview", "waits", "silence_s", "is_hosted", "refuse_without_tools")
"""What the hosted member's object in this process says about it."""
_STARTING = threading.Lock()
"""Two threads must not connect, or start an actor of one member, at the same time."""


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
        self._start_unloaded()

    def _start_unloaded(self) -> None:
        self._actor: Any = None
        self._is_up = False
        """Whether the actor's process has answered, and has not died since."""
        self._probe: Probe | None = None

    def __repr__(self) -> str:
        return f"RayMember({self._member!r}, cluster={self.cluster!r})"

    def __getstate__(self) -> dict[str, Any]:
        # A copy starts an actor of its own.
        return vars(self) | {"_actor": None, "_is_up": False, "_probe": None}

    def __getattr__(self, name: str) -> Any:
        # What only some members have is looked up in the hosted member's class, because the member
        # is not loaded in this process.
        if hasattr(type(vars(self).get("_member")), name):
            if name in ("token_ids", "token_count"):
                return partial(self._ask, name)
            if name == "stream":
                return self._stream
            if name in FORWARDED:
                return getattr(self._member, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def device(self) -> str:
        return f"ray:{self.name}:{id(self)}"  # a worker of its own: it computes elsewhere

    def probe(self) -> Probe:
        if self._probe is None:
            try:
                self._probe = self._ask("probe")
            except Exception:
                self.unload()
                raise
            log.info("%s: %s", self.name, self._probe.detail)
        return self._probe

    def start_loading(self) -> Any:
        """Start the actor and return it without waiting: several members load at the same time."""
        with _STARTING:
            if self._actor is None or not _ray().is_initialized():
                self._actor, self._is_up = self._started(), False
            return self._actor

    def draft(self, jobs: Sequence[DraftJob]) -> list[Draft | Failure]:
        return list(self._ask("draft", self._read(jobs)))

    def score(self, jobs: Sequence[ScoreJob]) -> list[Scored | Failure]:
        return list(self._ask("score", self._read(jobs)))

    def _read(self, jobs: Sequence[Any]) -> list[Any]:
        """The jobs with what the hosted member reads of them: the tools of a request may hold what
        cannot be pickled, such as a connection."""
        if self.probe().native:
            return list(jobs)
        return [replace(job, query=replace(job.query, request=None)) for job in jobs]

    def forget(self, query_id: str) -> None:
        if self._actor is not None and _ray().is_initialized():
            self._actor.call.remote("forget", query_id)  # no reply is needed

    def unload(self) -> None:
        """End the actor. The next job starts a new one."""
        if self._actor is not None and _ray().is_initialized():
            _ray().kill(self._actor)
        self._start_unloaded()

    def _ask(self, method: str, *arguments: Any) -> Any:
        """What the hosted member returns."""
        return self._tried(method, lambda actor: _ray().get(actor.call.remote(method, *arguments)))

    def _stream(self, job: DraftJob) -> Iterator[Draft | Failure]:
        """What the hosted member's ``stream`` yields. If its process dies, the next one continues
        the text."""
        (rest,) = self._read([job])
        ray, parts = _ray(), None

        def read(actor: Any) -> Any:
            nonlocal parts
            if parts is None:
                parts = actor.stream.remote(rest)
            try:
                with interrupted_by(partial(ray.cancel, parts)):
                    return ray.get(next(parts))
            except (StopIteration, ray.exceptions.RayError):
                parts = None
                raise

        try:
            while True:
                reply = self._tried("stream", read)
                note_arrival()
                if isinstance(reply, Draft):
                    left = rest.max_tokens - len(reply.tokens)
                    answer = (*rest.answer, Segment(reply.text))
                    rest = replace(rest, answer=answer, max_tokens=left)
                yield reply
        except StopIteration:
            return
        finally:
            if parts is not None:
                ray.cancel(parts)

    def _tried(self, method: str, ask: Callable[[Any], Any]) -> Any:
        """What the actor replies. If its process dies, Ray starts another one, which is asked
        again."""
        ray, reason = _ray(), ""
        for _ in range(ATTEMPTS):
            actor = self.start_loading()
            try:
                self._wait_until_up(actor)
                return ask(actor)
            except ray.exceptions.RayTaskError as failed:
                raise failed.cause from None
            except ray.exceptions.RayError as death:
                refuse_closed()
                log.warning("%s: its process on the Ray cluster died: %s", self.name, death)
                reason = f"{type(death).__name__}: {' '.join(str(death).split())}"[:300]
                self._is_up = False
                if isinstance(death, ray.exceptions.ActorDiedError) and self._actor is actor:
                    self._actor = None  # Ray does not restart it
        error = MemberError(f"{self.name} died over {method!r}: {reason}", member=self.name)
        raise advised(
            error, "is there enough memory on that node, and are the same versions installed?"
        )

    def _wait_until_up(self, actor: Any) -> None:
        """Wait until Ray has found a place for the actor and started its process."""
        if self._is_up:
            return
        ray = _ray()
        limit_s = RESTART_S if self._probe else PLACING_S
        end = time.monotonic() + limit_s
        while (left_s := end - time.monotonic()) > 0:
            ready = actor.__ray_ready__.remote()
            if not ray.wait([ready], timeout=left_s)[0]:
                break
            try:
                ray.get(ready)
            except ray.exceptions.ActorUnavailableError:  # its process is being replaced
                time.sleep(RETRY_S)
            else:
                self._is_up = True
                return
        free = ray.available_resources()
        left = {name: free.get(name, 0) for name in ("CPU", "GPU", *self.resources)}
        error = MemberError(
            f"Ray found no place for {self.name} within {limit_s:g} s; free are {left}",
            member=self.name,
        )
        raise advised(error, "ask for less (num_cpus=0.5, num_gpus=0.5, resources=), or add nodes")

    def _started(self) -> Any:
        ray = _connected(self.cluster, self.name)
        gpus = self.num_gpus
        if gpus is None:
            gpus = float(ray.cluster_resources().get("GPU", 0) >= 1)
        threads = 1
        if getattr(self._member, "waits", False):
            threads = getattr(self._member, "max_concurrency", None) or THREADS
        actor = ray.remote(_Actor).options(
            max_concurrency=threads,
            num_cpus=self.num_cpus,
            num_gpus=gpus,
            resources=self.resources,
            max_restarts=-1,
            scheduling_strategy="SPREAD",
        )
        try:
            return actor.remote(self._member)
        except (TypeError, AttributeError, pickle.PicklingError) as error:
            unsent = UsageError(
                f"{self.name} cannot be sent to another process: {str(error).splitlines()[0]}"
            )
            advice = "pass a member that is named by its model and has not been loaded"
            raise advised(unsent, advice) from error


class _Actor:
    """What Ray runs: a member that loads at its first job, also in a process that replaces a dead
    one."""

    def __init__(self, member: Any) -> None:
        self._member = member
        self._probe: Probe | None = None
        self._loading = threading.Lock()

    def stream(self, job: DraftJob) -> Iterator[Any]:
        is_canceled = _ray().get_runtime_context().is_canceled
        try:
            self._loaded()
            for reply in self._member.stream(job):
                if is_canceled():
                    return
                yield _sendable(reply)
        except Exception as error:
            raise _picklable(error) from None

    def call(self, method: str, *arguments: Any) -> Any:
        try:
            if method == "probe":
                return self._loaded()
            if method != "forget":
                self._loaded()
            result = getattr(self._member, method)(*arguments)
        except Exception as error:
            raise _picklable(error) from None
        if method in ("draft", "score"):
            return [_sendable(reply) for reply in result]
        return result

    def _loaded(self) -> Probe:
        with self._loading:
            if self._probe is None:
                probe = self._member.probe()
                place = f"by Ray at {_ray().util.get_node_ip_address()}, process {os.getpid()}"
                self._probe = replace(probe, detail=f"{probe.detail}; {place}".lstrip("; "))
            return self._probe


def _sendable(reply: Any) -> Any:
    """The reply with a cause that can be pickled; errors of OpenAI's client cannot."""
    if isinstance(reply, Failure):
        return replace(reply, cause=_picklable(reply.cause))
    return reply


def _picklable(error: Any) -> Any:
    try:
        return pickle.loads(pickle.dumps(error))
    except Exception:
        why = f"{type(error).__name__}: {message_of(error)}"
        return MemberError(why, kind=getattr(error, "kind", "error"))


# --- the cluster ----------------------------------------------------------------------------------


def _ray() -> Any:
    return imported("ray", "a member on a cluster", "ray")


def _connected(cluster: str, name: str) -> Any:
    """Ray, with this process connected to the cluster, or to the one that it was connected to."""
    ray = _ray()
    if ray.is_initialized():
        return ray
    address = os.environ.get("RAY_ADDRESS", "auto") if cluster == "auto" else cluster
    try:
        if address not in ("auto", "local"):
            host, _, port = address.rpartition(":")
            if host in ("localhost", "127.0.0.1"):  # Ray takes the machine's own address instead
                host = ray.util.get_node_ip_address()
            socket.create_connection((host, int(port)), timeout=CONNECT_S).close()
        ray.init(cluster, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, OverflowError, RuntimeError, ValueError) as error:
        missing = MemberError(f"{name}: no Ray cluster at {address!r}: {error}", member=name)
        raise advised(
            missing, "`ray start --head` starts one; name it: cluster='HOST:6379' or RAY_ADDRESS"
        ) from error
    return ray
