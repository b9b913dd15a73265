"""Works on several jobs of one member at the same time, for members that wait for a server or a
chat model."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ..core.values import Failure
from ..errors import MemberError, UsageError

_Job = TypeVar("_Job")
SHOWN = 300
"""At most this many characters of another program's error message are passed on."""


def each(jobs: Sequence[_Job], work: Callable[[_Job], Any], name: str, at_once: int) -> list[Any]:
    """The replies to all jobs, in order, at most ``at_once`` at a time. A job that fails does not
    disturb the others.

    The threads are daemons, because those of ``concurrent.futures`` keep a program from ending
    while a server hangs.
    """
    replies: list[Any] = [None] * len(jobs)
    waiting = deque(enumerate(jobs))

    def run() -> None:
        while True:
            try:
                at, job = waiting.popleft()
            except IndexError:  # no job is left
                return
            replies[at] = _reply(job, work)

    threads = [
        threading.Thread(target=run, name=f"specfuse-{name}_{number}", daemon=True)
        for number in range(1, min(len(jobs), at_once))
    ]
    for thread in threads:
        thread.start()
    run()
    for thread in threads:
        thread.join()
    return replies


def _reply(job: _Job, work: Callable[[_Job], Any]) -> Any:
    try:
        return work(job)
    except (MemberError, UsageError) as error:
        return Failure.of(error, str(error))
    except Exception as error:  # another program may send anything
        return Failure("error", f"unexpected reply: {shown(error)}", error)
    except BaseException as error:  # any other exception: the other jobs continue
        return Failure.of(error)


def shown(error: Exception) -> str:
    """An error as text for a message. It may quote what another program sent, which may be long or
    hold characters that cannot be encoded."""
    text = f"{type(error).__name__}: {error}"
    return text.encode(errors="backslashreplace").decode()[:SHOWN]
