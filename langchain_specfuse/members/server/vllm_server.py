"""The vLLM servers that this process has started: which there are, where they run, who uses them.

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
from concurrent.futures import Future, wait
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import httpx2

from ...errors import MemberError, UsageError, advised
from ..threads import refuse_late, shown
from .http import Address, unlogged
from .process import HOST, ServerProcess, free_port, is_strangers, wait_for_ends
from .tokens import TrialResult
from .vllm_log import PORT_TAKEN, QUIET_S, Progress, cause_of
from .vllm_places import Place, places_of
from .vllm_program import adapter_flags, environment_of, flags, path_of
from .vllm_source import VllmSource, downloads

log = logging.getLogger("langchain_specfuse")

PORTS = 3
"""How many ports are tried, if other programs take them first."""
LOOKS_S = 0.2
"""How often it looks whether a server is ready."""
RESTARTS_AGAIN_S = 600.0
"""A server that dies is started again, but once in this time only."""
SHOWN_LINES = 12
"""How many lines of a server's log an error shows."""
_LOCK = threading.RLock()
"""Guards the following, and the states of servers."""
_SERVERS: dict[VllmSource, VllmServer] = {}
_WANTED: dict[VllmServer, None] = {}
"""Servers that are placed next."""
_TURNS: defaultdict[int, threading.Lock] = defaultdict(threading.Lock)
"""GPU -> held while a server starts there."""
_PLACING = threading.Lock()
_LOADING: list[Future[None]] = []
"""The starts on GPUs that have begun together. The next ones wait for them, because what they
will take still looks free. ``_PLACING`` guards it."""
_LEFT: SimpleQueue[Callable[[], object]] = SimpleQueue()
"""What is to be done for members that nobody holds any more. Their finalizers run in any thread,
perhaps while it holds a lock, so they only put something here."""
_releasing: threading.Thread | None = None
"""Does what is in ``_LEFT``, as long as there are servers."""


# --- who uses which server ------------------------------------------------------------------------


def acquire(source: VllmSource, user: int, adapter: str | None) -> VllmServer:
    """The one server of this source, with one more user."""
    with _LOCK:
        _let_release()
        server = _SERVERS.get(source)
        if server is None:
            server = _SERVERS[source] = VllmServer(source)
        server.users[user] = adapter
        return server


def release_later(server: VllmServer, user: int) -> None:
    """Release a server in another thread. Takes no lock."""
    _LEFT.put(partial(server.release, user))


def _let_release() -> None:
    """Start the thread that works through ``_LEFT``, unless it runs. The caller holds ``_LOCK``."""
    global _releasing
    if _releasing is None or not _releasing.is_alive():
        _releasing = threading.Thread(
            target=_release_left, name="specfuse-vllm-release", daemon=True
        )
        _releasing.start()


def _release_left() -> None:
    """Release what finalizers have left, as long as there are servers."""
    global _releasing
    while True:
        try:
            release = _LEFT.get(timeout=LOOKS_S)
        except Empty:
            with _LOCK:
                if not _SERVERS and _LEFT.empty():
                    _releasing = None
                    return
            continue
        try:
            release()
        except Exception:
            log.warning("a vLLM server could not be stopped", exc_info=True)


class VllmServer:
    """One vLLM server: its process, its address, the members that use it."""

    def __init__(self, source: VllmSource) -> None:
        self.source = source
        self.name = os.path.basename(source.model.rstrip("/")) or source.model
        self.users: dict[int, str | None] = {}
        """A number for each member that uses the server -> its adapter."""
        self._key = ""
        self._process: ServerProcess | None = None
        self._before: ServerProcess | None = None
        """The process before that one. It has ended, and an error or the log names its log."""
        self._starting: Future[None] | None = None
        """Its last start."""
        self.place: Place | None = None
        """Where it has run; it starts there again."""
        self._restarted_at: float | None = None
        self.starts = 0
        """How often its process was started."""
        self._adapters: set[str] = set()
        """The adapters that the server has loaded."""
        self._loading = threading.Lock()
        self.trials: dict[Any, TrialResult] = {}
        """What trials have found out about the server's models since it started."""

    def release(self, user: int) -> None:
        """Note that a member does not use the server any more. Without members, the server ends."""
        with _LOCK:
            self.users.pop(user, None)
            if self.users:
                return
            if _SERVERS.get(self.source) is self:
                del _SERVERS[self.source]
            _WANTED.pop(self, None)
            processes = self._process, self._before
            self._process = self._before = self._starting = None
        for process in processes:
            if process is not None:
                process.stop()

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
            refuse_late()
            if self.is_alive and not is_told:
                is_told = True
                meanwhile()
            try:
                starting.exception(LOOKS_S)
            except TimeoutError:
                pass
        starting.result()
        if not is_told:
            meanwhile()
        process = self._process
        if process is None:
            raise MemberError(f"the server of {self.source.model} was stopped", member=self.name)
        address = Address(f"http://{HOST}:{process.port}/v1", key=self._key)
        if adapter is not None:
            self._load_adapter(adapter)
        return address

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
            if self.is_starting:
                assert self._starting is not None
                return self._starting
            has_run = self._starting is not None and not _has_failed(self._starting)
            if has_run and self.is_alive:
                assert self._starting is not None
                return self._starting
            if has_run and self._process is not None:
                self._note_death(self._process)
            _WANTED[self] = None
            starts = {}
            for server in list(_WANTED):  # a finalizer may remove one meanwhile
                starts[server] = server._starting = Future()
            _WANTED.clear()
            threading.Thread(
                target=_start_all, args=(starts,), name="specfuse-vllm", daemon=True
            ).start()
            return starts[self]

    def _note_death(self, process: ServerProcess) -> None:
        """Allow a restart of a server that has died, or raise."""
        process.end()
        now = time.monotonic()
        last = self._restarted_at
        if last is not None and now - last < RESTARTS_AGAIN_S:
            died = self._failure(process, "died again")
            raise advised(died, "unload() and the next question start it once more")
        self._restarted_at = now
        log.warning(
            "the vLLM server of %s died and is being restarted; its log is %s: %s",
            self.source.model,
            process.log,
            cause_of(process.log_lines())[1],
        )

    def start(self, place: Place, starting: Future[None]) -> None:
        """Start the server there, and complete this future when it has loaded."""
        try:
            with ExitStack() as turns:
                for gpu in sorted(place.gpus):
                    turns.enter_context(_TURNS[gpu])
                self._start(place)
        except BaseException as error:
            starting.set_exception(error)
        else:
            self.place = place
            starting.set_result(None)

    def _start(self, place: Place) -> None:
        with _LOCK:
            adapters = sorted({adapter for adapter in self.users.values() if adapter})
        for attempt in range(PORTS):
            with _LOCK:
                self._refuse_unused()
                self._key = secrets.token_urlsafe(32)
                port = free_port()
                self.starts += 1
                process = ServerProcess(
                    self.name,
                    port,
                    self._command(port, place, adapters),
                    self._environment(place, adapters),
                )
                if self._before is not None:
                    self._before.stop()
                self._before, self._process = self._process, process
            self._adapters = set()
            self.trials = {}
            if self._has_loaded(process):
                self._load_adapters(adapters)
                return
            process.end()
            self._refuse_unused()
            cause, _ = cause_of(process.log_lines())
            if cause is not PORT_TAKEN or attempt == PORTS - 1:
                raise self._failure(process, "ended while it started")
            log.info("port %d was taken meanwhile; starting vLLM at another one", port)
            process.stop()

    def _has_loaded(self, process: ServerProcess) -> bool:
        """Wait until the server is ready. False: it has ended. Raises if it does not get on."""
        log.info("%s: vLLM is starting; its log is %s", self.name, process.log)
        progress = Progress(self.name, process, downloads(self.source))
        while process.is_alive:
            if process.is_ready() and self._is_ours(process):
                log.info("%s: vLLM is ready after %.0f s", self.name, progress.seconds)
                return True
            progress.look()
            if progress.is_stuck:
                process.end()
                raise self._stuck(process)
            time.sleep(LOOKS_S)
        return False

    def _stuck(self, process: ServerProcess) -> MemberError | UsageError:
        what = f"wrote nothing for {QUIET_S:g} s while it started, and was ended"
        return advised(
            self._failure(process, what),
            "see its log; if it was fetching the model, fetch it first: hf download "
            f"{self.source.model}",
        )

    def _refuse_unused(self) -> None:
        if not self.users:
            raise MemberError(f"{self.name} was unloaded before it had started", member=self.name)

    def _is_ours(self, process: ServerProcess) -> bool:
        """Whether the server at this port wants our key. Another program may have taken the port,
        and may answer anything with 200. One of another user does not get the key."""
        if is_strangers(process.port):
            return False
        try:
            without = self._request(process.port, "GET", "/v1/models", key="")
            if without.status_code != 401:
                return False
            return self._request(process.port, "GET", "/v1/models").status_code == 200
        except httpx2.HTTPError:
            return False

    def _request(
        self, port: int, method: str, path: str, body: Any = None, *, key: str | None = None
    ) -> httpx2.Response:
        sent = self._key if key is None else key
        headers = {"Authorization": f"Bearer {sent}"} if sent else {}
        with httpx2.Client(trust_env=False, headers=headers, timeout=60.0) as client, unlogged():
            return client.request(method, f"http://{HOST}:{port}{path}", json=body)

    # --- the command ------------------------------------------------------------------------------

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
        command = [place.python, "-m", program]
        return [*command, *place.flags, *flags(own), *flags(chosen)]

    def _environment(self, place: Place, adapters: Sequence[str]) -> dict[str, str]:
        environment = {**environment_of(place.python), "VLLM_API_KEY": self._key}
        if adapters:
            environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
        if self.source.batch_invariant:
            environment["VLLM_BATCH_INVARIANT"] = "1"
        for name in place.unset:
            environment.pop(name, None)
        return environment | dict(place.variables)

    # --- adapters ---------------------------------------------------------------------------------

    def _load_adapters(self, adapters: Sequence[str]) -> None:
        """Have the new server load these adapters, so that its list of models names them. One that
        cannot be loaded fails its own member, when that asks for it."""
        for adapter in adapters:
            try:
                self._load_adapter(adapter)
            except MemberError as error:
                log.warning("%s: %s", self.name, error)

    def _load_adapter(self, adapter: str) -> None:
        """Have the running server load an adapter, unless it has."""
        process = self._process
        with self._loading:
            if adapter in self._adapters or process is None:
                return
            body = {"lora_name": adapter, "lora_path": path_of(adapter)}
            failed = f"vLLM with {self.source.model} cannot load the adapter {adapter!r}"
            try:
                reply = self._request(process.port, "POST", "/v1/load_lora_adapter", body)
            except httpx2.HTTPError as error:
                cut = MemberError(f"{failed}: {shown(error)}", member=self.name)
                raise advised(
                    cut, f"see the server's log, {process.log}; then try again"
                ) from error
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
        error.add_note(f"the end of its log, {process.log}:\n   {end or '(empty)'}")
        return error


def _has_failed(starting: Future[None]) -> bool:
    return starting.done() and starting.exception() is not None


def _gpus_taken() -> int:
    """How many GPUs servers were given that have started."""
    with _LOCK:
        return sum(len(server.place.gpus) for server in _SERVERS.values() if server.place)


def _start_all(starts: Mapping[VllmServer, Future[None]]) -> None:
    """Place servers, and start each in a thread of its own."""
    released = threading.Event()
    with _LOCK:
        _LEFT.put(released.set)
        _let_release()
    released.wait()
    try:
        with _PLACING:
            wait_for_ends()
            wait(_LOADING)
            places = places_of(list(starts), _gpus_taken())
            _LOADING[:] = [
                starts[server]
                for server, place in places.items()
                if isinstance(place, Place) and place.gpus
            ]
    except BaseException as error:
        places = dict.fromkeys(starts, error)
    for server, place in places.items():
        if isinstance(place, BaseException):
            starts[server].set_exception(place)
            continue
        threading.Thread(
            target=server.start,
            args=(place, starts[server]),
            name=f"specfuse-vllm-{server.name}",
            daemon=True,
        ).start()
