"""Tools whose schemas exceed grammars: valid calls are run, invalid calls are reported."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.exceptions import OutputParserException
from langchain_core.messages import HumanMessage
from langchain_core.tools import StructuredTool, tool

from langchain_specfuse import ScriptedMember, SpecFuseChatModel, UsageError


def object_of(required: list[str], /, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required}


STRINGS = {"type": "array", "items": {"type": "string"}}
SCHEMAS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "labels of an issue": (
        object_of(["title"], title={"type": "string"}, labels={**STRINGS, "uniqueItems": True}),
        {"title": "Crash", "labels": ["bug", "ui"]},
        {"title": "Crash", "labels": ["bug", "bug"]},
    ),
    "a name that is not reserved": (
        object_of(["name"], name={"type": "string", "pattern": "^(?!con$|nul$)[a-z0-9-]+$"}),
        {"name": "notes"},
        {"name": "con"},
    ),
    "a reason for one kind": (
        {
            **object_of(["kind"], kind={"enum": ["refund", "order"]}),
            "if": {"properties": {"kind": {"const": "refund"}}},
            "then": {"required": ["reason"], "properties": {"reason": {"type": "string"}}},
        },
        {"kind": "refund", "reason": "it is broken"},
        {"kind": "refund"},
    ),
    "a short code or a word, not both": (
        object_of(["id"], id={"oneOf": [{"type": "string", "maxLength": 4}, {"type": "string", "pattern": "^[a-z]+$"}]}),
        {"id": "B-12"},
        {"id": "abc"},
    ),
    "a list that contains the owner": (
        object_of(["users"], users={**STRINGS, "contains": {"const": "owner"}}),
        {"users": ["owner", "guest"]},
        {"users": ["guest"]},
    ),
    "anything but the root": (
        object_of(["path"], path={"type": "string", "not": {"const": "/"}}),
        {"path": "/tmp"},
        {"path": "/"},
    ),
    "an option that needs another": (
        {**object_of([], user={"type": "string"}, password={"type": "string"}),
         "dependentRequired": {"user": ["password"]}},
        {"user": "ann", "password": "secret"},
        {"user": "ann"},
    ),
}  # fmt: skip
cases = pytest.mark.parametrize("case", SCHEMAS)


def bound(case: str, arguments: dict[str, Any], **options: Any) -> Any:
    """Return a chat model that calls this tool with these arguments."""
    names = ("output_version",)
    fields = {name: options.pop(name) for name in names if name in options}
    script = ScriptedMember.call("act", **arguments)
    llm = SpecFuseChatModel(members=[ScriptedMember(script)], segment_tokens=3, **fields)
    function = {"name": "act", "description": "Act.", "parameters": SCHEMAS[case][0]}
    return llm.bind_tools([{"type": "function", "function": function}], **options)


@cases
async def test_a_valid_call_is_made_and_an_invalid_one_is_reported(case: str) -> None:
    _, right, wrong = SCHEMAS[case]
    assert [call["args"] for call in bound(case, right).invoke("?").tool_calls] == [right]
    llm = bound(case, wrong)
    for message in (llm.invoke("?"), await llm.ainvoke("?")):
        (broken,) = message.invalid_tool_calls
        assert message.tool_calls == [] and broken["name"] == "act" and broken["error"]
        assert broken["args"] == json.dumps(wrong)


@pytest.mark.parametrize("version", ["v0", "v1"])
def test_a_complete_message_contains_an_invalid_call_as_written(version: str) -> None:
    wrong = SCHEMAS["labels of an issue"][2]
    llm = bound("labels of an issue", wrong, output_version=version)
    for message in (llm.invoke("?"), *llm.batch(["?", "?"])):
        blocks = message.content if version == "v1" else message.invalid_tool_calls
        for block in (*blocks, *message.invalid_tool_calls):
            assert block["type"] == "invalid_tool_call" and block["args"] == json.dumps(wrong)
            assert "non-unique" in block["error"]


def test_the_log_names_the_tool_and_the_reason_of_an_invalid_call(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "langchain_specfuse"):
        bound("labels of an issue", SCHEMAS["labels of an issue"][1]).invoke("?")
        assert not any("non-unique" in record.getMessage() for record in caplog.records)
        bound("labels of an issue", SCHEMAS["labels of an issue"][2]).invoke("?")
    (message,) = [text for text in caplog.messages if "non-unique" in text]
    assert "'act'" in message and "labels" in message


@cases
@pytest.mark.parametrize("version", ["v0", "v1"])
async def test_an_invalid_call_is_invalid_in_a_stream_too(case: str, version: str) -> None:
    chat = bound(case, SCHEMAS[case][2], output_version=version)
    for chunks in (list(chat.stream("?")), [chunk async for chunk in chat.astream("?")]):
        message = sum(chunks[1:], chunks[0])
        assert message.tool_calls == []
        assert [call["name"] for call in message.invalid_tool_calls] == ["act"]


@cases
def test_strict_refuses_what_the_grammar_would_leave_out(case: str) -> None:
    with pytest.raises(UsageError, match=r"act\.parameters") as error:
        bound(case, {}, strict=True)
    assert any("strict=True" in note for note in error.value.__notes__)
    llm = SpecFuseChatModel(members=[ScriptedMember("x")])
    function = {"name": "act", "parameters": SCHEMAS[case][0], "strict": True}
    with pytest.raises(UsageError, match=r"act\.parameters"):
        llm.bind_tools([{"type": "function", "function": function}])


@cases
def test_an_agent_makes_the_valid_call_and_not_the_invalid_one(case: str) -> None:
    schema, right, wrong = SCHEMAS[case]
    executed: list[dict[str, Any]] = []

    def act(**arguments: Any) -> str:
        executed.append(arguments)
        return "done"

    act_tool = StructuredTool.from_function(
        act, name="act", description="Act.", args_schema=schema, infer_schema=False
    )
    for arguments, expected in ((right, [right]), (wrong, [])):
        executed.clear()
        script = [ScriptedMember.call("act", **arguments), "It is done."]
        members = [ScriptedMember(script), ScriptedMember(script)]
        agent = create_agent(SpecFuseChatModel(members=members), [act_tool])
        state = agent.invoke({"messages": [HumanMessage("Act!")]})
        assert executed == expected
        assert (state["messages"][-1].text == "It is done.") is bool(expected)


def test_the_log_names_what_is_left_out_once(caplog: pytest.LogCaptureFixture) -> None:
    parameters = object_of([], once={**STRINGS, "uniqueItems": True}, other=STRINGS)
    llm = SpecFuseChatModel(members=[ScriptedMember("Well.")])
    with caplog.at_level(logging.WARNING, "langchain_specfuse"):
        for _ in range(3):
            llm.bind_tools([{"name": "log_once", "parameters": parameters}]).invoke("?")
    (record,) = caplog.records
    assert "once.uniqueItems" in record.getMessage() and "other" not in record.getMessage()


# --- objects --------------------------------------------------------------------------------------


def answers(text: dict[str, Any], method: str) -> Any:
    script: Any = text if method == "json_schema" else ScriptedMember.call("act", **text)
    return SpecFuseChatModel(members=[ScriptedMember(script)], segment_tokens=3)


@cases
@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_an_object_is_checked_against_the_whole_schema(case: str, method: str) -> None:
    schema, right, wrong = SCHEMAS[case]
    schema = {"title": "act", "description": "Act.", **schema}

    def asked(arguments: dict[str, Any], **options: Any) -> Any:
        return answers(arguments, method).with_structured_output(schema, method=method, **options)

    assert asked(right).invoke("?") == right
    assert list(asked(right).stream("?"))[-1] == right
    with pytest.raises(OutputParserException) as error:
        asked(wrong).invoke("?")
    result = asked(wrong, include_raw=True).invoke("?")
    assert result["parsed"] is None and str(result["parsing_error"]) == str(error.value)
    with pytest.raises(OutputParserException):
        list(asked(wrong).stream("?"))
    with pytest.raises(UsageError):
        asked(right, strict=True)


def test_a_tool_that_takes_a_set_removes_duplicates_itself() -> None:
    @tool
    def count(words: set[str]) -> int:
        """Count words."""
        return len(words)

    call = ScriptedMember.call("count", words=["a", "a", "b"])
    message = SpecFuseChatModel(members=[ScriptedMember(call)]).bind_tools([count]).invoke("?")
    assert count.invoke(message.tool_calls[0]["args"]) == 2


@pytest.mark.parametrize("schema", [{"type": "objekt"}, {"minLength": "3"}, {"pattern": "(a"}])
def test_an_invalid_schema_is_refused_without_strict_too(schema: Any) -> None:
    llm = SpecFuseChatModel(members=[ScriptedMember("x")])
    with pytest.raises(UsageError):
        llm.bind_tools([{"name": "act", "parameters": object_of([], a=schema)}])
