"""What a round costs on real engines, as a table: from ``benchmarks/serving.json``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

NAMES = {"llama.cpp": "llama.cpp", "vllm": "vLLM"}
COLUMNS = (
    "engine",
    "prompt",
    "tokenizer",
    "a draft",
    "not the engine",
    "a vote on 3 drafts",
    "not the engine",
)


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """A row per engine, tokenizer and prompt."""
    if not results:
        return "No numbers yet: `benchmarks/serving.py` makes them where there is an engine.\n"
    rows = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|", *map(_row, results)]
    told = f"SmolLM2-135M, the engine on one thread beside the member ({results[0]['machine']}). A question without any"
    told += f" work takes {results[0]['http_ms']:.1f} ms. Made by `benchmarks/serving.py`."
    return "\n".join([*rows, "", told, ""])


def _row(one: Mapping[str, Any]) -> str:
    where = "here" if one["tokenizer"] == "local" else "the server's"
    numbers = [cell for phase in ("draft", "vote") for cell in _spent(one[phase])]
    return f"| {' | '.join([NAMES[one['engine']], str(one['prompt']), where, *numbers])} |"


def _spent(phase: Mapping[str, Any]) -> list[str]:
    """In all, with how many tokens, and what of it was not the engine's."""
    return [f"{phase['ms']:.0f} ms ({phase['tokens']:.0f} tokens)", f"{phase['beside_ms']:.0f} ms"]
