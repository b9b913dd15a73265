"""What is compared: each member alone, the ensemble, and the ensemble with something changed, by name.

Knows settings and members' names; asks nobody anything.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any, get_args

from ..core.values import PRESETS, ExitKind, FeedbackKind, RewardKind, Sampling, ScoreKind, Settings, VoiceKind
from ..errors import UsageError, advised
from .tasks import digest

ENSEMBLE = "ensemble"
ORACLE = "oracle"
"""The best single member, chosen anew for each question by somebody who knows the grades."""
TAKEN = (ENSEMBLE, ORACLE, "singles", "ablations")
"""What these words mean is fixed."""


@dataclass(frozen=True, slots=True)
class System:
    """One thing that answers all questions."""

    name: str
    members: tuple[str, ...]
    settings: Settings
    prior: Mapping[str, float] | None = None
    """Voting weights to begin with."""
    verifiers: tuple[str, ...] = ()

    @property
    def alone(self) -> bool:
        return len(self.members) == 1 and not self.verifiers

    def fingerprint(self, identities: Mapping[str, Any]) -> str:
        """Changes with anything that can change an answer. ``identities`` tells what each member is."""
        who = [[identities[name] for name in names] for names in (self.members, self.verifiers)]
        told = {field.name: getattr(self.settings, field.name) for field in fields(Settings)}
        told["sampling"] = {field.name: getattr(self.settings.sampling, field.name) for field in fields(Sampling)}
        return digest([who, told, dict(self.prior) if self.prior and not self.alone else None])


def singles(members: Sequence[str], settings: Settings) -> list[System]:
    """Each member alone: the loop guard never touches it, and nobody can leave."""
    return [System(name, (name,), settings) for name in members]


ABLATIONS: Mapping[str, str] = MappingProxyType(
    {
        "no-feedback": "feedback=off",
        "anytime-feedback": "feedback=anytime",
        "no-exit": "exit=never",
        "no-loop-guard": "loop_guard=false",
        "no-umpire": "umpire=false",
        "mean-prob": "score=mean_prob",
        "per-byte": "score=logprob_per_byte",
        "drafters-1": "drafters=1",
        "segment-4": "segment_tokens=4",
        "segment-8": "segment_tokens=8",
        "segment-16": "segment_tokens=16",
        "segment-32": "segment_tokens=32",
        **{f"preset-{name}": f"preset={name}" for name in PRESETS if name != "robust"},
    }
)
"""What ``--systems ablations`` compares with the ensemble as it is."""


def chosen(
    names: Sequence[str], members: Sequence[str], settings: Settings, verifiers: Sequence[str] = (), prior: Any = None
) -> list[System]:
    """The systems that these names mean: ``singles``, ``ensemble``, ``ablations``, one of them, a member's name, or
    ``name:key=value,key=value``.

    >>> [s.name for s in chosen(["singles", "ensemble", "short:segment_tokens=4"], ["a", "b"], Settings())]
    ['a', 'b', 'ensemble', 'short']
    """
    whole = System(ENSEMBLE, tuple(members), settings, prior, tuple(verifiers))
    found: list[System] = []
    for name in names:
        found += _meant(name, whole)
    if len(members) == 1 and not verifiers and len(found) > 1:
        found = [system for system in found if system.name != ENSEMBLE]  # it is the member alone
    counts = [system.name for system in found]
    if ORACLE in counts:
        raise advised(UsageError(f"no system may be called {ORACLE!r}"), "give that member another name")
    twice = next((name for name in counts if counts.count(name) > 1), None)
    if twice:
        raise advised(UsageError(f"two systems are called {twice!r}"), "give one of them another name: NAME:key=value")
    return found


def _meant(name: str, whole: System) -> list[System]:
    own, colon, changes = name.partition(":")
    if colon and own and changes:
        if own in (*TAKEN, *whole.members):
            raise advised(UsageError(f"{own!r} is taken as a system's name"), f"call it otherwise: my-{own}:{changes}")
        return [changed(whole, own, changes)]
    if name == "singles":
        return singles(whole.members, whole.settings)
    if name == ENSEMBLE:
        return [whole]
    if name == "ablations":
        return [changed(whole, ablation, told) for ablation, told in ABLATIONS.items()]
    if name in ABLATIONS:
        return [changed(whole, name, ABLATIONS[name])]
    if name in whole.members:
        return [one for one in singles(whole.members, whole.settings) if one.name == name]
    if re.fullmatch(r"segment-\d+", name):
        return [changed(whole, name, f"segment_tokens={name.partition('-')[2]}")]
    error = UsageError(f"there is no system {name!r}")
    known = ", ".join(("singles", ENSEMBLE, "ablations", *whole.members, *ABLATIONS))
    raise advised(error, f"there are {known}; or NAME:key=value,key=value, for example short:segment_tokens=4")


# --- changes ----------------------------------------------------------------------------------------------------


def _is(wanted: str, read: Callable[[str], Any], holds: Callable[[Any], bool]) -> Callable[[str], Any]:
    """What reads a value that holds, and otherwise says what was wanted."""

    def reading(told: str) -> Any:
        try:
            value = read(told)
        except (ValueError, KeyError):
            raise ValueError(wanted) from None
        if not holds(value):
            raise ValueError(wanted)
        return value

    return reading


def _one_of(choices: Mapping[str, Any]) -> Callable[[str], Any]:
    return _is("one of " + ", ".join(choices), lambda told: choices[told.lower()], lambda value: True)


def _named(kind: Any) -> Callable[[str], Any]:
    return _one_of({name: name for name in get_args(kind)})


_TRUTHS = {"true": True, "on": True, "false": False, "off": False}
_truth = _one_of(_TRUTHS)
_count = _is("a whole number of at least 1", int, lambda value: value >= 1)
_rate = _is("a number of at least 0", float, lambda value: 0 <= value < math.inf)
_above = _is("a number above 0", float, lambda value: 0 < value < math.inf)
_part = _is("a number above 0 and at most 1", float, lambda value: 0 < value <= 1)
_share = _is("a number from 0 to 1", float, lambda value: 0 <= value <= 1)
_whole = _is("a whole number", int, lambda value: True)


KEYS: Mapping[str, Callable[[str], Any]] = MappingProxyType(
    {
        "segment_tokens": _count,
        "drafters": _count,
        "speculate": _one_of({"auto": "auto", **_TRUTHS}),
        "max_tokens": _count,
        "max_rounds": _count,
        "score": _named(ScoreKind),
        "voice": _named(VoiceKind),
        "reward": _named(RewardKind),
        "feedback": _named(FeedbackKind),
        "learning_rate": _rate,
        "exit": _named(ExitKind),
        "min_members": _count,
        "umpire": _truth,
        "loop_guard": _truth,
    }
)
PRESET_KEYS = ("score", "voice", "reward", "feedback", "learning_rate", "umpire", "exit", "min_members", "loop_guard")
"""What a preset decides."""
SAMPLING: Mapping[str, Callable[[str], Any]] = MappingProxyType(
    {
        "temperature": _rate,
        "top_p": _part,
        "top_k": _count,
        "min_p": _share,
        "repetition_penalty": _above,
        "seed": _whole,
    }
)


def changed(whole: System, name: str, told: str) -> System:
    """The system with changes ``key=value,key=value``: any of ``Settings`` and ``Sampling``, ``preset``, and
    ``members=a+b`` for some of the members."""
    settings, members, verifiers = whole.settings, whole.members, whole.verifiers
    # The preset first: whatever else is said is said about it.
    for key, value in sorted(_pairs(name, told), key=lambda pair: pair[0] != "preset"):
        if key == "preset":
            if value not in PRESETS:
                raise _wrong(name, key, value, "one of " + ", ".join(PRESETS))
            method = {one: getattr(Settings(), one) for one in PRESET_KEYS}
            settings = replace(settings, **{**method, **PRESETS[value]})
        elif key == "members":
            members, verifiers = _some(name, value, whole.members), ()
        elif key in KEYS:
            settings = replace(settings, **{key: _read(name, key, value, KEYS[key])})
        elif key in SAMPLING:
            sampling = replace(settings.sampling, **{key: _read(name, key, value, SAMPLING[key])})
            settings = replace(settings, sampling=sampling)
        else:
            error = UsageError(f"system {name!r}: there is no setting {key!r}")
            raise advised(error, f"there are preset, members, {', '.join((*KEYS, *SAMPLING))}")
    prior = {one: weight for one, weight in (whole.prior or {}).items() if one in (*members, *verifiers)} or None
    return System(name, members, settings, prior, verifiers)


def _pairs(name: str, told: str) -> Iterable[tuple[str, str]]:
    for pair in told.split(","):
        key, equals, value = pair.partition("=")
        if not equals or not value.strip():
            error = UsageError(f"system {name!r}: {pair!r} is not key=value")
            raise advised(error, "for example short:segment_tokens=4,exit=never")
        yield key.strip().replace("-", "_"), value.strip()


def _read(name: str, key: str, value: str, read: Callable[[str], Any]) -> Any:
    try:
        return read(value)
    except ValueError as error:
        raise _wrong(name, key, value, str(error)) from error


def _wrong(name: str, key: str, value: str, wanted: str) -> UsageError:
    error = UsageError(f"system {name!r}: {key} must be {wanted}, got {value!r}")
    return advised(error, "leave it out to have it as in the ensemble")


def _some(name: str, told: str, members: Sequence[str]) -> tuple[str, ...]:
    wanted = tuple(told.split("+"))
    missing = [one for one in wanted if one not in members]
    if missing:
        error = UsageError(f"system {name!r}: there is no member {missing[0]!r}")
        raise advised(error, f"the members are {', '.join(members)}")
    return wanted
