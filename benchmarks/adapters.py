"""What do four members of one base cost, beside one member?

Four adapters of one base (LoRA, rank 16 on every linear layer, random), and one model under four system prompts. Each
ensemble answers with one batch for all members, and again with its members taking turns, as members with weights of
their own do; one member alone is the measure. All are measured in turn in one run; reported are medians of rounds after
the first and their ratios. Memory is counted: every tensor that is alive in the middle of an answer.

Beside it stands what this machine makes of four rows: a step of four rows against a step of one, a pass that scores
(four rows of thirty tokens) against that, and the same step with peft's own batches of four adapters (with peft).

    python benchmarks/adapters.py [--dtype float32] [--repeats 3] [--threads 1] [--tokens 40] [--cpu-time]
"""

from __future__ import annotations

import gc
import importlib.util
import json
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

import torch
from common import NOTES, arguments, clock, demo, query, question, reported, timed
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, DynamicCache

from langchain_specfuse import TransformersMember
from langchain_specfuse.core.method import Method, Settings
from langchain_specfuse.engine import Ensemble

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
TURNS = question(NOTES.strip().split("\n\n")[1] + "\n\nWhat changed for a ship's captain, and why?")
METHOD = Method(exit="never", min_members=4, weighting="equal")


class TakesTurns:
    """A member that joins no batch with others."""

    def __init__(self, **given: Any) -> None:
        self.member = TransformersMember(**given)
        self.name, self.probe, self.unload = self.member.name, self.member.probe, self.member.unload
        self.draft, self.score, self.forget = self.member.draft, self.member.score, self.member.forget

    @property
    def device(self) -> str:
        return self.member.device


def adapter(model: Any, folder: Path, seed: int) -> Path:
    """A random adapter for this model, as peft writes it."""
    chance, matrices = torch.Generator().manual_seed(seed), {}
    for path, module in model.named_modules():
        if path.rpartition(".")[2] in LINEAR:
            down = torch.randn((RANK, module.in_features), generator=chance) / module.in_features**0.5
            up = torch.randn((module.out_features, RANK), generator=chance) * WIDE * module.in_features**0.5
            matrices |= {f"base_model.model.{path}.lora_{name}.weight": m for name, m in (("A", down), ("B", up))}
    folder.mkdir()
    save_file(matrices, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": list(LINEAR), "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def answered(members: Sequence[Any], max_tokens: int) -> dict[str, Any]:
    """One answer: the seconds of its rounds after the first, what was drafted in them, and the memory in use."""
    seconds, tokens, held, since = [], [], 0, 0.0
    for round in Ensemble(members).rounds(query(TURNS), Settings(max_tokens=max_tokens, method=METHOD)):
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


def compared(four: Sequence[dict[str, Any]], repeats: int, tokens: int) -> dict[str, Any]:
    """Rounds of one member and of four, in one batch and in turns. ``four``: what each member is made from."""
    alone = [TransformersMember(**four[0] | {"name": "alone"})]
    answered(alone, 8)  # warm up
    runs: dict[str, list[dict[str, Any]]] = {"alone": [], "one_batch": [], "in_turns": []}
    runs["alone"].append(answered(alone, tokens))  # its memory is counted before the others are there
    one_batch, in_turns = ([made(**one) for one in four] for made in (TransformersMember, TakesTurns))
    answered(one_batch, 8)
    runs["one_batch"].append(answered(one_batch, tokens))
    answered(in_turns, 8)
    for _ in range(repeats):
        for way, members in (("alone", alone), ("one_batch", one_batch), ("in_turns", in_turns)):
            runs[way].append(answered(members, tokens))
    spent = {way: median(s for run in some for s in run["seconds"]) for way, some in runs.items()}
    drafted = {way: median(n for run in some for n in run["tokens"]) for way, some in runs.items()}
    single_bytes, four_bytes = runs["alone"][0]["bytes"], runs["one_batch"][0]["bytes"]
    for member in (*alone, *one_batch, *in_turns):
        member.unload()
    return {
        "seconds_of_a_round": {way: round(s, 3) for way, s in spent.items()},
        "longest_draft_of_a_round": drafted,
        "one_batch_to_alone": round(spent["one_batch"] / spent["alone"], 2),
        "in_turns_to_alone": round(spent["in_turns"] / spent["alone"], 2),
        "in_turns_to_one_batch": round(spent["in_turns"] / spent["one_batch"], 2),
        "megabytes_alone": round(single_bytes / 1e6, 1),
        "megabytes_of_four": round(four_bytes / 1e6, 1),
        "memory_of_four_to_alone": round(four_bytes / single_bytes, 3),
    }


# --- this machine -----------------------------------------------------------------------------------------------


def stepping(model: Any, rows: int, tokens: int = 1, **more: Any) -> Callable[[], Any]:
    """Reads this many tokens of this many rows after 128 others, and forgets them."""
    cache, new = DynamicCache(config=model.config), torch.full((rows, tokens), 200)
    with torch.inference_mode():
        model(input_ids=torch.arange(128).repeat(rows, 1) + 100, past_key_values=cache, **more)

    def step() -> None:
        with torch.inference_mode():
            model(input_ids=new, past_key_values=cache, **more)
        cache.crop(-tokens)

    return step


def in_turn(ways: dict[str, Callable[[], Any]], times: int) -> dict[str, float]:
    """The median of each, all in turn."""
    runs = [{name: timed(call)[0] for name, call in ways.items()} for _ in range(times)]
    return {name: median(run[name] for run in runs) for name in ways}


def floor(model: Any, folders: Sequence[Path], times: int) -> dict[str, Any]:
    """What four rows cost beside one on this machine, and what peft's adapters add to that."""
    plain = stepping(model, 4)
    spent = in_turn({"one": stepping(model, 1), "four": plain, "scores": stepping(model, 4, 30)}, times)
    found = {
        "step_of_four_rows_to_one": round(spent["four"] / spent["one"], 2),
        "scoring_pass_to_step_of_one": round(spent["scores"] / spent["one"], 2),
        "round_at_least": round((10 * spent["four"] + spent["scores"]) / (10 * spent["one"]), 2),
    }
    if importlib.util.find_spec("peft"):
        from peft import PeftModel

        names = [folder.name for folder in folders]
        adapted = PeftModel.from_pretrained(model, folders[0], adapter_name=names[0])
        for name, folder in zip(names[1:], folders[1:], strict=True):
            adapted.load_adapter(folder, adapter_name=name)
        mixed = in_turn({"mixed": stepping(adapted.eval(), 4, adapter_names=names)}, times)["mixed"]
        found["four_adapters_of_peft_add_to_a_step"] = round(mixed / spent["four"] - 1, 3)
    return found


def measured(dtype: str, repeats: int, threads: int, tokens: int) -> dict[str, Any]:
    torch.set_num_threads(threads)
    base = {**demo(dtype)[0].spec, "dtype": dtype}
    model = AutoModelForCausalLM.from_pretrained(base["model"], dtype=getattr(torch, dtype)).eval()
    with tempfile.TemporaryDirectory() as place:
        folders = [adapter(model, Path(place) / f"adapter {k}", k) for k in range(4)]
        found: dict[str, Any] = {"floor": floor(model, folders, 5 * repeats)}
        del model
        adapted = [{**base, "adapter": folder, "name": folder.name} for folder in folders]
        prompted = [{**base, "name": f"prompt {k}", "system_prompt": prompt} for k, prompt in enumerate(PROMPTS)]
        found["ensembles"] = {
            "four adapters": compared(adapted, repeats, tokens),
            "four prompts": compared(prompted, repeats, tokens),
        }
    return {"base": base["model"].rpartition("/")[2], **found}


def main() -> None:
    parser = arguments(__file__, __doc__, dtype=["float32"], repeats=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=40, help="of an answer")
    given = parser.parse_args()
    reported(given, lambda dtype: measured(dtype, given.repeats, given.threads, given.tokens))


if __name__ == "__main__":
    main()
