"""The prompts that this package adds. Everything else in a prompt comes from the user."""

from __future__ import annotations

from collections.abc import Sequence

FUSION = """Several assistants have answered this, each alone:

{answers}

Any part of these answers may be wrong. Write the final answer, in the form that was asked for, \
and do not mention these answers."""


def fusion(message: str, answers: Sequence[str]) -> str:
    """The user's message, followed by these answers without their authors. ``message`` is empty if
    the conversation does not end with a message of the user.

    >>> print(fusion("How many?", ["Two.", "Three."]))
    How many?
    <BLANKLINE>
    Several assistants have answered this, each alone:
    <BLANKLINE>
    Answer 1:
    Two.
    <BLANKLINE>
    Answer 2:
    Three.
    <BLANKLINE>
    Any part of these answers may be wrong. Write the final answer, in the form that was asked for, and do not mention these answers.
    """  # noqa: E501
    numbered = [f"Answer {number}:\n{text}" for number, text in enumerate(answers, 1)]
    request = FUSION.format(answers="\n\n".join(numbered))
    return f"{message}\n\n{request}" if message else request
