"""A very small member that was taught by a large one: trained from scratch on the answers of the demo's SmolLM2.

It has a tokenizer of its own and about a hundredth of its teacher's parameters, and has read nothing but answers to one
kind of question, so it is kin to its teacher on that ground alone. Topics that are asked about later are kept from it.
The weights are kept in a temporary folder; nothing large is in git.
"""

from __future__ import annotations

import json
import math
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from langchain_specfuse.core.values import Turn
from langchain_specfuse.demo import demo_members
from langchain_specfuse.members.transformers import TransformersMember

WORDS = """
lion tiger bear wolf fox deer horse cow sheep goat pig dog cat rabbit mouse rat squirrel beaver otter seal
whale dolphin shark salmon trout eagle owl hawk crow robin sparrow pigeon duck goose swan chicken turkey
penguin ostrich frog toad snake lizard turtle crocodile bee ant spider butterfly elephant giraffe zebra camel
monkey gorilla panda kangaroo koala bat hedgehog mole badger moose bison donkey oak pine maple rose tulip lily
apple banana orange grape potato carrot onion tomato rice wheat bread cheese river lake mountain desert forest
ocean island volcano
"""
TOPICS = tuple(WORDS.split())
KEPT = ("wolf", "swan", "otter", "camel", "maple", "onion", "island", "trout")
"""Asked about later, never taught."""
FORMS = ("Describe the {} in three sentences.", "What is special about the {}?")
SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'user' %}<|im_start|>{{ m.content }}<|im_end|>"
    "{% else %}{{ m.content }}</s>{% endif %}{% endfor %}"
)
FOLDER = Path(tempfile.gettempdir()) / "specfuse-small-kin"
TOKENS, WIDTH, LAYERS, STEPS, BATCH, RATE = 64, 128, 2, 320, 16, 4e-3


def questions(topics: Any) -> list[str]:
    return [form.format(topic) for topic in topics for form in FORMS]


def taught() -> list[tuple[str, str]]:
    """Questions, and what the large one answers, greedily."""
    file = FOLDER / "taught.json"
    if file.exists():
        return [(asked, told) for asked, told in json.loads(file.read_text())]
    large = demo_members(dtype="bfloat16")[0]
    asked = questions(topic for topic in TOPICS if topic not in KEPT)
    random.Random(0).shuffle(asked)
    pairs: list[tuple[str, str]] = []
    for at in range(0, len(asked), 24):
        pairs += zip(asked[at : at + 24], generated(large, asked[at : at + 24]), strict=True)
        print(f"  {len(pairs)} of {len(asked)} answers", flush=True)
    FOLDER.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(pairs))
    return pairs


def generated(large: TransformersMember, asked: list[str]) -> list[str]:
    large.probe()
    assert large._weights is not None
    prompts = [large._prompt_ids([Turn("user", one)]) for one in asked]
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(one)) + one for one in prompts])
    mask = torch.tensor([[0] * (width - len(one)) + [1] * len(one) for one in prompts])
    with torch.inference_mode():
        made = large._weights.model.generate(
            ids, attention_mask=mask, max_new_tokens=TOKENS, do_sample=False,
            repetition_penalty=large.penalty or 1.0, eos_token_id=list(large.stops), pad_token_id=large.stops[0],
        )  # fmt: skip
    return [large.words.decode([token for token in row[width:].tolist() if token not in large.stops]) for row in made]


def small_kin() -> TransformersMember:
    """The small member, trained in about two minutes on one core the first time."""
    if not (FOLDER / "done").exists():
        _made()
    model = transformers.AutoModelForCausalLM.from_pretrained(FOLDER).eval()
    return TransformersMember(model, PreTrainedTokenizerFast.from_pretrained(FOLDER), name="small kin")


def _made() -> None:
    pairs = taught()
    tokenizer = _tokenizer([text for pair in pairs for text in pair])
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=WIDTH, intermediate_size=3 * WIDTH, num_hidden_layers=LAYERS,
        num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=2048, tie_word_embeddings=True,
        bos_token_id=0, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    _learn(model, tokenizer, pairs)
    model.save_pretrained(FOLDER)
    tokenizer.save_pretrained(FOLDER)
    (FOLDER / "done").write_text("")


def _tokenizer(lines: list[str]) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=1400, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(lines, trainer)
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>",
        additional_special_tokens=["<|im_start|>", "<|im_end|>"], clean_up_tokenization_spaces=False,
    )  # fmt: skip
    made.chat_template = TEMPLATE
    return made


def _learn(model: Any, tokenizer: PreTrainedTokenizerFast, pairs: list[tuple[str, str]]) -> None:
    chance, since = random.Random(0), time.perf_counter()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.98), weight_decay=0.05)
    model.train()
    for step in range(STEPS):
        warm = min(1.0, (step + 1) / 50)
        for group in optimizer.param_groups:
            group["lr"] = RATE * warm * (0.05 + 0.95 * (0.5 + 0.5 * math.cos(math.pi * step / STEPS)))
        rows = []
        for asked, told in chance.sample(pairs, BATCH):
            prompt = tokenizer(f"<|im_start|>{asked}<|im_end|>", add_special_tokens=False)["input_ids"]
            rows.append((prompt, tokenizer(told, add_special_tokens=False)["input_ids"]))
        width = max(len(prompt) + len(answer) for prompt, answer in rows)
        ids = [[*p, *a] + [1] * (width - len(p) - len(a)) for p, a in rows]
        labels = [[-100] * len(p) + a + [-100] * (width - len(p) - len(a)) for p, a in rows]
        loss = model(input_ids=torch.tensor(ids), labels=torch.tensor(labels)).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 49:
            print(f"  {step + 1}/{STEPS} loss {loss.item():.3f} {time.perf_counter() - since:.0f} s", flush=True)
