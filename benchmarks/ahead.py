"""Would it pay to draft ahead, on the likely winner, while the last scores are still on their way?

An experiment that decides whether to build it. Real members answer questions; every round tells how long each drafted
and scored, and all scores. From these each round's time is computed as if every member had a machine of its own and
one of them, in turn, were some milliseconds of network away (added to each of its replies):

- *now*: the slowest draft, then the slowest score.
- *others ahead*: when all scores but the far member's are in, the others begin to draft on the likely winner. The far
  member drafts when its own scores are on their way back; it does one job at a time.
- *all ahead*: the far member too is sent its next draft before its scores are back: two jobs at once. Whoever guessed
  wrong drafts again, and what it had begun is counted as costing nobody else anything: this is a bound from above.

How often the guess is right is counted on the votes themselves. How the times of members relate to each other is
measured; how long a round takes is scaled to what it takes on one CPU thread that has nothing else to do, and to a
tenth of it, as if members were faster.

    python benchmarks/ahead.py [--questions 6] [--max-tokens 48]
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from latency import machine

from langchain_specfuse.core.values import Query, Round, Settings, Turn
from langchain_specfuse.core.voting import assurances, voices
from langchain_specfuse.demo import demo_members
from langchain_specfuse.engine import Ensemble
from langchain_specfuse.members.transformers import TransformersMember

LATENCIES_MS = (0, 20, 100)
ROUNDS_MS = (1500, 150)
"""What a voted round takes without any network, in the median: about as on one CPU thread, and a tenth of it."""
QUESTIONS = (
    "Why is the sky blue?",
    "List five things to pack for a weekend at the beach.",
    "How does a lighthouse work?",
    "Explain what a prime number is.",
    "Write a short letter to a friend about rain.",
    "What is bread made of?",
)


def members() -> list[TransformersMember]:
    """The demo's two, and the first once more with another role."""
    smol, gemma = demo_members()
    third = TransformersMember(smol.source.model, name="expert", system_prompt="You are an expert. Be precise.")
    return [smol, gemma, third]


def guessed(item: Round, far: str) -> bool:
    """Whether the votes of all but the far member choose what was chosen in the end."""
    scores = {judge: row for judge, row in item.scores.items() if judge != far}
    loud = voices(
        assurances("assured", "mean_logprob", {j: list(row.values()) for j, row in scores.items()}), item.weights_before
    )
    totals = {
        name: sum(loud[j] * item.votes[j][name] for j in loud) for name in item.totals if name in item.scores[far]
    }
    likely = max(totals, key=lambda name: (round(totals[name], 12), item.weights_before[name]))
    return likely in item.authors


def own_s(item: Round) -> float:
    """What the round takes without any network."""
    return sum(max(effort.seconds for effort in item.efforts[phase].values()) for phase in ("draft", "verify"))


def times(item: Round, far: str, late_s: float, speed: float) -> dict[str, float]:
    """Seconds of this round under each way, up to where the next round's drafts are all there."""
    draft = {name: effort.seconds / speed for name, effort in item.efforts["draft"].items()}
    score = {name: effort.seconds / speed for name, effort in item.efforts["verify"].items()}
    others_score = max(seconds for name, seconds in score.items() if name != far)
    others_draft = max(seconds for name, seconds in draft.items() if name != far)
    voted = max(score[far] + late_s, others_score)
    now = voted + max(draft[far] + late_s, others_draft)
    if not guessed(item, far):
        return {"now": now, "others ahead": now, "all ahead": now}
    return {
        "now": now,
        "others ahead": max(voted + draft[far] + late_s, others_score + others_draft),
        "all ahead": max(voted, others_score + others_draft, max(others_score, score[far]) + draft[far] + late_s),
    }


def told(rounds: Sequence[Round], late_ms: int, round_ms: int) -> dict[str, Any]:
    """All rounds, with each member as the far one."""
    speed = statistics.median(map(own_s, rounds)) * 1000 / round_ms
    cases = [(item, far) for item in rounds for far in item.efforts["verify"]]
    spent = [times(item, far, late_ms / 1000, speed) for item, far in cases]
    now = sum(one["now"] for one in spent)
    return {
        "late_ms": late_ms,
        "round_ms_without": round_ms,
        "round_ms": round(1000 * statistics.median(one["now"] for one in spent), 1),
        "others_ahead_saves_percent": round(100 * (1 - sum(one["others ahead"] for one in spent) / now), 2),
        "all_ahead_saves_percent": round(100 * (1 - sum(one["all ahead"] for one in spent) / now), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--questions", type=int, default=len(QUESTIONS))
    parser.add_argument("--max-tokens", type=int, default=48)
    given = parser.parse_args()
    ensemble, found = Ensemble(members()), []
    settings = Settings(max_tokens=given.max_tokens, exit="never")
    for text in QUESTIONS[: given.questions]:
        found += [r for r in ensemble.rounds(Query(text, (Turn("user", text),)), settings) if len(r.scores) == 3]
    cases = [guessed(item, far) for item in found for far in item.scores]
    result = {
        "machine": machine(),
        "rounds": len(found),
        "guessed_right_percent": round(100 * statistics.mean(cases), 1),
        "measured_round_ms": round(1000 * statistics.median(map(own_s, found)), 1),
        "ways": [told(found, late, each) for each in ROUNDS_MS for late in LATENCIES_MS],
    }
    print(json.dumps(result, indent=1))
    Path(__file__).with_suffix(".json").write_text(json.dumps([result], indent=1) + "\n")


if __name__ == "__main__":
    main()
