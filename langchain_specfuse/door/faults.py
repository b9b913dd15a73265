"""What went wrong, as OpenAI's clients are told it: a status, and an object with message, type, param and code.

Knows our errors and HTTP's numbers. What a member raised is told to nobody outside: it may quote a question or a path.
"""

from __future__ import annotations

import json
import math
from typing import Any

from .._errors import PromptTooLongError
from ..errors import BusyError, EnsembleError, MemberError, UsageError


class Fault(Exception):
    """Something that the client is told instead of an answer."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        param: str | None = None,
        retry_after_s: int | None = None,
        closing: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s
        self.closing = closing
        """Whether the line is closed: there may be no end of what the client sends."""

    @property
    def body(self) -> dict[str, Any]:
        """OpenAI's object of an error."""
        kind = "server_error" if self.status >= 500 else _KINDS.get(self.status, "invalid_request_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}

    @property
    def json(self) -> bytes:
        # ASCII: a message may quote what is no valid text.
        return json.dumps(self.body).encode()

    @property
    def headers(self) -> dict[str, str]:
        """OpenAI's clients ask again by themselves after any 5xx; here that helps only where we say when."""
        closing = {"connection": "close"} if self.closing else {}
        if self.retry_after_s is None:
            return {"x-should-retry": "false", **closing}
        return {"x-should-retry": "true", "retry-after": str(self.retry_after_s), **closing}


_KINDS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


def refusal(message: str, advice: str, *, param: str | None = None, code: str = "invalid_value") -> Fault:
    """The client's own mistake, and what to do about it."""
    return Fault(400, f"{message}\n-> {advice}", code=code, param=param)


def fault_of(error: BaseException) -> Fault:
    """The same trouble as a client may hear it."""
    if isinstance(error, Fault):
        return error
    if isinstance(error, PromptTooLongError):
        # By these words LangChain's client knows it; not every version of OpenAI's tells it the code.
        long = f"prompt is too long: {_told(error)}"
        return Fault(400, long, code="context_length_exceeded", param="messages")
    if isinstance(error, UsageError):
        return Fault(400, _told(error), code="invalid_value", param=_option(error))
    if isinstance(error, TimeoutError):
        late = "the answer took too long\n-> ask for less with max_tokens, or come back when there is less to do"
        return Fault(504, late, code="timeout")
    if isinstance(error, BusyError):
        hint = math.ceil(error.retry_after_s)
        # What the error itself advises is for whoever chose the bounds of the chat model.
        busy = f"too many ask at once, and too many wait already\n-> try again in about {hint} s"
        return Fault(429, busy, code="rate_limit_exceeded", retry_after_s=hint)
    if isinstance(error, EnsembleError):
        who = ", ".join(f"{one.member} ({one.kind})" for one in error.failures)
        return Fault(500, f"nobody is left to finish the answer: {who or 'all members failed'}", code="members_failed")
    if isinstance(error, MemberError):
        return Fault(500, f"a member failed: {error.member or 'unknown'} ({error.kind})", code="member_failed")
    return Fault(500, "something failed that should not have", code="internal_error")


def _told(error: BaseException) -> str:
    return "\n".join([str(error), *getattr(error, "__notes__", ())])


_DRAWN = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed", "stop", "max_tokens")
_SHAPED = ("tools", "tool_choice", "parallel_tool_calls", "response_format", "regex", "choice", "grammar")


def _option(error: UsageError) -> str | None:
    """The option that a message of ours begins with, if it does."""
    first = str(error).partition(" ")[0].partition("=")[0]
    return first if first in _DRAWN + _SHAPED else None
