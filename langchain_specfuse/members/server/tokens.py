"""Drafts and scores in token ids, on an engine that takes them: seams are as exact as with a model
in this process.

A member's own segments keep their own tokens, text from others is tokenized as part of the whole,
the end of a turn is an event. :class:`Dialect` is what a member asks of an engine; ``vllm``,
``sglang`` and ``llamacpp`` implement it.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...constraints import left_out, respaced
from ...core.values import (
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
from ...errors import MemberError, UsageError, advised, amount
from ..text.templates import Template, with_system
from ..text.tools import allows_prose
from ..text.words import PartialDraft, Words, either
from .http import Client
from .tokenizers import RemoteTokenizer

CHECKED_TOKENS = 6
"""This many tokens are drawn, and scored again, to see whether a scorer is right."""
CLOSE_ENOUGH = 0.3
"""Mean difference of a log-probability: half precisions differ by less between two orders of one
computation."""
WARM = 2.0
"""At this temperature, log-probabilities after the temperature differ clearly from the model's own,
however sure it is."""
MOST_PARTS = 200
"""The most parts of a prompt with the server's tokenizer, because each costs two requests."""
CHECK = Turn("user", "Count from one to ten in words.")


@dataclass(frozen=True, slots=True)
class Request:
    """Draw tokens after these."""

    key: str
    """The query's id: its requests should reach the same cache."""
    ids: Sequence[int]
    count: int
    sampling: Sampling
    constraint: Constraint | None = None
    """What begins with the first token that is drawn: the engine may hold the draft to it."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """The tokens that an engine drew."""

    tokens: tuple[int, ...]
    """Without the one that ended the turn."""
    logprobs: tuple[float, ...] | None
    """The model's own; None where the engine reports others (after a mask, a temperature or a
    penalty)."""
    ended: bool = False
    ended_by: float = 0.0
    """The log-probability of the end of the turn."""
    reused: int | None = None
    """Tokens of the prompt that were in a cache; None: unknown."""


@dataclass(frozen=True, slots=True)
class Path:
    """Tokens whose log-probabilities are wanted: those from ``start`` on and, if ``ended``, the end
    of the turn."""

    ids: tuple[int, ...]
    start: int
    ended: bool = False

    @property
    def new(self) -> tuple[int, ...]:
        return self.ids[self.start :]


Scorer = Callable[[str, Sequence[Path]], list[list[float]]]
"""(query id, paths) -> per path one log-probability per new token, and one for the end if it
ends."""


class Dialect(ABC):
    """How to ask one kind of engine."""

    name: str

    def __init__(self, client: Client, model: str) -> None:
        self.client, self.model = client, model
        self.stops: Sequence[int] = ()
        self.words: Words
        """Both are known once there is a tokenizer: the tokens that end a turn, and texts as
        tokens."""

    @abstractmethod
    def tokenizer(self) -> RemoteTokenizer | None:
        """The server's own, if it offers it."""

    @abstractmethod
    def draw(self, request: Request) -> Drawn:
        """Draw tokens."""

    @abstractmethod
    def scorers(self) -> Mapping[str, Scorer]:
        """The ways in which it may be able to score, the cheapest first; which of them are right is
        found by trying."""

    def scorer(self, known: Mapping[str, Scorer], size: int) -> Scorer:
        """The best of these for a context of this size."""
        return next(iter(known.values()))

    def limit(self) -> int | None:
        """Tokens of prompt and answer together, if the list of models says."""
        return next(
            (
                one.get("max_model_len")
                for one in self.client.models()
                if one.get("id") == self.model
            ),
            None,
        )

    def forget(self, key: str) -> None:
        """The query is over."""
        return

    # --- replies that can be believed -------------------------------------------------------------

    def logprobs(self, values: Iterable[Any], wanted: int) -> tuple[float, ...]:
        """The log-probabilities of a reply, if they are as many as wanted, and numbers."""
        found = tuple(values)
        if len(found) != wanted:
            message = (
                f"{self.model} returned {amount(len(found), 'log-probability')} for "
                f"{amount(wanted, 'token')}"
            )
            raise MemberError(message, member=self.model)
        bad = [value for value in found if not isinstance(value, (int, float)) or math.isnan(value)]
        if bad:
            kind = "nan" if isinstance(bad[0], float) else "error"
            raise MemberError(
                f"{self.model} returned {bad[0]!r} as a log-probability",
                member=self.model,
                kind=kind,
            )
        return tuple(min(0.0, float(value)) for value in found)

    def check_same(self, returned: Sequence[int], asked: Sequence[int]) -> None:
        """The reply must be about the tokens that were asked for: some servers ignore what they do
        not know."""
        if list(returned) != list(asked):
            message = (
                f"{self.model} was asked about the tokens {list(asked)[:8]} and returned "
                f"{list(returned)[:8]}"
            )
            raise MemberError(message, member=self.model)


@dataclass
class TokenSession:
    """One member's drafts and scores on one engine."""

    name: str
    dialect: Dialect
    words: Words
    template: Template
    limit: int | None
    seed: int = 0
    repetition_penalty: float | None = None
    system_prompt: str | None = None
    known: dict[str, Scorer] = field(default_factory=dict)
    """The scorers that have been tried and are right."""
    refused: dict[str, str] = field(default_factory=dict)
    """The others, and why."""
    raw: bool = True
    """Sampled drafts come with the model's own numbers, not with those after a temperature, a
    penalty or a mask."""
    _prompts: dict[str, list[int]] = field(default_factory=dict)

    # --- what the engine can do -------------------------------------------------------------------

    def check(self) -> None:
        """Draw a few tokens, score them with every scorer, and keep those that agree with the
        draft's own numbers."""
        prompt = self.words.encode_parts(self.template.parts([CHECK], think=False))
        for name, scorer in self.dialect.scorers().items():
            trouble = self._trouble(prompt, scorer)
            if trouble:
                self.refused[name] = trouble
            else:
                self.known[name] = scorer
        drawn = self._draw_check(prompt, WARM) if self.known else None
        if drawn and drawn.logprobs is not None:
            self.raw = (
                self._difference(prompt, drawn, next(iter(self.known.values())))[0] <= CLOSE_ENOUGH
            )
        self.dialect.forget("check")

    def _trouble(self, prompt: list[int], scorer: Scorer) -> str:
        """What is wrong with this scorer; empty if nothing is."""
        if not (self.dialect.stops or self.template.end_text):
            return "it is not known how its turns end"
        compared = 0
        # Greedy tokens alone prove nothing: a server that ignores what it does not know draws the
        # same ones again.
        for temperature in (0.0, 1.0):
            drawn = self._draw_check(prompt, temperature)
            if drawn.logprobs is None:
                continue
            try:
                difference, count = self._difference(prompt, drawn, scorer)
            except MemberError as error:
                return str(error)
            except (KeyError, IndexError, TypeError, ValueError) as error:
                return f"{type(error).__name__}: {error}"
            compared += count
            if not difference <= CLOSE_ENOUGH:
                return (
                    f"its scores differ by {difference:.2f} from the log-probabilities of its "
                    "own drafts"
                )
        return "" if compared else "its drafts come without numbers to compare with"

    def _draw_check(self, prompt: list[int], temperature: float) -> Drawn:
        how = Sampling(temperature, seed=7, repetition_penalty=1.0)
        return self.dialect.draw(Request("check", prompt, CHECKED_TOKENS, how))

    def _difference(self, prompt: list[int], drawn: Drawn, scorer: Scorer) -> tuple[float, int]:
        """Mean difference between the scores of these tokens and the numbers with which they were
        drawn; how many."""
        (scores,) = scorer("check", [Path((*prompt, *drawn.tokens), len(prompt), drawn.ended)])
        own = [*(drawn.logprobs or ()), *([drawn.ended_by] if drawn.ended else [])]
        return math.fsum(abs(a - b) for a, b in zip(own, scores, strict=True)) / max(
            len(own), 1
        ), len(scores)

    # --- drafts and scores ------------------------------------------------------------------------

    def draft(self, job: DraftJob) -> Draft:
        context = self._context(job)
        room = (self.limit or len(context) + job.max_tokens) - len(context)
        self._check_fits(len(context) + 1)
        draft = PartialDraft(
            job, self.words, context, min(job.max_tokens, room), self.template.end_text
        )
        effort = Effort(prompt=len(self._prompt(job.query)))
        constraint = remaining(
            job.query.constraint, "".join(segment.text for segment in job.answer)
        )
        while draft.end is None:
            ids, how = (
                [*context, *draft.tokens],
                self._sampling(job, len(context) + len(draft.tokens)),
            )
            asked = Request(
                job.query.id, ids, draft.wanted, how, None if draft.tokens else constraint
            )
            drawn = self.dialect.draw(asked)
            read = 0 if drawn.reused is None else len(ids) - drawn.reused
            effort += Effort(read=read + len(drawn.tokens), reused=drawn.reused or 0)
            logprobs = drawn.logprobs if self.raw or _is_plain(how) else None
            draft.add(drawn.tokens, logprobs, ended=drawn.ended, ended_by=drawn.ended_by)
        return self._finished(job, draft, effort)

    def _finished(self, job: DraftJob, draft: PartialDraft, effort: Effort) -> Draft:
        assert draft.end is not None
        tokens, logprobs = draft.result()
        text, ends = self.words.text_after(draft.context, tokens)
        known = None if logprobs is None else tuple(logprobs)
        if job.query.constraint is None:
            return Draft(text, draft.end.ended, tuple(tokens), known, effort, tuple(ends))
        spaced = as_constrained(job, text)
        if spaced != text:  # the numbers are those of other tokens
            tokens, known = self.words.after(draft.context, spaced), None
            text, ends = self.words.text_after(draft.context, tokens)
        return Draft(text, draft.end.ended, tuple(tokens), known, effort, tuple(ends))

    def score(self, job: ScoreJob) -> Scored:
        if not self.known:
            raise MemberError("it is draft-only", member=self.name)
        context = self._context(job)
        paths = [self._path(job, context, candidate) for candidate in job.candidates]
        end = self._end_ids(job.query)
        written = [Path((*path.ids, *end), len(path.ids)) for path in paths if path.ended and end]
        self._check_fits(max(len(path.ids) + path.ended for path in (*paths, *written)))
        asked = [
            replace(path, ended=path.ended and bool(self.dialect.stops))
            for path in (*paths, *written)
        ]
        rows = self.dialect.scorer(self.known, len(context))(job.query.id, asked)
        by_text = iter(rows[len(paths) :])
        scores = []
        for path, row in zip(paths, rows, strict=False):
            if path.ended and end:  # the turn ends by a token or by the text that ends it
                by_token = row.pop() if self.dialect.stops else -math.inf
                row = [*row, either([by_token, math.fsum(next(by_text))])]
            scores.append(tuple(row))
        ends = None
        if job.query.constraint:
            pairs = zip(paths, job.candidates, strict=True)
            ends = tuple(
                self.words.ends(path.ids[: path.start], path.new, one.text) for path, one in pairs
            )
        return Scored(tuple(scores), Effort(read=sum(len(path.new) for path in asked)), ends)

    def forget(self, query_id: str) -> None:
        self._prompts.pop(query_id, None)
        self.dialect.forget(query_id)

    def _sampling(self, job: DraftJob, position: int) -> Sampling:
        """The job's sampling with this member's penalty, and a seed that depends only on the place
        in the answer."""
        penalty = job.sampling.repetition_penalty or self.repetition_penalty
        seed = (job.sampling.seed + 1_000_003 * self.seed + 7_919 * position) % 2**31
        return replace(job.sampling, seed=seed, repetition_penalty=penalty)

    # --- tokens -----------------------------------------------------------------------------------

    def prompt_ids(
        self,
        turns: Sequence[Turn],
        tools: Sequence[Tool] = (),
        constraint: Constraint | None = None,
    ) -> list[int]:
        """The tokens of these turns' prompt."""
        if self.system_prompt is not None:
            turns = with_system(turns, self.system_prompt)
        parts = self.template.parts(turns, tools, constraint, think=False)
        if len(parts) > MOST_PARTS and isinstance(self.words.tokenizer, RemoteTokenizer):
            error = UsageError(
                f"{amount(len(parts) - 1, 'text')} in this conversation would be read as control "
                f"tokens; without tokenizer=, at most {MOST_PARTS} can be sent as text"
            )
            raise advised(error, "name the model's tokenizer: tokenizer=")
        return self.words.encode_parts(parts)

    def _prompt(self, query: Query) -> list[int]:
        if query.id not in self._prompts:
            ids = self.prompt_ids(query.turns, query.tools, query.constraint)
            self._prompts[query.id] = ids or list(self.dialect.stops[:1]) or [0]
        return self._prompts[query.id]

    def _context(self, job: DraftJob | ScoreJob) -> list[int]:
        return self.words.answer_ids(self.name, self._prompt(job.query), job.answer)

    def _path(self, job: ScoreJob, context: Sequence[int], candidate: Candidate) -> Path:
        """The candidate as it would be tokenized if it were agreed: its first token may begin
        before it does."""
        answer = (*job.answer, Segment(candidate.text)) if candidate.text else job.answer
        ids = self.words.answer_ids(self.name, self._prompt(job.query), answer)
        alike = zip(context, ids, strict=False)
        shared = next(
            (at for at, (a, b) in enumerate(alike) if a != b), min(len(context), len(ids))
        )
        return Path(tuple(ids), shared, candidate.ended)

    def _end_ids(self, query: Query) -> list[int]:
        """The text that ends a turn, where there is one and the query's constraint leaves room for
        it."""
        text = self.template.end_text
        return (
            self.words.continuing(text, marks=True)
            if text and allows_prose(query.constraint)
            else []
        )

    def _check_fits(self, size: int) -> None:
        if self.limit and size > self.limit:
            message = (
                f"{size} tokens of prompt and answer do not fit into its context of {self.limit}"
            )
            raise MemberError(message, member=self.name, kind="overflow")


def _is_plain(how: Sampling) -> bool:
    """Whether numbers after temperature, bounds and penalty are the model's own."""
    bounds = how.top_p in (None, 1.0) and not how.top_k and not how.min_p
    return how.temperature in (0.0, 1.0) and bounds and how.repetition_penalty in (None, 1.0)


def as_constrained(job: DraftJob, text: str) -> str:
    """A draft that no mask of ours held, spaced as its query's constraint wants it: else a line
    break would end it."""
    return respaced(job.query.constraint, "".join(segment.text for segment in job.answer), text)


def remaining(constraint: Constraint | None, answer: str) -> Constraint | None:
    """What the rest of the answer must look like, where an engine's guided decoding can hold it.

    Guided decoding begins with the first drawn token, so after the beginning of an answer only a
    choice can be passed.

    >>> remaining(Constraint("choice", '["blue", "black", "red"]'), "bl")
    Constraint(kind='choice', body='["ue", "ack"]')
    """
    if constraint is None or constraint.kind not in ("choice", "json_schema", "json", "regex"):
        return None
    if constraint.kind != "choice":
        # An engine may refuse a schema that no grammar can express whole.
        return None if answer or left_out(constraint) else constraint
    left = [text[len(answer) :] for text in json.loads(constraint.body) if text.startswith(answer)]
    return (
        Constraint("choice", json.dumps(left, ensure_ascii=False)) if left and all(left) else None
    )


# --- what dialects have in common -----------------------------------------------------------------


def cached_tokens(count: Any, most: int) -> int | None:
    """How many of the prompt's tokens were in a cache, if the reply has a count.

    >>> cached_tokens(7, 5), cached_tokens(float("inf"), 5)
    (5, None)
    """
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        return None
    return min(count, most)


def prompts_of(path: Path, stops: Sequence[int]) -> list[list[int]]:
    """The path as whole prompts: one that ends comes once with each token that can end it."""
    return [[*path.ids, stop] for stop in stops] if path.ended else [list(path.ids)]


def merged(path: Path, rows: Sequence[Sequence[float]]) -> list[float]:
    """The numbers of a path from those of its prompts: the turn ends by any of their last
    tokens."""
    size = len(path.new)
    return [*rows[0][:size], *([either(row[size] for row in rows)] if path.ended else [])]


def sampling_fields(how: Sampling) -> dict[str, Any]:
    """All sampling fields: a server has its own defaults. A penalty of None is the server's."""
    fields: dict[str, Any] = {
        "temperature": how.temperature,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
    }
    fields |= {"presence_penalty": 0.0, "frequency_penalty": 0.0}
    fields |= {
        key: value
        for key in ("top_p", "top_k", "min_p")
        if (value := getattr(how, key)) is not None
    }
    return (
        fields
        if how.repetition_penalty is None
        else fields | {"repetition_penalty": how.repetition_penalty}
    )


def check_completed(reason: Any, model: str) -> None:
    """An engine that broke off (it was stopped, or had no room) says so only here: the rest looks
    like a reply."""
    if reason in ("abort", "error", "content_filter"):
        raise MemberError(f"{model} broke off ({reason})", member=model)
