"""Clients of OpenAI's responses protocol read from the endpoint what the chat model answers."""

from __future__ import annotations

import json

import openai
import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from langchain_specfuse import ScriptedMember, SpecFuseChatModel, checks

from .conftest import BLUE, Thinking, ensemble
from .test_clients import CALL, JOKE, Joke, get_weather

PATH = "/v1/responses"
QUESTION = "Why is the sky blue?"
TOOL = {
    "type": "function",
    "name": "get_weather",
    "description": "Tell the weather in a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
    "strict": True,
}
THINKING = SpecFuseChatModel(members=[Thinking()])
BEGIN = ["created", "in_progress"]
ITEM = ["output_item.added", "output_item.done"]
PART = ["content_part.added", "content_part.done"]


def ask(client, **options):
    return client.responses.create(**{"model": "specfuse", "input": QUESTION, **options})


def names(stream):
    """Return the names of the events, with one delta for neighbours."""
    found = [event.type.removeprefix("response.") for event in stream]
    return [name for name, before in zip(found, ["", *found], strict=False) if name != before]


def asked_with(**script):
    """Return an ensemble that answers by the last role, and the list of its queries."""
    queries = []

    def answer(query):
        queries.append(query)
        return script[query.turns[-1].role]

    return ensemble(ScriptedMember(answer, name="a")), queries


def test_a_response_is_the_chat_models_answer_whole_and_streamed(serve):
    endpoint = serve()
    client = endpoint.client()
    expected = endpoint.llm.invoke(QUESTION)
    whole = ask(client, instructions="Be brief.", temperature=0.0, user="ann")
    assert (whole.output_text, whole.status, whole.error) == (BLUE, "completed", None)
    assert whole.instructions == "Be brief." and whole.store is False and whole.tools == []
    assert whole.usage.output_tokens == expected.usage_metadata["output_tokens"]
    assert whole.model_extra["specfuse"]["rounds"] > 2
    stream = list(ask(client, stream=True))
    text = "output_text.delta", "output_text.done"
    assert names(stream) == [
        *BEGIN,
        ITEM[0],
        PART[0],
        *text,
        PART[1],
        ITEM[1],
        "completed",
    ]
    assert [event.sequence_number for event in stream] == list(range(len(stream)))
    deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
    assert deltas == [chunk.text for chunk in endpoint.llm.stream(QUESTION) if chunk.text]
    last = stream[-1].response
    assert (last.output_text, last.usage) == (BLUE, ask(client).usage)
    assert {event.response.id for event in stream if hasattr(event, "response")} == {last.id}
    with client.responses.stream(model="specfuse", input=QUESTION) as helper:
        assert helper.get_final_response().output_text == BLUE
    assert endpoint.counted("specfuse_answers_total", 4, outcome="stop")


def test_every_event_and_response_has_the_documented_form(serve):
    no = ScriptedMember.refusal("I cannot help.")
    event, found = TypeAdapter(ResponseStreamEvent), set()
    for script, options in (
        (THINKING, {}),
        (BLUE, {"include": ["message.output_text.logprobs"]}),
        (CALL, {"tools": [TOOL]}),
        (no, {}),
        (BLUE, {"max_output_tokens": 2}),
    ):
        llm = script if isinstance(script, SpecFuseChatModel) else ensemble(script)
        endpoint = serve(llm)
        body = {"model": "specfuse", "input": QUESTION, **options}
        whole = endpoint.post(body, PATH)
        Response.model_validate(whole.json(), strict=True)
        lines = endpoint.post({**body, "stream": True}, PATH).text.strip().split("\n\n")
        for line in lines:
            name, _, data = line.partition("\ndata: ")
            event.validate_python(json.loads(data), strict=True)
            assert name == f"event: {json.loads(data)['type']}"
            found.add(json.loads(data)["type"].removeprefix("response."))
    assert {"function_call_arguments.done", "refusal.done", "incomplete"} < found
    assert {"reasoning_summary_part.added", "reasoning_summary_text.done"} < found


def test_a_call_is_an_item_and_its_result_is_read(serve):
    llm, queries = asked_with(user=CALL, tool="Sunny.")
    client = serve(llm).client()
    (call,) = ask(client, tools=[TOOL], tool_choice="auto").output
    assert (call.type, call.name, call.status) == ("function_call", "get_weather", "completed")
    assert json.loads(call.arguments) == {"city": "Rome"}
    stream = list(ask(client, tools=[TOOL], stream=True))
    arguments = "function_call_arguments.delta", "function_call_arguments.done"
    assert names(stream) == [*BEGIN, ITEM[0], *arguments, ITEM[1], "completed"]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "22 degrees"}
    thought = {"type": "reasoning", "id": "rs_1", "summary": []}
    question = {"role": "user", "content": [{"type": "input_text", "text": "And Rome?"}]}
    followed = ask(client, tools=[TOOL], input=[question, thought, call, result])
    assert followed.output_text == "Sunny."
    user, assistant, tool = queries[-1].turns
    assert (user.text, assistant.calls[0].id, tool.text) == (
        "And Rome?",
        call.call_id,
        "22 degrees",
    )
    forced = ask(
        serve(ensemble("no call", CALL)).client(),
        tools=[TOOL],
        tool_choice={"type": "function", "name": "get_weather"},
    )
    assert [item.type for item in forced.output] == ["function_call"]


def test_calls_of_one_turn_are_one_message(serve):
    llm, queries = asked_with(tool="Sunny in both.")
    call = {"type": "function_call", "name": "get_weather"}
    items = [
        {"role": "user", "content": "Rome and Oslo?"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        *({**call, "call_id": city, "arguments": json.dumps({"city": city})} for city in "RO"),
        *({"type": "function_call_output", "call_id": city, "output": "Sun."} for city in "RO"),
    ]
    assert ask(serve(llm).client(), input=items).output_text == "Sunny in both."
    _, assistant, *results = queries[-1].turns
    assert assistant.text == "I look."
    assert [made.id for made in assistant.calls] == [result.call_id for result in results]


def test_a_request_as_codex_writes_it_is_answered(serve):
    """``ResponsesApiRequest`` in codex-rs/codex-api/src/common.rs."""
    part = {"type": "input_text", "text": QUESTION}
    items = [
        {"type": "message", "role": "developer", "content": [{**part, "text": "Be brief."}]},
        {"type": "message", "role": "user", "content": [part]},
    ]
    *_, last = ask(
        serve().client(),
        instructions="You are a coding agent.",
        input=items,
        tools=[{**TOOL, "strict": False}],
        tool_choice="auto",
        parallel_tool_calls=True,
        reasoning={"effort": "medium", "summary": "auto"},
        store=False,
        stream=True,
        include=["reasoning.encrypted_content"],
        prompt_cache_key="thread",
        text={"verbosity": "medium"},
        extra_body={"client_metadata": {"installation": "id"}},
    )
    assert (last.type, last.response.output_text) == ("response.completed", BLUE)


def test_a_format_is_kept(serve):
    client = serve(ensemble(JOKE, JOKE)).client()
    parsed = client.responses.parse(model="specfuse", input="A joke?", text_format=Joke)
    assert parsed.output_parsed == Joke(**JOKE)
    loose = ask(client, text={"format": {"type": "json_object"}})
    assert json.loads(loose.output_text) == JOKE
    assert ask(serve().client(), text={"format": {"type": "text"}}).output_text == BLUE


def test_an_answer_that_is_cut_off_is_incomplete_and_says_why(serve):
    client = serve().client()
    cut = ask(client, max_output_tokens=3)
    assert cut.output_text == " ".join(BLUE.split()[:3])
    assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert cut.output[0].status == "incomplete"
    *_, last = ask(client, max_output_tokens=3, stream=True)
    assert (last.type, last.response.status) == ("response.incomplete", "incomplete")
    checked = ensemble("No.", checks=[checks.forbids("No")], on_failure="end")
    ended = ask(serve(checked).client())
    assert (ended.status, ended.incomplete_details.reason) == ("incomplete", "content_filter")


def test_a_refusal_is_a_part_of_a_complete_message(serve):
    client = serve(ensemble(ScriptedMember.refusal("I cannot help."))).client()
    (message,) = ask(client).output
    assert (message.content[0].type, message.content[0].refusal) == ("refusal", "I cannot help.")
    stream = ask(client, stream=True)
    refusal = "refusal.delta", "refusal.done"
    assert names(stream) == [*BEGIN, ITEM[0], PART[0], *refusal, PART[1], ITEM[1], "completed"]


def test_log_probabilities_are_included_if_asked_for(serve):
    client = serve().client()
    included = ask(client, include=["message.output_text.logprobs"])
    (part,) = included.output[0].content
    assert "".join(entry.token for entry in part.logprobs) == BLUE
    assert ask(client).output[0].content[0].logprobs == []


def test_a_failure_in_a_stream_is_its_last_event(serve):
    def failing():
        return serve(ensemble(ScriptedMember(BLUE, fails_in=3, error=RuntimeError("secret"))))

    *_, last = ask(failing().client(), stream=True)
    assert (last.type, last.response.status) == ("response.failed", "failed")
    assert "no member is left" in last.response.error.message
    assert "secret" not in last.response.error.message
    with pytest.raises(ValueError, match="no member is left"):
        list(langchain(failing()).stream(QUESTION))
    with pytest.raises(openai.InternalServerError, match="no member is left"):
        ask(serve(ensemble(ScriptedMember(BLUE, fails_in=1))).client(), stream=True)


@pytest.mark.parametrize(
    ("options", "param", "words"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id", "whole conversation"),
        ({"store": True}, "store", "send false"),
        ({"background": True}, "background", "send false"),
        ({"input": []}, "input", "for example"),
        ({"input": None}, "input", "for example"),
        ({"input": [{"role": "user", "content": 1}]}, "input[0]", "content"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0]", "item_reference"),
        ({"input": [{"type": []}]}, "input[0]", "endpoint takes"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]},
            "input[0]",
            "text and images",
        ),
        ({"input": [{"type": "function_call", "call_id": "c"}]}, "input[0]", "cannot be"),
        ({"tools": [{"type": "web_search"}]}, "tools", "web_search"),
        ({"tools": "all"}, "tools", "tools"),
        ({"max_output_tokens": 100_000}, "max_output_tokens", "ask for less"),
        ({"text": "json"}, "text", "object"),
        ({"messages": []}, "messages", "the options are"),
        ({"max_tokens": 5}, "max_tokens", "max_output_tokens"),
    ],
)
def test_what_the_endpoint_does_not_do_is_refused_with_advice(serve, options, param, words):
    with pytest.raises(openai.BadRequestError) as raised:
        ask(serve().client(), extra_body=options)
    assert raised.value.param == param
    assert words in str(raised.value) and "-> " in str(raised.value)


# --- langchain-openai -----------------------------------------------------------------------------


def langchain(endpoint):
    return ChatOpenAI(
        model="specfuse",
        base_url=f"{endpoint.url}/v1",
        api_key="none",
        http_client=endpoint.http(),
        max_retries=0,
        use_responses_api=True,
    )


def test_langchains_client_reads_text_calls_and_objects_whole_and_streamed(serve):
    remote = langchain(serve())
    answer = remote.invoke(QUESTION)
    assert answer.text == BLUE and answer.response_metadata["status"] == "completed"
    chunks = list(remote.stream(QUESTION))
    whole = sum(chunks[1:], chunks[0])
    assert (whole.text, whole.usage_metadata) == (BLUE, answer.usage_metadata)
    assert sum(bool(chunk.text) for chunk in chunks) > 2
    caller = langchain(serve(ensemble(CALL, CALL))).bind_tools([get_weather], strict=True)
    for message in (caller.invoke("Rome?"), _whole(caller.stream("Rome?"))):
        (call,) = message.tool_calls
        assert (call["name"], call["args"]) == ("get_weather", {"city": "Rome"}) and call["id"]
    for method, script in (
        ("json_schema", JOKE),
        ("function_calling", ScriptedMember.call("Joke", **JOKE)),
    ):
        typed = langchain(serve(ensemble(script, script)))
        assert typed.with_structured_output(Joke, method=method).invoke("A joke?") == Joke(**JOKE)
    blocks = langchain(serve(THINKING)).invoke(QUESTION).content_blocks
    assert [block["type"] for block in blocks] == ["reasoning", "text"]


def _whole(stream):
    first, *rest = stream
    return sum(rest, first)


@pytest.mark.parametrize("streaming", [False, True])
def test_an_agent_of_langchain_calls_a_tool_and_answers(serve, streaming):
    llm, queries = asked_with(user=CALL, tool="It is sunny.")
    model = langchain(serve(llm)).model_copy(update={"streaming": streaming})
    agent = create_agent(model, [get_weather], system_prompt="Use the tool.")
    messages = agent.invoke({"messages": [HumanMessage("Rome?")]})["messages"]
    assert [type(message) for message in messages] == [
        HumanMessage,
        AIMessage,
        ToolMessage,
        AIMessage,
    ]
    assert messages[-1].text == "It is sunny."
    assert [turn.role for turn in queries[-1].turns] == ["system", "user", "assistant", "tool"]
    assert queries[-1].turns[-1].text == "It is sunny in Rome."
