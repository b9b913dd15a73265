"""Compute which members fit into which machine: their memory as the command ``plan`` computes it,
from published sizes, and the speed that the machine's bandwidth allows.

    speed  <= bandwidth / (Σ size · (1 + 1/10)), in tokens per second

A model reads its weights once per token that it drafts, and once more per segment of ten tokens to
score the other drafts. Members with a GPU each read at the same time, so only the largest counts.
Computing and reading the prompt are not counted, so a measured speed is lower.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from langchain_specfuse.members.planning import (
    described_gpus,
    place,
    place_in_memory,
)
from langchain_specfuse.members.sizes import CONVERSATION, Size, config_size, gguf_size

SEGMENT = 10
PROGRAM_GB = 1.0
"""What Python and the engine take besides."""


@dataclass(frozen=True)
class Model:
    """A model as its card and its ``config.json`` describe it: a GGUF file in 4 bits, or, with
    ``vllm:``, a repository in 16 bits."""

    name: str
    gigabytes: float
    layers: int
    heads: int
    """Of keys and values."""
    head_size: int
    window: int | None = None
    """The sliding window of all layers but every sixth, which vLLM's cache makes use of."""

    @property
    def size(self) -> Size:
        """What the model needs.

        >>> round(LLAMA_8B.size.cache_bytes(CONVERSATION) / 1e9, 2)
        0.54
        """
        weights = int(self.gigabytes * 1e9)
        if not self.name.startswith("vllm:"):
            metadata = {
                "general.architecture": "model",
                "model.block_count": self.layers,
                "model.embedding_length": 1,
                "model.attention.head_count": self.heads,
                "model.attention.key_length": self.head_size,
                "model.attention.value_length": self.head_size,
            }
            return gguf_size(self.name, weights, metadata)
        config = {
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.heads,
            "head_dim": self.head_size,
            "hidden_size": 1,
            "sliding_window": self.window,
            "sliding_window_pattern": 6,
        }
        return config_size(self.name, weights, config)


@dataclass(frozen=True)
class Machine:
    """What the members run on."""

    name: str
    bandwidth: float
    """Nominal, of one device, in gigabytes per second."""
    gigabytes: float = 0.0
    """The memory of a machine without a GPU."""
    gpus: str = ""
    """As ``plan --gpus`` takes it."""
    devices: int = 1


SMOLLM2_135M = Model("SmolLM2-135M", 0.10, 30, 3, 64)
GEMMA_3_270M = Model("Gemma-3-270M", 0.25, 18, 1, 256)
QWEN_CODER_1_5B = Model("Qwen2.5-Coder-1.5B", 1.12, 28, 2, 128)
QWEN_3B = Model("hf:Qwen/Qwen2.5-3B-Instruct-GGUF", 2.10, 36, 2, 128)
GEMMA_4B = Model("hf:ggml-org/gemma-3-4b-it-GGUF", 2.49, 34, 4, 256)
QWEN_7B = Model("hf:Qwen/Qwen2.5-7B-Instruct-GGUF", 4.68, 28, 4, 128)
LLAMA_8B = Model("Llama-3.1-8B", 4.92, 32, 8, 128)
GEMMA_12B = Model("hf:ggml-org/gemma-3-12b-it-GGUF", 7.30, 48, 8, 256)
QWEN_14B = Model("hf:Qwen/Qwen2.5-14B-Instruct-GGUF", 8.99, 48, 8, 128)
PHI_4 = Model("hf:microsoft/phi-4-gguf:phi-4-q4.gguf", 9.05, 40, 10, 128)

VLLM_LLAMA_3B = Model("vllm:meta-llama/Llama-3.2-3B-Instruct", 6.43, 28, 8, 128)
VLLM_QWEN_4B = Model("vllm:Qwen/Qwen3-4B-Instruct-2507", 8.04, 36, 8, 128)
VLLM_LLAMA_8B = Model("vllm:meta-llama/Llama-3.1-8B-Instruct", 16.06, 32, 8, 128)
VLLM_MINISTRAL_8B = Model("vllm:mistralai/Ministral-8B-Instruct-2410", 16.04, 36, 8, 128)
VLLM_QWEN_8B = Model("vllm:Qwen/Qwen3-8B", 16.38, 36, 8, 128)
VLLM_PHI_4 = Model("vllm:microsoft/phi-4", 29.32, 40, 10, 128)
VLLM_MISTRAL_24B = Model("vllm:mistralai/Mistral-Small-24B-Instruct-2501", 47.14, 40, 8, 128)
VLLM_GEMMA_27B = Model("vllm:google/gemma-3-27b-it", 54.86, 62, 16, 128, window=1024)
VLLM_QWEN_32B = Model("vllm:Qwen/Qwen2.5-32B-Instruct", 65.53, 64, 8, 128)

SMALL, MEDIUM, LARGE = (
    Machine("8 GB", 50, 8),
    Machine("16 GB", 50, 16),
    Machine("32 GB", 50, 32),
)
CARD, BIG_CARD, CARDS, BIG_CARDS = (
    Machine("one GPU, 24 GB", 936, gpus="24"),
    Machine("one GPU, 80 GB", 2039, gpus="80"),
    Machine("three GPUs, 24 GB each", 936, gpus="3x24", devices=3),
    Machine("four GPUs, 80 GB each", 2039, gpus="4x80", devices=4),
)
EIGHTS = (VLLM_QWEN_8B, VLLM_LLAMA_8B, VLLM_MINISTRAL_8B)
SETS: Sequence[tuple[Machine, Sequence[Model], str]] = (
    (
        SMALL,
        (SMOLLM2_135M, GEMMA_3_270M),
        "to see how it works: fluent, often wrong (demo `small`)",
    ),
    (
        SMALL,
        (QWEN_CODER_1_5B, SMOLLM2_135M),
        "plain questions; the larger one writes (demo `default`)",
    ),
    (SMALL, (QWEN_3B, GEMMA_4B), "equal votes: short answers, extraction, tool calls"),
    (MEDIUM, (QWEN_7B, LLAMA_8B), "equal votes: chat, summaries, RAG, tool calls"),
    (LARGE, (QWEN_7B, LLAMA_8B, GEMMA_12B), "three votes, so a majority is possible"),
    (LARGE, (QWEN_14B, PHI_4), "harder questions that can wait"),
    (CARD, (VLLM_QWEN_4B, VLLM_LLAMA_3B), "equal votes, faster than on a CPU"),
    (BIG_CARD, EIGHTS, "three equal votes"),
    (CARDS, EIGHTS, "the same, one GPU each"),
    (
        BIG_CARDS,
        (VLLM_QWEN_32B, VLLM_GEMMA_27B, VLLM_MISTRAL_24B, VLLM_PHI_4),
        "larger models, one GPU each",
    ),
)
SHORT = (1, 2, 3, 5, 7, 9)
"""The sets that the README shows."""


def memory(machine: Machine, models: Sequence[Model]) -> str:
    """What the members need and hold, as ``plan`` computes it. Raises an error for a set that does
    not fit.

    >>> memory(SMALL, [QWEN_CODER_1_5B, SMOLLM2_135M])
    '1.4 GB'
    """
    sizes = {model.name: model.size for model in models}
    if machine.gpus:
        placements = place(sizes, described_gpus(machine.gpus))
        weights = sum(size.weight_bytes for size in sizes.values())
        tokens = min(placement.tokens for placement in placements)
        return f"{weights / 1e9:.1f} GB of weights, room for {tokens // 1000:,},000 tokens"
    place_in_memory(sizes, int((machine.gigabytes - PROGRAM_GB) * 1e9))
    needed = sum(size.weight_bytes + size.cache_bytes(CONVERSATION) for size in sizes.values())
    return f"{needed / 1e9:.1f} GB"


def fastest(machine: Machine, models: Sequence[Model]) -> float:
    """An upper bound of agreed tokens per second, if all members draft.

    >>> round(fastest(SMALL, [LLAMA_8B])), round(fastest(CARDS, EIGHTS))
    (9, 52)
    """
    sizes = [model.gigabytes for model in models]
    read = max(sizes) if machine.devices > 1 else sum(sizes)
    return machine.bandwidth / (read * (1 + 1 / SEGMENT))


def rows(measured: Mapping[frozenset[str], float]) -> list[tuple[str, ...]]:
    """A row for each set: machine, members, memory, speed, purpose.

    ``measured``: the measured tokens per second of some sets.
    """
    table = []
    for machine, models, purpose in SETS:
        names = [model.name for model in models]
        speed = f"at most {fastest(machine, models):.2g}"
        if frozenset(names) in measured:
            speed = f"{measured[frozenset(names)]:.2g}, measured"
        table.append((machine.name, _shown(names), memory(machine, models), speed, purpose))
    return table


def _shown(names: Sequence[str]) -> str:
    """The names, with those that can be pasted as code."""
    return ", ".join(f"`{name}`" if ":" in name else name for name in names)
