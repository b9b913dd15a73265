"""The tests of ``core/`` notice small mistakes in it: of a sample of all mutants only the known ones may live."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from .mutants import ALIVE, ROOT, all_mutants, sample, survivors
from .mutations import mutants, mutated

SAMPLE = 20


@pytest.mark.slow
def test_only_the_known_mutants_of_a_sample_live():
    command = [sys.executable, "-m", "tests.torture.mutants", "--sample", str(SAMPLE)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(told) == SAMPLE, done.stdout + done.stderr
    lived = {one["key"] for one in told if one["fate"] == ALIVE}
    assert lived <= set(survivors()), "kill them with a test, or run python -m tests.torture.mutants and say why not"


def test_every_known_survivor_is_still_a_mutant():
    assert set(survivors()) <= {mutant.key for mutant in all_mutants()}


def test_the_sample_is_the_same_every_time_and_has_all_kinds_of_files():
    assert sample(40) == sample(40)
    assert len({mutant.module for mutant in sample(40)}) > 4


SOURCE = '''
"""Words."""
LIMIT = 3
def f(a: int = 1) -> bool:
    """More words."""
    if a < LIMIT and not a:
        raise ValueError("no")
    return [b for b in range(a) if b]
'''


def test_every_small_mistake_is_made_once_and_words_that_do_nothing_are_left_alone():
    found = mutants("m", SOURCE)
    names = [mutant.name for mutant in found]
    assert len(set(names)) == len(names)
    assert ": 3 -> 4" in names and ": 3 -> 2" in names
    assert "f: a < LIMIT -> a <= LIMIT" in names
    assert any(name.startswith("f: a < LIMIT and (not a) -> a < LIMIT or") for name in names)
    assert "f: for if b -> for" in names
    assert not [name for name in names if "ords" in name or "bool" in name]
    for mutant in found:
        code = mutated(SOURCE, mutant, "m.py")
        assert code.co_consts != () and ast.parse(SOURCE)
    assert {mutant.in_body for mutant in found if mutant.name.startswith(":")} == {False}


def test_the_result_is_of_all_mutants():
    told = json.loads(Path(__file__).with_name("mutants.json").read_text())
    assert told["whole"]["mutants"] == sum(row["mutants"] for row in told["files"].values())
    assert len(told["survivors"]) == told["whole"]["alive"]
