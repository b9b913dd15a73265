"""Servers fail in many ways. The member leaves or recovers, the answer goes on, nothing is streamed twice."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("httpx")

from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.tracers.run_collector import RunCollectorCallbackHandler

from langchain_specfuse import SpecFuseCallbackHandler, SpecFuseChatModel
from langchain_specfuse.core.values import DraftJob, Failure, Sampling, Settings
from langchain_specfuse.errors import MemberError
from langchain_specfuse.members import _http
from langchain_specfuse.members._crew import Crew
from langchain_specfuse.members._http import Address, Wire
from langchain_specfuse.members.server import ServerMember

from . import tiny
from .fake_server import INST_END, FakeServer, later

MADE_WITH = {"chat_template": INST_END}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses as in life, but shorter."""
    monkeypatch.setattr(_http, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(_http, "LONGEST_PAUSE_S", 0.02)


@pytest.fixture
def server() -> Iterator[FakeServer]:
    made = FakeServer("vllm", *tiny.cached("llama", 2, **MADE_WITH))
    yield made
    made.stop()


@pytest.fixture
def served(server: FakeServer) -> Iterator[ServerMember]:
    member = ServerMember(server.url, "tiny", name="served", tokenizer=server.tokenizer, timeout=2.0, retries=2)
    member.probe()
    yield member
    member.unload()


@pytest.fixture
def llm(served: ServerMember) -> SpecFuseChatModel:
    """With a member in this process that others' faults must not touch."""
    here = tiny.member("llama", 1, name="here")
    return SpecFuseChatModel(members=[served, here], segment_tokens=4, max_tokens=24, exit="never")


def asked(llm: SpecFuseChatModel) -> tuple[str, dict[str, Any], list[str]]:
    """(text, what is told of the answer, the pieces as they were streamed)."""
    whole: AIMessageChunk | None = None
    pieces = []
    for chunk in llm.stream("Why is the sky blue?"):
        pieces.append(str(chunk.text))
        whole = chunk if whole is None else whole + chunk  # type: ignore[assignment]
    assert whole is not None
    return str(whole.text), whole.response_metadata["specfuse"], pieces


def _aborted(told: dict[str, Any]) -> dict[str, Any]:
    """As vLLM tells it: the rest looks like a whole reply."""
    none: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": []}
    return told | {"choices": [one | {"finish_reason": "abort", "logprobs": none} for one in told["choices"]]}


FOR_EVER: dict[str, tuple[Any, str, str]] = {
    "refuses with 429": (429, "error", "answered 429: not now"),
    "fails with 500": (500, "error", "answered 500: not now"),
    "does not know the path": (404, "not_found", "answered 404"),
    "cuts the answer": ("cut", "error", "broke off"),
    "sends what is no JSON": (b"<html>Bad gateway</html>", "error", "no JSON: '<html>Bad gateway"),
    "sends JSON of another kind": (b'{"choices": 7}', "error", "not what it should be"),
    "sends no choices": (lambda told: told | {"choices": []}, "error", "told 0 choices (wanted"),
    "sends NaN": (lambda told: _numbers(told, lambda row: [float("nan") for _ in row]), "nan", "nan as a log-prob"),
    "sends too few numbers": (lambda told: _numbers(told, lambda row: row[:-1]), "error", "log-probabilities for"),
    "sends null": (lambda told: _numbers(told, lambda row: [None for _ in row]), "error", "None as a log-prob"),
    "breaks off": (_aborted, "error", "broke off what it was asked (abort)"),
    "serves another model": (lambda told: told | {"model": "other"}, "not_found", "now serves 'other'"),
}


def _numbers(told: dict[str, Any], change: Any) -> dict[str, Any]:
    for choice in told["choices"]:
        choice["logprobs"]["token_logprobs"] = change(choice["logprobs"]["token_logprobs"])
    return told


@pytest.mark.parametrize("fault", FOR_EVER)
@pytest.mark.parametrize("after", [0, 3], ids=["at once", "in the middle"])
def test_a_member_whose_server_fails_for_good_leaves_and_the_answer_goes_on(
    llm: SpecFuseChatModel, server: FakeServer, fault: str, after: int
) -> None:
    ill, kind, reason = FOR_EVER[fault]
    server.fault = later(after, ill, "completions")
    text, told, pieces = asked(llm)
    assert text and "".join(pieces) == text
    (gone,) = told["exits"]
    assert (gone["member"], gone["kind"]) == ("served", kind) and reason in gone["reason"], gone
    server.fault = None
    assert asked(llm)[1]["exits"] == []  # it is back for the next question


@pytest.mark.parametrize("ill", [429, 500, 503, "cut"])
def test_what_is_over_in_a_moment_is_not_noticed(llm: SpecFuseChatModel, server: FakeServer, ill: Any) -> None:
    well = asked(llm)
    server.fault = later(1, ill, "completions", times=2)
    assert asked(llm)[0] == well[0]
    assert asked(llm)[1]["exits"] == []


def test_a_server_that_hangs_is_left_alone_in_time(llm: SpecFuseChatModel, server: FakeServer) -> None:
    server.fault = later(1, "hang", "completions")
    since = time.monotonic()
    text, told, _ = asked(llm)
    assert text and told["exits"][0]["kind"] == "timeout" and "within 2 s" in told["exits"][0]["reason"]
    assert time.monotonic() - since < 20
    hanging = [path for path, _ in server.asked].count("/v1/completions")
    server.go.set()
    assert hanging == len([1 for path, _ in server.asked if path == "/v1/completions"])  # nobody asks again


def _slowly(line: socket.socket, way: str) -> None:
    """A reply that never ends: byte by byte, in its head or its body, or as fast as it goes."""
    head, pace, piece = b"HTTP/1.1 200 OK\r\n", 0.05, b"X-a: b\r\n"
    try:
        line.recv(65536)
        if way != "head":
            head += b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
            piece = b"1\r\n \r\n" if way == "body" else b"10000\r\n" + b" " * 65536 + b"\r\n"
        line.sendall(head)
        while True:
            line.sendall(piece)
            time.sleep(pace if way != "flood" else 0.0)
    except OSError:
        line.close()


@pytest.mark.parametrize("way", ["head", "body", "flood"])
def test_a_reply_that_never_ends_is_given_up_in_time_and_in_bytes(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_http, "MOST_BYTES", 1 << 20)
    with socket.create_server(("127.0.0.1", 0)) as door:
        door.settimeout(5.0)
        wire = Wire(Address(f"http://127.0.0.1:{door.getsockname()[1]}", timeout_s=0.5, retries=0), "m", 1)
        threading.Thread(target=lambda: _slowly(door.accept()[0], way), daemon=True).start()
        since = time.monotonic()
        with pytest.raises(MemberError, match="more than 1 MiB" if way == "flood" else r"within 0.5 s") as gone:
            wire.get("/v1/models")
        assert time.monotonic() - since < 20.0 and gone.value.kind == ("error" if way == "flood" else "timeout")
        wire.close()


def test_unloading_ends_the_questions_that_are_under_way(served: ServerMember, server: FakeServer) -> None:
    served.unload()
    served.address = replace(served.address, timeout_s=30.0)
    served.probe()
    server.fault = later(0, "hang", "completions")
    told: list[Any] = []
    job = DraftJob(tiny.query(id="q"), (), 5, 9, Sampling())
    asking = threading.Thread(target=lambda: told.extend(served.draft([job])))
    before = len(server.asked)
    asking.start()
    while len(server.asked) == before:
        time.sleep(0.01)
    served.unload()
    asking.join(5.0)
    assert isinstance(told[0], Failure)


@pytest.mark.parametrize("forgotten", [False, True])
def test_a_crew_that_is_closed_or_forgotten_leaves_no_thread(forgotten: bool) -> None:
    def threads() -> list[str]:
        return [one.name for one in threading.enumerate() if one.name.startswith("brief")]

    crew, together = Crew(3, "brief"), threading.Barrier(3)
    assert len(set(crew.map(lambda _: (together.wait(5), threading.current_thread().name)[1], range(3)))) == 3
    assert len(threads()) == 3
    if not forgotten:
        crew.close()
    del crew
    until = time.monotonic() + 5.0
    while threads() and time.monotonic() < until:
        time.sleep(0.01)
    assert threads() == []


def test_a_server_that_is_late_once_is_not_taken_for_one_without_a_tokenizer(server: FakeServer) -> None:
    server.fault = later(0, "hang", "tokenize", times=1)
    member = ServerMember(server.url, name="m", timeout=0.5)
    with pytest.raises(MemberError, match=r"within 0.5 s") as late:
        member.probe()
    assert late.value.kind == "timeout"
    server.go.set()
    assert member.probe().scores
    member.unload()


def test_a_program_ends_though_a_server_hangs(server: FakeServer) -> None:
    code = f"""
        import threading, time
        from langchain_specfuse.core.values import DraftJob, Query, Sampling, Turn
        from langchain_specfuse.members.server import ServerMember
        member = ServerMember({server.url!r}, "tiny", timeout=25.0)
        member.probe()
        job = DraftJob(Query("q", (Turn("user", "Something new?"),)), (), 5, 9, Sampling())
        threading.Thread(target=member.draft, args=([job],), daemon=True).start()
        time.sleep(1.0)
        print("done", flush=True)
    """
    server.fault = lambda path, before: "hang" if "Something new" in str(server.asked[before][1]) else None
    program = [sys.executable, "-c", textwrap.dedent(code)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "done\n"
        since = time.monotonic()
        process.wait(20.0)
        assert time.monotonic() - since < 10.0


def test_a_server_that_is_gone_is_told_with_its_address(llm: SpecFuseChatModel, server: FakeServer) -> None:
    server.stop()
    text, told, _ = asked(llm)
    assert text
    assert "cannot be reached" in told["exits"][0]["reason"] and str(server.port) in told["exits"][0]["reason"]


def test_a_server_that_restarts_in_the_middle_is_met_again(served: ServerMember, server: FakeServer) -> None:
    """Its caches are gone, but a job carries all that is needed: the answer is the same."""
    settings = Settings(segment_tokens=4, max_tokens=24)
    whole = tiny.text_of(tiny.answered([served], tiny.query(id="q"), settings))
    rounds = 0

    def restart(*_: Any) -> None:
        nonlocal rounds
        rounds += 1
        if rounds == 2:
            server.stop()
            server.go.clear()
            server.start()

    assert tiny.text_of(tiny.answered([served], tiny.query(id="q"), settings, after=restart)) == whole
    assert rounds > 2


@pytest.mark.parametrize("engine", ["vllm", "llama.cpp"])
def test_a_server_that_is_not_reached_to_render_has_refused_no_template(engine: str) -> None:
    server = FakeServer(engine, *tiny.cached("llama", 2, **MADE_WITH))
    member = ServerMember(server.url, name="m", retries=0, timeout=1.0)
    member.probe()

    def reply_to(text: str, ill: Any) -> Failure:
        server.fault = lambda path, before: ill if "token" in path or "template" in path else None
        (reply,) = member.draft([DraftJob(tiny.query(text, id=text), (), 5, 9, Sampling())])
        assert isinstance(reply, Failure)
        return reply

    late = reply_to("something new", "hang")
    assert late.kind == "timeout" and "within 1 s" in late.message and not isinstance(late.cause, ValueError)
    assert "refused these turns" in reply_to("something else", 400).message
    server.stop()
    member.unload()


def test_a_server_that_comes_back_with_another_model_is_not_asked(served: ServerMember, server: FakeServer) -> None:
    server.stop()
    job = DraftJob(tiny.query(id="q"), (), 5, 9, Sampling())
    (gone,) = served.draft([job])
    assert isinstance(gone, Failure) and gone.kind == "error"
    server.name = "other"
    server.start()
    with pytest.raises(MemberError, match="serves other; wanted tiny"):
        served.draft([job])
    server.name = "tiny"
    assert not isinstance(served.draft([job])[0], Failure)


def test_a_draft_that_sglang_aborts_is_a_failure() -> None:
    server = FakeServer("sglang", *tiny.cached("llama", 2, **MADE_WITH))
    member = ServerMember(server.url, name="m", tokenizer=server.tokenizer)
    member.probe()

    def aborted(told: dict[str, Any]) -> dict[str, Any]:
        meta = told["meta_info"] | {"finish_reason": {"type": "abort", "message": "x"}, "output_token_logprobs": []}
        return told | {"output_ids": [], "meta_info": meta}

    server.fault = lambda path, before: aborted
    (reply,) = member.draft([DraftJob(tiny.query(id="q"), (), 5, 9, Sampling())])
    assert isinstance(reply, Failure) and "broke off" in reply.message
    server.stop()
    member.unload()


@pytest.mark.parametrize(
    ("message", "finish", "reason"),
    [
        ({"content": None, "reasoning_content": "Well, now"}, "length", "thought, and said nothing"),
        ({"content": "The"}, "content_filter", "broke off what it was asked"),
    ],
)
def test_a_chat_without_an_answer_is_a_failure(message: Any, finish: str, reason: str) -> None:
    server = FakeServer("chat", *tiny.cached("llama", 2, **MADE_WITH))
    member = ServerMember(server.url, name="m")
    member.probe()
    server.fault = lambda path, before: lambda told: {"choices": [{"message": message, "finish_reason": finish}]}
    (reply,) = member.draft([DraftJob(tiny.query(id="q"), (), 5, 9, Sampling())])
    assert isinstance(reply, Failure) and reason in reply.message
    server.stop()
    member.unload()


def test_one_ill_question_takes_no_other_along(served: ServerMember, server: FakeServer) -> None:
    jobs = [DraftJob(tiny.query(f"Question {k}?", id=f"q{k}"), (), 4, 4, Sampling()) for k in range(4)]
    well = served.draft(jobs)
    server.fault = later(2, 400, "completions", times=1)
    ill = served.draft(jobs)
    assert sum(isinstance(one, Failure) for one in ill) == 1
    assert all(isinstance(b, Failure) or a.text == b.text for a, b in zip(well, ill, strict=True))


def test_jobs_are_asked_at_once(server: FakeServer) -> None:
    """The engine can only make a batch of what it has."""
    server_side, most, lock = 0, 0, threading.Lock()
    plain = server.reply

    def counting(path: str, body: Any) -> Any:
        nonlocal server_side, most
        with lock:
            server_side += 1
            most = max(most, server_side)
        try:
            time.sleep(0.02)
            return plain(path, body)
        finally:
            with lock:
                server_side -= 1

    member = ServerMember(server.url, tokenizer=server.tokenizer, parallel=4)
    member.probe()
    server.reply = counting  # type: ignore[method-assign]
    member.draft([DraftJob(tiny.query(id=f"q{k}"), (), 4, 4, Sampling()) for k in range(8)])
    member.unload()
    assert 2 <= most <= 4


# --- what is told of it, through the chat model -----------------------------------------------------------------


def gone(server: FakeServer) -> None:
    server.stop()


def hanging(server: FakeServer) -> None:
    server.fault = later(1, "hang", "completions")


def ill_with(fault: Any) -> Any:
    def begin(server: FakeServer) -> None:
        server.fault = later(3, fault, "completions")

    return begin


STORIES: dict[str, tuple[Any, str, str]] = {
    "is gone": (gone, "error", "cannot be reached"),
    "hangs": (hanging, "timeout", "within 2 s"),
    **{name: (ill_with(fault), kind, reason) for name, (fault, kind, reason) in FOR_EVER.items()},
}


@pytest.mark.parametrize("way", ["sync", "async"])
@pytest.mark.parametrize("story", STORIES)
def test_the_trace_says_what_happened_and_nothing_is_streamed_twice(
    llm: SpecFuseChatModel, server: FakeServer, story: str, way: str
) -> None:
    begin, kind, reason = STORIES[story]
    tracer, told, left = RunCollectorCallbackHandler(), [], []
    listener = SpecFuseCallbackHandler(on_round=told.append, on_exit=left.append)
    begin(server)

    async def astreamed() -> list[str]:
        return [str(c.text) async for c in llm.astream("Why?", {"callbacks": [tracer, listener]})]

    if way == "async":
        pieces = asyncio.run(astreamed())
    else:
        pieces = [str(c.text) for c in llm.stream("Why?", {"callbacks": [tracer, listener]})]
    server.go.set()
    assert [event.number for event in told] == list(range(1, len(told) + 1))
    assert "".join(pieces) == "".join(event.text for event in told) != ""
    ((member, why),) = [(event.member, event.reason) for event in left]
    assert member == "served" and reason in why and left[0].kind == kind
    (run,) = tracer.traced_runs
    failed = [child for round in run.child_runs for child in round.child_runs if child.error]
    assert [child.name.split()[1] for child in failed] == ["served"]
    assert failed[0].error.startswith(f"{kind}: ") and reason in failed[0].error
    assert failed[0].extra["metadata"]["specfuse_round"] == left[0].round
    assert run.error is None and run.extra["metadata"]["specfuse_exits"] == [
        {"member": "served", "kind": kind, "round": left[0].round}
    ]


@pytest.mark.parametrize("way", ["sync", "async"])
def test_a_server_that_restarts_while_it_is_streamed_from_breaks_nothing(
    llm: SpecFuseChatModel, server: FakeServer, way: str
) -> None:
    """Between two rounds, or in the middle of one: the member is met again, or it leaves with a reason."""
    whole = asked(llm)[0]
    told: list[Any] = []

    def restart(event: Any) -> None:
        told.append(event)
        if event.number == 2:
            server.stop()
            server.go.clear()
            server.start()

    config: Any = {"callbacks": [SpecFuseCallbackHandler(on_round=restart)]}

    async def astreamed() -> list[str]:
        return [str(c.text) async for c in llm.astream("Why is the sky blue?", config)]

    if way == "async":
        pieces = asyncio.run(astreamed())
    else:
        pieces = [str(c.text) for c in llm.stream("Why is the sky blue?", config)]
    left = [one["kind"] for event in told for one in event.left]
    assert "".join(pieces) == "".join(event.text for event in told)
    assert left in ([], ["error"]) and (left or "".join(pieces) == whole)
    assert asked(llm)[0] == whole


@pytest.mark.parametrize("way", ["sync", "async"])
def test_a_server_that_is_late_is_left_out_and_comes_back(llm: SpecFuseChatModel, server: FakeServer, way: str) -> None:
    """It hangs for one question: rounds go on without it, the trace says so, and it is there again afterwards."""
    server.fault = later(3, "hang", "completions", times=1)
    config: Any = {"callbacks": [tracer := RunCollectorCallbackHandler()]}
    limits: Any = {"member_timeout": 1.0, "straggler": "leave_out", "trace": "members"}

    async def answered() -> AIMessage:
        return await llm.ainvoke("Why is the sky blue?", config, **limits)

    answer = asyncio.run(answered()) if way == "async" else llm.invoke("Why is the sky blue?", config, **limits)
    told = answer.response_metadata["specfuse"]
    assert answer.text and told["exits"] == [] and told["late"].keys() == {"served"}
    (run,) = tracer.traced_runs
    late = [one for round in run.child_runs for one in round.child_runs if (one.outputs or {}).get("late")]
    assert late and {one.name.split()[1] for one in late} == {"served"} and not any(one.error for one in late)
    assert run.extra["metadata"]["specfuse_late"] == told["late"]
    server.go.set()
    assert asked(llm)[1] | {"weights": 0, "shares": 0} == told | {"late": {}, "weights": 0, "shares": 0}


def test_members_on_one_server_do_not_take_turns(server: FakeServer) -> None:
    """What they are asked at once must be at the server at once: each question waits there for the other."""
    two = [ServerMember(server.url, name=n, tokenizer=server.tokenizer, system_prompt=n) for n in ("ann", "bob")]
    llm = SpecFuseChatModel(members=two, segment_tokens=4, max_tokens=4)
    llm.invoke("Why?")  # loads them, one after the other
    together, plain = threading.Barrier(2), server.reply

    def waiting(path: str, body: Any) -> Any:
        together.wait(5)
        return plain(path, body)

    server.reply = waiting  # type: ignore[method-assign]
    told = llm.invoke("Why not?", max_rounds=1).response_metadata["specfuse"]
    assert told["exits"] == [] and not together.broken
    for member in two:
        member.unload()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="nothing makes a certificate here: no openssl")
def test_a_certificate_that_nobody_vouches_for_is_refused(server: FakeServer, tmp_path: Path) -> None:
    pem = str(tmp_path / "own.pem")
    make = f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=h -keyout {pem} -out {pem}.crt"
    subprocess.run([*make.split(), "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    with open(pem, "a") as both:
        both.write(Path(f"{pem}.crt").read_text())
    secure = FakeServer("vllm", server.model, server.tokenizer, tls=pem)
    try:
        with pytest.raises(MemberError, match="CERTIFICATE_VERIFY_FAILED"):
            ServerMember(secure.url, tokenizer=server.tokenizer, retries=0).probe()
        trusting = ServerMember(secure.url, tokenizer=server.tokenizer, verify=pem)
        assert trusting.probe().scores
        trusting.unload()
    finally:
        secure.stop()


@pytest.mark.parametrize(
    ("url", "api", "root"),
    [
        ("http://h:8000", "http://h:8000/v1", "http://h:8000"),
        ("http://h:8000/v1/", "http://h:8000/v1", "http://h:8000"),
        ("https://h/gate/v1", "https://h/gate/v1", "https://h/gate"),
        ("https://h/openai", "https://h/openai", "https://h/openai"),
    ],
)
def test_an_address_is_taken_as_it_is_meant(url: str, api: str, root: str) -> None:
    assert (Address(url).api, Address(url).root) == (api, root)
