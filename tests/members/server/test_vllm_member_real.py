"""Members that start a real vLLM: one line, a crash in the middle, adapters. Each server takes half
a minute to start."""

from __future__ import annotations

import functools
import operator
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM

from langchain_specfuse import (
    Method,
    SpecFuseChatModel,
    TransformersMember,
    VllmMember,
    unload,
)
from langchain_specfuse.core.values import Candidate, Scored, ScoreJob, Segment
from langchain_specfuse.demo import GEMMA
from langchain_specfuse.members.server.client import Client

from .. import engines, tiny
from .test_process import are_gone, is_running, until

pytestmark = [pytest.mark.serving, pytest.mark.slow]
QUESTION = "Name three colours of the rainbow."
ALL: dict[str, Any] = {"lead": None, "method": Method(exit="never", segment_tokens=6)}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if engines.FOUND["vllm"]() is None:
        pytest.skip(engines.MISSING["vllm"])
    for name in ("HF_HUB_OFFLINE", "VLLM_NO_USAGE_STATS", "DO_NOT_TRACK"):
        monkeypatch.setenv(name, "1")
    yield
    unload()


STARTS_S = 300.0
"""A vLLM server may take this long to start on a busy machine."""


def servers(program: psutil.Process) -> list[psutil.Process]:
    """The processes of the servers that members of this program have started. Other tests' engines
    are none of them."""
    return [
        process
        for server in program.children()
        if "--disable-uvicorn-access-log" in command_of(server)
        for process in (server, *server.children(recursive=True))
        if is_running(process.pid)
    ]


def command_of(process: psutil.Process) -> list[str]:
    """The command of a process; empty if it has ended."""
    try:
        return list(process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return []


def test_two_members_in_one_line_answer_and_one_that_is_killed_comes_back() -> None:
    models = [f"vllm:{engines.folder()}", f"vllm:{engines.folder(GEMMA)}"]
    llm = SpecFuseChatModel(members=models, max_tokens=24, **ALL)
    answer = llm.invoke(QUESTION)
    assert answer.text and answer.response_metadata["specfuse"]["exits"] == []
    running = servers(psutil.Process())
    name = "SmolLM2-135M-float32"
    victim = next(process for process in running if name in " ".join(command_of(process)))
    pieces: list[Any] = []
    for chunk in llm.stream(QUESTION):
        pieces.append(chunk)
        if len(pieces) == 1:
            os.kill(victim.pid, signal.SIGKILL)
    whole = functools.reduce(operator.add, pieces)
    assert whole.text
    # A job under way fails with the server. One that begins later waits until it has started again.
    exits = [exit["member"] for exit in whole.response_metadata["specfuse"]["exits"]]
    assert exits in ([name], [])
    # Later answers do not wait.
    meanwhile = llm.invoke(QUESTION)
    assert meanwhile.text and meanwhile.response_metadata["specfuse"]["exits"] == []
    end = time.monotonic() + STARTS_S
    about: dict[str, Any] = {"weights": {}}
    while name not in about["weights"]:
        assert time.monotonic() < end
        time.sleep(4)
        about = llm.invoke(QUESTION).response_metadata["specfuse"]
    # Its text may differ: vLLM's rounding depends on what its caches hold.
    assert about["exits"] == []
    running += servers(psutil.Process())
    unload()
    until(lambda: are_gone([process.pid for process in running]))


# --- scores from the prefix cache -----------------------------------------------------------------


@pytest.fixture(scope="module")
def scoring() -> Iterator[VllmMember]:
    if engines.FOUND["vllm"]() is None:
        pytest.skip(engines.MISSING["vllm"])
    member = VllmMember(engines.folder(), engine_args={"dtype": "float32"})
    yield member
    unload(member)


LONG = " ".join(f"{number} is a number," for number in range(60))


def test_scores_from_the_prefix_cache_are_those_of_the_same_weights_in_this_process(
    scoring: VllmMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A context may fill whole blocks of the cache, and a draft may have been read before."""
    assert "scores by cache" in scoring.probe().detail
    here = TransformersMember(engines.folder(), dtype="float32")
    requests: list[str] = []
    post = Client.post
    monkeypatch.setattr(
        Client, "post", lambda self, path, *more: requests.append(path) or post(self, path, *more)
    )
    candidates = (
        Candidate(" scatters blue light more than red.", True, ("x",)),
        Candidate(" is made of blue paint", False, ("x",)),
        Candidate("", True, ("x",)),
    )
    words = LONG.split(" ")
    for size in range(14, 32):
        answer = (Segment(" ".join(words[:size])),)
        job = ScoreJob(tiny.query(id=f"q{size}"), answer, candidates)
        expected = tiny.reply_of(here, job)
        assert isinstance(expected, Scored)
        for _ in range(2):
            there = tiny.reply_of(scoring, job)
            assert isinstance(there, Scored)
            for row, other in zip(there.logprobs, expected.logprobs, strict=True):
                assert row == pytest.approx(other, abs=0.01)
    scores = [path for path in requests if "tokenize" not in path]
    assert scores == ["/v1/specfuse/score"] * 36


def test_only_who_has_the_servers_key_gets_scores(scoring: VllmMember) -> None:
    scoring.probe()
    url = f"{scoring.address.root}/v1/specfuse/score"
    assert {httpx2.get(url).status_code, httpx2.post(url, json={}).status_code} == {401}


def test_the_server_stops_scoring_when_the_caller_goes(scoring: VllmMember) -> None:
    scoring.probe()
    root, headers = scoring.address.root, {"Authorization": f"Bearer {scoring.address.key}"}
    ids = scoring.token_ids(LONG)
    drafts = [{"ids": ids[at:] + ids[:at], "ended": False} for at in range(150)]
    body = {"model": scoring.model, "context": ids, "drafts": drafts, "stops": []}

    def under_way() -> float:
        lines = httpx2.get(f"{root}/metrics").text.splitlines()
        counts = [line for line in lines if line.startswith("vllm:num_requests_")]
        return sum(float(line.split()[-1]) for line in counts if "_by_" not in line)

    with pytest.raises(httpx2.ReadTimeout):
        httpx2.post(f"{root}/v1/specfuse/score", json=body, headers=headers, timeout=2.0)
    gone = time.monotonic()
    until(lambda: under_way() == 0)
    assert time.monotonic() - gone < 5  # half a minute otherwise


PROGRAM = """
import pickle, sys
from langchain_specfuse import VllmMember

folder, adapters, job = pickle.load(sys.stdin.buffer)
members = [VllmMember(folder, adapter=path, engine_args={"dtype": "float32"}) for path in adapters]
for member in members:
    member.start_loading()  # as an ensemble does: both are known when the server starts
members.append(VllmMember(folder, engine_args={"dtype": "float32"}))
found = [(member.probe(), member.score([job])[0], member.address.url) for member in members]
pickle.dump(found, sys.stdout.buffer)
sys.stdout.flush()
sys.stdin.read()
"""


def test_adapters_share_a_server_that_scores_as_this_process_and_ends_with_its_program(
    tmp_path: Path,
) -> None:
    """The program is killed. Linux sends SIGTERM to the server only, which ends its own processes
    then."""
    folder = engines.folder()
    adapters = [adapter(folder, tmp_path / name, seed) for seed, name in enumerate(("law", "art"))]
    here = [TransformersMember(folder, adapter=path, dtype="float32") for path in adapters]
    here.append(TransformersMember(folder, dtype="float32"))
    texts = (" scatters blue light more than red.", " is made of blue paint")
    candidates = tuple(Candidate(text, False, ("x",)) for text in texts)
    job = ScoreJob(tiny.query(id="q"), (Segment("The sky looks blue because the air"),), candidates)
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", PROGRAM], **pipes) as program:
        assert program.stdin is not None and program.stdout is not None
        pickle.dump((folder, adapters, job), program.stdin)
        program.stdin.flush()
        found = pickle.load(program.stdout)
        running = servers(psutil.Process(program.pid))
        if sys.platform == "linux":  # other systems have no parent-death signal
            program.kill()
    means = []
    for (probe, there, _), same in zip(found, here, strict=True):
        expected = tiny.reply_of(same, job)
        assert isinstance(there, Scored) and isinstance(expected, Scored)
        for row, other in zip(there.logprobs, expected.logprobs, strict=True):
            assert sum(row) / len(row) == pytest.approx(sum(other) / len(other), abs=0.01)
        means.append(sum(map(sum, there.logprobs)))
        assert probe.max_context
    assert len({round(mean, 2) for mean in means}) == 3
    assert len({url for _, _, url in found}) == 1
    assert len(running) > 1
    until(lambda: are_gone([process.pid for process in running]))


def adapter(base: Path, folder: Path, seed: int) -> Path:
    """A random LoRA adapter that changes the model a little."""
    from peft import LoraConfig, get_peft_model  # seconds, also where no test here runs

    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    config = LoraConfig(
        r=4, lora_alpha=1, target_modules=["q_proj", "v_proj"], init_lora_weights=False
    )
    get_peft_model(model, config).save_pretrained(folder)
    return folder
