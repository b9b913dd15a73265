"""``python -m tests.golden NAME ...`` records the scenarios whose names begin with a NAME again."""

import sys

from . import scenarios
from .record import path_of, written

names = scenarios.beginning_with(sys.argv[1:])
if not names:
    sys.exit(
        f"no scenario begins with {' or '.join(sys.argv[1:])}; they are:\n"
        + "\n".join(scenarios.ALL)
    )
for name in names:
    path_of(name).write_text(written(scenarios.outcome(name)), encoding="utf-8")
    print(path_of(name))
