"""A VllmMember starts, shares, watches and stops its server. The server is a program that is
started as vLLM is and speaks as vLLM does (tests/members/fake_vllm)."""

from __future__ import annotations

import functools
import gc
import json
import logging
import operator
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from langchain_specfuse import Method, SpecFuseChatModel, VllmMember, unload
from langchain_specfuse.core.values import Draft, DraftJob, Failure, Sampling
from langchain_specfuse.errors import MemberError, UsageError
from langchain_specfuse.members.server import client, process, vllm_server

from .. import lora, tiny
from ..fake_server import INST_END, FakeServer
from .test_process import are_gone, until

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
QUESTION = "Why is the sky blue?"
LOADS_S = 2.0
SHORT: dict[str, Any] = {"method": Method(exit="never", segment_tokens=4)}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, FakeServer]]:
    """The folders of two tiny models, and the servers that compute with them."""
    found = {}
    for name, seed in (("tiny", 2), ("other", 1)):
        path = tmp_path_factory.mktemp("models") / name
        model, tokenizer = tiny.cached("llama", seed, chat_template=INST_END)
        model.save_pretrained(path)
        tokenizer.save_pretrained(path)
        found[str(path)] = FakeServer("vllm", model, tokenizer, name=str(path))
    yield found
    for server in found.values():
        server.stop()


@pytest.fixture
def folder(models: dict[str, FakeServer]) -> str:
    return next(iter(models))


Starts = Callable[[], list[dict[str, Any]]]
"""What the fake server was started with, each time."""


@pytest.fixture
def starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, models: dict[str, FakeServer]
) -> Iterator[Starts]:
    """This interpreter has the fake vLLM meanwhile."""
    file = tmp_path / "starts"

    def read() -> list[dict[str, Any]]:
        lines = file.read_text().splitlines() if file.exists() else []
        return [json.loads(line) for line in lines]

    monkeypatch.delenv("SPECFUSE_VLLM_PYTHON", raising=False)
    path = os.pathsep.join([str(HERE.parent / "fake_vllm"), str(ROOT)])
    monkeypatch.setenv("PYTHONPATH", path)
    ports = {model: server.port for model, server in models.items()}
    monkeypatch.setenv("FAKE_VLLM_BACKENDS", json.dumps(ports))
    for server in models.values():
        server.adapters.clear()
    monkeypatch.setenv("FAKE_VLLM_RECORD", str(file))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    yield read
    unload()
    gc.collect()  # members that a failed test has left
    until(lambda: are_gone([pid for start in read() for pid in start["pids"]]))


def job(id: str = "q") -> DraftJob:
    return DraftJob(tiny.query(QUESTION, id=id), (), 5, 9, Sampling())


# --- one line -------------------------------------------------------------------------------------


def test_members_by_name_answer_together_on_one_server_per_model(
    models: dict[str, FakeServer],
    tmp_path: Path,
    starts: Starts,
    caplog: pytest.LogCaptureFixture,
) -> None:
    adapter, _ = lora.adapter("llama", tmp_path / "law", 1)
    folder, other = models
    members = [f"vllm:{folder}", f"vllm:{folder}+{adapter}", f"vllm:{other}"]
    llm = SpecFuseChatModel(members=members, max_tokens=12, **SHORT)
    with caplog.at_level(logging.INFO, "langchain_specfuse"):
        answer = llm.invoke(QUESTION)
    about = answer.response_metadata["specfuse"]
    assert answer.text and about["exits"] == []
    assert set(about["members"]) == {"tiny", "law", "other"}
    assert len(starts()) == 2
    shared = next(start for start in starts() if start["model"] == folder)
    assert shared["enable_lora"] and shared["max_loras"] == "1"
    assert shared["max_lora_rank"] == "8"  # the adapter's is 4, and vLLM takes no less
    assert shared["host"] == "127.0.0.1"
    keys = {start["environment"]["VLLM_API_KEY"] for start in starts()}
    assert len(keys) == 2
    shown = [*caplog.messages, repr(about), *(" ".join(start["argv"]) for start in starts())]
    assert not any(key in text for key in keys for text in shown)
    assert any("vLLM is ready" in message for message in caplog.messages)
    unload()
    until(lambda: are_gone([pid for start in starts() for pid in start["pids"]]))


def test_the_server_ends_with_the_last_of_its_members(folder: str, starts: Starts) -> None:
    first, second = VllmMember(folder, name="a"), VllmMember(folder, name="b")
    assert isinstance(tiny.reply_of(first, job()), Draft)
    assert isinstance(tiny.reply_of(second, job()), Draft)
    first.unload()
    assert isinstance(tiny.reply_of(second, job()), Draft)
    assert len(starts()) == 1
    second.unload()
    until(lambda: are_gone(starts()[0]["pids"]))
    copy = pickle.loads(pickle.dumps(first))
    assert isinstance(tiny.reply_of(copy, job()), Draft)  # starts it again
    assert len(starts()) == 2
    copy.unload()


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # its connections are not closed
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_member_that_nobody_holds_leaves_no_server_and_no_zombie(
    folder: str, starts: Starts
) -> None:
    member = VllmMember(folder)
    member.probe()
    del member
    gc.collect()
    until(lambda: not psutil.pid_exists(starts()[0]["pids"][0]))
    until(lambda: are_gone(starts()[0]["pids"]))


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # its connections are not closed
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_server_is_placed_when_those_that_end_have_given_their_memory_back(
    folder: str, starts: Starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = VllmMember(folder)
    member.probe()
    monkeypatch.setattr(process, "TERMINATE_S", 0.1)
    monkeypatch.setattr(process.ServerProcess, "terminate", lambda _: None)  # it ends slowly
    places_of, gone = vllm_server.places_of, []

    def placed(*arguments: Any) -> Any:
        gone.append(are_gone(starts()[0]["pids"]))
        return places_of(*arguments)

    monkeypatch.setattr(vllm_server, "places_of", placed)
    del member
    gc.collect()
    later = VllmMember(folder)
    later.probe()
    assert gone == [True]
    later.unload()


def test_an_adapter_that_comes_later_is_loaded_by_the_running_server(
    folder: str, tmp_path: Path, starts: Starts, models: dict[str, FakeServer]
) -> None:
    earlier = len(models[folder].asked)
    adapters = [lora.adapter("llama", tmp_path / name, 1)[0] for name in ("law", "art")]
    members = [VllmMember(folder, adapter=adapter) for adapter in adapters]
    for member in members:
        draft = tiny.reply_of(member, job())
        assert isinstance(draft, Draft)
        assert member.probe().max_context
    assert len(starts()) == 1
    bodies = [body or {} for _, body in models[folder].asked[earlier:]]
    assert not any(body.get("echo") for body in bodies)  # these kill vLLM for CPUs
    absent = VllmMember(folder, adapter=tmp_path / "absent")
    with pytest.raises(MemberError, match="cannot load the adapter"):
        absent.probe()
    for member in (*members, absent):
        member.unload()


def test_a_template_of_the_server_is_not_passed_over(
    folder: str, starts: Starts, models: dict[str, FakeServer]
) -> None:
    """A tokenizer in this process would render the prompts with the model's own template."""
    rendered = []
    for engine_args in ({}, {"chat_template": INST_END}):
        earlier = len(models[folder].asked)
        member = VllmMember(folder, engine_args=engine_args)
        assert isinstance(tiny.reply_of(member, job()), Draft)
        asked = models[folder].asked[earlier:]
        rendered.append(any(path == "/tokenize" and "messages" in body for path, body in asked))
        member.unload()
    assert rendered == [False, True]


def test_an_adapter_that_cannot_be_loaded_harms_no_other_member(
    folder: str, tmp_path: Path, starts: Starts
) -> None:
    base, broken = VllmMember(folder), VllmMember(folder, adapter=tmp_path / "absent")
    broken.start_loading()
    good = VllmMember(folder, adapter=lora.adapter("llama", tmp_path / "law", 1)[0])
    good.start_loading()
    assert isinstance(tiny.reply_of(base, job()), Draft)
    with pytest.raises(MemberError, match="cannot load the adapter"):
        broken.probe()
    assert isinstance(tiny.reply_of(base, job("r")), Draft)
    assert isinstance(tiny.reply_of(good, job("s")), Draft)
    good.unload()
    assert len(starts()) == 1
    base.unload()
    broken.unload()


def test_an_adapter_with_a_damaged_config_does_not_keep_the_base_from_starting(
    folder: str, tmp_path: Path, starts: Starts
) -> None:
    (tmp_path / "adapter_config.json").write_text('{"r": "many"}')
    base, broken = VllmMember(folder), VllmMember(folder, adapter=tmp_path)
    broken.start_loading()
    base.probe()
    assert starts()[0]["max_lora_rank"] == "64"
    base.unload()
    broken.unload()


def test_space_is_reserved_for_an_adapter_in_the_cache_of_the_hub(
    folder: str, starts: Starts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    snapshot = tmp_path / "models--org--law" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "adapter_config.json").write_text('{"r": 100}')
    (tmp_path / "models--org--law" / "refs").mkdir()
    (tmp_path / "models--org--law" / "refs" / "main").write_text("abc")
    base, adapted = VllmMember(folder), VllmMember(folder, adapter="org/law")
    adapted.start_loading()
    base.probe()
    assert starts()[0]["max_lora_rank"] == "128"
    with pytest.raises(MemberError, match="cannot load the adapter") as caught:
        adapted.probe()  # the server behind it has no hub
    assert any("'max_lora_rank'" in note for note in caught.value.notes)
    base.unload()
    adapted.unload()


def test_a_model_that_does_not_exist_harms_no_member_that_starts_with_it(
    folder: str, starts: Starts
) -> None:
    good, absent = VllmMember(folder), VllmMember("./nowhere")
    absent.start_loading()
    assert isinstance(tiny.reply_of(good, job()), Draft)
    with pytest.raises(MemberError, match="nowhere"):
        absent.probe()
    good.unload()
    absent.unload()


def test_modules_in_the_working_directory_are_not_imported(
    folder: str, starts: Starts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("argparse.py", "json.py"):
        (tmp_path / name).write_text("raise SystemExit('imported from the working directory')")
    monkeypatch.chdir(tmp_path)
    member = VllmMember(folder)
    member.probe()
    member.unload()


# --- deaths ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("work", ["stream", "draft"])
def test_the_death_of_its_server_is_known_at_once(
    models: dict[str, FakeServer],
    folder: str,
    starts: Starts,
    monkeypatch: pytest.MonkeyPatch,
    work: str,
) -> None:
    """Three retries of a dead connection took 1.5 s before a reserve could go on."""
    monkeypatch.setattr(client, "FIRST_PAUSE_S", 5.0)
    member = VllmMember(folder)
    member.probe()
    server, go, waits = models[folder], threading.Event(), threading.Event()

    def pace(number: int) -> None:
        if number == 3:
            waits.set()
            go.wait(30)

    def fault(path: str, _: int) -> None:
        if "completions" in path and work == "draft":
            pace(3)

    server.pace, server.fault = pace, fault
    replies: list[Any] = []
    failed_at: list[float] = []

    def ask() -> None:
        asked = replace(job(), max_tokens=30, leads=True)
        replies.extend(member.stream(asked) if work == "stream" else member.draft([asked]))
        failed_at.append(time.monotonic())

    asking = threading.Thread(target=ask)
    asking.start()
    assert waits.wait(30)
    if work == "stream":
        until(lambda: bool(replies))  # what was sent before has been read
    killed = time.monotonic()
    os.kill(starts()[0]["pids"][0], signal.SIGKILL)
    asking.join(30)
    server.pace = server.fault = None
    go.set()
    *drafts, failure = replies
    assert isinstance(failure, Failure) and failure.kind == "error"
    assert bool(drafts) == (work == "stream")
    assert failed_at[0] - killed < 4
    member.unload()


@pytest.mark.parametrize("at", [0, 6], ids=["before its first token", "in mid-sentence"])
def test_the_death_of_a_lead_is_followed_by_text_of_its_reserve_at_once(
    models: dict[str, FakeServer],
    folder: str,
    starts: Starts,
    monkeypatch: pytest.MonkeyPatch,
    at: int,
) -> None:
    """Measured: 16 to 50 ms from the signal to the next text. Retries of a dead connection made it
    1.5 s."""
    monkeypatch.setattr(client, "FIRST_PAUSE_S", 5.0)
    here, served = tiny.member("llama", 1, name="here"), VllmMember(folder, name="served")
    llm = SpecFuseChatModel(members=[served, here], lead="served", max_tokens=40)
    llm.invoke(QUESTION)  # and the reserve is loaded
    server, go, waits = models[folder], threading.Event(), threading.Event()

    def pace(number: int) -> None:
        if number == at:
            waits.set()
            go.wait(30)

    server.pace = pace
    killed: list[float] = []

    def kill() -> None:
        assert waits.wait(30)
        time.sleep(0.2)  # what was sent before has been read
        killed.append(time.monotonic())
        os.kill(starts()[0]["pids"][0], signal.SIGKILL)

    killing = threading.Thread(target=kill)
    killing.start()
    arrived: list[float] = []
    pieces: list[Any] = []
    for piece in llm.stream(QUESTION):
        pieces.append(piece)
        if piece.text:
            arrived.append(time.monotonic())
    killing.join()
    server.pace = None
    go.set()
    whole = functools.reduce(operator.add, pieces)
    assert [exit["member"] for exit in whole.response_metadata["specfuse"]["exits"]] == ["served"]
    waited_s = next(moment for moment in arrived if moment > killed[0]) - killed[0]
    print(f"{1000 * waited_s:.0f} ms from the death of the lead to the next text")
    assert waited_s < 4
    served.unload()


def test_a_server_that_dies_in_an_answer_is_back_for_the_next_one(
    folder: str, starts: Starts
) -> None:
    here = tiny.member("llama", 1, name="here")
    served = VllmMember(folder, name="served")
    llm = SpecFuseChatModel(members=[served, here], lead=None, max_tokens=120, **SHORT)
    pieces: list[Any] = []
    for chunk in llm.stream(QUESTION):
        pieces.append(chunk)
        if len(pieces) == 1:
            os.kill(starts()[0]["pids"][0], signal.SIGKILL)
    first = functools.reduce(operator.add, pieces)
    assert [exit["member"] for exit in first.response_metadata["specfuse"]["exits"]] == ["served"]
    until(lambda: not served.is_away)
    second = llm.invoke(QUESTION).response_metadata["specfuse"]
    assert second["exits"] == [] and "served" in second["weights"]
    assert len(starts()) == 2
    # a second death within minutes is an error that shows why
    os.kill(starts()[1]["pids"][0], signal.SIGKILL)
    until(lambda: are_gone(starts()[1]["pids"]))
    reasons = []
    for _ in range(2):  # the first of these finds out
        about = llm.invoke(QUESTION).response_metadata["specfuse"]
        reasons += [exit["reason"] for exit in about["exits"]]
    assert "died again" in reasons[-1]
    assert len(starts()) == 2
    served.unload()


@pytest.mark.parametrize("lead", ["served", None], ids=["lead", "vote"])
def test_answers_do_not_wait_for_a_server_that_starts_again(
    folder: str, starts: Starts, monkeypatch: pytest.MonkeyPatch, lead: str | None
) -> None:
    here = tiny.member("llama", 1, name="here")
    served = VllmMember(folder, name="served")
    llm = SpecFuseChatModel(members=[served, here], lead=lead, max_tokens=12, **SHORT)
    llm.invoke(QUESTION)
    monkeypatch.setenv("FAKE_VLLM_LOADS_S", "60")
    os.kill(starts()[0]["pids"][0], signal.SIGKILL)
    until(lambda: served.is_away)
    about = llm.invoke(QUESTION).response_metadata["specfuse"]
    assert served.is_away, "the answer did not wait"
    assert list(about["weights"]) == ["here"] and about["exits"] == []
    until(lambda: len(starts()) == 2)
    served.unload()


@pytest.mark.parametrize("lead", ["served", None], ids=["lead", "vote"])
def test_a_member_is_asked_again_when_its_server_is_back(
    folder: str, starts: Starts, lead: str | None
) -> None:
    here = tiny.member("llama", 1, name="here")
    served = VllmMember(folder, name="served")
    llm = SpecFuseChatModel(members=[served, here], lead=lead, max_tokens=12, **SHORT)
    text = llm.invoke(QUESTION).text
    os.kill(starts()[0]["pids"][0], signal.SIGKILL)
    until(lambda: served.is_away)
    until(lambda: not served.is_away)
    again = llm.invoke(QUESTION)
    about = again.response_metadata["specfuse"]
    assert "served" in about["weights"] and about["exits"] == []
    assert again.text == text
    served.unload()


def test_a_lone_member_waits_for_its_server(folder: str, starts: Starts) -> None:
    served = VllmMember(folder, name="served")
    llm = SpecFuseChatModel(members=[served], max_tokens=12, **SHORT)
    text = llm.invoke(QUESTION).text
    os.kill(starts()[0]["pids"][0], signal.SIGKILL)
    until(lambda: served.is_away)
    assert llm.invoke(QUESTION).text == text
    served.unload()


def test_the_end_of_the_program_leaves_no_server(folder: str, starts: Starts) -> None:
    script = f"""
        import sys
        sys.modules["transformers"] = None  # the import takes long
        from langchain_specfuse import VllmMember
        member = VllmMember({folder!r})
        member.probe()
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=False, timeout=120)
    assert len(starts()) == 1
    until(lambda: are_gone(starts()[0]["pids"]))


# --- errors ---------------------------------------------------------------------------------------

LOGS = HERE / "vllm_logs"


@pytest.mark.parametrize(
    ("log", "kind", "what", "advice"),
    [
        ("wrong-model", "not_found", "not a valid model identifier", "check the model's name"),
        ("offline", "not_found", "LocalEntryNotFoundError", "HF_HUB_OFFLINE"),
        ("gated", "not_found", "gated", "HF_TOKEN"),
        ("no-room", "error", "larger than the available KV cache memory", "quantised"),
        ("no-memory", "error", "less than requested memory", "memory="),
        ("no-gpu", "error", "Failed to infer device type", "CPUs"),
        ("unknown", "error", "does not recognize this architecture", ""),
        ("worker", "error", "ValueError: invalid literal for int", ""),
    ],
)
def test_the_log_of_a_server_that_does_not_start_is_explained(
    folder: str,
    starts: Starts,
    monkeypatch: pytest.MonkeyPatch,
    log: str,
    kind: str,
    what: str,
    advice: str,
) -> None:
    monkeypatch.setenv("FAKE_VLLM_LOG", str(LOGS / f"{log}.txt"))
    member = VllmMember(folder, name="mine")
    with pytest.raises(MemberError, match=what) as caught:
        member.probe()
    notes = "\n".join(caught.value.notes)
    assert caught.value.kind == kind and caught.value.member == "mine"
    assert folder in str(caught.value) and advice in notes
    assert "the end of its log" in notes and "status 1" in notes
    member.unload()


def test_control_characters_in_the_log_of_a_server_are_not_shown(
    folder: str, starts: Starts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "log").write_text("ValueError: \x1b[31mno model\x1b[0m\n")
    monkeypatch.setenv("FAKE_VLLM_LOG", str(tmp_path / "log"))
    member = VllmMember(folder)
    with pytest.raises(MemberError, match="no model") as caught:
        member.probe()
    assert "\x1b" not in str(caught.value)
    member.unload()


def test_a_flag_that_vllm_does_not_know_is_an_error_of_the_caller(
    folder: str, starts: Starts
) -> None:
    member = VllmMember(folder, engine_args={"nonsense": 3})
    with pytest.raises(UsageError, match="unrecognized arguments: --nonsense"):
        member.probe()
    member.unload()


def test_a_folder_that_does_not_exist_is_an_error_before_anything_starts(starts: Starts) -> None:
    with pytest.raises(MemberError, match="nowhere does not exist"):
        SpecFuseChatModel(members=["vllm:./nowhere"]).invoke(QUESTION)
    assert len(starts()) == 0


def test_a_server_that_writes_nothing_for_too_long_is_ended(
    folder: str, starts: Starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_VLLM_LOADS_S", "60")
    monkeypatch.setattr(vllm_server, "QUIET_S", 2.0)  # on a busy machine Python takes long to start
    member = VllmMember(folder)
    with pytest.raises(MemberError, match="wrote nothing for") as caught:
        member.probe()
    assert any("hf download" in note for note in caught.value.notes)
    until(lambda: are_gone(starts()[0]["pids"]))
    member.unload()


def test_what_a_server_that_starts_is_doing_is_logged(
    folder: str,
    starts: Starts,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(vllm_server, "TELLS_S", 0.2)
    monkeypatch.setenv("FAKE_VLLM_LOADS_S", str(LOADS_S))
    member = VllmMember(folder)
    with caplog.at_level(logging.INFO, "langchain_specfuse"):
        member.probe()
    assert any("s: loading weights" in text for text in caplog.messages)
    member.unload()


def test_requests_are_not_logged_by_httpx2_unless_it_is_asked_to(
    folder: str, starts: Starts, caplog: pytest.LogCaptureFixture
) -> None:
    member = VllmMember(folder)
    with caplog.at_level(logging.INFO):
        member.probe()
    assert any("vLLM is ready" in text for text in caplog.messages)
    assert not any("HTTP Request" in text for text in caplog.messages)
    with caplog.at_level(logging.INFO, "httpx2"):
        assert isinstance(tiny.reply_of(member, job()), Draft)
    assert any("HTTP Request" in text for text in caplog.messages)
    member.unload()


def test_an_environment_without_vllm_is_an_error_that_says_what_to_install(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPECFUSE_VLLM_PYTHON", raising=False)
    for python in (None, sys.executable):
        with pytest.raises(UsageError, match="there is no vLLM in") as caught:
            VllmMember(folder, python=python).probe()
        assert "pip install vllm" in caught.value.notes[0]
    for python in ("/nowhere/python", "/bin/true", "/bin/echo", "/bin/false"):
        with pytest.raises(UsageError, match=f"'{python}' is not a working Python"):
            VllmMember(folder, python=python).probe()


# --- where it runs --------------------------------------------------------------------------------


@pytest.fixture
def two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``nvidia-smi`` of a machine with GPUs of 24 and 16 GiB."""
    show_gpus(
        tmp_path,
        monkeypatch,
        "0, GPU-a, 24576, 24000",
        "1, GPU-b, 16384, 16000",
    )


def show_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    """Make an ``nvidia-smi`` that prints these lines."""
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    asked = f"date +%s.%N >> {tmp_path}/asked\n"
    program.write_text("#!/bin/sh\n" + asked + "\n".join(f'echo "{line}"' for line in lines) + "\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")


def test_members_take_one_gpu_after_another_and_share_it_equally(
    folder: str, starts: Starts, two_gpus: None
) -> None:
    members = [VllmMember(folder, name=f"m{at}", engine_args={"seed": at}) for at in range(3)]
    llm = SpecFuseChatModel(members=members, max_tokens=8, **SHORT)
    assert llm.invoke(QUESTION).response_metadata["specfuse"]["exits"] == []
    llm.unload()
    first, second, third = sorted(starts(), key=lambda start: str(start["seed"]))
    shown = [start["environment"]["CUDA_VISIBLE_DEVICES"] for start in (first, second, third)]
    assert shown == ["0", "1", "0"]
    assert first["environment"]["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert first["gpu_memory_utilization"] == third["gpu_memory_utilization"]
    # 8% stay free, and each process has a context of 0.5 GiB beside its part
    assert 2 * float(first["gpu_memory_utilization"]) == pytest.approx(0.92 - 1 / 24, abs=2e-4)
    assert float(second["gpu_memory_utilization"]) == pytest.approx(0.92 - 0.5 / 16, abs=2e-4)


def test_a_later_member_takes_the_next_gpu_and_a_restarted_one_its_own(
    folder: str, starts: Starts, two_gpus: None
) -> None:
    first, second = (VllmMember(folder, engine_args={"seed": at}) for at in range(2))
    for member in (first, second):
        assert isinstance(tiny.reply_of(member, job()), Draft)
    os.kill(starts()[1]["pids"][0], signal.SIGKILL)
    until(lambda: second.is_away)
    until(lambda: not second.is_away)
    shown = [start["environment"]["CUDA_VISIBLE_DEVICES"] for start in starts()]
    assert shown == ["0", "1", "1"]
    assert starts()[2]["gpu_memory_utilization"] == starts()[1]["gpu_memory_utilization"]
    for member in (first, second):
        member.unload()


def test_a_program_that_ends_by_an_exception_starts_no_queued_server(
    folder: str, starts: Starts, two_gpus: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Version 1.0 still tried to: "can't create new thread at interpreter shutdown"."""
    monkeypatch.setenv("FAKE_VLLM_LOADS_S", "60")
    script = f"""
        import os, sys, threading, time
        sys.modules["transformers"] = None  # the import takes long
        from langchain_specfuse import VllmMember
        members = [VllmMember({folder!r}, gpu=0, name=name, engine_args={{"seed": seed}})
                   for seed, name in enumerate("ab")]
        for member in members:
            member.start_loading()
        threading.Thread(target=members[0].probe, daemon=True).start()
        while not os.path.exists(os.environ["FAKE_VLLM_RECORD"]):
            time.sleep(0.01)
        raise KeyError("ours")
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    ended = subprocess.run(command, check=False, timeout=30, stderr=subprocess.PIPE, text=True)
    assert "KeyError: 'ours'" in ended.stderr
    assert "new thread" not in ended.stderr
    assert len(starts()) == 1
    until(lambda: are_gone(starts()[0]["pids"]))


def test_members_get_the_gpus_and_shares_that_were_chosen_and_start_one_after_another_on_each(
    folder: str,
    starts: Starts,
    two_gpus: None,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FAKE_VLLM_LOADS_S", str(LOADS_S))
    members: list[Any] = [
        VllmMember(folder, gpu=0, memory=0.5, name="a"),
        VllmMember(folder, gpu=0, name="b", batch_invariant=True),
        VllmMember(folder, gpu=1, memory=8 * 2**30, engine_args={"seed": 7}, name="c"),
    ]
    llm = SpecFuseChatModel(members=members, max_tokens=8, **SHORT)
    with caplog.at_level(logging.INFO, "langchain_specfuse"):
        assert llm.invoke(QUESTION).response_metadata["specfuse"]["exits"] == []
    llm.unload()
    by_share = {start["gpu_memory_utilization"]: start for start in starts() if not start["seed"]}
    a = by_share.pop("0.5")
    (b,) = by_share.values()
    (c,) = (start for start in starts() if start["seed"] == "7")
    assert [start["environment"]["CUDA_VISIBLE_DEVICES"] for start in (a, b, c)] == ["0", "0", "1"]
    assert b["environment"]["VLLM_BATCH_INVARIANT"] == "1"
    shares = [float(start["gpu_memory_utilization"]) for start in (a, b, c)]
    assert shares == pytest.approx([0.5, 0.92 - 0.5 - 1 / 24, 0.5], abs=2e-4)
    placed = [at for at, text in enumerate(caplog.messages) if "of the memory" in text]
    began = [at for at, text in enumerate(caplog.messages) if "vLLM is starting" in text]
    assert len(placed) == 3 and max(placed) < min(began)
    llm.unload()
    # a and b wait for each other; c does not wait
    assert abs(a["began"] - b["began"]) >= LOADS_S
    assert min(abs(c["began"] - a["began"]), abs(c["began"] - b["began"])) < LOADS_S


def test_a_divided_model_takes_the_same_part_of_each_of_its_gpus(
    folder: str, starts: Starts, two_gpus: None
) -> None:
    for arguments in ({"tensor_parallel": 2}, {"gpu": [0, 1]}):
        member = VllmMember(folder, **arguments)
        member.probe()
        member.unload()
        start = starts()[-1]
        assert start["environment"]["CUDA_VISIBLE_DEVICES"] == "0,1"
        assert start["tensor_parallel_size"] == 2
        assert float(start["gpu_memory_utilization"]) == pytest.approx(0.92 - 0.5 / 16, abs=2e-4)


def test_a_member_on_a_gpu_that_is_half_full_asks_for_no_more_than_is_free(
    folder: str, starts: Starts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM counts after it has created its context, and refuses to start for a byte too few."""
    free = 12_001
    show_gpus(tmp_path, monkeypatch, f"0, GPU-a, 24576, {free}")
    member = VllmMember(folder)
    member.probe()
    part = float(starts()[0]["gpu_memory_utilization"])
    assert (free - 512 - 10) < part * 24_576 <= free - 512
    member.unload()


@pytest.mark.parametrize(
    ("chosen", "expected"), [("1", "1"), ("GPU-b,GPU-a", "1"), ("0,1", "0"), ("", None)]
)
def test_the_user_chooses_among_the_gpus_by_a_variable(
    folder: str,
    starts: Starts,
    two_gpus: None,
    monkeypatch: pytest.MonkeyPatch,
    chosen: str,
    expected: str | None,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    member = VllmMember(folder)
    member.probe()
    start = starts()[0]
    assert start["environment"]["CUDA_VISIBLE_DEVICES"] == (expected or "")
    assert start["enforce_eager"] == (expected is None)  # as on a CPU
    member.unload()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"gpu": 2}, r"must use gpu=\[2\], but the machine has \[0, 1\]"),
        ({"tensor_parallel": 3}, r"needs 3 GPUs \(tensor_parallel\), but the machine has 2 GPUs"),
    ],
)
def test_gpus_that_do_not_exist_are_an_error_before_anything_starts(
    folder: str, starts: Starts, two_gpus: None, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        VllmMember(folder, **arguments).probe()
    assert len(starts()) == 0


def test_a_full_gpu_is_an_error_that_says_what_to_do(
    folder: str, starts: Starts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    show_gpus(tmp_path, monkeypatch, "0, GPU-a, 24576, 300")
    with pytest.raises(UsageError, match=r"nothing is left on GPU 0 for .*0\.3 GB") as caught:
        VllmMember(folder).probe()
    assert "gpu=" in caught.value.notes[0] and "memory=" in caught.value.notes[0]
    assert len(starts()) == 0


def test_a_chosen_cache_takes_the_place_of_the_variable_of_the_user(
    folder: str, starts: Starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "4")
    for memory in (None, 1e9):
        member = VllmMember(folder, memory=memory)
        member.probe()
        member.unload()
    member = VllmMember(folder, engine_args={"kv_cache_memory_bytes": 10**9})
    member.probe()
    member.unload()
    usual, *chosen = starts()
    assert usual["environment"]["VLLM_CPU_KVCACHE_SPACE"] == "4"
    assert usual["kv_cache_memory_bytes"] is None
    for start in chosen:
        assert "VLLM_CPU_KVCACHE_SPACE" not in start["environment"]  # vLLM dies of an empty one
        assert start["kv_cache_memory_bytes"] == 10**9


def test_a_server_whose_gpu_is_not_shown_starts_with_a_warning(
    folder: str, starts: Starts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    about = tmp_path / "vllm-0.32.0.dist-info" / "METADATA"
    about.parent.mkdir()
    about.write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ['PYTHONPATH']}")
    member = VllmMember(folder)
    member.probe()
    member.unload()
    (warning,) = [text for text in caplog.messages if "show no GPU" in text]
    assert "vLLM 0.32.0" in warning and "name its address" in warning


def test_a_later_start_waits_for_the_servers_of_an_earlier_one(
    folder: str,
    starts: Starts,
    two_gpus: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FAKE_VLLM_LOADS_S", str(LOADS_S))
    first = VllmMember(folder, gpu=0, memory=0.5)
    later = VllmMember(folder, gpu=1, memory=0.5)
    thread = threading.Thread(target=first.probe)
    thread.start()
    until(lambda: len(starts()) == 1)
    later.probe()
    thread.join()
    _, asked = map(float, (tmp_path / "asked").read_text().split())
    assert asked >= starts()[0]["began"] + LOADS_S
    first.unload()
    later.unload()


def test_a_gpu_that_does_not_exist_is_an_error(folder: str, starts: Starts) -> None:
    with pytest.raises(UsageError, match="there is no GPU"):
        VllmMember(folder, gpu=0).probe()
    assert len(starts()) == 0


# --- arguments ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"engine_args": {"port": 8000}}, "'port', which the member sets itself"),
        ({"engine_args": {"uds": "/tmp/socket"}}, "'uds', which the member sets itself"),
        ({"engine_args": {"gpu-memory-utilization": 0.5}}, "which the member sets itself"),
        ({"engine_args": {"device-memory-utilization": 0.5}}, "which the member sets itself"),
        ({"engine_args": {"device_ids": [0, 1]}}, "'device_ids', which the member sets itself"),
        ({"engine_args": {"config": "vllm.yaml"}}, "'config'"),
        ({"engine_args": {"api_server_count": 2}}, "'api_server_count'"),
        ({"engine_args": {"headless": True}}, "'headless'"),
        ({"engine_args": {"ssl_ca_certs": "ca.pem"}}, "'ssl_ca_certs', which the member sets"),
        ({"engine_args": {"seed": object()}}, "plain values"),
        ({"memory": float("inf")}, "memory"),
        ({"memory": 0}, "above 0"),
        ({"memory": 20}, "in bytes, and no model fits into 20"),
        ({"gpu": -1}, "at least 0"),
        ({"gpu": []}, "at least one GPU"),
        ({"gpu": [0, 0]}, "each once"),
        ({"gpu": 0, "tensor_parallel": 2}, "must use 1 GPU, but tensor_parallel is 2"),
        ({"tensor_parallel": 0}, "at least 1"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        VllmMember("Qwen/Qwen3-8B", **arguments)


@pytest.mark.parametrize(
    "given",
    [
        {"pipeline_parallel_size": 2},
        {"enable-expert-parallel": True},
        {"decode_context_parallel_size": 2},
        {"disable_custom_all_reduce": True},
    ],
)
def test_other_flags_of_vllm_are_passed_on(given: dict[str, Any]) -> None:
    (name, value), *_ = given.items()
    member = VllmMember("Qwen/Qwen3-8B", engine_args=given)
    assert member.spec["engine_args"] == {name.replace("-", "_"): value}


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        ({"engine_args": {"tensor_parallel_size": 2}}, "tensor_parallel="),
        ({"engine_args": {"device_ids": [1]}}, "gpu="),
        ({"memory": 20}, "for 20 GB, pass memory=20e9"),
        ({"gpu": "cuda:0"}, "a GPU's number in nvidia-smi, or several: gpu=[0, 1]"),
        ({"device": "cuda:0"}, "gpu=0 names a GPU"),
        ({"dtype": "bfloat16"}, "engine_args={'dtype': ...}"),
        ({"tensor_parralel": 2}, "did you mean 'tensor_parallel'?"),
    ],
)
def test_the_way_out_of_a_wrong_argument_is_told_when_the_member_is_made(
    arguments: dict[str, Any], advice: str
) -> None:
    with pytest.raises(UsageError) as caught:
        VllmMember("Qwen/Qwen3-8B", **arguments)
    assert advice in caught.value.notes[0]


def test_names_are_the_last_part_of_adapter_or_model() -> None:
    assert VllmMember("Qwen/Qwen3-8B").name == "Qwen3-8B"
    assert VllmMember("Qwen/Qwen3-8B", adapter="./adapters/law").name == "law"
    llm = SpecFuseChatModel(members=["vllm:Qwen/Qwen3-8B", "vllm:Qwen/Qwen3-8B+./adapters/law"])
    assert [member["name"] for member in llm._identifying_params["members"]] == ["Qwen3-8B", "law"]
