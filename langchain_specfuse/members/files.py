"""Reads from a model's files, before it is loaded, the length of its context and whether it
reasons.

It reads the header of a ``.gguf`` file, or the JSON files of a folder or of a hub id in the local
cache. It reads no weights, uses no network and imports no engine. Two libraries were considered and
are not used: transformers' AutoConfig takes seconds to import torch, and the reader of the package
gguf makes an array of every token's text.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

from ..core.member import Probe
from ..errors import MemberError, UsageError, advised
from . import hub
from .text.thinking import HARMONY, TAGS

LENGTHS = ("max_position_embeddings", "n_positions")
"""The names in config.json of the longest text that a model reads, in tokens."""
TEXT_CONFIGS = ("decoder", "generator", "text_config")
"""Keys of config.json under which a multimodal model describes its language model, in transformers'
order."""


def preview(arguments: Mapping[str, Any]) -> Probe | None:
    """The properties of a member with these arguments that its files contain; None if they do not
    contain the length of its context."""
    model = arguments["model"]
    try:
        file = gguf_on_disk(model)
        length, template = _of_gguf(file) if file else _of_folder(arguments)
        reasoning = reasons(template, arguments)
    except Exception:  # loading the member reports what is wrong
        return None
    if length is None:
        return None
    return Probe(model, max_context=length, reasons=reasoning)


def reasons(template: Any, arguments: Mapping[str, Any]) -> bool:
    """Whether a member in this process reasons, by its model's chat template and its own
    arguments."""
    switched_off = (arguments.get("chat_template_kwargs") or {}).get("enable_thinking") is False
    chosen = arguments.get("chat_template") or template
    marked = any(marks.open.strip() in str(chosen) for marks in (TAGS, HARMONY))
    return marked and not switched_off and arguments.get("thinking_tokens", 1) > 0


def shortest(lengths: Iterable[Any]) -> int | None:
    """The shortest of the lengths that are real limits. Files write 0, null or a huge number for
    "no limit".

    >>> shortest([4096, None, 1e30, "2048"])
    2048
    """
    known = [int(length) for length in lengths if length]
    return min((length for length in known if 0 < length < 10**9), default=None)


# --- transformers ---------------------------------------------------------------------------------


def config_length(config: Mapping[str, Any], tokenizer_length: Any = None) -> int | None:
    """The longest text that a model with this configuration and this tokenizer reads, in tokens."""
    lengths = [*map(config.get, LENGTHS), tokenizer_length]
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if (rope.get("rope_type") or rope.get("type")) == "longrope":
        # Beyond this length all positions are rotated in another way, also those in the cache.
        key = "original_max_position_embeddings"
        lengths.append(config.get(key) or rope.get(key))
    return shortest(lengths)


def _of_folder(arguments: Mapping[str, Any]) -> tuple[int | None, Any]:
    changed = arguments.get("model_kwargs") or {}
    if "config" in changed:
        return None, None
    config = {**json.loads(_text(arguments, "config.json")), **changed}
    tokenizer = json.loads(_text(arguments, "tokenizer_config.json") or "{}")
    config = next((config[key] for key in TEXT_CONFIGS if config.get(key)), config)
    if not any(map(config.get, LENGTHS)):
        return None, None  # the default of the model's class counts, which only transformers knows
    template = _text(arguments, "chat_template.jinja") or tokenizer.get("chat_template")
    return config_length(config, tokenizer.get("model_max_length")), template


def _text(arguments: Mapping[str, Any], name: str) -> str:
    """A file of a folder, or of a hub id in the local cache; empty if it is not there."""
    folder = Path(arguments["model"]).expanduser()
    path: Path | None = folder / name
    if not folder.is_dir():
        revision = (arguments.get("model_kwargs") or {}).get("revision")
        path = hub.cached_file(arguments["model"], name, revision)
    if path is None or not path.exists():
        return ""
    return path.read_text("utf-8")


def refuse_unsafe(folder: Path) -> None:
    """Refuse a folder from which transformers would load nothing, or load code."""
    if any(folder.glob("*.safetensors")):
        return
    pickled = sorted(
        file.name for file in folder.glob("*") if file.suffix in (".bin", ".pt", ".pth", ".ckpt")
    )
    ggufs = sorted(file.name for file in folder.glob("*.gguf"))
    if pickled:
        shown = ", ".join(pickled[:3])
        error = UsageError(
            f"{folder} has only pickled weights ({shown}): loading them could run any code"
        )
        raise advised(
            error, "convert them once: model.save_pretrained(folder, safe_serialization=True)"
        )
    if ggufs:
        error = UsageError(f"{folder} has no *.safetensors, but GGUF files: {', '.join(ggufs[:3])}")
        raise advised(error, f"name the file itself, which llama.cpp reads: {folder / ggufs[0]}")
    if not (folder / "config.json").exists():
        missing = MemberError(
            f"{folder} contains no model: neither config.json nor *.safetensors", kind="not_found"
        )
        raise advised(missing, "name a folder that save_pretrained wrote")


# --- GGUF -----------------------------------------------------------------------------------------

_STRING, _ARRAY = 8, 9
_NUMBERS = dict(enumerate("BbHhIif?")) | {10: "Q", 11: "q", 12: "d"}
"""The kinds of a GGUF file's values, as ``struct`` calls them."""
_TEXT_BYTES = 100 * 10**6
"""No name or text in a header is longer. Some hold a whole tokenizer.json, of 30 MB."""
_ENTRIES = 2 * 10**6
"""No header has more entries and texts in lists: the largest vocabularies have 800,000 tokens and
merges."""


def gguf_length(meta: Callable[[str], Any]) -> int | None:
    """The longest text that the model of a GGUF file with these metadata was trained to read, in
    tokens."""
    model = meta("general.architecture")
    lengths = [meta(f"{model}.context_length")]
    # Beyond this length every position is rotated in another way.
    if meta(f"{model}.rope.scaling.type") == "longrope":
        lengths.append(meta(f"{model}.rope.scaling.original_context_length"))
    return shortest(lengths)


def gguf_on_disk(model: str) -> Path | None:
    """The GGUF file that this names, if it is on this disk: a path, or a name with ``hf:``."""
    if hub.is_hub_name(model):
        return hub.cached(model)
    return Path(model).expanduser() if model.lower().endswith(".gguf") else None


def _of_gguf(path: Path) -> tuple[int | None, Any]:
    return _read_gguf(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=64)
def _read_gguf(path: Path, _changed: int) -> tuple[int | None, Any]:
    """The context length and the chat template of a GGUF file. Cached, because a large
    vocabulary takes a tenth of a second to read, and a program may make a chat model for every
    call."""
    with path.open("rb") as file:
        metadata = gguf_metadata(file)
    return gguf_length(metadata.get), metadata.get("tokenizer.chat_template")


def gguf_metadata(file: BinaryIO) -> dict[str, Any]:
    """The numbers and texts at the head of a GGUF file. Arrays, such as the vocabulary, are passed
    over (None).

    Raises ``struct.error`` where a file is cut off, and ``ValueError`` if the header has sizes that
    no model has.
    """
    left = iter(range(_ENTRIES))

    def count_entry() -> None:
        if next(left, None) is None:
            raise ValueError(f"its header has more than {_ENTRIES:,} entries and list items")

    def number(kind: str) -> Any:
        return struct.unpack(f"<{kind}", file.read(struct.calcsize(kind)))[0]

    def text() -> str:
        length = number("Q")
        if length > _TEXT_BYTES:
            raise ValueError(
                f"its header has a text of {length:,} bytes; the limit is {_TEXT_BYTES:,}"
            )
        return file.read(length).decode("utf-8", "replace")

    def value(kind: int) -> Any:
        if kind == _STRING:
            return text()
        if kind != _ARRAY:
            return number(_NUMBERS[kind])
        kind, count = number("I"), number("Q")
        if kind in _NUMBERS:
            file.seek(count * struct.calcsize(_NUMBERS[kind]), os.SEEK_CUR)
        else:
            for _ in range(count):
                count_entry()
                if kind == _STRING:
                    file.seek(number("Q"), os.SEEK_CUR)
                else:
                    value(kind)
        return None

    magic, _version, _tensors, count = struct.unpack("<4sIQQ", file.read(24))
    if magic != b"GGUF":
        raise ValueError(f"not a GGUF file: it begins with {magic!r}")
    metadata = {}
    for _ in range(count):
        count_entry()
        name = text()
        metadata[name] = value(number("I"))
    return metadata
