"""Tells a chat model what checks have refused, in the request for another text."""

from __future__ import annotations

from collections.abc import Sequence

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from ...core.values import Remark
from .request import asked_again, with_sentence, with_text

REFUSED = (
    "Do not write this in your answer, because it was refused: {}. Write something else, and do "
    "not mention this."
)
REFUSED_CALL = (
    "Do not make this call, because it was refused: {}. Make another one, or answer without it, "
    "and do not mention this."
)
QUOTED = 200
"""How many of a refused text's last characters are quoted: its fault is at its end."""


def sentence_of(remarks: Sequence[Remark]) -> str:
    """What a message says about these remarks.

    >>> print(sentence_of([Remark("promises something", " guarantee it")]))  # doctest: +ELLIPSIS
    Do not write this in your answer, because it was refused: "guarantee it" (promises ...
    """
    parts = "; ".join(f"{_quoted(remark)} ({remark.reason})" for remark in remarks)
    return (REFUSED_CALL if remarks[-1].is_call else REFUSED).format(parts)


def _quoted(remark: Remark) -> str:
    text = remark.text.strip()
    if not text:
        return "a call" if remark.is_call else "a text"
    if len(text) > QUOTED:
        text = "…" + text[-QUOTED:]
    return text if remark.is_call else f'"{text}"'


def answered_again(messages: Sequence[BaseMessage], remarks: Sequence[Remark]) -> list[BaseMessage]:
    """The messages that ask for an answer from its beginning, with these remarks."""
    if not remarks:
        return list(messages)
    if remarks[-1].is_call:
        # Providers refuse a call without its result.
        return [*messages, AIMessage("..."), HumanMessage(sentence_of(remarks))]
    reasons = dict.fromkeys(remark.reason for remark in remarks)
    return asked_again(messages, remarks[-1].text, "; ".join(reasons))


def before_answer(messages: Sequence[BaseMessage], remarks: Sequence[Remark]) -> list[BaseMessage]:
    """The messages with these remarks, where an assistant's message has to be the last one: at the
    end of the user's message, so that what the provider has cached before it can be used, or in the
    system message, because some providers refuse a user's message after the result of a tool."""
    if not remarks:
        return list(messages)
    text = sentence_of(remarks)
    if messages and isinstance(messages[-1], HumanMessage):
        return [*messages[:-1], with_text(messages[-1], text)]
    return with_sentence(messages, text)
