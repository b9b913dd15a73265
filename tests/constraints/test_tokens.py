"""A mask allows a token exactly if the grammar allows its bytes, with every tokenizer."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from members.tiny import tokenizer_of

from langchain_specfuse.constraints import Vocabulary, vocabulary
from langchain_specfuse.core.values import Constraint

from .schemas import schemas
from .test_calls import auto, calls
from .walks import allowed, json_schema

KINDS = ["bytes", "pieces", "unigram"]
CONSTRAINTS = [
    *(json_schema(schema) for schema in schemas(60, seed=5)[::9]),
    Constraint("regex", "[a-z ]{3,9}(é|😀)[0-9]+"),
    Constraint("choice", json.dumps(["yes", "yes, but", "no", "天空是蓝色的"])),
    Constraint("grammar", 'root ::= "sky " ("is" | "was") " blue" ("!" root)?'),
    calls(),
    auto(),
    Constraint("any_of", json.dumps([["calls", calls().body], ["json", ""]])),
]


def vocabulary_of(kind: str) -> tuple[Any, list[bytes], int, int]:
    """Return a vocabulary, the bytes of its tokens, the token that ends a turn, and its size."""
    tokenizer = tokenizer_of(kind)
    size = len(tokenizer) + 3  # models have more rows than tokens
    vocab = vocabulary(tokenizer, size, [tokenizer.eos_token_id])
    return vocab, vocab.tokens.words, tokenizer.eos_token_id, size


@pytest.mark.parametrize("kind", KINDS)
def test_the_bytes_of_a_token_are_what_decoding_adds(kind: str) -> None:
    tokenizer, shown = tokenizer_of(kind), 0
    _, words, stop, _ = vocabulary_of(kind)
    frame = tokenizer("x", add_special_tokens=False)["input_ids"]
    before = tokenizer.decode(frame)
    for token in range(len(tokenizer)):
        text = tokenizer.decode([*frame, token], skip_special_tokens=True)[len(before) :]
        if text and "\ufffd" not in text and token not in (*tokenizer.all_special_ids, stop):
            assert words[token].decode() == text
            shown += 1
    assert shown > 100


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("constraint", CONSTRAINTS, ids=lambda value: str(value)[:60])
def test_masks_allow_exactly_the_tokens_that_fit_whoever_wrote_the_text(
    kind: str, constraint: Constraint
) -> None:
    vocab, words, stop, size = vocabulary_of(kind)
    grammar, dice, text = vocab.grammar(constraint), random.Random(1), b""
    state = grammar.start()
    for step in range(9):
        # another member writes, perhaps text that no token contains
        if step % 4 == 3 and (follows := state.follows()):
            foreign = bytes([dice.choice(follows)])
            assert state.advance(foreign) == 1
            text += foreign
        mask, fork = state.mask(), state.fork()
        tokens = allowed(mask, size) if mask is not None else list(range(size))
        assert tokens == [token for token in range(size) if state.fork().put(token)]
        assert (stop in tokens) == state.may_end()
        assert not state.must_end() or tokens == [stop]
        by_text = grammar.start()
        assert by_text.advance(text) == len(text)
        assert (by_text.forced(), by_text.in_call) == (state.forced(), state.in_call)
        if not (on := [token for token in tokens if words[token]]):
            break
        token = dice.choice(on)
        assert state.put(token)
        text += words[token]
        assert mask is None or (fork.mask() == mask).all()


def test_a_character_may_be_split_over_tokens() -> None:
    vocab, words, _, size = vocabulary_of("pieces")
    state = vocab.grammar(Constraint("choice", '["ä😀"]')).start()
    for byte in "ä😀".encode():
        token = words.index(bytes([byte]))
        assert token in allowed(state.mask(), size)
        assert state.put(token)
    assert state.must_end()


def test_a_call_may_begin_inside_a_token() -> None:
    words = [
        b"Hi",
        b"<",
        b"<tool",
        b"_call>\n",
        b'_call>\n{"',
        b'_call>\n["',
        b"_call>\nx",
        b"</s>",
    ]
    words += [b"!<tool_call>\n{", b"", b"<tool_call>\n<", b"\n"]
    state = Vocabulary(words, [7]).grammar(auto()).start()
    wrong = 10  # it contains the whole beginning and continues incorrectly
    assert set(allowed(state.mask(), 12)) == set(range(12)) - {wrong}
    assert state.put(0)
    assert state.put(2)
    mask = allowed(state.mask(), 12)
    assert {3, 4, 7, 0} <= set(mask) and not {5, 6} & set(mask)
    for token in range(12):
        assert state.fork().put(token) == (token in mask), token
    assert not state.in_call and state.put(4) and state.in_call
    assert state.forced() == b'name": "'
    assert not state.may_end()
