"""What the door counts, for Prometheus: answers, rounds, wins, exits, weights, tokens and times. Never a text.

prometheus-client writes the format (it needs nothing else, and escapes names); each door has a registry of its own.
Knows events and summaries, nothing of HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Summary, generate_latest

from .._story import EXIT_EVENT
from .._tracing import ROUND_EVENT
from .gate import Gate

FIRST = (0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
WHOLE = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class Meters(BaseCallbackHandler):
    """The numbers of one door. It listens to the chat model's events; the door tells it the rest."""

    run_inline = True
    """It only adds numbers up: no thread is worth its while."""

    def __init__(self, gate: Gate) -> None:
        self._registry = mine = CollectorRegistry()
        self._answers = Counter("specfuse_answers", "Answers that ended, and how", ["outcome"], registry=mine)
        self._refused = Counter("specfuse_refused", "Requests refused before an answer began", ["code"], registry=mine)
        self._rounds = Counter("specfuse_rounds", "Rounds of all answers", registry=mine)
        self._segments = Counter("specfuse_segments", "Segments by who wrote them", ["member"], registry=mine)
        self._exits = Counter("specfuse_exits", "Members that left an answer", ["member", "kind"], registry=mine)
        self._tokens = Counter("specfuse_tokens", "Tokens read and written", ["kind"], registry=mine)
        self._weight = Summary("specfuse_weight", "Voting weights at the end of answers", ["member"], registry=mine)
        self._first_s = Histogram(
            "specfuse_first_segment_seconds", "From a question to its first words", registry=mine, buckets=FIRST
        )
        self._answer_s = Histogram(
            "specfuse_answer_seconds", "From a question to the end of its answer", registry=mine, buckets=WHOLE
        )
        self._gauges(gate)

    def _gauges(self, gate: Gate) -> None:
        under_way = Gauge("specfuse_answers_in_flight", "Answers under way", registry=self._registry)
        under_way.set_function(lambda: gate.answering)
        waiting = Gauge("specfuse_answers_waiting", "Questions that wait for a seat", registry=self._registry)
        waiting.set_function(lambda: gate.waiting)

    def text(self) -> bytes:
        """All of it, in Prometheus's format."""
        return generate_latest(self._registry)

    # --- what the chat model tells -------------------------------------------------------------------------------

    def on_custom_event(self, name: str, data: Any, **kwargs: Any) -> None:
        if name == ROUND_EVENT:
            self._rounds.inc()
            self._segments.labels(data["winner"]).inc()
        elif name == EXIT_EVENT:
            self._exits.labels(data["member"], data["kind"]).inc()

    # --- what the door tells -------------------------------------------------------------------------------------

    def refused(self, code: str) -> None:
        self._refused.labels(code).inc()

    def begun(self, seconds: float) -> None:
        """The first words are there."""
        self._first_s.observe(seconds)

    def ended(self, outcome: str, seconds: float) -> None:
        self._answers.labels(outcome).inc()
        self._answer_s.observe(seconds)

    def told(self, usage: Mapping[str, Any], summary: Mapping[str, Any]) -> None:
        """What a whole answer took."""
        self._tokens.labels("prompt").inc(usage.get("prompt_tokens", 0))
        self._tokens.labels("answer").inc(usage.get("completion_tokens", 0))
        for kind, count in summary.get("tokens", {}).items():
            self._tokens.labels(kind).inc(count)
        for member, weight in summary.get("weights", {}).items():
            self._weight.labels(member).observe(weight)
