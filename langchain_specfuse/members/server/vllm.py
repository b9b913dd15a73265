"""vLLM: token ids in and out of ``/v1/completions``; two scorers.

*Probes*: one token after every beginning of every path, with the log-probabilities of the wanted
ids alone. These are ordinary prompts, so the prefix cache serves them. *Echo*: the
log-probabilities of a whole prompt. It is exact, but vLLM never reads those from its cache, so it
is used for short contexts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...core.values import Constraint
from ...errors import MemberError
from ..text.words import either
from .completions import Completions
from .tokenizers import RemoteTokenizer, by_endpoints
from .tokens import Drawn, Path, Request, Scorer, cached_tokens, sampling_fields

ECHO_BELOW = 150
"""In a context shorter than this an echo is cheaper than the probes (measured on a CPU: 100 to
200)."""
MOST_IDS = 120
"""vLLM reports at most 128 ids in one request."""
MOST_PROMPTS = 64


class VLLM(Completions):
    """One vLLM server."""

    name = "vLLM"

    def tokenizer(self) -> RemoteTokenizer | None:
        return by_endpoints(self.client, self.model, "", "prompt").if_served()

    def draw(self, request: Request) -> Drawn:
        body = self._body([list(request.ids)], request.count) | sampling_fields(request.sampling)
        body |= {
            "stop_token_ids": list(self.stops),
            "seed": request.sampling.seed,
            **self._wanted(self.stops),
        }
        (choice,), usage = self._post(body | _guided(request.constraint), 1)
        ids = _ids(choice)
        known = self.logprobs(choice["logprobs"]["token_logprobs"], len(ids))
        ended = choice.get("finish_reason") == "stop" and bool(ids)
        ended_by = self._end(choice["logprobs"]["top_logprobs"][-1], known[-1]) if ended else 0.0
        size = len(ids) - ended
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        raw = None if request.constraint else known[:size]
        return Drawn(
            tuple(ids[:size]), raw, ended, ended_by, cached_tokens(cached, len(request.ids))
        )

    def scorers(self) -> dict[str, Scorer]:
        return {"probes": self._by_probes, "echo": self.by_echo}

    def scorer(self, known: Mapping[str, Scorer], size: int) -> Scorer:
        short = "echo" in known and size < ECHO_BELOW
        return known["echo"] if short or "probes" not in known else known["probes"]

    # --- scoring ----------------------------------------------------------------------------------

    def _by_probes(self, key: str, paths: Sequence[Path]) -> list[list[float]]:
        wanted: dict[tuple[int, ...], set[int]] = {}
        for path in paths:
            for at in range(path.start, len(path.ids)):
                wanted.setdefault(path.ids[:at], set()).add(path.ids[at])
            if path.ended:
                wanted.setdefault(path.ids, set()).update(self.stops)
        found: dict[tuple[int, ...], Mapping[str, float]] = {}
        for part in _parts(wanted):
            ids = sorted(set().union(*(wanted[prefix] for prefix in part)))
            body = (
                self._body([list(prefix) for prefix in part], 1)
                | self._wanted(ids)
                | {"temperature": 0.0}
            )
            choices, _ = self._post(body, len(part))
            tops = [choice["logprobs"]["top_logprobs"][0] for choice in choices]
            found.update(zip(part, tops, strict=True))
        return [self._along(path, found) for path in paths]

    def _along(
        self, path: Path, found: Mapping[tuple[int, ...], Mapping[str, float]]
    ) -> list[float]:
        known = [
            found[path.ids[:at]].get(_named(path.ids[at]))
            for at in range(path.start, len(path.ids))
        ]
        end = [either(self._stops_in(found[path.ids]))] if path.ended else []
        return [*self.logprobs(known, len(path.new)), *end]

    def echoes(self, prompts: Sequence[Sequence[int]]) -> list[list[Any]]:
        body = self._body([list(ids) for ids in prompts], 0) | {"echo": True, "temperature": 0.0}
        choices, _ = self._post(body, len(prompts))
        for ids, choice in zip(prompts, choices, strict=True):
            self.check_same(_ids(choice), ids)
        return [choice["logprobs"]["token_logprobs"] for choice in choices]

    # --- requests ---------------------------------------------------------------------------------

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
    def _wanted(ids: Sequence[int]) -> dict[str, Any]:
        return {"logprob_token_ids": list(ids)} if ids else {}

    def _post(self, body: Mapping[str, Any], wanted: int) -> tuple[list[Any], Mapping[str, Any]]:
        reply = self.client.post("/v1/completions", body)
        if reply.get("model", self.model) != self.model:
            raise MemberError(
                f"the server now serves {reply['model']!r} (wanted {self.model!r})",
                kind="not_found",
            )
        choices = self.choices(reply, wanted)
        if any(choice.get("logprobs") is None for choice in choices):
            raise MemberError(
                f"{self.model} returned a choice without log-probabilities", member=self.model
            )
        return choices, reply.get("usage") or {}

    def _stops_in(self, top: Mapping[str, float]) -> Iterator[float]:
        yield from (top[_named(stop)] for stop in self.stops if _named(stop) in top)

    def _end(self, top: Mapping[str, float], drawn: float) -> float:
        """The log-probability that any known stop token comes, as in scores; without known ones
        that of the drawn."""
        return either(self._stops_in(top)) if self.stops else drawn


def _guided(constraint: Constraint | None) -> dict[str, Any]:
    """vLLM's fields for guided decoding."""
    if constraint is None:
        return {}
    kind, body = constraint.kind, constraint.body
    fields: dict[str, Any] = {
        "json_schema": {"json": body},
        "json": {"json_object": True},
        "regex": {"regex": body},
        "choice": {"choice": json.loads(body) if kind == "choice" else []},
    }
    return {"structured_outputs": fields[kind]}


def _named(token: int) -> str:
    return f"token_id:{token}"


def _ids(choice: Mapping[str, Any]) -> list[int]:
    """The ids of the drawn or echoed tokens."""
    try:
        return [int(name.removeprefix("token_id:")) for name in choice["logprobs"]["tokens"]]
    except ValueError as error:
        raise MemberError(f"the server does not name tokens by their ids: {error}") from error


def _parts(wanted: Mapping[tuple[int, ...], set[int]]) -> Iterator[list[tuple[int, ...]]]:
    """The prefixes in groups that one request can hold."""
    part: list[tuple[int, ...]] = []
    ids: set[int] = set()
    for prefix, more in wanted.items():
        if part and (len(ids | more) > MOST_IDS or len(part) == MOST_PROMPTS):
            yield part
            part, ids = [], set()
        part.append(prefix)
        ids = ids | more
    if part:
        yield part
