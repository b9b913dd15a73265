"""The bytes that each token of a tokenizer stands for, and what masks need to know of them."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import cached_property, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

from ..errors import imported

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Mask: TypeAlias = "NDArray[np.int32]"
"""One bit per token, 32 to a word, the lowest first."""

_FRAME = "x"
"""Decoded after this, a token keeps the space that some decoders take from the beginning of a
text."""


def llguidance() -> Any:
    """The library that reads the grammars. It belongs to an extra and is imported when the first
    one is read."""
    return imported("llguidance", "a tool or an output format", "structured")


def preload(library: str) -> None:
    """Import the library now if it is installed. Importing reads files, which must not happen later
    on an event loop, where tools may be bound."""
    with suppress(ImportError):
        import_module(library)


class Tokens:
    """The bytes of every token of a vocabulary, and which tokens end a turn."""

    def __init__(self, words: Sequence[bytes], stop_ids: Sequence[int] = ()) -> None:
        self.words = list(words)
        self._stops = frozenset(stop_ids)
        for stop in self._stops:
            if stop < len(self.words):
                self.words[stop] = b""
        self._crossing: dict[tuple[bytes, int], list[int]] = {}
        self._lock = threading.Lock()

    def stops(self, token: int) -> bool:
        return token in self._stops

    @cached_property
    def tokenizer(self) -> Any:
        """llguidance's form of the vocabulary, with a token for each byte behind it, so that any
        text can be read."""
        library = llguidance()
        return library.LLTokenizer(library.TokenizerWrapper(_Table(self.words)))

    @cached_property
    def stop_mask(self) -> Mask:
        return self._bits([stop for stop in self._stops if stop < len(self.words)])

    def all_but(self, tokens: Sequence[int]) -> Mask:
        import numpy as np

        size = len(self.words)
        mask = np.full(-(-size // 32), -1, dtype=np.int32)
        if size % 32:
            mask[-1] = (1 << size % 32) - 1
        return mask & ~self._bits(tokens)

    def _bits(self, tokens: Sequence[int]) -> Mask:
        import numpy as np  # here: without a constraint it may be missing

        bits = np.zeros(-(-len(self.words) // 32) * 32, dtype=np.uint8)
        bits[list(tokens)] = 1
        return np.packbits(bits, bitorder="little").view(np.int32)

    def crossing(self, begin: bytes, seen: int) -> list[int]:
        """The tokens that finish ``begin``, of which ``seen`` bytes are written, and go on after
        it."""
        with self._lock:
            if (begin, seen) not in self._crossing:
                # What is written may end with several beginnings of it, as "<<" does before "<<|".
                sizes = [size for size in range(1, seen + 1) if begin[:seen].endswith(begin[:size])]
                rests = tuple(begin[size:] for size in sizes)
                self._crossing[begin, seen] = [
                    token
                    for token, word in enumerate(self.words)
                    if begin in word[:-1]
                    or any(word.startswith(rest) and word != rest for rest in rests)
                ]
            return self._crossing[begin, seen]


class _Table:
    """A vocabulary as llguidance wants to be given one."""

    def __init__(self, words: Sequence[bytes]) -> None:
        self._size = len(words)
        self.tokens = [*words, *(bytes([byte]) for byte in range(256)), b"<end>"]
        self.eos_token_id = len(self.tokens) - 1
        self.bos_token_id = None
        self.special_token_ids = [self.eos_token_id]

    def __call__(self, text: bytes | str) -> list[int]:
        return [self._size + byte for byte in (text if isinstance(text, bytes) else text.encode())]


# --- reading a tokenizer --------------------------------------------------------------------------


def words_of(tokenizer: Any, size: int, silent: Collection[int] = ()) -> list[bytes]:
    """The bytes of each token; none for special tokens, for those in ``silent`` and for rows
    without a token."""
    if hasattr(tokenizer, "token_bytes"):  # it knows them
        return [b"" if at in silent else word for at, word in enumerate(tokenizer.token_bytes())]
    count, added = min(size, len(tokenizer)), getattr(tokenizer, "added_tokens_decoder", {})
    quiet = {
        *silent,
        *tokenizer.all_special_ids,
        *(at for at, token in added.items() if token.special),
    }
    quiet |= {
        at
        for at, name in enumerate(tokenizer.convert_ids_to_tokens(list(range(count))))
        if name is None
    }
    try:
        read = (
            llguidance().LLTokenizer(tokenizer.backend_tokenizer.to_str(), slices=[]).decode_bytes
        )
    except (AttributeError, ValueError):  # of a kind that llguidance does not read
        frame = tokenizer(_FRAME, add_special_tokens=False)["input_ids"]
        read = partial(_decoded, tokenizer, frame, tokenizer.decode(frame))
    return [b"" if at in quiet else read([at]) for at in range(count)] + [b""] * (size - count)


def _decoded(tokenizer: Any, frame: list[int], before: str, tokens: list[int]) -> bytes:
    """What decoding shows. Half characters are not shown and not used."""
    text = tokenizer.decode([*frame, *tokens])[len(before) :]
    return b"" if "\ufffd" in text else text.encode()
