"""The LangChain chat model: validates a call, makes a question of it, and turns the rounds of its
answer into chunks.

Models run on the workers' threads; the caller's thread only reads rounds. The method is in
``core``, the members are in ``members``.
"""

from __future__ import annotations

import asyncio
import logging
import math
import warnings
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import aclosing, closing
from functools import partial
from typing import Any, Self

from langchain_core.callbacks import AsyncCallbackManager, CallbackManager
from langchain_core.language_models.chat_models import (
    BaseChatModel,
    agenerate_from_stream,
    generate_from_stream,
)
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGenerationChunk
from langchain_core.runnables import Runnable, RunnableConfig
from pydantic import ConfigDict, PrivateAttr, model_validator

from .._version import __version__
from ..core.checks import as_checks
from ..core.member import Probe
from ..core.options import Method
from ..core.round import Round
from ..core.rounds import OVERFLOW
from ..core.values import CallFormat
from ..engine.ensemble import Ensemble
from ..engine.worker import note_question
from ..errors import UsageError, advised
from ..members.chat_model.member import INPUTS
from . import members as _members
from . import messages as _messages
from . import shape as _shape
from . import structured as _structured
from .call_text import Splitter, marked, reason_of
from .chunks import AnswerChunks
from .errors import langchain_errors
from .functions import check_id, function_id
from .options import NOT_FOR_A_CALL, STRUCTURED, Call, Options, translated_fields
from .question import Question, aloaded, loaded, warn_where_votes_decide_nothing
from .references import has_chat_model, names_of
from .report import Report, RunScope, Summary
from .schemas import openai_tools

log = logging.getLogger("langchain_specfuse")

MAX_THREADS = 256
"""The most threads of a synchronous batch, which has one thread per question. The threads only
wait."""
_SAME_ANSWER = ("trace", "max_concurrency", "max_waiting", "run_scope")
"""Options of a call that do not change the answer."""
_ELSEWHERE = frozenset(
    {
        *NOT_FOR_A_CALL,
        *("trace", "max_concurrency", "timeout"),
        *("members", "model_name", "method", "stop"),
    }
)
"""Fields that do not change the answer, or that have other names in the identifying parameters."""


class _Profile(dict[str, Any]):
    """A profile that remembers which of its values the user gave, also in copies."""

    def __init__(self, default: Mapping[str, Any], chosen: Mapping[str, Any]) -> None:
        super().__init__({**default, **chosen})
        self._before = dict(self)
        self._chosen = dict(chosen)

    @property
    def chosen(self) -> dict[str, Any]:
        """The values that the user gave, or has changed since."""
        unchanged = {key for key, value in self._before.items() if self.get(key) == value}
        return {key: self[key] for key in self if key in self._chosen or key not in unchanged}


class SpecFuseChatModel(Options, BaseChatModel):
    """One chat model around several models.

    One leads and the others are in reserve, or all of them vote; checks judge text before it is
    shown.

    >>> from langchain_specfuse import ScriptedMember, SpecFuseChatModel
    >>> llm = SpecFuseChatModel(
    ...     members=[ScriptedMember("The sky is blue."), ScriptedMember("The sky is wide.")]
    ... )
    >>> llm.invoke("How is the sky?").text
    'The sky is blue.'

    All fields but ``calibration`` and LangChain's own can be chosen for a call too:
    ``llm.invoke(question, temperature=0.7)``, ``llm.bind(stop=["\\n"])``, ``configurable_fields``.
    Members are shared: two chat models that name the same member use one copy of its weights.
    """

    model_config = ConfigDict(frozen=False, extra="ignore")
    __hash__ = None  # type: ignore[assignment]

    _held: Ensemble | None = PrivateAttr(default=None)
    """Keeps the ensemble of member objects alive between questions."""
    _reached: set[str] = PrivateAttr(default_factory=set)
    """The options whose limits have cut an answer."""
    _checks_calls: bool = PrivateAttr(default=True)
    """Whether finished calls are checked against their schema. An endpoint does not check them: a
    schema from a stranger can make a check run forever."""

    def __init__(self, **fields: Any) -> None:
        profile = fields.get("profile")
        if isinstance(profile, _Profile):  # of a copy
            fields = {**fields, "profile": profile.chosen}
        super().__init__(**translated_fields(fields, type(self).model_fields))
        Call.of(self)  # the rules across fields are those of a call
        everybody = self.members + self.method.verifiers
        if not any(isinstance(member, str) for member in everybody):
            self._held = _members.ensemble_for(self.members, self.method.verifiers)
        known = _members.previews(everybody)
        writers = list(known)[: len(self.members)]
        self._learn([known[name] for name in writers])
        if self.lead != "auto" or self.method.margin != math.inf:
            named = dict(zip(known, everybody, strict=True))
            warn_where_votes_decide_nothing(named, writers, known)

    @model_validator(mode="after")
    def _set_specfuse_version(self) -> Self:
        self._add_version("langchain-specfuse", __version__)
        return self

    # --- answering --------------------------------------------------------------------------------

    def _stream(
        self,
        messages: Any,
        stop: Any = None,
        run_manager: Any = None,
        run_scope: Any = None,
        is_whole: bool = False,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        with langchain_errors():
            call = self._checked(stop, run_scope, **kwargs)
            question = Question.of(messages, call, stop, kwargs, is_whole=is_whole)
            probes = loaded(question.ensemble, question.call)
            scope = RunScope.of(run_manager, run_scope)
            format, chunks, report = self._outputs(question, probes, scope, kwargs)
            answered = question.rounds(format, scope.child_config())
            with report, closing(answered) as rounds:  # type: ignore[type-var]
                report.begin()
                for round in rounds:
                    report.add(round)
                    self._warn_of_limit(round, question.call, report.summary)
                    yield from chunks.of(round)

    async def _astream(
        self,
        messages: Any,
        stop: Any = None,
        run_manager: Any = None,
        run_scope: Any = None,
        is_whole: bool = False,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        with langchain_errors():
            call = self._checked(stop, run_scope, **kwargs)
            ask = partial(Question.of, messages, call, stop, kwargs, is_whole=is_whole)
            # A schema can take long, and so can making members from their names.
            is_slow = kwargs or self.calibration or self._held is None
            question = await asyncio.to_thread(ask) if is_slow else ask()
            probes = await aloaded(question.ensemble, question.call)
            scope = RunScope.of(run_manager, run_scope)
            format, chunks, report = self._outputs(question, probes, scope, kwargs)
            answered = await question.arounds(format, scope.child_config())
            async with report, aclosing(answered) as rounds:  # type: ignore[type-var]
                await report.abegin()
                async for round in rounds:
                    await report.aadd(round)
                    self._warn_of_limit(round, question.call, report.summary)
                    for chunk in chunks.of(round):
                        yield chunk

    def _warn_of_limit(self, last: Round, call: Call, summary: Summary) -> None:
        """Warn of an answer that a limit has cut, once for this chat model and option."""
        if last.finish != "length":
            return
        option, value = "max_tokens", f"={call.max_tokens or call.budget()}"
        reason, advice = "cut at {}", "raise {}"
        if last.winner in last.looped:
            option, reason = "loop_guard", "ended because it only repeated itself"
            advice = (
                "set repetition_penalty=1.1; to let it go on, max_tokens= and "
                "method=Method(loop_guard=False)"
            )
        elif last.stalled:
            option = summary.budget_spent(call.max_calls, call.max_cost)
            value = f"={getattr(call, option)}" if option else ""
            if not option:
                reason = "cut because no member could continue it"
                advice = f"{OVERFLOW}; if a format is asked for, describe it in the prompt"
        elif last.segment.is_cut and call.max_tokens is None:
            option, value = f"the max_tokens of {last.member}", ""
        if option not in self._reached:
            self._reached.add(option)
            log.warning(
                "an answer was %s, so its finish reason is 'length'; later ones are not reported"
                "\n-> %s",
                reason.format(option + value),
                advice.format(option),
            )

    def _checked(
        self, stop: Sequence[str] | None = None, run_scope: RunScope | None = None, **options: Any
    ) -> Call:
        """A call with these options, validated now or when its stream began."""
        if run_scope is not None and run_scope.call is not None:
            return run_scope.call
        # LangChain asks for this before it starts a run, so a forked process is refused before it
        # waits for import locks, and invalid options are refused before a tracer sees them.
        note_question()
        return self._call(stop, options)

    @langchain_errors()
    def _call(
        self, stop: Sequence[str] | None = None, options: Mapping[str, Any] | None = None
    ) -> Call:
        """A call with these options, validated."""
        return Call.of(self, stop, options)

    def _outputs(
        self,
        question: Question,
        probes: Mapping[str, Probe],
        scope: RunScope,
        options: Mapping[str, Any],
    ) -> tuple[CallFormat, AnswerChunks, Report]:
        """The format of tool calls, the chunks and the report. Only the model's own members, not
        those of a call, complete the profile."""
        if not options.keys() & {"members", "model"}:
            self._learn([probes.get(name) for name in question.writers])
        call, format = question.call, question.call_format(probes)
        report = Report(
            scope,
            is_traced=call.trace != "off",
            members=question.writers,
            verifiers=question.verifiers,
            method=call.method,
            checks=[check.name for check in call.judges],
            routing=question.who_leads(probes),
        )
        chunks = AnswerChunks(
            report.summary,
            question.model_name,
            v1=self.output_version == "v1",
            seed=call.seed if call.temperature else None,
            splitter=self._splitter(question, format),
            reasoning=call.reasoning,
            logprobs=call.logprobs,
            hosted=question.hosted,
            unpriced=question.unpriced,
        )
        return format, chunks, report

    def _splitter(self, question: Question, format: CallFormat) -> Splitter | None:
        """Separates the calls of an answer from its text. None: the answer may not call a tool."""
        shape = question.shape
        if not shape.tools:
            return None
        anywhere = not shape.begins_with_call
        lone = [tool.name for tool in shape.tools] if anywhere else []
        if self._checks_calls:
            return Splitter(format, anywhere=anywhere, fault=shape.fault, lone=lone)
        lone = [name for name in lone if name not in shape.strict]
        return Splitter(format, anywhere=anywhere, fault=None, lone=lone)

    def _generate(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> Any:
        chunks = self._stream(messages, stop, run_manager, is_whole=True, **kwargs)
        return generate_from_stream(chunks)

    async def _agenerate(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> Any:
        chunks = self._astream(messages, stop, run_manager, is_whole=True, **kwargs)
        return await agenerate_from_stream(chunks)

    # LangChain calls _stream without the run manager in stream(), astream() and wherever invoke()
    # streams. So here the run's scope is passed along as one more argument.

    def stream(
        self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
    ) -> Iterator[Any]:
        config, scope = RunScope.of_stream(CallbackManager, config, self, kwargs)
        return super().stream(input, config, **kwargs, run_scope=scope)

    def astream(
        self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[Any]:
        config, scope = RunScope.of_stream(AsyncCallbackManager, config, self, kwargs)
        return super().astream(input, config, **kwargs, run_scope=scope)

    def _generate_with_cache(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> Any:
        kwargs["run_scope"] = RunScope.of(run_manager)
        result = super()._generate_with_cache(messages, stop, run_manager, **kwargs)
        return _with_reasons(result)

    async def _agenerate_with_cache(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> Any:
        kwargs["run_scope"] = RunScope.of(run_manager)
        result = await super()._agenerate_with_cache(messages, stop, run_manager, **kwargs)
        return _with_reasons(result)

    def invoke(
        self, input: Any, config: RunnableConfig | None = None, *, stop: Any = None, **kwargs: Any
    ) -> AIMessage:
        """Ask a question and return the whole answer."""
        return _with_cost(super().invoke(input, config, stop=stop, **kwargs))

    async def ainvoke(
        self, input: Any, config: RunnableConfig | None = None, *, stop: Any = None, **kwargs: Any
    ) -> AIMessage:
        """The asynchronous ``invoke``."""
        return _with_cost(await super().ainvoke(input, config, stop=stop, **kwargs))

    def batch(self, inputs: list[Any], config: Any = None, **kwargs: Any) -> list[Any]:
        """Ask all questions at once. Jobs that wait for a member at the same time share a batch."""
        return super().batch(inputs, _all_at_once(config, len(inputs)), **kwargs)

    def batch_as_completed(
        self, inputs: Sequence[Any], config: Any = None, **kwargs: Any
    ) -> Iterator[Any]:
        """Ask all questions at once. Yields each answer when it is complete, with its index."""
        return super().batch_as_completed(inputs, _all_at_once(config, len(inputs)), **kwargs)

    # --- what an answer must look like ------------------------------------------------------------

    @langchain_errors()
    def bind_tools(
        self,
        tools: Sequence[Any],
        *,
        tool_choice: Any = None,
        strict: bool | None = None,
        parallel_tool_calls: bool | None = None,
        response_format: Any = None,
        **kwargs: Any,
    ) -> Runnable[Any, AIMessage]:
        """Return this chat model with tools that it may call: functions, ``@tool`` objects,
        pydantic classes or dicts.

        ``tool_choice``: ``"auto"`` (the members' vote decides), ``"any"``, ``"none"`` or a tool's
        name. With ``"auto"``, members may make several calls. If a call is forced, they make one,
        unless ``parallel_tool_calls=True``. With ``response_format`` the answer is a call or an
        object of that format.
        """
        hosted = has_chat_model(self.members)
        converted = openai_tools(tools, strict, hosted=hosted)
        choices = {
            # LangChain's chat models convert tools themselves.
            "tools": list(tools) if hosted else converted,
            "tool_choice": None if tool_choice is False else tool_choice,
            "parallel_tool_calls": parallel_tool_calls,
            "strict": strict,
            "response_format": response_format,
        }
        chosen = {name: value for name, value in choices.items() if value is not None}
        return self._bound(**kwargs, **chosen)

    @langchain_errors()
    def with_structured_output(
        self,
        schema: Any = None,
        *,
        method: str | None = None,
        include_raw: bool = False,
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[Any, Any]:
        """Return a runnable whose answers are objects, valid under the schema with any members.

        ``schema`` is a pydantic class or a dataclass (the answer is an instance), or a TypedDict or
        a JSON schema (the answer is a dict). ``method`` is ``"json_schema"``, ``"json_mode"`` (any
        object if there is no schema) or ``"function_calling"`` (default: that of the chat model
        that leads; for other members ``"json_schema"``). With ``include_raw``, the answer is
        a dict with ``raw``, ``parsed`` and ``parsing_error``.
        """
        return _structured.structured(
            self._bound,
            self.bind_tools,
            schema,
            method=method,
            include_raw=include_raw,
            strict=strict,
            kwargs=kwargs,
        )

    @langchain_errors()
    def _bound(self, **kwargs: Any) -> Runnable[Any, AIMessage]:
        """``bind``, with all options checked now instead of at the first question."""
        call = self._call(None, kwargs)
        _shape.shape_of(call, (call.stop or ()) if kwargs.get("stop") else ())
        bound: Runnable[Any, AIMessage] = self.bind(**kwargs)
        return bound

    # --- counting tokens --------------------------------------------------------------------------

    def get_token_ids(self, text: str) -> list[int]:
        """The text in the first member's tokens."""
        if self.custom_get_token_ids is not None:
            return self.custom_get_token_ids(text)
        first = self._first_member()
        if not hasattr(first, "token_ids"):
            error = UsageError(
                f"the first member, {first.name!r}, has no tokenizer in this process"
            )
            raise advised(
                error, "set custom_get_token_ids=, or put a member with a tokenizer first"
            )
        return list(first.token_ids(text))

    def get_num_tokens(self, text: str) -> int:
        """The text's length in the first member's tokens. If that member cannot count tokens, four
        bytes are counted as one."""
        if self.custom_get_token_ids is None and not hasattr(self._first_member(), "token_ids"):
            warnings.warn(
                "The first member has no tokenizer here: counting four bytes as a token.",
                stacklevel=2,
            )
            return _messages.estimated_tokens([text])
        return len(self.get_token_ids(text))

    def get_num_tokens_from_messages(self, messages: list[BaseMessage], tools: Any = None) -> int:
        """The prompt's length in the first member's tokens, with its chat template if it has
        one."""
        turns = _messages.turns_of(messages)
        described = _shape.tools_of(openai_tools(tools or []))
        first = self._first_member()
        if self.custom_get_token_ids is None and hasattr(first, "token_count"):
            counted = (turns, described) if described else (turns,)
            return int(first.token_count(*counted))
        return sum(self.get_num_tokens(text) for text in _messages.texts_of(turns, described))

    def _first_member(self) -> Any:
        call = self._call()
        ensemble = _members.ensemble_for(call.members, call.method.verifiers)
        # on its own worker: a member that loads itself would do it on the caller's thread
        loaded(ensemble, call)
        return ensemble.members[(ensemble.order(call) or list(ensemble.members))[0]]

    # --- identity, for caches and traces ----------------------------------------------------------

    @property
    def _llm_type(self) -> str:
        return "specfuse"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        """Everything that can change the answer, as plain JSON. It is the key of caches and a part
        of traces."""
        return self._identity(self._call())

    def _identity(self, call: Call) -> dict[str, Any]:
        identities = _members.identities([*call.members, *call.method.verifiers])
        drafting = len(call.members)
        options = {name: getattr(call, name) for name in sorted(Options.model_fields)}
        others = {name: value for name, value in options.items() if name not in _ELSEWHERE}
        if call.lead_id is not None:
            others["calibration"] = call.lead_id
        method = {**_plain(call.method), "verifiers": identities[drafting:]}
        return {
            "model": call.model_name or "+".join(call.writers),
            "members": identities[:drafting],
            "method": method,
            **_without_address(others),
            # Not "stop": LangChain writes the call's own stop strings under that name.
            "default_stop": call.stop,
            "output_version": self.output_version,
        }

    def _get_invocation_params(
        self, stop: list[str] | None = None, run_scope: Any = None, **kwargs: Any
    ) -> dict[str, Any]:
        plain = _shape.as_plain_data(kwargs)
        options = _without_address(_members.with_identities(plain))
        if options.get("method") is not None:
            options["method"] = self._identity(self._call(None, kwargs))["method"]
        own = self._call() if kwargs or stop is not None else self._checked(stop, run_scope)
        return {**self._identity(own), "_type": self._llm_type, "stop": stop, **options}

    def _get_llm_string(self, stop: list[str] | None = None, **kwargs: Any) -> str:
        # LangChain's own method uses the serialized form, which leaves out members that are
        # objects.
        kwargs = {name: value for name, value in kwargs.items() if name not in _SAME_ANSWER}
        params = self._get_invocation_params(stop=stop, **kwargs)
        # A chat model that leads is asked for an object in another way.
        params["structured_by"] = kwargs.get(STRUCTURED, {}).get("method")
        return str(sorted(params.items(), key=lambda item: item[0]))

    def _get_ls_params(
        self, stop: list[str] | None = None, run_scope: Any = None, **kwargs: Any
    ) -> Any:
        call = self._checked(stop, run_scope, **kwargs)
        options = {name: value for name, value in kwargs.items() if value is not None}
        params = super()._get_ls_params(call.stop or None, **options)
        params["ls_provider"] = _messages.PROVIDER
        params.setdefault("ls_model_name", "+".join(call.writers))
        if leading := _members.leading_chat_model(call):
            of_lead = leading._get_ls_params()
            params["ls_provider"] = of_lead.get("ls_provider", params["ls_provider"])
            if not call.model_name and "ls_model_name" in of_lead:
                params["ls_model_name"] = of_lead["ls_model_name"]
        # LangChain adds this to every run. It is here because the events of a stream have it, too.
        params["ls_integration"] = "langchain_chat_model"
        return params

    def _resolve_model_profile(self) -> Any:
        able = ("text_inputs", "text_outputs", "tool_calling", "tool_choice", "tool_call_streaming")
        values = dict.fromkeys((*able, "structured_output", "temperature"), True)
        return _Profile(values | dict.fromkeys(INPUTS.values(), False), {})

    def _learn(self, writers: Collection[Probe | None]) -> None:
        """Compute the profile from what is known about the model's own drafting members. Of the old
        profile, only the values that the user gave are kept."""
        values = dict(self._resolve_model_profile())
        known = [probe for probe in writers if probe is not None]
        if len(known) == len(writers):
            reasoning = {probe.reasons for probe in known}
            lengths = [probe.max_context for probe in known]
            if any(lengths):
                values["max_input_tokens"] = min(filter(None, lengths))
            if True in reasoning or None not in reasoning:
                values["reasoning_output"] = True in reasoning
            values |= {
                key: all(kind in probe.takes and kind not in probe.unsure for probe in known)
                for kind, key in INPUTS.items()
            }
        profile: Any = self.profile or {}
        chosen = profile.chosen if isinstance(profile, _Profile) else profile
        self.profile = _Profile(values, chosen)  # type: ignore[assignment]

    # --- copies and serialization -----------------------------------------------------------------

    @classmethod
    def is_lc_serializable(cls) -> bool:
        return True

    def to_json(self) -> Any:
        """The chat model as JSON, if its members are names and it has no checks. Otherwise,
        LangChain's form of "not implemented"."""
        is_plain = _are_names(self.members) and not self.checks
        if not is_plain or not _are_names(self._call().method.verifiers):
            return self.to_json_not_implemented()
        return super().to_json()

    @classmethod
    def get_lc_namespace(cls) -> list[str]:
        return ["langchain_specfuse"]

    @property
    def lc_attributes(self) -> dict[str, Any]:
        """The method as plain data."""
        return {"method": {"name": "robust", **self._call().method.changes}}

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        return self.model_copy()

    def __getstate__(self) -> dict[Any, Any]:
        return {
            **super().__getstate__(),
            "__pydantic_private__": {
                "_held": None,
                "_checks_calls": self._checks_calls,
                "_reached": set(),
            },
        }

    def __repr_args__(self) -> Any:
        yield "members", names_of(self.members)
        if self.method.verifiers:
            yield "verifiers", names_of(self.method.verifiers)
        hidden = {"members", "profile", "metadata"}
        if not self.checks:
            hidden.add("checks")
        for name, value in super().__repr_args__():
            if name not in hidden:
                yield name, value

    def unload(self) -> None:
        """Free the members' weights, also for other chat models that share them; the next question
        loads them again."""
        call = self._call()
        _members.unload(*call.members, *call.method.verifiers)
        self._held = None


def _are_names(members: Sequence[Any]) -> bool:
    return all(isinstance(member, str) for member in members)


def _with_reasons(result: Any) -> Any:
    """The result with the reason as ``error`` of each invalid tool call, where LangChain puts none,
    and with the arguments as they were written. Nothing parses the arguments of a whole message
    again, as LangChain does in a stream."""
    for generation in result.generations:
        message = generation.message
        for call in getattr(message, "invalid_tool_calls", ()):
            _give_reason(call)
        for block in message.content if isinstance(message.content, list) else ():
            if isinstance(block, dict) and block.get("type") == "tool_call_chunk":
                _give_reason(block)
    return result


def _give_reason(call: Any) -> None:
    arguments = call.get("args") or ""
    if reason := reason_of(arguments):
        call["type"] = "invalid_tool_call"
        call["error"] = call.get("error") or reason
        call["args"] = arguments.removesuffix(marked(reason))


def _all_at_once(config: Any, size: int) -> Any:
    """The config with a thread for every question, unless the caller has set
    ``max_concurrency``."""
    configs = list(config) if isinstance(config, Sequence) else [config] * min(size, 1)
    first: Mapping[str, Any] = (configs[0] if configs else None) or {}
    if first.get("max_concurrency") is not None or size < 2:
        return config
    first = {**first, "max_concurrency": min(size, MAX_THREADS)}
    return [first, *configs[1:]] if isinstance(config, Sequence) else first


def _plain(method: Method) -> dict[str, Any]:
    """The method as plain JSON for cache keys and traces, in which infinity is the text ``inf``. A
    function has its identity instead of its address, which another function may get later."""
    plain = {name: "inf" if value == math.inf else value for name, value in method}
    if callable(method.result):
        plain["result"] = function_id(method.result)
    return plain


def _without_address(options: dict[str, Any]) -> dict[str, Any]:
    """The options for cache keys and traces: the identity of checks instead of their address."""
    plain = dict(options)
    if plain.get("checks"):
        plain["checks"] = [check_id(check) for check in as_checks(plain["checks"])]
    return plain


def _with_cost(message: AIMessage) -> AIMessage:
    """The message with its cost in ``usage_metadata``, where LangChain puts 0 for an answer from
    its cache.

    It is added only here, because LangChain adds up the usage of chunks and answers in integers.
    """
    cost = message.response_metadata.get("specfuse", {}).get("total_cost")
    usage: Any = message.usage_metadata
    if cost is None or not usage or "total_cost" in usage:
        return message
    return message.model_copy(update={"usage_metadata": {**usage, "total_cost": cost}})


ChatSpecFuse = SpecFuseChatModel
