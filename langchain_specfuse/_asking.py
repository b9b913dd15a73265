"""One question on its way: what was chosen for it, told in the words of its members once they are loaded.

Knows queries, ensembles and shapes; nothing of LangChain's messages or callbacks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from . import _shapes
from ._calls import Splitter
from ._errors import loading_errors
from ._shapes import Shape
from ._signal import Ledger
from ._story import Depth
from ._tally import Tally
from .core.member import Probe
from .core.referee import FREE
from .core.values import CallFormat, Query, Round, Settings
from .engine.ensemble import Ensemble


@dataclass(frozen=True, slots=True)
class Call:
    """One question with all that was chosen for it."""

    query: Query
    settings: Settings
    ensemble: Ensemble
    shape: Shape
    limits: Mapping[str, Any]
    writers: Sequence[str]
    """The names of the members that write."""
    model: str
    """The name shown in metadata."""
    preset: str
    trace: Depth
    format: CallFormat = _shapes.COMMON
    runners_up: bool = False
    """Whether annotations tell the best draft that lost."""

    def told(self, probes: Mapping[str, Probe]) -> Call:
        """The call in the words of its members, now that they are loaded."""
        formats = {probes[name].calls for name in self.writers if name in probes} - {None}
        format = formats.pop() if len(formats) == 1 else None
        chosen = format or _shapes.COMMON
        query = replace(self.query, tools=self.shape.tools, constraint=self.shape.constraint(chosen))
        return replace(self, query=query, format=chosen)

    @property
    def about(self) -> dict[str, Any]:
        """What traces tell of it, and how deep they go."""
        verifiers = [name for name in self.ensemble.members if name not in self.writers]
        return {"depth": self.trace, "preset": self.preset, "members": self.writers, "verifiers": verifiers}

    def loaded(self) -> dict[str, Probe]:
        return loaded(self.ensemble)

    async def aloaded(self) -> dict[str, Probe]:
        with loading_errors():
            return await asyncio.wrap_future(self.ensemble.loaded())

    def rounds(self) -> Generator[Round, None, None]:
        referee = _shapes.referee_of(self.query.constraint)
        rounds = self.ensemble.rounds(self.query, self.settings, referee=referee, **self.limits)
        return cast("Generator[Round, None, None]", rounds)

    async def arounds(self) -> AsyncGenerator[Round, None]:
        # A grammar may take long to compile; the loop must go on meanwhile.
        constraint = self.query.constraint
        referee = await asyncio.to_thread(_shapes.referee_of, constraint) if constraint else FREE
        rounds = self.ensemble.arounds(self.query, self.settings, referee=referee, **self.limits)
        async with aclosing(cast("AsyncGenerator[Round, None]", rounds)) as items:
            async for item in items:
                yield item

    def tally(self, output_version: str | None) -> Tally:
        seed = self.settings.sampling.seed if self.settings.sampling.temperature else None
        parts = self._splitter()
        constraint = self.query.constraint
        return Tally(
            self.writers,
            self.model,
            output_version=output_version,
            seed=seed,
            splitter=parts,
            ledger=Ledger(constraint, partial(_shapes.referee_of, constraint)),
            runners_up=self.runners_up,
        )

    def _splitter(self) -> Splitter | None:
        """What parts calls from words; None if nothing can be called."""
        if self.shape.toolbox is None:
            return None
        anywhere = not self.shape.begins_with_call
        return Splitter(self.format, anywhere=anywhere)


def loaded(ensemble: Ensemble) -> dict[str, Probe]:
    """What each member can do; loaded now if they have not been."""
    with loading_errors():
        return ensemble.loaded().result()
