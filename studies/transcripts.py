"""What the demo ensemble answers to twenty plain questions, beside what each of its members answers alone.

    python benchmarks/transcripts.py                     # all of it, written to transcripts.md (some minutes)
    python benchmarks/transcripts.py --only 3 7          # two questions, printed
    python benchmarks/transcripts.py --who ensemble --set exit=never segment_tokens=6 --only 3

Greedy, so it comes out the same on one machine. People judge the answers; the counts only say where to look.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langchain_specfuse.core.values import PRESETS, Query, Round, Settings, Turn
from langchain_specfuse.demo import demo_members
from langchain_specfuse.engine import Ensemble

QUESTIONS = (
    "Hello! How are you today?",
    "What is the capital of France?",
    "Why is the sky blue?",
    "How many days are there in a leap year, and why?",
    "Name three fruits that are red.",
    "List five things to pack for a weekend at the beach.",
    "Explain in two sentences what photosynthesis is.",
    "What is the difference between weather and climate?",
    "How do I boil an egg?",
    "Write a Python function that returns the sum of a list of numbers.",
    "What does `for i in range(3): print(i)` print in Python?",
    "Rewrite this politely: Send me the report now.",
    "Write a short letter that thanks my neighbour for watering my plants.",
    "Correct the mistakes in this sentence: He go to school every days.",
    "Give me a synonym and an antonym for 'happy'.",
    "Who wrote Romeo and Juliet, and what is it about?",
    "I have trouble falling asleep. What could I try?",
    "What is 12 + 30? Explain your steps.",
    "Write a four-line poem about the sea.",
    "Summarize in one sentence: The meeting was moved from Monday to Wednesday because two people were ill.",
)
PAGE = Path(__file__).with_suffix(".md")
MAX_TOKENS = 96
SAID_AGAIN = 6
"""Words in a row that come a second time in one answer count as said again."""


@dataclass(frozen=True)
class Answer:
    """One answer with its rounds."""

    rounds: tuple[Round, ...]

    @property
    def text(self) -> str:
        return "".join(item.text for item in self.rounds)

    @property
    def repeats(self) -> float:
        """The share of its runs of six words that it had said before."""
        words = self.text.split()
        runs = [tuple(words[at : at + SAID_AGAIN]) for at in range(len(words) - SAID_AGAIN + 1)]
        return 1 - len(set(runs)) / len(runs) if runs else 0.0


def ensembles(dtype: str) -> dict[str, Ensemble]:
    """Everybody alone, and all of them together, on the same weights."""
    members = demo_members(dtype=dtype)
    return {**{member.name: Ensemble([member]) for member in members}, "ensemble": Ensemble(members)}


def answered(ensemble: Ensemble, settings: Settings, questions: Sequence[str], together: int) -> list[Answer]:
    """Some questions at once: the engine makes batches of them, and an answer does not depend on its company."""
    ensemble.loaded().result()

    def ask(number: int, question: str) -> Answer:
        return Answer(tuple(ensemble.rounds(Query(f"q{number}", (Turn("user", question),)), settings)))

    with ThreadPoolExecutor(together) as pool:
        return list(pool.map(ask, range(len(questions)), questions))


# --- the page ---------------------------------------------------------------------------------------------------


def summary(answers: Mapping[str, Sequence[Answer]], seconds: Mapping[str, float]) -> list[str]:
    lines = [
        "| who answers | ended by itself | words | said again | segments written by | seconds in all |",
        "|---|---|---|---|---|---|",
    ]
    for who, given in answers.items():
        ended = sum(answer.rounds[-1].finish == "stop" for answer in given)
        words = sum(len(answer.text.split()) for answer in given) / len(given)
        again = sum(answer.repeats for answer in given) / len(given)
        wrote = Counter(item.winner for answer in given for item in answer.rounds)
        by = ", ".join(f"{name} {count / wrote.total():.0%}" for name, count in wrote.most_common())
        lines.append(f"| {who} | {ended} of {len(given)} | {words:.0f} | {again:.0%} | {by} | {seconds[who]:.0f} |")
    return lines


def transcript(number: int, question: str, answers: Mapping[str, Answer]) -> list[str]:
    lines = [f"## {number}. {question}", ""]
    for who, answer in answers.items():
        lines += [
            f"**{who}** ({answer.rounds[-1].finish})",
            "",
            "```text",
            answer.text.replace("```", "'''"),
            "```",
            "",
        ]
        if len({item.winner for item in answer.rounds}) > 1 or any(item.left for item in answer.rounds):
            lines += [
                "<details><summary>who wrote what</summary>",
                "",
                "```text",
                *authors(answer),
                "```",
                "</details>",
                "",
            ]
    return lines


def authors(answer: Answer) -> list[str]:
    width = max(len(item.winner) for item in answer.rounds)
    lines = []
    for item in answer.rounds:
        lines.append(f"{item.winner:<{width}}  {item.margin:+.3f}  {item.segment.text!r}".replace("```", "'''"))
        lines += [f"{left.member} left: {left.reason}" for left in item.left]
    return lines


def page(
    numbers: Sequence[int],
    answers: Mapping[str, Sequence[Answer]],
    seconds: Mapping[str, float],
    chosen: Mapping[str, Any],
) -> str:
    told = ", ".join(f"{name}={value}" for name, value in chosen.items()) or "the defaults"
    lines = [
        "# Twenty plain questions",
        "",
        f"Made by `python benchmarks/transcripts.py`: greedy, at most {MAX_TOKENS} tokens, {told}.",
        f'"Said again" is the share of runs of {SAID_AGAIN} words that the same answer had said before.',
        "",
        *summary(answers, seconds),
        "",
    ]
    for at, number in enumerate(numbers):
        lines += transcript(number, QUESTIONS[number - 1], {who: given[at] for who, given in answers.items()})
    return "\n".join(lines)


# --- the call ---------------------------------------------------------------------------------------------------


def arguments() -> argparse.Namespace:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--only", nargs="+", type=int, metavar="N", help="these questions, from 1; printed, not written")
    made.add_argument("--who", nargs="+", metavar="NAME", help="of SmolLM2-135M, Gemma-3-270M, ensemble")
    made.add_argument("--preset", default="robust", choices=tuple(PRESETS))
    made.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="settings of the method")
    made.add_argument("--dtype", default="auto")
    made.add_argument("--together", type=int, default=8, metavar="N", help="questions at once (default: 8)")
    return made.parse_args()


def value_of(text: str) -> Any:
    """A number or true/false where it is one, else the text."""
    try:
        return json.loads(text.lower())
    except ValueError:
        return text


def main() -> None:
    given = arguments()
    chosen = {name: value_of(value) for name, _, value in (item.partition("=") for item in given.set)}
    settings = Settings(**{**PRESETS[given.preset], "max_tokens": MAX_TOKENS, **chosen})
    numbers = given.only or list(range(1, len(QUESTIONS) + 1))
    answers, seconds = {}, {}
    for who, ensemble in ensembles(given.dtype).items():
        if given.who and who not in given.who:
            continue
        ensemble.loaded().result()
        began = time.perf_counter()
        answers[who] = answered(ensemble, settings, [QUESTIONS[n - 1] for n in numbers], given.together)
        seconds[who] = time.perf_counter() - began
        print(f"{who}: {len(numbers)} answers in {seconds[who]:.0f} s", file=sys.stderr)
    text = page(numbers, answers, seconds, {"preset": given.preset, **chosen})
    if given.only or given.who:
        print(text)
    else:
        PAGE.write_text(text)


if __name__ == "__main__":
    main()
