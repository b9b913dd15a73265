"""A chat model is told what a check has refused: what is on the wire, and how many requests are made.

The servers are fakes of the protocols of providers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_deepseek import ChatDeepSeek
from pydantic import BaseModel

from langchain_specfuse import CheckError, ScriptedMember, SpecFuseChatModel, checks
from langchain_specfuse.checks import CheckContext
from langchain_specfuse.core.checks import Check
from tests.methods import in_method

from .continued import ASKED
from .fake_provider import Call, FakeProvider, Kind, Reply, Text
from .test_native import KINDS, answered, chat_model, text_of, turns_of, weather

QUESTION = "What do you offer?"
BAD = Reply([Text("We offer", " a guarantee", " of quality.")])
BEGUN, REST = "We offer", " a fair price."
TOLD = "because it was refused"
REASON = "contains 'guarantee'"
PARIS, ROME = Call("weather", ('{"city": "Paris"}',)), Call("weather", ('{"city": "Rome"}',))
LOOKS = "I look at it."


@pytest.fixture
def server_of() -> Iterator[Callable[..., FakeProvider]]:
    servers: list[FakeProvider] = []

    def make(kind: Kind, *replies: Any, **owners: str) -> FakeProvider:
        servers.append(FakeProvider(kind, *replies))
        servers[-1].owners = owners
        return servers[-1]

    yield make
    for server in servers:
        server.stop()


def no_paris(_: str, context: CheckContext) -> str | None:
    return "asks about Paris" if context.tool_calls[-1]["args"]["city"] == "Paris" else None


def led(*members: Any, **options: Any) -> SpecFuseChatModel:
    return SpecFuseChatModel(
        members=list(members), **in_method(**{"checks": [checks.forbids("guarantee")], **options})
    )


def roles_of(body: Any) -> list[str]:
    return [turn["role"] for turn in turns_of(body) if "role" in turn]


def told_in(body: Any) -> list[str]:
    """The texts of the messages that tell what was refused, the system's too."""
    texts = [text_of(turn) for turn in turns_of(body) if "content" in turn]
    system = body.get("system") or ""
    texts.append(system if isinstance(system, str) else json.dumps(system))
    return [text for text in texts if TOLD in text]


# --- text -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["invoke", "astream"])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_redraft_is_asked_for_with_the_refused_text_and_the_reason(
    server_of: Any, kind: Kind, way: str
) -> None:
    server = server_of(kind, BAD, Reply([Text(REST)]))
    message = await answered(led(chat_model(kind, server.url)), QUESTION, way)
    assert message.text == BEGUN + REST
    first, second = server.asked
    (told,) = told_in(second)
    assert f'refused: "guarantee" ({REASON}).' in told and "do not mention this" in told
    assert not told_in(first)
    said = [turn for turn in turns_of(second) if turn["role"] == "assistant"]
    assert [text_of(turn) for turn in said] == [BEGUN]
    if kind in ("openai", "responses"):
        assert ASKED in told and roles_of(second) == ["user", "assistant", "user"]
    else:
        assert told.startswith(QUESTION) and roles_of(second) == ["user", "assistant"]
    assert second.get("temperature") == first.get("temperature"), "the rest need not be sampled"


@pytest.mark.parametrize("owner", ["vllm", "llamacpp"])
def test_a_server_that_continues_an_assistants_message_is_told_before_it(
    server_of: Any, owner: str
) -> None:
    server = server_of("openai", BAD, Reply([Text(REST)]), **{"gpt-4.1": owner})
    assert led(chat_model("openai", server.url)).invoke(QUESTION).text == BEGUN + REST
    assert roles_of(server.asked[1]) == ["user", "assistant"]
    assert TOLD in text_of(turns_of(server.asked[1])[0])


def test_deepseeks_models_are_told_before_the_prefix(server_of: Any) -> None:
    server = server_of("openai", BAD, Reply([Text(REST)]))
    model = ChatDeepSeek(model="deepseek-chat", api_key="k", api_base=f"{server.url}/beta")
    assert led(model).invoke(QUESTION).text == BEGUN + REST
    question, prefix = turns_of(server.asked[1])
    assert TOLD in question["content"] and prefix["prefix"] is True


def test_after_the_result_of_a_tool_the_system_message_tells_it(server_of: Any) -> None:
    """Mistral's API refuses a user's message after it: "Unexpected role 'user' after role 'tool'"
    (github.com/langchain-ai/langchain/issues/21774)."""
    server = server_of("mistral", BAD, Reply([Text(REST)]))
    call = {"name": "weather", "args": {"city": "Bonn"}, "id": "call_0001"}
    messages = [HumanMessage(QUESTION), AIMessage("", tool_calls=[call])]
    result = ToolMessage("sunny", tool_call_id="call_0001")
    model = led(chat_model("mistral", server.url)).bind_tools([weather])
    assert model.invoke([*messages, result]).text == BEGUN + REST
    assert roles_of(server.asked[1]) == ["system", "user", "assistant", "tool", "assistant"]
    assert TOLD in turns_of(server.asked[1])[0]["content"]


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_private_check_refuses_reaches_no_model(
    server_of: Any, kind: Kind, beside: bool
) -> None:
    """Also not through another check that refuses the same text."""

    def no_guarantee(text: str) -> str | None:
        return f"says {text!r}" if "guarantee" in text else None

    last = Text(BEGUN + REST) if beside else Text(REST)  # nothing is shown before the end
    server = server_of(kind, BAD, BAD, BAD, Reply([last]))
    rules = [Check(no_guarantee, "no secrets", private=not beside)]
    if beside:
        rules.append(Check(lambda text: None, "others", "answer", private=True))
    message = led(chat_model(kind, server.url), checks=rules, redrafts=3).invoke(QUESTION)
    assert message.text == BEGUN + REST
    for body in server.asked[1:]:
        assert "guarantee" not in json.dumps(body)
        assert "it broke the rule 'no secrets'" in json.dumps(body)


def test_without_feedback_samples_are_drawn(server_of: Any) -> None:
    server = server_of("openai", BAD, Reply([Text(REST)]))
    model = led(chat_model("openai", server.url), feedback=False)
    assert model.invoke(QUESTION).text == BEGUN + REST
    assert not told_in(server.asked[1]) and server.asked[1]["temperature"] == 0.7


@pytest.mark.parametrize("redrafts", [None, 1])
def test_redrafts_counts_requests_before_the_reserve_is_asked(
    server_of: Any, redrafts: int | None
) -> None:
    """The reserve is told, too."""
    lead = server_of("openai", BAD, Reply([Text(" guarantee.")]))
    reserve = server_of("anthropic", Reply([Text(" advice.")]))
    models = chat_model("openai", lead.url), chat_model("anthropic", reserve.url)
    assert led(*models, redrafts=redrafts).invoke(QUESTION).text == f"{BEGUN} advice."
    assert len(lead.asked) == 1 + (redrafts or 2) and len(reserve.asked) == 1
    assert all(map(told_in, lead.asked[1:] + reserve.asked))
    first, *others = [body.get("temperature") for body in lead.asked[1:]]
    assert first is None and all(value == 0.7 for value in others)


def test_each_request_counts_for_max_calls(server_of: Any) -> None:
    server = server_of("openai", BAD, Reply([Text(" guarantee.")]))
    with pytest.raises(CheckError, match="max_calls"):
        led(chat_model("openai", server.url), max_calls=2).invoke(QUESTION)
    assert len(server.asked) == 2


def test_where_no_redraft_passes_the_answer_fails_with_what_was_shown(server_of: Any) -> None:
    server = server_of("openai", BAD, Reply([Text(" guarantee.")]))
    with pytest.raises(CheckError, match="redrafts=2 in a row") as caught:
        list(led(chat_model("openai", server.url)).stream(QUESTION))
    assert caught.value.text == "We offer" and len(server.asked) == 3


def test_a_later_fault_is_told_with_the_earlier_ones_and_the_stream_goes_on(
    server_of: Any,
) -> None:
    """Text that passes comes from the stream that is open: no request is made for it."""
    server = server_of(
        "openai",
        BAD,
        Reply([Text(" a fair price,", " and good", " advice, and", " bad", " coffee.")]),
        Reply([Text(" tea", " too.")]),
    )
    rules = [checks.forbids("guarantee"), checks.forbids("bad")]
    message = led(chat_model("openai", server.url), checks=rules, segment_tokens=2).invoke(QUESTION)
    assert message.text == "We offer a fair price, and good advice, and tea too."
    assert len(server.asked) == 3
    (told,) = told_in(server.asked[2])
    assert told.index(REASON) < told.index("contains 'bad'")


def test_in_a_vote_a_chat_model_is_told_and_its_stream_stays_open(server_of: Any) -> None:
    server = server_of("openai", BAD, Reply([Text(REST, " It is", " low, too.")]))
    members = [chat_model("openai", server.url), ScriptedMember("We offer a guarantee.", name="s")]
    message = led(*members, lead=None, segment_tokens=3, prior={"gpt-4.1": 9.0}).invoke(QUESTION)
    assert "guarantee" not in message.text
    drafts = [body for body in server.asked if "Continuations:" not in json.dumps(body)]
    assert len([body for body in drafts if told_in(body)]) == 1


HOURS = "The library opens at 9:00."
IN_2025 = Reply([Text("In 2025 it", " opens at 9:00. Bye.")])


def no_year(text: str) -> Any:
    at = text.find("2025")
    return None if at < 0 else checks.fault("names a year", at, at + 4)


@pytest.mark.parametrize("has_reserve", [False, True])
@pytest.mark.parametrize(
    "rule", [checks.grounded([HOURS]), checks.at("sentence", no_year)], ids=["grounded", "span"]
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_sentence_that_nobody_has_seen_is_written_anew(
    server_of: Any, kind: Kind, rule: Check, has_reserve: bool
) -> None:
    good = Reply([Text(f"{HOURS} Bye.")])
    server = server_of(kind, IN_2025, *[IN_2025] * (2 * has_reserve), good)
    members = [chat_model(kind, server.url)]
    if has_reserve:
        reserve = server_of("openai", good)
        members.append(chat_model("openai", reserve.url))
    assert led(*members, checks=[rule]).invoke("When?").text == f"{HOURS} Bye."
    for body in [*server.asked[1:], *(reserve.asked if has_reserve else ())]:
        _, refused, again = turns_of(body)
        assert text_of(refused) == "In 2025 it opens at 9:00."
        assert text_of(again).startswith("This answer cannot be used: ")
        assert "has seen" not in json.dumps(body)
    assert len(server.asked) == (3 if has_reserve else 2)


def test_only_what_is_shown_is_continued(server_of: Any) -> None:
    server = server_of("openai", Reply([Text("It costs $5 a day.")]), Reply([Text(" little.")]))
    model = led(chat_model("openai", server.url), checks=[checks.forbids("5")])
    assert model.invoke("How much?").text == "It costs little."
    assert text_of(turns_of(server.asked[1])[1]) == "It costs"


def test_a_chat_model_that_takes_over_continues_only_what_is_shown(server_of: Any) -> None:
    server = server_of("openai", Reply([Text(f"{HOURS} Bye.")]))
    local = ScriptedMember("In 2025 it opens at 9:00. Bye.", name="local")
    model = led(local, chat_model("openai", server.url), checks=[checks.grounded([HOURS])])
    assert model.invoke("When?").text == f"{HOURS} Bye."
    (body,) = server.asked
    assert "In" not in [text_of(turn) for turn in turns_of(body)]


def test_dropping_unseen_text_again_and_again_ends(server_of: Any) -> None:
    server = server_of("openai", IN_2025, *[Reply([Text("It was 2025 then. Bye.")])] * 9)
    with pytest.raises(CheckError, match="redrafts=2 in a row") as caught:
        led(chat_model("openai", server.url), checks=[checks.grounded([HOURS])]).invoke("When?")
    assert caught.value.text == "" and len(server.asked) == 3


# --- calls ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["invoke", "astream"])
@pytest.mark.parametrize("said", ["", LOOKS])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_refused_call_is_not_emitted_and_asked_for_once_more(
    server_of: Any, kind: Kind, said: str, way: str
) -> None:
    text = [Text(said)] if said else []
    server = server_of(kind, Reply([*text, PARIS]), Reply([ROME]))
    model = led(chat_model(kind, server.url), checks=[checks.at("call", no_paris)])
    message = await answered(model.bind_tools([weather]), "The weather?", way)
    assert message.text == said
    assert [call["args"] for call in message.tool_calls] == [{"city": "Rome"}]
    assert "Paris" not in json.dumps(message.content) + json.dumps(message.additional_kwargs)
    first, second = server.asked
    assert second["tools"] == first["tools"]
    turns = json.dumps([turn for turn in turns_of(second) if turn.get("role") != "user"])
    assert "tool_calls" not in turns and "tool_use" not in turns and "Paris" not in turns
    (told,) = told_in(second)
    assert "refused: weather(" in told and "asks about Paris" in told


@pytest.mark.parametrize("kind", KINDS)
def test_after_a_second_refused_call_the_reserve_is_asked(server_of: Any, kind: Kind) -> None:
    lead = server_of(kind, Reply([Text(LOOKS), PARIS]), Reply([PARIS]))
    reserve = server_of(kind, Reply([ROME]))
    models = [chat_model(kind, server.url) for server in (lead, reserve)]
    model = led(*models, checks=[checks.at("call", no_paris)]).bind_tools([weather])
    message = model.invoke("The weather?")
    assert message.text == LOOKS
    assert [call["args"] for call in message.tool_calls] == [{"city": "Rome"}]
    assert (len(lead.asked), len(reserve.asked)) == (2, 1)


def test_a_call_that_is_refused_twice_without_a_reserve_fails(server_of: Any) -> None:
    server = server_of("openai", Reply([Text(LOOKS), PARIS]), Reply([PARIS]))
    rule = checks.at("call", no_paris)
    model = led(chat_model("openai", server.url), checks=[rule]).bind_tools([weather])
    chunks: list[Any] = []
    with pytest.raises(CheckError, match="1 further request") as caught:
        chunks.extend(model.stream("The weather?"))
    assert not any(chunk.tool_call_chunks for chunk in chunks)
    assert caught.value.text == LOOKS and len(server.asked) == 2
    server.begin(Reply([Text(LOOKS), PARIS]), Reply([PARIS]))
    ended = model.bind(on_failure="end").invoke("The weather?")
    assert ended.text == LOOKS and not ended.tool_calls


# --- reasons ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("Never name a price.", "Never name a price. Write"),
        ("names a price", "names a price. Write"),
        ("Who asked?", "Who asked? Write"),
        ('a model says yes to: "Is it rude?"', 'to: "Is it rude?". Write'),
    ],
)
def test_no_mark_is_doubled_after_a_reason(server_of: Any, reason: str, said: str) -> None:
    rule = checks.at("answer", lambda text: reason if "$" in text else None)
    server = server_of("openai", Reply([Text("It is $5.")]), Reply([Text("It is cheap.")]))
    assert led(chat_model("openai", server.url), checks=[rule]).invoke("?").text == "It is cheap."
    assert f"{said} the whole answer again" in text_of(turns_of(server.asked[1])[-1])


# --- whole answers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"segment": "answer", "samples": 2}])
@pytest.mark.parametrize("kind", KINDS)
def test_a_refused_answer_is_asked_for_again_with_the_reason(
    server_of: Any, kind: Kind, options: Any
) -> None:
    server = server_of(kind, Reply([Text("We think so.")]), Reply([Text("Yes. Sources: none.")]))
    rule = checks.requires("Sources:")
    message = led(chat_model(kind, server.url), checks=[rule], **options).invoke(QUESTION)
    assert message.text == "Yes. Sources: none."
    first, second = server.asked
    question, answer, again = turns_of(second)
    assert [question] == turns_of(first) and text_of(answer) == "We think so."
    assert "contains nothing like 'Sources:'" in text_of(again)
    assert "Write nothing else" in text_of(again)


@pytest.mark.parametrize("options", [{}, {"segment": "answer", "samples": 2}])
def test_an_answer_that_a_private_check_refuses_is_not_sent_back(
    server_of: Any, options: Any
) -> None:
    server = server_of("openai", Reply([Text("It is Hg7.")]), Reply([Text("I cannot say.")]))
    rule = Check(lambda text: text if "Hg7" in text else None, "no keys", "answer", private=True)
    model = led(chat_model("openai", server.url), checks=[rule], **options)
    assert model.invoke("The key?").text == "I cannot say."
    assert "Hg7" not in json.dumps(server.asked[1])
    assert "it broke the rule 'no keys'" in text_of(turns_of(server.asked[1])[-1])


class Trip(BaseModel):
    """A trip."""

    start: int
    end: int


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_a_refused_object_is_asked_for_again_with_the_reason(server_of: Any, method: str) -> None:
    def forward(text: str, context: CheckContext) -> str | None:
        trip = context.tool_calls[-1]["args"] if context.tool_calls else json.loads(text)
        return None if trip["end"] > trip["start"] else "ends before it starts"

    def writes(trip: str) -> Reply:
        return Reply([Text(trip) if method == "json_schema" else Call("Trip", (trip,))])

    server = server_of(
        "openai", writes('{"start": 9, "end": 7}'), writes('{"start": 9, "end": 11}')
    )
    place = "answer" if method == "json_schema" else "call"
    model = led(chat_model("openai", server.url), checks=[checks.at(place, forward)])
    found = model.with_structured_output(Trip, method=method).invoke("From nine.")
    assert found == Trip(start=9, end=11) and len(server.asked) == 2
    assert "ends before it starts" in text_of(turns_of(server.asked[1])[-1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("rule", "kept"),
    [
        (checks.max_sentences(2), "It is one. It is two."),
        (checks.at("sentence", checks.max_sentences(2)), "It is one. It is two."),
        (checks.max_words(5), "It is one. It is"),
    ],
    ids=["sentences", "sentences at sentences", "words"],
)
def test_an_answer_ends_where_a_check_refuses_every_word_and_nothing_is_asked_for(
    server_of: Any, kind: Kind, rule: Check, kept: str
) -> None:
    server = server_of(kind, Reply([Text("It is", " one. It", " is two. It", " is three.")]))
    message = led(chat_model(kind, server.url), checks=[rule]).invoke(QUESTION)
    assert message.text == kept and len(server.asked) == 1
