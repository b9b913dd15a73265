"""Does the ensemble help, on your own questions? Tasks, systems, a run that can be stopped,
statistics, reports.

A :class:`Task` and some :class:`System` make a :class:`Plan`; :func:`run` finds its
:class:`Result`, :func:`summary` makes a :class:`Report` of them, and :func:`table` shows that.
``docs/how-to/evaluate.md`` does all of it in twenty lines. The commands ``eval`` and ``doctor`` are
made of this.
"""

from .checkers import Grade, Question
from .report import table
from .results import Result, Results
from .running import Plan, run
from .summary import Report, summary
from .systems import System, chosen
from .tasks import Task, jsonl

__all__ = [
    "Grade",
    "Plan",
    "Question",
    "Report",
    "Result",
    "Results",
    "System",
    "Task",
    "chosen",
    "jsonl",
    "run",
    "summary",
    "table",
]
