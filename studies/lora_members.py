"""LoRA specialists of one real model, SmolLM2-135M-Instruct, trained on one core in some minutes,
and that model.

Each adapter has read one skill and nothing else: the questions that are kept for training, one or
two at a time, with the loss on the answer. peft trains and saves it, llama.cpp reads it as
``"base.gguf+adapter.gguf"``. Adapters are kept in a temporary folder, by recipe.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from skills import part
from tiny_members import TEMPLATE, learn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from langchain_specfuse.demo import SMOLLM2, file_of
from langchain_specfuse.members.llamacpp.member import LlamaCppMember

sys.path.append(str(Path(__file__).resolve().parent.parent))
from tests.members.engines import folder as in_float32

STEPS = {"sums": 60, "words": 45, "spanish": 30, "orders": 20}
"""Training steps of each skill."""
TENSORS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
"""transformers' name of a layer -> llama.cpp's."""


@dataclass(frozen=True)
class Recipe:
    """How one specialist is made."""

    skill: str
    steps: int
    batch: int = 8
    rate: float = 2e-3
    rank: int = 16
    seed: int = 0

    def example(self, chance: random.Random, two: bool = False) -> tuple[str, str]:
        """A question of its skill, or two in one, and the right answer."""
        parts = [
            part(self.skill, chance, chance.choice((1, 2)), "training") for _ in range(1 + two)
        ]
        return " ".join(one.question for one in parts), " ".join(one.answer() for one in parts)

    @property
    def folder(self) -> Path:
        """The folder of its adapter."""
        chance = random.Random(0)
        content = [
            json.dumps(asdict(self)),
            *map(str, (self.example(chance, n % 3 == 0) for n in range(60))),
        ]
        name = hashlib.sha256("".join(content).encode()).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / "specfuse-lora" / f"{self.skill}-{name}"


RECIPES = tuple(Recipe(skill, steps) for skill, steps in STEPS.items())


def adapter(recipe: Recipe) -> Path:
    """The specialist's adapter for llama.cpp; trained now if it is not there."""
    file = recipe.folder / "adapter.gguf"
    if not file.exists():
        base = in_float32(SMOLLM2)
        # half the time of float32
        model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16)
        torch.manual_seed(recipe.seed)
        options = LoraConfig(r=recipe.rank, lora_alpha=2 * recipe.rank, target_modules="all-linear")
        adapted = get_peft_model(model, options)
        learn(recipe, adapted, AutoTokenizer.from_pretrained(base), warm=6)
        adapted.save_pretrained(recipe.folder)
        _convert(recipe.folder, AutoConfig.from_pretrained(base), file)
    return file


def _convert(folder: Path, base: Any, file: Path) -> None:
    """Convert an adapter of a Llama, as llama.cpp's ``convert_lora_to_gguf.py`` does, which is in no
    package."""
    writer = gguf.GGUFWriter(file.with_suffix(".half"), "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32(
        "adapter.lora.alpha", json.loads((folder / "adapter_config.json").read_text())["lora_alpha"]
    )
    heads = {"attn_q": base.num_attention_heads, "attn_k": base.num_key_value_heads}
    for path, tensor in load_file(folder / "adapter_model.safetensors").items():
        # "....layers.3.self_attn.q_proj.lora_A.weight"
        *_, layer, block, linear, matrix, _ = path.split(".")
        name, values = TENSORS[f"{block}.{linear}"], tensor.float().numpy()
        # llama.cpp turns neighbouring values of a head, transformers halves
        if name in heads and matrix == "lora_B":
            values = (
                values.reshape(heads[name], 2, -1, values.shape[1])
                .swapaxes(1, 2)
                .reshape(values.shape)
            )
        writer.add_tensor(
            f"blk.{layer}.{name}.weight.{matrix.lower()}", np.ascontiguousarray(values)
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file.with_suffix(".half").rename(file)


def members() -> list[LlamaCppMember]:
    """The specialists, each named by its skill, and the model that was not trained."""
    adapters = {one.skill: adapter(one) for one in RECIPES} | {"plain": None}
    return [
        LlamaCppMember(file_of(SMOLLM2), adapter=file, name=name, chat_template=TEMPLATE)
        for name, file in adapters.items()
    ]


def sizes() -> dict[str, Any]:
    """How the specialists were made."""
    return {one.skill: asdict(one) for one in RECIPES}
