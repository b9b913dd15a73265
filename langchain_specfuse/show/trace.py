"""A trace: the rounds of one answer as plain JSON, collected, saved, loaded and shown."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.round import Round
from ..errors import UsageError, advised, amount

FORMAT = 1
"""Increased when an old page could not show a new file."""
SUFFIXES = (".html", ".htm", ".json", ".jsonl")
ADVICE = "give a file that Trace.save or langchain-specfuse --json has written"
NEEDED = {"round": int, "text": str, "winner": str, "drafts": Mapping}
"""What every round has; files of older versions have little else."""


class Trace:
    """What happened in one answer: add its rounds, save it as a page or as JSON, or show it in a
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

    A round is a :class:`~langchain_specfuse.core.values.Round`, the data of a ``specfuse_round``
    event, or a line of ``langchain-specfuse --json``. ``trace.save("run.html")`` writes one page
    that needs nothing else, ``trace.save("run.json")`` what ``Trace.load`` reads. In a notebook a
    trace shows itself.
    """

    def __init__(
        self,
        rounds: Iterable[Round | Mapping[str, Any]] = (),
        *,
        question: str = "",
        members: Sequence[str] = (),
        error: str = "",
    ) -> None:
        self.question = question
        self.error = error
        """Why the answer broke off, if it did."""
        self.rounds: list[dict[str, Any]] = []
        self._named = tuple(members)
        for item in rounds:
            self.add(item)

    def add(self, round: Round | Mapping[str, Any]) -> None:
        """Add the next round of the same answer."""
        data = _checked(round.as_dict() if isinstance(round, Round) else round)
        if self.rounds and data["round"] <= self.rounds[-1]["round"]:
            order = f"round {data['round']} came after round {self.rounds[-1]['round']}"
            raise advised(
                UsageError(f"{order}: a trace holds one answer"),
                "begin a new Trace for another answer",
            )
        self.rounds.append(data)

    @property
    def members(self) -> list[str]:
        """All members that wrote or voted: as given, then in the order of their appearance."""
        names = list(self._named)
        for item in self.rounds:
            left = [departure["member"] for departure in item.get("left", ())]
            names += [
                *item.get("weights_before", ()),
                *item.get("weights", ()),
                *item["drafts"],
                *left,
            ]
            names += item.get("votes", ())
        return list(dict.fromkeys(names))

    @property
    def answer(self) -> str:
        """The agreed text."""
        return "".join(item["text"] for item in self.rounds)

    def as_dict(self) -> dict[str, Any]:
        """The trace as plain JSON."""
        about = {"question": self.question, "members": self.members, "error": self.error}
        return {"specfuse": FORMAT, **about, "rounds": self.rounds}

    def html(self) -> str:
        """The page: one file that loads nothing from elsewhere."""
        from .page import page

        return page(self.as_dict())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a page (``.html``) or JSON (``.json``, or ``.jsonl``: one round per line),
        completely or not at all."""
        file = Path(path)
        kind = file.suffix.lower()
        if kind not in SUFFIXES:
            wrong = UsageError(f"cannot save a trace as {str(file)!r}")
            raise advised(wrong, f"end its name in {', '.join(SUFFIXES)}")
        if kind == ".jsonl" and not self.rounds:
            empty = UsageError(
                f"cannot save a trace without rounds as {str(file)!r}: the file would be empty"
            )
            raise advised(
                empty, "save it as .json or .html, which also hold the question and the error"
            )
        if kind == ".jsonl":
            text = "".join(json.dumps(item, allow_nan=False) + "\n" for item in self.rounds)
        else:
            text = (
                json.dumps(self.as_dict(), allow_nan=False) + "\n"
                if kind == ".json"
                else self.html()
            )
        try:
            _replace(file, text)
        except (OSError, ValueError) as error:  # ValueError: a NUL in the name
            unsaved = UsageError(f"cannot write {str(file)!r}: {error}")
            raise advised(unsaved, "name a file in an existing folder") from error

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Trace:
        """The trace in a file that ``save`` wrote as JSON, or with the output of
        ``langchain-specfuse --json``."""
        file = Path(path)
        try:
            raw = file.read_bytes()
            # some shells redirect in UTF-16
            return cls(**_arguments(raw.decode(json.detect_encoding(raw))))
        except OSError as error:
            raise advised(
                UsageError(f"cannot read {str(file)!r}: {error.strerror or error}"), ADVICE
            ) from error
        # also invalid UTF-8 or JSON, and our own UsageError
        except (ValueError, TypeError, RecursionError) as error:
            raise advised(
                UsageError(f"{str(file)!r} contains no trace: {error}"), ADVICE
            ) from error

    def __repr__(self) -> str:
        answer = self.answer if len(self.answer) <= 40 else self.answer[:39] + "…"
        return (
            f"<Trace of {amount(len(self.rounds), 'round')} by "
            f"{', '.join(self.members) or 'no member'}: {answer!r}>"
        )

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
        return {
            name: whole[name]
            for name in ("rounds", "question", "members", "error")
            if name in whole
        }
    lines = [line for line in text.split("\n") if line.strip()]
    if not lines:
        raise UsageError("it is empty")
    return {"rounds": [json.loads(line) for line in lines]}


def _checked(data: Any) -> dict[str, Any]:
    """A copy of a round's plain data that the page can rely on."""
    good = isinstance(data, Mapping) and all(
        isinstance(data.get(name), kind) for name, kind in NEEDED.items()
    )
    if not good or not all(
        isinstance(one, Mapping) and "text" in one for one in data["drafts"].values()
    ):
        raise UsageError(
            f"this is not a round: {data!r:.120}, expected the result of `Round.as_dict()`"
        )
    try:  # a copy as strict JSON: a number that is not finite becomes None
        return dict(json.loads(json.dumps(data, default=dict), parse_constant=lambda _: None))
    except (TypeError, ValueError) as error:
        raise UsageError(f"round {data['round']} is not JSON: {error}") from error


# --- writing --------------------------------------------------------------------------------------


def _replace(file: Path, text: str) -> None:
    """Write beside the file, then move there: readers see the old file or the new one, never a
    part."""
    file = file.resolve()
    part = file.with_name(f".specfuse-{os.getpid()}-{threading.get_ident()}.part")
    try:
        part.write_text(text, encoding="utf-8", newline="\n")
        if file.exists():
            shutil.copymode(file, part)
        os.replace(part, file)
    finally:
        part.unlink(missing_ok=True)
