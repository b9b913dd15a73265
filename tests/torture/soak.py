"""Thousands of questions from threads, event loops and anyio at once, some broken off, some with a member that fails.

    python -m tests.torture.soak --queries 10000 --minutes 120 --seed 0

Every answer that is not broken off must be the one that its question gets alone. After every lot of questions nothing
may be left of them: no thread, no open file, no row, no memo, nobody in a line; and memory stays where it was after the
first lot. Writes ``soak.json`` beside this file.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import gc
import itertools
import json
import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import anyio

from langchain_specfuse import SpecFuseChatModel, _registry
from langchain_specfuse.core.member import Probe
from langchain_specfuse.core.values import Draft, Failure
from langchain_specfuse.engine import desk
from langchain_specfuse.members.server import ServerMember
from tests.members import tiny

from . import afar

LOT = 500
CALLERS = {"thread": 8, "loop": 6, "second loop": 6, "anyio": 4}
CANCELLED, FAULTY = 0.3, 0.05
WORDS = ("why", "does", "the", "sea", "sing", "when", "nobody", "hears", "it", "and", "who", "counts", "its", "waves")
PATIENCE_S = 8.0
"""How long a hanging member is waited for; no other may ever take so long, also on a machine with much else to do."""
FAULTS = ("raises", "nan", "fails", "hangs", "late")
LONGEST = 300
"""Words of the longest question: a few pieces of a long text."""


class Faulty:
    """A member that does wrong in one way, at a desk of its own."""

    def __init__(self, how: str, patience_s: float) -> None:
        self.name, self.device, self.how, self.patience_s = how, f"soak-{how}", how, patience_s

    def probe(self) -> Probe:
        return Probe(self.name)

    def draft(self, jobs: Sequence[Any]) -> list[Any]:
        if self.how == "raises":
            raise RuntimeError("on purpose")
        if self.how in ("hangs", "late"):
            time.sleep(1.1 * self.patience_s)
        number = float("nan") if self.how == "nan" else -1.0
        failing = Failure("error", "on purpose")
        return [failing if self.how == "fails" else Draft("Well,", False, (1,), (number,)) for _ in jobs]

    def score(self, jobs: Sequence[Any]) -> list[Any]:
        return [Failure("error", "on purpose") for _ in jobs]

    def forget(self, query_id: str) -> None:
        pass


@dataclass(frozen=True)
class Item:
    """A question, to whom, and how."""

    llm: SpecFuseChatModel
    text: str
    options: dict[str, Any]

    @property
    def told_of(self) -> str:
        return "+".join(getattr(one, "name", "named") for one in self.llm.members)

    def invoked(self) -> str:
        return told(self.llm.invoke(self.text, **self.options))


def told(message: Any) -> str:
    text: str = message.text
    return text


@dataclass
class Pool:
    """What can be asked, and what it is answered alone."""

    fine: list[Item]
    faulty: list[Item]
    members: list[Any]
    alone: dict[int, str] = field(default_factory=dict)

    def answer_alone(self) -> None:
        for item in (*self.fine, *self.faulty):
            self.alone[id(item)] = item.invoked()


@contextlib.contextmanager
def pool(seed: int, items: int, patience_s: float = PATIENCE_S) -> Iterator[Pool]:
    """Chat models over tiny members: shared ones, ones that share a memory budget, one with a member on a server that
    is ill now and then, and ones with a faulty peer."""
    chance = random.Random(seed)
    members = [tiny.member("llama", 1), tiny.member("gemma3", 2), tiny.member("gpt2", 1)]
    plain: dict[str, Any] = {"trace": "off", "segment_tokens": 4, "exit": "never"}
    with tempfile.TemporaryDirectory() as folder, afar.running("vllm") as address:
        served = ServerMember(address, "tiny", tokenizer=tiny.made(afar.ARCH, afar.SEED)[1], name="afar")
        distant = SpecFuseChatModel(members=[members[0], served], **plain)
        budgeted = SpecFuseChatModel(members=_saved(folder), memory_budget=_tight(folder), **plain)
        shared = [SpecFuseChatModel(members=members, **plain), SpecFuseChatModel(members=members[:2], **plain)]
        hasty: dict[str, Any] = {
            "hangs": {"member_timeout": patience_s},
            "late": {"member_timeout": patience_s, "straggler": "leave_out"},
        }
        broken = [
            SpecFuseChatModel(members=[*members[:2], Faulty(how, patience_s)], **plain, **hasty.get(how, {}))
            for how in FAULTS
        ]
        made = Pool([], [], members)
        for k in range(items):
            llm = {7: budgeted, 3: distant}.get(k % 8, shared[k % 2])
            made.fine.append(Item(llm, _question(chance, k), _options(chance)))
        for k in range(max(items // 4, len(broken))):
            brief = {"max_tokens": 8} if FAULTS[k % len(broken)] == "late" else {}
            made.faulty.append(Item(broken[k % len(broken)], _question(chance, 1), _options(chance) | brief))
        yield made
        budgeted.unload()
        served.unload()


def _question(chance: random.Random, number: int) -> str:
    most = LONGEST if number % 5 == 0 else 40
    return " ".join(chance.choices(WORDS, k=chance.randint(1, most)))


def _options(chance: random.Random) -> dict[str, Any]:
    told: dict[str, Any] = {"max_tokens": chance.choice((4, 8, 12, 24)), "priority": chance.choice((0, 0, 0, 5))}
    if chance.random() < 0.3:
        told |= {"temperature": 0.8, "seed": chance.randrange(100)}
    if chance.random() < 0.3:
        told |= {"at_once": 16}
    return told


def _saved(folder: str) -> list[str]:
    paths = []
    for name, arch in (("one", "qwen3"), ("two", "mistral")):
        model, tokenizer = tiny.made(arch, 5)
        model.save_pretrained(path := f"{folder}/{name}")
        tokenizer.save_pretrained(path)
        paths.append(path)
    return paths


def _tight(folder: str) -> int:
    """Enough for the larger one's weights and some cache, not for both."""
    sizes = [sum(f.stat().st_size for f in Path(folder, one).glob("*.safetensors")) for one in ("one", "two")]
    return int(max(sizes) + 24e6)


# --- callers ----------------------------------------------------------------------------------------------------------


class Lot:
    """So many questions under way from callers of every kind, and what became of them."""

    def __init__(self, pool: Pool, numbers: Sequence[int], seed: int) -> None:
        self.pool, self.seed = pool, seed
        self._numbers = iter(numbers)
        self._lock = threading.Lock()
        self.seen: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.waits: list[float] = []

    def run(self) -> None:
        threads = [
            *(threading.Thread(target=self._thread, name=f"soak-thread-{k}") for k in range(CALLERS["thread"])),
            *(threading.Thread(target=asyncio.run, args=[self._loop(kind)]) for kind in ("loop", "second loop")),
            threading.Thread(target=anyio.run, args=[self._anyio]),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _next(self) -> tuple[int, Item, random.Random, bool] | None:
        with self._lock:
            number = next(self._numbers, None)
        if number is None:
            return None
        chance = random.Random(self.seed * 1_000_003 + number)
        faulty = chance.random() < FAULTY
        item = chance.choice(self.pool.faulty if faulty else self.pool.fine)
        self.count("faulty" if faulty else "fine")
        return number, item, chance, chance.random() < CANCELLED

    def count(self, what: str) -> None:
        with self._lock:
            self.seen[what] += 1

    def check(self, number: int, item: Item, answer: str, how: str) -> None:
        self.count(how)
        right = self.pool.alone[id(item)]
        if answer != right:
            self.wrong.append(f"{number} ({how}, {item.told_of}): {answer!r}, alone {right!r}")

    def _failed(self, number: int, error: BaseException, how: str) -> None:
        self.wrong.append(f"{number} ({how}): {type(error).__name__}: {error}")

    # --- threads

    def _thread(self) -> None:
        while drawn := self._next():
            number, item, chance, cancelled = drawn
            try:
                if cancelled:
                    self._broken_off(item, chance)
                elif chance.random() < 0.5:
                    self.check(number, item, item.invoked(), "invoke")
                else:
                    parts = [told(chunk) for chunk in item.llm.stream(item.text, **item.options)]
                    self.check(number, item, "".join(parts), "stream")
            except Exception as error:
                self._failed(number, error, "thread")

    def _broken_off(self, item: Item, chance: random.Random) -> None:
        stream = item.llm.stream(item.text, **item.options)
        for _ in itertools.islice(stream, chance.randrange(3)):
            pass
        if chance.random() < 0.5:
            stream.close()  # type: ignore[attr-defined]
        self.count("broken off")  # or forgotten, and closed by whoever collects it

    # --- event loops

    async def _loop(self, kind: str) -> None:
        await asyncio.gather(*(self._task() for _ in range(CALLERS[kind])))
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        if left:
            self.wrong.append(f"tasks left: {left}")

    async def _task(self) -> None:
        while drawn := self._next():
            number, item, chance, cancelled = drawn
            asked = asyncio.create_task(self._asked(number, item, chance))
            if cancelled:
                await asyncio.sleep(chance.uniform(0, 0.5))
                asked.cancel()
            try:
                await asked
            except asyncio.CancelledError:
                self.count("cancelled")
            except Exception as error:
                self._failed(number, error, "task")

    async def _asked(self, number: int, item: Item, chance: random.Random) -> None:
        way = chance.randrange(3)
        if way == 0:
            answer = told(await item.llm.ainvoke(item.text, **item.options))
        elif way == 1:
            answer = "".join([told(chunk) async for chunk in item.llm.astream(item.text, **item.options)])
        else:
            first, second = await item.llm.abatch([item.text, item.text], **item.options)
            answer = told(first)
            self.check(number, item, told(second), "abatch")
        self.check(number, item, answer, ("ainvoke", "astream", "abatch")[way])

    async def _anyio(self) -> None:
        async with anyio.create_task_group() as group:
            for _ in range(CALLERS["anyio"]):
                group.start_soon(self._member_of_group)

    async def _member_of_group(self) -> None:
        while drawn := self._next():
            number, item, chance, cancelled = drawn
            try:
                with anyio.move_on_after(chance.uniform(0, 0.5) if cancelled else None) as scope:
                    self.check(number, item, told(await item.llm.ainvoke(item.text, **item.options)), "anyio")
                if scope.cancelled_caught:
                    self.count("cancelled")
            except Exception as error:
                self._failed(number, error, "anyio")


# --- what is left -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Traces:
    """What there is in this process when nobody asks anything."""

    rss: int
    used: int
    """What is in use of the memory that the C library gave out: without what it keeps of what was given back."""
    objects: int
    threads: int
    files: int
    sockets: int

    @classmethod
    def now(cls, pool: Pool) -> Traces:
        for member in served_in(pool):
            member.unload()  # connections are kept for the next question, else
        until(lambda: not [t for t in threading.enumerate() if t.name.startswith(("specfuse", "soak", "Timer"))])
        gc.collect()
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL("libc.so.6").malloc_trim(0)
        links = [_link(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
        sockets = sum("socket" in link for link in links)
        return cls(_rss(), _used(), len(gc.get_objects()), threading.active_count(), len(links), sockets)


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _rss() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class _Mallinfo(ctypes.Structure):
    _fields_: ClassVar[Any] = [
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()  # noqa: SIM905
    ]


def _used() -> int:
    libc = ctypes.CDLL("libc.so.6")
    libc.mallinfo2.restype = _Mallinfo
    told = libc.mallinfo2()
    return int(told.uordblks + told.hblkhd)


def until(true: Callable[[], object], timeout_s: float = 20.0) -> bool:
    end = time.monotonic() + timeout_s
    while not true() and time.monotonic() < end:
        time.sleep(0.01)
    return bool(true())


def left_behind(pool: Pool) -> list[str]:
    """What is still kept of questions that are over."""
    ensembles = [ensemble_of(item.llm) for item in (*pool.fine, *pool.faulty)]
    members = {id(member): member for one in ensembles for member in one.members.values()}
    hosted = [member for member in members.values() if getattr(member, "_ready", None)]
    until(lambda: not any(kept_by(member) for member in hosted))
    found = [f"{member.name}: {kept_by(member)}" for member in hosted if kept_by(member)]
    lines = [one.line for one in ensembles if one.line.under_way or one.line.waiting]
    found += [f"in a line: {one.under_way} and {one.waiting}" for one in lines]
    for device, one in desk._DESKS.items():
        until(lambda: not (one._waiting or one._hung))  # noqa: B023
        if one._waiting or one._hung:
            found.append(f"at desk {device}: {len(one._inbox)}, {len(one._aside)}, {len(one._hung)}")
    return found


def served_in(pool: Pool) -> list[ServerMember]:
    found = {id(one): one for item in pool.fine for one in ensemble_of(item.llm).members.values()}
    return [one for one in found.values() if isinstance(one, ServerMember)]


def ensemble_of(llm: SpecFuseChatModel) -> Any:
    return _registry.ensemble_for(llm.members, llm.verifiers, llm.memory_budget, llm.cluster)


def kept_by(member: Any) -> list[str]:
    if isinstance(member, ServerMember):
        return [*getattr(member._speech, "_prompts", ())]
    return [*member._memos, *getattr(member.store, "rows", ())]


def soak(
    queries: int,
    seed: int,
    *,
    items: int = 48,
    lot: int = LOT,
    minutes: float | None = None,
    patience_s: float = PATIENCE_S,
    tell: Any = None,
) -> dict[str, Any]:
    """Ask so many questions, lot by lot, and say what became of them and what is left."""
    began = time.monotonic()
    end = began + 60 * minutes if minutes else None
    seen: Counter[str] = Counter()
    wrong: list[str] = []
    marks: list[Traces] = []
    with pool(seed, items, patience_s) as asked:
        asked.answer_alone()
        numbers = iter(range(queries))
        while mine := list(itertools.islice(numbers, lot)):
            one = Lot(asked, mine, seed)
            one.run()
            seen += one.seen
            wrong += one.wrong + left_behind(asked)
            marks.append(Traces.now(asked))
            if tell:
                tell(f"{mine[-1] + 1} asked, {len(wrong)} wrong, {marks[-1]}")
            if end and time.monotonic() > end:
                break
    first, last = marks[0], marks[-1]
    return {
        "queries": mine[-1] + 1 if mine else queries,
        "seed": seed,
        "seconds": round(time.monotonic() - began, 1),
        "seen": dict(sorted(seen.items())),
        "wrong": wrong[:20],
        "wrong_count": len(wrong),
        "memory": {
            "after_first_lot_mb": round(first.rss / 1e6, 1),
            "last_mb": round(last.rss / 1e6, 1),
            "ratio": round(last.rss / first.rss, 4),
            "used_ratio": round(last.used / first.used, 4),
            "objects_ratio": round(last.objects / first.objects, 4),
        },
        "left": {
            "threads": last.threads - first.threads,
            "files": last.files - first.files,
            "sockets": last.sockets - first.sockets,
        },
        "lots": [vars(mark) for mark in marks],
    }


def main() -> int:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--queries", type=int, default=10_000)
    made.add_argument("--minutes", type=float, default=120.0)
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--out", default=str(Path(__file__).with_suffix(".json")))
    given = made.parse_args()
    report = soak(given.queries, given.seed, minutes=given.minutes, tell=lambda line: print(line, flush=True))
    Path(given.out).write_text(json.dumps(report, indent=1) + "\n")
    print({key: value for key, value in report.items() if key != "lots"})
    fine = (
        not report["wrong_count"]
        and abs(report["memory"]["used_ratio"] - 1) <= 0.05
        and not any(report["left"].values())
    )
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
