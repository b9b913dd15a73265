"""Texts that are hard for tokenizers and parsers: from people, in many scripts, and from broken
programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from hypothesis import strategies as st

PIECES = [
    # words and white space
    "The", " sky", " is blue", ".", ", ", "\n", "\n\n", "\r\n", "\r", "\t", "  ", "    return", " \n ", "\xa0",
    "\u3000",
    # numbers, code, marks of templates and calls
    "42", "3.14", "1e999", "$x^2$", "{\"a\": [1, \"b\\n\"]}", "<tool_call>\n", "<s>strike</s>", "<|im_end|>",
    "<|eot_id|>", "[INST]", "<end_of_turn>", "<|im_", "<unk>", "<0x0A>", "http://a.b/c?d=e#f", "'s", "``", "|-|",
    # composed and decomposed
    "é", "e\u0301", "ÅÅ\u030a", "ẍ", "\u0308", "ﬁ", "①", "Ω", "ß", "İi", "\u0344", "각", "\u1100\u1161\u11a8",
    # right to left, with marks that turn the direction
    "שלום", " مرحبا", "\u202eabc\u202c", "\u2067אב\u2069", "\u200f", "﷽",
    # scripts without spaces, and with marks
    "天空是蓝的", "これは", "ภาษาไทย", "नमस्ते", "हिन्दी", "မြန်မာ", "𝒳𐍈", "\U0002070e",
    # emoji of several code points
    "😀", "👩‍👩‍👧", "👋🏽", "❤️", "🇩🇪🇫🇷", "1️⃣", "🏴\U000e0067\U000e0062\U000e007f", "\u200d", "\ufe0f",
    # characters that should not be there
    "\x00", "\x1b[31m", "\x7f", "\x85", "\u2028", "\ufeff", "\ud7ff", "\ue000", "\uffff", "\U0010ffff", "\u00ad",
]  # fmt: skip
NOT_TEXT = "\ufffd▁"
"""U+FFFD stands for bytes that are no character; U+2581 is how half of all tokenizers write a
space."""

pieced = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)
wild = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=NOT_TEXT), max_size=24)
repeated = st.tuples(st.sampled_from(PIECES), st.integers(2, 300)).map(
    lambda drawn: drawn[0] * drawn[1]
)
texts = st.one_of(pieced, wild, repeated)
broken = st.one_of(
    texts, st.text(max_size=12), st.tuples(pieced, st.sampled_from("\ud800\udfff")).map("".join)
)
"""Includes halves of surrogate pairs, which JSON can spell but which are not text."""


def cut(text: str, places: list[int]) -> list[str]:
    """Return the text, cut at these places (modulo its length)."""
    seams = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[a:b] for a, b in zip(seams, seams[1:], strict=False)] or [""]


def places_in(value: Any) -> Iterator[tuple[Any, Any]]:
    """Return (list or object, key) of everything inside a JSON value."""
    inside: Iterable[tuple[Any, Any]]
    if isinstance(value, dict):
        inside = value.items()
    elif isinstance(value, list):
        inside = enumerate(value)
    else:
        inside = ()
    for key, inner in inside:
        yield value, key
        yield from places_in(inner)
