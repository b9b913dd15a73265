"""The experiments of benchmarks/variants.py differ from the method in nothing but what they are there to change."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from langchain_specfuse.core.panel import Panel
from langchain_specfuse.core.rounds import rounds
from langchain_specfuse.core.values import Round, Seat, Settings

from .play import QUERY, babbler

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
if not (BENCHMARKS / "variants.py").exists():
    pytest.skip("not in a checkout", allow_module_level=True)


@pytest.fixture(scope="module")
def variants():
    sys.path.insert(0, str(BENCHMARKS))
    yield pytest.importorskip("variants")
    sys.path.remove(str(BENCHMARKS))


def told(loop, seeds: int) -> list[Round]:
    """Every round of a loop that four babblers answer."""
    members = {f"m{n}": babbler(seeds + n, skill=n / 4) for n in range(4)}
    found, replies = [], None
    try:
        while True:
            item = loop.send(replies)
            replies = None
            if isinstance(item, Round):
                found.append(item)
            else:
                replies = {name: members[name](job, item.round) for name, job in item.jobs.items()}
    except StopIteration:
        return found


@pytest.mark.parametrize("seed", range(5))
def test_the_plain_experiment_is_the_method(variants, seed):
    settings = Settings(max_tokens=120, segment_tokens=6, voice="equal", reward="wins")
    panel = Panel.of([Seat(f"m{n}") for n in range(4)])
    one = told(rounds(QUERY, settings, panel), seed)
    other = told(variants.varied(QUERY, settings, panel, variants.plain, variants.by_wins), seed)
    assert [r.text for r in one] == [r.text for r in other]
    for a, b in zip(one, other, strict=True):
        assert (a.winner, a.weights, a.rewards, a.left) == (b.winner, b.weights, b.rewards, b.left)
        assert b.totals == pytest.approx(a.totals)


def test_who_is_alone_in_being_sure_is_heard_when_everybody_judges(variants):
    cast = {"knows": [0.9, 0.05, 0.05], "b": [0.32, 0.34, 0.34], "c": [0.32, 0.34, 0.34]}
    authors = [["knows"], ["b"], ["c"]]
    heard = variants.by_all(cast, cast, authors)
    assert heard[0] == max(heard)
    unheard = variants.by_wins(cast, cast, authors)
    assert unheard[0] < max(unheard)
