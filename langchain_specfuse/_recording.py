"""Records the runs of a chat model as traces, from the events that it sends. Knows callbacks and traces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import BaseMessage

from ._tracing import ROUND_EVENT
from .errors import SpecFuseError, UsageError, advised, amount
from .show.trace import Trace

KEPT = 100
"""So many traces are kept; a server that records every answer does not grow without end."""


class TraceCallbackHandler(BaseCallbackHandler):
    """Keeps a :class:`Trace` of every answer that is given while it listens.

    >>> from langchain_specfuse import ScriptedMember, SpecFuseChatModel, TraceCallbackHandler
    >>> llm = SpecFuseChatModel(members=[ScriptedMember("Blue.", name="a"), ScriptedMember("Blue.", name="b")])
    >>> recorder = TraceCallbackHandler()
    >>> answer = llm.invoke("Which colour?", {"callbacks": [recorder]})
    >>> recorder.trace
    <Trace of 1 round by a, b: 'Blue.'>

    ``recorder.trace`` is that of the answer begun last, ``recorder.traces`` has those of all answers (the last
    ``kept``) by the run id of the chat model. An answer that failed has its ``error`` in its trace.
    """

    def __init__(self, *, kept: int = KEPT) -> None:
        if kept < 1:
            raise advised(UsageError(f"kept is {kept!r}"), "keep one trace at least")
        self.kept = kept
        self.traces: dict[UUID, Trace] = {}
        """run id of the chat model -> the trace of its answer, in the order in which the answers began."""
        self._questions: dict[UUID, str] = {}
        self._heard = 0

    @property
    def trace(self) -> Trace:
        """Of the answer begun last."""
        if not self.traces:
            raise _nothing(self._heard)
        return next(reversed(self.traces.values()))

    def on_chat_model_start(
        self, serialized: dict[str, Any], messages: list[list[BaseMessage]], *, run_id: UUID, **kwargs: Any
    ) -> None:
        self._heard += 1
        self._questions[run_id] = _question(messages[0]) if messages else ""
        while len(self._questions) > self.kept:
            del self._questions[next(iter(self._questions))]

    def on_custom_event(self, name: str, data: Any, *, run_id: UUID, **kwargs: Any) -> None:
        if name != ROUND_EVENT:
            return
        self._trace_of(run_id).add(data)

    def on_llm_end(self, response: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self._questions.pop(run_id, None)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        if run_id in self.traces or isinstance(error, SpecFuseError):  # other chat models fail with other errors
            self._trace_of(run_id).error = f"{type(error).__name__}: {error}"
        self._questions.pop(run_id, None)

    def _trace_of(self, run_id: UUID) -> Trace:
        if run_id not in self.traces:
            self.traces[run_id] = Trace(question=self._questions.get(run_id, ""))
        while len(self.traces) > self.kept:
            del self.traces[next(iter(self.traces))]
        return self.traces[run_id]


def _nothing(heard: int) -> UsageError:
    if not heard:
        return advised(UsageError("nothing has been recorded"), "give this handler to a SpecFuseChatModel's call")
    error = UsageError(f"nothing has been recorded: {amount(heard, 'answer')} came without a round")
    return advised(error, "answers from LangChain's cache, and of other chat models, have none; cache=False asks anew")


def _question(messages: Sequence[BaseMessage]) -> str:
    """What the person said last."""
    asked = [message for message in messages if message.type == "human"]
    return str(asked[-1].text) if asked else ""
