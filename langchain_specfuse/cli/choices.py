"""Arguments that commands share: members, the method and the options of an answer, made from their
definitions."""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

from ..chat import members as registry
from ..chat import options as _options
from ..core.method import METHODS, Method
from ..core.method import options as method_options
from ..engine.ensemble import Ensemble
from ..errors import UsageError, advised
from ..show.terminal import visible

PROGRAM = "langchain-specfuse"
EXAMPLE = f'for example: {PROGRAM} "Why is the sky blue?" --members A B'
CODES = (
    "exit codes: 0 success, 1 the ensemble or a check failed, 2 a mistake in the call, 130 "
    "interrupted"
)
ANSWER = ("segment_tokens", "max_tokens", "temperature", "top_p", "seed", "member_timeout")
"""Options of the chat model that every command has as flags."""


def say(text: str) -> None:
    """Print a line of progress on standard error."""
    print(f"{PROGRAM}: {visible(text, margin='  ')}", file=sys.stderr, flush=True)


def new_parser(name: str, description: str, epilog: str = CODES) -> argparse.ArgumentParser:
    prog = f"{PROGRAM} {name}".strip()
    return _Parser(prog=prog, description=description, epilog=epilog, allow_abbrev=False)


class _Parser(argparse.ArgumentParser):
    """Refuses unknown arguments with their new name, the closest name, or an example."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        given, unknown = self.parse_known_args(args, namespace)
        if not unknown:
            return given
        name = unknown[0].partition("=")[0]
        flags = [flag for action in self._actions for flag in action.option_strings]
        near = difflib.get_close_matches(name, flags, n=1, cutoff=0.75)
        key = name.lstrip("-").replace("-", "_")
        if key == "demo":
            advice = (
                "leave it out: without --members the demo's models answer (DEMO=small picks "
                "smaller ones)"
            )
        elif key in method_options():
            advice = f"use --method {key}=VALUE"
        elif near:
            advice = f"did you mean {near[0]}?"
        else:
            advice = f"put a question in quotes; {EXAMPLE}. All arguments: {self.prog} --help"
        raise advised(UsageError(f"{self.prog} has no argument {name!r}"), advice)


def add_members(made: argparse.ArgumentParser) -> None:
    """Arguments that name the members."""
    group = made.add_argument_group("members")
    for name in ("members", "verifiers"):
        group.add_argument(
            f"--{name}",
            nargs="+",
            metavar="M",
            help=_help(name, _options.Options.model_fields[name]),
        )
    leads = _help("lead", _options.Options.model_fields["lead"], "auto").replace("None:", "none:")
    group.add_argument("--lead", default="auto", metavar="M", help=leads)


def add_answer(made: argparse.ArgumentParser, *more: str, **defaults: str) -> Any:
    """Arguments about the method and the answer. ``more``: further options of the chat model.
    ``defaults``: other defaults, for the help. Returns the group."""
    group = made.add_argument_group("method and answer")
    group.add_argument(
        "--method",
        action=_MethodArgument,
        default=[],
        metavar="NAME|KEY=VALUE",
        help=f"{', '.join(METHODS)} (default: robust), or an option such as exit=never; "
        "repeatable; help: list all",
    )
    add_fields(group, _options.Options.model_fields, (*ANSWER, *more), **defaults)
    return group


def add_fields(
    group: Any, fields: Mapping[str, Any], names: Iterable[str], **defaults: str
) -> None:
    """A flag for each of these pydantic fields."""
    for name in names:
        kinds = [kind for kind in (int, float) if kind in _types(fields[name].annotation)]
        group.add_argument(
            f"--{name.replace('_', '-')}",
            type=kinds[0],
            metavar="S" if name.endswith("timeout") else "N",
            help=_help(name, fields[name], defaults.get(name)),
        )


def _help(name: str, field: Any, default: str | None = None) -> str:
    number = isinstance(field.default, int | float)
    shown = default or (str(field.default) if number else None)
    return f"{field.description}{f' (default: {shown})' if shown else ''}".replace("%", "%%")


def _types(annotation: Any) -> tuple[Any, ...]:
    """The type and all types inside it."""
    return (annotation, *(one for arg in get_args(annotation) for one in _types(arg)))


class _MethodArgument(argparse.Action):
    """``--method``: collects names and options, and lists the options for ``--method help``."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: Any,
        values: Any,
        option_string: Any = None,
    ) -> None:
        if values != "help":
            namespace.method = [*namespace.method, values]
            return
        for name, option in method_options().items():
            wanted = "|".join(map(str, option.choices)).lower() if option.choices else option.wanted
            print(f"{name}={wanted}\n    {option.help}; robust: {str(option.default).lower()}")
        parser.exit()


def method_of(given: Sequence[str]) -> Method:
    """The method that ``--method`` arguments describe.

    >>> method_of(["specem", "exit=studentized"]).exit
    'studentized'
    """
    names = [one for one in given if "=" not in one]
    changes: dict[str, Any] = {}
    for one in given:
        key, equals, value = one.partition("=")
        key, option = (
            key.strip().replace("-", "_"),
            method_options().get(key.strip().replace("-", "_")),
        )
        if equals:
            # an unknown key is refused below
            changes[key] = option.read(key, value.strip()) if option else value
    return Method.named(names[-1] if names else "robust", **changes)


def options_of(given: argparse.Namespace, **defaults: Any) -> dict[str, Any]:
    """All options of an answer as they were chosen, over these defaults."""
    known = _options.Options.model_fields.keys() - {"members", "verifiers", "prior", "method"}
    chosen = {name: value for name, value in vars(given).items() if name in known}
    chosen["lead"] = None if given.lead == "none" else given.lead
    checked = _options.checked(chosen, known)
    return {**_options.defaults(), **defaults, **checked, "method": method_of(given.method)}


def members_of(
    given: argparse.Namespace, stand_ins: Sequence[Any] | None
) -> tuple[list[Any], list[Any]]:
    """The members that write and those that only vote: those that were named, else ``stand_ins``,
    else the demo's."""
    for name in (*(given.members or ()), *(given.verifiers or ())):
        if "," in name and not os.path.exists(os.path.expanduser(name)):
            apart = " ".join(name.replace(",", " ").split())
            raise advised(
                UsageError(f"there is no member {name!r}"), f"put spaces between members: {apart}"
            )
    members = given.members or stand_ins
    if not members:
        from ..demo import demo_members

        members = demo_members()
    verifiers = _options.members_list(list(given.verifiers or ()), "verifiers")
    return _options.members_list(list(members), "members"), verifiers


def ensemble_of(given: argparse.Namespace, stand_ins: Sequence[Any] | None) -> Ensemble:
    """The ensemble of these members. Loads nothing."""
    return registry.ensemble_for(*members_of(given, stand_ins))


def question_after_members(given: argparse.Namespace) -> None:
    """``--members A B "Why is the sky blue?"``: argparse takes the question for a member. It is the
    question."""
    for listed in (given.verifiers, given.members):
        last = listed[-1] if listed and len(listed) > 1 else ""
        if (
            given.question is None
            and len(last.split()) > 1
            and not os.path.exists(os.path.expanduser(last))
        ):
            given.question = listed.pop()
