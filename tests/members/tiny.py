"""Tiny random models of many architectures, each with a tokenizer of its own, quickly made and kept
for the session.

The weights are wide, so that the logits are sharp and greedy choices do not depend on rounding.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

# The first thousand modules behind the model classes are imported here, not by the first test that
# makes a model: the garbage collector then never looks through them (see tests/conftest.py).
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from langchain_specfuse.constraints import referee_for
from langchain_specfuse.core.member import Member
from langchain_specfuse.core.options import Settings
from langchain_specfuse.core.panel import Panel
from langchain_specfuse.core.round import Round
from langchain_specfuse.core.rounds import rounds
from langchain_specfuse.core.values import (
    Ask,
    Candidate,
    Constraint,
    Draft,
    DraftJob,
    Panelist,
    Query,
    Reply,
    Sampling,
    Scored,
    ScoreJob,
    Segment,
    Turn,
)
from langchain_specfuse.members.local.cache import Cache
from langchain_specfuse.members.local.strands import Extension, Strand
from langchain_specfuse.members.transformers.member import TransformersMember

torch.set_num_threads(1)  # for matrices this small, more threads are slower
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
"""Tests use a GPU if there is one."""
NEAR = 1e-4
"""In float32, log-probabilities of two correct readings are closer than this."""

CORPUS = [
    "The sky is blue because the air scatters blue light more than red light. Why is that so?",
    "The answer is 42, and the question is not known; 3.14 is close to pi, 1000 is a number.",
    "def add(a, b):\n    if a > b:\n        return a + b\n\treturn None  # the end\n\n\nclass "
    "Sky:\n    pass\n",
    "| one | two |\n|-----|-----|\n|  1  |  2  |\n\n- first item\n  - second item\n\n1. One.\n2. "
    "Two.\n",
    "天空是蓝色的，因为空气散射蓝光。为什么？ これは日本語の文です。한국어 문장입니다.",
    "Emoji 😀 and 🎉 and 👩‍👩‍👧 are whole; so is é, ü, ñ, ß and Ω.",
    "https://example.org/a?b=c&d=e user@example.org C:\\path\\to\\file $x^2 + y^2 = z^2$",
    "user assistant system question answer ## Question\n\nHello\n\n## Answer\n\nGood day.\n\n",
]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
INST = (
    "<s>{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system role') "
    "}}{% endif %}"
    "{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %} {{ m.content }}</s>{% endif "
    "%}{% endfor %}"
)

# --- tokenizers -----------------------------------------------------------------------------------


def byte_level(
    size: int, prefix: bool = False, digits: bool = False, more: Sequence[str] = ()
) -> Tokenizer:
    """Return a byte-level BPE like those of GPT-2, Llama 3 and Qwen."""
    tokenizer = Tokenizer(models.BPE())
    level = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=not more)
    tokenizer.pre_tokenizer = (
        pre_tokenizers.Sequence([pre_tokenizers.Digits(True), level]) if digits else level
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([*more, *CORPUS], trainer)
    return tokenizer


def metaspace(size: int, prepend: str = "first") -> Tokenizer:
    """Return SentencePiece's BPE with byte fallback, as in Llama 2 and Mistral: "▁" replaces
    spaces, and one is put first."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    steps = [normalizers.Replace(" ", "▁")]
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), *steps] if prepend == "first" else steps
    )
    undo: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(
        [*undo, decoders.Strip(" ", 1, 0)] if prepend == "first" else undo
    )
    raw = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["<unk>", *SPECIAL, *raw],
        max_token_length=8,
        show_progress=False,
    )
    # Trained on words, so that no token joins two of them.
    words = [word for line in CORPUS for word in line.replace(" ", " ▁").split(" ")]
    tokenizer.train_from_iterator(words, trainer)
    return _without_special_bytes(tokenizer, raw)


def _without_special_bytes(tokenizer: Tokenizer, raw: list[str]) -> Tokenizer:
    """Make byte tokens ordinary tokens of the vocabulary, so that decoding shows them."""
    parsed = json.loads(tokenizer.to_str())
    parsed["added_tokens"] = [
        token for token in parsed["added_tokens"] if token["content"] not in raw
    ]
    return Tokenizer.from_str(json.dumps(parsed))


def unigram(size: int) -> Tokenizer:
    """Return SentencePiece's unigram model, as in T5 and XGLM. Pieces are counted here, because the
    library's trainer gives another vocabulary in every process.

    Its pieces are counted here: the library's own trainer gives another vocabulary in every
    process.
    """
    words = [word for line in CORPUS for word in ("▁" + line.replace(" ", " ▁")).split(" ")]
    pieces = [
        word[at : at + long]
        for word in words
        for long in range(2, 7)
        for at in range(len(word) - long + 1)
    ]
    alphabet = sorted(
        {char for word in words for char in word} | {chr(code) for code in range(33, 127)}
    )
    known = ["<unk>", *SPECIAL, *alphabet]
    often = Counter(pieces).most_common()
    frequent = sorted(often, key=lambda item: (-item[1] * len(item[0]), item[0]))[
        : size - len(known)
    ]
    score = dict.fromkeys(known, -8.0) | {
        piece: math.log(count / len(pieces)) for piece, count in frequent
    }
    tokenizer = Tokenizer(models.Unigram(list(score.items()), 0, False))
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    return tokenizer


SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
MAKERS: dict[str, Callable[[], Tokenizer]] = {
    "bytes": lambda: byte_level(400),
    "bytes-prefix": lambda: byte_level(440, prefix=True),
    "bytes-digits": lambda: byte_level(520, digits=True),
    "bytes-lines": lambda: byte_level(400, more=[".\n"] * 50),
    "pieces": lambda: metaspace(480),
    "pieces-bare": lambda: metaspace(500, prepend="never"),
    "unigram": lambda: unigram(330),
}


@cache
def _trained(kind: str) -> str:
    return MAKERS[kind]().to_str()


def tokenizer_of(
    kind: str, chat_template: str | None = None, **kwargs: Any
) -> PreTrainedTokenizerFast:
    """Return a new tokenizer of this kind; ``eos`` is the special token that ends a turn (default
    ``</s>``)."""
    eos = kwargs.pop("eos", "</s>")
    special = [token for token in ("<|im_start|>", "<|im_end|>") if token != eos]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(_trained(kind)),
        bos_token="<s>",
        eos_token=eos,
        additional_special_tokens=special,
        clean_up_tokenization_spaces=False,
        **kwargs,
    )
    tokenizer.chat_template = chat_template
    return tokenizer


# --- models ---------------------------------------------------------------------------------------

_SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "initializer_range": 0.35,
}
_GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 1024, "initializer_range": 0.35}
_GEMMA = {
    "head_dim": 8,
    "sliding_window": 8,
    "layer_types": ["sliding_attention", "full_attention"],
}
_NEXT = {
    # if it were wider, reading at once and token by token would differ by 4e-4
    "initializer_range": 0.2,
    "head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
}
_BLOOM = {"hidden_size": 32, "n_layer": 2, "n_head": 4, "initializer_range": 0.35}
_OPT = {
    "hidden_size": 32,
    "ffn_dim": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "word_embed_proj_dim": 32,
    "max_position_embeddings": 1024,
    "init_std": 0.35,
}
_MAMBA = {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 8, "initializer_range": 0.35}

END = 1.5

# name -> (config class, its arguments, tokenizer, chat template)
ARCHITECTURES: dict[str, tuple[str, dict[str, Any], str, str | None]] = {
    "llama": ("LlamaConfig", _SIZES, "bytes", CHATML),
    "gpt2": ("GPT2Config", _GPT2, "bytes-prefix", None),
    "gemma3": ("Gemma3TextConfig", _SIZES | _GEMMA, "pieces-bare", CHATML),
    "mistral": ("MistralConfig", _SIZES | {"sliding_window": 10}, "pieces", INST),
    "qwen3": ("Qwen3Config", _SIZES | {"head_dim": 8}, "bytes-digits", CHATML),
    "qwen3-next": ("Qwen3NextConfig", _SIZES | _NEXT, "bytes-digits", CHATML),
    "lfm2": ("Lfm2Config", _SIZES | {"layer_types": ["conv", "full_attention"]}, "bytes", CHATML),
    "bloom": ("BloomConfig", _BLOOM, "unigram", None),
    "opt": ("OPTConfig", _OPT, "bytes", None),
    "phi3": ("Phi3Config", _SIZES | {"pad_token_id": 0}, "pieces", CHATML),
    "gpt-neox": (
        "GPTNeoXConfig",
        {k: v for k, v in _SIZES.items() if k != "num_key_value_heads"},
        "bytes",
        None,
    ),
}
ALL = list(ARCHITECTURES)
_CHUNKS = {
    "head_dim": 8,
    "attention_chunk_size": 32,
    "num_local_experts": 2,
    "intermediate_size_mlp": 48,
    "layer_types": ["chunked_attention", "full_attention"],
    "moe_layers": [],
}
_LONG = {
    "pad_token_id": 0,
    "original_max_position_embeddings": 48,
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0] * 4,
        "long_factor": [4.0] * 4,
        "original_max_position_embeddings": 48,
    },
}
# Not in ALL: a state that takes one token at a time, chunks, rotations that change with the length,
# soft caps, sinks.
ARCHITECTURES["mamba"] = ("MambaConfig", _MAMBA, "bytes", CHATML)
ARCHITECTURES["llama4"] = ("Llama4TextConfig", _SIZES | _CHUNKS, "bytes", CHATML)
ARCHITECTURES["phi3-long"] = ("Phi3Config", _SIZES | _LONG, "pieces", CHATML)
ARCHITECTURES["gemma2"] = ("Gemma2Config", _SIZES | _GEMMA, "pieces-bare", CHATML)
ARCHITECTURES["gpt-oss"] = (
    "GptOssConfig",
    _SIZES | _GEMMA | {"num_local_experts": 2, "num_experts_per_tok": 1},
    "bytes",
    CHATML,
)
THREE = ["llama", "gemma3", "qwen3-next"]
"""Full attention, mixed sliding windows and recurrent states, for tests that need one of each."""


def three_first(archs: Sequence[str]) -> list[Any]:
    """Return parameters for a test: `make test` runs it for THREE, `make test-rest` for the
    others."""
    long = pytest.mark.long
    return [arch if arch in THREE else pytest.param(arch, marks=long) for arch in archs]


# even if a test runs in inference mode, because users' weights are ordinary tensors
@torch.inference_mode(False)
def build(
    arch: str, seed: int = 0, attn: str | None = None, **changes: Any
) -> tuple[Any, PreTrainedTokenizerFast]:
    """Return a model and its tokenizer; equal arguments give equal weights."""
    name, arguments, kind, template = ARCHITECTURES[arch]
    tokenizer = tokenizer_of(changes.pop("tokenizer", kind), changes.pop("chat_template", template))
    config = getattr(transformers, name)(
        vocab_size=len(tokenizer),
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        tie_word_embeddings=False,
        **(arguments | changes),
    )
    torch.manual_seed(seed)
    extra = {"attn_implementation": attn} if attn else {}
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, **extra).eval()
    with torch.no_grad():  # ends come up now and then
        rows = model.get_output_embeddings().weight
        rows[tokenizer.eos_token_id] *= END
        if seed % 2:
            rows[_broken(tokenizer)] = 0.0
    return model.to(DEVICE), tokenizer


def _broken(tokenizer: PreTrainedTokenizerFast) -> list[int]:
    """Return tokens that are not complete text: models with an odd seed never write them, the
    others often do."""
    names = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    return [
        k
        for k, name in enumerate(names)
        if name.startswith("<0x") or not tokenizer.decode([k]).isprintable()
    ]


cached = cache(build)
_numbers = itertools.count()


def member(
    arch: str,
    seed: int = 0,
    *,
    made_with: dict[str, Any] | None = None,
    **kwargs: Any,
) -> TransformersMember:
    """Return a probed member; members of one architecture and seed share their weights."""
    model, tokenizer = cached(arch, seed, **(made_with or {}))
    tiny_member = TransformersMember(model, tokenizer, **({"name": f"{arch}-{seed}"} | kwargs))
    tiny_member.probe()
    return tiny_member


def greedy(member: TransformersMember, query: Query, count: int) -> list[int]:
    """Return what ``generate`` makes of the same prompt, without the token that ends it."""
    member.probe()
    ids = torch.tensor([member.prompts.prompt(query.turns)], device=DEVICE)
    generated = member.cache.weights.model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=count,
        do_sample=False,
        eos_token_id=list(member.stops),
        pad_token_id=member.stops[0],
    )[0, ids.shape[1] :].tolist()
    return [token for token in generated if token not in member.stops]


def answered(
    members: Sequence[Member],
    query: Query,
    settings: Settings | None = None,
    after: Callable[[Ask, Mapping[str, Reply]], None] | None = None,
    panelists: Sequence[Panelist] = (),
) -> list[Round]:
    """Return the rounds of a whole answer without threads; ``after`` receives every job with its
    replies."""
    by_name = {member.name: member for member in members}
    referee = referee_for(query.constraint)
    loop = rounds(
        query,
        settings or Settings(),
        Panel.of(panelists or [Panelist(name) for name in by_name]),
        referee,
    )
    finished: list[Round] = []
    replies: dict[str, Reply] | None = None
    while (item := next(loop, None) if replies is None else loop.send(replies)) is not None:
        replies = None
        if isinstance(item, Round):
            finished.append(item)
            if item.finish:
                break
            continue
        replies = {name: reply_of(by_name[name], job) for name, job in item.jobs.items()}
        if after:
            after(item, replies)
    for member in members:
        member.forget(query.id)
    return finished


def relayed(members: Sequence[Member], query: Query, size: int, turns: int) -> tuple[Segment, ...]:
    """Write an answer in which the members take turns and all others score each draft: foreign
    text, own text and the seams between them."""
    referee = referee_for(query.constraint)
    answer: tuple[Segment, ...] = ()

    def forced() -> tuple[Segment, ...]:
        text = referee.forced("".join(segment.text for segment in answer))
        return (*answer, Segment(text)) if text else answer

    answer = forced()
    for turn in range(turns):
        drafts = {
            member.name: reply_of(member, DraftJob(query, answer, size, 64, Sampling()))
            for member in members
        }
        candidates = {
            name: Candidate(d.text, d.ended, (name,))
            for name, d in drafts.items()
            if isinstance(d, Draft)
        }
        for member in members:
            others = tuple(c for c in candidates.values() if member.name not in c.authors)
            reply_of(member, ScoreJob(query, answer, others))
        won = drafts[members[turn % len(members)].name]
        assert isinstance(won, Draft)
        same = {
            name: d.tokens
            for name, d in drafts.items()
            if isinstance(d, Draft) and d.text == won.text
        }
        answer = (*answer, Segment(won.text, False, same))
        answer = forced()
        if query.constraint and won.ended:
            break
    for member in members:
        member.forget(query.id)
    return answer


def reply_of(member: Member, job: DraftJob | ScoreJob) -> Reply:
    return (member.draft([job]) if isinstance(job, DraftJob) else member.score([job]))[0]


def text_of(rounds: Sequence[Round]) -> str:
    return "".join(round.text for round in rounds)


def tokens_of(rounds: Sequence[Round], name: str) -> list[int]:
    return [token for round in rounds for token in round.segment.tokens[name]]


def query(
    text: str = "Why is the sky blue?",
    *before: Turn,
    id: str | None = None,
    constraint: Constraint | None = None,
) -> Query:
    return Query(id or f"q{next(_numbers)}", (*before, Turn("user", text)), constraint=constraint)


# --- measures -------------------------------------------------------------------------------------


class Rereading(Cache):
    """The reference for caches: every pass reads the whole text, whatever was read before."""

    kind = "no cache"

    def __init__(self, weights: Any) -> None:
        super().__init__(weights, chunk=64)

    def blank(self, keys: Any = ()) -> Strand:
        return Strand()

    def release(self, strand: Strand) -> None:
        strand.cut(0)

    def copy(self, old: Strand, new: Strand, size: int) -> None:
        new.begin_as(old)
        new.cut(size)

    def cut(self, strand: Strand, size: int) -> bool:
        strand.cut(size)
        return True

    def read(self, extensions: Sequence[Extension]) -> list[Any]:
        logits = []
        for strand, tokens, rows in extensions:
            ids = [*strand.ids, *tokens]
            logits.append(self.weights.forward(ids, rows=rows))
            strand.ids = ids
            self.tokens_read += len(tokens)
        return logits

    def bytes_of(self, strand: Strand) -> int:
        return 0

    @property
    def bytes_held(self) -> int:
        return self.logits_bytes

    def bytes_for(self, tokens: int) -> int:
        return 0


def without_cache(member: TransformersMember) -> TransformersMember:
    """Return this member, whose model was given in memory, with the reference for caches."""
    member._new_cache = lambda weights, adapter: Rereading(weights)  # type: ignore[method-assign]
    return member


class Wishful(torch.nn.Module):
    """A model with a preferred continuation: ``wish`` returns it for the tokens after the
    prompt. It has no cache."""

    def __init__(self, tokenizer: Any) -> None:
        super().__init__()
        self.config = transformers.LlamaConfig(
            vocab_size=len(tokenizer), max_position_embeddings=10**4
        )
        self.generation_config = transformers.GenerationConfig()
        self.dtype = torch.float32
        self.embedding = torch.nn.Embedding(len(tokenizer), 2)
        self.prompt = 0
        self.wish: Callable[[list[int]], int] = lambda new: sum(new) % len(tokenizer)

    def get_input_embeddings(self) -> torch.nn.Module:
        return self.embedding

    def get_output_embeddings(self) -> None:
        return None

    def forward(self, input_ids: torch.Tensor) -> Any:
        logits = torch.full(
            (*input_ids.shape, self.config.vocab_size), -9.0, device=input_ids.device
        )
        for row, ids in enumerate(input_ids.tolist()):
            for at in range(max(self.prompt - 1, 0), len(ids)):
                logits[row, at, self.wish(ids[self.prompt : at + 1])] = 9.0
        return SimpleNamespace(logits=logits)


def uncached(member: TransformersMember, merged: Any = None) -> TransformersMember:
    """Return the same member without any cache, for comparison; ``merged`` is its model with the
    adapter merged in."""
    member.probe()
    weights, options = member.cache.weights, vars(member.settings)
    slow = TransformersMember(
        merged or weights.model, weights.tokenizer, name=member.name, **options
    )
    return without_cache(slow)


def wishful(
    question: Query, text: str = "", tokens: Sequence[int] = (), **options: Any
) -> TransformersMember:
    """Return a member that answers this question with this text, or with these tokens."""
    tokenizer = tokenizer_of(options.pop("tokenizer", "bytes"), options.pop("template", CHATML))
    model = Wishful(tokenizer)
    member = without_cache(TransformersMember(model, tokenizer, **({"name": "wishful"} | options)))
    member.probe()
    prompt = member.prompts.prompt(question.turns, question.tools, question.constraint)
    script = list(tokens) or [*member.words.after(prompt, text), member.stops[0]]

    def wish(new: list[int]) -> int:
        if tokens or new == script[: len(new)]:
            return script[min(len(new), len(script) - 1)]
        rest = text[len(member.words.added(prompt, new).rstrip("\ufffd")) :]
        return member.words.after([*prompt, *new], rest)[0] if rest else member.stops[0]

    model.prompt, model.wish = len(prompt), wish
    return member


class Compared:
    """A member next to a copy without a cache; every pair of replies is compared."""

    def __init__(self, member: Any, before: Callable[[], Any] = lambda: None) -> None:
        self.member, self.slow, self.before = member, uncached(member), before
        self.name, self.worst, self.count = member.name, 0.0, 0

    def draft(self, jobs: Sequence[DraftJob]) -> list[Reply]:
        return self._compared("draft", jobs)

    def score(self, jobs: Sequence[ScoreJob]) -> list[Reply]:
        return self._compared("score", jobs)

    def forget(self, query_id: str) -> None:
        self.member.forget(query_id)

    def _compared(self, work: str, jobs: Sequence[Any]) -> list[Reply]:
        self.before()
        (quick,) = getattr(self.member, work)(jobs)
        self.slow.forget(jobs[0].query.id)
        (slow,) = getattr(self.slow, work)(jobs)
        self.worst = max(self.worst, difference(quick, slow))
        self.count += 1
        return [quick]


def companions(arch: str) -> list[TransformersMember]:
    """Return two members: one with another tokenizer, and one with the same tokenizer and other
    weights."""
    return [member("phi3" if arch != "phi3" else "qwen3", 1), member(arch, 3)]


def difference(reply: Reply, other: Reply) -> float:
    """Return the largest difference of log-probabilities between two replies, or infinity if
    anything else differs."""
    if isinstance(reply, Draft) and isinstance(other, Draft):
        same = (reply.text, reply.tokens, reply.ended, reply.ends) == (
            other.text,
            other.tokens,
            other.ended,
            other.ends,
        )
        return _furthest([reply.logprobs or ()], [other.logprobs or ()]) if same else math.inf
    if isinstance(reply, Scored) and isinstance(other, Scored):
        return _furthest(reply.logprobs, other.logprobs) if reply.ends == other.ends else math.inf
    return 0.0 if reply == other else math.inf


def _furthest(rows: Sequence[Sequence[float]], other_rows: Sequence[Sequence[float]]) -> float:
    if [len(row) for row in rows] != [len(row) for row in other_rows]:
        return math.inf
    return max(
        (
            abs(a - b)
            for x, y in zip(rows, other_rows, strict=True)
            for a, b in zip(x, y, strict=True)
        ),
        default=0.0,
    )
