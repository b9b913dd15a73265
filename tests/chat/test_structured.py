"""Objects for answers: of every kind of schema, by every method, whole and while they grow; and other fixed shapes."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from itertools import pairwise
from typing import Annotated, Any, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.exceptions import OutputParserException
from langchain_core.outputs import Generation
from langchain_core.utils.function_calling import convert_to_json_schema
from pydantic import BaseModel, Field
from pydantic.v1 import BaseModel as OldModel

from langchain_specfuse import ScriptedMember, SpecFuseChatModel, UsageError, _shapes
from langchain_specfuse._schemas import schema_of
from langchain_specfuse._shapes import shape_of
from langchain_specfuse._structured import StructuredReader

DATA = {"setup": "Why did the cat sit on the mat?", "punchline": "Because it was there all along."}
TEXT = json.dumps(DATA)


class Joke(BaseModel):
    """A joke."""

    setup: str = Field(description="the question")
    punchline: str | None = None


class OldJoke(OldModel):
    """A joke."""

    setup: str
    punchline: str


@dataclasses.dataclass
class DataJoke:
    """A joke."""

    setup: str
    punchline: str


class DictJoke(TypedDict):
    """A joke."""

    setup: Annotated[str, ..., "the question"]
    punchline: Annotated[str, ..., "the answer"]


SCHEMA = Joke.model_json_schema()
FUNCTION = {"name": "Joke", "description": "A joke.", "parameters": {k: SCHEMA[k] for k in ("type", "properties")}}
KINDS: dict[str, tuple[Any, Any]] = {
    "pydantic": (Joke, Joke(**DATA)),
    "pydantic v1": (OldJoke, OldJoke(**DATA)),
    "dataclass": (DataJoke, DataJoke(**DATA)),
    "typed dict": (DictJoke, DATA),
    "json schema": (SCHEMA, DATA),
    "function": (FUNCTION, DATA),
    "openai": ({"type": "function", "function": FUNCTION}, DATA),
}
UNTITLED = {"type": "object", "properties": {key: {"type": "string"} for key in DATA}, "required": list(DATA)}
METHODS = ["json_schema", "json_mode", "function_calling"]


@pytest.fixture
def joker() -> Callable[..., SpecFuseChatModel]:
    """A chat model that tells this text, or calls this tool with it."""

    def make(method: str, name: str = "Joke", text: str = TEXT, **options: Any) -> SpecFuseChatModel:
        call = f'<tool_call>\n{{"name": "{name}", "arguments": {text}}}\n</tool_call>'
        member = ScriptedMember(call if method == "function_calling" else text, name="a")
        return SpecFuseChatModel(members=[member], segment_tokens=3, **options)

    return make


def name_of(schema: Any) -> str:
    return schema.__name__ if isinstance(schema, type) else "Joke"


@pytest.mark.parametrize("version", ["v0", "v1"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", KINDS)
async def test_every_kind_of_schema_by_every_method(joker: Any, kind: str, method: str, version: str) -> None:
    schema, expected = KINDS[kind]
    llm = joker(method, name_of(schema), output_version=version).with_structured_output(schema, method=method)
    assert llm.invoke("A joke?") == expected == await llm.ainvoke("A joke?")
    for grown in (list(llm.stream("A joke?")), [one async for one in llm.astream("A joke?")]):
        assert grown[-1] == expected
        assert {type(one) for one in grown} == {type(expected)}


@pytest.mark.parametrize("method", METHODS)
async def test_the_answer_itself_comes_along_when_asked_for(joker: Any, method: str) -> None:
    llm = joker(method).with_structured_output(Joke, method=method, include_raw=True)
    result = llm.invoke("A joke?")
    assert set(result) == {"raw", "parsed", "parsing_error"}
    assert (result["parsed"], result["parsing_error"]) == (Joke(**DATA), None)
    assert result["raw"].response_metadata["model_provider"] == "specfuse"
    streamed: dict[str, Any] = {}
    async for part in llm.astream("A joke?"):
        streamed |= part
    assert streamed["parsed"] == Joke(**DATA)


class Cat(BaseModel):
    """What no grammar can hold: the schema does not say that names differ."""

    name: str
    other: str

    def model_post_init(self, context: Any) -> None:
        if self.name == self.other:
            raise ValueError("names must differ")


def test_what_a_class_refuses_is_an_error_or_told_beside_the_answer(joker: Any) -> None:
    llm = joker("json_schema", text='{"name": "Tom", "other": "Tom"}')
    with pytest.raises(OutputParserException, match="names must differ"):
        llm.with_structured_output(Cat).invoke("?")
    result = llm.with_structured_output(Cat, include_raw=True).invoke("?")
    assert result["parsed"] is None
    assert "names must differ" in str(result["parsing_error"])
    assert result["raw"].text


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("method", METHODS)
def test_strict_is_taken_by_every_method(joker: Any, method: str, strict: bool) -> None:
    llm = joker(method).with_structured_output(Joke, method=method, strict=strict)
    assert llm.invoke("A joke?") == Joke(**DATA)


def test_json_mode_needs_no_schema(joker: Any) -> None:
    llm = joker("json_mode", text='{"any": [1, {"thing": null}]}').with_structured_output(method="json_mode")
    assert llm.invoke("?") == {"any": [1, {"thing": None}]}


def test_options_go_along(joker: Any) -> None:
    bound = joker("json_schema").with_structured_output(Joke, temperature=0.5)
    assert bound.first.kwargs["temperature"] == 0.5
    with pytest.raises(UsageError, match="temprature"):
        joker("json_schema").with_structured_output(Joke, temprature=0.5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", METHODS)
def test_traces_are_told_the_schema_and_the_method(kind: str, method: str) -> None:
    schema, _ = KINDS[kind]
    bound = SpecFuseChatModel(members=["example/a"]).with_structured_output(schema, method=method).first
    told = bound.kwargs["ls_structured_output_format"]
    assert told["kwargs"] == {"method": method}
    assert convert_to_json_schema(told["schema"]) == convert_to_json_schema(schema)


# --- while it grows -----------------------------------------------------------------------------------------------


def grows(before: Any, after: Any) -> bool:
    """Whether nothing that was shown is taken back."""
    if isinstance(before, dict):
        return isinstance(after, dict) and all(key in after and grows(one, after[key]) for key, one in before.items())
    if isinstance(before, list):
        return isinstance(after, list) and len(before) <= len(after) and all(map(grows, before, after))
    if isinstance(before, str):
        return isinstance(after, str) and after.startswith(before)
    return type(before) is type(after) or isinstance(before, int | float)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.text(max_size=3), VALUES, max_size=4), st.booleans())
def test_what_is_shown_of_an_object_only_grows(data: dict[str, Any], ascii: bool) -> None:
    text = json.dumps(data, ensure_ascii=ascii)
    reader, shown = StructuredReader(), {}
    for size in range(1, len(text) + 1):
        part = reader.parse_result([Generation(text=text[:size])], partial=True)
        assert grows(shown, part), (shown, part, text[:size])
        json.dumps(part, ensure_ascii=False).encode()
        shown = part
    assert shown == data == reader.parse(text)


def test_a_stream_of_partial_objects_only_grows_and_shows_more_than_the_end(joker: Any) -> None:
    grown = list(joker("json_schema").with_structured_output(SCHEMA).stream("A joke?"))
    assert len(grown) > 3
    assert all(grows(one, other) for one, other in pairwise(grown))
    assert grown[-1] == DATA


# --- other fixed shapes -------------------------------------------------------------------------------------------

FORMATS: list[tuple[Any, Any]] = [
    ({"type": "json_schema", "json_schema": {"name": "Joke", "schema": SCHEMA, "strict": True}}, "json_schema"),
    ({"type": "json_object"}, "json"),
    ({"type": "text"}, None),
    (SCHEMA, "json_schema"),
    (Joke, "json_schema"),
    (OldJoke, "json_schema"),
    (DataJoke, "json_schema"),
    (DictJoke, "json_schema"),
]


@pytest.mark.parametrize(("format", "kind"), FORMATS, ids=lambda value: str(value)[:30])
def test_a_response_format_in_every_form(joker: Any, format: Any, kind: str | None) -> None:
    constraint = shape_of({"response_format": format}).constraint()
    assert (constraint and constraint.kind) == kind
    assert joker("json_schema").invoke("?", response_format=format).text == TEXT
    assert joker("json_schema").bind(response_format=format).invoke("?").text == TEXT


def test_descriptions_and_definitions_are_in_the_constraint() -> None:
    constraint = shape_of({"response_format": Joke}).constraint()
    assert constraint
    schema = json.loads(constraint.body)
    assert (schema["title"], schema["description"]) == ("Joke", "A joke.")
    assert schema["properties"]["setup"]["description"] == "the question"


class Tree(BaseModel):
    """A tree."""

    value: int
    children: list[Tree] = Field(default_factory=list)


def test_recursion_is_kept_and_read(joker: Any) -> None:
    text = '{"value": 1, "children": [{"value": 2, "children": []}]}'
    llm = joker("json_schema", text=text).with_structured_output(Tree)
    assert llm.invoke("?") == Tree(value=1, children=[Tree(value=2)])
    assert "$defs" in schema_of(Tree)


@pytest.mark.parametrize(
    ("options", "said", "heard"),
    [
        ({"choice": ["yes", "no"]}, "no", "no"),
        ({"regex": "[0-9]{4}"}, "1984", "1984"),
        ({"regex": "[0-9]{4} (A|B)"}, "1984 C", "1984 A"),
        ({"grammar": 'root ::= "a" ("b" | "c")'}, "ac", "ac"),
    ],
    ids=str,
)
def test_a_text_has_the_shape_that_was_asked_for(options: dict[str, Any], said: str, heard: str) -> None:
    llm = SpecFuseChatModel(members=[ScriptedMember(said, name=name) for name in "ab"])
    for message in (llm.invoke("?", **options), llm.bind(**options).invoke("?")):
        assert message.text == heard


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"regex": "a", "choice": ["a"]}, "regex and choice are both given"),
    ({"response_format": {"type": "text"}, "grammar": "x"}, "response_format and grammar are both given"),
    ({"choice": []}, "choice must be a list of texts"),
    ({"choice": "yes"}, "choice must be a list of texts"),
    ({"choice": ["yes", ""]}, "choice must be a list of texts"),
    ({"choice": ["yes", 7]}, "choice must be a list of texts"),
    ({"regex": ""}, "regex must be a text"),
    ({"regex": 7}, "regex must be a text"),
    ({"grammar": ["x"]}, "grammar must be a text"),
    ({"regex": "a("}, "a("),
    ({"grammar": 'root ::= ("a"'}, "grammar"),
    ({"grammar": "root ::= nothing"}, "nothing"),
    ({"response_format": {"type": "xml"}}, "response_format is of a kind that is not known"),
    ({"response_format": {"type": "json_schema"}}, "response_format has no schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format has no schema"),
    ({"response_format": {"type": "json_object", "schema": {}}}, "a key 'schema' that is not known"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA, "nmae": 1}}}, "a key 'nmae'"),
    ({"response_format": 7}, "a schema is a pydantic class"),
    ({"response_format": int}, "a schema is a pydantic class"),
    ({"response_format": {"type": "object", "properties": 7}}, "properties"),
    ({"response_format": {"type": "object", "default": {1, 2}}}, "the schema is no JSON"),
    ({"response_format": {"enum": []}}, "enum"),
    ({"response_format": {"type": "object", "description": "half a pair: \ud800"}}, "is not valid UTF-8"),
    ({"choice": ["yes", "\ud800"]}, "is not valid UTF-8"),
    ({"response_format": Joke, "stop": ["x"]}, "response_format=...: a stop string would cut"),
    ({"regex": "a+", "stop": ["x"]}, "regex=...: a stop string would cut"),
    ({"choice": ["a"], "stop": "x"}, "choice=...: a stop string would cut"),
]


@pytest.mark.parametrize(("options", "message"), WRONG, ids=lambda value: str(value)[:50])
def test_a_shape_that_cannot_be_is_refused_before_anything_runs(options: dict[str, Any], message: str) -> None:
    member = ScriptedMember("never asked", name="a", fails_in=1)
    with pytest.raises(UsageError) as error:
        SpecFuseChatModel(members=[member]).invoke("?", **options)
    assert message in str(error.value)
    assert error.value.__notes__[0].startswith("-> ")
    assert member.draft_calls == 0


@pytest.mark.parametrize(
    ("schema", "options", "message"),
    [
        (Joke, {"method": "yaml"}, "method must be one of 'json_schema', 'json_mode', 'function_calling'"),
        (None, {}, "method='json_schema' needs a schema"),
        (Joke, {"method": "function_calling", "tools": [FUNCTION]}, "tools and method='function_calling' are both"),
        ({"name": "x"}, {}, "a schema is a pydantic class"),
        ({}, {}, "a schema is a pydantic class"),
        (7, {}, "a schema is a pydantic class"),
        ({"title": "x", "type": "object", "properties": 7}, {}, "properties"),
        (
            {"title": "x", "type": "array", "items": {"type": "string"}},
            {"method": "function_calling"},
            "wanted 'object'",
        ),
    ],
)
def test_a_schema_that_cannot_be_is_refused_where_it_is_bound(schema: Any, options: Any, message: str) -> None:
    with pytest.raises(UsageError) as error:
        SpecFuseChatModel(members=["nobody/has-this-model"]).with_structured_output(schema, **options)
    assert message in str(error.value)
    assert error.value.__notes__[0].startswith("-> ")


def test_a_type_that_does_not_exist_is_told_those_that_do() -> None:
    with pytest.raises(UsageError) as error:
        SpecFuseChatModel(members=["nobody/has-this-model"]).with_structured_output({"type": "strng"})
    assert "array, boolean, integer, null, number, object, string" in error.value.__notes__[0]


def test_without_the_extra_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from langchain_specfuse.constraints import _backends, _referee

    monkeypatch.setattr(_backends, "NAMES", ("no_such_package",))
    _shapes._check.cache_clear()
    _referee.bytewise.cache_clear()
    llm = SpecFuseChatModel(members=["nobody/has-this-model"])
    for attempt in (lambda: llm.with_structured_output(Cat), lambda: llm.invoke("?", regex="a+b?c")):
        with pytest.raises(UsageError, match="not installed") as error:
            attempt()
        assert 'pip install "langchain-specfuse[structured]"' in error.value.__notes__[0]


@pytest.mark.parametrize("schema", [Joke, {"name": "Joke", "schema": UNTITLED, "strict": True}, UNTITLED])
@pytest.mark.parametrize("method", METHODS)
def test_a_schema_needs_no_title_and_may_stand_in_openais_inner_form(joker: Any, schema: Any, method: str) -> None:
    name = "answer" if schema is UNTITLED else "Joke"
    llm = joker(method, name).with_structured_output(schema, method=method)
    assert llm.invoke("?") == (Joke(**DATA) if schema is Joke else DATA)


@pytest.mark.parametrize("version", ["v0", "v1"])
@pytest.mark.parametrize("method", METHODS)
async def test_the_log_tells_once_of_an_object_that_was_closed_by_hand(
    joker: Any, method: str, version: str, caplog: Any
) -> None:
    def told() -> int:
        count = len([one for one in caplog.records if "closed by hand" in one.message])
        caplog.clear()
        return count

    def asked(**options: Any) -> Any:
        return joker(method, max_tokens=6, output_version=version).with_structured_output(
            Joke, method=method, **options
        )

    assert isinstance(asked().invoke("?"), Joke) and told() == 1
    assert isinstance(list(asked().stream("?"))[-1], Joke) and told() == 1
    assert isinstance([one async for one in asked().astream("?")][-1], Joke) and told() == 1
    assert isinstance(asked(include_raw=True).invoke("?")["parsed"], Joke) and told() == 0
    assert joker(method).with_structured_output(Joke, method=method).invoke("?") and told() == 0


@pytest.mark.parametrize("version", ["v0", "v1"])
def test_a_call_where_an_object_was_wanted_is_an_error_that_says_so(joker: Any, version: str) -> None:
    tools = [{"name": "look", "parameters": {"type": "object", "properties": {}}}]
    llm = joker("function_calling", "look", "{}", output_version=version)
    with pytest.raises(OutputParserException, match="the answer is a call of 'look', not an object"):
        llm.with_structured_output(Joke, tools=tools).invoke("?")
    result = llm.with_structured_output(Joke, tools=tools, include_raw=True).invoke("?")
    assert result["parsed"] is None and "a call of 'look'" in str(result["parsing_error"])
    assert result["raw"].tool_calls[0]["name"] == "look"
    told = joker("json_schema").with_structured_output(Joke, tools=tools).invoke("?")
    assert told == Joke(**DATA)


@pytest.mark.parametrize("method", METHODS)
def test_budgets_of_any_size_end_in_a_whole_object(joker: Any, method: str) -> None:
    for max_tokens in range(1, 20):
        llm = joker(method, max_tokens=max_tokens).with_structured_output(Joke, include_raw=True, method=method)
        result = llm.invoke("?")
        assert isinstance(result["parsed"], Joke), max_tokens
        metadata = result["raw"].response_metadata
        assert metadata["specfuse"]["closed"] is (metadata["finish_reason"] == "length")
    assert metadata["finish_reason"] == ("tool_calls" if method == "function_calling" else "stop")


def test_sets_are_written_as_lists_and_read_as_sets():
    class Tags(BaseModel):
        tags: set[str]

    text = '{"tags": ["a", "b", "a"]}'
    llm = SpecFuseChatModel(members=[ScriptedMember(text)])
    assert llm.with_structured_output(Tags).invoke("x") == Tags(tags={"a", "b"})
    with pytest.raises(UsageError, match="uniqueItems"):
        llm.with_structured_output(Tags.model_json_schema())  # nobody would merge what is read as a list


@pytest.mark.parametrize("method", METHODS)
async def test_a_number_that_no_float_holds_is_refused_not_made_infinite(joker: Any, method: str) -> None:
    schema = {"title": "Size", "type": "object", "properties": {"size": {"type": "number"}}, "required": ["size"]}
    llm = joker(method, "Size", '{"size": 1e999}').with_structured_output(schema, method=method)
    with pytest.raises(OutputParserException, match=r"1e999|more than a float holds"):
        llm.invoke("?")
    with pytest.raises(OutputParserException, match=r"1e999|more than a float holds"):
        assert [one async for one in llm.astream("?")] == []
