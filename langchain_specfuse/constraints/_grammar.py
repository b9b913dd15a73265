"""Constraints compiled for one vocabulary: what a member asks, and (over plain bytes) what the referee asks."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from ..core.values import Constraint
from ._backends import backend_named
from ._calls import Position, trigger
from ._kinds import Free, Plan, plan_of
from ._prose import Prose
from ._rules import Backend, Calls, Masker, Matcher, Rules
from ._states import AnyOf, Ruled, State
from ._tokens import Tokens
from ._vocabulary import words_of

KEPT = 64
"""Compiled grammars are kept for so many constraints."""


class Kept:
    """What was compiled last, by key. Shared by threads: two that want the same wait for one compiling."""

    def __init__(self) -> None:
        self._found: OrderedDict[Any, Any] = OrderedDict()
        self._lock = threading.RLock()

    def get(self, key: Any, make: Any) -> Any:
        with self._lock:
            if key not in self._found:
                self._found[key] = make()
            self._found.move_to_end(key)
            while len(self._found) > KEPT:
                self._found.popitem(last=False)
            return self._found[key]


_MATCHERS = Kept()


class Leaf:
    """One rule set, compiled. Its beginnings are forked, never moved."""

    def __init__(self, backend: Backend, rules: Rules, tokens: Tokens, table: Any) -> None:
        self._backend = backend
        self._rules = rules
        self._tokens = tokens
        self._table = table
        self._matcher = _compiled(backend, rules)
        self._masker: Masker | None = None
        self._lock = threading.Lock()

    def start(self) -> Ruled:
        position = Position(self._rules.format) if isinstance(self._rules, Calls) else None
        with self._lock:
            return Ruled(self._tokens, self, self._matcher.fork(), position)

    def masker(self) -> Masker:
        with self._lock:
            if self._masker is None:
                self._masker = self._backend.masker(self._rules, self._table)
            return self._masker.fork()


def _compiled(backend: Backend, rules: Rules) -> Matcher:
    found: Matcher = _MATCHERS.get((backend.name, repr(rules)), lambda: backend.matcher(rules))
    return found


class Grammar:
    """One constraint, compiled for one vocabulary."""

    def __init__(self, plan: Plan, backend: Backend | None, tokens: Tokens, table: Any) -> None:
        self._tokens = tokens
        self._leaves = [Leaf(backend, rules, tokens, table) for rules in plan.rules] if backend else []
        self._free = plan.free
        self._begin = trigger(plan.calls.format).encode() if plan.calls else b""
        self._calls = next(
            (leaf for leaf, rule in zip(self._leaves, plan.rules, strict=True) if rule is plan.calls), None
        )

    def start(self) -> State:
        """At the beginning of a text."""
        if self._free is Free.PROSE:
            return Prose(self._tokens)
        if self._free is Free.CALLS:
            assert self._calls is not None
            return Prose(self._tokens, (self._begin, self._calls))
        states = [leaf.start() for leaf in self._leaves]
        return states[0] if len(states) == 1 else AnyOf(self._tokens, states)


class Vocabulary:
    """One tokenizer's tokens, ready for masks."""

    def __init__(self, words: Sequence[bytes], stop_ids: Sequence[int] = (), backend: str | None = None) -> None:
        self._tokens = Tokens(words, stop_ids)
        self._backend = backend
        self._table: Any = None
        self._lock = threading.Lock()
        self._grammars = Kept()

    def grammar(self, constraint: Constraint) -> Grammar:
        """Compiled at the first call, kept for the next ones."""
        found: Grammar = self._grammars.get(constraint, lambda: self._made(constraint))
        return found

    def _made(self, constraint: Constraint) -> Grammar:
        plan = plan_of(constraint)
        backend = backend_named(self._backend) if plan.rules else None
        return Grammar(plan, backend, self._tokens, self._tabled(backend) if backend else None)

    def _tabled(self, backend: Backend) -> Any:
        with self._lock:
            if self._table is None:
                self._table = backend.table(self._tokens.words)
            return self._table


_VOCABULARIES: WeakKeyDictionary[Any, dict[Any, Vocabulary]] = WeakKeyDictionary()
_VOCABULARIES_LOCK = threading.Lock()


def vocabulary(tokenizer: Any, size: int, stop_ids: Sequence[int], *, backend: str | None = None) -> Vocabulary:
    """The vocabulary of a member's tokenizer. ``size``: how many logits its model has. Made once per tokenizer."""
    key = (size, tuple(sorted(stop_ids)), backend)
    with _VOCABULARIES_LOCK:
        try:
            found = _VOCABULARIES.setdefault(tokenizer, {})
        except TypeError:  # it cannot be remembered
            found = {}
        if key not in found:
            found[key] = Vocabulary(words_of(tokenizer, size, stop_ids), stop_ids, backend)
        return found[key]
