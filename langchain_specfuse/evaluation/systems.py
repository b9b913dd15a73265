"""What is compared: each member alone, the ensemble, and the ensemble with something changed, by name.

Knows settings and members' names; asks nobody anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any, get_args

from ..core.values import PRESETS, ExitKind, FeedbackKind, RewardKind, Sampling, ScoreKind, Settings, VoiceKind
from ..errors import UsageError, advised
from .tasks import digest

ENSEMBLE = "ensemble"


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
    twice = next((name for name in counts if counts.count(name) > 1), None)
    if twice:
        raise advised(UsageError(f"two systems are called {twice!r}"), "give one of them another name: NAME:key=value")
    return found


def _meant(name: str, whole: System) -> list[System]:
    own, colon, changes = name.partition(":")
    if colon and own and changes:
        if own in (ENSEMBLE, *whole.members):
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


def _count(told: str) -> int:
    value = int(told)
    if value < 1:
        raise ValueError("at least 1")
    return value


def _above_zero(told: str) -> float:
    value = float(told)
    if not 0 <= value < float("inf"):
        raise ValueError("0 or more")
    return value


def _truth(told: str) -> bool:
    return {"true": True, "on": True, "false": False, "off": False}[told.lower()]


def _one_of(kind: Any) -> Callable[[str], str]:
    def read(told: str) -> str:
        if told not in get_args(kind):
            raise ValueError("one of " + ", ".join(get_args(kind)))
        return told

    return read


KEYS: Mapping[str, Callable[[str], Any]] = MappingProxyType(
    {
        "segment_tokens": _count,
        "drafters": _count,
        "max_tokens": _count,
        "max_rounds": _count,
        "score": _one_of(ScoreKind),
        "voice": _one_of(VoiceKind),
        "reward": _one_of(RewardKind),
        "feedback": _one_of(FeedbackKind),
        "learning_rate": _above_zero,
        "exit": _one_of(ExitKind),
        "min_members": _count,
        "loop_guard": _truth,
    }
)
PRESET_KEYS = ("score", "voice", "reward", "feedback", "learning_rate", "exit", "min_members", "loop_guard")
"""What a preset decides."""
SAMPLING: Mapping[str, Callable[[str], Any]] = MappingProxyType(
    {
        "temperature": _above_zero,
        "top_p": _above_zero,
        "top_k": _count,
        "min_p": _above_zero,
        "repetition_penalty": _above_zero,
        "seed": int,
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
    except (ValueError, KeyError) as error:
        raise _wrong(name, key, value, str(error)) from error


def _wrong(name: str, key: str, value: str, wanted: str) -> UsageError:
    return advised(UsageError(f"system {name!r}: {key} cannot be {value!r} ({wanted})"), "see docs/evaluation.md")


def _some(name: str, told: str, members: Sequence[str]) -> tuple[str, ...]:
    wanted = tuple(told.split("+"))
    missing = [one for one in wanted if one not in members]
    if missing:
        error = UsageError(f"system {name!r}: there is no member {missing[0]!r}")
        raise advised(error, f"the members are {', '.join(members)}")
    return wanted
