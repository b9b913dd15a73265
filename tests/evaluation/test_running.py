"""Runs: everything is asked once, whatever happens in between; failures and empty answers are
wrong; batches form."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from langchain_specfuse.engine.worker import worker_for
from langchain_specfuse.errors import UsageError
from langchain_specfuse.evaluation import Results, run
from langchain_specfuse.evaluation.results import Result

from .parts import Known, knows, plan, sums


def lines_of(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


def test_every_system_answers_every_question_once(tmp_path):
    made = plan(sums(tmp_path), [knows("ann", lambda n: True), knows("bob", lambda n: n % 4 == 1)])
    with Results(tmp_path) as results:
        found = run(made, results)
    assert len(found) == 90 == len(lines_of(tmp_path))
    assert {(one.system, one.question) for one in found} == {
        (system, question.id)
        for system in ("ann", "bob", "ensemble")
        for question in made.task.questions
    }
    right = {name: sum(one.score for one in found if one.system == name) for name in ("ann", "bob")}
    assert right == {"ann": 30, "bob": 15}
    one = next(one for one in found if one.system == "ensemble" and one.question == "1")
    assert one.answer.startswith("The sum is ") and one.finish == "stop" and one.error == ""
    assert (one.tokens, one.rounds, one.open) == (4, 1, 1)


async def test_a_run_works_where_an_event_loop_is_running_as_in_a_notebook(tmp_path):
    with Results(tmp_path) as results:
        assert (
            len(run(plan(sums(tmp_path, 3), [knows("ann", lambda n: True)], ("ann",)), results))
            == 3
        )


def test_only_what_has_no_result_is_asked(tmp_path):
    members = [knows("ann", lambda n: True), knows("bob", lambda n: True)]
    made = plan(sums(tmp_path), members)
    with Results(tmp_path) as results:
        first = run(made, results)
    calls = members[0].draft_calls
    counts = []
    with Results(tmp_path) as results:
        again = run(
            made, results, seen=lambda system, done, of: counts.append((system.name, done, of))
        )
        assert again == first and members[0].draft_calls == calls
        assert counts == [("ann", 30, 30), ("bob", 30, 30), ("ensemble", 30, 30)]
        run(plan(sums(tmp_path, 31), members[:1], ("ann",)), results)
        assert len(lines_of(tmp_path)) == 91  # one question is new
        run(plan(sums(tmp_path, 2), members[:1], ("x:max_tokens=63",)), results)
        assert len(lines_of(tmp_path)) == 93  # and so is a system with other settings


def test_questions_are_under_way_together(tmp_path, monkeypatch):
    """The first draft returns when eight drafts have been asked for: the others then form one
    batch."""
    eight_asked, worker = threading.Event(), worker_for("scripted-batches")
    asked, sizes = [], []

    class Waiting(Known):
        def draft(self, jobs):
            assert eight_asked.wait(30)
            sizes.append(len(jobs))
            return super().draft(jobs)

    def put(*tasks, put=worker.put):
        put(*tasks)
        asked.extend(task for task in tasks if task.work == "draft")
        if len(asked) == 8:
            eight_asked.set()

    monkeypatch.setattr(worker, "put", put)
    member = Waiting(knows("ann", lambda n: True).answer, name="ann", device="scripted-batches")
    with Results(tmp_path) as results:
        run(plan(sums(tmp_path, 8), [member], at_once=8), results)
    assert sum(sizes) == 8 and len(sizes) <= 2


def test_one_failed_question_counts_as_wrong_and_the_others_go_on(tmp_path):
    class Failing(Known):
        def draft(self, jobs):
            if any("3 + 4" in job.query.turns[-1].text for job in jobs):
                raise RuntimeError("no")
            return super().draft(jobs)

    made = plan(
        sums(tmp_path, 6), [Failing(knows("ann", lambda n: True).answer, name="ann")], at_once=1
    )
    with Results(tmp_path) as results:
        found = run(made, results)
        failed = [one for one in found if one.error]
        assert [one.question for one in failed] == ["4"] and failed[0].score == 0
        assert "RuntimeError: no" in failed[0].error and sum(one.score for one in found) == 5
        mended = replace(made, members={"ann": knows("ann", lambda n: True)})
        assert sum(one.score for one in run(mended, results)) == 6
    assert len(lines_of(tmp_path)) == 7
    # the last of one key counts
    assert sum(result.score for result in Results(tmp_path).found()) == 6


# --- results on disk ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [("score", "1.0"), ("score", 2), ("answer", None), ("tokens", 1.5), ("first_s", "soon")],
)
def test_a_broken_line_in_the_middle_is_refused_and_kept(tmp_path, name, value):
    path = tmp_path / "results.jsonl"
    with Results(tmp_path) as results:
        results.add(Result("a", "ensemble", "1", 0, "x", 1.0))
        results.add(Result("b", "ensemble", "2", 0, "x", 1.0))
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
