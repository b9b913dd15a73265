"""What has arrived of an answer that a server streams, and the drafts made from it.

The text is the server's own, so no token is decoded here. Tokens whose text is still held back
(the first bytes of a character, the beginning of a text that ends the turn) wait for it.
"""

from __future__ import annotations

from ...constraints import half_escape, respaced
from ...core.answer import held_back
from ...core.values import Draft, DraftJob, Effort
from ..text.words import Words, end_at
from .dialect import Piece


class Arrived:
    """The pieces that are not yet part of a draft."""

    def __init__(
        self, job: DraftJob, words: Words, end_text: str, prompt: int, *, scored: bool
    ) -> None:
        """``end_text``: the text that ends a turn, for a model without tokens that do. ``prompt``:
        the length of the prompt."""
        self.finish = ""
        """Why the stream has ended, as in :class:`.Piece`."""
        self.reused: int | None = None
        self._words = words
        self._end_text = end_text
        self._prompt = prompt
        self._constraint = job.query.constraint
        self._written = "".join(segment.text for segment in job.answer)
        """The answer until here, which only a constraint needs."""
        self._text = ""
        self._tokens: list[int] = []
        self._ends: list[int] = []
        self._scored = scored
        self._logprobs: list[float] | None = [] if scored else None
        self._ended_by = 0.0
        self._is_known = True
        """Whether these are all tokens of the text."""
        self._marks: list[tuple[int, int]] = []
        """Where pieces with text end: in the text, and in the tokens."""

    def add(self, piece: Piece) -> None:
        if piece.text:
            self._text += piece.text
        if piece.tokens:
            self._tokens += piece.tokens
            self._ends += [len(self._text)] * len(piece.tokens)
            if piece.logprobs is None:
                self._logprobs = None
            elif self._logprobs is not None:
                self._logprobs += piece.logprobs
        elif piece.tokens is None:
            self._is_known = False
        if piece.text:
            self._marks.append((len(self._text), len(self._tokens)))
        if piece.finish:
            self.finish, self._ended_by = piece.finish, piece.ended_by
        if piece.reused is not None:
            self.reused = piece.reused

    def next_draft(self) -> Draft | None:
        """All that is not held back; None if nothing is left."""
        at, count = self._marks[-1] if self._marks else (0, 0)
        held = half_escape(self._text) if self._constraint is not None else 0
        if self._end_text:
            found = self._text.find(self._end_text)
            if found >= 0:
                return self._ended_at(found)
            held = max(held, held_back(self._text, (self._end_text,)))
        if held:
            whole = len(self._text) - held
            at, count = max((mark for mark in self._marks if mark[0] <= whole), default=(0, 0))
        is_begun = self._constraint is None or self._written
        if not is_begun and not respaced(self._constraint, "", self._text[:at]).strip("`"):
            return None  # the code fence before an object may be incomplete
        return self._draft(at, count) if at else None

    def last_draft(self) -> Draft:
        """The rest, when the stream has ended."""
        found = self._text.find(self._end_text) if self._end_text else -1
        if found >= 0:
            return self._ended_at(found)
        ended = self.finish == "stop"
        count = len(self._tokens)
        if not ended:  # the tokens after the last mark hold an incomplete character
            count = self._marks[-1][1] if self._marks else 0
        return self._draft(len(self._text), count, ended)

    def _ended_at(self, at: int) -> Draft:
        """The draft that ends before a text that ends the turn, perhaps within a token."""
        end = end_at(self._words, self._text, self._ends, at, ended=True)
        self.finish, self._text = "stop", self._text[:at]
        self._tokens[end.kept :] = end.rest
        self._ends[end.kept :] = [at] * len(end.rest)
        row = self._logprobs
        if row is not None:
            *self._logprobs, self._ended_by = end.logprobs(row)
        return self.last_draft()

    def _draft(self, at: int, count: int, ended: bool = False) -> Draft:
        """The draft of the text until here and of this many tokens."""
        text, effort = self._text[:at], Effort(read=count, prompt=self._prompt)
        spaced = text
        if self._constraint is not None:  # a line break could end the answer too early
            spaced = respaced(self._constraint, self._written, text)
            self._written += spaced
        if spaced == text and self._is_known:
            tokens, ends = tuple(self._tokens[:count]), tuple(self._ends[:count])
            row = self._logprobs
            logprobs = None
            if row is not None:
                logprobs = (*row[:count], self._ended_by) if ended else tuple(row[:count])
            draft = Draft(spaced, ended, tokens, logprobs, effort, ends)
        else:  # the server's tokens are unknown, or those of another text
            tokens = tuple(self._words.continuing(spaced)) if spaced else ()
            ends = self._words.ends(self._words.encode("x", False), tokens, spaced)
            draft = Draft(spaced, ended, tokens, None, effort, ends)
        self._forget(at, count)
        return draft

    def _forget(self, at: int, count: int) -> None:
        """Keep what follows."""
        self._text = self._text[at:]
        self._tokens = self._tokens[count:]
        self._ends = [end - at for end in self._ends[count:]]
        self._marks = [(end - at, size - count) for end, size in self._marks if end > at]
        self._is_known = self._is_known or not self._marks
        if self._logprobs is not None:
            self._logprobs = self._logprobs[count:]
        elif self._scored and not self._tokens:
            self._logprobs = []
