"""llama.cpp's ``llama-server``. Its own ``/completion`` takes and returns token ids; scores come
from a grammar of token ids.

Such a grammar allows a single token at each place, so the server draws these tokens and reports the
probabilities that they had before the grammar. (A grammar of text would split words into other
tokens, and the server ignores ``echo``.) A token that holds only part of a character breaks such a
grammar, and the server reports no log-probability for it, so a path with such a token is scored
token by token. All requests of a query go to its own slot, whose cache already has the context.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...constraints import schema_of
from ...core.values import Constraint
from ...errors import MemberError
from ..text.words import either
from .client import Client, RefusedError
from .dialect import LIKELY, Dialect, Draw, Drawn, Path, Piece, Scorer, cached_tokens
from .tokenizers import ServerTokenizer

MOST_LIKELY = 40
"""If several tokens can end a turn, those among this many of the most likely tokens are counted."""
WIDE, WHOLE = 1000, 10**6
"""Among how many of the most likely tokens to search for one that is not reported otherwise;
``WHOLE`` means all."""
NEUTRAL = {"presence_penalty": 0.0, "frequency_penalty": 0.0, "mirostat": 0, "dynatemp_range": 0.0}
"""A server may have been started with others."""
FORCE = 1000.0
"""A bias that forces a token. The server reports log-probabilities from before the bias."""


class LlamaCpp(Dialect):
    """One llama-server."""

    name = "llama.cpp"

    def __init__(self, client: Client, model: str) -> None:
        super().__init__(client, model)
        self._props = client.get("/props")
        self._begin = ""
        """The tokens that it puts before a text that it tokenizes, and removes from what its
        template writes."""
        self._slots = Slots(int(self._props.get("total_slots") or 1))

    def limit(self) -> int | None:
        size = (self._props.get("default_generation_settings") or {}).get("n_ctx")
        return int(size) if size else None

    def tokenizer(self) -> ServerTokenizer:
        plain = self.encode("a b", True)
        body = {"content": "a b", "add_special": True, "parse_special": True}
        whole = list(self.client.post("/tokenize", body)["tokens"])
        if whole != plain and whole[1 : len(plain) + 1] == plain:
            self._begin = str(self._props.get("bos_token") or "") or self.decode(whole[:1])
        template = str(self._props.get("chat_template") or "the server's own")
        eos = str(self._props.get("eos_token") or "")
        return ServerTokenizer(self, template, eos, self._begin or None)

    def draw(self, draw: Draw) -> Drawn:
        fields = _sampling(draw) | _guided(draw.constraint) | _excluding(draw.excluded)
        reply = self._complete(draw.key, draw.ids, draw.count, fields)
        ids = reply["tokens"]
        rows = reply.get("completion_probabilities") or []
        size = len(ids)
        if ids and reply.get("stop_type") == "eos":
            size -= 1
        # The engine does not know all tokens that end a turn: it may have continued after one.
        size = next((at for at, token in enumerate(ids) if token in self.stops), size)
        ended = size < len(ids)
        cached = _cached(reply, draw.ids)
        likely = ()
        if draw.excluded and rows:
            likely = tuple(entry["id"] for entry in rows[0].get("top_logprobs") or ())
        if draw.constraint is not None or [row["id"] for row in rows] != ids:
            return Drawn(tuple(ids[:size]), None, ended, reused=cached, likely=likely)
        logprobs = self.logprobs((row["logprob"] for row in rows), len(ids))
        ended_by = self._end(rows[size]) if ended else 0.0
        return Drawn(tuple(ids[:size]), logprobs[:size], ended, ended_by, cached, likely)

    def stream(self, draw: Draw) -> Iterator[list[Piece]]:
        fields = _sampling(draw) | _guided(draw.constraint) | {"stream": True}
        if not draw.scored:
            fields["n_probs"] = 0
        body = self._body(draw.key, draw.ids, draw.count, fields)
        count = 0
        held: Piece | None = None
        """A token that may have ended the turn: only the next event tells."""
        # The server waits for the slot and reads the prompt before it replies.
        for events in self.client.stream("/completion", body, limited=False):
            pieces = []
            for event in events:
                is_last = event["stop"]
                # As in a draft: the engine may have continued after the end of the turn.
                ended = held is not None and self._is_stop(held)
                ended = ended or (is_last and event.get("stop_type") == "eos")
                if held is not None and not ended:
                    pieces.append(held)
                if is_last or ended:
                    piece = Piece(finish="stop" if ended else "length")
                    piece.ended_by = held.ended_by if held is not None else 0.0
                    pieces.append(piece)
                    held = None
                    if not is_last:
                        yield pieces
                        return
                    self._check_whole(event, draw.ids)
                    piece.reused = _cached(event, draw.ids)
                    continue
                piece = self._piece(event, event["tokens_predicted"] - count, draw)
                count = event["tokens_predicted"]
                held = piece if not piece.text or self._is_stop(piece) else None
                if held is None:
                    pieces.append(piece)
            yield pieces

    def _piece(self, event: Mapping[str, Any], count: int, draw: Draw) -> Piece:
        """``count``: how many tokens were drawn since the last event."""
        piece = Piece(event["content"], event["tokens"])
        if count > len(event["tokens"]):
            # llama-server sends only the last token of a character that has several.
            known = self.words.continuing(piece.text)
            is_same = len(known) == count and known[-1:] == event["tokens"]
            piece.tokens = known if is_same else None
        rows = event.get("completion_probabilities") or []
        if draw.scored and draw.constraint is None and len(rows) == count == 1:
            piece.logprobs = self.logprobs([rows[0]["logprob"]], 1)
            piece.ended_by = 0.0 if piece.text else self._end(rows[0])
        return piece

    def _is_stop(self, piece: Piece) -> bool:
        return any(token in self.stops for token in piece.tokens or ())

    def scorers(self) -> dict[str, Scorer]:
        return {"token grammar": lambda key, paths: [self._by_grammar(key, path) for path in paths]}

    def forget(self, key: str) -> None:
        self._slots.forget(key)

    def _by_grammar(self, key: str, path: Path) -> list[float]:
        """The log-probabilities of one path. After a grammar's last token, only the end of the turn
        may follow."""
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
        numbers = list(known[: len(path.new)])
        if path.ended:
            numbers.append(self._end(rows[-1]))
        return numbers

    def _one_by_one(self, key: str, path: Path) -> list[float]:
        """The log-probabilities of one path, with one request for each."""
        numbers = [
            self._one(key, path.ids[:at], path.ids[at]) for at in range(path.start, len(path.ids))
        ]
        if path.ended:
            numbers.append(either([self._one(key, path.ids, stop) for stop in self.stops]))
        return numbers

    def _one(self, key: str, ids: Sequence[int], token: int) -> float:
        """One token's log-probability. The server reports it when the token is forced or, failing
        that, among the likely tokens when another token is forced."""
        for forced, count in ((token, 1), (self.stops[0], WIDE), (self.stops[0], WHOLE)):
            fields = {"logit_bias": [[forced, FORCE]], "n_probs": count, "temperature": 0.0}
            rows = self._complete(key, ids, 1, fields).get("completion_probabilities") or []
            for row in rows:
                for entry in (row, *row.get("top_logprobs", ())):
                    if entry["id"] == token:
                        return self.logprobs([entry["logprob"]], 1)[0]
        raise MemberError(f"{self.model} reports no log-probability of the token {token}")

    def _end(self, row: Mapping[str, Any]) -> float:
        """The log-probability that the turn ends here: by the token that ended it, or by another
        that could have."""
        likely = {entry["id"]: float(entry["logprob"]) for entry in row.get("top_logprobs") or ()}
        likely[row["id"]] = float(row["logprob"])
        ends = {row["id"], *self.stops}
        logprob = either(likely[token] for token in ends if token in likely)
        if math.isnan(logprob):
            raise MemberError(f"{self.model} returned {logprob!r} as a log-probability", kind="nan")
        return logprob

    def _complete(
        self,
        key: str,
        ids: Sequence[int],
        count: int,
        fields: Mapping[str, Any],
        final: tuple[int, ...] = (),
    ) -> Mapping[str, Any]:
        body = self._body(key, ids, count, fields)
        reply: Mapping[str, Any] = self.client.post("/completion", body, final)
        self._check_whole(reply, ids)
        return reply

    def _body(
        self, key: str, ids: Sequence[int], count: int, fields: Mapping[str, Any]
    ) -> dict[str, Any]:
        return {
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

    def _check_whole(self, reply: Mapping[str, Any], ids: Sequence[int]) -> None:
        """Raise if the prompt was truncated, not only the answer."""
        if reply.get("truncated") and reply.get("tokens_evaluated") != len(ids):
            raise MemberError(
                f"{self.model} dropped part of the prompt: it does not fit", kind="overflow"
            )

    # --- its tokenizer ----------------------------------------------------------------------------

    def encode(self, text: str, marks: bool) -> list[int]:
        body = {"content": text, "add_special": False, "parse_special": marks}
        return list(self.client.post("/tokenize", body)["tokens"])

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.client.post("/detokenize", {"tokens": list(ids)})["content"])

    def render(self, body: Mapping[str, Any]) -> str:
        text = str(self.client.post("/apply-template", dict(body))["prompt"])
        return text if text.startswith(self._begin) else self._begin + text


class Slots:
    """Records which of the engine's slots has which query's context. Several threads may use it.

    >>> slots = Slots(2)
    >>> slots.of("a"), slots.of("b"), slots.of("a"), slots.of("c")
    (0, 1, 0, 1)
    """

    def __init__(self, count: int) -> None:
        self._keys: dict[int, set[str]] = {slot: set() for slot in range(max(1, count))}
        """The slots' queries, the least recently used slot first."""
        self._lock = threading.Lock()

    def of(self, key: str) -> int:
        """The query's slot. A new query gets the slot with the fewest other queries and, among
        those, the one that has been idle longest."""
        with self._lock:
            slot = min(self._keys, key=lambda slot: len(self._keys[slot]))
            for other, keys in self._keys.items():
                if key in keys:
                    slot = other
                    break
            self._keys[slot] = self._keys.pop(slot) | {key}
            return slot

    def forget(self, key: str) -> None:
        with self._lock:
            for keys in self._keys.values():
                keys.discard(key)


def _sampling(draw: Draw) -> dict[str, Any]:
    """How tokens are picked, in the order in which members in this process do it; the server's
    default differs."""
    sampling = draw.sampling
    fields: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_k": sampling.top_k or 0,
        "top_p": 1.0 if sampling.top_p is None else sampling.top_p,
        "min_p": sampling.min_p or 0.0,
        "seed": sampling.seed & 0x7FFFFFFF,
        "samplers": ["penalties", "temperature", "top_k", "top_p", "min_p"],
    }
    if sampling.repetition_penalty:
        fields["repeat_penalty"] = sampling.repetition_penalty
        fields["repeat_last_n"] = len(draw.ids) + draw.count
    return fields


def _cached(reply: Mapping[str, Any], ids: Sequence[int]) -> int | None:
    """How many of the prompt's tokens were in the slot's cache, if the server says so."""
    return cached_tokens((reply.get("timings") or {}).get("cache_n"), len(ids))


def _excluding(tokens: Sequence[int]) -> dict[str, Any]:
    """The fields that exclude tokens and report the most probable others."""
    if not tokens:
        return {}
    bias = [[token, False] for token in tokens]
    return {"logit_bias": bias, "n_probs": LIKELY + len(tokens)}


def _guided(constraint: Constraint | None) -> dict[str, Any]:
    """llama.cpp's fields for guided decoding. It has no field for patterns."""
    if constraint is None or constraint.kind == "regex":
        return {}
    if constraint.kind == "choice":
        choices = [json.dumps(text, ensure_ascii=False) for text in json.loads(constraint.body)]
        return {"grammar": f"root ::= {' | '.join(choices)}"}
    if constraint.kind == "json":
        return {"json_schema": {"type": "object"}}
    return {"json_schema": json.loads(schema_of(constraint.body))}
