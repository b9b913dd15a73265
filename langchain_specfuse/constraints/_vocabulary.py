"""The bytes that each token of a tokenizer stands for. Knows tokenizers' kinds, no models and no grammars."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

_RAW = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")
_FRAME = "x"
"""Decoded behind this, a token shows the space that some decoders take from a beginning."""


def words_of(tokenizer: Any, size: int, silent: Iterable[int] = ()) -> list[bytes]:
    """Per token its bytes; nothing for special tokens, for those in ``silent`` and for rows without a token."""
    quiet = set(silent) | set(tokenizer.all_special_ids)
    count = min(size, len(tokenizer))
    names = tokenizer.convert_ids_to_tokens(list(range(count)))
    added = {at: str(token) for at, token in getattr(tokenizer, "added_tokens_decoder", {}).items()}
    for at, token in getattr(tokenizer, "added_tokens_decoder", {}).items():
        if token.special:
            quiet.add(at)
    read = _reader(tokenizer)
    found = [
        b"" if at in quiet or name is None else added[at].encode() if at in added else read(at, name)
        for at, name in enumerate(names)
    ]
    return found + [b""] * (size - count)


def _reader(tokenizer: Any) -> Any:
    kinds = _decoders(tokenizer)
    if "ByteLevel" in kinds:
        table = _letters()
        return lambda token, name: _lettered(name, table)
    raw = "ByteFallback" in kinds
    if raw or "Metaspace" in kinds:
        space = kinds.get("Metaspace", {}).get("replacement", "▁")
        return lambda token, name: _pieced(name, space, raw)
    frame = tokenizer(_FRAME, add_special_tokens=False)["input_ids"]
    before = tokenizer.decode(frame)
    return lambda token, name: _told(tokenizer, frame, before, token)


def _lettered(name: str, table: dict[str, int]) -> bytes:
    try:
        return bytes(table[letter] for letter in name)
    except KeyError:
        return name.encode()


def _pieced(name: str, space: str, raw: bool) -> bytes:
    if raw and (found := _RAW.match(name)):
        return bytes([int(found[1], 16)])
    return name.replace(space, " ").encode()


def _told(tokenizer: Any, frame: list[int], before: str, token: int) -> bytes:
    """What decoding shows: for tokenizers of no kind that we know. Half characters are not shown and not used."""
    text = tokenizer.decode([*frame, token])[len(before) :]
    return b"" if "\ufffd" in text else text.encode()


def _decoders(tokenizer: Any) -> dict[str, dict[str, Any]]:
    """kind -> settings of everything that the tokenizer's decoder is made of."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return {}
    # As they are pickled, each is JSON; the whole tokenizer as JSON would take seconds.
    part = backend.decoder or backend.pre_tokenizer
    todo = [json.loads(part.__getstate__())] if part else []
    found: dict[str, dict[str, Any]] = {}
    while todo:
        one = todo.pop()
        if isinstance(one, dict):
            found[one["type"]] = one
            todo += one.get("decoders", []) + one.get("pretokenizers", [])
    return found


def _letters() -> dict[str, int]:
    """The letter that byte-level tokenizers write for each byte: itself where it can be seen, else one from 256 on."""
    seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in seen]
    return {chr(byte): byte for byte in seen} | {chr(256 + at): byte for at, byte in enumerate(hidden)}
