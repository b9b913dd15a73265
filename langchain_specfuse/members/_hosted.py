"""What lives at the other end: a member in a process of its own, asked in bytes and answering in bytes.

Knows how errors and replies travel; nothing of Ray, which carries the bytes, or of who asks. A fresh process that
stands in for one that died is asked like any other: it loads with its first job.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..core.values import KINDS, Failure
from ..errors import MemberError, advised
from ._packing import packed

log = logging.getLogger("langchain_specfuse")


@dataclass(frozen=True, slots=True)
class Raised:
    """Instead of what was asked for: the member raised this."""

    error: Exception


def question(method: str, *arguments: Any) -> bytes:
    """What :meth:`Hosted.reply` is asked. Packed here: Ray's own packing is for more than plain data, and slower."""
    return packed((method, arguments))


def answer(told: bytes) -> Any:
    """What came back, or raised as it was."""
    found = pickle.loads(told)
    if isinstance(found, Raised):
        raise found.error
    return found


class Hosted:
    """One member, made from its own packed form; it loads when it is first asked something."""

    def __init__(self, member: bytes) -> None:
        self._packed = member
        self._member: Any = None

    def reply(self, asked: bytes) -> bytes:
        """The pickled reply to a packed :func:`question`; what the member raised arrives as :class:`Raised`."""
        method, arguments = pickle.loads(asked)
        try:
            told = self._told(method, arguments)
        except Exception as error:
            told = [_failure(error)] * len(arguments[0]) if method in ("draft", "score") else Raised(sendable(error))
        return packed(told)

    def _told(self, method: str, arguments: Sequence[Any]) -> Any:
        if method == "forget" and self._member is None:
            return None  # nothing was ever kept here
        if self._member is None:
            member = _unpacked(self._packed)
            probe = member.probe()  # before the first job, whatever it is: it may be a process that took over
            self._member = member
            if method == "probe":
                return probe
        replies = getattr(self._member, method)(*arguments)
        if method in ("draft", "score"):
            return [_told_plainly(reply) for reply in replies]
        return replies


def _unpacked(member: bytes) -> Any:
    try:
        return pickle.loads(member)
    except (ImportError, AttributeError) as error:
        told = MemberError(f"a member could not be unpacked in its own process: {error}")
        raise advised(told, "what it is made of must be importable on every node of the cluster") from error


def _failure(error: Exception) -> Failure:
    """A batch that failed as a whole, as a desk would tell it."""
    kind = getattr(error, "kind", "error")
    message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return Failure(kind if kind in KINDS else "error", message, sendable(error))


def _told_plainly(reply: Any) -> Any:
    if isinstance(reply, Failure) and isinstance(reply.cause, Exception):
        return replace(reply, cause=sendable(reply.cause))
    return reply


def sendable(error: Exception) -> Exception:
    """The error itself if it survives the way, notes and all; else one that says the same."""
    try:
        there = pickle.loads(pickle.dumps(error))
        if type(there) is type(error) and str(there) == str(error):
            return error
    except Exception:
        log.debug("%s cannot be sent as it is", type(error).__name__, exc_info=True)
    told = MemberError(f"{type(error).__name__}: {error}", kind=getattr(error, "kind", "error"))
    for note in getattr(error, "__notes__", ()):
        told.add_note(note)
    return told
