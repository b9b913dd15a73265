"""The numbers of the page about costs, as tables: what one recorded answer took, what traces and the door take.

Knows recorded rounds and a benchmark's results; ``build.py`` puts the tables in their places.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Rounds = Sequence[Mapping[str, Any]]


def one_answer(run: Mapping[str, Any]) -> str:
    """What the recorded answer took, member by member."""
    rounds: Rounds = run["rounds"]
    agreed = sum(item["drafts"][item["winner"]]["tokens"] for item in rounds)
    drafted = sum(draft["tokens"] for item in rounds for draft in item["drafts"].values())
    told = f"The answer of the [recorded run](pictures/run.html), `{run['command']}`: {len(rounds)} rounds,"
    told += f" {agreed} tokens agreed, {drafted} drafted, {drafted - agreed} of them in vain."
    shares = {phase: sum(item["seconds"].get(phase, 0.0) for item in rounds) for phase in ("draft", "verify")}
    told += f" Drafting took {shares['draft'] / sum(shares.values()):.0%} of the time, voting the rest."
    head = "| member | read for its first draft, prompt and all | for later drafts | to vote | reused from its cache |"
    rows = [head, "|---|---|---|---|---|", *(_row(name, rounds) for name in rounds[0]["drafts"])]
    return "\n".join([told, "", *rows, "", "(Tokens, each member's own.)", ""])


def _row(name: str, rounds: Rounds) -> str:
    first, *later = _efforts("draft", name, rounds)
    votes = _efforts("verify", name, rounds)
    drafting, voting = (sum(effort["read"] for effort in some) for some in (later, votes))
    reused = sum(effort["reused"] for effort in (first, *later, *votes))
    return f"| {name} | {first['read']} | {drafting} | {voting} | {reused} |"


def _efforts(phase: str, name: str, rounds: Rounds) -> list[Mapping[str, Any]]:
    """What a member did in this phase of each round, as long as it was in."""
    return [item["tokens"][phase][name] for item in rounds if name in item["tokens"].get(phase, {})]


def traces(results: Sequence[Mapping[str, Any]]) -> str:
    """What a round costs the reading thread, by how deep traces go."""
    if not results:
        return "No numbers yet: `make bench` makes them.\n"
    run = results[0]
    rows = ["| `trace` | a round, in the median | nine of ten rounds, at most |", "|---|---|---|"]
    rows += [
        f"| `{depth!r}` | {_ms(spent['median'])} | {_ms(spent['nine_of_ten'])} |".replace("'", '"')
        for depth, spent in run["microseconds_per_round"].items()
    ]
    told = f"Beside it, a round of these members took {run['round_ms']:.0f} ms ({run['dtype']}; {run['machine']})."
    return "\n".join([*rows, "", f"{told} Made by `benchmarks/tracing.py`.", ""])


def door(results: Sequence[Mapping[str, Any]]) -> str:
    """What a segment costs the front door, alone and in a crowd."""
    if not results:
        return "No numbers yet: `make bench` makes them.\n"
    rows = ["| streams at once | the door, for a segment | the chat model and scripted members |", "|---|---|---|"]
    rows += [
        f"| {run['streams']} | {run['door_ms_per_segment']:.2f} ms | {run['chat_model_ms_per_segment']:.2f} ms |"
        for run in results
    ]
    told = f"Processor time of the server's process, the median of {results[0]['pairs']} and {results[-1]['pairs']} "
    told += f"pairs ({results[0]['machine']}). The bound is {results[0]['most_ms']:g} ms. Made by `benchmarks/door.py`."
    return "\n".join([*rows, "", told, ""])


def _ms(microseconds: float) -> str:
    return f"{microseconds / 1000:.2f} ms"
