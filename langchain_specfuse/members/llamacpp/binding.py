"""llama.cpp's C interface, as the package xllamacpp brings it: the structures and functions that
are used here.

Struct layouts change between builds of llama.cpp. When the library is loaded, the known defaults
must be found at their expected offsets, with or without the fields that were added last; otherwise
the build is refused.
"""

from __future__ import annotations

import ctypes
import logging
import os
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import (
    POINTER,
    Structure,
    c_bool,
    c_char_p,
    c_float,
    c_int8,
    c_int32,
    c_size_t,
    c_uint32,
    c_void_p,
)
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil

from ...errors import UsageError, advised

log = logging.getLogger("langchain_specfuse")

INSTALL = 'pip install "langchain-specfuse[llamacpp]"'
TESTED = "2026.10.11549"
"""The newest release of xllamacpp that was tested."""
NO_ROOM = 1
"""What ``llama_decode`` returns where the cache is full."""
CACHE_TYPES = {"f16": 1, "q8_0": 8, "q4_0": 2}
"""The types in which keys and values may be kept, with ggml's numbers."""
WAITING = {"GOMP_SPINCOUNT": "1000"}
"""How long a thread spins while it waits for the others, before it sleeps: about 10 microseconds.
With the usual 3 milliseconds, spinning threads take the cores from other programs, and even from
the thread that they wait for."""
_ERROR = 4
"""The level of errors in llama.cpp's log."""


def _struct(name: str, **kinds: Any) -> type[Structure]:
    """A C struct; ``room`` is for the fields behind those that are needed here."""
    kinds.pop("room", None)
    return type(name, (Structure,), {"_fields_": [*kinds.items(), ("room", c_int8 * 256)]})


def _several(kind: Any, names: str) -> dict[str, Any]:
    return dict.fromkeys(names.split(), kind)


ModelParams = _struct(
    "ModelParams",
    **_several(c_void_p, "devices overrides"),
    **_several(c_int32, "n_gpu_layers split_mode load_mode lazy_mode main_gpu"),
    **_several(c_void_p, "tensor_split progress progress_data kv_overrides"),
    **_several(c_bool, "vocab_only check_tensors use_extra_bufts no_host no_alloc load_mtp"),
)
ContextParams = _struct(
    "ContextParams",
    **_several(
        c_uint32, "n_ctx n_batch n_ubatch n_seq_max n_rs_seq n_outputs_max n_outputs_max_per_seq"
    ),
    **_several(
        c_int32, "n_threads n_threads_batch type rope_scaling pooling attention flash_attention"
    ),
    **_several(c_float, "rope_base rope_scale yarn_ext yarn_attn yarn_fast yarn_slow"),
    yarn_orig_ctx=c_uint32,
    defrag=c_float,
    **_several(c_void_p, "cb_eval cb_eval_data"),
    **_several(c_int32, "type_k type_v"),
    moe_cache=c_size_t,
    **_several(c_void_p, "abort abort_data"),
    **_several(c_bool, "embeddings offload_kqv no_perf op_offload swa_full kv_unified"),
)
ADDED = {ModelParams: "lazy_mode", ContextParams: "moe_cache"}
"""Struct -> the field that some supported releases do not have yet."""
DEFAULTS: dict[type[Structure], dict[str, Any]] = {
    ModelParams: {
        "n_gpu_layers": -1,
        "split_mode": 1,
        "load_mode": -1,
        "main_gpu": 0,
        "kv_overrides": None,
        "vocab_only": False,
        "check_tensors": False,
        "use_extra_bufts": True,
        "no_host": False,
        "no_alloc": False,
    },
    ContextParams: {
        "n_ctx": 512,
        "n_batch": 2048,
        "n_ubatch": 512,
        "n_seq_max": 1,
        "n_outputs_max": 0,
        "n_outputs_max_per_seq": 1,
        "flash_attention": -1,
        "yarn_slow": -1.0,
        "defrag": -1.0,
        "type_k": 1,
        "type_v": 1,
        "abort_data": None,
        "embeddings": False,
        "offload_kqv": True,
        "op_offload": True,
        "swa_full": True,
        "kv_unified": False,
    },
}
"""Struct -> the defaults that must be found in it."""


class Batch(Structure):
    """Tokens of several sequences that are read in one call."""

    _fields_ = (
        ("size", c_int32),
        ("token", POINTER(c_int32)),
        ("embd", c_void_p),
        ("position", POINTER(c_int32)),
        ("n_sequences", POINTER(c_int32)),
        ("sequences", POINTER(POINTER(c_int32))),
        ("has_logits", POINTER(c_int8)),
    )


FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "llama_backend_init": (None,),
    "llama_log_set": (None, c_void_p, c_void_p),
    "llama_supports_gpu_offload": (c_bool,),
    "ggml_backend_dev_count": (c_size_t,),
    "ggml_backend_dev_get": (c_void_p, c_size_t),
    "ggml_backend_dev_type": (c_int32, c_void_p),
    "ggml_backend_dev_name": (c_char_p, c_void_p),
    "ggml_backend_dev_description": (c_char_p, c_void_p),
    "llama_model_default_params": (ModelParams,),
    "llama_context_default_params": (ContextParams,),
    "llama_model_load_from_file": (c_void_p, c_char_p, ModelParams),
    "llama_model_free": (None, c_void_p),
    "llama_model_get_vocab": (c_void_p, c_void_p),
    "llama_model_meta_val_str": (c_int32, c_void_p, c_char_p, c_char_p, c_size_t),
    "llama_model_desc": (c_int32, c_void_p, c_char_p, c_size_t),
    "llama_model_n_params": (ctypes.c_uint64, c_void_p),
    "llama_model_has_encoder": (c_bool, c_void_p),
    "llama_model_has_decoder": (c_bool, c_void_p),
    "llama_adapter_lora_init": (c_void_p, c_void_p, c_char_p),
    "llama_set_adapters_lora": (c_int32, c_void_p, POINTER(c_void_p), c_size_t, POINTER(c_float)),
    "llama_init_from_model": (c_void_p, c_void_p, ContextParams),
    "llama_free": (None, c_void_p),
    "llama_get_memory": (c_void_p, c_void_p),
    "llama_memory_seq_rm": (c_bool, c_void_p, c_int32, c_int32, c_int32),
    "llama_memory_seq_cp": (None, c_void_p, c_int32, c_int32, c_int32, c_int32),
    "llama_state_seq_get_size": (c_size_t, c_void_p, c_int32),
    "llama_state_seq_get_data": (c_size_t, c_void_p, c_void_p, c_size_t, c_int32),
    "llama_state_seq_set_data": (c_size_t, c_void_p, c_void_p, c_size_t, c_int32),
    "llama_decode": (c_int32, c_void_p, Batch),
    "llama_get_logits": (POINTER(c_float), c_void_p),
    "llama_vocab_n_tokens": (c_int32, c_void_p),
    "llama_vocab_bos": (c_int32, c_void_p),
    "llama_vocab_eos": (c_int32, c_void_p),
    "llama_vocab_get_add_bos": (c_bool, c_void_p),
    "llama_vocab_is_eog": (c_bool, c_void_p, c_int32),
    "llama_vocab_get_attr": (c_int32, c_void_p, c_int32),
    "llama_tokenize": (
        c_int32,
        c_void_p,
        c_char_p,
        c_int32,
        POINTER(c_int32),
        c_int32,
        c_bool,
        c_bool,
    ),
    "llama_token_to_piece": (c_int32, c_void_p, c_int32, c_char_p, c_int32, c_int32, c_bool),
}
"""Name -> what it returns, then its arguments."""


class Complaints(threading.local):
    """The last errors that llama.cpp has logged, apart for each thread, because models load side by
    side. If a call returns nothing, they give the reason."""

    def __init__(self) -> None:
        self.lines: deque[str] = deque(maxlen=4)


COMPLAINTS = Complaints()


@ctypes.CFUNCTYPE(None, c_int32, c_char_p, c_void_p)
def _listen(level: int, text: bytes, _: int | None) -> None:
    line = text.decode("utf-8", "replace").strip()
    if level == _ERROR and line:
        COMPLAINTS.lines.append(line)
        log.debug("llama.cpp: %s", line)


@contextmanager
def _waiting_briefly() -> Iterator[None]:
    """Set the variables that OpenMP reads when it is loaded, unless the user has set others."""
    if os.environ.keys() & {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}:
        yield
        return
    os.environ |= WAITING
    try:
        yield
    finally:
        for name in WAITING:
            del os.environ[name]


@cache
def llamacpp() -> Any:
    """The library, loaded and checked."""
    spec = find_spec("xllamacpp")
    if spec is None or not spec.submodule_search_locations:
        raise advised(
            UsageError("a .gguf file is read by llama.cpp, and xllamacpp is not installed"), INSTALL
        )
    folder = Path(next(iter(spec.submodule_search_locations)))
    files = sorted(folder.glob("xllamacpp*.[sp][oy]*"))
    try:
        library = next(path for path in files if path.suffix in (".so", ".pyd"))
        with _waiting_briefly():
            lib = ctypes.CDLL(os.fspath(library))
        layouts = {
            ModelParams: _layout(lib.llama_model_default_params, ModelParams),
            ContextParams: _layout(lib.llama_context_default_params, ContextParams),
        }
        for name, (result, *arguments) in FUNCTIONS.items():
            function = getattr(lib, name)
            function.restype = layouts.get(result, result)
            function.argtypes = [layouts.get(kind, kind) for kind in arguments]
    except (OSError, AttributeError, StopIteration) as error:
        raise advised(
            UsageError(f"llama.cpp cannot be loaded from xllamacpp: {error}"), INSTALL
        ) from error
    lib.llama_log_set(ctypes.cast(_listen, c_void_p), None)
    lib.llama_backend_init()
    return lib


def _layout(read_defaults: Any, params: type[Structure]) -> type[Structure]:
    """The layout of a struct in this build, by what the function returns as its defaults: the
    newest, or the one without the added field. Raises if neither fits."""
    kinds = {name: kind for name, kind, *_ in params._fields_}
    without = {name: kind for name, kind in kinds.items() if name != ADDED[params]}
    for layout in (params, _struct(params.__name__, **without)):
        read_defaults.restype, read_defaults.argtypes = layout, []
        found = read_defaults()
        if all(getattr(found, name) == value for name, value in DEFAULTS[params].items()):
            return layout
    unsupported = UsageError(
        f"xllamacpp {version('xllamacpp')} has other structures than the supported releases, such "
        f"as {TESTED}"
    )
    raise advised(unsupported, f"pip install xllamacpp=={TESTED}")


def thread_count() -> int:
    """How many threads compute: ``$OMP_NUM_THREADS``, otherwise one for each core that this process
    may use."""
    chosen = os.environ.get("OMP_NUM_THREADS", "")
    if chosen.isdigit() and int(chosen) > 0:
        return int(chosen)
    if hasattr(os, "sched_getaffinity"):
        allowed = len(os.sched_getaffinity(0))
    else:
        allowed = os.cpu_count() or 1
    return min(allowed, psutil.cpu_count(logical=False) or allowed)


@cache
def gpu() -> tuple[str, str] | None:
    """The first GPU that this build computes on, as torch would call it, and its description; None
    if there is none."""
    lib = llamacpp()
    for at in range(lib.ggml_backend_dev_count() if lib.llama_supports_gpu_offload() else 0):
        device = lib.ggml_backend_dev_get(at)
        # a GPU, or one that shares the CPU's memory
        if lib.ggml_backend_dev_type(device) in (1, 2):
            name = lib.ggml_backend_dev_name(device).decode().lower()
            number = "".join(filter(str.isdigit, name)) or "0"
            place = f"{name.rstrip('0123456789')}:{number}"
            if "metal" in name or name.startswith("mtl"):
                place = "mps"
            return place, lib.ggml_backend_dev_description(device).decode()
    return None
