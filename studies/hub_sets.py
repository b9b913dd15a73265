"""Published sets of questions, read from the Hugging Face hub or from files of the same shape.

Nothing is stored in this repository. Each set names its repository, its licence and, where it is
known, the commit. What was read is recorded in ``sets.json`` beside the answers, and a run that
continues reads the same commit again, from the hub's cache.

The instructions below the questions are ours; those of the papers are not known to us.
"""

from __future__ import annotations

import fnmatch
import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cases import DEVELOPMENT, part_of, spread
from questions import MATH, followed

from langchain_specfuse.core.letters import LETTERS
from langchain_specfuse.core.values import Turn
from langchain_specfuse.errors import UsageError, advised
from langchain_specfuse.evaluation import Grade, Question, Task
from langchain_specfuse.evaluation.graders import Grader, choice, number
from langchain_specfuse.evaluation.tasks import json_lines
from langchain_specfuse.members.hub import explained

Row = Mapping[str, Any]

CHOICE = "{}\n\n{}\n\nThink step by step, briefly. Then write: The answer is, and the letter."
LONG = 300
"""An answer of at least this many words is a long text."""
ONE_IN = 20
"""One question in this many is a development question."""


@dataclass(frozen=True)
class HubSet:
    """A set of questions on the hub, and how an answer is graded."""

    repository: str
    files: str
    """A pattern that fits one file of the repository: JSON lines, or parquet."""
    licence: str
    question: Callable[[Row], Question | None]
    """The question of a row; None for a row that is left out. Its id is the row's, if there is one."""
    grade: Grader
    max_tokens: int
    measure: str
    revision: str | None = None
    """The commit; None: the newest when the set is first read."""
    needs: tuple[str, ...] = ()
    """Packages beyond those of the package's ``hub`` extra."""


def _asked(text: str, reference: Any, name: Any = "", **facts: Any) -> Question:
    return Question(str(name), (Turn("user", text),), reference, facts=facts)


# --- questions ------------------------------------------------------------------------------------


def _problem(row: Row) -> Question:
    return _asked(MATH.format(row["question"]), str(row["answer"]))


def _science(row: Row) -> Question:
    choices = row["choices"]
    right = list(choices["label"]).index(row["answerKey"])
    return _chosen(row["question"], choices["text"], right, row.get("id", ""))


def _subject(row: Row) -> Question:
    return _chosen(row["question"], row["choices"], int(row["answer"]), kind=row["subject"])


def _chosen(
    text: str, choices: Sequence[str], right: int, name: Any = "", **facts: Any
) -> Question:
    listed = "\n".join(f"{letter}. {one}" for letter, one in zip(LETTERS, choices, strict=False))
    asked = CHOICE.format(text.strip(), listed)
    return _asked(asked, LETTERS[right], name, choices=list(choices), **facts)


def _instruction(row: Row) -> Question:
    return _asked(row["prompt"], None, row["key"], **row)


def _long_instruction(row: Row) -> Question | None:
    for values in row["kwargs"]:
        if values.get("relation") == "at least" and (values.get("num_words") or 0) >= LONG:
            return _instruction(row)
    return None


def _conversation(row: Row) -> Question:
    text = "\n\n".join(part for part in (row["instruction"], row.get("context")) if part)
    return _asked(text, row["response"], kind=row.get("category"))


def rouge_l(question: Question, answer: str) -> Grade:
    """ROUGE-L (F1) against the reference, as Google's ``rouge_score`` computes it."""
    return Grade(_scorer().score(question.reference, answer)["rougeL"].fmeasure)


@functools.cache
def _scorer() -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(["rougeL"])


RIGHT, OBEYED = "share of right answers", "share of answers that follow every instruction"
IFEVAL = HubSet(
    "google/IFEval",
    "ifeval_input_data.jsonl",
    "Apache-2.0",
    _instruction,
    followed,
    1280,
    OBEYED,
    "966cd89545d6b6acfd7638bc708b98261ca58e84",
    ("lm_eval", "langdetect", "immutabledict", "nltk"),
)
SETS: Mapping[str, HubSet] = {
    "gsm8k": HubSet(
        "openai/gsm8k",
        "main/test-*.parquet",
        "MIT",
        _problem,
        number,
        512,
        RIGHT,
        needs=("pyarrow",),
    ),
    "mmlu": HubSet(
        "cais/mmlu",
        "all/test-*.parquet",
        "MIT",
        _subject,
        choice,
        512,
        RIGHT,
        needs=("pyarrow",),
    ),
    "arc": HubSet(
        "allenai/ai2_arc",
        "ARC-Challenge/test-*.parquet",
        "CC BY-SA 4.0",
        _science,
        choice,
        512,
        RIGHT,
        "210d026faf9955653af8916fad021475a3f00453",
        ("pyarrow",),
    ),
    "ifeval": IFEVAL,
    "dolly": HubSet(
        "databricks/databricks-dolly-15k",
        "databricks-dolly-15k.jsonl",
        "CC BY-SA 3.0",
        _conversation,
        rouge_l,
        512,
        "ROUGE-L",
        "b122d1b59226377d51cb23bc16e9769e8ede491f",
        ("rouge_score",),
    ),
    "long": replace(IFEVAL, question=_long_instruction, max_tokens=2048),
}


# --- reading --------------------------------------------------------------------------------------


def task(name: str, part: str, count: int, folder: Path, data: Path | None = None) -> Task:
    """At most ``count`` questions of a part. ``data``: read ``NAME*.jsonl`` or ``NAME*.parquet`` of
    this folder instead of asking the hub. ``folder``: where what was read is recorded."""
    chosen = SETS[name]
    rows = rows_of(_here(name, data) if data else _fetched(name, folder))
    questions = [one for one in _questions(name, rows) if part_of(one.text, ONE_IN) == part]
    if not questions and part != DEVELOPMENT:
        error = UsageError(f"the file of {name} has no questions of the kind that is expected")
        raise advised(error, f"it must look like {chosen.files} of {chosen.repository}")
    return Task(
        name,
        tuple(spread(questions, count)),  # type: ignore[arg-type, type-var]
        chosen.grade,
        mark=f"{name} 1",
        max_tokens=chosen.max_tokens,
        measure=chosen.measure,
    )


def missing_packages(names: Sequence[str]) -> list[str]:
    """The packages that these sets need and that are not installed."""
    needed = dict.fromkeys(package for name in names for package in SETS[name].needs)
    return [package for package in needed if find_spec(package) is None]


def _questions(name: str, rows: Sequence[Row]) -> Iterator[Question]:
    for position, row in enumerate(rows):
        try:
            question = SETS[name].question(row)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            wrong = UsageError(
                f"row {position} of {name} does not have the expected fields: {error!r}, "
                f"it has {', '.join(row)}"
            )
            raise advised(wrong, f"it must look like {SETS[name].repository}") from error
        if question is not None:
            yield replace(question, id=f"{name} {question.id or position}")


def rows_of(path: Path) -> list[Row]:
    """The rows of a file of JSON lines, or of a parquet file."""
    if path.suffix == ".parquet":
        from pyarrow import parquet

        rows: list[Row] = parquet.read_table(path).to_pylist()
        return rows
    return [row for _, row in json_lines(path)]


def _here(name: str, data: Path) -> Path:
    """The only file of this set in a folder."""
    stem = "ifeval" if name == "long" else name
    found = [file for kind in ("jsonl", "parquet") for file in data.glob(f"{stem}*.{kind}")]
    if len(found) == 1:
        return found[0]
    error = UsageError(
        f"{data} must have one file {stem}*.jsonl or {stem}*.parquet, got {len(found)}"
    )
    raise advised(error, "leave --data out to read the sets from the hub")


def _fetched(name: str, folder: Path) -> Path:
    """The file of this set in the hub's cache, fetched if it is not there."""
    import huggingface_hub as library

    chosen, record = SETS[name], folder / "sets.json"
    known = json.loads(record.read_text("utf-8")) if record.exists() else {}
    at = known.get(name)
    try:
        if at is None:
            api = library.HfApi(endpoint=library.constants.ENDPOINT)
            about = api.dataset_info(chosen.repository, revision=chosen.revision)
            names = [file.rfilename for file in about.siblings or ()]
            at = {"file": _only(name, names), "revision": about.sha}
        file = library.hf_hub_download(
            chosen.repository, at["file"], revision=at["revision"], repo_type="dataset"
        )
    except UsageError:
        raise
    except Exception as error:  # the HTTP client may raise anything
        raise explained(error, f"datasets/{chosen.repository}") from error
    if name not in known:
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_text(json.dumps({**known, name: at}, indent=1) + "\n", "utf-8")
    return Path(file)


def _only(name: str, files: Sequence[str]) -> str:
    """The only one of a repository's files that fits the set's pattern."""
    chosen = SETS[name]
    fitting = [file for file in files if fnmatch.fnmatchcase(file, chosen.files)]
    if len(fitting) == 1:
        return fitting[0]
    error = UsageError(
        f"{chosen.repository} should have one file {chosen.files}, but {len(fitting)} files fit"
    )
    raise advised(error, "correct the pattern in studies/hub_sets.py, or read a file with --data")
