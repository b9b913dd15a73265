"""The answer of ``/v1/specfuse/rounds``: the rounds of one answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from langchain_core.messages import AIMessageChunk

from ..chat.callbacks import TraceCallbackHandler
from .replies import Reply, exits_without_reasons


class Rounds(Reply):
    """The rounds of one answer: an event for each, or the whole trace.

    Without ``show_rejected``, the rounds of an answer with checks contain only the text of the
    answer, because drafts may contain what a check refuses.
    """

    prefix = "chatcmpl-"
    end = b"data: [DONE]\n\n"

    def __init__(
        self, model: str, recorder: TraceCallbackHandler, *, show_rejected: bool = False
    ) -> None:
        super().__init__(model)
        self._recorder = recorder
        self._show_rejected = show_rejected
        self._sent = 0

    def add(self, chunk: AIMessageChunk) -> list[dict[str, Any]]:
        """Add a chunk. Returns the new rounds."""
        self.read(chunk)
        new = self._recorder.trace.rounds[self._sent :]
        self._sent += len(new)
        return [self._public(item) for item in new]

    def closing(self) -> Iterator[dict[str, Any]]:
        return iter(())

    def whole(self) -> dict[str, Any]:
        trace = self._recorder.trace.as_dict()
        return {**trace, "rounds": [self._public(item) for item in trace["rounds"]]}

    def _public(self, round: Mapping[str, Any]) -> dict[str, Any]:
        public = {**round, "left": exits_without_reasons(round["left"])}
        judged = any(counts.keys() != {"redacted"} for counts in round["checks"].values())
        return _verified(public) if judged and not self._show_rejected else public


def _verified(round: Mapping[str, Any]) -> dict[str, Any]:
    """The round with shown text only: without drafts that lost or were refused, and without text
    that is held back."""
    segment = _shown_part(round["segment"], round["text"])
    texts = {round["winner"]: segment}
    return {
        **round,
        "segment": segment,
        "forced": round["forced"] if segment == round["segment"] else "",
        "drafts": {
            name: {**draft, "text": texts.get(name, "")} for name, draft in round["drafts"].items()
        },
        "rejected": [{**rejection, "text": "", "held_back": ""} for rejection in round["rejected"]],
        "withdrawn": "",
    }


def _shown_part(segment: str, shown: str) -> str:
    """The beginning of a segment that is shown. The rest is held back."""
    if segment in shown:
        return segment
    sizes = range(len(segment), -1, -1)
    return next(segment[:size] for size in sizes if shown.endswith(segment[:size]))
