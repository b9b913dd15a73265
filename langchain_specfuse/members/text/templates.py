"""From turns to the prompt that a model expects, and how the model ends its turn.

The chat template is the tokenizer's (or the user's) where there is one, and a plain one otherwise.
Rendering marked tools, calls and results shows which of them a template supports; the model's name
is never used for that. What a template does not support is written in words.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from ...core.values import Call, CallFormat, Constraint, Tool, Turn
from ...errors import MemberError, UsageError, advised
from .control import Conversation, Cover, Edges, control_texts, cut, forged, pattern_of
from .thinking import TAGS, Marks
from .tools import (
    allows_prose,
    arguments_of,
    call_format,
    calls_as_text,
    instructions,
    parts,
    result_as_text,
    written,
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
(docs/log.md)."""
JSON_EXAMPLE = (
    "Describe the planet Mars. Answer as JSON with the keys name, color and moons.",
    '{"name": "Mars", "color": "red", "moons": 2}',
)
CALL_EXAMPLES = (
    ("What time is it in Lima? Use a tool.", Call("get_time", '{"city": "Lima"}')),
    ("How many feet are 7 meters? Use a tool.", Call("convert", '{"value": 7, "unit": "feet"}')),
)
"""Two that differ: after a single one a base model calls whatever is most like it."""
PLAIN_HEADS = {"user": "## Question\n\n", "assistant": "## Answer\n\n"}
PLAIN_END = "\n\n##"
"""A model without a chat template ends its turn by beginning the next heading."""
MARK, THOUGHT = "specfuse-answer-mark", "specfuse-thought-mark"

Message = dict[str, Any]
Render = Callable[..., str]
"""(messages, tools=None, add_generation_prompt=False) -> text; raises what the template raises."""


class Template:
    """Turns -> prompt. ``end_text``: the text that ends a turn where no stop token does ("" with a
    chat template)."""

    def __init__(
        self, tokenizer: Any, name: str, chat_template: str | None, kwargs: Mapping[str, Any] | None
    ) -> None:
        self.tokenizer = tokenizer
        chosen_plain = chat_template == "plain"
        self.chat_template = (
            None if chosen_plain else chat_template or getattr(tokenizer, "chat_template", None)
        )
        self.kwargs = dict(kwargs or {})
        self.plain = not self.chat_template
        self.end_text = PLAIN_END if self.plain else ""
        self._read: dict[str, bool] = {}
        self._stay: dict[str, bool] = {}
        if self.plain and not chosen_plain:
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
        control tokens: it is cut inside each text of the conversation that looks like one."""
        said = Conversation(turns, tools, constraint)
        texts, cover = said.texts(), Cover()
        covered = self._covered(said, cover, self._control(texts))
        prompt = self._rendered_prompt(covered, think)
        control = self._control([*texts, prompt])
        if control is None:
            return [prompt]
        written, size = control.findall(prompt), len(cover)
        bare = Cover()
        covered = self._covered(said, bare, control, Edges(written))
        if len(bare) > size:
            # The conversation's text may complete a control token next to the template's text. Then
            # the prompt has different control tokens without that text.
            other = self._rendered_prompt(covered, think)
            if control.findall(other) != written:
                return bare.parts(other, control)
        return cover.parts(prompt, control)

    def _covered(
        self,
        said: Conversation,
        cover: Cover,
        control: re.Pattern[str] | None,
        edges: Edges | None = None,
    ) -> Conversation:
        """The conversation with control texts, and these edges of texts, replaced by digits."""

        def covered(text: str, whose: str) -> str:
            if control is not None:
                answers = whose == "assistant"
                text = control.sub(
                    lambda m: m[0] if answers and self._reads(m[0]) else cover.hide(m[0]), text
                )
            return edges.hidden(text, cover.hide) if edges else text

        return said.changed(covered)

    def _reads(self, mark: str) -> bool:
        """Whether this marks thoughts or calls, or is another control text that the template looks
        for in an assistant's text but does not write."""
        if mark not in self._read:
            self._read[mark] = mark in self._own_marks or self._drops(mark)
        return self._read[mark]

    def _drops(self, mark: str) -> bool:
        if self.plain or mark in self._turn:
            return False
        with_it, without = (
            _attempt(
                self.render,
                [_QUESTION, {"role": "assistant", "content": f"{MARK} {word} {MARK}"}, _QUESTION],
            )
            for word in (mark, "x")
        )
        count = [shown.lower().count(mark.lower()) for shown in (with_it, without)]
        return bool(with_it) and count[0] <= count[1]

    def _rendered_prompt(self, said: Conversation, think: bool) -> str:
        turns, tools, constraint = said.turns, said.tools, said.constraint
        if self.plain:
            return self._plain(all_as_text(turns, tools, constraint), constraint)
        prompt = self._chat(
            turns, tools, constraint, {} if think or not self.marks else {"enable_thinking": False}
        )
        return self.marks.ready(prompt, think) if self.marks else prompt

    def answer_parts(self, text: str) -> list[str]:
        """An answer's text in parts, cut inside texts that the tokenizer reads as control tokens
        even if it does not recognise special tokens. The marks of thoughts and calls stay whole."""
        control = self._control([text])
        if control is None or not control.search(text):
            return [text]
        places = forged(text, control, [(0, len(text))])
        return cut(text, [at for at in places if self._stays(_found(control, text, at))])

    def _stays(self, mark: str) -> bool:
        if mark not in self._stay:
            form, words = CallFormat(), Words(self.tokenizer)
            kept = self._own_marks | {form.begin.strip(), form.end.strip()}
            same = words.encode(mark) == words.encode(mark, marks=False)
            self._stay[mark] = same and mark not in kept
        return self._stay[mark]

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
        own = {one for one in thought if control.fullmatch(one)}
        in_calls = {one for text in call for one in control.findall(text)}
        return frozenset(own | (in_calls - self._turn))

    @cached_property
    def _turn(self) -> frozenset[str]:
        """The control texts around turns."""
        shown = _attempt(self.render, [_QUESTION], add_generation_prompt=True) + self.after_answer
        control = self._control([shown])
        return frozenset(control.findall(shown) if control else ())

    @cached_property
    def marks(self) -> Marks | None:
        """How this template marks reasoning: as rendered or, if it renders none, in tags; None: no
        reasoning."""
        if self.plain:
            return None
        if found := _marks_of(self.render):
            return found
        source = (
            self.chat_template if isinstance(self.chat_template, str) else repr(self.chat_template)
        )
        known = all(mark.strip() in source for mark in (TAGS.open, TAGS.close))
        prompt = "" if known else _attempt(self.render, [_QUESTION], add_generation_prompt=True)
        return TAGS if known or TAGS.opened(prompt) else None

    @cached_property
    def native(self) -> Native:
        """How the chat template writes tools and calls."""
        return Native() if self.plain else native_of(self.render)

    @property
    def after_answer(self) -> str:
        """What the template writes right after an assistant's text."""
        return (
            _attempt(self.render, [_QUESTION, {"role": "assistant", "content": MARK}])
            .rpartition(MARK)[2]
            .lstrip()
        )

    def own_calls(self, words: Words) -> CallFormat | None:
        """How the model was trained to write calls, if its tokenizer can write the marks as plain
        text."""
        own = self.native.format
        plain = own and all(
            words.decode(words.continuing(mark, marks=True)) == mark
            for mark in (own.begin, own.end)
        )
        return own if plain else None

    def render(self, messages: Sequence[Message], **more: Any) -> str:
        """The chat template's own rendering."""
        chosen = self.chat_template if isinstance(self.chat_template, str) else None
        how = {"chat_template": chosen, "tokenize": False, **self.kwargs, **more}
        return str(self.tokenizer.apply_chat_template(list(messages), **how))

    def _chat(
        self,
        turns: Sequence[Turn],
        tools: Sequence[Tool],
        constraint: Constraint | None,
        more: dict[str, Any],
    ) -> str:
        uses_tools = bool(tools) or any(turn.calls or turn.role == "tool" for turn in turns)
        native = self.native if uses_tools else Native()
        try:
            text = instructions(tools, constraint, native=native.tools, own=native.format)
            fitting = with_instructions(_fitting(turns, native, constraint), text)
            return self._rendered(fitting, tools if native.tools else (), **more)
        except UsageError:
            # It knows tools, but not as they are used here: several calls at once, a result in an
            # odd place.
            with suppress(UsageError):  # the first refusal says more
                if uses_tools:
                    return self._rendered(all_as_text(turns, tools, constraint), (), **more)
            raise

    def _rendered(self, turns: Sequence[Turn], tools: Sequence[Tool], **more: Any) -> str:
        if any(turn.role == "system" for turn in turns) and not self._knows_system:
            turns = with_system_folded(turns)
        if tools:
            more["tools"] = [tool_data(tool) for tool in tools]
        try:
            messages = [
                message(turn, self.native.calls if turn.calls else "dict") for turn in turns
            ]
            return self.render(messages, add_generation_prompt=True, **more)
        # the server that renders could not be reached; the template refused nothing
        except MemberError:
            raise
        except Exception as error:
            roles = ", ".join(turn.role for turn in turns)
            refused = UsageError(f"the chat template refused these turns ({roles}): {error}")
            raise advised(
                refused,
                "most templates expect user and assistant to alternate, the user first",
            ) from error

    @cached_property
    def _knows_system(self) -> bool:
        mark = "specfuse-system-mark"
        messages = [{"role": "system", "content": mark}, _QUESTION]
        return mark in _attempt(self.render, messages, add_generation_prompt=True)

    def _plain(self, turns: Sequence[Turn], constraint: Constraint | None) -> str:
        system = "\n".join(turn.text for turn in turns if turn.role == "system")
        examples = [
            Turn(*one)
            for pair in _examples(constraint)
            for one in zip(PLAIN_HEADS, pair, strict=True)
        ]
        shown = [*examples, *(turn for turn in turns if turn.role != "system")]
        bos = getattr(self.tokenizer, "bos_token", None) or ""
        head = PLAIN_TITLE + (f"{system}\n\n" if system else "")
        body = "".join(PLAIN_HEADS.get(t.role, f"## {t.role}\n\n") + t.text + "\n\n" for t in shown)
        return bos + head + body + PLAIN_HEADS["assistant"]


def _found(pattern: re.Pattern[str], text: str, at: int) -> str:
    match = pattern.match(text, at)
    return match[0] if match else ""


def _examples(constraint: Constraint | None) -> list[tuple[str, str]]:
    """Solved examples of the wanted kinds of answer: a base model imitates what it sees."""
    shown: list[tuple[str, str]] = list(PLAIN_EXAMPLES) if allows_prose(constraint) else []
    if form := call_format(constraint):
        shown += [(question, written(call, form)) for question, call in CALL_EXAMPLES]
    shown += [JSON_EXAMPLE for part in parts(constraint) if part.kind in ("json", "json_schema")]
    return shown or list(PLAIN_EXAMPLES)


# --- turns that fit a template --------------------------------------------------------------------


def with_system(turns: Sequence[Turn], text: str) -> list[Turn]:
    """The turns with this as their only system text."""
    return [Turn("system", text), *(turn for turn in turns if turn.role != "system")]


def with_instructions(turns: Sequence[Turn], text: str) -> list[Turn]:
    """The turns with this behind the system text.

    >>> with_instructions([Turn("user", "Why?")], "Be brief.")[0]
    Turn(role='system', text='Be brief.', calls=(), name='', call_id='')
    """
    system = [turn.text for turn in turns if turn.role == "system" and turn.text]
    return with_system(turns, "\n\n".join([*system, text])) if text else list(turns)


def with_system_folded(turns: Sequence[Turn]) -> list[Turn]:
    """The turns with the system text in the first user turn, for templates without system role."""
    system = "\n\n".join(turn.text for turn in turns if turn.role == "system")
    rest = [turn for turn in turns if turn.role != "system"]
    first = next((i for i, turn in enumerate(rest) if turn.role == "user"), None)
    if first is None:
        return [Turn("user", system), *rest]
    rest[first] = replace(rest[first], text=f"{system}\n\n{rest[first].text}")
    return rest


def _fitting(turns: Sequence[Turn], native: Native, constraint: Constraint | None) -> list[Turn]:
    """The turns, with those calls and results as text that the template does not know."""
    form = call_format(constraint)
    fitting: list[Turn] = []
    after_result = False
    for turn in turns:
        result = turn.role == "tool" and not native.results
        if turn.calls and native.calls == "no":
            turn = calls_as_text(turn, form)
        elif result:
            turn = result_as_text(turn, last=form is None)
        # Results that became the user's text are joined with what the user says next: templates
        # want alternation.
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


def message(turn: Turn, way: str) -> Message:
    """A turn as chat templates want it. ``way``: call arguments as a mapping (``dict``) or as JSON
    ``text``."""
    found: Message = {"role": turn.role, "content": turn.text}
    if turn.calls:
        found["tool_calls"] = [call_data(call, way) for call in turn.calls]
    if turn.role == "tool":
        found |= {"name": turn.name, "tool_call_id": plain_id(turn.call_id)}
    return found


def tool_data(tool: Tool) -> dict[str, Any]:
    """A tool as chat templates want it."""
    parameters = (
        json.loads(tool.parameters) if tool.parameters else {"type": "object", "properties": {}}
    )
    function = {"name": tool.name, "description": tool.description, "parameters": parameters}
    return {"type": "function", "function": function}


def call_data(call: Call, way: str) -> dict[str, Any]:
    """A call as chat templates want it."""
    arguments: Any = arguments_of(call)
    if way == "text":
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {
        "type": "function",
        "id": plain_id(call.id),
        "function": {"name": call.name, "arguments": arguments},
    }


def plain_id(given: str) -> str:
    """A call's id as the strictest templates want it: nine letters and digits."""
    if re.fullmatch(r"[A-Za-z0-9]{9}", given):
        return given
    return hashlib.sha256(given.encode()).hexdigest()[:9]


# --- which tools a template supports --------------------------------------------------------------

NAME, KEY, VALUE, RESULT = "specfuse_tool", "specfuse_key", "specfuse_value", "specfuse_result"
_QUESTION: Message = {"role": "user", "content": "x"}
_JSON_PAIR = re.compile(rf'"{KEY}"\s*:\s*"{VALUE}"')
_CALL = re.compile(
    rf'\{{\s*"([^"]+)"\s*:\s*"{NAME}"\s*,\s*"([^"]+)"\s*:\s*\{{\s*"{KEY}"\s*:\s*"{VALUE}"\s*\}}\s*\}}'
)
_THOUGHT = re.compile(r"<think>.*?</think>\s*", re.DOTALL)
_LAST_TAG = re.compile(r"[<\[][^<>\[\]]+[>\]]\s*\Z")


@dataclass(frozen=True, slots=True)
class Native:
    """What a template knows."""

    tools: bool = False
    """It shows the model the tools."""
    calls: Literal["dict", "text", "no"] = "no"
    """It writes the assistant's calls; their arguments are given to it as a mapping or as JSON
    text."""
    results: bool = False
    """It knows turns with a tool's result."""
    format: CallFormat | None = None
    """How it writes a call, where that is JSON with a name and arguments between two marks."""


def native_of(render: Render) -> Native:
    """What this template knows."""
    schema = {
        "type": "object",
        "properties": {KEY: {"type": "string", "description": VALUE}},
        "required": [KEY],
    }
    tool = tool_data(Tool(NAME, "x", json.dumps(schema)))
    shown = _attempt(render, [_QUESTION], tools=[tool], add_generation_prompt=True)
    tools, calls = NAME in shown and KEY in shown, _calls_of(render)
    # Many templates write down any role. Only one that knows tools or calls has seen a tool's
    # result in training.
    results = (tools or calls != "no") and _knows_results(render, calls)
    return Native(tools, calls, results, _format(render, calls))


def _attempt(render: Render, messages: Sequence[Message], **more: Any) -> str:
    """The rendering; empty if the template refuses. A server that cannot be reached has refused
    nothing."""
    try:
        return render(messages, **more)
    except MemberError:
        raise
    except Exception:  # whatever a template raises means that it does not know this
        return ""


def _called(way: str, count: int = 1) -> Message:
    calls = [Call(NAME, json.dumps({KEY: VALUE}), f"call{k:05}") for k in range(count)]
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [call_data(call, way) for call in calls],
    }


def _results(count: int = 1) -> list[Message]:
    return [
        message(Turn("tool", RESULT, name=NAME, call_id=f"call{k:05}"), "dict")
        for k in range(count)
    ]


def _calls_of(render: Render) -> Literal["dict", "text", "no"]:
    ways: tuple[Literal["dict", "text"], ...] = ("dict", "text")
    shown = {}
    for way in ways:
        before = [_QUESTION, _called(way)]
        shown[way] = _attempt(render, [*before, *_results()]) or _attempt(
            render, [*before, _QUESTION]
        )
    for way, text in shown.items():
        if NAME in text and _JSON_PAIR.search(text):
            return way
    # Not every template writes JSON: names and values in tags or Python's own way are calls too.
    for way, text in shown.items():
        if all(part in text for part in (NAME, KEY, VALUE)) and f'{{\\"{KEY}' not in text:
            return way
    return "no"


def _knows_results(render: Render, calls: str) -> bool:
    before = _called(calls) if calls != "no" else {"role": "assistant", "content": "y"}
    return RESULT in _attempt(render, [_QUESTION, before, *_results()], add_generation_prompt=True)


def _format(render: Render, calls: str) -> CallFormat | None:
    """Begin, end and keys, cut out of a rendered call."""
    if calls == "no":
        return None
    one = _attempt(render, [_QUESTION, _called(calls)])
    prompt = _attempt(render, [_QUESTION], add_generation_prompt=True)
    closing = _attempt(render, [_QUESTION, {"role": "assistant", "content": MARK}]).rpartition(
        MARK
    )[2]
    found = _CALL.search(one)
    if found is None or not prompt or not one.startswith(prompt) or not one.endswith(closing):
        return None
    begin = _THOUGHT.sub("", one[len(prompt) : found.start()])
    end = one[found.end() : len(one) - len(closing)]
    if not begin.strip() or not end.strip():
        return None  # nothing distinguishes such a call from an answer in JSON
    two = list(_CALL.finditer(_attempt(render, [_QUESTION, _called(calls, 2), *_results(2)])))
    gap = two[0].string[two[0].end() : two[1].start()] if len(two) == 2 else ""
    regular = gap.startswith(end) and gap.endswith(begin) and len(gap) >= len(end) + len(begin)
    between = gap[len(end) : len(gap) - len(begin)] if regular else CallFormat().between
    return CallFormat(begin, end, between, *found.groups())


# --- how a template marks thoughts ----------------------------------------------------------------


def _marks_of(render: Render) -> Marks | None:
    """What stands around a marked thought, cut out of its rendering."""
    answer = {"role": "assistant", "content": MARK}
    # Templates read one of these two fields: gpt-oss's the first, Qwen's the second.
    thoughtful = answer | {"thinking": THOUGHT, "reasoning_content": THOUGHT}
    before, _, after = _attempt(render, [_QUESTION, thoughtful]).partition(THOUGHT)
    close, answered, _ = after.partition(MARK)
    prompt = _attempt(render, [_QUESTION], add_generation_prompt=True)
    if not (answered and close.strip() and prompt and before.startswith(prompt)):
        return None
    if before.rstrip() == prompt.rstrip():  # the prompt opens the thought
        last = _LAST_TAG.search(before)
        return Marks(last[0], close, last[0] + close) if last else None
    open = before.removeprefix(prompt)
    head = _attempt(render, [_QUESTION, answer]).partition(MARK)[0]
    none = head.removeprefix(prompt) if head.startswith(prompt) else ""
    return Marks(open, close, none if none.strip() else open + close)


# --- how a turn ends ------------------------------------------------------------------------------


def stop_ids(tokenizer: Any, generation_config: Any, end_of_turn: str | None) -> list[int]:
    """Every token that ends a turn by generation config, tokenizer and template, never by a model's
    name."""
    found: set[int] = set()
    for ids in (
        getattr(generation_config, "eos_token_id", None),
        getattr(tokenizer, "eos_token_id", None),
    ):
        found |= set(ids if isinstance(ids, (list, tuple)) else [ids]) - {None}
    if end_of_turn is not None:
        found.add(tokenizer.convert_tokens_to_ids(end_of_turn))
    return sorted(found)


def end_of_turn(template: Template) -> str | None:
    """The special token that the chat template writes right after an assistant's text, if it writes
    one."""
    if template.plain:
        return None
    special = sorted(template.tokenizer.all_special_tokens, key=len, reverse=True)
    after = template.after_answer
    return next((token for token in special if after.startswith(token)), None)
