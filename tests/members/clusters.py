"""A real Ray cluster of two nodes on this machine, for tests and measurements, and members to try it with.

Its nodes live at 127.0.0.2 and 127.0.0.3: Ray takes 127.0.0.1 for the machine's own address.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from langchain_specfuse import ScriptedMember
from langchain_specfuse.core.member import Probe
from langchain_specfuse.core.values import Draft, DraftJob, Failure, Query

STORY = " ".join(f"word{k}" for k in range(40))
MISSING = "no Ray: pip install 'langchain-specfuse[ray]'"
HEAD, OTHER = "127.0.0.2", "127.0.0.3"


def installed() -> bool:
    return importlib.util.find_spec("ray") is not None


class Cluster:
    """Two nodes; the second has two of the resource ``other``, which none else has."""

    def __init__(self, cpus: int = 4) -> None:
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        os.environ.setdefault("RAY_raylet_start_wait_time_s", "180")  # a busy machine
        import ray.cloudpickle
        from ray.cluster_utils import Cluster as Nodes

        # Tests are in no path that other processes know.
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])

        head = {"node_ip_address": HEAD, "num_cpus": cpus, "include_dashboard": False}
        self._nodes: Any = Nodes(initialize_head=True, head_node_args=head)
        self._cpus = cpus
        self.other: Any = None
        self.add()

    @property
    def address(self) -> str:
        return str(self._nodes.address)

    def add(self) -> None:
        """The second node, again if it was lost."""
        self.other = self._nodes.add_node(node_ip_address=OTHER, num_cpus=self._cpus, resources={"other": 2})

    def lose(self) -> None:
        """The second node at once, as if its machine had lost its power."""
        self._nodes.remove_node(self.other, allow_graceful=False)

    def stop(self) -> None:
        import ray

        ray.shutdown()
        self._nodes.shutdown()


@contextmanager
def running(cpus: int = 4) -> Iterator[Cluster]:
    one = Cluster(cpus)
    try:
        yield one
    finally:
        one.stop()


# --- members to try things with ---------------------------------------------------------------------------------


class Slow(ScriptedMember):
    """Takes its time, so that there is a middle."""

    def draft(self, jobs: Sequence[DraftJob]) -> Sequence[Draft | Failure]:
        time.sleep(0.1)
        return super().draft(jobs)


class Whereabouts(ScriptedMember):
    """Says in which process it is."""

    def __init__(self) -> None:
        super().__init__("", name="whereabouts")

    def draft(self, jobs: Sequence[DraftJob]) -> Sequence[Draft | Failure]:
        return [Draft(str(os.getpid()), True, (1,), (-0.1, -0.1)) for _ in jobs]


class Deadly(ScriptedMember):
    """Some questions kill it."""

    def __init__(self) -> None:
        super().__init__(self.said, name="deadly")

    @staticmethod
    def said(query: Query) -> str:
        if query.turns[0].text == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        return STORY


class Meeting(ScriptedMember):
    """Loads only while another does."""

    def __init__(self, folder: Path, name: str) -> None:
        super().__init__(STORY, name=name)
        self.folder = folder

    def probe(self) -> Probe:
        (self.folder / self.name).touch()
        deadline = time.monotonic() + 40
        while len(list(self.folder.iterdir())) < 2:
            if time.monotonic() > deadline:
                raise TimeoutError("nobody else loads")
            time.sleep(0.05)
        return super().probe()


class Unsendable(ScriptedMember):
    """Holds what only one process can have."""

    def __init__(self) -> None:
        super().__init__("x", name="unsendable")
        self.lock = threading.Lock()
