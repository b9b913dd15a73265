"""The record of one answer's rounds as plain JSON: collected, saved, loaded, shown. Knows nothing of how they came."""

from __future__ import annotations

import json
import math
import os
import shutil
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.values import Round
from ..errors import UsageError, advised, amount

FORMAT = 1
"""Counted up when an old page could not show a new file."""
SUFFIXES = (".html", ".htm", ".json", ".jsonl")
_ROWS = {str: {str: float}}
_WHO = "wanted what `Round.as_dict()` gives"
SHAPE: Mapping[str, Any] = {
    "text": str,
    "segment": str,
    "ended": bool,
    "authors": [str],
    "drafts": {str: dict},
    "scores": _ROWS,
    "votes": _ROWS,
    "totals": {str: float},
    "margin": float,
    "dissent": float,
    "rewards": {str: float},
    "weights_before": {str: float},
    "weights": {str: float},
    "forced": str,
    "closed": str,
    "thoughts": {str: str},
    "looped": [str],
    "umpire": str,
    "late": {str: [str]},
    "left": [dict],
    "seconds": {str: float},
    "tokens": {str: {str: dict}},
}
"""What a round holds that the page shows. Only its number, text and winner must be there: older files know less."""


class Trace:
    """What happened in one answer: add its rounds, save it as a page, as JSON, or look at it in a notebook.

    >>> from langchain_specfuse import Trace
    >>> even, drafts = {"ann": 1.0}, {"ann": {"text": "Blue.", "ended": True, "tokens": 1}}
    >>> trace = Trace(question="Which colour?")
    >>> trace.add({"round": 1, "text": "Blue.", "winner": "ann", "drafts": drafts, "weights": even, "finish": "stop"})
    >>> trace
    <Trace of 1 round by ann: 'Blue.'>

    A round is a :class:`~langchain_specfuse.core.values.Round`, the data of a ``specfuse_round`` event, or a line of
    ``specfuse --json``. ``trace.save("run.html")`` writes one page that needs nothing else, ``trace.save("run.json")``
    what ``Trace.load`` reads. In a notebook a trace shows itself.
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
        """The next round of the same answer."""
        data = _checked(round.as_dict() if isinstance(round, Round) else round)
        if self.rounds and data["round"] <= self.rounds[-1]["round"]:
            told = f"round {data['round']} came after round {self.rounds[-1]['round']}"
            raise advised(UsageError(f"{told}: a trace holds one answer"), "begin a new Trace for another answer")
        self.rounds.append(data)

    @property
    def members(self) -> list[str]:
        """Everybody who wrote or voted, as named at first or in the order of their appearance."""
        return list(dict.fromkeys((*self._named, *(name for item in self.rounds for name in _named(item)))))

    @property
    def answer(self) -> str:
        """The agreed text."""
        return "".join(item["text"] for item in self.rounds)

    def as_dict(self) -> dict[str, Any]:
        """The trace as plain JSON."""
        told = {"question": self.question, "members": self.members, "error": self.error}
        return {"specfuse": FORMAT, **told, "rounds": self.rounds}

    def html(self) -> str:
        """The page: one file, nothing is fetched from anywhere."""
        from .page import page

        return page(self.as_dict())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a page (``.html``) or JSON (``.json``, or ``.jsonl``: a round per line). Whole or not at all."""
        if problem := unsavable(path):
            raise problem
        file = Path(path)
        kind = file.suffix.lower()
        if kind == ".jsonl" and not self.rounds:
            empty = UsageError(f"cannot save a trace without rounds as {str(file)!r}, which would hold nothing")
            raise advised(empty, "save it as .json or .html: they keep the question and the error, too")
        if kind == ".json":
            text = _json(self.as_dict()) + "\n"
        elif kind == ".jsonl":
            text = "".join(_json(item) + "\n" for item in self.rounds)
        else:
            text = self.html()
        _write(file, text)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Trace:
        """What ``save`` wrote as JSON, or what ``specfuse --json`` printed."""
        file = Path(path)
        try:
            raw = file.read_bytes()
            return cls(**_read(raw.decode(json.detect_encoding(raw))))  # some shells redirect in UTF-16
        except OSError as error:
            unread = UsageError(f"cannot read {str(file)!r}: {error.strerror or error}")
            raise advised(unread, "give a file that Trace.save or specfuse --json has written") from error
        except (ValueError, RecursionError) as error:  # also no UTF-8, no JSON, and our own UsageError
            wrong = UsageError(f"{str(file)!r} holds no trace: {error}")
            raise advised(wrong, "give a file that Trace.save or specfuse --json has written") from error

    def __repr__(self) -> str:
        many = amount(len(self.rounds), "round")
        answer = self.answer if len(self.answer) <= 40 else self.answer[:39] + "…"
        return f"<Trace of {many} by {', '.join(self.members) or 'nobody'}: {answer!r}>"

    def _repr_html_(self) -> str:
        from .page import frame

        return frame(self.html())


# --- what comes in ----------------------------------------------------------------------------------------------


def _read(text: str) -> dict[str, Any]:
    """The arguments of a trace, from one object with ``rounds`` or from a round per line."""
    try:
        whole = json.loads(text)
    except json.JSONDecodeError:
        whole = None
    if isinstance(whole, dict) and "rounds" in whole:
        if whole.get("specfuse", FORMAT) != FORMAT:
            raise UsageError(f"it has format {whole['specfuse']!r}, this version reads {FORMAT}")
        found = {name: whole[name] for name in ("rounds", "question", "members", "error") if name in whole}
        _fits(found, {"rounds": [dict], "question": str, "members": [str], "error": str}, "the trace")
        return found
    lines = [line for line in text.split("\n") if line.strip()]
    if not lines:
        raise UsageError("it is empty")
    return {"rounds": [json.loads(line) for line in lines]}


def _checked(data: Any) -> dict[str, Any]:
    """A copy of a round's plain data that the page can rely on."""
    if not isinstance(data, Mapping):
        raise UsageError(f"a round is {type(data).__name__}, {_WHO}")
    number = data.get("round")
    if not isinstance(number, int) or isinstance(number, bool):
        raise UsageError(f"a round's number is {number!r}, {_WHO}")
    where = f"round {number}"
    if missing := [name for name in ("text", "winner", "drafts") if name not in data]:
        raise UsageError(f"{where} has no {' and no '.join(missing)}, {_WHO}")
    _fits(data, {**SHAPE, "winner": str}, where)
    drafts, gone = list(data["drafts"].values()), data.get("left", [])
    _fits(drafts, [{"text": str, "ended": bool, "tokens": float}], f"{where}, drafts")
    _fits(gone, [{"member": str, "kind": str, "reason": str, "round": int}], f"{where}, left")
    if any("text" not in draft for draft in drafts) or any("member" not in left for left in gone):
        raise UsageError(f"{where} has a draft without text, or a departure of nobody, {_WHO}")
    plain: dict[str, Any] = _plain(data, where)
    return plain


def _fits(value: Any, shape: Any, where: str) -> None:
    """Refuse what the page could not show; numbers may be whole, or missing."""
    if isinstance(shape, Mapping) and str not in shape:
        kind: Any = Mapping
        inner = [(value[name], wanted, f"{where}, {name}") for name, wanted in shape.items() if _has(value, name)]
    elif isinstance(shape, Mapping):
        kind, wanted = Mapping, shape[str]
        inner = [(one, wanted, where) for one in value.values()] if isinstance(value, Mapping) else []
    elif isinstance(shape, list):
        kind = (list, tuple)
        inner = [(one, shape[0], where) for one in value] if isinstance(value, kind) else []
    else:
        kind, inner = {float: (int, float, type(None)), dict: Mapping}.get(shape, shape), []
    if not isinstance(value, kind):
        raise UsageError(f"{where} has {value!r:.60} where it should not, {_WHO}")
    for one in inner:
        _fits(*one)


def _has(value: Any, name: str) -> bool:
    return isinstance(value, Mapping) and name in value


def _plain(value: Any, where: str) -> Any:
    """A copy as strict JSON: a number that is not finite is not a number that JSON has."""
    if isinstance(value, Mapping):
        return {str(name): _plain(inner, where) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner, where) for inner in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    raise UsageError(f"{where} holds {type(value).__name__}, which is not JSON")


def _named(item: Mapping[str, Any]) -> Iterable[str]:
    """Everybody whom a round names."""
    gone = (left["member"] for left in item.get("left", ()))
    return (*item.get("weights_before", ()), *item.get("weights", ()), *item["drafts"], *item.get("votes", ()), *gone)


# --- what goes out ----------------------------------------------------------------------------------------------


def _json(value: Any) -> str:
    return json.dumps(value, allow_nan=False)


def unsavable(path: str | os.PathLike[str]) -> UsageError | None:
    """Why nothing can be saved there, told before anybody has worked for it. Leaves nothing behind."""
    file = Path(path)
    if file.suffix.lower() not in SUFFIXES:
        wrong = UsageError(f"cannot save a trace as {str(file)!r}")
        return advised(wrong, f"end its name in {', '.join(SUFFIXES)}")
    try:
        if file.exists() and not file.is_file():
            raise OSError(0, "it is not a file")
        there = file.exists()
        file.open("ab").close()
        if not there:
            file.unlink()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        told = getattr(error, "strerror", None) or str(error)
        return advised(UsageError(f"cannot write {str(file)!r}: {told}"), "name a file in a folder that is there")
    return None


def _write(file: Path, text: str) -> None:
    """Beside the file first, then in its place: whoever looks sees the old one or the new one, never half."""
    file = file.resolve()
    part = file.with_name(f".specfuse-{os.getpid()}-{threading.get_ident()}.part")
    try:
        part.write_text(text, encoding="utf-8", newline="\n")
        if file.exists():
            shutil.copymode(file, part)
        os.replace(part, file)
    finally:
        part.unlink(missing_ok=True)
