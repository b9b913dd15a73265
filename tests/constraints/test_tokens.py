"""What masks say of tokens is what the grammar says of their bytes, whatever the tokenizer."""

from __future__ import annotations

import json
import random

import pytest
from members.tiny import tokenizer_of

from langchain_specfuse.constraints import vocabulary
from langchain_specfuse.constraints._vocabulary import words_of
from langchain_specfuse.core.values import Constraint

from .schemas import schemas
from .walks import allowed, json_schema

KINDS = ["bytes", "bytes-prefix", "pieces", "unigram"]
CALLS = json.dumps(
    {
        "tools": [
            {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
            {"name": "why", "parameters": {"type": "object", "properties": {"q": {"type": "string"}}}},
        ],
        "parallel": True,
    }
    | {"begin": "<tool_call>\n", "end": "\n</tool_call>", "between": "\n"}
)
CONSTRAINTS = [
    *(json_schema(schema) for schema in schemas(60, seed=5)[::7]),
    Constraint("json"),
    Constraint("regex", "[a-z ]{3,9}(é|😀)[0-9]+"),
    Constraint("choice", json.dumps(["yes", "yes, but", "no", "天空是蓝色的"])),
    Constraint("grammar", 'root ::= "sky " ("is" | "was") " blue" ("!" root)?'),
    Constraint("calls", CALLS),
    Constraint("any_of", json.dumps([["calls", CALLS], ["json", ""]])),
]
AUTO = Constraint("any_of", json.dumps([["prose", ""], ["calls", CALLS]]))


def made(kind, size=None):
    tokenizer = tokenizer_of(kind)
    size = size or len(tokenizer) + 3  # models have more rows than tokens
    stops = [tokenizer.eos_token_id]
    return vocabulary(tokenizer, size, stops), words_of(tokenizer, size, stops), stops, size


@pytest.mark.parametrize("kind", KINDS)
def test_the_bytes_of_a_token_are_what_decoding_adds(kind):
    tokenizer = tokenizer_of(kind)
    words = words_of(tokenizer, len(tokenizer))
    frame = tokenizer("x", add_special_tokens=False)["input_ids"]
    before = tokenizer.decode(frame)
    shown = 0
    for token, word in enumerate(words):
        text = tokenizer.decode([*frame, token], skip_special_tokens=True)[len(before) :]
        if text and "\ufffd" not in text and token not in tokenizer.all_special_ids:
            assert word.decode() == text
            shown += 1
    assert shown > 100


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number", range(len(CONSTRAINTS)))
def test_a_mask_holds_exactly_the_tokens_that_put_accepts(kind, number):
    vocab, words, stops, size = made(kind)
    state, dice = vocab.grammar(CONSTRAINTS[number]).start(), random.Random(number)
    for _ in range(12):
        mask = state.mask()
        tokens = set(allowed(mask, size))
        accepted = {token for token in range(size) if state.fork().put(token)}
        assert tokens == accepted
        assert tokens.isdisjoint(token for token in range(size) if not words[token] and token not in stops)
        assert (stops[0] in tokens) == state.may_end()
        if state.must_end():
            assert tokens == set(stops)
        on = [token for token in tokens if token not in stops]
        if not on:
            break
        long = max(len(words[token]) for token in on)
        assert state.put(dice.choice([token for token in on if len(words[token]) >= min(long, 2)] or on))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number", range(len(CONSTRAINTS)))
def test_text_and_tokens_lead_to_the_same_place(kind, number):
    vocab, words, stops, size = made(kind)
    grammar, dice = vocab.grammar(CONSTRAINTS[number]), random.Random(number)
    by_token, text = grammar.start(), b""
    for step in range(14):
        if step % 4 == 3 and (follows := by_token.follows()):  # somebody else writes, perhaps what no token says
            foreign = bytes([dice.choice(follows)])
            assert by_token.advance(foreign) == 1
            text += foreign
        on = [token for token in allowed(by_token.mask(), size) if token not in stops]
        if not on:
            break
        token = dice.choice(on)
        assert by_token.put(token)
        text += words[token]
        by_text = grammar.start()
        assert by_text.advance(text) == len(text)
        assert (by_text.mask() == by_token.mask()).all()
        assert by_text.forced() == by_token.forced()
        assert by_text.may_end() == by_token.may_end()
        assert by_text.in_call == by_token.in_call


@pytest.mark.parametrize("number", range(len(CONSTRAINTS)))
def test_a_fork_is_independent_of_where_it_comes_from(number):
    vocab, _words, stops, size = made("bytes")
    state = vocab.grammar(CONSTRAINTS[number]).start()
    before = state.mask().copy()
    one, other = state.fork(), state.fork()
    token = next(token for token in allowed(before, size) if token not in stops)
    assert one.put(token)
    one.mask()
    assert (state.mask() == before).all()
    assert (other.mask() == before).all()
    assert other.put(token)
    assert (one.mask() == other.mask()).all()


def test_a_refused_token_moves_nothing():
    vocab, words, stops, size = made("bytes")
    state = vocab.grammar(json_schema({"type": "integer"})).start()
    token = next(at for at, word in enumerate(words) if word[:1].isalpha())
    before = state.mask()
    assert not state.put(token)
    assert not state.put(stops[0])
    assert not state.put(size + 5)
    assert not state.put(-1)
    assert (state.mask() == before).all()


def test_behind_the_end_there_is_nothing():
    vocab, _words, stops, size = made("bytes")
    state = vocab.grammar(json_schema({"type": "integer"})).start()
    assert state.advance("12") == 2
    assert state.put(stops[0])
    assert state.must_end()
    assert state.advance("3") == 0
    assert allowed(state.mask(), size) == stops
    assert state.fork().must_end()


def test_a_character_may_be_split_over_tokens():
    vocab, words, _stops, size = made("pieces")
    state = vocab.grammar(Constraint("choice", '["ä😀"]')).start()
    for byte in "ä😀".encode():
        token = words.index(bytes([byte]))
        assert token in allowed(state.mask(), size)
        assert state.put(token)
    assert state.must_end()


def test_a_call_may_begin_inside_a_token():
    words = [
        b"Hi",
        b"<",
        b"<tool",
        b"_call>\n",
        b'_call>\n{"',
        b'_call>\n["',
        b"_call>\nx",
        b"</s>",
        b"!<tool_call>\n{",
        b"",
    ]
    words += [b"<tool_call>\n<", b"\n"]
    from langchain_specfuse.constraints import Vocabulary

    state = Vocabulary(words, [7]).grammar(AUTO).start()
    refused = {10}  # goes on wrongly behind a beginning that it holds whole
    assert set(allowed(state.mask(), 12)) == set(range(12)) - refused
    assert state.put(0)
    assert state.put(2)
    mask = allowed(state.mask(), 12)
    assert {3, 4, 7, 0} <= set(mask)
    assert not {5, 6} & set(mask)
    for token in range(12):
        assert state.fork().put(token) == (token in mask), token
    assert not state.in_call
    assert state.put(4)
    assert state.in_call
    assert state.forced() == b'name": "'
    assert not state.may_end()


def test_free_text_allows_everything():
    vocab, _words, _stops, size = made("bytes")
    state = vocab.grammar(Constraint("prose")).start()
    assert state.mask() is None
    assert all(state.fork().put(token) for token in range(size))
    assert state.may_end()
    assert not state.must_end()
    assert state.forced() == b""


def test_a_vocabulary_is_made_once():
    tokenizer = tokenizer_of("bytes")
    assert vocabulary(tokenizer, 400, [1]) is vocabulary(tokenizer, 400, [1])
    assert vocabulary(tokenizer, 400, [1]) is not vocabulary(tokenizer, 401, [1])
    one = vocabulary(tokenizer, 400, [1])
    assert one.grammar(Constraint("json")) is one.grammar(Constraint("json"))
