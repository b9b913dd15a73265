"""The live view on an emulated terminal: what stays on it is what the plain output leaves."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from langchain_specfuse.core.values import Draft, Round, Segment
from langchain_specfuse.show.live import LiveView, fits
from langchain_specfuse.show.terminal import Paint, pieces, visible

pytest.importorskip("rich")

from .emulated import Terminal

NAMES = ["ann", "bob"]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], Terminal]:
    monkeypatch.setenv("TERM", "xterm-256color")
    return Terminal


def a_round(number: int, text: str, winner: str, weights: dict[str, float]) -> Round:
    drafts = {name: Draft(text) for name in weights}
    return Round(number, text, Segment(text), winner, drafts, {}, {}, weights, weights, weights, weights)


def shown(terminal: Terminal, texts: list[str], *, live: bool, interrupted: bool = False) -> list[str]:
    """The lines that stay on the terminal."""
    paint = Paint(NAMES, on=True)
    try:
        with LiveView(paint, terminal.out) if live else nullcontext() as view:
            for at, text in enumerate(texts, 1):
                item = a_round(at, text, NAMES[at % 2], {"ann": 0.25, "bob": 0.75})
                if view:
                    view.show(item)
                else:
                    terminal.out.write("".join(paint.by(name, visible(text)) for name, text in pieces(item)))
            if interrupted:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    print("the end", file=terminal.out, flush=True)
    return terminal.closed()


PIECES = ["1. Hat\n", "2. Shoes\n3. S", "\n\n", "word " * 30, "日本語の空は青いです。" * 3, "空 " * 40, "👩‍👩‍👧 é"]
PIECES += ["a\tb", "\x1b[2J\x1b[H gone? ", "\x9b31m \x07\x08\x0b\r back", "\x1b]0;title\x07", " "]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from(PIECES) | st.text("ab 空\n\t\x1b", max_size=60), max_size=12),
    st.integers(40, 90),
    st.integers(8, 24),
    st.booleans(),
)
def test_what_stays_is_the_plain_output_whatever_the_text(texts, columns, rows, interrupted):
    left = shown(Terminal(columns, rows), texts, live=True, interrupted=interrupted)
    assert left == shown(Terminal(columns, rows), texts, live=False)


def test_weights_and_departures_are_under_the_answer(terminal):
    screen = terminal(60, 12)
    with LiveView(Paint(["ann", "bob", "cyd"], on=True), screen.out) as view:
        view.show(a_round(1, "First line.\nThe sky is ", "ann", {"ann": 0.25, "bob": 0.5, "cyd": 0.25}))
        view.show(replace(a_round(2, "blue", "bob", {"ann": 0.25, "bob": 0.75}), late={"draft": ("ann",)}))
        screen.out.flush()
        assert screen.waits_for("left")
        lines = [line.rstrip() for line in screen.screen.display]
    assert lines[:2] == ["First line.", "The sky is blue"]
    bars = {line.split()[0]: line for line in lines[3:6]}
    assert bars["ann"].endswith("0.25  late") and bars["bob"].endswith("0.75  ✓") and bars["cyd"].endswith("left")
    assert bars["bob"].count("█") == 3 * bars["ann"].count("█") > 0
    assert screen.closed() == ["First line.", "The sky is blue"]


def test_there_is_a_live_view_only_where_it_can_be_drawn(monkeypatch):
    for columns, term, encoding in [(80, "dumb", "utf-8"), (30, "xterm", "utf-8"), (80, "xterm", "ascii")]:
        screen = Terminal(columns, 24)
        monkeypatch.setenv("TERM", term)
        screen.out.reconfigure(encoding=encoding)
        assert not fits(screen.out)
        screen.out.reconfigure(encoding="utf-8")
        assert fits(screen.out) == (term == "xterm" and columns == 80)
        screen.closed()


TEXT = "One thing. " * 20 + "\n\nAnother thing." * 5
ARGV = ["Why?", "--segment-tokens", "3"]


COMMAND = f"""
import signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background of a shell it is ignored
from langchain_specfuse import ScriptedMember
from langchain_specfuse.cli import main as cli

class Slow(ScriptedMember):
    def draft(self, jobs):
        if self.draft_calls == 3:
            time.sleep(600)
        return super().draft(jobs)

members = [Slow({TEXT!r}, name="ann"), ScriptedMember({TEXT!r}, name="bob")]
cli.main = lambda main=cli.main: main({ARGV!r}, members=members)
cli.command()
"""


def test_ctrl_c_leaves_the_agreed_answer_and_a_clean_terminal(terminal, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    screen = terminal(70, 20)
    command = [sys.executable, "-c", COMMAND]
    process = subprocess.Popen(command, stdout=screen.out, stderr=subprocess.PIPE, text=True)
    agreed = "One thing. One thing. One thing. One thing. One"
    assert screen.waits_for(agreed)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "langchain-specfuse: loading ann, bob ...\n")
    assert screen.closed() == ["■ ann  ■ bob", "", agreed]
    assert not screen.screen.cursor.hidden
