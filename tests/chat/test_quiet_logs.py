"""Questions, answers and error texts are logged at DEBUG only."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from langchain_specfuse import ScriptedMember, SpecFuseChatModel
from langchain_specfuse.errors import SpecFuseError
from tests.methods import in_method

from .conftest import FailingMember, GatedMember

QUESTION = "canary-4711"
ANSWER = "The answer has a canary-4712 in it, and goes on for a few words more."


def quoting(query: Any) -> str:
    raise ValueError(f"cannot answer {query.turns[-1].text}")


CASES: dict[str, tuple[list[ScriptedMember], dict[str, Any]]] = {
    "no failure": (
        [ScriptedMember(ANSWER, name="a"), ScriptedMember(ANSWER.upper(), name="b")],
        {},
    ),
    "one fails": (
        [ScriptedMember(ANSWER, name="a"), ScriptedMember(ANSWER, name="b", fails_in=2)],
        {},
    ),
    "one quotes the question": (
        [ScriptedMember(ANSWER, name="a"), ScriptedMember(quoting, name="b")],
        {},
    ),
    "all quote the question": (
        [ScriptedMember(quoting, name="a"), ScriptedMember(quoting, name="b")],
        {},
    ),
    "too long": ([FailingMember("overflow", name="a")], {}),
    "not a number": ([FailingMember("nan", name="a"), ScriptedMember(ANSWER, name="b")], {}),
    "late": ([GatedMember(ANSWER, name="a", device="quiet")], {"timeout": 0.2}),
}


@pytest.mark.parametrize("case", CASES)
def test_no_word_of_a_question_or_answer_is_logged(case: str, caplog: Any) -> None:
    members, options = CASES[case]
    caplog.set_level(logging.INFO, "langchain_specfuse")
    try:
        SpecFuseChatModel(**in_method(members=members, segment_tokens=3, **options)).invoke(
            f"What is {QUESTION}?"
        )
    except (SpecFuseError, TimeoutError):
        pass
    for member in members:
        if isinstance(member, GatedMember):
            member.gate.set()
    ours = [record for record in caplog.records if record.name.startswith("langchain_specfuse")]
    texts = [record.getMessage() + str(record.exc_info) for record in ours]
    assert not [text for text in texts if "canary" in text]
