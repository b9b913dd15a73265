"""Ask one question of an evaluation, with the checks of the settings."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing

from ..chat.messages import messages_of
from ..core.checks import CheckContext, CheckJob
from ..core.options import Settings
from ..core.round import Round
from ..core.values import Query, Turn
from ..engine.checker import Checker
from ..engine.ensemble import Ensemble


async def asked(
    ensemble: Ensemble, turns: Sequence[Turn], settings: Settings
) -> AsyncIterator[Round]:
    """The rounds of the answer, as they are agreed."""
    query = Query(f"eval-{uuid.uuid4().hex}", tuple(turns))
    stream = ensemble.arounds(query, settings, checker=_checker_of(turns, settings))
    async with aclosing(stream):  # type: ignore[type-var]
        async for round in stream:
            yield round


def _checker_of(turns: Sequence[Turn], settings: Settings) -> Checker | None:
    """What runs the checks; None if there are none."""
    if not settings.judges:
        return None
    messages = messages_of(turns)

    def context_of(job: CheckJob) -> CheckContext:
        return CheckContext(messages, job.draft, job.author, job.ended)

    return Checker(context_of, asyncio.get_running_loop())
