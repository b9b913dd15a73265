"""The open stream of a chat model, read as far as it is needed."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...core.answer import word_start
from ...core.values import REFUSAL, Draft, Effort, Remark, Sampling, ToolCall
from ...errors import MemberError
from .words import WordCount, cut, words_of


class StreamPart(NamedTuple):
    """A part of a model's reply."""

    text: str
    thought: str = ""
    finish: str = ""
    """Why the reply ended, in the last part: ``stop``, ``length`` or ``refusal``."""
    has_reason: bool = True
    """Whether the provider says why the reply ended, in the last part. If it does not, ``finish``
    is ``stop``, although the connection may have broken."""
    usage: tuple[int, int] = (0, 0)
    """Input and output tokens that the provider reports with this part, in addition to those of
    earlier parts. Most providers report all of them with one of the last parts."""
    refusal: str = ""
    """The text of the refusal, in the last part, if the reply is a refusal."""
    least: float | None = None
    """The lowest log-probability in it, if the model was asked for them
    (``ChatOpenAI(logprobs=True)``)."""
    chunks: tuple[Any, ...] = ()
    """LangChain's chunks of it."""
    is_silent: bool = False
    """Whether it is something other than text that the reader of the answer should get now. The
    last word before it is complete."""
    calls: tuple[ToolCall, ...] = ()
    """The tool calls of the reply, in the last part."""
    dropped: int = 0
    """The number of words that were read and are not handed on."""


@dataclass
class OpenStream:
    """What a model writes after the text ``before``."""

    parts: Iterator[StreamPart]
    before: str
    sent: int = 0
    """The length of the request, in words."""
    sampling: Sampling | None = None
    """The sampling with which it was requested. Each sample has its own stream."""
    remarks: tuple[Remark, ...] = ()
    """What the request says about refused texts."""
    is_lead: bool = False
    """The answer ends where the reply does, also at the provider's limit."""
    broke_off: Callable[[str], bool] = lambda text: False
    """Whether a reply with this text that ended without a reason has broken off."""
    price: Sequence[float] = (0.0, 0.0)
    """Dollars per million input tokens and per million output tokens."""
    rest_s: Callable[[], float] = lambda: 0.0
    """How long parts after the first text are collected before they are handed on."""
    text: str = ""
    """What was read so far."""
    finish: str = ""
    """Why the reply ended; empty while it is open."""
    refusal: str = ""
    thought: str = ""
    calls: tuple[ToolCall, ...] = ()
    _chunks: list[Any] = field(default_factory=list)
    """LangChain's chunks that no draft has had."""
    _is_silent: bool = False
    """Whether one of them was silent."""
    _unshown_words: int = 0
    _billed: tuple[int, int] = (0, 0)
    """The input and output tokens that the provider has reported."""
    _counted: tuple[int, int, int, int] = (0, 0, 0, 0)
    """What :meth:`new_effort` has returned so far: requests, input tokens, output tokens, estimated
    requests."""
    _least: list[tuple[int, float]] = field(default_factory=list)
    """For each part, the length of ``text`` after it and the part's lowest log-probability."""

    def __post_init__(self) -> None:
        self._count = WordCount()
        self._is_cancelled = False
        self._failure: MemberError | None = None
        """An error that came after text. It is raised once that text is handed on."""
        self._begun = 0
        """How many words :meth:`begin` has read that no draft has reported yet."""

    @property
    def words(self) -> int:
        """The number of words that were read, also those of calls, and those that are not handed
        on."""
        return self._count.total + self._unshown_words

    @property
    def has_ended(self) -> bool:
        """Whether the answer ends where this reply does."""
        return self.finish == "stop" or (self.finish == "length" and self.is_lead)

    # --- reading ----------------------------------------------------------------------------------

    def agrees_with(self, answer: str) -> bool:
        """Whether the model's text begins with this answer. Reads on while that is undecided."""
        if not answer.startswith(self.before):
            return False
        agreed = answer[len(self.before) :]
        while len(self.text) < len(agreed) and agreed.startswith(self.text):
            if not self._read_part():
                break
        if not self.text.startswith(agreed):
            return False
        return len(self.text) > len(agreed) or self.finish in ("", "stop", REFUSAL)

    def begin(self) -> None:
        """Read the first text, or all of a reply without text, for the next draft."""
        while not self.text and not self.finish:
            self._read_part()
        self._begun = self.words

    def first_words(self, count: int) -> Draft:
        """Read the first words, and cancel the rest."""
        draft = self.draft("", count, count)
        self.close()
        return draft

    def draft(self, answer: str, size: int, most: int) -> Draft:
        """About ``size`` words after this answer, at most ``most``."""
        place = len(answer) - len(self.before)
        count = WordCount()
        count.add(self.text[place:])
        since, words_before = time.perf_counter(), self.words - self._begun
        self._begun = 0
        while True:
            while count.total <= size and not self.finish:
                known = len(self.text)
                self._read_part()
                count.add(self.text[known:])
            rest = self.text[place:]
            words = words_of(rest)
            is_over = len(words) <= size
            if is_over:
                text = rest
            elif size < most:
                text = cut(rest, size)
            else:
                text = "".join(words[:most])
            if text or is_over:
                words = words_of(text)[:most]
                ended = is_over and self.has_ended
                effort = self.new_effort(self.words - words_before, time.perf_counter() - since)
                return self._draft(place, text, words, ended, effort, self.take_thought().strip())
            size = min(2 * size + 8, most)

    def drafts(self, answer: str, most: int) -> Iterator[Draft]:
        """What comes after this answer, at most ``most`` words, as it arrives."""
        place = len(answer) - len(self.before)
        count = WordCount()
        since, words_before = time.perf_counter(), self.words - self._begun
        self._begun = 0
        while True:
            end = len(self.text)
            text, thought = self.text[place:end], self.take_thought()
            words = count.add(text)
            if count.total > most:
                kept = max(len(words) - (count.total - most), 0)
                text = text[: max(len(text) - len("".join(words[kept:])), 0)]
                words = words[:kept]
            is_over = count.total > most or (bool(self.finish) and end == len(self.text))
            if text or thought or self._is_silent or is_over:
                ended = is_over and count.total <= most and self.has_ended
                effort = self.new_effort(self.words - words_before, time.perf_counter() - since)
                yield self._draft(place, text, words, ended, effort, thought)
                place += len(text)
                since, words_before = time.perf_counter(), self.words
            if is_over:
                return
            self._read_on()

    def _read_on(self) -> None:
        """Read the next part, and those that come while the stream rests."""
        begun = len(self.text)
        until = time.monotonic() + self.rest_s() if begun else 0.0
        try:
            while self._read_part() and not self._is_silent and not self.finish:
                if time.monotonic() >= until:
                    return
        except MemberError as error:
            if len(self.text) == begun:
                raise
            self._failure = error  # the text before it is handed on first

    def _draft(
        self, place: int, text: str, words: list[str], ended: bool, effort: Effort, thought: str
    ) -> Draft:
        """The draft with this text, which begins at this place of the model's own."""
        tokens = tuple(zlib.crc32(word.encode()) for word in words)
        ends = None if tokens else ()  # else the text belongs to a word before it
        least = self._least_in(place, place + len(text))
        chunks, is_silent = self._chunks, self._is_silent or bool(thought)
        self._chunks, self._is_silent = [], False
        return Draft(
            text,
            ended,
            tokens,
            None,
            effort,
            ends,
            thought,
            least,
            calls=self.calls if ended else (),
            is_cut=ended and self.finish == "length",
            parts=tuple(chunks),
            is_silent=is_silent and not ended,
        )

    def take_thought(self) -> str:
        """The reasoning that has come since the last call of this method."""
        thought, self.thought = self.thought, ""
        return thought

    def is_refused_after(self, place: int) -> bool:
        """Whether the model refused after so many characters of the answer, without writing
        more."""
        return self.finish == REFUSAL and place >= len(self.before) + len(self.text)

    def _least_in(self, start: int, stop: int) -> float | None:
        """The lowest log-probability between these places; None: unknown."""
        found = None
        for end, least in reversed(self._least):
            if end <= start:
                break
            if end <= stop:
                found = least if found is None else min(found, least)
        return found

    def close(self) -> None:
        """Cancel the reply, because text that is not sent is not billed."""
        self._is_cancelled = True
        try:
            self.parts.close()  # type: ignore[attr-defined]
        except ValueError:  # another thread is reading it, and finds out by itself
            pass

    def _read_part(self) -> bool:
        """Read a part; False if there is none. Raises if the reply has broken off."""
        if self._failure is not None:
            raise self._failure
        part = None if self.finish or self._is_cancelled else next(self.parts, None)
        if part is None:
            if self._is_cancelled and not self.finish:
                raise MemberError("its reply was cancelled")
            self.finish = self.finish or "stop"
            return False
        self.thought += part.thought
        self._count.add(part.text)
        self._unshown_words += part.dropped
        if part.thought:
            self._unshown_words += len(words_of(part.thought))
        for call in part.calls:
            self._unshown_words += len(words_of(call.name)) + len(words_of(call.arguments))
        # Summed, as LangChain sums the usage of chunks.
        self._billed = (self._billed[0] + part.usage[0], self._billed[1] + part.usage[1])
        self.text += part.text
        self._chunks += part.chunks
        self._is_silent = self._is_silent or part.is_silent
        if not part.has_reason and self.broke_off(self.before + self.text):
            raise MemberError(
                "its reply broke off: it ended without a finish reason, in the middle of an object "
                "or a call"
            )
        self.finish = part.finish
        self.refusal = part.refusal
        self.calls = part.calls
        if self.finish == "length" and not self.is_lead:
            self._drop_last_word()
        if part.least is not None:
            self._least.append((len(self.text), part.least))
        return True

    def _drop_last_word(self) -> None:
        """Leave the last word, which may be incomplete, to the next request."""
        text = self.text
        self.text = text[: word_start(text, len(text))]

    # --- usage ------------------------------------------------------------------------------------

    def new_effort(self, read: int = 0, seconds: float = 0.0) -> Effort:
        """What the stream has cost since the last call of this method. ``read``: how many words
        were read, ``seconds``: how long that took."""
        input_tokens, output_tokens = self._billed
        is_reported = bool(self.finish) and any(self._billed)
        if not is_reported:
            # Anthropic reports the prompt with the first chunk and most of the reply with the last.
            input_tokens = input_tokens or self.sent
            output_tokens = max(output_tokens, self.words)
        total = (1, input_tokens, output_tokens, 0 if is_reported else 1)
        new = [now - before for now, before in zip(total, self._counted, strict=True)]
        self._counted = total
        return Effort(
            read,
            prompt=input_tokens,
            seconds=seconds,
            requests=new[0],
            input_tokens=new[1],
            output_tokens=new[2],
            cost=(new[1] * self.price[0] + new[2] * self.price[1]) / 1e6,
            estimated_requests=new[3],
        )
