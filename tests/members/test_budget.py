"""max_calls and max_cost bound the requests of chat models in one answer, and nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest

from langchain_specfuse import (
    ChatModelMember,
    EnsembleError,
    Method,
    ScriptedMember,
    SpecFuseChatModel,
    UsageError,
)
from tests.methods import in_method

from .remote import until
from .test_chat_model import STORY, Talker, talker

RED = STORY.replace("blue", "red")
QUESTION = "Why is the sky blue?"


def asked(*models: Talker) -> int:
    return sum(len(model.asked) for model in models)


def answered(members: list[Any], **options: Any) -> tuple[str, dict[str, Any], str]:
    """Return (text, summary, finish reason)."""
    answer = SpecFuseChatModel(**in_method(members=members, segment_tokens=4, **options)).invoke(
        QUESTION
    )
    metadata = answer.response_metadata
    return answer.text, metadata["specfuse"], metadata["finish_reason"]


def test_at_the_bound_no_ballot_is_sent_and_the_writer_finishes_its_open_stream() -> None:
    writer, other = talker(), talker(script=RED)
    members = [
        ChatModelMember(model, name=name, price=(1, 2))
        for name, model in (("a", writer), ("b", other))
    ]
    text, summary, finish = answered(members, lead=None, max_calls=2)
    assert (text, finish) == (STORY, "stop") and asked(writer, other) == 2
    assert summary["exits"][0] | {"reason": ""} == {
        "member": "b",
        "kind": "budget",
        "round": 2,
        "reason": "",
    }
    assert summary["usage"]["a"] == {
        "requests": 1,
        "input_tokens": 5,
        "output_tokens": 19,
        "cost": pytest.approx((5 + 38) / 1e6),
        "estimated": True,
    }


def dear(name: str, **fields: Any) -> ChatModelMember:
    """A word costs a dollar."""
    return ChatModelMember(talker(**fields), name=name, price=(0, 1e6))


@pytest.mark.parametrize("lead", ["a", None])
def test_streams_are_closed_once_what_was_sent_has_cost_enough(
    lead: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    members = [dear("a"), dear("b", script=RED)]
    llm = SpecFuseChatModel(members=members, method=Method(segment_tokens=4), lead=lead, max_cost=6)
    with caplog.at_level("WARNING"):
        answer = llm.invoke(QUESTION)
    assert STORY.startswith(answer.text) and 2 <= len(answer.text.split()) <= 8
    assert answer.response_metadata["finish_reason"] == "length"
    assert asked(*(member.model for member in members)) == (1 if lead else 2)
    assert until(lambda: all(member.model.closed for member in members if member.model.asked))
    (warning,) = [record for record in caplog.records if "an answer was cut" in record.message]
    assert "max_cost=6" in warning.message
    used = answer.response_metadata["specfuse"]["usage"]
    assert used["a"]["estimated"]
    usage = answer.usage_metadata
    assert usage["output_tokens"] == sum(of["output_tokens"] for of in used.values()) >= 6


def test_a_local_reserve_goes_on_once_the_lead_has_cost_enough() -> None:
    members = [dear("a"), ScriptedMember(STORY, name="local")]
    text, summary, finish = answered(members, max_cost=6)
    assert (text, finish) == (STORY, "stop") and 0 < summary["shares"]["a"] < 1
    assert until(lambda: members[0].model.closed)


@pytest.mark.parametrize(
    ("bound", "tries"),
    [({}, 2), ({"max_calls": 1}, 1), ({"max_calls": 2}, 2), ({"max_cost": 1}, 1)],
)
def test_an_answer_in_another_form_is_asked_for_again_if_the_budget_allows_it(
    bound: dict[str, Any], tries: int
) -> None:
    member = dear("a", script="I do not know.")
    with pytest.raises(EnsembleError, match="its answer is not what was asked for"):
        SpecFuseChatModel(members=[member], **bound).invoke("Yes?", choice=["yes", "no"])
    assert asked(member.model) == tries


@pytest.mark.parametrize(("bound", "requests"), [(1, 3), (3, 3), (4, 9), (9, 9)])
def test_one_step_may_exceed_the_bound_and_no_other_follows_it(bound: int, requests: int) -> None:
    """Three members send three drafts, then two ballots each."""
    models = [talker(script=STORY.replace("blue", colour)) for colour in ("blue", "red", "green")]
    members = [ChatModelMember(model, name=name) for name, model in zip("abc", models, strict=True)]
    _, _, finish = answered(members, lead=None, max_calls=bound)
    assert (finish, asked(*models)) == ("stop", requests)


class Breaking(Talker):
    """Its connection breaks after a few words."""

    def _stream(self, *args: Any, **options: Any) -> Iterator[Any]:
        yield from islice(super()._stream(*args, **options), 6)
        raise ConnectionError("broke off")


def test_a_reserve_takes_over_with_the_last_request() -> None:
    lead, reserve = Breaking(asked=[], said=[], closed=[]), talker(way="instruct")
    members = [ChatModelMember(model, name=name) for name, model in (("a", lead), ("b", reserve))]
    text, summary, finish = answered(members, lead="a", max_calls=2)
    assert (text, finish) == (STORY, "stop")
    assert summary["usage"]["b"]["requests"] == asked(reserve) == 1


def test_members_in_this_process_go_on() -> None:
    hosted, local = talker(), ScriptedMember(RED, name="local")
    text, summary, finish = answered(
        [ChatModelMember(hosted, name="a"), local], lead=None, max_calls=1
    )
    assert (text, finish) == (RED, "stop") and asked(hosted) == 1
    assert [(departure["member"], departure["kind"]) for departure in summary["exits"]] == [
        ("a", "budget")
    ]


def test_a_lead_that_spent_the_budget_is_not_corrected_by_members_that_cost() -> None:
    lead, other = talker(), talker(script=RED)
    members = [ChatModelMember(model, name=name) for name, model in (("a", lead), ("b", other))]
    text, summary, _ = answered(members, lead="a", max_calls=1, method=Method(margin=0.5))
    assert text == STORY and asked(lead, other) == 1 and summary["exits"][0]["kind"] == "budget"


def test_if_no_member_can_continue_the_answer_ends_with_the_streamed_text() -> None:
    model = talker(script="The sky is blue today.", finish="length")
    text, summary, finish = answered([ChatModelMember(model, name="a")], max_calls=1)
    assert (text, finish, asked(model), summary["exits"]) == (model.script, "length", 1, [])


@pytest.mark.parametrize(("bound", "requests"), [({}, 4), ({"max_calls": 2}, 2)])
def test_whole_answers_keep_to_the_bound_and_each_sample_is_a_request(
    bound: dict[str, int], requests: int
) -> None:
    models = [talker(script=f"#### {number}", way="restart") for number in (1, 2)]
    members = [ChatModelMember(model, name=name) for name, model in zip("ab", models, strict=True)]
    text, summary, _ = answered(
        members, segment="answer", result="number", samples=2, lead=None, **bound
    )
    assert text == "#### 1" and asked(*models) == requests
    assert [departure["kind"] for departure in summary["exits"]] == ["budget"] * (4 - requests)


@pytest.mark.parametrize(
    "verifier",
    [talker(), ChatModelMember(talker(), name="m"), "openai:m"],
    ids=range(3),
)
def test_a_bound_on_costs_needs_the_price_of_every_chat_model(verifier: Any) -> None:
    with pytest.raises(UsageError, match=r"max_cost.*price of") as error:
        SpecFuseChatModel(
            members=[ScriptedMember("a", name="x")],
            method=Method(verifiers=[verifier]),
            max_cost=0.01,
        )
    assert "price=(dollars per million input tokens" in error.value.notes[0]


def test_a_bound_on_costs_may_be_given_with_the_question() -> None:
    free = SpecFuseChatModel(members=[ChatModelMember(talker(), name="a", price=(0, 0))])
    assert free.invoke(QUESTION, max_cost=0.01).text == STORY
    with pytest.raises(UsageError, match="not the price of"):
        SpecFuseChatModel(members=[talker()]).invoke(QUESTION, max_cost=0.01)


@pytest.mark.parametrize("price", [3, (1,), (1, -2), (1, math.inf), ("a", "b")])
def test_a_price_is_two_numbers(price: Any) -> None:
    with pytest.raises(UsageError, match=r"price.*two numbers"):
        ChatModelMember(talker(), price=price)
