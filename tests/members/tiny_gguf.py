"""Tiny random GGUF models with SmolLM2's tokenizer: real llama.cpp, a few milliseconds a token."""

from __future__ import annotations

import struct
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import gguf
import numpy as np
from gguf import GGUFValueType

from langchain_specfuse.demo import SMOLLM2, file_of

WIDTH, INNER, HEADS, LAYERS, CONTEXT = 64, 96, 2, 2, 8192


@cache
def _tokenizer() -> dict[str, tuple[Any, Any, Any]]:
    """SmolLM2's tokenizer: the value of each field, its type, and the type of what is in it.
    gguf's own reader takes two seconds for them."""
    found: dict[str, tuple[Any, Any, Any]] = {}
    with open(file_of(SMOLLM2), "rb") as file:
        file.seek(len("GGUF") + 4 + 8)  # the version, and how many tensors follow
        for _ in range(_number(file, "Q")):
            name, kind = _text(file), GGUFValueType(_number(file, "I"))
            several = None
            if kind != GGUFValueType.ARRAY:
                value = _value(file, kind)
            else:
                several = GGUFValueType(_number(file, "I"))
                value = [_value(file, several) for _ in range(_number(file, "Q"))]
            if name.startswith("tokenizer."):
                found[name] = value, kind, several
    return found


def _value(file: BinaryIO, kind: GGUFValueType) -> Any:
    if kind == GGUFValueType.STRING:
        return _text(file)
    return _number(file, gguf.GGUFWriter._simple_value_packing[kind])


def _text(file: BinaryIO) -> str:
    return file.read(_number(file, "Q")).decode()


def _number(file: BinaryIO, packing: str) -> Any:
    return struct.unpack(f"<{packing}", file.read(struct.calcsize(packing)))[0]


def copy_tokenizer(writer: gguf.GGUFWriter) -> int:
    """Give the file SmolLM2's tokenizer. Returns the size of its vocabulary."""
    for name, (value, kind, several) in _tokenizer().items():
        writer.add_key_value(name, value, kind, sub_type=several)
    tokens, *_ = _tokenizer()["tokenizer.ggml.tokens"]
    return len(tokens)


def llama(path: Path, seed: int = 0) -> Path:
    """Write a model with full attention, which answers until its budget ends."""
    writer = gguf.GGUFWriter(path, "llama")
    words = copy_tokenizer(writer)
    for key, value in {
        "context_length": CONTEXT,
        "embedding_length": WIDTH,
        "feed_forward_length": INNER,
        "block_count": LAYERS,
        "attention.head_count": HEADS,
        "attention.head_count_kv": HEADS,
        "rope.dimension_count": WIDTH // HEADS,
    }.items():
        writer.add_uint32(f"llama.{key}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    chance = np.random.default_rng(seed)

    def put(name: str, *shape: int, scale: float = 0.3) -> None:
        writer.add_tensor(name, chance.normal(0, scale, shape).astype(np.float32))

    embedding = chance.normal(0, 1, (words, WIDTH)).astype(np.float32)
    embedding[:17] = 0  # special tokens
    writer.add_tensor("token_embd.weight", embedding)
    writer.add_tensor("output_norm.weight", np.ones(WIDTH, np.float32))
    for at in range(LAYERS):
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{at}.{norm}.weight", np.ones(WIDTH, np.float32))
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            put(f"blk.{at}.{name}.weight", WIDTH, WIDTH)
        for name in ("ffn_gate", "ffn_up"):
            put(f"blk.{at}.{name}.weight", INNER, WIDTH)
        put(f"blk.{at}.ffn_down.weight", WIDTH, INNER)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
