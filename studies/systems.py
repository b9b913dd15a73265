"""What a study compares: each member alone, the ensemble, and the ensemble with something changed,
by name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from langchain_specfuse.core.options import Method, Settings, parsed
from langchain_specfuse.errors import UsageError, advised
from langchain_specfuse.evaluation import System
from langchain_specfuse.evaluation.running import ENSEMBLE

SUREST = "surest"
"""Members answer alone, and the answer to which its author gives the highest probability per token
is taken."""
CHANGED = {"vote": "lead=none", "lead-alone": "margin=inf"}
"""Systems with a name of their own, and what each changes."""
OPTIONS = (
    *("method", "lead", "segment_tokens", "max_tokens", "result", "samples"),
    *("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed"),
)
"""What ``NAME:key=value`` may change, besides the members and the options of the method."""


def chosen(
    names: Sequence[str], members: Sequence[str], settings: Settings, verifiers: Sequence[str] = ()
) -> list[System]:
    """The systems with these names: ``singles``, ``ensemble``, a member's name, ``surest``,
    one of ``CHANGED``, or ``NAME:key=value,key=value``.

    >>> names = ["singles", "ensemble", "short:segment_tokens=4"]
    >>> [system.name for system in chosen(names, ["a", "b"], Settings())]
    ['a', 'b', 'ensemble', 'short']
    """
    whole = System(ENSEMBLE, tuple(members), settings, verifiers=tuple(verifiers))
    systems: list[System] = []
    for name in names:
        systems += _systems_named(name, whole)
    taken = [system.name for system in systems]
    for name in taken:
        if taken.count(name) > 1:
            raise advised(
                UsageError(f"two systems are called {name!r}"),
                "give one of them another name: NAME:key=value",
            )
    return systems


def _systems_named(name: str, whole: System) -> list[System]:
    own, colon, changes = name.partition(":")
    if colon and own and changes:
        if own in (ENSEMBLE, SUREST, "singles", *whole.members):
            raise advised(
                UsageError(f"{own!r} is taken as a system's name"),
                f"another name: my-{own}:{changes}",
            )
        return [changed(whole, own, changes)]
    if name == "singles":
        return [System(member, (member,), whole.settings) for member in whole.members]
    if name in whole.members:
        return [System(name, (name,), whole.settings)]
    if name in (ENSEMBLE, SUREST):
        return [replace(whole, name=name)]
    if name in CHANGED:
        return [changed(whole, name, CHANGED[name])]
    known = ", ".join(("singles", ENSEMBLE, *whole.members, SUREST, *CHANGED))
    advice = f"there are {known}; or NAME:key=value,key=value, for example short:segment_tokens=4"
    raise advised(UsageError(f"there is no system {name!r}"), advice)


def changed(whole: System, name: str, changes: str) -> System:
    """The system with the changes ``key=value,key=value``: ``OPTIONS``, options of the method, and
    ``members=a+b`` for some of the members."""
    system = replace(whole, name=name)
    try:
        # The method comes first, because the others change its options.
        for key, value in sorted(_pairs(changes), key=lambda pair: pair[0] != "method"):
            system = _with(system, key, value)
    except UsageError as error:
        error.add_note(f"   (system {name!r})")
        raise
    if system.settings.lead in (None, "auto", *system.members):
        return system
    return _updated(system, lead="auto")


def _pairs(changes: str) -> Iterator[tuple[str, str]]:
    for pair in changes.split(","):
        key, equals, value = pair.partition("=")
        if not equals or not value.strip():
            raise advised(
                UsageError(f"{pair!r} is not key=value"),
                "for example short:segment_tokens=4,exit=never",
            )
        yield key.strip().replace("-", "_"), value.strip()


def _with(system: System, key: str, text: str) -> System:
    settings = system.settings
    if key == "members":
        members = tuple(text.split("+"))
        for member in members:
            _check_member(member, system)
        return replace(system, members=members, verifiers=())
    if key in Method.model_fields:
        changes = {**settings.method.changes, key: parsed(Method, key, text)}
        return _updated(system, method=Method(**changes))
    if key not in OPTIONS:
        known = ", ".join(("members", *OPTIONS, *Method.model_fields))
        raise advised(UsageError(f"there is no option {key!r}"), f"the options are {known}")
    value = parsed(Settings, key, text)
    if key == "lead" and value not in (None, "auto"):
        _check_member(text, system)
    if key in ("result", "samples"):
        return _updated(system, segment="answer", **{key: value})
    return _updated(system, **{key: value})


def _updated(system: System, **changes: Any) -> System:
    return replace(system, settings=system.settings.model_copy(update=changes))


def _check_member(name: str, system: System) -> None:
    if name not in system.members:
        raise advised(
            UsageError(f"there is no member {name!r}"),
            f"the members are {', '.join(system.members)}",
        )
