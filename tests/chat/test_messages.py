"""LangChain's messages become plain turns without loss; unreadable content is refused."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import assume, example, given
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
from langchain_specfuse.chat.messages import turns_of
from langchain_specfuse.core.values import Attachment, ToolCall, Turn
from tests.torture.texts import broken, texts


def roles_and_texts(messages: list[BaseMessage]) -> list[tuple[str, str]]:
    return [(turn.role, turn.text) for turn in turns_of(messages)]


def test_system_messages_go_first_and_neighbours_of_one_role_become_one_turn() -> None:
    messages = [
        SystemMessage(" Be brief.\n"),
        HumanMessage("one"),
        SystemMessage("Be kind."),
        HumanMessage("two\t"),
    ]
    messages += [
        AIMessage("  three"),
        ChatMessage("four", role="assistant"),
        HumanMessage("Why? 🙂"),
    ]
    assert roles_and_texts(messages) == [
        ("system", " Be brief.\n\n\nBe kind."),
        ("user", "one\n\ntwo\t"),
        ("assistant", "  three\n\nfour"),
        ("user", "Why? 🙂"),
    ]


def test_a_humans_name_is_written_before_the_text_and_an_agents_is_not() -> None:
    messages = [
        HumanMessage("hi", name="ann"),
        AIMessage("hello", name="agent"),
        HumanMessage("well?"),
    ]
    assert roles_and_texts(messages) == [
        ("user", "ann: hi"),
        ("assistant", "hello"),
        ("user", "well?"),
    ]


def test_text_blocks_are_joined_and_reasoning_is_left_out() -> None:
    human = HumanMessage([{"type": "text", "text": "one "}, "two"])
    thinking = AIMessage(
        [{"type": "reasoning", "reasoning": "hm"}, {"type": "text", "text": "three"}]
    )
    assert roles_and_texts([human, thinking]) == [("user", "one two"), ("assistant", "three")]


DATA = {"base64": "AAAA", "mime_type": "image/png"}
IMAGES: list[dict[str, Any]] = [
    {"type": "image", **DATA, "id": "mine"},
    {"type": "image", "source_type": "base64", "data": "AAAA", "mime_type": "image/png"},
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
]


@pytest.mark.parametrize("block", IMAGES)
def test_an_image_in_any_form_is_the_same_attachment_in_a_human_message_and_refused_elsewhere(
    block: Any,
) -> None:
    image = Attachment("image", json.dumps({"type": "image", **DATA}))
    messages = [HumanMessage(["What is ", block, "this?"]), HumanMessage([block])]
    assert turns_of(messages) == (Turn("user", "What is this?", attachments=(image, image)),)
    for message in (
        SystemMessage([block]),
        AIMessage([block]),
        ToolMessage([block], tool_call_id="1"),
    ):
        with pytest.raises(UsageError, match=r"block 0 of message 0 \(\w+\) is of type 'image"):
            turns_of([message])


ADD = {"name": "add", "args": {"a": 1, "b": "天"}, "id": "1"}
ADDED = ToolCall("add", '{"a": 1, "b": "天"}', "1")


def test_calls_and_results_are_separate_turns() -> None:
    results = [ToolMessage("2", tool_call_id="1", name="sum"), ToolMessage("3", tool_call_id="1")]
    messages = [
        HumanMessage("1+1?"),
        AIMessage("So.", tool_calls=[ADD]),
        *results,
        FunctionMessage("4", name="old"),
    ]
    assert turns_of(messages) == (
        Turn("user", "1+1?"),
        Turn("assistant", "So.", calls=(ADDED,)),
        Turn("tool", "2", name="sum", call_id="1"),
        Turn("tool", "3", name="add", call_id="1"),
        Turn("tool", "4", name="old"),
    )


@pytest.mark.parametrize(
    "block", [{"type": "tool_use", "input": ADD["args"]}, {"type": "tool_call"}]
)
@pytest.mark.parametrize("calls", [[], [ADD]])
def test_a_call_is_read_once_from_a_block_from_tool_calls_or_from_both(
    block: dict[str, Any], calls: list[Any]
) -> None:
    content: list[str | dict[Any, Any]] = [{"type": "text", "text": "some text"}, {**ADD, **block}]
    message = AIMessage(content, tool_calls=calls)
    assert turns_of([HumanMessage("?"), message])[1] == Turn(
        "assistant", "some text", calls=(ADDED,)
    )


def test_a_failed_result_is_marked_once() -> None:
    failed = ToolMessage(
        "no such city", tool_call_id="1", status="error", artifact={"big": object()}
    )
    marked = ToolMessage("Error: no such city", tool_call_id="1", status="error")
    assert [turn.text for turn in turns_of([failed, marked])] == ["Error: no such city"] * 2


def test_messages_that_cannot_be_read_are_refused_before_a_member_is_asked() -> None:
    member = ScriptedMember("hi", name="one")
    llm = SpecFuseChatModel(members=[member])
    for question, error in (
        ([], "nothing to answer"),
        (
            [HumanMessage("hi"), ChatMessage("bad", role="critic")],
            "message 1 has the role 'critic'",
        ),
        ("hi\ud800", "not valid UTF-8 at character 3"),
    ):
        with pytest.raises(UsageError, match=error):
            llm.invoke(question)
    assert member.draft_calls == 0
    assert llm.invoke("").text == "hi"


# --- properties: each message is made together with what members must read of it ------------------

ROLES = {
    "human": "user",
    "user": "user",
    "ai": "assistant",
    "assistant": "assistant",
    "tool": "tool",
}
ROLES |= {"system": "system", "developer": "system"}


@dataclass(frozen=True)
class Sample:
    """A message, and what members must read of it."""

    message: BaseMessage
    role: str
    text: str | None
    """None: it holds something that is no text."""
    calls: tuple[tuple[str, Any], ...] = ()
    call_id: str = ""

    @property
    def refused(self) -> bool:
        if self.text is None or not self.role:
            return True
        arguments = json.dumps([arguments for _, arguments in self.calls], ensure_ascii=False)
        return any(
            "\ud800" <= char <= "\udfff"
            for char in self.text + arguments + "".join(n for n, _ in self.calls)
        )


plain_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | broken,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
text_blocks = st.one_of(
    broken.map(lambda text: (text, text)),
    broken.map(lambda text: ({"type": "text", "text": text}, text)),
    broken.map(
        lambda text: (
            {"type": "text", "text": text, "id": "1", "annotations": [], "index": 0},
            text,
        )
    ),
    broken.map(
        lambda text: ({"type": "text-plain", "text": text, "mime_type": "text/plain"}, text)
    ),
)
"""(block, its text)."""
silent_blocks = st.sampled_from(
    [
        {"type": "reasoning", "reasoning": "hm", "id": "r"},
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "input_json_delta", "partial_json": '{"a'},
        {"type": "invalid_tool_call", "name": "add", "args": "{", "id": "1", "error": "no"},
    ]
)
other_blocks: Any = st.sampled_from(
    [
        {"type": "image", "mime_type": "image/png"},
        {"type": "non_standard", "value": {"a": 1}},
        {"type": "text", "text": None},
        {"type": ["text"], "text": "a"},
        {"type": "\ud800"},
        {"type": "x" * 5000},
    ]
)


@st.composite
def contents(draw: Any, *, silent: bool = False) -> tuple[Any, str | None]:
    """Draw (content, its text); the content is a text or a list of blocks, rarely with an
    unreadable one."""
    if draw(st.booleans()):
        text = draw(broken)
        return text, text
    blocks = draw(st.lists(text_blocks, max_size=4))
    blocks += [
        (block, "") for block in (draw(st.lists(silent_blocks, max_size=2)) if silent else ())
    ]
    blocks += [(draw(other_blocks), None)] if draw(st.integers(0, 5)) == 5 else []
    blocks = draw(st.permutations(blocks))
    known = [text for _, text in blocks]
    return [block for block, _ in blocks], None if None in known else "".join(map(str, known))


names = st.none() | st.just("ann") | texts
ids = st.sampled_from(["1", "2", "call_3", "", "\u202e"])


@st.composite
def samples(draw: Any) -> Sample:
    kind = draw(st.sampled_from(["system", "human", "ai", "ai", "ai", "tool", "chat", "function"]))
    content, text = draw(contents(silent=kind == "ai"))
    if kind == "system":
        return Sample(SystemMessage(content), "system", text)
    if kind == "human":
        name = draw(names)
        return Sample(
            HumanMessage(content, name=name),
            "user",
            f"{name}: {text}" if name and text is not None else text,
        )
    if kind == "chat":
        role = draw(st.sampled_from([*ROLES, "critic", "", "\ud800", "x" * 5000]))
        return Sample(ChatMessage(content, role=role), ROLES.get(role, ""), text)
    if kind == "function":
        return Sample(FunctionMessage("f", name="f"), "tool", "f")
    if kind == "tool":
        status, call_id = draw(st.sampled_from(["success", "error"])), draw(ids)
        message = ToolMessage(
            content, tool_call_id=call_id, status=status, name=draw(names), artifact={"a": 1}
        )
        if status == "error" and text is not None and not text.lower().startswith("error"):
            text = f"Error: {text}"
        return Sample(message, "tool", text, call_id=call_id)
    objects = st.dictionaries(texts, plain_json, max_size=3)
    drawn_calls = draw(st.lists(st.tuples(broken, objects, ids | st.none()), max_size=3))
    calls = [{"name": name, "args": arguments, "id": id_} for name, arguments, id_ in drawn_calls]
    # in its blocks as well, as providers do
    if drawn_calls and isinstance(content, list) and draw(st.integers(0, 3)):
        content = [*content, *({"type": "tool_call", **call} for call in calls)]
    pairs = tuple((name, arguments) for name, arguments, _ in drawn_calls)
    return Sample(AIMessage(content, tool_calls=calls), "assistant", text, pairs)


conversations = st.lists(samples(), max_size=6)


def read(messages: list[BaseMessage]) -> tuple[Turn, ...] | str:
    """Return the turns, or the reason why there are none."""
    try:
        return turns_of(messages)
    except UsageError as raised:
        error = raised
    assert error.notes[0].startswith("-> ") and len(str(error)) < 1000
    str(error).encode()
    return str(error)


@given(conversations)
def test_no_character_call_or_result_is_lost_or_moved(conversation: list[Sample]) -> None:
    conversation = [sample for sample in conversation if not sample.refused] or [
        Sample(HumanMessage("Why?"), "user", "Why?")
    ]
    turns = turns_of([sample.message for sample in conversation])
    for role in ("system", "user", "assistant", "tool"):
        texts = [turn.text for turn in turns if turn.role == role]
        whole = "\n\n".join(filter(None, texts))
        assert whole == "\n\n".join(
            sample.text for sample in conversation if sample.role == role and sample.text
        )
    calls = [(call.name, call.arguments) for turn in turns for call in turn.calls]
    assert calls == [
        (name, json.dumps(args, ensure_ascii=False))
        for sample in conversation
        for name, args in sample.calls
    ]
    order = [len(turn.calls) or turn.call_id for turn in turns if turn.calls or turn.role == "tool"]
    assert order == [
        len(sample.calls) or sample.call_id
        for sample in conversation
        if sample.calls or sample.role == "tool"
    ]
    systems = [turn.role for turn in turns].count("system")
    assert systems <= 1 and all(turn.role != "system" for turn in turns[systems:])


CIRCLE: dict[str, Any] = {}
CIRCLE["a"] = [CIRCLE]


@example([Sample(AIMessage([{"type": ["text"], "text": "a"}]), "assistant", None)])
@given(conversations)
def test_a_conversation_is_answered_unless_its_content_cannot_be_read(
    conversation: list[Sample],
) -> None:
    messages, seen = [sample.message for sample in conversation], []

    def answer(query: Any) -> str:
        seen.append(query.turns)
        return "Yes."

    turns = read(messages)
    assert isinstance(turns, str) == (
        not conversation or any(sample.refused for sample in conversation)
    )
    blocks = [block for message in messages for block in message.content if isinstance(block, dict)]
    # LangChain itself fails on others
    assume(all(isinstance(block["type"], str) for block in blocks))
    llm = SpecFuseChatModel(members=[ScriptedMember(answer, name="a")])
    if isinstance(turns, str):
        with pytest.raises(UsageError) as raised:
            llm.invoke(messages)
        assert str(raised.value) == turns
    else:
        assert llm.invoke(messages).text == "Yes." and set(seen) == {turns}
        assert llm.get_num_tokens_from_messages(messages) >= 0


# --- counting tokens ------------------------------------------------------------------------------


def test_tokens_are_counted_by_the_first_member(ensemble: Any) -> None:
    llm = ensemble()
    assert llm.get_num_tokens("one two three") == len(llm.get_token_ids("one two three")) == 3
    messages = [SystemMessage("Be brief."), HumanMessage("Why is the sky blue?")]
    assert (
        llm.get_num_tokens_from_messages(messages)
        == 7
        == llm.invoke(messages).usage_metadata["input_tokens"]
    )
