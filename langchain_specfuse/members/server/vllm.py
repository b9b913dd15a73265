"""vLLM: token ids in and out of ``/v1/completions``; two ways to score.

*Probes*: one token after every beginning of every path, told only for the ids that are wanted. These are ordinary
prompts, so the prefix cache serves them. *Echo*: the probabilities of a whole prompt. Exact, but vLLM never reads those
from its cache, so it is for short contexts. Knows no text and no votes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
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

ECHO_BELOW = 150
"""In a context shorter than this an echo is cheaper than the probes (measured on a CPU: 100 to 200)."""
MOST_IDS = 120
"""vLLM tells at most 128 ids a question."""
MOST_PROMPTS = 64


class VLLM:
    """One vLLM server."""

    name = "vLLM"

    def __init__(self, wire: Wire, model: str) -> None:
        self.wire, self.model = wire, model
        self.stops: Sequence[int] = ()

    def limit(self) -> int | None:
        return context_of(self.wire, self.model)

    def tokenizer(self) -> RemoteTokenizer | None:
        return RemoteTokenizer(self._encode, self._decode, self._render).if_served()

    def draw(self, wish: Wish) -> Drawn:
        body = self._body([list(wish.ids)], wish.count) | sampled(wish.sampling) | _structured(wish.constraint)
        body |= {"stop_token_ids": list(self.stops), "seed": wish.sampling.seed, **self._told(self.stops)}
        (choice,), usage = self._asked(body, 1)
        ids, logprobs = _ids(choice), choice["logprobs"]["token_logprobs"]
        known = numbers(logprobs, len(ids), self.model)
        ended = choice.get("finish_reason") == "stop" and bool(ids)
        end = self._end(choice["logprobs"]["top_logprobs"][-1], known[-1]) if ended else 0.0
        size = len(ids) - ended
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        raw = None if wish.constraint else known[:size]
        return Drawn(tuple(ids[:size]), raw, ended, end, *from_cache(cached, len(wish.ids)))

    def ways(self) -> dict[str, Way]:
        return {"probes": self._probed, "echo": self._echoed}

    def way(self, known: Mapping[str, Way], size: int) -> Way:
        short = "echo" in known and size < ECHO_BELOW
        return known["echo"] if short or "probes" not in known else known["probes"]

    def forget(self, key: str) -> None:
        """It was told nothing by which it could: its cache goes by what prompts begin with."""

    # --- scoring ------------------------------------------------------------------------------------------------

    def _probed(self, key: str, paths: Sequence[Path]) -> list[list[float]]:
        wanted: dict[tuple[int, ...], set[int]] = {}
        for path in paths:
            for at in range(path.start, len(path.ids)):
                wanted.setdefault(path.ids[:at], set()).add(path.ids[at])
            if path.ended:
                wanted.setdefault(path.ids, set()).update(self.stops)
        found: dict[tuple[int, ...], Mapping[str, float]] = {}
        for part in _parts(wanted):
            asked = sorted(set().union(*(wanted[prefix] for prefix in part)))
            body = self._body([list(prefix) for prefix in part], 1) | self._told(asked) | {"temperature": 0.0}
            choices, _ = self._asked(body, len(part))
            tops = [choice["logprobs"]["top_logprobs"][0] for choice in choices]
            found.update(zip(part, tops, strict=True))
        return [self._along(path, found) for path in paths]

    def _along(self, path: Path, found: Mapping[tuple[int, ...], Mapping[str, float]]) -> list[float]:
        told = [found[path.ids[:at]].get(_named(path.ids[at])) for at in range(path.start, len(path.ids))]
        end = [either(self._stops_in(found[path.ids]))] if path.ended else []
        return [*numbers(told, len(path.new), self.model), *end]

    def _echoed(self, key: str, paths: Sequence[Path]) -> list[list[float]]:
        asked = [ids for path in paths for ids in spelled(path, self.stops)]
        choices, _ = self._asked(self._body(asked, 0) | {"echo": True, "temperature": 0.0}, len(asked))
        echoes = iter(zip(asked, choices, strict=True))
        return [folded(path, [self._echo(path, *next(echoes)) for _ in spelled(path, self.stops)]) for path in paths]

    def _echo(self, path: Path, ids: Sequence[int], choice: Mapping[str, Any]) -> tuple[float, ...]:
        """The numbers of one prompt from where its path begins."""
        same(_ids(choice), ids, self.model)
        return numbers(choice["logprobs"]["token_logprobs"][path.start :], len(ids) - path.start, self.model)

    # --- what is said -------------------------------------------------------------------------------------------

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
    def _told(ids: Sequence[int]) -> dict[str, Any]:
        return {"logprob_token_ids": list(ids)} if ids else {}

    def _asked(self, body: Mapping[str, Any], wanted: int) -> tuple[list[Any], Mapping[str, Any]]:
        told = self.wire.post("/v1/completions", body)
        choices = sorted(told["choices"], key=lambda choice: choice.get("index", 0))
        for choice in choices:
            came_through(choice.get("finish_reason"), self.model)
        if told.get("model", self.model) != self.model:
            raise MemberError(f"the server now serves {told['model']!r} (wanted {self.model!r})", kind="not_found")
        if len(choices) != wanted or any(choice.get("logprobs") is None for choice in choices):
            raise MemberError(
                f"{self.model} told {amount(len(choices), 'choice')} (wanted {wanted} with log-probabilities)"
            )
        return choices, told.get("usage") or {}

    def _stops_in(self, top: Mapping[str, float]) -> Iterator[float]:
        yield from (top[_named(stop)] for stop in self.stops if _named(stop) in top)

    def _end(self, top: Mapping[str, float], drawn: float) -> float:
        """Of the tokens that are known to end a turn, as scores have it; one that is not known may have done so."""
        return either(self._stops_in(top)) if self.stops else drawn

    # --- its tokenizer ------------------------------------------------------------------------------------------

    def _encode(self, text: str, marks: bool) -> list[int]:
        # It reads what is written like a special token as one, also where that is text: it cannot be told otherwise.
        asked = {"model": self.model, "prompt": text, "add_special_tokens": False}
        return list(self.wire.post("/tokenize", asked)["tokens"])

    def _decode(self, ids: list[int]) -> str:
        return str(self.wire.post("/detokenize", {"model": self.model, "tokens": ids})["prompt"])

    def _render(self, body: Mapping[str, Any]) -> str:
        return self._decode(self.wire.post("/tokenize", {"model": self.model, **body})["tokens"])


def _structured(constraint: Constraint | None) -> dict[str, Any]:
    """Guided decoding, as vLLM calls it."""
    if constraint is None:
        return {}
    kind, body = constraint.kind, constraint.body
    said: dict[str, Any] = {
        "json_schema": {"json": body},
        "json": {"json_object": True},
        "regex": {"regex": body},
        "choice": {"choice": json.loads(body) if kind == "choice" else []},
    }
    return {"structured_outputs": said[kind]}


def _named(token: int) -> str:
    return f"token_id:{token}"


def _ids(choice: Mapping[str, Any]) -> list[int]:
    """The ids of what was drawn or echoed."""
    try:
        return [int(name.removeprefix("token_id:")) for name in choice["logprobs"]["tokens"]]
    except ValueError as error:
        raise MemberError(f"the server does not name tokens by their ids: {error}") from error


def _parts(wanted: Mapping[tuple[int, ...], set[int]]) -> Iterator[list[tuple[int, ...]]]:
    """The prefixes in groups that one question can hold."""
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
