"""From turns to the text that a model expects, and how it says that its turn is over.

A chat template of the tokenizer (or of the user) where there is one; a plain one otherwise. Tools, calls and results go
through the chat template as far as it knows them (``_native``), in words otherwise (``_tools``). Knows the tokenizer's
templates; nothing of tensors, caches or votes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property
from typing import Any

from ..core.values import Constraint, Tool, Turn
from ..errors import MemberError, UsageError, advised
from ._native import Message, Native, found, message, tool_data
from ._sandglass import Overlong, Sandglass
from ._thoughts import CLOSE, OPEN, opened, with_thought
from ._tools import (
    EXAMPLE_CALLS,
    EXAMPLE_JSON,
    call_format,
    calls_as_text,
    in_words,
    parts,
    result_as_text,
    speaks,
    written,
)

log = logging.getLogger("langchain_specfuse")

RENDER_S = 10.0
"""A chat template is a program of whoever made the model; one that takes longer than this is not run again."""
MOST_CHARS = 1 << 24
"""No prompt is longer than that."""
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
        self._overlong = False

    def prompt(
        self,
        turns: Sequence[Turn],
        tools: Sequence[Tool] = (),
        constraint: Constraint | None = None,
        *,
        think: bool = True,
    ) -> str:
        """The text before the answer's first character; where the template knows thoughts and ``think``, before the
        thought's."""
        if self.plain:
            return self._plain(_all_in_words(turns, tools, constraint), constraint)
        if not self.thinks:
            return self._told(turns, tools, constraint, {})
        text = self._told(turns, tools, constraint, {} if think else {"enable_thinking": False})
        return with_thought(text, think)

    def _told(
        self, turns: Sequence[Turn], tools: Sequence[Tool], constraint: Constraint | None, more: dict[str, Any]
    ) -> str:
        if not tools and not any(turn.calls or turn.role == "tool" for turn in turns):
            fitting = self._with_system(turns, in_words((), constraint, native=False, own=None))
            return self._rendered(fitting, (), **more)
        native = self.native
        try:
            told = in_words(tools, constraint, native=native.tools, own=native.format)
            fitting = self._with_system(_fitting(turns, native, constraint), told)
            return self._rendered(fitting, tools if native.tools else (), **more)
        except UsageError as error:
            # It knows such things, but not as they are here: several calls at once, a result in an odd place.
            try:
                fitting = self._with_system(_all_in_words(turns, tools, constraint), "")
                return self._rendered(fitting, (), **more)
            except UsageError:
                raise error from None

    @cached_property
    def thinks(self) -> bool:
        """Whether this template knows thoughts: it opens one, or has words for both ends of one."""
        if self.plain:
            return False
        told = self.chat_template if isinstance(self.chat_template, str) else repr(self.chat_template)
        if OPEN in told and CLOSE in told:
            return True
        try:
            return opened(self._render([{"role": "user", "content": "x"}], add_generation_prompt=True))
        except MemberError:  # it was not asked
            raise
        except Exception:  # the template refuses; then it tells nothing
            return False

    @cached_property
    def native(self) -> Native:
        """What the chat template knows of tools."""
        return Native() if self.plain else found(self._render)

    def _render(self, messages: Sequence[Message], **more: Any) -> str:
        if self._overlong:
            raise Overlong(f"it did not end within {RENDER_S:g} s")
        try:
            with nullcontext() if getattr(self.tokenizer, "elsewhere", False) else Sandglass(RENDER_S):
                text: str = self.tokenizer.apply_chat_template(
                    list(messages),
                    chat_template=self.chat_template if isinstance(self.chat_template, str) else None,
                    tokenize=False,
                    **{**self.kwargs, **more},
                )
        except Overlong:
            self._overlong = True
            raise Overlong(f"it did not end within {RENDER_S:g} s") from None
        if len(text) > MOST_CHARS:
            raise Overlong(f"it made a prompt of {len(text)} characters, wanted at most {MOST_CHARS}")
        return text

    def _rendered(self, turns: Sequence[Turn], tools: Sequence[Tool] = (), **more: Any) -> str:
        if tools:
            more["tools"] = [tool_data(tool) for tool in tools]
        try:
            messages = [message(turn, self.native.calls if turn.calls else "dict") for turn in turns]
            return self._render(messages, add_generation_prompt=True, **more)
        except MemberError:  # nobody refused anything: the server that renders was not reached
            raise
        except Exception as error:
            roles = ", ".join(turn.role for turn in turns)
            told = UsageError(f"the chat template refused these turns ({roles}): {error}")
            raise advised(told, "most templates want user and assistant in turn, beginning with the user") from error

    def _with_system(self, turns: Sequence[Turn], told: str) -> Sequence[Turn]:
        """The turns with this added to the system text, which goes where the template can say it."""
        turns = with_system_told(turns, told)
        if any(turn.role == "system" for turn in turns) and self._cannot_say_system():
            return with_system_folded(turns)
        return turns

    def _cannot_say_system(self) -> bool:
        if self._folds_system is None:
            mark = "specfuse-system-mark"
            try:
                shown = self._rendered([Turn("system", mark), Turn("user", "x")])
            except UsageError:
                shown = ""
            self._folds_system = mark not in shown
        return self._folds_system

    def _plain(self, turns: Sequence[Turn], constraint: Constraint | None) -> str:
        examples = [
            Turn(role, text) for pair in _examples(constraint) for role, text in zip(PLAIN_HEADS, pair, strict=True)
        ]
        system = "\n".join(turn.text for turn in turns if turn.role == "system")
        told = [*examples, *(turn for turn in turns if turn.role != "system")]
        bos = getattr(self.tokenizer, "bos_token", None) or ""
        head = PLAIN_TITLE + (f"{system}\n\n" if system else "")
        body = "".join(PLAIN_HEADS.get(t.role, f"## {t.role}\n\n") + t.text + "\n\n" for t in told)
        return bos + head + body + PLAIN_HEADS["assistant"]


def _examples(constraint: Constraint | None) -> list[tuple[str, str]]:
    """Solved examples of the kinds of answer that are wanted: a base model does what was done before."""
    shown: list[tuple[str, str]] = list(PLAIN_EXAMPLES) if speaks(constraint) else []
    for part in parts(constraint):
        if part.kind in ("json", "json_schema"):
            shown.append(EXAMPLE_JSON)
        elif part.kind == "calls":
            shown += [(question, written(call, call_format(constraint))) for question, call in EXAMPLE_CALLS]
    return shown or list(PLAIN_EXAMPLES)


def _fitting(turns: Sequence[Turn], native: Native, constraint: Constraint | None) -> list[Turn]:
    """The turns, with those calls and results in words that the template does not know."""
    told: list[Turn] = []
    how = call_format(constraint) if any(part.kind == "calls" for part in parts(constraint)) else None
    open_result = False
    for turn in turns:
        result = turn.role == "tool" and not native.results
        if turn.calls and native.calls == "no":
            turn = calls_as_text(turn, how)
        elif result:
            turn = result_as_text(turn, last=how is None)
        # Results that have become the user's words are one turn with what the user says: templates want alternation.
        if told and turn.role == "user" == told[-1].role and (result or open_result):
            turn = replace(turn, text=f"{told.pop().text}\n\n{turn.text}")
        open_result = result
        told.append(turn)
    return told


def _all_in_words(turns: Sequence[Turn], tools: Sequence[Tool], constraint: Constraint | None) -> list[Turn]:
    """The turns for a template that knows nothing of tools."""
    return with_system_told(_fitting(turns, Native(), constraint), in_words(tools, constraint, native=False, own=None))


def with_system_told(turns: Sequence[Turn], told: str) -> list[Turn]:
    """The turns with this behind the system text.

    >>> with_system_told([Turn("user", "Why?")], "Be brief.")[0]
    Turn(role='system', text='Be brief.', calls=(), name='', call_id='')
    """
    if not told:
        return list(turns)
    system = [turn.text for turn in turns if turn.role == "system" and turn.text]
    return [Turn("system", "\n\n".join([*system, told])), *(turn for turn in turns if turn.role != "system")]


def with_system_folded(turns: Sequence[Turn]) -> list[Turn]:
    """The system text moved into the first user turn, for templates that know no system role.

    >>> with_system_folded([Turn("system", "Be brief."), Turn("user", "Why?")])
    [Turn(role='user', text='Be brief.\\n\\nWhy?', calls=(), name='', call_id='')]
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
    try:
        text = template._render([{"role": "user", "content": "x"}, {"role": "assistant", "content": mark}])
    except Exception:  # the template refuses; then it tells nothing
        return None
    tail = text.rpartition(mark)[2].lstrip()
    special = sorted(template.tokenizer.all_special_tokens, key=len, reverse=True)
    return next((token for token in special if tail.startswith(token)), None)
