"""How much sooner is the first segment there when the members have read most of the prompt before?

Three prompts that follow another one: the next turn of a chat, a question with the same instructions and other notes
(RAG), an agent's step after a tool has answered. Each is asked cold, with empty prefix caches, and warm, after the
prompt before it was answered; in turn, in one run, several times. Reported are medians and the median of the ratios.
Then short conversations, whose last answers are compared: cold, warm (other passes, so other rounding), and again.

    python benchmarks/prefix.py [--dtype float32 bfloat16] [--repeats 3] [--tokens 1500] [--cpu-time]
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from common import NOTES, arguments, clock, demo, query, question, reported, text_of

from langchain_specfuse.core.method import Method, Settings
from langchain_specfuse.core.values import Call, Round, Tool, Turn
from langchain_specfuse.engine import Ensemble
from langchain_specfuse.evaluation.running import on_worker

Turns = tuple[Turn, ...]
METHOD = Method(exit="never")

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
        json.dumps({"type": "object", "properties": {key: {"type": "string", "description": what}}, "required": [key]}),
    )
    for name, told, key, what in (
        ("find_note", "Finds a note about lighthouses by a word in it.", "word", "what to look for"),
        ("opening_hours", "When a house of the museum is open.", "house", "tower, shop or café"),
        ("book_climb", "Books a climb of the tower for a group.", "when", "day and hour"),
    )
)
QUESTIONS = (
    ("Who invented the lamp with a hollow wick?", "And what did Fresnel do?"),
    ("Where did the first lighthouse stand?", "How high was it?"),
    ("How did the keepers spend their time?", "Were there women among them?"),
    ("What happened when electricity came?", "What are the towers today?"),
    ("Why were there rhythms of light?", "Give me an example."),
    ("What does a red sector tell a captain?", "What is an occulting light?"),
)


def history(member: Any, tokens: int) -> Turns:
    """A conversation about the notes, as long as it can be without making this member's prompt longer than this."""
    turns: Turns = ()
    last = Turn("user", QUESTIONS[0][0])
    while True:
        part = PARAGRAPHS[len(turns) // 2 % len(PARAGRAPHS)]
        more = (Turn("user", f"What do you make of this? {part}"), Turn("assistant", f"In short: {part[:300]}"))
        if member.token_count((*turns, *more, last)) > tokens:
            return (*turns, last)
        turns += more


def next_turn(said: str, turns: Turns) -> Turns:
    return (*turns, Turn("assistant", said), Turn("user", QUESTIONS[0][1]))


def notes(which: int, ask: str) -> Turns:
    return (Turn("system", INSTRUCTIONS), Turn("user", f"Notes:\n\n{PARAGRAPHS[which]}\n\nQuestion: {ask}"))


def next_step(said: str, turns: Turns) -> Turns:
    call = Call("find_note", json.dumps({"word": "wick"}), "call00001")
    result = Turn("tool", PARAGRAPHS[2], name="find_note", call_id="call00001")
    return (*turns, Turn("assistant", "", (call,)), result)


Scene = tuple[str, Turns, Callable[[str, Turns], Turns], tuple[Tool, ...]]
"""Name, the prompt before, how the measured one follows from its answer, the tools."""


def scenes(member: Any, tokens: int) -> list[Scene]:
    task = (Turn("system", INSTRUCTIONS), Turn("user", QUESTIONS[0][0]))
    return [
        ("next turn of a chat", history(member, tokens), next_turn, ()),
        ("same instructions, other notes", notes(1, QUESTIONS[1][0]), lambda *_: notes(4, "Who are they?"), ()),
        ("agent's step after a tool", task, next_step, TOOLS),
    ]


def asked(ensemble: Ensemble, turns: Turns, tools: Sequence[Tool], max_tokens: int) -> str:
    """The answer; afterwards no member holds the query any more."""
    settings = Settings(max_tokens=max_tokens, method=METHOD)
    rounds = list(ensemble.rounds(query(turns, tools=tuple(tools)), settings))
    on_workers(ensemble, lambda member: None)
    return text_of(rounds)


def first_round(ensemble: Ensemble, turns: Turns, tools: Sequence[Tool]) -> tuple[float, Round]:
    since = clock()
    stream = ensemble.rounds(query(turns, tools=tuple(tools)), Settings(method=METHOD))
    first = next(stream)
    seconds = clock() - since
    stream.close()  # type: ignore[attr-defined]
    on_workers(ensemble, lambda member: None)
    return seconds, first


def on_workers(ensemble: Ensemble, call: Callable[[Any], Any]) -> None:
    """Call it for every member, in the thread of its worker, after everything that is queued there."""
    for member in ensemble.members.values():
        on_worker(member, lambda member=member: call(member)).result()


def cold(ensemble: Ensemble) -> None:
    on_workers(ensemble, lambda member: member.drop_prefixes())


def followed(ensemble: Ensemble, scene: Scene, repeats: int) -> dict[str, Any]:
    """The same prompt cold and warm, in turn."""
    name, before, then, tools = scene
    runs, furthest, same = [], 0.0, True
    for _ in range(repeats):
        cold(ensemble)
        after = then(asked(ensemble, before, tools, 24), before)
        held = {m.name: m.prefixes["bytes"] for m in ensemble.members.values()}  # type: ignore[attr-defined]
        warm_s, warm = first_round(ensemble, after, tools)
        cold(ensemble)
        cold_s, fresh = first_round(ensemble, after, tools)
        runs.append((cold_s, warm_s))
        furthest = max(furthest, apart(fresh, warm))
        same &= fresh.text == warm.text
        print(f"  {name}: cold {cold_s:.2f} s, warm {warm_s:.2f} s", flush=True)
    efforts = warm.efforts["draft"]
    return {
        "what": name,
        "prompt_tokens": {name: effort.prompt for name, effort in efforts.items()},
        "not_read_again": {name: effort.reused for name, effort in efforts.items()},
        "megabytes_kept": {name: round(size / 1e6, 1) for name, size in held.items()},
        "cold_seconds": round(median(one for one, _ in runs), 2),
        "warm_seconds": round(median(one for _, one in runs), 2),
        "sooner": round(median(one / other for one, other in runs), 2),
        "same_first_segment": same,
        "furthest_logprobs_apart": float(f"{furthest:.1e}"),
    }


def apart(one: Round, other: Round) -> float:
    """How far the drafts' log-probabilities lie apart, up to where the drafts differ."""
    found = [0.0]
    for name, draft in one.drafts.items():
        twin = other.drafts[name]
        same = next((k for k, (a, b) in enumerate(zip(draft.tokens, twin.tokens, strict=False)) if a != b), None)
        pairs = list(zip(draft.logprobs or (), twin.logprobs or (), strict=False))[:same]
        found += [abs(a - b) for a, b in pairs]
    return max(found)


def answers(ensemble: Ensemble, count: int, max_tokens: int) -> dict[str, int]:
    """In how many conversations is the last answer the same cold and warm, and asked again?"""
    found = {"conversations": 0, "same_cold_and_warm": 0, "same_asked_again": 0}
    for first, second in QUESTIONS[:count]:
        before = question(f"{PARAGRAPHS[1]}\n\n{first}")
        cold(ensemble)
        after = (*before, Turn("assistant", asked(ensemble, before, (), 24)), Turn("user", second))
        warm, again = (asked(ensemble, after, (), max_tokens) for _ in range(2))
        cold(ensemble)
        fresh = asked(ensemble, after, (), max_tokens)
        found["conversations"] += 1
        found["same_cold_and_warm"] += warm == fresh
        found["same_asked_again"] += warm == again
    return found


def measured(dtype: str, repeats: int, tokens: int, conversations: int) -> dict[str, Any]:
    members = demo(dtype)
    ensemble = Ensemble(members)
    ensemble.loaded().result()
    asked(ensemble, question(QUESTIONS[0][0]), (), 8)  # warm up
    return {
        "members": [member.name for member in members],
        "repeats": repeats,
        "prompts": [followed(ensemble, scene, repeats) for scene in scenes(members[0], tokens)],
        "answers": answers(ensemble, conversations, 24),
    }


def main() -> None:
    parser = arguments(__file__, __doc__, dtype=["float32"], repeats=3)
    parser.add_argument("--tokens", type=int, default=1500, help="of the chat's prompt")
    parser.add_argument("--conversations", type=int, default=len(QUESTIONS))
    given = parser.parse_args()
    reported(given, lambda dtype: measured(dtype, given.repeats, given.tokens, given.conversations))


if __name__ == "__main__":
    main()
