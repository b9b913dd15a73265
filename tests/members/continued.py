"""What a fake chat model or a fake provider has to continue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage

ASKED = "Continue your last message exactly where it stops"


def begun_in(messages: Sequence[BaseMessage]) -> str:
    """The text that these messages want continued: that of the last message, or the one before it,
    if the last one asks for the rest. Empty if they want an answer from its beginning."""
    last = messages[-1]
    if ASKED in last.text:
        last = messages[-2]
    return str(last.text) if isinstance(last, AIMessage) else ""


def begun_in_body(messages: Sequence[dict[str, Any]]) -> str:
    """The same in the body of a request to OpenAI."""
    last = messages[-1]
    if ASKED in str(last["content"]):
        last = messages[-2]
    return str(last["content"]) if last["role"] == "assistant" else ""
