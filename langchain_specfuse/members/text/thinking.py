"""The marks around a model's thought: written into prompts, and found in texts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Marks:
    """The texts around a thought: ``{open}thought{close}answer``."""

    open: str
    close: str
    none: str
    """The text before an answer without a thought."""

    def opened(self, prompt: str) -> bool:
        """Whether the prompt ends inside a thought."""
        return prompt.rstrip().endswith(self.open.strip())

    def ready(self, prompt: str, think: bool) -> str:
        """The prompt, ready for a thought or without one.

        >>> TAGS.ready("user: Why?", think=True), TAGS.ready("user: Why? <think>", think=False)
        ('user: Why?<think>\\n', 'user: Why? <think>\\n\\n</think>\\n\\n')
        """
        bare = prompt.rstrip()
        if bare.endswith((self.close.strip(), self.none.strip())):
            return prompt  # the template's own arguments left the thought out
        if not self.opened(prompt):
            return prompt + (self.open if think else self.none)
        if think:
            return prompt
        return bare + f"{self.open}{self.close}".removeprefix(self.open.strip())


TAGS = Marks("<think>\n", "\n</think>\n\n", "<think>\n\n</think>\n\n")
HARMONY = Marks(
    "<|channel|>analysis<|message|>",
    "<|end|><|start|>assistant<|channel|>final<|message|>",
    "<|channel|>final<|message|>",
)
"""The channels of gpt-oss."""


def split_thought(text: str, *, whole: bool = False) -> tuple[str, str] | None:
    """The thought at the beginning of a model's text, and the answer after it. None if more text is
    needed to tell. ``whole``: there is no more text.

    >>> split_thought("<think>Hm.</think>\\n\\nSo"), split_thought("So")
    (('Hm.', 'So'), ('', 'So'))
    >>> split_thought("<thi"), split_thought("<think>Hm.")
    (None, None)
    """
    begun = text.lstrip()
    for marks in (TAGS, HARMONY):
        for begin, end in ((marks.open.strip(), marks.close.strip()), (marks.none.strip(), "")):
            if begun.startswith(begin):
                inside = begun.removeprefix(begin)
                thought, _, rest = inside.partition(end) if end else ("", "", inside)
                is_complete = whole or bool(rest.strip())
                return (thought.strip(), rest.lstrip()) if is_complete else None
            if begin.startswith(begun) and not whole:
                return None
    return "", text
