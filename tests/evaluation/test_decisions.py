"""The doctor's fit of decisions: its examples, its numbers and its file."""

from __future__ import annotations

import json
import random

import pytest
from langchain_core.language_models import FakeListChatModel

from langchain_specfuse import ChatModelMember, EnsembleError, ScriptedMember, UsageError
from langchain_specfuse.chat.calibration import Calibration
from langchain_specfuse.chat.label_calibrations import read_labels, write_labels
from langchain_specfuse.chat.labelling import Decider
from langchain_specfuse.cli.main import FINE, MISUSED, main
from langchain_specfuse.engine.ensemble import Ensemble
from langchain_specfuse.evaluation.decisions import examples_of, fitted_to, text_of
from tests.demo_members import replace_demo

TEAMS = ("billing", "sales", "tech_support")


def lines(count: int = 60, seed: int = 0, **more):
    rng = random.Random(seed)
    for number in range(count):
        team = rng.choice(TEAMS)
        yield {"input": f"Request {number} about {team}.", "label": team, **more}


@pytest.fixture
def file(tmp_path):
    def write(rows):
        path = tmp_path / "examples.jsonl"
        path.write_text("\n".join(map(json.dumps, rows)))
        return path

    return write


def about(text):
    return next((team for team in TEAMS if f"about {team}" in text), "")


def member(name, known=TEAMS, confidence=1.0):
    """A member that knows the right team if it is one of these, and otherwise says sales."""

    def script(query):
        text = query.turns[-1].text.rpartition("Text: ")[2]
        team = about(text)
        return (team if team in known else "sales").replace("_", " ")

    return ScriptedMember(script, name=name, confidence=confidence)


def test_a_fit_improves_the_members_and_finds_the_best(file):
    members = [member("knows"), member("guesses", known=())]
    fitted = fitted_to(examples_of(file(lines())), Ensemble(members))
    by_system = {(quality.system, quality.calibrated): quality for quality in fitted.qualities}
    assert fitted.calibration.best == "knows"
    assert by_system["knows", True].log_loss < by_system["knows", False].log_loss
    assert by_system["knows", True].accuracy == 1.0
    assert text_of(fitted).endswith("best: knows")


def test_a_fit_decides_as_before_after_it_was_written_and_read(file, tmp_path):
    members = [member("knows", confidence=0.2), member("half", known=("billing",))]
    fitted = fitted_to(examples_of(file(lines())), Ensemble(members))
    path = tmp_path / "calibration.json"
    write_labels(path, fitted.calibration)
    (read,) = read_labels(path, ["half", "knows"])
    decider = Decider(Ensemble(members))
    new = [(fitted.question, row["input"]) for row in lines(20, seed=1)]
    calibrated = decider.decide(new, [read])
    assert [decision.label for decision in calibrated] == [about(text) for _, text in new]
    plain = decider.decide(new)
    surer = zip(calibrated, plain, strict=True)
    assert all(a.probabilities[a.label] > b.probabilities[b.label] for a, b in surer)


def test_a_file_keeps_other_labels_and_who_leads(file, tmp_path):
    path = tmp_path / "calibration.json"
    leads = Calibration("knows", {"knows": 1.0}, 20)
    leads.save(path)
    members = Ensemble([member("knows")])
    first = fitted_to(examples_of(file(lines())), members).calibration
    second = fitted_to(
        examples_of(
            file(
                {"input": f"n {i}", "label": "yes" if i % 2 else "no", "instructions": "Odd?"}
                for i in range(30)
            )
        ),
        members,
    ).calibration
    for calibration in (first, second, first):
        write_labels(path, calibration)
    leads.save(path)
    assert Calibration.load(path).lead == "knows"
    read = read_labels(path, ["knows"])
    assert sorted(calibration.labels for calibration in read) == [TEAMS, ("no", "yes")]


@pytest.mark.parametrize(
    "content",
    [
        *(
            "",
            "my notes",
            '{"name": "web", "version": "1"}',
            "[]",
            '{"input": "a"}\n{"input": "b"}',
        ),
        '{"specfuse_calibration": 1}',
        '{"specfuse_calibration": 99}',
    ],
)
def test_no_file_of_another_kind_is_overwritten(file, tmp_path, content):
    path = tmp_path / "package.json"
    path.write_text(content)
    fitted = fitted_to(examples_of(file(lines(30))), Ensemble([member("knows")]))
    for write in (
        lambda: write_labels(path, fitted.calibration),
        lambda: Calibration("knows", {"knows": 1.0}, 20).save(path),
    ):
        with pytest.raises(UsageError, match="exists, but is not a calibration file") as caught:
            write()
        assert caught.value.notes == ("-> name another file",)
        assert path.read_text() == content


def test_a_failed_write_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "calibration.json"
    Calibration("knows", {"knows": 1.0}, 20).save(path)
    before = path.read_text()

    def full(*given):
        raise OSError("no space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="no space"):
        Calibration("knows", {"knows": 0.5}, 20).save(path)
    assert path.read_text() == before
    assert list(tmp_path.iterdir()) == [path]


def test_labels_say_what_kind_of_question_it_is(file):
    def kind(labels, **more):
        rows = [{"input": f"text {i}", "label": labels[i % len(labels)], **more} for i in range(24)]
        return examples_of(file(rows)).question

    assert kind(["a", "b"]).kind == "choice"
    assert kind([True, False], instructions="Is it urgent?").labels == ("no", "yes")
    scale = kind([0, 2], criteria=["calm", "worried", "angry"], instructions="How angry?")
    assert (scale.kind, scale.labels) == ("score", ("0", "1", "2"))
    described = kind(["a", "b"], criteria={"a": "first", "b": None, "c": "rest"})
    assert described.labels == ("a", "b", "c")
    assert "- a: first" in described.prompt("text")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"input": "a", "label": "b"}] * 5, "at least 20 examples, got 5"),
        ([{"input": "a", "label": "b"}] * 25, "every example has the label 'b'"),
        ([{"input": "a"}] * 25, ":1: label must be a text, got None"),
        ([{"input": 7, "label": "b"}] * 25, ":1: input must be a text, got 7"),
        (
            [{"input": "a", "label": label, "criteria": {"b": None}} for label in "bc" * 12],
            "the criteria have no 'c'",
        ),
        (
            [{"input": "a", "label": label} for label in [True, False] * 12],
            "these labels need the question's instructions",
        ),
        (
            [{"input": "a", "label": place, "criteria": ["low", "high"]} for place in [0, 1] * 12],
            "these labels need the question's instructions",
        ),
        (
            [{"input": "a", "label": "b", "instructions": text} for text in ("one", "two")],
            ":2: its instructions differ",
        ),
    ],
)
def test_wrong_examples_are_refused_with_their_place(file, rows, message):
    with pytest.raises(UsageError, match=message) as caught:
        examples_of(file(rows))
    assert caught.value.notes


def test_a_missing_file_says_what_its_lines_must_be(tmp_path):
    with pytest.raises(UsageError, match="cannot be read") as caught:
        examples_of(tmp_path / "nowhere.jsonl")
    assert '"label"' in caught.value.notes[0]


def test_chat_models_are_refused_before_any_request(file):
    class Counting(FakeListChatModel):
        def _call(self, *given, **more):
            pytest.fail("a request was sent")

        _stream = _call

    hosted = ChatModelMember(Counting(responses=["1"]), name="hosted")
    with pytest.raises(UsageError, match="cannot fit decisions to hosted: chat") as caught:
        fitted_to(examples_of(file(lines(30))), Ensemble([member("knows"), hosted]))
    assert "two paid requests" in caught.value.notes[0]


class Failing(ScriptedMember):
    def score(self, jobs):
        raise RuntimeError("out of order")


class Missing(ScriptedMember):
    def probe(self):
        raise RuntimeError("no such file")


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (Failing("x", name="broken"), "only 0 examples, .*failed: broken .*out of order"),
        (Missing("x", name="broken"), "could be loaded: broken .*no such file"),
    ],
)
def test_a_fit_without_one_of_the_members_is_refused(file, broken, message):
    with pytest.raises(EnsembleError, match=message) as caught:
        fitted_to(examples_of(file(lines(30))), Ensemble([member("knows"), broken]))
    assert "leave the member out" in "\n".join(caught.value.notes)


@pytest.mark.parametrize("others", [(), ("reads all",)])
def test_a_text_that_a_member_cannot_read_is_left_out_and_named(file, others):
    rows = list(lines(30))
    rows[17]["input"] += " Please help me." * 100
    short = member("short")
    short.max_context = 100
    members = Ensemble([short, *map(member, others)])
    fitted = fitted_to(examples_of(file(rows)), members)
    assert set(fitted.calibration.scales) == {"short", *others}
    assert fitted.calibration.examples == 29
    assert list(fitted.left_out) == [18] and "short (overflow)" in fitted.left_out[18]
    assert "1 example is left out (line 18). short (overflow)" in text_of(fitted)
    assert list(fitted.as_dict()["left_out"]) == ["18"]


def test_too_few_examples_that_all_members_can_read_are_refused(file):
    rows = list(lines(30))
    for row in rows[5:20]:
        row["input"] += " Please help me." * 100
    short = member("short")
    short.max_context = 100
    with pytest.raises(EnsembleError, match=r"only 15 examples, .* line 6 failed: short") as caught:
        fitted_to(examples_of(file(rows)), Ensemble([short]))
    assert "a fit needs 20 examples" in caught.value.notes[0]


def test_a_file_of_other_members_is_refused(file, tmp_path):
    path = tmp_path / "calibration.json"
    write_labels(path, fitted_to(examples_of(file(lines(30))), Ensemble([member("a")])).calibration)
    with pytest.raises(UsageError, match="was made for a, but the members are b"):
        read_labels(path, ["b"])


def levels(instructions, *criteria):
    rows = [{"input": f"text {i}", "label": i % 3, "criteria": criteria} for i in range(30)]
    return [{**row, "instructions": instructions} for row in rows]


def urgent(instructions):
    rows = [{"input": f"text {i}", "label": i % 2 == 0} for i in range(30)]
    return [{**row, "instructions": instructions} for row in rows]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (urgent("Is it urgent?"), urgent("Is it spam?")),
        (levels("How angry?", "a", "b", "c"), levels("How long?", "a", "b", "c")),
        (levels("How is it?", "calm", "cross", "angry"), levels("How is it?", "s", "m", "l")),
    ],
)
def test_questions_with_the_same_labels_have_entries_of_their_own(file, tmp_path, one, other):
    path = tmp_path / "calibration.json"
    members = Ensemble([member("knows")])
    fits = [fitted_to(examples_of(file(rows)), members) for rows in (one, other)]
    for fitted in (fits[0], fits[1], fits[0]):
        write_labels(path, fitted.calibration)
    first, second = read_labels(path, ["knows"])
    assert first.fits(fits[1].question) and not first.fits(fits[0].question)
    assert second.fits(fits[0].question) and not second.fits(fits[1].question)
    assert one[0]["instructions"] not in path.read_text()


def test_a_file_keeps_the_entries_of_other_members(file, tmp_path):
    path = tmp_path / "calibration.json"
    for name in ("ann", "bob", "ann"):
        members = Ensemble([member(name)])
        write_labels(path, fitted_to(examples_of(file(lines(30))), members).calibration)
    for name in ("ann", "bob"):
        (read,) = read_labels(path, [name])
        assert list(read.scales) == [name]
    with pytest.raises(UsageError, match="was made for bob; ann, but the members are eve"):
        read_labels(path, ["eve"])


def test_the_command_prints_the_fit_and_writes_a_file_that_no_chat_model_takes(
    file, tmp_path, monkeypatch, capsys
):
    file(lines())
    monkeypatch.chdir(tmp_path)
    replace_demo([member("knows"), member("guesses", known=())], monkeypatch.setattr)
    call = ["doctor", "--decisions", "examples.jsonl", "--calibration", "c.json", "-q", "--json"]
    assert main(call) == FINE
    printed = json.loads(capsys.readouterr().out)
    assert printed["best"] == "knows" and printed["labels"] == list(TEAMS)
    (read,) = read_labels("c.json", ["knows", "guesses"])
    assert read.examples == 60
    with pytest.raises(UsageError, match="decisions only"):
        Calibration.load("c.json")
    assert main(call[:-2]) == FINE
    told = capsys.readouterr()
    assert "SpecFuseDecisionModel(members=[...], calibration='c.json')" in told.out
    assert "60 of 60 examples" in told.err and "\r" not in told.err


@pytest.mark.parametrize(
    "more", [["--prompts", "x.jsonl"], ["--grader", "number"], ["--calibration", "none/c.json"]]
)
def test_the_command_refuses_what_it_cannot_use(file, tmp_path, monkeypatch, capsys, more):
    file(lines())
    monkeypatch.chdir(tmp_path)
    replace_demo([member("knows")], monkeypatch.setattr)
    assert main(["doctor", "--decisions", "examples.jsonl", *more]) == MISUSED
    error = capsys.readouterr().err
    assert more[0] in error and "-> " in error


@pytest.mark.parametrize("option", ["--decisions", "--prompts"])
def test_the_command_does_not_overwrite_its_questions(file, tmp_path, monkeypatch, capsys, option):
    path = file({**line, "reference": "billing"} for line in lines(30))
    before = path.read_text()
    monkeypatch.chdir(tmp_path)

    def script(query):
        pytest.fail("a member was asked")

    replace_demo([ScriptedMember(script, name="knows")], monkeypatch.setattr)
    assert main(["doctor", option, path.name, "--calibration", path.name]) == MISUSED
    error = capsys.readouterr().err
    assert "is not a calibration file" in error and "-> name another file" in error
    assert path.read_text() == before
