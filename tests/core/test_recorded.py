"""What the method does when nobody chooses otherwise, recorded: new choices must leave it as it is, to the last digit.

Where the method itself is changed on purpose: ``python -m tests.core.test_recorded`` records anew.
"""

import json
from hashlib import sha256
from pathlib import Path

import pytest

from langchain_specfuse.core.values import PRESETS, DraftJob, Round, Settings

from .play import Answerer, Played, babbler, play, speakers
from .test_promises import unreliable

RECORDED = Path(__file__).with_name("recorded.json")
TOLD = ("number", "text", "winner", "authors", "looped", "finish", "totals", "rewards", "weights_before", "weights")
NUMBERS = ("totals", "rewards", "weights_before", "weights")

SCRIPTS = {
    "grey": "The sky is grey because of heavy rain clouds that come from the sea in the west.",
    "blue": "The sky is blue because of Rayleigh scattering of light by the molecules of the air.",
    "wide": "The sky is blue because air scatters blue light more than red light, again and again.",
}


def members(case: str) -> dict[str, Answerer]:
    """``scripts`` or ``babblers-SEED``: three scripted members, or five that babble and now and then fail."""
    if case == "scripts":
        return speakers(**SCRIPTS)
    seed = int(case.partition("-")[2])
    skills = (0.6, 0.0, -0.4, 0.2, 0.0)
    return {f"m{i}": unreliable(babbler(seed * 31 + i, skill), seed * 37 + i, 0.01) for i, skill in enumerate(skills)}


CASES = ["scripts", *(f"babblers-{seed}" for seed in range(6))]


def digest(played: Played) -> str:
    """Who was asked for what, and what came of it; what a float addition leaves in the last digits is left out."""
    asked = [[ask.round, *map(job_told, ask.jobs.items())] for ask in played.asks]
    told = [[field_told(round, name) for name in TOLD] for round in played.rounds]
    return sha256(json.dumps([asked, told, played.left]).encode()).hexdigest()[:16]


def job_told(item):
    name, job = item
    size = job.segment_tokens if isinstance(job, DraftJob) else [c.text for c in job.candidates]
    return [name, type(job).__name__, size]


def field_told(round: Round, name: str):
    value = getattr(round, name)
    return {one: f"{number:.9f}" for one, number in value.items()} if name in NUMBERS else value


def record(**choices) -> dict[str, str]:
    """Every case under every preset."""
    return {
        f"{case} {preset}": digest(play(members(case), Settings(max_tokens=60, segment_tokens=4, **kind, **choices)))
        for case in CASES
        for preset, kind in PRESETS.items()
    }


@pytest.fixture(scope="module")
def recorded() -> dict[str, str]:
    return json.loads(RECORDED.read_text())


def test_the_defaults_do_what_was_recorded(recorded):
    assert record() == recorded


if __name__ == "__main__":
    RECORDED.write_text(json.dumps(record(), indent=1) + "\n")
