"""How much one door takes: of one client, and of all together. Knows numbers, nothing of HTTP."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from ..errors import UsageError, advised


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of a door. What a client asks beyond them is refused with a reason, never cut in silence.

    >>> Limits(at_once=4).at_once
    4
    """

    at_once: int = 32
    """Answers under way together."""
    waiting: int = 64
    """Questions that wait for a seat; who comes then is told to come again (429)."""
    most_tokens: int = 4096
    """The largest budget that a client may ask for; where none is asked for, the chat model's own is cut to it."""
    most_prompt_tokens: int | None = None
    """The longest conversation, in tokens of the first member that can count it now (in fours of bytes where none can);
    None: as long as a member's context is."""
    most_bytes: int = 2 * 1024 * 1024
    """Of one body."""
    most_shape_bytes: int = 128 * 1024
    """Of all that says what the answer must look like (tools, schemas, patterns), as JSON: compiling it costs more."""
    timeout_s: float = 300.0
    """Of one answer; a question waits for its seat no longer than that either."""
    body_s: float = 30.0
    """In which a body must have arrived."""
    headers_s: float = 15.0
    """In which a connection must have asked something, headers and all; else it is closed."""
    most_lines: int = 1024
    """Connections at once; who comes then is hung up on. These two are kept by ``specfuse serve`` (see lines)."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None and field.default is None:
                continue
            least = 0 if field.name == "waiting" else 1
            kind, wanted = (int | float, "number") if field.name.endswith("_s") else (int, "whole number")
            if isinstance(value, bool) or not isinstance(value, kind) or not least <= value < math.inf:
                error = UsageError(f"{field.name} must be a {wanted} of at least {least}, got {value!r:.80}")
                raise advised(error, "leave it out" if field.default is None else f"{field.default} is the default")
