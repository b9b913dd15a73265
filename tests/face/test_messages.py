"""LangChain's messages become plain turns; what cannot is refused with its place."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, ChatMessage, HumanMessage, SystemMessage, ToolMessage

from langchain_specfuse import ScriptedMember, SpecFuseChatModel, UsageError
from langchain_specfuse._messages import turns_of

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


def test_tool_calls_and_results_of_earlier_turns_are_written_out() -> None:
    call = {"name": "add", "args": {"a": 1}, "id": "1"}
    messages = [HumanMessage("1+1?"), AIMessage("", tool_calls=[call]), ToolMessage("2", tool_call_id="1", name="add")]
    assert shown(messages) == [
        ("user", "1+1?"),
        ("assistant", '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'),
        ("user", '<tool_response>\n{"name": "add", "content": "2"}\n</tool_response>'),
    ]


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
