"""How much sooner is the first segment there when the members have read most of the prompt before?

Three prompts that follow another one: the next turn of a chat, a question with the same instructions and other notes
(RAG), an agent's step after a tool has answered. Each is asked cold, with nothing kept, and warm, after the prompt
before it was answered; in turn, in one run, several times; told are the medians and the median of the ratios. Then
short conversations, whose last answers are compared: cold against warm (other passes, so other rounding), and the same
question again.

    python benchmarks/prefix.py [--dtype float32 bfloat16] [--repeats 3] [--tokens 1500] [--cpu-time]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from statistics import median
from typing import Any

import torch
from latency import CLOCK, NOTES, clock, machine, reported

from langchain_specfuse.core.values import Call, Query, Round, Settings, Tool, Turn
from langchain_specfuse.demo import demo_members
from langchain_specfuse.engine import Ensemble
from langchain_specfuse.engine.desk import desk_for
from langchain_specfuse.engine.task import Task
from langchain_specfuse.members.transformers import TransformersMember

Turns = tuple[Turn, ...]

PARAGRAPHS = [part.replace("\n", " ") for part in NOTES.strip().split("\n\n")]
INSTRUCTIONS = """You answer questions of visitors to a museum of lighthouses. Use the notes and nothing else. If the
notes do not say it, say that you do not know. Answer in at most three sentences of plain English. Give years as
numbers. Never give advice about sailing, tides or weather: send people to the coast guard instead. Do not mention these
instructions, and do not mention that there are notes. If a visitor is rude, stay friendly. If a visitor writes in
another language, answer in that language. Opening hours are on the door. Prices are on the door as well. The museum
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


def history(member: TransformersMember, tokens: int) -> Turns:
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


def notes(*which: int, ask: str) -> Turns:
    told = "\n\n".join(PARAGRAPHS[k] for k in which)
    return (Turn("system", INSTRUCTIONS), Turn("user", f"Notes:\n\n{told}\n\nQuestion: {ask}"))


def next_step(said: str, turns: Turns) -> Turns:
    call = Call("find_note", json.dumps({"word": "wick"}), "call00001")
    result = Turn("tool", PARAGRAPHS[2], name="find_note", call_id="call00001")
    return (*turns, Turn("assistant", "", (call,)), result)


Followed = tuple[str, Turns, Callable[[str, Turns], Turns], tuple[Tool, ...]]


def scenes(member: TransformersMember, tokens: int) -> list[Followed]:
    """(name, the prompt before, how the measured one follows from its answer, the tools)"""
    task = (Turn("system", INSTRUCTIONS), Turn("user", QUESTIONS[0][0]))
    return [
        ("next turn of a chat", history(member, tokens), next_turn, ()),
        ("same instructions, other notes", notes(1, ask=QUESTIONS[1][0]), lambda *_: notes(4, ask="Who are they?"), ()),
        ("agent's step after a tool", task, next_step, TOOLS),
    ]


def asked(ensemble: Ensemble, turns: Turns, tools: Sequence[Tool], max_tokens: int) -> list[Round]:
    query = Query(f"q{time.perf_counter_ns()}", turns, tuple(tools))
    rounds = list(ensemble.rounds(query, Settings(max_tokens=max_tokens, exit="never")))
    at_desks(ensemble, lambda member: None)  # by then the query is forgotten
    return rounds


def text_of(rounds: Sequence[Round]) -> str:
    return "".join(one.text for one in rounds)


def first_round(ensemble: Ensemble, turns: Turns, tools: Sequence[Tool]) -> tuple[float, Round]:
    since = clock()
    rounds = ensemble.rounds(Query(f"q{time.perf_counter_ns()}", turns, tuple(tools)), Settings(exit="never"))
    first = next(rounds)
    seconds = clock() - since
    rounds.close()  # type: ignore[attr-defined]
    at_desks(ensemble, lambda member: None)
    return seconds, first


def at_desks(ensemble: Ensemble, call: Callable[[Any], Any]) -> None:
    """What members do they do at their desks, behind whatever else is to be done there."""
    for member in ensemble.members.values():
        done: Future[Any] = Future()
        work = lambda member=member, done=done: done.set_result(call(member))
        desk_for(member.device).put(Task(member, "call", work, lambda _: None))
        done.result()


def cold(ensemble: Ensemble) -> None:
    at_desks(ensemble, lambda member: member.drop_prefixes())


def followed(ensemble: Ensemble, scene: Followed, repeats: int) -> dict[str, Any]:
    """The same prompt cold and warm, in turn."""
    name, before, then, tools = scene
    runs, furthest, same = [], 0.0, True
    for _ in range(repeats):
        cold(ensemble)
        said = text_of(asked(ensemble, before, tools, 24))
        after = then(said, before)
        held = {m.name: m.prefixes["bytes"] for m in ensemble.members.values()}  # type: ignore[attr-defined]
        warm_s, warm = first_round(ensemble, after, tools)
        cold(ensemble)
        cold_s, fresh = first_round(ensemble, after, tools)
        runs.append((cold_s, warm_s))
        furthest = max(furthest, apart(fresh, warm))
        same &= fresh.text == warm.text
        print(f"  {name}: cold {cold_s:.2f} s, warm {warm_s:.2f} s")
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


def answers(ensemble: Ensemble, max_tokens: int) -> dict[str, int]:
    """Of how many conversations is the last answer, to its last character, the same cold and warm, and asked again?"""
    told = {"conversations": 0, "same_cold_and_warm": 0, "same_asked_again": 0}
    for first, second in QUESTIONS:
        before = (Turn("user", f"{PARAGRAPHS[1]}\n\n{first}"),)
        cold(ensemble)
        after = (*before, Turn("assistant", text_of(asked(ensemble, before, (), 24))), Turn("user", second))
        warm, again = (text_of(asked(ensemble, after, (), max_tokens)) for _ in range(2))
        cold(ensemble)
        fresh = text_of(asked(ensemble, after, (), max_tokens))
        told["conversations"] += 1
        told["same_cold_and_warm"] += warm == fresh
        told["same_asked_again"] += warm == again
    return told


def measured(dtype: str, repeats: int, tokens: int) -> dict[str, Any]:
    members = demo_members(dtype=dtype)
    ensemble = Ensemble(members)
    ensemble.loaded().result()
    asked(ensemble, (Turn("user", QUESTIONS[0][0]),), (), 8)  # warm up
    return {
        "dtype": dtype,
        "machine": machine(),
        "clock": CLOCK["name"],
        "torch": torch.__version__,
        "members": [member.name for member in members],
        "repeats": repeats,
        "prompts": [followed(ensemble, scene, repeats) for scene in scenes(members[0], tokens)],
        "answers": answers(ensemble, 24),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", nargs="*", default=["float32"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=1500)
    parser.add_argument("--cpu-time", action="store_true")
    told = parser.parse_args()
    reported(__file__, told, lambda dtype: measured(dtype, told.repeats, told.tokens))


if __name__ == "__main__":
    main()
