"""What is asked and answered is in no log of ours, unless somebody asks for DEBUG."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from langchain_specfuse import ScriptedMember, SpecFuseChatModel
from langchain_specfuse.errors import SpecFuseError

from .conftest import FailingMember, SlowMember

CANARY = "canary-4711"
SAID = "The answer has a canary-4712 in it, and goes on for a few words more."


def quoting(query: Any) -> str:
    raise ValueError(f"cannot answer {query.turns[-1].text}")


CASES: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "well": ([ScriptedMember(SAID, name="a"), ScriptedMember(SAID.upper(), name="b")], {}),
    "one fails": ([ScriptedMember(SAID, name="a"), ScriptedMember(SAID, name="b", fails_in=2)], {}),
    "one quotes": ([ScriptedMember(SAID, name="a"), ScriptedMember(quoting, name="b")], {}),
    "all quote": ([ScriptedMember(quoting, name="a"), ScriptedMember(quoting, name="b")], {}),
    "too long": ([FailingMember("overflow", name="a")], {}),
    "nonsense": ([FailingMember("nan", name="a"), ScriptedMember(SAID, name="b")], {}),
    "too late": ([SlowMember("word " * 400, name="a")], {"timeout": 0.05, "max_tokens": 400}),
    "a member too late": ([SlowMember(SAID, name="a"), ScriptedMember(SAID, name="b")], {"member_timeout": 0.01}),
}


@pytest.mark.parametrize("case", CASES)
def test_no_word_of_a_question_is_logged(case: str, caplog: Any) -> None:
    members, options = CASES[case]
    caplog.set_level(logging.INFO, "langchain_specfuse")
    llm = SpecFuseChatModel(members=members, segment_tokens=3, **options)
    try:
        llm.invoke(f"What is {CANARY}?")
    except (SpecFuseError, TimeoutError):
        pass
    ours = [record for record in caplog.records if record.name.startswith("langchain_specfuse")]
    assert not [told for record in ours if "canary" in (told := record.getMessage() + str(record.exc_info))]
