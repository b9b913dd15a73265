"""Do several members decide better together than the best of them, after calibration?

Three tasks: a choice of ten domains (CLINC150), whether an opinion of a film is positive, and how
good a product is on a scale of three levels (both from the VADER data: sentences with people's
mean rating). Every member scores every question once; everything else is arithmetic on these
scores. ``preregistration.md``, section 7, says what was decided before any sealed question was
asked.

    pip download vaderSentiment==0.5 --no-deps --no-binary :all:
    python studies/decisions.py --data FOLDER --reviews vaderSentiment-0.5.zip
    python studies/decisions.py --data FOLDER --reviews vaderSentiment-0.5.zip --part sealed
    python studies/decisions.py --part sealed --table          # the table of results

A stopped run continues. Scores are stored without the texts.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import tarfile
import zipfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

from answers import Answers
from cases import DEVELOPMENT, SEALED, hashed
from command import arguments, need, parsed
from models import MODELS, member_of
from rows import show, sign_test

from langchain_specfuse.chat.labelling import LabelQuestion, scores_of
from langchain_specfuse.core.labels import (
    FLOOR,
    accuracy,
    averaged,
    brier,
    calibration_error,
    fit,
    log_loss,
    softmax,
)
from langchain_specfuse.core.options import Settings
from langchain_specfuse.core.values import Scored
from langchain_specfuse.engine.ensemble import Ensemble
from langchain_specfuse.engine.scoring import Scorers

SIZES = {"smollm2": 135, "gemma": 268, "qwen": 1544}
"""Millions of parameters: the weights without a calibration."""
SECONDS = {"smollm2": 0.6, "gemma": 1.0, "qwen": 3.0}
"""About how long a question takes on one core, until it is measured."""
REVIEWS = "5d97c37f3ef6e24eef331122e055dbedafeb6a56abfce0608b326701116ea49a"
"""The sha256 of the archive."""
PARTS = {DEVELOPMENT: (60, 60), SEALED: (150, 510)}
"""part -> how many examples of each task are for fitting, and how many for testing."""
ORDERED = 60
"""This many test questions are also asked with their labels listed in reverse order."""
TOGETHER = "together"
BLANK = "N/A"
RAW, MINUS_BLANK, CALIBRATED = "raw", "minus N/A", "calibrated"
"""How scores become probabilities: as they are, as the package does without a calibration; minus
the scores for the text ``BLANK``, as it did before; or as fitted to examples."""

QUESTIONS = {
    "domains": LabelQuestion.choice(
        dict.fromkeys(
            (
                "auto_and_commute",
                "banking",
                "credit_cards",
                "home",
                "kitchen_and_dining",
                "meta",
                "small_talk",
                "travel",
                "utility",
                "work",
            ),
            "",
        ),
        "Which domain does this request to a voice assistant belong to?",
    ),
    "films": LabelQuestion.yes_or_no("Is this opinion of a film positive?"),
    "products": LabelQuestion.levels(
        ["negative", "neutral or mixed", "positive"],
        "What does this sentence from a customer's review say about the product?",
    ),
}


# --- questions ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Example:
    """A text with its right label."""

    id: str
    task: str
    text: str
    label: int
    """The place of the right label in the question's labels."""
    fits: bool
    """Whether it is for fitting."""


def examples(part: str, data: Path, reviews: Path) -> list[Example]:
    """The examples of a part. Each label has the same number of them."""
    found = {"domains": domains(data), **ratings(reviews)}
    chosen = []
    for task, pairs in found.items():
        by_label: dict[str, list[str]] = defaultdict(list)
        for text, label in sorted(pairs, key=lambda pair: hashed(pair[0])):
            by_label[label].append(text)
        for label, texts in by_label.items():
            place = QUESTIONS[task].labels.index(label)
            chosen += _chosen(task, place, texts, part, len(by_label))
    return sorted(chosen, key=lambda example: example.id)


def _chosen(
    task: str, label: int, texts: Sequence[str], part: str, labels: int
) -> Iterator[Example]:
    """Development questions come first in the order of hashes, then those of the sealed part."""
    start = 0
    for name, counts in PARTS.items():
        for fits, count in zip((True, False), counts, strict=True):
            share = count // labels
            if name == part:
                for text in texts[start : start + share]:
                    yield Example(hashed(text)[:16], task, text, label, fits)
            start += share


def domains(folder: Path) -> list[tuple[str, str]]:
    """CLINC150's requests with their domains."""
    lines = (folder / "clinc-domains.jsonl").read_text(encoding="utf-8").splitlines()
    rows = {row["text"]: row["domain"] for row in map(json.loads, lines)}
    return list(rows.items())


def ratings(archive: Path) -> dict[str, list[tuple[str, str]]]:
    """Sentences about films and products with the label that people's mean rating (from -4 to 4)
    implies. Sentences between two labels are left out."""
    if hashed_file(archive) != REVIEWS:
        raise SystemExit(f"{archive} is not vaderSentiment-0.5.zip as the package index has it")
    with zipfile.ZipFile(archive) as outer:
        inner = outer.read("vaderSentiment-0.5/additional_resources/hutto_ICWSM_2014.tar.gz")
    with tarfile.open(fileobj=io.BytesIO(inner)) as files:
        films = dict(_rated(files, "movieReviewSnippets"))
        products = dict(_rated(files, "amazonReviewSnippets"))
    yes = [(text, "yes") for text, rating in films.items() if rating >= 1]
    no = [(text, "no") for text, rating in films.items() if rating <= -1]
    levels = [
        *((text, "0") for text, rating in products.items() if rating <= -1),
        *((text, "1") for text, rating in products.items() if abs(rating) <= 0.4),
        *((text, "2") for text, rating in products.items() if rating >= 1),
    ]
    return {"films": [*yes, *no], "products": levels}


def _rated(files: tarfile.TarFile, name: str) -> Iterator[tuple[str, float]]:
    file = files.extractfile(f"hutto_ICWSM_2014/{name}_GroundTruth.txt")
    assert file is not None
    for line in file.read().decode("latin-1").splitlines():
        _, rating, text = line.split("\t", 2)
        if len(text.split()) >= 4:
            yield text.strip(), float(rating)


def hashed_file(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# --- asking ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One member's scores of one question."""

    member: str
    task: str
    id: str
    """The id of the example; empty for the question without a text."""
    label: int
    fits: bool
    reversed: bool
    """Whether the labels were listed in the reverse order. The scores are in the usual order."""
    scores: tuple[float, ...]
    seconds: float
    read: int

    @property
    def key(self) -> tuple[str, str, str, bool]:
        return self.member, self.task, self.id, self.reversed


Asked = tuple[Example, bool]
"""An example, and whether the labels are listed in the reverse order."""


def asked(chosen: Sequence[Example], tasks: Sequence[str]) -> list[Asked]:
    """Everything that each member is asked."""
    everything: list[Asked] = []
    for task in tasks:
        own = [example for example in chosen if example.task == task]
        tests = [example for example in own if not example.fits]
        blank = Example("", task, BLANK, 0, True)
        everything += [(example, False) for example in (blank, *own)]
        everything += [(example, True) for example in (blank, *tests[:ORDERED])]
    return everything


def stored(path: Path) -> Answers[Row]:
    """The rows of earlier runs."""
    return Answers(path, Row, lambda row: row.key, SECONDS)


def left(rows: Answers[Row], name: str, everything: Sequence[Asked]) -> list[Asked]:
    """What this member has not scored yet."""
    return rows.left(everything, lambda asked: (name, asked[0].task, asked[0].id, asked[1]))


def ask_all(
    members: Mapping[str, Any], everything: Sequence[Asked], rows: Answers[Row], at_once: int
) -> None:
    """Let every member score everything that it has not scored yet."""
    for name, member in members.items():
        remaining = left(rows, name, everything)
        if remaining:
            scorers = Scorers(Ensemble([member]))
            scorers.probes()  # before the clock runs
            rows.store(name, len(remaining), _scored(scorers, name, remaining, at_once))


def _scored(
    scorers: Scorers, name: str, everything: Sequence[Asked], at_once: int
) -> Iterator[Row]:
    for start in range(0, len(everything), at_once):
        yield from _rows(scorers, name, everything[start : start + at_once])


def _rows(scorers: Scorers, name: str, part: Sequence[Asked]) -> list[Row]:
    questions = [turned_question(QUESTIONS[example.task], turned) for example, turned in part]
    jobs = [
        {name: question.job(example.text)}
        for question, (example, _) in zip(questions, part, strict=True)
    ]
    rows = []
    for (example, turned), received in zip(part, scorers.scored(jobs, Settings()), strict=True):
        reply = received[name]
        if not isinstance(reply, Scored):
            raise SystemExit(f"{name} failed: {reply}")
        scores = scores_of(reply)
        rows.append(
            Row(
                name,
                example.task,
                example.id,
                example.label,
                example.fits,
                turned,
                tuple(round(score, 5) for score in (scores[::-1] if turned else scores)),
                round(reply.effort.seconds, 4),
                reply.effort.read,
            )
        )
    return rows


def turned_question(question: LabelQuestion, turned: bool) -> LabelQuestion:
    """The question, or the same with its labels listed in the reverse order."""
    if not turned:
        return question
    return replace(
        question,
        labels=question.labels[::-1],
        descriptions=question.descriptions[::-1],
        texts=question.texts[::-1],
    )


# --- results --------------------------------------------------------------------------------------


def table(task: str, rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """Yield a row for each member, raw and calibrated, and for all together."""
    names = [name for name in SIZES if any(row.member == name for row in rows)]
    scores = {(row.member, row.id, row.reversed): row.scores for row in rows if row.task == task}
    usual = {row.key: row for row in rows if row.task == task and not row.reversed}
    complete = {
        row.id: row.label
        for row in usual.values()
        if row.id and all((name, task, row.id, False) in usual for name in names)
    }
    fitting = [key for key in complete if usual[names[0], task, key, False].fits]
    tests = [key for key in complete if key not in set(fitting)]
    if not fitting or not tests:
        return
    result = fit(
        {name: [scores[name, key, False] for key in fitting] for name in names},
        [complete[key] for key in fitting],
    )
    labels = [complete[key] for key in tests]

    def rows_of(name: str, turned: bool) -> list[tuple[float, ...]]:
        keys = tests if not turned else [key for key in tests if (name, key, True) in scores]
        return [scores[name, key, turned] for key in keys]

    def raw(name: str, turned: bool = False) -> list[Any]:
        return [softmax(row) for row in rows_of(name, turned)]

    def minus_blank(name: str, turned: bool = False) -> list[Any]:
        blank = scores[name, "", turned]
        return [softmax(minus(row, blank)) for row in rows_of(name, turned)]

    def calibrated(name: str, turned: bool = False) -> list[Any]:
        return [result.scales[name](row) for row in rows_of(name, turned)]

    kinds = {RAW: raw, MINUS_BLANK: minus_blank, CALIBRATED: calibrated}
    by_kind = {kind: {name: make(name) for name in names} for kind, make in kinds.items()}
    weights = {RAW: SIZES, MINUS_BLANK: SIZES, CALIBRATED: result.weights}
    best = by_kind[CALIBRATED][result.best]
    for kind, members in by_kind.items():
        every = {**members, TOGETHER: together(members, weights[kind])}
        for name, chances in every.items():
            own = [row for row in usual.values() if row.member in (name, *_all(name, names))]
            yield {
                "task": task,
                "system": name,
                "kind": kind,
                "questions": len(tests),
                "accuracy": round(accuracy(chances, labels), 4),
                "log loss": round(log_loss(chances, labels), 4),
                "brier": round(brier(chances, labels), 4),
                "calibration error": round(calibration_error(chances, labels), 4),
                "ms": round(1000 * _seconds(own, tests), 0),
                **(against(chances, best, labels) if name != result.best else {}),
            }
    for name in names:
        if (name, "", True) not in scores:
            continue  # not asked yet
        turned_keys = [key for key in tests if (name, key, True) in scores]
        places = [tests.index(key) for key in turned_keys]
        for kind, make in kinds.items():
            before = [by_kind[kind][name][place] for place in places]
            yield {
                "task": task,
                "system": name,
                "kind": f"{kind}, labels listed in the reverse order",
                **changes(before, make(name, True)),
            }
    yield {"task": task, "best": result.best, "weights": _rounded(result.weights)}


def _all(name: str, names: Sequence[str]) -> Sequence[str]:
    return names if name == TOGETHER else ()


def _rounded(values: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 3) for name, value in values.items()}


def _seconds(rows: Sequence[Row], tests: Sequence[str]) -> float:
    """The median over test questions of the seconds that these members take for one."""
    chosen = set(tests)
    by_question: dict[str, float] = defaultdict(float)
    for row in rows:
        if row.id in chosen:
            by_question[row.id] += row.seconds
    return median(by_question.values()) if by_question else 0.0


def together(members: Mapping[str, Sequence[Any]], weights: Mapping[str, float]) -> list[Any]:
    columns = zip(*members.values(), strict=True)
    return [averaged(dict(zip(members, column, strict=True)), weights) for column in columns]


def against(own: Sequence[Any], best: Sequence[Any], labels: Sequence[int]) -> dict[str, Any]:
    """Wins and losses against the best calibrated member, and the difference in log loss with its
    standard error."""
    pairs = list(zip(own, best, labels, strict=True))
    right = [(a.index(max(a)) == label, b.index(max(b)) == label) for a, b, label in pairs]
    won, lost, p = sign_test(right)
    gains = [math.log(max(a[k], FLOOR)) - math.log(max(b[k], FLOOR)) for a, b, k in pairs]
    error = stdev(gains) / math.sqrt(len(gains)) if len(gains) > 1 else 0.0
    return {
        "won": won,
        "lost": lost,
        "p": round(p, 4),
        "log loss gained": round(mean(gains), 4),
        "standard error": round(error, 4),
    }


def minus(scores: Sequence[float], blank: Sequence[float]) -> tuple[float, ...]:
    """The scores minus those for a text without content.

    Zhao et al. 2021 (arXiv:2102.09690), Holtzman et al. 2021 (arXiv:2104.08315).

    >>> minus([-4.0, -1.0], [-6.0, -1.0])
    (2.0, 0.0)
    """
    return tuple(score - usual for score, usual in zip(scores, blank, strict=True))


def changes(before: Sequence[Any], after: Sequence[Any]) -> dict[str, Any]:
    """How much the probabilities of labels change."""
    moved = [
        abs(p - q) for a, b in zip(before, after, strict=True) for p, q in zip(a, b, strict=True)
    ]
    return {
        "questions": len(before),
        "mean change": round(mean(moved), 4) if moved else 0.0,
        "largest change": round(max(moved, default=0.0), 4),
    }


def tables(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows of all tasks."""
    return [line for task in QUESTIONS for line in table(task, rows)]


# --- the command ----------------------------------------------------------------------------------


def main() -> None:
    parser = arguments(__doc__, list(PARTS), at_once=4)
    parser.add_argument("--reviews", type=Path, metavar="ZIP", help="vaderSentiment-0.5.zip")
    parser.add_argument("--tasks", nargs="+", choices=QUESTIONS, default=list(QUESTIONS))
    parser.add_argument("--members", nargs="+", choices=SIZES, default=list(SIZES))
    options = parsed(parser)
    rows = stored(options.folder / "decisions" / f"{options.part}.jsonl")
    if options.table:
        return show(tables(rows.all), options.out)
    need(parser, options, "data", "reviews")
    everything = asked(examples(options.part, options.data, options.reviews), options.tasks)
    remaining = {name: len(left(rows, name, everything)) for name in options.members}
    print(rows.plan(remaining), flush=True)
    if options.plan:
        return None
    members = {name: member_of(MODELS[name], name) for name in options.members}
    ask_all(members, everything, rows, options.at_once)
    return show(tables(rows.all), options.out)


if __name__ == "__main__":
    main()
