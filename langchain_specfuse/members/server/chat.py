"""Drafts through ``/v1/chat/completions`` alone, for servers that take no token ids but continue an open answer.

Text in, text out: no scores, no log-probabilities, and own segments are tokenized again as text. Knows how a chat is
continued, and finds out whether this server does it; nothing of tokens or votes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...core.values import Draft, DraftJob, Effort, Sampling, Turn
from ...errors import MemberError, advised
from ..text.plain import cut, word_ids, words_of
from ..text.templates import with_instructions, with_system
from ..text.tools import instructions
from .http import Client, RefusedError
from .tokens import as_constrained, check_completed

log = logging.getLogger("langchain_specfuse")

CHECKS = (
    "Count from one to ten in words.",
    "Write a short sentence about the sea.",
    "Name the days of the week, beginning with Monday.",
)
CHECKED_TOKENS = 16


@dataclass
class ChatSession:
    """One member's drafts on one server that only chats."""

    name: str
    client: Client
    model: str
    seed: int = 0
    repetition_penalty: float | None = None
    system_prompt: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    plain_only: bool = False
    """The server has refused sampling fields that are not in OpenAI's own interface."""

    def check(self) -> None:
        """A greedy answer must continue where its first half ends, at least once: otherwise each draft starts over."""
        troubles = []
        for question in CHECKS:
            trouble = self._trouble(Turn("user", question))
            if not trouble:
                return
            troubles.append(trouble)
        error = MemberError(f"{self.model} {max(troubles, key=len)}: it cannot take part", member=self.name)
        raise advised(error, "serve the model with vLLM, SGLang or llama.cpp; see docs/how-to/members-on-servers.md")

    def _trouble(self, question: Turn) -> str:
        """Whether the next word is another. (Those after it may be: text is tokenized again as other tokens.)"""
        greedy = {"temperature": 0.0}
        words = words_of(self._continue([question], "", CHECKED_TOKENS, greedy)[0])
        half = len(words) // 2
        second, _ = self._continue([question], "".join(words[:half]), CHECKED_TOKENS, greedy) if half else ("", False)
        if not second.strip() or second.split()[:1] != words[half].split()[:1]:
            return "does not continue an answer that has begun"
        lost = not second[:1].isspace() and words[half][:1].isspace()
        return "continues an answer without the white space that belongs there, which glues words together" * lost

    def draft(self, job: DraftJob) -> Draft:
        answer = "".join(segment.text for segment in job.answer)
        # A draft without a safe boundary is asked for once more, with more room.
        for count in (job.segment_tokens, 2 * job.segment_tokens + 8):
            count = min(count, job.max_tokens)
            text, ended = self._sample(self._turns(job), answer, count, job.sampling)
            kept = text if ended or count >= job.max_tokens else cut(text)
            if kept:
                break
        text = as_constrained(job, kept or text)
        return Draft(text, ended, word_ids(text)[: job.max_tokens], effort=Effort(read=len(words_of(text))))

    def _turns(self, job: DraftJob) -> list[Turn]:
        query = job.query
        turns = query.turns if self.system_prompt is None else with_system(query.turns, self.system_prompt)
        return with_instructions(turns, instructions(query.tools, query.constraint, native=False, own=None))

    def _sample(self, turns: Sequence[Turn], answer: str, count: int, how: Sampling) -> tuple[str, bool]:
        """What comes next, sampled as far as the server allows it."""
        seed, penalty = how.seed + 1_000_003 * self.seed, how.repetition_penalty or self.repetition_penalty
        known = {"temperature": how.temperature, "seed": seed % 2**31}
        known |= {} if how.top_p is None else {"top_p": how.top_p}
        more = {"top_k": how.top_k, "min_p": how.min_p, "repetition_penalty": penalty, "repeat_penalty": penalty}
        more = {key: value for key, value in more.items() if value is not None}
        if more and not self.plain_only:
            try:
                return self._continue(turns, answer, count, {**known, **more})
            except RefusedError as error:
                if error.status not in (400, 422) or error.kind == "overflow":
                    raise
                self.plain_only = True
                log.warning("%s samples without %s: its server refuses them (%s)", self.name, ", ".join(more), error)
        return self._continue(turns, answer, count, known)

    def _continue(self, turns: Sequence[Turn], answer: str, count: int, how: Mapping[str, Any]) -> tuple[str, bool]:
        """What comes next, and whether that ends the answer."""
        messages = [{"role": turn.role, "content": turn.text} for turn in turns]
        body: dict[str, Any] = {"model": self.model, "max_tokens": count, **how, **self.extra}
        if answer:
            messages.append({"role": "assistant", "content": answer})
            body |= {"continue_final_message": True, "add_generation_prompt": False}
        choice = self.client.post("/v1/chat/completions", body | {"messages": messages})["choices"][0]
        text, end = choice["message"].get("content") or "", choice.get("finish_reason")
        if not isinstance(text, str):
            raise MemberError(f"{self.model} returned {text!r:.80} as content (wanted a text)", member=self.name)
        if not text and (choice["message"].get("reasoning_content") or choice["message"].get("reasoning")):
            error = MemberError(f"{self.model} only reasoned in its {count} tokens", member=self.name)
            raise advised(error, "switch reasoning off: chat_template_kwargs={'enable_thinking': False}")
        check_completed(end, self.model)
        text.encode()  # half a surrogate pair is no text: a ValueError, and so a failure
        return text, end == "stop"
