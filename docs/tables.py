"""The measured tables of the docs, made from the results in ``benchmarks/*.json`` and from a recorded run.

Each function takes the results of one script and returns Markdown. ``build.py`` puts the tables into the pages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Result = Mapping[str, Any]
Results = Sequence[Result]

NOTHING = "No results yet: `make bench` writes them.\n"
ENGINES = {"llama.cpp": "llama.cpp", "vllm": "vLLM"}


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """The lines of a Markdown table."""
    return [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|", *(f"| {' | '.join(map(str, r))} |" for r in rows)]


def source(script: str, result: Result, *details: str) -> str:
    """Which script made a table, when and where, as far as the result says so."""
    facts = "; ".join(filter(None, (*details, result.get("machine"), result.get("clock"))))
    return f"*Made by `benchmarks/{script}.py`{_made(result)}. {facts[:1].upper()}{facts[1:]}.*"


def _made(result: Result) -> str:
    """The commit and the date of a result."""
    return f" at commit `{result['commit']}`, {result.get('date', '')}" if result.get("commit") else ""


def _joined(*parts: str | Sequence[str]) -> str:
    """Paragraphs and tables with empty lines between them."""
    return "\n\n".join(part if isinstance(part, str) else "\n".join(part) for part in parts) + "\n"


def _ms(value: float) -> str:
    return f"{value:.2f} ms" if value < 10 else f"{value:.0f} ms"


# --- the numbers of the README ----------------------------------------------------------------------------------

NUMBERS = (
    ("latency", "speedup_over_uncached", "without caches the same method takes {0:g} times as long"),
    ("latency", "over_floor", "an answer takes {0:g} times as long as the bare forward passes that its rounds need"),
    (
        "latency",
        "late_round_over_early",
        "a late round (11 to 13) costs {0:g} times an early one (2 to 4), per drafted token",
    ),
    (
        "latency",
        "first_segment_sooner",
        "an ensemble that chooses among whole answers shows its first word {0:g} times later",
    ),
    ("constrained", "round_over_free", "a round under a schema of {keys} keys takes {0:g} times as long as without"),
    ("constrained", "token_over_free", "a drafted token under that schema costs {0:g} times as much"),
)
"""Script, key, and a sentence; other keys of the same result may stand in it by name."""


def numbers(results: Mapping[str, Results]) -> str:
    """One row per number and precision, each with its script."""
    rows, last = [], {}
    for script, key, sentence in NUMBERS:
        for result in results.get(script, ()):
            if key in result:
                rows.append((sentence.format(result[key], **result), result["dtype"], f"`benchmarks/{script}.py`"))
                last[script] = result
    if not rows:
        return NOTHING
    first = next(iter(last.values()))
    facts = [" and ".join(first.get("members", ())), f"torch {first['torch']}"]
    if latency := last.get("latency"):
        facts.append(f"prompt of {latency['prompt_tokens']} tokens, answer of {latency['answer_tokens']}, greedy")
    facts += [
        f"`{script}` on {result['machine']}, {result['clock'].split(',')[0]},{_made(result)}"
        for script, result in last.items()
        if result.get("commit")
    ]
    return _joined(table(("measured", "in", "script"), rows), f"*{'; '.join(filter(None, facts))}.*")


# --- one recorded answer ----------------------------------------------------------------------------------------


def recorded_answer(run: Mapping[str, Any]) -> str:
    """What the recorded answer cost, by member."""
    rounds: Results = run["rounds"]
    agreed = sum(item["drafts"][item["winner"]]["tokens"] for item in rounds)
    drafted = sum(draft["tokens"] for item in rounds for draft in item["drafts"].values())
    seconds = {phase: sum(item["seconds"].get(phase, 0.0) for item in rounds) for phase in ("draft", "verify")}
    share = f"{seconds['draft'] / sum(seconds.values()):.0%}"
    text = (
        f"`{run['command']}` took {len(rounds)} rounds: {agreed} tokens agreed, {drafted} drafted, "
        f"{drafted - agreed} of them discarded. Drafting took {share} of the time, scoring the rest."
    )
    heads = ("member", "read for its first draft", "for later drafts", "to score", "reused from its cache")
    rows = [(name, *_tokens(name, rounds)) for name in rounds[0]["drafts"]]
    return _joined(text, table(heads, rows), "Each member's own tokens; the first draft includes the prompt.")


def _tokens(name: str, rounds: Results) -> tuple[int, int, int, int]:
    """Tokens read for the first draft, for later drafts and to score, and tokens reused."""
    by_phase = {
        phase: [item["tokens"][phase][name] for item in rounds if name in item["tokens"].get(phase, {})]
        for phase in ("draft", "verify")
    }
    first, *later = by_phase["draft"]
    reused = sum(effort["reused"] for efforts in by_phase.values() for effort in efforts)
    read_later, read_votes = (sum(effort["read"] for effort in some) for some in (later, by_phase["verify"]))
    return first["read"], read_later, read_votes, reused


# --- in this process --------------------------------------------------------------------------------------------


def engines(results: Results) -> str:
    """The same models read by llama.cpp and by transformers."""
    if not results:
        return NOTHING
    rows = []
    for row in results[0]["rows"]:
        speed, first = row["tokens_per_second"], row["first"]
        times = f"{speed['llama.cpp'] / speed['transformers']:.1f} times"
        shown = (f"{speed['llama.cpp']:.1f}", f"{speed['transformers']:.1f}", times)
        sooner = f"{first['transformers'] / first['llama.cpp']:.1f} times"
        rows.append((f"{row['ensemble']}: {row['members']}", str(row["prompt"]), *shown, sooner))
    heads = ("members", "prompt", "llama.cpp, tokens/s", "transformers", "speed-up", "first segment: speed-up")
    return _joined(table(heads, rows), source("engines", results[0], "4 to 5 bits against float32"))


OWN = {
    "over_bare_calls": "time of an answer ÷ time in `llama_decode`",
    "over_plain_loop": "tokens a second of {} alone, over a plain loop of `llama_decode`",
    "eight_at_once": "speed-up of eight questions at once",
    "eight_at_once_bare": "the same, counting only `llama_decode` at once",
    "first_over_whole_answers": "time to the first segment, over that of whole answers that are then voted on",
    "first_segment_s": "seconds from the start of a process to the first segment",
    "resident_mb": "most memory that the process held, in MB",
}


def llamacpp(results: Results) -> str:
    """What the ensemble adds to llama.cpp."""
    if not results:
        return NOTHING
    found = {size: {**results[-1]["itself"][size], **results[-1]["start"][size]} for size in results[-1]["itself"]}
    rows = [
        (size, OWN[key.split()[0]].format(key.split()[-1]), f"{value:.0f}" if value > 100 else f"{value:.2f}")
        for size, values in found.items()
        for key, value in values.items()
    ]
    return _joined(table(("ensemble", "what", "measured"), rows), source("engines", results[-1], "medians"))


def prefix(results: Results) -> str:
    """The first segment when most of the prompt has been read before."""
    if not results:
        return NOTHING
    rows = []
    for result in results:
        for one in result["prompts"]:
            name, tokens = next(iter(one["prompt_tokens"].items()))
            known = one["not_read_again"][name]
            rows.append((one["what"], result["dtype"], f"{known} of {tokens}", f"{one['sooner']:g} times"))
    heads = ("prompt", "in", f"tokens known before ({name})", "first segment sooner by")
    return _joined(table(heads, rows), source("prefix", results[0], " and ".join(results[0]["members"])))


def load(results: Results) -> str:
    """How long the first segment takes under load, and what one long prompt does to the others."""
    if not results:
        return NOTHING
    first = results[0]
    times = ("first segment, median", "99th percentile")
    rates = [
        (f"{one['rate']:.2f}", *(f"{one[key]:.2f} times" for key in ("p50_to_alone", "p99_to_alone")))
        for one in first["load"]["rates"]
    ]
    gaps = [
        (others, how, *(f"{one[how][key]:.2f} times" for key in ("p99", "longest")))
        for others, one in first.get("long", {}).items()
        for how in ("calm", "beside")
    ]
    heads = ("others", "beside a long prompt", "time between their segments, 99th percentile", "longest")
    made = source("load", first, " and ".join(first["members"]), f"{first['arrivals']} questions per rate")
    arrivals = table(("questions in the time of one answer", *times), rates)
    return _joined(arrivals, *([table(heads, gaps)] if gaps else []), made)


def tracing(results: Results) -> str:
    """What a round costs the thread that reads the answer."""
    if not results:
        return NOTHING
    first = results[0]
    rows = [
        (f'`"{depth}"`', f"{spent['median'] / 1000:.2f} ms", f"{spent['nine_of_ten'] / 1000:.2f} ms")
        for depth, spent in first["microseconds_per_round"].items()
    ]
    beside = f"a round of these members takes {first['round_ms']:.0f} ms"
    return _joined(table(("`trace`", "per round, median", "90th percentile"), rows), source("tracing", first, beside))


# --- over HTTP and on a cluster ---------------------------------------------------------------------------------


def endpoint(results: Results) -> str:
    """What the endpoint adds to a segment."""
    if not results:
        return NOTHING
    rows = [
        (one["streams"], _ms(one["endpoint_ms_per_segment"]), _ms(one["chat_model_ms_per_segment"])) for one in results
    ]
    heads = ("streams at once", "endpoint, per segment", "chat model, per segment")
    return _joined(table(heads, rows), source("endpoint", results[0], "scripted members, processor time of the server"))


def serving(results: Results) -> str:
    """A draft and a vote of a member on a server."""
    if not results:
        return NOTHING
    heads = ("engine", "prompt", "tokenizer", "a draft", "not the engine", "scoring 3 drafts", "not the engine")
    rows = []
    for one in results:
        where = "local" if one["tokenizer"] == "local" else "the server's"
        spent = [
            text
            for phase in (one["draft"], one["vote"])
            for text in (f"{_ms(phase['ms'])} ({phase['tokens']:.0f} tokens)", _ms(phase["beside_ms"]))
        ]
        rows.append((ENGINES[one["engine"]], one["prompt"], where, *spent))
    empty = f"an empty request takes {results[0]['http_ms']:.1f} ms"
    return _joined(table(heads, rows), source("serving", results[0], "SmolLM2-135M, engine on one thread", empty))


def serving_rounds(results: Results) -> str:
    """What a round takes beyond its slowest member, and what many questions at once gain."""
    if not results:
        return NOTHING
    ways = [(one, where) for one in results for where in ("local", "server") if f"overhead_{where}" in one]
    rows = []
    for one, where in ways:
        found = one[f"overhead_{where}"]
        added = f"{_ms(found['overhead_ms'])} ({found['overhead_percent']:.1f}%)"
        tokenizer = "local" if where == "local" else "the server's"
        rows.append((ENGINES[one["engine"]], tokenizer, _ms(found["round_ms"]), _ms(found["own_ms"]), added))
    gains = [
        f"{ENGINES[one['engine']]}, one member: {one['crowd']['at_once']} questions at once finish "
        f"{one['crowd']['gain']:.1f} times as fast as one after another."
        for one in results
        if "crowd" in one
    ]
    heads = ("engine", "tokenizer", "a round", "of it the slowest member's engine", "added")
    made = source("serving_rounds", results[0], "two members of SmolLM2-135M on one engine, medians")
    return _joined(table(heads, rows), *gains, made)


def ray(results: Results) -> str:
    """What a call to a member behind a Ray actor adds."""
    calls = [one for one in results if "more_ms" in one]
    if not calls:
        return NOTHING
    rows = [
        (one["member"], one["node"], one["jobs"], one["segments"], f"{one['ms']:.1f} ms", f"{one['more_ms']:.1f} ms")
        for one in calls
    ]
    heads = ("member", "node", "jobs per call", "agreed segments", "a call", "of it Ray")
    two = f"a cluster of two nodes on one machine, Ray {calls[0]['ray']}, medians"
    return _joined(table(heads, rows), source("ray_calls", calls[0], two))


# --- studies ----------------------------------------------------------------------------------------------------


def lead(results: Results) -> str:
    """A strong lead that a weak member may correct, against the lead alone."""
    if not results:
        return NOTHING
    rules: dict[str, dict[str, Result]] = {}
    for row in results[0]["rows"]:
        rules.setdefault(row["rule"], {})[row["set"]] = row
    alone = rules.pop("lead")
    (corrected,) = rules.values()
    heads = ("questions", "number", "the lead alone", "corrected", "won", "lost", "p", "passes", "seconds")
    rows = [
        (
            f"**{name}**" if name == "all" else name, row["questions"], f"{alone[name]['right']:.0f}",
            f"{row['right']:.0f}", row["wins"], row["losses"], f"{row['p']:.2f}",
            f"{row['passes']:.2f} times", f"{row['seconds']:.2f} times",
        )
        for name, row in corrected.items()
    ]  # fmt: skip
    return _joined(table(heads, rows), source("lead", results[0]).replace("benchmarks/", "studies/"))


def skills(results: Mapping[str, Result], members: str) -> str:
    """The vote of members that differ in skill, against each of them, a router and the published weighing."""
    worlds = [
        world for world in dict(results).values() if world["about"]["arguments"].get("members", "tiny") == members
    ]
    if not worlds:
        return NOTHING
    marks = {
        way: "".join(world["ways"][way]["marks"].replace(" ", "") for world in worlds) for way in worlds[0]["ways"]
    }
    ours = marks.pop("ours")
    rows = [("**the vote, as by default**", f"{ours.count('1')} of {len(ours)}", "", "")]
    for way, found in marks.items():
        pairs = list(zip(ours, found, strict=True))
        won, lost = (sum(one == wanted for one in pairs) for wanted in (("1", "0"), ("0", "1")))
        rows.append((way, f"{found.count('1')} of {len(found)}", won, lost))
    heads = ("way", "right", "the vote won", "the vote lost")
    return _joined(table(heads, rows), source("specialists", worlds[0]["about"]).replace("benchmarks/", "studies/"))
