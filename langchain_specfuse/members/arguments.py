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

from ..core.options import refusal
from ..errors import UsageError, advised, meant

_P = ParamSpec("_P")
_CONFIG = ConfigDict(strict=True, arbitrary_types_allowed=True, hide_input_in_errors=True)


def checked(
    *, elsewhere: Mapping[str, str] | None = None
) -> Callable[[Callable[_P, None]], Callable[_P, None]]:
    """Decorate an ``__init__`` so that it raises :class:`.UsageError` for wrong arguments.

    Values are checked strictly: ``"8"`` and ``True`` are not whole numbers. The description of a
    ``pydantic.Field`` in an annotation becomes the error's advice. ``elsewhere`` holds the names
    that other libraries have for arguments, and what to do instead.

    >>> class Example:
    ...     @checked(elsewhere={"threads": "set OMP_NUM_THREADS"})
    ...     def __init__(self, *, size: int = 1) -> None:
    ...         self.size = size
    >>> Example(size="big")
    Traceback (most recent call last):
    langchain_specfuse.errors.UsageError: size must be a whole number, got 'big'
    -> size: see help(Example)
    >>> Example(threads=2)
    Traceback (most recent call last):
    langchain_specfuse.errors.UsageError: Example has no argument 'threads'
    -> set OMP_NUM_THREADS
    """

    def decorate(init: Callable[_P, None]) -> Callable[_P, None]:
        signature = inspect.signature(init)
        _, *names = signature.parameters
        owner = init.__qualname__.split(".")[-2]
        call: Callable[..., None] = init

        @wraps(init)
        def arguments(**values: Any) -> dict[str, Any]:
            return values

        # The body of ``init`` runs outside, because it may raise validation errors of its own.
        validated = validate_call(config=_CONFIG)(arguments)

        @wraps(init)
        def checked_init(*args: _P.args, **kwargs: _P.kwargs) -> None:
            for name in kwargs:
                if name not in names:
                    raise _unknown(name, names, owner, elsewhere or {})
            try:
                bound = signature.bind(*args, **kwargs).arguments
            except TypeError as error:
                wrong = UsageError(f"{owner}: {error}")
                raise advised(wrong, f"its arguments are {', '.join(names)}") from None
            try:
                values = validated(**bound)
            except ValidationError as error:
                raise _refusal(error, init, owner) from None
            call(**values)

        _show_plainly(checked_init, init)
        return checked_init

    return decorate


def _show_plainly(wrapper: Any, init: Callable[..., None]) -> None:
    """Let ``help()`` and the docs show the annotations without pydantic's fields."""
    hints = get_type_hints(init)
    signature = inspect.signature(init)
    parameters = [
        parameter.replace(annotation=hints.get(name, parameter.annotation))
        for name, parameter in signature.parameters.items()
    ]
    wrapper.__annotations__ = hints
    wrapper.__signature__ = signature.replace(parameters=parameters)


def _unknown(name: str, names: list[str], owner: str, elsewhere: Mapping[str, str]) -> UsageError:
    error = UsageError(f"{owner} has no argument {name!r}")
    if name in elsewhere:
        return advised(error, elsewhere[name])
    return advised(error, meant(name, names, f"its arguments are {', '.join(names)}"))


def _refusal(error: ValidationError, init: Callable[..., None], owner: str) -> UsageError:
    hints = get_type_hints(init, include_extras=True)
    notes = {name: _description(hint) or f"see help({owner})" for name, hint in hints.items()}
    return refusal(error, notes, expected={name: words(hint) for name, hint in hints.items()})


def _description(annotation: Any) -> str:
    """The description of a field in an annotation, also where the value may be None."""
    for field in getattr(annotation, "__metadata__", ()):
        description = getattr(field, "description", None)
        if description:
            return str(description)
    for alternative in get_args(annotation):
        if hasattr(alternative, "__metadata__"):
            return _description(alternative)
    return ""


# --- annotations in words -------------------------------------------------------------------------

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
_BOUNDS: Mapping[str, str] = {"ge": "of at least", "gt": "above", "le": "of at most", "lt": "below"}
_COUNTS: Mapping[int, str] = {2: "two", 3: "three"}


def words(annotation: Any) -> str:
    """What an annotation allows, in words.

    >>> from pydantic import Field
    >>> words(Annotated[int, Field(ge=1)] | Literal["auto"] | None)
    "a whole number of at least 1, 'auto' or None"
    """
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _bounded(inner[0], _bounds(annotation))
    if origin is Literal:
        return _listed([repr(value) for value in inner])
    if origin in (Union, types.UnionType):
        return _listed([words(alternative) for alternative in inner])
    if origin is collections.abc.Mapping and inner[1] is not Any:
        return f"a dict of {_plural(words(inner[1]))}"
    kind = origin or annotation
    return _NAMES.get(kind) or f"a {getattr(kind, '__name__', kind)}"


def _bounded(annotation: Any, bounds: Mapping[str, Any]) -> str:
    count = bounds.get("min_length")
    if count is not None and count == bounds.get("max_length"):
        (item,) = get_args(annotation)
        return f"{_COUNTS.get(count, count)} {_plural(words(item))}"
    limits = [f"{phrase} {bounds[key]:g}" for key, phrase in _BOUNDS.items() if key in bounds]
    return " ".join([words(annotation), " and ".join(limits)]).strip()


def _bounds(annotation: Any) -> dict[str, Any]:
    """The bounds of the fields in an annotation, as ``ge=1``."""
    bounds: dict[str, Any] = {}
    for field in annotation.__metadata__:
        for bound in getattr(field, "metadata", ()):
            for key in (*_BOUNDS, "min_length", "max_length"):
                if hasattr(bound, key):
                    bounds[key] = getattr(bound, key)
    return bounds


def _plural(phrase: str) -> str:
    return phrase.removeprefix("a ").replace("number", "numbers")


def _listed(alternatives: list[str]) -> str:
    *others, last = alternatives
    return f"{', '.join(others)} or {last}" if others else last
