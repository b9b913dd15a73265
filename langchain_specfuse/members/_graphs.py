"""Steps captured as CUDA graphs: a whole pass through the model is one launch.

What a step reads and writes must stay where it was when the step was captured: the slab says when its memory moves (it
then forgets what was captured), the weights are looked at before each use. A step that cannot be captured is launched
by itself. Knows CUDA; nothing of what a step does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ._norms import fused
from ._slab import Slab

log = logging.getLogger("langchain_specfuse")

MOST = 24
"""So many steps are held at most."""
WARM = 2
"""Before it is captured a step runs so often: libraries make themselves ready then."""


class Graphs:
    """The captured steps of members with one memory."""

    def __init__(self, slab: Slab, name: str) -> None:
        self.slab, self.name = slab, name
        self.device = slab.read.device
        self.refused = False
        """Something could not be captured; then nothing is, from there on."""
        self._pool: Any = None
        self._weights: tuple[int, ...] = ()

    @staticmethod
    def fit(slab: Slab) -> bool:
        """Whether this model is where its steps can be captured."""
        place = place_of(slab.read.model)
        return place is not None and place.type == "cuda"

    def holds(self, kind: Hashable) -> bool:
        """Whether there is no need to capture this kind of step, or no use in it."""
        self._look_at_weights()
        return self.refused or kind in self.slab.captured

    def capture(self, kind: Hashable, step: Callable[[], None]) -> None:
        """Runs the step a few times, and keeps it as one launch, if that can be done."""
        held = self.slab.captured
        try:
            with fused(self.slab.read.model) as norms:
                graph = self._capture(step)
        except Exception as error:  # whatever a model does that no graph can hold
            self.refused = True
            held.clear()
            log.warning("%s: its steps cannot be captured (%s): each is launched by itself", self.name, error)
            return
        while len(held) >= MOST:
            del held[next(iter(held))]
        held[kind] = graph, norms

    def step(self, kind: Hashable, step: Callable[[], None]) -> Callable[[], None]:
        """The step of this kind as one launch; as it is, where it was not captured."""
        held = self.slab.captured
        if kind not in held:
            return step
        graph, _ = held[kind] = held.pop(kind)  # most recently used last
        return lambda: self._replay(graph)

    def _capture(self, step: Callable[[], None]) -> Any:
        with self._aside() as stream:
            for _ in range(WARM):
                step()
            torch.cuda.current_stream(self.device).synchronize()
            graph = torch.cuda.CUDAGraph()
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            # Other threads drive other devices meanwhile: what they do must not break this off.
            with torch.cuda.graph(graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"):
                step()
        return graph

    def _replay(self, graph: Any) -> None:
        with torch.cuda.device(self.device):
            graph.replay()

    @contextmanager
    def _aside(self) -> Iterator[Any]:
        """A stream of its own, as capturing wants it."""
        with torch.cuda.device(self.device):
            stream, usual = torch.cuda.Stream(self.device), torch.cuda.current_stream(self.device)
            stream.wait_stream(usual)
            with torch.cuda.stream(stream):
                yield stream
            usual.wait_stream(stream)

    def _look_at_weights(self) -> None:
        """Weights that have moved leave what was captured without any."""
        now = tuple(one.data_ptr() for one in self.slab.read.model.parameters())
        if now != self._weights:
            self.slab.captured.clear()
            self._weights = now


def place_of(model: Any) -> torch.device | None:
    """The one device of all that a model holds; None where there are several, or where something moves it about."""
    places = {one.device for one in (*model.parameters(), *model.buffers())}
    moved = any(hasattr(module, "_hf_hook") for module in model.modules())  # accelerate's
    return None if moved or len(places) != 1 else places.pop()
