"""ChatModelMember: any LangChain chat model, such as Ollama's or a hosted one. Text in, text out.

All text is read from the model's own stream, which stays open. A member that writes alone, or leads
and is not corrected, hands on each part as it arrives, and gives its own answer in one request. In
votes, as long as this member's drafts are chosen, its next draft is the next part of that stream.
When another draft is chosen, the stream is cancelled, and a new one continues the chosen text, in
one of the ways of its provider (``ways.py``). The member votes by ballot: it sees the drafts,
labelled with letters, in two orders.

Paper: members vote by likelihood alone; hosted models do not report the likelihood of a given text.
"""

from __future__ import annotations

import copy
import logging
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal, Self

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from pydantic import Field, InstanceOf

from ...core.call import replies, rest_s
from ...core.letters import LETTERS, chosen_letter
from ...core.member import Probe
from ...core.values import (
    BUDGET,
    REFUSAL,
    Budget,
    Candidate,
    Draft,
    DraftJob,
    Effort,
    Failure,
    Sampling,
    Scored,
    ScoreJob,
    Segment,
)
from ...errors import MemberError, UsageError, advised
from ..arguments import checked
from ..names import check_argument, kind_of
from .continuing import Opening, Restarted, joined
from .names import chat_model_named, key_of, name_of
from .parts import joined as chunks_joined
from .parts import with_text
from .remarks import answered_again
from .replies import Reply
from .request import Request, asked_again, content_of, refuse_without_tools
from .retries import asked_once, pause_before_retry, wait
from .settings import sampling_of, silence_of
from .stream import OpenStream, StreamPart
from .ways import Way, asked_to_continue, ways_of
from .words import words_of

log = logging.getLogger("langchain_specfuse")

BALLOT = (
    "Which continuation of the answer is the most correct and helpful one? Reply with its "
    "letter alone."
)
BALLOT_WORDS = 12
"""A ballot is read up to this many words."""
DOUBT = 0.1
"""What a ballot adds to each draft's count, so that no draft gets a probability of zero."""
INPUTS = {
    "image": "image_inputs",
    "file": "pdf_inputs",
    "audio": "audio_inputs",
    "video": "video_inputs",
}
"""Kinds of attachments -> their keys in a chat model's ``profile``."""
OTHER = "content of its provider"
"""The kind of an attachment that only a provider can read."""
Dollars = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Price = Annotated[
    Sequence[Dollars],
    Field(
        min_length=2,
        max_length=2,
        description=(
            "dollars per million input tokens and per million output tokens: price=(0.4, 1.6)"
        ),
    ),
]


class ChatModelMember:
    """A LangChain chat model as a member, with its own settings and rate limits.

    >>> from langchain_core.language_models import FakeListChatModel
    >>> ChatModelMember(FakeListChatModel(responses=["Hello!"]), name="fake").name
    'fake'

    - ``model``: a chat model, or a name that LangChain's ``init_chat_model`` knows, such as
      ``"ollama:llama3.2"``.
    - ``max_concurrency``: at most this many questions run at the same time; None: as many as there
      are.
    - ``system_prompt``: replaces the conversation's system prompt for this member.
    - ``price``: dollars per million input tokens and per million output tokens, for ``max_cost``
      and the trace.
    - ``thinking_tokens``: a model that reasons for longer before its first word leaves the answer.
      A chunk of the stream counts as its words, and as one at least. Reasoning that is not streamed
      is not counted.

    A ``temperature`` above 0 is passed to the chat model; all other settings are those of the chat
    model. Ollama's models also get temperature 0 if they have none of their own, the seed, and the
    schema of an object.

    As the lead, it counts as sure of a draft only if it returns log-probabilities:
    ``ChatOpenAI(..., logprobs=True)``.
    """

    @checked()
    def __init__(
        self,
        model: Annotated[
            InstanceOf[BaseChatModel] | str,
            Field(description="for example ChatModelMember('ollama:llama3.2')"),
        ],
        *,
        name: str | None = None,
        max_concurrency: Annotated[
            int | None, Field(ge=1, description="leave it out for no limit")
        ] = None,
        system_prompt: str | None = None,
        price: Price | None = None,
        thinking_tokens: Annotated[
            int,
            Field(
                ge=1,
                description=(
                    "switch reasoning off in the chat model itself: "
                    "ChatOllama(..., reasoning=False)"
                ),
            ),
        ] = 4096,
    ) -> None:
        if isinstance(model, str) and kind_of(model) != "transformers":
            # LangChain knows some models by their names alone, and newer providers.
            check_argument(model, "ChatModelMember", ["chat model"], "provider:model")
        self._model_name = model if isinstance(model, str) else None
        self._use(chat_model_named(model) if isinstance(model, str) else model)
        self.name = name or name_of(self.model)
        self.max_concurrency = max_concurrency
        self.system_prompt = system_prompt
        self.price = price and (price[0], price[1])
        self.thinking_tokens = thinking_tokens
        self.key_variable = ""
        """The environment variable with the key that the model was given; empty: the model itself
        says which it reads."""
        self._streams: dict[str, OpenStream] = {}
        """Query id -> its open stream."""
        self._refusals: dict[str, dict[Sampling, Failure]] = {}
        """Query id -> its refusals to draft, by sampling. These drafts are not requested again."""

    def _use(self, model: BaseChatModel) -> None:
        """Ask this chat model from now on."""
        self._known = dict(model._get_ls_params())
        self._key = key_of(model)
        self.model = model
        self._ways: list[Way] | None = None
        """How it may continue a text, the best way first, without those that its provider has
        refused; None: not looked up yet."""
        self.is_denied = False
        """Whether the provider has refused the model's key, or what the key may use."""

    def __getstate__(self) -> dict[str, Any]:
        """Its arguments, and how its model continues a text, but no open streams. A model that was
        given by name is created again from its name, because most providers' objects cannot be
        pickled."""
        state = vars(self) | {"_streams": {}}
        return state if self._model_name is None else state | {"model": None}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state)
        if self._model_name is not None:
            self._use(chat_model_named(self._model_name))

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A copy that shares the chat model, which may hold clients and locks."""
        return copy.copy(self)

    is_hosted = True
    """Whether what it reads and writes is part of an answer's cost."""
    waits = True
    """Its work is done elsewhere, so each of its jobs has a thread of its own."""

    @property
    def silence_s(self) -> tuple[float, float] | None:
        """As in :class:`.Member`."""
        return silence_of(self.model)

    def refuse_without_tools(self) -> None:
        """Raise if its model cannot call tools."""
        refuse_without_tools(self.model)

    @property
    def device(self) -> str:
        # Not the chat model's id: it may be created again while its worker has jobs.
        return f"chat model {self.name} {id(self):x}"

    @property
    def spec(self) -> dict[str, Any]:
        """Everything that affects this member's output, as plain JSON. ``settings`` is a digest of
        all settings except secrets."""
        known = {
            key: self._known.get(f"ls_{key}") for key in ("provider", "model_name", "temperature")
        }
        return {
            "chat_model": type(self.model).__name__,
            "system_prompt": self.system_prompt,
            "thinking_tokens": self.thinking_tokens,
            **known,
            "settings": self._key,
        }

    # --- the protocol -----------------------------------------------------------------------------

    def preview(self) -> Probe:
        profile: Mapping[str, Any] = self.model.profile or {}
        # ChatOllama and ChatLlamaCpp open a smaller context than the model could read.
        opened = getattr(self.model, "num_ctx", None) or getattr(self.model, "n_ctx", None)
        return Probe(
            str(self._known.get("ls_model_name", self.name)),
            max_context=opened or profile.get("max_input_tokens"),
            detail=f"{type(self.model).__name__}, votes by ballot",
            ballots=True,
            native=True,
            reasons=profile.get("reasoning_output"),
            # Where the profile does not say, the provider may refuse.
            takes=(*(kind for kind, key in INPUTS.items() if profile.get(key, True)), OTHER),
            unsure=tuple(kind for kind, key in INPUTS.items() if profile.get(key) is None),
        )

    def probe(self) -> Probe:
        return self.preview()

    def draft(self, jobs: Sequence[DraftJob]) -> list[Draft | Failure]:
        return replies(partial(self._answer, "draft"), jobs)

    def score(self, jobs: Sequence[ScoreJob]) -> list[Scored | Failure]:
        return replies(partial(self._answer, "score"), jobs)

    def stream(self, job: DraftJob) -> Iterator[Draft | Failure]:
        """As in :class:`.Member`. The model's own stream stays open for a draft after it, until
        ``forget``."""
        self._read_key_again()
        others: list[Effort] = []
        try:
            yield from self._written(job, others)
        except (MemberError, UsageError) as error:
            yield self._failed(job, error, others)

    def _answer(self, work: Literal["draft", "score"], job: Any) -> Any:
        """The reply to one job."""
        self._read_key_again()
        others: list[Effort] = []
        try:
            if work == "score":
                return self._ballot(job)
            return next(self._written(job, others, job.segment_tokens))
        except (MemberError, UsageError) as error:
            return self._failed(job, error, others)

    def _read_key_again(self) -> None:
        """Chat models read their keys once. If the provider has refused it, the environment may
        have another one now."""
        if self.is_denied and self._model_name is not None:
            self._use(chat_model_named(self._model_name))

    def _failed(
        self, job: Any, error: MemberError | UsageError, others: Sequence[Effort]
    ) -> Failure:
        """``others``: the cost of requests that no draft has reported."""
        failure = Failure.of(error, error.message)
        if failure.kind == REFUSAL and isinstance(job, DraftJob):
            self._refusals.setdefault(job.query.id, {})[job.sampling] = failure
        return replace(failure, effort=sum(others, Effort()))

    def forget(self, query_id: str) -> None:
        self._refusals.pop(query_id, None)
        self._close(query_id)

    def _close(self, query_id: str) -> None:
        stream = self._streams.pop(query_id, None)
        if stream is not None:
            stream.close()

    def unload(self) -> None:
        """Cancel everything in progress, and forget which ways its provider has refused."""
        for query_id in [*self._streams, *self._refusals]:
            self.forget(query_id)
        self._ways = None

    # --- drafts -----------------------------------------------------------------------------------

    def _written(
        self, job: DraftJob, others: list[Effort], size: int | None = None
    ) -> Iterator[Draft | Failure]:
        """What the model writes, as it arrives; with a ``size``, one draft of about that many
        words. ``others`` as for :meth:`_stream_for`."""
        refusal = self._refusals.get(job.query.id, {}).get(job.sampling)
        if refusal is not None:
            yield refusal
            return
        answer = _text_of(job.answer)
        request = Request.of(job.query)
        if request.waits and not answer:
            yield from self._whole(job, request, others)
            return
        stream = self._stream_for(job, answer, request, others)
        place = len(answer)
        drafts: Iterable[Draft]
        if size is None:
            drafts = stream.drafts(answer, job.max_tokens)
        else:
            drafts = [stream.draft(answer, min(size, job.max_tokens), job.max_tokens)]
        for draft in drafts:
            if others:
                draft = replace(draft, effort=sum(others, draft.effort))
                others.clear()
            place += len(draft.text)
            if stream.is_refused_after(place):
                yield self._refused(job, stream, draft)
            else:
                yield draft

    def _refused(self, job: DraftJob, stream: OpenStream, draft: Draft) -> Failure:
        """The failure of a reply that is a refusal, which came with this draft. It is not requested
        again."""
        refusal = Failure(REFUSAL, stream.refusal)
        self._refusals.setdefault(job.query.id, {})[job.sampling] = refusal
        self._close(job.query.id)
        return replace(refusal, effort=draft.effort, parts=draft.parts)

    def _stream_for(
        self, job: DraftJob, answer: str, request: Request, others: list[Effort]
    ) -> OpenStream:
        """The query's open stream if it agrees with the answer, else a new one. The cost of each
        other request that this takes is appended to ``others``."""
        query_id = job.query.id
        stream = self._streams.get(query_id)
        if stream is not None and (stream.sampling, stream.remarks) != (job.sampling, job.remarks):
            stream = None
        if stream is None or not stream.agrees_with(answer):
            self._close(query_id)
            stream = self._streams[query_id] = self._opened(job, answer, request, others)
        return stream

    def _whole(
        self, job: DraftJob, request: Request, others: list[Effort]
    ) -> Iterator[Draft | Failure]:
        """The whole answer, if it has the form that was asked for. It is asked for twice, if the
        budget allows that."""
        _refuse_if_spent(job.budget, self.name)
        messages = self._messages(job, request)
        why = ""
        for _ in range(2):
            if job.budget.after(sum(others, Effort())).is_spent:
                break
            stream = self._asked(messages, self._arguments(job, request), "", job, others)
            draft = stream.draft("", job.max_tokens, job.max_tokens)
            if stream.is_refused_after(len(draft.text)):
                yield self._refused(job, stream, draft)
                return
            if not request.is_json:
                draft = replace(draft, text=draft.text.strip())
            if draft.is_cut or draft.calls or not (why := request.fault_of(draft.text)):
                yield replace(draft, effort=sum(others, draft.effort))
                others.clear()
                return
            others.append(draft.effort)
            messages = asked_again(messages, draft.text, why)
        raise MemberError(f"its answer is not what was asked for: {why}", member=self.name)

    def _opened(
        self, job: DraftJob, answer: str, request: Request, others: list[Effort]
    ) -> OpenStream:
        """A stream of what the model writes next. ``others`` as for :meth:`_stream_for`."""
        _refuse_if_spent(job.budget, self.name)
        if answer.strip():
            return self._continuing(job, answer, request, others)
        messages = self._messages(job, request)
        return self._asked(messages, self._arguments(job, request), answer, job, others)

    def _messages(self, job: DraftJob, request: Request) -> list[BaseMessage]:
        """The messages of a request for an answer from its beginning."""
        messages = request.messages_for(self.model, self.name, self.system_prompt)
        return answered_again(messages, job.remarks)

    def _continuing(
        self, job: DraftJob, answer: str, request: Request, others: list[Effort]
    ) -> OpenStream:
        """A stream of what comes after this answer, in the first way in which the model continues
        it. If a reply starts over, the whole answer is asked for once, in the form that it must
        have."""
        rest = request.without_format() if request.is_json else request
        if self._ways is None:
            self._ways = ways_of(self.model)
        ways, refused, why = list(self._ways), set[Way](), ""
        has_restarted = False
        while ways:
            way = ways.pop(0)
            form = request if way == "anew" else rest
            messages, wholes = _begun(
                form.messages_for(self.model, self.name, self.system_prompt), answer
            )
            arguments = self._arguments(job, form)
            asked, options = asked_to_continue(
                way, messages, wholes[0], self.model, arguments, job.remarks
            )
            opening = Opening(
                wholes, answer, is_instructed=way == "instruct", is_exact=way == "anew"
            )
            parts = self._parts(asked, options, may_be_empty=True, job=job, others=others)
            stream = self._new_stream(_held(parts, opening), answer, job, asked)
            try:
                stream.begin()
            except Restarted:
                log.info("%s starts over, asked in the way %r", self.name, way)
                stream.close()
                others.append(stream.new_effort())
                _refuse_if_spent(job.budget.after(sum(others, Effort())), self.name)
                if not has_restarted:
                    ways.insert(0, "anew")
                has_restarted, why = True, "it starts over"
            except MemberError as error:
                if error.kind != "bad_request":  # it may not take a conversation in this form
                    raise
                log.info("%s refuses the way %r: %s", self.name, way, error)
                refused.add(way)
                why = why or error.message
            else:
                # If all ways are refused, something else is wrong with the request.
                self._ways = [way for way in self._ways if way not in refused]
                return stream
        raise self._cannot_continue(why, is_lead=job.leads)

    def _arguments(self, job: DraftJob, request: Request) -> dict[str, Any]:
        return request.arguments(self.model, self.name) | sampling_of(self.model, job.sampling)

    def _asked(
        self,
        messages: Sequence[BaseMessage],
        arguments: Mapping[str, Any],
        answer: str,
        job: DraftJob,
        others: list[Effort],
    ) -> OpenStream:
        """A stream of the answer from its beginning. ``others`` as for :meth:`_stream_for`."""
        parts = self._parts(
            messages,
            arguments,
            has_tags=not is_alone(job),
            is_whole=Request.of(job.query).is_whole,
            job=job,
            others=others,
        )
        return self._new_stream(parts, answer, job, messages)

    def _new_stream(
        self,
        parts: Iterator[StreamPart],
        before: str,
        job: DraftJob,
        messages: Sequence[BaseMessage],
    ) -> OpenStream:
        return OpenStream(
            parts,
            before,
            _words_in(messages),
            sampling=job.sampling,
            remarks=job.remarks,
            is_lead=is_alone(job),
            broke_off=Request.of(job.query).is_unfinished,
            price=self.price or (0.0, 0.0),
            rest_s=lambda: rest_s(len(self._streams)),
        )

    def _cannot_continue(self, why: str, *, is_lead: bool) -> MemberError:
        # Its own text, if a check or the provider's limit cut that, or text of other members.
        error = MemberError(f"it cannot continue a given text: {why}", member=self.name)
        advice = "add a member that can, such as a .gguf file"
        whole = "or agree on whole answers (method=Method(segment='answer'))"
        if is_lead:
            return advised(error, f"{advice}, {whole}")
        return advised(
            error,
            f"{advice}; so that it need not continue what others write, let it lead "
            f"(lead={self.name!r}), {whole}",
        )

    # --- requests ---------------------------------------------------------------------------------

    def _parts(
        self,
        messages: Sequence[BaseMessage],
        options: Mapping[str, Any],
        may_be_empty: bool = False,
        has_tags: bool = True,
        is_whole: bool = False,
        job: DraftJob | None = None,
        others: list[Effort] | None = None,
    ) -> Iterator[StreamPart]:
        """``others`` as for :meth:`_stream_for`."""
        model = asked = self.model
        may_repeat = False
        if job is not None and job.replaceable:
            asked = asked_once(model)
            may_repeat = job.budget.requests >= 2
        limit, variable = self.thinking_tokens, self.key_variable
        while True:
            reply = Reply(self.name, asked, self._key, limit, variable, may_be_empty, has_tags)
            try:
                yield from reply.parts(messages, options, is_whole=is_whole)
                return
            except MemberError as error:
                if error.kind == "denied" and model is self.model:
                    self.is_denied = True
                pause_s = pause_before_retry(error.__cause__)
                if not may_repeat or reply.has_arrived or pause_s is None:
                    raise
                kind = type(error.__cause__).__name__
            log.info("%s is asked again in %g s (%s)", self.name, pause_s, kind)
            may_repeat = False
            if others is not None:
                others.append(Effort(requests=1))
            wait(pause_s)

    # --- ballots ----------------------------------------------------------------------------------

    def _ballot(self, job: ScoreJob) -> Scored:
        """One number per draft: the log of its share of two ballots, which list the drafts in
        opposite orders."""
        start = time.perf_counter()
        _refuse_if_spent(job.budget, self.name)
        size = len(job.candidates)
        _refuse_too_many(size)
        counts = [DOUBT] * size
        effort = Effort()
        orders = [list(range(size)), list(reversed(range(size)))]
        for order in orders if size > 1 else []:
            messages = self._ballot_messages(job, order)
            # Greedy where the chat model's own settings leave that open.
            parts = self._parts(messages, sampling_of(self.model, Sampling()))
            price = self.price or (0.0, 0.0)
            stream = OpenStream(parts, "", _words_in(messages), price=price)
            reply = stream.first_words(BALLOT_WORDS)
            effort += reply.effort
            letter = chosen_letter(reply.text, [f"\0{number}" for number in order])
            if letter:
                counts[order[LETTERS.index(letter)]] += 1.0
        scores = tuple((math.log(count / math.fsum(counts)),) for count in counts)
        seconds = time.perf_counter() - start
        return Scored(scores, replace(effort, read=effort.output_tokens, seconds=seconds))

    def _ballot_messages(self, job: ScoreJob, order: Sequence[int]) -> list[BaseMessage]:
        """The ballot: the conversation, the answer so far, and the drafts, labelled with
        letters."""
        turns = "\n\n".join(f"{turn.role}: {turn.text}" for turn in job.query.turns)
        attachments = [part for turn in job.query.turns for part in turn.attachments]
        drafts = "\n".join(
            f"{LETTERS[place]}: {_shown(job.candidates[number])}"
            for place, number in enumerate(order)
        )
        text = (
            f"{turns}\n\nThe answer so far: {_text_of(job.answer)!r}\n\n"
            f"Continuations:\n{drafts}\n\n{BALLOT}"
        )
        return [HumanMessage(content_of(text, attachments))]


def _refuse_if_spent(budget: Budget, member: str) -> None:
    if budget.is_spent:
        raise MemberError(
            "the answer's budget (max_calls, max_cost) is spent", member=member, kind=BUDGET
        )


def _held(parts: Iterator[StreamPart], opening: Opening) -> Iterator[StreamPart]:
    """The parts of a reply. Its first words are held until ``opening`` decides what they are."""
    reply = ""
    least: float | None = None
    chunks: list[Any] = []
    for part in parts:
        reply += part.text
        chunks += part.chunks
        if part.least is not None:
            least = part.least if least is None else min(least, part.least)
        empty = part._replace(text="", finish="", chunks=())
        try:
            text = opening.add(part.text, is_over=bool(part.finish))
        except Restarted:
            if part.finish != REFUSAL:
                yield empty._replace(dropped=len(words_of(reply)))
                raise
            text = ""
        if text is not None:
            dropped = max(len(words_of(reply)) - len(words_of(text)), 0)
            shown = (with_text(chunks_joined(chunks), text),) if chunks else ()
            yield part._replace(text=text, least=least, chunks=shown, dropped=dropped)
            break
        if part.thought or any(part.usage) or part.is_silent:
            yield empty
    yield from parts


def _begun(messages: Sequence[BaseMessage], answer: str) -> tuple[Sequence[BaseMessage], list[str]]:
    """The messages before the answer, and the answer's text. If the conversation ends with an
    assistant message, the caller has begun the answer with it; then the text comes twice, with that
    message and without."""
    last = messages[-1] if messages else None
    if not isinstance(last, AIMessage) or last.tool_calls or not last.text:
        return messages, [answer]
    begun = str(last.text)
    return messages[:-1], [begun + joined(begun, answer), answer]


def is_alone(job: DraftJob) -> bool:
    """Whether the job asks for the answer to its end, without a vote on parts of it."""
    return job.leads or job.segment_tokens >= job.max_tokens


def _refuse_too_many(size: int) -> None:
    """Refuse a ballot with more texts than letters."""
    if size > len(LETTERS):
        error = UsageError(f"a ballot lists at most {len(LETTERS)} texts, got {size}")
        advice = (
            "ask about fewer labels at a time, or use members that score texts: in this process, "
            "or on a vLLM or llama.cpp server"
        )
        raise advised(error, advice)


def _text_of(answer: Sequence[Segment]) -> str:
    return "".join(segment.text for segment in answer)


def _words_in(messages: Sequence[BaseMessage]) -> int:
    return sum(len(words_of(message.text)) for message in messages)


def _shown(candidate: Candidate) -> str:
    return f"{candidate.text!r}" + (" (and the answer ends)" if candidate.ended else "")
