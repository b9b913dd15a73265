"""Tools in every form that LangChain accepts, with every tool choice; invalid ones are refused
early."""

from __future__ import annotations

import json
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langchain_core.runnables import ConfigurableField, RunnableLambda
from langchain_core.tools import tool

from langchain_specfuse import ScriptedMember, SpecFuseChatModel, UsageError

from .test_structured import DATA, DataJoke, DictJoke, Joke, OldJoke, Tree


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
def now() -> str:
    """Tell the time."""
    return "noon"


def tell(setup: str, punchline: str) -> str:
    """Tell a joke.

    Args:
        setup: The question.
        punchline: The answer.
    """
    return setup + punchline


STRINGS = {
    "type": "object",
    "properties": {key: {"type": "string"} for key in DATA},
    "required": list(DATA),
}
FUNCTION = {"name": "joke", "description": "A joke.", "parameters": STRINGS}
RUNNABLE = RunnableLambda(lambda joke: joke["setup"])
FORMS: dict[str, Any] = {
    "runnable": (
        RUNNABLE.as_tool(name="joke", arg_types={"setup": str, "punchline": str}, description="."),
        "joke",
    ),
    "tool": (tool(tell), "tell"),
    "function": (tell, "tell"),
    "pydantic": (Joke, "Joke"),
    "pydantic v1": (OldJoke, "OldJoke"),
    "typed dict": (DictJoke, "DictJoke"),
    "dataclass": (DataJoke, "DataJoke"),
    "openai": ({"type": "function", "function": FUNCTION}, "joke"),
    "json schema": ({"title": "joke", "description": "A joke.", **STRINGS}, "joke"),
    "anthropic": ({"name": "joke", "description": "A joke.", "input_schema": STRINGS}, "joke"),
}


def caller(name: str, arguments: dict[str, Any], **options: Any) -> SpecFuseChatModel:
    """Return a chat model that calls this tool with these arguments."""
    return SpecFuseChatModel(
        members=[ScriptedMember(ScriptedMember.call(name, **arguments))], **options
    )


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_tool_is_bound_with_its_name_and_schema(form: str) -> None:
    tool, name = FORMS[form]
    bound: Any = caller(name, DATA).bind_tools([tool, tool], tool_choice="any")
    (function,) = (definition["function"] for definition in bound.kwargs["tools"])
    assert function["name"] == name
    assert set(function["parameters"]["properties"]) == set(DATA)
    (call,) = bound.invoke("A joke?").tool_calls
    assert (call["name"], call["args"], call["type"]) == (name, DATA, "tool_call")


def test_descriptions_reach_the_members_and_recursion_stays() -> None:
    seen: list[Any] = []
    llm = SpecFuseChatModel(members=[ScriptedMember(lambda query: seen.append(query) or "Well.")])
    llm.bind_tools([tell, Joke, Joke, Tree]).invoke("?")
    teller, _, tree = seen[0].tools
    assert teller.description.startswith("Tell a joke.")
    assert json.loads(teller.parameters)["properties"]["setup"]["description"] == "The question."
    children = json.loads(tree.parameters)["$defs"]["Tree"]["properties"]["children"]
    assert children["items"] == {"$ref": "#/$defs/Tree"}
    nodes = {"value": 1, "children": [{"value": 2, "children": []}]}
    assert caller("Tree", nodes).bind_tools([Tree]).invoke("?").tool_calls[0]["args"] == nodes


# --- tool choice ----------------------------------------------------------------------------------

FREE, FORCED = "Just words.", '<tool_call>\n{"name": "'
CHOICES: list[tuple[Any, str]] = [
    *((choice, FREE) for choice in (None, False, "auto", "none")),
    *((choice, FORCED) for choice in ("any", "required", True, {"type": "any"})),
    ("now", FORCED + "now"),
    ({"type": "function", "function": {"name": "now"}}, FORCED + "now"),
    ({"type": "tool", "name": "now"}, FORCED + "now"),
]


@pytest.mark.parametrize(("choice", "begins"), CHOICES, ids=lambda value: str(value)[:30])
def test_every_tool_choice_decides_whether_and_what_must_be_called(
    choice: Any, begins: str
) -> None:
    seen: list[Any] = []
    member = ScriptedMember(lambda query: seen.append(query) or FREE)
    llm = SpecFuseChatModel(members=[member], max_tokens=4).bind_tools(
        [add, now], tool_choice=choice
    )
    message = llm.invoke("?")
    assert (message.text == FREE) is (begins == FREE)
    assert [tool.name for tool in seen[0].tools] == (
        [] if choice == "none" else ["now"] if begins.endswith("now") else ["add", "now"]
    )
    if begins.endswith("now"):
        assert message.tool_calls[0]["name"] == "now"


# --- refusals -------------------------------------------------------------------------------------

DEEP: dict[str, Any] = {}
for _ in range(300):
    DEEP = {"type": "object", "properties": {"a": DEEP}}

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"tools": add}, "tools must be a list"),
    ({"tools": [7]}, "tool 0 cannot be called: 7"),
    ({"tools": [{"type": "web_search"}]}, "tool 0 is of type 'web_search', expected 'function'"),
    ({"tools": [{"name": "", "parameters": STRINGS}]}, "tool 0 has no name"),
    ({"tools": [{"name": "add"}]}, "tool 'add' has no schema for its arguments"),
    (
        {"tools": [{"name": "add", "parameters": {"type": "string"}}]},
        "is of type 'string', expected 'object'",
    ),
    ({"tools": [add, {"name": "add", "parameters": STRINGS}]}, "two tools are called 'add'"),
    (
        {"tools": [{"name": "add", "parameters": {"type": "object", "default": {1}}}]},
        "a schema is not JSON",
    ),
    ({"tools": [{"name": "add", "parameters": DEEP}]}, "add.parameters"),
    ({"tools": [{"name": "\ud800", "parameters": STRINGS}]}, "is not valid UTF-8"),
    (
        {"tools": [add], "tool_choice": "sub"},
        "tool_choice names 'sub', which is not a tool; the tools are 'add'",
    ),
    ({"tools": [add], "tool_choice": 7}, "tool_choice must be"),
    ({"tools": [add], "tool_choice": {"type": "function"}}, "tool_choice must be"),
    ({"tools": [], "tool_choice": "any"}, "tool_choice='any' without tools"),
    (
        {"tools": [add], "parallel_tool_calls": "yes"},
        "parallel_tool_calls must be a valid boolean, got 'yes'",
    ),
    (
        {"tools": [add], "tool_choice": "add", "parallel_tool_calls": True},
        "a named tool is called once",
    ),
    (
        {"tools": [add], "tool_choice": "any", "stop": ["x"]},
        "a stop string would cut the answer off",
    ),
    ({"tools": [add], "tool_choice": "any", "regex": "a+"}, "regex and tool_choice='any'"),
    (
        {"tools": [add], "response_format": Joke, "choice": ["a"]},
        "response_format and choice are both given",
    ),
]


@pytest.mark.parametrize(("options", "message"), WRONG, ids=lambda value: str(value)[:50])
def test_an_invalid_tool_or_choice_is_refused_when_bound_and_when_passed_to_a_call(
    options: dict[str, Any], message: str
) -> None:
    llm = SpecFuseChatModel(members=["nobody/has-this-model"])
    for attempt in (lambda: llm.bind_tools(**options), lambda: llm.invoke("Why?", **options)):
        with pytest.raises(UsageError) as error:
            attempt()
        assert message in str(error.value)
        assert error.value.notes[0].startswith("-> ")


def test_an_invalid_tool_is_refused_in_one_sentence() -> None:
    class Odd(dict[str, Any]):
        pass

    llm = SpecFuseChatModel(members=["example/a"])
    for wrong, reason in (
        ("get_weather", "'get_weather' is no function"),
        (Odd(a="b"), "cannot be called"),
    ):
        with pytest.raises(UsageError, match=reason) as error:
            llm.bind_tools([wrong])
        assert "\n" not in error.value.message
        assert error.value.notes[0].startswith("-> pass a function")


def test_a_tool_as_the_choice_is_refused_with_its_name() -> None:
    for choice, name in ((add, "add"), (Joke, "Joke"), (tell, "tell")):
        with pytest.raises(UsageError, match="tool_choice must be") as error:
            SpecFuseChatModel(members=["example/a"]).bind_tools([choice], tool_choice=choice)
        assert f"tool_choice={name!r}" in error.value.notes[0]


# --- tools with other options ---------------------------------------------------------------------


def test_tools_may_come_with_the_call_or_with_bind_and_beside_other_options() -> None:
    # The model's stop strings apply to prose only.
    llm = caller("add", {"a": 1, "b": 2}, stop=["{"])
    for bound, options in (
        (llm, {"tools": [add], "tool_choice": "add"}),
        (llm.bind(tools=[add]), {"tool_choice": "any"}),
        (llm.bind_tools([add]).bind(tool_choice="any"), {}),
        (llm.bind_tools([add], choice=["yes", "no"]), {}),
    ):
        assert bound.invoke("?", **options).tool_calls[0]["args"] == {"a": 1, "b": 2}  # type: ignore[attr-defined]
    raw = llm.with_structured_output(
        {"title": "Joke", **STRINGS}, tools=[add], include_raw=True
    ).invoke("?")["raw"]
    assert raw.tool_calls[0]["args"] == {"a": 1, "b": 2}
    answer = (
        SpecFuseChatModel(members=[ScriptedMember("yes")])
        .bind_tools([add], regex="yes|no")
        .invoke("?")
    )
    assert (answer.text, answer.tool_calls) == ("yes", [])
    choosable = llm.configurable_fields(max_tokens=ConfigurableField(id="budget")).bind(
        tools=[add], tool_choice="add"
    )
    for budget, finish in ((2, "length"), (50, "tool_calls")):
        message = choosable.with_config(configurable={"budget": budget}).invoke("?")
        assert message.response_metadata["finish_reason"] == finish
    assert llm.bind_tools([]).invoke("?").text == llm.invoke("?").text


def test_tools_are_counted_with_the_prompt() -> None:
    llm = SpecFuseChatModel(members=[ScriptedMember("x", name="a")])
    alone = llm.get_num_tokens_from_messages([HumanMessage("one two")])
    assert alone == 2
    assert llm.get_num_tokens_from_messages([HumanMessage("one two")], tools=[add]) > alone
