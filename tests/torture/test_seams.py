"""Seams between members with real tokenizers: Llama 3 and 4, Qwen, Gemma, Mistral and DeepSeek.

Not SmolLM2: it has no token for some bytes, so there are characters that it cannot read. Where a tokenizer cannot be
had the test is skipped and says why. ``make torture`` tries many more texts.
"""

from __future__ import annotations

import unicodedata
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langchain_specfuse.core.answer import is_safe
from langchain_specfuse.core.values import Segment
from langchain_specfuse.members._text import Words

from .texts import NOT_TEXT, cut, texts
from .vocabularies import CARRIED, tokenizer_of

pytestmark = pytest.mark.real
ME = "me"
PROMPT = "Question: why?\nAnswer:\n"
COMPOSED = ("Qwen-2",)
"""Tokenizers that read decomposed characters as composed ones."""
LONG = ("Llama-4", "Mistral-tekken")
"""Two hundred thousand tokens: they load for as long as all others together, and are of the same kind."""
NAMES = [pytest.param(name, marks=pytest.mark.long) if name in LONG else name for name in (*CARRIED, "Gemma-3-270M")]
each = pytest.mark.parametrize("name", NAMES)
places = st.lists(st.integers(0, 10**6), max_size=4)


@cache
def words_of(name: str) -> Words:
    try:
        return Words(tokenizer_of(name))
    except OSError as error:
        pytest.skip(str(error))


def seen(name: str, text: str) -> str:
    """The text as this tokenizer can know it."""
    return unicodedata.normalize("NFC", text) if name in COMPOSED else text


@each
@given(text=texts, at=places)
def test_text_of_others_is_conserved_wherever_it_is_cut(name, text, at):
    words = words_of(name)
    prompt = words.encode(PROMPT)
    ids = words.answer_ids(ME, prompt, [Segment(piece) for piece in cut(text, at)])
    assert ids[: len(prompt)] == prompt
    assert words.added(prompt, ids[len(prompt) :]) == seen(name, text)


@each
@given(text=texts, at=places)
def test_what_is_told_of_tokens_is_text_and_all_of_it(name, text, at):
    words = words_of(name)
    prompt = words.encode(PROMPT)
    new = words.answer_ids(ME, prompt, [Segment(text)])[len(prompt) :]
    whole, ends = words.told(prompt, new)
    assert whole == seen(name, text)
    assert (ends == sorted(ends) and len(ends) == len(new) and (not new or ends[-1] == len(whole))) and (
        not set(whole) & set(NOT_TEXT)
    )
    whole.encode()
    # Cut behind any token that completes a character: what was told and what is told next are all of it.
    good = [k for k in range(1, len(new)) if ends[k - 1] > (ends[k - 2] if k > 1 else 0)]
    for count in {good[place % len(good)] for place in at} if good else ():
        rest = words.told([*prompt, *new[:count]], new[count:])[0]
        assert words.told(prompt, new[:count])[0] + rest == whole


@each
@given(text=texts, at=places, own=st.integers(0, 31))
def test_own_tokens_are_kept_and_the_text_is_whole_at_safe_seams(name, text, at, own):
    words = words_of(name)
    prompt = words.encode(PROMPT)
    pieces = cut(text, [place for place in (one % (len(text) + 1) for one in at) if is_safe(text, place)])
    mine = [tuple(words.continuing(one)) if own >> k & 1 and one else () for k, one in enumerate(pieces)]
    segments = [Segment(one, tokens={ME: ids} if ids else {}) for one, ids in zip(pieces, mine, strict=True)]
    ids = words.answer_ids(ME, prompt, segments)
    place = len(prompt)
    for kept in filter(None, mine):
        place = next(k for k in range(place, len(ids)) if tuple(ids[k : k + len(kept)]) == kept) + len(kept)
    assert words.added(prompt, ids[len(prompt) :]) == seen(name, text)
