"""SGLang: token ids in and out of its own ``/generate``; scores by ``logprob_start_len``.

Its radix cache is used up to that place, so a path costs its own tokens and one more. Its
log-probabilities are those after the temperature: a draft that was sampled with another one comes
without log-probabilities, and is scored like any other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ...core.values import Constraint
from ...errors import MemberError, amount
from ..text.words import either
from .tokenizers import RemoteTokenizer, by_endpoints
from .tokens import (
    Dialect,
    Drawn,
    Path,
    Request,
    Scorer,
    cached_tokens,
    check_completed,
    merged,
    prompts_of,
    sampling_fields,
)


class SGLang(Dialect):
    """One SGLang server."""

    name = "SGLang"

    def tokenizer(self) -> RemoteTokenizer | None:
        return by_endpoints(
            self.client, self.model, "/v1", "text", skip_special_tokens=False
        ).if_served()

    def draw(self, request: Request) -> Drawn:
        how = request.sampling
        fields = {
            "max_new_tokens": request.count,
            "stop_token_ids": list(self.stops),
            **sampling_fields(how),
        }
        fields |= {"sampling_seed": how.seed, **_guided(request.constraint)}
        body = {"input_ids": list(request.ids), "sampling_params": fields, "return_logprob": True}
        reply = self.client.post(
            "/generate", body | {"token_ids_logprob": list(self.stops) or None}
        )
        meta = reply["meta_info"]
        check_completed(_finish(meta), self.model)
        rows = meta["output_token_logprobs"]
        ids = [int(row[1]) for row in rows]
        if "output_ids" in reply:
            self.check_same(reply["output_ids"], ids)
        known = self.logprobs((row[0] for row in rows), len(ids))
        ended = _finish(meta) == "stop" and bool(ids)
        ended_by = (self._end(meta) if self.stops else known[-1]) if ended else 0.0
        size = len(ids) - ended
        own = (
            how.temperature in (0.0, 1.0)
            and how.repetition_penalty in (None, 1.0)
            and request.constraint is None
        )
        cached = cached_tokens(meta.get("cached_tokens"), len(request.ids))
        return Drawn(tuple(ids[:size]), known[:size] if own else None, ended, ended_by, cached)

    def scorers(self) -> dict[str, Scorer]:
        return {"logprob_start_len": self._score}

    def _score(self, key: str, paths: Sequence[Path]) -> list[list[float]]:
        asked = [(ids, path.start - 1) for path in paths for ids in prompts_of(path, self.stops)]
        body = {
            "input_ids": [ids for ids, _ in asked],
            "sampling_params": {"max_new_tokens": 0, "temperature": 0.0},
            "return_logprob": True,
            "logprob_start_len": [start for _, start in asked],
        }
        replies = self.client.post("/generate", body)
        if len(replies) != len(asked):
            raise MemberError(
                f"{self.model} returned {amount(len(replies), 'row')} (wanted {len(asked)})"
            )
        rows = iter([self._row(*one, reply) for one, reply in zip(asked, replies, strict=True)])
        return [merged(path, [next(rows) for _ in prompts_of(path, self.stops)]) for path in paths]

    def _row(self, ids: Sequence[int], start: int, reply: Mapping[str, Any]) -> tuple[float, ...]:
        """The numbers after the first returned token, which has none."""
        check_completed(_finish(reply["meta_info"]), self.model)
        rows = reply["meta_info"]["input_token_logprobs"]
        self.check_same([row[1] for row in rows], ids[start:])
        return self.logprobs((row[0] for row in rows[1:]), len(ids) - start - 1)

    def _end(self, meta: Mapping[str, Any]) -> float:
        last = (meta.get("output_token_ids_logprobs") or [None])[-1]
        return either(row[0] for row in last or ())


def _finish(meta: Mapping[str, Any]) -> str:
    reason = meta.get("finish_reason")
    return str(reason.get("type", "")) if isinstance(reason, Mapping) else str(reason)


def _guided(constraint: Constraint | None) -> dict[str, Any]:
    """SGLang's fields for guided decoding."""
    if constraint is None:
        return {}
    kind, body = constraint.kind, constraint.body
    if kind == "choice":
        return {"regex": "|".join(re.escape(text) for text in json.loads(body))}
    return {"regex": body} if kind == "regex" else {"json_schema": body or '{"type": "object"}'}
