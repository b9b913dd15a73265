"""A trace keeps the rounds it is given, and refuses what it could not show."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langchain_specfuse import Trace, UsageError

from .runs import QUESTION, a_round, scripted


def _joined(text: str) -> str:
    """Two halves of a surrogate pair side by side are one character in JSON."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


TEXTS = st.text(st.characters(codec=None, exclude_categories=()), max_size=12).map(_joined)
"""Any characters at all, also control characters and lone surrogates."""


def test_a_trace_survives_its_files(tmp_path):
    trace = scripted()
    assert trace.members == ["ann", "bob", "cyd"]
    assert trace.answer.startswith("The sky is blue") and trace.rounds[-1]["finish"] == "stop"
    for suffix in (".json", ".jsonl"):
        trace.save(tmp_path / f"run{suffix}")
        again = Trace.load(tmp_path / f"run{suffix}")
        assert again.rounds == trace.rounds and again.members == trace.members
        assert again.question == (QUESTION if suffix == ".json" else "")
    lines = "\r\n".join(json.dumps(item) for item in trace.rounds) + "\r\n\r\n"
    for encoding in ("utf-8-sig", "utf-16"):  # what other shells redirect
        (tmp_path / "run.jsonl").write_text(lines, encoding=encoding, newline="")
        assert Trace.load(tmp_path / "run.jsonl").rounds == trace.rounds


@given(TEXTS, TEXTS.filter(bool), TEXTS)
def test_any_text_survives_saving(tmp_path_factory, text, name, question):
    trace = Trace([a_round(1, {name: text}, name)], question=question)
    folder = tmp_path_factory.mktemp("traces")
    for suffix in ("json", "jsonl", "html"):
        trace.save(folder / f"run.{suffix}")
    assert Trace.load(folder / "run.json").as_dict() == trace.as_dict()
    assert Trace.load(folder / "run.jsonl").rounds == trace.rounds


def test_files_of_older_versions_are_read_and_shown(tmp_path):
    file = tmp_path / "old.json"
    item = {"round": 1, "text": "Hi", "winner": "a", "drafts": {"a": {"text": "Hi"}}}
    file.write_text(
        json.dumps({"command": "x", "rounds": [item, {**item, "round": 2, "closed": "}"}]})
    )
    trace = Trace.load(file)
    assert trace.members == ["a"] and trace.answer == "HiHi" and "HiHi" in trace.html()


GOOD = a_round(1, {"a": "x"}, "a")
FILES = {
    "empty": "",
    "another format": '{"specfuse": 99, "rounds": []}',
    "half a line": json.dumps(GOOD) + '\n{"round": 2',
    "too deep": "[" * 100_000,
    "a draft without text": json.dumps({**GOOD, "drafts": {"a": {}}}),
    "no rounds": '{"rounds": 7}',
    "bytes": b"\xff\xfe\x00",
}


@pytest.mark.parametrize("content", FILES.values(), ids=FILES.keys())
def test_a_file_without_a_trace_is_named_in_the_error(tmp_path, content):
    file = tmp_path / "odd.json"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UsageError, match=r"odd\.json' contains no trace") as caught:
        Trace.load(file)
    assert "langchain-specfuse --json" in caught.value.notes[0]
    with pytest.raises(UsageError, match="cannot read"):
        Trace.load(tmp_path)
