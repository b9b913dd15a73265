"""What an evaluation compares: each member alone, the ensemble, and the ensemble with something
changed, by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..core.options import Method, Settings, parsed
from ..errors import UsageError, advised
from .baselines import BASELINES
from .tasks import digest

LIMITS = {"timeout", "member_timeout", "max_concurrency", "max_waiting"}
"""Settings that do not change an answer."""
ENSEMBLE = "ensemble"
ORACLE = "oracle"
"""The best single member for each question, chosen with the grades at hand."""
ROUTER = "router"
"""For each question the member that is best on the other questions of its kind."""
RESERVED = (ENSEMBLE, ORACLE, ROUTER, "singles", *BASELINES)


@dataclass(frozen=True, slots=True)
class System:
    """Something that answers all questions: members and settings."""

    name: str
    members: tuple[str, ...]
    settings: Settings
    prior: Mapping[str, float] | None = None
    """Voting weights to begin with."""
    verifiers: tuple[str, ...] = ()
    baseline: str = ""
    """One of ``BASELINES``, where members answer alone and nothing is agreed."""

    @property
    def alone(self) -> bool:
        """Whether it is one member's own answer."""
        return len(self.members) == 1 and not self.verifiers and self.settings.samples == 1

    def fingerprint(self, identities: Mapping[str, Any]) -> str:
        """Changes with anything that can change an answer. ``identities``: what tells each member
        from another."""
        who = [[identities[name] for name in names] for names in (self.members, self.verifiers)]
        prior = dict(self.prior) if self.prior and not self.alone else None
        settings = self.settings.model_dump(exclude=LIMITS)
        return digest([who, settings, prior, *([self.baseline] if self.baseline else [])])


CHANGED: Mapping[str, str] = {"vote": "lead=none", "lead-alone": "margin=inf"}
"""Systems with a name of their own, and what each changes."""


def singles(members: Sequence[str], settings: Settings) -> list[System]:
    """Each member alone."""
    return [System(name, (name,), settings) for name in members]


def chosen(
    names: Sequence[str], members: Sequence[str], settings: Settings, verifiers: Sequence[str] = ()
) -> list[System]:
    """The systems of these names: ``singles``, ``ensemble``, a member's name, one of ``BASELINES``
    or ``CHANGED``, or ``name:key=value,key=value``.

    >>> [
    ...     s.name
    ...     for s in chosen(
    ...         ["singles", "ensemble", "short:segment_tokens=4"], ["a", "b"], Settings()
    ...     )
    ... ]
    ['a', 'b', 'ensemble', 'short']
    """
    whole = System(ENSEMBLE, tuple(members), settings, verifiers=tuple(verifiers))
    systems = [system for name in names for system in _systems_named(name, whole)]
    if len(members) == 1 and not verifiers and len(systems) > 1:
        # the same as the member alone
        systems = [system for system in systems if system.name != ENSEMBLE]
    found = [system.name for system in systems]
    if taken := next((name for name in (ORACLE, ROUTER) if name in found), None):
        raise advised(
            UsageError(f"no system may be called {taken!r}"), "give that member another name"
        )
    if twice := next((name for name in found if found.count(name) > 1), None):
        raise advised(
            UsageError(f"two systems are called {twice!r}"),
            "give one of them another name: NAME:key=value",
        )
    return systems


def _systems_named(name: str, whole: System) -> list[System]:
    own, colon, changes = name.partition(":")
    if colon and own and changes:
        if own in (*RESERVED, *whole.members):
            raise advised(
                UsageError(f"{own!r} is taken as a system's name"),
                f"another name: my-{own}:{changes}",
            )
        return [changed(whole, own, changes)]
    if name == ENSEMBLE:
        return [whole]
    if name in BASELINES:
        return [replace(whole, name=name, baseline=name)]
    if name == "singles" or name in whole.members:
        return singles(whole.members if name == "singles" else [name], whole.settings)
    if name in CHANGED:
        return [changed(whole, name, CHANGED[name])]
    known = ", ".join(("singles", ENSEMBLE, *whole.members, *BASELINES, *CHANGED))
    advice = f"there are {known}; or NAME:key=value,key=value, for example short:segment_tokens=4"
    raise advised(UsageError(f"there is no system {name!r}"), advice)


# --- changes --------------------------------------------------------------------------------------

SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed")
OTHERS = ("segment_tokens", "max_tokens", "result", "samples")


def changed(whole: System, name: str, changes: str) -> System:
    """The system with changes ``key=value,key=value``: options of the method, ``method``,
    ``segment_tokens``, ``max_tokens``, ``lead`` (a member, ``auto`` or ``none``), ``result`` and
    ``samples`` for whole answers, options of the sampling, and ``members=a+b`` for some of the
    members."""
    try:
        system = replace(whole, name=name)
        # The method first: the others change its options.
        for key, value in sorted(_pairs(changes), key=lambda pair: pair[0] != "method"):
            system = _with(system, key, value)
    except UsageError as error:
        error.add_note(f"   (system {name!r})")
        raise
    known = (*system.members, *system.verifiers)
    if system.settings.lead not in system.members:
        led = None if system.settings.lead is None else "auto"
        system = replace(system, settings=system.settings.model_copy(update={"lead": led}))
    return replace(
        system, prior={one: w for one, w in (whole.prior or {}).items() if one in known} or None
    )


def _pairs(changes: str) -> Iterator[tuple[str, str]]:
    for pair in changes.split(","):
        key, equals, value = pair.partition("=")
        if not equals or not value.strip():
            raise advised(
                UsageError(f"{pair!r} is not key=value"),
                "for example short:segment_tokens=4,exit=never",
            )
        yield key.strip().replace("-", "_"), value.strip()


def _with(system: System, key: str, value: str) -> System:
    settings, method = system.settings, system.settings.method
    if key == "members":
        members = tuple(value.split("+"))
        if missing := next((one for one in members if one not in system.members), None):
            raise advised(
                UsageError(f"there is no member {missing!r}"),
                f"members are {', '.join(system.members)}",
            )
        return replace(system, members=members, verifiers=())
    if key == "method":
        settings = settings.model_copy(update={"method": Method.named(value)})
    elif key in Method.model_fields:
        changes = {**dict(method), key: parsed(Method, key, value)}
        settings = settings.model_copy(update={"method": Method(**changes)})
    elif key in SAMPLING:
        settings = settings.model_copy(update={key: parsed(Settings, key, value)})
    elif key == "lead":
        if value not in ("auto", "none", *system.members):
            error = UsageError(f"there is no member {value!r}")
            raise advised(error, f"lead is auto, none or one of {', '.join(system.members)}")
        settings = settings.model_copy(update={"lead": None if value == "none" else value})
    elif key in OTHERS:
        changes = {key: parsed(Settings, key, value)}
        if key == "result":
            changes["segment"] = "answer"
        settings = settings.model_copy(update=changes)
    else:
        known = ("method", "members", "lead", *OTHERS, *Method.model_fields, *SAMPLING)
        raise advised(
            UsageError(f"there is no option {key!r}"), f"the options are {', '.join(known)}"
        )
    return replace(system, settings=settings)
