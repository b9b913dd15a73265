"""How fast is one answer? Against the method without caches, the bare forward passes, and whole-answer ensembles.

All are measured in turn in one run and given as ratios, because seconds alone say little on a shared machine. The
prompt has 512 tokens, the answer 128, greedily; the answers with and without caches are compared.

    python benchmarks/latency.py [--dtype float32 bfloat16] [--repeats 1] [--tokens 128] [--cpu-time]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from common import (
    NOTES,
    answered,
    arguments,
    clock,
    demo,
    forward_passes,
    query,
    question,
    reported,
    settled,
    text_of,
    timed,
)
from transformers import DynamicCache

from langchain_specfuse.core.method import Method, Settings
from langchain_specfuse.core.values import Candidate, Draft, DraftJob, Round, Sampling, Scored, ScoreJob, Turn
from langchain_specfuse.engine import Ensemble
from langchain_specfuse.evaluation.running import on_worker

ASK = "Write a letter in which the younger daughter tells her aunt in the city about her week."
METHOD = Method(exit="never")


class Uncached:
    """A member that keeps nothing between calls. As published, it scores every draft by itself, its own too."""

    def __init__(self, member: Any) -> None:
        self.member, self.name = member, member.name

    @property
    def device(self) -> str:
        return str(self.member.device)

    def probe(self) -> Any:
        return self.member.probe()

    def draft(self, jobs: Sequence[DraftJob]) -> list[Draft]:
        return [replace(self._alone(self.member.draft, job), logprobs=None) for job in jobs]

    def score(self, jobs: Sequence[ScoreJob]) -> list[Scored]:
        each = [[replace(job, candidates=(candidate,)) for candidate in job.candidates] for job in jobs]
        return [Scored(tuple(self._alone(self.member.score, one).logprobs[0] for one in apart)) for apart in each]

    def forget(self, query_id: str) -> None:
        pass

    def _alone(self, work: Any, job: Any) -> Any:
        (reply,) = work([replace(job, prefill_chunks=None)])
        self.member.forget(job.query.id)
        return reply


# --- bare passes ------------------------------------------------------------------------------------------------

Shape = tuple[int, int, int]
"""(tokens read, columns of keys and values, logits computed) of one pass."""


@contextmanager
def shapes_of(models: Sequence[Any]) -> Iterator[list[list[Shape]]]:
    """The shapes of all passes of each of these models inside."""
    found: list[list[Shape]] = [[] for _ in models]

    def note(at: int, given: dict[str, Any]) -> None:
        size, keep, mask = given["input_ids"].shape[1], given.get("logits_to_keep", 0), given.get("attention_mask")
        mask = next(iter(mask.values())) if isinstance(mask, dict) else mask
        width = size + given["past_key_values"].get_seq_length() if mask is None else mask.shape[-1]
        found[at].append((size, width, (len(keep) if isinstance(keep, torch.Tensor) else keep) or size))

    hooks = [
        model.register_forward_pre_hook(lambda _, args, kwargs, at=at: note(at, kwargs), with_kwargs=True)
        for at, model in enumerate(models)
    ]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


@torch.inference_mode()
def replayed(model: Any, shapes: Sequence[Shape]) -> float:
    """Seconds for the same passes through the model and its own cache, with nothing around them."""
    spent, cache, have = 0.0, DynamicCache(), 0

    def read(size: int, keep: int) -> None:
        ids = torch.ones((1, size), dtype=torch.long, device=model.device)
        model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=keep)

    for size, width, keep in shapes:
        want = width - size
        if have > want:
            cache.crop(-(have - want))
        elif have < want:
            read(want - have, 1)  # columns of other drafts under vote: filled up outside the clock
        settled()
        since = clock()
        read(size, keep)
        settled()
        spent += clock() - since
        have = width
    return spent


# --- measuring --------------------------------------------------------------------------------------------------


def prompt_of(member: Any, tokens: int, ask: str) -> tuple[Turn, ...]:
    """A question with notes before it, so that this member's prompt has about this many tokens."""
    words = NOTES.split(" ")
    prompts = (question(" ".join(words[:count]) + "\n\n" + ask) for count in range(len(words)))
    return next(turns for turns in prompts if member.token_count(turns) >= tokens)


def whole_answers(members: Sequence[Any], turns: tuple[Turn, ...], tokens: int) -> None:
    """Every member writes its whole answer and scores all of them; only then is there a first word."""
    one = query(turns)
    job = DraftJob(one, (), tokens, tokens, Sampling())
    drafts = [on_worker(member, partial(member.draft, [job])).result()[0] for member in members]
    candidates = tuple(Candidate(draft.text, draft.ended, ("somebody",)) for draft in drafts)
    for member in members:
        on_worker(member, partial(member.score, [ScoreJob(one, (), candidates)])).result()
        on_worker(member, partial(member.forget, one.id)).result()


def first_segment(ensemble: Ensemble, turns: tuple[Turn, ...], settings: Settings) -> None:
    rounds = ensemble.rounds(query(turns), settings)
    next(rounds)
    rounds.close()  # type: ignore[attr-defined]


def round_cost(rounds: Sequence[Round], at: range) -> float:
    """Seconds per token drawn, over a few rounds: rounds differ in how many tokens they draw."""
    some = [r for r in rounds if r.number in at]
    drawn = sum(effort.read for r in some for effort in r.efforts["draft"].values())
    return sum(r.seconds["draft"] for r in some) / drawn


def measured(dtype: str, repeats: int, tokens: int) -> dict[str, Any]:
    # Every repeat reads its prompt; prefix.py measures what is saved otherwise.
    members = demo(dtype, prefix_cache=False)
    ensemble = Ensemble(members)
    uncached = Ensemble([Uncached(member) for member in demo(dtype, prefix_cache=False)])
    for one in (ensemble, uncached):
        one.loaded().result()
    settings = Settings(max_tokens=tokens, method=METHOD)
    turns = prompt_of(members[0], 512, ASK)
    with forward_passes() as passes:  # it warms up, too
        answered(ensemble, turns, Settings(max_tokens=12))
    models = list({id(model): model for model, _ in passes}.values())
    fast, slow, floor = [], [], []
    for _ in range(repeats):
        with shapes_of(models) as shapes:
            seconds, rounds = timed(lambda: answered(ensemble, turns, settings))
        fast.append(seconds)
        floor.append(sum(replayed(model, some) for model, some in zip(models, shapes, strict=True)))
        seconds, others = timed(lambda: answered(uncached, turns, settings))
        slow.append(seconds)
        print(f"  cached {fast[-1]:.2f} s, bare passes {floor[-1]:.2f} s, uncached {slow[-1]:.2f} s", flush=True)
    short = prompt_of(members[0], 100, "Tell me more about this.")
    firsts = [timed(lambda: first_segment(ensemble, short, settings))[0] for _ in range(3)]
    wholes = [timed(lambda: whole_answers(members, short, tokens))[0] for _ in range(repeats)]
    drawn = sum(len(r.drafts[r.winner].tokens) for r in rounds)
    late = round_cost(rounds, range(11, 14)) if len(rounds) > 10 else None
    return {
        "members": [m.name for m in members],
        "prompt_tokens": members[0].token_count(turns),
        "answer_tokens": drawn,
        "rounds": len(rounds),
        "rounds_scored": sum("verify" in r.seconds for r in rounds),
        "same_answer": text_of(rounds) == text_of(others),
        "tokens_per_second": round(drawn / min(fast), 2),
        "speedup_over_uncached": round(min(slow) / min(fast), 2),
        "over_floor": round(min(f / g for f, g in zip(fast, floor, strict=True)), 3),
        "late_round_over_early": late and round(late / round_cost(rounds, range(2, 5)), 3),
        "first_segment_sooner": round(min(wholes) / sorted(firsts)[1], 2),
    }


def main() -> None:
    parser = arguments(__file__, __doc__, dtype=["float32", "bfloat16"], repeats=1)
    parser.add_argument("--tokens", type=int, default=128, help="of the answer")
    given = parser.parse_args()
    reported(given, lambda dtype: measured(dtype, given.repeats, given.tokens))


if __name__ == "__main__":
    main()
