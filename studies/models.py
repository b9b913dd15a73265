"""The models of the studies: the demo's weights, which llama.cpp reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.language_models.chat_models import generate_from_stream
from langchain_core.messages import AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from metered import Meter

from langchain_specfuse import LlamaCppMember, SpecFuseChatModel
from langchain_specfuse.demo import GEMMA, QWEN, SMOLLM2, DemoFile, file_of

MODELS = {"qwen": QWEN, "smollm2": SMOLLM2, "gemma": GEMMA}
"""The lead comes first."""


def member_of(model: DemoFile, name: str = "") -> LlamaCppMember:
    """A member with these weights, named as in the demo by default."""
    return LlamaCppMember(file_of(model), name=name or model.name, **model.options)


class MessagesOnly(BaseChatModel):
    """A chat model that reads messages and writes a text, as hosted ones do: it cannot exclude a
    token, and an assistant's message at the end is complete. A member writes its text."""

    member: Any
    meter: Meter
    max_tokens: int

    @property
    def _llm_type(self) -> str:
        return "messages only"

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: Any = None,
        **given: Any,
    ) -> Iterator[ChatGenerationChunk]:
        self.meter.request(next(str(one.content) for one in messages if one.type == "human"))
        sampling = {key: given[key] for key in ("temperature", "seed") if key in given}
        model = SpecFuseChatModel(members=[self.member], max_tokens=self.max_tokens, cache=False)
        for chunk in model.stream(messages, **sampling):
            reason = chunk.response_metadata.get("finish_reason")
            yield ChatGenerationChunk(
                message=AIMessageChunk(
                    content=chunk.text,
                    usage_metadata=chunk.usage_metadata,
                    response_metadata={"finish_reason": reason} if reason else {},
                )
            )

    def _generate(self, *arguments: Any, **given: Any) -> ChatResult:
        return generate_from_stream(self._stream(*arguments, **given))
