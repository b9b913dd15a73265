"""How fast is one answer? Against the method without a cache, against the floor, and against whole-answer ensembles.

Everything is measured in turn in one run and given as ratios: seconds alone say little on a shared machine. The answers
of all variants are the same (checked); prompts and budgets are those of the issue: 512 tokens in, 128 out, greedy.

    python benchmarks/latency.py [--dtype float32] [--repeats 1] [--device cpu]
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import DynamicCache

from langchain_specfuse.core.values import Draft, DraftJob, Effort, Query, Round, Scored, ScoreJob, Settings, Turn
from langchain_specfuse.demo import demo_members
from langchain_specfuse.engine import Ensemble
from langchain_specfuse.members._drawing import Pen
from langchain_specfuse.members.transformers import TransformersMember

clock = time.perf_counter

STORY = (
    "The village lay between two hills, and a river ran through it that turned three mills. In spring the water was "
    "high and brown, in summer children crossed it on stones. The miller of the upper mill had two daughters and a "
    "clock that struck thirteen at noon, because his grandfather had mended it himself. "
)


class Uncached(TransformersMember):
    """The same member with nothing kept: every draft through ``generate``, every scoring through a plain forward.

    Kinder than the published code: it scores all drafts in one padded batch, and not its own.
    """

    @torch.inference_mode()
    def draft(self, jobs: Sequence[DraftJob]) -> list[Any]:
        return [self._drafted_anew(job) for job in jobs]

    @torch.inference_mode()
    def score(self, jobs: Sequence[ScoreJob]) -> list[Any]:
        return [self._scored_anew(job) for job in jobs]

    def _drafted_anew(self, job: DraftJob) -> Draft:
        context = self._context(job)
        pen = Pen(job, job.query.id, context, job.sampling, job.max_tokens)
        ids = torch.tensor([context], device=self.device)
        out = self._weights.model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=min(job.segment_tokens, job.max_tokens),
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
        )
        rows = torch.stack(out.logits)[:, 0]
        for token, row in zip(out.sequences[0, len(context) :].tolist(), rows, strict=True):
            lp = float(row.float().log_softmax(-1)[token])
            self.drawing._put(pen, token, lp, row)
        pen.kept = pen.kept or len(pen.tokens)
        text = self.words.told(context, pen.tokens[: pen.kept])[0]
        logprobs = pen.logprobs[: pen.kept] + ([pen.end_logprob] if pen.ended else [])
        return Draft(text, pen.ended, tuple(pen.tokens[: pen.kept]), tuple(logprobs), Effort())

    def _scored_anew(self, job: ScoreJob) -> Scored:
        context = len(self._context(job))
        texts = [self._candidate_ids(job, c.text) for c in job.candidates]
        wholes = [t + (self.end_ids if c.ended else []) for t, c in zip(texts, job.candidates, strict=True)]
        longest = max(map(len, wholes))
        ids = torch.zeros((len(wholes), longest), dtype=torch.long)
        mask = torch.zeros_like(ids)
        for i, whole in enumerate(wholes):
            ids[i, : len(whole)], mask[i, : len(whole)] = torch.tensor(whole), 1
        keep = torch.arange(context - 1, longest)
        logits = self._weights.model(
            input_ids=ids.to(self.device), attention_mask=mask.to(self.device), logits_to_keep=keep
        ).logits
        rows = []
        for i, (text, whole, c) in enumerate(zip(texts, wholes, job.candidates, strict=True)):
            mine = logits[i, : len(whole) - context + 1]
            rows.append(self.scoring.logprobs(whole, len(text), c.ended, mine))
        return Scored(tuple(rows), Effort())


class Passes:
    """Writes down the shape of every pass a member makes, to replay them bare."""

    def __init__(self, member: TransformersMember) -> None:
        self.member = member
        self.shapes: list[tuple[int, int, int]] = []
        self._read = member.store.read
        member.store.read = self  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._read, name)

    def __call__(self, ids: torch.Tensor, **extra: Any) -> torch.Tensor:
        where = self.member.store.where
        keep = extra.get("keep")
        self.shapes.append((ids.shape[1], where.width, len(keep) if keep else ids.shape[1]))
        return self._read(ids, **extra)

    def stop(self) -> None:
        self.member.store.read = self._read

    @torch.inference_mode()
    def replay(self) -> float:
        """Seconds for the same passes through the model and its own cache, with nothing around them."""
        model = self._read.model
        spent, cache, have = 0.0, DynamicCache(), 0
        for size, width, keep in self.shapes:
            want = width - size
            if have > want:
                cache.crop(-(have - want))
            elif have < want:
                # Columns of branches under vote: fill up outside the clock.
                model(input_ids=torch.ones((1, want - have), dtype=torch.long), past_key_values=cache, logits_to_keep=1)
            ids = torch.ones((1, size), dtype=torch.long)
            since = clock()
            model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=keep)
            spent += clock() - since
            have = width
        return spent


def prompt_of(member: TransformersMember, tokens: int, ask: str) -> tuple[Turn, ...]:
    """A question with a story before it, so that this member's prompt has about so many tokens."""
    text = ""
    while member.token_count([Turn("user", text + ask)]) < tokens:
        text += STORY[len(text) % len(STORY) :][:24]
    return (Turn("user", text + "\n\n" + ask),)


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    since = clock()
    found = work()
    return clock() - since, found


def answered(ensemble: Ensemble, turns: tuple[Turn, ...], settings: Settings) -> list[Round]:
    return list(ensemble.rounds(Query(f"q{time.perf_counter_ns()}", turns), settings))


def first_segment(ensemble: Ensemble, turns: tuple[Turn, ...], settings: Settings) -> float:
    since = time.perf_counter()
    rounds = ensemble.rounds(Query(f"q{time.perf_counter_ns()}", turns), settings)
    next(rounds)
    seconds = time.perf_counter() - since
    rounds.close()
    return seconds


@torch.inference_mode()
def whole_answer(members: Sequence[TransformersMember], turns: tuple[Turn, ...], tokens: int) -> None:
    """Every member writes its whole answer, every other member scores it; only then is there a first word."""
    texts = []
    for member in members:
        ids = torch.tensor([member._prompt_ids(turns)], device=member.device)
        ones = torch.ones_like(ids)
        out = member._weights.model.generate(
            input_ids=ids, attention_mask=ones, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False
        )
        texts.append(member.words.decode(out[0, ids.shape[1] :].tolist()))
    for member in members:
        for other, text in zip(members, texts, strict=True):
            if other is not member:
                ids = torch.tensor([member._prompt_ids(turns) + member.words.encode(text)], device=member.device)
                member._weights.model(input_ids=ids, logits_to_keep=tokens)


def round_cost(rounds: Sequence[Round], at: range) -> float:
    """Seconds per token read, over a few rounds: rounds differ in how many tokens they draw."""
    chosen = [r for r in rounds if r.number in at]
    read = sum(e.read for r in chosen for by in r.efforts.values() for e in by.values())
    return sum(sum(r.seconds.values()) for r in chosen) / read


def measured(dtype: str, repeats: int) -> dict[str, Any]:
    members = demo_members(dtype=dtype)
    ensemble = Ensemble(members)
    ensemble.loaded().result()
    bare = [Uncached(m.source.model, name=m.name, dtype=dtype) for m in members]
    uncached = Ensemble(bare)
    uncached.loaded().result()
    settings = Settings(max_tokens=128, exit="never")
    turns = prompt_of(
        members[0], 512, "Write a letter in which the younger daughter tells her aunt in the city about her week."
    )
    answered(ensemble, turns, Settings(max_tokens=12))  # warm up
    fast, slow, floor = [], [], []
    rounds: list[Round] = []
    for _ in range(repeats):
        tapes = [Passes(member) for member in members]
        seconds, rounds = timed(lambda: answered(ensemble, turns, settings))
        fast.append(seconds)
        for tape in tapes:
            tape.stop()
        floor.append(sum(tape.replay() for tape in tapes))
        seconds, others = timed(lambda: answered(uncached, turns, settings))
        slow.append(seconds)
        same = "".join(r.text for r in rounds) == "".join(r.text for r in others)
        print(f"  cached {fast[-1]:.2f} s, floor {floor[-1]:.2f} s, uncached {slow[-1]:.2f} s, same answer: {same}")
    short = prompt_of(members[0], 100, "Tell me about this village.")
    firsts = [first_segment(ensemble, short, settings) for _ in range(3)]
    wholes = [timed(lambda: whole_answer(members, short, 128))[0] for _ in range(repeats)]
    tokens = sum(len(next(iter(r.segment.tokens.values()))) for r in rounds)
    return {
        "dtype": dtype,
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads",
        "torch": torch.__version__,
        "members": [m.name for m in members],
        "prompt_tokens": members[0].token_count(turns),
        "answer_tokens": tokens,
        "rounds": len(rounds),
        "same_answer": same,
        "tokens_per_second": round(tokens / min(fast), 2),
        "speedup_over_uncached": round(min(slow) / min(fast), 2),
        "over_floor": round(min(f / g for f, g in zip(fast, floor, strict=True)), 3),
        "late_round_over_early": round(round_cost(rounds, range(11, 14)) / round_cost(rounds, range(2, 5)), 3),
        "first_segment_sooner": round(min(wholes) / sorted(firsts)[1], 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", nargs="*", default=["float32", "bfloat16"])
    parser.add_argument("--repeats", type=int, default=1)
    told = parser.parse_args()
    results = []
    for dtype in told.dtype:
        print(dtype)
        results.append(measured(dtype, told.repeats))
        print(json.dumps(results[-1], indent=2))
    Path(__file__).with_suffix(".json").write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
