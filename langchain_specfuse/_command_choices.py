"""What the commands let one choose alike: members, settings, starting weights.

Knows arguments and turns them into members and settings; what is done with those is not known here.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from . import _options, _registry
from .core.member import Member
from .core.values import PRESETS, ExitKind, FeedbackKind, RewardKind, ScoreKind, Settings, VoiceKind
from .engine.ensemble import Ensemble
from .errors import UsageError, advised

CODES = (
    "exit codes: 0 fine, 1 no question could be answered or a checker raised, 2 a mistake in the call, 130 interrupted"
)


def add_choices(made: argparse.ArgumentParser) -> None:
    """Arguments about members and how they agree."""
    who = made.add_argument_group("who answers")
    who.add_argument("--members", nargs="+", metavar="M", help="as of specfuse itself (default: the demo's)")
    who.add_argument("--verifiers", nargs="+", metavar="M", help="members that vote, but never write")
    add_cluster(who)
    who.add_argument("--prior", metavar="FILE", help="JSON with the voting weights to begin with, as doctor saves it")
    how = add_method(made)
    how.add_argument("--max-tokens", type=int, metavar="N", help="budget of an answer (default: the task's)")
    how.add_argument("--temperature", type=float, metavar="T", help="0 (the default) is greedy and repeatable")
    how.add_argument("--top-p", type=float, metavar="P", help="sample from the likeliest tokens of this mass")
    how.add_argument("--at-once", type=int, metavar="N", default=16, help="questions under way together (default: 16)")
    how.add_argument("--timeout", type=float, metavar="S", help="seconds for one answer; what takes longer is wrong")


def add_cluster(who: Any) -> None:
    """Where they answer."""
    who.add_argument("--cluster", metavar="A", help="spread them over this Ray cluster: auto, or its address")


def add_method(made: argparse.ArgumentParser) -> Any:
    """Arguments about the method; the group, for more."""
    how = made.add_argument_group("how they agree")
    how.add_argument("--preset", choices=tuple(PRESETS), default="robust", help="settings by name (default: robust)")
    how.add_argument("--score", choices=get_args(ScoreKind), help="how a draft is scored")
    how.add_argument("--voice", choices=get_args(VoiceKind), help="whether the unsure say less")
    how.add_argument("--reward", choices=get_args(RewardKind), help="what a draft earns its writer")
    how.add_argument("--exit", choices=get_args(ExitKind), help="when a member leaves")
    how.add_argument("--feedback", choices=get_args(FeedbackKind), help="how weights learn")
    how.add_argument("--min-members", type=int, metavar="N", help="this many always stay (default: the preset's)")
    how.add_argument("--segment-tokens", type=int, metavar="N", help="length of a draft (default: 10)")
    how.add_argument("--drafters", type=int, metavar="N", help="so many draft, in doubt all (default: all, always)")
    how.add_argument("--memory-budget", metavar="6GB", help="for weights and caches together; slower, same answers")
    how.add_argument("--umpire", action=argparse.BooleanOptionalAction, help="whether one that is no party decides how "
                     "the answer begins, where several are sure (default: the preset's)")  # fmt: skip
    how.add_argument("--speculate", nargs="?", type=_speculation, const="auto", metavar="HOW", help="read what is "
                     "guessed at once: the same answer, sooner; auto (if HOW is left out), on or off")  # fmt: skip
    return how


_SPECULATIONS: Mapping[str, bool | str] = {"auto": "auto", "on": True, "off": False}


def _speculation(told: str) -> bool | str:
    if told not in _SPECULATIONS:
        raise argparse.ArgumentTypeError(f"invalid choice: {told!r} (choose from {', '.join(_SPECULATIONS)})")
    return _SPECULATIONS[told]


class Parser(argparse.ArgumentParser):
    """A parser of a command's arguments. ``--speculate`` before a question is not followed by its value."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        told = list(sys.argv[1:] if args is None else args)
        for at, one in enumerate(told[:-1]):
            if one == "--":
                break
            if one == "--speculate" and told[at + 1] not in _SPECULATIONS:
                told[at] = "--speculate=auto"
        return super().parse_known_args(told, namespace)


def chosen_settings(given: argparse.Namespace, **defaults: Any) -> Settings:
    """The settings that were chosen, over these defaults."""
    unset = dict.fromkeys((*_options.METHOD, *_options.SAMPLING, "seed", "stop"))
    chosen = {name: value for name, value in vars(given).items() if name in unset or name == "preset"}
    return _options.settings(unset | {"temperature": 0.0} | defaults | _options.checked(chosen, (*unset, "preset")))


def settings_of(given: argparse.Namespace, max_tokens: int) -> Settings:
    """The settings that were chosen, with the task's budget where none was."""
    _options.checked({"timeout": given.timeout}, ("timeout",))
    if given.at_once < 1:
        raise advised(UsageError(f"--at-once must be at least 1, got {given.at_once}"), "16 is the default")
    return chosen_settings(given, max_tokens=max_tokens, seed=0)


def members_of(
    given: argparse.Namespace, stand_ins: Sequence[Any] | None
) -> tuple[dict[str, Member], list[str], list[str]]:
    """All members by name, the names of those that write, and of those that only vote. Loads nothing."""
    members = ensemble_of(given, stand_ins).members
    names = list(members)
    writing = len(names) - len(given.verifiers or ())
    return members, names[:writing], names[writing:]


def ensemble_of(given: argparse.Namespace, stand_ins: Sequence[Any] | None) -> Ensemble:
    """Who was named, else ``stand_ins``, else the demo's. Loads nothing."""
    chosen: Sequence[Any] = given.members or stand_ins or _demo()
    checked = [_registry.checked_member(one) for one in (*chosen, *(given.verifiers or ()))]
    chosen_places = {"memory_budget": getattr(given, "memory_budget", None), "cluster": getattr(given, "cluster", None)}
    told = _options.checked(chosen_places, ("memory_budget", "cluster"))
    return _registry.ensemble_for(
        checked[: len(chosen)], checked[len(chosen) :], told.get("memory_budget"), told.get("cluster")
    )


def _demo() -> Sequence[Any]:
    from .demo import demo_members

    return demo_members()


def prior_of(given: argparse.Namespace, names: Sequence[str]) -> dict[str, float] | None:
    """The starting weights of the file that was named."""
    if not given.prior:
        return None
    try:
        told = json.loads(Path(given.prior).read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        wrong = UsageError(f"--prior {given.prior} cannot be read: {error}")
        raise advised(wrong, 'it is JSON: {"member": 1.5, "other": 0.5}') from error
    prior = told.get("prior", told) if isinstance(told, Mapping) else told
    try:
        return _options.checked_prior(prior, names)
    except UsageError as error:
        advice = "take that entry out of the file, or let specfuse doctor make it anew for these members"
        raise advised(UsageError(f"--prior {given.prior}: {error}"), advice) from error
