"""The LangChain face: one chat model whose answer several members write together.

It turns a call into a query and settings, reads rounds off a queue and hands them on as chunks. All model work happens
on the desks' threads. Knows neither the method (``core``) nor how members work (``members``).
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator, Mapping, Sequence
from contextlib import aclosing, closing
from typing import Any, cast

from langchain_core.callbacks import AsyncCallbackManager, CallbackManager
from langchain_core.language_models.chat_models import agenerate_from_stream, generate_from_stream
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult, LLMResult
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import ContextThreadPoolExecutor

from . import _options, _registry, _shapes, _structured, _tools, _tracing
from ._asking import Call
from ._counting import Counting
from ._errors import langchain_errors, need_asyncio
from ._fields import display_name, members_list
from ._half_read import aclosed, kept
from ._messages import turns_of
from ._native_events import NativeEvents
from ._tally import Tally
from .core.member import Probe
from .core.values import Query
from .engine.desk import settle_here
from .engine.line import Turn

MOST_THREADS = 256
"""A synchronous batch has a thread per question that only waits on a queue; never more than this."""


class SpecFuseChatModel(NativeEvents, Counting):
    """Several LLMs write one answer together, segment by segment.

    >>> from langchain_specfuse import ScriptedMember, SpecFuseChatModel
    >>> llm = SpecFuseChatModel(members=[ScriptedMember("The sky is blue."), ScriptedMember("The sky is wide.")])
    >>> llm.invoke("How is the sky?").text
    'The sky is blue.'

    Fields can be chosen anew for a call (all but LangChain's own): ``llm.invoke(question, temperature=0.7)``,
    ``llm.bind(stop=["\\n"])``, ``configurable_fields``. Members are shared: two chat models that name
    the same member use one copy of its weights.
    """

    # --- answering ----------------------------------------------------------------------------------------------

    def _stream(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: Any = None, **kwargs: Any
    ) -> Iterator[ChatGenerationChunk]:
        scope = _tracing.current_scope(run_manager)
        with langchain_errors():
            call = self._call(messages, stop, kwargs)
            call, tally = self._told(call, call.loaded())
            with scope.answer(**call.about) as account, closing(call.rounds()) as rounds:
                for round in rounds:
                    account.tell(round)
                    yield from tally.chunks(round)

    async def _astream(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: Any = None, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        scope = _tracing.current_scope(run_manager)
        with langchain_errors():
            # A schema may take long to check; the loop must go on meanwhile.
            call = await asyncio.to_thread(self._call, messages, stop, kwargs)
            call, tally = self._told(call, await call.aloaded())
            async with scope.answer(**call.about) as account, aclosing(call.arounds()) as rounds:
                async for round in rounds:
                    await account.atell(round)
                    for chunk in tally.chunks(round):
                        yield chunk

    def _generate(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        return generate_from_stream(self._stream(messages, stop, run_manager, **kwargs))

    async def _agenerate(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        return await agenerate_from_stream(self._astream(messages, stop, run_manager, **kwargs))

    def _call(self, messages: Sequence[BaseMessage], stop: list[str] | None, kwargs: Mapping[str, Any]) -> Call:
        """The question with all that was chosen for it, checked: nothing is loaded yet."""
        chosen = self._chosen(stop, kwargs)
        given = [*chosen["members"], *chosen["verifiers"]]
        names = _registry.names_of(given)
        prior = chosen["prior"] and _options.checked_prior(chosen["prior"], names)
        return Call(
            query=Query(uuid.uuid4().hex, turns_of(messages)),
            settings=_options.settings(chosen),
            ensemble=_registry.ensemble_for(
                chosen["members"], chosen["verifiers"], chosen["memory_budget"], chosen["cluster"]
            ),
            shape=_shapes.shape_of(chosen, stop or ()),
            limits={"prior": prior, "turn": Turn(**{name: chosen[name] for name in _options.TURNS})}
            | {name: chosen[name] for name in _options.LIMITS},
            writers=names[: len(chosen["members"])],
            model=chosen["model"] or display_name(chosen["members"]),
            runners_up=bool(chosen["runners_up"]),
            preset=chosen["preset"],
            trace=chosen["trace"],
        )

    def _told(self, call: Call, probes: Mapping[str, Probe]) -> tuple[Call, Tally]:
        """The call in the words of its members, and what will add its rounds up."""
        self._learn(probes)
        call = call.told(probes)
        return call, call.tally(self.output_version)

    def _chosen(self, stop: list[str] | None, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The fields as they are for this call."""
        now, call = self._now(), _options.checked_call({**kwargs, "stop": stop})
        for name in ("members", "verifiers"):
            if name in call:
                call[name] = members_list(call[name], name)
        call["stop"] = list(dict.fromkeys([*(now["stop"] or []), *call.get("stop", [])]))
        return now | call

    # --- what an answer must be ---------------------------------------------------------------------------------

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
        """This chat model with tools that it may call: functions, ``@tool`` objects, pydantic classes, dicts.

        ``tool_choice``: ``"auto"`` (the members' vote decides), ``"any"``, ``"none"`` or a tool's name. Free to call,
        members may make several calls; made to call, one, unless ``parallel_tool_calls=True``. With
        ``response_format`` the answer is a call or an object of that format.
        """
        choices = {
            "tools": _tools.openai_tools(tools, strict),
            "tool_choice": None if tool_choice is False else tool_choice,
            "parallel_tool_calls": parallel_tool_calls,
            "strict": strict,
            "response_format": response_format,
        }
        bound: Runnable[Any, AIMessage] = self._bound(**kwargs, **{k: v for k, v in choices.items() if v is not None})
        return bound

    def with_structured_output(
        self,
        schema: Any = None,
        *,
        method: str = "json_schema",
        include_raw: bool = False,
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[Any, Any]:
        """This chat model with objects for answers: they are valid under the schema, whoever the members are.

        ``schema``: a pydantic class, a dataclass (objects of it are returned), a TypedDict or a JSON schema (dicts
        are). ``method``: ``"json_schema"``, ``"json_mode"`` (any object if there is no schema) or
        ``"function_calling"``. ``include_raw``: a dict with ``raw``, ``parsed`` and ``parsing_error`` instead.
        """
        return _structured.structured(
            self._bound, self.bind_tools, schema, method=method, include_raw=include_raw, strict=strict, kwargs=kwargs
        )

    def _bound(self, **kwargs: Any) -> Any:
        """``bind``, with everything checked at once and not only when a question comes."""
        stop = _options.stop_strings(kwargs.get("stop") or [])
        chosen = self._chosen(stop, {name: value for name, value in kwargs.items() if name != "stop"})
        _shapes.shape_of(chosen, stop)
        return self.bind(**kwargs)

    # --- the run's own events (see _tracing) --------------------------------------------------------------------

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> AIMessage:
        settle_here()  # here and below: before imports and locks of others, which a forked child may find taken
        return super().invoke(input, config, **kwargs)

    def stream(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Iterator[Any]:
        settle_here()
        config, scope = self._announced(CallbackManager, config, kwargs)
        answer = cast("Generator[Any, None, None]", super().stream(input, config, **kwargs))
        yield from kept(_tracing.first_in(scope, answer))

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> AIMessage:
        settle_here()
        need_asyncio()
        return await super().ainvoke(input, config, **kwargs)

    async def astream(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> AsyncIterator[Any]:
        settle_here()
        need_asyncio()
        config, scope = self._announced(AsyncCallbackManager, config, kwargs)
        answer = cast("AsyncGenerator[Any, None]", super().astream(input, config, **kwargs))
        async with aclosed(kept(_tracing.afirst_in(scope, answer))) as chunks:
            async for chunk in chunks:
                yield chunk

    def _announced(self, manager: Any, config: RunnableConfig | None, kwargs: Mapping[str, Any]) -> Any:
        return _tracing.announced(
            manager,
            config,
            callbacks=self.callbacks,
            verbose=self.verbose,
            tags=self.tags,
            metadata=self.metadata,
            inheritable_metadata=self._get_ls_params_with_defaults(**kwargs),
        )

    def _generate_with_cache(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        with _tracing.scoped(run_manager):
            return super()._generate_with_cache(messages, stop, run_manager, **kwargs)

    async def _agenerate_with_cache(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        with _tracing.scoped(run_manager):
            return await super()._agenerate_with_cache(messages, stop, run_manager, **kwargs)

    # --- many at once -------------------------------------------------------------------------------------------

    def batch(self, inputs: list[Any], config: Any = None, **kwargs: Any) -> list[Any]:
        """All questions at once: whatever waits for a member together is one batch of its work."""
        return super().batch(inputs, _with_room(config, len(inputs)), **kwargs)

    def batch_as_completed(self, inputs: Sequence[Any], config: Any = None, **kwargs: Any) -> Iterator[Any]:
        """All questions at once, answers as they come, each with its place."""
        return super().batch_as_completed(inputs, _with_room(config, len(inputs)), **kwargs)

    def generate(
        self, messages: list[list[BaseMessage]], stop: list[str] | None = None, callbacks: Any = None, **kwargs: Any
    ) -> LLMResult:
        """All conversations at once, each in a run of its own."""
        settle_here()
        if len(messages) < 2:
            return super().generate(messages, stop, callbacks, **kwargs)
        first_id = kwargs.pop("run_id", None)

        def one(conversation: list[BaseMessage], place: int) -> LLMResult:
            return self.generate([conversation], stop, callbacks, run_id=None if place else first_id, **kwargs)

        with ContextThreadPoolExecutor(max_workers=min(len(messages), MOST_THREADS)) as executor:
            results = list(executor.map(one, messages, range(len(messages))))
        return LLMResult(
            generations=[generations for result in results for generations in result.generations],
            llm_output=self._combine_llm_outputs([result.llm_output for result in results]),
            run=[run for result in results for run in result.run or []],
        )

    # --- the members' insides ------------------------------------------------------------------------------------

    def _learn(self, probes: Mapping[str, Probe]) -> None:
        """The profile's context length, known once the members are loaded."""
        lengths = [probe.max_context for probe in probes.values() if probe.max_context]
        if lengths and self.profile is not None:
            self.profile.setdefault("max_input_tokens", min(lengths))

    def unload(self) -> None:
        """Let go of the members' weights, also for other chat models that share them; the next question loads again."""
        who = self._who()
        _registry.unload(*who["members"], *who["verifiers"], cluster=self.cluster)
        self._held = None


def _with_room(config: Any, size: int) -> Any:
    """The config with a thread for every question, unless the caller has set ``max_concurrency``."""
    configs = list(config) if isinstance(config, Sequence) else None
    first: Mapping[str, Any] = (configs[0] if configs else None if configs is not None else config) or {}
    if first.get("max_concurrency") is not None or size < 2:
        return config
    roomy = {**first, "max_concurrency": min(size, MOST_THREADS)}
    return roomy if configs is None else [roomy, *configs[1:]]


ChatSpecFuse = SpecFuseChatModel
