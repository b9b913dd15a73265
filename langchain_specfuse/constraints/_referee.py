"""The loop's referee: a grammar over plain bytes, asked in whole texts. Knows no tokenizer and no member."""

from __future__ import annotations

import json
import logging
import threading
from collections import OrderedDict
from collections.abc import Hashable
from functools import lru_cache

from ..core.referee import Referee, Unbound
from ..core.values import Constraint
from ..errors import SpecFuseError
from ._calls import calls_of, canonical, format_of
from ._closing import closed
from ._grammar import Grammar, Vocabulary
from ._kinds import Free, plan_of, unanchored
from ._states import State

log = logging.getLogger("langchain_specfuse")

REMEMBERED = 16
"""Texts whose states are kept: the last answers, each with its drafts."""
PATTERNS = 16
"""Patterns that are asked for an example: strings may have to end with it."""
_SPACE = " \t\r\n"


def referee_for(constraint: Constraint | None) -> Referee:
    """Who judges the answers to a query with this constraint; ``Unbound()`` for None."""
    return Unbound() if constraint is None else Ruling(constraint)


@lru_cache(maxsize=4)
def bytewise(backend: str | None = None) -> Vocabulary:
    """The vocabulary of the referee: its tokens are the bytes."""
    return Vocabulary([bytes([byte]) for byte in range(256)], (), backend)


class Ruling:
    """A referee under a constraint. Keeps the states of the last texts, so that a growing answer costs its new part."""

    def __init__(self, constraint: Constraint, backend: str | None = None) -> None:
        self._constraint = constraint
        self._grammar: Grammar = bytewise(backend).grammar(constraint)
        self._calls = format_of(constraint)
        self._speaks = plan_of(constraint).free is not Free.NONE
        self._known: OrderedDict[str, State] = OrderedDict()
        self._lock = threading.RLock()

    def legal(self, answer: str, draft: str) -> int:
        data = draft.encode("utf-8", "surrogatepass")
        with self._lock:
            count = self._at(answer).fits(data)
        legal = draft if count == len(data) else self._cut(data[:count].decode("utf-8", "ignore"))
        if self._calls is None:
            return len(legal)
        return self._without_beginning(answer, legal[: self._unrepeated(answer, legal)])

    def _cut(self, text: str) -> str:
        """A draft that is legal so far, without the beginning of an escape at its end."""
        half = plan_of(self._constraint).json and (len(text) - len(text.rstrip("\\"))) % 2
        return text[:-1] if half else text

    def _without_beginning(self, answer: str, draft: str) -> int:
        """A legal draft without what only begins another call behind a finished one: a line break is no promise."""
        assert self._calls is not None
        text = answer + draft
        behind = text.rfind(self._calls.end) + len(self._calls.end) if self._calls.end else len(text)
        tail = text[behind:]
        begins = bool(tail) and (self._calls.between + self._calls.begin).startswith(tail)
        if begins and calls_of(self._constraint, text[:behind]).rest == "" and len(tail) <= len(draft):
            return len(draft) - len(tail)
        return len(draft)

    def _unrepeated(self, answer: str, draft: str) -> int:
        """How much of a legal draft comes before a call that was made already: small models repeat one without end."""
        assert self._calls is not None
        if self._calls.begin not in draft:
            return len(draft)
        before = calls_of(self._constraint, answer).calls
        known, made = set(map(canonical, before)), len(before)
        ends = [at for at in range(1, len(draft) + 1) if draft.startswith(self._calls.end, at - len(self._calls.end))]
        kept = 0
        for at in ends:
            calls = calls_of(self._constraint, answer + draft[:at]).calls
            if len(calls) > made:
                if canonical(calls[-1]) in known:
                    return kept
                known.add(canonical(calls[-1]))
                made, kept = len(calls), at
        return len(draft)

    def may_end(self, answer: str) -> bool:
        with self._lock:
            return self._at(answer).may_end()

    def must_end(self, answer: str) -> bool:
        with self._lock:
            return self._at(answer).must_end()

    def forced(self, answer: str) -> str:
        with self._lock:
            return self._at(answer).forced().decode("utf-8", "ignore").rstrip(_SPACE)

    def spans(self, answer: str, draft: str) -> tuple[tuple[int, int], ...]:
        with self._lock:
            state = self._at(answer).fork()
        spans: list[tuple[int, int]] = []
        at = 0
        while at < len(draft):
            forced = state.forced().decode("utf-8", "ignore")
            size = _alike(forced, draft, at)
            if size and spans and spans[-1][1] == at:
                spans[-1] = spans[-1][0], at + size
            elif size:
                spans.append((at, at + size))
            size = size or 1
            part = draft[at : at + size]
            if state.advance(part) < len(part.encode()):
                break
            at += size
        return tuple(spans)

    def closing(self, answer: str) -> str:
        found = self.way_out(answer)
        if found is None:  # the search is bounded; what has been streamed is worth more than an error
            log.warning("no short way was found to close an answer under its constraint: it stays cut off")
        return found or ""

    def way_out(self, answer: str) -> str | None:
        """A short way to make the answer whole; None if none was found."""
        with self._lock:
            state = self._at(answer)
            if state.may_end():
                return ""
            plan = plan_of(self._constraint)
            text, patterns = self._calling(answer), plan.patterns[:PATTERNS]
            loose = [pattern for pattern in patterns if unanchored(pattern) == pattern]
            found = closed(state, text, [*plan.literals, *map(_example, loose)], words=plan.words, json=plan.json)
            if found is None and patterns:
                found = closed(state, text, [*map(_example, patterns)], json=plan.json)
        return None if found is None else found.decode()

    def same(self, answer: str, draft: str) -> Hashable:
        if self._calls is None:
            return draft
        before, after = (calls_of(self._constraint, text) for text in (answer, answer + draft))
        new = after.calls[len(before.calls) :]
        if not new:
            return draft
        return after.prose[len(before.prose) :], tuple(map(canonical, new)), after.rest

    def prose(self, answer: str) -> int:
        if not self._speaks:
            return 0
        return len(calls_of(self._constraint, answer).prose) if self._calls else len(answer)

    def _calling(self, answer: str) -> str:
        """The part of the answer in which quotation marks are those of JSON."""
        return answer[len(calls_of(self._constraint, answer).prose) :] if self._calls else answer

    def _at(self, answer: str) -> State:
        """The state behind this text. Not to be moved: forked, if at all."""
        if answer in self._known:
            self._known.move_to_end(answer)
            return self._known[answer]
        begun = max((text for text in self._known if answer.startswith(text)), key=len, default="")
        state = self._known[begun].fork() if begun in self._known else self._grammar.start()
        data = answer[len(begun) :].encode("utf-8", "surrogatepass")
        moved = state.advance(data)
        if moved < len(data):
            raise SpecFuseError(f"the answer is not legal from {data[moved:][:80]!r} on: nothing can be said about it")
        self._known[answer] = state
        while len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return state


def _alike(forced: str, draft: str, at: int) -> int:
    size = 0
    while size < len(forced) and at + size < len(draft) and forced[size] == draft[at + size]:
        size += 1
    return size


@lru_cache(maxsize=256)
def _example(pattern: str) -> str:
    """A short text that the pattern finds, as JSON writes it; empty if none is soon found."""
    try:
        found = closed(bytewise().grammar(Constraint("regex", unanchored(pattern))).start(), '"', json=False)
    except (SpecFuseError, ValueError, RuntimeError):  # nothing the library reads alone
        return ""
    return json.dumps((found or b"").decode(), ensure_ascii=False)[1:-1] if found and len(found) < 64 else ""
