"""What is generated in the documentation is what its script makes now."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
import xml.etree.ElementTree as ElementTree

import pytest

from .blocks import PAGES, ROOT


@pytest.fixture(scope="module")
def build():
    spec = importlib.util.spec_from_file_location("docs_build", ROOT / "docs" / "build.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(ROOT / "docs"))


def test_every_generated_part_is_up_to_date(build):
    assert build.stale() == [], "run: make docs"


def test_every_part_has_its_place(build):
    text = "".join(page.read_text() for page in PAGES)
    assert {found[1] for found in build.PART.findall(text)} == set(build.PARTS)


def test_every_mark_of_the_paper_in_the_code_is_in_the_table(build):
    marks = sum(file.read_text().count("Paper:") for file in (ROOT / "langchain_specfuse").rglob("*.py"))
    assert len(build.paper().splitlines()) - 2 == marks


def test_a_picture_shows_every_word_of_its_run_in_its_author_s_colour(build):
    told = build.scripted_run()
    rounds = told["rounds"]
    root = ElementTree.fromstring(build.drawn(**told))
    pieces = [(node.get("fill"), node.text or "") for node in root.iter("{http://www.w3.org/2000/svg}text")]
    colours = {text.removeprefix("■ "): fill for fill, text in pieces if text.startswith("■ ")}
    assert set(colours) == {"ann", "bob", "cyd"}
    for item in rounds:
        own = "".join(text for fill, text in pieces if fill == colours[item["winner"]])
        assert all(word in own for word in item["text"].split())
    assert any("cyd left" in text for _, text in pieces)


def test_a_picture_has_room_for_long_lines_and_line_breaks(build):
    told = build.scripted_run()
    first = told["rounds"][0]
    first["text"] = first["segment"] = "one\n\n" + "word " * 60 + "<&> end"
    root = ElementTree.fromstring(build.drawn(**told))
    nodes = root.iter("{http://www.w3.org/2000/svg}text")
    assert all(float(n.get("x", 0)) + float(n.get("textLength", 0)) <= float(root.get("width", 0)) for n in nodes)


def test_the_recorded_run_is_that_of_the_demo_ensemble(build):
    rounds = json.loads(build.RUN.read_text())["rounds"]
    assert set(rounds[0]["drafts"]) == {"SmolLM2-135M", "Gemma-3-270M"}
    assert [item["round"] for item in rounds] == list(range(1, len(rounds) + 1))


def test_numbers_come_from_the_benchmarks_files_or_there_are_none(build, tmp_path, monkeypatch):
    monkeypatch.setattr(build, "ROOT", tmp_path)
    assert "make bench" in build.numbers()
    (tmp_path / "benchmarks").mkdir()
    common = {"dtype": "float32", "machine": "m", "clock": "wall clock", "torch": "2", "members": ["a", "b"]}
    (tmp_path / "benchmarks" / "throughput.json").write_text(json.dumps([{**common, "queries": 8, "gain": 3.25}]))
    made = build.numbers()
    assert "| 8 questions at once are done 3.25 times as fast" in made
    assert "`benchmarks/throughput.py`" in made and "a and b" in made and "wall clock" in made and "latency" not in made


def test_every_number_of_the_table_is_one_that_its_benchmark_writes(build):
    for name, key, _ in build.NUMBERS:
        assert f'"{key}":' in (ROOT / "benchmarks" / f"{name}.py").read_text()


def test_the_costs_of_an_answer_add_up(build):
    told = build.scripted_run()
    text = build.costs.one_answer(told)
    agreed, drafted, vain = map(
        int, re.search(r"(\d+) tokens agreed, (\d+) drafted, (\d+) of them in vain", text).groups()
    )
    assert agreed == sum(item["drafts"][item["winner"]]["tokens"] for item in told["rounds"])
    assert drafted - vain == agreed and vain > agreed  # three wrote, one was heard
    rows = {row.split(" | ")[0].lstrip("| "): row for row in text.splitlines() if row.startswith("| ")}
    assert {"ann", "bob", "cyd"} < set(rows)


def test_the_costs_of_traces_are_those_of_the_benchmark_or_none(build):
    assert "make bench" in build.costs.traces([])
    assert '"microseconds_per_round":' in (ROOT / "benchmarks" / "tracing.py").read_text()
    assert all(f'`"{depth}"`' in build.cost_traces() for depth in ("off", "summary", "rounds", "members"))


def test_every_option_of_the_commands_is_in_their_tables(build):
    for part in ("command", "command-eval", "command-doctor"):
        table = build.PARTS[part]()
        assert "`--members` `M`" in table and "%(" not in table
    assert (
        "`--html` `FILE`" in build.PARTS["command"]() and "`specfuse`, `specem`, `robust`" in build.PARTS["command"]()
    )


def test_what_is_told_of_rounds_on_engines_is_what_its_benchmark_writes(build):
    assert "No numbers yet" in build.engines.rounds([]) and "No numbers yet" in build.sizes.table({})
    script = (ROOT / "benchmarks" / "serving_rounds.py").read_text()
    for key in ("round_ms", "own_ms", "overhead_ms", "overhead_percent", "nine_of_ten_percent", "gain", "gain_each"):
        assert f'"{key}":' in script
    told = {"engine": "vllm", "machine": "m", "crowd": {"at_once": 8, "gain": 4.04, "gain_each": [4.0, 4.04]}}
    assert "8 questions at once are done 4.0 times as fast as one after another (4.0, 4.0 in turn)" in (
        build.engines.rounds([told])
    )


def test_the_sizing_can_be_done_by_hand(build):
    """One question a second, ten rounds of ten tokens, two members, half of the rounds voted on."""
    spec = importlib.util.spec_from_file_location("sizing", ROOT / "benchmarks" / "sizing.py")
    sizing = importlib.util.module_from_spec(spec)
    sys.modules["sizing"] = sizing
    spec.loader.exec_module(sizing)
    wanted = sizing.Wanted(86_400, peak=1.0, prompt_tokens=100, answer_tokens=100, members=2, busy=1.0)
    measured = sizing.Measured(tokens_a_round=10, voted=0.5, face_ms=1, door_ms=1, question_ms=2)
    engine = sizing.replica("here", draws=100, reads=1000, round_ms=500, wanted=wanted)
    needs = sizing.needs(wanted, measured, engine)
    assert needs["replica_seconds_a_query"] == pytest.approx(10 * 0.1 + 5 * 0.01 + 0.1)
    assert (needs["replicas_of_each_member"], needs["replicas"]) == (2, 4)
    assert (needs["questions_to_each_member_a_second"], needs["tokens_drawn_by_each_member_a_second"]) == (15, 100)
    assert (needs["processor_ms_a_query_here"], needs["processes_here"], needs["answers_under_way"]) == (60, 1, 5)
    kept = json.loads((ROOT / "benchmarks" / "sizing.json").read_text())[0]
    again = sizing.needs(sizing.Wanted(**kept["wanted"]), sizing.figures(), sizing.stand_in())
    assert kept["needs"] == {name: pytest.approx(value, abs=0.01) for name, value in again.items()}
    assert set(kept["needs"]) >= {key for key, _, _ in (*build.sizes.LINES, *build.sizes.ENGINE)}
