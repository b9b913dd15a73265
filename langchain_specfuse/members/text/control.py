"""Text of a conversation that a tokenizer would read as control tokens, such as ``<|im_end|>``.

Only a chat template may write control tokens. So such text is replaced by digits while a template
renders the conversation. Then the text is put back, and the prompt is cut inside each such text and
tokenized in parts, so that no part contains one whole. A prompt without such text is one part.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from ...core.values import Constraint, Tool, ToolCall, Turn

Change = Callable[[str, str], str]
"""(text, role) -> text. ``role``: that of a turn for the turn's own text, otherwise empty."""
BRACKET = re.compile(r"[<>\[\]{}|｜]")


# --- what a tokenizer reads as control tokens -----------------------------------------------------


def control_texts(tokenizer: Any, template: str) -> frozenset[str]:
    """The texts that this tokenizer reads as control tokens anywhere in a text.

    These are all special tokens, and those added tokens that occur in the template's source, such
    as ``<think>``, or are enclosed in ``<|`` and ``|>``. Other added tokens, such as runs of spaces
    or ``<table>``, are ordinary text.
    """
    texts = set(tokenizer.all_special_tokens)
    for token in getattr(tokenizer, "added_tokens_decoder", {}).values():
        if token.special or _is_mark(token.content, template):
            texts.add(token.content)
    return frozenset(text for text in texts if len(text) > 1 and not text.isspace())


def _is_mark(text: str, template: str) -> bool:
    if not BRACKET.search(text) or not any(map(str.isalpha, text)):
        return False
    return text in template or (text.startswith("<|") and text.endswith("|>"))


@lru_cache(maxsize=64)
def pattern_of(texts: frozenset[str]) -> re.Pattern[str] | None:
    """A pattern that finds these texts, preferring longer ones; None if there are no texts.

    Matching takes linear time, however many of the texts begin alike.

    >>> pattern_of(frozenset({"<a>", "<ab>", "<a>b"})).findall("<a><ab><a>b<")
    ['<a>', '<ab>', '<a>b']
    """
    tree: dict[str, Any] = {}
    for text in sorted(texts):
        node = tree
        for char in text:
            node = node.setdefault(char, {})
        node[""] = {}
    return re.compile(_alternatives(tree)) if tree else None


def _alternatives(node: dict[str, Any]) -> str:
    options = [re.escape(char) + _alternatives(rest) for char, rest in node.items() if char]
    if not options:
        return ""
    if len(options) == 1 and "" not in node:
        return options[0]
    return f"(?:{'|'.join(options)})" + "?" * ("" in node)


# --- the texts of a conversation ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Conversation:
    """Everything that a prompt is made of, except the template."""

    turns: Sequence[Turn]
    tools: Sequence[Tool] = ()
    constraint: Constraint | None = None

    def texts(self) -> list[str]:
        """Every text in it, as templates see it: strings in JSON are unescaped."""
        texts: list[str] = []

        def collect(text: str, role: str) -> str:
            texts.append(text)
            return text

        self.changed(collect)
        return texts

    def changed(self, change: Change) -> Conversation:
        """The conversation with every text changed."""
        return Conversation(
            [_turn(turn, change) for turn in self.turns],
            [_tool(tool, change) for tool in self.tools],
            self.constraint and _constraint(self.constraint, change),
        )


def _turn(turn: Turn, change: Change) -> Turn:
    return replace(
        turn,
        text=change(turn.text, turn.role),
        name=change(turn.name, ""),
        calls=tuple(
            ToolCall(change(call.name, ""), _json(call.arguments, change), call.id)
            for call in turn.calls
        ),
    )


def _tool(tool: Tool, change: Change) -> Tool:
    name, description = change(tool.name, ""), change(tool.description, "")
    return Tool(name, description, _json(tool.parameters, change))


def _constraint(constraint: Constraint, change: Change) -> Constraint:
    """The constraint with its texts changed: a prompt shows schemas and choices."""
    if constraint.kind == "any_of":
        kinds = [
            _constraint(Constraint(kind, body), change)
            for kind, body in json.loads(constraint.body)
        ]
        body = json.dumps([[part.kind, part.body] for part in kinds], ensure_ascii=False)
        return Constraint("any_of", body)
    if constraint.kind in ("json_schema", "choice"):
        return Constraint(constraint.kind, _json(constraint.body, change))
    return constraint


def _json(text: str, change: Change) -> str:
    """JSON text with its strings and keys changed; any other text is changed as a whole."""
    try:
        data = json.loads(text)
    except ValueError:
        return change(text, "")
    changed = _changed_data(data, change)
    return text if changed == data else json.dumps(changed, ensure_ascii=False)


def _changed_data(data: Any, change: Change) -> Any:
    if isinstance(data, str):
        return change(data, "")
    if isinstance(data, list):
        return [_changed_data(item, change) for item in data]
    if isinstance(data, dict):
        return {change(key, ""): _changed_data(value, change) for key, value in data.items()}
    return data


# --- hiding texts from a template -----------------------------------------------------------------


class Cover:
    """Replaces texts with digits, which templates never change.

    >>> cover = Cover()
    >>> shown = "user: " + cover.hide("<s>").upper() + "!"
    >>> shown.removeprefix("user: ").removesuffix("!").isdecimal()
    True
    >>> cover.parts(shown, pattern_of(frozenset({"<s>"})))
    ['user: <', 's>!']
    """

    def __init__(self) -> None:
        self._head = f"{secrets.randbelow(10**20):020}"  # nobody can guess it
        self._hidden: list[str] = []

    def __len__(self) -> int:
        """How many texts are hidden."""
        return len(self._hidden)

    def hide(self, text: str) -> str:
        self._hidden.append(text)
        return f"{self._head}{len(self._hidden) - 1:08}"

    def parts(self, rendered: str, control: re.Pattern[str]) -> list[str]:
        """The prompt, cut inside each text that looks like a control token but is not one."""
        pieces: list[str] = []
        spans: list[tuple[int, int]] = []
        size = at = 0
        # Compiling the pattern takes as long as a short request, so only if it is needed.
        number = self._head + r"(\d{8})"
        for match in re.finditer(number, rendered) if self._hidden else ():
            before = rendered[at : match.start()]
            hidden = self._hidden[int(match[1])]
            pieces += [before, hidden]
            start = size + len(before)
            size = start + len(hidden)
            spans.append((start, size))
            at = match.end()
        text = "".join([*pieces, rendered[at:]])
        return cut(text, forged(text, control, spans))


def forged(text: str, control: re.Pattern[str], spans: Sequence[tuple[int, int]]) -> list[int]:
    """Where control texts begin that overlap with these spans."""
    places: list[int] = []
    span = at = 0
    while match := control.search(text, at):
        while span < len(spans) and spans[span][1] <= match.start():
            span += 1
        if span < len(spans) and spans[span][0] < match.end():
            places.append(match.start())
            at = match.start() + 1
        else:
            at = match.end()
    return places


def cut(text: str, places: Iterable[int]) -> list[str]:
    """The text in parts, cut one character after each of these places."""
    parts, at = [], 0
    for place in places:
        parts.append(text[at : place + 1])
        at = place + 1
    return [*parts, text[at:]]


class Edges:
    """The beginnings and ends of texts that could complete a control text next to the template's
    own text."""

    def __init__(self, control: Iterable[str]) -> None:
        self._control = tuple(control)
        self._heads = tuple(text[:size] for text in self._control for size in range(1, len(text)))
        self._tails = tuple(text[size:] for text in self._control for size in range(1, len(text)))

    def hidden(self, text: str, hide: Callable[[str], str]) -> str:
        """The text with its critical beginning and end hidden."""
        core = text.strip()
        if not core:
            return text
        lead = text[: len(text) - len(text.lstrip())]
        trail = text[len(lead) + len(core) :]
        begin = max((len(tail) for tail in self._tails if core.startswith(tail)), default=0)
        end = max((len(head) for head in self._heads if core.endswith(head)), default=0)
        is_part = any(core in control and core != control for control in self._control)
        if begin + end >= len(core) or is_part:
            return lead + hide(core) + trail
        inner = core[begin : len(core) - end]
        if begin:
            inner = hide(core[:begin]) + inner
        if end:
            inner += hide(core[len(core) - end :])
        return lead + inner + trail
