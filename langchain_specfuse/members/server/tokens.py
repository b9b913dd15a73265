"""One member's drafts and scores on a server that takes token ids.

Seams are as exact as with a model in this process: a member's own segments keep their own tokens,
text from others is tokenized as part of the whole, and the end of a turn is an event. The requests
to an engine are in :mod:`.dialect`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from ...constraints import respaced
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
from ..text.prompts import Prompts
from ..text.templates import with_system
from ..text.tools import allows_prose
from ..text.words import REPLACEMENT, PartialDraft, either
from .arrived import Arrived
from .client import RefusedError
from .dialect import LIKELY, Dialect, Draw, Drawn, Path, Scorer
from .tokenizers import REFUSALS, ServerTokenizer

TRIAL_TOKENS = 6
"""A trial draws this many tokens and scores them again, to see whether a scorer is right."""
TRIAL = Turn("user", "Count from one to ten in words.")
CLOSE_ENOUGH = 0.3
"""The greatest mean difference of log-probabilities. Half precisions differ by less between two
orders of one computation."""
WARM = 2.0
"""A temperature at which the resulting log-probabilities differ clearly from the model's own,
however sure the model is."""
MOST_PARTS = 200
"""The most parts of a prompt with the server's tokenizer, because each costs two requests."""


class ServerPrompts(Prompts):
    """Prompts without reasoning, which the server's own tokenizer may have to split."""

    def prompt(
        self,
        turns: Sequence[Turn],
        tools: Sequence[Tool] = (),
        constraint: Constraint | None = None,
        *,
        think: bool = True,
    ) -> list[int]:
        if isinstance(self.words.tokenizer, ServerTokenizer) and not tools and constraint is None:
            given = turns
            if self.system_prompt is not None:
                given = with_system(turns, self.system_prompt)
            if ids := self.template.tokens(given):
                return ids
        return super().prompt(turns, tools, constraint, think=think)

    def parts(
        self,
        turns: Sequence[Turn],
        tools: Sequence[Tool],
        constraint: Constraint | None,
        *,
        think: bool,
    ) -> list[str]:
        parts = super().parts(turns, tools, constraint, think=False)
        if len(parts) > MOST_PARTS and isinstance(self.words.tokenizer, ServerTokenizer):
            error = UsageError(
                f"{amount(len(parts) - 1, 'text')} in this conversation would be read as control "
                f"tokens; without tokenizer=, at most {MOST_PARTS} can be sent as text"
            )
            raise advised(error, "name the model's tokenizer: tokenizer=")
        return parts


@dataclass
class TokenSession:
    """One member's drafts and scores on one engine."""

    name: str
    dialect: Dialect
    prompts: ServerPrompts
    limit: int | None
    """The most tokens of prompt and answer together; None: unknown."""
    known: dict[str, Scorer] = field(default_factory=dict)
    """The scorers that a trial has found to be right."""
    refused: dict[str, str] = field(default_factory=dict)
    """The other scorers, and what is wrong with them."""
    raw: bool = True
    """Whether sampled drafts come with the model's own log-probabilities, not with those after a
    temperature, a penalty or a mask."""
    excludes: bool = False
    """Whether the engine does not draw tokens that are excluded, as a trial has shown."""
    raw_after_exclusion: bool = False
    """Whether drafts have the model's own log-probabilities even if tokens are excluded."""
    _kept: dict[str, list[int]] = field(default_factory=dict)
    """Query id -> its prompt."""

    # --- what the engine can do -------------------------------------------------------------------

    def check(self) -> None:
        """Draw a few tokens, score them with every scorer, and keep the scorers that agree with the
        draft's own log-probabilities."""
        prompt = self.prompts.prompt([TRIAL])
        for name, scorer in self.dialect.scorers().items():
            trouble = self._trouble(prompt, scorer)
            if trouble:
                self.refused[name] = trouble
            else:
                self.known[name] = scorer
        if self.known:
            drawn = self._draw_trial(prompt, WARM)
            if drawn.logprobs is not None:
                scorer = next(iter(self.known.values()))
                difference, _ = self._difference(prompt, drawn, scorer)
                self.raw = difference <= CLOSE_ENOUGH
        self._try_exclusion(prompt)
        self.dialect.forget("check")

    def _trouble(self, prompt: list[int], scorer: Scorer) -> str:
        """What is wrong with this scorer; empty if nothing is."""
        if not self.dialect.stops and not self.prompts.template.end_text:
            return "it is not known how its turns end"
        compared = 0
        # Greedy tokens alone prove nothing: a server that ignores unknown fields draws the same
        # tokens again.
        for temperature in (0.0, 1.0):
            drawn = self._draw_trial(prompt, temperature)
            if drawn.logprobs is None:
                continue
            try:
                difference, count = self._difference(prompt, drawn, scorer)
            except MemberError as error:
                return error.message
            except (KeyError, IndexError, TypeError, ValueError) as error:
                return f"{type(error).__name__}: {error}"
            compared += count
            if not difference <= CLOSE_ENOUGH:
                return (
                    f"its scores differ by {difference:.2f} from the log-probabilities of its "
                    "own drafts"
                )
        return "" if compared else "its drafts come without numbers to compare with"

    def _try_exclusion(self, prompt: list[int]) -> None:
        """Find out whether the engine excludes tokens: draw one token, then exclude it and draw
        again."""
        draw = Draw("check", prompt, 1, Sampling(seed=7, repetition_penalty=1.0))
        first = self.dialect.draw(draw).tokens
        if not first:
            return
        try:
            drawn = self.dialect.draw(replace(draw, excluded=first))
        except RefusedError as error:
            if error.status not in REFUSALS:
                raise
            return
        self.excludes = drawn.tokens[:1] != first
        if self.excludes and self.known and drawn.logprobs is not None:
            difference, _ = self._difference(prompt, drawn, next(iter(self.known.values())))
            self.raw_after_exclusion = difference <= CLOSE_ENOUGH

    def _draw_trial(self, prompt: list[int], temperature: float) -> Drawn:
        sampling = Sampling(temperature, seed=7, repetition_penalty=1.0)
        return self.dialect.draw(Draw("check", prompt, TRIAL_TOKENS, sampling))

    def _difference(self, prompt: list[int], drawn: Drawn, scorer: Scorer) -> tuple[float, int]:
        """The mean difference between the scores of these tokens and the log-probabilities with
        which they were drawn, and how many were compared."""
        path = Path((*prompt, *drawn.tokens), len(prompt), drawn.ended)
        (scores,) = scorer("check", [path])
        own = list(drawn.logprobs or ())
        if drawn.ended:
            own.append(drawn.ended_by)
        total = math.fsum(abs(a - b) for a, b in zip(own, scores, strict=True))
        return total / max(len(own), 1), len(scores)

    # --- drafts -----------------------------------------------------------------------------------

    def draft(self, job: DraftJob) -> Draft:
        context, room = self._context(job)
        draft = PartialDraft(job, self.prompts.words, context, room, self.prompts.template.end_text)
        effort = Effort(prompt=len(self._prompt(job.query)))
        constraint = remaining(job.query.constraint, _text_of(job.answer))
        excluded = job.excluded if self.excludes else ()
        others: tuple[tuple[int, str], ...] = ()
        while draft.end is None:
            ids = [*context, *draft.tokens]
            sampling = _sampling_at(job, len(ids))
            # excluded tokens may come after the first token
            count = 1 if excluded else draft.next_count
            draw = Draw(job.query.id, ids, count, sampling, constraint, excluded)
            drawn = self.dialect.draw(draw)
            read = 0 if drawn.reused is None else len(ids) - drawn.reused
            effort += Effort(read=read + len(drawn.tokens), reused=drawn.reused or 0)
            is_own = self.raw or _is_plain(sampling)
            if excluded:
                is_own = self.raw_after_exclusion
                others = self._others(context, draw, drawn)
            draft.add(
                drawn.tokens,
                drawn.logprobs if is_own else None,
                ended=drawn.ended,
                ended_by=drawn.ended_by,
            )
            constraint = None  # it describes what begins with the first token
            if excluded:
                constraint = self._remaining_after(job, draft)
            excluded = ()
        return replace(self._finished(job, draft, effort), others=others)

    def stream(self, job: DraftJob) -> Iterator[Draft]:
        """The rest of the answer, by one request: what has arrived, as soon as it arrives."""
        context, room = self._context(job)
        sampling = _sampling_at(job, len(context))
        constraint = remaining(job.query.constraint, _text_of(job.answer))
        scored = job.logprobs and (self.raw or _is_plain(sampling))
        draw = Draw(job.query.id, context, room, sampling, constraint, scored=scored)
        words, end_text = self.prompts.words, self.prompts.template.end_text
        arrived = Arrived(job, words, end_text, len(self._prompt(job.query)), scored=scored)
        for pieces in self.dialect.stream(draw):
            for piece in pieces:
                arrived.add(piece)
            if arrived.finish:
                continue  # its cost follows
            draft = arrived.next_draft()
            if draft is not None:
                yield draft
                if draft.ended:  # by a text, after which the server goes on
                    return
                self.dialect.client.rest()
        if not arrived.finish:
            message = f"{self.dialect.model} broke off: its reply has no finish reason"
            raise MemberError(message, member=self.name)
        last, reused = arrived.last_draft(), arrived.reused
        if reused is not None:
            prompt = Effort(read=len(context) - reused, reused=reused)
            last = replace(last, effort=last.effort + prompt)
        yield last

    def _context(self, job: DraftJob) -> tuple[list[int], int]:
        """The tokens of the prompt and the agreed answer, and how many may follow."""
        context = self._ids(job.query, job.answer)
        self._check_fits(len(context) + 1)
        room = job.max_tokens
        if self.limit:
            room = min(room, self.limit - len(context))
        return context, room

    def _remaining_after(self, job: DraftJob, draft: PartialDraft) -> Constraint | None:
        """What the rest of the answer must look like after the first token of this draft."""
        begun = self.prompts.words.added(draft.context, draft.tokens)
        if begun.endswith(REPLACEMENT):
            return None
        return remaining(job.query.constraint, _text_of(job.answer) + begun)

    def _others(self, context: list[int], draw: Draw, drawn: Drawn) -> tuple[tuple[int, str], ...]:
        """Other tokens that the draft could have begun with, and their texts."""
        known = {*drawn.tokens, *draw.excluded, *self.dialect.stops}
        likely = [token for token in drawn.likely if token not in known]
        return self.prompts.words.alternatives(context, likely, LIKELY)

    def _finished(self, job: DraftJob, draft: PartialDraft, effort: Effort) -> Draft:
        assert draft.end is not None
        tokens, row = draft.result()
        logprobs = None if row is None else tuple(row)
        text, ends = self.prompts.words.text_after(draft.context, tokens)
        spaced = text
        if job.query.constraint is not None:
            # Our own mask did not constrain this draft: a line break could end it too early.
            spaced = respaced(job.query.constraint, _text_of(job.answer), text)
        if spaced != text:
            tokens = self.prompts.words.after(draft.context, spaced)
            logprobs = None  # they belong to other tokens
            text, ends = self.prompts.words.text_after(draft.context, tokens)
        return Draft(text, draft.end.ended, tuple(tokens), logprobs, effort, tuple(ends))

    # --- scores -----------------------------------------------------------------------------------

    def score(self, job: ScoreJob) -> Scored:
        if not self.known:
            raise MemberError("it is draft-only", member=self.name)
        context = self._ids(job.query, job.answer)
        paths = [self._path(job, context, candidate) for candidate in job.candidates]
        end_ids = self.prompts.end_ids if allows_prose(job.query.constraint) else []
        # A turn ends with a token, a text, or either.
        by_text = [Path((*path.ids, *end_ids), len(path.ids)) for path in paths if path.ended]
        if not end_ids:
            by_text = []
        self._check_fits(max(len(path.ids) + path.ended for path in (*paths, *by_text)))
        by_token = bool(self.dialect.stops)
        asked = [replace(path, ended=path.ended and by_token) for path in (*paths, *by_text)]
        scorer = self.dialect.scorer(self.known, len(context))
        rows = scorer(job.query.id, asked)
        rows_by_text = iter(rows[len(paths) :])
        scores = []
        for path, row in zip(paths, rows, strict=False):
            if path.ended and end_ids:
                ended_by_token = row.pop() if by_token else -math.inf
                row.append(either([ended_by_token, math.fsum(next(rows_by_text))]))
            scores.append(tuple(row))
        read = sum(len(path.new) for path in asked)
        return Scored(tuple(scores), Effort(read=read), self._ends(job, paths))

    def _ends(self, job: ScoreJob, paths: Sequence[Path]) -> tuple[tuple[int, ...], ...] | None:
        """Where each token of the candidates ends, which only a constraint needs."""
        if not job.query.constraint:
            return None
        return tuple(
            self.prompts.words.ends(path.ids[: path.start], path.new, candidate.text)
            for path, candidate in zip(paths, job.candidates, strict=True)
        )

    def forget(self, query_id: str) -> None:
        self._kept.pop(query_id, None)
        self.dialect.forget(query_id)

    # --- tokens -----------------------------------------------------------------------------------

    def _prompt(self, query: Query) -> list[int]:
        if query.id not in self._kept:
            self._kept[query.id] = self.prompts.prompt(query.turns, query.tools, query.constraint)
        return self._kept[query.id]

    def _ids(self, query: Query, answer: Sequence[Segment]) -> list[int]:
        """Prompt and answer. (Local members keep the ids of an answer. Here several samples of one
        query are read at the same time, in threads.)"""
        return self.prompts.words.answer_ids(self.name, self._prompt(query), answer)

    def _path(self, job: ScoreJob, context: Sequence[int], candidate: Candidate) -> Path:
        """The candidate as it would be tokenized if it were agreed: its first token may begin
        before it does."""
        answer = job.answer
        if candidate.text:
            answer = (*answer, Segment(candidate.text))
        ids = self._ids(job.query, answer)
        start = 0
        for ours, theirs in zip(context, ids, strict=False):
            if ours != theirs:
                break
            start += 1
        return Path(tuple(ids), start, candidate.ended)

    def _check_fits(self, size: int) -> None:
        if self.limit and size > self.limit:
            message = (
                f"{size} tokens of prompt and answer do not fit into its context of {self.limit}"
            )
            raise MemberError(message, member=self.name, kind="overflow")


def _text_of(answer: Sequence[Segment]) -> str:
    return "".join(segment.text for segment in answer)


def _sampling_at(job: DraftJob, position: int) -> Sampling:
    """The job's sampling with a seed that depends only on the place in the answer."""
    seed = (job.sampling.seed + 7_919 * position) % 2**31
    return replace(job.sampling, seed=seed)


def _is_plain(sampling: Sampling) -> bool:
    """Whether log-probabilities after temperature, bounds and penalty are the model's own."""
    bounded = sampling.top_p not in (None, 1.0) or sampling.top_k or sampling.min_p
    penalized = sampling.repetition_penalty not in (None, 1.0)
    return sampling.temperature in (0.0, 1.0) and not bounded and not penalized


def remaining(constraint: Constraint | None, answer: str) -> Constraint | None:
    """What the rest of the answer must look like, if an engine's guided decoding can enforce it.

    Guided decoding begins with the first drawn token, so after the beginning of an answer only a
    choice can be passed.

    >>> remaining(Constraint("choice", '["blue", "black", "red"]'), "bl")
    Constraint(kind='choice', body='["ue", "ack"]')
    """
    if constraint is None or constraint.kind not in ("choice", "json_schema", "json", "regex"):
        return None
    if constraint.kind != "choice":
        return None if answer else constraint
    choices = json.loads(constraint.body)
    rest = [text[len(answer) :] for text in choices if text.startswith(answer)]
    if not rest or not all(rest):
        return None
    return Constraint("choice", json.dumps(rest, ensure_ascii=False))
