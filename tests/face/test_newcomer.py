"""What a newcomer tried, and what must come of it: nothing lost, and words that help."""

from __future__ import annotations

import pytest

from langchain_specfuse import ScriptedMember, SpecFuseChatModel
from langchain_specfuse.core.values import Failure
from langchain_specfuse.errors import EnsembleError, UsageError


class SmallContext(ScriptedMember):
    """Its context is full after so many segments."""

    def draft(self, jobs):
        full = Failure("overflow", "its context is full")
        return [full if len(job.answer) >= 2 else reply for job, reply in zip(jobs, super().draft(jobs), strict=True)]


def notes(error: BaseException) -> str:
    return "\n".join(getattr(error, "__notes__", []))


def test_an_answer_that_fills_every_context_ends_for_its_length():
    one, other = SmallContext("a b c d e f g h", name="one"), SmallContext("a b c d e f g h", name="other")
    llm = SpecFuseChatModel(members=[one, other], segment_tokens=2)
    answer = llm.invoke("count")
    assert answer.text == "a b c d"
    assert answer.response_metadata["finish_reason"] == "length"
    assert "".join(chunk.text for chunk in llm.stream("count")) == "a b c d"


def test_a_member_whose_context_is_full_leaves_and_the_other_goes_on():
    llm = SpecFuseChatModel(
        members=[SmallContext("a b c d e f", name="one"), ScriptedMember("a b c d e f", name="other")], segment_tokens=2
    )
    answer = llm.invoke("count")
    assert answer.text == "a b c d e f"
    assert answer.response_metadata["finish_reason"] == "stop"


def test_an_answer_that_came_too_late_tells_what_was_agreed():
    class Slow(ScriptedMember):
        def draft(self, jobs):
            if jobs[0].answer:
                import time

                time.sleep(0.5)
            return super().draft(jobs)

    llm = SpecFuseChatModel(members=[Slow("a b c d e f", name="slow")], segment_tokens=2, timeout=0.3)
    with pytest.raises(TimeoutError) as late:
        llm.invoke("count")
    assert late.value.text == "a b"


def test_a_lone_surrogate_is_refused_before_any_member_is_asked():
    member = ScriptedMember("hi", name="one")
    with pytest.raises(UsageError, match="not valid UTF-8 at character 3"):
        SpecFuseChatModel(members=[member]).invoke("hi\ud800")
    assert member.draft_calls == 0


@pytest.mark.parametrize("name", ["output_version", "streaming", "cache", "api_key"])
def test_what_a_model_is_made_with_is_not_called_unknown_for_a_call(name):
    with pytest.raises(UsageError, match=f"{name} is chosen when the chat model is made"):
        SpecFuseChatModel(members=[ScriptedMember("hi")]).invoke("q", **{name: "v1"})


def test_when_nobody_is_left_the_error_says_where_to_look():
    with pytest.raises(EnsembleError) as nobody:
        SpecFuseChatModel(members=[ScriptedMember(lambda query: str(1 / 0), name="one")]).invoke("q")
    assert ".failures" in notes(nobody.value)
