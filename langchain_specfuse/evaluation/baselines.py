"""What people do with several models instead: each answers alone, and one answer is picked or
written from those.

``surest``: the answer whose author gives it the highest probability per token. ``synthesis``: the
member that leads by name (otherwise the first) reads all answers and writes one, as in
Mixture-of-Agents (Wang et al., 2024).
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Sequence

from ..core.member import Member
from ..core.options import Settings
from ..core.round import Round
from ..core.values import Query, Turn
from ..engine.ensemble import Ensemble

BASELINES = ("surest", "synthesis")
SYNTHESIS = """{question}

Several assistants have answered this:

{answers}

Some of these answers may be wrong. Write the best answer to the question, in the form that it asks for."""


async def answered(
    kind: str, ensemble: Ensemble, turns: Sequence[Turn], settings: Settings
) -> tuple[str, list[Round]]:
    """The answer, and the rounds of everything that was asked for it."""
    members = ensemble.members
    alone = {name: await _alone(member, turns, settings) for name, member in members.items()}
    everything = [one for rounds in alone.values() for one in rounds]
    texts = {name: "".join(one.text for one in rounds) for name, rounds in alone.items()}
    if kind == "surest":
        return texts[max(alone, key=lambda name: confidence(alone[name]))], everything
    listed = "\n\n".join(
        f"Answer {number}:\n{text}" for number, text in enumerate(texts.values(), 1)
    )
    last = Turn("user", SYNTHESIS.format(question=turns[-1].text, answers=listed))
    lead = settings.lead if settings.lead in members else next(iter(members))
    written = await _alone(members[str(lead)], (*turns[:-1], last), settings)
    return "".join(one.text for one in written), [*everything, *written]


def confidence(rounds: Sequence[Round]) -> float:
    """The mean log-probability per token that the author gave its answer; minus infinity where it
    is unknown."""
    known = [value for one in rounds for value in one.drafts[one.winner].logprobs or ()]
    return math.fsum(known) / len(known) if known else -math.inf


async def _alone(member: Member, turns: Sequence[Turn], settings: Settings) -> list[Round]:
    query = Query(f"eval-{uuid.uuid4().hex}", tuple(turns))
    rounds = Ensemble([member]).arounds(
        query, settings.model_copy(update={"lead": None, "prior": None})
    )
    return [one async for one in rounds]
