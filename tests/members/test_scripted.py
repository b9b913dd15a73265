"""The scripted member keeps the contract and follows its script."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from langchain_specfuse import UsageError
from langchain_specfuse.core.values import (
    Candidate,
    Constraint,
    DraftJob,
    Query,
    Sampling,
    Segment,
    ToolCall,
    Turn,
)
from langchain_specfuse.members.scripted import SURE, UNSURE, ScriptedMember

from .contract import MemberContract, alone, draft_job, drafted, score_job, scored

STORY = "The sky is blue,\n\n- because   light scatters;\n\t- 天空是蓝色的 👨‍👩‍👧 and so on. "


class TestAText(MemberContract):
    @pytest.fixture
    def make_member(self):
        return lambda: ScriptedMember(STORY, name="scripted")


class TestAFunctionOfTheQuery(MemberContract):
    @pytest.fixture
    def make_member(self):
        script = lambda query: f"You asked: {query.turns[-1].text}"
        return lambda: ScriptedMember(script, name="f", confidence=3.0, max_context=99)


class TestDraftOnly(MemberContract):
    @pytest.fixture
    def make_member(self):
        return lambda: ScriptedMember(["First answer.", STORY], name="mute", draft_only=True)


ASKED, ANSWERED = Turn("user", "?"), Turn("assistant", "ok")
CALLED = Turn("assistant", "", calls=(ToolCall("f", "{}"),)), Turn("tool", "done", name="f")


def whole(
    member: ScriptedMember, *turns: Turn, constraint: Constraint | None = None, id: str = "q"
) -> str:
    """Return the whole answer in this conversation."""
    job = draft_job(segment_tokens=99, max_tokens=99)
    return drafted(member, replace(job, query=Query(id, turns, constraint=constraint))).text


def test_the_whole_script_is_written_to_its_last_space():
    for size in (1, 2, 7, 100):
        assert alone(ScriptedMember(STORY), size=size, budget=99)[0] == STORY


def test_it_continues_after_as_many_words_as_were_agreed():
    job = draft_job(answer=(Segment("Two other"), Segment(" words")), segment_tokens=2)
    assert drafted(ScriptedMember("one two three four five six"), job).text == " four five"
    draft = drafted(ScriptedMember("one"), draft_job(answer=(Segment("one two three"),)))
    assert (draft.text, draft.ended, len(draft.logprobs)) == ("", True, 1)


def test_under_a_constraint_it_continues_inside_a_word_and_reports_where_words_end():
    member, agreed = ScriptedMember('{"city": "Paris", "sunny": true}'), (Segment('{"city": "'),)
    query = Query("q", (Turn("user", "Where?"),), constraint=Constraint("json"))
    draft = drafted(member, replace(draft_job(answer=agreed, segment_tokens=2), query=query))
    assert (draft.text, draft.ends) == ('Paris", "sunny":', (7, 16))
    candidates = Candidate('Paris", "sunny":', False, ("a",)), Candidate("Rome", False, ("b",))
    reply = scored(member, replace(score_job(*candidates, answer=agreed), query=query))
    assert reply.logprobs == ((SURE, SURE), (UNSURE,))
    assert reply.ends == ((7, 16), (4,))


def test_a_list_has_one_text_for_each_answer_of_the_conversation():
    member = ScriptedMember(["first", lambda query: "second"])
    turns = (ASKED, ANSWERED, ASKED, ANSWERED, ASKED)
    assert [whole(member, *turns[:n], id=str(n)) for n in (1, 3, 5)] == [
        "first",
        "second",
        "second",
    ]
    assert whole(member, Turn("system", "?"), ASKED, *CALLED, id="call") == "second"
    assert whole(member, id="nothing") == "first"


@pytest.mark.parametrize(
    "wrong", [3, None, [], b"a", ["a", 3], [["a"]], {"a": {1}}, {"a": float("nan")}]
)
def test_a_script_that_is_not_text_is_refused_with_advice(wrong: Any):
    with pytest.raises(UsageError, match=r"script") as caught:
        ScriptedMember(wrong)
    assert caught.value.notes


def test_a_call_without_a_name_or_with_arguments_that_are_not_json_is_refused():
    for wrong in (lambda: ScriptedMember.call(""), lambda: ScriptedMember.call("f", a={1})):
        with pytest.raises(UsageError, match="call"):
            wrong()


def test_a_function_that_returns_no_text_fails_its_query_and_no_other():
    def odd(query):
        return 3 if query.id == "odd" else "fine"

    failure, draft = ScriptedMember(odd).draft([draft_job(id="odd"), draft_job(id="even")])
    assert draft.text == "fine"
    assert all(part in failure.message for part in ("UsageError", "'odd'", "3", "int", "a text"))
    assert isinstance(failure.cause, UsageError)
    assert ScriptedMember(odd).score([score_job(id="odd")])[0] == failure


# --- under a constraint ---------------------------------------------------------------------------

CITY = Constraint(
    "json_schema",
    json.dumps(
        {"type": "object", "properties": {"name": {"type": "string"}, "size": {"type": "integer"}}}
    ),
)
TOOL = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
CALLS = Constraint("calls", json.dumps({"tools": [{"name": "f", "parameters": TOOL}]}))


@pytest.mark.parametrize(
    ("script", "constraint"),
    [
        ({"name": "Rome", "size": 3}, CITY),
        (ScriptedMember.call("f", a=1), CALLS),
        ("b", Constraint("regex", "[a-z]")),
    ],
    ids=["json", "call", "regex"],
)
def test_a_legal_script_is_written_unchanged(
    script: Any, constraint: Constraint, caplog: pytest.LogCaptureFixture
):
    assert (
        whole(ScriptedMember(script), ASKED, constraint=constraint)
        == ScriptedMember(script).spec["scripted"][0]
    )
    assert not caplog.records


@pytest.mark.parametrize(
    ("script", "constraint", "where"),
    [
        ('{"size": 3, "name": "x"}', CITY, 'from character 10 on: \', "name"'),
        ('{"name": "a"', CITY, "ends at character 12"),
        ("It rains.", CALLS, "from character 0 on: 'It rains.'"),
        ("perhaps", Constraint("choice", '["yes", "no"]'), "from character 0 on"),
    ],
)
def test_an_illegal_script_is_warned_about_once_per_query(
    script: str, constraint: Constraint, where: str, caplog: pytest.LogCaptureFixture
):
    member = ScriptedMember(script, name="ann")
    for _ in range(2):
        assert whole(member, ASKED, constraint=constraint) == script
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("langchain_specfuse", "WARNING")
    assert record.getMessage().startswith("ann: its script") and where in record.getMessage()


# --- votes, failures, tokens ----------------------------------------------------------------------


def test_it_fails_in_the_chosen_draft_call():
    member = ScriptedMember("one two three", fails_in=2, error=ZeroDivisionError("planned"))
    drafted(member, draft_job())
    with pytest.raises(ZeroDivisionError, match="planned"):
        member.draft([draft_job()])
    assert drafted(member, draft_job()).text


def test_every_word_has_one_token_in_all_members():
    words = " ".join(f"w{k}" for k in range(500))
    ids = ScriptedMember("x").token_ids(words)
    assert ids == ScriptedMember("y").token_ids(words) and len(set(ids)) == 500


def test_members_without_a_name_get_different_ones():
    assert ScriptedMember("x").name != ScriptedMember("x").name


def test_it_goes_on_with_the_next_word_where_an_answer_was_cut_behind_white_space():
    member = ScriptedMember("The sky is blue.\n\nIt is wide.")
    for agreed, expected in [
        ("The sky ", "is blue."),
        ("The sky is blue.\n", "\nIt is"),
        ("The sky is blue.\n\n", "It is"),
        ("The sea was grey. ", "It is"),
    ]:
        job = DraftJob(Query("q", (Turn("user", "?"),)), (Segment(agreed),), 2, 9, Sampling())
        assert member.draft([job])[0].text == expected
