"""What an answer may look like, between plain constraints and the libraries: rules, and what a library does with them.

A library is asked two things only. A matcher says byte by byte what may come; it knows no tokenizer. A masker says the
same of one tokenizer's tokens, all at once. Everything else (unions, calls in prose, closing, forced text) is built on
these two, so that another library is one more small file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from ..core.values import CallFormat

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Mask: TypeAlias = "NDArray[np.int32]"
"""One bit per token, 32 to a word, the lowest first."""


@dataclass(frozen=True)
class Json:
    """A value of this schema, which is already plain (see ``_schema``)."""

    schema: Any


@dataclass(frozen=True)
class Pattern:
    """A text that this regular expression matches from its beginning to its end."""

    pattern: str


@dataclass(frozen=True)
class Choice:
    """One of these texts."""

    texts: tuple[str, ...]


@dataclass(frozen=True)
class Ebnf:
    """A text of this grammar."""

    text: str


@dataclass(frozen=True)
class Calls:
    """Calls of these tools, each with the plain schema of its arguments."""

    format: CallFormat
    tools: tuple[tuple[str, Any], ...]
    parallel: bool


Rules = Json | Pattern | Choice | Ebnf | Calls


class Matcher(Protocol):
    """Where one text stands."""

    def fork(self) -> Matcher: ...

    def fits(self, data: bytes) -> int:
        """How many of these bytes may follow. Does not move."""

    def eat(self, data: bytes) -> int:
        """Moves over the longest legal beginning; its length."""

    def forced(self) -> bytes:
        """What must follow, as far as the library tells; never more."""

    def whole(self) -> bool:
        """Whether the text may end here."""

    def follows(self) -> bytes:
        """Every byte that may come next."""


class Masker(Protocol):
    """Where one text stands, for one vocabulary."""

    def fork(self) -> Masker: ...

    def move(self, data: bytes) -> None:
        """Over bytes that the matcher has found legal."""

    def mask(self) -> Mask:
        """The tokens that may come next; those that end a turn are never among them."""


class Backend(Protocol):
    """One library."""

    name: str

    def matcher(self, rules: Rules) -> Matcher:
        """At the beginning of a text. Compiling is done here; raises ``ValueError`` with the library's own words."""

    def table(self, words: Sequence[bytes]) -> Any:
        """A vocabulary, prepared: seconds, once."""

    def masker(self, rules: Rules, table: Any) -> Masker:
        """At the beginning of a text."""
