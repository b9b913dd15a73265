"""Traces of an answer contain the ensemble and its rounds. The real LangSmith client sends them to an
endpoint on loopback."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.tracers.run_collector import RunCollectorCallbackHandler
from langchain_core.tracers.schemas import Run

from langchain_specfuse import EnsembleError, Method, ScriptedMember, SpecFuseChatModel, UsageError

from .conftest import BLUE, LIMIT_S, WIDE, FailingMember, GatedMember, auntil
from .recording import recorded
from .test_events import NAMES, ROUNDS, descendants
from .test_usage import SENT, counting


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


@pytest.mark.parametrize(("depth", "other"), [("off", "rounds"), ("rounds", "off")])
def test_traces_can_be_chosen_for_the_chat_model_or_a_call(
    ensemble: Any, depth: str, other: str
) -> None:
    for run in (traced(ensemble(trace=depth)), traced(ensemble(trace=other), trace=depth)):
        assert len(list(descendants(run))) == (ROUNDS if depth == "rounds" else 0)
        assert bool(facts(run)) == (depth == "rounds")
    with pytest.raises(UsageError, match=r"'off' or 'rounds'.*'deep'"):
        ensemble(trace="deep")


@pytest.mark.parametrize("depth", ["summary", "members"])
def test_depths_of_earlier_versions_are_refused_with_advice(ensemble: Any, depth: str) -> None:
    with pytest.raises(UsageError, match=f'trace="{depth}" is no longer supported') as raised:
        ensemble(trace=depth)
    assert raised.value.notes[0].startswith("-> leave it out")


def test_the_summary_is_metadata_of_the_run(ensemble: Any) -> None:
    about = facts(traced(ensemble()))
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


# --- LangSmith ------------------------------------------------------------------------------------


def test_langsmith_gets_one_tree_with_every_run_posted_once(ensemble: Any) -> None:
    with recorded() as (tracer, endpoint):
        config = {"callbacks": [tracer], "metadata": {"thread_id": "t1"}}
        answer = ensemble().invoke("Why?", config)
    assert endpoint.asked[0] == "GET /info"
    assert set(endpoint.asked[1:]) == {"POST /runs/multipart"}
    assert sorted(endpoint.posts) == sorted(endpoint.runs)
    model, rounds = endpoint.model, endpoint.children(endpoint.model)
    assert [run["name"] for run in rounds] == NAMES
    assert len(endpoint.runs) == 1 + ROUNDS
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
    for earlier, later in zip(rounds, rounds[1:], strict=False):
        assert earlier["end_time"] <= later["start_time"]
    assert rounds[0]["outputs"]["drafts"]["b"]["text"] == "The sky is wide"
    assert rounds[0]["outputs"]["winner"] == "a"
    assert model["extra"]["metadata"]["specfuse_shares"] == {"a": 1.0}


def test_a_failed_member_is_an_error_in_its_round_and_an_event_of_the_run() -> None:
    members = [ScriptedMember(BLUE, name="a"), ScriptedMember(WIDE, name="b")]
    members.append(ScriptedMember(BLUE, name="c", fails_in=2))
    with recorded() as (tracer, endpoint):
        SpecFuseChatModel(members=members, method=Method(segment_tokens=4)).invoke(
            "Why?", {"callbacks": [tracer]}
        )
    (failed,) = (run for run in endpoint.runs.values() if run.get("error"))
    assert failed["name"] == "c"
    assert "scripted failure" in failed["error"]
    second = endpoint.runs[failed["parent_run_id"]]
    assert second["name"] == "round 2"
    assert set(second["outputs"]["weights"]) == {"a", "b"}
    assert [departure["member"] for departure in second["outputs"]["left"]] == ["c"]
    assert "specfuse_exit" in endpoint.model["tags"]
    (event,) = (event for event in endpoint.model["events"] if event["name"] == "specfuse_exit")
    assert event["kwargs"] == {"member": "c", "kind": "error", "round": 2}
    assert endpoint.model["extra"]["metadata"]["specfuse_exits"] == [event["kwargs"]]


@pytest.mark.parametrize("lead", [None, "a"])
def test_the_usage_of_hosted_members_is_counted_once_in_a_tree(lead: str | None) -> None:
    """LangSmith adds the usage of child runs to that of their parent."""
    models = counting()
    model = SpecFuseChatModel(members=list(models), method=Method(segment_tokens=4), lead=lead)
    with recorded() as (tracer, endpoint):
        create_agent(model, []).invoke({"messages": ["Why?"]}, {"callbacks": [tracer]})
    metadata = [run["extra"]["metadata"] for run in endpoint.runs.values()]
    used = [of["usage_metadata"] for of in metadata if "usage_metadata" in of]
    assert sum(of["input_tokens"] for of in used) == SENT * sum(m.requests for m in models)
    assert sum(of["output_tokens"] for of in used) == sum(m.written for m in models)
    of_members = endpoint.model["extra"]["metadata"]["specfuse_usage"]
    assert {name: of["requests"] for name, of in of_members.items()} == {
        model.label: model.requests for model in models if model.requests
    }


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
    llm = SpecFuseChatModel(members=members, method=Method(segment_tokens=2))
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
    return SpecFuseChatModel(members=members, method=Method(segment_tokens=4))


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


async def test_a_run_that_begins_while_the_answer_is_cancelled_ends_with_it() -> None:
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
    (cut,) = run.child_runs
    assert cut.error is not None and cut.error.startswith("CancelledError")


def test_an_answer_that_no_member_can_finish_shows_each_failure() -> None:
    members = [FailingMember("error", name="a"), FailingMember("overflow", name="b")]
    collector = RunCollectorCallbackHandler()
    with pytest.raises(EnsembleError):
        SpecFuseChatModel(members=members).invoke("Why?", {"callbacks": [collector]})
    (run,) = collector.traced_runs
    (cut,) = run.child_runs
    assert cut.error.startswith("EnsembleError")
    failures = [(child.name, child.error) for child in cut.child_runs]
    assert [name for name, _ in failures] == ["a", "b"]
    assert "error: " in failures[0][1] and "overflow: " in failures[1][1]
    events = [event["kwargs"] for event in run.events if event["name"] == "specfuse_exit"]
    assert [(event["member"], event["kind"]) for event in events] == [
        ("a", "error"),
        ("b", "overflow"),
    ]
    assert run.extra["metadata"]["specfuse_exits"] == events
    assert "specfuse_exit" in run.tags
