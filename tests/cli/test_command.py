"""The command from the outside: what lands on which stream, and how it leaves. Scripted members, so it is instant."""

from __future__ import annotations

import importlib
import io
import json
import signal
import subprocess
import sys

import pytest

from langchain_specfuse import __version__
from langchain_specfuse._command_choices import chosen_settings
from langchain_specfuse.cli import FAILED, FINE, INTERRUPTED, MISUSED, UNREAD, main
from langchain_specfuse.core.values import DraftJob
from langchain_specfuse.members.scripted import ScriptedMember

TEXT = "The sky is blue because the air scatters short waves of light more strongly than long ones."
OTHER = "The sea is blue since water absorbs red light, the sky is another matter altogether, friends."


def members() -> list[ScriptedMember]:
    return [ScriptedMember(TEXT, name="alpha"), ScriptedMember(TEXT, name="beta"), ScriptedMember(OTHER, name="gamma")]


@pytest.fixture
def ask(capsys):
    """(code, standard output, standard error) of one call."""

    def asked(*argv: str, by=None):
        code = main(argv, members=by or members())
        return (code, *capsys.readouterr())

    return asked


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_terminal(monkeypatch, *argv: str, by=None) -> str:
    out = Terminal()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", out)
        patch.delenv("NO_COLOR", raising=False)
        patch.setenv("TERM", "xterm")
        assert main(argv, members=by or members()) == FINE
    return out.getvalue()


def test_quiet_prints_the_answer_alone(ask):
    assert ask("Why?", "--quiet") == (FINE, TEXT + "\n", "")


def test_tells_who_writes_then_the_answer_then_the_rounds(ask):
    code, out, err = ask("Why?")
    assert code == FINE
    assert out.startswith("■ alpha  ■ beta  ■ gamma\n\n" + TEXT + "\n\n")
    assert "segment" in out and "margin" in out and "2 rounds (alpha 2), 17 tokens" in out
    assert err == "specfuse: loading alpha, beta, gamma ...\n"


def test_json_is_one_object_per_round_and_nothing_else(ask):
    code, out, _ = ask("Why?", "--json", "--segment-tokens", "5")
    rounds = [json.loads(line) for line in out.splitlines()]
    assert code == FINE
    assert [item["round"] for item in rounds] == [1, 2, 3, 4]
    assert "".join(item["text"] for item in rounds) == TEXT
    assert rounds[-1]["finish"] == "stop"


def test_what_a_library_prints_is_not_the_answer(ask):
    class Chatty(ScriptedMember):
        def probe(self):
            print("Loading weights: 100%")
            return super().probe()

    code, out, err = ask("Why?", "--quiet", by=[Chatty(TEXT, name="chatty")])
    assert (code, out) == (FINE, TEXT + "\n")
    assert "Loading weights" in err


def test_every_segment_has_its_authors_colour_and_leaves_none_behind(monkeypatch):
    shown = on_terminal(monkeypatch, "Why?")
    assert "\x1b[36mThe sky is blue because the air scatters short waves\x1b[0m" in shown
    assert shown.count("\x1b[0m") * 2 == shown.count("\x1b[")


@pytest.mark.parametrize("plain", ["flag", "NO_COLOR", "dumb"])
def test_no_colours_when_nobody_wants_them(monkeypatch, plain):
    if plain == "flag":
        assert "\x1b" not in on_terminal(monkeypatch, "Why?", "--no-color")
        return
    out = Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setenv("TERM" if plain == "dumb" else plain, "dumb")
    assert main(["Why?"], members=members()) == FINE
    assert "\x1b" not in out.getvalue()


def test_an_answer_cannot_command_the_terminal(monkeypatch):
    shown = on_terminal(monkeypatch, "Why?", "--no-color", by=[ScriptedMember("red \x1b[31m \x9b31m alert", name="a")])
    assert "\x1b" not in shown and "\x9b" not in shown


def test_an_answer_is_conserved_when_it_goes_to_a_file(ask):
    said = "red \x1b[31m alert\r\n\ttab"
    assert ask("Why?", "--quiet", by=[ScriptedMember(said, name="a")])[1] == said + "\n"


@pytest.mark.parametrize("argv", [[], ["-"]])
def test_reads_the_question_from_standard_input(ask, monkeypatch, argv):
    heard: list[str] = []
    member = ScriptedMember(lambda query: heard.append(query.turns[-1].text) or "Yes.", name="a")
    monkeypatch.setattr(sys, "stdin", io.StringIO("Two lines,\nindeed?\n"))
    assert ask(*argv, "--quiet", by=[member])[:2] == (FINE, "Yes.\n")
    assert heard == ["Two lines,\nindeed?"]


def test_choices_reach_the_members(ask):
    jobs: list[DraftJob] = []

    class Listening(ScriptedMember):
        def draft(self, given):
            jobs.extend(given)
            return super().draft(given)

    options = "--system S --temperature 0.5 --top-p 0.9 --seed 7 --max-tokens 6 --segment-tokens 4 --stop END --stop X"
    ask("Why?", *options.split(), by=[Listening(TEXT, name="a")])
    job = jobs[0]
    assert [(turn.role, turn.text) for turn in job.query.turns] == [("system", "S"), ("user", "Why?")]
    assert (job.sampling.temperature, job.sampling.top_p, job.sampling.seed) == (0.5, 0.9, 7)
    assert (job.max_tokens, job.segment_tokens, job.stop) == (6, 4, ("END", "X"))


def test_names_a_stop_string_as_the_reason(ask):
    _, out, _ = ask("Why?", "--stop", "scatters")
    assert out.split("\n\n")[1].startswith("The sky is blue because the air ") and "a stop string appeared" in out


def test_the_budget_is_the_reason_when_it_is_used_up(ask):
    assert "the budget was used up" in ask("Why?", "--max-tokens", "4")[1]


WRONG = {
    "unknown option": ["Why?", "--colour"],
    "abbreviation": ["Why?", "--mem", "x"],
    "preset": ["Why?", "--preset", "magic"],
    "score": ["Why?", "--score", "magic"],
    "not a number": ["Why?", "--max-tokens", "many"],
    "no tokens": ["Why?", "--max-tokens", "0"],
    "no segment": ["Why?", "--segment-tokens", "0"],
    "below zero": ["Why?", "--temperature", "-1"],
    "not finite": ["Why?", "--temperature", "nan"],
    "too likely": ["Why?", "--top-p", "1.5"],
    "empty stop": ["Why?", "--stop", ""],
    "empty question": [""],
    "blank question": ["  \n "],
    "two questions": ["Why?", "How?"],
    "broken text": ["Why\udcff?"],
    "broken system": ["Why?", "--system", "\udcff"],
    "no such folder": ["Why?", "--members", "./no/such/folder"],
    "no such file": ["Why?", "--members", "no-such.gguf"],
    "empty member": ["Why?", "--members", ""],
    "no server": ["Why?", "--members", "http:///v1#m"],
}


@pytest.mark.parametrize("argv", WRONG.values(), ids=WRONG.keys())
def test_a_mistake_in_the_call_leaves_with_2_and_says_what(ask, argv):
    code, out, err = ask(*argv)
    assert (code, out) == (MISUSED, "")
    assert "specfuse: error: " in err and "Traceback" not in err


def test_a_question_swallowed_by_members_is_told_so(ask, monkeypatch):
    monkeypatch.setattr(sys, "stdin", Terminal())
    code, _, err = ask("--members", "a", "b", "Why?")
    assert code == MISUSED and "put it before --members" in err


def test_a_failed_ensemble_leaves_with_1_and_keeps_what_was_shown(ask):
    code, out, err = ask("Why?", "--quiet", by=[ScriptedMember(TEXT, name="a", fails_in=2)])
    assert (code, out) == (FAILED, "The sky is blue because the air scatters short waves\n")
    assert err.startswith("specfuse: error: no member is left to go on in round 2") and "Traceback" not in err


def test_a_member_that_fails_is_named_in_the_table(ask):
    code, out, _ = ask("Why?", by=[ScriptedMember(TEXT, name="a"), ScriptedMember(OTHER, name="b", fails_in=2)])
    assert code == FINE and "b left (error): RuntimeError: scripted failure" in out


SLOW = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background of a shell it is ignored
from langchain_specfuse import cli
from langchain_specfuse.members.scripted import ScriptedMember

class Slow(ScriptedMember):
    def draft(self, jobs):
        if self.draft_calls:
            time.sleep(60)
        return super().draft(jobs)

cli.main = lambda main=cli.main: main(["Why?", "--quiet"], members=[Slow("a b c d e f g h i j k l m n", name="a")])
cli.command()
"""


def test_ctrl_c_leaves_at_once_with_130_and_no_traceback():
    process = subprocess.Popen([sys.executable, "-c", SLOW], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        shown = process.stdout.read(len("a b c d e f g h i j"))
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=10)
    assert (process.returncode, shown + out, err) == (INTERRUPTED, "a b c d e f g h i j\n", "")


def test_a_reader_that_leaves_is_left_without_a_word():
    code = SLOW.replace("time.sleep(60)", "pass").replace('"--quiet"', '"--quiet", "--segment-tokens", "1"')
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        process.stdout.close()
        err = process.stderr.read() if process.stderr else b""
        assert (process.wait(timeout=10), err) == (UNREAD, b"")


def test_a_broken_pipe_leaves_without_a_word(monkeypatch, capsys):
    class Closed(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Closed())
    assert main(["Why?", "--quiet"], members=members()) == UNREAD
    assert capsys.readouterr().err == ""


def test_version_and_help(ask):
    assert ask("--version")[:2] == (FINE, f"specfuse {__version__}\n")
    code, out, _ = ask("--help")
    assert code == FINE and "--members" in out and "exit codes" in out


# --- what the answer must look like -----------------------------------------------------------------------------

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


@pytest.fixture
def schema(tmp_path):
    file = tmp_path / "city.json"
    file.write_text(json.dumps(CITY))
    return str(file)


def test_an_answer_by_a_schema_is_json_and_nothing_else(ask, schema):
    by = [ScriptedMember('{"city": "Rome"}', name="a"), ScriptedMember("I think it is Rome.", name="b")]
    code, out, err = ask("Where?", "--schema", schema, "-q", by=by)
    assert (code, err, json.loads(out)) == (FINE, "", {"city": "Rome"})


def test_an_answer_that_is_cut_off_is_closed(ask, schema):
    by = [ScriptedMember('{"city": "Rome and many other places"}', name="a")]
    code, out, _ = ask("Where?", "--schema", schema, "--max-tokens", "2", by=by)
    assert code == FINE and "closed by hand" in out


@pytest.mark.parametrize(
    ("argv", "said"),
    [(("--choice", "yes", "--choice", "no"), "yes"), (("--regex", "y[a-z]+"), "yes")],
)
def test_a_choice_and_a_pattern_are_kept(ask, argv, said):
    assert ask("Well?", *argv, "-q", by=[ScriptedMember("yes", name="a")])[:2] == (FINE, said + "\n")


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (("--schema", "/nowhere.json"), "nowhere.json"),
        (("--choice", "a", "--regex", "b"), "--regex and --choice are both given"),
        (("--schema", "/nowhere.json", "--regex", "b"), "--schema and --regex are both given"),
        (("--schema", "/nowhere.json", "--choice", "b"), "--schema and --choice are both given"),
        (("--regex", "("), "regex"),
        (("--choice", ""), "choice"),
        (("--choice", "a", "--stop", "x"), "stop"),
    ],
)
def test_forms_that_cannot_be_are_refused_before_anything_loads(ask, argv, told):
    code, out, err = ask("Well?", *argv)
    assert (code, out) == (MISUSED, "") and told in err


@pytest.mark.parametrize("text", ["[1]", "{", "nonsense"])
def test_a_file_that_holds_no_schema_is_refused(ask, tmp_path, text):
    file = tmp_path / "s.json"
    file.write_text(text)
    code, out, err = ask("Well?", "--schema", str(file))
    assert (code, out) == (MISUSED, "") and "s.json" in err


# --- how they agree: alike in every command -----------------------------------------------------------------------

COMMANDS = {"": ["Why?"], "eval": ["gsm8k"], "doctor": [], "serve": []}


def method(command: str, *flags: str) -> tuple[bool, bool | str]:
    """What these flags choose: of the umpire, and of speculation."""
    parser = importlib.import_module("langchain_specfuse." + (f"_command_{command}" if command else "cli")).parser()
    settings = chosen_settings(parser.parse_args([*flags, *COMMANDS[command]]))
    return settings.umpire, settings.speculate


@pytest.mark.parametrize("command", COMMANDS)
def test_the_umpire_and_speculation_can_be_chosen_and_are_the_presets_otherwise(command):
    assert method(command) == (True, False)
    assert method(command, "--no-umpire", "--speculate", "on") == (False, True)
    assert method(command, "--preset", "specem") == (False, False)
    assert method(command, "--preset", "specem", "--umpire", "--speculate=auto") == (True, "auto")
    assert method(command, "--speculate") == method(command, "--speculate", "auto") == (True, "auto")
    assert method(command, "--speculate", "off") == (True, False)


def test_a_question_is_not_taken_for_the_way_to_speculate(ask):
    assert ask("--quiet", "--speculate", "Why?") == (FINE, TEXT + "\n", "")
    assert ask("--quiet", "--speculate", "on", "Why?") == (FINE, TEXT + "\n", "")
    assert ask("--quiet", "--speculate", "--", "on") == (FINE, TEXT + "\n", "")
    assert ask("--quiet", "--", "--speculate")[0] == FINE


def test_a_wrong_way_to_speculate_is_told_with_the_right_ones(ask):
    code, out, err = ask("Why?", "--speculate=maybe")
    assert (code, out) == (MISUSED, "")
    assert "argument --speculate: invalid choice: 'maybe' (choose from auto, on, off)" in err
