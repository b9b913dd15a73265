"""The scripted member keeps the contract, and does what its script says."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from langchain_specfuse.core.values import Candidate, Query, Turn
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
        return lambda: ScriptedMember(lambda query: f"You asked: {query.turns[-1].text}", name="f", confidence=3.0)


class TestSeveralTexts(MemberContract):
    @pytest.fixture
    def make_member(self):
        return lambda: ScriptedMember(["First answer.", STORY], name="several")


class TestDraftOnly(MemberContract):
    @pytest.fixture
    def make_member(self):
        return lambda: ScriptedMember(STORY, name="mute", draft_only=True)


def test_it_says_what_it_is_told_to_the_last_space():
    for size in (1, 2, 7, 100):
        assert alone(ScriptedMember(STORY), size=size, budget=99)[0] == STORY


def test_it_goes_on_where_the_agreed_answer_stands_in_words():
    from langchain_specfuse.core.values import Segment

    job = draft_job(answer=(Segment("Two other"), Segment(" words")), segment_tokens=2)
    assert drafted(ScriptedMember("one two three four five six"), job).text == " four five"


def test_under_a_constraint_it_goes_on_inside_a_word_and_tells_where_its_words_end():
    from langchain_specfuse.core.values import Constraint, Segment

    member, said = ScriptedMember('{"city": "Paris", "sunny": true}'), (Segment('{"city": "'),)
    query = Query("q", (Turn("user", "Where?"),), constraint=Constraint("json"))
    draft = drafted(member, replace(draft_job(answer=said, segment_tokens=2), query=query))
    assert (draft.text, draft.ends) == ('Paris", "sunny":', (7, 16))
    candidates = Candidate('Paris", "sunny":', False, ("a",)), Candidate("Rome", False, ("b",))
    reply = scored(member, replace(score_job(*candidates, answer=said), query=query))
    assert reply.logprobs == ((SURE, SURE), (UNSURE,))
    assert reply.ends == ((7, 16), (4,))


def test_it_ends_at_once_where_its_script_is_shorter_than_the_answer():
    from langchain_specfuse.core.values import Segment

    draft = drafted(ScriptedMember("one"), draft_job(answer=(Segment("one two three"),)))
    assert (draft.text, draft.ended, len(draft.logprobs)) == ("", True, 1)


def test_it_answers_each_question_of_a_conversation_in_turn():
    member = ScriptedMember(["first", "second"])

    def said(*questions):
        turns = [turn for q in questions for turn in (Turn("user", q), Turn("assistant", "ok"))][:-1]
        job = draft_job()
        from dataclasses import replace

        return drafted(member, replace(job, query=Query(str(len(questions)), tuple(turns)))).text

    assert [said("a"), said("a", "b"), said("a", "b", "c")] == ["first", "second", "first"]


def test_it_finds_its_own_words_probable_and_others_not():
    member = ScriptedMember("The sky is blue", confidence=2.0)
    rows = scored(
        member, score_job(Candidate("The sky", False, ("a",)), Candidate("The sea is blue", True, ("b",)))
    ).logprobs
    assert rows == ((2 * SURE, 2 * SURE), (2 * SURE, 2 * UNSURE, 2 * SURE, 2 * SURE, 2 * SURE))


def test_it_fails_in_the_draft_call_it_was_told_to():
    member = ScriptedMember("one two three", fails_in=2, error=ZeroDivisionError("planned"))
    drafted(member, draft_job())
    with pytest.raises(ZeroDivisionError, match="planned"):
        member.draft([draft_job()])
    assert drafted(member, draft_job()).text


def test_it_remembers_a_query_until_it_is_told_to_forget():
    member = ScriptedMember("one two")
    drafted(member, draft_job(id="q7"))
    assert list(member.open_queries) == ["q7"]
    member.forget("q7")
    assert member.open_queries == {}


def test_one_word_has_one_token_whoever_asks_first_on_whatever_thread():
    words = [f"w{k}" for k in range(500)]
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(tuple(ScriptedMember("x").token_ids(" ".join(words)))))
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert len(set(found[0])) == 500


def test_members_without_a_name_have_different_ones():
    assert ScriptedMember("x").name != ScriptedMember("x").name
