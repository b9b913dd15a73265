"""``SpecFuseDecision``: the members' weighted vote as a decision model of LangChain, 1.8 or later.

A question becomes labels and a prompt; the verdict on these labels becomes the answer. ``decide`` does the same without
this interface, on every version. Knows LangChain's decision models; nothing of how members score.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from langchain_core import __version__ as _found
from langchain_core.messages import BaseMessage, HumanMessage, UsageMetadata
from langchain_core.runnables.config import ContextThreadPoolExecutor
from pydantic import Field, TypeAdapter, ValidationError

from ._deciding import Asked
from ._fields import display_name
from ._messages import PROVIDER, turns_of
from .core.values import Turn
from .core.verdict import Verdict
from .errors import UsageError, advised


class VersionError(UsageError, ImportError):
    """The installed langchain-core does not have what this needs."""


try:
    from langchain_core.decisions import (  # type: ignore[import-not-found, unused-ignore]
        BaseDecisionModel,
        Choice,
        ChoiceAnswer,
        ClassifierResponse,
        Noul,
        NoulAnswer,
        Question,
        Score,
        ScoreAnswer,
    )
except ModuleNotFoundError as error:
    if not (error.name or "").startswith("langchain_core"):
        raise
    missing = VersionError(f"SpecFuseDecision needs langchain-core 1.8 or later (its decision models), found {_found}")
    raise advised(missing, 'pip install "langchain-core>=1.8", or use langchain_specfuse.decide(...)') from error

_QUESTION: TypeAdapter[Any] = TypeAdapter(Question)
MOST_THREADS = 64
"""The questions of one request are asked at once; never more than this."""
_MEDIA = frozenset(
    {"image", "image_url", "input_image", "audio", "input_audio", "video", "file", "input_file", "media"}
)


class SpecFuseResponse(ClassifierResponse):  # type: ignore[misc, unused-ignore]
    """The answers, and what stands behind each of them."""

    verdicts: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """question id -> the verdict as plain JSON: each member's probabilities, weight and ``mass``, and ``dissent``."""


class SpecFuseDecision(BaseDecisionModel):  # type: ignore[misc, unused-ignore]
    """Several LLMs decide by vote: yes or no, one of several labels, or a level on a scale. Nothing is written.

    >>> from langchain_core.decisions import Noul
    >>> from langchain_specfuse import ScriptedMember
    >>> decision = SpecFuseDecision(members=[ScriptedMember("Yes", name="ann"), ScriptedMember("No", name="bob")])
    >>> questions = {"urgent": Noul(instructions="Does this message require an urgent response?")}
    >>> decision.invoke({"state": "Production is down.", "questions": questions}).nouls["urgent"].noul
    0.5

    Each question is a query of its own: the state, the instructions, the criteria, and the labels to answer with, which
    are ``Yes`` and ``No``, the labels of a choice, or the numbers of the levels. The probabilities are those of
    ``decide``. The confidence of a choice is the probability of its label; that of a score is 1 - σ/σ_max, where σ_max
    is the spread of a vote that is split between the two ends of the scale.
    """

    model: str = ""
    """The name shown in traces; the members' names if left out."""
    members: list[Any]
    """Who votes. Given as to ``SpecFuseChatModel``; weights are shared with every chat model that names the same."""
    prior: dict[str, float] | None = None
    """Voting weights by member; whoever is not named counts 1."""
    timeout: float | None = None
    """Seconds for each question."""
    member_timeout: float | None = None
    """Seconds for each piece of a member's work."""

    def __init__(self, **given: Any) -> None:
        known = set(type(self).model_fields)
        for name in sorted(set(given) - known):
            error = UsageError(f"there is no option {name!r}")
            raise advised(error, f"there are {', '.join(sorted(known))}")
        Asked.of(*(given.get(name) for name in ("members", "prior", "timeout", "member_timeout")))
        try:
            super().__init__(**{**given, "model": given.get("model") or display_name(given["members"])})
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise UsageError(f"{where} cannot be {first.get('input')!r:.200}: {first['msg']}") from error

    @property
    def _provider(self) -> str:
        return PROVIDER

    def _classify(self, state: Any, questions: dict[str, Any]) -> SpecFuseResponse:
        forms, asked = forms_of(state, questions), self._asked()
        with ContextThreadPoolExecutor(max_workers=min(len(forms), MOST_THREADS)) as executor:
            verdicts = list(executor.map(lambda form: asked.verdict(form.turns, form.labels), forms.values()))
        return self._response(forms, verdicts)

    async def _aclassify(self, state: Any, questions: dict[str, Any]) -> SpecFuseResponse:
        forms, asked = forms_of(state, questions), self._asked()
        tasks = [asyncio.ensure_future(asked.averdict(form.turns, form.labels)) for form in forms.values()]
        try:
            verdicts = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        return self._response(forms, verdicts)

    def _asked(self) -> Asked:
        return Asked.of(self.members, self.prior, self.timeout, self.member_timeout)

    def _response(self, forms: Mapping[str, Form], verdicts: Sequence[Verdict]) -> SpecFuseResponse:
        found = dict(zip(forms, verdicts, strict=True))
        read = sum(effort.read for verdict in verdicts for effort in verdict.efforts.values())
        return SpecFuseResponse(
            model=self.model,
            answers={name: forms[name].answer(verdict) for name, verdict in found.items()},
            # What ran through all members; nothing is written.
            usage=UsageMetadata(input_tokens=read, output_tokens=0, total_tokens=read),
            verdicts={name: verdict.as_dict() for name, verdict in found.items()},
        )


# --- questions to labels, verdicts to answers -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Form:
    """A question as members get it, and how their verdict becomes its answer."""

    turns: tuple[Turn, ...]
    labels: list[str]
    answer: Callable[[Verdict], Any]


def forms_of(state: Any, questions: Mapping[str, Any]) -> dict[str, Form]:
    """Every question with the state before it."""
    if not questions:
        raise advised(UsageError("there is nothing to decide: got no questions"), "questions={'id': Noul(...)}")
    told = as_text(state)
    return {name: _form(told, name, question) for name, question in questions.items()}


def _form(state: str, name: str, given: Any) -> Form:
    try:
        question = _QUESTION.validate_python(given)
    except ValidationError as error:
        first = error.errors()[0]
        wrong = UsageError(f"question {name!r} is none that is known: {first['msg']}, got {given!r:.200}")
        raise advised(wrong, "a Noul, a Choice or a Score of langchain_core.decisions") from error
    labels, criteria, answer = _asked_for(name, question)
    text = "\n\n".join(part for part in (state, as_text(question.instructions), criteria) if part)
    return Form(turns_of([HumanMessage(text)]), labels, answer)


def _asked_for(name: str, question: Any) -> tuple[list[str], str, Callable[[Verdict], Any]]:
    if isinstance(question, Noul):
        told = question.criteria
        return ["Yes", "No"], _listed({"Yes": told and told.true, "No": told and told.false}), noul_answer
    if isinstance(question, Choice):
        return list(question.criteria), _listed(question.criteria), choice_answer
    if isinstance(question, Score):
        levels = {str(level): text for level, text in enumerate(question.criteria)}
        return list(levels), _listed(levels), partial(score_answer, question.criteria)
    error = UsageError(f"question {name!r} asks for a {question.type}: members read text only")
    raise advised(error, "ask with a Noul, a Choice or a Score")


def _listed(criteria: Mapping[str, Any]) -> str:
    """The labels that are described, one a line."""
    return "\n".join(f"{label}: {as_text(text)}" for label, text in criteria.items() if text is not None)


def noul_answer(verdict: Verdict) -> Any:
    return NoulAnswer(type="noul", noul=_share(verdict.probabilities["Yes"]))


def choice_answer(verdict: Verdict) -> Any:
    shares = dict(verdict.probabilities)
    return ChoiceAnswer(
        type="choice", choice=verdict.label, probabilities=shares, confidence=_share(verdict.confidence)
    )


def score_answer(criteria: Sequence[Any], verdict: Verdict) -> Any:
    """The expected level; as sure as the levels that have the vote lie close together."""
    shares = {level: verdict.probabilities[str(level)] for level in range(len(criteria))}
    mean = math.fsum(level * share for level, share in shares.items())
    spread = math.sqrt(math.fsum(share * (level - mean) ** 2 for level, share in shares.items()))
    sure = _share(1 - spread / ((len(criteria) - 1) / 2))
    return ScoreAnswer(
        type="score", score=mean, legend=dict(enumerate(criteria)), probabilities=shares, confidence=sure
    )


def _share(value: float) -> float:
    """Sums of floats may leave the interval by a rounding."""
    return min(1.0, max(0.0, value))


# --- state to text ----------------------------------------------------------------------------------------------


def as_text(state: Any) -> str:
    """Text as it is, messages as lines, anything else as JSON."""
    if isinstance(state, str):
        return state
    if isinstance(state, BaseMessage):
        return _line(state)
    if isinstance(state, Sequence) and state and all(isinstance(one, BaseMessage) for one in state):
        return "\n".join(map(_line, state))
    try:
        return json.dumps(_without_media(state), ensure_ascii=False, default=_line)
    except (TypeError, ValueError) as error:
        if isinstance(error, UsageError):
            raise
        wrong = UsageError(f"the state cannot be written as JSON: {error}")
        raise advised(wrong, "give text, messages, or what JSON knows") from error


def _line(message: Any) -> str:
    if not isinstance(message, BaseMessage):
        raise TypeError(f"got {message!r:.100}")
    (turn,) = turns_of([message])
    return f"{turn.role}: {turn.text}"


def _without_media(value: Any) -> Any:
    """The same; an error if a picture or a sound is in it."""
    if isinstance(value, Mapping):
        if value.get("type") in _MEDIA and len(value) > 1:
            error = UsageError(f"the state holds a block of type {value['type']!r}: members read text only")
            raise advised(error, "leave the block out, or put what it says into words")
        return {key: _without_media(inner) for key, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_without_media(inner) for inner in value]
    return value
