"""Text and tokens: nothing is lost between them, whichever member wrote it, whatever the tokenizer.

Some tokenizers have the shapes of Llama 3 and 4, Qwen, Mistral, Gemma and DeepSeek: text is split
and normalized before merging as theirs do it, the vocabularies are small and trained here.
"""

import unicodedata
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from langchain_specfuse.core.answer import is_safe
from langchain_specfuse.core.values import DraftJob, Sampling, Segment
from langchain_specfuse.members.text.words import BLOCK_CHARS, PartialDraft, Words
from tests.torture.texts import texts as hard

from .. import tiny

KINDS = ["bytes", "bytes-prefix", "pieces", "pieces-bare"]
"""Tokenizers that can encode any text (a unigram model without bytes cannot)."""
ME = "me"
WORDS = {kind: Words(tiny.tokenizer_of(kind)) for kind in [*KINDS, "unigram"]}
PIECES = [
    "The", " sky", " is blue", "\n", "\n\n", "  ", "    return", "\t", "42", ".", ", ", "天空", "😀", "👩‍👩‍👧", "🇩🇪",
    "é", "e\u0301", "한", "\u200d", "\xa0", "\u2028", "'s", "<|im_end|", "|-|", "http://a.b", "ß", "\r\n", "﷽", "𝒳",
]  # fmt: skip
text = st.one_of(
    st.lists(st.sampled_from(PIECES), max_size=12).map("".join),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\ufffd▁"), max_size=20),
)
few = settings(max_examples=max(1, settings.default.max_examples // 8))
half_the_examples = settings(max_examples=max(1, settings.default.max_examples // 2))
QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA_4 = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK = (
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"[!-/:-~]?\p{L}+|\s?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)


def byte_level(*patterns: str, nfc: bool = False) -> Tokenizer:
    """Return a byte-level BPE that first splits text by these patterns."""
    tokenizer = Tokenizer(models.BPE())
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*splits, pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
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
each = pytest.mark.parametrize("kind", [*KINDS, *SHAPES])


@cache
def words_of(kind):
    if kind not in SHAPES:
        return WORDS[kind]
    return Words(
        PreTrainedTokenizerFast(tokenizer_object=SHAPES[kind](), clean_up_tokenization_spaces=False)
    )


def seen(kind, texts):
    """Return the text as this tokenizer sees it: Qwen's composes characters."""
    return unicodedata.normalize("NFC", "".join(texts)) if kind == "Qwen" else "".join(texts)


def prompt_of(words):
    return words.encode("<|im_start|>user\nWhy is it so?<|im_end|>\n<|im_start|>assistant\n")


@each
@half_the_examples
@given(texts=st.lists(text | hard, min_size=1, max_size=4))
def test_text_of_others_is_conserved(kind, texts):
    words = words_of(kind)
    prompt = prompt_of(words)
    ids = words.answer_ids(ME, prompt, [Segment(part) for part in texts])
    assert ids[: len(prompt)] == prompt
    assert words.added(prompt, ids[len(prompt) :]) == seen(kind, texts)


@pytest.mark.parametrize("kind", KINDS)
@half_the_examples
@given(texts=st.lists(text, min_size=2, max_size=4))
def test_text_decoded_in_parts_is_the_text_decoded_at_once(kind, texts):
    """Text may be divided wherever a character is complete."""
    words = WORDS[kind]
    prompt = prompt_of(words)
    new = words.answer_ids(ME, prompt, [Segment("".join(texts))])[len(prompt) :]
    whole, ends = words.text_after(prompt, new)
    assert whole == "".join(texts)
    assert ends == sorted(ends)
    for count in range(1, len(new)):
        if ends[count - 1] > (ends[count - 2] if count > 1 else 0):
            head = words.text_after(prompt, new[:count])[0]
            assert head + words.text_after([*prompt, *new[:count]], new[count:])[0] == whole


def decoded_whole(words, context, new):
    """Decode every prefix again from its beginning: slow and simple."""
    text, ends, incomplete = "", [], 0
    for count in range(1, len(new) + 1):
        whole = words.added(context, new[:count])
        complete = whole.rstrip("\ufffd")
        incomplete = incomplete + 1 if len(complete) < len(whole) else 0
        complete = whole if incomplete > 4 else complete
        text = complete if len(complete) > len(text) else text
        ends.append(len(text))
    return text, ends


@each
@few
@given(
    texts=st.lists(text | hard, min_size=1, max_size=9), chance=st.randoms(use_true_random=False)
)
def test_long_drafts_are_decoded_as_if_they_were_decoded_whole(kind, texts, chance):
    """Ordinary text contains any tokens, including parts of characters and special tokens."""
    words = words_of(kind)
    prompt = prompt_of(words)
    new = words.after(prompt, "".join(texts) * 9)[:80]
    assert words.text_after(prompt, new) == decoded_whole(words, prompt, new)
    if "<0x00>" in words.tokenizer.get_vocab():
        return  # in this decoder, an invalid byte changes the bytes before it
    for _ in range(chance.randrange(40)):
        new.insert(chance.randrange(len(new) + 1), chance.randrange(len(words.tokenizer)))
    assert words.text_after(prompt, new) == decoded_whole(words, prompt, new)


@each
@half_the_examples
@given(texts=st.lists(text | hard, min_size=1, max_size=5), written=st.integers(0, 31))
def test_own_segments_keep_their_tokens_and_the_text_stays_whole(kind, texts, written):
    """Own tokens may be any tokens of the text: here one per byte or character."""
    words = words_of(kind)
    prompt = prompt_of(words)
    token_lists = [
        tuple(words.continuing(part)) if written >> k & 1 and part else None
        for k, part in enumerate(texts)
    ]
    segments = [
        Segment(part, tokens={ME: ids} if ids else {})
        for part, ids in zip(texts, token_lists, strict=True)
    ]
    ids = words.answer_ids(ME, prompt, segments)
    at = len(prompt)
    for kept in filter(None, token_lists):
        at = next(k for k in range(at, len(ids)) if tuple(ids[k : k + len(kept)]) == kept) + len(
            kept
        )
    if all(is_safe("".join(texts), sum(map(len, texts[:k]))) for k in range(1, len(texts))):
        assert words.added(prompt, ids[len(prompt) :]) == seen(kind, texts)


@pytest.mark.parametrize("kind", KINDS)
def test_text_of_others_is_tokenized_as_part_of_the_whole(kind):
    words = WORDS[kind]
    prompt = words.encode("user\nWhy?\nassistant\n")
    whole = "The sky is blue because the air scatters blue light.\n\n- first item\n- second item"
    expected = words.encode("user\nWhy?\nassistant\n" + whole)
    for cut in [at for at in range(1, len(whole)) if is_safe(whole, at)]:
        ids = words.answer_ids(ME, prompt, [Segment(whole[:cut]), Segment(whole[cut:])])
        assert ids == expected


@pytest.mark.parametrize("kind", [*KINDS, "unigram"])
def test_an_answer_that_grows_keeps_the_tokens_of_earlier_segments(kind):
    words = WORDS[kind]
    prompt = prompt_of(words)
    run = [Segment(f" sky {k} is blue," + "\n" * (k % 5 == 0)) for k in range(80)]
    assert len("".join(segment.text for segment in run)) > 2 * BLOCK_CHARS
    before = prompt
    for count in range(1, len(run) + 1):
        ids = words.answer_ids(ME, prompt, run[:count])
        shared = next(
            (k for k, pair in enumerate(zip(ids, before, strict=False)) if pair[0] != pair[1]),
            len(before),
        )
        assert shared >= len(before) - 3
        before = ids
    fresh = Words(tiny.tokenizer_of(kind))
    assert fresh.answer_ids(ME, prompt, run) == before


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("whole", ["😀", "天", "👩‍👩‍👧", "é", "a😀b", "\n😀", "한국"])
def test_incomplete_characters_are_held_back_until_they_are_complete(kind, whole):
    words = WORDS[kind]
    prompt = prompt_of(words)
    # Byte by byte, as models write rare characters.
    if kind.startswith("pieces"):
        new = [words.tokenizer.convert_tokens_to_ids(f"<0x{byte:02X}>") for byte in whole.encode()]
    else:
        letters = bytes_to_unicode()
        new = [words.tokenizer.convert_tokens_to_ids(letters[byte]) for byte in whole.encode()]
    for count in range(1, len(new) + 1):
        text, ends = words.text_after(prompt, new[:count])
        assert "\ufffd" not in text
        assert whole.startswith(text)
        assert len(ends) == count
    assert words.text_after(prompt, new)[0] == whole


@half_the_examples
@given(
    texts=st.lists(st.sampled_from([*PIECES, "##", "\n\n##", "STOP"]), min_size=1, max_size=12).map(
        "".join
    ),
    cuts=st.lists(st.integers(1, 5), min_size=1, max_size=30),
    size=st.integers(1, 8),
)
def test_a_draft_ends_at_the_same_place_however_its_tokens_come(texts, cuts, size):
    words = WORDS["bytes"]
    prompt = prompt_of(words)
    tokens = words.after(prompt, texts)
    job = DraftJob(tiny.query(), (), size, 40, Sampling(), ("STOP",))

    def drafted(counts):
        draft, at = PartialDraft(job, words, prompt, 40, end_text="\n\n##"), 0
        for count in counts:
            if draft.end is None:
                draft.add(tokens[at : at + count], [-1.0] * len(tokens[at : at + count]))
                at += count
        draft.end or draft.add((), ())
        return draft.end, draft.result()

    assert drafted([*cuts, len(tokens)]) == drafted([1] * len(tokens)) == drafted([len(tokens)])
