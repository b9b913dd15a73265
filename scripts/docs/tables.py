"""Make the measured tables of the docs from the results in ``benchmarks/*.json`` and from a
recorded run.

Each function takes the results of one script and returns Markdown. ``build.py`` inserts the tables
into the pages.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Result = Mapping[str, Any]
Results = Sequence[Result]


def nothing(script: str) -> str:
    """What stands in place of a table whose results do not exist yet."""
    return f"*No results yet: `{script}.py` writes them.*\n"


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """The lines of a Markdown table."""
    return [
        f"| {' | '.join(heads)} |",
        "|---" * len(heads) + "|",
        *(f"| {' | '.join(map(str, r))} |" for r in rows),
    ]


def source(script: str, about: Result, *notes: str) -> str:
    """The line below a table: the script that made it, when and where, if the result has them."""
    facts = "; ".join(filter(None, (*notes, about.get("machine"), about.get("clock"))))
    when = ""
    if about.get("commit"):
        when = f" at commit `{about['commit']}`, {about['date']}"
    details = f" {facts[:1].upper()}{facts[1:]}." if facts else ""
    return f"*Made by `{script}.py`{when}.{details}*"


def _joined(*parts: str | Sequence[str]) -> str:
    """Paragraphs and tables with empty lines between them."""
    return "\n\n".join(part if isinstance(part, str) else "\n".join(part) for part in parts) + "\n"


def _ms(value: float) -> str:
    return f"{value:.2f} ms" if value < 10 else f"{value:.0f} ms"


# --- what people would use instead ----------------------------------------------------------------

WAYS = {
    "server": "{} in llama-server",
    "alone": "{} alone",
    "led": "together, {} leads",
    "all": "together, all draft",
    "whole": "whole answers, then a vote",
    "servers": "together on llama-servers, all draft",
    "transformers": "together in transformers, all draft",
}


def _speeds(ways: Mapping[str, Result]) -> dict[str, float]:
    """Kind of way (a key of ``WAYS``) -> tokens per second; ``default`` is one of them."""
    speeds = {way.split()[0]: one["tokens_per_second"] for way, one in ways.items()}
    return speeds | {"default": speeds.get("led", speeds["all"])}


def engines(results: Result) -> str:
    """Tokens per second, also in those of one model alone, and the first text."""
    parts, same = [], []
    for size, found in results["ensembles"].items():
        ways = dict(
            sorted(found["ways"].items(), key=lambda item: list(WAYS).index(item[0].split()[0]))
        )
        default = "led" if any(way.startswith("led ") for way in ways) else "all"
        bases = [way for way in ways if way.startswith(("server ", "alone "))]
        rows = []
        for way, one in ways.items():
            speed, name = (
                one["tokens_per_second"],
                _called(way) + " (the default)" * (way.split()[0] == default),
            )
            times = [f"{speed / ways[base]['tokens_per_second']:.2f}" for base in bases]
            rows.append((name, f"{speed:.1f}", *times, f"{one['first_s']:.1f} s"))
        heads = (
            f"demo `{size}`",
            "tokens/s",
            *(f"÷ {_called(base)}" for base in bases),
            "first text after",
        )
        parts.append(table(heads, rows))
        if "same_answer" in found:
            answer = "the same answer as" if found["same_answer"] else "another answer than"
            same.append(f"`{size}`: {answer} llama-server's")
    details = "a question of about 100 tokens, 4 to 5 bits (transformers: float32)"
    return _joined(*parts, source("benchmarks/engines", results["about"], details, *same))


def _called(way: str) -> str:
    kind, _, name = way.partition(" ")
    return WAYS[kind].format(name)


# --- one recorded answer --------------------------------------------------------------------------


def recorded_answer(run: Mapping[str, Any]) -> str:
    """What the recorded answer cost, by member."""
    rounds: Results = run["rounds"]
    agreed = sum(item["drafts"][item["winner"]]["tokens"] for item in rounds)
    drafted = sum(draft["tokens"] for item in rounds for draft in item["drafts"].values())
    seconds = {
        phase: sum(item["seconds"].get(phase, 0.0) for item in rounds)
        for phase in ("draft", "verify")
    }
    share = f"{seconds['draft'] / sum(seconds.values()):.0%}"
    text = (
        f"`{run['command']}` took {len(rounds)} rounds: {agreed} tokens agreed, {drafted} drafted, "
        f"{drafted - agreed} of them discarded. Drafting took {share} of the time, scoring the "
        "rest."
    )
    heads = (
        "member",
        "read for its first draft",
        "for later drafts",
        "to score",
        "reused from its cache",
    )
    rows = [(name, *_tokens(name, rounds)) for name in rounds[0]["drafts"]]
    return _joined(
        text, table(heads, rows), "Each member's own tokens; the first draft includes the prompt."
    )


def _tokens(name: str, rounds: Results) -> tuple[int, int, int, int]:
    """Tokens read for the first draft, for later drafts and to score, and tokens reused."""
    by_phase = {
        phase: [
            item["tokens"][phase][name] for item in rounds if name in item["tokens"].get(phase, {})
        ]
        for phase in ("draft", "verify")
    }
    first, *later = by_phase["draft"]
    reused = sum(effort["reused"] for efforts in by_phase.values() for effort in efforts)
    read_later, read_votes = (
        sum(effort["read"] for effort in some) for some in (later, by_phase["verify"])
    )
    return first["read"], read_later, read_votes, reused


# --- this package ---------------------------------------------------------------------------------

ROUNDS = {
    "over_bare_calls": "time of an answer, over that of the calls of `llama_decode` in it",
    "led_over_alone": "time of an answer whose lead is never corrected, over that of the lead "
    "alone (the same bytes)",
    "late_over_early": "time of a drafted token in a late round, over an early one",
    "schema_token_over_free": "time of a drafted token under a schema of 128 keys, over one "
    "without",
    "eight_at_once": "time of eight questions one after another, over that of the same at once",
    "first_segment_s": "time from the start of a process to its first segment",
    "resident_mb": "most memory that the process held",
}
UNITS = {"first_segment_s": "{:.1f} s", "resident_mb": "{:.0f} MB"}


def rounds(results: Result) -> str:
    """What the ensemble adds to llama.cpp."""
    sizes = results["ensembles"]
    rows = [
        (
            what,
            *(
                UNITS.get(key, "{:.2f} times").format(one[key]) if key in one else ""
                for one in sizes.values()
            ),
        )
        for key, what in ROUNDS.items()
        if any(key in one for one in sizes.values())
    ]
    heads = ("measured", *(f"demo `{size}`" for size in sizes))
    return _joined(table(heads, rows), source("benchmarks/rounds", results["about"], "medians"))


def reserve(results: Result) -> str:
    """What a reserve costs until it is needed, and how soon it goes on."""
    cost, hosted, about = results["cost"], results["hosted"], results["about"]
    lengths = {
        "short": "a short question",
        "long": f"a conversation of {about['arguments']['tokens']} tokens",
    }
    times = f"{cost['ratio']:.2f} times ({cost['lowest']:.2f} to {cost['highest']:.2f})"
    before, added = (cost[key] / 1e9 for key in ("bytes_before", "bytes_of_reserve"))
    rows = [
        ("time of an answer with a reserve, over that of the lead alone", times),
        ("memory of the reserve", f"{added:.2f} GB beside {before:.2f} GB"),
        *(
            (
                f"next text from a reserve {one['reserve']}, {lengths[one['conversation']]}",
                f"{one['s']:.2f} s",
            )
            for one in results["takeovers"]
        ),
        ("next text from a hosted reserve, at later takeovers", f"{hosted['later_s']:.2f} s"),
        ("next text from a hosted reserve, at its first takeover", f"{hosted['first_s']:.2f} s"),
    ]
    members = f"{results['lead']} leads, {results['reserve']} is in reserve"
    delays = "hosted: a reply begins after 0.4 s, and each word takes 20 ms"
    return _joined(
        table(("what", "measured"), rows),
        source("benchmarks/takeover", about, members, delays),
    )


def failover(results: Result) -> str:
    """What a caller gets from each system in each scenario of a public benchmark."""
    systems = results["systems"].values()
    first = next(iter(systems))["scenarios"]
    rows = [
        (f"{id} {one['title']}", *(_verdict(system["scenarios"][id]) for system in systems))
        for id, one in first.items()
    ]
    heads = ("scenario", *(system["label"] for system in systems))
    settings = [
        f"- {system['label']}: {system['settings']} ({_versions(system)})" for system in systems
    ]
    return _joined(table(heads, rows), settings, source("benchmarks/failover", results["about"]))


FAILOVER = {
    "pass": "as it should be",
    "partial": "late, or despite a refusal",
    "safe": "an error in time",
    "fail": "wrong or endless",
}
"""Verdicts of Failover Bench, in words."""


def failover_short(results: Result) -> str:
    """How many scenarios ended in each way."""
    rows = [
        (system["label"], *(system["counts"].get(kind, 0) for kind in FAILOVER))
        for system in results["systems"].values()
    ]
    heads = ("answers under 16 faults", *FAILOVER.values())
    return _joined(table(heads, rows), source("benchmarks/failover", results["about"]))


def _verdict(row: Result) -> str:
    found = row["verdict"] if row["verdict"] == "pass" else f"**{row['verdict']}**"
    if "recovered_s" in row:  # many answers, one after another
        return found
    if row["first_s"] and row["first_s"] > 5:
        return f"{found}, {row['s']:.1f} s (first text after {row['first_s']:.1f} s)"
    return f"{found}, {row['s']:.1f} s"


def _versions(system: Result) -> str:
    return ", ".join(f"{name} {version}" for name, version in system["packages"].items())


def prefix(results: Result) -> str:
    """The first segment when most of the prompt has been read before."""
    rows = [
        (
            one["what"],
            f"{one['not_read_again']} of {one['prompt_tokens']}",
            f"{one['sooner']:g} times",
        )
        for one in results["prompts"]
    ]
    heads = ("prompt", "tokens known before, all members", "first segment sooner by")
    same = (
        "the same first segment in "
        f"{sum(one['same_first_segment'] for one in results['prompts'])} of {len(rows)}"
    )
    return _joined(
        table(heads, rows),
        source("benchmarks/prefix", results["about"], " and ".join(results["members"]), same),
    )


def load(results: Result) -> str:
    """How long the first segment takes under load, and what one long prompt does to the others."""
    about, gaps = results["about"], results["long"]
    rates = [
        (
            f"{one['rate']:.2f}",
            *(f"{one[key]:.2f} times" for key in ("p50_to_alone", "p95_to_alone")),
        )
        for one in results["rates"]
    ]
    heads = ("questions in the time of one answer", "first segment, median", "95th percentile")
    names = {"calm": "none", "beside": f"one of {gaps['tokens']} tokens"}
    others = [
        (what, *(f"{gaps[how][key]:.2f} times" for key in ("p50", "p95", "longest")))
        for how, what in names.items()
    ]
    between = (
        "prompt that arrives",
        "time between segments of others, median",
        "95th percentile",
        "longest",
    )
    made = (
        " and ".join(results["members"]),
        f"{about['arguments']['arrivals']} questions per rate",
    )
    return _joined(
        table(heads, rates), table(between, others), source("benchmarks/load", about, *made)
    )


def served(results: Result) -> str:
    """The requests of a round on vLLM, and the time outside of the engine."""
    rows = []
    for at_once, one in results["outside"].items():
        rows.append(
            (
                at_once,
                _ms(one["ms_per_round"]),
                f"{one['drafts_per_round']:.2f}",
                f"{one['scores_per_round']:.2f}",
            )
        )
    heads = ("answers at once", "CPU time outside of the engines", "requests to draft", "to score")
    details = "a round of two members, requests of each"
    return _joined(table(heads, rows), source("benchmarks/served", results["about"], details))


def scorers(results: Result) -> str:
    """How long a vLLM server takes for scores, by each way."""
    ways = {"cache": "our middleware", "probes": "a token at a time", "echo": "whole prompts"}
    rows = [
        (ways[name], *(f"{seconds:.3g} s" for seconds in row.values()))
        for name, row in results["scorers"].items()
    ]
    heads = ("", *next(iter(results["scorers"].values())))
    return _joined(
        table(heads, rows),
        source("benchmarks/scorers", results["about"], "SmolLM2-135M, on vLLM for CPUs"),
    )


def gpu(results: Result) -> str:
    """A model on a GPU: alone, in a vote of three, and with eight questions at once."""
    rows = []
    for shape, figures in results.items():
        if shape == "about":
            continue
        rows.append(
            (
                shape.upper(),
                f"{figures['generate_tokens_per_s']:.1f}",
                f"{figures['alone_over_generate']:.2f} times",
                f"{figures['vote_over_generate']:.2f} times",
                f"{figures['eight_at_once_speedup']:.2f} times as fast",
            )
        )
    heads = (
        "parameters",
        "`generate`, tokens/s",
        "one member, time over `generate`'s",
        "vote of three, time over `generate`'s",
        "eight questions at once, over one after another",
    )
    about = results["about"]
    tokens = about["arguments"]["tokens"]
    details = f"random weights of Llama's shape, bfloat16; {tokens} tokens"
    return _joined(table(heads, rows), source("benchmarks/gpu", about, details))


def tracing(results: Result) -> str:
    """What a round costs the thread that reads the answer."""
    rows = [
        (f'`"{depth}"`', f"{spent['p50_ms']:.2f} ms", f"{spent['p90_ms']:.2f} ms")
        for depth, spent in results["per_round"].items()
    ]
    heads = ("`trace`", "per round, median", "90th percentile")
    return _joined(
        table(heads, rows), source("benchmarks/tracing", results["about"], "scripted members")
    )


def endpoint(results: Result) -> str:
    """What the endpoint adds to a segment."""
    rows = [
        (one["streams"], _ms(one["endpoint_ms_per_segment"]), _ms(one["chat_model_ms_per_segment"]))
        for one in results["streams"]
    ]
    heads = ("streams at once", "endpoint, per segment", "chat model, per segment")
    details = "scripted members, processor time of the server"
    return _joined(table(heads, rows), source("benchmarks/endpoint", results["about"], details))


# --- studies --------------------------------------------------------------------------------------


def lead(results: Results) -> str:
    """A strong lead that a weak member may correct, against the lead alone."""
    rules: dict[str, dict[str, Result]] = {}
    for row in results[0]["rows"]:
        rules.setdefault(row["rule"], {})[row["set"]] = row
    alone = rules.pop("lead")
    (corrected,) = rules.values()
    heads = (
        "questions",
        "number",
        "the lead alone",
        "corrected",
        "won",
        "lost",
        "p",
        "passes",
        "seconds",
    )
    rows = [
        (
            f"**{name}**" if name == "all" else name,
            row["questions"],
            f"{alone[name]['right']:.0f}",
            f"{row['right']:.0f}",
            row["wins"],
            row["losses"],
            f"{row['p']:.2f}",
            f"{row['passes']:.2f} times",
            f"{row['seconds']:.2f} times",
        )
        for name, row in corrected.items()
    ]
    return _joined(table(heads, rows), source("studies/lead", results[0]))


EQUAL = "retries, equal passes"
CHECKED = {
    "lead": "the lead alone",
    "retries": "asked again until the whole answer passes",
    EQUAL: "the same, with at least the passes of checks",
    "pair": "with a small member",
    "samples": "the most frequent of six samples",
    "checked": "**with checks**",
    "checked pair": "**with checks**, and a small member",
    "checked smollm2": "**with checks**, SmolLM2 writes first",
    "checked gemma": "**with checks**, Gemma writes first",
    "chat": "the lead as a chat model, without checks",
    "chat, silent": "with checks, without reasons",
    "chat, told": "**with checks, and told the reasons**",
}
"""Ways of ``studies/checked.py``, in words."""


EXTRA = {
    "rules": {"rules kept": "kept"},
    "sources": {"invents a number": "with faults"},
    "new-rules": {"rules kept": "kept", "much shorter": "short"},
    "new-sources": {"invents a number": "with faults"},
}
"""Set of questions -> columns of its own, and where their figures are."""


def checked(results: Mapping[str, Result], name: str, base: str = "lead") -> str:
    """Answers with checks, against the lead alone, or against the lead as a chat model. Times come
    from a run of their own, because the questions themselves were answered beside other work."""
    if name not in results:
        return nothing("studies/checked")
    noun = "obey" if name.endswith("rules") else "right"
    extra = dict(EXTRA.get(name, {}))
    if base == "chat":
        extra["requests"] = "requests"
    heads = ["way", noun, *extra, "ended by a check", "won", "lost", "p", "passes"]
    timed = _ways(results.get(f"{name}, timed"))
    if timed:
        heads += ["seconds", "first text"]
    cells = []
    ways = {
        way: row
        for way, row in _ways(results[name]).items()
        if way.startswith("chat") == (base == "chat")
    }
    if ways.get(EQUAL, {}).get("passes") == ways.get("retries", {}).get("passes"):
        ways.pop(EQUAL, None)  # even all attempts cost no more passes than the checks
    for way, row in ways.items():
        found = row.get(f"against {base}", {})
        cell = [
            CHECKED[way],
            f"{row['good']} of {row['questions']}",
            *(row[key] for key in extra.values()),
            row["failed"],
            found.get("won", ""),
            found.get("lost", ""),
            f"{found['p']:.2g}" if found else "",
            f"{row['passes']:.2f} times",
        ]
        if way in timed:
            cell += [f"{timed[way]['seconds']:.1f}", f"{timed[way]['first text']:.1f} s"]
        elif timed:
            cell += ["", ""]
        cells.append(tuple(cell))
    about, notes = results[name], []
    if timed:
        when = results[f"{name}, timed"]["commit"]
        notes = [f"times: the first {timed['lead']['questions']} questions, commit `{when}`"]
    return _joined(table(tuple(heads), cells), source("studies/checked", about, *notes))


EVADING = {"smollm2": "SmolLM2-135M", "gemma": "Gemma-3-270M", "qwen": "Qwen2.5-Coder-1.5B"}


def evasion(results: Result) -> str:
    """Data that can still be read although a check forbids them, and what that costs."""
    heads = ("model", "way", "readable", "backwards", "in words", "error", "short")
    cells = [
        (
            EVADING[row["model"]],
            f"**{row['way']}**" if row["way"] in ("forbids", "redact") else row["way"],
            f"{row['readable']} of {row['answers']}",
            *(row[name] for name in ("backwards", "in words", "error", "short")),
        )
        for row in results["rows"]
        if row.get("model") and row["way"] != "without the datum"
    ]
    alarms = " and ".join(
        f"{row['alarms']} of {row['texts']} ({row['way']})"
        for row in results["rows"]
        if "alarms" in row
    )
    note = f"texts with look-alikes that were refused or changed: {alarms}"
    return _joined(table(heads, cells), source("studies/evasion", results, note))


def checks_short(results: Mapping[str, Result]) -> str:
    """One row for each set of questions, all ways on the same questions: how many answers are good
    alone, asked again, and with checks."""
    rules, sources, code = (_ways(results[name]) for name in ("rules", "sources", "code"))
    three = ("lead", "retries", "checked")
    kept = [rules[way]["kept"] for way in three]
    grounded = [sources[way]["questions"] - sources[way]["with faults"] for way in three]
    again = code["retries"]
    programs = [
        again["good"] - again["against lead"]["won"] + again["against lead"]["lost"],
        again["good"],
        again["good"] - again["against checked"]["won"] + again["against checked"]["lost"],
    ]
    cells = [
        ("keep a rule", rules["retries"]["questions"], *kept),
        ("invent no number", sources["retries"]["questions"], *grounded),
        ("pass hidden tests", again["questions"], *programs),
    ]
    heads = ("answers of one 1.5B model that", "asked", "alone", "asked again", "with checks")
    made = (
        f"Rules: commit `{results['rules']['commit']}`; "
        f"numbers and programs: `{results['code']['commit']}`; {results['rules']['date']}; "
        f"{results['rules']['machine']}"
    )
    return _joined(
        table(heads, cells), _price(results), source("studies/checked", {"machine": made})
    )


def _price(results: Mapping[str, Result]) -> str:
    """What checks cost, and how soon checked text comes."""
    rules, timed = _ways(results["rules"]), _ways(results["rules, timed"])
    sources, checked = _ways(results["sources"]), rules["checked"]
    short = checked["kept"] - checked["good"]
    price = (
        f"Asking again takes {rules['retries']['passes']:.1f} (rules) and "
        f"{sources['retries']['passes']:.1f} times (numbers) the computation of the model alone; "
        f"checks take {checked['passes']:.1f} and {sources['checked']['passes']:.1f} times. "
        f"The first checked text came after {timed['checked']['first text']:.1f} s; asking again "
        f"gave a passing answer after {timed['retries']['seconds']:.1f} s (rules, means of "
        f"{timed['checked']['questions']} questions). The price: {short} of the "
        f"{checked['questions']} checked answers are more than 30% shorter than the model's own."
    )
    return textwrap.fill(price, 100)


def _ways(result: Result | None) -> dict[str, Any]:
    """The rows for all kinds of questions, by their way, in the order of the table."""
    rows = result["rows"] if result else ()
    found = {row["way"]: row for row in rows if row["kind"] == "all"}
    return {way: found[way] for way in CHECKED if way in found}


def skills(results: Mapping[str, Result], members: str) -> str:
    """The vote of members that differ in skill, against each of them, a router and the published
    weighing."""
    worlds = [
        world
        for world in dict(results).values()
        if world["about"]["arguments"].get("members", "tiny") == members
    ]
    if not worlds:
        return nothing("studies/specialists")
    marks = {
        way: "".join(world["ways"][way]["marks"].replace(" ", "") for world in worlds)
        for way in worlds[0]["ways"]
    }
    ours = marks.pop("ours")
    rows = [("**the vote, as by default**", f"{ours.count('1')} of {len(ours)}", "", "")]
    for way, found in marks.items():
        pairs = list(zip(ours, found, strict=True))
        won, lost = (sum(one == wanted for one in pairs) for wanted in (("1", "0"), ("0", "1")))
        rows.append((way, f"{found.count('1')} of {len(found)}", won, lost))
    heads = ("way", "right", "the vote won", "the vote lost")
    return _joined(table(heads, rows), source("studies/specialists", worlds[0]["about"]))


ROUTED = {
    "the router": "**the router**",
    "ours": "the vote, as by default",
    "a router that knows the labels": "a router that is told the skill",
}
"""Ways of ``studies/routing.py``, in words, where they are not its own."""


def router(results: Mapping[str, Result], part: str) -> str:
    """The router against other ways to answer the same questions."""
    if part not in results:
        return nothing("studies/routing")
    rows = []
    for row in results[part]["rows"]:
        found = row.get("the router against it", {})
        rows.append(
            (
                ROUTED.get(row["way"], row["way"]),
                f"{row['right']} of {row['marks']}",
                found.get("won", ""),
                found.get("lost", ""),
                f"{found['p']:.2g}" if found else "",
            )
        )
    heads = ("way", "right", "the router won", "the router lost", "p")
    return _joined(table(heads, rows), source("studies/routing", results[part]))


DECIDING = {
    "smollm2": "SmolLM2",
    "gemma": "Gemma",
    "qwen": "Qwen 1.5B",
    "together": "**all together**",
}
"""Members of ``studies/decisions.py``, in words."""


def decisions(results: Result) -> str:
    """Members that decide, each raw and calibrated, and all together."""
    found: dict[tuple[str, str], dict[str, Result]] = {}
    for row in results["rows"]:
        if row.get("kind") in ("raw", "calibrated"):
            found.setdefault((row["task"], row["system"]), {})[row["kind"]] = row
    measures = ("accuracy", "log loss", "brier", "calibration error")
    cells = []
    for (task, system), kinds in found.items():
        pairs = [f"{kinds['raw'][one]:.3f}, {kinds['calibrated'][one]:.3f}" for one in measures]
        cells.append((task, DECIDING[system], *pairs))
    heads = ("task", "who decides", "accuracy", "log loss", "Brier score", "calibration error")
    note = "the first figure is raw, the second calibrated"
    return _joined(table(heads, cells), source("studies/decisions", results, note))


MERGED = {
    "lead": "the lead alone",
    "self-fusion": "self-fusion: three samples of the lead",
    "fusion": "**fusion**: an answer of each member",
}
"""Ways of ``studies/fusion.py``, in words."""
COSTS = {"passes": "passes", "read": "tokens read", "seconds": "seconds"}
"""Keys of a row in ``studies/fusion.json``, in words."""


def fusion(results: Result) -> str:
    """Answers that the lead merges, against its own."""
    rows: dict[tuple[str, str], Result] = {
        (row["way"], row["set"]): row for row in results["rows"] if "way" in row
    }
    alone = {name: row for (way, name), row in rows.items() if way == "lead"}
    right, merged = [], []
    for way, label in MERGED.items():
        row = rows[way, "all"]
        by_set = [f"{rows[way, name]['right']:.0f}" for name in alone if name != "all"]
        against = row.get("against lead", {})
        times = [f"{row[key] / alone['all'][key]:.1f} times" for key in COSTS]
        p = f"{against['p']:.2g}" if against else ""
        verdict = [against.get("won", ""), against.get("lost", ""), p]
        total = f"{row['right']:.0f} of {row['questions']}"
        right.append((label, *by_set, total, *verdict, *times))
        if way != "lead":
            one_right = row["an own answer right"]
            none_right = row["questions"] - one_right
            kept = f"{row['kept right']} of {one_right}"
            gained = f"{row['right from wrong ones']} of {none_right}"
            merged.append((label, kept, gained))
    sets = [f"{name}, of {row['questions']}" for name, row in alone.items() if name != "all"]
    heads = ("way", *sets, "right", "won", "lost", "p", *COSTS.values())
    kinds = ("way", "final one right, where a draft was", "where every draft was wrong")
    return _joined(
        table(heads, right),
        table(kinds, merged),
        source("studies/fusion", results, "won and lost: against the lead alone"),
    )
