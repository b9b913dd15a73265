"""Runs to draw: whole ones by scripted members, long ones and hostile ones as plain data."""

from __future__ import annotations

import random
from typing import Any

from langchain_specfuse import ScriptedMember, Trace
from langchain_specfuse.core.values import Query, Settings, Turn
from langchain_specfuse.engine import Ensemble

QUESTION = "Why is the sky blue?"
SCRIPTS = {
    "ann": "The sky is blue because air scatters blue light much more than red light, and so it comes from all sides.",
    "bob": "The sky looks blue because air bends blue light far more than red light, so it comes from all sides.",
    "cyd": "I like long trains, and all bends they take far more than any plane, which only goes straight on.",
}


def scripted(**choices: Any) -> Trace:
    """Three members; one has another subject and leaves."""
    members = [ScriptedMember(script, name=name) for name, script in SCRIPTS.items()]
    rounds = Ensemble(members).rounds(Query("q", (Turn("user", QUESTION),)), Settings(segment_tokens=4, **choices))
    return Trace(rounds, question=QUESTION, members=list(SCRIPTS))


def a_round(number: int, texts: dict[str, str], winner: str, **more: Any) -> dict[str, Any]:
    """A round as plain data, in which everybody voted."""
    even = dict.fromkeys(texts, 1 / len(texts))
    rows = dict.fromkeys(texts, even)
    return {
        "round": number,
        "text": texts[winner],
        "segment": texts[winner],
        "ended": False,
        "winner": winner,
        "authors": [winner],
        "drafts": {name: {"text": text, "ended": False, "tokens": 3} for name, text in texts.items()},
        "scores": {judge: dict.fromkeys(texts, -1.25) for judge in texts},
        "votes": rows,
        "totals": even,
        "margin": 0.25,
        "dissent": 0.5,
        "runner_up": next((name for name in texts if name != winner), None),
        "rewards": even,
        "weights_before": even,
        "weights": even,
        "forced": "",
        "closed": "",
        "thoughts": {},
        "looped": [],
        "umpire": "",
        "left": [],
        "finish": None,
        "seconds": {"draft": 0.25, "verify": 0.125},
        "tokens": {p: {n: {"read": 3, "reused": 9, "seconds": 0.1} for n in texts} for p in ("draft", "verify")},
        **more,
    }


def long(rounds: int = 2000, members: int = 3) -> Trace:
    """As many rounds as a very long answer has."""
    dice = random.Random(7)
    words = SCRIPTS["ann"].split()
    names = [f"member-{at}" for at in range(members)]
    trace = Trace(question="A long story, please.")
    for number in range(1, rounds + 1):
        texts = {name: " " + " ".join(dice.choices(words, k=10)) for name in names}
        numbers = {name: {other: dice.random() for other in names} for name in names}
        weights = {name: dice.random() for name in names}
        trace.add(a_round(number, texts, dice.choice(names), votes=numbers, scores=numbers, weights=weights))
    return trace
