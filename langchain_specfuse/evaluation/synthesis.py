"""Synthesis: every member answers alone, then one of them reads all answers and writes the final
one, as in Mixture-of-Agents (Wang et al., 2024)."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from ..core.member import Member
from ..core.options import Settings
from ..core.round import Round
from ..core.values import Query, Turn
from ..engine.ensemble import Ensemble

REQUEST = """{question}

Several assistants have answered this:

{answers}

Some of these answers may be wrong. Write the best answer to the question, in the form that it \
asks for."""


async def synthesis(
    ensemble: Ensemble, turns: Sequence[Turn], settings: Settings
) -> tuple[str, list[Round]]:
    """The final answer, and the rounds of everything that was asked for it. The member that
    ``lead`` names writes it, otherwise the first."""
    members = ensemble.members
    rounds: list[Round] = []
    answers: list[str] = []
    for member in members.values():
        answer = await _alone(member, turns, settings)
        rounds += answer
        answers.append(f"Answer {len(answers) + 1}:\n{_text_of(answer)}")
    request = REQUEST.format(question=turns[-1].text, answers="\n\n".join(answers))
    lead = settings.lead if settings.lead in members else next(iter(members))
    conversation = (*turns[:-1], Turn("user", request))
    final = await _alone(members[str(lead)], conversation, settings)
    return _text_of(final), [*rounds, *final]


async def _alone(member: Member, turns: Sequence[Turn], settings: Settings) -> list[Round]:
    query = Query(f"eval-{uuid.uuid4().hex}", tuple(turns))
    alone = settings.model_copy(update={"lead": None})
    rounds = Ensemble([member]).arounds(query, alone)
    return [round async for round in rounds]


def _text_of(rounds: Sequence[Round]) -> str:
    return "".join(round.text for round in rounds)
