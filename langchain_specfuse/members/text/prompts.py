"""One member's prompts, answers and candidates as token ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...core.values import Candidate, Constraint, ScoreJob, Segment, Tool, Turn
from .templates import Template, with_system
from .tools import allows_prose
from .words import Words


class Prompts:
    """Writes prompts with a chat template and turns them, and answers, into token ids.

    A ``Prompts`` never changes, so any thread may use it.
    """

    def __init__(
        self,
        name: str,
        words: Words,
        template: Template,
        stops: Sequence[int],
        *,
        system_prompt: str | None = None,
        thinks: bool = True,
    ) -> None:
        """``name``: the member whose own segments keep their tokens. ``thinks``: False leaves the
        reasoning out of every prompt."""
        self.name = name
        self.words = words
        self.template = template
        self.stops = list(stops)
        """Tokens that end a turn."""
        self.system_prompt = system_prompt
        self.thinks = thinks
        end_text = template.end_text
        self.end_ids = words.continuing(end_text, marks=True) if end_text else []
        """The text that ends a turn, for a model without stop tokens."""

    def prompt(
        self,
        turns: Sequence[Turn],
        tools: Sequence[Tool] = (),
        constraint: Constraint | None = None,
        *,
        think: bool = True,
    ) -> list[int]:
        """The tokens before the answer, or before the reasoning if the template has room for it.

        An empty prompt becomes a single stop token, because a model must read something.
        """
        parts = self.parts(turns, tools, constraint, think=think and self.thinks)
        return self.words.encode_parts(parts) or self.stops[:1] or [0]

    def parts(
        self,
        turns: Sequence[Turn],
        tools: Sequence[Tool],
        constraint: Constraint | None,
        *,
        think: bool,
    ) -> list[str]:
        """The prompt as text, in parts to be tokenized separately."""
        if self.system_prompt is not None:
            turns = with_system(turns, self.system_prompt)
        return self.template.parts(turns, tools, constraint, think=think)

    def candidates(self, job: ScoreJob, context: Context) -> list[CandidateTokens]:
        """The job's candidates, each after the prompt and the answer."""
        end_ids = self.end_ids
        if end_ids and not allows_prose(job.query.constraint):
            end_ids = []
        candidates = []
        for candidate in job.candidates:
            ids = context.ids(job.answer, candidate.text)
            whole = ids + end_ids if candidate.ended else ids
            candidates.append(CandidateTokens(candidate, whole, len(ids)))
        return candidates


@dataclass(frozen=True)
class CandidateTokens:
    """A candidate in one member's tokens."""

    candidate: Candidate
    ids: list[int]
    """Prompt, answer and candidate. If the candidate ends the answer of a model without stop
    tokens, the text that ends a turn follows."""
    size: int
    """The number of tokens without that text."""


class Context:
    """One query in one member's tokens: the prompt, and the agreed answer after it.

    Tokens up to the member's last own segment never change again. Only what follows is tokenized
    anew, so a long answer costs no more than a short one.
    """

    def __init__(self, prompts: Prompts, prompt: list[int]) -> None:
        self.prompt = prompt
        """With the member's reasoning, if there is any."""
        self._name = prompts.name
        self._words = prompts.words
        self._settled: tuple[Segment, ...] = ()
        """The answer up to the last own segment."""
        self._settled_ids: list[int] = []

    def ids(self, answer: tuple[Segment, ...], text: str = "") -> list[int]:
        """Prompt, answer and ``text``, tokenized as if the text were agreed."""
        if text:
            answer = (*answer, Segment(text))
        size = len(self._settled)
        if not size or answer[:size] != self._settled:
            size, self._settled, self._settled_ids = 0, (), self.prompt
        last_own = self._after_last_own(answer, size)
        if last_own > size:
            self._settled_ids = self._answer_ids(answer[size:last_own])
            self._settled = answer[:last_own]
            size = last_own
        return self._answer_ids(answer[size:])

    def _answer_ids(self, segments: Sequence[Segment]) -> list[int]:
        return self._words.answer_ids(self._name, self._settled_ids, segments)

    def _after_last_own(self, answer: Sequence[Segment], start: int) -> int:
        """The number of segments up to the member's last own one; 0 if it has none after
        ``start``."""
        for at in range(len(answer) - 1, start - 1, -1):
            if self._name in answer[at].tokens:
                return at + 1
        return 0
