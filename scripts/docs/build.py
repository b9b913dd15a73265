"""Update the generated parts of the documentation: tables, example data, pictures.

``make docs`` calls this script without options, which needs no models.

    --run     ask the demo ensemble again, and save its rounds in run.json
    --acts    show the acts of the demo again, and save what the terminal shows in demo.cast
    --photos  photograph the page of that run and the live page in a browser
    --check   change nothing; exit with 1 if something is out of date

A generated part is enclosed by ``<!-- generated: NAME -->`` and ``<!-- end -->``. Do not edit the
text between the two by hand.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
DOCS = ROOT / "docs"
PACKAGE = ROOT / "langchain_specfuse"
sys.path.insert(0, str(HERE))

import tables  # noqa: E402
from film import filmed, record_acts  # noqa: E402
from picture import PROGRAM, drawn, photograph  # noqa: E402

QUESTION = "What is the difference between weather and climate?"
ARGUMENTS = ["--lead", "none", "--max-tokens", "80"]
CONVERSATION = ("What is climate? Answer in one sentence.", "And how does weather differ from it?")
CHECKED = ["--check", "forbids:atmosphere", "--show-rejected"]
"""The photograph of the endpoint's page shows a draft that this check refused."""
RUN = DOCS / "pictures" / "run.json"
ACTS = DOCS / "pictures" / "demo.cast"
PART = re.compile(r"(<!-- generated: ([a-z-]+) -->\n).*?(<!-- end -->)", re.S)


# --- runs -----------------------------------------------------------------------------------------


def record() -> None:
    """Ask the demo ensemble with the command, and save the rounds."""
    command = [sys.executable, "-m", "langchain_specfuse", "--json", "--yes", *ARGUMENTS, QUESTION]
    lines = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ).stdout.splitlines()
    shown = f'{PROGRAM} {" ".join(ARGUMENTS)} "{QUESTION}"'
    run = {"command": shown, "rounds": [json.loads(line) for line in lines]}
    RUN.write_text(json.dumps(run, indent=1, ensure_ascii=False) + "\n")


def recorded() -> dict[str, Any]:
    """The recorded run: its command and its rounds."""
    run: dict[str, Any] = json.loads(RUN.read_text())
    return run


def recorded_trace() -> Any:
    """The recorded run as a trace."""
    from langchain_specfuse import Trace

    return Trace(recorded()["rounds"], question=QUESTION)


@contextmanager
def served() -> Iterator[str]:
    """Start the endpoint of the demo ensemble, and yield its address."""
    program = [sys.executable, "-m", "langchain_specfuse", "serve", "--yes", "--port", "0"]
    command = [*program, *ARGUMENTS, *CHECKED]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            yield _first_address(process.stderr or ())
        finally:
            process.terminate()


def _first_address(lines: Iterable[str]) -> str:
    for line in lines:
        address = re.search(r"http://[\d.:]+", line)
        if address:
            return address[0]
    raise RuntimeError("the endpoint ended before it printed its address")


def scripted() -> dict[str, Any]:
    """A run of three scripted members, one of which is off topic and leaves. Its numbers are the
    same on every machine."""
    from langchain_specfuse import Method, ScriptedMember
    from langchain_specfuse.core.options import Settings
    from langchain_specfuse.core.values import Query, Turn
    from langchain_specfuse.engine import Ensemble

    texts = {
        "ann": "The sky is blue because air scatters blue light much more than red light, and so "
        "it comes from all "
        "sides.",
        "bob": "The sky looks blue because air bends blue light far more than red light, so it "
        "comes from all sides.",
        "cyd": "I like long trains, and all bends they take far more than any plane, which only "
        "goes straight on.",
    }
    ensemble = Ensemble([ScriptedMember(text, name=name) for name, text in texts.items()])
    query = Query("docs", (Turn("user", "Why is the sky blue?"),))
    rounds = [
        item.as_dict() for item in ensemble.rounds(query, Settings(method=Method(segment_tokens=4)))
    ]
    for item in rounds:
        item["seconds"] = dict.fromkeys(item["seconds"], 0.001)
        for phase in item["tokens"].values():
            for effort in phase.values():
                effort["seconds"] = 0.0
    return {"command": "three scripted members", "rounds": rounds}


# --- tables of options ----------------------------------------------------------------------------


def fields() -> str:
    """The chat model's own fields, from their definitions."""
    from langchain_specfuse import METHODS
    from langchain_specfuse.chat.options import Options

    def default(field: Any) -> str:
        if field.is_required():
            return "required"
        value = field.get_default(call_default_factory=True)
        return _code("robust" if value == METHODS["robust"] else value)

    first = ("members", "model_name")
    names = [*first, *(name for name in Options.model_fields if name not in first)]
    rows = []
    for name in names:
        field = Options.model_fields[name]
        rows.append((f"`{name}`", default(field), _cell(field.description or "")))
    return _lines(tables.table(("field", "default", "what it is"), rows))


def method() -> str:
    """The options of the method, and their values in the three methods."""
    from langchain_specfuse.core.options import METHODS, Method

    rows = [
        (
            f"`{name}`",
            _values(field.annotation),
            *(_code(getattr(preset, name)) for preset in METHODS.values()),
            _cell(field.description or ""),
        )
        for name, field in Method.model_fields.items()
    ]
    return _lines(
        tables.table(("option", "values", *(f"`{name}`" for name in METHODS), "what it is"), rows)
    )


def _values(annotation: Any) -> str:
    """What a field of this type may be, in words."""
    if get_origin(annotation) is Literal:
        return ", ".join(map(_code, get_args(annotation)))
    types = {get_origin(kind) or kind for kind in (annotation, *get_args(annotation))}
    if bool in types:
        return "`True`, `False`"
    words = next((words for kind, words in _WORDS.items() if kind in types), "a number")
    return f"{words} or `None`" if type(None) in types else words


_WORDS = {
    int: "a whole number",
    str: "a name or a function",
    dict: "a dict",
    list: "a list",
}


def _code(value: Any) -> str:
    return f"`{json.dumps(value)}`" if isinstance(value, str) else f"`{value}`"


def _cell(text: str) -> str:
    """Text for a cell of a table."""
    return " ".join(text.split()).replace("``", "`").replace("|", "\\|")


def _lines(lines: Iterable[str]) -> str:
    return "\n".join([*lines, ""])


def command(name: str) -> str:
    """The options of the command or of a subcommand, from its argparse parser, in the parser's
    groups. Named only: options that are described as a field of the chat model is, and those of a
    subcommand that the command has, too."""
    parser = importlib.import_module(f"langchain_specfuse.cli.{name}").parser()
    main = importlib.import_module("langchain_specfuse.cli.main").parser()
    known = [] if name == "main" else [row for _, rows in _groups(main) for row in rows]
    parts, above, fields = [], [], []
    for title, rows in _groups(parser):
        new = []
        for row in rows:
            if row in known:
                above.append(_flag(row))
            elif row[1].startswith(_description(_flag(row))):
                fields.append(_flag(row))
            else:
                new.append(row)
        if new:
            if title not in ("positional arguments", "options"):  # argparse's own titles
                parts += [f"**{title}**", ""]
            parts += [*tables.table(("option", "what it does"), new), ""]
    for where, names in (("As [in Python](chat-model.md#fields)", fields), ("As above", above)):
        if names:
            parts += [f"{where}: {', '.join(f'`{flag}`' for flag in names)}.", ""]
    return "\n".join(parts)


def _flag(row: tuple[str, str]) -> str:
    return row[0].split("`")[1]


def _description(flag: str) -> str:
    """The description of the chat model's field, or the method's option, of this name; otherwise
    what no text begins with."""
    from langchain_specfuse.chat.options import Options
    from langchain_specfuse.core.options import Method

    name = flag.removeprefix("--").replace("-", "_")
    field = Options.model_fields.get(name) or Method.model_fields.get(name)
    return _cell(field.description or "") if field else "\n"


def _groups(parser: argparse.ArgumentParser) -> Iterator[tuple[str | None, list[tuple[str, str]]]]:
    """The groups of a parser, and the rows of their options."""
    for group in parser._action_groups:
        yield (
            group.title,
            [
                _option(action)
                for action in group._group_actions
                if not isinstance(action, argparse._HelpAction) and action.help != argparse.SUPPRESS
            ],
        )


def _option(action: argparse.Action) -> tuple[str, str]:
    names = f"`{action.metavar or action.dest}`"
    if action.option_strings:
        names = ", ".join(f"`{name}`" for name in action.option_strings)
        if isinstance(action.metavar, str):
            names += f" `{action.metavar}`"
    text = (action.help or "").replace("%(default)s", str(action.default)).replace("%%", "%")
    return _cell(names), _cell(text)


# --- data -----------------------------------------------------------------------------------------


def errors() -> str:
    """The trees of errors in the docstrings of ``errors.py`` and ``chat/errors.py``."""
    trees = []
    for name in ("errors.py", "chat/errors.py"):
        text = ast.get_docstring(ast.parse((PACKAGE / name).read_text())) or ""
        lines = [
            line
            for line in text.splitlines()
            if re.match(r"\s*(Exception\Z|[│├└]|\w+Error ──)", line)
        ]
        trees.append("\n".join(line.removeprefix("    ") for line in lines))
    return "```text\n" + "\n\n".join(trees) + "\n```\n"


def round_event() -> str:
    """The second round of the scripted run, as a ``specfuse_round`` event without what is empty,
    and without the costs, which are long."""
    shown = scripted()["rounds"][1]
    return _json(
        {
            key: value
            for key, value in shown.items()
            if value not in ("", [], {}, None) and key not in ("seconds", "tokens")
        }
    )


def exit_event() -> str:
    """The exit in the scripted run, as a ``specfuse_exit`` event."""
    item = next(item for item in scripted()["rounds"] if item["left"])
    return _json({**item["left"][0], "weights": item["weights"]})


def _json(data: Mapping[str, Any]) -> str:
    def rounded(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: rounded(inner) for key, inner in value.items()}
        return round(value, 4) if isinstance(value, float) else value

    lines = [f' "{key}": {json.dumps(value)}' for key, value in rounded(dict(data)).items()]
    return "```json\n{\n" + ",\n".join(lines) + "\n}\n```\n"


def paper() -> str:
    """The places in the code that are marked ``Paper:``, because they differ from the paper or from
    its published code."""
    rows = []
    for file in sorted(PACKAGE.rglob("*.py")):
        source = file.read_text()
        for number, line in enumerate(source.splitlines(), 1):
            if re.match(r"\s*(#\s*)?Paper:", line):
                rows.append(
                    (f"`{file.relative_to(PACKAGE).as_posix()}`", _cell(_paragraph(source, number)))
                )
    return _lines(tables.table(("file", "difference"), rows))


def _paragraph(source: str, number: int) -> str:
    """The text after ``Paper:`` up to the end of its paragraph."""
    lines = source.splitlines()[number - 1 :]
    comment = lines[0].lstrip().startswith("#")
    words = []
    for line in lines:
        text = line.strip()
        if not text or text.startswith('"""') or comment != text.startswith("#"):
            break
        words.append(text.lstrip("# ").split('"""')[0])
    text = " ".join(words).removeprefix("Paper:").strip()
    return text[:1].upper() + text[1:]


# --- the parts ------------------------------------------------------------------------------------


def measured(make: Callable[[Any], str], script: str) -> str:
    """A table of the last results of a benchmark or study."""
    file = ROOT / f"{script}.json"
    if not file.exists():
        return tables.nothing(script)
    return make(json.loads(file.read_text()))


MEASURED: Mapping[str, tuple[Callable[[Any], str], str]] = {
    "checks-short": (tables.checks_short, "studies/checked"),
    "endpoint": (tables.endpoint, "benchmarks/endpoint"),
    "engines": (tables.engines, "benchmarks/engines"),
    "failover": (tables.failover, "benchmarks/failover"),
    "failover-short": (tables.failover_short, "benchmarks/failover"),
    "gpu": (tables.gpu, "benchmarks/gpu"),
    "llamacpp": (tables.rounds, "benchmarks/rounds"),
    "load": (tables.load, "benchmarks/load"),
    "prefix": (tables.prefix, "benchmarks/prefix"),
    "reserve": (tables.reserve, "benchmarks/takeover"),
    "scorers": (tables.scorers, "benchmarks/scorers"),
    "served": (tables.served, "benchmarks/served"),
    **{
        f"study-{name}": (partial(tables.checked, name=name), "studies/checked")
        for name in ("rules", "code", "sources")
    },
    **{
        f"study-{name}": (partial(tables.checked, name=name), "studies/again")
        for name in ("new-rules", "new-sources")
    },
    **{
        f"study-{name}-told": (partial(tables.checked, name=name, base="chat"), "studies/again")
        for name in ("new-rules", "new-sources")
    },
    "study-decisions": (tables.decisions, "studies/decisions"),
    "study-evasion": (tables.evasion, "studies/evasion"),
    "study-fusion": (tables.fusion, "studies/fusion"),
    "study-lead": (tables.lead, "studies/lead"),
    "study-lora": (partial(tables.skills, members="lora"), "studies/specialists"),
    "study-router-lora": (partial(tables.router, part="specialists, lora"), "studies/routing"),
    "study-router-mixed": (partial(tables.router, part="mixed"), "studies/routing"),
    "study-router-tiny": (partial(tables.router, part="specialists, tiny"), "studies/routing"),
    "study-skills": (partial(tables.skills, members="tiny"), "studies/specialists"),
    "tracing": (tables.tracing, "benchmarks/tracing"),
}
"""The name of a table, what makes it, and the script whose results it shows."""

PARTS: Mapping[str, Callable[[], str]] = {
    "command": partial(command, "main"),
    "command-eval": partial(command, "eval"),
    "command-demo": partial(command, "demo"),
    "command-doctor": partial(command, "doctor"),
    "command-serve": partial(command, "serve"),
    "errors": errors,
    "exit-event": exit_event,
    "fields": fields,
    "method": method,
    "paper": paper,
    "recorded-answer": lambda: tables.recorded_answer(recorded()),
    "round-event": round_event,
    **{name: partial(measured, *how) for name, how in MEASURED.items()},
}


def pages() -> list[Path]:
    return [
        ROOT / "README.md",
        *sorted(page for page in DOCS.rglob("*.md") if "_site" not in page.parts),
    ]


def generated() -> Iterator[tuple[Path, str]]:
    """Every file with a generated part, and what it should hold."""
    for page in pages():
        yield (
            page,
            PART.sub(lambda found: found[1] + PARTS[found[2]]() + found[3], page.read_text()),
        )
    yield DOCS / "pictures" / "run.svg", drawn(**recorded())
    yield DOCS / "pictures" / "run.html", recorded_trace().html()
    yield ACTS.with_suffix(".svg"), filmed(ACTS.read_text())
    yield DOCS / "pictures" / "exit.svg", drawn(**scripted())


def stale() -> list[Path]:
    """The files that are out of date."""
    return [file for file, text in generated() if not file.exists() or file.read_text() != text]


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument(
        "--run", action="store_true", help="ask the demo ensemble again (a minute or two)"
    )
    parser.add_argument(
        "--acts", action="store_true", help="show the demo's acts again (half a minute)"
    )
    parser.add_argument(
        "--photos", action="store_true", help="photograph the recorded run's page (needs a browser)"
    )
    parser.add_argument("--check", action="store_true", help="change nothing, only report")
    arguments = parser.parse_args()
    if arguments.run:
        record()
    if arguments.acts:
        record_acts(ACTS)
    if arguments.photos:
        with served() as address:
            photograph(recorded_trace(), address, CONVERSATION, DOCS / "pictures")
    outdated = False
    for file, text in list(generated()):
        if file.exists() and file.read_text() == text:
            continue
        outdated = True
        if arguments.check:
            print(f"out of date: {file.relative_to(ROOT)}")
        else:
            file.write_text(text)
            print(f"updated: {file.relative_to(ROOT)}")
    return int(arguments.check and outdated)


if __name__ == "__main__":
    sys.exit(main())
