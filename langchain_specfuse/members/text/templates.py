"""Turns conversations into the prompts that a model expects, and finds out how the model ends its
turn.

The chat template is the tokenizer's or the user's if there is one, and a plain one otherwise. Parts
of a conversation that the template does not support (see :mod:`.native`) are written in words.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import Any

from ...core.values import CallFormat, Constraint, Tool, ToolCall, Turn
from ...errors import MemberError, UsageError, advised
from .control import BRACKET, Conversation, Cover, Edges, control_texts, cut, forged, pattern_of
from .native import (
    MARK,
    QUESTION,
    Message,
    Native,
    attempt,
    call_data,
    marks_of,
    native_of,
    plain_id,
    tool_data,
)
from .thinking import TAGS, Marks
from .tools import (
    allows_prose,
    call_format,
    call_text,
    calls_as_text,
    instructions,
    parts,
    result_as_text,
)
from .words import Words

log = logging.getLogger("langchain_specfuse")

PLAIN_TITLE = "# Questions and answers\n\n"
PLAIN_EXAMPLES = (
    (
        "What is the largest planet in our solar system?",
        "The largest planet in our solar system is Jupiter. It is a gas giant, eleven times as "
        "wide as the Earth.",
    ),
    (
        "Give me two tips for sleeping better.",
        "1. Go to bed at the same time every day.\n2. Keep your bedroom dark, quiet and cool.",
    ),
)
"""Two solved examples: without them a small base model repeats the question or loops
(docs/development/log.md)."""
JSON_EXAMPLE = (
    "Describe the planet Mars. Answer as JSON with the keys name, color and moons.",
    '{"name": "Mars", "color": "red", "moons": 2}',
)
CALL_EXAMPLES = (
    ("What time is it in Lima? Use a tool.", ToolCall("get_time", '{"city": "Lima"}')),
    (
        "How many feet are 7 meters? Use a tool.",
        ToolCall("convert", '{"value": 7, "unit": "feet"}'),
    ),
)
"""Two different examples. After a single example, a base model calls the tool that resembles it
most."""
PLAIN_HEADS = {"user": "## Question\n\n", "assistant": "## Answer\n\n"}
PLAIN_END = "\n\n##"
"""A model without a chat template ends its turn by beginning the next heading."""


class Template:
    """Turns conversations into prompts."""

    def __init__(
        self, tokenizer: Any, name: str, chat_template: str | None, kwargs: Mapping[str, Any] | None
    ) -> None:
        self.tokenizer = tokenizer
        self.chat_template: Any = None
        if chat_template != "plain":
            self.chat_template = chat_template or getattr(tokenizer, "chat_template", None)
        self.kwargs = dict(kwargs or {})
        self.plain = not self.chat_template
        self.end_text = PLAIN_END if self.plain else ""
        """The text that ends a turn where no stop token does; empty with a chat template."""
        self._read: dict[str, bool] = {}
        """Control text -> whether the template reads it in an assistant's text."""
        self._split: dict[str, bool] = {}
        """Control text -> whether it is split where an answer holds it."""
        if self.plain and chat_template != "plain":
            log.warning(
                "%s has no chat template: it gets a plain one (chat_template='plain', or your own)",
                name,
            )

    def prompt(
        self,
        turns: Sequence[Turn],
        tools: Sequence[Tool] = (),
        constraint: Constraint | None = None,
        *,
        think: bool = True,
    ) -> str:
        """The text before the answer, or before the thought if the template supports thoughts and
        ``think`` is true."""
        return "".join(self.parts(turns, tools, constraint, think=think))

    def parts(
        self,
        turns: Sequence[Turn],
        tools: Sequence[Tool] = (),
        constraint: Constraint | None = None,
        *,
        think: bool = True,
    ) -> list[str]:
        """The prompt, in parts to be tokenized separately so that only the template can write
        control tokens. It is cut inside each text of the conversation that looks like one."""
        conversation = Conversation(turns, tools, constraint)
        texts = conversation.texts()
        cover = Cover()
        covered = self._covered(conversation, cover, self._control(texts))
        prompt = self._rendered_prompt(covered, think)
        control = self._control([*texts, prompt])
        if control is None:
            return [prompt]
        in_prompt = control.findall(prompt)
        with_edges = Cover()
        size = len(cover)
        covered = self._covered(conversation, with_edges, control, Edges(in_prompt))
        if len(with_edges) > size:
            # The conversation's text may complete a control token next to the template's text. Then
            # the prompt has different control tokens without that text.
            other = self._rendered_prompt(covered, think)
            if control.findall(other) != in_prompt:
                return with_edges.parts(other, control)
        return cover.parts(prompt, control)

    def tokens(self, turns: Sequence[Turn]) -> list[int]:
        """The prompt in the tokens of a server that renders and tokenizes at once, if no text of
        these turns can be a part of a control token; otherwise empty."""
        if self.plain or self.marks is not None or not self._turn:
            return []
        for turn in turns:
            text = turn.text.strip()
            is_part = bool(text) and any(text in mark for mark in self._turn)
            if turn.calls or turn.role == "tool" or is_part or BRACKET.search(text):
                return []
        if not all(BRACKET.match(mark[0]) and BRACKET.match(mark[-1]) for mark in self._turn):
            return []
        return list(self._rendered(turns, (), tokenize=True))

    def _covered(
        self,
        conversation: Conversation,
        cover: Cover,
        control: re.Pattern[str] | None,
        edges: Edges | None = None,
    ) -> Conversation:
        """The conversation with control texts, and these edges of texts, replaced by digits."""

        def covered(text: str, role: str) -> str:
            def replacement(match: re.Match[str]) -> str:
                if role == "assistant" and self._reads(match[0]):
                    return match[0]
                return cover.hide(match[0])

            if control is not None:
                text = control.sub(replacement, text)
            return edges.hidden(text, cover.hide) if edges else text

        return conversation.changed(covered)

    def _reads(self, mark: str) -> bool:
        """Whether this text marks thoughts or calls, or is another control text that the template
        looks for in an assistant's text but does not write."""
        if mark not in self._read:
            self._read[mark] = mark in self._own_marks or self._drops(mark)
        return self._read[mark]

    def _drops(self, mark: str) -> bool:
        """Whether the template leaves this text out of an assistant's turn."""
        if self.plain or mark in self._turn:
            return False
        rendered = []
        for word in (mark, "x"):
            answer = {"role": "assistant", "content": f"{MARK} {word} {MARK}"}
            rendered.append(attempt(self.render, [QUESTION, answer, QUESTION]))
        with_mark, without_mark = (text.lower().count(mark.lower()) for text in rendered)
        return bool(rendered[0]) and with_mark <= without_mark

    def _rendered_prompt(self, conversation: Conversation, think: bool) -> str:
        turns, tools = conversation.turns, conversation.tools
        constraint = conversation.constraint
        if self.plain:
            return self._plain(all_as_text(turns, tools, constraint), constraint)
        if self.marks is None:
            return self._chat(turns, tools, constraint, {})
        options = {} if think else {"enable_thinking": False}
        return self.marks.ready(self._chat(turns, tools, constraint, options), think)

    def answer_parts(self, text: str) -> list[str]:
        """An answer's text in parts, cut inside texts that the tokenizer reads as control tokens
        even if it does not recognise special tokens. The marks of thoughts and calls stay whole."""
        control = self._control([text])
        if control is None or not control.search(text):
            return [text]
        places = forged(text, control, [(0, len(text))])
        return cut(text, [at for at in places if self._is_split(_match_at(control, text, at))])

    def _is_split(self, mark: str) -> bool:
        """Whether the tokenizer reads this text as a control token in any case, though it marks
        neither thoughts nor calls."""
        if mark not in self._split:
            form, words = CallFormat(), Words(self.tokenizer)
            kept = self._own_marks | {form.begin.strip(), form.end.strip()}
            always = words.encode(mark) == words.encode(mark, marks=False)
            self._split[mark] = always and mark not in kept
        return self._split[mark]

    def _control(self, texts: Sequence[str]) -> re.Pattern[str] | None:
        """A pattern for control texts: all of the tokenizer's, or only those in these texts if a
        server has the tokenizer."""
        if isinstance(self._controls, frozenset):
            return pattern_of(self._controls)
        return pattern_of(self._controls(texts))

    @cached_property
    def _controls(self) -> frozenset[str] | Callable[[Sequence[str]], frozenset[str]]:
        ask: Callable[[Sequence[str]], frozenset[str]] | None = getattr(
            self.tokenizer, "control_in", None
        )
        return ask or control_texts(self.tokenizer, str(self.chat_template or ""))

    @cached_property
    def _own_marks(self) -> frozenset[str]:
        """The control texts that mark thoughts and calls."""
        if self.plain:
            return frozenset()
        marks, form = self.marks, self.native.format
        thought = [marks.open.strip(), marks.close.strip()] if marks else []
        call = [form.begin, form.end] if form else []
        control = self._control([*thought, *call])
        if control is None:
            return frozenset()
        in_thoughts = {text for text in thought if control.fullmatch(text)}
        in_calls = {mark for text in call for mark in control.findall(text)}
        return frozenset(in_thoughts | (in_calls - self._turn))

    @cached_property
    def _turn(self) -> frozenset[str]:
        """The control texts around turns."""
        prompt = attempt(self.render, [QUESTION], add_generation_prompt=True)
        text = prompt + self.after_answer
        control = self._control([text])
        return frozenset(control.findall(text) if control else ())

    @cached_property
    def marks(self) -> Marks | None:
        """How this template marks reasoning: as rendered or, if it renders none, in tags; None: no
        reasoning."""
        if self.plain:
            return None
        rendered = marks_of(self.render)
        if rendered is not None:
            return rendered
        source = str(self.chat_template)
        if TAGS.open.strip() in source and TAGS.close.strip() in source:
            return TAGS
        prompt = attempt(self.render, [QUESTION], add_generation_prompt=True)
        return TAGS if TAGS.opened(prompt) else None

    @cached_property
    def native(self) -> Native:
        """How the chat template writes tools and calls."""
        return Native() if self.plain else native_of(self.render)

    @property
    def after_answer(self) -> str:
        """What the template writes right after an assistant's text."""
        rendered = attempt(self.render, [QUESTION, {"role": "assistant", "content": MARK}])
        return rendered.rpartition(MARK)[2].lstrip()

    def own_calls(self, words: Words) -> CallFormat | None:
        """How the model was trained to write calls, if its tokenizer can write the marks as plain
        text."""
        own = self.native.format
        if own is None:
            return None
        for mark in (own.begin, own.end):
            if words.decode(words.continuing(mark, marks=True)) != mark:
                return None
        return own

    def render(self, messages: Sequence[Message], **more: Any) -> Any:
        """The chat template's own rendering: a text or, with ``tokenize``, its tokens."""
        template = self.chat_template if isinstance(self.chat_template, str) else None
        options = {"chat_template": template, "tokenize": False, **self.kwargs, **more}
        rendered = self.tokenizer.apply_chat_template(list(messages), **options)
        return rendered if options["tokenize"] else str(rendered)

    def _chat(
        self,
        turns: Sequence[Turn],
        tools: Sequence[Tool],
        constraint: Constraint | None,
        more: dict[str, Any],
    ) -> str:
        uses_tools = bool(tools) or any(turn.calls or turn.role == "tool" for turn in turns)
        if not uses_tools and constraint is None:
            return self._rendered(turns, (), **more)
        native = self.native if uses_tools else Native()
        try:
            text = instructions(tools, constraint, native=native.tools, own=native.format)
            fitting = with_instructions(_fitting(turns, native, constraint), text)
            return self._rendered(fitting, tools if native.tools else (), **more)
        except UsageError:
            # It may support tools, but not several calls at once, or a result in an odd place.
            with suppress(UsageError):  # the first refusal says more
                if uses_tools:
                    return self._rendered(all_as_text(turns, tools, constraint), (), **more)
            raise

    def _rendered(self, turns: Sequence[Turn], tools: Sequence[Tool], **more: Any) -> Any:
        if any(turn.role == "system" for turn in turns) and not self._knows_system:
            turns = with_system_folded(turns)
        if tools:
            more["tools"] = [tool_data(tool) for tool in tools]
        try:
            messages = [self._message(turn) for turn in turns]
            return self.render(messages, add_generation_prompt=True, **more)
        except MemberError:  # a server could not be reached: the template has refused nothing
            raise
        except Exception as error:
            roles = ", ".join(turn.role for turn in turns)
            refused = UsageError(f"the chat template refused these turns ({roles}): {error}")
            raise advised(
                refused,
                "most templates expect user and assistant to alternate, the user first",
            ) from error

    def _message(self, turn: Turn) -> Message:
        """The turn as the template wants it."""
        data: Message = {"role": turn.role, "content": turn.text}
        if turn.calls:
            data["tool_calls"] = [call_data(call, self.native.calls) for call in turn.calls]
        if turn.role == "tool":
            data |= {"name": turn.name, "tool_call_id": plain_id(turn.call_id)}
        return data

    @cached_property
    def _knows_system(self) -> bool:
        mark = "specfuse-system-mark"
        messages = [{"role": "system", "content": mark}, QUESTION]
        return mark in attempt(self.render, messages, add_generation_prompt=True)

    def _plain(self, turns: Sequence[Turn], constraint: Constraint | None) -> str:
        pieces = [getattr(self.tokenizer, "bos_token", None) or "", PLAIN_TITLE]
        system = "\n".join(turn.text for turn in turns if turn.role == "system")
        if system:
            pieces.append(f"{system}\n\n")
        for question, answer in _examples(constraint):
            pieces += [PLAIN_HEADS["user"], question, "\n\n"]
            pieces += [PLAIN_HEADS["assistant"], answer, "\n\n"]
        for turn in turns:
            if turn.role != "system":
                head = PLAIN_HEADS.get(turn.role, f"## {turn.role}\n\n")
                pieces += [head, turn.text, "\n\n"]
        return "".join([*pieces, PLAIN_HEADS["assistant"]])


def _match_at(pattern: re.Pattern[str], text: str, at: int) -> str:
    match = pattern.match(text, at)
    return match[0] if match else ""


def _examples(constraint: Constraint | None) -> list[tuple[str, str]]:
    """Solved examples of the allowed kinds of answer: a base model imitates what it sees."""
    examples: list[tuple[str, str]] = []
    if allows_prose(constraint):
        examples += PLAIN_EXAMPLES
    form = call_format(constraint)
    if form is not None:
        examples += [(question, call_text(call, form)) for question, call in CALL_EXAMPLES]
    for part in parts(constraint):
        if part.kind in ("json", "json_schema"):
            examples.append(JSON_EXAMPLE)
    return examples or list(PLAIN_EXAMPLES)


# --- turns that fit a template --------------------------------------------------------------------


def with_system(turns: Sequence[Turn], text: str) -> list[Turn]:
    """The turns with this as their only system text."""
    return [Turn("system", text), *(turn for turn in turns if turn.role != "system")]


def with_instructions(turns: Sequence[Turn], text: str) -> list[Turn]:
    """The turns with this text after the system text.

    >>> with_instructions([Turn("user", "Why?")], "Be brief.")[0]
    Turn(role='system', text='Be brief.', calls=(), name='', call_id='')
    """
    if not text:
        return list(turns)
    system = [turn.text for turn in turns if turn.role == "system" and turn.text]
    return with_system(turns, "\n\n".join([*system, text]))


def with_system_folded(turns: Sequence[Turn]) -> list[Turn]:
    """The turns with the system text in the first user turn, for templates without system role."""
    system = "\n\n".join(turn.text for turn in turns if turn.role == "system")
    rest = [turn for turn in turns if turn.role != "system"]
    for place, turn in enumerate(rest):
        if turn.role == "user":
            rest[place] = replace(turn, text=f"{system}\n\n{turn.text}")
            return rest
    return [Turn("user", system), *rest]


def _fitting(turns: Sequence[Turn], native: Native, constraint: Constraint | None) -> list[Turn]:
    """The turns, with the calls and results that the template does not support written as text."""
    form = call_format(constraint)
    fitting: list[Turn] = []
    after_result = False
    for turn in turns:
        result = turn.role == "tool" and not native.results
        if turn.calls and native.calls == "no":
            turn = calls_as_text(turn, form)
        elif result:
            turn = result_as_text(turn, last=form is None)
        # A result that became the user's text is joined with the user's next turn: templates want
        # user and assistant to alternate.
        if fitting and turn.role == "user" == fitting[-1].role and (result or after_result):
            before = fitting.pop()
            turn = replace(
                turn,
                text=f"{before.text}\n\n{turn.text}",
                attachments=before.attachments + turn.attachments,
            )
        after_result = result
        fitting.append(turn)
    return fitting


def all_as_text(
    turns: Sequence[Turn], tools: Sequence[Tool], constraint: Constraint | None
) -> list[Turn]:
    """The turns for a template that does not support tools."""
    text = instructions(tools, constraint, native=False, own=None)
    return with_instructions(_fitting(turns, Native(), constraint), text)


# --- how a turn ends ------------------------------------------------------------------------------


def stop_ids(tokenizer: Any, generation_config: Any, end_of_turn: str | None) -> list[int]:
    """Every token that ends a turn by generation config, tokenizer and template, never by a model's
    name."""
    stops: set[int | None] = set()
    for source in (generation_config, tokenizer):
        ids = getattr(source, "eos_token_id", None)
        stops.update(ids if isinstance(ids, list | tuple) else [ids])
    if end_of_turn is not None:
        stops.add(tokenizer.convert_tokens_to_ids(end_of_turn))
    return sorted(token for token in stops if token is not None)


def end_of_turn(template: Template) -> str | None:
    """The special token that the chat template writes right after an assistant's text, if it writes
    one."""
    if template.plain:
        return None
    after = template.after_answer
    for token in sorted(template.tokenizer.all_special_tokens, key=len, reverse=True):
        if after.startswith(token):
            return str(token)
    return None
