"""Finds refusals in the messages and errors of LangChain chat models, for all providers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langchain_core.exceptions import ModelRefusalError
from langchain_core.messages import AIMessage

_CODES = frozenset({"content_filter", "content_policy_violation"})
"""Error codes by which providers refuse a question."""


def refusal_in(message: AIMessage) -> str | None:
    """The text of the refusal in a message or chunk; empty if the provider gives no text, None if
    the message is not a refusal.

    >>> refusal_in(AIMessage([{"type": "refusal", "refusal": "No."}]))
    'No.'
    >>> (
    ...     refusal_in(AIMessage("", additional_kwargs={"refusal": "No."})),
    ...     refusal_in(AIMessage("No.")),
    ... )
    ('No.', None)
    """
    texts = [refusal_block(block) for block in message.content_blocks]
    refusals = [text for text in texts if text is not None]
    if refusals:
        return "".join(refusals)
    field = message.additional_kwargs.get("refusal")
    return field if isinstance(field, str) and field else None


def refusal_block(block: Any) -> str | None:
    """The text of a content block, if it is a refusal."""
    if not isinstance(block, Mapping) or block.get("type") != "refusal":
        return None
    return str(block.get("refusal") or "")


def is_refusal(error: BaseException) -> bool:
    """Whether an error of a chat model means that its provider refuses the question."""
    codes = [getattr(raised, "code", None) for raised in (error, error.__cause__)]
    if any(isinstance(code, str) and code in _CODES for code in codes):
        return True
    return isinstance(error, ModelRefusalError)
