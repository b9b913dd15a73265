"""Rejected drafts are in events and traces, also those of a round that breaks off."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.tracers.run_collector import RunCollectorCallbackHandler

from langchain_specfuse import (
    AsyncSpecFuseCallbackHandler,
    CheckError,
    RejectedEvent,
    RoundEvent,
    ScriptedMember,
    SpecFuseCallbackHandler,
    SpecFuseChatModel,
    Trace,
    TraceCallbackHandler,
    UsageError,
    checks,
)
from tests.methods import in_method

from .conftest import asked


def no_promises(text: str) -> str | None:
    return "promises something" if "guarantee" in text else None


def never(text: str) -> str | None:
    return "is not allowed"


def promising(**options: Any) -> SpecFuseChatModel:
    """Two members; the first promises something."""
    members = [
        ScriptedMember("We guarantee a good answer to you.", name="ann"),
        ScriptedMember("We hope for a good answer to you.", name="bob"),
    ]
    return SpecFuseChatModel(
        **in_method(**{"members": members, "segment_tokens": 4, "checks": [no_promises], **options})
    )


def test_each_rejection_is_an_event_before_its_round() -> None:
    events: list[Any] = []
    handler = SpecFuseCallbackHandler(on_round=events.append, on_rejected=events.append)
    answer = promising().invoke("Well?", {"callbacks": [handler]})
    assert answer.text == "We hope for a good answer to you."
    first = events[0]
    assert isinstance(first, RejectedEvent) and isinstance(events[1], RoundEvent)
    assert (first.round, first.member, first.text) == (1, "ann", "We guarantee a good")
    assert (first.check, first.reason) == ("no_promises", "promises something")
    assert (first.kept, first.is_shown) == (0, False)
    assert first.run_id == events[1].run_id and len(events[1].rejected) == 1


@pytest.mark.parametrize("way", ["invoke", "ainvoke", "stream", "astream"])
async def test_coroutine_functions_are_awaited_for_rejections(way: str) -> None:
    seen = []

    async def note(event: RejectedEvent) -> None:
        seen.append(event.reason)

    class Mine(AsyncSpecFuseCallbackHandler):
        async def on_rejected(self, event: RejectedEvent) -> None:
            seen.append(event.member)

    handlers = [AsyncSpecFuseCallbackHandler(on_rejected=note), Mine()]
    await asked(promising(), way, config={"callbacks": handlers})
    assert seen == ["promises something", "ann"]
    with pytest.raises(UsageError, match="on_rejected must be a plain function"):
        SpecFuseCallbackHandler(on_rejected=note)


def test_the_rejections_of_a_round_that_breaks_off_are_events(tracer: Any, tmp_path: Any) -> None:
    recorder = TraceCallbackHandler()
    events: list[RejectedEvent] = []
    handler = SpecFuseCallbackHandler(on_rejected=events.append)
    with pytest.raises(CheckError) as error:
        promising(checks=[never]).invoke("Well?", {"callbacks": [handler, tracer, recorder]})
    assert {event.check for event in events} == {"never"}
    assert {event.round for event in events} == {1}
    assert {event.member for event in events} == {"ann", "bob"}
    (broken,) = tracer.traced_runs[0].child_runs
    assert "'never'" in broken.error and error.value.check == "never"
    assert {rejection["check"] for rejection in recorder.trace.rejected} == {"never"}
    recorder.trace.save(tmp_path / "run.json")
    assert Trace.load(tmp_path / "run.json").rejected == recorder.trace.rejected
    assert {event.text for event in events} >= {"We guarantee a good", "We hope for a"}


def test_a_rejected_draft_is_in_the_outputs_of_its_round(tracer: Any) -> None:
    promising().invoke("Well?", {"callbacks": [tracer]})
    model = tracer.traced_runs[0]
    first = model.child_runs[0]
    assert first.outputs["rejected"][0]["reason"] == "promises something"
    assert first.outputs["checks"] == {"no_promises": {"passed": 1, "rejected": 1}}
    assert first.outputs["rejected"][0]["member"] == "ann"
    counts = model.extra["metadata"]["specfuse_checks"]["no_promises"]
    assert counts["rejected"] == 1 and set(counts) == {"passed", "rejected"}
    for run in [model, first, *first.child_runs]:
        shown = [run.name, run.tags, run.extra.get("metadata")]
        assert "guarantee" not in str(shown) and "promises something" not in str(shown)


def test_without_rejections_a_round_says_nothing_about_them(tracer: Any) -> None:
    promising(checks=[]).invoke("Well?", {"callbacks": [tracer]})
    model = tracer.traced_runs[0]
    assert not {"rejected", "withdrawn", "checks"} & set(model.child_runs[0].outputs)
    assert "specfuse_checks" not in model.extra["metadata"]


@pytest.fixture
def tracer() -> RunCollectorCallbackHandler:
    return RunCollectorCallbackHandler()


def test_a_wrong_argument_names_the_class_that_the_user_called() -> None:
    with pytest.raises(TypeError, match=r"SpecFuseCallbackHandler.*'on_reject'"):
        SpecFuseCallbackHandler(on_reject=print)  # type: ignore[call-arg]


def test_text_that_was_held_back_keeps_its_author() -> None:
    held = promising(checks=[checks.at("answer", no_promises)], output_version="v1", lead=None)
    recorder = TraceCallbackHandler()
    (block,) = held.invoke("Well?", {"callbacks": [recorder]}).content_blocks
    standing: list[tuple[int, str, str]] = []
    for item in recorder.trace.rounds:
        if item["withdrawn"]:
            assert standing.pop()[2] == item["withdrawn"]
        standing.append((item["round"], item["winner"], item["segment"]))
    notes = [note["value"] for note in block["annotations"]]
    shown = [
        (note["round"], note["member"], block["text"][note["start"] : note["end"]])
        for note in notes
    ]
    assert shown == standing and len(shown) == 2
    assert not any(item["text"] for item in recorder.trace.rounds[:-1])
