"""How many forward passes does a token of the answer cost, and what do fewer drafters cost in right answers?

Tiny specialists (``studies/tiny_members.py``) answer questions of one skill, and of two, with all of them drafting and
with one or two (the option ``drafters``); then five members made of the demo's two models. Passes are counted in the
models themselves, one question at a time.

    python benchmarks/passes.py [--parts vague,misled,vague two,misled two,demo] [--each 40] [--two 96]

Results are kept cell by cell: a run that was stopped continues. ``--table`` only prints them.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from common import about, answered, arguments, demo, forward_passes, question, save, text_of, together

from langchain_specfuse import TransformersMember
from langchain_specfuse.core.method import Method, Settings
from langchain_specfuse.core.values import Round
from langchain_specfuse.engine import Ensemble
from langchain_specfuse.evaluation.statistics import difference

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "studies"))

from skills import Part, right
from skills import question as text_of_parts
from specialists import questions
from tiny_members import members

COUNTED = 23
"""Passes are counted in about this many questions, which are asked one at a time."""
WAYS = {"all draft": None, "one drafts": 1, "two draft": 2}
"""name of a way -> the option ``drafters``."""
CELLS = {
    "each alone": (None, 8),
    **{f"{way}{length}": (WAYS[way], tokens) for way in ("all draft", "one drafts") for length, tokens in
       (("", 8), (", 10 tokens", 10), (", 5 tokens", 5))},
    "two draft, 5 tokens": (2, 5),
}  # fmt: skip
"""name -> drafters and tokens of a segment."""
PARTS = {**dict.fromkeys(("vague", "misled", "vague two", "misled two"), tuple(CELLS)),
         "demo": ("each alone", "all draft", "one drafts")}  # fmt: skip
DEMO_QUESTIONS = ("Why is the sky blue?", "How do I boil an egg?")


def settings_of(name: str, max_tokens: int) -> Settings:
    drafters, tokens = CELLS[name]
    return Settings(segment_tokens=tokens, max_tokens=max_tokens, method=Method(drafters=drafters))


def counted(ensemble: Ensemble, texts: Sequence[str], settings: Settings) -> tuple[int, list[list[Round]]]:
    """The passes of these answers, one question at a time, and their rounds."""
    ensemble.loaded().result()
    with forward_passes() as passes:
        found = [answered(ensemble, question(text), settings) for text in texts]
    return len(passes), found


def specialists(mode: str, name: str, asked: Sequence[tuple[Part, ...]]) -> dict[str, Any]:
    """One cell: which parts of the answers were right, and what a token cost."""
    settings, one_by_one = settings_of(name, 160), members(mode)
    texts = [text_of_parts(parts) for parts in asked]
    since, marks, passes, tokens, rounds = time.perf_counter(), [], 0, 0, []
    for ensemble in [Ensemble([one]) for one in one_by_one] if name == "each alone" else [Ensemble(one_by_one)]:
        found = together(lambda n, e=ensemble: answered(e, question(texts[n]), settings), len(asked))
        good = [mark for parts, rs in zip(asked, found, strict=True) for mark in right(parts, text_of(rs))]
        marks.append("".join(str(int(mark)) for mark in good))
        here, some = counted(ensemble, texts[:: max(round(len(asked) / COUNTED), 1)], settings)
        passes += here
        tokens += sum(map(written, some))
        rounds += itertools.chain.from_iterable(found)
    return {"marks": marks} | summed(rounds, passes, tokens, time.perf_counter() - since)


def five_of_two(name: str) -> dict[str, Any]:
    """Five members of the demo's two models: they share weights and differ in their system prompts."""
    prompts = ("Answer briefly.", "You are a careful teacher.", "Explain step by step.")
    made = [
        TransformersMember(**{**one.spec, "name": f"{one.name}-{n}", "system_prompt": prompt})
        for one, some in zip(demo("auto"), (prompts, prompts[:2]), strict=True)
        for n, prompt in enumerate(some)
    ]
    since, passes, tokens, rounds = time.perf_counter(), 0, 0, []
    for ensemble in [Ensemble([one]) for one in made] if name == "each alone" else [Ensemble(made)]:
        here, found = counted(ensemble, DEMO_QUESTIONS, settings_of(name, 40))
        passes += here
        tokens += sum(map(written, found))
        rounds += itertools.chain.from_iterable(found)
    texts = [] if name == "each alone" else [text_of(rs) for rs in found]
    return summed(rounds, passes, tokens, time.perf_counter() - since) | {"answers": texts}


def written(rounds: Sequence[Round]) -> int:
    """Tokens of an answer, its end among them."""
    return sum(len(r.drafts[r.winner].tokens) + r.segment.ended for r in rounds)


def summed(rounds: Sequence[Round], passes: int, tokens: int, seconds: float) -> dict[str, Any]:
    distinct = [len({(d.text, d.ended) for d in r.drafts.values()}) for r in rounds if len(r.drafts) > 1]
    return {
        "passes": passes,
        "tokens": tokens,
        "passes_a_token": round(passes / tokens, 2),
        "rounds": len(rounds),
        "alone": sum(len(r.drafts) == 1 for r in rounds),
        "all_the_same": distinct.count(1),
        "seconds": round(seconds, 1),
    }


def table(part: str, cells: Mapping[str, Any]) -> str:
    lines = [
        f"\n{part}",
        "| | passes a token | rounds of one writer | right | against all draft |",
        "|---|---|---|---|---|",
    ]
    base = [float(mark) for mark in cells.get("all draft", {}).get("marks", [""])[0]]
    for name, cell in cells.items():
        shares = [marks.count("1") / len(marks) for marks in cell.get("marks", [])]
        good = "-".join(f"{share:.0%}" for share in sorted({min(shares), max(shares)})) if shares else ""
        apart = difference(list(map(float, cell["marks"][0])), base) if len(shares) == 1 and base else None
        against = f"{100 * apart.mean:+.0f} [{100 * apart.low:+.0f}, {100 * apart.high:+.0f}]" if apart else ""
        share = cell["alone"] / cell["rounds"]
        lines.append(f"| {name} | {cell['passes_a_token']} | {share:.0%} | {good} | {against} |")
    return "\n".join(lines)


def main() -> None:
    parser = arguments(__file__, __doc__)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--each", type=int, default=40, help="questions of each skill")
    parser.add_argument("--two", type=int, default=96, help="questions of two skills")
    parser.add_argument("--table", action="store_true", help="only print what is there")
    given = parser.parse_args()
    torch.set_num_threads(1)
    results = json.loads(given.out.read_text()) if given.out.exists() else {}
    for part in [] if given.table else given.parts.split(","):
        mode, _, two = part.partition(" ")
        asked = questions(0, given.two) if two else questions(given.each, 0)
        for name in PARTS[part]:
            cells = results.setdefault(part, {})
            if name not in cells:
                cells[name] = five_of_two(name) if part == "demo" else specialists(mode, name, asked)
                cells[name]["about"] = about(given)
                save(given.out, results)
                print(part, name, cells[name]["passes_a_token"], flush=True)
    for part, cells in results.items():
        print(table(part, cells))


if __name__ == "__main__":
    main()
