"""Tiny random GGUF models with SmolLM2's tokenizer: real llama.cpp, a few milliseconds a token."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

from langchain_specfuse.demo import SMOLLM2, file_of

WIDTH, INNER, HEADS, LAYERS, CONTEXT = 64, 96, 2, 2, 8192


def copy_tokenizer(writer: gguf.GGUFWriter) -> int:
    """Give the file SmolLM2's tokenizer. Returns the size of its vocabulary."""
    known = gguf.GGUFReader(file_of(SMOLLM2))
    for name, field in known.fields.items():
        if name.startswith("tokenizer."):
            several = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(name, field.contents(), field.types[0], sub_type=several)
    return len(known.fields["tokenizer.ggml.tokens"].data)


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
