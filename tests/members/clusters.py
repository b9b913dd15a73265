"""A real Ray cluster of two nodes on this machine, for tests and measurements.

Its nodes are at 127.0.0.2 and 127.0.0.3: Ray takes 127.0.0.1 for the machine's own address.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import ray
import ray.cloudpickle
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from ray.cluster_utils import Cluster as Nodes

from langchain_specfuse import ScriptedMember
from langchain_specfuse.core.values import Draft, DraftJob, Failure

STORY = " ".join(f"word{k}" for k in range(40))
HEAD, OTHER = "127.0.0.2", "127.0.0.3"


class Cluster:
    """Two nodes; only the second one has the resource ``other``, twice."""

    def __init__(self, cpus: int = 4) -> None:
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        os.environ.setdefault("RAY_raylet_start_wait_time_s", "180")  # for busy machines
        # Other processes cannot import the tests.
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
        """Start the second node, again if it was lost."""
        self.other = self._nodes.add_node(
            node_ip_address=OTHER, num_cpus=self._cpus, resources={"other": 2}
        )

    def lose(self) -> None:
        """Kill the second node immediately, like a power failure."""
        self._nodes.remove_node(self.other, allow_graceful=False)

    def stop(self) -> None:
        ray.shutdown()
        self._nodes.shutdown()


@contextmanager
def running(cpus: int = 4) -> Iterator[Cluster]:
    cluster = Cluster(cpus)
    try:
        yield cluster
    finally:
        cluster.stop()


class Slow(ScriptedMember):
    """Takes its time for every draft, so that tests can interfere in the middle."""

    def draft(self, jobs: Sequence[DraftJob]) -> Sequence[Draft | Failure]:
        time.sleep(0.1)
        return super().draft(jobs)


class Talking(BaseChatModel):
    """Streams its script, a word in 50 ms, and continues it where it stops."""

    script: str = STORY

    @property
    def _llm_type(self) -> str:
        return "talking"

    def _get_ls_params(self, *args: Any, **options: Any) -> Any:
        return {**super()._get_ls_params(*args, **options), "ls_provider": "ollama"}

    def _generate(self, *_: Any, **__: Any) -> ChatResult:
        raise NotImplementedError

    def _stream(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **options: Any
    ) -> Iterator[ChatGenerationChunk]:
        begun = messages[-1].text if isinstance(messages[-1], AIMessage) else ""
        for word in re.findall(r"\s*\S+", self.script.removeprefix(begun)):
            yield ChatGenerationChunk(message=AIMessageChunk(word))
            time.sleep(0.05)
        end = {"finish_reason": "stop"}
        yield ChatGenerationChunk(message=AIMessageChunk("", response_metadata=end))
