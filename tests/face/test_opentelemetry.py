"""Where the user has set up OpenTelemetry, rounds and members are spans there.

LangSmith's client writes them, and needs no account for it.
"""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.tracers import LangChainTracer
from langsmith import Client

from langchain_specfuse import ScriptedMember, SpecFuseChatModel

from .conftest import BLUE, WIDE
from .recording import Endpoint

pytest.importorskip("opentelemetry.sdk", reason="opentelemetry-sdk is not installed")


@pytest.fixture
def spans() -> list[Any]:
    """The spans of one answer of three members, of which the third fails in round 2."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider, endpoint = InMemorySpanExporter(), TracerProvider(), Endpoint()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    client = Client(api_url=endpoint.url, tracing_mode="otel", otel_tracer_provider=provider)
    names = {"a": BLUE, "b": WIDE}
    members = [ScriptedMember(text, name=name) for name, text in names.items()]
    members.append(ScriptedMember(BLUE, name="c", fails_in=2))
    llm = SpecFuseChatModel(members=members, segment_tokens=4, trace="members")
    with provider.get_tracer("mine").start_as_current_span("mine"):
        assert llm.invoke("Why?", {"callbacks": [LangChainTracer(client=client)]}).text == BLUE
    client.flush()
    client.close()
    endpoint.close()
    assert not [asked for asked in endpoint.asked if asked.startswith("POST")]
    return list(exporter.get_finished_spans())


def test_rounds_and_members_are_spans_under_the_users_own(spans: list[Any]) -> None:
    by_id = {span.context.span_id: span for span in spans}

    def path(span: Any) -> str:
        return (path(by_id[span.parent.span_id]) + " / " if span.parent else "") + span.name

    paths = sorted({path(span).replace("SpecFuseChatModel", "chat model") for span in spans})
    assert paths[:5] == [
        "mine",
        "mine / chat model",
        "mine / chat model / round 1",
        "mine / chat model / round 1 / draft a",
        "mine / chat model / round 1 / draft b",
    ]
    assert "mine / chat model / round 1 / score c" in paths
    assert len(paths) == len(spans)
    assert len({span.context.trace_id for span in spans}) == 1


def test_spans_have_the_true_times_and_the_failures(spans: list[Any]) -> None:
    rounds = sorted((span for span in spans if span.name.startswith("round")), key=lambda span: span.start_time)
    assert [span.name for span in rounds] == [f"round {n}" for n in (1, 2, 3, 4)]
    assert all(one.end_time <= other.start_time for one, other in zip(rounds, rounds[1:], strict=False))
    (failed,) = (span for span in spans if not span.status.is_ok)
    assert failed.name == "draft c"
    (event,) = failed.events
    assert "scripted failure" in event.attributes["exception.message"]
