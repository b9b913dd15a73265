"""What a million questions a day need, as a table: from ``benchmarks/sizing.json``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LINES = (
    ("queries_a_second", "questions a second, the day's mean", "{:.1f}"),
    ("queries_a_second_at_the_peak", "questions a second at the peak", "{:.1f}"),
    ("rounds_a_query", "rounds of an answer", "{:.1f}"),
    ("passes_a_round_and_member", "passes of each member in a round", "{:.1f}"),
    ("questions_to_each_member_a_second", "HTTP questions to each member a second, at the peak", "{:,.0f}"),
    ("tokens_drawn_by_each_member_a_second", "tokens that each member draws a second, at the peak", "{:,.0f}"),
    ("tokens_read_by_each_member_a_second", "tokens that each member reads a second, at the peak", "{:,.0f}"),
    ("processor_ms_a_query_here", "processor time of a question beside the engines", "{:.0f} ms"),
    ("processes_here", "processes of the front door, a core each", "{:.0f}"),
)
ENGINE = (
    ("replica_seconds_a_query", "seconds of one replica for a question", "{:.2f}"),
    ("replicas_of_each_member", "replicas of each member", "{:,.0f}"),
    ("answers_under_way", "answers under way at the peak", "{:,.0f}"),
)


def table(told: Mapping[str, Any]) -> str:
    """What is assumed, what was measured, what follows."""
    if not told:
        return "No numbers yet: `benchmarks/sizing.py` makes them.\n"
    wanted, measured, engine = told["wanted"], told["measured"], told["engine"]
    assumed = (
        f"Assumed: {wanted['queries_a_day']:,.0f} questions a day, {wanted['peak']:g} times the mean at the peak, "
        f"prompts of {wanted['prompt_tokens']:g} tokens ({100 * wanted['remembered']:g}% of them still in the cache), "
        f"answers of {wanted['answer_tokens']:g}, {wanted['members']} members that all draft "
        f"{wanted['segment_tokens']} tokens in every round, machines busy for at most {100 * wanted['busy']:g}%."
    )
    known = (
        f"Measured: {measured['tokens_a_round']:.1f} agreed tokens a round, {100 * measured['voted']:.0f}% of rounds "
        f"voted on (`latency.py`); for a round {measured['face_ms']:.2f} ms in the chat model and "
        f"{measured['door_ms']:.2f} ms in the door (`door.py`), {measured['question_ms']:.1f} ms for a member's draft "
        "and vote beside its engine (`serving.py`)."
    )
    stands = f"The last three lines stand for {engine['on']}: a draft takes {engine['draft_s']:.3f} s of it, a vote "
    stands += f"{engine['vote_s']:.3f} s. What reading prompts costs is not in them."
    rows = [f"| {words} | {form.format(told['needs'][key])} |" for key, words, form in (*LINES, *ENGINE)]
    return "\n".join([assumed, known, "", "| what | how much |", "|---|---|", *rows, "", stands, ""])
