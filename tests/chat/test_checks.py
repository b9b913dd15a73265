"""The user's checks through the chat model: text, calls, objects and reasoning."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from pydantic import BaseModel

from langchain_specfuse import (
    ChatModelMember,
    CheckError,
    Method,
    ScriptedMember,
    SpecFuseCallbackHandler,
    SpecFuseChatModel,
    checks,
)
from langchain_specfuse.core.checks import Check
from langchain_specfuse.core.values import REFUSAL, Draft, Failure
from tests.members.calling_model import CallingModel
from tests.methods import in_method


def forbids(pattern):
    def check(text):
        match = re.search(pattern, text)
        return f"says {match[0]!r}" if match else None

    return check


def llm_of(*scripts, **options):
    members = [ScriptedMember(script, name=f"m{i}") for i, script in enumerate(scripts)]
    return SpecFuseChatModel(members=members, **in_method(**options))


def stream(llm, **options):
    return [chunk.text for chunk in llm.stream("Hello?", **options)]


SAFE = "We hope that the old machine works today, and that it will work tomorrow too."
UNSAFE = SAFE.replace("hope", "guarantee")


@given(
    words=st.lists(
        st.sampled_from(["cat", "category", "cats", "dog", "a", "1984", "19"]), min_size=1
    ),
    segment=st.integers(1, 7),
)
@hypothesis(max_examples=40, deadline=None)
def test_a_forbidden_word_is_never_visible_in_any_chunk(words, segment):
    script = " ".join(words)
    llm = llm_of(script, segment_tokens=segment, checks=[forbids(r"\b(cat|19)\b")], redrafts=1)
    shown, error = "", None
    try:
        for chunk in llm.stream("x"):
            shown += chunk.text
            assert not re.search(r"\b(cat|19)\b", shown)
    except CheckError as raised:
        error = raised
    if error is None:
        assert shown == script
    else:
        assert re.search(r"\b(cat|19)\b", script)
        assert error.text == shown
        assert script.startswith(shown)


def test_another_members_draft_takes_the_place_of_a_refused_one():
    message = llm_of(UNSAFE, SAFE, checks=[forbids("guarantee")]).invoke("x")
    assert message.text == SAFE
    counts = message.response_metadata["specfuse"]["checks"]["check"]
    assert counts["rejected"] >= 1
    assert counts["passed"] >= 1


def test_the_same_chunks_come_whether_a_check_that_passes_is_there_or_not_once_text_is_complete():
    plain, checked = llm_of(UNSAFE, SAFE), llm_of(UNSAFE, SAFE, checks=[lambda text: None])
    assert "".join(stream(checked)) == "".join(stream(plain))


def test_checks_can_be_chosen_for_a_call_and_left_out():
    llm = llm_of(UNSAFE, SAFE)
    assert llm.invoke("x", checks=[forbids("guarantee")]).text == SAFE
    strict = llm_of(UNSAFE, SAFE, checks=[forbids("guarantee")])
    assert strict.invoke("x", checks=[]).text == llm.invoke("x").text


def test_the_end_of_an_answer_that_failed_says_so():
    llm = llm_of("It works. We guarantee it.", checks=[forbids("guarantee")], on_failure="end")
    message = llm.invoke("x")
    assert message.text == "It works. We"
    assert message.response_metadata["finish_reason"] == "check"


def test_every_refused_draft_is_an_event_also_those_of_an_answer_that_fails():
    seen = []
    handler = SpecFuseCallbackHandler(on_rejected=seen.append)
    llm = llm_of("guarantee", checks=[forbids("guarantee")], redrafts=2)
    with pytest.raises(CheckError):
        llm.invoke("x", {"callbacks": [handler]})
    assert [(event.member, event.text) for event in seen] == [("m0", "guarantee")] * 3


# --- tools and objects ----------------------------------------------------------------------------


@tool
def pay(to: str, amount: int) -> str:
    """Pay somebody."""
    return f"paid {amount} to {to}"


def at_most_100(text, context):
    for call in context.tool_calls:
        if call["args"].get("amount", 0) > 100:
            return "pays too much"
    return None


LIMIT = Check(at_most_100, "at_most_100", at="call")
PAYS = {
    amount: "I pay. " + ScriptedMember.call("pay", to="Bob", amount=amount) for amount in (50, 500)
}


def test_a_call_is_checked_before_any_part_of_it_is_emitted():
    llm = llm_of(PAYS[500], PAYS[50], checks=[LIMIT], lead=None).bind_tools([pay])
    chunks = list(llm.stream("x"))
    arguments = "".join(piece["args"] for chunk in chunks for piece in chunk.tool_call_chunks)
    assert arguments == '{"to": "Bob", "amount": 50}'
    emitted = []
    chunks = llm_of(PAYS[500], checks=[LIMIT]).bind_tools([pay]).stream("x")
    with pytest.raises(CheckError) as raised:
        emitted.extend(chunk.tool_call_chunks for chunk in chunks)
    assert not any(emitted)
    assert raised.value.text == "I pay. "


@pytest.mark.parametrize("size", [1, 2, 3, 20])
def test_no_part_of_a_refused_call_is_emitted_where_the_answer_ends_before_it(size):
    llm = llm_of(PAYS[500], checks=[LIMIT], redrafts=1, on_failure="end", segment_tokens=size)
    message = llm.bind_tools([pay]).invoke("x")
    assert message.text == "I pay. "
    assert not (message.tool_calls or message.invalid_tool_calls)
    assert message.response_metadata["finish_reason"] == "check"


@pytest.mark.parametrize("options", [{}, {"segment": "answer"}])
def test_a_check_of_the_whole_answer_knows_its_calls(options):
    rule = Check(at_most_100, "at_most_100", at="answer")
    llm = llm_of(PAYS[500], PAYS[50], checks=[rule], lead="m0", redrafts=1, **options)
    (call,) = llm.bind_tools([pay]).invoke("x").tool_calls
    assert call["args"]["amount"] == 50


def test_a_call_that_is_written_as_plain_json_is_checked_too():
    lone = '{"name": "pay", "arguments": {"to": "Bob", "amount": 500}}'
    llm = llm_of(lone, "No, thanks.", checks=[LIMIT], lead=None).bind_tools([pay])
    message = llm.invoke("x")
    assert message.tool_calls == []
    assert message.text == "No, thanks."


def test_checks_of_text_see_no_calls():
    asked = []
    llm = llm_of(PAYS[50], checks=[lambda text: asked.append(text)]).bind_tools([pay])
    assert llm.invoke("x").tool_calls
    assert all("{" not in text for text in asked)
    assert asked[-1] == "I pay. "


def test_a_turn_that_calls_a_tool_is_not_the_final_answer_of_a_required_pattern():
    llm = llm_of(PAYS[50], checks=[checks.requires("Sources:")], redrafts=0).bind_tools([pay])
    assert llm.invoke("x").tool_calls
    with pytest.raises(CheckError):
        llm_of("I paid.", checks=[checks.requires("Sources:")], redrafts=0).invoke("x")


class Person(BaseModel):
    name: str
    city: str


def test_an_object_stays_valid_where_one_member_is_refused():
    llm = llm_of(
        {"name": "Ann", "city": "Paris"},
        {"name": "Bob", "city": "Rome"},
        checks=[forbids("Ann")],
        lead=None,
    )
    assert llm.with_structured_output(Person).invoke("x").name == "Bob"


@pytest.mark.parametrize(("at", "name"), [("segment", "Ann"), ("answer", "Bob")])
def test_another_member_writes_the_object_where_the_first_fails_at_its_end(at, name):
    llm = llm_of(
        {"name": "Ann", "city": "Paris"},
        {"name": name, "city": "Rome"},
        checks=[Check(forbids("Paris"), "rule", at=at)],
        lead="m0",
        redrafts=1,
    )
    person = llm.with_structured_output(Person).invoke("x")
    assert (person.name, person.city) == (name, "Rome")


def test_the_result_need_not_be_named_if_whole_answers_are_checked():
    llm = llm_of(
        "41",
        "42",
        segment="answer",
        checks=[Check(lambda t: None if t == "42" else "no", "is", at="answer")],
    )
    assert llm.invoke("x").text == "42"


# --- reasoning ------------------------------------------------------------------------------------


class Thinker(ScriptedMember):
    """Reasons before its first draft."""

    def draft(self, jobs):
        drafts = super().draft(jobs)
        return [
            draft if job.answer else replace(draft, thought="They want a guarantee.")
            for job, draft in zip(jobs, drafts, strict=True)
        ]


@pytest.mark.parametrize("rule", [forbids("guarantee"), forbids("nothing")])
def test_reasoning_is_shown_only_if_it_passes(rule):
    llm = SpecFuseChatModel(members=[Thinker(SAFE)], checks=[rule], reasoning=True)
    message = llm.invoke("x")
    thought = message.additional_kwargs.get("reasoning_content", "")
    assert message.text == SAFE
    assert thought == ("" if rule("guarantee") else "They want a guarantee.")


def test_a_check_that_fails_on_reasoning_ends_the_answer_with_what_was_streamed():
    def rule(text):
        return 1 / ("want" not in text) and None

    llm = SpecFuseChatModel(members=[Thinker(SAFE)], checks=[rule], reasoning=True)
    streamed = []
    with pytest.raises(CheckError) as raised:
        streamed.extend(chunk.text for chunk in llm.stream("x"))
    assert raised.value.text == "".join(streamed)


# --- the context of a check -----------------------------------------------------------------------


def test_a_check_with_a_second_required_argument_gets_the_context():
    seen = []

    def check(text, context):
        seen.append((text, context))

    def with_default(text, context="nothing"):
        assert context == "nothing"

    llm = llm_of(SAFE, checks=[check, with_default], segment_tokens=4)
    llm.invoke("Hello?", {"metadata": {"user": "ann"}})
    text, context = seen[-1]
    assert text == SAFE
    assert context.ended
    assert not seen[0][1].ended
    assert text.endswith(context.draft)
    assert context.author == "m0"
    assert [message.text for message in context.messages] == ["Hello?"]
    assert context.config["metadata"]["user"] == "ann"


def test_messages_of_the_context_are_a_sequence():
    shown = []

    def check(text, context):
        messages = context.messages
        last = messages[-1].text
        rest = [message.text for message in messages[:-1]]
        shown[:] = [len(messages), last, rest, messages[0] is messages[0]]

    messages = [HumanMessage("A?"), AIMessage("B."), HumanMessage("C?")]
    llm_of(SAFE, checks=[check]).invoke(messages)
    assert shown == [3, "C?", ["A?", "B."], True]


# --- whole answers --------------------------------------------------------------------------------


class Moody(ScriptedMember):
    """Refuses the first time that it is asked, and writes its script after that."""

    def draft(self, jobs):
        drafts = super().draft(jobs)
        if self.draft_calls > 1:
            return drafts
        return [Failure(REFUSAL, "No.") for _ in jobs]


@pytest.mark.parametrize(
    ("on_failure", "text"), [("keep", "We guarantee it."), ("end", ""), ("raise", None)]
)
def test_whole_answers_may_be_refused_by_members_and_by_checks(on_failure, text):
    llm = SpecFuseChatModel(
        members=[Moody("We guarantee it.")],
        checks=[forbids("guarantee")],
        method=Method(segment="answer", samples=2),
        on_failure=on_failure,
    )
    if text is None:
        with pytest.raises(CheckError):
            llm.invoke("x")
        return
    assert llm.invoke("x").text == text


def test_a_member_that_refuses_is_asked_for_all_samples_of_whole_answers():
    refuses = ScriptedMember(ScriptedMember.refusal("No."))
    llm = SpecFuseChatModel(
        members=[refuses], checks=[forbids("x")], method=Method(segment="answer", samples=3)
    )
    message = llm.invoke("x")
    assert message.additional_kwargs["refusal"] == "No."
    assert refuses.draft_calls == 3


class Slow(ScriptedMember):
    """Writes its characters one by one, and ends the answer in a draft without text."""

    def draft(self, jobs):
        return [self._character(job) for job in jobs]

    def _character(self, job):
        at = len("".join(segment.text for segment in job.answer))
        text = self.answer[at : at + 1]
        return Draft(text, not text, (at,) * len(text))


def test_a_check_learns_of_an_end_without_new_text():
    def ends_with_a_full_stop(text, context):
        return "no full stop" if context.ended and text[-1] != "。" else None

    for script, finish in (("天空。", "stop"), ("天空", "check")):
        llm = SpecFuseChatModel(
            members=[Slow(script)], checks=[ends_with_a_full_stop], on_failure="end"
        )
        message = llm.invoke("x")
        assert message.text == script
        assert message.response_metadata["finish_reason"] == finish


@pytest.mark.parametrize("options", [{}, {"segment": "answer"}, {"refusals": "any"}])
@pytest.mark.parametrize("rule", [forbids("guarantee"), forbids("nothing")])
def test_the_text_of_a_refusal_is_shown_only_if_it_passes(rule, options):
    refuses = ScriptedMember(ScriptedMember.refusal("I cannot guarantee that."))
    llm = SpecFuseChatModel(members=[refuses], checks=[rule], **in_method(**options))
    chunks = list(llm.stream("x"))
    shown = "" if rule("guarantee") else "I cannot guarantee that."
    message = llm.invoke("x")
    assert message.additional_kwargs["refusal"] == shown
    assert message.response_metadata["finish_reason"] == "refusal"
    assert ("I cannot guarantee that." in repr(chunks)) == bool(shown)


# --- members that cannot write another draft ------------------------------------------------------


def hosted_once() -> ChatModelMember:
    """A chat model that writes a text that is refused, and starts over instead of continuing it."""
    model = CallingModel(replies=[UNSAFE, "The offer is a good one."], asked=[])
    return ChatModelMember(model, name="hosted")


@pytest.mark.parametrize("calls", [None, 1])
def test_a_chat_model_alone_does_what_on_failure_says_where_it_cannot_go_on(calls):
    """It cannot continue a text that was cut, and a further request may cost too much."""
    options = {"checks": [forbids("guarantee")], "max_calls": calls, "segment_tokens": 4}
    ended = SpecFuseChatModel(members=[hosted_once()], **in_method(**options)).invoke(
        "x", on_failure="end"
    )
    assert ended.text.rstrip() == "We"
    assert ended.response_metadata["finish_reason"] == "check"
    streamed = []
    llm = SpecFuseChatModel(members=[hosted_once()], **in_method(**options))
    with pytest.raises(CheckError, match="hosted") as raised:
        streamed.extend(chunk.text for chunk in llm.stream("x"))
    assert raised.value.text == "".join(streamed)


@pytest.mark.parametrize("calls", [None, 1])
def test_where_a_chat_model_cannot_go_on_the_error_advises_only_what_can_help(calls):
    options = {"checks": [forbids("guarantee")], "max_calls": calls, "segment_tokens": 4}
    with pytest.raises(CheckError) as raised:
        SpecFuseChatModel(members=[hosted_once()], **in_method(**options)).invoke("x", redrafts=20)
    assert "other members" not in str(raised.value), "the text is its own"
    (advice,) = raised.value.notes
    assert "redrafts" not in advice, "no draft was tried again"
    assert ".gguf" in advice and "on_failure='end'" in advice
    if calls is None:
        assert "hosted (error): it cannot continue a given text" in str(raised.value)
    spare = ScriptedMember(SAFE, name="spare")
    helped = SpecFuseChatModel(
        members=[hosted_once(), spare], lead="hosted", **in_method(**options)
    )
    message = helped.invoke("x", redrafts=0)
    assert "guarantee" not in message.text and message.response_metadata["finish_reason"] == "stop"


def test_where_no_whole_answer_passes_the_error_advises_more_answers_and_not_redrafts():
    llm = llm_of(UNSAFE, UNSAFE, segment="answer", checks=[forbids("guarantee")])
    with pytest.raises(CheckError) as raised:
        llm.invoke("x")
    (advice,) = raised.value.notes
    assert "samples=" in advice and "redrafts" not in advice and "on_failure='end'" in advice
