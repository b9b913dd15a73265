"""Responses in OpenAI's JSON: a completion, the events of a stream, or an error."""

from __future__ import annotations

import json
import math
import re
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from langchain_core.messages import AIMessageChunk

from ..chat.callbacks import TraceCallbackHandler
from ..chat.errors import PromptTooLongError
from ..chat.options import NOT_FOR_A_CALL, Call
from ..errors import BusyError, CheckError, EnsembleError, MemberError, UsageError

DONE = b"data: [DONE]\n\n"
_FINISHES = {"refusal": "content_filter", "check": "content_filter"}
"""Our finish reasons -> OpenAI's."""
_ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


def to_json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def event(value: Mapping[str, Any]) -> bytes:
    """A server-sent event. It is one line, because JSON escapes line breaks."""
    return b"data: " + to_json(value) + b"\n\n"


class Completion:
    """One answer, built from the chat model's chunks: the events of a stream, or the whole.

    >>> completion = Completion("specfuse")
    >>> [event["choices"][0]["delta"] for event in completion.add(AIMessageChunk("The sky"))]
    [{'role': 'assistant', 'content': 'The sky'}]
    >>> completion.whole()["choices"][0]["message"]["content"]
    'The sky'
    """

    def __init__(self, model: str, *, with_usage: bool = False) -> None:
        self.id = f"chatcmpl-{uuid.uuid4().hex}"
        self._model = model
        self._with_usage = with_usage
        self._created = int(time.time())
        self.chunks: list[AIMessageChunk] = []
        self._role = {"role": "assistant"}
        """The role, until the first event has been sent."""
        # These are set by the last chunks.
        self.finish: str | None = None
        self.logprobs: dict[str, Any] | None = None
        self.usage: dict[str, Any] = {}
        self.summary: dict[str, Any] = {}
        """The ensemble's summary of the answer: rounds, weights, shares."""

    def add(self, chunk: AIMessageChunk) -> list[dict[str, Any]]:
        """Add a chunk. Returns its event for a stream, or nothing if the chunk adds nothing to the
        message."""
        self.chunks.append(chunk)
        self._read_metadata(chunk)
        delta: dict[str, Any] = {"content": str(chunk.text)} if chunk.text else {}
        if "refusal" in chunk.additional_kwargs:
            delta["refusal"] = chunk.additional_kwargs["refusal"]
        if thought := chunk.additional_kwargs.get("reasoning_content"):
            delta["reasoning_content"] = thought
        if chunk.tool_call_chunks:
            delta["tool_calls"] = [_call_delta(piece) for piece in chunk.tool_call_chunks]
        return [self._event(delta)] if delta else []

    def closing(self) -> Iterator[dict[str, Any]]:
        """The last events of a stream."""
        delta = {"content": ""} if self._role else {}
        yield {**self._event(delta, self.finish), "specfuse": self.summary}
        if self._with_usage:
            yield {**self._head("chat.completion.chunk"), "choices": [], "usage": self.usage}

    def whole(self) -> dict[str, Any]:
        """The completion, once every chunk has been added."""
        whole = sum(self.chunks[1:], self.chunks[0])
        calls = [_call(call) for call in whole.tool_call_chunks]
        message: dict[str, Any] = {
            "role": "assistant",
            "content": str(whole.text) or (None if calls else ""),
            "refusal": whole.additional_kwargs.get("refusal"),
        }
        if thought := whole.additional_kwargs.get("reasoning_content"):
            message["reasoning_content"] = thought
        if calls:
            message["tool_calls"] = calls
        choice = {
            "index": 0,
            "message": message,
            "logprobs": self.logprobs,
            "finish_reason": self.finish,
        }
        body = {"choices": [choice], "usage": self.usage, "specfuse": self.summary}
        return {**self._head("chat.completion"), **body}

    def _event(self, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        choice = {
            "index": 0,
            "delta": {**self._role, **delta},
            "logprobs": self.logprobs if finish else None,
            "finish_reason": finish,
        }
        self._role = {}
        body = {**self._head("chat.completion.chunk"), "choices": [choice]}
        if self._with_usage:
            body["usage"] = None
        return body

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self._created, "model": self._model}

    def _read_metadata(self, chunk: AIMessageChunk) -> None:
        if reason := chunk.response_metadata.get("finish_reason"):
            self.finish = _FINISHES.get(reason, reason)
            if (logprobs := chunk.response_metadata.get("logprobs")) is not None:
                self.logprobs = {**logprobs, "refusal": None}
            self.summary = dict(chunk.response_metadata.get("specfuse", {}))
            self.summary["exits"] = _exits(self.summary.get("exits", ()))
        if usage := chunk.usage_metadata:
            self.usage = {
                "prompt_tokens": usage["input_tokens"],
                "completion_tokens": usage["output_tokens"],
                "total_tokens": usage["total_tokens"],
                "prompt_tokens_details": {
                    "cached_tokens": usage.get("input_token_details", {}).get("cache_read", 0)
                },
            }
            self.summary["tokens"] = dict(usage.get("output_token_details", {}))


class Rounds(Completion):
    """The rounds of one answer: an event for each, or the whole trace.

    Without ``show_rejected``, the rounds of an answer with checks contain only the text of the
    answer, because drafts may contain what a check refuses.
    """

    def __init__(
        self, model: str, recorder: TraceCallbackHandler, *, show_rejected: bool = False
    ) -> None:
        super().__init__(model)
        self._recorder = recorder
        self._show_rejected = show_rejected
        self._sent = 0

    def add(self, chunk: AIMessageChunk) -> list[dict[str, Any]]:
        """Add a chunk. Returns the new rounds."""
        super().add(chunk)
        new = self._recorder.trace.rounds[self._sent :]
        self._sent += len(new)
        return [self._public(item) for item in new]

    def closing(self) -> Iterator[dict[str, Any]]:
        return iter(())

    def whole(self) -> dict[str, Any]:
        trace = self._recorder.trace.as_dict()
        return {**trace, "rounds": [self._public(item) for item in trace["rounds"]]}

    def _public(self, round: Mapping[str, Any]) -> dict[str, Any]:
        public = {**round, "left": _exits(round["left"])}
        return public if self._show_rejected or not round["checks"] else _verified(public)


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


def _exits(exits: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The members that left. The reason of a failure is left out, because it may quote what the
    member raised."""
    public = []
    for departure in exits:
        shown = dict(departure)
        if shown.get("kind") != "exit":
            shown.pop("reason", None)
        public.append(shown)
    return public


def _call_delta(piece: Mapping[str, Any]) -> dict[str, Any]:
    """A piece of a tool call. The first piece has the name and the id."""
    if piece["name"]:
        return {"index": piece["index"], **_call(piece)}
    return {"index": piece["index"], "function": {"arguments": piece["args"] or ""}}


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": call["name"], "arguments": call["args"] or ""}
    return {"id": call["id"], "type": "function", "function": function}


class ApiError(Exception):
    """An error response."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        param: str | None = None,
        retry_after_s: int | None = None,
        close: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        # Without this header, clients retry after every status of 500 or more.
        self.headers = {"content-type": "application/json", "x-should-retry": "false"}
        if retry_after_s is not None:
            self.headers |= {"x-should-retry": "true", "retry-after": str(retry_after_s)}
        if close:
            self.headers["connection"] = "close"

    @property
    def body(self) -> bytes:
        kind = _ERROR_TYPES.get(self.status, "invalid_request_error")
        if self.status >= 500:
            kind = "server_error"
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        # ASCII, because a message may quote invalid text
        return json.dumps({"error": error}).encode()


def invalid(
    message: str, advice: str, *, param: str | None = None, code: str = "invalid_value"
) -> ApiError:
    """An error that the client made, with advice on how to correct it."""
    return ApiError(400, f"{message}\n-> {advice}", code=code, param=param)


def api_error(error: BaseException) -> ApiError:
    """The error response for an exception. A member's own message is left out, because it may quote
    a question or a path."""
    message = "\n".join([str(error), *getattr(error, "__notes__", ())])
    if isinstance(error, ApiError):
        return error
    if isinstance(error, PromptTooLongError):
        # LangChain recognises "prompt is too long". Not every version of OpenAI's client passes
        # the code on.
        return ApiError(
            400, f"prompt is too long: {message}", code="context_length_exceeded", param="messages"
        )
    if isinstance(error, UsageError):
        option = re.split(r"\W", message, maxsplit=1)[0]
        known = option in Call.model_fields and option not in NOT_FOR_A_CALL
        return ApiError(400, message, code="invalid_value", param=option if known else None)
    if isinstance(error, RecursionError):
        return invalid("the body is nested too deep", "send a flatter schema", code="body_too_deep")
    if isinstance(error, TimeoutError):
        late = "the answer took too long\n-> ask for a shorter one with max_tokens"
        return ApiError(504, late, code="timeout")
    if isinstance(error, CheckError):
        # what a broken check raised may quote anything
        reason = "" if error.__cause__ else f": {error.reason}"
        failed = f"no text passed the check {error.check!r}{reason}\n-> rephrase the question"
        return ApiError(500, failed, code="check_failed")
    if isinstance(error, BusyError):
        seconds = math.ceil(error.retry_after_s)
        busy = f"too many requests are waiting\n-> try again in about {seconds} s"
        return ApiError(429, busy, code="rate_limit_exceeded", retry_after_s=seconds)
    if isinstance(error, EnsembleError):
        failures = [f"{failure.member} ({failure.kind})" for failure in error.failures]
        failed = ", ".join(failures) or "all members"
        message = f"no member is left to finish the answer; failed: {failed}"
        return ApiError(500, message, code="members_failed")
    if isinstance(error, MemberError):
        message = f"a member failed: {error.member or 'unknown'} ({error.kind})"
        return ApiError(500, message, code="member_failed")
    return ApiError(500, "internal error", code="internal_error")
