"""Text that was withdrawn is in no count, and rejected text is in no message."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from langchain_specfuse import (
    CheckError,
    Method,
    ScriptedMember,
    SpecFuseChatModel,
    TraceCallbackHandler,
    checks,
)
from langchain_specfuse.chat.chunks import AnswerChunks
from langchain_specfuse.chat.report import Summary
from langchain_specfuse.core.round import Rejection, Round
from langchain_specfuse.core.values import Draft, Segment

from .conftest import joined

PROMISE = Rejection("bob", " We guarantee it.", "no_promises", "promises something", kept=3)


def a_round(number: int, words: list[str], **more: Any) -> Round:
    """A round in which ann wrote these words."""
    text = "".join(words)
    ends = [len("".join(words[: at + 1])) for at in range(len(words))]
    draft = Draft(
        text, tokens=tuple(range(len(words))), ends=tuple(ends), logprobs=(-0.5,) * len(words)
    )
    return Round(
        number=number,
        text=more.pop("text", text),
        segment=Segment(text),
        winner="ann",
        drafts={"ann": draft},
        scores={},
        votes={},
        totals={"ann": 1.0},
        rewards={},
        weights_before={"ann": 1.0},
        weights={"ann": 1.0},
        **more,
    )


def message_of(*rounds: Round, checks: tuple[str, ...] = (), **options: Any) -> Any:
    """The message that these rounds make."""
    summary = Summary(["ann"], checks)
    chosen = {"v1": False, "seed": None, "splitter": None, "reasoning": False, "logprobs": True}
    chunks = AnswerChunks(summary, "ann", **{**chosen, **options})
    made = []
    for item in rounds:
        summary.add(item)
        made += [chunk.message for chunk in chunks.of(item)]
    return joined(made)


def test_tokens_that_were_withdrawn_are_discarded() -> None:
    held = a_round(2, [" We", " promise"], text="")
    fixed = a_round(3, [" hope", "."], withdrawn=" promise", text=" We hope.", finish="stop")
    message = message_of(a_round(1, ["Yes."]), held, fixed)
    assert message.text == "Yes. We hope."
    usage = message.usage_metadata
    assert usage["output_tokens"] == 4
    assert usage["output_token_details"]["discarded"] == 1
    tokens = [token["token"] for token in message.response_metadata["logprobs"]["content"]]
    assert tokens == ["Yes.", " We", " hope", "."]


def test_an_answer_that_a_check_ended_has_no_tokens_behind_its_end() -> None:
    last = a_round(2, [" We", " promise"], text=" We", finish="check")
    message = message_of(a_round(1, ["Yes."]), last)
    assert message.text == "Yes. We"
    assert message.response_metadata["finish_reason"] == "check"
    tokens = [token["token"] for token in message.response_metadata["logprobs"]["content"]]
    assert tokens == ["Yes.", " We"]


# --- the message ----------------------------------------------------------------------------------


def test_the_message_has_counts_and_reasons_and_no_rejected_text() -> None:
    rounds = []
    for number in range(1, 9):
        rejection = replace(PROMISE, reason=f"reason {number % 7}")
        counts = {"no_promises": {"passed": 1, "rejected": 1}}
        rounds.append(a_round(number, [" a"], rejected=(rejection,), checks=counts))
    rounds.append(a_round(9, ["."], finish="stop"))
    message = message_of(*rounds, checks=("no_promises", "lowercase"))
    reasons = [f"reason {number}" for number in range(1, 6)]
    assert message.response_metadata["specfuse"]["checks"] == {
        "no_promises": {"passed": 8, "rejected": 8, "reasons": reasons},
        "lowercase": {"passed": 0, "rejected": 0, "reasons": []},
    }
    assert "guarantee" not in str(message)


def test_without_checks_the_message_says_nothing_about_them() -> None:
    message = message_of(a_round(1, ["Yes."], finish="stop"))
    assert "checks" not in message.response_metadata["specfuse"]


def test_drafts_that_were_drawn_again_are_drafted_and_discarded() -> None:
    again = Rejection("ann", " We promise", "no_promises", "promises", tokens=2)
    cut = Rejection("ann", " We hope to promise", "no_promises", "promises", kept=8, tokens=4)
    fixed = a_round(1, [" We", " hope"], rejected=(again, again, cut), finish="stop")
    details = message_of(fixed).usage_metadata["output_token_details"]
    assert (details["drafted"], details["discarded"]) == (8, 6)


# --- whole answers of the loop --------------------------------------------------------------------

WORDS = st.lists(
    st.sampled_from(["so", "bad", "good", "it", "is.", "Yes,"]), min_size=1, max_size=9
)


@settings(max_examples=30)
@given(
    texts=st.lists(WORDS.map(" ".join), min_size=1, max_size=3),
    place=st.sampled_from(["segment", "sentence", "line", "answer"]),
    how=st.sampled_from(
        [
            *(("draft", "raise"), ("draft", "end")),
            *(("answer", "raise"), ("answer", "end"), ("answer", "keep")),
        ]
    ),
    size=st.integers(1, 5),
)
def test_all_counts_of_an_answer_agree(
    texts: list[str], place: Any, how: tuple[str, str], size: int
):
    members = [ScriptedMember(text, name=f"m{at}") for at, text in enumerate(texts)]
    llm = SpecFuseChatModel(
        members=members,
        method=Method(segment_tokens=size, segment=how[0]),
        checks=[checks.at(place, checks.forbids("bad"))],
        on_failure=how[1],
    )
    recorder = TraceCallbackHandler()
    config = {"callbacks": [recorder]}
    try:
        message = joined(list(llm.stream("Well?", config, logprobs=True)))
    except CheckError:
        return
    rounds = recorder.trace.rounds
    assert message.text == recorder.trace.answer
    usage = message.usage_metadata
    details = usage["output_token_details"]
    assert details["drafted"] - details["discarded"] == usage["output_tokens"]
    assert details["discarded"] >= 0
    tokens = message.response_metadata["logprobs"]["content"]
    assert "".join(token["token"] for token in tokens) == message.text
    standing = ""
    for item in rounds:
        assert standing.endswith(item["withdrawn"])
        standing = standing.removesuffix(item["withdrawn"]) + item["segment"]
    assert standing.startswith(message.text)
    rejected = sum(len(item["rejected"]) for item in rounds)
    counted = message.response_metadata["specfuse"]["checks"]["forbids('bad')"]
    assert (rejected > 0) <= (counted["rejected"] > 0)
