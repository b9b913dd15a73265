"""Members in actors of a fake Ray: replies, deaths and placement. ``test_ray_real`` uses a real
cluster."""

from __future__ import annotations

import pickle
import re
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from threading import Lock
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest
from langchain_anthropic import ChatAnthropic
from langchain_core.tools import tool

from langchain_specfuse import ChatModelMember, RayMember, ScriptedMember, SpecFuseChatModel
from langchain_specfuse.core.call import Call, note_arrival
from langchain_specfuse.core.member import Probe
from langchain_specfuse.core.values import Candidate, Draft, DraftJob, Failure
from langchain_specfuse.errors import MemberError, UsageError

from .contract import draft_job, score_job
from .fake_provider import Call as ToolCall
from .fake_provider import FakeProvider, Reply, Text

STORY = "The sky is blue because the air scatters blue light."


class RayError(Exception): ...


class ActorUnavailableError(RayError): ...


class ActorDiedError(RayError): ...


class RayTaskError(RayError):
    def __init__(self, cause: Exception) -> None:
        self.cause = cause


class FakeRay(ModuleType):
    """The part of Ray that RayMember uses. Processes are objects; whatever crosses between them is
    pickled."""

    def __init__(self) -> None:
        super().__init__("ray")
        errors = (RayError, RayTaskError, ActorDiedError)
        self.exceptions = SimpleNamespace(**{error.__name__: error for error in errors})
        self.util = SimpleNamespace(get_node_ip_address=lambda: "127.0.0.1")
        self.resources: dict[str, float] = {"CPU": 12.0, "memory": 1e9}
        self.connected = False
        self.canceled = False
        self.placed = True
        self.actors: list[FakeActor] = []
        self.kills: Callable[[str], bool] = lambda query_id: False
        """Whether a job of this query kills its process."""

    def init(self, *_: Any, **__: Any) -> None:
        self.connected = True

    def shutdown(self) -> None:
        self.connected = False
        for actor in self.actors:
            actor.end(ActorDiedError("Ray was shut down"))

    def is_initialized(self) -> bool:
        return self.connected

    def cluster_resources(self) -> dict[str, float]:
        return self.resources

    def available_resources(self) -> dict[str, float]:
        return {"CPU": 0.5}

    def remote(self, cls: type) -> Any:
        def options(**given: Any) -> SimpleNamespace:
            return SimpleNamespace(remote=lambda *args: FakeActor(self, cls, args, given))

        return SimpleNamespace(options=options)

    def cancel(self, task: Any) -> None:
        self.canceled = True

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(is_canceled=lambda: self.canceled)

    def wait(self, refs: list[Any], **_: Any) -> tuple[list[Any], list[Any]]:
        return (refs, []) if self.placed else ([], refs)

    def get(self, ref: Any) -> Any:
        return ref() if callable(ref) else ref[0].run(ref[1])

    def kill(self, actor: FakeActor) -> None:
        actor.end(ActorDiedError("killed"))


class FakeActor:
    def __init__(
        self, ray: FakeRay, cls: type, args: tuple[Any, ...], options: dict[str, Any]
    ) -> None:
        self.ray, self.made, self.options = ray, pickle.dumps((cls, args)), options
        self.__ray_ready__ = SimpleNamespace(remote=lambda: (self, None))
        self.call = SimpleNamespace(remote=lambda *args: (self, pickle.dumps(args)))
        self.stream = SimpleNamespace(remote=self._stream)
        ray.actors.append(self)
        self.begin()

    def begin(self) -> None:
        cls, args = pickle.loads(self.made)
        self.process, self.error = cls(*args), None

    def end(self, error: Exception) -> None:
        self.process, self.error = None, error

    def _stream(self, *args: Any) -> Iterator[Callable[[], Any]]:
        """Yield references to what the process's generator yields, or to its error."""
        parts = self.process.stream(*pickle.loads(pickle.dumps(args)))
        with ThreadPoolExecutor(1) as process:
            while True:
                try:
                    part = process.submit(next, parts, None).result()
                except Exception as error:
                    yield partial(_raise, RayTaskError(pickle.loads(pickle.dumps(error))))
                    return
                if self.error is not None:
                    yield partial(self.run, None)
                if part is None or self.error is not None:
                    return
                yield partial(pickle.loads, pickle.dumps(part))

    def run(self, args: bytes | None) -> Any:
        if self.error is not None:
            error = self.error
            if isinstance(error, ActorUnavailableError):
                self.begin()  # the next call finds it restarted
            raise error
        if args is None:
            return None
        method, *arguments = pickle.loads(args)
        if method in ("draft", "score") and any(
            self.ray.kills(job.query.id) for job in arguments[0]
        ):
            self.end(ActorUnavailableError("the process died"))
            return self.run(args)
        try:
            return pickle.loads(pickle.dumps(self.process.call(method, *arguments)))
        except Exception as error:
            raise RayTaskError(pickle.loads(pickle.dumps(error))) from None


def _raise(error: Exception) -> None:
    raise error


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    fake = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", fake)
    return fake


# --- replies --------------------------------------------------------------------------------------


def test_replies_are_those_of_the_member_in_this_process(ray: FakeRay) -> None:
    here = ScriptedMember(STORY, name="ann")
    there = RayMember(here)
    jobs = [draft_job(id=f"q{size}", segment_tokens=size) for size in (1, 3, 5)]
    scores = [score_job(Candidate(" is blue", False, ("x",)), id=f"s{k}") for k in range(3)]
    assert there.draft(jobs) == here.draft(jobs) and there.score(scores) == here.score(scores)
    assert "by Ray at 127.0.0.1, process " in there.probe().detail
    assert replace(there.probe(), detail="scripted") == here.probe()
    assert there.token_ids(STORY) == here.token_ids(STORY) and there.spec == here.spec
    assert not hasattr(there, "token_count")
    assert SpecFuseChatModel(members=[there]).invoke("?").text == STORY


class Excluding(ScriptedMember):
    """Writes the tokens that it may not write."""

    def probe(self) -> Probe:
        return replace(super().probe(), excludes=True)

    def draft(self, jobs: Sequence[DraftJob]) -> list[Draft | Failure]:
        return [Draft("x", tokens=job.excluded, others=((7, " y"),)) for job in jobs]


def test_excluded_tokens_and_the_others_cross_the_process(ray: FakeRay) -> None:
    member = RayMember(Excluding(STORY))
    assert member.probe().excludes
    (draft,) = member.draft([replace(draft_job(), excluded=(3, 5))])
    assert isinstance(draft, Draft)
    assert (draft.tokens, draft.others) == ((3, 5), ((7, " y"),))


class Trouble(Exception):
    """An error that cannot be unpickled."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


def trouble(query: Any) -> str:
    raise Trouble(1, 2)


def test_an_error_that_cannot_be_pickled_keeps_its_text(ray: FakeRay) -> None:
    (failure,) = RayMember(ScriptedMember(trouble)).draft([draft_job()])
    assert isinstance(failure, Failure) and failure.message == "Trouble: 1 and 2"
    assert isinstance(failure.cause, MemberError)


# --- streams --------------------------------------------------------------------------------------


@tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


def test_a_chat_model_in_another_process_answers_as_in_this_one(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the name of its provider, and with the tokens that it reports."""
    server = FakeProvider("anthropic", Reply([Text("I look."), ToolCall("weather", ("{}",))]))
    monkeypatch.setenv("ANTHROPIC_API_KEY", "key")
    monkeypatch.setenv("ANTHROPIC_API_URL", server.url)
    member = ChatModelMember("anthropic:claude-sonnet-4-6", name="claude")
    here, there = [
        SpecFuseChatModel(members=[each]).bind_tools([weather]).invoke("How is the weather?")
        for each in (member, RayMember(member))
    ]
    server.stop()
    for message in (here, there):
        message.response_metadata.pop("specfuse")
    assert there.model_dump(exclude={"id"}) == here.model_dump(exclude={"id"})
    assert there.content_blocks == here.content_blocks


def test_a_tool_that_cannot_be_pickled_goes_to_no_local_member(ray: FakeRay) -> None:
    lock = Lock()

    @tool
    def guarded(city: str) -> str:
        """The weather in a city."""
        with lock:
            return city

    lead = ChatModelMember(ChatAnthropic(model="x", api_key="key", base_url="http://[::1]:9"))
    reserve = RayMember(ScriptedMember(STORY, name="ann"))
    lead.model.max_retries = 0
    model = SpecFuseChatModel(members=[lead, reserve])
    assert model.bind_tools([guarded]).invoke("Why?").text == STORY


class Telling(ScriptedMember):
    """Streams its text, a word at a time."""

    waits = True
    silence_s = (5.0, 2.0)
    told: ClassVar[list[str]] = []

    def stream(self, job: DraftJob) -> Iterator[Draft | Failure]:
        begun = "".join(segment.text for segment in job.answer)
        for word in re.findall(r"\s*\S+", STORY.removeprefix(begun)):
            note_arrival()
            self.told.append(word)
            yield Draft(word, tokens=(1,), ended=word.endswith("."))


@pytest.fixture
def telling() -> RayMember:
    Telling.told.clear()
    return RayMember(Telling(STORY, name="tells"))


def text_of(replies: Iterable[Draft | Failure]) -> str:
    return "".join(reply.text for reply in replies if isinstance(reply, Draft))


def test_a_stream_is_passed_on_part_by_part(ray: FakeRay, telling: RayMember) -> None:
    parts = telling.stream(draft_job())
    assert next(parts).text == "The" and Telling.told == ["The"]
    assert "The" + text_of(parts) == STORY
    assert telling.waits and telling.silence_s == (5.0, 2.0)
    plain = RayMember(ScriptedMember(STORY))
    assert not hasattr(plain, "stream") and not hasattr(plain, "waits")


def test_closing_a_stream_ends_that_of_the_hosted_member(ray: FakeRay, telling: RayMember) -> None:
    parts = telling.stream(draft_job())
    next(parts)
    parts.close()
    assert ray.canceled and Telling.told == ["The"]
    assert not list(ray.actors[0].process.stream(draft_job()))


def test_a_closed_call_ends_the_stream(ray: FakeRay, telling: RayMember) -> None:
    call, parts = Call(), telling.stream(draft_job())
    with call.in_this_thread():
        next(parts)
        call.close()
        with pytest.raises(MemberError, match="given up"):
            next(parts)
    assert Telling.told == ["The"]


@pytest.mark.parametrize("death", [ActorUnavailableError, ActorDiedError])
def test_a_stream_goes_on_in_the_next_process(
    death: type[Exception], ray: FakeRay, telling: RayMember
) -> None:
    parts = telling.stream(draft_job(max_tokens=50))
    begun = [next(parts), next(parts)]
    ray.actors[0].end(death("SIGKILL"))
    assert text_of([*begun, *parts]) == STORY


def test_an_error_in_a_stream_is_the_hosted_members(ray: FakeRay) -> None:
    with pytest.raises(MemberError, match="Trouble: 1 and 2"):
        list(RayMember(Troubled(STORY)).stream(draft_job()))


class Troubled(ScriptedMember):
    def stream(self, job: DraftJob) -> Iterator[Draft | Failure]:
        yield Draft("The")
        raise Trouble(1, 2)


# --- deaths ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("death", [ActorUnavailableError, ActorDiedError])
def test_a_killed_process_loses_no_reply(death: type[Exception], ray: FakeRay) -> None:
    """Ray restarts it, or has given it up."""
    member, here = RayMember(ScriptedMember(STORY)), ScriptedMember(STORY)
    jobs = [draft_job(id=f"q{k}") for k in range(6)]
    member.draft(jobs)
    ray.actors[0].end(death("SIGKILL"))
    assert member.draft(jobs) == here.draft(jobs)


def test_a_job_that_kills_its_process_again_and_again_fails(ray: FakeRay) -> None:
    ray.kills = lambda query: query == "q1"
    member = RayMember(ScriptedMember(STORY, name="ann"))
    with pytest.raises(MemberError, match="ann died over 'draft': ActorUnavailableError"):
        member.draft([draft_job(id="q1")])
    assert isinstance(member.draft([draft_job(id="q2")])[0], Draft)


def test_actors_end_with_unload_and_are_started_again(ray: FakeRay) -> None:
    member = RayMember(ScriptedMember(STORY))
    for end in (member.unload, ray.shutdown):
        member.probe()
        end()
        assert all(actor.process is None for actor in ray.actors)
        assert isinstance(member.draft([draft_job()])[0], Draft)


def test_a_copy_starts_an_actor_of_its_own(ray: FakeRay) -> None:
    member = RayMember(ScriptedMember(STORY, name="ann"), num_cpus=2)
    member.probe()
    copy = pickle.loads(pickle.dumps(member))
    assert (repr(copy), copy.num_cpus) == (repr(member), 2)
    copy.probe()
    assert len(ray.actors) == 2


# --- placement ------------------------------------------------------------------------------------


@pytest.mark.parametrize("there", [0, 4])
def test_a_member_takes_a_gpu_if_the_cluster_has_any(ray: FakeRay, there: int) -> None:
    ray.resources = {"CPU": 4, "GPU": there}
    RayMember(ScriptedMember("x")).probe()
    RayMember(ScriptedMember("x"), num_gpus=0.5).probe()
    assert [actor.options["num_gpus"] for actor in ray.actors] == [min(there, 1), 0.5]


def test_waiting_for_occupied_resources_ends(ray: FakeRay) -> None:
    ray.placed = False
    with pytest.raises(MemberError, match=r"120 s.*CPU': 0\.5"):
        RayMember(ScriptedMember("x")).probe()
    assert all(actor.process is None for actor in ray.actors)


def test_an_address_where_nothing_listens_is_refused_soon(ray: FakeRay) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(MemberError, match=f"no Ray cluster.*'{address}'") as raised:
        RayMember(ScriptedMember("x"), cluster=address).probe()
    assert "ray start" in raised.value.notes[0]


# --- arguments ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"member": "Qwen/Qwen3-0.6B"}, "hosts a member, got 'Qwen"),
        ({"member": RayMember(ScriptedMember("x"))}, "hosts a member"),
        ({"cluster": "ray://host:10001"}, "an address"),
        ({"num_gpus": -1}, "num_gpus"),
        ({"resources": {"tpu": "one"}}, "resources must be a dict of numbers of at least 0"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        RayMember(**{"member": ScriptedMember("x"), **arguments})


def test_without_ray_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"ray.*not installed") as raised:
        RayMember(ScriptedMember("x")).probe()
    assert raised.value.notes == ('-> pip install "langchain-specfuse[ray]"',)
