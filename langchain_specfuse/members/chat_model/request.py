"""The caller's own request to a chat model: messages, tools, formats and further arguments reach
the provider as they were given."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_core.runnables import Runnable, RunnableBinding, RunnableMap, RunnableSequence
from langchain_core.utils.json import parse_json_markdown

from ...constraints import fault, referee_for
from ...core.values import Attachment, Constraint, Query, Turn
from ...errors import UsageError, advised
from .history import sendable

AGAIN = (
    "This answer cannot be used: {} Write the whole answer again so that it can be. "
    "Write nothing else."
)
"""What follows a reply in another form than was asked for."""
_SENTENCES = {
    "json": "Answer with a JSON object.",
    "json_schema": "Answer with JSON that fits this schema:\n{}",
    "choice": "Answer with one of these texts, and nothing else: {}",
    "regex": "Answer with a text that this regular expression matches as a whole, and nothing "
    "else:\n{}",
    "grammar": "Answer with a text that follows this grammar, and nothing else:\n{}",
}
"""Kinds of constraints -> the sentence that asks for it, where the provider has no parameter."""


@dataclass(frozen=True, slots=True)
class Request:
    """A question as its caller gave it."""

    messages: tuple[BaseMessage, ...]
    tools: tuple[Any, ...] = ()
    choice: Mapping[str, Any] = field(default_factory=dict)
    """Arguments for ``bind_tools``, such as ``tool_choice``."""
    structured: Mapping[str, Any] | None = None
    """Arguments for ``with_structured_output``, with its ``schema``."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of the call."""
    of_lead: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Further arguments for one member, by its name: the model that a call asks for."""
    text: Constraint | None = None
    """The form of an answer that is not a call."""
    is_whole: bool = False
    """Nobody sees the answer before it is complete, so it can be asked for again."""

    @classmethod
    def of(cls, query: Query) -> Request:
        """The query's request, or one with its turns."""
        if query.request is not None:
            request: Request = query.request
            return request
        return cls(tuple(map(message_of, query.turns)), text=query.constraint)

    @property
    def waits(self) -> bool:
        """Whether the reply is handed on when it is complete and has the form that was asked for.
        That of an object is the provider's promise, so others may see it while it is written."""
        return self.text is not None and (self.is_whole or not self.is_json)

    @property
    def is_json(self) -> bool:
        return self.text is not None and self.text.kind.startswith("json")

    def is_unfinished(self, text: str) -> bool:
        """Whether this must be an object and is not a complete one."""
        if not self.is_json:
            return False
        try:
            read(text)
        except (ValueError, RecursionError):
            return True
        return False

    def without_format(self) -> Request:
        """The request for the rest of an object. With the provider's own format, the reply would be
        a whole new object."""
        options = {name: value for name, value in self.options.items() if name != "response_format"}
        return replace(self, structured=None, options=options)

    def messages_for(
        self, model: BaseChatModel, name: str, system: str | None
    ) -> list[BaseMessage]:
        """The messages for the member of this name, with ``system`` as the only system message, if
        it is given. If the provider has no parameter for the form of the answer, a sentence asks
        for it."""
        messages = [sendable(message, name) for message in self.messages]
        if system is not None:
            others = [message for message in messages if not isinstance(message, SystemMessage)]
            messages = [SystemMessage(system), *others]
        if self.text is None or self.text.kind not in _SENTENCES:
            return messages
        if self.structured is not None and self._format(model):
            return messages
        if self.structured is None and "response_format" in self.options:
            return messages
        return with_sentence(messages, _SENTENCES[self.text.kind].format(self.text.body))

    def arguments(self, model: BaseChatModel, name: str) -> dict[str, Any]:
        """The arguments of ``model.stream`` besides the messages, for the member of this name."""
        arguments = {**self.options, **self.of_lead.get(name, {})}
        if self.tools:
            refuse_without_tools(model)
            bound = model.bind_tools(list(self.tools), **self.choice, **arguments)
            arguments = {**arguments, **_bound_to(bound)}
        if self.structured is not None:
            arguments |= self._format(model)
        return arguments

    def _format(self, model: BaseChatModel) -> dict[str, Any]:
        """The arguments by which this provider's models write objects; empty if it has none."""
        assert self.structured is not None
        try:
            return _bound_to(model.with_structured_output(**self.structured, include_raw=True))
        except (NotImplementedError, ValueError, TypeError):
            return {}

    def fault_of(self, text: str) -> str:
        """Why this is not the text that was asked for; empty if it is."""
        if self.text is None:
            return ""
        kind, body = self.text.kind, self.text.body
        if kind.startswith("json"):
            try:
                data = read(text)
            except (ValueError, RecursionError) as error:
                return f"it is not JSON: {error}"
            return fault(body, data) if body else _not_an_object(data)
        referee = referee_for(self.text)
        if referee.legal("", text) == len(text) and referee.may_end(text):
            return ""
        return f"it does not match the {kind} {body:.200}"


def refuse_without_tools(model: BaseChatModel) -> None:
    """Refuse a model that cannot call tools."""
    if type(model).bind_tools is BaseChatModel.bind_tools:
        error = UsageError(f"{type(model).__name__} has no bind_tools, so it cannot call tools")
        raise advised(error, "let a member that can call tools lead: name it first, or in lead=")


def read(text: str) -> Any:
    """The JSON in a reply, which may be in a code fence: models without a parameter for objects
    often write one."""
    return parse_json_markdown(text, parser=json.loads)


def _not_an_object(data: Any) -> str:
    return "" if isinstance(data, dict) else "it is not an object"


def _bound_to(runnable: Runnable[Any, Any]) -> dict[str, Any]:
    """The arguments that LangChain's ``bind`` has put around a chat model, wherever it is in this
    runnable."""
    if isinstance(runnable, RunnableBinding) and isinstance(runnable.bound, BaseChatModel):
        return dict(runnable.kwargs)
    inner: Sequence[Runnable[Any, Any]] = ()
    if isinstance(runnable, RunnableSequence):
        inner = runnable.steps[:1]
    elif isinstance(runnable, RunnableMap):
        inner = list(runnable.steps__.values())
    elif isinstance(runnable, RunnableBinding):
        inner = [runnable.bound]
    for step in inner:
        if arguments := _bound_to(step):
            return arguments
    return {}


def with_sentence(messages: Sequence[BaseMessage], text: str) -> list[BaseMessage]:
    """The messages with this at the end of the system message."""
    first, *rest = messages
    if not isinstance(first, SystemMessage):
        return [SystemMessage(text), *messages]
    return [with_text(first, text), *rest]


def with_text(message: BaseMessage, text: str) -> BaseMessage:
    """The message with this at its end."""
    content: Any = f"{message.content}\n\n{text}"
    if not isinstance(message.content, str):
        content = [*message.content, {"type": "text", "text": text}]
    return message.model_copy(update={"content": content})


def asked_again(messages: Sequence[BaseMessage], reply: str, why: str) -> list[BaseMessage]:
    """The messages, a reply that cannot be used, and why."""
    why = why if why.endswith((".", "!", "?")) else f"{why}."
    return [*messages, AIMessage(reply or "..."), HumanMessage(AGAIN.format(why))]


def message_of(turn: Turn) -> BaseMessage:
    """A plain turn as a message."""
    kinds = {"system": SystemMessage, "assistant": AIMessage}
    return kinds.get(turn.role, HumanMessage)(content_of(turn.text, turn.attachments))


def content_of(text: str, attachments: Sequence[Attachment]) -> Any:
    """The content of a message: its attachments first, as providers advise, then the text."""
    if not attachments:
        return text
    blocks: list[Any] = [json.loads(attachment.body) for attachment in attachments]
    if text:
        blocks.append({"type": "text", "text": text})
    return blocks
