"""Text is conserved at every seam, with tokenizers of the shapes of Llama 3 and 4, Qwen, Mistral, Gemma and DeepSeek.

The shapes are theirs (how text is split and normalized before merging), the vocabularies are small and trained here.
"""

from __future__ import annotations

import unicodedata
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from langchain_specfuse.core.answer import is_safe
from langchain_specfuse.core.values import Segment
from langchain_specfuse.members.text.words import Words
from tests.members import tiny

from .texts import cut, texts

ME = "me"
PROMPT = "Question: why?\nAnswer:\n"
QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA_4 = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK = r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+", r"[!-/:-~]?\p{L}+|\s?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def byte_level(*patterns: str, nfc: bool = False) -> Tokenizer:
    """A byte-level BPE that splits text by these patterns first."""
    tokenizer = Tokenizer(models.BPE())
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    if nfc:
        tokenizer.normalizer = normalizers.NFC()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(tiny.CORPUS, trainer)
    return tokenizer


SHAPES = {
    "Llama 3": lambda: byte_level(QWEN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")),
    "Llama 4": lambda: byte_level(LLAMA_4),
    "Qwen": lambda: byte_level(QWEN, nfc=True),
    "DeepSeek": lambda: byte_level(*DEEPSEEK),
    "Mistral": lambda: tiny.metaspace(480),
    "Gemma": lambda: tiny.metaspace(500, prepend="never"),
}
each = pytest.mark.parametrize("name", SHAPES)
places = st.lists(st.integers(0, 10**6), max_size=4)


@cache
def words_of(name: str) -> Words:
    return Words(PreTrainedTokenizerFast(tokenizer_object=SHAPES[name](), clean_up_tokenization_spaces=False))


def seen(name: str, text: str) -> str:
    """The text as this tokenizer can know it: Qwen's composes characters."""
    return unicodedata.normalize("NFC", text) if name == "Qwen" else text


@each
@given(text=texts, at=places)
def test_text_of_others_is_conserved_wherever_it_is_cut(name, text, at):
    words = words_of(name)
    prompt = words.encode(PROMPT)
    ids = words.answer_ids(ME, prompt, [Segment(piece) for piece in cut(text, at)])
    assert ids[: len(prompt)] == prompt
    assert words.added(prompt, ids[len(prompt) :]) == seen(name, text)


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
