"""The study of decisions: its parts, a stopped run, and what its table says."""

from __future__ import annotations

import decisions
import pytest
from decisions import DEVELOPMENT, PARTS, QUESTIONS, SEALED, TOGETHER, Example

from langchain_specfuse import ScriptedMember


@pytest.fixture
def pools(monkeypatch):
    """Texts of each task instead of the real data."""
    domains = QUESTIONS["domains"].labels
    made = {
        "films": [(f"film {n} {label}", label) for n in range(500) for label in ("yes", "no")],
        "products": [(f"product {n} {label}", label) for n in range(300) for label in "012"],
    }
    monkeypatch.setattr(
        decisions,
        "domains",
        lambda folder: [(f"{label} {n}", label) for n in range(100) for label in domains],
    )
    monkeypatch.setattr(decisions, "ratings", lambda archive: made)


@pytest.mark.usefixtures("pools")
def test_parts_are_balanced_and_share_no_question():
    parts = {part: decisions.examples(part, None, None) for part in PARTS}
    ids = {part: {example.id for example in chosen} for part, chosen in parts.items()}
    assert not ids[DEVELOPMENT] & ids[SEALED]
    for part, (fitting, testing) in PARTS.items():
        for task, question in QUESTIONS.items():
            own = [example for example in parts[part] if example.task == task]
            assert sum(example.fits for example in own) == fitting
            assert sum(not example.fits for example in own) == testing
            counts = dict.fromkeys(range(len(question.labels)), 0)
            for example in own:
                counts[example.label] += 1
            assert len(set(counts.values())) == 1


def member(name, right):
    """A member that knows the answer to texts for which this holds, and else says yes."""

    def script(query):
        text = query.turns[-1].text.rpartition("Text: ")[2]
        if "film" not in text:
            return "nothing"
        number = int(text.split()[1])
        return text.split()[2].capitalize() if right(number) else "Yes"

    return ScriptedMember(script, name=name)


def films(count):
    for n in range(count):
        for place, label in enumerate(("no", "yes")):
            yield Example(f"{n} {label}", "films", f"film {n} {label}", place, n % 2 == 0)


def test_a_stopped_run_continues_and_the_table_compares_with_the_best_member(tmp_path):
    members = {
        "gemma": member("gemma", lambda n: n % 3 == 0),
        "qwen": member("qwen", lambda n: True),
    }
    everything = decisions.asked(list(films(40)), ["films"])
    path = tmp_path / "rows.jsonl"
    first = {"gemma": members["gemma"]}
    decisions.ask_all(first, everything[:10], decisions.stored(path), at_once=4)
    path.write_text(path.read_text() + '{"member": "gemma", "ta')
    answers = decisions.stored(path)
    assert len(decisions.left(answers, "gemma", everything)) == len(everything) - 10
    decisions.ask_all(members, everything, answers, at_once=16)
    rows = decisions.stored(path).all
    assert answers.all == rows
    assert len(rows) == len({row.key for row in rows}) == 2 * len(everything)
    lines = list(decisions.table("films", rows))
    assert lines[-1]["best"] == "qwen"
    by_row = {(line.get("system"), line.get("kind")): line for line in lines}
    assert by_row["qwen", "calibrated"]["accuracy"] == 1.0
    assert by_row["gemma", "calibrated"]["accuracy"] < 0.8
    assert by_row["gemma", "calibrated"]["lost"] > by_row["gemma", "calibrated"]["won"] == 0
    together = by_row[TOGETHER, "calibrated"]
    assert (together["won"], together["lost"]) == (0, 0)
    turned = by_row["qwen", "raw, labels listed in the reverse order"]
    assert turned["largest change"] == 0.0  # a script does not see the list
    usual = [row for row in rows if not row.reversed]  # as if the run had been stopped before
    assert list(decisions.table("films", usual))[-1]["best"] == "qwen"
