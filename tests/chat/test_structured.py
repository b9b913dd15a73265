"""Structured output with every kind of schema and every method; other constrained answers."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.exceptions import OutputParserException
from langchain_core.outputs import Generation
from langchain_core.utils.function_calling import convert_to_json_schema
from pydantic import BaseModel, Field
from pydantic.v1 import BaseModel as OldModel

from langchain_specfuse import ScriptedMember, SpecFuseChatModel, UsageError
from langchain_specfuse.chat.structured import StructuredReader
from tests.constraints.test_calls import VALUES
from tests.methods import in_method

DATA = {"setup": "Why did the cat sit on the mat?", "punchline": "Because it was there all along."}
TEXT = json.dumps(DATA)


class Joke(BaseModel):
    """A joke."""

    setup: str = Field(description="the question")
    punchline: str | None = None


class OldJoke(OldModel):
    setup: str
    punchline: str


@dataclasses.dataclass
class DataJoke:
    setup: str
    punchline: str


class DictJoke(TypedDict):
    """A joke."""

    setup: Annotated[str, ..., "the question"]
    punchline: Annotated[str, ..., "the answer"]


SCHEMA = Joke.model_json_schema()
FUNCTION = {
    "name": "Joke",
    "description": "A joke.",
    "parameters": {k: SCHEMA[k] for k in ("type", "properties")},
}
UNTITLED = {
    "type": "object",
    "properties": {key: {"type": "string"} for key in DATA},
    "required": list(DATA),
}
KINDS: dict[str, tuple[Any, Any, str]] = {
    "pydantic": (Joke, Joke(**DATA), "Joke"),
    "pydantic v1": (OldJoke, OldJoke(**DATA), "OldJoke"),
    "dataclass": (DataJoke, DataJoke(**DATA), "DataJoke"),
    "typed dict": (DictJoke, DATA, "DictJoke"),
    "json schema": (SCHEMA, DATA, "Joke"),
    "untitled": (UNTITLED, DATA, "answer"),
    "function": (FUNCTION, DATA, "Joke"),
    "openai's inner form": ({"name": "Joke", "schema": UNTITLED, "strict": True}, DATA, "Joke"),
}
METHODS = ["json_schema", "json_mode", "function_calling"]


@pytest.fixture
def joker() -> Callable[..., SpecFuseChatModel]:
    """Return a factory of chat models that write this text, or call this tool with it."""

    def make(
        method: str, name: str = "Joke", text: str = TEXT, **options: Any
    ) -> SpecFuseChatModel:
        call = f'<tool_call>\n{{"name": "{name}", "arguments": {text}}}\n</tool_call>'
        member = ScriptedMember(call if method == "function_calling" else text, name="a")
        return SpecFuseChatModel(**in_method(members=[member], segment_tokens=3, **options))

    return make


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("kind", "version"), list(zip(KINDS, itertools.cycle(["v0", "v1"]), strict=False))
)
async def test_every_kind_of_schema_works_with_every_method(
    joker: Any, kind: str, method: str, version: str
) -> None:
    schema, expected, name = KINDS[kind]
    llm = joker(method, name, output_version=version).with_structured_output(schema, method=method)
    assert llm.invoke("A joke?") == expected == await llm.ainvoke("A joke?")
    for grown in (list(llm.stream("A joke?")), [result async for result in llm.astream("A joke?")]):
        assert grown[-1] == expected
        assert {type(result) for result in grown} == {type(expected)}
        assert len(grown) > 3 or method == "function_calling" or not isinstance(expected, dict)
    traced = llm.first.kwargs["ls_structured_output_format"]
    assert traced["kwargs"] == {"method": method}
    assert kind in ("untitled", "openai's inner form") or (
        convert_to_json_schema(traced["schema"]) == convert_to_json_schema(schema)
    )


@pytest.mark.parametrize("method", METHODS)
def test_the_raw_answer_is_included_on_request(joker: Any, method: str) -> None:
    llm = joker(method).with_structured_output(Joke, method=method, include_raw=True, strict=True)
    streamed: dict[str, Any] = {}
    for part in llm.stream("A joke?"):
        streamed |= part
    for result in (llm.invoke("A joke?"), streamed):
        assert set(result) == {"raw", "parsed", "parsing_error"}
        assert (result["parsed"], result["parsing_error"]) == (Joke(**DATA), None)


class Cat(BaseModel):
    """A class with a rule beyond its schema: names must differ."""

    name: str
    other: str

    def model_post_init(self, context: Any) -> None:
        if self.name == self.other:
            raise ValueError("names must differ")


def test_an_object_that_its_class_rejects_raises_or_is_returned_as_an_error(joker: Any) -> None:
    llm = joker("json_schema", text='{"name": "Tom", "other": "Tom"}')
    with pytest.raises(OutputParserException, match="names must differ"):
        llm.with_structured_output(Cat).invoke("?")
    result = llm.with_structured_output(Cat, include_raw=True).invoke("?")
    assert result["parsed"] is None and result["raw"].text
    assert "names must differ" in str(result["parsing_error"])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("schema", "version"), [(Joke, "v0"), (SCHEMA, "v1")], ids=["class", "dict"]
)
async def test_an_answer_cut_by_the_budget_raises_an_error_that_names_max_tokens(
    joker: Any, schema: Any, method: str, version: str
) -> None:
    def bound(budget: int, **options: Any) -> Any:
        llm = joker(method, max_tokens=budget, output_version=version)
        return llm.with_structured_output(schema, method=method, **options)

    seen = set()
    for budget in (1, 2, 4, 7, 100):
        result = bound(budget, include_raw=True).invoke("?")
        finish = result["raw"].response_metadata["finish_reason"]
        seen.add(finish)
        if finish != "length":
            assert result["parsed"] == (Joke(**DATA) if schema is Joke else DATA)
            continue
        assert result["parsed"] is None
        errors = [result["parsing_error"]]
        for ask in (lambda llm: llm.invoke("?"), lambda llm: list(llm.stream("?"))):
            with pytest.raises(OutputParserException) as error:
                ask(bound(budget))
            errors.append(error.value)
        assert all("max_tokens" in str(error) for error in errors)
    assert len(seen) == 2


@pytest.mark.parametrize("options", [{}, {"segment": "answer"}], ids=["segments", "whole"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("words", ["I will not.", '{"setup": "Why?", "moral": "None."}'])
def test_an_object_that_no_member_writes_is_not_blamed_on_max_tokens(
    words: str, method: str, options: dict[str, Any]
) -> None:
    llm = SpecFuseChatModel(members=[ScriptedMember(words)], **in_method(**options))
    result = llm.with_structured_output(DictJoke, method=method, include_raw=True).invoke("?")
    _, note = str(result["parsing_error"]).split("\n-> ")
    assert "max_tokens" not in str(result["parsing_error"]) and "schema" in note
    about = result["raw"].response_metadata
    assert about["finish_reason"] == "length" and about["specfuse"]["stalled"] is True


def test_json_mode_needs_no_schema(joker: Any) -> None:
    llm = joker("json_mode", text='{"any": [1, {"thing": null}]}').with_structured_output(
        method="json_mode"
    )
    assert llm.invoke("?") == {"any": [1, {"thing": None}]}


class Tree(BaseModel):
    value: int
    children: list[Tree] = Field(default_factory=list)


class Tags(BaseModel):
    tags: set[str]


def test_recursive_schemas_work_and_sets_are_written_as_lists(joker: Any) -> None:
    llm = joker("json_schema", text='{"value": 1, "children": [{"value": 2, "children": []}]}')
    assert llm.with_structured_output(Tree).invoke("?") == Tree(value=1, children=[Tree(value=2)])
    llm = joker("json_schema", text='{"tags": ["a", "b", "a"]}')
    assert llm.with_structured_output(Tags).invoke("x") == Tags(tags={"a", "b"})
    with pytest.raises(UsageError, match="uniqueItems"):  # nothing would remove duplicates
        llm.with_structured_output(Tags.model_json_schema())


@pytest.mark.parametrize("version", ["v0", "v1"])
def test_a_call_in_place_of_an_object_raises_an_error_that_names_it(
    joker: Any, version: str
) -> None:
    tools = [{"name": "look", "parameters": {"type": "object", "properties": {}}}]
    llm = joker("function_calling", "look", "{}", output_version=version)
    with pytest.raises(OutputParserException, match="call of 'look'"):
        llm.with_structured_output(Joke, tools=tools).invoke("?")
    result = llm.with_structured_output(Joke, tools=tools, include_raw=True).invoke("?")
    assert result["parsed"] is None and "a call of 'look'" in str(result["parsing_error"])
    assert result["raw"].tool_calls[0]["name"] == "look"
    assert joker("json_schema").with_structured_output(Joke, tools=tools).invoke("?") == Joke(
        **DATA
    )


# --- streaming ------------------------------------------------------------------------------------


def grows(before: Any, after: Any) -> bool:
    """Return whether nothing that was shown is removed."""
    if isinstance(before, dict):
        return isinstance(after, dict) and all(
            key in after and grows(value, after[key]) for key, value in before.items()
        )
    if isinstance(before, list):
        return (
            isinstance(after, list) and len(before) <= len(after) and all(map(grows, before, after))
        )
    if isinstance(before, str):
        return isinstance(after, str) and after.startswith(before)
    return type(before) is type(after) or isinstance(before, int | float)


@given(st.dictionaries(st.text(max_size=3), VALUES, max_size=4), st.booleans())
def test_a_streamed_object_only_grows(data: dict[str, Any], ascii: bool) -> None:
    text = json.dumps(data, ensure_ascii=ascii)
    reader, shown = StructuredReader(), {}
    for size in range(1, len(text) + 1):
        part = reader.parse_result([Generation(text=text[:size])], partial=True)
        assert grows(shown, part), (shown, part, text[:size])
        json.dumps(part, ensure_ascii=False).encode()
        shown = part
    assert shown == data == reader.parse(text)


# --- other constraints ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "script", "text"),
    [
        ({"choice": ["yes", "no"]}, "no", "no"),
        ({"regex": "[0-9]{4}"}, "1984", "1984"),
        ({"regex": "[0-9]{4} (A|B)"}, "1984 C", "1984 "),
        ({"grammar": 'root ::= "a" ("b" | "c")'}, "ac", "ac"),
        *(
            ({"response_format": format}, TEXT, TEXT)
            for format in (SCHEMA, Joke, OldJoke, DataJoke, DictJoke)
        ),
        ({"response_format": {"type": "json_object"}}, TEXT, TEXT),
        ({"response_format": {"type": "text"}}, "free", "free"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "J", "schema": SCHEMA},
                }
            },
            TEXT,
            TEXT,
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_an_answer_has_the_requested_form(options: dict[str, Any], script: str, text: str) -> None:
    llm = SpecFuseChatModel(members=[ScriptedMember(script, name=name) for name in "ab"])
    for message in (llm.invoke("?", **options), llm.bind(**options).invoke("?")):
        assert message.text == text


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"regex": "a", "choice": ["a"]}, "regex and choice are both given"),
    ({"choice": {"yes"}}, "choice must be a valid list, got {'yes'}"),
    ({"choice": iter(["yes", "no"])}, "choice must be a valid list"),
    ({"choice": ["yes", ""]}, "choice[1] must have at least 1 character, got ''"),
    ({"choice": []}, "choice must have at least 1 item, got []"),
    ({"regex": ""}, "regex must have at least 1 character, got ''"),
    ({"response_format": {"type": "xml"}}, "response_format has an unknown type"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
        "response_format has no schema",
    ),
    (
        {"response_format": {"type": "json_object", "schema": {}}},
        "an unknown key 'schema'",
    ),
    ({"response_format": {"type": "object", "default": {1, 2}}}, "a schema is not JSON"),
    (
        {"response_format": {"type": "object", "description": "half a pair: \ud800"}},
        "is not valid UTF-8",
    ),
    ({"choice": ["a"], "stop": "x"}, "choice=...: a stop string would cut"),
]


@pytest.mark.parametrize(
    ("options", "message"),
    WRONG,
    ids=[f"{k}: {message[:40]}" for k, (_, message) in enumerate(WRONG)],
)
def test_an_impossible_form_is_refused_before_anything_runs(
    options: dict[str, Any], message: str
) -> None:
    member = ScriptedMember("never asked", name="a", fails_in=1)
    with pytest.raises(UsageError) as error:
        SpecFuseChatModel(members=[member]).invoke("?", **options)
    assert message in str(error.value)
    assert error.value.notes[0].startswith("-> ")
    assert member.draft_calls == 0


BADLY_BOUND: list[tuple[Any, dict[str, Any], str]] = [
    (Joke, {"temprature": 0.5}, "temprature"),
    (
        Joke,
        {"method": "yaml"},
        "method must be one of 'json_schema', 'json_mode', 'function_calling'",
    ),
    (None, {}, "method='json_schema' needs a schema"),
    (
        Joke,
        {"method": "function_calling", "tools": [FUNCTION]},
        "tools and method='function_calling' are both",
    ),
    ({"type": "strng"}, {}, "a schema is a pydantic class"),
    (
        {"title": "x", "type": "array", "items": {"type": "string"}},
        {"method": "function_calling"},
        "expected 'object'",
    ),
]


@pytest.mark.parametrize(("schema", "options", "message"), BADLY_BOUND, ids=str)
def test_an_impossible_schema_is_refused_when_it_is_bound(
    schema: Any, options: Any, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        SpecFuseChatModel(members=["nobody/has-this-model"]).with_structured_output(
            schema, **options
        )
