"""A member of your own: a GGUF file, read by llama.cpp in this process instead of by transformers.

Any object with ``name``, ``device`` and four methods is a member (``langchain_specfuse/core/member.py`` says what it
promises). This one calls llama.cpp's C interface, which the package xllamacpp brings. It drafts and scores, for many
questions at once; it has no grammars, so it leaves answers that must be JSON to others.

    pip install xllamacpp==2026.10.11549
    python examples/own_engine.py model.gguf other.gguf
"""

from __future__ import annotations

import ctypes
import math
import os
import random
import sys
import time
from collections.abc import Sequence
from ctypes import POINTER, Structure, c_bool, c_char_p, c_float, c_int8, c_int32, c_size_t, c_uint32, c_void_p
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from jinja2.sandbox import ImmutableSandboxedEnvironment
from numpy.typing import NDArray

from langchain_specfuse import SpecFuseChatModel, demo_members
from langchain_specfuse.core.member import Probe
from langchain_specfuse.core.values import Draft, DraftJob, Effort, Failure, Query, Sampling, Scored, ScoreJob, Segment
from langchain_specfuse.demo import WHEELS
from langchain_specfuse.members.text.templates import Template
from langchain_specfuse.members.text.words import PartialDraft, Words

Logits = NDArray[np.float32]

# --- llama.cpp's C interface ------------------------------------------------------------------------------------


def struct(name: str, **kinds: Any) -> type[Structure]:
    """A C struct; ``room`` is for the fields behind those that are needed here."""
    return type(name, (Structure,), {"_fields_": [*kinds.items(), ("room", c_int8 * 256)]})


def several(kind: Any, names: str) -> dict[str, Any]:
    return dict.fromkeys(names.split(), kind)


ModelParams = struct(
    "ModelParams",
    **several(c_void_p, "devices overrides"),
    **several(c_int32, "n_gpu_layers split_mode load_mode lazy_mode main_gpu"),
    **several(c_void_p, "tensor_split progress progress_data kv_overrides"),
    **several(c_bool, "vocab_only check_tensors use_extra_bufts no_host no_alloc load_mtp"),
)
ContextParams = struct(
    "ContextParams",
    **several(c_uint32, "n_ctx n_batch n_ubatch n_seq_max n_rs_seq n_outputs_max n_outputs_max_per_seq"),
    **several(c_int32, "n_threads n_threads_batch type rope_scaling pooling attention flash_attention"),
    **several(c_float, "rope_base rope_scale yarn_ext yarn_attn yarn_fast yarn_slow"),
    yarn_orig_ctx=c_uint32,
    defrag=c_float,
    **several(c_void_p, "cb_eval cb_eval_data"),
    **several(c_int32, "type_k type_v"),
    moe_cache=c_size_t,
    **several(c_void_p, "abort abort_data"),
    **several(c_bool, "embeddings offload_kqv no_perf op_offload swa_full kv_unified"),
)


class Batch(Structure):
    _fields_ = (
        ("size", c_int32),
        ("token", POINTER(c_int32)),
        ("embd", c_void_p),
        ("position", POINTER(c_int32)),
        ("n_sequences", POINTER(c_int32)),
        ("sequences", POINTER(POINTER(c_int32))),
        ("wanted", POINTER(c_int8)),
    )


FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "llama_backend_init": (None,),
    "llama_log_set": (None, c_void_p, c_void_p),
    "llama_model_default_params": (ModelParams,),
    "llama_context_default_params": (ContextParams,),
    "llama_model_load_from_file": (c_void_p, c_char_p, ModelParams),
    "llama_model_get_vocab": (c_void_p, c_void_p),
    "llama_model_meta_val_str": (c_int32, c_void_p, c_char_p, c_char_p, c_size_t),
    "llama_model_n_ctx_train": (c_int32, c_void_p),
    "llama_model_n_params": (ctypes.c_uint64, c_void_p),
    "llama_init_from_model": (c_void_p, c_void_p, ContextParams),
    "llama_get_memory": (c_void_p, c_void_p),
    "llama_memory_seq_rm": (c_bool, c_void_p, c_int32, c_int32, c_int32),
    "llama_memory_seq_cp": (None, c_void_p, c_int32, c_int32, c_int32, c_int32),
    "llama_decode": (c_int32, c_void_p, Batch),
    "llama_get_logits": (POINTER(c_float), c_void_p),
    "llama_vocab_n_tokens": (c_int32, c_void_p),
    "llama_vocab_bos": (c_int32, c_void_p),
    "llama_vocab_get_add_bos": (c_bool, c_void_p),
    "llama_vocab_is_eog": (c_bool, c_void_p, c_int32),
    "llama_vocab_is_control": (c_bool, c_void_p, c_int32),
    "llama_tokenize": (c_int32, c_void_p, c_char_p, c_int32, POINTER(c_int32), c_int32, c_bool, c_bool),
    "llama_token_to_piece": (c_int32, c_void_p, c_int32, c_char_p, c_int32, c_int32, c_bool),
}
"""Name -> what it returns, then its arguments."""
_SILENT = ctypes.CFUNCTYPE(None, c_int32, c_char_p, c_void_p)(lambda level, text, data: None)


def library() -> Any:
    spec = find_spec("xllamacpp")
    if spec is None or spec.submodule_search_locations is None:
        raise SystemExit("pip install xllamacpp==2026.10.11549")
    (path,) = Path(next(iter(spec.submodule_search_locations))).glob("xllamacpp*.so")
    lib = ctypes.CDLL(os.fspath(path))
    for name, (result, *arguments) in FUNCTIONS.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    # Fields move between builds of llama.cpp. Known defaults must stand in their known places.
    found = lib.llama_context_default_params()
    if (found.n_batch, found.n_ubatch, found.defrag, found.type_k, found.swa_full) != (2048, 512, -1.0, 1, True):
        raise SystemExit("this build of llama.cpp is not the one that this example was written for")
    lib.llama_log_set(ctypes.cast(_SILENT, c_void_p), None)
    lib.llama_backend_init()
    return lib


# --- the tokenizer ----------------------------------------------------------------------------------------------


class GgufTokenizer:
    """What ``Words`` and ``Template`` need of a tokenizer, from the file itself."""

    def __init__(self, lib: Any, model: int) -> None:
        self.lib, self.model, self.vocab = lib, model, lib.llama_model_get_vocab(model)
        self.size = lib.llama_vocab_n_tokens(self.vocab)
        self.stops = [at for at in range(self.size) if lib.llama_vocab_is_eog(self.vocab, at)]
        self.control = {at for at in range(self.size) if lib.llama_vocab_is_control(self.vocab, at)}
        self.chat_template = self.meta("tokenizer.chat_template")
        bos = lib.llama_vocab_bos(self.vocab)
        self._bos = self.piece(bos, True).decode() if bos >= 0 else ""
        self.bos_token = self._bos if lib.llama_vocab_get_add_bos(self.vocab) else None
        self.piece = cache(self.piece)  # type: ignore[method-assign]

    def meta(self, key: str) -> str | None:
        text = ctypes.create_string_buffer(1 << 16)
        size = self.lib.llama_model_meta_val_str(self.model, key.encode(), text, len(text))
        return text.value.decode() if size >= 0 else None

    def piece(self, token: int, special: bool) -> bytes:
        text = ctypes.create_string_buffer(512)
        size = self.lib.llama_token_to_piece(self.vocab, token, text, len(text), 0, special)
        return text.raw[: max(size, 0)]

    def __call__(self, text: str, *, split_special_tokens: bool = False, **_: Any) -> dict[str, list[int]]:
        written = text.encode()
        found = (c_int32 * (len(written) + 8))()
        marks = not split_special_tokens
        size = self.lib.llama_tokenize(self.vocab, written, len(written), found, len(found), False, marks)
        return {"input_ids": found[: max(size, 0)] if text else []}

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False, **_: Any) -> str:
        shown = [at for at in ids if not (skip_special_tokens and at in self.control)]
        return b"".join(self.piece(at, not skip_special_tokens) for at in shown).decode("utf-8", "replace")

    def apply_chat_template(self, messages: Any, *, chat_template: str | None = None, **more: Any) -> str:
        def refuse(message: str) -> None:
            raise ValueError(message)

        sandbox = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        sandbox.globals["raise_exception"] = refuse
        template = sandbox.from_string(chat_template or self.chat_template or "")
        text = template.render(messages=messages, bos_token=self._bos, **more)
        return text if self.bos_token is None or text.startswith(self.bos_token) else self.bos_token + text


# --- the cache --------------------------------------------------------------------------------------------------

BATCH, SEQUENCES, TOGETHER = 512, 64, 32
"""Tokens that are read at once, sequences in the cache, and questions that are answered together."""
NO_ROOM = 1
NARROW = 48
"""From 64 tokens in a pass on, llama.cpp computes attention with other rounding: replies would depend on the crowd."""


class Sequences:
    """llama.cpp's KV cache: a sequence per question, and one per draft that is scored."""

    def __init__(self, lib: Any, model: int, size: int, threads: int, vocabulary: int) -> None:
        params = lib.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = size, BATCH, NARROW, SEQUENCES
        params.n_outputs_max = params.n_outputs_max_per_seq = SEQUENCES
        params.n_threads = params.n_threads_batch = threads
        params.flash_attention, params.kv_unified = 1, True
        self.lib, self.vocabulary = lib, vocabulary
        self.context = lib.llama_init_from_model(model, params)
        self.memory = lib.llama_get_memory(self.context)
        self.free = list(range(SEQUENCES))
        self.held: dict[Any, tuple[int, list[int]]] = {}
        """Key -> its sequence, and the tokens that are in it. Least recently used first."""

    def drop(self, key: Any) -> None:
        if key in self.held:
            number, _ = self.held.pop(key)
            self.lib.llama_memory_seq_rm(self.memory, number, -1, -1)
            self.free.append(number)

    def open(self, key: Any, ids: Sequence[int], like: Any = None) -> list[int]:
        """Give the key a sequence with as much of these tokens as it, or the key ``like``, has; the tokens."""
        if key not in self.held:
            while not self.free:
                self.drop(next(name for name in self.held if name != like))
            number, known = self.free.pop(), []
            if like in self.held:
                source, tokens = self.held[like]
                self.lib.llama_memory_seq_cp(self.memory, source, number, -1, -1)
                known = list(tokens)
            self.held[key] = (number, known)
        number, known = self.held[key] = self.held.pop(key)
        shared = next((at for at, (a, b) in enumerate(zip(known, ids, strict=False)) if a != b), len(known))
        shared = min(shared, len(ids))
        if shared < len(known):
            if not self.lib.llama_memory_seq_rm(self.memory, number, shared, -1):  # a state that cannot be cut
                self.lib.llama_memory_seq_rm(self.memory, number, -1, -1)
                shared = 0
            del known[shared:]
        return known

    def read(self, wants: Sequence[tuple[Any, Sequence[int], int]]) -> list[Logits]:
        """Per (key, more tokens, n): read these tokens into the key's sequence; the logits after the last n."""
        todo = [(at, token, left) for at, (_, ids, _) in enumerate(wants) for left, token in _counted(ids)]
        rows: list[list[Logits]] = [[] for _ in wants]
        while todo:
            size = outputs = 0
            for at, _, left in todo[:BATCH]:
                outputs += left < wants[at][2]
                if outputs > SEQUENCES:
                    break
                size += 1
            now, todo = todo[:size], todo[size:]
            owners = [at for at, _, left in now if left < wants[at][2]]
            for at, row in zip(owners, self._pass(wants, now), strict=True):
                rows[at].append(row)
        return [np.stack(one) if one else np.empty((0, self.vocabulary), np.float32) for one in rows]

    def _pass(self, wants: Sequence[tuple[Any, Sequence[int], int]], now: Sequence[tuple[int, int, int]]) -> Logits:
        numbers, positions = (c_int32 * len(now))(), (c_int32 * len(now))()
        for place, (at, token, _) in enumerate(now):
            number, known = self.held[wants[at][0]]
            numbers[place], positions[place] = number, len(known)
            known.append(token)
        wanted = [left < wants[at][2] for at, _, left in now]
        base, step = ctypes.addressof(numbers), ctypes.sizeof(c_int32)
        lists = [ctypes.cast(base + place * step, POINTER(c_int32)) for place in range(len(now))]
        tokens, ones = (c_int32 * len(now))(*[token for _, token, _ in now]), (c_int32 * len(now))(*[1] * len(now))
        marks = (c_int8 * len(now))(*wanted)
        batch = Batch(len(now), tokens, None, positions, ones, (POINTER(c_int32) * len(now))(*lists), marks)
        while code := self.lib.llama_decode(self.context, batch):
            idle = next((key for key in self.held if key not in {want[0] for want in wants}), None)
            if code == NO_ROOM and idle is not None:  # make room, least recently used first
                self.drop(idle)
                continue
            for key in list(self.held):  # what they hold is not certain any more
                self.drop(key)
            raise RuntimeError("the KV cache is full" if code == NO_ROOM else f"llama.cpp failed with code {code}")
        shape = (sum(wanted), self.vocabulary)
        return np.ctypeslib.as_array(self.lib.llama_get_logits(self.context), shape).copy() if any(wanted) else []


def _counted(ids: Sequence[int]) -> list[tuple[int, int]]:
    """Each token with how many follow it."""
    return [(len(ids) - 1 - at, token) for at, token in enumerate(ids)]


# --- the member -------------------------------------------------------------------------------------------------


class GgufMember:
    """A GGUF file as a member."""

    device = "cpu"

    def __init__(self, file: str | Path, *, chat_template: str | None = None, context: int = 8192) -> None:
        self.file, self.context, self._chat_template = os.fspath(file), context, chat_template
        self.name = Path(file).stem
        self._prompts: dict[str, list[int]] = {}

    def probe(self) -> Probe:
        lib = library()
        params = lib.llama_model_default_params()
        params.use_extra_bufts = False  # so that the weights stay mapped
        self._model = lib.llama_model_load_from_file(self.file.encode(), params)
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot read {self.file}")
        tokenizer = GgufTokenizer(lib, self._model)
        self.words = Words(tokenizer)
        self.template = Template(tokenizer, self.name, self._chat_template, None)
        self.stops = tokenizer.stops
        self.limit = min(self.context, lib.llama_model_n_ctx_train(self._model))
        threads = int(os.environ.get("OMP_NUM_THREADS", 0)) or os.cpu_count() or 1
        self.cache = Sequences(lib, self._model, self.context, threads, tokenizer.size)
        return Probe(self.file, True, self.limit, "llama.cpp", None, lib.llama_model_n_params(self._model))

    def forget(self, query_id: str) -> None:
        self._prompts.pop(query_id, None)
        for key in [key for key in self.cache.held if key[0] == query_id]:
            self.cache.drop(key)

    def _ids(self, query: Query, answer: Sequence[Segment]) -> list[int]:
        if query.id not in self._prompts:
            self._prompts[query.id] = self.words.encode(self.template.prompt(query.turns, query.tools))
        return self.words.answer_ids(self.name, self._prompts[query.id], answer)

    def _refused(self, job: DraftJob | ScoreJob, size: int) -> Failure | None:
        if isinstance(job, DraftJob) and job.query.constraint is not None:
            return Failure("error", "this member has no grammars")
        return Failure("overflow", f"{size} tokens, wanted at most {self.limit}") if size >= self.limit else None

    # --- drafts -------------------------------------------------------------------------------------------------

    def draft(self, jobs: Sequence[DraftJob]) -> list[Draft | Failure]:
        if len(jobs) <= TOGETHER:
            try:
                return self._draft(jobs)
            except RuntimeError as error:
                if len(jobs) == 1:
                    return [Failure.of(error)]
        half = len(jobs) // 2  # too many for the cache
        return [*self.draft(jobs[:half]), *self.draft(jobs[half:])]

    def _draft(self, jobs: Sequence[DraftJob]) -> list[Draft | Failure]:
        began, since = time.time(), time.perf_counter()
        replies: dict[int, Draft | Failure] = {}
        drafts: dict[int, PartialDraft] = {}
        wants = []
        for at, job in enumerate(jobs):
            ids = self._ids(job.query, job.answer)
            if refused := self._refused(job, len(ids)):
                replies[at] = refused
                continue
            limit = min(job.max_tokens, self.limit - len(ids))
            drafts[at] = PartialDraft(job, self.words, ids, limit, self.template.end_text)
            known = self.cache.open((job.query.id, ""), ids[:-1])  # the last token is read for its logits
            wants.append(((job.query.id, ""), ids[len(known) :], 1))
        rows = dict(zip(drafts, (row[-1] for row in self.cache.read(wants)), strict=True))
        while rows:
            wants = []
            for at, row in rows.items():
                draft = drafts[at]
                token = _picked(row, draft.job.sampling, len(draft.context) + len(draft.tokens))
                if token in self.stops:
                    draft.add([], [], ended=True, ended_by=self._end_logprob(row))
                else:
                    draft.add([token], [_logprob(row, token)])
                if draft.end is None:
                    wants.append(((draft.job.query.id, ""), [token], 1))
            going = [at for at in rows if drafts[at].end is None]
            rows = dict(zip(going, (row[-1] for row in self.cache.read(wants)), strict=True))
        effort = Effort(seconds=time.perf_counter() - since, began=began)
        for at, draft in drafts.items():
            tokens, logprobs = draft.result()
            text, _ = self.words.text_after(draft.context, tokens)
            ended = draft.end is not None and draft.end.ended
            replies[at] = Draft(text, ended, tuple(tokens), tuple(logprobs or ()), effort)
        return [replies[at] for at in range(len(jobs))]

    # --- scores -------------------------------------------------------------------------------------------------

    def score(self, jobs: Sequence[ScoreJob]) -> list[Scored | Failure]:
        replies: list[Scored | Failure] = []
        for job in jobs:
            try:
                replies.append(self._score(job))
            except RuntimeError as error:
                replies.append(Failure.of(error))
        return replies

    def _score(self, job: ScoreJob) -> Scored | Failure:
        began, since = time.time(), time.perf_counter()
        context = self._ids(job.query, job.answer)
        end = self.words.continuing(self.template.end_text, marks=True) if self.template.end_text else []
        texts = [self._ids(job.query, (*job.answer, Segment(one.text))) for one in job.candidates]
        if refused := self._refused(job, max(map(len, texts)) + len(end)):
            return refused
        wants, starts = [], []
        for number, (one, ids) in enumerate(zip(job.candidates, texts, strict=True)):
            start = next((at for at, (a, b) in enumerate(zip(ids, context, strict=False)) if a != b), len(context))
            key = (job.query.id, number)
            known = self.cache.open(key, ids[: start - 1], like=(job.query.id, ""))
            more = [*ids, *(end if one.ended else [])]
            wants.append((key, more[len(known) :], len(more) - start + 1))
            starts.append(start)
        found = []
        for one, ids, start, rows in zip(job.candidates, texts, starts, self.cache.read(wants), strict=True):
            values = [_logprob(row, token) for row, token in zip(rows, ids[start:], strict=False)]
            if one.ended:
                behind = rows[len(ids) - start :]
                values.append(self._end_logprob(behind[0]))
                if end:  # the turn may end by a token or in words
                    in_words = math.fsum(_logprob(row, token) for row, token in zip(behind, end, strict=False))
                    values[-1] = min(0.0, float(np.logaddexp(values[-1], in_words)))
            found.append(tuple(values))
        for number in range(len(job.candidates)):
            self.cache.drop((job.query.id, number))
        return Scored(tuple(found), Effort(seconds=time.perf_counter() - since, began=began))

    def _end_logprob(self, row: Logits) -> float:
        return min(0.0, _logsumexp(row[self.stops]) - _logsumexp(row))


def _logsumexp(row: Logits) -> float:
    return float(row.max()) + math.log(float(np.exp(row - row.max()).sum(dtype=np.float64)))


def _logprob(row: Logits, token: int) -> float:
    return min(0.0, float(row[token]) - _logsumexp(row))


def _picked(row: Logits, how: Sampling, position: int) -> int:
    """Greedy, or with noise that depends on seed and position alone."""
    if how.temperature <= 0:
        return int(row.argmax())
    noise = np.random.default_rng(random.Random(f"{how.seed}:{position}").getrandbits(64)).gumbel(size=len(row))
    return int((row / how.temperature + noise).argmax())


if __name__ == "__main__":
    members: list[Any] = [GgufMember(file) for file in sys.argv[1:]]
    if not members:  # the demo's instruct model by llama.cpp, its base model by transformers
        members = [GgufMember(WHEELS[0].gguf(Path())), demo_members()[1]]
    llm = SpecFuseChatModel(members=members, max_tokens=40)
    for chunk in llm.stream("Why is the sky blue?"):
        print(chunk.text, end="", flush=True)
    print()
