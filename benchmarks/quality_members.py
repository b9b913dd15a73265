"""Who answers in the study on real members: the two models of the demo, once or several times over.

Members of one model share its weights and differ in their system prompt or their seed. Knows how they are made; nothing
of questions or results.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langchain_specfuse.demo import demo_members
from langchain_specfuse.members.transformers import TransformersMember

SMOL, GEMMA = "SmolLM2-135M", "Gemma-3-270M"
BRIEF = "You answer in as few words as you can."
EXPERT = "You are an expert who thinks carefully and gives exact answers."
PANELS: Mapping[str, tuple[str, ...]] = {
    SMOL: (SMOL,),
    GEMMA: (GEMMA,),
    "both": (SMOL, GEMMA),
    "three": (SMOL, GEMMA, f"{SMOL}, brief"),
    "five": (SMOL, GEMMA, f"{SMOL}, brief", f"{SMOL}, expert", f"{GEMMA}, brief"),
    "self by prompt": (SMOL, f"{SMOL}, brief", f"{SMOL}, expert"),
    "self by seed": (SMOL, f"{SMOL}, seed 1", f"{SMOL}, seed 2"),
    f"{SMOL}, brief": (f"{SMOL}, brief",),
    f"{SMOL}, expert": (f"{SMOL}, expert",),
    f"{GEMMA}, brief": (f"{GEMMA}, brief",),
}
"""Ensembles by name; whoever stands alone is one of one."""
APART: Mapping[str, Mapping[str, Any]] = {
    "brief": {"system_prompt": BRIEF},
    "expert": {"system_prompt": EXPERT},
    "seed 1": {"seed": 1},
    "seed 2": {"seed": 2},
}


class Members:
    """Members by name, each made when first asked for."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        self._made = {member.name: member for member in demo_members(dtype=dtype)}

    def of(self, panel: str) -> list[TransformersMember]:
        return [self._one(name) for name in PANELS[panel]]

    def _one(self, name: str) -> TransformersMember:
        if name not in self._made:
            model, _, how = name.partition(", ")
            first = self._made[model]
            self._made[name] = TransformersMember(
                first.source.model,
                name=name,
                dtype=self.dtype,
                chat_template=first.chat_template,
                repetition_penalty=first.repetition_penalty,
                **APART[how],
            )
        return self._made[name]
