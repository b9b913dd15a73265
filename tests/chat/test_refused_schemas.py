"""Schemas that no grammar expresses are refused. Finished calls and objects are checked against their
schema: valid calls are run, invalid ones are reported."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.exceptions import OutputParserException
from langchain_core.messages import HumanMessage
from langchain_core.tools import StructuredTool, tool

from langchain_specfuse import Method, ScriptedMember, SpecFuseChatModel, UsageError
from tests.methods import in_method


def object_of(required: list[str], /, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required}


STRINGS = {"type": "array", "items": {"type": "string"}}
UNSUPPORTED: dict[str, dict[str, Any]] = {
    "uniqueItems": object_of(["labels"], labels={**STRINGS, "uniqueItems": True}),
    "look-around": object_of(["name"], name={"type": "string", "pattern": "^(?!con$|nul$)[a-z0-9-]+$"}),
    "if": {**object_of(["kind"], kind={"enum": ["refund", "order"]}), "if": {}, "then": {}},
    "oneOf": object_of(["id"], id={"oneOf": [{"type": "string", "maxLength": 4}, {"type": "string"}]}),
    "contains": object_of(["users"], users={**STRINGS, "contains": {"const": "owner"}}),
    "not": object_of(["path"], path={"type": "string", "not": {"const": "/"}}),
    "dependentRequired": {**object_of([], user=STRINGS), "dependentRequired": {"user": ["password"]}},
}  # fmt: skip
OVERLAPPING = object_of(
    ["to"],
    to={
        "oneOf": [object_of(["id"], id={"type": "integer"}), object_of([], name={"type": "string"})]
    },
)
"""The grammar closes both alternatives, so that they exclude each other. As the schema is written,
an object with an id is valid under both, so it is valid under neither."""
RIGHT, WRONG = {"to": {"name": "ann"}}, {"to": {"id": 7}}


@pytest.mark.parametrize("strict", [None, True])
@pytest.mark.parametrize("keyword", UNSUPPORTED)
def test_a_schema_that_no_grammar_expresses_is_refused_at_once(
    keyword: str, strict: bool | None
) -> None:
    llm = SpecFuseChatModel(members=[ScriptedMember("x")])
    schema = {"title": "act", "description": "Act.", **UNSUPPORTED[keyword]}
    with pytest.raises(UsageError, match=rf"(?s)act\.parameters.*{keyword}") as error:
        llm.bind_tools([schema], strict=strict)
    advice = "simpler schema" if keyword == "look-around" else f"schema without {keyword},"
    assert advice in error.value.notes[0]
    with pytest.raises(UsageError, match=rf"(?s)schema.*{keyword}"):
        llm.with_structured_output(schema, strict=strict)


def bound(arguments: dict[str, Any], **fields: Any) -> Any:
    """Return a chat model that calls this tool with these arguments."""
    script = ScriptedMember.call("act", **arguments)
    llm = SpecFuseChatModel(
        **in_method(members=[ScriptedMember(script)], segment_tokens=3, **fields)
    )
    function = {"name": "act", "description": "Act.", "parameters": OVERLAPPING}
    return llm.bind_tools([{"type": "function", "function": function}])


async def test_a_valid_call_is_made_and_an_invalid_one_is_reported() -> None:
    assert [call["args"] for call in bound(RIGHT).invoke("?").tool_calls] == [RIGHT]
    llm = bound(WRONG)
    for message in (llm.invoke("?"), await llm.ainvoke("?")):
        (broken,) = message.invalid_tool_calls
        assert message.tool_calls == [] and broken["name"] == "act" and broken["error"]
        assert broken["args"] == json.dumps(WRONG)


@pytest.mark.parametrize("version", ["v0", "v1"])
def test_a_complete_message_contains_an_invalid_call_as_written(version: str) -> None:
    llm = bound(WRONG, output_version=version)
    for message in (llm.invoke("?"), *llm.batch(["?", "?"])):
        blocks = message.content if version == "v1" else message.invalid_tool_calls
        for block in (*blocks, *message.invalid_tool_calls):
            assert block["type"] == "invalid_tool_call" and block["args"] == json.dumps(WRONG)
            assert "is valid under each of" in block["error"]


def test_the_log_names_the_tool_and_the_reason_of_an_invalid_call(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "langchain_specfuse"):
        bound(RIGHT).invoke("?")
        assert caplog.messages == []
        bound(WRONG).invoke("?")
    (message,) = caplog.messages
    assert "'act'" in message and "to: {'id': 7} is valid under each of" in message


@pytest.mark.parametrize("version", ["v0", "v1"])
async def test_an_invalid_call_is_invalid_in_a_stream_too(version: str) -> None:
    chat = bound(WRONG, output_version=version)
    for chunks in (list(chat.stream("?")), [chunk async for chunk in chat.astream("?")]):
        message = sum(chunks[1:], chunks[0])
        assert message.tool_calls == []
        assert [call["name"] for call in message.invalid_tool_calls] == ["act"]


def test_an_agent_makes_the_valid_call_and_not_the_invalid_one() -> None:
    executed: list[dict[str, Any]] = []

    def act(**arguments: Any) -> str:
        executed.append(arguments)
        return "done"

    act_tool = StructuredTool.from_function(
        act, name="act", description="Act.", args_schema=OVERLAPPING, infer_schema=False
    )
    for arguments, expected in ((RIGHT, [RIGHT]), (WRONG, [])):
        executed.clear()
        script = [ScriptedMember.call("act", **arguments), "It is done."]
        members = [ScriptedMember(script), ScriptedMember(script)]
        agent = create_agent(SpecFuseChatModel(members=members), [act_tool])
        state = agent.invoke({"messages": [HumanMessage("Act!")]})
        assert executed == expected
        assert (state["messages"][-1].text == "It is done.") is bool(expected)


# --- objects --------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_an_object_is_checked_against_the_whole_schema(method: str) -> None:
    schema = {"title": "act", "description": "Act.", **OVERLAPPING}

    def asked(arguments: dict[str, Any], **options: Any) -> Any:
        script: Any = arguments
        if method == "function_calling":
            script = ScriptedMember.call("act", **arguments)
        llm = SpecFuseChatModel(members=[ScriptedMember(script)], method=Method(segment_tokens=3))
        return llm.with_structured_output(schema, method=method, **options)

    assert asked(RIGHT).invoke("?") == RIGHT
    assert list(asked(RIGHT).stream("?"))[-1] == RIGHT
    with pytest.raises(OutputParserException) as error:
        asked(WRONG).invoke("?")
    result = asked(WRONG, include_raw=True).invoke("?")
    assert result["parsed"] is None and str(result["parsing_error"]) == str(error.value)
    with pytest.raises(OutputParserException):
        list(asked(WRONG).stream("?"))


def test_a_tool_that_takes_a_set_removes_duplicates_itself() -> None:
    @tool
    def count(words: set[str]) -> int:
        """Count words."""
        return len(words)

    call = ScriptedMember.call("count", words=["a", "a", "b"])
    message = SpecFuseChatModel(members=[ScriptedMember(call)]).bind_tools([count]).invoke("?")
    assert count.invoke(message.tool_calls[0]["args"]) == 2


@pytest.mark.parametrize("schema", [{"type": "objekt"}, {"minLength": "3"}, {"pattern": "(a"}])
def test_an_invalid_schema_is_refused(schema: Any) -> None:
    llm = SpecFuseChatModel(members=[ScriptedMember("x")])
    with pytest.raises(UsageError):
        llm.bind_tools([{"name": "act", "parameters": object_of([], a=schema)}])
