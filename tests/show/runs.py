"""Runs to show: short ones by scripted members, long ones as plain data."""

from __future__ import annotations

import random
from typing import Any

from langchain_specfuse import Method, ScriptedMember, Trace
from langchain_specfuse.core.options import Settings
from langchain_specfuse.core.values import Query, Turn
from langchain_specfuse.engine.ensemble import Ensemble

QUESTION = "Why is the sky blue?"
SCRIPTS = {
    "ann": "The sky is blue because air scatters blue light much more than red light, and so it "
    "comes from all sides.",
    "bob": "The sky looks blue because air bends blue light far more than red light, so it comes "
    "from all sides.",
    "cyd": "I like long trains, and all bends they take far more than any plane, which only goes "
    "straight on.",
}


HOSTILE = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(2)><svg onload=alert(3)>",
    "<!-- <script> -->",
    "<iframe src=javascript:alert(4)></iframe><style>*{display:none}</style>",
    "javascript:alert(5) http://127.0.0.1:9/leak <a href='http://127.0.0.1:9/'>x</a>",
    "\u2028\u2029\x00\x1b]0;title\x07\x9b31m",
    "\u202etxet sdrawkcab\u2066 \u200f",
    "half \ud83d and {{run}} {{scripts}} \\u003c/script>",
    "'\" onmouseover=alert(6) x='",
    "__proto__",
    "constructor",
]
"""Texts that could break the page."""


def scripted() -> Trace:
    """Three members; one has another subject and leaves."""
    members = [ScriptedMember(script, name=name) for name, script in SCRIPTS.items()]
    rounds = Ensemble(members).rounds(
        Query("q", (Turn("user", QUESTION),)), Settings(method=Method(segment_tokens=4))
    )
    return Trace(rounds, question=QUESTION, members=list(SCRIPTS))


def a_round(number: int, texts: dict[str, str], winner: str, **more: Any) -> dict[str, Any]:
    """A round as plain data, in which everybody voted."""
    even = dict.fromkeys(texts, 1 / len(texts))
    numbers = dict.fromkeys(("totals", "rewards", "weights_before", "weights"), even)
    return {
        "round": number,
        "text": texts[winner],
        "segment": texts[winner],
        "ended": False,
        "finish": None,
        "winner": winner,
        "authors": [winner],
        "margin": 0.25,
        "dissent": 0.5,
        **numbers,
        "drafts": {
            name: {"text": text, "ended": False, "tokens": 3} for name, text in texts.items()
        },
        "scores": {judge: dict.fromkeys(texts, -1.25) for judge in texts},
        "votes": dict.fromkeys(texts, even),
        "seconds": {"draft": 0.25, "verify": 0.125},
        "tokens": {
            p: {n: {"read": 3, "reused": 9, "seconds": 0.1} for n in texts}
            for p in ("draft", "verify")
        },
        **more,
    }


def long(rounds: int) -> Trace:
    """As many rounds as a very long answer has."""
    dice = random.Random(7)
    words = SCRIPTS["ann"].split()
    names = ["member-0", "member-1", "member-2"]
    trace = Trace(question="A long story, please.")
    for number in range(1, rounds + 1):
        texts = {name: " " + " ".join(dice.choices(words, k=10)) for name in names}
        numbers = {name: {other: dice.random() for other in names} for name in names}
        weights = {name: dice.random() for name in names}
        trace.add(
            a_round(
                number, texts, dice.choice(names), votes=numbers, scores=numbers, weights=weights
            )
        )
    return trace
