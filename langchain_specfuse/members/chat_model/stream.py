"""The open stream of a chat model, read as far as drafts need it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ...constraints import breaks_off
from ...constraints.rules import respaced
from ...core.values import REFUSAL, Constraint, Effort, Sampling
from ...errors import MemberError
from .words import cut, words_of


@dataclass(frozen=True, slots=True)
class StreamPart:
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


@dataclass
class OpenStream:
    """What a model writes after the text ``before``."""

    parts: Iterator[StreamPart]
    before: str
    sent: int = 0
    """The length of the request, in words."""
    constraint: Constraint | None = None
    sampling: Sampling | None = None
    """The sampling with which it was requested. Each sample has its own stream."""
    text: str = ""
    """What was read so far, spaced as the constraint demands."""
    finish: str = ""
    """Why the reply ended; empty while it is open."""
    refusal: str = ""
    thought: str = ""
    _raw: str = ""
    _thought_words: int = 0
    _billed: tuple[int, int] = (0, 0)
    """The input and output tokens that the provider has reported."""
    _counted: tuple[int, int, int, int] = (0, 0, 0, 0)
    """What :meth:`new_usage` has returned so far: requests, input tokens, output tokens, estimated
    requests."""
    _least: list[tuple[int, float]] = field(default_factory=list)
    """For each part, the length of ``text`` after it and the part's lowest log-probability."""

    @property
    def words(self) -> int:
        """The number of words that were read, including those of the reasoning."""
        return len(words_of(self._raw)) + self._thought_words

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

    def first_words(self, count: int) -> str:
        """Read the first words, and cancel the rest."""
        text, _ = self.draft("", count, count)
        self.close()
        return text

    def draft(self, answer: str, size: int, most: int) -> tuple[str, bool]:
        """About ``size`` words after this answer, at most ``most``, and whether they end the
        answer."""
        start = len(answer) - len(self.before)
        count = size
        while True:
            self._read_beyond(start, count)
            rest = self.text[start:]
            words = words_of(rest)
            if len(words) <= count and self.finish:
                return rest, self.finish == "stop"
            if count >= most:
                return "".join(words[:most]), False
            kept = cut(rest, count)
            if kept:
                return kept, False
            count = min(2 * count + 8, most)

    def is_refused_after(self, text: str) -> bool:
        """Whether the model refused after this text, without writing more."""
        return self.finish == REFUSAL and len(text) >= len(self.before) + len(self.text)

    def least(self, answer: str, text: str) -> float | None:
        """The lowest log-probability in this text after this answer; None: unknown."""
        start = len(answer) - len(self.before)
        stop = start + len(text)
        return min((least for end, least in self._least if start < end <= stop), default=None)

    def close(self) -> None:
        """Cancel the reply, because text that is not sent is not billed."""
        try:
            self.parts.close()  # type: ignore[attr-defined]
        except ValueError:  # another thread is reading it, and finds out by itself
            pass

    def _read_beyond(self, start: int, count: int) -> None:
        """Read until there are more than ``count`` words from this place on, or until the end."""
        while True:
            missing = count + 1 - len(words_of(self.text[start:]))
            if missing <= 0:
                return
            # A word has at least one character: count again when enough characters have come.
            enough = len(self.text) + missing
            while len(self.text) < enough:
                if not self._read_part():
                    return

    def _read_part(self) -> bool:
        """Read a part; False if there is none. Raises if the reply has broken off."""
        part = None if self.finish else next(self.parts, None)
        if part is None:
            self.finish = self.finish or "stop"
            return False
        self.thought += part.thought
        self._raw += part.text
        self._thought_words += len(words_of(part.thought))
        # Summed, as LangChain sums the usage of chunks.
        self._billed = (self._billed[0] + part.usage[0], self._billed[1] + part.usage[1])
        self.text = respaced(self.constraint, self.before, self._raw)
        if not part.has_reason and breaks_off(self.constraint, self.before + self.text):
            raise MemberError(
                "its reply broke off: it ended without a finish reason, in the middle of an object "
                "or a call"
            )
        self.finish = part.finish
        self.refusal = part.refusal
        if part.least is not None:
            self._least.append((len(self.text), part.least))
        return True

    # --- usage ------------------------------------------------------------------------------------

    def new_usage(self) -> Effort:
        """What the stream has cost since the last call of this method."""
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
            new[2],
            prompt=input_tokens,
            requests=new[0],
            input_tokens=new[1],
            output_tokens=new[2],
            estimated_requests=new[3],
        )
