"""A member that returns or raises nonsense harms no other member and no later question."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import pytest

from langchain_specfuse import EnsembleError, MemberError, ScriptedMember, SpecFuseChatModel
from langchain_specfuse.core.values import Draft, PrefillPending, Scored
from tests.methods import in_method

from .conftest import BLUE, LIMIT_S

_NUMBERS = itertools.count()
RAISED = (
    RuntimeError("x"),
    SystemExit(1),
    StopIteration(1),
    MemoryError(),
    BaseExceptionGroup("several", [SystemExit(2), ValueError("x")]),
)


class Nonsense(ScriptedMember):
    """Returns nonsense from its second draft of the first question on, or when it scores."""

    def __init__(self, work: str, nonsense: Any, **options: Any) -> None:
        super().__init__(BLUE, **options)
        self.work, self.nonsense = work, nonsense

    def draft(self, jobs: Sequence[Any]) -> Any:
        begun = any(job.answer for job in jobs)
        return self._said() if begun else super().draft(jobs)

    def score(self, jobs: Sequence[Any]) -> Any:
        return self._said() if self.work == "score" else super().score(jobs)

    def _said(self) -> Any:
        if isinstance(self.nonsense, BaseException):
            raise self.nonsense
        return self.nonsense


def beside(device: str, *members: Any, **options: Any) -> SpecFuseChatModel:
    other = ScriptedMember("The sky is wide " + BLUE[16:], name="other", device=device)
    return SpecFuseChatModel(
        **in_method(
            members=[*members, other], segment_tokens=4, timeout=LIMIT_S, lead=None, **options
        )
    )


def asked(llm: SpecFuseChatModel) -> str | EnsembleError:
    try:
        return llm.invoke("Why?").text
    except EnsembleError as error:
        return error


NONSENSE = {
    "nothing": None,
    "no reply": [],
    "two replies": [Draft(" and"), Draft(" or")],
    "no draft": ["and"],
    "the wrong kind": [PrefillPending(5)],
    "two scores for a candidate": [Scored(((-1.0,), (-1.0,)))],
    "NaN": [Draft(" and", tokens=(1,), logprobs=(math.nan,))],
    "a probability above 1": [Draft(" and", tokens=(1,), logprobs=(0.7,))],
}


@pytest.mark.parametrize("work", ["draft", "score"])
@pytest.mark.parametrize("name", NONSENSE)
def test_a_reply_of_the_wrong_kind_or_length_is_a_failure(name: str, work: str) -> None:
    hurts_nobody_else(work, NONSENSE[name])


@pytest.mark.parametrize("work", ["draft", "score"])
@pytest.mark.parametrize("number", range(len(RAISED)))
def test_no_exception_ends_a_worker(work: str, number: int) -> None:
    hurts_nobody_else(work, RAISED[number])


def hurts_nobody_else(work: str, nonsense: Any) -> None:
    device = f"nonsense {next(_NUMBERS)}"
    member = Nonsense(work, nonsense, name="odd", device=device)
    assert asked(beside(device, member)), "it went on, or failed in words"
    # The device still works, for other members and for this one.
    fine = ScriptedMember(BLUE, name="fine", device=device)
    assert asked(SpecFuseChatModel(members=[fine], timeout=LIMIT_S)) == BLUE


@dataclass(frozen=True)
class Annotated(Draft):
    """A member's own subclass of a draft."""

    note: dict[str, Any] = field(default_factory=dict)


def test_a_draft_may_have_extra_fields() -> None:
    class Noting(ScriptedMember):
        def draft(self, jobs: Sequence[Any]) -> Any:
            return [
                Annotated(**{field.name: getattr(draft, field.name) for field in fields(draft)})
                for draft in super().draft(jobs)
            ]

    assert asked(SpecFuseChatModel(members=[Noting(BLUE)], timeout=LIMIT_S)) == BLUE


@pytest.mark.parametrize("probe", [None, "fine"])
def test_a_member_with_an_invalid_probe_is_named(probe: Any) -> None:
    class Reporting(ScriptedMember):
        def preview(self) -> Any:
            return None

        def probe(self) -> Any:
            return probe

    llm = SpecFuseChatModel(members=[Reporting(BLUE, name="odd")], timeout=LIMIT_S)
    with pytest.raises(MemberError, match=r"odd.*Probe"):
        llm.invoke("Why?")
    assert asked(SpecFuseChatModel(members=[ScriptedMember(BLUE)])) == BLUE
