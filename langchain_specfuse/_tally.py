"""Rounds to LangChain's chunks, with calls, thoughts, usage, provenance and finish reason.

Knows rounds and LangChain's messages; nothing of who answers, how, or when.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessageChunk
from langchain_core.messages.ai import InputTokenDetails, OutputTokenDetails, UsageMetadata
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGenerationChunk

from ._calls import Parted, Piece, Splitter
from ._messages import PROVIDER
from ._signal import Ledger, annotation, provenance
from .core.values import Draft, Effort, Round


class Tally:
    """What the rounds of one answer add up to: its chunks, its usage, its summary.

    Whose tokens: ``input_tokens`` is the prompt as the first member reads it, ``output_tokens`` the winning writers'
    own tokens of each agreed segment (the end of the turn is not counted, so it is never more than ``max_tokens``;
    nor is what a constraint forces: nobody wrote it). ``cache_read`` is the part of that prompt that a cache already
    held. ``drafted`` counts the tokens of all drafts, ``discarded`` those that were not agreed, ``verified`` the
    tokens run through members to score drafts.
    """

    def __init__(
        self,
        names: Sequence[str],
        model_name: str,
        *,
        output_version: str | None,
        seed: int | None,
        splitter: Splitter | None = None,
        ledger: Ledger | None = None,
        runners_up: bool = False,
    ) -> None:
        self._names = names
        self._model_name = model_name
        self._v1 = output_version == "v1"
        self._seed = seed
        self._splitter = splitter
        self._ledger = ledger or Ledger(None)
        self._runners_up = runners_up
        self._begun = False
        self._shown = 0
        self._thinkers: list[str] = []
        self._rounds = 0
        self._won: Counter[str] = Counter()
        self._looped = 0
        self._late: Counter[str] = Counter()
        self._forced = 0
        self._exits: list[dict[str, Any]] = []
        self._output = self._drafted = self._verified = 0
        self._prompt = Effort()

    def chunks(self, round: Round) -> Iterator[ChatGenerationChunk]:
        """The chunks that this round releases: words, then pieces of calls, then the end.

        Each by itself: LangChain reads the pieces of a call only from a chunk that says nothing else and is not last.
        """
        self._count(round)
        parted = self._parted(round)
        if parted.said or round.thoughts:
            yield self._chunk(
                self._said(round, parted.said), None if parted.pieces else round, kwargs=self._kwargs(round)
            )
        if parted.pieces:
            yield self._chunk(self._called(round, parted.pieces), None, pieces=parted.pieces)
        if round.finish and (parted.pieces or not (parted.said or round.thoughts)):
            yield self._chunk([], round)

    def _chunk(
        self,
        blocks: list[dict[str, Any]],
        round: Round | None,
        *,
        pieces: Sequence[Piece] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> ChatGenerationChunk:
        """One chunk; with a round that ends the answer it is the last one."""
        finish = round if round and round.finish else None
        words = "".join(block["text"] for block in blocks if block["type"] == "text")
        content: Any = blocks if self._v1 else words
        calls = [self._call_chunk(piece) for piece in pieces]
        message = AIMessageChunk(
            content=content,
            tool_call_chunks=calls,
            additional_kwargs=dict(kwargs or {}),
            response_metadata=self._metadata(finish),
        )
        if finish:
            # Once, on the last chunk: merging adds numbers up and refuses floats that differ.
            message.usage_metadata = self.usage
            message.chunk_position = "last"
        return ChatGenerationChunk(message=message)

    def _parted(self, round: Round) -> Parted:
        if self._splitter is None:
            return Parted(round.text)
        cut = round.finish in ("length", "stop_string")
        return self._splitter.feed(round.text, bool(round.finish), cut=cut, closed=round.closed)

    # --- counting -----------------------------------------------------------------------------------------------

    def _count(self, round: Round) -> None:
        if self._rounds == 0:
            efforts = round.efforts.get("draft", {})
            self._prompt = next((efforts[n] for n in self._names if n in efforts and efforts[n].prompt), Effort())
        self._rounds += 1
        self._ledger.note(round)
        self._won[round.winner] += 1
        self._looped += len(round.looped)
        self._late.update(round.stragglers)
        self._forced += len(round.forced)
        self._exits += round.as_dict()["left"] if round.left else []
        self._output += _tokens(round.drafts[round.winner])
        self._drafted += sum(map(_tokens, round.drafts.values()))
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

    # --- content ------------------------------------------------------------------------------------------------

    def _said(self, round: Round, text: str) -> list[dict[str, Any]]:
        thoughts = list(self._thoughts(round.thoughts)) if self._v1 else []
        return [*thoughts, self._text(round, text)] if text else thoughts

    def _called(self, round: Round, pieces: Sequence[Piece]) -> list[dict[str, Any]]:
        """Blocks of calls; where one begins it says who wrote it (LangChain keeps no annotations of a call)."""
        author = provenance(round, runners_up=self._runners_up)
        return [
            {"type": "tool_call_chunk", **self._call_chunk(piece)} | ({"extras": author} if piece.name else {})
            for piece in pieces
        ]

    def _text(self, round: Round, text: str) -> dict[str, Any]:
        start, self._shown = self._shown, self._shown + len(text)
        author = annotation(round, start, self._shown, runners_up=self._runners_up)
        note = {"type": "non_standard_annotation", "value": author}
        return {"type": "text", "text": text, "annotations": [note], "index": 0}

    def _thoughts(self, thoughts: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        """A block of its own for every member that thinks; its name once, since merging joins texts."""
        for member, thought in thoughts.items():
            named = {} if member in self._thinkers else {"extras": {"member": member}}
            self._thinkers += [member] if named else []
            place = f"lc_thought_{self._thinkers.index(member)}"
            yield {"type": "reasoning", "reasoning": thought, **named, "index": place}

    def _kwargs(self, round: Round) -> dict[str, Any]:
        if self._v1 or not round.thoughts:
            return {}
        joint = "\n\n" if self._thinkers else ""
        self._thinkers += round.thoughts
        return {"reasoning_content": joint + "\n\n".join(round.thoughts.values())}

    def _call_chunk(self, piece: Piece) -> Any:
        # 1 + : in v1 these stand among the content blocks, where 0 is the text.
        place = piece.index + (1 if self._v1 else 0)
        return tool_call_chunk(name=piece.name, args=piece.arguments, id=piece.id, index=place)

    # --- metadata -----------------------------------------------------------------------------------------------

    def _metadata(self, finish: Round | None) -> dict[str, Any]:
        metadata: dict[str, Any] = {"output_version": "v1"} if self._v1 else {}
        if not self._begun:
            # On the first chunk only: merging strings joins them.
            metadata |= {"model_name": self._model_name, "model_provider": PROVIDER}
        if finish:
            called = finish.finish == "stop" and self._splitter is not None and self._splitter.calls
            metadata |= {"finish_reason": "tool_calls" if called else finish.finish, "specfuse": self._summary(finish)}
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
            "late": dict(self._late),
            "forced": self._forced,
            "closed": bool(round.closed),
        }
        if fields := self._ledger.fields():
            summary["fields"] = fields
        return summary if self._seed is None else {**summary, "seed": self._seed}


def _tokens(draft: Draft) -> int:
    """How many tokens the draft has; one if it was cut where its writer has no seam, as the answer's budget has it."""
    return len(draft.tokens) or bool(draft.text)
