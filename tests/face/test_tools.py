"""Tools in every form that LangChain knows, every choice among them, and what is refused before anything loads."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage
from langchain_core.runnables import ConfigurableField, RunnableBinding, RunnableLambda
from langchain_core.tools import StructuredTool, tool
from pydantic import BaseModel, Field
from pydantic.v1 import BaseModel as OldModel

from langchain_specfuse import ScriptedMember, SpecFuseChatModel, UsageError
from langchain_specfuse._shapes import shape_of
from langchain_specfuse._tools import openai_tools, told_tools


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
def now() -> str:
    """Tell the time."""
    return "noon"


def plain_add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return a + b


class Add(BaseModel):
    """Add two numbers."""

    a: int
    b: int


class OldAdd(OldModel):
    """Add two numbers."""

    a: int
    b: int


class DictAdd(TypedDict):
    """Add two numbers."""

    a: Annotated[int, ..., "The first."]
    b: int


@dataclass
class DataAdd:
    """Add two numbers."""

    a: int
    b: int


class Tree(BaseModel):
    """A tree."""

    value: int
    children: list[Tree] = Field(default_factory=list)


NUMBERS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}
FUNCTION = {"name": "add", "description": "Add two numbers.", "parameters": NUMBERS}
RUNNABLE = RunnableLambda(lambda numbers: numbers["a"] + numbers["b"])
FORMS: dict[str, Any] = {
    "runnable": (RUNNABLE.as_tool(name="add", description="Add.", arg_types={"a": int, "b": int}), "add"),
    "tool": (add, "add"),
    "function": (plain_add, "plain_add"),
    "structured tool": (StructuredTool.from_function(plain_add, name="add"), "add"),
    "pydantic": (Add, "Add"),
    "pydantic v1": (OldAdd, "OldAdd"),
    "typed dict": (DictAdd, "DictAdd"),
    "dataclass": (DataAdd, "DataAdd"),
    "openai": ({"type": "function", "function": FUNCTION}, "add"),
    "openai function": (FUNCTION, "add"),
    "json schema": ({"title": "add", "description": "Add two numbers.", **NUMBERS}, "add"),
    "anthropic": ({"name": "add", "description": "Add two numbers.", "input_schema": NUMBERS}, "add"),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_tool_is_bound_with_its_name_and_schema(form: str, caller: Callable[..., Any]) -> None:
    given, name = FORMS[form]
    bound = caller(name, {"a": 1, "b": 2}).bind_tools([given], tool_choice="any")
    assert isinstance(bound, RunnableBinding)
    (function,) = (one["function"] for one in bound.kwargs["tools"])
    assert function["name"] == name
    assert set(function["parameters"]["properties"]) == {"a", "b"}
    message = bound.invoke("What is 1 + 2?")
    (call,) = message.tool_calls
    assert (call["name"], call["args"], call["type"]) == (name, {"a": 1, "b": 2}, "tool_call")


def test_descriptions_reach_the_members_and_recursion_stays() -> None:
    (told,) = told_tools(openai_tools([plain_add]))
    assert told.description.startswith("Add two numbers.")
    assert json.loads(told.parameters)["properties"]["a"]["description"] == "The first."
    (tree,) = told_tools(openai_tools([Tree]))
    parameters = json.loads(tree.parameters)
    assert "Tree" in parameters["$defs"]
    assert parameters["$defs"]["Tree"]["properties"]["children"]["items"] == {"$ref": "#/$defs/Tree"}


@pytest.fixture
def caller() -> Callable[..., SpecFuseChatModel]:
    """A chat model that calls this tool with these arguments."""

    def make(name: str, arguments: Any, **options: Any) -> SpecFuseChatModel:
        call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
        member = ScriptedMember(f"<tool_call>\n{call}\n</tool_call>", name="a")
        return SpecFuseChatModel(members=[member], **options)

    return make


# --- which of them ------------------------------------------------------------------------------------------------

CHOICES: list[tuple[Any, bool, bool, list[str]]] = [
    # choice, forced, parallel, tools that may be called
    (None, False, True, ["add", "now"]),
    (False, False, True, ["add", "now"]),
    ("auto", False, True, ["add", "now"]),
    ("any", True, False, ["add", "now"]),
    ("required", True, False, ["add", "now"]),
    (True, True, False, ["add", "now"]),
    ({"type": "any"}, True, False, ["add", "now"]),
    ("now", True, False, ["now"]),
    ({"type": "function", "function": {"name": "now"}}, True, False, ["now"]),
    ({"type": "function", "name": "now"}, True, False, ["now"]),
    ({"type": "tool", "name": "now"}, True, False, ["now"]),
]


@pytest.mark.parametrize(("choice", "forced", "parallel", "names"), CHOICES, ids=lambda value: str(value)[:30])
def test_every_choice_says_who_must_be_called(choice: Any, forced: bool, parallel: bool, names: list[str]) -> None:
    box = shape_of({"tools": [add, now], "tool_choice": choice}).toolbox
    assert box is not None
    assert (box.forced, box.parallel, [one.name for one in box.tools]) == (forced, parallel, names)


@pytest.mark.parametrize(
    ("choice", "parallel", "expected"), [("auto", False, False), ("auto", True, True), ("any", True, True)]
)
def test_parallel_calls_are_allowed_as_chosen(choice: str, parallel: bool, expected: bool) -> None:
    box = shape_of({"tools": [add], "tool_choice": choice, "parallel_tool_calls": parallel}).toolbox
    assert box and box.parallel is expected


def test_with_none_the_members_hear_of_no_tool() -> None:
    shape = shape_of({"tools": [add], "tool_choice": "none"})
    assert (shape.tools, shape.constraint()) == ((), None)


def test_tools_and_a_format_at_once_are_a_call_or_an_object() -> None:
    constraint = shape_of({"tools": [add], "response_format": Add}).constraint()
    assert constraint and constraint.kind == "any_of"
    assert [kind for kind, _ in json.loads(constraint.body)] == ["calls", "json_schema"]
    forced = shape_of({"tools": [add], "response_format": Add, "tool_choice": "any"}).constraint()
    assert forced and forced.kind == "calls"


# --- what is refused ----------------------------------------------------------------------------------------------

DEEP: dict[str, Any] = {}
for _ in range(300):
    DEEP = {"type": "object", "properties": {"a": DEEP}}

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"tools": add}, "tools must be a list"),
    ({"tools": "add"}, "tools must be a list"),
    ({"tools": [7]}, "tool 0 is none that can be called: 7"),
    ({"tools": [add, {"type": "object", "properties": {}}]}, "tool 1 is none that can be called"),
    ({"tools": [{"type": "web_search"}]}, "tool 0 is of type 'web_search', wanted 'function'"),
    ({"tools": [{"type": "function"}]}, "tool 0 is of type 'function'"),
    ({"tools": [{"name": "", "parameters": NUMBERS}]}, "tool 0 has no name"),
    ({"tools": [{"name": "add"}]}, "tool 'add' has no schema of its arguments"),
    ({"tools": [{"name": "add", "parameters": {"type": "string"}}]}, "is of type 'string', wanted 'object'"),
    ({"tools": [add, {**FUNCTION, "parameters": {"type": "object", "properties": {}}}]}, "two tools are called 'add'"),
    ({"tools": [{"name": "add", "parameters": {"type": "object", "default": {1}}}]}, "of tool 'add' is no JSON"),
    ({"tools": [{"name": "add", "parameters": DEEP}]}, "of tool 'add' is no JSON"),
    ({"tools": [{"name": "add", "description": "\ud800", "parameters": NUMBERS}]}, "is not valid UTF-8"),
    ({"tools": [{"name": "\ud800", "parameters": NUMBERS}]}, "is not valid UTF-8"),
    ({"tools": [add], "tool_choice": "sub"}, "tool_choice names 'sub', which is no tool; there are 'add'"),
    ({"tools": [add], "tool_choice": {"type": "tool", "name": "sub"}}, "tool_choice names 'sub'"),
    ({"tools": [add], "tool_choice": 7}, "tool_choice must be"),
    ({"tools": [add], "tool_choice": {"type": "function"}}, "tool_choice must be"),
    ({"tools": [], "tool_choice": "any"}, "tool_choice='any' without tools"),
    ({"tools": [add], "parallel_tool_calls": "yes"}, "parallel_tool_calls must be True or False"),
    ({"tools": [add], "tool_choice": "add", "parallel_tool_calls": True}, "a tool named is called once"),
    ({"tools": [add], "strict": "yes"}, "strict must be True or False"),
    ({"tools": [add], "tool_choice": "any", "stop": ["x"]}, "a stop string would cut what must be whole"),
    ({"tools": [add], "tool_choice": "any", "regex": "a+"}, "regex and tool_choice='any'"),
    ({"tools": [add], "response_format": Add, "choice": ["a"]}, "response_format and choice are both given"),
    ({"tools": [add], "temperature": -1}, "temperature must be"),
    ({"tools": [add], "tool_chioce": "any"}, "there is no option 'tool_chioce'"),
]


@pytest.mark.parametrize(("options", "message"), WRONG, ids=lambda value: str(value)[:50])
def test_a_wrong_tool_or_choice_is_refused_where_it_is_bound_and_where_it_is_asked(
    options: dict[str, Any], message: str
) -> None:
    member = ScriptedMember("never asked", name="a", fails_in=1)
    llm = SpecFuseChatModel(members=[member])
    for attempt in (lambda: llm.bind_tools(**options), lambda: llm.invoke("Why?", **options)):
        with pytest.raises(UsageError) as error:
            attempt()
        assert message in str(error.value)
        assert error.value.__notes__[0].startswith("-> ")
    assert member.draft_calls == 0


@pytest.mark.parametrize(("choice", "name"), [(add, "add"), (Add, "Add"), (plain_add, "plain_add")])
def test_a_tool_as_the_choice_is_told_to_be_named(choice: Any, name: str) -> None:
    with pytest.raises(UsageError, match="tool_choice must be") as error:
        SpecFuseChatModel(members=["example/a"]).bind_tools([choice], tool_choice=choice)
    assert f"tool_choice={name!r}" in error.value.__notes__[0]


def test_nothing_is_loaded_for_a_wrong_tool() -> None:
    llm = SpecFuseChatModel(members=["nobody/has-this-model"])
    with pytest.raises(UsageError, match="no schema"):
        llm.invoke("Why?", tools=[{"name": "add"}])


def test_tools_are_not_chosen_when_the_chat_model_is_made() -> None:
    with pytest.raises(UsageError, match="tools is chosen for a call") as error:
        SpecFuseChatModel(members=["example/a"], tools=[add])
    assert "bind_tools" in error.value.__notes__[0]


def test_a_stop_string_of_the_model_is_for_prose(caller: Any) -> None:
    bound = caller("add", {"a": 1, "b": 2}, stop=["{"]).bind_tools([add], tool_choice="any")
    assert bound.invoke("?").tool_calls[0]["args"] == {"a": 1, "b": 2}


# --- where else tools come in -------------------------------------------------------------------------------------


def test_tools_may_come_with_the_call_or_with_bind(caller: Any) -> None:
    llm = caller("add", {"a": 1, "b": 2})
    for message in (
        llm.invoke("?", tools=[add], tool_choice="add"),
        llm.bind(tools=[add]).invoke("?", tool_choice="any"),
        llm.bind_tools([add]).bind(tool_choice="any").invoke("?"),
    ):
        assert isinstance(message, AIMessage) and message.tool_calls[0]["args"] == {"a": 1, "b": 2}


def test_options_given_in_one_go_all_hold(caller: Any) -> None:
    llm = caller("add", {"a": 1, "b": 2})
    shape = {"title": "Sum", **NUMBERS}
    raw = llm.with_structured_output(shape, tools=[add], include_raw=True).invoke("?")["raw"]
    assert raw.tool_calls[0]["args"] == {"a": 1, "b": 2}
    brief = llm.bind_tools([add], max_tokens=2, tool_choice="add")
    assert brief.invoke("?").response_metadata["finish_reason"] == "length"
    behind = llm.bind_tools([add], tool_choice="add").bind(max_tokens=2)
    assert behind.invoke("?").response_metadata["finish_reason"] == "length"
    choosable = llm.configurable_fields(max_tokens=ConfigurableField(id="budget")).bind(tools=[add], tool_choice="add")
    for budget, finish in ((2, "length"), (50, "tool_calls")):
        message = choosable.with_config(configurable={"budget": budget}).invoke("?")
        assert message.response_metadata["finish_reason"] == finish


@pytest.mark.parametrize("shape", [{"choice": ["yes", "no"]}, {"regex": "yes|no"}])
def test_beside_tools_a_shape_is_that_of_an_answer_that_is_no_call(caller: Any, shape: dict[str, Any]) -> None:
    called = caller("add", {"a": 1, "b": 2}).bind_tools([add], **shape).invoke("?")
    assert (called.text, called.tool_calls[0]["name"]) == ("", "add")
    said = SpecFuseChatModel(members=[ScriptedMember("yes")]).bind_tools([add], **shape).invoke("?")
    assert (said.text, said.tool_calls) == ("yes", [])


def test_no_tools_at_all_are_none(caller: Any) -> None:
    llm = caller("add", {})
    assert llm.bind_tools([]).invoke("?").text == llm.invoke("?").text


def test_the_profile_says_what_can_be_asked_for() -> None:
    profile = SpecFuseChatModel(members=["example/a"]).profile
    assert profile
    wanted = ("tool_calling", "tool_choice", "tool_call_streaming", "structured_output")
    assert all(profile[name] is True for name in wanted)  # type: ignore[literal-required]


def test_tools_are_counted_with_the_prompt() -> None:
    llm = SpecFuseChatModel(members=[ScriptedMember("x", name="a")])
    from langchain_core.messages import HumanMessage

    alone = llm.get_num_tokens_from_messages([HumanMessage("one two")])
    assert alone == 2
    assert llm.get_num_tokens_from_messages([HumanMessage("one two")], tools=[add]) > alone


@pytest.mark.usefixtures("no_cache")
def test_a_cached_answer_is_never_that_of_other_tools_or_another_choice() -> None:
    from langchain_core.caches import InMemoryCache
    from langchain_core.globals import set_llm_cache

    set_llm_cache(InMemoryCache())
    member = ScriptedMember('<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>', name="a")
    llm = SpecFuseChatModel(members=[member])

    def same_name(kind: type) -> type[BaseModel]:
        class Same(BaseModel):
            x: kind  # type: ignore[valid-type]

        return Same

    asked: list[dict[str, Any]] = [
        {},
        {"tools": [now]},
        {"tools": [now, add]},
        {"tools": [now], "tool_choice": "any"},
        {"tools": [now], "parallel_tool_calls": False},
        {"response_format": same_name(int)},
        {"response_format": same_name(bool)},
        {"response_format": {"type": "json_object"}},
        {"choice": ["a", "b"]},
        {"choice": ["b", "a"]},
        {"regex": "a+"},
    ]
    for number, options in enumerate(asked, 1):
        llm.invoke("?", **options)
        llm.invoke("?", **options)
        assert len(llm_cache()) == number, options


def llm_cache() -> dict[Any, Any]:
    from langchain_core.globals import get_llm_cache

    cache = get_llm_cache()
    assert cache is not None
    return cache._cache  # type: ignore[attr-defined,no-any-return]


def test_the_same_tool_in_two_forms_is_one() -> None:
    (only,) = openai_tools([Add, Add.model_json_schema(), Add])
    assert only["function"]["name"] == "Add"
