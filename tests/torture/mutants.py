"""Mutation testing of ``core/``: which small mistakes in it would no test of ``tests/core`` notice?

    python -m tests.torture.mutants                 # all that has not been tried yet, then the table
    python -m tests.torture.mutants --fresh         # everything again
    python -m tests.torture.mutants --module panel  # one file
    python -m tests.torture.mutants --minutes 10    # so long; the next run goes on from there

Each mutant is tried in a forked child, by the tests that run its line, the fastest first, until one fails. What is
known is kept in ``build/mutants.jsonl``: a mutant that was killed stays so while its file is the same, one that
survived is tried again when the tests have changed. The result is ``mutants.json`` beside this file, from which the
table of docs/testing.md is made: every survivor is there, and why it is let live (equal to the original, or words).
"""

from __future__ import annotations

import argparse
import datetime
import gc
import hashlib
import importlib.abc
import importlib.util
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from .mutations import Mutant, mutants, mutated

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "langchain_specfuse" / "core"
TESTS = ROOT / "tests" / "core"
KNOWN = Path(__file__).with_name("mutants.json")
LOG = ROOT / "build" / "mutants.jsonl"
PLAN = ROOT / "build" / "mutants-plan.json"
PACKAGE = "langchain_specfuse.core"
OURS = tuple(str(ROOT / name) for name in ("langchain_specfuse", "tests", "conftest.py"))
MEMORY = 3 << 30
LIMIT_S = 4.0
"""A test that takes this much longer than it should, in processor time, hangs: the mutant is killed, too."""

KILLED, HUNG, ALIVE, UNTRIED = "killed", "hung", "alive", "untried"


def all_mutants(names: Iterable[str] | None = None) -> list[Mutant]:
    """Every mutant of every file of ``core/``."""
    files = {file.stem: file for file in sorted(CORE.glob("*.py"))}
    return [mutant for name in names or files for mutant in mutants(name, files[name].read_text())]


def sample(count: int) -> list[Mutant]:
    """So many mutants, the same ones as long as their lines are the same."""
    return sorted(all_mutants(), key=lambda mutant: hashlib.sha256(mutant.key.encode()).digest())[:count]


def digest(files: Iterable[Path]) -> str:
    whole = hashlib.sha256()
    for file in sorted(files):
        whole.update(file.read_bytes())
    return whole.hexdigest()[:16]


# --- the court: pytest with all tests loaded --------------------------------------------------------------------


class Court:
    """Loads the tests once. Each mutant is tried in a fork, which takes over all that was loaded."""

    def __init__(self, work: Callable[[Court], None]) -> None:
        self._work = work
        self.items: dict[str, pytest.Item] = {}
        self.planned: dict[str, Any] = {}

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.items = {item.nodeid: item for item in session.items}
        self.planned = self._plan()
        gc.freeze()
        self._check()
        self._work(self)
        return True

    def fate(self, mutant: Mutant) -> str:
        """What becomes of this mutant."""
        file = CORE / f"{mutant.module}.py"
        code = mutated(file.read_text(), mutant, str(file))
        tests = self.tests_of(mutant)
        limit = 60 + 10 * sum(self.planned[test]["seconds"] for test in tests)
        live = _live(mutant)
        if live:
            done = _forked(lambda: self._judged(live, code, tests), limit)
        else:
            done = _forked(lambda: _afresh(f"{PACKAGE}.{mutant.module}", code, tests), limit)
        return HUNG if done in (None, -signal.SIGPROF) else ALIVE if done == 0 else KILLED

    def tests_of(self, mutant: Mutant) -> list[str]:
        """The tests that run this mutant's lines, the fastest first; all, where it is run by an import."""
        lines = set(range(mutant.line, mutant.last + 1))
        running = [test for test, told in self.planned.items() if lines & set(told["lines"].get(mutant.module, ()))]
        return sorted(running or self.planned, key=lambda test: self.planned[test]["seconds"])

    def _judged(self, live: Live, code: CodeType, tests: Sequence[str]) -> int:
        """1 if a test fails with this code in the function's place."""
        live.function.__code__ = live.same_in(code)
        for test in tests:  # what was measured is with every line watched, some times as slow
            signal.setitimer(signal.ITIMER_PROF, LIMIT_S + self.planned[test]["seconds"])
            if self._fails(test):
                return 1
        return 0

    def _fails(self, test: str) -> bool:
        return any(report.failed for report in runtestprotocol(self.items[test], log=False, nextitem=None))

    def _check(self) -> None:
        """A court that condemns the innocent is none."""
        file = CORE / "answer.py"
        same = compile(file.read_text(), str(file), "exec")
        some = sorted(self.planned, key=lambda test: self.planned[test]["seconds"])[:100]
        live = Live(sys.modules[f"{PACKAGE}.answer"].is_safe, "is_safe")
        if self._judged_in_fork(live, same, some) or _forked(lambda: _afresh(f"{PACKAGE}.answer", same, some), 600):
            raise SystemExit("the tests of core/ fail without any mutant when a fork runs them")

    def _judged_in_fork(self, live: Live, code: CodeType, tests: Sequence[str]) -> int | None:
        return _forked(lambda: self._judged(live, code, tests), 600)

    def _plan(self) -> dict[str, Any]:
        """Which lines of ``core/`` each test runs, and how long it takes. Only what has changed is looked at again."""
        core = digest(CORE.glob("*.py"))
        PLAN.parent.mkdir(exist_ok=True)
        told = json.loads(PLAN.read_text()) if PLAN.exists() else {}
        known = told["tests"] if told.get("core") == core else {}
        marks = {file: digest([ROOT / file]) for file in {test.split("::")[0] for test in self.items}}
        fresh = {
            test: known[test] for test in self.items if known.get(test, {}).get("file") == marks[test.split("::")[0]]
        }
        if len(fresh) < len(self.items) and _forked(lambda: self._watched(core, marks, fresh), 1800) != 0:
            raise SystemExit("the tests of core/ fail without any mutant: run them, mend them, come again")
        planned: dict[str, Any] = json.loads(PLAN.read_text())["tests"]
        return {test: planned[test] for test in self.items}

    def _watched(self, core: str, marks: Mapping[str, str], fresh: dict[str, Any]) -> int:
        for test in [test for test in self.items if test not in fresh]:
            since, lines = time.perf_counter(), _Lines()
            with lines:
                if self._fails(test):
                    return 1
            seconds = round(time.perf_counter() - since, 4)
            seen = {name: sorted(at) for name, at in lines.seen.items()}
            fresh[test] = {"file": marks[test.split("::")[0]], "seconds": seconds, "lines": seen}
        PLAN.write_text(json.dumps({"core": core, "tests": fresh}))
        return 0


class _Lines:
    """The lines of ``core/`` that are run meanwhile."""

    def __init__(self) -> None:
        self.seen: dict[str, set[int]] = {}
        self._files = {str(file): file.stem for file in CORE.glob("*.py")}

    def __enter__(self) -> None:
        sys.settrace(self._called)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _called(self, frame: FrameType, event: str, arg: object) -> Any:
        return self._line(frame, event, arg) if frame.f_code.co_filename in self._files else None

    def _line(self, frame: FrameType, event: str, arg: object) -> Any:
        self.seen.setdefault(self._files[frame.f_code.co_filename], set()).add(frame.f_lineno)
        return self._line


@dataclass(frozen=True)
class Live:
    """The function that a mutant changes, as it is loaded, and where it stands in its file."""

    function: FunctionType
    name: str

    def same_in(self, code: CodeType) -> CodeType:
        """The function's code in a file's code."""
        for name in self.name.split("."):
            code = next(one for one in code.co_consts if isinstance(one, CodeType) and one.co_name == name)
        return code


def _live(mutant: Mutant) -> Live | None:
    """The outermost function that holds the mutant; None where it stands outside of any, or in what a ``def`` says."""
    holder: Any = sys.modules[f"{PACKAGE}.{mutant.module}"]
    path = mutant.name.split(":")[0].split(".") if not mutant.name.startswith(":") else []
    for at, name in enumerate(path, 1):
        holder = holder.__dict__[name]
        holder = holder.fget if isinstance(holder, property) else getattr(holder, "__func__", holder)
        if isinstance(holder, FunctionType):
            return Live(holder, ".".join(path[:at])) if mutant.in_body else None
    return None


def _afresh(name: str, code: CodeType, tests: Sequence[str]) -> int:
    """1 if a test fails when everything is imported again, this module from this code."""
    for one, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(OURS):  # the tests too: they hold old objects
            del sys.modules[one]
    sys.meta_path.insert(0, Swapped(name, code))
    return int(pytest.main([*OPTIONS, *sorted({test.split("::")[0] for test in tests})], plugins=[Chosen(tests)]))


class Swapped(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from other code than its file's."""

    def __init__(self, name: str, code: CodeType) -> None:
        self.name, self.code = name, code

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        return importlib.util.spec_from_loader(name, self) if name == self.name else None

    def exec_module(self, module: ModuleType) -> None:
        exec(self.code, module.__dict__)


class Chosen:
    """Runs these tests only, in this order."""

    def __init__(self, tests: Sequence[str]) -> None:
        self.order = {test: at for at, test in enumerate(tests)}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted((i for i in items if i.nodeid in self.order), key=lambda i: self.order[i.nodeid])


OPTIONS = ["-x", "-q", "-s", "-p", "no:cacheprovider", "-p", "asyncio", "-p", "_hypothesis_pytestplugin"]
"""The same examples in every run, and no time lost on making them small (tests/conftest.py)."""
OPTIONS += ["--hypothesis-profile=mutants", "--tb=no", "--no-header", "--assert=plain"]


def _forked(work: Callable[[], int], limit_s: float) -> int | None:
    """What this returns in a child of ours; None if it took too long."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 99
        try:
            if not os.environ.get("TORTURE_LOUD"):
                quiet = os.open(os.devnull, os.O_WRONLY)
                os.dup2(quiet, 1)
                os.dup2(quiet, 2)
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            code = work()
        finally:
            os._exit(code)
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def held(work: Callable[[Court], None]) -> None:
    """Do this with all tests loaded."""
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    os.chdir(ROOT)
    code = pytest.main([*OPTIONS, str(TESTS.relative_to(ROOT))], plugins=[Court(work)])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise SystemExit(f"pytest ended with {code!r}")


# --- the campaign -----------------------------------------------------------------------------------------------


def campaign(court: Court, names: Sequence[str] | None, minutes: float | None, fresh: bool) -> bool:
    """Try all mutants that must be tried; whether none is left."""
    tests = digest(TESTS.glob("*.*"))
    source = {file.stem: digest([file]) for file in CORE.glob("*.py")}
    if fresh:
        LOG.unlink(missing_ok=True)
    known = logged()
    until = time.monotonic() + minutes * 60 if minutes else float("inf")
    with LOG.open("a") as log:
        for number, mutant in enumerate(todo := _untried(all_mutants(names), known, source, tests), 1):
            if time.monotonic() > until:
                print(f"{len(todo) - number + 1} mutants left: the next run goes on from here")
                return False
            found = court.fate(mutant)
            told = {"key": mutant.key, "fate": found, "source": source[mutant.module], "tests": tests}
            log.write(json.dumps(told, ensure_ascii=False) + "\n")
            log.flush()
            if found == ALIVE:
                print(f"[{number}/{len(todo)}] line {mutant.line} ALIVE {mutant.key}", flush=True)
    return True


def logged() -> dict[str, dict[str, str]]:
    """What the last runs found, by mutant."""
    lines = LOG.read_text().splitlines() if LOG.exists() else []
    return {told["key"]: told for told in map(json.loads, lines)}


def _untried(
    found: Sequence[Mutant], known: Mapping[str, Mapping[str, str]], source: Mapping[str, str], tests: str
) -> list[Mutant]:
    """What was never tried, then what lived under other tests: that takes longest."""
    now = {mutant: known.get(mutant.key, {}) for mutant in found}
    new = [mutant for mutant, told in now.items() if told.get("source") != source[mutant.module]]
    lived = [m for m, told in now.items() if m not in set(new) and told["fate"] == ALIVE and told["tests"] != tests]
    return new + lived


def survivors() -> dict[str, str]:
    """Mutants that are known to live, and why."""
    found: dict[str, str] = json.loads(KNOWN.read_text())["survivors"] if KNOWN.exists() else {}
    return found


def write(court: Court) -> None:
    """The result, for the docs. Reasons are written by hand, and kept."""
    known, why = logged(), survivors()
    files: dict[str, dict[str, int]] = {}
    alive = {}
    for mutant in all_mutants():
        told = known.get(mutant.key, {}).get("fate", UNTRIED)
        row = files.setdefault(mutant.module, {"mutants": 0, KILLED: 0, HUNG: 0, ALIVE: 0, UNTRIED: 0})
        row["mutants"] += 1
        row[told] += 1
        if told == ALIVE:
            alive[mutant.key] = why.get(mutant.key, "")
    whole = {key: sum(row[key] for row in files.values()) for key in ("mutants", KILLED, HUNG, ALIVE, UNTRIED)}
    found = {"date": datetime.date.today().isoformat(), "tests": len(court.planned), "whole": whole, "files": files}
    KNOWN.write_text(json.dumps({**found, "survivors": alive}, indent=1, ensure_ascii=False) + "\n")
    for name, row in {**files, "all": whole}.items():
        print(f"{name:10}{row['mutants']:6} mutants, {share(row):5.1f}% of those tried killed, {row}")


def share(row: Mapping[str, int]) -> float:
    """Per cent killed, of those that were tried."""
    return 100 * (row[KILLED] + row[HUNG]) / max(1, row["mutants"] - row[UNTRIED])


def trial(court: Court, count: int) -> None:
    """The short form: a sample, and as JSON what became of each."""
    for mutant in sample(count):
        print(json.dumps({"key": mutant.key, "line": mutant.line, "fate": court.fate(mutant)}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="mutation testing of core/")
    parser.add_argument("--module", action="append", help="only this file of core/")
    parser.add_argument("--minutes", type=float, help="stop after so many; the next run goes on")
    parser.add_argument("--fresh", action="store_true", help="try everything again")
    parser.add_argument("--sample", type=int, help="only so many, and say which live that are not known to")
    chosen = parser.parse_args()

    def work(court: Court) -> None:
        if chosen.sample:
            trial(court, chosen.sample)
        else:
            campaign(court, chosen.module, chosen.minutes, chosen.fresh)
            write(court)

    held(work)


if __name__ == "__main__":
    main()
