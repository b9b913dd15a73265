"""The vLLM servers that this process has started: which there are, who uses them, how they start.

Members with the same source share a server, even if they differ in their LoRA adapters. Servers
that are wanted at the same time are placed together, before the first of them starts. Servers on
one GPU start one after another, because vLLM measures the free memory while it starts; those on
different GPUs start side by side.

Requests for drafts and scores are not made here: a :class:`.VllmMember` is a
:class:`.ServerMember`.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2

from ...core.call import refuse_closed, shown
from ...errors import MemberError, UsageError, advised
from .client import Address, unlogged
from .process import HOST, ServerProcess, free_port
from .vllm_command import VllmSource, adapter_flags, environment_of, flags, path_of
from .vllm_log import cause_of, last_step
from .vllm_places import Place, places_of

log = logging.getLogger("langchain_specfuse")

LOOKS_S = 0.2
"""How often it looks whether a server is ready."""
TELLS_S, TELLS_AGAIN_S = 5.0, 20.0
"""How often the log says what a starting server is doing, and how often if nothing has changed."""
QUIET_S = 1800.0
"""A server that starts is ended if it writes nothing for so long. vLLM writes nothing while it
downloads a file of weights."""
RESTARTS_AGAIN_S = 600.0
"""A server that dies is started again, but once in this time only."""
SHOWN_LINES = 12
"""How many lines of a server's log an error shows."""
IN_VLLM = Path(__file__).with_name("in_vllm")
"""A folder of modules that servers load."""
_LOCK = threading.RLock()
"""Guards the following, and the states of servers. A finalizer may take it, so nothing waits for
another thread while it is held."""
_SERVERS: dict[VllmSource, VllmServer] = {}
_WANTED: dict[VllmServer, None] = {}
"""Servers that are placed next."""
_PLACING = threading.Lock()
"""Held while servers are placed, and until those on GPUs have loaded."""
_ENDING: list[ServerProcess] = []
"""Servers that were asked to end. Until they have, they keep their memory."""
_TURNS: defaultdict[int, threading.Lock] = defaultdict(threading.Lock)
"""GPU -> held while a server starts there."""


def acquire(source: VllmSource, user: int, adapter: str | None) -> VllmServer:
    """The one server of this source, with one more user."""
    with _LOCK:
        server = _SERVERS.get(source)
        if server is None:
            server = _SERVERS[source] = VllmServer(source)
        server.users[user] = adapter
        return server


class VllmServer:
    """One vLLM server: its process, its address, the members that use it."""

    def __init__(self, source: VllmSource) -> None:
        self.source = source
        self.name = os.path.basename(source.model.rstrip("/")) or source.model
        self.users: dict[int, str | None] = {}
        """A number for each member that uses the server -> its adapter."""
        self.place: Place | None = None
        """Where it has run; it starts there again."""
        self.starts = 0
        """How often its process was started."""
        self._process: ServerProcess | None = None
        self._address = Address("")
        self._starting: Future[None] | None = None
        """Its last start."""
        self._restarted_at: float | None = None
        self._adapters: set[str] = set()
        """The adapters that the server has loaded."""
        self._loading = threading.Lock()

    def release(self, user: int, *, wait: bool = True) -> None:
        """Note that a member does not use the server any more. Without members, the server ends.
        ``wait``: until it has ended."""
        with _LOCK:
            self.users.pop(user, None)
            if self.users:
                return
            if _SERVERS.get(self.source) is self:
                del _SERVERS[self.source]
            _WANTED.pop(self, None)
            process, self._process, self._starting = self._process, None, None
        if process is None:
            return
        if wait:
            process.stop()
        else:
            process.terminate()
            _ENDING.append(process)

    def want(self) -> None:
        """Have the server placed with the next ones, unless it runs."""
        with _LOCK:
            if self._starting is None or _has_failed(self._starting):
                _WANTED[self] = None

    def ready(self, adapter: str | None, meanwhile: Callable[[], None]) -> Address:
        """The address of the server, once it has loaded. Starts it if necessary. ``meanwhile`` is
        called once, as soon as its process runs."""
        starting = self._started()
        is_told = False
        while not starting.done():
            refuse_closed()
            if self.is_alive and not is_told:
                is_told = True
                meanwhile()
            with suppress(TimeoutError):
                starting.exception(LOOKS_S)
        starting.result()
        if not is_told:
            meanwhile()
        if adapter is not None:
            self._load_adapter(adapter)
        return self._address

    @property
    def is_away(self) -> bool:
        """Whether the server has died and is starting again. If it has died, asking starts it."""
        self.revive()
        return self._restarted_at is not None and self.is_starting

    def revive(self) -> None:
        """Start the server again if it has died, and do not wait."""
        starting = self._starting
        has_run = starting is not None and starting.done() and not _has_failed(starting)
        if has_run and not self.is_alive:
            with suppress(MemberError, UsageError):  # the next job raises it
                self._started()

    @property
    def is_alive(self) -> bool:
        process = self._process
        return process is not None and process.is_alive

    @property
    def is_starting(self) -> bool:
        starting = self._starting
        return starting is not None and not starting.done()

    # --- starting ---------------------------------------------------------------------------------

    def _started(self) -> Future[None]:
        """The start that is under way or has succeeded, or a new one."""
        with _LOCK:
            starting = self._starting
            if starting is not None and not _has_failed(starting):
                if self.is_starting or self.is_alive:
                    return starting
                if self._process is not None:
                    self._note_death(self._process)
            _WANTED[self] = None
            starts: dict[VllmServer, Future[None]] = {}
            for server in list(_WANTED):  # a finalizer may remove one meanwhile
                starts[server] = server._starting = Future()
            _WANTED.clear()
        threading.Thread(
            target=_start_all, args=(starts,), name="specfuse-vllm", daemon=True
        ).start()
        return starts[self]

    def _note_death(self, process: ServerProcess) -> None:
        """Allow a restart of a server that has died, or raise."""
        now = time.monotonic()
        last = self._restarted_at
        if last is not None and now - last < RESTARTS_AGAIN_S:
            died = self._failure(process, "died again")
            raise advised(died, "unload() and the next question start it once more")
        self._restarted_at = now
        log.warning(
            "the vLLM server of %s died and is being restarted: %s",
            self.source.model,
            cause_of(process.log_lines())[1],
        )

    def start(self, place: Place, starting: Future[None]) -> None:
        """Start the server there, and complete this future when it has loaded."""
        try:
            with ExitStack() as turns:
                for gpu in sorted(place.gpus):
                    turns.enter_context(_TURNS[gpu])
                self._start(place)
        except BaseException as error:  # whoever waits for the start gets it
            starting.set_exception(error)
        else:
            self.place = place
            starting.set_result(None)

    def _start(self, place: Place) -> None:
        with _LOCK:
            adapters = sorted({adapter for adapter in self.users.values() if adapter})
        self._refuse_unused()
        port, key = free_port(), secrets.token_urlsafe(32)
        self._address = Address(f"http://{HOST}:{port}/v1", key=key)
        process = ServerProcess(
            self.name,
            self._command(port, place, adapters),
            self._environment(key, place, adapters),
        )
        self._address = replace(self._address, ended=process.ended)
        with _LOCK:
            is_used = bool(self.users)
            if is_used:
                self._process = process
                self.starts += 1
                self._adapters = set()
        if not is_used:
            process.stop()
        self._wait_until_loaded(process)
        for adapter in adapters:
            try:
                self._load_adapter(adapter)
            except MemberError as error:  # its own member fails when that asks for it
                log.warning("%s: %s", self.name, error)

    def _wait_until_loaded(self, process: ServerProcess) -> None:
        log.info("%s: vLLM is starting", self.name)
        began = told = changed = time.monotonic()
        count = told_count = 0
        while not process.ended.wait(LOOKS_S):
            now = time.monotonic()
            if self._is_ready():
                log.info("%s: vLLM is ready after %.0f s", self.name, now - began)
                return
            if process.line_count != count:
                count, changed = process.line_count, now
            if now - told > (TELLS_AGAIN_S if count == told_count else TELLS_S):
                told, told_count = now, count
                step = last_step(process.log_lines())
                log.info("%s: starting for %.0f s: %s", self.name, now - began, step)
            if now - changed > QUIET_S:
                process.stop()
                what = f"wrote nothing for {QUIET_S:g} s while it started, and was ended"
                raise advised(
                    self._failure(process, what),
                    "see its log; if it was fetching the model, fetch it first: hf download "
                    f"{self.source.model}",
                )
        self._refuse_unused()
        raise self._failure(process, "ended while it started")

    def _refuse_unused(self) -> None:
        if not self.users:
            raise MemberError(f"{self.name} was unloaded before it had started", member=self.name)

    def _is_ready(self) -> bool:
        try:
            return self._request("GET", "/health", timeout=2.0).status_code == 200
        except httpx2.HTTPError:
            return False

    def _request(
        self, method: str, path: str, body: Any = None, *, timeout: float = 60.0
    ) -> httpx2.Response:
        headers = {"Authorization": f"Bearer {self._address.key}"}
        # It speaks HTTP, and reading certificates would take more time than the request.
        with httpx2.Client(trust_env=False, verify=False, timeout=timeout) as client, unlogged():
            return client.request(method, self._address.root + path, headers=headers, json=body)

    def _command(self, port: int, place: Place, adapters: Sequence[str]) -> list[str]:
        model = self.source.model
        path = Path(model).expanduser()
        chosen = {**adapter_flags(adapters), **json.loads(self.source.engine_args)}
        own = {
            "model": str(path.absolute()) if path.exists() else model,
            "served_model_name": model,
            "host": HOST,
            "port": port,
            "disable_uvicorn_access_log": True,
            "enable_prompt_tokens_details": True,
            "max_model_len": "auto",
        }
        program = "vllm.entrypoints.openai.api_server"
        command = [place.python, "-m", program, "--middleware", "specfuse_score.Score"]
        return [*command, *place.flags, *flags(own), *flags(chosen)]

    def _environment(self, key: str, place: Place, adapters: Sequence[str]) -> dict[str, str]:
        environment = {**environment_of(place.python), "VLLM_API_KEY": key}
        modules = [str(IN_VLLM), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, modules))
        if adapters:
            environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
        if self.source.batch_invariant:
            environment["VLLM_BATCH_INVARIANT"] = "1"
        for name in place.unset:
            environment.pop(name, None)
        return environment | dict(place.variables)

    def _load_adapter(self, adapter: str) -> None:
        """Have the running server load an adapter, unless it has."""
        with self._loading:
            if adapter in self._adapters:
                return
            body = {"lora_name": adapter, "lora_path": path_of(adapter)}
            failed = f"vLLM with {self.source.model} cannot load the adapter {adapter!r}"
            try:
                reply = self._request("POST", "/v1/load_lora_adapter", body)
            except httpx2.HTTPError as error:
                cut = MemberError(f"{failed}: {shown(error)}", member=self.name)
                raise advised(cut, "try again") from error
            if reply.status_code != 200:
                why = " ".join(reply.text.split())[:300]
                refused = MemberError(
                    f"{failed} ({reply.status_code}: {why})", member=self.name, kind="not_found"
                )
                advice = (
                    "name a folder or hub id with an adapter of this base. Space is reserved at "
                    "the start: if it is too small, unload() the base's other members first, or "
                    "choose it: engine_args={'max_lora_rank': 128} of all members of the base"
                )
                raise advised(refused, advice)
            self._adapters.add(adapter)

    # --- failures ---------------------------------------------------------------------------------

    def _failure(self, process: ServerProcess, what: str) -> MemberError | UsageError:
        """The error of a server that has ended, with the end of its log."""
        lines = process.log_lines()
        known, reason = cause_of(lines)
        message = f"the vLLM server of {self.source.model} {what}: {reason}"
        error: MemberError | UsageError
        if known is not None and known.kind == "usage":
            error = UsageError(message)
        else:
            kind = known.kind if known is not None else "error"
            error = MemberError(message, member=self.name, kind=kind)
        if known is not None:
            advised(error, known.advice)
        end = "\n   ".join(line[:300] for line in lines[-SHOWN_LINES:])
        error.add_note(f"the end of its log:\n   {end or '(empty)'}")
        return error


def _has_failed(starting: Future[None]) -> bool:
    return starting.done() and starting.exception() is not None


def _gpus_taken() -> int:
    """How many GPUs were given to servers that have started."""
    with _LOCK:
        return sum(len(server.place.gpus) for server in _SERVERS.values() if server.place)


def _start_all(starts: Mapping[VllmServer, Future[None]]) -> None:
    """Place servers, and start each in a thread of its own. The next ones are placed when those on
    GPUs have loaded, because what they will take still looks free."""
    with _PLACING:
        places: Mapping[VllmServer, Place | BaseException]
        try:
            while _ENDING:
                _ENDING.pop().stop()
            places = places_of(list(starts), _gpus_taken())
        except BaseException as error:  # whoever waits for the starts gets it
            places = dict.fromkeys(starts, error)
        loading = []
        for server, place in places.items():
            if isinstance(place, BaseException):
                starts[server].set_exception(place)
                continue
            thread = threading.Thread(
                target=server.start,
                args=(place, starts[server]),
                name=f"specfuse-vllm-{server.name}",
                daemon=True,
            )
            thread.start()
            if place.gpus:
                loading.append(thread)
        for thread in loading:
            thread.join()
