"""Members on a real Ray cluster of two nodes keep the contract and survive the deaths of processes.

``make test-serving`` runs these.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="no Ray: pip install 'langchain-specfuse[ray]'")

from langchain_specfuse import (
    ChatModelMember,
    Method,
    RayMember,
    ScriptedMember,
    SpecFuseChatModel,
    TransformersMember,
)
from langchain_specfuse.core.member import Member
from langchain_specfuse.core.values import Draft
from langchain_specfuse.errors import MemberError
from langchain_specfuse.members import ray as ray_module

from . import clusters, tiny
from .contract import MemberContract, draft_job

pytestmark = [
    pytest.mark.serving,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning:ray.*"),
]
STORY = clusters.STORY
LONG_S = 120.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[clusters.Cluster]:
    with clusters.running(cpus=8) as running:
        yield running


@pytest.fixture
def ray_member(cluster: clusters.Cluster) -> Iterator[Callable[..., RayMember]]:
    """Return a function that creates members on the cluster; they end with the test."""
    members: list[RayMember] = []

    def make(member: Member, **where: object) -> RayMember:
        members.append(RayMember(member, cluster=cluster.address, **where))
        return members[-1]

    yield make
    for member in members:
        member.unload()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a tiny model with its tokenizer as files."""
    path = tmp_path_factory.mktemp("tiny")
    for part in tiny.cached("llama", 1):
        part.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def hosted(cluster: clusters.Cluster, folder: Path) -> Iterator[RayMember]:
    member = RayMember(
        TransformersMember(str(folder), name="tiny", dtype="float32"), cluster=cluster.address
    )
    member.probe()
    yield member
    member.unload()


class TestTransformersOnRay(MemberContract):
    settles = False

    @pytest.fixture
    def make_member(self, hosted: RayMember) -> Callable[[], Member]:
        # starting a process that imports torch takes too long to do for every member
        return lambda: hosted


def test_replies_are_those_of_the_member_in_this_process(hosted: RayMember, folder: Path) -> None:
    here = TransformersMember(str(folder), name="tiny", dtype="float32")
    here.probe()
    jobs = [draft_job(f"Why is {what}?", id=what, segment_tokens=8) for what in "abcde"]
    for reply, other in zip(hosted.draft(jobs), here.draft(jobs), strict=True):
        assert isinstance(reply, Draft) and tiny.difference(reply, other) < 1e-4
    assert hosted.token_ids(STORY) == here.token_ids(STORY)
    assert hosted.token_count(jobs[0].query.turns) == here.token_count(jobs[0].query.turns)


def test_resources_choose_the_node(ray_member: Callable[..., RayMember]) -> None:
    assert (
        clusters.OTHER in ray_member(ScriptedMember(STORY), resources={"other": 0.5}).probe().detail
    )


def test_killing_a_process_in_the_middle_of_20_answers_loses_none_of_them(
    ray_member: Callable[..., RayMember],
) -> None:
    there = [ray_member(clusters.Slow(f"{STORY} {name}", name=name)) for name in ("ann", "bob")]
    llm = SpecFuseChatModel(members=there, method=Method(segment_tokens=4))
    llm.invoke("warm up")
    with ThreadPoolExecutor(1) as asking:
        answers = asking.submit(llm.batch, [f"question {k}" for k in range(20)])
        time.sleep(0.5)
        os.kill(process_of(there[0]), signal.SIGKILL)
        # On a busy machine, its process is not back after three attempts: then bob ends the answer.
        ends = {f"{STORY} ann", f"{STORY} bob"}
        texts = [reply.text for reply in answers.result(LONG_S)]
        assert len(texts) == 20 and ends.issuperset(texts)


def test_a_stream_of_a_chat_model_is_passed_on_and_survives_its_process(
    ray_member: Callable[..., RayMember],
) -> None:
    model = clusters.Talking()
    member = ray_member(ChatModelMember(model, name="talks"))
    job = draft_job(max_tokens=200)
    here = "".join(draft.text for draft in ChatModelMember(model, name="talks").stream(job))
    parts = member.stream(job)
    begun = [next(parts) for _ in range(3)]
    assert [part.text for part in begun] == here.split(" ")[:1] + [
        f" {word}" for word in here.split(" ")[1:3]
    ]
    os.kill(process_of(member), signal.SIGKILL)
    assert "".join(part.text for part in [*begun, *parts]) == here


def test_closing_streams_frees_the_threads_of_their_process(
    ray_member: Callable[..., RayMember],
) -> None:
    """Two at a time, and each would take minutes."""
    model = clusters.Talking(script=STORY * 100)
    member = ray_member(ChatModelMember(model, name="talks", max_concurrency=2))
    start = time.monotonic()
    for number in range(5):
        parts = member.stream(draft_job(id=f"q{number}", max_tokens=10_000))
        next(parts)
        parts.close()
    assert time.monotonic() - start < 60


def test_a_member_on_a_lost_node_is_away_until_the_node_is_back(
    cluster: clusters.Cluster, ray_member: Callable[..., RayMember], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_module, "RESTART_S", 3.0)
    bound = ray_member(ScriptedMember(STORY, name="bound"), resources={"other": 1})
    pid = process_of(bound)
    cluster.lose()
    until(lambda: not Path(f"/proc/{pid}").exists())
    with pytest.raises(MemberError, match=r"no place for bound within 3 s|bound died"):
        bound.draft([draft_job()])
    cluster.add()

    def is_back() -> bool:
        try:
            return isinstance(bound.draft([draft_job()])[0], Draft)
        except MemberError:
            return False

    until(is_back)


def test_a_program_exits_and_ends_its_actors(cluster: clusters.Cluster) -> None:
    code = f"""
from langchain_specfuse import RayMember, ScriptedMember, SpecFuseChatModel
member = RayMember(ScriptedMember("The sky is blue.", name="ann"), cluster={cluster.address!r})
llm = SpecFuseChatModel(members=[member])
print(llm.invoke("?").text)
import ray
ray.shutdown()
print(llm.invoke("?").text)
member.unload()
print(member.probe().detail)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=LONG_S
    )
    assert done.returncode == 0, done.stderr
    first, second, detail = done.stdout.splitlines()
    assert (first, second, done.stderr) == ("The sky is blue.", "The sky is blue.", "")
    pid = int(detail.rpartition(" ")[2])
    until(lambda: not Path(f"/proc/{pid}").exists())


def process_of(member: RayMember) -> int:
    return int(member.probe().detail.rpartition(" ")[2])


def until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONG_S
    while not done():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.1)
