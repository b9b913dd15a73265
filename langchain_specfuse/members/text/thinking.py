"""How a template marks a thought: its two ends, and a prompt that is ready for one. Pure text; knows no model."""

from __future__ import annotations

OPEN, CLOSE = "<think>", "</think>"
AFTER = "\n\n"
"""What stands between a thought and the answer."""


def opened(prompt: str) -> bool:
    """Whether the prompt ends inside a thought."""
    return prompt.rstrip().endswith(OPEN)


def with_thought(prompt: str, think: bool) -> str:
    """The prompt of a template that knows thoughts, ready for one, or with an empty one.

    >>> with_thought("user: Why?", think=True), with_thought("user: Why? <think>", think=False)
    ('user: Why?<think>\\n', 'user: Why? <think>\\n\\n</think>\\n\\n')
    """
    if prompt.rstrip().endswith(CLOSE):
        return prompt  # closed already, as somebody has told the template
    if opened(prompt):
        return prompt if think else f"{prompt.rstrip()}{AFTER}{CLOSE}{AFTER}"
    return f"{prompt}{OPEN}\n" if think else f"{prompt}{OPEN}{AFTER}{CLOSE}{AFTER}"
