"""The numbers of the page about costs, as tables: what one recorded answer took, what traces and the door take.

Knows recorded rounds and a benchmark's results; ``build.py`` puts the tables in their places.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_specfuse.evaluation.statistics import difference

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


def kin(results: Sequence[Mapping[str, Any]]) -> str:
    """What four members of one base cost beside one."""
    if not results:
        return "No numbers yet: `make bench` makes them.\n"
    run = results[0]
    rows = ["| beside one member | memory | a round, in one batch | a round, taking turns |", "|---|---|---|---|"]
    rows += [
        f"| {name} | {one['memory_of_four_to_alone']:.2f} times | {one['one_batch_to_alone']:.2f} times |"
        f" {one['in_turns_to_alone']:.2f} times |"
        for name, one in run["ensembles"].items()
    ]
    floor = run["floor"]
    told = (
        f"{run['base']}, {run['dtype']}, {run['clock']} ({run['machine']}); adapters of rank 16 on every linear layer."
    )
    told += " A member alone votes on nothing. This processor computes rather than waits for memory, and cannot do much"
    told += (
        f" better: a step of four rows costs {floor['step_of_four_rows_to_one']:.2f} steps of one, and the pass that"
    )
    told += (
        f" reads everybody's drafts for everybody {floor['scoring_pass_to_step_of_one']:.1f}; with nothing else that"
    )
    told += f" makes {floor['round_at_least']:.2f} times a round of one. Four adapters add"
    told += f" {floor['four_adapters_add_to_a_step']:.0%} to a step of four rows"
    peft = floor.get("four_adapters_of_peft_add_to_a_step")
    told += f" (peft's mixed batches: {peft:.0%})" if peft is not None else ""
    return "\n".join([*rows, "", f"{told}. Made by `benchmarks/kin.py`.", ""])


def memory(results: Sequence[Mapping[str, Any]]) -> str:
    """What an ensemble does with less memory than it would like."""
    if not results:
        return "No numbers yet: `make bench` makes them.\n"
    head = "| may take | most that was held | of it caches | high-water mark of the process | weights moved "
    rows = [head + "| tokens read | speed | same answers |", "|---|---|---|---|---|---|---|---|"]
    rows += [
        f"| {one['share']:.0%}: {one['budget_mb']} MB | {one['most_held_mb']} MB | {one['most_caches_mb']} MB "
        f"| +{one['high_water_over_bare_process_mb']} MB | {one['weights_moved']} times "
        f"| {one['tokens_read']} | {one['speed']:g} | {one['same_answers']} of {run['questions']} |"
        for run in results
        for one in run["budgets"]
    ]
    run = results[0]
    told = (
        f"{', '.join(run['members'])} ({run['dtype']}, {run['weights_mb']} MB of weights), {run['questions']} questions"
    )
    told += (
        f" at once. With all the memory there is, caches held {run['caches_mb']} MB. Speed: tokens a processor second,"
    )
    told += (
        f" against 100%. The high-water mark is the system's own, over the process without weights ({run['machine']})."
    )
    return "\n".join([*rows, "", f"{told} Made by `benchmarks/memory.py`.", ""])


STARTS = {
    "bytes": "the weights' files read, and nothing else",
    "weights": "transformers alone: imports, tokenizers, models, every weight looked at once",
    "plain": "the same, and ten tokens written by each model with `generate`",
    "first": "the ensemble's first segment, the very first time",
    "again": "the ensemble's first segment, at every later start",
}


def startup(results: Sequence[Mapping[str, Any]]) -> str:
    """What a start takes, up to the first segment."""
    if not results:
        return "No numbers yet: `make bench` makes them.\n"
    run = results[0]
    seconds = run["seconds"]
    rows = ["| from the process's start to | seconds | of them imports |", "|---|---|---|"]
    rows += [
        f"| {told} | {seconds[kind]['end']:.1f} | {seconds[kind].get('imports', 0.0):.1f} |"
        for kind, told in STARTS.items()
    ]
    told = f"{run['clock'].capitalize()}; {run['dtype']}, {run['weights_mb']} MB, {run['machine']}; medians of "
    told += f"{run['repeats']}. A later start takes {run['again_over_weights']:g} times what the weights take with "
    told += f"transformers alone, the very first {run['first_over_weights']:g} times. Made by `benchmarks/startup.py`."
    return "\n".join([*rows, "", told, ""])


def speculation(results: Mapping[str, Mapping[str, Any]]) -> str:
    """What guessing brings an ensemble with one large member, beside that member's own ``generate``."""
    if not results:
        return "No numbers yet: `make bench` makes them.\n"
    rows = ["| questions | `speculate` | tokens a second | passes a token | came true |", "|---|---|---|---|---|"]
    for run in results.values():
        for setting, told in run["settings"].items():
            share = "" if told["came_true"] is None else f"{told['came_true']:.0%} of {told['checked']}"
            where = f"{run['part']}, {run['dtype']}"
            pace = f"{told['tokens_per_second_beside_generate']:.2f}"
            rows.append(f"| {where} | {setting} | {pace} | {told['passes_per_token']:.2f} | {share} |")
    first = next(iter(results.values()))
    told = f"{first['questions']} questions each, {first['tokens']} tokens; {first['clock']} ({first['machine']}). "
    told += (
        "Tokens a second are a ratio to `generate`, passes are the large member's. Made by `benchmarks/speculation.py`."
    )
    return "\n".join([*rows, "", told, ""])


PASSES = {
    "vague": "unsure",
    "misled": "sure of what is wrong",
    "vague two": "unsure, questions of two parts",
    "misled two": "sure of what is wrong, two parts",
    "demo": "the demo's two models, five manners",
}
"""Who the five members are, in the parts of ``benchmarks/passes.py``."""
WAYS = ("each alone", "each alone, guesses", "all draft", "all draft, guesses", "one drafts", "one drafts, guesses")


def passes(results: Mapping[str, Mapping[str, Any]]) -> str:
    """What a token of five members' answers costs under each way to draft, and how many answers are right."""
    rows = ["| members | segment | drafts | passes a token | right | beside all draft |", "|---|---|---|---|---|---|"]
    for part, who in PASSES.items():
        cells = results.get(part, {})
        for length in ("", ", 10 tokens"):
            every = _marks(cells.get(f"all draft{length}"))
            for way in WAYS:
                if cell := cells.get(way + length):
                    size = 10 if length or part == "demo" else 8
                    told = _right(cell, [] if "each" in way or way == "all draft" else every)
                    rows.append(f"| {who} | {size} | {way} | {cell['passes_a_token']:.2f} | {told} |")
    told = (
        "Right are parts of answers, to the letter; beside them what is won or lost against `all draft` in points, on "
    )
    told += "the same questions (95% interval). Each alone: the worst and the best. Made by `benchmarks/passes.py`."
    whole = [_together(results, length) for length in ("", ", 10 tokens")]
    return "\n".join([*rows, "", *whole, told, ""])


def _together(results: Mapping[str, Mapping[str, Any]], length: str) -> str:
    """One drafter with guesses, over all sets of questions."""
    sets = [cells for cells in results.values() if _marks(cells.get("one drafts, guesses" + length))]
    cells = [one["one drafts, guesses" + length] for one in sets]
    spent = sum(cell["passes"] for cell in cells) / sum(cell["tokens"] for cell in cells)
    marks = [mark for cell in cells for mark in _marks(cell)]
    apart = difference(marks, [mark for one in sets for mark in _marks(one["all draft" + length])])
    told = f"`drafters=1, speculate=True` with segments of {10 if length else 8} tokens, all sets together: "
    told += (
        f"{spent:.2f} passes a token, {100 * apart.mean:+.1f} [{100 * apart.low:+.1f}, {100 * apart.high:+.1f}] points "
    )
    return told + f"on {len(marks)} parts.\n"


def _marks(cell: Mapping[str, Any] | None) -> list[float]:
    return [float(mark) for mark in cell["marks"][0]] if cell and len(cell.get("marks", ())) == 1 else []


def _right(cell: Mapping[str, Any], every: Sequence[float]) -> str:
    """The share of right parts, and how far it is from that of ``every``."""
    shares = [marks.count("1") / len(marks) for marks in cell.get("marks", ())]
    told = " to ".join(f"{share:.0%}" for share in sorted({min(shares), max(shares)})) if shares else ""
    if not every:
        return f"{told} | "
    apart = difference(_marks(cell), every)
    return f"{told} | {100 * apart.mean:+.1f} [{100 * apart.low:+.1f}, {100 * apart.high:+.1f}]"


def _ms(microseconds: float) -> str:
    return f"{microseconds / 1000:.2f} ms"
