"""Fits members' decisions to labelled examples: a bias per label and a temperature for each member.
Measures how good their probabilities are before and after.

Figures after the fit are cross-validated: each example is predicted by a fit to other examples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..chat.labelling import (
    INSTRUCTIONS,
    LEAVE_OUT,
    NO,
    YES,
    Decider,
    LabelCalibration,
    LabelQuestion,
    Measured,
    failing,
)
from ..core.labels import (
    Probabilities,
    Scale,
    accuracy,
    brier,
    calibration_error,
    fit,
    log_loss,
)
from ..core.options import Settings
from ..engine.ensemble import Ensemble
from ..errors import UsageError, advised, amount
from .running import AT_ONCE
from .tasks import json_lines

FEWEST = 20
"""Examples."""
EXAMPLE = 'one object per line: {"input": "I was charged twice", "label": "billing"}'
SHOWN = 5
"""How many lines are named, of examples that are left out."""


@dataclass(frozen=True, slots=True)
class Examples:
    """A question, and texts with their right labels."""

    question: LabelQuestion
    texts: tuple[str, ...]
    labels: tuple[int, ...]
    """For each text, the index of its label in the question's labels."""
    lines: tuple[int, ...]
    """For each text, its line in the file."""


@dataclass(frozen=True, slots=True)
class Quality:
    """How good the probabilities of a system are."""

    system: str
    calibrated: bool
    accuracy: float
    log_loss: float
    brier: float
    calibration_error: float

    @classmethod
    def of(
        cls,
        system: str,
        rows: Sequence[Probabilities],
        labels: Sequence[int],
        *,
        calibrated: bool,
    ) -> Quality:
        """The quality of these probabilities. ``labels``: the right ones."""
        return cls(
            system,
            calibrated,
            accuracy(rows, labels),
            log_loss(rows, labels),
            brier(rows, labels),
            calibration_error(rows, labels),
        )


@dataclass(frozen=True, slots=True)
class Fitted:
    """A calibration, and what it changes."""

    question: LabelQuestion
    calibration: LabelCalibration
    qualities: tuple[Quality, ...]
    left_out: Mapping[int, str] = field(default_factory=dict)
    """line -> why its example takes no part in the fit."""

    def as_dict(self) -> dict[str, Any]:
        """The fit as plain JSON."""
        return {
            "labels": list(self.question.labels),
            "examples": self.calibration.examples,
            "best": self.calibration.best,
            "systems": [asdict(quality) for quality in self.qualities],
            "left_out": {str(line): reason for line, reason in self.left_out.items()},
        }


def examples_of(path: str | Path) -> Examples:
    """The examples of a JSONL file: ``input`` and ``label``.

    Labels are texts; true and false (or "yes" and "no") for a yes-or-no question; or the levels of
    a scale, from 0. One line or all may also have the question's ``instructions`` and ``criteria``,
    as in LangChain's questions. A yes-or-no question or a scale needs ``instructions``, because the
    fit applies to that question only.
    """
    texts: list[str] = []
    lines: list[int] = []
    labels: list[str] = []
    about: dict[str, Any] = {}
    for number, line in json_lines(path, EXAMPLE):
        where = f"{path}:{number}"
        text, label = line.get("input"), line.get("label")
        if not isinstance(text, str) or not text.strip():
            error = UsageError(f"{where}: input must be a text, got {text!r:.80}")
            raise advised(error, EXAMPLE)
        if not isinstance(label, str | bool | int) or label == "":
            error = UsageError(f"{where}: label must be a text, got {label!r:.80}")
            raise advised(error, EXAMPLE)
        for key in ("instructions", "criteria"):
            if key in line and about.setdefault(key, line[key]) != line[key]:
                raise advised(
                    UsageError(f"{where}: its {key} differ from those of an earlier line"),
                    "fit each question to a file of its own",
                )
        texts.append(text)
        lines.append(number)
        labels.append(_label(label))
    if len(texts) < FEWEST:
        error = UsageError(f"{path}: a fit needs at least {FEWEST} examples, got {len(texts)}")
        raise advised(error, "a hundred or more are better")
    question = _question(path, labels, about)
    if question.kind != "choice" and "instructions" not in about:
        error = UsageError(f"{path}: these labels need the question's instructions")
        advice = 'add them to one line, for example "instructions": "Is the request urgent?"'
        raise advised(error, advice)
    unknown = sorted(set(labels) - set(question.labels))
    if unknown:
        error = UsageError(f"{path}: the criteria have no {', '.join(map(repr, unknown))}")
        raise advised(error, f"the labels are {', '.join(question.labels)}")
    places = tuple(question.labels.index(label) for label in labels)
    return Examples(question, tuple(texts), places, tuple(lines))


def _label(value: str | bool | int) -> str:
    """
    >>> _label(True), _label(2), _label("billing")
    ('yes', '2', 'billing')
    """
    if isinstance(value, bool):
        return YES if value else NO
    return str(value)


def _question(path: str | Path, labels: Sequence[str], about: Mapping[str, Any]) -> LabelQuestion:
    found = Counter(labels)
    if len(found) < 2:
        error = UsageError(f"{path}: every example has the label {labels[0]!r}")
        raise advised(error, "a fit needs examples of at least two labels")
    instructions = about.get("instructions", INSTRUCTIONS)
    criteria = about.get("criteria")
    if not isinstance(instructions, str) or not instructions.strip():
        error = UsageError(f"{path}: instructions must be a text, got {instructions!r:.80}")
        raise advised(error, "for example 'Which team should handle this request?'")
    if isinstance(criteria, list) and len(criteria) > 1:
        return LabelQuestion.levels([str(level) for level in criteria], instructions)
    if criteria is not None and not isinstance(criteria, Mapping):
        error = UsageError(f"{path}: criteria must be an object or a list, got {criteria!r:.80}")
        raise advised(error, 'for example {"billing": "payments and invoices", "other": null}')
    criteria = criteria or {}
    described = {str(name): "" if text is None else str(text) for name, text in criteria.items()}
    if set(found) == {YES, NO}:
        yes = described.get(YES, described.get("true", ""))
        no = described.get(NO, described.get("false", ""))
        return LabelQuestion.yes_or_no(instructions, yes, no)
    return LabelQuestion.choice(described or dict.fromkeys(found, ""), instructions)


def fitted_to(
    examples: Examples,
    ensemble: Ensemble,
    settings: Settings | None = None,
    *,
    watch: Callable[[int, int], None] | None = None,
) -> Fitted:
    """Let every member score every example, and fit to the examples that all members scored.
    ``watch`` is called with the number of finished examples and the number of all."""
    decider = Decider(ensemble)
    rows: list[Measured] = []
    texts = examples.texts
    for start in range(0, len(texts), AT_ONCE):
        part = [(examples.question, text) for text in texts[start : start + AT_ONCE]]
        rows += decider.scores(part, settings)
        if watch is not None:
            watch(min(start + AT_ONCE, len(texts)), len(texts))
    _refuse_incomplete(examples, rows)
    complete = [place for place, row in enumerate(rows) if not row.failures]
    labels = [examples.labels[place] for place in complete]
    names = rows[complete[0]].scores
    scores = {name: [rows[place].scores[name] for place in complete] for name in names}
    result = fit(scores, labels)
    calibration = LabelCalibration(
        examples.question.labels,
        result.scales,
        result.best,
        len(labels),
        examples.question.kind,
        examples.question.digest,
    )
    qualities = []
    for name, own in scores.items():
        raw = [Scale()(row) for row in own]
        qualities.append(Quality.of(name, raw, labels, calibrated=False))
        qualities.append(Quality.of(name, result.held_out[name], labels, calibrated=True))
    left_out = {
        line: _reason(row) for line, row in zip(examples.lines, rows, strict=True) if row.failures
    }
    return Fitted(examples.question, calibration, tuple(qualities), left_out)


def _refuse_incomplete(examples: Examples, rows: Sequence[Measured]) -> None:
    """Refuse a fit to too few examples, because members could not score the others."""
    complete = [label for label, row in zip(examples.labels, rows, strict=True) if not row.failures]
    if len(complete) == len(rows) or (len(complete) >= FEWEST and len(set(complete)) > 1):
        return
    line, row = next(pair for pair in zip(examples.lines, rows, strict=True) if pair[1].failures)
    error = failing(
        f"all members have scored only {amount(len(complete), 'example')}, of "
        f"{amount(len(set(complete)), 'label')}; line {line} failed",
        row.failures,
    )
    advice = f"a fit needs {FEWEST} examples of at least two labels: add some that all can read"
    raise advised(error, f"{advice}, or {LEAVE_OUT}")


def _reason(row: Measured) -> str:
    reasons = (f"{name} ({why.kind}): {why.message}" for name, why in row.failures.items())
    return " ".join("; ".join(reasons).split())


def text_of(fitted: Fitted) -> str:
    """The fit as text."""
    return "\n".join(_lines(fitted))


def _left_out(reasons: Mapping[int, str]) -> str:
    """
    >>> _left_out({7: "ann (timeout): no reply", 9: "ann (timeout): no reply"})
    '2 examples are left out (lines 7, 9). ann (timeout): no reply'
    """
    count = amount(len(reasons), "example")
    verb, lines = ("is", "line") if len(reasons) == 1 else ("are", "lines")
    first = ", ".join(map(str, list(reasons)[:SHOWN]))
    more = ", ..." if len(reasons) > SHOWN else ""
    return f"{count} {verb} left out ({lines} {first}{more}). {next(iter(reasons.values()))}"


def _lines(fitted: Fitted) -> Iterator[str]:
    count = amount(fitted.calibration.examples, "example")
    yield f"{len(fitted.question.labels)} labels, {count}; calibrated rows are cross-validated"
    if fitted.left_out:
        yield _left_out(fitted.left_out)
    width = max(len(quality.system) for quality in fitted.qualities)
    head = f"{'':{width}}  {'':10}  accuracy  log loss  Brier  calibration error"
    yield head
    for quality in fitted.qualities:
        kind = "calibrated" if quality.calibrated else "raw"
        yield (
            f"{quality.system:{width}}  {kind:10}  {quality.accuracy:8.3f}  "
            f"{quality.log_loss:8.3f}  {quality.brier:5.3f}  {quality.calibration_error:17.3f}"
        )
    yield f"best: {fitted.calibration.best}"
