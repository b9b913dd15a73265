"""The referee of the loop, which checks whole texts with a grammar over plain bytes. It does not
depend on tokenizers or members."""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import NamedTuple

from ..core.referee import FREE, Referee
from ..core.values import Constraint, ToolCall
from ..errors import SpecFuseError, UsageError, advised
from .calls import CallReader, canonical
from .grammar import LONGEST_FORCED, State, Vocabulary, shared_start
from .rules import grammars_of, reader_for

REMEMBERED = 16
"""How many recent texts are cached with their states."""
_SPACE = " \t\r\n"


def referee_for(constraint: Constraint | None) -> Referee:
    """The referee of a query with this constraint; ``FREE`` for None."""
    return FREE if constraint is None else Ruling(constraint)


def check(constraint: Constraint) -> None:
    """Raise ``UsageError`` if the constraint is unknown or impossible, or if no grammar can express
    it."""
    start = bytewise().grammar(constraint).start()
    if not start.may_end() and not start.follows():
        raise advised(
            UsageError(f"no answer satisfies the constraint {_shown(constraint)}"), "fix it"
        )
    if len(start.forced()) >= LONGEST_FORCED:
        raise advised(
            UsageError(f"no answer ends under the constraint {_shown(constraint)}"),
            "give it an end",
        )


def _shown(constraint: Constraint) -> str:
    body = constraint.body if len(constraint.body) <= 120 else constraint.body[:117] + "..."
    return f"{constraint.kind} {body}".strip()


@lru_cache(maxsize=1)
def bytewise() -> Vocabulary:
    """The vocabulary of the referee: its tokens are the bytes."""
    return Vocabulary([bytes([byte]) for byte in range(256)])


def _no_call(answer: str) -> ToolCall | None:
    return None


class _Place(NamedTuple):
    """The state of one text in the grammar and among its calls. It is forked and never changed."""

    state: State
    calls: CallReader | None


class Ruling(Referee):
    """A referee with a constraint. It caches the states of recent texts, so that it reads each part
    of a growing answer once."""

    def __init__(self, constraint: Constraint) -> None:
        grammars = grammars_of(constraint)
        self._escapes = all(rule.json for rule in grammars.rules)
        self._prose = grammars.prose
        self._begin = grammars.calls.between + grammars.calls.begin if grammars.calls else ""
        self._start = _Place(bytewise().grammar(constraint).start(), reader_for(constraint))
        self._places: OrderedDict[str, _Place] = OrderedDict()
        self._lock = threading.RLock()
        self._lone: Callable[[str], ToolCall | None] = _no_call

    def legal(self, answer: str, draft: str) -> int:
        data = draft.encode("utf-8", "surrogatepass")
        with self._lock:
            place = self._at(answer)
            count = place.state.fits(data)
        legal = draft if count == len(data) else data[:count].decode("utf-8", "ignore")
        if count < len(data) and self._escapes and (len(legal) - len(legal.rstrip("\\"))) % 2:
            legal = legal[:-1]  # half an escape
        if place.calls is None:
            return len(legal)
        return self._new_calls(answer, legal, place.calls)

    def _new_calls(self, answer: str, draft: str, before: CallReader) -> int:
        """How much of a legal draft to keep.

        The draft is cut before a call that the answer already contains, because small models repeat
        calls without end. Text after a finished call that may begin another one is cut, too: a line
        break does not mean that a call follows.
        """
        with self._lock:
            after = self._at(answer + draft).calls
        assert after is not None
        known = set(map(canonical, before.calls))
        count = len(before.calls)
        kept = 0
        for call, end in zip(after.calls[count:], after.ends[count:], strict=True):
            if canonical(call) in known:
                return kept
            known.add(canonical(call))
            kept = end - len(answer)
        tail = (answer + draft)[after.ends[-1] :] if after.calls else ""
        only_begins = self._begin.startswith(tail) and len(tail) <= len(draft)
        return len(draft) - len(tail) if only_begins else len(draft)

    def may_end(self, answer: str) -> bool:
        with self._lock:
            return self._at(answer).state.may_end()

    def must_end(self, answer: str) -> bool:
        with self._lock:
            return self._at(answer).state.must_end()

    def forced(self, answer: str) -> str:
        with self._lock:
            return self._at(answer).state.forced().decode("utf-8", "ignore").rstrip(_SPACE)

    def spans(self, answer: str, draft: str) -> tuple[tuple[int, int], ...]:
        with self._lock:
            state = self._at(answer).state.fork()
        spans: list[tuple[int, int]] = []
        at = 0
        while at < len(draft):
            forced = state.forced().decode("utf-8", "ignore")
            size = len(shared_start([forced, draft[at : at + len(forced)]]))
            if size and spans and spans[-1][1] == at:
                spans[-1] = spans[-1][0], at + size
            elif size:
                spans.append((at, at + size))
            part = draft[at : at + (size or 1)]
            if state.advance(part) < len(part.encode()):
                break
            at += len(part)
        return tuple(spans)

    def same(self, answer: str, draft: str) -> Hashable:
        with self._lock:
            before = self._at(answer).calls
        if before is None:
            return draft
        after = before.fork()
        after.feed(draft)
        new = after.calls[len(before.calls) :]
        if not new:
            return draft
        prose = (answer + draft)[before.prose : after.prose]
        return prose, tuple(map(canonical, new)), after.rest

    def prose(self, answer: str) -> int:
        if not self._prose:
            return 0
        with self._lock:
            calls = self._at(answer).calls
        return calls.prose if calls else len(answer)

    def possible_prose(self, answer: str) -> int:
        if not self._prose:
            return 0
        with self._lock:
            calls = self._at(answer).calls
        if calls is None or calls.undecided:
            return len(answer)
        return calls.prose

    def with_lone_calls(self, lone: Callable[[str], ToolCall | None]) -> Ruling:
        other = copy.copy(self)
        other._lone = lone
        return other

    def before_calls(self, answer: str) -> int:
        if self._lone(answer) is not None:
            return 0
        with self._lock:
            calls = self._at(answer).calls
        if calls is None or calls.undecided:
            return len(answer)
        return calls.prose

    def calls(self, answer: str) -> tuple[tuple[ToolCall, int], ...]:
        with self._lock:
            calls = self._at(answer).calls
        if calls is not None and calls.calls:
            return tuple(zip(calls.calls, calls.ends, strict=True))
        call = self._lone(answer)
        return () if call is None else ((call, len(answer)),)

    def _at(self, answer: str) -> _Place:
        if answer in self._places:
            self._places.move_to_end(answer)
            return self._places[answer]
        # the latest is nearly always the text that this one continues
        known = next((text for text in reversed(self._places) if answer.startswith(text)), "")
        place = self._places.get(known, self._start)
        state = place.state.fork()
        calls = place.calls.fork() if place.calls else None
        new = answer[len(known) :]
        data = new.encode("utf-8", "surrogatepass")
        moved = state.advance(data)
        if moved < len(data):
            raise SpecFuseError(
                f"the answer does not fit its constraint from {data[moved:][:80]!r} on"
            )
        if calls:
            calls.feed(new)
        self._places[answer] = _Place(state, calls)
        while len(self._places) > REMEMBERED:
            self._places.popitem(last=False)
        return self._places[answer]
