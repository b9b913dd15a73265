"""Open a port, and run uvicorn on it with a graceful stop."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from ..errors import UsageError, advised

MAX_CONNECTIONS = 1024
"""uvicorn answers requests on further connections with a 503."""


@contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """A socket that listens on this address."""
    try:
        if not 0 <= port < 65536:  # create_server would leave a socket open
            raise OverflowError("a port is a number from 0 to 65535")
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family = addresses[0][0]
        listener = socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError, UnicodeError) as error:
        wrong = UsageError(f"cannot listen on --host {host} --port {port}: {error}")
        advice = "choose another --port (0: any free one), or an address of this machine"
        if _is_wrong_host(error):
            advice = (
                "choose another --host: an address of this machine, such as 127.0.0.1 (0.0.0.0: "
                "all of them)"
            )
        raise advised(wrong, advice) from error
    with listener:
        yield listener


def _is_wrong_host(error: Exception) -> bool:
    """Whether the host is wrong, not the port."""
    if isinstance(error, socket.gaierror | UnicodeError):
        return True
    return isinstance(error, OSError) and error.errno == errno.EADDRNOTAVAIL


class Server(uvicorn.Server):
    """uvicorn, which stops gracefully after the first signal and at once after the second.

    The exit code is 0 both times. uvicorn itself raises the signal again after a graceful stop,
    which looks like a crash.
    """

    on_stop: Callable[[], None] | None = None

    def handle_exit(self, sig: int, frame: Any) -> None:
        if self.should_exit:
            self.force_exit = True
        elif self.on_stop:
            self.on_stop()
        self.should_exit = True


def server_of(app: Any, *, grace_s: int = 30) -> Server:
    """A server for this app. When it stops, answers have ``grace_s`` seconds to finish."""
    return Server(
        uvicorn.Config(
            app,
            http="h11",
            ws="none",
            log_config=None,  # uvicorn's own closes the log handlers of the surrounding program
            log_level="warning",
            access_log=False,
            server_header=False,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_graceful_shutdown=max(1, grace_s),
        )
    )
