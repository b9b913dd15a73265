"""Members in actors of a fake Ray: replies, deaths and placement. ``test_ray_real`` uses a real
cluster."""

from __future__ import annotations

import itertools
import pickle
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from langchain_specfuse import ChatModelMember, RayMember, ScriptedMember, SpecFuseChatModel
from langchain_specfuse.core.member import Probe
from langchain_specfuse.core.values import Candidate, Draft, DraftJob, Failure
from langchain_specfuse.errors import MemberError, UsageError
from langchain_specfuse.members import ray as ray_module

from .contract import draft_job, score_job
from .test_chat_model import talker

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
        self.resources: list[dict[str, float]] = [
            {"CPU": 8.0, "memory": 1e9},
            {"CPU": 4.0, "node:10.0.0.1": 1.0},
        ]
        self.connected = False
        self.placed, self.restarts = True, True
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

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(gcs_address="127.0.0.1:6379")

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": resources} for resources in self.resources]

    def available_resources(self) -> dict[str, float]:
        return {"CPU": 0.5}

    def remote(self, cls: type) -> Any:
        return SimpleNamespace(
            options=lambda **_: SimpleNamespace(remote=lambda *args: FakeActor(self, cls, args))
        )

    def wait(self, refs: list[Any], **_: Any) -> tuple[list[Any], list[Any]]:
        return (refs, []) if self.placed else ([], refs)

    def get(self, ref: tuple[FakeActor, str, bytes]) -> Any:
        return ref[0].run(*ref[1:])

    def kill(self, actor: FakeActor) -> None:
        actor.end(ActorDiedError("killed"))


class FakeActor:
    pids = itertools.count(1)

    def __init__(self, ray: FakeRay, cls: type, args: tuple[Any, ...]) -> None:
        self.ray, self.made = ray, pickle.dumps((cls, args))
        self.asked: list[str] = []
        """The queries of its jobs."""
        self.where = SimpleNamespace(remote=lambda: (self, "where", pickle.dumps(())))
        self.call = SimpleNamespace(remote=lambda *args: (self, "call", pickle.dumps(args)))
        ray.actors.append(self)
        self.begin()

    def begin(self) -> None:
        cls, args = pickle.loads(self.made)
        self.process, self.pid, self.error = cls(*args), next(self.pids), None

    def end(self, error: Exception) -> None:
        self.process, self.error = None, error

    def run(self, name: str, args: bytes) -> Any:
        if self.error is not None:
            error = self.error
            if isinstance(error, ActorUnavailableError) and self.ray.restarts:
                self.begin()  # the next call finds it restarted
            raise error
        method, *arguments = pickle.loads(args) or (name,)
        if name == "where":
            return "127.0.0.1", self.pid
        if method in ("draft", "score"):
            self.asked += [job.query.id for job in arguments[0]]
            if any(self.ray.kills(job.query.id) for job in arguments[0]):
                self.end(ActorUnavailableError("the process died"))
                return self.run(name, args)
        try:
            return pickle.loads(pickle.dumps(self.process.call(method, *arguments)))
        except Exception as error:
            raise RayTaskError(pickle.loads(pickle.dumps(error))) from None


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    fake = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setattr(ray_module, "PAUSE_S", 0.001)
    return fake


# --- replies --------------------------------------------------------------------------------------


def test_replies_are_those_of_the_member_in_this_process(ray: FakeRay) -> None:
    here = ScriptedMember(STORY, name="ann")
    there = RayMember(here)
    jobs = [draft_job(id=f"q{size}", segment_tokens=size) for size in (1, 3, 5)]
    scores = [score_job(Candidate(" is blue", False, ("x",)), id=f"s{k}") for k in range(3)]
    assert there.draft(jobs) == here.draft(jobs) and there.score(scores) == here.score(scores)
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


def test_a_hosted_member_that_watches_its_own_requests_is_not_watched_from_here(
    ray: FakeRay,
) -> None:
    there = RayMember(ChatModelMember(talker(), name="ann"))
    assert there.last_sign == 0.0, "its process has not begun"
    there.probe()
    assert there.last_sign > 0.0
    assert not hasattr(RayMember(ScriptedMember(STORY)), "last_sign")


# --- deaths ---------------------------------------------------------------------------------------


def test_a_killed_process_loses_no_reply(ray: FakeRay) -> None:
    member, here = RayMember(ScriptedMember(STORY)), ScriptedMember(STORY)
    jobs = [draft_job(id=f"q{k}") for k in range(6)]
    before = member.draft(jobs) and member.place
    ray.actors[0].end(ActorUnavailableError("SIGKILL"))
    assert member.draft(jobs) == here.draft(jobs)
    assert member.draft([draft_job(id=f"n{k}") for k in range(6)]) and member.place != before


def test_a_job_that_kills_its_process_takes_no_other_with_it(ray: FakeRay) -> None:
    ray.kills = lambda query: query == "q1"
    first, lost, third = RayMember(ScriptedMember(STORY)).draft(
        [draft_job(id=f"q{k}") for k in range(3)]
    )
    assert isinstance(first, Draft) and isinstance(third, Draft)
    assert (
        isinstance(lost, Failure) and "died over this draft: ActorUnavailableError" in lost.message
    )


def test_an_actor_that_ray_does_not_restart_is_replaced(ray: FakeRay) -> None:
    member = RayMember(ScriptedMember(STORY))
    member.probe()
    ray.actors[0].end(ActorDiedError("killed for good"))
    assert isinstance(member.draft([draft_job()])[0], Draft) and len(ray.actors) == 2


def test_jobs_fail_until_a_process_is_back(ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_module, "RESTART_S", 0.05)
    member = RayMember(ScriptedMember(STORY, name="ann"))
    member.probe()
    ray.restarts = False
    ray.actors[0].end(ActorUnavailableError("its node is gone"))
    (failure,) = member.draft([draft_job()])
    assert failure.message.endswith("is not back yet: ActorUnavailableError: its node is gone")
    with pytest.raises(MemberError, match="is not back yet"):
        member.token_ids("x")
    ray.restarts = True
    while isinstance(member.draft([draft_job()])[0], Failure):
        pass


def test_actors_end_with_unload_and_are_started_again(ray: FakeRay) -> None:
    member = RayMember(ScriptedMember(STORY))
    for end in (member.unload, ray.shutdown):
        member.probe()
        assert member.place is not None
        end()
        assert all(actor.process is None for actor in ray.actors)
        assert isinstance(member.draft([draft_job()])[0], Draft)


# --- placement ------------------------------------------------------------------------------------


def test_resources_that_no_node_has_are_refused_with_what_there_is(ray: FakeRay) -> None:
    with pytest.raises(UsageError) as raised:
        RayMember(ScriptedMember("x", name="ann"), num_gpus=1).probe()
    for part in ("ann wants CPU 1, GPU 1", "CPU 8", "CPU 4"):
        assert part in str(raised.value)


def test_a_member_takes_a_gpu_if_the_cluster_has_any(ray: FakeRay) -> None:
    ray.resources = [{"CPU": 4, "GPU": 0}]
    RayMember(ScriptedMember("x")).probe()
    ray.resources = [{"CPU": 0, "GPU": 4}, {"CPU": 4, "GPU": 0}]
    with pytest.raises(UsageError, match="wants CPU 1, GPU 1"):
        RayMember(ScriptedMember("x")).probe()


def test_waiting_for_occupied_resources_ends(ray: FakeRay) -> None:
    ray.placed = False
    with pytest.raises(MemberError, match=r"120 s.*CPU 1.*CPU 0\.5"):
        RayMember(ScriptedMember("x")).probe()
    assert all(actor.process is None for actor in ray.actors)


def test_a_process_belongs_to_one_cluster(ray: FakeRay) -> None:
    RayMember(ScriptedMember("x")).probe()
    RayMember(ScriptedMember("x"), cluster="localhost:6379").probe()
    with pytest.raises(UsageError, match="cluster at '127"):
        RayMember(ScriptedMember("x"), cluster="127.0.0.1:6380").probe()


def test_an_address_where_nothing_listens_is_refused_soon(ray: FakeRay) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(MemberError, match=f"no Ray cluster.*'{address}'") as raised:
        RayMember(ScriptedMember("x"), cluster=address).probe()
    assert "ray start" in raised.value.__notes__[0]


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
    assert raised.value.__notes__ == ['-> pip install "langchain-specfuse[ray]"']
