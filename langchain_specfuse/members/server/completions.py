"""OpenAI's completions with ``echo``, for any engine whose ``/v1/completions`` returns
log-probabilities of the prompt.

Such as Fireworks, Together, and gateways in front of vLLM. The server's tokenizer must be known
here. A prompt is sent as token ids or, to servers that refuse these, as the text that their
tokenizer splits into the same ids. Whether the numbers are right is found by trying, as for every
engine. (lm-eval's ``local-completions`` asks in the same way, but for one continuation of one
prompt, not for paths of tokens.) Voting happens elsewhere.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ...errors import MemberError, amount
from ..text.control import neutral
from ..text.words import REPLACEMENT
from .http import Client, RefusedError
from .tokenizers import REFUSALS, RemoteTokenizer
from .tokens import Dialect, Drawn, Path, Request, Scorer, check_completed, merged, prompts_of

FORMS = ("ids", "texts", "text")
"""How prompts are sent, in the order in which it is tried: token ids or texts, several at once, or
one text."""


class Completions(Dialect):
    """One server that speaks OpenAI's completions."""

    name = "completions"

    def __init__(self, client: Client, model: str) -> None:
        super().__init__(client, model)
        self._form: str | None = None

    def tokenizer(self) -> RemoteTokenizer | None:
        return None

    def draw(self, request: Request) -> Drawn:
        how = {key: value for key, value in asdict(request.sampling).items() if value is not None}
        ((choice, row, _),) = self._sent([request.ids], {**how, "max_tokens": request.count})
        numbers = choice.get("logprobs") or {}
        ids, told = numbers.get("token_ids"), True
        if not ids:
            # half a character is drawn again
            ids = self.words.after(request.ids, choice["text"].rstrip(REPLACEMENT))
            lengths = itertools.accumulate(map(len, numbers.get("tokens") or ()))
            told = list(lengths)[: len(ids)] == self.words.text_after(request.ids, ids)[1]
        ended = choice.get("finish_reason") not in ("length", None)
        size = len(ids) - (ended and ids[-1:] in [[stop] for stop in self.stops])
        # The numbers may be those of other tokens of the same text, and lack the token that ended
        # the turn.
        known = self.logprobs(row, size + ended) if told and len(row) == size + ended else None
        return Drawn(
            tuple(ids[:size]),
            known and known[:size],
            ended,
            known[size] if known and ended else 0.0,
        )

    def scorers(self) -> Mapping[str, Scorer]:
        return {"echo": self.by_echo}

    def by_echo(self, key: str, paths: Sequence[Path]) -> list[list[float]]:
        """Each path as whole prompts, of which the last numbers are kept."""
        prompts = [prompts_of(path, self.stops) for path in paths]
        echoes = iter(self.echoes(list(itertools.chain(*prompts))))
        return [
            merged(
                path,
                [
                    self.logprobs(next(echoes)[path.start :], len(ids) - path.start)
                    for ids in several
                ],
            )
            for path, several in zip(paths, prompts, strict=True)
        ]

    def echoes(self, prompts: Sequence[Sequence[int]]) -> list[list[Any]]:
        """For each token of each prompt its log-probability; None where the server split the text
        differently."""
        sent = self._sent(prompts, {"max_tokens": 1, "temperature": 0.0, "echo": True})
        rows = []
        for ids, (_, row, read) in zip(prompts, sent, strict=True):
            alike = zip(reversed(ids), reversed(read), strict=False)
            same = next((at for at, (a, b) in enumerate(alike) if a != b), min(len(ids), len(read)))
            rows.append([None] * (len(ids) - same) + list(row[len(read) - same : len(read)]))
        return rows

    # --- requests ---------------------------------------------------------------------------------

    def _sent(
        self, prompts: Sequence[Sequence[int]], fields: Mapping[str, Any]
    ) -> list[tuple[Any, Any, list[int]]]:
        """For each prompt the choice, its log-probabilities, and the tokens as which the server
        read the prompt."""
        for form in FORMS if self._form is None else (self._form,):
            try:
                found = self._in_form(form, prompts, {"model": self.model, "logprobs": 1, **fields})
            except RefusedError as error:
                if self._form or form == FORMS[-1] or error.status not in REFUSALS:
                    raise
                continue
            self._form = form
            return found
        raise AssertionError("the last form returns or raises")

    def _in_form(
        self, form: str, prompts: Sequence[Sequence[int]], body: Mapping[str, Any]
    ) -> list[Any]:
        read = [(list(ids), list(ids)) if form == "ids" else self._text(ids) for ids in prompts]
        found = []
        for part in [[one] for one in read] if form == "text" else [read]:
            given: list[Any] = [prompt for prompt, _ in part]
            asked = {**body, "prompt": given[0] if form == "text" else given}
            reply = self.client.post("/v1/completions", asked, () if self._form else REFUSALS)
            choices, usage = self.choices(reply, len(part)), reply.get("usage") or {}
            wanted = sum(len(ids) for _, ids in part)
            if usage.get("prompt_tokens", wanted) != wanted:
                split = f"{amount(usage['prompt_tokens'], 'token')} (its tokenizer makes {wanted})"
                raise MemberError(f"{self.model} splits a prompt into {split}", member=self.model)
            # Together returns the numbers of a prompt beside the choices.
            echoed = reply.get("prompt") or choices if body.get("echo") else choices
            rows = [(one.get("logprobs") or {}).get("token_logprobs") or [] for one in echoed]
            found += [(*both, ids) for *both, (_, ids) in zip(choices, rows, part, strict=True)]
        return found

    def _text(self, ids: Sequence[int]) -> tuple[str, list[int]]:
        """The text to send for these tokens, and the tokens that the server's tokenizer makes of
        it."""
        tokenizer = self.words.tokenizer
        text = neutral(tokenizer, ids)
        read = list(tokenizer(text)["input_ids"])
        # the template writes it, and the tokenizer adds it
        if read[:2] == [tokenizer.bos_token_id] * 2:
            return text.removeprefix(tokenizer.bos_token), read[1:]
        return text, read

    def choices(self, reply: Mapping[str, Any], wanted: int) -> list[Any]:
        """The choices of a reply in order."""
        choices = sorted(reply["choices"], key=lambda choice: choice.get("index", 0))
        for choice in choices:
            check_completed(choice.get("finish_reason"), self.model)
        if len(choices) != wanted:
            raise MemberError(
                f"{self.model} returned {amount(len(choices), 'choice')} (wanted {wanted})"
            )
        return choices
