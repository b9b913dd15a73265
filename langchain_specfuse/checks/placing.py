"""Set where a check runs, what it is called and how long it may take."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from ..core.checks import PLACES, Check, Place, as_check
from ..errors import UsageError, advised, meant


def at(place: Place, check: Any, *, name: str | None = None, timeout: float | None = None) -> Check:
    """Make a check run elsewhere: at every ``segment``, ``sentence``, ``line``, ``block`` (of
    fenced code) or ``call`` (of a tool), or once, at the whole ``answer``.

    >>> at("sentence", lambda text: None, name="tone", timeout=2)
    <check tone at every sentence>

    ``check`` is a function or a check. ``timeout`` is in seconds; the default is 10 for a function,
    and a check keeps its own. At ``answer``, nothing is streamed before the answer is complete.
    """
    if place not in PLACES:
        error = UsageError(f"the place must be one of {', '.join(PLACES)}; got {place!r:.80}")
        raise advised(error, meant(place, PLACES, "for example checks.at('sentence', my_check)"))
    plain = as_check(check)
    if plain.redacts is not None:
        error = UsageError(f"{plain.name} has no place: it redacts all text")
        raise advised(error, "pass it as it is: checks=[checks.redact('email')]")
    changed = replace(plain, at=place)
    if plain.identity:
        changed = replace(changed, identity=f"at({place!r}, {plain.identity})")
    if name is not None:
        changed = replace(changed, name=_name(name))
    if timeout is not None:
        changed = replace(changed, timeout_s=seconds(timeout))
    return changed


def _name(name: Any) -> str:
    if not isinstance(name, str) or not name.strip():
        error = UsageError(f"the name of a check must be a text, got {name!r:.80}")
        raise advised(error, "name it as messages should show it: name='no promises'")
    return name


def seconds(timeout: Any) -> float:
    """Check a time limit and return it as a number of seconds."""
    is_number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if not is_number or not (math.isfinite(timeout) and timeout > 0):
        error = UsageError(f"timeout must be a number of seconds above 0, got {timeout!r:.80}")
        raise advised(error, "for example timeout=10")
    return float(timeout)
