"""What the doctor found out about some members on the user's own questions: who leads, and what of
the others helps.

``langchain-specfuse doctor --profile FILE`` writes it, ``SpecFuseChatModel(calibration="FILE")``
applies it: to what was not chosen otherwise.
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
from ..core.results import RESULTS
from ..errors import UsageError, advised

if TYPE_CHECKING:
    from .options import Options

FORMAT = 1
ADVICE = "write one with: langchain-specfuse doctor --prompts FILE --profile FILE"


@dataclass(frozen=True, slots=True)
class Tried:
    """One way to use the other members, against the lead alone on the same questions."""

    name: str
    wins: int
    losses: int
    p: float
    """The probability of this many wins or more, if wins and losses were equally likely."""
    passes: float
    """Forward passes of all members, over those of the lead alone."""
    seconds: float
    """Computing time of all members, over that of the lead alone."""
    opened: bool


@dataclass(frozen=True, slots=True)
class Calibration:
    """Who leads, and how the others take part."""

    lead: str
    members: Mapping[str, float]
    """member -> its score alone, from 0 to 1."""
    questions: int
    tried: tuple[Tried, ...] = ()
    use: str = "alone"
    """``alone``: the lead's draft always stands; else the name of what was opened."""
    method: Mapping[str, Any] = field(default_factory=dict)
    """Options of the method that differ from the default."""
    result: str | None = None
    """Set where whole answers are compared: by what."""
    prior: Mapping[str, float] | None = None
    """Voting weights to begin with."""
    leads: bool = True
    """False: all vote as equals."""

    def as_dict(self) -> dict[str, Any]:
        """The calibration as plain JSON, which has no infinity."""
        method = dict(self.method)
        if method.get("margin") == math.inf:
            method["margin"] = "inf"
        return {"specfuse_calibration": FORMAT, **asdict(self), "method": method}

    def save(self, path: str | Path) -> None:
        """Write it as JSON."""
        Path(path).write_text(json.dumps(self.as_dict(), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Calibration:
        """Read what :meth:`save` wrote."""
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8-sig"))
            if not isinstance(data, dict) or data.pop("specfuse_calibration", None) != FORMAT:
                raise ValueError("it is not a calibration file of this version")
            if data["method"].get("margin") == "inf":
                data["method"]["margin"] = math.inf
            calibration: Calibration = _ADAPTER.validate_python(data)
            Method.named("robust", **calibration.method)
            if calibration.result not in (None, *RESULTS):
                raise ValueError(
                    f"result must be one of {', '.join(RESULTS)}, got {calibration.result!r}"
                )
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
            raise advised(
                UsageError(f"calibration {str(path)!r} cannot be read: {reason}"), ADVICE
            ) from error
        return calibration


_ADAPTER = TypeAdapter(Calibration)


@lru_cache(maxsize=16)
def _read(path: str, changed: int) -> Calibration:
    return Calibration.load(path)


def changes_for(call: Options, writers: Sequence[str]) -> dict[str, Any]:
    """The options that the call's calibration file decides, because nothing else was chosen."""
    path = call.calibration
    assert path
    try:
        calibration = _read(path, Path(path).stat().st_mtime_ns)
    except OSError as error:
        unread = UsageError(f"calibration {path!r} cannot be read: {error}")
        raise advised(unread, ADVICE) from error
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
