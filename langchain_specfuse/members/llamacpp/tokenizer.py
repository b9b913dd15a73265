"""The tokenizer and chat template of a GGUF file, with the few methods of transformers' tokenizers
that we use."""

from __future__ import annotations

import ctypes
import datetime
import json
from collections.abc import Sequence
from ctypes import c_int32
from functools import cache
from typing import Any, NamedTuple

from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import CallBlock, Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

_UNKNOWN, _CONTROL, _USER = 1, 8, 16
"""Attributes of tokens, by llama.cpp's numbers."""


class AddedToken(NamedTuple):
    """A token that is recognised anywhere in a text, with the attributes that transformers uses."""

    content: str
    special: bool


class GgufTokenizer:
    """``lib``: llama.cpp; ``model``: its handle of the loaded file."""

    def __init__(self, lib: Any, model: int) -> None:
        self._lib, self._model, self._vocab = lib, model, lib.llama_model_get_vocab(model)
        size = lib.llama_vocab_n_tokens(self._vocab)
        self._piece = cache(self._read_piece)
        attributes = [lib.llama_vocab_get_attr(self._vocab, at) for at in range(size)]
        self.all_special_ids = [at for at, bits in enumerate(attributes) if bits & _CONTROL]
        ends = {*self.all_special_ids, lib.llama_vocab_eos(self._vocab)} - {-1}
        self.eos_token_id = sorted(at for at in ends if lib.llama_vocab_is_eog(self._vocab, at))
        """All tokens that end a turn."""
        self._special = frozenset(self.all_special_ids)
        self._numbers = {self._name(at): at for at in self.all_special_ids}
        self.all_special_tokens = list(self._numbers)
        self.added_tokens_decoder: dict[int, AddedToken] = {}
        """The tokens that are recognised in a text."""
        for at, bits in enumerate(attributes):
            if bits & (_UNKNOWN | _CONTROL | _USER):
                self.added_tokens_decoder[at] = AddedToken(self._name(at), not bits & _USER)
        self._size = size
        self.chat_template = self.meta("tokenizer.chat_template")
        self._marks = {
            name: self._piece(at, True).decode() if at >= 0 else ""
            for name, at in (
                ("bos_token", lib.llama_vocab_bos(self._vocab)),
                ("eos_token", lib.llama_vocab_eos(self._vocab)),
            )
        }
        self.bos_token = (
            self._marks["bos_token"] if lib.llama_vocab_get_add_bos(self._vocab) else None
        )
        """The token that every text must begin with, if there is one."""

    def __len__(self) -> int:
        return int(self._size)

    def meta(self, key: str) -> str | None:
        """A value of the file's metadata, as text."""
        size = self._lib.llama_model_meta_val_str(self._model, key.encode(), None, 0)
        if size < 0:
            return None
        text = ctypes.create_string_buffer(size + 1)
        self._lib.llama_model_meta_val_str(self._model, key.encode(), text, len(text))
        return text.value.decode("utf-8", "replace")

    def _name(self, token: int) -> str:
        return self._piece(token, True).decode("utf-8", "replace")

    def _read_piece(self, token: int, special: bool) -> bytes:
        text = ctypes.create_string_buffer(512)
        size = self._lib.llama_token_to_piece(self._vocab, token, text, len(text), 0, special)
        return text.raw[: max(size, 0)]

    def token_bytes(self) -> list[bytes]:
        """The bytes of each token; none for special tokens."""
        return [b"" if at in self._special else self._piece(at, True) for at in range(self._size)]

    def convert_tokens_to_ids(self, mark: str) -> int:
        return self._numbers[mark]

    def __call__(
        self, text: str, *, split_special_tokens: bool = False, **_: Any
    ) -> dict[str, list[int]]:
        if not text:
            return {"input_ids": []}
        data = text.encode("utf-8", "replace")
        ids = (c_int32 * (len(data) + 8))()
        marks = not split_special_tokens
        size = self._lib.llama_tokenize(self._vocab, data, len(data), ids, len(ids), False, marks)
        return {"input_ids": ids[: max(size, 0)]}

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False, **_: Any) -> str:
        shown = [at for at in ids if not (skip_special_tokens and at in self._special)]
        return b"".join(self._piece(at, True) for at in shown).decode("utf-8", "replace")

    def apply_chat_template(
        self, messages: Any, *, chat_template: str | None = None, **more: Any
    ) -> str:
        more = {key: value for key, value in more.items() if key != "tokenize"}
        template = _compiled(chat_template or self.chat_template or "")
        text = str(template.render(**{"messages": messages, "tools": None, **self._marks, **more}))
        if self.bos_token is None or text.startswith(self.bos_token):
            return text
        return self.bos_token + text


# --- chat templates -------------------------------------------------------------------------------


class _Generation(Extension):
    """``{% generation %}``, a mark for training, which has no effect here."""

    tags = frozenset({"generation"})  # type: ignore[assignment]

    def parse(self, parser: Parser) -> Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return CallBlock(self.call_method("_same"), [], [], body).set_lineno(line)

    def _same(self, caller: Any) -> Any:
        return caller()


@cache
def _compiled(source: str) -> Any:
    """A template, compiled as transformers does it: in a sandbox, with the functions that templates
    use."""
    sandbox = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    sandbox.filters["tojson"] = _to_json
    sandbox.globals |= {
        "raise_exception": _refuse,
        "strftime_now": lambda how: datetime.datetime.now().strftime(how),
    }
    return sandbox.from_string(source)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **more: Any) -> str:
    """JSON without the escapes for HTML that jinja's own filter writes."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **more)


def _refuse(message: str) -> None:
    raise ValueError(message)
