"""ROUGE, BLEU and chrF against references, by the libraries that the field uses: ``rouge-score`` and ``sacrebleu``.

Graded, from 0 to 1. With several references the best counts (ROUGE), or all of them together (BLEU, chrF).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from types import MappingProxyType
from typing import Any

from ..errors import UsageError, advised
from .checkers import references
from .tasks import Checker, Grade, Question


def rouge(kind: str, question: Question, answer: str) -> Grade:
    """The F-measure of this kind; the others are told beside it."""
    scored = [_rouge().score(target, answer) for target in references(question)]
    best = {name: max(one[name].fmeasure for one in scored) for name in scored[0]}
    return Grade(best[kind], numbers=best)


@cache
def _rouge() -> Any:
    scorer = _library("rouge_score.rouge_scorer", "rouge-score")
    return scorer.RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=True)


def bleu(question: Question, answer: str) -> Grade:
    """BLEU of this sentence (with its usual smoothing), as a share."""
    return Grade(_library("sacrebleu", "sacrebleu").sentence_bleu(answer, references(question)).score / 100)


def chrf(question: Question, answer: str) -> Grade:
    """chrF2 of this sentence, as a share."""
    return Grade(min(1.0, _library("sacrebleu", "sacrebleu").sentence_chrf(answer, references(question)).score / 100))


def corpus_bleu(answered: Sequence[tuple[Question, str]]) -> dict[str, float]:
    """BLEU of all answers together, as papers report it: not the mean of the sentences'."""
    targets = [references(question) for question, _ in answered]
    most = max(map(len, targets))
    streams = [[row[at] if at < len(row) else None for row in targets] for at in range(most)]
    told = _library("sacrebleu", "sacrebleu").corpus_bleu([answer for _, answer in answered], streams)
    return {"corpus BLEU": float(told.score) / 100}


def _library(module: str, package: str) -> Any:
    import importlib

    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = UsageError(f"this checker needs {package}, which is not installed")
        raise advised(missing, 'pip install "langchain-specfuse[eval]"') from error


_ROUGES: dict[str, Callable[[Question, str], Grade]] = {k: partial(rouge, k) for k in ("rouge1", "rouge2", "rougeL")}
CHECKERS: Mapping[str, Checker] = MappingProxyType({**_ROUGES, "bleu": bleu, "chrf": chrf})
