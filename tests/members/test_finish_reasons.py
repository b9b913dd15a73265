"""What a provider's finish reason means for an answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from langchain_core.messages import AIMessageChunk

from langchain_specfuse import ChatModelMember, SpecFuseChatModel
from langchain_specfuse.core.values import Draft, Failure
from langchain_specfuse.members.chat_model.finishes import REASONS, finish_of

from .test_chat_model import refuser
from .test_chat_model_stream import lead_job

OPENAI = {
    "stop": "stop",
    "tool_calls": "stop",
    "function_call": "stop",
    "length": "length",
    "content_filter": "refusal",
}
GEMINI = {
    "STOP": "stop",
    "MAX_TOKENS": "length",
    "SAFETY": "refusal",
    "RECITATION": "refusal",
    "BLOCKLIST": "refusal",
    "PROHIBITED_CONTENT": "refusal",
    "SPII": "refusal",
    "IMAGE_SAFETY": "refusal",
    "IMAGE_PROHIBITED_CONTENT": "refusal",
    "IMAGE_RECITATION": "refusal",
    "LANGUAGE": "broken",
    "OTHER": "broken",
    "IMAGE_OTHER": "broken",
    "NO_IMAGE": "broken",
    "MALFORMED_FUNCTION_CALL": "broken",
    "MALFORMED_RESPONSE": "broken",
    "MISSING_THOUGHT_SIGNATURE": "broken",
    "UNEXPECTED_TOOL_CALL": "broken",
    "TOO_MANY_TOOL_CALLS": "broken",
}
FINISHES: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    "OpenAI": {"finish_reason": OPENAI},
    "OpenAI's Responses API": {
        "status": {"completed": "stop", "failed": "broken", "cancelled": "broken"},
        "incomplete_details": {
            "max_output_tokens": "length",
            "content_filter": "refusal",
            "": "length",
        },
    },
    "Azure OpenAI": {"finish_reason": OPENAI},
    "Anthropic": {
        "stop_reason": {
            "end_turn": "stop",
            "stop_sequence": "stop",
            "tool_use": "stop",
            "pause_turn": "stop",
            "max_tokens": "length",
            "model_context_window_exceeded": "length",
            "refusal": "refusal",
        }
    },
    "Gemini": {"finish_reason": GEMINI},
    "Vertex AI, besides those of Gemini": {"finish_reason": {"MODEL_ARMOR": "refusal"}},
    "Mistral": {
        "finish_reason": {
            "stop": "stop",
            "tool_calls": "stop",
            "length": "length",
            "model_length": "length",
            "error": "broken",
        }
    },
    "Bedrock": {
        "stopReason": {
            "end_turn": "stop",
            "stop_sequence": "stop",
            "tool_use": "stop",
            "max_tokens": "length",
            "model_context_window_exceeded": "length",
            "guardrail_intervened": "refusal",
            "content_filtered": "refusal",
            "malformed_model_output": "broken",
            "malformed_tool_use": "broken",
        }
    },
    "Cohere": {
        "finish_reason": {
            "COMPLETE": "stop",
            "STOP_SEQUENCE": "stop",
            "TOOL_CALL": "stop",
            "MAX_TOKENS": "length",
            "ERROR": "broken",
            "TIMEOUT": "broken",
        }
    },
    "Ollama": {
        "done_reason": {"stop": "stop", "length": "length", "load": "broken", "unload": "broken"}
    },
    "vLLM": {
        "finish_reason": {
            "stop": "stop",
            "tool_calls": "stop",
            "length": "length",
            "abort": "broken",
            "error": "broken",
            "repetition": "broken",
        }
    },
    "OpenRouter": {
        "finish_reason": {
            "stop": "stop",
            "tool_calls": "stop",
            "length": "length",
            "content_filter": "refusal",
            "error": "broken",
        }
    },
    "DeepSeek": {
        "finish_reason": {
            "stop": "stop",
            "tool_calls": "stop",
            "length": "length",
            "content_filter": "refusal",
            "insufficient_system_resource": "broken",
            "aborted": "broken",
        }
    },
    "Zhipu": {
        "finish_reason": {
            "stop": "stop",
            "tool_calls": "stop",
            "length": "length",
            "model_context_window_exceeded": "length",
            "sensitive": "refusal",
            "network_error": "broken",
        }
    },
    "Groq": {
        "finish_reason": {
            "stop": "stop",
            "tool_calls": "stop",
            "function_call": "stop",
            "length": "length",
        }
    },
    "Together": {
        "finish_reason": {
            "stop": "stop",
            "eos": "stop",
            "tool_calls": "stop",
            "function_call": "stop",
            "length": "length",
        }
    },
    "Text Generation Inference": {
        "finish_reason": {
            "stop": "stop",
            "eos_token": "stop",
            "stop_sequence": "stop",
            "tool_calls": "stop",
            "length": "length",
        }
    },
}
"""Provider -> field of ``response_metadata`` -> reason as LangChain's integration passes it on ->
what it means."""
CASES = [
    (provider, field, reason, finish)
    for provider, fields in FINISHES.items()
    for field, reasons in fields.items()
    for reason, finish in reasons.items()
]


def ending(metadata: Mapping[str, Any], *after: Any) -> list[Draft | Failure]:
    """What a chat model streams whose reply ends with this metadata."""
    last = AIMessageChunk("", response_metadata=dict(metadata))
    model = refuser(AIMessageChunk("The sky"), AIMessageChunk(" is blue"), last, *after)
    return list(ChatModelMember(model, name="a").stream(lead_job()))


@pytest.mark.parametrize(("provider", "field", "reason", "finish"), CASES)
def test_each_reason_of_each_provider(provider: str, field: str, reason: str, finish: str) -> None:
    metadata: dict[str, Any] = {field: reason}
    if field == "incomplete_details":
        metadata = {"status": "incomplete", field: {"reason": reason} if reason else None}
    *_, last = ending(metadata)
    if finish == "broken":
        assert isinstance(last, Failure) and last.kind == "error"
        assert f"broke off: its finish reason is {reason!r}" in last.message
    elif finish == "refusal":
        assert isinstance(last, Failure) and last.kind == "refusal"
    else:
        assert isinstance(last, Draft) and last.ended and last.is_cut == (finish == "length")


def test_the_table_has_these_reasons_and_no_others() -> None:
    listed = {
        row.provider: {
            **dict.fromkeys(row.stop, "stop"),
            **dict.fromkeys(row.length, "length"),
            **dict.fromkeys(row.refusal, "refusal"),
            **dict.fromkeys(row.broken, "broken"),
        }
        for row in REASONS
    }
    tested: dict[str, dict[str, str]] = {}
    for provider, _, reason, finish in CASES:
        tested.setdefault(provider, {})[reason.lower() or "incomplete"] = finish
    assert listed == tested
    for row in REASONS:
        assert row.source.startswith("https://")
        for reason, finish in listed[row.provider].items():
            assert finish_of(reason) == finish  # no two providers mean different things by it


def test_a_reason_that_no_provider_lists_has_broken_off() -> None:
    *_, last = ending({"finish_reason": "budget_exceeded"})
    assert isinstance(last, Failure) and "'budget_exceeded'" in last.message


@pytest.mark.parametrize("reason", ["null", "FINISH_REASON_UNSPECIFIED"])
def test_a_reason_that_says_nothing_yet_is_none(reason: str) -> None:
    """DashScope sends "null" with each part of a reply, so a reply that breaks after one is not
    complete."""
    *_, last = ending({"finish_reason": reason}, ConnectionError("reset"))
    assert isinstance(last, Failure) and "ConnectionError" in last.message
    *_, last = ending({"finish_reason": reason}, AIMessageChunk("."))
    assert isinstance(last, Draft) and last.ended


def test_the_limit_that_cut_an_answer_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    last = AIMessageChunk("", response_metadata={"finish_reason": "length"})
    llm = SpecFuseChatModel(members=[refuser(AIMessageChunk("The sky"), last)])
    for options, limit in (({}, "the max_tokens of Refuser"), ({"max_tokens": 9}, "max_tokens=9")):
        for asked in (1, 2):
            caplog.clear()
            assert llm.invoke("?", **options).response_metadata["finish_reason"] == "length"
            assert [f"cut at {limit}," in message for message in caplog.messages] == [True] * (
                asked == 1
            )
