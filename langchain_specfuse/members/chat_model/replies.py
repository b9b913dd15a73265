"""Replies and errors of LangChain chat models, in the same form for all providers."""

from __future__ import annotations

import contextvars
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from langchain_core.caches import BaseCache
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessageChunk, BaseMessage
from langsmith import tracing_context

from ...core.call import SHOWN, note_arrival, shown
from ...core.values import REFUSAL
from ...errors import MemberError, advised, amount, chain
from ..network import status_of, to_correct_key, to_reach
from ..text.thinking import split_thought
from .finishes import finish_of, reason_in
from .parts import as_chunk, calls_in, is_call_unfinished, joined
from .refusals import is_refusal, refusal_in
from .stream import StreamPart
from .words import words_of

WITHHELD = "The provider's content filter refused to answer."
"""The refusal of a reply that a provider withholds without words."""
_GIVE_REASONS: set[str] = set()
"""Digests of the settings of chat models that have given a reason for the end of a reply. If a
later reply has none, it has broken off: a broken connection may look like the end of a reply. A
program may create the same chat model again for each question."""
_OTHER_NAMES = {"max_tokens": "num_predict", "repetition_penalty": "repeat_penalty"}
"""Options -> the fields of ChatOllama, whose client refuses an argument that it does not know."""
_UNREACHED = {"ConnectError", "ConnectionError", "ModelConnectionError", "APIConnectionError"}
"""Classes of the errors of httpx, Python, langchain-core and the providers' clients."""
_CLOSED = {"RemoteProtocolError", "ReadError"}
"""Classes of the errors of httpx about a connection that was there. The errors of OpenAI's and
Anthropic's clients have one of them as their cause; without it, there was no connection."""
_KINDS = {
    "ModelTimeoutError": "timeout",
    "ModelAuthenticationError": "denied",
    "ModelPermissionDeniedError": "denied",
    "ContextOverflowError": "overflow",
    "ModelNotFoundError": "not_found",
}
"""Classes of langchain-core that mean a failure of a kind."""
_STATUSES = {
    400: "bad_request",
    401: "denied",
    403: "denied",
    404: "not_found",
    408: "timeout",
    413: "overflow",
    422: "bad_request",
}
"""HTTP statuses that mean a failure of a kind."""


class Reply:
    """One reply of a chat model."""

    def __init__(
        self,
        member: str,
        model: BaseChatModel,
        key: str,
        thinking_tokens: int,
        key_variable: str = "",
        may_be_empty: bool = False,
        has_tags: bool = True,
    ) -> None:
        """``member`` is the member's name, for errors; ``key`` is the digest of the chat model's
        settings. ``key_variable``: the environment variable that its API key was read from; empty:
        one of those that the chat model names. ``may_be_empty``: a reply without text may be
        complete without a reason, because nothing may be left to write. ``has_tags``: reasoning in
        tags before the text is no text."""
        self._member = member
        self._model = model
        self._key = key
        self._limit = thinking_tokens
        self._key_variable = key_variable
        self._thought_size = 0
        """The length of the reply in words. A chunk without text counts as one word."""
        self._begun = False
        """Whether the text has begun. Reasoning may come before it."""
        self._length = 0
        """How many characters of text have arrived."""
        self._held = ""
        """Text that may belong to the reasoning."""
        self._finish = ""
        self._reason = ""
        """The provider's own word for it."""
        self._refusal = ""
        self._may_be_empty = may_be_empty
        self._has_tags = has_tags
        self.has_arrived = False
        """Whether a part of it has arrived."""
        self._quiet: list[AIMessageChunk] = []
        """Chunks that add nothing by themselves. They go with the next part."""
        self._calling: list[AIMessageChunk] = []
        """The chunks from the first piece of a tool call on. They go with the last part, so that
        calls are complete."""
        self._has_reason = False
        """Whether the model has given a reason for its end. A refusal alone is not such a
        reason."""

    def parts(
        self, messages: Sequence[BaseMessage], options: Mapping[str, Any], *, is_whole: bool = False
    ) -> Iterator[StreamPart]:
        """Send the request and read the stream. The last part says how the reply ended.
        ``is_whole``: nobody sees the answer before it is complete, so it may come from the chat
        model's own cache, which LangChain does not use for streams."""
        # Some chat models, such as ChatOllama, know a setting only as their own field.
        fields = type(self._model).model_fields
        options = {_name_in(fields, name): value for name, value in options.items()}
        own = {name: value for name, value in options.items() if name in fields}
        if is_whole and getattr(self._model, "stream_usage", False) is None:
            # By default, ChatOpenAI asks only OpenAI's own server for the usage of a stream, but
            # every reply that is not streamed has it.
            own["stream_usage"] = True
        rest = {name: value for name, value in options.items() if name not in fields}
        model = self._model.model_copy(update=own) if own else self._model
        with tracing_context(enabled=False):  # the round's own spans show what members do
            untraced = contextvars.copy_context()
        chunk: Any = None
        chunks: Iterator[Any] = model.stream(list(messages), **rest)
        if is_whole and isinstance(model.cache, BaseCache):
            chunks = (model.invoke(asked, **rest) for asked in [list(messages)])
        try:
            while self._thought_size <= self._limit:
                chunk = untraced.run(next, chunks, None)
                if chunk is None:
                    break
                self.has_arrived = True
                note_arrival()
                part = self._part(chunk)
                if part is not None:
                    yield part
        except Exception as error:
            if is_refusal(error) and self.has_arrived:
                self._finish = REFUSAL
                self._refusal = self._refusal or str(error)
            elif not self._has_reason:  # with a reason, the reply is complete
                raise self._failure(error) from error
        finally:
            chunks.close()  # type: ignore[attr-defined]
        if self._finish == "broken":
            raise MemberError(
                f"its reply broke off: its finish reason is {self._reason!r}", member=self._member
            )
        if chunk is None and self._key in _GIVE_REASONS and not self._finish:
            raise MemberError(
                "its reply broke off: it ended without a finish reason", member=self._member
            )
        if not self._begun:
            part = self._thought_alone()
            if not (part.text or self._calling or self._finish or self._may_be_empty):
                # For example an error event in a form that the chat model does not know.
                raise MemberError(
                    "its reply broke off: it ended without text and without a finish reason",
                    member=self._member,
                )
            yield part
        if self._finish == REFUSAL:
            self._refusal = self._refusal or WITHHELD
        last = [joined(self._calling)] if self._calling else []
        if not self._finish and is_call_unfinished(last):
            raise MemberError(
                "its reply broke off: it ended without a finish reason, in the middle of a call",
                member=self._member,
            )
        yield StreamPart(
            "".join(str(chunk.text) for chunk in last),
            finish=self._finish or "stop",
            has_reason=bool(self._finish),
            refusal=self._refusal,
            chunks=(*self._quiet, *last),
            calls=calls_in(last),
        )

    def _part(self, message: Any) -> StreamPart | None:
        """What a chunk adds; None if it is empty."""
        chunk = as_chunk(message)
        reason = reason_in(chunk.response_metadata)
        if reason:
            self._has_reason = True
            _GIVE_REASONS.add(self._key)
            if self._finish != REFUSAL:  # after a refusal, the last chunk may still say "stop"
                self._finish, self._reason = finish_of(reason), reason
        text, thought = str(chunk.text), ""
        self._length += len(text)
        is_silent = not text and bool(chunk.content)
        if chunk.additional_kwargs or not isinstance(chunk.content, str):
            thought = _thought_in(chunk)
            refusal = refusal_in(chunk)
            if refusal is not None:
                self._finish = REFUSAL
                self._refusal += refusal
        usage: Mapping[str, Any] = chunk.usage_metadata or {}
        counts = (usage.get("input_tokens", 0), usage.get("output_tokens", 0))
        least = _least_of(chunk.response_metadata)
        if self._calling or chunk.tool_call_chunks:
            self._calling.append(chunk)
            is_first = len(self._calling) == 1
            return StreamPart("", usage=counts, is_silent=is_first) if usage or is_first else None
        if not self._begun:
            text, thought = self._split(text, thought)
        self._quiet.append(chunk)
        if not text and not thought and not usage and not is_silent:
            return None
        chunks, self._quiet = tuple(self._quiet), []
        return StreamPart(
            text, thought, usage=counts, least=least, chunks=chunks, is_silent=is_silent
        )

    def _split(self, text: str, thought: str) -> tuple[str, str]:
        """The text and the reasoning of a chunk before the text has begun."""
        size = len(words_of(text + thought))
        if not self._has_tags:
            self._begun = bool(text)
            self._thought_size += 0 if text else max(1, size)
            return text, thought
        self._held += text
        tagged, text = split_thought(self._held) or ("", "")
        self._begun = bool(text)
        # ChatOpenAI leaves out the reasoning field of other servers: its chunks are empty then.
        if not self._begun and self._finish != REFUSAL:
            self._thought_size += max(1, size)
        return text, thought + tagged

    def _thought_alone(self) -> StreamPart:
        """The end of a reply whose text has not begun. Raises if a limit is the reason."""
        thought, text = split_thought(self._held, whole=True) or ("", "")
        limit = ""
        if self._finish == "length" and not text and not self._calling:
            limit = "its own max_tokens"
        if self._thought_size > self._limit:
            limit = f"thinking_tokens={self._limit}"
        if limit:
            error = MemberError(
                f"it reasoned up to {limit}, before its first word", member=self._member
            )
            raise advised(error, "raise that limit, or lower the chat model's reasoning effort")
        return StreamPart(text, thought)

    @property
    def _arrived(self) -> str:
        """Where the reply has come to, for the error if it breaks off; empty: nothing has come."""
        if self._calling:
            return "in the middle of a tool call"
        if self._length:
            return f"after {amount(self._length, 'character')}"
        return "before its first word" if self.has_arrived else ""

    def _failure(self, error: Exception) -> MemberError:
        """A chat model's error as its member's."""
        # A gateway may repeat the key that it was sent.
        secret = os.environ.get(self._key_variable, "").strip().rpartition(" ")[2]
        failure = member_error(error, self._member, secret, self._arrived)
        if status_of(error) != 401:
            return failure
        if self._key_variable:
            return advised(failure, to_correct_key(self._key_variable))
        variables = " or ".join(dict.fromkeys(self._model.lc_secrets.values()))
        where = f"the environment variable {variables}" if variables else "the key"
        return advised(failure, f"check {where}, or the key that the chat model was given")


def _name_in(fields: Mapping[str, Any], name: str) -> str:
    """The name of this option among a chat model's fields."""
    other = _OTHER_NAMES.get(name, "")
    return other if other in fields and name not in fields else name


def member_error(error: Exception, member: str, secret: str = "", arrived: str = "") -> MemberError:
    """A chat model's error as its member's. If no server was reached, it says which. ``secret`` is
    not shown; ``arrived`` says where the reply has come to."""
    kind = _kind_of(error)
    why = shown(error)
    if secret and secret in str(error):  # replaced before the text is cut, perhaps within it
        text = f"{type(error).__name__}: {error}".replace(secret, "***")
        why = text.encode(errors="backslashreplace").decode()[:SHOWN]
    classes = {kind.__name__ for kind in type(error).__mro__}
    failure = MemberError(why, member=member, kind=kind)
    if kind != "error" or not classes & (_UNREACHED | _CLOSED):
        return failure
    if arrived:
        return MemberError(f"its reply broke off {arrived} ({why})", member=member)
    try:
        address = urlsplit(str(error.request.url))  # type: ignore[attr-defined]
    except (AttributeError, RuntimeError):  # httpx raises the latter if there is none
        return advised(
            failure, "check the network connection, and the address that the chat model was given"
        )
    url = f"{address.scheme}://{address.hostname}"
    if address.port:
        url += f":{address.port}"
    if any(type(cause).__name__ in _CLOSED for cause in chain(error)):
        return MemberError(
            f"its server at {url} closed the connection before its reply ({why})", member=member
        )
    failure = MemberError(f"its server at {url} cannot be reached ({why})", member=member)
    return advised(failure, to_reach(url))


def _kind_of(error: Exception) -> str:
    if is_refusal(error):
        return REFUSAL
    if isinstance(error, TimeoutError):
        return "timeout"
    classes = {kind.__name__ for kind in type(error).__mro__}
    for name, kind in _KINDS.items():
        if name in classes:
            return kind
    return _STATUSES.get(status_of(error) or 0, "error")


def _thought_in(chunk: AIMessageChunk) -> str:
    """The reasoning in a chunk. LangChain's blocks lack it if an OpenAI-like server sends it in a
    separate field."""
    blocks = [block for block in chunk.content_blocks if block["type"] == "reasoning"]
    thought = "".join(str(block.get("reasoning", "")) for block in blocks)
    if thought:
        return thought
    for name in ("reasoning_content", "reasoning"):
        field = chunk.additional_kwargs.get(name)
        if isinstance(field, str):
            return field
    return ""


def _least_of(metadata: Mapping[str, Any]) -> float | None:
    """The lowest log-probability in a chunk, as OpenAI's and Ollama's interfaces give them."""
    tokens = metadata.get("logprobs") or []
    if isinstance(tokens, Mapping):
        tokens = tokens.get("content") or []
    return min((float(token["logprob"]) for token in tokens), default=None)
