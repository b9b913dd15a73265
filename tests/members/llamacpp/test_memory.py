"""Members in this process share the memory for their caches."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from langchain_specfuse.members.llamacpp.member import LlamaCppMember
from langchain_specfuse.members.planning import free_memory, place_in_memory, size_of

from .. import tiny_gguf

pytestmark = pytest.mark.real


def test_caches_are_promised_no_more_than_is_free_and_as_much_as_planned(tmp_path: Path) -> None:
    gc.collect()
    files = [str(tiny_gguf.llama(tmp_path / f"{seed}.gguf", seed)) for seed in range(5)]
    members = [LlamaCppMember(file) for file in files]
    for member in members:
        member.probe()
    free = free_memory()
    planned = place_in_memory({file: size_of(file) for file in files}, free)
    budgets = [member.cache.budget for member in members if member.cache is not None]
    assert len(budgets) == 5 and sum(budget or free for budget in budgets) <= 1.05 * free
    assert all(budget == pytest.approx(planned[0].cache_bytes, rel=0.1) for budget in budgets)
