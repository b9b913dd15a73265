"""Earlier answers of a conversation, without the parts that a provider would refuse.

A member gets its own replies back as they came. But an answer may come from several members, or
from another member than the one that is asked now, and a provider refuses what refers to something
that it has not sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage


def sendable(message: BaseMessage, member: str) -> BaseMessage:
    """The message in a form that this member's provider takes."""
    if not isinstance(message, AIMessage) or isinstance(message.content, str):
        return message
    provider = message.response_metadata.get("model_provider")
    writers = set((message.response_metadata.get("specfuse") or {}).get("usage") or {member})
    blocks: list[Any] = message.content
    if provider == "anthropic":
        blocks = [block for block in blocks if not _is_unsigned(block)]
    elif provider == "openai" and writers != {member}:
        blocks = [_without_ids(block) for block in blocks if not _is_reasoning(block)]
    if blocks == message.content:
        return message
    return message.model_copy(update={"content": blocks})


def _is_reasoning(block: Any) -> bool:
    return isinstance(block, Mapping) and block.get("type") in ("thinking", "reasoning")


def _is_unsigned(block: Any) -> bool:
    """Whether this is reasoning of Claude that broke off, so that it has no signature. Anthropic
    refuses such reasoning.
    https://platform.claude.com/docs/en/build-with-claude/extended-thinking"""
    if not _is_reasoning(block):
        return False
    return not (block.get("signature") or (block.get("extras") or {}).get("signature"))


def _without_ids(block: Any) -> Any:
    """The block without the id of an item of OpenAI's Responses API. With ids, OpenAI looks for
    what it has stored for this account, and refuses reasoning without the item that it sent next.
    https://github.com/vercel/ai/issues/8379"""
    if not isinstance(block, Mapping):
        return block
    if block.get("type") in ("text", "output_text", "function_call"):
        return {key: value for key, value in block.items() if key != "id"}
    extras = block.get("extras") or {}
    if "item_id" in extras:
        kept = {key: value for key, value in extras.items() if key != "item_id"}
        return {**block, "extras": kept}
    return block
