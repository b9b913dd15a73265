"""SmolLM2-135M-Instruct, tuned to one skill at a time with LoRA on one core: members whose strengths are known.

Each specialist reads its own skill only, a question or two of it at a time (``narrow``), or also what the untuned model
says to ordinary questions, so that it stays as it was elsewhere (``kept``). The loss is on the answer. Adapters are in
a temporary folder by recipe, and merged into a copy of the weights to be hosted. Nothing large is in git.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import pickle
import random
import re
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from tiny_members import TEMPLATE, _batch
from transcripts import QUESTIONS
from tuned_skills import SKILLS, part

from langchain_specfuse.core.values import Draft, DraftJob, Failure, Scored, ScoreJob
from langchain_specfuse.demo import demo_members
from langchain_specfuse.members.transformers import TransformersMember

PLAIN = "plain"
"""The member that was not tuned."""
PROMPT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"


@dataclass(frozen=True)
class Recipe:
    """How one specialist is made."""

    skill: str
    steps: int = 60
    batch: int = 12
    rate: float = 2e-3
    rank: int = 16
    seed: int = 0
    ordinary: float = 0.0
    """How much of what it reads are the untuned model's own answers."""

    def example(self, chance: random.Random, two: bool = False) -> tuple[str, str]:
        """A question of its own skill and the answer; of two parts if wanted."""
        if self.ordinary and chance.random() < self.ordinary:
            return chance.choice(first_sentences())
        sizes = (1, 1) if two else (chance.choice((1, 2, 2)),)
        parts = [part(self.skill, chance, size, held=False) for size in sizes]
        return " ".join(one.question for one in parts), " ".join(one.answer() for one in parts)


STEPS = {"sums": 60, "words": 45, "spanish": 30, "orders": 20}
KEPT_STEPS = {"sums": 40, "words": 36, "spanish": 30, "orders": 20}
RECIPES = {
    "narrow": tuple(Recipe(skill, steps=STEPS[skill]) for skill in SKILLS),
    "kept": tuple(Recipe(skill, steps=KEPT_STEPS[skill], ordinary=0.35) for skill in SKILLS),
}
PLACE = Path(tempfile.gettempdir()) / "specfuse-tuned"


def base() -> tuple[Any, Any]:
    """The untuned model in bfloat16, and its tokenizer."""
    folder = os.fspath(demo_members()[0].source.model)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    return model.eval(), transformers.AutoTokenizer.from_pretrained(folder)


def adapter_folder(recipe: Recipe) -> Path:
    """Where its adapter is kept: by the recipe and by what it reads."""
    chance = random.Random(0)
    made = asdict(recipe) if recipe.ordinary else {k: v for k, v in asdict(recipe).items() if k != "ordinary"}
    told = [json.dumps(made), *map(str, (recipe.example(chance, n % 3 == 0) for n in range(60)))]
    name = hashlib.sha256("".join(told).encode()).hexdigest()[:16]
    return PLACE / f"{recipe.skill}-{name}"


@cache
def first_sentences() -> list[tuple[str, str]]:
    """Ordinary questions, each with the untuned model's first sentence to it; said once and kept."""
    kept = PLACE / PLAIN / "first-sentences.json"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        said = {question: answer for question in QUESTIONS if (answer := _first_sentence(question))}
        kept.write_text(json.dumps(said, indent=1))
    return list(json.loads(kept.read_text()).items())


def _first_sentence(question: str) -> str:
    """Up to the first full stop; nothing where there is none within 32 tokens."""
    model, tokenizer = _plain()
    prompt = tokenizer(PROMPT.format(question), add_special_tokens=False, return_tensors="pt")
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    with torch.inference_mode():
        told = model.generate(**prompt, max_new_tokens=32, do_sample=False, eos_token_id=end, pad_token_id=end)
    text = tokenizer.decode(told[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)
    found = re.match(r"[^\n]*?[.!?](?=\s|$)", text)
    return found.group() if found else ""


@cache
def _plain() -> tuple[Any, Any]:
    return base()


def tuned(recipe: Recipe) -> tuple[Any, Any]:
    """The specialist's merged model, and the tokenizer; trained now if there is no adapter of this recipe."""
    folder = adapter_folder(recipe)
    model, tokenizer = base()
    if not (folder / "done.json").exists():
        torch.manual_seed(recipe.seed)
        wanted = LoraConfig(r=recipe.rank, lora_alpha=2 * recipe.rank, target_modules="all-linear", lora_dropout=0.0)
        adapted = get_peft_model(model, wanted)
        took = _learn(recipe, adapted, tokenizer)
        adapted.save_pretrained(folder)
        (folder / "done.json").write_text(json.dumps(took))
    else:
        adapted = PeftModel.from_pretrained(model, folder)
    return adapted.merge_and_unload().eval(), tokenizer


def _learn(recipe: Recipe, model: Any, tokenizer: Any) -> dict[str, float]:
    """What it took: answer tokens read, and the seconds of it."""
    chance, since, read = random.Random(recipe.seed + 17), time.perf_counter(), 0
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=recipe.rate, weight_decay=0.0)
    model.train()
    for step in range(recipe.steps):
        warm = min(1.0, (step + 1) / 6)
        for group in optimizer.param_groups:
            group["lr"] = recipe.rate * warm * (0.05 + 0.95 * (0.5 + 0.5 * math.cos(math.pi * step / recipe.steps)))
        ids, labels, mask = _batch(recipe, tokenizer, chance)  # type: ignore[arg-type]
        loss = _loss(model.get_base_model(), ids, labels, mask)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        read += int((labels >= 0).sum())
        if step % 10 == 9:
            print(f"  {recipe.skill} {step + 1}/{recipe.steps} loss {loss.item():.3f} {read} tokens "
                  f"{time.perf_counter() - since:.0f} s", flush=True)  # fmt: skip
    return {"answer_tokens": read, "seconds": round(time.perf_counter() - since, 1)}


def _loss(model: Any, ids: torch.Tensor, labels: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Of the answers alone: the head, a fifth of the model, is computed where there is something to learn."""
    hidden = model.model(input_ids=ids, attention_mask=mask).last_hidden_state[:, :-1]
    told = labels[:, 1:] >= 0
    return torch.nn.functional.cross_entropy(model.lm_head(hidden[told]).float(), labels[:, 1:][told])


# --- hosting ----------------------------------------------------------------------------------------------------


class Remembering(TransformersMember):
    """A member that is asked the same again in many cells: it is greedy, so what it said once it would say again."""

    def remember(self, kept: Path) -> None:
        self._kept = kept
        self._said: dict[Any, Any] = pickle.loads(kept.read_bytes()) if kept.exists() else {}

    def save(self) -> None:
        aside = self._kept.with_suffix(".half")
        aside.write_bytes(pickle.dumps(self._said))
        aside.replace(self._kept)

    def draft(self, jobs: Sequence[DraftJob]) -> list[Draft | Failure]:
        keys = [(self._place(job), job.segment_tokens, min(job.max_tokens, 3 * job.segment_tokens)) for job in jobs]
        new = [(key, job) for key, job in zip(keys, jobs, strict=True) if key not in self._said]
        replies = super().draft([job for _, job in new]) if new else []
        self._said.update(zip((key for key, _ in new), replies, strict=True))
        return [self._said[key] for key in keys]

    def score(self, jobs: Sequence[ScoreJob]) -> list[Scored | Failure]:
        open_ = [replace(job, candidates=tuple(c for c in job.candidates if self._about(job, c) not in self._said))
                 for job in jobs]  # fmt: skip
        new = [job for job in open_ if job.candidates]
        for job, reply in zip(new, super().score(new) if new else [], strict=True):
            assert isinstance(reply, Scored), reply
            for candidate, logprobs in zip(job.candidates, reply.logprobs, strict=True):
                self._said[self._about(job, candidate)] = logprobs
        return [Scored(tuple(self._said[self._about(job, c)] for c in job.candidates)) for job in jobs]

    def _place(self, job: DraftJob | ScoreJob) -> Any:
        """The question, and the answer as this member reads it: others' text, its own tokens."""
        answer = tuple((one.text, one.ended, one.tokens.get(self.name)) for one in job.answer)
        return tuple(turn.text for turn in job.query.turns), answer

    def _about(self, job: ScoreJob, candidate: Any) -> Any:
        return self._place(job), candidate.text, candidate.ended


def members(mode: str) -> list[Remembering]:
    """The specialists, each named by its skill, and the untuned model."""
    made = [_hosted(recipe.skill, *tuned(recipe), adapter_folder(recipe)) for recipe in RECIPES[mode]]
    return [*made, _hosted(PLAIN, *base(), PLACE / PLAIN)]


def _hosted(name: str, model: Any, tokenizer: Any, place: Path) -> Remembering:
    member = Remembering(model, tokenizer, name=name, chat_template=TEMPLATE)
    place.mkdir(parents=True, exist_ok=True)
    member.remember(place / f"said-{_code()}.pickle")
    return member


def training(mode: str) -> dict[str, Any]:
    """What each specialist read to become one."""
    told = {}
    for recipe in RECIPES[mode]:
        took = json.loads((adapter_folder(recipe) / "done.json").read_text())
        told[recipe.skill] = {"steps": recipe.steps, "examples": recipe.steps * recipe.batch} | took
    return told


def _code() -> str:
    """A mark of the code that drafts and scores: what an earlier version said is not remembered."""
    import langchain_specfuse.members as room

    files = sorted(Path(room.__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]
