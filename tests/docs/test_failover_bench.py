"""The faults of a public benchmark, Failover Bench: the rules of its verdicts, and what a caller of
this package gets."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest

from .blocks import ROOT


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The benchmark's scenarios, and a way to judge one."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return import_module("scenarios")


def seen(bench: Any, *, outcome: str = "answer", words: int = 60, s: float = 1.0, **more: Any):
    """A call that ended in this way, after one attempt on the model that fails."""
    faults = import_module("faults")
    text = " ".join(faults.WORDS[:words])
    call = {"at": 0.0, "outcome": outcome, "text": text, "error": outcome, "s": s}
    call |= {"model": "fb-ok", "usage": True}
    attempt = {"at": 0.0, "words": 9, "did": "refused"}
    found = bench.Seen([call], alive=True, primary=[attempt], fallback=[])
    return replace(found, **more)


def verdict(bench: Any, id: str, **more: Any) -> str:
    scenario = next(one for one in bench.SCENARIOS if one.id == id)
    found, _ = bench.verdict(scenario, seen(bench, **more))
    return str(found)


def test_the_verdicts_follow_the_rules_of_the_benchmark(bench):
    assert verdict(bench, "S08") == "pass"
    assert verdict(bench, "S08", outcome="error", words=40) == "safe"
    assert verdict(bench, "S08", words=40) == "fail", "a part of the answer is no answer"
    assert verdict(bench, "S08", outcome="hang") == "fail"
    # an error is what the provider's filter asks for
    assert verdict(bench, "S13", outcome="error", words=0) == "pass"
    assert verdict(bench, "S13") == "partial"
    # advisory and required checks
    assert verdict(bench, "S07", s=20.0) == "partial"
    assert verdict(bench, "S09", s=50.0) == "fail"
    assert verdict(bench, "S09", alive=False) == "fail"
    hidden = [{"at": 0.0, "did": "refused with 400 invalid_prefill"}]
    assert verdict(bench, "S14", fallback=hidden) == "pass"
    assert verdict(bench, "S14", fallback=hidden, outcome="error", words=40) == "fail"


def test_retries_are_judged_by_what_the_provider_saw(bench):
    def after(*seconds: float, **more: Any) -> list[dict[str, Any]]:
        return [{"at": at, "words": 9, "did": "refused"} | more for at in seconds]

    assert verdict(bench, "S01", primary=after(0, 2)) == "pass"
    assert verdict(bench, "S01", primary=after(0, 1.6)) == "partial"
    assert verdict(bench, "S01", primary=after(0, 0.5, 1.0)) == "fail"
    assert verdict(bench, "S04", primary=after(*range(7))) == "fail"
    assert verdict(bench, "S12", primary=after(0, 1)) == "fail"
    shorter = [*after(0), *after(1, words=5)]
    assert verdict(bench, "S12", primary=shorter) == "pass"


def test_a_model_that_was_down_must_be_used_again_in_30_s(bench):
    down = {"at": 0.0, "words": 9, "did": "refused with 503"}
    for up_at, expected in ((70.0, "pass"), (91.0, "fail")):
        back = {"at": up_at, "words": 9, "did": "answered"}
        assert verdict(bench, "S15", primary=[down, back], outage_s=60.0) == expected
    assert verdict(bench, "S15", primary=[down], outage_s=60.0) == "fail"


@pytest.mark.long
def test_a_caller_of_this_package_gets_every_answer(build, tmp_path):
    """With shorter times; ``benchmarks/failover.json`` has the results with those of the benchmark."""
    out = tmp_path / "failover.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "failover.py"), "--tiny"]
    command += ["--systems", "python", "endpoint", "--out", str(out)]
    subprocess.run(command, check=True, cwd=tmp_path)
    results = json.loads(out.read_text())
    for name, system in results["systems"].items():
        rows = system["scenarios"]
        assert len(rows) == 16
        missed = {id: row for id, row in rows.items() if row["verdict"] != "pass"}
        assert not missed, f"{name}: {json.dumps(missed, indent=1)}"
    tables = import_module("tables")
    assert all(make(results).startswith("|") for make in (tables.failover, tables.failover_short))
