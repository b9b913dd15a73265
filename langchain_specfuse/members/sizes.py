"""Computes from a model's files, without loading it, how much memory it needs: its weights, and the
keys and values of each token.

It reads ``config.json`` and the headers of ``*.safetensors``, or the header of a ``.gguf`` file.
For a hub id, it reads the files in the hub's cache, and asks the hub for what is missing, which
sends only these headers. No weights are downloaded, and no engine is imported.

Two libraries were considered and are not used: ``accelerate estimate-memory`` imports torch and the
model's code and counts no caches; hf-mem reads only the hub and counts a sliding window as if the
cache kept every token.

It does not count what an engine needs besides weights and caches (see :mod:`.planning`).
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from io import BytesIO
from math import prod
from pathlib import Path
from typing import Any

from ..errors import MemberError, SpecFuseError, UsageError, advised, imported
from . import files as _files
from . import hub, ollama
from .threads import shown

CONVERSATION = 4096
"""The length of the conversation, in tokens, for which a member must have room."""
CACHE_PER_WEIGHT = 131_072 / 16_060_000_000
"""Bytes of keys and values per token and byte of weights, as Llama-3.1-8B has them. Used where a
config does not describe the model's attention."""
BYTES = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "float64": 8,
    "float32": 4,
    "float": 4,
    "float16": 2,
    "half": 2,
    "bfloat16": 2,
}
"""Bytes of a number, by its name in a safetensors header or in torch."""
HALF = 2
MOST_HEADER_BYTES = 100_000_000
"""No safetensors header is longer, by the format's definition."""
MOST_LAYERS = 10_000
QUANTIZED = {"fp8": 1.0, "ptpc_fp8": 1.0, "experts_int8": 1.0, "bitsandbytes": 0.5, "mxfp8": 1.0}
"""vLLM's ways to quantize plain weights while it loads them -> bytes per weight of a matrix. Other
ways need a checkpoint that is quantized already, whose files have the right size."""


@dataclass(frozen=True)
class Size:
    """What a model needs, from its files' headers alone.

    >>> llama = Size("Llama-3.1-8B", 16_060_522_496, 131_072, 131_072)
    >>> llama.cache_bytes(4096)
    536870912
    """

    model: str
    weight_bytes: int
    cache_bytes_per_token: int
    """Keys and values of one token in all layers that keep every token."""
    context: int | None = None
    """The longest text that the model reads, in tokens."""
    is_estimate: bool = False
    """Whether a part was estimated because no file says it."""
    cache_bytes_per_answer: int = 0
    """What a conversation needs besides, whatever its length: full sliding windows, and the states
    of recurrent layers."""
    heads: int | None = None
    """Attention heads. Tensor parallelism divides them evenly. None: unknown."""
    cache_heads: int = 1
    """On at most this many GPUs, each GPU keeps other keys and values; beyond, they are copied."""
    file: str = ""
    """The file that a name on the hub means."""

    def cache_bytes(self, tokens: int, gpus: int = 1) -> int:
        """The cache of one conversation of this length on each of this many GPUs."""
        whole = self.cache_bytes_per_token * tokens + self.cache_bytes_per_answer
        return _ceil(whole, min(gpus, self.cache_heads))

    def token_bytes(self, gpus: int = 1) -> float:
        """The cache of one token on each of so many GPUs, in conversations of the usual length."""
        return max(1.0, self.cache_bytes(CONVERSATION, gpus) / CONVERSATION)


def size_of(
    model: str,
    *,
    dtype: str | None = None,
    quantization: str | None = None,
    revision: str | None = None,
    token: str | None = None,
) -> Size:
    """The size of the model in a folder, a ``.gguf`` file (also ``hf:...`` and ``ollama:...``) or
    under a hub id.

    ``dtype``: as vLLM takes it: ``"auto"`` loads 32-bit weights in 16 bits; None: in the
    precision that the configuration names.
    ``quantization``: a way in which vLLM quantizes while it loads, such as ``"fp8"``.
    ``revision``: a branch, tag or commit of a hub id; None: its main branch.
    ``token``: for gated repositories; None: the token of ``hf auth login`` or of ``$HF_TOKEN``.

    Raises :class:`.MemberError` if neither the files nor the hub describe the model.
    """
    try:
        size = _named_gguf(model)
        if size is not None:
            return size
        folder = Path(model).expanduser()
        source = _folder(folder) if folder.is_dir() else _hub(model, revision, token)
        return _of_config(model, source, dtype, quantization)
    except SpecFuseError:
        raise
    except Exception as error:  # files may hold anything where these numbers are expected
        strange = MemberError(
            f"the files of {model} do not describe a model as expected: {shown(error)}"
        )
        raise advised(strange, "download or copy them again") from error


def _named_gguf(model: str) -> Size | None:
    """The size of a GGUF file; None if this names something else."""
    if ollama.is_ollama_name(model):
        return _of_gguf(model, ollama.located(model))
    if hub.is_hub_name(model):
        return _of_gguf_on_hub(model)
    file = _files.gguf_on_disk(model)
    return None if file is None else _of_gguf(model, file)


# --- the files of transformers --------------------------------------------------------------------


@dataclass(frozen=True)
class _Tensor:
    name: str
    dtype: str
    numbers: int
    bytes: int
    is_matrix: bool


@dataclass(frozen=True)
class _Source:
    """What is known of a model's files."""

    config: Mapping[str, Any]
    tensors: Sequence[_Tensor] = ()
    """Empty if no header is at hand."""
    weight_bytes: int | None = None
    tokenizer_length: int | None = None


def _folder(folder: Path) -> _Source:
    """The model in a folder that ``save_pretrained`` wrote, or in a snapshot of the hub's cache."""
    if not (folder / "config.json").exists():
        _files.refuse_unsafe(folder)  # it says which file to name instead
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
        tokenizer = folder / "tokenizer_config.json"
        longest = None
        if tokenizer.exists():
            longest = json.loads(tokenizer.read_text("utf-8")).get("model_max_length")
        shards, total = _shards(folder)
        if not shards:
            total = sum(file.stat().st_size for file in folder.glob("*.bin")) or None
        if not shards or not all(shard.exists() for shard in shards):
            return _Source(config, (), total, longest)
        tensors = [tensor for shard in shards for tensor in _header(shard)]
    except (OSError, ValueError, KeyError) as error:
        kind = "not_found" if isinstance(error, FileNotFoundError) else "error"
        unread = MemberError(f"the files of {folder} cannot be read: {error}", kind=kind)
        raise advised(unread, "name a folder that save_pretrained wrote") from error
    return _Source(config, tensors, sum(tensor.bytes for tensor in tensors), longest)


def _hub(model: str, revision: str | None, token: str | None) -> _Source:
    """The model under a hub id: from the hub's cache, otherwise from the hub itself."""
    folder = _cached(model, revision)
    if folder is not None and any(_shards(folder)):
        return _folder(folder)
    try:
        return _asked(model, revision, token)
    except MemberError:
        if folder is None:
            raise
        return _folder(folder)  # it has the config, from which the weights can be estimated


def _cached(model: str, revision: str | None) -> Path | None:
    """The folder of a hub id in the hub's cache."""
    library = imported("huggingface_hub", f"the size of {model!r}", "hub")
    try:
        config = library.try_to_load_from_cache(model, "config.json", revision=revision)
    except library.errors.HFValidationError as error:
        missing = MemberError(f"there is no model {model!r}", kind="not_found")
        raise advised(missing, "name a folder, a .gguf file or a hub id") from error
    return Path(config).parent if isinstance(config, str) else None


def _asked(model: str, revision: str | None, token: str | None) -> _Source:
    """What the hub says about a model: its config, and the headers of its files."""
    library = imported("huggingface_hub", f"the size of {model!r}", "hub")
    try:
        # Asked once: a download tries six times, which takes half a minute without a network.
        address = library.hf_hub_url(model, "config.json", revision=revision)
        library.get_hf_file_metadata(address, token=token)
        file = library.hf_hub_download(model, "config.json", revision=revision, token=token)
        config = json.loads(Path(file).read_text("utf-8"))
        api = library.HfApi(endpoint=library.constants.ENDPOINT, token=token)
        files = api.get_safetensors_metadata(model, revision=revision).files_metadata
    except library.errors.NotASafetensorsRepoError:
        return _Source(config, (), _listed_bytes(api, model, revision))
    except library.errors.EntryNotFoundError as error:
        missing = MemberError(f"{model} has no config.json on the hub", kind="not_found")
        raise advised(missing, f"GGUF files of a repository are named 'hf:{model}'") from error
    except Exception as error:  # the HTTP client may raise anything
        raise hub.explained(error, model) from error
    tensors = [
        _tensor(name, vars(about))
        for file in files.values()
        for name, about in file.tensors.items()
    ]
    return _Source(config, tensors, sum(tensor.bytes for tensor in tensors))


def _listed_bytes(api: Any, model: str, revision: str | None) -> int | None:
    """The size of pickled weights, by the hub's list of files."""
    listed = api.model_info(model, revision=revision, files_metadata=True).siblings or ()
    sizes = [file.size or 0 for file in listed if file.rfilename.endswith(".bin")]
    return sum(sizes) or None


def _shards(folder: Path) -> tuple[list[Path], int | None]:
    """The files that hold the weights, and the bytes that their index names, if there is one."""
    whole = folder / "model.safetensors"
    if whole.exists():
        return [whole], None
    index = folder / "model.safetensors.index.json"
    if index.exists():
        content = json.loads(index.read_text("utf-8"))
        names = sorted(set(content["weight_map"].values()))
        total = content.get("metadata", {}).get("total_size")
        if any(Path(name).is_absolute() or ".." in Path(name).parts for name in names):
            raise ValueError(f"{index.name} names files of other folders")
        return [folder / name for name in names], int(total) if total else None
    # Mistral's repositories hold the same weights a second time, for another program.
    names = sorted(file.name for file in folder.glob("*.safetensors"))
    return [folder / name for name in names if not name.startswith("consolidated")], None


def _header(file: Path) -> list[_Tensor]:
    """The tensors of a safetensors file, from its header."""
    with file.open("rb") as opened:
        size = int.from_bytes(opened.read(8), "little")
        if size > MOST_HEADER_BYTES:  # the pointer of Git LFS, for example
            raise ValueError(f"{file.name} is no safetensors file, or was not fetched completely")
        header = json.loads(opened.read(size))
    header.pop("__metadata__", None)
    end = max((about["data_offsets"][1] for about in header.values()), default=0)
    _refuse_cut(file, 8 + size + end)
    return [_tensor(name, about) for name, about in header.items()]


def _refuse_cut(path: Path, least: int) -> None:
    """Refuse a file that has fewer bytes than its header describes."""
    size = path.stat().st_size
    if size < least:
        short = MemberError(f"{path} has {size:,} bytes, but its header describes {least:,}")
        raise advised(short, "the file seems incomplete or damaged: download it again")


def _tensor(name: str, about: Mapping[str, Any]) -> _Tensor:
    start, end = about["data_offsets"]
    shape = about["shape"]
    return _Tensor(name, about["dtype"], prod(shape), end - start, len(shape) > 1)


def _of_config(model: str, source: _Source, dtype: str | None, quantization: str | None) -> Size:
    config = _language_model(source.config)
    own = _own_dtype(config, source)
    loaded = _loaded_dtype(model, dtype, own)
    weights, is_estimate = source.weight_bytes, quantization in QUANTIZED
    if weights is None:
        weights, is_estimate = _parameters(config) * own, True
    if source.tensors:
        # The files may hold other precisions than the config names; all are converted. Of a
        # checkpoint that is quantized already, only numbers in its own precision are.
        is_quantized = "quantization_config" in source.config or any(
            tensor.dtype not in BYTES for tensor in source.tensors
        )
        only = own if is_quantized else None
        weights = sum(
            _loaded_bytes(tensor, only, loaded, quantization) for tensor in source.tensors
        )
    else:
        weights = weights * loaded // own
        if quantization in QUANTIZED:
            weights = int(weights * QUANTIZED[quantization] / loaded)
    if not weights:
        error = MemberError(f"the files of {model} do not say how large its weights are")
        raise advised(error, "name a folder or repository with *.safetensors")
    size = config_size(model, weights, config, number_bytes=loaded)
    context = _files.config_length(config, source.tokenizer_length)
    return replace(size, context=context, is_estimate=is_estimate or size.is_estimate)


def config_size(
    model: str, weight_bytes: int, config: Mapping[str, Any], number_bytes: int = HALF
) -> Size:
    """The size of a model with weights of so many bytes and this ``config.json``, whose caches keep
    numbers of ``number_bytes``."""
    config = _language_model(config)
    size = Size(model, weight_bytes, 0, _files.config_length(config))
    attention = _attention(config, number_bytes)
    if attention is None:
        estimate = round(weight_bytes * CACHE_PER_WEIGHT)
        return replace(size, cache_bytes_per_token=estimate, is_estimate=True)
    return replace(size, **attention)


def _language_model(config: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a config that describes the language model, with the defaults that transformers
    knows and the files of some models leave out."""
    inner = next((config[key] for key in _files.TEXT_CONFIGS if config.get(key)), config)
    outer = {key: config[key] for key in ("dtype", "torch_dtype") if key in config}
    return {**DEFAULTS.get(str(inner.get("model_type")), {}), **outer, **inner}


def _own_dtype(config: Mapping[str, Any], source: _Source) -> int:
    """Bytes of a number in the model's own precision."""
    named = str(config.get("dtype") or config.get("torch_dtype") or "").removeprefix("torch.")
    if named in BYTES:
        return BYTES[named]
    stored: dict[int, int] = {}
    for tensor in source.tensors:
        if tensor.dtype in BYTES:
            width = BYTES[tensor.dtype]
            stored[width] = stored.get(width, 0) + tensor.numbers
    return max(stored, key=lambda width: stored[width], default=HALF)


def _loaded_dtype(model: str, dtype: str | None, own: int) -> int:
    """Bytes of a number in the precision in which the model is loaded."""
    if dtype is None:
        return own
    if dtype == "auto":
        return min(own, HALF)
    if dtype not in BYTES:
        error = UsageError(f"dtype={dtype!r} of {model} is not known")
        raise advised(error, "'auto', 'bfloat16', 'float16' or 'float32'")
    return BYTES[dtype]


def _loaded_bytes(tensor: _Tensor, only: int | None, loaded: int, quantization: str | None) -> int:
    """The bytes of a tensor in memory. If ``only`` numbers of so many bytes are converted, others
    stay as they are, such as the scales of a quantized checkpoint."""
    if only is not None and BYTES.get(tensor.dtype) != only:
        return tensor.bytes
    is_linear = tensor.is_matrix and not re.search("embed|lm_head|wte|wpe", tensor.name)
    if is_linear and quantization in QUANTIZED:
        return int(tensor.numbers * QUANTIZED[quantization])
    return tensor.numbers * loaded


# --- attention in config.json ---------------------------------------------------------------------

LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
KEY_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")
WIDTH = ("hidden_size", "n_embd", "d_model")
HEAD_WIDTH = ("head_dim", "kv_channels")
"""The names of the same number in the configs of different models."""
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "gemma2": {"sliding_window_pattern": 2, "head_dim": 256},
    "gemma3_text": {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
        "max_position_embeddings": 131_072,
        "vocab_size": 262_208,
    },
    "cohere2": {"sliding_window_pattern": 4},
}
"""What config.json of these models may leave out, because their class in transformers knows it."""
_WINDOWED = ("sliding_attention", "chunked_attention")
_RECURRENT = ("linear_attention", "conv", "mamba", "recurrent")


def _attention(config: Mapping[str, Any], width: int) -> dict[str, Any] | None:
    """What the caches of a model with this config need, as fields of :class:`Size`. None: the
    config does not say it.

    ``width``: bytes of a number.
    """
    layers, heads = _number(config, LAYERS), _number(config, HEADS)
    hidden = _number(config, WIDTH)
    if not (layers and heads and hidden):
        recurrent = config.get("state_size") and layers
        return _recurrent(config, layers, width) if layers and recurrent else None
    _refuse_many(layers)
    kinds = _kinds(config, layers)
    layer, key_heads = _layer_bytes(config, heads, hidden, width)
    per_token = per_answer = 0
    for kind, window in kinds:
        if kind in _RECURRENT:
            per_answer += _state_bytes(config, kind, hidden, width)
        elif window is not None and window <= CONVERSATION:
            per_answer += layer * window
        else:
            per_token += layer
    return {
        "cache_bytes_per_token": per_token,
        "cache_bytes_per_answer": per_answer,
        "heads": heads,
        "cache_heads": key_heads,
    }


def _layer_bytes(config: Mapping[str, Any], heads: int, hidden: int, width: int) -> tuple[int, int]:
    """Bytes of a token's keys and values in one layer, and among how many GPUs they can be
    divided."""
    latent = config.get("kv_lora_rank")
    if latent:  # MLA keeps one vector for all heads
        return (latent + (config.get("qk_rope_head_dim") or 0)) * width, 1
    key_heads = _number(config, KEY_HEADS) or heads
    if config.get("multi_query") and not config.get("new_decoder_architecture"):
        key_heads = 1
    head = _number(config, HEAD_WIDTH) or hidden // heads
    return 2 * key_heads * head * width, key_heads


def _kinds(config: Mapping[str, Any], layers: int) -> list[tuple[str, int | None]]:
    """Each layer that has a cache of its own: its kind, and how many tokens it keeps (None:
    all)."""
    kinds = config.get("layer_types") or config.get("layers_block_type")
    window = config.get("sliding_window") or config.get("attention_chunk_size")
    if config.get("use_sliding_window") is False:
        window = None
    if not kinds:
        pattern = config.get("sliding_window_pattern") or config.get("_sliding_window_pattern")
        if isinstance(pattern, str):  # EXAONE writes "LLLG"
            pattern = len(pattern)
        usual = "sliding_attention" if window else "full_attention"
        kinds = [
            "full_attention" if pattern and (layer + 1) % pattern == 0 else usual
            for layer in range(layers)
        ]
    kept = len(kinds) - (config.get("num_kv_shared_layers") or 0)
    return [(kind, window if kind in _WINDOWED else None) for kind in kinds[:kept]]


def _state_bytes(config: Mapping[str, Any], kind: str, hidden: int, width: int) -> int:
    """Bytes of the state of one recurrent layer."""
    if kind == "conv":
        return hidden * (config.get("conv_L_cache") or 0) * width
    if kind == "linear_attention" and "linear_num_value_heads" in config:
        keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
        values = config["linear_num_value_heads"] * config["linear_value_head_dim"]
        convolved = (2 * keys + values) * (config.get("linear_conv_kernel_dim") or 4)
        return (convolved + values * config["linear_key_head_dim"]) * width
    inner = config.get("intermediate_size") if "state_size" in config else 2 * hidden
    inner = inner or 2 * hidden
    state = config.get("state_size") or config.get("mamba_d_state") or 16
    kernel = config.get("conv_kernel") or config.get("mamba_d_conv") or 4
    return int(inner * (state + kernel) * width)


def _recurrent(config: Mapping[str, Any], layers: int, width: int) -> dict[str, Any]:
    """The caches of a model without attention."""
    hidden = _number(config, WIDTH) or 0
    state = _state_bytes(config, "mamba", hidden, width)
    return {"cache_bytes_per_token": 0, "cache_bytes_per_answer": layers * state}


def _parameters(config: Mapping[str, Any]) -> int:
    """An estimate of the number of parameters from the shapes in the config: the matrices of
    attention and of the feed-forward layers, and the embeddings."""
    layers, heads = _number(config, LAYERS) or 0, _number(config, HEADS) or 1
    hidden = _number(config, WIDTH) or 0
    key_heads = _number(config, KEY_HEADS) or heads
    head = _number(config, HEAD_WIDTH) or hidden // heads
    attention = 2 * hidden * head * (heads + key_heads)
    inner = config.get("intermediate_size") or config.get("n_inner") or 4 * hidden
    experts = _number(config, ("num_local_experts", "num_experts", "n_routed_experts")) or 0
    forward = 3 * hidden * inner
    if experts:
        forward = 3 * hidden * (config.get("moe_intermediate_size") or inner) * experts
    tables = 1 if config.get("tie_word_embeddings") else 2
    return layers * (attention + forward) + tables * hidden * (config.get("vocab_size") or 0)


# --- GGUF -----------------------------------------------------------------------------------------

_PART = re.compile(r"(.*)-\d{5}-of-(\d{5})\.gguf", re.IGNORECASE)
"""The name of a part of a split file."""
BEGINNING = 1 << 18
"""So many bytes of a file on the hub are read. They hold the model's shapes, which llama.cpp's
converter writes before the vocabulary."""
SEQUENCES = 32
"""llama.cpp keeps the states of recurrent layers for so many texts from the beginning: members in
this process have so many sequences."""


def _of_gguf(model: str, path: Path) -> Size:
    parts = _parts(path)
    missing = [part.name for part in parts if not part.exists()]
    if missing:
        error = MemberError(f"{path.parent.absolute()} has no {missing[0]}", kind="not_found")
        raise advised(error, "name an existing .gguf file; of a split file all parts are needed")
    first, *_ = [_gguf_head(part) for part in parts]
    return gguf_size(model, sum(part.stat().st_size for part in parts), first)


def _gguf_head(path: Path) -> dict[str, Any]:
    """The metadata of a GGUF file. Refuses one that is cut off."""
    try:
        with path.open("rb") as file:
            meta = _files.gguf_metadata(file)
            least = _files.gguf_least_size(file, meta)
    except (OSError, ValueError, TypeError, struct.error) as error:
        unread = MemberError(f"the header of {path} cannot be read: {error}")
        raise advised(unread, "download or copy it again") from error
    _refuse_cut(path, least)
    return meta


def _of_gguf_on_hub(model: str) -> Size:
    """The size of the file that loading would read now: in the hub's cache, or on the hub from its
    beginning."""
    chosen = hub.described(model, BEGINNING)
    if chosen.path is not None:
        return replace(_of_gguf(model, chosen.path), file=chosen.file)
    meta: dict[str, Any] = {}
    with suppress(ValueError, struct.error):  # it ends in the vocabulary
        meta.update(_files.gguf_items(BytesIO(chosen.beginning)))
    return replace(gguf_size(model, chosen.size, meta), file=chosen.file)


def _parts(path: Path) -> list[Path]:
    """All parts of a split file; otherwise the file itself."""
    part = _PART.fullmatch(path.name)
    if part is None:
        return [path]
    name, last = part.groups()
    numbers = range(1, int(last) + 1)
    return [path.with_name(f"{name}-{number:05d}-of-{last}.gguf") for number in numbers]


def gguf_size(model: str, file_bytes: int, meta: Mapping[str, Any]) -> Size:
    """The size of a model in GGUF files of so many bytes with these metadata.

    llama.cpp keeps keys and values in 16 bits. Members in this process keep those of every token,
    in layers with a sliding window too, because a text may be cut.
    """
    about = str(meta.get("general.architecture"))

    def number(key: str, default: int = 0) -> int:
        value = meta.get(f"{about}.{key}")
        return int(value) if isinstance(value, int | float) else default

    def of_layers(key: str, default: list[int]) -> list[int]:
        value = meta.get(f"{about}.{key}")
        if value is None:
            return default
        return list(value) if isinstance(value, list) else [int(value)] * layers

    size = Size(model, file_bytes, 0, _files.gguf_length(meta.get))
    layers, width = number("block_count"), number("embedding_length")
    _refuse_many(layers)
    heads = of_layers("attention.head_count", [0] * layers)
    if not (layers and width):
        estimate = round(file_bytes * CACHE_PER_WEIGHT)
        return replace(size, cache_bytes_per_token=estimate, is_estimate=True)
    key_heads = of_layers("attention.head_count_kv", heads)
    interval = number("full_attention_interval")
    if interval:
        key_heads = [
            count if (layer + 1) % interval == 0 else 0 for layer, count in enumerate(key_heads)
        ]
    head = width // max(1, *heads)
    entry = number("attention.key_length", head) + number("attention.value_length", head)
    per_token = sum(key_heads) * entry * HALF
    if number("attention.kv_lora_rank"):
        latent = number("attention.kv_lora_rank") + number("rope.dimension_count")
        per_token = layers * latent * HALF
    inner, state = number("ssm.inner_size"), number("ssm.state_size")
    kernel = max(number("ssm.conv_kernel"), number("shortconv.l_cache")) - 1
    convolved = (inner + 2 * number("ssm.group_count") * state) if inner else width
    states = max(0, kernel) * convolved + inner * state
    recurrent = sum(count == 0 for count in key_heads)
    return replace(
        size,
        cache_bytes_per_token=per_token,
        cache_bytes_per_answer=recurrent * states * BYTES["F32"] * SEQUENCES,
        heads=max(heads) or None,
        cache_heads=max(1, *key_heads),
    )


def _refuse_many(layers: int) -> None:
    if layers > MOST_LAYERS:
        raise ValueError(f"it has {layers} layers")


def _number(config: Mapping[str, Any], names: Iterable[str]) -> int | None:
    """The first of these numbers that the config has."""
    for name in names:
        if isinstance(config.get(name), int):
            return int(config[name])
    return None


def _ceil(whole: int, parts: int) -> int:
    return -(-whole // parts)
