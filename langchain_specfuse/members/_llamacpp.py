"""llama.cpp's ``llama-server``: token ids in and out of its own ``/completion``; scores by a grammar of token ids.

Such a grammar leaves one token at each place, so these are drawn, with the probabilities that they had before the
grammar. (A grammar of text would split words into other tokens; ``echo`` is ignored there.) Both go to the query's own
slot, whose cache has the context already. Knows no text and no votes.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from ..core.values import Constraint
from ..errors import MemberError
from ._dialects import Drawn, Path, Way, Wish, either, numbers, same
from ._http import Wire
from ._remote import RemoteTokenizer

MOST_LIKELY = 40
"""Where several tokens can end a turn, those among so many likely ones are counted."""


class LlamaCpp:
    """One llama-server."""

    name = "llama.cpp"

    def __init__(self, wire: Wire, model: str) -> None:
        self.wire, self.model = wire, model
        self.stops: Sequence[int] = ()
        self._props = wire.get("/props")
        self._slots = int(self._props.get("total_slots") or 1)

    def limit(self) -> int | None:
        told = (self._props.get("default_generation_settings") or {}).get("n_ctx")
        return int(told) if told else None

    def tokenizer(self) -> RemoteTokenizer | None:
        template, eos = (str(self._props.get(key) or "") for key in ("chat_template", "eos_token"))
        remote = RemoteTokenizer(self._encode, self._decode, self._render, template or "the server's own", eos)
        return remote if remote("a b")["input_ids"] else None

    def draw(self, wish: Wish) -> Drawn:
        told = self._asked(wish.key, wish.ids, wish.count, _sampled(wish) | _guided(wish.constraint))
        ids, rows = told["tokens"], told["completion_probabilities"]
        same([row["id"] for row in rows], ids, self.model)
        known = numbers((row["logprob"] for row in rows), len(ids), self.model)
        size = len(ids) - (told.get("stop_type") == "eos" and bool(ids))
        # It cannot be told which tokens end a turn: it may have gone on behind one.
        size = next((at for at, token in enumerate(ids) if token in self.stops), size)
        ended = size < len(ids)
        raw = None if wish.constraint else known[:size]
        timings = told.get("timings") or {}
        cached = timings.get("cache_n")
        end = self._end(rows[size]) if ended else 0.0
        return Drawn(tuple(ids[:size]), raw, ended, end, cached or 0, cached is not None)

    def ways(self) -> dict[str, Way]:
        return {"token grammar": self._scored}

    def way(self, known: Mapping[str, Way], size: int) -> Way:
        return next(iter(known.values()))

    def _scored(self, key: str, paths: Sequence[Path]) -> list[list[float]]:
        return [self._forced(key, path) for path in paths]

    def _forced(self, key: str, path: Path) -> list[float]:
        """The numbers of one path. Behind a grammar's last token only the end of the turn may come."""
        count = len(path.new) + path.ended
        if not count:
            return []
        grammar = "root ::= " + (" ".join(f"<[{token}]>" for token in path.new) or '""')
        told = self._asked(key, path.ids[: path.start], count, {"grammar": grammar, "temperature": 0.0})
        rows = told["completion_probabilities"]
        same([row["id"] for row in rows][: len(path.new)], path.new, self.model)
        known = numbers((row["logprob"] for row in rows), count, self.model)
        return [*known[: len(path.new)], *([self._end(rows[-1])] if path.ended else [])]

    def _end(self, row: Mapping[str, Any]) -> float:
        """The probability that the turn ends here: of the token that ended it, and of others that could have."""
        likely = {one["id"]: float(one["logprob"]) for one in row.get("top_logprobs") or ()}
        likely[row["id"]] = float(row["logprob"])
        ends = {row["id"], *self.stops}
        found = either(likely[token] for token in ends if token in likely)
        if math.isnan(found):
            raise MemberError(f"{self.model} told {found!r} as a log-probability", kind="nan")
        return found

    def _asked(self, key: str, ids: Sequence[int], count: int, how: Mapping[str, Any]) -> Mapping[str, Any]:
        body = {
            "prompt": list(ids),
            "n_predict": count,
            "n_probs": MOST_LIKELY if len(self.stops) > 1 else 1,
            "cache_prompt": True,
            "return_tokens": True,
            "id_slot": zlib.crc32(key.encode()) % self._slots,
            "stream": False,
        }
        told: Mapping[str, Any] = self.wire.post("/completion", body | dict(how))
        if told.get("truncated"):
            raise MemberError(f"{self.model} dropped part of the prompt: it does not fit", kind="overflow")
        return told

    def _encode(self, text: str) -> list[int]:
        return list(self.wire.post("/tokenize", {"content": text, "add_special": False})["tokens"])

    def _decode(self, ids: list[int]) -> str:
        return str(self.wire.post("/detokenize", {"tokens": ids})["content"])

    def _render(self, body: Mapping[str, Any]) -> str:
        return str(self.wire.post("/apply-template", dict(body))["prompt"])


def _sampled(wish: Wish) -> dict[str, Any]:
    """How tokens are picked, in the order in which members in this process do it; its own defaults are others."""
    how = wish.sampling
    penalty = {} if how.repetition_penalty is None else {"repeat_penalty": how.repetition_penalty, "repeat_last_n": -1}
    return {
        "temperature": how.temperature,
        "top_k": how.top_k or 0,
        "top_p": 1.0 if how.top_p is None else how.top_p,
        "min_p": how.min_p or 0.0,
        "seed": how.seed & 0x7FFFFFFF,
        "samplers": ["penalties", "temperature", "top_k", "top_p", "min_p"],
        **penalty,
    }


def _guided(constraint: Constraint | None) -> dict[str, Any]:
    """Guided decoding, as llama.cpp calls it; it has none for patterns."""
    if constraint is None or constraint.kind == "regex":
        return {}
    if constraint.kind == "choice":
        texts = json.loads(constraint.body)
        return {"grammar": "root ::= " + " | ".join(json.dumps(text, ensure_ascii=False) for text in texts)}
    return {"json_schema": json.loads(constraint.body or '{"type": "object"}')}
