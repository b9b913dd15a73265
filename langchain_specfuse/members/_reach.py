"""The way to a Ray cluster, found in bounded time: Ray itself would knock for minutes where nobody is.

Knows Ray by what it is given; ``ray.py`` alone imports it.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable
from typing import Any

from ..errors import MemberError, UsageError, advised

KNOCKING_S = 5.0
"""Whether anybody listens at all."""
CONNECTING_S = 60.0
"""Whether it is Ray."""
NAMED = ("auto", "local")
"""What Ray finds, or starts, without an address."""
_CONNECTING = threading.Lock()
_TRYING: list[threading.Thread] = []
"""Who tried in vain, and may try still: Ray must not be connected twice at once."""


def connect(ray: Any, cluster: str, name: str) -> None:
    """This process as one of the cluster, once."""
    with _CONNECTING:
        address = os.environ.get("RAY_ADDRESS", "auto") if cluster == "auto" else cluster
        own = ray.util.get_node_ip_address
        if ray.is_initialized():
            return refuse_another(cluster, ray.get_runtime_context().gcs_address, own=own)
        try:
            if address not in NAMED:
                heard(address, own=own)
            _within(CONNECTING_S, lambda: ray.init(cluster, log_to_driver=False, logging_level=logging.ERROR))
        except (OSError, TimeoutError, RuntimeError, ValueError) as error:
            told = MemberError(f"{name}: no Ray cluster at {address!r}: {error}", member=name)
            raise advised(
                told, "start one: `ray start --head`, and name it: cluster='HOST:6379' or RAY_ADDRESS"
            ) from error


def refuse_another(cluster: str, here: str, *, own: Callable[[], str]) -> None:
    """An error where another cluster is wanted than the one that this process belongs to: Ray knows one at a time."""
    if cluster not in NAMED and _parts(cluster, own) != _parts(here, own):
        error = UsageError(f"cluster={cluster!r} is wanted, but this process belongs to the Ray cluster at {here!r}")
        raise advised(error, "a process belongs to one cluster: name that one, or call ray.shutdown() first")


def heard(address: str, *, own: Callable[[], str]) -> None:
    """An OSError or ValueError that says why, if nobody is heard there."""
    host, port = _parts(address, own)
    try:
        socket.create_connection((host, port), timeout=KNOCKING_S).close()
    except (OSError, OverflowError) as error:
        raise ConnectionError(f"nobody listens at {host}:{port} ({error})") from error


def _parts(address: str, own: Callable[[], str]) -> tuple[str, int]:
    """Host and port. ``own`` is what Ray makes of this machine's loopback, which it never takes as it is."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"an address is HOST:PORT, got {address!r}; the port of a cluster is 6379 unless chosen")
    try:
        return own() if host in ("localhost", "127.0.0.1") else socket.gethostbyname(host), int(port)
    except OSError as error:
        raise ConnectionError(f"{host} is not known ({error})") from error


def session(ray: Any) -> Any:
    """What tells one connection from the next; None without one."""
    if not ray.is_initialized():
        return None
    here = ray.get_runtime_context()
    return here.get_node_id(), here.get_job_id()


def _within(seconds: float, work: Callable[[], Any]) -> None:
    """Ray itself would try for minutes."""
    if any(one.is_alive() for one in _TRYING):
        raise TimeoutError("Ray still tries to reach the address that was named before; it gives up in some minutes")
    failed: list[BaseException] = []

    def tried() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    trying = threading.Thread(target=tried, name="specfuse-connecting", daemon=True)
    _TRYING[:] = [trying]
    trying.start()
    trying.join(seconds)
    if trying.is_alive():
        raise TimeoutError(f"something listens there, but it did not answer as Ray does within {seconds:g} s")
    if failed:
        raise failed[0] if isinstance(failed[0], Exception) else RuntimeError(repr(failed[0]))
