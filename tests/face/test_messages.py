"""LangChain's messages become plain turns; what cannot is refused with its place."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)

from langchain_specfuse import ScriptedMember, SpecFuseChatModel, UsageError
from langchain_specfuse._messages import turns_of
from langchain_specfuse.core.values import Call, Turn

from .conftest import asked


def shown(messages: list[BaseMessage]) -> list[tuple[str, str]]:
    return [(turn.role, turn.text) for turn in turns_of(messages)]


def test_roles_and_text_are_kept_to_the_byte() -> None:
    messages = [SystemMessage(" Be brief.\n"), HumanMessage("Hi\t"), AIMessage("  Hello"), HumanMessage("Why? 🙂")]
    assert shown(messages) == [
        ("system", " Be brief.\n"),
        ("user", "Hi\t"),
        ("assistant", "  Hello"),
        ("user", "Why? 🙂"),
    ]


def test_neighbours_of_one_role_become_one_turn() -> None:
    messages = [HumanMessage("one"), HumanMessage("two"), AIMessage("three"), AIMessage("four"), HumanMessage("five")]
    assert shown(messages) == [("user", "one\n\ntwo"), ("assistant", "three\n\nfour"), ("user", "five")]


def test_system_messages_go_first_wherever_they_stood() -> None:
    messages = [SystemMessage("one"), HumanMessage("hi"), SystemMessage("two"), HumanMessage("ho")]
    assert shown(messages) == [("system", "one\n\ntwo"), ("user", "hi\n\nho")]


def test_a_humans_name_is_written_before_the_text_and_an_agents_is_not() -> None:
    messages = [HumanMessage("hi", name="ann"), AIMessage("hello", name="agent"), HumanMessage("well?")]
    assert shown(messages) == [("user", "ann: hi"), ("assistant", "hello"), ("user", "well?")]


def test_text_blocks_are_joined_and_thoughts_left_out() -> None:
    human = HumanMessage([{"type": "text", "text": "one "}, "two"])
    thinking = AIMessage([{"type": "reasoning", "reasoning": "hm"}, {"type": "text", "text": "three"}])
    assert shown([human, thinking]) == [("user", "one two"), ("assistant", "three")]


# --- calls and what they brought ----------------------------------------------------------------------------------

ADD = {"name": "add", "args": {"a": 1, "b": "天"}, "id": "1"}
ADDED = Call("add", '{"a": 1, "b": "天"}', "1")


def test_calls_and_results_are_turns_of_their_own_kind() -> None:
    messages = [
        HumanMessage("1+1?"),
        AIMessage("So.", tool_calls=[ADD]),
        ToolMessage("2", tool_call_id="1", name="add"),
    ]
    assert turns_of(messages) == (
        Turn("user", "1+1?"),
        Turn("assistant", "So.", calls=(ADDED,)),
        Turn("tool", "2", name="add", call_id="1"),
    )


USE = {"type": "tool_use", "id": "1", "name": "add", "input": {"a": 1, "b": "天"}}
CALL_BLOCK = {"type": "tool_call", "id": "1", "name": "add", "args": {"a": 1, "b": "天"}}


@pytest.mark.parametrize("block", [USE, CALL_BLOCK], ids=lambda block: block["type"])
@pytest.mark.parametrize("told", [True, False])
def test_a_call_is_told_once_whether_in_a_block_in_tool_calls_or_in_both(block: dict[str, Any], told: bool) -> None:
    content: list[str | dict[Any, Any]] = [{"type": "text", "text": "some text"}, block]
    message = AIMessage(content, tool_calls=[ADD] if told else [])
    assert turns_of([HumanMessage("?"), message])[1] == Turn("assistant", "some text", calls=(ADDED,))


def test_a_call_without_a_name_is_told_once_too() -> None:
    call: dict[str, Any] = {"type": "tool_call", "name": "", "args": {}, "id": None}
    assert turns_of([AIMessage(content=[call], tool_calls=[call])])[0].calls == (Call("", "{}", ""),)


def test_two_equal_calls_with_ids_of_their_own_are_two() -> None:
    calls = [ADD, {**ADD, "id": "2"}]
    (_, turn) = turns_of([HumanMessage("?"), AIMessage([USE, {**USE, "id": "2"}], tool_calls=calls)])
    assert [call.id for call in turn.calls] == ["1", "2"]


@pytest.mark.parametrize(
    ("args", "expected"),
    [('{"a": 1', '{"invalid": "{\\"a\\": 1"}'), ('{"a": 1}', '{"a": 1}'), (None, "{}"), ("[1]", '{"invalid": "[1]"}')],
)
def test_a_broken_call_is_told_as_an_object_too(args: str | None, expected: str) -> None:
    broken = {"name": "add", "args": args, "id": "9", "error": "bad", "type": "invalid_tool_call"}
    (_, turn) = turns_of([HumanMessage("?"), AIMessage("", invalid_tool_calls=[broken])])
    assert turn.calls == (Call("add", expected, "9"),)


def test_a_result_without_a_name_has_that_of_its_call() -> None:
    messages = [HumanMessage("?"), AIMessage("", tool_calls=[ADD]), ToolMessage("2", tool_call_id="1")]
    assert turns_of(messages)[2] == Turn("tool", "2", name="add", call_id="1")
    assert turns_of([ToolMessage("2", tool_call_id="7")])[0].name == ""


def test_a_failed_result_says_so_once_and_artifacts_stay_with_the_caller() -> None:
    failed = ToolMessage("no such city", tool_call_id="1", status="error", artifact={"big": object()})
    told = ToolMessage("Error: no such city", tool_call_id="1", status="error")
    assert [turn.text for turn in turns_of([failed, told])] == ["Error: no such city"] * 2


def test_a_result_may_be_a_list_of_texts_and_of_data() -> None:
    content: list[str | dict[Any, Any]] = ["one ", {"type": "text", "text": "two "}, {"type": "json", "json": {"a": 1}}]
    assert turns_of([ToolMessage(content, tool_call_id="1")])[0].text == 'one two {"a": 1}'
    with pytest.raises(UsageError, match="block 0 of message 0 \\(tool\\) is of type 'image'"):
        turns_of([ToolMessage([{"type": "image", "url": "x"}], tool_call_id="1")])


def test_an_old_function_message_is_a_result() -> None:
    assert turns_of([FunctionMessage("2", name="add")]) == (Turn("tool", "2", name="add"),)


def test_neighbours_that_call_or_answer_calls_stay_apart() -> None:
    results = [ToolMessage("2", tool_call_id="1"), ToolMessage("3", tool_call_id="2")]
    messages = [HumanMessage("?"), AIMessage("one", tool_calls=[ADD]), AIMessage("two"), *results]
    assert [turn.role for turn in turns_of(messages)] == ["user", "assistant", "assistant", "tool", "tool"]


CALLS = st.lists(
    st.builds(
        lambda name, args, call_id: {"name": name, "args": args, "id": call_id},
        st.sampled_from(["add", "sub"]),
        st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=5) | st.none(), max_size=2),
        st.sampled_from(["1", "2", "3"]),
    ),
    max_size=2,
)
MESSAGES = st.lists(
    st.builds(SystemMessage, st.text(max_size=5))
    | st.builds(HumanMessage, st.text(max_size=5))
    | st.builds(lambda text, calls: AIMessage(text, tool_calls=calls), st.text(max_size=5), CALLS)
    | st.builds(
        lambda text, call_id: ToolMessage(text, tool_call_id=call_id), st.text(max_size=5), st.sampled_from(["1", "9"])
    ),
    min_size=1,
    max_size=8,
)


@given(MESSAGES)
def test_no_word_call_or_result_is_lost_or_moved(messages: list[BaseMessage]) -> None:
    turns = turns_of(messages)
    calls = [call for message in messages if isinstance(message, AIMessage) for call in message.tool_calls]
    assert [(c.name, json.loads(c.arguments), c.id) for turn in turns for c in turn.calls] == [
        (c["name"], c["args"], c["id"]) for c in calls
    ]
    results = [message for message in messages if isinstance(message, ToolMessage)]
    assert [(t.text, t.call_id) for t in turns if t.role == "tool"] == [(m.text, m.tool_call_id) for m in results]
    for kind, role in ((SystemMessage, "system"), (HumanMessage, "user"), (AIMessage, "assistant")):
        words = "".join(message.text for message in messages if isinstance(message, kind)).replace("\n", "")
        assert "".join(turn.text for turn in turns if turn.role == role).replace("\n", "") == words
    assert turns_of(messages) == turns
    assert all(a.role != b.role or "tool" in (a.role, b.role) or a.calls or b.calls for a, b in pairwise(turns))


def test_generic_roles_are_understood() -> None:
    messages = [ChatMessage("be kind", role="developer"), ChatMessage("hi", role="user")]
    assert shown(messages) == [("system", "be kind"), ("user", "hi")]


BLOCKS = [
    {"type": "image", "url": "https://example.com/cat.png"},
    {"type": "image_url", "image_url": {"url": "https://example.com/cat.png"}},
    {"type": "audio", "base64": "AAAA", "mime_type": "audio/wav"},
    {"type": "file", "base64": "AAAA", "mime_type": "application/pdf"},
    {"type": "video", "url": "https://example.com/cat.mp4"},
]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block["type"])
async def test_a_block_that_is_no_text_is_refused_with_its_place_and_type(ensemble: Any, block: dict[str, Any]) -> None:
    messages = [SystemMessage("Be brief."), HumanMessage([{"type": "text", "text": "What is this?"}, block])]
    for way in ("invoke", "ainvoke"):
        with pytest.raises(UsageError) as error:
            await asked(ensemble(), way, messages)
        assert "block 1 of message 1 (human)" in str(error.value)
        assert block["type"].removesuffix("_url") in str(error.value)


def test_no_messages_are_refused_and_an_empty_text_is_a_question_like_any_other(ensemble: Any) -> None:
    with pytest.raises(UsageError, match="nothing to answer"):
        ensemble().invoke([])
    assert ensemble().invoke("").text


def test_an_unknown_role_is_refused_with_its_place() -> None:
    with pytest.raises(UsageError, match="message 1 has the role 'critic'"):
        turns_of([HumanMessage("hi"), ChatMessage("bad", role="critic")])


def test_a_conversation_that_ends_with_an_ai_message_is_answered_with_one_more_turn() -> None:
    seen: list[Any] = []

    def answer(query: Any) -> str:
        seen.append([turn.role for turn in query.turns])
        return "Yes."

    llm = SpecFuseChatModel(members=[ScriptedMember(answer, name="a")])
    assert llm.invoke([HumanMessage("Is it?"), AIMessage("I think")]).text == "Yes."
    assert seen == [["user", "assistant"]]


# --- counting ---------------------------------------------------------------------------------------------------


class Mute:
    """A member with no tokenizer to show."""

    name, device = "mute", "scripted"

    def probe(self) -> Any:
        return ScriptedMember("x").probe()

    def draft(self, jobs: Any) -> Any: ...
    def score(self, jobs: Any) -> Any: ...
    def forget(self, query_id: str) -> None: ...


def test_tokens_are_counted_by_the_first_member(ensemble: Any) -> None:
    llm = ensemble()
    assert llm.get_num_tokens("one two three") == len(llm.get_token_ids("one two three")) == 3
    messages = [SystemMessage("Be brief."), HumanMessage("Why is the sky blue?")]
    assert llm.get_num_tokens_from_messages(messages) == 7 == llm.invoke(messages).usage_metadata["input_tokens"]


def test_a_member_without_a_tokenizer_is_guessed_for_and_says_so() -> None:
    llm = SpecFuseChatModel(members=[Mute()])
    with pytest.warns(UserWarning, match="four bytes"):
        assert llm.get_num_tokens("twelve bytes") == 3
    with pytest.raises(UsageError, match="no tokenizer"):
        llm.get_token_ids("x")
    own = SpecFuseChatModel(members=[Mute()], custom_get_token_ids=lambda text: [1] * len(text))
    assert own.get_num_tokens_from_messages([HumanMessage("four")]) == 4
