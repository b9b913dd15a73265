"""What do four members of one base cost, beside one member?

Four adapters of one base (LoRA, rank 16 on every linear layer, random), and one model under four system prompts. Each
ensemble answers with one batch for all members, and again with its members taking turns, as members with weights of
their own do; one member alone is the measure. Everything is measured in turn in one run; told are medians of rounds
after the first and their ratios. Memory is counted: every tensor that is alive in the middle of an answer.

Beside it stands what this machine makes of four rows: a step of four rows against a step of one, a pass that scores
(four rows of thirty tokens) against that, and the same step with four adapters, ours and peft's (if it is installed).

    python benchmarks/kin.py [--dtype float32] [--repeats 3] [--threads 1] [--cpu-time]
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from latency import CLOCK, NOTES, clock, machine, reported
from safetensors.torch import save_file
from transformers import DynamicCache

from langchain_specfuse.core.values import Query, Settings, Turn
from langchain_specfuse.demo import demo_members
from langchain_specfuse.engine import Ensemble
from langchain_specfuse.members.transformers import TransformersMember

RANK = 16
WIDE = 0.004
"""How far the random adapters bend the model: their drafts differ, and are still English."""
LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
PROMPTS = (
    None,
    "Answer briefly.",
    "You are a friendly teacher. Answer in plain words.",
    "Answer as a historian would.",
)
TURNS = (Turn("user", NOTES.strip().split("\n\n")[1] + "\n\nWhat changed for a ship's captain, and why?"),)
SETTINGS = Settings(exit="never", min_members=4, voice="equal")


def written(model: Any, folder: Path, seed: int) -> Path:
    """A random adapter for this model, as peft writes it."""
    chance, matrices = torch.Generator().manual_seed(seed), {}
    for path, module in model.named_modules():
        if path.rpartition(".")[2] in LINEAR:
            down = torch.randn((RANK, module.in_features), generator=chance) / module.in_features**0.5
            up = torch.randn((module.out_features, RANK), generator=chance) * WIDE * module.in_features**0.5
            matrices |= {f"base_model.model.{path}.lora_{name}.weight": m for name, m in (("A", down), ("B", up))}
    folder.mkdir()
    save_file(matrices, folder / "adapter_model.safetensors")
    told = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": list(LINEAR), "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(told))
    return folder


@contextmanager
def taking_turns(members: Sequence[TransformersMember]) -> Iterator[None]:
    """As members that do not know of each other."""
    kin = [member.kin for member in members]
    for member in members:
        member.kin = None
    yield
    for member, its in zip(members, kin, strict=True):
        member.kin = its


def answered(members: Sequence[TransformersMember], max_tokens: int = 40) -> dict[str, Any]:
    """One answer: the seconds of its rounds after the first, and what was drafted in them."""
    query = Query(f"q{clock()}", TURNS)
    seconds, tokens, held, since = [], [], 0, 0.0
    for round in Ensemble(members).rounds(query, replace(SETTINGS, max_tokens=max_tokens)):
        if round.number > 1 and not round.finish:
            seconds.append(clock() - since)
            tokens.append(max(len(draft.tokens) for draft in round.drafts.values()))
        if round.number == 2:
            held = tensor_bytes()
        since = clock()
    return {"seconds": seconds, "tokens": tokens, "bytes": held}


def tensor_bytes() -> int:
    """All that tensors hold in this process, each storage once."""
    gc.collect()
    found = {}
    for thing in gc.get_objects():
        with suppress(Exception):
            if issubclass(type(thing), torch.Tensor):
                found[thing.untyped_storage().data_ptr()] = thing.untyped_storage().nbytes()
    return sum(found.values())


def ensembles(base: dict[str, Any], folders: Sequence[Path]) -> dict[str, list[TransformersMember]]:
    adapted = [TransformersMember(**base, adapter=folder, name=folder.name) for folder in folders]
    prompted = [TransformersMember(**base, name=f"prompt {k}", system_prompt=p) for k, p in enumerate(PROMPTS)]
    return {"four adapters": adapted, "four prompts": prompted}


def compared(base: dict[str, Any], folders: Sequence[Path], repeats: int) -> dict[str, Any]:
    """Rounds of one member and of four, in one batch and in turns."""
    told: dict[str, Any] = {}
    one = {"four adapters": folders[0], "four prompts": None}
    for name in one:
        alone = [TransformersMember(**base, adapter=one[name], name="alone")]
        answered(alone, 8)  # warm up
        runs: dict[str, list[dict[str, Any]]] = {"alone": [], "one_batch": [], "in_turns": []}
        runs["alone"].append(answered(alone))  # its memory is counted while the others are not there
        four = ensembles(base, folders)[name]
        answered(four, 8)
        for _ in range(repeats):
            runs["alone"].append(answered(alone))
            runs["one_batch"].append(answered(four))
            with taking_turns(four):
                runs["in_turns"].append(answered(four))
        single_bytes, four_bytes = runs["alone"][0]["bytes"], runs["one_batch"][0]["bytes"]
        spent = {way: median(s for run in got for s in run["seconds"]) for way, got in runs.items()}
        drafted = {way: median(n for run in got for n in run["tokens"]) for way, got in runs.items()}
        told[name] = {
            "seconds_of_a_round": {way: round(s, 3) for way, s in spent.items()},
            "longest_draft_of_a_round": drafted,
            "one_batch_to_alone": round(spent["one_batch"] / spent["alone"], 2),
            "in_turns_to_alone": round(spent["in_turns"] / spent["alone"], 2),
            "in_turns_to_one_batch": round(spent["in_turns"] / spent["one_batch"], 2),
            "megabytes_alone": round(single_bytes / 1e6, 1),
            "megabytes_of_four": round(four_bytes / 1e6, 1),
            "memory_of_four_to_alone": round(four_bytes / single_bytes, 3),
        }
        print(name, told[name], flush=True)
        for member in (*alone, *four):
            member.unload()
    return told


@torch.inference_mode()
def in_turn(ways: dict[str, Callable[[], Any]], times: int) -> dict[str, float]:
    """The median of each, all in turn."""
    spent: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(times):
        for name, call in ways.items():
            since = clock()
            call()
            spent[name].append(clock() - since)
    return {name: median(found) for name, found in spent.items()}


def stepping(model: Any, rows: int, tokens: int = 1, **more: Any) -> Callable[[], Any]:
    """Reads so many tokens of so many rows after 128 others, and forgets them."""
    cache = DynamicCache(config=model.config)
    with torch.inference_mode():
        model(input_ids=torch.arange(128).repeat(rows, 1) + 100, past_key_values=cache, **more)
    new = torch.full((rows, tokens), 200)

    def step() -> None:
        model(input_ids=new, past_key_values=cache, **more)
        cache.crop(-tokens)

    return step


def floor(base: dict[str, Any], folders: Sequence[Path], times: int) -> dict[str, Any]:
    """What four rows cost beside one on this machine, and what adapters add to that."""
    members = ensembles(base, folders)["four adapters"]
    for member in members:
        member.probe()
    weights = members[0]._weights
    assert weights is not None
    model, rows = weights.model, [member.adapted for member in members]
    ours = stepping(model, 4)

    def adapted() -> None:
        with weights.adapters.reading(rows):
            ours()

    ways = {
        "one": stepping(model, 1),
        "four": stepping(model, 4),
        "scores": stepping(model, 4, 30),
        "four_with_adapters": adapted,
    }
    spent = in_turn(ways, times)
    told = {
        "step_of_four_rows_to_one": round(spent["four"] / spent["one"], 2),
        "scoring_pass_to_step_of_one": round(spent["scores"] / spent["one"], 2),
        "four_adapters_add_to_a_step": round(spent["four_with_adapters"] / spent["four"] - 1, 3),
        "round_at_least": round((10 * spent["four"] + spent["scores"]) / (10 * spent["one"]), 2),
    }
    for member in members:
        member.unload()
    print(told, flush=True)
    return told | (by_peft(base, folders, times) if importlib.util.find_spec("peft") else {})


def by_peft(base: dict[str, Any], folders: Sequence[Path], times: int) -> dict[str, Any]:
    """The same step with peft's own batches of several adapters."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base["model"], dtype=base["dtype"]).eval()
    plain = stepping(model, 4)
    before = in_turn({"plain": plain}, times)["plain"]
    names = [folder.name for folder in folders]
    adapted = PeftModel.from_pretrained(model, folders[0], adapter_name=names[0])
    for name, folder in zip(names[1:], folders[1:], strict=True):
        adapted.load_adapter(folder, adapter_name=name)
    adapted.eval()
    spent = in_turn({"mixed": stepping(adapted, 4, adapter_names=names)}, times)["mixed"]
    return {"four_adapters_of_peft_add_to_a_step": round(spent / before - 1, 3)}


def measured(dtype: str, repeats: int, threads: int) -> dict[str, Any]:
    torch.set_num_threads(threads)
    (member, *_) = demo_members(dtype=dtype)
    base = {"model": member.source.model, "dtype": dtype, "chat_template": member.chat_template}
    member.probe()
    assert member._weights is not None
    with tempfile.TemporaryDirectory() as place:
        folders = [written(member._weights.model, Path(place) / f"adapter {k}", k) for k in range(4)]
        name = member.name
        member.unload()
        del member
        return {
            "dtype": dtype,
            "machine": machine(),
            "clock": CLOCK["name"].replace("one thread", f"{threads} threads") if threads > 1 else CLOCK["name"],
            "torch": torch.__version__,
            "base": name,
            "repeats": repeats,
            "floor": floor(base, folders, 5 * repeats),
            "ensembles": compared(base, folders, repeats),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", nargs="*", default=["float32"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cpu-time", action="store_true")
    told = parser.parse_args()
    reported(__file__, told, lambda dtype: measured(dtype, told.repeats, told.threads))


if __name__ == "__main__":
    main()
