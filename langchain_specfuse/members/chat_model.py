"""ChatModelMember: any LangChain chat model, such as Ollama's or a hosted one. Text in, text out.

A draft is read from the model's own stream, which stays open: as long as this member's drafts are
chosen, its next draft is the next part of that stream. A member that writes alone, or leads and is
not corrected, therefore gives its own answer in one request. When another draft is chosen, the
stream is cancelled, and a new one continues the chosen text; a short trial finds out how this model
does so. It votes by ballot: it sees the drafts under letters, in two orders.
Paper: members vote by likelihood alone; hosted models do not report the likelihood of a given text.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import logging
import math
import re
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Self
from urllib.parse import urlsplit

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    SystemMessage,
)
from langsmith import tracing_context

from ..constraints.rules import respaced
from ..core.answer import kept_tokens
from ..core.letters import LETTERS, chosen_letter
from ..core.member import Probe
from ..core.values import (
    BUDGET,
    REFUSAL,
    Attachment,
    Candidate,
    Constraint,
    Draft,
    DraftJob,
    Effort,
    Failure,
    Sampling,
    Scored,
    ScoreJob,
    Tool,
    Turn,
)
from ..errors import MemberError, UsageError, advised, check_whole_number
from ..secret_values import masked, remember
from .network import status_of, to_reach
from .refusals import REASONS, is_refusal, refusal_in
from .text.continuing import QUOTED, is_undecided, joined, repeatable, repeated_words
from .text.templates import all_as_text, with_system
from .text.thinking import parted
from .threads import each, shown

log = logging.getLogger("langchain_specfuse")

PROVIDERS = (
    *(
        "anthropic",
        "anthropic_bedrock",
        "azure_ai",
        "azure_openai",
        "baseten",
        "bedrock",
        "bedrock_converse",
        "cohere",
    ),
    *(
        "deepseek",
        "fireworks",
        "google_genai",
        "google_vertexai",
        "groq",
        "huggingface",
        "ibm",
        "litellm",
        "meta",
    ),
    *(
        "mistralai",
        "nvidia",
        "ollama",
        "openai",
        "openrouter",
        "perplexity",
        "together",
        "upstage",
        "xai",
    ),
)
"""What may stand before the colon in a name such as ``"ollama:llama3.2"``: the providers of
``init_chat_model``."""
WAYS = ("continue", "instruct")
"""How a model continues a text: as its own unfinished message, or because a message after it asks
for the rest."""
WITHHELD = "The provider's content filter refused to answer."
"""The refusal of a reply that a provider withholds without words."""
GO_ON = (
    "Continue your last message exactly where it stops (after: {!r}). Write only what comes "
    "next; repeat nothing."
)
TRIAL = (Turn("user", "Count the numbers up to ten in words, separated by commas."),)
TRIAL_BEGUN, TRIAL_NEXT = "ten, nine, eight, seven,", "six"
"""The text counts down; a model that starts over instead of continuing it counts up."""
BALLOT = (
    "Which continuation of the answer is the most correct and helpful one? Reply with its "
    "letter alone."
)
BALLOT_WORDS = 12
"""A ballot is read up to this many words."""
DOUBT = 0.1
"""What a ballot adds to each draft's count, so that no draft gets a probability of zero."""
LONG_WORD = 12
"""Longer words, such as addresses, count as several tokens: see :func:`words_of`."""
INPUTS = {
    "image": "image_inputs",
    "file": "pdf_inputs",
    "audio": "audio_inputs",
    "video": "video_inputs",
}
"""Kinds of attachments -> their keys in a chat model's ``profile``."""
_UNSPACED = (
    "\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u1950-\u19ff\u1a20-\u1aaf"  # Thai to Tai Tham
    "\u2e80-\u312f\u3190-\u9fff\uf900-\ufaff\uff00-\uffef"  # Chinese and Japanese
    "\U00010000-\U0010ffff"  # more of them, and emoji
)
"""Characters of scripts without spaces between words, and emoji."""
_WORD = re.compile(rf"(\s{{0,16}})([{_UNSPACED}]|[^\s{_UNSPACED}]*)")
_UNREACHED = {"ConnectError", "ConnectionError", "ModelConnectionError", "APIConnectionError"}
"""Classes of the errors of httpx, Python, langchain-core and the providers' clients."""
_KINDS = {
    "ModelTimeoutError": "timeout",
    "ContextOverflowError": "overflow",
    "ModelNotFoundError": "not_found",
}
_STATUSES = {404: "not_found", 408: "timeout", 413: "overflow"}
"""HTTP statuses and classes of langchain-core that mean a failure of a kind."""


class ChatModelMember:
    """A LangChain chat model as a member, with its own settings, retries and rate limits.

    >>> from langchain_core.language_models import FakeListChatModel
    >>> ChatModelMember(FakeListChatModel(responses=["Hello!"]), name="fake").name
    'fake'

    - ``model``: a chat model, or a name that LangChain's ``init_chat_model`` knows, such as
      ``"ollama:llama3.2"``.
    - ``max_concurrency``: at most this many questions run at the same time.
    - ``system_prompt``: replaces the conversation's system prompt for this member.
    - ``price``: dollars per million input tokens and per million output tokens, for ``max_cost``
      and the trace.
    - ``thinking_tokens``: a model that reasons for longer before its first word leaves the answer.
      A chunk of the stream counts as its words, and as one at least. Reasoning that is not streamed
      is not counted.

    A ``temperature`` above 0 is passed to the chat model; all other settings are those of the chat
    model. As the lead, it counts as sure of a draft only if it returns log-probabilities:
    ``ChatOpenAI(..., logprobs=True)``.
    """

    def __init__(
        self,
        model: Any,
        *,
        name: str | None = None,
        max_concurrency: int = 8,
        system_prompt: str | None = None,
        price: Sequence[float] | None = None,
        thinking_tokens: int = 4096,
    ) -> None:
        self._model_name = model if isinstance(model, str) else None
        self.model = chat_model_named(model) if isinstance(model, str) else model
        if not isinstance(self.model, BaseChatModel):
            error = UsageError(
                "ChatModelMember takes a LangChain chat model or its name, got "
                f"{type(model).__name__}"
            )
            raise advised(error, "for example ChatModelMember('ollama:llama3.2')")
        check_whole_number(
            "max_concurrency", max_concurrency, "leave it out for 8 questions at once"
        )
        check_whole_number(
            "thinking_tokens",
            thinking_tokens,
            "switch reasoning off in the chat model itself: ChatOllama(..., reasoning=False)",
        )
        remember(_settings_of(self.model))
        self._known = dict(self.model._get_ls_params())
        self._key = _key_of(self.model)
        self.name = name or name_of(self.model)
        self.max_concurrency, self.system_prompt, self.price = (
            max_concurrency,
            system_prompt,
            _checked_price(price),
        )
        self.thinking_tokens = thinking_tokens
        self._way: str | None = None
        """How it continues a text; empty: it cannot; None: not tried yet."""
        self._repeats: int | None = 0
        """How many words of the text it repeats when it continues; None: all of them."""
        self._trial = Effort()
        """The cost of trials that no reply has reported yet."""
        self._streams: dict[str, Stream] = {}
        """query -> its open stream."""
        self._refusals: dict[str, dict[Sampling, str]] = {}
        """query -> its refusals to draft, by sampling. These drafts are not requested again."""

    def __getstate__(self) -> dict[str, Any]:
        """Its arguments, and how its model continues a text, without open streams. A model that was
        given by name is made again from its name, because most providers' objects cannot be
        pickled."""
        state = vars(self) | {"_streams": {}, "_trial": Effort()}
        return state if self._model_name is None else state | {"model": None}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state)
        if self._model_name is not None:
            self.model = chat_model_named(self._model_name)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A copy that shares the chat model, which may hold clients and locks."""
        return copy.copy(self)

    is_hosted = True
    """What it reads and writes is part of an answer's cost."""

    @property
    def device(self) -> str:
        return f"chat model {self.name} {id(self.model):x}"

    @property
    def spec(self) -> dict[str, Any]:
        """Everything that affects this member's output, as plain JSON. ``settings``: a digest of
        all settings except secrets."""
        known = {
            key: self._known.get(f"ls_{key}") for key in ("provider", "model_name", "temperature")
        }
        own = {"system_prompt": self.system_prompt, "thinking_tokens": self.thinking_tokens}
        about = {"chat_model": type(self.model).__name__, **own, **known, "settings": self._key}
        return dict(masked(about))

    # --- the protocol -----------------------------------------------------------------------------

    def preview(self) -> Probe:
        profile: Mapping[str, Any] = self.model.profile or {}
        # The context that ChatOllama or ChatLlamaCpp was told to open, not all that the model could
        # read.
        chosen = getattr(self.model, "num_ctx", None) or getattr(self.model, "n_ctx", None)
        name, limit = (
            str(self._known.get("ls_model_name", self.name)),
            chosen or profile.get("max_input_tokens"),
        )
        detail = f"{type(self.model).__name__}, votes by ballot"
        # unknown: the provider refuses
        takes = tuple(kind for kind, key in INPUTS.items() if profile.get(key, True))
        unsure = tuple(kind for kind, key in INPUTS.items() if profile.get(key) is None)
        return Probe(
            name,
            True,
            limit,
            detail,
            reasons=profile.get("reasoning_output"),
            takes=takes,
            unsure=unsure,
        )

    def probe(self) -> Probe:
        return self.preview()

    def draft(self, jobs: Sequence[DraftJob]) -> list[Draft | Failure]:
        return each(jobs, self._draft, self.name, self.max_concurrency)

    def score(self, jobs: Sequence[ScoreJob]) -> list[Scored | Failure]:
        return each(jobs, self._ballot, self.name, self.max_concurrency)

    def forget(self, query_id: str) -> None:
        self._refusals.pop(query_id, None)
        self._close(query_id)

    def _close(self, query_id: str) -> None:
        if (stream := self._streams.pop(query_id, None)) is not None:
            stream.close()

    def unload(self) -> None:
        """Cancel everything in progress. The next job tests again what the model can do."""
        for query_id in [*self._streams, *self._refusals]:
            self.forget(query_id)
        self._way = None

    # --- drafts -----------------------------------------------------------------------------------

    def _draft(self, job: DraftJob) -> Draft | Failure:
        since = time.perf_counter(), time.time()
        answer = "".join(segment.text for segment in job.answer)
        refusals = self._refusals.get(job.query.id, {})
        if job.sampling in refusals:
            return Failure(REFUSAL, refusals[job.sampling])
        stream = self._streams.get(job.query.id)
        if stream is None or stream.sampling != job.sampling or not stream.leads_to(answer):
            self._close(job.query.id)
            try:
                stream = self._streams[job.query.id] = self._opened(job, answer)
            except MemberError as error:
                spent, self._trial = self._trial, Effort()
                return replace(
                    Failure.of(error, str(error)), effort=replace(spent, cost=self._cost_of(spent))
                )
        before = stream.words
        wanted = min(job.segment_tokens, job.max_tokens)
        text, ended = stream.after(answer, wanted, job.max_tokens)
        thought, stream.thought = stream.thought.strip(), ""
        spent, self._trial, took = (
            stream.used() + self._trial,
            Effort(),
            time.perf_counter() - since[0],
        )
        effort = replace(
            spent,
            read=stream.words - before,
            seconds=took,
            began=since[1],
            cost=self._cost_of(spent),
        )
        if stream.is_refused_after(answer + text):
            self._refusals[job.query.id] = {**refusals, job.sampling: stream.refusal}
            self._close(job.query.id)
            return Failure(REFUSAL, stream.refusal, effort=effort)
        tokens = tuple(zlib.crc32(word.encode()) for word in words_of(text)[: job.max_tokens])
        return Draft(
            text, ended, tokens, effort=effort, thought=thought, least=stream.least(answer, text)
        )

    def _opened(self, job: DraftJob, answer: str) -> Stream:
        """What the model says next, as a stream."""
        query = job.query
        self._refuse_if_spent(job)
        messages = self._messages(query.turns, query.tools, query.constraint)
        options = {"temperature": job.sampling.temperature} if job.sampling.temperature > 0 else {}
        # The wanted form demands the text so far; no member wrote it.
        demanded = query.constraint is not None and not any(
            segment.tokens for segment in job.answer
        )
        if demanded or not answer:
            said = self._said(messages, options)
            stream = Stream(said, "", _words_in(messages), query.constraint, sampling=job.sampling)
            if stream.leads_to(answer) or stream.finish == REFUSAL:
                return stream
            stream.close()
            self._trial += stream.used()
        if self._way is None:
            self._way = self._found_way()
        if not self._way:
            what = "it cannot continue text that other members wrote"
            advice = (
                f"let it lead (lead={self.name!r}), or agree on whole answers (segment='answer')"
            )
            if demanded:
                what = (
                    f"its reply did not begin with {answer!r:.80}, as answers must, and it "
                    "cannot continue a text"
                )
                advice = "add a member that can continue a text, such as a .gguf file"
            raise advised(MemberError(what, member=self.name), advice)
        sent = _words_in(messages) + len(words_of(answer))
        said = self._continued(messages, answer, self._way, options, self._repeats)
        return Stream(said, answer, sent, query.constraint, sampling=job.sampling)

    def _refuse_if_spent(self, job: DraftJob | ScoreJob) -> None:
        if not job.new_requests:
            raise MemberError(
                "the answer's budget (max_calls, max_cost) is spent", member=self.name, kind=BUDGET
            )

    def _cost_of(self, effort: Effort) -> float:
        read, written = self.price or (0.0, 0.0)
        return (effort.input_tokens * read + effort.output_tokens * written) / 1e6

    def _messages(
        self,
        turns: Sequence[Turn],
        tools: Sequence[Tool] = (),
        constraint: Constraint | None = None,
    ) -> list[BaseMessage]:
        turns = turns if self.system_prompt is None else with_system(turns, self.system_prompt)
        kinds = {"system": SystemMessage, "assistant": AIMessage}
        texts = all_as_text(turns, tools, constraint)
        return [
            kinds.get(turn.role, HumanMessage)(_content(turn.text, turn.attachments))
            for turn in texts
        ]

    def _continued(
        self,
        messages: Sequence[BaseMessage],
        answer: str,
        way: str,
        options: Mapping[str, Any],
        repeats: int | None = None,
        heard: list[str] | None = None,
    ) -> Iterator[Piece]:
        """What comes after ``answer``, without the text that the model repeats, and with the space
        that belongs there. The beginning of the unchanged reply is appended to ``heard``."""
        kept = answer.rstrip()  # some providers refuse a message that ends with white space
        # The field "prefix" is Mistral's and DeepSeek's; others leave it alone.
        begun = AIMessage(kept, additional_kwargs={"prefix": True} if way == "continue" else {})
        told = [HumanMessage(GO_ON.format(kept[-QUOTED:]))] if way == "instruct" else []
        pieces = self._said([*messages, begun, *told], options)
        repeated = repeatable(kept, repeats)
        said, least = "", None
        for piece in pieces:
            said += piece.text
            least = min((one for one in (least, piece.least) if one is not None), default=None)
            if piece.thought or any(piece.used):
                yield replace(piece, text="", finish="")
            if piece.finish or not is_undecided(said, repeated):
                if heard is not None:
                    heard.append(said)
                text = joined(answer, said, repeated)
                yield replace(piece, text=text, thought="", used=(0, 0), least=least)
                break
        yield from pieces

    def _said(self, messages: Sequence[BaseMessage], options: Mapping[str, Any]) -> Iterator[Piece]:
        """The model's stream as pieces of text and thought; the last one says how it finished."""
        # Some chat models, such as ChatOllama, know a setting only as their own field.
        own = {
            name: value for name, value in options.items() if name in type(self.model).model_fields
        }
        model = self.model.model_copy(update=own) if own else self.model
        rest = {name: value for name, value in options.items() if name not in own}
        chunks, finish = model.stream(list(messages), **rest), ""
        begun, held, thinking, refusal = False, "", 0, ""
        try:
            while thinking <= self.thinking_tokens:
                with tracing_context(enabled=False):  # the round's own spans show what members do
                    chunk = next(chunks, None)
                if chunk is None:
                    break
                if finish != REFUSAL:  # after a refusal, the last chunk may still say "stop"
                    finish = _finish_of(chunk.response_metadata) or finish
                if (refused := refusal_in(chunk)) is not None:
                    finish, refusal = REFUSAL, refusal + refused
                text, thought, used = (
                    str(chunk.text),
                    _thought_in(chunk),
                    chunk.usage_metadata or {},
                )
                if not begun:  # a thought may stand before the text
                    held, count = held + text, len(words_of(text + thought))
                    tagged, text = parted(held) or ("", "")
                    begun, thought = bool(text), thought + tagged
                    # ChatOpenAI leaves out the reasoning field of other servers: its chunks are
                    # empty then.
                    thinking += 0 if begun or finish == REFUSAL else max(1, count)
                if text or thought or used:
                    counted = used.get("input_tokens", 0), used.get("output_tokens", 0)
                    least = _least_of(chunk.response_metadata)
                    yield Piece(text, thought, "", counted, least=least)
        except Exception as raised:
            if not is_refusal(raised):
                raise self._error(raised) from raised
            finish, refusal = REFUSAL, refusal or str(raised)
        finally:
            chunks.close()  # type: ignore[union-attr]
        if not begun:
            thought, text = parted(held, whole=True) or ("", "")
            limit = "its own max_tokens" if finish == "length" and not text else ""
            limit = (
                f"thinking_tokens={self.thinking_tokens}"
                if thinking > self.thinking_tokens
                else limit
            )
            if limit:
                error = MemberError(
                    f"it reasoned up to {limit}, before its first word", member=self.name
                )
                raise advised(error, "raise that limit, or lower the chat model's reasoning effort")
            yield Piece(text, thought)
        if finish == REFUSAL:
            refusal = refusal or WITHHELD
        yield Piece("", "", finish or "stop", refusal=refusal)

    def _error(self, raised: Exception) -> MemberError:
        """A chat model's error as this member's."""
        error = _member_error(raised, self.name)
        if status_of(raised) != 401:
            return error
        variables = " or ".join(dict.fromkeys(self.model.lc_secrets.values()))
        where = f"the environment variable {variables}" if variables else "the key"
        return advised(error, f"check {where}, or the key that the chat model was given")

    def _found_way(self) -> str:
        """The first way in which the model continues to count, or "". Greedy decoding is not needed
        for that."""
        trouble = None
        for way in WAYS:
            heard: list[str] = []
            pieces = self._continued(self._messages(TRIAL), TRIAL_BEGUN, way, {}, heard=heard)
            stream = Stream(pieces, "")
            try:
                said = stream.first(2)
                if stream.finish == REFUSAL:
                    raise MemberError(f"it refused to count: {stream.refusal}", member=self.name)
            except MemberError as error:
                log.info("%s cannot %s: %s", self.name, way, error)
                trouble = error
                continue
            self._trial += stream.used()
            if re.match(rf"\W*{TRIAL_NEXT}\b", said, re.IGNORECASE):
                words = repeated_words(TRIAL_BEGUN, "".join(heard))
                self._repeats = None if words == len(TRIAL_BEGUN.split()) else words
                log.info("%s can %s a text", self.name, way)
                return way
        if trouble is not None:  # it may be temporary, such as a rate limit
            raise trouble
        return ""

    # --- ballots ----------------------------------------------------------------------------------

    def _ballot(self, job: ScoreJob) -> Scored:
        """One number per draft: the log of its share of two ballots, which list the drafts in
        opposite orders."""
        since = time.perf_counter(), time.time()
        self._refuse_if_spent(job)
        counts, effort = [DOUBT] * len(job.candidates), Effort()
        for order in (list(range(len(counts))), list(reversed(range(len(counts))))):
            if len(counts) == 1:
                continue
            asked = self._asked(job, order)
            stream = Stream(self._said(asked, {}), "", _words_in(asked))
            said = stream.first(BALLOT_WORDS)
            effort += stream.used()
            letter = chosen_letter(said, [f"\0{n}" for n in order])
            if letter:
                counts[order[LETTERS.index(letter)]] += 1.0
        logs = tuple((math.log(count / math.fsum(counts)),) for count in counts)
        took = time.perf_counter() - since[0]
        return Scored(
            logs, replace(effort, seconds=took, began=since[1], cost=self._cost_of(effort))
        )

    def _asked(self, job: ScoreJob, order: Sequence[int]) -> list[BaseMessage]:
        """The ballot: the conversation, the answer so far, and the drafts under letters."""
        answer = "".join(segment.text for segment in job.answer)
        turns = "\n\n".join(f"{turn.role}: {turn.text}" for turn in job.query.turns)
        attachments = [one for turn in job.query.turns for one in turn.attachments]
        drafts = "\n".join(
            f"{LETTERS[n]}: {_shown(job.candidates[at])}" for n, at in enumerate(order)
        )
        text = f"{turns}\n\nThe answer so far: {answer!r}\n\nContinuations:\n{drafts}\n\n{BALLOT}"
        return [HumanMessage(_content(text, attachments))]


@dataclass(frozen=True, slots=True)
class Piece:
    """Some of what a model says."""

    text: str
    thought: str = ""
    finish: str = ""
    """Why it stopped, in the last piece."""
    used: tuple[int, int] = (0, 0)
    """Input and output tokens that the provider reports with this piece, in addition to those of
    earlier pieces. Most providers report all of them with one of the last pieces."""
    refusal: str = ""
    """The text of the refusal, in the last piece, if the reply is a refusal."""
    least: float | None = None
    """The lowest log-probability in it, if the model was asked for them
    (``ChatOpenAI(logprobs=True)``)."""


@dataclass
class Stream:
    """What a model says after ``before``, read as far as was needed."""

    pieces: Iterator[Piece]
    before: str
    sent: int = 0
    """The length of the request, in words."""
    constraint: Constraint | None = None
    said: str = ""
    finish: str = ""
    refusal: str = ""
    thought: str = ""
    _raw: str = ""
    _thought_words: int = 0
    """Words of thought."""
    _billed: tuple[int, int] = (0, 0)
    _told: tuple[int, int, int, int] = (0, 0, 0, 0)
    """What :meth:`used` has returned so far: requests, input tokens, output tokens, estimated
    requests."""
    sampling: Sampling | None = None
    """How it was requested: each sample has its own stream."""
    _doubts: list[tuple[int, float]] = field(default_factory=list)
    """For each piece, the length of ``said`` after it and its lowest log-probability."""

    @property
    def words(self) -> int:
        return len(words_of(self._raw)) + self._thought_words

    def leads_to(self, answer: str) -> bool:
        """Whether this answer is what the model has said so far, or what it says next, if it said
        more."""
        if not answer.startswith(self.before):
            return False
        said = answer[len(self.before) :]
        while len(self.said) < len(said) and said.startswith(self.said) and self._more():
            pass
        return self.said.startswith(said) and (
            len(self.said) > len(said) or self.finish in ("", "stop", REFUSAL)
        )

    def first(self, count: int) -> str:
        """Read the first words, and cancel the rest."""
        text, _ = self.after("", count, count)
        self.close()
        return text

    def is_refused_after(self, text: str) -> bool:
        """Whether the model refused after this text, without writing more."""
        return self.finish == REFUSAL and len(text) >= len(self.before) + len(self.said)

    def after(self, answer: str, wanted: int, most: int) -> tuple[str, bool]:
        """About ``wanted`` words after this answer, but at most ``most``, and whether they end the
        answer."""
        at, count = len(answer) - len(self.before), wanted
        while True:
            self._read_beyond(at, count)
            rest = self.said[at:]
            words = words_of(rest)
            if len(words) <= count and self.finish:
                return rest, self.finish == "stop"
            if count >= most:
                return "".join(words[:most]), False
            if kept := cut(rest, count):
                return kept, False
            count = min(2 * count + 8, most)

    def _read_beyond(self, at: int, count: int) -> None:
        """Read until there are more than ``count`` words from this place on, or until the end."""
        while (missing := count + 1 - len(words_of(self.said[at:]))) > 0:
            enough = len(self.said) + missing  # a word has a character or more: count again then
            while len(self.said) < enough:
                if not self._more():
                    return

    def least(self, answer: str, text: str) -> float | None:
        """The lowest log-probability in this text after this answer; None: unknown."""
        begin = len(answer) - len(self.before)
        return min(
            (least for end, least in self._doubts if begin < end <= begin + len(text)), default=None
        )

    def used(self) -> Effort:
        """What the stream has cost since the last call of this method."""
        reported = bool(self.finish) and any(self._billed)
        sent, said = self._billed
        if not reported:
            # Anthropic reports the prompt with the first chunk and most of the reply with the last.
            sent, said = sent or self.sent, max(said, self.words)
        total, before = (1, sent, said, 0 if reported else 1), self._told
        self._told = total
        requests, new_sent, new_said, estimated = (
            now - then for now, then in zip(total, before, strict=True)
        )
        return Effort(
            new_said,
            prompt=sent,
            requests=requests,
            input_tokens=new_sent,
            output_tokens=new_said,
            estimated_requests=estimated,
        )

    def _more(self) -> bool:
        """Read a piece; False: there is none."""
        piece = None if self.finish else next(self.pieces, None)
        if piece is None:
            self.finish = self.finish or "stop"
            return False
        self.thought += piece.thought
        self._raw += piece.text
        # Summed, as LangChain sums the usage of chunks.
        self._billed = self._billed[0] + piece.used[0], self._billed[1] + piece.used[1]
        self.finish, self.refusal = piece.finish, piece.refusal
        self._thought_words += len(words_of(piece.thought))
        self.said = respaced(self.constraint, self.before, self._raw)
        if piece.least is not None:
            self._doubts.append((len(self.said), piece.least))
        return True

    def close(self) -> None:
        """Cancel it: what was not said need not be paid for."""
        try:
            self.pieces.close()  # type: ignore[attr-defined]
        except ValueError:  # another thread is reading it, and finds out by itself
            pass


def words_of(text: str) -> list[str]:
    """The words of a text, each with the white space before it; joined, they are the text. They are
    counted instead of tokens, which are unknown.

    In scripts without spaces (Chinese, Japanese, Thai) each character is a word, and so is each
    emoji. A word of more than ``LONG_WORD`` characters, such as an address, is cut into words of
    four characters, and white space is cut after 16 characters.

    >>> words_of("The sky is\\nblue. "), words_of("天空是蓝的 sky")
    (['The', ' sky', ' is', '\\nblue.', ' '], ['天', '空', '是', '蓝', '的', ' sky'])
    >>> words_of(" https://a.org/b?c=1")
    [' http', 's://', 'a.or', 'g/b?', 'c=1']
    """
    found = []
    for space, word in _WORD.findall(text):
        pieces = [word]
        if len(word) > LONG_WORD:
            pieces = [word[at : at + 4] for at in range(0, len(word), 4)]
        pieces[0] = space + pieces[0]
        found += pieces
    return found[:-1]  # the last match is empty


def cut(text: str, count: int) -> str:
    """The text up to its last safe boundary, of at most ``count`` words; empty if there is none.

    >>> cut("The sky is bl", 9), cut("The sky is blue", 2)
    ('The sky is', 'The sky')
    """
    ends = list(itertools.accumulate(map(len, words_of(text))))
    kept = kept_tokens(text, ends, count)
    return text[: ends[kept - 1]] if kept else ""


def _words_in(messages: Sequence[BaseMessage]) -> int:
    return sum(len(words_of(message.text)) for message in messages)


def _content(text: str, attachments: Sequence[Attachment]) -> Any:
    """The content of a message: its attachments first, as providers advise, then the text."""
    blocks = [json.loads(one.body) for one in attachments]
    return [*blocks, *([{"type": "text", "text": text}] if text else [])] if blocks else text


def _thought_in(chunk: AIMessageChunk) -> str:
    """The reasoning in a chunk. LangChain's blocks lack it if an OpenAI-like server sends it in a
    separate field."""
    found = "".join(
        str(block.get("reasoning", ""))
        for block in chunk.content_blocks
        if block["type"] == "reasoning"
    )
    fields = (chunk.additional_kwargs.get(name) for name in ("reasoning_content", "reasoning"))
    return found or next((field for field in fields if isinstance(field, str)), "")


def _settings_of(model: BaseChatModel) -> dict[str, Any]:
    """The fields of a chat model that its own class adds to ``BaseChatModel``."""
    names = sorted(type(model).model_fields.keys() - BaseChatModel.model_fields.keys())
    return {name: getattr(model, name) for name in names}


def _key_of(model: BaseChatModel) -> str:
    """A digest of a chat model's settings. LangChain's own key is not enough: for a ChatOllama it
    contains only the class. Secrets are left out: they do not change an answer, and a short one
    could be guessed from the digest."""
    own: dict[str, Any] = {}
    for name, value in _settings_of(model).items():
        with suppress(TypeError, ValueError):  # a SecretStr or a client is not JSON
            own[name] = json.dumps(masked({name: value}), sort_keys=True)
    kind, params = type(model), masked(model._get_invocation_params())
    text = json.dumps([kind.__module__, kind.__qualname__, params, own], default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _member_error(raised: Exception, name: str) -> MemberError:
    """A chat model's error as its member's. If no server was reached, it says which."""
    classes = {one.__name__ for one in type(raised).__mro__}
    kind = next((_KINDS[one] for one in _KINDS if one in classes), "error")
    kind = _STATUSES.get(status_of(raised) or 0, kind) if kind == "error" else kind
    kind = "timeout" if isinstance(raised, TimeoutError) else kind
    error = MemberError(shown(raised), member=name, kind=kind)
    if kind != "error" or not classes & _UNREACHED:
        return error
    try:
        address = urlsplit(str(raised.request.url))  # type: ignore[attr-defined]
    except (AttributeError, RuntimeError):  # httpx raises the latter if there is none
        return advised(
            error, "check the network connection, and the address that the chat model was given"
        )
    url = f"{address.scheme}://{address.hostname}" + (f":{address.port}" if address.port else "")
    error = MemberError(f"its server at {url} cannot be reached ({shown(raised)})", member=name)
    return advised(error, to_reach(url))


def _finish_of(metadata: Mapping[str, Any]) -> str:
    """Why a model stopped, in one word for all providers."""
    reason = str(
        metadata.get("finish_reason")
        or metadata.get("stop_reason")
        or metadata.get("done_reason")
        or metadata.get("stopReason")
        or ""
    )
    kinds = {"": "", "length": "length", "max_tokens": "length", **dict.fromkeys(REASONS, REFUSAL)}
    return kinds.get(reason.lower(), "stop")  # such as end_turn, eos_token


def _least_of(metadata: Mapping[str, Any]) -> float | None:
    """The lowest log-probability in a chunk, as OpenAI's and Ollama's interfaces give them."""
    found = metadata.get("logprobs") or []
    tokens = (found.get("content") or []) if isinstance(found, Mapping) else found
    return min((float(one["logprob"]) for one in tokens), default=None)


def _shown(candidate: Candidate) -> str:
    return f"{candidate.text!r}" + (" (and the answer ends)" if candidate.ended else "")


def _checked_price(price: Any) -> tuple[float, float] | None:
    if price is None:
        return None
    try:
        read, written = map(float, price)
    except (TypeError, ValueError):
        read = written = math.nan
    if not (0 <= read < math.inf and 0 <= written < math.inf):
        error = UsageError(f"price must be two numbers of at least 0, got {price!r:.80}")
        raise advised(
            error,
            "dollars per million input tokens and per million output tokens: price=(0.4, 1.6)",
        )
    return read, written


def name_of(model: BaseChatModel) -> str:
    """The last part of the model's name, else its class's."""
    found = str(model._get_ls_params().get("ls_model_name") or type(model).__name__)
    return found.rstrip("/").rsplit("/", 1)[-1]


def chat_model_named(name: str) -> BaseChatModel:
    """The chat model that LangChain creates from a name such as ``"ollama:llama3.2"``."""
    package = f"langchain-{name.partition(':')[0].replace('_', '-')}"
    try:
        from langchain.chat_models import init_chat_model
    except ModuleNotFoundError as error:
        missing = UsageError(f"a member named {name!r} needs langchain and {package}")
        raise advised(missing, f"pip install langchain {package}") from error
    try:
        return init_chat_model(name)
    except ImportError as error:
        wrong = UsageError(f"a member named {name!r} needs {package}, which is not installed")
        raise advised(wrong, f"pip install {package}") from error
    except Exception as error:
        wrong = UsageError(
            f"LangChain could not create a chat model from {name!r}: {type(error).__name__}: "
            f"{error}"
        )
        advice = "create it yourself and pass the object: members=[ChatOpenAI(...)]"
        key = re.search(r"\b[A-Z][A-Z0-9_]*_(?:KEY|TOKEN)\b", str(error))
        if key:
            advice = f"set the environment variable: export {key[0]}=...; or in Python {advice}"
        raise advised(wrong, advice) from error
