"""Convert rounds to LangChain chunks, with tool calls, reasoning, usage, authors and finish
reason."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from langchain_core.messages import AIMessageChunk
from langchain_core.messages.ai import InputTokenDetails, OutputTokenDetails, UsageMetadata
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGenerationChunk

from ..constraints import CallPiece
from ..core.agreed import AgreedTokens, ReleasedText
from ..core.round import Round
from ..core.values import Effort
from .call_text import CUT_OFF, REFUSED, STALLED, UNCHECKED, Splitter
from .logprobs import AnswerLogprobs
from .messages import PROVIDER
from .passthrough import Passthrough, in_blocks, is_plain
from .report import Summary

FINISHES = frozenset({"finish_reason", "stop_reason", "done_reason", "stopReason", "status"})
"""The keys under which providers say why a reply ended."""


class AnswerChunks:
    """Makes the chunks of one answer, round by round.

    For members on this machine or on the user's servers, ``input_tokens`` is the prompt in the
    tokens of the first of them, and ``cache_read`` the part of it that a cache already held.
    ``output_tokens`` counts each agreed segment that they wrote in its author's own tokens. The end
    of the turn, forced text and text that was withdrawn are not counted, so it never exceeds
    ``max_tokens``. For hosted members, everything that they were sent and wrote in all rounds and
    ballots is added. ``drafted`` counts the tokens of all drafts, ``discarded`` those that were not
    agreed or were withdrawn, ``verified`` the tokens read to score drafts.
    """

    def __init__(
        self,
        summary: Summary,
        model_name: str,
        *,
        v1: bool,
        seed: int | None,
        splitter: Splitter | None,
        reasoning: bool | None,
        logprobs: bool = False,
        hosted: Collection[str] = (),
        unpriced: Collection[str] = (),
    ) -> None:
        self._summary = summary
        self._model_name = model_name
        self._v1 = v1
        self._seed = seed
        self._splitter = splitter
        self._reasoning = bool(reasoning)
        self._passthrough = Passthrough(reasoning=reasoning is not False)
        self._logprobs = AnswerLogprobs() if logprobs else None
        self._hosted = frozenset(hosted)
        self._unpriced = frozenset(unpriced)
        self._prompt = Effort()
        self._has_begun = False
        self._released = 0
        """How many characters the rounds have released, including those of calls."""
        self._text = ReleasedText()
        self._shown = 0
        """How many characters of prose the chunks have shown."""
        self._forced = 0
        self._drafted = 0
        self._agreed = AgreedTokens()
        self._verified = 0

    def of(self, round: Round) -> Iterator[ChatGenerationChunk]:
        """The chunks that this round releases: text, then pieces of tool calls, then the end. The
        summary must already contain the round.

        These are different chunks, because LangChain reads pieces of calls only from a chunk that
        contains nothing else and is not the last.
        """
        self._count(round)
        written = self._authors_of(round) if self._v1 else []
        passed = self._passthrough.of(round)
        if passed is not None and self._v1:
            passed = [in_blocks(chunk) for chunk in passed]
        is_withheld = round.finish == "refusal" and not (passed or self._passthrough.has_content)
        if passed is not None and not is_withheld:
            if round.finish:
                text = passed.pop() if passed and is_plain(passed[-1]) else None
                passed.append(self._last(round, text))
            self._shown += len(round.text)
            for chunk in passed:
                yield ChatGenerationChunk(message=chunk)
            return
        prose = round.text
        pieces: list[CallPiece] = []
        if self._splitter:
            # Stop strings are only found in prose, so the text before one does not begin a call.
            is_last = round.finish is not None
            prose, pieces = self._splitter.feed(prose, is_last, cut=_why_cut(round))
        thought = ""
        if self._reasoning and round.number == 1:
            thought = round.thoughts.get(round.winner, "")
        is_refused = round.finish == "refusal"
        if prose or thought:
            last = None if pieces or is_refused else round
            if prose != round.text:
                written = [(round, prose)]
            content = self._text_blocks(round, written, thought) if self._v1 else prose
            ours = self._chunk(content, last, thought=thought)
            if self._passthrough.has_content and not self._v1:
                assert isinstance(ours.message, AIMessageChunk)
                ours.message = self._passthrough.shown.continued(ours.message)
            yield ours
        if pieces:
            content = self._call_blocks(round, pieces) if self._v1 else ""
            yield self._chunk(content, None, pieces=pieces)
        if is_refused:
            yield self._chunk(self._refusal_blocks(round), round)
        elif round.finish and (pieces or not (prose or thought)):
            yield self._chunk([] if self._v1 else "", round)

    def _authors_of(self, round: Round) -> list[tuple[Round, str]]:
        """The text that this round releases, in parts, each with the round that wrote it."""
        parts: list[tuple[Round, str]] = []
        for piece in self._text.add(round):
            if parts and parts[-1][0] is piece.round:
                parts[-1] = piece.round, parts[-1][1] + piece.text
            else:
                parts.append((piece.round, piece.text))
        return parts

    # --- one chunk --------------------------------------------------------------------------------

    def _chunk(
        self,
        content: Any,
        round: Round | None,
        *,
        pieces: Sequence[CallPiece] = (),
        thought: str = "",
    ) -> ChatGenerationChunk:
        """One chunk. It is the last one if ``round`` ends the answer."""
        last = round if round and round.finish else None
        extra: dict[str, Any] = {}
        if thought and not self._v1:
            extra["reasoning_content"] = thought
        is_ours = last is not None and not self._passthrough.metadata_of(last.member)
        if last is not None and is_ours and last.finish == "refusal":
            extra["refusal"] = last.refusals[last.member]
        message = AIMessageChunk(
            content=content,
            tool_call_chunks=[self._call_chunk(piece) for piece in pieces],
            additional_kwargs=extra,
            response_metadata=self._metadata(last),
        )
        if last:
            # On the last chunk only: merging chunks adds numbers up and refuses floats that differ.
            message.usage_metadata = self._usage(last)
            message.chunk_position = "last"
        return ChatGenerationChunk(message=message)

    def _last(self, round: Round, text: AIMessageChunk | None) -> AIMessageChunk:
        """The chunk that ends the answer, with the last text of its provider."""
        empty: Any = [] if self._v1 else ""
        end = self._chunk(text.content if text else empty, round).message
        assert isinstance(end, AIMessageChunk)
        if text is not None:
            end.response_metadata = {**text.response_metadata, **end.response_metadata}
        return end

    def _text_blocks(
        self, round: Round, written: Sequence[tuple[Round, str]], thought: str
    ) -> list[dict[str, Any]]:
        blocks: list[dict[str, Any]] = []
        if thought:
            blocks.append(
                {
                    "type": "reasoning",
                    "reasoning": thought,
                    "extras": {"member": round.member},
                    "index": "lc_reasoning",
                }
            )
        notes = []
        for author, text in written:
            start = self._shown
            self._shown += len(text)
            value = {**provenance(author), "start": start, "end": self._shown}
            notes.append({"type": "non_standard_annotation", "value": value})
        if whole := "".join(text for _, text in written):
            blocks.append({"type": "text", "text": whole, "annotations": notes, "index": 0})
        return blocks

    def _refusal_blocks(self, round: Round) -> list[dict[str, Any]]:
        block: dict[str, Any] = {"type": "refusal", "refusal": round.refusals[round.member]}
        if self._v1:
            block |= {"extras": {"member": round.member}, "index": "lc_refusal"}
        return [block]

    def _call_blocks(self, round: Round, pieces: Sequence[CallPiece]) -> list[dict[str, Any]]:
        """The blocks of these pieces. The first piece of a call names its author in ``extras``,
        because LangChain drops annotations of a call."""
        blocks: list[dict[str, Any]] = []
        for piece in pieces:
            block = {"type": "tool_call_chunk", **self._call_chunk(piece)}
            if piece.name:
                block["extras"] = provenance(round)
            blocks.append(block)
        return blocks

    def _call_chunk(self, piece: CallPiece) -> Any:
        # In v1 calls share their indexes with content blocks, where 0 is the text.
        index = piece.index + (1 if self._v1 else 0)
        return tool_call_chunk(name=piece.name, args=piece.arguments, id=piece.id, index=index)

    # --- counting ---------------------------------------------------------------------------------

    def _count(self, round: Round) -> None:
        is_first = round.number == 1 or (self._hosted and round.member not in self._hosted)
        if is_first and not self._prompt.prompt:
            self._prompt = self._prompt_in(round)
        if self._logprobs:
            self._logprobs.add(round)
        self._agreed.add(round)
        self._released += len(round.text)
        self._forced += len(round.forced)
        self._drafted += round.drafted
        self._verified += sum(effort.read for effort in round.efforts.get("verify", {}).values())

    def _prompt_in(self, round: Round) -> Effort:
        """The effort of the first member that is not hosted and knows the length of its prompt."""
        efforts = round.efforts.get("draft", {})
        for name in self._summary.members:
            if name in efforts and efforts[name].prompt and name not in self._hosted:
                return efforts[name]
        return Effort()

    def _usage(self, last: Round) -> UsageMetadata | None:
        hosted = sum(self._bills.values(), Effort())
        read = self._prompt.prompt + hosted.input_tokens
        written = self._agreed.count(without=self._hosted) + hosted.output_tokens
        details = {
            "drafted": self._drafted,
            "verified": self._verified,
            "discarded": self._drafted - self._agreed.count(),
        }
        reported = self._passthrough.usage
        if reported and (read, written) == (reported["input_tokens"], reported["output_tokens"]):
            return reported  # one member wrote everything
        is_read = last.finish in ("stop", "refusal") or last.segment.is_cut
        if not reported and hosted.requests == 1 and self._passthrough.is_all and is_read:
            return None  # its provider has not said
        cached = min(self._prompt.reused, self._prompt.prompt)
        return UsageMetadata(
            input_tokens=read,
            output_tokens=written,
            total_tokens=read + written,
            input_token_details=InputTokenDetails(cache_read=cached),
            output_token_details=OutputTokenDetails(**details),  # type: ignore[typeddict-item]
        )

    @property
    def _bills(self) -> dict[str, Effort]:
        """The effort of each hosted member."""
        used = self._summary.used
        return {name: effort for name, effort in used.items() if name in self._hosted}

    # --- metadata ---------------------------------------------------------------------------------

    def _metadata(self, last: Round | None) -> dict[str, Any]:
        """The metadata of a chunk. ``last`` is the round that ends the answer, if this is the last
        chunk."""
        metadata: dict[str, Any] = {"output_version": "v1"} if self._v1 else {}
        # In one chunk only: merging chunks joins texts.
        if not self._has_begun and not self._hosted:
            metadata["model_name"] = self._model_name
            # With this name, LangChain's summarization takes the usage for the length of the
            # conversation. The usage of hosted members is a multiple of that.
            metadata["model_provider"] = PROVIDER
        self._has_begun = True
        if last is None:
            return metadata
        if self._hosted:
            metadata["model_name"] = last.member
        called = self._splitter is not None and self._splitter.calls > 0
        of_provider = self._passthrough.metadata_of(last.member)
        if not of_provider.keys() & FINISHES:
            metadata["finish_reason"] = _finish_reason(last, called)
        metadata |= of_provider
        metadata["specfuse"] = self._summary_at(last)
        if self._logprobs and not of_provider:
            # Sent in one chunk: stream_events v3 keeps only the last list of a stream.
            is_cut = last.finish in ("stop_string", "check")
            end = self._released if is_cut else None
            metadata["logprobs"] = {"content": self._logprobs.content(end)}
        return metadata

    def _summary_at(self, last: Round) -> dict[str, Any]:
        """The summary of the whole answer, as plain JSON."""
        summary = {
            **self._summary.as_dict(),
            "exits": list(self._summary.exits),
            "forced": self._forced,
            "finish": last.finish,
            "stalled": last.stalled,
            "refusals": dict(self._summary.refusals),
        }
        if self._summary.checks:
            summary["checks"] = self._summary.checks_with_reasons()
        if self._seed is not None:
            summary["seed"] = self._seed
        bills = self._bills
        if bills and not self._unpriced.intersection(bills):
            summary["total_cost"] = math.fsum(effort.cost for effort in bills.values())
        return summary


def _finish_reason(last: Round, called: bool) -> str | None:
    """The finish reason as OpenAI names it, where a stop string is ``stop`` too."""
    if last.finish not in ("stop", "stop_string"):
        return last.finish
    return "tool_calls" if called else "stop"


def _why_cut(round: Round) -> str:
    """Why the answer is incomplete; empty if it is complete or goes on."""
    if round.finish == "refusal":
        return REFUSED
    if round.finish == "check":
        return UNCHECKED
    if round.finish != "length":
        return ""
    return STALLED if round.stalled else CUT_OFF


def provenance(round: Round) -> dict[str, Any]:
    """Who wrote this round's segment, and how much the members agreed, as plain JSON."""
    agreed = confidence(round)
    return {
        "member": round.member,
        "round": round.number,
        "margin": round.margin,
        "confidence": agreed,
        # Without votes equal totals would look like disagreement.
        "dissent": None if agreed is None else round.dissent,
    }


def confidence(round: Round) -> float | None:
    """The winner's share of the vote: its total, Σ_j w_j s_j(winner), from 0 to 1.

    1.0 if all members drafted the same text, so that there was nothing to vote on. With k different
    drafts, 1/k means that no member preferred any. None if no member could disagree, because a
    single member drafted, or if none voted, because no remaining member can score, or all drafts
    but one were empty or loops. It measures agreement, not correctness.
    """
    if len(round.drafts) < 2:
        return None
    if set(round.authors or (round.winner,)) >= set(round.drafts):
        return 1.0
    return min(1.0, round.totals[round.winner]) if round.votes else None
