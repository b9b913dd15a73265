"""JSON as somebody wrote it who was not held to our spacing: the same, spaced as grammars here want it."""

from __future__ import annotations

from ..core.values import Constraint
from ._closing import Scan
from ._kinds import Free, plan_of
from ._rules import Json


def respaced(constraint: Constraint | None, answer: str, draft: str) -> str:
    """The draft behind the answer, one way: nothing but one space behind each ``:`` and ``,`` outside of strings.

    What is no JSON by its constraint stays as it is.

    >>> respaced(Constraint("json"), "{", '\\n  "a":[1,2],\\n  "b c" : " , "')
    '"a": [1, 2], "b c": " , "'
    """
    if constraint is None or not _is_json(constraint):
        return draft
    scan, found = Scan.behind(answer), []
    if not scan.inside and answer.endswith((",", ":")):
        found.append(" ")
    for letter in draft:
        outside = not scan.inside
        scan.move(letter.encode("utf-8", "surrogatepass"))
        if outside and letter in " \t\r\n":
            continue
        found.append(letter + " " if outside and letter in ",:" else letter)
    return "".join(found)


def _is_json(constraint: Constraint) -> bool:
    plan = plan_of(constraint)
    return plan.free is Free.NONE and all(isinstance(rules, Json) for rules in plan.rules)
