"""How long a text or a conversation is, in the tokens of the first member.

Knows members that can say so; nothing of answers.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

from langchain_core.messages import BaseMessage

from . import _registry, _tools
from ._asking import loaded
from ._fields import SpecFuseFields
from ._messages import turns_of
from .core.values import Tool, Turn
from .errors import UsageError, advised

BYTES = 4
"""Taken for a token where nobody can count."""


class Counting(SpecFuseFields):
    """The part of the chat model that counts."""

    def get_token_ids(self, text: str) -> list[int]:
        """The text in the first member's tokens."""
        if self.custom_get_token_ids is not None:
            return self.custom_get_token_ids(text)
        first = self._first_member()
        if not hasattr(first, "token_ids"):
            error = UsageError(f"the first member, {first.name!r}, has no tokenizer here")
            raise advised(error, "set custom_get_token_ids=, or put a member with a tokenizer first")
        return list(first.token_ids(text))

    def get_num_tokens(self, text: str) -> int:
        """How many tokens the text has for the first member; a guess of four bytes each if it cannot tell."""
        if self.custom_get_token_ids is None and not hasattr(self._first_member(), "token_ids"):
            warnings.warn("The first member has no tokenizer here: counting four bytes as a token.", stacklevel=2)
            return guessed([text])
        return len(self.get_token_ids(text))

    def get_num_tokens_from_messages(self, messages: list[BaseMessage], tools: Any = None) -> int:
        """How long the prompt is for the first member, with its chat template if it has one."""
        turns, told = turns_of(messages), _tools.told_tools(_tools.openai_tools(tools or []))
        first = self._first_member()
        if self.custom_get_token_ids is None and hasattr(first, "token_count"):
            return length(first, turns, told)
        return sum(self.get_num_tokens(text) for text in texts_of(turns, told))

    def _first_member(self) -> Any:
        who = self._who()
        ensemble = _registry.ensemble_for(who["members"], who["verifiers"], cluster=self.cluster)
        loaded(ensemble)  # on its own desk: a member that loads itself would do it on the caller's thread
        return next(iter(ensemble.members.values()))


def length(member: Any, turns: Sequence[Turn], tools: Sequence[Tool]) -> int:
    """How long these turns are in the tokens of a member that can tell."""
    if hasattr(member, "token_count"):
        return int(member.token_count(turns, tools) if tools else member.token_count(turns))
    return sum(len(member.token_ids(text)) for text in texts_of(turns, tools))


def guessed(texts: Iterable[str]) -> int:
    """How long they are where no member can tell."""
    return math.ceil(sum(len(text.encode(errors="replace")) for text in texts) / BYTES)


def texts_of(turns: Sequence[Turn], tools: Sequence[Tool]) -> list[str]:
    """All the text in a conversation, without what a template puts around it."""
    said = [turn.text + "".join(call.name + call.arguments for call in turn.calls) for turn in turns]
    return said + [tool.name + tool.description + tool.parameters for tool in tools]
