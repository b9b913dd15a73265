"""Faults inside a member in this process: out of memory, NaN, a tokenizer that raises, a lost
device.

The model's own forward pass raises them, from its n-th pass on.
"""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from langchain_specfuse import EnsembleError, Method, SpecFuseCallbackHandler, SpecFuseChatModel
from langchain_specfuse.core.replies import checked_reply
from langchain_specfuse.core.values import Candidate, DraftJob, Failure, Sampling, ScoreJob
from langchain_specfuse.evaluation.running import on_worker
from langchain_specfuse.members.transformers.member import TransformersMember
from tests.members import tiny
from tests.members.tiny import NEAR

ROOT = Path(__file__).parents[2]
CANDIDATES = (
    Candidate(" Because of the air.", True, ("x",)),
    Candidate(" It is not", False, ("y",)),
)
QUESTIONS = ["Why is the sky blue?", "What is 6 times 7?", "Hello"]
SHORT_OF_MEMORY: dict[str, Callable[[], BaseException]] = {
    "a GPU": lambda: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    "the CPU": lambda: RuntimeError(
        "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: "
        "you tried to allocate 68719476736 bytes. Error code 12 (Cannot allocate memory)"
    ),
    "Python": MemoryError,
    "a driver": lambda: RuntimeError("CUDA error: out of memory"),
}
LOST = lambda: RuntimeError("CUDA error: device-side assert triggered")
HELD = torch.zeros(4000)
"""The memory that an interrupted pass holds."""


class Broken:
    """Raises an error in a model's passes, from the n-th on, this many times."""

    def __init__(
        self,
        member: TransformersMember,
        error: Callable[[], BaseException],
        first: int = 1,
        times: int = 1,
    ):
        self.error, self.first, self.times, self.passes = error, first, times, 0
        member.cache.weights.model.register_forward_pre_hook(self._strike)

    def _strike(self, *_: Any) -> None:
        self.passes += 1
        if self.first <= self.passes < self.first + self.times:
            activations = HELD.clone()
            raise self.error()
            del activations


def fresh(arch: str = "llama", seed: int = 1) -> TransformersMember:
    """Return a member with a model of its own, so that a fault affects no other test."""
    member = TransformersMember(*tiny.build(arch, seed), name=f"{arch}-{seed}")
    member.probe()
    return member


def jobs() -> list[DraftJob]:
    return [DraftJob(tiny.query(text), (), 4, 9, Sampling()) for text in QUESTIONS]


def same(asked: Any, replies: Any, apart: Any, work: str = "draft") -> bool:
    pairs = zip(asked, replies, strict=True)
    return all(
        tiny.difference(reply, getattr(apart, work)([job])[0]) < NEAR for job, reply in pairs
    )


# --- out of memory --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "first"),
    [*((where, 3) for where in SHORT_OF_MEMORY), *(("the CPU", first) for first in (1, 2, 6))],
)
def test_running_out_of_memory_once_changes_no_reply(where, first):
    member, asked = fresh(), jobs()
    Broken(member, SHORT_OF_MEMORY[where], first)
    assert same(asked, member.draft(asked), tiny.member("llama", 1))
    scores = [ScoreJob(job.query, (), CANDIDATES) for job in asked]
    Broken(member, SHORT_OF_MEMORY[where], 2)
    assert same(scores, member.score(scores), tiny.member("llama", 1), "score")


def tensors() -> int:
    """Return the bytes of all live tensors."""
    gc.collect()
    alive = [
        tensor for tensor in gc.get_objects() if type(tensor) in (torch.Tensor, torch.nn.Parameter)
    ]
    return sum(
        {
            tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
            for tensor in alive
        }.values()
    )


@pytest.mark.parametrize("where", ["a GPU", "the CPU"])
def test_permanent_lack_of_memory_is_a_failure_that_leaks_nothing(where):
    member, asked = fresh(), jobs()
    member.draft(asked)
    for job in asked:
        member.forget(job.query.id)
    member.drop_prefixes()
    before = tensors()
    Broken(member, SHORT_OF_MEMORY[where], 3, 10**9)
    replies = member.draft(asked)
    assert [(reply.kind, "out of memory" in reply.message) for reply in replies] == [
        ("error", True)
    ] * 3
    assert member.cache.bytes_held == 0
    # The failures, with what was raised, are still here; what the passes held is not (a few of
    # their inputs are).
    assert tensors() < before + HELD.nbytes


def asked_of(*members: TransformersMember) -> tuple[str, dict[str, str], str]:
    """Return the streamed text, who left and why, and the text in the final error, if any."""
    departed: dict[str, str] = {}
    streamed, text = "", ""
    handler = SpecFuseCallbackHandler(
        on_exit=lambda event: departed.update({event.member: event.reason})
    )
    llm = SpecFuseChatModel(
        members=list(members), max_tokens=12, method=Method(exit="never", segment_tokens=3)
    )
    try:
        for chunk in llm.stream(QUESTIONS[0], {"callbacks": [handler]}):
            streamed += chunk.text
    except EnsembleError as error:
        text = error.text if error.failures else "no failures"
    return streamed, departed, text


# --- NaN ------------------------------------------------------------------------------------------


class Poisoned:
    """A layer that returns ``bad`` for one text of its first pass."""

    def __init__(self, member: TransformersMember, bad: float):
        self.on, self.bad = True, bad
        member.cache.weights.model.model.layers[0].self_attn.v_proj.register_forward_hook(
            self._strike
        )

    def _strike(self, _: Any, __: Any, values: torch.Tensor) -> torch.Tensor:
        if self.on:
            values[0] = self.bad
        self.on = False
        return values


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_nan_in_one_text_is_a_failure_of_that_query_alone(bad):
    member, asked = (
        fresh(),
        [DraftJob(tiny.query(f"Why {k}?"), (), 4, 9, Sampling()) for k in range(3)],
    )
    Poisoned(member, bad)
    pairs = [
        (job, checked_reply(job, reply))
        for job, reply in zip(asked, member.draft(asked), strict=True)
    ]
    failures = [reply for _, reply in pairs if isinstance(reply, Failure)]
    assert [failure.kind for failure in failures] == ["nan"]
    others = [(job, reply) for job, reply in pairs if reply not in failures]
    assert len(others) == 2 and same(*zip(*others, strict=True), tiny.member("llama", 1))


# --- a tokenizer that raises, a device that disappears --------------------------------------------


def test_a_member_whose_device_disappears_leaves_and_can_be_unloaded(monkeypatch):
    well, lost = fresh("mistral", 5), fresh("llama", 11)
    Broken(lost, LOST, 9, 10**9)

    def fails(*_: Any) -> None:
        raise LOST()

    monkeypatch.setattr(lost.cache, "copy", fails)  # and nothing can be copied there
    streamed, left, _ = asked_of(well, lost)
    assert streamed and "device-side assert" in left["llama-11"]
    on_worker(lost, lost.unload).result()
    assert lost.cache is None


GOODBYE = """
from langchain_specfuse import SpecFuseChatModel
from tests.members.test_faults import LOST, Broken, fresh
one, lost = fresh("mistral", 5), fresh("llama", 11)
Broken(lost, LOST, 9, 10**9)
llm = SpecFuseChatModel(members=[one, lost], method={"segment_tokens": 3}, max_tokens=12)
print(next(llm.stream("Why is the sky blue?")).text)
"""


@pytest.mark.long
def test_the_interpreter_exits_cleanly_after_a_device_disappears_in_mid_answer():
    done = subprocess.run(
        [sys.executable, "-c", GOODBYE], capture_output=True, text=True, timeout=240, cwd=ROOT
    )
    assert done.returncode == 0 and done.stdout.strip() and "Traceback" not in done.stderr, (
        done.stderr
    )
