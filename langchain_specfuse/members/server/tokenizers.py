"""The tokenizer of a model on a server: the server's own, asked over HTTP, or a local copy.

Both have the interface of a transformers tokenizer, so templates and seams work as with a model in
this process. The server's tokenizer costs a few short requests per draft.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any

from ...core.call import SHOWN
from ...errors import UsageError, advised
from ..hub import on_hub
from ..text.templates import Template, end_of_turn, stop_ids
from .client import RefusedError

KEPT_CHARS, KEPT_TOKENS, KEPT_REPLIES = 256, 128, 2048
"""The longest texts and runs of tokens whose replies are kept, and how many: they are needed again
and again. Whole prompts are kept by their query."""
TRIED, ONE_BY_ONE, KEPT = 500, 32, 8192
"""How many texts are tested in one request, how many are tested one by one if no token is known
that can separate them, and how many results are kept."""
SHAPES = [
    re.compile(shape)
    for shape in (r"<[^<>\s]{1,64}>", r"<\|[^<>|]{1,64}\|>", r"\[[^\[\]\s]{1,64}\]")
]
"""What control tokens look like."""
_ANSWER = "specfuse-answer-mark"
REFUSALS = (400, 422, 500)
"""The statuses with which engines answer if a template raises. Other statuses have other
causes."""


class TokenizingEngine(ABC):
    """What an engine's own interface offers for tokens."""

    @abstractmethod
    def encode(self, text: str, marks: bool) -> list[int]:
        """The tokens of a text. ``marks``: whether special tokens in it are recognised, if the
        engine has the choice."""

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """The text of these tokens."""

    @abstractmethod
    def render(self, body: Mapping[str, Any]) -> str:
        """A conversation as the engine's own chat template writes it."""

    def render_tokens(self, body: Mapping[str, Any]) -> list[int]:
        """The tokens of a conversation as the template writes it; empty if that takes more than one
        request."""
        return []


class ServerTokenizer:
    """An engine's tokenizer. It has the methods that :class:`.Words` and :class:`.Template`
    need."""

    is_elsewhere = True
    """It encodes several texts at once."""

    def __init__(
        self,
        engine: TokenizingEngine,
        chat_template: str = "the server's own",
        eos_token: str = "",
        bos_token: str | None = None,
    ) -> None:
        """``bos_token``: the token that begins a text, if the engine adds one. A chat template
        writes it where it belongs."""
        self.chat_template = chat_template
        self.eos_token = eos_token
        self.bos_token = bos_token
        self._engine = engine
        self._encoded = lru_cache(KEPT_REPLIES)(engine.encode)
        self._decoded = lru_cache(KEPT_REPLIES)(engine.decode)
        self._tried: dict[str, bool] = {}
        """text -> whether it is read as a control token."""

    def __call__(
        self, text: str, add_special_tokens: bool = False, split_special_tokens: bool = False
    ) -> dict[str, list[int]]:
        if not text:
            return {"input_ids": []}
        encode = self._encoded if len(text) <= KEPT_CHARS else self._engine.encode
        return {"input_ids": list(encode(text, not split_special_tokens))}

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        if not ids:
            return ""
        decode = self._decoded if len(ids) <= KEPT_TOKENS else self._engine.decode
        return decode(tuple(ids))

    def apply_chat_template(
        self,
        messages: Sequence[Any],
        *,
        chat_template: str | None = None,
        tokenize: bool = False,
        add_generation_prompt: bool = False,
        tools: Sequence[Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """The engine renders with its own template, whatever ``chat_template`` is. ``tokenize``:
        what :meth:`TokenizingEngine.render_tokens` returns."""
        body: dict[str, Any] = {
            "messages": list(messages),
            "add_generation_prompt": add_generation_prompt,
        }
        if tools:
            body["tools"] = list(tools)
        if kwargs:
            body["chat_template_kwargs"] = kwargs
        try:
            return self._engine.render_tokens(body) if tokenize else self._engine.render(body)
        except RefusedError as error:
            if error.status not in REFUSALS:
                raise
            raise ValueError(str(error)) from error

    # --- control tokens ---------------------------------------------------------------------------

    def control_in(self, texts: Sequence[str]) -> frozenset[str]:
        """What the server reads as control tokens in these texts.

        Servers do not list their control tokens, so everything that looks like one is tested.
        """
        suspects = {match for text in texts for shape in SHAPES for match in shape.findall(text)}
        suspects |= self._odd
        known = self._tried
        new = self._try(sorted(suspects.difference(known)))
        results = known | new
        self._tried = new if len(known) > KEPT else results
        return frozenset(text for text in suspects if results[text])

    @cached_property
    def _odd(self) -> frozenset[str]:
        """The tokens of a template whose control tokens do not have one of the usual ``SHAPES``."""
        usual = {match for shape in SHAPES for match in shape.findall(self._sample)}
        if not self._sample or any(self._try(sorted(usual)).values()):
            return frozenset()
        texts = {self.decode([token]) for token in self(self._sample)["input_ids"]}
        return frozenset(text for text in texts if len(text) > 2 and not text.strip().isalnum())

    def _try(self, texts: Sequence[str]) -> dict[str, bool]:
        """For each text, whether it is a control token: a single token, whatever text is next to
        it."""
        between = self._end_of_turn() or self.eos_token
        if between and len(self(between)["input_ids"]) > 1:
            between = ""
        if between:
            results = {text: text == between for text in texts if between in text}
            rest = [text for text in texts if text not in results]
        else:
            # Each needs a request, so texts beyond the limit are taken for control tokens.
            results = dict.fromkeys(texts[ONE_BY_ONE:], True)
            rest = list(texts[:ONE_BY_ONE])
        for at in range(0, len(rest), TRIED):
            part = rest[at : at + TRIED]
            alone = self._read(part, between)
            in_letters = self._read([f"a{text}a" for text in part], between)
            doubled = self._read([text[0] + text + text[-1] for text in part], between)
            for text, ids, *others in zip(part, alone, in_letters, doubled, strict=True):
                results[text] = len(ids) == 1 and all(ids[0] in other for other in others)
        return results

    def _read(self, texts: Sequence[str], between: str) -> list[list[int]]:
        """The tokens of each of these texts. One request is enough if there is a token to put
        between them."""
        if between and len(texts) > 1:
            (mark,) = self(between)["input_ids"]
            runs: list[list[int]] = [[]]
            for token in self(between.join(texts))["input_ids"]:
                if token == mark:
                    runs.append([])
                else:
                    runs[-1].append(token)
            if len(runs) == len(texts):
                return runs
        return [self(text)["input_ids"] for text in texts]

    def stops(self) -> list[int]:
        """The known tokens that end a turn."""
        stops = set()
        for mark in (self._end_of_turn(), self.eos_token):
            ids = self(mark)["input_ids"] if mark else []
            if len(ids) == 1:
                stops.add(ids[0])
        return sorted(stops)

    def _end_of_turn(self) -> str | None:
        """The token that the template writes after an assistant's text, if it looks like a special
        token."""
        after = self._sample.rpartition(_ANSWER)[2].lstrip()
        first = self.decode(self(after)["input_ids"][:1])
        is_special = len(first) > 2 and first[0] in "<[" and after.startswith(first)
        return first if is_special else None

    @cached_property
    def _sample(self) -> str:
        """A short conversation, rendered by the template; empty if the template refuses it."""
        question = {"role": "user", "content": "x"}
        answer = {"role": "assistant", "content": _ANSWER}
        try:
            # A question follows, because some servers leave a last answer open.
            return str(self.apply_chat_template([question, answer, question]))
        except ValueError:
            return ""


# --- a local copy ---------------------------------------------------------------------------------


def local_tokenizer(source: Any) -> Any:
    """The tokenizer itself, or the one in a folder or on the hub; needs transformers, but neither
    torch nor weights."""
    if not isinstance(source, (str, os.PathLike)):
        return source
    try:
        from transformers import AutoTokenizer
    except ModuleNotFoundError as error:
        missing = UsageError(f"a local tokenizer needs {error.name}, which is not installed")
        raise advised(
            missing, "pip install transformers, or leave tokenizer= out: the server is asked"
        ) from error
    path, gguf = os.fspath(source), {}
    if path.endswith(".gguf"):
        path, gguf = os.path.dirname(path) or ".", {"gguf_file": os.path.basename(path)}
    try:
        return AutoTokenizer.from_pretrained(on_hub(path, None), trust_remote_code=False, **gguf)
    except (OSError, ValueError) as error:
        unread = UsageError(
            f"no tokenizer can be read at {os.fspath(source)!r}: {str(error)[:SHOWN]}"
        )
        advice = (
            "name the folder or hub id of the model's own, or leave tokenizer= out: the "
            "server is asked"
        )
        raise advised(unread, advice) from error


def stops_of(tokenizer: Any, template: Template, source: Any) -> list[int]:
    """The tokens that end a turn by tokenizer, template and (of a folder) generation config."""
    if isinstance(tokenizer, ServerTokenizer):
        return [] if template.plain else tokenizer.stops()
    return stop_ids(tokenizer, _generation_config(source), end_of_turn(template))


def _generation_config(source: Any) -> Any:
    if not isinstance(source, (str, os.PathLike)):
        return None
    from transformers import GenerationConfig

    try:
        return GenerationConfig.from_pretrained(os.fspath(source))
    except (OSError, ValueError):  # the folder has none
        return None
