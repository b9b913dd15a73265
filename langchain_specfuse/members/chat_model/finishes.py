"""Why a chat model's reply ends: the finish reasons of all providers, in one table.

A reply is complete, has reached a limit of its length, is refused or withheld, or has broken off.
LangChain's integrations pass on their provider's reason unchanged. A reason that is not in the
table counts as broken off, because a text that may be incomplete must not end an answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

Finish: TypeAlias = Literal["stop", "length", "refusal", "broken"]


@dataclass(frozen=True, slots=True)
class Reasons:
    """The finish reasons of a provider, in lower case."""

    provider: str
    source: str
    """The page that lists them."""
    stop: Sequence[str] = ()
    """The reply is complete, or ends with calls of tools."""
    length: Sequence[str] = ()
    refusal: Sequence[str] = ()
    """The model refused, or a filter of the provider withheld the rest."""
    broken: Sequence[str] = ()


REASONS: Sequence[Reasons] = (
    Reasons(
        "OpenAI",
        "https://platform.openai.com/docs/api-reference/chat/object",
        stop=("stop", "tool_calls", "function_call"),
        length=("length",),
        refusal=("content_filter",),
    ),
    Reasons(
        "OpenAI's Responses API",
        "https://platform.openai.com/docs/api-reference/responses/object",
        stop=("completed",),
        length=("max_output_tokens", "incomplete"),
        refusal=("content_filter",),
        broken=("failed", "cancelled"),
    ),
    Reasons(
        "Azure OpenAI",
        "https://learn.microsoft.com/azure/ai-foundry/openai/concepts/content-filter",
        stop=("stop", "tool_calls", "function_call"),
        length=("length",),
        refusal=("content_filter",),
    ),
    Reasons(
        "Anthropic",
        "https://platform.claude.com/docs/en/build-with-claude/handling-stop-reasons",
        # A paused turn goes on when the caller sends it back, as after the call of a tool.
        stop=("end_turn", "stop_sequence", "tool_use", "pause_turn"),
        length=("max_tokens", "model_context_window_exceeded"),
        refusal=("refusal",),
    ),
    Reasons(
        "Gemini",
        "https://ai.google.dev/api/generate-content#FinishReason",
        stop=("stop",),
        length=("max_tokens",),
        refusal=(
            *("safety", "recitation", "blocklist", "prohibited_content", "spii"),
            *("image_safety", "image_prohibited_content", "image_recitation"),
        ),
        broken=(
            *("language", "other", "image_other", "no_image"),
            *("malformed_function_call", "malformed_response", "missing_thought_signature"),
            *("unexpected_tool_call", "too_many_tool_calls"),
        ),
    ),
    Reasons(
        "Vertex AI, besides those of Gemini",
        "https://docs.cloud.google.com/dotnet/docs/reference/Google.Cloud.AIPlatform.V1/latest/"
        "Google.Cloud.AIPlatform.V1.Candidate.Types.FinishReason",
        refusal=("model_armor",),
    ),
    Reasons(
        "Mistral",
        "https://docs.mistral.ai/api",
        stop=("stop", "tool_calls"),
        length=("length", "model_length"),
        broken=("error",),
    ),
    Reasons(
        "Bedrock",
        "https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_MessageStopEvent.html",
        stop=("end_turn", "stop_sequence", "tool_use"),
        length=("max_tokens", "model_context_window_exceeded"),
        refusal=("guardrail_intervened", "content_filtered"),
        broken=("malformed_model_output", "malformed_tool_use"),
    ),
    Reasons(
        "Cohere",
        "https://docs.cohere.com/reference/chat",
        stop=("complete", "stop_sequence", "tool_call"),
        length=("max_tokens",),
        broken=("error", "timeout"),
    ),
    Reasons(
        "Ollama",
        "https://github.com/ollama/ollama/blob/main/docs/api.md",
        stop=("stop",),
        length=("length",),
        broken=("load", "unload"),  # of a request that generates nothing
    ),
    Reasons(
        "vLLM",
        "https://github.com/vllm-project/vllm/blob/main/vllm/v1/engine/__init__.py",
        stop=("stop", "tool_calls"),
        length=("length",),
        broken=("abort", "error", "repetition"),
    ),
    Reasons(
        "OpenRouter",
        "https://openrouter.ai/docs/api-reference/overview#finish-reason",
        stop=("stop", "tool_calls"),
        length=("length",),
        refusal=("content_filter",),
        broken=("error",),
    ),
    Reasons(
        "DeepSeek",
        "https://api-docs.deepseek.com/api/create-chat-completion",
        stop=("stop", "tool_calls"),
        length=("length",),
        refusal=("content_filter",),
        broken=("insufficient_system_resource", "aborted"),
    ),
    Reasons(
        "Zhipu",
        "https://docs.bigmodel.cn/api-reference",
        stop=("stop", "tool_calls"),
        length=("length", "model_context_window_exceeded"),
        refusal=("sensitive",),
        broken=("network_error",),
    ),
    Reasons(
        "Groq",
        "https://console.groq.com/docs/api-reference#chat-create",
        stop=("stop", "tool_calls", "function_call"),
        length=("length",),
    ),
    Reasons(
        "Together",
        "https://docs.together.ai/reference/chat-completions-1",
        stop=("stop", "eos", "tool_calls", "function_call"),
        length=("length",),
    ),
    Reasons(
        "Text Generation Inference",
        "https://huggingface.github.io/text-generation-inference",
        stop=("stop", "eos_token", "stop_sequence", "tool_calls"),
        length=("length",),
    ),
)
_FINISHES: Mapping[str, Finish] = {
    **{reason: "stop" for row in REASONS for reason in row.stop},
    **{reason: "length" for row in REASONS for reason in row.length},
    **{reason: "refusal" for row in REASONS for reason in row.refusal},
}
_FIELDS = ("finish_reason", "stop_reason", "done_reason", "stopReason")
_NOT_YET = ("null", "finish_reason_unspecified")
"""What Alibaba's DashScope and Gemini send while a reply goes on.
https://help.aliyun.com/zh/model-studio/qwen-api-reference"""


def reason_in(metadata: Mapping[str, Any]) -> str:
    """The reason in a message's ``response_metadata``, as its provider spells it; empty if there is
    none.

    >>> reason_in({"stopReason": "end_turn"}), reason_in({"model_name": "tiny"})
    ('end_turn', '')
    >>> reason_in({"status": "incomplete", "incomplete_details": {"reason": "content_filter"}})
    'content_filter'
    """
    for name in _FIELDS:
        if metadata.get(name):
            reason = str(metadata[name])
            return "" if reason.lower() in _NOT_YET else reason
    status = metadata.get("status")  # of OpenAI's Responses API
    if status == "incomplete":
        return str((metadata.get("incomplete_details") or {}).get("reason") or status)
    return status if status in ("completed", "failed", "cancelled") else ""


def finish_of(reason: str) -> Finish:
    """What a reason means.

    >>> [finish_of(reason) for reason in ("STOP", "MAX_TOKENS", "SPII", "an unknown one")]
    ['stop', 'length', 'refusal', 'broken']
    """
    return _FINISHES.get(reason.lower(), "broken")
