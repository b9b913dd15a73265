"""Traces of an answer contain the ensemble, its rounds and each member's work, with true times. The
real LangSmith client sends them to an endpoint on loopback."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.tracers.run_collector import RunCollectorCallbackHandler
from langchain_core.tracers.schemas import Run

from langchain_specfuse import EnsembleError, ScriptedMember, SpecFuseChatModel, UsageError

from .conftest import BLUE, LIMIT_S, WIDE, FailingMember, GatedMember, auntil
from .recording import recorded
from .test_events import NAMES, ROUNDS, descendants

GRANDCHILDREN = 12
"""Two drafts in each round, and two scores in each of the two in which the drafts differ."""


def traced(llm: Any, **options: Any) -> Run:
    """Return the chat model's run as a plain tracer records it."""
    tracer = RunCollectorCallbackHandler()
    llm.invoke("Why?", {"callbacks": [tracer]}, **options)
    (run,) = tracer.traced_runs
    return run


def facts(run: Run) -> dict[str, Any]:
    """Return what the run's metadata contains about the ensemble."""
    metadata = run.extra["metadata"].items()
    return {
        key.removeprefix("specfuse_"): value
        for key, value in metadata
        if key.startswith("specfuse_")
    }


# --- depth ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", ["off", "summary", "rounds", "members"])
def test_the_depth_can_be_chosen_for_the_chat_model_or_a_call(ensemble: Any, depth: str) -> None:
    runs = {"off": 0, "summary": 0, "rounds": ROUNDS, "members": ROUNDS + GRANDCHILDREN}[depth]
    for run in (traced(ensemble(trace=depth)), traced(ensemble(trace="summary"), trace=depth)):
        assert len(list(descendants(run))) == runs
        assert bool(facts(run)) == (depth != "off")
    with pytest.raises(UsageError, match=r"'off', 'summary', 'rounds' or 'members'.*'deep'"):
        ensemble(trace="deep")


def test_the_summary_is_metadata_of_the_run(ensemble: Any) -> None:
    about = facts(traced(ensemble(trace="summary")))
    weights = about.pop("weights")
    assert set(weights) == {"a", "b"} and sum(weights.values()) == pytest.approx(1)
    assert about == {
        "members": ["a", "b"],
        "verifiers": [],
        "method": "robust",
        "rounds": ROUNDS,
        "shares": {"a": 1.0},
        "exits": [],
        "looped": 0,
        "late": {},
        "usage": {},
        "routing": {"lead": None, "by": "vote"},
    }


def test_rounds_are_child_runs_with_the_vote(ensemble: Any) -> None:
    run = traced(ensemble())
    assert [child.name for child in run.child_runs] == NAMES
    assert {child.run_type for child in run.child_runs} == {"chain"}
    first, *_, last = run.child_runs
    assert first.inputs["agreed_characters"] == 0
    assert last.inputs["agreed_characters"] == len(
        "".join(r.outputs["text"] for r in run.child_runs[:-1])
    )
    assert BLUE.startswith(last.inputs["agreed_tail"])
    assert "".join(child.outputs["text"] for child in run.child_runs) == BLUE
    assert first.outputs["winner"] == "a"
    assert first.outputs["drafts"]["b"]["text"] == "The sky is wide"
    assert first.outputs["scores"]["a"]["a"] > first.outputs["scores"]["a"]["b"]
    assert set(first.outputs) >= {"votes", "totals", "margin", "weights", "tokens", "seconds"}
    assert not {"forced", "left", "late"} & set(first.outputs), "what is empty is left out"
    assert last.outputs["finish"] == "stop"


def test_members_are_grandchildren_with_what_each_drafted_and_scored(ensemble: Any) -> None:
    run = traced(ensemble(trace="members"))
    first = run.child_runs[0]
    assert [child.name for child in first.child_runs] == [
        "draft a",
        "draft b",
        "score a",
        "score b",
    ]
    draft, score = first.child_runs[1], first.child_runs[2]
    assert draft.outputs["text"] == "The sky is wide"
    assert draft.outputs["tokens"] == draft.outputs["read"] == 4
    assert score.inputs["drafts"] == {"a": "The sky is blue", "b": "The sky is wide"}
    assert score.outputs["scores"] == first.outputs["scores"]["a"]


# --- LangSmith ------------------------------------------------------------------------------------


def test_langsmith_gets_one_tree_with_every_run_posted_once(ensemble: Any) -> None:
    with recorded() as (tracer, endpoint):
        config = {"callbacks": [tracer], "metadata": {"thread_id": "t1"}}
        answer = ensemble(trace="members").invoke("Why?", config)
    assert endpoint.asked[0] == "GET /info"
    assert set(endpoint.asked[1:]) == {"POST /runs/multipart"}
    assert sorted(endpoint.posts) == sorted(endpoint.runs)
    model, rounds = endpoint.model, endpoint.children(endpoint.model)
    assert [run["name"] for run in rounds] == NAMES
    assert len(endpoint.runs) == 1 + ROUNDS + GRANDCHILDREN
    for run in endpoint.runs.values():
        assert run["trace_id"] == model["id"]
        assert run["dotted_order"].split(".")[-1].endswith(run["id"])
        assert run["end_time"] >= run["start_time"]
        assert run["extra"]["metadata"]["thread_id"] == "t1"
        # Tokens are counted once, in the chat model's run.
        assert run["extra"]["metadata"].get("usage_metadata") == (
            answer.usage_metadata if run is model else None
        )
    for round in rounds:
        assert round["dotted_order"].startswith(model["dotted_order"] + ".")
        for member in endpoint.children(round):
            assert member["dotted_order"].startswith(round["dotted_order"] + ".")
    assert rounds[0]["outputs"]["drafts"]["b"]["text"] == "The sky is wide"
    assert rounds[0]["extra"]["metadata"]["specfuse_winner"] == "a"
    assert model["extra"]["metadata"]["specfuse_shares"] == {"a": 1.0}


def test_the_method_and_the_members_are_recorded_once() -> None:
    """Only the chat model's run has them, because every round is posted as a run too."""
    scripts = [" ".join(f"{name}{n}" for n in range(400)) for name in ("ann", "bob")]
    members = [ScriptedMember(script, name=script[:3]) for script in scripts]
    llm = SpecFuseChatModel(members=members, max_tokens=400, segment_tokens=10, method="specem")
    with recorded() as (tracer, endpoint):
        metadata = {"thread_id": "t1", "model": "of the caller"}
        llm.invoke("Tell a story.", {"callbacks": [tracer], "metadata": metadata}, temperature=0)
    model = endpoint.model
    rounds = endpoint.children(model)
    assert len(rounds) == 40
    about = model["extra"]["metadata"]
    assert about["specfuse_members"] == ["ann", "bob"] and about["members"] and about["method"]
    for run in rounds:
        ours = run["extra"]["metadata"].keys() - {"revision_id"}
        assert ours == {"thread_id", "model", "specfuse_round", "specfuse_winner"}
        assert run["extra"]["metadata"]["thread_id"] == "t1"
    # The rest is mostly LangSmith's: ids, order, versions.
    assert sum(len(json.dumps(run)) for run in rounds) < 80_000
    assert endpoint.received.count("ann399") < 15


def test_a_failed_member_is_an_error_in_its_round_and_an_event_of_the_run() -> None:
    members = [ScriptedMember(BLUE, name="a"), ScriptedMember(WIDE, name="b")]
    members.append(ScriptedMember(BLUE, name="c", fails_in=2))
    with recorded() as (tracer, endpoint):
        SpecFuseChatModel(members=members, segment_tokens=4).invoke("Why?", {"callbacks": [tracer]})
    (failed,) = (run for run in endpoint.runs.values() if run.get("error"))
    assert failed["name"] == "draft c"
    assert "scripted failure" in failed["error"]
    second = endpoint.runs[failed["parent_run_id"]]
    assert second["name"] == "round 2"
    assert set(second["outputs"]["weights"]) == {"a", "b"}
    assert [departure["member"] for departure in second["outputs"]["left"]] == ["c"]
    assert second["tags"] == ["specfuse_exit"]
    assert "specfuse_exit" in endpoint.model["tags"]
    (event,) = (event for event in endpoint.model["events"] if event["name"] == "specfuse_exit")
    assert event["kwargs"] == {"member": "c", "kind": "error", "round": 2}
    assert endpoint.model["extra"]["metadata"]["specfuse_exits"] == [event["kwargs"]]


SECRET = ["A zebra in the garden is striped.", "A zebra on the meadow looks odd."]


@pytest.mark.parametrize("fails", [False, True])
def test_hidden_inputs_and_outputs_stay_hidden(fails: bool) -> None:
    # Functions: the text of a scripted member is part of its identity, and that is metadata.
    members = [
        ScriptedMember(lambda query, text=text: text, name=name)
        for name, text in zip("ab", SECRET, strict=True)
    ]
    if fails:
        members.append(ScriptedMember(lambda query: SECRET[0], name="c", fails_in=2))
    llm = SpecFuseChatModel(members=members, segment_tokens=2, trace="members")
    with recorded(hide_inputs=True, hide_outputs=True) as (tracer, endpoint):
        assert llm.invoke("Who lives there?", {"callbacks": [tracer]}).text == SECRET[0]
        list(llm.stream("Who lives there?", {"callbacks": [tracer]}))
    assert len(endpoint.runs) > 8
    for word in ("zebra", "garden", "meadow", "striped", "odd.", "Who lives"):
        assert word not in endpoint.received
    assert all(
        run.get("inputs", {}) == run.get("outputs", {}) == {} for run in endpoint.runs.values()
    )


# --- aborted answers ------------------------------------------------------------------------------


def gated() -> SpecFuseChatModel:
    members = [GatedMember(BLUE, name="a"), ScriptedMember(WIDE, name="b", device="other")]
    return SpecFuseChatModel(members=members, segment_tokens=4)


async def stopped(llm: SpecFuseChatModel, config: Any) -> None:
    stream = llm.astream("Why?", config)
    await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]


async def read(llm: SpecFuseChatModel, config: Any) -> None:
    async for _ in llm.astream("Why?", config):
        pass


async def cancelled(llm: SpecFuseChatModel, config: Any) -> None:
    task = asyncio.create_task(read(llm, config))
    await asyncio.to_thread(llm.members[0].waiting.wait, LIMIT_S)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def too_late(llm: SpecFuseChatModel, config: Any) -> None:
    with pytest.raises(TimeoutError):
        llm.invoke("Why?", config, timeout=0.5)


ENDS = {
    stopped: "GeneratorExit",
    cancelled: ("CancelledError", "GeneratorExit"),
    too_late: "AnswerLate",
}


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
async def test_an_aborted_answer_leaves_no_run_open(end: Callable[..., Any]) -> None:
    collector, llm = RunCollectorCallbackHandler(), gated()
    with recorded() as (tracer, endpoint):
        await end(llm, {"callbacks": [tracer, collector]})
        # LangChain reports a cancelled run in the background.
        assert await auntil(lambda: bool(collector.traced_runs) and not tracer.run_map)
        llm.members[0].gate.set()
    (run,) = collector.traced_runs
    assert not collector.run_map
    *done, cut = run.child_runs
    assert [child.name for child in done] == NAMES[: len(done)]
    assert not [child for child in done if child.error]
    assert cut.error is not None and cut.error.startswith(ENDS[end])
    assert cut.name == f"round {len(done) + 1}"
    assert all(record["end_time"] for record in endpoint.runs.values())
    assert len(endpoint.runs) == 1 + len(run.child_runs)
    assert facts(run).get("rounds", 0) == len(done)


class SlowTracer(RunCollectorCallbackHandler):
    """Blocks while it traces the first round, until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.tracing, self.free = threading.Event(), threading.Event()

    def _start_trace(self, run: Run) -> None:
        if run.name == "round 1":
            self.tracing.set()
            self.free.wait(LIMIT_S)
        super()._start_trace(run)


async def test_a_cancelled_answer_ends_after_the_trace_of_its_last_round() -> None:
    tracer, llm = SlowTracer(), gated()
    answer = asyncio.create_task(read(llm, {"callbacks": [tracer]}))
    assert await auntil(tracer.tracing.is_set)
    answer.cancel()
    await asyncio.sleep(0.05)
    tracer.free.set()
    with pytest.raises(asyncio.CancelledError):
        await answer
    llm.members[0].gate.set()
    assert await auntil(lambda: bool(tracer.traced_runs))
    (run,) = tracer.traced_runs
    assert [child.name for child in run.child_runs] == ["round 1", "round 2"]


def test_an_answer_that_no_member_can_finish_shows_each_failure() -> None:
    members = [FailingMember("error", name="a"), FailingMember("overflow", name="b")]
    collector = RunCollectorCallbackHandler()
    with pytest.raises(EnsembleError):
        SpecFuseChatModel(members=members).invoke("Why?", {"callbacks": [collector]})
    (run,) = collector.traced_runs
    (cut,) = run.child_runs
    assert cut.error.startswith("EnsembleError")
    failures = [(child.name, child.error.split(":")[0]) for child in cut.child_runs]
    assert failures == [("draft a", "error"), ("draft b", "overflow")]
    events = [event["kwargs"] for event in run.events if event["name"] == "specfuse_exit"]
    assert [(event["member"], event["kind"]) for event in events] == [
        ("a", "error"),
        ("b", "overflow"),
    ]
    assert run.extra["metadata"]["specfuse_exits"] == events
    assert "specfuse_exit" in run.tags and cut.tags == ["specfuse_exit"]
