"""vLLM. Its ``/v1/completions`` takes and returns token ids; there are three scorers.

*Cache* asks the address that :mod:`.in_vllm.specfuse_score` adds to the servers that we start, for
all drafts at once. It computes only tokens that are not in the prefix cache. Other servers have
only the next two ways. *Probes* request one token after every beginning of every path, with the
log-probabilities of the desired ids only. These are ordinary prompts, so the prefix cache serves
them. *Echo* requests the log-probabilities of a whole prompt. It is exact, but vLLM never reads
these from its cache, so it is used for short contexts.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...constraints import schema_of
from ...core.values import Constraint, Sampling
from ...errors import MemberError, amount
from ..text.words import either
from .client import Client
from .dialect import LIKELY, Dialect, Draw, Drawn, Path, Piece, Scorer, cached_tokens

ECHO_BELOW = 150
"""In a context shorter than this an echo is cheaper than the probes (measured on a CPU: 100 to
200)."""
SCORE = "/v1/specfuse/score"
"""The address of :mod:`.in_vllm.specfuse_score`."""
MOST_IDS = 120
"""vLLM reports at most 128 ids in one request."""
MOST_PROMPTS = 64

Prefix = tuple[int, ...]


class VLLM(Dialect):
    """One vLLM server."""

    name = "vLLM"

    def __init__(self, client: Client, model: str) -> None:
        super().__init__(client, model)
        self._thread = threading.local()
        """In ``rendered``, the conversation that this thread has rendered: its text and tokens."""

    def draw(self, draw: Draw) -> Drawn:
        body = self._drawing(draw) | (_excluding(draw.excluded) or self._logprobs_of(self.stops))
        (choice,), usage = self._post(body, 1)
        ids = _ids(choice)
        logprobs = self.logprobs(choice["logprobs"]["token_logprobs"], len(ids))
        ended = choice.get("finish_reason") == "stop" and bool(ids)
        ended_by = 0.0
        if ended:
            ended_by = self._end(choice["logprobs"]["top_logprobs"][-1], logprobs[-1])
        size = len(ids) - ended
        likely: tuple[int, ...] = ()
        if draw.excluded and ids:
            likely = _ranked(choice["logprobs"]["top_logprobs"][0])
        # Under an exclusion, the reply may lack other tokens that could have ended the turn.
        is_known = not draw.constraint and not (draw.excluded and ended)
        return Drawn(
            tuple(ids[:size]),
            logprobs[:size] if is_known else None,
            ended,
            ended_by,
            _cached(usage, len(draw.ids)),
            likely,
        )

    def stream(self, draw: Draw) -> Iterator[list[Piece]]:
        body = self._drawing(draw) | {
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
        }
        if draw.scored:
            body |= self._logprobs_of(self.stops)
        else:
            del body["logprobs"]
        for events in self.client.stream("/v1/completions", body):
            yield [self._piece(event, draw) for event in events]

    def _piece(self, event: Mapping[str, Any], draw: Draw) -> Piece:
        if not event["choices"]:  # the last event
            return Piece(reused=_cached(event["usage"], len(draw.ids)))
        (choice,) = event["choices"]
        reason = choice.get("finish_reason")
        tokens = choice["token_ids"]
        piece = Piece(choice["text"], tokens)
        if draw.scored:
            numbers = choice["logprobs"]
            row = self.logprobs(numbers["token_logprobs"], len(tokens))
            if draw.constraint is None:
                piece.logprobs = row
        if reason is not None:
            self.check_finished(reason)
            piece.finish = reason
        if reason == "stop" and tokens:
            piece.tokens = tokens[:-1]
            if piece.logprobs is not None:
                piece.logprobs = row[:-1]
                piece.ended_by = self._end(numbers["top_logprobs"][-1], row[-1])
        return piece

    def scorers(self) -> dict[str, Scorer]:
        known: dict[str, Scorer] = {"cache": self._by_cache} if self._has_score() else {}
        known |= {"probes": self._by_probes, "echo": self._by_echo}
        if any(entry.get("parent") for entry in self.client.models()):
            # With LoRA adapters, vLLM 0.32 for CPUs dies if two prompts are echoed at once.
            del known["echo"]
        return known

    def scorer(self, known: Mapping[str, Scorer], size: int) -> Scorer:
        if "cache" in known or not known.keys() >= {"probes", "echo"}:
            return next(iter(known.values()))
        return known["echo"] if size < ECHO_BELOW else known["probes"]

    def _has_score(self) -> bool:
        """Whether the server has our address."""
        try:
            return bool(self.client.get(SCORE) == {"format": 1})
        except MemberError:
            return False

    # --- scoring ----------------------------------------------------------------------------------

    def _by_cache(self, key: str, paths: Sequence[Path]) -> list[list[float]]:
        shared = min(path.start for path in paths)
        body = {
            "model": self.model,
            "context": list(paths[0].ids[:shared]),
            "drafts": [{"ids": list(path.ids[shared:]), "ended": path.ended} for path in paths],
            "stops": list(self.stops),
        }
        scores = self.client.post(SCORE, body)["scores"]
        if len(scores) != len(paths):
            message = f"{self.model} scored {len(scores)} drafts of {len(paths)}"
            raise MemberError(message, member=self.model)
        return [
            self._scored(path, shared, score) for path, score in zip(paths, scores, strict=True)
        ]

    def _scored(self, path: Path, shared: int, score: Mapping[str, Any]) -> list[float]:
        numbers = self.logprobs(score["logprobs"], len(path.ids) - shared)
        row = list(numbers[path.start - shared :])
        if path.ended:
            row.append(either(self.logprobs(score["stops"], len(self.stops))))
        return row

    def _by_probes(self, key: str, paths: Sequence[Path]) -> list[list[float]]:
        needed: dict[Prefix, set[int]] = {}
        for path in paths:
            for at in range(path.start, len(path.ids)):
                needed.setdefault(path.ids[:at], set()).add(path.ids[at])
            if path.ended:
                needed.setdefault(path.ids, set()).update(self.stops)
        logprobs: dict[Prefix, Mapping[str, float]] = {}
        for prefixes in _requests(needed):
            ids = sorted(set().union(*(needed[prefix] for prefix in prefixes)))
            prompts = [list(prefix) for prefix in prefixes]
            body = {**self._body(prompts, 1), **self._logprobs_of(ids), "temperature": 0.0}
            choices, _ = self._post(body, len(prefixes))
            for prefix, choice in zip(prefixes, choices, strict=True):
                logprobs[prefix] = choice["logprobs"]["top_logprobs"][0]
        return [self._along(path, logprobs) for path in paths]

    def _along(self, path: Path, logprobs: Mapping[Prefix, Mapping[str, float]]) -> list[float]:
        """The log-probabilities of one path, from those after each of its beginnings."""
        row = [
            logprobs[path.ids[:at]].get(_name_of(path.ids[at]))
            for at in range(path.start, len(path.ids))
        ]
        numbers = list(self.logprobs(row, len(path.new)))
        if path.ended:
            numbers.append(either(self._stops_in(logprobs[path.ids])))
        return numbers

    def _by_echo(self, key: str, paths: Sequence[Path]) -> list[list[float]]:
        """Each path as whole prompts, of which the last numbers are kept. One that ends comes once
        with each token that can end it."""
        prompts = []
        for path in paths:
            ends = [[stop] for stop in self.stops] if path.ended else [[]]
            prompts.append([[*path.ids, *end] for end in ends])
        echoes = iter(self._echoes(list(itertools.chain(*prompts))))
        rows = []
        for path, several in zip(paths, prompts, strict=True):
            numbers = [
                self.logprobs(next(echoes)[path.start :], len(ids) - path.start) for ids in several
            ]
            size = len(path.new)
            row = list(numbers[0][:size])
            if path.ended:
                row.append(either(after[size] for after in numbers))
            rows.append(row)
        return rows

    def _echoes(self, prompts: Sequence[Sequence[int]]) -> list[list[Any]]:
        """For each token of each prompt its log-probability."""
        body = self._body([list(ids) for ids in prompts], 0) | {"echo": True, "temperature": 0.0}
        choices, _ = self._post(body, len(prompts))
        for ids, choice in zip(prompts, choices, strict=True):
            self.check_same(_ids(choice), ids)
        return [choice["logprobs"]["token_logprobs"] for choice in choices]

    # --- its tokenizer ----------------------------------------------------------------------------

    def encode(self, text: str, marks: bool) -> list[int]:
        rendered, ids = getattr(self._thread, "rendered", ("", []))
        if text and text == rendered:
            del self._thread.rendered
            return list(ids)
        # vLLM always recognises special tokens, so text that holds some is sent in parts.
        return self._tokens({"prompt": text, "add_special_tokens": False})

    def decode(self, ids: Sequence[int]) -> str:
        reply = self.client.post("/detokenize", {"model": self.model, "tokens": list(ids)})
        return str(reply["prompt"])

    def render(self, body: Mapping[str, Any]) -> str:
        # vLLM tokenizes it, so the text has to be asked for, but its tokens are known.
        ids = self._tokens(body)
        text = self.decode(ids)
        self._thread.rendered = text, ids
        return text

    def render_tokens(self, body: Mapping[str, Any]) -> list[int]:
        return self._tokens(body)

    def _tokens(self, fields: Mapping[str, Any]) -> list[int]:
        return list(self.client.post("/tokenize", {"model": self.model, **fields})["tokens"])

    # --- requests ---------------------------------------------------------------------------------

    def _drawing(self, draw: Draw) -> dict[str, Any]:
        return {
            **self._body([list(draw.ids)], draw.count),
            **_sampling_fields(draw.sampling),
            **_guided(draw.constraint),
            "stop_token_ids": list(self.stops),
            "seed": draw.sampling.seed,
        }

    def _body(self, prompts: list[list[int]], count: int) -> dict[str, Any]:
        return {
            "model": self.model,
            "prompt": prompts,
            "max_tokens": count,
            "logprobs": 1,
            "return_tokens_as_token_ids": True,
            "add_special_tokens": False,
        }

    @staticmethod
    def _logprobs_of(ids: Sequence[int]) -> dict[str, Any]:
        return {"logprob_token_ids": list(ids)} if ids else {}

    def _post(self, body: Mapping[str, Any], count: int) -> tuple[list[Any], Mapping[str, Any]]:
        """The choices of the reply and the usage in it."""
        reply = self.client.post("/v1/completions", body)
        if reply.get("model", self.model) != self.model:
            raise MemberError(
                f"the server now serves {reply['model']!r} (expected {self.model!r})",
                kind="not_found",
            )
        choices = sorted(reply["choices"], key=lambda choice: choice.get("index", 0))
        for choice in choices:
            self.check_finished(choice.get("finish_reason"))
        if len(choices) != count:
            raise MemberError(
                f"{self.model} returned {amount(len(choices), 'choice')} (expected {count})"
            )
        if any(choice.get("logprobs") is None for choice in choices):
            raise MemberError(
                f"{self.model} returned a choice without log-probabilities", member=self.model
            )
        return choices, reply.get("usage") or {}

    def _stops_in(self, top: Mapping[str, float]) -> Iterator[float]:
        for stop in self.stops:
            if _name_of(stop) in top:
                yield top[_name_of(stop)]

    def _end(self, top: Mapping[str, float], drawn: float) -> float:
        """The log-probability of any known stop token, as in scores. If no stop token is known,
        that of the drawn token."""
        return either(self._stops_in(top)) if self.stops else drawn


def _sampling_fields(sampling: Sampling) -> dict[str, Any]:
    """All sampling fields, because a server has its own defaults. A penalty of None is the
    server's."""
    fields = {
        "temperature": sampling.temperature,
        "top_p": 1.0 if sampling.top_p is None else sampling.top_p,
        "top_k": -1 if sampling.top_k is None else sampling.top_k,
        "min_p": 0.0 if sampling.min_p is None else sampling.min_p,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
    }
    if sampling.repetition_penalty is not None:
        fields["repetition_penalty"] = sampling.repetition_penalty
    return fields


def _excluding(tokens: Sequence[int]) -> dict[str, Any]:
    """The fields that exclude tokens and report the most probable others. vLLM reports either these
    or the log-probabilities of given tokens."""
    if not tokens:
        return {}
    return {"logit_bias": dict.fromkeys(map(str, tokens), -100.0), "logprobs": LIKELY}


def _guided(constraint: Constraint | None) -> dict[str, Any]:
    """vLLM's fields for guided decoding."""
    if constraint is None:
        return {}
    kind, body = constraint.kind, constraint.body
    if kind == "json_schema":
        fields: dict[str, Any] = {"json": schema_of(body)}
    elif kind == "json":
        fields = {"json_object": True}
    elif kind == "regex":
        fields = {"regex": body}
    else:
        fields = {"choice": json.loads(body)}
    return {"structured_outputs": fields}


def _cached(usage: Mapping[str, Any], most: int) -> int | None:
    """How many of the prompt's tokens were in vLLM's cache, if it says so."""
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    return cached_tokens(cached, most)


def _name_of(token: int) -> str:
    return f"token_id:{token}"


def _ranked(top: Mapping[str, float]) -> tuple[int, ...]:
    """The ids of these tokens, the most probable first."""
    return tuple(_id_of(name) for name in sorted(top, key=lambda name: -top[name]))


def _id_of(name: str) -> int:
    return int(name.removeprefix("token_id:"))


def _ids(choice: Mapping[str, Any]) -> list[int]:
    """The ids of the drawn or echoed tokens."""
    try:
        return [_id_of(name) for name in choice["logprobs"]["tokens"]]
    except ValueError as error:
        raise MemberError(f"the server does not name tokens by their ids: {error}") from error


def _requests(needed: Mapping[Prefix, set[int]]) -> Iterator[list[Prefix]]:
    """The prefixes in groups that one request can hold."""
    group: list[Prefix] = []
    ids: set[int] = set()
    for prefix, more in needed.items():
        if group and (len(ids | more) > MOST_IDS or len(group) == MOST_PROMPTS):
            yield group
            group, ids = [], set()
        group.append(prefix)
        ids = ids | more
    if group:
        yield group
