"""VllmMember: a model on a vLLM server that this process starts, owns and stops."""

from __future__ import annotations

import importlib.util
import itertools
import json
import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field

from ...core.call import shown
from ...core.member import Probe
from ...core.values import Draft, DraftJob, Failure, Scored
from ...errors import MemberError, UsageError, advised
from ..arguments import checked
from ..names import check_argument
from . import vllm_server
from .client import Address
from .member import ServerMember, Work
from .tokenizers import local_tokenizer
from .vllm_command import source_of
from .vllm_server import VllmServer

log = logging.getLogger("langchain_specfuse")

NOWHERE = "http://127.0.0.1"
"""The address of a server that does not run."""
_SERVER = ("_number", "_server", "_on_deletion", "_start")
"""Attributes that belong to the running server and are not copied."""
_NUMBERS = itertools.count()
_TOKENIZING = (
    "chat_template",
    "default_chat_template_kwargs",
    "revision",
    "tokenizer",
    "tokenizer_mode",
    "tokenizer_revision",
)
"""Arguments of vLLM with which the model's own tokenizer may read and render other texts."""
_ELSEWHERE = {
    "device": "gpu=0 names a GPU; without it, member i runs on GPU i mod n",
    "tensor_parallel_size": "tensor_parallel=2",
    "gpu_memory_utilization": "memory=0.5",
    **{
        flag: f"flags of `vllm serve` go into engine_args={{{flag!r}: ...}}"
        for flag in ("dtype", "max_model_len", "quantization", "seed", "trust_remote_code")
    },
}
"""Arguments of other members and of vLLM, and what to do instead."""


class VllmMember(ServerMember):
    """One model on a vLLM server, which this member starts as a child process.

    >>> member = VllmMember("Qwen/Qwen3-8B")  # starts nothing yet
    >>> member.name
    'Qwen3-8B'

    ``model``
        A hub id or a folder.
    ``adapter``
        A LoRA adapter: a folder or a hub id. Members with adapters of one base share its server.
    ``name``
        The member's name (default: the last part of the adapter's or model's name).
    ``python``
        The interpreter of the environment that has vLLM. Without it: this interpreter or, if there
        is no vLLM, that of ``$SPECFUSE_VLLM_PYTHON``.
    ``gpu``
        The number of the GPU, or a list of numbers. Without it, member i runs on GPU i mod n, where
        n is the number of GPUs.
    ``memory``
        The memory on each of its GPUs, in bytes or, up to 1, as a part of the whole. Without it, an
        equal share of what is free there. On a CPU it is the memory for keys and values (default: 2
        GiB).
    ``tensor_parallel``
        Over how many GPUs the model is split.
    ``engine_args``
        Further flags of ``vllm serve``, for example ``{"max_model_len": 8192}``.
    ``batch_invariant``
        Compute each answer exactly as it would be computed alone. vLLM supports that on some GPUs,
        and is slower then.
    ``tokenizer``
        The same as for :class:`.ServerMember`. Without it, the model's own tokenizer runs in this
        process if transformers is installed.

    The other arguments are those of :class:`.ServerMember`. The server gets a random key,
    listens on this machine only, and ends with this process. If it dies, the next job starts it
    again, at most once in ten minutes.
    """

    is_owned = True
    """The end of its process is noticed at once, so it is not late if nothing arrives."""

    @checked(elsewhere=_ELSEWHERE)
    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        name: str | None = None,
        adapter: str | os.PathLike[str] | None = None,
        python: str | os.PathLike[str] | None = None,
        gpu: Annotated[
            int, Field(ge=0, description="a GPU's number in nvidia-smi, or several: gpu=[0, 1]")
        ]
        | Sequence[int]
        | None = None,
        memory: Annotated[
            float,
            Field(
                gt=0,
                allow_inf_nan=False,
                description="in bytes or, up to 1, a part of the GPU's memory",
            ),
        ]
        | None = None,
        tensor_parallel: Annotated[int, Field(ge=1)] | None = None,
        engine_args: Mapping[str, Any] | None = None,
        batch_invariant: bool = False,
        tokenizer: Any = None,
        timeout: Annotated[float, Field(gt=0, lt=1e9, description="in seconds")] = 60.0,
        max_concurrency: Annotated[int, Field(ge=1)] | None = None,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        system_prompt: str | None = None,
    ) -> None:
        base = os.fspath(model)
        check_argument(base, "VllmMember", ["transformers"], "a hub id or a folder")
        self.adapter = None if adapter is None else os.fspath(adapter)
        self._source = source_of(
            base,
            python=python,
            gpu=gpu,
            memory=memory,
            tensor_parallel=tensor_parallel,
            engine_args=engine_args,
            batch_invariant=batch_invariant,
        )
        super().__init__(
            NOWHERE,
            self.adapter or base,
            name=name,
            tokenizer=tokenizer,
            timeout=timeout,
            max_concurrency=max_concurrency,
            chat_template=chat_template,
            chat_template_kwargs=chat_template_kwargs,
            system_prompt=system_prompt,
        )

    def _start_unconnected(self) -> None:
        super()._start_unconnected()
        self._number = next(_NUMBERS)
        self._server: VllmServer | None = None
        self._start = 0
        """The number of the server's start with which it is connected."""

    def __getstate__(self) -> dict[str, Any]:
        """Everything except the server: a copy in another process starts its own, and one in this
        process shares it."""
        state = {key: value for key, value in super().__getstate__().items() if key not in _SERVER}
        return state | {"address": replace(self.address, url=NOWHERE, key="", ended=None)}

    def __repr__(self) -> str:
        adapter = f", adapter={self.adapter!r}" if self.adapter else ""
        return f"VllmMember({self._source.model!r}{adapter}, name={self.name!r})"

    @property
    def device(self) -> str:
        return f"vllm:{self.model}#{self._number}"

    @property
    def is_away(self) -> bool:
        """As in :class:`.Member`: its server has died and is starting again."""
        return self._server is not None and self._server.is_away

    @property
    def spec(self) -> dict[str, Any]:
        """Everything that affects this member's output, as plain JSON."""
        source = self._source
        known: dict[str, Any] = {"model": f"vllm:{source.model}"}
        own = {
            "adapter": self.adapter,
            "engine_args": json.loads(source.engine_args),
            "batch_invariant": source.batch_invariant,
        }
        known |= {key: value for key, value in own.items() if value}
        return super().spec | known | {"server": "vLLM"}

    # --- the protocol -----------------------------------------------------------------------------

    def start_loading(self) -> None:
        """Have the server placed together with those of other members."""
        self._own_server().want()

    def probe(self) -> Probe:
        with self._connecting:
            if self._ready is None or not self._is_connected():
                # Importing transformers may take longer than all requests of the trial.
                reading = threading.Thread(
                    target=self._read_tokenizer, name="specfuse-tokenizer", daemon=True
                )
                self.address = self._address(reading.start)
                if reading.is_alive():
                    log.info("%s: waiting for its tokenizer", self.name)
                reading.join()
            return super().probe()

    def unload(self) -> None:
        """Close the connections. The server ends with the last member that uses it."""
        self._disconnect()
        server, self._server = self._server, None
        if server is not None:
            self._on_deletion.detach()
            server.release(self._number)

    def _answer(self, work: Work, job: Any) -> Draft | Scored | Failure:
        """The reply to one job. If the server must start again, each job waits for it within its
        own time limits."""
        try:
            return super()._answer(work, job)
        except (MemberError, UsageError):
            server = self._server
            if server is not None:
                server.revive()
            raise

    def stream(self, job: DraftJob) -> Iterator[Draft | Failure]:
        """As in :class:`.Member`."""
        for reply in super().stream(job):
            if isinstance(reply, Failure) and self._server is not None:
                self._server.revive()
            yield reply

    def _is_lost(self) -> bool:
        server = self._server
        if server is None or not server.is_alive or server.starts != self._start:
            return True
        return super()._is_lost()

    # --- the server -------------------------------------------------------------------------------

    def _own_server(self) -> VllmServer:
        if self._server is None:
            server = vllm_server.acquire(self._source, self._number, self.adapter)
            self._server = server
            self._on_deletion = weakref.finalize(self, server.release, self._number, wait=False)
            self._on_deletion.atexit = False  # all servers are stopped then
        return self._server

    def _address(self, meanwhile: Callable[[], None]) -> Address:
        """The address of the running server. ``meanwhile`` is called as soon as it starts."""
        try:
            server = self._own_server()
            address = server.ready(self.adapter, meanwhile)
            self._start = server.starts
        except MemberError as error:  # members of one server share it
            own = copy(error)
            own.member = self.name
            raise own from error.__cause__
        except UsageError:
            raise
        except Exception as error:  # the system may refuse a process or a file
            failed = MemberError(f"vLLM cannot be started: {shown(error)}", member=self.name)
            raise advised(failed, "see the cause, then ask again") from error
        return replace(address, timeout_s=self.address.timeout_s)

    def _read_tokenizer(self) -> None:
        """Tokenize in this process if possible: then a draft takes one request."""
        if self.tokenizer is not None or importlib.util.find_spec("transformers") is None:
            return
        own = [name for name in _TOKENIZING if name in json.loads(self._source.engine_args)]
        if own:
            log.info("%s: the server tokenizes (engine_args has %s)", self.name, ", ".join(own))
            return
        try:
            local_tokenizer(self._source.model)
        except Exception as error:  # transformers may raise anything
            log.info("%s: the server tokenizes (%s)", self.name, shown(error))
        else:
            self.tokenizer = self._source.model
