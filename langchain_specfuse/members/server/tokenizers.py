"""A server's own tokenizer, with the face of a local one: encode, decode, render, each one question to the server.

So templates and seams work as they do in this process, at the price of a few short questions per draft. Knows nothing
of what the text is for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from ..errors import MemberError

KEPT = 8192
"""So many texts and runs of tokens are remembered; the same ones are asked for again and again."""

REFUSALS = (400, 422, 500)
"""What engines answer where a template raises. Anything else says nothing of the template."""


class RemoteTokenizer:
    """What :class:`.Words` and :class:`.Template` need of a tokenizer."""

    elsewhere = True
    """The server renders: it has its own time for that."""
    bos_token: str | None = None
    """What begins a text, where a server tells that; a chat template writes it where it belongs."""

    def __init__(
        self,
        encode: Callable[[str, bool], list[int]],
        decode: Callable[[list[int]], str],
        render: Callable[[Mapping[str, Any]], str],
        chat_template: str = "the server's own",
        eos_token: str = "",
    ) -> None:
        self.chat_template = self._own = chat_template
        self.eos_token = eos_token
        """Where the server tells it."""
        self._encode = lru_cache(maxsize=KEPT)(lambda text, marks: tuple(encode(text, marks)))
        self._decode = lru_cache(maxsize=KEPT)(lambda ids: decode(list(ids)))
        self._render = render

    def __call__(
        self, text: str, add_special_tokens: bool = False, split_special_tokens: bool = False
    ) -> dict[str, list[int]]:
        return {"input_ids": list(self._encode(text, not split_special_tokens)) if text else []}

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        return self._decode(tuple(ids)) if ids else ""

    def apply_chat_template(
        self,
        messages: Sequence[Any],
        *,
        chat_template: str | None = None,
        tokenize: bool = False,
        add_generation_prompt: bool = False,
        tools: Sequence[Any] | None = None,
        **kwargs: Any,
    ) -> str:
        body: dict[str, Any] = {"messages": list(messages), "add_generation_prompt": add_generation_prompt}
        if tools:
            body["tools"] = list(tools)
        if kwargs:
            body["chat_template_kwargs"] = kwargs
        if chat_template not in (None, self._own):
            body["chat_template"] = chat_template
        try:
            return self._render(body)
        except MemberError as error:
            if getattr(error, "status", 0) not in REFUSALS:
                raise
            raise ValueError(str(error)) from error

    def takes_templates(self) -> bool:
        """Whether the server renders with a template that it is given: some ignore it, and some refuse it."""
        mark = "specfuse-template-mark"
        try:
            return mark in self.apply_chat_template([{"role": "user", "content": "x"}], chat_template=mark)
        except ValueError:
            return False

    def if_served(self) -> RemoteTokenizer | None:
        """Itself; None where the server has it switched off, or stands behind a gateway that does not know it."""
        try:
            return self if self("a b")["input_ids"] else None
        except MemberError as error:
            if error.kind == "timeout":  # it may well have one
                raise
            return None

    def stops(self) -> list[int]:
        """The tokens that are known to end a turn."""
        marks = {self.end_of_turn(), self.eos_token} - {None, ""}
        return sorted({ids[0] for mark in marks if mark and len(ids := self(mark)["input_ids"]) == 1})

    def end_of_turn(self) -> str | None:
        """The token that the template writes behind an assistant's text, if that looks like one made for it."""
        mark = "specfuse-answer-mark"
        turns = [("user", "x"), ("assistant", mark), ("user", "x")]  # some servers leave a last answer open
        try:
            told = self.apply_chat_template([{"role": role, "content": text} for role, text in turns])
        except MemberError:  # it was not asked
            raise
        except Exception:  # the template refuses; then it tells nothing
            return None
        tail = told.rpartition(mark)[2].lstrip()
        first = self.decode(self(tail)["input_ids"][:1])
        return first if len(first) > 2 and first[0] in "<[" and tail.startswith(first) else None
