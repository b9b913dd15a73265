"""How near to what a GPU's memory allows do members of a useful size come, and what do captured steps add?

Three members with random weights in the shapes of Llama 3.1 8B, Qwen2.5 7B and Mistral 7B v0.3, bfloat16, made on the
device; their tokenizers are made here. What they write means nothing, what it costs is what real weights would cost.

- roofline: bytes a second of a plain copy, read and written, the best of a few.
- floor: the bytes that the passes of a round must read (weights, keys and values) at that speed.
- measured: seconds per agreed token of one query, rounds behind the first, and how much of them the floor is; with
  captured steps and without, in turn.
- 32 queries at once against one; one query against the same method with nothing cached.
- with two GPUs: two members on one of them against one on each (0.5: truly at once).

    python benchmarks/gpu.py [--queries 32] [--tokens 128] [--prompt 256] [--tiny] [--device cpu]

``--tiny`` runs the same script with small shapes, on a CPU too, to keep it alive: its figures say nothing, and are not
kept. What was captured, if anything, is told. Needs no network and no weights.
"""

from __future__ import annotations

import argparse
import gc
import json
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import transformers
from latency import NOTES, Uncached, machine, prompt_of, settled
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from langchain_specfuse.core.values import Query, Round, Settings, Turn
from langchain_specfuse.engine import Ensemble
from langchain_specfuse.members._leaps import Leaps
from langchain_specfuse.members._slab import Slab
from langchain_specfuse.members.transformers import TransformersMember

Turns = tuple[Turn, ...]

SPECIAL = ["<s>", "</s>", "<|turn|>"]
TEMPLATE = (
    "<s>{% for m in messages %}<|turn|>{{ m.role }}\n{{ m.content }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)
SHAPES: dict[str, tuple[str, int, dict[str, Any]]] = {  # config class, tokens of the tokenizer, shape
    "llama-3.1-8b": (
        "LlamaConfig",
        600,
        {"vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32}
        | {"num_attention_heads": 32, "num_key_value_heads": 8, "rope": 500000.0},
    ),
    "qwen2.5-7b": (
        "Qwen2Config",
        700,
        {"vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28}
        | {"num_attention_heads": 28, "num_key_value_heads": 4, "rope": 1000000.0},
    ),
    "mistral-7b-v0.3": (
        "MistralConfig",
        500,
        {"vocab_size": 32768, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32}
        | {"num_attention_heads": 32, "num_key_value_heads": 8, "rope": 1000000.0, "sliding_window": None},
    ),
}
TINY = {"vocab_size": 1024, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
TINY |= {"num_attention_heads": 4, "num_key_value_heads": 2}
WARM_TOKENS = 40
"""So long is the answer that makes everything ready before the clock runs: it captures, too."""


# --- members --------------------------------------------------------------------------------------------------------


def tokenizer_of(size: int) -> Any:
    """A small byte-level one, learned from a page of prose."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([NOTES], trainer)
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    made.chat_template = TEMPLATE
    return made


def config_of(shape: str, begin: int, end: int, tiny: bool) -> Any:
    name, _, told = SHAPES[shape]
    told = {**told, **(TINY if tiny else {})}
    rope = {"rope_type": "default", "rope_theta": told.pop("rope")}
    more = {"bos_token_id": begin, "eos_token_id": end, "max_position_embeddings": 8192, "tie_word_embeddings": False}
    return getattr(transformers, name)(**told, **more, rope_parameters=rope)


def model_of(shape: str, tokenizer: Any, tiny: bool, device: str, seed: int) -> Any:
    """Random weights, made where they will be. It only writes whole words, and never ends: budgets end answers."""
    config = config_of(shape, tokenizer.bos_token_id, tokenizer.eos_token_id, tiny)
    torch.manual_seed(seed)
    with torch.device(device):
        dtype = torch.float32 if device == "cpu" else torch.bfloat16
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    names = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    words = [token for token, text in enumerate(names) if text.startswith("Ġ") and text[1:].isalpha()]
    mute = torch.ones(config.vocab_size, dtype=torch.bool, device=device)
    mute[words] = False
    with torch.no_grad():
        model.lm_head.weight[mute] = 0.0
    return model


def members_of(shapes: Sequence[str], tiny: bool, device: str) -> list[TransformersMember]:
    made = []
    for seed, shape in enumerate(shapes):
        tokenizer = tokenizer_of(SHAPES[shape][1])
        model = model_of(shape, tokenizer, tiny, device, seed)
        made.append(TransformersMember(model, tokenizer, name=f"{shape}#{seed}", prefix_cache=False))
    return made


def in_leaps(members: Sequence[TransformersMember]) -> None:
    """On a CPU nothing leaps by itself: here it shall, so that the same code runs."""
    for member in members:
        if member.drawing.leaps is None and isinstance(member.store, Slab):
            member.drawing = replace(member.drawing, leaps=Leaps(member.store, member.stops))


def loaded(members: Sequence[TransformersMember]) -> Ensemble:
    ensemble = Ensemble(members)
    ensemble.loaded().result()
    return ensemble


# --- what the device allows -------------------------------------------------------------------------------------------


def copy_speed(device: str, size: int) -> float:
    """Bytes per second that a copy reads and writes, the best of a few."""
    one = torch.ones(size, dtype=torch.uint8, device=device)
    other = torch.empty_like(one)
    best = float("inf")
    for _ in range(12):
        settled()
        since = time.perf_counter()
        other.copy_(one)
        settled()
        best = min(best, time.perf_counter() - since)
    return 2 * size / best


def bytes_of_a_pass(member: TransformersMember, tokens: float) -> float:
    """What one pass must read: all weights but the rows of the input's embedding, and a row's keys and values."""
    model = member.store.read.model
    weights = sum(one.numel() * one.element_size() for one in model.parameters())
    table = model.get_input_embeddings().weight
    per_token = sum(m.shape[1] * m.shape[3] * m.element_size() for m in member.store._memories())
    return weights - table.numel() * table.element_size() + tokens * per_token


def floor_seconds(ensemble: Ensemble, rounds: Sequence[Round], speed: float) -> float:
    """The least time for the passes of these rounds (drawn one by one, so that no pass is more than was needed)."""
    total = 0.0
    for name, member in ensemble.members.items():
        drawn = sum(one.efforts["draft"][name].read for one in rounds)
        scored = sum(name in one.efforts.get("verify", {}) for one in rounds)
        length = rounds[0].efforts["draft"][name].prompt + tokens_in(rounds) / 2
        total += (drawn + scored) * bytes_of_a_pass(member, length) / speed  # type: ignore[arg-type]
    return total


# --- answers ----------------------------------------------------------------------------------------------------------


def settings_of(tokens: int) -> Settings:
    return Settings(max_tokens=tokens, exit="never", loop_guard=False)


def tokens_in(rounds: Sequence[Round]) -> int:
    return sum(len(one.segment.tokens[one.winner]) for one in rounds)


def one_answer(ensemble: Ensemble, turns: Turns, tokens: int) -> dict[str, Any]:
    """Seconds of the whole answer, and of the rounds behind the first, which read no prompt."""
    query = Query(f"q{time.perf_counter_ns()}", turns)
    since = time.perf_counter()
    rounds, marks = [], []
    for one in ensemble.rounds(query, settings_of(tokens)):
        rounds.append(one)
        marks.append(time.perf_counter())
    rest = rounds[1:]
    return {
        "rounds": rest,
        "tokens": tokens_in(rounds),
        "seconds": marks[-1] - since,
        "per_token": (marks[-1] - marks[0]) / max(tokens_in(rest), 1),
    }


def many_answers(ensemble: Ensemble, prompts: Sequence[Turns], tokens: int) -> dict[str, float]:
    told: list[dict[str, Any]] = []
    work = [
        threading.Thread(target=lambda turns=turns: told.append(one_answer(ensemble, turns, tokens)))
        for turns in prompts
    ]
    since = time.perf_counter()
    for thread in work:
        thread.start()
    for thread in work:
        thread.join()
    seconds = time.perf_counter() - since
    if len(told) < len(prompts):
        raise SystemExit(f"only {len(told)} of {len(prompts)} queries were answered: see the errors above")
    return {"seconds": seconds, "tokens": sum(one["tokens"] for one in told)}


def drawn_one_by_one(members: Sequence[TransformersMember], on: bool, kept: dict[str, Any]) -> None:
    """Between answers: take the leaps away, or give them back."""
    for member in members:
        if on:
            kept[member.name] = member.drawing.leaps
        member.drawing = replace(member.drawing, leaps=None if on else kept[member.name])


# --- what is measured -------------------------------------------------------------------------------------------------


def one_query(ensemble: Ensemble, turns: Turns, tokens: int, speed: float, repeats: int) -> dict[str, Any]:
    members: list[Any] = list(ensemble.members.values())
    kept: dict[str, Any] = {}
    leapt, stepped = [], []
    for _ in range(repeats):
        leapt.append(one_answer(ensemble, turns, tokens))
        drawn_one_by_one(members, True, kept)
        one_answer(ensemble, turns, min(tokens, WARM_TOKENS)) if not stepped else None
        stepped.append(one_answer(ensemble, turns, tokens))
        drawn_one_by_one(members, False, kept)
    best, slow = (min(runs, key=lambda run: run["per_token"]) for runs in (leapt, stepped))
    floor = floor_seconds(ensemble, slow["rounds"], speed) / tokens_in(slow["rounds"])
    return {
        "tokens": best["tokens"],
        "rounds": len(best["rounds"]) + 1,
        "floor_ms_per_token": round(1000 * floor, 3),
        "captured_ms_per_token": round(1000 * best["per_token"], 3),
        "uncaptured_ms_per_token": round(1000 * slow["per_token"], 3),
        "of_floor_captured": round(floor / best["per_token"], 3),
        "of_floor_uncaptured": round(floor / slow["per_token"], 3),
        "faster_captured": round(slow["per_token"] / best["per_token"], 2),
        "tokens_per_second": round(best["tokens"] / best["seconds"], 2),
        "step_ms": {one.name: step for one in members if (step := step_ms(one)) is not None},
        "step_floor_ms": {one.name: round(1000 * bytes_of_a_pass(one, 0) / speed, 3) for one in members},
    }


@torch.inference_mode()
def step_ms(member: TransformersMember, times: int = 12) -> float | None:
    """A captured step of one row by itself, without host or text: what is left above the floor is the GPU's own."""
    leaps, held = member.drawing.leaps, list(getattr(member.store, "captured", {}).items())
    graphs = [graph for kind, graph in held if leaps and 1 in leaps._tracks and kind[0] == id(leaps._tracks[1])]
    if not graphs or leaps is None or leaps.graphs is None:
        return None
    track = leaps._tracks[1]
    track.idle(leaps.slab.capacity[1] - 1)
    settled()
    since = time.perf_counter()
    for _ in range(times):  # no more than a leap has room for
        leaps.graphs._replay(graphs[-1][0])
    settled()
    return round(1000 * (time.perf_counter() - since) / times, 3)


def uncached(members: Sequence[TransformersMember], turns: Turns, tokens: int) -> dict[str, Any]:
    bare = []
    for member in members:
        assert member._weights is not None
        bare.append(Uncached(member._weights.model, member._weights.tokenizer, name=member.name, graphs=False))
    ensemble = loaded(bare)
    one_answer(ensemble, turns, 12)
    return one_answer(ensemble, turns, tokens)


def two_devices(tiny: bool, turns: Turns, tokens: int) -> dict[str, Any]:
    """Two members on one GPU, and the same two on one each."""
    told = {}
    for where, places in {"one": ("cuda:0", "cuda:0"), "two": ("cuda:0", "cuda:1")}.items():
        members = [members_of([shape], tiny, device)[0] for shape, device in zip(SHAPES, places, strict=False)]
        ensemble = loaded(members)
        one_answer(ensemble, turns, WARM_TOKENS)
        told[where] = one_answer(ensemble, turns, tokens)["per_token"]
        del ensemble, members
        gc.collect()
        torch.cuda.empty_cache()
    return {"two_devices_over_one": round(told["two"] / told["one"], 2)}


def measured(told: argparse.Namespace) -> dict[str, Any]:
    began = time.perf_counter()
    speed = copy_speed(told.device, 1 << (24 if told.tiny else 31))
    print(f"roofline: {speed / 1e9:.0f} GB/s, read and written")
    members = members_of(list(SHAPES), told.tiny, told.device)
    ensemble = loaded(members)
    in_leaps(members)
    captured = {one.name: bool(one.drawing.leaps and one.drawing.leaps.graphs) for one in members}
    print(f"{len(members)} members after {time.perf_counter() - began:.0f} s; captured: {captured}")
    turns = prompt_of(members[0], told.prompt, "What came next?")
    one_answer(ensemble, turns, WARM_TOKENS)
    one = one_query(ensemble, turns, told.tokens, speed, told.repeats)
    print(f"one query after {time.perf_counter() - began:.0f} s")
    prompts = [prompt_of(members[0], told.prompt, f"What came next, at {at} o'clock?") for at in range(told.queries)]
    many_answers(ensemble, prompts, min(told.tokens, WARM_TOKENS))
    crowd = many_answers(ensemble, prompts, told.tokens)
    print(f"{told.queries} queries after {time.perf_counter() - began:.0f} s")
    plain = uncached(members, turns, told.tokens)
    again = one_answer(ensemble, turns, told.tokens)  # beside it in time
    gain = crowd["tokens"] / crowd["seconds"] / one["tokens_per_second"]
    result = {
        "machine": machine(),
        "date": datetime.now(UTC).date().isoformat(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "dtype": str(members[0].store.read.model.dtype).removeprefix("torch."),
        "members": [one.name for one in members],
        "captured": captured,
        "prompt_tokens": members[0].token_count(turns),
        "roofline_gb_per_s": round(speed / 1e9, 1),
        "one_query": one,
        "queries": told.queries,
        "queries_tokens_per_second": round(crowd["tokens"] / crowd["seconds"], 2),
        "gain_of_queries_at_once": round(gain, 2),
        "speedup_over_uncached": round(plain["seconds"] / plain["tokens"] * again["tokens"] / again["seconds"], 2),
    }
    if told.device == "cuda" and torch.cuda.device_count() > 1:
        del ensemble, members
        gc.collect()
        torch.cuda.empty_cache()
        result |= two_devices(told.tiny, turns, told.tokens)
    return result | {"script_seconds": round(time.perf_counter() - began)}


def shown(result: dict[str, Any]) -> str:
    one, how = result["one_query"], "captured" if all(result["captured"].values()) else "in leaps, not captured"
    rows = [
        ("roofline (copy)", f"{result['roofline_gb_per_s']} GB/s", ""),
        ("floor, one query", f"{one['floor_ms_per_token']} ms/token", ""),
        (
            f"measured, {how}",
            f"{one['captured_ms_per_token']} ms/token",
            f"{one['of_floor_captured']:.0%} of the floor",
        ),
        (
            "measured, token by token",
            f"{one['uncaptured_ms_per_token']} ms/token",
            f"{one['of_floor_uncaptured']:.0%} of the floor",
        ),
        (
            f"{result['queries']} queries at once",
            f"{result['queries_tokens_per_second']} tokens/s",
            f"{result['gain_of_queries_at_once']} times one query's",
        ),
        ("nothing cached", "", f"{result['speedup_over_uncached']} times as long"),
    ]
    if "two_devices_over_one" in result:
        rows.append(
            ("two members, a GPU each", "", f"{result['two_devices_over_one']} of the time on one (0.5: at once)")
        )
    return "\n".join([f"{result['machine']}, {result['date']}", *(f"{a:26} {b:>20}  {c}" for a, b, c in rows)])


def main(arguments: Sequence[str] | None = None) -> dict[str, Any] | None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--tiny", action="store_true", help="small shapes; nothing is kept")
    told = parser.parse_args(arguments)
    if told.device == "cuda" and not torch.cuda.is_available():
        print("no GPU here: nothing was measured (--tiny --device cpu shows that the script runs)")
        return None
    if told.device == "cpu" and not told.tiny:
        parser.error("these shapes are for a GPU; on a CPU only --tiny runs")
    result = measured(told)
    print(shown(result))
    if not told.tiny:
        Path(__file__).with_suffix(".json").write_text(json.dumps([result], indent=2) + "\n")
    return result


if __name__ == "__main__":
    main()
