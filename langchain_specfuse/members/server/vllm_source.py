"""What one vLLM server is started with: its model and arguments, and the memory that they need."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
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
    "uds": "the server listens at a port of this machine",
    "grpc": "the server speaks HTTP",
    "grpc_port": "the server speaks HTTP",
    "ssl_": "it listens on this machine only, without TLS",
    "headless": "the server answers requests itself",
    "api_server_count": "one process answers the requests of all members",
    "config": "write its flags into engine_args, where the plan sees them",
    "lora_modules": "adapters are named by adapter=, a member each",
    "device": "pass gpu=; on a CPU, install vLLM's build for CPUs",
    "device_ids": "pass gpu=",
    "tensor_parallel_size": "pass tensor_parallel=",
    "gpu_memory_utilization": "pass memory=, which the plan of all members knows",
    "device_memory_utilization": "pass memory=, which the plan of all members knows",
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
"""Flags that start processes on further GPUs or machines, of which the plan does not know."""
_BACKENDS = (None, "mp", "uni")
"""Values of ``distributed_executor_backend`` whose processes are children of the server."""
_SHORT = 3
"""vLLM's one-letter and similar flags have at most so many letters, and no others do."""
_CACHE = "kv_cache_memory_bytes"
_BYTE_CACHES = ("fp8", "int8")
"""How the names of caches begin whose numbers take a byte. Others take as much as the model's."""
CPU_CACHE = "VLLM_CPU_KVCACHE_SPACE"
"""A variable of vLLM for CPUs: the GiB of the cache, instead of the flag."""


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
    for name, value in plain.items():
        _refuse_reserved(name, value)
        if is_secret(name):
            error = UsageError(f"engine_args holds {name!r}, but arguments of processes are public")
            raise advised(error, "put it into an environment variable, such as HF_TOKEN")
    cache = plain.pop("kv_cache_memory", None)  # the name in vLLM's own log
    cache = plain.get(_CACHE, cache)
    if cache is not None:
        if memory is not None:
            error = UsageError(f"memory= and the engine argument {_CACHE} are both given")
            raise advised(error, "leave one of the two out")
        plain[_CACHE] = _bytes(cache)
    if any(found_in({name: _read(value) for name, value in plain.items()})):
        error = UsageError("engine_args holds a secret, but arguments of processes are public")
        raise advised(error, "put it into a file or an environment variable that vLLM reads")
    try:
        return json.dumps(plain, sort_keys=True)
    except TypeError as error:
        unread = UsageError(f"engine_args must be plain values, got {masked(arguments)!r:.200}")
        raise advised(unread, f"{error}; for example {{'max_model_len': 8192}}") from None


def _read(value: Any) -> Any:
    """What vLLM reads in an argument, which may be an object as text."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        with suppress(ValueError):
            return json.loads(value)
    return value


def _refuse_reserved(name: str, value: Any) -> None:
    """Refuse a flag that the member sets itself, or that takes what the plan does not count."""
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
            f"engine_args holds {full!r}, which takes GPUs or machines that the plan of all "
            "members does not count"
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


def _bytes(value: Any) -> int:
    """The size of a cache, as a number or as vLLM reads it: "4G" (GiB) or "4.5g" (GB)."""
    size = value if isinstance(value, int | float) and not isinstance(value, bool) else 0
    found = re.fullmatch(r"(\d+)([KMGT]?)|(\d+(?:\.\d+)?)([kmgt])", str(value).strip())
    if isinstance(value, str) and found and found[1]:
        size = int(found[1]) << (10 * " KMGT".index(found[2] or " "))
    elif isinstance(value, str) and found:
        size = float(found[3]) * 1000 ** " kmgt".index(found[4])
    if not planning.LEAST_BYTES <= size < float("inf"):
        error = UsageError(
            f"the engine argument {_CACHE} is a number of bytes, at least "
            f"{planning.LEAST_BYTES:,.0f}; got {masked(value)!r:.80}"
        )
        raise advised(error, "for example 4e9 or '4G'; leave it out to have it planned")
    return int(size)


# --- memory --------------------------------------------------------------------------------------


def size_of(source: VllmSource) -> planning.Size:
    """The size of the model as vLLM loads it."""
    chosen = json.loads(source.engine_args)
    dtype = chosen.get("dtype", "auto")
    try:
        size = planning.size_of(
            source.model,
            dtype=dtype,
            quantization=chosen.get("quantization"),
            revision=chosen.get("revision"),
        )
    except FileNotFoundError as error:
        missing = MemberError(f"{source.model} contains no model: {error}", kind="not_found")
        raise advised(missing, "name a hub id, or a folder as save_pretrained writes it") from error
    if not str(chosen.get("kv_cache_dtype")).startswith(_BYTE_CACHES):
        return size
    wide = dtype in ("float32", "float")
    per_token = size.cache_bytes_per_token // (4 if wide else 2)
    return replace(size, cache_bytes_per_token=per_token)


def is_here(source: VllmSource) -> bool:
    """Whether the model is on this disk, as far as its config says it."""
    if os.path.exists(os.path.expanduser(source.model)):
        return True
    chosen = json.loads(source.engine_args)
    folder = chosen.get("download_dir")
    if folder is not None:
        return os.path.exists(folder)
    return hub.is_cached(source.model, chosen.get("revision"))


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
        "caches": {
            name: size for name, source in named if (size := chosen_cache(source)) is not None
        },
    }


def chosen_cache(source: VllmSource) -> int | None:
    """The bytes of the cache on each GPU that the user chose as an argument of vLLM."""
    size: int | None = json.loads(source.engine_args).get(_CACHE)
    return size


def chosen_length(source: VllmSource) -> int | None:
    """The longest context that the user chose as an argument of vLLM; None: vLLM chooses."""
    length = json.loads(source.engine_args).get("max_model_len")
    return length if isinstance(length, int) and length > 0 else None


def refuse_gpu(source: VllmSource) -> None:
    """Refuse a server that must run on a GPU where there is none that it can use."""
    if source.gpu:
        error = UsageError(
            f"{source.model} must run on gpu={list(source.gpu)}, but there is no GPU"
        )
        raise advised(error, "leave gpu= out, or see what nvidia-smi shows, and which vLLM this is")


def cache_bytes(source: VllmSource) -> int:
    """The cache of a server on a CPU."""
    chosen = chosen_cache(source)
    if chosen is not None:
        return chosen
    if source.memory is None:
        usual = os.environ.get(CPU_CACHE, "")
        return int(usual) << 30 if usual.isdecimal() else planning.CPU_CACHE_BYTES
    if source.memory > 1:
        return int(source.memory)
    return int(source.memory * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
