"""OpenAI's completions with ``echo``, for any engine whose ``/v1/completions`` returns
log-probabilities of the prompt, such as Fireworks, Together, SGLang, and gateways in front of vLLM.

The model's tokenizer must be available in this process. A prompt is sent as token ids or, to
servers that refuse these, as the text that their tokenizer splits into the same ids. As for every
engine, a trial finds out whether the log-probabilities are right. (lm-eval's ``local-completions``
sends the same kind of request, but for one continuation of one prompt, not for paths of tokens.)
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ...errors import MemberError, amount
from ..text.control import neutral
from ..text.words import REPLACEMENT, either
from .dialect import Dialect, Draw, Drawn, Path, Scorer
from .http import Client, RefusedError
from .tokenizers import REFUSALS, RemoteTokenizer

FORMS = ("ids", "texts", "text")
"""How prompts are sent, in the order in which it is tried: token ids or texts, several at once, or
one text."""


@dataclass(frozen=True, slots=True)
class Completed:
    """The reply to one prompt."""

    choice: Mapping[str, Any]
    logprobs: Sequence[Any]
    prompt: Sequence[int]
    """The tokens as which the server read the prompt."""


class Completions(Dialect):
    """One server that speaks OpenAI's completions."""

    name = "completions"

    def __init__(self, client: Client, model: str) -> None:
        super().__init__(client, model)
        self._form: str | None = None
        """The form of prompts that the server takes; None: not known yet."""

    def tokenizer(self) -> RemoteTokenizer | None:
        return None

    def draw(self, draw: Draw) -> Drawn:
        sampling = {key: value for key, value in asdict(draw.sampling).items() if value is not None}
        bias = {"logit_bias": never(draw.excluded)} if draw.excluded else {}
        (reply,) = self._completed([draw.ids], {**sampling, **bias, "max_tokens": draw.count})
        ids, exact = self._drawn_ids(draw, reply.choice)
        ended = reply.choice.get("finish_reason") not in ("length", None)
        size = len(ids)
        if ended and ids and ids[-1] in self.stops:
            size -= 1
        # The log-probabilities may belong to other tokens of the same text, and may lack the token
        # that ended the turn.
        if not exact or len(reply.logprobs) != size + ended:
            return Drawn(tuple(ids[:size]), None, ended)
        logprobs = self.logprobs(reply.logprobs, size + ended)
        return Drawn(tuple(ids[:size]), logprobs[:size], ended, logprobs[size] if ended else 0.0)

    def _drawn_ids(self, draw: Draw, choice: Mapping[str, Any]) -> tuple[list[int], bool]:
        """The drawn tokens, and whether the reply's numbers belong to them."""
        numbers = choice.get("logprobs") or {}
        if numbers.get("token_ids"):
            return list(numbers["token_ids"]), True
        # Half a character at the end is dropped, and drawn again.
        ids = self.words.after(draw.ids, choice["text"].rstrip(REPLACEMENT))
        lengths = itertools.accumulate(map(len, numbers.get("tokens") or ()))
        _, ends = self.words.text_after(draw.ids, ids)
        return ids, list(lengths)[: len(ids)] == ends

    def scorers(self) -> Mapping[str, Scorer]:
        return {"echo": self.by_echo}

    def by_echo(self, key: str, paths: Sequence[Path]) -> list[list[float]]:
        """Each path as whole prompts, of which the last numbers are kept."""
        prompts = [_prompts_of(path, self.stops) for path in paths]
        echoes = iter(self.echoes(list(itertools.chain(*prompts))))
        rows = []
        for path, several in zip(paths, prompts, strict=True):
            numbers = [
                self.logprobs(next(echoes)[path.start :], len(ids) - path.start) for ids in several
            ]
            rows.append(_merged(path, numbers))
        return rows

    def echoes(self, prompts: Sequence[Sequence[int]]) -> list[list[Any]]:
        """For each token of each prompt its log-probability; None where the server split the text
        differently."""
        fields = {"max_tokens": 1, "temperature": 0.0, "echo": True}
        rows = []
        for ids, reply in zip(prompts, self._completed(prompts, fields), strict=True):
            same = _equal_at_end(ids, reply.prompt)
            read = len(reply.prompt)
            unknown: list[Any] = [None] * (len(ids) - same)
            rows.append(unknown + list(reply.logprobs[read - same : read]))
        return rows

    # --- requests ---------------------------------------------------------------------------------

    def _completed(
        self, prompts: Sequence[Sequence[int]], fields: Mapping[str, Any]
    ) -> list[Completed]:
        """The reply to each prompt, in the first form that the server takes."""
        body = {"model": self.model, "logprobs": 1, **fields}
        for form in FORMS if self._form is None else (self._form,):
            try:
                replies = self._in_form(form, prompts, body)
            except RefusedError as error:
                if self._form or form == FORMS[-1] or error.status not in REFUSALS:
                    raise
                continue
            self._form = form
            return replies
        raise AssertionError("the last form returns or raises")

    def _in_form(
        self, form: str, prompts: Sequence[Sequence[int]], body: Mapping[str, Any]
    ) -> list[Completed]:
        if form == "ids":
            sent: list[tuple[Any, list[int]]] = [(list(ids), list(ids)) for ids in prompts]
        else:
            sent = [self._as_text(ids) for ids in prompts]
        if form != "text":
            return self._posted([prompt for prompt, _ in sent], [read for _, read in sent], body)
        replies = []
        for prompt, read in sent:
            replies += self._posted(prompt, [read], body)
        return replies

    def _posted(
        self, prompt: Any, read: Sequence[list[int]], body: Mapping[str, Any]
    ) -> list[Completed]:
        """``read``: the tokens of each prompt."""
        final = () if self._form else REFUSALS
        reply = self.client.post("/v1/completions", {**body, "prompt": prompt}, final)
        choices = self.choices(reply, len(read))
        size = sum(map(len, read))
        counted = (reply.get("usage") or {}).get("prompt_tokens", size)
        if counted != size:
            split = f"{amount(counted, 'token')} (its tokenizer makes {size})"
            raise MemberError(f"{self.model} splits a prompt into {split}", member=self.model)
        echoed = choices
        if body.get("echo") and reply.get("prompt"):
            echoed = reply["prompt"]  # Together returns the numbers of a prompt beside the choices
        rows = [(entry.get("logprobs") or {}).get("token_logprobs") or [] for entry in echoed]
        return [Completed(*parts) for parts in zip(choices, rows, read, strict=True)]

    def _as_text(self, ids: Sequence[int]) -> tuple[str, list[int]]:
        """The text to send for these tokens, and the tokens that the server's tokenizer makes of
        it."""
        tokenizer = self.words.tokenizer
        text = neutral(tokenizer, ids)
        read = list(tokenizer(text)["input_ids"])
        # The template writes the first token, and the tokenizer adds it again.
        if read[:2] == [tokenizer.bos_token_id] * 2:
            return text.removeprefix(tokenizer.bos_token), read[1:]
        return text, read

    def choices(self, reply: Mapping[str, Any], count: int) -> list[Any]:
        """The choices of a reply in order. Raises unless there are ``count`` whole ones."""
        choices = sorted(reply["choices"], key=lambda choice: choice.get("index", 0))
        for choice in choices:
            # Only this field shows that an engine was stopped or had no room: the rest looks
            # complete.
            reason = choice.get("finish_reason")
            if reason in ("abort", "error", "content_filter"):
                raise MemberError(f"{self.model} broke off ({reason})", member=self.model)
        if len(choices) != count:
            raise MemberError(
                f"{self.model} returned {amount(len(choices), 'choice')} (expected {count})"
            )
        return choices


def never(tokens: Sequence[int]) -> dict[str, float]:
    """The ``logit_bias`` of OpenAI's API that keeps these tokens from being drawn.

    >>> never([7, 9])
    {'7': -100.0, '9': -100.0}
    """
    return dict.fromkeys(map(str, tokens), -100.0)


def _prompts_of(path: Path, stops: Sequence[int]) -> list[list[int]]:
    """The path as whole prompts: one that ends comes once with each token that can end it."""
    if not path.ended:
        return [list(path.ids)]
    return [[*path.ids, stop] for stop in stops]


def _merged(path: Path, rows: Sequence[Sequence[float]]) -> list[float]:
    """The log-probabilities of a path from those of its prompts. The turn may end with any of their
    last tokens."""
    size = len(path.new)
    numbers = list(rows[0][:size])
    if path.ended:
        numbers.append(either(row[size] for row in rows))
    return numbers


def _equal_at_end(ids: Sequence[int], other: Sequence[int]) -> int:
    """How many of the last tokens are equal."""
    count = 0
    for token, other_token in zip(reversed(ids), reversed(other), strict=False):
        if token != other_token:
            break
        count += 1
    return count
