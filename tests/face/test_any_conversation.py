"""Whatever a conversation is made of: it becomes turns, or it is refused in words; nothing said is lost on the way.

Each message is made together with what the members must hear of it, so that what is read is not judged by itself.
"""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from langchain_core.load import dumps, loads
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    messages_from_dict,
    messages_to_dict,
)

from langchain_specfuse import ScriptedMember, SpecFuseChatModel, UsageError
from langchain_specfuse._messages import turns_of
from langchain_specfuse.core.values import Turn
from tests.torture.texts import broken, texts

ROLES = {"human": "user", "user": "user", "ai": "assistant", "assistant": "assistant", "tool": "tool"}
ROLES |= {"system": "system", "developer": "system"}


@dataclass(frozen=True)
class Told:
    """A message, and what must be heard of it."""

    message: BaseMessage
    role: str
    text: str | None
    """None: it says something that is no text."""
    calls: tuple[tuple[str, Any], ...] = ()
    """(name, arguments)."""
    call_id: str = ""

    @property
    def refused(self) -> bool:
        """Whether nobody can hear it."""
        if self.text is None or not self.role:
            return True
        return not all(map(is_text, [self.text, *(name for name, _ in self.calls)])) or not is_text(
            json.dumps([arguments for _, arguments in self.calls], ensure_ascii=False)
        )


def is_text(text: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


# --- content ----------------------------------------------------------------------------------------------------

plain_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | broken,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
objects = st.dictionaries(texts, plain_json, max_size=3)
said = st.one_of(
    broken.map(lambda text: (text, text)),
    broken.map(lambda text: ({"type": "text", "text": text}, text)),
    broken.map(lambda text: ({"type": "text", "text": text, "id": "1", "annotations": [], "index": 0}, text)),
    broken.map(lambda text: ({"type": "text-plain", "text": text, "mime_type": "text/plain"}, text)),
)
"""(block, what it says)."""
silent = st.one_of(
    broken.map(lambda text: {"type": "reasoning", "reasoning": text, "id": "r"}),
    broken.map(lambda text: {"type": "thinking", "thinking": text, "signature": "s"}),
    st.just({"type": "redacted_thinking", "data": "AAAA"}),
    st.just({"type": "input_json_delta", "partial_json": '{"a'}),
    st.just({"type": "tool_call_chunk", "name": "add", "args": "{", "id": "1", "index": 0}),
    st.just({"type": "invalid_tool_call", "name": "add", "args": "{", "id": "1", "error": "no"}),
)
"""What an AI message may hold beside its text."""
unread = st.sampled_from(
    [
        {"type": "image", "url": "https://example.com/cat.png"},
        {"type": "image", "base64": "AAAA", "mime_type": "image/png"},
        {"type": "image_url", "image_url": {"url": "https://example.com/cat.png"}},
        {"type": "audio", "base64": "AAAA", "mime_type": "audio/wav"},
        {"type": "file", "file_id": "f"},
        {"type": "non_standard", "value": {"a": 1}},
        {"type": "text"},
        {"type": "text", "text": None},
        {"type": "text", "text": ["a"]},
        {"type": ["text"], "text": "a"},
        {"type": {}},
        {"type": "\ud800"},
        {"type": "x" * 5000},
    ]
)


@st.composite
def contents(draw: Any, *, quiet: bool = False) -> tuple[Any, str | None]:
    """(content, what it says): a text, or a list of blocks, seldom with one that nobody can read."""
    if draw(st.booleans()):
        text = draw(broken)
        return text, text
    told = draw(st.lists(said, max_size=4))
    told += [(block, "") for block in (draw(st.lists(silent, max_size=2)) if quiet else ())]
    told += [(block, None) for block in (draw(st.lists(unread, max_size=1)) if draw(st.integers(0, 5)) == 5 else ())]
    told = draw(st.permutations(told))
    spoken = [text for _, text in told]
    return [block for block, _ in told], None if None in spoken else "".join(map(str, spoken))


# --- messages ---------------------------------------------------------------------------------------------------

names = st.none() | st.just("ann") | texts
ids = st.sampled_from(["1", "2", "call_3", "", "\u202e"])
calls = st.lists(st.tuples(broken, objects, ids | st.none()), max_size=3)


@st.composite
def humans(draw: Any) -> Told:
    (content, text), name = draw(contents()), draw(names)
    heard = f"{name}: {text}" if name and text is not None else text
    return Told(HumanMessage(content, name=name), "user", heard)


@st.composite
def answers(draw: Any) -> Told:
    content, text = draw(contents(quiet=True))
    made = draw(calls)
    known = [{"name": name, "args": arguments, "id": one} for name, arguments, one in made]
    if made and isinstance(content, list) and draw(st.integers(0, 3)):  # said in its blocks as well, as providers do
        content = [*content, *({"type": "tool_call", **call} for call in known)]
    message = AIMessage(content, name=draw(names), tool_calls=known)
    return Told(message, "assistant", text, tuple((name, arguments) for name, arguments, _ in made))


@st.composite
def results(draw: Any) -> Told:
    (content, text), status = draw(contents()), draw(st.sampled_from(["success", "error"]))
    if status == "error" and text is not None and not text.lower().startswith("error"):
        text = f"Error: {text}"
    message = ToolMessage(content, tool_call_id=draw(ids), status=status, name=draw(names), artifact={"a": 1})
    return Told(message, "tool", text, call_id=message.tool_call_id)


@st.composite
def others(draw: Any) -> Told:
    (content, text), role = draw(contents()), draw(st.sampled_from([*ROLES, "critic", "", "\ud800", "x" * 5000]))
    return Told(ChatMessage(content, role=role), ROLES.get(role, ""), text)


@st.composite
def systems(draw: Any) -> Told:
    content, text = draw(contents())
    return Told(SystemMessage(content), "system", text)


@st.composite
def functions(draw: Any) -> Told:
    text = draw(broken)
    return Told(FunctionMessage(text, name="f"), "tool", text)


kinds = [systems(), humans(), answers(), answers(), answers(), results(), others(), functions()]


@st.composite
def conversations(draw: Any) -> list[Told]:
    return draw(st.lists(st.one_of(kinds), max_size=6))


@st.composite
def heard_ones(draw: Any) -> list[Told]:
    """One that nobody refuses to hear."""
    told = [one for one in draw(conversations()) if not one.refused]
    return told or [Told(HumanMessage("Why?"), "user", "Why?")]


def read(messages: list[BaseMessage]) -> tuple[Turn, ...] | str:
    """The turns, or why there are none."""
    try:
        return turns_of(messages)
    except UsageError as raised:
        error = raised
    assert error.__notes__[0].startswith("-> ") and len(str(error)) < 1000  # 80 characters, escaped
    str(error).encode()
    return str(error)


# --- properties -------------------------------------------------------------------------------------------------


@example([Told(AIMessage([{"type": ["text"], "text": "a"}]), "assistant", None)])
@given(conversations())
def test_a_conversation_is_read_unless_somebody_says_what_is_no_text(told: list[Told]) -> None:
    turns = read([one.message for one in told])
    assert isinstance(turns, str) == (not told or any(one.refused for one in told))


@given(heard_ones())
def test_every_character_is_heard_in_its_order(told: list[Told]) -> None:
    turns = turns_of([one.message for one in told])
    for role in ("system", "user", "assistant", "tool"):
        left = [turn.text for turn in turns if turn.role == role]
        for one in told:
            if one.role != role or not one.text:
                continue
            while not left[0]:
                left.pop(0)
            assert left[0].startswith(one.text)
            left[0] = left[0][len(one.text) :]
            if left[0]:
                assert left[0].startswith("\n\n")
                left[0] = left[0][2:]
        assert not any(left)


@given(heard_ones())
def test_calls_and_results_stay_what_they_are_and_where_they_were(told: list[Told]) -> None:
    turns = turns_of([one.message for one in told])
    made = [call for one in told for call in one.calls]
    heard = [call for turn in turns for call in turn.calls]
    assert [(call.name, call.arguments) for call in heard] == [
        (name, json.dumps(arguments, ensure_ascii=False)) for name, arguments in made
    ]
    order = [turn.calls or turn.call_id for turn in turns if turn.calls or turn.role == "tool"]
    told_order = [one for one in told if one.calls or one.role == "tool"]
    assert [isinstance(one, str) for one in order] == [one.role == "tool" for one in told_order]
    assert [one for one in order if isinstance(one, str)] == [one.call_id for one in told_order if one.role == "tool"]
    assert all(turn.role == "assistant" for turn in turns if turn.calls)
    place = [turn.role for turn in turns].count("system")
    assert place <= 1 and all(turn.role != "system" for turn in turns[place:])


@given(conversations())
def test_nothing_of_the_callers_is_changed_and_equal_messages_are_heard_alike(told: list[Told]) -> None:
    messages = [one.message for one in told]
    before = copy.deepcopy(messages)
    first = read(messages)
    assert repr(messages) == repr(before)
    assert read(before) == first == read(messages)


@given(conversations())
def test_what_was_saved_and_loaded_is_heard_alike(told: list[Told]) -> None:
    messages = [one.message for one in told]
    first = read(messages)
    assert read(messages_from_dict(messages_to_dict(messages))) == first
    assert read(messages_from_dict(json.loads(json.dumps(messages_to_dict(messages))))) == first
    if not any(isinstance(message, ChatMessage | FunctionMessage) for message in messages):  # it loads none of these
        assert read(loads(dumps(messages), allowed_objects="messages")) == first


class Odd:
    """What no JSON has."""

    def __str__(self) -> str:
        return "\ud800"


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"a": value}
    return value


ROUND: dict[str, Any] = {}
ROUND["a"] = [ROUND]
leaves = st.none() | broken | st.binary(max_size=3) | st.builds(Odd) | st.builds(object) | st.dates()
odd_values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.integers() | texts | st.tuples(texts) | st.floats() | st.none(), inner, max_size=2)
    ),
    max_leaves=4,
)
odd_arguments = st.dictionaries(texts, odd_values, max_size=2)


@example({"a": {("b",): 1}})
@given(odd_arguments)
def test_arguments_and_results_that_no_json_holds_are_told_or_refused_in_words(arguments: dict[str, Any]) -> None:
    tell(arguments)


@pytest.mark.parametrize("arguments", [nested(2000), ROUND, {"a": 10**5000}], ids=["deep", "a circle", "a long number"])
def test_arguments_that_have_no_end_are_refused_in_words(arguments: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="cannot be written as JSON"):
        turns_of([AIMessage("", tool_calls=[{"name": "add", "args": arguments, "id": "1"}])])
    tell(arguments)


def tell(arguments: dict[str, Any]) -> None:
    """In every place where arguments and data may stand."""
    call = {"type": "tool_call", "name": "add", "args": arguments, "id": "1"}
    for message in (
        AIMessage("", tool_calls=[call]),
        AIMessage([call]),
        AIMessage([{"type": "tool_use", "name": "add", "input": arguments, "id": "1"}]),
        ToolMessage([{"type": "json", "json": arguments}], tool_call_id="1"),
    ):
        turns = read([HumanMessage("?"), message])
        if not isinstance(turns, str):
            (told,) = [turns[1].text] if turns[1].role == "tool" else [call.arguments for call in turns[1].calls]
            assert json.loads(told, parse_int=str).keys() == arguments.keys()


@cache
def templates() -> list[Any]:
    from langchain_specfuse.members._template import Template
    from tests.members import tiny

    kinds = [("bytes", tiny.CHATML), ("pieces", tiny.INST), ("unigram", "plain")]
    return [Template(tiny.tokenizer_of(kind, template), kind, template, None) for kind, template in kinds]


@given(heard_ones())
def test_every_template_says_all_of_it_in_its_order_or_refuses(told: list[Told]) -> None:
    pytest.importorskip("torch")
    turns = turns_of([one.message for one in told])
    for template in templates():
        try:
            prompt = template.prompt(turns)
        except UsageError:
            continue
        at = 0
        for turn in turns:  # a template without a system role has its text in a human's turn
            found = prompt.find(turn.text.strip(), 0 if turn.role == "system" else at)
            assert found >= 0, (turn, prompt[at:])
            at = at if turn.role == "system" else found + len(turn.text.strip())


@given(conversations())
def test_a_chat_model_answers_or_refuses_whatever_it_is_asked(told: list[Told]) -> None:
    messages, heard = [one.message for one in told], []

    def answer(query: Any) -> str:
        heard.append(query.turns)
        return "Yes."

    blocks = [block for message in messages for block in message.content if isinstance(block, dict)]
    assume(all(isinstance(block["type"], str) for block in blocks))  # LangChain itself fails on others
    turns = read(messages)
    llm = SpecFuseChatModel(members=[ScriptedMember(answer, name="a")])
    if isinstance(turns, str):
        with pytest.raises(UsageError) as raised:
            llm.invoke(messages)
        assert str(raised.value) == turns
    else:
        assert llm.invoke(messages).text == "Yes." and set(heard) == {turns}
        assert llm.get_num_tokens_from_messages(messages) >= 0
