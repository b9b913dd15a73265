"""Compute which members fit into which machine: their memory from published sizes, and the speed
that the machine's bandwidth allows.

    memory  = files + keys and values
            = Σ size + Σ 2 · layers · heads · head size · 2 bytes · 4,096 tokens
    speed  <= bandwidth / (Σ size · (1 + 1/10)), in tokens per second

A model reads its weights once per token that it drafts, and once more per segment of ten tokens to
score the other drafts. Members with a GPU each read at the same time, so only the largest counts.
Computing and reading the prompt are not counted, so a measured speed is lower.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

CONTEXT, SEGMENT = 4096, 10


@dataclass(frozen=True)
class Model:
    """A model in 4 bits (Q4_K_M unless it is the demo's), as its card and its ``config.json``
    describe it."""

    name: str
    gigabytes: float
    layers: int
    heads: int
    """Of keys and values."""
    head_size: int

    @property
    def cache(self) -> float:
        """Gigabytes of keys and values at the full context, in 16 bits.

        >>> round(Model("Llama-3.1-8B", 4.92, 32, 8, 128).cache, 2)
        0.54
        """
        return 2 * self.layers * self.heads * self.head_size * 2 * CONTEXT / 1e9


@dataclass(frozen=True)
class Machine:
    """What the members run on."""

    name: str
    bandwidth: float
    """Nominal, of one device, in gigabytes per second."""
    devices: int = 1


SMOLLM2_135M = Model("SmolLM2-135M", 0.10, 30, 3, 64)
GEMMA_3_270M = Model("Gemma-3-270M", 0.25, 18, 1, 256)
QWEN_CODER_1_5B = Model("Qwen2.5-Coder-1.5B", 1.12, 28, 2, 128)
QWEN_3B = Model("Qwen2.5-3B", 1.93, 36, 2, 128)
LLAMA_3B = Model("Llama-3.2-3B", 2.02, 28, 8, 128)
MISTRAL_7B = Model("Mistral-7B-v0.3", 4.37, 32, 8, 128)
QWEN_7B = Model("Qwen2.5-7B", 4.68, 28, 4, 128)
LLAMA_8B = Model("Llama-3.1-8B", 4.92, 32, 8, 128)
QWEN_14B = Model("Qwen2.5-14B", 8.99, 48, 8, 128)
PHI_4 = Model("Phi-4 (14B)", 9.05, 40, 10, 128)
MISTRAL_24B = Model("Mistral-Small-24B", 14.3, 40, 8, 128)
GEMMA_27B = Model("Gemma-2-27B", 16.6, 46, 16, 128)
QWEN_32B = Model("Qwen2.5-32B", 19.85, 64, 8, 128)

LAPTOP, CARD, CARDS = (
    Machine("a CPU", 50),
    Machine("one GPU, 24 GB", 936),
    Machine("four GPUs, 24 GB each", 936, 4),
)
SETS: Sequence[tuple[str, Machine, Sequence[Model], str]] = (
    (
        "8 GB",
        LAPTOP,
        (SMOLLM2_135M, GEMMA_3_270M),
        "to see how it works: fluent, often wrong (demo `small`)",
    ),
    (
        "8 GB",
        LAPTOP,
        (QWEN_CODER_1_5B, SMOLLM2_135M),
        "plain questions; the larger one writes (demo `default`)",
    ),
    ("8 GB", LAPTOP, (QWEN_3B, LLAMA_3B), "equal votes: short answers, extraction, tool calls"),
    ("16 GB", LAPTOP, (QWEN_7B, LLAMA_8B), "equal votes: chat, summaries, RAG, tool calls"),
    (
        "32 GB",
        LAPTOP,
        (QWEN_7B, LLAMA_8B, MISTRAL_7B),
        "three equal votes, so a majority is possible",
    ),
    ("32 GB", LAPTOP, (QWEN_14B, PHI_4), "harder questions that can wait"),
    (CARD.name, CARD, (QWEN_7B, LLAMA_8B, MISTRAL_7B), "three equal votes, faster than on a CPU"),
    (CARD.name, CARD, (QWEN_14B, PHI_4), "harder questions"),
    (
        CARDS.name,
        CARDS,
        (QWEN_32B, GEMMA_27B, MISTRAL_24B, PHI_4),
        "larger models, one GPU each, as servers",
    ),
)
SHORT = (1, 2, 3, 4, 6, 8)
"""The sets that the README shows."""


def memory(models: Sequence[Model]) -> float:
    """Gigabytes of weights and caches."""
    return sum(model.gigabytes + model.cache for model in models)


def fastest(machine: Machine, models: Sequence[Model]) -> float:
    """An upper bound of agreed tokens per second, if all members draft.

    >>> round(fastest(LAPTOP, [LLAMA_8B])), round(fastest(CARDS, [LLAMA_8B, QWEN_7B]))
    (9, 173)
    """
    sizes = [model.gigabytes for model in models]
    read = max(sizes) if machine.devices > 1 else sum(sizes)
    return machine.bandwidth / (read * (1 + 1 / SEGMENT))


def rows(measured: Mapping[frozenset[str], float]) -> list[tuple[str, ...]]:
    """A row for each set: machine, members, memory, speed, purpose.

    ``measured``: the measured tokens per second of some sets.
    """
    table = []
    for place, machine, models, purpose in SETS:
        names = [model.name for model in models]
        speed = f"at most {fastest(machine, models):.2g}"
        if frozenset(names) in measured:
            speed = f"{measured[frozenset(names)]:.2g}, measured"
        size = f"{memory(models):.1f} GB"
        if machine.devices > 1:
            largest = max(model.gigabytes + model.cache for model in models)
            size = f"{largest:.1f} GB on the fullest"
        table.append((place, ", ".join(names), size, speed, purpose))
    return table
