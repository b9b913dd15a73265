"""Random LoRA adapters for tiny models: peft writes them, and merges them for comparison."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from langchain_specfuse.core.values import (
    Candidate,
    Draft,
    DraftJob,
    Reply,
    Sampling,
    Scored,
    ScoreJob,
)
from langchain_specfuse.members.transformers.member import TransformersMember

from . import tiny

EVERYWHERE = {
    "gpt2": ["c_attn", "c_proj", "c_fc"],
    "phi3": ["qkv_proj", "down_proj"],
    "opt": ["q_proj", "fc1", "fc2"],
    "qwen3-next": ["q_proj", "v_proj", "o_proj"],
}
USUAL = ["q_proj", "v_proj", "o_proj", "down_proj"]
"""The modules that an adapter adapts, by architecture."""


def saved(arch: str, folder: Path, seed: int = 1) -> Path:
    """Return a tiny model as a folder; members that name it share its weights."""
    for part in tiny.cached(arch, seed):
        part.save_pretrained(folder)
    return folder


def adapter(arch: str, folder: Path, seed: int, **options: Any) -> tuple[Path, Any]:
    """Return a random adapter as peft writes it, and the model with the adapter merged in."""
    from peft import LoraConfig, get_peft_model  # seconds, also where no test here runs

    model, _ = tiny.cached(arch, 1)
    config = {
        "r": 4,
        "lora_alpha": 3,
        "target_modules": EVERYWHERE.get(arch, USUAL),
        "fan_in_fan_out": arch == "gpt2",
    }
    torch.manual_seed(seed)
    adapted = get_peft_model(
        copy.deepcopy(model), LoraConfig(**(config | {"init_lora_weights": False} | options))
    )
    adapted.save_pretrained(folder, save_embedding_layers=False)
    return folder, adapted.merge_and_unload().eval()


class Family:
    """Members of one base; every reply in their batches is compared with the reply of the member
    alone without a cache."""

    def __init__(self, members: Sequence[TransformersMember], merged: Sequence[Any]) -> None:
        self.members = list(members)
        self.twins = {
            member: tiny.uncached(member, model)
            for member, model in zip(members, merged, strict=True)
        }
        self.count, self.worst = 0, 0.0

    def replies(self, work: str, jobs: Sequence[tuple[TransformersMember, Any]]) -> list[Reply]:
        """Return the replies of one batch, after comparing each."""
        for member, _ in jobs:
            member.probe()
        replies = getattr(jobs[0][0].batch_group, work)(jobs) if jobs else []
        for (member, job), reply in zip(jobs, replies, strict=True):
            self.twins[member].forget(job.query.id)
            (truth,) = getattr(self.twins[member], work)([job])
            assert isinstance(reply, Draft | Scored), reply
            self.worst = max(self.worst, tiny.difference(reply, truth))
            self.count += 1
        return list(replies)

    def drafts(
        self,
        query: Any,
        answer: Any = (),
        size: int = 4,
        how: Sampling = Sampling(),  # noqa: B008
    ) -> dict[str, Draft]:
        replies = self.replies(
            "draft", [(member, DraftJob(query, answer, size, 64, how)) for member in self.members]
        )
        return {
            member.name: reply
            for member, reply in zip(self.members, replies, strict=True)
            if isinstance(reply, Draft)
        }

    def scores(self, query: Any, answer: Any, drafts: dict[str, Draft]) -> None:
        """Let every member score the drafts of the others."""
        authors: dict[tuple[str, bool], list[str]] = {}
        for name, draft in drafts.items():
            authors.setdefault((draft.text, draft.ended), []).append(name)
        candidates = [
            Candidate(text, ended, tuple(names)) for (text, ended), names in authors.items()
        ]
        others = {
            member: tuple(c for c in candidates if member.name not in c.authors)
            for member in self.members
        }
        self.replies(
            "score",
            [
                (member, ScoreJob(query, answer, scored))
                for member, scored in others.items()
                if scored
            ],
        )

    def forget(self, query: Any) -> None:
        for member in (*self.members, *self.twins.values()):
            member.forget(query.id)
