"""A server in a process of its own, which now and then says "not now" or breaks a reply off. Prints its address.

    python -m tests.torture.afar ENGINE

Ends with what it reads from: whoever started it.
"""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from typing import Any

from tests.members import tiny

ARCH, SEED = "llama", 3
ILL = {503: 0.005, "cut": 0.005}
"""Seldom enough that no question meets one four times, which is when a member gives up."""


@contextlib.contextmanager
def running(engine: str) -> Iterator[str]:
    """The address of one."""
    command = [sys.executable, "-m", "tests.torture.afar", engine]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()


def main(engine: str) -> None:
    from tests.members.fake_server import FakeServer

    chance = random.Random(0)

    def fault(path: str, _: int) -> Any:
        return next((ill for ill, share in ILL.items() if chance.random() < share), None)

    server = FakeServer(engine, *tiny.made(ARCH, SEED))
    server.asked = deque(maxlen=1)  # type: ignore[assignment]
    server.fault = fault
    print(server.url, flush=True)
    sys.stdin.read()
    server.stop()


if __name__ == "__main__":
    main(sys.argv[1])
