"""From messages and a call to a query for the members, and its rounds."""

from __future__ import annotations

import asyncio
import math
import secrets
import time
import uuid
import warnings
from collections.abc import AsyncIterator, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from langchain_core.messages import BaseMessage

from ..core.ballot import largest
from ..core.checks import CheckContext, CheckJob
from ..core.member import Probe
from ..core.options import Settings
from ..core.referee import FREE, Referee
from ..core.results import calls_key, json_value
from ..core.round import Round
from ..core.values import CallFormat, Query, Turn
from ..engine.checker import Checker
from ..engine.ensemble import Ensemble
from ..errors import UsageError, advised
from ..members.chat_model.parts import rewritten
from . import shape as _shape
from .call_text import arguments_of, lone_call
from .errors import loading_errors
from .members import ensemble_for, id_of
from .messages import turns_of
from .options import Call
from .references import are_chat_models, has_chat_model
from .requests import request_of
from .routing import Routing


@dataclass(frozen=True, slots=True)
class Question:
    """A conversation, the options of the call, and the members that answer."""

    turns: tuple[Turn, ...]
    shape: _shape.Shape
    call: Call
    """The options, which are also the settings of the loop and the engine: they include a seed, and
    the result by which whole answers are compared."""
    ensemble: Ensemble
    messages: Sequence[BaseMessage] = ()
    """The conversation as LangChain messages, for the checks."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The options of the call as the caller gave them."""
    is_whole: bool = False
    """Nobody sees the answer before it is complete."""
    routing: Routing | None = None
    """Who leads, if a calibration decides that."""
    began: float = field(default_factory=time.monotonic, compare=False)
    """When the question was asked, before it waited for members to load."""

    @classmethod
    def of(
        cls,
        messages: Sequence[BaseMessage],
        call: Call,
        stop: Sequence[str] | None = None,
        options: Mapping[str, Any] | None = None,
        *,
        is_whole: bool = False,
    ) -> Question:
        """The question in these messages. ``stop`` are the stop strings of the call, ``options``
        its other options as the caller gave them; ``is_whole``: nobody sees the answer before it is
        complete. This loads nothing."""
        turns = turns_of(messages, hosted=has_chat_model(call.members))
        shape = _shape.shape_of(call, stop or ())
        method = call.method.model_copy(update={"result": _result(call, shape)})
        changes: dict[str, Any] = {"method": method}
        routing = call.routing(turns)
        if routing is not None:
            changes["lead"] = routing.lead
        if call.seed is None and call.temperature:
            changes["seed"] = secrets.randbelow(2**31)
        ensemble = ensemble_for(call.members, call.method.verifiers)
        changes |= _lead_for_calls(call, changes, shape, ensemble)
        call = call.model_copy(update=changes)
        if shape.tools:
            _refuse_lead_without_tools(call, ensemble)
        return cls(
            turns,
            shape,
            call,
            ensemble,
            tuple(messages),
            options or {},
            is_whole,
            routing,
        )

    @property
    def writers(self) -> list[str]:
        """The names of the members that write."""
        return list(self.ensemble.members)[: len(self.call.members)]

    @property
    def verifiers(self) -> list[str]:
        """The names of the members that only vote."""
        return list(self.ensemble.members)[len(self.call.members) :]

    def who_leads(self, probes: Mapping[str, Probe]) -> Routing | None:
        """Who leads, and why; None if only one member writes. ``probes``: the properties of the
        members that are loaded."""
        if len(self.writers) < 2:
            return None
        routing = self.routing or self._lead_without_calibration(probes)
        order = [name for name in self.ensemble.order(self.call) if name in probes]
        if order and order[0] != routing.lead:
            return Routing(order[0], "reserve", routing.expected)
        return routing

    def _lead_without_calibration(self, probes: Mapping[str, Probe]) -> Routing:
        lead = self.ensemble.lead(self.call)
        if self.call.lead == lead and lead is not None:
            return Routing(lead, "named")
        sizes = {name: probes[name].size if name in probes else 0 for name in self.writers}
        if lead is not None and lead == largest(sizes):
            return Routing(lead, "largest")
        rule = _rule(lead, sizes, self.call)
        return Routing(lead, "first" if lead else "vote", rule=rule)

    @property
    def model_name(self) -> str:
        """The name in metadata and traces."""
        return self.call.model_name or "+".join(self.writers)

    @property
    def hosted(self) -> list[str]:
        """The members whose requests count towards the answer's cost: chat models. A chat model
        behind a :class:`.ServerMember` does not count, because it runs on the user's own server."""
        members = self.ensemble.members.items()
        return [name for name, member in members if getattr(member, "is_hosted", False)]

    @property
    def unpriced(self) -> list[str]:
        """The members without a price."""
        members = self.ensemble.members.items()
        return [name for name, member in members if getattr(member, "price", None) is None]

    def call_format(self, probes: Mapping[str, Probe]) -> CallFormat:
        """The format of tool calls: the writers' own if they share one, otherwise a common one.
        Members in reserve use the lead's."""
        first = self.ensemble.order(self.call)[:1]
        known = [probes[name] for name in first or self.writers if name in probes]
        formats = {probe.calls for probe in known} - {None}
        common = formats.pop() if len(formats) == 1 else None
        return common or _shape.COMMON

    def query(self, format: CallFormat = _shape.COMMON) -> Query:
        """The query that the members answer."""
        is_hosted = are_chat_models(self.call.members)
        constraint = None if is_hosted else self.shape.constraint(format)
        query = Query(uuid.uuid4().hex, self.turns, self.shape.tools, constraint)
        natives = self.ensemble.natives()
        if not natives:
            return query
        lead = [*self.ensemble.order(self.call), *natives][0]
        text = self.shape.text
        request = request_of(
            self.messages, self.call, self.options, text, lead=lead, is_whole=self.is_whole
        )
        query = replace(query, rewrite=rewritten)
        if constraint is None:
            return replace(query, request=request)
        hold: Any = "calls" if self.shape.tools else ""
        return replace(query, request=request, hold="all" if request.waits else hold)

    def rounds(self, format: CallFormat = _shape.COMMON, config: Any = None) -> Iterator[Round]:
        """The rounds of the answer, as they are agreed. ``config`` is for the checks."""
        query = self.query(format)
        referee = self._referee(query)
        checker = self._checker(None, config)
        return self.ensemble.rounds(
            query, self._settings(referee), referee=referee, checker=checker, began=self.began
        )

    async def arounds(
        self, format: CallFormat = _shape.COMMON, config: Any = None
    ) -> AsyncIterator[Round]:
        """``rounds`` for asyncio. A grammar can take long to compile, so it is compiled on another
        thread."""
        query, referee = self.query(format), FREE
        if query.constraint is not None:
            referee = await asyncio.to_thread(self._referee, query)
        checker = self._checker(asyncio.get_running_loop(), config)
        return self.ensemble.arounds(
            query, self._settings(referee), referee=referee, checker=checker, began=self.began
        )

    def _referee(self, query: Query) -> Referee:
        """The referee of a query. For checks, it also finds a call that is written as plain
        JSON."""
        if query.constraint is None:
            return FREE
        referee = _shape.referee_of(query.constraint)
        shape = self.shape
        if not (self.call.checks and shape.tools) or shape.begins_with_call:
            return referee
        names = [tool.name for tool in shape.tools]
        return referee.with_lone_calls(partial(lone_call, names))

    def _checker(self, loop: asyncio.AbstractEventLoop | None, config: Any) -> Checker | None:
        """What runs the checks of this answer; None if it has none."""
        if not self.call.judges:
            return None
        return Checker(partial(self._context_of, config, {}), loop, config)

    def _context_of(self, config: Any, memory: dict[Any, Any], job: CheckJob) -> CheckContext:
        calls = [{"name": call.name, "args": arguments_of(call)} for call in job.calls]
        return CheckContext(self.messages, job.draft, job.author, job.ended, calls, config, memory)

    def _settings(self, referee: Referee) -> Settings:
        """The settings. Under a constraint, answers are compared by their meaning instead of their
        words."""
        text = self.shape.text
        is_json = text is not None and text.kind.startswith("json")
        is_constrained = text is not None or bool(self.shape.tools)
        by_words = {"text", "json"} if is_json else {"text"}
        method = self.call.method
        if not is_constrained or method.result not in by_words:
            return self.call
        method = method.model_copy(update={"result": partial(_meaning, referee, is_json)})
        return self.call.model_copy(update={"method": method})


def _lead_for_calls(
    call: Call, changes: Mapping[str, Any], shape: _shape.Shape, ensemble: Ensemble
) -> dict[str, Any]:
    """The changes by which one member decides calls and objects where chat models would vote: every
    provider writes them in its own way."""
    natives = ensemble.natives()
    if not natives or call.method.segment == "answer" or (shape.text is None and not shape.tools):
        return {}
    if not changes.keys() & {"lead"} and call.method.margin == math.inf:
        lead = ensemble.lead(call)
        if lead is not None or len(call.members) < 2:
            return {}
    method = changes["method"].model_copy(update={"margin": math.inf})
    return {"method": method, "lead": changes.get("lead") or natives[0]}


def _refuse_lead_without_tools(call: Call, ensemble: Ensemble) -> None:
    """Refuse a chat model that leads and cannot call tools, before a request."""
    writers = [name for name in ensemble.members if name in ensemble.drafting]
    for name in ensemble.order(call)[:1] or writers[:1]:
        refuse = getattr(ensemble.members[name], "refuse_without_tools", None)
        if refuse is not None:
            refuse()


def _result(call: Call, shape: _shape.Shape) -> Any:
    """The result by which whole answers are compared; None if answers are agreed by segments."""
    method = call.method
    if method.segment != "answer":
        return None
    is_constrained = shape.text is not None or bool(shape.tools)
    # The doctor's questions are answered in plain text: a number is not the result of a call.
    is_foreign = call.has_calibrated_result and is_constrained
    if method.result is not None and not is_foreign:
        return method.result
    if is_constrained:
        return "text"
    if call.judges:
        return None  # the first answer that passes wins
    error = UsageError("segment='answer' needs to know how to find the result in an answer")
    results = "result='number', 'choice', 'json', 'text' or a function"
    raise advised(error, f"{results}; or ask for an object or a choice")


def _meaning(referee: Referee, is_json: bool, answer: str) -> Hashable:
    """A key that is equal for answers with the same meaning under a constraint; None for an answer
    that is cut off.

    JSON is compared as values, calls by tool and arguments, and anything else exactly.
    """
    if not referee.may_end(answer):
        return None
    if calls := referee.calls(answer):
        return calls_key([call for call, _ in calls])
    return json_value(answer) if is_json else answer


def loaded(ensemble: Ensemble, call: Call) -> dict[str, Probe]:
    """Load the members that an answer begins with, if necessary. Returns the properties of all
    loaded members."""
    with loading_errors():
        probes = ensemble.loaded(call).result()
    _warn(ensemble, call, probes)
    return probes


async def aloaded(ensemble: Ensemble, call: Call) -> dict[str, Probe]:
    """``loaded`` for asyncio."""
    with loading_errors():
        loading = ensemble.loaded(call)
        probes = loading.result() if loading.done() else await asyncio.wrap_future(loading)
    _warn(ensemble, call, probes)
    return probes


def _warn(ensemble: Ensemble, call: Call, probes: Mapping[str, Probe]) -> None:
    """Warn if a vote among these members would decide nothing, or verifiers have none."""
    order = ensemble.order(call)
    if not order:
        warn_where_votes_decide_nothing(ensemble.members, ensemble.drafting, probes)
        return
    verifiers = [name for name in ensemble.members if name not in ensemble.drafting]
    if not verifiers:
        return
    fact = f"{order[0]} leads and writes alone, so {', '.join(verifiers)} has nothing to verify"
    advice = "let all vote with lead=None, or let the lead consult with method=Method(margin=0.5)"
    key = (fact, id_of(ensemble.members[verifiers[0]]))
    if key not in _WARNED:
        _WARNED.add(key)
        warnings.warn(f"{fact}\n-> {advice}", stacklevel=3)


_WARNED: set[tuple[str, str]] = set()
"""The warnings that have been issued, each with its member."""


def warn_where_votes_decide_nothing(
    members: Mapping[str, Any], writers: Collection[str], probes: Mapping[str, Probe | None]
) -> None:
    """Warn once per ensemble if several members draft, but at most one of them and no other member
    has a vote. There is no warning until all members are probed.
    """
    voting = [name for name, probe in probes.items() if probe and probe.scores]
    silent = [name for name in members if name in writers and name not in voting]
    is_known = None not in probes.values()
    is_decided = len(voting) < 2 and set(voting) <= set(writers)
    if not is_known or not is_decided or len(writers) < 2:
        return
    others = ", ".join(silent)
    if voting:
        winner = voting[0]
        fact = f"{others} cannot score, so only {winner} votes"
    else:
        winner = silent[0]
        fact = f"no member can score ({others})"
    key = (fact, id_of(members[silent[0]]))
    if key in _WARNED:
        return
    _WARNED.add(key)
    advice = (
        "add a member that can score (one in this process, or a vLLM or llama.cpp server), "
        "perhaps in method=Method(verifiers=[...])"
    )
    warnings.warn(f"{fact}: the drafts of {winner} always win\n-> {advice}", stacklevel=3)


def _rule(lead: str | None, sizes: Mapping[str, int], call: Call) -> str:
    """Why the first member leads, or why none does. ``sizes``: member -> its parameters, or 0."""
    if call.lead != "auto" or call.method.margin is None:
        return ""  # the user chose the vote
    elif lead:
        scoring = "one of them is a chat model, or fewer than two members can score drafts"
    else:
        scoring = "a verifier, or two members and no chat model, can score drafts"
    known = ", ".join(f"{name} {_millions(size)}" for name, size in sizes.items())
    alike = f"none is known to have at least twice the parameters of every other ({known})"
    return f"{alike}, and {scoring}"


def _millions(size: int) -> str:
    """
    >>> _millions(134_515_008), _millions(0)
    ('135M', 'unknown')
    """
    return f"{size / 1e6:.0f}M" if size else "unknown"
