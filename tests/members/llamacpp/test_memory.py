"""Members in this process share the memory for their caches."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from .. import tiny_gguf

pytestmark = pytest.mark.real

FREE = 8 * 10**9
BUDGETS = f"""
import json, sys
from types import SimpleNamespace
import psutil
from langchain_specfuse.members.llamacpp.member import LlamaCppMember

psutil.virtual_memory = lambda: SimpleNamespace(available={FREE})
members = [LlamaCppMember(file) for file in sys.argv[1:]]
for member in members:
    member.probe()
print(json.dumps([member.cache.budget for member in members]))
"""
"""In a process of its own, because the caches of other tests would get a share too, and the free
memory changes with what other processes do."""


def test_caches_are_promised_equal_parts_and_together_no_more_than_is_free(tmp_path: Path) -> None:
    files = [str(tiny_gguf.llama(tmp_path / f"{seed}.gguf", seed)) for seed in range(5)]
    command = [sys.executable, "-c", BUDGETS, *files]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    budgets = json.loads(done.stdout.splitlines()[-1])
    assert len(budgets) == 5 and len(set(budgets)) == 1 and 0.95 * FREE < sum(budgets) <= FREE
