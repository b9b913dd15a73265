"""TransformersMember: any decoder-only causal LM that transformers loads, in this process, for many queries at once.

The parts: ``_loading`` gets model and tokenizer, ``_template`` makes the prompt, ``_text`` tells tokens from text,
``_slab`` (or ``_stores``) remembers what has been read, ``_sampling`` picks tokens. This file puts them together and
knows how a draft is drawn and scored; it knows nothing of votes, of other members, or of who asks.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch

from ..constraints import Vocabulary, vocabulary
from ..core.member import Probe
from ..core.values import (
    CallFormat,
    Constraint,
    Draft,
    DraftJob,
    Effort,
    Failure,
    Query,
    Sampling,
    Scored,
    ScoreJob,
    Segment,
    Tool,
    Turn,
)
from ..errors import UsageError, advised
from ._bound import Bound, Standing
from ._drawing import Drawing, Pen, guarded
from ._loading import Source, Weights, context_limit, given, weights_for, width
from ._memo import Memo
from ._placement import available_memory
from ._scoring import Scoring
from ._stores import Fan, Read
from ._template import Template, end_of_turn, stop_ids
from ._text import OVERTIME, Words
from ._thinking import Thinking, Thought
from ._thoughts import opened
from ._tools import call_format, parts, speaks, trigger
from ._trial import best_store

log = logging.getLogger("langchain_specfuse")

CACHE_SHARE = 0.3
"""The part of the memory that is free after loading that a member's cache may take."""
PREFIX_SHARE = 3
"""A third of that is what prefixes may take, unless told otherwise: they stay when nobody asks anything."""
THINKING_TOKENS = 1024
"""A reasoning model's thought is closed after so many tokens."""


class TransformersMember:
    """One LLM in this process.

    >>> member = TransformersMember("Qwen/Qwen2.5-0.5B-Instruct", dtype="bfloat16")  # loads when first used
    >>> member.name
    'Qwen2.5-0.5B-Instruct'

    ``model`` is a hub id, a local folder, a ``.gguf`` file, or a model in memory (then with its ``tokenizer``).
    ``device``/``device_map`` place it (default: a GPU that it fits on, else the CPU). ``system_prompt`` and ``seed``
    set members of one model apart (they share the weights); a ``system_prompt`` takes the place of the conversation's
    system messages. ``chat_template`` may be ``"plain"``, for base models. ``cache_bytes`` bounds its cache; when it is
    short, the least recently used query is dropped and read again from its job: slower, never wrong. What was read for
    a query stays for others that begin alike, the next turn of a chat above all, while nobody needs the room:
    ``prefix_cache`` bounds it in bytes (``True``: a third of the cache; ``False``: nothing stays). A reasoning model
    thinks for itself before its first word, for at most ``thinking_tokens`` (0: never; others never do).
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        name: str | None = None,
        gguf_file: str | None = None,
        dtype: str = "auto",
        device: str | None = None,
        device_map: Any = None,
        attn_implementation: str | None = None,
        quantization_config: Any = None,
        revision: str | None = None,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        trust_remote_code: bool = False,
        system_prompt: str | None = None,
        repetition_penalty: float | None = None,
        seed: int = 0,
        thinking_tokens: int = THINKING_TOKENS,
        cache_bytes: int | None = None,
        prefix_cache: bool | int = True,
    ) -> None:
        in_memory = not isinstance(model, (str, os.PathLike))
        if in_memory and tokenizer is None:
            error = UsageError(f"a model in memory needs its tokenizer too, got {type(model).__name__} alone")
            raise advised(error, "TransformersMember(model, tokenizer)")
        if not in_memory and tokenizer is not None:
            raise advised(UsageError("a tokenizer is only given along with a model in memory"), "leave it out")
        if not in_memory and not os.fspath(model).strip():
            raise advised(UsageError("a member's model is an empty string"), "name a hub id, a folder or a .gguf file")
        self._in_memory = given(model, tokenizer) if in_memory else None
        self._weights = self._in_memory
        self._device = self._weights.device if self._weights else "loading"
        label = type(model).__name__ if in_memory else os.fspath(model)
        self.name = name or os.path.basename(str(gguf_file or label).rstrip("/\\")).removesuffix(".gguf") or label
        self.source = Source(
            label,
            gguf_file,
            dtype,
            device,
            device_map,
            attn_implementation,
            quantization_config,
            revision,
            trust_remote_code,
        )
        self.chat_template = chat_template
        self.chat_template_kwargs = dict(chat_template_kwargs or {})
        self.system_prompt = system_prompt
        self.repetition_penalty = repetition_penalty
        self.seed = seed
        self.thinking_tokens = thinking_tokens
        self.cache_bytes = cache_bytes
        self.prefix_cache = _checked_bytes(prefix_cache)
        self._memos: dict[str, Memo] = {}
        self._ready: Probe | None = None
        self._grammars: Vocabulary | None = None

    def __repr__(self) -> str:
        told = self.prefixes
        kept = f", {told['tokens']} tokens kept in {told['bytes'] / 1e6:.1f} MB" if told["prefixes"] else ""
        return f"TransformersMember({self.source.model!r}, name={self.name!r}{kept})"

    @property
    def spec(self) -> dict[str, Any]:
        """All that tells this member's answers from another's, as plain JSON."""
        own = {"repetition_penalty": self.repetition_penalty, "seed": self.seed, "system_prompt": self.system_prompt}
        template = {"chat_template": self.chat_template, "chat_template_kwargs": self.chat_template_kwargs}
        thinks = {} if self.thinking_tokens == THINKING_TOKENS else {"thinking_tokens": self.thinking_tokens}
        source = {key: value for key, value in vars(self.source).items() if value not in (None, False)}
        if self._in_memory:
            source["mark"] = self._in_memory.mark
        plain = {k: v if isinstance(v, (str, int, float, bool, dict)) else repr(v) for k, v in source.items()}
        return plain | {key: value for key, value in (own | template).items() if value} | thinks

    @property
    def device(self) -> str:
        """The desk it works at."""
        return self._device

    # --- the protocol -------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def probe(self) -> Probe:
        if self._ready is None:
            self._weights = self._weights or weights_for(self.source, self.name)
            self._device = self._weights.device
            self._set_up(self._weights)
            self._ready = self._probed(self._weights)
        return self._ready

    @torch.inference_mode()
    def draft(self, jobs: Sequence[DraftJob]) -> list[Draft | Failure]:
        extra = lambda job: OVERTIME * max(job.segment_tokens, job.call_tokens if job.query.constraint else 0) + 8
        return self._each(jobs, self._draft_batch, extra=extra)

    @torch.inference_mode()
    def score(self, jobs: Sequence[ScoreJob]) -> list[Scored | Failure]:
        extra = lambda job: sum(len(c.text.encode()) + 8 for c in job.candidates)
        return self._each(jobs, self._score_batch, extra=extra)

    @torch.inference_mode()  # it may move a row: tensors made in inference mode can be written in no other
    def forget(self, query_id: str) -> None:
        self._memos.pop(query_id, None)
        if self._ready is not None:
            self.store.forget(query_id)

    @property
    def prefixes(self) -> dict[str, int]:
        """What is kept of queries that are over: how many prefixes, of how many tokens, and the bytes they hold."""
        kept = self.store.prefixes.kept if self._ready is not None else []
        held = sum(prefix.bytes for prefix in kept)
        return {"prefixes": len(kept), "tokens": sum(len(prefix.ids) for prefix in kept), "bytes": held}

    def drop_prefixes(self) -> None:
        """Let go of all that is kept of queries that are over. At the member's desk, as everything that it does."""
        if self._ready is not None:
            self.store.prefixes.clear()

    def unload(self) -> None:
        """Free the weights and all caches (weights given in memory stay yours). The next job loads them again."""
        self._weights, self._ready, self._grammars = self._in_memory, None, None
        self._memos.clear()
        for part in ("store", "drawing", "scoring", "thinking", "words", "template"):
            vars(self).pop(part, None)

    # --- tokens for people ----------------------------------------------------------------------------------------

    def token_ids(self, text: str) -> list[int]:
        """The text's tokens in this member's tokenizer."""
        self.probe()
        return self.words.encode(text)

    def token_count(self, turns: Sequence[Turn], tools: Sequence[Tool] = ()) -> int:
        """How long the prompt of these turns is, with what it says of these tools."""
        self.probe()
        return len(self._prompt_ids(turns, tools))

    # --- setting up -------------------------------------------------------------------------------------------------

    def _set_up(self, weights: Weights) -> None:
        self.words = Words(weights.tokenizer)
        self.template = Template(weights.tokenizer, self.name, self.chat_template, self.chat_template_kwargs)
        config = weights.model.generation_config
        self.stops = stop_ids(weights.tokenizer, config, end_of_turn(self.template))
        self.end_ids = self.words.continuing(self.template.end_text) if self.template.end_text else []
        own = self.repetition_penalty
        self.penalty = own if own is not None else getattr(config, "repetition_penalty", None)
        self.context_limit = context_limit(weights)

    def _probed(self, weights: Weights) -> Probe:
        read = Read(weights.model)
        budget = self._budget()
        limit = budget // PREFIX_SHARE if self.prefix_cache is True else min(budget, int(self.prefix_cache))
        self.store = best_store(read, self._vocabulary(weights), budget, limit, self.name)
        weights.stores.add(self.store)
        self.store.kin = weights.stores
        self.drawing = Drawing(self.words, self.store, self.stops, self.template.end_text)
        self.scoring = Scoring(self.stops, self.end_ids)
        self.thinking = Thinking(self.words, self.store, self.stops, Sampling(repetition_penalty=self.penalty))
        kind = type(self.store).__name__.lower()
        detail = f"{weights.device}, {str(weights.model.dtype).removeprefix('torch.')}, {read.kind}, {kind}"
        log.info("%s: %s", self.name, detail)
        return Probe(self.source.model, True, self.context_limit, detail, self._own_calls())

    def _own_calls(self) -> CallFormat | None:
        """How it writes calls by its own training, if its tokenizer can say so in plain text."""
        own = self.template.native.format
        plain = own and all(self.words.decode(self.words.continuing(mark)) == mark for mark in (own.begin, own.end))
        return own if plain else None

    def _vocabulary(self, weights: Weights) -> list[int]:
        """A few ordinary tokens to try things with."""
        special = set(weights.tokenizer.all_special_ids)
        size = min(len(weights.tokenizer), weights.model.get_input_embeddings().weight.shape[0])
        return [token for token in range(size // 2, size) if token not in special][:29] or list(range(size))

    def _budget(self) -> int:
        return self.cache_bytes or int(CACHE_SHARE * available_memory(self.device))

    # --- prompts and contexts ---------------------------------------------------------------------------------------

    def _prompt_ids(
        self,
        turns: Sequence[Turn],
        tools: Sequence[Tool] = (),
        constraint: Constraint | None = None,
        *,
        thinks: bool = True,
    ) -> list[int]:
        if self.system_prompt is not None:
            turns = [Turn("system", self.system_prompt), *(turn for turn in turns if turn.role != "system")]
        think = thinks and self.thinking_tokens > 0
        return self.words.encode(self.template.prompt(turns, tools, constraint, think=think))

    def _memo(self, query: Query, thinks: bool = True) -> Memo:
        if query.id not in self._memos:
            ids = self._prompt_ids(query.turns, query.tools, query.constraint, thinks=thinks)
            prompt = ids or self.stops[:1] or [0]
            self._memos[query.id] = Memo(prompt, len(prompt))
        return self._memos[query.id]

    def _think(self, jobs: Sequence[DraftJob | ScoreJob]) -> None:
        """The thoughts about queries that are new here. They depend on the query alone, whatever job comes first."""
        if not self.template.thinks or self.thinking_tokens <= 0:
            return
        new: dict[str, Thought] = {}
        for job in jobs:
            query = job.query
            if query.id not in self._memos:
                with suppress(UsageError):  # told for its own job
                    prompt = self._memo(query, isinstance(job, DraftJob) or job.thinks).prompt
                    if opened(self.words.tokenizer.decode(prompt[-8:], skip_special_tokens=False)):
                        room = (self.context_limit or len(prompt) + 2 * self.thinking_tokens) - len(prompt)
                        new[query.id] = Thought(query.id, prompt, min(self.thinking_tokens, room // 2))
        try:
            self.thinking.batches(list(new.values()))
        except BaseException:
            for key in new:  # half a thought is none
                self.forget(key)
            raise
        for key, thought in new.items():
            memo = self._memos[key]
            memo.prompt, memo.thought, memo.found = thought.ids, thought.text, self.store.found.get(key, 0)

    def _context(self, job: DraftJob | ScoreJob) -> list[int]:
        return self._memo(job.query).read(self.name, self.words, job.answer)

    def _each(self, jobs: Sequence[Any], work: Any, *, extra: Any) -> list[Any]:
        """Split the jobs into those that do not fit and batches that fit into memory; replies in the jobs' order."""
        self.probe()
        self._think(jobs)
        replies: list[Any] = [None] * len(jobs)
        fitting: list[tuple[int, Any, list[int]]] = []
        for at, job in enumerate(jobs):
            try:
                context = self._context(job)
            except UsageError as error:
                replies[at] = Failure("error", str(error), error)
                continue
            limit = self.context_limit
            if limit and len(context) + extra(job) > limit and (needed := self._needed(job, context)) > limit:
                message = f"{needed} tokens of prompt and answer do not fit into its context of {limit}"
                replies[at] = Failure("overflow", message)
            else:
                fitting.append((at, job, context))
        for part in self.store.batches([len(context) + extra(job) for _, job, context in fitting]):
            batch = fitting[part]
            for (at, _, _), reply in zip(batch, self._safely(batch, work), strict=True):
                replies[at] = reply
        return replies

    def _needed(self, job: DraftJob | ScoreJob, context: Sequence[int]) -> int:
        """The longest text that must be read for this job, in tokens."""
        if isinstance(job, DraftJob):
            return len(context) + 1
        texts = [
            len(self._candidate_ids(job, c.text)) + c.ended * len(self._end_ids(job.query)) for c in job.candidates
        ]
        return max([len(context), *texts])

    def _safely(self, batch: Sequence[tuple[int, Any, list[int]]], work: Any) -> list[Any]:
        """One batch; when the device runs out of memory, everything kept is freed and each job is tried alone."""
        if not batch:
            return []
        try:
            return work([(job, context) for _, job, context in batch])
        except torch.OutOfMemoryError as error:
            self.store.relieve()
            if len(batch) == 1:
                return [Failure("error", f"out of memory on {self.device}", error)]
            return [reply for one in batch for reply in self._safely([one], work)]

    # --- drafting ---------------------------------------------------------------------------------------------------

    def _draft_batch(self, batch: Sequence[tuple[DraftJob, list[int]]]) -> list[Draft | Failure]:
        clock = time.time()
        since, read = time.perf_counter(), self.store.passed
        pens = [self._pen(job, context) for job, context in batch]
        logits = self.store.lead([(pen.key, pen.context + pen.tokens) for pen in pens], exact=True)
        found = {pen.key: min(self.store.found[pen.key], len(pen.context)) for pen in pens}
        self.drawing.draw(pens, dict(zip((pen.key for pen in pens), logits, strict=True)))
        seconds, many = time.perf_counter() - since, len(pens)
        share = Effort((self.store.passed - read) // many, 0, 0, seconds, clock)
        return [pen.failure or self._drafted(pen, replace(share, reused=found[pen.key])) for pen in pens]

    def _pen(self, job: DraftJob, context: list[int]) -> Pen:
        memo = self._memo(job.query)
        how = replace(
            job.sampling,
            seed=job.sampling.seed + 1_000_003 * self.seed,
            repetition_penalty=job.sampling.repetition_penalty or self.penalty,
        )
        room = (self.context_limit or len(context) + job.max_tokens) - len(context)
        pen = Pen(job, job.query.id, context, how, min(job.max_tokens, room))
        if job.query.constraint is not None:
            with guarded(pen):
                pen.bound = self._bound(job, memo)
                self.drawing.open(pen)
        gone = len(context) - len(memo.ahead_after)
        if memo.ahead_how == how and gone > 0 and context == memo.ahead_after + memo.ahead[:gone]:
            # One by one, as if they were drawn now: where the draft ends must not depend on what is known already.
            for token, logprob in list(zip(memo.ahead, memo.ahead_logprobs, strict=True))[gone:][: pen.limit]:
                before = len(pen.tokens)
                if not pen.done:
                    self.drawing.add(pen, token, logprob, None)
                if len(pen.tokens) == before:
                    break
        return pen

    def _bound(self, job: DraftJob, memo: Memo) -> Bound:
        """Where a draft for this job begins under its query's constraint."""
        constraint = job.query.constraint
        assert constraint is not None and self._weights is not None
        if memo.standing is None:
            if self._grammars is None:
                self._grammars = vocabulary(self._weights.tokenizer, width(self._weights), self.stops)
            memo.standing = Standing(self._grammars.grammar(constraint))
        calls = any(part.kind == "calls" for part in parts(constraint))
        state = memo.standing.after("".join(segment.text for segment in job.answer))
        return Bound(state, trigger(call_format(constraint)) if calls else "")

    def _drafted(self, pen: Pen, share: Effort) -> Draft:
        """The draft as others will see it; what was cut off is kept for the next one."""
        kept = pen.tokens[: pen.kept] + pen.rest
        text, ends = self.words.told(pen.context, kept)
        logprobs = pen.logprobs[: pen.kept + bool(pen.rest)] + [0.0] * (len(pen.rest) - 1)
        memo = self._memo(pen.job.query)
        known = pen.known_again()
        memo.ahead, memo.ahead_logprobs = pen.tokens[:known], pen.logprobs[:known]
        memo.ahead_after, memo.ahead_how = list(pen.context), pen.how
        if pen.kept < len(pen.tokens) and pen.logits[pen.kept] is not None:
            self.store.pin(pen.key, len(pen.context) + pen.kept, pen.logits[pen.kept].clone())  # type: ignore[union-attr]
        if pen.ended and pen.end_logprob is not None:
            logprobs = [*logprobs, pen.end_logprob]
        effort = replace(share, prompt=memo.asked)
        if memo.found is not None:  # the thought came before: by now all of the prompt is known
            effort, memo.found = replace(effort, reused=memo.found), None
        told = tuple(ends) if pen.bound else None
        # Told with the first draft, and with it again whenever that is asked for again.
        first = not any(segment.tokens for segment in pen.job.answer)
        return Draft(text, pen.ended, tuple(kept), tuple(logprobs), effort, told, memo.thought if first else "")

    # --- scoring ----------------------------------------------------------------------------------------------------

    def _score_batch(self, batch: Sequence[tuple[ScoreJob, list[int]]]) -> list[Scored]:
        since, read = time.perf_counter(), self.store.passed
        clock = time.time()
        fans, sizes = [], []
        for job, context in batch:
            texts = [self._candidate_ids(job, c.text) for c in job.candidates]
            end = self._end_ids(job.query)
            tails = [ids + end if c.ended else ids for ids, c in zip(texts, job.candidates, strict=True)]
            fans.append(Fan(job.query.id, context, tails))
            sizes.append([len(ids) for ids in texts])
        told = self.store.fan(fans)
        rows = [
            tuple(
                self.scoring.logprobs(ids, size, candidate.ended, logits)
                for ids, size, candidate, logits in zip(fan.branches, lengths, job.candidates, per_branch, strict=True)
            )
            for (job, _), fan, lengths, per_branch in zip(batch, fans, sizes, told, strict=True)
        ]
        seconds, many = time.perf_counter() - since, len(batch)
        share = Effort((self.store.passed - read) // many, 0, 0, seconds, clock)
        efforts = [replace(share, reused=self.store.found[fan.key]) for fan in fans]
        ends = [
            tuple(
                self.scoring.ends(self.words, ids, size, candidate.text, logits)
                for ids, size, candidate, logits in zip(fan.branches, lengths, job.candidates, per_branch, strict=True)
            )
            if job.query.constraint
            else None
            for (job, _), fan, lengths, per_branch in zip(batch, fans, sizes, told, strict=True)
        ]
        return [Scored(*one) for one in zip(rows, efforts, ends, strict=True)]

    def _end_ids(self, query: Query) -> list[int]:
        """The words that end a turn, where the query's constraint leaves room for any."""
        return self.end_ids if speaks(query.constraint) else []

    def _candidate_ids(self, job: ScoreJob, text: str) -> list[int]:
        """Prompt, answer and candidate, tokenized as it would be if the candidate were agreed."""
        answer = (*job.answer, Segment(text)) if text else job.answer
        return self._memo(job.query).read(self.name, self.words, answer)


def _checked_bytes(told: bool | int) -> bool | int:
    if not isinstance(told, int) or told < 0:
        raise advised(UsageError(f"prefix_cache={told!r} is neither True, False nor a number of bytes"), "leave it out")
    return told
