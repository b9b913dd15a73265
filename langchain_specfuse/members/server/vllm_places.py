"""Decides where vLLM servers run: on which GPUs, with how much of their memory, or on the CPU.

Without ``gpu=``, server i of n GPUs runs on GPU i mod n. Servers on one GPU divide evenly what is
free there after the shares that users chose. Nothing here knows how large a model is: vLLM says so
itself when one does not fit.
"""

from __future__ import annotations

import logging
import math
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from ...errors import UsageError, advised, amount
from .vllm_command import VllmSource, flags, python_with_vllm

log = logging.getLogger("langchain_specfuse")

CONTEXT_BYTES = 2**29
"""What the CUDA context of a process and its kernels take before vLLM measures the free memory."""
USABLE = 0.92
"""All members together take at most this part of a GPU, which is vLLM's own default for one."""
CPU_CACHE = "VLLM_CPU_KVCACHE_SPACE"
"""A variable of vLLM for CPUs: the GiB of the cache, instead of the flag."""
CPU_CACHE_BYTES = 2 * 2**30
"""The cache of a server that has no GPU, unless the user chose another size."""
ANSWER_S = 10.0
"""How long ``nvidia-smi`` may take to answer. It may hang if a GPU is lost."""


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


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU of this machine."""

    index: int
    """Its number in ``nvidia-smi``: that of CUDA with ``CUDA_DEVICE_ORDER=PCI_BUS_ID``."""
    uuid: str
    total_bytes: int
    free_bytes: int

    @property
    def usable_bytes(self) -> int:
        """What servers that start now may take together."""
        return min(self.free_bytes, int(USABLE * self.total_bytes))


class Placed(Protocol):
    """What is known of a server before it starts."""

    name: str
    source: VllmSource
    place: Place | None
    """Where it ran last; None: nowhere yet."""


Server = TypeVar("Server", bound=Placed)


def places_of(servers: Sequence[Server], first: int = 0) -> dict[Server, Place | BaseException]:
    """The place of each of these servers, which start together, or the error of one that cannot be
    placed. A server that has run before keeps its place.

    ``first``: how many GPUs were given to servers that already run.
    """
    known = gpus()
    places: dict[Server, Place | BaseException] = {}
    on_gpus: dict[Server, str] = {}
    for server in servers:
        if server.place is not None:  # it starts again
            places[server] = server.place
            continue
        try:
            python, version = python_with_vllm(server.source.python)
            if known and "cpu" not in version:
                on_gpus[server] = python
                continue
            if not known and "cpu" not in version and version != "unknown":
                _warn_of_unseen_gpu(server, version)
            places[server] = _on_cpu(server.source, python, len(servers))
        except UsageError as error:  # the others start without it
            places[server] = error
    return places | _on_gpus(on_gpus, known, first)


# --- on GPUs --------------------------------------------------------------------------------------


def gpus() -> list[Gpu]:
    """The GPUs of this machine that this process may use, by ``nvidia-smi`` and
    ``$CUDA_VISIBLE_DEVICES``. Empty without NVIDIA's driver."""
    query = ["nvidia-smi", "--query-gpu=index,uuid,memory.total,memory.free"]
    try:
        answer = subprocess.run(
            [*query, "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=ANSWER_S,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        log.debug("nvidia-smi shows no GPU: %s", error)
        return []
    known: list[Gpu] = []
    for line in answer.splitlines():
        index, uuid, total, free = (cell.strip() for cell in line.split(","))
        if total.isdigit() and free.isdigit():
            known.append(Gpu(int(index), uuid, int(total) << 20, int(free) << 20))
        else:
            log.warning("nvidia-smi does not report the memory of a GPU: %s", line)
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return known
    visible: list[Gpu] = []
    for name in filter(None, map(str.strip, chosen.split(","))):
        visible += [gpu for gpu in known if name == str(gpu.index) or gpu.uuid.startswith(name)]
    return visible


def _on_gpus(
    servers: Mapping[Server, str], known: Sequence[Gpu], first: int
) -> dict[Server, Place | BaseException]:
    places: dict[Server, Place | BaseException] = {}
    chosen: dict[Server, list[Gpu]] = {}
    for server in servers:
        source = server.source
        try:
            if source.gpu is not None:
                chosen[server] = _pinned(source, known)
                continue
            count = source.tensor_parallel or 1
            _refuse_many(source, count, known)
            chosen[server] = [known[(first + at) % len(known)] for at in range(count)]
            first += count
        except UsageError as error:
            places[server] = error
    for server, its_gpus in chosen.items():
        try:
            part = min(_part(server, gpu, chosen) for gpu in its_gpus)
        except UsageError as error:
            places[server] = error
            continue
        numbers = ",".join(str(gpu.index) for gpu in its_gpus)
        log.info("%s: GPU %s, %.1f%% of the memory", server.name, numbers, 100 * part)
        own = {"gpu_memory_utilization": part, "tensor_parallel_size": len(its_gpus)}
        variables = {"CUDA_VISIBLE_DEVICES": numbers, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        places[server] = Place(
            servers[server],
            tuple(flags(own)),
            tuple(variables.items()),
            tuple(gpu.index for gpu in its_gpus),
        )
    return places


def _pinned(source: VllmSource, known: Sequence[Gpu]) -> list[Gpu]:
    """The GPUs that the user chose."""
    by_index = {gpu.index: gpu for gpu in known}
    wanted = source.gpu or ()
    if not set(wanted) <= by_index.keys():
        error = UsageError(
            f"{source.model} must use gpu={list(wanted)}, but the machine has {sorted(by_index)}"
        )
        raise advised(error, "name existing GPUs by their numbers in nvidia-smi")
    return [by_index[index] for index in wanted]


def _refuse_many(source: VllmSource, count: int, known: Sequence[Gpu]) -> None:
    if count > len(known):
        error = UsageError(
            f"{source.model} needs {amount(count, 'GPU')} (tensor_parallel), but the machine has "
            f"{amount(len(known), 'GPU')}"
        )
        raise advised(error, "choose fewer, or a machine with more GPUs")


def _part(server: Server, gpu: Gpu, chosen: Mapping[Server, Sequence[Gpu]]) -> float:
    """The part of this GPU's memory that the server gets: what its user chose, or else an
    equal share of the rest, rounded down, because vLLM refuses a part that is larger than what is
    free."""
    memory = server.source.memory
    if memory is not None:
        return _chosen_bytes(memory, gpu) / gpu.total_bytes
    here = [other.source.memory for other, its_gpus in chosen.items() if gpu in its_gpus]
    fixed = [_chosen_bytes(other, gpu) for other in here if other is not None]
    left = gpu.usable_bytes - CONTEXT_BYTES * len(here) - sum(fixed)
    share = left / (len(here) - len(fixed))
    part = math.floor(share / gpu.total_bytes * 10_000) / 10_000
    if part <= 0:
        error = UsageError(
            f"nothing is left on GPU {gpu.index} for {server.name}: {gpu.free_bytes / 1e9:.1f} GB "
            "of its memory are free"
        )
        raise advised(
            error,
            "choose another GPU (gpu=), or give the other members there less (memory=)",
        )
    return part


def _chosen_bytes(memory: float, gpu: Gpu) -> float:
    return memory * gpu.total_bytes if memory <= 1 else memory


# --- on the CPU -----------------------------------------------------------------------------------


def _warn_of_unseen_gpu(server: Placed, version: str) -> None:
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


def _on_cpu(source: VllmSource, python: str, count: int) -> Place:
    """The flags and variables of one of ``count`` servers that a CPU runs side by side. A variable
    of the user counts more."""
    if source.gpu:
        error = UsageError(
            f"{source.model} must run on gpu={list(source.gpu)}, but there is no GPU"
        )
        raise advised(error, "leave gpu= out, or see what nvidia-smi shows, and which vLLM this is")
    own: dict[str, object] = {
        "enforce_eager": True,  # compiling takes a minute
        "block_size": 32,  # vLLM's 128 would read up to 127 tokens again for each scored token
        "tensor_parallel_size": source.tensor_parallel,
    }
    unset: tuple[str, ...] = (CPU_CACHE,)  # it would replace the flag
    if source.memory is not None:
        own["kv_cache_memory_bytes"] = _part_of_memory(source.memory)
    elif os.environ.get(CPU_CACHE) and "kv_cache_memory" not in source.engine_args:
        unset = ()
    else:
        own["kv_cache_memory_bytes"] = CPU_CACHE_BYTES
    usual = {
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # several servers must not take the same cores
        "OMP_NUM_THREADS": str(max(1, _cores() // count)),
    }
    variables = {name: os.environ.get(name, value) for name, value in usual.items()}
    return Place(python, tuple(flags(own)), tuple(variables.items()), unset=unset)


def _part_of_memory(memory: float) -> int:
    if memory > 1:
        return int(memory)
    return int(memory * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def _cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
