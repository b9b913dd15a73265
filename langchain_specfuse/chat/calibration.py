"""Read and write calibration files, in which the doctor records which member should lead on the
user's own questions, and which use of the others helps.

``langchain-specfuse doctor --profile FILE`` writes a file.
``SpecFuseChatModel(calibration="FILE")`` applies it to the options that the user did not choose.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from ..core.options import METHODS, Method
from ..core.results import FUSE, RESULTS
from ..errors import UsageError, advised

if TYPE_CHECKING:
    from .options import Options

FORMAT = 1
ADVICE = "write one with: langchain-specfuse doctor --prompts FILE --profile FILE"


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
    """The result by which whole answers are compared, or ``fuse`` if they are merged; None if
    answers are agreed by segments."""
    prior: Mapping[str, float] | None = None
    """Voting weights to begin with."""
    leads: bool = True
    """False if all members vote as equals."""

    def as_dict(self) -> dict[str, Any]:
        """The calibration as plain JSON, in which infinity is the text ``inf``."""
        method = dict(self.method)
        for option, value in method.items():
            if value == math.inf:
                method[option] = str(value)
        return {"specfuse_calibration": FORMAT, **asdict(self), "method": method}

    def save(self, path: str | Path) -> None:
        """Write the calibration to a JSON file."""
        Path(path).write_text(json.dumps(self.as_dict(), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Calibration:
        """Read a file that :meth:`save` wrote."""
        try:
            return cls._validated(json.loads(Path(path).read_text(encoding="utf-8-sig")))
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
            raise _unreadable(path, reason) from error

    @classmethod
    def _validated(cls, data: Any) -> Calibration:
        """The calibration with these data. Raises ``ValueError``, ``TypeError`` or ``KeyError`` if
        they are not those of a calibration."""
        if not isinstance(data, dict) or data.pop("specfuse_calibration", None) != FORMAT:
            raise ValueError("it is not a calibration file of this version")
        for option, value in data["method"].items():
            if value == "inf":
                data["method"][option] = math.inf
        calibration: Calibration = _ADAPTER.validate_python(data)
        Method.named("robust", **calibration.method)
        if calibration.result not in (None, *RESULTS, FUSE):
            raise ValueError(
                f"result must be one of {', '.join((*RESULTS, FUSE))}, got {calibration.result!r}"
            )
        return calibration


_ADAPTER = TypeAdapter(Calibration)


def _unreadable(path: str | Path, reason: object) -> UsageError:
    error = UsageError(f"calibration {str(path)!r} cannot be read: {reason}")
    return advised(error, ADVICE)


@lru_cache(maxsize=16)
def _read(path: str, modified_ns: int) -> Calibration:
    """The calibration in this file. A change of the file's time means that it is read again."""
    return Calibration.load(path)


def changes_for(call: Options, writers: Sequence[str]) -> dict[str, Any]:
    """The options that the call's calibration file decides, because the user did not choose
    them."""
    path = call.calibration
    assert path
    try:
        calibration = _read(path, Path(path).stat().st_mtime_ns)
    except OSError as error:
        raise _unreadable(path, error) from error
    if set(calibration.members) != set(writers):
        foreign = UsageError(
            f"calibration {path!r} was made for {', '.join(calibration.members)}, but the members "
            f"are {', '.join(writers)}"
        )
        raise advised(foreign, "calibrate these members, or leave calibration out")
    changes: dict[str, Any] = {}
    if call.lead == "auto" and call.method.margin is not None:
        changes["lead"] = calibration.lead if calibration.leads else None
    if call.method == METHODS["robust"] and call.lead in ("auto", calibration.lead):
        changes["method"] = Method.named("robust", **calibration.method)
    if calibration.result and call.segment == "draft" and call.result is None:
        changes |= {"segment": "answer", "result": calibration.result}
    if calibration.prior and call.prior is None:
        changes["prior"] = dict(calibration.prior)
    return changes
