"""Does the ensemble help, on your own questions? Tasks, systems, a run that can be stopped, statistics, reports.

A ``Task`` and some ``System`` make a ``Plan``; ``run`` finds its ``Result``, ``summary`` a ``Report`` of them, and
``table`` or ``page`` show that. The page ``docs/evaluation.md`` does all of it in twenty lines.

``specfuse eval`` and ``specfuse doctor`` are this room's commands. It knows members and rounds, never LangChain's face.
"""

from .builtin import gsm8k, human_eval, if_eval, jsonl, task_named
from .page import page
from .report import table
from .results import Result, Results
from .running import Plan, run
from .summary import Report, summary
from .systems import System, chosen
from .tasks import Grade, Question, Task

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
    "gsm8k",
    "human_eval",
    "if_eval",
    "jsonl",
    "page",
    "run",
    "summary",
    "table",
    "task_named",
]
