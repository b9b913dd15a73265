"""What a client reads when something goes wrong: errors in OpenAI's JSON."""

from __future__ import annotations

import json
import math
import re

from ..chat.errors import EnsembleModelRefusalError, PromptTooLongError
from ..chat.options import NOT_FOR_A_CALL, Call
from ..errors import BusyError, CheckError, EnsembleError, MemberError, UsageError, chain

_ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


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
    a question or a path; only a provider's reason to refuse the question is passed on."""
    message = str(error)
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
    if isinstance(error, EnsembleModelRefusalError):
        first = error.failures[0]
        codes = [getattr(cause, "code", None) for cause in chain(first)]
        code = next((code for code in codes if isinstance(code, str)), "content_filter")
        return ApiError(400, f"{first.member} refuses the question: {first.message}", code=code)
    if isinstance(error, EnsembleError):
        message = f"no member is left to finish the answer; failed: {failed_members(error)}"
        return ApiError(500, message, code="members_failed")
    if isinstance(error, MemberError):
        message = f"a member failed: {error.member or 'unknown'} ({error.kind})"
        return ApiError(500, message, code="member_failed")
    return ApiError(500, "internal error", code="internal_error")


def failed_members(error: EnsembleError) -> str:
    """Who failed, and how, without the members' own messages."""
    failures = [f"{failure.member} ({failure.kind})" for failure in error.failures]
    return ", ".join(failures) or "all members"
