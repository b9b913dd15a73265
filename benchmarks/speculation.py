"""Is an ensemble with one large member as fast as that member alone, when it checks the others' text as guesses?

The demo's SmolLM2 and a member a two-hundredth its size that was taught by it (``small_kin.py``): on questions that it
was taught with, on such questions about topics that were kept from it, and on questions about notes. With
``--parts strangers`` Gemma and SmolLM2, which are of much the same size. Each question is answered by the large
member's own ``generate`` and by the ensemble under each setting, in turn, in one run, in processor seconds on one
thread. Told are tokens per second (of the answer, in the large member's tokens) beside those of ``generate``, the large
member's passes per token of the answer (the prompt's among them), and the share of drawn tokens that came true where
something had been read along.

    python benchmarks/speculation.py [--dtype float32 bfloat16] [--parts taught kept notes] [--questions 3]

Results are kept in ``speculation.json`` part by part.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from latency import NOTES, clock, count_processor_seconds, machine
from small_kin import FORMS, KEPT, TOPICS, small_kin

from langchain_specfuse.core.values import Query, Settings, Turn
from langchain_specfuse.demo import demo_members
from langchain_specfuse.engine import Ensemble
from langchain_specfuse.members._lookahead import Foresight
from langchain_specfuse.members.transformers import TransformersMember

RESULTS = Path(__file__).with_suffix(".json")
MODES: Mapping[str, Mapping[str, Any]] = {
    "off": {},
    "auto": {"speculate": "auto"},
    "off, one drafts": {"drafters": 1},
    "auto, one drafts": {"speculate": "auto", "drafters": 1},
}
STRANGERS: Mapping[str, Mapping[str, Any]] = {"off": {}, "always": {"speculate": True}}
"""They are too near in size for the large one to wait unless it is told to."""
PARAGRAPHS = [part.replace("\n", " ") for part in NOTES.strip().split("\n\n")]
ASKED = (
    "Repeat the sentence that says when the first lighthouse was built.",
    "Write the first two sentences of the notes again.",
    "What did Argand and Fresnel do? Answer with the notes' own words.",
    "How did the keepers spend their time? Answer with the notes' own words.",
)


def about_topics(topics: Sequence[str]) -> list[tuple[Turn, ...]]:
    return [(Turn("user", FORMS[k % len(FORMS)].format(topic)),) for k, topic in enumerate(topics)]


def about_notes(count: int) -> list[tuple[Turn, ...]]:
    told = [" ".join(PARAGRAPHS[k : k + 2]) for k in (1, 1, 2, 3)]
    return [(Turn("user", f"Notes:\n\n{note}\n\n{ask}"),) for note, ask in zip(told[:count], ASKED, strict=False)]


@contextmanager
def passes(member: TransformersMember) -> Iterator[list[int]]:
    """The tokens of each pass through the member's model."""
    told: list[int] = []
    model = member._weights.model  # type: ignore[union-attr]
    hook = model.register_forward_pre_hook(
        lambda module, args, kwargs: told.append(int(kwargs["input_ids"].numel())), with_kwargs=True
    )
    try:
        yield told
    finally:
        hook.remove()


@contextmanager
def checked(vocabulary: int) -> Iterator[list[bool]]:
    """Whether what was read along came true, token by token, for the member with a vocabulary of this size."""
    told: list[bool] = []
    after = Foresight.after

    def counted(self: Foresight, token: int) -> Any:
        mine = bool(self.ways) and self.ways[0].rows.shape[-1] == vocabulary
        found = after(self, token)
        if mine:
            told.append(found is not None)
        return found

    Foresight.after = counted  # type: ignore[method-assign]
    try:
        yield told
    finally:
        Foresight.after = after  # type: ignore[method-assign]


def generated(member: TransformersMember, turns: Sequence[Turn], tokens: int) -> tuple[float, int, int]:
    """Seconds, tokens and passes of ``generate``."""
    ids = torch.tensor([member._prompt_ids(turns)])
    weights = member._weights
    assert weights is not None
    with passes(member) as read, torch.inference_mode():
        since = clock()
        made = weights.model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False,
            repetition_penalty=member.penalty or 1.0, eos_token_id=list(member.stops), pad_token_id=member.stops[0],
        )  # fmt: skip
        seconds = clock() - since
    return seconds, int(made.shape[1] - ids.shape[1]), len(read)


def answered(
    ensemble: Ensemble, large: TransformersMember, turns: tuple[Turn, ...], settings: Settings
) -> dict[str, Any]:
    for member in ensemble.members.values():
        member.drop_prefixes()  # type: ignore[attr-defined]
    vocabulary = int(large._weights.model.get_output_embeddings().weight.shape[0])  # type: ignore[union-attr]
    with passes(large) as read, checked(vocabulary) as came:
        since = clock()
        rounds = list(ensemble.rounds(Query(f"q{time.perf_counter_ns()}", turns), settings))
        seconds = clock() - since
    text = "".join(one.text for one in rounds)
    return {
        "seconds": seconds,
        "text": text,
        "tokens": len(large.token_ids(text)) + (rounds[-1].finish == "stop"),
        "passes": len(read),
        "checked": len(came),
        "true": sum(came),
        "won": sum(one.winner == large.name for one in rounds) / len(rounds),
    }


def compared(
    name: str, members: Sequence[TransformersMember], asked: Sequence[tuple[Turn, ...]], tokens: int
) -> dict[str, Any]:
    ensemble = Ensemble(members)
    probes = ensemble.loaded().result()
    large = members[0]
    modes = {
        mode: Settings(max_tokens=tokens, exit="never", **more)
        for mode, more in (STRANGERS if name == "strangers" else MODES).items()
    }
    answered(ensemble, large, (Turn("user", "Hello"),), Settings(max_tokens=12, speculate=True))  # prices are measured
    alone: list[tuple[float, int, int]] = []
    told: dict[str, list[dict[str, Any]]] = {mode: [] for mode in modes}
    for turns in asked:
        alone.append(generated(large, turns, tokens))
        for mode, settings in modes.items():
            told[mode].append(answered(ensemble, large, turns, settings))
    pace = sum(one[1] for one in alone) / sum(one[0] for one in alone)
    rows = {
        mode: _row(runs, told["off" if "one" not in mode else "off, one drafts"], pace) for mode, runs in told.items()
    }
    for mode, row in rows.items():
        print(f"{name:24} {mode:18} {row}", flush=True)
    return {
        "part": name,
        "parameters": {member: probe.size for member, probe in probes.items()},
        "questions": len(asked),
        "price_of_a_pass": {size: round(p, 2) for size, p in large.drawing.lookahead.prices.known.items()},
        "generate": {"passes_per_token": round(sum(a[2] for a in alone) / sum(a[1] for a in alone), 2)},
        "settings": rows,
    }


def _row(runs: Sequence[Mapping[str, Any]], plain: Sequence[Mapping[str, Any]], pace: float) -> dict[str, Any]:
    tokens = sum(run["tokens"] for run in runs)
    checked = sum(run["checked"] for run in runs)
    return {
        "tokens_per_second_beside_generate": round(tokens / sum(run["seconds"] for run in runs) / pace, 2),
        "passes_per_token": round(sum(run["passes"] for run in runs) / tokens, 2),
        "checked": checked,
        "came_true": round(sum(run["true"] for run in runs) / checked, 2) if checked else None,
        "won_by_large": round(sum(run["won"] for run in runs) / len(runs), 2),
        "same_answers": sum(run["text"] == other["text"] for run, other in zip(runs, plain, strict=True)),
    }


def part(name: str, dtype: str, tokens: int, count: int) -> dict[str, Any]:
    smol, gemma = demo_members(dtype=dtype)
    taught = [topic for topic in TOPICS if topic not in KEPT][::7]
    asked = {"taught": about_topics(taught[:count]), "kept": about_topics(KEPT[:count])}.get(name, about_notes(count))
    members = [gemma, smol] if name == "strangers" else [smol, small_kin()]
    made = {"dtype": dtype, "machine": machine(), "clock": "processor seconds, one thread", "torch": torch.__version__}
    return {**made, "tokens": tokens, **compared(name, members, asked, tokens)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", nargs="*", default=["float32", "bfloat16"])
    parser.add_argument("--parts", nargs="*", default=["taught", "kept", "notes"])
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--questions", type=int, default=3)
    told = parser.parse_args()
    count_processor_seconds()
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for dtype in told.dtype:
        for name in told.parts:
            results[f"{name}, {dtype}"] = part(name, dtype, told.tokens, told.questions)
            RESULTS.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
