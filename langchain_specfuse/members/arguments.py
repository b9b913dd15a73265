"""Checks the arguments of members against the annotations of their ``__init__``."""

from __future__ import annotations

import collections.abc
import inspect
import os
import types
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Annotated, Any, Literal, ParamSpec, Union, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, ValidationError, validate_call

from ..errors import UsageError, advised, meant
from ..secret_values import is_secret

_P = ParamSpec("_P")
_PLAIN = (str, bool, int, float, type(None))
_NAMES: Mapping[Any, str] = {
    int: "a whole number",
    float: "a number",
    str: "a string",
    bool: "True or False",
    type(None): "None",
    os.PathLike: "a path",
    collections.abc.Mapping: "a dict",
    collections.abc.Sequence: "a list",
    collections.abc.Callable: "a function",
    BaseException: "an exception",
}
_COUNTS: Mapping[int, str] = {2: "two", 3: "three"}
_BOUNDS: Mapping[str, str] = {"ge": "of at least", "gt": "above", "le": "of at most", "lt": "below"}


def checked(
    *, removed: Mapping[str, str] | None = None
) -> Callable[[Callable[_P, None]], Callable[_P, None]]:
    """Decorate an ``__init__`` so that it raises :class:`.UsageError` for wrong arguments.

    Values are checked strictly: ``"8"`` and ``True`` are not whole numbers. ``removed`` holds the
    names of arguments that earlier versions had, and what to do instead.

    >>> class Example:
    ...     @checked(removed={"threads": "set OMP_NUM_THREADS"})
    ...     def __init__(self, *, size: int | Literal["auto"] = "auto") -> None:
    ...         self.size = size
    >>> Example(size="big")
    Traceback (most recent call last):
    langchain_specfuse.errors.UsageError: size must be a whole number or 'auto', got 'big'
    >>> Example(threads=2)
    Traceback (most recent call last):
    langchain_specfuse.errors.UsageError: Example has no argument 'threads'
    -> set OMP_NUM_THREADS
    """

    def decorate(init: Callable[_P, None]) -> Callable[_P, None]:
        @wraps(init)
        def arguments(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
            return args, kwargs

        # The body of ``init`` runs outside, because it may raise validation errors of its own.
        validated = validate_call(config=_CONFIG)(arguments)

        @wraps(init)
        def checked_init(*args: _P.args, **kwargs: _P.kwargs) -> None:
            try:
                args, kwargs = validated(*args, **kwargs)
            except ValidationError as error:
                given = _by_name(init, args, kwargs)
                raise _refusal(error, init, given, removed or {}) from None
            init(*args, **kwargs)

        return checked_init

    return decorate


_CONFIG = ConfigDict(strict=True, arbitrary_types_allowed=True, hide_input_in_errors=True)


def _refusal(
    error: ValidationError,
    init: Callable[..., None],
    given: Mapping[str, Any],
    removed: Mapping[str, str],
) -> UsageError:
    """The first mistake as an error that says what was given and what is expected."""
    owner = init.__qualname__.split(".")[-2]
    _, *names = inspect.signature(init).parameters
    mistakes = error.errors()
    for mistake in mistakes:
        if mistake["type"] == "unexpected_keyword_argument":
            return _unknown(str(mistake["loc"][0]), owner, names, removed)
    place, kind = mistakes[0]["loc"][0], mistakes[0]["type"]
    if kind == "unexpected_positional_argument":
        wrong = UsageError(f"{owner} was given too many arguments without a name")
        return advised(wrong, f"write their names: {', '.join(f'{name}=' for name in names)}")
    # Arguments that were given by their place are reported by their place, after ``self``.
    name = place if isinstance(place, str) else names[place - 1]
    if kind == "missing_argument":
        return advised(UsageError(f"{owner} needs the argument {name!r}"), f"{owner}({name}=...)")
    if kind == "multiple_argument_values":
        return UsageError(f"{owner} was given the argument {name!r} twice")
    annotation = get_type_hints(init, include_extras=True)[name]
    value = _shown(name, given.get(name))
    refused = UsageError(f"{name} must be {expected(annotation)}, got {value}")
    description = _description(annotation)
    return advised(refused, description) if description else refused


def _by_name(
    init: Callable[..., None], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    names = inspect.signature(init).parameters
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _unknown(name: str, owner: str, names: list[str], removed: Mapping[str, str]) -> UsageError:
    error = UsageError(f"{owner} has no argument {name!r}")
    otherwise = f"its arguments are {', '.join(names)}"
    return advised(error, removed.get(name) or meant(name, names, otherwise))


def expected(annotation: Any) -> str:
    """What an annotation allows, in words.

    >>> from pydantic import Field
    >>> expected(Annotated[int, Field(ge=1)] | Literal["auto"] | None)
    "a whole number of at least 1, 'auto' or None"
    """
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _bounded(inner[0], _bounds(annotation))
    if origin is Literal:
        return _listed([repr(value) for value in inner])
    if origin in (Union, types.UnionType):
        return _listed([expected(one) for one in inner])
    kind = origin or annotation
    return _NAMES.get(kind) or f"a {getattr(kind, '__name__', kind)}"


def _bounded(annotation: Any, bounds: Mapping[str, Any]) -> str:
    count = bounds.get("min_length")
    if count is not None and count == bounds.get("max_length"):
        (item,) = get_args(annotation)
        words = expected(item).removeprefix("a ").replace("number", "numbers")
        return f"{_COUNTS.get(count, count)} {words}"
    found = [f"{words} {bounds[key]:g}" for key, words in _BOUNDS.items() if key in bounds]
    return " ".join([expected(annotation), " and ".join(found)]).strip()


def _bounds(annotation: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in annotation.__metadata__:
        for bound in getattr(field, "metadata", ()):
            keys = (*_BOUNDS, "min_length", "max_length")
            found |= {key: getattr(bound, key) for key in keys if hasattr(bound, key)}
    return found


def _description(annotation: Any) -> str | None:
    """The description of a field in the annotation, also where it may be None."""
    for field in getattr(annotation, "__metadata__", ()):
        if text := getattr(field, "description", None):
            return str(text)
    if get_origin(annotation) not in (Union, types.UnionType):
        return None
    return next(filter(None, map(_description, get_args(annotation))), None)


def _listed(words: list[str]) -> str:
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _shown(name: str, value: Any) -> str:
    """A value for a message: only plain values, because others may hold secrets."""
    plain = isinstance(value, _PLAIN)
    if isinstance(value, list | tuple):
        plain = all(isinstance(one, _PLAIN) for one in value)
    if is_secret(name) or not plain:
        return f"a value of type {type(value).__name__}"
    return f"{value!r:.80}"
