"""What a replica takes of a cluster's nodes, whether there is room for it, and the wait for its place.

Knows Ray by what it is given; ``ray.py`` alone imports it.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import MemberError, UsageError, advised, amount
from ._replica import PAUSE_S, Replica

log = logging.getLogger("langchain_specfuse")

PLACING_S = 120.0
"""How long a replica may wait for its place where there is room, but others sit there."""
WARNED_S = 10.0
"""When the log says that it waits."""
LESS = "ask for less (num_cpus=0.5, num_gpus=0.5, resources=, replicas=)"


def gpus(nodes: Sequence[Mapping[str, float]]) -> float:
    """What a member takes that does not say: a GPU where there are any."""
    return float(any(node.get("GPU", 0) >= 1 for node in nodes))


def refuse_if_no_room(
    name: str, replicas: int, asked: Mapping[str, float], nodes: Sequence[Mapping[str, float]]
) -> None:
    """An error where the cluster could never give what is asked, however long one waits."""
    places = room(asked, nodes)
    if places < replicas:
        has = " | ".join(map(said, nodes)) or "none"
        wants = "wants {}" if replicas == 1 else "want {} each"
        wanted = f"{amount(replicas, 'replica')} {wants.format(said(asked))}"
        message = f"{name}: {wanted}; the cluster has room for {places}"
        raise advised(UsageError(f"{message}. Its nodes: {has}"), f"{LESS}, or add nodes first")


def wait_for_places(ray: Any, name: str, team: Sequence[Replica], asked: Mapping[str, float]) -> None:
    """Until all are up; an error where one cannot be, or others sit in its place for too long."""
    since, warned = time.monotonic(), False
    while sum(one.risen() for one in team) < len(team):  # all are looked at: any may be dead
        dead = next((one for one in team if one.dead), None)
        if dead:
            error = MemberError(f"{name} could not be started by Ray: {dead.trouble}", member=name)
            raise advised(error, "is langchain-specfuse installed on every node, in the same version?")
        waited = time.monotonic() - since
        told = f"it wants {said(asked)}; free are {said(ray.available_resources())}" if waited > WARNED_S else ""
        if waited > PLACING_S:
            error = MemberError(f"{name} found no place within {PLACING_S:g} s: {told}", member=name, kind="timeout")
            raise advised(error, f"{LESS}, or end what else runs there")
        if told and not warned:
            warned = True
            log.warning("%s waits for its place: %s", name, told)
        time.sleep(PAUSE_S)


def room(asked: Mapping[str, float], nodes: Sequence[Mapping[str, float]]) -> int:
    """How many that ask for this fit on these nodes, each on one of them. Who asks for nothing fits anywhere.

    >>> room({"CPU": 2.0, "GPU": 1.0}, [{"CPU": 8.0, "GPU": 2.0}, {"CPU": 64.0}])
    2
    >>> room({"GPU": 0.5}, [{"GPU": 1.0}])
    2
    """
    wanted = {name: amount for name, amount in asked.items() if amount > 0}
    if not wanted:
        return 10**6 if nodes else 0
    # Ray counts in ten-thousandths; a sum of floats must not hide a place.
    return sum(
        min(math.floor(node.get(name, 0.0) / amount + 1e-6) for name, amount in wanted.items()) for node in nodes
    )


def said(amounts: Mapping[str, float]) -> str:
    """Resources for people.

    >>> said({"CPU": 4.0, "GPU": 0.5, "node:10.0.0.1": 1.0, "memory": 2e9})
    'CPU 4, GPU 0.5'
    """
    own = {name: amount for name, amount in sorted(amounts.items()) if amount > 0 and not _told_by_ray(name)}
    return ", ".join(f"{name} {amount:g}" for name, amount in own.items()) or "nothing"


def _told_by_ray(name: str) -> bool:
    return name.startswith("node:") or name in ("memory", "object_store_memory")
