"""A trace: the rounds of one answer as plain JSON. It can be saved, loaded and shown."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.round import Round, RoundData
from ..errors import UsageError, advised, amount

FORMAT = 1
"""Increased when an old page could not show a new file."""
SUFFIXES = (".html", ".htm", ".json", ".jsonl")
ADVICE = "give a file that Trace.save or langchain-specfuse --json has written"
REQUIRED = {"round": int, "text": str, "winner": str, "drafts": Mapping}
"""The keys that every round has. Rounds in files of older versions have few other keys."""


class Trace:
    """The record of one answer. Add its rounds, then save it as a page or as JSON, or show it in a
    notebook.

    >>> from langchain_specfuse import Trace
    >>> even, drafts = {"ann": 1.0}, {"ann": {"text": "Blue.", "ended": True, "tokens": 1}}
    >>> trace = Trace(question="Which colour?")
    >>> trace.add(
    ...     {
    ...         "round": 1,
    ...         "text": "Blue.",
    ...         "winner": "ann",
    ...         "drafts": drafts,
    ...         "weights": even,
    ...         "finish": "stop",
    ...     }
    ... )
    >>> trace
    <Trace of 1 round by ann: 'Blue.'>

    A round is the data of a ``specfuse_round`` event, a line of ``langchain-specfuse --json``, a
    :class:`~langchain_specfuse.core.round.Round` or its ``data()``. ``trace.save("run.html")``
    writes a page that loads nothing from elsewhere, and ``trace.save("run.json")`` writes a file
    for ``Trace.load``. In a notebook, a trace is displayed as its page.
    """

    def __init__(
        self,
        rounds: Iterable[Round | RoundData | Mapping[str, Any]] = (),
        *,
        question: str = "",
        members: Sequence[str] = (),
        error: str = "",
        rejected: Iterable[Mapping[str, Any]] = (),
    ) -> None:
        self.question = question
        self.error = error
        """Why the answer failed, if it did."""
        self.rejected = [dict(rejection) for rejection in rejected]
        """The drafts that checks refused in a round that was never finished, as in the event
        ``specfuse_rejected``."""
        self.rounds: list[dict[str, Any]] = []
        self._members = tuple(members)
        for round in rounds:
            self.add(round)

    def add(self, round: Round | RoundData | Mapping[str, Any]) -> None:
        """Add the next round of the same answer."""
        data = _checked(round.as_dict() if isinstance(round, Round | RoundData) else round)
        if self.rounds and data["round"] <= self.rounds[-1]["round"]:
            order = f"round {data['round']} came after round {self.rounds[-1]['round']}"
            error = UsageError(f"{order}: a trace holds one answer")
            raise advised(error, "begin a new Trace for another answer")
        self.rounds.append(data)

    @property
    def members(self) -> list[str]:
        """All members that wrote or voted: first the given ones, then others in the order of their
        appearance."""
        names = list(self._members)
        for round in self.rounds:
            names += round.get("weights_before", ())
            names += round.get("weights", ())
            names += round["drafts"]
            names += [departure["member"] for departure in round.get("left", ())]
            names += round.get("votes", ())
        names += [rejection["member"] for rejection in self.rejected]
        return list(dict.fromkeys(names))

    @property
    def answer(self) -> str:
        """The agreed text."""
        return "".join(round["text"] for round in self.rounds)

    def as_dict(self) -> dict[str, Any]:
        """The trace as plain JSON."""
        values = {
            "specfuse": FORMAT,
            "question": self.question,
            "members": self.members,
            "error": self.error,
            "rounds": self.rounds,
        }
        return {**values, "rejected": self.rejected} if self.rejected else values

    def html(self) -> str:
        """A page in one file that loads nothing from elsewhere."""
        from .page import page

        return page(self.as_dict())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a page (``.html``) or JSON (``.json``, or ``.jsonl``: one round per line),
        completely or not at all."""
        file = Path(path)
        text = self._written_as(file.suffix.lower(), str(file))
        try:
            _replace(file, text)
        except (OSError, ValueError) as error:  # ValueError: a NUL in the name
            unwritten = UsageError(f"cannot write {str(file)!r}: {error}")
            raise advised(unwritten, "name a file in an existing folder") from error

    def _written_as(self, suffix: str, name: str) -> str:
        """The content of a file with this suffix."""
        if suffix not in SUFFIXES:
            error = UsageError(f"cannot save a trace as {name!r}")
            raise advised(error, f"end its name in {', '.join(SUFFIXES)}")
        if suffix in (".html", ".htm"):
            return self.html()
        if suffix == ".json":
            return json.dumps(self.as_dict(), allow_nan=False) + "\n"
        if not self.rounds:
            error = UsageError(
                f"cannot save a trace without rounds as {name!r}: the file would be empty"
            )
            advice = "save it as .json or .html, which also hold the question and the error"
            raise advised(error, advice)
        return "".join(json.dumps(round, allow_nan=False) + "\n" for round in self.rounds)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Trace:
        """The trace in a file that ``save`` wrote as JSON, or with the output of
        ``langchain-specfuse --json``."""
        file = Path(path)
        try:
            raw = file.read_bytes()
            text = raw.decode(json.detect_encoding(raw))  # some shells redirect in UTF-16
            return cls(**_arguments(text))
        except OSError as error:
            unread = UsageError(f"cannot read {str(file)!r}: {error.strerror or error}")
            raise advised(unread, ADVICE) from error
        # also invalid UTF-8 or JSON, and our own UsageError
        except (ValueError, TypeError, RecursionError) as error:
            unread = UsageError(f"{str(file)!r} contains no trace: {error}")
            raise advised(unread, ADVICE) from error

    def __repr__(self) -> str:
        rounds = amount(len(self.rounds), "round")
        members = ", ".join(self.members) or "no member"
        answer = self.answer if len(self.answer) <= 40 else self.answer[:39] + "…"
        return f"<Trace of {rounds} by {members}: {answer!r}>"

    def _repr_html_(self) -> str:
        from .page import frame

        return frame(self.html())


# --- reading --------------------------------------------------------------------------------------


def _arguments(text: str) -> dict[str, Any]:
    """The arguments of a trace, from one object with ``rounds`` or from one round per line."""
    try:
        whole = json.loads(text)
    except json.JSONDecodeError:
        whole = None
    if isinstance(whole, dict) and "rounds" in whole:
        if whole.get("specfuse", FORMAT) != FORMAT:
            raise UsageError(f"it has format {whole['specfuse']!r}, this version reads {FORMAT}")
        names = ("rounds", "question", "members", "error", "rejected")
        return {name: whole[name] for name in names if name in whole}
    lines = [line for line in text.split("\n") if line.strip()]
    if not lines:
        raise UsageError("it is empty")
    return {"rounds": [json.loads(line) for line in lines]}


def _checked(data: Any) -> dict[str, Any]:
    """A copy of a round's plain data that the page can rely on."""
    if not _is_round(data):
        raise UsageError(
            f"this is not a round: {data!r:.120}, expected the result of `Round.as_dict()`"
        )
    try:  # a copy as strict JSON: a number that is not finite becomes None
        return dict(json.loads(json.dumps(data, default=dict), parse_constant=lambda _: None))
    except (TypeError, ValueError) as error:
        raise UsageError(f"round {data['round']} is not JSON: {error}") from error


def _is_round(data: Any) -> bool:
    if not isinstance(data, Mapping):
        return False
    if not all(isinstance(data.get(key), kind) for key, kind in REQUIRED.items()):
        return False
    return all(isinstance(draft, Mapping) and "text" in draft for draft in data["drafts"].values())


# --- writing --------------------------------------------------------------------------------------


def _replace(file: Path, text: str) -> None:
    """Write beside the file, then move there. Readers see the old file or the new one, never a
    part of it."""
    file = file.resolve()
    part = file.with_name(f".specfuse-{os.getpid()}-{threading.get_ident()}.part")
    try:
        part.write_text(text, encoding="utf-8", newline="\n")
        if file.exists():
            shutil.copymode(file, part)
        os.replace(part, file)
    finally:
        part.unlink(missing_ok=True)
