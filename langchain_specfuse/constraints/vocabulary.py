"""The bytes of each token of a tokenizer, and masks over its tokens."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
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
"""Tokens are decoded after this text, because some decoders remove a space from the beginning of a
text."""


def llguidance() -> Any:
    """The library that compiles grammars. It belongs to an extra, and is imported with the first
    grammar."""
    return imported("llguidance", "a tool or an output format", "structured")


def preload(library: str) -> None:
    """Import the library now if it is installed. Importing reads files, which would later block an
    event loop on which tools are bound."""
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
        """llguidance's form of the vocabulary, followed by a token for each byte, so that it can
        read any text."""
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
        import numpy as np  # not needed, and maybe not installed, without a constraint

        bits = np.zeros(-(-len(self.words) // 32) * 32, dtype=np.uint8)
        bits[list(tokens)] = 1
        return np.packbits(bits, bitorder="little").view(np.int32)

    def crossing(self, begin: bytes, seen: int) -> list[int]:
        """The tokens that complete ``begin`` and continue after it, if ``seen`` bytes of it are
        already written."""
        with self._lock:
            if (begin, seen) not in self._crossing:
                self._crossing[begin, seen] = self._find_crossing(begin, seen)
            return self._crossing[begin, seen]

    def _find_crossing(self, begin: bytes, seen: int) -> list[int]:
        # The text may end with several beginnings of it, as "<<" does before "<<|".
        sizes = [size for size in range(1, seen + 1) if begin[:seen].endswith(begin[:size])]
        rests = [begin[size:] for size in sizes]

        def crosses(word: bytes) -> bool:
            if begin in word[:-1]:
                return True
            return any(word.startswith(rest) and word != rest for rest in rests)

        return [token for token, word in enumerate(self.words) if crosses(word)]


BYTES = Tokens(())
"""The vocabulary whose tokens are the bytes."""


class _Table:
    """A vocabulary with the interface that llguidance expects."""

    def __init__(self, words: Sequence[bytes]) -> None:
        self._size = len(words)
        self.tokens = [*words, *(bytes([byte]) for byte in range(256)), b"<end>"]
        self.eos_token_id = len(self.tokens) - 1
        self.bos_token_id = None
        self.special_token_ids = [self.eos_token_id]

    def __call__(self, text: bytes | str) -> list[int]:
        data = text.encode() if isinstance(text, str) else text
        return [self._size + byte for byte in data]


# --- reading a tokenizer --------------------------------------------------------------------------


def words_of(tokenizer: Any, size: int, silent: Collection[int] = ()) -> list[bytes]:
    """The bytes of each token; empty for special tokens, for those in ``silent`` and for rows
    without a token."""
    if hasattr(tokenizer, "token_bytes"):
        all_words = enumerate(tokenizer.token_bytes())
        return [b"" if token in silent else word for token, word in all_words]
    count = min(size, len(tokenizer))
    empty = {*silent, *tokenizer.all_special_ids}
    added = getattr(tokenizer, "added_tokens_decoder", {})
    empty |= {token for token, description in added.items() if description.special}
    names = tokenizer.convert_ids_to_tokens(list(range(count)))
    empty |= {token for token, name in enumerate(names) if name is None}
    decode = _decoder(tokenizer)
    words = [b"" if token in empty else decode([token]) for token in range(count)]
    return words + [b""] * (size - count)


def _decoder(tokenizer: Any) -> Callable[[list[int]], bytes]:
    try:
        serialized = tokenizer.backend_tokenizer.to_str()
        decode: Callable[[list[int]], bytes]
        decode = llguidance().LLTokenizer(serialized, slices=[]).decode_bytes
    except (AttributeError, ValueError):  # a kind of tokenizer that llguidance cannot read
        frame = tokenizer(_FRAME, add_special_tokens=False)["input_ids"]
        return partial(_decoded, tokenizer, frame, tokenizer.decode(frame))
    return decode


def _decoded(tokenizer: Any, frame: list[int], before: str, tokens: list[int]) -> bytes:
    """The bytes of the decoded text; empty for half a character, which decoding does not show."""
    text = tokenizer.decode([*frame, *tokens])[len(before) :]
    return b"" if "\ufffd" in text else text.encode()
