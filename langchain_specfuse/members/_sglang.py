"""SGLang: token ids in and out of its own ``/generate``; scores by ``logprob_start_len``.

Its radix cache is used up to that place, so a path costs its own tokens and one more. Where it draws with a temperature
its log-probabilities are those after the temperature: then a draft comes without numbers, and is scored like any
other. Knows no text and no votes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..core.values import Constraint
from ..errors import MemberError, amount
from ._dialects import (
    Drawn,
    Path,
    Way,
    Wish,
    came_through,
    context_of,
    either,
    folded,
    from_cache,
    numbers,
    same,
    sampled,
    spelled,
)
from ._http import Wire
from ._remote import RemoteTokenizer


class SGLang:
    """One SGLang server."""

    name = "SGLang"

    def __init__(self, wire: Wire, model: str) -> None:
        self.wire, self.model = wire, model
        self.stops: Sequence[int] = ()

    def limit(self) -> int | None:
        return context_of(self.wire, self.model)

    def tokenizer(self) -> RemoteTokenizer | None:
        return RemoteTokenizer(self._encode, self._decode, self._render).if_served()

    def draw(self, wish: Wish) -> Drawn:
        asked = {"max_new_tokens": wish.count, "stop_token_ids": list(self.stops), **sampled(wish.sampling)}
        asked |= {"sampling_seed": wish.sampling.seed, **_guided(wish.constraint)}
        body = {"input_ids": list(wish.ids), "sampling_params": asked, "return_logprob": True}
        told = self.wire.post("/generate", body | {"token_ids_logprob": list(self.stops) or None})
        meta = told["meta_info"]
        came_through(_finish(meta), self.model)
        rows = meta["output_token_logprobs"]
        ids = [int(row[1]) for row in rows]
        if "output_ids" in told:
            same(told["output_ids"], ids, self.model)
        known = numbers((row[0] for row in rows), len(ids), self.model)
        ended = _finish(meta) == "stop" and bool(ids)
        end = (self._end(meta) if self.stops else known[-1]) if ended else 0.0
        size = len(ids) - ended
        how = wish.sampling
        own = how.temperature in (0.0, 1.0) and how.repetition_penalty in (None, 1.0) and wish.constraint is None
        cached = meta.get("cached_tokens")
        raw = known[:size] if own else None
        return Drawn(tuple(ids[:size]), raw, ended, end, *from_cache(cached, len(wish.ids)))

    def ways(self) -> dict[str, Way]:
        return {"logprob_start_len": self._scored}

    def way(self, known: Mapping[str, Way], size: int) -> Way:
        return next(iter(known.values()))

    def forget(self, key: str) -> None:
        """It was told nothing by which it could: its cache goes by what prompts begin with."""

    def _scored(self, key: str, paths: Sequence[Path]) -> list[list[float]]:
        asked = [(ids, path.start - 1) for path in paths for ids in spelled(path, self.stops)]
        body = {
            "input_ids": [ids for ids, _ in asked],
            "sampling_params": {"max_new_tokens": 0, "temperature": 0.0},
            "return_logprob": True,
            "logprob_start_len": [start for _, start in asked],
        }
        told = self.wire.post("/generate", body)
        if len(told) != len(asked):
            raise MemberError(f"{self.model} told {amount(len(told), 'row')} (wanted {len(asked)})")
        rows = iter([self._row(*one, reply) for one, reply in zip(asked, told, strict=True)])
        return [folded(path, [next(rows) for _ in spelled(path, self.stops)]) for path in paths]

    def _row(self, ids: Sequence[int], start: int, told: Mapping[str, Any]) -> tuple[float, ...]:
        """The numbers after the first token that was told: that one stands there without any."""
        came_through(_finish(told["meta_info"]), self.model)
        rows = told["meta_info"]["input_token_logprobs"]
        same([row[1] for row in rows], ids[start:], self.model)
        return numbers((row[0] for row in rows[1:]), len(ids) - start - 1, self.model)

    def _end(self, meta: Mapping[str, Any]) -> float:
        last = (meta.get("output_token_ids_logprobs") or [None])[-1]
        return either(row[0] for row in last or ())

    def _encode(self, text: str, marks: bool) -> list[int]:
        # It reads what is written like a special token as one, also where that is text: it cannot be told otherwise.
        asked = {"model": self.model, "prompt": text, "add_special_tokens": False}
        return list(self.wire.post("/v1/tokenize", asked)["tokens"])

    def _decode(self, ids: list[int]) -> str:
        asked = {"model": self.model, "tokens": ids, "skip_special_tokens": False}
        return str(self.wire.post("/v1/detokenize", asked)["text"])

    def _render(self, body: Mapping[str, Any]) -> str:
        return self._decode(self.wire.post("/v1/tokenize", {"model": self.model, **body})["tokens"])


def _finish(meta: Mapping[str, Any]) -> str:
    reason = meta.get("finish_reason")
    return str(reason.get("type", "")) if isinstance(reason, Mapping) else str(reason)


def _guided(constraint: Constraint | None) -> dict[str, Any]:
    """Guided decoding, as SGLang calls it."""
    if constraint is None:
        return {}
    kind, body = constraint.kind, constraint.body
    if kind == "choice":
        return {"regex": "|".join(re.escape(text) for text in json.loads(body))}
    return {"regex": body} if kind == "regex" else {"json_schema": body or '{"type": "object"}'}
