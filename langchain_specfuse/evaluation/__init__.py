"""Measure on your own questions whether an ensemble is better than each of its members.

A :class:`Task` holds questions and a grader. A :class:`Plan` says which :class:`System` (a member
alone, or several together) answers it. :func:`run` asks the questions, grades the answers and
stores each :class:`Graded` answer in :class:`Results`, so that an interrupted run continues.
:func:`summary` compares the systems, and :func:`table` prints that.

``docs/doctor.md`` has an example of twenty lines. The commands ``eval`` and ``doctor`` use
these functions.
"""

from .comparison import Comparison, Interval
from .graders import Grade, Question
from .report import Report, Row, summary, table
from .results import Graded, Results
from .running import Plan, System, alone_and_together, run
from .tasks import Task, jsonl

__all__ = [
    "Comparison",
    "Grade",
    "Graded",
    "Interval",
    "Plan",
    "Question",
    "Report",
    "Results",
    "Row",
    "System",
    "Task",
    "alone_and_together",
    "jsonl",
    "run",
    "summary",
    "table",
]
