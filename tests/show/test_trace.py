"""A trace keeps what it is given, whatever that is, and refuses what it could not show."""

from __future__ import annotations

import copy
import json
import math
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langchain_specfuse import Trace, UsageError

from .runs import QUESTION, a_round, scripted


def _joined(text: str) -> str:
    """Two halves of a surrogate pair side by side are one character to JSON."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


TEXTS = st.text(st.characters(codec=None, exclude_categories=()), max_size=12).map(_joined)
"""Any characters at all, also controls and halves of surrogate pairs."""


def test_rounds_events_and_lines_make_the_same_trace(tmp_path):
    trace = scripted()
    again = Trace([json.loads(json.dumps(item)) for item in trace.rounds], question=QUESTION)
    assert again.as_dict() == trace.as_dict()
    assert trace.members == ["ann", "bob", "cyd"]
    assert trace.answer.startswith("The sky is blue") and trace.rounds[-1]["finish"] == "stop"


@pytest.mark.parametrize("suffix", [".json", ".jsonl"])
def test_what_was_saved_is_loaded_again(tmp_path, suffix):
    trace = scripted()
    file = tmp_path / f"run{suffix}"
    trace.save(file)
    again = Trace.load(file)
    assert again.rounds == trace.rounds and again.members == trace.members
    assert again.question == (QUESTION if suffix == ".json" else "")


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_what_another_shell_has_redirected_is_loaded_too(tmp_path, encoding):
    trace = scripted()
    file = tmp_path / "run.jsonl"
    file.write_text("\r\n".join(json.dumps(item) for item in trace.rounds) + "\r\n\r\n", encoding=encoding, newline="")
    assert Trace.load(file).rounds == trace.rounds


@given(TEXTS, TEXTS.filter(bool), TEXTS)
def test_any_text_survives_saving(text, name, question):
    trace = Trace([a_round(1, {name: text}, name)], question=question)
    as_file = json.loads(json.dumps(trace.as_dict()))
    again = Trace(as_file["rounds"], question=as_file["question"])
    assert again.as_dict() == trace.as_dict()
    trace.html().encode()


def test_text_that_no_file_can_hold_is_saved_all_the_same(tmp_path):
    trace = Trace([a_round(1, {"a": "half \ud83d"}, "a")], question="\udc00")
    for name in ("run.json", "run.jsonl", "run.html"):
        trace.save(tmp_path / name)
    assert Trace.load(tmp_path / "run.json").as_dict() == trace.as_dict()


def test_a_number_that_json_does_not_have_is_none():
    trace = Trace([a_round(1, {"a": "x"}, "a", totals={"a": math.nan}, scores={"a": {"a": -math.inf}})])
    assert trace.rounds[0]["totals"] == {"a": None} and trace.rounds[0]["scores"] == {"a": {"a": None}}
    json.loads(json.dumps(trace.as_dict()), parse_constant=pytest.fail)


def test_what_is_kept_is_a_copy():
    item = a_round(1, {"a": "x"}, "a")
    trace = Trace([item])
    before = copy.deepcopy(trace.rounds)
    item["weights"]["a"] = 9.0
    item["drafts"]["a"]["text"] = "other"
    assert trace.rounds == before


def test_an_older_file_with_less_in_its_rounds_is_read_and_drawn(tmp_path):
    file = tmp_path / "old.json"
    file.write_text(
        '{"command": "x", "rounds": [{"round": 1, "text": "Hi", "winner": "a", "drafts": {"a": {"text": "Hi"}}}]}'
    )
    trace = Trace.load(file)
    assert trace.members == ["a"] and trace.answer == "Hi" and "Hi" in trace.html()


def test_rounds_of_two_answers_are_refused():
    trace = scripted()
    with pytest.raises(UsageError, match=r"round 1 came after round \d: a trace holds one answer"):
        trace.add(trace.rounds[0])


GOOD = a_round(1, {"a": "x"}, "a")
BAD = {
    "no round": 5,
    "no number": {**GOOD, "round": "1"},
    "true is no number": {**GOOD, "round": True},
    "no text": {key: value for key, value in GOOD.items() if key != "text"},
    "text": {**GOOD, "text": 5},
    "winner": {**GOOD, "winner": None},
    "drafts": {**GOOD, "drafts": ["x"]},
    "a draft": {**GOOD, "drafts": {"a": "x"}},
    "a draft's text": {**GOOD, "drafts": {"a": {"text": 1}}},
    "a draft without text": {**GOOD, "drafts": {"a": {}}},
    "votes": {**GOOD, "votes": {"a": 1.0}},
    "a vote": {**GOOD, "votes": {"a": {"a": "1"}}},
    "left": {**GOOD, "left": ["a"]},
    "nobody left": {**GOOD, "left": [{"kind": "exit"}]},
    "tokens": {**GOOD, "tokens": {"draft": {"a": 3}}},
    "authors": {**GOOD, "authors": "a"},
    "not JSON": {**GOOD, "more": {1, 2}},
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD.keys())
def test_what_is_no_round_is_refused_with_the_place(data):
    with pytest.raises(UsageError, match="round"):
        Trace([data])


def test_a_trace_without_rounds_is_not_saved_as_what_cannot_be_read(tmp_path):
    trace = Trace(question="Why?", error="nobody")
    with pytest.raises(UsageError, match="without rounds"):
        trace.save(tmp_path / "run.jsonl")
    assert list(tmp_path.iterdir()) == []
    trace.save(tmp_path / "run.json")
    assert Trace.load(tmp_path / "run.json").as_dict() == trace.as_dict()


FILES = {
    "empty": "",
    "no JSON": "not json",
    "a list": "[1]",
    "another format": '{"specfuse": 99, "rounds": []}',
    "no list of rounds": '{"rounds": 5}',
    "a question that is none": '{"rounds": [], "question": 5}',
    "half a line": json.dumps(GOOD) + '\n{"round": 2',
    "deeper than anything": "[" * 100_000,
    "two answers": f"{json.dumps(GOOD)}\n{json.dumps(GOOD)}\n",
}


@pytest.mark.parametrize("text", FILES.values(), ids=FILES.keys())
def test_a_file_without_a_trace_is_named_in_the_error(tmp_path, text):
    file = tmp_path / "odd.json"
    file.write_text(text)
    with pytest.raises(UsageError, match=r"odd\.json' holds no trace") as caught:
        Trace.load(file)
    assert "specfuse --json" in caught.value.__notes__[0]


def test_files_that_are_not_there_or_no_text_are_told(tmp_path):
    with pytest.raises(UsageError, match="cannot read"):
        Trace.load(tmp_path / "none.json")
    with pytest.raises(UsageError, match="cannot read"):
        Trace.load(tmp_path)
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="holds no trace"):
        Trace.load(tmp_path / "bytes.json")


@pytest.mark.parametrize("name", ["run.txt", "run", "none/run.html", "folder.html", "nul\0.html"])
def test_a_place_where_nothing_can_be_saved_is_told(tmp_path, name):
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(UsageError, match="cannot"):
        scripted().save(tmp_path / name)
    assert [item.name for item in tmp_path.iterdir()] == ["folder.html"]


def test_a_saved_file_replaces_the_old_one_whole_and_leaves_nothing_beside_it(tmp_path):
    file, link = tmp_path / "run.html", tmp_path / "link.html"
    file.write_text("old")
    os.chmod(file, 0o640)
    link.symlink_to(file)
    scripted().save(link)
    assert link.is_symlink() and file.read_text().startswith("<!doctype html>")
    assert file.stat().st_mode & 0o777 == 0o640
    assert sorted(item.name for item in tmp_path.iterdir()) == ["link.html", "run.html"]


def test_it_says_what_it_is():
    assert repr(Trace()) == "<Trace of 0 rounds by nobody: ''>"
    assert repr(scripted()).startswith("<Trace of 5 rounds by ann, bob, cyd: 'The sky is blue")
