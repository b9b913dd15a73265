"""What ``usage_metadata`` says was read from a cache: the part of a prompt that some earlier query had read."""

from __future__ import annotations

import pytest

from langchain_specfuse import SpecFuseChatModel

tiny = pytest.importorskip("tests.members.tiny")
STORY = "The sky is blue because the air scatters blue light more than red light. " * 8


def usage_of(llm: SpecFuseChatModel, *messages: tuple[str, str]) -> tuple[int, int]:
    """(input tokens, those of them that were read from a cache)."""
    usage = llm.invoke(list(messages)).usage_metadata
    assert usage
    return usage["input_tokens"], usage["input_token_details"]["cache_read"]


@pytest.mark.parametrize("arch", ["llama", "gemma3", "qwen3-next"])
def test_the_next_turn_tells_what_of_its_prompt_was_not_read_again(arch: str) -> None:
    llm = SpecFuseChatModel(members=[tiny.member(arch, 1), tiny.member("phi3", 1)], max_tokens=8, segment_tokens=4)
    history = [("user", STORY + "Why?")]
    first, found = usage_of(llm, *history)
    assert found == 0
    second, found = usage_of(llm, *history, ("assistant", "So it is."), ("user", "And then?"))
    assert first * 0.9 < found < second
    assert usage_of(llm, *history) == (first, first)


def test_a_thought_is_no_reason_to_say_that_its_prompt_was_known() -> None:
    opens = "{% for m in messages %}{{ m.role }}: {{ m.content }}\\n{% endfor %}assistant: <think>\\n"
    member = tiny.member("llama", 1, chat_template=opens, thinking_tokens=6)
    llm = SpecFuseChatModel(members=[member], max_tokens=8)
    assert usage_of(llm, ("user", STORY))[1] == 0
    size, found = usage_of(llm, ("user", STORY))
    assert found == size


def test_without_a_prefix_cache_there_is_nothing_to_read_from() -> None:
    llm = SpecFuseChatModel(members=[tiny.member("llama", 1, prefix_cache=False)], max_tokens=8)
    assert [usage_of(llm, ("user", STORY))[1] for _ in range(2)] == [0, 0]


def test_each_of_a_batch_tells_its_own() -> None:
    llm = SpecFuseChatModel(members=[tiny.member("llama", 1)], max_tokens=8)
    usage_of(llm, ("user", STORY))
    told = llm.batch([STORY, "Something else is asked, with as many words as are worth to keep. " * 8])
    found = [message.usage_metadata["input_token_details"]["cache_read"] for message in told]
    assert found[0] == told[0].usage_metadata["input_tokens"] > 0
    assert found[1] == 0
