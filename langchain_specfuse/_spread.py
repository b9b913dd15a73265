"""Members on a cluster: which of those that were given go there, and how that is written down.

Knows names, dicts and objects; nothing of Ray, which ``members/ray.py`` knows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

PLACED = ("cluster", "replicas", "num_cpus", "num_gpus", "resources", "start_timeout")
"""The keys of a member's dict that say where it works; the others say what it is."""


def spread(given: Sequence[Any], cluster: str | None) -> list[Any]:
    """The same members; those that would work in this process are on the cluster. Servers stay, and whoever names a
    cluster of its own, and objects that do not say that they go along (``spreads``).

    >>> spread(["Qwen/Qwen3-0.6B", "http://localhost:8000/v1"], "auto")
    [{'cluster': 'auto', 'model': 'Qwen/Qwen3-0.6B'}, 'http://localhost:8000/v1']
    """
    return list(given) if cluster is None else [_moved(one, cluster) for one in given]


def placement(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Where a member works, and what it is.

    >>> placement({"model": "a", "cluster": "auto", "replicas": 2})
    ({'cluster': 'auto', 'replicas': 2}, {'model': 'a'})
    """
    where = {key: value for key, value in arguments.items() if key in PLACED}
    return where, {key: value for key, value in arguments.items() if key not in PLACED}


def _moved(given: Any, cluster: str) -> Any:
    model = given["model"] if isinstance(given, Mapping) else given
    if isinstance(model, str) and model.startswith(("http://", "https://")):
        return given
    if isinstance(given, str | Mapping):
        return {"cluster": cluster, **({"model": given} if isinstance(given, str) else given)}
    return _standing_in(given, cluster) if getattr(given, "spreads", False) else given


def _standing_in(member: Any, cluster: str) -> Any:
    """The one member on that cluster that does this one's work: it lives as long as this one does."""
    from .members.ray import RayMember

    known: dict[str, Any] = vars(member).setdefault("_stand_ins", {})
    if cluster not in known:
        known[cluster] = RayMember(member, cluster=cluster)
    return known[cluster]
