"""ScriptedMember: a deterministic member that writes what its script says, instantly and without
torch.

Use it to test your own chains, in documentation, and to explore the method itself. Its tokens are
words with the white space before them. Its log-probabilities show how well a text agrees with its
script.
"""

from __future__ import annotations

import itertools
import json
import logging
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..constraints import referee_for
from ..core.answer import first_stop
from ..core.member import Probe
from ..core.values import (
    REFUSAL,
    CallFormat,
    Draft,
    DraftJob,
    Effort,
    Failure,
    Query,
    Scored,
    ScoreJob,
    ToolCall,
)
from ..errors import UsageError, advised
from .arguments import checked
from .text.tools import call_text

log = logging.getLogger("langchain_specfuse")

SURE, UNSURE = -0.1, -3.0
"""The log-probability of a word that agrees with the script, and of any other."""
_WORD = re.compile(r"\s*\S+|\s+\Z")
_COUNT = itertools.count()
_ADVICE = (
    "pass a text, a dict (written as JSON), an AIMessage, a function of the query, or a list of "
    "these"
)


class _Refusal(str):
    """A script that refuses with this text."""


Line = str | Callable[[Query], Any]
"""One answer, or the function that makes it."""


class ScriptedMember:
    """Writes ``answer``, a segment at a time, whatever has been agreed before.

    >>> from langchain_specfuse import ScriptedMember, SpecFuseChatModel
    >>> llm = SpecFuseChatModel(
    ...     members=[ScriptedMember("The sky is blue."), ScriptedMember("The sea is blue.")]
    ... )
    >>> llm.invoke("What is blue?").text
    'The sky is blue.'

    ``answer`` is a text, or a function of the query that returns one, or a list of these: one for
    each answer of the conversation. The first is used while nothing has been answered, the second
    after one turn of the assistant (a tool call is one), and so on; past the end of the list the
    last one is used again. A dict is written as JSON, an ``AIMessage`` as its text and its calls;
    :meth:`call` writes a call, and :meth:`refusal` refuses.

    It continues from the agreed answer, counted in words: after four agreed words it drafts from
    its fifth word on, without white space that the answer already ends with. Under a constraint an
    agreed text may end inside a word; if the text is its own, it continues inside that word. A
    script that the constraint does not allow is cut where it breaks the constraint, and the logger
    ``langchain_specfuse`` warns.

    ``confidence`` scales its log-probabilities: at 0 it is sure of every word, and above 1 it is
    less sure than by default. ``fails_in`` is the number of a draft call (from 1) in which it
    raises ``error``; ``draft_only`` takes its vote away. It fails if prompt and answer together
    have more than ``max_context`` words.
    """

    @checked()
    def __init__(
        self,
        answer: Any,
        *,
        name: str | None = None,
        confidence: float = 1.0,
        device: str = "scripted",
        draft_only: bool = False,
        fails_in: int | None = None,
        error: BaseException | None = None,
        max_context: int | None = None,
    ) -> None:
        self.answer = answer
        self._lines = _lines_of(answer)
        self.name = name or f"scripted-{next(_COUNT)}"
        self.device = device
        self.confidence = confidence
        self.draft_only = draft_only
        self.fails_in = fails_in
        self.error = error or RuntimeError("scripted failure")
        self.max_context = max_context
        self._start_unused()

    def _start_unused(self) -> None:
        self.draft_calls = 0
        self.score_calls = 0
        self.open_queries: dict[str, str] = {}
        """query id -> its script; empty again when all queries have been forgotten."""

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """Start a copy with its counters at zero."""
        vars(self).update(state)
        self._start_unused()

    def __repr__(self) -> str:
        return f"ScriptedMember(name={self.name!r})"

    @staticmethod
    def call(tool: str, /, **arguments: Any) -> str:
        """A script that calls this tool. For several calls at once, join several of these with a
        line break.

        >>> print(ScriptedMember.call("get_weather", city="Rome"))
        <tool_call>
        {"name": "get_weather", "arguments": {"city": "Rome"}}
        </tool_call>
        """
        return _call_text(tool, arguments)

    @staticmethod
    def refusal(text: str = "") -> str:
        """A script that refuses to answer, as hosted models do.

        >>> from langchain_specfuse import ScriptedMember, SpecFuseChatModel
        >>> llm = SpecFuseChatModel(members=[ScriptedMember(ScriptedMember.refusal("I can't."))])
        >>> message = llm.invoke("How do I pick a lock?")
        >>> message.text, message.additional_kwargs["refusal"]
        ('', "I can't.")
        """
        return _Refusal(text)

    @property
    def spec(self) -> dict[str, Any]:
        """Everything that affects this member's output, for caches."""
        return {
            "scripted": [_line_spec(line) for line in self._lines],
            "confidence": self.confidence,
            "draft_only": self.draft_only,
        }

    def preview(self) -> Probe:
        return Probe(self.name, not self.draft_only, self.max_context, "scripted", reasons=False)

    def probe(self) -> Probe:
        return self.preview()

    def token_ids(self, text: str) -> list[int]:
        """One id per word, the same in all scripted members and processes."""
        return [zlib.crc32(word.encode(errors="surrogatepass")) for word in _WORD.findall(text)]

    def draft(self, jobs: Sequence[DraftJob]) -> Sequence[Draft | Failure]:
        self.draft_calls += 1
        if self.draft_calls == self.fails_in:
            raise self.error
        return [self._failure(job) or self._refusal(job) or self._draft(job) for job in jobs]

    def score(self, jobs: Sequence[ScoreJob]) -> Sequence[Scored | Failure]:
        self.score_calls += 1
        return [self._failure(job) or self._score(job) for job in jobs]

    def forget(self, query_id: str) -> None:
        self.open_queries.pop(query_id, None)

    def _refusal(self, job: DraftJob) -> Failure | None:
        script = self._script(job.query)
        return Failure(REFUSAL, str(script)) if isinstance(script, _Refusal) else None

    def _draft(self, job: DraftJob) -> Draft:
        place, rest = self._place(job)
        words = rest[: min(job.segment_tokens, job.max_tokens)]
        text = "".join(words)
        stop_at = first_stop(text, job.stop)
        ended = len(words) == len(rest) and len(words) < job.max_tokens and stop_at is None
        sure = SURE * self.confidence
        prompt = _length(job.query)
        return Draft(
            text,
            ended,
            tuple(self.token_ids(text)),
            (sure,) * (len(words) + ended),
            Effort(read=len(words), reused=prompt + place, prompt=prompt),
            ends=_ends(words),
        )

    def _score(self, job: ScoreJob) -> Scored:
        _, rest = self._place(job)
        rows = tuple(
            self._logprobs(candidate.text, candidate.ended, rest) for candidate in job.candidates
        )
        ends = None
        if job.query.constraint is not None:
            ends = tuple(_ends(_WORD.findall(candidate.text)) for candidate in job.candidates)
        return Scored(rows, Effort(read=sum(map(len, rows))), ends)

    def _logprobs(self, text: str, ended: bool, rest: Sequence[str]) -> tuple[float, ...]:
        words = _WORD.findall(text)
        agrees = [i < len(rest) and word.strip() == rest[i].strip() for i, word in enumerate(words)]
        if ended:
            agrees.append(len(words) >= len(rest))
        return tuple((SURE if good else UNSURE) * self.confidence for good in agrees)

    def _place(self, job: DraftJob | ScoreJob) -> tuple[int, list[str]]:
        """How many words have been agreed, and the words that the script still has."""
        agreed = "".join(segment.text for segment in job.answer)
        script = self._script(job.query)
        script = "" if isinstance(script, _Refusal) else script
        place = len(_WORD.findall(agreed))
        if job.query.constraint is not None and script.startswith(agreed):
            return place, _WORD.findall(script[len(agreed) :])
        if agreed[-1:].isspace():
            # White space at the end belongs to the next word. A check may have cut the answer
            # there.
            place = len(agreed.split())
            rest = _WORD.findall(script)[place:]
            gap = agreed[len(agreed.rstrip()) :]
            first = "".join(rest[:1])
            first = first.removeprefix(gap) if first.startswith(gap) else first.lstrip()
            return place, [word for word in (first, *rest[1:]) if word]
        return place, _WORD.findall(script)[place:]

    def _failure(self, job: DraftJob | ScoreJob) -> Failure | None:
        """Why there is no reply: the script raised, or returned no text, or prompt and answer are
        too long."""
        try:
            self._script(job.query)
        except Exception as error:
            return Failure.of(error)
        if self.max_context is not None:
            answer = "".join(segment.text for segment in job.answer)
            size = _length(job.query) + len(_WORD.findall(answer))
            if size > self.max_context:
                return Failure(
                    "overflow",
                    f"{size} words of prompt and answer exceed max_context={self.max_context}",
                )
        return None

    def _script(self, query: Query) -> str:
        if query.id not in self.open_queries:
            answered = sum(turn.role == "assistant" for turn in query.turns)
            script = _text_for(query, self._lines[min(answered, len(self._lines) - 1)])
            if query.constraint is not None and not isinstance(script, _Refusal):
                self._warn_if_illegal(script, query)
            self.open_queries[query.id] = script
        return self.open_queries[query.id]

    def _warn_if_illegal(self, script: str, query: Query) -> None:
        try:
            referee = referee_for(query.constraint)
        except (ImportError, ValueError, RuntimeError):  # the chat model reports the constraint
            return
        legal = referee.legal("", script)
        if legal < len(script):
            trouble = (
                f"is not allowed by the constraint from character {legal} on: "
                f"{script[legal : legal + 20]!r}"
            )
        elif not referee.may_end(script):
            trouble = f"ends at character {legal}, where the constraint wants more"
        else:
            return
        advice = "JSON is legal with ', ' and ': ' and the schema's keys in the schema's order"
        log.warning("%s: its script %s; it is cut there (%s)", self.name, trouble, advice)


def _length(query: Query) -> int:
    return sum(len(_WORD.findall(turn.text)) for turn in query.turns)


def _ends(words: Sequence[str]) -> tuple[int, ...]:
    return tuple(itertools.accumulate(map(len, words)))


# --- scripts --------------------------------------------------------------------------------------


def _lines_of(answer: Any) -> tuple[Line, ...]:
    """The answers of a script in their order."""
    values = answer if isinstance(answer, list | tuple) else [answer]
    lines = []
    for value in values:
        line = _line(value)
        if line is None:
            break
        lines.append(line)
    if not lines or len(lines) < len(values):
        raise advised(UsageError(f"a script cannot be {_shown(answer)}"), _ADVICE)
    return tuple(lines)


def _line(value: Any) -> Line | None:
    text = _text_of(value)
    return value if text is None and callable(value) else text


def _line_spec(line: Line) -> Any:
    if isinstance(line, _Refusal):
        return {"refusal": line}
    return line if isinstance(line, str) else repr(line)


def _text_for(query: Query, line: Line) -> str:
    if isinstance(line, str):
        return line
    value = line(query)
    text = _text_of(value)
    if text is None:
        name = getattr(line, "__name__", type(line).__name__)
        error = UsageError(f"the script {name!r} returned {_shown(value)}, expected a text")
        raise advised(error, "return a text, a dict (written as JSON) or an AIMessage")
    return text


def _text_of(value: Any) -> str | None:
    """The text of an answer: a text itself, a dict as JSON, or a message's text and calls as a
    member writes them; None for any other value.

    >>> _text_of({"city": "Köln"})
    '{"city": "Köln"}'
    """
    if isinstance(value, str):
        return value if isinstance(value, _Refusal) else str(value)
    if isinstance(value, Mapping):
        return _json(dict(value), "a script")
    calls = getattr(value, "tool_calls", None)
    contents = (getattr(value, key, None) for key in ("text", "content"))
    text = next((content for content in contents if isinstance(content, str)), None)
    if isinstance(value, type) or not isinstance(calls, Sequence) or text is None:
        return None
    return str(text) + CallFormat().between.join(
        _call_text(call["name"], call["args"]) for call in calls
    )


def _call_text(name: str, arguments: Mapping[str, Any]) -> str:
    """A call in the common format."""
    if not isinstance(name, str) or not name:
        error = UsageError(f"a call needs the name of a tool, got {_shown(name)}")
        raise advised(error, "call('get_weather', city='Rome')")
    return call_text(ToolCall(name, _json(dict(arguments), f"the call of {name!r}")), CallFormat())


def _json(value: Any, what: str) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        wrong = UsageError(f"{what} is not JSON: {error}")
        raise advised(
            wrong, "use only strings, finite numbers, True, False, None, lists and dicts"
        ) from error


def _shown(value: Any) -> str:
    return "None" if value is None else f"{value!r:.80} (of type {type(value).__name__})"
