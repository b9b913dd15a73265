"""``specfuse --html`` and ``--from``: the page is there however the answer ends, and refused before it begins."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys

import pytest

from langchain_specfuse import Trace
from langchain_specfuse.cli import FAILED, FINE, INTERRUPTED, MISUSED, main
from langchain_specfuse.members.scripted import ScriptedMember

from .test_command import SLOW, TEXT, members


def held(file) -> dict:
    """The run that a page was made from."""
    return json.loads(re.search(r'id="run">(.*?)</script>', file.read_text())[1])


def test_the_page_holds_the_run_and_the_answer_is_printed_as_ever(tmp_path, capsys):
    file = tmp_path / "run.html"
    assert main(["Why?", "--quiet", "--html", str(file)], members=members()) == FINE
    assert capsys.readouterr() == (TEXT + "\n", "")
    run = held(file)
    assert run["question"] == "Why?" and run["members"] == ["alpha", "beta", "gamma"] and run["error"] == ""
    assert "".join(item["text"] for item in run["rounds"]) == TEXT


def test_it_says_where_the_page_is(tmp_path, capsys):
    main(["Why?", "--html", str(tmp_path / "run.html")], members=members())
    assert f"specfuse: the run is in {tmp_path / 'run.html'}\n" in capsys.readouterr().err


def test_what_json_printed_becomes_a_page_without_asking_anybody(tmp_path, capsys):
    assert main(["Why?", "--json", "--segment-tokens", "5"], members=members()) == FINE
    lines, page = tmp_path / "run.jsonl", tmp_path / "run.html"
    lines.write_text(capsys.readouterr().out)
    asked = ["--from", str(lines), "--html", str(page)]
    assert main(asked, members=[ScriptedMember(TEXT, name="never", fails_in=1)]) == FINE
    assert held(page)["rounds"] == Trace.load(lines).rounds and len(held(page)["rounds"]) == 4
    assert main([*asked, "A title"]) == FINE
    assert held(page)["question"] == "A title"


def test_json_and_a_page_at_once(tmp_path, capsys):
    main(["Why?", "--json", "--html", str(tmp_path / "run.html")], members=members())
    rounds = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert held(tmp_path / "run.html")["rounds"] == rounds


def test_a_failed_answer_leaves_its_page(tmp_path, capsys):
    file = tmp_path / "run.html"
    assert main(["Why?", "-q", "--html", str(file)], members=[ScriptedMember(TEXT, name="a", fails_in=2)]) == FAILED
    run = held(file)
    assert len(run["rounds"]) == 1 and run["error"].startswith("no member is left to go on in round 2")


def test_an_interrupted_answer_leaves_its_page(tmp_path):
    file = tmp_path / "run.html"
    code = SLOW.replace('"--quiet"]', f'"--quiet", "--html", {str(file)!r}]')
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        process.stdout.read(len("a b c d e f g h i j"))
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=10)
    assert (process.returncode, err) == (INTERRUPTED, "")
    assert len(held(file)["rounds"]) == 1 and "interrupted" in held(file)["error"]


WRONG = {
    "no folder": ["Why?", "--html", "no/such/folder/run.html"],
    "a folder": ["Why?", "--html", "folder.html"],
    "no page": ["Why?", "--html", "run.txt"],
    "not even JSON": ["Why?", "--html", "run.json"],
    "from nothing": ["--from", "none.jsonl", "--html", "run.html"],
    "from no trace": ["--from", "odd.json", "--html", "run.html"],
    "from, and then": ["--from", "odd.json"],
}


@pytest.mark.parametrize("argv", WRONG.values(), ids=WRONG.keys())
def test_a_file_that_cannot_be_is_refused_before_anybody_is_asked(tmp_path, monkeypatch, capsys, argv):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.html").mkdir()
    (tmp_path / "odd.json").write_text("odd")
    asked = ScriptedMember(TEXT, name="a")
    assert main(argv, members=[asked]) == MISUSED
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("specfuse: error: ") and "\n  -> " in err
    assert asked.draft_calls == 0
    assert sorted(item.name for item in tmp_path.iterdir()) == ["folder.html", "odd.json"]


def test_a_disk_that_fails_at_the_end_does_not_hide_what_went_wrong_first(tmp_path, monkeypatch, capsys):
    def full(self, path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Trace, "save", full)
    argv = ["Why?", "-q", "--html", str(tmp_path / "run.html")]
    assert main(argv, members=[ScriptedMember(TEXT, name="a", fails_in=2)]) == FAILED
    err = capsys.readouterr().err
    assert "could not be kept: [Errno 28]" in err and "specfuse: error: no member is left" in err
    assert main(argv, members=members()) == FAILED
    assert "No space left" in capsys.readouterr().err
