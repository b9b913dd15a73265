"""Tracers other than LangSmith's get rounds: exporters of spans with true times, stream handlers
none."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.tracers.stdout import FunctionCallbackHandler
from openinference.instrumentation.langchain import LangChainInstrumentor
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from langchain_specfuse import ScriptedMember, SpecFuseChatModel

from .conftest import BLUE, asked
from .test_events import NAMES


@pytest.fixture
def exporter() -> Iterator[InMemorySpanExporter]:
    """Record the spans that OpenInference exports of all LangChain runs."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    instrumentor = LangChainInstrumentor()
    instrumentor.instrument(tracer_provider=provider, skip_dep_check=True)
    try:
        yield exporter
    finally:
        instrumentor.uninstrument()


def below(spans: Any, parent: ReadableSpan) -> list[ReadableSpan]:
    """Return the direct children of this span in the order in which they began."""
    assert parent.context is not None
    children = [
        span for span in spans if span.parent and span.parent.span_id == parent.context.span_id
    ]
    return sorted(children, key=lambda span: span.start_time)


@pytest.mark.parametrize("way", ["invoke", "ainvoke", "stream", "astream"])
async def test_rounds_and_members_are_spans_with_their_own_times(
    ensemble: Any, exporter: InMemorySpanExporter, way: str
) -> None:
    await asked(ensemble(trace="members"), way)
    spans = exporter.get_finished_spans()
    (model,) = (span for span in spans if span.parent is None)
    rounds = below(spans, model)
    assert [span.name for span in rounds] == NAMES
    assert {span.name for span in below(spans, rounds[0])} == {
        "draft a",
        "draft b",
        "score a",
        "score b",
    }
    for earlier, later in zip(rounds, rounds[1:], strict=False):
        assert model.start_time <= earlier.start_time < earlier.end_time <= later.start_time
    for round in rounds:
        assert all(span.start_time >= round.start_time for span in below(spans, round))


def test_a_failed_member_is_a_span_with_an_error(exporter: InMemorySpanExporter) -> None:
    members = [ScriptedMember(BLUE, name="a"), ScriptedMember(BLUE, name="b", fails_in=2)]
    SpecFuseChatModel(members=members, segment_tokens=4).invoke("Why?")
    (failed,) = (span for span in exporter.get_finished_spans() if not span.status.is_ok)
    assert failed.name == "draft b"
    assert "scripted failure" in str(failed.status.description)


def test_a_tracer_that_prints_runs_prints_rounds(ensemble: Any) -> None:
    printed: list[str] = []
    ensemble().invoke("Why?", {"callbacks": [FunctionCallbackHandler(printed.append)]})
    for name in NAMES:
        begins, ends = (line for line in printed if f"> chain:{name}]" in line)
        assert "Entering Chain run" in begins and "Exiting Chain run" in ends


async def test_a_log_of_a_stream_shows_the_chat_model_alone(ensemble: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # LangChain advises astream instead
        paths = [
            change["path"] async for patch in ensemble().astream_log("Why?") for change in patch.ops
        ]
    assert paths
    assert not [path for path in paths if "round" in path]
