"""Decides where vLLM servers run: on which GPUs, with how much of their memory, or on the CPU."""

from __future__ import annotations

import itertools
import logging
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import MemberError, UsageError
from .. import planning
from ..threads import shown
from .vllm_program import flags, python_with_vllm
from .vllm_source import (
    CPU_CACHE,
    VllmSource,
    cache_bytes,
    chosen_cache,
    chosen_places,
    is_here,
    refuse_gpu,
    size_of,
)

if TYPE_CHECKING:
    from .vllm_server import VllmServer

log = logging.getLogger("langchain_specfuse")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a server runs, and with what."""

    python: str
    flags: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()
    gpus: tuple[int, ...] = ()
    """Empty: on the CPU."""
    unset: tuple[str, ...] = ()
    """Variables of the user that it must not get."""


def places_of(servers: Sequence[VllmServer]) -> dict[VllmServer, Place | BaseException]:
    """The place of each of these servers: on GPUs, as planned for all of them, or on the CPU. For
    one that cannot be placed, the error."""
    known = planning.gpus()
    places: dict[VllmServer, Place | BaseException] = {}
    on_gpus: dict[VllmServer, tuple[str, planning.Size]] = {}
    on_cpu: dict[VllmServer, tuple[str, planning.Size | None]] = {}
    for server in servers:
        try:
            python, version = python_with_vllm(server.source.python)
            if known and "cpu" not in version:
                on_gpus[server] = python, size_of(server.source)
            else:
                if not known and "cpu" not in version and version != "unknown":
                    _warn_of_unseen_gpu(server, version)
                on_cpu[server] = python, _known_size(server.source)
        except (MemberError, UsageError) as error:  # the others start without it
            places[server] = error
    try:
        places |= _on_gpus(on_gpus, known) if on_gpus else {}
    except UsageError as error:
        places |= dict.fromkeys(on_gpus, error)
    try:
        _check_memory({server: size for server, (_, size) in on_cpu.items()})
        for server, (python, _) in on_cpu.items():
            places[server] = _on_cpu(server.source, python, len(servers))
    except UsageError as error:
        places |= dict.fromkeys(on_cpu, error)
    return places


def _on_gpus(
    servers: Mapping[VllmServer, tuple[str, planning.Size]], known: Sequence[planning.Gpu]
) -> dict[VllmServer, Place]:
    names = _labels(list(servers))
    sources = {name: server.source for name, server in names.items()}
    totals = {gpu.index: gpu.total_bytes for gpu in known}
    placed = planning.place(
        {name: servers[server][1] for name, server in names.items()},
        known,
        **chosen_places(sources),
    )
    places = {}
    for at in placed:
        log.info(
            "%s: GPU %s, %.1f GB on each: %.1f GB of weights, %d tokens of cache",
            at.member,
            ", ".join(map(str, at.gpus)),
            at.memory_bytes / 1e9,
            at.weight_bytes / 1e9,
            at.tokens,
        )
        part = at.memory_bytes / max(totals[index] for index in at.gpus)
        chosen = {
            "gpu_memory_utilization": _rounded_down(part),
            "tensor_parallel_size": len(at.gpus),
        }
        if len({totals[index] for index in at.gpus}) > 1:
            # A fraction of the smallest GPU might leave no cache.
            chosen["kv_cache_memory_bytes"] = at.cache_bytes
        variables = {
            "CUDA_VISIBLE_DEVICES": ",".join(map(str, at.gpus)),
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        }
        server = names[at.member]
        python = servers[server][0]
        places[server] = Place(python, tuple(flags(chosen)), tuple(variables.items()), at.gpus)
    return places


def _rounded_down(part: float) -> float:
    """A part of a GPU in four digits. vLLM refuses a part that is larger than what is free. What
    floating point has taken from a part that the user chose is given back.

    >>> _rounded_down(0.46749), _rounded_down(0.29999999999)
    (0.4674, 0.3)
    """
    return math.floor(part * 10_000 + 0.001) / 10_000


def _labels(servers: Sequence[VllmServer]) -> dict[str, VllmServer]:
    """A name for each server in the plan."""
    labels: dict[str, VllmServer] = {}
    for server in servers:
        numbers = itertools.count(2)
        label = server.name
        while label in labels:
            label = f"{server.name}#{next(numbers)}"
        labels[label] = server
    return labels


def _warn_of_unseen_gpu(server: VllmServer, version: str) -> None:
    """This build of vLLM needs a GPU. It may find one that we do not see: one by AMD or Intel, or a
    part of one (MIG)."""
    log.warning(
        "%s: vLLM %s is not a build for CPUs, but nvidia-smi and $CUDA_VISIBLE_DEVICES show no "
        "GPU, so the server starts with the arguments for a CPU: a small cache, and no CUDA "
        "graphs. For a GPU by AMD or Intel, or a part of a GPU (MIG), start `vllm serve` yourself "
        "and name its address as the member",
        server.name,
        version,
    )


def _known_size(source: VllmSource) -> planning.Size | None:
    """The size of a model; None if it is unknown, because on a CPU vLLM can start without it.
    Raises if there is no such model, before vLLM takes half a minute to find that out."""
    try:
        return size_of(source)
    except MemberError as error:
        if error.kind == "not_found" or not is_here(source):
            raise
        log.info("%s", error)
    except Exception as error:  # vLLM may know more about the files
        log.info("the size of %s is unknown: %s", source.model, shown(error))
    return None


def _check_memory(servers: Mapping[VllmServer, planning.Size | None]) -> None:
    """Log how these servers share this machine's memory. Raises if there is no room for them."""
    names = _labels(list(servers))
    sizes = {name: servers[server] for name, server in names.items()}
    known = {name: size for name, size in sizes.items() if size is not None}
    caches = {name: cache_bytes(names[name].source) for name in known}
    try:
        free = planning.free_memory()
    except UsageError:  # psutil is no requirement of servers
        return
    for at in planning.place_in_memory(known, free, caches=caches):
        log.info(
            "%s: %.1f GB of memory: %.1f GB of weights, %d tokens of cache",
            at.member,
            at.memory_bytes / 1e9,
            at.weight_bytes / 1e9,
            at.tokens,
        )


def _on_cpu(source: VllmSource, python: str, count: int) -> Place:
    """The flags and variables of one of ``count`` servers that a CPU runs side by side. A variable
    of the user counts more."""
    refuse_gpu(source)
    chosen = {
        "kv_cache_memory_bytes": cache_bytes(source),
        "enforce_eager": True,  # compiling takes a minute
        "block_size": 32,  # vLLM's 128 would read up to 127 tokens again for each scored token
    }
    if source.tensor_parallel is not None:
        chosen["tensor_parallel_size"] = source.tensor_parallel
    usual = {
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # several servers must not take the same cores
        "OMP_NUM_THREADS": str(max(1, _cores() // count)),
    }
    variables = {name: os.environ.get(name, value) for name, value in usual.items()}
    # It would replace the flag. vLLM 0.32 dies of an empty one.
    is_chosen = source.memory is not None or chosen_cache(source) is not None
    unset = (CPU_CACHE,) if is_chosen else ()
    return Place(python, tuple(flags(chosen)), tuple(variables.items()), unset=unset)


def _cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
