"""What tracers see of an answer: the ensemble, its rounds and what each member did, with true times; and nothing of it
ever reaches the answer. Sent by the real LangSmith client to an endpoint on loopback."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any
from uuid import UUID

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.globals import set_llm_cache
from langchain_core.tracers import LangChainTracer
from langchain_core.tracers.base import BaseTracer
from langchain_core.tracers.run_collector import RunCollectorCallbackHandler
from langchain_core.tracers.schemas import Run
from langsmith import Client
from urllib3.util import Retry

from langchain_specfuse import EnsembleError, ScriptedMember, SpecFuseCallbackHandler, SpecFuseChatModel, UsageError

from .conftest import BLUE, WIDE, FailingMember, SlowMember
from .recording import Endpoint, recorded
from .test_events import PLACES, ROUNDS, WAYS

NAMES = [f"round {number}" for number in range(1, ROUNDS + 1)]
GRANDCHILDREN = 12
"""Two drafts in each round, and two scores in each of the two in which the drafts differ."""


def traced(llm: Any, **config: Any) -> Run:
    """The chat model's run as a tracer of the plain kind has it."""
    tracer = RunCollectorCallbackHandler()
    llm.invoke("Why?", {**config, "callbacks": [tracer]})
    (run,) = tracer.traced_runs
    return run


def descendants(run: Run) -> Iterator[Run]:
    for child in run.child_runs:
        yield child
        yield from descendants(child)


def facts(run: Run) -> dict[str, Any]:
    """What the run's metadata says of the ensemble."""
    metadata = run.extra["metadata"].items()
    return {key.removeprefix("specfuse_"): value for key, value in metadata if key.startswith("specfuse_")}


def leaving() -> SpecFuseChatModel:
    """Three members; the third fails in its second draft."""
    members = [ScriptedMember(BLUE, name="a"), ScriptedMember(WIDE, name="b")]
    return SpecFuseChatModel(members=[*members, ScriptedMember(BLUE, name="c", fails_in=2)], segment_tokens=4)


# --- how deep ---------------------------------------------------------------------------------------------------


def test_off_leaves_the_run_as_langchain_makes_it(ensemble: Any) -> None:
    run = traced(ensemble(trace="off"))
    assert not run.child_runs
    assert facts(run) == {}


def test_a_summary_is_metadata_of_the_run(ensemble: Any) -> None:
    run = traced(ensemble(trace="summary"))
    assert not run.child_runs
    told = facts(run)
    weights = told.pop("weights")
    assert sum(weights.values()) == pytest.approx(1)
    assert set(weights) == {"a", "b"}
    assert told == {
        "members": ["a", "b"],
        "verifiers": [],
        "preset": "robust",
        "rounds": ROUNDS,
        "shares": {"a": 1.0},
        "exits": [],
        "looped": 0,
        "late": {},
    }


def test_rounds_are_child_runs_and_tell_the_vote(ensemble: Any) -> None:
    run = traced(ensemble())
    assert facts(run)["rounds"] == ROUNDS
    assert [child.name for child in run.child_runs] == NAMES
    assert {child.run_type for child in run.child_runs} == {"chain"}
    assert not [grandchild for child in run.child_runs for grandchild in child.child_runs]
    first, *_, last = run.child_runs
    assert first.inputs["members"] == ["a", "b"]
    assert first.inputs["agreed_characters"] == 0
    assert last.inputs["agreed_characters"] == len("".join(r.outputs["text"] for r in run.child_runs[:-1]))
    assert BLUE.startswith(last.inputs["agreed_tail"])
    assert "".join(child.outputs["text"] for child in run.child_runs) == BLUE
    assert first.outputs["winner"] == "a"
    assert first.outputs["drafts"]["b"]["text"] == "The sky is wide"
    assert first.outputs["scores"]["a"]["a"] > first.outputs["scores"]["a"]["b"]
    assert set(first.outputs) >= {"votes", "totals", "margin", "weights_before", "weights", "forced", "closed", "left"}
    assert last.outputs["finish"] == "stop"


def test_members_are_grandchildren_with_what_each_drafted_and_scored(ensemble: Any) -> None:
    run = traced(ensemble(trace="members"))
    first = run.child_runs[0]
    assert [child.name for child in first.child_runs] == ["draft a", "draft b", "score a", "score b"]
    draft, score = first.child_runs[1], first.child_runs[2]
    assert draft.outputs["text"] == "The sky is wide"
    assert draft.outputs["tokens"] == draft.outputs["read"] == 4
    assert score.inputs["drafts"] == {"a": "The sky is blue", "b": "The sky is wide"}
    assert score.outputs["scores"] == first.outputs["scores"]["a"]
    assert "llm" not in {one.run_type for one in descendants(run)}


@pytest.mark.parametrize("depth", ["off", "summary", "rounds", "members"])
def test_the_depth_can_be_chosen_for_a_call(ensemble: Any, depth: str) -> None:
    tracer = RunCollectorCallbackHandler()
    ensemble(trace="summary").bind(trace=depth).invoke("Why?", {"callbacks": [tracer]})
    (run,) = tracer.traced_runs
    below = {"off": 0, "summary": 0, "rounds": ROUNDS, "members": ROUNDS + GRANDCHILDREN}[depth]
    assert len(list(descendants(run))) == below


def test_another_depth_is_refused_and_told_what_there_is() -> None:
    with pytest.raises(UsageError, match="'off', 'summary', 'rounds', 'members'"):
        SpecFuseChatModel(members=[ScriptedMember("Yes.")], trace="deep")


def test_the_depth_does_not_change_what_a_cache_finds(ensemble: Any, no_cache: None) -> None:
    from langchain_core.caches import InMemoryCache

    set_llm_cache(InMemoryCache())
    llm = ensemble(trace="off")
    llm.invoke("Why?")
    calls = llm.members[0].draft_calls
    assert llm.model_copy(update={"trace": "members"}).invoke("Why?").text == BLUE
    assert llm.bind(trace="summary").invoke("Why?").text == BLUE
    assert llm.members[0].draft_calls == calls


# --- where ------------------------------------------------------------------------------------------------------


class Listener(BaseCallbackHandler):
    """A user's handler, which hears of every run but is no tracer."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def on_chain_start(self, serialized: Any, inputs: Any, *, name: str | None = None, **kwargs: Any) -> None:
        self.heard.append(name or "")

    def on_tool_start(self, serialized: Any, input_str: str, **kwargs: Any) -> None:
        self.heard.append("tool")


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
async def test_each_run_has_its_rounds_wherever_it_was_started(ensemble: Any, place: Any, way: Any) -> None:
    tracer, listener = RunCollectorCallbackHandler(), Listener()
    await way(place(ensemble()), {"callbacks": [tracer, listener]})
    runs = [one for top in tracer.traced_runs for one in [top, *descendants(top)] if one.run_type == "llm"]
    assert len(runs) == (3 if "batch" in way.__name__ else 1)
    for run in runs:
        assert [child.name for child in run.child_runs] == NAMES
        assert facts(run)["rounds"] == ROUNDS
    assert not [name for name in listener.heard if name.startswith("round")]
    assert not tracer.run_map


@pytest.mark.filterwarnings("ignore:astream_events version='v1'")
@pytest.mark.parametrize("version", ["v1", "v2"])
async def test_streamed_events_are_the_same_with_and_without_traces(ensemble: Any, version: Any) -> None:
    async def events(**options: Any) -> list[tuple[str, str]]:
        tracer = RunCollectorCallbackHandler()
        told = ensemble(**options).astream_events("Why?", {"callbacks": [tracer]}, version=version)
        return [(event["event"], event["name"]) async for event in told]

    assert await events(trace="members") == await events(trace="off")


# --- what LangSmith is sent -------------------------------------------------------------------------------------


@pytest.mark.parametrize("zstd", [False, True])
def test_langsmith_gets_one_tree_with_every_run_posted_once(ensemble: Any, zstd: bool) -> None:
    with recorded(zstd=zstd) as (tracer, endpoint):
        ensemble(trace="members").invoke("Why?", {"callbacks": [tracer], "metadata": {"thread_id": "t1"}})
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
        assert run["session_name"] == "tests"
    for round in rounds:
        assert round["dotted_order"].startswith(model["dotted_order"] + ".")
        for member in endpoint.children(round):
            assert member["dotted_order"].startswith(round["dotted_order"] + ".")
    assert rounds[0]["outputs"]["drafts"]["b"]["text"] == "The sky is wide"
    assert rounds[0]["extra"]["metadata"]["specfuse_winner"] == "a"
    assert model["extra"]["metadata"]["specfuse_shares"] == {"a": 1.0}


def test_langsmith_gets_the_usage_of_the_answer_and_of_nothing_else(ensemble: Any) -> None:
    with recorded() as (tracer, endpoint):
        answer = ensemble(trace="members").invoke("Why?", {"callbacks": [tracer]})
    usage = endpoint.model["extra"]["metadata"]["usage_metadata"]
    assert usage == answer.usage_metadata
    assert usage["output_tokens"] > 0
    assert all(
        "usage_metadata" not in run["extra"]["metadata"] for run in endpoint.runs.values() if "parent_run_id" in run
    )


def test_times_are_those_at_which_the_members_worked() -> None:
    class Slow(ScriptedMember):
        def draft(self, jobs: Any) -> Any:
            time.sleep(0.05)
            return super().draft(jobs)

        def score(self, jobs: Any) -> Any:
            time.sleep(0.02)
            return super().score(jobs)

    def bounds(run: dict[str, Any]) -> tuple[float, float]:
        return tuple(datetime.fromisoformat(run[key]).timestamp() for key in ("start_time", "end_time"))

    members = [Slow(BLUE, name="slow", device="one"), ScriptedMember(WIDE, name="quick", device="two")]
    with recorded() as (tracer, endpoint):
        SpecFuseChatModel(members=members, segment_tokens=4, trace="members").invoke("Why?", {"callbacks": [tracer]})
    since, until = bounds(endpoint.model)
    scored = 0
    for round in endpoint.children(endpoint.model):
        began, ended = bounds(round)
        assert since <= began < ended <= until
        since = ended
        spans = {run["name"]: bounds(run) for run in endpoint.children(round)}
        assert all(began <= start <= end <= ended + 0.001 for start, end in spans.values())
        assert 0.05 <= spans["draft slow"][1] - spans["draft slow"][0] < 0.15
        assert spans["draft quick"][1] - spans["draft quick"][0] < 0.02
        if "score slow" in spans:
            scored += 1
            assert 0.02 <= spans["score slow"][1] - spans["score slow"][0] < 0.1
            assert spans["score slow"][0] >= spans["draft slow"][1]
    assert scored == 2


def test_who_fails_is_an_error_in_its_round_and_an_event_of_the_run() -> None:
    with recorded() as (tracer, endpoint):
        leaving().invoke("Why?", {"callbacks": [tracer]})
    (failed,) = (run for run in endpoint.runs.values() if run.get("error"))
    assert failed["name"] == "draft c"
    assert "scripted failure" in failed["error"]
    second = endpoint.runs[failed["parent_run_id"]]
    assert second["name"] == "round 2"
    assert second["inputs"]["members"] == ["a", "b", "c"]
    assert second["tags"] == ["specfuse_exit"]
    assert "specfuse_exit" in endpoint.model["tags"]
    (event,) = (event for event in endpoint.model["events"] if event["name"] == "specfuse_exit")
    assert event["kwargs"] == {"member": "c", "kind": "error", "round": 2}
    assert endpoint.model["extra"]["metadata"]["specfuse_exits"] == [event["kwargs"]]


def test_who_is_voted_out_is_an_event_and_no_error() -> None:
    scripts = {"a": BLUE + " " + BLUE, "b": BLUE + " " + WIDE, "c": "No no no " * 10}
    members = [ScriptedMember(script, name=name) for name, script in scripts.items()]
    run = traced(SpecFuseChatModel(members=members, segment_tokens=2))
    events = [event["kwargs"] for event in run.events if event["name"] == "specfuse_exit"]
    assert [(event["member"], event["kind"]) for event in events] == [("c", "exit")]
    assert not [one for one in descendants(run) if one.error]
    (left,) = (gone for child in run.child_runs for gone in child.outputs["left"])
    assert left["member"] == "c"
    assert "keep-probability" in left["reason"]


SECRET = ["A zebra in the garden is striped.", "A zebra on the meadow looks odd."]


@pytest.mark.parametrize("hidden", ["client", "environment"])
@pytest.mark.parametrize("fails", [False, True])
def test_hidden_inputs_and_outputs_stay_hidden(monkeypatch: Any, hidden: str, fails: bool) -> None:
    options = {"hide_inputs": True, "hide_outputs": True} if hidden == "client" else {}
    if hidden == "environment":
        from langsmith import utils

        monkeypatch.setenv("LANGSMITH_HIDE_INPUTS", "true")
        monkeypatch.setenv("LANGSMITH_HIDE_OUTPUTS", "true")
        utils.get_env_var.cache_clear()
    # Functions: what a scripted member says is part of what it is, and that is metadata.
    members = [
        ScriptedMember(lambda query, text=text: text, name=name) for name, text in zip("ab", SECRET, strict=True)
    ]
    if fails:
        members.append(ScriptedMember(lambda query: SECRET[0], name="c", fails_in=2))
    llm = SpecFuseChatModel(members=members, segment_tokens=2, trace="members")
    with recorded(**options) as (tracer, endpoint):
        assert llm.invoke("Who lives there?", {"callbacks": [tracer]}).text == SECRET[0]
        list(llm.stream("Who lives there?", {"callbacks": [tracer]}))
    if hidden == "environment":
        monkeypatch.undo()
        utils.get_env_var.cache_clear()
    assert len(endpoint.runs) > 8
    for word in ("zebra", "garden", "meadow", "striped", "odd.", "Who lives"):
        assert word not in endpoint.told
    assert len(endpoint.models) == 2
    assert all(run.get("inputs", {}) == run.get("outputs", {}) == {} for run in endpoint.runs.values())


# --- an end before the end --------------------------------------------------------------------------------------


def slow(**options: Any) -> SpecFuseChatModel:
    members = [SlowMember(BLUE, name="a"), SlowMember(WIDE, name="b")]
    return SpecFuseChatModel(members=members, segment_tokens=4, **options)


def stopped(llm: SpecFuseChatModel, config: Any) -> None:
    for _ in llm.stream("Why?", config):
        break


async def astopped(llm: SpecFuseChatModel, config: Any) -> None:
    stream = llm.astream("Why?", config)
    await anext(stream)
    await stream.aclose()


async def cancelled(llm: SpecFuseChatModel, config: Any) -> None:
    begun = asyncio.Event()

    async def read() -> None:
        async for _ in llm.astream("Why?", config):
            begun.set()

    task = asyncio.create_task(read())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def too_late(llm: SpecFuseChatModel, config: Any) -> None:
    with pytest.raises(TimeoutError):
        llm.invoke("Why?", config, timeout=0.07)


ENDS = {
    stopped: "GeneratorExit",
    astopped: "GeneratorExit",
    # A task may be cancelled while it waits for us, or while LangChain handles what we gave; then we are closed.
    cancelled: ("CancelledError", "GeneratorExit"),
    too_late: "Late",
}


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
async def test_an_answer_that_breaks_off_leaves_no_run_open(end: Callable[..., Any], soon: Any) -> None:
    collector = RunCollectorCallbackHandler()
    with recorded() as (tracer, endpoint):
        done = end(slow(), {"callbacks": [tracer, collector]})
        if done is not None:
            await done
        # LangChain tells of a cancelled run in the background.
        assert await asyncio.to_thread(soon, lambda: bool(collector.traced_runs) and not tracer.run_map)
    (run,) = collector.traced_runs
    assert not collector.run_map
    assert not tracer.run_map
    *whole, cut = run.child_runs
    assert [child.name for child in whole] == NAMES[: len(whole)]
    assert not [child for child in whole if child.error]
    assert cut.error is not None
    assert cut.error.startswith(ENDS[end])
    assert cut.name == f"round {len(whole) + 1}"
    assert all(one["end_time"] for one in endpoint.runs.values())
    assert len(endpoint.runs) == 1 + len(run.child_runs)
    assert facts(run).get("rounds", 0) == len(whole)


async def test_a_cancelled_invocation_leaves_no_child_open() -> None:
    """LangChain itself never ends the chat model's run of an ``ainvoke`` that is cancelled; what is ours has ended."""
    here, begun = asyncio.get_running_loop(), asyncio.Event()
    listener = SpecFuseCallbackHandler(on_round=lambda _: here.call_soon_threadsafe(begun.set))
    with recorded() as (tracer, endpoint):
        task = asyncio.create_task(slow().ainvoke("Why?", {"callbacks": [tracer, listener]}))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    children = endpoint.children(endpoint.model)
    assert children[-1]["error"].startswith(("CancelledError", "GeneratorExit"))
    assert all(child["end_time"] for child in children)


def test_an_answer_that_nobody_can_finish_tells_who_failed_in_what() -> None:
    members = [FailingMember("error", name="a"), FailingMember("overflow", name="b")]
    collector = RunCollectorCallbackHandler()
    with pytest.raises(EnsembleError):
        SpecFuseChatModel(members=members).invoke("Why?", {"callbacks": [collector]})
    (run,) = collector.traced_runs
    (cut,) = run.child_runs
    assert cut.error.startswith("EnsembleError")
    assert [(child.name, child.error.split(":")[0]) for child in cut.child_runs] == [
        ("draft a", "error"),
        ("draft b", "overflow"),
    ]
    events = [event["kwargs"] for event in run.events if event["name"] == "specfuse_exit"]
    assert [(event["member"], event["kind"]) for event in events] == [("a", "error"), ("b", "overflow")]
    assert run.extra["metadata"]["specfuse_exits"] == events
    assert "specfuse_exit" in run.tags and cut.tags == ["specfuse_exit"]
    assert not collector.run_map


# --- tracers in trouble -----------------------------------------------------------------------------------------


class Broken(BaseTracer):
    """A tracer that takes the chat model's run and fails in one of the things that follow."""

    raise_error = True

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where

    def _persist_run(self, run: Run) -> None: ...

    def _start_trace(self, run: Run) -> None:
        self._fail("start", run)
        super()._start_trace(run)

    def _on_chain_start(self, run: Run) -> None:
        self._fail("begun", run)

    def _end_trace(self, run: Run) -> None:
        self._fail("end", run)
        super()._end_trace(run)

    def _on_chain_end(self, run: Run) -> None:
        self._fail("ended", run)

    def _fail(self, here: str, run: Run) -> None:
        if here == self.where and run.run_type == "chain":
            raise RuntimeError("the tracer's own trouble")


@pytest.mark.parametrize("where", ["start", "begun", "end", "ended"])
@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
async def test_a_tracer_that_raises_is_told_once_and_hurts_nobody(
    ensemble: Any, caplog: Any, where: str, way: str
) -> None:
    broken, other = Broken(where), RunCollectorCallbackHandler()
    asked = getattr(ensemble(trace="members"), way)("Why?", {"callbacks": [broken, other]})
    assert (asked if way == "invoke" else await asked).text == BLUE
    assert [child.name for child in other.traced_runs[0].child_runs] == NAMES
    assert len([record for record in caplog.records if "hears no more" in record.message]) == 1
    assert not broken.run_map


TROUBLE: dict[str, dict[str, Any]] = {"fails": {"status": 500}, "refuses": {"status": 401}, "hangs": {"hang": True}}


@pytest.mark.parametrize("trouble", [*TROUBLE, "gone"])
def test_an_endpoint_in_trouble_changes_nothing(ensemble: Any, trouble: str) -> None:
    plain = ensemble().invoke("Why?")
    endpoint = Endpoint(**TROUBLE.get(trouble, {}))
    if trouble == "gone":
        endpoint.close()
    client = Client(api_url=endpoint.url, api_key="not-a-key", timeout_ms=500, retry_config=Retry(total=0))
    since = time.perf_counter()
    answer = ensemble(trace="members").invoke("Why?", {"callbacks": [LangChainTracer(client=client)]})
    assert time.perf_counter() - since < 5
    assert (answer.text, answer.usage_metadata) == (plain.text, plain.usage_metadata)
    if trouble != "gone":
        endpoint.close()
    client.close(timeout=1)


def test_a_full_queue_drops_runs_and_nothing_else(ensemble: Any, monkeypatch: Any) -> None:
    with recorded() as (tracer, endpoint):
        queue = tracer.client.tracing_queue
        assert queue is not None
        monkeypatch.setattr(queue, "maxsize", 1)
        answer = ensemble(trace="members").invoke("Why?", {"callbacks": [tracer]})
        assert answer.text == BLUE
    assert len(endpoint.runs) < 1 + ROUNDS + GRANDCHILDREN


def test_a_slow_tracer_does_not_hold_the_event_loop(ensemble: Any) -> None:
    class Dawdling(RunCollectorCallbackHandler):
        def _on_chain_end(self, run: Run) -> None:
            time.sleep(0.1)

    async def longest_pause() -> float:
        tracer = Dawdling()
        task = asyncio.create_task(ensemble().ainvoke("Why?", {"callbacks": [tracer]}))
        pauses, last = [0.0], time.perf_counter()
        while not task.done():
            await asyncio.sleep(0.005)
            now = time.perf_counter()
            pauses.append(now - last)
            last = now
        assert [child.name for child in tracer.traced_runs[0].child_runs] == NAMES
        return max(pauses)

    assert asyncio.run(longest_pause()) < 0.08


def test_a_tracer_that_does_not_know_the_run_hears_nothing(ensemble: Any) -> None:
    """As one that samples, or that joined too late."""

    class Choosy(RunCollectorCallbackHandler):
        def on_llm_start(self, *args: Any, run_id: UUID, **kwargs: Any) -> Any:
            return None

    tracer = Choosy()
    assert ensemble().invoke("Why?", {"callbacks": [tracer]}).text == BLUE
    assert not tracer.traced_runs
    assert not tracer.run_map
