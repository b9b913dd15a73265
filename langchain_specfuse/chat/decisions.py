"""LangChain's decision model: several members answer typed questions with probabilities.

How members are asked is in ``chat.labelling``, the formulas are in ``core.labels``.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from langchain_core.decisions import (
    BaseDecisionModel,
    Box,
    Choice,
    ChoiceAnswer,
    ClassifierResponse,
    Noul,
    NoulAnswer,
    Score,
    ScoreAnswer,
)
from langchain_core.messages import BaseMessage, is_data_content_block
from langchain_core.messages.ai import UsageMetadata
from pydantic import (
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    field_validator,
    model_validator,
)

from ..core.options import Settings, notes_of, refusal
from ..engine.ensemble import Ensemble
from ..errors import UsageError, advised
from . import members as _members
from .errors import langchain_errors
from .label_calibrations import read_labels
from .labelling import YES, Decider, Decision, Item, LabelCalibration, LabelQuestion
from .messages import PROVIDER, refuse_broken, turns_of
from .references import members_list, names_of


class SpecFuseDecisionModel(BaseDecisionModel):
    """Several members answer questions about a text: they choose a label, give the probability of
    yes, or place the text on a scale.

    Each member scores all labels in one pass, and their probabilities are averaged. Members count
    in proportion to their numbers of parameters, or equally if one of these is unknown. With
    ``calibration=``, a file that ``langchain-specfuse doctor --decisions`` writes, the
    probabilities are fitted to your examples, and the member that was best on them decides.
    Providers' chat models, which give no scores, vote by two requests for each question.

    The confidence of an answer is the probability of its most probable label.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    model: str = Field(default="", description="the name in responses and traces")
    members: list[Any] = Field(description="the models that decide, as for SpecFuseChatModel")
    calibration: str | None = Field(
        default=None, description="a file that `doctor --decisions` wrote"
    )
    member_timeout: Annotated[float, Field(gt=0)] | None = Field(
        default=None,
        description="seconds for one pass of one member; a member that takes longer is left out",
    )

    _calibrations: Sequence[LabelCalibration] = PrivateAttr(default=())
    _decider: Decider | None = PrivateAttr(default=None)
    _ensemble: Ensemble | None = PrivateAttr(default=None)
    """The ensemble of the decider. A new one is made after members were unloaded."""

    def __init__(self, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise refusal(error, notes_of(type(self))) from None

    @field_validator("members", mode="before")
    @classmethod
    def _check_members(cls, members: Any) -> list[Any]:
        return members_list(members, "members")

    @field_validator("calibration", mode="before")
    @classmethod
    def _path_as_text(cls, path: Any) -> Any:
        return os.fspath(path) if isinstance(path, os.PathLike) else path

    @model_validator(mode="after")
    def _read_calibration(self) -> SpecFuseDecisionModel:
        """Name the model after its members, and refuse a calibration for others."""
        names = names_of(self.members)
        self.model = self.model or "+".join(names)
        if self.calibration is not None:
            self._calibrations = read_labels(self.calibration, names)
        return self

    def __getstate__(self) -> dict[Any, Any]:
        """The state without what the model has loaded, which stays in its process."""
        private = {"_calibrations": self._calibrations, "_decider": None, "_ensemble": None}
        return {**super().__getstate__(), "__pydantic_private__": private}

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> SpecFuseDecisionModel:
        copy: SpecFuseDecisionModel = self.model_copy()
        return copy

    @property
    def _provider(self) -> str:
        return PROVIDER

    def _classify(self, state: Any, questions: dict[str, Any]) -> ClassifierResponse:
        with langchain_errors():
            items = _items(state, questions)
            decisions = self._ready().decide(items, self._calibrations, self._settings())
            return self._response(questions, decisions)

    async def _aclassify(self, state: Any, questions: dict[str, Any]) -> ClassifierResponse:
        with langchain_errors():
            items = _items(state, questions)
            decider = await asyncio.to_thread(self._ready)  # this imports engines
            decisions = await decider.adecide(items, self._calibrations, self._settings())
            return self._response(questions, decisions)

    def _ready(self) -> Decider:
        ensemble = _members.ensemble_for(self.members)
        if self._decider is None or self._ensemble is not ensemble:
            self._ensemble, self._decider = ensemble, Decider(ensemble)
        return self._decider

    def _settings(self) -> Settings:
        return Settings(member_timeout=self.member_timeout)

    def _response(
        self, questions: Mapping[str, Any], decisions: Sequence[Decision]
    ) -> ClassifierResponse:
        answers = {
            name: _answer(question, decision)
            for (name, question), decision in zip(questions.items(), decisions, strict=True)
        }
        efforts = [effort for decision in decisions for effort in decision.efforts]
        # A provider counts what it was sent; of another member, what it has read is known.
        read = sum(
            effort.input_tokens if effort.requests else effort.read + effort.reused
            for effort in efforts
        )
        written = sum(effort.output_tokens for effort in efforts)
        usage = UsageMetadata(input_tokens=read, output_tokens=written, total_tokens=read + written)
        return ClassifierResponse(model=self.model, answers=answers, usage=usage)


# --- questions ------------------------------------------------------------------------------------


def _items(state: Any, questions: Mapping[str, Any]) -> list[Item]:
    if not questions:
        error = UsageError("there is nothing to decide: expected at least one question, got none")
        raise advised(error, "for example questions={'urgent': Noul(instructions='Is it urgent?')}")
    text = text_of(state)
    return [(_label_question(name, question), text) for name, question in questions.items()]


def _label_question(name: str, question: Any) -> LabelQuestion:
    if isinstance(question, Choice):
        labels = {_content(label): _content(about) for label, about in question.criteria.items()}
        return LabelQuestion.choice(labels, _content(question.instructions))
    if isinstance(question, Noul):
        criteria = question.criteria
        yes = _content(criteria.true) if criteria else ""
        no = _content(criteria.false) if criteria else ""
        return LabelQuestion.yes_or_no(_content(question.instructions), yes, no)
    if isinstance(question, Score):
        return LabelQuestion.levels(
            [_content(level) for level in question.criteria], _content(question.instructions)
        )
    error = UsageError(
        f"question {name!r} must be a Choice, a Noul or a Score, got {type(question).__name__}"
    )
    if isinstance(question, Box):
        raise advised(error, "members read only text, so they cannot find anything in an image")
    raise advised(error, 'for example Noul(instructions="Is it urgent?")')


def text_of(state: Any) -> str:
    """The state as text for the members: a text unchanged, messages with their roles, anything else
    as JSON.

    >>> text_of({"order": 7, "note": "late"})
    '{"order": 7, "note": "late"}'
    """
    if isinstance(state, BaseMessage):
        return _message_text(state)
    is_conversation = (
        isinstance(state, Sequence)
        and not isinstance(state, str)
        and len(state) > 0
        and all(isinstance(item, BaseMessage) for item in state)
    )
    if is_conversation:
        return "\n".join(f"{message.type}: {_message_text(message)}" for message in state)
    return _content(state)


def _content(value: Any) -> str:
    """A text unchanged, None as an empty text, and other values as JSON."""
    if value is None:
        return ""
    if not isinstance(value, str):
        try:
            value = json.dumps(_plain(value), ensure_ascii=False)
        except UsageError:
            raise
        except (TypeError, ValueError, RecursionError) as error:
            wrong = UsageError(
                f"the state must be text, messages or JSON, got {type(value).__name__}: {error}"
            )
            raise advised(wrong, "convert it to text, or to a dict of texts and numbers") from error
    refuse_broken(value)
    return str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, BaseMessage):
        return {"role": value.type, "content": _message_text(value)}
    if isinstance(value, Mapping):
        if is_data_content_block(dict(value)):
            raise _not_text(value.get("type"))
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(inner) for inner in value]
    return value


def _message_text(message: BaseMessage) -> str:
    (turn,) = turns_of([message])
    if turn.attachments:
        raise _not_text(turn.attachments[0].kind)
    calls = [f"{call.name}({call.arguments})" for call in turn.calls]
    return "\n".join([turn.text, *calls] if turn.text or not calls else calls)


def _not_text(kind: Any) -> UsageError:
    error = UsageError(f"the state of a decision must be text, got a block of type {kind!r}")
    return advised(error, "describe its content in words")


# --- answers --------------------------------------------------------------------------------------


def _answer(question: Any, decision: Decision) -> Any:
    chances = decision.probabilities
    if isinstance(question, Noul):
        return NoulAnswer(type="noul", noul=_share(chances[YES]))
    if isinstance(question, Choice):
        return ChoiceAnswer(
            type="choice",
            choice=decision.label,
            probabilities={label: chances[label] for label in question.criteria},
            confidence=_share(chances[decision.label]),
        )
    levels = range(len(question.criteria))
    probabilities = {level: chances[str(level)] for level in levels}
    return ScoreAnswer(
        type="score",
        score=sum(level * chance for level, chance in probabilities.items()),
        legend=dict(enumerate(question.criteria)),
        probabilities=probabilities,
        confidence=_share(max(probabilities.values())),
    )


def _share(probability: float) -> float:
    """The probability, limited to 0 to 1 after rounding errors."""
    return min(max(probability, 0.0), 1.0)
