"""What members in this process have in common: loaded when they are first asked, unloaded, pickled.

What such a member does with jobs is in ``batch_group``, because members with the same weights work
in one batch.
"""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from langchain_specfuse.core.member import Probe
from langchain_specfuse.core.values import Draft, DraftJob, Failure, Scored, ScoreJob, Tool, Turn
from langchain_specfuse.errors import UsageError, advised
from langchain_specfuse.members.files import preview, reasons
from langchain_specfuse.members.text.templates import Template
from langchain_specfuse.members.text.words import Words
from langchain_specfuse.secret_values import masked, remember

from .batch_group import GroupMember, MemberSettings, SharedWeights
from .strands import StrandStore

log = logging.getLogger("langchain_specfuse")

_PROCESS = ("loaded", "_given", "_device", "_probe")
"""Attributes that stay in this process."""


class LocalMember(ABC):
    """One LLM in this process. ``source``: a dataclass with its ``model``, and all else that makes
    two loads the same.

    Members of one model that differ in ``adapter``, ``system_prompt``, ``repetition_penalty`` or
    ``seed`` share its weights.
    """

    usual: ClassVar[Mapping[str, Any]] = {}
    """Values of the source that need not be written in :attr:`spec`."""

    def __init__(
        self,
        source: Any,
        *,
        adapter: str | os.PathLike[str] | None,
        name: str | None,
        called: str,
        settings: MemberSettings,
        prefix_cache: bool | int,
        given: Any = None,
    ) -> None:
        remember([vars(source), vars(settings), adapter])
        self.source = source
        self.adapter = checked_adapter(adapter)
        called = self.adapter or called
        last = os.path.basename(called.rstrip("/\\")).removesuffix(".gguf")
        self.name = name or masked(last or called)
        self.settings = settings
        self.prefix_cache = checked_bytes(prefix_cache)
        self._start_unloaded(given)

    def _start_unloaded(self, weights: Any) -> None:
        self.loaded: GroupMember | None = None
        """How it reads and writes queries, once it is loaded."""
        self._given = weights
        self._device = weights.device if weights else "loading"
        self._probe: Probe | None = None

    def __repr__(self) -> str:
        held = self.prefixes
        kept = (
            f", {held['tokens']} tokens kept in {held['bytes'] / 1e6:.1f} MB"
            if held["prefixes"]
            else ""
        )
        return masked(f"{type(self).__name__}({self.source.model!r}, name={self.name!r}{kept})")

    def __getstate__(self) -> dict[str, Any]:
        """What it is made from, and nothing that it has loaded: the process that unpickles it loads
        for itself."""
        if self._given:
            error = UsageError(f"{self.name} is a model in memory, which stays in its process")
            raise advised(
                error, "save it (model and tokenizer: save_pretrained(folder)) and name the folder"
            )
        state = {key: value for key, value in vars(self).items() if key not in _PROCESS}
        adapter = absolute(self.adapter) if self.adapter else None
        return state | {
            "source": replace(self.source, model=absolute(self.source.model)),
            "adapter": adapter,
        }

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state)
        remember([vars(self.source), vars(self.settings), self.adapter])
        self._start_unloaded(None)

    @property
    def spec(self) -> dict[str, Any]:
        """Everything that affects this member's output, as plain JSON. Secrets are left out:
        answers do not depend on whose key is used."""
        usual = {**vars(MemberSettings()), **self.usual, "adapter": None}
        everything = vars(self.source) | vars(self.settings) | {"adapter": self.adapter}
        spec = masked({key: one for key, one in everything.items() if one != usual.get(key)})
        if self._given:
            spec["mark"] = self._given.id
        return dict(masked({key: _as_json(value) for key, value in spec.items()}))

    @property
    def device(self) -> str:
        return self._device

    @property
    def batch_group(self) -> SharedWeights | None:
        """Members with the same one share batches."""
        return self.loaded.group if self.loaded else None

    # --- the protocol -----------------------------------------------------------------------------

    def preview(self) -> Probe | None:
        if self._given:
            reasoning = reasons(getattr(self._given.tokenizer, "chat_template", None), self.spec)
            return Probe(
                self.source.model, max_context=self._given.context_limit, reasons=reasoning
            )
        return preview(self.spec)

    def probe(self) -> Probe:
        self._load()
        assert self._probe is not None
        return self._probe

    def draft(self, jobs: Sequence[DraftJob]) -> list[Draft | Failure]:
        return self._load().group.draft([(self, job) for job in jobs])

    def score(self, jobs: Sequence[ScoreJob]) -> list[Scored | Failure]:
        return self._load().group.score([(self, job) for job in jobs])

    def forget(self, query_id: str) -> None:
        if self.loaded:
            self.loaded.forget(query_id)

    def unload(self) -> None:
        """Free the weights and all caches (weights given in memory stay yours). The next job loads
        them again.

        What is shared stays while another member has it.
        """
        loaded, self.loaded, self._probe = self.loaded, None, None
        if loaded is not None:
            loaded.leave()
            weights = loaded.weights
            del loaded
            weights.left()

    # --- what it holds ----------------------------------------------------------------------------

    @property
    def prefixes(self) -> dict[str, int]:
        """What is kept of queries that are over: the number of prefixes, their tokens and their
        bytes."""
        kept = self.loaded.store.prefixes.kept if self.loaded else []
        tokens, held = sum(len(prefix.ids) for prefix in kept), sum(prefix.bytes for prefix in kept)
        return {"prefixes": len(kept), "tokens": tokens, "bytes": held}

    def drop_prefixes(self) -> None:
        """Free what is kept of queries that are over. To be called on the member's worker, as
        everything else."""
        if self.loaded:
            self.loaded.store.prefixes.clear()
            self.loaded.store.sweep()

    # --- text and tokens --------------------------------------------------------------------------

    @property
    def words(self) -> Words:
        return self._load().words

    @property
    def chat_template(self) -> str | None:
        return self.settings.chat_template

    @property
    def template(self) -> Template:
        return self._load().template

    @property
    def stops(self) -> list[int]:
        """Tokens that end a turn."""
        return list(self._load().stops)

    def token_ids(self, text: str) -> list[int]:
        """The text's tokens in this member's tokenizer."""
        return self.words.encode(text)

    def token_count(self, turns: Sequence[Turn], tools: Sequence[Tool] = ()) -> int:
        """The length of the prompt of these turns, with its description of these tools."""
        return len(self._load().prompt_ids(turns, tools))

    # --- loading ----------------------------------------------------------------------------------

    @property
    def _apart(self) -> Any:
        """Members that differ in this have caches of their own."""
        return None

    @abstractmethod
    def _weights(self) -> Any:
        """Its weights; loaded now unless another member has them."""

    @abstractmethod
    def _adapter(self, weights: Any, path: str) -> Any:
        """The one copy of this adapter."""

    @abstractmethod
    def _store(self, weights: Any, adapter: Any) -> tuple[StrandStore, int]:
        """A cache for all that is read with this adapter, and how many bytes of memory nothing uses
        now."""

    @abstractmethod
    def _details(self, loaded: GroupMember) -> tuple[str, int]:
        """Device, precision and the like, for people; the number of parameters."""

    def _joined(self, weights: Any) -> GroupMember:
        """Join the group of members with the same adapter: an engine reads with one at a time."""
        adapter = self._adapter(weights, self.adapter) if self.adapter else None
        key = (repr(self.prefix_cache), adapter, self._apart)
        group: SharedWeights | None = weights.groups.get(key)
        if group is None:
            store, free = self._store(weights, adapter)
            group = weights.groups[key] = SharedWeights(
                weights, store, free=free, prefix_cache=self.prefix_cache
            )
        return GroupMember(group, self.name, self.settings)

    def _load(self) -> GroupMember:
        if self.loaded is not None:
            return self.loaded
        weights = self._given or self._weights()
        self._device = weights.device
        with weights.at_work():
            loaded = self.loaded = self._joined(weights)
        detail, size = self._details(loaded)
        log.info("%s: %s", self.name, detail)
        calls = loaded.template.own_calls(loaded.words)
        reasoning = reasons(loaded.template.chat_template, self.spec)
        self._probe = Probe(
            self.source.model, True, weights.context_limit, detail, calls, size, reasoning
        )
        return loaded


# --- checks ---------------------------------------------------------------------------------------


def checked_adapter(adapter: Any) -> str | None:
    if adapter is None or (isinstance(adapter, (str, os.PathLike)) and os.fspath(adapter).strip()):
        return None if adapter is None else os.fspath(adapter)
    raise advised(
        UsageError(f"adapter={adapter!r} does not name an adapter"),
        "name a folder or a hub id, or leave it out",
    )


def checked_bytes(size: bool | int) -> bool | int:
    if not isinstance(size, int) or size < 0:
        error = UsageError(f"prefix_cache={size!r} is neither True, False nor a number of bytes")
        raise advised(error, "leave it out")
    return size


def absolute(path: str) -> str:
    """The same file for a process that works in another folder."""
    return os.path.abspath(path) if os.path.exists(path) else path


def _as_json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _as_json(one) for key, one in value.items()}
    return value if isinstance(value, (str, int, float, bool)) else repr(value)
