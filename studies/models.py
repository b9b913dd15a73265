"""The models of the studies: the demo's weights, which llama.cpp reads."""

from __future__ import annotations

from langchain_specfuse import LlamaCppMember
from langchain_specfuse.demo import GEMMA, QWEN, SMOLLM2, DemoFile, file_of

MODELS = {"qwen": QWEN, "smollm2": SMOLLM2, "gemma": GEMMA}
"""The lead comes first."""


def member_of(model: DemoFile, name: str = "") -> LlamaCppMember:
    """A member with these weights, named as in the demo by default."""
    return LlamaCppMember(file_of(model), name=name or model.name, **model.options)
