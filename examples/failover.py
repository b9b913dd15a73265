"""Survive a provider's failure: a chat model breaks off in mid-sentence, and another one continues.

Runs without a network. The first model stands for a provider whose connection breaks; in your code
it is a ChatOpenAI or a ChatAnthropic, and the spare is another provider or a model of your own.

    pip install langchain-specfuse
    python examples/failover.py
"""

from collections.abc import Iterator
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult

from langchain_specfuse import (
    ChatModelMember,
    Method,
    ScriptedMember,
    SpecFuseCallbackHandler,
    SpecFuseChatModel,
)

ANSWER = "The sky is blue because the air scatters blue light more than red light."


class BreaksOff(BaseChatModel):
    """Streams the first half of the answer, then loses its connection."""

    @property
    def _llm_type(self) -> str:
        return "breaks-off"

    def _generate(self, *args: Any, **options: Any) -> ChatResult:
        raise NotImplementedError

    def _stream(self, messages: list[BaseMessage], *args: Any, **options: Any) -> Iterator[Any]:
        for word in ANSWER.split()[:7]:
            yield ChatGenerationChunk(message=AIMessageChunk(f"{word} "))
        raise ConnectionError("peer closed connection")


llm = SpecFuseChatModel(
    members=[ChatModelMember(BreaksOff(), name="first"), ScriptedMember(ANSWER, name="spare")],
    lead="first",
    method=Method(segment_tokens=3),
)

report = SpecFuseCallbackHandler(
    on_exit=lambda event: print(f"\n   [{event.member} left: {event.reason}]"),
)
for question in ("Why is the sky blue?", "Once more: why is the sky blue?"):
    for chunk in llm.stream(question, {"callbacks": [report]}):
        print(chunk.text, end="", flush=True)
    print()
# The second answer begins with the spare member: the first one pauses for 10 s.
