"""Members that write random words and sometimes fail: long answers under every method.

They agree, up to noise, that drafts with more "good" words are more probable.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_specfuse import METHODS, Method, SpecFuseChatModel
from langchain_specfuse.core.member import Probe
from langchain_specfuse.core.values import Draft, DraftJob, Failure, Scored, ScoreJob
from tests.methods import in_method

from .record import Listener

SKILLS = (0.6, 0.0, -0.4, 0.2, 0.0)


class RandomMember:
    """Its replies depend on its seed and the place in the answer."""

    device = "random"

    def __init__(self, name: str, seed: int, skill: float) -> None:
        self.name = name
        self.seed = seed
        self.skill = skill

    def probe(self) -> Probe:
        return Probe(self.name)

    def forget(self, query_id: str) -> None:
        pass

    def draft(self, jobs: Sequence[DraftJob]) -> list[Draft | Failure]:
        return [self._draft(job) for job in jobs]

    def score(self, jobs: Sequence[ScoreJob]) -> list[Scored | Failure]:
        return [self._score(job) for job in jobs]

    def _random(self, job: DraftJob | ScoreJob) -> random.Random:
        return random.Random(f"{self.seed} {len(job.answer)} {type(job).__name__}")

    def _draft(self, job: DraftJob) -> Draft | Failure:
        rng = self._random(job)
        if rng.random() < 0.01:
            return Failure("error", "a random failure")
        count = min(job.segment_tokens, job.max_tokens)
        words = []
        for _ in range(count):
            good = rng.gauss(self.skill, 1) > 0
            words.append("good" if good else f"w{rng.randrange(99)}")
        ended = rng.random() < 0.05
        logprobs = row_of(rng, words, ended)
        return Draft("".join(f" {word}" for word in words), ended, tuple(range(count)), logprobs)

    def _score(self, job: ScoreJob) -> Scored | Failure:
        rng = self._random(job)
        if rng.random() < 0.01:
            return Scored(tuple((math.nan,) for _ in job.candidates))
        return Scored(tuple(row_of(rng, c.text.split(), c.ended) for c in job.candidates))


def row_of(rng: random.Random, words: Sequence[str], ended: bool) -> tuple[float, ...]:
    row = []
    for word in words:
        mean = -0.3 if word == "good" else -1.5
        row.append(min(0.0, mean + rng.gauss(0, 0.3)))
    return (*row, -1.0) if ended else tuple(row)


def line_of(data: Mapping[str, Any]) -> str:
    """One round in one line."""
    totals = " ".join(f"{name}={total:.4f}" for name, total in data["totals"].items())
    weights = " ".join(f"{name}={weight:.4f}" for name, weight in data["weights"].items())
    parts = [f"{data['winner']}:{data['text']}", f"totals {totals}", f"weights {weights}"]
    parts += [f"{name} loops" for name in data["looped"]]
    parts += [f"{departure['member']} leaves ({departure['kind']})" for departure in data["left"]]
    if data["finish"]:
        parts.append(f"finish {data['finish']}")
    return " | ".join(parts)


def rounds_of(seed: int, **options: Any) -> list[str]:
    members = [
        RandomMember(f"m{number}", seed * 31 + number, skill) for number, skill in enumerate(SKILLS)
    ]
    llm = SpecFuseChatModel(
        **in_method(members=members, max_tokens=60, segment_tokens=4, **options)
    )
    listener = Listener()
    llm.invoke("What is it?", {"callbacks": [listener]})
    return [line_of(data) for data in listener.rounds]


def every_method() -> dict[str, Any]:
    return {
        f"{method}, {seed}": rounds_of(seed, method=method, lead=None)
        for method in METHODS
        for seed in range(4)
    }


def with_lead() -> dict[str, Any]:
    return {
        f"{lead}, {seed}": rounds_of(seed, lead=lead, method=Method(margin=0.5))
        for lead in ("m0", "m2")
        for seed in range(2)
    }


def with_prior() -> dict[str, Any]:
    prior = {"m0": 0.5, "m2": 3.0}
    return {str(seed): rounds_of(seed, lead=None, prior=prior) for seed in range(2)}


SCENARIOS = [every_method, with_lead, with_prior]
