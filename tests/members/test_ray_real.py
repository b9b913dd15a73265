"""Members on a real Ray cluster of two nodes: the contract, and answers that survive the deaths of their processes.

``make test-serving`` runs these; without Ray they are skipped, and say so.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from langchain_specfuse import RayMember, ScriptedMember, SpecFuseChatModel, _registry
from langchain_specfuse.cli import main
from langchain_specfuse.core.member import Member
from langchain_specfuse.core.values import Candidate, Constraint, Draft, Failure
from langchain_specfuse.errors import EnsembleError, MemberError, UsageError
from langchain_specfuse.members import _places, _replica
from langchain_specfuse.members.transformers import TransformersMember

from . import clusters, tiny
from .contract import MemberContract, draft_job

if not clusters.installed():
    pytest.skip(clusters.MISSING, allow_module_level=True)
pytestmark = [
    pytest.mark.serving,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning:ray.*"),
]
STORY = clusters.STORY


@pytest.fixture(scope="module")
def cluster() -> Iterator[clusters.Cluster]:
    with clusters.running(cpus=8) as one:
        yield one


@pytest.fixture
def made(cluster: clusters.Cluster) -> Iterator[Callable[..., RayMember]]:
    """Makes members on the cluster, which end with the test."""
    everyone: list[RayMember] = []

    def make(member: Member, **where: object) -> RayMember:
        everyone.append(RayMember(member, cluster=cluster.address, **where))
        return everyone[-1]

    yield make
    for one in everyone:
        one.unload()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with its tokenizer, as files."""
    path = tmp_path_factory.mktemp("tiny")
    for part in tiny.cached("llama", 1):
        part.save_pretrained(path)
    return path


# --- the contract -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def processes(cluster: clusters.Cluster, folder: Path) -> Iterator[list[RayMember]]:
    """Two members, the second in two processes. Importing torch takes seconds, so they stay."""
    hosted = TransformersMember(str(folder), name="tiny", dtype="float32")
    both = [RayMember(hosted, cluster=cluster.address, replicas=k, num_cpus=0.5) for k in (1, 2)]
    for one in both:
        one.probe()
    yield both
    for one in both:
        one.unload()


class TestTransformersOnRay(MemberContract):
    """A new member is one whose processes have let go of all that they loaded."""

    settles = False

    @pytest.fixture
    def make_member(self, processes: list[RayMember]) -> Callable[[], Member]:
        def fresh() -> Member:
            processes.append(processes.pop(0))
            for one in processes[0]._team:
                _ = one.told(one.ask("unload"))
            return processes[0]

        return fresh


def test_it_says_what_its_member_says_in_this_process(made: Callable[..., RayMember], folder: Path) -> None:
    here = TransformersMember(str(folder), name="tiny", dtype="float32")
    there = made(TransformersMember(str(folder), name="tiny", dtype="float32"), replicas=2)
    jobs = [draft_job(f"Why is {what}?", id=what, segment_tokens=8) for what in "abcde"]
    colours = Constraint("choice", '["a very deep red", "blue as the sky is"]')
    jobs += [replace(jobs[0], query=replace(jobs[0].query, id="bound", constraint=colours))]
    jobs += [replace(jobs[0], query=replace(jobs[0].query, id="hinted"), hints=(Candidate(" a b", False, ("x",)),))]
    assert replace(there.probe(), detail="") == replace(here.probe(), detail="")
    for one, other in zip(there.draft(jobs), here.draft(jobs), strict=True):
        assert isinstance(one, Draft) and isinstance(other, Draft)
        assert (one.text, one.tokens, one.ends) == (other.text, other.tokens, other.ends)
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
    text = "The sky is blue."
    assert there.token_ids(text) == here.token_ids(text)
    assert there.token_count(jobs[0].query.turns) == here.token_count(jobs[0].query.turns)


# --- places -----------------------------------------------------------------------------------------------------


def test_resources_say_where_it_lives(made: Callable[..., RayMember]) -> None:
    member = made(ScriptedMember(STORY), resources={"other": 0.5}, replicas=2)
    assert clusters.OTHER in member.probe().detail
    assert [node for node, _ in member.places] == [clusters.OTHER] * 2


def test_replicas_are_spread_and_a_query_stays_at_its_own(made: Callable[..., RayMember]) -> None:
    member = made(clusters.Whereabouts(), replicas=2)
    member.probe()
    assert {node for node, _ in member.places} == {clusters.HEAD, clusters.OTHER}
    jobs = [draft_job(id=f"q{k}") for k in range(6)]
    first = [one.text for one in member.draft(jobs)]
    assert sorted(first.count(pid) for pid in set(first)) == [3, 3]
    for _ in range(5):
        assert [one.text for one in member.draft(jobs[::-1])] == first[::-1]


def test_a_place_that_others_hold_is_waited_for_but_not_forever(
    made: Callable[..., RayMember], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first = made(ScriptedMember("x", name="first"), resources={"other": 2})
    first.probe()
    monkeypatch.setattr(_places, "PLACING_S", 3.0)
    monkeypatch.setattr(_places, "WARNED_S", 1.0)
    late = made(ScriptedMember("x", name="late"), resources={"other": 1})
    with pytest.raises(MemberError, match="late found no place within 3 s: it wants CPU 1, other 1; free are CPU"):
        late.probe()
    assert "late waits for its place" in caplog.text
    first.unload()
    monkeypatch.undo()
    late.probe()  # the place is free now, and the one that waited in vain does not hold it
    assert [node for node, _ in late.places] == [clusters.OTHER]


def test_what_no_node_has_is_told_at_once(made: Callable[..., RayMember]) -> None:
    since = time.monotonic()
    told = r"1 replica wants CPU 1, GPU 1; the cluster has room for 0. Its nodes: .*other 2"
    with pytest.raises(UsageError, match=told):
        made(ScriptedMember("x"), num_gpus=1).probe()
    assert time.monotonic() - since < 30


def test_another_cluster_is_refused_and_a_model_in_memory_too(made: Callable[..., RayMember]) -> None:
    made(ScriptedMember("x")).probe()
    with pytest.raises(UsageError, match="belongs to the Ray cluster at"):
        RayMember(ScriptedMember("x"), cluster="127.0.0.9:1").probe()
    with pytest.raises(UsageError, match="stays in its process"):
        made(TransformersMember(*tiny.cached("llama", 1))).probe()
    with pytest.raises(UsageError, match="cannot be sent to another process"):
        made(clusters.Unsendable()).probe()


def test_an_error_while_loading_is_the_member_s_own(made: Callable[..., RayMember], tmp_path: Path) -> None:
    with pytest.raises(MemberError, match="nothing does not exist") as raised:
        made(TransformersMember(str(tmp_path / "nothing"))).probe()
    assert raised.value.kind == "not_found" and "config.json" in raised.value.__notes__[0]


def test_members_load_at_the_same_time(made: Callable[..., RayMember], tmp_path: Path) -> None:
    members = [made(clusters.Meeting(tmp_path, name)) for name in ("ann", "bob")]
    assert SpecFuseChatModel(members=members).invoke("?").text == STORY


# --- deaths -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_process_killed_in_the_middle_of_20_answers_costs_none_of_them(
    made: Callable[..., RayMember], replicas: int
) -> None:
    hosted = [clusters.Slow(f"{STORY} {name}", name=name) for name in ("ann", "bob")]
    quiet = SpecFuseChatModel(members=[ScriptedMember(f"{STORY} {name}", name=name) for name in ("ann", "bob")])
    llm = SpecFuseChatModel(members=[made(one, replicas=replicas) for one in hosted], segment_tokens=4)
    questions = [f"question {k}" for k in range(20)]
    llm.invoke("warm up")
    answers: list[str] = []
    asking = threading.Thread(target=lambda: answers.extend(told.text for told in llm.batch(questions)))
    asking.start()
    time.sleep(0.5)
    assert not answers
    os.kill(llm.members[0].places[0][1], signal.SIGKILL)
    asking.join(120)
    assert answers == [told.text for told in quiet.bind(segment_tokens=4).batch(questions)]


def test_who_was_killed_votes_and_writes_on(made: Callable[..., RayMember]) -> None:
    """Its death is no departure."""
    members = [made(clusters.Slow(STORY, name=name)) for name in ("ann", "bob", "cleo")]
    llm = SpecFuseChatModel(members=members, segment_tokens=4, exit="never")
    pieces = []
    for chunk in llm.stream("?"):
        pieces.append(chunk)
        if len(pieces) == 3:
            os.kill(members[1].places[0][1], signal.SIGKILL)
    assert "".join(piece.text for piece in pieces) == STORY
    told = next(piece.response_metadata["specfuse"] for piece in pieces if "specfuse" in piece.response_metadata)
    assert told["exits"] == []


def test_a_job_that_kills_its_process_takes_no_other_along(made: Callable[..., RayMember]) -> None:
    member = made(clusters.Deadly())
    member.probe()
    jobs = [draft_job("die" if k == 1 else "live", id=f"q{k}") for k in range(3)]
    first, lost, third = member.draft(jobs)
    assert isinstance(first, Draft) and isinstance(third, Draft)
    assert isinstance(lost, Failure) and lost.message.startswith("it died 3 times over this draft: Actor")
    assert isinstance(member.draft([draft_job("live")])[0], Draft)


def test_who_is_killed_for_good_is_replaced(made: Callable[..., RayMember]) -> None:
    import ray

    member = made(ScriptedMember(STORY))
    member.probe()
    before = member.places
    ray.kill(member._team[0]._actor, no_restart=True)
    time.sleep(0.5)
    assert isinstance(member.draft([draft_job()])[0], Draft)
    assert member.places != before


def test_who_ends_its_members_may_ask_again(made: Callable[..., RayMember]) -> None:
    member = made(ScriptedMember(STORY))
    llm = SpecFuseChatModel(members=[member])
    assert llm.invoke("?").text == STORY
    pid = member.places[0][1]
    llm.unload()
    assert member.places == ()
    _until(lambda: not Path(f"/proc/{pid}").exists())
    assert llm.invoke("?").text == STORY


def test_a_node_that_is_lost_takes_its_member_along_until_it_is_back(
    cluster: clusters.Cluster, made: Callable[..., RayMember], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_replica, "RISING_S", 3.0)
    bound, free = made(ScriptedMember(STORY, name="bound"), resources={"other": 1}), made(ScriptedMember(STORY))
    llm = SpecFuseChatModel(members=[bound, free], min_members=1)
    assert llm.invoke("?").response_metadata["specfuse"]["exits"] == []
    pid = bound.places[0][1]
    cluster.lose()
    _until(lambda: not Path(f"/proc/{pid}").exists())
    told = llm.invoke("??")
    assert told.text == STORY
    assert [one["member"] for one in told.response_metadata["specfuse"]["exits"]] == ["bound"]
    assert "none is back yet" in told.response_metadata["specfuse"]["exits"][0]["reason"]
    since = time.monotonic()
    with pytest.raises(EnsembleError):
        SpecFuseChatModel(members=[bound]).invoke("?")
    assert time.monotonic() - since < 3, "nobody waits twice for who is gone"
    cluster.add()
    _until(lambda: llm.invoke("?").response_metadata["specfuse"]["exits"] == [], 60)


# --- the chat model ---------------------------------------------------------------------------------------------


def test_names_and_objects_are_spread_and_shared(cluster: clusters.Cluster, folder: Path) -> None:
    own = TransformersMember(str(folder), name="own", dtype="float32")
    named = {"model": str(folder), "name": "named", "dtype": "float32", "num_cpus": 0.5}
    scripted = ScriptedMember("x")
    llm = SpecFuseChatModel(members=[named, own, scripted], cluster=cluster.address, max_tokens=12)
    here = SpecFuseChatModel(
        members=[{"model": str(folder), "name": "named", "dtype": "float32"}, own, ScriptedMember("x")], max_tokens=12
    )
    assert llm.invoke("Why?").text == here.invoke("Why?").text
    ensemble = _registry.ensemble_for(llm.members, cluster=llm.cluster)
    assert [type(one) for one in ensemble.members.values()] == [RayMember, RayMember, ScriptedMember]
    twin = pickle.loads(pickle.dumps(SpecFuseChatModel(members=[named], cluster=cluster.address)))
    (other,) = _registry.ensemble_for(twin.members, cluster=twin.cluster).members.values()
    assert other is ensemble.members["named"]
    assert llm.get_num_tokens("The sky") == here.get_num_tokens("The sky")
    places = [one.places for one in ensemble.members.values() if isinstance(one, RayMember)]
    assert all(places)
    llm.unload()
    here.unload()
    assert not any(one.places for one in ensemble.members.values() if isinstance(one, RayMember))


def test_the_command_spreads_its_members(
    cluster: clusters.Cluster, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["Why?", "--cluster", cluster.address, "--max-tokens", "5", "--quiet", "--members", str(folder)]
    assert main(command) == 0
    there = capsys.readouterr().out
    assert main([*command[:1], *command[3:]]) == 0
    assert there == capsys.readouterr().out != ""
    _registry.unload()
    assert main(["Why?", "--cluster", "somewhere", "--members", "a"]) == 2
    assert "cluster must be 'auto' or the address" in capsys.readouterr().err


def test_a_program_ends_by_itself_and_its_actors_with_it(cluster: clusters.Cluster) -> None:
    code = f"""
from langchain_specfuse import RayMember, ScriptedMember, SpecFuseChatModel
member = RayMember(ScriptedMember("The sky is blue.", name="ann"), cluster={cluster.address!r})
llm = SpecFuseChatModel(members=[member])
print(llm.invoke("?").text)
import ray
ray.shutdown()
print(llm.invoke("?").text, member.places[0][1])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    text, _, pid = done.stdout.strip().rpartition(" ")
    assert (text, done.stderr) == ("The sky is blue.\nThe sky is blue.", "")
    _until(lambda: not Path(f"/proc/{pid}").exists())


def _until(done: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.1)
