"""What one vLLM server is started with: its model and arguments, and the memory that they need."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import MemberError, UsageError, advised
from ...secret_values import found_in, is_secret, masked
from .. import hub, planning

_RESERVED = {
    "model": "it is the first argument",
    "served_model_name": "members are named by name=",
    "host": "the server listens on this machine only",
    "port": "a free one is taken",
    "lora_modules": "adapters are named by adapter=, a member each",
    "tensor_parallel_size": "pass tensor_parallel=",
    "gpu_memory_utilization": "pass memory=, which the plan of all members knows",
    "uds": "the server listens at a port of this machine",
    "ssl_keyfile": "it listens on this machine only, without TLS",
    "ssl_certfile": "it listens on this machine only, without TLS",
}
"""Flags that the member sets itself, and what to do instead."""


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
    planning.check_choices(name, numbers, memory, tensor_parallel)
    return VllmSource(
        name,
        None if python is None else os.fspath(python),
        numbers,
        memory,
        tensor_parallel,
        _as_json(engine_args or {}, memory),
        batch_invariant,
    )


def _numbers(gpu: int | Sequence[int] | None) -> tuple[int, ...] | None:
    if gpu is None:
        return None
    return (gpu,) if isinstance(gpu, int) else tuple(gpu)


def _as_json(arguments: Mapping[str, Any], memory: float | None) -> str:
    """``engine_args`` as text. Refuses those that the member sets itself, and keys: other users of
    the machine see the arguments of its processes."""
    plain = {str(name).lstrip("-").replace("-", "_"): value for name, value in arguments.items()}
    for name in plain:
        if name in _RESERVED:
            error = UsageError(f"engine_args holds {name!r}, which the member sets itself")
            raise advised(error, _RESERVED[name])
        if is_secret(name):
            error = UsageError(f"engine_args holds {name!r}, but arguments of processes are public")
            raise advised(error, "put it into an environment variable, such as HF_TOKEN")
    if memory is not None and "kv_cache_memory_bytes" in plain:
        error = UsageError("memory= and the engine argument kv_cache_memory_bytes are both given")
        raise advised(error, "leave one of the two out")
    if any(found_in(plain)):
        error = UsageError("engine_args holds a secret, but arguments of processes are public")
        raise advised(error, "put it into a file or an environment variable that vLLM reads")
    try:
        return json.dumps(plain, sort_keys=True)
    except TypeError as error:
        unread = UsageError(f"engine_args must be plain values, got {masked(arguments)!r:.200}")
        raise advised(unread, f"{error}; for example {{'max_model_len': 8192}}") from None


# --- memory --------------------------------------------------------------------------------------


def size_of(source: VllmSource) -> planning.Size:
    """The size of the model as vLLM loads it."""
    chosen = json.loads(source.engine_args)
    dtype = chosen.get("dtype", "auto")
    try:
        return planning.size_of(source.model, dtype=dtype, quantization=chosen.get("quantization"))
    except FileNotFoundError as error:
        missing = MemberError(f"{source.model} contains no model: {error}", kind="not_found")
        raise advised(missing, "name a hub id, or a folder as save_pretrained writes it") from error


def is_here(source: VllmSource) -> bool:
    """Whether the model is on this disk, as far as its config says it."""
    if os.path.exists(os.path.expanduser(source.model)):
        return True
    folder = json.loads(source.engine_args).get("download_dir")
    if folder is not None:
        return os.path.exists(folder)
    return hub.is_cached(source.model)


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


def chosen_places(sources: Mapping[str, VllmSource]) -> dict[str, dict[str, Any]]:
    """What the users of these servers chose, as arguments of :func:`.place`."""
    named = sources.items()
    return {
        "pinned": {name: source.gpu for name, source in named if source.gpu},
        "memory": {name: source.memory for name, source in named if source.memory},
        "tensor_parallel": {
            name: source.tensor_parallel for name, source in named if source.tensor_parallel
        },
    }


def refuse_gpu(source: VllmSource) -> None:
    """Refuse a server that must run on a GPU where there is none that it can use."""
    if source.gpu:
        error = UsageError(
            f"{source.model} must run on gpu={list(source.gpu)}, but there is no GPU"
        )
        raise advised(error, "leave gpu= out, or see what nvidia-smi shows, and which vLLM this is")


def cache_bytes(source: VllmSource) -> int:
    """The cache of a server on a CPU."""
    chosen = json.loads(source.engine_args).get("kv_cache_memory_bytes")
    if isinstance(chosen, int):
        return chosen
    if source.memory is None:
        return planning.CPU_CACHE_BYTES
    if source.memory > 1:
        return int(source.memory)
    return int(source.memory * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
