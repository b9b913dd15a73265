"""llama.cpp's ``llama-server``: token ids in and out of its own ``/completion``; scores by a
grammar of token ids.

Such a grammar leaves one token at each place, so these are drawn, with the probabilities that they
had before the grammar. (A grammar of text would split words into other tokens; ``echo`` is ignored
there.) A token that holds only part of a character breaks such a grammar, and no number is reported
for it: a path with one is scored token by token. All requests of a query go to its own slot, whose
cache has the context already.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from ...core.values import Constraint
from ...errors import MemberError
from ..text.words import either
from .dialect import Dialect, Draw, Drawn, Path, Scorer, cached_tokens
from .http import Client, RefusedError
from .tokenizers import RemoteTokenizer

MOST_LIKELY = 40
"""Where several tokens can end a turn, those among this many likely ones are counted."""
WIDE, WHOLE = 1000, 10**6
"""How many likely tokens are searched for one that is not reported otherwise; the second means
all."""
NEUTRAL = {"presence_penalty": 0.0, "frequency_penalty": 0.0, "mirostat": 0, "dynatemp_range": 0.0}
"""A server may have been started with others."""
FORCE = 1000.0
"""A bias that leaves no choice. Reported numbers are those before it."""


class LlamaCpp(Dialect):
    """One llama-server."""

    name = "llama.cpp"

    def __init__(self, client: Client, model: str) -> None:
        super().__init__(client, model)
        self._props = client.get("/props")
        self._begin = ""
        """What it puts before a text that it tokenizes, and removes from what its template
        writes."""
        self._slots = Slots(int(self._props.get("total_slots") or 1))

    def limit(self) -> int | None:
        size = (self._props.get("default_generation_settings") or {}).get("n_ctx")
        return int(size) if size else None

    def tokenizer(self) -> RemoteTokenizer | None:
        template, eos = (str(self._props.get(key) or "") for key in ("chat_template", "eos_token"))
        remote = RemoteTokenizer(
            self._encode, self._decode, self._render, template or "the server's own", eos
        )
        if not (plain := remote("a b")["input_ids"]):
            return None
        body = {"content": "a b", "add_special": True, "parse_special": True}
        whole = list(self.client.post("/tokenize", body)["tokens"])
        if whole != plain and whole[1 : len(plain) + 1] == plain:
            self._begin = remote.bos_token = str(
                self._props.get("bos_token") or ""
            ) or self._decode(whole[:1])
        return remote

    def draw(self, draw: Draw) -> Drawn:
        fields = _sampling(draw) | _guided(draw.constraint)
        reply = self._complete(draw.key, draw.ids, draw.count, fields)
        ids, rows = reply["tokens"], reply.get("completion_probabilities") or []
        whole = [row["id"] for row in rows] == ids and draw.constraint is None
        known = self.logprobs((row["logprob"] for row in rows), len(ids)) if whole else ()
        size = len(ids) - (reply.get("stop_type") == "eos" and bool(ids))
        # It cannot be given the tokens that end a turn, so it may have gone on after one.
        size = next((at for at, token in enumerate(ids) if token in self.stops), size)
        ended = size < len(ids)
        ended_by = self._end(rows[size]) if ended and whole else 0.0
        cached = cached_tokens((reply.get("timings") or {}).get("cache_n"), len(draw.ids))
        return Drawn(tuple(ids[:size]), known[:size] if whole else None, ended, ended_by, cached)

    def scorers(self) -> dict[str, Scorer]:
        return {"token grammar": lambda key, paths: [self._by_grammar(key, path) for path in paths]}

    def forget(self, key: str) -> None:
        self._slots.forget(key)

    def _by_grammar(self, key: str, path: Path) -> list[float]:
        """The numbers of one path. After a grammar's last token only the end of the turn may
        come."""
        count = len(path.new) + path.ended
        if not count:
            return []
        grammar = "root ::= " + (" ".join(f"<[{token}]>" for token in path.new) or '""')
        fields = {"grammar": grammar, "temperature": 0.0}
        try:
            reply = self._complete(key, path.ids[: path.start], count, fields, final=(500,))
        except RefusedError as error:
            if "grammar" not in str(error):
                raise
            return self._one_by_one(key, path)
        rows = reply.get("completion_probabilities") or []
        if len(rows) < len(reply["tokens"]):
            return self._one_by_one(key, path)
        self.check_same([row["id"] for row in rows][: len(path.new)], path.new)
        known = self.logprobs((row["logprob"] for row in rows), count)
        return [*known[: len(path.new)], *([self._end(rows[-1])] if path.ended else [])]

    def _one_by_one(self, key: str, path: Path) -> list[float]:
        known = [
            self._one(key, path.ids[:at], path.ids[at]) for at in range(path.start, len(path.ids))
        ]
        ends = [self._one(key, path.ids, stop) for stop in self.stops] if path.ended else []
        return [*known, *([either(ends)] if path.ended else [])]

    def _one(self, key: str, ids: Sequence[int], token: int) -> float:
        """One token's number: reported when it is forced, or else among the likely ones beside
        another that is."""
        for forced, count in ((token, 1), (self.stops[0], WIDE), (self.stops[0], WHOLE)):
            fields = {"logit_bias": [[forced, FORCE]], "n_probs": count, "temperature": 0.0}
            rows = self._complete(key, ids, 1, fields).get("completion_probabilities") or []
            likely = [one for row in rows for one in (row, *row.get("top_logprobs", ()))]
            if found := [one["logprob"] for one in likely if one["id"] == token]:
                return self.logprobs(found[:1], 1)[0]
        raise MemberError(f"{self.model} reports no log-probability of the token {token}")

    def _end(self, row: Mapping[str, Any]) -> float:
        """The probability that the turn ends here: of the token that ended it, and of others that
        could have."""
        likely = {one["id"]: float(one["logprob"]) for one in row.get("top_logprobs") or ()}
        likely[row["id"]] = float(row["logprob"])
        found = either(likely[token] for token in {row["id"], *self.stops} if token in likely)
        if math.isnan(found):
            raise MemberError(f"{self.model} returned {found!r} as a log-probability", kind="nan")
        return found

    def _complete(
        self,
        key: str,
        ids: Sequence[int],
        count: int,
        fields: Mapping[str, Any],
        final: tuple[int, ...] = (),
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
            **fields,
        }
        reply: Mapping[str, Any] = self.client.post("/completion", body, final)
        # else only the answer was
        if reply.get("truncated") and reply.get("tokens_evaluated") != len(ids):
            raise MemberError(
                f"{self.model} dropped part of the prompt: it does not fit", kind="overflow"
            )
        return reply

    def _encode(self, text: str, marks: bool) -> list[int]:
        body = {"content": text, "add_special": False, "parse_special": marks}
        return list(self.client.post("/tokenize", body)["tokens"])

    def _decode(self, ids: list[int]) -> str:
        return str(self.client.post("/detokenize", {"tokens": ids})["content"])

    def _render(self, body: Mapping[str, Any]) -> str:
        text = str(self.client.post("/apply-template", dict(body))["prompt"])
        return text if text.startswith(self._begin) else self._begin + text


class Slots:
    """Which of the engine's slots has which query's context. May be used from several threads.

    >>> slots = Slots(2)
    >>> slots.of("a"), slots.of("b"), slots.of("a"), slots.of("c")
    (0, 1, 0, 1)
    """

    def __init__(self, count: int) -> None:
        self._keys: dict[int, set[str]] = {slot: set() for slot in range(max(1, count))}
        """The slots' queries, the least recently used slot first."""
        self._lock = threading.Lock()

    def of(self, key: str) -> int:
        """The query's slot; for a new query that with the fewest others, of these the one that was
        idle for longest."""
        with self._lock:
            own = next((slot for slot, keys in self._keys.items() if key in keys), None)
            slot = min(self._keys, key=lambda one: len(self._keys[one])) if own is None else own
            self._keys[slot] = self._keys.pop(slot) | {key}
            return slot

    def forget(self, key: str) -> None:
        with self._lock:
            for keys in self._keys.values():
                keys.discard(key)


def _sampling(draw: Draw) -> dict[str, Any]:
    """How tokens are picked, in the order in which members in this process do it; the server's
    default differs."""
    how = draw.sampling
    whole = len(draw.ids) + draw.count
    penalty = (
        {"repeat_penalty": how.repetition_penalty, "repeat_last_n": whole}
        if how.repetition_penalty
        else {}
    )
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
    """llama.cpp's fields for guided decoding; it has none for patterns."""
    if constraint is None or constraint.kind == "regex":
        return {}
    if constraint.kind == "choice":
        texts = json.loads(constraint.body)
        return {
            "grammar": "root ::= "
            + " | ".join(json.dumps(text, ensure_ascii=False) for text in texts)
        }
    return {"json_schema": json.loads(constraint.body or '{"type": "object"}')}
