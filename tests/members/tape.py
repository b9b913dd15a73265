"""A graph without a GPU: what ran while it was captured runs again, on the same memory, with the same numbers.

As a CUDA graph does, a tape knows no Python: shapes, indices and constants are those of the capture, every result goes
to the place where it went then, and whoever reads a tensor that was made anew since reads the old one. So what is wrong
on a tape is wrong in a graph, but for what only CUDA minds: streams, pools, and work that no graph can hold.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from langchain_specfuse.members._graphs import Graphs

ASKS = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "unique_dim", "_unique2"}
"""Work whose result or shape the host must know: no graph can hold it."""


class Tape(TorchDispatchMode):
    """Records all work, and does it again."""

    def __init__(self) -> None:
        super().__init__()
        self.work: list[tuple[Any, Any, Any, Any, bool]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if name in ASKS:
            raise RuntimeError(f"{name} asks the host")
        made = func(*args, **kwargs)
        places = {one.untyped_storage().data_ptr() for one in tree_leaves((args, kwargs)) if torch.is_tensor(one)}
        new = [one.untyped_storage().data_ptr() not in places for one in tree_leaves(made) if torch.is_tensor(one)]
        if func._schema.is_mutable or any(new):  # a view is where it was
            self.work.append((func, args, kwargs, made, func._schema.is_mutable))
        return made

    def replay(self) -> None:
        for func, args, kwargs, made, mutable in self.work:
            again = func(*args, **kwargs)
            if not mutable:
                for place, result in zip(tree_leaves(made), tree_leaves(again), strict=True):
                    if torch.is_tensor(place) and place.numel():
                        place.copy_(result)


class Taped(Graphs):
    """Captures on tapes."""

    replayed = 0

    def _capture(self, step: Callable[[], None]) -> Tape:
        step()
        with Tape() as tape:
            step()
        return tape

    def _replay(self, graph: Tape) -> None:
        self.replayed += 1
        graph.replay()
