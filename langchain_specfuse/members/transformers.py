"""TransformersMember: any decoder-only causal LM that transformers loads, in this process, for many queries at once.

The parts: ``_loading`` gets model and tokenizer, ``_template`` makes the prompt, ``_text`` tells tokens from text,
``_slab`` (or ``_stores``) remembers what has been read, ``_sampling`` picks tokens. This file puts them together and
knows how a draft is drawn and scored; it knows nothing of votes, of other members, or of who asks.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from itertools import count
from typing import Any, TypeAlias

import torch

from ..constraints import Vocabulary, vocabulary
from ..core.member import Probe
from ..core.values import (
    CallFormat,
    Candidate,
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
    Unread,
)
from ..errors import UsageError, advised, emptied
from ._adapters import Adapter
from ._allowance import Allowance
from ._bound import Bound, Standing
from ._budget import Budget
from ._drawing import Drawing, guarded
from ._expected import expected
from ._holding import Holding
from ._kin import Kin, kin_for
from ._loading import Source, Weights, context_limit, given, weights_for, width
from ._memo import Memo
from ._mishaps import failure, is_nonsense, is_shortage
from ._pen import Pen, room_for
from ._placement import available_memory
from ._proofs import Proof, scored
from ._scoring import Scoring
from ._sheets import Sheet, drafts
from ._stores import Fan, Key
from ._template import Template, end_of_turn, stop_ids
from ._text import Words
from ._thinking import Thinking, Thought
from ._thoughts import opened
from ._tools import call_format, parts, speaks, trigger

log = logging.getLogger("langchain_specfuse")

CACHE_SHARE = 0.3
"""The part of the memory that is free after loading that a member's cache may take."""
PREFIX_SHARE = 3
"""A third of that is what prefixes may take, unless told otherwise: they stay when nobody asks anything."""
LOADED = (
    "store",
    "drawing",
    "scoring",
    "thinking",
    "words",
    "template",
    "stops",
    "end_ids",
    "penalty",
    "context_limit",
)
"""What loading makes of a member."""
OWN = ("kin", "adapted", "budget", "_counted", "_mark", "_stand_ins")
"""What a member has in its process alone."""
_NUMBERS = count()
Waiting: TypeAlias = "tuple[int, TransformersMember, Any, list[int]]"
"""A job's place in the batch, whose it is, the job, and its context in tokens."""
THINKING_TOKENS = 1024
"""A reasoning model's thought is closed after so many tokens."""


class TransformersMember:
    """One LLM in this process.

    >>> member = TransformersMember("Qwen/Qwen2.5-0.5B-Instruct", dtype="bfloat16")  # loads when first used
    >>> member.name
    'Qwen2.5-0.5B-Instruct'

    ``model`` is a hub id, a local folder, a ``.gguf`` file, or a model in memory (then with its ``tokenizer``).
    ``device``/``device_map`` place it (default: a GPU that it fits on, else the CPU). ``system_prompt`` and ``seed``
    set members of one model apart, and so does an ``adapter`` (a folder or hub id with a LoRA, as peft writes it): they
    share the weights, and their drafts are drawn in one batch. A ``system_prompt`` takes the place of the
    conversation's system messages. ``chat_template`` may be ``"plain"``, for base models. ``cache_bytes`` bounds its
    cache; when it is short, the least recently used query is dropped and read again from its job: slower, never wrong.
    What was read for a query stays for others that begin alike, the next turn of a chat above all, while nobody needs
    the room: ``prefix_cache`` bounds it in bytes (``True``: a third of the cache; ``False``: nothing stays). A
    reasoning model thinks for itself before its first word, for at most ``thinking_tokens`` (0: never; others never
    do). On a GPU drafts are drawn in captured steps; ``graphs=False`` launches every step by itself.
    """

    spreads = True
    """It goes along where members are spread over a cluster."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        adapter: str | os.PathLike[str] | None = None,
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
        graphs: bool = True,
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
        self.adapter = _checked_adapter(adapter)
        called = self.adapter or str(gguf_file or label)
        self.name = name or os.path.basename(called.rstrip("/\\")).removesuffix(".gguf") or label
        self.kin: Kin | None = None
        self.adapted: Adapter | None = None
        self._mark = str(next(_NUMBERS))
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
        self.graphs = _checked_truth("graphs", graphs)
        self._memos: dict[str, Memo] = {}
        self._ready: Probe | None = None
        self._grammars: Vocabulary | None = None
        self.budget: Budget | None = None
        self._counted: Budget | None = None

    def __repr__(self) -> str:
        told = self.prefixes
        kept = f", {told['tokens']} tokens kept in {told['bytes'] / 1e6:.1f} MB" if told["prefixes"] else ""
        return f"TransformersMember({self.source.model!r}, name={self.name!r}{kept})"

    def __getstate__(self) -> dict[str, Any]:
        """What it is made from, and nothing that it loaded: whoever unpacks it loads for itself."""
        if self._in_memory:
            error = UsageError(f"{self.name} is a model in memory, which stays in its process")
            raise advised(error, "save it (model and tokenizer: save_pretrained(folder)) and name the folder")
        kept = {key: value for key, value in vars(self).items() if key not in (*LOADED, *OWN)}
        kept |= {"_weights": None, "_device": "loading", "_memos": {}, "_ready": None, "_grammars": None}
        adapter = _anywhere(self.adapter) if self.adapter else None
        return kept | {"source": replace(self.source, model=_anywhere(self.source.model)), "adapter": adapter}

    def __setstate__(self, kept: Mapping[str, Any]) -> None:
        vars(self).update(kept, kin=None, adapted=None, budget=None, _counted=None, _mark=str(next(_NUMBERS)))

    @property
    def spec(self) -> dict[str, Any]:
        """All that tells this member's answers from another's, as plain JSON."""
        own = {"repetition_penalty": self.repetition_penalty, "seed": self.seed, "system_prompt": self.system_prompt}
        own["adapter"] = self.adapter
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
            try:
                self._load()
            except UsageError:  # a budget that cannot be kept to binds nobody: who asks next says it again, or does not
                self._empty()
                self.budget = None
                raise
        assert self._ready is not None
        return self._ready

    def _load(self) -> None:
        with self._room_to_load():
            self._weights = self._weights or weights_for(self.source, self.name)
            self._device = self._weights.device
            with self._weights.shelf.in_use():
                self._set_up(self._weights)
                self._ready = self._probed(self._weights)
                self._join(self._weights)

    @torch.inference_mode()
    def draft(self, jobs: Sequence[DraftJob]) -> list[Draft | Failure]:
        return self.draft_all([(self, job) for job in jobs])

    @torch.inference_mode()
    def score(self, jobs: Sequence[ScoreJob]) -> list[Scored | Failure]:
        return self.score_all([(self, job) for job in jobs])

    @torch.inference_mode()
    def draft_all(self, jobs: Sequence[tuple[TransformersMember, DraftJob]]) -> list[Draft | Failure]:
        """Jobs of this member and of its kin, as one batch."""
        with self._turn():
            return self._each(jobs, self._draft_batch, extra=room_for)

    @torch.inference_mode()
    def score_all(self, jobs: Sequence[tuple[TransformersMember, ScoreJob]]) -> list[Scored | Failure]:
        """The same for scores."""
        extra = lambda job: sum(len(c.text.encode()) + 8 for c in job.candidates)
        with self._turn():
            return self._each(jobs, self._score_batch, extra=extra)

    @torch.inference_mode()  # it may move a row: tensors made in inference mode can be written in no other
    def forget(self, query_id: str) -> None:
        self._memos.pop(query_id, None)
        if self._ready is not None:
            with self._quiet():
                try:
                    self.store.forget(self._key(query_id))
                except Exception as error:  # no room to keep it, or no device to keep it on: others must not hear of it
                    log.warning("%s: what was read for a query could not be kept: %s", self.name, error)
                    self._lose([self._key(query_id)], emptied(error))

    @property
    def prefixes(self) -> dict[str, int]:
        """What is kept of queries that are over: how many prefixes, of how many tokens, and the bytes they hold."""
        kept = self.store.prefixes.kept if self._ready is not None else []
        kept = [prefix for prefix in kept if prefix.mark == self._adapter_mark]
        held = sum(prefix.bytes for prefix in kept)
        return {"prefixes": len(kept), "tokens": sum(len(prefix.ids) for prefix in kept), "bytes": held}

    def drop_prefixes(self) -> None:
        """Let go of all that is kept of queries that are over. At the member's desk, as everything that it does."""
        if self._ready is not None:
            with self._quiet():
                self.store.prefixes.drop(self._adapter_mark)

    @torch.inference_mode()
    def unload(self) -> None:
        """Free the weights and all caches (weights given in memory stay yours). The next job loads them again.

        What is shared stays while another member has it.
        """
        self._empty()
        self.budget = None

    def _empty(self) -> None:
        for query_id in list(self._memos):
            self.forget(query_id)
        weights, kin = self._weights, self.kin
        self._weights, self._ready, self._grammars = self._in_memory, None, None
        self.kin, adapted, self.adapted = None, self.adapted, None
        if kin is not None:
            kin.leave(self, adapted)
        del adapted
        if weights is not None:
            weights.adapters.prune()
        for part in LOADED:
            vars(self).pop(part, None)

    # --- memory -------------------------------------------------------------------------------------------------

    def within(self, budget: Budget) -> None:
        """Share this budget with others, from the next job on and until :meth:`unload`.

        :meta private:
        """
        if self.budget not in (None, budget):
            error = UsageError(f"{self.name} shares {self.budget!r} already, and cannot share {budget!r}")
            raise advised(error, "members are shared in a process: give the same number, or unload() it first")
        self.budget = budget

    @property
    def _allowance(self) -> Allowance | None:
        return self.kin.allowance if self.kin else None

    @property
    def _holding(self) -> Holding | None:
        return self.kin.holding if self.kin else None

    def _room_to_load(self) -> AbstractContextManager[None]:
        if self.budget is None:
            return nullcontext()
        device, size, mark = self._told() if self._weights else expected(self.source)
        allowance = self.budget.on(device) if device else None
        return allowance.loading(self.name, mark, size) if allowance else nullcontext()

    def _told(self) -> tuple[str, int, str]:
        assert self._weights is not None
        return self._weights.device, self._weights.shelf.size, self._weights.mark

    def _join(self, weights: Weights) -> None:
        """Be counted, with all kin, among those who share the budget on the device where the weights are."""
        kin = self.kin
        if kin is None or kin.holding is not None:
            return
        allowance = self.budget.on(weights.device) if self.budget and not weights.shelf.spread else None
        if allowance is not None:
            most = None if self.prefix_cache is True else int(self.prefix_cache)
            logits = width(weights) * weights.model.dtype.itemsize
            holding = Holding(self.name, weights.mark, weights.shelf, self.store, self.cache_bytes, most, logits)
            allowance.join(holding)
            kin.allowance, kin.holding = allowance, holding

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """At work: the weights are on the device, and others have made room."""
        self.probe()
        if self.budget is not self._counted:  # it was loaded before it was given one: now it has other kin
            weights = self._weights
            self._empty()
            self._weights = weights
            self.probe()
        assert self._weights is not None
        mine = self._allowance.turn(self._holding) if self._allowance and self._holding else nullcontext()
        with mine, self._weights.shelf.in_use():
            yield

    def _quiet(self) -> AbstractContextManager[None]:
        """Nobody takes from this member's caches meanwhile."""
        return self._allowance.quiet() if self._allowance else nullcontext()

    def _lent(self, tokens: int) -> str:
        """Room for a text of so many tokens, if it is longer than this member's share; else why there is none."""
        needed = self.store.alone(tokens)
        if not self._allowance or not self._holding or needed <= (self.store.budget or 0):
            return ""
        short = self._allowance.lend(self._holding, needed)
        return short and f"{tokens} tokens of prompt and answer do not fit: {short}"

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
        self.end_ids = self.words.continuing(self.template.end_text, marks=True) if self.template.end_text else []
        own = self.repetition_penalty
        self.penalty = own if own is not None else getattr(config, "repetition_penalty", None)
        self.context_limit = context_limit(weights)

    def _probed(self, weights: Weights) -> Probe:
        budget = self._budget()
        limit = budget // PREFIX_SHARE if self.prefix_cache is True else min(budget, int(self.prefix_cache))
        self.adapted = weights.adapted(self.adapter, self.name) if self.adapter else None
        bounds = (self.cache_bytes, self.prefix_cache, self.budget)
        alike = (*bounds, tuple(self.stops), self.template.end_text, self.graphs)
        vocabulary = self._vocabulary(weights)
        self.kin = kin_for(weights, self.adapted, vocabulary, budget, limit, self.name, alike)
        leaps = self.kin.leaps(self.stops, vocabulary, self.name) if self.graphs else None
        self.kin.members.add(self)
        self._counted = self.budget
        self.store = self.kin.store
        self.drawing = Drawing(self.words, self.store, self.stops, self.template.end_text, self.kin.lookahead, leaps)
        self.scoring = Scoring(self.stops, self.end_ids)
        self.thinking = Thinking(self.words, self.store, self.stops, Sampling(repetition_penalty=self.penalty), leaps)
        kind = type(self.store).__name__.lower() + (", captured" if leaps and not self.adapted else "")
        detail = f"{weights.device}, {str(weights.model.dtype).removeprefix('torch.')}, {self.store.read.kind}, {kind}"
        log.info("%s: %s", self.name, detail)
        size = sum(one.numel() for one in weights.model.parameters())
        return Probe(self.source.model, True, self.context_limit, detail, self._own_calls(), size)

    def _own_calls(self) -> CallFormat | None:
        """How it writes calls by its own training, if its tokenizer can say so in plain text."""
        own, words = self.template.native.format, self.words
        plain = own and all(words.decode(words.continuing(mark, marks=True)) == mark for mark in (own.begin, own.end))
        return own if plain else None

    def _vocabulary(self, weights: Weights) -> list[int]:
        """A few ordinary tokens to try things with."""
        special = set(weights.tokenizer.all_special_ids)
        size = min(len(weights.tokenizer), weights.model.get_input_embeddings().weight.shape[0])
        return [token for token in range(size // 2, size) if token not in special][:29] or list(range(size))

    def _key(self, query_id: str) -> Key:
        """The query's name in a store that this member may share."""
        return Key(query_id, self._mark, self.adapted)

    @property
    def _adapter_mark(self) -> int:
        return self.adapted.mark if self.adapted else 0

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

    def _thoughts(self, jobs: Sequence[DraftJob | ScoreJob]) -> dict[str, Thought]:
        """Those about queries that are new here. They depend on the query alone, whatever job comes first."""
        new: dict[str, Thought] = {}
        if not self.template.thinks or self.thinking_tokens <= 0:
            return new
        for job in jobs:
            query = job.query
            if query.id not in self._memos:
                with suppress(Exception):  # told for its own job
                    prompt = self._memo(query, isinstance(job, DraftJob) or job.thinks).prompt
                    if opened(self.words.tokenizer.decode(prompt[-8:], skip_special_tokens=False)):
                        room = (self.context_limit or len(prompt) + 2 * self.thinking_tokens) - len(prompt)
                        new[query.id] = Thought(self._key(query.id), prompt, min(self.thinking_tokens, room // 2))
        return new

    def _think(self, jobs: Sequence[tuple[TransformersMember, Any]]) -> None:
        """The thoughts that these jobs wait for, of members that penalise alike in one batch."""
        new = {one: one._thoughts([job for other, job in jobs if other is one]) for one in dict(jobs)}
        try:
            for how in {one.penalty for one, mine in new.items() if mine}:
                alike = [one for one in new if one.penalty == how]
                alike[0].thinking.batches([thought for one in alike for thought in new[one].values()])
        except BaseException:
            for one, mine in new.items():
                for query_id in mine:  # half a thought is none
                    one._memos.pop(query_id, None)
                    one._lose([one._key(query_id)])
            raise
        for one, mine in new.items():
            for query_id, thought in mine.items():
                memo, known = one._memos[query_id], one.store.found.get(thought.key, 0)
                memo.prompt, memo.thought, memo.found = thought.ids, thought.text, known

    def _context(self, job: DraftJob | ScoreJob) -> list[int]:
        return self._memo(job.query).read(self.name, self.words, job.answer)

    def _each(self, jobs: Sequence[tuple[TransformersMember, Any]], work: Any, *, extra: Any) -> list[Any]:
        """Split the jobs into those that do not fit and batches that fit into memory; replies in the jobs' order."""
        replies: list[Any] = self._unthinkable(jobs)
        fitting: list[Waiting] = []
        for at, (one, job) in enumerate(jobs):
            if replies[at]:
                continue
            try:
                context = one._context(job)
            except Exception as error:  # a template that refuses it, a tokenizer that raises
                told = str(error) if isinstance(error, UsageError) else f"{type(error).__name__}: {error}"
                replies[at] = Failure("error", told, emptied(error))
                continue
            limit = self.context_limit
            if limit and len(context) + extra(job) > limit and (needed := one._needed(job, context)) > limit:
                message = f"{needed} tokens of prompt and answer do not fit into its context of {limit}"
                replies[at] = Failure("overflow", message)
            else:
                fitting.append((at, one, job, context))
        fitting, long = self._parted(fitting)
        for waiting in long:
            at, _, job, context = waiting
            replies[at] = self._read_on(waiting, len(context) + extra(job))
        sizes = [len(context) + extra(job) for _, _, job, context in fitting]
        for part in self.store.batches(sizes):
            batch = fitting[part]
            if short := self._lent(max(sizes[part], default=0)):
                for at, *_ in batch:  # one that long is a batch of its own
                    replies[at] = Failure("overflow", short)
                continue
            for (at, *_), reply in zip(batch, self._safely(batch, work), strict=True):
                replies[at] = reply
        return replies

    def _parted(self, fitting: list[Waiting]) -> tuple[list[Waiting], list[Waiting]]:
        """The jobs that can be answered now, and those that want to be told, or helped, where there is much to read."""
        told: tuple[list[Waiting], list[Waiting]] = ([], [])
        for one in fitting:
            _, who, job, context = one
            long = job.pieces is not None and len(context) > self.store.piece
            told[long and self._unread(who, job, context) > 0].append(one)
        return told

    def _unread(self, who: TransformersMember, job: DraftJob | ScoreJob, context: list[int]) -> int:
        """How many tokens are to be read piece by piece: none, if one piece is all."""
        missing = self.store.missing(who._key(job.query.id), context)
        return missing if missing > self.store.piece else 0

    def _read_on(self, told: Waiting, size: int) -> Unread | Failure:
        _, who, job, context = told
        if not job.pieces:
            return Unread(self._unread(who, job, context))
        if short := self._lent(size):
            return Failure("overflow", short)
        (reply,) = self._safely([told], self._piece)
        return reply

    def _piece(self, batch: Sequence[tuple[TransformersMember, DraftJob | ScoreJob, list[int]]]) -> list[Unread]:
        ((who, job, context),) = batch
        began, since, read = time.time(), time.perf_counter(), self.store.passed
        for _ in range(job.pieces or 0):
            if self._unread(who, job, context):
                self.store.ahead(who._key(job.query.id), context)
        effort = Effort(self.store.passed - read, seconds=time.perf_counter() - since, began=began)
        return [Unread(self._unread(who, job, context), effort)]

    def _needed(self, job: DraftJob | ScoreJob, context: Sequence[int]) -> int:
        """The longest text that must be read for this job, in tokens."""
        if isinstance(job, DraftJob):
            return len(context) + 1
        texts = [
            len(self._candidate_ids(job, c.text)) + c.ended * len(self._end_ids(job.query)) for c in job.candidates
        ]
        return max([len(context), *texts])

    def _safely(self, batch: Sequence[Waiting], work: Any) -> list[Any]:
        """One batch. When it fails each job is tried alone: whatever it was takes no other along.

        What is known of these queries may be wrong then, so it is read again; when the device is out of memory,
        everything kept is freed first.
        """
        if not batch:
            return []
        keys = [one._key(job.query.id) for _, one, job, _ in batch]
        try:
            replies = work([told[1:] for told in batch])
        except Exception as error:
            broken = emptied(error)  # before the next try: its frames hold the tensors of the pass
        else:
            self._lose([key for key, reply in zip(keys, replies, strict=True) if is_nonsense(reply)])
            return replies
        self._lose(keys, broken)
        if len(batch) == 1:
            return [failure(broken, self.device)]
        return [reply for one in batch for reply in self._safely([one], work)]

    def _lose(self, keys: Sequence[str], error: Exception | None = None) -> None:
        """What is known of these queries may be wrong; what is known of others takes room that is needed, it may be."""
        try:
            if error is not None and is_shortage(error):
                self.store.relieve()
            for key in keys:
                self.store.drop(key)
        except Exception as worse:  # the device is gone, and all that was on it
            log.debug("%s: its memory cannot be cleaned: %s", self.name, worse)

    def _unthinkable(self, jobs: Sequence[tuple[TransformersMember, Any]]) -> list[Failure | None]:
        """Think what these jobs wait for. Per job why that is not possible, if it is not: no other suffers for it."""
        try:
            self._think(jobs)
            return [None] * len(jobs)
        except Exception as error:
            broken = emptied(error)
        self._lose((), broken)
        if len(jobs) == 1:
            return [failure(broken, self.device)]
        return [told for job in jobs for told in self._unthinkable([job])]

    # --- drafting ---------------------------------------------------------------------------------------------------

    def _draft_batch(self, batch: Sequence[tuple[TransformersMember, DraftJob, list[int]]]) -> list[Draft | Failure]:
        since, clock = time.perf_counter(), time.time()
        return drafts(self.drawing, [one._sheet(job, context) for one, job, context in batch], since, clock)

    def _sheet(self, job: DraftJob, context: list[int]) -> Sheet:
        memo = self._memo(job.query)
        how = replace(
            job.sampling,
            seed=job.sampling.seed + 1_000_003 * self.seed,
            repetition_penalty=job.sampling.repetition_penalty or self.penalty,
        )
        room = (self.context_limit or len(context) + job.max_tokens) - len(context)
        pen = Pen(job, self._key(job.query.id), context, how, min(job.max_tokens, room))
        if job.query.constraint is not None:
            with guarded(pen):
                pen.bound = self._bound(job, memo)
                self.drawing.open(pen)
        sheet = Sheet(pen, memo, self.words, self.scoring)
        sheet.go_on(self.drawing)
        if job.hints is not None and self.store.can_turn_back:
            sheet.look_back()
            tails, sizes = self._tails(job, job.hints if pen.bound is None else ())
            fit = all(len(ids) <= (self.context_limit or len(ids)) for ids in tails)
            sheet.look_beside(tails if fit else [], sizes if fit else [])
        return sheet

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

    # --- scoring ----------------------------------------------------------------------------------------------------

    def _score_batch(self, batch: Sequence[tuple[TransformersMember, ScoreJob, list[int]]]) -> list[Scored]:
        return scored(self.store, [one._proof(job, context) for one, job, context in batch])

    def _proof(self, job: ScoreJob, context: list[int]) -> Proof:
        memo = self._memo(job.query)
        known = memo.known(context)
        new = [c for c in job.candidates if (c.text, c.ended) not in known]
        tails, sizes = self._tails(job, new)
        if memo.trail:
            memo.trail.heard(tails, len(context))
        fan = Fan(self._key(job.query.id), context, tails, beside=bool(known))
        return Proof(job, fan, sizes, new, known, self.scoring, self.words)

    def _tails(self, job: DraftJob | ScoreJob, candidates: Sequence[Candidate]) -> tuple[list[list[int]], list[int]]:
        """Candidates as whole lists of tokens, with the words of their end, and how long each is without those."""
        texts = [self._candidate_ids(job, c.text) for c in candidates]
        end = self._end_ids(job.query)
        tails = [ids + end if c.ended else ids for ids, c in zip(texts, candidates, strict=True)]
        return tails, [len(ids) for ids in texts]

    def _end_ids(self, query: Query) -> list[int]:
        """The words that end a turn, where the query's constraint leaves room for any."""
        return self.end_ids if speaks(query.constraint) else []

    def _candidate_ids(self, job: DraftJob | ScoreJob, text: str) -> list[int]:
        """Prompt, answer and candidate, tokenized as it would be if the candidate were agreed."""
        answer = (*job.answer, Segment(text)) if text else job.answer
        return self._memo(job.query).read(self.name, self.words, answer)


def _checked_adapter(told: Any) -> str | None:
    if told is None or (isinstance(told, (str, os.PathLike)) and os.fspath(told).strip()):
        return None if told is None else os.fspath(told)
    raise advised(UsageError(f"adapter={told!r} names no adapter"), "name a folder or a hub id, or leave it out")


def _anywhere(path: str) -> str:
    """The same file for a process that stands in another folder."""
    return os.path.abspath(path) if os.path.exists(path) else path


def _checked_truth(name: str, told: bool) -> bool:
    if not isinstance(told, bool):
        raise advised(UsageError(f"{name}={told!r} is neither True nor False"), "leave it out")
    return told


def _checked_bytes(told: bool | int) -> bool | int:
    if not isinstance(told, int) or told < 0:
        raise advised(UsageError(f"prefix_cache={told!r} is neither True, False nor a number of bytes"), "leave it out")
    return told
