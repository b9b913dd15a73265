"""The papers' experiments, from the plan to the page, with tiny models and a few questions."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import hub_sets
import paper
import pytest
from cases import DEVELOPMENT, SEALED
from forecast import Pace, forecast

from langchain_specfuse.errors import UsageError
from tests.members import fake_hub, tiny
from tests.members.server import test_vllm_member as vllm
from tests.members.server.test_process import are_gone

models, starts = vllm.models, vllm.starts
"""Two tiny models, and programs that serve them as vLLM does."""
ROOT = Path(__file__).parents[2]
PROBLEMS = [{"question": f"What is {n} + 2?", "answer": f"So.\n#### {n + 2}"} for n in range(90)]
CHOICES = {"text": ["red", "blue"], "label": ["1", "2"]}
SCIENCE = {"id": "Q7", "question": "Which colour is the sky?", "choices": CHOICES, "answerKey": "2"}
SUBJECT = {"question": "2 + 2?", "subject": "sums", "choices": ["3", "4", "5", "6"], "answer": 1}


@pytest.fixture(scope="module")
def members(tmp_path_factory):
    """Return the folders of two tiny models."""
    folders = []
    for arch in ("llama", "qwen3"):
        path = tmp_path_factory.mktemp("models") / arch
        for part in tiny.cached(arch, 1):
            part.save_pretrained(path)
        folders.append(str(path))
    return folders


@pytest.fixture
def data(tmp_path, monkeypatch):
    """Return a folder with problems, whose answers are short."""
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "gsm8k-some.jsonl").write_text("".join(json.dumps(row) + "\n" for row in PROBLEMS))
    short = replace(hub_sets.SETS["gsm8k"], max_tokens=12)
    monkeypatch.setitem(hub_sets.SETS, "gsm8k", short)
    return folder


@pytest.fixture
def study(tmp_path, data):
    """Return a function that runs the script in a folder."""

    def run(*words, sets="gsm8k", questions=6):
        given = ["--data", data, "--folder", tmp_path / "study", "--sets", sets]
        count = ["--questions", questions, "--measured", 2, "--at-once", 4]
        return paper.main([str(word) for word in (*words, *given, *count)])

    run.folder = tmp_path / "study"
    return run


def results_of(folder, group, part):
    (path,) = folder.glob(f"{group}*/{part}/results.jsonl")
    return path


def lines_of(folder, group, part):
    return results_of(folder, group, part).read_text().splitlines()


# --- the run --------------------------------------------------------------------------------------


def test_one_command_plans_measures_asks_and_writes_the_page(
    study, members, tmp_path, capsys, monkeypatch
):
    out = tmp_path / "paper.json"
    words = ["--tables", "main", "exit", "--members", *members, "--out", out]
    assert study(*words) == 0
    printed = capsys.readouterr().out
    order = [" (main, exit) fits", "tokens that fit", "gsm8k, SpecFuse: 6 answers, 1 min"]
    places = [printed.index(text) for text in [*order, "  together 1 min\n", "  llama: gsm8k"]]
    assert places == sorted(places)
    tables = {table["table"]: table for table in json.loads(out.read_text())["tables"]}
    rows = {row["system"]: row for row in tables["main"]["rows"]}
    assert list(rows) == ["llama", "qwen3", "SpecFuse", "SpecEM", "robust"]
    cell = rows["SpecEM"]["sets"]["gsm8k"]
    assert cell["questions"] == 6 and cell["verdict"] == "open" and cell["by the clock"] > 0
    assert rows["llama"]["members per round"] == 1 and rows["SpecEM"]["members per round"] == 2
    (_, never) = tables["exit"]["rows"]
    assert never["members per round"] == 2 and "won" in never["sets"]["gsm8k"]
    assert tables["main"]["members"] == members and tables["main"]["about"]["machine"]
    assert all(not row["sets"] for row in tables["large"]["rows"])
    monkeypatch.syspath_prepend(ROOT / "scripts" / "docs")
    shown = import_module("tables").papers(json.loads(out.read_text())).splitlines()
    assert f"| SpecEM | {100 * cell['score']:.1f} of 6, open |{' not run |' * 4}" in shown
    assert f"| SpecEM |{' not run |' * 5}" in shown  # in other tables
    (row,) = (line for line in shown if line.startswith("| SpecFuse without exit"))
    assert "won" in row and row.endswith("| not run | 2.0 | 5 of 5 |")


def test_the_page_keeps_the_sets_of_earlier_runs(study, members, data, tmp_path, monkeypatch):
    short = replace(hub_sets.SETS["arc"], max_tokens=12)
    monkeypatch.setitem(hub_sets.SETS, "arc", short)
    rows = [{**SCIENCE, "id": f"Q{n}", "question": f"Which colour is sky {n}?"} for n in range(60)]
    (data / "arc.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setitem(paper.TABLES, "exit", replace(paper.TABLES["exit"], sets=("gsm8k", "arc")))
    words = ["--tables", "exit", "--members"]
    for sets in ("gsm8k", "arc"):
        made = {"commit": f"commit of {sets}", "date": "", "machine": ""}
        monkeypatch.setattr(paper, "about", made.copy)
        assert study(*words, *members, sets=sets, questions=2) == 0
    table = next(one for one in paper.page(study.folder)["tables"] if one["table"] == "exit")
    for row in table["rows"]:
        made = {name: cell["about"]["commit"] for name, cell in row["sets"].items()}
        assert made == {"gsm8k": "commit of gsm8k", "arc": "commit of arc"}
    monkeypatch.syspath_prepend(ROOT / "scripts" / "docs")
    shown = import_module("tables").papers(paper.page(study.folder))
    assert [shown.count(f"at commit `commit of {name}`") for name in ("gsm8k", "arc")] == [1, 1]
    study(*words, members[1], members[0], questions=2)  # other members
    table = next(one for one in paper.page(study.folder)["tables"] if one["table"] == "exit")
    assert all(list(row["sets"]) == ["gsm8k"] for row in table["rows"])


def test_development_questions_are_not_among_the_sealed_ones(study, members):
    study("--tables", "exit", "--members", *members)
    by_part = {
        part: {json.loads(line)["question"] for line in lines_of(study.folder, "own", part)}
        for part in (DEVELOPMENT, SEALED)
    }
    assert [len(by_part[part]) for part in (DEVELOPMENT, SEALED)] == [2, 6]
    assert not by_part[DEVELOPMENT] & by_part[SEALED]


@pytest.mark.long
def test_tables_share_answers_and_a_stopped_run_continues(study, members, capsys):
    words = ["--members", *members, "--tables"]
    study(*words, "exit")
    before = lines_of(study.folder, "own", SEALED)
    assert len(before) == 2 * 6
    path = results_of(study.folder, "own", SEALED)
    path.write_text("\n".join(before[:4]) + "\n" + before[4][:20])
    capsys.readouterr()
    study(*words, "exit", "temperature", "--plan")
    printed = capsys.readouterr().out
    assert "gsm8k, SpecFuse: 2 answers" in printed and "SpecEM: 6 answers, not mea" in printed
    assert lines_of(study.folder, "own", SEALED)[:4] == before[:4]
    study(*words, "exit", "temperature")
    after = lines_of(study.folder, "own", SEALED)
    assert after[:4] == before[:4] and len(after) == 2 * 6 + 3 * 6
    assert {json.loads(line)["key"] for line in before} < {
        json.loads(line)["key"] for line in after
    }
    study(*words, "exit", questions=8)
    assert len(lines_of(study.folder, "own", SEALED)) == len(after) + 2 * 2


def test_members_that_do_not_fit_are_left_out_before_anything_is_loaded(study, members, capsys):
    words = ["--tables", "exit", "--members", *(f"vllm:{folder}" for folder in members)]
    assert study(*words, "--plan", "--gpus", "0.5") == 0
    printed = capsys.readouterr().out
    assert " (exit) is left out" in printed and "missing" in printed
    assert study(*words, "--plan", "--gpus", "80") == 0
    assert " (exit) fits" in capsys.readouterr().out
    assert not study.folder.exists()


def test_members_that_cannot_be_loaded_do_not_stop_the_others(
    study, members, tmp_path, monkeypatch, capsys
):
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in Path(members[0]).iterdir():
        (broken / file.name).write_bytes(file.read_bytes())
    (broken / "tokenizer.json").write_text("{")  # the plan reads weights only
    monkeypatch.setitem(paper.GROUPS, "five", (str(broken), members[1]))
    monkeypatch.setitem(paper.GROUPS, "three", tuple(members))
    assert study("--tables", "exit", "temperature") == 1
    assert "five: " in capsys.readouterr().err
    assert len(lines_of(study.folder, "three", SEALED)) == 4 * 6
    assert not (study.folder / "five" / SEALED).exists()


@pytest.mark.long
def test_servers_run_while_their_group_is_asked_and_start_once_for_a_single_group(
    study, models, starts, monkeypatch
):
    names = tuple(f"vllm:{folder}" for folder in models)
    assert study("--tables", "exit", "--members", *names, questions=2) == 0
    assert len(starts()) == 2 and len(lines_of(study.folder, "own", SEALED)) == 2 * 2
    assert are_gone([pid for start in starts() for pid in start["pids"]])
    monkeypatch.setitem(paper.GROUPS, "five", names)
    monkeypatch.setitem(paper.GROUPS, "three", names[:1])
    assert study("--tables", "exit", "temperature", questions=2) == 0
    assert len(lines_of(study.folder, "three", SEALED)) == 4 * 2
    assert len(starts()) == 2 + 2 + 1 + 2  # `five` is measured, then `three`, which goes on
    assert are_gone([pid for start in starts() for pid in start["pids"]])


def test_the_recorded_page_has_every_table_of_the_script(tmp_path):
    recorded = json.loads((ROOT / "studies" / "paper.json").read_text())
    empty = paper.page(tmp_path)
    assert [one["set"] for one in recorded["sets"]] == list(hub_sets.SETS)
    for table, expected in zip(recorded["tables"], empty["tables"], strict=True):
        if not table["about"]:  # not run
            assert table == expected


# --- the sets -------------------------------------------------------------------------------------


def task_of(tmp_path, name, *rows):
    """The only question of a file, whichever part it belongs to."""
    folder = tmp_path / "one"
    folder.mkdir(exist_ok=True)
    stem = "ifeval" if name == "long" else name
    (folder / f"{stem}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    parts = (hub_sets.task(name, part, 9, tmp_path, folder) for part in (DEVELOPMENT, SEALED))
    return next(task for task in parts if task.questions)


@pytest.mark.parametrize(
    ("name", "row", "right", "wrong"),
    [
        ("gsm8k", PROBLEMS[5], "5 + 2 = 7\n#### 7", "It is 5."),
        ("arc", SCIENCE, "Air scatters blue. The answer is B.", "The answer is A."),
        ("mmlu", SUBJECT, "The answer is (B)", "The answer is C"),
    ],
)
def test_answers_to_published_questions_are_graded(tmp_path, name, row, right, wrong):
    task = task_of(tmp_path, name, row)
    (question,) = task.questions
    assert question.text.startswith(row["question"])
    assert task.grade(question, right).score == 1 and task.grade(question, wrong).score == 0


@pytest.mark.long
def test_open_answers_are_graded_by_what_they_share_with_the_reference(tmp_path):
    row = {"instruction": "Name a fruit.", "context": "On a list.", "response": "An apple is one"}
    task = task_of(tmp_path, "dolly", row)
    (question,) = task.questions
    assert question.text == "Name a fruit.\n\nOn a list."
    scores = [task.grade(question, text).score for text in ("An apple is one.", "An apple", "No")]
    assert scores[0] == 1 and 0.5 < scores[1] < 1 and scores[2] == 0


def test_long_texts_are_the_prompts_that_ask_for_them(tmp_path):
    def row(key, **values):
        rule = "length_constraints:number_words"
        return {"key": key, "prompt": f"{key}", "instruction_id_list": [rule], "kwargs": [values]}

    rows = [
        row(1, relation="at least", num_words=600),
        row(2, relation="at least", num_words=50),
        row(3, relation="less than", num_words=600),
        row(4, relation="at least", num_sentences=9),
    ]
    assert [question.id for question in task_of(tmp_path, "long", *rows).questions] == ["long 1"]


def test_rows_of_another_shape_are_refused_with_what_they_have(tmp_path):
    with pytest.raises(UsageError, match=r"row 0 of gsm8k .* has text, label") as caught:
        task_of(tmp_path, "gsm8k", {"text": "2 + 2?", "label": "4"})
    assert "openai/gsm8k" in caught.value.__notes__[0]


def test_a_set_is_read_from_the_hub_and_again_at_the_same_commit(tmp_path, monkeypatch):
    import pyarrow
    from pyarrow import parquet

    with fake_hub.running(monkeypatch, tmp_path / "hub") as hub:
        for count in (90, 40):
            file = tmp_path / "test.parquet"
            parquet.write_table(pyarrow.Table.from_pylist(PROBLEMS[:count]), file)
            files = {"main/test-00000-of-00001.parquet": file.read_bytes(), "README.md": b"x"}
            repository = hub.add("openai/gsm8k", files)
            task = hub_sets.task("gsm8k", SEALED, 1000, tmp_path / "study")
            recorded = json.loads((tmp_path / "study" / "sets.json").read_text())["gsm8k"]
            if count == 90:
                first, commit = task, repository.commit
            assert task.questions == first.questions and recorded["revision"] == commit
        hub.broken = True
        assert hub_sets.task("gsm8k", SEALED, 1000, tmp_path / "study").questions == first.questions
        with pytest.raises(Exception, match="503"):
            hub_sets.task("gsm8k", SEALED, 1000, tmp_path / "new")
        hub.broken = False
        hub.add("cais/mmlu", {"all/validation-0.parquet": b""})
        with pytest.raises(UsageError, match="one file all/test"):
            hub_sets.task("mmlu", SEALED, 1000, tmp_path / "study")


# --- the forecast ---------------------------------------------------------------------------------


def test_the_pace_of_all_parts_of_a_run_is_kept(tmp_path):
    pace, answers = Pace(tmp_path / "pace.json"), []

    def stopped():
        answers.append(1)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), pace.measured("a", lambda: len(answers)):
        stopped()
    with pace.measured("b", lambda: len(answers)):
        pass  # there was nothing to ask
    pace.add("a", 1, 3600.0)
    again = Pace(pace.path)
    assert again.seconds_each("a") == pytest.approx(1800, abs=1) and again.seconds_each("b") is None
    left = {"a": 4, "b": 2, "c": 0}
    assert forecast(left, again.seconds_each) == [
        "a: 4 answers, 2.0 hours",
        "b: 2 answers, not measured yet",
        "c: complete",
        "together 2.0 hours, without 1 that are not measured yet",
    ]
