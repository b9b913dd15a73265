"""RayMember: any member behind actors of a Ray cluster: placed by resources, started again when it dies, in replicas.

The parts: ``_hosted`` is what lives in the actor, ``_homes`` says which replica a query belongs to. This file finds the
cluster, starts replicas and stands them up again, and asks once more where a process died. A job carries all that is
needed, so whoever takes it over gives the same reply. Nothing is loaded here, and votes are not known.
"""

from __future__ import annotations

import itertools
import logging
import os
import re
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ..core.member import Probe
from ..core.values import Draft, DraftJob, Failure, Scored, ScoreJob
from ..errors import MemberError, UsageError, advised
from ._homes import Homes
from ._hosted import Hosted, answer
from ._places import gpus, refuse_if_no_room, said, wait_for_places
from ._reach import NAMED, connect, session
from ._replica import PAUSE_S, Coming, Replica

log = logging.getLogger("langchain_specfuse")

ATTEMPTS = 3
"""A job is lost when its process died so often at work on it. The last time each is asked alone, so that a job that
kills its process takes no other along."""
AT_WORK = ("_team", "_homes", "_ready", "_coming", "_session", "_starting")
"""What a member has while its actors live: it stays in its process."""
_TURNS = itertools.count(1)


class RayMember:
    """One LLM behind actors of a Ray cluster.

    >>> from langchain_specfuse import RayMember, ScriptedMember
    >>> member = RayMember(ScriptedMember("The sky is blue.", name="ann"), replicas=2)  # starts nothing yet
    >>> member
    RayMember(ScriptedMember(name='ann'), cluster='auto', replicas=2)

    ``member`` is any member that has not been loaded; each replica loads it for itself. ``cluster`` is ``"auto"`` (the
    one that ``RAY_ADDRESS`` names or that runs on this machine) or an address, ``"10.0.0.1:6379"``; a process that is
    connected already stays so. Each of the ``replicas`` takes ``num_cpus``, ``num_gpus`` (left out: one where the
    cluster has any; ``0.5`` lets two members share one) and ``resources`` of one node. A query stays at one replica
    while that lives, and the jobs of a batch are at work in all replicas at once. ``start_timeout`` is for loading.
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
        start_timeout: float = 600.0,
    ) -> None:
        missing = [need for need in ("probe", "draft", "score", "forget") if not hasattr(type(member), need)]
        if missing or isinstance(member, RayMember):
            error = UsageError(f"a RayMember hosts a member, got {member!r:.80} ({type(member).__name__})")
            raise advised(error, "for example RayMember(TransformersMember('Qwen/Qwen2.5-7B-Instruct'))")
        if not isinstance(replicas, int) or isinstance(replicas, bool) or replicas < 1:
            raise advised(UsageError(f"replicas must be a whole number of at least 1, got {replicas!r}"), "1 is enough")
        if not isinstance(cluster, str) or not (cluster in NAMED or re.fullmatch(r"[^/\s]+:\d+", cluster)):
            error = UsageError(f"cluster must be 'auto' or an address of Ray, got {cluster!r}")
            raise advised(error, "for example '10.0.0.1:6379', from a machine of the cluster (no ray:// client)")
        self.name: str = member.name
        self.cluster, self.replicas, self.start_timeout = cluster, replicas, start_timeout
        self.num_cpus, self.num_gpus, self.resources = num_cpus, num_gpus, dict(resources or {})
        amounts = {"num_cpus": num_cpus, "num_gpus": num_gpus or 0, **self.resources}
        wrong = {name: one for name, one in amounts.items() if not isinstance(one, int | float) or not one >= 0}
        if wrong:
            raise advised(
                UsageError(f"an amount must be a number of at least 0, got {wrong}"), "num_cpus=1, for example"
            )
        self._member = member
        self._desk = f"ray:{self.name}:{next(_TURNS)}"
        self._at_rest()

    def __repr__(self) -> str:
        return f"RayMember({self._member!r}, cluster={self.cluster!r}, replicas={self.replicas})"

    def __getstate__(self) -> dict[str, Any]:
        """Without its actors: whoever unpacks it starts its own."""
        return {key: value for key, value in vars(self).items() if key not in AT_WORK}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state)
        self._desk = f"ray:{self.name}:{next(_TURNS)}"
        self._at_rest()

    def _at_rest(self) -> None:
        self._team: list[Replica] = []
        self._homes = Homes()
        self._ready: Probe | None = None
        self._coming: Coming | None = None
        self._session: Any = None
        """Of Ray, in which the actors live."""
        self._starting = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        # What only some members can do: asked of the hosted one's class, for it is not loaded here.
        if name in ("token_ids", "token_count", "spec") and hasattr(type(vars(self).get("_member")), name):
            return self._member.spec if name == "spec" else partial(self._called, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def device(self) -> str:
        """A desk of its own: it works elsewhere, while others do."""
        return self._desk

    @property
    def places(self) -> tuple[tuple[str, int], ...]:
        """Where its replicas live: the address of the node, and the process there."""
        return tuple(one.place for one in self._team if one.place)

    # --- the protocol -------------------------------------------------------------------------------------------

    def probe(self) -> Probe:
        with self._starting:
            if self._ready is None or self._session != session(_ray()):
                self._ready = self._finished(self._coming or self._begun())
                log.info("%s: %s", self.name, self._ready.detail)
            return self._ready

    def start_loading(self) -> None:
        """Begin, and do not wait: several members load at the same time."""
        with self._starting:
            if self._ready is None and self._coming is None:
                self._coming = self._begun()

    def draft(self, jobs: Sequence[DraftJob]) -> list[Draft | Failure]:
        return self._each("draft", jobs)

    def score(self, jobs: Sequence[ScoreJob]) -> list[Scored | Failure]:
        return self._each("score", jobs)

    def forget(self, query_id: str) -> None:
        home = self._homes.leave(query_id)
        if home is not None and self._team and self._team[home].alive:
            self._team[home].ask("forget", query_id)  # nobody waits for it

    def unload(self) -> None:
        """End the actors. The next job starts new ones."""
        team = self._coming.team if self._coming else self._team
        self._at_rest()
        for one in team:
            one.end()

    # --- asking -------------------------------------------------------------------------------------------------

    def _each(self, work: str, jobs: Sequence[Any]) -> list[Any]:
        """All replicas at once, each with its own queries; again where a process died."""
        self.probe()
        replies: dict[int, Any] = {}
        for attempt in range(1, ATTEMPTS + 1):
            waiting = [place for place in range(len(jobs)) if place not in replies]
            for lot in [[place] for place in waiting] if attempt == ATTEMPTS else [waiting]:
                replies |= self._asked_once(work, jobs, lot) if lot else {}
        return [replies[place] if place in replies else self._lost(work) for place in range(len(jobs))]

    def _asked_once(self, work: str, jobs: Sequence[Any], lot: Sequence[int]) -> dict[int, Any]:
        """place in the batch -> reply, for those of the lot whose process lived to tell."""
        living = self._living()
        if not living:
            return {}
        parts = self._homes.parts([jobs[place].query.id for place in lot], living)
        asked = {home: self._team[home].ask(work, [jobs[lot[k]] for k in part]) for home, part in parts.items()}
        replies: dict[int, Any] = {}
        for home, part in parts.items():
            told = self._team[home].told(asked[home])
            if told is not None:
                replies |= dict(zip([lot[k] for k in part], answer(told), strict=True))
        return replies

    def _living(self) -> list[int]:
        """The replicas that are up. If none is, wait for one, for as long as one may take to stand up."""
        while True:
            living = [home for home, one in enumerate(self._team) if one.risen()]
            if living or all(one.given_up for one in self._team):
                return living
            time.sleep(PAUSE_S)

    def _lost(self, work: str) -> Failure:
        trouble = "; ".join(dict.fromkeys(one.trouble for one in self._team if one.trouble))
        gone = all(one.given_up for one in self._team)
        what = "its processes died, and none is back yet" if gone else f"it died {ATTEMPTS} times over this {work}"
        return Failure("error", f"{what}: {trouble}"[:600])

    def _called(self, method: str, *arguments: Any) -> Any:
        """What is asked of no query: whoever is up answers."""
        self.probe()
        for _ in range(ATTEMPTS):
            for home in self._living()[:1]:
                told = self._team[home].told(self._team[home].ask(method, *arguments))
                if told is not None:
                    return answer(told)
        raise MemberError(self._lost(method).message, member=self.name)

    # --- starting -----------------------------------------------------------------------------------------------

    def _begun(self) -> Coming:
        """Replicas that take their places and load."""
        ray = _ray()
        connect(ray, self.cluster, self.name)
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        asked = {"CPU": self.num_cpus, "GPU": gpus(nodes) if self.num_gpus is None else self.num_gpus, **self.resources}
        refuse_if_no_room(self.name, self.replicas, asked, nodes)
        packed = self._packed(ray)
        actor = ray.remote(_Actor).options(
            num_cpus=self.num_cpus,
            num_gpus=asked["GPU"],
            resources=self.resources,
            max_restarts=-1,
            max_task_retries=0,  # what a retry finds is another process: we ask again ourselves
            scheduling_strategy="SPREAD",
        )
        log.info("%s: starting %d on the Ray cluster, each with %s", self.name, self.replicas, said(asked))
        team = [Replica(ray, partial(actor.remote, packed)) for _ in range(self.replicas)]
        return Coming(asked, team, [one.ask("probe") for one in team])

    def _finished(self, coming: Coming) -> Probe:
        """What the replicas can do, once all have loaded."""
        ray = _ray()
        self._team, self._homes, self._coming = [], Homes(), None  # those of a session that is over are gone
        try:
            wait_for_places(ray, self.name, coming.team, coming.asked)
            probes = self._probes(ray, coming)
        except BaseException:
            for one in coming.team:
                one.end()
            raise
        self._team, self._session = coming.team, session(ray)
        return self._of_all(probes)

    def _packed(self, ray: Any) -> bytes:
        try:
            return bytes(ray.cloudpickle.dumps(self._member))
        except UsageError:
            raise
        except Exception as error:
            told = UsageError(f"{self.name} cannot be sent to another process: {type(error).__name__}: {error}")
            raise advised(told, "a member that has not been loaded can be: name its model, and load nothing") from error

    def _probes(self, ray: Any, coming: Coming) -> list[Probe]:
        team, waiting = coming.team, coming.probes
        _, late = ray.wait(waiting, num_returns=len(waiting), timeout=self.start_timeout)
        if late:
            told = f"{self.name}: {len(late)} of {len(team)} did not load within start_timeout={self.start_timeout:g} s"
            raise advised(MemberError(told, member=self.name, kind="timeout"), "give it more: start_timeout=1800")
        found = [one.told(asked) for one, asked in zip(team, waiting, strict=True)]
        died = next((one for one, told in zip(team, found, strict=True) if told is None), None)
        if died:
            error = MemberError(f"{self.name}: its process died while it loaded: {died.trouble}", member=self.name)
            raise advised(error, "is there memory enough for its weights on that node?")
        return [answer(told) for told in found if told is not None]

    def _of_all(self, probes: Sequence[Probe]) -> Probe:
        """What all replicas can do: nobody knows which one will be asked."""
        first = probes[0]
        limits = [one.max_context for one in probes if one.max_context is not None]
        nodes = ", ".join(dict.fromkeys(node for node, _ in self.places))
        detail = f"{first.detail}; {len(probes)} by Ray at {nodes}".lstrip("; ")
        scores, limit = all(one.scores for one in probes), min(limits, default=None)
        return replace(first, scores=scores, max_context=limit, detail=detail)


class _Actor(Hosted):
    """What Ray runs."""

    def where(self) -> tuple[str, int]:
        import ray

        return ray.util.get_node_ip_address(), os.getpid()


def _ray() -> Any:
    try:
        import ray
    except ModuleNotFoundError as error:
        missing = UsageError(f"a member on a cluster needs {error.name}, which is not installed")
        raise advised(missing, 'pip install "langchain-specfuse[ray]"') from error
    return ray
