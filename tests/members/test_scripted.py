"""The scripted member keeps the contract, and does what its script says."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage

from langchain_specfuse import SpecFuseChatModel, UsageError
from langchain_specfuse.core.values import Call, Candidate, Constraint, Query, Turn
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


def told(member, *turns, constraint=None, id="q"):
    """What it says whole in this conversation."""
    job = draft_job(segment_tokens=99, max_tokens=99)
    return drafted(member, replace(job, query=Query(id, turns, constraint=constraint))).text


ASKED, ANSWERED = Turn("user", "?"), Turn("assistant", "ok")
CALLED = Turn("assistant", "", calls=(Call("f", "{}"),)), Turn("tool", "done", name="f")


def test_it_says_one_text_of_a_list_per_answer_of_the_conversation_and_stays_with_the_last():
    member = ScriptedMember(["first", "second"])
    turns = (ASKED, ANSWERED, ASKED, ANSWERED, ASKED)
    assert [told(member, *turns[:n], id=str(n)) for n in (1, 3, 5)] == ["first", "second", "second"]
    assert told(member, Turn("system", "?"), ASKED, *CALLED, id="call") == "second"
    assert told(member, id="nothing") == "first"


def test_a_list_may_hold_texts_functions_dicts_and_messages():
    message = SimpleNamespace(text="So. ", tool_calls=[{"name": "f", "args": {"a": "é"}, "id": "1"}])
    member = ScriptedMember(["one", lambda query: query.turns[-1].text, {"a": "é"}, message])
    turns = (ASKED, ANSWERED, Turn("user", "two"), ANSWERED, ASKED, ANSWERED, ASKED)
    found = [told(member, *turns[:n], id=str(n)) for n in (1, 3, 5, 7)]
    assert found == ["one", "two", '{"a": "é"}', "So. " + ScriptedMember.call("f", a="é")]
    assert ScriptedMember(AIMessage("Hello.")).spec == ScriptedMember("Hello.").spec


@pytest.mark.parametrize("wrong", [3, None, [], iter(["a"]), b"a", ["a", 3], [["a"]], {"a": {1}}, {"a": float("nan")}])
def test_what_cannot_be_said_is_refused_with_advice(wrong):
    with pytest.raises(UsageError, match=r"script") as caught:
        ScriptedMember(wrong)
    assert caught.value.__notes__


def test_a_call_without_a_name_or_with_arguments_that_are_no_json_is_refused():
    for wrong in (lambda: ScriptedMember.call(""), lambda: ScriptedMember.call("f", a={1})):
        with pytest.raises(UsageError, match="call"):
            wrong()


def test_a_function_that_returns_no_text_fails_its_question_and_no_other():
    def odd(query):
        return 3 if query.id == "odd" else "fine"

    jobs = [draft_job(id="odd"), draft_job(id="even")]
    failure, draft = ScriptedMember(odd).draft(jobs)
    assert draft.text == "fine"
    assert failure.message == "UsageError: the script 'odd' returned 3 (of type int), wanted a text"
    assert isinstance(failure.cause, UsageError)
    assert ScriptedMember(odd).score([score_job(id="odd")])[0] == failure


# --- under a constraint -----------------------------------------------------------------------------------------

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "parts": {"type": "array", "items": {"$ref": "#/$defs/Part"}},
        "near": {"anyOf": [{"$ref": "#/$defs/Part"}, {"type": "null"}]},
    },
    "required": ["name", "parts"],
    "$defs": {"Part": {"type": "object", "properties": {"x": {}, "y": {}}, "required": ["x"]}},
}
CITY = Constraint("json_schema", json.dumps(SCHEMA))
VALUE = {"near": {"y": 3, "x": 2}, "parts": [{"y": None, "x": 1}], "name": 'Kö\n"ln"'}
RIGHT = '{"name": "Kö\\n\\"ln\\"", "parts": [{"x": 1, "y": null}], "near": {"x": 2, "y": 3}}'
TOOL = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a"]}
CALLS = Constraint("calls", json.dumps({"tools": [{"name": "f", "parameters": TOOL}], "parallel": True}))
FREE = Constraint("any_of", json.dumps([["calls", CALLS.body], ["prose", ""]]))
OWN = Constraint(
    "calls", json.dumps({**json.loads(CALLS.body), "begin": "[F]", "end": "[/F]", "arguments_key": "args"})
)


@pytest.mark.parametrize(
    "script",
    [
        RIGHT,
        VALUE,
        json.dumps(VALUE),
        json.dumps(VALUE, separators=(",", ":")),
        f" {json.dumps(VALUE, indent=2)}\n",
        f"```json\n{json.dumps(VALUE, indent=2)}\n```",
    ],
)
def test_a_script_in_another_spelling_of_its_json_is_said_in_the_legal_one(script, caplog):
    assert told(ScriptedMember(script), ASKED, constraint=CITY) == RIGHT
    assert not caplog.records


@pytest.mark.parametrize("constraint", [CALLS, FREE])
@pytest.mark.parametrize(
    "script",
    [
        ScriptedMember.call("f", b="é", a=1),
        '<tool_call>{"name":"f","arguments":{"b":"\\u00e9","a":1}}</tool_call>',
        '\n<tool_call>\n\n{"arguments": {"a": 1, "b": "é"}, "name": "f"}</tool_call>\n',
        SimpleNamespace(content="", tool_calls=[{"name": "f", "args": {"b": "é", "a": 1}}]),
    ],
)
def test_a_call_in_another_spelling_is_said_in_the_legal_one(script, constraint, caplog):
    assert told(ScriptedMember(script), ASKED, constraint=constraint) == ScriptedMember.call("f", a=1, b="é")
    assert not caplog.records


def test_calls_are_said_in_the_format_of_the_question_whichever_of_the_two_they_are_written_in(caplog):
    two = ScriptedMember.call("f", b="x", a=1) + "\n" + ScriptedMember.call("f", a=2)
    right = '[F]{"name": "f", "args": {"a": 1, "b": "x"}}[/F]\n[F]{"name": "f", "args": {"a": 2}}[/F]'
    for script in (two, right, right.replace(" ", "")):
        assert told(ScriptedMember(script), ASKED, constraint=OWN) == right
    assert told(ScriptedMember('{"name": "f", "arguments": {"a": 1}}'), ASKED, constraint=CALLS).count("tool_call") == 2
    assert told(ScriptedMember("So: " + two), ASKED, constraint=FREE).startswith("So: <tool_call>\n{")
    assert not caplog.records


@pytest.mark.parametrize(
    ("script", "constraint", "wanted"),
    [
        ('{"name": "a", "parts": 3}', CITY, ("from character 23 on, where it says '3}'", "json.dumps", "such as")),
        ('{"name": "a"', CITY, ("ends at character 12, before the answer is whole", "json.dumps")),
        ('{"name":"a","parts":3}', CITY, ("even spelled as it should be, does not fit", "character 23", "'3}'")),
        ("It rains.", CALLS, ("character 0", "It rains.", "ScriptedMember.call('f', ...)")),
        (ScriptedMember.call("g"), FREE, ("character 22", "a call of f")),
        (ScriptedMember.call("f", a=1) + "\n" + ScriptedMember.call("f", a=1), FREE, ("each call once",)),
        ("perhaps", Constraint("choice", '["yes", "no"]'), ("character 0", "one of 'yes', 'no'")),
        ("ab1", Constraint("regex", "[a-z]+"), ("character 2", "a text that follows [a-z]+")),
        ("c", Constraint("grammar", 'root ::= "a" | "b"'), ("character 0", "a text that follows the grammar")),
    ],
)
def test_of_a_script_that_does_not_fit_the_log_warns_once_and_says_where_and_what_would(
    script, constraint, wanted, caplog
):
    member = ScriptedMember(script, name="ann")
    assert told(member, ASKED, constraint=constraint) == script
    told(member, ASKED, constraint=constraint)
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("langchain_specfuse", "WARNING")
    assert record.getMessage().startswith("ann: its script")
    assert [part for part in wanted if part not in record.getMessage()] == []


def test_without_what_reads_constraints_a_script_is_said_as_it_is(monkeypatch, caplog):
    monkeypatch.setenv("SPECFUSE_GRAMMAR", "missing")
    assert told(ScriptedMember("no"), ASKED, constraint=Constraint("regex", "a[x-z]{7}")) == "no"
    assert not caplog.records


@pytest.mark.parametrize("second", ["It is sunny.", lambda query: query.turns[-1].text])
def test_an_agent_on_a_list_of_a_call_and_an_answer_ends(second):
    def weather(city: str) -> str:
        """The weather in a city."""
        return f"sunny in {city}"

    call = AIMessage("", tool_calls=[{"name": "weather", "args": {"city": "Rome"}, "id": "1"}])
    for first in (ScriptedMember.call("weather", city="Rome"), call):
        members = [ScriptedMember([first, second]), ScriptedMember([first, second])]
        agent = create_agent(SpecFuseChatModel(members=members), [weather])
        messages = agent.invoke({"messages": [("human", "?")]}, {"recursion_limit": 10})["messages"]
        assert [message.type for message in messages] == ["human", "ai", "tool", "ai"]
        assert messages[2].text == "sunny in Rome"
        assert messages[3].text in ("It is sunny.", "sunny in Rome")


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
