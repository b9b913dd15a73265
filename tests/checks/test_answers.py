"""Ready-made checks in answers of the chat model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from langchain_specfuse import CheckError, ScriptedMember, SpecFuseChatModel, checks
from tests.methods import in_method


def chat_model(*answers: str, **options: object) -> SpecFuseChatModel:
    members = [
        ScriptedMember(answer, name=name) for name, answer in zip("abcd", answers, strict=False)
    ]
    return SpecFuseChatModel(members=members, **in_method(**options))


WORDS = ("the", "sat", "on", "a", "mat.", "cat", "cats,", "catnip", "Cat!", "bobcat", "\n\nA")
TEXTS = st.lists(st.sampled_from(WORDS), min_size=1, max_size=14).map(" ".join)


@given(texts=st.lists(TEXTS, min_size=1, max_size=3), size=st.integers(1, 12))
def test_a_forbidden_word_is_in_no_chunk(texts, size):
    check = checks.forbids(r"(?i)\bcats?\b")
    llm = chat_model(*texts, checks=[check], segment_tokens=size, on_failure="end")
    shown = ""
    for chunk in llm.stream("?"):
        shown += chunk.text
        assert check.function(shown) is None
    if not any(map(check.function, texts)):
        assert shown == chat_model(*texts, segment_tokens=size).invoke("?").text


def test_an_answer_takes_its_facts_from_the_results_of_tools():
    call = {"name": "trains", "args": {}, "id": "1", "type": "tool_call"}
    conversation = [
        HumanMessage("When does the train leave?"),
        AIMessage("", tool_calls=[call]),
        ToolMessage('{"leaves": "2024-03-05T10:42"}', tool_call_id="1"),
    ]
    wrong, right = "It leaves at 10:24. Hurry!", "It leaves at 10:42. Hurry!"
    llm = chat_model(wrong, right, checks=[checks.grounded()])
    assert llm.invoke(conversation).text == right
    with pytest.raises(CheckError, match="10:24"):
        chat_model(wrong, checks=[checks.grounded()]).invoke(conversation)


def test_of_whole_answers_the_first_whose_code_passes_is_taken():
    def written(body: str) -> str:
        return f"```python\ndef double(n):\n    return {body}\n```"

    question = "Write double(n).\n>>> double(5)\n10"
    llm = chat_model(
        written("n ** 2"),
        written("n *"),
        written("2 * n"),
        checks=[checks.python()],
        segment="answer",
    )
    assert llm.invoke(question).text == written("2 * n")
    with pytest.raises(CheckError, match=r"double\(5\) gives 25, expected 10"):
        chat_model(written("n ** 2"), checks=[checks.python()], segment="answer").invoke(question)


def test_an_answer_that_is_no_valid_json_is_replaced():
    schema = {"type": "object", "required": ["town"]}
    llm = chat_model(
        "I do not know", '{"city": "Ulm"}', '{"town": "Ulm"}', checks=[checks.json_schema(schema)]
    )
    assert llm.invoke("?").text == '{"town": "Ulm"}'
