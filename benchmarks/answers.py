"""Answers and rounds of thirty questions under each method: what a change of the code must not change.

On three tiny random models (which disagree in every round) and on the demo's members: the methods, sampling, stop
strings, constraints, tool calls and short segments. ``--against`` compares with an earlier result and exits with 1 if
an answer, a round's drafts, winner or departures, or a number (by more than 1e-4) differ.

    python benchmarks/answers.py [--members tiny real] [--questions 30] [--out answers.json] [--against earlier.json]
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common import QUESTIONS, about, arguments, save

from langchain_specfuse import METHODS, SpecFuseChatModel, TraceCallbackHandler, TransformersMember, demo_members

PERSON = {
    "title": "Person",
    "description": "Adds a person.",
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
SCHEMA = {name: value for name, value in PERSON.items() if name != "description"}
FORMAT = {"type": "json_schema", "json_schema": {"name": "Person", "schema": SCHEMA}}
ROUND = ("segment", "text", "winner", "ended", "finish")
PARTS = ("tiny", "tiny3", "real")


def answer(llm: Any, text: str, **options: Any) -> dict[str, Any]:
    """The answer, its rounds and its usage; or the error."""
    handler = TraceCallbackHandler()
    try:
        message = llm.invoke(text, {"callbacks": [handler]}, **options)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    calls = json.dumps([(call["name"], call["args"]) for call in message.tool_calls])
    usage = {name: value for name, value in message.usage_metadata.items() if isinstance(value, int)}
    rounds = [kept(one) for one in handler.trace.rounds]
    return {"text": calls if message.tool_calls else message.text, "rounds": rounds, "usage": usage}


def kept(one: Mapping[str, Any]) -> dict[str, Any]:
    numbers = {key: {name: round(value, 6) for name, value in one[key].items()} for key in ("weights", "totals")}
    drafts = {member: draft["text"] for member, draft in one["drafts"].items()}
    left = [gone["member"] for gone in one["left"]]
    return {key: one[key] for key in ROUND} | {"drafts": drafts, **numbers, "left": left}


def answers(members: Sequence[Any], max_tokens: int, methods: Sequence[str], count: int) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def ask(name: str, llm: Any, text: str, **options: Any) -> None:
        since = time.perf_counter()
        found[name] = answer(llm, text, **options)
        shown = found[name].get("text", found[name].get("error"))
        print(f"{name} {time.perf_counter() - since:.1f} s {shown!r:.90}", flush=True)

    for method in methods:
        llm = SpecFuseChatModel(members=members, max_tokens=max_tokens, method=method)
        for number, text in enumerate(QUESTIONS[:count]):
            ask(f"{method}/{number:02d}", llm, text)
    llm = SpecFuseChatModel(members=members, max_tokens=max_tokens)
    for number in (2, 4, 8)[: math.ceil(count / 10)]:
        text, at = QUESTIONS[number], f"{number:02d}"
        ask(f"sampled/{at}", llm, text, temperature=0.8, top_p=0.9, seed=7)
        ask(f"penalty/{at}", llm, text, repetition_penalty=1.2)
        ask(f"stop/{at}", llm, text, stop=[" the", "\n"])
        ask(f"schema/{at}", llm, f"Make up a person. {text}", response_format=FORMAT, max_tokens=200)
        with_tool = llm.bind_tools([PERSON], tool_choice="any").bind(max_tokens=200)
        ask(f"tool/{at}", with_tool, f"Add Maria, 31. {text}")
        ask(f"choice/{at}", llm, text, choice=["yes", "no", "perhaps"])
        ask(f"short/{at}", llm, text, segment_tokens=4)
    return found


def tiny() -> list[TransformersMember]:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from tests.members.tiny import made

    models = (("llama", 0, "llama"), ("gemma3", 1, "gemma"), ("qwen3", 2, "qwen"))
    return [TransformersMember(*made(arch, seed), name=name) for arch, seed, name in models]


def same(one: Any, other: Any) -> bool:
    """Equal, where numbers may differ by rounding and fields that one of them lacks do not count."""
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) <= 1e-4
    if isinstance(one, dict) and isinstance(other, dict):
        return all(same(one[key], other[key]) for key in one.keys() & other.keys())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def compared(before: Mapping[str, Any], now: Mapping[str, Any]) -> int:
    """Prints what differs, part by part; how many answers do."""
    different = 0
    for part in [part for part in now if part in PARTS and part in before]:
        names = [name for name in now[part] if name in before[part]]
        wrong = [name for name in names if not same(before[part][name], now[part][name])]
        print(f"{part}: {len(names) - len(wrong)} of {len(names)} the same")
        for name in wrong:
            texts = [one[part][name].get("text", one[part][name].get("error")) for one in (before, now)]
            print(f"  {name}: {texts[0]!r:.100} -> {texts[1]!r:.100}")
        different += len(wrong)
    return different


def main() -> int:
    parser = arguments(__file__, __doc__)
    parser.add_argument("--members", nargs="*", default=["tiny", "real"], choices=["tiny", "real"])
    parser.add_argument("--questions", type=int, default=len(QUESTIONS))
    parser.add_argument("--against", type=Path, metavar="FILE", help="an earlier result to compare with")
    given = parser.parse_args()
    found: dict[str, Any] = {"about": about(given)}
    if "tiny" in given.members:
        found["tiny"] = answers(tiny(), 48, list(METHODS), given.questions)
        found["tiny3"] = answers(tiny(), 200, ["robust", "specfuse"], given.questions)
    if "real" in given.members:
        found["real"] = answers(demo_members(), 40, list(METHODS), given.questions)
    save(given.out, found)
    return int(bool(given.against and compared(json.loads(given.against.read_text()), found)))


if __name__ == "__main__":
    sys.exit(main())
