"""The live view on a terminal that is emulated: what stays on it is what the plain output would have left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from langchain_specfuse.core.values import Draft, Round, Segment
from langchain_specfuse.show.live import LiveView, fits
from langchain_specfuse.show.terminal import Paint, pieces, visible

pytest.importorskip("pyte")
pytest.importorskip("rich")

from .emulated import Terminal

NAMES = ["ann", "bob"]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], Terminal]:
    monkeypatch.setenv("TERM", "xterm-256color")
    return Terminal


def a_round(number: int, text: str, winner: str, weights: dict[str, float], **more: object) -> Round:
    drafts = {name: Draft(text) for name in weights}
    return Round(number, text, Segment(text), winner, drafts, {}, {}, weights, weights, weights, weights, **more)  # type: ignore[arg-type]


def rounds_of(texts: list[str]) -> list[Round]:
    return [a_round(at, text, NAMES[at % 2], {"ann": 0.25, "bob": 0.75}) for at, text in enumerate(texts, 1)]


def shown_live(terminal: Terminal, rounds: list[Round], interrupted: bool = False) -> list[str]:
    try:
        with LiveView(Paint(NAMES, on=True), terminal.out) as view:
            for item in rounds:
                view.show(item)
            if interrupted:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    print("the end", file=terminal.out, flush=True)
    return terminal.closed()


def shown_plain(terminal: Terminal, rounds: list[Round]) -> list[str]:
    paint = Paint(NAMES, on=True)
    for item in rounds:
        terminal.out.write("".join(paint.by(name, visible(text)) for name, text in pieces(item)))
    print("the end", file=terminal.out, flush=True)
    return terminal.closed()


STORIES = {
    "one line": ["The sky ", "is blue."],
    "lines": ["1. Hat\n", "2. Shoes\n3. S", "ocks\n\n", "\n", "end"],
    "longer than the terminal": ["word " * 30] * 12,
    "wide letters": ["日本語の空は青いです。" * 3, "空 " * 40 + "\n", "👩‍👩‍👧 é"],
    "commands": ["\x1b[2J\x1b[H gone? ", "\x9b31m \x07\x08\x0b\r back\n", "\x1b]0;title\x07"],
    "tabs": ["a\tb\n\tc", "\t\td"],
    "nothing": ["", "", ""],
}


@pytest.mark.parametrize("size", [(40, 8), (80, 24), (200, 50)], ids=str)
@pytest.mark.parametrize("interrupted", [False, True])
@pytest.mark.parametrize("texts", STORIES.values(), ids=STORIES.keys())
def test_what_stays_is_the_plain_output(terminal, texts, size, interrupted):
    rounds = rounds_of(texts)
    assert shown_live(terminal(*size), rounds, interrupted) == shown_plain(terminal(*size), rounds)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.text("ab 空\n\t\x1b", max_size=60), min_size=1, max_size=6), st.integers(40, 60), st.integers(8, 12))
def test_whatever_is_said_nothing_is_lost_or_said_twice(texts, columns, rows):
    rounds = rounds_of(texts)
    assert shown_live(Terminal(columns, rows), rounds) == shown_plain(Terminal(columns, rows), rounds)


def test_under_the_answer_are_the_weights_and_who_left(terminal):
    screen = terminal(60, 12)
    with LiveView(Paint(["ann", "bob", "cyd"], on=True), screen.out) as view:
        view.show(a_round(1, "First line.\nThe sky is ", "ann", {"ann": 0.25, "bob": 0.5, "cyd": 0.25}))
        view.show(replace(a_round(2, "blue", "bob", {"ann": 0.25, "bob": 0.75}), late={"draft": ("ann",)}))
        screen.out.flush()
        for _ in range(200):
            if "left" in "".join(screen.screen.display):
                break
            threading.Event().wait(0.01)
        shown = [line.rstrip() for line in screen.screen.display]
    assert shown[0] == "First line." and shown[1] == "The sky is blue"
    bars = {line.split()[0]: line for line in shown[3:6]}
    assert bars["ann"].endswith("0.25  late") and bars["bob"].endswith("0.75  ✓") and bars["cyd"].endswith("left")
    assert bars["bob"].count("█") == 3 * bars["ann"].count("█") > 0
    assert screen.closed() == ["First line.", "The sky is blue"]


def test_many_members_leave_room_for_the_answer(terminal):
    names = [f"member-{at}" for at in range(40)]
    screen = terminal(60, 10)
    with LiveView(Paint(names, on=False), screen.out) as view:
        view.show(a_round(1, "The sky", "member-0", dict.fromkeys(names, 1 / 40)))
    assert screen.closed() == ["The sky"]


def test_the_cursor_is_visible_again(terminal):
    screen = terminal(60, 10)
    shown_live(screen, rounds_of(["a", "b"]), interrupted=True)
    assert not screen.screen.cursor.hidden


@pytest.mark.parametrize(
    ("term", "size", "expected"),
    [("xterm", (80, 24), True), ("dumb", (80, 24), False), ("xterm", (30, 24), False), ("xterm", (80, 5), False)],
)
def test_where_there_is_no_room_nothing_is_drawn_anew(terminal, monkeypatch, term, size, expected):
    screen = terminal(*size)
    monkeypatch.setenv("TERM", term)
    assert fits(screen.out) is expected
    screen.closed()


def test_without_rich_or_a_terminal_nothing_is_drawn_anew(terminal, monkeypatch, tmp_path):
    old = terminal(80, 24)
    old.out.reconfigure(encoding="ascii", errors="backslashreplace")
    assert not fits(old.out), "a bar would be six letters long"
    old.closed()
    with (tmp_path / "file").open("w") as file:
        assert not fits(file)
    screen = terminal(80, 24)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert not fits(screen.out)
    screen.closed()


COMMAND = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background of a shell it is ignored
from langchain_specfuse import cli
from langchain_specfuse.members.scripted import ScriptedMember

class Slow(ScriptedMember):
    def draft(self, jobs):
        if self.draft_calls == 3 and "wait" in sys.argv:
            time.sleep(60)
        return super().draft(jobs)

text = "One thing. " * 20 + "\\n\\nAnother thing." * 5
argv = ["Why?", "--segment-tokens", "3", *(word for word in sys.argv[1:] if word != "wait")]
cli.main = lambda main=cli.main: main(argv, members=[Slow(text, name="ann"), ScriptedMember(text + "!", name="bob")])
cli.command()
"""


def started(screen: Terminal, *words: str) -> subprocess.Popen[str]:
    told = {**os.environ, "TERM": "xterm-256color"}
    told.pop("NO_COLOR", None)
    command = [sys.executable, "-c", COMMAND, *words]
    return subprocess.Popen(command, stdout=screen.out, stderr=subprocess.PIPE, env=told, text=True)


def test_the_command_leaves_the_same_on_the_terminal_live_and_plain(terminal):
    left = []
    for words in ([], ["--plain"]):
        screen = terminal(70, 20)
        _, err = started(screen, *words).communicate(timeout=30)
        assert err == "specfuse: loading ann, bob ...\n"
        lines = screen.closed()
        table = next(at for at, line in enumerate(lines) if "author" in line)  # what it says of seconds differs
        left.append(lines[:table])
    assert left[0] == left[1]
    assert left[0][0] == "■ ann  ■ bob" and sum("Another thing." in line for line in left[0]) >= 2


def test_ctrl_c_leaves_the_live_view_at_once_and_cleanly(terminal):
    screen = terminal(70, 20)
    process = started(screen, "wait")
    for _ in range(1000):
        if "0.50" in "".join(screen.screen.display):
            break
        threading.Event().wait(0.01)
    threading.Event().wait(0.3)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=10)
    assert (process.returncode, err) == (130, "specfuse: loading ann, bob ...\n")
    assert screen.closed() == ["■ ann  ■ bob", "", "One thing. One thing. One thing. One thing. One"]
    assert not screen.screen.cursor.hidden
