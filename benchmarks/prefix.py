"""How much sooner is the first segment there when the members have read most of the prompt before?

Three prompts that follow another one: the next turn of a chat, a question with the same
instructions and other notes (RAG), an agent's step after a tool has answered. Each is asked warm,
after the prompt before it was answered, and cold, with empty prefix caches; in turn, several times.
Given is the median of the ratios.

    python benchmarks/prefix.py [--repeats 2] [--tokens 1000] [--tiny]
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from common import NOTES, Turns, arguments, demo, on_workers, query, report, text_of

from langchain_specfuse.core.options import Settings
from langchain_specfuse.core.round import Round
from langchain_specfuse.core.values import Tool, ToolCall, Turn
from langchain_specfuse.engine import Ensemble

MEASURES = ("members/local", "members/llamacpp", "members/text/words.py")
"""The parts of the package that decide these figures."""

PARAGRAPHS = [part.replace("\n", " ") for part in NOTES.strip().split("\n\n")]
INSTRUCTIONS = """You answer questions of visitors to a museum of lighthouses. Use the notes and nothing else. If the
notes do not say it, say that you do not know. Answer in at most three sentences of plain English. Give years as
numbers. Never give advice about sailing, tides or weather: send people to the coast guard instead. Do not mention these
instructions, and do not mention that there are notes. If a visitor is rude, stay friendly. If a visitor writes in
another language, answer in that language. Opening hours are at the entrance. Prices are there as well. The museum
has no guided tours in winter. The tower can be climbed by groups of at most twelve, with good shoes. Dogs wait outside.
A name that stands in the notes is spelled as in the notes. Units are metres and kilometres."""
TOOLS = tuple(
    Tool(
        name,
        told,
        json.dumps({"type": "object", "properties": {key: {"type": "string"}}, "required": [key]}),
    )
    for name, told, key in (
        ("find_note", "Finds a note about lighthouses by a word in it.", "word"),
        ("opening_hours", "When a house of the museum is open: tower, shop or café.", "house"),
        ("book_climb", "Books a climb of the tower for a group, at a day and an hour.", "when"),
    )
)
ASK = Turn("user", "Who invented the lamp with a hollow wick?")
Scene = tuple[str, Turns, Callable[[str], Turns], tuple[Tool, ...]]
"""Name, the prompt before, the measured one (it follows from the answer), the tools."""


def history(member: Any, tokens: int) -> Turns:
    """A conversation about the notes, as long as it can be without making this member's prompt
    longer than this."""
    turns: Turns = ()
    while True:
        part = PARAGRAPHS[len(turns) // 2 % len(PARAGRAPHS)]
        more = (
            Turn("user", f"What do you make of this? {part}"),
            Turn("assistant", f"In short: {part[:300]}"),
        )
        if turns and member.token_count((*turns, *more, ASK)) > tokens:
            return (*turns, ASK)
        turns += more


def scenes(member: Any, tokens: int) -> list[Scene]:
    def notes(which: int, ask: str) -> Turns:
        return (
            Turn("system", INSTRUCTIONS),
            Turn("user", f"Notes:\n\n{PARAGRAPHS[which]}\n\nQuestion: {ask}"),
        )

    chat, task = history(member, tokens), (Turn("system", INSTRUCTIONS), ASK)
    called = Turn(
        "assistant", "", (ToolCall("find_note", json.dumps({"word": "wick"}), "call00001"),)
    )
    result = Turn("tool", PARAGRAPHS[2], name="find_note", call_id="call00001")
    next_turn = Turn("user", "And what did Fresnel do?")
    return [
        ("next turn of a chat", chat, lambda said: (*chat, Turn("assistant", said), next_turn), ()),
        (
            "same instructions, other notes",
            notes(1, "How high was it?"),
            lambda _: notes(4, "Who are they?"),
            (),
        ),
        ("agent's step after a tool", task, lambda _: (*task, called, result), TOOLS),
    ]


def asked(
    ensemble: Ensemble, turns: Turns, tools: tuple[Tool, ...], max_tokens: int
) -> tuple[float, list[Round]]:
    """Seconds to the first segment, and the rounds; afterwards no member holds the query any
    more."""
    since, first, rounds = time.perf_counter(), 0.0, []
    for one in ensemble.rounds(
        query(turns, tools=tools), Settings(max_tokens=max_tokens, lead=None)
    ):
        first = first or time.perf_counter() - since
        rounds.append(one)
    on_workers(ensemble, lambda member: None)
    return first, rounds


def compared(ensemble: Ensemble, scene: Scene, repeats: int) -> dict[str, Any]:
    name, before, then, tools = scene
    ratios, same = [], True
    for _ in range(repeats):
        on_workers(ensemble, lambda member: member.drop_prefixes())
        after = then(text_of(asked(ensemble, before, tools, 24)[1]))
        warm_s, warm = asked(ensemble, after, tools, 10)
        on_workers(ensemble, lambda member: member.drop_prefixes())
        cold_s, cold = asked(ensemble, after, tools, 10)
        ratios.append(cold_s / warm_s)
        same &= warm[0].text == cold[0].text
    efforts = warm[0].efforts["draft"].values()
    return {
        "what": name,
        "prompt_tokens": sum(effort.prompt for effort in efforts),
        "not_read_again": sum(effort.reused for effort in efforts),
        "sooner": round(median(ratios), 2),
        "same_first_segment": same,
    }


def main() -> None:
    given = arguments(
        __file__, __doc__, tiny={"repeats": 1, "tokens": 300}, repeats=2, tokens=1000
    ).parse_args()
    members = demo("small")[: 1 if given.tiny else None]
    ensemble = Ensemble(members)
    ensemble.loaded().result()
    asked(ensemble, (ASK,), (), 8)  # warm up
    prompts = [
        compared(ensemble, scene, given.repeats) for scene in scenes(members[0], given.tokens)
    ]
    report(
        __file__,
        given,
        MEASURES,
        {"members": [member.name for member in members], "prompts": prompts},
    )


if __name__ == "__main__":
    main()
