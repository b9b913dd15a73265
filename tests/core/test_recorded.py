"""Recorded answers: each method must do what it did in version 0.5.0, to the ninth digit.

If the method itself is changed on purpose, ``python -m tests.core.test_recorded`` records anew.
"""

import json
from hashlib import sha256
from pathlib import Path

from langchain_specfuse.core.options import METHODS, Method, Settings
from langchain_specfuse.core.values import DraftJob

from .play import Answerer, Played, babbler, play, speakers
from .test_properties import unreliable

RECORDED = Path(__file__).with_name("recorded.json")
FIELDS = (
    "number",
    "text",
    "winner",
    "authors",
    "looped",
    "finish",
    "totals",
    "rewards",
    "weights_before",
    "weights",
)
SCRIPTS = {
    "grey": "The sky is grey because of heavy rain clouds that come from the sea in the west.",
    "blue": "The sky is blue because of Rayleigh scattering of light by the molecules of the air.",
    "wide": "The sky is blue because air scatters blue light more than red light, again and again.",
}


def members(case: str) -> dict[str, Answerer]:
    """``scripts`` or ``babblers-SEED``: three scripted members, or five that babble and sometimes
    fail."""
    if case == "scripts":
        return speakers(**SCRIPTS)
    seed = int(case.partition("-")[2])
    skills = (0.6, 0.0, -0.4, 0.2, 0.0)
    return {
        f"m{i}": unreliable(babbler(seed * 31 + i, skill), seed * 37 + i, 0.01)
        for i, skill in enumerate(skills)
    }


def digest(played: Played) -> str:
    """A fingerprint of all jobs and rounds, with numbers rounded so that the order of additions
    does not matter."""

    def size(job):
        return job.segment_tokens if isinstance(job, DraftJob) else [c.text for c in job.candidates]

    def rounded(value):
        return (
            {name: f"{number:.9f}" for name, number in value.items()}
            if isinstance(value, dict)
            else value
        )

    asked = [
        [ask.round, *([n, type(job).__name__, size(job)] for n, job in ask.jobs.items())]
        for ask in played.asks
    ]
    agreed = [[rounded(getattr(round, name)) for name in FIELDS] for round in played.rounds]
    return sha256(json.dumps([asked, agreed, played.left]).encode()).hexdigest()[:16]


def record(**changes) -> dict[str, str]:
    """Every case under every named method."""
    return {
        f"{case} {name}": digest(
            play(
                members(case),
                Settings(max_tokens=60, segment_tokens=4, method=Method.named(name, **changes)),
            )
        )
        for case in ("scripts", *(f"babblers-{seed}" for seed in range(6)))
        for name in METHODS
    }


def test_each_method_does_what_was_recorded():
    assert record() == json.loads(RECORDED.read_text())


def test_the_recordings_notice_a_changed_method():
    recorded, changed = (
        json.loads(RECORDED.read_text()),
        record(learning_rate=30.0, exit="never", score="logprob_per_byte"),
    )
    assert sum(recorded[case] != changed[case] for case in recorded) > len(recorded) / 2


if __name__ == "__main__":
    RECORDED.write_text(json.dumps(record(), indent=1) + "\n")
