"""Adapters for tiny models, trained by nobody: peft writes them, and merges them for those who measure the others."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model

from langchain_specfuse.core.values import Draft, DraftJob, Reply, Sampling, Scored, ScoreJob
from langchain_specfuse.members.transformers import TransformersMember

from . import tiny

EVERYWHERE = {
    "gpt2": ["c_attn", "c_proj", "c_fc"],
    "phi3": ["qkv_proj", "down_proj"],
    "opt": ["q_proj", "fc1", "fc2"],
    "qwen3-next": ["q_proj", "v_proj", "o_proj"],
}
USUAL = ["q_proj", "v_proj", "o_proj", "down_proj"]
"""Which modules an adapter adapts, by architecture."""


def saved(arch: str, folder: Path, seed: int = 1) -> Path:
    """A tiny model as a folder: members that name it share its weights."""
    model, tokenizer = tiny.cached(arch, seed)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def adapter(arch: str, folder: Path, seed: int, **told: Any) -> tuple[Path, Any]:
    """A random adapter as peft writes it, and the model with it merged in."""
    model, _ = tiny.cached(arch, 1)
    config = {"r": 4, "lora_alpha": 3, "target_modules": EVERYWHERE.get(arch, USUAL), "fan_in_fan_out": arch == "gpt2"}
    torch.manual_seed(seed)
    adapted = get_peft_model(copy.deepcopy(model), LoraConfig(**(config | {"init_lora_weights": False} | told)))
    adapted.save_pretrained(folder, save_embedding_layers=False)
    return folder, adapted.merge_and_unload().eval()


class Family:
    """Members of one base beside their slow twins: every batch of theirs is compared with what each twin says alone."""

    def __init__(self, members: Sequence[TransformersMember], merged: Sequence[Any]) -> None:
        self.members = list(members)
        for one in members:
            one.probe()
        self.twins = {one: tiny.rereading(one, model) for one, model in zip(members, merged, strict=True)}
        self.compared, self.worst = 0, 0.0

    def told(self, work: str, jobs: Sequence[tuple[TransformersMember, Any]]) -> list[Reply]:
        """The replies of one batch."""
        kin = next((one.kin for one, _ in jobs if one.kin), None)
        replies = getattr(kin, work)(jobs) if kin else []
        for (one, job), reply in zip(jobs, replies, strict=True):
            self.twins[one].forget(job.query.id)
            (truth,) = getattr(self.twins[one], work)([job])
            assert isinstance(reply, Draft | Scored), reply
            self.worst = max(self.worst, tiny.difference(reply, truth))
            self.compared += 1
        return list(replies)

    def drafts(self, query: Any, answer: Any = (), size: int = 4, how: Sampling = Sampling()) -> dict[str, Draft]:  # noqa: B008
        replies = self.told("draft", [(one, DraftJob(query, answer, size, 64, how)) for one in self.members])
        return {one.name: reply for one, reply in zip(self.members, replies, strict=True) if isinstance(reply, Draft)}

    def scores(self, query: Any, answer: Any, candidates: Any) -> None:
        of = lambda one: tuple(c for c in candidates if one.name not in c.authors)
        self.told("score", [(one, ScoreJob(query, answer, of(one))) for one in self.members if of(one)])

    def forget(self, query: Any) -> None:
        for one in (*self.members, *self.twins.values()):
            one.forget(query.id)
