"""What TransformersMember does on a GPU: ratios and tokens a second, with random weights.

The speed of a model does not depend on its weights, so these have the shape of a Llama and random
values. Measured are transformers' own ``generate``, one member alone, a vote of several, and eight
questions at once against one after another. Without a GPU nothing is measured.

    python benchmarks/gpu.py [--tokens 128] [--repeats 3] [--shape 8b]
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
import transformers
from common import NOTES, STORY, arguments, report
from langchain_core.messages import AIMessageChunk

from langchain_specfuse import SpecFuseChatModel, TransformersMember
from tests.members.tiny import CHATML, tokenizer_of

MEASURES = ("core", "engine", "members/local", "members/transformers")
"""The parts of the package that decide these figures."""

SHAPES = {
    "tiny": (64, 128, 2, 4, 2),
    "1b": (2048, 8192, 16, 32, 8),
    "8b": (4096, 14336, 32, 32, 8),
}
"""Hidden size, size of the feed-forward layers, layers, heads, key-value heads."""
VOCABULARY = 128_256
PAIRS = 8


def model_of(shape: str, seed: int) -> tuple[Any, Any]:
    """A model of this shape in bfloat16 on the GPU, and a tokenizer."""
    hidden, inner, layers, heads, key_value_heads = SHAPES[shape]
    tokenizer = tokenizer_of("bytes", CHATML)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_value_heads,
        max_position_embeddings=8192,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        tie_word_embeddings=False,
    )
    torch.manual_seed(seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    with torch.no_grad():
        rows = model.get_output_embeddings().weight
        # Only tokens that the tokenizer knows are written, and none that ends the turn.
        rows[len(tokenizer) :] = 0.0
        rows[tokenizer.all_special_ids] = 0.0
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    return model, tokenizer


def seconds(work: Callable[[], Any]) -> float:
    since = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - since


def streamed(llm: SpecFuseChatModel, question: str) -> dict[str, float]:
    """The times of one answer, and what its rounds say of it."""
    since = time.perf_counter()
    first = 0.0
    answer = AIMessageChunk(content="")
    for chunk in llm.stream(question):
        if chunk.text and not first:
            first = time.perf_counter() - since
        answer += chunk
    took = time.perf_counter() - since
    rounds = answer.response_metadata["specfuse"]["rounds"]
    return {"seconds": took, "first": first, "rounds": rounds}


def generated(model: Any, tokenizer: Any, tokens: int) -> float:
    """The seconds of transformers' own greedy generation."""
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": STORY}], add_generation_prompt=True, return_tensors="pt"
    )
    ids = prompt["input_ids"] if hasattr(prompt, "keys") else prompt
    ids = ids.to(model.device)
    return seconds(
        lambda: model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            do_sample=False,
            pad_token_id=0,
        )
    )


def measured(shape: str, tokens: int, repeats: int) -> dict[str, Any]:
    models = [model_of(shape, seed) for seed in range(3)]
    members = [
        TransformersMember(model, tokenizer, name=f"m{at}", prefix_cache=False)
        for at, (model, tokenizer) in enumerate(models)
    ]
    alone = SpecFuseChatModel(members=members[:1], max_tokens=tokens)
    vote = SpecFuseChatModel(members=members, max_tokens=tokens, lead=None, method="specem")
    for llm in (alone, vote):
        llm.invoke(STORY, max_tokens=16)
    generated(*models[0], 16)

    runs = []
    for _ in range(repeats):
        own = generated(*models[0], tokens)
        one = streamed(alone, STORY)
        three = streamed(vote, STORY)
        runs.append(
            {
                "generate_tokens_per_s": tokens / own,
                "alone_tokens_per_s": tokens / one["seconds"],
                "alone_over_generate": one["seconds"] / own,
                "alone_first_s": one["first"],
                "vote_tokens_per_s": tokens / three["seconds"],
                "vote_over_generate": three["seconds"] / own,
                "vote_round_s": three["seconds"] / three["rounds"],
                "vote_first_s": three["first"],
            }
        )
    found: dict[str, Any] = {key: median(run[key] for run in runs) for key in runs[0]}

    questions = [f"{STORY} Begin with the number {number}." for number in range(PAIRS)]
    single = seconds(lambda: [alone.invoke(question) for question in questions])
    found["eight_at_once_speedup"] = single / seconds(lambda: alone.batch(questions))
    found["prompt_s"] = median(
        seconds(lambda: alone.invoke(NOTES * 2, max_tokens=1)) for _ in range(repeats)
    )
    if torch.cuda.is_available():
        found["memory_gb"] = torch.cuda.max_memory_allocated() / 1e9
    return {key: round(value, 4) for key, value in found.items()}


def main() -> None:
    parser = arguments(__file__, __doc__, tiny={"tokens": 24, "repeats": 1}, tokens=128, repeats=3)
    parser.add_argument("--shape", nargs="*", default=["1b", "8b"], choices=list(SHAPES))
    given = parser.parse_args()
    shapes = ["tiny"] if given.tiny else given.shape
    if not torch.cuda.is_available() and not given.tiny:
        parser.exit(message="there is no GPU here; nothing was measured\n")
    found = {}
    for shape in shapes:
        found[shape] = measured(shape, given.tokens, given.repeats)
        torch.cuda.empty_cache() if torch.cuda.is_available() else None
    report(__file__, given, MEASURES, found)


if __name__ == "__main__":
    main()
