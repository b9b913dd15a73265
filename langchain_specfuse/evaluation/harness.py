"""lm-evaluation-harness drives the ensemble: an ``LM`` for its tasks. The only file that knows the harness.

    import lm_eval
    from langchain_specfuse.evaluation.harness import SpecFuseLM

    lm_eval.simple_evaluate(SpecFuseLM(members), tasks=["gsm8k"])

A context is the user's turn (with ``apply_chat_template=True``: the turns of the harness), the continuation is the
answer. Members here are chat models behind templates of their own, so a text without a question cannot be scored:
``loglikelihood_rolling`` says so.
"""

from __future__ import annotations

import asyncio
import json
import math
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from dataclasses import replace
from typing import Any

try:
    from lm_eval.api.model import LM
    from lm_eval.api.registry import register_model
except ModuleNotFoundError as error:
    from ..errors import UsageError, advised

    raise advised(UsageError("lm-evaluation-harness is not installed"), "pip install lm-eval") from error

from ..core.member import Member
from ..core.panel import Panel
from ..core.values import Candidate, Query, Scored, ScoreJob, Settings, Turn
from ..engine.desk import desk_for
from ..engine.ensemble import Ensemble
from ..engine.task import Task
from ..errors import EnsembleError, UsageError, advised

_MARK = "specfuse-turns:"
"""Begins a context that is a list of turns: the harness hands contexts on as text."""


@register_model("specfuse")
class SpecFuseLM(LM):  # type: ignore[misc]
    """An ensemble as the harness knows models.

    ``members`` are objects; ``settings`` those of the ensemble (``max_tokens`` is the budget where a task names none);
    ``prior`` the weights to begin with.
    """

    def __init__(
        self,
        members: Sequence[Member] | str,
        *,
        settings: Settings | None = None,
        prior: Mapping[str, float] | None = None,
        verifiers: Sequence[Member] = (),
        at_once: int = 16,
        **ignored: Any,
    ) -> None:
        super().__init__()
        if isinstance(members, str):
            error = UsageError("members are objects here, got a text")
            raise advised(error, "SpecFuseLM(members=[TransformersMember('...'), ...]) in Python, not --model_args")
        own = {"batch_size", "max_batch_size", "device"}  # what the harness hands to every model
        if unknown := set(ignored) - own:
            error = UsageError(f"there is no option {sorted(unknown)[0]!r}")
            raise advised(error, "there are members, settings, prior, verifiers, at_once")
        self.ensemble = Ensemble(list(members), list(verifiers))
        self.settings = settings or Settings()
        self.prior = dict(prior) if prior else None
        self.at_once = at_once

    # --- generating -------------------------------------------------------------------------------------------------

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Answers, many questions at once."""
        asked = [(turns_of(one.args[0]), self._settings_for(one.args[1])) for one in requests]
        answers = asyncio.run(self._answered(asked))
        for one, answer in zip(requests, answers, strict=True):
            self.cache_hook.add_partial("generate_until", one.args, answer)
        return answers

    def _settings_for(self, told: Any) -> Settings:
        """The harness's generation arguments on top of our settings."""
        told = dict(told) if isinstance(told, Mapping) else {}
        until = told.get("until") or []
        stop = tuple(text for text in ([until] if isinstance(until, str) else until) if text)
        tokens = told.get("max_gen_toks") or told.get("max_new_tokens") or told.get("max_tokens")
        sampling = self.settings.sampling
        if told.get("do_sample") is False:
            sampling = replace(sampling, temperature=0.0)
        else:
            names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
            sampling = replace(sampling, **{name: told[name] for name in names if told.get(name) is not None})
        return replace(
            self.settings,
            stop=(*self.settings.stop, *stop),
            max_tokens=int(tokens or self.settings.max_tokens),
            sampling=sampling,
        )

    async def _answered(self, asked: Sequence[tuple[tuple[Turn, ...], Settings]]) -> list[str]:
        await asyncio.wrap_future(self.ensemble.loaded())
        room = asyncio.Semaphore(self.at_once)

        async def one(turns: tuple[Turn, ...], settings: Settings) -> str:
            async with room:
                told = self.ensemble.arounds(Query(f"harness-{uuid.uuid4().hex}", turns), settings, prior=self.prior)
                async with aclosing(told) as rounds:  # type: ignore[type-var]
                    return "".join([round.text async for round in rounds])

        return await asyncio.gather(*(one(*told) for told in asked))

    # --- scoring ----------------------------------------------------------------------------------------------------

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """log Σ_j w_j p_j(continuation | context): the members' probabilities, mixed by their weights.

        The answer begins where the member's template puts it, so a leading space of the continuation is left out. It
        is greedy if the ensemble itself would begin its answer so.
        """
        asked = [(turns_of(one.args[0]), one.args[1].lstrip(" ")) for one in requests]
        weights = self._weights()
        rows = {name: self._scored(name, asked) for name in weights}
        greedy = asyncio.run(self._answered([(turns, self._long_enough(text)) for turns, text in asked]))
        told = [
            (mixed({name: rows[name][at] for name in weights}, weights), greedy[at].startswith(asked[at][1]))
            for at in range(len(asked))
        ]
        for one, reply in zip(requests, told, strict=True):
            self.cache_hook.add_partial("loglikelihood", one.args, reply)
        return told

    def _weights(self) -> dict[str, float]:
        """Of the members that score."""
        seats = [seat for seat in self.ensemble.seats(self.ensemble.loaded().result()) if seat.scores]
        if not seats:
            raise advised(EnsembleError("no member can score"), "tasks that generate work: generate_until")
        return dict(Panel.of(seats, self.prior).weights)

    def _scored(self, name: str, asked: Sequence[tuple[tuple[Turn, ...], str]]) -> list[float]:
        """The log-probability of every continuation, by one member, in batches at its desk."""
        member = self.ensemble.members[name]
        jobs = [
            ScoreJob(Query(f"harness-{uuid.uuid4().hex}", turns), (), (Candidate(text, False, ("harness",)),))
            for turns, text in asked
        ]
        done: list[Future[Any]] = [Future() for _ in jobs]
        for job, future in zip(jobs, done, strict=True):
            desk_for(member.device).put(Task(member, "score", job, future.set_result))
        try:
            return [_sum(name, future.result()) for future in done]
        finally:
            for job in jobs:
                desk_for(member.device).put(Task(member, "call", _forgetting(member, job.query.id), lambda _: None))

    def _long_enough(self, text: str) -> Settings:
        """Settings under which an answer is at least as long as this text, and not much longer."""
        tokens = max(1, len(text.encode()))
        rounds = math.ceil(tokens / self.settings.segment_tokens)
        return replace(self._settings_for({"do_sample": False}), max_tokens=tokens, max_rounds=rounds)

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Not possible: a member scores answers, not texts without a question."""
        error = UsageError("loglikelihood_rolling (perplexity of a text) is not possible: members score answers only")
        raise advised(error, "take tasks that generate, or that choose among answers")

    # --- chat templates ---------------------------------------------------------------------------------------------

    @property
    def tokenizer_name(self) -> str:
        return "specfuse-" + "-".join(self.ensemble.members)

    def chat_template(self, chat_template: bool | str = False) -> str:
        """Each member has its own; the harness hands the turns on as they are."""
        return _MARK if chat_template else ""

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The turns as text that ``turns_of`` reads again."""
        return _MARK + json.dumps(chat_history)


def turns_of(context: str) -> tuple[Turn, ...]:
    """The turns of a context; plain text is the user's.

    >>> turns_of("2 + 2 =")
    (Turn(role='user', text='2 + 2 =', calls=(), name='', call_id=''),)
    """
    if context.startswith(_MARK):
        return tuple(Turn(str(one["role"]), str(one["content"])) for one in json.loads(context[len(_MARK) :]))
    return (Turn("user", context),)


def mixed(logprobs: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """log Σ_j w_j exp(logprob_j).

    >>> round(mixed({"a": math.log(0.5), "b": math.log(0.1)}, {"a": 0.75, "b": 0.25}), 6) == round(math.log(0.4), 6)
    True
    """
    most = max(logprobs.values())
    return most + math.log(math.fsum(weights[name] * math.exp(value - most) for name, value in logprobs.items()))


def _sum(name: str, reply: Any) -> float:
    if isinstance(reply, Scored):
        return math.fsum(reply.logprobs[0])
    raise EnsembleError(f"{name} could not score a continuation: {reply.message}")


def _forgetting(member: Member, query_id: str) -> Any:
    return lambda: member.forget(query_id)
