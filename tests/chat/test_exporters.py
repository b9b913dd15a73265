"""Tracers other than LangSmith's get rounds too, which begin and end one after another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.tracers.stdout import FunctionCallbackHandler
from openinference.instrumentation.langchain import LangChainInstrumentor
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from langchain_specfuse import Method, ScriptedMember, SpecFuseChatModel

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
async def test_rounds_are_spans_with_their_own_times(
    ensemble: Any, exporter: InMemorySpanExporter, way: str
) -> None:
    await asked(ensemble(), way)
    spans = exporter.get_finished_spans()
    (model,) = (span for span in spans if span.parent is None)
    rounds = below(spans, model)
    assert [span.name for span in rounds] == NAMES
    for earlier, later in zip(rounds, rounds[1:], strict=False):
        assert model.start_time <= earlier.start_time < earlier.end_time <= later.start_time


def test_a_failed_member_is_a_span_with_an_error(exporter: InMemorySpanExporter) -> None:
    members = [ScriptedMember(BLUE, name="a"), ScriptedMember(BLUE, name="b", fails_in=2)]
    SpecFuseChatModel(members=members, method=Method(segment_tokens=4)).invoke("Why?")
    (failed,) = (span for span in exporter.get_finished_spans() if not span.status.is_ok)
    assert failed.name == "b"
    assert "scripted failure" in str(failed.status.description)


def test_a_tracer_that_prints_runs_prints_rounds(ensemble: Any) -> None:
    printed: list[str] = []
    ensemble().invoke("Why?", {"callbacks": [FunctionCallbackHandler(printed.append)]})
    for name in NAMES:
        begins, ends = (line for line in printed if f"> chain:{name}]" in line)
        assert "Entering Chain run" in begins and "Exiting Chain run" in ends
