"""One replica of a member: an actor of Ray, those that take its place, and how its death is told.

Knows Ray by what it is given; ``ray.py`` alone imports it. What is asked is known in ``_hosted``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import MemberError, advised
from ._hosted import question

log = logging.getLogger("langchain_specfuse")

PAUSE_S = 0.05
"""Between two looks at whether a process is up."""
RISING_S = 60.0
"""How long jobs wait for a process to stand up again when none is left; they fail after that, until one is back."""


class Replica:
    """One actor, and those that took its place."""

    def __init__(self, ray: Any, spawn: Callable[[], Any]) -> None:
        self._ray = ray
        self._spawn = spawn
        self._actor = spawn()
        # Asked first, so that it is answered as soon as it is up, and what comes after may take long.
        self._rising: Any = self._actor.where.remote()
        self._looking = threading.Lock()
        self._fell = time.monotonic()
        self.alive = False
        self.dead = False
        """Ray will not start it again: it was killed for good, or could not be made."""
        self.trouble = ""
        self.place: tuple[str, int] | None = None

    @property
    def given_up(self) -> bool:
        """Down for too long for anybody to wait; whether it is back is still looked at."""
        return not self.alive and time.monotonic() - self._fell > RISING_S

    def ask(self, method: str, *arguments: Any) -> Any:
        return self._actor.reply.remote(question(method, *arguments))

    def told(self, asked: Any) -> bytes | None:
        """The reply, or None where the process died over it."""
        ray = self._ray
        try:
            return bytes(ray.get(asked))
        except _deaths(ray) as error:
            self._fall(error)
            return None
        except ray.exceptions.RayError as error:
            trouble = MemberError(f"Ray could not carry it: {type(error).__name__}: {error}"[:600])
            raise advised(trouble, "the logs of the cluster say more: /tmp/ray/session_latest/logs") from error

    def risen(self) -> bool:
        """Whether it is up. Asked again and again, it finds out when it is, and replaces one that is dead for good."""
        if self.alive:
            return True
        with self._looking:  # tokens are counted from any thread
            return self._looked_after()

    def _looked_after(self) -> bool:
        ray = self._ray
        if self._rising is None:
            if self.dead:
                self._actor, self.dead = self._spawn(), False
            self._rising = self._actor.where.remote()
        done, _ = ray.wait([self._rising], timeout=0)
        if done:
            rising, self._rising = self._rising, None
            try:
                self.place, self.alive = ray.get(rising), True
            except ray.exceptions.RayError as error:
                self._note(error)
        return self.alive

    def end(self) -> None:
        if self._ray.is_initialized():
            self._ray.kill(self._actor)

    def _fall(self, error: Exception) -> None:
        self.alive, self._rising, self._fell = False, None, time.monotonic()
        self._note(error)
        log.warning("a process of a Ray member at %s died: %s", self.place, self.trouble)

    def _note(self, error: Exception) -> None:
        self.dead = isinstance(error, self._ray.exceptions.ActorDiedError)
        self.trouble = f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


@dataclass(frozen=True, slots=True)
class Coming:
    """Replicas on their way."""

    asked: Mapping[str, float]
    team: list[Replica]
    probes: list[Any]
    """What will be their probes."""


def _deaths(ray: Any) -> tuple[type[Exception], ...]:
    """What Ray says where a process or its node is gone."""
    told = ray.exceptions
    return (told.RayActorError, told.NodeDiedError, told.OutOfMemoryError, told.ObjectLostError)
