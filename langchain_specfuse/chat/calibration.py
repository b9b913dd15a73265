"""Read and write calibration files, in which the doctor records which member should lead on the
user's own questions, and which use of the others helps.

``langchain-specfuse doctor --calibration FILE`` writes a file.
``SpecFuseChatModel(calibration="FILE")`` applies it to the options that the user did not choose.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ..core.routing import N_GRAMS, Router
from ..core.values import Turn
from ..errors import UsageError, advised
from .routing import Routing, routed

log = logging.getLogger("langchain_specfuse")
FORMAT = 2
ADVICE = (
    "write one with: langchain-specfuse doctor --prompts FILE --calibration FILE; with the --out "
    "folder of an earlier run, it reuses the answers that still count"
)
UNREADABLE = (OSError, ValueError, TypeError, KeyError, AttributeError)
"""Errors of other libraries that reading a file may raise."""
ROUTER = "router"
"""The name of the way in which a router chooses the lead of each question."""


@dataclass(frozen=True, slots=True)
class Tried:
    """One way to use the other members, compared with the lead alone on the same questions."""

    name: str
    wins: int
    losses: int
    p: float
    """The probability of this many wins or more, if wins and losses were equally likely."""
    passes: float
    """Forward passes of all members, divided by those of the lead alone."""
    seconds: float
    """Computing time of all members, divided by that of the lead alone."""
    opened: bool
    """Whether the comparison allows this way to be used."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """Which member leads, and how the others take part."""

    lead: str
    members: Mapping[str, float]
    """member -> its score when it answers alone, from 0 to 1."""
    questions: int
    tried: tuple[Tried, ...] = ()
    use: str = "alone"
    """The name of the way that is used, or ``alone`` if the lead's draft is always agreed."""
    method: Mapping[str, Any] = field(default_factory=dict)
    """Options of the method that differ from the default."""
    result: str | None = None
    """The result by which whole answers are compared; None if answers are agreed by segments."""
    prior: Mapping[str, float] | None = None
    """Voting weights to begin with."""
    leads: bool = True
    """False if all members vote as equals."""
    router: Router | None = None
    """Chooses the lead of each question; None unless ``use`` is ``router``."""
    decisions: Sequence[Mapping[str, Any]] | None = None
    """What :class:`.SpecFuseDecisionModel` reads, for each set of labels (see
    ``chat.label_calibrations``). The chat model does not use it."""

    def as_dict(self) -> dict[str, Any]:
        """The calibration as plain JSON, in which infinity is the text ``inf``."""
        method = dict(self.method)
        for option, value in method.items():
            if value == math.inf:
                method[option] = str(value)
        router = self.router and self.router.as_dict()
        return {"specfuse_calibration": FORMAT, **asdict(self), "method": method, "router": router}

    def lead_for(self, turns: Iterable[Turn]) -> Routing:
        """Who leads the answer to this conversation, and why."""
        if not self.leads:
            return Routing(None, "vote")
        if self.router is not None:
            return routed(self.router, turns)
        return Routing(self.lead, "calibration", self.members)

    @property
    def lead_id(self) -> str:
        """A text that is different for calibrations that may choose different leads."""
        content = [self.lead, self.leads, self.router and self.router.as_dict()]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]

    def save(self, path: str | Path) -> None:
        """Write the calibration to a JSON file. If the file exists, it must be a calibration file,
        and its decisions are kept."""
        kept = content_of(path).get("decisions")
        data = self.as_dict()
        data["decisions"] = data["decisions"] or kept
        write(path, data)

    @classmethod
    def load(cls, path: str | Path) -> Calibration:
        """Read a file that :meth:`save` wrote."""
        try:
            return cls._validated(json.loads(Path(path).read_text(encoding="utf-8-sig")))
        except UNREADABLE as error:
            reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
            raise _unreadable(path, reason) from error

    @classmethod
    def _validated(cls, data: Any) -> Calibration:
        """The calibration with these data. Raises ``ValueError``, ``TypeError`` or ``KeyError`` if
        they are not those of a calibration."""
        version = data.pop("specfuse_calibration", None) if isinstance(data, dict) else None
        if version != FORMAT:
            raise ValueError("it is not a calibration file of this version")
        if "lead" not in data:
            raise ValueError("it is for decisions only, and does not say who leads")
        for option, value in data["method"].items():
            if value == "inf":
                data["method"][option] = math.inf
        calibration: Calibration = _ADAPTER.validate_python(data)
        router = calibration.router
        if router is not None and router.features != N_GRAMS:
            raise ValueError(f"its router reads {router.features}, which this version does not")
        return calibration


_ADAPTER = TypeAdapter(Calibration)
_NUMBERS = re.compile(r"\[\n([-+.\de,\n ]+)\]")
"""A list of numbers in indented JSON. A string in JSON contains no line break."""


def content_of(path: str | Path) -> dict[str, Any]:
    """The content of the calibration file with this name, or nothing if there is no file. Raises
    ``UsageError`` for a file of another kind, which must not be overwritten."""
    file = Path(path)
    if not file.exists():
        return {}
    try:
        data = json.loads(file.read_text(encoding="utf-8-sig")) if file.is_file() else None
    except UNREADABLE as error:
        raise _other_file(path) from error
    if not isinstance(data, dict) or data.get("specfuse_calibration") != FORMAT:
        raise _other_file(path)
    return data


def _other_file(path: str | Path) -> UsageError:
    error = UsageError(f"{str(path)!r} exists, but is not a calibration file of this version")
    return advised(error, "name another file")


def write(path: str | Path, data: Mapping[str, Any]) -> None:
    """Write a calibration file. Readers see the old file or the new one, never a part of one."""
    file = Path(path).resolve()
    part = file.with_name(f".specfuse-{uuid.uuid4().hex}.part")
    try:
        part.write_text(_as_text(data), encoding="utf-8")
        os.replace(part, file)
    finally:
        part.unlink(missing_ok=True)


def _as_text(data: Mapping[str, Any]) -> str:
    """The content of a calibration file: JSON, with each list of numbers on one line."""
    text = json.dumps(data, indent=1, ensure_ascii=False)
    return _NUMBERS.sub(lambda numbers: f"[{' '.join(numbers[1].split())}]", text) + "\n"


def _unreadable(path: str | Path, reason: object) -> UsageError:
    error = UsageError(f"calibration {str(path)!r} cannot be read: {reason}")
    return advised(error, ADVICE)


def calibration_for(path: str, writers: Sequence[str]) -> Calibration:
    """The content of a calibration file, which must fit the members that write."""
    calibration = _read(path, _modified_ns(path))
    if set(calibration.members) != set(writers):
        foreign = UsageError(
            f"calibration {path!r} was made for {', '.join(calibration.members)}, but the members "
            f"are {', '.join(writers)}"
        )
        raise advised(foreign, "calibrate these members, or leave calibration out")
    return calibration


def lead_id_of(path: str) -> str:
    """:attr:`Calibration.lead_id` of a calibration file."""
    return _lead_id(path, _modified_ns(path))


@lru_cache(maxsize=16)
def _read(path: str, modified_ns: int) -> Calibration:
    """The calibration in this file. A change of the file's time means that it is read again."""
    return Calibration.load(path)


@lru_cache(maxsize=16)
def _lead_id(path: str, modified_ns: int) -> str:
    return _read(path, modified_ns).lead_id


def _modified_ns(path: str) -> int:
    try:
        return Path(path).stat().st_mtime_ns
    except OSError as error:
        raise _unreadable(path, error) from error
