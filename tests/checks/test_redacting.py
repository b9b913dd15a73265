"""``redact``: text is changed instead of refused."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from pydantic import BaseModel, Field

from langchain_specfuse import (
    CheckError,
    Method,
    ScriptedMember,
    SpecFuseCallbackHandler,
    SpecFuseChatModel,
    UsageError,
    checks,
)
from langchain_specfuse.checks.personal import PERSONAL
from tests.methods import in_method

RULES = [checks.redact(name) for name in PERSONAL]
TEXT = (
    "Write to ann.smith@example.com or call +49 151 2345678 now. Pay with 4111 1111 1111 1111, or"
    " from DE89 3704 0044 0532 0130 00; the server is 192.0.2.17."
)
REDACTED = (
    "Write to [redacted] or call [redacted] now. Pay with [redacted], or from [redacted]; the server"
    " is [redacted]."
)
SECRETS = ("smith", "@", "example.com", "+49", "2345678", "4111 ", "DE89", "192.")
END = AIMessageChunk(
    "",
    response_metadata={"finish_reason": "stop"},
    usage_metadata={"input_tokens": 5, "output_tokens": 30, "total_tokens": 35},
)


class Provider(BaseChatModel):
    """A provider that streams these chunks, and breaks off after them if they have no end."""

    chunks: Sequence[Any]
    asked: list[Sequence[BaseMessage]] = Field(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "provider"

    def _generate(self, *args: Any, **options: Any) -> ChatResult:
        raise NotImplementedError

    def _stream(
        self, messages: Sequence[BaseMessage], *args: Any, **options: Any
    ) -> Iterator[ChatGenerationChunk]:
        self.asked.append(messages)
        for chunk in self.chunks:
            message = AIMessageChunk(chunk) if isinstance(chunk, str) else chunk
            yield ChatGenerationChunk(message=message)
        if not getattr(self.chunks[-1], "response_metadata", None):
            raise ConnectionError("the connection was closed")

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self


def pieces_of(text: str, size: int = 4) -> list[str]:
    return re.findall(rf"\s?\S{{1,{size}}}", text)


def model(*members: Any, rules: Sequence[Any] = RULES, **fields: Any) -> SpecFuseChatModel:
    return SpecFuseChatModel(members=list(members), checks=list(rules), **in_method(**fields))


def texts(llm: Any, question: Any = "How?") -> list[str]:
    return [chunk.text for chunk in llm.stream(question) if chunk.text]


def secrets_in(value: Any) -> list[str]:
    return [secret for secret in SECRETS if secret in str(value)]


# --- text -----------------------------------------------------------------------------------------


def test_every_match_is_replaced_and_the_rest_is_unchanged() -> None:
    provider = Provider(chunks=[*pieces_of(TEXT), END])
    for member in (ScriptedMember(TEXT, name="ann"), provider):
        llm = model(member, segment_tokens=3)
        assert "".join(texts(llm)) == llm.invoke("How?").text == REDACTED


@pytest.mark.parametrize("size", [1, 2, 3, 7, 200])
def test_however_the_text_is_divided_it_is_redacted_alike(size: int) -> None:
    provider = Provider(chunks=[*re.findall(rf"(?s).{{1,{size}}}", TEXT), END])
    assert "".join(texts(model(provider))) == REDACTED


def test_text_is_shown_as_soon_as_it_cannot_be_the_beginning_of_a_match() -> None:
    """Nothing waits longer than its match and the word beside it."""
    text = "In 1998 it cost 42 euros. Card 4111 1111 1111 1111 is out. Bye for now."
    provider = Provider(chunks=[*pieces_of(text, 99), END])
    assert texts(model(provider, rules=[checks.redact("card")])) == [
        *("In", " 1998", " it", " cost", " 42 euros.", " Card", " [redacted] is"),
        *(" out.", " Bye", " for", " now."),
    ]


def test_blocks_of_a_provider_are_rewritten() -> None:
    blocks = [AIMessageChunk([{"type": "text", "text": p, "index": 0}]) for p in pieces_of(TEXT)]
    llm = model(Provider(chunks=[*blocks, END]))
    message = llm.invoke("How?")
    assert message.content == [{"type": "text", "text": REDACTED, "index": 0}]
    v1 = model(Provider(chunks=[*blocks, END]), output_version="v1").invoke("How?")
    assert (v1.text, secrets_in(v1)) == (REDACTED, [])


def test_log_probabilities_of_a_provider_do_not_name_what_was_redacted() -> None:
    chunks = [
        AIMessageChunk(
            p, response_metadata={"logprobs": {"content": [{"token": p, "logprob": -1}]}}
        )
        for p in pieces_of(TEXT)
    ]
    message = model(Provider(chunks=[*chunks, END])).invoke("How?")
    assert secrets_in(message) == []
    assert message.response_metadata["logprobs"]["content"]


def test_a_pattern_of_ones_own_and_another_replacement() -> None:
    rules = [checks.redact(r"PX-\d+", "[project]"), checks.redact("Ann Lee", "[name]")]
    member = ScriptedMember("Ann Lee leads PX-4711, Ann helps.", name="ann")
    assert texts(model(member, rules=rules, segment_tokens=1)) == [
        *("[name]", " leads", " [project],", " Ann helps."),
    ]


def test_the_space_after_the_shown_words_of_a_match_stays() -> None:
    member = ScriptedMember("The project Blue Falcon 17 starts.")
    llm = model(member, rules=[checks.redact(r"Blue Falcon \d+", "[p]")], segment_tokens=1)
    assert llm.invoke("What?").text == "The project Blue [p] starts."


def test_plain_text_is_found_in_other_spellings() -> None:
    rules = [checks.redact("Crimson Falcon 7")]
    text = (
        "It is CRIMSON-FALCON 7, c r i m s o n f a l c o n 7 or Crіmson Fal con 7; crimson is red."
    )
    provider = Provider(chunks=[*pieces_of(text, 3), END])
    shown = "It is [redacted], [redacted] or [redacted]; crimson is red."
    assert "".join(texts(model(provider, rules=rules))) == shown
    hot = ScriptedMember("It's hot, but a shot is hotter.", name="ann")
    assert model(hot, rules=[checks.redact("shot")]).invoke("How?").text == (
        "It's hot, but a [redacted] is hotter."
    )


@pytest.mark.parametrize("between", [" ", "-", ", ", " - ", "\n", "\n- "])
def test_what_is_spelled_letter_by_letter_is_redacted(between: str) -> None:
    """Small models that were asked to spell an address wrote it so."""
    spelled = between.join("ann.smith@example.com")
    provider = Provider(chunks=[*f"It is:\n- {spelled}\nand so on", END])
    shown = "".join(texts(model(provider, rules=[checks.redact("email")])))
    assert len(re.findall("[a-z]", shown.replace("[redacted]", ""))) < len("it is and so on")


def test_a_beginning_at_which_an_answer_is_cut_off_is_not_shown() -> None:
    cut = AIMessageChunk("", response_metadata={"finish_reason": "length"})
    provider = Provider(chunks=[*pieces_of("Pay with 4111 1111 11"), cut])
    assert model(provider).invoke("How?").text == "Pay with [redacted]"


# --- what it costs --------------------------------------------------------------------------------


def test_it_costs_no_request_and_no_redraft() -> None:
    provider = Provider(chunks=[*pieces_of(TEXT), END])
    message = model(provider).invoke("How?")
    assert len(provider.asked) == 1
    assert message.usage_metadata == END.usage_metadata
    scripted = ScriptedMember(TEXT, name="ann")
    usage = model(scripted, segment_tokens=3).invoke("How?").usage_metadata
    plain = (
        SpecFuseChatModel(members=[scripted], method=Method(segment_tokens=3))
        .invoke("How?")
        .usage_metadata
    )
    assert usage == plain


@pytest.mark.parametrize("fields", [{}, {"segment": "answer", "result": "text"}])
def test_it_is_counted_how_much_was_redacted(fields: dict[str, Any]) -> None:
    text = "Ask ann@example.com, bob@example.com or PX-1."
    rules = [checks.redact("email"), checks.redact(r"PX-\d+"), checks.redact("card")]
    llm = model(ScriptedMember(text), rules=rules, **fields)
    assert llm.invoke("Whom?").response_metadata["specfuse"]["checks"] == {
        "redact(email)": {"redacted": 2, "reasons": []},
        rules[1].name: {"redacted": 1, "reasons": []},
    }


def test_other_checks_judge_the_redacted_text() -> None:
    rules = [*RULES, checks.forbids("4111"), checks.forbids("smith")]
    message = model(Provider(chunks=[*pieces_of(TEXT), END]), rules=rules).invoke("How?")
    assert message.text == REDACTED
    counts = message.response_metadata["specfuse"]["checks"]
    assert [count["rejected"] for count in counts.values() if "passed" in count] == [0, 0]


# --- beside the text ------------------------------------------------------------------------------


def test_arguments_of_native_calls_are_redacted() -> None:
    pieces = ['{"to": ["ann.sm', 'ith@example.com"], "card": 4111111111111111, "n": 7}']
    calls: list[Any] = [
        {"name": None if at else "pay", "args": args, "id": None if at else "c1", "index": 0}
        for at, args in enumerate(pieces)
    ]
    chunks = [AIMessageChunk("", tool_call_chunks=[call]) for call in calls]
    llm = model(Provider(chunks=["I ask ann@x.org", *chunks, END])).bind_tools([pay])
    message = llm.invoke("How?")
    assert message.tool_calls[0]["args"] == {"to": ["[redacted]"], "card": "[redacted]", "n": 7}
    assert (message.text, secrets_in(message)) == ("I ask [redacted]", [])


def pay(to: list[str], card: Any, n: int) -> None:
    """Pay somebody."""


def test_arguments_of_calls_in_the_text_are_redacted() -> None:
    call = ScriptedMember.call("pay", to=["ann.smith@example.com"], card="x", n=7)
    message = model(ScriptedMember(call, name="ann")).bind_tools([pay]).invoke("How?")
    assert message.tool_calls[0]["args"] == {"to": ["[redacted]"], "card": "x", "n": 7}
    assert secrets_in(message) == []


def test_objects_stay_valid() -> None:
    schema = {
        "title": "Person",
        "type": "object",
        "properties": {"mail": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["mail", "age"],
    }
    member = ScriptedMember({"mail": "ann.smith@example.com", "age": 41}, name="ann")
    found = model(member).with_structured_output(schema).invoke("Who?")
    assert found == {"mail": "[redacted]", "age": 41}


ANN = "ann.smith@example.com"


@pytest.mark.parametrize(
    "field",
    [
        {"type": "string", "enum": [ANN]},
        {"type": "string", "enum": [ANN, "bob@example.com", "none"]},
        {"const": ANN},
        {"type": "string", "format": "email"},
        {"type": "string", "pattern": r"^[a-z.@]+$"},
        {"type": "string", "minLength": 12, "maxLength": 30},
        {"anyOf": [{"type": "string", "format": "email"}, {"type": "null"}]},
    ],
)
def test_an_object_is_redacted_where_its_schema_allows_only_data(field: dict[str, Any]) -> None:
    """The schema forced the address, or the answer ended before it."""
    schema = {
        "title": "Person",
        "type": "object",
        "properties": {"mail": field, "age": {"type": "integer"}},
        "required": ["mail", "age"],
    }
    format = {"type": "json_schema", "json_schema": {"name": "Person", "schema": schema}}
    llm = model(ScriptedMember({"mail": ANN, "age": 41})).bind(response_format=format)
    assert "".join(texts(llm)) == '{"mail": "[redacted]", "age": 41}'
    message = llm.invoke("Who?")
    assert message.text == '{"mail": "[redacted]", "age": 41}'
    assert message.response_metadata["finish_reason"] == "stop"


def test_a_choice_is_redacted() -> None:
    llm = model(ScriptedMember(ANN)).bind(choice=[ANN, "bob@example.com"])
    assert "".join(texts(llm)) == "[redacted]"
    llm = model(ScriptedMember("none")).bind(choice=[ANN, "none"])
    assert llm.invoke("Who?").text == "none"


@pytest.mark.parametrize("option", [{"regex": ".*"}, {"grammar": 'start: "a"'}])
def test_a_pattern_for_the_whole_answer_is_refused_before_any_request(option: Any) -> None:
    with pytest.raises(UsageError, match=r"redact\(email\) cannot be combined with"):
        model(ScriptedMember(ANN)).invoke("Who?", **option)


class Person(BaseModel):
    mail: str


@pytest.mark.parametrize("mail", ["ann.smith@example.com", "none"])
def test_an_object_that_a_provider_has_read_itself_is_redacted(mail: str) -> None:
    """ChatOpenAI puts the object into the message, as its client has read it from the original."""
    fields = {"parsed": Person(mail=mail)}
    chunk = AIMessageChunk(json.dumps({"mail": mail}), additional_kwargs=fields)
    llm = model(Provider(chunks=[chunk, END]))
    message = llm.invoke("Who?")
    assert message.additional_kwargs == (fields if mail == "none" else {})
    assert secrets_in(message) == []


def test_reasoning_that_is_shown_is_redacted() -> None:
    thoughts = [
        AIMessageChunk("", additional_kwargs={"reasoning_content": piece})
        for piece in ("She is ann.smi", "th@exam", "ple.com, I see")
    ]
    message = model(Provider(chunks=[*thoughts, *pieces_of(TEXT), END])).invoke("How?")
    assert message.additional_kwargs["reasoning_content"] == "She is [redacted], I see"
    assert (message.text, secrets_in(message)) == (REDACTED, [])


# --- several members ------------------------------------------------------------------------------


def test_a_reserve_continues_the_redacted_text_and_never_gets_the_original() -> None:
    """The lead's connection is closed after each of its chunks in turn."""
    pieces = pieces_of(TEXT)
    for size in range(1, len(pieces)):
        lead = Provider(chunks=pieces[:size])
        reserve = Provider(chunks=[" and so on it goes.", END])
        shown = "".join(texts(model(lead, reserve))).removesuffix(" and so on it goes.")
        assert REDACTED.startswith(shown.strip()), size
        assert secrets_in([*reserve.asked, shown]) == [], size
        if shown:
            assert shown.strip() in [message.text.strip() for message in reserve.asked[-1]], size


def test_equal_members_agree_on_the_redacted_text() -> None:
    members = [ScriptedMember(TEXT, name=name) for name in ("ann", "bob", "cyd")]
    llm = model(*members, lead=None, segment_tokens=3)
    assert "".join(texts(llm)) == REDACTED


def test_no_event_no_trace_and_no_error_has_the_original() -> None:
    seen: list[Any] = []
    listener = SpecFuseCallbackHandler(
        on_round=seen.append, on_rejected=seen.append, on_exit=seen.append
    )
    members = [ScriptedMember(TEXT, name="ann"), ScriptedMember("Ask them. " + TEXT, name="bob")]
    llm = model(*members, lead="ann", segment_tokens=3)
    message = llm.invoke("How?", {"callbacks": [listener]})
    assert seen
    assert secrets_in([seen, message.response_metadata]) == []
    failing = model(members[0], rules=[*RULES, checks.forbids("server")], segment_tokens=3)
    with pytest.raises(CheckError) as failed:
        failing.invoke("How?")
    assert secrets_in([failed.value, failed.value.text, failed.value.rejected]) == []


def test_whole_answers_are_redacted() -> None:
    members = [ScriptedMember(TEXT, name=name) for name in ("ann", "bob")]
    llm = model(*members, segment="answer", result="text")
    assert llm.invoke("How?").text == REDACTED


def test_async_calls_are_redacted_alike() -> None:
    async def ask(llm: SpecFuseChatModel) -> tuple[str, str]:
        streamed = [chunk.text async for chunk in llm.astream("How?")]
        return "".join(streamed), (await llm.ainvoke("How?")).text

    for member in (ScriptedMember(TEXT, name="ann"), Provider(chunks=[*pieces_of(TEXT), END])):
        assert asyncio.run(ask(model(member))) == (REDACTED, REDACTED)


# --- wrong uses -----------------------------------------------------------------------------------


def test_wrong_uses_say_what_to_do() -> None:
    with pytest.raises(UsageError, match="has no place"):
        checks.at("sentence", checks.redact("email"))
    with pytest.raises(UsageError, match="without quotation marks"):
        checks.redact("email", '"')
    with pytest.raises(UsageError, match="matches an empty text"):
        checks.redact("x*")


@pytest.mark.parametrize(
    "name", ["e-mail", "emails", "mail", "cards", "credit_card", "phones", "emial", "IP address"]
)
def test_a_word_that_is_meant_as_a_kind_is_refused(name: str) -> None:
    """It redacted only this word, and said nothing."""
    with pytest.raises(UsageError, match="the kinds are 'email', 'card', 'iban', 'ip', 'phone'"):
        checks.redact(name)
    llm = model(ScriptedMember(f"An {name} is here."), rules=[checks.redact(re.compile(name))])
    assert llm.invoke("What?").text == "An [redacted] is here."


def test_names_of_kinds_may_be_written_in_capital_letters() -> None:
    assert checks.redact("EMAIL") == checks.redact("email")
