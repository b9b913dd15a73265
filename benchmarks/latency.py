"""How fast is one answer? Against the method without a cache, against the floor, and against whole-answer ensembles.

Everything is measured in turn in one run and given as ratios: seconds alone say little on a shared machine. The answers
of all variants are the same (checked); prompts and budgets are those of the issue: 512 tokens in, 128 out, greedy.

    python benchmarks/latency.py [--dtype float32 bfloat16] [--repeats 1] [--cpu-time]

``--cpu-time`` counts processor seconds on one thread instead: what else the machine does then hardly matters.

On a machine with a GPU the members go there by themselves, and the results name the chip.
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

CLOCK = {"name": "wall clock", "read": time.perf_counter}


def clock() -> float:
    """Seconds, of the clock that was chosen."""
    return CLOCK["read"]()  # type: ignore[no-any-return,operator]


def count_processor_seconds() -> None:
    """From now on: what this process computes, on one thread."""
    torch.set_num_threads(1)
    CLOCK.update(name="processor seconds, one thread", read=time.process_time)


NOTES = """Notes for a talk about lighthouses.

The first lighthouse that we know of stood on the island of Pharos, off Alexandria, and was built about 280
before our era. It was over a hundred metres high, burned wood and oil, and was counted among the wonders of the
world until earthquakes brought it down. For many centuries afterwards most lights on the coasts were small: a
fire in an iron basket on a hill, kept by monks or by a fisherman's widow, who was paid in coal and candles.

Two inventions changed that. In 1782 a Swiss, Argand, made a lamp with a hollow wick, which burned brighter and
without smoke. In 1822 a Frenchman, Fresnel, ground lenses out of rings of glass, so that nearly all the light
of a small lamp left the tower in one flat beam. A ship could now see the light from thirty kilometres away.
Towers were given rhythms of their own, two flashes and a pause, or a long one and a short one, so that a
captain could tell where he was.

Keepers lived on the rock for weeks at a time. They carried oil up the stairs, wound the clockwork that turned
the lens, cleaned the glass each morning and wrote the weather into a book. Storms could cut them off for a
month. Some kept bees, some built ships in bottles, and one in Scotland taught himself nine languages. Families
lived on the larger islands, and daughters often took over from their fathers; Ida Lewis saved at least eighteen
people from the sea at Newport.

Electricity came late to many towers, and with it the end of the trade. A light that needs nobody was first
switched on in Sweden, where Dalen invented a valve that opened when it grew dark; he was given a Nobel prize
for it. Today nearly all lights are automatic, satellites tell ships where they are, and the towers are museums,
hotels, or homes for birds.

What is left of the trade is a language of its own. A light is called fixed, flashing or occulting; its range is
nominal or geographic; and a sector of red glass still tells a captain, as it did two hundred years ago, that
there are rocks between him and the harbour.
"""
"""Prose that does not repeat itself."""


class Uncached(TransformersMember):
    """The same member with nothing kept: every draft through ``generate``, every scoring through a plain forward.

    As published, every member scores every draft, its own too (``generate`` hands out no log-probabilities). Kinder
    than the published code, it scores them in one padded batch and computes logits only where they are needed.
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
            repetition_penalty=self.penalty or 1.0,
        )
        nothing = torch.zeros((1, self._weights.model.config.vocab_size))
        for token in out[0, len(context) :].tolist():
            self.drawing.take(pen, token, 0.0, nothing[0])
        pen.kept = pen.kept or len(pen.tokens)
        text = self.words.told(context, pen.tokens[: pen.kept])[0]
        return Draft(text, pen.ended, tuple(pen.tokens[: pen.kept]), None, Effort())

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
        spent, cache, have = 0.0, DynamicCache(), 0
        for size, width, keep in self.shapes:
            want = width - size
            if have > want:
                cache.crop(-(have - want))
            elif have < want:
                # Columns of branches under vote: fill up outside the clock.
                self._bare(want - have, cache, 1)
            settled()
            since = clock()
            self._bare(size, cache, keep)
            settled()
            spent += clock() - since
            have = width
        return spent

    def _bare(self, size: int, cache: DynamicCache, keep: int) -> None:
        ids = torch.ones((1, size), dtype=torch.long, device=self._read.device)
        self._read.model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=keep)


def settled() -> None:
    """A GPU works on after the call: wait for it before looking at the clock."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def machine() -> str:
    chip = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    return f"{chip}, {platform.machine()}, {torch.get_num_threads()} threads"


def twin_of(member: TransformersMember) -> dict[str, Any]:
    """The same member's arguments: same weights, same template, same penalty."""
    return {
        "model": member.source.model,
        "name": member.name,
        "dtype": member.source.dtype,
        "chat_template": member.chat_template,
        "repetition_penalty": member.repetition_penalty,
    }


def prompt_of(member: TransformersMember, tokens: int, ask: str) -> tuple[Turn, ...]:
    """A question with notes before it, so that this member's prompt has about so many tokens."""
    words = NOTES.split(" ")
    for count in range(len(words)):
        turns = (Turn("user", " ".join(words[:count]) + "\n\n" + ask),)
        if member.token_count(turns) >= tokens:
            break
    return turns


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    since = clock()
    found = work()
    return clock() - since, found


def answered(ensemble: Ensemble, turns: tuple[Turn, ...], settings: Settings) -> list[Round]:
    return list(ensemble.rounds(Query(f"q{time.perf_counter_ns()}", turns), settings))


def first_segment(ensemble: Ensemble, turns: tuple[Turn, ...], settings: Settings) -> float:
    since = clock()
    rounds = ensemble.rounds(Query(f"q{time.perf_counter_ns()}", turns), settings)
    next(rounds)
    seconds = clock() - since
    rounds.close()
    return seconds


@torch.inference_mode()
def whole_answer(members: Sequence[TransformersMember], turns: tuple[Turn, ...], tokens: int) -> None:
    """Every member writes its whole answer, every member scores all of them; only then is there a first word."""
    texts = []
    for member in members:
        ids = torch.tensor([member._prompt_ids(turns)], device=member.device)
        ones = torch.ones_like(ids)
        out = member._weights.model.generate(
            input_ids=ids, attention_mask=ones, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False
        )
        texts.append(member.words.decode(out[0, ids.shape[1] :].tolist()))
    for member in members:
        for text in texts:
            ids = torch.tensor([member._prompt_ids(turns) + member.words.encode(text)], device=member.device)
            member._weights.model(input_ids=ids, logits_to_keep=tokens)


def round_cost(rounds: Sequence[Round], at: range) -> float:
    """Seconds per token drawn, over a few rounds: rounds differ in how many tokens they draw."""
    chosen = [r for r in rounds if r.number in at]
    drawn = sum(effort.read for r in chosen for effort in r.efforts["draft"].values())
    return sum(r.seconds["draft"] for r in chosen) / drawn


def measured(dtype: str, repeats: int) -> dict[str, Any]:
    members = demo_members(dtype=dtype)
    for member in members:
        member.prefix_cache = False  # every repeat reads its prompt; what is spared otherwise is told by prefix.py
    ensemble = Ensemble(members)
    ensemble.loaded().result()
    bare = [Uncached(**twin_of(member)) for member in members]
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
    short = prompt_of(members[0], 100, "Tell me more about this.")
    firsts = [first_segment(ensemble, short, settings) for _ in range(3)]
    wholes = [timed(lambda: whole_answer(members, short, 128))[0] for _ in range(repeats)]
    tokens = sum(len(next(iter(r.segment.tokens.values()))) for r in rounds)
    return {
        "dtype": dtype,
        "machine": machine(),
        "clock": CLOCK["name"],
        "torch": torch.__version__,
        "members": [m.name for m in members],
        "prompt_tokens": members[0].token_count(turns),
        "answer_tokens": tokens,
        "rounds": len(rounds),
        "rounds_scored": sum("verify" in r.seconds for r in rounds),
        "same_answer": same,
        "tokens_per_second": round(tokens / min(fast), 2),
        "speedup_over_uncached": round(min(slow) / min(fast), 2),
        "over_floor": round(min(f / g for f, g in zip(fast, floor, strict=True)), 3),
        "late_round_over_early": round(round_cost(rounds, range(11, 14)) / round_cost(rounds, range(2, 5)), 3),
        "first_segment_sooner": round(min(wholes) / sorted(firsts)[1], 2),
    }


def reported(script: str, told: argparse.Namespace, measured: Callable[[str], dict[str, Any]]) -> None:
    """What was measured in each precision: printed, and kept beside the script."""
    if told.cpu_time:
        count_processor_seconds()
    results = []
    for dtype in told.dtype:
        results.append(measured(dtype))
        print(json.dumps(results[-1], indent=2))
    Path(script).with_suffix(".json").write_text(json.dumps(results, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", nargs="*", default=["float32", "bfloat16"])
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--cpu-time", action="store_true")
    told = parser.parse_args()
    reported(__file__, told, lambda dtype: measured(dtype, told.repeats))


if __name__ == "__main__":
    main()
