"""lm-evaluation-harness drives the ensemble: an ``LM`` for its tasks, among them GSM8K, IFEval and HumanEval.

    import lm_eval
    from langchain_specfuse.evaluation.harness import SpecFuseLM

    lm_eval.simple_evaluate(SpecFuseLM(members), tasks=["gsm8k", "ifeval"], apply_chat_template=True, limit=100)

``pip install lm-eval`` (``"lm-eval[ifeval]"`` for IFEval); the harness downloads the data. Tasks that run the model's
code also need ``confirm_run_unsafe_code=True``.

A context is the user's turn, or with ``apply_chat_template=True`` the harness's turns, which each member renders with
its own template. A continuation is the beginning of the answer. Members are chat models, so they cannot score a text
without a question: ``loglikelihood_rolling`` raises.
"""

from __future__ import annotations

import asyncio
import json
import math
import uuid
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any

from ..errors import EnsembleError, UsageError, advised

try:
    from lm_eval.api.model import LM
except ModuleNotFoundError as error:
    raise advised(UsageError("lm-evaluation-harness is not installed"), "pip install lm-eval") from error

from ..core.member import Member
from ..core.method import Settings
from ..core.panel import Panel
from ..core.values import Candidate, Query, Scored, ScoreJob, Turn
from ..engine.ensemble import EQUALS, Ensemble
from .running import AT_ONCE, on_worker
from .systems import SAMPLING

_MARK = "specfuse-turns:"
"""Begins a context that is a list of turns: the harness passes contexts as text."""


class SpecFuseLM(LM):  # type: ignore[misc]
    """An ensemble as the harness's model. ``settings`` apply where a task names no others."""

    def __init__(
        self,
        members: Sequence[Member],
        *,
        settings: Settings | None = None,
        prior: Mapping[str, float] | None = None,
        verifiers: Sequence[Member] = (),
        at_once: int = AT_ONCE,
    ) -> None:
        super().__init__()
        self.ensemble = Ensemble(list(members), list(verifiers))
        self.settings = settings or Settings()
        self.prior = dict(prior) if prior else None
        self.at_once = at_once

    # --- generating -------------------------------------------------------------------------------------------------

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """The ensemble's answers, many questions at once."""
        asked = [(turns_of(one.args[0]), self._settings_for(one.args[1])) for one in requests]
        return asyncio.run(self._answers(asked))

    def _settings_for(self, arguments: Any) -> Settings:
        """The harness's generation arguments on top of our settings."""
        arguments = dict(arguments) if isinstance(arguments, Mapping) else {}
        until = arguments.get("until") or []
        stop = tuple(text for text in ([until] if isinstance(until, str) else until) if text)
        tokens = next((arguments[name] for name in _BUDGETS if arguments.get(name)), self.settings.max_tokens)
        changes = {name: arguments[name] for name in SAMPLING if arguments.get(name) is not None and name != "seed"}
        if arguments.get("do_sample") is False:
            changes = {"temperature": 0.0}
        return replace(
            self.settings,
            stop=(*self.settings.stop, *stop),
            max_tokens=int(tokens),
            sampling=replace(self.settings.sampling, **changes),
        )

    async def _answers(self, asked: Sequence[tuple[tuple[Turn, ...], Settings]]) -> list[str]:
        await asyncio.wrap_future(self.ensemble.loaded())
        limit = asyncio.Semaphore(self.at_once)

        async def one(turns: tuple[Turn, ...], settings: Settings) -> str:
            async with limit:
                stream = self.ensemble.arounds(_query(turns), settings, prior=self.prior)
                async with aclosing(stream) as rounds:  # type: ignore[type-var]
                    return "".join([round.text async for round in rounds])

        return await asyncio.gather(*(one(*item) for item in asked))

    # --- scoring ----------------------------------------------------------------------------------------------------

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """log Σ_j w_j p_j(continuation | context): the members' probabilities, mixed by their weights.

        The answer begins where the member's template puts it, so a leading space of the continuation is left out. It
        is greedy if the ensemble itself would begin its answer so.
        """
        asked = [(turns_of(one.args[0]), one.args[1].lstrip(" ")) for one in requests]
        panel = self.ensemble.panel(self.ensemble.loaded().result(), EQUALS, self.prior)
        if not panel.verifiers:
            raise advised(EnsembleError("no member can score"), "tasks that generate work: generate_until")
        weights = Panel.of([one for one in panel.members if one.scores], self.prior).weights
        rows = {name: self._scores(name, asked) for name in weights}
        greedy = self._settings_for({"do_sample": False})
        # As many tokens as bytes: an answer at least as long as the continuation.
        long = [(turns, replace(greedy, max_tokens=max(1, len(text.encode())))) for turns, text in asked]
        answers = asyncio.run(self._answers(long))
        return [
            (mixed({name: rows[name][at] for name in weights}, weights), answers[at].startswith(text))
            for at, (_, text) in enumerate(asked)
        ]

    def _scores(self, name: str, asked: Sequence[tuple[tuple[Turn, ...], str]]) -> list[float]:
        """The log-probability of every continuation by one member, ``at_once`` at a time."""
        member = self.ensemble.members[name]
        jobs = [ScoreJob(_query(turns), (), (Candidate(text, False, ("harness",)),)) for turns, text in asked]
        found: list[float] = []
        for at in range(0, len(jobs), self.at_once):
            batch = jobs[at : at + self.at_once]
            found += on_worker(member, partial(_logprobs, member, batch)).result()
        return found

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Raises: a member scores answers, not texts without a question."""
        error = UsageError("loglikelihood_rolling (perplexity of a text) is not possible: members score answers only")
        raise advised(error, "use tasks that generate, or that choose among answers")

    # --- chat templates ---------------------------------------------------------------------------------------------

    @property
    def tokenizer_name(self) -> str:
        return "specfuse-" + "-".join(self.ensemble.members)

    def chat_template(self, chat_template: bool | str = False) -> str:
        """Not a template: every member has its own, so the harness passes the turns as they are."""
        return _MARK if chat_template else ""

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The turns as text, for ``turns_of``."""
        return _MARK + json.dumps(chat_history)


_BUDGETS = ("max_gen_toks", "max_new_tokens", "max_tokens")


def _query(turns: tuple[Turn, ...]) -> Query:
    return Query(f"harness-{uuid.uuid4().hex}", turns)


def turns_of(context: str) -> tuple[Turn, ...]:
    """The turns of a context; plain text is the user's."""
    if context.startswith(_MARK):
        return tuple(Turn(str(one["role"]), str(one["content"])) for one in json.loads(context[len(_MARK) :]))
    return (Turn("user", context),)


def mixed(logprobs: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """log Σ_j w_j exp(logprob_j)."""
    most = max(logprobs.values())
    return most + math.log(math.fsum(weights[name] * math.exp(value - most) for name, value in logprobs.items()))


def _logprobs(member: Member, jobs: Sequence[ScoreJob]) -> list[float]:
    """The log-probability of each job's one candidate."""
    try:
        replies = member.score(jobs)
    finally:
        for job in jobs:
            member.forget(job.query.id)
    if failure := next((reply for reply in replies if not isinstance(reply, Scored)), None):
        raise EnsembleError(f"{member.name} could not score a continuation: {failure.message}")
    return [math.fsum(reply.logprobs[0]) for reply in replies if isinstance(reply, Scored)]
