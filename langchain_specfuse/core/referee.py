"""Decides which text is allowed in an answer that has a constraint.

The loop asks the referee about every draft. Drafts of members that mask their own tokens pass
unchanged; a draft of another member is cut at the last legal character. A referee works on texts,
not on tokens. The one that reads grammars is in ``constraints``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from .values import ToolCall


class Referee:
    """The referee of a query without a constraint: everything is legal, nothing is forced.

    In every method, ``answer`` is a legal text: the beginning of some complete answer.
    """

    def legal(self, answer: str, draft: str) -> int:
        """How many characters of the draft may follow the answer."""
        return len(draft)

    def may_end(self, answer: str) -> bool:
        """Whether the answer is complete."""
        return True

    def must_end(self, answer: str) -> bool:
        """Whether the answer is complete and nothing may follow."""
        return False

    def forced(self, answer: str) -> str:
        """The text that must come next; "" if there is a choice, or if the answer must end.

        White space at its end is left to the members: many tokenizers join it to the next word.
        """
        return ""

    def spans(self, answer: str, draft: str) -> tuple[tuple[int, int], ...]:
        """The parts [from, to) of a legal draft that the constraint forced."""
        return ()

    def same(self, answer: str, draft: str) -> Hashable:
        """A key that is equal for drafts with the same meaning: the text, or the tool calls that it
        completes."""
        return draft

    def prose(self, answer: str) -> int:
        """The length of the free text at the beginning, which is searched for stop strings."""
        return len(answer)

    def possible_prose(self, answer: str) -> int:
        """The length of the free text, including an end that may still turn out to begin a call."""
        return self.prose(answer)

    def before_calls(self, answer: str) -> int:
        """The length of the text before the tool calls; the whole length if no call has certainly
        begun."""
        return len(answer)

    def calls(self, answer: str) -> tuple[tuple[ToolCall, int], ...]:
        """The complete tool calls, each with the place in the answer where it ends."""
        return ()

    def with_lone_calls(self, lone: Callable[[str], ToolCall | None]) -> Referee:
        """This referee, but one that also treats a whole text as a call if ``lone`` reads it as
        one."""
        return self


FREE = Referee()
