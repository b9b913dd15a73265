"""The port: a socket, the server on it, and how it comes to rest. Knows uvicorn and signals, not what is said."""

from __future__ import annotations

import asyncio
import ipaddress
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import uvicorn

from ..errors import UsageError, advised
from .lines import bounded


@dataclass(frozen=True, slots=True)
class Certificate:
    """What HTTPS needs: two PEM files."""

    chain: str | None = None
    key: str | None = None


@contextmanager
def opened(host: str, port: int) -> Iterator[socket.socket]:
    """A socket that listens there."""
    try:
        if not 0 <= port < 65536:  # create_server would leave a socket behind
            raise OverflowError("a port is a number from 0 to 65535")
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        here = socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError, UnicodeError) as error:
        told = UsageError(f"--host {host} --port {port} cannot be listened on: {error}")
        raise advised(told, "choose another --port (0: any free one), or an address of this machine") from error
    with here:
        yield here


def is_near(here: socket.socket) -> bool:
    """Whether only this machine can reach it."""
    return ipaddress.ip_address(here.getsockname()[0]).is_loopback


class Server(uvicorn.Server):
    """uvicorn, stopped by signals as a command is: in peace by the first one, at once by the second.

    (Its own way ends the process by the same signal again after it has stopped in peace, which looks like a crash.)
    """

    told_to_stop: Callable[[], None] | None = None

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield  # signals reach the main thread only
            return
        loop = asyncio.get_running_loop()
        for one in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(one, self.stop)
        try:
            yield
        finally:
            for one in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(one)

    def stop(self) -> None:
        if self.should_exit:
            self.force_exit = True
        elif self.told_to_stop:
            self.told_to_stop()
        self.should_exit = True


def server_of(app: Any, certificate: Certificate, grace_s: float) -> Server:
    """A server for this app. After it was told to stop, answers under way have ``grace_s`` seconds."""
    config = uvicorn.Config(
        app,
        log_config=None,  # uvicorn's own would close every handler of the program that it runs in
        log_level="warning",
        access_log=False,
        ws="none",
        server_header=False,
        ssl_certfile=certificate.chain,
        ssl_keyfile=certificate.key,
        timeout_graceful_shutdown=max(1, round(grace_s)),
    )
    try:
        config.load()
        config.http_protocol_class = bounded(config.http_protocol_class, app.state.hall.limits)
    except OSError as error:  # also what ssl raises
        told = UsageError(f"--tls-cert {certificate.chain} --tls-key {certificate.key}: {error}")
        raise advised(told, "both are PEM files, and belong together") from error
    return Server(config)


async def serve_until_stopped(server: Server, here: socket.socket, loaded: Callable[[], Awaitable[None]]) -> None:
    """Serve until a signal comes. What ``loaded`` raises ends it too, and is raised here."""
    loading = asyncio.ensure_future(loaded())
    loading.add_done_callback(partial(_stop_if_failed, server))
    try:
        await server.serve([here])
    finally:
        loading.cancel()
        await asyncio.wait({loading})
    if not loading.cancelled():
        loading.result()


def _stop_if_failed(server: Server, loading: asyncio.Future[None]) -> None:
    if not loading.cancelled() and loading.exception():
        server.should_exit = True
