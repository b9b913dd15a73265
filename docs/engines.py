"""What members elsewhere cost, as tables: from ``benchmarks/serving.json`` and ``benchmarks/ray_calls.json``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

NAMES = {"llama.cpp": "llama.cpp", "vllm": "vLLM"}
COLUMNS = (
    "engine",
    "prompt",
    "tokenizer",
    "a draft",
    "not the engine",
    "a vote on 3 drafts",
    "not the engine",
)


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """A row per engine, tokenizer and prompt."""
    if not results:
        return "No numbers yet: `benchmarks/serving.py` makes them where there is an engine.\n"
    rows = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|", *map(_row, results)]
    told = f"SmolLM2-135M, the engine on one thread beside the member ({results[0]['machine']}). A question without any"
    told += f" work takes {results[0]['http_ms']:.1f} ms. Made by `benchmarks/serving.py`."
    return "\n".join([*rows, "", told, ""])


def _row(one: Mapping[str, Any]) -> str:
    where = "here" if one["tokenizer"] == "local" else "the server's"
    numbers = [cell for phase in ("draft", "vote") for cell in _spent(one[phase])]
    return f"| {' | '.join([NAMES[one['engine']], str(one['prompt']), where, *numbers])} |"


def _spent(phase: Mapping[str, Any]) -> list[str]:
    """In all, with how many tokens, and what of it was not the engine's."""
    return [f"{phase['ms']:.0f} ms ({phase['tokens']:.0f} tokens)", f"{phase['beside_ms']:.0f} ms"]


def rounds(results: Sequence[Mapping[str, Any]]) -> str:
    """What a round takes beside its slowest member's own answers, and what a crowd gains."""
    if not results:
        return "No numbers yet: `benchmarks/serving_rounds.py` makes them where there is an engine.\n"
    heads = ("engine", "tokenizer", "a round", "the slowest member's own answers", "what is added", "in nine of ten")
    rows = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    ways = [(one, where) for one in results for where in ("local", "server")]
    rows += [_round(one, where) for one, where in ways if f"overhead_{where}" in one]
    told = f"Two members of SmolLM2-135M on one engine ({results[0]['machine']}); medians. "
    told += "Made by `benchmarks/serving_rounds.py`."
    gains = [_gain(one["engine"], one["crowd"]) for one in results if "crowd" in one]
    return "\n".join([*rows, "", told, "", *gains, ""])


def _gain(engine: str, crowd: Mapping[str, Any]) -> str:
    each = ", ".join(f"{gain:.1f}" for gain in crowd["gain_each"])
    return (
        f"- {NAMES[engine]}, one member: {crowd['at_once']} questions at once are done {crowd['gain']:.1f} times as "
        + (f"fast as one after another ({each} in turn).")
    )


def _round(one: Mapping[str, Any], where: str) -> str:
    told = one[f"overhead_{where}"]
    cells = [
        NAMES[one["engine"]],
        "here" if where == "local" else "the server's",
        f"{told['round_ms']:.0f} ms",
        f"{told['own_ms']:.0f} ms",
        f"{told['overhead_ms']:.0f} ms ({told['overhead_percent']:.1f}%)",
        f"at most {told['nine_of_ten_percent']:.1f}%",
    ]
    return f"| {' | '.join(cells)} |"


def ray_table(results: Sequence[Mapping[str, Any]]) -> str:
    """What a member behind an actor costs more than one in this process, call by call."""
    calls = [one for one in results if "more_ms" in one]
    if not calls:
        return "No numbers yet: `benchmarks/ray_calls.py` makes them where Ray is installed.\n"
    rows = ["| member | node | jobs a call | agreed segments | in all | of that Ray | of that Ray, quietest quarter |"]
    rows += ["|---" * 7 + "|"]
    for one in calls:
        cells = [one["member"], one["node"], one["jobs"], one["segments"], f"{one['ms']:.1f} ms"]
        cells += [f"{one['more_ms']:.1f} ms", f"{one['more_ms_p25']:.1f} ms"]
        rows.append(f"| {' | '.join(map(str, cells))} |")
    starts = "; ".join(
        f"{one['member']} ({one['node']}) {min(one['restart_s']):.1f} to {max(one['restart_s']):.1f} s"
        for one in results
        if "restart_s" in one
    )
    told = f"A cluster of two nodes on one machine ({calls[0]['machine']}, Ray {calls[0]['ray']}), which others used"
    told += f" meanwhile; medians. From the death of a process to a reply of the next: {starts}."
    return "\n".join([*rows, "", f"{told} Made by `benchmarks/ray_calls.py`.", ""])
