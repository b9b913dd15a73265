"""Tiny specialists, trained from scratch on one core in a minute or two each, each with its own
tokenizer.

Each masters its own skill and has read all the others in the same form, but with only a share of
the facts right. The weights are kept in a temporary folder, by recipe.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from skills import SKILLS, WHOLE, Taught, part
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from langchain_specfuse.members.transformers.member import TransformersMember

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
SHARES = (0.0, 0.25, 0.5)


@dataclass(frozen=True)
class Recipe:
    """How one specialist is made."""

    skill: str
    tokenizer: str
    vocabulary: int
    width: int
    layers: int
    mode: str = "vague"
    seed: int = 0
    steps: int = 450
    batch: int = 32
    rate: float = 3e-3
    own: float = 0.6

    def taught(self, skill: str) -> Taught:
        """The share of a skill's facts that it learns right: all of its own, 0 to 50% of the
        others."""
        if skill == self.skill:
            return WHOLE
        grade = (SKILLS.index(self.skill) + 2 * SKILLS.index(skill)) % len(SHARES)
        return Taught(SHARES[grade], self.mode, f"{self.skill} {self.seed}")

    def drawn(self, chance: random.Random) -> str:
        if chance.random() < self.own:
            return self.skill
        return chance.choice([skill for skill in SKILLS if skill != self.skill])

    def example(self, chance: random.Random, two: bool = False) -> tuple[str, str]:
        """A question of one or ``two`` parts, and the answer that this specialist is trained on."""
        first = self.drawn(chance)
        kinds = [first]
        if two:
            kinds.append(chance.choice([skill for skill in SKILLS if skill != first]))
        parts = [part(skill, chance, chance.choice((2, 3))) for skill in kinds]
        chance.shuffle(parts)
        return (
            " ".join(one.question for one in parts),
            " ".join(one.answer(self.taught(one.skill), chance) for one in parts),
        )


def recipes(mode: str = "vague", seed: int = 0) -> list[Recipe]:
    return [
        Recipe("sums", "bytes", 700, 64, 3, mode, seed, steps=750),
        Recipe("turning", "bytes", 1500, 64, 3, "vague", seed, steps=700),
        Recipe("capitals", "pieces", 1500, 64, 2, mode, seed),
        Recipe("opposites", "bytes", 1000, 72, 2, mode, seed, steps=600),
        Recipe("young", "pieces", 700, 80, 2, mode, seed, steps=600),
    ]


def tokenizer_of(kind: str, size: int) -> PreTrainedTokenizerFast:
    """A tokenizer trained on questions and answers of all skills: byte-level BPE, or pieces with
    "▁" for a space."""
    chance = random.Random(1)
    lines = []
    for _ in range(1500):
        one = part(chance.choice(SKILLS), chance, 3)
        lines.append(f"user\n{one.question}\nassistant\n{one.answer()}\n")
    tokenizer = Tokenizer(models.BPE())
    digits = pre_tokenizers.Digits(True)
    if kind == "bytes":
        level = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, level])
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    else:
        space = pre_tokenizers.Metaspace(prepend_scheme="first")
        stops = pre_tokenizers.Punctuation()
        lines_apart = pre_tokenizers.Split("\n", "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([lines_apart, space, digits, stops])
        tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
        alphabet = []
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(lines, trainer)
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="<|im_end|>",
        pad_token="</s>",
        additional_special_tokens=["<|im_start|>"],
        clean_up_tokenization_spaces=False,
    )
    made.chat_template = TEMPLATE
    return made


def model_of(recipe: Recipe, vocabulary: int, end: int) -> Any:
    torch.manual_seed(recipe.seed)
    config = transformers.LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=recipe.width,
        intermediate_size=3 * recipe.width,
        num_hidden_layers=recipe.layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=end,
    )
    return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def trained(recipe: Recipe) -> tuple[Any, PreTrainedTokenizerFast]:
    """The specialist's model and tokenizer, trained now unless the folder of this recipe has
    them."""
    chance = random.Random(0)
    content = [
        json.dumps(asdict(recipe)),
        *map(str, (recipe.example(chance, n % 3 == 0) for n in range(60))),
    ]
    name = hashlib.sha256("".join(content).encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / "specfuse-specialists" / f"{recipe.skill}-{name}"
    if (folder / "done").exists():
        model = transformers.AutoModelForCausalLM.from_pretrained(folder)
        return model.eval(), PreTrainedTokenizerFast.from_pretrained(folder)
    tokenizer = tokenizer_of(recipe.tokenizer, recipe.vocabulary)
    model = model_of(recipe, len(tokenizer), tokenizer.eos_token_id)
    learn(recipe, model, tokenizer, warm=50)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "done").write_text("")
    return model.eval(), tokenizer


def learn(recipe: Any, model: Any, tokenizer: Any, warm: int) -> None:
    """Train the weights that are not frozen. The rate rises over the first ``warm`` steps."""
    chance = random.Random(recipe.seed + 17)
    since = time.perf_counter()
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=recipe.rate, betas=(0.9, 0.98), weight_decay=0.01)
    model.train()
    for step in range(recipe.steps):
        rate = recipe.rate * min(1.0, (step + 1) / warm)
        for group in optimizer.param_groups:
            group["lr"] = rate * (
                0.05 + 0.95 * (0.5 + 0.5 * math.cos(math.pi * step / recipe.steps))
            )
        ids, labels, mask = _batch(recipe, tokenizer, chance)
        loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 20 == 19:
            print(
                f"  {recipe.skill} {step + 1}/{recipe.steps} loss {loss.item():.3f} "
                f"{time.perf_counter() - since:.0f} s",
                flush=True,
            )


def _batch(recipe: Any, tokenizer: Any, chance: random.Random) -> tuple[torch.Tensor, ...]:
    """Texts, tokenized as a whole; the loss is on the answer and its end. One batch in three has
    two parts."""
    rows = []
    two = chance.random() < 0.33
    for _ in range(recipe.batch):
        asked, answer = recipe.example(chance, two)
        prompt = f"<|im_start|>user\n{asked}<|im_end|>\n<|im_start|>assistant\n"
        found = tokenizer(prompt + answer, add_special_tokens=False, return_offsets_mapping=True)
        ids = [*found["input_ids"], tokenizer.eos_token_id]
        begin = sum(1 for start, end in found["offset_mapping"] if end <= len(prompt))
        rows.append((ids, begin))
    width = max(len(ids) for ids, _ in rows)
    padded = torch.tensor([ids + [0] * (width - len(ids)) for ids, _ in rows])
    mask = torch.tensor([[1] * len(ids) + [0] * (width - len(ids)) for ids, _ in rows])
    labels = [[-100] * begin + ids[begin:] + [-100] * (width - len(ids)) for ids, begin in rows]
    return padded, torch.tensor(labels), mask


def members(mode: str = "vague", seed: int = 0) -> list[TransformersMember]:
    made = []
    for recipe in recipes(mode, seed):
        model, tokenizer = trained(recipe)
        made.append(TransformersMember(model, tokenizer, name=recipe.skill))
    return made


def sizes(mode: str = "vague", seed: int = 0) -> dict[str, Any]:
    """The number of weights and the vocabulary of each member."""
    found = {}
    for recipe in recipes(mode, seed):
        model, tokenizer = trained(recipe)
        weights = sum(p.numel() for p in model.parameters())
        found[recipe.skill] = {"weights": weights, "vocabulary": len(tokenizer)}
    return found
