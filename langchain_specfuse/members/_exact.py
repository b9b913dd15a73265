"""Drafts and scores in token ids, on an engine that takes them: seams stay as exact as in this process.

Own segments keep their own tokens, text from others is read as part of the whole, the end of a turn is an event. Knows
tokens and text; nothing of HTTP, of the engine's words, or of votes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ..core.values import (
    Candidate,
    Constraint,
    Draft,
    DraftJob,
    Effort,
    Query,
    Sampling,
    Scored,
    ScoreJob,
    Segment,
    Tool,
    Turn,
)
from ..errors import MemberError
from ._dialects import Dialect, Drawn, Path, Way, Wish, either
from ._piece import Piece
from ._template import Template
from ._text import Words
from ._tools import speaks

CHECKED_TOKENS = 6
"""So many tokens are drawn, and scored again, to see whether a way to score is right."""
CLOSE_ENOUGH = 0.3
"""Mean difference of a log-probability: half precisions differ by less between two orders of one computation."""
WARM = 2.0
"""Numbers that are told as they are after a temperature lie far from the model's own here, however sure it is."""
CHECK = Turn("user", "Count from one to ten in words.")


@dataclass
class Exact:
    """One member's dealings with one engine."""

    name: str
    dialect: Dialect
    words: Words
    template: Template
    limit: int | None
    seed: int = 0
    repetition_penalty: float | None = None
    system_prompt: str | None = None
    known: dict[str, Way] = field(default_factory=dict)
    """The ways to score that have been tried and are right."""
    refused: dict[str, str] = field(default_factory=dict)
    """The others, and why."""
    raw: bool = True
    """Sampled drafts come with the model's own numbers, not with those after a temperature, a penalty or a mask."""
    _prompts: dict[str, list[int]] = field(default_factory=dict)

    # --- what it can do -----------------------------------------------------------------------------------------

    def check(self) -> None:
        """Draw a few tokens, score the same ones in every way there is, and keep the ways that agree."""
        self.known, self.refused, self.raw = {}, {}, True
        prompt = self.words.encode(self.template.prompt([CHECK], think=False))
        for way, score in self.dialect.ways().items():
            trouble = self._trouble(prompt, score)
            if trouble:
                self.refused[way] = trouble
            else:
                self.known[way] = score
        drawn = self._checked(prompt, WARM) if self.known else None
        if drawn and drawn.logprobs is not None:
            self.raw = self._far(prompt, drawn, next(iter(self.known.values())))[0] <= CLOSE_ENOUGH
        self.dialect.forget("check")

    def _trouble(self, prompt: list[int], score: Way) -> str:
        """What is wrong with this way to score, if something is."""
        if not (self.dialect.stops or self.template.end_text):
            return "it is not known how its turns end"
        compared = 0
        # Greedy tokens alone would not tell: a server that ignores what it is asked draws the same ones again.
        for temperature in (0.0, 1.0):
            drawn = self._checked(prompt, temperature)
            if drawn.logprobs is None:
                continue
            try:
                far, count = self._far(prompt, drawn, score)
            except (MemberError, KeyError, IndexError, TypeError, ValueError) as error:
                return f"{type(error).__name__}: {error}" if not isinstance(error, MemberError) else str(error)
            compared += count
            if not far <= CLOSE_ENOUGH:
                return f"its scores lie {far:.2f} from the numbers of its own drafts"
        return "" if compared else "its drafts come without numbers to compare with"

    def _checked(self, prompt: list[int], temperature: float) -> Drawn:
        how = Sampling(temperature, seed=7, repetition_penalty=1.0)
        return self.dialect.draw(Wish("check", prompt, CHECKED_TOKENS, how))

    def _far(self, prompt: list[int], drawn: Drawn, score: Way) -> tuple[float, int]:
        """How far the scores of these tokens lie from the numbers with which they were drawn; how many were told."""
        (told,) = score("check", [Path((*prompt, *drawn.tokens), len(prompt), drawn.ended)])
        own = [*(drawn.logprobs or ()), *([drawn.end_logprob] if drawn.ended else [])]
        return math.fsum(abs(a - b) for a, b in zip(own, told, strict=True)) / max(len(own), 1), len(told)

    # --- drafts and scores --------------------------------------------------------------------------------------

    def draft(self, job: DraftJob) -> Draft:
        context = self._context(job)
        room = (self.limit or len(context) + job.max_tokens) - len(context)
        self._fits(len(context) + 1)
        piece = Piece(job, self.words, context, min(job.max_tokens, room), self.template.end_text)
        effort = Effort(prompt=len(self._prompt(job.query)))
        constraint = rest(job.query.constraint, "".join(segment.text for segment in job.answer))
        while not piece.done:
            ids = [*context, *piece.tokens]
            how = self._how(job, len(ids))
            drawn = self.dialect.draw(Wish(job.query.id, ids, piece.wanted, how, None if piece.tokens else constraint))
            read = len(ids) - drawn.reused if drawn.told else 0
            effort += Effort(read=read + len(drawn.tokens), reused=drawn.reused)
            piece.take(drawn if self.raw or plain(how) else replace(drawn, logprobs=None))
        tokens, logprobs = piece.result()
        text, ends = self.words.told(context, tokens)
        known = None if logprobs is None else tuple(logprobs)
        if job.query.constraint is None:
            return Draft(text, piece.ended, tuple(tokens), known, effort)
        spaced = in_form(job, text)
        if spaced != text:  # its numbers are those of other tokens
            tokens, known = self.words.after(context, spaced), None
            text, ends = self.words.told(context, tokens)
        return Draft(text, piece.ended, tuple(tokens), known, effort, tuple(ends))

    def score(self, job: ScoreJob) -> Scored:
        context = self._context(job)
        paths = [self._path(job, context, candidate.text, candidate.ended) for candidate in job.candidates]
        tails = self._end_ids(job.query)
        said = [Path((*path.ids, *tails), len(path.ids)) for path in paths if path.ended and tails]
        self._fits(max(len(path.ids) + path.ended for path in (*paths, *said)))
        asked = [replace(path, ended=path.ended and bool(self.dialect.stops)) for path in (*paths, *said)]
        rows = self.dialect.way(self.known, len(context))(job.query.id, asked)
        in_words = iter(rows[len(paths) :])
        told = []
        for path, row in zip(paths, rows, strict=False):
            if path.ended and tails:
                by_token = row.pop() if self.dialect.stops else -math.inf
                row = [*row, either([by_token, math.fsum(next(in_words))])]
            told.append(tuple(row))
        ends = tuple(map(self._ends, paths, job.candidates)) if job.query.constraint else None
        return Scored(tuple(told), Effort(read=sum(len(path.new) for path in asked)), ends)

    def forget(self, query_id: str) -> None:
        self._prompts.pop(query_id, None)
        self.dialect.forget(query_id)

    def _ends(self, path: Path, candidate: Candidate) -> tuple[int, ...]:
        """How many of the candidate's characters are complete after each of its new tokens."""
        told, ends = self.words.told(path.ids[: path.start], path.new)
        before = len(told) - len(candidate.text)
        return tuple(max(0, end - before) for end in ends)

    def _how(self, job: DraftJob, position: int) -> Sampling:
        """The job's sampling with this member's penalty, and a seed that only the place in the answer changes."""
        how = job.sampling
        penalty = how.repetition_penalty or self.repetition_penalty
        seed = (how.seed + 1_000_003 * self.seed + 7_919 * position) % 2**31
        return replace(how, seed=seed, repetition_penalty=penalty)

    # --- tokens -------------------------------------------------------------------------------------------------

    def prompt_ids(
        self, turns: Sequence[Turn], tools: Sequence[Tool] = (), constraint: Constraint | None = None
    ) -> list[int]:
        """The prompt of these turns, rendered and read."""
        if self.system_prompt is not None:
            turns = [Turn("system", self.system_prompt), *(turn for turn in turns if turn.role != "system")]
        return self.words.encode(self.template.prompt(turns, tools, constraint, think=False))

    def _prompt(self, query: Query) -> list[int]:
        if query.id not in self._prompts:
            ids = self.prompt_ids(query.turns, query.tools, query.constraint)
            self._prompts[query.id] = ids or list(self.dialect.stops[:1]) or [0]
        return self._prompts[query.id]

    def _context(self, job: DraftJob | ScoreJob) -> list[int]:
        return self.words.answer_ids(self.name, self._prompt(job.query), job.answer)

    def _path(self, job: ScoreJob, context: Sequence[int], text: str, ended: bool) -> Path:
        """A candidate as it would be read if it were agreed: its first token may begin before it does."""
        answer = (*job.answer, Segment(text)) if text else job.answer
        ids = self.words.answer_ids(self.name, self._prompt(job.query), answer)
        return Path(tuple(ids), min(_common(context, ids), len(ids)), ended)

    def _end_ids(self, query: Query) -> list[int]:
        """The words that end a turn, where there are any and the query's constraint leaves room for them."""
        text = self.template.end_text
        return self.words.continuing(text, marks=True) if text and speaks(query.constraint) else []

    def _fits(self, size: int) -> None:
        if self.limit and size > self.limit:
            message = f"{size} tokens of prompt and answer do not fit into its context of {self.limit}"
            raise MemberError(message, member=self.name, kind="overflow")


def plain(how: Sampling) -> bool:
    """Whether an engine that tells its numbers after all that was asked of it tells the model's own.

    >>> plain(Sampling(1.0)), plain(Sampling(1.0, top_k=5))
    (True, False)
    """
    bounds = how.top_p in (None, 1.0) and not how.top_k and not how.min_p
    return how.temperature in (0.0, 1.0) and bounds and how.repetition_penalty in (None, 1.0)


def in_form(job: DraftJob, text: str) -> str:
    """A draft under no mask of ours, spaced as its query's form wants it: else a line break would end it."""
    from ..constraints import respaced

    return respaced(job.query.constraint, "".join(segment.text for segment in job.answer), text)


def rest(constraint: Constraint | None, answer: str) -> Constraint | None:
    """What the rest of the answer must look like, where an engine's guided decoding can hold that: it always begins
    with its first own token, so after the beginning of an answer only a choice can be told.

    >>> rest(Constraint("choice", '["blue", "black", "red"]'), "bl")
    Constraint(kind='choice', body='["ue", "ack"]')
    """
    if constraint is None or constraint.kind not in ("choice", "json_schema", "json", "regex"):
        return None
    if constraint.kind != "choice":
        return constraint if not answer else None
    left = [text[len(answer) :] for text in json.loads(constraint.body) if text.startswith(answer)]
    return Constraint("choice", json.dumps(left, ensure_ascii=False)) if left and all(left) else None


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two lists begin with alike."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
