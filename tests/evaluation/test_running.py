"""Runs: everything asked once, whatever happens in between; failures and empty answers are wrong; batches form."""

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

from langchain_specfuse.core.values import Settings
from langchain_specfuse.engine.desk import desk_for
from langchain_specfuse.errors import UsageError
from langchain_specfuse.evaluation import Results, System, jsonl, run
from langchain_specfuse.evaluation.results import Result

from .parts import Known, knows, plan, sums


def all_of(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


def test_every_system_answers_every_question_once(tmp_path):
    members = [knows("ann", lambda n: True), knows("bob", lambda n: n % 4 == 1)]
    told = plan(sums(tmp_path), members)
    with Results(tmp_path) as results:
        found = run(told, results)
    assert len(found) == 90 == len(all_of(tmp_path))
    assert {(one.system, one.question) for one in found} == {
        (system, question.id) for system in ("ann", "bob", "ensemble") for question in told.task.questions
    }
    right = {name: sum(one.score for one in found if one.system == name) for name in ("ann", "bob")}
    assert right == {"ann": 30, "bob": 15}
    one = next(one for one in found if one.system == "ensemble" and one.question == "1")
    assert one.answer.startswith("The sum is ") and one.finish == "stop" and one.error == ""
    assert (one.tokens, one.rounds, one.drafting, one.open) == (4, 1, 2, 1)
    assert set(one.members) == {"ann", "bob"} and sum(told["wins"] for told in one.members.values()) == 1


def test_what_is_there_is_not_asked_again(tmp_path):
    members = [knows("ann", lambda n: True), knows("bob", lambda n: True)]
    told = plan(sums(tmp_path), members)
    with Results(tmp_path) as results:
        first = run(told, results)
    calls = members[0].draft_calls
    counts = []
    with Results(tmp_path) as results:
        again = run(told, results, seen=lambda system, done, of: counts.append((system.name, done, of)))
    assert again == first and members[0].draft_calls == calls
    assert counts == [("ann", 30, 30), ("bob", 30, 30), ("ensemble", 30, 30)]


def test_no_system_gains_from_what_was_read_for_another(tmp_path):
    """What each had drafted when it was told to forget: before every system that it is part of, at its desk."""
    members, told = [knows("ann", lambda n: True), knows("bob", lambda n: True)], []
    for member in members:
        member.drop_prefixes = lambda member=member: told.append((member.name, member.draft_calls > 0))
    with Results(tmp_path) as results:
        run(plan(sums(tmp_path), members), results)
    assert told == [("ann", False), ("bob", False), ("ann", True), ("bob", True)]


def test_a_change_of_settings_question_or_member_is_another_result(tmp_path):
    task = sums(tmp_path, 3)
    told = plan(task, [knows("ann", lambda n: True)])
    with Results(tmp_path) as results:
        run(told, results)
        run(plan(sums(tmp_path, 4), [knows("ann", lambda n: True)]), results)
        assert len(all_of(tmp_path)) == 4  # one question is new
        other = System("ann", ("ann",), Settings(max_tokens=63))
        found = run(plan(task, [knows("ann", lambda n: True)], seeds=(0,)), results)
        assert len(found) == 3 and len(all_of(tmp_path)) == 4
        run(replace(told, systems=(other,)), results)
        assert len(all_of(tmp_path)) == 7
        run(replace(told, members={"ann": _Other("The sum is 1.", name="ann")}), results)
        assert len(all_of(tmp_path)) == 10


class _Other(Known):
    @property
    def spec(self):
        return {"known": "somebody else"}


def test_questions_are_under_way_together(tmp_path):
    class Slow(Known):
        def draft(self, jobs):
            time.sleep(0.01)  # time for others to come
            return super().draft(jobs)

    member = Slow(knows("ann", lambda n: True).answer, name="ann", device="scripted-batches")
    with Results(tmp_path) as results:
        run(plan(sums(tmp_path), [member], at_once=8), results)
    sizes = [size for name, work, size in desk_for("scripted-batches").batches if work == "draft"]
    assert max(sizes) > 1 and max(sizes) <= 8


def test_one_failed_question_counts_as_wrong_and_the_others_go_on(tmp_path):
    class Failing(Known):
        def draft(self, jobs):
            if any("3 + 4" in job.query.turns[-1].text for job in jobs):
                raise RuntimeError("no")
            return super().draft(jobs)

    member = Failing(knows("ann", lambda n: True).answer, name="ann")
    told = plan(sums(tmp_path, 6), [member], at_once=1)
    with Results(tmp_path) as results:
        found = run(told, results)
        failed = [one for one in found if one.error]
        assert [one.question for one in failed] == ["4"] and failed[0].score == 0
        assert "RuntimeError: no" in failed[0].error or "no member is left" in failed[0].error
        assert sum(one.score for one in found) == 5
        mended = {"ann": knows("ann", lambda n: True)}
        assert sum(one.score for one in run(replace(told, members=mended), results)) == 5
        assert sum(one.score for one in run(replace(told, members=mended), results, again=True)) == 6
    assert len(all_of(tmp_path)) == 7
    assert sum(result.score for result in Results(tmp_path).found()) == 6  # the last of one key counts


def test_an_answer_that_takes_too_long_is_wrong(tmp_path):
    class Slow(Known):
        def draft(self, jobs):
            time.sleep(0.5)
            return super().draft(jobs)

    member = Slow(knows("ann", lambda n: True).answer, name="ann", device="scripted-slow")
    with Results(tmp_path) as results:
        (found,) = run(plan(sums(tmp_path, 1), [member], timeout=0.05), results)
    assert found.score == 0 and "within timeout" in found.error


def test_an_empty_answer_is_wrong(tmp_path):
    with Results(tmp_path) as results:
        found = run(plan(sums(tmp_path, 3), [Known(" ", name="ann")]), results)
    assert [(one.score, one.note, one.error) for one in found] == [(0.0, "empty answer", "")] * 3


def test_an_answer_on_which_the_checker_raises_is_marked(tmp_path):
    (tmp_path / "check.py").write_text("def f(answer, reference): return 1 / 0")
    (tmp_path / "t.jsonl").write_text('{"input": "1 + 1?", "reference": "2"}')
    task = jsonl(tmp_path / "t.jsonl", f"{tmp_path / 'check.py'}:f")
    with Results(tmp_path) as results:
        (found,) = run(plan(task, [knows("ann", lambda n: True)]), results)
    assert found.score == 0 and "ZeroDivisionError" in found.unchecked


def test_seeds_are_asked_once_each_and_reach_the_members(tmp_path):
    heard = []

    class Listening(Known):
        def draft(self, jobs):
            heard.extend(job.sampling.seed for job in jobs)
            return super().draft(jobs)

    member = Listening(knows("ann", lambda n: True).answer, name="ann")
    with Results(tmp_path) as results:
        found = run(plan(sums(tmp_path, 2), [member], seeds=(0, 5)), results)
    assert sorted(heard) == [0, 0, 5, 5] and [one.seed for one in found] == [0, 0, 5, 5]


# --- results on disk ------------------------------------------------------------------------------------------------


def test_a_half_written_last_line_is_cut_off(tmp_path):
    path = tmp_path / "results.jsonl"
    for rest in (b'{"key": "b", "sys', b'{"key": "b"}\n', b"\xf0\x9f\n", b"7\n"):
        path.unlink(missing_ok=True)
        with Results(tmp_path) as results:
            results.add(Result("a", "ensemble", "1", 0, "x", 1.0))
        whole = path.read_bytes()
        path.write_bytes(whole + rest)
        assert [one.key for one in Results(tmp_path).found()] == ["a"]
        with Results(tmp_path) as results:
            assert "a" in results and "b" not in results
            results.add(Result("b", "ensemble", "2", 0, "日本\u2028\n", 0.5))
        assert path.read_bytes().startswith(whole)
        assert [one.answer for one in Results(tmp_path).found()] == ["x", "日本\u2028\n"]


def test_a_result_is_on_the_disk_as_soon_as_it_is_there(tmp_path):
    with Results(tmp_path) as results:
        for key in "abc":
            results.add(Result(key, "ensemble", key, 0, "x", 1.0))
            assert [one.key for one in Results(tmp_path).found()][-1] == key


def test_a_broken_line_in_the_middle_is_told_and_not_thrown_away(tmp_path):
    path = tmp_path / "results.jsonl"
    with Results(tmp_path) as results:
        results.add(Result("a", "ensemble", "1", 0, "x", 1.0))
    path.write_bytes(b"broken\n" + path.read_bytes())
    with pytest.raises(UsageError, match=r"results\.jsonl:1 is no result"), Results(tmp_path):
        pass
    assert path.read_bytes().startswith(b"broken")


@pytest.mark.parametrize(
    ("name", "value"),
    [("score", "1.0"), ("score", True), ("score", 2), ("answer", None), ("tokens", 1.5), ("members", []),
     ("first_s", "soon"), ("error", 0)],
)  # fmt: skip
def test_a_line_with_a_value_of_the_wrong_kind_is_told(tmp_path, name, value):
    path = tmp_path / "results.jsonl"
    with Results(tmp_path) as results:
        results.add(Result("a", "ensemble", "1", 0, "x", 1.0))
        results.add(Result("b", "ensemble", "2", 0, "x", 1.0))
    first, second = path.read_text().splitlines()
    path.write_text(json.dumps(json.loads(first) | {name: value}) + "\n" + second + "\n")
    with pytest.raises(UsageError, match=rf"results\.jsonl:1 is no result: {name} is "):
        Results(tmp_path)


def test_two_processes_do_not_write_one_file(tmp_path):
    with Results(tmp_path), pytest.raises(UsageError, match="another process is writing"), Results(tmp_path):
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
        time.sleep(0.08)
        return super().draft(jobs)

folder = Path(sys.argv[1])
members = [Slow(knows(name, lambda n: True).answer, name=name) for name in ("ann", "bob")]
with Results(folder) as results:
    run(plan(sums(folder), members, at_once=2), results)
print("done")
"""


def test_killed_again_and_again_it_loses_nothing_and_counts_nothing_twice(tmp_path):
    """SIGKILL in the middle, five times; then to the end."""
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), *sys.path])}
    path, kept = tmp_path / "results.jsonl", b""
    for kills in range(6):
        process = subprocess.Popen(
            [sys.executable, "-c", SLOW, str(tmp_path)], cwd=root, env=environment, stdout=subprocess.PIPE
        )
        with process:
            if kills < 5:
                goal, deadline = len(kept) + 700, time.monotonic() + 60
                while path.exists() is False or path.stat().st_size < goal:
                    assert process.poll() is None and time.monotonic() < deadline
                    time.sleep(0.005)
                process.send_signal(signal.SIGKILL)
            out, _ = process.communicate(timeout=120)
        data = path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        assert whole.startswith(kept), "a finished result was lost"
        kept = whole
        if kills == 2:
            path.write_bytes(data + b'{"key": "half')  # killed in the middle of a line, for certain
    assert out == b"done\n"
    lines = all_of(tmp_path)
    assert len(lines) == 90 == len({line["key"] for line in lines})
    assert {(line["system"], line["question"]) for line in lines} == {
        (system, str(at)) for system in ("ann", "bob", "ensemble") for at in range(1, 31)
    }
