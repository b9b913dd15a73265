"""The commands ``eval`` and ``doctor`` from outside: streams, files, exit codes, mistakes."""

from __future__ import annotations

import json
import re

import pytest

from langchain_specfuse.chat.calibration import Calibration
from langchain_specfuse.cli.main import FAILED, FINE, MISUSED, main
from langchain_specfuse.evaluation.running import Progress
from tests.demo_members import replace_demo
from tests.docs.shell import replace_members

from .parts import Known, Missing, knows, sums

SUMS = ("eval", "sums.jsonl", "--grader", "number")


@pytest.fixture
def call(capsys, tmp_path, monkeypatch):
    """(code, standard output, standard error) of one call, in a folder of its own with a file of
    sums."""
    monkeypatch.chdir(tmp_path)
    sums(tmp_path, 24)

    def called(*argv: str, by=None):
        members = by or [knows("ann", lambda n: True), knows("bob", lambda n: n % 4 == 1)]
        replace_demo(members, monkeypatch.setattr)
        return (main(argv), *capsys.readouterr())

    return called


def test_eval_prints_a_table_and_keeps_results(call, tmp_path):
    code, out, err = call(*SUMS, "--limit", "10")
    assert code == FINE and out.startswith("sums: 10 questions") and "against ann" in out
    assert "10 questions of sums, 3 systems" in err and "ensemble: 10 of 10 answers" in err
    folder = tmp_path / "specfuse-eval" / "sums"
    assert {path.name for path in folder.iterdir()} == {"results.jsonl"}
    assert len((folder / "results.jsonl").read_text().splitlines()) == 30
    silent = Known("no", name="ann", fails_in=1)
    again = call(*SUMS, "--limit", "10", by=[silent, knows("bob", lambda n: n % 4 == 1)])
    assert again[:2] == (FINE, out) and silent.draft_calls == 0


def test_eval_as_json_compares_the_ensemble_that_is_named(call):
    more = ("--json", "-q", "--limit", "3", "--segment-tokens", "3", "--lead", "bob")
    code, out, err = call(*SUMS, *more, "--method", "margin=inf")
    report = json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert (code, err) == (FINE, "")
    assert [row["system"] for row in report["rows"]] == ["ann", "bob", "ensemble"]
    pairs = [(comparison["system"], comparison["other"]) for comparison in report["comparisons"]]
    assert pairs == [("ensemble", "ann"), ("ensemble", "bob")]
    assert report["rows"][2]["score"] == report["rows"][1]["score"]
    settings = report["about"]["systems"]["ensemble"]["settings"]
    method = settings["method"]
    assert (method["segment_tokens"], method["margin"]) == (3, "inf")


def test_the_doctor_writes_a_calibration_that_a_chat_model_takes(call, tmp_path):
    code, out, _ = call(
        "doctor", "--prompts", "sums.jsonl", "--grader", "number", "--calibration", "p.json", "-q"
    )
    assert code == FINE and "ann leads: alone it is right on 100% of 24 prompts (bob 50%)." in out
    calibration = Calibration.load(tmp_path / "p.json")
    assert (calibration.lead, calibration.use, {attempt.name for attempt in calibration.tried}) == (
        "ann",
        "alone",
        {"ensemble", "vote", "consensus", "router"},
    )


@pytest.mark.parametrize(
    ("demo", "members", "command"),
    [
        ("", "demo_members()", 'langchain-specfuse "..." --calibration p.json'),
        (
            "small",
            "demo_members('small')",
            'DEMO=small langchain-specfuse "..." --calibration p.json',
        ),
    ],
)
def test_the_doctor_says_how_to_use_a_calibration_of_the_demo(
    call, monkeypatch, demo, members, command
):
    monkeypatch.setenv("DEMO", demo)
    sums_of_doctor = ("doctor", "--prompts", "sums.jsonl", "--grader", "number", "-q")
    code, out, _ = call(*sums_of_doctor, "--calibration", "p.json")
    lines = [line.strip() for line in out.split("Wrote p.json.")[1].splitlines()[1:]]
    assert code == FINE and lines == [
        "from langchain_specfuse import SpecFuseChatModel, demo_members",
        f"SpecFuseChatModel(members={members}, calibration='p.json')",
        command,
    ]


def test_the_doctor_says_how_to_use_a_calibration_of_other_members(call, monkeypatch):
    replace_members(monkeypatch.setitem)
    sums_of_doctor = ("doctor", "--prompts", "sums.jsonl", "--grader", "number", "-q")
    named = ("--members", "http://a:1/v1#ann", "http://b:1/v1#bob")
    _, out, _ = call(*sums_of_doctor, *named, "--calibration", "p.json")
    assert "  SpecFuseChatModel(members=[...], calibration='p.json')\n" in out
    assert '  langchain-specfuse "..." --members ... --calibration p.json\n' in out


def none_of(n: int) -> bool:
    return False


@pytest.mark.parametrize(
    ("verdict", "right"),
    [
        ("ensemble", [lambda n, at=at: (n // 2) % 3 != at for at in range(3)]),
        ("alone", [lambda n: True, none_of]),
        # The second leads by one answer: among equals, the fastest would, by the clock.
        ("cannot tell", [lambda n: n % 4 == 1, lambda n: n % 4 == 3 or n == 1]),
        ("none", [lambda n: True]),
    ],
)
def test_the_doctor_says_its_verdict_first(call, tmp_path, verdict, right):
    sums(tmp_path, 60)
    by = [knows(name, knowledge, 0.1) for name, knowledge in zip("abc", right, strict=False)]
    _, out, _ = call("doctor", "--prompts", "sums.jsonl", "--grader", "number", "-q", by=by)
    assert out.startswith(f"Verdict: {verdict}. ")


def test_no_calibration_is_written_where_no_member_answers(call, tmp_path):
    def unable(query):
        raise RuntimeError("401")

    members = [Known(unable, name="ann"), Known(unable, name="bob")]
    argv = ["doctor", "--prompts", "sums.jsonl", "--grader", "number", "--json", "-q"]
    code, out, err = call(*argv, "--calibration", "p.json", by=members)
    assert code == FAILED and "p.json is not written: it needs two members" in err
    assert not (tmp_path / "p.json").exists()
    json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


WRONG = {
    "unknown system": [*SUMS, "--systems", "vote"],
    "no task": ["eval"],
    "no such file": ["eval", "gsm8k"],
    "no grader": ["eval", "sums.jsonl"],
    "unknown grader": ["eval", "sums.jsonl", "--grader", "magic"],
    "no questions": [*SUMS, "--limit", "0"],
    "seeds without sampling": [*SUMS, "--seeds", "1", "2"],
    "out is a file": [*SUMS, "--out", "sums.jsonl"],
    "too few prompts": ["doctor", "--prompts", "few.jsonl", "--grader", "exact"],
    "calibration in no folder": ["doctor", "--calibration", "none/p.json"],
    "grader without prompts": ["doctor", "--grader", "exact"],
    "prompts without references": ["doctor", "--prompts", "bare.jsonl", "--grader", "exact"],
    "verifiers": ["doctor", "--verifiers", "x"],
    "lead": ["doctor", "--lead", "ann"],
}


@pytest.mark.parametrize("argv", WRONG.values(), ids=WRONG.keys())
def test_a_mistake_in_the_call_exits_with_2_and_says_what(call, argv, tmp_path):
    (tmp_path / "few.jsonl").write_text('{"input": "1 + 1?", "reference": "2"}')
    (tmp_path / "bare.jsonl").write_text('{"input": "1 + 1?"}\n' * 20)
    code, out, err = call(*argv)
    assert (code, out) == (MISUSED, "") and "error: " in err and "Traceback" not in err
    assert "few.jsonl" not in argv or "results in" not in err  # it has not begun


def test_doctor_prints_findings_numbers_and_advice(call, tmp_path):
    code, out, err = call(
        "doctor", "--prompts", "sums.jsonl", "--grader", "number", "--out", "here"
    )
    assert code == FINE, err
    assert err.index("loading ann") < err.index("checking ann") < err.index("ann: 24 of 24 answers")
    assert "ok    scores: its scores differ" in out and "Advice\n  - " in out and "passes" in out
    assert out.startswith(("Verdict: alone. ", "Verdict: cannot tell. ", "Verdict: ensemble. "))
    assert (tmp_path / "here" / "results.jsonl").exists()


def finished(err: str) -> list[str]:
    """What progress said before each last answer."""
    return re.findall(r"^(.*): 24 of 24 answers$", err, re.MULTILINE)


@pytest.mark.parametrize(
    ("command", "together"),
    [
        (["doctor", "--prompts"], ["ensemble", "vote", "consensus"]),
        (["doctor", "--method", "margin=none", "--prompts"], ["vote", "consensus"]),
        (["eval"], ["ensemble"]),
    ],
)
def test_progress_says_which_of_how_many_phases_it_is_about(call, monkeypatch, command, together):
    monkeypatch.setattr(Progress, "EVERY_S", 0.0)
    code, _, err = call(*command, "sums.jsonl", "--grader", "number")
    names = ["ann", "bob", *together]
    phases = [f"phase {n} of {len(names)}, {name}" for n, name in enumerate(names, 1)]
    assert (code, finished(err)) == (FINE, phases)
    estimates = re.findall(r"about \d+ s left.*", err)
    assert estimates and set(estimates) == {"about 0 s left in this phase"}


def test_a_member_that_does_not_load_has_no_phase(call):
    members = [knows("ann", lambda n: True), Missing("x", name="gone"), knows("bob", lambda n: n)]
    sums_of_doctor = ("doctor", "--prompts", "sums.jsonl", "--grader", "number")
    code, _, err = call(*sums_of_doctor, by=members)
    assert code == FAILED
    assert finished(err)[:3] == ["phase 1 of 6, ann", "phase 3 of 6, bob", "phase 4 of 6, ensemble"]


def test_progress_of_a_single_member_counts_no_phases(call):
    code, _, err = call(*SUMS, by=[knows("ann", lambda n: True)])
    assert (code, finished(err)) == (FINE, ["ann"])


def test_doctor_has_prompts_of_its_own_and_exits_with_1_when_a_check_fails(call):
    code, out, _ = call("doctor", "--json", "-q")
    assert code == FINE and json.loads(out)["report"]["questions"] >= 20
    code, out, _ = call(
        "doctor", "-q", by=[knows("ann", lambda n: True), Missing("x", name="gone")]
    )
    assert code == FAILED and "BAD   loading: does not load: OSError: no such file" in out


@pytest.mark.parametrize("command", [["eval"], ["doctor", "--prompts"]])
def test_a_file_of_questions_runs_no_code_unless_that_is_allowed(call, tmp_path, command):
    code = "open('ran', 'w').close()\ndef grade(answer): return 1"
    (tmp_path / "evil.py").write_text(code)
    lines = [{"input": f"What is {n} + {n}?", "reference": 2 * n} for n in range(1, 25)]
    lines[3]["grader"] = "evil.py:grade"
    (tmp_path / "from others.jsonl").write_text("\n".join(map(json.dumps, lines)))
    asked = [*command, "from others.jsonl", "--grader", "number", "-q"]
    status, out, err = call(*asked)
    assert (status, out) == (MISUSED, "") and not (tmp_path / "ran").exists()
    assert "evil.py:grade" in err and "--allow-code" in err
    assert call(*asked, "--allow-code")[0] == FINE
    assert (tmp_path / "ran").exists()


def test_code_that_the_user_names_needs_no_further_flag(call, tmp_path):
    (tmp_path / "own.py").write_text("def grade(answer): return 1")
    lines = [{"input": f"What is {n}?", "reference": 1} for n in range(3)]
    lines[0]["grader"] = "own.py:grade"
    (tmp_path / "own.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert call("eval", "own.jsonl", "--grader", "own.py:grade", "-q")[0] == FINE
