"""Synthesis: every member answers alone, then one of them reads all answers and writes the final
one, as in Mixture-of-Agents (Wang et al., 2024)."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.member import Member
from ..core.options import Settings
from ..core.round import Round
from ..core.values import Turn
from ..engine.ensemble import Ensemble
from .asking import asked

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
    alone = settings.model_copy(update={"lead": None})
    return [round async for round in asked(Ensemble([member]), turns, alone)]


def _text_of(rounds: Sequence[Round]) -> str:
    return "".join(round.text for round in rounds)
