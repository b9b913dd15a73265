"""``langchain-specfuse demo``: what this package is good for, in three short acts.

Real models write the answers as you watch: the numbers below each act are those of this run. With
``DEMO=scripted``, two scripted members write instead, and nothing is fetched.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from ..chat.members import ensemble_for
from ..core.round import Round
from ..core.values import Query
from ..errors import SpecFuseError, UsageError, advised, amount
from ..members.scripted import ScriptedMember
from ..show.terminal import BOLD, Paint
from . import choices, main
from .choices import PROGRAM, new_parser, say, whole
from .member_process import MemberProcess

APOLOGIES = "(?i)sorry|apolog"
"""What the second act forbids."""
KILL_AFTER = 2
"""The third act kills after so many segments, or later if a sentence ends there."""
KILLED = "1;31"
"""Bold and red."""
SCRIPTED = "scripted"
"""As ``DEMO``: no model writes, and nothing is fetched."""
PAUSE_S = 0.2
"""A scripted member takes so long for a draft, so that one can watch it, and kill its process."""


@dataclass(frozen=True)
class Act:
    """A question of the command, and what its answer shows."""

    title: str
    question: str
    result: Callable[[Run], str]
    """Says what happened in a run."""
    small_question: str = ""
    """Another question for the small ensemble, where both of its models write."""
    options: tuple[str, ...] = ()
    """Further arguments of the command."""
    kills: bool = False
    """Whether the process of the first model, which leads, is killed while it writes."""
    scripts: tuple[str, str] = ("", "")
    """What the two scripted members write."""


class Run:
    """The rounds of an answer, and when they came."""

    def __init__(self, rounds: Iterator[Round], lead: MemberProcess, kills: bool) -> None:
        self._rounds = rounds
        self._lead = lead
        self._kills = kills
        self.rounds: list[Round] = []
        self.times: list[float] = []
        """Seconds from the question to each round."""
        self.killed_s: float | None = None
        """Seconds from the question to the kill."""

    @property
    def text(self) -> str:
        return "".join(item.text for item in self.rounds)

    def watched(self, out: TextIO, paint: Paint) -> Iterator[Round]:
        """The rounds. The lead is killed after the reader has seen the beginning of a sentence."""
        began = time.perf_counter()
        with closing(self._rounds):  # type: ignore[type-var]
            for item in self._rounds:
                self.rounds.append(item)
                self.times.append(time.perf_counter() - began)
                yield item  # it is printed now
                if self._kills and self.killed_s is None and self._is_in_mid_sentence():
                    self._lead.kill()
                    self.killed_s = time.perf_counter() - began
                    kill = paint.coded(KILLED, f"[kill -9 {self._lead.pid}]")
                    print(f" {kill}", end="", file=out, flush=True)

    def _is_in_mid_sentence(self) -> bool:
        is_whole = re.search(r"[.!?:\s]$", self.text)
        return len(self.rounds) >= KILL_AFTER and not is_whole and not self.rounds[-1].finish


# --- what happened --------------------------------------------------------------------------------


def vote(run: Run) -> str:
    wrote = Counter(item.member for item in run.rounds)
    (first, most), *others = wrote.most_common()
    seconds = f"{run.times[-1]:.1f} s, first text after {run.times[0]:.1f} s"
    if not others:
        return f"{first} wrote all of it, because its drafts won; {seconds}"
    shares = ", ".join(f"{name} {count}" for name, count in others)
    return f"{first} wrote {amount(most, 'segment')}, {shares}; {seconds}"


def rule(run: Run) -> str:
    refused = sum(len(item.rejected) for item in run.rounds)
    if not refused:
        return "no draft broke the rule this time, so nothing was replaced"
    is_kept = "keeps" if re.search(APOLOGIES, run.text) is None else "breaks"
    return (
        f"{amount(refused, 'draft')} broke the rule, the answer {is_kept} it; complete after "
        f"{run.times[-1]:.1f} s"
    )


def failure(run: Run) -> str:
    if run.killed_s is None:
        return "the answer was over before its author could be killed in mid-sentence"
    gone = [left.member for item in run.rounds for left in item.left]
    if not gone:
        return "the answer was complete before the kill had an effect"
    words: Counter[str] = Counter()
    for item in run.rounds:
        words[item.member] += len(item.text.split())
    after = [
        (seconds, item.member)
        for seconds, item in zip(run.times, run.rounds, strict=True)
        if item.text and item.member not in gone and seconds > run.killed_s
    ]
    if not after:
        return f"{gone[0]} was killed, and nobody wrote after it"
    seconds, heir = after[0]
    return (
        f"{gone[0]} wrote {amount(words[gone[0]], 'word')}, {heir} the other {words[heir]}, from "
        f"{seconds - run.killed_s:.1f} s after the kill"
    )


ACTS = (
    Act(
        "Two models write one answer as equals: both draft every segment, and both vote.",
        "Why is the sea salty? Answer in two sentences.",
        vote,
        small_question="How do birds fly? Answer in two sentences.",
        options=("--lead", "none"),
        scripts=(
            "Rain washes salt out of the rocks, and rivers carry it into the sea. There the water "
            "turns to vapour, but its salt stays behind, and slowly the sea gets saltier.",
            "Rivers wash salt out of the rocks, and they carry it into the sea. The sun lifts the "
            "water again, but the salt stays behind.",
        ),
    ),
    Act(
        "A rule for support: no apologies. A draft that breaks it is struck out and replaced.",
        "Reply to a customer whose parcel is late, in two sentences.",
        rule,
        options=("--check", f"forbids:{APOLOGIES}"),
        scripts=(
            "Thank you for your message about the parcel. We are sorry that it is late, and it "
            "will be with you tomorrow.",
            "Thank you for your message about the parcel. We are sure that it left today, and it "
            "will be with you tomorrow.",
        ),
    ),
    Act(
        "The process of the model that writes is killed in mid-sentence. Another one continues.",
        "Why is sleep important? Answer in two sentences.",
        failure,
        kills=True,
        scripts=(
            "Sleep gives the body time to repair itself and to fight infections. It also lets the "
            "brain sort what the day has taught it, keep what matters, and drop the rest.",
        )
        * 2,
    ),
)


# --- the command ----------------------------------------------------------------------------------


def parser() -> argparse.ArgumentParser:
    parser = new_parser(
        "demo",
        "What this package is good for, in three short acts by the demo's models (DEMO=small: "
        "smaller ones). No answer is a recording: they write as you watch. With DEMO=scripted, two "
        "scripted members write instead of models, and nothing is fetched.",
    )
    parser.add_argument(
        "acts",
        nargs="*",
        type=whole,
        metavar="N",
        help="the acts: 1 is a vote, 2 a rule, 3 a failure (default: all); to ask a question, "
        "leave out the word demo",
    )
    parser.add_argument(
        "--yes", action="store_true", help="fetch the models without asking, if they are missing"
    )
    parser.add_argument(
        "--no-color", action="store_true", help="no colours (also: NO_COLOR, or not on a terminal)"
    )
    parser.set_defaults(members=None, verifiers=None, lead="auto")
    return parser


def run(arguments: argparse.Namespace, out: TextIO) -> bool:
    """Show the acts, one after another."""
    began = time.perf_counter()
    numbers = _ordered(_checked(arguments.acts) or range(1, len(ACTS) + 1))
    with _loaded(arguments) as members:
        results = [_shown(number, members, arguments, out) for number in numbers]
    seconds = time.perf_counter() - began
    own = f'{_program()} "Why is the sky blue?" --members A B'
    acts = amount(len(numbers), "act")
    print(f"\n{acts} in {seconds:.0f} s, loading included. Your own models: {own}", file=out)
    return all(results)


def _checked(numbers: Sequence[int]) -> Sequence[int]:
    for number in numbers:
        if not 1 <= number <= len(ACTS):
            error = UsageError(f"there is no act {number}, only 1 to {len(ACTS)}")
            raise advised(error, f"{PROGRAM} demo 2, or {PROGRAM} demo for all")
    return numbers


def _ordered(numbers: Sequence[int]) -> list[int]:
    """Each act once. The one that kills the process is the last, because others need it."""
    return sorted(dict.fromkeys(numbers), key=lambda number: ACTS[number - 1].kills)


@contextmanager
def _loaded(arguments: argparse.Namespace) -> Iterator[list[Any]]:
    """The demo's models, loaded once for all acts. The first one has a process of its own, because
    the last act kills it."""
    if _size() == SCRIPTED:
        say("no model writes here: both members follow a script, and nothing is fetched")
        writers = _typists()
    else:
        writers = choices.members_of(arguments)[0]
    members: list[Any] = [MemberProcess(writers[0]), *writers[1:]]
    say(f"loading {', '.join(member.name for member in members)} ...")
    try:
        ensemble = ensemble_for(members)
        ensemble.loaded().result()
        yield members
    finally:
        members[0].end()


class Typist(ScriptedMember):
    """A scripted member that takes its time."""

    def draft(self, jobs: Sequence[Any]) -> Any:
        time.sleep(PAUSE_S)
        return super().draft(jobs)


def _typists() -> list[Any]:
    return [Typist(partial(_script, at), name=f"scripted-{at + 1}") for at in (0, 1)]


def _script(at: int, query: Query) -> str:
    """What a scripted member writes in the act with this question."""
    return next(act.scripts[at] for act in ACTS if act.question == query.turns[-1].text)


def _shown(number: int, members: list[Any], arguments: argparse.Namespace, out: TextIO) -> bool:
    """Show one act. Returns whether it succeeded."""
    act, lead = ACTS[number - 1], members[0]
    words = [*act.options, _question_of(act)]
    if act.kills:
        words += ["--lead", lead.name]
    if arguments.no_color:
        words.append("--no-color")
    asked = main.parser().parse_args(words)
    question = main.question_of(asked, lambda _: (members, []))
    paint = main.paint_for([], asked, out)
    record = Run(question.rounds(), lead, act.kills)
    print(f"\n{paint.coded(BOLD, f'{number}. {act.title}')}", file=out)
    print(f"{paint.coded(BOLD, '$')} {_command(number)}\n", file=out, flush=True)
    try:
        main.show_answer(question, record.watched(out, paint), asked, out)
    except SpecFuseError as error:
        main.report(error)
        return False
    print(paint.coded(BOLD, f"-> {act.result(record)}"), file=out, flush=True)
    return True


def _command(number: int) -> str:
    """The command that does what this act does."""
    act = ACTS[number - 1]
    is_own = act.kills or _size() == SCRIPTED  # no other command does the same
    words = ["demo", str(number)] if is_own else [*act.options, _question_of(act)]
    command = shlex.join([_program(), *words])
    return command if _size() == "default" else f"DEMO={shlex.quote(_size())} {command}"


def _question_of(act: Act) -> str:
    return act.small_question if act.small_question and _size() == "small" else act.question


def _size() -> str:
    """Which demo ensemble answers."""
    return os.environ.get("DEMO") or "default"


def _program() -> str:
    """How to call this command here. ``make demo`` calls one that no shell finds by its name."""
    called = sys.argv[0]
    return called if Path(called).name == PROGRAM and not shutil.which(PROGRAM) else PROGRAM
