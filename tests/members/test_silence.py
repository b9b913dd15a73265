"""Every kind of member gives signs of life while it works, so that a slow one is not late; one that
hangs is, and its other jobs are not. The same is true of time limits."""

from __future__ import annotations

import gc
import itertools
import json
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from langchain_core.outputs import ChatGenerationChunk
from langchain_openai import ChatOpenAI

from langchain_specfuse import ChatModelMember, LlamaCppMember, ServerMember
from langchain_specfuse.core.values import Draft, DraftJob, Failure
from langchain_specfuse.engine.worker import QueuedJob, Worker

from . import tiny
from .contract import draft_job
from .fake_chat_server import FakeChatServer
from .fake_server import FakeServer
from .stalling_server import StallingServer
from .test_chat_model import STORY, Talker, talker

LIMIT_S = 0.5
PATIENCE_S = 30.0
SILENT = Failure("timeout", "no token for 0.5 s")
LATE = Failure("timeout", "did not answer within member_timeout=0.5 s")
LIMITS: list[tuple[dict[str, float | None], Failure]] = [
    ({}, SILENT),
    ({"silence_s": None, "timeout_s": LIMIT_S}, LATE),
]
"""Limits of a job, and how it fails when it hangs."""
_NUMBERS = itertools.count()


def until(condition: Callable[[], object]) -> bool:
    end = time.monotonic() + PATIENCE_S
    while not condition() and time.monotonic() < end:
        time.sleep(0.005)
    return bool(condition())


def replies_of(
    member: Any,
    jobs: Sequence[DraftJob],
    silence_s: float | None = LIMIT_S,
    timeout_s: float | None = None,
    worker: Worker | None = None,
) -> list[Any]:
    """The replies that a worker delivers, in the order of the jobs."""
    replies: dict[str, Any] = {}

    def queued(job: DraftJob) -> QueuedJob:
        def deliver(reply: Any) -> None:
            replies[job.query.id] = reply

        return QueuedJob(member, "draft", job, deliver, silence_s=silence_s, timeout_s=timeout_s)

    worker = worker or new_worker()
    worker.put(*map(queued, jobs))
    assert until(lambda: len(replies) == len(jobs)), replies
    return [replies[job.query.id] for job in jobs]


def new_worker() -> Worker:
    return Worker(f"silence-{next(_NUMBERS)}")


def asking(question: str, **options: Any) -> DraftJob:
    return draft_job(question, id=f"q{next(_NUMBERS)}", **options)


def threads_of(name: str) -> list[str]:
    return [thread.name for thread in threading.enumerate() if f"specfuse-{name}_" in thread.name]


# --- chat models ----------------------------------------------------------------------------------


class Hanging(Talker):
    """Hangs before its ``at``-th word where the question says so, until ``go`` is set. Waits
    ``first_s`` before the first word and ``pause_s`` before every other."""

    at: int = 0
    pause_s: float = 0.0
    first_s: float = 0.0
    go: Any = None

    def _stream(self, messages: Any, *args: Any, **options: Any) -> Iterator[ChatGenerationChunk]:
        for number, chunk in enumerate(super()._stream(messages, *args, **options)):
            time.sleep(self.pause_s if number else self.first_s)
            if number == self.at and "hang" in messages[-1].text:
                self.go.wait(PATIENCE_S)
            yield chunk


@pytest.fixture
def hanging() -> Iterator[Callable[..., Hanging]]:
    made: list[Hanging] = []

    def make(**fields: Any) -> Hanging:
        made.append(Hanging(asked=[], said=[], closed=[], go=threading.Event(), **fields))
        return made[-1]

    yield make
    for model in made:
        model.go.set()


@pytest.mark.parametrize("at", [0, 1, 4], ids=["before the first word", "after it", "later"])
def test_a_chat_model_that_hangs_is_late(hanging: Any, at: int) -> None:
    member = ChatModelMember(hanging(at=at), name="hangs")
    assert replies_of(member, [asking("hang")]) == [SILENT]


def test_a_chat_model_that_streams_slowly_is_not_late(hanging: Any) -> None:
    member = ChatModelMember(hanging(pause_s=LIMIT_S / 5), name="drips")
    (reply,) = replies_of(member, [asking("Why?", segment_tokens=12)])
    assert isinstance(reply, Draft) and STORY.startswith(reply.text)
    assert reply.text.count(" ") > 5


@pytest.mark.parametrize(("limits", "failure"), LIMITS, ids=["silence", "time"])
def test_one_request_that_hangs_does_not_fail_the_others(
    hanging: Any, limits: Any, failure: Failure
) -> None:
    member = ChatModelMember(hanging(at=2), name="some", max_concurrency=5)
    jobs = [asking("hang" if number % 8 == 3 else "Why?") for number in range(32)]
    replies = replies_of(member, jobs, **limits)
    for job, reply in zip(jobs, replies, strict=True):
        if job.query.turns[-1].text == "hang":
            assert reply == failure
        else:
            assert isinstance(reply, Draft) and STORY.startswith(reply.text)


@pytest.mark.parametrize(("limits", "failure"), LIMITS, ids=["silence", "time"])
def test_a_member_is_asked_again_while_an_earlier_request_hangs(
    hanging: Any, limits: Any, failure: Failure
) -> None:
    member, worker = ChatModelMember(hanging(), name="again"), new_worker()
    assert replies_of(member, [asking("hang")], worker=worker, **limits) == [failure]
    (reply,) = replies_of(member, [asking("Why?")], worker=worker, **limits)
    assert isinstance(reply, Draft)


def test_a_job_that_waits_behind_one_that_hangs_fails_with_it(hanging: Any) -> None:
    member = ChatModelMember(hanging(), name="queued", max_concurrency=1)
    jobs = [asking("hang"), asking("Why?")]
    behind = Failure("timeout", "still waiting for 1 earlier request without a reply")
    assert replies_of(member, jobs, silence_s=None, timeout_s=LIMIT_S) == [LATE, behind]
    assert len(member.model.asked) == 1


def test_the_time_of_a_job_begins_when_there_is_room_for_it(hanging: Any) -> None:
    """Three jobs, one after the other, take longer than the limit."""
    member = ChatModelMember(hanging(first_s=0.8 * LIMIT_S), name="turns", max_concurrency=1)
    jobs = [asking(f"Why {number}?") for number in range(3)]
    replies = replies_of(member, jobs, silence_s=None, timeout_s=2 * LIMIT_S)
    assert all(isinstance(reply, Draft) for reply in replies)


def test_a_request_that_hangs_keeps_no_other_answer_waiting(hanging: Any) -> None:
    """Also without any limit, which is the default."""
    member, worker = ChatModelMember(hanging(at=1), name="free"), new_worker()
    stuck: list[Any] = []
    worker.put(QueuedJob(member, "draft", asking("hang"), stuck.append))
    assert until(lambda: member.model.asked)
    for _ in range(3):
        (reply,) = replies_of(member, [asking("Why?")], silence_s=None, worker=worker)
        assert isinstance(reply, Draft)
    assert not stuck
    member.model.go.set()
    assert until(lambda: stuck)
    assert isinstance(stuck[0], Draft)


def test_requests_of_answers_that_are_over_are_not_sent(hanging: Any) -> None:
    member, worker = ChatModelMember(hanging(at=1), name="dropped"), new_worker()
    member.max_concurrency = 1
    jobs = [asking("hang"), *(asking(f"Why {number}?") for number in range(5))]
    for job in jobs:
        worker.put(QueuedJob(member, "draft", job, lambda reply: None))
    assert until(lambda: member.model.asked)
    for job in jobs:
        worker.forget(member, job.query.id)
    live = asking("Why not?")
    replies: list[Any] = []
    worker.put(QueuedJob(member, "draft", live, replies.append))
    member.model.go.set()
    assert until(lambda: replies)
    assert len(member.model.asked) == 2, "the one that hung, and the live one"


def test_an_answer_that_is_given_up_after_its_end_leaves_nothing_behind(hanging: Any) -> None:
    model = hanging()
    member, worker, job = ChatModelMember(model, name="left"), new_worker(), asking("hang")
    replies: list[Any] = []
    worker.put(QueuedJob(member, "draft", job, replies.append, silence_s=LIMIT_S))
    assert until(lambda: model.asked)
    worker.forget(member, job.query.id)
    assert until(lambda: replies)
    model.go.set()
    assert until(lambda: not threads_of("left"))
    worker.close()
    left = weakref.ref(member)
    del member
    assert until(lambda: gc.collect() >= 0 and left() is None)


def test_an_answer_that_is_over_is_forgotten_when_its_last_job_has_ended(hanging: Any) -> None:
    model = hanging(at=1)
    member, worker, job = ChatModelMember(model, name="over"), new_worker(), asking("hang")
    worker.put(QueuedJob(member, "draft", job, lambda reply: None))
    assert until(lambda: model.asked)
    worker.forget(member, job.query.id)
    model.go.set()
    assert until(lambda: model.closed), "its stream is closed, although it had hung"
    assert not member._streams


def test_no_more_is_read_of_a_reply_whose_answer_is_over(hanging: Any) -> None:
    """Text that is not read is not billed."""
    model = hanging(at=3)
    member, worker, job = ChatModelMember(model, name="read"), new_worker(), asking("hang")
    worker.put(QueuedJob(member, "draft", replace(job, segment_tokens=64), lambda reply: None))
    assert until(lambda: len(model.said) == 4)
    worker.forget(member, job.query.id)
    assert replies_of(member, [asking("Why?")], worker=worker), "so the other has been forgotten"
    said = len(model.said)
    model.go.set()
    assert until(lambda: not threads_of("read"))
    assert len(model.said) == said and model.closed


@pytest.mark.parametrize("limit", ["silence_s", "timeout_s"])
def test_requests_that_hang_do_not_pile_up(hanging: Any, limit: str) -> None:
    member = ChatModelMember(hanging(), name="pile", max_concurrency=2)
    limits = {"silence_s": None, limit: 0.1}
    for _ in range(2):
        assert replies_of(member, [asking("hang")], **limits)[0].kind == "timeout"
    (refused,) = replies_of(member, [asking("hang")], **limits)
    assert refused == Failure("timeout", "still waiting for 2 earlier requests without a reply")
    namesake = ChatModelMember(hanging(), name="pile", max_concurrency=2)
    (reply,) = replies_of(namesake, [asking("Why?")])
    assert isinstance(reply, Draft), "requests of another member do not count"
    assert len(threads_of("pile")) == 2
    member.model.go.set()
    assert until(lambda: not threads_of("pile"))
    (reply,) = replies_of(member, [asking("Why?")])
    assert isinstance(reply, Draft)


@pytest.mark.parametrize("at", [0, 3])
@pytest.mark.parametrize("forgotten", [True, False], ids=["forgotten first", "not forgotten"])
def test_a_stream_that_was_given_up_is_closed_when_it_goes_on(
    hanging: Any, at: int, forgotten: bool
) -> None:
    model = hanging(at=at)
    member, job = ChatModelMember(model, name="closed"), asking("hang")
    assert replies_of(member, [job]) == [SILENT]
    if forgotten:
        member.forget(job.query.id)
    said = len(model.said)
    model.go.set()
    assert until(lambda: model.closed)
    assert len(model.said) == said, "nothing more is read, because it would be billed"
    assert until(lambda: not threads_of("closed"))


# --- chat models over HTTP ------------------------------------------------------------------------


def event(data: Any) -> bytes:
    return f"data: {json.dumps(data)}\n\n".encode()


def chunk(text: str) -> bytes:
    return event({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]})


@pytest.fixture
def provider() -> Iterator[tuple[FakeChatServer, ChatModelMember]]:
    server = FakeChatServer("openai", talker(script=f"{STORY} " * 500))
    model = ChatOpenAI(model="tiny", base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    yield server, ChatModelMember(model, name="provider")
    server.stop()


def test_a_provider_that_falls_silent_is_late_and_leaves_no_thread_and_no_connection(
    provider: Any,
) -> None:
    server, member = provider
    server.go_on.clear()
    job = asking("Why?", segment_tokens=12)
    assert replies_of(member, [job]) == [SILENT]
    member.forget(job.query.id)
    server.go_on.set()
    assert until(server.hung_up.is_set)
    assert until(lambda: not threads_of("provider"))


@pytest.mark.parametrize("rest", ["nothing", "usage", "empty chunks"])
def test_a_reply_with_a_finish_reason_is_used_although_its_connection_stays_open(rest: str) -> None:
    """The server sends usage after the finish reason, or keeps the connection alive, or neither."""
    end = {"index": 0, "delta": {}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 26, "completion_tokens": 3, "total_tokens": 29}
    server = StallingServer(
        [chunk("The sky."), event({"choices": [end]})]
        + [event({"choices": [], "usage": usage})] * (rest == "usage"),
        keeps_alive=rest == "empty chunks",
    )
    model = ChatOpenAI(model="tiny", base_url=server.url, api_key="none", max_retries=0)
    member = ChatModelMember(model, name="open")
    try:
        (reply,) = member.draft([asking("Why?")])
    finally:
        server.stop()
    assert isinstance(reply, Draft) and (reply.text, reply.ended) == ("The sky.", True)
    effort = reply.effort
    if rest == "usage":
        assert (effort.input_tokens, effort.output_tokens) == (26, 3)
    assert effort.estimated_requests == (0 if rest == "usage" else 1)
    assert until(lambda: "specfuse-rest" not in [each.name for each in threading.enumerate()])


# --- servers --------------------------------------------------------------------------------------


@pytest.fixture(params=["vllm", "llama.cpp"])
def served(request: Any) -> Iterator[tuple[FakeServer, ServerMember]]:
    server = FakeServer(request.param, *tiny.cached("llama", 2))
    member = ServerMember(server.url, "tiny", name="served", tokenizer=server.tokenizer, timeout=5)
    member.probe()
    yield server, member
    member.unload()
    server.stop()


def drawing(path: str) -> bool:
    return "completion" in path


@pytest.mark.parametrize(("limits", "failure"), LIMITS, ids=["silence", "time"])
def test_a_server_that_hangs_is_late_and_its_connection_is_shut(
    served: Any, limits: Any, failure: Failure
) -> None:
    server, member = served
    server.fault = lambda path, _: "hang" if drawing(path) else None
    worker, since = new_worker(), time.monotonic()
    assert replies_of(member, [asking("Why?")], worker=worker, **limits) == [failure]
    assert until(lambda: not threads_of("served"))
    assert time.monotonic() - since < member.address.timeout_s - 1
    server.fault = None
    (reply,) = replies_of(member, [asking("Why?")], worker=worker, **limits)
    assert isinstance(reply, Draft)


def test_a_server_that_answers_each_request_in_time_is_not_late(served: Any) -> None:
    """Four jobs, one after the other, take longer than the limit."""
    server, member = served
    member.max_concurrency = 1

    def slow(path: str, _: int) -> None:
        if drawing(path):
            time.sleep(0.6 * LIMIT_S)

    server.fault = slow
    jobs = [asking(f"Why {number}?") for number in range(4)]
    replies = replies_of(member, jobs, silence_s=2 * LIMIT_S)
    assert all(isinstance(reply, Draft) for reply in replies)


def test_the_seconds_of_a_job_do_not_include_its_wait_for_a_turn(served: Any) -> None:
    """A job that waited behind a slow one would look as slow in traces and evaluations."""
    server, member = served
    member.max_concurrency = 1
    begun, go_on = threading.Event(), threading.Event()

    def held(path: str, _: int) -> None:
        if drawing(path) and not begun.is_set():
            begun.set()
            go_on.wait(PATIENCE_S)

    server.fault = held
    worker, replies = new_worker(), dict[str, Any]()
    for name in ("first", "second"):
        deliver = partial(replies.__setitem__, name)
        worker.put(QueuedJob(member, "draft", asking(f"Why {name}?"), deliver))
    assert begun.wait(PATIENCE_S)
    went_on = time.time()
    go_on.set()
    assert until(lambda: len(replies) == 2)
    second = replies["second"].effort
    assert second.seconds <= time.time() - went_on


def test_a_request_that_hangs_keeps_no_other_answer_of_a_server_waiting(served: Any) -> None:
    server, member = served
    server.fault = lambda path, _: "hang" if drawing(path) else None
    worker, stuck = new_worker(), []
    worker.put(QueuedJob(member, "draft", asking("Why?"), stuck.append))
    asked = len(server.asked)
    assert until(lambda: len(server.asked) > asked)
    server.fault = None
    (reply,) = replies_of(member, [asking("Why not?")], silence_s=None, worker=worker)
    assert isinstance(reply, Draft) and not stuck


def test_a_request_whose_answer_is_over_keeps_no_later_one_waiting(served: Any) -> None:
    """Its connection is shut, which says nothing about the server."""
    server, member = served
    member.max_concurrency = 1
    server.fault = lambda path, _: "hang" if drawing(path) else None
    worker, job = new_worker(), asking("Why?")
    worker.put(QueuedJob(member, "draft", job, lambda reply: None))
    asked = len(server.asked)
    assert until(lambda: any(drawing(path) for path, _ in server.asked[asked:]))
    server.fault = None
    worker.forget(member, job.query.id)
    asked, since = len(server.asked), time.monotonic()
    (reply,) = replies_of(member, [asking("Why not?")], silence_s=None, worker=worker)
    assert isinstance(reply, Draft)
    assert time.monotonic() - since < member.address.timeout_s - 1
    assert "/v1/models" not in [path for path, _ in server.asked[asked:]], "no new connection"


def test_a_new_connection_leaves_the_requests_under_way_alone(served: Any) -> None:
    """One connection that breaks makes the member connect again."""
    server, member = served
    worker, first, second = new_worker(), [], []
    release = threading.Event()

    def slow_then_cut(path: str, _: int) -> Any:
        if not drawing(path) or release.is_set():
            return None
        if not first_asked.is_set():
            first_asked.set()
            release.wait(PATIENCE_S)
            return None
        return "cut"

    first_asked = threading.Event()
    server.fault = slow_then_cut
    worker.put(QueuedJob(member, "draft", asking("Why?"), first.append))
    assert first_asked.wait(PATIENCE_S)
    worker.put(QueuedJob(member, "draft", asking("Why not?"), second.append))
    assert until(lambda: second)
    assert isinstance(second[0], Failure)
    listed = sum("models" in path for path, _ in server.asked)
    third: list[Any] = []
    worker.put(QueuedJob(member, "draft", asking("And why?"), third.append))
    assert until(lambda: sum("models" in path for path, _ in server.asked) > listed)
    assert not first
    release.set()
    assert until(lambda: first)
    assert isinstance(first[0], Draft)


def test_jobs_that_wait_for_a_new_connection_share_its_failure(served: Any) -> None:
    server, member = served
    server.stop()
    since = time.monotonic()
    replies = replies_of(member, [asking(f"Why {number}?") for number in range(8)], silence_s=None)
    assert {reply.kind for reply in replies} == {"error"}
    again = replies_of(member, [asking(f"Why {number}?") for number in range(8)], silence_s=None)
    assert {reply.kind for reply in again} == {"error"}
    one_by_one = 8 * (0.2 + 0.4 + 0.8)  # the pauses between the attempts of eight jobs
    assert time.monotonic() - since < one_by_one


class Receiver:
    """Takes a reply."""

    def __call__(self, reply: Any) -> None:
        self.reply = reply


def test_a_failed_connection_keeps_no_job_alive(served: Any) -> None:
    server, member = served
    server.stop()
    worker, receivers = new_worker(), [Receiver() for _ in range(4)]
    jobs = [asking(f"Why {number}?") for number in range(4)]
    replies_of(member, [asking("Why?")], silence_s=None)  # notices it
    worker.put(*(QueuedJob(member, "draft", *one) for one in zip(jobs, receivers, strict=True)))
    assert until(lambda: all(hasattr(receiver, "reply") for receiver in receivers))
    assert {receiver.reply.kind for receiver in receivers} == {"error"}
    left = [weakref.ref(receiver) for receiver in receivers]
    receivers.clear()
    assert until(lambda: gc.collect() >= 0 and not any(ref() for ref in left))


# --- models in this process -----------------------------------------------------------------------


def signs_during(member: Any, work: Callable[[], Any]) -> int:
    """How many different signs another thread sees meanwhile."""
    seen, done = set(), threading.Event()

    def look() -> None:
        while not done.is_set():
            seen.add(member.last_sign)
            time.sleep(0)

    watcher = threading.Thread(target=look)
    watcher.start()
    work()
    done.set()
    watcher.join()
    return len(seen)


@pytest.fixture(params=["llama.cpp", "transformers"])
def local(request: Any) -> Any:
    if request.param == "transformers":
        member = tiny.member("llama", 1)
    else:
        member = LlamaCppMember(str(request.getfixturevalue("tiny_llama")))
    member.probe()
    yield member
    member.unload()


def test_a_local_member_gives_a_sign_with_each_token(local: Any) -> None:
    def signs() -> int:
        return signs_during(local, lambda: local.draft([asking("Why?", segment_tokens=32)]))

    before = time.monotonic()
    # The watching thread sees some of them. On a busy machine, it may miss most of a draft.
    assert any(signs() > 2 for _ in range(10))
    assert before < local.last_sign <= time.monotonic()


def test_a_local_member_gives_a_sign_with_each_chunk_of_a_prompt(local: Any) -> None:
    job = asking("The air scatters blue light. " * 40)
    (pending,) = local.draft([replace(job, prefill_chunks=0)])
    before = local.last_sign
    local.draft([replace(job, prefill_chunks=1)])
    assert pending.left and local.last_sign > before


def test_a_member_that_loads_gives_signs(local: Any) -> None:
    local.unload()
    first = local.last_sign
    time.sleep(0.001)
    assert local.last_sign > first
