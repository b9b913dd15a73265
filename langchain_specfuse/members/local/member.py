"""A model in this process as a member: what it is made from, how it is loaded and unloaded, and
what it keeps of each query.

How its jobs become replies is in ``batch``, because members with the same weights and adapter share
batches.
"""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Annotated, Any, ClassVar, TypeAlias

from pydantic import Field

from ...constraints import Vocabulary
from ...core.member import Probe
from ...core.values import Draft, DraftJob, Failure, Scored, ScoreJob, Tool, Turn
from ...errors import UsageError, advised, emptied
from .. import hub
from ..files import preview, reasons
from ..text.prompts import Prompts
from ..text.templates import Template, end_of_turn, stop_ids
from ..text.words import Words
from .batch import Loaded, LocalGroup, QueryState
from .cache import Cache
from .weights import Weights

log = logging.getLogger("langchain_specfuse")

_IDS = count()
_PROCESS = ("loaded", "states", "_in_memory", "_device", "_probe", "_id", "_early")
"""Attributes that stay in this process."""

ThinkingTokens: TypeAlias = Annotated[int, Field(ge=0, description="0 switches reasoning off")]
RepetitionPenalty: TypeAlias = (
    Annotated[float, Field(gt=0, allow_inf_nan=False, description="1.1, for example")] | None
)
PrefixCache: TypeAlias = (
    bool | Annotated[int, Field(ge=0, description="a number of bytes; leave it out for the usual")]
)


@dataclass(frozen=True)
class MemberSettings:
    """How a member differs from others with the same weights and adapter."""

    chat_template: str | None = None
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    system_prompt: str | None = None
    repetition_penalty: float | None = None
    """None: that of the model's own generation config."""
    thinking_tokens: int = 1024


class LocalMember(ABC):
    """One LLM in this process.

    Members of one model that differ in ``adapter``, ``system_prompt``, ``chat_template`` or
    ``repetition_penalty`` share its weights. A subclass says how the weights are loaded.
    """

    usual_source: ClassVar[Mapping[str, Any]] = {}
    """Values of the source that :attr:`spec` leaves out."""

    def __init__(
        self,
        source: Any,
        settings: MemberSettings,
        *,
        adapter: str | os.PathLike[str] | None,
        name: str | None,
        prefix_cache: bool | int,
        in_memory: Weights | None = None,
    ) -> None:
        """``source``: a dataclass with the ``model``'s name and everything else that makes two
        loads the same. ``in_memory``: weights that the user has loaded."""
        self.source = source
        self.settings = settings
        self.adapter = _checked_adapter(adapter)
        self.prefix_cache = prefix_cache
        self.name = name or _name_of(self.adapter or source.model)
        self._start_unloaded(in_memory)

    def _start_unloaded(self, in_memory: Weights | None) -> None:
        self.loaded: Loaded | None = None
        """None: not loaded."""
        self.states: dict[str, QueryState] = {}
        """By query id."""
        self._probe: Probe | None = None
        self._in_memory = in_memory
        self._device = in_memory.device if in_memory else "loading"
        self._id = str(next(_IDS))

    def __repr__(self) -> str:
        kept = self.prefixes
        text = f"{type(self).__name__}({self.source.model!r}, name={self.name!r}"
        if kept["prefixes"]:
            text += f", {kept['tokens']} tokens kept in {kept['bytes'] / 1e6:.1f} MB"
        return f"{text})"

    def __getstate__(self) -> dict[str, Any]:
        """What it is made from, without anything that it has loaded: the process that unpickles it
        loads the weights itself."""
        if self._in_memory is not None:
            error = UsageError(f"{self.name} is a model in memory, which stays in its process")
            raise advised(
                error, "save it (model and tokenizer: save_pretrained(folder)) and name the folder"
            )
        state = {key: value for key, value in vars(self).items() if key not in _PROCESS}
        state["source"] = replace(self.source, model=_absolute(self.source.model))
        state["adapter"] = _absolute(self.adapter) if self.adapter else None
        return state

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state)
        self._start_unloaded(None)

    @property
    def spec(self) -> dict[str, Any]:
        """Everything that affects this member's output, as plain JSON."""
        usual = {**vars(MemberSettings()), **self.usual_source, "adapter": None}
        values = {**vars(self.source), **vars(self.settings), "adapter": self.adapter}
        spec = {key: value for key, value in values.items() if value != usual.get(key)}
        if self._in_memory is not None:
            spec["mark"] = self._in_memory.id
        return {key: _as_json(value) for key, value in spec.items()}

    @property
    def device(self) -> str:
        return self._device

    @property
    def batch_group(self) -> LocalGroup | None:
        """Members with the same one share batches."""
        loaded = self.loaded
        return loaded.group if loaded is not None else None

    @property
    def cache(self) -> Cache | None:
        """Everything that this member and others with the same adapter have read."""
        loaded = self.loaded
        return loaded.cache if loaded is not None else None

    # --- the protocol -----------------------------------------------------------------------------

    def preview(self) -> Probe | None:
        if self._in_memory is None:
            return preview(self.spec)
        template = getattr(self._in_memory.tokenizer, "chat_template", None)
        return Probe(
            self.source.model,
            max_context=self._in_memory.context_limit,
            reasons=reasons(template, self.spec),
        )

    def probe(self) -> Probe:
        self._load()
        assert self._probe is not None
        return self._probe

    def draft(self, jobs: Sequence[DraftJob]) -> list[Draft | Failure]:
        return self._load().group.draft([(self, job) for job in jobs])

    def score(self, jobs: Sequence[ScoreJob]) -> list[Scored | Failure]:
        return self._load().group.score([(self, job) for job in jobs])

    def forget(self, query_id: str) -> None:
        loaded = self.loaded
        if loaded is None:
            return
        with loaded.cache.weights.at_work():
            self._forget(loaded, query_id)

    def unload(self) -> None:
        """Free the weights and all caches (weights given in memory stay yours). The next job loads
        them again.

        Shared weights and caches stay while another member uses them. Call it on the member's
        worker, like everything else that changes the cache: ``llm.unload()`` and
        :func:`~langchain_specfuse.unload` do.
        """
        loaded, self.loaded, self._probe = self.loaded, None, None
        if loaded is None:
            return
        weights = loaded.cache.weights
        with weights.at_work():
            for query_id in list(self.states):
                self._forget(loaded, query_id)
            loaded.group.leave(loaded)
        self.states.clear()
        del loaded  # the last member frees the cache, and with it the adapter that the cache holds
        weights.prune()

    # --- what it keeps ----------------------------------------------------------------------------

    @property
    def prefixes(self) -> dict[str, int]:
        """What is kept of finished queries: the number of prefixes, their tokens and their
        bytes."""
        cache = self.cache
        kept = cache.prefixes.kept if cache is not None else []
        return {
            "prefixes": len(kept),
            "tokens": sum(len(strand.ids) for strand in kept),
            "bytes": sum(strand.bytes for strand in kept),
        }

    def drop_prefixes(self) -> None:
        """Free what is kept of finished queries. Call it on the member's worker, like everything
        else that changes the cache."""
        cache = self.cache
        if cache is not None:
            cache.drop_prefixes()

    def _forget(self, loaded: Loaded, query_id: str) -> None:
        self.states.pop(query_id, None)
        cache, key = loaded.cache, loaded.key(query_id)
        try:
            cache.forget(key)
        # There is no room to keep it, or the device is gone. Other queries are not affected.
        except Exception as error:
            log.warning("%s: what was read for a query could not be kept: %s", self.name, error)
            cache.lose([key], emptied(error))

    # --- text and tokens --------------------------------------------------------------------------

    @property
    def prompts(self) -> Prompts:
        """Turns its queries into tokens. Any thread may use it."""
        return self._load().prompts

    @property
    def words(self) -> Words:
        return self.prompts.words

    @property
    def template(self) -> Template:
        return self.prompts.template

    @property
    def chat_template(self) -> str | None:
        return self.settings.chat_template

    @property
    def stops(self) -> list[int]:
        """Tokens that end a turn."""
        return list(self.prompts.stops)

    @property
    def vocabulary(self) -> Vocabulary:
        """Its tokens, for grammars."""
        return self._load().vocabulary

    def token_ids(self, text: str) -> list[int]:
        """The text's tokens in this member's tokenizer."""
        return self.words.encode(text)

    def token_count(self, turns: Sequence[Turn], tools: Sequence[Tool] = ()) -> int:
        """The length of the prompt of these turns, with its description of these tools."""
        return len(self.prompts.prompt(turns, tools))

    # --- loading ----------------------------------------------------------------------------------

    @abstractmethod
    def _load_weights(self) -> Weights:
        """Its weights. They are loaded now unless another member has loaded them."""

    @abstractmethod
    def _new_cache(self, weights: Any, adapter: Any) -> Cache:
        """An empty cache for everything that is read with these weights and this adapter."""

    def _load(self) -> Loaded:
        """Load the member unless it is loaded. The worker may unload it at any time, so callers
        keep what this returns."""
        loaded = self.loaded
        if loaded is not None:
            return loaded
        weights = self._in_memory or self._load_weights()
        self._device = weights.device
        with weights.at_work():
            group = LocalGroup.of(
                weights, self.adapter, self.prefix_cache, self.name, self._new_cache
            )
        prompts = self._new_prompts(weights)
        detail = f"{weights.describe()}, {group.cache.detail}"
        log.info("%s: %s", self.name, detail)
        self._probe = Probe(
            self.source.model,
            scores=True,
            max_context=weights.context_limit,
            detail=detail,
            calls=prompts.template.own_calls(prompts.words),
            size=weights.parameters,
            reasons=reasons(prompts.template.chat_template, self.spec),
            excludes=True,
        )
        loaded = Loaded(
            self._id,
            group,
            prompts,
            self.settings.thinking_tokens,
            self._penalty(weights),
            self.states,
        )
        group.join(loaded)
        self.loaded = loaded
        return loaded

    def _penalty(self, weights: Weights) -> float | None:
        """Its repetition penalty; if it has none, that of the model's generation config."""
        own = self.settings.repetition_penalty
        if own is not None:
            return own
        return getattr(weights.generation_config, "repetition_penalty", None)

    def _new_prompts(self, weights: Weights) -> Prompts:
        settings, tokenizer = self.settings, weights.tokenizer
        template = Template(
            tokenizer, self.name, settings.chat_template, settings.chat_template_kwargs
        )
        return Prompts(
            self.name,
            Words(tokenizer, template.answer_parts),
            template,
            stop_ids(tokenizer, weights.generation_config, end_of_turn(template)),
            system_prompt=settings.system_prompt,
            thinks=settings.thinking_tokens > 0,
        )


def _name_of(path: str) -> str:
    """The last part of a path or hub id."""
    if hub.is_hub_name(path):
        return hub.plain_name(path)
    last = os.path.basename(path.rstrip("/\\")).removesuffix(".gguf")
    return last or path


def _checked_adapter(adapter: str | os.PathLike[str] | None) -> str | None:
    if adapter is None:
        return None
    path = os.fspath(adapter)
    if not path.strip():
        raise advised(
            UsageError(f"adapter={adapter!r} does not name an adapter"),
            "name a folder or a hub id, or leave it out",
        )
    return path


def _absolute(path: str) -> str:
    """An absolute path to the file, for a process that works in another folder."""
    return os.path.abspath(path) if os.path.exists(path) else path


def _as_json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _as_json(inner) for key, inner in value.items()}
    return value if isinstance(value, (str, int, float, bool)) else repr(value)
