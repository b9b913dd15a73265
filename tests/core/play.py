"""Plays whole answers without threads, records each ``Ask``, and prints rounds as a table."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_specfuse.core.checks import CheckAsk, CheckJob, Finding, Verdict
from langchain_specfuse.core.options import Settings
from langchain_specfuse.core.panel import Panel
from langchain_specfuse.core.referee import FREE, Referee
from langchain_specfuse.core.replies import checked_reply
from langchain_specfuse.core.round import Round
from langchain_specfuse.core.rounds import Loop, rounds
from langchain_specfuse.core.values import (
    Ask,
    Draft,
    DraftJob,
    Panelist,
    Query,
    Reply,
    Scored,
    ScoreJob,
    Turn,
    Wake,
)
from langchain_specfuse.members.scripted import ScriptedMember

QUERY = Query("q", (Turn("user", "What is it?"),))
Answerer = Callable[[DraftJob | ScoreJob, int], Reply]
"""(job, round) -> a member's reply."""


@dataclass
class Played:
    rounds: list[Round] = field(default_factory=list)
    asks: list[Ask] = field(default_factory=list)
    checks: list[CheckAsk] = field(default_factory=list)
    error: Exception | None = None

    @property
    def text(self) -> str:
        return "".join(round.text for round in self.rounds)

    @property
    def left(self) -> list[str]:
        return [departure.member for round in self.rounds for departure in round.left]

    def asked(self, kind: type, round: int | None = None) -> list[tuple[str, DraftJob | ScoreJob]]:
        """Return (member, job) for all jobs of this kind, in order."""
        asks = [ask for ask in self.asks if round in (None, ask.round)]
        return [
            (name, job) for ask in asks for name, job in ask.jobs.items() if isinstance(job, kind)
        ]


def play(
    answerers: Mapping[str, Answerer],
    settings: Settings | None = None,
    panel: Sequence[Panelist] = (),
    prior: Mapping[str, float] | None = None,
    referee: Referee = FREE,
    query: Query = QUERY,
    begun: Callable[[Query, Settings, Panel, Referee], Loop] = rounds,
) -> Played:
    """Play one whole answer; ``settings.lead`` leads if it is a member. Errors of the loop are kept
    in ``error``. ``begun`` begins another loop than ``rounds``."""
    played = Played()
    settings = settings or Settings()
    panel = panel or [Panelist(name) for name in answerers]
    can_lead = (
        any(member.name == settings.lead and member.drafts for member in panel)
        and settings.method.margin is not None
    )
    members = Panel.of(panel, prior, settings.lead if can_lead else None)
    loop = begun(query, settings, members, referee)
    replies: Any = None
    try:
        while True:
            item = loop.send(replies)
            replies = None
            if isinstance(item, Round):
                played.rounds.append(item)
            elif isinstance(item, CheckAsk):
                played.checks.append(item)
                replies = tuple(map(verdict_of, item.jobs))
            elif isinstance(item, Wake):
                replies = Panelist(item.member)
            else:
                played.asks.append(item)
                replies = {
                    name: checked_reply(job, answerers[name](job, item.round))
                    for name, job in item.jobs.items()
                }
    except StopIteration:
        return played
    except Exception as error:
        played.error = error
        return played


def verdict_of(job: CheckJob) -> Verdict:
    """Ask a plain function at once."""
    try:
        found = job.check.function(job.text)
        if isinstance(found, Finding):
            return Verdict(found.reason, span=(found.start, found.end))
        return Verdict(found)
    except Exception as error:
        return Verdict(f"raised {type(error).__name__}", is_broken=True, cause=error)


def answering(member: ScriptedMember) -> Answerer:
    return lambda job, _: (
        member.draft([job]) if isinstance(job, DraftJob) else member.score([job])
    )[0]


def speakers(**texts: str) -> dict[str, Answerer]:
    """Return scripted members by name."""
    return {name: answering(ScriptedMember(text, name=name)) for name, text in texts.items()}


def babbler(seed: int, skill: float = 0.0, ends: float = 0.05, noise: float = 0.3) -> Answerer:
    """Return a member that writes random words. All babblers agree, up to noise, that drafts with
    more "good" words are more probable."""
    rng = random.Random(seed)

    def reply(job: DraftJob | ScoreJob, _: int) -> Reply:
        if isinstance(job, ScoreJob):
            return Scored(tuple(_logprobs(rng, c.text, c.ended, noise) for c in job.candidates))
        count = min(job.segment_tokens, job.max_tokens)
        text = "".join(
            " good" if rng.gauss(skill, 1) > 0 else f" w{rng.randrange(99)}" for _ in range(count)
        )
        ended = rng.random() < ends
        return Draft(text, ended, tuple(range(count)), _logprobs(rng, text, ended, noise))

    return reply


def _logprobs(rng: random.Random, text: str, ended: bool, noise: float) -> tuple[float, ...]:
    row = [
        min(0.0, (-0.3 if word == "good" else -1.5) + rng.gauss(0, noise)) for word in text.split()
    ]
    return tuple([*row, -1.0] if ended else row)


def repeater(
    word: str, confidence: Callable[[int], float], score: float = -2.0, size: int = 3
) -> Answerer:
    """Return a member that drafts a word ``size`` times with log-probability ``confidence(round)``
    and scores other drafts ``score``."""

    def reply(job: DraftJob | ScoreJob, number: int) -> Reply:
        if isinstance(job, ScoreJob):
            return Scored(tuple((score,) * size for _ in job.candidates))
        text = "".join(f" {word}{number}{k}" for k in range(size))
        return Draft(text, False, tuple(range(size)), (confidence(number),) * size)

    return reply


def table(played: Played) -> str:
    """Return a line per round: the winner's text, totals and weights after it, departures."""
    lines = []
    for round in played.rounds:
        totals = " ".join(f"{name}={total:.2f}" for name, total in round.totals.items())
        weights = " ".join(f"{name}={weight:.2f}" for name, weight in round.weights.items())
        departures = "".join(f" | {d.member} left: {d.kind}" for d in round.left)
        end = f" | {round.finish}" if round.finish else ""
        lines.append(
            f"{round.number} {round.winner}: {round.text!r} | {totals} | {weights}{departures}{end}"
        )
    return "\n".join(lines)
