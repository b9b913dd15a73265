"""Drafts through ``/v1/chat/completions`` alone, for servers that take no token ids: they go on with an open answer.

Text in, text out: no scores, no log-probabilities, and own segments are read again as text. Knows how a chat is
continued, and finds out whether this server does it; nothing of tokens or votes.
"""

from __future__ import annotations

import itertools
import logging
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..core.answer import kept_tokens
from ..core.values import Draft, DraftJob, Effort, Sampling, Turn
from ..errors import MemberError, advised
from ._dialects import came_through
from ._exact import in_form
from ._http import Refused, Wire
from ._template import with_system_told
from ._tools import in_words

log = logging.getLogger("langchain_specfuse")

CHECKS = (
    "Count from one to ten in words.",
    "Write a short sentence about the sea.",
    "Name the days of the week, beginning with Monday.",
)
CHECKED_TOKENS = 16
ROOM = 2
"""A draft that ends in no safe place is asked for again, this many times as long and a few tokens more."""
_WORD = re.compile(r"\s*\S+|\s+\Z")


@dataclass
class Chat:
    """One member's dealings with one server that only chats."""

    name: str
    wire: Wire
    model: str
    seed: int = 0
    system_prompt: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    repetition_penalty: float | None = None
    plain_only: bool = False
    """The server has refused what OpenAI's own interface does not know."""

    def check(self) -> None:
        """A greedy answer must go on where its first half ends, at least once: else each draft begins anew."""
        troubles = []
        for question in CHECKS:
            trouble = self._trouble(Turn("user", question))
            if not trouble:
                return
            troubles.append(trouble)
        error = MemberError(f"{self.model} {max(troubles, key=len)}: it cannot take part", member=self.name)
        raise advised(error, "serve the model with vLLM, SGLang or llama.cpp; see docs/serving.md")

    def _trouble(self, question: Turn) -> str:
        """Whether the next word is another. (Those after it may be: text is read again as other tokens.)"""
        greedy = {"temperature": 0.0}
        pieces = _WORD.findall(self._said([question], "", CHECKED_TOKENS, greedy)[0])
        half = len(pieces) // 2
        second, _ = self._said([question], "".join(pieces[:half]), CHECKED_TOKENS, greedy) if half else ("", False)
        if not second.strip() or second.split()[:1] != pieces[half].split()[:1]:
            return "does not go on with an answer that has begun"
        lost = not second[:1].isspace() and pieces[half][:1].isspace()
        return "goes on with an answer without the white space that belongs there, which glues words together" * lost

    def draft(self, job: DraftJob) -> Draft:
        answer = "".join(segment.text for segment in job.answer)
        turns = self._turns(job)
        how = {"temperature": job.sampling.temperature, "seed": (job.sampling.seed + 1_000_003 * self.seed) % 2**31}
        if job.sampling.top_p is not None:
            how["top_p"] = job.sampling.top_p
        more = self._more(job.sampling)
        for count in (job.segment_tokens, ROOM * job.segment_tokens + 8):
            count = min(count, job.max_tokens)
            text, ended = self._said_so(turns, answer, count, how, more)
            kept = text if ended or count >= job.max_tokens else cut(text)
            if kept:
                break
        text = in_form(job, kept or text)
        return Draft(text, ended, self.numbered(text)[: job.max_tokens], effort=Effort(read=len(_WORD.findall(text))))

    def numbered(self, text: str) -> tuple[int, ...]:
        """A number per word, of our own making: real ones are not told."""
        return tuple(zlib.crc32(word.encode()) for word in _WORD.findall(text))

    def _turns(self, job: DraftJob) -> list[Turn]:
        query = job.query
        told = with_system_told(query.turns, in_words(query.tools, query.constraint, native=False, own=None))
        if self.system_prompt is None:
            return told
        return [Turn("system", self.system_prompt), *(turn for turn in told if turn.role != "system")]

    def _more(self, how: Sampling) -> dict[str, Any]:
        """What OpenAI's own interface does not know, and most of its kind take."""
        penalty = how.repetition_penalty or self.repetition_penalty
        more = {"top_k": how.top_k, "min_p": how.min_p, "repetition_penalty": penalty, "repeat_penalty": penalty}
        return {key: value for key, value in more.items() if value is not None}

    def _said_so(
        self, turns: Sequence[Turn], answer: str, count: int, how: Mapping[str, Any], more: Mapping[str, Any]
    ) -> tuple[str, bool]:
        """What comes next, sampled in every way that the server takes."""
        if more and not self.plain_only:
            try:
                return self._said(turns, answer, count, {**how, **more})
            except Refused as error:
                if error.status not in (400, 422) or error.kind == "overflow":
                    raise
                self.plain_only = True
                log.warning("%s samples without %s: its server refuses them (%s)", self.name, ", ".join(more), error)
        return self._said(turns, answer, count, how)

    def _said(self, turns: Sequence[Turn], answer: str, count: int, how: Mapping[str, Any]) -> tuple[str, bool]:
        """What comes next, and whether that ends the answer."""
        messages = [{"role": turn.role, "content": turn.text} for turn in turns]
        body: dict[str, Any] = {"model": self.model, "max_tokens": count, **how, **self.extra}
        if answer:
            messages.append({"role": "assistant", "content": answer})
            body |= {"continue_final_message": True, "add_generation_prompt": False}
        told = self.wire.post("/v1/chat/completions", body | {"messages": messages})
        choice = told["choices"][0]
        text, end = choice["message"].get("content") or "", choice.get("finish_reason")
        if not isinstance(text, str):
            raise MemberError(f"{self.model} said {text!r:.80} (wanted a text)", member=self.name)
        if not text and (choice["message"].get("reasoning_content") or choice["message"].get("reasoning")):
            error = MemberError(f"{self.model} thought, and said nothing in {count} tokens", member=self.name)
            raise advised(error, "switch that off: chat_template_kwargs={'enable_thinking': False}")
        came_through(end, self.model)
        text.encode()  # half a surrogate pair is no text: a ValueError, and so a failure
        return text, end == "stop"


def cut(text: str) -> str:
    """The text up to its last safe boundary.

    >>> cut("The sky is bl")
    'The sky is'
    """
    ends = list(itertools.accumulate(len(word) for word in _WORD.findall(text)))
    kept = kept_tokens(text, ends, len(ends))
    return text[: ends[kept - 1]] if kept else ""
