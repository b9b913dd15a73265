"""ScriptedMember: a member that says what you tell it to. Deterministic, instant, no torch.

For tests of your own chains, for docs, and for looking at the method itself. Its tokens are words with the white space
before them; its log-probabilities come from how well a text agrees with its script.
"""

from __future__ import annotations

import itertools
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..core.answer import first_stop
from ..core.member import Probe
from ..core.values import KINDS, Draft, DraftJob, Effort, Failure, Query, Scored, ScoreJob
from ._fitting import fitted
from ._script import call_text, lines_of, said_by

Script = str | Mapping[str, Any] | Callable[[Query], Any] | Sequence[Any] | Any
"""A text; a dict, said as JSON; a message with ``text`` and ``tool_calls``; a function that makes one; a list."""
_WORD = re.compile(r"\s*\S+|\s+\Z")
SURE, UNSURE = -0.1, -3.0
"""The log-probability of a word as the script has it, and of any other."""
_COUNT = itertools.count()


class ScriptedMember:
    """Says ``answer``, a segment at a time, whatever has been agreed before.

    >>> from langchain_specfuse import ScriptedMember, SpecFuseChatModel
    >>> llm = SpecFuseChatModel(members=[ScriptedMember("The sky is blue."), ScriptedMember("The sea is blue.")])
    >>> llm.invoke("What is blue?").text
    'The sky is blue.'

    ``answer`` is a text, or a function of the query that returns one, or a list of these: one for each answer of the
    conversation. The first is said while nothing has been answered, the second after one turn of the assistant (a
    tool call is one), and so on; past the end of the list the last one stays. A dict is said as JSON, an ``AIMessage``
    as its text and its calls; :meth:`call` writes a call.

    It goes on at the place where the agreed answer stands in words: after four agreed words it proposes its fifth and
    following ones. Under a constraint, where an agreed text may end inside a word, it goes on there, as long as the
    text is its own. A script that is the JSON or the calls wanted, in another spelling (spaces, order of keys, escapes,
    a fence), is said in the legal one; of a script that does not fit, the logger ``langchain_specfuse`` warns.

    ``confidence`` scales its log-probabilities (0: sure of itself, 1: as above, more: unsure). ``fails_in`` is the
    number of a draft call (from 1) in which it raises ``error``; ``draft_only`` takes its vote away.
    """

    def __init__(
        self,
        answer: Script,
        *,
        name: str | None = None,
        confidence: float = 1.0,
        device: str = "scripted",
        draft_only: bool = False,
        fails_in: int | None = None,
        error: BaseException | None = None,
    ) -> None:
        self.answer = answer
        self._lines = lines_of(answer)
        self.name = name or f"scripted-{next(_COUNT)}"
        self.device = device
        self.confidence = confidence
        self.draft_only = draft_only
        self.fails_in = fails_in
        self.error = error or RuntimeError("scripted failure")
        self.draft_calls = 0
        self.score_calls = 0
        self.open_queries: dict[str, str] = {}
        """What it would say, by query: empty again when everything has been forgotten."""

    def __repr__(self) -> str:
        return f"ScriptedMember(name={self.name!r})"

    @staticmethod
    def call(tool: str, /, **arguments: Any) -> str:
        """A script that calls this tool. Several calls at once are several of these, joined by a new line.

        >>> print(ScriptedMember.call("get_weather", city="Rome"))
        <tool_call>
        {"name": "get_weather", "arguments": {"city": "Rome"}}
        </tool_call>
        """
        return call_text(tool, arguments)

    @property
    def spec(self) -> dict[str, Any]:
        """What tells this member's answers from another's: for caches."""
        lines = [line if isinstance(line, str) else repr(line) for line in self._lines]
        return {"scripted": lines, "confidence": self.confidence, "draft_only": self.draft_only}

    def probe(self) -> Probe:
        return Probe(model=self.name, scores=not self.draft_only, detail="scripted")

    def token_ids(self, text: str) -> list[int]:
        """One id per word, the same in all scripted members, in whatever process they are."""
        return [zlib.crc32(word.encode(errors="surrogatepass")) for word in _WORD.findall(text)]

    def draft(self, jobs: Sequence[DraftJob]) -> Sequence[Draft | Failure]:
        self.draft_calls += 1
        if self.draft_calls == self.fails_in:
            raise self.error
        return [self._draft(job) if (failure := self._unsaid(job)) is None else failure for job in jobs]

    def score(self, jobs: Sequence[ScoreJob]) -> Sequence[Scored | Failure]:
        self.score_calls += 1
        return [self._score(job) if (failure := self._unsaid(job)) is None else failure for job in jobs]

    def forget(self, query_id: str) -> None:
        self.open_queries.pop(query_id, None)

    def _draft(self, job: DraftJob) -> Draft:
        place, rest = self._place(job)
        words = rest[: min(job.segment_tokens, job.max_tokens)]
        text = "".join(words)
        stop_at = first_stop(text, job.stop)
        ended = len(words) == len(rest) and len(words) < job.max_tokens and stop_at is None
        sure = SURE * self.confidence
        prompt = sum(len(_WORD.findall(turn.text)) for turn in job.query.turns)
        return Draft(
            text,
            ended,
            tuple(self.token_ids(text)),
            (sure,) * (len(words) + ended),
            Effort(read=len(words), reused=prompt + place, prompt=prompt),
            ends=None if job.query.constraint is None else _ends(words),
        )

    def _score(self, job: ScoreJob) -> Scored:
        _, rest = self._place(job)
        rows = tuple(self._logprobs(c.text, c.ended, rest) for c in job.candidates)
        bound = job.query.constraint is not None
        ends = tuple(_ends(_WORD.findall(c.text)) for c in job.candidates) if bound else None
        return Scored(rows, Effort(read=sum(map(len, rows))), ends)

    def _logprobs(self, text: str, ended: bool, rest: Sequence[str]) -> tuple[float, ...]:
        words = _WORD.findall(text)
        agrees = [i < len(rest) and word.strip() == rest[i].strip() for i, word in enumerate(words)]
        if ended:
            agrees.append(len(words) >= len(rest))
        return tuple((SURE if good else UNSURE) * self.confidence for good in agrees)

    def _place(self, job: DraftJob | ScoreJob) -> tuple[int, list[str]]:
        """How many words have been agreed, and the words that it would still say."""
        said = "".join(segment.text for segment in job.answer)
        script = self._whole(job.query)
        place = len(_WORD.findall(said))
        if job.query.constraint is not None and script.startswith(said):
            return place, _WORD.findall(script[len(said) :])
        return place, _WORD.findall(script)[place:]

    def _unsaid(self, job: DraftJob | ScoreJob) -> Failure | None:
        """Why there is nothing to say: the script's function raised, or returned no text."""
        try:
            self._whole(job.query)
        except Exception as error:
            kind = getattr(error, "kind", "error")
            told = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            return Failure(kind if kind in KINDS else "error", told, error)
        return None

    def _whole(self, query: Query) -> str:
        if query.id not in self.open_queries:
            answered = sum(turn.role == "assistant" for turn in query.turns)
            script = said_by(self._lines[min(answered, len(self._lines) - 1)], query)
            self.open_queries[query.id] = fitted(script, query.constraint, self.name)
        return self.open_queries[query.id]


def _ends(words: Sequence[str]) -> tuple[int, ...]:
    return tuple(itertools.accumulate(map(len, words)))
