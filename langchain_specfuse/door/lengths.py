"""How long a conversation is: asked of one member after the other, until one can tell it.

A member may be a server that is ill. That is no fault of the question's, and the others could answer it: so the count
never fails, and no member is waited for long. Knows members and their tokens; nothing of bounds or HTTP.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

from langchain_core.messages import BaseMessage

from .. import _tools
from .._counting import BYTES, guessed, length, texts_of
from .._messages import turns_of
from ..chat_models import SpecFuseChatModel

log = logging.getLogger("langchain_specfuse.door")

COUNT_S = 5.0
"""Counting takes moments: who has not told by then is asked no more until it has."""


class Lengths:
    """The lengths of conversations, in the tokens of the first member that tells them."""

    def __init__(self, llm: SpecFuseChatModel) -> None:
        self._custom = llm.custom_get_token_ids
        self._patience_s = min(llm.member_timeout or COUNT_S, COUNT_S)
        self._owing: set[str] = set()
        """Who has been asked and did not tell in time."""

    async def of(self, messages: list[BaseMessage], tools: Any, members: Sequence[Any]) -> int:
        """How many tokens this conversation has; a guess where nobody can tell."""
        turns, told = turns_of(messages), _tools.told_tools(_tools.openai_tools(tools or []))
        if self._custom is not None:
            members = [SimpleNamespace(name="custom_get_token_ids", token_ids=self._custom)]
        for member in members:
            count = await self._told(member, turns, told)
            if count is not None:
                return count
        log.warning("no member could tell how long a conversation is: %d bytes were taken for a token", BYTES)
        return guessed(texts_of(turns, told))

    async def _told(self, member: Any, turns: Sequence[Any], tools: Sequence[Any]) -> int | None:
        if member.name in self._owing or not (hasattr(member, "token_count") or hasattr(member, "token_ids")):
            return None
        asked = _begun(lambda: length(member, turns, tools))
        try:
            async with asyncio.timeout(self._patience_s):
                return await asyncio.wrap_future(asked)
        except Exception as error:  # what it raised may quote the question, or an address
            log.info("%s could not tell how long a conversation is: %s", member.name, type(error).__name__)
            log.debug("what was raised", exc_info=error)
            return None
        finally:
            if not asked.done():
                self._owing.add(member.name)
                asked.add_done_callback(lambda _: self._owing.discard(member.name))


def _begun(work: Callable[[], int]) -> Future[int]:
    """The work on a thread of its own: one that hangs takes nobody's place, and no process waits for it to end."""
    future: Future[int] = Future()
    future.set_running_or_notify_cancel()

    def done() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # a member may raise anything
            future.set_exception(error if isinstance(error, Exception) else RuntimeError(type(error).__name__))

    threading.Thread(target=done, name="specfuse-count", daemon=True).start()
    return future
