"""The command ``specfuse``: one question, one answer, and who wrote it. Knows arguments, streams and exit codes.

Standard output holds the answer (with ``--json`` its rounds) and nothing that anybody else prints; progress and errors
go to standard error. Exit codes: 0 fine, 1 the ensemble failed, 2 a mistake in the call, 130 interrupted, 141 nobody
reads any more.
"""

from __future__ import annotations

import argparse
import importlib
import io
import json
import os
import shutil
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, redirect_stdout
from typing import Any, NoReturn, TextIO

from . import _options, _pages, _shapes
from ._command_choices import Parser, add_cluster, add_method, chosen_settings, ensemble_of
from ._version import __version__
from .core.values import Query, Round, Turn
from .engine.ensemble import Ensemble
from .errors import MemberError, SpecFuseError, UsageError, advised
from .show.live import LiveView, fits
from .show.terminal import Paint, legend, pieces, table, visible

FINE, FAILED, MISUSED, INTERRUPTED, UNREAD = 0, 1, 2, 130, 141
MAX_TOKENS = 256
SUBCOMMANDS = ("eval", "doctor", "serve")
EXAMPLE = 'for example: specfuse "Why is the sky blue?"'


def command() -> NoReturn:
    """What the console script calls."""
    _hush()
    code = main()
    if code in (INTERRUPTED, UNREAD) or sys.argv[1:2] == ["serve"]:
        if code != UNREAD:
            sys.stdout.flush()
        # A desk may be deep in a matrix product; nobody wants its result, so nobody waits for it.
        os._exit(code)
    sys.exit(code)


def main(argv: Sequence[str] | None = None, *, members: Sequence[Any] | None = None) -> int:
    """Answer one question; the exit code. ``members`` stand in for the demo ensemble, for tests."""
    out = sys.stdout
    try:
        told = sys.argv[1:] if argv is None else list(argv)
        if told[:1] and told[0] in SUBCOMMANDS:
            return _subcommand(told[0], told[1:], members, out)
        given = parser().parse_args(told)
        with redirect_stdout(sys.stderr):  # whatever a library prints is not the answer
            run(given, members, out)
        out.flush()
        return FINE
    except SystemExit as leaving:  # argparse: --help, --version, and its own errors
        return leaving.code if isinstance(leaving.code, int) else MISUSED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _unread(out)
        return UNREAD
    except Exception as error:
        _tell(error)
        if not isinstance(error, SpecFuseError) and os.environ.get("SPECFUSE_DEBUG"):
            raise
        return MISUSED if _is_mistake(error) else FAILED


def _subcommand(name: str, argv: Sequence[str], members: Sequence[Any] | None, out: TextIO) -> int:
    """``specfuse eval ...`` and its like; after ``--`` the word is a question."""
    command = importlib.import_module(f"langchain_specfuse._command_{name}")
    if {"-h", "--help"} & set(argv):
        command.parser().parse_args(argv)
    with redirect_stdout(sys.stderr):
        fine = command.run(argv, members, out)
    out.flush()
    return FINE if fine else FAILED


def parser() -> argparse.ArgumentParser:
    made = Parser(
        prog="specfuse",
        description="Several language models write one answer together. Without --members the demo ensemble answers: "
        "SmolLM2-135M-Instruct and Gemma-3-270M, from packages, no network needed.",
        epilog="also: specfuse eval --help (does it help, on a task of yours?), specfuse doctor --help (are these "
        "members good together?), specfuse serve --help (an endpoint for OpenAI's clients). exit "
        "codes: 0 fine, 1 the ensemble failed, 2 a mistake in the call, 130 interrupted",
        allow_abbrev=False,
    )
    made.add_argument("question", nargs="?", help="what to ask; '-' or nothing: read it from standard input")
    who = made.add_argument_group("who answers")
    who.add_argument(
        "--members",
        nargs="+",
        metavar="M",
        help="hub ids, folders, .gguf files, base+adapter, servers (after the question)",
    )
    who.add_argument("--verifiers", nargs="+", metavar="M", help="members that vote, but never write")
    add_cluster(who)
    add_method(made)
    what = made.add_argument_group("the answer")
    what.add_argument("--max-tokens", type=int, metavar="N", help=f"its budget (default: {MAX_TOKENS})")
    what.add_argument("--temperature", type=float, metavar="T", help="0 (the default) is greedy and repeatable")
    what.add_argument("--top-p", type=float, metavar="P", help="sample from the likeliest tokens of this mass")
    what.add_argument("--seed", type=int, metavar="N", help="makes sampling repeatable")
    what.add_argument("--system", metavar="TEXT", help="a system message")
    what.add_argument("--stop", action="append", metavar="TEXT", help="end the answer before this text (repeatable)")
    form = made.add_argument_group("what the answer must look like (one of these)")
    form.add_argument("--schema", metavar="FILE", help="JSON that fits the JSON schema in this file")
    form.add_argument("--regex", metavar="PATTERN", help="a text that this pattern matches whole")
    form.add_argument("--choice", action="append", metavar="TEXT", help="one of these texts (repeatable)")
    shown = made.add_argument_group("what is shown")
    shown.add_argument("--json", action="store_true", help="one JSON object per round, nothing else")
    shown.add_argument("--quiet", "-q", action="store_true", help="only the answer: no legend, table or progress")
    shown.add_argument("--html", metavar="FILE", help="also write the run as a page: who wrote what, votes and weights")
    shown.add_argument("--from", dest="kept", metavar="FILE", help="ask nobody: make the page of what --json printed")
    shown.add_argument("--plain", action="store_true", help="only add text, draw nothing anew (also: without rich)")
    shown.add_argument("--no-color", action="store_true", help="no colours (also: NO_COLOR, or not on a terminal)")
    shown.add_argument("--version", action="version", version=f"specfuse {__version__}")
    return made


def run(given: argparse.Namespace, members: Sequence[Any] | None, out: TextIO) -> None:
    """Ask, and show the rounds as they come."""
    _pages.check(given)
    if given.kept:
        return _pages.redraw(given)
    settings = chosen_settings(given, max_tokens=MAX_TOKENS)
    question = _question(given)
    for text in (question, given.system or "", *(given.stop or ())):
        _options.refuse_broken(text)
    turns = [Turn("system", given.system)] if given.system else []
    constraint = _shapes.shape_of(_form(given), settings.stop).constraint()
    query = Query(uuid.uuid4().hex, (*turns, Turn("user", question)), constraint=constraint)
    ensemble = ensemble_of(given, members)
    referee = _shapes.referee_of(constraint)
    answered = ensemble.rounds(query, settings, referee=referee)
    with closing(answered) as rounds, _progress(given, ensemble):  # type: ignore[type-var]
        show = _show_json if given.json else _show_text
        names = list(ensemble.members)
        with _pages.recorded(rounds, given, question, names) as noted:
            show(noted, given, names, out)


# --- what was asked ---------------------------------------------------------------------------------------------


def _form(given: argparse.Namespace) -> dict[str, Any]:
    """What the answer must look like, as the chat model's options have it."""
    flags = [f"--{name}" for name in ("schema", "regex", "choice") if getattr(given, name) is not None]
    if len(flags) > 1:
        error = UsageError(f"{flags[0]} and {flags[1]} are both given; an answer has one shape")
        raise advised(error, f"leave {flags[0]} or {flags[1]} out")
    asked = {"regex": given.regex, "choice": given.choice, "response_format": None}
    if given.schema is None:
        return asked
    try:
        with open(given.schema, encoding="utf-8") as file:
            schema = json.load(file)
    except (OSError, ValueError) as error:
        unread = UsageError(f"--schema {given.schema}: {error}")
        raise advised(unread, "name a file that holds a JSON schema") from error
    if not isinstance(schema, dict):
        raise advised(UsageError(f"--schema {given.schema} holds no object: {schema!r:.80}"), "wanted a JSON schema")
    wrapped = {"type": "json_schema", "json_schema": {"schema": schema}}
    return {**asked, "response_format": wrapped}


def _question(given: argparse.Namespace) -> str:
    text: str | None = given.question
    if text is None and (sys.stdin is None or sys.stdin.isatty()):
        swallowed = [*(given.members or ()), *(given.verifiers or ())]
        advice = (
            "put it before --members and --verifiers" if swallowed else 'for example: specfuse "Why is the sky blue?"'
        )
        raise advised(UsageError("there is no question"), advice)
    if text is None or text == "-":
        try:
            text = sys.stdin.read()
        except UnicodeDecodeError as error:
            unread = UsageError(f"the question on standard input is not valid {error.encoding}: {error.reason}")
            raise advised(unread, "convert it to UTF-8") from error
        text = text.removesuffix("\n")
    if not text.strip():
        raise advised(UsageError(f"the question is empty, got {text!r}"), f"{EXAMPLE} (before --members, if any)")
    return text


# --- what is shown ----------------------------------------------------------------------------------------------


def _show_json(rounds: Iterator[Round], given: argparse.Namespace, names: list[str], out: TextIO) -> None:
    for item in rounds:
        print(json.dumps(item.as_dict()), file=out, flush=True)


def _show_text(rounds: Iterator[Round], given: argparse.Namespace, names: list[str], out: TextIO) -> None:
    paint = Paint(names, on=_colours(given, out))
    clean = visible if out.isatty() else str
    done: list[Round] = []
    drawn = not (given.quiet or given.plain) and fits(out)
    try:
        with LiveView(paint, out) if drawn else nullcontext() as view:
            for item in rounds:
                if not done and not given.quiet:
                    print(legend(paint), end="\n\n", file=out)
                done.append(item)
                if view:
                    view.show(item)
                    continue
                text = "".join(paint.by(name, clean(piece)) for name, piece in pieces(item))
                print(text, end="", file=out, flush=True)
    finally:  # whatever has been shown stays; what follows begins on its own line
        print(end="\n" if done else "", file=out, flush=True)
    if not given.quiet:
        width = shutil.get_terminal_size((110, 24)).columns
        print("", table(done, paint, width), sep="\n", file=out)


def _colours(given: argparse.Namespace, out: TextIO) -> bool:
    return out.isatty() and not given.no_color and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


@contextmanager
def _progress(given: argparse.Namespace, ensemble: Ensemble) -> Iterator[None]:
    """Loading takes a while: say so, and load before anything is shown."""
    if not given.quiet:
        print(f"specfuse: loading {', '.join(ensemble.members)} ...", file=sys.stderr, flush=True)
    ensemble.loaded().result()
    yield


def _tell(error: Exception) -> None:
    kind = "" if isinstance(error, SpecFuseError) else f"{type(error).__name__}: "
    print(f"specfuse: error: {kind}{error}", file=sys.stderr)
    for note in getattr(error, "__notes__", ()):
        print(f"  {note}", file=sys.stderr)


def _is_mistake(error: Exception) -> bool:
    """Also a member that does not exist: it was named in the call."""
    return isinstance(error, UsageError) or (isinstance(error, MemberError) and error.kind == "not_found")


def _unread(out: TextIO) -> None:
    """Nobody reads any more: leave without a word, also from the interpreter's last flush."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
    except (OSError, ValueError):
        pass


def _hush() -> None:
    """Before transformers is imported. No advice meant for programmers, and bars only where they can be seen."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    if not (sys.stderr and sys.stderr.isatty()) or {"-q", "--quiet"} & set(sys.argv):
        os.environ.setdefault("TQDM_DISABLE", "1")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal without Unicode is no reason to fail


if __name__ == "__main__":
    command()
