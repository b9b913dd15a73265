"""LoRA adapters, applied by peft: members of one base differ by small additions to its weights, and
share the base.

peft puts its layers into the model. A pass uses one adapter or none, and the base's own weights
stay unchanged. An adapter that would change them, or that would load anything but numbers, is
refused.
"""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import torch

from ...errors import MemberError, UsageError, advised

CONFIG, MATRICES = "adapter_config.json", "adapter_model.safetensors"
KNOWN = (
    "peft_type task_type auto_mapping peft_version base_model_name_or_path revision inference_mode "
    "r target_modules "
    "exclude_modules lora_alpha lora_dropout fan_in_fan_out use_rslora use_dora "
    "layers_to_transform layers_pattern "
    "rank_pattern alpha_pattern eva_config megatron_core qalora_group_size"
)
"""Settings of an adapter that leave the base as it is. Others must be off."""
UNCHANGED_BASE = (True, False, None, "gaussian", "orthogonal", "eva")
"""Values of init_lora_weights that leave the base as it is."""
MERGE = "merge it into its base: merge_and_unload() and save_pretrained() of peft"
_IDS = count(1)


@dataclass(frozen=True, eq=False)
class Adapter:
    """An adapter in memory, for as long as something refers to this object."""

    name: str = field(default_factory=lambda: f"adapter{next(_IDS)}")
    """What peft calls it."""


class Adapters:
    """All adapters of one model in memory."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._alive: WeakValueDictionary[str, Adapter] = WeakValueDictionary()
        self._on: str | None = None
        """The name of the adapter that is switched on; empty if unknown."""
        self._lock = threading.RLock()
        """A member may load while another one's pass is under way."""

    def get(self, adapter: str, member: str) -> Adapter:
        """The one copy of the adapter in a folder that peft wrote, or of a hub id. ``member``: for
        errors."""
        with self._lock:
            loaded = self._alive.get(adapter)
            if loaded is None:
                folder = _folder(adapter, member)
                _refuse(folder, adapter)
                loaded = self._alive[adapter] = self._load(folder, adapter)
            return loaded

    @torch.inference_mode(False)
    @torch.no_grad()
    def _load(self, folder: Path, adapter: str) -> Adapter:
        from peft import PeftConfig, inject_adapter_in_model, set_peft_model_state_dict
        from safetensors.torch import load_file

        loaded, problem = Adapter(), ""
        try:
            # peft warns that there are several adapters, which is intended here
            with warnings.catch_warnings(action="ignore"):
                config = PeftConfig.from_pretrained(str(folder), inference_mode=True)
                inject_adapter_in_model(config, self._model, loaded.name)
            matrices = {
                key.removeprefix("base_model.model."): matrix
                for key, matrix in load_file(folder / MATRICES).items()
            }
            keys = set_peft_model_state_dict(self._model, matrices, loaded.name)
            missing = [key for key in keys.missing_keys if f".{loaded.name}" in key]
            misfits = sorted([*keys.unexpected_keys, *missing])
            if misfits:
                problem = f"matrices are missing or too many: {', '.join(misfits[:3])}"
        # An adapter that does not fit makes peft, torch and safetensors raise anything.
        except Exception as error:
            problem = f"{type(error).__name__}: {str(error)[:400]}"
        self._on = ""
        if problem:
            self._delete(loaded.name)
            misfit = UsageError(f"adapter {adapter} cannot be used with this base: {problem}")
            raise advised(
                misfit,
                "name the base that it was trained on (base_model_name_or_path), or copy it again",
            )
        return loaded

    def prune(self) -> None:
        """Free the adapters that nothing refers to any more."""
        with self._lock:
            alive = {adapter.name for adapter in self._alive.values()}
            for name in set(getattr(self._model, "peft_config", {})) - alive:
                self._delete(name)

    def _delete(self, name: str) -> None:
        from peft.functional import delete_adapter

        with warnings.catch_warnings(action="ignore"):  # it may be the one that is switched on
            delete_adapter(self._model, name, "lora_")
        getattr(self._model, "peft_config", {}).pop(name, None)
        self._on = ""

    @contextmanager
    def reading(self, adapter: Adapter | None) -> Iterator[None]:
        """A context in which the model uses this adapter. The adapter stays switched on until
        :meth:`off`, because switching takes a while."""
        with self._lock:
            self._switch(adapter.name if adapter else None)
            yield

    def off(self) -> None:
        """Switch all adapters off, because other code may hold the model too."""
        with self._lock:
            self._switch(None)

    def _switch(self, name: str | None) -> None:
        if name != self._on:
            from peft.functional import set_adapter

            set_adapter(self._model, name or [], inference_mode=True)
            self._on = name


def _folder(adapter: str, member: str) -> Path:
    path = Path(adapter).expanduser()
    if path.is_dir():
        return path
    if adapter.startswith((".", "/", "~", "\\")) or path.exists():
        what = "is a file, not a folder" if path.exists() else "does not exist"
        error = MemberError(f"adapter {adapter} {what}", member=member, kind="not_found")
        raise advised(error, f"name a folder with {CONFIG} and {MATRICES}, or a hub id")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(adapter, allow_patterns=["adapter_*"]))
    # offline, no such repository, no access: the hub's client raises anything
    except Exception as error:
        message = f"adapter {adapter} was not found or could not be read: {str(error)[:300]}"
        missing = MemberError(message, member=member, kind="not_found")
        raise advised(
            missing, "a folder must exist, a hub id needs a network or a filled cache"
        ) from error


def _refuse(folder: Path, adapter: str) -> None:
    """Refuse anything that is not a LoRA, is pickled, or would change the base."""
    if not (folder / CONFIG).is_file():
        error = UsageError(f"{adapter} contains no adapter: it has no {CONFIG}")
        raise advised(
            error,
            "name a folder that save_pretrained() of peft wrote; a whole model is given as the "
            "model",
        )
    if not (folder / MATRICES).is_file():  # peft would open a pickle, which could run any code
        advice = "pickled weights are refused; convert them: model.save_pretrained(folder) of peft"
        raise advised(UsageError(f"{adapter} has no {MATRICES}"), advice)
    try:
        config = dict(json.loads((folder / CONFIG).read_text(encoding="utf-8")))
    except (ValueError, TypeError, RecursionError) as error:
        broken = UsageError(f"{adapter} has a broken {CONFIG}: {error}")
        raise advised(broken, "copy or save the adapter again") from error
    if config.get("peft_type") != "LORA":
        kind = UsageError(
            f"{adapter} is an adapter of the kind {config.get('peft_type')}; only LORA can be used"
        )
        raise advised(kind, MERGE)
    allowed = {"bias": ("none",), "init_lora_weights": UNCHANGED_BASE}
    more = []
    for key, value in config.items():
        is_set = value not in allowed[key] if key in allowed else bool(value)
        if is_set and key not in KNOWN.split():
            more.append(key)
    if more:
        raise advised(
            UsageError(f"{adapter} does more than add to linear layers: {', '.join(more)}"), MERGE
        )
