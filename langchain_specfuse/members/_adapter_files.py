"""From a folder that peft wrote, or a hub id, to the matrices of an adapter. peft itself is not needed.

Refuses what is not safe (pickled weights) and what cannot be added row by row (DoRA, trained embeddings, a changed
base) with an error that says what to do. Knows files; nothing of the model that the adapter is for.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import MemberError, UsageError, advised
from ._adapters import Part

CONFIG, MATRICES = "adapter_config.json", "adapter_model.safetensors"
MERGE = "merge it into its base: merge_and_unload() and save_pretrained() of peft"
PLAIN_BEGINNINGS = (True, False, None, "gaussian", "orthogonal", "eva")
"""Ways to begin the training that leave the base as it is."""
BEYOND = (
    "use_dora",
    "alora_invocation_tokens",
    "layer_replication",
    "lora_bias",
    "modules_to_save",
    "target_parameters",
    "trainable_token_indices",
    "use_bdlora",
    "use_qalora",
    "arrow_config",
    "kasa_config",
    "monteclora_config",
)
"""What a LoRA can have beside two matrices per linear layer."""


def adapter_parts(adapter: str, name: str) -> dict[str, Part]:
    """Per module of the base what this adapter adds to it. ``name``: the member that wants it."""
    folder = _folder(adapter, name)
    config = _config(folder, adapter)
    _refuse_beyond(config, adapter)
    return _parts(_matrices(folder, adapter), config, adapter)


def _folder(adapter: str, name: str) -> Path:
    path = Path(adapter).expanduser()
    if path.is_dir():
        return path
    if adapter.startswith((".", "/", "~", "\\")) or path.exists():
        what = "is a file, not a folder" if path.exists() else "does not exist"
        error = MemberError(f"adapter {adapter} {what}", member=name, kind="not_found")
        raise advised(error, f"name a folder with {CONFIG} and {MATRICES}, or a hub id")
    return _downloaded(adapter, name)


def _downloaded(adapter: str, name: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(adapter, allow_patterns=["adapter_*"]))
    except Exception as error:  # offline, no such repository, no access, no valid id: the hub's client raises anything
        told = f"adapter {adapter} was not found or could not be read: {str(error)[:300]}"
        missing = MemberError(told, member=name, kind="not_found")
        raise advised(missing, "a folder must exist, a hub id needs a network or a filled cache") from error


def _config(folder: Path, adapter: str) -> dict[str, Any]:
    if not (folder / CONFIG).is_file():
        error = UsageError(f"{adapter} holds no adapter: it has no {CONFIG}")
        raise advised(error, "name a folder that save_pretrained() of peft wrote; a whole model is given as the model")
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        broken = UsageError(f"{adapter} has a broken {CONFIG}: {error}")
        raise advised(broken, "copy or save the adapter again") from error
    kind = config.get("peft_type") if isinstance(config, dict) else None
    if kind != "LORA":
        raise advised(UsageError(f"{adapter} is an adapter of the kind {kind}; members take LORA"), MERGE)
    return dict(config)


def _refuse_beyond(config: Mapping[str, Any], adapter: str) -> None:
    more = [key for key in BEYOND if config.get(key)]
    if config.get("bias", "none") != "none":
        more.append("bias")
    if config.get("init_lora_weights") not in PLAIN_BEGINNINGS:
        more.append(f"init_lora_weights={config['init_lora_weights']!r}")
    if more:
        raise advised(UsageError(f"{adapter} is more than two matrices per linear layer: {', '.join(more)}"), MERGE)


def _matrices(folder: Path, adapter: str) -> dict[str, Any]:
    from safetensors.torch import load_file

    if not (folder / MATRICES).is_file():
        pickled = sorted(file.name for file in folder.glob("adapter_model.*") if file.suffix in (".bin", ".pt", ".pth"))
        if pickled:
            error = UsageError(f"{adapter} has only pickled weights ({pickled[0]}): loading them could run any code")
            raise advised(error, "convert it once: model.save_pretrained(folder, safe_serialization=True) of peft")
        raise advised(UsageError(f"{adapter} has no {MATRICES}"), "copy or save the adapter again")
    try:
        return dict(load_file(folder / MATRICES))
    except Exception as error:  # safetensors' own class of errors
        broken = UsageError(f"{adapter} has a broken {MATRICES}: {error}")
        raise advised(broken, "copy or save the adapter again") from error


def _parts(matrices: Mapping[str, Any], config: Mapping[str, Any], adapter: str) -> dict[str, Part]:
    found: dict[str, dict[str, Any]] = {}
    for key, matrix in matrices.items():
        told = re.fullmatch(r"base_model\.model\.(.+)\.lora_([AB])\.weight", key)
        if told is None or matrix.dim() != 2:
            error = UsageError(f"{adapter} has a tensor that is no matrix of a linear layer: {key}")
            raise advised(error, MERGE)
        found.setdefault(told[1], {})[told[2]] = matrix
    half = next((path for path, pair in found.items() if len(pair) < 2), None)
    if half or not found:
        error = UsageError(f"{adapter} is not whole: " + (f"half of {half} is missing" if half else "it is empty"))
        raise advised(error, "copy or save the adapter again")
    return {
        path: Part(pair["A"], pair["B"] * _scale(path, len(pair["A"]), config)) for path, pair in sorted(found.items())
    }


def _scale(path: str, rank: int, config: Mapping[str, Any]) -> float:
    """How much the addition to this module counts.

    >>> told = {"lora_alpha": 8, "alpha_pattern": {"q_proj": 2}}
    >>> _scale("layers.0.k_proj", 4, told), _scale("layers.0.q_proj", 4, told)
    (2.0, 0.5)
    >>> _scale("layers.0.k_proj", 4, told | {"use_rslora": True})
    4.0
    """
    patterns = config.get("alpha_pattern") or {}
    own = next((patterns[key] for key in patterns if re.match(rf"(.*\.)?({key})$", path)), None)
    alpha = config.get("lora_alpha", 8) if own is None else own
    return float(alpha) / (math.sqrt(rank) if config.get("use_rslora") else rank)
