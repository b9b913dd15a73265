"""From turns to the text that a model expects, and how it says that its turn is over.

A chat template of the tokenizer (or of the user) where there is one; a plain one otherwise. Knows the tokenizer's
templates; nothing of tensors, caches or votes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from ..core.values import Turn
from ..errors import UsageError, advised

log = logging.getLogger("langchain_specfuse")

PLAIN_TITLE = "# Questions and answers\n\n"
PLAIN_EXAMPLES = (
    (
        "What is the largest planet in our solar system?",
        "The largest planet in our solar system is Jupiter. It is a gas giant, eleven times as wide as the Earth.",
    ),
    (
        "Give me two tips for sleeping better.",
        "1. Go to bed at the same time every day.\n2. Keep your bedroom dark, quiet and cool.",
    ),
)
"""Two solved examples: without them a base model of this size repeats the question or loops (docs/log.md)."""
PLAIN_HEADS = {"user": "## Question\n\n", "assistant": "## Answer\n\n"}
PLAIN_END = "\n\n##"
"""A model without a chat template ends its turn by beginning the next heading."""


class Template:
    """Turns -> prompt text. ``end_text`` is what ends a turn when no stop token does ("" with a chat template)."""

    def __init__(self, tokenizer: Any, name: str, chat_template: str | None, kwargs: Mapping[str, Any] | None) -> None:
        self.tokenizer = tokenizer
        chosen_plain = chat_template == "plain"
        self.chat_template = None if chosen_plain else chat_template or getattr(tokenizer, "chat_template", None)
        self.kwargs = dict(kwargs or {})
        self.plain = not self.chat_template
        self.end_text = PLAIN_END if self.plain else ""
        if self.plain and not chosen_plain:
            log.warning("%s has no chat template: it gets a plain one (chat_template='plain', or your own)", name)
        self._folds_system: bool | None = None

    def prompt(self, turns: Sequence[Turn]) -> str:
        """The text before the answer's first character."""
        if self.plain:
            return self._plain(turns)
        if any(turn.role == "system" for turn in turns) and self._cannot_say_system():
            turns = with_system_folded(turns)
        return self._rendered(turns)

    def _rendered(self, turns: Sequence[Turn]) -> str:
        messages = [{"role": turn.role, "content": turn.text} for turn in turns]
        try:
            text: str = self.tokenizer.apply_chat_template(
                messages,
                chat_template=self.chat_template if isinstance(self.chat_template, str) else None,
                tokenize=False,
                add_generation_prompt=True,
                **self.kwargs,
            )
        except Exception as error:
            roles = ", ".join(turn.role for turn in turns)
            told = UsageError(f"the chat template refused these turns ({roles}): {error}")
            raise advised(told, "most templates want user and assistant in turn, beginning with the user") from error
        return text

    def _cannot_say_system(self) -> bool:
        if self._folds_system is None:
            mark = "specfuse-system-mark"
            try:
                shown = self._rendered([Turn("system", mark), Turn("user", "x")])
            except UsageError:
                shown = ""
            self._folds_system = mark not in shown
        return self._folds_system

    def _plain(self, turns: Sequence[Turn]) -> str:
        examples = [Turn(role, text) for pair in PLAIN_EXAMPLES for role, text in zip(PLAIN_HEADS, pair, strict=True)]
        system = "\n".join(turn.text for turn in turns if turn.role == "system")
        told = [*examples, *(turn for turn in turns if turn.role != "system")]
        bos = getattr(self.tokenizer, "bos_token", None) or ""
        head = PLAIN_TITLE + (f"{system}\n\n" if system else "")
        body = "".join(PLAIN_HEADS.get(t.role, f"## {t.role}\n\n") + t.text + "\n\n" for t in told)
        return bos + head + body + PLAIN_HEADS["assistant"]


def with_system_folded(turns: Sequence[Turn]) -> list[Turn]:
    """The system text moved into the first user turn, for templates that know no system role.

    >>> with_system_folded([Turn("system", "Be brief."), Turn("user", "Why?")])
    [Turn(role='user', text='Be brief.\\n\\nWhy?')]
    """
    system = "\n\n".join(turn.text for turn in turns if turn.role == "system")
    rest = [turn for turn in turns if turn.role != "system"]
    first = next((i for i, turn in enumerate(rest) if turn.role == "user"), None)
    if first is None:
        return [Turn("user", system), *rest]
    rest[first] = Turn("user", f"{system}\n\n{rest[first].text}")
    return rest


def stop_ids(tokenizer: Any, generation_config: Any, end_of_turn: str | None) -> list[int]:
    """Every token that ends a turn: told by generation config, tokenizer and template, never by a model's name."""
    found: set[int] = set()
    for ids in (getattr(generation_config, "eos_token_id", None), getattr(tokenizer, "eos_token_id", None)):
        found |= set(ids if isinstance(ids, (list, tuple)) else [ids]) - {None}
    if end_of_turn is not None:
        found.add(tokenizer.convert_tokens_to_ids(end_of_turn))
    return sorted(found)


def end_of_turn(template: Template) -> str | None:
    """The special token that the chat template writes right after an assistant's text, if it writes one."""
    if template.plain:
        return None
    mark = "specfuse-answer-mark"
    turns = [{"role": "user", "content": "x"}, {"role": "assistant", "content": mark}]
    try:
        text: str = template.tokenizer.apply_chat_template(
            turns,
            chat_template=template.chat_template if isinstance(template.chat_template, str) else None,
            tokenize=False,
            **template.kwargs,
        )
    except Exception:  # the template refuses; then it tells nothing
        return None
    tail = text.rpartition(mark)[2].lstrip()
    special = sorted(template.tokenizer.all_special_tokens, key=len, reverse=True)
    return next((token for token in special if tail.startswith(token)), None)
