"""``specfuse eval`` and ``specfuse doctor`` from the outside: streams, files, exit codes, mistakes."""

from __future__ import annotations

import gc
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from langchain_specfuse import ScriptedMember, SpecFuseChatModel
from langchain_specfuse.cli import FAILED, FINE, INTERRUPTED, MISUSED, main

from .parts import Known, knows, sums


@pytest.fixture
def call(capsys, tmp_path, monkeypatch):
    """(code, standard output, standard error) of one call, in a folder of its own with a file of sums."""
    monkeypatch.chdir(tmp_path)
    sums(tmp_path, 24)

    def called(*argv: str, by=None):
        members = by or [knows("ann", lambda n: True), knows("bob", lambda n: n % 4 == 1)]
        code = main(argv, members=members)
        return (code, *capsys.readouterr())

    return called


@pytest.mark.parametrize("word", ["eval", "doctor"])
def test_the_word_after_two_dashes_or_in_a_sentence_is_a_question(call, word):
    heard = []
    member = ScriptedMember(lambda query: heard.append(query.turns[-1].text) or "Yes.", name="a")
    assert call("--", word, by=[member])[0] == FINE
    assert call(f"{word} this", "-q", by=[member])[:2] == (FINE, "Yes.\n")
    assert heard == [word, f"{word} this"]


def test_eval_alone_asks_for_a_task(call):
    code, out, err = call("eval")
    assert (code, out) == (MISUSED, "") and "task" in err.lower()


def test_eval_prints_a_table_and_keeps_results_and_reports(call, tmp_path):
    code, out, err = call("eval", "sums.jsonl", "--checker", "number", "--limit", "10")
    assert code == FINE and out.startswith("sums: 10 questions") and "against ann" in out
    assert "specfuse: 10 questions of sums, 3 systems" in err and "30 of 30 answers" in err
    folder = tmp_path / "specfuse-eval" / "sums"
    assert {path.name for path in folder.iterdir()} == {"results.jsonl", "report.json", "report.html"}
    assert len((folder / "results.jsonl").read_text().splitlines()) == 30
    assert json.loads((folder / "report.json").read_text())["questions"] == 10
    assert (folder / "report.html").read_text().startswith("<!doctype html>")


def test_eval_as_json_prints_the_report_and_nothing_else(call):
    code, out, err = call("eval", "sums.jsonl", "--checker", "number", "--json", "-q", "--out", "here")
    report = json.loads(out)
    assert (code, err) == (FINE, "")
    assert {row["system"]: row["score"]["mean"] for row in report["rows"]}["ann"] == 1.0


def test_eval_compares_what_is_named(call):
    argv = ["eval", "sums.jsonl", "--checker", "number", "--json", "-q", "--limit", "3", "--segment-tokens", "3"]
    _, out, _ = call(*argv, "--systems", "ensemble", "bob", "no-exit", "short:segment_tokens=2,exit=never")
    report = json.loads(out)
    assert [row["system"] for row in report["rows"]] == ["ensemble", "bob", "no-exit", "short"]
    told = {name: system["settings"]["segment_tokens"] for name, system in report["about"]["systems"].items()}
    assert told == {"ensemble": 3, "bob": 3, "no-exit": 3, "short": 2}


def test_eval_goes_on_where_it_was(call):
    argv = ("eval", "sums.jsonl", "--checker", "number", "--limit", "5")
    first = call(*argv)[1]
    member = Known("no", name="ann", fails_in=1)
    again = call(*argv, by=[member, knows("bob", lambda n: n % 4 == 1)])
    assert again[0] == FINE and again[1] == first and member.draft_calls == 0


def test_eval_gives_the_prior_of_a_file(call, tmp_path):
    (tmp_path / "prior.json").write_text('{"prior": {"bob": 4.0}}')
    argv = ["eval", "sums.jsonl", "--checker", "number", "--json", "-q", "--prior", "prior.json"]
    report = json.loads(call(*argv)[1])
    assert report["about"]["systems"]["ensemble"]["prior"] == {"bob": 4.0}


def test_seeds_ask_everything_once_each(call, tmp_path):
    argv = ["eval", "sums.jsonl", "--checker", "number", "-q", "--limit", "2", "--seeds", "1", "2"]
    assert call(*argv)[0] == MISUSED
    assert call(*argv, "--temperature", "0.5")[0] == FINE
    assert len((tmp_path / "specfuse-eval/sums/results.jsonl").read_text().splitlines()) == 12


def test_when_nothing_could_be_answered_the_exit_code_says_so(call):
    class Broken(Known):
        def draft(self, jobs):
            raise RuntimeError("no")

    code, out, _ = call("eval", "sums.jsonl", "--checker", "number", "--limit", "2", by=[Broken("x", name="a")])
    assert code == FAILED and "2 questions failed and count as wrong" in out


@pytest.mark.parametrize("told", ["7", "None", "'good'", "1 / 0"])
def test_a_checker_that_cannot_be_used_stops_the_run_unless_it_raises(call, tmp_path, caplog, told):
    (tmp_path / "check.py").write_text(f"def f(answer, reference): return {told}")
    code, out, err = call("eval", "sums.jsonl", "--checker", "check.py:f", "--limit", "2", "-q")
    if told == "1 / 0":  # an answer that it did not expect, or a mistake in it: both are told
        assert code == FAILED and "ann: 2 answers could not be checked and count as wrong: the checker raised" in out
        assert "ZeroDivisionError" in (tmp_path / "specfuse-eval/sums/results.jsonl").read_text()
    else:
        gc.collect()
        assert (code, out) == (MISUSED, "") and "checker must" in err and "never retrieved" not in caplog.text


JUDGE = """
from pathlib import Path
def f(answer, reference):
    if Path("away").exists():
        raise ConnectionError("the judge is away")
    return reference in answer
"""


def test_what_a_checker_raised_on_is_counted_everywhere_and_nobody_is_called_better(call, tmp_path):
    (tmp_path / "judge.py").write_text(JUDGE)
    (tmp_path / "away").touch()
    argv = ("eval", "sums.jsonl", "--checker", "judge.py:f", "-q", "--out", "here")
    code, out, _ = call(*argv)
    assert code == FAILED and "unchecked" in out and "against" not in out and "tell them apart" not in out
    assert "ann: 24 answers could not be checked" in out and "the judge is away" in out
    report = json.loads((tmp_path / "here" / "report.json").read_text())
    assert [row["unchecked"] for row in report["rows"]] == [24, 24, 24] and not report["best"]
    page = (tmp_path / "here" / "report.html").read_text()
    assert "ann: 24 answers could not be checked" in page and "not checked: the checker raised ConnectionError" in page


@pytest.mark.parametrize("more", [[], ["--again"]])
def test_answers_that_could_not_be_checked_are_graded_anew_without_being_asked_for(call, tmp_path, more):
    (tmp_path / "judge.py").write_text(JUDGE)
    (tmp_path / "away").touch()
    argv = ("eval", "sums.jsonl", "--checker", "judge.py:f", "-q", "--json")
    call(*argv)
    (tmp_path / "away").unlink()
    silent = [Known("no", name=name, fails_in=1) for name in ("ann", "bob")]
    code, out, _ = call(*argv, *more, by=silent)
    scores = {row["system"]: row["score"]["mean"] for row in json.loads(out)["rows"]}
    assert code == FINE and scores["ann"] == 1.0 > scores["bob"] == 0.5
    assert sum(member.draft_calls for member in silent) == 0


def test_doctor_advises_nothing_from_a_checker_that_raises(call, tmp_path):
    (tmp_path / "judge.py").write_text(JUDGE)
    (tmp_path / "away").touch()
    argv = ("doctor", "--prompts", "sums.jsonl", "--checker", "judge.py:f", "-q", "--json", "--out", "here")
    code, out, _ = call(*argv)
    told = json.loads(out)
    assert code == FAILED and told["verdict"] == "cannot tell" and told["prior"] == {}
    assert told["advice"] == [
        "Cannot tell: the checker raised on 72 answers (ConnectionError: the judge is away). "
        "Mend it and run this again."
    ]
    assert not (tmp_path / "here" / "prior.json").exists()


def test_an_own_checker_that_says_true_or_false_is_as_sure_as_a_built_in_one(call, tmp_path):
    (tmp_path / "own.py").write_text("def f(answer, reference): return answer == f'The sum is {reference}.'")
    found = []
    for checker in ("number", "own.py:f"):
        argv = ("eval", "sums.jsonl", "--checker", checker, "-q", "--json", "--limit", "20", "--out", checker[:3])
        report = json.loads(call(*argv)[1])
        found.append(([row["score"] for row in report["rows"]], report["best"], report["comparisons"]))
    assert found[0] == found[1] and found[1][0][0]["low"] < 0.95 < found[1][0][0]["mean"]
    told = [json.loads(call("doctor", "--prompts", "sums.jsonl", "--checker", checker, "-q", "--json",
                            "--out", f"doctor-{checker[:3]}")[1]) for checker in ("number", "own.py:f")]  # fmt: skip
    assert told[0]["verdict"] == told[1]["verdict"] == "cannot tell"


def test_all_right_under_every_seed_is_not_for_certain(call):
    argv = ("eval", "sums.jsonl", "--checker", "number", "-q", "--json", "--seeds", "1", "2", "--temperature", "0.5")
    report = json.loads(call(*argv)[1])
    assert report["rows"][0]["score"]["mean"] == 1.0 > report["rows"][0]["score"]["low"]


SLOW = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background of a shell it is ignored
from langchain_specfuse.cli import main
from tests.evaluation.parts import Known, knows

class Slow(Known):
    def draft(self, jobs):
        time.sleep(0.05)
        return super().draft(jobs)

argv = ["eval", "sums.jsonl", "--checker", "number", "--at-once", "1", "-q"]
sys.exit(main(argv, members=[Slow(knows("ann", lambda n: True).answer, name="ann")]))
"""


def test_ctrl_c_leaves_with_130_and_keeps_what_is_done(tmp_path):
    sums(tmp_path, 300)
    path = [str(Path(__file__).parents[2]), *sys.path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    process = subprocess.Popen([sys.executable, "-c", SLOW], cwd=tmp_path, env=environment, stderr=subprocess.PIPE)
    results = tmp_path / "specfuse-eval" / "sums" / "results.jsonl"
    with process:
        deadline = time.monotonic() + 60
        while not results.exists() or results.read_text().count("\n") < 3:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (INTERRUPTED, b"")
    assert 3 <= len([json.loads(line) for line in results.read_text().splitlines()]) < 300


WRONG = {
    "no such task": ["gsm9k"],
    "no checker": ["sums.jsonl"],
    "unknown checker": ["sums.jsonl", "--checker", "magic"],
    "own checker": ["gsm8k", "--checker", "exact"],
    "no data": ["gsm8k", "--data", "none.jsonl"],
    "no questions": ["sums.jsonl", "--checker", "number", "--limit", "0"],
    "unknown system": ["sums.jsonl", "--checker", "number", "--systems", "magic"],
    "unknown setting": ["sums.jsonl", "--checker", "number", "--systems", "x:magic=1"],
    "unknown option": ["sums.jsonl", "--magic"],
    "bad setting": ["sums.jsonl", "--checker", "number", "--segment-tokens", "0"],
    "bad time": ["sums.jsonl", "--checker", "number", "--timeout", "-1"],
    "nobody at once": ["sums.jsonl", "--checker", "number", "--at-once", "0"],
    "no prior": ["sums.jsonl", "--checker", "number", "--prior", "none.json"],
    "prior of a stranger": ["sums.jsonl", "--checker", "number", "--prior", "stranger.json"],
    "no such member": ["sums.jsonl", "--checker", "number", "--members", "./no/such/folder"],
    "out is a file": ["sums.jsonl", "--checker", "number", "--out", "sums.jsonl"],
}


@pytest.mark.parametrize("argv", WRONG.values(), ids=WRONG.keys())
def test_a_mistake_in_the_call_leaves_with_2_and_says_what(call, argv, tmp_path):
    (tmp_path / "stranger.json").write_text('{"eve": 2.0}', encoding="utf-8-sig")
    code, out, err = call("eval", *argv)
    assert (code, out) == (MISUSED, "") and "error: " in err and "Traceback" not in err
    if "stranger.json" in argv:
        assert "--prior stranger.json: prior names 'eve'" in err and "take that entry out of the file" in err


def test_doctor_prints_findings_numbers_advice_and_keeps_the_prior(call, tmp_path):
    code, out, err = call("doctor", "--prompts", "sums.jsonl", "--checker", "number", "--out", "here")
    assert code == FINE, err
    assert "ok    scores: its scores differ" in out and "Advice\n  - " in out and "tokens/s" in out
    prior = json.loads((tmp_path / "here" / "prior.json").read_text())
    assert prior["ann"] > 1 > prior["bob"]
    members = [ScriptedMember("One two.", name="ann"), ScriptedMember("Three four.", name="bob")]
    assert SpecFuseChatModel(members=members, prior=prior).invoke("x").text == "One two."
    assert call("eval", "sums.jsonl", "--checker", "number", "--prior", "here/prior.json", "-q")[0] == FINE
    told = json.loads((tmp_path / "here" / "doctor.json").read_text())
    assert told["prior"] == prior and told["verdict"] in ("alone", "cannot tell", "ensemble")
    assert told["advice"][0] in (tmp_path / "here" / "report.html").read_text().replace("&#x27;", "'")


def test_doctor_has_prompts_of_its_own(call):
    code, out, _ = call("doctor", "--json", "-q")
    told = json.loads(out)
    assert code == FINE and told["report"]["questions"] >= 20


def test_doctor_takes_prompts_without_references(call, tmp_path):
    (tmp_path / "bare.jsonl").write_text("\n".join(json.dumps({"input": f"{n} + 1?"}) for n in range(20)))
    code, out, _ = call("doctor", "--prompts", "bare.jsonl")
    assert code == FINE and "Nobody can tell who is right" in out


def test_doctor_leaves_with_1_when_a_check_fails(call):
    class Missing(Known):
        def probe(self):
            raise OSError("no such file")

    code, out, _ = call("doctor", "-q", by=[knows("ann", lambda n: True), Missing("x", name="gone")])
    assert code == FAILED and "BAD   loading: does not load: OSError: no such file" in out


@pytest.mark.parametrize(
    "argv", [["--prompts", "few.jsonl", "--checker", "exact"], ["--checker", "exact"], ["--verifiers", "x"],
             ["--prior", "x"], ["--prompts", "none.jsonl"], ["--magic"]]
)  # fmt: skip
def test_a_mistake_in_the_doctor_s_call_leaves_with_2(call, argv, tmp_path):
    (tmp_path / "few.jsonl").write_text('{"input": "1 + 1?", "reference": "2"}')
    code, out, err = call("doctor", *argv)
    assert (code, out) == (MISUSED, "") and "error: " in err and "Traceback" not in err


@pytest.mark.parametrize("word", ["eval", "doctor"])
def test_help_is_complete(call, word):
    code, out, _ = call(word, "--help")
    assert code == FINE and "exit codes" in out
    for option in ("--members", "--out", "--checker", "--preset", "--json", "--at-once", "--quiet"):
        assert option in out


def test_what_a_library_prints_is_not_the_report(call):
    class Chatty(Known):
        def probe(self):
            print("Loading weights")
            return super().probe()

    code, out, err = call("eval", "sums.jsonl", "--checker", "exact", "--limit", "1", by=[Chatty("x", name="a")])
    assert code == FINE and "Loading weights" not in out and "Loading weights" in err


def test_a_bar_on_a_terminal_and_lines_elsewhere(call, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    pytest.importorskip("tqdm")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", Terminal())
        call("eval", "sums.jsonl", "--checker", "number", "--limit", "4")
        shown = sys.stderr.getvalue()
    assert "ensemble: 100%" in shown and "12/12" in shown


def test_lines_tell_the_time_that_is_left(monkeypatch):
    from langchain_specfuse.core.values import Settings
    from langchain_specfuse.evaluation import progress as own
    from langchain_specfuse.evaluation.systems import System

    now = [100.0]
    monkeypatch.setattr(own.time, "monotonic", lambda: now[0])
    out, system = io.StringIO(), System("ann", ("ann",), Settings())
    with own.progress(20, out) as seen:
        assert seen
        seen(system, 10, 20)  # was there already: says nothing about speed
        for done in range(11, 16):
            now[0] += 10
            seen(system, done, 20)
    lines = out.getvalue().splitlines()
    assert lines == [
        "specfuse: 13 of 20 answers (ann), about 1 min 10 s left",
        "specfuse: 15 of 20 answers (ann), about 50 s left",
    ]
    with own.progress(20, out, quiet=True) as silent:
        assert silent is None
