"""Read and write what the doctor fitted for decisions: the key ``decisions`` of a calibration file.

It is a list with one entry for each question and each set of members. The file's other keys belong
to the chat model's calibration (``chat.calibration``) and stay as they are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.labels import Scale
from ..errors import UsageError, advised
from .calibration import FORMAT, UNREADABLE, content_of, write
from .labelling import LabelCalibration

KEY = "decisions"
ADVICE = "write one with: langchain-specfuse doctor --decisions FILE.jsonl --calibration FILE"


def read_labels(path: str | Path, members: Sequence[str]) -> list[LabelCalibration]:
    """The calibrations in this file that are for exactly these members. There must be one."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8-sig"))
        calibrations = [_from_data(entry) for entry in data[KEY] or ()]
        if not calibrations:
            raise KeyError(KEY)
        if data["specfuse_calibration"] != FORMAT:
            raise ValueError("it is not a calibration file of this version")
    except KeyError as error:
        unfit = UsageError(f"calibration {str(path)!r} cannot be read: it has no key {error}")
        raise advised(unfit, ADVICE) from error
    except UNREADABLE as error:
        unreadable = UsageError(f"calibration {str(path)!r} cannot be read: {error}")
        raise advised(unreadable, ADVICE) from error
    own = [each for each in calibrations if set(each.scales) == set(members)]
    if not own:
        made_for = "; ".join(dict.fromkeys(", ".join(each.scales) for each in calibrations))
        foreign = UsageError(
            f"calibration {str(path)!r} was made for {made_for}, but the members are "
            f"{', '.join(members)}"
        )
        raise advised(foreign, "calibrate these members, or leave calibration out")
    return own


def write_labels(path: str | Path, calibration: LabelCalibration) -> None:
    """Add a calibration to this file. It replaces one for the same question and members."""
    data = content_of(path) or {"specfuse_calibration": FORMAT}
    new = _as_data(calibration)
    kept = [entry for entry in data.get(KEY) or () if _about(entry) != _about(new)]
    data[KEY] = [*kept, new]
    write(path, data)


def _about(entry: Mapping[str, Any]) -> list[Any]:
    """The question and the members of an entry."""
    return [entry["kind"], entry["question"], set(entry["labels"]), set(entry["members"])]


def _as_data(calibration: LabelCalibration) -> dict[str, Any]:
    labels = calibration.labels
    scales = calibration.scales.items()
    return {
        "kind": calibration.kind,
        "question": calibration.digest,
        "labels": list(labels),
        "members": list(calibration.scales),
        "temperature": {name: round(scale.temperature, 6) for name, scale in scales},
        "bias": {
            name: {label: round(bias, 6) for label, bias in zip(labels, scale.bias, strict=True)}
            for name, scale in scales
        },
        "best": calibration.best,
        "examples": calibration.examples,
    }


def _from_data(entry: Mapping[str, Any]) -> LabelCalibration:
    """The calibration with these data. Raises ``KeyError``, ``TypeError`` or ``ValueError`` if the
    data have another form."""
    labels = tuple(entry["labels"])
    scales = {}
    for name in entry["members"]:
        bias = tuple(float(entry["bias"][name][label]) for label in labels)
        scales[name] = Scale(float(entry["temperature"][name]), bias)
    kind, digest = entry["kind"], entry["question"]
    return LabelCalibration(labels, scales, entry["best"], entry["examples"], kind, digest)
