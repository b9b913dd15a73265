"""Makes the generated parts of the documentation again: pictures, tables, example data. ``make docs`` calls it.

    python docs/build.py          # all that needs no models: parts between marker comments, pictures of recorded runs
    python docs/build.py --run    # first ask the demo ensemble again, and keep its rounds in docs/pictures/run.json
    python docs/build.py --shots  # photograph the recorded run's page in a real browser (make browser installs one)
    python docs/build.py --check  # change nothing; exit code 1 if something is not up to date

A part stands between ``<!-- docs/build.py: NAME -->`` and ``<!-- end -->``; what is between is not written by hand.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from langchain_specfuse import Trace

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
PACKAGE = ROOT / "langchain_specfuse"
sys.path.insert(0, str(DOCS))

import commands  # noqa: E402
import costs  # noqa: E402
import crowds  # noqa: E402
import engines  # noqa: E402
import marks  # noqa: E402
import sizes  # noqa: E402
from picture import drawn  # noqa: E402

QUESTION = "List five things to pack for a weekend at the beach."
ARGUMENTS = ["--max-tokens", "96"]
RUN = DOCS / "pictures" / "run.json"
PART = re.compile(r"(<!-- docs/build\.py: ([a-z-]+) -->\n).*?(<!-- end -->)", re.S)


# --- the recorded run -------------------------------------------------------------------------------------------


def record() -> None:
    """Ask the demo ensemble, as the command does, and keep the rounds."""
    command = [sys.executable, "-m", "langchain_specfuse.cli", "--json", *ARGUMENTS, QUESTION]
    told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT).stdout
    rounds = [json.loads(line) for line in told.splitlines()]
    shown = f'specfuse {" ".join(ARGUMENTS)} "{QUESTION}"'
    RUN.write_text(json.dumps({"command": shown, "rounds": rounds}, indent=1, ensure_ascii=False) + "\n")


def recorded_trace() -> Trace:
    """The recorded run as a trace."""
    from langchain_specfuse import Trace

    return Trace(json.loads(RUN.read_text())["rounds"], question=QUESTION)


def scripted_run() -> dict[str, Any]:
    """Three scripted members, one of which has another subject and leaves: the same numbers on every machine."""
    from langchain_specfuse import ScriptedMember
    from langchain_specfuse.core.values import Query, Settings, Turn
    from langchain_specfuse.engine import Ensemble

    members = [
        ScriptedMember(
            "The sky is blue because air scatters blue light much more than red light, and so it comes from all sides.",
            name="ann",
        ),
        ScriptedMember(
            "The sky looks blue because air bends blue light far more than red light, so it comes from all sides.",
            name="bob",
        ),
        ScriptedMember(
            "I like long trains, and all bends they take far more than any plane, which only goes straight on.",
            name="cyd",
        ),
    ]
    query = Query("docs", (Turn("user", QUESTION),))
    asked = Ensemble(members).rounds(query, Settings(segment_tokens=4))
    rounds = [item.as_dict() | {"margin": item.margin} for item in asked]
    for item in rounds:
        item["seconds"] = dict.fromkeys(item["seconds"], 0.001)
        for effort in (effort for phase in item["tokens"].values() for effort in phase.values()):
            effort["seconds"] = 0.0
    return {"command": "three scripted members", "rounds": rounds}


# --- the parts --------------------------------------------------------------------------------------------------


NUMBERS = (
    ("latency", "speedup_over_uncached", "the same method with nothing cached takes {0:g} times as long"),
    (
        "latency",
        "over_floor",
        "bare forward passes that the rounds need, timed alone: the whole takes {0:g} times as long",
    ),
    (
        "latency",
        "late_round_over_early",
        "a late round (11 to 13) costs {0:g} times an early one (2 to 4), per token drawn",
    ),
    (
        "latency",
        "first_segment_sooner",
        "an ensemble that picks among whole answers shows its first word {0:g} times as late",
    ),
    ("throughput", "gain", "{queries} questions at once are done {0:g} times as fast as one after another"),
    ("constrained", "round_over_free", "a round under a schema of {keys} keys takes {0:g} times as long as without"),
    ("constrained", "token_over_free", "a token drawn under that schema costs {0:g} times as much"),
)
"""File, key, and what it says; with other values of the same run by their keys."""


def numbers() -> str:
    """What the benchmarks measured, each beside the script that made it."""
    rows, runs = [], {}
    for name, key, words in NUMBERS:
        for run in _results(name):
            rows.append(f"| {words.format(run[key], **run)} | {run['dtype']} | `benchmarks/{name}.py` |")
            runs[name] = run
    if not rows:
        return "No numbers yet: `make bench` makes them.\n"
    return "\n".join(["| measured | in | made by |", "|---|---|---|", *rows, "", _setting(runs), ""])


def mutants() -> str:
    """Which small mistakes in the core its tests would notice, and which they would not."""
    told = json.loads((ROOT / "tests" / "torture" / "mutants.json").read_text())
    rows = ["| file of `core/` | mutants | tried | noticed | share |", "|---|---|---|---|---|"]
    for name, row in (*told["files"].items(), ("all", told["whole"])):
        tried, noticed = row["mutants"] - row["untried"], row["killed"] + row["hung"]
        share = f"{100 * noticed / tried:.1f} %" if tried else ""
        rows.append(f"| {name} | {row['mutants']} | {tried} | {noticed} | {share} |")
    return "\n".join(
        [*rows, "", f"{told['tests']} tests, {told['date']}; made by `python -m tests.torture.mutants`.", ""]
    )


def _results(name: str) -> list[dict[str, Any]]:
    """What a benchmark's last run found, one entry per precision; nothing if it has not run."""
    file = ROOT / "benchmarks" / f"{name}.json"
    return json.loads(file.read_text()) if file.exists() else []


def _setting(runs: Mapping[str, Mapping[str, Any]]) -> str:
    """What all of them have in common, and how long the prompts were."""
    any_run = next(iter(runs.values()))
    told = f"Members: {' and '.join(any_run['members'])}. Machine: {any_run['machine']}, torch {any_run['torch']}. "
    told += f"Measured in: {any_run['clock']}."
    if latency := runs.get("latency"):
        told += f" Prompt {latency['prompt_tokens']} tokens, answer {latency['answer_tokens']}, greedy."
    return told


def paper() -> str:
    """All places of the code marked ``Paper:``, where it differs from the paper or from its published reference."""
    return marks.table(PACKAGE)


def options() -> str:
    """Every field of the chat model, its default and its docstring."""
    tree = ast.parse((PACKAGE / "_fields.py").read_text())
    fields = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "SpecFuseFields")
    rows = ["| field | default | what it is |", "|---|---|---|"]
    for node, after in zip(fields.body, fields.body[1:], strict=False):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        private = node.target.id.startswith("_") or "ClassVar" in ast.unparse(node.annotation)
        if private or not isinstance(after, ast.Expr) or not isinstance(after.value, ast.Constant):
            continue
        told = " ".join(str(after.value.value).split()).replace("``", "`").replace("|", "\\|")
        rows.append(f"| `{node.target.id}` | {_default(node.value)} | {told} |")
    return "\n".join([*rows, ""])


def _default(value: ast.expr | None) -> str:
    if value is None:
        return ""
    if not isinstance(value, ast.Call):
        return f"`{ast.unparse(value)}`"
    named = {word.arg: ast.unparse(word.value) for word in value.keywords}
    return f"`{named['default']}`" if "default" in named else "`[]`"


def errors() -> str:
    """The tree in the docstring of ``errors.py``, and LangChain's classes beside it."""
    trees = []
    for name in ("errors.py", "_errors.py"):
        told = ast.get_docstring(ast.parse((PACKAGE / name).read_text())) or ""
        trees.append("\n".join(line[4:] for line in told.splitlines() if line.startswith("    ")))
    return "```text\n" + "\n\n".join(trees) + "\n```\n"


def round_event() -> str:
    """The second round of the scripted run, as ``specfuse_round`` carries it."""
    return _json(scripted_run()["rounds"][1])


def exit_event() -> str:
    """The departure in the scripted run, as ``specfuse_exit`` carries it."""
    item = next(item for item in scripted_run()["rounds"] if item["left"])
    return _json({**item["left"][0], "weights": item["weights"]})


def _json(data: Any) -> str:
    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [plain(inner) for inner in value]
        return round(value, 4) if isinstance(value, float) else value

    lines = [f' "{key}": {json.dumps(value)}' for key, value in plain(data).items()]
    return "```json\n{\n" + ",\n".join(lines) + "\n}\n```\n"


def cost_run() -> str:
    """What the recorded answer took."""
    return costs.one_answer(json.loads(RUN.read_text()))


def cost_traces() -> str:
    """What traces take."""
    return costs.traces(_results("tracing"))


def memory() -> str:
    """What an ensemble does with less memory than it would like."""
    return costs.memory(_results("memory"))


def startup() -> str:
    """What a start takes."""
    return costs.startup(_results("startup"))


def door() -> str:
    """What the front door takes."""
    return costs.door(_results("door"))


def kin() -> str:
    """What four members of one base take beside one."""
    return costs.kin(_results("kin"))


def speculation() -> str:
    """What guessing brings."""
    return costs.speculation(_results("speculation"))


def passes() -> str:
    """What fewer drafts and guesses save."""
    return costs.passes(_results("passes"))


def load() -> str:
    """What becomes of too many questions, and of a very long one."""
    return crowds.load(_results("load"))


def serving() -> str:
    """What a round costs on real engines."""
    return engines.table(_results("serving"))


def serving_rounds() -> str:
    """What is added to the members' own answers, and what a crowd gains."""
    return engines.rounds(_results("serving_rounds"))


def sizing() -> str:
    """What a million questions a day need."""
    return sizes.table(next(iter(_results("sizing")), {}))


def ray() -> str:
    """What a call to an actor costs."""
    return engines.ray_table(_results("ray_calls"))


def command(name: str) -> str:
    """The options of ``specfuse`` or of one of its subcommands."""
    module = importlib.import_module(f"langchain_specfuse.{name}")
    return commands.options(module.parser())


PARTS: Mapping[str, Callable[[], str]] = {
    "command": partial(command, "cli"),
    "command-eval": partial(command, "_command_eval"),
    "command-doctor": partial(command, "_command_doctor"),
    "command-serve": partial(command, "_command_serve"),
    "door": door,
    "kin": kin,
    "load": load,
    "memory": memory,
    "numbers": numbers,
    "mutants": mutants,
    "startup": startup,
    "cost-run": cost_run,
    "cost-traces": cost_traces,
    "ray": ray,
    "serving": serving,
    "serving-rounds": serving_rounds,
    "sizing": sizing,
    "speculation": speculation,
    "passes": passes,
    "paper": paper,
    "options": options,
    "errors": errors,
    "round-event": round_event,
    "exit-event": exit_event,
}


# --- putting them in their places -------------------------------------------------------------------------------


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted(DOCS.glob("*.md")), *sorted(DOCS.glob("reference/*.md"))]


def made() -> Iterator[tuple[Path, str]]:
    """Every file that holds something generated, with what it should hold."""
    for page in pages():
        text = page.read_text()
        yield page, PART.sub(lambda found: found[1] + PARTS[found[2]]() + found[3], text)
    yield DOCS / "pictures" / "run.svg", drawn(**json.loads(RUN.read_text()))
    yield DOCS / "pictures" / "run.html", recorded_trace().html()
    yield DOCS / "pictures" / "exit.svg", drawn(**scripted_run())


def stale() -> list[Path]:
    """The files that do not hold what they should."""
    return [file for file, text in made() if not file.exists() or file.read_text() != text]


def main() -> int:
    asked = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    asked.add_argument("--run", action="store_true", help="ask the demo ensemble again (a minute or two)")
    asked.add_argument("--shots", action="store_true", help="photograph the page of the recorded run (needs a browser)")
    asked.add_argument("--check", action="store_true", help="change nothing, only tell")
    given = asked.parse_args()
    if given.run:
        record()
    if given.shots:
        from shots import shot

        shot(recorded_trace(), DOCS / "pictures")
    old = stale()
    for file in old:
        print(f"{'out of date' if given.check else 'made again'}: {file.relative_to(ROOT)}")
    if given.check:
        return 1 if old else 0
    for file, text in list(made()):
        if file in old:
            file.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
