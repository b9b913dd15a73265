"""``--check``: ready-made checks with their arguments, and functions of the user's own."""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import checks
from ..core.checks import Check, as_check
from ..errors import UsageError, advised, meant
from ..user_code import add_to_path, named_in_file

HELP = (
    "a check that every text must pass before it is shown: forbids:PATTERN, redact:PATTERN "
    "(replaces what matches), requires:PATTERN, max_words:N, max_sentences:N, lowercase, grounded, "
    "python, json_schema:FILE, or a function of your own: FILE.py:FUNCTION or MODULE:FUNCTION "
    "(repeatable)"
)
EXAMPLE = "for example --check forbids:guarantee or --check rules.py:my_check"


def add_check(group: Any) -> None:
    """The flag ``--check``."""
    group.add_argument("--check", action="append", metavar="CHECK", dest="checks", help=HELP)


def checks_of(texts: Sequence[str]) -> list[Check]:
    """The checks that these arguments name.

    >>> checks_of(["max_words:80", "lowercase"])
    [<check max_words(80) at every segment>, <check lowercase at every segment>]
    """
    return [_check(text) for text in texts]


def _check(text: str) -> Check:
    name, colon, argument = text.partition(":")
    if name in READY:
        return _ready(name, argument if colon else None)
    path, _, attribute = text.rpartition(":")
    if path.endswith(".py"):
        return _own(path, attribute, named_in_file(path, attribute, "check")[0])
    if colon and all(part.isidentifier() for part in name.split(".")) and argument.isidentifier():
        return _own(name, argument, _imported(name, argument, text))
    if text.endswith(".py"):
        error = UsageError(f"--check {text}: no function of this file is named")
        raise advised(error, f"--check {text}:FUNCTION")
    raise _unknown(text, f"there is no check {name!r}")


def _unknown(text: str, why: str) -> UsageError:
    """The error for an argument that names no check."""
    known = f"there are {', '.join(READY)}, FILE.py:FUNCTION and MODULE:FUNCTION"
    error = UsageError(f"--check {text}: {why}")
    return advised(error, meant(text.partition(":")[0], READY, known))


# --- ready-made checks ----------------------------------------------------------------------------


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"must be a whole number, got {text!r}") from None


def _schema(path: str) -> Any:
    try:
        return json.loads(Path(path).read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error


READY: Mapping[str, tuple[str, Callable[[str], Any]] | None] = {
    "forbids": ("PATTERN", str),
    "redact": ("PATTERN", str),
    "requires": ("PATTERN", str),
    "max_words": ("N", _number),
    "max_sentences": ("N", _number),
    "lowercase": None,
    "grounded": None,
    "python": None,
    "json_schema": ("FILE", _schema),
}
"""Function of :mod:`langchain_specfuse.checks` -> its argument, and how it is read."""


def _ready(name: str, argument: str | None) -> Check:
    """The ready-made check of this name."""
    takes = READY[name]
    factory = getattr(checks, name)
    if takes is None:
        if argument is not None:
            error = UsageError(f"--check {name} takes no argument, got {argument!r}")
            raise advised(error, f"--check {name}")
        return as_check(factory())
    metavar, read = takes
    if not argument:
        error = UsageError(f"--check {name} needs an argument")
        raise advised(error, f"--check {name}:{metavar}")
    try:
        return as_check(factory(read(argument)))
    except UsageError as error:
        about_flag = advised(UsageError(f"--check {name}:{argument}: {error.message}"), EXAMPLE)
        raise about_flag from error


# --- functions of the user's own ------------------------------------------------------------------


def _imported(module: str, attribute: str, text: str) -> Any:
    """Import the attribute of an installed module, or of one in the current folder."""
    add_to_path(Path.cwd())
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise _unknown(text, f"{module} cannot be imported: {error}") from error
        raise _unknown(text, f"there is no check or module {module!r}") from error
    except Exception as error:
        why = f"{module} cannot be imported: {type(error).__name__}: {error}"
        raise _unknown(text, why) from error
    if not hasattr(found, attribute):
        wrong = UsageError(f"--check {text}: {module} has no function {attribute!r}")
        raise advised(wrong, "MODULE:FUNCTION names a function of the module")
    return getattr(found, attribute)


def _own(place: str, name: str, function: Any) -> Check:
    """Turn the user's function into a check. It may be a check already, made by ``checks.at`` or
    another factory."""
    try:
        check = as_check(function)
    except UsageError as error:
        raise _wrong_function(f"{place}:{name}", error.message) from error
    if not _takes_text(check.function):
        raise _wrong_function(f"{place}:{name}", f"{name} cannot be called with a text")
    return check


def _takes_text(function: Any) -> bool:
    """Whether this can be called with a text, or with a text and a context."""
    if hasattr(function, "invoke"):
        return True
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a builtin may have none
        return True
    for arguments in (("",), ("", None)):
        try:
            signature.bind(*arguments)
        except TypeError:
            continue
        return True
    return False


def _wrong_function(name: str, why: str) -> UsageError:
    error = UsageError(f"--check {name}: {why}")
    advice = "a check takes the text so far, and returns None or the reason to refuse it"
    return advised(error, advice)
