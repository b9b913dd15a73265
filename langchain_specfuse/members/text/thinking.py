"""How thoughts are marked: in a prompt that begins one or leaves it out, and in a text that holds
one. Pure text."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Marks:
    """What stands around a thought: ``{open}thought{close}answer``."""

    open: str
    close: str
    none: str
    """What stands before an answer without a thought."""

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
        if self.opened(prompt):
            return (
                prompt
                if think
                else bare + f"{self.open}{self.close}".removeprefix(self.open.strip())
            )
        return prompt + (self.open if think else self.none)


TAGS = Marks("<think>\n", "\n</think>\n\n", "<think>\n\n</think>\n\n")
HARMONY = Marks(
    "<|channel|>analysis<|message|>",
    "<|end|><|start|>assistant<|channel|>final<|message|>",
    "<|channel|>final<|message|>",
)
"""The channels of gpt-oss."""


def parted(text: str, *, whole: bool = False) -> tuple[str, str] | None:
    """The thought at the beginning of a model's text, and the answer after it. None: it takes more
    text to tell; not with ``whole``, which says that there is no more.

    >>> parted("<think>Hm.</think>\\n\\nSo"), parted("So"), parted("<thi"), parted("<think>Hm.")
    (('Hm.', 'So'), ('', 'So'), None, None)
    """
    begun = text.lstrip()
    for marks in (TAGS, HARMONY):
        for begin, end in ((marks.open.strip(), marks.close.strip()), (marks.none.strip(), "")):
            if begun.startswith(begin):
                inside = begun.removeprefix(begin)
                thought, _, rest = inside.partition(end) if end else ("", "", inside)
                return (thought.strip(), rest.lstrip()) if rest.strip() or whole else None
            if begin.startswith(begun) and not whole:
                return None
    return "", text
