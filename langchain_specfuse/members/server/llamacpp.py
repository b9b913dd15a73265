"""llama.cpp's ``llama-server``: token ids in and out of its own ``/completion``; scores by a grammar of token ids.

Such a grammar leaves one token at each place, so these are drawn, with the probabilities that they had before the
grammar. (A grammar of text would split words into other tokens; ``echo`` is ignored there.) A token that holds only
part of a character breaks such a grammar, and no number is told of it: a path with one is read token by token. All go
to the query's own slot, whose cache has the context already. Knows no text and no votes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..core.values import Constraint
from ..errors import MemberError
from ._dialects import Drawn, Path, Way, Wish, either, from_cache, numbers, same
from ._http import Refused, Wire
from ._remote import RemoteTokenizer
from ._slots import Slots

MOST_LIKELY = 40
"""Where several tokens can end a turn, those among so many likely ones are counted."""
WIDE, WHOLE = 1000, 10**6
"""So many likely tokens are looked through for one of which no number is told; the second means all."""
NEUTRAL = {"presence_penalty": 0.0, "frequency_penalty": 0.0, "mirostat": 0, "dynatemp_range": 0.0}
"""What a server may have been started with, and nobody here asked for."""
FORCE = 1000.0
"""A bias that leaves no choice. Numbers are told as they were before it."""


class LlamaCpp:
    """One llama-server."""

    name = "llama.cpp"

    def __init__(self, wire: Wire, model: str) -> None:
        self.wire, self.model = wire, model
        self.stops: Sequence[int] = ()
        self._props = wire.get("/props")
        self._begin = ""
        """What it puts before each text that it reads as a whole, and takes from what its template writes."""
        self._slots = Slots(int(self._props.get("total_slots") or 1))

    def limit(self) -> int | None:
        told = (self._props.get("default_generation_settings") or {}).get("n_ctx")
        return int(told) if told else None

    def tokenizer(self) -> RemoteTokenizer | None:
        template, eos = (str(self._props.get(key) or "") for key in ("chat_template", "eos_token"))
        remote = RemoteTokenizer(self._encode, self._decode, self._render, template or "the server's own", eos)
        if not (plain := remote("a b")["input_ids"]):
            return None
        asked = {"content": "a b", "add_special": True, "parse_special": True}
        whole = list(self.wire.post("/tokenize", asked)["tokens"])
        if whole != plain and whole[1 : len(plain) + 1] == plain:
            self._begin = remote.bos_token = str(self._props.get("bos_token") or "") or self._decode(whole[:1])
        return remote

    def draw(self, wish: Wish) -> Drawn:
        told = self._asked(wish.key, wish.ids, wish.count, _sampled(wish) | _guided(wish.constraint))
        ids, rows = told["tokens"], told.get("completion_probabilities") or []
        whole = [row["id"] for row in rows] == ids and wish.constraint is None
        known = numbers((row["logprob"] for row in rows), len(ids), self.model) if whole else ()
        size = len(ids) - (told.get("stop_type") == "eos" and bool(ids))
        # It cannot be told which tokens end a turn: it may have gone on behind one.
        size = next((at for at, token in enumerate(ids) if token in self.stops), size)
        ended = size < len(ids)
        cached = (told.get("timings") or {}).get("cache_n")
        end = self._end(rows[size]) if ended and whole else 0.0
        return Drawn(tuple(ids[:size]), known[:size] if whole else None, ended, end, *from_cache(cached, len(wish.ids)))

    def ways(self) -> dict[str, Way]:
        return {"token grammar": self._scored}

    def way(self, known: Mapping[str, Way], size: int) -> Way:
        return next(iter(known.values()))

    def forget(self, key: str) -> None:
        self._slots.forget(key)

    def _scored(self, key: str, paths: Sequence[Path]) -> list[list[float]]:
        return [self._forced(key, path) for path in paths]

    def _forced(self, key: str, path: Path) -> list[float]:
        """The numbers of one path. Behind a grammar's last token only the end of the turn may come."""
        count = len(path.new) + path.ended
        if not count:
            return []
        grammar = "root ::= " + (" ".join(f"<[{token}]>" for token in path.new) or '""')
        try:
            told = self._asked(key, path.ids[: path.start], count, {"grammar": grammar, "temperature": 0.0}, (500,))
        except Refused as error:
            if "grammar" not in str(error):
                raise
            return self._one_by_one(key, path)
        rows = told.get("completion_probabilities") or []
        if len(rows) < len(told["tokens"]):
            return self._one_by_one(key, path)
        same([row["id"] for row in rows][: len(path.new)], path.new, self.model)
        known = numbers((row["logprob"] for row in rows), count, self.model)
        return [*known[: len(path.new)], *([self._end(rows[-1])] if path.ended else [])]

    def _one_by_one(self, key: str, path: Path) -> list[float]:
        places = range(path.start, len(path.ids))
        known = [self._one(key, path.ids[:at], path.ids[at]) for at in places]
        ends = [self._one(key, path.ids, stop) for stop in self.stops] if path.ended else []
        return [*known, *([either(ends)] if path.ended else [])]

    def _one(self, key: str, ids: Sequence[int], token: int) -> float:
        """One token's number: told when it is forced, else found among the likely ones beside another that is."""
        for forced, count in ((token, 1), (self.stops[0], WIDE), (self.stops[0], WHOLE)):
            how = {"logit_bias": [[forced, FORCE]], "n_probs": count, "temperature": 0.0}
            rows = self._asked(key, ids, 1, how).get("completion_probabilities") or []
            told = [one["logprob"] for row in rows for one in (row, *row.get("top_logprobs", ())) if one["id"] == token]
            if told:
                return numbers(told[:1], 1, self.model)[0]
        raise MemberError(f"{self.model} tells no log-probability of the token {token}")

    def _end(self, row: Mapping[str, Any]) -> float:
        """The probability that the turn ends here: of the token that ended it, and of others that could have."""
        likely = {one["id"]: float(one["logprob"]) for one in row.get("top_logprobs") or ()}
        likely[row["id"]] = float(row["logprob"])
        ends = {row["id"], *self.stops}
        found = either(likely[token] for token in ends if token in likely)
        if math.isnan(found):
            raise MemberError(f"{self.model} told {found!r} as a log-probability", kind="nan")
        return found

    def _asked(
        self, key: str, ids: Sequence[int], count: int, how: Mapping[str, Any], final: tuple[int, ...] = ()
    ) -> Mapping[str, Any]:
        body = {
            "prompt": list(ids),
            "n_predict": count,
            "n_probs": MOST_LIKELY if len(self.stops) > 1 else 1,
            "cache_prompt": True,
            "return_tokens": True,
            "id_slot": self._slots.of(key),
            "stream": False,
            **NEUTRAL,
        }
        told: Mapping[str, Any] = self.wire.post("/completion", body | dict(how), final)
        if told.get("truncated") and told.get("tokens_evaluated") != len(ids):  # else it only came to its limit
            raise MemberError(f"{self.model} dropped part of the prompt: it does not fit", kind="overflow")
        return told

    def _encode(self, text: str, marks: bool) -> list[int]:
        asked = {"content": text, "add_special": False, "parse_special": marks}
        return list(self.wire.post("/tokenize", asked)["tokens"])

    def _decode(self, ids: list[int]) -> str:
        return str(self.wire.post("/detokenize", {"tokens": ids})["content"])

    def _render(self, body: Mapping[str, Any]) -> str:
        text = str(self.wire.post("/apply-template", dict(body))["prompt"])
        return text if text.startswith(self._begin) else self._begin + text


def _sampled(wish: Wish) -> dict[str, Any]:
    """How tokens are picked, in the order in which members in this process do it; its own defaults are others."""
    how = wish.sampling
    whole = len(wish.ids) + wish.count
    penalty = {"repeat_penalty": how.repetition_penalty, "repeat_last_n": whole} if how.repetition_penalty else {}
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
