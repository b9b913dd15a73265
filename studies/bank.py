"""The bank: every reply of every member in a file, so that another rule can be tried on the same
replies in seconds.

A member's reply depends on its job alone (see ``core.member``). So a recorded reply is what the
member would reply to the same job again: under another method, another margin, another lead. What a
new rule asks beyond that goes to the member, or, without the members (``offline``), fails with a
message that says so.
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

from langchain_specfuse import __version__
from langchain_specfuse.core.member import Member, Probe
from langchain_specfuse.core.values import Draft, DraftJob, Failure, Scored, ScoreJob, Segment
from langchain_specfuse.errors import UsageError, advised
from langchain_specfuse.evaluation.running import identity

LONGEST_DRAFT = 256
"""The rest of an answer's budget affects a draft only below this."""
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
        self.replayed = 0
        """Replies that came from the file."""
        self.asked = 0
        """Replies that members were asked for."""
        try:
            self._database = sqlite3.connect(self.path, timeout=60, check_same_thread=False)
            # Python 3.13 warns of a connection that is left open
            finalize(self, self._database.close)
            self._database.execute("pragma journal_mode=wal")
            self._database.execute(
                "create table if not exists replies (key text primary key, reply text)"
            )
        except sqlite3.DatabaseError as error:
            raise advised(
                UsageError(f"{path} is not a bank: {error}"), "name another file"
            ) from error

    def get(self, key: str) -> str | None:
        with self._lock:
            query = "select reply from replies where key = ?"
            row = self._database.execute(query, (key,)).fetchone()
        return row[0] if row else None

    def put(self, items: Sequence[tuple[str, str]]) -> None:
        with self._lock, self._database:
            self._database.executemany("insert or replace into replies values (?, ?)", items)

    def close(self) -> None:
        self._database.close()


class BankedMember:
    """A member whose replies are kept in a bank, and read from it where they are there."""

    def __init__(self, member: Member, bank: Bank) -> None:
        self._member, self._bank = member, bank
        self._mark = [__version__, identity(member)]

    @property
    def name(self) -> str:
        return self._member.name

    @property
    def spec(self) -> Any:
        """The arguments of the member."""
        return self._member.spec  # type: ignore[attr-defined]

    @property
    def device(self) -> str:
        return f"bank {self._bank.path}" if self._bank.offline else self._member.device

    def probe(self) -> Probe:
        key = self._key("probe", [])
        if not self._bank.offline:
            probe = self._member.probe()
            self._bank.put([(key, _PROBE.dump_json(probe).decode())])
            return probe
        recorded = self._bank.get(key)
        if recorded is None:
            raise advised(
                UsageError(f"{self._bank.path} has no record of {self.name}"), "record it first"
            )
        return _PROBE.validate_json(recorded)

    def draft(self, jobs: Sequence[DraftJob]) -> Sequence[Draft | Failure]:
        return self._replies("draft", jobs)

    def score(self, jobs: Sequence[ScoreJob]) -> Sequence[Scored | Failure]:
        return self._replies("score", jobs)

    def forget(self, query_id: str) -> None:
        if not self._bank.offline:
            self._member.forget(query_id)

    def drop_prefixes(self) -> None:
        drop = getattr(self._member, "drop_prefixes", None)
        if drop is not None and not self._bank.offline:
            drop()

    def _replies(self, work: str, jobs: Sequence[Any]) -> Sequence[Any]:
        keys = [self._key(work, content_of(job, self.name)) for job in jobs]
        recorded = [self._bank.get(key) for key in keys]
        replies: list[Any] = [text and _REPLIES[work].validate_json(text) for text in recorded]
        missing = [position for position, text in enumerate(recorded) if text is None]
        self._bank.replayed += len(jobs) - len(missing)
        self._bank.asked += len(missing)
        if missing and self._bank.offline:
            lost = Failure(
                "error",
                f"the bank has no {work} of {self.name} for this job: record this rule with the "
                "members",
            )
            return [reply or lost for reply in replies]
        if not missing:
            return replies
        # Contexts are read in one piece, because partial replies are not stored.
        asked = [replace(jobs[position], prefill_chunks=None) for position in missing]
        new = []
        for position, reply in zip(missing, getattr(self._member, work)(asked), strict=True):
            replies[position] = reply
            if not isinstance(reply, Failure):
                new.append((keys[position], _REPLIES[work].dump_json(reply).decode()))
        self._bank.put(new)
        return replies

    def _key(self, work: str, content: Any) -> str:
        text = json.dumps([*self._mark, work, content], sort_keys=True, default=repr)
        return hashlib.sha256(text.encode()).hexdigest()


def banked(members: Mapping[str, Member], bank: Bank) -> dict[str, Member]:
    """The same members, each with this bank."""
    return {name: BankedMember(member, bank) for name, member in members.items()}


def content_of(job: DraftJob | ScoreJob, name: str) -> dict[str, Any]:
    """Everything in a job that can change this member's reply, as plain data."""
    query = asdict(replace(job.query, id=""))
    for turn in query["turns"]:
        if not turn["attachments"]:
            del turn["attachments"]  # banks of versions without attachments remain valid
    content: dict[str, Any] = {"query": query, "answer": _agreed(job.answer, name)}
    if isinstance(job, ScoreJob):
        candidates = [[candidate.text, candidate.ended] for candidate in job.candidates]
        return content | {"candidates": candidates, "thinks": job.thinks}
    shortened = replace(job, answer=(), max_tokens=min(job.max_tokens, LONGEST_DRAFT))
    ignored = ("query", "answer", "prefill_chunks", "new_requests")
    rest = {key: value for key, value in asdict(shortened).items() if key not in ignored}
    return content | rest


def _agreed(answer: Sequence[Segment], name: str) -> list[Any]:
    """The agreed text as this member reads it: its own tokens, and others' text joined."""
    pieces: list[Any] = []
    for segment in answer:
        own = segment.tokens.get(name)
        if own is not None:
            pieces.append(list(own))
        elif pieces and isinstance(pieces[-1], str):
            pieces[-1] += segment.text
        else:
            pieces.append(segment.text)
    return pieces
