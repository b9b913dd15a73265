"""What the demo ensembles answer to twenty plain questions, beside what each of their members
answers alone.

    python studies/transcripts.py                 # all, written to transcripts.md (some minutes)
    python studies/transcripts.py --acts          # only the acts of the demo, written to it
    python studies/transcripts.py --only 3 7      # two questions, printed
    python studies/transcripts.py --who default --method exit=never --only 3

Greedy, so it is the same on one machine. People judge the answers; the counts only say where to
look.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))

from common import QUESTIONS as ALL
from common import answered, question

from langchain_specfuse import demo_members
from langchain_specfuse.cli.choices import method_of
from langchain_specfuse.core.options import Settings
from langchain_specfuse.core.round import Round
from langchain_specfuse.demo import ENSEMBLES
from langchain_specfuse.engine import Ensemble
from langchain_specfuse.errors import amount

QUESTIONS = ALL[:20]
PAGE = Path(__file__).with_suffix(".md")
MAX_TOKENS = 200
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


def ensembles() -> dict[str, Ensemble]:
    """Each member alone, and both ensembles, on the same weights."""
    made = {size: demo_members(size) for size in ENSEMBLES}
    alone = {member.name: Ensemble([member]) for members in made.values() for member in members}
    return alone | {size: Ensemble(members) for size, members in made.items()}


def answers_of(
    ensemble: Ensemble, settings: Settings, questions: Sequence[str], together: int
) -> list[Answer]:
    """Some questions at once: the workers form batches of them, and an answer does not depend on
    the others."""
    with ThreadPoolExecutor(together) as pool:
        return list(
            pool.map(
                lambda text: Answer(tuple(answered(ensemble, question(text), settings))), questions
            )
        )


# --- the page -------------------------------------------------------------------------------------


def summary(answers: Mapping[str, Sequence[Answer]], seconds: Mapping[str, float]) -> list[str]:
    lines = [
        "| answers of | ended by itself | words | said again | segments written by | seconds in "
        "all |",
        "|---|---|---|---|---|---|",
    ]
    for who, given in answers.items():
        ended = sum(answer.rounds[-1].finish == "stop" for answer in given)
        words = sum(len(answer.text.split()) for answer in given) / len(given)
        again = sum(answer.repeats for answer in given) / len(given)
        wrote = Counter(item.winner for answer in given for item in answer.rounds)
        by = ", ".join(f"{name} {count / wrote.total():.0%}" for name, count in wrote.most_common())
        lines.append(
            f"| {who} | {ended} of {len(given)} | {words:.0f} | {again:.0%} | {by} | "
            f"{seconds[who]:.0f} |"
        )
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
        if len({item.winner for item in answer.rounds}) > 1 or any(
            item.left for item in answer.rounds
        ):
            lines += [
                "<details><summary>authors of the segments</summary>",
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
        lines.append(
            f"{item.winner:<{width}}  {item.margin:+.3f}  {item.segment.text!r}".replace(
                "```", "'''"
            )
        )
        lines += [f"{left.member} left: {left.reason}" for left in item.left]
    return lines


def page(
    numbers: Sequence[int],
    answers: Mapping[str, Sequence[Answer]],
    seconds: Mapping[str, float],
    chosen: Sequence[str],
    max_tokens: int,
) -> str:
    method = ", ".join(chosen) or "the defaults"
    lines = [
        "# Twenty plain questions",
        "",
        f"Made by `python studies/transcripts.py`: greedy, at most {max_tokens} tokens, {method}.",
        f'"Said again" is the share of runs of {SAID_AGAIN} words that the same answer had said '
        "before.",
        "",
        *summary(answers, seconds),
        "",
    ]
    for at, number in enumerate(numbers):
        lines += transcript(
            number, QUESTIONS[number - 1], {who: given[at] for who, given in answers.items()}
        )
    return "\n".join([*lines, acts_on(PAGE)])


ACTS = re.compile(r"^## The acts of the demo\n.*", re.M | re.S)


def acts_on(page: Path) -> str:
    """The part of the page with the demo's acts."""
    found = ACTS.search(page.read_text()) if page.exists() else None
    return found[0] if found else acts()


def acts() -> str:
    """The acts of both ensembles, as the command shows them without colours."""
    lines = [
        "## The acts of the demo",
        "",
        "`langchain-specfuse demo`, recorded by `python studies/transcripts.py --acts`.",
        "",
    ]
    for size in ("default", "small"):
        shown = subprocess.run(
            [sys.executable, "-m", "langchain_specfuse", "demo", "--yes"],
            env=os.environ | {"DEMO": size, "COLUMNS": "110"},
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout
        lines += [f"**{size}**", "", "```text", shown.strip().replace("```", "'''"), "```", ""]
    return "\n".join(lines)


# --- the call -------------------------------------------------------------------------------------


def arguments() -> argparse.Namespace:
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument(
        "--only",
        nargs="+",
        type=int,
        metavar="N",
        help="these questions, from 1; printed, not written",
    )
    made.add_argument("--acts", action="store_true", help="only the acts of the demo")
    made.add_argument("--who", nargs="+", metavar="NAME", help="a member's name, small or default")
    made.add_argument(
        "--method", nargs="+", default=[], metavar="NAME|KEY=VALUE", help="as for the command"
    )
    made.add_argument("--max-tokens", type=int, default=MAX_TOKENS)
    made.add_argument(
        "--together", type=int, default=8, metavar="N", help="questions at once (default: 8)"
    )
    return made.parse_args()


def main() -> None:
    given = arguments()
    if given.acts:
        PAGE.write_text(f"{ACTS.sub('', PAGE.read_text()).rstrip()}\n\n{acts()}")
        return
    settings = Settings(max_tokens=given.max_tokens, method=method_of(given.method))
    numbers = given.only or list(range(1, len(QUESTIONS) + 1))
    answers, seconds = {}, {}
    for who, ensemble in ensembles().items():
        if given.who and who not in given.who:
            continue
        ensemble.loaded().result()
        began = time.perf_counter()
        answers[who] = answers_of(
            ensemble, settings, [QUESTIONS[n - 1] for n in numbers], given.together
        )
        seconds[who] = time.perf_counter() - began
        print(f"{who}: {amount(len(numbers), 'answer')} in {seconds[who]:.0f} s", file=sys.stderr)
    text = page(numbers, answers, seconds, given.method, given.max_tokens)
    if given.only or given.who:
        print(text)
    else:
        PAGE.write_text(text)


if __name__ == "__main__":
    main()
