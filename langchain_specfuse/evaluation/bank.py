"""The bank: every reply of every member, kept in a file, so that another rule is tried on the same
replies in seconds.

A member's reply depends on its job alone (see ``core.member``). So a reply that was recorded once
stands for the member wherever the same job comes up again: under another method, another margin,
another lead. What a new rule asks beyond that is asked of the member itself, or, without the
members (``offline``), fails with a message that says so.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from threading import Lock
from typing import Any
from weakref import finalize

from pydantic import TypeAdapter

from .._version import __version__
from ..core.member import Member, Probe
from ..core.values import Draft, DraftJob, Failure, Scored, ScoreJob, Segment
from ..errors import UsageError, advised

LONGEST_DRAFT = 256
"""What is left of an answer's budget matters to a draft only below this."""
_REPLIES: Mapping[str, TypeAdapter[Any]] = {
    "draft": TypeAdapter(Draft),
    "score": TypeAdapter(Scored),
}
_PROBE = TypeAdapter(Probe)


class Bank:
    """A file of replies. Several processes may read and write it at once."""

    def __init__(self, path: str | Path, *, offline: bool = False) -> None:
        self.path, self.offline = Path(path), offline
        if offline and not self.path.exists():
            raise advised(
                UsageError(f"there is no bank {str(path)!r}"), "record one first, with the members"
            )
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = Lock()
        self.found = self.asked = 0
        """Replies that came from the file, and those that members were asked for."""
        try:
            self._base = sqlite3.connect(self.path, timeout=60, check_same_thread=False)
            finalize(self, self._base.close)  # Python 3.13 warns of a connection that is left open
            self._base.execute("pragma journal_mode=wal")
            self._base.execute(
                "create table if not exists replies (key text primary key, reply text)"
            )
        except sqlite3.DatabaseError as error:
            raise advised(
                UsageError(f"{path} is not a bank: {error}"), "name another file"
            ) from error

    def get(self, key: str) -> str | None:
        with self._lock:
            row = self._base.execute("select reply from replies where key = ?", (key,)).fetchone()
        return row[0] if row else None

    def put(self, items: Sequence[tuple[str, str]]) -> None:
        with self._lock, self._base:
            self._base.executemany("insert or replace into replies values (?, ?)", items)

    def close(self) -> None:
        self._base.close()


class BankedMember:
    """A member whose replies are kept in a bank, and taken from it where they are there."""

    def __init__(self, member: Member, bank: Bank, identity: Any) -> None:
        self._member, self._bank = member, bank
        self._mark = [__version__, identity]

    @property
    def name(self) -> str:
        return self._member.name

    @property
    def spec(self) -> Any:
        """What the member is, where it says so."""
        return self._member.spec  # type: ignore[attr-defined]

    @property
    def device(self) -> str:
        return f"bank {self._bank.path}" if self._bank.offline else self._member.device

    def probe(self) -> Probe:
        key = self._key("probe", [])
        if not self._bank.offline:
            found = self._member.probe()
            self._bank.put([(key, _PROBE.dump_json(found).decode())])
            return found
        if (known := self._bank.get(key)) is None:
            raise advised(
                UsageError(f"{self._bank.path} has no record of {self.name}"), "record it first"
            )
        return _PROBE.validate_json(known)

    def draft(self, jobs: Sequence[DraftJob]) -> Sequence[Draft | Failure]:
        return self._replies("draft", jobs)

    def score(self, jobs: Sequence[ScoreJob]) -> Sequence[Scored | Failure]:
        return self._replies("score", jobs)

    def forget(self, query_id: str) -> None:
        if not self._bank.offline:
            self._member.forget(query_id)

    def drop_prefixes(self) -> None:
        if not self._bank.offline and (drop := getattr(self._member, "drop_prefixes", None)):
            drop()

    def _replies(self, work: str, jobs: Sequence[Any]) -> Sequence[Any]:
        keys = [self._key(work, content_of(job, self.name)) for job in jobs]
        known = [self._bank.get(key) for key in keys]
        replies: list[Any] = [text and _REPLIES[work].validate_json(text) for text in known]
        open = [at for at, text in enumerate(known) if text is None]
        self._bank.found += len(jobs) - len(open)
        self._bank.asked += len(open)
        if open and self._bank.offline:
            lost = Failure(
                "error",
                f"the bank has no {work} of {self.name} for this job: record this rule with the "
                "members",
            )
            return [reply or lost for reply in replies]
        # Whole contexts are read in one piece: partial replies are not stored.
        asked = [replace(jobs[at], prefill_chunks=None) for at in open]
        new = getattr(self._member, work)(asked) if asked else []
        for at, reply in zip(open, new, strict=True):
            replies[at] = reply
        good = [
            (at, reply)
            for at, reply in zip(open, new, strict=True)
            if not isinstance(reply, Failure)
        ]
        self._bank.put([(keys[at], _REPLIES[work].dump_json(reply).decode()) for at, reply in good])
        return replies

    def _key(self, work: str, content: Any) -> str:
        whole = json.dumps([*self._mark, work, content], sort_keys=True, default=repr)
        return hashlib.sha256(whole.encode()).hexdigest()


def banked(
    members: Mapping[str, Member], bank: Bank, identities: Mapping[str, Any]
) -> dict[str, Member]:
    """The same members, each with this bank."""
    return {name: BankedMember(member, bank, identities[name]) for name, member in members.items()}


def content_of(job: DraftJob | ScoreJob, name: str) -> dict[str, Any]:
    """All of a job that can change this member's reply, as plain data."""
    query = asdict(replace(job.query, id=""))
    for turn in query["turns"]:
        if not turn["attachments"]:
            del turn["attachments"]  # banks of versions that had none remain valid
    content: dict[str, Any] = {"query": query, "answer": _read(job.answer, name)}
    if isinstance(job, ScoreJob):
        return content | {
            "candidates": [[c.text, c.ended] for c in job.candidates],
            "thinks": job.thinks,
        }
    rest = asdict(
        replace(job, query=job.query, answer=(), max_tokens=min(job.max_tokens, LONGEST_DRAFT))
    )
    without = ("query", "answer", "prefill_chunks", "new_requests")
    return content | {key: value for key, value in rest.items() if key not in without}


def _read(answer: Sequence[Segment], name: str) -> list[Any]:
    """The agreed text as this member reads it: its own tokens, and others' text joined."""
    pieces: list[Any] = []
    for segment in answer:
        own = segment.tokens.get(name)
        if own is None and pieces and isinstance(pieces[-1], str):
            pieces[-1] += segment.text
        else:
            pieces.append(segment.text if own is None else list(own))
    return pieces
