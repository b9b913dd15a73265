"""How a template marks a thought, and prompts that begin one or leave it empty. Pure text; knows no model."""

from __future__ import annotations

OPEN, CLOSE = "<think>", "</think>"
AFTER = "\n\n"
"""The text between a thought and the answer."""


def opened(prompt: str) -> bool:
    """Whether the prompt ends inside a thought."""
    return prompt.rstrip().endswith(OPEN)


def with_thought(prompt: str, think: bool) -> str:
    """The prompt of a template that knows thoughts, ready for one or with an empty one.

    >>> with_thought("user: Why?", think=True), with_thought("user: Why? <think>", think=False)
    ('user: Why?<think>\\n', 'user: Why? <think>\\n\\n</think>\\n\\n')
    """
    if prompt.rstrip().endswith(CLOSE):
        return prompt  # the template's own arguments closed it already
    if opened(prompt):
        return prompt if think else f"{prompt.rstrip()}{AFTER}{CLOSE}{AFTER}"
    return f"{prompt}{OPEN}\n" if think else f"{prompt}{OPEN}{AFTER}{CLOSE}{AFTER}"
