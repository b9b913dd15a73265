"""A member in a process of its own, so that ``langchain-specfuse demo`` and tests can kill it.

The process reads pickled calls from its standard input, and writes their results to its standard
output. It ends when the input closes, however the process that started it ends.

For members on other machines, and for processes that are restarted, there is
:class:`.RayMember`.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import IO, Any

from ..core.member import Member, Probe
from ..core.values import Draft, DraftJob, Failure, Scored, ScoreJob
from ..errors import MemberError, message_of

_ENDED = (EOFError, OSError, ValueError, pickle.UnpicklingError)
"""What a pipe raises whose other side has ended, or that this side has closed."""


class MemberProcess:
    """Any member that has not been loaded, and the process that loads and runs it."""

    def __init__(self, member: Member) -> None:
        self.name = member.name
        self.device = "loading"
        self._member = member
        self._process: subprocess.Popen[bytes] | None = None
        self._probe: Probe | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start_loading(self) -> None:
        """Start the process, which loads the member beside those of this process."""
        if self._process is None:
            self._process = _started()
            self._send(self._member)

    def kill(self) -> None:
        """End the process in the middle of what it does."""
        if self._process is not None:
            self._process.kill()

    def end(self) -> None:
        """Kill the process, if it runs, and wait for its end."""
        if self._process is not None:
            self.kill()
            with suppress(*_ENDED):
                self._process.communicate()

    def probe(self) -> Probe:
        self.start_loading()
        if self._probe is None:
            try:
                self._probe = self._call("probe")
                # The same device as in this process: members of one device take turns.
                self.device = self._call("device")
            except _ENDED as error:
                raise MemberError(self._end(), member=self.name) from error
        return self._probe

    def draft(self, jobs: Sequence[DraftJob]) -> Sequence[Draft | Failure]:
        return self._replies("draft", jobs)

    def score(self, jobs: Sequence[ScoreJob]) -> Sequence[Scored | Failure]:
        return self._replies("score", jobs)

    def forget(self, query_id: str) -> None:
        with suppress(*_ENDED):
            self._call("forget", query_id)

    def _replies(self, method: str, jobs: Sequence[Any]) -> Sequence[Any]:
        try:
            replies: Sequence[Any] = self._call(method, jobs)
        except _ENDED:
            return [Failure("error", self._end()) for _ in jobs]
        return replies

    def _call(self, name: str, *arguments: Any) -> Any:
        self._send((name, arguments))
        assert self._process is not None and self._process.stdout is not None
        result, error = pickle.load(self._process.stdout)
        if error is not None:
            raise error
        return result

    def _send(self, thing: Any) -> None:
        assert self._process is not None and self._process.stdin is not None
        pickle.dump(thing, self._process.stdin)
        self._process.stdin.flush()

    def _end(self) -> str:
        """How the process ended."""
        assert self._process is not None
        status = self._process.wait()
        by = f"was killed ({signal.Signals(-status).name})" if status < 0 else "ended"
        return f"its process {self.pid} {by}"


def _started() -> subprocess.Popen[bytes]:
    # -P and the path: it imports what this process imports, and nothing from the current folder.
    path = os.pathsep.join(filter(None, sys.path))
    return subprocess.Popen(
        [sys.executable, "-P", "-m", __name__],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C in a terminal reaches this process only
    )


def serve(calls: IO[bytes], replies: IO[bytes]) -> None:
    """Load the member that comes first, and answer the calls that follow. Raises one of ``_ENDED``
    when the other process has ended."""
    member = pickle.load(calls)
    while True:
        name, arguments = pickle.load(calls)
        result, error = None, None
        try:
            found = getattr(member, name)
            result = found(*arguments) if callable(found) else found
        except MemberError as failure:
            error = failure
        except Exception as failure:  # another class, or its cause, may not be picklable
            error = MemberError(
                f"{type(failure).__name__}: {message_of(failure)}", member=member.name
            )
        pickle.dump((result, error), replies)
        replies.flush()


if __name__ == "__main__":
    _replies = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print is no reply
    with suppress(*_ENDED):
        serve(sys.stdin.buffer, _replies)
    os._exit(0)  # nobody waits for it
