"""Runs: everything is asked once, whatever happens in between; failures and empty answers are
wrong; batches form."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from langchain_specfuse.core.options import Settings
from langchain_specfuse.errors import UsageError
from langchain_specfuse.evaluation import Graded, Results, run

from .parts import Known, knows, plan, sums


def lines_of(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


def two() -> list[Known]:
    return [knows("ann", lambda n: True), knows("bob", lambda n: n % 4 == 1)]


def test_every_system_answers_every_question_once(tmp_path):
    planned = plan(sums(tmp_path), two())
    with Results(tmp_path) as results:
        answers = run(planned, results)
    assert len(answers) == 90 == len(lines_of(tmp_path))
    assert {(graded.system, graded.question) for graded in answers} == {
        (system, question.id)
        for system in ("ann", "bob", "ensemble")
        for question in planned.task.questions
    }
    right = {"ann": 0.0, "bob": 0.0, "ensemble": 0.0}
    for graded in answers:
        right[graded.system] += graded.score
    assert (right["ann"], right["bob"]) == (30, 15)
    first = next(graded for graded in answers if graded.system == "ensemble")
    assert first.answer.startswith("The sum is ")
    assert (first.finish, first.error, first.tokens) == ("stop", "", 4)
    assert (first.rounds, first.drafts) == (1, 2)


async def test_a_run_works_where_an_event_loop_is_running_as_in_a_notebook(tmp_path):
    with Results(tmp_path) as results:
        assert len(run(plan(sums(tmp_path, 3), two()), results)) == 9


def test_a_lone_member_is_no_ensemble(tmp_path):
    (member, _) = two()
    assert [system.name for system in plan(sums(tmp_path), [member]).systems] == ["ann"]
    with pytest.raises(UsageError, match="no member may be called 'ensemble'"):
        plan(sums(tmp_path), [member, knows("ensemble", lambda n: True)])


def test_only_what_has_no_result_is_asked(tmp_path):
    members = two()
    planned = plan(sums(tmp_path), members)
    with Results(tmp_path) as results:
        first = run(planned, results)
    calls = members[0].draft_calls
    progress = []

    def watch(system, done, total):
        progress.append((system.name, done, total))

    with Results(tmp_path) as results:
        assert run(planned, results, watch=watch) == first
        assert members[0].draft_calls == calls
        assert progress == [("ann", 30, 30), ("bob", 30, 30), ("ensemble", 30, 30)]
        run(plan(sums(tmp_path, 31), members[:1]), results)
        assert len(lines_of(tmp_path)) == 91  # one question is new
        alone = plan(sums(tmp_path, 2), members[:1])
        (system,) = alone.systems
        shorter = replace(system, settings=Settings(max_tokens=63))
        run(replace(alone, systems=(shorter,)), results)
        assert len(lines_of(tmp_path)) == 93  # and so is a system with other settings


def test_each_seed_is_asked_and_the_settings_seed_is_its_beginning(tmp_path):
    planned = plan(sums(tmp_path, 2), two()[:1], seeds=(0, 5))
    with Results(tmp_path) as results:
        answers = run(planned, results)
    assert [(graded.question, graded.seed) for graded in answers] == [
        ("1", 0),
        ("2", 0),
        ("1", 5),
        ("2", 5),
    ]


def test_questions_are_under_way_together(tmp_path):
    """While the first draft is computed, the other questions arrive and form a batch."""
    sizes = []

    class Slow(Known):
        def draft(self, jobs):
            if not sizes:
                time.sleep(0.5)
            sizes.append(len(jobs))
            return super().draft(jobs)

    member = Slow(knows("ann", lambda n: True).answer, name="ann", device="scripted-batches")
    with Results(tmp_path) as results:
        run(plan(sums(tmp_path, 8), [member], at_once=8), results)
    assert sum(sizes) == 8 and max(sizes) > 1


def test_one_failed_question_counts_as_wrong_and_the_others_go_on(tmp_path):
    class Failing(Known):
        def draft(self, jobs):
            if any("3 + 4" in job.query.turns[-1].text for job in jobs):
                raise RuntimeError("no")
            return super().draft(jobs)

    failing = Failing(knows("ann", lambda n: True).answer, name="ann")
    planned = plan(sums(tmp_path, 6), [failing], at_once=1)
    with Results(tmp_path) as results:
        answers = run(planned, results)
        failed = [graded for graded in answers if graded.error]
        assert [graded.question for graded in failed] == ["4"] and failed[0].score == 0
        assert "RuntimeError: no" in failed[0].error
        assert sum(graded.score for graded in answers) == 5
        repaired = replace(planned, members={"ann": knows("ann", lambda n: True)})
        assert sum(graded.score for graded in run(repaired, results)) == 6
    assert len(lines_of(tmp_path)) == 7
    # the last line with a key counts
    assert sum(graded.score for graded in Results(tmp_path).answers()) == 6


# --- results on disk ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [("score", "1.0"), ("score", 2), ("answer", None), ("tokens", 1.5), ("seconds", "soon")],
)
def test_a_broken_line_in_the_middle_is_refused_and_kept(tmp_path, name, value):
    path = tmp_path / "results.jsonl"
    with Results(tmp_path) as results:
        results.add(Graded("a", "ensemble", "1", 0, "x", 1.0))
        results.add(Graded("b", "ensemble", "2", 0, "x", 1.0))
    first, second = path.read_text().splitlines()
    broken = json.dumps(json.loads(first) | {name: value}) + "\n" + second + "\n"
    path.write_text(broken)
    with (
        pytest.raises(UsageError, match=rf"results\.jsonl:1 is not a result: {name}: "),
        Results(tmp_path),
    ):
        pass
    assert path.read_text() == broken


def test_two_processes_do_not_write_one_file(tmp_path):
    with (
        Results(tmp_path),
        pytest.raises(UsageError, match="another process is writing"),
        Results(tmp_path),
    ):
        pass
    with Results(tmp_path):
        pass


SLOW = """
import sys, time
from pathlib import Path
from tests.evaluation.parts import Known, knows, plan, sums
from langchain_specfuse.evaluation import Results, run

class Slow(Known):
    def draft(self, jobs):
        time.sleep(0.03)
        return super().draft(jobs)

folder = Path(sys.argv[1])
members = [Slow(knows(name, lambda n: True).answer, name=name) for name in ("ann", "bob")]
with Results(folder) as results:
    run(plan(sums(folder), members, at_once=2), results)
print("done")
"""


@pytest.mark.long
def test_killed_again_and_again_it_loses_nothing_and_counts_nothing_twice(tmp_path):
    """SIGKILL in the middle, twice; then to the end."""
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), *sys.path])}
    path, kept = tmp_path / "results.jsonl", b""
    for attempt in range(3):
        command = [sys.executable, "-c", SLOW, str(tmp_path)]
        with subprocess.Popen(
            command, cwd=root, env=environment, stdout=subprocess.PIPE
        ) as process:
            if attempt < 2:
                goal, deadline = len(kept) + 700, time.monotonic() + 60
                while not path.exists() or path.stat().st_size < goal:
                    assert process.poll() is None and time.monotonic() < deadline
                    time.sleep(0.005)
                process.send_signal(signal.SIGKILL)
            out, _ = process.communicate(timeout=120)
        data = path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        assert whole.startswith(kept), "a finished result was lost"
        kept = whole
        if attempt == 0:
            path.write_bytes(data + b'{"key": "half')  # killed in the middle of a line, for certain
    assert out == b"done\n"
    lines = lines_of(tmp_path)
    assert len(lines) == 90 == len({line["key"] for line in lines})
    assert {(line["system"], line["question"]) for line in lines} == {
        (system, str(at)) for system in ("ann", "bob", "ensemble") for at in range(1, 31)
    }
