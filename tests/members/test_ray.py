"""A member behind actors, without a cluster: what lives at the other end, who lives where, and what is refused.

With a real cluster: ``test_ray_real.py``.
"""

from __future__ import annotations

import copy
import pickle
import socket
import sys
import threading
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langchain_specfuse import RayMember, ScriptedMember, ServerMember, SpecFuseChatModel
from langchain_specfuse._spread import spread
from langchain_specfuse.core.member import Probe
from langchain_specfuse.core.values import (
    Call,
    CallFormat,
    Candidate,
    Constraint,
    Draft,
    DraftJob,
    Effort,
    Failure,
    Query,
    Sampling,
    Scored,
    ScoreJob,
    Segment,
    Tool,
    Turn,
)
from langchain_specfuse.errors import MemberError, UsageError
from langchain_specfuse.members import _reach
from langchain_specfuse.members._homes import Homes
from langchain_specfuse.members._hosted import Hosted, Raised, question
from langchain_specfuse.members._packing import RECORDS, packed
from langchain_specfuse.members._places import refuse_if_no_room, room
from langchain_specfuse.members._replica import Replica

from .contract import draft_job, score_job


class Mute:
    """Raises what cannot be sent, wherever it can."""

    name, device = "mute", "mute"

    class Trouble(Exception):
        def __init__(self, one: int, two: int) -> None:
            super().__init__(f"{one} and {two}")

    def probe(self) -> None:
        raise self.Trouble(1, 2)

    draft = score = forget = probe


def hosted(member: object) -> Hosted:
    return Hosted(pickle.dumps(member))


def asked(one: Hosted, method: str, *arguments: object) -> object:
    return pickle.loads(one.reply(question(method, *arguments)))


# --- what lives at the other end --------------------------------------------------------------------------------


def test_what_comes_back_is_what_the_member_would_say_here():
    member = ScriptedMember("The sky is blue because.", name="ann")
    there = hosted(member)
    jobs = [draft_job(id="a"), draft_job(id="b", segment_tokens=2)]
    assert asked(there, "probe") == member.probe()
    assert asked(there, "draft", jobs) == member.draft(jobs)
    scores = [score_job(Candidate(" is blue", False, ("x",)))]
    assert asked(there, "score", scores) == member.score(scores)


def test_a_process_that_took_over_loads_with_its_first_job_and_says_the_same():
    member = ScriptedMember("The sky is blue because.", name="ann")
    known, fresh = hosted(member), hosted(member)
    asked(known, "probe")
    assert asked(fresh, "forget", "never heard of") is None
    assert asked(known, "draft", [draft_job()]) == asked(fresh, "draft", [draft_job()])


def test_a_member_that_raises_fails_its_batch_and_the_next_is_answered():
    there = hosted(ScriptedMember("one two three", name="ann", fails_in=1, error=ValueError("no luck")))
    failures = asked(there, "draft", [draft_job(id="a"), draft_job(id="b")])
    assert [(one.kind, one.message) for one in failures] == [("error", "ValueError: no luck")] * 2
    assert isinstance(failures[0].cause, ValueError)
    assert isinstance(asked(there, "draft", [draft_job()])[0], Draft)


def test_what_cannot_be_sent_is_told_in_words():
    raised = asked(hosted(Mute()), "probe")
    assert isinstance(raised, Raised)
    assert isinstance(raised.error, MemberError) and "1 and 2" in str(raised.error)
    (failure,) = asked(hosted(Mute()), "draft", [draft_job()])
    assert failure.message == "Trouble: 1 and 2" and isinstance(failure.cause, MemberError)


def test_a_class_that_is_not_there_is_told_with_advice():
    packed = pickle.dumps(ScriptedMember("x")).replace(b"members.scripted", b"members.scribble")
    raised = asked(Hosted(packed), "probe")
    assert isinstance(raised, Raised) and "scribble" in str(raised.error)
    assert "importable on every node" in raised.error.__notes__[0]


def test_an_error_keeps_its_kind_and_its_advice_on_the_way():
    error = MemberError("too long", member="ann", kind="overflow")
    error.add_note("-> shorten it")
    there = hosted(ScriptedMember("one", name="ann", fails_in=1, error=error))
    (failure,) = asked(there, "draft", [draft_job()])
    assert failure.kind == "overflow"
    assert (failure.cause.member, failure.cause.__notes__) == ("ann", ["-> shorten it"])


def test_what_is_packed_comes_back_whole():
    answer = (Segment("天空 \udcff", True, {"ann": (1, 2)}), Segment(""))
    query = Query(
        "q", (Turn("user", "Why?", (Call("f", "{}"),), "n", "i"),), (Tool("t", "d", "{}"),), Constraint("json")
    )
    sampling = Sampling(0.5, 0.9, 4, 0.1, 1.2, 7)
    scores = Scored(((-0.1, -2.0), ()), Effort(1, 2, 3, 0.5, 6.0), ((1, 2), ()))
    things = [
        DraftJob(query, answer, 3, 9, sampling, ("stop",), 5, (Candidate("y", False, ("bob",)),)),
        ScoreJob(query, answer, (Candidate("x", True, ("ann", "bob")),), False),
        Draft("x", True, (1,), (-0.1, -0.2), Effort(1, 2, 3, 0.5, 6.0), (1,), "hm"),
        scores,
        Failure("nan", "no numbers"),
        Probe("m", False, 7, "here"),
    ]
    assert pickle.loads(packed(things)) == things
    assert {type(one) for one in (*things, *answer, query, query.turns[0], sampling, scores.effort)} >= {*RECORDS} - {
        Candidate
    }


# --- who lives where --------------------------------------------------------------------------------------------


@given(
    st.lists(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=8), max_size=8),
    st.lists(st.sets(st.integers(0, 3), min_size=1), min_size=8, max_size=8),
)
def test_a_query_stays_while_its_home_lives_and_nobody_is_left_out(batches, living):
    homes = Homes()
    before: dict[str, int] = {}
    for ids, up in zip(batches, living, strict=False):
        parts = homes.parts(ids, up)
        assert sorted(place for part in parts.values() for place in part) == list(range(len(ids)))
        now = {ids[place]: home for home, part in parts.items() for place in part}
        assert set(now.values()) <= up
        assert all(home == before[query] for query, home in now.items() if before.get(query) in up)
        before |= now


def test_new_queries_go_where_the_fewest_live():
    homes = Homes()
    assert {home: len(part) for home, part in homes.parts([*map(str, range(30))], [0, 1, 2]).items()} == dict.fromkeys(
        range(3), 10
    )
    for query in homes.parts([*map(str, range(30))], [0, 1, 2])[1]:
        homes.leave(str(query))
    assert set(homes.parts([f"new{k}" for k in range(10)], [0, 1, 2])) == {1}
    assert homes.leave("never heard of") is None


@pytest.mark.parametrize(
    ("asked", "nodes", "places"),
    [
        ({"CPU": 1}, [{"CPU": 2}, {"CPU": 1}], 3),
        ({"CPU": 2}, [{"CPU": 1}, {"CPU": 1}], 0),  # never on two nodes at once
        ({"CPU": 1, "GPU": 1}, [{"CPU": 64}, {"CPU": 1, "GPU": 8}], 1),
        ({"GPU": 0.1}, [{"GPU": 1}], 10),
        ({"CPU": 0, "GPU": 0}, [{}], 10**6),
        ({"CPU": 0}, [], 0),
    ],
)
def test_room_is_counted_node_by_node(asked, nodes, places):
    assert room(asked, nodes) == places


def test_what_no_node_has_is_refused_with_what_there_is():
    nodes = [{"CPU": 8.0, "GPU": 1.0, "memory": 1e9}, {"CPU": 4.0, "node:10.0.0.1": 1.0}]
    with pytest.raises(UsageError) as raised:
        refuse_if_no_room("ann", 2, {"CPU": 1, "GPU": 1}, nodes)
    told = "ann: 2 replicas want CPU 1, GPU 1 each; the cluster has room for 1. Its nodes: CPU 8, GPU 1 | CPU 4"
    assert str(raised.value) == told


# --- what is refused --------------------------------------------------------------------------------------------


def test_a_member_behind_actors_is_told_of_as_it_told_of_itself():
    """All that a probe says goes on, and where replicas differ what holds for all: its size says who waits for whom."""
    one = Probe("m", True, 70, "here", CallFormat("<", ">"), 135_000_000)
    member = RayMember(ScriptedMember("x"))
    assert replace(member._of_all([one, one]), detail=one.detail) == one
    told = member._of_all([one, replace(one, scores=False, max_context=None), replace(one, max_context=60)])
    assert replace(told, detail=one.detail) == replace(one, scores=False, max_context=60)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"member": "Qwen/Qwen3-0.6B"}, "hosts a member, got 'Qwen"),
        ({"member": RayMember(ScriptedMember("x"))}, "hosts a member"),
        ({"replicas": 0}, "at least 1, got 0"),
        ({"replicas": True}, "at least 1, got True"),
        ({"cluster": "ray://host:10001"}, "an address"),
        ({"cluster": "somewhere"}, "an address"),
        ({"num_gpus": -1}, "num_gpus"),
        ({"resources": {"tpu": "one"}}, "tpu"),
    ],
)
def test_what_cannot_work_is_told_when_it_is_made(arguments, told):
    with pytest.raises(UsageError, match=told) as raised:
        RayMember(**{"member": ScriptedMember("x"), **arguments})
    assert raised.value.__notes__


def test_without_ray_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    member = RayMember(ScriptedMember("x", name="ann"))
    assert member.name == "ann"
    with pytest.raises(UsageError, match="needs ray, which is not installed") as raised:
        member.probe()
    assert raised.value.__notes__ == ['-> pip install "langchain-specfuse[ray]"']
    with pytest.raises(UsageError, match="needs ray"):
        SpecFuseChatModel(members=[member]).invoke("?")


def test_an_address_at_which_nobody_listens_is_told_at_once():
    pytest.importorskip("ray")
    with socket.socket() as free:
        free.bind(("127.0.0.2", 0))
        address = f"127.0.0.2:{free.getsockname()[1]}"
    with pytest.raises(MemberError, match=f"no Ray cluster at '{address}': nobody listens") as raised:
        RayMember(ScriptedMember("x"), cluster=address).probe()
    assert "ray start" in raised.value.__notes__[0]


def test_a_connection_that_takes_too_long_is_given_up_and_not_begun_twice():
    going = threading.Event()
    try:
        with pytest.raises(TimeoutError, match="did not answer as Ray does"):
            _reach._within(0.05, going.wait)
        with pytest.raises(TimeoutError, match="still tries"):
            _reach._within(5, lambda: None)
    finally:
        going.set()
    _reach._TRYING[0].join()
    _reach._within(5, lambda: None)
    with pytest.raises(RuntimeError, match="SystemExit"):
        _reach._within(5, sys.exit)


@pytest.mark.parametrize(
    ("cluster", "here", "same"),
    [
        ("auto", "10.0.0.1:6379", True),
        ("10.0.0.1:6379", "10.0.0.1:6379", True),
        ("localhost:6379", "10.0.0.9:6379", True),
        ("10.0.0.1:6380", "10.0.0.1:6379", False),
        ("10.0.0.2:6379", "10.0.0.1:6379", False),
    ],
)
def test_a_process_belongs_to_one_cluster(cluster, here, same):
    if same:
        return _reach.refuse_another(cluster, here, own=lambda: "10.0.0.9")
    with pytest.raises(UsageError, match="belongs to"):
        _reach.refuse_another(cluster, here, own=lambda: "10.0.0.9")


# --- how it is written down -------------------------------------------------------------------------------------


def test_every_one_has_a_desk_of_its_own_also_when_unpacked():
    member = RayMember(ScriptedMember("x", name="ann"), replicas=2, num_gpus=0.5)
    other = pickle.loads(pickle.dumps(member))
    assert (other.name, other.replicas, other.num_gpus, other.spec) == ("ann", 2, 0.5, member.spec)
    assert len({member.device, other.device, copy.copy(member).device}) == 3


def test_it_counts_tokens_only_if_its_member_does():
    assert hasattr(RayMember(ScriptedMember("x")), "token_ids")
    assert not hasattr(RayMember(ScriptedMember("x")), "token_count")
    assert not hasattr(RayMember(Mute()), "spec")
    assert RayMember(ScriptedMember("x", confidence=0.5)).spec["confidence"] == 0.5


def test_a_cluster_takes_members_in_this_process_and_leaves_the_others():
    served, own = ServerMember("http://localhost:1"), ScriptedMember("x")
    given = ["some/model", "http://localhost:8000/v1", {"model": "./a", "replicas": 2}, served, own]
    given += [{"model": "b", "cluster": "10.0.0.1:6379"}, {"model": "http://localhost:1", "name": "s"}]
    assert spread(given, None) == given
    assert spread(given, "auto") == [
        {"cluster": "auto", "model": "some/model"},
        "http://localhost:8000/v1",
        {"cluster": "auto", "model": "./a", "replicas": 2},
        served,
        own,
        {"cluster": "10.0.0.1:6379", "model": "b"},
        {"model": "http://localhost:1", "name": "s"},
    ]


def test_an_address_is_checked_when_the_chat_model_is_made():
    with pytest.raises(UsageError, match="cluster must be 'auto' or the address"):
        SpecFuseChatModel(members=["a"], cluster="ray://x:1")


# --- replicas, by what Ray says of them -------------------------------------------------------------------------


def test_failures_name_what_ray_said():
    member = RayMember(ScriptedMember("x", name="ann"))
    fallen = Replica.__new__(Replica)
    fallen.alive, fallen._fell, fallen.trouble = False, 0.0, "ActorDiedError: out of memory"
    member._team = [fallen]
    failure = member._lost("draft")
    assert isinstance(failure, Failure) and failure.message.endswith("none is back yet: ActorDiedError: out of memory")
