"""LangChain's messages to plain turns, and rounds to LangChain's chunks with usage, provenance and finish reason.

Knows both languages and nothing of who answers, how, or when.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from json import dumps
from typing import Any

from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.messages.ai import InputTokenDetails, OutputTokenDetails, UsageMetadata
from langchain_core.outputs import ChatGenerationChunk

from ._options import refuse_broken
from .core.values import Effort, Round, Turn
from .errors import UsageError, advised

PROVIDER = "specfuse"

# --- messages to turns ------------------------------------------------------------------------------------------

_ROLES = {"human": "user", "user": "user", "ai": "assistant", "assistant": "assistant"} | dict.fromkeys(
    ("system", "developer"), "system"
)
_SILENT = frozenset({"reasoning", "thinking", "redacted_thinking", "tool_call", "tool_call_chunk", "tool_use"})
"""Blocks of an AI message that say nothing to the reader: thoughts, and calls that ``tool_calls`` tells as well."""


def turns_of(messages: Sequence[BaseMessage]) -> tuple[Turn, ...]:
    """The conversation as plain turns.

    System messages go first, joined, wherever they stood: most chat templates know no other place. Neighbours of one
    role become one turn, with a blank line between. A human's ``name`` is written before the text ("ann: hello").
    Tool calls and results of earlier turns are written out as text. A conversation that ends with an AI message is
    answered with one more assistant turn; it is not continued in mid-sentence.
    """
    if not messages:
        error = UsageError("there is nothing to answer: got no messages, wanted at least one")
        raise advised(error, "pass a text, or a list such as [('human', 'Why is the sky blue?')]")
    turns = [_turn(message, place) for place, message in enumerate(messages)]
    for turn in turns:
        refuse_broken(turn.text)
    system = [turn for turn in turns if turn.role == "system"]
    return _merged([*system, *(turn for turn in turns if turn.role != "system")])


def _merged(turns: Sequence[Turn]) -> tuple[Turn, ...]:
    merged: list[Turn] = []
    for turn in turns:
        if merged and merged[-1].role == turn.role:
            turn = Turn(turn.role, "\n\n".join(text for text in (merged.pop().text, turn.text) if text))
        merged.append(turn)
    return tuple(merged)


def _turn(message: BaseMessage, place: int) -> Turn:
    text = _text(message, place)
    if isinstance(message, SystemMessage):
        return Turn("system", text)
    if isinstance(message, HumanMessage):
        return Turn("user", f"{message.name}: {text}" if message.name else text)
    if isinstance(message, AIMessage):
        calls = [_tagged("tool_call", {"name": c["name"], "arguments": c["args"]}) for c in message.tool_calls]
        return Turn("assistant", "\n".join([*([text] if text else []), *calls]))
    if isinstance(message, ToolMessage | FunctionMessage):
        return Turn("user", _tagged("tool_response", {"name": message.name, "content": text}))
    if isinstance(message, ChatMessage) and message.role in _ROLES:
        return Turn(_ROLES[message.role], text)
    role = getattr(message, "role", message.type)
    error = UsageError(f"message {place} has the role {role!r}, wanted one of {', '.join(sorted(_ROLES))} or tool")
    raise advised(error, "leave it out, or say it as a human")


def _tagged(tag: str, data: Mapping[str, Any]) -> str:
    known = {key: value for key, value in data.items() if value is not None}
    return f"<{tag}>\n{dumps(known, ensure_ascii=False)}\n</{tag}>"


def _text(message: BaseMessage, place: int) -> str:
    if isinstance(message.content, str):
        return message.content
    blocks = enumerate(message.content)
    return "".join(_block_text(block, message, place, index) for index, block in blocks)


def _block_text(block: Any, message: BaseMessage, place: int, index: int) -> str:
    if isinstance(block, str):
        return block
    kind = block.get("type") if isinstance(block, Mapping) else type(block).__name__
    if isinstance(block, Mapping) and kind in ("text", "text-plain") and isinstance(block.get("text"), str):
        return str(block["text"])
    if isinstance(message, AIMessage) and kind in _SILENT:
        return ""
    where = f"block {index} of message {place} ({message.type})"
    error = UsageError(f"{where} is of type {kind!r}, wanted 'text': members read text only")
    raise advised(error, "leave the block out, or put what it says into words")


# --- rounds to chunks -------------------------------------------------------------------------------------------


class Tally:
    """What the rounds of one answer add up to: its chunks, its usage, its summary.

    Whose tokens: ``input_tokens`` is the prompt as the first member reads it, ``output_tokens`` the winning writers'
    own tokens of each agreed segment (the end of the turn is not counted, so it is never more than ``max_tokens``).
    ``cache_read`` is the part of that prompt that a cache already held. ``drafted`` counts the tokens of all drafts,
    ``discarded`` those that were not agreed, ``verified`` the tokens run through members to score drafts.
    """

    def __init__(self, names: Sequence[str], model_name: str, *, output_version: str | None, seed: int | None) -> None:
        self._names = names
        self._model_name = model_name
        self._v1 = output_version == "v1"
        self._seed = seed
        self._begun = False
        self._shown = 0
        self._rounds = 0
        self._won: Counter[str] = Counter()
        self._looped = 0
        self._exits: list[dict[str, Any]] = []
        self._output = self._drafted = self._verified = 0
        self._prompt = Effort()

    def chunk(self, round: Round) -> ChatGenerationChunk | None:
        """The chunk that this round releases; None if it releases nothing and is not the last."""
        self._count(round)
        if not round.text and not round.finish:
            return None
        message = AIMessageChunk(content=self._content(round), response_metadata=self._metadata(round))
        if round.finish:
            # Once, on the last chunk: merging adds numbers up and refuses floats that differ.
            message.usage_metadata = self.usage
            message.chunk_position = "last"
        return ChatGenerationChunk(message=message)

    def _count(self, round: Round) -> None:
        if self._rounds == 0:
            efforts = round.efforts.get("draft", {})
            self._prompt = next((efforts[n] for n in self._names if n in efforts and efforts[n].prompt), Effort())
        self._rounds += 1
        self._won[round.winner] += 1
        self._looped += len(round.looped)
        self._exits += round.as_dict()["left"] if round.left else []
        self._output += len(round.drafts[round.winner].tokens)
        self._drafted += sum(len(draft.tokens) for draft in round.drafts.values())
        self._verified += sum(effort.read for effort in round.efforts.get("verify", {}).values())

    @property
    def usage(self) -> UsageMetadata:
        prompt, output = self._prompt.prompt, self._output
        written: dict[str, int] = {
            "drafted": self._drafted,
            "verified": self._verified,
            "discarded": self._drafted - output,
        }
        return UsageMetadata(
            input_tokens=prompt,
            output_tokens=output,
            total_tokens=prompt + output,
            input_token_details=InputTokenDetails(cache_read=min(self._prompt.reused, prompt)),
            output_token_details=OutputTokenDetails(**written),  # type: ignore[typeddict-item]
        )

    def _content(self, round: Round) -> str | list[str | dict[str, Any]]:
        if not self._v1:
            return round.text
        if not round.text:
            return []
        start, self._shown = self._shown, self._shown + len(round.text)
        author = {
            "member": round.winner,
            "round": round.number,
            "margin": round.margin,
            "start": start,
            "end": self._shown,
        }
        note = {"type": "non_standard_annotation", "value": author}
        return [{"type": "text", "text": round.text, "annotations": [note], "index": 0}]

    def _metadata(self, round: Round) -> dict[str, Any]:
        metadata: dict[str, Any] = {"output_version": "v1"} if self._v1 else {}
        if not self._begun:
            # On the first chunk only: merging strings joins them.
            metadata |= {"model_name": self._model_name, "model_provider": PROVIDER}
        if round.finish:
            metadata |= {"finish_reason": round.finish, "specfuse": self._summary(round)}
        self._begun = True
        return metadata

    def _summary(self, round: Round) -> dict[str, Any]:
        summary: dict[str, Any] = {
            "members": list(self._names),
            "rounds": self._rounds,
            "weights": dict(round.weights),
            "shares": {name: self._won[name] / self._rounds for name in self._names if self._won[name]},
            "exits": self._exits,
            "looped": self._looped,
        }
        return summary if self._seed is None else {**summary, "seed": self._seed}
