"""The user's checks: what they are, and which part of a growing answer each of them judges.

A check is a function of the answer so far. It returns None, or the reason why it refuses the text,
perhaps with the place of what is at fault. No text is shown before every check that concerns it has
passed it. The loop never calls a check itself: it yields a :class:`CheckAsk` and is sent the
verdicts (see ``engine.checker``).

Paper: it has no such checks. Its members verify drafts by likelihood, which measures what is
familiar, not what is true or allowed.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, Protocol, TypeAlias

from ..errors import UsageError, advised
from .answer import is_safe, joined, word_start
from .sentences import units
from .values import ToolCall

Place: TypeAlias = Literal["segment", "sentence", "line", "block", "answer", "call"]
PLACES: tuple[Place, ...] = ("segment", "sentence", "line", "block", "answer", "call")
_FACTORIES = f"{__package__.partition('.')[0]}.checks."
"""The beginning of the names of the modules that make ready-made checks."""
TIMEOUT_S = 10.0
"""The default time limit of a check."""


@dataclass(frozen=True, slots=True)
class CheckContext:
    """What a check can use besides the text.

    It is passed to checks whose second positional parameter is required.
    """

    messages: Sequence[Any]
    """The conversation, as LangChain messages. They are the caller's: do not change them."""
    draft: str
    """The new part at the end of the text: the draft, after text that was held back, if any."""
    author: str
    """The member that wrote the draft."""
    ended: bool
    """Whether the answer ends with this text."""
    tool_calls: Sequence[Any] = ()
    """The complete tool calls so far, each a dict with ``name`` and ``args``."""
    config: Any = None
    """The ``RunnableConfig`` of the call: its metadata, tags and callbacks."""
    memory: dict[Any, Any] = field(default_factory=dict)
    """What checks want to remember within this answer."""


class Redaction(Protocol):
    """What is replaced in the text, whichever member writes it."""

    @property
    def with_(self) -> str:
        """What it is replaced by."""

    def found(self, text: str, start: int) -> tuple[list[tuple[int, int]], int]:
        """The places of the matches that end after ``start``, and the place from which on the text
        may be the beginning of another one; if there is none, the text's length."""


@dataclass(frozen=True, slots=True)
class Check:
    """A function that judges text, its name, and where it runs."""

    function: Any
    """A function, a coroutine function, a ``Runnable`` or an object with ``__call__``."""
    name: str
    at: Place = "segment"
    timeout_s: float = TIMEOUT_S
    judges_reasoning: bool = True
    """Whether it also judges reasoning that is shown."""
    judges_calls: bool = True
    """At ``answer``: whether it also judges a turn that ends in tool calls, which is not the final
    answer."""
    takes_context: bool = False
    """Whether the function is passed the :class:`CheckContext` although it does not require it."""
    identity: str = ""
    """A text that is equal for equal checks in every process, if there is one."""
    pending: Callable[[str], int] | None = field(default=None, compare=False)
    """The place from which on a text may be the beginning of something at fault; the length of the
    text if there is none. Text from there on is held back until more text decides."""
    literal: str = field(default="", compare=False)
    """The only text that it refuses. If this is an address or a long number, other spellings of it
    are refused, too."""
    private: bool = False
    """The text that it refuses is never sent to a model, nor written into reasons and errors."""
    redacts: Any = None
    """A ``Redaction``: what is replaced, instead of a text that is refused. Then the function
    is not called."""

    def __repr__(self) -> str:
        return f"<check {self.name} at every {self.at}>"


@dataclass(frozen=True, slots=True)
class Finding:
    """A reason to refuse a text, and which of its characters are at fault."""

    reason: str
    start: int
    end: int


def fault(reason: str, start: int, end: int) -> Finding:
    """A reason to refuse a text, for a check that knows which characters are at fault: those from
    ``start`` up to ``end``.

    >>> def no_year(text):
    ...     place = text.find("1984")
    ...     return None if place < 0 else fault("names the year", place, place + 4)
    >>> no_year("It was 1984.")
    Finding(reason='names the year', start=7, end=11)

    The answer is cut before all of them. If they are data, such as an address or a number, the same
    data in another spelling is refused, too.
    """
    if not (isinstance(reason, str) and reason):
        error = UsageError(f"the reason of a fault must be a text, got {reason!r:.80}")
        raise advised(error, "for example checks.fault('names an address', start, end)")
    if not 0 <= start < end:
        error = UsageError(f"a fault has at least one character, got {start!r} to {end!r}")
        raise advised(error, "pass the first character's place, and the place after the last one")
    return Finding(reason, start, end)


def as_checks(given: Any) -> list[Check]:
    """Read a list of functions and :class:`Check` objects. Names that occur more than once are
    numbered.

    >>> [check.name for check in as_checks([len, lambda text: None, lambda text: "no"])]
    ['len', 'lambda 1', 'lambda 2']
    """
    if given is None:
        return []
    if not isinstance(given, list | tuple):
        error = UsageError(f"checks must be a list of functions, got {type(given).__name__}")
        raise advised(error, "put it in a list: checks=[my_check]")
    checks = [as_check(value) for value in given]
    times = Counter(check.name for check in checks)
    numbers: Counter[str] = Counter()
    unique = []
    for check in checks:
        if times[check.name] > 1:
            numbers[check.name] += 1
            check = replace(check, name=f"{check.name} {numbers[check.name]}")
        unique.append(check)
    return unique


def as_check(given: Any) -> Check:
    """Turn a function into a check that runs at every segment. A check is returned as it is."""
    if isinstance(given, Check):
        return given
    module, function = getattr(given, "__module__", ""), getattr(given, "__qualname__", "")
    if str(module).startswith(_FACTORIES) and str(function).isidentifier():
        name = f"checks.{function}"
        error = UsageError(f"checks must be checks, got the function {name}, which makes one")
        raise advised(error, f"call it: {name}(...)")
    if isinstance(given, type) or not (callable(given) or hasattr(given, "invoke")):
        error = UsageError(f"checks must be functions, got {type(given).__name__}")
        advice = "it takes the text so far, and returns None or the reason to refuse it"
        raise advised(error, advice)
    return Check(given, _name_of(given))


def _name_of(function: Any) -> str:
    if isinstance(function, partial):
        return _name_of(function.func)
    name = getattr(function, "__name__", None)
    if not isinstance(name, str):
        name = getattr(function, "name", None) or type(function).__name__
    return "lambda" if name == "<lambda>" else str(name)


def is_coroutine_function(function: Any) -> bool:
    """Whether this function, or the ``__call__`` of this object, is a coroutine function."""
    method = type(function).__call__
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(method)


@dataclass(frozen=True, slots=True)
class CheckJob:
    """A question to a check: does this text pass?"""

    check: Check
    text: str
    """The answer so far, up to a place where this check runs."""
    draft: str
    """The new part at the end of the text."""
    author: str
    ended: bool
    """Whether the answer ends with this text."""
    calls: tuple[ToolCall, ...] = ()
    """The complete tool calls so far."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The reply to a :class:`CheckJob`."""

    reason: str | None = None
    """Why the check refuses the text; None if the text passes."""
    is_broken: bool = False
    """The check itself failed: it raised, took too long or returned anything other than None or a
    reason. ``reason`` says what happened."""
    span: tuple[int, int] | None = None
    """Which characters of the text are at fault, if the check has said so."""
    cause: BaseException | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class CheckAsk:
    """The loop's next questions to checks. It expects one verdict per job, in order."""

    jobs: tuple[CheckJob, ...]


Verdicts: TypeAlias = Sequence[Verdict]


# --- where a check runs ---------------------------------------------------------------------------

_LINE = re.compile("\n")
_FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})[^\n]*$", re.MULTILINE)


def places_in(at: Place, text: str, complete: bool, start: int = 0) -> tuple[list[int], int]:
    """Find the places in this text where a check runs, and how much of the text may be shown once
    all of them pass. The rest is held back, because it belongs to a unit that may still go on.

    ``complete`` says that no more text follows. The text up to ``start`` has passed; places in it
    may be left out. ``answer`` and ``call`` do not depend on the text.

    >>> places_in("segment", "The sky is bl", False), places_in("segment", "It is 19", True)
    (([10], 10), ([8], 8))
    >>> places_in("sentence", "One. Two is 2.5", False)
    ([4], 4)
    >>> places_in("line", "a\\nb", False)
    ([2], 2)
    >>> places_in("block", "So:\\n```\\nx = 1\\n", False)
    ([], 4)
    """
    passed = start
    if at == "segment":
        places = [len(text) if complete else _last_seam(text)]
    elif at == "sentence":
        places = units(text, start)
    elif at == "line":
        places = [match.end() for match in _LINE.finditer(text, start)]
    else:
        return _blocks_in(text, complete)
    places = [place for place in places if place > 0]
    if complete and (not places or places[-1] < len(text)):
        places.append(len(text))
    return places, places[-1] if places else passed


def _last_seam(text: str) -> int:
    """The last place where a word has certainly ended. A word or a number at the end of a text may
    still go on."""
    return word_start(text, len(text))


def _blocks_in(text: str, complete: bool) -> tuple[list[int], int]:
    """Find the ends of the fenced code blocks, and the start of a block that is open or may be
    beginning."""
    ends: list[int] = []
    opened: re.Match[str] | None = None
    for fence in _FENCE.finditer(text):
        is_whole_line = fence.end() < len(text) or complete
        if opened is None:
            opened = fence
        elif _closes(fence, opened) and is_whole_line:
            ends.append(fence.end())
            opened = None
    if opened is not None:
        if complete:
            ends.append(len(text))
            return ends, len(text)
        return ends, opened.start()
    if complete:
        return ends, len(text)
    begun = re.search(r"(?:^|\n)([ \t]*(?:`{1,2}|~{1,2})?)\Z", text)
    return ends, begun.start(1) if begun else len(text)


def _closes(fence: re.Match[str], opened: re.Match[str]) -> bool:
    mark = fence[1]
    same = mark[0] == opened[1][0] and len(mark) >= len(opened[1])
    return same and fence[0].strip() == mark


def beginnings(text: str, ends: Sequence[int] | None) -> Iterator[int]:
    """Yield the places where a draft can be cut to find its fault: the ends of its words and of the
    punctuation marks between them. ``ends`` are the ends of its tokens, if they are known.

    >>> list(beginnings(" the guarantee, so", [4, 9, 14, 15, 18]))
    [4, 14, 15, 18]
    >>> list(beginnings("at 8:30.", None))
    [2, 7, 8]

    A space belongs to the word after it, because many tokenizers join the two.
    """
    places = range(1, len(text) + 1) if ends is None else dict.fromkeys(ends)
    for at in places:
        if not 0 < at <= len(text):
            continue
        if at == len(text) or is_safe(text, at):
            yield at
            continue
        left, right = text[at - 1], text[at]
        is_space = left.isspace() and left not in "\r\n"
        if is_space or joined(left, right) or (left.isalnum() and right.isalnum()):
            continue
        if not _is_inside_number(text, at):
            yield at


def _is_inside_number(text: str, at: int) -> bool:
    """Whether this place is beside a mark between two digits, as in 8:30, 2.5 and 2024-03-05."""
    for mark in (at - 1, at):
        around = text[max(mark - 1, 0) : mark + 2]
        if text[mark] in ".,:/-" and len(around) == 3 and around[::2].isdigit():
            return True
    return False
