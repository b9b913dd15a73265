"""What a chunk of a lead costs on its way from the loop to the caller does not grow, and is small
where nobody listens."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from langchain_specfuse.chat.chunks import AnswerChunks
from langchain_specfuse.chat.report import Report, RunScope
from langchain_specfuse.core.options import Method
from langchain_specfuse.core.round import Round
from langchain_specfuse.core.values import Draft, Effort, Segment

ROUNDS = 1000


def a_round(number: int) -> Round:
    draft = Draft(" word", False, (1,), (-0.5,), Effort(read=1), (5,))
    one = {"ann": 1.0}
    return Round(
        number=number,
        text=" word",
        segment=Segment(" word", False, {"ann": (1,)}),
        winner="ann",
        authors=("ann",),
        drafts={"ann": draft},
        scores={},
        votes={},
        totals=one,
        rewards=one,
        weights_before=one,
        weights=one,
        lead="ann",
        efforts={"draft": {"ann": draft.effort}},
        seconds={"draft": 0.01},
    )


@pytest.mark.parametrize("output_version", ["v0", "v1"])
def test_a_chunk_of_a_lead_takes_few_steps_however_long_the_answer(output_version: str) -> None:
    report = Report(
        RunScope.of(None), is_traced=True, members=["ann"], verifiers=[], method=Method()
    )
    chunks = AnswerChunks(
        report.summary,
        "ann",
        v1=output_version == "v1",
        seed=None,
        splitter=None,
        reasoning=False,
    )
    costs = []
    for number in range(1, ROUNDS):
        count = 0

        def counting(frame: Any, event: str, argument: Any) -> None:
            nonlocal count
            is_ours = frame.f_globals.get("__name__", "").startswith("langchain_specfuse.")
            count += is_ours and event in ("call", "c_call")

        made = a_round(number)
        before = sys.getprofile()
        sys.setprofile(counting)
        try:
            report.add(made)
            list(chunks.of(made))
        finally:
            sys.setprofile(before)
        costs.append(count)
    # the least of many, because the garbage collector may run in between
    assert min(costs[-100:]) == min(costs[1:100]) < {"v0": 50, "v1": 90}[output_version]
