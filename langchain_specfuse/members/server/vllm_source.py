"""What one vLLM server is started with: its model and its arguments."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import UsageError, advised, amount
from .. import hub

_RESERVED = {
    "model": "it is the first argument",
    "served_model_name": "members are named by name=",
    "host": "the server listens on this machine only",
    "port": "a free one is taken",
    "uds": "the server listens at a port of this machine",
    "grpc": "the server speaks HTTP",
    "grpc_port": "the server speaks HTTP",
    "ssl_": "it listens on this machine only, without TLS",
    "headless": "the server answers requests itself",
    "api_server_count": "one process answers the requests of all members",
    "config": "write its flags into engine_args",
    "lora_modules": "adapters are named by adapter=, a member each",
    "device": "pass gpu=; on a CPU, install vLLM's build for CPUs",
    "device_ids": "pass gpu=",
    "tensor_parallel_size": "pass tensor_parallel=",
    "gpu_memory_utilization": "pass memory=",
    "device_memory_utilization": "pass memory=",
}
"""Flags that the member sets itself, and what to do instead. One that ends with ``_`` stands for
all that begin like this."""
_UNPLANNED = (
    "pipeline_parallel_size",
    "prefill_context_parallel_size",
    "data_parallel_",
    "nnodes",
    "node_rank",
    "master_",
)
"""Flags that start processes on further GPUs or machines, which other members may have."""
_BACKENDS = (None, "mp", "uni")
"""Values of ``distributed_executor_backend`` whose processes are children of the server."""
_SHORT = 3
"""vLLM's one-letter and similar flags have at most so many letters, and no others do."""
LEAST_BYTES = 1e6
"""Fewer bytes of memory are a mistake: gigabytes were meant, probably."""


@dataclass(frozen=True, slots=True)
class VllmSource:
    """What distinguishes one server from another."""

    model: str
    python: str | None = None
    gpu: tuple[int, ...] | None = None
    memory: float | None = None
    tensor_parallel: int | None = None
    engine_args: str = "{}"
    """As JSON."""
    batch_invariant: bool = False


def source_of(
    model: str | os.PathLike[str],
    *,
    python: str | os.PathLike[str] | None = None,
    gpu: int | Sequence[int] | None = None,
    memory: float | None = None,
    tensor_parallel: int | None = None,
    engine_args: Mapping[str, Any] | None = None,
    batch_invariant: bool = False,
) -> VllmSource:
    """The source that these arguments of :class:`.VllmMember` describe. Refuses those that
    contradict each other."""
    name = os.fspath(model)
    numbers = _numbers(gpu)
    _check_place(name, numbers, memory, tensor_parallel)
    return VllmSource(
        name,
        None if python is None else os.fspath(python),
        numbers,
        memory,
        tensor_parallel,
        _as_json(engine_args or {}),
        batch_invariant,
    )


def _numbers(gpu: int | Sequence[int] | None) -> tuple[int, ...] | None:
    if gpu is None:
        return None
    return (gpu,) if isinstance(gpu, int) else tuple(gpu)


def _check_place(
    name: str, gpu: tuple[int, ...] | None, memory: float | None, tensor_parallel: int | None
) -> None:
    """Refuse what cannot work on any machine."""
    if gpu is not None and (not gpu or len(set(gpu)) < len(gpu) or min(gpu) < 0):
        error = UsageError(f"{name} must use at least one GPU, each once, got gpu={list(gpu)}")
        raise advised(error, "name GPUs by their numbers in nvidia-smi: gpu=0 or gpu=[0, 1]")
    if gpu is not None and tensor_parallel not in (None, len(gpu)):
        error = UsageError(
            f"{name} must use {amount(len(gpu), 'GPU')}, but tensor_parallel is {tensor_parallel}"
        )
        raise advised(error, "leave one of the two out")
    if memory is not None and 1 < memory < LEAST_BYTES:
        error = UsageError(f"the memory of {name} is in bytes, and no model fits into {memory:g}")
        raise advised(error, f"for {memory:g} GB, pass memory={memory:g}e9; 0.5 is half of the GPU")


def _as_json(arguments: Mapping[str, Any]) -> str:
    """``engine_args`` as text. Refuses those that the member sets itself."""
    plain = {str(name).lstrip("-").replace("-", "_"): value for name, value in arguments.items()}
    for name, value in plain.items():
        _refuse_reserved(name, value)
    try:
        return json.dumps(plain, sort_keys=True)
    except TypeError as error:
        unread = UsageError(f"engine_args must be plain values, got {arguments!r:.200}")
        raise advised(unread, f"{error}; for example {{'max_model_len': 8192}}") from None


def _refuse_reserved(name: str, value: Any) -> None:
    """Refuse a flag that the member sets itself, or that takes what other members may have."""
    for flag, advice in _RESERVED.items():
        full = _full_name(name, flag)
        if full is not None:
            error = UsageError(f"engine_args holds {full!r}, which the member sets itself")
            raise advised(error, advice)
    unplanned = [_full_name(name, flag) for flag in _UNPLANNED]
    if name == "distributed_executor_backend" and value not in _BACKENDS:
        unplanned.append(name)
    for full in filter(None, unplanned):
        error = UsageError(
            f"engine_args holds {full!r}, which takes GPUs or machines that other members may have"
        )
        raise advised(
            error,
            "divide a model with tensor_parallel=; for anything else, start `vllm serve` yourself "
            "and name its address as the member",
        )
    if len(name) <= _SHORT:
        error = UsageError(f"engine_args holds {name!r}, which is short for a flag")
        raise advised(error, "write the flag's whole name, for example quantization")


def _full_name(name: str, flag: str) -> str | None:
    """The flag as which vLLM would read this name, which may be only its beginning; None if it is
    another flag."""
    if flag.startswith(name):
        return flag
    return name if flag.endswith("_") and name.startswith(flag) else None


def downloads(source: VllmSource) -> Path | None:
    """The folder into which vLLM fetches the model; None if it fetches nothing, or it is not known
    where."""
    if os.path.exists(os.path.expanduser(source.model)):
        return None
    chosen = json.loads(source.engine_args).get("download_dir")
    if chosen is not None:
        return Path(chosen)
    try:
        return hub.downloads(source.model)
    except ImportError:
        return None
