"""The members in this process and the stack that they replace, side by side: long random lives with
the same jobs, and every reply, every count and everything that is held equal to the bit."""

from __future__ import annotations

import os
import random
import re
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from langchain_specfuse.core.values import (
    Candidate,
    Draft,
    DraftJob,
    Failure,
    PrefillPending,
    Sampling,
    Scored,
    ScoreJob,
    Segment,
)
from langchain_specfuse.demo import SMOLLM2, file_of
from langchain_specfuse.members.llamacpp import cache as new_llamacpp
from langchain_specfuse.members.llamacpp.member import LlamaCppMember
from langchain_specfuse.members.local import strands as new_prefixes
from langchain_specfuse.members.transformers.member import TransformersMember

from . import tiny
from .llamacpp.test_llamacpp import adapter as gguf_adapter
from .llamacpp.test_llamacpp import mamba
from .local.test_masking import AUTO, BOUND
from .local.test_thinking import KNOWS, OPENS
from .lora import adapter, saved
from .old_local.llamacpp import cache as old_llamacpp
from .old_local.llamacpp.member import LlamaCppMember as OldLlamaCppMember
from .old_local.local import prefixes as old_prefixes
from .old_local.transformers.member import TransformersMember as OldTransformersMember

STORY = "The sky is blue because the air scatters blue light more than red light. "
WORDS = STORY.split(" ")
FOREIGN = [" the air", " blue because", " 天", "", " is red, and so", '{"name": "x', " Paris"]
STEPS = int(os.environ.get("STEPS", "6"))
SEEDS = int(os.environ.get("SEEDS", "1"))
COMPARED: Counter[str] = Counter()
"""Kinds of replies, and how many of them were compared."""


@pytest.fixture(autouse=True)
def same_world(monkeypatch):
    """Both sides see the same free memory and one thread, and keep short prefixes."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    free = SimpleNamespace(available=10**9, total=10**10)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    for module in (old_prefixes, new_prefixes):
        monkeypatch.setattr(module, "SHORTEST", 3)


# --- what is compared -----------------------------------------------------------------------------


def shown(reply: Any) -> str:
    """All of a reply except how long it took."""
    effort = reply.effort
    cost = (effort.read, effort.reused, effort.prompt)
    if isinstance(reply, Draft):
        return repr(
            (
                "draft",
                reply.text,
                reply.ended,
                reply.tokens,
                reply.logprobs,
                reply.ends,
                reply.thought,
                cost,
            )
        )
    if isinstance(reply, Scored):
        return repr(("scored", reply.logprobs, reply.ends, cost))
    if isinstance(reply, PrefillPending):
        return repr(("pending", reply.left, cost))
    assert isinstance(reply, Failure)
    message = re.sub(r"member='\d+'", "", reply.message)  # ids count the loads of each side
    return repr(("failure", reply.kind, message, cost))


def held_by_old(member: Any) -> Any:
    if member.loaded is None:
        return None
    store = member.loaded.store
    return (
        [(key.query_id, strand.ids) for key, strand in store.trunks.items()],
        [(key.query_id, [one.ids for one in some]) for key, some in store.branches.items()],
        [(prefix.ids, prefix.bytes, sorted(prefix.ends)) for prefix in store.prefixes.kept],
        store.bytes_held,
        store.tokens_read,
        (store.budget, store.prefixes.limit, store.kind, store.cuts),
        sorted(member.loaded.states),
        member.prefixes,
    )


def held_by_new(member: Any) -> Any:
    cache = member.cache
    if cache is None:
        return None
    return (
        [(key.query_id, strand.ids) for key, strand in cache.trunks.items()],
        [(key.query_id, [one.ids for one in some]) for key, some in cache.branches.items()],
        [(strand.ids, strand.bytes, sorted(strand.ends)) for strand in cache.prefixes.kept],
        cache.bytes_held,
        cache.tokens_read,
        (cache.budget, cache.prefixes.limit, cache.kind, cache.cuts),
        sorted(member.states),
        member.prefixes,
    )


def cache_of_old(member: Any) -> Any:
    return member.loaded.store


def cache_of_new(member: Any) -> Any:
    return member.cache


class Pair:
    """A member of the old stack and the same of the new one."""

    def __init__(self, old: Any, new: Any) -> None:
        self.old, self.new, self.name = old, new, old.name

    def both(self, work: str, *arguments: Any) -> None:
        for one in (self.old, self.new):
            getattr(one, work)(*arguments)

    def probe(self) -> None:
        assert self.old.probe() == self.new.probe()
        assert self.old.stops == self.new.stops and repr(self.old) == repr(self.new)

    def set_budget(self, *sizes: int) -> None:
        cache_of_old(self.old).set_budget(*sizes)
        cache_of_old(self.old).sweep()  # the new one frees dropped prefixes at once
        cache_of_new(self.new).set_budget(*sizes)

    def compare(self) -> None:
        assert held_by_old(self.old) == held_by_new(self.new)


# --- faults ---------------------------------------------------------------------------------------


class Fault:
    """What goes wrong in the n-th pass from now, on one side."""

    def __init__(self) -> None:
        self.left, self.kind, self.times = 0, "", 0
        self.leaving: Any = None

    def arm(self, left: int, kind: str, times: int) -> None:
        self.left, self.kind, self.times = left, kind, times

    def strikes(self) -> str:
        self.left -= 1
        if self.left <= 0 < self.times:
            self.times -= 1
            if self.kind == "unload":
                self.leaving.unload()
            return self.kind
        return ""

    def before(self, *_: Any) -> None:
        self.now = self.strikes()
        if self.now == "memory":
            raise torch.OutOfMemoryError("CUDA out of memory")
        if self.now == "lost":
            raise RuntimeError("the device is gone")

    def after(self, _module: Any, _arguments: Any, output: Any) -> Any:
        if self.now == "nan":
            output.logits = output.logits * float("nan")
        return output

    def hook(self, model: Any) -> None:
        if getattr(model, "hooked", None) is not self:
            model.hooked = self
            model.register_forward_pre_hook(self.before)
            model.register_forward_hook(self.after)

    def around(self, honest: Any) -> Any:
        def passes(store: Any, *arguments: Any) -> Any:
            now = self.strikes()
            if now == "memory":
                raise MemoryError("no room")
            if now == "lost":
                raise RuntimeError("the device is gone")
            rows = honest(store, *arguments)
            return [row * np.float32("nan") for row in rows] if now == "nan" else rows

        return passes


# --- a life ---------------------------------------------------------------------------------------


class Life:
    def __init__(
        self, seed: Any, pairs: list[Pair], faults: tuple[Fault, Fault], hook: Any, **how: Any
    ) -> None:
        self.chance = random.Random(seed)
        self.pairs, self.faults, self.hook = pairs, faults, hook
        self.budgets = how.get("budgets", ())
        self.long = how.get("long", 1)
        self.failures = how.get("failures", 0.15)
        self.known: list[list[str]] = [WORDS]
        self.open: dict[str, tuple[Any, Any, Sampling]] = {}
        self.ended: list[Any] = []

    def run(self, steps: int) -> None:
        for _ in range(steps):
            for pair in self.pairs:
                pair.probe()
            self.hook()
            self.begin()
            self.ask("draft")
            self.ask("score")
            self.end()
            for pair in self.pairs:
                pair.compare()
        for pair in self.pairs:
            pair.both("unload")
            pair.compare()

    def begin(self) -> None:
        chance = self.chance
        for _ in range(chance.randint(0, 2)):
            base = chance.choice(self.known)
            new = chance.choices(WORDS, k=chance.randint(1, 12))
            self.known.append([*base[: chance.randint(0, len(base))], *new])
            text = " ".join(self.known[-1])
            if chance.random() < 0.2:
                text = STORY * chance.randint(1, 8 * self.long) + text
            bound = chance.choice([None] * 5 + [*BOUND.values(), AUTO])
            query = tiny.query(text, constraint=bound)
            if self.ended and chance.random() < 0.4:
                query = tiny.query(text, *chance.choice(self.ended).turns, constraint=bound)
            how = Sampling(
                chance.choice([0.0, 0.0, 0.9]),
                chance.choice([None, 0.9]),
                chance.choice([None, 20]),
                None,
                chance.choice([None, None, 1.3]),
                chance.randint(0, 9),
            )
            self.open[query.id] = (query, (), how)

    def ask(self, work: str) -> None:
        chance = self.chance
        pairs = [
            (pair, *self.open[key])
            for pair in self.pairs
            for key in self.open
            if chance.random() < (0.5 if work == "draft" else 0.35)
        ]
        chance.shuffle(pairs)
        jobs = [
            (pair, self.draft_job(*more) if work == "draft" else self.score_job(*more[:2]))
            for pair, *more in pairs[: 14 if work == "draft" else 9]
        ]
        for _ in range(4):
            if not jobs:
                return
            jobs = self.replied(work, jobs)

    def draft_job(self, query: Any, answer: Any, how: Sampling) -> DraftJob:
        chance = self.chance
        return DraftJob(
            query,
            answer,
            chance.choice([1, 3, 6, 12][: 4 if self.long < 9 else 2]),
            chance.choice([2, 40, 400]),
            how,
            chance.choice([(), (), ("air",)]),
            chance.choice([8, 64]),
            chance.choice([None, None, 0, 1, 2]),
        )

    def score_job(self, query: Any, answer: Any) -> ScoreJob:
        chance = self.chance
        count = chance.randint(1, 4) if chance.random() < 0.9 else 40
        texts = chance.choices(FOREIGN, k=count)
        candidates = tuple(
            Candidate(f"{text}{at}" if at > 4 else text, chance.random() < 0.3, ("x",))
            for at, text in enumerate(texts)
        )
        return ScoreJob(
            query, answer, candidates, chance.random() < 0.7, chance.choice([None, None, 0, 2])
        )

    def replied(self, work: str, jobs: Any) -> Any:
        """Compare the replies to one batch; the jobs that are to be asked again."""
        chance = self.chance
        if chance.random() < self.failures:
            kind = chance.choice(["memory", "lost", "nan", "unload"])
            plan = (chance.randint(1, 12), kind, chance.choice([1, 1, 99]))
            leaving = chance.choice(self.pairs)
            self.faults[0].leaving, self.faults[1].leaving = leaving.old, leaving.new
        else:
            plan = (0, "", 0)
        for fault in self.faults:
            fault.arm(*plan)
        first = jobs[0][0]
        if chance.random() < 0.8:
            old = getattr(first.old.batch_group, work)([(pair.old, job) for pair, job in jobs])
            new = getattr(first.new.batch_group, work)([(pair.new, job) for pair, job in jobs])
        else:
            jobs = [(pair, job) for pair, job in jobs if pair is first]
            old = getattr(first.old, work)([job for _, job in jobs])
            new = getattr(first.new, work)([job for _, job in jobs])
        for fault in self.faults:
            fault.arm(0, "", 0)
        again = []
        for (pair, job), one, two in zip(jobs, old, new, strict=True):
            COMPARED[type(one).__name__ + f" {getattr(one, 'kind', '')}"] += 1
            assert shown(one) == shown(two)
            if isinstance(one, PrefillPending):
                again.append((pair, job))
            if isinstance(one, Draft):
                self.grow(pair.name, job, one)
        return again

    def grow(self, name: str, job: DraftJob, draft: Draft) -> None:
        query, answer, how = self.open[job.query.id]
        if answer is not job.answer or draft.ended:
            return
        own = Segment(draft.text, tokens={name: draft.tokens})
        new = own
        if query.constraint is None:
            new = self.chance.choice([own, own, Segment(" and so on"), Segment(" blue")])
        self.open[query.id] = (query, (*answer, new), how)

    def end(self) -> None:
        chance = self.chance
        for key in [key for key in self.open if chance.random() < 0.25]:
            query, answer, _ = self.open.pop(key)
            said = tiny.Turn("assistant", "".join(segment.text for segment in answer))
            self.ended.append(SimpleNamespace(turns=(*query.turns, said)))
            for pair in self.pairs:
                pair.both("forget", key)
        if chance.random() < 0.1:
            chance.choice(self.pairs).both("unload")
        for pair in self.pairs:
            pair.compare()
        if chance.random() < 0.1:
            chance.choice(self.pairs).both("drop_prefixes")
        if self.budgets and chance.random() < 0.3:
            pair = chance.choice(self.pairs)
            pair.probe()
            pair.set_budget(*chance.choice(self.budgets))


# --- transformers ---------------------------------------------------------------------------------

SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "system": {"system_prompt": "Be brief.", "prefix_cache": True},
    "thinks": {"chat_template": OPENS, "thinking_tokens": 12},
    "knows": {"chat_template": KNOWS, "thinking_tokens": 9},
    "base": {"chat_template": "plain"},
    "keeps nothing": {"prefix_cache": False},
    "keeps little": {"prefix_cache": 150_000},
}
BUDGETS = [(1, 0), (200_000, 60_000), (2_000_000, 600_000), (300_000_000, 100_000_000)]


@pytest.mark.parametrize("arch", [*tiny.THREE, pytest.param("mamba", marks=pytest.mark.long)])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_transformers(arch, seed, tmp_path):
    base = saved(arch, tmp_path / "base")
    settings = dict(SETTINGS)
    adapters: dict[str, Any] = {}
    if arch != "mamba":
        first, _ = adapter(arch, tmp_path / "first", 1)
        other, _ = adapter(arch, tmp_path / "other", 2, r=2, lora_alpha=5)
        adapters = {"first": first, "other": other, "twin": first}
    settings |= {name: {"adapter": path} for name, path in adapters.items()}
    chance = random.Random(f"{arch} {seed}")
    chosen = chance.sample(sorted(settings), 4)
    pairs = [
        Pair(
            OldTransformersMember(base, name=name, dtype="float32", device="cpu", **settings[name]),
            TransformersMember(base, name=name, dtype="float32", device="cpu", **settings[name]),
        )
        for name in chosen
    ]
    faults = Fault(), Fault()

    def hook() -> None:
        for pair in pairs:
            faults[0].hook(cache_of_old(pair.old).forward.model)
            faults[1].hook(cache_of_new(pair.new).forward.model)

    Life(f"{arch} {seed}", pairs, faults, hook, budgets=BUDGETS).run(2 * STEPS)


# --- llama.cpp ------------------------------------------------------------------------------------

OLD_STORE = old_llamacpp.SequenceStore
NEW_STORE = new_llamacpp.LlamaCppCache
POOLS = [(60_000, 20_000), (4_000_000, 1_000_000), (300_000_000, 100_000_000)]


def llamacpp_life(file, seed, monkeypatch, steps, more=(), **how):
    faults = Fault(), Fault()
    for fault, store in zip(faults, (OLD_STORE, NEW_STORE), strict=True):
        monkeypatch.setattr(store, "_pass", fault.around(store._pass))
    settings = {name: SETTINGS[name] for name in SETTINGS if name not in ("keeps little",)} | dict(
        more
    )
    chance = random.Random(f"{file} {seed}")
    pairs = [
        Pair(
            OldLlamaCppMember(file, name=name, n_gpu_layers=0, **settings[name]),
            LlamaCppMember(file, name=name, n_gpu_layers=0, **settings[name]),
        )
        for name in [*chance.sample(sorted(settings), 3), *dict(more)]
    ]
    Life(seed, pairs, faults, lambda: None, **how).run(steps)


@pytest.mark.real
@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("cells", [512, 160])
def test_llamacpp(seed, cells, tiny_llama, tmp_path, monkeypatch):
    for module in (old_llamacpp, new_llamacpp):
        monkeypatch.setattr(module, "CELLS", cells)
    llamacpp_life(tiny_llama, seed, monkeypatch, STEPS, budgets=POOLS)


@pytest.mark.real
@pytest.mark.parametrize("seed", range(2))
def test_llamacpp_states(seed, tmp_path, monkeypatch):
    llamacpp_life(mamba(tmp_path / "mamba.gguf"), seed, monkeypatch, STEPS, budgets=POOLS)


@pytest.mark.real
@pytest.mark.parametrize("seed", range(2))
def test_llamacpp_smollm2(seed, tmp_path, monkeypatch):
    more = {"adapter": {"adapter": gguf_adapter(tmp_path / "strong.gguf", 2.0)}}
    monkeypatch.setattr(f"{__name__}.BOUND", {"choice": BOUND["choice"]})
    llamacpp_life(str(file_of(SMOLLM2)), seed, monkeypatch, STEPS // 2 + 1, more.items(), long=2)


def test_that_many_were_compared():
    print(dict(COMPARED))
    assert sum(COMPARED.values()) > 0
